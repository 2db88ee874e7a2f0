"""Does the value network predict values? This measures its relative error after the fit, over training: against what it
was fitted to and against returns, on its own batch and on fresh trajectories.

    python diagnostics/value.py runs/Hopper-v5__ppo__seed1
    python diagnostics/value.py runs/Hopper-v5__ppo__seed* --out figures --heldout-pairs 100_000

It follows Fig. 3, 11 and 12 of "A Closer Look at Deep Policy Gradients" (CL). From every checkpoint that has a step,
training's next iteration is repeated as it was, with the same batch and the same fit, and V after that fit is measured.
The held-out pairs are segments from resets, collected by the checkpoint's policy with its frozen statistics. V was
fitted under live statistics, which have moved on by a batch. The error is |V - target| / |target|, so an error of 1 is
as large as the target itself. The targets are

- gae: what V was fitted to, which is A + V of the network before the fit;
- returns: discounted sums of the scaled rewards. Where an episode is cut off, by the end of the batch or segment or by
  a time limit, they go on with V before the fit. (A time limit is no cut where training took it for a terminal state.)
- released: the returns of the code that the authors published, which stop at every cut as if nothing followed. Shortly
  before a cut V cannot be near them, because it was fitted to bootstrapped targets. For a constant reward, even the
  exact V has an error of gamma^d / (1 - gamma^d) at d steps from the cut, which is 99 at the last one for gamma 0.99.
  So the errors are given by d, too. exact_v is the mean error that the exact V of a constant reward would have at the
  distances of the same pairs.

Terminal steps are left out. Targets near 0 would blow up the mean (the papers leave them in). So the mean, but not the
median, leaves out those below a hundredth of the mean |target|. The numbers give their share, and mean_of_all.
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

VERSION = 1  # raised whenever the measured numbers change

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
    """Collects fresh segments of the checkpoint's policy."""
    return sampling.collect(source, (args.seed, source.iteration, 0), args.heldout_pairs, sample)


def measure_values(source: Source, _: Sampler, __: Any, drawn: Callable) -> Iterator[dict[str, Any]]:
    """Yields the value network's errors after the next iteration, on that iteration's batch and on fresh segments."""
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
    """Returns the three targets of a rollout's pairs, each [B], with values from the network before the fit."""
    stopped = data | dict(terminations=data["ends"])

    def targets(data: dict[str, Any], **other: Any) -> Tensor:
        return script.estimate_advantages(replace(settings, **other), before, data)["value_targets"]

    # With lambda 1, A + V is the discounted return.
    return dict(gae=targets(data), returns=targets(data, gae_lambda=1.0), released=targets(stopped, gae_lambda=1.0))


def relative_errors(values: Tensor, targets: Tensor, data: dict[str, Any]) -> dict[str, Any]:
    """Returns the mean of |V - target| / |target| without terminal steps and targets near 0, and its interval over
    episodes. It also returns the median and the mean with the targets near 0, the share of these, and the errors by
    distance."""
    size = targets.abs().double().numpy()
    errors = (values - targets).abs().double().numpy() / size.clip(1e-30)
    inner, counted = ~data["terminations"], in_mean(targets, data)
    numbers = intervals.ratio_of_sums(errors * counted, counted, data["ends"], in_logarithms=True)
    near_zero = 1 - counted.sum() / inner.sum()
    numbers |= dict(median=np.median(errors[inner]).item(), mean_of_all=errors[inner].mean().item())
    numbers |= dict(near_zero=near_zero.item(), pairs=len(errors))
    return numbers | dict(by_distance=errors_by_distance(errors, inner, counted, steps_to_cut(data)))


def in_mean(targets: Tensor, data: dict[str, Any]) -> np.ndarray:
    """Marks the pairs [B] whose errors enter the mean. Terminal steps and targets near 0 do not."""
    size, inner = targets.abs().double().numpy(), ~data["terminations"]
    return inner & (size >= 0.01 * size[inner].mean())


def steps_to_cut(data: dict[str, Any]) -> np.ndarray:
    """Returns the steps [B] from each pair to its episode's cut: 1 at the last pair, 0 before a terminal state."""
    rows, ends = np.arange(len(data["terminations"])), np.flatnonzero(data["ends"])
    end = ends[np.searchsorted(ends, rows)]
    return np.where(data["terminations"][end], 0, end - rows + 1)


def error_of_exact_values(distances: np.ndarray, gamma: float) -> np.ndarray:
    """Returns the error [B] of the exact V of a constant reward, r / (1 - gamma), against a return that stops after d
    steps, r (1 - gamma^d) / (1 - gamma). It is 0 where d is 0, for no cut, and where gamma is 1, for no such V."""
    left = np.where((distances > 0) & (gamma < 1), gamma**distances, 0.0)
    return left / (1 - left)


def errors_by_distance(errors: np.ndarray, inner: np.ndarray, counted: np.ndarray, distances: np.ndarray) -> list[dict]:
    """Returns the mean and median error of pairs 1, 2 to 3, 4 to 7, ... steps from a cut ("steps" gives the first and
    the last), and of the pairs that a terminal state follows (steps null)."""
    bins, found = np.frexp(distances)[1], []  # the binary exponent is 1 for 1, 2 for 2 and 3, ..., and 0 for 0
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
    """Draws a column for each of the three targets. The first row is over training (CL Fig. 11, 12), the second against
    the distance to the next cut. Each run has lines for the held-out mean and median and, over training, for the mean
    on the training batch."""
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
    """Draws the errors of each bin of distances, as the median over the checkpoints. The pairs that a terminal state
    follows are drawn at x = never."""
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
    """Sets scales and units, and draws what is no measurement: the line at 1 and exact V's error against released
    returns."""
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
    """Describes the errors at a checkpoint to measure_missing."""
    cell = kept.identify(source, args.seed) | dict(heldout_pairs=args.heldout_pairs)
    return kept.Work(source, [cell], args.heldout_pairs, partial(draw, args, source), partial(measure_values, source))


if __name__ == "__main__":
    runs.run_program(main)
