"""What the rooms' measure.py share: their common options, and how rows are made of them with diagnostics/lab.py."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import tyro

sys.path.append(str(Path(__file__).parents[1] / "diagnostics"))

import lab


@dataclass(frozen=True)
class Common:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]  # run folders, all of one environment
    script: Path | None = None  # the algorithm's script; default: the one in algos/ that the run names
    out: Path | None = None  # folder of the rows; default: figures/ inside the first run
    jobs: int = lab.CORES  # worker processes; the numbers do not depend on it
    seed: int = 0  # of everything that is sampled here
    overwrite: bool = False  # measure again what an earlier call has measured


def rows_of(args: Common, name: str, measure: Callable, checkpoints: list[lab.Checkpoint]) -> list[dict[str, Any]]:
    """Returns a row for each checkpoint. What a room's own options say is what its measure is asked."""
    asked = dict(seed=args.seed)
    for option in sorted({x.name for x in fields(args)} - {x.name for x in fields(Common)} - {"checkpoints"}):
        value = getattr(args, option)
        asked[option] = list(value) if isinstance(value, tuple) else value  # as JSON gives it back
    return lab.fill(args, name, measure, [(checkpoint, asked) for checkpoint in checkpoints])


def chosen(args: Any) -> list[lab.Checkpoint]:
    """Returns the checkpoints that the room's options name, of all runs."""
    return sum((lab.choose(of_run, args.checkpoints) for of_run in lab.open_runs(args)), [])
