"""Keeps what runs earned by environment step, so that report.py can say whether another run learned enough.

    for seed in 1 2 3 4 5 6 7 8 9 10; do python algos/ppo.py --env-id Hopper-v5 --seed $seed; done
    python diagnostics/reference.py runs/Hopper-v5__ppo__seed*        # replaces Hopper-v5 in reference.json

The file beside this script has ten runs of ppo.py with its defaults in each of some environments of Gymnasium. Runs of
your own need not be added: `report.py RUN --like RUN ...` compares with them at once.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from measuring import runs

EVERY = 20_480  # environment steps between the points of a curve, each the mean return of the episodes since the last
FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """finished runs of one setting"""
    out: Path = FILE
    """file to add their curves to"""


def earned(progress: dict[str, np.ndarray], step: int) -> float | None:
    """Returns the mean return of the episodes that ended in the EVERY environment steps before this one, by the
    columns of progress.csv, or None where there are none."""
    steps, returns = progress["global_step"], progress["episodic_return"]
    rows = (steps > step - EVERY) & (steps <= step) & np.isfinite(returns)
    return float(np.average(returns[rows], weights=progress["episodes"][rows])) if rows.any() else None


def kind(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the setting of a run but for its length, since it is compared after as many steps."""
    return {name: x for name, x in runs.setting(config).items() if name != "total_timesteps"}


def curves(folders: tuple[Path, ...]) -> dict[str, Any]:
    """Returns steps [n], and the returns of each run there [runs, n]: None where a run has no number."""
    configs, found = [runs.read_config(folder) for folder in folders], []
    if len({config["args"]["env_id"] for config in configs}) > 1:
        runs.stop("the runs to compare with are of different environments")
    for folder in folders:
        rows = runs.read_progress(folder)
        names = ("global_step", "episodic_return", "episodes")
        progress = {name: np.array([float(row[name] or "nan") for row in rows]) for name in names}
        last = int(progress["global_step"].max(initial=0)) // EVERY * EVERY
        found.append([earned(progress, step) for step in range(EVERY, last + 1, EVERY)])
    most = max(map(len, found))
    kinds = [kind(config) for config in configs]
    return dict(
        env_id=configs[0]["args"]["env_id"],
        kind=kinds[0] if all(x == kinds[0] for x in kinds) else None,
        seeds=[config["args"]["seed"] for config in configs],
        versions=configs[0]["versions"],
        script=configs[0]["script"][:12],
        steps=list(range(EVERY, EVERY * most + 1, EVERY)),
        returns=[[*x, *[None] * (most - len(x))] for x in found],
    )


def published(env_id: str) -> dict[str, Any] | None:
    """Returns the curves of reference.json for the environment, if there are any."""
    return json.loads(FILE.read_text()).get(env_id) if FILE.is_file() else None


def at(reference: dict[str, Any], step: int) -> list[float]:
    """Returns what each of the reference runs had earned at a step of theirs."""
    if step not in reference["steps"]:
        return []
    column = [of_run[reference["steps"].index(step)] for of_run in reference["returns"]]
    return [x for x in column if x is not None]


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    found = curves(args.runs or runs.stop("name one run folder or more"))
    found["returns"] = [[x if x is None else round(x, 1) for x in of_run] for of_run in found["returns"]]
    known = json.loads(args.out.read_text()) if args.out.is_file() else {}
    known = dict(sorted((known | {found["env_id"]: found}).items()))
    args.out.write_text("{\n" + ",\n".join(f'"{env}": {json.dumps(x)}' for env, x in known.items()) + "\n}\n")
    print(f"{args.out}: {found['env_id']}, {len(found['seeds'])} runs through {found['steps'][-1]:,} steps")


if __name__ == "__main__":
    runs.run_program(main)
