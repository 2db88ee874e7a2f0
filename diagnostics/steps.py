"""Do update steps repeat, and do they raise the reward? This measures the cosine between the whole steps that an
algorithm takes from one checkpoint on independent batches, and how far apart the policies are to which they lead.

    python diagnostics/steps.py runs/Hopper-v5__ppo__seed1
    python diagnostics/steps.py runs/Hopper-v5__{ppo,trpo}__seed[12] --checkpoints all --out results
    python diagnostics/steps.py runs/Hopper-v5__ppo__seed1 --rewards 20 --step-pairs 2048 50_000

It follows Fig. 13 of "Are Deep Policy Gradient Algorithms Truly Policy Gradient Algorithms?" (TPG). From the same
checkpoint the algorithm takes 100 whole updates, with the checkpoint's optimizer state and learning rate. Each is made
on a batch of its own of the size that training uses: segments from resets, with frozen statistics. A step is the change
of the policy's parameters. Where a line search was rejected, the step is 0, and its cosine with any other counts as 0.
The KL between two of the policies is averaged over the states of one more batch and over both directions (our choice).
Intervals are 95 % bootstrap intervals over the steps.

With --rewards, it instead measures what such updates do to the true reward: the mean change over updates with Student's
t interval, and how much the true changes scatter from update to update. The policies before and after an update play
complete episodes with the same seeds, and every update has seeds of its own, for the policy before it as well. So the
updates are independent, and what the episodes' noise adds to the variance of their changes can be subtracted. From mean
and standard deviation follows the share of updates that lower the reward, if true changes are normally distributed. A
single step, such as those of landscape.py and of "A Closer Look at Deep Policy Gradients" (CL), Fig. 5 to 7, says
little about it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from measuring import figures, intervals, kept, runs, sampling
from measuring.runs import COUNT, AtLeast, Source
from measuring.sampling import GROUP, Sampler, Task
from scipy import stats

VERSION = 2  # raised whenever the measured numbers change; version 1 shifted the schedules of updates from more pairs

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(runs.LabelledOptions):
    checkpoints: Annotated[tuple[int, ...] | Literal["all"], AtLeast(0)] = ()
    """iterations, or all that have a step; default: 0 150 300 450, or else the first, the last and two between them"""
    repeats: Annotated[int, AtLeast(2, "or there is nothing to compare", COUNT)] = 100
    """steps from each checkpoint"""
    rewards: Annotated[int, AtLeast(0, most=COUNT)] = 0
    """measure, instead, what this many updates from each checkpoint do to the true reward; 20 tell much"""
    step_pairs: Annotated[tuple[int, ...], AtLeast(1)] = ()
    """with --rewards: pairs that an update is computed from, in whole segments; default: as many as in training"""
    reward_pairs: Annotated[int, AtLeast(1)] = 60_000
    """with --rewards: approximate number of pairs of the episodes before and after an update, together"""

    def __post_init__(self) -> None:  # here, so that benchmark.sh refuses them before it trains
        if self.rewards == 1:
            runs.stop("--rewards 1: must be 2 or more, or there is no interval")
        if self.step_pairs and not self.rewards:
            runs.stop("--step-pairs: needs --rewards, since other steps are from as many pairs as in training")


# Update steps --------------------------------------------------------------------------------------------------------


def take_update(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> tuple[np.ndarray, float]:
    """Returns the policy parameters [P] after one whole update on a fresh batch, and by how much the surrogate rose on
    that batch."""
    script, args, state = sampling.fresh_state(source, seed, num_envs, num_steps)
    experience = sampling.roll_out(script, args, state)
    # More environments would shift the schedules of the update, which count in batches of the size that training uses.
    args = sampling.read_checkpoint(source)[1]
    batch = script.estimate_advantages(args, state, experience)
    before = sampling.objective(script, args, state.policy, batch).item()
    script.update(args, state, batch)
    promised = sampling.objective(script, args, state.policy, batch).item() - before
    return sampling.flat_parameters(state.policy).numpy(), promised


def training_step(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> np.ndarray:
    """Returns the policy parameters [P] after one whole update on a fresh batch of the size that training uses."""
    return take_update(source, seed, num_envs, num_steps)[0]


def draw(args: Args, source: Source, sample: Sampler, _: Any) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns the observations of a fresh batch, and the policy's parameters after each step from the checkpoint."""
    settings = runs.read_config(source.run)["args"]
    size, seed = (settings["num_envs"], settings["num_steps"]), (args.seed, source.iteration)
    tasks = [Task(size[0] * size[1], partial(sampling.collect_group, source, (*seed, 1), *size))]
    for i in range(args.repeats):
        tasks.append(Task(size[0] * size[1], partial(training_step, source, (*seed, 2, i), *size)))
    experience, *after = sample(tasks)
    return experience["obs"], after


