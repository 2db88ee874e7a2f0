"""What ten seeds say of steps, gradient estimates and values, by protocol.md."""

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from claims import FIGURES, HOLDS, NOT, UNCLEAR, Cell, Cells
from estimates import Estimate
from matplotlib.figure import Figure
from pictures import STYLES, new_figure
from planned import Tests, holm
from protocols import PARTS, by_agent, rows_of, whole

sys.path.append(str(FIGURES.parent / "diagnostics"))

import gradient  # noqa: E402
import value  # noqa: E402

PLACES, BATCH = ("Walker2d", "Hopper"), 2048
BOUNDS = dict(Hopper=0.13, Walker2d=0.04)  # TRPO's, on the mean KL
PPO, PPO_M, TRPO = AGENTS = "CL-PPO", "PPO-M", "TRPO"
LATER = 150, 300, 450


# What is read of a seed ----------------------------------------------------------------------------------------------


class Seed(NamedTuple):
    """The runs of one seed in a task, by agent."""

    bound: float  # of TRPO's mean KL
    lines: dict[str, dict[str, Any]]

    def steps(self, agent: str, name: str) -> np.ndarray:
        """Returns what training logged of the twenty steps."""
        return np.array(self.lines[agent][name], float)

    def rows(self, diagnostic: str, *agents: str) -> list[dict[str, Any]]:
        """Returns a diagnostic's rows of these agents, or of all."""
        return rows_of([self.lines[x] for x in agents or AGENTS], diagnostic)

    def later(self, diagnostic: str) -> list[dict[str, Any]]:
        return [row for row in self.rows(diagnostic) if row["iteration"] in LATER]


@functools.cache
def seeds(place: str) -> list[Seed]:
    """Returns the seeds of a task, but for those of which a number stopped a run."""
    found = {}
    for line in whole("ten-seeds"):
        if line["env_id"].startswith(place):
            found.setdefault(line["seed"], {})[line["agent"]] = line
    return [Seed(BOUNDS[place], x) for x in found.values() if not any(line["stopped"] for line in x.values())]


def quarters(kl: np.ndarray) -> tuple[float, float, float]:
    """Returns the means of the first quarter, of the middle half and of the last quarter."""
    n = len(kl) // 4
    return kl[:n].mean(), kl[n:-n].mean(), kl[-n:].mean()


def rise_and_fall(seed: Seed) -> tuple[float, float, float]:
    """Returns in logarithms PPO-M's rise from the first to the last quarter, and PPO's to the middle and from there."""
    first, _, last = quarters(seed.steps(PPO_M, "mean_kl"))
    ppo_first, middle, ppo_last = quarters(seed.steps(PPO, "mean_kl"))
    return np.log(last / first), np.log(middle / ppo_first), np.log(middle / ppo_last)


def between_estimates(row: dict[str, Any]) -> float:
    """Returns the mean cosine of two estimates from a training batch's pairs."""
    return float(np.mean(row["variance"][row["pairs"].index(BATCH)]))


def with_the_true(row: dict[str, Any]) -> float:
    """Returns the mean cosine of such an estimate with the “true” gradient."""
    return float(np.mean(row["convergence"][row["pairs"].index(BATCH)]["cosines"]))


def signal(row: dict[str, Any]) -> float:
    """Returns a training batch divided by the noise scale."""
    return BATCH * gradient.noise_scale(row)["inverse"]


def fall_of_the_signal(seed: Seed) -> float:
    first = [signal(row) for row in seed.rows("gradient") if row["iteration"] == 0]
    return float(np.mean(first) - np.mean([signal(row) for row in seed.later("gradient")]))


def error(part: str) -> Callable[[Seed], float]:
    return lambda seed: float(np.median([value.mean_error(row[part])["mean"] for row in seed.later("value")]))


def clean_error(seed: Seed) -> float:
    """Returns the error of the pairs that a terminal state follows, whose returns no cut shortens."""
    bins = [x for row in seed.later("value") for x in row["heldout_released"]["by_distance"]]
    return float(np.median([x["mean"] for x in bins if x["steps"] is None]))


