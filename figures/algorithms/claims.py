"""How five algorithms compare (GUIDE), and the eight scripts."""

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
from claims import SAYS, Cells, after_holm, counted, tally
from estimates import Estimate, measured, plain, span, two_digits
from pictures import LINES, STYLES, forest, new_figure
from scipy import stats

GUIDE = dict(ppo="PPO", trpo_plus="TRPO", vmpo="V-MPO", a2c="A2C", reinforce="REINFORCE")
EIGHT = dict(ppo="PPO", ppo_m="PPO-M", ppo_noclip="PPO-NoClip", trpo="TRPO", trpo_plus="TRPO+")
EIGHT |= dict(reinforce="REINFORCE", a2c="A2C", vmpo="V-MPO")
TWO = "Hopper-v5", "HalfCheetah-v5"
BOUND = 0.01  # nats; TRPO's bound on the mean KL, and V-MPO's on the part of it that is due to the policy's means
GUIDE_TABLE_3 = {1: 4332, 8: 6414}  # the return of GUIDE's PPO by million steps; it prints no other algorithm's


@functools.cache
def returns() -> dict[str, dict[int, list[float]]]:
    """Returns the returns of both seeds of each algorithm by million steps."""
    found = {}
    for x in sorted(measured("algorithms/evaluate"), key=lambda x: x["run"]):
        at = round(x["global_step"] / 1e6)
        found.setdefault(GUIDE[x["algo"]], {}).setdefault(at, []).append(x["returns"]["mean"])
    return found


def at_the_end(form: str, so: str) -> Cells:
    """Judges a claim about both seeds' returns, of which PPO[8] is that of PPO at 8M steps. `first` says at how many
    million steps an algorithm has passed what A2C reaches."""
    seeds = []
    for i in (0, 1):
        of = {name.replace("-", ""): {m: x[m][i] for m in sorted(x)} for name, x in returns().items()}
        first = lambda x, end=of["A2C"][8]: min(m for m in x if x[m] > end)
        seeds.append(of | dict(ends=[x[8] for x in of.values()], first=first))
    return tally(dict(HalfCheetah=seeds), form, so)


@functools.cache
def kls(after: float = 1e6) -> dict[str, np.ndarray]:
    """Returns the mean KL of an iteration of each algorithm after so many steps, the mean of both seeds."""
    of = {GUIDE[x["algo"]].replace("-", ""): x["kl"] for x in measured("algorithms/rewards")["settings"]}
    return {name: np.array(x["mean"])[np.array(x["steps"]) > after] for name, x in of.items()}


def of_kl(form: str, so: str) -> Cells:
    """Judges a claim about the KL, of which the file has the mean of both seeds only: it counts as one run. `rise` is
    the largest over the smallest KL, and `sd` the standard deviation of the logarithm."""
    ours = dict(rise=lambda x: x.max() / x.min(), sd=lambda x: np.log(x).std(ddof=1), two_digits=two_digits)
    return tally(dict(HalfCheetah=[kls() | ours]), form, so, "by the mean of two seeds")


@functools.cache
def changed(name: str) -> dict[tuple[str, float], tuple[np.ndarray, np.ndarray]]:
    """Returns the returns at the end and the largest mean KLs of an iteration [seeds], by algorithm and by the argument
    in which the runs differ. Returns are of 10 episodes that act with the policy's mean, as in GUIDE."""
    argument = dict(entropy="entropy_coef", epochs="policy_epochs")[name]
    ends = {x["run"]: x["returns"]["mean"] for x in measured(f"algorithms/{name}_evaluate")}  # of last checkpoints
    of = measured(f"algorithms/{name}")["settings"]
    numbers = lambda x: (np.array([ends[y] for y in x["folders"]]), np.array(x["largest_kl"]))
    return {(GUIDE[x["algo"]], x["settings"][argument]): numbers(x) for x in of}


def reaches(x: np.ndarray) -> str:
    return f"{two_digits(min(x))} to {two_digits(max(x))}"


def of_epochs(form: str, so: str) -> Cells:
    """Judges a claim about three seeds of A2C and REINFORCE. A2C[5] has what A2C with five epochs reaches, and A2C_kl
    its largest KLs. `so` is an expression for all seeds, of which `least` writes the least favourable."""
    known = dict(SAYS, reaches=reaches, all_of=lambda *x: np.all(x, axis=0), least=lambda *x: two_digits(np.min(x)))
    for (name, epochs), (ends, kl) in changed("epochs").items():
        known.setdefault(name, {})[epochs], known.setdefault(f"{name}_kl", {})[epochs] = ends, kl
    return dict(HalfCheetah=counted(eval("f" + repr(form), known), [bool(x) for x in eval(so, known)]))


# Tables --------------------------------------------------------------------------------------------------------------


def table_of_changes() -> Iterable[list[str]]:
    """Yields the returns and the largest KL of the runs with other entropy coefficients and epochs."""
    yield ["runs", "steps", "return at the end", "largest KL of an iteration, nats"]
    for name, steps, word in (("entropy", "2M", "entropy coefficient"), ("epochs", "1M", "epochs")):
        for (algo, value), (ends, kl) in sorted(changed(name).items()):
            yield [f"{algo}, {word} {value:g}", steps, span(ends), reaches(kl)]


