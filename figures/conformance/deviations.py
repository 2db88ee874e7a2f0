"""Plants deviations into an honest PPO, one at a time, asks diagnostics/conformance about each, and counts its answers.

    python figures/conformance/deviations.py planted    # reads planted.json, writes deviations-planted.json

A deviation is an edit of honest.py that the family does not have: in `function`, `old` becomes `new`. `but` says which
details the edit changes, to a way of the family's or to another, of which nothing may be said. Of all others it must be
said what is said of the honest one, or nothing. Nobody reads the answers; they are judged as follows.

- exact: a term or part is said to be everywhere a member's by a factor, and nothing is left over; or it is said that
  the answer changes from call to call.
- pointed: all numbers that are named are numbers that the edit changed, and they are less than half of all, or leave
  out a whole part.
- none: it is said that the function is none of the family, and no more.
- wrong: a detail is said to be what it is not, or to be that but for the numbers that are named, while the edit changed
  others, too; a number is named that the edit did not change; or, worst of all, the function is said to be a member.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

ROOM = Path(__file__).parent
sys.path.append(str(ROOM.parents[1] / "diagnostics/conformance"))

import comparison  # noqa: E402

HONEST = (ROOM / "honest.py").read_text()


def adapter_of(source: str) -> SimpleNamespace:
    scope = {}
    exec(compile(source, "honest.py", "exec"), scope)
    return SimpleNamespace(**scope)


def judge(entry: dict, truth: dict[str, str], changed: dict[str, list[str]], size: int) -> str:
    """Returns whether what is said about a deviation is exact, pointed, none or wrong."""
    said = {detail: x for detail, x in entry["way"].items() if x not in ("not clear", "not seen")}
    if entry["verdict"] != "none" or any(truth[detail] != option for detail, option in said.items()):
        return "wrong"
    if any(set(rows) - set(changed[part]) for part, rows in entry["off"].items()):
        return "wrong"
    others = any(set(rows) - set(entry["off"].get(part, ())) for part, rows in changed.items())  # which are not named
    if others and any(truth[detail] != option for detail, option in entry["partly"].items()):
        return "wrong"
    if not entry["off"]:
        return "exact" if entry["factored"] else "none"
    named = sum(map(len, entry["off"].values()))
    return "pointed" if changed.keys() - entry["off"] or 2 * named < size else "none"


def main(name: str) -> None:
    answers = {x: comparison.answers(adapter_of(HONEST), x) for x in comparison.DETAILS}
    honest = {x: comparison.search(x, numbers) for x, numbers in answers.items()}
    table = []
    for deviation in json.loads((ROOM / f"{name}.json").read_text()):
        function, old = deviation["function"], deviation["old"]
        starts = [0] if old not in HONEST.split(f"def {function}(")[1] else [HONEST.index(f"def {function}(")]
        at = HONEST.index(old, *starts)  # in the function, or in what it uses
        adapter = adapter_of(HONEST[:at] + deviation["new"] + HONEST[at + len(old) :])
        try:
            found = comparison.answers(adapter, function)
        except comparison.Refused as error:
            said, verdict = [str(error)], "exact"
        else:
            near = {part: comparison.near(x, answers[function][part]) for part, x in found.items()}
            rows = comparison.rows_of(function)
            changed = {part: [rows[part][i] for i in (~same).nonzero()[0]] for part, same in near.items()}
            entry = comparison.search(function, found)
            truth, size = honest[function]["way"] | deviation.get("but", {}), sum(x.size for x in found.values())
            said, verdict = entry["says"], judge(entry, truth, changed, size)
        table.append(dict(function=function, what=deviation["what"], verdict=verdict, said=said))
        print(f"{verdict:8} {function:14} {deviation['what']}")
    counts = Counter(x["verdict"] for x in table)
    (ROOM / f"deviations-{name}.json").write_text(json.dumps(dict(counts=counts, table=table), indent=1) + "\n")
    print(", ".join(f"{counts[x]} {x}" for x in ("exact", "pointed", "none", "wrong")), f"of {len(table)}")


if __name__ == "__main__":
    main(sys.argv[1])
