"""Whether the reward landscape is jagged (CL's Fig. 5, 19, 20), by protocol.md."""

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from claims import HOLDS, UNCLEAR, Cell, Cells, room
from estimates import Estimate, bootstrap, in_percent, measured, plain, span
from matplotlib.figure import Figure
from pictures import forest, new_figure
from planned import Tests, by_run, holm
from scipy import stats

ALONG, CHECKPOINTS = {"step": "along the step", "random": "along a random direction"}, (150, 300)
NOT_CLS = "CL draws it for Humanoid, and half of the runs are of `ppo.py`"
PAIRS, SMOOTH = 40_000, 100  # pairs a point; the J below which a landscape is called smooth


def returns(row: dict[str, Any], along: str, pairs: int) -> np.ndarray:
    """Returns R [points, seeds] along the step or the random direction, of as many seeds as have so many pairs."""
    line = [x for x in row["points"] if x["random" if along == "step" else "step"] == 0]
    line = sorted(line, key=lambda x: x[along])
    seeds = max(2, round(pairs * line[0]["episodes"] / line[0]["pairs"]))
    return np.array([x["returns"] for x in line])[:, :seeds]


def bends(x: np.ndarray) -> np.ndarray:
    """Returns how far each point of x [points, n] but the ends lies from the mean of its neighbours, so that a slope
    counts for nothing. For independent points it has 1.5 times their variance."""
    return x[1:-1] - (x[:-2] + x[2:]) / 2


def ruggedness(x: np.ndarray) -> tuple[float, float]:
    """Returns the apparent ruggedness A of R [points, seeds], and N, that by noise alone."""
    d = bends(x)
    return np.mean(d.mean(1) ** 2) / 1.5, np.mean(d.var(1, ddof=1) / x.shape[1]) / 1.5


def apparent(row: dict[str, Any], along: str, pairs: int) -> float:
    return ruggedness(returns(row, along, pairs))[0]


def jaggedness(row: dict[str, Any], along: str, pairs: int = PAIRS, spacing: int = 1) -> float:
    """Returns J², whose expectation has no noise of episodes: tau² where true rewards scatter independently around a
    line with standard deviation tau. It may come out negative."""
    shown, noise = ruggedness(returns(row, along, pairs)[::spacing])
    return shown - noise


def scatter(row: dict[str, Any], along: str) -> float:
    """Returns Q, which is above 0 where points scatter and below 0 where they lie on a smooth curve."""
    return jaggedness(row, along) - jaggedness(row, along, spacing=2) / 4


def over_runs(number: Callable, *of: Any, at: Iterable[int] = CHECKPOINTS, **only: str) -> dict[str, np.ndarray]:
    """Returns a number of each run, which is its mean over these checkpoints, by environment."""
    rows = [x for x in measured("jagged/rows") if x["iteration"] in at and only.items() <= x.items()]
    return {place: np.array([*x.values()]) for place, x in by_run(rows, lambda row: number(row, *of)).items()}


def tests(number: Callable = jaggedness) -> Tests:
    return {says: {x: Estimate([y]) for x, y in over_runs(number, along).items()} for along, says in ALONG.items()}


def verdict(j: Estimate, q: Estimate, stands: bool) -> str:
    """Applies the protocol's rule, where `stands` says whether J² differs from 0 after Holm."""
    if stands and j.mean > 0:
        return "jagged" if q.interval()[0] > 0 else "curved"
    return f"smooth within {SMOOTH}" if j.interval(0.9)[1] < SMOOTH**2 else "cannot tell"


def cases() -> Iterable[tuple[str, str, Estimate, Estimate, str]]:
    """Yields each environment and line with its J², its Q and the verdict."""
    of, qs, stands = tests(), tests(scatter), holm(tests())
    for place, (along, says) in itertools.product(of[ALONG["step"]], ALONG.items()):
        j, q = of[says][place], qs[says][place]
        yield place, along, j, q, verdict(j, q, stands[says][place])


