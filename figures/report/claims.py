"""Is this run healthy: what the report finds of planted bugs, from what tests/sabotage.py wrote."""

import sys

import numpy as np
from claims import FIGURES, new_figure
from estimates import measured
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

sys.path.append(str(FIGURES.parent / "tests"))

import sabotage  # noqa: E402

COLOURS = {"named": "#1b7837", "found": "#a6dba0", "missed": "#d96a00", "no alarm": "#e8e8e8", "false alarm": "#d96a00"}


def outcome(run: dict, kind: str) -> str:
    """Returns what the quick or the full report did with a run."""
    found = sabotage.is_found(run, kind)
    if run["healthy"]:
        return "false alarm" if found else "no alarm"
    return "named" if found and sabotage.is_named(run, kind) else "found" if found else "missed"


def draw_hit_rate() -> Figure:
    """Draws a square for each judged run: a row for each bug and each healthy setting, a column for each environment,
    seed and kind of report. A dot marks the runs on which thresholds were chosen."""
    rows = list(dict.fromkeys((x["healthy"], x["name"], x["what"]) for x in results()))
    columns = sorted({(kind, x["env_id"], x["seed"]) for x in results() for kind in ("quick", "full") if kind in x})
    columns.sort(key=lambda x: (x[0] != "quick", x[1] != "Hopper-v5", x[2]))
    figure, axes = new_figure(1, 1, 0.21 * len(rows) + 1.2)
    axis = axes[0, 0]
    for y, (healthy, name, what) in enumerate(rows):
        axis.text(-0.6, y, f"{'healthy: ' * healthy}{what}", ha="right", va="center", fontsize=8.5)
        for run in (x for x in results() if (x["healthy"], x["name"]) == (healthy, name)):
            for kind in ("quick", "full"):
                if kind in run:
                    x = columns.index((kind, run["env_id"], run["seed"]))
                    box = Rectangle((x - 0.45, y - 0.42), 0.9, 0.84, facecolor=COLOURS[outcome(run, kind)])
                    axis.add_patch(box)
                    if run["seed"] == 1 and (healthy or run["tuning"]):
                        axis.plot(x, y, ".", color="black", markersize=4)
    for x, (_, _, seed) in enumerate(columns):
        axis.text(x, -0.8, f"seed {seed}", ha="center", va="bottom", fontsize=7.5)
    for kind, env_id in dict.fromkeys((kind, env_id) for kind, env_id, _ in columns):
        at = [x for x, column in enumerate(columns) if column[:2] == (kind, env_id)]
        text = f"{dict(quick='--quick', full='in full')[kind]}\n{env_id}"
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


TABLES = {
    "rates": lambda: sabotage.rates(results()),
    "bugs": lambda: sabotage.each_bug(results()),
}
PICTURES = {"hit_rate": draw_hit_rate}
