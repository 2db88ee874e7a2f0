"""Whether gradient estimates mean anything (CL sec. 2.1; TPG's Fig. 13)."""

from collections.abc import Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from claims import Cells, Look, counted, n, tally
from estimates import OfSeed, agent, by_seed, measured, plain, show, span, two_digits
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator
from pictures import LINES, STYLES, new_figure

BATCH, FOUR_CHECKPOINTS = 2048, (0, 150, 300, 450)
AGENTS = "PPO", "PPO-M", "TRPO"
FILES = dict(Walker2d="gradients/noise_walker2d", Hopper="gradients/noise_hopper", Humanoid="gradients/humanoid")


def noise(row: dict[str, Any]) -> tuple[float, float, float]:
    """Returns the noise scale in pairs, infinite where only its lower end is known, and both ends."""
    x = row["noise_scale"]["value network"]
    return x["pairs"] or np.inf, x["interval"][0], x["interval"][1] or np.inf


def show_noise(row: dict[str, Any]) -> str:
    return "{} [{}, {}]".format(*map(two_digits, noise(row)))


def cosines(of: OfSeed, kind: str) -> SimpleNamespace:
    """Returns the cosines of estimates from a training batch, of all agents: with one another (kind "variance") or with
    the “true” gradient ("convergence"). Those before training stand apart, and the others have their intervals."""
    rows = [(x["iteration"], x[kind]["value network"][x["pairs"].index(BATCH)]) for y in of.values() for x in y]
    late, early = (np.array([x["mean"] for at, x in rows if (at > 0) is is_late]) for is_late in (True, False))
    low, high = np.transpose([x["interval"] for at, x in rows if at])
    return SimpleNamespace(late=late, early=early, low=low, high=high)


def seeds(place: str) -> list[dict[str, Any]]:
    """Returns of each seed the cosines, the noise scales of later checkpoints, and whether these are known to be larger
    than before training, with the same pairs in all environments."""
    found = []
    for of in by_seed(FILES[place], FOUR_CHECKPOINTS):
        pairs = [(noise(x), noise(first)) for first, *later in of.values() for x in later]
        grows, scale = [x[1] > first[2] for x, first in pairs], np.array([x[0] for x, _ in pairs])
        found.append(dict(agree=cosines(of, "variance"), truth=cosines(of, "convergence"), grows=grows, scale=scale))
    return found


COSINES = "{} ({}; above 0 at {} checkpoints); before training {}"


def at_checkpoints(form: str, look: Look, **bound: float) -> Cells:
    return tally({x: seeds(x) for x in FILES}, form, look, **bound)


def mean_cosine(kind: str, of: dict[str, Any]) -> tuple:
    late, early = of[kind].late, of[kind].early
    return late.mean(), plain(late.mean(), 2), span(late, 2), n(late > 0), span(early, 2)


def noise_grows(of: dict[str, Any]) -> tuple:
    return all(of["grows"]), n(of["grows"])


def grows_with_the_task() -> Cells:
    """Humanoid against Walker2d, checkpoint by checkpoint."""
    [humanoid], [walker2d] = by_seed("gradients/humanoid"), by_seed("gradients/walker2d")
    pairs = [(noise(x), noise(y)) for name in humanoid for x, y in zip(humanoid[name], walker2d[name], strict=True)]
    above, below = sum(x[1] > y[2] for x, y in pairs), sum(x[2] < y[1] for x, y in pairs)
    found = True if above == len(pairs) else False if below else None
    return dict(Humanoid=counted(f"above at {above} of {len(pairs)} checkpoints, below at {below}", [found]))


def steps_hardly_agree() -> Cells:
    steps = measured("gradients/steps")
    first, later = ([x["cosine"] for x in steps if (x["iteration"] > 0) is y] for y in (False, True))
    above = f"above 0 at {sum(x['interval'][0] > 0 for x in later)} of {len(later)} checkpoints"
    text = f"{span((x['mean'] for x in later), 3)}; before training {span((x['mean'] for x in first), 2)}; {above}"
    return dict(Walker2d=counted(text, [max(x["mean"] for x in later) < 0.1]))


