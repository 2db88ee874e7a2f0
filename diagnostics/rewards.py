"""Which setting earns more, and how sure is that? This script compares reward curves and final rewards of runs, with
intervals over seeds.

    python diagnostics/rewards.py runs/* --out results
    python diagnostics/rewards.py runs/Hopper-v5__ppo__* --paired --noise results/gradient.jsonl --out results
    python diagnostics/rewards.py runs/*__ppo__* --best-of policy_lr --histograms value_clip anneal_lr --out results
    python diagnostics/rewards.py runs/* --aai PPO PPO-M TRPO TRPO+ --labels "PPO=ppo reward-scale" \\
        "PPO-M=ppo no-reward-scale" "TRPO=trpo_plus no-reward-scale" "TRPO+=trpo_plus reward-scale" --out results

Runs whose arguments differ only in environment and seed are runs of one setting. Its label is the algorithm and the
flags that distinguish it from the algorithm's other settings here, except those that are the script's defaults. The
reward of an iteration is the mean undiscounted return of the episodes that ended in it; the final reward of a run is
the mean over the last five iterations in which an episode ended. Runs that are not finished are named and left out.
Runs under one label of --labels may differ in other arguments between environments, but not within one.

Intervals are 95 % intervals over runs; for one run there is none. Those of means and of differences seed by seed are
Student's t, and those of differences between settings are Welch's. (The papers' percentile bootstrap covers 91 % with
10 runs, and 73 % with 3.) For interquartile means and probabilities of improvement, give the final rewards, which
rewards.json has, to the package rliable. --aai gives Table 2 of "Implementation Matters in Deep Policy Gradients" (IM),
and --best-of with --histograms gives its Fig. 1. The best one has the highest mean final reward on the seeds that all
have; as in IM, its own runs chose it, which flatters it. --kl gives Fig. 5 of "The Definitive Guide to Policy
Gradients" (GUIDE), with the exact KL(before || after the whole update) over the batch where GUIDE has the estimate
E[(r - 1) - ln r]. With --noise, the noise of gradients is shown as the cosine of two estimates from a training batch.

IM's AAI and ACLI are each the larger of two absolute differences, so they are above 0 even where nothing differs, and
have no interval. The main effects of the same four settings say what AAI and ACLI are meant to say. The effect of the
optimizations is the mean of PPO - PPO-M and TRPO+ - TRPO, and that of the step is the mean of PPO - TRPO+ and PPO-M -
TRPO. The interaction is half of how much more the optimizations add to PPO than to TRPO.

If requested runs are missing or unfinished, the other tables are still written, a line names what is missing, and the
exit status is 1.
"""

import json
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro
from matplotlib.figure import Figure
from measuring import figures, intervals, kept, runs

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """run folders, of any algorithms and environments"""
    folders: Path | None = None
    """file that names more of them, one per line, if they are too many for a command line"""
    labels: tuple[str, ...] = ()
    """labels of your own, each "LABEL=ALGO FLAG ...", for runs with these flags, spelled as in names of run folders"""
    best_of: tuple[str, ...] = ()
    """arguments such as policy_lr; of settings that differ in nothing else, keep the best one in each environment"""
    histograms: tuple[str, ...] = ()
    """on/off arguments; for each, draw histograms of all final rewards with it on and off"""
    paired: bool = False
    """show what each on/off argument is worth: differences, by seed, between settings that differ in it alone"""
    noise: Path | None = None
    """gradient.jsonl of these runs or of some seeds; with --paired, also show what arguments do to gradients' noise"""
    kl: bool = False
    """also draw the mean KL of each iteration, as training logged it; the JSON has the largest of each run, too"""
    aai: tuple[str, str, str, str] | None = None
    """labels of PPO, PPO-M, TRPO and TRPO+, for IM's AAI and ACLI and the effects of step and optimizations"""
    out: Path | None = None
    """folder of figures and numbers; default: figures/ inside the run's folder"""


class Run(NamedTuple):
    folder: Path
    env_id: str
    algo: str
    seed: int
    settings: dict[str, Any]  # algorithm and arguments that define its setting
    tuned: dict[str, Any]  # the arguments of --best-of
    script: str  # which version of the algorithm's script made it
    steps: np.ndarray  # [iterations in which an episode ended] environment steps so far
    rewards: np.ndarray  # [the same] mean return of those episodes
    kl: tuple[np.ndarray, np.ndarray]  # [iterations] environment steps so far, and the mean KL of each
    missing: str  # why it is not complete; "" if it is

    @property
    def final(self) -> float:
        return self.rewards[-5:].mean().item()


