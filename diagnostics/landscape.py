"""Does the surrogate know where the reward is? True reward and surrogate objective around a checkpoint's policy, along
the step that the algorithm takes from few or from many pairs, and along a random direction.

    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1
    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1 --step-pairs 2000 1_000_000 --reward-pairs 1_000_000
    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1 --checkpoints 150 --concentration 2000 20_000 100_000

"A Closer Look at Deep Policy Gradients" (CL) Fig. 5 to 7, 13 to 20. One unit along the step is the algorithm's whole
update from the checkpoint, its optimizer and learning rate included; one unit along the random direction is a Gaussian
vector rescaled to norm 2, the same in every surface of a checkpoint. The surrogate is the script's `objective` on the
batch that the step came from. The true reward is the mean return of complete episodes, as many at every point as have
about --reward-pairs pairs at the checkpoint's own policy.

All points of a checkpoint's surfaces have common random numbers: the episode of a seed has the same reset and the same
action noise at every point. So the change of the reward between the checkpoint and a point is a mean of differences
seed by seed, and is tested as one: Student's t interval of the differences, printed for the whole step. That is the
change of this one step, from this one batch; another batch gives another step. Surfaces of --concentration show how
much an estimate scatters, so there every point has seeds of its own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from common import (
    FILLS,
    GROUP,
    LINES,
    LabelledOptions,
    Source,
    check_options,
    checkpoint_state,
    choose,
    collect,
    draw_line,
    flat_parameters,
    generator,
    identify,
    measure_missing,
    new_figure,
    open_runs,
    output_folder,
    play_seeds,
    run_program,
    run_styles,
    save_figure,
    stop,
    t_interval,
    title,
    with_parameters,
    with_step,
)
from matplotlib.axes import Axes
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy import stats
from torch import Tensor

VERSION = 1  # raised where the numbers that it measures change

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(LabelledOptions):
    checkpoints: tuple[int, ...] = ()
    """iterations; default: 0 150 300 450 or, where a run has fewer, its first, its thirds, its last with a step"""
    grid: int = 7
    """points a side, on [0, 3] in both directions, 1 among them (2: on [0, 1])"""
    step_pairs: tuple[int, ...] = (2000, 50_000)
    """state-action pairs that a step is computed from"""
    reward_pairs: int = 5000
    """state-action pairs, about, of the true reward at a point"""
    concentration: tuple[int, ...] = ()
    """also draw true-reward surfaces, around the first of --step-pairs, with these numbers of pairs a point"""


# Landscapes ----------------------------------------------------------------------------------------------------------


def ticks(grid: int) -> list[float]:
    """Coordinates of the points: 0, 1 and 3 always, since the change by one whole step is measured between two."""
    within = max(1, round((grid - 1) / 3))
    return [*np.linspace(0, 1, within + 1).tolist(), *np.linspace(1, 3, grid - within).tolist()[1:]]


def random_direction(source: Source, rng: np.random.Generator) -> Tensor:
    """A Gaussian vector [P] rescaled to norm 2."""
    script, _, state = checkpoint_state(source)
    random = torch.from_numpy(rng.standard_normal(len(flat_parameters(state.policy)), dtype=np.float32))
    return 2 * random / random.norm()


def take_step(
    source: Source, seed: tuple[int, ...], experience: dict[str, Any], points: list[tuple[float, float]]
) -> tuple[Tensor, list[float]]:
    """The step [P] that the algorithm takes from fresh pairs, and the surrogate on its batch at points (a, b)."""
    script, args, state = checkpoint_state(source)
    rng = generator(source, *seed, 0)
    random, state.rng = random_direction(source, rng), rng
    batch = script.estimate_advantages(args, state, experience)
    start = flat_parameters(state.policy)
    script.update(args, state, batch)
    step = flat_parameters(state.policy) - start
    with torch.no_grad():
        places = [with_parameters(state.policy, start + a * step + b * random) for a, b in points]
        return step, [script.objective(args, policy, batch).item() for policy in places]


def paired_change(after: np.ndarray, before: np.ndarray) -> dict[str, Any]:
    """Mean of the differences of returns [n] of the same seeds, its Student-t interval, and `pairing`: the interval's
    width over that of the two-sample t interval, which would take the seeds for different ones."""
    n, low_high = len(after), t_interval(after - before)
    unpaired = 2 * stats.t.ppf(0.975, 2 * n - 2) * ((np.var(after, ddof=1) + np.var(before, ddof=1)) / n) ** 0.5
    pairing = (low_high[1] - low_high[0]) / unpaired.item() if unpaired > 0 else None
    return dict(mean=np.mean(after - before).item(), interval=low_high, pairing=pairing)


def measure_landscapes(
    args: Args, source: Source, sample: Callable, missing: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Surrogate and true reward at points (a, b) of a checkpoint's surfaces: parameters + a step + b random."""
    seed, start = (args.seed, source.iteration), flat_parameters(checkpoint_state(source)[2].policy)
    random = random_direction(source, generator(source, *seed, 0))
    points, steps, plays = list(dict.fromkeys((cell["step"], cell["random"]) for cell in missing)), {}, {}

    def play(cell: dict[str, Any]) -> tuple:
        """Puts the episodes of a point into plays, where workers begin them at once, and returns under which key: a
        point of common seeds is played once, though it belong to the surfaces of several steps."""
        a, b, pairs, common = (cell[name] for name in ("step", "random", "step_pairs", "common_seeds"))
        key = (round(1000 * a), round(1000 * b), pairs if a else 0, 0 if common else cell["reward_pairs"])
        if key not in plays:
            place = (start + b * random + (a * steps[pairs][0] if a else 0)).numpy()
            episodes = max(2, round(cell["reward_pairs"] / length))
            parts = [(first, min(GROUP, episodes - first)) for first in range(0, episodes, GROUP)]
            seeds = (*seed, 2) if common else (*seed, 3, *key)
            plays[key] = sample(play_seeds, [(source, seeds, n, round(length), first, place) for first, n in parts])
        return key

    def played(key: tuple) -> np.ndarray:
        """Return and length of each episode [episodes, 2], in the order of their seeds."""
        if not isinstance(plays[key], np.ndarray):
            plays[key] = np.array([episode for group in plays[key] for episode in group])
        return plays[key]

    of_own_policy = sample(play_seeds, [(source, (*seed, 2), GROUP, 1, 0, start.numpy())])
    # The pairs of all steps before any step is taken, which happens here: workers play around the one before meanwhile.
    step_pairs = dict.fromkeys(cell["step_pairs"] for cell in missing)
    experiences = {pairs: collect(source, (*seed, 1, pairs), pairs, sample) for pairs in step_pairs}
    length = np.mean([n for _, n in next(of_own_policy)])  # of the first episodes of the next line
    before = play(dict(missing[0], step=0, random=0, reward_pairs=args.reward_pairs, common_seeds=True))
    keys = []
    for cell in missing:
        if (pairs := cell["step_pairs"]) not in steps:
            steps[pairs] = take_step(source, seed, experiences.pop(pairs), points)
        keys.append(play(cell))

    for cell, key in zip(missing, keys):
        returns, lengths = played(key).T
        numbers = dict(mean=returns.mean().item(), std=returns.std().item(), interval=t_interval(returns))
        numbers |= dict(episodes=len(returns), pairs=int(lengths.sum()))
        (step, surrogates), point = steps[cell["step_pairs"]], (cell["step"], cell["random"])
        numbers |= dict(surrogate=surrogates[points.index(point)], step_norm=step.norm().item())
        yield numbers | (dict(change=paired_change(returns, played(before)[:, 0])) if cell["common_seeds"] else {})


