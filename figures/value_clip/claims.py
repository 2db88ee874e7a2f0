"""How wide a value clip must be, by protocol.md."""

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
from claims import room
from estimates import Estimate, bootstrap, measured, plain, two_digits
from matplotlib.figure import Figure
from pictures import STYLES, new_figure
from planned import Tests, holm
from protocols import by_agent, rows_of, whole

PLACES, NEW, MARGIN = ("Hopper", "Walker2d"), ("0.6", "2", "7"), 200
OFF = "PPO-unscaled"


@functools.cache
def finals(place: str) -> dict[str, np.ndarray]:
    """Returns the final returns [seeds] by width, from the narrowest to off: the new ones, and those of nine. Runs
    without a clip are pooled."""
    new, old = by_agent(whole("value-clip"))[place], room("nine").runs.of(place)
    found = {"0.2": old[f"{OFF}-clip"]} | {eps: new[f"{OFF}-clip-{eps}"] for eps in NEW}
    return found | dict(wide=old[f"{OFF}-wide-clip"], off=np.concatenate([old[OFF], new[OFF]]))


def widths(place: str) -> dict[str, float]:
    """Returns the width of each clip."""
    return {"0.2": 0.2, **{eps: float(eps) for eps in NEW}, "wide": round(room("nine").wide_clip(place))}


def difference(place: str, x: str, y: str) -> Estimate:
    return Estimate([finals(place)[x], finals(place)[y]], (1, -1))


def primary() -> Tests:
    found = {f"{eps} − 0.2": {place: difference(place, eps, "0.2") for place in PLACES} for eps in NEW}
    return found | {f"off − {eps}": {place: difference(place, "off", eps) for place in PLACES} for eps in NEW}


def others() -> Tests:
    """Returns off − wide, and what the new runs without a clip reach more than the old ones."""
    old, new = (
        (lambda place: room("nine").runs.of(place)[OFF]),
        (lambda place: by_agent(whole("value-clip"))[place][OFF]),
    )
    again = {place: Estimate([new(place), old(place)], (1, -1)) for place in PLACES}
    return {"off − wide": {place: difference(place, "off", "wide") for place in PLACES}, "off, new − old": again}


def no_harm_that_matters(place: str, eps: str) -> bool:
    return difference(place, "off", eps).interval(0.9)[1] < MARGIN


def ends_of_90(place: str, eps: str) -> str:
    return "[{}, {}]".format(*(plain(x, -1) for x in difference(place, "off", eps).interval(0.9)))


def least_not_seen_to_harm(place: str) -> str:
    """Returns the narrowest of the new widths that off is not known to exceed, or the wide one."""
    stands = holm(primary())
    return next((eps for eps in NEW if not stands[f"off − {eps}"][place]), "wide")


def of_new_alone(place: str, eps: str) -> Estimate:
    """Returns off − eps with the new runs without a clip alone, which the protocol does not plan."""
    return Estimate([by_agent(whole("value-clip"))[place][OFF], finals(place)[eps]], (1, -1))


# The half-way width --------------------------------------------------------------------------------------------------


