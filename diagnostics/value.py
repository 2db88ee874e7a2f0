"""Does the value network predict values? This measures its relative error after the fit, over training: against what it
was fitted to and against returns, on its own batch and on fresh trajectories.

    python diagnostics/value.py runs/Hopper-v5__ppo__seed1
    python diagnostics/value.py runs/Hopper-v5__ppo__seed* --out results --heldout-pairs 100_000

It follows Fig. 3, 11 and 12 of "A Closer Look at Deep Policy Gradients" (CL). From every checkpoint that has a step,
training's next iteration is repeated as it was, with the same batch and the same fit, and V after that fit is measured.
The held-out pairs are segments from resets, collected by the checkpoint's policy with its frozen statistics. V was
fitted under live statistics, which have moved on by a batch. The error is |V - target| / |target|, so an error of 1 is
as large as the target itself. The targets are

- gae: what V was fitted to, which is A + V of the network before the fit;
- returns: discounted sums of the scaled rewards. Where an episode is cut off, by the end of the batch or segment or by
  a time limit, they continue with V before the fit. (Where training took a time limit for a terminal state, it is no
  cut.) They are computed by this diagnostic. (Whether the script's own targets at lambda 1 are the same, report.py
  says.)
- released: the returns of the code that the authors published, which stop at every cut as if nothing followed. Shortly
  before a cut V cannot be near them, because it was fitted to bootstrapped targets. For a constant reward, even the
  exact V has an error of gamma^d / (1 - gamma^d) at d steps from the cut, which is 99 at the last one for gamma 0.99.
  So the errors are given by d, too. exact_v is the mean error that the exact V of a constant reward would have at the
  distances of the same pairs.

Terminal steps are left out. Targets near 0 would blow up the mean (the papers leave them in). So the mean, but not the
median, leaves out those below a hundredth of the mean |target|. The numbers give their share, and mean_of_all.
"""

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from measuring import intervals, plots, runs, sampling, table
from measuring.runs import Source
from torch import Tensor

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(runs.LabelledOptions):
    checkpoints: tuple[int, ...] = ()
    """iterations; default: every checkpoint that has a step"""
    heldout_pairs: int = 20_480
    """fresh state-action pairs at each checkpoint"""


# Errors --------------------------------------------------------------------------------------------------------------


def measure(source: Source, seed: int, heldout_pairs: int) -> dict[str, Any]:
    """Returns the value network's errors after the next iteration, on that iteration's batch and on fresh segments."""
    heldout = sampling.collect(source, (seed, source.iteration, 0), heldout_pairs)
    script, settings, state = sampling.checkpoint_state(source)
    old, new, _, experience, _ = sampling.next_iteration(source)
    numbers = dict(gamma=settings.gamma)
    for where, before, data in (("train", old, experience), ("heldout", state, heldout)):
        if data["terminations"].all():
            runs.stop(f"{source.path}: every step ends its episode, so there is no error to measure")
        with torch.no_grad():
            values = new.value(torch.from_numpy(data["obs"]))
        targets = estimate_targets(script, settings, before, data)
        numbers |= {f"{where}_{name}": relative_errors(values, x, data) for name, x in targets.items()}
        at_cuts = error_of_exact_values(steps_to_cut(data), settings.gamma)[in_mean(targets["released"], data)]
        numbers[f"{where}_released"]["exact_v"] = at_cuts.mean().item()
    return numbers


def estimate_targets(script: ModuleType, settings: Any, before: Any, data: dict[str, Any]) -> dict[str, Tensor]:
    """Returns the three targets of a rollout's pairs, each [B], with values from the network before the fit."""
    targets = dict(gae=script.estimate_advantages(settings, before, data)["value_targets"])
    for name, terminations in (("returns", data["terminations"]), ("released", data["ends"])):
        returns = sampling.discounted_returns(settings.gamma, before.value, data | dict(terminations=terminations))
        targets[name] = torch.from_numpy(returns)
    return targets


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

COLUMNS = dict(
    gae="GAE's targets,\nwhat V was fitted to",
    returns="discounted returns,\nbootstrapped where an episode is cut",
    released="returns as the paper's code sums them:\nup to the cut, and no further",
)
ROWS = ["mean error,\nheld out", "mean error,\ntraining batch", "median error,\nheld out"]  # over training
EXACT = dict(linestyle=":", linewidth=1.8, marker="", zorder=3, label=None)


def draw_errors(styles: list[dict[str, Any]], measured_of_runs: list[list[dict[str, Any]]], path: Path) -> None:
    """Draws a column for each of the three targets. The first three rows are over training (CL Fig. 11, 12): the mean
    error held out and on the training batch, and the held-out median. The last row has the held-out mean against the
    distance to the next cut, of the median checkpoint after the first. A line is a run. The errors that the exact V of
    a constant reward would have against released returns are dotted, over training in the run's colour."""
    figure, axes = plots.new_figure(4, 3, (9, 8.4), sharex="row", sharey="row", subplot_kw=dict(yscale="log"))
    measured = sum(measured_of_runs, [])
    never = 4 * max((x["steps"] or [1, 1])[1] for row in measured for x in heldout_bins(row, "gae"))
    for style, of_run in zip(map(plots.tell_apart, styles), measured_of_runs):
        for name, column in zip(COLUMNS, axes.T):
            draw_over_training(column, of_run, name, style)
            trained = [row for row in of_run if row["iteration"]] or of_run  # the first fit is like no other
            draw_by_distance(column[-1], sum([heldout_bins(row, name) for row in trained], []), style, never)
    for gamma in {row["gamma"] for row in measured}:
        draw_exact_values(axes[-1, -1], gamma, never / 4)
    for axis, text in zip(axes[0], COLUMNS.values()):
        axis.set_title(text, fontsize=9.5)
    finish_axes(axes, never)
    fit_over_training(axes[:3, 0], measured)
    plots.explain_bands(axes[0, 0])
    figure.supylabel("relative error |V - target| / |target|", fontsize=10)
    plots.save_figure(figure, path)


