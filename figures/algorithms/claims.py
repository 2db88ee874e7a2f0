"""How five algorithms compare (GUIDE), and the eight scripts."""

import functools
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
from claims import Cells, Look, after_holm, counted, n, tally
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


OfSeed = dict[str, dict[int, float]]  # a seed's returns, by algorithm and by million steps


def at_the_end(form: str, look: Look) -> Cells:
    """Judges a claim about both seeds' returns."""
    seeds = [{name: {m: x[m][i] for m in sorted(x)} for name, x in returns().items()} for i in (0, 1)]
    return tally(dict(HalfCheetah=seeds), form, look)


def ppo_is_best(of: OfSeed) -> tuple:
    ends = {name: x[8] for name, x in of.items()}
    return ends["PPO"] == max(ends.values()), *(plain(ends[x]) for x in ("PPO", "V-MPO", "TRPO", "A2C", "REINFORCE"))


def reaches_table_3(of: OfSeed) -> tuple:
    ppo = of["PPO"]
    return all(ppo[m] > 0.9 * x for m, x in GUIDE_TABLE_3.items()), plain(ppo[1]), plain(ppo[8])


def a2c_is_slower(of: OfSeed) -> tuple:
    """By 7M steps both have passed what A2C reaches at 8M."""
    trpo, vmpo = (min(m for m, x in of[name].items() if x > of["A2C"][8]) for name in ("TRPO", "V-MPO"))
    return max(trpo, vmpo) <= 7, str(trpo), str(vmpo)


def reinforce_is_worst(of: OfSeed) -> tuple:
    end = of["REINFORCE"][8]
    return end == min(x[8] for x in of.values()), plain(end)


@functools.cache
def kls(after: float = 1e6) -> dict[str, np.ndarray]:
    """Returns the mean KL of an iteration of each algorithm after so many steps, the mean of both seeds."""
    of = {GUIDE[x["algo"]]: x["kl"] for x in measured("algorithms/rewards")["settings"]}
    return {name: np.array(x["mean"])[np.array(x["steps"]) > after] for name, x in of.items()}


def of_kl(form: str, look: Look) -> Cells:
    """Judges a claim about the KL, of which the file has the mean of both seeds only: it counts as one run."""
    return tally(dict(HalfCheetah=[kls()]), form, look, unit="by the mean of two seeds")


def kl_is_constant(of: dict[str, np.ndarray]) -> tuple:
    """The largest KL is not three times the smallest."""
    rises = [of[x].max() / of[x].min() for x in ("TRPO", "V-MPO", "PPO", "A2C", "REINFORCE")]
    return max(rises) < 3, *map(two_digits, rises)


def vmpo_varies_more(of: dict[str, np.ndarray]) -> tuple:
    vmpo, trpo = (np.log(of[x]).std(ddof=1) for x in ("V-MPO", "TRPO"))
    return vmpo > trpo, f"{vmpo:.3f}", f"{trpo:.3f}"


def exceeds_bound(of: dict[str, np.ndarray]) -> tuple:
    above = of["V-MPO"] > BOUND
    return above.mean() > 0.5, n(above)


def far_lower(of: dict[str, np.ndarray]) -> tuple:
    a2c, reinforce, trpo = max(of["A2C"]), max(of["REINFORCE"]), min(of["TRPO"])
    return max(a2c, reinforce) < trpo / 10, *map(two_digits, (a2c, reinforce, trpo))


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


PLAIN_TWO = "A2C", "REINFORCE"  # each with three seeds


def kl_explodes(epochs: int) -> Cells:
    """Judges by the largest KL of an iteration with these epochs, which is ten times the largest of all seeds' with one
    epoch."""
    texts, ratios = [], []
    for name in PLAIN_TWO:
        kl, one = (changed("epochs")[name, x][1] for x in (epochs, 1))
        texts.append(f"{name} {reaches(kl)} instead of {reaches(one)}")
        ratios.append(kl / max(one))
    text = f"{'; '.join(texts)} nats; least favourable {two_digits(np.min(ratios))} times"
    return dict(HalfCheetah=counted(text, [bool(x) for x in np.min(ratios, 0) > 10]))


def both_collapse(epochs: int) -> Cells:
    """Judges by the return at the end, which is not above the best with one epoch, for either algorithm."""
    texts, lower = [], []
    for name in PLAIN_TWO:
        ends, one = (changed("epochs")[name, x][0] for x in (epochs, 1))
        texts.append(f"{name} {span(ends)} at the end instead of {span(one)}")
        lower.append(ends <= max(one))
    return dict(HalfCheetah=counted("; ".join(texts), [bool(x) for x in np.all(lower, 0)]))


def nothing_is_learned() -> Cells:
    """Judges by the larger return of the two with one epoch, which is below a tenth of what GUIDE's PPO has at 1M."""
    ends = [changed("epochs")[name, 1][0] for name in PLAIN_TWO]
    seeds = [dict(zip(PLAIN_TWO, x)) for x in zip(*ends)]
    text = "; ".join(f"{name} {span(x, 1)}" for name, x in zip(PLAIN_TWO, ends))
    return tally(dict(HalfCheetah=seeds), text, lambda of: (max(of.values()),), below=GUIDE_TABLE_3[1] / 10)


