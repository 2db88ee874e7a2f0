"""Landscapes and evaluation: differences, common random numbers and curves that are known."""

import measuring.intervals
import measuring.plots
import measuring.runs
import measuring.sampling
import measuring.table
import numpy as np
import pytest
import torch
from conftest import ROOT, load
from environments import Bandit, Chain


def sourced(folder, iteration=0):
    """A checkpoint as diagnostics name one, its policy and that one's parameters [P]."""
    source = measuring.runs.Source(ROOT / "algos" / "ppo.py", folder, iteration)
    policy = measuring.sampling.checkpoint_state(source)[2].policy
    return source, policy, measuring.sampling.flat_parameters(policy)


def cells(out, name):
    return measuring.table.read_rows(out / f"{name}.jsonl")


def landscape(run, out, *flags):
    flags = "--checkpoints 0 --jobs 1 --step-pairs 64".split() + list(flags)
    load("landscape").main([str(run), "--out", str(out), *flags])
    return [point for row in cells(out, "landscape") for point in row["points"]]


def exact_reward(env, policy, parameters):
    """Expected return of a known problem's episode."""
    pi = measuring.sampling.with_parameters(policy, parameters)(torch.eye(len(env.rewards)))
    rewards = np.array(env.rewards) - ((pi.mean - torch.tensor(env.TARGET)) ** 2 + pi.variance).sum(1).numpy()
    return rewards.mean() if env is Bandit else rewards.sum()


@pytest.mark.parametrize("name, env", [("bandit", Bandit), ("chain", Chain)])
def test_change_by_a_step_is_the_exact_difference_and_closer_for_the_pairing(known, tmp_path, capsys, name, env):
    found = landscape(known / name, tmp_path, "--grid", "2", "--reward-pairs", "1500")
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("iteration")]
    source, policy, start = sourced(known / name)
    points = [(0, 0), (1, 0), (0, 1)]
    step, _ = load("landscape").take_step(source, (0, 0), 64, points)
    random = load("landscape").random_direction(source, measuring.sampling.generator(source, 0, 0, 0))
    with torch.no_grad():
        before = exact_reward(env, policy, start)
        for cell, (a, b) in zip(found, points):
            change, exact = cell["change"], exact_reward(env, policy, start + a * step + b * random) - before
            low, high = change["interval"]
            assert (cell["step"], cell["random"]) == (a, b)
            assert abs(change["mean"] - exact) <= (high - low) + 1e-4, (a, b)  # four standard errors
            assert change["mean"] == pytest.approx(cell["mean"] - found[0]["mean"])
            returns, before_step = np.array(cell["returns"]), np.array(found[0]["returns"])  # as they are kept
            assert measuring.intervals.t_interval(returns) == pytest.approx(cell["interval"], rel=1e-4)
            again = measuring.intervals.paired_change(before_step, returns)["interval"]
            assert again == pytest.approx(change["interval"], rel=1e-4, abs=1e-4)
    by_step = found[1]["change"]
    unpaired = 2 * 1.96 * (2 / found[1]["episodes"]) ** 0.5 * found[1]["std"]
    assert by_step["interval"][1] - by_step["interval"][0] == pytest.approx(by_step["pairing"] * unpaired, rel=0.05)
    assert by_step["pairing"] < 0.2  # the resets and the noise, common to both, are nearly all of the variance
    assert found[0]["change"]["mean"] == 0 and found[0]["change"]["interval"] == [0, 0]
    numbers = measuring.intervals.text(by_step, "{:+,.3g}".format)
    gain = found[1]["surrogate"] - found[0]["surrogate"]
    assert line.startswith(f"iteration 0, step from 64 pairs: surrogate {gain:+.3g}, reward {numbers} over ")
    text = f"episodes; pairing by seed narrows the interval to {by_step['pairing']:.2f} of its width"
    assert f"over {found[1]['episodes']:,} {text}" in line


class Noting(measuring.sampling.OneEpisode):
    """Notes the first observation and the actions of each episode."""

    seen = []

    def reset(self, **options):
        ended = self.ended
        obs, info = super().reset(**options)
        assert not ended or obs is self.obs
        if not ended:
            self.seen.append([obs])
        return obs, info

    def step(self, action):
        if not self.ended:
            self.seen[-1].append(action)
        return super().step(action)


