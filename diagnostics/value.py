"""Does the value network predict values? This script measures its relative error after the fit, over training: against
what it was fitted to and against returns, on its own batch and on fresh trajectories.

    python diagnostics/value.py runs/Hopper-v5__ppo__seed1
    python diagnostics/value.py runs/Hopper-v5__ppo__seed1 --heldout-pairs 4096 --checkpoints 0 150 300  # a first look
    python diagnostics/value.py runs/Hopper-v5__ppo__seed* --out results --heldout-pairs 100_000

It draws Fig. 3, 11 and 12 of "A Closer Look at Deep Policy Gradients" (CL; Ilyas et al. 2020,
https://arxiv.org/abs/1811.02553) and Fig. 4, 14 and 15 of its first version (https://arxiv.org/abs/1811.02553v1). From
every checkpoint that has a step, training's next iteration is repeated, with the same batch and the same fit, and V
after that fit is measured. Held-out pairs are segments from resets, collected by the checkpoint's policy with its
frozen statistics. (V was fitted under live ones, which have moved on by a batch.) The targets are

- gae: what V was fitted to, which is A + V of the network before the fit;
- returns: discounted sums of the scaled rewards. Where an episode is cut off, by the end of the batch or segment or by
  a time limit, they continue with V before the fit. (Where training took a time limit for a terminal state, it is no
  cut.) They are computed here and not by the script, which is under test;
- released: the returns of the code that the authors published, which stop at every cut as if nothing followed. Shortly
  before a cut V cannot be near them, because it was fitted to bootstrapped targets. So the errors are shown by the
  distance to the cut, too, beside those that the exact V of a constant reward would have.

Terminal steps are left out. Targets near 0 would blow up the mean (the papers leave them in), so it leaves out those
below a hundredth of the mean |target|, and the median does not. A row has their share, and the mean of all.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import lab
import numpy as np
import torch
import tyro
from matplotlib.figure import Figure
from torch import Tensor


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]  # run folders, all of one environment
    checkpoints: tuple[int, ...] = ()  # iterations; default: every checkpoint that has a step
    heldout_pairs: int = 20_480  # fresh state-action pairs at each checkpoint
    labels: tuple[str, ...] = ()  # one for each run; runs with the same label are averaged; default: the folder's name
    script: Path | None = None  # the algorithm's script; default: the one in algos/ that the run names
    out: Path | None = None  # folder of figures and rows; default: figures/ inside the first run
    format: Literal["png", "pdf", "svg"] = "png"  # format of the figures
    jobs: int = lab.CORES  # worker processes; the numbers do not depend on it
    seed: int = 0  # of everything that is sampled here
    overwrite: bool = False  # measure again what an earlier call has measured


def main(argv: list[str] | None = None) -> None:
    args = lab.read_options(Args, argv, __doc__)
    work, asked = [], dict(seed=args.seed, heldout_pairs=args.heldout_pairs)
    for checkpoints in lab.open_runs(args):
        if not hasattr(lab.load_script(checkpoints[0].script), "value_loss"):
            lab.refuse(f"{checkpoints[0].run}: its algorithm has no value network to measure")
        work.append([(checkpoint, asked) for checkpoint in lab.choose(checkpoints, args.checkpoints, checkpoints)])
    lines = lab.lines_of(args, work, lab.fill(args, "value", measure, sum(work, [])))
    draw_over_training(lines, args.out / f"value.{args.format}")
    draw_medians_and_distances(lines, args.out / f"value_by_distance.{args.format}")


# What is measured at a checkpoint ------------------------------------------------------------------------------------


def measure(checkpoint: lab.Checkpoint, parallel_map: Callable, seed: int, heldout_pairs: int) -> dict[str, Any]:
    """Returns the value network's errors after the next iteration, on that iteration's batch and on fresh segments."""
    script, args, state = lab.frozen_state(checkpoint)
    heldout = lab.fresh_segments(checkpoint, parallel_map, (seed, checkpoint.iteration, 0), heldout_pairs)
    old, new, train, *_ = lab.next_iteration(checkpoint)
    row = dict(gamma=args.gamma)
    for where, before, steps in (("train", old, train), ("heldout", state, heldout)):
        with torch.no_grad():
            values = new.value(torch.from_numpy(steps["obs"]))
        for name, targets in estimate_targets(script, args, before, steps).items():
            row[f"{where}_{name}"] = relative_errors(values, targets, steps, args.gamma)
    return row


def estimate_targets(script: ModuleType, args: Any, before: Any, steps: dict[str, Any]) -> dict[str, Tensor]:
    """Returns the three targets [B] of a rollout's pairs, with values from the network before the fit."""
    gae = script.estimate_advantages(args, before, steps)["value_targets"]
    returns = discounted_returns(args.gamma, before.value, steps, steps["terminations"])
    released = discounted_returns(args.gamma, before.value, steps, steps["ends"])
    return dict(gae=gae, returns=torch.from_numpy(returns), released=torch.from_numpy(released))


