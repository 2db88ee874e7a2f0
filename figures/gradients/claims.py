"""Whether gradient estimates mean anything (CL sec. 2.1; TPG's Fig. 13)."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from claims import Cells, counted, new_figure, of_seeds
from estimates import Estimate, OfSeed, by_seed, in_places, measured, plain, show, span, two_digits
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from measuring import figures

VERSION = "v5"
BATCH, FOUR_CHECKPOINTS = 2048, (0, 150, 300, 450)


def noise(cell: dict[str, Any], baseline: str = "value network") -> tuple[float | None, float, float]:
    """Returns the noise scale in pairs, None where only its lower end is known, and both ends."""
    x = cell["noise_scale"][baseline]
    low, high = x["interval"]
    return x["pairs"], low, np.inf if high is None else high


def show_noise(scale: tuple[float | None, float, float]) -> str:
    pairs, low, high = scale
    if np.isinf(high):
        return f"more than {two_digits(low)}"
    return f"{two_digits(pairs)} [{two_digits(low)}, {two_digits(high)}]"


def cosines(of: OfSeed, kind: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the cosines of estimates from a training batch before training and later, of all agents: with one
    another (kind "variance") or with the “true” gradient ("convergence")."""
    early, late = [], []
    for x in (x for cells in of.values() for x in cells):
        (late if x["iteration"] else early).append(x[kind]["value network"][x["pairs"].index(BATCH)])
    return early, late


def means(found: list[dict[str, Any]], digits: int = 2) -> str:
    return span((x["mean"] for x in found), digits)


def places() -> dict[str, list[OfSeed]]:
    """Returns what was measured with the same pairs in all environments."""
    two = in_places("gradients/noise_{}", FOUR_CHECKPOINTS, ("Walker2d", "Hopper"))
    return two | in_places("gradients/{}", places=("Humanoid",))


def average(env: str, of: OfSeed, kind: str) -> tuple:
    """Averages over checkpoints, because each is too uncertain for the largest to say anything."""
    early, late = cosines(of, kind)
    mean = float(np.mean([x["mean"] for x in late]))
    above = sum(x["mean"] > 0 for x in late)
    return (plain(mean, 2), means(late), f"{above} of {len(late)}", means(early)), mean


def zero_or_negative(env: str, of: OfSeed) -> tuple:
    late = cosines(of, "variance")[1]
    observed, negative = sum(x["mean"] <= 0 for x in late), sum(x["interval"][1] < 0 for x in late)
    return (f"{observed} of {len(late)}", str(negative)), observed > 0


def noise_grows(env: str, of: OfSeed) -> tuple:
    pairs = [(noise(x), noise(first)) for first, *later in of.values() for x in later]
    above = sum(x[1] > first[2] for x, first in pairs)
    return (f"{above} of {len(pairs)}",), above == len(pairs)


def grows_with_the_task() -> Cells:
    """Humanoid against Walker2d, checkpoint by checkpoint."""
    [humanoid], [walker2d] = by_seed("gradients/humanoid"), by_seed("gradients/walker2d")
    pairs = [(noise(x), noise(y)) for name in humanoid for x, y in zip(humanoid[name], walker2d[name], strict=True)]
    above, below = sum(x[1] > y[2] for x, y in pairs), sum(x[2] < y[1] for x, y in pairs)
    found = True if above == len(pairs) else False if below else None
    return dict(Humanoid=counted(f"above at {above} of {len(pairs)} checkpoints, below at {below}", [found]))


def steps_hardly_agree() -> Cells:
    cells = measured("gradients/steps")
    first, later = ([x["cosine"] for x in cells if bool(x["iteration"]) is y] for y in (False, True))
    above = f"above 0 at {sum(x['interval'][0] > 0 for x in later)} of {len(later)} checkpoints"
    text = f"{means(later, 3)}; before training {means(first)}; {above}"
    return dict(Walker2d=counted(text, [max(x["mean"] for x in later) < 0.1]))


def regime() -> dict[tuple[int, float], np.ndarray]:
    """Returns the final rewards [seeds] by the pairs of a batch and the learning rate."""
    settings = measured("gradients/samples")["settings"]
    return {(x["settings"]["num_steps"], x["settings"]["policy_lr"]): np.array(x["finals"]) for x in settings}


