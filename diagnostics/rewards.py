"""Which setting earns more, and how sure is that? This script compares reward curves and final rewards of runs, with
intervals over seeds.

    python diagnostics/rewards.py runs/* --out results
    python diagnostics/rewards.py runs/Hopper-v5__ppo__* --paired --out results
    python diagnostics/rewards.py runs/*__ppo__* --best-of policy_lr --out results    # histograms, on and off
    python diagnostics/rewards.py runs/my_ppo* --against figures/reference/runs.jsonl    # are mine as good?

Runs whose arguments differ only in environment and seed are runs of one setting. Its label is the algorithm and the
flags that distinguish it from the algorithm's other settings here, except those that are the script's defaults. The
reward of an iteration is the mean undiscounted return of the episodes that ended in it; the final reward of a run is
the mean over the last five iterations in which an episode ended. Runs that are not finished are named and left out.
Runs under one of your own labels may differ in other arguments between environments, but not within one.

Intervals are Student's t over runs, at 95 %; for one run there is none. (The papers' percentile bootstrap covers 91 %
with ten runs, and 73 % with three.) For interquartile means and probabilities of improvement, give the final rewards,
which rewards.json has, to the package rliable.

--best-of policy_lr draws Fig. 1 of "Implementation Matters in Deep Policy Gradients" (IM; Engstrom et al. 2020,
https://arxiv.org/abs/2005.12729): of the settings that differ in the learning rate alone it keeps the one with the best
mean final reward, and draws histograms of what is left, on and off for each argument. Runs that are labelled PPO,
PPO-M, TRPO and TRPO+ also give AAI and ACLI of IM's Table 2. --kl gives Fig. 5 of "The Definitive Guide to Policy
Gradients" (GUIDE; Lehmann 2024, https://arxiv.org/abs/2401.13662), with the exact KL(before || after the whole update)
over the batch where GUIDE has the estimate E[(r - 1) - ln r].

Where requested runs are missing, a line says which, the other tables are still written, and the exit status is 1.
"""

import ast
import csv
import functools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, Literal

import lab
import numpy as np
import tyro
from matplotlib.figure import Figure
from scipy import stats


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """run folders, of any algorithms and environments"""
    labels: tuple[str, ...] = ()
    """labels of your own, one for each run in order; runs with the same label are one setting in an environment"""
    paired: bool = False
    """show what each on/off argument is worth: differences, by seed, between settings that differ in it alone"""
    best_of: str = ""
    """an argument, such as policy_lr: of settings that differ in it alone, keep the one with the best mean final
    reward, and draw histograms of the final rewards, split by each on/off argument (IM Fig. 1)"""
    against: Path | None = None
    """compare with the runs of this file, figures/reference/runs.jsonl, which are our scripts at their defaults: with
    those of the same script in the same environment, or of all scripts where it has none of yours"""
    kl: bool = False
    """also draw the mean KL of each iteration, as training logged it; the JSON has the largest of each run, too"""
    out: Path | None = None
    """folder of figures and numbers; default: figures/ inside the run's folder"""
    format: Literal["png", "pdf", "svg"] = "png"
    """format of the figures"""


# What runs are ------------------------------------------------------------------------------------------------------

NOT_OF_THE_SETTING = "env_id seed runs_dir run_name compile checkpoint_every".split()


def read_progress(folder: Path) -> list[dict[str, str]]:
    """Returns the complete rows of a run's progress.csv, or none if there is no file yet. Stops where it is damaged."""
    path = folder / "progress.csv"
    try:
        rows = list(csv.DictReader(path.read_text().splitlines())) if path.is_file() else []
        rows = [row for row in rows if None not in row.values()]  # a half-written row has None in it
        numbers = [{name: float(text or "nan") for name, text in row.items()} for row in rows]
        if not all(0 <= row["iteration"] < row["global_step"] for row in numbers):  # an iteration takes a step or more
            raise ValueError(path)
    except (ValueError, TypeError, KeyError):
        lab.refuse(f"{path} is damaged")
    return rows


