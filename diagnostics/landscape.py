"""Does the surrogate know where the reward is? This script measures how the true reward and the surrogate objective
change along the step that the algorithm takes from few or from many pairs, and along a random direction.

    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1
    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1 --checkpoints 300 --surfaces
    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1 --checkpoints 300 --concentration 2000 20_000 100_000
    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1 --checkpoints 300 --grid 4 --surfaces  # a first look

--surfaces draws Fig. 6, 7 and 13 to 18 of "A Closer Look at Deep Policy Gradients" (CL; Ilyas et al. 2020,
https://arxiv.org/abs/1811.02553) and Fig. 7, 8 and 17 to 25 of its first version (TPG;
https://arxiv.org/abs/1811.02553v1): surrogate and reward over the plane of the step and a random direction, which costs
as many times more as the plane has points in a line. --concentration draws CL's Fig. 5, 19, 20 and TPG's Fig. 6, 26,
27: how many pairs a point of the reward's surface needs to look like itself. Every point of the plane, spanned by the
step from the first of --step-pairs, then has episodes of its own. Without either, the lines are along both directions.

One unit along the step is the algorithm's whole update from the checkpoint, with its optimizer and learning rate. One
unit along the random direction is a Gaussian vector rescaled to norm 2, the same for all steps from a checkpoint. The
surrogate is minus the script's policy_loss, on the batch that the step came from. The true reward is the mean return of
complete episodes, of which every point gets as many as have about --reward-pairs pairs under the checkpoint's policy.

All points but --concentration's have common random numbers: the episode of a seed has the same reset and the same
action noise at every point. So the change of the reward between the checkpoint and a point is a mean of differences
seed by seed, and is tested as such: Student's t intervals of these differences are drawn and, for the whole step,
printed. It is the change by this one step from this one batch; another batch gives another step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import lab
import numpy as np
import torch
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats
from torch import Tensor


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]  # run folders, all of one environment
    checkpoints: tuple[int, ...] = ()  # iterations; default: 0 150 300 450, or else four from the first to the last
    grid: int = 7  # points along each direction; they span [0, 3] and include 1 (with 2 points, they span [0, 1])
    step_pairs: tuple[int, ...] = (2000, 50_000)  # state-action pairs that a step is computed from
    reward_pairs: int = 5000  # approximate number of state-action pairs for the true reward at a point
    surfaces: bool = False  # also measure the whole plane, and draw the surfaces of surrogate and reward
    concentration: tuple[int, ...] = ()  # also draw the reward's surface from so many pairs at each point
    labels: tuple[str, ...] = ()  # one for each run; runs with the same label are averaged; default: the folder's name
    script: Path | None = None  # the algorithm's script; default: the one in algos/ that the run names
    out: Path | None = None  # folder of figures and rows; default: figures/ inside the first run
    format: Literal["png", "pdf", "svg"] = "png"  # format of the figures
    jobs: int = lab.CORES  # worker processes; the numbers do not depend on it
    seed: int = 0  # of everything that is sampled here
    overwrite: bool = False  # measure again what an earlier call has measured


def main(argv: list[str] | None = None) -> None:
    args = lab.read_options(Args, argv, __doc__, grid=2)
    asked = dict(seed=args.seed, grid=args.grid, reward_pairs=args.reward_pairs, surfaces=args.surfaces)
    asked |= dict(step_pairs=[*dict.fromkeys(args.step_pairs)], concentration=[*dict.fromkeys(args.concentration)])
    if not args.step_pairs:
        lab.refuse("--step-pairs: give one number of pairs or more")
    work = []
    for of_run in lab.open_runs(args):
        minibatches = lab.read_config(of_run[0].run)["args"].get("num_minibatches", 1)
        if min(args.step_pairs) < 2 * minibatches:
            lab.refuse(f"--step-pairs {min(args.step_pairs)}: less than two for each of the {minibatches} minibatches")
        work.append([(checkpoint, asked) for checkpoint in lab.choose(of_run, args.checkpoints)])
    lines = lab.lines_of(args, work, lab.fill(args, "landscape", measure, sum(work, [])))
    for style, rows in lines:
        for row in rows:
            for pairs in asked["step_pairs"]:
                print(f"{style['label']}, iteration {row['iteration']}, {describe(row, pairs)}")
    draw_lines(lines, args.out / f"landscape.{args.format}")
    if args.surfaces:
        draw_surfaces(lines, surrogate_and_reward, args.out / f"landscape_surfaces.{args.format}")
    if args.concentration:
        draw_surfaces(lines, concentrations, args.out / f"landscape_concentration.{args.format}")


# What is measured at a checkpoint ------------------------------------------------------------------------------------


def measure(
    checkpoint: lab.Checkpoint,
    parallel_map: Callable,
    seed: int,
    grid: int,
    step_pairs: list[int],
    reward_pairs: int,
    surfaces: bool,
    concentration: list[int],
) -> dict[str, Any]:
    """Returns surrogate and true reward at points around a checkpoint with the parameters theta [P] (CL Fig. 6),

        theta(a, b) = theta + a (theta' - theta) + b random,

    where the algorithm's update leads to theta', on both axes or, with surfaces, on the whole plane."""
    seeds, ticks = (seed, checkpoint.iteration), ticks_of(grid)
    start = lab.flat_parameters(lab.frozen_state(checkpoint)[2].policy)
    random = random_direction(len(start), lab.generator(checkpoint.run, *seeds, 0))
    points = [(a, 0.0) for a in ticks] + [(0.0, b) for b in ticks[1:]]
    if surfaces:
        points += [(a, b) for a in ticks[1:] for b in ticks[1:]]
    length = np.mean([length for _, length in lab.play(checkpoint, (*seeds, 2), 0, lab.GROUP)])
    episodes = max(2, round(reward_pairs / length))
    steps, row = {}, dict(points=[], step_norms={}, concentrations=[])
    for pairs in step_pairs:
        steps[pairs], surrogates = take_step(checkpoint, parallel_map, seeds, pairs, points)
        row["step_norms"][str(pairs)] = steps[pairs].norm().item()
        for (a, b), surrogate in zip(points, surrogates):
            row["points"].append(dict(step_pairs=pairs, step=a, random=b, surrogate=surrogate))

    # A point that is not on a step is the same for all steps, and is played only once.
    places = {}
    for point in row["points"]:
        a, b, pairs = point["step"], point["random"], point["step_pairs"]
        places[a, b, pairs if a else 0] = (start + b * random + a * steps[pairs]).numpy()
    calls = [(checkpoint, (*seeds, 2), 0, episodes, parameters) for parameters in places.values()]
    played = dict(zip(places, parallel_map(lab.play, *zip(*calls))))
    for point in row["points"]:
        of_point = played[point["step"], point["random"], point["step_pairs"] if point["step"] else 0]
        returns, lengths = zip(*of_point)
        point |= dict(returns=lab.rounded(returns), pairs=sum(lengths))

    plane = [(a, b) for a in ticks for b in ticks]
    for pairs in concentration:  # Each point has seeds of its own, since the question is how much estimates scatter.
        episodes, calls = max(1, round(pairs / length)), []
        for i, (a, b) in enumerate(plane):
            parameters = (start + b * random + a * steps[step_pairs[0]]).numpy()
            calls.append((checkpoint, (*seeds, 3, pairs, i), 0, episodes, parameters))
        for (a, b), of_point in zip(plane, parallel_map(lab.play, *zip(*calls))):
            returns, lengths = zip(*of_point)
            point = dict(concentration=pairs, step=a, random=b, episodes=episodes, pairs=sum(lengths))
            row["concentrations"].append(point | dict(mean=np.mean(returns).item(), std=np.std(returns).item()))
    return row


def ticks_of(grid: int) -> list[float]:
    """Returns the coordinates of the points. They include 0 and 1, between which the change by one whole step is
    measured, and 3 if there are more than two."""
    within = max(1, round((grid - 1) / 3))
    return [*np.linspace(0, 1, within + 1).tolist(), *np.linspace(1, 3, grid - within).tolist()[1:]]


def random_direction(size: int, rng: np.random.Generator) -> Tensor:
    """Draws a Gaussian vector [P] and rescales it to norm 2."""
    random = torch.from_numpy(rng.standard_normal(size, dtype=np.float32))
    return 2 * random / random.norm()


def take_step(
    checkpoint: lab.Checkpoint,
    parallel_map: Callable,
    seeds: tuple[int, ...],
    pairs: int,
    points: list[tuple[float, float]],
) -> tuple[Tensor, list[float]]:
    """Returns the step [P] that the algorithm takes from so many fresh pairs, and the surrogate on its batch at points
    (a, b)."""
    script, args, state = lab.frozen_state(checkpoint)
    steps = lab.fresh_segments(checkpoint, parallel_map, (*seeds, 1, pairs), pairs)
    start, state.rng = lab.flat_parameters(state.policy), lab.generator(checkpoint.run, *seeds, 0)
    random = random_direction(len(start), state.rng)
    batch = script.estimate_advantages(args, state, steps)
    script.update(args, state, batch)
    step = lab.flat_parameters(state.policy) - start
    with torch.no_grad():
        policies = [lab.with_parameters(state.policy, start + a * step + b * random) for a, b in points]
        return step, [-script.policy_loss(args, policy(batch["obs"]), batch).item() for policy in policies]


# What follows from the rows, and the figures -------------------------------------------------------------------------


def paired_change(before: list[float], after: list[float]) -> dict[str, Any]:
    """Returns the mean of the differences of two or more returns [n] with the same seeds, and its t interval. `pairing`
    is the interval's width divided by that of the two-sample t interval, which would treat the seeds as different
    ones."""
    before, after, n = np.array(before), np.array(after), len(before)
    change = lab.mean_of(after - before)
    half = stats.t.ppf(0.975, 2 * n - 2) * ((before.var(ddof=1) + after.var(ddof=1)) / n) ** 0.5
    change["pairing"] = (np.diff(change["interval"]) / (2 * half)).item() if half > 0 else None
    return change


def along(row: dict[str, Any], pairs: int, direction: str) -> list[dict[str, Any]]:
    """Returns a row's points along the step from so many pairs, or along the random direction, from the checkpoint on,
    each with the changes of reward and surrogate."""
    other = "random" if direction == "step" else "step"
    points = [x for x in row["points"] if x["step_pairs"] == pairs and x[other] == 0]
    points.sort(key=lambda point: point[direction])
    start, changed = points[0], []
    for point in points:
        change = paired_change(start["returns"], point["returns"])
        changed.append(point | dict(change=change, gain=point["surrogate"] - start["surrogate"]))
    return changed


def describe(row: dict[str, Any], pairs: int) -> str:
    """Says what the whole step changed."""
    after = next(x for x in along(row, pairs, "step") if x["step"] == 1)
    text = f"step from {pairs:,} pairs: surrogate {after['gain']:+.3g}, "
    text += f"reward {lab.in_words(after['change'], '{:+,.3g}')} over {len(after['returns']):,} episodes"
    if share := after["change"]["pairing"]:
        text += f"; pairing by seed {'narrows' if share < 1 else 'widens'} the interval to {share:.2f} of its width"
    return text


def draw_lines(lines: list[lab.Line], path: Path) -> None:
    """Draws the changes of reward and surrogate along the step in colour, and along the random direction in grey. Two
    rows of panels are a checkpoint, and a column is a number of step pairs. The surrogate is known exactly on its
    batch. The panels fit the steps, so the random direction, which is longer, may leave them."""
    step_pairs, checkpoints = lines[0][1][0]["step_pairs"], max(len(rows) for _, rows in lines)
    figure = Figure((max(6, 1.6 + 2.4 * len(step_pairs)), 3.4 * checkpoints), layout="constrained")
    axes = figure.subplots(2 * checkpoints, len(step_pairs), squeeze=False, sharex=True, sharey="row")
    for k, (of_reward, of_surrogate) in enumerate(zip(axes[::2], axes[1::2])):
        here = [(style, rows[k]) for style, rows in lines if k < len(rows)]
        for direction in ("step", "random"):
            for panels in zip(of_reward, of_surrogate, step_pairs):
                draw_along(*panels, here, direction)
            for panels in (of_reward, of_surrogate):
                panels[0].set_ylim(panels[0].get_ylim())  # so that the random direction does not change it
        iterations = dict.fromkeys(str(row["iteration"]) for _, row in here)
        of_reward[0].set_ylabel(f"iteration {' / '.join(iterations)}\nreward", fontsize=9)
        of_surrogate[0].set_ylabel("surrogate", fontsize=9)
        for axis, pairs in zip(of_surrogate, step_pairs):
            norms = sorted(row["step_norms"][str(pairs)] for _, row in here)
            ends = dict.fromkeys(f"{x:.2g}" for x in (norms[0], norms[-1]))
            axis.set_xlabel(f"multiples of the step\n(norm {' to '.join(ends)})", fontsize=8)
    for axis in axes.flat:
        axis.axhline(0, color="black", linewidth=0.8)
        axis.axvline(1, color="black", linewidth=0.8, linestyle=":")
        axis.tick_params(labelsize=8, labelbottom=True)
    for axis, pairs in zip(axes[0], step_pairs):
        axis.set_title(f"step from {pairs:,} pairs", fontsize=9)
    axes[0, 0].plot([], [], color="0.6", label="along a random direction (1 = norm 2)")
    axes[0, 0].plot([], [], color="black", linestyle=":", linewidth=0.8, label="the whole step")
    axes[0, 0].plot([], [], "|", color="0.3", markersize=10, label="95 % interval, paired by seed")
    figure.supylabel("change from the checkpoint", fontsize=10)
    lab.save_figure(figure, lines, path)


def draw_along(of_reward: Axes, of_surrogate: Axes, pairs: int, runs: list[tuple[dict, dict]], direction: str) -> None:
    """Draws the changes of reward and surrogate of runs, each given as its style and a row, along one direction."""
    lines = []
    for style, row in runs:
        if direction == "step":
            look = style | dict(zorder=3, linewidth=1, label=f"along the step, {style['label']}")
        else:
            look = style | dict(zorder=1, linewidth=1, color="0.6", label=f"_{style['label']}")  # not in the legend
        lines.append((look, along(row, pairs, direction)))
    lab.draw_runs(of_reward, lines, direction, lambda point: point["change"], apart=0.06)
    lab.draw_runs(of_surrogate, lines, direction, lambda point: dict(mean=point["gain"], interval=None))


class Surface(NamedTuple):
    """What is drawn over the plane of step and random direction."""

    title: str
    name: str  # of the height
    norm: float  # of the whole step
    heights: dict[tuple[float, float], float]  # by steps along the step and along the random direction


def surrogate_and_reward(rows: list[dict[str, Any]]) -> list[Surface]:
    """Returns the surfaces of surrogate and true reward of a checkpoint, for steps from few and from many pairs, as
    means over the rows of several runs (CL Fig. 6, 7, 13 to 18)."""
    surfaces = []
    for pairs in rows[0]["step_pairs"]:
        norm = np.mean([row["step_norms"][str(pairs)] for row in rows])
        points = [x for row in rows for x in row["points"] if x["step_pairs"] == pairs]
        for name, column in (("surrogate", "surrogate"), ("mean return", "returns")):
            surfaces.append(Surface(f"{name}, step from {pairs:,} pairs", name, norm, mean_heights(points, column)))
    return surfaces


def concentrations(rows: list[dict[str, Any]]) -> list[Surface]:
    """Returns the reward's surface from each number of pairs at a point, as means over the rows of several runs (CL
    Fig. 5, 19, 20)."""
    surfaces, norm = [], np.mean([row["step_norms"][str(row["step_pairs"][0])] for row in rows])
    for pairs in rows[0]["concentration"]:
        points = [x for row in rows for x in row["concentrations"] if x["concentration"] == pairs]
        title = f"reward from {pairs:,} pairs a point"
        surfaces.append(Surface(title, "mean return", norm, mean_heights(points, "mean")))
    return surfaces


def mean_heights(points: list[dict[str, Any]], column: str) -> dict[tuple[float, float], float]:
    """Returns the mean of a column of the points of several runs, by place. Each run counts alike."""
    heights = {}
    for point in points:
        heights.setdefault((point["step"], point["random"]), []).append(np.mean(point[column]))
    return {place: np.mean(of_runs) for place, of_runs in heights.items()}


def draw_surfaces(lines: list[lab.Line], surfaces_of: Callable, path: Path) -> None:
    """Draws a row of surfaces for each label and checkpoint. Heights of one name have one scale in a row."""
    cells = lab.gather(lines, "iteration")
    columns = len(surfaces_of(cells[0][1]))
    figure = Figure((3.6 * columns, 3.6 * len(cells)), layout="constrained")
    in_3d = dict(projection="3d", computed_zorder=False)  # so that lines are drawn over the surface
    axes = figure.subplots(len(cells), columns, squeeze=False, subplot_kw=in_3d)
    for panels, (style, rows) in zip(axes, cells):
        surfaces = surfaces_of(rows)
        of_runs = f" (mean of {len(rows)} runs)" if len(rows) > 1 else ""
        heading = f"{style['label']}{of_runs}\niteration {rows[0]['iteration']}"
        for axis, surface in zip(panels, surfaces):
            heights = [z for other in surfaces if other.name == surface.name for z in other.heights.values()]
            draw_surface(axis, surface, min(heights), max(heights))
            axis.set_title(f"{heading}\n{surface.title}", fontsize=8, y=0.95)
    lab.save_figure(figure, lines, path)


def draw_surface(axis: Any, surface: Surface, low: float, high: float) -> None:
    """Draws a surface between these heights, and on it the checkpoint and the step."""
    ticks = sorted({a for a, _ in surface.heights})
    x, y = np.meshgrid(ticks, ticks, indexing="ij")
    z = np.array([[surface.heights[a, b] for b in ticks] for a in ticks])
    axis.plot_surface(x, y, z, rstride=1, cstride=1, cmap="viridis", vmin=low, vmax=high, edgecolor="0.25", lw=0.3)
    lift = 0.01 * (high - low)  # above the surface, which would hide half of the line
    axis.plot(ticks, [0] * len(ticks), z[:, 0] + lift, color="red", linewidth=2, label="along the step")
    axis.plot(0, 0, z[0, 0] + lift, "o", color="black", markersize=5, label="the checkpoint")
    look = dict(color="red", markeredgecolor="black", markersize=6)
    axis.plot(1, 0, z[ticks.index(1), 0] + lift, "D", label="the whole step", **look)
    axis.set_zlim(low, high + 2 * lift)
    axis.view_init(elev=28, azim=-125)
    axis.set_xlabel(f"step (1 = norm {surface.norm:.2g})", fontsize=8)
    axis.set_ylabel("random (1 = norm 2)", fontsize=8)
    axis.set_zlabel(surface.name, fontsize=8)
    axis.tick_params(labelsize=7, pad=1)
    axis.set_box_aspect((1, 1, 0.95), zoom=0.82)  # or the labels would be cut off


if __name__ == "__main__":
    lab.run_program(main)
