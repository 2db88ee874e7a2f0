"""Does the surrogate know where the reward is? This script draws true reward and surrogate objective around a
checkpoint's policy, along the step that the algorithm takes from few or from many pairs, and along a random direction.

    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1
    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1 --step-pairs 2000 1_000_000 --reward-pairs 1_000_000
    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1 --checkpoints 150 --concentration 2000 20_000 100_000

The surfaces are those of "A Closer Look at Deep Policy Gradients" (CL), Fig. 5 to 7 and 13 to 20. One unit along the
step is the algorithm's whole update from the checkpoint, including its optimizer and learning rate. One unit along the
random direction is a Gaussian vector rescaled to norm 2, the same in every surface of a checkpoint. The surrogate is
the script's `objective` on the batch that the step came from. The true reward is the mean return of complete episodes.
Every point gets as many episodes as have about --reward-pairs pairs under the checkpoint's own policy.

All points of a checkpoint's surfaces have common random numbers: the episode of a seed has the same reset and the same
action noise at every point. So the change of the reward between the checkpoint and a point is a mean of differences
seed by seed, and is tested as such: for the whole step, Student's t interval of the differences is printed. This is the
change by this one step from this one batch; another batch gives another step. The surfaces of --concentration show how
much an estimate scatters, so every point there has seeds of its own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.contour import ContourSet
from matplotlib.ticker import MaxNLocator, MultipleLocator
from measuring import figures, intervals, kept, runs, sampling
from measuring.runs import AtLeast, Source
from measuring.sampling import GROUP, Sampler
from torch import Tensor

VERSION = 1  # raised whenever the measured numbers change

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(runs.LabelledOptions):
    checkpoints: Annotated[tuple[int, ...], AtLeast(0)] = ()
    """iterations; default: 0 150 300 450, or else the first, the last with a step, and two between them"""
    grid: Annotated[int, AtLeast(2, most=1000)] = 7
    """points per side; they span [0, 3] in both directions and include 1 (with 2 points, they span [0, 1])"""
    step_pairs: tuple[int, ...] = (2000, 50_000)
    """state-action pairs that a step is computed from"""
    reward_pairs: int = 5000
    """approximate number of state-action pairs for the true reward at a point"""
    concentration: tuple[int, ...] = ()
    """also draw surfaces of the true reward from these numbers of pairs per point, for the first of --step-pairs"""


# Landscapes ----------------------------------------------------------------------------------------------------------


def ticks(grid: int) -> list[float]:
    """Returns the coordinates of the points. They include 0 and 1, between which the change by one whole step is
    measured, and 3 if there are more than two."""
    within = max(1, round((grid - 1) / 3))
    return [*np.linspace(0, 1, within + 1).tolist(), *np.linspace(1, 3, grid - within).tolist()[1:]]


def random_direction(source: Source, rng: np.random.Generator) -> Tensor:
    """Draws a Gaussian vector [P] and rescales it to norm 2."""
    script, _, state = sampling.checkpoint_state(source)
    random = torch.from_numpy(rng.standard_normal(len(sampling.flat_parameters(state.policy)), dtype=np.float32))
    return 2 * random / random.norm()


def take_step(
    source: Source, seed: tuple[int, ...], experience: dict[str, Any], points: list[tuple[float, float]]
) -> tuple[Tensor, list[float]]:
    """Returns the step [P] that the algorithm takes from fresh pairs, and the surrogate on its batch at points
    (a, b)."""
    script, args, state = sampling.checkpoint_state(source)
    rng = sampling.generator(source, *seed, 0)
    random, state.rng = random_direction(source, rng), rng
    batch = script.estimate_advantages(args, state, experience)
    start = sampling.flat_parameters(state.policy)
    script.update(args, state, batch)
    step = sampling.flat_parameters(state.policy) - start
    with torch.no_grad():
        places = [sampling.with_parameters(state.policy, start + a * step + b * random) for a, b in points]
        return step, [script.objective(args, policy, batch).item() for policy in places]


def draw(args: Args, source: Source, sample: Sampler, missing: list[dict[str, Any]]) -> tuple[float, dict[int, Any]]:
    """Returns the mean length of the first episodes of the checkpoint's policy, and the pairs that each step is
    computed from."""
    seed, sizes = (args.seed, source.iteration), dict.fromkeys(cell["step_pairs"] for cell in missing)
    episodes = sampling.play(source, (*seed, 2), 0, GROUP, 1, sample)
    experiences = {pairs: sampling.collect(source, (*seed, 1, pairs), pairs, sample) for pairs in sizes}
    return np.mean([length for _, length in episodes]).item(), experiences


def place_of(cell: dict[str, Any]) -> tuple[int, int, int, int]:
    """Returns what a cell's episodes depend on. Those with common seeds are played only once at a point, even if it
    belongs to the surfaces of several steps."""
    pairs = cell["step_pairs"] if cell["step"] else 0
    own_seeds = 0 if cell["common_seeds"] else cell["reward_pairs"]
    return round(1000 * cell["step"]), round(1000 * cell["random"]), pairs, own_seeds


def measure_landscapes(
    args: Args, source: Source, sample: Sampler, missing: list[dict[str, Any]], drawn: Callable
) -> Iterator[dict[str, Any]]:
    """Yields surrogate and true reward at points (a, b) of a checkpoint's surfaces: parameters + a step + b random."""
    (length, experiences), seed = drawn(), (args.seed, source.iteration)
    start = sampling.flat_parameters(sampling.checkpoint_state(source)[2].policy)
    random = random_direction(source, sampling.generator(source, *seed, 0))
    points = list(dict.fromkeys((cell["step"], cell["random"]) for cell in missing))

    def play(cell: dict[str, Any], parameters: Tensor) -> Iterator[tuple[float, int]]:
        seeds = (*seed, 2) if cell["common_seeds"] else (*seed, 3, *place_of(cell))
        episodes = max(2, round(cell["reward_pairs"] / length))
        return sampling.play(source, seeds, 0, episodes, round(length), sample, parameters.numpy())

    # All episodes are begun before any is waited for, so that workers play while the next step is computed.
    own = dict(missing[0], step=0, random=0, reward_pairs=args.reward_pairs, common_seeds=True)
    begun, steps = {place_of(own): play(own, start)}, {}
    for cell in missing:
        if (pairs := cell["step_pairs"]) not in steps:
            steps[pairs] = take_step(source, seed, experiences.pop(pairs), points)
        if place_of(cell) not in begun:
            parameters = start + cell["random"] * random + cell["step"] * steps[pairs][0]
            begun[place_of(cell)] = play(cell, parameters)
    played = {place_of(own): np.array(list(begun[place_of(own)]))}  # [episodes, 2] return and length, by seed
    before = played[place_of(own)][:, 0]
    for cell in missing:
        if (place := place_of(cell)) not in played:
            played[place] = np.array(list(begun[place]))
        returns, lengths = played[place].T
        (step, surrogates), point = steps[cell["step_pairs"]], (cell["step"], cell["random"])
        numbers = intervals.mean_of(returns) | dict(std=returns.std().item())
        numbers |= dict(episodes=len(returns), pairs=int(lengths.sum()), returns=intervals.raw(returns))  # by seed
        numbers |= dict(surrogate=surrogates[points.index(point)], step_norm=step.norm().item())
        yield numbers | (dict(change=intervals.paired_change(before, returns)) if cell["common_seeds"] else {})


