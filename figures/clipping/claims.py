"""Whether PPO needs its clipping (IM's Table 3)."""

import functools
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from claims import Cell, Cells, after_holm, differs, of_sign, room, turns
from estimates import PLACES, Estimate, Runs, two_digits
from pictures import forest, new_figure, style_of
from scipy import stats

reward = room("reward")
margin, paper = reward.margin, reward.paper
MARGIN, RATES, RATED = 200, ("6e-5", "3e-4", "6e-4", "1.2e-3"), ("Walker2d", "Hopper")
LOW = "3e-5"  # on Hopper alone, added after a look
SIDES = {"PPO": "clipped", "PPO-unclipped": "not clipped"}
AT = {f"AT_{rate}": f"PPO-{rate} - PPO-unclipped-{rate}" for rate in (LOW, *RATES)}
FILES = *reward.TABLE_2, "reward/hopper_first as first/", "clipping/{}", "clipping/rates_{}", "clipping/low_rate_{}"
# Ten seeds were trained twice: the mean of two runs counts, but for `own`.
runs, own = Runs(*FILES, "nine/scaling_hopper as PPO-scaled=PPO-3e-4", **AT), Runs(*FILES, **AT)
TOGETHER = [(["clipping is insurance against a high rate"], RATED)]


def judge(d: Estimate, margin: float) -> str:
    """Judges the claim that a difference is not above the margin, of which only one side counts."""
    return "holds" if d.ends(0.9)[1] < margin else "does not hold" if differs(d, margin) == 1 else "cannot tell"


def unneeded() -> Cells:
    """IM's agents decide, whose other settings differ, too. With PPO's settings, each side at its best rate, is the
    other definition."""
    cells = {}
    for place in PLACES:
        d, m = runs(place, "PPO - PPO-NoClip"), margin(place)
        verdict = judge(d, m)
        needs = d.needed(m, 1.645 + 0.84) if verdict == "cannot tell" else None
        p = float(stats.t.cdf((d.mean - m) / d.error, d.freedom))  # that the difference is below the margin
        p = 2 * (1 - p) if verdict == "does not hold" else p  # or, two-sided as in `judge`, above it
        cells[place] = Cell(str(d), verdict, d.seeds, p, needs=needs)
        if place in RATED:
            best = at_best(place)
            cells[place].text += f"; with PPO's settings, each at its best rate: {best}"
            cells[place].depends = turns(verdict, judge(best, m), best - d)  # other seeds
    return reward.mark_unlike(cells, "PPO - PPO-NoClip", runs)


none, above = (functools.partial(x, of=runs) for x in (reward.none, reward.above))
planned = functools.partial(reward.planned, of=runs, size=None)


def uniformly_above(contrast: str) -> Cells:
    return {x: replace(y, everywhere=True) for x, y in above(contrast).items()}


def sign(contrast: str) -> Cells:
    return {x: of_sign(runs(x, contrast)) for x in runs.places(contrast)}


def judge_all() -> dict[str, Cells]:
    """Judges each row of the page's tables, in their order."""
    return {
        "IM: PPO does not need its clipping": unneeded(),
        "IM: PPO-NoClip ends where PPO does": none("PPO - PPO-NoClip"),
        "IM: PPO-NoClip ends above PPO-M": uniformly_above("PPO-NoClip - PPO-M"),
        "clipping alone makes no difference": none("PPO-NoClip-clipped - PPO-NoClip"),
        "PPO-NoClip's other settings help": sign("PPO-NoClip-clipped - PPO"),
        "clipping is insurance against a high rate": planned("AT_1.2e-3 - AT_3e-4"),
        "clipping at 6e-5": planned("AT_6e-5"),
        "clipping at 3e-4": planned("AT_3e-4"),
        "clipping at 6e-4": planned("AT_6e-4"),
        "clipping at 1.2e-3": planned("AT_1.2e-3"),
        "clipping at the best rates": best_rates(),
        "clipping is worth more at 3e-4 than at 6e-5": planned("AT_3e-4 - AT_6e-5"),
        "without clipping, 3e-5 is better than 6e-5": planned("PPO-unclipped-3e-5 - PPO-unclipped-6e-5"),
        "without clipping, 6e-5 is better than 3e-4": planned("PPO-unclipped-6e-5 - PPO-unclipped-3e-4"),
        "clipped at 3e-4 is better than not clipped at 6e-5": planned("PPO-3e-4 - PPO-unclipped-6e-5"),
    }


