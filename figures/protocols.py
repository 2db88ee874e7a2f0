"""What the protocols plan, and what is kept of their runs.

A protocol's runs train over many days, on machines that keep nothing. So what its analysis needs of a run is one line
of runs.jsonl in the protocol's folder. train.py appends it when the run is complete, and does not train that run again.
"""

import csv
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parent.parent / "diagnostics"))

from papers import EXPERIMENTS

FIGURES = Path(__file__).parent
Key = tuple[str, str, int]  # of a run: its agent, environment and seed


class Part(NamedTuple):
    experiment: str  # whose record in papers.py has the agents, the environments, the steps and what is measured
    folder: str  # of the protocol
    seeds: range  # where seeds are cut, the highest go first, and the cut is committed before the look
    envs: tuple[str, ...] = ()  # the record's, where there are none
    script: str = ""  # with which runs are measured besides; a path and its options
    trained_by: str = ""  # what trains the one agent of a record that names no script of algos/
    logged: tuple[str, ...] = ("episodic_return", "mean_kl")  # what is kept of training's log
    points: int = 100  # equal parts of training, of which each keeps a mean
    every: int = 0  # where it is not 0, the values of iterations 0, every, 2 every, ... are kept instead
    averaged: tuple[str, ...] = ()  # lists in the diagnostics' rows of which only the mean is kept, to keep lines short
    early: int = 0  # seeds, the first ones, whose means and runs may be shown without tests before the last run


PARTS = {
    "reference": Part("reference", "reference", range(1, 6), early=3),
    "sb3-ppo": Part("reference", "reference", range(1, 6), ("Hopper", "Walker2d", "HalfCheetah"),
                    trained_by="figures/reference/sb3_ppo.py", logged=("episodic_return",), early=3),
    "ten-seeds": Part("ten-seeds", "ten_seeds", range(401, 411), every=25,
                      logged=("episodic_return", "mean_kl", "max_kl", "max_ratio"), averaged=("returns",)),
    "value-clip": Part("value-clip", "value_clip", range(401, 411), script="figures/value_clip/spread.py"),
    "batches": Part("batches", "gains_add_up", range(401, 411),
                    script="figures/gains_add_up/measure.py --checkpoints 150 300 --arms few recipe"),
    "surfaces": Part("surfaces", "surfaces", range(401, 402), averaged=("returns",)),
    "surfaces-humanoid": Part("surfaces-humanoid", "surfaces", range(401, 402), averaged=("returns",)),
    "algorithms": Part("algorithms", "guide", range(1, 4), ("Hopper", "Ant", "Humanoid")),
    "algorithms-halfcheetah": Part("algorithms", "guide", range(3, 4), ("HalfCheetah",)),
}  # fmt: skip


def planned(name: str, early: bool = False) -> list[Key]:
    """Returns the runs of a part, or of those seeds of it that its protocol shows early, in the order of training: seed
    1 of everything comes first, so that an interruption leaves every agent with as many seeds as the others, or one
    more."""
    part, experiment = PARTS[name], EXPERIMENTS[PARTS[name].experiment]
    seeds = part.seeds[: part.early] if early else part.seeds
    agents = [Path(part.trained_by).stem] if part.trained_by else experiment.agents
    env_ids = [f"{x}-{experiment.version}" for x in part.envs or experiment.envs]
    return [(agent, env_id, seed) for seed in seeds for env_id in env_ids for agent in agents]


# Lines ---------------------------------------------------------------------------------------------------------------


