"""Writes what the analyses of the experiments need of trained runs: final rewards, and means of what training logged.

    python figures/finals.py runs/time_limits/* runs/baselines/HalfCheetah* --out figures/time_limits/finals.json \\
        --labels "on=ppo bootstrap-truncation" "off=ppo no-bootstrap-truncation"

A label names the runs with these flags, spelled as in names of run folders. Without labels, runs are called as in
diagnostics/rewards.py. A run that is not complete stops the program, and nothing is written: which runs count is
decided before a look. A run that training ended because a number was not finite is named with
--stopped, and counts with the iterations that it has.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

sys.path.append(str(Path(__file__).parent.parent / "diagnostics"))

import lab
import rewards


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """run folders, of any algorithms and environments"""
    out: Path
    """file to write"""
    labels: tuple[str, ...] = ()
    """labels of your own, each "LABEL=ALGO FLAG ...", for runs with these flags"""
    stopped: tuple[Path, ...] = ()
    """those of the runs that ended early because a number was not finite"""


def numbers(run: rewards.Run) -> dict[str, float]:
    """Returns a run's final reward, the mean of its last 50 iterations with an episode's end, and as training logged
    them the explained variance, averaged over the second half of training, the mean KL of an iteration in nats, over
    all of it, and the entropy of the last iteration. (REINFORCE has no explained variance.)"""
    rows, returns = rewards.read_progress(run["folder"]), run["returns"][1]
    half = len(rows) // 2
    parts = dict(explained_variance=rows[half:], mean_kl=rows, entropy=rows[-1:])
    found = {name: np.mean([float(x[name]) for x in of]) for name, of in parts.items() if name in rows[0]}
    found |= dict(finals=returns[-5:].mean(), last_50=returns[-50:].mean())
    return {name: float(x) for name, x in found.items()}


def label_of(run: rewards.Run, labels: tuple[str, ...]) -> str:
    """Returns the one label whose flags the run has."""
    flags, found = {rewards.flag(*x) for x in run["setting"].items()}, []
    for label, _, spelled in (x.partition("=") for x in labels):
        algo, *others = spelled.split()
        found += [label] * (flags >= {rewards.flag("algo", algo), *others})
    if len(found) != 1:
        lab.refuse(f"{run['folder']}: it is {' and '.join(found) or 'none of the labels'}")
    return found[0]


def collect(folders: tuple[Path, ...], labels: tuple[str, ...], stopped: tuple[Path, ...]) -> list[dict[str, Any]]:
    """Returns a record for each setting in an environment, with its numbers by run."""
    found = [rewards.read_run(x) for x in folders] or lab.refuse("name one run folder or more")
    ended_early = {x.resolve() for x in stopped}
    for run in found:
        if bool(run["missing"]) != (run["folder"].resolve() in ended_early) or not len(run["returns"][0]):
            lab.refuse(f"{run['folder']}: {run['missing'] or 'it is complete, and so not one that was stopped'}")
    records, given = [], tuple(label_of(run, labels) for run in found if labels)
    for (env_id, label), alike in rewards.group_runs(found, given).items():
        alike = sorted(alike, key=lambda run: run["seed"])
        record = dict(env_id=env_id, label=label, algo=alike[0]["algo"], settings=alike[0]["setting"])
        record |= dict(folders=[x["folder"].resolve().name for x in alike], seeds=[x["seed"] for x in alike])
        record |= dict(stopped=[x["seed"] for x in alike if x["missing"]])
        of_runs = [numbers(run) for run in alike]
        records.append(record | {name: [x[name] for x in of_runs] for name in of_runs[0]})
    return records


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    records = collect(args.runs, args.labels, args.stopped)
    args.out.write_text('{"settings": [\n' + ",\n".join(map(json.dumps, records)) + "\n]}\n")
    print("".join(f"{x['env_id']}, {x['label']}: {len(x['seeds'])} runs\n" for x in records), end="")


if __name__ == "__main__":
    lab.run_program(main)
