"""The numbers in these folders, and the estimates and intervals that are made of them."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

FIGURES = Path(__file__).parent
PLACES = "Walker2d", "Hopper", "Humanoid"


@functools.cache
def measured(path: str) -> Any:
    """Returns what a file holds: a .json whole, or the rows of a .jsonl, which are as a diagnostic wrote them."""
    if (file := FIGURES / f"{path}.json").exists():
        return json.loads(file.read_text())
    return [json.loads(line) for line in file.with_suffix(".jsonl").read_text().splitlines()]


# Texts ---------------------------------------------------------------------------------------------------------------


def plain(x: float, digits: int = 0) -> str:
    return f"{round(x, digits) + 0:,.{max(digits, 0)}f}".replace("-", "−")  # + 0: no −0


def show(numbers: dict[str, Any], digits: int | None = None) -> str:
    """Writes a mean and its interval, with so many decimals or with the two or three digits of the interval's half
    width that mean something."""
    mean, (low, high) = numbers["mean"], numbers["interval"]
    if digits is None:
        digits = 1 - int(np.floor(np.log10((high - low) / 6))) if high > low else 0
    while any(end and not round(end, digits) for end in (low, high)):  # an end keeps its side of 0
        digits += 1
    return f"{plain(mean, digits)} [{plain(low, digits)}, {plain(high, digits)}]"


def scientific(p: float) -> str:
    return f"{p:.0e}".replace("e-0", "e-")


def in_percent(share: dict[str, Any]) -> str:
    return "{} % [{}, {}]".format(*(plain(100 * x) for x in (share["mean"], *share["interval"])))


def span(values: Iterable[float], digits: int = 0) -> str:
    values = list(values)
    return f"{plain(min(values), digits)} to {plain(max(values), digits)}"


def two_digits(x: float) -> str:
    return plain(x, 1 - int(np.floor(np.log10(abs(x))))) if x else "0"


def percent(x: float) -> str:
    return f"{100 * x:.2g} %"


# Estimates -----------------------------------------------------------------------------------------------------------


def weighted_sum(samples: list[np.ndarray], weights: Iterable[float]) -> tuple[float, float, float]:
    """Returns the sum of the weighted means of independent samples [n], [m], ..., its standard error, and its degrees
    of freedom by Satterthwaite. For two samples with the weights 1 and -1 these are Welch's."""
    parts = [w**2 * np.var(x, ddof=1) / len(x) for w, x in zip(weights, samples)]
    spread = sum(part**2 / (len(x) - 1) for part, x in zip(parts, samples))
    mean = float(sum(w * np.mean(x) for w, x in zip(weights, samples)))
    return mean, float(sum(parts) ** 0.5), float(sum(parts) ** 2 / spread) if spread else 1.0


def bootstrap(statistic: Callable, *samples: np.ndarray, level: float = 0.95) -> dict[str, Any]:
    """Returns a statistic of samples [n], [m], ... for whose interval there is no formula, and its BCa interval if each
    sample has two runs or more. There is no interval where it degenerates because all draws are alike."""
    value, ends = float(statistic(*samples)), None
    if min(map(len, samples)) > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scipy warns where an interval degenerates
            both = stats.bootstrap(
                samples,
                lambda *x, axis: statistic(*x),
                n_resamples=10_000,
                batch=1000,
                vectorized=True,
                confidence_level=level,
                rng=0,
            ).confidence_interval
        ends = [float(both.low), float(both.high)] if np.isfinite(both).all() else None
    return dict(mean=value, interval=ends)


class Estimate:
    """The sum of the weighted means of independent samples [n], [m], ..., by Student's t with Satterthwaite's degrees
    of freedom. For two samples with weights 1 and -1 that is Welch's."""

    def __init__(self, samples: Iterable[np.ndarray], weights: Iterable[float] = (1,)):
        self.samples, self.weights = [np.asarray(x, float) for x in samples], tuple(weights)
        self.mean, self.error, self.freedom = weighted_sum(self.samples, self.weights)
        self.seeds = min(map(len, self.samples))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        half = float(stats.t.ppf(0.5 + level / 2, self.freedom)) * self.error
        return self.mean - half, self.mean + half

    def ends(self, level: float = 0.95) -> tuple[float, float]:
        """Returns the least and the largest end of Student's and of the BCa interval, so that no verdict depends on
        the kind."""
        total = lambda *x: sum(w * y.mean(-1) for w, y in zip(self.weights, x))
        both = self.interval(level), bootstrap(total, *self.samples, level=level)["interval"]
        return min(x for x, _ in both), max(x for _, x in both)

    def p(self) -> float:
        """Returns the two-sided p-value for 0."""
        return float(2 * stats.t.sf(abs(self.mean) / self.error, self.freedom))

    def needed(self, size: float, errors: float = 1.96 + 0.84) -> int:
        """Returns with how many seeds, by the normal approximation, an effect of this size is so many standard errors
        from 0: as many as show it in four of five cases."""
        return int(np.ceil(self.seeds * (errors * self.error / size) ** 2))

    def __sub__(self, other: Estimate) -> Estimate:
        """Returns the difference of two independent estimates."""
        return Estimate([*self.samples, *other.samples], [*self.weights, *(-w for w in other.weights)])

    def __str__(self) -> str:
        return show(dict(mean=self.mean, interval=self.interval()))


