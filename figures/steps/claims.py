"""How far a step goes (IM's Fig. 2 to 4; TPG's Fig. 9 and 28), and what the typical update does to the reward."""

import functools
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
from claims import Cells, Look, answered, n, of_sign, tally
from estimates import PLACES, Estimate, agent, bootstrap, by_seed, in_percent, measured, show, span
from matplotlib.axes import Axes
from pictures import LINES, STYLES, forest, label_log_axis, new_figure
from scipy import stats

BOUNDS = dict(Hopper=0.13, Walker2d=0.04, Humanoid=0.07)  # TRPO's, on the mean KL
AGENTS = "PPO", "PPO-M", "TRPO"


def numbers(rows: list[dict[str, Any]], part: str, bound: float) -> SimpleNamespace:
    """Returns the mean KL and that of one state as shares of TRPO's bound, and the largest ratio."""
    kl, state, ratio = (np.array([x[part][name] for x in rows]) for name in ("mean_kl", "max_kl", "max_ratio"))
    return SimpleNamespace(kl=kl / bound, state=state / bound, ratio=ratio, at=[x["iteration"] for x in rows])


@functools.cache
def seeds(place: str) -> list[dict[str, Any]]:
    """Returns these numbers of the steps of each seed by agent; `held` has the same on held-out states."""
    found = []
    for of in by_seed(f"steps/{place.lower()}"):
        found.append({})
        for name, rows in of.items():
            x = found[-1][name] = numbers(rows, "train", BOUNDS[place])
            x.held = numbers(rows, "heldout", BOUNDS[place])
        found[-1]["ratios"] = np.concatenate([x.ratio for x in found[-1].values()])
    return found