def describe(surface: list[dict[str, Any]]) -> str:
    """What the whole step changed, in a line."""
    [before, after] = [next(x for x in surface if (x["step"], x["random"]) == (a, 0)) for a in (0, 1)]
    change, gain = after["change"], after["surrogate"] - before["surrogate"]
    low, high = change["interval"]
    text = f"{title([after])}, step from {after['step_pairs']:,} pairs: surrogate {gain:+.3g}, "
    text += f"reward {change['mean']:+.0f} [{low:.0f}, {high:.0f}] over {after['episodes']:,} episodes"
    return text + (f", {change['pairing']:.2f} of the unpaired interval's width" if change["pairing"] else "")


# Figures -------------------------------------------------------------------------------------------------------------


def draw_cuts(rows: list[list[list[dict[str, Any]]]], style: dict[str, Any], path: Path) -> None:
    """Rows: checkpoints; columns: surrogate and true reward along the step, the same along the random direction. One
    scale for each of the two in a row."""
    figure, axes = new_figure(len(rows), 4, (8.4, 0.6 + 1.7 * len(rows)), sharex=True)
    axes[0, 0].set_xticks(range(4))
    for row, surfaces in zip(axes, rows):
        for k, (along, across) in enumerate([("step", "random"), ("random", "step")]):
            surrogate, reward = row[2 * k : 2 * k + 2]
            if k:
                surrogate.sharey(row[0])
                reward.sharey(row[1])
            for cells, line, fill in zip(surfaces, LINES * len(surfaces), FILLS * len(surfaces)):
                text = f"{style['label']}, step from {cells[0]['step_pairs']:,} pairs"
                of_step = style | dict(linestyle=line, fillstyle=fill, label=text)
                cut = [cell for cell in cells if cell[across] == 0]
                surrogate.plot([cell[along] for cell in cut], [cell["surrogate"] for cell in cut], **of_step)
                draw_line(reward, [cell[along] for cell in cut], cut, of_step)
            surrogate.set_ylabel("surrogate" if k else f"{title(surfaces[0][:1])}\nsurrogate")
            reward.set_ylabel("true reward")
        for axis in row[:2]:
            axis.axvline(1, color="black", linewidth=0.8, linestyle=(0, (1, 2)))
    for axis, text in zip(axes[-1], ["step (1: its end)"] * 2 + ["random direction"] * 2):
        axis.set_xlabel(text)
    save_figure(figure, path)


