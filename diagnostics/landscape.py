"""Does the surrogate know where the reward is? True reward and surrogate objective around a checkpoint's policy, along
the step that the algorithm takes from few or from many pairs, and along a random direction.

    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1
    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1 --step-pairs 2000 1_000_000 --reward-pairs 1_000_000
    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1 --checkpoints 150 --concentration 2000 20_000 100_000

"A Closer Look at Deep Policy Gradients" (CL) Fig. 5 to 7, 13 to 20. One unit along the step is the algorithm's whole
update from the checkpoint, its optimizer and learning rate included; one unit along the random direction is a Gaussian
vector rescaled to norm 2, the same in every surface of a checkpoint. The surrogate is the script's `objective` on the
batch that the step came from. The true reward is the mean return of complete episodes: enough actors for segments of
num_steps share the pairs of a point, and each goes on to the end of its episode. Points are sampled independently.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from common import (
    COLOURS,
    GROUP,
    Options,
    Source,
    check_options,
    checkpoint_state,
    choose,
    collect,
    draw_line,
    flat_parameters,
    identify,
    look,
    measure_missing,
    new_figure,
    open_runs,
    output_folder,
    play,
    run_program,
    save_figure,
    stop,
    t_interval,
    title,
    with_parameters,
    with_step,
)
from matplotlib.axes import Axes
from torch import Tensor

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(Options):
    checkpoints: tuple[int, ...] = ()
    """iterations; default: 0 150 300 450 or, where a run has fewer, its first, its thirds, its last with a step"""
    grid: int = 7
    """points a side, on [0, 3] in both directions"""
    step_pairs: tuple[int, ...] = (2000, 50_000)
    """state-action pairs that a step is computed from"""
    reward_pairs: int = 5000
    """state-action pairs of the true reward at a point"""
    concentration: tuple[int, ...] = ()
    """also draw true-reward surfaces, around the first of --step-pairs, with these numbers of pairs a point"""


# Landscapes ----------------------------------------------------------------------------------------------------------


def take_step(source: Source, seed: tuple[int, ...], _: int, step_pairs: int, points: list) -> tuple[Tensor, list]:
    """The step [P] that the algorithm takes from fresh pairs, and the surrogate on its batch at points (a, b)."""
    script, args, state = checkpoint_state(source)
    rng = np.random.default_rng((*seed, 0))
    random, state.rng = random_direction(source, rng), rng
    experience = collect(source, (*seed, 1, step_pairs), step_pairs, lambda f, tasks: [f(*task) for task in tasks])
    batch = script.estimate_advantages(args, state, experience)
    start = flat_parameters(state.policy)
    script.update(args, state, batch)
    step = flat_parameters(state.policy) - start
    with torch.no_grad():
        places = [with_parameters(state.policy, start + a * step + b * random) for a, b in points]
        surrogates = [script.objective(args, policy, batch) for policy in places]
    return step, [x.item() for x in surrogates]


def random_direction(source: Source, rng: np.random.Generator) -> Tensor:
    """A Gaussian vector [P] rescaled to norm 2."""
    script, _, state = checkpoint_state(source)
    random = torch.from_numpy(rng.standard_normal(len(flat_parameters(state.policy)), dtype=np.float32))
    return 2 * random / random.norm()


def measure_landscapes(
    args: Args, source: Source, sample: Callable, missing: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Surrogate and true reward at points (a, b) of a checkpoint's surfaces: parameters + a step + b random."""
    script, settings, state = checkpoint_state(source)
    seed, start = (args.seed, source.iteration), flat_parameters(state.policy)
    random, steps = random_direction(source, np.random.default_rng((*seed, 0))), {}
    points = list(dict.fromkeys((cell["step"], cell["random"]) for cell in missing))
    for cell in missing:  # all steps first, so that workers are never without work
        if (step_pairs := cell["step_pairs"]) not in steps:
            steps[step_pairs] = sample(take_step, [(source, seed, 1, step_pairs, points)])

    for (step_pairs, reward_pairs), group in groupby(missing, lambda cell: (cell["step_pairs"], cell["reward_pairs"])):
        cells = list(group)
        steps[step_pairs] = list(steps[step_pairs])
        [(step, surrogates)] = steps[step_pairs]
        segments = max(1, round(reward_pairs / settings.num_steps))
        sizes = [min(GROUP, segments - first) for first in range(0, segments, GROUP)]
        tasks = []
        for cell in cells:
            a, b = cell["step"], cell["random"]
            point_seed = (*seed, 2, step_pairs, reward_pairs, round(1000 * a), round(1000 * b))
            place, steps_each = start + a * step + b * random, -(-reward_pairs // segments)
            tasks += [(source, (*point_seed, i), n, steps_each, place) for i, n in enumerate(sizes)]
        results = sample(play, tasks)
        for cell in cells:
            returns, lengths = np.transpose([episode for _ in sizes for episode in next(results)])
            numbers = dict(mean=returns.mean().item(), std=returns.std().item(), interval=t_interval(returns))
            numbers |= dict(episodes=len(returns), pairs=int(lengths.sum()))
            surrogate = surrogates[points.index((cell["step"], cell["random"]))]
            yield numbers | dict(surrogate=surrogate, step_norm=step.norm().item())


# Figures -------------------------------------------------------------------------------------------------------------


def draw_surface(axis: Axes, cells: list[dict[str, Any]], name: str, label: str) -> None:
    side = round(len(cells) ** 0.5)
    x, y, z = (np.reshape([cell[key] for cell in cells], (side, side)) for key in ("step", "random", name))
    axis.plot_surface(x, y, z, cmap="viridis", linewidth=0.2, edgecolor="black")
    axis.set_xlabel("step", fontsize=7, labelpad=-8)
    axis.set_ylabel("random", fontsize=7, labelpad=-8)
    axis.set_title(label, fontsize=8)
    axis.tick_params(labelsize=6, pad=-3)
    axis.tick_params(axis="z", pad=0)


def draw_surfaces(rows: list[list[list[dict[str, Any]]]], path: Path) -> None:
    """Rows: checkpoints; columns: surrogate and true reward for each number of pairs that the step came from (CL Fig.
    13 to 18)."""
    shape = len(rows), 2 * len(rows[0])
    size = 2.3 * shape[1], 2.2 * shape[0]
    figure, axes = new_figure(*shape, size, subplot_kw=dict(projection="3d"))
    for row, surfaces in zip(axes, rows):
        for k, cells in enumerate(surfaces):
            of_step = f"step from {cells[0]['step_pairs']:,} pairs"
            draw_surface(row[2 * k], cells, "surrogate", f"{title(cells[:1])}, surrogate\n{of_step}")
            draw_surface(row[2 * k + 1], cells, "mean", f"{title(cells[:1])}, true reward\n{of_step}")
    save_figure(figure, path)


def draw_cuts(rows: list[list[list[dict[str, Any]]]], path: Path) -> None:
    """Rows: checkpoints; columns: true reward and surrogate along the step, the same along the random direction."""
    figure, axes = new_figure(len(rows), 4, (8.4, 0.5 + 1.7 * len(rows)), sharex=True)
    styles = [look(algo) for algo in COLOURS]
    for row, surfaces in zip(axes, rows):
        for cells, style in zip(surfaces, styles):
            style = style | dict(label=f"step from {cells[0]['step_pairs']:,} pairs")
            for axes_of_cut, along, across in ((row[:2], "step", "random"), (row[2:], "random", "step")):
                cut = [cell for cell in cells if cell[across] == 0]
                draw_line(axes_of_cut[0], [cell[along] for cell in cut], cut, style)
                axes_of_cut[1].plot([cell[along] for cell in cut], [cell["surrogate"] for cell in cut], **style)
        row[0].set_ylabel(f"{title(surfaces[0][:1])}\ntrue reward")
        for axis, text in zip(row[1:], ("surrogate", "true reward", "surrogate")):
            axis.set_ylabel(text)
    for axis, text in zip(axes[-1], ["steps"] * 2 + ["random direction"] * 2):
        axis.set_xlabel(text)
    save_figure(figure, path)


def draw_concentration(rows: list[list[list[dict[str, Any]]]], path: Path) -> None:
    """Rows: checkpoints; columns: true reward from more and more pairs a point (CL Fig. 5, 19, 20)."""
    shape = len(rows), len(rows[0])
    size = 2.6 * shape[1], 2.3 * shape[0]
    figure, axes = new_figure(*shape, size, subplot_kw=dict(projection="3d"))
    for row, surfaces in zip(axes, rows):
        for axis, cells in zip(row, surfaces):
            episodes = np.mean([cell["episodes"] for cell in cells])
            label = f"{cells[0]['reward_pairs']:,} pairs a point (about {episodes:.0f} episodes)"
            draw_surface(axis, cells, "mean", f"{title(cells[:1])}\n{label}")
    save_figure(figure, path)


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
    path = output_folder(args.out, args.runs) / "landscape.json"

    ticks = np.linspace(0, 3, args.grid).tolist()
    kinds = [(step_pairs, args.reward_pairs) for step_pairs in args.step_pairs]
    kinds += [(args.step_pairs[0], reward_pairs) for reward_pairs in args.concentration]
    work = []
    for source in sum(runs, []):
        points = []
        for step_pairs, reward_pairs in kinds:
            settings = identify(source, args.seed) | dict(step_pairs=step_pairs, reward_pairs=reward_pairs)
            points += [settings | dict(step=a, random=b) for a in ticks for b in ticks]
        cost = sum(args.step_pairs) // len(points) + sum(x for _, x in kinds) // len(kinds)
        work.append((partial(measure_landscapes, args), source, points, cost))
    cells = iter(measure_missing(args, path, work))
    for folder, sources in zip(args.runs, runs):
        name = "landscape" if len(runs) == 1 else f"landscape_{folder.name}"
        rows = [[[next(cells) for _ in range(args.grid**2)] for _ in kinds] for _ in sources]
        surfaces = [row[: len(args.step_pairs)] for row in rows]
        draw_surfaces(surfaces, path.with_name(name))
        draw_cuts(surfaces, path.with_name(f"{name}_cuts"))
        if args.concentration:
            draw_concentration([row[len(args.step_pairs) :] for row in rows], path.with_name(f"{name}_concentration"))


if __name__ == "__main__":
    run_program(main)