# Claims --------------------------------------------------------------------------------------------------------------


OF_HUMANOID = "the paper says it of Humanoid"


class Claim(NamedTuple):
    number: Callable[[Seed], float | tuple[float, ...]]
    threshold: float
    side: int  # 1 where the claim says that the number is above the threshold, and -1 where below
    unlike: str = ""  # why what is measured is not like the paper's


def held_out(seed: Seed) -> float:
    return max(np.mean(row["heldout"]["mean_kl"]) for row in seed.rows("trust_region", TRPO)) / seed.bound


def least_ratio(seed: Seed) -> float:
    return min(seed.steps(agent, "max_ratio").min() for agent in AGENTS)


def largest_kl(*agents: str) -> Callable[[Seed], float]:
    return lambda seed: max(seed.steps(agent, "mean_kl").max() for agent in agents) / seed.bound


def of_one_state(seed: Seed) -> float:
    return np.median(seed.steps(TRPO, "max_kl")) / seed.bound


def ratio_nearer(seed: Seed) -> float:
    return np.mean(seed.steps(PPO, "max_ratio") < seed.steps(PPO_M, "max_ratio"))


CLAIMS = {
    "IM: TRPO keeps it on held-out states": Claim(held_out, 1.1, -1),
    "IM: no algorithm keeps the ratio in bounds": Claim(least_ratio, 1.2, 1, OF_HUMANOID),
    "IM: PPO's KL peaks, PPO-M's rises": Claim(rise_and_fall, 0, 1, OF_HUMANOID),
    "IM: PPO and PPO-M keep the KL small": Claim(largest_kl(PPO, PPO_M), 1, -1, OF_HUMANOID),
    "TPG: one state's KL is orders above the bound": Claim(of_one_state, 100, 1, OF_HUMANOID),
    "BLOG: PPO-M does not keep the KL small": Claim(largest_kl(PPO_M), 1, 1, OF_HUMANOID),
    "BLOG: the optimizations keep the ratio nearer": Claim(ratio_nearer, 0.5, 1, OF_HUMANOID),
    "CL: a batch's gradient estimates hardly agree": Claim(
        lambda seed: np.mean([between_estimates(row) for row in seed.later("gradient")]), 0.2, -1
    ),
    "BLOG: estimates correlate slightly with the truth": Claim(
        lambda seed: np.mean([with_the_true(row) for row in seed.later("gradient")]), 0, 1
    ),
    "CL: noise grows with training": Claim(fall_of_the_signal, 0, 1),
    "CL: the value network fits its targets": Claim(error("heldout_gae"), 0.2, -1),
    "CL: V is off by half from true returns": Claim(error("heldout_released"), 0.25, 1),
    "CL: V's error is small on training pairs": Claim(error("train_released"), 0.1, -1, "CL's number may be another"),
}


TOGETHER = [(list(CLAIMS), PLACES)]  # 26 tests, which are corrected for one another


def numbers(name: str, place: str) -> list[Estimate]:
    """Returns the mean of a claim's number over seeds, or of each of its numbers."""
    of_seeds = np.array([CLAIMS[name].number(seed) for seed in seeds(place)], float)
    return [Estimate([x]) for x in np.atleast_2d(of_seeds.T)]


def judge(name: str, place: str) -> Cell:
    """Judges a claim in a task, before Holm's correction."""
    claim, means = CLAIMS[name], numbers(name, place)
    beyond = [Estimate([x.samples[0] - claim.threshold]) for x in means]
    sides = [np.sign(x.mean) * claim.side for x in beyond]
    # Shares may be the same in all seeds, which leaves Student's t without a p, but not the sign test.
    ps = [x.p() if x.error else 0.5 ** (x.seeds - 1) for x in beyond]
    p = max(ps)
    verdict = HOLDS if p < 0.05 and min(sides) > 0 else UNCLEAR
    against = [y for y, side in zip(ps, sides) if side < 0]
    if against and (p_against := min(1.0, len(means) * min(against))) < 0.05:  # one number is enough to contradict
        verdict, p = NOT, p_against
    elif min(sides) < 0:
        p = 1.0  # some numbers lie on the other side, and none significantly
    return Cell("; ".join(map(str, means)), verdict, means[0].seeds, p, unlike=claim.unlike)


