"""Do the gradients mean anything? Cosine similarity of independent estimates of the policy gradient, and of each with
the "true" one, against the number of state-action pairs; and the same of whole update steps.

    python diagnostics/gradient.py runs/Hopper-v5__ppo__seed1
    python diagnostics/gradient.py runs/Hopper-v5__ppo__seed* --out figures --true-pairs 10_000_000
    python diagnostics/gradient.py runs/Hopper-v5__ppo__seed1 --baselines --steps

"A Closer Look at Deep Policy Gradients" (CL) Fig. 1, 2, 4, 9, 10; "Are Deep Policy Gradient Algorithms Truly Policy
Gradient Algorithms?" (TPG) Fig. 2, 3, 5, 11 to 13, 16. The gradient is that of CL eq. 1, for every algorithm: of
E[pi / pi_old A] at pi = pi_old, A normalized over the estimate's pairs. The pairs come from segments of num_steps, each
from a reset, with frozen statistics; an estimate from fewer pairs is made of the first of a segment. A repeat's
estimates from more pairs contain those of its estimates from fewer (all but a last part of a segment); the repeats are
independent. The "true" gradient that a repeat is held against comes from the pairs of all the other repeats, and from
as many more as --true-pairs asks for.
"""

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import tyro
from common import (
    Options,
    Source,
    can_step,
    check_options,
    checkpoint_state,
    choose,
    collect,
    collect_group,
    draw_line,
    flat_parameters,
    fresh_state,
    groups,
    identify,
    interval,
    look,
    measure_missing,
    new_figure,
    open_runs,
    output_folder,
    run_program,
    run_styles,
    save_figure,
    segment_rows,
    stop,
    title,
    with_parameters,
)
from torch import Tensor, nn
from torch.distributions import kl_divergence

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(Options):
    labels: tuple[str, ...] = ()
    """labels of your own, each "LABEL=ALGO FLAG ...": for the algorithm's runs with these flags, spelled as run folders
    spell them"""
    checkpoints: tuple[int, ...] = ()
    """iterations; default: 0 150 300 450 or, where a run has fewer, its first, its thirds, its last with a step"""
    pairs: tuple[int, ...] = (100, 1000, 10_000, 100_000)
    """state-action pairs of an estimate"""
    repeats: int = 10
    """independent estimates from each number of pairs"""
    true_pairs: int = 900_000
    """pairs of the "true" gradient, at least; what the other repeats do not give is sampled besides"""
    baselines: bool = False
    """compare the value network with a "true" value function and with none"""
    value_pairs: int = 500_000
    """pairs whose returns the "true" value function is fitted to"""
    steps: bool = False
    """compare whole update steps from training-size batches"""
    step_repeats: int = 100
    """update steps to compare"""


# Gradient estimates --------------------------------------------------------------------------------------------------

BASELINES = ["value network", "true value function", "none"]


def gradient_sums(source: Source, seed: tuple, num_envs: int, num_steps: int, true_value: tuple | None) -> np.ndarray:
    """Sums over each segment's pairs that a gradient estimate is made of, [segments, baselines, 2 P + 3]: of A grad ln
    pi [P], of grad ln pi [P], the number of pairs, of A and of A^2. Baselines: the value network and, given the
    "true" value function (parameters, scale and shift), that and none."""
    script, args, state = fresh_state(source, seed, num_envs, num_steps)
    experience = script.rollout(args, state)
    batch = script.estimate_advantages(args, state, experience)
    weights = [batch["advantages"]]
    if true_value is not None:
        parameters, scale, shift = true_value
        network = with_parameters(state.value, parameters)
        with_true_value = replace(state, value=lambda obs: network(obs) * scale + shift)
        weights += [script.estimate_advantages(args, with_true_value, experience)["advantages"]]
        weights += [returns(script, args, state, experience)]
    parameters = flat_parameters(state.policy).requires_grad_()
    policy, sums = with_parameters(state.policy, parameters), []
    for rows in segment_rows(experience, num_steps):
        log_probs = policy(batch["obs"][rows]).log_prob(batch["actions"][rows])
        [score] = torch.autograd.grad(log_probs.sum(), parameters, retain_graph=True)
        for A in weights:
            [weighted] = torch.autograd.grad(log_probs @ A[rows], parameters, retain_graph=True)
            A = A[rows].double()
            moments = torch.stack([torch.tensor(float(len(A))).double(), A.sum(), A @ A])
            sums.append(torch.cat([weighted, score, moments]).numpy())
    return np.reshape(sums, (-1, len(weights), len(sums[0])))


