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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from matplotlib.axes import Axes
from measuring import figures, intervals, kept, runs, sampling
from measuring.runs import AtLeast, Source
from measuring.sampling import GROUP, Sampler
from torch import Tensor

VERSION = 1  # raised whenever the measured numbers change

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(runs.LabelledOptions):
    checkpoints: Annotated[tuple[int, ...], AtLeast(0)] = ()
    """iterations; default: every checkpoint that has a step"""
    heldout_pairs: int = 20_480
    """fresh state-action pairs at each checkpoint, and about as many again for the reward"""


# Steps ---------------------------------------------------------------------------------------------------------------


def draw(args: Args, source: Source, sample: Sampler, _: Any) -> dict[str, Any]:
    """Collects fresh segments of the checkpoint's policy, with complete episodes instead of those that ended there."""
    seed = args.seed, source.iteration
    heldout = sampling.collect(source, (*seed, 0), args.heldout_pairs, sample)
    return heldout | dict(episodes=play_pairs(source, (*seed, 1), args.heldout_pairs, sample))


def play_pairs(source: Source, seed: tuple[int, ...], pairs: int, sample: Sampler) -> list[tuple[float, int]]:
    """Plays complete episodes of a checkpoint's policy until they have about this many pairs, and returns the return
    and length of each. The first GROUP are always played, and their length decides how many there are."""
    episodes = list(sampling.play(source, seed, 0, GROUP, 1, sample))
    length = np.mean([length for _, length in episodes])
    return episodes + list(sampling.play(source, seed, GROUP, round(pairs / length), round(length), sample))


def measure_step(source: Source, _: Sampler, __: Any, drawn: Callable) -> Iterator[dict[str, Any]]:
    """Yields how far training's step from a checkpoint went, on its own batch and on fresh segments, and its limits."""
    script, settings, state = sampling.checkpoint_state(source)
    before, after, _, experience, batch = sampling.next_iteration(source)
    heldout = drawn()
    data = dict(train=(experience, batch), heldout=(heldout, script.estimate_advantages(settings, state, heldout)))
    numbers = {}
    for where, (rollout, pairs) in data.items():
        numbers[where] = mean_reward(rollout["episodes"]) | step_size(after.policy, pairs, len(batch["obs"]))
    if "clip_range" in batch:  # in force at this iteration, in float32: agents of Stable-Baselines3 may schedule it
        numbers["max_ratio_allowed"] = round(1 + batch["clip_range"][0].item(), 6)
    elif hasattr(settings, "clip_eps"):
        numbers["max_ratio_allowed"] = 1 + settings.clip_eps
    if hasattr(settings, "max_kl"):
        last = getattr(settings, "max_kl_final", None) or settings.max_kl
        done = before.global_step / runs.planned_steps(runs.read_config(source.run))
        numbers["mean_kl_allowed"] = settings.max_kl + done * (last - settings.max_kl)
    yield numbers


def mean_reward(episodes: list[tuple[float, int]]) -> dict[str, Any]:
    """Returns the mean return of episodes, each given as return and length, and their returns. The mean is None where
    there are no episodes."""
    returns = np.array([episode_return for episode_return, _ in episodes])
    mean = returns.mean().item() if episodes else None
    numbers = dict(mean_reward=mean, mean_reward_interval=intervals.t_interval(returns), episodes=len(episodes))
    return numbers | dict(returns=intervals.raw(returns))