def planned_steps(config: dict[str, Any]) -> int:
    """Returns the number of environment steps that the run makes if nothing stops it, or that an imported agent's
    training had."""
    args, batch_size = config["args"], config["args"]["num_envs"] * config["args"]["num_steps"]
    return args.get("planned_steps") or args["total_timesteps"] // batch_size * batch_size


def setting(config: dict[str, Any]) -> dict[str, Any]:
    """Returns what makes the setting of a run, taken from its config.json: the algorithm and the arguments. Those that
    its script has got since have their defaults, with which they change nothing."""
    arguments = defaults(config["algo"]) | config["args"]
    return dict(algo=config["algo"]) | {k: x for k, x in arguments.items() if k not in NOT_OF_THE_SETTING}


def flag(name: str, value: Any) -> str:
    """Writes an argument as run folders spell it: no-value-clip, policy-lr=0.0003, policy-hidden=64x64."""
    text = "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    name = name.replace("_", "-")
    return {"True": name, "False": f"no-{name}"}.get(text, f"{name}={text}")


def spell(config: dict[str, Any]) -> str:
    """Writes a run's setting, which is the algorithm and the flags that are not the script's defaults."""
    flags, defaults = (flag(*x) for x in list(setting(config).items())[1:]), default_flags(config["algo"])
    return " ".join([config["algo"], *(text for text in flags if text not in defaults)])


@functools.cache
def defaults(algo: str) -> dict[str, Any]:
    """Reads the defaults of algos/<algo>.py without running it. Where it cannot be read, there are none."""
    try:
        source = (Path(__file__).parent.parent / "algos" / f"{algo}.py").read_text()
        [args] = [x for x in ast.parse(source).body if isinstance(x, ast.ClassDef) and x.name == "Args"]
        values = {x.target.id: ast.literal_eval(x.value) for x in args.body if isinstance(x, ast.AnnAssign)}
    except (OSError, SyntaxError, ValueError):
        return {}
    return {name: [*x] if isinstance(x, tuple) else x for name, x in values.items()}  # as config.json has them


def default_flags(algo: str) -> set[str]:
    return {flag(*x) for x in defaults(algo).items()}


def differing(settings: list[dict[str, Any]]) -> list[str]:
    """Returns the names of the arguments that are not the same in all the settings."""
    names = dict.fromkeys(name for x in settings for name in x)
    return [name for name in names if any(x.get(name) != settings[0].get(name) for x in settings)]


def label_runs(settings: dict[Path, dict[str, Any]], labels: tuple[str, ...]) -> dict[Path, str]:
    """Returns the label of each run folder. This is its own of the given ones, or else the algorithm and the flags that
    tell its setting from the algorithm's other settings here. Flags that are the script's defaults are left out."""
    if labels and len(labels) != len(settings):
        lab.refuse(f"--labels: {len(labels)} for {len(settings)} runs; give one for each run, in order")
    if labels:
        return dict(zip(settings, labels))
    labelled = {}
    for algo in dict.fromkeys(x["algo"] for x in settings.values()):
        alike, defaults = {folder: x for folder, x in settings.items() if x["algo"] == algo}, default_flags(algo)
        names = differing(list(alike.values()))
        for folder, x in alike.items():
            flags = [flag(name, x.get(name)) for name in names]
            labelled[folder] = " ".join([algo, *(text for text in flags if text not in defaults)])
    return labelled


# Runs ----------------------------------------------------------------------------------------------------------------

Run = dict[str, Any]  # as read_run returns it
Settings = dict[tuple[str, str], list[Run]]  # the runs of each setting, by environment and label


def read_run(folder: Path) -> Run:
    """Returns what a run is, its returns and its mean KL, each as environment steps so far and values of the iterations
    that have one, its final reward, and why it is not complete, which is "" if it is."""
    config, rows = lab.read_config(folder), read_progress(folder)
    planned, done = planned_steps(config), int(rows[-1]["global_step"]) if rows else 0
    known = lambda name: [[float(row[x]) for row in rows if row.get(name)] for x in ("global_step", name)]
    returns, kl = (tuple(map(np.array, known(name))) for name in ("episodic_return", "mean_kl"))
    missing = f"{done:,} of {planned:,} steps" if done < planned else "" if len(returns[0]) else "no episode ended"
    run = dict(folder=folder, algo=config["algo"], setting=setting(config), script=config["script"][:8])
    run |= {name: config["args"][name] for name in ("env_id", "seed")}
    return run | dict(returns=returns, kl=kl, missing=missing, final=0 if missing else returns[1][-5:].mean().item())