def interaction(without: tuple[int, float] | None = None) -> Estimate:
    """Returns by least squares over all runs what 4 times the pairs and 4.5 times the learning rate gain beyond the sum
    of their effects, in all cells of the grid or without one."""
    cells = {key: x for key, x in regime().items() if key != without}
    levels = np.log(list(cells)) / np.log([4, 20**0.5])
    levels -= levels.mean(0) if without is None else (np.log(list(regime())) / np.log([4, 20**0.5])).mean(0)
    design = np.column_stack([np.ones(len(levels)), levels, levels.prod(1)])
    return Estimate(list(cells.values()), np.linalg.pinv(design)[-1])


CLAIMS = {
    "CL: a batch's gradient estimates hardly agree": lambda: of_seeds(
        "{} ({}; above 0 at {} checkpoints); before training {}",
        partial(average, kind="variance"),
        places(),
        0.2,
        False,
    ),
    "CL: estimates sometimes correlate not or negatively": lambda: of_seeds(
        "0 or below at {} checkpoints, significantly at {}", zero_or_negative, places()
    ),
    "BLOG: estimates correlate slightly with the truth": lambda: of_seeds(
        "{} ({}; above 0 at {} checkpoints); before training {}", partial(average, kind="convergence"), places(), 0
    ),
    "CL: noise grows with training": lambda: of_seeds("above at {} checkpoints", noise_grows, places()),
    "CL: noise grows with task complexity": grows_with_the_task,
    "TPG: whole steps hardly agree": steps_hardly_agree,
}


# Tables --------------------------------------------------------------------------------------------------------------


def table_of_samples() -> Iterable[list[str]]:
    """Yields the grid of batch sizes and learning rates: final rewards, the largest mean KL of an iteration, and the
    cosine of two estimates from a training batch at three checkpoints, by the noise scale."""
    yield ["pairs", "learning rate", "final reward", "largest KL, nats", "131,072", "524,288", "917,504"]
    of_runs = {}
    for x in measured("gradients/samples_noise"):
        signal = x["batch_size"] * x["noise_scale"]["grad_sq"] / x["noise_scale"]["trace"]
        of_runs.setdefault(x["run"], {})[x["iteration"] * x["batch_size"]] = signal / (1 + signal)
    for x in measured("gradients/samples")["settings"]:
        pairs, rate = x["settings"]["num_steps"], x["settings"]["policy_lr"]
        of_seeds = [of_runs[folder] for folder in x["folders"]]
        found = [f"{np.mean([y[steps] for y in of_seeds]):.2f}" for steps in (131_072, 524_288, 917_504)]
        kl = " to ".join(two_digits(y) for y in (min(x["largest_kl"]), max(x["largest_kl"])))
        rate = f"{rate:.1e}".replace("e-0", "e-").replace(".0e", "e")
        yield [f"{pairs:,}", rate, show(x["mean"]["mean"], *x["mean"]["interval"]), kl, *found]


TABLES = {"samples": table_of_samples}


# Pictures ------------------------------------------------------------------------------------------------------------

LOOKS = {name: figures.look(algo) for name, algo in (("PPO", "ppo"), ("PPO-M", "ppo_m"), ("TRPO", "trpo"))}


