"""What each of the nine optimizations is worth (IM's Fig. 1, and one at a time)."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from claims import UNCLEAR, Cell, Cells, after_holm, counted, of_sign, room, turns
from estimates import Estimate, Runs, bootstrap, factorial, measured, plain, show
from pictures import forest, new_figure

ABLATED = "reward_scale", "anneal_lr", "orthogonal_init", "value_clip"
PLACES = "Walker2d", "Hopper"


# IM's grid: four of the nine, at four learning rates, two seeds each --------------------------------------------------


@functools.cache
def grid() -> list[tuple[dict[str, bool], np.ndarray]]:
    """Returns of each of IM's 16 settings which of the four are on, and the final rewards [rates, seeds]. Rates are in
    ascending order, and the seeds are the same two everywhere."""
    found = []
    for x in measured("nine/ablation")["settings"]:
        of_rates = sorted(x["tried"], key=lambda y: y["policy_lr"])
        found.append(({name: x["settings"][name] for name in ABLATED}, np.array([y["finals"] for y in of_rates])))
    return found


def at_best(rewards: np.ndarray) -> list[np.ndarray]:
    """Returns the rewards [seeds] at the rate whose mean is the highest, as IM chooses it."""
    return [rewards[rewards.mean(1).argmax()]]


def at_others_best(rewards: np.ndarray) -> list[np.ndarray]:
    """Returns each seed's reward [seeds] at the rate that is best for the other seed, so that none chose itself."""
    return [np.array([rewards[rewards[:, 1 - seed].argmax(), seed] for seed in (0, 1)])]


def effect(*names: str, choose: Callable = at_best, clip: bool | None = None) -> Estimate:
    """Returns the main effect of one of the four, or by how much more one is worth with another: at the rates that are
    chosen (`list` takes each rate as a setting), among all settings or those that clip values or do not."""
    among = [x for x in grid() if clip in (None, x[0]["value_clip"])]
    parts = [(on, y) for on, x in among for y in choose(x)]
    weights = factorial({i: on for i, (on, _) in enumerate(parts)}, *names)
    return Estimate([x for _, x in parts], weights.values())


def of_the_grid(*names: str) -> Cells:
    """As in IM's Fig. 1 the best rates decide, if rates that other seeds chose agree."""
    best, crossed = effect(*names), effect(*names, choose=at_others_best)
    verdict = of_sign(best).verdict
    verdict = verdict if verdict == of_sign(crossed).verdict else UNCLEAR
    text = f"{best}; cross-validated {crossed}; all rates {effect(*names, choose=list)}"
    return dict(Walker2d=Cell(text, verdict, sum(len(x.T) for _, x in grid()), max(best.p(), crossed.p())))


def best_place() -> Cells:
    """The best place of the grid with one of IM's three minus the best without it: one seed chooses both, the other
    says what they are worth."""
    leads = {name: [] for name in ABLATED[:3]}
    for name, seed in ((x, y) for x in leads for y in (0, 1)):
        sides = [np.concatenate([x for on, x in grid() if on[name] is side]) for side in (True, False)]
        yes, no = (x[x[:, 1 - seed].argmax(), seed] for x in sides)
        leads[name].append(yes - no)
    texts = [f"{name.replace('_', ' ')} {' and '.join(map(plain, x))}" for name, x in leads.items()]
    return dict(Walker2d=counted("; ".join(texts), [bool(min(x) > 0) for x in zip(*leads.values())]))


# One of the nine at a time --------------------------------------------------------------------------------------------


def case(cell: dict[str, Any]) -> tuple[str, bool]:
    """Returns which of the nine is switched, or "all", and whether the others are on."""
    return cell["switched"][0] if len(cell["switched"]) < 3 else "all", bool(cell["others_on"])


def of_batch(batch: str) -> dict[tuple[str, bool], np.ndarray]:
    """Returns the final reward with one of the nine, or with all, minus that without [seeds], by its name and by
    whether the others are on."""
    return {case(x): np.array(x["differences"]) for x in measured(f"nine/{batch}")["paired"]}


@functools.cache
def worth(place: str) -> dict[tuple[str, bool], np.ndarray]:
    """Returns the same over all seeds. Hopper's were trained in two batches."""
    batches = [of_batch(x) for x in (("walker2d",) if place == "Walker2d" else ("hopper", "hopper_new"))]
    return {key: np.concatenate([x[key] for x in batches]) for key in batches[0]}


def one_by_one(name: str, on: bool = True) -> Cells:
    return {place: of_sign(Estimate([worth(place)[name, on]])) for place in PLACES}


def scaling_raises() -> Cells:
    """Among the other eight, reward scaling meets a value clip of 0.2. Without a clip, in the experiment below that
    asks why, is the other definition, and how much more scaling is worth with the clip there is its test."""
    cells = one_by_one("reward_scale")
    for place, cell in cells.items():
        without = runs(place, "PPO-scaled - PPO-unscaled")
        more = runs(place, "PPO-scaled-clip - PPO-unscaled-clip - PPO-scaled + PPO-unscaled")
        cell.text += f"; without a value clip, on -v4: {without}"
        cell.depends = turns(cell.verdict, of_sign(without).verdict, more)
    return cells


