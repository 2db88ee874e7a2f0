"""Do update steps repeat, and do they raise the reward? This script measures the cosine between the whole steps that an
algorithm takes from one checkpoint on independent batches, and how far apart the policies are to which they lead.

    python diagnostics/steps.py runs/Hopper-v5__ppo__seed1
    python diagnostics/steps.py runs/Hopper-v5__ppo__seed1 --repeats 10  # a first look
    python diagnostics/steps.py runs/Hopper-v5__{ppo,trpo}__seed[12] --checkpoints all --out results
    python diagnostics/steps.py runs/Hopper-v5__ppo__seed1 --rewards 20 --step-pairs 2048 50_000

It draws Fig. 13 of "Are Deep Policy Gradient Algorithms Truly Policy Gradient Algorithms?" (TPG; Ilyas et al. 2018,
https://arxiv.org/abs/1811.02553v1). From the same checkpoint the algorithm takes 100 whole updates, with the
checkpoint's optimizer state and learning rate. Each is made on a batch of its own of the size that training uses:
segments from resets, with frozen statistics. A step is the change of the policy's parameters. Where a line search was
rejected, the step is 0, and its cosine with any other counts as 0. The KL between two of the policies is averaged over
the states of one more batch and over both directions (our choice). Intervals are bootstrap intervals over the steps.

With --rewards it measures, instead, what such updates do to the true reward: the mean change over updates with
Student's t interval, and how much the true changes scatter from update to update. The policies before and after an
update play complete episodes with the same seeds, and every update has seeds of its own, for the policy before it as
well. So the updates are independent, and what the episodes' noise adds to the variance of their changes can be
subtracted. If true changes are normally distributed, the share of updates that lower the reward follows from their mean
and their standard deviation. A single step, such as those of landscape.py, says little about it.

To use this script elsewhere, copy gradient.py with it and with lab.py.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import gradient
import lab
import numpy as np
import torch
import tyro
from matplotlib.figure import Figure
from scipy import stats
from torch import nn


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]  # run folders, all of one environment
    checkpoints: tuple[int, ...] | Literal["all"] = ()  # default: 0 150 300 450, or else four from first to last
    repeats: int = 100  # steps from each checkpoint
    rewards: int = 0  # measure, instead, what so many updates from each checkpoint do to the reward; 20 tell much
    step_pairs: tuple[int, ...] = ()  # with --rewards: pairs of an update, in whole segments; default: as in training
    reward_pairs: int = 60_000  # with --rewards: about so many pairs for the episodes before and after an update
    labels: tuple[str, ...] = ()  # one for each run; runs with the same label are averaged; default: the folder's name
    script: Path | None = None  # the algorithm's script; default: the one in algos/ that the run names
    out: Path | None = None  # folder of figures and rows; default: figures/ inside the first run
    format: Literal["png", "pdf", "svg"] = "png"  # format of the figures
    jobs: int = lab.CORES  # worker processes; the numbers do not depend on it
    seed: int = 0  # of everything that is sampled here
    overwrite: bool = False  # measure again what an earlier call has measured


def main(argv: list[str] | None = None) -> None:
    args = lab.read_options(Args, argv, __doc__, repeats=2, rewards=0)
    if args.rewards == 1:
        lab.refuse("--rewards 1: must be 2 or more, or there is no interval")
    if args.step_pairs and not args.rewards:
        lab.refuse("--step-pairs: needs --rewards, since other steps are from as many pairs as in training")
    work = []
    for of_run in lab.open_runs(args):
        chosen = of_run if args.checkpoints == "all" else lab.choose(of_run, args.checkpoints)
        work.append([(checkpoint, asked) for checkpoint in chosen for asked in sizes(args, checkpoint)])
    if args.rewards:
        name, measure, describe, draw = "updates", measure_updates, describe_updates, draw_updates
    else:
        name, measure, describe, draw = "steps", measure_steps, describe_steps, draw_steps
    lines = lab.lines_of(args, work, lab.fill(args, name, measure, sum(work, [])))
    for style, rows in lines:
        for row in rows:
            print(f"{style['label']}, iteration {row['iteration']}: {describe(row)}")
    draw(lines, args.out / f"{name}.{args.format}")


def sizes(args: Args, checkpoint: lab.Checkpoint) -> list[dict[str, int]]:
    """Returns how much is measured for each of a checkpoint's rows."""
    if not args.rewards:
        return [dict(seed=args.seed, step_repeats=args.repeats)]
    asked = dict(seed=args.seed, reward_pairs=args.reward_pairs, updates=args.rewards)
    num_envs, num_steps = lab.batch_shape(checkpoint.run)
    minibatches = lab.read_config(checkpoint.run)["args"].get("num_minibatches", 1)
    for pairs in args.step_pairs:
        if segments_of(pairs, num_steps) * num_steps < 2 * minibatches:
            lab.refuse(f"--step-pairs {pairs}: less than two for each of the {minibatches} minibatches")
    return [asked | dict(step_pairs=pairs) for pairs in dict.fromkeys(args.step_pairs or (num_envs * num_steps,))]


