"""What the papers claim, and what the numbers in this folder say about each claim.

    python figures/claims.py      # writes the tables into README.md and draws claims.png and clipping/effects.png

Every verdict is computed here from the JSON files, by the rules that README.md states under "How it is decided". A test
compares the tables of README.md with this file, so that no verdict can stand there that its numbers do not give.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

sys.path.append(str(Path(__file__).parent.parent / "diagnostics"))

from measuring import intervals

FIGURES = Path(__file__).parent
HOLDS, NOT, UNCLEAR = "holds", "does not hold", "cannot tell"
ENVIRONMENTS = "Walker2d", "Hopper", "Humanoid", "HalfCheetah"


@dataclass
class Cell:
    """What was measured about a claim in one environment."""

    text: str
    verdict: str
    seeds: int
    p: float | None = None  # for Holm's correction; None where there are too few runs for a test
    alone: bool = False  # whether the verdict holds alone but not after Holm's correction


@dataclass
class Claim:
    short: str  # its name in the picture
    words: str  # the paper's words and where they stand
    paper: str  # the paper's own numbers
    cells: dict[str, Cell] = field(default_factory=dict)  # by environment


# Numbers -------------------------------------------------------------------------------------------------------------


@functools.cache
def measured(path: str) -> Any:
    return json.loads((FIGURES / f"{path}.json").read_text())


def plain(x: float, digits: int = 0) -> str:
    return f"{round(x, digits) + 0:,.{max(digits, 0)}f}".replace("-", "−")  # + 0: no −0


def show(mean: float, low: float, high: float) -> str:
    """Writes a mean and its interval with the two or three digits of the interval's half width that mean something."""
    digits = 1 - int(np.floor(np.log10((high - low) / 6)))
    return f"{plain(mean, digits)} [{plain(low, digits)}, {plain(high, digits)}]"


def show_dict(numbers: dict[str, Any]) -> str:
    return show(numbers["mean"], *numbers["interval"])


def span(values: Iterable[float], digits: int = 0) -> str:
    values = list(values)
    return f"{plain(min(values), digits)} to {plain(max(values), digits)}"


def two_digits(x: float) -> str:
    return plain(x, 1 - int(np.floor(np.log10(x))))


class Estimate:
    """The sum of the weighted means of independent samples [n], [m], ..., by Student's t with Satterthwaite's degrees
    of freedom. For two samples with weights 1 and -1 that is Welch's."""

    def __init__(self, samples: list[np.ndarray], weights: Iterable[float]):
        self.samples, self.weights = samples, tuple(weights)
        parts = [w**2 * x.var(ddof=1) / len(x) for w, x in zip(self.weights, samples)]
        self.mean = float(sum(w * x.mean() for w, x in zip(self.weights, samples)))
        self.error = float(sum(parts) ** 0.5)
        self.freedom = sum(parts) ** 2 / sum(p**2 / (len(x) - 1) for p, x in zip(parts, samples))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        half = float(stats.t.ppf(0.5 + level / 2, self.freedom)) * self.error
        return self.mean - half, self.mean + half

    def bootstrapped(self, level: float = 0.95) -> tuple[float, float]:
        weighted = intervals.bootstrap(
            lambda *x: sum(w * y.mean(-1) for w, y in zip(self.weights, x)), *self.samples, level=level
        )
        return tuple(weighted["interval"])

    def below(self, bound: float) -> float:
        """Returns the one-sided p-value for the estimated number being below the bound."""
        return float(stats.t.cdf((self.mean - bound) / self.error, self.freedom))

    def __str__(self) -> str:
        return show(self.mean, *self.interval())


# Rules ---------------------------------------------------------------------------------------------------------------


def judge_sign(x: Estimate, sign: int = 1, bound: float = 0) -> tuple[str, float]:
    """Judges the claim that x is above the bound, or below with sign -1: its 95 % interval decides, if BCa's agrees."""
    sides = {tuple(np.sign(np.array(ends) - bound)) for ends in (x.interval(), x.bootstrapped())}
    verdict = {((sign, sign),): HOLDS, ((-sign, -sign),): NOT}.get(tuple(sides), UNCLEAR)
    return verdict, 2 * min(x.below(bound), 1 - x.below(bound))


def judge_none(x: Estimate, low: float, high: float) -> tuple[str, float]:
    """Judges the claim that x is between two margins: it holds if the 90 % interval lies within them (which is to do
    two one-sided tests), and does not if the 95 % interval lies outside."""
    kinds = x.interval, x.bootstrapped
    if all(low < kind(0.9)[0] and kind(0.9)[1] < high for kind in kinds):
        return HOLDS, max(x.below(high), 1 - x.below(low))
    outside = 2 * min(x.below(low), 1 - x.below(high))
    if all(kind()[1] < low or kind()[0] > high for kind in kinds):
        return NOT, outside
    return UNCLEAR, min(outside, max(x.below(high), 1 - x.below(low)))


def correct(claims: list[Claim]) -> list[Claim]:
    """Marks what is decided alone but not after Holm's correction for all tests of a question."""
    cells = sorted((x for claim in claims for x in claim.cells.values() if x.p is not None), key=lambda x: x.p)
    significant = True
    for i, cell in enumerate(cells):
        significant = significant and cell.p < 0.05 / (len(cells) - i)
        cell.alone = cell.verdict != UNCLEAR and not significant
    return claims


def of_one_seed(short: str, words: str, paper: str, **cells: tuple[str, str]) -> Claim:
    """A claim that was looked at in one run of each algorithm; a cell is its text and its verdict."""
    return Claim(short, words, paper, {env: Cell(text, verdict, 1) for env, (text, verdict) in cells.items()})


def tested(text: Estimate | str, judged: tuple[str, float], seeds: int) -> Cell:
    verdict, p = judged
    return Cell(str(text), verdict, seeds, p)


def decided(yes: bool, no: bool | None = None) -> str:
    """Returns the verdict of something that is so, is not so, or is known to be neither."""
    return HOLDS if yes else NOT if no or no is None else UNCLEAR


# The step or the optimizations ---------------------------------------------------------------------------------------

FOUR = "PPO", "PPO-M", "TRPO", "TRPO+"
OPTIMIZATIONS, STEP, INTERACTION = (0.5, -0.5, -0.5, 0.5), (0.5, 0.5, -0.5, -0.5), (0.5, -0.5, 0.5, -0.5)
PLACES = "Walker2d", "Hopper", "Humanoid"
PAPER = {  # IM's Tables 2 and 3: mean and 95 % interval
    "PPO": ((3292, 3157, 3426), (2513, 2391, 2632), (806, 785, 827)),
    "PPO-M": ((2735, 2602, 2866), (2142, 2008, 2279), (674, 656, 695)),
    "PPO-NoClip": ((2867, 2701, 3024), (2371, 2316, 2424), (831, 798, 869)),
    "TRPO": ((2791, 2709, 2873), (2043, 1948, 2136), (586, 576, 596)),
    "TRPO+": ((3050, 2976, 3126), (2466, 2381, 2549), (1030, 979, 1083)),
}


def labelled_finals(path: str) -> dict[str, np.ndarray]:
    return {x["label"]: np.array(x["finals"]) for x in measured(path)["settings"]}


@functools.cache
def finals(place: str) -> dict[str, np.ndarray]:
    return labelled_finals(f"clipping/{place.lower()}")


@functools.cache
def new_finals(place: str) -> dict[str, np.ndarray]:
    """Returns the final rewards of seeds whose number was fixed after the others had been looked at. Verdicts come from
    these alone."""
    return labelled_finals("clipping/walker2d_new")


def samples(place: str, names: tuple[str, ...], pooled: bool = False) -> list[np.ndarray]:
    """Returns the final rewards of these agents; of all their seeds, or of those that decide."""
    if place != "Walker2d" or "PPO-NoClip" in names:
        return [finals(place)[x] for x in names]
    new = new_finals(place)
    return [np.append(finals(place)[x], new[x]) if pooled else new[x] for x in names]


def effect(place: str, weights: tuple[float, ...], names: tuple[str, ...] = FOUR, pooled: bool = False) -> Estimate:
    return Estimate(samples(place, names, pooled), weights)


def difference(place: str, x: str, y: str) -> Estimate:
    return effect(place, (1, -1), (x, y))


def with_pooled(place: str, weights: tuple[float, ...]) -> str:
    """Writes a main effect and, where the deciding seeds are not all, that of all beside it."""
    if place != "Walker2d":
        return str(effect(place, weights))
    return f"{effect(place, weights)}; all seeds {effect(place, weights, pooled=True)}"