def by_noise(place: str, along: str, pairs: int) -> dict[str, Any]:
    """Returns the share of what so many pairs show that noise explains, 1 − J²(40,000) / A, with a BCa interval."""
    true, shown = over_runs(jaggedness, along)[place], over_runs(apparent, along, pairs)[place]
    share = lambda runs: 1 - true[runs.astype(int)].mean(-1) / shown[runs.astype(int)].mean(-1)
    return bootstrap(share, np.arange(len(true)))  # draws runs, each with both of its numbers


def resampled(place: str, along: str, tau: float, draws: int) -> np.ndarray:
    """Returns J² [draws, runs] as it would come out if the true rewards scattered with standard deviation tau around a
    line. The episodes are the measured ones, drawn again by seed, without the differences between points."""
    rng, of_runs = np.random.default_rng(0), {}
    for row in [x for x in measured("jagged/rows") if x["env_id"].startswith(place)]:
        x = returns(row, along, PAIRS)
        d, n = bends(x), x.shape[1]
        d = (d - d.mean(1, keepdims=True)) * (n / (n - 1)) ** 0.5  # drawing from n values loses this much variance
        weights = rng.multinomial(n, np.full(n, 1 / n), draws) / n
        means = weights @ d.T
        noise = (weights @ (d**2).T - means**2) / (n - 1)
        scattered = means + bends(rng.normal(0, tau, (len(x), draws))).T
        of_runs.setdefault((row["algo"], row["run_seed"]), []).append((scattered**2 - noise).mean(1) / 1.5)
    return np.transpose([np.mean(x, 0) for x in of_runs.values()])


@functools.cache
def chance(place: str, along: str, tau: float = 0, draws: int = 10_000) -> float:
    """Returns how often the mean J² would be as low as the measured one if the true rewards scattered with tau."""
    return np.mean(resampled(place, along, tau, draws).mean(1) <= tests()[ALONG[along]][place].mean).item()


def chance_at_limit() -> float:
    """Returns the largest such chance of the four cases if J were the limit."""
    return max(chance(place, along, SMOOTH, 1000) for place, along, *_ in cases())


@functools.cache
def wrongly_smooth() -> list[float]:
    """Returns for each case how often the rule would call a landscape smooth whose J is the limit."""
    ends = lambda place, along: [Estimate([x]).interval(0.9)[1] for x in resampled(place, along, SMOOTH, 1000)]
    return [np.mean(np.array(ends(place, along)) < SMOOTH**2).item() for place, along, *_ in cases()]


def table_of_cases() -> Iterable[list[str]]:
    """Yields each case with its verdict, and with the share of what few pairs show that is noise."""
    yield ["", "J²", "J", "Q", "verdict", "noise, of what 2,000 pairs show", "of 10,000"]
    for place, along, j, q, judged in cases():
        row = [str(j), plain(np.sign(j.mean) * abs(j.mean) ** 0.5), str(q), judged]
        yield [f"{place}, {ALONG[along]}", *row, *(in_percent(by_noise(place, along, x)) for x in (2000, 10_000))]


def smooth() -> Cells:
    """Judges whether the landscape is smooth along both lines. The p-value is the larger one, of J² ≥ 100²."""
    found = {}
    for place, _, j, _, judged in cases():
        found.setdefault(place, []).append((j, judged))
    cells = {}
    for place, ((step, one), (random, other)) in found.items():
        p = max(float(stats.t.sf((SMOOTH**2 - x.mean) / x.error, x.freedom)) for x in (step, random))
        text = f"J² is {step} along the step and {random} along a random direction"
        so = one == other == f"smooth within {SMOOTH}"
        cells[place] = Cell(text, HOLDS if so else UNCLEAR, step.seeds, p, unlike=NOT_CLS)
    return cells


def judge_all() -> dict[str, Cells]:
    """Judges each row of the page's tables, in their order."""
    return {
        "CL: the reward's landscape is smooth within 100": smooth(),
    }


def excluded(place: str) -> float:
    """Returns the J above which nothing lies in the 95 % intervals of both lines."""
    return max(of[place].interval()[1] for of in tests().values()) ** 0.5


def seeming(place: str) -> float:
    """Returns the standard deviation with which points along the step seem to scatter, from 2,000 pairs."""
    return over_runs(apparent, "step", 2000)[place].mean() ** 0.5


