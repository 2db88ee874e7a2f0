"""Puts what finished runs of ppo.py earned into diagnostics/report/reference.json, in place of what it has of their
environment.

    for seed in 1 2 3 4 5 6 7 8 9 10; do python algos/ppo.py --env-id Hopper-v5 --seed $seed; done
    python figures/report/reference.py runs/Hopper-v5__ppo__seed*
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "diagnostics"))
sys.path.append(str(Path(__file__).parents[2] / "diagnostics" / "report"))

import lab
from run_checks import EVERY, REFERENCE

NO_SETTINGS = "env_id", "seed", "runs_dir", "run_name", "compile", "checkpoint_every"  # of what a run is


def curve_of(run: Path) -> tuple[float, list[float]]:
    """Returns the mean return of the first iteration in which an episode ended, and that of the episodes which ended in
    each EVERY steps."""
    rows = [row for row in csv.DictReader((run / "progress.csv").open()) if row["episodic_return"]]
    columns = ("global_step", "episodic_return", "episodes")
    steps, returns, episodes = (np.array([float(row[name]) for row in rows]) for name in columns)
    parts = (steps - 1) // EVERY  # an iteration's last step is in the part that ends with it
    curve = [
        np.average(returns[parts == k], weights=episodes[parts == k]).item() for k in range(int(steps[-1]) // EVERY)
    ]
    return round(returns[0].item(), 1), [round(x, 1) for x in curve]


def of_runs(runs: list[Path]) -> dict[str, Any]:
    """Returns an environment's entry: what the settings of all its runs are (kind), and their returns [runs, n]."""
    configs = [lab.read_config(run) for run in runs]
    kinds = [dict(algo=x["algo"]) | {k: y for k, y in x["args"].items() if k not in NO_SETTINGS} for x in configs]
    if any(x["args"]["env_id"] != configs[0]["args"]["env_id"] for x in configs) or any(x != kinds[0] for x in kinds):
        lab.refuse("the runs are of several environments or settings")
    untrained, curves = zip(*map(curve_of, runs))
    entry = dict(env_id=configs[0]["args"]["env_id"], kind=kinds[0], seeds=[x["args"]["seed"] for x in configs])
    entry |= dict(script=configs[0]["script"][:12], versions=configs[0]["versions"], untrained=untrained)
    return entry | dict(returns=[curve[: min(map(len, curves))] for curve in curves])


def main(runs: list[str], path: Path = REFERENCE) -> None:
    entry = of_runs([Path(run) for run in runs])
    entries = json.loads(path.read_text()) | {entry["env_id"]: entry}
    lines = [f"{json.dumps(name)}: {json.dumps(entries[name])}" for name in sorted(entries)]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