def describe(surface: list[dict[str, Any]]) -> str:
    """Says in one line what the whole step changed."""
    [before, after] = [next(x for x in surface if (x["step"], x["random"]) == (a, 0)) for a in (0, 1)]
    change, gain = after["change"], after["surrogate"] - before["surrogate"]
    text = f"{figures.title([after])}, step from {after['step_pairs']:,} pairs: surrogate {gain:+.3g}, "
    text += f"reward {intervals.text(change, '{:+,.3g}'.format)} over {after['episodes']:,} episodes"
    share = change["pairing"]
    return text + (f"; pairing by seed narrows the interval to {share:.2f} of its width" if share else "")


# Figures -------------------------------------------------------------------------------------------------------------


RANDOM = "along the random direction\n(1 = a Gaussian vector of norm 2)"  # says what one unit is
NAMES = dict(surrogate="surrogate", mean="true reward")


def draw_cuts(rows: list[list[list[dict[str, Any]]]], style: dict[str, Any], path: Path) -> None:
    """Draws two rows for each checkpoint, with surrogate and true reward along the step, and the same along the random
    direction. In both rows, each of the two quantities has one scale. A line is for the pairs that the step is computed
    from, on which the surrogate is measured. The true reward along the random direction does not depend on them, so
    there the lines lie on one another. Bands are intervals of the change of the true reward, paired by seed."""
    figure, axes = figures.new_figure(2 * len(rows), 2, (9, 0.2 + 4.6 * len(rows)), sharex=True)
    axes[0, 0].set_xticks(range(4))
    for panels, surfaces in zip(axes.reshape(len(rows), 2, 2), rows):
        for of_step, of_random in panels.T:
            of_random.sharey(of_step)
            of_step.set_xlabel(unit_of_step(surfaces))
            of_random.set_xlabel(RANDOM)
        draw_cut(panels[0], surfaces, "step", style)
        draw_cut(panels[1], surfaces, "random", style)
        for axis in panels[0]:
            axis.axvline(1, color="black", linewidth=1, linestyle=":", label="end of the step")
            figures.explain_bands(axis, "95 % interval of the change from 0")
    figures.save_figure(figure, path)


