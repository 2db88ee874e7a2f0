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

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from measuring import intervals, plots, runs, sampling, table
from measuring.runs import Source
from measuring.sampling import GROUP
from torch import Tensor

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(runs.LabelledOptions):
    checkpoints: tuple[int, ...] = ()
    """iterations; default: 0 150 300 450, or else the first, the last with a step, and two between them"""
    grid: int = 7
    """points along each direction; they span [0, 3] and include 1 (with 2 points, they span [0, 1])"""
    step_pairs: tuple[int, ...] = (2000, 50_000)
    """state-action pairs that a step is computed from"""
    reward_pairs: int = 5000
    """approximate number of state-action pairs for the true reward at a point"""


# Landscapes ----------------------------------------------------------------------------------------------------------


def measure(source: Source, seed: int, grid: int, step_pairs: list[int], reward_pairs: int) -> dict[str, Any]:
    """Returns surrogate and true reward at points around a checkpoint: parameters + a step + b random."""
    seeds = seed, source.iteration
    start = sampling.flat_parameters(sampling.checkpoint_state(source)[2].policy)
    random = random_direction(source, sampling.generator(source, *seeds, 0))
    points = [(a, 0.0) for a in ticks(grid)] + [(0.0, b) for b in ticks(grid)[1:]]
    length = np.mean([length for _, length in sampling.play(source, (*seeds, 2), 0, GROUP)])
    steps = {pairs: take_step(source, seeds, pairs, points) for pairs in step_pairs}
    # A point that is not on a step is played only once for all steps.
    places = {(a, b, pairs if a else 0): start + b * random + a * steps[pairs][0] for pairs in steps for a, b in points}
    policies = [(source, (*seeds, 2), parameters.numpy()) for parameters in places.values()]
    played = sampling.play_policies(policies, 0, max(2, round(reward_pairs / length)))
    played = {place: np.array(episodes).T for place, episodes in zip(places, played)}  # returns and lengths, by seed
    before, found = played[0, 0, 0][0], []
    for pairs, (step, surrogates) in steps.items():
        for (a, b), surrogate in zip(points, surrogates):
            returns, lengths = played[a, b, pairs if a else 0]
            numbers = dict(step_pairs=pairs, step=a, random=b) | intervals.mean_of(returns)
            numbers |= dict(std=returns.std().item(), episodes=len(returns), pairs=int(lengths.sum()))
            numbers |= dict(returns=intervals.raw(returns), surrogate=surrogate, step_norm=step.norm().item())
            found.append(numbers | dict(change=intervals.paired_change(before, returns)))
    return dict(points=found)


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
    source: Source, seeds: tuple[int, ...], pairs: int, points: list[tuple[float, float]]
) -> tuple[Tensor, list[float]]:
    """Returns the step [P] that the algorithm takes from so many fresh pairs, and the surrogate on its batch at points
    (a, b)."""
    script, args, state = sampling.checkpoint_state(source)
    experience = sampling.collect(source, (*seeds, 1, pairs), pairs)
    rng = sampling.generator(source, *seeds, 0)
    random, state.rng = random_direction(source, rng), rng
    batch = script.estimate_advantages(args, state, experience)
    start = sampling.flat_parameters(state.policy)
    script.update(args, state, batch)
    step = sampling.flat_parameters(state.policy) - start
    with torch.no_grad():
        places = [sampling.with_parameters(state.policy, start + a * step + b * random) for a, b in points]
        return step, [sampling.objective(script, args, policy, batch).item() for policy in places]


def describe(iteration: int, points: list[dict[str, Any]]) -> str:
    """Says in one line what the whole step changed."""
    [before, after] = [next(x for x in points if (x["step"], x["random"]) == (a, 0)) for a in (0, 1)]
    change, gain = after["change"], after["surrogate"] - before["surrogate"]
    text = f"iteration {iteration}, step from {after['step_pairs']:,} pairs: surrogate {gain:+.3g}, "
    text += f"reward {intervals.text(change, '{:+,.3g}'.format)} over {after['episodes']:,} episodes"
    if share := change["pairing"]:
        text += f"; pairing by seed {'narrows' if share < 1 else 'widens'} the interval to {share:.2f} of its width"
    return text


# Figure --------------------------------------------------------------------------------------------------------------

BESIDE = 0.06  # from one run's points to the next one's, so that their intervals can be told apart


