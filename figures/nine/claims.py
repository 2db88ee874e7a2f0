"""What each of the nine optimizations is worth (IM's Fig. 1, and one at a time)."""

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
from claims import Cell, Cells, counted, draw_agents, new_figure, of_all, of_sign
from estimates import Estimate, finals, measured, show
from matplotlib.figure import Figure
from measuring import figures, intervals
from scipy import stats

VERSION = "v5"
ABLATED = "reward_scale", "anneal_lr", "orthogonal_init", "value_clip"


# IM's grid: four of the nine, at four learning rates, two seeds each --------------------------------------------------

Setting = tuple[dict[str, bool], np.ndarray]  # which of the four are on, and final rewards [rates, seeds]


@functools.cache
def grid() -> list[Setting]:
    """Returns IM's 16 settings. Rates are in ascending order, and the seeds are the same two everywhere."""
    found = []
    for x in measured("nine/ablation")["settings"]:
        of_rates = sorted(x["tried"], key=lambda y: y["policy_lr"])
        on = {name: x["settings"][name] for name in ABLATED}
        found.append((on, np.array([y["finals"] for y in of_rates])))
    return found


def at_best(rewards: np.ndarray) -> np.ndarray:
    """Returns the rewards [seeds] at the rate whose mean is the highest, as IM chooses it."""
    return rewards[rewards.mean(1).argmax()]


def at_others_best(rewards: np.ndarray) -> np.ndarray:
    """Returns each seed's reward [seeds] at the rate that is best for the other seed, so that none chose itself."""
    return np.array([rewards[rewards[:, 1 - seed].argmax(), seed] for seed in (0, 1)])


def all_rates(rewards: np.ndarray) -> np.ndarray:
    return rewards.mean(0)


def factorial(*names: str, choose=at_best, settings: Iterable[Setting] | None = None) -> Estimate:
    """Returns the main effect of one of the four, the mean of the settings with it minus that of those without it; or
    of two, by how much more the one is worth with the other than without."""
    settings = list(settings or grid())
    signs = [np.prod([1 if on[name] else -1 for name in names]) for on, _ in settings]
    return Estimate([choose(x) for _, x in settings], 2 ** len(names) * np.array(signs) / len(settings))


def over_rates(*names: str) -> Estimate:
    """Returns the same over all rates, each of which is a setting of its own."""
    return factorial(*names, choose=lambda x: x, settings=[(on, y) for on, x in grid() for y in x])


def of_the_grid(*names: str) -> Cells:
    """As in IM's Fig. 1 the best rates decide, if rates that other seeds chose agree."""
    best, crossed = factorial(*names), factorial(*names, choose=at_others_best)
    cell, other = of_sign(best), of_sign(crossed)
    verdict = cell.verdict if cell.verdict == other.verdict else "cannot tell"
    text = f"{best}; cross-validated {crossed}; all rates {over_rates(*names)}"
    return dict(Walker2d=Cell(text, verdict, sum(len(x.T) for _, x in grid()), max(best.p(), crossed.p())))


def best_place() -> Cells:
    """The best place of the grid with one of IM's three minus the best without it: one seed chooses both, the other
    says what they are worth."""
    texts, found = [], []
    for name in ABLATED[:3]:
        leads = []
        for seed in (0, 1):
            sides = [np.concatenate([x for on, x in grid() if on[name] is side]) for side in (True, False)]
            yes, no = (x[x[:, 1 - seed].argmax(), seed] for x in sides)
            leads.append(yes - no)
        texts.append(f"{name.replace('_', ' ')} {leads[0]:,.0f} and {leads[1]:,.0f}".replace("-", "−"))
        found.append(leads)
    return dict(Walker2d=counted("; ".join(texts), [bool(min(x) > 0) for x in zip(*found)]))


# One of the nine at a time --------------------------------------------------------------------------------------------


def case(cell: dict[str, Any]) -> tuple[str, bool]:
    """Returns which of the nine is switched, or "all", and whether the others are on."""
    return cell["switched"][0] if len(cell["switched"]) < 3 else "all", bool(cell["others_on"])


