"""Landscapes: rewards, surrogates and their changes along a step, with common random numbers, where they are known."""

import numpy as np
import pytest
import torch
from conftest import flat, load, output
from environments import Bandit, Chain
from measuring import intervals, plots, sampling
from problems import expected_return, policy_of, rows, source_of

pytestmark = pytest.mark.usefixtures("figures")


def landscape(run, out, flags):
    """The points of the first checkpoint."""
    load("landscape").main([str(run), "--out", str(out), "--checkpoints", "0", "--jobs", "1", *flags.split()])
    [row] = rows(out, "landscape")
    return row["points"]


@pytest.mark.parametrize("env", [Bandit, Chain])
def test_rewards_and_surrogates_are_the_exact_ones_and_changes_are_paired(known, tmp_path, capsys, env):
    module, source = load("landscape"), source_of(known / env.__name__.lower())
    points = [(0, 0), (1, 0), (3, 0), (0, 1), (0, 3)]
    found = landscape(source.run, tmp_path, "--grid 3 --step-pairs 64 --reward-pairs 800")
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("iteration")]
    script, args, after = sampling.checkpoint_state(source)
    start, after.rng = flat(after.policy), sampling.generator(source, 0, 0, 0)
    random = module.random_direction(source, after.rng)  # after which the same numbers deal the minibatches
    batch = script.estimate_advantages(args, after, sampling.collect_group(source, (0, 0, 1, 64, 0), 1, 64))
    script.update(args, after, batch)
    step, policy = flat(after.policy) - start, policy_of(source)
    assert random.norm().item() == pytest.approx(2) and found[0]["step_norm"] == pytest.approx(step.norm().item())
    before = expected_return(env, policy)
    for cell, (a, b) in zip(found, points, strict=True):
        at = start + a * step + b * random
        assert (cell["step"], cell["random"]) == (a, b)
        surrogate = -script.policy_loss(args, output(policy, at, batch["obs"]), batch).item()
        assert cell["surrogate"] == pytest.approx(surrogate, abs=1e-6)
        exact, change = expected_return(env, policy, at), cell["change"]
        assert abs(cell["mean"] - exact) < 4 * cell["std"] / cell["episodes"] ** 0.5
        low, high = change["interval"]
        assert abs(change["mean"] - (exact - before)) <= (high - low) + 1e-4  # four standard errors
        returns, of_start = np.array(cell["returns"]), np.array(found[0]["returns"])  # as they are kept
        assert intervals.t_interval(returns) == pytest.approx(cell["interval"], rel=1e-4)
        again = intervals.paired_change(of_start, returns)
        assert again["interval"] == pytest.approx([low, high], rel=1e-4, abs=1e-4)
    assert found[0]["surrogate"] == pytest.approx(0, abs=1e-6)  # advantages have mean 0
    gain, change = found[1]["surrogate"] - found[0]["surrogate"], found[1]["change"]
    assert change["pairing"] < 0.2  # the resets and the noise, common to both, are nearly all of the variance
    reward = f"reward {intervals.text(change, '{:+,.3g}'.format)} over {len(returns):,} episodes"
    text = f"pairing by seed narrows the interval to {change['pairing']:.2f} of its width"
    assert line == f"iteration 0, step from 64 pairs: surrogate {gain:+.3g}, {reward}; {text}"


def test_episodes_of_a_seed_do_not_depend_on_those_before(known):
    source = source_of(known / "raw", 2)
    six = sampling.play_seeds(source, (5,), 0, 6)
    assert len(set(six)) > 3  # seeds differ
    assert sampling.play_seeds(source, (5,), 0, 2) + sampling.play_seeds(source, (5,), 2, 4) == six


def test_a_seed_has_the_same_reset_and_noise_for_every_policy(known):
    """Around Bandit's target, the reward is the place's minus the squared noise: two of them tell both."""
    source = source_of(known / "bandit")
    policy, rewards = policy_of(source), []
    torch.nn.utils.vector_to_parameters(0 * flat(policy), policy.parameters())
    list(policy.mean.parameters())[-1].data.copy_(torch.tensor(Bandit.TARGET))
    for std in (0.5, 1.0):
        policy.log_std.data.fill_(np.log(std))
        rewards.append(np.array(sampling.play_seeds(source, (1,), 0, 20, flat(policy)))[:, 0])
    squares = (rewards[0] - rewards[1]) / (1 - 0.25)
    places = rewards[1] + squares
    assert set(places.round(3)) == {*Bandit.rewards} and places.round(3) == pytest.approx(places, abs=1e-4)
    assert np.std(squares) > 1


def test_points_of_several_steps_share_what_is_not_on_the_step(known, tmp_path):
    found = landscape(known / "raw", tmp_path, "--grid 3 --step-pairs 64 200 --reward-pairs 200")
    few, many = ([cell["mean"] for cell in of_step] for of_step in (found[:5], found[5:]))  # 0, two steps, two others
    assert few[0] == many[0] and few[3:] == many[3:]
    assert few[1:3] != many[1:3]
    assert len({cell["episodes"] for cell in found}) == 1


@pytest.mark.parametrize("grid", range(2, 12))
def test_zero_and_one_are_among_the_ticks(grid):
    ticks = load("landscape").ticks(grid)
    assert len(ticks) == grid == len(set(ticks)) and ticks == sorted(ticks)
    assert {0, 1} <= set(ticks) and ticks[-1] == (3 if grid > 2 else 1)
    assert grid not in (4, 7, 10) or ticks == pytest.approx(np.linspace(0, 3, grid))


def test_the_picture_has_a_line_per_run_with_the_tested_intervals(known, tmp_path, figures):
    flags = "--checkpoints 0 1 --jobs 1 --grid 3 --reward-pairs 100 --step-pairs 64 --labels PPO-M PPO-M".split()
    load("landscape").main([str(known / "chain"), str(known / "chain2"), "--out", str(tmp_path), *flags])
    axes, found = figures["landscape.png"].axes, rows(tmp_path, "landscape")
    assert [axis.get_ylabel().split("\n")[0] for axis in axes] == ["iteration 0"] * 2 + ["iteration 1"] * 2
    assert axes[0].get_title() == "PPO-M\nfrom 64 pairs"
    for panel, iteration in zip(axes[::2], (0, 1)):
        of_runs = [row["points"] for row in found if row["iteration"] == iteration]
        cuts = [[x for x in points if x[across] == 0] for across in ("random", "step") for points in of_runs]
        lines = [line for line in panel.lines if len(line.get_xdata()) == 3]
        for line, bars, cut in zip(lines, panel.collections, cuts, strict=True):
            np.testing.assert_allclose(line.get_ydata(), [x["change"]["mean"] for x in cut])
            drawn = [[y for _, y in bar] for bar in bars.get_segments()]
            np.testing.assert_allclose(drawn, [x["change"]["interval"] for x in cut])
        assert {line.get_color() for line in lines[:2]} == {plots.COLOURS["ppo_m"]}
