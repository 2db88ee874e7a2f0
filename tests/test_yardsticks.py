"""What any script must do on its own rollouts: the scripts do it, and a planted fault is named."""

from dataclasses import replace

import measuring.runs
import measuring.sampling
import numpy as np
import pytest
from conftest import ALGOS, ROOT
from measuring import yardsticks


def on_fresh_segments(known, algo, script=None):
    """What the yardsticks say of the algorithm's script, or of another one, on 12 segments."""
    source = measuring.runs.Source(ROOT / "algos" / f"{algo}.py", known / f"few_{algo}", 1)
    script = script or (lambda module: module)
    module, args, state = measuring.sampling.fresh_state(source, (0,), 12, 64)
    module = script(module)
    data = yardsticks.collect_group(source, (0,), 12, 64)
    _, trained, own = measuring.sampling.fresh_state(source, (1,), 2, 64)
    batch = module.estimate_advantages(trained, own, module.rollout(trained, own))
    return [
        yardsticks.wrong_noise(state, data, 64),
        yardsticks.wrong_rewards(args, data),
        yardsticks.not_shuffled(module, trained, own, batch),
    ]


@pytest.mark.parametrize("algo", ALGOS)
def test_no_script_is_accused(known, algo):
    assert on_fresh_segments(known, algo) == ["", "", ""]


def test_faults_are_named(known, monkeypatch):
    def same_noise(module):
        rollout = module.rollout
        again = lambda args, state: rollout(args, replace(state, rng=np.random.default_rng(7)))
        parts = lambda args, state: [again(args, replace(state, actors=[actor])) for actor in state.actors]
        joined = lambda parts: {k: np.concatenate([x[k] for x in parts]) for k in parts[0] if k != "episodes"}
        monkeypatch.setattr(module, "rollout", lambda args, state: joined(parts(args, state)) | dict(episodes=[]))
        return module

    def loud(module):
        rollout = module.rollout
        louder = lambda data: data | dict(actions=1.3 * data["actions"])
        monkeypatch.setattr(module, "rollout", lambda args, state: louder(rollout(args, state)))
        return module

    def in_order(module):
        rows = lambda args, rng, batch, epochs: module.torch.arange(len(batch["obs"])).reshape(args.num_minibatches, -1)
        monkeypatch.setattr(module, "shuffled_minibatches", rows)
        return module

    for number, fault, text in (
        (0, same_noise, "same noise"),
        (0, loud, "not the policy's"),
        (2, in_order, "shuffled"),
    ):
        with monkeypatch.context():
            found = on_fresh_segments(known, "ppo", fault)
            assert text in found.pop(number) and found == ["", ""]
        monkeypatch.undo()


@pytest.mark.parametrize(("change", "accused"), [(lambda r: 0.1 * r, False), (lambda r: 0.1 * r - 0.02, True)])
def test_rewards_that_are_shifted_are_named(change, accused):
    class Args:
        reward_clip, reward_clip_range = True, 10.0

    raw = np.append(np.random.default_rng(0).normal(size=50), 500.0)  # the last one is clipped
    rewards = np.append(change(raw[:-1]), 10.0)[::-1]  # in another order
    assert (
        "0.1 times the environment's, plus -0.02"
        in yardsticks.wrong_rewards(Args, dict(rewards=rewards, raw_rewards=raw))
    ) is accused