def of_batch(batch: str) -> dict[tuple[str, bool], np.ndarray]:
    """Returns the final reward with one of the nine, or with all, minus that without [seeds], by its name and by
    whether the others are on."""
    return {case(x): np.array(x["differences"]) for x in measured(f"nine/{batch}")["paired"]}


@functools.cache
def worth(place: str) -> dict[tuple[str, bool], np.ndarray]:
    """Returns the same over all seeds. Hopper's were trained in two batches."""
    batches = [of_batch(x) for x in (("walker2d",) if place == "Walker2d" else ("hopper", "hopper_new"))]
    return {key: np.concatenate([x[key] for x in batches]) for key in batches[0]}


def one_by_one(name: str, on: bool = True) -> Cells:
    return {place: of_sign(Estimate([worth(place)[name, on]])) for place in ("Walker2d", "Hopper")}


def once_more(form: str, *signs: tuple[str, bool, int]) -> Cells:
    """What the first five seeds on Hopper suggested, in the new ones, which alone decide."""
    new = of_batch("hopper_new")
    here = [of_sign(Estimate([new[name, on]]), sign) for name, on, sign in signs]
    pooled = ", ".join(str(Estimate([worth("Hopper")[name, on]])) for name, on, _ in signs)
    return dict(Hopper=of_all(here, f"{form.format(*(x.text for x in here))}; all seeds {pooled}"))


# Why scaling matters (protocol.md) ------------------------------------------------------------------------------------

MARGIN, SCALED = 200, ("Hopper", "Walker2d")
AGENTS = {
    "PPO-scaled-clip": "scaling, clip of 0.2",
    "PPO-scaled": "scaling, no clip",
    "PPO-unscaled-clip": "no scaling, clip of 0.2",
    "PPO-unscaled-wide-clip": "no scaling, clip in the rewards' units",
    "PPO-unscaled": "no scaling, no clip",
    "PPO-unscaled-value-rate": "no scaling, no clip, 5 x value rate",
}


def brought_back(place: str) -> dict[str, Any]:
    """Returns the share of what scaling is worth with the clip of 0.2 that the wide clip is worth without scaling."""
    of = finals(f"nine/scaling_{place.lower()}")
    samples = (of[f"PPO-{x}"] for x in ("unscaled-wide-clip", "unscaled-clip", "scaled-clip"))
    return intervals.bootstrap(
        lambda wide, x, scaled: (wide.mean(-1) - x.mean(-1)) / (scaled.mean(-1) - x.mean(-1)), *samples
    )


def contrast(*names: str, weights: tuple[int, ...] = (1, -1)) -> Cells:
    """Judges whether the first of these agents ends above the second, or by how much more so than a third above a
    fourth."""
    cells = {}
    for place in SCALED:
        of = finals(f"nine/scaling_{place.lower()}")
        x = Estimate([of[name] for name in names], weights)
        cells[place] = of_sign(x, margin=MARGIN)
    return cells