def draw_cut(panels: np.ndarray, surfaces: list[list[dict[str, Any]]], along: str, style: dict[str, Any]) -> None:
    """Draws surrogate and true reward of a checkpoint along one of the directions."""
    for cells, line, fill in zip(surfaces, figures.LINES * len(surfaces), figures.FILLS * len(surfaces)):
        text = f"{style['label']}, step from {cells[0]['step_pairs']:,} pairs"
        of_step = style | dict(linestyle=line, fillstyle=fill, markersize=5, linewidth=1.5, label=text)
        cut = [cell for cell in cells if cell["random" if along == "step" else "step"] == 0]
        x = [cell[along] for cell in cut]
        panels[0].plot(x, [cell["surrogate"] for cell in cut], **of_step)
        figures.draw_line(panels[1], x, [with_interval_of_change(cell) for cell in cut], of_step)
    direction = dict(step="the step", random="a random direction")[along]
    for axis, text in zip(panels, NAMES.values()):
        axis.set_title(f"{text.capitalize()} along {direction}, {figures.title(surfaces[0][:1])}", fontsize=10)
        axis.set_ylabel(text)
        axis.tick_params(labelbottom=True)


def with_interval_of_change(cell: dict[str, Any]) -> dict[str, Any]:
    """Returns a point's mean return with the interval of its change from the checkpoint, which is what is tested."""
    before, ends = cell["change"]["before"], cell["change"]["interval"]
    return dict(mean=cell["mean"], interval=[before + end for end in ends])


def unit_of_step(surfaces: list[list[dict[str, Any]]]) -> str:
    """Says what one unit along the step is, by the pairs that the step is computed from."""
    norms = [f"{cells[0]['step_norm']:.2g} from {cells[0]['step_pairs']:,}" for cells in surfaces]
    return f"along the step (1 = the whole step, whose norm is\n{', '.join(norms)} pairs)"


def draw_surface(axis: Axes, cells: list[dict[str, Any]], name: str, scale: np.ndarray) -> ContourSet:
    """Draws filled contours between the measured points, at the levels of the scale, and the step as an arrow."""
    side = round(len(cells) ** 0.5)
    x, y, z = (np.reshape([cell[key] for cell in cells], (side, side)) for key in ("step", "random", name))
    surface = axis.contourf(x, y, z, scale, cmap="viridis" if name == "mean" else "cividis")
    axis.plot(x.ravel(), y.ravel(), "o", color="white", markeredgecolor="black", markersize=3, clip_on=False)
    # White with a black edge can be seen on every colour of the contours, and in grey.
    arrow = dict(arrowstyle="simple,head_width=0.9,tail_width=0.3", facecolor="white", edgecolor="black")
    axis.annotate("", (1, 0), (0, 0), arrowprops=arrow | dict(shrinkA=0, shrinkB=0), zorder=4, annotation_clip=False)
    return surface


def scale_of(surfaces: list[list[dict[str, Any]]], name: str) -> np.ndarray:
    """Returns contour levels that all the surfaces share."""
    values = [cell[name] for cells in surfaces for cell in cells]
    return MaxNLocator(12).tick_values(min(values), max(values))


def draw_surfaces(rows: list[list[list[dict[str, Any]]]], path: Path) -> None:
    """Draws two rows for each checkpoint, surrogate and true reward, with a column for each number of pairs that the
    step came from (CL Fig. 13 to 18)."""
    size = 1.2 + 3.9 * len(rows[0]), 0.2 + 5 * len(rows)
    figure, axes = figures.new_figure(2 * len(rows), len(rows[0]), size, sharex=True, sharey=True)
    for panels, surfaces in zip(axes.reshape(len(rows), 2, -1), rows):
        for row, (name, text) in zip(panels, NAMES.items()):
            sizes = [f"{cells[0]['step_pairs']:,}" for cells in surfaces]
            draw_row(row, surfaces, name, [f"{text.capitalize()}, step from {size} pairs" for size in sizes])
    figures.save_figure(figure, path)