# What is measured at a checkpoint ------------------------------------------------------------------------------------


def measure_steps(checkpoint: lab.Checkpoint, parallel_map: Callable, seed: int, step_repeats: int) -> dict[str, Any]:
    """Returns, of n steps s_i = theta'_i - theta [P] from a checkpoint, their norms, the cosines (TPG Fig. 13)

        s_i . s_j / (|s_i| |s_j|)  for i < j,

    and the KL between the policies to which they lead."""
    seeds, shape = (seed, checkpoint.iteration), lab.batch_shape(checkpoint.run)
    obs = lab.only_steps(checkpoint, (*seeds, 1), *shape)["obs"]
    calls = [(checkpoint, (*seeds, 2, i), *shape) for i in range(step_repeats)]
    after = [parameters for parameters, _ in parallel_map(take_update, *zip(*calls))]
    policy = lab.frozen_state(checkpoint)[2].policy
    steps = (np.stack(after) - lab.flat_parameters(policy).numpy()).astype(np.float64)
    cosines = gradient.above_diagonal(gradient.cosines(steps, steps))
    kl, norms = gradient.above_diagonal(kls(policy, after, obs)), lab.rounded(np.linalg.norm(steps, axis=1))
    return dict(cosine=cosines, kl=kl, norms=norms)


def take_update(checkpoint: lab.Checkpoint, seed: tuple[int, ...], num_envs: int, num_steps: int) -> tuple:
    """Returns the policy's parameters [P] after one whole update on a fresh batch, and by how much the surrogate rose
    on that batch."""
    script, _, state, steps = lab.fresh_rollout(checkpoint, seed, num_envs, num_steps)
    # The arguments are training's own, because the schedules of an update count in batches of training's size.
    args = lab.frozen_state(checkpoint)[1]
    batch = script.estimate_advantages(args, state, steps)
    surrogate = lambda: -script.policy_loss(args, state.policy(batch["obs"]), batch).item()
    before = surrogate()
    script.update(args, state, batch)
    return lab.flat_parameters(state.policy).numpy(), surrogate() - before


@torch.no_grad()
def kls(policy: nn.Module, parameters: list[np.ndarray], obs: np.ndarray) -> np.ndarray:
    """Returns the mean KL [n, n] on the states between the policies with these n vectors of parameters [P], over both
    directions. With means m and standard deviations s [B, action],

        KL(i || j) = sum ((s_i^2 + m_i^2) / s_j^2 - 2 m_i m_j / s_j^2 + m_j^2 / s_j^2 - 1) / 2 + ln s_j - ln s_i

    is a sum of products of a term of i and a term of j, so that one matrix product replaces n^2 comparisons."""
    pis = [lab.with_parameters(policy, torch.as_tensor(x))(torch.from_numpy(obs)) for x in parameters]
    means, stds = (np.stack([getattr(pi, name).double().numpy() for pi in pis]) for name in ("mean", "stddev"))
    means -= means.mean(0)  # The KL stays the same, but the differences below lose fewer digits.
    of_i = np.stack([stds**2 + means**2, means, np.ones_like(means)], -1).reshape(len(pis), -1)
    of_j = np.stack([1 / stds**2, -2 * means / stds**2, means**2 / stds**2], -1).reshape(len(pis), -1)
    logs = np.log(stds).sum((1, 2))
    one_way = (of_i @ of_j.T - means[0].size) / 2 + logs - logs[:, None]
    return (one_way + one_way.T) / (2 * len(obs))