CLAIMS = {
    "IM: all nine raise PPO's reward": lambda: one_by_one("all", False),
    "IM: reward scaling raises PPO's reward": lambda: one_by_one("reward_scale"),
    "IM: annealing raises PPO's reward": lambda: one_by_one("anneal_lr"),
    "IM: orthogonal initialization raises PPO's reward": lambda: one_by_one("orthogonal_init"),
    "IM: scaling raises the grid's rewards": lambda: of_the_grid("reward_scale"),
    "IM: annealing raises the grid's rewards": lambda: of_the_grid("anneal_lr"),
    "IM: initialization raises the grid's rewards": lambda: of_the_grid("orthogonal_init"),
    "IM: the best place needs the three": best_place,
    "value clipping raises the grid's rewards": lambda: of_the_grid("value_clip"),
    "scaling is worth more with value clipping": lambda: of_the_grid("reward_scale", "value_clip"),
    "three of the nine lower it alone": lambda: once_more(
        "value clipping {}; reward scaling {}; annealing {}",
        ("value_clip", False, -1),
        ("reward_scale", False, -1),
        ("anneal_lr", False, -1),
    ),
    "gradient clipping helps alone, harms among all": lambda: once_more(
        "off {}; on {}", ("grad_clip", False, 1), ("grad_clip", True, -1)
    ),
    "the clip needs the rewards' units": lambda: contrast("PPO-unscaled-wide-clip", "PPO-unscaled-clip"),
    "scaling beside a clip in its units": lambda: contrast("PPO-scaled-clip", "PPO-unscaled-wide-clip"),
    "scaling with the clip of 0.2": lambda: contrast("PPO-scaled-clip", "PPO-unscaled-clip"),
    "scaling without a clip": lambda: contrast("PPO-scaled", "PPO-unscaled"),
    "scaling against five times the value rate": lambda: contrast("PPO-scaled", "PPO-unscaled-value-rate"),
    "scaling is worth more with the clip": lambda: contrast(
        *("PPO-scaled-clip", "PPO-unscaled-clip", "PPO-scaled", "PPO-unscaled"), weights=(1, -1, -1, 1)
    ),
}
TOGETHER = [(["the clip needs the rewards' units"], SCALED)]


def table_of_nine() -> Iterable[list[str]]:
    """Yields what each of the nine is worth, by environment and by whether the others are on."""
    yield ["", "Hopper-v5, the others on", "the others off", "Walker2d-v5, the others on", "the others off"]
    names = [name for name, on in worth("Hopper") if on]
    for i, name in enumerate(names):
        cells = [shown(worth(place)[name, on]) for place in ("Hopper", "Walker2d") for on in (True, False)]
        yield [f"{i + 1} `--{name.replace('_', '-')}`", *cells]
    hopper, walker2d = (shown(worth(x)["all", False]) for x in ("Hopper", "Walker2d"))
    yield ["all nine together", hopper, "", walker2d, ""]


def shown(x: np.ndarray) -> str:
    numbers = intervals.mean_of(x)
    return show(numbers["mean"], *numbers["interval"])


TABLES = {"nine": table_of_nine}


# Pictures ------------------------------------------------------------------------------------------------------------


def draw_grid() -> Figure:
    """Draws the grid: the reward against the learning rate, a line for each state of scaling and value clipping, and a
    dot for each run."""
    figure, [axes] = new_figure(1, 2, 3.6, sharey=True)
    rates = sorted(y["policy_lr"] for y in measured("nine/ablation")["settings"][0]["tried"])
    for axis, clip in zip(axes, (True, False)):
        for scale, colour, marker in ((True, "#0072b2", "o"), (False, "#d55e00", "s")):
            runs = np.array([x for on, x in grid() if on["value_clip"] is clip and on["reward_scale"] is scale])
            of_rates = runs.transpose(1, 0, 2).reshape(len(rates), -1)
            label = "with reward scaling" if scale else "without"
            axis.plot(rates, of_rates.mean(1), color=colour, marker=marker, ms=7, lw=2, label=label)
            shift = 1.035 if scale else 1 / 1.035
            for rate, of in zip(rates, of_rates):
                axis.plot([rate * shift] * len(of), of, marker, color=colour, ms=3, alpha=0.5, mec="none")
        axis.set_xscale("log")
        axis.set_xticks(rates, [f"{x:g}" for x in rates])
        axis.minorticks_off()
        axis.set_title("with value clipping" if clip else "without value clipping", fontsize=10)
        axis.set_xlabel("learning rate of the policy", fontsize=9)
    axes[0].set_ylabel("Walker2d-v5, final reward", fontsize=9)
    axes[0].legend(frameon=False, fontsize=9)
    figure.suptitle("PPO, 128 runs: lines are means of 8 runs, dots are runs", fontsize=10)
    return figure


