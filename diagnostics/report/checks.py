"""This module says what a check is: one function that takes what it judges and returns a verdict, or None where it
does not concern it (REINFORCE has no critic). Its docstring is the rule, which the page shows, and its thresholds stand
in it. So whoever changes or adds a check touches one place. What it cannot judge it says, with the reason."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import lab
import numpy as np
from scipy import stats

GOOD, CAUTION, BAD, CANNOT_TELL, FACT = "good", "caution", "bad", "cannot tell", "no verdict"
DIFFERS = "differs"  # it is not what our script does, and may be meant
MEANT = "meant"  # it would be bad or differ, and whoever asks has said that it is meant
ALARMS = BAD, CAUTION, DIFFERS
ORDER = [*ALARMS, MEANT, CANNOT_TELL, FACT, GOOD]


class Verdict(NamedTuple):
    status: str
    text: str  # empty where it is good, since the check itself says what was tested
    number: str = ""  # what was measured, and how much a good verdict rests on


class Check(NamedTuple):
    find: Callable[[Any], Verdict | None]
    tested: str  # what is so where the verdict is good
    where: str  # the script's functions to look at
    after: tuple[str, ...]  # the checks whose alarm explains one of this check, which is then no finding


def into(checks: list[Check]) -> Callable:
    """Returns the decorator that adds a function to a list of checks."""
    return lambda tested, where="", after="": (
        lambda find: checks.append(Check(find, tested, where, tuple(after.split()))) or find
    )


def judge(checks: list[Check], subject: Any, before: Any = (), meant: Any = ()) -> list[dict[str, Any]]:
    """Returns what each check finds that has something to say. A script may do what no check expects; then that check
    says so, and the others are still made. `before` is what other checks have found, and `meant` names those whose
    alarms are meant."""
    found = []
    for find, tested, where, after in checks:
        try:
            verdict = find(subject)
        except Exception as error:
            name = f"{type(error).__name__}: {' '.join(str(error).split())}"
            verdict = Verdict(CANNOT_TELL, f"Whether {tested} could not be tested: {name}")
        if not verdict:
            continue
        # What only differs explains no more than what differs, too.
        explains = {BAD, verdict.status} if verdict.status == DIFFERS else {BAD}
        causes = [x["check"] for x in [*before, *found] if x["status"] in explains and x["check"] in after]
        if verdict.status in ALARMS and find.__name__ in meant:
            verdict = verdict._replace(status=MEANT)
        elif causes and verdict.status in (*ALARMS, CANNOT_TELL):
            text = f"Whether {tested} is not judged: what {causes[0]} says may be the cause. Mend that first."
            verdict = Verdict(CANNOT_TELL, text, verdict.number)
        about = dict(check=find.__name__, tested=tested, where=where, rule=" ".join(find.__doc__.split()))
        found.append(about | verdict._asdict())
    return found


def verdict(wrong: Any, text: str, number: str = "", status: str = BAD) -> Verdict:
    """Returns this status and text where something is wrong, and good otherwise."""
    return Verdict(status, text, number) if wrong else Verdict(GOOD, "", number)


def of_rows(wrong: np.ndarray, text: str) -> Verdict:
    """Judges by the rows [B] that are wrong."""
    return verdict(wrong.any(), text, f"wrong in {wrong.sum():,} of {len(wrong):,} rows")


def unlike(x: Any, y: Any, share: float = 1e-4) -> np.ndarray:
    """Tells for each row [B] whether two arrays [B, ...] differ by more than a share of the number or, where this is
    small, of 1 or of the largest number. The rounding of float32 stays far below the default."""
    x, y = (np.asarray(z, float).reshape(len(z), -1) for z in (x, y))
    assert x.shape == y.shape, f"shapes {x.shape} and {y.shape}"  # numpy would compare each row with all others
    return ~(np.abs(x - y) <= share * np.maximum(np.abs(y), min(1.0, np.abs(y).max(initial=1e-30)))).all(1)


# Intervals and texts -------------------------------------------------------------------------------------------------


def difference(x: np.ndarray, y: np.ndarray, looks: int = 1) -> dict[str, Any]:
    """Returns the mean of x [n] minus the mean of y [m], which are independent samples, and its Welch interval, at 95 %
    or, where several looks share the 5 %, at more (Bonferroni)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns where all numbers of a sample are the same
        ends = stats.ttest_ind(x, y, equal_var=False).confidence_interval(1 - 0.05 / looks)
    return dict(mean=float(np.mean(x) - np.mean(y)), interval=[float(ends.low), float(ends.high)])


def share_of_rows(x: np.ndarray, ends: np.ndarray) -> dict[str, Any]:
    """Returns the mean of x [B], which is never negative, and its 95 % interval over the episodes of a rollout, which
    end where `ends` [B] is True. To first order, a sum divided by a number of rows varies like the mean over episodes
    that is computed here (delta method)."""
    starts, mean = np.append(0, np.flatnonzero(ends)[:-1] + 1), float(x.mean())
    sums, lengths = (np.add.reduceat(z.astype(float), starts) for z in (x, np.ones(len(x))))
    around = lab.mean_of((sums - mean * lengths) / lengths.mean())["interval"]
    return dict(mean=mean, interval=around and [max(0.0, mean + z) for z in around])


def percent(x: float) -> str:
    return f"{float(f'{100 * x:.2g}'):,g} %"
