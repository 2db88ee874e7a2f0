"""Whether PPO needs its clipping (IM's Table 3)."""

from collections.abc import Callable

from claims import Cell, Cells, differs, new_figure, of_none, of_sign, room
from estimates import PLACES, Estimate, finals
from matplotlib.figure import Figure
from measuring import figures
from scipy import stats

reward = room("reward")
VERSION = "v4"


def unneeded() -> Cells:
    """PPO is not above PPO-NoClip by more than the margin, of which only one side counts."""
    cells = {}
    for place in PLACES:
        d, margin = reward.difference(place, "PPO", "PPO-NoClip"), reward.margin(place)
        below, above = d.ends(0.9)[1] < margin, differs(d, margin) == 1
        verdict = "holds" if below else "does not hold" if above else "cannot tell"
        needs = None if below or above else d.needed(margin, 1.645 + 0.84)
        p = float(stats.t.cdf((d.mean - margin) / d.error, d.freedom))  # one-sided, of a difference above the margin
        cells[place] = Cell(str(d), verdict, d.seeds, p, needs=needs)
    return cells


def with_noclips_settings(other: str, judge: Callable[[Estimate], Cell]) -> Cells:
    clipped = finals("clipping/hopper")["PPO-NoClip-clipped"]
    return dict(Hopper=judge(Estimate([clipped, reward.rewards("Hopper")[other]], (1, -1))))


CLAIMS = {
    "IM: PPO does not need its clipping": unneeded,
    "IM: PPO-NoClip ends where PPO does": lambda: reward.of_no_difference((1, -1), ("PPO", "PPO-NoClip")),
    "IM: PPO-NoClip ends above PPO-M": lambda: reward.above("PPO-NoClip", "PPO-M"),
    "clipping alone makes no difference": lambda: with_noclips_settings(
        "PPO-NoClip", lambda d: of_none(d, reward.margin("Hopper"))
    ),
    "PPO-NoClip's other settings help": lambda: with_noclips_settings("PPO", of_sign),
}


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


PICTURES = {"differences": draw_differences}
