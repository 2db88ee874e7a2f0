"""Whether the surrogate knows the reward (CL's sec. 2.3; BLOG)."""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from claims import NOT, UNCLEAR, Cells, Look, agreed, counted, n, of_sign, room, sides, tally
from estimates import PLACES, Estimate, OfSeed, by_seed, measured, plain, span
from pictures import STYLES, new_figure
from planned import by_run

sys.path.append(str(Path(__file__).parents[2] / "diagnostics"))

import landscape

FEW, MANY, FAR = 2000, 50_000, 3.0  # pairs that a step is computed from; the last of the steps along its direction
AGENTS, TWO = ("PPO", "PPO-M", "TRPO"), ("Walker2d", "Hopper")
Steps = dict[tuple[str, int], dict[tuple[float, float], dict[str, Any]]]


def steps_of(of: OfSeed) -> Steps:
    """Returns a landscape's cells by agent and pairs, and by steps along the step and along the random direction."""
    found = {}
    for name, x in ((name, x) for name, rows in of.items() for x in rows):
        found.setdefault((name, x["step_pairs"]), {})[x["step"], x["random"]] = x
    return found


def landscapes(place: str, *iterations: int) -> list[Steps]:
    """Returns the landscapes of each seed, of which those of iteration 0 have a file of their own."""
    path = f"landscapes/{place.lower()}" + "_start" * (iterations == (0,))
    return [steps_of(x) for i in iterations for x in by_seed(path, [i])]


def side(change: dict[str, Any]) -> bool | None:
    """Returns whether the return rises (True) or falls (False), or None where the paired 95 % interval contains 0."""
    low, high = change["interval"]
    return True if low > 0 else False if high < 0 else None


def of_seeds(form: str, look: Look, iteration: int, places: Iterable[str] = PLACES, **bound: float) -> Cells:
    """Judges a claim about the steps from one checkpoint of each seed: `rises` says whether surrogate and return do,
    and `beats` whether the return rises by more than along the random direction, by the interval of independent
    changes. Both share their seeds, so it is rather too wide. `times` is how much shorter the step is than 2, the norm
    of the random direction."""
    seeds = {place: [] for place in places}
    for place, of in ((x, y) for x in seeds for y in landscapes(x, iteration)):
        steps, random = [x[1.0, 0.0] for x in of.values()], [x[0.0, 1.0] for x in of.values()]
        gaps = [x["change"]["mean"] - y["change"]["mean"] for x, y in zip(steps, random)]
        halves = [np.hypot(*(np.ptp(z["change"]["interval"]) / 2 for z in x)) for x in zip(steps, random)]
        rises = [x["surrogate"] > 0 and side(x["change"]) for x in steps]
        seeds[place].append(dict(rises=rises, beats=sides(gaps, halves), times=[2 / x["step_norm"] for x in steps]))
    return tally(seeds, form, look, **bound)


def both_rise(of: dict[str, list]) -> tuple:
    return agreed(of["rises"]), n([x is True for x in of["rises"]])


def beats_random(of: dict[str, list]) -> tuple:
    return agreed(of["beats"]), n([x is True for x in of["beats"]])


def times_shorter(of: dict[str, list]) -> tuple:
    return np.median(of["times"]), plain(np.median(of["times"])), span(of["times"])


def late(place: str, name: str, pairs: int, far: float) -> list[bool | None]:
    """Returns whether the return rises in each run at iteration 300, and at 150 where that was measured."""
    return [side(x[name, pairs][far, 0.0]["change"]) for x in landscapes(place, 300, 150)]


def late_step(name: str, pairs: int, raises: bool, consistently: bool = False) -> Cells:
    """Judges whether the direction of a step raises the reward, or lowers it, at three times the step, where CL's
    pictures end. The step itself stands beside that. What happens consistently has no counterexample: one checkpoint
    at which the opposite is so refutes it."""
    cells = {}
    for place in PLACES:
        far, one = (late(place, name, pairs, x) for x in (FAR, 1.0))
        text = f"three times: rises at {far.count(True)}, falls at {far.count(False)} of {len(far)}"
        text += f"; the step itself: rises at {one.count(True)}, falls at {one.count(False)}"
        cells[place] = cell = counted(text, [x if x is None else x is raises for x in far], "checkpoints")
        cell.verdict = NOT if consistently and cell.against else cell.verdict
    return cells


