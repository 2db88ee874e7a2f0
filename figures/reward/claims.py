"""What the reward is due to: the step or the optimizations (IM's Tables 1, 2 and 3)."""

from collections.abc import Callable, Iterable

import numpy as np
from claims import Cell, Cells, differs, draw_agents, new_figure, of_none, of_sign, room
from estimates import PLACES, Estimate, finals, measured
from matplotlib.figure import Figure
from measuring import figures, intervals

VERSION = "v4"
FOUR = "PPO", "PPO-M", "TRPO", "TRPO+"
OPTIMIZATIONS, STEP, INTERACTION = (0.5, -0.5, -0.5, 0.5), (0.5, 0.5, -0.5, -0.5), (0.5, -0.5, 0.5, -0.5)
PAPER = {  # IM's Tables 2 and 3: mean and 95 % interval
    "PPO": ((3292, 3157, 3426), (2513, 2391, 2632), (806, 785, 827)),
    "PPO-M": ((2735, 2602, 2866), (2142, 2008, 2279), (674, 656, 695)),
    "PPO-NoClip": ((2867, 2701, 3024), (2371, 2316, 2424), (831, 798, 869)),
    "TRPO": ((2791, 2709, 2873), (2043, 1948, 2136), (586, 576, 596)),
    "TRPO+": ((3050, 2976, 3126), (2466, 2381, 2549), (1030, 979, 1083)),
}


def rewards(place: str) -> dict[str, np.ndarray]:
    """Returns the final rewards [seeds] of each agent, on Walker2d those of both batches of seeds."""
    of = finals(f"reward/{place.lower()}")
    more = finals("reward/walker2d_new") if place == "Walker2d" else {}
    return {name: np.append(x, more.get(name, [])) for name, x in of.items()}


def effect(place: str, weights: tuple[float, ...], names: tuple[str, ...] = FOUR) -> Estimate:
    of = rewards(place)
    return Estimate([of[x] for x in names], weights)


def difference(place: str, x: str, y: str) -> Estimate:
    return effect(place, (1, -1), (x, y))


def in_paper(place: str, weights: Iterable[float], names: tuple[str, ...] = FOUR) -> tuple[float, float, float]:
    """Returns an effect and its interval from the paper's means, whose intervals are added as independent errors."""
    numbers = [PAPER[x][PLACES.index(place)] for x in names]
    mean = sum(w * x[0] for w, x in zip(weights, numbers))
    half = sum((w * (x[2] - x[1]) / 2) ** 2 for w, x in zip(weights, numbers)) ** 0.5
    return mean, mean - half, mean + half


def margin(place: str) -> float:
    """Half of the paper's own main effect of the optimizations."""
    return in_paper(place, OPTIMIZATIONS)[0] / 2


def with_none() -> dict[str, Estimate]:
    """Returns by environment what all nine are worth against none of them at PPO's learning rates (-v5)."""
    return {place: Estimate([room("nine").worth(place)["all", False]]) for place in PLACES[:2]}


def as_defined() -> Estimate:
    """The main effect on Hopper, if PPO-M and TRPO keep none of the nine, as IM's Table 1 defines them."""
    run, written = rewards("Hopper"), finals("reward/hopper_as_written")
    return Estimate([run["PPO"], written["PPO-M-defined"], written["TRPO-defined"], run["TRPO+"]], OPTIMIZATIONS)


def optimizations_help() -> Cells:
    """The released agents decide. What "off" means otherwise is the other definition."""
    cells = {}
    for place in PLACES:
        x, none = effect(place, OPTIMIZATIONS), with_none().get(place)
        text = str(x) + f"; as defined {as_defined()}" * (place == "Hopper")
        text += f"; all nine against none at PPO's rates, -v5: {none}" if none else ""
        cells[place] = of_sign(x, text=text, size=2 * margin(place))
        cells[place].other = of_sign(none).verdict if none else None
    return cells


