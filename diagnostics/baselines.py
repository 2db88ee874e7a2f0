"""What does the baseline do to the policy gradient? This script measures, with the value network, with a "true" value
function and with none, the cosine similarity of gradient estimates with one another and with the unbiased gradient,
against the number of state-action pairs.

    python diagnostics/baselines.py runs/Hopper-v5__ppo__seed1
    python diagnostics/baselines.py runs/Hopper-v5__ppo__seed1 --pairs 2048 --true-pairs 45_000 --value-pairs 20_000
    python diagnostics/baselines.py runs/Hopper-v5__ppo__seed1 --value-pairs 5_000_000  # as CL; the default is TPG's

It draws Fig. 4 of "A Closer Look at Deep Policy Gradients" (CL; Ilyas et al. 2020, https://arxiv.org/abs/1811.02553)
and Fig. 5 and 16 of its first version (TPG; https://arxiv.org/abs/1811.02553v1). Estimates are those of gradient.py.
What the papers call no baseline are returns in place of advantages, which is not GAE with V = 0. All are compared in
direction with the gradient of returns minus the "true" value function, which has no bias of GAE's and the least
variance of those without it: estimates can agree with one another and yet point elsewhere.

To use this script elsewhere, copy gradient.py with it and with lab.py.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import gradient
import lab
import numpy as np
import torch
import tyro
from matplotlib.figure import Figure
from torch import Tensor, nn


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]  # run folders, all of one environment
    checkpoints: tuple[int, ...] = ()  # iterations; default: 0 150 300 450, or else four from the first to the last
    pairs: tuple[int, ...] = (10_000, 100_000)  # sizes of the estimates; that of the run's training batch is added
    repeats: int = 10  # independent estimates of each size
    true_pairs: int = 900_000  # of the unbiased gradient, at least; more where the other repeats have more
    value_pairs: int = 500_000  # pairs whose returns the "true" value function is fitted to
    labels: tuple[str, ...] = ()  # one for each run; runs with the same label are averaged; default: the folder's name
    script: Path | None = None  # the algorithm's script; default: the one in algos/ that the run names
    out: Path | None = None  # folder of figures and rows; default: figures/ inside the first run
    format: Literal["png", "pdf", "svg"] = "png"  # format of the figures
    jobs: int = lab.CORES  # worker processes; the numbers do not depend on it
    seed: int = 0  # of everything that is sampled here
    overwrite: bool = False  # measure again what an earlier call has measured


def main(argv: list[str] | None = None) -> None:
    args = lab.read_options(Args, argv, __doc__, pairs=2, repeats=2, value_pairs=20)  # A tenth of these is held out.
    work = []
    for checkpoints in lab.open_runs(args, with_step=False):
        if not hasattr(lab.load_script(checkpoints[0].script), "value_loss"):
            lab.refuse(f"{checkpoints[0].run}: its algorithm has no value network to measure")
        asked = gradient.sizes(args, checkpoints[0]) | dict(value_pairs=args.value_pairs)
        work.append([(checkpoint, asked) for checkpoint in lab.choose(checkpoints, args.checkpoints)])
    lines = lab.lines_of(args, work, lab.fill(args, "baselines", measure, sum(work, [])))
    for style, rows in lines:
        for row in rows:
            explained = [f"{x:.3f} by the {name}" for name, x in row["explained_variance"].items()]
            text = f"explained variance of held-out returns {', '.join(explained)}"
            print(f"{style['label']}, iteration {row['iteration']}: {text}")
    draw(lines, args.out / f"baselines.{args.format}")


# What is measured at a checkpoint ------------------------------------------------------------------------------------

NETWORK, TRUE, NONE = "value network", "true value function", "discounted returns (no baseline)"
UNBIASED = "returns - true value function"


def measure(
    checkpoint: lab.Checkpoint,
    parallel_map: Callable,
    seed: int,
    pairs: list[int],
    repeats: int,
    true_pairs: int,
    value_pairs: int,
) -> dict[str, Any]:
    """Returns what gradient.measure returns for each of the baselines, and the cosines of their estimates with the
    unbiased gradient (direction)."""
    true_value, explained = fit_value(checkpoint, parallel_map, seed, value_pairs)
    size, calls = gradient.plan(checkpoint, seed, pairs, repeats, true_pairs)
    of_baselines = {name: [] for name in (UNBIASED, NONE, TRUE, NETWORK)}
    for group in parallel_map(segment_sums, *zip(*[(*call, true_value) for call in calls])):
        for name, segments in group.items():
            of_baselines[name] += segments
    row = dict(explained_variance=explained, of_baselines={}, batch_size=math.prod(lab.batch_shape(checkpoint.run)))
    for name, segments in of_baselines.items():
        numbers, estimates, true, longest = gradient.compare(segments, size, pairs)
        if name == UNBIASED:
            unbiased = true, longest
        numbers["direction"] = [gradient.with_true(x, *unbiased) for x in estimates]
        row["of_baselines"][name] = numbers
    return row


def segment_sums(
    checkpoint: lab.Checkpoint, seed: tuple[int, ...], num_steps: int, windows: gradient.Windows, true_value: tuple
) -> dict[str, list[tuple]]:
    """Does for each baseline what gradient.segment_sums does, with the same segments and windows for all."""
    script, args, state, steps = lab.fresh_rollout(checkpoint, seed, len(windows), num_steps)
    batch, place = script.estimate_advantages(args, state, steps), lab.generator(checkpoint.run, *seed, 0)
    advantages = {NETWORK: batch["advantages"]} | other_advantages(script, args, state, steps, true_value)
    segments = gradient.segment_rows(steps, num_steps)
    sums = gradient.weighted_sums(state.policy, batch, list(advantages.values()), segments, windows, place)
    return dict(zip(advantages, sums))


def other_advantages(
    script: ModuleType, args: Any, state: Any, steps: dict[str, Any], true_value: tuple
) -> dict[str, Tensor]:
    """Returns the advantages [B] with each of the other baselines, given the "true" value function as parameters, scale
    and shift."""
    parameters, scale, shift = true_value
    network = lab.with_parameters(state.value, torch.from_numpy(parameters))
    true_state = copy.copy(state)
    true_state.value = lambda obs: network(obs) * scale + shift
    gae = script.estimate_advantages(args, true_state, steps)["advantages"]
    # With lambda 1, advantages are returns minus V.
    unbiased = script.estimate_advantages(replace(args, gae_lambda=1.0), true_state, steps)["advantages"]
    return {TRUE: gae, NONE: returns(script, args, state, steps), UNBIASED: unbiased}


def returns(script: ModuleType, args: Any, state: Any, steps: dict[str, Any]) -> Tensor:
    """Returns the discounted returns [B] of the scaled rewards, which are what GAE's targets are with lambda 1. Where
    an episode was cut off, by a time limit or the end of a segment, the value network estimates the rest."""
    return script.estimate_advantages(replace(args, gae_lambda=1.0), state, steps)["value_targets"]


def obs_and_returns(checkpoint: lab.Checkpoint, seed: tuple[int, ...], num_envs: int, num_steps: int) -> dict:
    """Returns the observations and returns of fresh segments. Of millions of pairs, only what the fit needs should
    leave the worker."""
    script, args, state, steps = lab.fresh_rollout(checkpoint, seed, num_envs, num_steps)
    return dict(obs=steps["obs"], returns=returns(script, args, state, steps).numpy())


def fit_value(
    checkpoint: lab.Checkpoint, parallel_map: Callable, seed: int, pairs: int
) -> tuple[tuple[np.ndarray, float, float], dict[str, float]]:
    """Fits the "true" value function: a new network of the run's architecture, trained on the standardized returns of
    many pairs. Returns it as its parameters [P], scale and shift, and the explained variance of returns by it and by
    the run's own network, on a tenth of the pairs that was held out."""
    script, args, state = lab.frozen_state(checkpoint)
    data = lab.fresh_segments(checkpoint, parallel_map, (seed, checkpoint.iteration, 3), pairs, obs_and_returns)
    obs, targets = torch.from_numpy(data["obs"]), torch.from_numpy(data["returns"])
    # This is enough: at every checkpoint that we looked at, the fit explains more variance than the run's own network.
    train, size, epochs = len(obs) - len(obs) // 10, 512, 20
    scale, shift = targets[:train].std().item(), targets[:train].mean().item()
    network = script.State(args).value
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, epochs * -(-train // size))
    shuffles = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(train, generator=shuffles).split(size):
            optimizer.zero_grad()
            nn.functional.mse_loss(network(obs[rows]), (targets[rows] - shift) / scale).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        values = {NETWORK: state.value(obs[train:]), TRUE: network(obs[train:]) * scale + shift}
    unexplained = {name: (x - targets[train:]).var() / targets[train:].var() for name, x in values.items()}
    parameters = lab.flat_parameters(network).numpy()
    return (parameters, scale, shift), {name: 1 - x.item() for name, x in unexplained.items()}


# What follows from the rows, and the figures -------------------------------------------------------------------------

LOOKS = {NETWORK: "-", TRUE: (0, (1, 1)), NONE: "-."}


def draw(lines: list[lab.Line], path: Path) -> None:
    """Draws cosines against numbers of pairs (CL Fig. 4): for each label a row of panels for those between estimates
    and one for those with the unbiased gradient, a column for each checkpoint, and a line for each baseline."""
    groups = {}
    for style, rows in lines:
        groups.setdefault(style["label"], []).append((style, rows))
    columns = max(len(rows) for _, rows in lines)
    figure = Figure((max(7, 1.2 + 1.9 * columns), 3.8 * len(groups)), layout="constrained")
    axes = figure.subplots(2 * len(groups), columns, squeeze=False, sharex=True, sharey=True)
    for (label, group), of_variance, of_direction in zip(groups.items(), axes[::2], axes[1::2]):
        of_variance[0].set_ylabel(f"{label}\ncosine between\nestimates")
        of_direction[0].set_ylabel(f"{label}\ncosine with the\nunbiased gradient")
        for k, panels in enumerate(zip(of_variance, of_direction)):
            here = [(style, rows[k]) for style, rows in group if k < len(rows)]
            for axis, name, estimate in zip(
                panels, ("variance", "direction"), (gradient.pairwise, gradient.mean_with_true)
            ):
                for baseline, linestyle in LOOKS.items():
                    runs = []
                    for style, row in here:
                        of_line = style | dict(linestyle=linestyle, label=baseline)
                        runs.append((of_line, row, row["of_baselines"][baseline][name]))
                    gradient.draw_against_pairs(axis, runs, estimate)
            for style, row in here:
                gradient.draw_ceiling(panels[1], row["of_baselines"][UNBIASED], style)
            iterations = dict.fromkeys(str(row["iteration"]) for _, row in here)
            panels[0].set_title(f"iteration {' / '.join(iterations)}", fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("state-action pairs")
    gradient.explain(axes[0, 0], "ceiling set by the noise of the unbiased gradient")
    lab.save_figure(figure, lines, path)


if __name__ == "__main__":
    lab.run_program(main)