def in_paper(place: str, weights: Iterable[float], names: tuple[str, ...] = FOUR) -> tuple[float, float, float]:
    """Returns an effect and its interval from the paper's means, whose intervals are added as independent errors."""
    numbers = [PAPER[x][PLACES.index(place)] for x in names]
    mean = sum(w * x[0] for w, x in zip(weights, numbers))
    half = sum((w * (x[2] - x[1]) / 2) ** 2 for w, x in zip(weights, numbers)) ** 0.5
    return mean, mean - half, mean + half


def paper_row(weights: Iterable[float], names: tuple[str, ...] = FOUR) -> str:
    return "; ".join("{:.0f} [{:.0f}, {:.0f}]".format(*in_paper(x, weights, names)) for x in PLACES).replace("-", "−")


def margin(place: str) -> float:
    """Half of the paper's own main effect of the optimizations."""
    return in_paper(place, OPTIMIZATIONS)[0] / 2


def seeds(place: str, *names: str) -> int:
    return min(map(len, samples(place, names)))


def gain(*samples: np.ndarray) -> np.ndarray:
    """Returns the share of PPO's gain over TRPO that is the main effect of the optimizations."""
    ppo, ppo_m, trpo, trpo_plus = (x.mean(-1) for x in samples)
    return (ppo - ppo_m - trpo + trpo_plus) / 2 / (ppo - trpo)


def judge_share(place: str) -> Cell:
    """Judges whether the optimizations make most of PPO's gain over TRPO. If there is a gain, that is so exactly where
    their main effect is above the step's, and the difference of both is TRPO+ - PPO-M."""
    total, more = difference(place, "PPO", "TRPO"), difference(place, "TRPO+", "PPO-M")
    of_four = samples(place, FOUR)
    percent = f"{100 * float(gain(*of_four)):.0f} %"
    if judge_sign(total)[0] != HOLDS:
        return Cell(f"{percent}, no interval: the gain is {total}", UNCLEAR, seeds(place, *FOUR), judge_sign(total)[1])
    percent += " [{:.0f}, {:.0f}]".format(*(100 * x for x in intervals.bootstrap(gain, *of_four)["interval"]))
    verdict, p = judge_sign(more)
    return Cell(percent, verdict, seeds(place, *FOUR), max(p, judge_sign(total)[1]))


def judge_more(place: str) -> Cell:
    """Judges whether the optimizations' main effect is larger than the step's in absolute value: it is, if it exceeds
    both the step's and its negative."""
    more, total = difference(place, "TRPO+", "PPO-M"), difference(place, "PPO", "TRPO")
    least = min((more, total), key=lambda x: x.mean)
    verdicts, ps = zip(judge_sign(more), judge_sign(total))
    verdict = HOLDS if set(verdicts) == {HOLDS} else NOT if set(verdicts) == {HOLDS, NOT} else UNCLEAR
    return Cell(str(least), verdict, seeds(place, *FOUR), max(ps))


def about_the_step() -> list[Claim]:
    effects = {place: (effect(place, OPTIMIZATIONS), effect(place, STEP)) for place in PLACES}
    found = [
        Claim(
            "the optimizations raise the reward",
            "“code-level optimizations contribute to algorithms' increased performance” (IM sec. 5): their main effect",
            paper_row(OPTIMIZATIONS),
            {x: Cell(with_pooled(x, OPTIMIZATIONS), *with_seeds(judge_sign(effects[x][0]), x)) for x in PLACES},
        ),
        Claim(
            "… more than the choice of algorithm",
            "“… often significantly more than the choice of algorithm” (IM sec. 5): by how much their main effect is "
            "larger than the step's",
            "; ".join(
                f"{in_paper(x, OPTIMIZATIONS)[0] - abs(in_paper(x, STEP)[0]):.0f}".replace("-", "−") for x in PLACES
            ),
            {x: judge_more(x) for x in PLACES},
        ),
        Claim(
            "… and are most of PPO's gain over TRPO",
            "“are responsible for most of PPO's gain in cumulative reward over TRPO” (IM abstract): their share of it",
            "; ".join(f"{100 * paper_share(x):.0f} %" for x in PLACES),
            {x: judge_share(x) for x in PLACES},
        ),
        Claim(
            "the step makes no difference",
            "“the core algorithm employed does not seem to have a significant impact on reward” (IM sec. 5): the "
            "step's main effect",
            paper_row(STEP),
            {x: Cell(with_pooled(x, STEP), *with_seeds(judge_margin(effects[x][1], x), x)) for x in PLACES},
        ),
    ]
    for short, x, y in (("… with the optimizations", "PPO", "TRPO+"), ("… and without them", "PPO-M", "TRPO")):
        cells = {place: difference(place, x, y) for place in PLACES}
        cells = {z: Cell(str(d), *with_seeds(judge_margin(d, z), z, x, y)) for z, d in cells.items()}
        found.append(Claim(short, f"the same, {x} − {y}", paper_row((1, -1), (x, y)), cells))
    for short, x, y, words in (
        ("PPO is above PPO-M", "PPO", "PPO-M", "“17%” on Hopper (IM sec. 5)"),
        ("TRPO+ is above TRPO", "TRPO+", "TRPO", "“21%” on Hopper (IM sec. 5)"),
    ):
        cells = {place: difference(place, x, y) for place in PLACES}
        cells = {z: Cell(str(d), *with_seeds(judge_sign(d), z, x, y)) for z, d in cells.items()}
        found.append(Claim(short, f"{words}: {x} − {y}", paper_row((1, -1), (x, y)), cells))
    return correct(found + about_the_text())


def about_the_text() -> list[Claim]:
    """Where IM's text and its released runs differ: what PPO-M and TRPO keep of the nine, and TRPO+'s schedule."""
    as_run, as_written = finals("Hopper"), labelled_finals("clipping/hopper_as_written")
    ppo_m, trpo, trpo_plus = (as_written[x] for x in ("PPO-M-defined", "TRPO-defined", "TRPO+schedule"))
    n = min(map(len, as_written.values()))
    main = Estimate([as_run["PPO"], ppo_m, trpo, as_run["TRPO+"]], OPTIMIZATIONS)
    found = [
        Claim(
            "the optimizations do so as defined, too",
            "our control: the main effect of the optimizations if PPO-M and TRPO keep none of the nine, as IM's Table "
            "1 defines them",
            "",
            dict(Hopper=tested(main, judge_sign(main), n)),
        )
    ]
    for short, words, x, y in (
        (
            "PPO-M as defined is PPO-M as released",
            "our control: PPO-M as defined − as released, with observation normalization and tanh",
            ppo_m,
            as_run["PPO-M"],
        ),
        ("… and so is TRPO", "the same, TRPO", trpo, as_run["TRPO"]),
        (
            "TRPO+'s schedule makes no difference",
            "our control: TRPO+ with the schedule of its bound that IM names and did not run − without",
            trpo_plus,
            as_run["TRPO+"],
        ),
    ):
        d = Estimate([x, y], (1, -1))
        found.append(Claim(short, words, "", dict(Hopper=tested(d, judge_margin(d, "Hopper"), n))))
    return found


def with_seeds(judged: tuple[str, float], place: str, *names: str) -> tuple[str, int, float]:
    verdict, p = judged
    return verdict, seeds(place, *(names or FOUR)), p


def judge_margin(x: Estimate, place: str) -> tuple[str, float]:
    return judge_none(x, -margin(place), margin(place))


def paper_share(place: str) -> float:
    return in_paper(place, OPTIMIZATIONS)[0] / in_paper(place, (1, -1), ("PPO", "TRPO"))[0]


def about_clipping() -> list[Claim]:
    over = {x: difference(x, "PPO", "PPO-NoClip") for x in PLACES}
    above = {x: difference(x, "PPO-NoClip", "PPO-M") for x in PLACES}
    names = "PPO", "PPO-NoClip"
    found = [
        Claim(
            "PPO and PPO-NoClip differ little",
            "“little difference between the rewards” (IM Table 3): PPO − PPO-NoClip",
            paper_row((1, -1), names),
            {x: Cell(str(d), *with_seeds(judge_margin(d, x), x, *names)) for x, d in over.items()},
        ),
        Claim(
            "PPO does not need its clipping",
            "“not necessary to achieve high performance” (IM sec. 5): PPO − PPO-NoClip is below the margin",
            "the same",
            {x: Cell("the same", *with_seeds(judge_none(d, -np.inf, margin(x)), x, *names)) for x, d in over.items()},
        ),
        Claim(
            "PPO-NoClip is above PPO-M",
            "“performs uniformly better than PPO-M” (IM sec. 5): PPO-NoClip − PPO-M",
            paper_row((1, -1), ("PPO-NoClip", "PPO-M")),
            {x: Cell(str(d), *with_seeds(judge_sign(d), x, "PPO-NoClip", "PPO-M")) for x, d in above.items()},
        ),
    ]
    no_clip, ppo = samples("Hopper", ("PPO-NoClip", "PPO"))
    clipped = labelled_finals("clipping/hopper_clipped")["PPO-NoClip-clipped"]
    alone, settings = Estimate([clipped, no_clip], (1, -1)), Estimate([clipped, ppo], (1, -1))
    for short, words, d, judged in (
        (
            "clipping alone makes little difference",
            "our control: PPO with PPO-NoClip's settings and the clipping − PPO-NoClip",
            alone,
            judge_margin(alone, "Hopper"),
        ),
        ("… but PPO-NoClip's other settings help", "our control: the same PPO − PPO", settings, judge_sign(settings)),
    ):
        found.append(Claim(short, words, "", dict(Hopper=tested(d, judged, len(clipped)))))
    return correct(found)