def again(name: str, on: bool, sign: int) -> Cells:
    """Judges by the five new seeds on Hopper alone what the first five suggested."""
    x, all_seeds = (Estimate([y[name, on]]) for y in (of_batch("hopper_new"), worth("Hopper")))
    return dict(Hopper=of_sign(x, sign, text=f"{x}; all seeds {all_seeds}"))


def table_of_nine() -> Iterable[list[str]]:
    """Yields what each of the nine is worth, by environment and by whether the others are on."""
    yield ["", "Hopper-v5, the others on", "the others off", "Walker2d-v5, the others on", "the others off"]
    for i, name in enumerate(name for name, on in worth("Hopper") if on):
        cells = [Estimate([worth(place)[name, on]]) for place in ("Hopper", "Walker2d") for on in (True, False)]
        yield [f"{i + 1} `--{name.replace('_', '-')}`", *map(str, cells)]
    hopper, walker2d = (str(Estimate([worth(x)["all", False]])) for x in ("Hopper", "Walker2d"))
    yield ["all nine together", hopper, "", walker2d, ""]


def significant() -> list[tuple[str, str, bool]]:
    """Returns which of all differences of both environments stand after Holm's correction for one another."""
    of = {(place, *key): Estimate([x]) for place in PLACES for key, x in worth(place).items() if x.any()}
    return [key for key, stands in zip(of, after_holm(of.values())) if stands]


def noise_of_all_nine() -> list[dict[str, Any]]:
    """Returns the cosines of two gradient estimates with all nine and with none, at each of four checkpoints."""
    [pair] = [x for x in measured("nine/noise")["paired"] if case(x) == ("all", False)]
    return pair["noise"]


def noise() -> list[str]:
    """Writes what all nine do to the cosine of two gradient estimates at four checkpoints."""
    return [show(x["mean"], 2) for x in noise_of_all_nine()]


def cosines() -> dict[str, list[str]]:
    """Writes the cosine itself after the start of training, with all nine and with none, the mean of both seeds."""
    mean = lambda of_seeds: plain(np.mean([cosine for cosine, *_ in of_seeds]), 3)
    return {side: [mean(x[side]) for x in noise_of_all_nine()[1:]] for side in ("on", "off")}


# Why scaling matters (protocol.md) ------------------------------------------------------------------------------------

AGENTS = {
    "PPO-scaled-clip": "scaling, clip of 0.2",
    "PPO-scaled": "scaling, no clip",
    "PPO-unscaled-clip": "no scaling, clip of 0.2",
    "PPO-unscaled-wide-clip": "no scaling, clip in the rewards' units",
    "PPO-unscaled": "no scaling, no clip",
    "PPO-unscaled-value-rate": "no scaling, no clip, 5 x value rate",
}
TWICE = "clipping/rates_hopper as PPO-3e-4=PPO-scaled"  # ten seeds were trained twice: the mean of two runs counts
runs, own = Runs("nine/scaling_{}", TWICE), Runs("nine/scaling_{}")
before = Runs("nine/hopper", "nine/hopper_new", "nine/walker2d")
TOGETHER = [(["the clip needs the rewards' units"], PLACES)]
planned = functools.partial(room("reward").planned, of=runs, size=None)


def brought_back(place: str) -> dict[str, Any]:
    """Returns the share of what scaling is worth with the clip of 0.2 that the wide clip is worth without scaling."""
    share = lambda wide, x, scaled: (wide.mean(-1) - x.mean(-1)) / (scaled.mean(-1) - x.mean(-1))
    samples = (runs.of(place)[f"PPO-{x}"] for x in ("unscaled-wide-clip", "unscaled-clip", "scaled-clip"))
    return bootstrap(share, *samples)


def wide_clip(place: str) -> float:
    """Returns 0.2 times what scaling divides the rewards by in the end, the mean of ten runs."""
    return 0.2 * np.mean([x["std"] for x in measured("nine/units") if x["env_id"] == f"{place}-v4"])


