"""What the critic is good for (CL's Fig. 3, 4, 11 and 12, sec. 2.2)."""

import functools
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from claims import HOLDS, NOT, UNCLEAR, Cell, Cells, Look, agreed, n, sides, tally, turns
from estimates import PLACES, Estimate, Runs, bootstrap, by_seed, measured, plain, span
from matplotlib.axes import Axes
from pictures import LINES, STYLES, forest, new_figure
from scipy import stats

LATE, BATCH, TWO = range(100, 488), 2048, ("Walker2d", "Hopper")  # iterations, pairs of a training batch
NETWORK, TRUE = "value network", "true value function"
NONE, RETURNS = "discounted returns (no baseline)", "returns - true value function"
ESTIMATORS = {TRUE: "“true” value function", NETWORK: "value network", RETURNS: "returns − “true” values"}
ESTIMATORS |= {NONE: "no baseline (returns)"}


@functools.cache
def seeds(place: str) -> list[dict[str, list[float]]]:
    """Returns of each seed the medians over checkpoints of the relative errors, of each agent: of the targets; of the
    returns as CL's code has them by their mean, and by their median pair; on training pairs; and of the pairs that a
    terminal state follows, whose returns no cut shortens and no V completes."""
    number = lambda rows, key, name: float(np.median([x[key][name] for x in rows]))
    of = dict(fits=("heldout_gae", "mean"), half=("heldout_released", "mean"), pair=("heldout_released", "median"))
    of |= dict(train=("train_released", "mean"))
    found = []
    for agents in by_seed(f"critic/{place.lower()}", LATE):
        found.append({x: [number(rows, *y) for rows in agents.values()] for x, y in of.items()})
        bins = [[y for x in rows for y in x["heldout_released"]["by_distance"]] for rows in agents.values()]
        found[-1]["clean"] = [float(np.median([y["mean"] for y in x if y["steps"] is None])) for x in bins]
    return found


def at_checkpoints(form: str, look: Look, **bound: float) -> Cells:
    return tally({x: seeds(x) for x in PLACES}, form, look, **bound)


def error(name: str, digits: int, of: dict[str, list[float]]) -> tuple:
    """Returns a seed's error, which is that of the median agent, and the range over agents."""
    return np.median(of[name]), span(of[name], digits)


def half_and_clean(of: dict[str, list[float]]) -> tuple:
    return np.median(of["half"]), *(span(of[name], 2) for name in ("half", "pair", "clean"))


def small_in_training() -> Cells:
    """In the released code the panel of the training pairs has other units than that of the held-out ones, so that what
    CL shows may be another number than this."""
    cells = at_checkpoints("{}", partial(error, "train", 2), below=0.1)
    for cell in cells.values():
        cell.unlike = "CL's number may be another"
    return cells


def off_by_half() -> Cells:
    """As CL's code measures it. The other definition leaves out every pair whose episode is cut."""
    form = "{} (median pair {}); {} where a terminal state follows"
    cells = at_checkpoints(form, half_and_clean, above=0.25)
    clean = at_checkpoints("{}", partial(error, "clean", 2), above=0.25)
    for place, cell in cells.items():
        cell.depends = turns(cell.verdict, clean[place].verdict)
    return cells


# Baselines, of one run of PPO -----------------------------------------------------------------------------------------


def less(place: str, x: str, y: str) -> list[bool | None]:
    """Returns at each checkpoint whether the noise is less with x than with y: whether the difference of the two
    signal-to-noise ratios is above 0, whose interval is that of independent estimates. They are made from the same
    pairs, so it is rather too wide."""
    found = []
    for row in measured(f"critic/baselines_{place.lower()}"):
        of = [row["noise_scale"][name] for name in (x, y)]
        (a, b), (low, high) = (z["grad_sq"] / z["trace"] for z in of), zip(*(z["inverse_interval"] for z in of))
        below, above = np.hypot(a - low[0], high[1] - b), np.hypot(high[0] - a, b - low[1])
        found += sides([a - b], [below if a > b else above])
    return found


def less_noise(x: str, y: str) -> Cells:
    """Judges whether there is less noise with x than with y at the checkpoints of a run, which must agree."""

    def look(found: list[bool | None]) -> tuple:
        return agreed(found), n([z is True for z in found])

    return tally({place: [less(place, x, y)] for place in TWO}, "less noise at {} checkpoints", look)


class Gap(NamedTuple):
    """By how much the cosine of two estimates from a training batch is larger with the value network than without a
    baseline, give or take half an interval, at the checkpoints of a run."""

    gap: np.ndarray
    half: np.ndarray


def of_one_run(form: str, look: Look) -> Cells:
    runs = {}
    for place in TWO:
        both = []
        for x in measured(f"critic/baselines_{place.lower()}"):
            both.append([x["variance"][baseline][x["pairs"].index(BATCH)] for baseline in (NETWORK, NONE)])
        half = np.array([np.hypot(*(np.ptp(y["interval"]) / 2 for y in x)) for x in both])
        runs[place] = [Gap(np.array([x["mean"] - y["mean"] for x, y in both]), half)]
    return tally(runs, form, look)


