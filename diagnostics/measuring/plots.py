"""This module decides what figures look like. It has the colours and lines of algorithms and settings, and the panels
that several diagnostics draw."""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from measuring import runs

COLOURS = {
    **dict(ppo="#0072b2", ppo_m="#d55e00", ppo_noclip="#56b4e9", trpo="#009e73", trpo_plus="#e69f00"),
    **dict(reinforce="#999999", a2c="#cc79a7", vmpo="#000000"),
}
MARKERS = dict(zip(COLOURS, "os^Dv*Px"))  # in greyscale, colours alone look too much alike
LINES, FILLS = ["-", "--", ":", "-."], ["full", "none", "left", "right"]  # for lines of one algorithm
LETTER = 0.073  # about the width of a letter of the legend, in inches
# Lines and fillings of settings that share a panel, by colour. No line is dotted: dotted lines are not measurements.
APART = [("-", "full"), ("--", "none"), ("-.", "none"), ("-.", "full"), ("-", "none"), ("--", "full")]
APART = dict(zip(COLOURS.values(), [*APART, ("-", "left"), ("--", "left")]))


def new_figure(rows: int, columns: int, size: tuple[float, float], **style: Any) -> tuple[Figure, np.ndarray]:
    """Returns a figure of this size in inches and its axes [rows, columns]."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **style)


def look(algo: str) -> dict[str, Any]:
    """Returns the style in which an algorithm's lines are drawn."""
    style = dict(color=COLOURS.get(algo, "#8c564b"), marker=MARKERS.get(algo, "."), label=algo)
    return style | dict(markersize=3.5, linewidth=1.2)


def line_styles(algo_of: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Returns the style of each label. A label that spells an algorithm (PPO-M is ppo_m) is drawn like that algorithm.
    Any other label is drawn like its own algorithm if that style is free, else in the next free colour. When no colour
    is free, lines are dashed."""
    spelled = {label: label.lower().replace("+", "_plus").replace("-", "_") for label in algo_of}
    looks, found = [(name, line) for line in ("-", "--", ":", "-.") for name in COLOURS], {}
    for label in sorted(algo_of, key=lambda x: spelled[x] not in COLOURS):
        wanted = [(spelled[label], "-"), (algo_of[label], "-"), *looks]
        found[label] = next((x for x in wanted if x in looks and x not in found.values()), looks[0])
    return {label: look(found[label][0]) | dict(linestyle=found[label][1], label=label) for label in algo_of}


def run_styles(folders: tuple[Path, ...], labels: tuple[str, ...]) -> list[dict[str, Any]]:
    """Returns the style of each run's lines. Runs of the same setting look alike."""
    settings = {folder: runs.setting(runs.read_config(folder)) for folder in folders}
    label_of = runs.label_runs(settings, labels)
    for label in dict.fromkeys(label_of.values()):
        if names := runs.differing([x for folder, x in settings.items() if label_of[folder] == label]):
            runs.note(f"{label} is one line for runs that differ in {', '.join(names)}")
    styles = line_styles({label_of[folder]: x["algo"] for folder, x in settings.items()})
    return [styles[label_of[folder]] for folder in folders]


def tell_apart(style: dict[str, Any]) -> dict[str, Any]:
    """Returns the style with a larger marker, and with a line and a filling that belong to its colour, so that a
    picture of several settings can be read without colours."""
    line, fill = APART.get(style["color"], ("-", "full"))
    line = line if style["linestyle"] == "-" else style["linestyle"]  # others say that all colours are used up
    return style | dict(linestyle=line, fillstyle=fill, markersize=4.5, linewidth=1.4)


def draw_line(axis: Axes, x: list, points: list[dict[str, Any]], style: dict[str, Any]) -> None:
    """Draws means against x, with their intervals shaded."""
    axis.plot(x, [point["mean"] for point in points], **style)
    low, high = zip(*[point["interval"] or (np.nan, np.nan) for point in points])
    axis.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)


def explain_bands(axis: Axes, text: str = "95 % interval") -> None:
    """Adds to the legend what the shaded bands are."""
    axis.fill_between([], [], color="0.4", alpha=0.3, linewidth=0, label=text)