def draw_changes(titled: dict[str, list[plots.Setting]]) -> Figure:
    """Draws what steps and a random direction change, given the settings of each title, each with its style and the
    points of each of its runs. A title has a row with the true reward and a row with the surrogate, a setting has a
    column, and a run has a line. The intervals are the tested ones, of the change paired by seed. The surrogate is
    known exactly on its batch. The panels fit the steps, so the random direction, which is longer, may leave them."""
    columns = max(map(len, titled.values()))
    size = max(4.2, 0.8 + 1.8 * columns), 0.3 + 3.2 * len(titled)
    figure, axes = plots.new_figure(2 * len(titled), columns, size, sharex=True, sharey="row")
    for (title, settings), *pair in zip(titled.items(), axes[::2], axes[1::2]):
        for along, further in (("step", 0), ("random", BESIDE / 2)):
            for (style, of_runs), *panels in zip(settings, *pair):
                for k, points in enumerate(of_runs):
                    color = style["color"] if along == "step" else "0.6"
                    draw_run(panels, points, along, BESIDE * (k - (len(of_runs) - 1) / 2) + further, color)
            for panels in pair:
                panels[0].set_ylim(panels[0].get_ylim())  # which keeps what comes later from changing it
        for panels, name in zip(pair, ("reward", "surrogate")):
            panels[0].set_ylabel(f"{title}\n{name}", fontsize=9)
            for axis in panels[: len(settings)]:
                axis.axhline(0, color="black", linewidth=0.8)
                axis.axvline(1, color="black", linewidth=0.8, linestyle=":")
                axis.tick_params(labelsize=8, labelbottom=True)
            for axis in panels[len(settings) :]:
                axis.set_axis_off()
        for (style, of_runs), *panels in zip(settings, *pair):
            norms = ", ".join(dict.fromkeys(f"{points[0]['step_norm']:.2g}" for points in of_runs))
            panels[0].set_title(style["label"], fontsize=9)
            panels[1].set_xlabel(f"multiples of the step\n(norm {norms})", fontsize=8)
    for text, color in (("the step (1 = all of it)", "black"), ("a random direction (1 = norm 2)", "0.6")):
        axes[0, 0].plot([], [], color=color, label=f"along {text}")
    axes[0, 0].plot([], [], "|", color="0.3", markersize=10, label="95 % interval, paired by seed")
    figure.supylabel("change from the checkpoint", fontsize=10)
    return figure


def draw_run(panels: list[Axes], points: list[dict[str, Any]], along: str, shift: float, color: str) -> None:
    """Draws a run's changes of reward and surrogate along the step or along the random direction."""
    cut = sorted((x for x in points if x["random" if along == "step" else "step"] == 0), key=lambda x: x[along])
    x, changes = [point[along] + shift for point in cut], [point["change"] for point in cut]
    style = dict(color=color, zorder=2 if along == "step" else 1)
    panels[0].plot(x, [change["mean"] for change in changes], linewidth=1, **style)
    panels[0].vlines(x, *zip(*(change["interval"] for change in changes)), linewidth=1.5, **style)
    panels[1].plot(x, [point["surrogate"] - cut[0]["surrogate"] for point in cut], linewidth=1, **style)


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = runs.read_options(Args, argv, __doc__, grid=2)
    chosen = [runs.choose(sources, args.checkpoints) for sources in runs.open_runs(args.runs, args.script)]
    for source in sum(chosen, []):
        runs.with_step([source], (source.iteration,))
        minibatches = runs.read_config(source.run)["args"].get("num_minibatches", 1)
        if min(args.step_pairs) < 2 * minibatches:
            runs.stop(f"--step-pairs {min(args.step_pairs)}: less than two for each of the {minibatches} minibatches")
    styles = plots.run_styles(args.runs, args.labels)
    sizes = dict(grid=args.grid, step_pairs=list(dict.fromkeys(args.step_pairs)), reward_pairs=args.reward_pairs)
    rows = iter(table.fill(args, "landscape", measure, [(source, sizes) for source in sum(chosen, [])]))
    measured = [[next(rows) for _ in sources] for sources in chosen]
    for folder, row in zip(sum(([folder] * len(x) for folder, x in zip(args.runs, measured)), []), sum(measured, [])):
        for pairs in sizes["step_pairs"]:
            text = describe(row["iteration"], [x for x in row["points"] if x["step_pairs"] == pairs])
            print(f"{folder}, " * (len(chosen) > 1) + text)
    titled = {}
    for style, of_runs in plots.by_setting(styles, measured):
        for same in zip(*of_runs):  # the same checkpoint of each run
            columns = titled.setdefault(plots.title(same[:1]), [])
            for pairs in sizes["step_pairs"]:
                label = f"{style['label']}\nfrom {pairs:,} pairs"
                points = [[x for x in row["points"] if x["step_pairs"] == pairs] for row in same]
                columns.append((style | dict(label=label), points))
    plots.save_figure(draw_changes(titled), runs.figure_path(args, "landscape"))


if __name__ == "__main__":
    runs.run_program(main)