def step_size(policy: Callable, batch: dict[str, Tensor], part: int) -> dict[str, Any]:
    """Returns the largest ratio and the mean and largest KL of the policy against the one that collected the batch.
    Each is taken in parts of `part` pairs and averaged over the parts. It also returns the numbers of the parts."""
    ratios, kls = sampling.compare_policies(policy, batch)
    parts = max(1, len(kls) // part)
    measured = dict(max_ratio=(ratios, Tensor.max), mean_kl=(kls, Tensor.mean), max_kl=(kls, Tensor.max))
    numbers = dict(pairs=len(kls), parts=parts)
    for name, (x, statistic) in measured.items():
        of_parts = np.array([float(statistic(y)) for y in x[: parts * part].split(part)])
        numbers |= {name: of_parts.mean().item(), f"{name}_interval": intervals.t_interval(of_parts)}
        numbers[f"{name}_parts"] = intervals.raw(of_parts)
    return numbers


# Figures -------------------------------------------------------------------------------------------------------------

QUANTITIES = dict(mean_reward="mean return", max_ratio="largest ratio", mean_kl="mean KL", max_kl="largest KL")
AXES = dict(mean_reward="mean episode return", max_ratio="largest ratio")  # what the vertical axes are called
AXES |= dict(mean_kl="mean KL (nats)", max_kl="largest KL (nats)")
SAMPLES = dict(train="training batch", heldout="held out")


def draw_trust_regions(settings: list[figures.Setting], path: Path) -> None:
    """Draws a column for the training batch and one for what is held out. The rows are reward, largest ratio, mean KL
    and largest KL over training. Each setting has a line, and its runs have thin ones (IM Fig. 3, 4; KLs as in TPG
    Fig. 28, 29). Settings are drawn a little beside one another, so that their bars can be told apart. A bar that is
    longer than the panel ends at its edge."""
    cells = [cell for _, of_runs in settings for of_run in of_runs for cell in of_run]
    figure, axes = figures.new_figure(4, 2, (9, 8.4), sharex=True, sharey="row")
    apart = 0.009 * max(cell["iteration"] for cell in cells)
    for row, name in zip(axes, QUANTITIES):
        for axis, where in zip(row, SAMPLES):
            for k, (style, of_runs) in enumerate(settings):
                lines = [curve(of_run, where, name) for of_run in of_runs]
                beside = apart * (k - (len(settings) - 1) / 2)
                lines = [([at + beside for at in x], points) for x, points in lines]
                figures.draw_setting(axis, lines, figures.tell_apart(style))
            axis.set_title(describe_panel(cells, where, name), loc="left", fontsize=10)
        row[0].set_ylabel(AXES[name])
        limits = find_limits(settings, name)
        fit_axis(row[0], cells, name, [y for limit in limits for _, y in limit["points"]])
        for axis, limit in product(row, limits):
            draw_limit(axis, name, limit)
    for axis in axes[-1]:
        axis.set_xlabel("iteration")
    if any(len(of_runs) == 1 for _, of_runs in settings):  # the lines of several runs have no bars
        axes[0, 0].plot([], [], "|", color="0.4", markersize=10, label="95 % interval")
    figures.save_figure(figure, path)


def describe_panel(cells: list[dict[str, Any]], where: str, name: str) -> str:
    """Says in a panel's title what is drawn and how much was sampled for each point. The held-out maxima are taken in
    parts of the training batch's size."""
    numbers, of = [cell[where] for cell in cells], f"{SAMPLES[where].capitalize()}: {QUANTITIES[name]}"
    episodes, pairs, parts = ([x[key] for x in numbers] for key in ("episodes", "pairs", "parts"))
    if name == "mean_reward":
        return f"{of} of {count(episodes, 'episodes')}"
    if name == "mean_kl":
        return f"{of} of {count(pairs, 'pairs')}"
    sizes = [min(n, cell["train"]["pairs"]) for n, cell in zip(pairs, cells)]
    return f"{of} in {count(sizes, 'pairs')}" + f", mean of {count(parts, 'parts')}" * (max(parts) > 1)


def count(numbers: list[int], unit: str) -> str:
    return " to ".join(f"{x:,}" for x in sorted({min(numbers), max(numbers)})) + f" {unit}"


def find_limits(settings: list[figures.Setting], name: str) -> list[dict[str, Any]]:
    """Returns the lines that show what is allowed, each with its points, its text and its colour. Settings whose limits
    are equally high have one line. What clips ratios is common to many scripts, so it is black and names no setting."""
    found = {}
    for style, of_runs in settings:
        for of_run in of_runs:
            points = [(x["iteration"], x[f"{name}_allowed"]) for x in of_run if f"{name}_allowed" in x]
            if points:
                limit = dict(points=points, colour=style["color"], labels={})
                found.setdefault(frozenset(y for _, y in points), limit)["labels"][style["label"]] = None
    for heights, limit in found.items():
        number = f"{min(heights):.3g}" if len(heights) == 1 else f"{max(heights):.3g} to {min(heights):.3g}"
        limit["text"] = " and ".join(f"{label}'s" for label in limit["labels"]) + f" bound, {number} nats"
        if name == "max_ratio":
            limit |= dict(text=f"1 + eps = {number}", colour="black")
    return list(found.values())


def draw_limit(axis: Axes, name: str, limit: dict[str, Any]) -> None:
    """Draws what is allowed as a dotted line, with its text on the side on which fewer steps are."""
    axis.plot(*zip(*limit["points"]), color=limit["colour"], linestyle=":", linewidth=1.5)
    place = dict(va="top", xytext=(0, -3)) if name == "max_ratio" else dict(va="bottom", xytext=(0, 2))
    style = dict(textcoords="offset points", ha="center", color=limit["colour"], fontsize=9)
    axis.annotate(limit["text"], limit["points"][len(limit["points"]) // 2], **place, **style)


def fit_axis(axis: Axes, cells: list[dict[str, Any]], name: str, limits: list[float]) -> None:
    """Fits the vertical axis to the means, the limits and the held-out intervals. The intervals of a training batch do
    not count, because those of two episodes would flatten the rest. On a logarithmic axis, lower ends of intervals do
    not count either, because they may be near 0."""
    numbers, logarithmic = [cell[where] for cell in cells for where in SAMPLES], name != "mean_reward"
    intervals_of = [cell["heldout"][f"{name}_interval"] or () for cell in cells]
    shown = [x[name] for x in numbers if x[name] is not None] + limits
    shown += [y for ends in intervals_of for y in (ends[1:] if logarithmic else ends)]
    if logarithmic:
        axis.set_yscale("log")
        shown = [y for y in shown if y > 0]
    if len(set(shown)) < 2:
        return
    low, high = min(shown), max(shown)
    below = 0.16 if name == "max_ratio" else 0.05  # the texts of the limits need room
    above = 0.16 if name == "mean_kl" and limits else 0.05
    if logarithmic:
        axis.set_ylim(low * (high / low) ** -below, high * (high / low) ** above)
        figures.label_log_axis(axis)
    else:
        axis.set_ylim(low - below * (high - low), high + above * (high - low))


def curve(cells: list[dict[str, Any]], where: str, name: str) -> tuple[list[int], list[dict[str, Any]]]:
    """Returns the iterations and points of a run where there is a number. (A batch may have no finished episode.)"""
    cells = [cell for cell in cells if cell[where][name] is not None]
    points = [dict(mean=cell[where][name], interval=cell[where][f"{name}_interval"]) for cell in cells]
    return [cell["iteration"] for cell in cells], points


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = runs.read_options(Args, argv, __doc__)
    chosen = [runs.with_step(sources, args.checkpoints) for sources in runs.open_runs(args.runs, args.script)]
    styles = figures.run_styles(args.runs, args.labels)
    path = runs.output_folder(args.out, args.runs) / "trust_region.jsonl"
    cells = iter(kept.measure_missing(args, path, [step_work(args, source) for source in sum(chosen, [])]))
    settings = figures.by_setting(styles, [[next(cells) for _ in sources] for sources in chosen])
    draw_trust_regions(settings, path)


def step_work(args: Args, source: Source) -> kept.Work:
    """Describes the step from a checkpoint to measure_missing."""
    cell = kept.identify(source, args.seed) | dict(heldout_pairs=args.heldout_pairs)
    measure = partial(measure_step, source)
    return kept.Work(source, [cell], 2 * args.heldout_pairs, partial(draw, args, source), measure)


if __name__ == "__main__":
    runs.run_program(main)