@torch.no_grad()
def discounted_returns(gamma: float, value: Callable, steps: dict[str, Any], stops: np.ndarray) -> np.ndarray:
    """Returns the discounted sums [B] of a rollout's rewards,

        R_t = r_t + gamma R_(t+1), and at the end of an episode, a segment or the batch R_t = r_t + gamma V(s_(t+1)),

    where the last term is 0 if `stops` [B] says so."""
    following = np.where(stops, 0.0, value(torch.from_numpy(steps["next_obs"])).double().numpy())
    rows = zip(steps["rewards"].tolist(), steps["ends"].tolist(), following.tolist())
    returns, total = [], 0.0
    for reward, end, after in reversed(list(rows)):
        total = reward + gamma * (after if end else total)
        returns.append(total)
    return np.array(returns[::-1])


def relative_errors(values: Tensor, targets: Tensor, steps: dict[str, Any], gamma: float) -> dict[str, Any]:
    """Returns what a row keeps of the relative errors (CL Fig. 3) of values and targets [B],

        |V(s) - target(s)| / |target(s)|:

    the sums over each episode of those that enter the mean, and their counts; the median and the mean of all but
    terminal steps; the share of targets near 0; and errors by the distance to a cut."""
    size, inner = targets.abs().double().numpy(), ~steps["terminations"]
    errors = (values - targets).abs().double().numpy() / size.clip(1e-30)
    counted = inner & (size >= 0.01 * size[inner].mean())
    distances, starts = steps_to_cut(steps), np.append(0, np.flatnonzero(steps["ends"])[:-1] + 1)
    return dict(
        error_sums=lab.rounded(np.add.reduceat(errors * counted, starts)),
        counts=lab.rounded(np.add.reduceat(counted.astype(float), starts)),
        median=np.median(errors[inner]).item(),
        mean_of_all=errors[inner].mean().item(),
        near_zero=(1 - counted.sum() / inner.sum()).item(),
        pairs=len(errors),
        exact_v=error_of_exact_values(distances, gamma)[counted].mean().item(),  # against the released returns
        by_distance=errors_by_distance(errors, inner, counted, distances),
    )


def steps_to_cut(steps: dict[str, Any]) -> np.ndarray:
    """Returns the steps [B] from each pair to its episode's cut: 1 at the last pair, 0 before a terminal state."""
    rows, ends = np.arange(len(steps["terminations"])), np.flatnonzero(steps["ends"])
    end = ends[np.searchsorted(ends, rows)]
    return np.where(steps["terminations"][end], 0, end - rows + 1)


def error_of_exact_values(distances: np.ndarray, gamma: float) -> np.ndarray:
    """Returns the error [B] of the exact V of a constant reward r, which is r / (1 - gamma), against a return that
    stops after d steps, which is r (1 - gamma^d) / (1 - gamma):

        gamma^d / (1 - gamma^d).

    It is 0 where d is 0, for no cut, and where gamma is 1, for no such V."""
    left = np.where((distances > 0) & (gamma < 1), gamma**distances, 0.0)
    return left / (1 - left)


def errors_by_distance(errors: np.ndarray, inner: np.ndarray, counted: np.ndarray, distances: np.ndarray) -> list[dict]:
    """Returns the mean and median error of pairs 1, 2 to 3, 4 to 7, ... steps from a cut ("steps" has the first and the
    last), and of those that a terminal state follows ("steps" is null)."""
    bins, by_distance = np.frexp(distances)[1], []  # the binary exponent: 1 for 1, 2 for 2 and 3, ..., and 0 for 0
    for number in np.unique(bins[inner]).tolist():
        here = inner & (bins == number)
        mean = errors[here & counted].mean().item() if (here & counted).any() else None
        steps = [2 ** (number - 1), 2**number - 1] if number else None
        by_distance.append(dict(steps=steps, pairs=here.sum().item(), mean=mean, median=np.median(errors[here]).item()))
    return by_distance


# What follows from the rows, and the figures -------------------------------------------------------------------------

TARGETS = dict(
    gae="GAE's targets,\nwhat V was fitted to",
    returns="discounted returns,\nbootstrapped where an episode is cut",
    released="returns as the paper's code sums them:\nup to the cut, and no further",
)
EXACT = dict(linestyle=":", linewidth=1.8, zorder=3)  # the look of the exact V


def mean_error(errors: dict[str, Any]) -> dict[str, Any]:
    """Returns the mean relative error of what a row keeps, and its 95 % interval over the n episodes. Of an episode x
    is the sum of errors, and y their count. To first order, a ratio of sums varies like a mean (delta method):

        mean = sum x / sum y,    z = (x - mean y) / (mean(y) mean),    interval = mean exp(mean(z) -+ t s(z) / sqrt(n)).

    It is in logarithms, because x is skewed."""
    x, y = np.array(errors["error_sums"]), np.array(errors["counts"])
    mean = (x.sum() / max(y.sum(), 1e-30)).item()
    ends = lab.mean_of((x - mean * y) / y.mean().clip(1e-30) / max(mean, 1e-30))["interval"]
    return dict(mean=mean, interval=ends and [mean * math.exp(z) for z in ends])


