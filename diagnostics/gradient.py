"""Is the batch large enough for its gradient to mean anything? This script measures the noise scale of the policy
gradient, and the cosine similarity of independent estimates with one another and with the "true" gradient, against the
number of state-action pairs.

    python diagnostics/gradient.py runs/Hopper-v5__ppo__seed1
    python diagnostics/gradient.py runs/Hopper-v5__ppo__seed* --out results --pairs 100 1000 10_000 100_000
    python diagnostics/gradient.py runs/Hopper-v5__ppo__seed1 --pairs 10_000 --true-pairs 90_000  # a tenth of the cost
    python diagnostics/gradient.py runs/Hopper-v5__ppo__seed1 --baselines

The noise scale B (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training") is the number of pairs at which
an estimate is as much noise as signal. Two independent estimates from K pairs each have a cosine of about K / (K + B);
an estimate and the real gradient have one of about sqrt(K / (K + B)).

The measurements are those of "A Closer Look at Deep Policy Gradients" (CL), Fig. 1, 2, 4, 9, 10, and of "Are Deep
Policy Gradient Algorithms Truly Policy Gradient Algorithms?" (TPG), Fig. 2, 3, 5, 11, 12, 16. For every algorithm, the
gradient is that of CL eq. 1: of E[pi / pi_old A] at pi = pi_old, with A normalized over the estimate's pairs. The pairs
come from segments of num_steps steps, each of which begins with a reset; the statistics stay frozen. Where an estimate
needs more pairs than its whole segments have, the others come from a window: consecutive pairs from a random place in
one more segment, over the whole of which the advantages were estimated. (The first pairs of a segment would not do.
They are the starts of episodes, and the mean of their gradient is a different vector.) Within a repeat, longer
estimates contain the whole segments of shorter ones; the repeats are independent. The "true" gradient with which a
repeat is compared is that of the T pairs of all the other repeats. It is noisy too: its cosine with the real one is
about sqrt(T / (T + B)), which we call the ceiling. A cosine with it, divided by the ceiling, is what the cosine with
the real gradient would be.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from measuring import intervals, plots, runs, sampling, table
from measuring.runs import Source
from measuring.sampling import GROUP
from scipy import stats
from torch import Tensor, nn

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(runs.LabelledOptions):
    checkpoints: tuple[int, ...] = ()
    """iterations; default: 0 150 300 450, or else the first, the last with a step, and two between them"""
    pairs: tuple[int, ...] = (10_000, 100_000)
    """sizes of the estimates in state-action pairs; the size of the run's training batch is added"""
    repeats: int = 10
    """independent estimates from each number of pairs"""
    true_pairs: int = 900_000
    """least number of pairs of the "true" gradient; where the other repeats have fewer, more are sampled"""
    baselines: bool = False
    """compare the value network with a "true" value function and with none"""
    value_pairs: int = 500_000
    """pairs whose returns the "true" value function is fitted to"""


# Gradient estimates --------------------------------------------------------------------------------------------------

NETWORK, UNBIASED = "value network", "returns - true value function"
# The papers' "no baseline" uses returns in place of advantages, which is not GAE with V = 0. The directions of all are
# compared with that of the last, which does not have GAE's bias and has the least variance of those without it.
BASELINES = [NETWORK, "true value function", "discounted returns (no baseline)", UNBIASED]


class Sums(NamedTuple):
    """Sums over pairs that gradient estimates are made of; b counts the baselines and P the policy's parameters."""

    pairs: int
    A: np.ndarray  # advantages [b]
    A_sq: np.ndarray  # their squares [b]
    score: np.ndarray  # grad ln pi [P]
    weighted: np.ndarray  # A grad ln pi [b, P]

    def __add__(self, other: tuple) -> "Sums":
        return Sums(*(x + y for x, y in zip(self, other)))

    def __sub__(self, other: "Sums") -> "Sums":
        return Sums(*(x - y for x, y in zip(self, other)))


