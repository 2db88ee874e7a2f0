"""What the critic is good for (CL's Fig. 3, 4, 11 and 12, sec. 2.2)."""

from typing import Any

import numpy as np
from claims import HOLDS, NOT, UNCLEAR, Cell, Cells, counted, new_figure, of_seeds, room
from estimates import Estimate, OfSeed, by_seed, finals, in_places, measured, plain, span
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from measuring import figures, intervals

gradients = room("gradients")
VERSION = "v5"
LATE = range(100, 488)  # iterations
NETWORK, TRUE = "value network", "true value function"
NO_BASELINE, RETURNS = "discounted returns (no baseline)", "returns - true value function"


def errors(of: OfSeed, key: str, number: str = "mean") -> list[float]:
    """Returns the median of a relative error over the checkpoints, of each agent."""
    return [float(np.median([x[key][number] for x in cells])) for cells in of.values()]


def before_the_end(of: OfSeed, key: str = "heldout_released") -> list[float]:
    """Returns the same of the pairs that a terminal state follows, whose returns no cut shortens and no V completes."""
    found = []
    for cells in of.values():
        bins = [y["mean"] for x in cells for y in x[key]["by_distance"] if y["steps"] is None]
        found.append(float(np.median(bins)))
    return found


def fits_its_targets(env: str, of: OfSeed) -> tuple:
    found = errors(of, "heldout_gae")
    return (span(found, 3),), np.median(found)


def is_off_by_half(env: str, of: OfSeed) -> tuple:
    found, of_median_pair = (errors(of, "heldout_released", x) for x in ("mean", "median"))
    texts = span(found, 2), span(of_median_pair, 2), span(before_the_end(of), 2)
    return texts, np.median(found)


def off_by_half() -> Cells:
    """As CL's code measures it. The other definition leaves out every pair whose episode is cut."""
    places, form = in_places("critic/{}", LATE), "{} (median pair {}); {} where a terminal state follows"
    cells = of_seeds(form, is_off_by_half, places, 0.25)
    clean = of_seeds("", lambda env, of: ((), np.median(before_the_end(of))), places, 0.25)
    for env, cell in cells.items():
        cell.other = clean[env].verdict
    return cells


def is_small_on_training_pairs(env: str, of: OfSeed) -> tuple:
    found = errors(of, "train_released")
    return (span(found, 2),), np.median(found)


def compare_noise(env: str, x: str, y: str) -> list[bool | None]:
    """Returns at each checkpoint whether the noise is less with x than with y: whether the difference of the two
    signal-to-noise ratios is above 0, whose interval is that of independent estimates. They are made from the same
    pairs, so it is rather too wide."""
    found = []
    for cell in measured(f"critic/baselines_{env.lower()}"):
        scales = [cell["noise_scale"][name] for name in (x, y)]
        mean = np.subtract(*(z["grad_sq"] / z["trace"] for z in scales))
        low, high = zip(*(z["inverse_interval"] for z in scales))
        mids = [z["grad_sq"] / z["trace"] for z in scales]
        below = np.hypot(mids[0] - low[0], high[1] - mids[1])
        above = np.hypot(high[0] - mids[0], mids[1] - low[1])
        found.append(True if mean > below else False if mean < -above else None)
    return found


def less_noise(x: str, y: str) -> Cells:
    """One run each, so that the checkpoints of a run must agree."""
    cells = {}
    for env in ("Walker2d", "Hopper"):
        found = compare_noise(env, x, y)
        so = True if all(found) else False if False in found else None
        more = f", more at {found.count(False)}" * (False in found)
        cells[env] = counted(f"less noise at {found.count(True)} of {len(found)} checkpoints{more}", [so])
    return cells


def gaps(env: str) -> list[tuple[float, float, float]]:
    """Returns at each checkpoint by how much the cosine of two estimates from a training batch is larger with the value
    network than without a baseline, and the interval of independent estimates."""
    found = []
    for x in measured(f"critic/baselines_{env.lower()}"):
        at = x["pairs"].index(gradients.BATCH)
        network, zero = (x["variance"][baseline][at] for baseline in (NETWORK, NO_BASELINE))
        half = np.hypot(*(np.ptp(y["interval"]) / 2 for y in (network, zero)))
        gap = network["mean"] - zero["mean"]
        found.append((gap, gap - half, gap + half))
    return found


