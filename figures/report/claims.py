"""Is this run healthy: what the report finds of planted bugs, from what tests/sabotage.py wrote."""

import json
import sys

import numpy as np
from claims import FIGURES, new_figure
from estimates import measured
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

sys.path.append(str(FIGURES.parent / "tests"))

import sabotage  # noqa: E402
import verdicts  # noqa: E402
from measuring.intervals import short  # noqa: E402

COLOURS = {"named": "#1b7837", "found": "#a6dba0", "missed": "#d96a00", "no alarm": "#e8e8e8", "false alarm": "#d96a00"}


def outcome(run: dict, kind: str) -> str:
    """Returns what the quick or the full report did with a run."""
    found = sabotage.is_found(run, kind)
    if run["healthy"]:
        return "false alarm" if found else "no alarm"
    return "named" if found and sabotage.is_named(run, kind) else "found" if found else "missed"


def draw_hit_rate() -> Figure:
    """Draws a square for each judged run: a row for each bug and each healthy setting, a column for each environment,
    seed and kind of report. A dot marks the runs on which thresholds were chosen. Bugs that were written later have a
    table of their own."""
    rows = list(dict.fromkeys((x["healthy"], x["name"], x["what"]) for x in results() if not x["new"]))
    column = lambda kind, run: (kind, run["env_id"], run["seed"] if kind == "quick" else 0)  # in full, one seed of each
    judged = [(kind, x) for x in results() for kind in ("quick", "full") if kind in x and not x["new"]]
    columns = sorted({column(*x) for x in judged})
    columns.sort(key=lambda x: (x[0] != "quick", x[1] != "Hopper-v5", x[2]))
    figure, axes = new_figure(1, 1, 0.21 * len(rows) + 1.2)
    axis = axes[0, 0]
    for y, (healthy, name, what) in enumerate(rows):
        axis.text(-0.6, y, f"{'healthy: ' * healthy}{what}", ha="right", va="center", fontsize=8.5)
        for run in (x for x in results() if (x["healthy"], x["name"]) == (healthy, name)):
            for kind in ("quick", "full"):
                if kind in run:
                    x = columns.index(column(kind, run))
                    box = Rectangle((x - 0.45, y - 0.42), 0.9, 0.84, facecolor=COLOURS[outcome(run, kind)])
                    axis.add_patch(box)
                    if run["seed"] == 1 and (healthy or run["tuning"]):
                        axis.plot(x, y, ".", color="black", markersize=4)
    for x, (_, _, seed) in enumerate(columns):
        axis.text(x, -0.8, f"seed {seed}" if seed else "2 or 3", ha="center", va="bottom", fontsize=7.5)
    for kind, env_id in dict.fromkeys((kind, env_id) for kind, env_id, _ in columns):
        at = [x for x, key in enumerate(columns) if key[:2] == (kind, env_id)]
        name = env_id.removesuffix("-v5").replace("HalfC", "Half-\nC") if len(at) == 1 else env_id
        text = f"{dict(quick='--quick', full='in full')[kind]}\n{name}"
        axis.text(np.mean(at), -1.8, text, ha="center", va="bottom", fontsize=8.5)
    for name in ("named", "found", "missed", "no alarm"):
        text = dict(found="found, not named", missed="missed, or false alarm").get(name, name)
        axis.plot([], [], "s", color=COLOURS[name], markersize=8, label=text)
    axis.plot([], [], ".", color="black", label="thresholds were chosen on it")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, -0.06), ncols=5, frameon=False, fontsize=8)
    axis.set(xlim=(-5.9, len(columns) - 0.4), ylim=(len(rows) - 0.3, -4.2))
    axis.axis("off")
    return figure


def results() -> list[dict]:
    return measured("report/sabotage")


def references() -> dict[str, dict]:
    """Returns the curves of the reference runs by environment."""
    return json.loads((FIGURES.parent / "diagnostics" / "reference.json").read_text())


def accused(curves: dict) -> list[int]:
    """Returns for each reference run at how many points the report would say that it learned too little, if it were
    judged by the others."""
    found = []
    for i, curve in enumerate(curves["returns"]):
        others = curves | {key: curves[key][:i] + curves[key][i + 1 :] for key in ("returns", "untrained")}
        points = [verdicts.judge_enough(curve[: n + 1], others, "ppo", []) for n in range(len(curve))]
        found.append(sum(x.status == verdicts.CAUTION for x in points))
    return found


def each_reference() -> list[list[str]]:
    """Returns the rows of a table with what the reference runs earned in each environment, and how often one of them,
    left out, is accused."""
    number = lambda x: short(x).replace("-", "−")
    rows = [["environment", "untrained", "return after 983,040 steps: median, range", "left out: accused at"]]
    for env_id, curves in references().items():
        last, points = [x[-1] for x in curves["returns"]], np.size(curves["returns"])
        earned = f"{number(np.median(last))}, {number(min(last))} to {number(max(last))}"
        rows.append([env_id, number(np.mean(curves["untrained"])), earned, f"{sum(accused(curves))} of {points}"])
    return rows


def rates() -> list[list[str]]:
    """Returns the rows of the table of rates. Bugs that were written later count as they were judged then."""
    return sabotage.rates([x for x in results() if not x["new"]] + measured("report/then"))


def later_bugs() -> list[list[str]]:
    """Returns the rows of a table with what was found of the bugs that were written later: then, and by the checks that
    were made for what was missed."""
    outcome_of = lambda run, kind: outcome(run, kind).replace("found", "found, not named")
    rows = [["bug", "what it does", "then, `--quick`", "then, in full", "now, `--quick`"]]
    now = {x["name"]: x for x in results()}
    for then in measured("report/then"):
        told = [outcome_of(then, "quick"), outcome_of(then, "full"), outcome_of(now[then["name"]], "quick")]
        rows.append([then["name"], then["what"], *told])
    return rows


TABLES = {
    "rates": rates,
    "later": later_bugs,
    "bugs": lambda: sabotage.each_bug(results()),
    "references": each_reference,
}
PICTURES = {"hit_rate": draw_hit_rate}
