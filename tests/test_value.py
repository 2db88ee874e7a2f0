"""What value.py and trust_region.py measure, on cases worked out by hand."""

import shutil

import gymnasium as gym
import lab
import numpy as np
import pytest
import torch
from conftest import RAW, TINY, flags_of, iterate, load, progress, start
from environments import Chain, Clock
from gymnasium.wrappers import TransformReward
from problems import checkpoint_of, rows
from torch.distributions import Independent, Normal

pytestmark = pytest.mark.usefixtures("figures")
GAMMA = 0.99


gym.register("Constant-v0", lambda: TransformReward(Clock(), lambda _: 1.0), max_episode_steps=20)


def rolled_out(env_id, num_steps, value, **settings):
    """Script, settings, state and steps of a policy without noise that hits the Chain's target, V the same value
    everywhere."""
    settings = RAW | settings | dict(env_id=env_id, num_steps=num_steps, total_timesteps=num_steps, num_minibatches=1)
    script, args, state = start("ppo", **settings)
    with torch.no_grad():
        for parameter in [*state.policy.parameters(), *state.value.parameters()]:
            parameter.zero_()
        state.policy.log_std.fill_(-15)
        list(state.policy.mean.parameters())[-1].copy_(torch.from_numpy(Chain.TARGET))
        list(state.value.parameters())[-1].fill_(value)
    return script, args, state, script.rollout(args, state)[0]


def returns_of(rewards):
    """Discounted sums of a path's rewards, from each of its steps to its end."""
    return [sum(GAMMA**k * r for k, r in enumerate(rewards[t:])) for t in range(len(rewards))]


def test_returns_as_released_stop_at_the_end_of_the_batch():
    """Four places to the end of a Chain: the second walk is cut after two."""
    script, args, state, data = rolled_out("environments:Chain-v0", 6, value=10.0)
    targets = load("value").estimate_targets(script, args, state, data)
    r = Chain.rewards  # 1, -2, 4, 3
    assert targets["released"].tolist() == pytest.approx([*returns_of(r), 1 - 2 * GAMMA, -2], abs=1e-4)
    bootstrapped = [1 - 2 * GAMMA + 10 * GAMMA**2, -2 + 10 * GAMMA]
    assert targets["returns"].tolist() == pytest.approx([*returns_of(r), *bootstrapped], abs=1e-4)
    # GAE's next-to-last target by its definition: V + delta_0 + gamma lambda delta_1
    deltas = [r[0] + GAMMA * 10 - 10, r[1] + GAMMA * 10 - 10]
    assert targets["gae"][4].item() == pytest.approx(10 + deltas[0] + GAMMA * 0.95 * deltas[1], abs=1e-4)


@pytest.mark.parametrize("bootstrap", (True, False))
def test_returns_as_released_stop_at_time_limits(bootstrap):
    """A Clock is rewarded with 1, 2, 3, 4, 5 and cut by its time limit; the batch cuts the next after two."""
    settings = dict(value=100.0, bootstrap_truncation=bootstrap)
    script, args, state, data = rolled_out("environments:Clock-v0", 7, **settings)
    targets = load("value").estimate_targets(script, args, state, data)
    expected = [*returns_of([1, 2, 3, 4, 5]), 1 + 2 * GAMMA, 2]
    assert targets["released"].tolist() == pytest.approx(expected, abs=1e-4)
    goes_on = [100.0 * bootstrap] * 5 + [100.0] * 2  # a time limit taken for a terminal state has nothing after it
    added = [GAMMA**d * V for d, V in zip((5, 4, 3, 2, 1, 2, 1), goes_on)]
    assert targets["returns"].tolist() == pytest.approx(np.add(expected, added), abs=1e-4)
    assert load("value").steps_to_cut(data).tolist() == [*([5, 4, 3, 2, 1] if bootstrap else [0] * 5), 2, 1]


def test_error_is_that_after_the_fit(known, tmp_path):
    load("value").main([str(known / "chain"), "--checkpoints", "0", "--jobs", "1", "--out", str(tmp_path)])
    script, args, _ = lab.frozen_state(checkpoint_of(known / "chain"))
    state = script.State(args)
    experience, batch, _ = iterate(script, args, state)
    errors = ((state.value(batch["obs"]) - batch["value_targets"]) / batch["value_targets"]).abs().detach()
    exact = np.median(errors[~experience["terminations"]].double().numpy())
    assert rows(tmp_path, "value")[0]["train_gae"]["median"] == pytest.approx(exact, rel=1e-5)