def measure_steps(source: Source, _: Sampler, __: Any, drawn: Callable) -> Iterator[dict[str, Any]]:
    """Yields pairwise cosines of the steps from a checkpoint, and pairwise KL of the policies to which they lead."""
    (obs, after), policy = drawn(), sampling.checkpoint_state(source)[2].policy
    steps = (np.stack(after) - sampling.flat_parameters(policy).numpy()).astype(np.float64)
    pairs = dict(cosine=intervals.cosines(steps, steps), kl=kls(policy, after, obs))
    numbers = {name: intervals.pairwise(x) for name, x in pairs.items()}
    for of_pairs in numbers.values():
        of_pairs["all"] = intervals.raw(of_pairs["all"])
    yield numbers | dict(norms=np.linalg.norm(steps, axis=1).tolist())


@torch.no_grad()
def kls(policy: torch.nn.Module, parameters: list[np.ndarray], obs: np.ndarray) -> np.ndarray:
    """Returns the mean KL [n, n] on the states between the policies with these parameters, which are n vectors [P].
    Both directions are averaged."""
    at = [sampling.with_parameters(policy, torch.as_tensor(x))(torch.from_numpy(obs)) for x in parameters]
    means, stds = (np.stack([getattr(x, name).double().numpy() for x in at]) for name in ("mean", "stddev"))
    means -= means.mean(0)  # the KL stays the same, but the differences below lose fewer digits
    # KL(i || j) is a sum of products of a term of i and a term of j, so one matrix product replaces n^2 comparisons.
    of_i = np.stack([stds**2 + means**2, means, np.ones_like(means)], -1).reshape(len(at), -1)
    of_j = np.stack([1 / stds**2, -2 * means / stds**2, means**2 / stds**2], -1).reshape(len(at), -1)
    logs = np.log(stds).sum((1, 2))
    found = (of_i @ of_j.T - means[0].size) / 2 + logs - logs[:, None]
    return (found + found.T) / (2 * len(obs))


# Rewards -------------------------------------------------------------------------------------------------------------


def draw_updates(args: Args, source: Source, sample: Sampler, missing: list[dict[str, Any]]) -> tuple[float, list]:
    """Returns the mean length of the first episodes of the checkpoint's policy, and the updates of each cell."""
    num_steps, seed = runs.read_config(source.run)["args"]["num_steps"], (args.seed, source.iteration)
    found, first = [], sampling.play(source, (*seed, 3), 0, GROUP, 1, sample)
    for cell in missing:
        size = max(1, round(cell["step_pairs"] / num_steps)), num_steps
        calls = [partial(take_update, source, (*seed, 4, size[0], i), *size) for i in range(cell["updates"])]
        found.append(list(sample([Task(size[0] * size[1], call) for call in calls])))
    return np.mean([length for _, length in first]).item(), found