def gradient(sums: Sums, over: Sums | None = None) -> np.ndarray:
    """Returns the estimate [b, P], the mean of A grad ln pi over the pairs. A is normalized over them, or over those of
    `over`."""
    K, A, A_sq, *_ = over or sums
    mean, std = A / K, np.sqrt((A_sq - A**2 / K) / (K - 1))
    return (sums.weighted - mean[:, None] * sums.score) / (sums.pairs * (std[:, None] + 1e-8))


def measure(
    source: Source,
    seed: int,
    pairs: list[int],
    batch_size: int,
    repeats: int,
    true_pairs: int,
    value_pairs: int | None = None,
) -> dict[str, Any]:
    """Returns the cosines of a checkpoint's gradient estimates from each number of pairs, and their noise scale. Where
    value_pairs is given, it does so for each of the baselines."""
    num_steps = runs.read_config(source.run)["args"]["num_steps"]
    true_value, explained = fit_value(source, seed, value_pairs) if value_pairs else (None, {})
    # A repeat has enough segments for its longest estimate, and for its share of the others' "true" gradient.
    size = max(-(-max(pairs) // num_steps), -(-true_pairs // ((repeats - 1) * num_steps)))
    windows = [{K: K % num_steps for K in pairs if K % num_steps and K // num_steps == i} for i in range(size)]
    groups = [windows[i : i + GROUP] for i in range(0, size, GROUP)] * repeats
    calls = [(source, (seed, source.iteration, 0, i), num_steps, x, true_value) for i, x in enumerate(groups)]
    segments = sum(table.side_by_side(segment_sums, calls), [])
    estimates, totals = zip(*[add_up(segments[i : i + size], pairs) for i in range(0, repeats * size, size)])
    everything = sum(totals[1:], totals[0])
    of_size = [np.array([gradient(sums[K]) for sums in estimates]) for K in pairs]
    true = np.array([gradient(everything - own) for own in totals])
    longest = np.array([gradient(own, over=everything) for own in totals])  # keeps the noise of A's scale out of S
    T = everything.pairs - totals[0].pairs
    return dict(explained_variance=explained, true_pairs_used=T) | compare(of_size, longest, true, totals[0].pairs)


def segment_sums(
    source: Source, seed: tuple, num_steps: int, windows: list[dict[int, int]], true_value: tuple | None
) -> list[tuple[tuple, dict[int, tuple]]]:
    """Samples a fresh segment for each of the windows, and returns its sums and those of its windows. For each segment,
    `windows` gives the length of a window by the number of pairs of the estimate that the window belongs to."""
    script, args, state = sampling.fresh_state(source, seed, len(windows), num_steps)
    experience = sampling.roll_out(script, args, state)
    batch = script.estimate_advantages(args, state, experience)
    advantages = torch.stack([batch["advantages"], *other_advantages(script, args, state, experience, true_value)])
    parameters = sampling.flat_parameters(state.policy).requires_grad_()
    policy, place = sampling.with_parameters(state.policy, parameters), sampling.generator(source, *seed, 0)

    def sums(start: int, length: int) -> tuple:
        rows = slice(start, start + length)
        log_probs, A = policy(batch["obs"][rows]).log_prob(batch["actions"][rows]), advantages[:, rows]
        weights = [torch.ones(length), *A]
        found = [torch.autograd.grad(log_probs, parameters, x, retain_graph=True)[0] for x in weights]
        found, A = torch.stack(found).double().numpy(), A.double().numpy()
        return length, A.sum(1), (A**2).sum(1), found[0], found[1:]

    def window(segment: slice, length: int) -> tuple:
        return sums(segment.start + int(place.integers(num_steps - length + 1)), length)

    return [
        (sums(segment.start, num_steps), {K: window(segment, length) for K, length in of_segment.items()})
        for segment, of_segment in zip(sampling.segment_rows(experience, num_steps), windows)
    ]


def add_up(segments: Iterable[tuple], pairs: list[int]) -> tuple[dict[int, Sums], Sums]:
    """Turns a repeat's segments and windows into the sums of its estimate from each number of pairs, and of all
    segments."""
    total, estimates = Sums(*[0] * len(Sums._fields)), {}
    for segment, windows in segments:
        estimates |= {K: total + window for K, window in windows.items()}
        total += segment
        estimates |= {K: total for K in pairs if K == total.pairs}
    return estimates, total


def other_advantages(
    script: ModuleType, args: Any, state: Any, experience: dict[str, Any], true_value: tuple | None
) -> list[Tensor]:
    """Returns the advantages [B] with each of the other baselines, given the "true" value function as parameters, scale
    and shift. The list is empty where it is None."""
    if true_value is None:
        return []
    parameters, scale, shift = true_value
    network = sampling.with_parameters(state.value, torch.from_numpy(parameters))
    monte_carlo = replace(args, gae_lambda=1.0)
    true_state = sampling.changed(state, value=lambda obs: network(obs) * scale + shift)
    gae, unbiased = (script.estimate_advantages(x, true_state, experience)["advantages"] for x in (args, monte_carlo))
    return [gae, returns(script, args, state, experience), unbiased]


def returns(script: ModuleType, args: Any, state: Any, experience: dict[str, Any]) -> Tensor:
    """Returns the discounted returns [B] of the scaled rewards, which are what GAE's targets are with lambda 1. Where
    an episode was cut off, by a time limit or the end of a segment, the value network estimates the rest."""
    return script.estimate_advantages(replace(args, gae_lambda=1.0), state, experience)["value_targets"]


def obs_and_returns(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> dict[str, np.ndarray]:
    """Returns the observations and returns of fresh segments. Of millions of pairs, only what the fit needs should
    leave the worker."""
    script, args, state = sampling.fresh_state(source, seed, num_envs, num_steps)
    experience = sampling.roll_out(script, args, state)
    return dict(obs=experience["obs"], returns=returns(script, args, state, experience).numpy())


def fit_value(source: Source, seed: int, pairs: int) -> tuple[tuple[np.ndarray, float, float], dict[str, float]]:
    """Fits the "true" value function: a new network of the run's architecture, trained on the standardized returns of
    many pairs. Returns it as its parameters [P], scale and shift, and the explained variance of returns by it and by
    the run's own network, on a tenth of the pairs that was held out."""
    script, args, state = sampling.checkpoint_state(source)
    data = sampling.collect(source, (seed, source.iteration, 3), pairs, obs_and_returns)
    obs, targets = torch.from_numpy(data["obs"]), torch.from_numpy(data["returns"])
    # This is enough: at every checkpoint that we looked at, the fit explains more variance than the run's own network.
    train, size, epochs = len(obs) - len(obs) // 10, 512, 20
    scale, shift = targets[:train].std().item(), targets[:train].mean().item()
    network = sampling.new_state(script, args).value
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
        values = dict(value_network=state.value(obs[train:]), true_value_function=network(obs[train:]) * scale + shift)
    left = {name: (x - targets[train:]).var() / targets[train:].var() for name, x in values.items()}
    return (sampling.flat_parameters(network).numpy(), scale, shift), {name: 1 - x.item() for name, x in left.items()}


def compare(estimates: list[np.ndarray], longest: np.ndarray, true: np.ndarray, pairs: int) -> dict[str, Any]:
    """Computes for each baseline the cosines of the estimates, a list over numbers of pairs, with one another
    (variance), with the "true" gradient of the same baseline (convergence) and with that of the unbiased one
    (direction, because estimates can agree with one another and yet point elsewhere). The noise scale comes from the
    repeats' longest estimates, each from `pairs` pairs. All gradients are [repeats, b, P]; in `true`, a repeat has the
    gradient that it is compared with."""
    numbers, used = dict(noise_scale={}, variance={}, convergence={}, direction={}), BASELINES[: true.shape[1]]
    for b, baseline in reversed(list(enumerate(used))):
        scale = numbers["noise_scale"][baseline] = noise_scale(longest[:, b], pairs)
        T = pairs * (len(true) - 1)
        scale["ceiling"] = scale["pairs"] and (T / (T + scale["pairs"])) ** 0.5
        numbers["variance"][baseline] = [intervals.pairwise(intervals.cosines(x[:, b], x[:, b])) for x in estimates]
        found = [with_true(x[:, b], true[:, b], longest[:, b], scale["ceiling"]) for x in estimates]
        numbers["convergence"][baseline] = found
        if UNBIASED in used:
            ceiling = numbers["noise_scale"][UNBIASED]["ceiling"]
            found = [with_true(x[:, b], true[:, -1], longest[:, -1], ceiling) for x in estimates]
            numbers["direction"][baseline] = found
    return numbers


def with_true(estimates: np.ndarray, true: np.ndarray, longest: np.ndarray, ceiling: float | None) -> dict[str, Any]:
    """Returns the cosine of each estimate [n, P] with the "true" gradient [n, P] that it is compared with, and their
    mean, its interval, and what the mean would be with the real gradient. The "true" gradients are made of longest
    [n, P]. The interval is Student's t with the jackknife's standard error. The cosines share what they are compared
    with, so a bootstrap that takes them as independent covers the truth in 75 to 90 % of cases, and this in 95 to
    99 %. There is none for n < 3. `without` has the means from which the jackknife takes its standard error."""
    found, without, n = np.diagonal(intervals.cosines(estimates, true)), jackknife(estimates, longest), len(estimates)
    mean, ends = found.mean().item(), None
    if without is not None:
        half = (stats.t.ppf(0.975, n - 1) * (n - 1) ** 0.5 * np.std(without)).item()
        ends = [mean - half, mean + half]
    numbers = dict(mean=mean, corrected=ceiling and mean / ceiling, interval=ends)
    return numbers | dict(all=found.tolist(), without=without)


def jackknife(estimates: np.ndarray, longest: np.ndarray) -> list[float] | None:
    """Returns the mean cosine [n] of each estimate [n, P] with the sum of the other repeats' longest ones, where each
    repeat in turn is left out of everything. It is None for n < 3."""
    n, lengths = len(estimates), np.linalg.norm(estimates, axis=1)
    if n < 3:
        return None
    products, squares = estimates @ longest.T, longest @ longest.T

    def mean_cosine(kept: np.ndarray) -> float:
        others = 1 - np.eye(len(kept))
        of_others = np.sqrt((others @ squares[np.ix_(kept, kept)] * others).sum(1))
        return ((products[np.ix_(kept, kept)] * others).sum(1) / (lengths[kept] * of_others).clip(1e-30)).mean().item()

    return [mean_cosine(np.delete(np.arange(n), i)) for i in range(n)]


def noise_scale(gradients: np.ndarray, pairs: int, resamples: int = 500) -> dict[str, Any]:
    """Estimates B = tr(S) / |g|^2 (McCandlish et al. 2018, App. A) from independent estimates [n, P] of g, each from
    `pairs` pairs in whole segments. Since E[g_i . g_j] = |g|^2 and E|g_i|^2 = |g|^2 + tr(S) / pairs, both are found
    without bias. S is that of segments, expressed per pair, because neighbouring pairs are correlated. B and the ends
    of its 95 % bootstrap interval over the estimates (one that is drawn twice is not multiplied by itself) are None
    where |g|^2 is not found to be positive; then B is too large to be told from so few pairs. With ten estimates, the
    interval contains B in 91 to 94 % of cases where the noise has 20 effective dimensions, tr(S)^2 / tr(S^2), or more.
    With six it does so in 90 %, with two in 86 %, and B is then about 5 % and 13 % too small. `products` has the
    products g_i . g_j for i <= j, row by row, and `scatter` those of the estimates' deviations from their mean; all
    else follows from them."""
    around = gradients - gradients.mean(0)  # S does not depend on g, whose noise would hide a small S in the draws
    products, scatter = gradients @ gradients.T, around @ around.T

    def squares(drawn: np.ndarray) -> tuple[float, float]:
        place, unlike = np.ix_(drawn, drawn), drawn[:, None] != drawn
        trace = pairs * (scatter.diagonal()[drawn].mean() - scatter[place][unlike].mean())
        return products[place][unlike].mean(), trace

    n = len(gradients)
    grad_sq, trace = map(float, squares(np.arange(n)))
    draws = np.random.default_rng(0).integers(n, size=(resamples, n))
    found = np.array([squares(drawn) for drawn in draws if np.ptp(drawn)])
    ends = np.percentile(inverse_scale(*found.T), [97.5, 2.5]).tolist()  # those of 1 / B, which has no pole
    B, *interval = (1 / x if x > 0 else None for x in (inverse_scale(grad_sq, trace).item(), *ends))
    numbers = dict(pairs=B, interval=interval, inverse_interval=ends[::-1]) if n > 2 else dict(pairs=B, interval=None)
    numbers |= dict(grad_sq=grad_sq, trace=trace, estimates=n, estimate_pairs=pairs)
    above = np.triu_indices(n)
    return numbers | dict(products=intervals.raw(products[above]), scatter=intervals.raw(scatter[above]))


def inverse_scale(grad_sq: np.ndarray | float, trace: np.ndarray | float) -> np.ndarray:
    """Returns 1 / B, or 0 where all gradients vanish, as they do if no action ever changes the reward."""
    return np.divide(grad_sq, trace, out=np.zeros(np.shape(trace)), where=np.not_equal(trace, 0))


# Figures -------------------------------------------------------------------------------------------------------------

COSINES = dict(variance="cosine between\nestimates", convergence='cosine with the\n"true" gradient')


def over_runs(measured: list[dict[str, Any]]) -> tuple[float, float, float, float]:
    """Returns, for the runs of a setting at a checkpoint, the mean iteration, their noise scale and the ends of its
    interval. The mean is taken of 1 / B, which has no pole and to which the cosines of estimates from few pairs are
    proportional. The interval says how well this mean is known for these very runs. Where it does not exclude |g|^2 =
    0, B and its upper end are inf."""
    scales = [row["noise_scale"][NETWORK] for row in measured]
    inverse = np.array([inverse_scale(scale["grad_sq"], scale["trace"]) for scale in scales])
    ends = np.array([scale.get("inverse_interval", [np.nan] * 2) for scale in scales])
    spread = np.linalg.norm(ends - inverse[:, None], axis=0) / len(inverse)
    B, low, high = (np.inf if x <= 0 else 1 / x for x in inverse.mean() + np.array([0, spread[1], -spread[0]]))
    return np.mean([row["iteration"] for row in measured]), np.inf if high == np.inf else B, low, high


def draw_noise_scale(settings: list[plots.Setting], path: Path) -> None:
    """Draws B over training: a line with intervals for each setting, and thin lines for its runs if there are several.
    A triangle at the upper edge means that B may have any size above the lower end of its interval."""
    figure, [[axis]] = plots.new_figure(1, 1, (6, 3.2))
    shown, edge = [], axis.get_xaxis_transform()
    for k, (style, of_runs) in enumerate(settings):
        for measured in of_runs if len(of_runs) > 1 else ():
            x, B, *_ = np.transpose([over_runs([row]) for row in measured])
            thin = style | dict(marker="", linewidth=0.5, alpha=0.6, label=None)
            axis.plot(x, np.where(B < np.inf, B, np.nan), **thin)
        x, B, low, high = np.transpose([over_runs(measured) for measured in zip(*of_runs)])
        x = x + 0.012 * max(x) * (k - (len(settings) - 1) / 2)  # so that intervals do not overlap
        axis.plot(x, np.where(B < np.inf, B, np.nan), **style)
        axis.vlines(x, low, high.clip(max=1e30), color=style["color"], linewidth=1)
        none = style | dict(marker="^", markersize=7, linestyle="none", label=None)
        axis.plot(x[B == np.inf], np.full(sum(B == np.inf), 0.97), transform=edge, clip_on=False, **none)
        shown += [*B, *low]
    for batch_size in dict.fromkeys(row["batch_size"] for _, of_runs in settings for x in of_runs for row in x):
        label = f"pairs of a training batch: {batch_size:,}"
        axis.axhline(batch_size, color="black", linestyle=":", linewidth=0.8, label=label)
        shown.append(batch_size)
    if np.inf in shown:
        axis.plot([], [], "^", color="0.4", markersize=6, label="a lower bound only")
    shown = [y for y in shown if y < np.inf]
    axis.set(yscale="log", ylim=(min(shown) / 2, max(shown) * 4))
    axis.set(xlabel="iteration", ylabel="noise scale (state-action pairs)")
    plots.save_figure(figure, path)


def draw_cosines(axis: Axes, measured: list[dict[str, Any]], name: str, baseline: str, style: dict[str, Any]) -> None:
    """Draws the cosines of a setting at a checkpoint and, where each run has one, the mean ceiling of the "true"
    gradients."""
    plots.draw_setting(axis, [(row["pairs"], row[name][baseline]) for row in measured], style)
    of = UNBIASED if name == "direction" else baseline
    ceilings = [row["noise_scale"][of]["ceiling"] for row in measured]
    if name != "variance" and all(ceilings):
        axis.axhline(np.mean(ceilings), color=style["color"], linestyle="--", linewidth=0.8)
    for batch_size in dict.fromkeys(row["batch_size"] for row in measured):
        axis.axvline(batch_size, color="black", linestyle=":", linewidth=0.8)


def draw_rows(rows: list[tuple[str, str, list[tuple[list, str, dict]]]], path: Path) -> None:
    """Draws a column for each checkpoint. A row of panels is given as its label, what it shows of what was measured,
    and its lines, each of which is given as runs, baseline and style."""
    titles = [plots.title(x) for x in zip(*[measured for of_runs, *_ in rows[0][2] for measured in of_runs])]
    size = 1.9 * len(titles) + 0.6, 1.9 * len(rows) + 0.3
    figure, axes = plots.new_figure(len(rows), len(titles), size, sharex=True, sharey=True)
    for (label, name, lines), panels in zip(rows, axes):
        panels[0].set_ylabel(label)
        for of_runs, baseline, style in lines:
            for axis, measured in zip(panels, zip(*of_runs)):
                draw_cosines(axis, measured, name, baseline, style)
    for text, top, bottom in zip(titles, axes[0], axes[-1]):
        top.set_title(text, fontsize=10)
        bottom.set(xlabel="state-action pairs", xscale="log")
        bottom.tick_params(axis="x", which="minor", labelbottom=False)  # they would overlap
    line = dict(color="0.4", linestyle="--", linewidth=0.8)
    axes[0, 0].plot([], [], label='ceiling set by the noise of the "true" gradient', **line)
    axes[0, 0].plot([], [], label="pairs of a training batch", color="black", linestyle=":", linewidth=0.8)
    plots.save_figure(figure, path)


def draw_gradients(settings: list[plots.Setting], path: Path) -> None:
    """Draws a row for variance and one for convergence, with a line for each setting (CL Fig. 9, 10)."""
    lines = [(of_runs, NETWORK, style) for style, of_runs in settings]
    draw_rows([(label, name, lines) for name, label in COSINES.items()], path)


def draw_baselines(settings: list[plots.Setting], path: Path) -> None:
    """Draws for each setting a row for variance and one for direction, with a line for each baseline (CL Fig. 4)."""
    looks = dict(zip(BASELINES[:-1], ["-", (0, (1, 1)), "-."]))
    rows = []
    for style, of_runs in settings:
        lines = [(of_runs, x, style | dict(linestyle=look, label=x)) for x, look in looks.items()]
        rows.append((f"{style['label']}\n{COSINES['variance']}", "variance", lines))
        rows.append((f"{style['label']}\ncosine with the\nunbiased gradient", "direction", lines))
    draw_rows(rows, path)


def say(settings: list[plots.Setting]) -> None:
    """Prints a line for each setting and checkpoint, with means where a setting has several runs."""
    for style, of_runs in settings:
        for measured in zip(*of_runs):
            print(f"{style['label']}, {plots.title(measured)}: {describe(measured)}")
            for explained in (row["explained_variance"] for row in measured if row["explained_variance"]):
                text = ", ".join(f"{x:.3f} by the {name.replace('_', ' ')}" for name, x in explained.items())
                print(f"    explained variance of held-out returns: {text}")


def describe(measured: list[dict[str, Any]]) -> str:
    """Says what the noise scale means for the training batch, for the runs of a setting at a checkpoint."""
    K, (_, B, *ends) = measured[0]["batch_size"], over_runs(measured)
    at = [row["pairs"].index(K) for row in measured]
    found = [[row[name][NETWORK][i]["mean"] for row, i in zip(measured, at)] for name in COSINES]
    cosines = 'measured {:.2f}, and with the "true" gradient {:.2f}'.format(*map(np.mean, found))
    if B == np.inf:
        low = ends[0]
        if np.isnan(low):
            return f"there are too few estimates to tell the noise scale ({cosines})"
        if low == np.inf:
            return f"no gradient was found in so few pairs ({cosines})"
        text = f"the noise scale exceeds {two_digits(low)} pairs, and the sample is too small to say by how much"
        return f"{text}: two estimates from {K:,} have a cosine of less than {K / (K + low):.2g} ({cosines})"
    share = f"1/{B / K:.0f} of" if B > 2 * K else f"{K / B:.1f} times"
    interval = "" if np.isnan(ends).any() else " [{}, {}]".format(*map(two_digits, ends))
    of = f", mean of {len(measured)} runs" * (len(measured) > 1)
    text = f"a batch of {K:,} is {share} the noise scale ({two_digits(B)}{interval} pairs{of}): two estimates have a "
    return text + f"cosine of {K / (K + B):.2g} ({cosines})"


def two_digits(x: float) -> str:
    return f"{float(f'{x:.2g}'):,.0f}" if x < np.inf else "unbounded"


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = runs.read_options(Args, argv, __doc__, pairs=2, repeats=2, value_pairs=10)  # a tenth of these is held out
    opened = runs.open_runs(args.runs, args.script, args.baselines)
    styles = plots.run_styles(args.runs, args.labels)
    chosen = [runs.choose(sources, args.checkpoints) for sources in opened]
    if len(set(map(len, chosen))) > 1:
        runs.stop("the runs have different numbers of checkpoints; name those to measure with --checkpoints")
    batches = {(style["label"], runs.batch_size(runs.read_config(x.run))) for style, [x, *_] in zip(styles, chosen)}
    if unlike := [label for label in dict(batches) if len({size for name, size in batches if name == label}) > 1]:
        runs.stop(f"--labels: runs of {' and '.join(unlike)} have batches of different sizes; label them apart")
    rows = iter(table.fill(args, "gradient", measure, [(x, sizes(args, x)) for x in sum(chosen, [])]))
    settings = plots.by_setting(styles, [[next(rows) for _ in sources] for sources in chosen])
    path = runs.figure_path(args, "gradient")
    say(settings)
    draw_noise_scale(settings, path.with_stem("gradient_noise_scale"))
    draw_gradients(settings, path)
    if args.baselines:
        draw_baselines(settings, path.with_stem("gradient_baselines"))


def sizes(args: Args, source: Source) -> dict[str, Any]:
    """Returns how much is measured at a checkpoint."""
    batch_size = runs.batch_size(runs.read_config(source.run))
    found = dict(pairs=sorted({batch_size, *args.pairs}), batch_size=batch_size, repeats=args.repeats)
    return found | dict(true_pairs=args.true_pairs) | (dict(value_pairs=args.value_pairs) if args.baselines else {})


if __name__ == "__main__":
    runs.run_program(main)