def test_exact_values_of_a_constant_reward_miss_the_returns_as_released(tmp_path):
    run = TINY | dict(env_id="Constant-v0", total_timesteps=128, runs_dir=str(tmp_path), run_name="run")
    load("ppo").main(flags_of("ppo", **run))
    path = checkpoint_of(tmp_path / "run").path
    checkpoint = torch.load(path, weights_only=True)
    for parameter in checkpoint["value"].values():
        parameter.zero_()
    list(checkpoint["value"].values())[-1].fill_(1 / (1 - GAMMA))
    checkpoint["args"]["value_lr"] = 1e-12
    torch.save(checkpoint, path)
    load("value").main([str(path.parent.parent), "--checkpoints", "0", "--jobs", "1", "--heldout-pairs", "128"])
    [cell] = rows(path.parent.parent / "figures", "value")

    def missed(d):  # V = 1 / (1 - gamma) against the sum of d rewards of 1
        return GAMMA**d / (1 - GAMMA**d)

    of_segment = [missed(d) for length in (20, 20, 20, 4) for d in range(1, length + 1)]
    for where in ("train", "heldout"):
        for target in ("gae", "returns"):
            assert load("value").mean_error(cell[f"{where}_{target}"])["mean"] == pytest.approx(0, abs=1e-5)
            assert all(found["mean"] < 1e-5 for found in cell[f"{where}_{target}"]["by_distance"])
        released = cell[f"{where}_released"]
        exact, mean = np.mean(of_segment), load("value").mean_error(released)["mean"]
        assert [mean, released["mean_of_all"], released["exact_v"]] == pytest.approx([exact] * 3, rel=1e-4)
        assert released["median"] == pytest.approx(np.median(of_segment), rel=1e-4)
        *_, last = released["by_distance"]
        assert (last["steps"], last["mean"]) == ([16, 31], pytest.approx(np.mean(of_segment[15:20]), rel=1e-4))


def test_errors_by_distance_are_those_of_checkpoints_after_the_first():
    part = lambda mean: dict(x=dict(by_distance=[dict(steps=[4, 7], mean=mean), dict(steps=None, mean=9.0)]))
    rows = [dict(iteration=i) | part(mean) for i, mean in enumerate((1000.0, 1.0, 2.0, 6.0))]
    over_distance = load("value").over_distance
    assert over_distance(rows, "x") == [dict(distance=28**0.5, mean=2.0, interval=None)]
    assert over_distance(rows[:1], "x")[0]["mean"] == 1000  # where there is no other checkpoint


def test_distances_to_a_cut_and_their_bins():
    module, no, yes = load("value"), False, True
    terminations = np.array([no, no, yes, no, no, no, no, no, no, no])
    ends = np.array([no, no, yes, no, no, no, no, yes, no, yes])
    distances = module.steps_to_cut(dict(terminations=terminations, ends=ends))
    assert distances.tolist() == [0, 0, 0, 5, 4, 3, 2, 1, 2, 1]
    errors, kept = np.array([1.0, 3, 1000, 5, 7, 11, 13, 17, 19, 100]), ~terminations
    kept[[5, 7, 9]] = False
    assert module.errors_by_distance(errors, ~terminations, kept, distances) == [
        dict(steps=None, pairs=2, mean=2.0, median=2.0),  # not the terminal step itself
        dict(steps=[1, 1], pairs=2, mean=None, median=58.5),  # targets near 0 are left out of the mean alone
        dict(steps=[2, 3], pairs=3, mean=16.0, median=13.0),
        dict(steps=[4, 7], pairs=2, mean=6.0, median=6.0),
    ]
    assert module.error_of_exact_values(np.array([0, 1, 2]), 0.5).tolist() == pytest.approx([0, 1, 1 / 3])


def test_relative_error_leaves_out_terminal_steps_and_targets_near_zero():
    """Their mean size is 2.005, so that targets below 0.02 are near 0, and one of 0.03 is not."""
    values = torch.tensor([1.0, 3.0, 5.0, 1.0, 0.06, 9.0])
    targets = torch.tensor([2.0, 2.0, 4.0, 0.001, 0.03, 1.0])
    ends = dict(terminations=np.array([0, 0, 0, 0, 0, 1], bool), ends=np.array([0, 0, 1, 0, 0, 1], bool))
    numbers = load("value").relative_errors(values, targets, ends, GAMMA)
    assert load("value").mean_error(numbers)["mean"] == pytest.approx((0.5 + 0.5 + 0.25 + 1) / 4)
    assert numbers["median"] == pytest.approx(0.5) and numbers["near_zero"] == pytest.approx(0.2)
    assert numbers["pairs"] == 6 and numbers["counts"] == [3, 1]


def test_interval_of_the_relative_error_is_over_episodes():
    """Of episodes of one length the error is the mean of theirs, and its interval that of this mean, in logarithms."""
    errors = np.array([[0.1, 0.3], [0.5, 0.1], [0.2, 0.2]])
    ends = dict(terminations=np.zeros(6, bool), ends=np.tile([False, True], 3))
    row = load("value").relative_errors(torch.from_numpy(1 + errors).flatten(), torch.ones(6), ends, GAMMA)
    numbers = load("value").mean_error(row)
    assert numbers["mean"] == pytest.approx(errors.mean()) == row["mean_of_all"]
    low, high = lab.mean_of(errors.mean(1) / errors.mean())["interval"]
    assert numbers["interval"] == pytest.approx([0.7 / 3 * np.exp(low - 1), 0.7 / 3 * np.exp(high - 1)])


