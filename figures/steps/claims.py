"""How far a step goes (IM's Fig. 2 to 4; TPG's Fig. 9 and 28)."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from claims import Cells, draw_rows, new_figure, of_seeds, of_sign
from estimates import PLACES, Estimate, OfSeed, by_seed, in_percent, in_places, measured, plain, span
from matplotlib.figure import Figure
from measuring import figures, intervals
from scipy import stats

VERSION = "v5"
BOUNDS = dict(Hopper=0.13, Walker2d=0.04, Humanoid=0.07)  # TRPO's, on the mean KL
AGENTS = "PPO", "PPO-M", "TRPO"


def steps(form: str, judge: Callable, bound: float | None = None, above: bool = True) -> Cells:
    return of_seeds(form, judge, in_places("steps/{}"), bound, above)


def of_steps(cells: list[dict[str, Any]], number: str, part: str = "train") -> np.ndarray:
    return np.array([x[part][number] for x in cells])


def share(env: str, of: OfSeed, name: str, part: str = "train") -> np.ndarray:
    """Returns the mean KL of an agent's steps as a share of TRPO's bound."""
    return of_steps(of[name], "mean_kl", part) / BOUNDS[env]


def keeps_bound(env: str, of: OfSeed) -> tuple:
    kl = share(env, of, "TRPO")
    return (f"{(kl <= 1).sum()} of {len(kl)}", f"{np.median(kl):.2f}"), bool((kl <= 1).all())


def keeps_bound_heldout(env: str, of: OfSeed) -> tuple:
    kl = share(env, of, "TRPO", "heldout")
    return (f"{(kl <= 1).sum()} of {len(kl)}",), kl.max()


def exceeds_ratio(env: str, of: OfSeed) -> tuple:
    largest = np.concatenate([of_steps(of[name], "max_ratio") for name in AGENTS])
    return (f"{(largest > 1.2).sum()} of {len(largest)}", span(largest, 1)), largest.min()


def exceeds_in_a_state(env: str, of: OfSeed) -> tuple:
    largest = of_steps(of["TRPO"], "max_kl") / BOUNDS[env]
    return (span(largest),), np.median(largest)


def peaks_and_rises(env: str, of: OfSeed) -> tuple:
    ppo, ppo_m = (of_steps(of[name], "mean_kl") for name in ("PPO", "PPO-M"))
    k, quarter = int(np.argmax(ppo)), len(ppo) // 4
    rise = ppo_m[-quarter:].mean() / ppo_m[:quarter].mean()
    so = bool(0 < k < len(ppo) - 1 and ppo[-1] < ppo[0] and rise > 1)
    return (str(of["PPO"][k]["iteration"]), f"{rise:.1f}"), so


def both_stay_small(env: str, of: OfSeed) -> tuple:
    most = [share(env, of, name).max() for name in ("PPO", "PPO-M")]
    return tuple(f"{x:.2f}" for x in most), max(most)


def only_ppo_m_goes_far(env: str, of: OfSeed) -> tuple:
    ppo, ppo_m = (share(env, of, name) for name in ("PPO", "PPO-M"))
    return (f"{ppo_m.max():.2f}", f"{(ppo > ppo_m).sum()} of {len(ppo)}"), ppo_m.max()


def ratio_is_nearer(env: str, of: OfSeed) -> tuple:
    ppo, ppo_m = (of_steps(of[name], "max_ratio") for name in ("PPO", "PPO-M"))
    return (f"{(ppo < ppo_m).sum()} of {len(ppo)}",), bool((ppo < ppo_m).mean() > 0.5)


# What the typical update does to the reward (protocol.md) -------------------------------------------------------------

MARGIN, BATCHES, UPDATED = 5, (2048, 50_000), ("Walker2d", "Hopper")
FIRST, LATER = (0,), (150, 300, 450)  # iterations


def changes(place: str, name: str, pairs: int, iterations: Iterable[int]) -> list[dict[str, Any]]:
    """Returns the cells of all seeds at these iterations."""
    cells = [x for x in measured(f"steps/updates_{place.lower()}") if x["iteration"] in iterations]
    return [x for x in cells if x["agent"].removeprefix("CL-") == name and x["step_pairs"] == pairs]


def mean_change(place: str, name: str, pairs: int, iterations: Iterable[int] = LATER) -> Estimate:
    """Returns the mean change of the return by an update, over the checkpoints, which are taken as fixed: the samples
    are updates, and not seeds."""
    samples = [np.array([y["mean"] for y in x["changes"]]) for x in changes(place, name, pairs, iterations)]
    return Estimate(samples, [1 / len(samples)] * len(samples))


def spread_and_harm(place: str, name: str, pairs: int) -> dict[str, dict[str, Any]]:
    """Returns the standard deviation of the true changes within a checkpoint, and the share of updates that lower the
    reward, if true changes are normal with this standard deviation, with BCa intervals over updates. Their mean is that
    over all checkpoints, as planned, or each checkpoint's own. Where the noise of the episodes explains all of the
    scatter, the shares would be 0 or 1, whatever the intervals of the means say, so that there are none."""
    samples = mean_change(place, name, pairs).samples
    noise = np.mean([x["noise"] ** 2 for x in changes(place, name, pairs, LATER)])  # a variance

    def spread(*x: np.ndarray) -> np.ndarray:
        return np.maximum(sum(y.var(-1, ddof=1) for y in x) / len(x) - noise, 0) ** 0.5

    def harmful(*x: np.ndarray) -> np.ndarray:
        return stats.norm.cdf(-sum(y.mean(-1) for y in x) / len(x) / np.maximum(spread(*x), 1e-12))

    def harmful_at_each(*x: np.ndarray) -> np.ndarray:
        return sum(stats.norm.cdf(-y.mean(-1) / np.maximum(spread(*x), 1e-12)) for y in x) / len(x)

    found = {"spread": intervals.bootstrap(spread, *samples)}
    shares = dict(harmful=harmful, harmful_at_each=harmful_at_each) if found["spread"]["mean"] else {}
    return found | {name: intervals.bootstrap(share, *samples) for name, share in shares.items()}


def gain_of_more_pairs(place: str, name: str) -> Estimate:
    """Returns by how much more an update from many pairs raises the return than one from a training batch."""
    few, many = (mean_change(place, name, pairs) for pairs in BATCHES)
    return Estimate(many.samples + few.samples, [*many.weights, *(-x for x in few.weights)])


def gained_in_training(place: str, name: str) -> list[float]:
    """Returns by how much training raised the return from the first to the last of the later checkpoints, per update,
    for each seed."""
    cells = changes(place, name, BATCHES[0], LATER)
    returns = {(x["run_seed"], x["iteration"]): np.mean([y["before"] for y in x["changes"]]) for x in cells}
    first, *_, last = LATER
    return [(returns[seed, last] - y) / (last - first) for (seed, at), y in sorted(returns.items()) if at == first]


def of_updates(estimate: Callable, *of: Any) -> Cells:
    """Judges whether the typical update raises the reward."""
    found = {place: estimate(place, *of) for place in UPDATED}
    return {place: of_sign(x, margin=MARGIN) for place, x in found.items()}


TYPICAL = {  # the primary tests, by the size of the batch
    pairs: {
        f"{name}'s update from {pairs:,} pairs": lambda name=name, pairs=pairs: of_updates(mean_change, name, pairs)
        for name in AGENTS
    }
    for pairs in BATCHES
}
UPDATES = {name: judge for of in TYPICAL.values() for name, judge in of.items()}
UPDATES |= {f"{x}'s gains from more pairs": lambda x=x: of_updates(gain_of_more_pairs, x) for x in AGENTS}
UPDATES |= {
    f"{name}'s update of an untrained policy, from {pairs:,} pairs": lambda name=name, pairs=pairs: of_updates(
        mean_change, name, pairs, FIRST
    )
    for pairs in BATCHES
    for name in AGENTS
}


def over_checkpoints(*estimates: Estimate) -> Estimate:
    """Returns the mean of an estimate, or of the difference of two, with the checkpoints as the sample, as if the nine
    were independent."""
    one, *other = (np.array([x.mean() for x in of.samples]) for of in estimates)
    return Estimate([one - other[0] if other else one])


def table_of_updates() -> Iterable[list[str]]:
    """Yields how much updates differ in what they do, the share that lowers the reward, and the mean change with
    checkpoints as the sample."""
    shares = "share that harms", "the same, at each checkpoint's own mean"
    yield ["", "sd of the true changes", *shares, "mean change, checkpoints as the sample"]
    for place, pairs, name in ((x, y, z) for x in UPDATED for y in BATCHES for z in AGENTS):
        found = spread_and_harm(place, name, pairs)
        seen = intervals.text(found["spread"], plain) if found["spread"]["mean"] else "hidden by the noise of episodes"
        row = [f"{place}-v5, {name}, {pairs:,} pairs", seen]
        row += [in_percent(found[x]) if x in found else "cannot be told" for x in ("harmful", "harmful_at_each")]
        yield [*row, str(over_checkpoints(mean_change(place, name, pairs)))]


CLAIMS = {
    "IM: TRPO keeps its bound on the mean KL": lambda: steps("kept at {} steps; median {} of it", keeps_bound),
    "IM: TRPO keeps it on held-out states": lambda: steps("kept at {} steps", keeps_bound_heldout, 1.1, False),
    "IM: no algorithm keeps the ratio in bounds": lambda: steps("beyond at {} steps, {}", exceeds_ratio, 1.2),
    "TPG: one state's KL is orders above the bound": lambda: steps("{} times the bound", exceeds_in_a_state, 100),
    "IM: PPO's KL peaks, PPO-M's rises": lambda: steps(
        "PPO's peak at iteration {} of 488; PPO-M's last quarter is {} times its first", peaks_and_rises
    ),
    "IM: PPO and PPO-M keep the KL small": lambda: steps("PPO at most {}, PPO-M {} of it", both_stay_small, 1, False),
    "BLOG: PPO-M does not keep the KL small": lambda: steps(
        "PPO-M at most {} of it; PPO's step is the longer at {}", only_ppo_m_goes_far, 1
    ),
    "BLOG: the optimizations keep the ratio nearer": lambda: steps("PPO's is the smaller at {}", ratio_is_nearer),
} | UPDATES
TOGETHER = [(list(of), PLACES[:2]) for of in TYPICAL.values()]
TABLES = {"updates": table_of_updates}


def draw_heldout() -> Figure:
    """Draws the mean KL on held-out states as a share of TRPO's bound, and the largest ratio, each seed a line."""
    figure, axes = new_figure(2, 3, 4.6, sharex=True, sharey="row")
    for column, place in zip(axes.T, PLACES):
        seeds = by_seed(f"steps/{place.lower()}")
        for of in seeds:
            for name in AGENTS:
                style = figures.look(dict(PPO="ppo", TRPO="trpo").get(name, "ppo_m")) | dict(marker="", label=None)
                style |= dict(label=name if of is seeds[0] else None, linewidth=1.1, alpha=0.85)
                iterations = [x["iteration"] for x in of[name]]
                column[0].plot(iterations, share(place, of, name, "heldout"), **style)
                column[1].plot(iterations, of_steps(of[name], "max_ratio", "heldout"), **style)
        column[0].axhline(1, color="black", lw=0.8, ls="--")
        column[1].axhline(1.2, color="black", lw=0.8, ls="--")
        column[0].set_title(f"{place}-v5, {len(seeds)} seed{'s' * (len(seeds) > 1)}", fontsize=10)
        column[1].set(xlabel="iteration", yscale="log")
    axes[0, 0].set_ylabel("mean KL held out\nas a share of TRPO's bound", fontsize=9)
    axes[1, 0].set_ylabel("largest ratio held out", fontsize=9)
    figures.label_log_axis(axes[1, 0])
    axes[0, 0].text(488, 1.02, "TRPO's bound", fontsize=8.5, ha="right", va="bottom")
    axes[1, 0].text(488, 1.24, "PPO clips at 1.2", fontsize=8.5, ha="right", va="bottom")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False, fontsize=9
    )
    return figure


def draw_updates() -> Figure:
    """Draws what the typical update changes: a dot a checkpoint, and the mean over checkpoints with its interval."""
    series = {
        f"{pairs:,} pairs": {f"{x}, {name}": mean_change(x, name, pairs) for x in UPDATED for name in AGENTS}
        for pairs in BATCHES
    }
    return draw_rows(
        series, "change of the return by an update: dots are checkpoints, lines 95 % intervals of means", MARGIN
    )


PICTURES = {"heldout": draw_heldout, "updates": draw_updates}