def of_file(name: str) -> dict[tuple[str, str], Any]:
    """Returns the final rewards [seeds] by environment and algorithm."""
    return {(x["env_id"], x["algo"]): Estimate([x["finals"]]) for x in measured(f"algorithms/{name}")["settings"]}


def table_of_eight() -> Iterable[list[str]]:
    yield ["script", *(y for x in TWO for y in (x, "range"))]
    for algo in EIGHT:
        of = [of_file("eight")[env, algo] for env in TWO]
        yield [f"`{algo}.py`", *(y for x in of for y in (plain(x.mean), span(*x.samples)))]


def change(env: str) -> Estimate:
    """Returns PPO's final reward now minus before (protocol.md)."""
    return Estimate([of_file(x)[env, "ppo"].samples[0] for x in ("now", "before")], (1, -1))


def table_of_before() -> Iterable[list[str]]:
    yield ["PPO, mean final reward of 20 seeds", "before", "now", "now − before", "p", "differs after Holm"]
    for env, holm in zip(TWO, after_holm(map(change, TWO))):
        of = [*(of_file(x)[env, "ppo"] for x in ("before", "now")), change(env)]
        yield [env, *map(str, of), f"{change(env).p():.2f}", "yes" if holm else "no"]


def table_of_columns() -> Iterable[list[str]]:
    """Yields the middle 90 % of the iterations of the runs of now, for most columns of progress.csv, with two digits or
    three for what is near 1."""
    ranges = measured("algorithms/columns")
    short = lambda x: plain(x) if abs(x) >= 100 else f"{x:.2g}".replace("-", "−")
    left_out = "episodes", "episodic_length", "policy_lr", "value_lr"
    yield ["column", *ranges]
    for name in (x for x in ranges[TWO[0]] if x not in left_out):
        yield [f"`{name}`", *(" to ".join(map(short, of[name])) for of in ranges.values())]


# Pictures ------------------------------------------------------------------------------------------------------------


def kl():
    """Draws the mean KL of an iteration through training (GUIDE's Fig. 5). The file has the mean of two seeds, taken of
    logarithms, and its t interval. From two seeds this interval is 12.7 times as wide as what lies between them, so the
    seeds follow from it, and the band reaches from the one to the other."""
    figure, [[axis]] = new_figure(1, 1, 3.6)
    of = {x["algo"]: x["kl"] for x in measured("algorithms/rewards")["settings"]}
    for k, (algo, name) in enumerate(GUIDE.items()):
        steps, mean, low, high = (np.array(of[algo][x]) for x in ("steps", "mean", "low", "high"))
        ratio, (colour, marker) = (high / low) ** (0.5 / stats.t.ppf(0.975, 1)), STYLES[name]
        style = dict(color=colour, marker=marker, ls=LINES[k], ms=5, lw=1.5, label=name)
        axis.plot(steps / 1e6, mean, markevery=(2 * k, 10), **style)  # so that markers do not hide one another
        axis.fill_between(steps / 1e6, mean / ratio, mean * ratio, color=colour, alpha=0.25, lw=0)
    axis.axhline(BOUND, color="0.3", ls="--", lw=0.9)
    axis.text(8.2, BOUND, "0.01 nats, the bound\nof TRPO and V-MPO", va="center", fontsize=9)
    axis.set(xlabel="steps (millions), HalfCheetah-v4; lines: means of two seeds, bands: from one to the other")
    axis.set(ylabel="mean KL of an iteration (nats)", yscale="log", ylim=(5e-7, 0.3), xlim=(-0.15, 8.15))
    return figure


def evaluate():
    """Draws the mean return of 10 episodes that act with the policy's mean (GUIDE's Fig. 4), and the returns that GUIDE
    prints for its PPO."""
    figure, [[axis]] = new_figure(1, 1, 3.8)
    for k, name in enumerate(GUIDE.values()):
        at, (colour, marker) = sorted(returns()[name]), STYLES[name]
        of = np.array([returns()[name][x] for x in at])
        axis.plot(at, of.mean(1), color=colour, marker=marker, ls=LINES[k], ms=5, lw=1.5, label=name)
        axis.plot(at, of, color=colour, ls=LINES[k], lw=0.7)
    label = "GUIDE's PPO (Table 3)"
    axis.plot(*zip(*GUIDE_TABLE_3.items()), "*", color="black", mfc="white", ms=13, label=label)
    axis.set(xlabel="steps (millions), HalfCheetah-v4; means of two seeds, thin: each seed", ylabel="episode return")
    return figure


def eight():
    panels = {x: {name: {name: of_file("eight")[x, algo]} for algo, name in EIGHT.items()} for x in TWO}
    return forest(panels, "final reward after 1M steps: dots are three seeds, lines 95 % intervals", dots=True)


PICTURES = dict(evaluate=evaluate, kl=kl, eight=eight)