def judge_all() -> dict[str, Cells]:
    """Judges each row of the page's tables, in their order."""
    return {
        "CL: a batch's gradient estimates hardly agree": at_checkpoints(
            COSINES, partial(mean_cosine, "agree"), below=0.2
        ),
        "BLOG: estimates correlate slightly with the truth": at_checkpoints(
            COSINES, partial(mean_cosine, "truth"), above=0
        ),
        "CL: noise grows with training": at_checkpoints("above at {} checkpoints", noise_grows),
        "CL: noise grows with task complexity": grows_with_the_task(),
        "TPG: whole steps hardly agree": steps_hardly_agree(),
    }


# What the page says beside its tables --------------------------------------------------------------------------------


def of_two(of: str, what: str) -> np.ndarray:
    """Returns a number of the cosines, of all later checkpoints on Walker2d and Hopper."""
    return np.concatenate([getattr(x[of], what) for place in ("Walker2d", "Hopper") for x in seeds(place)])


def means(of: str) -> str:
    """Writes the averages of the cosines over later checkpoints, of each seed on Walker2d and Hopper."""
    return span((x[of].late.mean() for place in ("Walker2d", "Hopper") for x in seeds(place)), 2)


def without_truth(pairs: int = 92_160) -> str:
    """Counts at how many later checkpoints the noise scale exceeds the pairs of the “true” gradient."""
    scales = np.concatenate([x["scale"] for place in ("Walker2d", "Hopper") for x in seeds(place)])
    return f"{np.sum(scales > pairs)} of {len(scales)}"


[first] = by_seed("gradients/walker2d")  # seed 1, with more pairs
[humanoid] = by_seed("gradients/humanoid")


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
        yield [f"{pairs:,}", rate, show(x["mean"]), kl, *found]


# Pictures ------------------------------------------------------------------------------------------------------------

KINDS = dict(
    variance="cosine of two estimates\nwith one another", convergence="cosine of an estimate\nwith the “true” gradient"
)


def draw_cosines(axis: Axes, iteration: int, kind: str) -> None:
    """Draws the cosines of gradient estimates against the pairs of an estimate: with one another, as CL's Fig. 1, or
    with the “true” gradient, as its Fig. 2."""
    for k, name in enumerate(AGENTS):
        [row] = [x for x in first[name] if x["iteration"] == iteration]
        points, colour = row[kind]["value network"], STYLES[name][0]
        style = dict(color=colour, marker=STYLES[name][1], ls=LINES[k], ms=3.5, lw=1.2, label=name)
        axis.plot(row["pairs"], [x["mean"] for x in points], **style)
        axis.fill_between(row["pairs"], *zip(*[x["interval"] for x in points]), color=colour, alpha=0.2, lw=0)
    axis.axvline(BATCH, color="black", lw=0.8, ls=":")
    axis.axhline(0, color="0.6", lw=0.8)
    axis.set(xscale="log", ylim=(-0.2, 1))
    axis.set_xticks([100, 1000, 10_000], ["100", "1,000", "10,000"])
    axis.minorticks_off()


def drawn_cosines():
    """Draws CL's Fig. 1 and 2 with Walker2d's first seed."""
    figure, axes = new_figure(2, 4, 4.4, sharex=True, sharey="row")
    for row, (kind, text) in zip(axes, KINDS.items()):
        for axis, iteration in zip(row, FOUR_CHECKPOINTS):
            draw_cosines(axis, iteration, kind)
        row[0].set_ylabel(text, fontsize=9)
    for axis, iteration in zip(axes[0], FOUR_CHECKPOINTS):
        axis.set_title(f"iteration {iteration}", fontsize=10)
    axes[0, 0].plot([], [], ":", color="black", lw=0.8, label="a training batch")
    figure.supxlabel("state-action pairs of an estimate; Walker2d-v5, seed 1, 95 % intervals", fontsize=9)
    return figure