def test_common_random_numbers(known, monkeypatch):
    source, policy, start = sourced(known / "raw", 2)
    here = measuring.sampling.play_seeds(source, (5,), 0, 6, start)
    assert len(set(here)) > 3  # seeds differ
    assert measuring.sampling.play_seeds(source, (5,), 0, 6, start) == here
    assert (
        measuring.sampling.play_seeds(source, (5,), 0, 2, start)
        + measuring.sampling.play_seeds(source, (5,), 2, 4, start)
        == here
    )
    monkeypatch.setattr(measuring.sampling, "OneEpisode", Noting)
    noises = []
    for shift in (0.0, 2.0):
        policy.mean[-1].bias.data += shift
        Noting.seen = []
        measuring.sampling.play_seeds(source, (5,), 0, 6, measuring.sampling.flat_parameters(policy))
        means = policy(torch.tensor(np.array([seen[0] for seen in Noting.seen]), dtype=torch.float32)).mean
        noises.append((np.array([seen[1] for seen in Noting.seen]) - means.detach().numpy(), Noting.seen))
    (noise, first), (other_noise, second) = noises
    np.testing.assert_allclose(noise, other_noise, atol=1e-5)
    np.testing.assert_array_equal([x[0] for x in first], [x[0] for x in second])
    assert [len(x) - 1 for x in first] == [length for _, length in here]  # nothing is stepped after the end
    assert len(first[0]) != len(second[0])  # and what follows does not depend on lengths


def test_noise_of_a_seed_is_the_same_for_every_policy(known):
    """In Chain the reward tells the noise: of two policies of one mean, the twice as noisy is twice as far from it."""
    source, policy, start = sourced(known / "chain")
    centred = start.clone()
    centred[:] = 0
    torch.nn.utils.vector_to_parameters(centred, policy.parameters())
    list(policy.mean.parameters())[-1].data.copy_(torch.tensor(Chain.TARGET))
    losses = []
    for std in (0.5, 1.0):
        policy.log_std.data.fill_(np.log(std))
        played = measuring.sampling.play_seeds(source, (1,), 0, 20, measuring.sampling.flat_parameters(policy))
        losses.append([sum(Chain.rewards) - total for total, _ in played])
    np.testing.assert_allclose(4 * np.array(losses[0]), losses[1], rtol=1e-4)
    assert np.std(losses[1]) > 1


def test_points_of_several_steps_share_what_is_not_on_the_step(known, tmp_path):
    found = landscape(known / "raw", tmp_path, *"--grid 3 --step-pairs 64 200 --reward-pairs 200".split())
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
    found = cells(tmp_path, "landscape")
    assert sorted(figures) == ["landscape.png"]
    axes = figures["landscape.png"].axes
    assert [axis.get_ylabel().split("\n")[0] for axis in axes] == ["iteration 0"] * 2 + ["iteration 1"] * 2
    assert axes[0].get_title() == "PPO-M\nfrom 64 pairs"
    for row, iteration in enumerate((0, 1)):
        panel, drawn = axes[2 * row], []
        for along, across in (("step", "random"), ("random", "step")):
            for k, run in enumerate(("chain", "chain2")):
                [row_of_run] = [x for x in found if (x["run"], x["iteration"]) == (run, iteration)]
                cut = [x for x in row_of_run["points"] if x[across] == 0]
                beside = load("landscape").BESIDE * (k - 0.5 + 0.5 * (along == "random"))
                x = np.array([cell[along] for cell in cut]) + beside
                bars = [[(at, end) for end in cell["change"]["interval"]] for at, cell in zip(x, cut)]
                np.testing.assert_allclose(panel.collections[len(drawn)].get_segments(), bars)
                drawn.append([(at, cell["change"]["mean"]) for at, cell in zip(x, cut)])
        lines = [line for line in panel.lines if len(line.get_xdata()) == 3]
        np.testing.assert_allclose([line.get_xydata() for line in lines], drawn)
        assert {line.get_color() for line in lines[:2]} == {measuring.plots.COLOURS["ppo_m"]}
