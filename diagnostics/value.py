"""Does the value network predict values? Its relative error after the fit, against what it was fitted to and against
returns, on its own batch and on fresh trajectories, over training.

    python diagnostics/value.py runs/Hopper-v5__ppo__seed1
    python diagnostics/value.py runs/Hopper-v5__ppo__seed* --out figures --heldout-pairs 100_000

"A Closer Look at Deep Policy Gradients" (CL) Fig. 3, 11, 12. From every checkpoint that has a step, training takes the
next iteration as it took it then: its own batch, its own fit, and that fit's V is measured. Held out are segments from
resets, by the policy and with the frozen statistics of the checkpoint, though V was fitted under live ones, which have
moved on by a batch. The error is |V - target| / |target|: 1 is as large as the target itself. The targets are

- gae: what V was fitted to, A + V of the network before the fit;
- returns: discounted sums of the scaled rewards, which go on with V before the fit where an episode is cut off, by the
  batch's or segment's end or by a time limit (which is none where training took it for a terminal state);
- released: those of the code that the authors published, which stop at every cut as if nothing followed. Shortly
  before a cut V, which was fitted to bootstrapped targets, cannot be near them: of a constant reward even the exact V
  has error gamma^d / (1 - gamma^d) at d steps from the cut, 99 at the last one. So the errors are given by d too, and
  exact_v, the mean error that the exact V of a constant reward would have at the distances of the same pairs.

Terminal steps are left out. Targets near 0 would blow the mean up (the papers leave them in): those below a hundredth
of the mean |target| are left out of the mean, but not of the median. The numbers give their share, and mean_of_all.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from common import figures, intervals, kept, runs, sampling
from common.runs import AtLeast, Source
from common.sampling import Sampler
from matplotlib.axes import Axes
from torch import Tensor

VERSION = 1  # raised where the numbers that it measures change

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(runs.LabelledOptions):
    checkpoints: Annotated[tuple[int, ...], AtLeast(0)] = ()
    """iterations; default: every checkpoint that has a step"""
    heldout_pairs: int = 20_480
    """fresh state-action pairs at each checkpoint"""


# Errors --------------------------------------------------------------------------------------------------------------

TARGETS = dict(gae="GAE targets", returns="returns, bootstrapped at cuts", released="returns as released")


def draw(args: Args, source: Source, sample: Sampler, _: Any) -> dict[str, Any]:
    """Fresh segments of the checkpoint's policy."""
    return sampling.collect(source, (args.seed, source.iteration, 0), args.heldout_pairs, sample)


def measure_values(source: Source, _: Sampler, __: Any, drawn: Callable) -> Iterator[dict[str, Any]]:
    """Errors of the value network of the next iteration, on that iteration's batch and on fresh segments."""
    script, settings, state = sampling.checkpoint_state(source)
    old, new, _, experience, _ = sampling.next_iteration(source)
    numbers = dict(gamma=settings.gamma)
    for where, before, data in (("train", old, experience), ("heldout", state, drawn())):
        if data["terminations"].all():
            runs.stop(f"{source.path}: every step ends its episode, so there is no error to measure")
        with torch.no_grad():
            values = new.value(torch.from_numpy(data["obs"]))
        targets = estimate_targets(script, settings, before, data)
        numbers |= {f"{where}_{name}": relative_errors(values, x, data) for name, x in targets.items()}
        at_cuts = error_of_exact_values(steps_to_cut(data), settings.gamma)[in_mean(targets["released"], data)]
        numbers[f"{where}_released"]["exact_v"] = at_cuts.mean().item()
    yield numbers


def estimate_targets(script: ModuleType, settings: Any, before: Any, data: dict[str, Any]) -> dict[str, Tensor]:
    """The three targets of a rollout's pairs, each [B], of the value network before the fit where they need one."""
    stopped = data | dict(terminations=data["ends"])

    def targets(data: dict[str, Any], **other: Any) -> Tensor:
        return script.estimate_advantages(replace(settings, **other), before, data)["value_targets"]

    # With lambda 1, A + V is the discounted return.
    return dict(gae=targets(data), returns=targets(data, gae_lambda=1.0), released=targets(stopped, gae_lambda=1.0))