def measure_updates(
    args: Args, source: Source, sample: Sampler, missing: list[dict[str, Any]], drawn: Callable
) -> Iterator[dict[str, Any]]:
    """Yields for each number of step pairs the changes of the return by the updates."""
    (length, updates), seed = drawn(), (args.seed, source.iteration)
    episodes = max(2, round(args.reward_pairs / 2 / length))
    before = sampling.flat_parameters(sampling.checkpoint_state(source)[2].policy).numpy()
    begun = []  # all episodes begin before any is waited for, so that no worker waits
    for cell, taken in zip(missing, updates):
        for i, (after, promised) in enumerate(taken):
            seeds = (*seed, 5, cell["step_pairs"], i)
            play = partial(sampling.play, source, seeds, 0, episodes, round(length), sample)
            begun.append((promised, play(before), play(after)))
    for cell in missing:
        changes = []
        for promised, *played in begun[: cell["updates"]]:
            returns = [np.array(list(of_policy))[:, 0] for of_policy in played]
            changes.append(intervals.paired_change(*returns) | dict(promised=promised))
        del begun[: cell["updates"]]
        yield dict(changes=changes, episodes=episodes) | over_updates(changes, episodes)


def over_updates(changes: list[dict[str, Any]], episodes: int) -> dict[str, Any]:
    """Returns over the updates, of whose changes each is a mean over episodes, the mean change, the standard deviation
    of the true changes, and the share of updates that lower the reward."""
    means = np.array([x["mean"] for x in changes])
    # A 95 % t interval of n episodes is t_(n-1) standard errors wide to either side.
    errors = np.array([np.diff(x["interval"]).item() for x in changes]) / (2 * stats.t.ppf(0.975, episodes - 1))
    noise = (errors**2).mean()

    def spread(x: np.ndarray) -> np.ndarray:
        return np.maximum(x.var(-1, ddof=1) - noise, 0) ** 0.5

    def harmful(x: np.ndarray) -> np.ndarray:
        return stats.norm.cdf(-x.mean(-1) / np.maximum(spread(x), 1e-12))

    shares = {name: intervals.bootstrap(f, means) for name, f in dict(spread=spread, harmful=harmful).items()}
    return dict(change=intervals.mean_of(means), noise=noise.item() ** 0.5) | shares


def describe(cell: dict[str, Any]) -> str:
    """Says in one line what the updates of a cell do to the reward."""
    harmful, spread = intervals.text(cell["harmful"], "{:.0%}".format), intervals.text(cell["spread"])
    text = f"{cell['updates']} updates from {cell['step_pairs']:,} pairs change the reward by "
    text += f"{intervals.text(cell['change'], '{:+,.3g}'.format)} on average"
    if not cell["spread"]["mean"]:  # the share would be 0 or 1, whatever the mean's interval says
        return f"{text}; the noise of the episodes explains all their scatter, so how many lower it cannot be told"
    return f"{text}, and by a standard deviation of {spread} from one to another; {harmful} of them lower it"


# Figures -------------------------------------------------------------------------------------------------------------


def draw_rewards(styles: list[dict[str, Any]], cells_of_runs: list[list[dict[str, Any]]], path: Path) -> None:
    """Draws a dot for each update, sorted by what it did to the reward, with its interval: a row for each number of
    step pairs, a column for each iteration."""
    places = [(x["step_pairs"], x["iteration"]) for cells in cells_of_runs for x in cells]
    rows, columns = (list(dict.fromkeys(sorted(x))) for x in zip(*places))
    size = 1.2 + 2.4 * len(columns), 0.4 + 2.2 * len(rows)
    figure, axes = figures.new_figure(len(rows), len(columns), size, sharex=True)
    for style, cells in zip(styles, cells_of_runs):
        for cell in cells:
            axis = axes[rows.index(cell["step_pairs"]), columns.index(cell["iteration"])]
            draw_dots(axis, cell, style)
    for row, pairs in zip(axes, rows):
        row[0].set_ylabel(f"change of the return by\nan update from {pairs:,} pairs", fontsize=9)
        for axis, iteration in zip(row, columns):
            axis.axhline(0, color="black", linewidth=0.8)
            axis.set_title(f"iteration {iteration}", fontsize=10)
            axis.set_xlabel("updates, sorted (%)", fontsize=9)
    figures.save_figure(figure, path)


