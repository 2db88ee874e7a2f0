"""Update steps: the distance between policies, and where steps are measured."""

import shutil
from itertools import product

import measuring.intervals
import measuring.runs
import measuring.sampling
import measuring.table
import numpy as np
import pytest
import torch
from conftest import ROOT, load
from environments import Chain


@pytest.fixture
def run(known):
    return known / "chain"


def test_kl_between_policies_is_exact(run):
    """Means s apart, at the stds a and b: (a^2 + s^2) / 2 b^2 - 1/2 + ln b/a and the same the other way round."""
    module, source = load("steps"), measuring.runs.Source(ROOT / "algos" / "ppo.py", run, 0)
    policy = measuring.sampling.checkpoint_state(source)[2].policy
    parameters = []
    for shift, std in ((0.0, 1.0), (0.5, 2.0)):
        with torch.no_grad():
            policy.mean[-1].bias += shift
            policy.log_std.fill_(np.log(std))
        parameters.append(measuring.sampling.flat_parameters(policy))
    found = module.kls(policy, parameters, np.eye(4, dtype=np.float32))
    of_an_action = [1.25 / 8 - 0.5 + np.log(2), 4.25 / 2 - 0.5 - np.log(2)]
    np.testing.assert_allclose(found, np.array([[0, 1], [1, 0]]) * sum(of_an_action), atol=1e-6)  # of two, halved


def test_step_is_taken_with_the_optimizer_and_the_learning_rate_of_the_checkpoint(run, tmp_path):
    def step(name, **changes):
        path = tmp_path / name / "checkpoints" / "iter_000003.pt"
        path.parent.mkdir(parents=True)
        shutil.copy(run / "config.json", tmp_path / name)
        checkpoint = torch.load(run / "checkpoints" / path.name, weights_only=True)
        torch.save(checkpoint | {name: change(checkpoint[name]) for name, change in changes.items()}, path)
        source = measuring.runs.Source(ROOT / "algos" / "ppo.py", tmp_path / name, 3)
        start = measuring.sampling.flat_parameters(measuring.sampling.checkpoint_state(source)[2].policy)
        return torch.from_numpy(load("steps").take_update(source, (0,), 1, 64)[0]) - start

    as_it_is, again = step("a"), step("b")
    assert torch.equal(as_it_is, again)
    forgetful = step("c", policy_adam=lambda adam: [0 * adam[0], 0 * adam[1], adam[2]])
    faster = step("d", global_step=lambda _: 0)  # as at the start of the annealing
    assert (forgetful - as_it_is).norm() > 0.1 * as_it_is.norm() and faster.norm() > 1.5 * as_it_is.norm()


def test_steps_from_the_same_batches_are_one_step(run, tmp_path, monkeypatch):
    module = load("steps")
    step = module.take_update
    monkeypatch.setattr(module, "draw_steps", lambda *_: None)  # a KL of 0 has no logarithm
    monkeypatch.setattr(module, "take_update", lambda source, seed, *size: step(source, seed[:-1], *size))
    module.main([str(run), "--out", str(tmp_path), "--jobs", "1", "--repeats", "3"])
    for cell in measuring.table.read_rows(tmp_path / "steps.jsonl"):
        assert cell["cosine"]["mean"] == pytest.approx(1) and cell["kl"]["mean"] == pytest.approx(0, abs=1e-6)
        assert min(cell["norms"]) == max(cell["norms"]) > 0


def expected_return(source, parameters):
    """What the policy earns in an episode of Chain: a formula, because its four places do not depend on the actions."""
    policy = measuring.sampling.checkpoint_state(source)[2].policy
    with torch.no_grad():
        pi = measuring.sampling.with_parameters(policy, torch.as_tensor(parameters))(torch.eye(4))
        return sum(Chain.rewards) - ((pi.mean - torch.tensor(Chain.TARGET)) ** 2 + pi.variance).sum().item()


@pytest.mark.parametrize(("rate", "reward_pairs"), [(0.5, 320), (0.1, 80)])
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
    assert "ppo, fast, iteration 3: 40 updates from 64 pairs change the reward by" in capsys.readouterr().out
    [cell] = measuring.table.read_rows(tmp_path / "updates.jsonl")
    [axis] = figures["updates.png"].axes
    assert len(cell["changes"]) == 40 and axis.lines

    source = measuring.runs.Source(ROOT / "algos" / "ppo.py", copy, 3)
    own = measuring.sampling.flat_parameters(measuring.sampling.checkpoint_state(source)[2].policy)
    updates = [module.take_update(source, (0, 3, 4, 1, i), 1, 64) for i in range(40)]
    true = np.array([expected_return(source, x) for x, _ in updates]) - expected_return(source, own)
    for name, x in dict(change=true.mean(), spread=true.std(ddof=1), harmful=(true < 0).mean()).items():
        low, high = cell[name]["interval"]
        assert low <= x <= high, name
    assert [x["promised"] for x in cell["changes"]] == [promised for _, promised in updates]
    assert "of them lower it" in module.describe_updates(cell)
    explained = module.describe_updates(cell | dict(spread=dict(mean=0.0, interval=None)))  # by the episodes' noise
    assert "how many lower it cannot be told" in explained and "%" not in explained


def test_an_update_from_more_pairs_has_the_learning_rate_of_training(run, monkeypatch):
    """6,400 pairs are more than the whole run had, so as a size of its batches they would leave no step to anneal."""
    source, seen = measuring.runs.Source(ROOT / "algos" / "ppo.py", run, 3), []
    script = measuring.runs.load_script(source.script)

    def update(args, state, batch, update=script.update):
        seen.append((1 - state.global_step / state.planned_steps, len(batch["obs"])))
        return update(args, state, batch)

    monkeypatch.setattr(script, "update", update)
    for num_envs in (1, 100):
        load("steps").take_update(source, (0,), num_envs, 64)
    settings = measuring.runs.read_config(run)
    left = 1 - 3 * measuring.runs.batch_size(settings) / measuring.runs.planned_steps(settings)
    assert seen == [(left, 64), (left, 6400)]


def from_pairs(values, n):
    """Mean and interval over pairs of n items, from the values of the pairs alone."""
    matrix = np.zeros((n, n))
    matrix[np.triu_indices(n, 1)] = values
    found = measuring.intervals.pairwise(matrix + matrix.T)
    return [found["mean"], *found["interval"]]


def test_steps_are_measured_where_there_are_some(run, tmp_path, capsys):
    flags, module = [str(run), "--out", str(tmp_path), "--jobs", "1", "--repeats", "3"], load("steps")
    for checkpoints, expected in (([], [0, 2, 3, 5]), (["all"], [0, 1, 2, 3, 4, 5]), (["2"], [2])):
        module.main(flags + (["--checkpoints", *checkpoints] if checkpoints else []))
        lines = [line for line in capsys.readouterr().out.splitlines() if "cosine" in line]
        for cell, name in product(measuring.table.read_rows(tmp_path / "steps.jsonl"), ("cosine", "kl")):
            again = from_pairs(cell[name]["all"], 3)
            assert again == pytest.approx([cell[name]["mean"], *cell[name]["interval"]], rel=1e-4), name
        assert [int(line.split("iteration ")[1].split(":")[0]) for line in lines] == expected
    for wrong, message in (
        (["--checkpoints", "6"], "training ended there"),
        (["--repeats", "1"], "--repeats 1: must lie between 2 and"),
        (["--step-pairs", "64"], "--step-pairs: needs --rewards"),
    ):
        with pytest.raises(SystemExit) as ended:
            module.main(flags + wrong)
        assert ended.value.code == 2 and message in capsys.readouterr().err
