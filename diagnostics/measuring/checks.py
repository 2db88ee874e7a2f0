"""This module says what a check is: one function that takes what it judges and returns a verdict, or None where it
could test nothing. Its docstring is the rule, which the page prints, and its thresholds stand in it. So whoever changes
or adds a check touches one place."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

GOOD, CAUTION, BAD, CANNOT_TELL, FACT = "good", "caution", "bad", "cannot tell", "no verdict"


class Verdict(NamedTuple):
    status: str
    text: str  # empty where it is good, since the check itself says what was tested
    number: str = ""  # what was measured, and how much a good verdict rests on


class Check(NamedTuple):
    find: Callable[[Any], Verdict | None]
    tested: str  # what is so where the verdict is good
    where: str  # the script's functions to look at, or the diagnostic that measures the rows


def into(checks: list[Check]) -> Callable:
    """Returns the decorator that adds a function to a list of checks."""
    return lambda tested, where="": lambda find: checks.append(Check(find, tested, where)) or find


def judge(checks: list[Check], subject: Any) -> list[dict[str, Any]]:
    """Returns what each check finds that has something to say. A script may do what no check expects; then that check
    says so, and the others are still made."""
    found = []
    for find, tested, where in checks:
        try:
            verdict = find(subject)
        except Exception as error:
            name = f"{type(error).__name__}: {' '.join(str(error).split())}"
            verdict = Verdict(CANNOT_TELL, f"Whether {tested} could not be tested: {name}")
        if verdict:
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
    return ~(np.abs(x - y) <= share * np.maximum(np.abs(y), min(1.0, np.abs(y).max(initial=1e-30)))).all(1)
