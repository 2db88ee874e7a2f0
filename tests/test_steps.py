"""Update steps: the distance between policies, and where steps are measured."""

import shutil

import lab
import numpy as np
import pytest
import torch
from conftest import flat, load
from environments import Chain
from problems import checkpoint_of, expected_return, policy_of, rows

pytestmark = pytest.mark.usefixtures("figures")


@pytest.fixture
def run(known):
    return known / "chain"


def test_kl_between_policies_is_exact(run):
    """Means s apart, at the stds a and b: (a^2 + s^2) / 2 b^2 - 1/2 + ln b/a and the same the other way round."""
    policy, parameters = policy_of(checkpoint_of(run)), []
    for shift, std in ((0.0, 1.0), (0.5, 2.0)):
        with torch.no_grad():
            policy.mean[-1].bias += shift
            policy.log_std.fill_(np.log(std))
        parameters.append(flat(policy))
    found = load("steps").kls(policy, parameters, np.eye(4, dtype=np.float32))
    of_an_action = [1.25 / 8 - 0.5 + np.log(2), 4.25 / 2 - 0.5 - np.log(2)]
    np.testing.assert_allclose(found, np.array([[0, 1], [1, 0]]) * sum(of_an_action), atol=1e-6)  # of two, halved


def test_step_is_taken_with_the_optimizer_and_the_learning_rate_of_the_checkpoint(run, tmp_path):
    def step(name, **changes):
        path = tmp_path / name / "checkpoints" / "iter_000003.pt"
        path.parent.mkdir(parents=True)
        shutil.copy(run / "config.json", tmp_path / name)
        checkpoint = torch.load(run / "checkpoints" / path.name, weights_only=True)
        torch.save(checkpoint | {name: change(checkpoint[name]) for name, change in changes.items()}, path)
        checkpoint = checkpoint_of(tmp_path / name, 3)
        return torch.from_numpy(load("steps").take_update(checkpoint, (0,), 1, 64)[0]) - flat(policy_of(checkpoint))

    as_it_is, again = step("a"), step("b")
    assert torch.equal(as_it_is, again)
    forgetful = step("c", policy_adam=lambda adam: [0 * adam[0], 0 * adam[1], adam[2]])
    faster = step("d", global_step=lambda _: 0)  # as at the start of the annealing
    assert (forgetful - as_it_is).norm() > 0.1 * as_it_is.norm() and faster.norm() > 1.5 * as_it_is.norm()


def test_steps_from_the_same_batches_are_one_step(run, tmp_path, monkeypatch):
    module = load("steps")
    step = module.take_update
    monkeypatch.setattr(module, "draw_steps", lambda *_: None)  # a KL of 0 has no logarithm
    monkeypatch.setattr(module, "take_update", lambda x, seed, *size: step(x, seed[:-1], *size))
    module.main([str(run), "--out", str(tmp_path), "--jobs", "1", "--repeats", "3"])
    for cell in rows(tmp_path, "steps"):
        assert cell["cosine"] == pytest.approx([1] * 3) and cell["kl"] == pytest.approx([0] * 3, abs=1e-6)
        assert min(cell["norms"]) == max(cell["norms"]) > 0


@pytest.mark.parametrize(("rate", "reward_pairs"), [(0.5, 320), (0.1, 160)])
def test_changes_by_updates_are_those_of_the_formula(run, tmp_path, figures, capsys, rate, reward_pairs):
    """With the high rate, a tenth of the updates do harm. With few episodes, their noise scatters the measured changes
    more than twice as much as the true ones."""
    module, copy = load("steps"), tmp_path / "fast"
    shutil.copytree(run, copy)
    path = copy / "checkpoints" / "iter_000003.pt"
    checkpoint = torch.load(path, weights_only=True)
    torch.save(checkpoint | dict(args=checkpoint["args"] | dict(policy_lr=rate)), path)
    flags = "--jobs 1 --checkpoints 3 --rewards 40 --step-pairs 64".split()
    module.main([str(copy), "--out", str(tmp_path), "--reward-pairs", str(reward_pairs), *flags])
    assert "fast, iteration 3: 40 updates from 64 pairs change the reward by" in capsys.readouterr().out
    [cell] = rows(tmp_path, "updates")
    [axis] = figures["updates.png"].axes
    assert len(cell["changes"]) == 40 and axis.lines

    checkpoint = checkpoint_of(copy, 3)
    policy = policy_of(checkpoint)
    updates = [module.take_update(checkpoint, (0, 3, 4, 1, i), 1, 64) for i in range(40)]
    true = np.array([expected_return(Chain, policy, torch.from_numpy(x)) for x, _ in updates])
    true -= expected_return(Chain, policy)
    for name, x in dict(change=true.mean(), spread=true.std(ddof=1), harmful=(true < 0).mean()).items():
        low, high = module.over_updates(cell)[name]["interval"]
        assert low <= x <= high, name
    script, args, state, steps = lab.fresh_rollout(checkpoint, (0, 3, 4, 1, 0), 1, 64)
    script.update(args, state, batch := script.estimate_advantages(args, state, steps))
    loss = script.policy_loss(args, state.policy(batch["obs"]), batch).item()  # it began at 0, the mean of A
    assert cell["changes"][0]["promised"] == pytest.approx(-loss, abs=1e-6)
    assert "of them lower it" in module.describe_updates(cell)
    alike = [x | dict(difference=dict(mean=1.0 + 1e-3 * i, std=9.0)) for i, x in enumerate(cell["changes"])]
    explained = module.describe_updates(cell | dict(changes=alike))  # by the episodes' noise
    assert "how many lower it cannot be told" in explained and "%" not in explained


def test_an_update_from_more_pairs_has_the_learning_rate_of_training(run, monkeypatch):
    """6,400 pairs are more than the whole run had, so as a size of its batches they would leave no step to anneal."""
    checkpoint, seen = checkpoint_of(run, 3), []
    script = lab.load_script(checkpoint.script)

    def update(args, state, batch, update=script.update):
        seen.append((1 - state.global_step / state.planned_steps, args.num_envs, len(batch["obs"])))
        return update(args, state, batch)

    monkeypatch.setattr(script, "update", update)
    for num_envs in (1, 100):
        load("steps").take_update(checkpoint, (0,), num_envs, 64)
    left = 1 - 3 * 64 / 384
    assert seen == [(left, 1, 64), (left, 1, 6400)]  # a script may count in the batches of its arguments
