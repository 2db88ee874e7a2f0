"""This module computes estimates and their intervals and writes both as text. Intervals are 95 % intervals, unless
several looks share the 5 % (Bonferroni). An estimate is dict(mean=..., interval=[low, high]). Where there can be no
interval, it is None."""

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy import stats

DRAWS = 10_000  # resamples of a bootstrap
RAW = 6000  # values that are kept beside an interval at most; 100 steps have 4,950 pairs


def raw(x: Any) -> list[float] | None:
    """Returns the values from which an interval was computed, rounded to six digits. A diagnostic keeps them, so that
    others can compute the interval again. More than RAW values are None, because they would make large files."""
    values = np.ravel(x).tolist()
    return [float(f"{value:.6g}") for value in values] if len(values) <= RAW else None


def t_interval(x: np.ndarray, looks: int = 1) -> list[float] | None:
    """Returns the interval of the mean of x [n] by Student's t. With few episodes or runs, bootstrap intervals are too
    narrow."""
    if len(x) < 2:
        return None
    half = stats.t.ppf(1 - 0.025 / looks, len(x) - 1) * np.std(x, ddof=1) / len(x) ** 0.5
    return [np.mean(x).item() - half.item(), np.mean(x).item() + half.item()]


def mean_of(x: Any) -> dict[str, Any]:
    return dict(mean=float(np.mean(x)), interval=t_interval(x))


def weighted_sum(samples: list[np.ndarray], weights: Iterable[float]) -> tuple[float, float, float]:
    """Returns the sum of the weighted means of independent samples [n], [m], ..., its standard error, and its degrees
    of freedom by Satterthwaite. For two samples with the weights 1 and -1 these are Welch's."""
    parts = [w**2 * np.var(x, ddof=1) / len(x) for w, x in zip(weights, samples)]
    spread = sum(part**2 / (len(x) - 1) for part, x in zip(parts, samples))
    mean = float(sum(w * np.mean(x) for w, x in zip(weights, samples)))
    return mean, float(sum(parts) ** 0.5), float(sum(parts) ** 2 / spread) if spread else 1.0


def contrast(samples: list[np.ndarray], weights: list[float], looks: int = 1) -> dict[str, Any]:
    """Returns the sum of the weighted means of independent samples, and its t interval."""
    if min(map(len, samples)) < 2:
        return dict(mean=float(sum(w * np.mean(x) for w, x in zip(weights, samples))), interval=None)
    mean, error, freedom = weighted_sum(samples, weights)
    half = float(stats.t.ppf(1 - 0.025 / looks, freedom)) * error
    return dict(mean=mean, interval=[mean - half, mean + half])


def difference(x: np.ndarray, y: np.ndarray, looks: int = 1) -> dict[str, Any]:
    """Returns the mean of x [n] minus the mean of y [m], which are independent samples, and its Welch interval."""
    return contrast([x, y], [1, -1], looks)


def paired_change(before: np.ndarray, after: np.ndarray) -> dict[str, Any]:
    """Returns the mean of the differences of two or more returns [n] with the same seeds, and its t interval. `pairing`
    is the interval's width divided by that of the two-sample t interval, which would treat the seeds as different
    ones."""
    n, low_high = len(before), t_interval(after - before)
    unpaired = stats.t.ppf(0.975, 2 * n - 2) * ((before.var(ddof=1) + after.var(ddof=1)) / n) ** 0.5
    pairing = ((low_high[1] - low_high[0]) / (2 * unpaired)).item() if unpaired > 0 else None
    numbers = dict(before=before.mean().item(), after=after.mean().item(), mean=(after - before).mean().item())
    return numbers | dict(interval=low_high, pairing=pairing)


def ratio_of_sums(x: np.ndarray, y: Any, ends: np.ndarray, in_logarithms: bool = False) -> dict[str, Any]:
    """Returns the sum of x [B] divided by the sum of y [B], neither of which is ever negative, and its t interval over
    the episodes of a rollout, which end where `ends` [B] is True. To first order, a ratio of two sums varies like the
    mean over episodes that is computed below (delta method). With logarithms, the interval covers better where x is
    skewed and there are few episodes. `of_episodes` has the sums of x and of y."""
    starts = np.append(0, np.flatnonzero(ends)[:-1] + 1)
    x, y = (np.add.reduceat(np.broadcast_to(z, len(ends)).astype(float), starts) for z in (x, y))
    mean = (x.sum() / max(y.sum(), 1e-30)).item()
    low_high = t_interval((x - mean * y) / y.mean().clip(1e-30) / (max(mean, 1e-30) if in_logarithms else 1))
    low_high = low_high and [mean * math.exp(z) if in_logarithms else max(0.0, mean + z) for z in low_high]
    return dict(mean=mean, interval=low_high, episodes=len(starts), of_episodes=[raw(x), raw(y)])


def bootstrap(statistic: Callable, *samples: np.ndarray, level: float = 0.95) -> dict[str, Any]:
    """Returns a statistic of samples [n], [m], ... for whose interval there is no formula, and its BCa interval if each
    sample has two runs or more. There is no interval where it degenerates because all draws are alike."""
    value, ends = float(statistic(*samples)), None
    if min(map(len, samples)) > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scipy warns where an interval degenerates
            found = stats.bootstrap(
                samples,
                lambda *x, axis: statistic(*x),
                n_resamples=DRAWS,
                batch=1000,
                vectorized=True,
                confidence_level=level,
                rng=0,
            ).confidence_interval
        ends = [float(found.low), float(found.high)] if np.isfinite(found).all() else None
    return dict(mean=value, interval=ends)


def cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns the cosine similarity [n, m] of every row of x [n, P] with every row of y [m, P]. It is 0 where one of
    the two is 0, as the step of a rejected line search is."""
    x, y = (z / np.linalg.norm(z, axis=1, keepdims=True).clip(1e-30) for z in (x, y))
    return x @ y.T


def pairwise(matrix: np.ndarray, resamples: int = 500) -> dict[str, Any]:
    """Returns the mean of the matrix [n, n] over pairs of different items, its bootstrap interval over the n items, and
    the values above the diagonal. An item that was drawn twice is not compared with itself, and two items have no
    interval. Around cosines of 0 these intervals are about one and a half times as wide as they need to be."""
    n, means = len(matrix), []
    for drawn in np.random.default_rng(0).integers(n, size=(resamples, n)):
        different = drawn[:, None] != drawn[None]
        if different.any():
            means.append(matrix[np.ix_(drawn, drawn)][different].mean())
    above = matrix[np.triu_indices(n, 1)]
    ends = np.percentile(means, [2.5, 97.5]).tolist() if n > 2 else None
    return dict(mean=above.mean().item(), interval=ends, all=above.tolist())


# Texts ---------------------------------------------------------------------------------------------------------------


def short(x: float) -> str:
    """Writes a number with three digits, or a large one with all its digits before the decimal point."""
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def percent(x: float) -> str:
    return f"{100 * x:.2g} %"


def text(numbers: dict[str, Any] | None, show: Callable[[float], str] = short) -> str:
    """Writes an estimate as its mean and, where there is one, its interval."""
    if numbers is None:
        return "-"
    ends = numbers["interval"]
    return show(numbers["mean"]) + (f" [{', '.join(map(show, ends))}]" if ends else "")
