"""How five algorithms compare (GUIDE), and the eight scripts."""

import functools
from collections.abc import Callable, Iterable

import numpy as np
from claims import UNCLEAR, Cell, Cells, correct, counted, new_figure
from estimates import Estimate, measured, plain, span, two_digits
from matplotlib.figure import Figure
from measuring import figures
from scipy import stats

VERSION = "v4"
GUIDE = dict(ppo="PPO", trpo_plus="TRPO", vmpo="V-MPO", a2c="A2C", reinforce="REINFORCE")
DRASTIC = 10  # times the largest mean KL of an iteration: what the page calls a collapse
BOUND = 0.01  # nats; TRPO's bound on the mean KL, and V-MPO's on the part of it that is due to the policy's means
GUIDE_TABLE_3 = {1: 4332, 8: 6414}  # the return of GUIDE's PPO by million steps; it prints no other algorithm's


@functools.cache
def through_training() -> tuple[dict, dict]:
    """Returns the returns of both seeds by million steps, and the mean KL of an iteration from 1M steps on."""
    returns, kls = {}, {}
    for x in sorted(measured("algorithms/evaluate"), key=lambda x: x["run"]):
        returns.setdefault(x["algo"], {}).setdefault(round(x["global_step"] / 1e6), []).append(x["returns"]["mean"])
    for x in measured("algorithms/rewards")["settings"]:
        kls[x["algo"]] = np.array(x["kl"]["mean"])[np.array(x["kl"]["steps"]) > 1e6]
    return returns, kls


def both(*algos: str, million: int = 8) -> str:
    """Writes the returns of both seeds after so many steps."""
    returns, _ = through_training()
    return "; ".join(f"{GUIDE[algo]} {', '.join(map(plain, returns[algo][million]))}" for algo in algos)


def of_both(text: str, so: Callable[[int], bool]) -> Cells:
    return dict(HalfCheetah=counted(text, [bool(so(seed)) for seed in (0, 1)]))


def of_mean_kl(text: str, so: bool) -> Cells:
    """Of a number that the file has as a mean of both seeds only, which counts as one run."""
    return dict(HalfCheetah=counted(text, [bool(so)], "by the mean of two seeds"))


def ppo_is_first() -> Cells:
    returns, _ = through_training()
    first = lambda i: returns["ppo"][8][i] == max(x[8][i] for x in returns.values())
    return of_both(both("ppo", "vmpo", "trpo_plus", "a2c", "reinforce"), first)


def ppo_is_guides() -> Cells:
    of = through_training()[0]["ppo"]
    reaches = lambda i: all(of[m][i] > 0.9 * paper for m, paper in GUIDE_TABLE_3.items())
    return of_both("{}, {} at 1M; {}, {} at 8M".format(*map(plain, of[1] + of[8])), reaches)


def a2c_is_slower() -> Cells:
    returns, _ = through_training()
    end = returns["a2c"][8]
    trpo, vmpo = (
        [min(m for m in range(9) if returns[x][m][i] > end[i]) for i in (0, 1)] for x in ("trpo_plus", "vmpo")
    )
    text = "what A2C has at 8M, TRPO has at {}M, {}M, V-MPO at {}M, {}M".format(*trpo, *vmpo)
    return of_both(text, lambda i: max(trpo[i], vmpo[i]) < 8)


def reinforce_is_last() -> Cells:
    returns, _ = through_training()
    return of_both(both("reinforce"), lambda i: returns["reinforce"][8][i] == min(x[8][i] for x in returns.values()))


def kl_is_constant() -> Cells:
    ratio = {GUIDE[algo]: float(x.max() / x.min()) for algo, x in through_training()[1].items()}
    text = ", ".join(f"{name} {two_digits(y)}" for name, y in sorted(ratio.items(), key=lambda x: x[1]))
    return of_mean_kl(text, max(ratio.values()) < 3)


def kl_varies_more() -> Cells:
    vmpo, trpo = (float(np.log(through_training()[1][x]).std(ddof=1)) for x in ("vmpo", "trpo_plus"))
    return of_mean_kl(f"V-MPO {vmpo:.3f}, TRPO {trpo:.3f}", vmpo > trpo)


def kl_exceeds_bound() -> Cells:
    kl = through_training()[1]["vmpo"]
    beyond = int((kl > BOUND).sum())
    return of_mean_kl(f"at {beyond} of {len(kl)} places", beyond > len(kl) / 2)


