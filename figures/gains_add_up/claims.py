"""Whether the gains of updates add up, by protocol.md."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from claims import room
from estimates import Estimate, Runs, measured, plain
from pictures import STYLES, new_figure
from planned import Tests, by_run, with_both
from protocols import rows_of, whole

MARGIN, ARMS, PLACES = 200, ("few", "short", "many"), ("Hopper", "Walker2d")
MANY = 12  # updates from many pairs; the others take 24 times as many from as many pairs
weights = Runs().weights


def gain(row: dict[str, Any], arm: str) -> float:
    """Returns the mean return of an arm's last policy, or before it."""
    return np.mean(row[arm] if arm == "before" else row[arm]["returns"])


def effect(contrast: str) -> dict[str, Estimate]:
    """Returns a contrast of the mean returns of the last policies, in both environments and in each, over runs."""
    number = lambda row: sum(w * gain(row, arm) for arm, w in weights(contrast).items())
    return with_both(by_run(measured("gains_add_up/rows"), number))


def primary() -> Tests:
    return {x.replace(" - ", " − "): dict(both=effect(x)["both"]) for x in ("many - few", "short - few")}


def in_each() -> Tests:
    of = {x.replace(" - ", " − "): effect(x) for x in ("many - few", "short - few", "many - short")}
    return {name: {x: y for x, y in found.items() if x != "both"} for name, found in of.items()}


def gained() -> Tests:
    """Returns what each arm gains over the checkpoint's own policy."""
    return {f"R({x}) − R(0)": effect(f"{x} - before") for x in ARMS}


def saturation() -> dict[str, Estimate]:
    """Returns what 12 updates from many pairs gain, minus 12 times what a single one gains from the same checkpoints,
    which is C of noise_or_length. Below 0 the gains saturate."""
    single = by_run(measured("noise_or_length/rows"), lambda row: room("noise_or_length").gain(row, "C"))
    total = lambda row: np.mean(row["many"]["returns"]) - np.mean(row["before"])
    found = by_run(measured("gains_add_up/rows"), total)
    left = {x: {run: y - MANY * single[x][run] for run, y in of.items()} for x, of in found.items()}
    return with_both(left)


# The second protocol: many pairs in minibatches of 64, with new seeds ------------------------------------------------


def of_new_runs(contrast: str) -> dict[str, dict[tuple, float]]:
    """Returns a contrast of the mean returns of the last policies, of each new run by environment."""
    number = lambda row: sum(w * gain(row, arm) for arm, w in weights(contrast).items())
    return by_run(rows_of(whole("batches"), "gains_add_up"), number)


def with_minibatches_of_64() -> Tests:
    """Returns the primary test of the second protocol, and the same in each environment."""
    return {"recipe − few": with_both(of_new_runs("recipe - few"))}


def gained_by_new_runs() -> Tests:
    return {f"R({x}) − R(0)": with_both(of_new_runs(f"{x} - before")) for x in ("few", "recipe")}


def of_the_minibatches() -> Estimate:
    """Returns recipe − many in the mean of both environments: the new runs' recipe − few minus the old runs'
    many − few, which are independent."""
    new = with_both(of_new_runs("recipe - few"))["both"]
    old = effect("many - few")["both"]
    return Estimate([*new.samples, *old.samples], [*new.weights, *(-w for w in old.weights)])


def explained_variance(place: str, arm: str) -> float:
    """Returns the mean over runs of what a continuation's value network explains, averaged over its iterations."""
    number = lambda row: np.mean([x["explained_variance"] for x in row[arm]["iterations"]])
    return float(np.mean([*by_run(measured("gains_add_up/rows"), number)[place].values()]))


def explained() -> Iterable[list[str]]:
    """Yields the explained variance of each arm's value network."""
    yield ["", *ARMS]
    for place in PLACES:
        yield [place, *(plain(explained_variance(place, x), 2) for x in ARMS)]


def curve(place: str, arm: str) -> np.ndarray:
    """Returns the mean return of finished episodes [12] in twelfths of a continuation, over checkpoints and runs."""
    rows = [x for x in measured("gains_add_up/rows") if x["env_id"].partition("-")[0] == place]
    return np.mean([[y["mean_return"] for y in x[arm]["iterations"]] for x in rows], axis=0)


def curves():
    """Draws the returns of each arm against its pairs."""
    figure, [axes] = new_figure(1, 2, 3.0)
    for axis, place in zip(axes, PLACES):
        for arm, style in zip(ARMS, ("-", "--", ":")):
            at = (np.arange(MANY) + 0.5) * 49_152
            axis.plot(at, curve(place, arm), style, color=STYLES[place][0], label=f"{place}-v5, {arm}")
        axis.ticklabel_format(axis="x", scilimits=(0, 4))
    figure.supxlabel("pairs since the checkpoint", fontsize=9)
    axes[0].set_ylabel("mean return of the episodes that ended", fontsize=9)
    return figure


PICTURES = dict(continued=curves)