def jagged_change(place: str, algo: str) -> np.ndarray:
    """Returns what three times the step from few pairs changes, of each run [5] of the jagged room."""

    def change(row: dict[str, Any]) -> float:
        start, far = (
            next(np.mean(x["returns"]) for x in row["points"] if (x["step"], x["random"]) == (step, 0.0))
            for step in (0.0, FAR)
        )
        return float(far - start)

    rows = [x for x in measured("jagged/rows") if x["algo"] == algo]
    return np.array([*by_run(rows, change)[place].values()])


def long_update(place: str) -> np.ndarray:
    """Returns what 2.5 times PPO's step from 49,152 pairs changes, of each run [10] of the room noise_or_length."""
    gain = room("noise_or_length").gain
    return np.array([*by_run(measured("noise_or_length/rows"), lambda row: gain(row, "D"))[place].values()])


def of_more_runs(cells: Cells, runs: Callable[[str], np.ndarray], says: str, raises: bool, unlike: str = "") -> Cells:
    """Tests a claim with runs as the sample, where other rooms have enough of them, and with those alone, because the
    test was chosen after a look at the runs whose checkpoints were counted before. Their counts stand beside it."""
    for place in TWO:
        change, counts = Estimate([runs(place)]), cells[place].text
        cells[place] = of_sign(change, 1 if raises else -1, text=f"{says}: {change}; counted, {counts}")
        cells[place].unlike = unlike
    return cells


NOT_CLS = "with `ppo.py`'s defaults, which are not CL's settings"


def trpo_from_few() -> Cells:
    runs = lambda place: jagged_change(place, "trpo_plus")
    return of_more_runs(late_step("TRPO", FEW, False), runs, "three times, over runs", False)


def ppo_from_few() -> Cells:
    runs = lambda place: jagged_change(place, "ppo")
    return of_more_runs(late_step("PPO", FEW, False), runs, "three times, over runs of `ppo.py`", False, NOT_CLS)


def ppo_from_many() -> Cells:
    """A mean below 0 would not be what happens consistently, so that the test can only contradict."""
    cells = late_step("PPO", MANY, False, consistently=True)
    cells = of_more_runs(cells, long_update, "2.5 times, over runs of `ppo.py`", False, NOT_CLS)
    for place in TWO:
        cells[place].verdict = NOT if cells[place].verdict == NOT else UNCLEAR
    return cells


def a_tenth() -> Cells:
    cells = of_seeds("{} times shorter ({})", times_shorter, 300, above=5)
    for place in TWO:
        cells[place].unlike = "CL says it of Humanoid"
    return cells


def judge_all() -> dict[str, Cells]:
    """Judges each row of the page's tables, in their order."""
    return {
        "CL: early, surrogate and reward rise together": of_seeds("both rise along {} steps", both_rise, 0, TWO),
        "BLOG: early, a step beats a random direction": of_seeds("along {} steps", beats_random, 0, TWO),
        "CL: late, TRPO's direction (2,000 pairs) lowers rewards": trpo_from_few(),
        "CL: late, TRPO's direction (50,000 pairs) raises rewards": late_step("TRPO", MANY, True),
        "CL: late, PPO's direction (2,000 pairs) lowers rewards": ppo_from_few(),
        "CL: PPO's (50,000 pairs) consistently lowers rewards": ppo_from_many(),
        "TPG: PPO-M's direction consistently lowers rewards": late_step("PPO-M", MANY, False, consistently=True),
        "CL: steps are a tenth of a random direction": a_tenth(),
    }


def of_steps(name: str, pairs: int) -> Estimate:
    """Returns what the step itself changes, over the six runs on Walker2d and Hopper at iteration 300."""
    cells = [x[name, pairs][1.0, 0.0] for place in TWO for x in landscapes(place, 300)]
    return Estimate([[x["change"]["mean"] for x in cells]])


def table_of_steps() -> Iterable[list[str]]:
    yield ["", "from 2,000 pairs", "from 50,000 pairs"]
    for name in AGENTS:
        yield [name, *(str(of_steps(name, pairs)) for pairs in (FEW, MANY))]


def turned_back() -> list[bool]:
    """Returns whether the surrogate of PPO's and PPO-M's steps from many pairs rises and is below its start at three
    times the step, of each of the twelve runs."""
    found = [x[y, MANY] for y in AGENTS[:2] for place in TWO for x in landscapes(place, 300)]
    return [x[1.0, 0.0]["surrogate"] > 0 > x[FAR, 0.0]["surrogate"] for x in found]