def test_largest_ratio_and_kl_are_taken_in_parts_of_the_batch_size():
    """Moved by m, KL is m^2 / 2 and the ratio at an action a is exp(a m - m^2 / 2). The second of the two dimensions
    moves 0.75 times as far as the first, so the root of the mean square is 0.8839 times the first, and not 0.875."""
    shifts, actions = [0.1, 0.2, 0.0, 0.4, 0.3, 0.1, 0.9], [1.0, 0.0, 3.0, 0.0, 2.0, 1.0, 3.0]
    module, obs = load("trust_region"), torch.tensor(shifts)[:, None] * torch.tensor([1.0, 0.75])
    policy = lambda obs: Independent(Normal(obs, torch.ones_like(obs)), 1)
    old, acted = policy(0 * obs), torch.tensor(actions)[:, None] * torch.tensor([1.0, 0.0])
    batch = dict(obs=obs, actions=acted, old_means=old.mean, old_stds=old.stddev, old_log_probs=old.log_prob(acted))
    kls = np.square(shifts) * 1.5625 / 2
    ratios = np.exp(np.multiply(actions, shifts) - kls)
    halves = module.step_size(policy, None, batch, 3)  # the seventh pair, the most extreme, is a rest
    assert (halves["parts"], halves["pairs"]) == (2, 7)
    assert halves["max_kl"] == pytest.approx([kls[1], kls[3]]) and halves["max_ratio"] == pytest.approx(ratios[[0, 4]])
    assert halves["mean_kl"] == pytest.approx([kls[:3].mean(), kls[3:6].mean()])
    churn = np.array(shifts) * (1.5625 / 2) ** 0.5
    assert halves["policy_churn"] == pytest.approx([churn[:3].mean(), churn[3:6].mean()])
    assert "value_churn" not in halves
    values = dict(old_values=torch.tensor([0.0, 2, 4, 6, 8, 10, 12]))  # of standard deviation 4.320
    moved = module.step_size(policy, lambda obs: values["old_values"] - 0.5, batch | values, 7)
    assert moved["value_churn"] == pytest.approx([0.5 / 4.320494])
    for part in (7, 8, 100):  # one part, smaller than the training batch perhaps
        whole = module.step_size(policy, None, batch, part)
        assert whole["parts"] == 1
        assert [*whole["max_kl"], *whole["max_ratio"]] == pytest.approx([kls[6], ratios[6]])


def test_trust_region_repeats_what_training_logged(known, tmp_path):
    load("trust_region").main([str(known / "ppo"), "--jobs", "1", "--heldout-pairs", "700", "--out", str(tmp_path)])
    logged, found = progress(known / "ppo"), rows(tmp_path, "trust_region")
    assert len(found) == len(logged) == 3
    for cell, row in zip(found, logged):
        for name in ("max_ratio", "mean_kl", "max_kl"):
            assert cell["train"][name] == [pytest.approx(float(row[name]), rel=1e-8)]
        assert np.mean(cell["train"]["returns"]) == pytest.approx(float(row["episodic_return"]))
        assert cell["train"] != cell["heldout"] and cell["heldout"]["pairs"] == 700
        assert cell["max_ratio_allowed"] == 1.2


def test_episodes_of_a_trust_region_are_complete(tmp_path):
    flags = flags_of("ppo", env_id="environments:Clock-v0", run_name="clock", runs_dir=str(tmp_path), **TINY)
    load("ppo").main(flags)
    for pairs, episodes in ((7, 8), (62, 12)):  # of 5 steps each; eight, by which the length is known, always
        load("trust_region").main([str(tmp_path / "clock"), "--jobs", "1", "--heldout-pairs", str(pairs)])
        heldout = rows(tmp_path / "clock" / "figures", "trust_region")[-1]["heldout"]
        assert heldout["returns"] == [15.0] * episodes and heldout["pairs"] == pairs


def test_the_kl_that_is_allowed_follows_its_schedule(known, tmp_path):
    shutil.copytree(known / "few_trpo_plus", tmp_path / "run")
    checkpoint = checkpoint_of(tmp_path / "run", 1, "trpo_plus")
    saved = torch.load(checkpoint.path, weights_only=True)
    torch.save(saved | dict(args=saved["args"] | dict(max_kl=0.01, max_kl_final=0.04)), checkpoint.path)
    numbers = load("trust_region").measure(checkpoint, map, 0, 64)
    assert numbers["mean_kl_allowed"] == pytest.approx(0.02)  # one of three iterations is done