def chosen(place: str, side: str) -> list[tuple[str, np.ndarray]]:
    """Returns the rate that is the best for each half of the seeds, and what the other half has there."""
    halves = [
        np.reshape(x, (-1, 2, 5)).swapaxes(0, 1).reshape(2, -1) for x in (runs.of(place)[f"{side}-{y}"] for y in RATES)
    ]
    best = [int(np.argmax([x[half].mean() for x in halves])) for half in (1, 0)]
    return [(RATES[i], halves[i][half]) for half, i in enumerate(best)]


def at_best(place: str) -> Estimate:
    """Returns the difference of the best rates. Half of the seeds choose each side's rate and the other half give its
    reward, then the other way round, so that no run counts at a rate that it has chosen."""
    best = Estimate([x for side in SIDES for _, x in chosen(place, side)], (0.5, 0.5, -0.5, -0.5))
    best.seeds *= 2
    return best


def best_rates() -> Cells:
    return {place: of_sign(at_best(place), margin=MARGIN) for place in RATED}


def twice() -> np.ndarray:
    """Returns the two sets [2, seeds] of the runs that were trained twice."""
    return np.array([x["finals"] for x in runs.settings("Hopper")["PPO-3e-4"]])


def holm_of_eight() -> list[bool]:
    return after_holm([runs(place, f"AT_{rate}") for rate in RATES for place in RATED])


def largest_kl(place: str, side: str, rate: str) -> float:
    """Returns the median over runs of the largest mean KL of an iteration."""
    return np.median([y for x in runs.settings(place)[f"{side}-{rate}"] for y in x.get("largest_kl", ())])


def more_kl(place: str, rate: str) -> float:
    return largest_kl(place, "PPO-unclipped", rate) / largest_kl(place, "PPO", rate)


def table_of_rates() -> Iterable[list[str]]:
    """Yields of each side at each rate the mean final reward, and the median over runs of the largest mean KL."""
    yield ["policy's rate", *(f"{says}{x}" for x in ("", ": KL") for says in SIDES.values())]
    for place in reversed(RATED):
        for rate in [LOW] * (place == "Hopper") + [*RATES]:
            kl = (two_digits(largest_kl(place, side, rate)) for side in SIDES)
            yield [f"{place}-v4, {rate}", *(str(runs(place, f"{side}-{rate}")) for side in SIDES), *kl]


def differences():
    """Draws the difference that clipping makes, each with the margin of its environment behind it."""
    says = {"PPO − PPO-NoClip": "PPO - PPO-NoClip", "PPO-NoClip − PPO-M": "PPO-NoClip - PPO-M"}
    says |= {"clipping, with PPO-NoClip's settings": "PPO-NoClip-clipped - PPO-NoClip"}
    panels = {f"{x}-v4": {y: {x: runs(x, z)} if x in runs.places(z) else {} for y, z in says.items()} for x in PLACES}
    return forest(panels, "difference of final rewards, 95 % interval", list(map(margin, PLACES)))


def rates():
    """Draws the final reward against the policy's learning rate, a line for each side and a dot for each run."""
    figure, [axes] = new_figure(1, 2, 3.0, sharey=True)
    for axis, place in zip(axes, RATED):
        for shift, (side, says) in zip((1.03, 1 / 1.03), SIDES.items()):
            name, of = f"{place}-v4, {says}", [LOW] * (place == "Hopper") + [*RATES]
            at, means = np.array([float(x) for x in of]) * shift, [runs(place, f"{side}-{x}") for x in of]
            style, line = style_of(name), "-" if says == "clipped" else "--"
            axis.plot(at, [x.mean for x in means], ms=7, ls=line, label=name, **style)
            for x, mean in zip(at, means):
                axis.plot([x, x], mean.interval(), color=style["color"], lw=2)
                axis.plot([x * shift] * len(mean.samples[0]), *mean.samples, ls="", alpha=0.6, **style | dict(ms=3))
        axis.set_xscale("log")
        axis.set_xticks([float(x) for x in (LOW, *RATES)], (LOW, *RATES))
        axis.minorticks_off()
        axis.set_xlabel("learning rate of the policy; dots are runs", fontsize=9)
    axes[0].set_ylabel("final reward, 95 % intervals", fontsize=9)
    return figure


PICTURES = dict(differences=differences, rates=rates)
