"""Landscapes: rewards, surrogates and their changes along a step, with common random numbers, where they are known."""

import lab
import numpy as np
import pytest
import torch
from conftest import flat, load, output
from environments import Bandit, Chain
from problems import checkpoint_of, expected_return, policy_of, rows

pytestmark = pytest.mark.usefixtures("figures")


def landscape(run, out, flags):
    """The points of the first checkpoint."""
    load("landscape").main([str(run), "--out", str(out), "--checkpoints", "0", "--jobs", "1", *flags.split()])
    [row] = rows(out, "landscape")
    return row


@pytest.mark.parametrize("env", [Bandit, Chain])
def test_rewards_and_surrogates_are_the_exact_ones_and_changes_are_paired(known, tmp_path, capsys, env):
    module, checkpoint = load("landscape"), checkpoint_of(known / env.__name__.lower())
    points = [(0, 0), (1, 0), (3, 0), (0, 1), (0, 3)]
    row = landscape(checkpoint.run, tmp_path, "--grid 3 --step-pairs 64 --reward-pairs 800")
    found = row["points"]
    [line] = [line for line in capsys.readouterr().out.splitlines() if ": surrogate" in line]
    script, args, after = lab.frozen_state(checkpoint)
    start, after.rng = flat(after.policy), lab.generator(checkpoint.run, 0, 0, 0)
    random = module.random_direction(len(start), after.rng)  # after which the same numbers deal the minibatches
    batch = script.estimate_advantages(args, after, lab.only_steps(checkpoint, (0, 0, 1, 64, 0), 1, 64))
    script.update(args, after, batch)
    step, policy = flat(after.policy) - start, policy_of(checkpoint)
    assert random.norm().item() == pytest.approx(2) and row["step_norms"] == {"64": pytest.approx(step.norm().item())}
    before = expected_return(env, policy)
    for cell, (a, b) in zip(found, points, strict=True):
        at = start + a * step + b * random
        assert (cell["step"], cell["random"]) == (a, b)
        surrogate = -script.policy_loss(args, output(policy, at, batch["obs"]), batch).item()
        assert cell["surrogate"] == pytest.approx(surrogate, abs=1e-6)
        exact, returns = expected_return(env, policy, at), np.array(cell["returns"])
        assert abs(returns.mean() - exact) < 4 * returns.std() / len(returns) ** 0.5
        change = module.paired_change(found[0]["returns"], cell["returns"])
        low, high = change["interval"]
        assert abs(change["mean"] - (exact - before)) <= (high - low) + 1e-4  # four standard errors
    assert found[0]["surrogate"] == pytest.approx(0, abs=1e-6)  # advantages have mean 0
    gain = found[1]["surrogate"] - found[0]["surrogate"]
    change = module.paired_change(found[0]["returns"], found[1]["returns"])
    assert change["pairing"] < 0.2  # the resets and the noise, common to both, are nearly all of the variance
    reward = f"reward {lab.in_words(change, '{:+,.3g}')} over {len(returns):,} episodes"
    text = f"pairing by seed narrows the interval to {change['pairing']:.2f} of its width"
    assert line == f"{env.__name__.lower()}, iteration 0, step from 64 pairs: surrogate {gain:+.3g}, {reward}; {text}"


def test_episodes_of_a_seed_do_not_depend_on_those_before(known):
    checkpoint = checkpoint_of(known / "raw", 2)
    six = lab.play(checkpoint, (5,), 0, 6)
    assert len(set(six)) > 3  # seeds differ
    assert lab.play(checkpoint, (5,), 0, 2) + lab.play(checkpoint, (5,), 2, 6) == six


def test_a_seed_has_the_same_reset_and_noise_for_every_policy(known):
    """Around Bandit's target, the reward is the place's minus the squared noise: two of them tell both."""
    checkpoint = checkpoint_of(known / "bandit")
    policy, rewards = policy_of(checkpoint), []
    torch.nn.utils.vector_to_parameters(0 * flat(policy), policy.parameters())
    list(policy.mean.parameters())[-1].data.copy_(torch.tensor(Bandit.TARGET))
    for std in (0.5, 1.0):
        policy.log_std.data.fill_(np.log(std))
        rewards.append(np.array(lab.play(checkpoint, (1,), 0, 20, flat(policy).numpy()))[:, 0])
    squares = (rewards[0] - rewards[1]) / (1 - 0.25)
    places = rewards[1] + squares
    assert set(places.round(3)) == {*Bandit.rewards} and places.round(3) == pytest.approx(places, abs=1e-4)
    assert np.std(squares) > 1