def kl_is_far_lower() -> Cells:
    kls = through_training()[1]
    low, trpo = {x: kls[x].max() for x in ("a2c", "reinforce")}, kls["trpo_plus"].min()
    text = "; ".join(f"{GUIDE[x]} at most {two_digits(y)}" for x, y in low.items())
    return of_mean_kl(f"{text}; TRPO at least {two_digits(trpo)} nats", max(low.values()) < trpo / 10)


Runs = tuple[np.ndarray, np.ndarray]  # returns of the last checkpoints, and largest mean KLs of an iteration [seeds]


@functools.cache
def changed_runs(name: str) -> dict[tuple[str, float], Runs]:
    """Returns the runs by algorithm and by the argument in which they differ. Returns are of 10 episodes that act with
    the policy's mean, as in GUIDE."""
    argument = dict(entropy="entropy_coef", epochs="policy_epochs")[name]
    ends = {x["run"]: x["returns"]["mean"] for x in measured(f"algorithms/{name}_evaluate")}  # of last checkpoints
    return {
        (x["algo"], x["settings"][argument]): (np.array([ends[y] for y in x["folders"]]), np.array(x["largest_kl"]))
        for x in measured(f"algorithms/{name}")["settings"]
    }


def kl_explodes(epochs: int) -> Cells:
    """Every run with more epochs must exceed DRASTIC times the largest KL of all runs with one."""
    of, texts, factors = changed_runs("epochs"), [], []
    for algo in ("a2c", "reinforce"):
        many, one = of[algo, epochs][1], of[algo, 1][1]
        texts.append(
            "{} {} to {} instead of {} to {}".format(
                GUIDE[algo], *(two_digits(f(x)) for x in (many, one) for f in (min, max))
            )
        )
        factors.append(many / max(one))
    least = np.min(factors, axis=0)
    text = f"{'; '.join(texts)} nats; least favourable {two_digits(least.min())} times"
    return dict(HalfCheetah=counted(text, [bool(x > DRASTIC) for x in least]))


def one_epoch_is_useless() -> Cells:
    of = {algo: changed_runs("epochs")[algo, 1][0] for algo in ("a2c", "reinforce")}
    text = "; ".join(f"{GUIDE[x]} {span(y, 1)}" for x, y in of.items())
    return dict(HalfCheetah=counted(text, [bool(max(x) < GUIDE_TABLE_3[1] / 10) for x in zip(*of.values())]))


CLAIMS = {
    "GUIDE: PPO outperforms the other algorithms": ppo_is_first,
    "GUIDE: PPO's return at 1M and 8M": ppo_is_guides,
    "GUIDE: A2C is slower than V-MPO and TRPO": a2c_is_slower,
    "GUIDE: REINFORCE is the worst": reinforce_is_last,
    "GUIDE: the KL stays constant for all": kl_is_constant,
    "GUIDE: V-MPO's KL varies slightly more than TRPO's": kl_varies_more,
    "GUIDE: V-MPO's KL exceeds its bound": kl_exceeds_bound,
    "GUIDE: A2C's and REINFORCE's KL are far lower": kl_is_far_lower,
    "GUIDE: five epochs make A2C's, REINFORCE's KL explode": lambda: kl_explodes(5),
    "GUIDE: two epochs make A2C's, REINFORCE's KL explode": lambda: kl_explodes(2),
    "GUIDE: with one epoch, nothing is learned in 1M": one_epoch_is_useless,
}


def table_of_eight() -> Iterable[list[str]]:
    yield ["script", "Hopper-v5", "range", "HalfCheetah-v5", "range"]
    of = {(x["env_id"], x["algo"]): x for x in measured("algorithms/eight")["settings"]}
    for algo in "ppo ppo_m ppo_noclip trpo trpo_plus reinforce a2c vmpo".split():
        cells = [of[env, algo] for env in ("Hopper-v5", "HalfCheetah-v5")]
        yield [
            f"`{algo}.py`",
            *(y for x in cells for y in (f"{x['mean']['mean']:.0f}", span(x["finals"]).replace(",", ""))),
        ]


def table_of_changes() -> Iterable[list[str]]:
    """Yields the returns and the largest KL of the runs with other entropy coefficients and epochs."""
    yield ["runs", "steps", "return at the end", "largest KL of an iteration, nats"]
    for name, steps, word in (("entropy", "2M", "entropy coefficient"), ("epochs", "1M", "epochs")):
        for (algo, value), (returns, kl) in sorted(changed_runs(name).items()):
            yield [
                f"{GUIDE[algo]}, {word} {value:g}",
                steps,
                span(returns),
                f"{two_digits(min(kl))} to {two_digits(max(kl))}",
            ]