def draw_surface(axis: Axes, cells: list[dict[str, Any]], name: str, scale: np.ndarray) -> ContourSet:
    """Filled contours, at the levels of the scale, between the points measured; the step is an arrow."""
    side = round(len(cells) ** 0.5)
    x, y, z = (np.reshape([cell[key] for cell in cells], (side, side)) for key in ("step", "random", name))
    surface = axis.contourf(x, y, z, scale, cmap="viridis" if name == "mean" else "cividis")
    axis.plot(x.ravel(), y.ravel(), ".", color="black", markersize=1.5, clip_on=False)
    axis.annotate("", (1, 0), (0, 0), arrowprops=dict(arrowstyle="-|>", color="red", linewidth=2, shrinkA=0, shrinkB=0))
    return surface


def scale_of(surfaces: list[list[dict[str, Any]]], name: str) -> np.ndarray:
    """One scale for all the surfaces."""
    values = [cell[name] for cells in surfaces for cell in cells]
    return MaxNLocator(12).tick_values(min(values), max(values))


def draw_surfaces(rows: list[list[list[dict[str, Any]]]], path: Path) -> None:
    """Rows: checkpoints; columns: surrogate and true reward for each number of pairs that the step came from (CL Fig.
    13 to 18)."""
    figure, axes = new_figure(len(rows), 2 * len(rows[0]), (2.6 * 2 * len(rows[0]), 0.5 + 1.9 * len(rows)))
    for row, surfaces in zip(axes, rows):
        for k, name, text in ((1, "mean", "true reward"), (0, "surrogate", "surrogate")):
            scale = scale_of(surfaces, name)
            for axis, cells in zip(row[k::2], surfaces):
                surface = draw_surface(axis, cells, name, scale)
                axis.set_title(f"{text}\nstep from {cells[0]['step_pairs']:,} pairs", fontsize=8)
            add_scale(figure, surface, row, text)
        label(row, title(surfaces[0][:1]))
    save_figure(figure, path)