def gap_is_small() -> Cells:
    cells = {}
    for env in ("Walker2d", "Hopper"):
        found = [gap for gap, *_ in gaps(env)]
        small = [high < 0.1 for _, _, high in gaps(env)]
        text = f"cosines differ by {span(found, 2)}"
        cells[env] = counted(text, [True if all(small) else False if any(x > 0.1 for _, x, _ in gaps(env)) else None])
    return cells


def gap_shrinks() -> Cells:
    cells = {}
    for env in ("Walker2d", "Hopper"):
        (first, low, high), *_, (last, last_low, last_high) = found = gaps(env)
        half = np.hypot((high - low) / 2, (last_high - last_low) / 2)
        so = True if last - first < -half else False if last - first > half else None
        cells[env] = counted(f"by {', '.join(plain(gap, 2) for gap, *_ in found)}", [so])
    return cells


def share_left(name: str) -> tuple[float, float, float]:
    """Returns what an agent keeps of its reward without a baseline, and the wider ends of two 95 % intervals: BCa's,
    and Student's t of the log ratio of means (delta method, Satterthwaite's degrees of freedom)."""
    agents = finals("critic/agents")
    x, y = agents[f"{name}, no baseline"], agents[name]
    share, (low, high) = intervals.bootstrap(lambda x, y: x.mean(-1) / y.mean(-1), x, y).values()
    log = Estimate([x / x.mean(), y / y.mean()], (1, -1))  # to first order the log ratio, but for its mean
    half = np.exp(log.interval()[1] - log.mean)
    return share, min(low, share / half), max(high, share * half)


def without_baseline() -> Cells:
    """CL's "almost an order of magnitude" is a fifth at most here. The other definition is a tenth."""
    shares = {name: share_left(name) for name in ("PPO", "TRPO")}
    text = "; ".join("{} keeps {:.2f} [{:.2f}, {:.2f}]".format(name, *x) for name, x in shares.items())

    def verdict(most: float) -> str:
        if all(high < most for _, _, high in shares.values()):
            return HOLDS
        return NOT if any(low > most for _, low, _ in shares.values()) else UNCLEAR

    return dict(Walker2d=Cell(text, verdict(0.2), min(map(len, finals("critic/agents").values())), other=verdict(0.1)))


CLAIMS = {
    "CL: without a baseline, rewards fall nearly tenfold": without_baseline,
    "CL: the value network fits its targets": lambda: of_seeds(
        "{}", fits_its_targets, in_places("critic/{}", LATE), 0.2, False
    ),
    "CL: V is off by half from true returns": off_by_half,
    "CL: V's error is small on training pairs": lambda: of_seeds(
        "{}", is_small_on_training_pairs, in_places("critic/{}", LATE), 0.1, False
    ),
    "CL: a “true” V has much less noise": lambda: less_noise(TRUE, NETWORK),
    "CL: the network has less than no baseline": lambda: less_noise(NETWORK, NO_BASELINE),
    "returns minus a “true” V have less than returns": lambda: less_noise(RETURNS, NO_BASELINE),
    "GAE's lambda reduces the noise": lambda: less_noise(TRUE, RETURNS),
    "CL: a baseline's gain looks small at 2,048 pairs": gap_is_small,
    "CL: networks help no more as training goes on": gap_shrinks,
}


# Pictures ------------------------------------------------------------------------------------------------------------

LOOKS = gradients.LOOKS