def rise(x: np.ndarray) -> float:
    """Returns the mean of the last quarter divided by that of the first."""
    return x[-(len(x) // 4) :].mean() / x[: len(x) // 4].mean()


def peaks(x: np.ndarray) -> bool:
    return bool(0 < x.argmax() < len(x) - 1 and x[-1] < x[0])


def own_bound() -> np.ndarray:
    """Returns the mean KL of all of TRPO's steps on the batches that they were made from, as shares of its bound."""
    return np.concatenate([of["TRPO"].kl for place in PLACES for of in seeds(place)])


def at_steps(form: str, look: Look, **bound: float) -> Cells:
    """Judges a claim about the steps of each seed that the papers say of Humanoid, so that tests elsewhere confirm and
    refute nothing."""
    cells = tally({x: seeds(x) for x in PLACES}, form, look, **bound)
    for place in UPDATED:
        cells[place].unlike = "the paper says it of Humanoid"
    return cells


def held_out(of: dict[str, Any]) -> tuple:
    kl = of["TRPO"].held.kl
    return max(kl), n(kl <= 1)


def least_ratio(of: dict[str, Any]) -> tuple:
    return min(of["ratios"]), n(of["ratios"] > 1.2), span(of["ratios"], 1)


def of_one_state(of: dict[str, Any]) -> tuple:
    return np.median(of["TRPO"].state), span(of["TRPO"].state)


def peaks_and_rises(of: dict[str, Any]) -> tuple:
    ppo, rises = of["PPO"], rise(of["PPO-M"].kl)
    return peaks(ppo.kl) and rises >= 1, str(ppo.at[ppo.kl.argmax()]), f"{rises:.1f}"


def largest_kl(of: dict[str, Any]) -> tuple:
    ppo, ppo_m = max(of["PPO"].kl), max(of["PPO-M"].kl)
    return max(ppo, ppo_m), f"{ppo:.2f}", f"{ppo_m:.2f}"


def largest_kl_of_ppo_m(of: dict[str, Any]) -> tuple:
    ppo_m = of["PPO-M"].kl
    return max(ppo_m), f"{max(ppo_m):.2f}", n(of["PPO"].kl > ppo_m)


def ratio_nearer(of: dict[str, Any]) -> tuple:
    nearer = of["PPO"].ratio < of["PPO-M"].ratio
    return nearer.mean(), n(nearer)


# What the typical update does to the reward (protocol.md) -------------------------------------------------------------

MARGIN, BATCHES, UPDATED = 5, (2048, 50_000), ("Walker2d", "Hopper")
FIRST, LATER = (0,), (150, 300, 450)  # iterations
CASES = [(x, y) for x in UPDATED for y in AGENTS]
TOGETHER = [([f"{name}'s update from {pairs:,} pairs" for name in AGENTS], UPDATED) for pairs in BATCHES]


def changes(place: str, name: str, pairs: int, iterations: Iterable[int] = LATER) -> list[dict[str, Any]]:
    """Returns the cells of all seeds at these iterations."""
    cells = [x for x in measured(f"steps/updates_{place.lower()}") if x["iteration"] in iterations]
    return [x for x in cells if x["agent"].removeprefix("CL-") == name and x["step_pairs"] == pairs]


def change(place: str, name: str, pairs: int, iterations: Iterable[int] = LATER) -> Estimate:
    """Returns the mean change of the return by an update, over the checkpoints, which are taken as fixed: the samples
    are updates, and not seeds."""
    samples = [[y["mean"] for y in x["changes"]] for x in changes(place, name, pairs, iterations)]
    return Estimate(samples, [1 / len(samples)] * len(samples))


def more(place: str, name: str) -> Estimate:
    """Returns by how much more an update from many pairs raises the return than one from a training batch."""
    few, many = (change(place, name, pairs) for pairs in BATCHES)
    return Estimate(many.samples + few.samples, [*many.weights, *(-x for x in few.weights)])


def as_sample(x: Estimate, by: int = 1) -> Estimate:
    """Returns the same with the checkpoints as the sample, as if they were independent, or runs of `by` checkpoints,
    which stand one after the other in the file."""
    count = round(1 / x.weights[0])
    parts = np.array([y.mean() for y in x.samples]).reshape(-1, count)  # of a difference: the many and the few
    return Estimate([(parts[0] - parts[1:].sum(0)).reshape(-1, by).mean(1)])


def from_many_over_runs() -> list[Estimate]:
    """Returns the change by an update from many pairs with the three runs as the sample, of the six cases."""
    return [as_sample(change(*case, BATCHES[1]), 3) for case in CASES]


def none_from_few_over_runs() -> bool:
    """Answers whether no change by an update from 2,048 pairs differs from 0 with the three runs as the sample, without
    correction."""
    return all(as_sample(change(*case, BATCHES[0]), 3).p() >= 0.05 for case in CASES)


def updates(estimate, *of: Any) -> Cells:
    """Judges whether the typical update raises the reward at these checkpoints, and says what its interval is with the
    three runs as the sample."""
    found = {place: estimate(place, *of) for place in UPDATED}
    by = 3 if FIRST not in of else 1  # checkpoints of a run
    return {x: of_sign(y, text=f"{answered(y, MARGIN)}; over runs {as_sample(y, by)}") for x, y in found.items()}


@functools.cache
def scatter(place: str, name: str, pairs: int) -> dict[str, dict[str, Any]]:
    """Returns the standard deviation of the true changes within a checkpoint, and the share of updates that lower the
    reward, if true changes are normal with this standard deviation, with BCa intervals over updates. Their mean is that
    over all checkpoints, as planned, or each checkpoint's own. Where the noise of the episodes explains all of the
    scatter, the shares would be 0 or 1, whatever the intervals of the means say, so that there are none."""
    samples = change(place, name, pairs).samples
    noise = np.mean([x["noise"] ** 2 for x in changes(place, name, pairs)])  # a variance

    def spread(*x: np.ndarray) -> np.ndarray:
        return np.maximum(sum(y.var(-1, ddof=1) for y in x) / len(x) - noise, 0) ** 0.5

    def harmful(*x: np.ndarray) -> np.ndarray:
        return stats.norm.cdf(-sum(y.mean(-1) for y in x) / len(x) / np.maximum(spread(*x), 1e-12))

    def harmful_at_each(*x: np.ndarray) -> np.ndarray:
        return sum(stats.norm.cdf(-y.mean(-1) / np.maximum(spread(*x), 1e-12)) for y in x) / len(x)

    found = {"spread": bootstrap(spread, *samples)}
    shares = dict(harmful=harmful, harmful_at_each=harmful_at_each) if found["spread"]["mean"] else {}
    return found | {name: bootstrap(share, *samples) for name, share in shares.items()}


def gained(place: str, name: str) -> list[float]:
    """Returns by how much training raised the return from the first to the last of the later checkpoints, per update,
    for each seed."""
    cells = changes(place, name, BATCHES[0])
    returns = {(x["run_seed"], x["iteration"]): np.mean([y["before"] for y in x["changes"]]) for x in cells}
    first, *_, last = LATER
    return [(returns[seed, last] - y) / (last - first) for (seed, at), y in sorted(returns.items()) if at == first]


def lengths(*names: str, places: Iterable[str] = UPDATED) -> np.ndarray:
    """Returns by how much longer a step from 2,000 pairs is than one from 50,000 of the same checkpoint, in parameters,
    at the checkpoints of single steps after iteration 0."""
    of = {}
    for x in (x for place in places for x in measured(f"landscapes/{place.lower()}") if agent(x) in names):
        of.setdefault((x["run"], x["iteration"]), {})[x["step_pairs"]] = x["step_norm"]
    return np.array([x[2000] / x[50_000] for x in of.values()])


def sampled(pairs: int) -> Estimate:
    """Returns the final reward of PPO with so many pairs an iteration, at its usual learning rate."""
    ends = f"num-steps={pairs} num-minibatches={pairs // 64} policy-lr=0.00045", "policy-lr=0.00045"
    [x] = [x for x in measured("gradients/samples")["settings"] if x["label"] == f"ppo {ends[pairs == 2048]}"]
    return Estimate([x["finals"]])


def table_of_updates() -> Iterable[list[str]]:
    """Yields how much updates differ in what they do, the share that lowers the reward, and the mean change with
    checkpoints as the sample."""
    shares = "share that harms", "the same, at each checkpoint's own mean"
    yield ["", "sd of the true changes", *shares, "mean change, checkpoints as the sample"]
    for place, pairs, name in ((x, y, z) for x in UPDATED for y in BATCHES for z in AGENTS):
        found = scatter(place, name, pairs)
        seen = show(found["spread"], 0) if found["spread"]["mean"] else "hidden by the noise of episodes"
        row = [f"{place}-v5, {name}, {pairs:,} pairs", seen]
        row += [in_percent(found[x]) if x in found else "cannot be told" for x in ("harmful", "harmful_at_each")]
        yield [*row, str(as_sample(change(place, name, pairs)))]


def promises() -> np.ndarray:
    """Returns by how much the surrogate rises in each update."""
    return np.array([y["promised"] for x in CASES for b in BATCHES for z in changes(*x, b) for y in z["changes"]])


def signs(name: str, pairs: int) -> np.ndarray:
    """Returns at each checkpoint whether its own interval is above 0 or below."""
    ends = [x["change"]["interval"] for place in UPDATED for x in changes(place, name, pairs)]
    return np.array([int(low > 0) - int(high < 0) for low, high in ends])


def judge_all() -> dict[str, Cells]:
    """Judges each row of the page's tables, in their order."""
    of_all = {x: seeds(x) for x in PLACES}
    return {
        "IM: TRPO keeps it on held-out states": tally(of_all, "kept at {} steps", held_out, below=1.1),
        "IM: no algorithm keeps the ratio in bounds": at_steps("beyond at {} steps, {}", least_ratio, above=1.2),
        "TPG: one state's KL is orders above the bound": at_steps("{} times the bound", of_one_state, above=100),
        "IM: PPO's KL peaks, PPO-M's rises": at_steps(
            "PPO's peak at iteration {} of 488; PPO-M's last quarter is {} times its first", peaks_and_rises
        ),
        "IM: PPO and PPO-M keep the KL small": at_steps("PPO at most {}, PPO-M {} of it", largest_kl, below=1),
        "BLOG: PPO-M does not keep the KL small": at_steps(
            "PPO-M at most {} of it; PPO's step is the longer at {}", largest_kl_of_ppo_m, above=1
        ),
        "BLOG: the optimizations keep the ratio nearer": at_steps(
            "PPO's is the smaller at {}", ratio_nearer, above=0.5
        ),
        "PPO's update from 2,048 pairs": updates(change, "PPO", 2048),
        "PPO-M's update from 2,048 pairs": updates(change, "PPO-M", 2048),
        "TRPO's update from 2,048 pairs": updates(change, "TRPO", 2048),
        "PPO's update from 50,000 pairs": updates(change, "PPO", 50000),
        "PPO-M's update from 50,000 pairs": updates(change, "PPO-M", 50000),
        "TRPO's update from 50,000 pairs": updates(change, "TRPO", 50000),
        "PPO's gains from more pairs": updates(more, "PPO"),
        "PPO-M's gains from more pairs": updates(more, "PPO-M"),
        "TRPO's gains from more pairs": updates(more, "TRPO"),
        "PPO's update of an untrained policy, from 2,048 pairs": updates(change, "PPO", 2048, FIRST),
        "PPO-M's update of an untrained policy, from 2,048 pairs": updates(change, "PPO-M", 2048, FIRST),
        "TRPO's update of an untrained policy, from 2,048 pairs": updates(change, "TRPO", 2048, FIRST),
        "PPO's update of an untrained policy, from 50,000 pairs": updates(change, "PPO", 50000, FIRST),
        "PPO-M's update of an untrained policy, from 50,000 pairs": updates(change, "PPO-M", 50000, FIRST),
        "TRPO's update of an untrained policy, from 50,000 pairs": updates(change, "TRPO", 50000, FIRST),
    }


# Pictures ------------------------------------------------------------------------------------------------------------


QUANTITIES = dict(mean_reward="mean return", max_ratio="largest ratio", mean_kl="mean KL (nats)")
QUANTITIES |= dict(max_kl="largest KL (nats)")


def draw_over_training(axis: Axes, place: str, part: str, quantity: str) -> None:
    """Draws a quantity of the steps over training, on the batch that a step was made from ("train") or held out, a line
    for each run (IM's Fig. 2 to 4)."""
    for i, of in enumerate(by_seed(f"steps/{place.lower()}")):
        for k, name in enumerate(AGENTS):
            known = [x for x in of[name] if x[part][quantity] is not None]  # a batch may end no episode
            style = dict(color=STYLES[name][0], ls=LINES[k], lw=1.1, label=None if i else name)
            axis.plot([x["iteration"] for x in known], [x[part][quantity] for x in known], **style)
    allowed = dict(max_ratio=1.2, mean_kl=BOUNDS[place])
    if quantity in allowed:
        axis.axhline(allowed[quantity], color="black", lw=0.8, ls=":")
    if quantity != "mean_reward":
        axis.set_yscale("log")
        label_log_axis(axis)


def trust_region(place: str):
    """Draws IM's Fig. 2 or 3 above and Fig. 4 below."""
    figure, axes = new_figure(2, 4, 4.4, sharex=True, sharey="col")
    for row, (part, text) in zip(axes, dict(train="training batch", heldout="held out").items()):
        for axis, quantity in zip(row, QUANTITIES):
            draw_over_training(axis, place, part, quantity)
        row[0].set_ylabel(text, fontsize=10)
    for axis, title in zip(axes[0], QUANTITIES.values()):
        axis.set_title(title, fontsize=10)
    axes[0, 1].plot([], [], ":", color="black", lw=0.8, label="allowed: 1 + eps, TRPO's mean KL")
    many = len(seeds(place)) > 1
    figure.supxlabel(f"iteration; {place}-v5, {len(seeds(place))} seed{'s' * many} of each", fontsize=9)
    return figure


def heldout():
    """Draws the mean KL on held-out states as a share of TRPO's bound, and the largest ratio, each seed a line."""
    figure, axes = new_figure(2, 3, 4.6, sharex=True, sharey="row")
    for column, place in zip(axes.T, PLACES):
        for i, of in enumerate(seeds(place)):
            for name in AGENTS:
                x = of[name]
                style = dict(color=STYLES[name][0], ls=LINES[AGENTS.index(name)], lw=1.2, label=None if i else name)
                column[0].plot(x.at, x.held.kl, **style)
                column[1].plot(x.at, x.held.ratio, **style)
        for axis, bound, says in zip(column, (1, 1.2), ("TRPO's bound", "PPO clips at 1.2")):
            axis.axhline(bound, color="black", lw=0.8, ls="--")
            axis.text(488, 1.02 * bound, says if place == "Walker2d" else "", fontsize=8.5, ha="right", va="bottom")
        column[0].set_title(f"{place}-v5, {len(seeds(place))} seed{'s' * (len(seeds(place)) > 1)}", fontsize=10)
        column[1].set(xlabel="iteration", yscale="log")
    axes[0, 0].set_ylabel("mean KL held out\nas a share of TRPO's bound", fontsize=9)
    axes[1, 0].set_ylabel("largest ratio held out", fontsize=9)
    label_log_axis(axes[1, 0])
    return figure


def drawn_updates():
    """Draws what the typical update changes: thick intervals are over updates at these checkpoints, thin ones over
    runs, dots are checkpoints."""
    rows = {}
    for place, name in CASES:
        for pairs in BATCHES:
            x = change(place, name, pairs)
            x.wider = as_sample(x, 3)
            rows.setdefault(f"{place}, {name}", {})[f"{place}, {pairs:,} pairs"] = x
    xlabel = "change of the return by an update; thin lines: the three runs are the sample"
    return forest({"": rows}, xlabel, [MARGIN], True)


PICTURES = {f"trust_region_{x.lower()}": functools.partial(trust_region, x) for x in ("Humanoid", *UPDATED)}
PICTURES |= dict(heldout=heldout, updates=drawn_updates)