def levels() -> str:
    """Writes IM's Tables 2 and 3 beside ours, with AAI and ACLI, and what chance alone would make of these."""
    header = [""] + [x for place in PLACES for x in (f"{place}-v4", "the paper")]
    lines = [header, ["---"] * len(header)]
    for name in PAPER:
        line = [name]
        for place in PLACES:
            low, high = PAPER[name][PLACES.index(place)][1:]
            line += [
                str(effect(place, (1,), (name,), pooled=True)),
                f"{PAPER[name][PLACES.index(place)][0]} [{low}, {high}]",
            ]
        lines.append(line)
    normal = np.random.default_rng(0).standard_normal((2, 100_000))
    pairs = dict(
        AAI=(("PPO", "TRPO+"), ("PPO-M", "TRPO"), (242, 99, 224)),
        ACLI=(("PPO", "PPO-M"), ("TRPO+", "TRPO"), (557, 421, 444)),
    )
    for name, (first, second, printed) in pairs.items():
        line = [f"{name} (by chance alone)"]
        for place, x in zip(PLACES, printed):
            found = [effect(place, (1, -1), names, pooled=True) for names in (first, second)]
            chance = np.abs(normal * [[y.error] for y in found]).max(0).mean()
            line += [f"{max(abs(y.mean) for y in found):.0f} ({chance:.0f})", str(x)]
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# Four of the nine ----------------------------------------------------------------------------------------------------

ABLATED = "reward_scale", "anneal_lr", "orthogonal_init", "value_clip"


def ablation() -> list[tuple[dict[str, bool], list[np.ndarray]]]:
    """Returns which of the four are on in each of IM's 16 settings, and its final rewards [seeds] at each of four
    policy learning rates, the best first."""
    settings = measured("ablation/walker2d")["settings"]
    return [
        ({name: x["settings"][name] for name in ABLATED}, [np.array(y["finals"]) for y in x["tried"]]) for x in settings
    ]


def factorial(*names: str, rates: int) -> Estimate:
    """Returns the main effect of one of the four, the mean of the settings with it minus that of those without it; or
    of two, by how much more the one is worth with the other than without. Each setting counts with this many of its
    best learning rates."""
    runs = [(on, x) for on, tried in ablation() for x in tried[:rates]]
    signs = [np.prod([1 if on[name] else -1 for name in names]) for on, _ in runs]
    return Estimate([x for _, x in runs], 2 ** len(names) * np.array(signs) / len(runs))


def lead(name: str) -> Estimate:
    """Returns the best place of the grid with one of the four minus the best without it."""
    best = [max((tried[0] for on, tried in ablation() if on[name] is x), key=np.mean) for x in (True, False)]
    return Estimate(best, (1, -1))


def case(cell: dict[str, Any]) -> tuple[str, bool]:
    """Returns which of the nine is switched, or "all", and whether the others are on."""
    return cell["switched"][0] if len(cell["switched"]) < 3 else "all", bool(cell["others_on"])


def worth_of_each(batch: str) -> dict[tuple[str, bool], np.ndarray]:
    """Returns the final reward with one of the nine, or with all, minus that without [seeds], by its name and by
    whether the others are on."""
    return {case(x): np.array(x["differences"]) for x in measured(f"leave-one-out/{batch}")["paired"]}


def about_one_by_one() -> list[Claim]:
    """The nine, switched one at a time. On Hopper five new seeds decide, because we had looked at the first five."""
    walker2d, first, new = map(worth_of_each, ("walker2d", "hopper", "hopper_new"))
    n = len(new["all", False])

    def worth(key: tuple[str, bool], batch: dict[tuple[str, bool], np.ndarray] = new) -> Estimate:
        return Estimate([batch[key]], (1,))

    pooled = {key: np.append(first[key], new[key]) for key in new}

    def in_both(short: str, words: str, key: tuple[str, bool]) -> Claim:
        cells = dict(
            Walker2d=tested(worth(key, walker2d), judge_sign(worth(key, walker2d)), len(walker2d[key])),
            Hopper=tested(f"{worth(key)}; all seeds {worth(key, pooled)}", judge_sign(worth(key)), n),
        )
        return Claim(short, words, "", cells)

    def again(short: str, words: str, form: str, signs: dict[tuple[str, bool], int]) -> Claim:
        text = f"{form.format(*map(worth, signs))}; all seeds {', '.join(str(worth(x, pooled)) for x in signs)}"
        judged = judge_all(judge_sign(worth(key), sign) for key, sign in signs.items())
        return Claim(short, words, "", dict(Hopper=tested(text, judged, n)))

    return [
        in_both(
            "all nine together raise the reward",
            "“code-level optimizations contribute to algorithms' increased performance” (IM sec. 5): all nine minus "
            "none",
            ("all", False),
        ),
        in_both(
            "reward scaling does among the other eight",
            "“… each significantly impact the rewards landscape …” (IM Fig. 1), one at a time with the other eight of "
            "the nine on: reward scaling",
            ("reward_scale", True),
        ),
        in_both("… and so does annealing", "the same, annealing", ("anneal_lr", True)),
        in_both("… and initialization", "the same, initialization", ("orthogonal_init", True)),
        again(
            "three of the nine lower it alone",
            "our control: what the first five seeds suggested on Hopper, in five new ones: with the other eight off, "
            "value clipping, reward scaling and annealing lower the reward",
            "value clipping {}; reward scaling {}; annealing {}",
            {("value_clip", False): -1, ("reward_scale", False): -1, ("anneal_lr", False): -1},
        ),
        again(
            "gradient clipping helps alone, harms among all",
            "the same: gradient clipping raises it with the other eight off, and lowers it with them on",
            "off {}; on {}",
            {("grad_clip", False): 1, ("grad_clip", True): -1},
        ),
    ]


def about_the_nine() -> list[Claim]:
    """IM's Fig. 1, and the nine one at a time."""
    n = min(len(x) for _, tried in ablation() for x in tried)

    def of_the_grid(short: str, words: str, *names: str) -> Claim:
        # As in the figure, the best rates decide. All rates stand beside them, because the same runs chose the best.
        best = factorial(*names, rates=1)
        text = f"{best}; over all four rates {factorial(*names, rates=4)}"
        return Claim(short, words, "", dict(Walker2d=tested(text, judge_sign(best), n)))

    leads = [lead(name) for name in ("reward_scale", "anneal_lr", "orthogonal_init")]
    needed = tested("scaling {}; annealing {}; initialization {}".format(*leads), judge_all(map(judge_sign, leads)), n)
    found = [
        of_the_grid(
            "reward scaling raises the grid's rewards",
            "“reward normalization, Adam annealing, and network initialization each significantly impact the rewards "
            "landscape …” (IM Fig. 1): the main effect of reward scaling",
            "reward_scale",
        ),
        of_the_grid("… and so does annealing", "the same, annealing", "anneal_lr"),
        of_the_grid("… and initialization", "the same, initialization", "orthogonal_init"),
        Claim(
            "the grid's best place needs the three",
            "“… and were necessary for attaining the highest PPO reward within the tested hyperparameter grid” (IM "
            "Fig. 1): the best place with each minus the best without it",
            "",
            dict(Walker2d=needed),
        ),
        of_the_grid(
            "value clipping raises them, too",
            "our control: value clipping, which that sentence leaves out",
            "value_clip",
        ),
        of_the_grid(
            "scaling is worth more with value clipping",
            "our control: how much more reward scaling is worth with value clipping than without",
            "reward_scale",
            "value_clip",
        ),
        *about_one_by_one(),
    ]
    return correct(found)


# How far steps go ----------------------------------------------------------------------------------------------------


def agent(cell: dict[str, Any]) -> str:
    """Returns which of CL's PPO and TRPO and IM's PPO-M made the run."""
    if cell["algo"] == "trpo_plus":
        return "TRPO"
    # The folder of one PPO-M spells its arguments out, and that of another has a hash instead.
    return "PPO" if "policy-lr" in cell["run"] and "no-reward-scale" not in cell["run"] else "PPO-M"


EVERY = range(1_000_000)  # iterations