def segments_of(pairs: int, num_steps: int) -> int:
    """Returns how many whole segments come nearest to so many pairs."""
    return max(1, round(pairs / num_steps))


def measure_updates(
    checkpoint: lab.Checkpoint, parallel_map: Callable, seed: int, reward_pairs: int, updates: int, step_pairs: int
) -> dict[str, Any]:
    """Returns, for so many updates from step_pairs pairs each, means and standard deviations of the returns before and
    after it and of their differences seed by seed, and by how much the surrogate rose (promised)."""
    (_, num_steps), seeds = lab.batch_shape(checkpoint.run), (seed, checkpoint.iteration)
    length = np.mean([length for _, length in lab.play(checkpoint, (*seeds, 3), 0, lab.GROUP)])
    shape = segments_of(step_pairs, num_steps), num_steps
    calls = [(checkpoint, (*seeds, 4, shape[0], i), *shape) for i in range(updates)]
    taken = list(parallel_map(take_update, *zip(*calls)))
    before = lab.flat_parameters(lab.frozen_state(checkpoint)[2].policy).numpy()
    episodes, calls = max(2, round(reward_pairs / 2 / length)), []
    for i, (after, _) in enumerate(taken):
        calls += [(checkpoint, (*seeds, 5, step_pairs, i), 0, episodes, x) for x in (before, after)]
    returns = [np.array(played)[:, 0] for played in parallel_map(lab.play, *zip(*calls))]
    changes = []
    for x, y, (_, promised) in zip(returns[::2], returns[1::2], taken):
        of_update = dict(before=x, after=y, difference=y - x)
        numbers = {name: dict(mean=z.mean().item(), std=z.std(ddof=1).item()) for name, z in of_update.items()}
        changes.append(numbers | dict(promised=promised))
    return dict(changes=changes, episodes=episodes)


# What follows from the rows, and the figures -------------------------------------------------------------------------


def change_of(update: dict[str, Any], episodes: int) -> dict[str, Any]:
    """Returns an update's mean change of the return and its 95 % interval, mean -+ t std / sqrt(episodes)."""
    mean, error = update["difference"]["mean"], update["difference"]["std"] / episodes**0.5
    half = (stats.t.ppf(0.975, episodes - 1) * error).item()
    return dict(mean=mean, interval=[mean - half, mean + half])