def more_than_the_step() -> Cells:
    """The optimizations' main effect is the larger one if it exceeds both the step's and its negative."""
    cells = {}
    for place in PLACES:
        both = difference(place, "TRPO+", "PPO-M"), difference(place, "PPO", "TRPO")
        least = min(both, key=lambda x: x.mean)
        signs = sorted(map(differs, both))
        verdict = {(1, 1): "holds", (-1, 1): "does not hold"}.get(tuple(signs), "cannot tell")
        paper = in_paper(place, (1, -1), ("TRPO+", "PPO-M"))[0]
        needs = least.needed(paper) if verdict == "cannot tell" else None
        cells[place] = Cell(str(least), verdict, least.seeds, max(x.p() for x in both), needs=needs)
    return cells


def gain(*samples: np.ndarray) -> np.ndarray:
    """Returns the share of PPO's gain over TRPO that is the main effect of the optimizations."""
    ppo, ppo_m, trpo, trpo_plus = (x.mean(-1) for x in samples)
    return (ppo - ppo_m - trpo + trpo_plus) / 2 / (ppo - trpo)


def most_of_the_gain() -> Cells:
    """Where there is a gain, they are most of it if their main effect is above the step's, and the difference of both
    is TRPO+ - PPO-M."""
    cells = {}
    for place in PLACES:
        total, of = difference(place, "PPO", "TRPO"), [rewards(place)[x] for x in FOUR]
        text = f"{100 * float(gain(*of)):.0f} %"
        cells[place] = of_sign(difference(place, "TRPO+", "PPO-M"), text=text)
        if differs(total) == 1:
            ends = intervals.bootstrap(gain, *of)["interval"]
            cells[place].text += " [{:.0f}, {:.0f}]".format(*(100 * x for x in ends))
        else:
            cells[place].text += f", no interval: the gain is {total}"
            cells[place].verdict = "cannot tell"
    return cells


def of_no_difference(weights: tuple[float, ...], names: tuple[str, ...] = FOUR) -> Cells:
    return {place: of_none(effect(place, weights, names), margin(place)) for place in PLACES}


def above(x: str, y: str) -> Cells:
    return {place: of_sign(difference(place, x, y), size=in_paper(place, (1, -1), (x, y))[0]) for place in PLACES}


def against_released(written: str, released: str) -> Cells:
    """Where IM's text and its released runs differ: what PPO-M and TRPO keep of the nine, and TRPO+'s schedule."""
    d = Estimate([finals("reward/hopper_as_written")[written], rewards("Hopper")[released]], (1, -1))
    return dict(Hopper=of_none(d, margin("Hopper")))


def share_kept(*names: str) -> Cells:
    """By how much the growth of the effect, if observation normalization and tanh go, too, exceeds half of the whole,
    for these of PPO and TRPO."""
    run, written = rewards("Hopper"), finals("reward/hopper_as_written")
    samples, weights = [], []
    for name, top, weight in (("PPO-M", "PPO", 1), ("TRPO", "TRPO+", 1)):
        if name in names:  # (released - defined) - (top - defined) / 2
            samples += [run[name], written[f"{name}-defined"], run[top]]
            weights += [weight, -0.5 * weight, -0.5 * weight]
    x = Estimate(samples, np.array(weights) / len(names))
    growth = sum(run[n].mean() - written[f"{n}-defined"].mean() for n in names)
    whole = sum(
        run[dict(zip(("PPO-M", "TRPO"), ("PPO", "TRPO+")))[n]].mean() - written[f"{n}-defined"].mean() for n in names
    )
    return dict(Hopper=of_sign(x, text=f"{100 * growth / whole:.0f} %; above half of it by {x}"))


# TRPO and TRPO+ at each other's bound on the KL (protocol.md) ---------------------------------------------------------

BOUNDS = {
    "TRPO": {0.04: "TRPO-at-other-delta", 0.13: "TRPO"},
    "TRPO+": {0.04: "TRPO+", 0.13: "TRPO+at-other-delta"},
}


IN_THE_PAPER = 400  # IM's main effect of the optimizations, as the protocol rounds it; the margin is half of it


