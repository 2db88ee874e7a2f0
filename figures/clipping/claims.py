"""Whether PPO needs its clipping (IM's Table 3)."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from claims import Cell, Cells, differs, new_figure, of_none, of_sign, room
from estimates import PLACES, Estimate, finals, measured, two_digits
from matplotlib.figure import Figure
from measuring import figures
from scipy import stats

reward = room("reward")
VERSION = "v4"


def judge(d: Estimate, margin: float) -> str:
    """Judges the claim that a difference is not above the margin, of which only one side counts."""
    return "holds" if d.ends(0.9)[1] < margin else "does not hold" if differs(d, margin) == 1 else "cannot tell"


def unneeded() -> Cells:
    """IM's agents decide, whose other settings differ, too. With PPO's settings, each side at its best rate, is the
    other definition."""
    cells = {}
    for place in PLACES:
        d, margin = reward.difference(place, "PPO", "PPO-NoClip"), reward.margin(place)
        verdict = judge(d, margin)
        needs = d.needed(margin, 1.645 + 0.84) if verdict == "cannot tell" else None
        p = float(stats.t.cdf((d.mean - margin) / d.error, d.freedom))  # one-sided, of a difference above the margin
        cells[place] = Cell(str(d), verdict, d.seeds, p, needs=needs)
        if place in RATED:
            best = worth_at_best(place)
            cells[place].text += f"; with PPO's settings, each at its best rate: {best}"
            cells[place].other = judge(best, margin)
    return cells


def with_noclips_settings(other: str, rule: Callable[[Estimate], Cell]) -> Cells:
    clipped = finals("clipping/hopper")["PPO-NoClip-clipped"]
    return dict(Hopper=rule(Estimate([clipped, reward.rewards("Hopper")[other]], (1, -1))))


# Clipping against the learning rate (protocol.md) ---------------------------------------------------------------------

MARGIN, RATES, RATED = 200, ("6e-5", "3e-4", "6e-4", "1.2e-3"), ("Hopper", "Walker2d")
LOW = "3e-5"  # on Hopper alone, added after a look
SIDES = {"PPO": "clipped", "PPO-unclipped": "not clipped"}


def agents_at(place: str) -> dict[str, dict[str, Any]]:
    """Returns what was measured of each agent."""
    files = [f"clipping/rates_{place.lower()}", *["clipping/low_rate_hopper"] * (place == "Hopper")]
    return {x["label"]: x for path in files for x in measured(path)["settings"]}


def rates_of(place: str) -> list[str]:
    return [LOW] * (place == "Hopper") + [*RATES]


def at_rates(place: str, side: str, rates: Iterable[str] = RATES) -> np.ndarray:
    """Returns the final rewards [rates, seeds] of one of the two sides."""
    of = agents_at(place)
    return np.array([of[f"{side}-{rate}"]["finals"] for rate in rates])


def worth_at(place: str, rate: str) -> Estimate:
    return Estimate([*at_rates(place, "PPO", [rate]), *at_rates(place, "PPO-unclipped", [rate])], (1, -1))


def more_at_a_high_rate(place: str, low: str = "3e-4", high: str = "1.2e-3") -> Estimate:
    """Returns by how much more clipping is worth at the high rate than at the low one, by default the protocol's."""
    low, high = (worth_at(place, rate) for rate in (low, high))
    return Estimate([*high.samples, *low.samples], (1, -1, -1, 1))


def worth_at_best(place: str) -> Estimate:
    """Returns the difference of the best rates. Half of the seeds choose each side's rate and the other half give its
    reward, then the other way round, so that no run counts at a rate that it has chosen."""
    samples = []
    for side in SIDES:
        halves = np.split(at_rates(place, side), 2, axis=1)
        samples += [of[chosen.mean(1).argmax()] for of, chosen in (halves, halves[::-1])]
    best = Estimate(samples, (0.5, 0.5, -0.5, -0.5))
    best.seeds *= 2
    return best


def of_rates(estimate: Callable[[str], Estimate]) -> Cells:
    return {place: of_sign(estimate(place), margin=MARGIN) for place in RATED}


def lower_is_better() -> Cells:
    """Judges whether without clipping 3e-5 is better than 6e-5, which is the lowest rate of the protocol."""
    samples = at_rates("Hopper", "PPO-unclipped", (LOW, "6e-5"))
    return dict(Hopper=of_sign(Estimate(list(samples), (1, -1)), margin=MARGIN))


