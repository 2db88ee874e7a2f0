"""What the pictures of the results look like: one colour and marker for each environment and for each agent in all of
them, and the forest plot, which most are."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from PIL import Image

STYLES = dict(Walker2d=("#0072b2", "o"), Hopper=("#d55e00", "s"), Humanoid=("#009e73", "D"))
STYLES |= {"HalfCheetah": ("#882255", "v"), "PPO": ("#000000", "o"), "PPO-M": ("#cc79a7", "v")}
STYLES |= {"PPO-NoClip": ("#e69f00", "P"), "TRPO": ("#56b4e9", "s"), "TRPO+": ("#8a6d00", "D")}
STYLES |= {"A2C": ("#999999", "^"), "REINFORCE": ("#7b3fa0", "X"), "V-MPO": ("#44aa99", "*")}
STYLES["PPO of SB3"] = "#7aa600", "p"
HOLLOW = "the paper", "not ", "without", "off", "2,048 pairs"  # what is drawn hollow, by a word of its name
LINES = "-", "--", "-.", ":", (0, (5, 1, 1, 1))


def style_of(name: str) -> dict[str, Any]:
    """Returns the colour and the marker of the environment or agent with which a name begins, or dark grey."""
    known = max((x for x in STYLES if name.startswith(x)), key=len, default=None)
    colour, marker = STYLES.get(known, ("0.35", "D"))
    hollow = any(word in name for word in HOLLOW)
    return dict(color=colour, marker=marker, mfc="white" if hollow else colour)


def new_figure(rows: int, columns: int, height: float, **style: Any) -> tuple[Figure, np.ndarray]:
    """Returns a figure as wide as a page of GitHub shows it at 100 pixels an inch, and its axes [rows, columns]."""
    figure = Figure(figsize=(8.8, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **style)


def label_log_axis(axis: Axes) -> None:
    """Writes plain numbers on a logarithmic vertical axis. They include multiples of 2 and 5 where the ends of the axis
    differ by a factor of 500 at most."""
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 500 * low else (1, 2, 5)))
    axis.yaxis.set_major_formatter(lambda x, _: f"{x:,.9g}")
    axis.yaxis.set_minor_formatter(NullFormatter())


def draw_estimate(axis: Axes, x: Any, at: float, name: str, dots: float, label: str | None) -> None:
    """Draws a mean and its interval at this height, and a thin line for its interval `wider`, if it has one. Dots,
    drawn so much below, are the runs of one agent, or else the means of the samples."""
    style = style_of(name)
    if dots and hasattr(x, "samples"):
        runs = x.samples[0] if len(x.samples) == 1 else [y.mean() for y in x.samples]
        grey = dict(color=style["color"], ms=3, alpha=0.45, mec="none")
        axis.plot(runs, [at + dots] * len(runs), style["marker"], **grey)
    if hasattr(x, "wider"):
        axis.plot(x.wider.interval(), [at] * 2, color=style["color"], lw=0.9)
    axis.plot(x.interval(), [at] * 2, color=style["color"], lw=2.2)
    axis.plot(x.mean, at, ls="", ms=6, label=label, **style)


def forest(panels: dict[str, dict], xlabel: str, margins: Any = (), dots: bool = False, **style: Any) -> Figure:
    """Draws estimates with their intervals: panels by title, in each of them rows by name, in each row series by name.
    A margin is drawn around 0, one a panel."""
    rows = list(next(iter(panels.values())))
    count = max(len(row) for of in panels.values() for row in of.values())
    figure, [axes] = new_figure(1, len(panels), 0.95 + (0.12 + 0.15 * count) * len(rows), sharey=True, **style)
    named = set(rows)  # what a row is called needs no legend
    for axis, (title, of), margin in zip(axes, panels.items(), [*margins, *[None] * len(panels)]):
        for y, row in enumerate(of.values()):
            for k, (name, x) in enumerate(row.items()):
                step = 0.8 / count
                at = y + step * (k - (len(row) - 1) / 2)
                draw_estimate(axis, x, at, name, 0.32 * step * dots, None if name in named else name)
                named.add(name)
        if margin is not None:
            axis.axvspan(-margin, margin, color="0.9", lw=0, zorder=0, label="the margin around 0" * bool(margin))
            axis.axvline(0, color="black", lw=0.8)
        axis.set_title(title, fontsize=10)
    figure.supxlabel(xlabel, fontsize=9)
    axes[0].set_yticks(range(len(rows)), rows, fontsize=9)
    axes[0].set_ylim(len(rows) - 0.45, -0.55)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Saves the figure with one legend for all panels above them."""
    lines = {}
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        lines |= {y: x for x, y in zip(*axis.get_legend_handles_labels()) if y not in lines}
    room = int(8.8 / (0.6 + 0.075 * max(map(len, lines), default=1)))  # inches, of the figure and of the longest name
    rows = -(-len(lines) // min(5 if len(lines) == 5 else 4, room)) or 1
    columns = -(-len(lines) // rows)  # as even as they can be
    figure.legend(lines.values(), lines, loc="outside upper center", ncols=columns, frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)
    # In 256 colours a picture looks the same and takes a third of the space.
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)