def at_bounds(*weights: float) -> Cells:
    """Judges a sum of the means of TRPO at 0.04 and 0.13 and of TRPO+ at 0.04 and 0.13."""
    of = finals("reward/deltas")
    x = Estimate([of[name] for agents in BOUNDS.values() for name in agents.values()], weights)
    return dict(Hopper=of_sign(x, size=IN_THE_PAPER, margin=IN_THE_PAPER / 2))


# The ladder from none of the nine to the released PPO-M (protocol.md) -------------------------------------------------

RUNGS = {
    "PPO-rates": "PPO without the nine",
    "PPO-M-rates": "PPO-M's rates",
    "PPO-rates-obs-norm": "observation normalization",
    "PPO-rates-tanh": "tanh",
    "PPO-M-rates-obs-norm": "PPO-M's rates, observation normalization",
    "PPO-M-rates-tanh": "PPO-M's rates, tanh",
    "PPO-rates-obs-norm-tanh": "observation normalization, tanh",
    "PPO-M-rates-obs-norm-tanh": "all three: PPO-M as released",
}
CHANGES, CLIMBED = ("PPO-M-rates", "obs-norm", "tanh"), ("Walker2d", "Hopper")


def of_ladder(place: str, *changes: str) -> Estimate:
    """Returns the main effect of one of the three changes, the mean over the states of the other two; or of two, by how
    much more the one is worth with the other."""
    of = finals(f"reward/ladder_{place.lower()}")
    agents = [({x: x in name for x in CHANGES}, of[name]) for name in RUNGS]
    return room("nine").factorial(*changes, choose=lambda x: x, settings=agents)


def more_than_the_rates(place: str) -> Estimate:
    """Returns by how much more normalization and tanh are worth together than the rates, as a sum of main effects."""
    effects = [of_ladder(place, x) for x in CHANGES]
    weights = np.array([x.weights for x in effects])
    return Estimate(effects[0].samples, weights[1] + weights[2] - weights[0])


def ladder_difference(place: str, x: str, y: str) -> Estimate:
    of = finals(f"reward/ladder_{place.lower()}")
    return Estimate([of[x], of[y]], (1, -1))


def climbed(estimate: Callable, *of: str) -> Cells:
    found = {place: estimate(place, *of) for place in CLIMBED}
    return {place: of_sign(x, size=IN_THE_PAPER, margin=IN_THE_PAPER / 2) for place, x in found.items()}


MAIN_EFFECTS = {  # the primary tests
    "PPO-M's rates raise the reward": lambda: climbed(of_ladder, "PPO-M-rates"),
    "observation normalization raises it": lambda: climbed(of_ladder, "obs-norm"),
    "tanh raises it": lambda: climbed(of_ladder, "tanh"),
}
LADDER = MAIN_EFFECTS | {
    "normalization is worth more at PPO-M's rates": lambda: climbed(of_ladder, "PPO-M-rates", "obs-norm"),
    "tanh is worth more at PPO-M's rates": lambda: climbed(of_ladder, "PPO-M-rates", "tanh"),
    "normalization is worth more with tanh": lambda: climbed(of_ladder, "obs-norm", "tanh"),
    "the whole ladder": lambda: climbed(ladder_difference, "PPO-M-rates-obs-norm-tanh", "PPO-rates"),
    "normalization and tanh are worth more than the rates": lambda: climbed(more_than_the_rates),
    "PPO-M ends higher at its own rates": lambda: climbed(
        ladder_difference, "PPO-M-rates-obs-norm-tanh", "PPO-rates-obs-norm-tanh"
    ),
}

