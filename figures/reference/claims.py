"""What the eight scripts reach, by protocol.md."""

import functools
from collections.abc import Iterable

import numpy as np
from estimates import Estimate, measured, plain
from matplotlib.figure import Figure
from pictures import STYLES, new_figure
from planned import Tests, holm, within
from protocols import PARTS, by_agent, missing, whole
from scipy import stats

PLACES = "Hopper", "Walker2d", "HalfCheetah", "Ant", "Humanoid", "Swimmer"
NAMES = {
    "ppo.py": "PPO",
    "ppo_m.py": "PPO-M",
    "ppo_noclip.py": "PPO-NoClip",
    "trpo.py": "TRPO",
    "trpo_plus.py": "TRPO+",
}
NAMES |= {"a2c.py": "A2C", "reinforce.py": "REINFORCE", "vmpo.py": "V-MPO", "sb3_ppo": "PPO of SB3"}
SCRIPTS, SB3 = [x for x in NAMES if x != "sb3_ppo"], "sb3_ppo"
MARGINS = dict(Hopper=650, Walker2d=825, HalfCheetah=550)  # a quarter of what PPO reached before
LOWEST = -1000  # where the mean final return is below this, a picture has numbers, since dots would flatten the rest


@functools.cache
def numbers(name: str, early: bool = False) -> dict[str, dict[str, np.ndarray]]:
    """Returns a number of each run [seeds], or several [seeds, points], by environment and agent. The scripts' first
    seeds may be shown before those of SB3."""
    ours = by_agent(whole("reference", early), name)
    theirs = {} if early and missing("sb3-ppo", early) else by_agent(whole("sb3-ppo", early), name)
    return {place: of | theirs.get(place, {}) for place, of in ours.items()}


# Tests ---------------------------------------------------------------------------------------------------------------


def final(place: str, agent: str) -> Estimate:
    return Estimate([numbers("final")[place][agent]])


def difference(place: str, other: str) -> Estimate:
    """Returns ppo.py minus another agent."""
    return Estimate([numbers("final")[place][x] for x in ("ppo.py", other)], (1, -1))


@functools.cache
def learning() -> Tests:
    """The primary tests: by how much the final return exceeds the first one of the same run."""
    rise = lambda place, agent: Estimate([numbers("final")[place][agent] - numbers("first")[place][agent]])
    return {agent: {place: rise(place, agent) for place in PLACES} for agent in SCRIPTS}


@functools.cache
def from_ppo() -> Tests:
    return {agent: {place: difference(place, agent) for place in PLACES} for agent in SCRIPTS if agent != "ppo.py"}


def from_sb3() -> Tests:
    return {f"ppo.py − {NAMES[SB3]}": {place: difference(place, SB3) for place in MARGINS}}


def learns(agent: str, place: str) -> str:
    x, stands = learning()[agent][place], holm(learning())[agent][place]
    return ("learns" if x.mean > 0 else "fails") if stands else "is not known to learn"


def asked(agent: str, place: str) -> float:
    """Returns the |t| that Holm's correction asks of a primary test, which falls from the first to the last."""
    ps = sorted(x.p() for of in learning().values() for x in of.values())
    x = learning()[agent][place]
    return float(stats.t.isf(0.025 / (len(ps) - ps.index(x.p())), x.freedom))


def as_good_as_sb3(place: str) -> str:
    [[name, of]] = from_sb3().items()
    if within(of[place], MARGINS[place]):
        return "as good as"
    return ("better" if of[place].mean > 0 else "worse") if holm(from_sb3())[name][place] else "cannot tell"


# Tables --------------------------------------------------------------------------------------------------------------


def finals_table() -> Iterable[list[str]]:
    """Yields the mean final returns. Bold ones differ from PPO's after Holm; a cross marks what fails, and a question
    mark what is not known to learn, with the |t| that is asked there."""
    yield ["", *(f"{place}-v5" for place in PLACES)]
    apart, marks = holm(from_ppo()), {"learns": "", "fails": " ✗", "is not known to learn": " ?"}
    for agent in SCRIPTS:
        row = []
        for place in PLACES:
            bold = "**" * bool(agent != "ppo.py" and apart[agent][place])
            mark = marks[learns(agent, place)]
            mark += f" {plain(asked(agent, place), 1)}" * (mark == " ?")
            row.append(f"{bold}{final(place, agent)}{bold}{mark}")
        yield [f"`{agent}`", *row]
    yield [NAMES[SB3], *(str(final(place, SB3)) if place in MARGINS else "" for place in PLACES)]


