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

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from measuring import intervals, plots, runs, sampling, table
from measuring.runs import Source
from measuring.sampling import GROUP
from scipy import stats

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(runs.LabelledOptions):
    checkpoints: tuple[int, ...] | Literal["all"] = ()
    """iterations, or all that have a step; default: 0 150 300 450, or else the first, the last and two between them"""
    repeats: int = 100
    """steps from each checkpoint"""
    rewards: int = 0
    """measure, instead, what this many updates from each checkpoint do to the true reward; 20 tell much"""
    step_pairs: tuple[int, ...] = ()
    """with --rewards: pairs that an update is computed from, in whole segments; default: as many as in training"""
    reward_pairs: int = 60_000
    """with --rewards: approximate number of pairs of the episodes before and after an update, together"""


# Update steps --------------------------------------------------------------------------------------------------------


def measure_steps(source: Source, seed: int, step_repeats: int) -> dict[str, Any]:
    """Returns pairwise cosines of the steps from a checkpoint, and pairwise KL of the policies to which they lead."""
    settings = runs.read_config(source.run)["args"]
    size, seeds = (settings["num_envs"], settings["num_steps"]), (seed, source.iteration)
    [obs] = table.side_by_side(fresh_obs, [(source, (*seeds, 1), *size)])
    updates = table.side_by_side(take_update, [(source, (*seeds, 2, i), *size) for i in range(step_repeats)])
    after, policy = [parameters for parameters, _ in updates], sampling.checkpoint_state(source)[2].policy
    steps = (np.stack(after) - sampling.flat_parameters(policy).numpy()).astype(np.float64)
    pairs = dict(cosine=intervals.cosines(steps, steps), kl=kls(policy, after, obs))
    numbers = {name: intervals.pairwise(x) for name, x in pairs.items()}
    for of_pairs in numbers.values():
        of_pairs["all"] = intervals.raw(of_pairs["all"])
    return numbers | dict(norms=np.linalg.norm(steps, axis=1).tolist())