def draw_noise(env: str) -> Figure:
    """Draws the training batch divided by the noise scale B, through training: seed 1 with intervals, the other seeds
    thin. It is proportional to 1 / B, whose interval always has two ends: where B may have any size, that of 1 / B
    reaches down to 0. Estimates of 1 / B below 0 are drawn at 0."""
    figure, [[axis]] = new_figure(1, 1, 4.0)
    for seed, of in enumerate(by_seed(f"gradients/noise_{env}")):
        for k, (name, style) in enumerate(LOOKS.items()):
            scales = [x["noise_scale"]["value network"] for x in of[name]]
            y = BATCH * np.array([x["grad_sq"] / x["trace"] for x in scales]).clip(min=0)
            x = np.array([cell["iteration"] for cell in of[name]]) + 5 * (k - 1)  # so that none hides another
            if seed:
                axis.plot(x, y, **style | dict(marker="", linewidth=0.7, alpha=0.7, label=None))
                continue
            ends = BATCH * np.array([x["inverse_interval"] for x in scales]).clip(min=0)
            axis.vlines(x, *ends.T, color=style["color"], linewidth=1.5)
            axis.plot(x, y, **style | dict(label=name, markersize=5, linewidth=1.2))
    axis.axhline(1, color="black", linestyle="--", linewidth=1)
    axis.text(462, 1.1, "batch = noise scale", ha="right", va="bottom", fontsize=9)
    axis.set_title(
        f"{env.capitalize()}-v5: seed 1 with 95 % intervals, seeds 2 and 3 thin; at 0 the noise has no bound",
        fontsize=9.5,
    )
    axis.set(xlabel="iteration", xlim=(-14, 466))
    axis.set_ylabel(f"training batch / noise scale\n({BATCH:,} pairs / noise scale)", fontsize=9)
    pairs = axis.twinx()
    pairs.set_ylabel("noise scale (state-action pairs)", fontsize=9)
    left = {y: f"{y:g}" for y in (0, 0.005, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)}
    right = {BATCH / B: f"{B:,}" for B in (300_000, 100_000, 30_000, 10_000, 3_000, 1_000, 300)}
    for side, ticks in ((axis, left), (pairs, {0: "infinite"} | right)):
        side.set_yscale("symlog", linthresh=0.01, linscale=0.5)
        side.set_ylim(-0.0012, 16)
        side.set_yticks(list(ticks), list(ticks.values()))
        side.yaxis.set_minor_locator(NullLocator())
    axis.legend(frameon=False, fontsize=9, ncols=3, loc="upper center")
    return figure


def draw_cosines() -> Figure:
    """Draws the cosines against the number of pairs before training and at iteration 300 (CL's Fig. 1 and 2)."""
    figure, [axes] = new_figure(1, 4, 3.1, sharey=True)
    [of] = by_seed("gradients/walker2d")
    panels = [(kind, at) for kind in ("variance", "convergence") for at in (0, 300)]
    for axis, (kind, at) in zip(axes, panels):
        for k, (name, style) in enumerate(LOOKS.items()):
            for cell in (x for x in of.get(name, ()) if x["iteration"] == at):
                points = cell[kind]["value network"]
                pairs = np.array(cell["pairs"]) * 1.12 ** (k - 1)
                axis.plot(pairs, [x["mean"] for x in points], **style | dict(label=name, markersize=4.5))
                axis.vlines(pairs, *zip(*(x["interval"] for x in points)), color=style["color"], lw=1.2)
        axis.axvline(BATCH, color="0.5", lw=0.8, ls="--")
        axis.axhline(0, color="black", lw=0.8)
        what = "with one another" if kind == "variance" else "with the “true” one"
        axis.set_title(f"{what},\niteration {at}", fontsize=9)
        axis.set_xscale("log")
        axis.set_xlabel("pairs", fontsize=9)
    axes[0].set_ylabel("cosine of estimates\nWalker2d-v5, one seed", fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def draw_steps() -> Figure:
    """Draws the cosine of two whole update steps from one state at four checkpoints."""
    figure, [[axis]] = new_figure(1, 1, 2.6)
    [of] = by_seed("gradients/steps")
    iterations = [x["iteration"] for x in next(iter(of.values()))]
    for k, (name, style) in enumerate(LOOKS.items()):
        at = np.arange(len(iterations)) + 0.15 * (k - 1)
        points = [x["cosine"] for x in of[name]]
        axis.vlines(at, *zip(*(x["interval"] for x in points)), color=style["color"], lw=2)
        axis.plot(at, [x["mean"] for x in points], **style | dict(label=name, linestyle="", markersize=5))
    axis.axhline(0, color="black", lw=0.8)
    axis.set_xticks(range(len(iterations)), iterations)
    axis.set_xlabel("iteration", fontsize=9)
    axis.set_ylabel("cosine of two steps\nWalker2d-v5, one seed", fontsize=9)
    axis.legend(frameon=False, fontsize=9)
    return figure


PICTURES = {
    "noise_hopper": partial(draw_noise, "hopper"),
    "noise_walker2d": partial(draw_noise, "walker2d"),
    "cosines": draw_cosines,
    "steps": draw_steps,
}