def path_of(name: str) -> Path:
    return FIGURES / PARTS[name].folder / "runs.jsonl"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a file. A last one that was not written to its end is left out."""
    return [json.loads(x) for x in path.read_text().split("\n")[:-1]] if path.exists() else []


def key_of(line: dict[str, Any]) -> Key:
    return line["agent"], line["env_id"], line["seed"]


def kept(name: str) -> dict[Key, dict[str, Any]]:
    """Returns the lines that a part has so far, by run."""
    lines = {}
    for line in read_lines(path_of(name)):
        if key_of(line) in lines:
            raise ValueError(f"{path_of(name)} has two lines of {key_of(line)}")
        lines[key_of(line)] = line
    return {key: lines[key] for key in planned(name) if key in lines}


def whole(name: str, early: bool = False) -> list[dict[str, Any]]:
    """Returns the lines of a part, or of those seeds of it that its protocol shows early. While one of them is missing
    there are none, because nobody looks before."""
    lines, asked = kept(name), planned(name, early)
    if lacking := missing(name, early):
        raise ValueError(f"{name}: {len(lacking)} of {len(asked)} runs are missing, so that nobody looks yet")
    return [lines[key] for key in asked]


def missing(name: str, early: bool = False) -> list[Key]:
    """Returns the planned runs that have no line yet."""
    lines = kept(name)
    return [key for key in planned(name, early) if key not in lines]


def stopped(*names: str, early: bool = False) -> list[str]:
    """Names the runs of some parts that ended because a number was not finite."""
    lines = [line for name in names for line in whole(name, early)]
    return [f"{x['agent']} on {x['env_id']}, seed {x['seed']}" for x in lines if x["stopped"]]


def processors(*names: str, early: bool = False) -> list[str]:
    """Names the kinds of processor on which the runs of some parts were made."""
    return sorted({line["processor"] for name in names for line in whole(name, early)})


def append(path: Path, line: dict[str, Any]) -> None:
    """Appends a line in one piece. What an interruption left of an earlier one is cut off before."""
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(line).encode() + b"\n")


# What is kept of a run -----------------------------------------------------------------------------------------------


def short(x: Any, averaged: tuple[str, ...] = ()) -> Any:
    """Returns the same with six digits of each number, and with the mean of what is averaged (None for no numbers)."""
    if isinstance(x, dict):
        found = {}
        for name, y in x.items():
            of_name = (float(np.mean(y)) if y else None) if name in averaged else y
            found[name] = short(of_name, averaged)
        return found
    if isinstance(x, list | tuple):
        return [short(y, averaged) for y in x]
    return float(f"{x:.6g}") if isinstance(x, float) else x


def thinned(rows: list[dict[str, str]], name: str, planned_steps: int, points: int) -> list[float | None]:
    """Returns the mean of what training logged in each of so many equal parts of its steps, or None for a part in which
    it logged nothing, because no episode ended or because the run had stopped."""
    parts = [[] for _ in range(points)]
    for row in rows:
        if row.get(name):
            at = (int(row["global_step"]) - 1) * points // planned_steps
            parts[min(at, points - 1)].append(float(row[name]))  # REINFORCE completes its last episode beyond the plan
    return [float(np.mean(x)) if x else None for x in parts]


def summarize(folder: Path, part: Part) -> dict[str, Any]:
    """Returns the numbers of a run. The final return is the mean undiscounted return of the episodes that ended in the
    last five iterations in which one did, averaged over these iterations, and the first one that of the first five."""
    config = json.loads((folder / "config.json").read_text())
    rows = list(csv.DictReader((folder / "progress.csv").read_text().splitlines()))
    args, steps = config["args"], int(rows[-1]["global_step"])
    planned_steps = args["total_timesteps"] - args["total_timesteps"] % (args["num_envs"] * args["num_steps"])
    returns = [float(row["episodic_return"]) for row in rows if row["episodic_return"]]
    line = dict(algo=config["algo"], script=config["script"][:8], versions=config["versions"])
    line |= dict(processor=config.get("processor"), steps=steps, stopped=steps < planned_steps)
    line |= dict(final=np.mean(returns[-5:]).item(), first=np.mean(returns[:5]).item())
    if part.every:
        return line | {name: [float(x[name]) if x[name] else None for x in rows[:: part.every]] for name in part.logged}
    return line | {name: thinned(rows, name, planned_steps, part.points) for name in part.logged}


# What the analyses read ----------------------------------------------------------------------------------------------


def rows_of(lines: Iterable[dict[str, Any]], diagnostic: str) -> list[dict[str, Any]]:
    """Returns a diagnostic's rows of all runs but those that a number stopped, which are not measured. Each says whose
    it is."""
    rows = []
    for line in [x for x in lines if not x["stopped"]]:
        about = dict(env_id=line["env_id"], agent=line["agent"], algo=line["algo"], run_seed=line["seed"])
        rows += [row | about for row in line["rows"][diagnostic]]
    return rows


def by_agent(lines: Iterable[dict[str, Any]], name: str = "final") -> dict[str, dict[str, np.ndarray]]:
    """Returns a number of each run [seeds], by environment and agent."""
    found = {}
    for line in lines:
        found.setdefault(line["env_id"].partition("-")[0], {}).setdefault(line["agent"], []).append(line[name])
    return {place: {agent: np.array(x, float) for agent, x in of.items()} for place, of in found.items()}