CLAIMS = {
    "IM: optimizations raise the reward": optimizations_help,
    "IM: optimizations matter more than the step": more_than_the_step,
    "IM: optimizations make most of PPO's gain over TRPO": most_of_the_gain,
    "IM: the step makes no difference": lambda: of_no_difference(STEP),
    "IM: PPO and TRPO+ differ little": lambda: of_no_difference((1, -1), ("PPO", "TRPO+")),
    "IM: PPO-M and TRPO differ little": lambda: of_no_difference((1, -1), ("PPO-M", "TRPO")),
    "IM: PPO ends above PPO-M": lambda: above("PPO", "PPO-M"),
    "IM: TRPO+ ends above TRPO": lambda: above("TRPO+", "TRPO"),
    "PPO-M as defined is PPO-M as released": lambda: against_released("PPO-M-defined", "PPO-M"),
    "TRPO as defined is TRPO as released": lambda: against_released("TRPO-defined", "TRPO"),
    "TRPO+'s schedule makes no difference": lambda: against_released("TRPO+schedule", "TRPO+"),
    "normalization and tanh are most of it": lambda: share_kept("PPO-M", "TRPO"),
    "… for PPO": lambda: share_kept("PPO-M"),
    "… for TRPO": lambda: share_kept("TRPO"),
    "optimizations raise TRPO's reward at the same bound": lambda: at_bounds(-0.5, -0.5, 0.5, 0.5),
    "the larger bound raises it": lambda: at_bounds(-0.5, 0.5, -0.5, 0.5),
    "TRPO+ ends above TRPO in these seeds, too": lambda: at_bounds(0, -1, 1, 0),
} | LADDER
TOGETHER = [(["optimizations raise TRPO's reward at the same bound", "the larger bound raises it"], ["Hopper"])]
TOGETHER += [(list(MAIN_EFFECTS), [place]) for place in CLIMBED]


# Tables --------------------------------------------------------------------------------------------------------------


def levels() -> Iterable[list[str]]:
    """Yields the rows of IM's Tables 2 and 3 beside ours, and AAI and ACLI beside what chance alone would make."""
    yield ["", *(x for place in PLACES for x in (f"{place}-v4", "the paper, -v2"))]
    for name, numbers in PAPER.items():
        ours = [str(effect(place, (1,), (name,))) for place in PLACES]
        yield [name, *(x for our, (y, *ends) in zip(ours, numbers) for x in (our, f"{y} {ends}"))]
    normal = np.random.default_rng(0).standard_normal((2, 100_000))
    aai, acli = (("PPO", "TRPO+"), ("PPO-M", "TRPO")), (("PPO", "PPO-M"), ("TRPO+", "TRPO"))
    for name, pairs, printed in (("AAI", aai, (242, 99, 224)), ("ACLI", acli, (557, 421, 444))):
        line = [f"{name} (by chance alone)"]
        for place, x in zip(PLACES, printed):
            found = [difference(place, *names) for names in pairs]
            chance = np.abs(normal * [[y.error] for y in found]).max(0).mean()
            line += [f"{max(abs(y.mean) for y in found):.0f} ({chance:.0f})", str(x)]
        yield line


def stages() -> Iterable[list[str]]:
    """Yields where the seeds come from. What was looked at in between is written by hand."""
    yield ["environment", "agents", "seeds", "script", "looks"]
    looks = {
        "walker2d": "after 5, 10 and 20",
        "walker2d_new": "none; their number was fixed before",
        "hopper_first": "after every few; older scripts, not in the tables",
        "hopper": "none",
        "humanoid": "after 5",
        "hopper_as_written": "after three seeds on -v5",
        "hopper_new_scripts": "none",
        "ladder_hopper": "none; their number was fixed before",
        "ladder_walker2d": "none; their number was fixed before",
        "deltas": "none; their number was fixed before",
    }
    for path, look in looks.items():
        of = measured(f"reward/{path}")
        env = of["settings"][0]["env_id"] if "env_id" in of["settings"][0] else "Hopper-v4"
        seeds = sorted({seed for x in of["settings"] for seed in x.get("seeds", ())})
        n = f"{seeds[0]} to {seeds[-1]}" if seeds else f"{len(of['settings'][0]['finals'])} others"
        hashes = {x["algo"]: " and ".join(x["versions"]) for x in of.get("scripts", ())}
        names = ", ".join(x["label"] for x in of["settings"])
        yield [env, names, n, "; ".join(f"{x} {y}" for x, y in hashes.items()) or "not kept", look]


TABLES = {"levels": levels, "stages": stages}


# Pictures ------------------------------------------------------------------------------------------------------------