def small_gap(of: Gap) -> tuple:
    return agreed(sides(0.1 - of.gap, of.half)), span(of.gap, 2)


def gap_shrinks(of: Gap) -> tuple:
    [shrinks] = sides(of.gap[:1] - of.gap[-1:], np.hypot(of.half[:1], of.half[-1:]))
    return shrinks, ", ".join(plain(x, 2) for x in of.gap)


# Agents without a baseline --------------------------------------------------------------------------------------------

agents = Runs("critic/agents").of("Walker2d")


def share_left(name: str) -> tuple[float, float, float, float]:
    """Returns what an agent keeps of its reward without a baseline, and the wider ends of two 95 % intervals: BCa's,
    and Student's t of the log ratio of means (delta method, Satterthwaite's degrees of freedom); and by the latter the
    p of a fifth."""
    x, y = agents[f"{name},nobaseline"], agents[name]
    share, (low, high) = bootstrap(lambda x, y: x.mean(-1) / y.mean(-1), x, y).values()
    log = Estimate([x / x.mean(), y / y.mean()], (1, -1))  # to first order the log ratio, but for its mean
    half = np.exp(log.interval()[1] - log.mean)
    p = 2 * stats.t.sf(abs(np.log(share / 0.2)) / log.error, log.freedom)
    return share, min(low, share / half), max(high, share * half), float(p)


def without_baseline() -> Cells:
    """CL's "almost an order of magnitude" is a fifth at most here. Of one estimate, a second threshold is no second
    definition, so that a tenth is only written beside it."""
    shares = {name: share_left(name) for name in ("PPO", "TRPO")}
    text = "; ".join("{} keeps {:.2f} [{:.2f}, {:.2f}]".format(name, *x) for name, x in shares.items())
    above = lambda bound: any(low > bound for _, low, *_ in shares.values())
    verdict = HOLDS if all(high < 0.2 for *_, high, _ in shares.values()) else NOT if above(0.2) else UNCLEAR
    text += "; a tenth is excluded" * above(0.1)
    against = [p for _, low, _, p in shares.values() if low > 0.2]  # One agent refutes, and both confirm.
    p = min(1.0, 2 * min(against)) if against else max(p for *_, p in shares.values())
    return dict(Walker2d=Cell(text, verdict, min(map(len, agents.values())), p))


def judge_all() -> dict[str, Cells]:
    """Judges each row of the page's tables, in their order."""
    return {
        "CL: without a baseline, rewards fall nearly tenfold": without_baseline(),
        "CL: the value network fits its targets": at_checkpoints("{}", partial(error, "fits", 3), below=0.2),
        "CL: V is off by half from true returns": off_by_half(),
        "CL: V's error is small on training pairs": small_in_training(),
        "CL: a “true” V has much less noise": less_noise(TRUE, NETWORK),
        "CL: the network has less than no baseline": less_noise(NETWORK, NONE),
        "returns minus a “true” V have less than returns": less_noise(RETURNS, NONE),
        "GAE's lambda reduces the noise": less_noise(TRUE, RETURNS),
        "CL: a baseline's gain looks small at 2,048 pairs": of_one_run("cosines differ by {}", small_gap),
        "CL: networks help no more as training goes on": of_one_run("by {}", gap_shrinks),
    }


# What the page says beside its table, and pictures --------------------------------------------------------------------


def of_all(name: str, *places: str) -> str:
    return span((x for place in places for of in seeds(place) for x in of[name]), 2)


def clean_between(low: float, high: float) -> list[bool]:
    """Answers of each run whether its error where a terminal state follows lies between these."""
    return [low < x < high for place in PLACES for of in seeds(place) for x in of["clean"]]


def far_from_a_cut(place: str, steps: int = 256) -> str:
    """Writes the median error of the pairs that are so many steps or more from a cut, as CL's code has it, which is the
    mean within each bin of distances: the median over agents, seeds and checkpoints."""
    bins = [y for of in rows_of(place) for x in of for y in x["by_distance"] if y["steps"] and y["steps"][0] >= steps]
    return plain(np.median([x["mean"] for x in bins]), 2)


def rows_of(*places: str) -> list[list[dict[str, Any]]]:
    """Returns the held-out errors at the checkpoints of each run."""
    of = (rows for x in places for of in by_seed(f"critic/{x.lower()}", LATE) for rows in of.values())
    return [[x["heldout_released"] for x in rows] for rows in of]


def near_a_cut() -> list[str]:
    """Writes the shares in percent, of the error and of the pairs, that lie within 63 steps of a cut."""
    shares = []
    for rows in rows_of(*TWO):
        of = [[(x["steps"], np.array([x["mean"] * x["pairs"], x["pairs"]])) for x in y["by_distance"]] for y in rows]
        near = [sum(x for steps, x in y if steps and steps[1] < 64) / sum(x for _, x in y) for y in of]
        shares.append(np.median(near, axis=0))
    return [span(100 * x) for x in np.transpose(shares)]


TARGETS = dict(gae="what V was fitted to (GAE)", released="returns, as released")