CLAIMS = {
    "IM: PPO does not need its clipping": unneeded,
    "IM: PPO-NoClip ends where PPO does": lambda: reward.of_no_difference((1, -1), ("PPO", "PPO-NoClip")),
    "IM: PPO-NoClip ends above PPO-M": lambda: reward.above("PPO-NoClip", "PPO-M"),
    "clipping alone makes no difference": lambda: with_noclips_settings(
        "PPO-NoClip", lambda d: of_none(d, reward.margin("Hopper"))
    ),
    "PPO-NoClip's other settings help": lambda: with_noclips_settings("PPO", of_sign),
    "clipping is insurance against a high rate": lambda: of_rates(more_at_a_high_rate),
    **{f"clipping at {rate}": lambda rate=rate: of_rates(lambda place: worth_at(place, rate)) for rate in RATES},
    "clipping at the best rates": lambda: of_rates(worth_at_best),
    "clipping is worth more at 3e-4 than at 6e-5": lambda: of_rates(lambda x: more_at_a_high_rate(x, "6e-5", "3e-4")),
    "without clipping, 3e-5 is better than 6e-5": lower_is_better,
}
TOGETHER = [(["clipping is insurance against a high rate"], PLACES[:2])]


def table_of_rates() -> Iterable[list[str]]:
    """Yields of each side at each rate the mean final reward, and the median over runs of the largest mean KL."""
    yield ["policy's rate", *(f"{says}{x}" for x in ("", ": KL") for says in SIDES.values())]
    for place in RATED:
        of = agents_at(place)
        for rate in rates_of(place):
            cells = [of[f"{side}-{rate}"] for side in SIDES]
            kl = (two_digits(np.median(x["largest_kl"])) for x in cells)
            yield [f"{place}-v4, {rate}", *(str(Estimate([np.array(x["finals"])])) for x in cells), *kl]


TABLES = {"rates": table_of_rates}


def draw_differences() -> Figure:
    """Draws the difference that clipping makes, each with the margin of its environment behind it."""
    figure, [[axis]] = new_figure(1, 1, 3.1)
    clipped = Estimate(
        [finals("clipping/hopper")["PPO-NoClip-clipped"], reward.rewards("Hopper")["PPO-NoClip"]], (1, -1)
    )
    rows = [(f"{x}-v4: PPO − PPO-NoClip", x, reward.difference(x, "PPO", "PPO-NoClip")) for x in PLACES]
    rows.insert(2, ("the same with PPO-NoClip's settings", "Hopper", clipped))
    rows += [(f"{x}-v4: PPO-NoClip − PPO-M", x, reward.difference(x, "PPO-NoClip", "PPO-M")) for x in PLACES]
    for y, (_, place, x) in enumerate(rows):
        margin = reward.margin(place)
        axis.barh(
            y,
            2 * margin,
            0.8,
            -margin,
            color="0.9",
            label="margin: half of IM's effect of the optimizations" if not y else None,
        )
        axis.plot(x.interval(), [y, y], color=figures.COLOURS["ppo"], lw=2.5)
        axis.plot(x.mean, y, "o", color=figures.COLOURS["ppo"], ms=6)
        axis.text(1010, y, f"{x.seeds} seeds", va="center", fontsize=9)
    axis.axvline(0, color="black", lw=0.8)
    axis.set_yticks(range(len(rows)), [name for name, *_ in rows], fontsize=9)
    axis.set(ylim=(len(rows) - 0.5, -0.5), xlim=(-720, 1150))
    axis.set_xlabel("difference of final rewards, 95 % interval", fontsize=9)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", frameon=False, fontsize=9)
    return figure


def draw_rates() -> Figure:
    """Draws the final reward against the policy's learning rate, a line for each side and a dot for each run."""
    figure, [[axis]] = new_figure(1, 1, 3.6)
    # Lines and dots are drawn beside one another, or they would hide each other.
    beside = {("Hopper", "clipped"): 2, ("Walker2d", "clipped"): 1}
    beside |= {("Hopper", "not clipped"): -1, ("Walker2d", "not clipped"): -2}
    for place, colour in zip(RATED, ("#0072b2", "#d55e00")):
        rates = np.array([float(x) for x in rates_of(place)])
        for (side, says), style in zip(SIDES.items(), ("o-", "s--")):
            rewards = at_rates(place, side, rates_of(place))
            means, at = [Estimate([x]) for x in rewards], rates * 1.04 ** beside[place, says]
            face = colour if says == "clipped" else "white"
            label = f"{place}-v4, {says}"
            axis.plot(at, [x.mean for x in means], style, color=colour, mfc=face, ms=7, lw=2, label=label)
            for x, runs, mean in zip(at, rewards, means):
                axis.plot([x, x], mean.interval(), color=colour, lw=2)
                axis.plot([x * 1.018] * len(runs), runs, style[0], color=colour, mfc=face, ms=3, alpha=0.6)
    axis.set_xscale("log")
    axis.set_xticks([float(x) for x in (LOW, *RATES)], (LOW, *RATES))
    axis.minorticks_off()
    axis.set_xlabel("learning rate of the policy", fontsize=9)
    axis.set_ylabel("final reward: lines are means,\ndots are runs", fontsize=9)
    axis.legend(frameon=False, fontsize=9, title="10 seeds each, 95 % intervals", title_fontsize=9)
    return figure


PICTURES = {"differences": draw_differences, "rates": draw_rates}
