"""Draws pictures of the results page again. It reads the numbers that stand in this folder and needs no runs.

    python figures/draw.py                              # all of them
    python figures/draw.py noise/hopper guide/evaluate  # these alone

The diagnostics draw a figure for whoever has the runs. These pictures show the same numbers to a reader of the
page: with its names, on scales that suit these numbers, or from several files. The other pictures of the page are the
diagnostics' own.

Every algorithm has a marker of its own beside its colour, so that a picture can be read without colours. The page shows
the figures at about 100 pixels an inch, where a font of 9 points is 12 pixels high.
"""

import io
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator
from PIL import Image
from scipy import stats

sys.path.append(str(Path(__file__).parent.parent / "diagnostics"))

import claims
import rewards
from measuring import figures, intervals

HERE = Path(__file__).parent
WIDTH, SMALL = 9, 9  # the width of a figure in inches, and its smallest font in points
LINES = "-", "--", "-."  # of algorithms, in turn
BATCH = 2048  # pairs of a training batch, in all runs whose noise scale is drawn


def read(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text())


def styles(algo_of: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Returns the style of each name, given its algorithm. Colours and markers are those of the diagnostics. The lines
    differ too, because they are long and have few markers."""
    looks = figures.line_styles(algo_of).items()
    larger = dict(markersize=5, linewidth=1.5)
    return {name: style | larger | dict(linestyle=LINES[k % len(LINES)]) for k, (name, style) in enumerate(looks)}


def draw_legend(figure: Figure, handles: list[Line2D], columns: int) -> None:
    """Draws the legend above the panels, where it cannot hide data."""
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False, fontsize=SMALL + 1)


# The noise scale with four estimators ---------------------------------------------------------------------------------

# The estimators' names in the files, and their names on the page, colours and markers.
ESTIMATORS = {
    "true value function": ('"true" value function', figures.COLOURS["trpo"], "D"),
    "value network": ("value network", figures.COLOURS["ppo"], "o"),
    "returns - true value function": ('returns minus "true" values', figures.COLOURS["trpo_plus"], "s"),
    "discounted returns (no baseline)": ("no baseline (returns)", figures.COLOURS["vmpo"], "X"),
}
LOWER, OPEN = "^", r"$\uparrow$"  # the marks of a lower bound, and of an interval that has no upper end


def draw_baselines() -> Figure:
    """Draws the noise scale of PPO's gradient with each estimator at three iterations, of one seed (CL Fig. 4)."""
    figure, [axes] = figures.new_figure(1, 2, (WIDTH, 4.4), sharey=True)
    for axis, env in zip(axes, ("walker2d", "hopper")):
        cells = read(f"baselines/{env}")
        axis.set(yscale="log", ylim=(1_000, 2_000_000), xlim=(-0.5, len(cells) - 0.5))
        axis.axhline(BATCH, color="black", linestyle="--", linewidth=1)
        for at, cell in enumerate(cells):
            axis.axvline(at - 0.5, color="0.85", linewidth=0.8)
            for k, (name, (_, colour, marker)) in enumerate(ESTIMATORS.items()):
                draw_interval(axis, at + 0.18 * (k - 1.5), cell["noise_scale"][name], colour, marker)
        box = dict(color="white", pad=1)  # hides the line between two iterations
        axis.text(-0.45, 0.9 * BATCH, f"training batch: {BATCH:,} pairs", va="top", fontsize=SMALL, bbox=box)
        axis.set_xticks(range(len(cells)), [cell["iteration"] for cell in cells])
        axis.set(title=cells[0]["run"].split("__")[0], xlabel="iteration")
    axes[0].set_ylabel("noise scale (state-action pairs)")
    figures.label_log_axis(axes[0])
    marks = [Line2D([], [], color=x, marker=y, linestyle="", label=name) for name, x, y in ESTIMATORS.values()]
    grey = dict(color="0.4", linestyle="", markersize=7)
    lower = Line2D([], [], marker=LOWER, label="only a lower bound", **grey)
    no_end = Line2D([], [], marker=OPEN, label="no upper end", **grey)
    # A legend is filled column by column. In this order, the estimators have the first row, as the dots have theirs.
    draw_legend(figure, [marks[0], lower, marks[1], no_end, *marks[2:]], 4)
    return figure


def draw_interval(axis: Axes, x: float, scale: dict[str, Any], colour: str, marker: str) -> None:
    """Draws a noise scale with its 95 % interval. An interval without an upper end goes to the top of the panel and has
    an arrow there. If there is no estimate either, a triangle stands at the lower end."""
    (low, high), top = scale["interval"], axis.get_ylim()[1] / 1.25
    axis.plot([x, x], [low, high or top], color=colour, linewidth=1.5)
    if high is None:
        axis.plot(x, top, marker=OPEN, color=colour, markersize=9)
    if scale["pairs"] is None:
        axis.plot(x, low, LOWER, color=colour, markersize=8)
    else:
        axis.plot(x, scale["pairs"], marker, color=colour, markersize=6)
        ends = [low] if high is None else [low, high]
        axis.plot([x] * len(ends), ends, "_", color=colour, markersize=6)


# GUIDE's five algorithms ----------------------------------------------------------------------------------------------

# The page calls trpo_plus.py TRPO here, because it is GUIDE's TRPO with GUIDE's choice of the optimizations.
GUIDE_NAMES = dict(ppo="PPO", trpo_plus="TRPO", vmpo="V-MPO", a2c="A2C", reinforce="REINFORCE")
BOUND = 0.01  # nats; TRPO's bound on the mean KL, and V-MPO's on the part of it that is due to the policy's means
# The return of GUIDE's PPO on HalfCheetah-v4, by million steps. The table has no other algorithm of GUIDE's.
GUIDE_TABLE_3 = {1: 4332, 8: 6414}


def guide_styles() -> dict[str, dict[str, Any]]:
    """Returns the style of each algorithm."""
    looks = styles({name: algo for algo, name in GUIDE_NAMES.items()})
    return {algo: looks[name] for algo, name in GUIDE_NAMES.items()}


def draw_kl() -> Figure:
    """Draws the mean KL of an iteration through training (GUIDE Fig. 5). The file has the mean of two seeds, taken of
    logarithms, and its t interval. From two seeds this interval is 12.7 times as wide as what lies between them, so the
    seeds follow from it, and the band reaches from the one to the other."""
    figure, [[axis]] = figures.new_figure(1, 1, (WIDTH, 4.2))
    settings, looks = {x["algo"]: x for x in read("guide/rewards")["settings"]}, guide_styles()
    for k, (algo, style) in enumerate(looks.items()):
        assert len(settings[algo]["seeds"]) == 2
        steps, mean, low, high = (np.array(settings[algo]["kl"][x]) for x in ("steps", "mean", "low", "high"))
        ratio = (high / low) ** (0.5 / stats.t.ppf(0.975, 1))
        axis.plot(steps / 1e6, mean, **style, markevery=(2 * k, 10))  # so that markers do not hide one another
        axis.fill_between(steps / 1e6, mean / ratio, mean * ratio, color=style["color"], alpha=0.25, linewidth=0)
    means = axis.get_lines()
    axis.axhline(BOUND, color="black", linestyle="--", linewidth=1)
    axis.text(8.2, BOUND, "0.01 nats, the bound\nof TRPO and V-MPO", va="center", fontsize=SMALL)
    axis.set(title="HalfCheetah-v4, mean of two seeds (band: from one seed to the other)")
    axis.set(xlabel="steps (millions)", ylabel="mean KL of an iteration (nats)")
    axis.set(yscale="log", ylim=(5e-7, 0.3), xlim=(-0.15, 8.15))
    draw_legend(figure, means, len(means))
    return figure


def draw_evaluate() -> Figure:
    """Draws the mean return of 10 episodes that act with the policy's mean (GUIDE Fig. 4), and the returns that GUIDE
    prints for its PPO."""
    figure, [[axis]] = figures.new_figure(1, 1, (WIDTH, 4.4))
    cells, looks = sorted(read("guide/evaluate"), key=lambda x: x["global_step"]), guide_styles()
    for algo, style in looks.items():
        of_runs = {}
        for cell in (x for x in cells if x["algo"] == algo):
            of_runs.setdefault(cell["run"], []).append((cell["global_step"] / 1e6, cell["returns"]))
        figures.draw_setting(axis, [tuple(zip(*points)) for points in of_runs.values()], style)
    means = [line for line in axis.get_lines() if line.get_label() in GUIDE_NAMES.values()]
    for line in set(axis.get_lines()) - set(means):
        line.set(linewidth=0.8, alpha=0.8)  # draw_setting's are too thin for this size
    for million, value in GUIDE_TABLE_3.items():
        x = 8.22 if million == 8 else million  # in the margin, because the lines end close together
        star = dict(marker="*", markersize=13, color=figures.COLOURS["ppo"], markerfacecolor="white", linestyle="")
        [paper] = axis.plot(x, value, **star, label="GUIDE, Table 3 (PPO)")
        axis.annotate(f"{value}", (x, value), (9, 0), textcoords="offset points", va="center", fontsize=SMALL)
    axis.set(title="HalfCheetah-v4, mean of two seeds (thin: each seed)", xlim=(-0.2, 8.8))
    axis.set(xlabel="steps (millions)", ylabel="episode return")
    draw_legend(figure, [*means, paper], len(means) + 1)
    return figure


COLLAPSES = (  # file, the argument in which its runs differ, and that argument's name in the picture
    ("entropy", "entropy_coef", "entropy coefficient"),
    ("epochs", "policy_epochs", "epochs"),
)


def draw_collapse() -> Figure:
    """Draws A2C with three entropy coefficients on the left (GUIDE Fig. 6), and A2C and REINFORCE with one, two and
    five epochs on the right (GUIDE Fig. 7). The mean return of training is above, and the mean KL of an iteration
    below. Each line is a mean over three seeds, and that of the KL is a mean of logarithms."""
    figure, axes = figures.new_figure(2, 2, (WIDTH, 5.6), sharex="col", sharey="row")
    for column, (name, changed, title) in zip(axes.T, COLLAPSES):
        settings = sorted(read(f"guide/{name}")["settings"], key=lambda x: (x["algo"], x["settings"][changed]))
        values = sorted({x["settings"][changed] for x in settings})
        for cell in settings:
            value = cell["settings"][changed]
            style = figures.look(cell["algo"]) | dict(marker="", linestyle=LINES[values.index(value)], linewidth=1.5)
            style["label"] = f"{GUIDE_NAMES[cell['algo']]}, {value:g}"
            for axis, number in zip(column, ("curve", "kl")):
                steps, mean = (np.array(cell[number][x]) for x in ("steps", "mean"))
                axis.plot(steps / 1e6, mean, **style)
        column[0].legend(frameon=False, fontsize=SMALL, title=title)
        column[1].set_xlabel("steps (millions)")
    axes[0, 0].set_ylabel("episode return")
    axes[1, 0].set(ylabel="mean KL of an iteration (nats)", yscale="log")
    figure.suptitle("HalfCheetah-v4, means of three seeds", fontsize=SMALL + 1)
    return figure


# The noise scale through training -------------------------------------------------------------------------------------


def draw_noise(env: str) -> Figure:
    """Draws the training batch divided by the noise scale B, through training, of seed 1. It is proportional to
    1 / B, whose interval always has two ends: where B may have any size, that of 1 / B reaches down to 0. Estimates of
    1 / B below 0 are drawn at 0."""
    figure, [[axis]] = figures.new_figure(1, 1, (WIDTH, 4.4))
    [cells, *_], looks = claims.by_seed(f"noise/{env}"), styles({"PPO": "ppo", "PPO-M": "ppo", "TRPO": "trpo_plus"})
    for k, (name, style) in enumerate(looks.items()):
        own = cells[name]
        scales = [cell["noise_scale"]["value network"] for cell in own]
        ends = BATCH * np.array([scale["inverse_interval"] for scale in scales]).clip(min=0)
        y = BATCH * np.array([scale["grad_sq"] / scale["trace"] for scale in scales]).clip(min=0)
        x = np.array([cell["iteration"] for cell in own]) + 5 * (k - 1)  # so that intervals do not hide one another
        style = style | dict(linewidth=0.8)
        axis.plot(x, y, **style)
        axis.vlines(x, *ends.T, color=style["color"], linewidth=1.5)
        reaches_0 = ends[:, 0] == 0
        hollow = dict(linestyle="", markerfacecolor="white", zorder=3, label=None)
        axis.plot(x[reaches_0], y[reaches_0], **style | hollow)
    axis.axhline(1, color="black", linestyle="--", linewidth=1)
    axis.text(462, 1.1, "batch = noise scale", ha="right", va="bottom", fontsize=SMALL)
    axis.set(title=cells["PPO"][0]["run"].split("__")[0], xlabel="iteration", xlim=(-14, 466))
    axis.set_ylabel(f"training batch / noise scale\n({BATCH:,} pairs / noise scale)")
    label_both_sides(axis)
    empty = Line2D([], [], marker="o", color="0.4", markerfacecolor="white", linestyle="", label="interval reaches 0")
    draw_legend(figure, [*axis.get_legend_handles_labels()[0], empty], 4)
    return figure


def label_both_sides(axis: Axes) -> None:
    """Labels the batch divided by B on the left, and B on the right. The scale is logarithmic above 0.01 and linear
    below, so that 0 is on the axis, where B is infinite."""
    pairs = axis.twinx()
    pairs.set_ylabel("noise scale (state-action pairs)")
    left = {y: f"{y:g}" for y in (0, 0.005, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)}
    right = {BATCH / B: f"{B:,}" for B in (300_000, 100_000, 30_000, 10_000, 3_000, 1_000, 300)}
    for side, ticks in ((axis, left), (pairs, {0: "infinite"} | right)):
        side.set_yscale("symlog", linthresh=0.01, linscale=0.5)
        side.set_ylim(-0.0012, 16)
        side.set_yticks(list(ticks), list(ticks.values()))
        side.yaxis.set_minor_locator(NullLocator())


# The eight scripts ----------------------------------------------------------------------------------------------------

NAMES = dict(ppo="PPO", ppo_m="PPO-M", ppo_noclip="PPO-NoClip", trpo="TRPO", trpo_plus="TRPO+")
NAMES |= dict(reinforce="REINFORCE", a2c="A2C", vmpo="V-MPO")


def draw_algorithms() -> Figure:
    """Draws the learning curves of the eight scripts. The file has mean curves over three seeds, averaged over 11
    iterations, and the final reward of each seed, but no seed's curve. The final rewards stand to the right of the
    curves, in a column for each script. The last of the 100 places of a curve is left out, because the average there
    is more than half the last iteration alone."""
    figure, [axes] = figures.new_figure(1, 2, (WIDTH, 4.6))
    looks, settings = styles({name: algo for algo, name in NAMES.items()}), read("algorithms/rewards")["settings"]
    for axis, env_id in zip(axes, ("Hopper-v5", "HalfCheetah-v5")):
        for k, (algo, name) in enumerate(NAMES.items()):
            [cell] = [x for x in settings if (x["env_id"], x["algo"]) == (env_id, algo)]
            steps, rewards = (np.array(cell["curve"][x])[:-1] for x in ("steps", "mean"))
            axis.plot(steps / 1e6, rewards, **looks[name], markevery=(k, 12))
            dots = looks[name] | dict(linestyle="", markersize=4, label=None)
            axis.plot([1.06 + 0.035 * k] * len(cell["finals"]), cell["finals"], **dots)
        axis.axvline(1.02, color="0.8", linewidth=0.8)
        ticks = np.linspace(0, 1, 6)
        axis.set_xticks([*ticks, 1.18], [*(f"{x:.1f}" for x in ticks), "final of\neach seed"])
        axis.set_xlabel("steps (millions)", x=0.4, labelpad=-8)  # beside the second line of the last tick
        axis.set_title(env_id)
    axes[0].set_ylabel("episode return")
    draw_legend(figure, axes[0].get_legend_handles_labels()[0], 4)
    return figure


# What each of the nine is worth ---------------------------------------------------------------------------------------


def draw_paired() -> Figure:
    """Draws what each of the nine optimizations is worth, in each environment over all its seeds. Hopper's were trained
    in two batches, and each batch has its file."""
    panels = {}
    for names in (("hopper", "hopper_new"), ("walker2d",)):
        batches = [read(f"leave-one-out/{name}")["paired"] for name in names]
        cells = [pool(same) for same in zip(*batches, strict=True)]
        panels[f"{cells[0]['env_id']}, {len(cells[0]['seeds'])} seeds"] = cells
    figure = rewards.draw_differences([panels], "final reward with it minus without it")
    of_label = {label: line for axis in figure.axes for line, label in zip(*axis.get_legend_handles_labels())}
    draw_legend(figure, list(of_label.values()), len(of_label))
    return figure


def pool(batches: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """Returns one cell for the same difference in several batches of seeds. Their arguments are those of the last one:
    Hopper's first batch was trained when one argument clipped both networks' gradients."""
    [_] = {(x["switched"][0], len(x["switched"]) > 2, bool(x["others_on"])) for x in batches}
    seeds, differences = ([y for x in batches for y in x[key]] for key in ("seeds", "differences"))
    return batches[-1] | dict(seeds=seeds, differences=differences, mean=intervals.mean_of(np.array(differences)))


# Stable-Baselines3's PPO beside ours ----------------------------------------------------------------------------------

SB3 = {  # the columns: title, and the number of a cell; in both programs a rollout has BATCH pairs
    "batch / noise scale": lambda x: max(0.0, BATCH * x["noise_scale"]["grad_sq"] / x["noise_scale"]["trace"]),
    "mean KL of an update (nats)": lambda x: x["heldout"]["mean_kl"],
    "median relative error of V": lambda x: x["value_error"]["median"],
    "length of the critic's step": lambda x: x["critic_step"],
}


def draw_sb3() -> Figure:
    """Draws PPO of Stable-Baselines3 (SB3) and of this project, each at its defaults, in two environments: three seeds
    as thin lines, and their mean. Only SB3 has a joint gradient norm, so only its critic's step is shortened by it."""
    figure, axes = figures.new_figure(2, len(SB3), (WIDTH, 4.8), sharex=True, sharey="col")
    looks = styles({"PPO of SB3": "trpo_plus", "ppo.py": "ppo"})
    for row, env in zip(axes, ("hopper", "halfcheetah")):
        cells = read(f"sb3/{env}")
        for (name, style), algo in zip(looks.items(), ("sb3", "ppo")):
            for axis, number in zip(row, SB3.values()):
                draw_seeds(axis, [x for x in cells if x["algo"] == algo], number, style | dict(label=name))
        row[0].set_ylabel(cells[0]["run"].split("__")[0])
    axes[0, 0].set_yscale("symlog", linthresh=0.01, linscale=0.5)
    axes[0, 0].set_ylim(-0.001, 6)
    axes[0, 0].set_yticks([0, 0.01, 0.1, 1], ["0", "0.01", "0.1", "1"])
    for axis in axes[:, 1:3].ravel():
        axis.set_yscale("log")
        figures.label_log_axis(axis)
    axes[0, 3].set_ylim(0, 1.05)
    for axis, title in zip(axes[0], SB3):
        axis.set_title(title, fontsize=SMALL)
    for axis in axes[1]:
        axis.set_xlabel("iteration")
    draw_legend(figure, axes[0, 0].get_legend_handles_labels()[0], 2)
    return figure


def draw_seeds(axis: Axes, cells: list[dict[str, Any]], number: Callable, style: dict[str, Any]) -> None:
    """Draws a number of each run as a thin line, and the mean of the runs with markers."""
    of_runs = {}
    for cell in cells:
        try:
            of_runs.setdefault(cell["run"], {})[cell["iteration"]] = number(cell)
        except KeyError:  # it was not measured at this checkpoint
            pass
    for of_run in of_runs.values():
        axis.plot(list(of_run), list(of_run.values()), **style | dict(marker="", linewidth=0.6, label=None))
    common = sorted(set.intersection(*map(set, of_runs.values()))) if of_runs else []
    axis.plot(common, [np.mean([x[at] for x in of_runs.values()]) for at in common], **style)


# Main -----------------------------------------------------------------------------------------------------------------

PICTURES: dict[str, Callable[[], Figure]] = {
    "algorithms/rewards": draw_algorithms,
    "baselines/baselines": draw_baselines,
    "guide/collapse": draw_collapse,
    "guide/evaluate": draw_evaluate,
    "guide/rewards_kl": draw_kl,
    "leave-one-out/paired": draw_paired,
    "noise/hopper": partial(draw_noise, "hopper"),
    "noise/walker2d": partial(draw_noise, "walker2d"),
    "sb3/sb3": draw_sb3,
}


def main(names: list[str]) -> None:
    if unknown := [name for name in names if name not in PICTURES]:
        raise SystemExit(f"draw.py: there is no {', '.join(unknown)} among {', '.join(PICTURES)}")
    for name in names or PICTURES:
        figure, drawn = PICTURES[name](), io.BytesIO()
        for axis in figure.axes:
            axis.spines["top"].set_visible(False)
            axis.spines["right"].set_visible(axis.yaxis.get_label_position() == "right")
        figure.savefig(drawn, dpi=150)
        # In 256 colours a picture looks the same and takes a third of the space.
        Image.open(drawn).convert("RGB").quantize(256).save(HERE / f"{name}.png", optimize=True)
        print(HERE / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