def judge_all() -> dict[str, Cells]:
    """Judges each row of the page's tables, in their order."""
    return {
        "GUIDE: PPO outperforms the other algorithms": at_the_end(
            "PPO {}; V-MPO {}; TRPO {}; A2C {}; REINFORCE {}", ppo_is_best
        ),
        "GUIDE: PPO's return at 1M and 8M": at_the_end("{} at 1M; {} at 8M", reaches_table_3),
        "GUIDE: A2C is slower than V-MPO and TRPO": at_the_end(
            "what A2C has at 8M, TRPO has at {}M, V-MPO at {}M", a2c_is_slower
        ),
        "GUIDE: REINFORCE is the worst": at_the_end("REINFORCE {}", reinforce_is_worst),
        "GUIDE: the KL stays constant for all": of_kl(
            "TRPO {}, V-MPO {}, PPO {}, A2C {}, REINFORCE {}", kl_is_constant
        ),
        "GUIDE: V-MPO's KL varies slightly more than TRPO's": of_kl("V-MPO {}, TRPO {}", vmpo_varies_more),
        "GUIDE: V-MPO's KL exceeds its bound": of_kl("at {} places", exceeds_bound),
        "GUIDE: A2C's and REINFORCE's KL are far lower": of_kl(
            "A2C at most {}; REINFORCE at most {}; TRPO at least {} nats", far_lower
        ),
        "GUIDE: five epochs make A2C's, REINFORCE's KL explode": kl_explodes(5),
        "GUIDE: with five epochs both policies collapse": both_collapse(5),
        "GUIDE: two epochs make A2C's, REINFORCE's KL explode": kl_explodes(2),
        "GUIDE: with one epoch, nothing is learned in 1M": nothing_is_learned(),
    }


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


def reward_and_kl(file: str, panels: dict[str, str]):
    """Draws mean returns on the left and the mean KL of an iteration on the right, a row for each algorithm (GUIDE's
    Fig. 6 and 7)."""
    figure, axes = new_figure(len(panels), 2, 0.9 + 2.0 * len(panels), sharex=True, sharey="col")
    for row, (algo, name) in zip(axes, panels.items()):
        settings = [x for x in measured(f"algorithms/{file}")["settings"] if x["algo"] == algo]
        for x, ls, colour in zip(settings, LINES, ("#000000", "#d55e00", "#0072b2")):
            known = x["settings"]
            label = f"entropy {known['entropy_coef']:g}" if file == "entropy" else f"epochs: {known['policy_epochs']}"
            for axis, curve in zip(row, (x["curve"], x["kl"])):
                axis.plot(np.array(curve["steps"]) / 1e6, curve["mean"], color=colour, ls=ls, lw=1.4, label=label)
        row[0].set_ylabel(f"{name}\nepisode return", fontsize=9)
        row[1].set(yscale="log")
        row[1].set_ylabel("mean KL (nats)", fontsize=9)
    figure.supxlabel("steps (millions), HalfCheetah-v4; means of three seeds", fontsize=9)
    return figure


def eight():
    """Draws the final rewards of three seeds and their range, since an interval of three reaches below any reward."""
    panels = {x: {} for x in TWO}
    for env in TWO:
        for algo, name in EIGHT.items():
            x = of_file("eight")[env, algo]
            ends = min(x.samples[0]), max(x.samples[0])
            of_range = SimpleNamespace(mean=x.mean, samples=x.samples, interval=lambda ends=ends: ends)
            panels[env][name] = {name: of_range}
    return forest(panels, "final reward after 1M steps: dots are three seeds, lines their range", dots=True)


def five_seeds():
    """Draws the mean return of five seeds over steps, with its 95 % interval at each."""
    figure, [[axis]] = new_figure(1, 1, 2.8)
    for x, ls in zip(measured("algorithms/five_seeds")["settings"], LINES):
        name, curve = EIGHT[x["algo"]], x["curve"]
        (colour, marker), steps = STYLES[name], np.array(curve["steps"]) / 1e6
        axis.plot(steps, curve["mean"], color=colour, marker=marker, ls=ls, ms=5, lw=1.5, markevery=10, label=name)
        axis.fill_between(steps, curve["low"], curve["high"], color=colour, alpha=0.25, lw=0)
    axis.set(xlabel="steps (millions), Hopper-v5; means of five seeds, 95 % intervals", ylabel="episode return")
    return figure


PICTURES = dict(evaluate=evaluate, kl=kl, eight=eight, five_seeds=five_seeds)
PICTURES["entropy"] = functools.partial(reward_and_kl, "entropy", {"a2c": "A2C"})
PICTURES["epochs"] = functools.partial(reward_and_kl, "epochs", {"a2c": "A2C", "reinforce": "REINFORCE"})
