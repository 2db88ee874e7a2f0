"""How far does a step go? This measures probability ratios and KL divergences between the policies before and after the
steps that training took, and draws them beside its rewards.

    python diagnostics/trust_region.py runs/Hopper-v5__ppo__seed1
    python diagnostics/trust_region.py runs/Hopper-v5__*__seed[12] --out results

It follows Fig. 2 to 4 of "Implementation Matters in Deep Policy Gradients" (IM) and Fig. 9, 28 and 29 of "Are Deep
Policy Gradient Algorithms Truly Policy Gradient Algorithms?" (TPG). From every checkpoint that has a step, training's
next iteration is repeated as it was, with the same batch and the same step. The step is measured on that batch and on
held-out segments, which begin with resets and are collected by the checkpoint's policy with its frozen statistics. A
maximum grows with the sample, so the held-out largest ratio and largest KL are taken in parts of the training batch's
size and averaged. (A smaller remainder is left out; fewer pairs than one batch make one part.) The held-out reward is
that of complete episodes, of about as many pairs again, each played to its end from a seed of its own. Using only
episodes that end within a segment would favour short ones. Where a setting has several runs, its line is their mean
and the thin lines are the runs. For a single run the bars are 95 % intervals of Student's t, over episodes for the
reward and over the parts for what is held out. Dotted lines show 1 + eps where ratios are clipped, and the KL that TRPO
allows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from measuring import intervals, plots, runs, sampling, table
from measuring.runs import Source
from measuring.sampling import GROUP
from torch import Tensor

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(runs.LabelledOptions):
    checkpoints: tuple[int, ...] = ()
    """iterations; default: every checkpoint that has a step"""
    heldout_pairs: int = 20_480
    """fresh state-action pairs at each checkpoint, and about as many again for the reward"""


# Steps ---------------------------------------------------------------------------------------------------------------


def measure(source: Source, seed: int, heldout_pairs: int) -> dict[str, Any]:
    """Returns how far training's step from a checkpoint went, on its own batch and on fresh segments, and its limits.
    The episodes of the fresh segments are complete ones, instead of those that ended there."""
    seeds = seed, source.iteration
    heldout = sampling.collect(source, (*seeds, 0), heldout_pairs)
    heldout["episodes"] = play_pairs(source, (*seeds, 1), heldout_pairs)
    script, settings, state = sampling.checkpoint_state(source)
    before, after, _, experience, batch = sampling.next_iteration(source)
    data = dict(train=(experience, batch), heldout=(heldout, script.estimate_advantages(settings, state, heldout)))
    numbers = {}
    for where, (rollout, pairs) in data.items():
        size = step_size(after.policy, getattr(after, "value", None), pairs, len(batch["obs"]))
        numbers[where] = mean_reward(rollout["episodes"]) | size
    if "clip_range" in batch:  # in force at this iteration, in float32: agents of Stable-Baselines3 may schedule it
        numbers["max_ratio_allowed"] = round(1 + batch["clip_range"][0].item(), 6)
    elif hasattr(settings, "clip_eps"):
        numbers["max_ratio_allowed"] = 1 + settings.clip_eps
    if hasattr(settings, "max_kl"):
        last = getattr(settings, "max_kl_final", None) or settings.max_kl
        done = before.global_step / runs.planned_steps(runs.read_config(source.run))
        numbers["mean_kl_allowed"] = settings.max_kl + done * (last - settings.max_kl)
    return numbers


def play_pairs(source: Source, seed: tuple[int, ...], pairs: int) -> list[tuple[float, int]]:
    """Plays complete episodes of a checkpoint's policy until they have about this many pairs, and returns the return
    and length of each. The first GROUP are always played, and their length decides how many there are."""
    episodes = sampling.play(source, seed, 0, GROUP)
    length = np.mean([length for _, length in episodes])
    return episodes + sampling.play(source, seed, GROUP, round(pairs / length))


def mean_reward(episodes: list[tuple[float, int]]) -> dict[str, Any]:
    """Returns the mean return of episodes, each given as return and length, and their returns. The mean is None where
    there are no episodes."""
    returns = np.array([episode_return for episode_return, _ in episodes])
    mean = returns.mean().item() if episodes else None
    numbers = dict(mean_reward=mean, mean_reward_interval=intervals.t_interval(returns), episodes=len(episodes))
    return numbers | dict(returns=intervals.raw(returns))


@torch.no_grad()
def step_size(policy: Callable, value: Callable | None, batch: dict[str, Tensor], part: int) -> dict[str, Any]:
    """Returns the largest ratio and the mean and largest KL of the policy against the one that collected the batch, and
    the churn: how far the mean action and V have moved on these states (Tang & Berseth 2024), in standard deviations of
    the actions and of V over the batch. Each is taken in parts of `part` pairs and averaged over the parts. It also
    returns the numbers of the parts."""
    ratios, kls = sampling.compare_policies(policy, batch)
    moved = (policy(batch["obs"]).mean - batch["old_means"]) / batch["old_stds"]
    statistics = dict(max_ratio=(ratios, Tensor.max), mean_kl=(kls, Tensor.mean), max_kl=(kls, Tensor.max))
    statistics["policy_churn"] = (moved**2).mean(-1) ** 0.5, Tensor.mean
    if value:
        change = (value(batch["obs"]) - batch["old_values"]).abs() / batch["old_values"].std().clamp(min=1e-8)
        statistics["value_churn"] = change, Tensor.mean
    parts = max(1, len(kls) // part)
    numbers = dict(pairs=len(kls), parts=parts)
    for name, (x, statistic) in statistics.items():
        of_parts = np.array([float(statistic(y)) for y in x[: parts * part].split(part)])
        numbers |= {name: of_parts.mean().item(), f"{name}_interval": intervals.t_interval(of_parts)}
        numbers[f"{name}_parts"] = intervals.raw(of_parts)
    return numbers


# Figures -------------------------------------------------------------------------------------------------------------

QUANTITIES = dict(mean_reward="mean return", max_ratio="largest ratio", mean_kl="mean KL", max_kl="largest KL")
QUANTITIES |= dict(policy_churn="churn of the policy", value_churn="churn of V")
AXES = dict(mean_reward="mean episode return", max_ratio="largest ratio")  # what the vertical axes are called
AXES |= dict(mean_kl="mean KL (nats)", max_kl="largest KL (nats)")
AXES |= dict(policy_churn="change of the mean\naction (stds)", value_churn="change of V (stds)")
SAMPLES = dict(train="training batch", heldout="held out")


def draw_trust_regions(settings: list[plots.Setting], path: Path) -> None:
    """Draws a column for the training batch and one for what is held out, with reward, largest ratio, KL and churn over
    training. Each setting has a line, and its runs have thin ones (IM Fig. 3, 4; KLs as in TPG Fig. 28, 29). Settings
    are drawn a little beside one another, so that their bars can be told apart. A bar that is longer than the panel
    ends at its edge."""
    measured = [row for _, of_runs in settings for of_run in of_runs for row in of_run]
    figure, axes = plots.new_figure(len(QUANTITIES), 2, (9, 12.6), sharex=True, sharey="row")
    apart = 0.009 * max(row["iteration"] for row in measured)
    for panels, name in zip(axes, QUANTITIES):
        for axis, where in zip(panels, SAMPLES):
            for k, (style, of_runs) in enumerate(settings):
                lines = [curve(of_run, where, name) for of_run in of_runs]
                beside = apart * (k - (len(settings) - 1) / 2)
                lines = [([at + beside for at in x], points) for x, points in lines]
                plots.draw_setting(axis, lines, plots.tell_apart(style))
            axis.set_title(describe_panel(measured, where, name), loc="left", fontsize=10)
        panels[0].set_ylabel(AXES[name])
        fit_axis(panels[0], measured, name, [y for axis in panels for y in draw_limits(axis, settings, name)])
    for axis in axes[-1]:
        axis.set_xlabel("iteration")
    if any(len(of_runs) == 1 for _, of_runs in settings):  # the lines of several runs have no bars
        axes[0, 0].plot([], [], "|", color="0.4", markersize=10, label="95 % interval")
    axes[0, 0].plot([], [], ":", color="0.4", linewidth=1.5, label="allowed: 1 + eps, or TRPO's KL")
    plots.save_figure(figure, path)


def describe_panel(measured: list[dict[str, Any]], where: str, name: str) -> str:
    """Says in a panel's title what is drawn and of how much. Maxima are taken in parts of the training batch's size."""
    numbers, of = [row[where] for row in measured], f"{SAMPLES[where].capitalize()}: {QUANTITIES[name]}"
    if name == "mean_reward":
        return f"{of} of {count([x['episodes'] for x in numbers], 'episodes')}"
    if name in ("max_ratio", "max_kl"):
        sizes = [min(x["pairs"], row["train"]["pairs"]) for x, row in zip(numbers, measured)]
        return f"{of} in {count(sizes, 'pairs')}"
    return f"{of} of {count([x['pairs'] for x in numbers], 'pairs')}"


def count(numbers: list[int], unit: str) -> str:
    return " to ".join(f"{x:,}" for x in sorted({min(numbers), max(numbers)})) + f" {unit}"


def draw_limits(axis: Axes, settings: list[plots.Setting], name: str) -> list[float]:
    """Draws what is allowed as dotted lines, each in the colour of its setting, and returns how high they are."""
    heights = []
    for style, of_runs in settings:
        for of_run in of_runs:
            points = [(x["iteration"], x[f"{name}_allowed"]) for x in of_run if f"{name}_allowed" in x]
            if points:
                axis.plot(*zip(*points), color=style["color"], linestyle=":", linewidth=1.5, zorder=1)
                heights += [y for _, y in points]
    return heights


def fit_axis(axis: Axes, measured: list[dict[str, Any]], name: str, limits: list[float]) -> None:
    """Fits the vertical axis to the means, the limits and the held-out intervals. The intervals of a training batch do
    not count, because those of two episodes would flatten the rest. On a logarithmic axis, lower ends of intervals do
    not count either, because they may be near 0."""
    numbers, logarithmic = [row[where] for row in measured for where in SAMPLES], name != "mean_reward"
    intervals_of = [row["heldout"].get(f"{name}_interval") or () for row in measured]
    shown = [x[name] for x in numbers if x.get(name) is not None] + limits
    shown += [y for ends in intervals_of for y in (ends[1:] if logarithmic else ends)]
    if logarithmic:
        axis.set_yscale("log")
        shown = [y for y in shown if y > 0]
    if len(set(shown)) < 2:
        return
    low, high = min(shown), max(shown)
    if logarithmic:
        axis.set_ylim(low * (high / low) ** -0.05, high * (high / low) ** 0.05)
        plots.label_log_axis(axis)
    else:
        axis.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))


def curve(measured: list[dict[str, Any]], where: str, name: str) -> tuple[list[int], list[dict[str, Any]]]:
    """Returns the iterations and points of a run where there is a number. (A batch may have no finished episode.)"""
    measured = [row for row in measured if row[where].get(name) is not None]
    points = [dict(mean=row[where][name], interval=row[where][f"{name}_interval"]) for row in measured]
    return [row["iteration"] for row in measured], points


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = runs.read_options(Args, argv, __doc__)
    chosen = [runs.with_step(sources, args.checkpoints) for sources in runs.open_runs(args.runs, args.script)]
    styles = plots.run_styles(args.runs, args.labels)
    work = [(source, dict(heldout_pairs=args.heldout_pairs)) for source in sum(chosen, [])]
    rows = iter(table.fill(args, "trust_region", measure, work))
    settings = plots.by_setting(styles, [[next(rows) for _ in sources] for sources in chosen])
    draw_trust_regions(settings, runs.figure_path(args, "trust_region"))


if __name__ == "__main__":
    runs.run_program(main)