def relative_errors(values: Tensor, targets: Tensor, data: dict[str, Any]) -> dict[str, Any]:
    """Mean of |V - target| / |target| over all but terminal steps and targets near 0, with its interval over episodes;
    the median and the mean with nothing near 0 left out, the share that was; and the same by distance."""
    size = targets.abs().double().numpy()
    errors = (values - targets).abs().double().numpy() / size.clip(1e-30)
    inner, counted = ~data["terminations"], in_mean(targets, data)
    numbers = intervals.ratio_of_sums(errors * counted, counted, data["ends"], in_logarithms=True)
    near_zero = 1 - counted.sum() / inner.sum()
    numbers |= dict(median=np.median(errors[inner]).item(), mean_of_all=errors[inner].mean().item())
    numbers |= dict(near_zero=near_zero.item(), pairs=len(errors))
    return numbers | dict(by_distance=errors_by_distance(errors, inner, counted, steps_to_cut(data)))


def in_mean(targets: Tensor, data: dict[str, Any]) -> np.ndarray:
    """Pairs [B] whose errors the mean is over: no terminal steps, no targets near 0."""
    size, inner = targets.abs().double().numpy(), ~data["terminations"]
    return inner & (size >= 0.01 * size[inner].mean())


def steps_to_cut(data: dict[str, Any]) -> np.ndarray:
    """Steps [B] from each pair to the cut of its episode, 1 at the last; 0 where a terminal state comes first."""
    rows, ends = np.arange(len(data["terminations"])), np.flatnonzero(data["ends"])
    end = ends[np.searchsorted(ends, rows)]
    return np.where(data["terminations"][end], 0, end - rows + 1)


def error_of_exact_values(distances: np.ndarray, gamma: float) -> np.ndarray:
    """Error [B] of the exact V of a constant reward, r / (1 - gamma), against r (1 - gamma^d) / (1 - gamma), which is
    what a return that stops d steps on adds up to; 0 where d is 0, for no cut. Of gamma 1 there is no such V: 0."""
    left = np.where((distances > 0) & (gamma < 1), gamma**distances, 0.0)
    return left / (1 - left)


def errors_by_distance(errors: np.ndarray, inner: np.ndarray, counted: np.ndarray, distances: np.ndarray) -> list[dict]:
    """Mean and median error of pairs 1, 2 to 3, 4 to 7, ... steps from a cut ("steps": first and last), and of those
    that a terminal state comes after (steps null)."""
    bins, found = np.frexp(distances)[1], []  # the exponent: 1 for 1, 2 for 2 and 3, ...; 0 for 0
    for number in np.unique(bins[inner]).tolist():
        here = inner & (bins == number)
        mean = errors[here & counted].mean().item() if (here & counted).any() else None
        steps = [2 ** (number - 1), 2**number - 1] if number else None
        found.append(dict(steps=steps, pairs=here.sum().item(), mean=mean, median=np.median(errors[here]).item()))
    return found


# Figures -------------------------------------------------------------------------------------------------------------

MEDIAN = dict(linestyle="--", linewidth=0.9, marker="", label=None)
TRAINING = MEDIAN | dict(linestyle=":")
EXACT = dict(color="black", linestyle="-.", linewidth=1, alpha=0.7, zorder=3)


