"""What the protocols of several experiments plan alike: Student's t intervals, tests with Holm's correction, margins,
and numbers of runs with several checkpoints. (The claims of the papers, in claims.py, ask BCa intervals, too.)"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from claims import after_holm
from estimates import Estimate, Runs, in_percent, measured, plain
from matplotlib.figure import Figure
from pictures import forest
from scipy import stats

Tests = dict[str, dict[str, Estimate]]  # by what is asked, and by where: an environment, or both of them
ESCAPED = 2500  # what most of PPO's runs on HalfCheetah never reach, and some leave far behind


def by_run(rows: Iterable[dict[str, Any]], number: Callable[[dict], float]) -> dict[str, dict[tuple, float]]:
    """Returns a number of each run, which is its mean over the run's checkpoints, by environment. A run without one of
    the others' checkpoints would compare unlike things."""
    found = {}
    for x in rows:
        of_place = found.setdefault(x["env_id"].partition("-")[0], {})
        of_place.setdefault((x["algo"], x["run_seed"]), {})[x["iteration"]] = number(x)
    checkpoints = {tuple(sorted(x)) for of_place in found.values() for x in of_place.values()}
    assert len(checkpoints) <= 1, f"runs have different checkpoints: {checkpoints}"
    return {place: {run: float(np.mean([*x.values()])) for run, x in of.items()} for place, of in found.items()}


def with_both(of_runs: dict[str, dict[tuple, float]]) -> dict[str, Estimate]:
    """Returns the mean of both environments, by Satterthwaite, and the mean in each."""
    samples = {place: [*of.values()] for place, of in of_runs.items()}
    both = Estimate(samples.values(), [1 / len(samples)] * len(samples))
    return dict(both=both) | {place: Estimate([x]) for place, x in samples.items()}


def holm(tests: Tests) -> dict[str, dict[str, bool]]:
    """Returns which of all these estimates differ from 0 after Holm's correction for one another."""
    stands = iter(after_holm([x for of in tests.values() for x in of.values()]))
    return {name: {place: next(stands) for place in of} for name, of in tests.items()}


def within(x: Estimate, margin: float) -> bool:
    """Answers whether a difference is negligible: its 90 % interval lies within the margin."""
    low, high = x.interval(0.9)
    return -margin < low and high < margin


def judged(tests: Tests, margin: float | None = None, corrected: bool = True) -> list[list[str]]:
    """Returns the rows of a table of estimates. Each has its verdict, if they are corrected for one another, and where
    there is a margin, whether it is negligible."""
    places = list(dict.fromkeys(place for of in tests.values() for place in of))
    rows, stands = [["", *places]], holm(tests)
    for name, of in tests.items():
        texts = {place: str(x) for place, x in of.items()}
        for place, x in of.items():
            side = "above 0" if x.mean > 0 else "below 0"
            alone = f"{side} alone, not after Holm" if x.p() < 0.05 else "cannot tell"
            texts[place] += f"; {f'**{side}**' if stands[name][place] else alone}" * corrected
            texts[place] += "; negligible" * (margin is not None and within(x, margin))
        rows.append([name, *(texts.get(place, "") for place in places)])
    return rows


# The controls that several rooms share --------------------------------------------------------------------------------

SHARED = range(201, 211)  # seeds of ppo.py at its defaults on -v5, which six rooms have
CONTROLS = {"algorithms/now": "ppo", "bounds/finals": "no", "bounds/again": "no", "time_limits/finals": "on"}


def controls(place: str) -> dict[int, float]:
    """Returns the final rewards by seed of all runs of ppo.py at its defaults that rooms have, each once. Those that
    scripts before commit 786795d made are left out."""
    finals = {}
    for path, label in CONTROLS.items():
        for x in measured(path)["settings"]:
            if (x["label"], x["env_id"]) == (label, f"{place}-v5"):
                finals |= dict(zip(x["seeds"], x["finals"], strict=True))
    return finals


def with_every_control(runs: Runs, place: str, contrast: str, control: str) -> Estimate:
    """Returns a contrast with all of these runs in the place of the room's own."""
    of, weights = runs.of(place) | {control: [*controls(place).values()]}, runs.weights(contrast)
    return Estimate([of[x] for x in weights], weights.values())


def unlike_others(place: str) -> Estimate:
    """Returns by how much the shared runs end above all others of the same settings."""
    shared, others = ([x for seed, x in controls(place).items() if (seed in SHARED) is y] for y in (True, False))
    return Estimate([shared, others], (1, -1))


def table_of_controls() -> Iterable[list[str]]:
    yield ["final reward on -v5", "seeds 201 to 210", "all others", "n", "difference", "p"]
    for place in ("Hopper", "Walker2d", "HalfCheetah"):
        x = unlike_others(place)
        of = (str(Estimate([y])) for y in x.samples)
        yield [place, *of, f"{len(x.samples[0])} and {len(x.samples[1])}", str(x), f"{x.p():.2g}"]


def share_above(finals: Iterable[float], bound: float = ESCAPED) -> str:
    """Writes the share of runs above a bound, with Clopper and Pearson's interval."""
    above, found = int(np.sum(np.array(finals) > bound)), len(list(finals))
    ends = stats.binomtest(above, found).proportion_ci(method="exact")
    return f"{above} of {found}: {in_percent(dict(mean=above / found, interval=[ends.low, ends.high]))}"


def outward(x: float) -> str:
    """Rounds the end of an interval up to tens, so that what lies beyond is excluded."""
    return plain(np.ceil(x / 10) * 10)


def inward(x: float) -> str:
    """Rounds the end of an interval down to tens, so that what lies below is not excluded."""
    return plain(np.floor(x / 10) * 10)


def column(runs: Runs, place: str, agent: str, name: str) -> np.ndarray:
    """Returns what finals.py says of each run [seeds] under this name."""
    return np.concatenate([x[name] for x in runs.settings(place)[agent]])


def draw_finals(runs: Runs, agents: Iterable[str], places: Iterable[str]) -> Figure:
    """Draws the final rewards, with a dot for each run, and says where an agent has few of them."""
    panels, agents = {}, list(agents)
    for place in places:
        of = {x: runs(place, x) for x in agents}
        panels[f"{place}-v5"] = {f"{x} ({y.seeds} runs)" if y.seeds < 10 else x: {place: y} for x, y in of.items()}
    return forest(panels, "final reward, 95 % interval; dots are runs", dots=True, sharex=True)
