"""Keeps what runs earned by environment step, so that report.py can say whether another run learned enough.

    for seed in 1 2 3 4 5 6 7 8 9 10; do python algos/ppo.py --env-id Hopper-v5 --seed $seed; done
    python diagnostics/reference.py runs/Hopper-v5__ppo__seed*        # replaces Hopper-v5 in reference.json

The file beside this script has ten runs of ppo.py with its defaults in each MuJoCo environment of Gymnasium. Runs of
your own need not be added: `report.py RUN --like RUN ...` compares with them at once.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from measuring import runs
from measuring.runs import NEEDED

EVERY = 20_480  # environment steps between the points of a curve, each the mean return of the episodes since the last
FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...", help_behavior_hint=NEEDED)]
    """finished runs of one setting"""
    out: Path = FILE
    """.json file to add their curves to"""


def read_curve(folder: Path) -> tuple[float, list[float]]:
    """Returns what a run's progress.csv says it earned: the mean return of the first iteration in which an episode
    ended, and that of the episodes in each EVERY environment steps, nan where none ended."""
    progress = runs.read_progress(folder)
    rows = [row for row in progress if np.isfinite(float(row["episodic_return"] or "nan"))]
    names = ("global_step", "episodic_return", "episodes")
    steps, returns, episodes = np.array([[float(row[name]) for name in names] for row in rows]).reshape(-1, 3).T
    curve, last = [], max((int(row["global_step"]) for row in progress), default=0)
    for step in range(EVERY, last + 1, EVERY):
        here = (steps > step - EVERY) & (steps <= step)
        curve.append(np.average(returns[here], weights=episodes[here]).item() if here.any() else np.nan)
    return returns[0].item() if len(returns) else np.nan, curve


def curves(folders: tuple[Path, ...]) -> dict[str, Any]:
    """Returns what runs earned: returns [runs, n], every EVERY environment steps until the first of them ends, and the
    `untrained` [runs]. `kind` is what their settings have in common."""
    configs = [runs.read_config(folder) for folder in folders]
    env_ids = list(dict.fromkeys(config["args"]["env_id"] for config in configs))
    if len(env_ids) > 1:
        runs.stop(f"runs of different environments: {' and '.join(env_ids)}")
    untrained, found = zip(*map(read_curve, folders))
    kinds = [runs.setting(config) for config in configs]
    return dict(
        env_id=env_ids[0],
        kind={name: x for name, x in kinds[0].items() if all(of_run.get(name) == x for of_run in kinds)},
        seeds=[config["args"]["seed"] for config in configs],
        script=configs[0]["script"][:12],
        versions=configs[0]["versions"],
        untrained=untrained,
        returns=[curve[: min(map(len, found))] for curve in found],
    )


def check_runs(folders: tuple[Path, ...]) -> None:
    """Stops at runs that cannot be a reference: unfinished ones, the same one twice, and those of another setting."""
    configs = [runs.read_config(folder) for folder in folders]
    for folder, config in zip(folders, configs):
        last = max((int(row["global_step"]) for row in runs.read_progress(folder)), default=0)
        if last < runs.planned_steps(config):
            runs.stop(f"{folder}: has not ended ({last:,} of {runs.planned_steps(config):,} steps)")
        if runs.setting(config) != runs.setting(configs[0]):
            runs.stop(f"{folder}: has other settings than {folders[0]}")
    seeds = [(config["args"]["env_id"], config["args"]["seed"]) for config in configs]
    if len(set(seeds)) < len(seeds):
        runs.stop("two of these runs have the same seed")


def other_settings(reference: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """Returns the names of the arguments in which a run differs from the reference runs, "algo" among them, and the
    planned length, by which learning rates decay. An agent of Stable-Baselines3 is compared with ppo.py's as one of
    other settings."""
    own = runs.setting(config) | (dict(algo="ppo") if config["algo"] == "sb3" else {})
    return [name for name, x in reference["kind"].items() if own.get(name) != x]


def published(env_id: str) -> dict[str, Any] | None:
    """Returns the curves of reference.json for the environment, if there are any."""
    return json.loads(FILE.read_text()).get(env_id) if FILE.is_file() else None


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    runs.check_json_path("--out", args.out)
    check_runs(args.runs or runs.stop("name one run folder or more"))
    found = curves(args.runs)
    if not found["returns"][0] or not np.isfinite(found["returns"]).all():
        runs.stop(f"these runs logged no return in some {EVERY:,} steps")
    found["returns"] = np.round(found["returns"], 1).tolist()
    found["untrained"] = np.round(found["untrained"], 1).tolist()
    try:
        known = json.loads(args.out.read_text()) if args.out.is_file() else {}
    except ValueError:
        runs.stop(f"{args.out} is damaged; move it away")
    known = dict(sorted((known | {found["env_id"]: found}).items()))
    lines = ",\n".join(f'"{env}": {json.dumps(x)}' for env, x in known.items())
    runs.replace_text(args.out, f"{{\n{lines}\n}}\n")
    steps = EVERY * len(found["returns"][0])
    print(f"{args.out}: {found['env_id']}, {len(found['seeds'])} runs through {steps:,} steps")


if __name__ == "__main__":
    runs.run_program(main)
