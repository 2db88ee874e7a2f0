"""CL's surfaces of the reward and of the surrogate, by protocol.md."""

import functools
from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np
from estimates import plain
from matplotlib.figure import Figure
from pictures import new_figure
from protocols import rows_of, whole
from scipy import stats

AGENTS, PLACES, CHECKPOINTS = {"CL-PPO": "PPO", "TRPO": "TRPO"}, ("Hopper", "Walker2d"), (0, 150, 300, 450)
SIZES, FEW, MANY = (2000, 20_000, 100_000), 2000, 50_000  # pairs a point, and of a step
NAMES = dict(surrogate="surrogate", returns="reward")


Surface = dict[str, np.ndarray]


def row_of(place: str, agent: str, iteration: int, surfaces: bool) -> dict[str, Any]:
    """Returns the row of a checkpoint that has the surfaces, or the one that has the concentration."""
    part = "surfaces-humanoid" if place == "Humanoid" else "surfaces"
    asked = dict(agent=agent, iteration=iteration, surfaces=surfaces)
    rows = [
        x for x in rows_of(whole(part), "landscape") if x["env_id"].startswith(place) and x.items() >= asked.items()
    ]
    [row] = rows
    return row


def grid(points: list[dict[str, Any]], *names: str) -> Surface:
    """Returns how far points are along the step and along the random direction [n], and what they have under these
    names [n, n], with the step along the rows."""
    at = {(x["step"], x["random"]): x for x in points}
    step, random = (np.array(sorted({place[i] for place in at})) for i in (0, 1))
    return dict(step=step, random=random) | {x: np.array([[at[a, b][x] for b in random] for a in step]) for x in names}


def surface(place: str, agent: str, iteration: int, step_pairs: int) -> Surface:
    """Returns mean return and surrogate on the plane of a step from so many pairs."""
    points = row_of(place, agent, iteration, surfaces=True)["points"]
    return grid([x for x in points if x["step_pairs"] == step_pairs], "returns", "surrogate")


def concentrated(place: str, agent: str, iteration: int, reward_pairs: int) -> Surface:
    """Returns the mean return from so many pairs a point."""
    points = row_of(place, agent, iteration, surfaces=False)["concentrations"]
    return grid([x for x in points if x["concentration"] == reward_pairs], "mean")


def alike(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the rank correlation of two surfaces over their points."""
    return float(stats.spearmanr(x.ravel(), y.ravel()).statistic)


def agreement(place: str, agent: str, iteration: int, step_pairs: int) -> float:
    of = surface(place, agent, iteration, step_pairs)
    return alike(of["surrogate"], of["returns"])


def concentration(place: str, agent: str, iteration: int, reward_pairs: int) -> float:
    """Returns the rank correlation of a surface of the reward with that from the most pairs a point."""
    x, y = (concentrated(place, agent, iteration, size)["mean"] for size in (reward_pairs, SIZES[-1]))
    return alike(x, y)


def table_of_agreement() -> Iterable[list[str]]:
    yield ["rank correlation of surrogate and reward", *(f"iteration {x}" for x in CHECKPOINTS)]
    for place in PLACES:
        for agent, name in AGENTS.items():
            for pairs in (FEW, MANY):
                row = [plain(agreement(place, agent, x, pairs), 2) for x in CHECKPOINTS]
                yield [f"{place}-v5, {name}, step from {pairs:,} pairs", *row]
    for (agent, name), pairs in product(AGENTS.items(), (FEW, MANY)):
        row = [plain(agreement("Humanoid", agent, x, pairs), 2) if x == 300 else "" for x in CHECKPOINTS]
        yield [f"Humanoid-v5, {name}, step from {pairs:,} pairs", *row]


def table_of_concentration() -> Iterable[list[str]]:
    yield ["rank correlation with 100,000 pairs a point", *(f"{x:,} pairs a point" for x in SIZES[:-1])]
    for place in PLACES:
        for agent, name in AGENTS.items():
            for iteration in (150, 300):
                row = [plain(concentration(place, agent, iteration, x), 2) for x in SIZES[:-1]]
                yield [f"{place}-v5, {name}, iteration {iteration}", *row]


def drawn(panels: list[list[tuple[str, Surface, str]]], height: float) -> Figure:
    """Draws surfaces as contours, each named, with the step to the right and the random direction upwards. The dot is
    the checkpoint, and the cross the whole step."""
    figure, axes = new_figure(len(panels), len(panels[0]), height, sharex=True, sharey=True)
    for row, of in zip(axes, panels):
        for axis, (title, x, name) in zip(row, of):
            drawn = axis.contourf(x["step"], x["random"], x[name].T, levels=12, cmap="viridis")
            figure.colorbar(drawn, ax=axis, format="%.3g").ax.tick_params(labelsize=7)
            axis.plot([0], [0], "o", color="white", mec="black", ms=5)
            axis.plot([1], [0], "X", color="white", mec="black", ms=6)
            axis.set_title(title, fontsize=9)
    figure.supxlabel("multiples of the step", fontsize=9)
    figure.supylabel("multiples of the random direction (norm 2)", fontsize=9)
    return figure


def of_place(place: str, step_pairs: int) -> Figure:
    """Draws surrogate and reward of both agents at the four checkpoints, with steps from so many pairs."""
    panels = []
    for agent, label in AGENTS.items():
        of = [surface(place, agent, x, step_pairs) for x in CHECKPOINTS]
        for name, text in NAMES.items():
            titles = [f"{label}, {text}, {x}" for x in CHECKPOINTS]
            panels.append([(title, x, name) for title, x in zip(titles, of)])
    return drawn(panels, 8.0)


def of_sizes() -> Figure:
    """Draws the reward of both agents on both tasks at iteration 150 from each number of pairs a point."""
    panels = []
    for place in PLACES:
        for agent, label in AGENTS.items():
            of = {size: concentrated(place, agent, 150, size) for size in SIZES}
            panels.append([(f"{place}-v5, {label}, {size:,} pairs", x, "mean") for size, x in of.items()])
    return drawn(panels, 8.0)


def of_humanoid() -> Figure:
    panels = []
    for pairs in (FEW, MANY):
        of = {label: surface("Humanoid", agent, 300, pairs) for agent, label in AGENTS.items()}
        titled = [(label, x, name) for label, x in of.items() for name in NAMES]
        panels.append([(f"{label}, {NAMES[name]}, {pairs:,} pairs", x, name) for label, x, name in titled])
    return drawn(panels, 4.2)


PICTURES = dict(concentration=of_sizes, humanoid=of_humanoid)
for place in PLACES:
    for pairs in (FEW, MANY):
        PICTURES[f"{place.lower()}_{pairs}"] = functools.partial(of_place, place, pairs)
