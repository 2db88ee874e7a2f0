"""Whether the gains of updates add up, by protocol.md."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from claims import room
from estimates import Estimate, Runs, measured, plain
from matplotlib.figure import Figure
from pictures import STYLES, new_figure
from planned import Tests, by_run, with_both
from protocols import missing, rows_of, whole

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


def second_not_corrected() -> Tests:
    """Returns what the second protocol asks besides its primary test."""
    of = with_minibatches_of_64()["recipe − few"]
    found = {"recipe − few": {place: of[place] for place in PLACES}} | gained_by_new_runs()
    return found | {"recipe − many": dict(both=of_the_minibatches())}


def explained_variance(place: str, arm: str) -> float:
    """Returns the mean over runs of what a continuation's value network explains, averaged over its iterations."""
    number = lambda row: np.mean([x["explained_variance"] for x in row[arm]["iterations"]])
    return float(np.mean([*by_run(measured("gains_add_up/rows"), number)[place].values()]))


def explained() -> Iterable[list[str]]:
    """Yields the explained variance of each arm's value network."""
    yield ["", *ARMS]
    for place in PLACES:
        yield [place, *(plain(explained_variance(place, x), 2) for x in ARMS)]


def of_each_run(rows: list[dict[str, Any]], place: str, arm: str) -> np.ndarray:
    """Returns the mean return of finished episodes in twelfths of a continuation [runs, 12], over checkpoints."""
    found = {}
    for x in [x for x in rows if x["env_id"].partition("-")[0] == place]:
        found.setdefault(x["run_seed"], []).append([y["mean_return"] for y in x[arm]["iterations"]])
    return np.array([np.mean(x, axis=0) for x in found.values()])


SAYS = dict(few="288 updates from 2,048 pairs (few)", short="the same, 0.4 of each step (short)")
SAYS |= dict(many="12 updates from 49,152 pairs (many)")
SAYS |= dict(recipe="12 updates from 49,152 pairs, minibatches of 64 (recipe)")
LOOKS = dict(few=("black", "-", "o"), short=(STYLES["TRPO"][0], "--", "s"))
LOOKS |= dict(many=(STYLES["PPO-NoClip"][0], "-.", "v"), recipe=(STYLES["V-MPO"][0], ":", "D"))


def curves(rows: list[dict[str, Any]], arms: tuple[str, ...]) -> Figure:
    """Draws the returns of each arm against its pairs, with 95 % intervals over runs, and beside them what is tested:
    the return of the last policy."""
    figure, [axes] = new_figure(1, 2, 3.4, sharey=True)
    for i, arm in enumerate(arms):
        colour, line, marker = LOOKS[arm]
        last = with_both(by_run(rows, lambda row, arm=arm: gain(row, arm)))
        for axis, place in zip(axes, PLACES):
            at, of = (np.arange(MANY) + 0.5) * 49.152, of_each_run(rows, place, arm)
            axis.plot(at, of.mean(0), line, color=colour, label=SAYS[arm])
            ends = [Estimate([x]).interval() for x in of.T]
            axis.fill_between(at, *np.transpose(ends), color=colour, alpha=0.15, lw=0)
            beside = 625 + 25 * i
            axis.plot([beside] * 2, last[place].interval(), color=colour, lw=2)
            axis.plot(beside, last[place].mean, marker, color=colour, ms=6)
    for axis, place in zip(axes, PLACES):
        axis.axvline(600, color="0.8", lw=0.8)
        axis.set(title=f"{place}-v5", ylim=(0, None), xlim=(0, 700))
        axis.set_xticks([0, 200, 400, 600])
    figure.supxlabel(
        "thousands of pairs since the checkpoint; beyond the line: the last policy, which is tested", fontsize=9
    )
    axes[0].set_ylabel("mean return, 95 % intervals", fontsize=9)
    return figure


PICTURES = dict(continued=lambda: curves(measured("gains_add_up/rows"), ARMS))
if not missing("batches"):
    PICTURES |= dict(recipe=lambda: curves(rows_of(whole("batches"), "gains_add_up"), ("few", "recipe")))
