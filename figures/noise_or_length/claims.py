"""Whether less noise or a shorter step helps an update, by protocol.md."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from estimates import Estimate, Runs, measured, two_digits
from pictures import forest
from planned import Tests, by_run, with_both

ARMS = {
    "A": "A: 2,048 pairs",
    "B": "B: 0.4 of A's step",
    "C": "C: 49,152 pairs",
    "D": "D: 2.5 times C's step",
    "E": "E: as C, minibatches of 64",
}
EFFECTS = {
    "less noise, at equal length": "0.5*C - 0.5*B + 0.5*D - 0.5*A",
    "a shorter step, at equal noise": "0.5*B - 0.5*A + 0.5*C - 0.5*D",
}
OTHERS = {"interaction": "0.5*D - 0.5*C - 0.5*A + 0.5*B"} | {f"G({x})": x for x in ARMS}
OTHERS |= {"G(E) − G(C)": "E - C", "G(E) − G(A)": "E - A"}
weights = Runs().weights


def gain(row: dict[str, Any], arm: str) -> float:
    """Returns the mean change of the return by the updates of a kind from a checkpoint."""
    return np.mean([x["returns"][arm] - x["returns"]["start"] for x in row["found"]])


def effect(contrast: str) -> dict[str, Estimate]:
    """Returns a contrast of gains in both environments and in each, over runs."""
    number = lambda row: sum(w * gain(row, arm) for arm, w in weights(contrast).items())
    return with_both(by_run(measured("noise_or_length/rows"), number))


def primary() -> Tests:
    return {name: dict(both=effect(x)["both"]) for name, x in EFFECTS.items()}


def others() -> Tests:
    in_each = {name: {x: y for x, y in effect(of).items() if x != "both"} for name, of in EFFECTS.items()}
    return in_each | {name: effect(of) for name, of in OTHERS.items()}


def moved(part: str, arm: str) -> dict[str, dict[tuple, float]]:
    """Returns how far updates of a kind go, as norms or as KLs (kls), by run."""
    return by_run(measured("noise_or_length/rows"), lambda row: np.mean([x[part][arm] for x in row["found"]]))


def length_ratio() -> dict[str, Estimate]:
    """Returns how long C's steps are, divided by A's, over runs."""
    of = moved("norms", "C"), moved("norms", "A")
    return {place: Estimate([[of[0][place][x] / y for x, y in runs.items()]]) for place, runs in of[1].items()}


def lengths() -> Iterable[list[str]]:
    """Yields the mean norm and the mean KL of each kind of update."""
    yield ["", *ARMS]
    for place in ("Hopper", "Walker2d"):
        for part, says in (("norms", "norm of the step"), ("kls", "KL (nats)")):
            yield [f"{place}, {says}", *(two_digits(np.mean([*moved(part, x)[place].values()])) for x in ARMS)]


def gains():
    """Draws the gain of each kind of update, with a dot for each run."""
    panels = {}
    for place in ("Hopper", "Walker2d"):
        panels[f"{place}-v5"] = {says: {place: effect(x)[place]} for x, says in ARMS.items()}
    xlabel = "change of the return by an update, 95 % interval; dots are runs"
    return forest(panels, xlabel, [0, 0], dots=True, sharex=True)


PICTURES = dict(gains=gains)
