"""Measures what a value clip must be compared with: how far the value network's outputs lie apart.

    python figures/value_clip/spread.py runs/Hopper-v4__ppo__seed401 --out results

From each of four checkpoints training goes on for one rollout, as a resumed run does, and the row has the standard
deviation of the values of its states, in the units in which the clip is given, and that of their targets.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro

sys.path.append(str(Path(__file__).parents[2] / "algos"))

import ppo

CHECKPOINTS = 100, 200, 300, 400


@dataclass(frozen=True)
class Args:
    run: Annotated[Path, tyro.conf.Positional]
    """folder of a run"""
    out: Path
    """folder for spread.jsonl"""
    jobs: int = 1
    """is there because all that measures has it; one process measures here"""


def measure(run: Path, iteration: int) -> dict[str, float]:
    """Returns the standard deviations over the states of the batch of this iteration."""
    checkpoint = ppo.load_checkpoint(run / "checkpoints" / f"iter_{iteration:06d}.pt")
    args = ppo.Args(**checkpoint["args"] | dict(compile=False))
    state = ppo.State(args)
    ppo.restore(state, checkpoint)
    with torch.no_grad():
        steps, _ = ppo.rollout(args, state)
        batch = ppo.estimate_advantages(args, state, steps)
    spread = dict(values=batch["old_values"].std().item(), targets=batch["value_targets"].std().item())
    return dict(iteration=iteration) | spread


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    args.out.mkdir(parents=True, exist_ok=True)
    rows = [measure(args.run, iteration) for iteration in CHECKPOINTS]
    (args.out / "spread.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