def draw_paired() -> Figure:
    """Draws what each of the nine is worth, sorted by its effect on Walker2d among the others, one scale for all."""
    figure, axes = new_figure(2, 2, 5.6, sharex=True, sharey=True)
    order = sorted((name for name, on in worth("Walker2d") if on), key=lambda x: worth("Walker2d")[x, True].mean())
    _, stars = holm()
    for column, place in zip(axes.T, ("Hopper", "Walker2d")):
        for axis, on in zip(column, (True, False)):
            n, names = len(worth(place)["all", False]), ([] if on else ["all"]) + order
            axis.axvline(0, color="black", lw=0.8)
            for name in names:
                x, y = worth(place)[name, on and name != "all"], names.index(name) + on
                if x.any():
                    low, high = intervals.t_interval(x)
                    axis.plot([low, high], [y, y], color=figures.COLOURS["ppo"], lw=2)
                    if (place, name, on and name != "all") in stars:
                        axis.text(high + 60, y, "★", va="center", fontsize=10, fontfamily="DejaVu Sans")
                axis.plot(x, [y] * n, "o", color="0.45", ms=2.5)
                axis.plot(x.mean(), y, "o", color=figures.COLOURS["ppo"], ms=6)
            labels = ["all nine" if name == "all" else name.replace("_", " ") for name in ["all", *order]]
            axis.set_yticks(range(len(labels)), labels, fontsize=9)
            others = "the other eight on" if on else "the others off"
            axis.set_title(f"{place}-v5, {others}, {n} seeds", fontsize=10)
    for axis in axes[1]:
        axis.set_xlabel("final reward with it minus without it", fontsize=9)
    figure.suptitle(
        "★ significant after Holm's correction for all of them; dots are seeds, lines 95 % intervals", fontsize=9.5
    )
    return figure


def draw_scaling() -> Figure:
    return draw_agents({f"{place}-v4": f"nine/scaling_{place.lower()}" for place in SCALED}, AGENTS)


def holm() -> tuple[list[float], list[tuple[str, str, bool]]]:
    """Returns the p-values of all differences in ascending order, and which of them stand after Holm's correction."""
    cells = {(place, *key): x for place in ("Hopper", "Walker2d") for key, x in worth(place).items() if x.any()}
    ps = sorted((stats.ttest_1samp(x, 0).pvalue, key) for key, x in cells.items())
    first = next(i for i, (p, _) in enumerate(ps) if p >= 0.05 / (len(ps) - i))
    return [p for p, _ in ps], [key for _, key in ps[:first]]


def draw_noise() -> Figure:
    """Draws what each of the nine does to the cosine of two gradient estimates. The first checkpoint has a scale of its
    own, and the last three share one."""
    figure, axes = new_figure(1, 4, 4.2, sharey=True, width_ratios=(1.4, 1, 1, 1))
    cells = {case(x): x["noise"] for x in measured("nine/noise")["paired"]}
    names = ["all", *dict.fromkeys(name for name, _ in cells if name != "all")]
    for k, axis in enumerate(axes[0]):
        axis.axvline(0, color="black", lw=0.8)
        for y, name in enumerate(names):
            for on, shift, colour, marker in ((True, -0.17, "#0072b2", "o"), (False, 0.17, "#d55e00", "s")):
                if (name, on) in cells:
                    mean = cells[name, on][k]["mean"]
                    axis.plot(mean["interval"], [y + shift] * 2, color=colour, lw=2)
                    label = ("the other eight on" if on else "the others off") if name == "reward_scale" else None
                    axis.plot(mean["mean"], y + shift, marker, color=colour, ms=5, label=label)
        axis.set_title(f"iteration {cells['all', False][k]['iteration']}", fontsize=10)
        if k:
            axis.set_xlim(-0.16, 0.16)
    axes[0, 0].set_yticks(
        range(len(names)), ["all nine" if x == "all" else x.replace("_", " ") for x in names], fontsize=9
    )
    axes[0, 0].invert_yaxis()
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False, fontsize=9
    )
    figure.supxlabel("Walker2d-v5, 2 seeds: change of the cosine of two gradient estimates from a batch", fontsize=9)
    return figure


PICTURES = {"grid": draw_grid, "scaling": draw_scaling, "paired": draw_paired, "noise": draw_noise}
