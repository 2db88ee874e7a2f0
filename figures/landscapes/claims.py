"""Whether the surrogate knows the reward (CL's sec. 2.3; BLOG)."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from claims import Cells, counted, new_figure, of_seeds, room
from estimates import Estimate, OfSeed, by_seed, in_places, span
from matplotlib.figure import Figure

VERSION = "v5"
FEW, MANY, FAR = 2000, 50_000, 3.0  # pairs that a step is computed from; the last of the steps along its direction
Steps = dict[tuple[str, int], dict[tuple[float, float], dict[str, Any]]]


def steps_of(of: OfSeed) -> Steps:
    """Returns a landscape's cells by agent and pairs, and by steps along the step and along the random direction."""
    found = {}
    for name, cells in of.items():
        for x in cells:
            found.setdefault((name, x["step_pairs"]), {})[x["step"], x["random"]] = x
    return found


def side(change: dict[str, Any]) -> int:
    """Returns whether the return rises (1) or falls (-1), or 0 where the paired 95 % interval contains 0."""
    low, high = change["interval"]
    return int(low > 0) - int(high < 0)


def at_the_start() -> dict[str, list[OfSeed]]:
    return {env: by_seed(f"landscapes/{env.lower()}_start") for env in ("Walker2d", "Hopper")}


def both_rise(env: str, of: OfSeed) -> tuple:
    steps = [x[1.0, 0.0] for x in steps_of(of).values()]
    sides = [side(x["change"]) if x["surrogate"] > 0 else -1 for x in steps]
    return (f"{sides.count(1)} of {len(steps)}",), agreed(sides)


def beats_a_random_direction(env: str, of: OfSeed) -> tuple:
    """By the interval of the difference, as if both changes were independent. They share their seeds, so it is rather
    too wide."""
    sides = []
    for x in steps_of(of).values():
        step, random = (x[at]["change"] for at in ((1.0, 0.0), (0.0, 1.0)))
        half = np.hypot(*(np.ptp(y["interval"]) / 2 for y in (step, random)))
        gap = step["mean"] - random["mean"]
        sides.append(int(gap > half) - int(gap < -half))
    return (f"{sides.count(1)} of {len(sides)}",), agreed(sides)


def agreed(sides: list[int]) -> bool | None:
    return True if set(sides) == {1} else False if -1 in sides else None


def late(name: str, pairs: int, far: float) -> dict[str, list[int]]:
    """Returns on which side of 0 the change lies in each run at iterations 300, and at 150 where that was measured."""
    found = {}
    for iteration in (300, 150):
        for env, seeds in in_places("landscapes/{}", [iteration]).items():
            found.setdefault(env, []).extend(side(steps_of(x)[name, pairs][far, 0.0]["change"]) for x in seeds)
    return found


def late_step(name: str, pairs: int, sign: int) -> Cells:
    """Judges whether the direction of a step raises the reward, or lowers it with sign -1, at three times the step,
    where CL's pictures end. The step itself stands beside that."""
    cells, one = {}, late(name, pairs, 1.0)
    for env, sides in late(name, pairs, FAR).items():
        text = f"three times: rises at {sides.count(1)}, falls at {sides.count(-1)} of {len(sides)}"
        text += f"; the step itself: rises at {one[env].count(1)}, falls at {one[env].count(-1)}"
        cells[env] = counted(text, [True if x == sign else False if x == -sign else None for x in sides], "checkpoints")
    return cells


def consistently_lower(name: str, pairs: int) -> Cells:
    """What happens consistently has no counterexample: one checkpoint at which the reward rises refutes it."""
    cells = late_step(name, pairs, -1)
    for cell in cells.values():
        cell.verdict = "does not hold" if cell.against else cell.verdict
    return cells


def is_a_tenth(env: str, of: OfSeed) -> tuple:
    """A random direction has the norm 2."""
    shorter = [2 / x[1.0, 0.0]["step_norm"] for x in steps_of(of).values()]
    return (f"{np.median(shorter):.0f}", span(shorter)), np.median(shorter)


def table_of_steps() -> Iterable[list[str]]:
    """Yields what the step itself changes, as a mean over the six runs on Walker2d and Hopper at iteration 300."""
    yield ["", "from 2,000 pairs", "from 50,000 pairs"]
    seeds = [steps_of(of) for env in ("walker2d", "hopper") for of in by_seed(f"landscapes/{env}", [300])]
    for name in ("PPO", "PPO-M", "TRPO"):
        cells = [np.array([x[name, pairs][1.0, 0.0]["change"]["mean"] for x in seeds]) for pairs in (FEW, MANY)]
        yield [name, *(str(Estimate([x])) for x in cells)]