def by_agent(path: str, iterations: Container[int] = EVERY) -> dict[str, list[dict[str, Any]]]:
    """Returns a diagnostic's cells at these iterations, by agent."""
    found = {}
    for x in measured(path):
        if x["iteration"] in iterations:
            found.setdefault(agent(x), []).append(x)
    return found


OfSeed = dict[str, list[dict[str, Any]]]  # a diagnostic's cells of one seed, by agent


def by_seed(path: str, iterations: Container[int] = EVERY) -> list[OfSeed]:
    """Returns a diagnostic's cells at these iterations by agent, for each seed."""
    found = {}
    for name, cells in by_agent(path, iterations).items():
        for x in cells:
            found.setdefault(int(x["run"].rpartition("seed")[2]), {}).setdefault(name, []).append(x)
    return [found[seed] for seed in sorted(found)]


Judged = tuple[tuple[str, ...], bool | float | str]


def in_turn(texts: tuple[str, ...]) -> str:
    """Writes one text after the other, and their ends once where all end alike: 18, 20, 19 of 20."""
    starts, _, ends = zip(*(x.partition(" of ") for x in texts))
    return ", ".join(starts) + f" of {ends[0]}" if len(set(ends)) == 1 and ends[0] else ", ".join(texts)


def of_seeds(
    short: str,
    words: str,
    paper: str,
    form: str,
    judge: Callable[[str, OfSeed], Judged],
    seeds: dict[str, list[OfSeed]],
) -> Claim:
    """A claim about the runs of each seed, given what was measured, by environment. Of one seed `judge` makes the
    numbers that go into the form, and what is found: of a claim about a size, by how much it is met, which Student's t
    judges over the seeds; otherwise a verdict or whether it is so, which must be the same for all seeds."""
    claim = Claim(short, words, paper)
    for env, of in seeds.items():
        numbers, found = zip(*(judge(env, x) for x in of))
        text = form.format(*map(in_turn, zip(*numbers)))
        if isinstance(found[0], float) and len(found) > 1:
            claim.cells[env] = tested(text, judge_sign(Estimate([np.array(found)], (1,))), len(found))
        else:
            verdicts = {x if isinstance(x, str) else decided(x > 0) for x in found}
            claim.cells[env] = Cell(text, verdicts.pop() if len(verdicts) == 1 else UNCLEAR, len(found))
    return claim


def in_places(
    folder: str, iterations: Container[int] = EVERY, places: Iterable[str] = PLACES
) -> dict[str, list[OfSeed]]:
    """Returns by environment what `by_seed` finds in a folder."""
    return {env: by_seed(f"{folder}/{env.lower()}", iterations) for env in places}


def over(x: float, bound: float) -> float:
    """Returns by how much a positive number is over a bound, as a logarithm, because sizes spread by factors."""
    return float(np.log(x / bound))


BOUNDS = dict(Hopper=0.13, Walker2d=0.04, Humanoid=0.07)  # TRPO's, on the mean KL


def of_steps(cells: list[dict[str, Any]], number: str, part: str = "train") -> np.ndarray:
    return np.array([x[part][number] for x in cells])


def keeps_bound(env: str, of: OfSeed) -> Judged:
    kl = of_steps(of["TRPO"], "mean_kl") / BOUNDS[env]
    return (f"{(kl <= 1).sum()} of {len(kl)}", f"{np.median(kl):.2f}"), (kl <= 1).all()


def keeps_bound_heldout(env: str, of: OfSeed) -> Judged:
    kl = of_steps(of["TRPO"], "mean_kl", "heldout") / BOUNDS[env]
    return (f"{(kl <= 1).sum()} of {len(kl)}", f"{kl.max():.2f}"), -over(kl.max(), 1.1)


def exceeds_ratio(env: str, of: OfSeed) -> Judged:
    largest = [of_steps(of[name], "max_ratio") for name in ("PPO", "PPO-M", "TRPO")]
    return tuple(span(x, 1) for x in largest), over(min(map(min, largest)), 1.2)


def exceeds_in_a_state(env: str, of: OfSeed) -> Judged:
    largest = of_steps(of["TRPO"], "max_kl") / BOUNDS[env]
    return (span(largest),), over(np.median(largest), 100)


def peaks_and_rises(env: str, of: OfSeed) -> Judged:
    ppo, ppo_m = (of_steps(of[name], "mean_kl") for name in ("PPO", "PPO-M"))
    k, quarter = int(np.argmax(ppo)), len(ppo) // 4
    rise = ppo_m[-quarter:].mean() / ppo_m[:quarter].mean()
    so = 0 < k < len(ppo) - 1 and ppo[-1] < ppo[0] and rise > 1
    return (str(of["PPO"][k]["iteration"]), f"{rise:.1f}"), so


def both_stay_small(env: str, of: OfSeed) -> Judged:
    most = [of_steps(of[name], "mean_kl").max() / BOUNDS[env] for name in ("PPO", "PPO-M")]
    return tuple(f"{x:.2f}" for x in most), -over(max(most), 1)


def only_ppo_m_goes_far(env: str, of: OfSeed) -> Judged:
    ppo, ppo_m = (of_steps(of[name], "mean_kl") for name in ("PPO", "PPO-M"))
    most = max(ppo_m) / BOUNDS[env]
    return (f"{most:.2f}", f"{(ppo > ppo_m).sum()} of {len(ppo)}"), over(most, 1)


def ratio_is_nearer(env: str, of: OfSeed) -> Judged:
    ppo, ppo_m = (of_steps(of[name], "max_ratio") for name in ("PPO", "PPO-M"))
    return (f"{(ppo < ppo_m).sum()} of {len(ppo)}",), (ppo < ppo_m).mean() > 0.5


def about_steps() -> list[Claim]:
    rows = [
        (
            "TRPO keeps its bound on the mean KL",
            "“TRPO precisely enforces this trust region” (IM sec. 4, Fig. 3)",
            "Hopper 0.13, Walker2d 0.04, Humanoid 0.07 nats",
            "kept at {} steps; the median is {} of it",
            keeps_bound,
        ),
        (
            "… on held-out states, too",
            "“little qualitative difference” held out (IM Fig. 2, 4): the largest is below 1.1 times the bound",
            "",
            "kept at {} steps; the largest is {} of it",
            keeps_bound_heldout,
        ),
        (
            "no algorithm keeps the ratio in bounds",
            "“all three algorithms fail to maintain a ratio-based trust region” (IM sec. 4): the largest ratio",
            "above 1.2",
            "PPO {}; PPO-M {}; TRPO {}",
            exceeds_ratio,
        ),
        (
            "one state's KL is orders above the bound",
            "“several orders of magnitude larger than our enforced bound on mean KL” (TPG sec. 5.4): at least 100 "
            "times at half of the steps",
            "Humanoid",
            "{} times the bound",
            exceeds_in_a_state,
        ),
        (
            "PPO's KL peaks, PPO-M's rises",
            "“PPO-M KL trends up …, PPO KL peaks halfway through training before trending down” (IM sec. 4)",
            "Humanoid",
            "PPO's peak at iteration {} of 488, PPO-M's last quarter is {} times its first",
            peaks_and_rises,
        ),
        (
            "PPO and PPO-M both keep the KL small",
            "“both PPO and PPO-M constraint the KL well (compared to the TRPO bound …)” (IM Fig. 2)",
            "",
            "at most {} (PPO) and {} (PPO-M) of the bound",
            both_stay_small,
        ),
        (
            "PPO keeps the KL small, PPO-M does not",
            "“PPO with optimizations does quite well at maintaining a KL trust region, but PPO-M does not” (BLOG, TPG "
            "Fig. 9, 28): PPO-M's exceeds TRPO's bound",
            "",
            "PPO-M's is at most {} of the bound; PPO's is the larger at {}",
            only_ppo_m_goes_far,
        ),
        (
            "the optimizations keep the ratio nearer",
            "“simply adding the auxiliary, code-level optimizations to PPO-M yields better trust region enforcement” "
            "of the ratio (BLOG)",
            "",
            "PPO's largest ratio is the smaller at {}",
            ratio_is_nearer,
        ),
    ]
    return correct([of_seeds(*row, in_places("trust_region")) for row in rows])


# Gradient estimates --------------------------------------------------------------------------------------------------


def noise(cell: dict[str, Any], baseline: str = "value network") -> tuple[float | None, float, float]:
    """Returns the noise scale in pairs, None where only its lower end is known, and both ends."""
    x = cell["noise_scale"][baseline]
    low, high = x["interval"]
    return x["pairs"], low, np.inf if high is None else high


def show_noise(scale: tuple[float | None, float, float]) -> str:
    pairs, low, high = scale
    return (
        f"more than {two_digits(low)}"
        if np.isinf(high)
        else f"{two_digits(pairs)} [{two_digits(low)}, {two_digits(high)}]"
    )