def draw_over_training(column: np.ndarray, of_run: list[dict[str, Any]], name: str, style: dict[str, Any]) -> None:
    """Draws a run's errors against one target into the column's first three panels."""
    x = [row["iteration"] for row in of_run]
    heldout, train = ([row[f"{where}_{name}"] for row in of_run] for where in ("heldout", "train"))
    plots.draw_line(column[0], x, heldout, style)
    plots.draw_line(column[1], x, train, style)
    column[2].plot(x, [numbers["median"] for numbers in heldout], **style)
    if name == "released":
        for axis, numbers in zip(column, (heldout, train)):
            axis.plot(x, [row["exact_v"] for row in numbers], **style | EXACT)


def heldout_bins(row: dict[str, Any], target: str) -> list[dict[str, Any]]:
    return row[f"heldout_{target}"]["by_distance"]


def draw_by_distance(axis: Axes, measured: list[dict[str, Any]], style: dict[str, Any], never: float) -> None:
    """Draws a run's mean error in each bin of distances, as the median over the measured checkpoints. The pairs that a
    terminal state follows are drawn at x = never."""
    bins = {}
    for found in measured:
        if found["mean"] is not None:
            bins.setdefault(tuple(found["steps"] or ()), []).append(found["mean"])
    points = sorted((np.prod(steps) ** 0.5, np.median(errors)) for steps, errors in bins.items() if steps)
    axis.plot(*np.reshape(points, (-1, 2)).T, **style)
    axis.plot(never, np.median(bins.get((), [np.nan])), **style | dict(label=None))


def draw_exact_values(axis: Axes, gamma: float, furthest: float) -> None:
    """Draws the error of the exact V of a constant reward by distance, as far down as something was measured."""
    lowest, d = axis.get_ylim()[0], np.geomspace(1, furthest)
    axis.plot(d, error_of_exact_values(d, gamma), **EXACT | dict(color="black", label="exact V of a constant reward"))
    axis.set_ylim(bottom=lowest)


def fit_over_training(panels: np.ndarray, measured: list[dict[str, Any]]) -> None:
    """Gives the rows over training one scale, so that means and medians can be compared. The intervals of a training
    batch do not count, because those of a few episodes would flatten the rest."""
    of = lambda where: [row[f"{where}_{name}"] for row in measured for name in COLUMNS]
    heldout, train = of("heldout"), of("train")
    shown = [numbers["mean"] for numbers in heldout + train] + [numbers["median"] for numbers in heldout]
    shown += [numbers["exact_v"] for numbers in heldout + train if "exact_v" in numbers]
    shown = [y for y in [1, *shown, *sum([numbers["interval"] or [] for numbers in heldout], [])] if y > 0]
    for panel in panels:
        panel.set_ylim(min(shown) / 1.25, max(shown) * 1.25)
        plots.label_log_axis(panel)


def finish_axes(axes: np.ndarray, never: float) -> None:
    """Sets scales and labels, and draws the line at 1."""
    for row, text in zip(axes, [*ROWS, "mean error held\nout, by distance"]):
        row[0].set_ylabel(text)
        plots.label_log_axis(row[0])
        for axis in row:
            axis.axhline(1, color="#999999", linewidth=0.8, zorder=0)
    for over_training, against_distance in zip(axes[2], axes[3]):
        over_training.set_xlabel("iteration")
        against_distance.set_xlabel("steps to the next cut\n(none: a terminal state follows)")
    for axis in axes[:2].flat:
        axis.tick_params(labelbottom=False)  # the third row has the iterations
    axes[3, 0].set_xscale("log")
    ticks = [8**k for k in range(20) if 8**k < never / 2]
    axes[3, 0].set_xticks([*ticks, never], [*map(str, ticks), "none"])
    axes[3, 0].minorticks_off()
    where = axes[3, 0].get_yaxis_transform()
    axes[3, 0].text(1, 1.1, "as large as the target", transform=where, ha="right", va="bottom", fontsize=9)


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = runs.read_options(Args, argv, __doc__)
    opened = runs.open_runs(args.runs, args.script, needs_critic=True)
    chosen = [runs.with_step(sources, args.checkpoints) for sources in opened]
    styles = plots.run_styles(args.runs, args.labels)
    work = [(source, dict(heldout_pairs=args.heldout_pairs)) for source in sum(chosen, [])]
    rows = iter(table.fill(args, "value", measure, work))
    draw_errors(styles, [[next(rows) for _ in sources] for sources in chosen], runs.figure_path(args, "value"))


if __name__ == "__main__":
    runs.run_program(main)