TABLES = {"steps": table_of_steps}
CLAIMS = {
    "CL: early, surrogate and reward rise together": lambda: of_seeds(
        "both rise along {} steps", both_rise, at_the_start()
    ),
    "BLOG: early, a step beats a random direction": lambda: of_seeds(
        "along {} steps", beats_a_random_direction, at_the_start()
    ),
    "CL: late, TRPO's direction (2,000 pairs) lowers rewards": lambda: late_step("TRPO", FEW, -1),
    "CL: late, TRPO's direction (50,000 pairs) raises rewards": lambda: late_step("TRPO", MANY, 1),
    "CL: late, PPO's direction (2,000 pairs) lowers rewards": lambda: late_step("PPO", FEW, -1),
    "CL: PPO's (50,000 pairs) consistently lowers rewards": lambda: consistently_lower("PPO", MANY),
    "TPG: PPO-M's direction consistently lowers rewards": lambda: consistently_lower("PPO-M", MANY),
    "CL: steps are a tenth of a random direction": lambda: of_seeds(
        "{} times shorter ({})", is_a_tenth, in_places("landscapes/{}", [300]), 5
    ),
}

LOOKS = room("gradients").LOOKS


def draw_change() -> Figure:
    """Draws what a step changes, by training seed, with the paired intervals that the page tests."""
    figure, axes = new_figure(2, 6, 4.0, sharex=True, sharey="row")
    for row, env in zip(axes, ("hopper", "walker2d")):
        for k, (name, pairs) in enumerate((n, p) for n in ("TRPO", "PPO", "PPO-M") for p in (FEW, MANY)):
            for seed, of in enumerate(by_seed(f"landscapes/{env}", [300])):
                cells = steps_of(of)[name, pairs]
                x = [a for a, b in sorted(cells) if b == 0]
                change = [cells[a, 0.0]["change"] for a in x]
                shift = [a + 0.1 * (seed - 1) for a in x]
                row[k].plot(shift, [c["mean"] for c in change], color=LOOKS[name]["color"], lw=1)
                row[k].vlines(shift, *zip(*[c["interval"] for c in change]), color=LOOKS[name]["color"], lw=2)
            row[k].axhline(0, color="black", lw=0.8)
            row[k].axvline(1, color="0.6", lw=0.8, ls=":")
            row[k].set_xticks([0, 1, 2, 3])
            if env == "hopper":
                row[k].set_title(f"{name}\n{pairs:,} pairs", fontsize=9.5, color=LOOKS[name]["color"])
        row[0].set_ylabel(f"{env.capitalize()}-v5\nchange of return", fontsize=9)
    figure.supxlabel("multiples of the step at iteration 300; three seeds, paired 95 % intervals", fontsize=9)
    return figure


def draw_many() -> Figure:
    """Draws the change along PPO's step from many pairs at all late checkpoints."""
    figure, [axes] = new_figure(1, 2, 2.9, sharey=True)
    for axis, env in zip(axes, ("hopper", "walker2d")):
        seeds = [of for iteration in (300, 150) for of in by_seed(f"landscapes/{env}", [iteration])]
        for k, of in enumerate(seeds):
            cells = steps_of(of)["PPO", MANY]
            x = [a for a, b in sorted(cells) if b == 0]
            change, shift = [cells[a, 0.0]["change"] for a in x], np.array(x) + 0.05 * (k - 2)
            last = side(change[-1])
            colour = {1: "#009e73", 0: "0.55", -1: "#d55e00"}[last]
            axis.plot(shift, [c["mean"] for c in change], color=colour, lw=1)
            axis.vlines(shift, *zip(*[c["interval"] for c in change]), color=colour, lw=2)
        axis.axhline(0, color="black", lw=0.8)
        axis.set_xticks([0, 1, 2, 3])
        axis.set_title(f"{env.capitalize()}-v5, {len(seeds)} checkpoints of 3 seeds", fontsize=10)
        axis.set_xlabel("multiples of PPO's step from 50,000 pairs", fontsize=9)
    axes[0].set_ylabel("change of the return,\npaired 95 % interval", fontsize=9)
    axes[0].text(0.02, 0.04, "green rises, orange falls, grey neither (at 3)", transform=axes[0].transAxes, fontsize=9)
    return figure


def draw_surrogate() -> Figure:
    """Draws what the surrogate promises along the same steps."""
    figure, [axes] = new_figure(1, 6, 2.3, sharex=True)
    for k, (name, pairs) in enumerate((n, p) for n in ("TRPO", "PPO", "PPO-M") for p in (FEW, MANY)):
        for env, style in (("hopper", "-"), ("walker2d", "--")):
            for of in by_seed(f"landscapes/{env}", [300]):
                cells = steps_of(of)[name, pairs]
                x = [a for a, b in sorted(cells) if b == 0]
                y = [cells[a, 0.0]["surrogate"] for a in x]
                axes[k].plot(x, y, style, color=LOOKS[name]["color"], lw=1.1)
        axes[k].axhline(0, color="black", lw=0.8)
        axes[k].axvline(1, color="0.6", lw=0.8, ls=":")
        axes[k].set_xticks([0, 1, 2, 3])
        axes[k].tick_params(labelsize=8)
        axes[k].set_title(f"{name}\n{pairs:,} pairs", fontsize=9.5, color=LOOKS[name]["color"])
    axes[0].set_ylabel("surrogate", fontsize=9)
    figure.supxlabel("multiples of the step at iteration 300; Hopper-v5, dashed: Walker2d-v5, three seeds", fontsize=9)
    return figure


PICTURES = {"many": draw_many, "change": draw_change, "surrogate": draw_surrogate}