def before_and_now() -> dict[str, tuple[Estimate, Estimate, Estimate]]:
    """Returns the final reward of PPO before and now, and the difference, by environment (protocol.md)."""
    of = {
        (x["env_id"], name): np.array(x["finals"])
        for name in ("before", "now")
        for x in measured(f"algorithms/{name}")["settings"]
    }
    return {
        env: (
            Estimate([of[env, "before"]]),
            Estimate([of[env, "now"]]),
            Estimate([of[env, "now"], of[env, "before"]], (1, -1)),
        )
        for env in ("Hopper-v5", "HalfCheetah-v5")
    }


def table_of_before() -> Iterable[list[str]]:
    yield ["PPO, mean final reward of 20 seeds", "before", "now", "now − before", "p", "differs after Holm"]
    rows = before_and_now()
    cells = {env: Cell("", UNCLEAR, change.seeds, change.p()) for env, (*_, change) in rows.items()}
    correct(cells.values())
    for env, (before, now, change) in rows.items():
        yield [env, str(before), str(now), str(change), f"{change.p():.2f}", "yes" if cells[env].holm else "no"]


SHOWN = "episodic_return value_loss value_grad_norm value_grads_clipped policy_loss policy_grad_norm".split()
SHOWN += "policy_grads_clipped entropy mean_kl max_kl max_ratio clip_fraction explained_variance".split()


def table_of_columns() -> Iterable[list[str]]:
    """Yields the middle 90 % of the iterations of the runs of now, for each column of progress.csv."""
    yield ["column", *measured("algorithms/columns")]
    for name in SHOWN:
        yield [f"`{name}`", *(short(*of[name]) for of in measured("algorithms/columns").values())]


def short(low: float, high: float) -> str:
    """Writes a range with two digits, or three for what is near 1."""
    return " to ".join(plain(x) if abs(x) >= 100 else f"{x:.2g}".replace("-", "−") for x in (low, high))


TABLES = {"eight": table_of_eight, "changes": table_of_changes, "before": table_of_before, "columns": table_of_columns}


# Pictures ------------------------------------------------------------------------------------------------------------

LINES = "-", "--", "-."


def style_of(algo: str, k: int) -> dict:
    return figures.look(algo) | dict(label=GUIDE[algo], markersize=5, linewidth=1.5, linestyle=LINES[k % 3])


def draw_kl() -> Figure:
    """Draws the mean KL of an iteration through training (GUIDE's Fig. 5). The file has the mean of two seeds, taken of
    logarithms, and its t interval. From two seeds this interval is 12.7 times as wide as what lies between them, so the
    seeds follow from it, and the band reaches from the one to the other."""
    figure, [[axis]] = new_figure(1, 1, 4.0)
    settings = {x["algo"]: x for x in measured("algorithms/rewards")["settings"]}
    for k, algo in enumerate(GUIDE):
        steps, mean, low, high = (np.array(settings[algo]["kl"][x]) for x in ("steps", "mean", "low", "high"))
        ratio, style = (high / low) ** (0.5 / stats.t.ppf(0.975, 1)), style_of(algo, k)
        axis.plot(steps / 1e6, mean, **style, markevery=(2 * k, 10))  # so that markers do not hide one another
        axis.fill_between(steps / 1e6, mean / ratio, mean * ratio, color=style["color"], alpha=0.25, linewidth=0)
    axis.axhline(BOUND, color="black", linestyle="--", linewidth=1)
    axis.text(8.2, BOUND, "0.01 nats, the bound\nof TRPO and V-MPO", va="center", fontsize=9)
    axis.set(title="HalfCheetah-v4, mean of two seeds (band: from one seed to the other)")
    axis.set(xlabel="steps (millions)", ylabel="mean KL of an iteration (nats)", yscale="log")
    axis.set(ylim=(5e-7, 0.3), xlim=(-0.15, 8.15))
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False, fontsize=9)
    return figure


