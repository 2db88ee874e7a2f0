"""What a time limit is worth, by protocol.md."""

from collections.abc import Iterable

import numpy as np
from estimates import Estimate, Runs, plain
from planned import Tests, column, draw_finals, share_above, with_every_control
from scipy import stats

MARGIN, PLACES = 200, ("Walker2d", "HalfCheetah")
runs = Runs("time_limits/finals")


def primary() -> Tests:
    return {"on − off": {place: runs(place, "on - off") for place in PLACES}}


def of_every_run() -> Tests:
    """Returns the same with all runs that bootstrap, of whatever room."""
    return {"on − off": {place: with_every_control(runs, place, "on - off", "on") for place in PLACES}}


def probability() -> tuple[float, float]:
    """Returns the probability that a run on HalfCheetah that bootstraps ends above one that does not, and the p-value
    of the Mann-Whitney test."""
    on, off = (runs.of("HalfCheetah")[x] for x in ("on", "off"))
    found = stats.mannwhitneyu(on, off)
    return found.statistic / (len(on) * len(off)), found.pvalue


def as_text() -> str:
    above, p = probability()
    return f"{plain(above, 2)} (p = {p:.2g})"


def median(setting: str) -> float:
    return float(np.median(runs.of("HalfCheetah")[setting]))


def explained_variance(place: str) -> Estimate:
    """Returns on − off of the explained variance, by each setting's own targets, over the second half of training."""
    return Estimate([column(runs, place, x, "explained_variance") for x in ("on", "off")], (1, -1))


def levels() -> Iterable[list[str]]:
    yield ["", "on", "off"]
    for place in PLACES:
        yield [f"{place}, final reward", *(str(runs(place, x)) for x in ("on", "off"))]
    yield ["HalfCheetah, above 2,500", *(share_above(runs.of("HalfCheetah")[x]) for x in ("on", "off"))]


PICTURES = dict(limits=lambda: draw_finals(runs, ("on", "off"), PLACES))