TRAINING_BATCH, FOUR_CHECKPOINTS = 2048, (0, 150, 300, 450)


def cosines(of: OfSeed, kind: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the cosines of estimates from a training batch before training and later, of all agents: with one
    another (kind "variance") or with the “true” gradient ("convergence")."""
    early, late = [], []
    for x in (x for cells in of.values() for x in cells):
        (late if x["iteration"] else early).append(x[kind]["value network"][x["pairs"].index(TRAINING_BATCH)])
    return early, late


def means(cosines: list[dict[str, Any]], digits: int = 2) -> str:
    return span((x["mean"] for x in cosines), digits)


def gradients() -> dict[str, list[OfSeed]]:
    """Returns what was measured of gradients with the same pairs in all environments."""
    return in_places("noise", FOUR_CHECKPOINTS, PLACES[:2]) | in_places("gradient", places=PLACES[2:])


def hardly_agree(env: str, of: OfSeed) -> Judged:
    early, late = cosines(of, "variance")
    average = float(np.mean([x["mean"] for x in late]))  # each is too uncertain for the largest to say anything
    return (plain(average, 2), means(late), means(early)), 0.2 - average


def zero_or_negative(env: str, of: OfSeed) -> Judged:
    late = cosines(of, "variance")[1]
    observed, negative = sum(x["mean"] <= 0 for x in late), sum(x["interval"][1] < 0 for x in late)
    return (f"{observed} of {len(late)}", str(negative)), observed > 0


def point_to_the_truth(env: str, of: OfSeed) -> Judged:
    early, late = cosines(of, "convergence")
    above = sum(x["interval"][0] > 0 for x in late)
    return (f"{above} of {len(late)}", means(late), means(early)), decided(above > len(late) / 2, False)


def noise_grows(env: str, of: OfSeed) -> Judged:
    pairs = [(noise(x), noise(first)) for first, *later in of.values() for x in later]
    above, below = sum(x[1] > first[2] for x, first in pairs), sum(x[2] < first[1] for x, first in pairs)
    return (f"{above} of {len(pairs)}",), decided(above > len(pairs) / 2 and not below, below > 0)


def about_gradients() -> list[Claim]:
    rows = [
        (
            "a batch's gradients hardly agree",
            "“deep policy gradient methods operate with relatively poor estimates of the gradient” (CL sec. 2.1, "
            "Fig. 1, 9): the cosine of two estimates from 2,048 pairs is below 0.2 on average after iteration 0",
            "near 0",
            "{} ({}); before training {}",
            hardly_agree,
        ),
        (
            "correlations are zero or negative",
            "“we sometimes observe a zero or even negative correlation in the relevant sample regime” (CL sec. 2.1)",
            "",
            "0 or below at {} checkpoints, significantly below at {}",
            zero_or_negative,
        ),
        (
            "… but slightly correlated with the truth",
            "“(very slightly) correlated with the actual, ‘true’ gradient” (BLOG, of “algorithm steps”; CL Fig. 2, "
            "10): the cosine of an estimate with the gradient from 90,000 pairs after iteration 0",
            "",
            "above 0 at {} checkpoints; {}; before training {}",
            point_to_the_truth,
        ),
        (
            "noise grows with training",
            "“gradient estimate quality decays with training progress …” (CL sec. 1, Fig. 1, 2, 9, 10): the noise "
            "scale is larger than before training",
            "",
            "at {} checkpoints",
            noise_grows,
        ),
    ]
    harder = []
    for name, cells in by_agent("gradient/humanoid").items():
        pairs = list(zip(cells, by_agent("gradient/walker2d")[name], strict=True))
        harder.append((name, sum(noise(x)[1] > noise(y)[2] for x, y in pairs), len(pairs)))
    steps = measured("steps/walker2d")
    first_steps, later_steps = ([x["cosine"] for x in steps if (x["iteration"] > 0) == y] for y in (False, True))
    above = sum(x["interval"][0] > 0 for x in later_steps)
    found = [
        *(of_seeds(*row, gradients()) for row in rows),
        of_one_seed(
            "noise grows with task complexity",
            "“… and task complexity” (CL sec. 1): Humanoid's noise scale is above Walker2d's",
            "",
            Humanoid=(
                "; ".join(f"{name} at {known} of {n} checkpoints" for name, known, n in harder),
                decided(all(known == n for _, known, n in harder), False),
            ),
        ),
        of_one_seed(
            "whole steps hardly agree",
            "the cosine of two update steps “often hovers around zero” (TPG sec. 5.1, Fig. 13): it is below 0.1",
            "near 0",
            Walker2d=(
                f"{means(later_steps, 3)}; before training {means(first_steps)}; above 0 at {above} of "
                f"{len(later_steps)} checkpoints",
                decided(max(x["mean"] for x in later_steps) < 0.1),
            ),
        ),
        *about_samples(),
    ]
    return correct(found)


def sample_regime() -> dict[tuple[int, float], np.ndarray]:
    """Returns the final rewards of PPO by the pairs of a batch and the policy's learning rate."""
    settings = measured("samples/rewards")["settings"]
    return {(x["settings"]["num_steps"], x["settings"]["policy_lr"]): np.array(x["finals"]) for x in settings}


def regime_slope(*factors: int) -> Estimate:
    """Returns by least squares what the reward gains in a grid of batch sizes (factor 0) and learning rates (factor 1)
    for 4 times as many pairs, for a learning rate that is 4.5 times as large, or for both beyond the sum of the two."""
    cells = sample_regime()
    levels = np.log(list(cells)) / np.log([4, 20**0.5])
    # In a full grid the centered levels and their product are orthogonal, so that each slope stands alone.
    x = (levels - levels.mean(0))[:, list(factors)].prod(1)
    return Estimate(list(cells.values()), x / (x @ x))


def about_samples() -> list[Claim]:
    both, more = regime_slope(0, 1), regime_slope(0)
    n = min(map(len, sample_regime().values()))
    return [
        Claim(
            "more pairs need a lower learning rate",
            "“better gradient estimates can require lower learning rates …” (CL sec. 5): what 4 times the pairs and "
            "4.5 times the learning rate gain beyond the sum of their effects is below 0",
            "",
            dict(Hopper=tested(both, judge_sign(both, -1), n)),
        ),
        Claim(
            "… and make worse agents",
            "“… and can induce degenerate agent behavior” (CL sec. 5): what 4 times the pairs gain is below 0",
            "",
            dict(Hopper=tested(more, judge_sign(more, -1), n)),
        ),
    ]


# The critic ----------------------------------------------------------------------------------------------------------


LATE = range(100, 488)  # iterations


def errors(of: OfSeed, key: str, number: str = "mean") -> list[float]:
    """Returns the median of a relative error over the checkpoints, of each agent."""
    return [float(np.median([x[key][number] for x in cells])) for cells in of.values()]


def fits_its_targets(env: str, of: OfSeed) -> Judged:
    found = errors(of, "heldout_gae")
    return (span(found, 3),), -over(np.median(found), 0.2)


def is_off_by_half(env: str, of: OfSeed) -> Judged:
    found, of_median_pair = (errors(of, "heldout_released", x) for x in ("mean", "median"))
    texts = span(found, 2), span(of_median_pair, 2), span(errors(of, "heldout_returns"), 2)
    return texts, over(np.median(found), 0.25)


def is_small_on_training_pairs(env: str, of: OfSeed) -> Judged:
    found = errors(of, "train_released")
    return (span(found, 2),), -over(np.median(found), 0.1)


NO_BASELINE, RETURNS = "discounted returns (no baseline)", "returns - true value function"


def compare_baselines(env: str, x: str, y: str) -> tuple[int, int, int]:
    """Counts the checkpoints at which the noise scale with x is known to be below that with y, above it, and all."""
    pairs = [(noise(cell, x), noise(cell, y)) for cell in measured(f"baselines/{env.lower()}")]
    return sum(a[2] < b[1] for a, b in pairs), sum(a[1] > b[2] for a, b in pairs), len(pairs)


def without_baseline() -> Claim:
    agents = labelled_finals("baselines/agents")
    pairs = {name: (agents[f"{name}, no baseline"], agents[name]) for name in ("PPO", "TRPO")}
    text = "; ".join(f"{x} {Estimate(y[:1], (1,))} instead of {Estimate(y[1:], (1,))}" for x, y in pairs.items())
    fifths = judge_all(judge_sign(Estimate(pair, (5, -1)), -1) for pair in pairs.values())
    return Claim(
        "agents without a baseline learn little",
        "“agents trained without a baseline reach almost an order of magnitude worse reward” (CL sec. 2.2): less than "
        "a fifth",
        "",
        dict(Walker2d=tested(text, fifths, min(map(len, agents.values())))),
    )


def about_the_critic() -> list[Claim]:
    rows = [
        (
            "the value network fits its targets",
            "“value networks successfully solve the supervised learning task” (CL sec. 1, Fig. 3, 12): the relative "
            "error held out is below 0.2",
            "small",
            "{}",
            fits_its_targets,
        ),
        (
            "… and is off by half from true returns",
            "“off by about 50% with respect to the underlying true value function” (CL Fig. 3, 12): by more than 0.25",
            "0.5 on Walker2d",
            "{} (median pair {}); {} if cuts are bootstrapped",
            is_off_by_half,
        ),
        (
            "… but not on training pairs",
            "“the returns MRE is quite small as well” on training pairs (CL Fig. 11, TPG Fig. 14): below 0.1",
            "quite small",
            "{}",
            is_small_on_training_pairs,
        ),
    ]
    true, none, clean, little, growing = ({} for _ in range(5))
    for env in ("Walker2d", "Hopper"):
        for into, x, y in (
            (true, "true value function", "value network"),
            (none, "value network", NO_BASELINE),
            (clean, RETURNS, NO_BASELINE),
        ):
            less, more, n = compare_baselines(env, x, y)
            text = f"less noise at {less} of {n} checkpoints" + f", more at {more}" * bool(more)
            into[env] = text, decided(less > n / 2, more > n / 2)
        cells = measured(f"baselines/{env.lower()}")
        network, zero = (
            [x["variance"][baseline][x["pairs"].index(TRAINING_BATCH)] for x in cells]
            for baseline in ("value network", NO_BASELINE)
        )
        gaps = [x["mean"] - y["mean"] for x, y in zip(network, zero)]
        # Both cosines are of the same estimates, so these are the widest ends that the gap's interval can have.
        ends = [
            (x["interval"][0] - y["interval"][1], x["interval"][1] - y["interval"][0]) for x, y in zip(network, zero)
        ]
        little[env] = f"cosines differ by {span(gaps, 2)}", decided(max(map(abs, gaps)) < 0.1, False)
        growing[env] = (
            "by {:.2f}, {:.2f}, {:.2f}".format(*gaps).replace("-", "−"),
            decided(ends[-1][1] < ends[0][0], ends[-1][0] > ends[0][1]),
        )
    found = [
        *(of_seeds(*row, in_places("values", LATE)) for row in rows),
        of_one_seed(
            "a “true” V has much less noise",
            "“the ‘true’ value function yields a much lower-variance estimate” (CL sec. 2.2, Fig. 4)",
            "",
            **true,
        ),
        of_one_seed(
            "the network has less than no baseline",
            "“a noticeable variance reduction compared to the zero baseline function” (CL Fig. 4), whose returns "
            "have lambda 1, not 0.95",
            "",
            **none,
        ),
        of_one_seed(
            "… also at the same lambda",
            "our control: returns minus the “true” V against returns, both with lambda 1",
            "",
            **clean,
        ),
        of_one_seed(
            "… which looks small at 2,048 pairs",
            "“this difference may appear rather small in the small-sample regime (2K)” (CL Fig. 4): the cosines "
            "differ by less than 0.1",
            "",
            **little,
        ),
        of_one_seed(
            "networks help no more as training goes on",
            "“we might expect these networks to help gradient estimates more as training progresses, contrary to "
            "what we observe” (CL sec. 2.1): the cosine with the network minus that without a baseline, 2,048 pairs, "
            "is smaller at 450 than at 150",
            "",
            **growing,
        ),
        without_baseline(),
    ]
    return correct(found)


# The surrogate -------------------------------------------------------------------------------------------------------

FEW, MANY, FAR = 2000, 50_000, 3.0  # pairs that a step is computed from; the last of the steps along its direction


Steps = dict[tuple[str, int], dict[tuple[float, float], dict[str, Any]]]


def steps_of(of: OfSeed) -> Steps:
    """Returns a landscape's cells by agent and pairs, and by steps along the step and along the random direction."""
    found = {}
    for name, cells in of.items():
        for x in cells:
            found.setdefault((name, x["step_pairs"]), {})[x["step"], x["random"]] = x
    return found


def judge_change(change: dict[str, Any], sign: int) -> str:
    low, high = change["interval"]
    return decided(low > 0 if sign > 0 else high < 0, high < 0 if sign > 0 else low > 0)


def both_rise(env: str, of: OfSeed) -> Judged:
    steps = [x[1.0, 0.0] for x in steps_of(of).values()]
    both = sum(x["surrogate"] > 0 and x["change"]["interval"][0] > 0 for x in steps)
    return (f"{both} of {len(steps)}",), decided(both == len(steps), False)


def beats_a_random_direction(env: str, of: OfSeed) -> Judged:
    pairs = [(x[1.0, 0.0]["change"]["interval"], x[0.0, 1.0]["change"]["interval"]) for x in steps_of(of).values()]
    wins = sum(step[0] > random[1] for step, random in pairs)
    return (f"{wins} of {len(pairs)}",), decided(wins == len(pairs), False)


def shorter(of: OfSeed) -> list[float]:
    """Returns how many times each step is shorter than the random direction, whose norm is 2."""
    return [2 / x[1.0, 0.0]["step_norm"] for x in steps_of(of).values()]


def is_a_tenth(env: str, of: OfSeed) -> Judged:
    middle = np.median(shorter(of))
    return (f"{middle:.0f}", span(shorter(of))), over(middle, 5)


def changes_reward(env: str, of: OfSeed, name: str, pairs: int, sign: int) -> Judged:
    change = steps_of(of)[name, pairs][FAR, 0.0]["change"]
    return (show_dict(change),), judge_change(change, sign)


def about_landscapes() -> list[Claim]:
    starts = {env: by_seed(f"landscapes/{env.lower()}_start") for env in PLACES[:2]}
    late, halfway = in_places("landscapes", [300]), in_places("landscapes", [150], PLACES[:2])
    found = [
        of_seeds(
            "early, surrogate and reward rise together",
            "“in the early stages of training, the optimization landscapes … are indeed approximately aligned” (CL "
            "sec. 2.3, Fig. 15 to 18), at iteration 0",
            "",
            "both rise along {} steps",
            both_rise,
            starts,
        ),
        of_seeds(
            "early, the step beats a random direction",
            "“the return increases significantly more quickly along the step direction than in the random direction” "
            "(BLOG), at iteration 0",
            "",
            "along {} steps",
            beats_a_random_direction,
            starts,
        ),
    ]
    misled = "“directions that increase the surrogate objective lead to a decrease of the true reward”"
    for name, pairs, sign, short, words in (
        (
            "TRPO",
            FEW,
            -1,
            "late, TRPO's step from few pairs lowers it",
            f"{misled} (CL sec. 2.3, Fig. 16, 18): TRPO, few pairs",
        ),
        (
            "TRPO",
            MANY,
            1,
            "… and from many pairs raises it",
            "TRPO's step from many pairs “matches the true reward much more closely” (CL sec. 2.3, Fig. 16, 18)",
        ),
        (
            "PPO",
            FEW,
            -1,
            "late, PPO's step from few pairs lowers it",
            f"{misled} (CL sec. 2.3, Fig. 15, 17): PPO, few pairs",
        ),
        (
            "PPO",
            MANY,
            -1,
            "… and from many pairs lowers it, too",
            "“for PPO we consistently observe landscapes where the step direction leads to lower true reward, even "
            "in the high-sample regime” (CL sec. 2.3, Fig. 15, 17)",
        ),
        ("PPO-M", MANY, -1, "… and so does PPO-M's", "“(and PPO-M)” (TPG sec. 5.3, Fig. 21, 24), many pairs"),
    ):
        judge = functools.partial(changes_reward, name=name, pairs=pairs, sign=sign)
        claim = of_seeds(short, words, "10^6 pairs" if pairs == MANY else "", "{}", judge, late)
        for env, of in halfway.items():
            found_there = [judge(env, x)[1] for x in of]
            so, opposite = (sum(x == verdict for x in found_there) for verdict in (HOLDS, NOT))
            fall, rise = (so, opposite) if sign < 0 else (opposite, so)
            claim.cells[env].text += f"; at 150 it falls in {fall} of {len(of)}, rises in {rise}"
        found.append(claim)
    tenth = of_seeds(
        "a step is a tenth of the random direction",
        "“typically an order of magnitude lower than the random direction” (CL Fig. 5): the median step at iteration "
        "300 is at least 5 times shorter",
        "10 times",
        "{} times ({})",
        is_a_tenth,
        late,
    )
    for env, of in starts.items():
        tenth.cells[env].text += f"; at 0 {', '.join(span(shorter(x)) for x in of)} times"
    return correct([*found, tenth])


# Five algorithms -----------------------------------------------------------------------------------------------------


def through_training() -> tuple[dict, dict]:
    """Returns what GUIDE's five algorithms did on HalfCheetah-v4: the returns of both seeds by million steps, and the
    mean KL of an iteration from 1M steps on."""
    returns, kls = {}, {}
    for x in sorted(measured("guide/evaluate"), key=lambda x: x["run"]):
        returns.setdefault(x["algo"], {}).setdefault(round(x["global_step"] / 1e6), []).append(x["returns"]["mean"])
    for x in measured("guide/rewards")["settings"]:
        kl, steps = np.array(x["kl"]["mean"]), np.array(x["kl"]["steps"])
        kls[x["algo"]] = kl[steps > 1e6]
    return returns, kls


GUIDE = dict(reinforce="REINFORCE", a2c="A2C", trpo_plus="TRPO", ppo="PPO", vmpo="V-MPO")


def about_algorithms() -> list[Claim]:
    returns, kls = through_training()
    ends = {algo: x[8] for algo, x in returns.items()}

    def both(algo: str, million: int = 8) -> str:
        return f"{GUIDE[algo]} {', '.join(map(plain, returns[algo][million]))}"

    def order(above: Callable[[int], bool]) -> str:
        """Returns whether a statement about a seed is so in both, in none, or in one of them."""
        return decided(above(0) and above(1), not above(0) and not above(1))

    first = order(lambda i: ends["ppo"][i] == max(x[i] for x in ends.values()))
    last = order(lambda i: ends["reinforce"][i] == min(x[i] for x in ends.values()))
    reach = {
        algo: [min(m for m in range(9) if returns[algo][m][i] > ends["a2c"][i]) for i in (0, 1)]
        for algo in ("trpo_plus", "vmpo")
    }
    ratio = {algo: float(x.max() / x.min()) for algo, x in kls.items()}
    spread = {algo: float(np.log(x).std(ddof=1)) for algo, x in kls.items()}
    beyond = int((kls["vmpo"] > 0.01).sum())
    low = {algo: kls[algo].max() for algo in ("a2c", "reinforce")}
    table = [both("ppo", m).removeprefix("PPO ") for m in (1, 8)]
    largest = ", ".join(f"{GUIDE[x]} {two_digits(y)}" for x, y in sorted(ratio.items(), key=lambda x: x[1]))
    rows = [
        (
            "PPO outperforms the others",
            "“PPO outperforms the other algorithms in three of four tasks” (GUIDE Fig. 4): return at 8M steps",
            "HalfCheetah is one of the three",
            f"{both('ppo')}; {both('vmpo')}; {both('trpo_plus')}; {both('a2c')}; {both('reinforce')}",
            first,
        ),
        (
            "PPO reaches what GUIDE's reaches",
            "its Table 3, at 1M and at 8M steps",
            "4332; 6414",
            f"{table[0]} at 1M; {table[1]} at 8M",
            decided(min(returns["ppo"][8]) > 0.9 * 6414 and min(returns["ppo"][1]) > 0.9 * 4332, False),
        ),
        (
            "V-MPO and TRPO are comparable",
            "“comparable in performance” (GUIDE Fig. 4)",
            "",
            f"{both('vmpo')}; {both('trpo_plus')}",
            UNCLEAR,
        ),
        (
            "A2C takes more steps than V-MPO and TRPO",
            "“A2C requires more interactions … to reach similar performance levels” (GUIDE sec. 6)",
            "",
            "what A2C has at 8M, TRPO has at {}M, {}M, V-MPO at {}M, {}M".format(*reach["trpo_plus"], *reach["vmpo"]),
            order(lambda i: max(x[i] for x in reach.values()) < 8),
        ),
        ("REINFORCE is the worst", "“worst on all environments” (GUIDE sec. 6)", "", both("reinforce"), last),
        (
            "the KL stays constant for all",
            "“relatively constant for all algorithms after some initial movement” (GUIDE Fig. 5): the largest over the "
            "smallest mean KL after 1M steps is below 3",
            "",
            largest,
            decided(max(ratio.values()) < 3),
        ),
        (
            "V-MPO's KL varies slightly more than TRPO's",
            "“slightly more variance then TRPO” (GUIDE sec. 6): the standard deviation of its logarithm",
            "",
            f"V-MPO {spread['vmpo']:.3f}, TRPO {spread['trpo_plus']:.3f}",
            decided(spread["vmpo"] > spread["trpo_plus"]),
        ),
        (
            "V-MPO's KL exceeds its bound",
            "“also frequently exceeds this bound” (GUIDE sec. 6), 0.01 nats",
            "",
            f"at {beyond} of {len(kls['vmpo'])} places",
            decided(beyond > len(kls["vmpo"]) / 4),
        ),
        (
            "A2C's and REINFORCE's KL are far lower",
            "“orders of magnitudes lower than for the other algorithms” (GUIDE sec. 6): a tenth of TRPO's at most",
            "",
            "; ".join(f"{GUIDE[x]} at most {two_digits(low[x])}" for x in low)
            + f"; TRPO at least {two_digits(kls['trpo_plus'].min())} nats",
            decided(max(low.values()) < kls["trpo_plus"].min() / 10),
        ),
    ]
    found = [Claim(a, b, c, dict(HalfCheetah=Cell(text, verdict, 2))) for a, b, c, text, verdict in rows]
    return correct(found + about_entropy() + about_epochs())


DRASTIC = 10  # times the largest mean KL of an iteration: what the page calls a collapse


def changed_runs(name: str) -> dict[tuple[str, float], tuple[np.ndarray, np.ndarray]]:
    """Returns the return of each run's last checkpoint and its largest mean KL of an iteration, both [seeds], by
    algorithm and by the argument in which the runs differ. Returns are of 10 episodes that act with the policy's mean,
    as in GUIDE."""
    argument = dict(entropy="entropy_coef", epochs="policy_epochs")[name]
    ends = {x["run"]: x["returns"]["mean"] for x in measured(f"guide/{name}_evaluate")}  # of last checkpoints alone
    settings = measured(f"guide/{name}")["settings"]
    return {
        (x["algo"], x["settings"][argument]): (np.array([ends[y] for y in x["folders"]]), np.array(x["largest_kl"]))
        for x in settings
    }


def judge_all(judged: Iterable[tuple[str, float]]) -> tuple[str, float]:
    """Judges a claim that says several things: it holds if all hold, and does not if one does not."""
    verdicts, ps = zip(*judged)
    if NOT in verdicts:
        return NOT, min(p * len(ps) for verdict, p in zip(verdicts, ps) if verdict == NOT)
    return (HOLDS if set(verdicts) == {HOLDS} else UNCLEAR), max(ps)


Runs = tuple[np.ndarray, np.ndarray]  # returns and largest KLs, as from changed_runs


def least_seeds(pairs: dict[str, tuple[Runs, Runs]]) -> int:
    return min(len(returns) for pair in pairs.values() for returns, _ in pair)


def compare_kls(pairs: dict[str, tuple[Runs, Runs]]) -> Cell:
    """Judges whether the largest KL is drastically larger in the first runs of each pair than in the second."""
    kls = {name: [kl for _, kl in pair] for name, pair in pairs.items()}
    text = "; ".join(
        f"{name} {span_of_two_digits(x)} instead of {span_of_two_digits(y)}" for name, (x, y) in kls.items()
    )
    ratios = [Estimate([np.log(kl) for kl in pair], (1, -1)) for pair in kls.values()]
    return tested(text, judge_all(judge_sign(x, bound=np.log(DRASTIC)) for x in ratios), least_seeds(pairs))


def compare_returns(pairs: dict[str, tuple[Runs, Runs]], sign: int) -> Cell:
    """Judges whether the return of the first runs of each pair is above that of the second, or below with sign -1."""
    gains = {name: Estimate([of for of, _ in pair], (1, -1)) for name, pair in pairs.items()}
    text = "; ".join(f"{name} {x}" for name, x in gains.items())
    return tested(text, judge_all(judge_sign(x, sign) for x in gains.values()), least_seeds(pairs))


def span_of_two_digits(x: np.ndarray) -> str:
    return f"{two_digits(x.min())} to {two_digits(x.max())}"


def about_entropy() -> list[Claim]:
    """GUIDE's Fig. 6."""
    of = changed_runs("entropy")
    with_bonus = {f"{x:g}:": (of["a2c", x], of["a2c", 0.1]) for x in (0.01, 0)}
    rows = [
        (
            "an entropy bonus helps A2C",
            "“an entropy bonus improves the performance of A2C …” (GUIDE Fig. 6): coefficients of 0.01 and 0 minus "
            "0.1, 2M steps",
            compare_returns(with_bonus, -1),
        ),
        (
            "… and without it the KL explodes",
            "“… insufficiently low values … result in a collapse …, visible in a drastic increase in the KL” (GUIDE "
            f"Fig. 6): the largest of an iteration is more than {DRASTIC} times that with 0.1",
            compare_kls(with_bonus),
        ),
    ]
    return [Claim(short, words, "", dict(HalfCheetah=cell)) for short, words, cell in rows]


def about_epochs() -> list[Claim]:
    """GUIDE's Fig. 7."""
    of = changed_runs("epochs")
    five, two = ({GUIDE[x]: (of[x, n], of[x, 1]) for x in ("a2c", "reinforce")} for n in (5, 2))
    one = {GUIDE[x]: Estimate([of[x, 1][0]], (1,)) for x in ("a2c", "reinforce")}
    useless = judge_all(judge_sign(x, -1, 4332 / 10) for x in one.values())
    rows = [
        (
            "five epochs make A2C's and REINFORCE's KL explode",
            "with five epochs “the policies collapse for both algorithms as visible by the diverging KL …” (GUIDE Fig. "
            f"7): the largest of an iteration, in nats, is more than {DRASTIC} times that with one",
            compare_kls(five),
        ),
        (
            "… and their reward fall",
            "“… and abrupt performance loss” (GUIDE Fig. 7): five epochs minus one, 1M steps",
            compare_returns(five, -1),
        ),
        (
            "… and so do two",
            "“already when only using two epochs, albeit the policies then only collapse after an extended period of "
            "time” (GUIDE B.3): the KL as above, 1M steps",
            compare_kls(two),
        ),
        (
            "with one epoch nothing is learned in 1M",
            "“do not yet learn any useful policies when using a single epoch” (GUIDE B.3): at 1M steps less than a "
            "tenth of its PPO's 4332",
            tested("; ".join(f"{name} {x}" for name, x in one.items()), useless, least_seeds(five)),
        ),
    ]
    return [Claim(short, words, "", dict(HalfCheetah=cell)) for short, words, cell in rows]


QUESTIONS = {
    "What is the reward due to?": about_the_step,
    "Does PPO need its clipping?": about_clipping,
    "What is each of the nine worth?": about_the_nine,
    "How far does a step go?": about_steps,
    "Do gradient estimates mean anything?": about_gradients,
    "What is the critic good for?": about_the_critic,
    "Does the surrogate know the reward?": about_landscapes,
    "How do five algorithms compare?": about_algorithms,
}


@functools.cache
def all_claims() -> dict[str, list[Claim]]:
    return {question: about() for question, about in QUESTIONS.items()}


# Tables --------------------------------------------------------------------------------------------------------------


def name_verdict(cell: Cell) -> str:
    few = f" ({cell.seeds} seed{'s' * (cell.seeds > 1)})" if cell.seeds < 4 else ""
    return f"{cell.verdict}{' alone, not after Holm' * cell.alone}{few}"


def table(claims: list[Claim]) -> str:
    """Writes the claims of a question as a table in Markdown."""
    places = [x for x in ENVIRONMENTS if any(x in claim.cells for claim in claims)]
    with_paper = any(claim.paper for claim in claims)
    lines = [["claim", *(["the paper"] if with_paper else []), *places, "verdict"]]
    lines.append(["---"] * len(lines[0]))
    for claim in claims:
        found = {}
        for place, cell in claim.cells.items():
            found.setdefault(name_verdict(cell), []).append(place)
        verdict = next(iter(found)) if len(found) == 1 else "; ".join(f"{', '.join(y)}: {x}" for x, y in found.items())
        texts = [claim.cells[x].text if x in claim.cells else "" for x in places]
        lines.append([claim.words, *([claim.paper] if with_paper else []), *texts, f"**{verdict}**"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_tables(page: str) -> str:
    """Returns the page with each table between its two marks."""
    tables = {str(i): table(claims) for i, claims in enumerate(all_claims().values(), 1)} | dict(levels=levels())
    for name, text in tables.items():
        begin, end = f"<!-- table {name}, written by claims.py -->\n", "\n<!-- end -->"
        before, found, rest = page.partition(begin)
        assert found and end in rest, f"README.md has no place for table {name}"
        page = f"{before}{begin}\n{text}\n{rest[rest.index(end) :]}"
    return page


# Pictures ------------------------------------------------------------------------------------------------------------

# Marks and shades both tell the verdicts apart, so that the picture can be read in greyscale.
LOOKS = {HOLDS: ("#1b7837", "white", "✓"), NOT: ("#f1a340", "black", "✗"), UNCLEAR: ("#e3e3e3", "black", "?")}
ALONE = {HOLDS: "#a6dba0", NOT: "#fee0b6"}  # decided alone, but not after Holm's correction


def draw_claims(path: Path) -> None:
    rows = [(question, x) for question, claims in all_claims().items() for x in (None, *claims)]
    figure, axis = plt.subplots(figsize=(8.6, 0.2 * len(rows) + 0.9))
    for y, (question, claim) in enumerate(rows):
        if claim is None:
            axis.text(-4.9, y, question, weight="bold", va="center", fontsize=9)
            continue
        axis.text(-4.8, y, claim.short, va="center", fontsize=8.5)
        for x, place in enumerate(ENVIRONMENTS):
            cell = claim.cells.get(place)
            face, ink, mark = LOOKS[cell.verdict] if cell else ("white", "black", "")
            if cell and cell.alone:
                face, ink, mark = ALONE[cell.verdict], "black", f"({mark})"
            axis.add_patch(plt.Rectangle((x - 0.48, y - 0.42), 0.96, 0.84, facecolor=face, edgecolor="#999999", lw=0.5))
            if cell:
                axis.text(x, y + 0.06, f"{mark} {cell.seeds}", color=ink, ha="center", va="center", fontsize=8.5)
    for x, place in enumerate(ENVIRONMENTS):
        axis.text(x, -1, place, ha="center", va="center", fontsize=9)
    alone = ("holds alone, not after Holm", (ALONE[HOLDS], "black", "(✓)"))
    looks = [*LOOKS.items(), alone, ("not measured", ("white", "black", ""))]
    for left, (verdict, (face, ink, mark)) in zip((-4.85, -3.75, -2.15, -0.7, 2.2), looks):
        axis.add_patch(plt.Rectangle((left, -2.7), 0.4, 0.8, facecolor=face, edgecolor="#999999", lw=0.5))
        axis.text(left + 0.2, -2.24, mark, color=ink, ha="center", va="center", fontsize=8.5)
        axis.text(left + 0.5, -2.3, verdict, va="center", fontsize=8.5)
    axis.set(xlim=(-5, len(ENVIRONMENTS) - 0.4), ylim=(len(rows), -3.2))
    axis.axis("off")
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


EFFECTS = {
    "optimizations, main effect": (OPTIMIZATIONS, FOUR),
    "step, main effect": (STEP, FOUR),
    "interaction": (INTERACTION, FOUR),
    "PPO − PPO-M": ((1, -1), ("PPO", "PPO-M")),
    "TRPO+ − TRPO": ((1, -1), ("TRPO+", "TRPO")),
    "PPO − TRPO+": ((1, -1), ("PPO", "TRPO+")),
    "PPO-M − TRPO": ((1, -1), ("PPO-M", "TRPO")),
    "PPO − PPO-NoClip": ((1, -1), ("PPO", "PPO-NoClip")),
    "PPO-NoClip − PPO-M": ((1, -1), ("PPO-NoClip", "PPO-M")),
}


def draw_effects(path: Path) -> None:
    """Draws the forest plot: effects and differences with 95 % intervals, ours and the paper's."""
    figure, axes = plt.subplots(1, 3, figsize=(9.2, 4.6), sharey=True)
    for axis, place in zip(axes, PLACES):
        axis.axvspan(-margin(place), margin(place), color="#eeeeee", lw=0)
        axis.axvline(0, color="black", lw=0.8)
        for y, (weights, names) in enumerate(EFFECTS.values()):
            x, paper = effect(place, weights, names), in_paper(place, weights, names)
            axis.plot(x.interval(), [y - 0.14] * 2, color="#08519c", lw=2)
            axis.plot(x.mean, y - 0.14, "o", color="#08519c", ms=6, label="here" if y == 0 else None)
            axis.plot(paper[1:], [y + 0.18] * 2, color="#888888", lw=1.2)
            label = "the paper (-v2, 80 agents or more)" if y == 0 else None
            axis.plot(paper[0], y + 0.18, "D", color="white", mec="#666666", ms=5, label=label)
        counts = {seeds(place, *names) for _, names in EFFECTS.values()}
        axis.set_title(f"{place}-v4, {' or '.join(map(str, sorted(counts)))} seeds", fontsize=10)
        axis.set_xlabel("difference of final rewards", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(range(len(EFFECTS)), EFFECTS, fontsize=9)
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=2, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    page = FIGURES / "README.md"
    page.write_text(with_tables(page.read_text()))
    draw_claims(FIGURES / "claims.png")
    draw_effects(FIGURES / "clipping" / "effects.png")


if __name__ == "__main__":
    main()