def group_runs(found: list[Run], labels: tuple[str, ...]) -> Settings:
    """Returns the runs of each setting, in the order of the environments, then of the given labels, of the algorithms,
    of the number of flags, and of the flags in the script. Stops where runs of one label differ or one comes twice."""
    label_of, settings = label_runs({run["folder"]: run["setting"] for run in found}, labels), {}
    for run in found:
        alike = settings.setdefault((run["env_id"], label_of[run["folder"]]), [])
        for other in alike:
            both = f"{other['folder']} and {run['folder']}"
            if names := ", ".join(differing([other["setting"], run["setting"]])):
                lab.refuse(f"{label_of[run['folder']]} is ambiguous: {both} differ in {names}")
            if other["seed"] == run["seed"]:
                lab.refuse(f"{both} are the same run, twice")
        alike.append(run)
    env_ids, algos = ([run[name] for run in found] for name in ("env_id", "algo"))

    def rank(key: tuple[str, str]) -> tuple:
        place, run = labels.index(key[1]) if labels else 0, settings[key][0]
        unlike = [flag(*x) not in key[1].split() for x in run["setting"].items()]
        return env_ids.index(key[0]), place, algos.index(run["algo"]), key[1].count(" "), unlike

    return {key: settings[key] for key in sorted(settings, key=rank)}


# Statistics ----------------------------------------------------------------------------------------------------------


def mean_curve(lines: list[tuple], scale: Callable = np.array, back: Callable = np.array) -> dict[str, list[float]]:
    """Averages lines, one for each run, given as steps [n] and values [n], over 11 iterations and over the runs, on the
    given scale, at 100 places that all the runs have reached. `back` undoes the scale. Also returns the ends of the
    intervals where there are two runs or more."""
    x = np.linspace(max(steps[0] for steps, _ in lines), min(steps[-1] for steps, _ in lines), 100)
    smooth = [np.convolve(np.pad(y, 5, "edge"), np.ones(11) / 11, "valid") for _, y in lines]
    values = scale(np.transpose([np.interp(x, steps, y) for (steps, _), y in zip(lines, smooth)]))
    ends = np.transpose([lab.mean_of(y)["interval"] for y in values]) if len(lines) > 1 else []
    drawn = [x, *(back(y) for y in (values.mean(1), *ends))]
    return {name: [float(f"{x:.6g}") for x in y] for name, y in zip(("steps", "mean", "low", "high"), drawn)}


def differing_within(settings: Settings) -> list[str]:
    """Returns the names of the arguments in which settings of one environment differ."""
    names = {}
    for env_id in dict.fromkeys(env_id for env_id, _ in settings):
        here = [alike[0]["setting"] for (place, _), alike in settings.items() if place == env_id]
        names |= dict.fromkeys(differing(here))
    return list(names)


def best_settings(settings: Settings, name: str) -> Settings:
    """Keeps, of the settings of an environment that differ in this argument alone, the one with the highest mean final
    reward (IM Fig. 1). Its runs forget the argument, which is no longer part of the setting, and know what was tried.
    As in IM, the runs that are shown have themselves chosen the best, so that they flatter it."""
    rivals = {}
    for (env_id, label), alike in settings.items():
        others = {x: y for x, y in alike[0]["setting"].items() if x != name}
        rivals.setdefault((env_id, json.dumps(others)), []).append((label, alike))
    kept = {}
    for (env_id, others), of_values in rivals.items():
        label, best = max(of_values, key=lambda x: np.mean([run["final"] for run in x[1]]))
        tried = []
        for _, alike in of_values:
            of_value = dict(seeds=[run["seed"] for run in alike], finals=[run["final"] for run in alike])
            tried.append({name: alike[0]["setting"].get(name)} | of_value)
        chosen = dict(tuned={name: best[0]["setting"].get(name)}, tried=tried)
        kept[env_id, label] = [run | dict(setting=json.loads(others), chosen=chosen) for run in best]
    return kept