def returns(script: ModuleType, args: Any, state: Any, experience: dict[str, Any]) -> Tensor:
    """Discounted returns [B] of the scaled rewards: what GAE's targets are with lambda 1. Where an episode was cut off
    (a time limit, the end of a segment) they go on with the value network."""
    return script.estimate_advantages(replace(args, gae_lambda=1.0), state, experience)["value_targets"]


def gradient(sums: np.ndarray) -> np.ndarray:
    """Sums [2 P + 3] over K pairs -> gradient [P] of the mean of pi / pi_old A, A normalized over the K pairs."""
    size, (K, total, total_sq) = len(sums) // 2 - 1, sums[-3:]
    mean, std = total / K, np.sqrt((total_sq - total**2 / K) / (K - 1))
    return (sums[:size] - mean * sums[size : 2 * size]) / (K * (std + 1e-8))


def fit_value(args: Args, source: Source, sample: Callable) -> tuple[tuple[Tensor, float, float], dict[str, float]]:
    """The "true" value function: a network of the run's architecture, fitted anew to the standardized returns of many
    pairs, as its parameters [P], scale and shift; and the explained variance of returns by it and by the run's own
    network, on a tenth of the pairs that was held out."""
    experience = collect(source, (args.seed, source.iteration, 3), args.value_pairs, sample)
    script, settings, state = checkpoint_state(source)
    obs, targets = torch.from_numpy(experience["obs"]), returns(script, settings, state, experience)
    train, size, epochs = len(obs) - len(obs) // 10, 512, 20
    scale, shift = targets[:train].std().item(), targets[:train].mean().item()
    _, network = script.make_networks(settings, obs.shape[1], experience["actions"].shape[1])
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, epochs * -(-train // size))
    generator = torch.Generator().manual_seed(args.seed)
    for _ in range(epochs):
        for rows in torch.randperm(train, generator=generator).split(size):
            optimizer.zero_grad()
            nn.functional.mse_loss(network(obs[rows]), (targets[rows] - shift) / scale).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        values = dict(value_network=state.value(obs[train:]), true_value_function=network(obs[train:]) * scale + shift)
    left = {name: (x - targets[train:]).var() / targets[train:].var() for name, x in values.items()}
    return (flat_parameters(network), scale, shift), {name: 1 - x.item() for name, x in left.items()}


def estimate_sizes(args: Args, num_steps: int) -> list[tuple[int, int]]:
    """Groups of one repeat: the whole segments of its longest estimate, and for each estimate the rest beyond its whole
    segments."""
    rests = [(1, K % num_steps) for K in args.pairs if K % num_steps]
    return groups(max(args.pairs) // num_steps * num_steps, num_steps) + rests


def more_true_pairs(args: Args) -> int:
    return max(0, args.true_pairs - (args.repeats - 1) * max(args.pairs))


def measure_gradients(args: Args, source: Source, sample: Callable, _: Any) -> Iterator[dict[str, Any]]:
    """Cosines of the gradient estimates of a checkpoint, pairwise and with the "true" gradient."""
    num_steps = checkpoint_state(source)[1].num_steps
    true_value, explained = fit_value(args, source, sample) if args.baselines else (None, {})
    sizes = [size for _ in range(args.repeats) for size in estimate_sizes(args, num_steps)]
    sizes += groups(more_true_pairs(args), num_steps)
    seeds = [(args.seed, source.iteration, 0, i) for i in range(len(sizes))]
    results = sample(gradient_sums, [(source, seed, *size, true_value) for seed, size in zip(seeds, sizes)])

    repeats = []  # of each, the sums of its estimate from each number of pairs
    for _ in range(args.repeats):
        total, segments, sums = 0.0, 0, {K: 0.0 for K in args.pairs}
        for _ in groups(max(args.pairs) // num_steps * num_steps, num_steps):
            for segment in next(results):
                total, segments = total + segment, segments + 1
                sums |= {K: total for K in args.pairs if K // num_steps == segments}
        repeats.append({K: sums[K] + next(results)[0] if K % num_steps else sums[K] for K in args.pairs})
    longest = [sums[max(args.pairs)] for sums in repeats]
    everything = sum(longest) + sum(segment for result in results for segment in result)
    others = [everything - own for own in longest]

    numbers = dict(batch_size=num_steps * checkpoint_state(source)[1].num_envs, explained_variance=explained)
    numbers |= dict(true_pairs_used=int(others[0][0, -3]), variance={}, convergence=[])
    for b, baseline in enumerate(BASELINES if args.baselines else BASELINES[:1]):
        estimates = [np.array([gradient(sums[K][b]) for sums in repeats]) for K in args.pairs]
        numbers["variance"][baseline] = [pairwise(cosines(x, x)) for x in estimates]
        if b == 0:
            true = np.array([gradient(sums[0]) for sums in others])
            found = [np.diagonal(cosines(x, true)) for x in estimates]
            numbers["convergence"] = [dict(mean=x.mean().item(), interval=interval(x), all=x.tolist()) for x in found]
    yield numbers


def cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Cosine similarity [n, m] of every row of x [n, P] with every row of y [m, P]; 0 where one of them is 0 (the step
    of a rejected line search)."""
    x, y = (z / np.linalg.norm(z, axis=1, keepdims=True).clip(1e-30) for z in (x, y))
    return x @ y.T


def pairwise(matrix: np.ndarray, resamples: int = 500) -> dict[str, Any]:
    """Mean of the matrix [n, n] over pairs of different items, its 95 % bootstrap interval over the n items (an item
    that was drawn twice is not compared with itself; two items have none), and the values above the diagonal. Around
    cosines of 0 these intervals are about one and a half times as wide as need be."""
    n, means = len(matrix), []
    for drawn in np.random.default_rng(0).integers(n, size=(resamples, n)):
        different = drawn[:, None] != drawn[None]
        if different.any():
            means.append(matrix[np.ix_(drawn, drawn)][different].mean())
    above = matrix[np.triu_indices(n, 1)]
    ends = np.percentile(means, [2.5, 97.5]).tolist() if n > 2 else None
    return dict(mean=above.mean().item(), interval=ends, all=above.tolist())


# Update steps --------------------------------------------------------------------------------------------------------


def training_step(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> Tensor:
    """Policy parameters [P] after one whole update on a fresh batch of the size that training uses."""
    script, args, state = fresh_state(source, seed, num_envs, num_steps)
    script.update(args, state, script.estimate_advantages(args, state, script.rollout(args, state)))
    return flat_parameters(state.policy)


def measure_steps(args: Args, source: Source, sample: Callable, _: Any) -> Iterator[dict[str, Any]]:
    """Pairwise cosines of update steps of a checkpoint, and pairwise KL of the policies they lead to, on the states of
    a separate batch and both directions (TPG Fig. 13)."""
    script, settings, state = checkpoint_state(source)
    size = settings.num_envs, settings.num_steps
    [experience] = sample(collect_group, [(source, (args.seed, source.iteration, 1), *size)])
    tasks = [(source, (args.seed, source.iteration, 2, i), *size) for i in range(args.step_repeats)]
    after = list(sample(training_step, tasks))
    steps = torch.stack(after) - flat_parameters(state.policy)
    obs = torch.from_numpy(experience["obs"])
    with torch.no_grad():
        policies = [with_parameters(state.policy, parameters)(obs) for parameters in after]
    kls = np.array([[kl_divergence(one, other).mean().item() for other in policies] for one in policies])
    steps = steps.double().numpy()
    numbers = dict(cosine=pairwise(cosines(steps, steps)), kl=pairwise((kls + kls.T) / 2))
    for pairs in numbers.values():
        del pairs["all"]  # 4,950 of each
    yield numbers | dict(norms=np.linalg.norm(steps, axis=1).tolist())


# Figures -------------------------------------------------------------------------------------------------------------


def draw_gradients(args: Args, styles: list[dict[str, Any]], runs: list[list[dict[str, Any]]], path: Path) -> None:
    """Rows: variance and convergence; columns: checkpoints; a line for each run (CL Fig. 9, 10)."""
    columns = list(zip(*runs))
    size = 1.9 * len(columns) + 0.6, 4
    figure, axes = new_figure(2, len(columns), size, sharex=True, sharey=True)
    for (above, below), cells in zip(axes.T, columns):
        for cell, style in zip(cells, styles):
            draw_line(above, args.pairs, cell["variance"]["value network"], style)
            draw_line(below, args.pairs, cell["convergence"], style)
            for axis in (above, below):
                axis.axvline(cell["batch_size"], color="black", linestyle=":", linewidth=1)
        above.set_title(title(cells))
        below.set(xlabel="state-action pairs", xscale="log")
    axes[0, 0].set_ylabel("cosine between\nestimates")
    axes[1, 0].set_ylabel('cosine with the\n"true" gradient')
    save_figure(figure, path)


def draw_baselines(args: Args, styles: list[dict[str, Any]], runs: list[list[dict[str, Any]]], path: Path) -> None:
    """Rows: settings; columns: checkpoints; a line for each baseline and run (CL Fig. 4)."""
    looks, alike = {"true value function": "ppo", "value network": "ppo_m", "none": "reinforce"}, {}
    for cells, style in zip(runs, styles):
        alike.setdefault(style["label"], []).append(cells)
    shape = len(alike), len(runs[0])
    figure, axes = new_figure(*shape, (1.9 * shape[1] + 0.6, 0.4 + 2 * shape[0]), sharex=True, sharey=True)
    for row, (label, of_setting) in zip(axes, alike.items()):
        for axis, cells in zip(row, zip(*of_setting)):
            for cell in cells:
                for baseline, algo in looks.items():
                    draw_line(axis, args.pairs, cell["variance"][baseline], look(algo) | dict(label=baseline))
                axis.axvline(cell["batch_size"], color="black", linestyle=":", linewidth=1)
            axis.set(title=title(cells), xscale="log")
        row[0].set_ylabel(f"{textwrap.fill(label, 24)}\ncosine between\nestimates")
    for axis in axes[-1]:
        axis.set_xlabel("state-action pairs")
    save_figure(figure, path)


def draw_steps(styles: list[dict[str, Any]], runs: list[list[dict[str, Any]]], path: Path) -> None:
    """Pairwise cosine and KL of update steps over training (TPG Fig. 13)."""
    figure, axes = new_figure(1, 2, (6.5, 2.8))
    for cells, style in zip(runs, styles):
        for axis, name in zip(axes[0], ("cosine", "kl")):
            iterations, points = [cell["iteration"] for cell in cells], [cell[name] for cell in cells]
            draw_line(axis, iterations, points, style)
    axes[0, 0].set(xlabel="iteration", ylabel="cosine between update steps")
    axes[0, 1].set(xlabel="iteration", ylabel="KL between policies (nats)", yscale="log")
    save_figure(figure, path)


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    check_options(args)
    args = replace(args, pairs=tuple(sorted(set(args.pairs))))
    if min(*args.pairs, args.repeats, args.step_repeats) < 2:
        stop("--pairs, --repeats, --step-repeats: two or more, or there is nothing to compare")
    if args.value_pairs < 10:
        stop(f"--value-pairs {args.value_pairs}: ten or more, since a tenth is held out")
    runs = [choose(sources, args.checkpoints) for sources in open_runs(args.runs, args.script, args.baselines)]
    if len({len(sources) for sources in runs}) > 1:
        stop("the runs have different numbers of checkpoints; name those to measure with --checkpoints")
    styles = run_styles(args.runs, args.labels)
    path = output_folder(args.out, args.runs) / "gradient.json"

    estimates, steps = [], []
    for source in sum(runs, []):
        _, settings, _ = checkpoint_state(source)
        identity = identify(source, args.seed)
        sizes = dict(pairs=list(args.pairs), repeats=args.repeats, true_pairs=args.true_pairs)
        sizes |= dict(value_pairs=args.value_pairs) if args.baselines else {}
        cost = args.repeats * sum(n * steps for n, steps in estimate_sizes(args, settings.num_steps))
        cost += more_true_pairs(args) + args.baselines * args.value_pairs
        estimates.append((partial(measure_gradients, args), source, [identity | sizes], cost))
        if args.steps:
            if not can_step(source):
                stop(f"{source.path}: training ended there, so there is no step to compare")
            cost = (1 + args.step_repeats) * settings.num_envs * settings.num_steps
            identity |= dict(step_repeats=args.step_repeats)
            steps.append((partial(measure_steps, args), source, [identity], cost))
    cells = iter(measure_missing(args, path, estimates + steps))
    found = [[next(cells) for _ in sources] for sources in runs]
    draw_gradients(args, styles, found, path)
    if args.baselines:
        draw_baselines(args, styles, found, path.with_name("gradient_baselines"))
    if args.steps:
        draw_steps(styles, [[next(cells) for _ in sources] for sources in runs], path.with_name("gradient_steps"))


if __name__ == "__main__":
    run_program(main)