# Settings ------------------------------------------------------------------------------------------------------------

Settings = dict[tuple[str, str], list[Run]]  # the runs of each setting, by environment and label


def read_run(folder: Path, best_of: list[str]) -> Run:
    config, rows = runs.read_config(folder), runs.read_progress(folder)
    args, planned = config["args"], runs.planned_steps(config)
    done = int(rows[-1]["global_step"]) if rows else 0
    curve, kl = (
        [np.array([float(row[x]) for row in rows if row.get(name)]) for x in ("global_step", name)]
        for name in ("episodic_return", "mean_kl")
    )
    missing = f"{done:,} of {planned:,} steps" if done < planned else "" if len(curve[0]) else "no episode ended"
    tuned = {name: args[name] for name in best_of if name in args}
    settings = {name: x for name, x in runs.setting(config).items() if name not in tuned}
    script = config["script"][:8]
    return Run(folder, args["env_id"], config["algo"], args["seed"], settings, tuned, script, *curve, kl, missing)


def group_runs(found: list[Run], labels: tuple[str, ...]) -> Settings:
    """Returns the runs of each setting, in the order of the environments, then of the given labels, of the algorithms,
    of the number of flags, and of the flags in the script. Stops where runs of one label differ or a run comes
    twice."""
    label_of, settings = runs.label_runs({run.folder: run.settings for run in found}, labels), {}
    for run in found:
        alike = settings.setdefault((run.env_id, label_of[run.folder]), [])
        for other in alike:
            if names := ", ".join(runs.differing([other.settings, run.settings])):
                runs.stop(f"{label_of[run.folder]} is ambiguous: {other.folder} and {run.folder} differ in {names}")
            if (other.seed, other.tuned) == (run.seed, run.tuned):
                runs.stop(f"{other.folder} and {run.folder} are the same run, twice")
        alike.append(run)
    given, env_ids, algos = [x.partition("=")[0] for x in labels], [x.env_id for x in found], [x.algo for x in found]

    def rank(key: tuple[str, str]) -> tuple:
        (env_id, label), run = key, settings[key][0]
        place = given.index(label) if label in given else len(given)
        unlike = [runs.flag(*x) not in label.split() for x in run.settings.items()]
        return env_ids.index(env_id), place, algos.index(run.algo), label.count(" "), unlike

    return {key: settings[key] for key in sorted(settings, key=rank)}


def candidates(of_setting: list[Run]) -> tuple[list[list[Run]], set[int]]:
    """Returns a setting's runs for each value of the arguments of --best-of, the best mean final reward first, and the
    seeds that all of them have, on which they are compared."""
    values = {}
    for run in of_setting:
        values.setdefault(str(run.tuned), []).append(run)
    seeds = set.intersection(*({run.seed for run in x} for x in values.values()))
    if not seeds:
        folders = " and ".join(str(x[0].folder) for x in values.values())
        runs.stop(f"--best-of: {folders} cannot be compared: their settings have no seed in common that all have ended")
    return sorted(values.values(), key=lambda x: -finals(x, seeds).mean()), seeds


def untried(settings: Settings) -> list[str]:
    """Says what --best-of lacks: values of its arguments with which no run is complete."""
    values = {}
    for key, of_setting in settings.items():
        for run in of_setting:
            values.setdefault((key, str(run.tuned)), []).append(run)
    without = [x[0].folder for x in values.values() if x[0].tuned and all(run.missing for run in x)]
    return [f"--best-of: of the runs like {folder} none is complete; not compared" for folder in without]


def versions(settings: Settings) -> dict[str, dict[str, list[str]]]:
    """Returns for each algorithm the versions of its script that made these runs, and the names of their folders."""
    found = {}
    for run in sum(settings.values(), []):
        found.setdefault(run.algo, {}).setdefault(run.script, []).append(run.folder.name)
    return found


# Statistics ----------------------------------------------------------------------------------------------------------


def finals(of_setting: list[Run], seeds: Collection[int] | None = None) -> np.ndarray:
    """Returns the final rewards of all the runs, or of those with one of the seeds."""
    return np.array([run.final for run in of_setting if seeds is None or run.seed in seeds])