EFFECTS = {
    "optimizations": (OPTIMIZATIONS, FOUR),
    "step": (STEP, FOUR),
    "interaction": (INTERACTION, FOUR),
    "PPO − PPO-M": ((1, -1), ("PPO", "PPO-M")),
    "TRPO+ − TRPO": ((1, -1), ("TRPO+", "TRPO")),
    "PPO − TRPO+": ((1, -1), ("PPO", "TRPO+")),
    "PPO-M − TRPO": ((1, -1), ("PPO-M", "TRPO")),
}
BLUE = figures.COLOURS["ppo"]


def draw_effects() -> Figure:
    """Draws effects and differences with 95 % intervals, ours and the paper's."""
    figure, [axes] = new_figure(1, 3, 4.2, sharey=True)
    for axis, place in zip(axes, PLACES):
        axis.axvspan(-margin(place), margin(place), color="0.92", lw=0, label="margin: half of the paper's effect")
        axis.axvline(0, color="black", lw=0.8)
        axis.axhline(2.5, color="0.8", lw=0.8)
        for y, (weights, names) in enumerate(EFFECTS.values()):
            x, paper = effect(place, weights, names), in_paper(place, weights, names)
            axis.plot(x.interval(), [y - 0.12] * 2, color=BLUE, lw=2)
            axis.plot(x.mean, y - 0.12, "o", color=BLUE, ms=6, label="here, 95 % interval" if y == 0 else None)
            axis.plot(paper[1:], [y + 0.2] * 2, color="0.5", lw=1.2)
            label = "the paper (-v2, 80 agents or more)" if y == 0 else None
            axis.plot(paper[0], y + 0.2, "D", color="white", mec="0.4", ms=5, label=label)
            if place == "Walker2d":
                for path, shift, form in (("walker2d", -0.28, "<"), ("walker2d_new", -0.36, ">")):
                    half = Estimate([finals(f"reward/{path}")[n] for n in names], weights)
                    label = dict(zip("<>", ("first 20 seeds", "last 20 seeds")))[form] if y == 0 else None
                    axis.plot(half.mean, y + shift, form, color="white", mec=BLUE, ms=5, label=label)
        axis.set_title(f"{place}-v4, {effect(place, STEP).seeds} seeds", fontsize=10)
        axis.set_xlabel("difference of final rewards", fontsize=9)
    axes[0].set_yticks(range(len(EFFECTS)), EFFECTS, fontsize=9)
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def draw_off() -> Figure:
    """Draws what the optimizations are worth by what "off" means."""
    figure, [[axis]] = new_figure(1, 1, 2.9)
    bars = [(f"{x}-v4\nagainst IM's released baselines", effect(x, OPTIMIZATIONS)) for x in PLACES]
    bars.insert(2, ("Hopper-v4\nagainst IM's definitions", as_defined()))
    bars += [(f"{x}-v5\nagainst none, at PPO's rates", y) for x, y in with_none().items()]
    bars = sorted(bars, key=lambda x: x[0].split("-")[0], reverse=True)
    hues = dict(released=BLUE, definitions=figures.COLOURS["trpo_plus"], none=figures.COLOURS["trpo"])
    for y, (name, x) in enumerate(bars):
        colour = next(hue for word, hue in hues.items() if word in name)
        axis.barh(y, x.mean, color=colour, height=0.65)
        axis.plot(x.interval(), [y, y], color="black", lw=1.5)
        axis.text(x.interval()[1] + 40, y, f"{x.seeds} seeds", va="center", fontsize=9)
    axis.axvline(0, color="black", lw=0.8)
    axis.set_yticks(range(len(bars)), [name.replace("\n", ", ") for name, _ in bars], fontsize=9)
    axis.set_ylim(len(bars) - 0.4, -0.6)
    axis.set_xlabel("what the optimizations add to the final reward, 95 % interval", fontsize=9)
    return figure


