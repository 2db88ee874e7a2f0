"""Does the surrogate know where the reward is? This script measures how the true reward and the surrogate objective
change along the step that the algorithm takes from few or from many pairs, and along a random direction.

    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1
    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed[123] --checkpoints 150 300 --out results
    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1 --step-pairs 2000 1_000_000 --reward-pairs 1_000_000

These are the axes of the surfaces in "A Closer Look at Deep Policy Gradients" (CL), Fig. 6, 7 and 13 to 18. One unit
along the step is the algorithm's whole update from the checkpoint, including its optimizer and learning rate. One unit
along the random direction is a Gaussian vector rescaled to norm 2, the same for all steps from a checkpoint. The
surrogate is minus the script's `policy_loss`, on the batch that the step came from. The true reward is the mean return
of complete episodes. Every point gets as many episodes as have about --reward-pairs pairs under the checkpoint's own
policy.

All points of a checkpoint have common random numbers: the episode of a seed has the same reset and the same action
noise at every point. So the change of the reward between the checkpoint and a point is a mean of differences seed by
seed, and is tested as such: Student's t intervals of these differences are drawn and, for the whole step, printed. This
is the change by this one step from this one batch; another batch gives another step.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
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
    """points along each direction; they span [0, 3] and include 1 (with 2 points, they span [0, 1])"""
    step_pairs: tuple[int, ...] = (2000, 50_000)
    """state-action pairs that a step is computed from"""
    reward_pairs: int = 5000
    """approximate number of state-action pairs for the true reward at a point"""


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
        return step, [sampling.objective(script, args, policy, batch).item() for policy in places]


def draw(args: Args, source: Source, sample: Sampler, missing: list[dict[str, Any]]) -> tuple[float, dict[int, Any]]:
    """Returns the mean length of the first episodes of the checkpoint's policy, and the pairs that each step is
    computed from."""
    seed, sizes = (args.seed, source.iteration), dict.fromkeys(cell["step_pairs"] for cell in missing)
    episodes = sampling.play(source, (*seed, 2), 0, GROUP, 1, sample)
    experiences = {pairs: sampling.collect(source, (*seed, 1, pairs), pairs, sample) for pairs in sizes}
    return np.mean([length for _, length in episodes]).item(), experiences


def place_of(cell: dict[str, Any]) -> tuple[float, float, int]:
    """Returns what a cell's episodes depend on. A point that is not on a step is played only once for all steps."""
    return cell["step"], cell["random"], cell["step_pairs"] if cell["step"] else 0


def measure_landscapes(
    args: Args, source: Source, sample: Sampler, missing: list[dict[str, Any]], drawn: Callable
) -> Iterator[dict[str, Any]]:
    """Yields surrogate and true reward at points (a, b) around a checkpoint: parameters + a step + b random."""
    (length, experiences), seed = drawn(), (args.seed, source.iteration)
    start = sampling.flat_parameters(sampling.checkpoint_state(source)[2].policy)
    random = random_direction(source, sampling.generator(source, *seed, 0))
    points = list(dict.fromkeys((cell["step"], cell["random"]) for cell in missing))
    episodes = max(2, round(args.reward_pairs / length))

    def play(parameters: Tensor) -> Iterator[tuple[float, int]]:
        return sampling.play(source, (*seed, 2), 0, episodes, round(length), sample, parameters.numpy())

    # All episodes are begun before any is waited for, so that workers play while the next step is computed.
    begun, steps = {(0, 0, 0): play(start)}, {}
    for cell in missing:
        if (pairs := cell["step_pairs"]) not in steps:
            steps[pairs] = take_step(source, seed, experiences.pop(pairs), points)
        if place_of(cell) not in begun:
            begun[place_of(cell)] = play(start + cell["random"] * random + cell["step"] * steps[pairs][0])
    played = {(0, 0, 0): np.array(list(begun[0, 0, 0]))}  # [episodes, 2] return and length, by seed
    before = played[0, 0, 0][:, 0]
    for cell in missing:
        if (place := place_of(cell)) not in played:
            played[place] = np.array(list(begun[place]))
        returns, lengths = played[place].T
        (step, surrogates), point = steps[cell["step_pairs"]], (cell["step"], cell["random"])
        numbers = intervals.mean_of(returns) | dict(std=returns.std().item())
        numbers |= dict(episodes=len(returns), pairs=int(lengths.sum()), returns=intervals.raw(returns))  # by seed
        numbers |= dict(surrogate=surrogates[points.index(point)], step_norm=step.norm().item())
        yield numbers | dict(change=intervals.paired_change(before, returns))


def describe(cells: list[dict[str, Any]]) -> str:
    """Says in one line what the whole step changed."""
    [before, after] = [next(x for x in cells if (x["step"], x["random"]) == (a, 0)) for a in (0, 1)]
    change, gain = after["change"], after["surrogate"] - before["surrogate"]
    text = f"{figures.title([after])}, step from {after['step_pairs']:,} pairs: surrogate {gain:+.3g}, "
    text += f"reward {intervals.text(change, '{:+,.3g}'.format)} over {after['episodes']:,} episodes"
    if share := change["pairing"]:
        text += f"; pairing by seed {'narrows' if share < 1 else 'widens'} the interval to {share:.2f} of its width"
    return text


# Figure --------------------------------------------------------------------------------------------------------------

BESIDE = 0.06  # from one run's points to the next one's, so that their intervals can be told apart