def curve(lines: list[tuple[np.ndarray, np.ndarray]], scale: Callable = np.array, back: Callable = np.array) -> dict:
    """Averages lines, one for each run, given as steps [n] and values [n], over 11 iterations and over the runs, on the
    given scale, at 100 places that all the runs have reached. `back` undoes the scale. Also returns the ends of the
    intervals where there are two runs or more."""
    x = np.linspace(max(steps[0] for steps, _ in lines), min(steps[-1] for steps, _ in lines), 100)
    smooth = [np.convolve(np.pad(y, 5, "edge"), np.ones(11) / 11, "valid") for _, y in lines]
    values = scale(np.transpose([np.interp(x, steps, y) for (steps, _), y in zip(lines, smooth)]))
    ends = np.transpose([intervals.t_interval(y) for y in values]) if len(lines) > 1 else []
    drawn = [x, *(back(y) for y in (values.mean(1), *ends))]
    return {name: [float(f"{x:.6g}") for x in y] for name, y in zip(("steps", "mean", "low", "high"), drawn)}


def summarize(key: tuple[str, str], tried: list[list[Run]], seeds: set[int], kl: bool) -> dict[str, Any]:
    """Returns the numbers of a setting in an environment, from its runs for each value tried, the best first."""
    best, x = tried[0], finals(tried[0])
    numbers = dict(env_id=key[0], label=key[1], algo=best[0].algo, folders=[run.folder.name for run in best])
    numbers |= dict(seeds=[run.seed for run in best], finals=x.tolist())
    numbers |= dict(mean=intervals.mean_of(x))
    compared = [[run for run in y if run.seed in seeds] for y in tried]
    numbers |= dict(tried=[y[0].tuned | dict(seeds=[z.seed for z in y], finals=finals(y).tolist()) for y in compared])
    numbers |= dict(tuned=best[0].tuned, settings=best[0].settings, curve=curve([(x.steps, x.rewards) for x in best]))
    if kl and all(len(run.kl[0]) for run in best):  # averaged in logarithms, as TRPO's KL is 100 times A2C's
        numbers |= dict(kl=curve([run.kl for run in best], lambda y: np.log(y.clip(1e-12)), np.exp))
        numbers |= dict(largest_kl=[run.kl[1].max().item() for run in best])
    return numbers


def average_improvements(settings: Settings, labels: tuple[str, ...]) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns IM's average algorithmic and average code-level improvement (AAI and ACLI, sec. 5), the differences that
    they are the larger sizes of, and the effects, in each environment in which all four settings have runs. Also
    returns lines that say what the other environments lack."""
    found, lacking = [], []
    for env_id in dict.fromkeys(env_id for env_id, _ in settings):
        if absent := [label for label in labels if (env_id, label) not in settings]:
            have = ", ".join(label for place, label in settings if place == env_id)
            lacking.append(f"--aai: on {env_id} no complete run is {' or '.join(absent)}; there are {have}")
            continue
        samples = [finals(settings[env_id, label]) for label in labels]
        differences = {}
        for i, j in ((0, 3), (1, 2), (0, 1), (3, 2)):  # two that the step makes, and two that the optimizations make
            differences[f"{labels[i]} - {labels[j]}"] = intervals.difference(samples[i], samples[j])
        sizes = [abs(x["mean"]) for x in differences.values()]
        cell = dict(env_id=env_id, labels=labels, seeds=[len(x) for x in samples])
        cell |= {name: dict(mean=max(x), interval=None) for name, x in (("aai", sizes[:2]), ("acli", sizes[2:]))}
        # The weights are those of PPO, PPO-M, TRPO and TRPO+, before they are halved.
        signs = dict(optimizations=(1, -1, -1, 1), step=(1, 1, -1, -1), interaction=(1, -1, 1, -1))
        cell |= dict(effects={name: intervals.contrast(samples, [x / 2 for x in of]) for name, of in signs.items()})
        found.append(cell | dict(differences=differences))
    return found, lacking


NINTH = ["grad_clip", "value_grad_clip"]  # one of the nine optimizations, with an argument for each network


def paired_differences(settings: Settings, noise: dict[str, dict]) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the differences, on minus off by seed, between settings of an algorithm in an environment that differ in
    one on/off argument alone (the two of gradient clipping count as one), and those between all on and all off, of the
    on/off arguments that vary there. Also returns lines that say which of these settings lack runs of the same seed."""
    found, lacking = [], []
    for env_id, algo in dict.fromkeys((key[0], x[0].algo) for key, x in settings.items()):
        here = [x for key, x in settings.items() if (key[0], x[0].algo) == (env_id, algo)]
        names = runs.differing([x[0].settings for x in here])
        switches = [name for name in names if isinstance(here[0][0].settings.get(name), bool)]
        cells = []
        for on, off in permutations(here, 2):
            switched = runs.differing([on[0].settings, off[0].settings])
            alone = len(switched) == 1 or switched in (NINTH, switches)
            if not alone or any(on[0].settings.get(name) is not True for name in switched):
                continue
            of = [{run.seed: run for run in of_setting} for of_setting in (on, off)]
            seeds = sorted(of[0].keys() & of[1].keys())
            if not seeds:
                lacking.append(f"--paired: no seed in common: {on[0].folder}, {off[0].folder}")
                continue
            pairs = [(of[0][seed], of[1][seed]) for seed in seeds]
            x = np.array([one.final - other.final for one, other in pairs])
            others = [name for name in switches if name not in switched]
            cell = dict(env_id=env_id, algo=algo, switched=switched, others=others)
            cell |= dict(others_on=[name for name in others if on[0].settings[name]])
            cell |= dict(seeds=seeds, differences=x.tolist(), mean=intervals.mean_of(x))
            cells.append(cell | dict(noise=noise_differences(pairs, noise)))
        place = {name: i for i, name in enumerate(switches)}
        found += sorted(cells, key=lambda x: (len(x["switched"]), place[x["switched"][0]], -len(x["others_on"])))
    if not found:
        lacking.append("--paired: no two settings with complete runs of the same seed differ in one on/off argument")
    return found, lacking


