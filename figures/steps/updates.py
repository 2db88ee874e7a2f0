"""Writes updates_hopper.json or updates_walker2d.json: the rows of steps.py --rewards, with the agent that made each
run and what follows from a row.

python figures/steps/updates.py results/updates/Hopper/Hopper-v5/updates.jsonl figures/steps/updates_hopper.json
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # before this folder, which has a claims.py, too
sys.path.append(str(Path(__file__).parents[2] / "diagnostics"))

import experiments
import rows


def agents() -> dict[str, str]:
    """Returns which agent of ./benchmark.sh updates made a run, by the name of the run's folder."""
    args = experiments.read_arguments(["updates", "--seeds", "3"])
    return {run.folder.name: run.agent for run in experiments.make_runs(args, experiments.EXPERIMENTS["updates"])}


def main(path: str, out: str) -> None:
    agent_of, found = agents(), []
    for row in map(json.loads, Path(path).read_text().splitlines()):
        found.append(dict(agent=agent_of[row["run"]]) | rows.updates(row))
    Path(out).write_text("[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