def draw_distance() -> Figure:
    """Draws the error by the distance to the next cut, and the mean error against the median pair's."""
    figure, [axes] = new_figure(1, 2, 3.5, width_ratios=(1.25, 1))
    seeds = by_seed("critic/walker2d", LATE)
    for of in seeds:
        for name, style in LOOKS.items():
            bins = {}
            for x in (y for cell in of[name] for y in cell["heldout_released"]["by_distance"]):
                bins.setdefault(tuple(x["steps"] or ()), []).append(x["mean"])
            points = sorted((np.prod(steps) ** 0.5, np.median(y)) for steps, y in bins.items() if steps)
            style = style | dict(markersize=4, linewidth=0.9, label=name if of is seeds[0] else None)
            axes[0].plot(*np.transpose(points), **style)
            axes[0].plot(3000, np.median(bins[()]), **style | dict(label=None))
    axes[0].set(xscale="log", yscale="log", xlabel="steps to the next cut", ylabel="relative error of V")
    axes[0].set_xticks([1, 10, 100, 1000, 3000], ["1", "10", "100", "1,000", "no cut"])
    axes[0].axhline(0.5, color="0.5", lw=0.8, ls="--")
    axes[0].text(1, 0.53, "CL's half", fontsize=9, va="bottom")
    axes[0].set_title(f"Walker2d-v5, {len(seeds)} seeds of each agent", fontsize=10)
    axes[0].legend(frameon=False, fontsize=9)
    for k, place in enumerate(("Walker2d", "Hopper", "Humanoid")):
        of_place = by_seed(f"critic/{place.lower()}", LATE)
        for shift, number, marker in ((-0.15, "mean", "o"), (0.15, "median", "s")):
            for of in of_place:
                for name in of:
                    value = float(np.median([x["heldout_released"][number] for x in of[name]]))
                    axes[1].plot(k + shift, value, marker, color=LOOKS[name]["color"], ms=5, alpha=0.7)
    marks = [Line2D([], [], marker=m, ls="", color="0.4", label=t) for m, t in (("o", "mean"), ("s", "median pair"))]
    axes[1].legend(handles=marks, frameon=False, fontsize=9)
    axes[1].set_xticks(range(3), ["Walker2d-v5", "Hopper-v5", "Humanoid-v5\n(one seed)"], fontsize=9)
    axes[1].set(ylim=(0, None), ylabel="relative error of V")
    axes[1].axhline(0.5, color="0.5", lw=0.8, ls="--")
    axes[1].set_title("its mean, and that of the median pair", fontsize=10)
    return figure


ESTIMATORS = {
    TRUE: ('"true" value function', figures.COLOURS["trpo"], "D"),
    NETWORK: ("value network", figures.COLOURS["ppo"], "o"),
    RETURNS: ('returns minus "true" values', figures.COLOURS["trpo_plus"], "s"),
    NO_BASELINE: ("no baseline (returns)", figures.COLOURS["vmpo"], "X"),
}
LOWER, NO_END = "^", r"$\uparrow$"  # the marks of a lower bound, and of an interval that has no upper end


def draw_baselines() -> Figure:
    """Draws the noise scale of PPO's gradient with each estimator at three iterations, of one seed (CL's Fig. 4)."""
    figure, [axes] = new_figure(1, 2, 4.2, sharey=True)
    for axis, env in zip(axes, ("walker2d", "hopper")):
        cells = measured(f"critic/baselines_{env}")
        axis.set(yscale="log", ylim=(1_000, 2_000_000), xlim=(-0.5, len(cells) - 0.5))
        axis.axhline(gradients.BATCH, color="black", linestyle="--", linewidth=1)
        for at, cell in enumerate(cells):
            axis.axvline(at - 0.5, color="0.85", linewidth=0.8)
            for k, (name, (_, colour, marker)) in enumerate(ESTIMATORS.items()):
                draw_interval(axis, at + 0.18 * (k - 1.5), cell["noise_scale"][name], colour, marker)
        box = dict(color="white", pad=1)  # hides the line between two iterations
        axis.text(-0.45, 0.9 * gradients.BATCH, "training batch: 2,048 pairs", va="top", fontsize=9, bbox=box)
        axis.set_xticks(range(len(cells)), [cell["iteration"] for cell in cells])
        axis.set(title=f"{env.capitalize()}-v5, PPO, 1 seed", xlabel="iteration")
    axes[0].set_ylabel("noise scale (state-action pairs)")
    figures.label_log_axis(axes[0])
    marks = [Line2D([], [], color=x, marker=y, linestyle="", label=name) for name, x, y in ESTIMATORS.values()]
    grey = dict(color="0.4", linestyle="", markersize=7)
    marks.insert(1, Line2D([], [], marker=LOWER, label="only a lower bound", **grey))
    marks.insert(3, Line2D([], [], marker=NO_END, label="no upper end", **grey))
    figure.legend(handles=marks, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return figure


def draw_interval(axis: Axes, x: float, scale: dict[str, Any], colour: str, marker: str) -> None:
    """Draws a noise scale with its 95 % interval. An interval without an upper end goes to the top of the panel and has
    an arrow there. If there is no estimate either, a triangle stands at the lower end."""
    (low, high), top = scale["interval"], axis.get_ylim()[1] / 1.25
    axis.plot([x, x], [low, high or top], color=colour, linewidth=1.5)
    if high is None:
        axis.plot(x, top, marker=NO_END, color=colour, markersize=9)
    known = scale["pairs"] is not None
    axis.plot(x, scale["pairs"] if known else low, marker if known else LOWER, color=colour, markersize=7)


PICTURES = {"distance": draw_distance, "baselines": draw_baselines}