def read_noise(path: Path, found: list[Run]) -> dict[str, dict[int, np.ndarray]]:
    """Returns, by the name of each run's folder and by iteration, the cosine K / (K + B) that two estimates from a
    training batch of K pairs have at the run's noise scale B, and the ends of its interval. (B itself has a pole where
    few pairs do not tell it from infinity.) It comes from the measurement with the most pairs of the checkpoint as it
    is now."""
    if not path.is_file():
        runs.stop(f"--noise: no file {path}")
    noise = {}
    try:
        cells = kept.read_cells(path)
        for run in found:
            for iteration, cell in kept.largest_cells(kept.current_cells(cells, run.folder), "true_pairs").items():
                scale, K = cell["noise_scale"]["value network"], cell["batch_size"]
                mean = scale["grad_sq"] / scale["trace"] if scale["trace"] else 0  # where gradients vanish
                inverse = np.array([mean, *scale["inverse_interval"]])  # 1 / B
                noise.setdefault(run.folder.name, {})[iteration] = K * inverse / (1 + K * inverse)
    except (ValueError, KeyError, TypeError):
        runs.stop(f"--noise: {path} is not what gradient.py writes, with three repeats or more")
    return noise


def noise_differences(pairs: list[tuple[Run, Run]], noise: dict[str, dict]) -> list[dict[str, Any]]:
    """Returns the differences of the cosines, on minus off by seed, at each iteration that all measured runs have. The
    interval is for these very runs: it says how well their noise is known."""
    measured = {}  # by seed: with it on and with it off, each by iteration
    for on, off in pairs:
        if on.folder.name in noise and off.folder.name in noise:
            measured[on.seed] = noise[on.folder.name], noise[off.folder.name]
    iterations = [set(x) for both in measured.values() for x in both]
    found = []
    for iteration in sorted(set.intersection(*iterations)) if iterations else ():
        on, off = (np.array([both[i][iteration] for both in measured.values()]) for i in (0, 1))  # [seeds, 3]
        x = on[:, 0] - off[:, 0]
        # Runs are independent, so their errors add in squares. The low end is reached with on at its low end and off at
        # its high one. Where both measured the same, they are equal bit for bit, and the difference is known to be 0.
        unlike = (on != off).any(1, keepdims=True)
        below = np.linalg.norm(unlike * np.column_stack([on[:, 0] - on[:, 1], off[:, 2] - off[:, 0]])) / len(x)
        above = np.linalg.norm(unlike * np.column_stack([on[:, 2] - on[:, 0], off[:, 0] - off[:, 1]])) / len(x)
        mean = dict(mean=x.mean().item(), interval=[(x.mean() - below).item(), (x.mean() + above).item()])
        cell = dict(iteration=iteration, seeds=list(measured), on=on.tolist(), off=off.tolist())
        found.append(cell | dict(differences=x.tolist(), mean=mean))
    return found