def improvements(settings: Settings) -> list[dict[str, Any]]:
    """Returns IM's "average algorithmic improvement" and "average code-level improvement" (sec. 5, Table 2) of each
    environment that has runs of the four agents; a name stands for its mean final reward:

        AAI  = max(|PPO - TRPO+|, |PPO-M - TRPO|)
        ACLI = max(|PPO - PPO-M|, |TRPO+ - TRPO|)

    They are above 0 even where the agents do not differ. As max(|x|, |y|) = |x + y| / 2 + |x - y| / 2, they are then
    both expected to be sqrt(2 / pi) times the standard error of the sum of the four means, which is given, too."""
    found = []
    for env_id in dict.fromkeys(env_id for env_id, _ in settings):
        four = [settings.get((env_id, label)) for label in ("PPO", "PPO-M", "TRPO", "TRPO+")]
        if not all(four):
            continue
        finals = [np.array([run["final"] for run in alike]) for alike in four]
        ppo, ppo_m, trpo, trpo_plus = (x.mean().item() for x in finals)
        numbers = dict(env_id=env_id, aai=max(abs(ppo - trpo_plus), abs(ppo_m - trpo)))
        numbers |= dict(acli=max(abs(ppo - ppo_m), abs(trpo_plus - trpo)), by_chance=None)
        if min(map(len, finals)) > 1:
            variance = sum(x.var(ddof=1) / len(x) for x in finals)
            numbers["by_chance"] = float((2 / np.pi * variance) ** 0.5)
        found.append(numbers)
    return found


def summarize(key: tuple[str, str], alike: list[Run], kl: bool) -> dict[str, Any]:
    """Returns the numbers of a setting in an environment."""
    finals = [run["final"] for run in alike]
    numbers = dict(env_id=key[0], label=key[1], algo=alike[0]["algo"], folders=[str(run["folder"]) for run in alike])
    numbers |= dict(seeds=[run["seed"] for run in alike], finals=finals, mean=lab.mean_of(finals))
    numbers |= dict(settings=alike[0]["setting"], curve=mean_curve([run["returns"] for run in alike]))
    numbers |= alike[0].get("chosen", {})
    if kl and all(len(run["kl"][0]) for run in alike):  # averaged in logarithms, as TRPO's KL is 100 times A2C's
        numbers |= dict(kl=mean_curve([run["kl"] for run in alike], lambda y: np.log(y.clip(1e-12)), np.exp))
        numbers |= dict(largest_kl=[run["kl"][1].max().item() for run in alike])
    return numbers


NINTH = ["grad_clip", "value_grad_clip"]  # one of the nine optimizations, with an argument for each network


def paired_differences(settings: Settings, lacking: list[str]) -> list[dict[str, Any]]:
    """Returns the differences, on minus off by seed, between settings of an algorithm in an environment that differ in
    one on/off argument alone (the two of gradient clipping count as one), and those between all on and all off, of the
    on/off arguments that vary there. Adds lines that say which of these settings lack runs of the same seed."""
    found = []
    for env_id, algo in dict.fromkeys((key[0], alike[0]["algo"]) for key, alike in settings.items()):
        here = [(x[0]["setting"], x) for key, x in settings.items() if (key[0], x[0]["algo"]) == (env_id, algo)]
        varying, pairs = differing([setting for setting, _ in here]), []
        switches = [name for name in varying if isinstance(here[0][0].get(name), bool)]
        for (on, with_it), (off, without) in permutations(here, 2):
            switched = differing([on, off])
            alone = len(switched) == 1 or switched in (NINTH, switches)
            if not switched or not alone or any(on.get(name) is not True for name in switched):
                continue
            x, y = ({run["seed"]: run["final"] for run in alike} for alike in (with_it, without))
            seeds, others = sorted(x.keys() & y.keys()), [name for name in switches if name not in switched]
            if not seeds:
                lacking.append(f"--paired: no seed in common: {with_it[0]['folder']}, {without[0]['folder']}")
                continue
            numbers = dict(env_id=env_id, algo=algo, switched=switched, others=others)
            numbers |= dict(others_on=[name for name in others if on[name]], seeds=seeds)
            numbers |= dict(same={name: on.get(name) for name in varying if name not in switches})
            numbers |= dict(differences=[x[seed] - y[seed] for seed in seeds])
            pairs.append(numbers | dict(mean=lab.mean_of(numbers["differences"])))
        found += sorted(
            pairs, key=lambda x: (len(x["switched"]), switches.index(x["switched"][0]), -len(x["others_on"]))
        )
    if not found:
        lacking.append("--paired: no two settings with complete runs of the same seed differ in one on/off argument")
    return found