def table_of_first_seeds() -> Iterable[list[str]]:
    """Yields the mean final returns of the seeds that are shown early, and in brackets those of the runs."""
    yield ["", *(f"{place}-v5" for place in PLACES)]
    for agent, name in NAMES.items():
        row = []
        for place in PLACES:
            known = agent in numbers("final", early=True)[place]
            row.append(f"{early_mean('final', agent, place)}<br>({early_runs(agent, place)})" if known else "")
        if any(row):
            yield [f"`{agent}`" if agent in SCRIPTS else name, *row]


def means_table() -> Iterable[list[str]]:
    """Yields README's table: the mean final returns with half the width of their intervals, or those of the first seeds
    with the tasks down and the scripts across."""
    if missing("reference") or missing("sb3-ppo"):
        yield ["-v5", *(f"[{NAMES[agent]}](algos/{agent})" for agent in SCRIPTS)]
        for place in PLACES:
            yield [place, *(early_mean("final", agent, place) for agent in SCRIPTS)]
        return
    yield ["-v5", *PLACES]
    for agent, name in NAMES.items():
        of = [final(place, agent) if agent in numbers("final")[place] else None for place in PLACES]
        texts = (f"{rounded(x.mean)} ± {rounded(np.ptp(x.interval()) / 2)}" if x else "" for x in of)
        yield [f"[{name}](algos/{agent})" if agent in SCRIPTS else name, *texts]


def rounded(x: float) -> str:
    """Writes a return, and one of ten thousand or more in thousands."""
    return plain(x, -3 if abs(x) >= 10_000 else 0)


def early_mean(name: str, agent: str, place: str) -> str:
    return rounded(numbers(name, early=True)[place][agent].mean())


def early_runs(agent: str, place: str) -> str:
    return "; ".join(map(rounded, numbers("final", early=True)[place][agent]))


def before(algo: str, place: str) -> float:
    """Returns the mean final return of the three runs that were known."""
    settings = measured("algorithms/eight")["settings"]
    [finals] = [x["finals"] for x in settings if (x["label"], x["env_id"]) == (algo, f"{place}-v5")]
    return float(np.mean(finals))


def others_begin_between(low: float, high: float) -> bool:
    """Answers whether the six scripts that normalize observations begin between these mean returns on Humanoid."""
    first = numbers("first", early=True)["Humanoid"]
    others = [first[agent].mean() for agent in SCRIPTS if agent not in ("ppo_m.py", "trpo.py")]
    return low < min(others) and max(others) < high


def not_learning() -> dict[str, list[str]]:
    """Returns by script the tasks that it is not known to learn, or fails at, with the verdict."""
    found = {}
    for agent in SCRIPTS:
        for place in PLACES:
            if (verdict := learns(agent, place)) != "learns":
                found.setdefault(agent, []).append(f"{verdict} on {place}")
    return found


def sb3_table() -> Iterable[list[str]]:
    yield ["", *(f"{place}-v5" for place in MARGINS)]
    [[name, of]] = from_sb3().items()
    yield [name, *(str(of[place]) for place in MARGINS)]
    yield ["margin", *(f"±{plain(x)}" for x in MARGINS.values())]
    yield ["differs after Holm", *("yes" if holm(from_sb3())[name][x] else "no" for x in MARGINS)]
    yield ["`ppo.py` is", *(as_good_as_sb3(place) for place in MARGINS)]


# Pictures ------------------------------------------------------------------------------------------------------------


def without_gaps(curve: np.ndarray) -> np.ndarray:
    """Fills the parts [points] in which no episode ended by straight lines, and the ends by their neighbours."""
    known = np.isfinite(curve)
    return np.interp(np.arange(len(curve)), np.flatnonzero(known), curve[known])