def draw_over_training(lines: list[lab.Line], path: Path) -> None:
    """Draws the mean relative error over training, held out above and on the training batch below, in a column for each
    of the three targets (CL Fig. 3, 11, 12)."""
    figure = Figure((9, 4.8), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey=True, subplot_kw=dict(yscale="log"))
    labels, heights = len({style["label"] for style, _ in lines}), [1.0]
    apart = 0.009 * max(row["iteration"] for _, rows in lines for row in rows)
    for panels, (where, text) in zip(axes, dict(heldout="held out", train="training batch").items()):
        for axis, (name, title) in zip(panels, TARGETS.items()):
            errors = [mean_error(row[f"{where}_{name}"]) for _, rows in lines for row in rows]
            heights += [x["mean"] for x in errors]
            # On a batch, the interval of a few episodes would flatten the rest.
            if where == "heldout" and labels == len(lines):
                heights += [y for x in errors for y in x["interval"] or ()]
            lab.draw_runs(axis, lines, "iteration", lambda row, key=f"{where}_{name}": mean_error(row[key]), apart)
            if name == "released":
                draw_exact(axis, lines, f"{where}_{name}")
            axis.set(title=title if where == "heldout" else "", xlabel="iteration" if where == "train" else "")
        panels[0].set_ylabel(text)
    shown = [y for y in heights if y > 0]
    axes[0, 0].set_ylim(min(shown) / 1.25, max(shown) * 1.25)
    figure.supylabel("mean relative error |V - target| / |target|", fontsize=10)
    axes[0, 0].plot([], [], "|", color="0.4", markersize=10, label="95 % interval over episodes")
    finish(figure, axes, lines, path)


def draw_exact(axis: Any, lines: list[lab.Line], key: str) -> None:
    for style, rows in lines:
        exact = [row[key]["exact_v"] or math.nan for row in rows]  # There is none where nothing was cut.
        axis.plot([row["iteration"] for row in rows], exact, color=style["color"], **EXACT)


def draw_medians_and_distances(lines: list[lab.Line], path: Path) -> None:
    """Draws the held-out median error over training, and the held-out mean error against the distance to the next cut,
    as the median over the checkpoints after the first."""
    figure = Figure((9, 4.8), layout="constrained")
    axes = figure.subplots(2, 3, sharex="row", sharey="row", subplot_kw=dict(yscale="log"))
    furthest = 2.0
    for name, title, (over_training, against_distance) in zip(TARGETS, TARGETS.values(), axes.T):
        curves = []
        for style, rows in lines:
            points = over_distance(rows, f"heldout_{name}")
            furthest = max([furthest, *(x["distance"] for x in points)])
            curves.append((style, points))
        median = lambda row, key=f"heldout_{name}": dict(mean=row[key]["median"], interval=None)
        lab.draw_runs(over_training, lines, "iteration", median)
        lab.draw_runs(against_distance, curves, "distance", lambda point: point)
        over_training.set(title=title, xlabel="iteration")
        against_distance.set(xlabel="steps to the next cut", xscale="log")
    lowest, distances = axes[1, 2].get_ylim()[0], np.geomspace(1, furthest)
    axes[1, 2].plot(distances, error_of_exact_values(distances, lines[0][1][0]["gamma"]), color="black", **EXACT)
    axes[1, 2].set_ylim(bottom=lowest)
    axes[0, 0].set_ylabel("held out: median\n|V - target| / |target|")
    axes[1, 0].set_ylabel("held out: mean\n|V - target| / |target|")
    finish(figure, axes, lines, path)


def over_distance(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Returns a run's mean error by distance, each the median over its checkpoints. The first fit is like no other, so
    it does not count where there are others."""
    bins = {}
    for row in [row for row in rows if row["iteration"]] or rows:
        for part in row[key]["by_distance"]:
            if part["steps"] and part["mean"] is not None:
                bins.setdefault(math.prod(part["steps"]) ** 0.5, []).append(part["mean"])
    return [dict(distance=x, mean=np.median(bins[x]).item(), interval=None) for x in sorted(bins)]


def finish(figure: Figure, axes: np.ndarray, lines: list[lab.Line], path: Path) -> None:
    """Adds what all panels have, and saves the figure."""
    for axis in axes.flat:
        axis.axhline(1, color="0.6", linewidth=0.8, zorder=0)
        axis.title.set_fontsize(9.5)
    axes[0, 0].plot([], [], color="0.4", label="exact V of a constant reward", **EXACT)
    axes[0, 0].plot([], [], color="0.6", linewidth=0.8, label="error as large as the target")
    lab.save_figure(figure, lines, path)


if __name__ == "__main__":
    lab.run_program(main)