@pytest.mark.parametrize("grid", range(2, 12))
def test_zero_and_one_are_among_the_ticks(grid):
    ticks = load("landscape").ticks_of(grid)
    assert len(ticks) == grid == len(set(ticks)) and ticks == sorted(ticks)
    assert {0, 1} <= set(ticks) and ticks[-1] == (3 if grid > 2 else 1)
    assert grid not in (4, 7, 10) or ticks == pytest.approx(np.linspace(0, 3, grid))


def test_paired_change_by_hand():
    before, after = [0.0, 10.0, 20.0, 30.0], [1.0, 13.0, 21.0, 33.0]  # differences 1 3 1 3
    error, t = (4 / 3) ** 0.5 / 2, 3.1824463  # Student's, 3 degrees of freedom
    found = load("landscape").paired_change(before, after)
    assert (found["mean"], *found["interval"]) == pytest.approx((2, 2 - t * error, 2 + t * error))
    unpaired = 2.446912 * ((np.var(before, ddof=1) + np.var(after, ddof=1)) / 4) ** 0.5
    assert found["pairing"] == pytest.approx(t * error / unpaired)
    assert load("landscape").paired_change([1, 1, 1], [1, 1, 1])["pairing"] is None


def test_the_picture_has_the_tested_intervals(known, tmp_path, figures):
    module, flags = load("landscape"), "--checkpoints 0 --jobs 1 --grid 3 --reward-pairs 100 --step-pairs 64".split()
    module.main([str(known / "chain"), "--out", str(tmp_path), *flags])
    [row], [of_reward, _] = rows(tmp_path, "landscape"), figures["landscape.png"].axes
    changes = [point["change"] for point in module.along(row, 64, "step")]
    line = next(x for x in of_reward.lines if x.get_label() == "along the step, chain")
    np.testing.assert_allclose(line.get_ydata(), [x["mean"] for x in changes])
    bars = [segment[:, 1] for x in of_reward.collections for segment in x.get_segments()]
    assert all(np.isclose(bars, x["interval"]).all(1).any() for x in changes)


def test_surfaces_have_the_points_of_the_lines_and_one_scale(known, tmp_path, figures, monkeypatch):
    """Points of several steps share what is not on the step. --surfaces adds points, and changes none of those on the
    axes; --concentration has episodes of its own."""
    module, flags = load("landscape"), "--grid 3 --step-pairs 64 200 --reward-pairs 100"
    lines = landscape(known / "chain", tmp_path / "lines", flags)["points"]
    few, many = ([cell["returns"] for cell in x] for x in (lines[:5], lines[5:]))  # 0, two steps, two others
    assert few[0] == many[0] and few[3:] == many[3:] and few[1:3] != many[1:3]
    play, seeds = lab.play, []
    monkeypatch.setattr(lab, "play", lambda *call: seeds.append(call[1]) or play(*call))
    row = landscape(known / "chain", tmp_path, f"{flags} --surfaces --concentration 60 120")
    assert [len(x) for x in set(seeds)].count(5) == 2 * 9  # each point of a concentration has seeds of its own
    assert len(row["points"]) == 2 * 9 and len(row["concentrations"]) == 2 * 9
    assert [x for x in row["points"] if not x["step"] * x["random"]] == lines
    assert [x["episodes"] for x in row["concentrations"][::9]] == [15, 30]  # of four steps
    surfaces = module.surrogate_and_reward([row, row])
    start = module.surrogate_and_reward([row])[1].heights[0, 0]
    assert [x.name for x in surfaces] == ["surrogate", "mean return"] * 2
    assert surfaces[1].heights[0, 0] == pytest.approx(start) == np.mean(lines[0]["returns"])
    for name, scales in (("landscape_surfaces.png", 2), ("landscape_concentration.png", 1)):
        limits = [axis.get_zlim() for axis in figures[name].axes]
        assert len({*limits}) == scales and len(limits) == (4 if scales == 2 else 2)
        for axis in figures[name].axes:
            [step] = [x for x in axis.lines if x.get_label() == "the whole step"]
            assert step.get_data_3d()[0] == [1] and step.get_data_3d()[1] == [0]