def drawn_noise(place: str):
    """Draws the training batch divided by the noise scale B, through training: seed 1 with intervals, the other seeds
    as small marks. It is proportional to 1 / B, whose interval always has two ends: where B may have any size, that of
    1 / B reaches down to 0. Estimates of 1 / B below 0 are drawn at 0."""
    figure, [[axis]] = new_figure(1, 1, 3.8)
    for seed, of in enumerate(by_seed(FILES[place])):
        for k, name in enumerate(AGENTS):
            colour, marker = STYLES[name]
            scales = [x["noise_scale"]["value network"] for x in of[name]]
            y = BATCH * np.array([x["grad_sq"] / x["trace"] for x in scales]).clip(min=0)
            x = np.array([row["iteration"] for row in of[name]]) + 5 * (k - 1)  # so that none hides another
            if seed:  # measured at four checkpoints only, so not joined
                axis.plot(x, y, marker, color=colour, mfc="none", ms=4)
                continue
            ends = BATCH * np.array([x["inverse_interval"] for x in scales]).clip(min=0)
            axis.vlines(x, *ends.T, color=colour, linewidth=1.5)
            axis.plot(x, y, LINES[k], marker=marker, color=colour, ms=5, lw=1.2, label=name)
    axis.plot([], [], "o", color="0.3", mfc="none", ms=4, label="seeds 2 and 3, without their intervals")
    axis.axhline(1, color="0.4", linestyle="--", linewidth=0.9)
    axis.text(462, 1.1, "as much signal as noise", ha="right", va="bottom", fontsize=9)
    axis.set(xlabel=f"iteration of training on {place}-v5; seed 1 with 95 % intervals", xlim=(-14, 466))
    axis.set_ylabel(f"training batch of {BATCH:,} pairs\nas a share of the noise scale", fontsize=9)
    ticks = {0: "0: no signal\nwas found"} | {y: f"{y:g}" for y in (0.01, 0.03, 0.1, 0.3, 1, 3)}
    axis.set_yscale("symlog", linthresh=0.01, linscale=0.5)  # linear below 0.01, so that 0 has a place
    axis.set_ylim(-0.0012, 10)
    axis.set_yticks(list(ticks), list(ticks.values()))
    axis.yaxis.set_minor_locator(NullLocator())
    return figure


def drawn_steps():
    """Draws TPG's Fig. 13: the cosine of two update steps and the KL between the policies after them."""
    figure, [axes] = new_figure(1, 2, 2.8)
    steps = {}
    for x in measured("gradients/steps"):
        steps.setdefault(agent(x), []).append(x)
    for axis, quantity in zip(axes, ("cosine", "kl")):
        for k, (name, rows) in enumerate(steps.items()):
            colour, at = STYLES[name][0], [x["iteration"] for x in rows]
            style = dict(color=colour, marker=STYLES[name][1], ls=LINES[k], ms=3.5, lw=1.2, label=name)
            axis.plot(at, [x[quantity]["mean"] for x in rows], **style)
            axis.fill_between(at, *zip(*[x[quantity]["interval"] for x in rows]), color=colour, alpha=0.2, lw=0)
    axes[0].set_ylabel("cosine of two update steps", fontsize=9)
    axes[1].set_ylabel("KL of the two policies (nats)", fontsize=9)
    figure.supxlabel("iteration; Walker2d-v5, seed 1, pairs of 30 steps, 95 % intervals", fontsize=9)
    return figure


PICTURES = dict(cosines=drawn_cosines, steps=drawn_steps)
PICTURES |= {f"noise_{x.lower()}": partial(drawn_noise, x) for x in ("Hopper", "Walker2d")}