def both() -> list[bool | None]:
    """Returns whether the return rises three times along PPO's step from many pairs, on Walker2d and Hopper."""
    return [x for place in TWO for x in late(place, "PPO", MANY, FAR)]


def change():
    """Draws what a step changes, by training seed, with the paired intervals that the page tests."""
    figure, axes = new_figure(2, 6, 3.8, sharex=True, sharey="row")
    for row, place in zip(axes, TWO[::-1]):
        for axis, (name, pairs) in zip(row, [(x, y) for x in ("TRPO", "PPO", "PPO-M") for y in (FEW, MANY)]):
            for seed, of in enumerate(landscapes(place, 300)):
                x = [step for step, random in sorted(of[name, pairs]) if not random]
                changes = [of[name, pairs][step, 0.0]["change"] for step in x]
                shifted = np.array(x) + 0.12 * (seed - 1)
                style = dict(color=STYLES[name][0], marker=STYLES[name][1], ms=3)
                axis.plot(shifted, [y["mean"] for y in changes], lw=0.8, **style)
                axis.vlines(shifted, *zip(*[y["interval"] for y in changes]), color=style["color"], lw=1.8)
            axis.axhline(0, color="black", lw=0.8)
            axis.axvline(1, color="0.6", lw=0.8, ls=":")
            axis.set_xticks([0, 1, 2, 3])
            axis.set_title(f"{name}\n{pairs:,} pairs" if place == "Hopper" else "", fontsize=9.5)
        row[0].set_ylabel(f"{place}-v5\nchange of return", fontsize=9)
    figure.supxlabel("multiples of the step at iteration 300; three seeds, paired 95 % intervals", fontsize=9)
    return figure


# The papers' surfaces ------------------------------------------------------------------------------------------------

SEED_1 = 0  # the first seed has iterations 0 and 300


def surfaces_of(place: str, name: str, iteration: int) -> list[landscape.Surface]:
    """Returns the surfaces of surrogate and mean return around a checkpoint of seed 1, with the step from few and from
    many pairs."""
    found = []
    for pairs in (FEW, MANY):
        points = landscapes(place, iteration)[SEED_1][name, pairs]
        norm = points[1.0, 0.0]["step_norm"]
        for quantity, title in dict(surrogate="surrogate", mean="mean return").items():
            heights = {place: x[quantity] for place, x in points.items()}
            found.append(landscape.Surface(f"{title}, step from {pairs:,}", "", norm, heights))
    return found


def surfaces(rows: list[tuple[str, str, int]]):
    """Draws a row of surfaces for each place, agent and iteration (CL's Fig. 6, 7 and 13 to 18, TPG's 7, 8 and 17 to
    25). Those of one quantity in a row have one scale."""
    look = dict(subplot_kw=dict(projection="3d", computed_zorder=False))
    figure, axes = new_figure(len(rows), 4, 0.3 + 2.25 * len(rows), **look)
    for panels, (place, name, iteration) in zip(axes, rows):
        of_row = surfaces_of(place, name, iteration)
        for k, (axis, surface) in enumerate(zip(panels, of_row)):
            draw_small(axis, surface, of_row[k % 2 :: 2])
            axis.set_title(f"{name}, iteration {iteration}\n{surface.title}", fontsize=8, y=0.98)
    return figure


def draw_small(axis: Any, surface: landscape.Surface, of_one_scale: list[landscape.Surface]) -> None:
    """Draws a surface on a quarter of a page's width."""
    heights = [z for other in of_one_scale for z in other.heights.values()]
    landscape.draw_surface(axis, surface, min(heights), max(heights))
    axis.set_xlabel(f"step (norm {surface.norm:.2g})", fontsize=7, labelpad=-8)
    axis.set_ylabel("random (norm 2)", fontsize=7, labelpad=-8)
    axis.set(xticks=range(4), yticks=range(4), zlabel="")
    axis.tick_params(labelsize=6, pad=-3)


PICTURES = dict(change=change)
for place, name in ((x, y) for x in TWO for y in AGENTS):
    picture = f"surfaces_{place}_{name}".lower().replace("-", "_")
    PICTURES[picture] = partial(surfaces, [(place, name, 0), (place, name, 300)])
PICTURES["surfaces_humanoid"] = partial(surfaces, [("Humanoid", name, 300) for name in AGENTS])