def over_updates(row: dict[str, Any]) -> dict[str, Any]:
    """Returns, over a row's updates, whose changes are means over n episodes each, the mean change, the standard
    deviation of the true changes, and the share of updates that lower the reward,

        spread^2 = var(changes) - mean(std^2 / n),    harmful = Phi(-mean(changes) / spread)."""
    changes = np.array([update["difference"]["mean"] for update in row["changes"]])
    noise = np.mean([update["difference"]["std"] ** 2 / row["episodes"] for update in row["changes"]])

    def spread(x: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.maximum(x.var(axis, ddof=1) - noise, 0) ** 0.5

    def harmful(x: np.ndarray, axis: int = -1) -> np.ndarray:
        return stats.norm.cdf(-x.mean(axis) / np.maximum(spread(x, axis), 1e-12))

    numbers = dict(change=lab.mean_of(changes), noise=noise.item() ** 0.5)
    return numbers | dict(spread=bootstrap(spread, changes), harmful=bootstrap(harmful, changes))


def bootstrap(statistic: Callable, x: np.ndarray) -> dict[str, Any]:
    """Returns a statistic of x [n] for whose interval there is no formula, and its 95 % BCa interval. There is none
    where it degenerates because all draws are alike."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns of an interval that degenerates.
        ends = stats.bootstrap([x], statistic, n_resamples=10_000, batch=1000, rng=0).confidence_interval
    interval = [float(ends.low), float(ends.high)] if np.isfinite(ends).all() else None
    return dict(mean=float(statistic(x)), interval=interval)


def describe_steps(row: dict[str, Any]) -> str:
    cosine, kl = lab.in_words(gradient.pairwise(row["cosine"])), lab.in_words(gradient.pairwise(row["kl"]))
    return f"cosine between steps {cosine}, KL between their policies {kl} nats"


def describe_updates(row: dict[str, Any]) -> str:
    """Says in one line what the updates of a row do to the reward."""
    numbers = over_updates(row)
    text = f"{row['updates']} updates from {row['step_pairs']:,} pairs change the reward by "
    text += f"{lab.in_words(numbers['change'], '{:+,.3g}')} on average"
    if not numbers["spread"]["mean"]:  # The share would be 0 or 1, whatever the mean's interval says.
        return f"{text}; the noise of the episodes explains all their scatter, so how many lower it cannot be told"
    text += f", and by a standard deviation of {lab.in_words(numbers['spread'])} from one to another; "
    return text + f"{lab.in_words(numbers['harmful'], '{:.0%}')} of them lower it"


def draw_steps(lines: list[lab.Line], path: Path) -> None:
    """Draws the pairwise cosine and KL of update steps over training (TPG Fig. 13)."""
    figure = Figure((7.5, 3), layout="constrained")
    axes = figure.subplots(1, 2)
    apart = 0.009 * max(row["iteration"] for _, rows in lines for row in rows)
    for axis, name in zip(axes, ("cosine", "kl")):
        lab.draw_runs(axis, lines, "iteration", lambda row, name=name: gradient.pairwise(row[name]), apart)
    axes[0].set(xlabel="iteration", ylabel="cosine between update steps")
    axes[1].set(xlabel="iteration", ylabel="KL between policies (nats)", yscale="log")
    axes[0].plot([], [], "|", color="0.4", markersize=10, label="95 % interval over steps")
    lab.save_figure(figure, lines, path)


def draw_updates(lines: list[lab.Line], path: Path) -> None:
    """Draws a dot for each update, sorted by what it did to the reward, with its interval: panels below one another for
    the numbers of step pairs, and beside one another for the iterations. Runs with one label share their dots."""
    cells = lab.gather(lines, "step_pairs", "iteration")
    sizes = sorted({rows[0]["step_pairs"] for _, rows in cells})
    iterations = sorted({rows[0]["iteration"] for _, rows in cells})
    figure = Figure((max(5, 1.4 + 2.4 * len(iterations)), 0.4 + 2.2 * len(sizes)), layout="constrained")
    axes = figure.subplots(len(sizes), len(iterations), squeeze=False, sharex=True)
    for style, rows in cells:
        axis = axes[sizes.index(rows[0]["step_pairs"]), iterations.index(rows[0]["iteration"])]
        points = [change_of(update, row["episodes"]) for row in rows for update in row["changes"]]
        points.sort(key=lambda point: point["mean"])
        at = 100 * (np.arange(len(points)) + 0.5) / len(points)
        means = [point["mean"] for point in points]
        axis.plot(at, means, **style | dict(linestyle="", markersize=3))
        axis.vlines(at, *np.transpose([point["interval"] for point in points]), color=style["color"], linewidth=0.5)
        axis.axhline(np.mean(means), color=style["color"], linewidth=0.8, linestyle="--")
    for panels, pairs in zip(axes, sizes):
        panels[0].set_ylabel(f"change of the return by\nan update from {pairs:,} pairs", fontsize=9)
    for axis in axes.flat:
        axis.axhline(0, color="black", linewidth=0.8)
    for top, bottom, iteration in zip(axes[0], axes[-1], iterations):
        top.set_title(f"iteration {iteration}", fontsize=10)
        bottom.set_xlabel("updates, sorted (%)", fontsize=9)
    axes[0, 0].plot([], [], "|", color="0.4", markersize=10, label="95 % interval over episodes")
    axes[0, 0].plot([], [], "--", color="0.4", linewidth=0.8, label="mean over updates")
    lab.save_figure(figure, lines, path)


if __name__ == "__main__":
    lab.run_program(main)