# Tables --------------------------------------------------------------------------------------------------------------

Table = tuple[str, list[str], list[list[str]]]  # title, header, rows


def switch(cell: dict[str, Any]) -> str:
    if cell["switched"] == NINTH:
        return "grad-clip (both)"
    return runs.flag(cell["switched"][0], True) if len(cell["switched"]) == 1 else "all together"


def others(cell: dict[str, Any]) -> str:
    """Says which of the varying on/off arguments that are not switched are on."""
    if cell["others_on"] == cell["others"]:
        return "on" if cell["others"] else ""
    return ", ".join(runs.flag(name, True) for name in cell["others_on"]) or "off"


def reward_tables(results: dict[str, list]) -> list[Table]:
    rows = []
    for x in results["settings"]:
        label = " ".join([x["label"], *(f"({runs.flag(*tuned)})" for tuned in x["tuned"].items())])
        ends = f"{intervals.short(min(x['finals']))} to {intervals.short(max(x['finals']))}"
        rows.append([x["env_id"], label, str(len(x["seeds"])), intervals.text(x["mean"]), ends])
    header = ["environment", "setting", "seeds", "mean [95 % t]", "range"]
    tables = [("Final rewards", header, rows)]
    if cells := results["aai"]:
        rows = [[x["env_id"], *map(intervals.text, [*x["effects"].values(), x["aai"], x["acli"]])] for x in cells]
        effects = [f"{name} [95 % t]" for name in cells[0]["effects"]]
        title = f"Effects of the optimizations and of the step, from {', '.join(cells[0]['labels'])}; IM's AAI and ACLI"
        tables.append((title, ["environment", *effects, "AAI", "ACLI"], rows))
        header = ["environment", *(f"{x} [95 % Welch]" for x in cells[0]["differences"])]
        rows = [[x["env_id"], *map(intervals.text, x["differences"].values())] for x in cells]
        tables.append(("The differences that AAI (two on the left) and ACLI are the larger sizes of", header, rows))
    if cells := results["paired"]:
        cells = [(x, [x["env_id"], x["algo"], switch(x), others(x)]) for x in cells]
        rows = [[*start, str(len(x["seeds"])), intervals.text(x["mean"])] for x, start in cells]
        header = ["environment", "algorithm", "argument", "others", "seeds", "on minus off [95 % t]"]
        tables.append(("Final rewards with an argument on minus those with it off, by seed", header, rows))
        rows = [
            [*start, str(y["iteration"]), str(len(y["seeds"])), intervals.text(y["mean"], "{:.3f}".format)]
            for x, start in cells
            for y in x["noise"]
        ]
        header = [*header[:4], "iteration", "seeds", "on minus off [95 %, of these runs]"]
        if rows:
            tables.append(("Cosine of two gradient estimates from a training batch, by the noise scale", header, rows))
    return tables


