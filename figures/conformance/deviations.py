"""Plants deviations into an honest PPO, one at a time, asks figures/conformance about each, and counts its answers.

    python figures/conformance/deviations.py planted    # reads planted.json, writes deviations-planted.json

A deviation is an edit of honest.py that the family does not have: in `function`, `old` becomes `new`. `but` says which
details the edit changes, to a way of the family's or to another, of which nothing may be said. Of all others it must be
said what is said of the honest one, or nothing. Nobody reads the answers; they are judged as follows.

- exact: a term or part is said to be everywhere a member's by a factor, and nothing is left over; or it is said that
  the answer changes from call to call.
- pointed: all numbers that are named are numbers that the edit changed, and they are less than half of all, or leave
  out a whole part.
- none: it is said that the function is none of the family, and no more.
- wrong: a number is named that the edit did not change; a detail is said to be what it is not, but for the numbers that
  are named; or, worst of all, the function is said to be a member. (If all numbers that the edit changed are named, a
  detail may be said to be what it is in the honest one.)
"""

import functools
import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

ROOM = Path(__file__).parent
sys.path.append(str(ROOM))

import comparison  # noqa: E402

HONEST = (ROOM / "honest.py").read_text()


def answers_of(source: str, function: str) -> dict:
    scope = {}
    exec(compile(source, "honest.py", "exec"), scope)
    return comparison.answers(SimpleNamespace(**scope), function)


honest = functools.cache(lambda function: answers_of(HONEST, function))


def judge(entry: dict, usual: dict, but: dict, changed: dict[str, set[str]], size: int) -> str:
    """Returns whether what is said about a deviation is exact, pointed, none or wrong."""
    said = {detail: x for detail, x in entry["way"].items() if x not in ("not clear", "not seen")}
    named = {part: set(rows) for part, rows in entry.get("off", {}).items()}
    if entry["verdict"] != "none" or any(rows - changed[part] for part, rows in named.items()):
        return "wrong"
    everything = all(rows <= named.get(part, set()) for part, rows in changed.items())  # that the edit changed
    if any(x != (usual | but)[detail] and not (everything and x == usual[detail]) for detail, x in said.items()):
        return "wrong"
    if not named:
        return "exact" if entry["factored"] else "none"
    return "pointed" if changed.keys() - named or 2 * sum(map(len, named.values())) < size else "none"


def ask(deviation: dict) -> dict[str, str | list[str]]:
    """Returns what is said about a deviation, and what that is worth."""
    function, old = deviation["function"], deviation["old"]
    start = HONEST.index(f"def {function}(")
    at = HONEST.index(old, start if old in HONEST[start:] else 0)  # in the function, or in what it uses
    row = dict(function=function, what=deviation["what"])
    try:
        found = answers_of(HONEST[:at] + deviation["new"] + HONEST[at + len(old) :], function)
    except comparison.Refused as error:
        return row | dict(verdict="exact", said=[str(error)])
    changed = {}
    for part, x in found.items():
        moved = (~comparison.near(x, honest(function)[part])).nonzero()[0]
        changed[part] = {comparison.rows_of(function)[part][i] for i in moved}
    usual, entry = comparison.search(function, honest(function))["way"], comparison.search(function, found)
    verdict = judge(entry, usual, deviation.get("but", {}), changed, sum(x.size for x in found.values()))
    return row | dict(verdict=verdict, said=entry["says"])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        table = [ask(deviation) for deviation in json.loads((ROOM / f"{name}.json").read_text())]
        counts = {x: Counter(row["verdict"] for row in table)[x] for x in ("exact", "pointed", "none", "wrong")}
        (ROOM / f"deviations-{name}.json").write_text(json.dumps(dict(counts=counts, table=table), indent=1) + "\n")
        print(f"{name}:", ", ".join(f"{count} {x}" for x, count in counts.items()), f"of {len(table)}")