def draw_changes(rows: dict[str, list[figures.Setting]]) -> Figure:
    """Draws what steps and a random direction change, given the settings of each title, each with its style and the
    cells of each of its runs. A title has a row with the true reward and a row with the surrogate, a setting has a
    column, and a run has a line. The intervals are the tested ones, of the change paired by seed. The surrogate is
    known exactly on its batch. The panels fit the steps, so the random direction, which is longer, may leave them."""
    columns = max(map(len, rows.values()))
    size = max(4.2, 0.8 + 1.8 * columns), 0.3 + 3.2 * len(rows)
    figure, axes = figures.new_figure(2 * len(rows), columns, size, sharex=True, sharey="row")
    for (title, settings), *pair in zip(rows.items(), axes[::2], axes[1::2]):
        for along, further in (("step", 0), ("random", BESIDE / 2)):
            for (style, of_runs), *panels in zip(settings, *pair):
                for k, cells in enumerate(of_runs):
                    color = style["color"] if along == "step" else "0.6"
                    draw_run(panels, cells, along, BESIDE * (k - (len(of_runs) - 1) / 2) + further, color)
            for row in pair:
                row[0].set_ylim(row[0].get_ylim())  # which keeps what comes later from changing it
        for row, name in zip(pair, ("reward", "surrogate")):
            row[0].set_ylabel(f"{title}\n{name}", fontsize=9)
            for axis in row[: len(settings)]:
                axis.axhline(0, color="black", linewidth=0.8)
                axis.axvline(1, color="black", linewidth=0.8, linestyle=":")
                axis.tick_params(labelsize=8, labelbottom=True)
            for axis in row[len(settings) :]:
                axis.set_axis_off()
        for (style, of_runs), *panels in zip(settings, *pair):
            norms = ", ".join(dict.fromkeys(f"{cells[0]['step_norm']:.2g}" for cells in of_runs))
            panels[0].set_title(style["label"], fontsize=9)
            panels[1].set_xlabel(f"multiples of the step\n(norm {norms})", fontsize=8)
    for text, color in (("the step (1 = all of it)", "black"), ("a random direction (1 = norm 2)", "0.6")):
        axes[0, 0].plot([], [], color=color, label=f"along {text}")
    axes[0, 0].plot([], [], "|", color="0.3", markersize=10, label="95 % interval, paired by seed")
    figure.supylabel("change from the checkpoint", fontsize=10)
    return figure


def draw_run(panels: list[Axes], cells: list[dict[str, Any]], along: str, shift: float, color: str) -> None:
    """Draws a run's changes of reward and surrogate along the step or along the random direction."""
    cut = sorted((x for x in cells if x["random" if along == "step" else "step"] == 0), key=lambda x: x[along])
    x, changes = [cell[along] + shift for cell in cut], [cell["change"] for cell in cut]
    style = dict(color=color, zorder=2 if along == "step" else 1)
    panels[0].plot(x, [change["mean"] for change in changes], linewidth=1, **style)
    panels[0].vlines(x, *zip(*(change["interval"] for change in changes)), linewidth=1.5, **style)
    panels[1].plot(x, [cell["surrogate"] - cut[0]["surrogate"] for cell in cut], linewidth=1, **style)


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = runs.read_options(Args, argv, __doc__)
    chosen = [runs.choose(sources, args.checkpoints) for sources in runs.open_runs(args.runs, args.script)]
    for source in sum(chosen, []):
        runs.with_step([source], (source.iteration,))
        minibatches = runs.read_config(source.run)["args"].get("num_minibatches", 1)
        if min(args.step_pairs) < 2 * minibatches:
            runs.stop(f"--step-pairs {min(args.step_pairs)}: less than two for each of the {minibatches} minibatches")
    styles = figures.run_styles(args.runs, args.labels)
    path = runs.output_folder(args.out, args.runs) / "landscape.jsonl"

    kinds = [dict(step_pairs=x, reward_pairs=args.reward_pairs, common_seeds=True) for x in args.step_pairs]
    points = [dict(step=a, random=0.0) for a in ticks(args.grid)]
    points += [dict(step=0.0, random=b) for b in ticks(args.grid)[1:]]
    work = [landscape_work(args, source, kinds, points) for source in sum(chosen, [])]
    cells = iter(kept.measure_missing(args, path, work))
    of_runs = []
    for folder, sources in zip(args.runs, chosen):
        of_runs.append(
            [dict(iteration=x.iteration, kinds=[[next(cells) for _ in points] for _ in kinds]) for x in sources]
        )
        for of_kind in sum((x["kinds"] for x in of_runs[-1]), []):
            print(f"{folder.name}, " * (len(chosen) > 1) + describe(of_kind))
    rows = {}
    for style, same in figures.by_setting(styles, of_runs):
        for checkpoints in zip(*same):  # the same checkpoint of each run
            columns = rows.setdefault(figures.title(checkpoints[:1]), [])
            for pairs, cells_of_runs in zip(args.step_pairs, zip(*(x["kinds"] for x in checkpoints))):
                label = f"{style['label']}\nfrom {pairs:,} pairs"
                columns.append((style | dict(label=label), list(cells_of_runs)))
    figures.save_figure(draw_changes(rows), path)


def landscape_work(
    args: Args, source: Source, kinds: list[dict[str, Any]], points: list[dict[str, float]]
) -> kept.Work:
    """Describes the points around a checkpoint, for each number of pairs that a step comes from, to measure_missing.
    (common_seeds tells these cells from those that older versions measured with other seeds at every point.)"""
    shared = sum(point["step"] == 0 for point in points)  # played only once
    played = shared + len(kinds) * (len(points) - shared)
    total = sum(kind["step_pairs"] for kind in kinds) + args.reward_pairs * played
    cells = [kept.identify(source, args.seed) | kind | point for kind in kinds for point in points]
    measure = partial(measure_landscapes, args, source)
    return kept.Work(source, cells, total // len(cells), partial(draw, args, source), measure)


if __name__ == "__main__":
    runs.run_program(main)