def fresh_obs(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> np.ndarray:
    return sampling.collect_group(source, seed, num_envs, num_steps)["obs"]


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


def measure_updates(source: Source, seed: int, reward_pairs: int, updates: int, step_pairs: int) -> dict[str, Any]:
    """Returns the changes of the return by so many updates from step_pairs pairs each."""
    num_steps, seeds = runs.read_config(source.run)["args"]["num_steps"], (seed, source.iteration)
    length = np.mean([length for _, length in sampling.play(source, (*seeds, 3), 0, GROUP)])
    size = max(1, round(step_pairs / num_steps)), num_steps
    taken = table.side_by_side(take_update, [(source, (*seeds, 4, size[0], i), *size) for i in range(updates)])
    before = sampling.flat_parameters(sampling.checkpoint_state(source)[2].policy).numpy()
    policies = [(source, (*seeds, 5, step_pairs, i), x) for i, (after, _) in enumerate(taken) for x in (before, after)]
    episodes = max(2, round(reward_pairs / 2 / length))
    returns = [np.array(x)[:, 0] for x in sampling.play_policies(policies, 0, episodes)]
    changes = [intervals.paired_change(*x) for x in zip(returns[::2], returns[1::2])]
    changes = [x | dict(promised=promised) for x, (_, promised) in zip(changes, taken)]
    return dict(changes=changes, episodes=episodes) | over_updates(changes, episodes)


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


def describe_steps(row: dict[str, Any]) -> str:
    cosine, kl = (intervals.text(row[name]) for name in ("cosine", "kl"))
    return f"cosine between steps {cosine}, KL between their policies {kl} nats"


def describe_updates(row: dict[str, Any]) -> str:
    """Says in one line what the updates of a row do to the reward."""
    harmful, spread = intervals.text(row["harmful"], "{:.0%}".format), intervals.text(row["spread"])
    text = f"{row['updates']} updates from {row['step_pairs']:,} pairs change the reward by "
    text += f"{intervals.text(row['change'], '{:+,.3g}'.format)} on average"
    if not row["spread"]["mean"]:  # the share would be 0 or 1, whatever the mean's interval says
        return f"{text}; the noise of the episodes explains all their scatter, so how many lower it cannot be told"
    return f"{text}, and by a standard deviation of {spread} from one to another; {harmful} of them lower it"


# Figures -------------------------------------------------------------------------------------------------------------


def draw_rewards(styles: list[dict[str, Any]], measured_of_runs: list[list[dict[str, Any]]], path: Path) -> None:
    """Draws a dot for each update, sorted by what it did to the reward, with its interval: panels below one another for
    the numbers of step pairs, and beside one another for the iterations."""
    places = [(x["step_pairs"], x["iteration"]) for measured in measured_of_runs for x in measured]
    sizes, iterations = (list(dict.fromkeys(sorted(x))) for x in zip(*places))
    of_figure = 1.2 + 2.4 * len(iterations), 0.4 + 2.2 * len(sizes)
    figure, axes = plots.new_figure(len(sizes), len(iterations), of_figure, sharex=True)
    for style, measured in zip(styles, measured_of_runs):
        for row in measured:
            draw_dots(axes[sizes.index(row["step_pairs"]), iterations.index(row["iteration"])], row, style)
    for panels, pairs in zip(axes, sizes):
        panels[0].set_ylabel(f"change of the return by\nan update from {pairs:,} pairs", fontsize=9)
        for axis, iteration in zip(panels, iterations):
            axis.axhline(0, color="black", linewidth=0.8)
            axis.set_title(f"iteration {iteration}", fontsize=10)
            axis.set_xlabel("updates, sorted (%)", fontsize=9)
    plots.save_figure(figure, path)


def draw_dots(axis: Axes, row: dict[str, Any], style: dict[str, Any]) -> None:
    points = sorted(row["changes"], key=lambda x: x["mean"])
    x = 100 * (np.arange(len(points)) + 0.5) / len(points)
    plots.draw_points(axis, x, points, style | dict(linestyle="", markersize=3, elinewidth=0.5))
    axis.axhline(row["change"]["mean"], color=style["color"], linewidth=0.8, linestyle="--")


def draw_steps(settings: list[plots.Setting], path: Path) -> None:
    """Draws the pairwise cosine and KL of update steps over training (TPG Fig. 13)."""
    figure, axes = plots.new_figure(1, 2, (6.5, 2.8))
    for style, of_runs in settings:
        for axis, name in zip(axes[0], ("cosine", "kl")):
            lines = [([row["iteration"] for row in measured], [row[name] for row in measured]) for measured in of_runs]
            plots.draw_setting(axis, lines, style)
    axes[0, 0].set(xlabel="iteration", ylabel="cosine between update steps")
    axes[0, 1].set(xlabel="iteration", ylabel="KL between policies (nats)", yscale="log")
    plots.save_figure(figure, path)


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = runs.read_options(Args, argv, __doc__, repeats=2, rewards=0)
    if args.rewards == 1:
        runs.stop("--rewards 1: must be 2 or more, or there is no interval")
    if args.step_pairs and not args.rewards:
        runs.stop("--step-pairs: needs --rewards, since other steps are from as many pairs as in training")
    chosen = []
    for sources in runs.open_runs(args.runs, args.script):
        some = () if args.checkpoints == "all" else runs.choose(sources, args.checkpoints)
        chosen.append(runs.with_step(sources, tuple(source.iteration for source in some)))
    styles, say = plots.run_styles(args.runs, args.labels), describe_updates if args.rewards else describe_steps
    work = [[(source, sizes) for source in sources for sizes in sizes_of(args, source)] for sources in chosen]
    name, measure = ("updates", measure_updates) if args.rewards else ("steps", measure_steps)
    rows = iter(table.fill(args, name, measure, sum(work, [])))
    measured = [[next(rows) for _ in of_run] for of_run in work]
    for style, of_run in zip(styles, measured):
        for row in of_run:
            print(f"{style['label']}, {row['run'].split('__')[-1]}, {plots.title([row])}: {say(row)}")
    if args.rewards:
        draw_rewards(styles, measured, runs.figure_path(args, name))
    else:
        draw_steps(plots.by_setting(styles, measured), runs.figure_path(args, name))


def sizes_of(args: Args, source: Source) -> list[dict[str, int]]:
    """Returns how much is measured for each of a checkpoint's rows."""
    if not args.rewards:
        return [dict(step_repeats=args.repeats)]
    sizes = dict.fromkeys(args.step_pairs or (runs.batch_size(runs.read_config(source.run)),))
    return [dict(reward_pairs=args.reward_pairs, updates=args.rewards, step_pairs=pairs) for pairs in sizes]


if __name__ == "__main__":
    runs.run_program(main)
