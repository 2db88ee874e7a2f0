"""What any script must compute: all of ours do, and planted bugs are named."""

from dataclasses import replace

import measuring.runs
import measuring.sampling
import numpy as np
import pytest
import sabotage
import torch
from conftest import ALGOS, ROOT
from measuring import yardsticks
from measuring.sampling import changed


@pytest.mark.parametrize("algo", ALGOS)
def test_no_script_is_accused(known, algo):
    for iteration in (0, 2):
        source = measuring.runs.Source(ROOT / "algos" / f"{algo}.py", known / f"few_{algo}", iteration)
        found = yardsticks.check(source, 0)
        assert not any(found.values())
        assert ("objective" in found, "advantages" in found) == (algo != "vmpo", algo != "reinforce")
        assert ("clip of the ratio" in found) is (algo in ("ppo", "ppo_m"))
        assert {"update", "Adam"} <= found.keys()


def test_rows_that_were_not_seen_are_named(known):
    source = measuring.runs.Source(ROOT / "algos" / "ppo.py", known / "bandit", 1)
    assert yardsticks.check(source, 0)["value targets (there were no cut or other rows)"] == ""


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("ppo", dict(value_clip=False, reward_scale=False, bootstrap_truncation=False, gae_lambda=1.0)),
        ("ppo", dict(entropy_coef=-0.01, bound_action="clip", num_minibatches=1)),
        ("ppo_noclip", dict(entropy_coef=-0.01, reward_scale_by="rewards", bound_action="clip", num_minibatches=1)),
        ("ppo", dict(entropy_coef=0.01, bound_action="tanh", obs_norm=False, reward_clip=False)),
    ],
)
def test_no_setting_is_accused(known, monkeypatch, algo, settings):
    source = measuring.runs.Source(ROOT / "algos" / f"{algo}.py", known / f"few_{algo}", 1)
    set_arguments(monkeypatch, **settings)
    assert not any(yardsticks.check(source, 0).values())


def set_arguments(monkeypatch, **settings):
    """Checkpoints have these arguments in place of their own."""
    read = measuring.sampling.read_checkpoint
    with_settings = lambda source: (read(source)[0], replace(read(source)[1], **settings), read(source)[2])
    monkeypatch.setattr(measuring.sampling, "read_checkpoint", with_settings)


NAMED = {
    "delta-signs": "advantages are not",
    "rewards-centered": "scaled rewards are not",
    "next-value-shifted": "advantages are not",
    "targets-without-value": "value targets at lambda 1",
    "terminals-bootstrapped": "terminal rows",
    "gae-across-episodes": "advantages are not",
    "same-noise": "same noise",
    "not-shuffled": "not shuffled",
    "advantages-negated": "objective is not the policy gradient of its advantages: their cosine is -1.00",
    "log-ratio-clipped": "objective is not the policy gradient",
    "value-broadcast": "value loss is not",
    "rates-x30": "policy_lr 0.0003. They are 30 times as long, with a cosine of 1.00",
    "update-descends": "with a cosine of -1.00",
    "clip-maximum": "clipped surrogate, the smaller of both terms",
    "policy-rate": "policy_lr 0.0003. They are 25 times as long",
    "second-moment": "are not Adam's",
    "next-obs-raw": "next_obs is not the obs of the next row",
    "same-start": "episodes begin in the same state",
    "time-limits-terminal": "at a time limit. Is a time limit taken for a terminal state",
}


@pytest.mark.parametrize("case", [x for x in sabotage.BUGS if x.name in NAMED], ids=lambda x: x.name)
def test_planted_bugs_are_named(known, tmp_path, case):
    source = measuring.runs.Source(sabotage.write_script(case, tmp_path), known / "few_ppo", 1)
    assert NAMED[case.name] in " ".join(yardsticks.check(source, 0).values())


