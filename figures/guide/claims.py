"""GUIDE's five algorithms in its four tasks, by protocol.md."""

import functools
from collections.abc import Iterable

import numpy as np
from claims import room
from estimates import Estimate, measured, plain, span, two_digits
from matplotlib.figure import Figure
from pictures import LINES, STYLES, new_figure
from planned import Tests
from protocols import PARTS, rows_of, whole

GUIDE = room("algorithms").GUIDE  # names by script
PLACES = "HalfCheetah", "Hopper", "Ant", "Humanoid"
NAMES = {"GUIDE-PPO": "PPO", "GUIDE-TRPO": "TRPO", "V-MPO": "V-MPO", "A2C": "A2C", "REINFORCE": "REINFORCE"}
# The return of GUIDE's PPO by million steps (its Table 3).
PRINTED = dict(HalfCheetah={1: 4332, 8: 6414}, Hopper={1: 895, 8: 2616})
PRINTED |= dict(Humanoid={1: 700, 8: 7633}, Ant={1: 1258, 8: 5671})


@functools.cache
def lines() -> list[dict]:
    return [*whole("algorithms"), *whole("algorithms-halfcheetah")]


@functools.cache
def seeds(place: str) -> dict[str, list[dict[float, float]]]:
    """Returns for each algorithm the return of the policy's mode by million steps, of each seed. On HalfCheetah, the
    two seeds of the room algorithms come first."""
    rows = []
    if place == "HalfCheetah":
        for x in measured("algorithms/evaluate"):
            rows.append((GUIDE[x["algo"]], x["run"], x["global_step"], x["returns"]["mean"]))
    for x in rows_of(lines(), "evaluate"):
        if x["env_id"].startswith(place):
            rows.append((NAMES[x["agent"]], x["run_seed"], x["global_step"], float(np.mean(x["returns"]))))
    found = {name: {} for name in NAMES.values()}
    for name, run, step, mean in rows:
        found[name].setdefault(run, {})[step / 1e6] = mean
    return {name: [*of.values()] for name, of in found.items()}


def returns(place: str, name: str, million: int) -> np.ndarray:
    """Returns the returns [seeds] at the checkpoint that is nearest to so many million steps. (REINFORCE, whose
    iterations differ in length, has none that are near to each million, but one at the end.)"""
    return np.array([of[min(of, key=lambda at: abs(at - million))] for of in seeds(place)[name]])


def from_the_table() -> Tests:
    """The primary tests: PPO's return minus what GUIDE prints."""
    of = lambda place, million: Estimate([returns(place, "PPO", million) - PRINTED[place][million]])
    return {f"PPO − printed, {million}M steps": {place: of(place, million) for place in PLACES} for million in (1, 8)}


def from_ppo() -> Tests:
    others = [name for name in NAMES.values() if name != "PPO"]
    of = lambda place, name: Estimate([returns(place, x, 8) for x in ("PPO", name)], (1, -1))
    return {f"PPO − {name}, 8M steps": {place: of(place, name) for place in PLACES} for name in others}


def kl(place: str, agent: str) -> np.ndarray:
    """Returns the mean KL of an iteration in each part of training [seeds, points], of the new runs but those that a
    number stopped. A rejected step of TRPO has a KL of 0, which has no logarithm."""
    here = [x for x in lines() if x["agent"] == agent and x["env_id"].startswith(place) and not x["stopped"]]
    return np.array([x["mean_kl"] for x in here], float).clip(1e-12)


def table_of_the_end() -> Iterable[list[str]]:
    """Yields each algorithm's mean return at 8M steps with its range over seeds, and its mean KL after 1M."""
    of_kl = [f"KL, {place} ({len(kl(place, 'GUIDE-PPO'))} seeds)" for place in PLACES]
    yield ["", *(f"{place}-v4 ({len(returns(place, 'PPO', 8))} seeds)" for place in PLACES), *of_kl]
    for agent, name in NAMES.items():
        ends = [returns(place, name, 8) for place in PLACES]
        after = -(-PARTS["algorithms"].points // 8)  # the first part that begins after 1M steps
        kls = [two_digits(np.exp(np.log(kl(place, agent)[:, after:]).mean())) for place in PLACES]
        yield [name, *(f"{plain(x.mean())} ({span(x)})" for x in ends), *kls]


def drawn_returns() -> Figure:
    """Draws the return of the policy's mode over steps: thick lines are means, thin ones seeds."""
    figure, axes = new_figure(1, 4, 3.0)
    for axis, place in zip(axes[0], PLACES):
        for name, of_seeds in seeds(place).items():
            colour, marker = STYLES[name]
            for of in of_seeds:
                axis.plot([*of], [*of.values()], color=colour, lw=0.6, alpha=0.5)
            # At whole millions, since the checkpoints of REINFORCE's seeds differ by parts of an episode.
            at = np.arange(9)
            mean = np.mean([np.interp(at, *zip(*sorted(of.items()))) for of in of_seeds], axis=0)
            axis.plot(at, mean, color=colour, marker=marker, ms=3.5, lw=1.6, label=name)
        at = PRINTED[place]
        axis.plot([*at], [*at.values()], "k*", ms=9, mfc="white", ls="", label="PPO in GUIDE's Table 3")
        axis.set_title(f"{place}-v4", fontsize=10)
    figure.supxlabel("millions of steps; thin lines are seeds", fontsize=9)
    axes[0, 0].set_ylabel("return of the policy's mode", fontsize=9)
    return figure


def drawn_kls() -> Figure:
    """Draws the geometric mean over seeds of the mean KL of an iteration."""
    figure, axes = new_figure(1, 4, 2.8, sharey=True)
    points = PARTS["algorithms"].points
    for axis, place in zip(axes[0], PLACES):
        for (agent, name), line in zip(NAMES.items(), LINES):
            mean = np.exp(np.log(kl(place, agent)).mean(0))
            axis.plot((np.arange(points) + 0.5) * 8 / points, mean, color=STYLES[name][0], ls=line, lw=1.3, label=name)
        axis.set(yscale="log")
        axis.set_title(f"{place}-v4", fontsize=10)
    figure.supxlabel("millions of steps", fontsize=9)
    axes[0, 0].set_ylabel("mean KL of an iteration (nats)", fontsize=9)
    return figure


PICTURES = dict(returns=drawn_returns, kl=drawn_kls)