def crossing(means: np.ndarray, log_widths: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Returns the smallest log width [B] at which the lines between means [B, widths] reach the level [B], or the
    largest width where they do not."""
    found = np.full(len(means), log_widths[-1])
    for i in reversed(range(means.shape[1] - 1)):
        low, high = means[:, i], means[:, i + 1]
        here = (low < level) & (level <= high)
        share = (level - low) / np.where(here, high - low, 1)
        found = np.where(here, log_widths[i] + share * (log_widths[i + 1] - log_widths[i]), found)
    return found


@functools.cache
def half_way(place: str) -> dict[str, Any]:
    """Returns the width that loses half of what 0.2 loses, with its BCa interval over runs."""
    log_widths = np.log([*widths(place).values()])

    def width(*samples: np.ndarray) -> np.ndarray:
        *means, off = (np.atleast_1d(x.mean(-1)) for x in samples)
        found = crossing(np.stack(means, 1), log_widths, (means[0] + off) / 2)
        return found if samples[0].ndim > 1 else found[0]

    found = bootstrap(width, *finals(place).values())  # in logarithms, whose intervals are nearer to even
    return dict(mean=np.exp(found["mean"]), interval=[*np.exp(found["interval"])])


def spread(place: str, agent: str = OFF, of: str = "values") -> Estimate:
    """Returns the standard deviation of V, or of its targets, over the states of a batch: the mean over runs of the
    mean over checkpoints."""
    runs = {}
    for row in rows_of(whole("value-clip"), "spread"):
        if row["agent"] == agent and row["env_id"].startswith(place):
            runs.setdefault(row["run_seed"], []).append(row[of])
    return Estimate([[np.mean(x) for x in runs.values()]])


def with_scaling(place: str) -> float:
    """Returns the standard deviation of V where rewards are scaled, of one run: the mean over the same checkpoints."""
    return float(np.mean([row["values"] for row in measured("value_clip/scaled")[place]]))


def in_spreads(place: str) -> dict[str, Any]:
    """Returns the half-way width in standard deviations of V."""
    found, unit = half_way(place), spread(place).mean
    return dict(mean=found["mean"] / unit, interval=[x / unit for x in found["interval"]])


def half_lost(place: str) -> str:
    """Writes the half-way width in standard deviations of V, with its interval."""
    found = in_spreads(place)
    return "{} [{}, {}]".format(*map(two_digits, (found["mean"], *found["interval"])))


def in_units(place: str, eps: str) -> str:
    """Writes a width in standard deviations of V."""
    return two_digits(widths(place)[eps] / spread(place).mean)


def agree() -> bool:
    """Answers whether the half-way widths of both tasks agree within a factor of three."""
    one, other = (in_spreads(place)["mean"] for place in PLACES)
    return bool(1 / 3 <= one / other <= 3)


# Table and picture ---------------------------------------------------------------------------------------------------


def table_of_widths() -> Iterable[list[str]]:
    yield ["", *(f"{place}-v4: {x}" for place in PLACES for x in ("width / sd(V)", "final return", "sd(V) there"))]
    for eps in finals(PLACES[0]):
        row = [eps]
        for place in PLACES:
            own = spread(place, OFF if eps == "off" else f"{OFF}-clip-{eps}") if eps in (*NEW, "off") else ""
            row += [in_units(place, eps) if eps != "off" else "∞"]
            row += [str(Estimate([finals(place)[eps]])), str(own)]
        yield row
    half = [x for place in PLACES for x in (two_digits(in_spreads(place)["mean"]), "", "")]
    yield ["half-way", *half]


def dose() -> Figure:
    """Draws the final returns over the width in standard deviations of V, and where half is lost."""
    figure, [axes] = new_figure(1, 2, 3.2, sharey=True)
    for axis, place in zip(axes, PLACES):
        colour, marker = STYLES[place]
        unit, of = spread(place).mean, finals(place)
        x = np.array([*widths(place).values()]) / unit
        means = [Estimate([of[eps]]) for eps in widths(place)]
        low, high = zip(*(y.interval() for y in means))
        axis.plot(x, [y.mean for y in means], color=colour, marker=marker, label=f"{place}-v4, mean and 95 % interval")
        axis.vlines(x, low, high, color=colour, lw=2)
        for at, eps in zip(x, widths(place)):
            axis.plot([at] * len(of[eps]), of[eps], marker, color=colour, ms=3, alpha=0.35, mec="none")
        off = Estimate([of["off"]])
        axis.axhline(off.mean, color="0.3", lw=1, ls="--", label="without a clip")
        axis.axhspan(*off.interval(), color="0.85", lw=0, zorder=0)
        axis.axvspan(
            *in_spreads(place)["interval"], color=colour, alpha=0.12, lw=0, label="half is lost: 95 % interval"
        )
        axis.set(xscale="log", title=f"{place}-v4 (sd of V: {plain(unit)})")
    figure.supxlabel("width of the value clip, in standard deviations of V", fontsize=9)
    axes[0].set_ylabel("final return", fontsize=9)
    return figure


PICTURES = dict(dose=dose)