def draw_errors(axis: Axes, place: str, key: str) -> None:
    """Draws V's relative error over training, a line for each run. A key is heldout_ or train_ and the target."""
    for i, of in enumerate(by_seed(f"critic/{place.lower()}")):
        for k, name in enumerate(sorted(of)):
            style = dict(color=STYLES[name][0], ls=LINES[k], lw=1, label=None if i else name)
            axis.plot([x["iteration"] for x in of[name]], [x[key]["mean"] for x in of[name]], **style)
    axis.set(yscale="log", ylim=(0.001, 3))
    axis.set_yticks([0.001, 0.01, 0.1, 1], ["0.001", "0.01", "0.1", "1"])
    axis.minorticks_off()


def errors(place: str):
    """Draws CL's Fig. 3 or 12 above, and its Fig. 11 below."""
    figure, axes = new_figure(2, 2, 4.2, sharex=True, sharey=True)
    for row, (where, text) in zip(axes, dict(heldout="held out", train="training batch").items()):
        for axis, target in zip(row, TARGETS):
            draw_errors(axis, place, f"{where}_{target}")
        row[0].set_ylabel(f"relative error of V,\n{text}", fontsize=9)
        row[1].axhline(0.5, color="0.4", lw=0.8, ls=":", label="CL's half")
    for axis, title in zip(axes[0], TARGETS.values()):
        axis.set_title(title, fontsize=10)
    figure.supxlabel(f"iteration; {place}-v5", fontsize=9)
    return figure


def cosines():
    """Draws CL's Fig. 4: the cosine of two gradient estimates against pairs with each estimator, of one run of PPO."""
    figure, axes = new_figure(2, 3, 4.2, sharex=True, sharey="row")
    for row, place in zip(axes, TWO):
        for axis, x in zip(row, measured(f"critic/baselines_{place.lower()}")):
            for k, name in enumerate((TRUE, NETWORK, NONE)):
                points, colour = x["variance"][name], ("#009e73", "#000000", "#d55e00")[k]
                style = dict(color=colour, ls=LINES[k], marker="osD"[k], ms=3.5, lw=1.2, label=ESTIMATORS[name])
                axis.plot(x["pairs"], [y["mean"] for y in points], **style)
                axis.fill_between(x["pairs"], *zip(*[y["interval"] for y in points]), color=colour, alpha=0.2, lw=0)
            axis.set_title(f"{place}-v5, iteration {x['iteration']}", fontsize=10)
            axis.set(xscale="log")
            axis.set_xticks(x["pairs"], [f"{y:,}" for y in x["pairs"]])
            axis.minorticks_off()
        row[0].set_ylabel("cosine of two estimates", fontsize=9)
    figure.supxlabel("state-action pairs of an estimate; 95 % intervals", fontsize=9)
    return figure


def distance():
    """Draws the error by the distance to the next cut, of each agent and seed."""
    figure, [[axis]] = new_figure(1, 1, 3.2)
    for i, of in enumerate(by_seed("critic/walker2d", LATE)):
        for k, name in enumerate(sorted(of)):
            bins = {}
            for x in (y for row in of[name] for y in row["heldout_released"]["by_distance"]):
                bins.setdefault(tuple(x["steps"] or ()), []).append(x["mean"])
            points = sorted((np.prod(steps) ** 0.5, np.median(y)) for steps, y in bins.items() if steps)
            style = dict(color=STYLES[name][0], marker=STYLES[name][1], ms=4, lw=1)
            axis.plot(*np.transpose(points), ls=LINES[k], label=None if i else name, **style)
            axis.plot(2500 * 1.08**k, np.median(bins[()]), **style)
    axis.set(xscale="log", yscale="log", xlabel="steps to the next cut; Walker2d-v5, a line for each run")
    axis.set_ylabel("relative error of V")
    axis.set_xticks([1, 10, 100, 1000, 2700], ["1", "10", "100", "1,000", "a terminal\nstate follows"])
    axis.set_yticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])
    axis.axhline(0.5, color="0.4", lw=0.8, ls=":")
    axis.text(1, 0.55, "CL's half", fontsize=9, va="bottom")
    axis.minorticks_off()
    return figure


def baselines():
    """Draws a training batch divided by the noise scale, which is large where there is little noise, with each
    estimator at three iterations, of one seed (CL's Fig. 4)."""
    panels = {}
    for place in TWO:
        rows = panels.setdefault(f"{place}-v5, PPO, 1 seed", {})
        for row, name in ((x, y) for x in measured(f"critic/baselines_{place.lower()}") for y in ESTIMATORS):
            x = row["noise_scale"][name]
            ends = [BATCH * y for y in x["inverse_interval"]]
            numbers = SimpleNamespace(mean=BATCH * x["grad_sq"] / x["trace"], interval=lambda ends=ends: ends)
            rows[f"iteration {row['iteration']}: {ESTIMATORS[name]}"] = {place: numbers}
    return forest(panels, "2,048 pairs divided by the noise scale: the more, the less noise", [0, 0])


PICTURES = {f"errors_{x.lower()}": partial(errors, x) for x in PLACES}
PICTURES |= dict(cosines_of_baselines=cosines, distance=distance, baselines=baselines)
