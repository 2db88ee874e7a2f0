"""Is the batch large enough for its gradient to mean anything? This script measures the cosine similarity of
independent estimates of the policy gradient with one another and with the "true" gradient, against the number of
state-action pairs, and the noise scale.

    python diagnostics/gradient.py runs/Hopper-v5__ppo__seed1
    python diagnostics/gradient.py runs/Hopper-v5__ppo__seed1 --pairs 2048 --true-pairs 45_000  # a first look
    python diagnostics/gradient.py runs/Hopper-v5__ppo__seed* --out results --pairs 100 1000 10_000 100_000

It draws Fig. 1, 2, 9 and 10 of "A Closer Look at Deep Policy Gradients" (CL; Ilyas et al. 2020,
https://arxiv.org/abs/1811.02553) and Fig. 2, 3, 11 and 12 of its first version, "Are Deep Policy Gradient Algorithms
Truly Policy Gradient Algorithms?" (TPG; https://arxiv.org/abs/1811.02553v1); baselines.py draws CL's Fig. 4.

Pairs come from segments of num_steps steps, each of which begins with a reset; the running statistics stay frozen.
Where an estimate needs more pairs than its whole segments have, the others come from a window: consecutive pairs from a
random place in one more segment, over the whole of which the advantages were estimated. (The first pairs of a segment
would not do: they are the starts of episodes, whose mean gradient is another vector.) Within a repeat, longer estimates
contain the segments of shorter ones, and repeats are independent. A repeat is compared with the "true" gradient of the
T pairs of all other repeats, which is noisy, too: a cosine with it has a ceiling below 1. Divided by the ceiling, it is
what the cosine with the real gradient would be.

The noise scale B (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training",
https://arxiv.org/abs/1812.06162) is the number of pairs from which an estimate is as much noise as signal. Two
estimates from K pairs have a cosine of about K / (K + B); one of them and the real gradient sqrt(K / (K + B)).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import lab
import numpy as np
import torch
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats
from torch import Tensor, nn


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]  # run folders, all of one environment
    checkpoints: tuple[int, ...] = ()  # iterations; default: 0 150 300 450, or else four from the first to the last
    pairs: tuple[int, ...] = (10_000, 100_000)  # sizes of the estimates; that of the run's training batch is added
    repeats: int = 10  # independent estimates of each size
    true_pairs: int = 900_000  # of the "true" gradient, at least; more where the other repeats have more
    labels: tuple[str, ...] = ()  # one for each run; runs with the same label are averaged; default: the folder's name
    script: Path | None = None  # the algorithm's script; default: the one in algos/ that the run names
    out: Path | None = None  # folder of figures and rows; default: figures/ inside the first run
    format: Literal["png", "pdf", "svg"] = "png"  # format of the figures
    jobs: int = lab.CORES  # worker processes; the numbers do not depend on it
    seed: int = 0  # of everything that is sampled here
    overwrite: bool = False  # measure again what an earlier call has measured


def main(argv: list[str] | None = None) -> None:
    args = lab.read_options(Args, argv, __doc__, pairs=2, repeats=2)
    chosen = [lab.choose(x, args.checkpoints) for x in lab.open_runs(args, with_step=False)]
    work = [[(checkpoint, sizes(args, checkpoint)) for checkpoint in of_run] for of_run in chosen]
    lines = lab.lines_of(args, work, lab.fill(args, "gradient", measure, sum(work, [])))
    for style, rows in lines:
        for row in rows:
            print(f"{style['label']}, iteration {row['iteration']}: {describe(row)}")
    draw_cosines(lines, args.out / f"gradient.{args.format}")
    draw_noise_scale(lines, args.out / f"gradient_noise_scale.{args.format}")


def sizes(args: Any, checkpoint: lab.Checkpoint) -> dict[str, Any]:
    """Returns how much is measured at a checkpoint."""
    pairs = sorted({math.prod(lab.batch_shape(checkpoint.run)), *args.pairs})
    return dict(seed=args.seed, pairs=pairs, repeats=args.repeats, true_pairs=args.true_pairs)


# What is measured at a checkpoint ------------------------------------------------------------------------------------


# Estimates are made of sums over state-action pairs, which are one vector [3 + 2 P], so that they can be added: the
# number K of pairs, the sum of their advantages A and that of A^2, that of grad ln pi [P] and of A grad ln pi [P].

Windows = list[dict[int, int]]  # of each segment: lengths of windows, by the pairs of the estimates that they complete


def gradient(sums: np.ndarray, normalized_over: np.ndarray | None = None) -> np.ndarray:
    """Returns the estimate [P] of the gradient of E[pi / pi_old A] at pi = pi_old (CL eq. 1) from K pairs,

        g = 1/K sum_k (A_k - mean(A)) / std(A) grad ln pi(a_k | s_k),

    with A normalized over these pairs, or over those of other sums."""
    K, A, A_sq = (sums if normalized_over is None else normalized_over)[:3]
    mean, std = A / K, np.sqrt((A_sq - A * A / K) / (K - 1))
    score, weighted = sums[3:].reshape(2, -1)
    return (weighted - mean * score) / (sums[0] * (std + 1e-8))


def measure(
    checkpoint: lab.Checkpoint, parallel_map: Callable, seed: int, pairs: list[int], repeats: int, true_pairs: int
) -> dict[str, Any]:
    """Returns the cosines of a checkpoint's gradient estimates from each number of pairs, and the products of those
    from which the noise scale follows."""
    size, calls = plan(checkpoint, seed, pairs, repeats, true_pairs)
    row, *_ = compare(sum(parallel_map(segment_sums, *zip(*calls)), []), size, pairs)
    return row | dict(batch_size=math.prod(lab.batch_shape(checkpoint.run)))


def plan(checkpoint: lab.Checkpoint, seed: int, pairs: list[int], repeats: int, true_pairs: int) -> tuple[int, list]:
    """Returns how many segments a repeat has, and what segment_sums is called with for those of all repeats. A repeat
    has enough segments for its longest estimate, and for its share of the others' "true" gradient."""
    _, num_steps = lab.batch_shape(checkpoint.run)
    size = max(math.ceil(max(pairs) / num_steps), math.ceil(true_pairs / ((repeats - 1) * num_steps)))
    # The last segment of an estimate gives a window of the pairs that its whole segments lack.
    windows = [{K: K % num_steps for K in pairs if K % num_steps and K // num_steps == i} for i in range(size)]
    groups = [windows[first : first + lab.GROUP] for first in range(0, size, lab.GROUP)] * repeats
    return size, [(checkpoint, (seed, checkpoint.iteration, 0, i), num_steps, x) for i, x in enumerate(groups)]


def segment_sums(checkpoint: lab.Checkpoint, seed: tuple[int, ...], num_steps: int, windows: Windows) -> list[tuple]:
    """Samples a fresh segment for each of the windows, and returns its sums and those of its windows."""
    script, args, state, steps = lab.fresh_rollout(checkpoint, seed, len(windows), num_steps)
    batch, place = script.estimate_advantages(args, state, steps), lab.generator(checkpoint.run, *seed, 0)
    rows = segment_rows(steps, num_steps)
    return weighted_sums(state.policy, batch, [batch["advantages"]], rows, windows, place)[0]


def weighted_sums(
    network: nn.Module,
    batch: dict[str, Tensor],
    advantages: list[Tensor],
    segments: list[slice],
    windows: Windows,
    place: np.random.Generator,
) -> list[list[tuple]]:
    """Returns, for each of several advantages [B] of the same pairs, the sums of each segment and of its windows."""
    parameters = lab.flat_parameters(network).requires_grad_()
    policy = lab.with_parameters(network, parameters)

    def sums(start: int, length: int) -> list[np.ndarray]:
        rows = slice(start, start + length)
        log_probs, gradients = policy(batch["obs"][rows]).log_prob(batch["actions"][rows]), []
        for weights in (torch.ones(length), *[A[rows] for A in advantages]):
            of_weights = torch.autograd.grad(log_probs, parameters, weights, retain_graph=True)[0]
            gradients.append(of_weights.double().numpy())
        score, *weighted = gradients
        numbers = [A[rows].double().numpy() for A in advantages]
        return [np.concatenate([[length, A.sum(), (A**2).sum()], score, x]) for A, x in zip(numbers, weighted)]

    found = [[] for _ in advantages]
    for segment, lengths in zip(segments, windows):
        num_steps, parts = segment.stop - segment.start, {}
        whole = sums(segment.start, num_steps)
        for K, length in lengths.items():
            parts[K] = sums(segment.start + int(place.integers(num_steps - length + 1)), length)
        for k, of_segments in enumerate(found):
            of_segments.append((whole[k], {K: part[k] for K, part in parts.items()}))
    return found


def segment_rows(steps: dict[str, Any], num_steps: int) -> list[slice]:
    """Returns the rows of each worker's segment in a rollout, num_steps each. What REINFORCE adds to reach the end of
    the episode is left out."""
    ends, rows, start = np.flatnonzero(steps["ends"]) + 1, [], 0
    while start < len(steps["obs"]):
        rows.append(slice(start, start + num_steps))
        start = int(ends[ends >= start + num_steps][0])
    return rows


def compare(segments: list[tuple], size: int, pairs: list[int]) -> tuple[dict[str, Any], list, np.ndarray, np.ndarray]:
    """Returns a row of the segments of all repeats, `size` of each, and what it is made of: the estimates [repeats, P]
    from each number of pairs, the gradients [repeats, P] with which they are compared, and the repeats' longest
    estimates [repeats, P]."""
    estimates, totals = [], []
    for first in range(0, len(segments), size):
        of_sizes, total = add_up(segments[first : first + size], pairs)
        estimates.append(of_sizes)
        totals.append(total)
    everything = sum(totals[1:], totals[0])
    by_size = [np.array([gradient(of_sizes[K]) for of_sizes in estimates]) for K in pairs]  # each [repeats, P]
    true = np.array([gradient(everything - own) for own in totals])
    # Normalized over everything, so that the noise of the advantages' scale is no part of S.
    longest = np.array([gradient(own, normalized_over=everything) for own in totals])
    row = dict(true_pairs_used=int(everything[0] - totals[0][0]), estimate_pairs=int(totals[0][0]))
    around, above = longest - longest.mean(0), np.triu_indices(len(longest))
    # The deviations from the mean do not depend on g, whose noise would hide a small S in the bootstrap's draws.
    row |= dict(products=lab.rounded((longest @ longest.T)[above]), scatter=lab.rounded((around @ around.T)[above]))
    row |= dict(variance=[above_diagonal(cosines(x, x)) for x in by_size])
    row |= dict(convergence=[with_true(x, true, longest) for x in by_size])
    return row, by_size, true, longest


def add_up(segments: Iterable[tuple], pairs: list[int]) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Turns a repeat's segments and windows into the sums of its estimate from each number of pairs, and of all
    segments."""
    total, estimates = 0.0, {}
    for segment, windows in segments:
        estimates |= {K: total + window for K, window in windows.items()}
        total = total + segment
        estimates |= {K: total for K in pairs if K == total[0]}
    return estimates, total


def with_true(estimates: np.ndarray, true: np.ndarray, longest: np.ndarray) -> dict[str, Any]:
    """Returns the cosine [n] of each estimate [n, P] with the "true" gradient [n, P] that it is compared with, and
    means [n] for the jackknife. Each of these is the mean cosine of the estimates with the sum of the other repeats'
    longest ones [n, P], where one repeat is left out of everything. There are none for n < 3."""
    n, lengths = len(estimates), np.linalg.norm(estimates, axis=1)
    products, squares = estimates @ longest.T, longest @ longest.T

    def mean_cosine(kept: np.ndarray) -> float:
        others, square = 1 - np.eye(len(kept)), np.ix_(kept, kept)
        norms = np.sqrt((others @ squares[square] * others).sum(1))  # of the sums of the others' longest estimates
        return ((products[square] * others).sum(1) / (lengths[kept] * norms).clip(1e-30)).mean()

    without = [mean_cosine(np.delete(np.arange(n), i)) for i in range(n)] if n > 2 else []
    return dict(cosines=lab.rounded(np.diagonal(cosines(estimates, true))), without=lab.rounded(without))


def cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns the cosine similarity [n, m] of every row of x [n, P] with every row of y [m, P]. It is 0 where one of
    the two is 0, as the step of a rejected line search is."""
    x, y = (z / np.linalg.norm(z, axis=1, keepdims=True).clip(1e-30) for z in (x, y))
    return x @ y.T


def above_diagonal(matrix: np.ndarray) -> list[float]:
    """Returns the numbers of a symmetric matrix [n, n] that belong to two different items, row by row."""
    return lab.rounded(matrix[np.triu_indices(len(matrix), 1)])


# What follows from the rows, and the figures -------------------------------------------------------------------------


def symmetric(above: list[float], diagonal: bool) -> np.ndarray:
    """Returns the symmetric matrix [n, n] whose numbers above the diagonal, or on it and above, are given."""
    n = round(((1 + 8 * len(above)) ** 0.5 + (-1 if diagonal else 1)) / 2)
    matrix = np.zeros((n, n))
    matrix[np.triu_indices(n, 0 if diagonal else 1)] = above
    return matrix + np.triu(matrix, 1).T


def pairwise(above: list[float], resamples: int = 500) -> dict[str, Any]:
    """Returns the mean of numbers that belong to the pairs of n items, as above_diagonal lists them, and its 95 %
    bootstrap interval over the items. An item that was drawn twice is not compared with itself, and two items have no
    interval. Around cosines of 0 these intervals are about one and a half times as wide as they need to be."""
    matrix, means = symmetric(above, diagonal=False), []
    for drawn in np.random.default_rng(0).integers(len(matrix), size=(resamples, len(matrix))):
        different = drawn[:, None] != drawn
        if different.any():
            means.append(matrix[np.ix_(drawn, drawn)][different].mean())
    ends = np.percentile(means, [2.5, 97.5]).tolist() if len(matrix) > 2 else None
    return dict(mean=np.mean(above).item(), interval=ends)


def mean_with_true(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the mean of n cosines with the "true" gradient and its 95 % interval,

        mean -+ t sqrt(n - 1) std(without),

    Student's t with the jackknife's standard error. The cosines share what they are compared with. A bootstrap that
    takes them as independent covers the truth in 75 to 90 % of cases, and this does so in 95 to 99 %."""
    mean, without, n = np.mean(row["cosines"]).item(), row["without"], len(row["cosines"])
    if not without:
        return dict(mean=mean, interval=None)
    half = (stats.t.ppf(0.975, n - 1) * (n - 1) ** 0.5 * np.std(without)).item()
    return dict(mean=mean, interval=[mean - half, mean + half])


def noise_scale(row: dict[str, Any], level: float = 0.95, resamples: int = 500) -> dict[str, Any]:
    """Estimates the noise scale of pairs (McCandlish et al. 2018, eq. 2.9)

        B = tr(S) / |g|^2

    from the products of n independent estimates g_i, each from m pairs. There is no bias (their App. A), because

        E[g_i . g_j] = |g|^2  and  E|g_i|^2 = |g|^2 + tr(S) / m.

    S is that of segments, expressed per pair, because neighbouring pairs are correlated. `inverse` is 1 / B, which has
    no pole, and 0 where all gradients vanish, as they do if no action ever changes the reward. The interval is a
    bootstrap over the estimates, where one that is drawn twice is not multiplied by itself. B and its ends are inf
    where |g|^2 is not found to be positive: then B is too large to be told from so few pairs. With ten estimates the
    interval contains B in 91 to 94 % of cases where the noise has 20 effective dimensions, tr(S)^2 / tr(S^2), or more.
    With six it does so in 90 %, with two in 86 %, and B is then about 5 % and 13 % too small. With T pairs of the
    "true" gradient, its cosine with the real one, which is the ceiling of cosines with it, is

        sqrt(T / (T + B))."""
    products, scatter = symmetric(row["products"], diagonal=True), symmetric(row["scatter"], diagonal=True)
    n, m, T = len(products), row["estimate_pairs"], row["true_pairs_used"]

    def parts(drawn: np.ndarray) -> tuple[float, float]:
        square, unlike = np.ix_(drawn, drawn), drawn[:, None] != drawn
        trace = m * (scatter.diagonal()[drawn].mean() - scatter[square][unlike].mean())
        return products[square][unlike].mean(), trace

    grad_sq, trace = map(float, parts(np.arange(n)))
    draws = [parts(x) for x in np.random.default_rng(0).integers(n, size=(resamples, n)) if np.ptp(x)]
    inverses = [x / y if y else 0.0 for x, y in draws]
    inverse = grad_sq / trace if trace else 0.0
    ends = np.percentile(inverses, [50 - 50 * level, 50 + 50 * level]).tolist()
    B, low, high = (1 / x if x > 0 else np.inf for x in (inverse, ends[1], ends[0]))
    numbers = dict(mean=B, grad_sq=grad_sq, trace=trace, inverse=inverse)
    numbers["ceiling"] = (T / (T + B)) ** 0.5 if B < np.inf else None
    return numbers | dict(interval=[low, high] if n > 2 else None, inverse_interval=ends if n > 2 else None)


def draw_cosines(lines: list[lab.Line], path: Path) -> None:
    """Draws cosines against numbers of pairs: those between estimates above (CL Fig. 1, 9), those with the "true"
    gradient below (CL Fig. 2, 10), and a column for each checkpoint."""
    columns = max(len(rows) for _, rows in lines)
    figure = Figure((max(7, 1 + 1.9 * columns), 4.4), layout="constrained")
    axes = figure.subplots(2, columns, squeeze=False, sharex=True, sharey=True)
    for k, panels in enumerate(axes.T):
        here = [(style, rows[k]) for style, rows in lines if k < len(rows)]
        for axis, name, estimate in zip(panels, ("variance", "convergence"), (pairwise, mean_with_true)):
            draw_against_pairs(axis, [(style, row, row[name]) for style, row in here], estimate)
        for style, row in here:
            draw_ceiling(panels[1], row, style)
        iterations = dict.fromkeys(str(row["iteration"]) for _, row in here)
        panels[0].set_title(f"iteration {' / '.join(iterations)}", fontsize=10)
        panels[1].set_xlabel("state-action pairs")
    axes[0, 0].set_ylabel("cosine between\nestimates")
    axes[1, 0].set_ylabel('cosine with the\n"true" gradient')
    explain(axes[0, 0], 'ceiling set by the noise of the "true" gradient')
    lab.save_figure(figure, lines, path)


def draw_against_pairs(axis: Axes, runs: list[tuple[dict, dict, list]], estimate: Callable) -> None:
    """Draws estimates, a list over numbers of pairs for each run, which is given as style, row and what the row has. An
    interval ends where cosines do."""
    lines = []
    for style, row, of_pairs in runs:
        points = [dict(pairs=K) | estimate(x) for K, x in zip(row["pairs"], of_pairs)]
        lines.append((style, points))
        axis.axvline(row["batch_size"], color="black", linestyle=":", linewidth=0.8)
    within = lambda x: x | dict(interval=x["interval"] and np.clip(x["interval"], -1, 1).tolist())
    lab.draw_runs(axis, lines, "pairs", within)
    # Panels share their axis and are drawn one after another, so what an earlier one needed stays.
    lowest = [0.0, axis.dataLim.y0 - 0.03] + ([] if axis.get_autoscaley_on() else [axis.get_ylim()[0]])
    axis.set(xscale="log", ylim=(min(lowest), 1.02))
    axis.tick_params(axis="x", which="minor", labelbottom=False)  # Their labels would overlap.
    sizes = sorted({K for _, row, _ in runs for K in row["pairs"]})
    if len(sizes) <= 3:  # The labels of more would overlap, too.
        axis.set_xticks(sizes, [f"{K:,}" for K in sizes])


def draw_ceiling(axis: Axes, row: dict[str, Any], style: dict[str, Any]) -> None:
    if ceiling := noise_scale(row)["ceiling"]:
        axis.axhline(ceiling, color=style["color"], linestyle="--", linewidth=0.8)


def explain(axis: Axes, ceiling: str) -> None:
    """Adds to the legend what is not a run."""
    axis.plot([], [], "|", color="0.4", markersize=10, label="95 % interval, as far as a cosine goes")
    axis.plot([], [], color="0.4", linestyle="--", linewidth=0.8, label=ceiling)
    axis.plot([], [], color="black", linestyle=":", linewidth=0.8, label="pairs of a training batch")


def draw_noise_scale(lines: list[lab.Line], path: Path) -> None:
    """Draws the training batch divided by the noise scale over training, K / B. This has no pole where B is infinite,
    so that it can be averaged over runs. What is not known to be above 0 leaves the axis at the bottom."""
    figure = Figure((7, 3.4), layout="constrained")
    axis = figure.subplots()
    shares = [share_of_noise(row) for _, rows in lines for row in rows]
    shown = [y for x in shares for y in (x["mean"], *(x["interval"] or [])) if y > 0] + [1.0]
    apart = 0.012 * max(row["iteration"] for _, rows in lines for row in rows)
    axis.set(yscale="log", ylim=(min(shown) / 2, max(shown) * 2), xlabel="iteration")
    axis.set_ylabel("training batch / noise scale")
    axis.axhline(1, color="black", linestyle=":", linewidth=0.8, label="as much signal as noise in a batch")
    axis.plot([], [], "|", color="0.4", markersize=10, label="95 % interval, to the bottom where it reaches 0")
    lab.draw_runs(axis, lines, "iteration", share_of_noise, apart)
    lab.save_figure(figure, lines, path)


def share_of_noise(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the training batch divided by the noise scale, and its interval."""
    K, scale = row["batch_size"], noise_scale(row)
    ends = scale["inverse_interval"]
    return dict(mean=K * scale["inverse"], interval=ends and [K * x for x in ends])


def describe(row: dict[str, Any]) -> str:
    """Says what the noise scale is, and what the cosines of estimates from a training batch's pairs are."""
    K, scale, at = row["batch_size"], noise_scale(row), row["pairs"].index(row["batch_size"])
    between, with_the_true = pairwise(row["variance"][at])["mean"], np.mean(row["convergence"][at]["cosines"])
    text = f"the noise scale is {lab.in_words(scale, '{:,.0f}')} pairs; estimates from {K:,}, a training batch, have a"
    return f'{text} cosine of {between:.2f} with each other and of {with_the_true:.2f} with the "true" gradient'


if __name__ == "__main__":
    lab.run_program(main)