def draw_errors(styles: list[dict[str, Any]], cells_of_runs: list[list[dict[str, Any]]], path: Path) -> None:
    """Columns: the three targets; rows: over training (CL Fig. 11, 12), against the distance to the next cut; lines for
    each run: the mean and the median held out and, over training, the mean on the training batch."""
    figure, axes = figures.new_figure(2, 3, (9.6, 5.2), sharex="row", sharey=True, subplot_kw=dict(yscale="log"))
    steps = [x["steps"] or [1, 1] for of_run in cells_of_runs for cell in of_run for x in heldout_bins(cell, "gae")]
    never = 4 * max(last for _, last in steps)
    for over_training, against_distance, name in zip(*axes, TARGETS):
        for of_run, style in zip(cells_of_runs, styles):
            x, heldout = [cell["iteration"] for cell in of_run], [cell[f"heldout_{name}"] for cell in of_run]
            figures.draw_line(over_training, x, heldout, style)
            over_training.plot(x, [numbers["median"] for numbers in heldout], **style | MEDIAN)
            over_training.plot(x, [cell[f"train_{name}"]["mean"] for cell in of_run], **style | TRAINING)
            draw_by_distance(against_distance, sum([heldout_bins(cell, name) for cell in of_run], []), style, never)
        over_training.set_title(TARGETS[name], fontsize=10)
        over_training.set_xlabel("iteration")
        against_distance.set_xlabel("steps to the next cut (none: a terminal state)", fontsize=9)
    for of_run in cells_of_runs:
        x, y = zip(*[(cell["iteration"], cell["heldout_released"]["exact_v"]) for cell in of_run])
        axes[0, 2].plot(x, y, **EXACT)
    finish_axes(axes, never, {cell["gamma"] for of_run in cells_of_runs for cell in of_run})
    figures.save_figure(figure, path)


def heldout_bins(cell: dict[str, Any], target: str) -> list[dict[str, Any]]:
    return cell[f"heldout_{target}"]["by_distance"]


def draw_by_distance(axis: Axes, measured: list[dict[str, Any]], style: dict[str, Any], never: float) -> None:
    """The errors of each bin of distances, the median over the checkpoints; at x = never those of the pairs that a
    terminal state comes after."""
    for statistic, line in (("mean", style), ("median", style | MEDIAN)):
        bins = {}
        for found in measured:
            if found[statistic] is not None:
                bins.setdefault(tuple(found["steps"] or ()), []).append(found[statistic])
        points = sorted((np.prod(steps) ** 0.5, np.median(errors)) for steps, errors in bins.items() if steps)
        axis.plot(*np.reshape(points, (-1, 2)).T, **line)
        mark = dict(marker="_", markersize=7) if statistic == "median" else {}
        axis.plot(never, np.median(bins.get((), [np.nan])), **line | mark | dict(label=None))


def finish_axes(axes: np.ndarray, never: float, gammas: set[float]) -> None:
    """Scales, units and what is no measurement: the line at 1, the exact V's error against returns as released."""
    axes[1, 0].set_xscale("log")
    ticks = [8**k for k in range(20) if 8**k < never / 2]
    axes[1, 0].set_xticks([*ticks, never], [*map(str, ticks), "none"])
    axes[1, 0].minorticks_off()
    for row in axes:
        row[0].set_ylabel("relative error\n|V - target| / |target|")
    for axis in axes.flat:
        axis.axhline(1, color="#999999", linewidth=0.8, zorder=0)
    where = axes[0, 0].get_yaxis_transform()
    axes[0, 0].text(1, 1.1, "as large as the target", transform=where, ha="right", va="bottom", fontsize=8)
    lowest, d = axes[1, 2].get_ylim()[0], np.geomspace(1, never / 4)
    for gamma in gammas:
        axes[1, 2].plot(d, error_of_exact_values(d, gamma), **EXACT, label="exact V of a constant reward")
    axes[1, 2].set_ylim(bottom=lowest)
    for label, line in (("mean, held out", {}), ("median, held out", MEDIAN), ("mean, training batch", TRAINING)):
        axes[0, 0].plot([], [], **dict(color="black") | line | dict(label=label))


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    runs.check_options(args)
    opened = runs.open_runs(args.runs, args.script, needs_critic=True)
    chosen = [runs.with_step(sources, args.checkpoints) for sources in opened]
    styles = figures.run_styles(args.runs, args.labels)
    path = runs.output_folder(args.out, args.runs) / "value.jsonl"
    cells = iter(kept.measure_missing(args, path, [value_work(args, source) for source in sum(chosen, [])]))
    draw_errors(styles, [[next(cells) for _ in sources] for sources in chosen], path)


def value_work(args: Args, source: Source) -> kept.Work:
    """The errors at a checkpoint, as measure_missing takes them."""
    cell = kept.identify(source, args.seed) | dict(heldout_pairs=args.heldout_pairs)
    return kept.Work(source, [cell], args.heldout_pairs, partial(draw, args, source), partial(measure_values, source))


if __name__ == "__main__":
    runs.run_program(main)