def read_reference(path: Path) -> list[dict[str, Any]]:
    """Returns the runs of a file of figures/, a line each."""
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        [(x["agent"], x["algo"], x["env_id"], x["steps"], x["final"], x["episodic_return"]) for x in lines]
    except (OSError, ValueError, KeyError, TypeError):
        lab.refuse(f"--against {path}: not a file of runs, as figures/reference/runs.jsonl is")
    return lines


def reached(line: dict[str, Any], steps: int) -> float | None:
    """Returns the final reward of a run of the reference, or of one that is longer than so many steps, its mean return
    in the part in which they end, which has about as many episodes. It is None where there is no such part."""
    curve = line["episodic_return"]
    if abs(line["steps"] - steps) <= line["steps"] / len(curve):  # REINFORCE completes its last episode
        return line["final"]
    return curve[(steps - 1) * len(curve) // line["steps"]] if steps < line["steps"] else None


def against_reference(settings: Settings, path: Path, lacking: list[str]) -> list[dict[str, Any]]:
    """Returns each setting's final rewards beside those of the reference's agents, with their difference and what it
    says. Adds a line for each setting that cannot be compared."""
    lines, found = read_reference(path), []
    for (env_id, label), alike in settings.items():
        here, steps = [x for x in lines if x["env_id"] == env_id], int(min(run["returns"][0][-1] for run in alike))
        of_agents = {}
        for line in [x for x in here if x["algo"] == alike[0]["algo"]] or here:
            if (value := reached(line, steps)) is not None:
                of_agents.setdefault(line["agent"], []).append(value)
        for agent, theirs in of_agents.items():
            mine = [run["final"] for run in alike]
            numbers = dict(env_id=env_id, label=label, agent=agent, steps=steps, finals=mine, reference=theirs)
            found.append(numbers | beside(np.array(mine), np.array(theirs)))
        if not of_agents:
            lacking.append(f"--against: {path} has no runs on {env_id} of {steps:,} steps or more")
    return found


def beside(mine: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    """Returns the difference of the means with Welch's interval and what it says. A single run of mine is compared with
    where a new run of theirs is expected (Student's t, 95 %), and its difference has that width."""
    if min(len(mine), len(theirs)) > 1:
        test = stats.ttest_ind(mine, theirs, equal_var=False).confidence_interval()
        difference = dict(mean=float(mine.mean() - theirs.mean()), interval=[float(test.low), float(test.high)])
    elif len(theirs) > 1:
        half = (len(theirs) + 1) ** 0.5 * np.ptp(lab.mean_of(theirs)["interval"]) / 2  # of a mean times sqrt(n + 1)
        mean = float(mine[0] - theirs.mean())
        difference = dict(mean=mean, interval=[mean - half, mean + half])
    else:
        return dict(difference=dict(mean=float(mine.mean() - theirs.mean()), interval=None), says="too few to tell")
    low, high = difference["interval"]
    says = "higher" if low > 0 else "lower" if high < 0 else "no difference seen"
    return dict(difference=difference, says=says if len(mine) > 1 else says + ", by one run")


# Tables and figures -------------------------------------------------------------------------------------------------

COLOURS = {
    **dict(ppo="#0072b2", ppo_m="#d55e00", ppo_noclip="#56b4e9", trpo="#009e73", trpo_plus="#e69f00"),
    **dict(reinforce="#999999", a2c="#cc79a7", vmpo="#000000"),
}
MOST_NAMES = 12  # of a legend; nobody would look up more
MARKERS = dict(zip(COLOURS, "os^Dv*Px"))  # in greyscale, colours alone look too much alike


def look(algo: str) -> dict[str, Any]:
    """Returns the style in which an algorithm's lines are drawn."""
    style = dict(color=COLOURS.get(algo, "#8c564b"), marker=MARKERS.get(algo, "."), label=algo)
    return style | dict(markersize=3.5, linewidth=1.2)


def line_styles(algo_of: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Returns the style of each label. A label that spells an algorithm (PPO-M is ppo_m) is drawn like that algorithm.
    Any other label is drawn like its own algorithm if that style is free, else in the next free colour. When no colour
    is free, lines are dashed."""
    spelled = {label: label.lower().replace("+", "_plus").replace("-", "_") for label in algo_of}
    looks, found = [(name, line) for line in ("-", "--", ":", "-.") for name in COLOURS], {}
    for label in sorted(algo_of, key=lambda x: spelled[x] not in COLOURS):
        wanted = [(spelled[label], "-"), (algo_of[label], "-"), *looks]
        found[label] = next((x for x in wanted if x in looks and x not in found.values()), looks[0])
    return {label: look(found[label][0]) | dict(linestyle=found[label][1], label=label) for label in algo_of}


def short(x: float) -> str:
    """Writes a number with three digits, or a large one with all its digits before the decimal point."""
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def text(numbers: dict[str, Any] | None, show: Callable[[float], str] = short) -> str:
    """Writes an estimate as its mean and, where there is one, its interval."""
    if numbers is None:
        return "-"
    ends = numbers["interval"]
    return show(numbers["mean"]) + (f" [{', '.join(map(show, ends))}]" if ends else "")


def told(pair: dict[str, Any]) -> tuple[str, str]:
    """Returns which argument is switched, and which of the other varying on/off arguments are on."""
    switched, on = pair["switched"], pair["others_on"]
    names = {1: flag(switched[0], True), 2: "grad-clip (both)" if switched == NINTH else "all together"}
    others = "on" if on == pair["others"] else ", ".join(flag(name, True) for name in on) or "off"
    return names.get(len(switched), "all together"), others if pair["others"] else ""


TITLES = dict(  # of the tables of the parts of rewards.json
    settings="Final rewards",
    improvements="IM's AAI and ACLI, which chance alone makes larger than 0",
    paired="Final rewards with an argument on minus those with it off, by seed",
    against="Final rewards against the reference",
)


def columns(part: str, x: dict[str, Any], varying: list[str]) -> dict[str, Any]:
    """Returns a row of the table by its columns. Of settings that were chosen, what varies has columns of its own."""
    if part == "settings":
        row = {"setting": x["label"]}
        if "tuned" in x:
            values = {name: x["settings"].get(name, "") for name in varying}
            on_or_off = lambda y: ("off", "on")[y] if isinstance(y, bool) else y
            row = {flag(name, True): on_or_off(y) for name, y in values.items()}
            row |= {f"best {flag(name, True)}": y for name, y in x["tuned"].items()}
        ends = f"{short(min(x['finals']))} to {short(max(x['finals']))}"
        return row | {"seeds": len(x["seeds"]), "mean [95 % t]": x["mean"], "range": ends}
    if part == "improvements":
        by_chance = "-" if x["by_chance"] is None else short(x["by_chance"])
        return {"AAI": short(x["aai"]), "ACLI": short(x["acli"]), "either, if nothing differed": by_chance}
    if part == "against":
        row = {"setting": x["label"], "runs": len(x["finals"]), "mean": lab.mean_of(x["finals"])}
        row |= {"reference": x["agent"], "its runs": len(x["reference"]), "its mean": lab.mean_of(x["reference"])}
        return row | {"difference [95 %]": x["difference"], "yours is": x["says"]}
    row = dict(algorithm=x["algo"]) | dict(zip(("argument", "others"), told(x)))
    row |= {"both have": ", ".join(flag(*y) for y in x["same"].items())}
    return row | {"seeds": len(x["seeds"]), "on minus off [95 % t]": x["mean"]}


def markdown(part: str, found: list[dict[str, Any]], varying: list[str]) -> str:
    """Writes a table, without the columns that are empty."""
    rows = [dict(environment=x["env_id"]) | columns(part, x, varying) for x in found]
    rows = [{name: y for name, y in row.items() if any(x[name] != "" for x in rows)} for row in rows]
    texts = [[text(y) if isinstance(y, dict) else str(y) for y in row.values()] for row in rows]
    lines = [[*rows[0]], ["---"] * len(rows[0]), *texts]
    return "\n".join([f"## {TITLES[part]}\n", *(f"| {' | '.join(line)} |" for line in lines), ""])


def draw_curves(settings: list[dict[str, Any]], name: str, path: Path, ylabel: str, yscale: str = "linear") -> None:
    """Draws a panel for each environment, with a line for each setting, and intervals unless they hide one another."""
    env_ids = list(dict.fromkeys(x["env_id"] for x in settings))
    styles = line_styles({x["label"]: x["algo"] for x in settings})
    figure = Figure((max(4.2, 2.6 * len(env_ids)), 2.5), layout="constrained")
    axes = figure.subplots(1, len(env_ids), squeeze=False)
    for of_setting in settings:
        axis, curve = axes[0, env_ids.index(of_setting["env_id"])], of_setting[name]
        x, style = np.array(curve["steps"]) / 1e6, styles[of_setting["label"]]
        if len(styles) > MOST_NAMES:
            style = style | dict(label="_")
        axis.plot(x, curve["mean"], **style, markevery=10)
        if len(styles) <= len(COLOURS) and len(of_setting["seeds"]) > 2:  # with two runs it would fill the panel
            axis.fill_between(x, curve["low"], curve["high"], color=style["color"], alpha=0.2, linewidth=0)
    for axis, env_id in zip(axes[0], env_ids):
        axis.set(title=env_id, xlabel="steps (millions)", yscale=yscale)
    axes[0, 0].set_ylabel(ylabel)
    if len(styles) > MOST_NAMES:
        figure.suptitle(f"{len(styles)} settings, which rewards.md lists", fontsize=9)
    lab.save_figure(figure, [], path)


def draw_paired(pairs: list[dict[str, Any]], path: Path) -> None:
    """Draws a panel for each algorithm and environment. It shows what each argument is worth, with the others on and
    with the others off. The small marks are the seeds."""
    places, names = (list(dict.fromkeys(x)) for x in zip(*[((x["algo"], x["env_id"]), told(x)[0]) for x in pairs]))
    size = 0.9 + (3.3 if len(places) < 3 else 2.3) * len(places), 1.1 + 0.3 * len(names)
    figure = Figure(size, layout="constrained")
    axes = figure.subplots(1, len(places), squeeze=False, sharey=True)
    looks = {"on": ("with the others on", "ppo", -0.15), "off": ("with the others off", "trpo_plus", 0.15)}
    looks[""] = "_", "vmpo", 0  # all together
    for x in pairs:
        argument, others = told(x)
        label, like, shift = looks.get(others, ("with some of the others on", "reinforce", 0))
        axis, y = axes[0, places.index((x["algo"], x["env_id"]))], names.index(argument) + shift
        style, mean, ends = look(like) | dict(label=label, linestyle="none"), *x["mean"].values()
        axis.plot(x["differences"], [y] * len(x["seeds"]), "|", color=style["color"], alpha=0.6, markersize=8)
        axis.errorbar(mean, y, xerr=ends and [[mean - ends[0]], [ends[1] - mean]], capsize=2, **style)
    for axis, (algo, env_id) in zip(axes[0], places):
        axis.set_title(env_id if len({algo for algo, _ in places}) == 1 else f"{algo}, {env_id}")
        axis.axvline(0, color="black", linewidth=0.8)
    figure.supxlabel("final reward with it minus without it", fontsize=10)
    axes[0, 0].set_yticks(range(len(names)), names)
    axes[0, 0].set_ylim(len(names) - 0.5, -0.5)
    lab.save_figure(figure, [], path)


def draw_histograms(settings: Settings, switches: list[str], path: Path) -> None:
    """Draws a row for each environment and a column for each on/off argument: histograms of all final rewards there,
    with the argument on and with it off (IM Fig. 1)."""
    env_ids = list(dict.fromkeys(env_id for env_id, _ in settings))
    figure = Figure((0.6 + 2 * len(switches), 0.5 + 1.7 * len(env_ids)), layout="constrained")
    axes = figure.subplots(len(env_ids), len(switches), squeeze=False, sharex="row", sharey="row")
    for of_place, env_id in zip(axes, env_ids):
        here = [run for (place, _), alike in settings.items() if place == env_id for run in alike]
        edges = np.histogram_bin_edges([run["final"] for run in here], 15)
        for axis, name in zip(of_place, switches):
            for value, label, colour in ((True, "on", COLOURS["ppo"]), (False, "off", COLOURS["trpo_plus"])):
                rewards = [run["final"] for run in here if run["setting"].get(name) is value]
                axis.hist(rewards, edges, label=label, color=colour, alpha=0.6, edgecolor="black", linewidth=0.6)
        of_place[0].set_ylabel(f"{env_id}\nruns")
    for axis, name in zip(axes[0], switches):
        axis.set_title(flag(name, True))
    figure.supxlabel("final reward", fontsize=10)
    lab.save_figure(figure, [], path)


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    found = [read_run(folder) for folder in args.runs] or lab.refuse("name one run folder or more")
    grouped, path = group_runs(found, args.labels), args.out or found[0]["folder"] / "figures"
    path.mkdir(parents=True, exist_ok=True)
    complete = {key: [run for run in alike if not run["missing"]] for key, alike in grouped.items()}
    settings, versions, lacking = {key: alike for key, alike in complete.items() if alike}, {}, []
    for run in sum(settings.values(), []):
        versions.setdefault(run["algo"], {}).setdefault(run["script"], []).append(str(run["folder"]))
    results = dict(incomplete=[dict(run=str(run["folder"]), missing=run["missing"]) for run in found if run["missing"]])
    notes = [f"left out: {x['run']}: {x['missing']}" for x in results["incomplete"]]
    for algo, of_script in versions.items():
        counts = ", ".join(f"{len(x)} by {version or 'unknown'}" for version, x in of_script.items())
        notes += [f"runs by different versions of {algo}.py: {counts}"] * (len(of_script) > 1)
    print("".join(f"{note}\n" for note in notes), end="", file=sys.stderr)
    if not settings:
        lab.refuse("no run is complete")
    results |= dict(scripts=[dict(algo=algo, versions=x) for algo, x in versions.items()])
    if name := args.best_of.replace("-", "_"):
        if not any(name in alike[0]["setting"] for alike in settings.values()):
            lab.refuse(f"--best-of {args.best_of}: no argument of these runs")
        settings = best_settings(settings, name)
    results |= dict(settings=[summarize(key, alike, args.kl) for key, alike in settings.items()])
    results["improvements"] = improvements(settings)
    results["paired"] = paired_differences(settings, lacking) if args.paired else []
    results["against"] = against_reference(settings, args.against, lacking) if args.against else []
    with_kl = [x for x in results["settings"] if "kl" in x]
    lacking += [f"--kl: runs of {x['label']} log none" for x in results["settings"] if args.kl and x not in with_kl]

    varying = differing_within(settings)
    switches = [x for x in varying if any(isinstance(alike[0]["setting"].get(x), bool) for alike in settings.values())]
    tables = [markdown(part, results[part], varying) for part in TITLES if results[part]]
    print(*tables, sep="\n")
    (path / "rewards.md").write_text("\n".join([*tables, *notes, ""]))
    parts = [f'"{name}": [\n' + ",\n".join(map(json.dumps, part)) + "\n]" for name, part in results.items()]
    (path / "rewards.json").write_text("{" + ",\n".join(parts) + "}\n")
    draw_curves(results["settings"], "curve", path / f"rewards.{args.format}", "episode return")
    if with_kl:
        draw_curves(with_kl, "kl", path / f"rewards_kl.{args.format}", "mean KL of an iteration (nats)", "log")
    if results["paired"]:
        draw_paired(results["paired"], path / f"rewards_paired.{args.format}")
    if args.best_of and switches:
        draw_histograms(settings, switches, path / f"rewards_histograms.{args.format}")
    print("".join(f"rewards.py: {line}\n" for line in lacking), end="", file=sys.stderr)
    if lacking:
        raise SystemExit(1)


if __name__ == "__main__":
    lab.run_program(main)