def draw_humanoid() -> Figure:
    """Draws the final rewards on Humanoid, ours and the paper's."""
    figure, [[axis]] = new_figure(1, 1, 2.3)
    for y, name in enumerate(FOUR):
        x, (paper, low, high) = effect("Humanoid", (1,), (name,)), PAPER[name][2]
        axis.plot(rewards("Humanoid")[name], [y - 0.15] * x.seeds, "o", color="0.6", ms=3)
        axis.plot(x.interval(), [y - 0.15] * 2, color=BLUE, lw=2.5)
        axis.plot(x.mean, y - 0.15, "o", color=BLUE, ms=6, label="here, -v4, 10 seeds (grey)" if not y else None)
        axis.plot([low, high], [y + 0.15] * 2, color="0.4", lw=1.5)
        axis.plot(
            paper, y + 0.15, "D", color="white", mec="0.4", ms=5, label="the paper, -v2, 80 or more" if not y else None
        )
    axis.set_yticks(range(4), FOUR)
    axis.set(ylim=(3.5, -0.5))
    axis.set_xlabel("final reward on Humanoid, 95 % interval", fontsize=9)
    axis.legend(frameon=False, fontsize=9, loc="upper right")
    return figure


def draw_bounds() -> Figure:
    """Draws the final rewards of TRPO and TRPO+ at both bounds: every run, and the means with their intervals."""
    figure, [[axis]] = new_figure(1, 1, 2.9)
    of = finals("reward/deltas")
    for name, colour, marker, shift in (("TRPO+", BLUE, "o", 1.02), ("TRPO", figures.COLOURS["trpo"], "s", 1 / 1.02)):
        means = {bound: Estimate([of[x]]) for bound, x in BOUNDS[name].items()}
        axis.plot(list(means), [x.mean for x in means.values()], color=colour, marker=marker, ms=7, lw=2, label=name)
        for bound, x in means.items():
            axis.plot([bound * shift] * 2, x.interval(), color=colour, lw=2)
            axis.plot([bound * shift] * x.seeds, *x.samples, marker, color=colour, ms=3, alpha=0.5, mec="none")
    axis.set_xscale("log")
    axis.set_xticks([0.04, 0.13], ["0.04, TRPO+'s in the paper", "0.13, TRPO's in the paper"])
    axis.minorticks_off()
    axis.set_xlim(0.03, 0.17)
    axis.set_xlabel("bound on the mean KL of a step (nats)", fontsize=9)
    axis.set_ylabel("Hopper-v4, final reward", fontsize=9)
    axis.legend(frameon=False, fontsize=9, title="10 seeds each; dots are runs", title_fontsize=9)
    return figure


def draw_ladder() -> Figure:
    return draw_agents({f"{place}-v4": f"reward/ladder_{place.lower()}" for place in CLIMBED}, RUNGS)


def draw_curves() -> Figure:
    """Draws the learning curves, an agent a panel, with that of PPO behind it."""
    names = "PPO-M", "TRPO+", "TRPO", "PPO-NoClip"
    figure, axes = new_figure(3, 4, 5.6, sharex=True, sharey="row")
    for row, place in zip(axes, PLACES):
        of = {x["label"]: x for x in measured(f"reward/{place.lower()}")["settings"]}
        # By its label, because the released PPO-M and TRPO are settings of other scripts.
        styles = figures.line_styles({name: of[name]["algo"] for name in names})
        for axis, name in zip(row, names):
            for label, colour in (("PPO", "0.6"), (name, styles[name]["color"])):
                steps, mean, low, high = (np.array(of[label]["curve"][x]) for x in ("steps", "mean", "low", "high"))
                axis.plot(steps / 1e6, mean, color=colour, lw=1.4)
                axis.fill_between(steps / 1e6, low, high, color=colour, alpha=0.25, lw=0)
            if place == PLACES[0]:
                axis.set_title(f"{name} (grey: PPO)", fontsize=9.5)
            n = len(of[name]["finals"])
            axis.text(0.03, 0.96, f"{n} seeds", transform=axis.transAxes, va="top", fontsize=9)
        row[0].set_ylabel(f"{place}-v4\nepisode return", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("steps (millions)", fontsize=9)
    return figure


PICTURES = {
    "effects": draw_effects,
    "off": draw_off,
    "humanoid": draw_humanoid,
    "ladder": draw_ladder,
    "bounds": draw_bounds,
    "curves": draw_curves,
}