def draw_concentration(rows: list[list[list[dict[str, Any]]]], path: Path) -> None:
    """Rows: checkpoints; columns: true reward from more and more pairs a point (CL Fig. 5, 19, 20)."""
    figure, axes = new_figure(len(rows), len(rows[0]), (0.8 + 2.3 * len(rows[0]), 0.5 + 1.9 * len(rows)))
    for row, surfaces in zip(axes, rows):
        scale = scale_of(surfaces, "mean")
        for axis, cells in zip(row, surfaces):
            surface = draw_surface(axis, cells, "mean", scale)
            pairs, episodes = cells[0]["reward_pairs"], cells[0]["episodes"]
            axis.set_title(f"{pairs:,} pairs a point\n({episodes:,} episodes)", fontsize=8)
        add_scale(figure, surface, row, "true reward")
        label(row, title(surfaces[0][:1]))
    save_figure(figure, path)


def add_scale(figure: Figure, surface: ContourSet, row: np.ndarray, text: str) -> None:
    bar = figure.colorbar(surface, ax=row.tolist(), aspect=15, pad=0.01)
    bar.set_label(text, fontsize=8)
    bar.ax.tick_params(labelsize=7)


def label(row: np.ndarray, text: str) -> None:
    for axis in row:
        axis.set_xlabel("step", fontsize=8)
        axis.tick_params(labelsize=7)
    row[0].set_ylabel(f"{text}\nrandom direction", fontsize=8)


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    check_options(args)
    if args.grid < 2:
        stop(f"--grid {args.grid}: two or more points a side")
    runs = [choose(sources, args.checkpoints) for sources in open_runs(args.runs, args.script)]
    for source in sum(runs, []):
        with_step([source], (source.iteration,))
        minibatches = checkpoint_state(source)[1].num_minibatches
        if min(args.step_pairs) < 2 * minibatches:
            stop(f"--step-pairs {min(args.step_pairs)}: less than two for each of the {minibatches} minibatches")
    path, styles = output_folder(args.out, args.runs) / "landscape.jsonl", run_styles(args.runs, args.labels)
    if len({folder.name for folder in args.runs}) < len(args.runs):
        stop("two of the runs have folders of the same name, and so would their figures; draw each by itself")

    kinds = [dict(step_pairs=x, reward_pairs=args.reward_pairs, common_seeds=True) for x in args.step_pairs]
    kinds += [dict(step_pairs=args.step_pairs[0], reward_pairs=x, common_seeds=False) for x in args.concentration]
    points = [dict(step=a, random=b) for a in ticks(args.grid) for b in ticks(args.grid)]
    work = [landscape_work(args, source, kinds, points) for source in sum(runs, [])]
    cells = iter(measure_missing(args, path, work))
    for folder, sources, style in zip(args.runs, runs, styles):
        name = "landscape" if len(runs) == 1 else f"landscape_{folder.name}"
        rows = [[[next(cells) for _ in points] for _ in kinds] for _ in sources]
        surfaces = [row[: len(args.step_pairs)] for row in rows]
        for cells_of_step in sum(surfaces, []):
            print(f"{folder.name}, " * (len(runs) > 1) + describe(cells_of_step))
        draw_cuts(surfaces, style, path.with_name(name))
        draw_surfaces(surfaces, path.with_name(f"{name}_surfaces"))
        if args.concentration:
            draw_concentration([row[len(args.step_pairs) :] for row in rows], path.with_name(f"{name}_concentration"))


def landscape_work(args: Args, source: Source, kinds: list[dict[str, Any]], points: list[dict[str, float]]) -> tuple:
    """Surfaces of a checkpoint, of each kind at all the points, as measure_missing takes them."""
    on_no_step = sum(point["step"] == 0 for point in points)
    shared = args.reward_pairs * on_no_step * (len(args.step_pairs) - 1)  # points on no step are played once
    total = sum(args.step_pairs) - shared + len(points) * sum(kind["reward_pairs"] for kind in kinds)
    settings = [identify(source, args.seed) | kind | point for kind in kinds for point in points]
    return partial(measure_landscapes, args), source, settings, total // len(settings)


if __name__ == "__main__":
    run_program(main)