def draw_dots(axis: Axes, cell: dict[str, Any], style: dict[str, Any]) -> None:
    points = sorted(cell["changes"], key=lambda x: x["mean"])
    x = 100 * (np.arange(len(points)) + 0.5) / len(points)
    figures.draw_points(axis, x, points, style | dict(linestyle="", markersize=3, elinewidth=0.5))
    axis.axhline(cell["change"]["mean"], color=style["color"], linewidth=0.8, linestyle="--")


def draw_steps(settings: list[figures.Setting], path: Path) -> None:
    """Draws the pairwise cosine and KL of update steps over training (TPG Fig. 13)."""
    figure, axes = figures.new_figure(1, 2, (6.5, 2.8))
    for style, of_runs in settings:
        for axis, name in zip(axes[0], ("cosine", "kl")):
            lines = [([cell["iteration"] for cell in cells], [cell[name] for cell in cells]) for cells in of_runs]
            figures.draw_setting(axis, lines, style)
    axes[0, 0].set(xlabel="iteration", ylabel="cosine between update steps")
    axes[0, 1].set(xlabel="iteration", ylabel="KL between policies (nats)", yscale="log")
    figures.save_figure(figure, path)


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = runs.read_options(Args, argv, __doc__)
    chosen = []
    for sources in runs.open_runs(args.runs, args.script):
        some = () if args.checkpoints == "all" else runs.choose(sources, args.checkpoints)
        chosen.append(runs.with_step(sources, tuple(source.iteration for source in some)))
    styles = figures.run_styles(args.runs, args.labels)
    if args.rewards:
        measure_rewards(args, chosen, styles)
        return
    path = runs.output_folder(args.out, args.runs) / "steps.jsonl"
    cells = iter(kept.measure_missing(args, path, [steps_work(args, source) for source in sum(chosen, [])]))
    settings = figures.by_setting(styles, [[next(cells) for _ in sources] for sources in chosen])
    for style, of_runs in settings:
        for cell in sum(of_runs, []):
            cosine, kl = (intervals.text(cell[name]) for name in ("cosine", "kl"))
            of = f"{style['label']}, {cell['run'].split('__')[-1]}, {figures.title([cell])}"
            print(f"{of}: cosine between steps {cosine}, KL between their policies {kl} nats")
    draw_steps(settings, path)


def measure_rewards(args: Args, chosen: list[list[Source]], styles: list[dict[str, Any]]) -> None:
    path = runs.output_folder(args.out, args.runs) / "updates.jsonl"
    works = [[updates_work(args, source) for source in sources] for sources in chosen]
    cells = iter(kept.measure_missing(args, path, sum(works, [])))
    of_runs = [[next(cells) for work in of_run for _ in work.cells] for of_run in works]
    for style, of_run in zip(styles, of_runs):
        for cell in of_run:
            print(f"{style['label']}, {cell['run'].split('__')[-1]}, {figures.title([cell])}: {describe(cell)}")
    draw_rewards(styles, of_runs, path)


def updates_work(args: Args, source: Source) -> kept.Work:
    """Describes the updates from a checkpoint, and their rewards, to measure_missing."""
    sizes = dict.fromkeys(args.step_pairs or (runs.batch_size(runs.read_config(source.run)),))
    settings = kept.identify(source, args.seed) | dict(reward_pairs=args.reward_pairs, updates=args.rewards)
    cells = [settings | dict(step_pairs=pairs) for pairs in sizes]
    cost = args.rewards * (args.reward_pairs + sum(sizes) // len(sizes))
    return kept.Work(source, cells, cost, partial(draw_updates, args, source), partial(measure_updates, args, source))


def steps_work(args: Args, source: Source) -> kept.Work:
    """Describes the steps from a checkpoint to measure_missing."""
    cost = (1 + args.repeats) * runs.batch_size(runs.read_config(source.run))
    cell = kept.identify(source, args.seed) | dict(step_repeats=args.repeats)
    return kept.Work(source, [cell], cost, partial(draw, args, source), partial(measure_steps, source))


if __name__ == "__main__":
    runs.run_program(main)