def test_entropy_bonus_with_the_wrong_sign_is_named(known, tmp_path, monkeypatch):
    [case] = [x for x in sabotage.BUGS if x.name == "entropy-sign"]
    source = measuring.runs.Source(sabotage.write_script(case, tmp_path), known / "ppo", 1)
    script, args, state = measuring.sampling.checkpoint_state(source)
    batch = script.estimate_advantages(args, state, script.rollout(args, state)[0])
    assert not yardsticks.wrong_objective(script, args, state, batch)
    assert "wrong sign" in yardsticks.wrong_objective(script, replace(args, entropy_coef=0.01), state, batch)


def test_an_actor_that_lags_behind_is_named(known, tmp_path, monkeypatch):
    [case] = [x for x in sabotage.BUGS if x.name == "stale-actor"]
    set_arguments(monkeypatch, checkpoint_every=2)  # it is refreshed as often
    source = measuring.runs.Source(sabotage.write_script(case, tmp_path), known / "ppo", 2)
    assert "acted with the old one" in yardsticks.check(source, 0)["noise"]


def test_actions_of_another_policy_are_named(known):
    source = measuring.runs.Source(ROOT / "algos" / "ppo.py", known / "ppo", 1)
    script, args, state = measuring.sampling.checkpoint_state(source)
    data, _ = script.rollout(args, state)
    assert not yardsticks.wrong_noise(state, data, args.num_steps)
    for actions in (2 * data["actions"], data["actions"] + 1):
        assert "not the policy's" in yardsticks.wrong_noise(state, data | dict(actions=actions), args.num_steps)


@pytest.mark.parametrize(
    ("joint", "betas", "accused"), [(False, (0.9, 0.999), False), (True, (0.9, 0.999), False), (True, (0.9, 0.9), True)]
)
def test_every_usual_clip_is_adams(known, monkeypatch, joint, betas, accused):
    """Gradients of random lengths, most of them longer than the norm, of both networks or of each by itself."""
    _, args, _ = measuring.sampling.checkpoint_state(measuring.runs.Source(ROOT / "algos" / "ppo.py", known / "ppo", 1))
    rng, steps = torch.Generator().manual_seed(0), {}
    lengths = torch.rand(2, yardsticks.STEPS, 1, generator=rng) * 3
    gradients = torch.randn(2, yardsticks.STEPS, 50, generator=rng) / 50**0.5 * lengths
    norms = gradients.norm(dim=2, keepdim=True)
    norms = torch.hypot(norms[0], norms[1] / 2).expand_as(norms) if joint else norms
    for name, of, norm in zip(("policy", "value"), gradients, norms):
        parameters = torch.zeros(50, requires_grad=True)
        adam = torch.optim.Adam([parameters], getattr(args, f"{name}_lr"), betas, 1e-5)
        for parameters.grad in of * (args.max_grad_norm / norm).clamp(max=1):
            adam.step()
        steps[name] = list(of), parameters.detach()
    monkeypatch.setattr(yardsticks, "first_steps", lambda *_: steps)
    assert ("are not Adam's" in yardsticks.wrong_adam(None, args)) is accused


@pytest.mark.parametrize(("change", "accused"), [(lambda r: 0.1 * r, False), (lambda r: 0.1 * r - 0.02, True)])
def test_rewards_that_are_shifted_are_named(change, accused):
    class Args:
        reward_clip, reward_clip_range = True, 10.0

    raw = np.append(np.random.default_rng(0).normal(size=50), 500.0)  # the last one is clipped
    rewards = np.append(change(raw[:-1]), 10.0)[::-1]  # in another order
    found = yardsticks.wrong_rewards(Args, dict(rewards=rewards, raw_rewards=raw))
    assert ("0.1 times the environment's, plus -0.02" in found) is accused


def test_updates_that_do_the_opposite_are_named(known):
    source = measuring.runs.Source(ROOT / "algos" / "ppo.py", known / "ppo", 1)
    before, after, _, _, batch = measuring.sampling.next_iteration(source)
    script, args, _ = measuring.sampling.checkpoint_state(source)
    found = lambda *states: yardsticks.wrong_update(script, args, batch, [*states, states[-1]])
    assert not found(before, after)
    assert "lowered its objective on its own batch" in found(after, before)
    assert "raised the squared error of the value network" in found(changed(after, policy=before.policy), before)
