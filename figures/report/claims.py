"""Is my script right, and is this run all right? What the report says of planted bugs, from what plant.py wrote."""

import sys

from claims import FIGURES
from estimates import measured

sys.path.append(str(FIGURES / "report"))

import mutants  # noqa: E402
import plant  # noqa: E402


def results() -> list[dict]:
    return measured("report/hit_rate")


def each_bug() -> list[list[str]]:
    """Returns the rows of a table with what the report said of each bug."""
    rows = [["bug", "what it does", "verdict", "checks with an alarm"]]
    for kind in dict.fromkeys(x["kind"] for x in results() if x["kind"] not in ("healthy", plant.EDITS)):
        rows.append([f"*{kind}*", "", "", ""])
        for x in [x for x in results() if x["kind"] == kind]:
            rows.append([x["name"], x["what"], plant.outcome(x), ", ".join(plant.alarms(x))])
    return rows


def rates() -> list[list[str]]:
    """Returns the rows of a table with the rates of each kind of bug, the blind set first, and of healthy runs."""
    header, *rows = plant.rates(results())
    bugs = [x for x in measured("report/blind") if not x.get("healthy")]
    counts = [mutants.exact(sum(x[name] for x in bugs), len(bugs)) for name in ("found", "named")]
    alarms, verdicts = (sum(x.get(name, 0) for x in measured("report/blind")) for name in ("alarms", "verdicts"))
    blind = ["**Bugs that the authors of an earlier report had not seen, found by that report**", *counts]
    beside = ["false alarms on the four healthy runs beside them", mutants.exact(alarms, verdicts), "–"]
    return [header, blind, beside, *rows]


def each_blind() -> list[list[str]]:
    """Returns the rows of a table with what the report said of each bug of the blind set."""
    rows = [["bug", "what it does", "verdict", "what the report said"]]
    for x in [x for x in measured("report/blind") if not x.get("healthy")]:
        told = "named" if x["named"] else "found, not named" if x["found"] else "missed"
        rows.append([x["bug"], x["edit"], told, x["said"].replace("|", "/")])
    return rows


def each_script() -> list[list[str]]:
    """Returns the rows of a table with the rates of mechanical mutants of each script."""
    return mutants.by_script(measured("report/mutants"))


def each_function() -> list[list[str]]:
    """Returns the rows of a table with the rates of mechanical mutants of each function."""
    return mutants.by_function(measured("report/mutants"))


def each_missed() -> list[list[str]]:
    """Returns the rows of a table with the mutants of which the report said nothing."""
    rows = [["script", "function", "the changed line, before and after"]]
    for x in measured("report/mutants"):
        if x["outcome"] in ("missed", "report stops"):
            rows.append([x["script"], x["function"], "`" + x["what"].replace("|", "\\|").replace("`", "'") + "`"])
    return rows


def each_edit() -> list[list[str]]:
    """Returns the rows of a table with what the report said of healthy edits."""
    rows = [["edit", "what it does", "verdict", "what is said"]]
    for x in [x for x in results() if x["kind"] == plant.EDITS]:
        said = "; ".join(f"{y['check']}: {y['number']}" for y in x["findings"] if y["status"] in plant.checks.ALARMS)
        rows.append([x["name"], x["what"], plant.outcome(x), said])
    return rows


def each_healthy() -> list[list[str]]:
    """Returns the rows of a table with how many verdicts of each kind healthy runs got."""
    rows = [["healthy run", "good", "cannot tell", "caution or bad"]]
    for x in [x for x in results() if x["kind"] == "healthy"]:
        of = [y["status"] for y in x["findings"]]
        rows.append([f"`{x['what']}`", of.count("good"), of.count("cannot tell"), len(plant.alarms(x))])
    return [[str(x) for x in row] for row in rows]


TABLES = {
    "rates": rates,
    "blind": each_blind,
    "bugs": each_bug,
    "healthy": each_healthy,
    "scripts": each_script,
    "functions": each_function,
    "missed": each_missed,
    "edits": each_edit,
}
PICTURES = {}
