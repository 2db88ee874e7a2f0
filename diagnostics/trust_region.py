"""How far does a step go? This script measures probability ratios and KL divergences between the policies before and
after the steps that training took, and draws them beside its rewards.

    python diagnostics/trust_region.py runs/Hopper-v5__ppo__seed1
    python diagnostics/trust_region.py runs/Hopper-v5__ppo__seed1 --heldout-pairs 4096 --checkpoints 0 150 300  # a look
    python diagnostics/trust_region.py runs/Hopper-v5__*__seed[12] --out results

It draws Fig. 2 to 4 of "Implementation Matters in Deep Policy Gradients" (IM; Engstrom et al. 2020,
https://arxiv.org/abs/2005.12729) and Fig. 9, 28 and 29 of "Are Deep Policy Gradient Algorithms Truly Policy Gradient
Algorithms?" (TPG; Ilyas et al. 2018, https://arxiv.org/abs/1811.02553v1). From every checkpoint that has a step,
training's next iteration is repeated, with the same batch and the same step. The step is measured on that batch and on
held-out segments, which begin with resets and are collected by the checkpoint's policy with its frozen statistics. A
maximum grows with the sample, so the held-out largest ratio and largest KL are taken in parts of the training batch's
size and averaged. (A smaller remainder is left out; fewer pairs than one batch make one part.) The held-out reward is
that of complete episodes, of about as many pairs again, each played to its end from a seed of its own: taking only
episodes that end within a segment would favour short ones. Intervals are Student's t, over episodes for the reward and
over the parts for what is held out.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import lab
import numpy as np
import torch
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]  # run folders, all of one environment
    checkpoints: tuple[int, ...] = ()  # iterations; default: every checkpoint that has a step
    heldout_pairs: int = 20_480  # fresh state-action pairs at each checkpoint, and about as many again for the reward
    labels: tuple[str, ...] = ()  # one for each run; runs with the same label are averaged; default: the folder's name
    script: Path | None = None  # the algorithm's script; default: the one in algos/ that the run names
    out: Path | None = None  # folder of figures and rows; default: figures/ inside the first run
    format: Literal["png", "pdf", "svg"] = "png"  # format of the figures
    jobs: int = lab.CORES  # worker processes; the numbers do not depend on it
    seed: int = 0  # of everything that is sampled here
    overwrite: bool = False  # measure again what an earlier call has measured


def main(argv: list[str] | None = None) -> None:
    args = lab.read_options(Args, argv, __doc__)
    asked = dict(seed=args.seed, heldout_pairs=args.heldout_pairs)
    work = [[(x, asked) for x in lab.choose(of_run, args.checkpoints, of_run)] for of_run in lab.open_runs(args)]
    lines = lab.lines_of(args, work, lab.fill(args, "trust_region", measure, sum(work, [])))
    draw(lines, REWARD_AND_STEP, args.out / f"trust_region.{args.format}")
    draw(lines, CHURN, args.out / f"trust_region_churn.{args.format}")


# What is measured at a checkpoint ------------------------------------------------------------------------------------


def measure(checkpoint: lab.Checkpoint, parallel_map: Callable, seed: int, heldout_pairs: int) -> dict[str, Any]:
    """Returns how far training's step from a checkpoint went, on its own batch and on fresh segments, with the returns
    of the batch's episodes and of complete ones, and the limits of the step."""
    seeds = seed, checkpoint.iteration
    heldout = lab.fresh_segments(checkpoint, parallel_map, (*seeds, 0), heldout_pairs)
    played = play_pairs(checkpoint, (*seeds, 1), heldout_pairs)
    script, args, state = lab.frozen_state(checkpoint)
    before, after, _, episodes, batch = lab.next_iteration(checkpoint)
    heldout_batch, row = script.estimate_advantages(args, state, heldout), {}
    for where, pairs, ended in (("train", batch, episodes), ("heldout", heldout_batch, played)):
        row[where] = dict(returns=lab.rounded([total for total, _ in ended]))
        row[where] |= step_size(after.policy, getattr(after, "value", None), pairs, len(batch["obs"]))
    if "clip_range" in batch:  # what is in force now, in float32: agents of Stable-Baselines3 may have a schedule
        row["max_ratio_allowed"] = round(1 + batch["clip_range"][0].item(), 6)
    elif hasattr(args, "clip_eps"):
        row["max_ratio_allowed"] = 1 + args.clip_eps
    if hasattr(args, "max_kl"):  # It may move linearly to another bound over training.
        last = getattr(args, "max_kl_final", None) or args.max_kl
        batch_size = math.prod(lab.batch_shape(checkpoint.run))
        done = before.global_step / (args.total_timesteps // batch_size * batch_size)
        row["mean_kl_allowed"] = args.max_kl + done * (last - args.max_kl)
    return row


def play_pairs(checkpoint: lab.Checkpoint, seed: tuple[int, ...], pairs: int) -> list[tuple[float, int]]:
    """Plays complete episodes of a checkpoint's policy until they have about this many pairs, and returns the return
    and length of each. The first eight are always played, and their length decides how many there are."""
    episodes = lab.play(checkpoint, seed, 0, lab.GROUP)
    length = np.mean([length for _, length in episodes])
    return episodes + lab.play(checkpoint, seed, lab.GROUP, round(pairs / length))


@torch.no_grad()
def step_size(policy: Callable, value: Callable | None, batch: dict[str, Tensor], part: int) -> dict[str, Any]:
    """Returns, for each part of `part` pairs, the largest ratio and the mean and largest KL (IM Fig. 2; TPG Fig. 28,
    29) of the policy against the one that collected the batch,

        ratio = pi(a|s) / pi_old(a|s),    KL(pi_old(.|s) || pi(.|s)) in nats,

    and the churn (Tang & Berseth 2024): how far the mean action and V have moved on these states, in standard
    deviations of the actions and of V over the batch."""
    old, new = Independent(Normal(batch["old_means"], batch["old_stds"]), 1), policy(batch["obs"])
    ratios = torch.exp(new.log_prob(batch["actions"]) - batch["old_log_probs"])
    kls = kl_divergence(old, new)
    moved = (new.mean - batch["old_means"]) / batch["old_stds"]
    statistics = dict(max_ratio=(ratios, Tensor.max), mean_kl=(kls, Tensor.mean), max_kl=(kls, Tensor.max))
    statistics["policy_churn"] = (moved**2).mean(-1) ** 0.5, Tensor.mean
    if value:
        change = (value(batch["obs"]) - batch["old_values"]).abs() / batch["old_values"].std().clamp(min=1e-8)
        statistics["value_churn"] = change, Tensor.mean
    parts = max(1, len(kls) // part)
    numbers = dict(pairs=len(kls), parts=parts)
    for name, (of_pairs, statistic) in statistics.items():
        numbers[name] = lab.rounded([float(statistic(x)) for x in of_pairs[: parts * part].split(part)])
    return numbers


# What follows from the rows, and the figures -------------------------------------------------------------------------

# How each quantity is called, and the name of its numbers in a row.
REWARD_AND_STEP = {"mean episode return": "returns", "mean KL (nats)": "mean_kl", "largest KL (nats)": "max_kl"}
REWARD_AND_STEP |= {"largest ratio": "max_ratio"}
CHURN = {"change of the mean\naction (stds)": "policy_churn", "change of V (stds)": "value_churn"}


def draw(lines: list[lab.Line], quantities: dict[str, str], path: Path) -> None:
    """Draws a row of panels for each quantity over training, for the training batch on the left and held out on the
    right (IM Fig. 2 to 4). What is allowed is dotted. Labels stand a little beside one another, so that their bars can
    be told apart."""
    figure = Figure((8, 2 * len(quantities)), layout="constrained")
    axes = figure.subplots(len(quantities), 2, squeeze=False, sharex=True, sharey="row")
    apart = 0.009 * max(row["iteration"] for _, rows in lines for row in rows)
    for panels, (text, name) in zip(axes, quantities.items()):
        heights = []
        for axis, where in zip(panels, ("train", "heldout")):
            # A batch may have no finished episode.
            known = [(style, [row for row in rows if row[where].get(name)]) for style, rows in lines]
            point = lambda row, where=where, name=name: lab.mean_of(row[where][name])
            lab.draw_runs(axis, known, "iteration", point, apart)
            points = [point(row) for _, rows in known for row in rows]
            heights += [x["mean"] for x in points]
            if where == "heldout":  # Two episodes' interval would flatten the rest, as would a lower end near 0.
                heights += [y for x in points for y in (x["interval"] or [])[name != "returns" :]]
            for style, rows in lines:
                limits = [(row["iteration"], row[f"{name}_allowed"]) for row in rows if f"{name}_allowed" in row]
                axis.plot(*np.reshape(limits, (-1, 2)).T, color=style["color"], linestyle=":", linewidth=1.5)
                heights += [limit for _, limit in limits]
        panels[0].set_ylabel(text)
        fit_axis(panels[0], heights, logarithmic=name != "returns")
    for axis, title in zip(axes[0], ("training batch", "held out")):
        axis.set_title(title, fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("iteration")
    axes[0, 0].plot([], [], "|", color="0.4", markersize=10, label="95 % interval, as far as the panel goes")
    if quantities is REWARD_AND_STEP:
        axes[0, 0].plot([], [], ":", color="0.4", linewidth=1.5, label="allowed: 1 + eps, or TRPO's KL")
    lab.save_figure(figure, lines, path)


def fit_axis(axis: Axes, heights: list[float], logarithmic: bool) -> None:
    """Fits the vertical axis to these heights. On a logarithmic one, what is not above 0 does not count."""
    if logarithmic:
        axis.set_yscale("log")
        heights = [y for y in heights if y > 0]
    if len(set(heights)) > 1:
        low, high = min(heights), max(heights)
        margin = (high / low) ** 0.05 if logarithmic else 0.05 * (high - low)
        axis.set_ylim(*((low / margin, high * margin) if logarithmic else (low - margin, high + margin)))


if __name__ == "__main__":
    lab.run_program(main)