def markdown(title: str, header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join([f"## {title}\n", *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"


# Figures -------------------------------------------------------------------------------------------------------------


def draw_curves(settings: list[dict[str, Any]], name: str, path: Path, **y_axis: str) -> None:
    """Draws a panel for each environment, with a line for each setting, and intervals unless they would hide one
    another."""
    env_ids = list(dict.fromkeys(x["env_id"] for x in settings))
    styles = figures.line_styles({x["label"]: x["algo"] for x in settings})
    figure, axes = figures.new_figure(1, len(env_ids), (max(4.2, 2.6 * len(env_ids)), 2.5))
    for cell in settings:
        axis, curve = axes[0, env_ids.index(cell["env_id"])], cell[name]
        x, style = np.array(curve["steps"]) / 1e6, styles[cell["label"]]
        axis.plot(x, curve["mean"], **style, markevery=10)
        if len(styles) <= len(figures.COLOURS) and len(cell["seeds"]) > 2:  # with two runs it would fill the panel
            axis.fill_between(x, curve["low"], curve["high"], color=style["color"], alpha=0.2, linewidth=0)
    for axis, env_id in zip(axes[0], env_ids):
        axis.set(title=env_id, xlabel="steps (millions)")
        axis.set(**y_axis if axis is axes[0, 0] else dict(y_axis, ylabel=""))
    figures.save_figure(figure, path)


def draw_histograms(settings: Settings, names: list[str], path: Path) -> None:
    """Draws a row for each environment and a column for each argument, with all final rewards, split by the argument
    (IM Fig. 1)."""
    env_ids = list(dict.fromkeys(env_id for env_id, _ in settings))
    size = 0.6 + 2.1 * len(names), 0.6 + 1.7 * len(env_ids)
    figure, axes = figures.new_figure(len(env_ids), len(names), size, sharex="row", sharey="row")
    for row, env_id in zip(axes, env_ids):
        here = [run for (place, _), x in settings.items() if place == env_id for run in x]
        edges = np.histogram_bin_edges(finals(here), 15)
        for axis, name in zip(row, names):
            for value, label, like, hatch in ((True, "on", "ppo", ""), (False, "off", "trpo_plus", "////")):
                rewards = finals([run for run in here if run.settings[name] is value])
                style = dict(color=figures.COLOURS[like], alpha=0.6, hatch=hatch, edgecolor="black", linewidth=0.5)
                axis.hist(rewards, edges, histtype="stepfilled", label=label, **style)
            axis.set_xlabel("final reward")
            axis.yaxis.get_major_locator().set_params(integer=True)
        row[0].set_ylabel(f"{env_id}\nruns")
    for axis, name in zip(axes[0], names):
        axis.set_title(runs.flag(name, True))
    figures.save_figure(figure, path)


def draw_paired(cells: list[dict[str, Any]], path: Path) -> None:
    """Draws a row for each algorithm and a column for each environment. A panel shows what each argument is worth."""
    algos, rows = {x["algo"] for x in cells}, {}
    for x in cells:
        title = x["env_id"] if len(algos) == 1 else f"{x['algo']}, {x['env_id']}"
        rows.setdefault(x["algo"], {}).setdefault(title, []).append(x)
    figures.save_figure(draw_differences(list(rows.values()), "final reward with it minus without it"), path)


def draw_noise(cells: list[dict[str, Any]], path: Path) -> None:
    """Draws a row for each algorithm and environment and a column for each iteration. A panel shows what each argument
    does to the cosine."""
    rows = {}
    for x in cells:
        for y in x["noise"]:
            title = f"{x['env_id']}\niteration {y['iteration']}"
            rows.setdefault((x["algo"], x["env_id"]), {}).setdefault(title, []).append(x | y)
    figures.save_figure(draw_differences(list(rows.values()), "cosine with it minus without it"), path)


def draw_differences(rows: list[dict[str, list[dict[str, Any]]]], xlabel: str) -> Figure:
    """Draws in each row its panels, by title. A panel shows the differences by argument, with the others on and with
    the others off. The small marks are the seeds."""
    names = [list(dict.fromkeys(switch(x) for cells in row.values() for x in cells)) for row in rows]
    heights, columns = [2 + len(x) for x in names], max(map(len, rows))
    size = 0.9 + (3.3 if columns < 3 else 2.3) * columns, 0.5 + 0.3 * sum(heights)
    figure, axes = figures.new_figure(len(rows), columns, size, sharey="row", height_ratios=heights)
    looks = {"on": ("with the others on", "ppo", -0.15), "off": ("with the others off", "trpo_plus", 0.15)}
    looks[""] = "_", "vmpo", 0  # all together
    for panels, row, of_row in zip(axes, rows, names):
        panels[0].set_yticks(range(len(of_row)), of_row)
        panels[0].set_ylim(len(of_row) - 0.5, -0.5)
        for axis, (title, cells) in zip(panels, row.items()):
            for x in cells:
                label, like, shift = looks.get(others(x), ("with some of the others on", "reinforce", 0))
                style = figures.look(like) | dict(label=label, linestyle="none")
                y, value, ends = of_row.index(switch(x)) + shift, x["mean"]["mean"], x["mean"]["interval"]
                axis.plot(x["differences"], [y] * len(x["seeds"]), "|", color=style["color"], alpha=0.6, markersize=8)
                axis.errorbar(value, y, xerr=ends and [[value - ends[0]], [ends[1] - value]], capsize=2, **style)
            axis.set(title=title, xlabel=xlabel)
            axis.axvline(0, color="black", linewidth=0.8)
        for axis in panels[len(row) :]:
            axis.set_axis_off()
    return figure


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    best_of, histograms = ([name.replace("-", "_") for name in names] for names in (args.best_of, args.histograms))
    folders = {folder.resolve(): folder for folder in named_folders(args)}  # each folder once
    found = [read_run(folder, best_of) for folder in folders.values()] or runs.stop("name one run folder or more")
    for name in best_of:
        if not any(name in run.tuned for run in found):
            runs.stop(f"--best-of {name}: no run has this argument")
    for name in histograms:
        if not all(isinstance(run.settings.get(name), bool) for run in found):
            runs.stop(f"--histograms {name}: not an on/off argument of all these runs")
    if args.noise and not args.paired:
        runs.stop("--noise: needs --paired")
    noise = read_noise(args.noise, found) if args.noise else {}
    grouped = group_runs(found, args.labels)
    path = runs.output_folder(args.out, tuple(folders.values())) / "rewards.json"
    incomplete = [run for run in found if run.missing]
    for run in incomplete:
        print(f"left out: {run.folder}: {run.missing}", file=sys.stderr)
    complete = {key: [run for run in x if not run.missing] for key, x in grouped.items()}
    tried = {key: candidates(x) for key, x in complete.items() if x}
    settings = {key: x[0] for key, (x, _) in tried.items()} or runs.stop("no run is complete")

    results = dict(incomplete=[dict(run=run.folder.name, missing=run.missing) for run in incomplete])
    results |= dict(scripts=[dict(algo=algo, versions=x) for algo, x in versions(settings).items()])
    results |= dict(settings=[summarize(key, *x, args.kl) for key, x in tried.items()])
    results["aai"], without_aai = average_improvements(settings, args.aai) if args.aai else ([], [])
    results["paired"], unpaired = paired_differences(settings, noise) if args.paired else ([], [])
    lacking = untried(grouped) + without_aai + unpaired
    write_tables(results, path)
    draw_curves(results["settings"], "curve", path, ylabel="episode return")
    if args.kl:
        with_kl = [x for x in results["settings"] if "kl" in x]
        lacking += [f"--kl: runs of {x['label']} log none" for x in results["settings"] if x not in with_kl]
        text = dict(ylabel="mean KL of an iteration (nats)", yscale="log")
        if with_kl:
            draw_curves(with_kl, "kl", path.with_name("rewards_kl"), **text)
    for name in histograms:
        if len({x[0].settings[name] for x in settings.values()}) < 2:
            lacking.append(f"--histograms {name}: must be on in some of these runs and off in others")
            histograms = [x for x in histograms if x != name]
    if histograms:
        draw_histograms(settings, histograms, path.with_name("rewards_histograms"))
    if results["paired"]:
        draw_paired(results["paired"], path.with_name("rewards_paired"))
    if any(x["noise"] for x in results["paired"]):
        draw_noise(results["paired"], path.with_name("rewards_noise"))
    elif args.noise:
        lacking.append(f"--noise: {args.noise} lacks runs of the same seed that differ in one on/off argument")
    for line in lacking:
        print(f"rewards.py: {line}", file=sys.stderr)
    if lacking:
        raise SystemExit(1)


def named_folders(args: Args) -> list[Path]:
    try:
        lines = args.folders.read_text().splitlines() if args.folders else []
    except OSError as error:
        runs.stop(f"--folders {args.folders}: {error.strerror}")
    return [*args.runs, *(Path(line) for line in lines if line)]


def write_tables(results: dict[str, list], path: Path) -> None:
    """Writes everything as JSON, and the tables as Markdown, which it also prints."""
    tables, notes = reward_tables(results), []
    for algo, found in ((x["algo"], x["versions"]) for x in results["scripts"]):
        if len(found) > 1:
            counts = ", ".join(f"{len(x)} by {version or 'unknown'}" for version, x in found.items())
            notes.append(f"Runs by different versions of {algo}.py: {counts}.")
    notes += [f"Left out: {x['run']}: {x['missing']}." for x in results["incomplete"]]
    print(*(markdown(*table) for table in tables), sep="\n")
    for note in notes[: len(notes) - len(results["incomplete"])]:
        print(note, file=sys.stderr)
    lines = [f'"{name}": [\n' + ",\n".join(map(json.dumps, part)) + "\n]" for name, part in results.items()]
    path.write_text("{" + ",\n".join(lines) + "}\n")
    path.with_suffix(".md").write_text("\n".join([*(markdown(*table) for table in tables), *(f"{x}\n" for x in notes)]))


if __name__ == "__main__":
    runs.run_program(main)
