"""Asks the program beside it about deviations that the family does not have and about right implementations in other
styles, and counts its answers.

    python figures/conformance/deviations.py                              # those of written.toml
    python figures/conformance/deviations.py planted fresh later last    # the lists of earlier rounds

A deviation is an edit of the honest PPO in written.toml: in `function`, `old` becomes `new`. Nobody reads the answers;
they are judged so.

- exact: the number that explains the edit is named, or a factor, or that the answer changes from call to call, or the
  member that it makes, and nothing is left over.
- pointed: all numbers that are said to differ are numbers that the edit changed, and they are less than half of all, or
  leave out a whole part.
- none: the same, but most numbers are said to differ.
- misled: a number is said to differ from the nearest member's that the edit did not change. That is true of this
  member, but it is another than the one that was edited, and the reader looks in another place.
- wrong: a number or a factor is said to explain the edit that does not, or the function is said to be a member that it
  is not. Of a right implementation everything is wrong but the member that it is.
"""

import functools
import json
import math
import sys
import tomllib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import comparison
import family
import numpy as np
from scipy.stats import binomtest

ROOM = Path(__file__).parent
WRITTEN = tomllib.loads((ROOM / "written.toml").read_text())
HONEST = WRITTEN["honest"]


def adapter_of(source: str) -> SimpleNamespace:
    scope = {}
    exec(compile(source, "written.toml", "exec"), scope)
    return SimpleNamespace(**scope)


honest = functools.cache(lambda function: comparison.answers(adapter_of(HONEST), function))


def same(way: dict[str, str], expected: dict[str, str]) -> bool:
    """Tells whether a member is the expected one, as far as it is seen. Of `another` way anything may be said."""
    return all({x, expected[detail]} & {"not seen", "another"} or x == expected[detail] for detail, x in way.items())


def judge(entry: dict, deviation: dict, usual: dict[str, str], changed: dict[str, set[str]], size: int) -> str:
    """Returns whether what is said about a deviation is exact, pointed, none or wrong."""
    expected, free = usual | deviation.get("but", {}), deviation.get("free", {})
    if entry["verdict"] != "none":
        told = expected != usual and "another" not in expected.values() and same(entry["way"], expected)
        return "exact" if told else "wrong"
    if any(x not in free or not math.isclose(free[x], y, rel_tol=1e-3) for x, y in entry["free"].items()):
        return "wrong"
    named = {part: set(rows) for part, rows in entry["off"].items()}
    if any(rows - changed[part] for part, rows in named.items()):
        return "misled"
    if not named:
        return "exact" if same(entry["way"], expected | dict.fromkeys(free, "another")) else "misled"
    return "pointed" if changed.keys() - named or 2 * sum(map(len, named.values())) < size else "none"


def ask(listed: dict) -> dict[str, str | list[str]]:
    """Returns what is said about a deviation or a right implementation, and what that is worth."""
    function, right = listed["function"], "code" in listed
    if right:
        source = "import numpy as np, torch\nTENSORS = True\n" + listed["code"]
    else:
        start, old = HONEST.index(f"\ndef {function}("), listed["old"]
        at = HONEST.index(old, start if old in HONEST[start:] else 0)  # in the function, or in what it uses
        source = HONEST[:at] + listed["new"] + HONEST[at + len(old) :]
    try:
        found = comparison.answers(adapter_of(source), function)
    except comparison.Refused as error:
        return dict(verdict="wrong" if right else "exact", says=[str(error)])
    entry = comparison.search(function, found)
    if right:
        told = entry["verdict"] != "none" and same(entry["way"], next(family.members(function)) | listed["ways"])
        return dict(verdict="right" if told else "wrong", says=entry["says"])
    changed = {}
    for part, x in found.items():
        moved = np.flatnonzero(~comparison.near(x, honest(function)[part]))
        changed[part] = {comparison.rows_of(function)[part][i] for i in moved}
    usual = comparison.search(function, honest(function))["way"]
    verdict = judge(entry, listed, usual, changed, sum(x.size for x in found.values()))
    return dict(verdict=verdict, says=entry["says"])


def main() -> None:
    lists = {name: json.loads((ROOM / f"{name}.json").read_text()) for name in sys.argv[1:]}
    lists = lists or dict(deviations=WRITTEN["deviation"], right=WRITTEN["right"])
    counts = {name: Counter() for name in lists}
    for name, table in lists.items():
        for x in table:
            row = ask(x)
            counts[name][row["verdict"]] += 1
            print(f"{name}: {x['function']}, {x['what']}: {row['verdict']}", *row["says"], sep="\n    ", flush=True)
    for name, verdicts in counts.items():
        n = verdicts.total()
        for verdict, k in sorted(verdicts.items()):
            interval = binomtest(k, n).proportion_ci()  # Clopper and Pearson's
            print(f"{name}: {k} of {n} {verdict} [{interval.low:.1%}, {interval.high:.1%}]")


if __name__ == "__main__":
    main()