def draw_evaluate() -> Figure:
    """Draws the mean return of 10 episodes that act with the policy's mean (GUIDE's Fig. 4), and the returns that GUIDE
    prints for its PPO."""
    figure, [[axis]] = new_figure(1, 1, 4.2)
    returns, _ = through_training()
    for k, algo in enumerate(GUIDE):
        millions = sorted(returns[algo])
        of_seeds = np.array([returns[algo][m] for m in millions])
        axis.plot(millions, of_seeds.mean(1), **style_of(algo, k))
        axis.plot(millions, of_seeds, **style_of(algo, k) | dict(marker="", linewidth=0.8, alpha=0.8, label=None))
    for million, value in GUIDE_TABLE_3.items():
        x = 8.22 if million == 8 else million  # in the margin, because the lines end close together
        label = "GUIDE's PPO (Table 3)" if million == 1 else None
        axis.plot(x, value, "*", ms=13, color=figures.COLOURS["ppo"], mfc="white", label=label)
        axis.annotate(f"{value}", (x, value), (9, 0), textcoords="offset points", va="center", fontsize=9)
    axis.set(title="HalfCheetah-v4, mean of two seeds (thin: each seed)", xlim=(-0.2, 8.8))
    axis.set(xlabel="steps (millions)", ylabel="episode return")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=6, frameon=False, fontsize=9)
    return figure


def draw_collapse() -> Figure:
    """Draws the largest KL of an iteration and the return at the end, each seed a dot, with GUIDE's own length of runs
    in the title (GUIDE's Fig. 6 and 7)."""
    figure, axes = new_figure(2, 2, 4.6, sharey="row", sharex="col")
    for column, name, word in zip(axes.T, ("entropy", "epochs"), ("entropy coefficient", "epochs")):
        of = changed_runs(name)
        values = sorted({value for _, value in of}, reverse=name == "entropy")
        for (algo, value), numbers in of.items():
            style = figures.look(algo)
            at = values.index(value) + (0.12 if algo == "reinforce" else -0.12) * (name == "epochs")
            for axis, y in zip(column, numbers):
                label = GUIDE[algo] if value == values[0] else None
                axis.plot([at] * len(y), y, style["marker"], color=style["color"], ms=6, alpha=0.8, label=label)
        column[1].set_xticks(range(len(values)), [f"{x:g}" for x in values])
        column[1].set(xlabel=word, yscale="log")
        column[0].legend(frameon=False, fontsize=9)
    axes[0, 0].set_title("2M steps; GUIDE's runs are of 8M", fontsize=10)
    axes[0, 1].set_title("1M steps; GUIDE's runs are of 8M", fontsize=10)
    axes[0, 0].set_ylabel("return at the end", fontsize=9)
    axes[1, 0].set_ylabel("largest mean KL\nof an iteration, nats", fontsize=9)
    figure.suptitle("HalfCheetah-v4, three seeds", fontsize=10)
    return figure


NAMES = dict(ppo="PPO", ppo_m="PPO-M", ppo_noclip="PPO-NoClip", trpo="TRPO", trpo_plus="TRPO+")
NAMES |= dict(reinforce="REINFORCE", a2c="A2C", vmpo="V-MPO")


def draw_eight() -> Figure:
    """Draws the learning curves of the eight scripts. The file has mean curves over three seeds, averaged over 11
    iterations, and the final reward of each seed, but no seed's curve. The final rewards stand to the right of the
    curves, in a column for each script. The last of the 100 places of a curve is left out, because the average there
    is more than half the last iteration alone."""
    figure, [axes] = new_figure(1, 2, 4.4)
    settings = measured("algorithms/eight")["settings"]
    for axis, env_id in zip(axes, ("Hopper-v5", "HalfCheetah-v5")):
        for k, (algo, name) in enumerate(NAMES.items()):
            [cell] = [x for x in settings if (x["env_id"], x["algo"]) == (env_id, algo)]
            steps, rewards = (np.array(cell["curve"][x])[:-1] for x in ("steps", "mean"))
            style = figures.look(algo) | dict(label=name, markersize=5, linewidth=1.5, linestyle=LINES[k % 3])
            axis.plot(steps / 1e6, rewards, **style, markevery=(k, 12))
            dots = style | dict(linestyle="", markersize=4, label=None)
            axis.plot([1.06 + 0.035 * k] * len(cell["finals"]), cell["finals"], **dots)
        axis.axvline(1.02, color="0.8", linewidth=0.8)
        ticks = np.linspace(0, 1, 6)
        axis.set_xticks([*ticks, 1.18], [*(f"{x:.1f}" for x in ticks), "final of\neach seed"])
        axis.set_xlabel("steps (millions)", x=0.4, labelpad=-8)  # beside the second line of the last tick
        axis.set_title(env_id)
    axes[0].set_ylabel("episode return")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return figure


PICTURES = {"evaluate": draw_evaluate, "kl": draw_kl, "collapse": draw_collapse, "eight": draw_eight}