def judge_all() -> dict[str, Cells]:
    """Judges each row of the page's table, in its order."""
    return {name: {place: judge(name, place) for place in PLACES} for name in CLAIMS}


def off_by_half_where_nothing_is_cut() -> dict[str, Estimate]:
    return {place: Estimate([[clean_error(seed) for seed in seeds(place)]]) for place in PLACES}


def final_returns() -> Iterable[list[str]]:
    yield ["", *AGENTS]
    for place in PLACES:
        yield [place, *(str(Estimate([by_agent(whole("ten-seeds"))[place][agent]])) for agent in AGENTS)]


# Updates -------------------------------------------------------------------------------------------------------------

FEW, MANY = 2048, 50_000  # pairs of an update
CLAIMED = {(TRPO, FEW): -1, (TRPO, MANY): 1, (PPO, FEW): -1, (PPO, MANY): -1, (PPO_M, MANY): -1}


def change(place: str, agent: str, pairs: int) -> np.ndarray:
    """Returns the mean change of the return by an update, of each seed: over its updates and checkpoints."""
    found = []
    for seed in seeds(place):
        rows = [row for row in seed.rows("updates", agent) if row["step_pairs"] == pairs]
        found.append(np.mean([x["difference"]["mean"] for row in rows for x in row["changes"]]))
    return np.array(found)


@functools.cache
def updates() -> Tests:
    """Returns the second family: the changes that the papers say something about."""
    return {
        update(agent, pairs): {place: Estimate([change(place, agent, pairs)]) for place in PLACES}
        for agent, pairs in CLAIMED
    }


def update(agent: str, pairs: int) -> str:
    return f"{agent.removeprefix('CL-')}, {pairs:,} pairs"


def verdict_on_updates(agent: str, pairs: int, place: str) -> str:
    name = update(agent, pairs)
    if not holm(updates())[name][place]:
        return UNCLEAR
    return HOLDS if np.sign(updates()[name][place].mean) == CLAIMED[agent, pairs] else NOT


def more_pairs() -> Tests:
    """Returns by how much more an update from many pairs raises the return, paired by seed; and PPO-M's from few."""
    found = {update(PPO_M, FEW): {place: Estimate([change(place, PPO_M, FEW)]) for place in PLACES}}
    for agent in AGENTS:
        more = {place: Estimate([change(place, agent, MANY) - change(place, agent, FEW)]) for place in PLACES}
        found[f"{agent.removeprefix('CL-')}, 50,000 − 2,048 pairs"] = more
    return found


# Picture -------------------------------------------------------------------------------------------------------------


def curves() -> Figure:
    """Draws the mean return of the episodes in every 25th iteration of each run (CL Fig. 8, TPG Fig. 10): a row for
    each task, and a panel for each agent."""
    figure, axes = new_figure(len(PLACES), len(AGENTS), 4.6, sharex=True, sharey="row")
    for row, place in zip(axes, PLACES):
        for axis, agent in zip(row, AGENTS):
            name = agent.removeprefix("CL-")
            for seed in seeds(place):
                returns = seed.steps(agent, "episodic_return")
                axis.plot(PARTS["ten-seeds"].every * np.arange(len(returns)), returns, color=STYLES[name][0], lw=0.9)
            axis.set_title(f"{name} on {place}-v5", fontsize=10)
    figure.supxlabel("iteration; a line is a run", fontsize=9)
    figure.supylabel("mean return of the episodes that ended", fontsize=9)
    return figure


PICTURES = dict(curves=curves)