class Runs:
    """The final rewards of the agents in some files, and contrasts of their means. {} in a file's name is the
    environment. "path as here/" puts this before the names of the file's agents, and "path as X=Y" takes its agent X
    alone and calls it Y. Runs of the same agent in several files are pooled by seed."""

    def __init__(self, *files: str, **named: str | dict[str, float]):
        self.files, self.named = files, named

    def settings(self, place: str) -> dict[str, list[dict[str, Any]]]:
        """Returns what the files have of each agent."""
        found = {}
        for path, _, new in (x.partition(" as ") for x in self.files):
            path, (only, _, name) = path.format(place.lower()), new.rpartition("=")
            for x in measured(path)["settings"] if (FIGURES / f"{path}.json").exists() else ():
                label = "".join(x["label"].split())  # a name in a contrast has no spaces
                if x.get("env_id", place).partition("-")[0] == place and only in ("", label):
                    found.setdefault(name if only else name + label, []).append(x)
        return found

    def of(self, place: str) -> dict[str, np.ndarray]:
        """Returns the final rewards [seeds] of each agent. A seed that was trained more than once counts once, with its
        mean, because its runs resemble one another."""
        found = {}
        for name, of in self.settings(place).items():
            seeds, finals = (np.concatenate([x[of_runs] for x in of]) for of_runs in ("seeds", "finals"))
            found[name] = np.array([finals[seeds == seed].mean() for seed in dict.fromkeys(seeds)])
        return found

    def weights(self, contrast: str | dict[str, float]) -> dict[str, float]:
        """Reads "0.5*A - B" as {A: 0.5, B: -1}. A name may also be that of a contrast."""
        if isinstance(contrast, dict):
            return contrast
        found, sign = {}, 1
        for word in contrast.split():
            if word in ("+", "-"):
                sign = 1 if word == "+" else -1
                continue
            number, _, name = word.rpartition("*")
            for x, w in (self.weights(self.named[name]) if name in self.named else {name: 1}).items():
                found[x] = found.get(x, 0) + sign * float(number or 1) * w
        return {name: w for name, w in found.items() if w}

    def places(self, contrast: str | dict[str, float]) -> list[str]:
        """Returns the environments in which all agents of a contrast were trained."""
        return [x for x in PLACES if set(self.weights(contrast)) <= set(self.settings(x))]

    def __call__(self, place: str, contrast: str | dict[str, float]) -> Estimate:
        of, weights = self.of(place), self.weights(contrast)
        return Estimate([of[x] for x in weights], weights.values())


def factorial(names: dict[str, dict[str, bool]], *changes: str) -> dict[str, float]:
    """Returns, of agents that each have some of the changes, the contrast that is the main effect of one change; of
    two, by how much more the one is worth with the other; and so on."""
    signs = {name: np.prod([1 if on[x] else -1 for x in changes]) for name, on in names.items()}
    return {name: 2 ** len(changes) * x / len(names) for name, x in signs.items()}


# Runs of a few seeds -------------------------------------------------------------------------------------------------

OfSeed = dict[str, list[dict[str, Any]]]  # a diagnostic's rows of one seed, by agent


def agent(row: dict[str, Any]) -> str:
    """Returns which of CL's PPO and TRPO and IM's PPO-M made the run."""
    if "agent" in row:  # by rows.py
        return row["agent"].removeprefix("CL-")
    if row["algo"] == "trpo_plus":
        return "TRPO"
    # Rows of before 3.0: the folder of one PPO-M spells its arguments out, and that of another has a hash instead.
    return "PPO" if "policy-lr" in row["run"] and "no-reward-scale" not in row["run"] else "PPO-M"


def by_seed(path: str, iterations: Container[int] | None = None) -> list[OfSeed]:
    """Returns a diagnostic's rows, of these iterations or of all, by agent, for each seed."""
    found = {}
    for x in measured(path):
        if iterations is None or x["iteration"] in iterations:
            seed = x.get("run_seed") or int(x["run"].rpartition("seed")[2])
            found.setdefault(seed, {}).setdefault(agent(x), []).append(x)
    return [found[seed] for seed in sorted(found)]