def judge_all() -> dict[str, Cells]:
    """Judges each row of the page's tables, in their order."""
    return {
        "IM: all nine raise PPO's reward": one_by_one("all", False),
        "IM: reward scaling raises PPO's reward": scaling_raises(),
        "IM: annealing raises PPO's reward": one_by_one("anneal_lr"),
        "IM: orthogonal initialization raises PPO's reward": one_by_one("orthogonal_init"),
        "IM: scaling raises the grid's rewards": of_the_grid("reward_scale"),
        "IM: annealing raises the grid's rewards": of_the_grid("anneal_lr"),
        "IM: initialization raises the grid's rewards": of_the_grid("orthogonal_init"),
        "IM: the best place needs the three": best_place(),
        "value clipping raises the grid's rewards": of_the_grid("value_clip"),
        "scaling is worth more with value clipping": of_the_grid("reward_scale", "value_clip"),
        "value clipping alone lowers it": again("value_clip", False, -1),
        "scaling alone lowers it": again("reward_scale", False, -1),
        "annealing alone lowers it": again("anneal_lr", False, -1),
        "gradient clipping alone raises it": again("grad_clip", False, 1),
        "gradient clipping among all lowers it": again("grad_clip", True, -1),
        "the clip needs the rewards' units": planned("PPO-unscaled-wide-clip - PPO-unscaled-clip"),
        "scaling beside a clip in its units": planned("PPO-scaled-clip - PPO-unscaled-wide-clip"),
        "scaling with the clip of 0.2": planned("PPO-scaled-clip - PPO-unscaled-clip"),
        "scaling without a clip": planned("PPO-scaled - PPO-unscaled"),
        "scaling against five times the value rate": planned("PPO-scaled - PPO-unscaled-value-rate"),
        "scaling is worth more with the clip": planned(
            "PPO-scaled-clip - PPO-unscaled-clip - PPO-scaled + PPO-unscaled"
        ),
        "without scaling, no clip is better than that of 0.2": planned("PPO-unscaled - PPO-unscaled-clip"),
        "without scaling, the wide clip is better than none": planned("PPO-unscaled-wide-clip - PPO-unscaled"),
    }


# Pictures ------------------------------------------------------------------------------------------------------------


def histograms():
    """Draws IM's Fig. 1: histograms of the final rewards at each setting's best rate, with each of the four on and off
    (rewards.py --best-of draws it from runs)."""
    figure, [axes] = new_figure(1, 4, 2.5, sharex=True, sharey=True)
    finals = {i: at_best(rewards)[0] for i, (_, rewards) in enumerate(grid())}
    edges = np.histogram_bin_edges(np.concatenate([*finals.values()]), 15)
    for axis, name in zip(axes, ABLATED):
        for value, label, colour in ((True, "on", "#0072b2"), (False, "off", "#e69f00")):
            rewards = np.concatenate([finals[i] for i, (on, _) in enumerate(grid()) if on[name] is value])
            axis.hist(rewards, edges, label=label, color=colour, alpha=0.6, edgecolor="black", lw=0.6)
            axis.plot(rewards.mean(), -0.25, "^", color=colour, ms=5, clip_on=False)
        axis.set_title(name.replace("_", " "), fontsize=10)
    axes[0].set_ylabel("runs", fontsize=9)
    figure.supxlabel("final reward on Walker2d-v5, 32 runs; triangles are means", fontsize=9)
    return figure


def drawn_grid():
    """Draws the grid: the reward against the learning rate, a line for each state of scaling and value clipping, and a
    dot for each run."""
    figure, [axes] = new_figure(1, 2, 3.4, sharey=True)
    rates = sorted(y["policy_lr"] for y in measured("nine/ablation")["settings"][0]["tried"])
    for axis, clip in zip(axes, (True, False)):
        for scale, face, line in ((True, "#0072b2", "-"), (False, "white", "--")):  # Walker2d's colour
            of = np.array([x for on, x in grid() if on["value_clip"] is clip and on["reward_scale"] is scale])
            of_rates = of.transpose(1, 0, 2).reshape(len(rates), -1)
            style = dict(color="#0072b2", marker="o", mfc=face)
            label = "with reward scaling" if scale else "without reward scaling"
            axis.plot(rates, of_rates.mean(1), ls=line, ms=7, lw=2, label=label, **style)
            for rate, x in zip(rates, of_rates):
                axis.plot([rate * (1.05 if scale else 1 / 1.05)] * len(x), x, ls="", ms=3, alpha=0.6, **style)
        axis.set_xscale("log")
        axis.set_xticks(rates, [f"{x:g}" for x in rates])
        axis.minorticks_off()
        axis.set_title("with value clipping" if clip else "without value clipping", fontsize=10)
        axis.set_xlabel("learning rate of the policy; lines: means of 8 runs, dots: runs", fontsize=9)
    axes[0].set_ylabel("final reward on Walker2d-v5", fontsize=9)
    return figure


def paired():
    """Draws what each of the nine is worth, sorted by its effect on Walker2d among the others, one scale for all."""
    order = sorted((name for name, on in worth("Walker2d") if on), key=lambda x: worth("Walker2d")[x, True].mean())
    panels = {}
    for place in ("Hopper", "Walker2d"):
        rows = {"all nine": {f"{place}, the others off": Estimate([worth(place)["all", False]])}}
        for name in order:
            says = {f"{place}, the others {'on' if on else 'off'}": worth(place)[name, on] for on in (True, False)}
            rows[name.replace("_", " ")] = {x: Estimate([y]) for x, y in says.items() if y.any()}
        panels[f"{place}-v5, {len(worth(place)['all', False])} seeds"] = rows
    return forest(panels, "final reward with it minus without it; dots are seeds", [0, 0], dots=True, sharex=True)


def scaling():
    rows = {says: {x: runs(x, name) for x in PLACES} for name, says in AGENTS.items()}
    return forest({"": rows}, "final reward on -v4: dots are runs, lines 95 % intervals of the means", dots=True)


PICTURES = dict(histograms=histograms, grid=drawn_grid, paired=paired, scaling=scaling)