def curve(place: str, agent: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the mean over runs of the mean return in each part of training [points], and the ends of its pointwise
    interval."""
    runs = np.array([without_gaps(x) for x in numbers("episodic_return")[place][agent]])
    half = stats.t.ppf(0.975, len(runs) - 1) * runs.std(0, ddof=1) / len(runs) ** 0.5
    return runs.mean(0), runs.mean(0) - half, runs.mean(0) + half


def dots(early: bool = False) -> Figure:
    """Draws the final return of every run, and the mean of each agent with its interval. The seeds that are shown early
    have no interval."""
    figure, axes = new_figure(2, 3, 5.6, sharey=True)
    shown = {x: y for x, y in NAMES.items() if x in numbers("final", early)["Hopper"]}
    for axis, place in zip(axes.flat, PLACES):
        for at, (agent, name) in enumerate(shown.items()):
            if agent not in numbers("final", early)[place]:
                continue
            x = Estimate([numbers("final", early)[place][agent]])
            colour, marker = STYLES[name]
            if x.mean < LOWEST:
                text = f"← {'; '.join(map(rounded, x.samples[0]))}"
                axis.text(0.02, at, text, transform=axis.get_yaxis_transform(), va="center", color=colour, fontsize=8)
                continue
            axis.plot(x.samples[0], [at + 0.25] * x.seeds, marker, color=colour, ms=3.5, alpha=0.5, mec="none")
            axis.plot(x.mean, at, marker, color=colour, ms=6)
            if not early:
                axis.plot(x.interval(), [at, at], color=colour, lw=2)
        axis.set_title(f"{place}-v5", fontsize=10)
    for axis in axes[:, 0]:
        axis.set_yticks(range(len(shown)), shown.values(), fontsize=8)
        axis.set_ylim(len(shown) - 0.4, -0.6)
    what = "mean over three of five seeds" if early else "mean over seeds with its 95 % interval"
    figure.supxlabel(f"final return of each run (small, or as a number), and {what}", fontsize=9)
    return figure


def minutes_per_million(place: str, agent: str) -> float:
    return measured("reference/speed")[agent][f"{place}-v5"]["minutes"]


def times_as_long(place: str) -> float:
    return minutes_per_million(place, SB3) / minutes_per_million(place, "ppo.py")


def minutes_table() -> Iterable[list[str]]:
    """Yields how many minutes of one core a million steps take."""
    yield ["", *(f"{place}-v5" for place in PLACES)]
    for agent, of in measured("reference/speed").items():
        texts = (plain(of[f"{x}-v5"]["minutes"], 1) if f"{x}-v5" in of else "" for x in PLACES)
        yield [f"`{agent}`" if agent in SCRIPTS else NAMES[agent], *texts]


def curves(over: str = "steps") -> Figure:
    """Draws a panel for each task, with a line and a band for each agent, over steps or over minutes of one core."""
    figure, axes = new_figure(2, 3, 5.6)
    points = PARTS["reference"].points
    at = (np.arange(points) + 0.5) / points  # millions of steps, in the middle of a part
    for axis, place in zip(axes.flat, PLACES):
        here = [agent for agent in NAMES if agent in numbers("final")[place]]
        below = [NAMES[agent] for agent in here if final(place, agent).mean < LOWEST]
        if below:
            axis.text(0.02, 0.02, f"below: {', '.join(below)}", transform=axis.transAxes, fontsize=8)
        for agent in [agent for agent in here if NAMES[agent] not in below]:
            x = at if over == "steps" else at * minutes_per_million(place, agent)
            mean, low, high = curve(place, agent)
            colour, marker = STYLES[NAMES[agent]]
            axis.plot(x, mean, color=colour, marker=marker, ms=3.5, markevery=12, lw=1.3, label=NAMES[agent])
            axis.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
        axis.set_title(f"{place}-v5", fontsize=10)
    what = "millions of steps" if over == "steps" else "minutes of one core"
    figure.supxlabel(f"{what}; bands are 95 % intervals of the mean over seeds", fontsize=9)
    figure.supylabel("mean return of the episodes that ended", fontsize=9)
    return figure


# While runs are missing, the page is that of the first seeds.
PICTURES = dict(curves=curves, dots=dots, minutes=lambda: curves("minutes"))
if missing("reference") or missing("sb3-ppo"):
    PICTURES = dict(first_seeds=lambda: dots(early=True))