Setting = tuple[dict[str, Any], list[list[dict[str, Any]]]]  # its style, and the rows of each of its runs


def by_setting(styles: list[dict[str, Any]], measured_of_runs: list[list[dict[str, Any]]]) -> list[Setting]:
    """Groups the runs, each with its style and its rows, by setting. A setting keeps only the rows of the iterations
    that all its runs have, so that means are taken over the same runs everywhere."""
    found = {}
    for style, measured in zip(styles, measured_of_runs):
        found.setdefault(style["label"], (style, []))[1].append({row["iteration"]: row for row in measured})
    settings = []
    for style, of_runs in found.values():
        shared = [iteration for iteration in of_runs[0] if all(iteration in measured for measured in of_runs)]
        if not shared:
            runs.stop(f"the runs of {style['label']} have no checkpoint in common; name some with --checkpoints")
        if unlike := sorted(set().union(*of_runs) - set(shared)):
            runs.note(f"not all runs of {style['label']} have iteration {', '.join(map(str, unlike))}: left out")
        settings.append((style, [[measured[iteration] for iteration in shared] for measured in of_runs]))
    return settings


def draw_points(axis: Axes, x: Any, points: list[dict[str, Any]], style: dict[str, Any]) -> None:
    """Draws means at x with their intervals as bars. The points are not joined unless the style says so."""
    y = np.array([point["mean"] for point in points], float)
    ends = np.array([point["interval"] or [np.nan] * 2 for point in points], float).reshape(-1, 2)
    axis.errorbar(x, y, yerr=np.abs(ends.T - y), **dict(linestyle="") | style)


def label_log_axis(axis: Axes) -> None:
    """Writes plain numbers on a logarithmic vertical axis. They include multiples of 2 and 5 where the ends of the axis
    differ by a factor of 500 at most."""
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 500 * low else (1, 2, 5)))
    axis.yaxis.set_major_formatter(lambda x, _: f"{x:,.9g}")
    axis.yaxis.set_minor_formatter(NullFormatter())


def draw_setting(axis: Axes, lines: list[tuple[list[int], list[dict]]], style: dict[str, Any]) -> None:
    """Draws the means over the runs, each given as x and points, where all of them have a point, and each run as a thin
    line. Where there is only one run, its intervals are drawn instead."""
    means = {}
    for x, points in lines:
        of_run = [point["mean"] for point in points]
        for at, mean in zip(x, of_run):
            means.setdefault(at, []).append(mean)
        if len(lines) > 1:
            axis.plot(x, of_run, color=style["color"], linestyle=style["linestyle"], linewidth=0.5, alpha=0.6)
        elif bars := [(at, *point["interval"]) for at, point in zip(x, points) if point["interval"]]:
            axis.vlines(*zip(*bars), color=style["color"], linewidth=1)
    shared = sorted(at for at in means if len(means[at]) == len(lines))
    axis.plot(shared, [np.mean(means[at]) for at in shared], **style)


def title(measured: list[dict[str, Any]]) -> str:
    return "iteration " + " / ".join(dict.fromkeys(str(row["iteration"]) for row in measured))


def save_figure(figure: Figure, path: Path) -> None:
    """Adds one legend for all lines above the panels, makes room for it, and saves the figure."""
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    lines = {label: line for axis in figure.axes[::-1] for line, label in zip(*axis.get_legend_handles_labels())}
    if lines:
        width, height = figure.get_size_inches()
        texts = [textwrap.fill(label, int((width - 0.6) / LETTER), break_on_hyphens=False) for label in lines]  # inches
        widths = [0.6 + LETTER * max(map(len, text.split("\n"))) for text in texts]
        columns = len(texts) if sum(widths) < width else max(1, min(len(texts), int(width / max(widths))))
        figure.set_figheight(height + 0.19 * sum(text.count("\n") + 1 for text in texts) / columns)
        figure.legend(lines.values(), texts, loc="outside upper center", ncols=columns, frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)
    print(path)