def table_of_parts() -> Iterable[list[str]]:
    """Yields J² by algorithm and by checkpoint, and at iteration 0, from 10,000 pairs, as a description."""
    yield ["", "PPO", "TRPO", "TRPO − PPO", *(f"iteration {x}" for x in CHECKPOINTS), "iteration 0, of each run"]
    for along, says in ALONG.items():
        ppo, trpo = (over_runs(jaggedness, along, algo=x) for x in ("ppo", "trpo_plus"))
        at = [over_runs(jaggedness, along, at=[x]) for x in CHECKPOINTS]
        start = by_run(measured("jagged/start"), lambda row, along=along: row["jaggedness"][along])
        for x in ppo:
            of = [Estimate([ppo[x]]), Estimate([trpo[x]]), Estimate([trpo[x], ppo[x]], (1, -1))]
            of += [Estimate([y[x]]) for y in at]
            yield [f"{x}, {says}", *map(str, of), span(start[x].values(), 2)]


def drawn() -> Figure:
    """Draws J² in the four cases, with a dot for each run, on an axis that has its root, and the J of the rule."""
    figure = forest({"": tests()}, "J, of which J² is estimated, 95 % interval; dots are runs", [0], dots=True)
    [axis] = figure.axes
    axis.set_xscale("function", functions=(lambda x: np.sign(x) * abs(x) ** 0.5, lambda x: np.sign(x) * x**2))
    ticks = (-100, -50, 0, 50, 100, 150)
    axis.set_xticks(
        [np.sign(x) * x**2 for x in ticks], ["J² < 0" if x == -50 else "" if x < 0 else str(x) for x in ticks]
    )
    axis.axvline(SMOOTH**2, color="black", lw=0.9, ls="--", label=f"J = {SMOOTH}, the limit of smooth")
    return figure


def drawn_landscape() -> Figure:
    """Draws the rewards of the first run of each algorithm along both lines, as few pairs a point show them and as many
    do (CL Fig. 5)."""
    rows = {(x["env_id"], x["algo"], x["iteration"]): x for x in measured("jagged/rows") if x["run_seed"] == 201}
    columns = sorted({(env_id, algo) for env_id, algo, _ in rows})
    panels = [(along, iteration) for along in ALONG for iteration in CHECKPOINTS]
    figure, axes = new_figure(len(panels), len(columns), 1.5 * len(panels) + 0.5, sharex=True, sharey="col")
    for (along, iteration), of_row in zip(panels, axes):
        of_row[0].set_ylabel(f"{ALONG[along][6:]},\niteration {iteration}", fontsize=8)
        for axis, (env_id, algo) in zip(of_row, columns):
            for pairs, style in {2000: dict(color="0.6", lw=1), PAIRS: dict(color="black", lw=1.8)}.items():
                found = returns(rows[env_id, algo, iteration], along, pairs).mean(1)
                axis.plot(np.arange(len(found)) / 4, found, label=f"from {pairs:,} pairs a point", **style)
            axis.tick_params(labelsize=8)
    for axis, (env_id, algo) in zip(axes[0], columns):
        axis.set_title(f"{env_id}, {dict(ppo='PPO', trpo_plus='TRPO')[algo]}", fontsize=9)
    figure.supxlabel("steps from 2,048 pairs, or units of a norm of 2", fontsize=9)
    figure.supylabel("mean return", fontsize=9)
    return figure


def concentration():
    """Draws CL's Fig. 5 with one run of `ppo.py`: the surface of the reward from more and more pairs a point."""
    landscapes, rows = room("landscapes"), measured("jagged/concentration")
    surfaces = landscapes.landscape.concentrations(rows)
    look = dict(subplot_kw=dict(projection="3d", computed_zorder=False))
    figure, [axes] = new_figure(1, len(surfaces), 3.2, **look)
    for axis, surface in zip(axes, surfaces):
        landscapes.draw_small(axis, surface, surfaces)
        axis.set_title(surface.title, fontsize=9, y=0.98)
    return figure


PICTURES = dict(concentration=concentration, jaggedness=drawn, landscape=drawn_landscape)
