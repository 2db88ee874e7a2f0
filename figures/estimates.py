"""The numbers in these folders, and the estimates and intervals that are made of them."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

sys.path.append(str(Path(__file__).parent.parent / "diagnostics"))

from measuring import intervals

FIGURES = Path(__file__).parent
PLACES = "Walker2d", "Hopper", "Humanoid"


@functools.cache
def measured(path: str) -> Any:
    return json.loads((FIGURES / f"{path}.json").read_text())


def finals(path: str) -> dict[str, np.ndarray]:
    """Returns the final rewards [seeds] of each agent."""
    return {x["label"]: np.array(x["finals"]) for x in measured(path)["settings"]}


def plain(x: float, digits: int = 0) -> str:
    return f"{round(x, digits) + 0:,.{max(digits, 0)}f}".replace("-", "−")  # + 0: no −0


def show(mean: float, low: float, high: float) -> str:
    """Writes a mean and its interval with the two or three digits of the interval's half width that mean something."""
    digits = 1 - int(np.floor(np.log10((high - low) / 6))) if high > low else 0
    return f"{plain(mean, digits)} [{plain(low, digits)}, {plain(high, digits)}]"


def in_percent(share: dict[str, Any]) -> str:
    return "{:.0f} % [{:.0f}, {:.0f}]".format(*(100 * x for x in (share["mean"], *share["interval"])))


def span(values: Iterable[float], digits: int = 0) -> str:
    values = list(values)
    return f"{plain(min(values), digits)} to {plain(max(values), digits)}"


def two_digits(x: float) -> str:
    return plain(x, 1 - int(np.floor(np.log10(abs(x))))) if x else "0"


class Estimate:
    """The sum of the weighted means of independent samples [n], [m], ..., by Student's t with Satterthwaite's degrees
    of freedom. For two samples with weights 1 and -1 that is Welch's."""

    def __init__(self, samples: list[np.ndarray], weights: Iterable[float] = (1,)):
        self.samples, self.weights = samples, tuple(weights)
        parts = [w**2 * x.var(ddof=1) / len(x) for w, x in zip(self.weights, samples)]
        self.mean = float(sum(w * x.mean() for w, x in zip(self.weights, samples)))
        self.error = float(sum(parts) ** 0.5)
        spread = sum(p**2 / (len(x) - 1) for p, x in zip(parts, samples))
        self.freedom = sum(parts) ** 2 / spread if spread else 1
        self.seeds = min(map(len, samples))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        half = float(stats.t.ppf(0.5 + level / 2, self.freedom)) * self.error
        return self.mean - half, self.mean + half

    def bootstrapped(self, level: float = 0.95) -> tuple[float, float]:
        weighted = intervals.bootstrap(
            lambda *x: sum(w * y.mean(-1) for w, y in zip(self.weights, x)), *self.samples, level=level
        )
        return tuple(weighted["interval"])

    def ends(self, level: float = 0.95) -> tuple[float, float]:
        """Returns the least and the largest end of both kinds of interval, so that no verdict depends on the kind."""
        both = self.interval(level), self.bootstrapped(level)
        return min(x for x, _ in both), max(x for _, x in both)

    def p(self) -> float:
        """Returns the two-sided p-value for 0."""
        return float(2 * stats.t.sf(abs(self.mean) / self.error, self.freedom))

    def needed(self, size: float, errors: float = 1.96 + 0.84) -> int:
        """Returns with how many seeds, by the normal approximation, an effect of this size is so many standard errors
        from 0: as many as show it in four of five cases."""
        return int(np.ceil(self.seeds * (errors * self.error / size) ** 2))

    def __str__(self) -> str:
        return show(self.mean, *self.interval())


# Runs of a few seeds -----------------------------------------------------------------------------------------------

EVERY = range(1_000_000)  # iterations
OfSeed = dict[str, list[dict[str, Any]]]  # a diagnostic's cells of one seed, by agent


def agent(cell: dict[str, Any]) -> str:
    """Returns which of CL's PPO and TRPO and IM's PPO-M made the run."""
    if cell["algo"] == "trpo_plus":
        return "TRPO"
    # The folder of one PPO-M spells its arguments out, and that of another has a hash instead.
    return "PPO" if "policy-lr" in cell["run"] and "no-reward-scale" not in cell["run"] else "PPO-M"


def by_seed(path: str, iterations: Container[int] = EVERY) -> list[OfSeed]:
    """Returns a diagnostic's cells at these iterations by agent, for each seed."""
    found = {}
    for x in measured(path):
        if x["iteration"] in iterations:
            seed = int(x["run"].rpartition("seed")[2])
            found.setdefault(seed, {}).setdefault(agent(x), []).append(x)
    return [found[seed] for seed in sorted(found)]


def in_places(path: str, iterations: Container[int] = EVERY, places: Iterable[str] = PLACES) -> dict:
    """Returns by environment what `by_seed` finds in its file."""
    return {env: by_seed(path.format(env.lower()), iterations) for env in places}
