"""Measures what this room's protocol asks for: what clipping the actions is worth to a policy that learned without it.

python figures/bounds/measure.py runs/baselines/Hopper-v5__ppo__seed20? --out results/bounds
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import measuring
from measuring import lab


@dataclass(frozen=True)
class Args(measuring.Common):
    episodes: int = 20  # of each run's last policy, as drawn and once more through a clip


WAYS = "no", "clip"


def measure(checkpoint: lab.Checkpoint, parallel_map: Callable, seed: int, episodes: int) -> dict[str, Any]:
    """Returns the return and the length of each episode, by how actions reach the environment. The statistics are
    frozen, and both ways have the same seeds. MuJoCo limits the controls itself, so only the cost of the actions can
    differ: where the lengths do, too, clipping has changed what the body does."""
    calls = [(checkpoint, way, (seed, checkpoint.iteration), episodes) for way in WAYS]
    played = parallel_map(play, *zip(*calls))
    return {way: dict(zip(("returns", "lengths"), zip(*found))) for way, found in zip(WAYS, played)}


def play(checkpoint: lab.Checkpoint, way: str, seed: tuple[int, ...], episodes: int) -> list[tuple[float, int]]:
    """Plays complete episodes of the checkpoint's policy in environments of the script's own that bound actions so."""
    script, args, state = lab.frozen_state(checkpoint)
    args = replace(args, num_envs=1, num_steps=32, bound_action=way)
    [worker] = state.workers = script.State(args).workers
    worker.env = env = lab.OneEpisode(worker.env)
    played = []
    for state.rng in [lab.generator(checkpoint.run, *seed, i) for i in range(episodes)]:
        worker.obs, env.ended, env.total, env.length = None, False, 0.0, 0
        while not env.ended:
            script.rollout(args, state)
        played.append((env.total, env.length))
    return played


def main(argv: list[str] | None = None) -> None:
    args = lab.read_options(Args, argv, __doc__, episodes=2)
    last = [checkpoints[-1] for checkpoints in lab.open_runs(args, with_step=False)]
    for checkpoint in last:
        if lab.read_config(checkpoint.run)["args"].get("bound_action") != "no":
            lab.refuse(f"{checkpoint.run}: its actions were bounded in training, too")
    for row in measuring.rows_of(args, "bounds", measure, last):
        worth = [y - x for x, y in zip(*(row[way]["returns"] for way in WAYS))]
        print(f"{row['run']}, iteration {row['iteration']}: clip - no {lab.in_words(lab.mean_of(worth))}")


if __name__ == "__main__":
    lab.run_program(main)