def draw_concentration(rows: list[list[list[dict[str, Any]]]], path: Path) -> None:
    """Draws a row for each checkpoint, whose columns are the true reward from more and more pairs per point (CL Fig. 5,
    19, 20)."""
    size = 1.2 + 2.6 * len(rows[0]), 0.2 + 2.5 * len(rows)
    figure, axes = figures.new_figure(len(rows), len(rows[0]), size, sharex=True, sharey=True)
    for row, surfaces in zip(axes, rows):
        firsts = [cells[0] for cells in surfaces]
        titles = [f"{x['reward_pairs']:,} pairs per point\n({x['episodes']:,} episodes)" for x in firsts]
        draw_row(row, surfaces, "mean", titles)
    figures.save_figure(figure, path)


def draw_row(row: np.ndarray, surfaces: list[list[dict[str, Any]]], name: str, titles: list[str]) -> None:
    """Draws a checkpoint's surfaces with one scale, beside them, and the units of both directions."""
    scale = scale_of(surfaces, name)
    for axis, cells, title in zip(row, surfaces, titles):
        surface = draw_surface(axis, cells, name, scale)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(f"step (1 = the whole step,\nthe arrow, of norm {cells[0]['step_norm']:.2g})", fontsize=9)
        axis.tick_params(labelbottom=True, labelsize=9)
        axis.xaxis.set_major_locator(MultipleLocator(1))
        axis.yaxis.set_major_locator(MultipleLocator(1))
    row[0].set_ylabel(f"{figures.title(surfaces[0][:1])}\n{RANDOM}", fontsize=9)
    bar = row[0].figure.colorbar(surface, ax=row.tolist(), aspect=15, pad=0.01)
    bar.set_label(NAMES[name], fontsize=9)
    bar.ax.tick_params(labelsize=9)


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = runs.read_options(Args, argv, __doc__)
    chosen = [runs.choose(sources, args.checkpoints) for sources in runs.open_runs(args.runs, args.script)]
    for source in sum(chosen, []):
        runs.with_step([source], (source.iteration,))
        minibatches = runs.read_config(source.run)["args"].get("num_minibatches", 1)
        if min(args.step_pairs) < 2 * minibatches:
            runs.stop(f"--step-pairs {min(args.step_pairs)}: less than two for each of the {minibatches} minibatches")
    path = runs.output_folder(args.out, args.runs) / "landscape.jsonl"
    styles = figures.run_styles(args.runs, args.labels)
    if len({folder.name for folder in args.runs}) < len(args.runs):
        runs.stop("two of the runs have folders of the same name, and so would their figures; draw each by itself")

    kinds = [dict(step_pairs=x, reward_pairs=args.reward_pairs, common_seeds=True) for x in args.step_pairs]
    kinds += [dict(step_pairs=args.step_pairs[0], reward_pairs=x, common_seeds=False) for x in args.concentration]
    points = [dict(step=a, random=b) for a in ticks(args.grid) for b in ticks(args.grid)]
    work = [landscape_work(args, source, kinds, points) for source in sum(chosen, [])]
    cells = iter(kept.measure_missing(args, path, work))
    for folder, sources, style in zip(args.runs, chosen, styles):
        name = "landscape" if len(chosen) == 1 else f"landscape_{folder.name}"
        rows = [[[next(cells) for _ in points] for _ in kinds] for _ in sources]
        surfaces = [row[: len(args.step_pairs)] for row in rows]
        for cells_of_step in sum(surfaces, []):
            print(f"{folder.name}, " * (len(chosen) > 1) + describe(cells_of_step))
        draw_cuts(surfaces, style, path.with_name(name))
        draw_surfaces(surfaces, path.with_name(f"{name}_surfaces"))
        if args.concentration:
            draw_concentration([row[len(args.step_pairs) :] for row in rows], path.with_name(f"{name}_concentration"))


def landscape_work(
    args: Args, source: Source, kinds: list[dict[str, Any]], points: list[dict[str, float]]
) -> kept.Work:
    """Returns the surfaces of a checkpoint, one of each kind at all the points, as the work that measure_missing
    takes."""
    on_no_step = sum(point["step"] == 0 for point in points)
    shared = args.reward_pairs * on_no_step * (len(args.step_pairs) - 1)  # points with step 0 are played only once
    total = sum(args.step_pairs) - shared + len(points) * sum(kind["reward_pairs"] for kind in kinds)
    cells = [kept.identify(source, args.seed) | kind | point for kind in kinds for point in points]
    measure = partial(measure_landscapes, args, source)
    return kept.Work(source, cells, total // len(cells), partial(draw, args, source), measure)


if __name__ == "__main__":
    runs.run_program(main)
