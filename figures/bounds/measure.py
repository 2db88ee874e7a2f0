"""Measures what this room's protocol asks for: what clipping the actions is worth to a policy that learned without it.

python figures/bounds/measure.py runs/baselines/Hopper-v5__ppo__seed20? --out results/bounds
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "diagnostics"))

from measuring import intervals, runs, sampling, table
from measuring.runs import Source


@dataclass(frozen=True, kw_only=True)
class Args(runs.Options):
    episodes: int = 20
    """episodes of each run's last policy, as drawn and once more through a clip"""


WAYS = "no", "clip"


def measure(source: Source, seed: int, episodes: int) -> dict[str, Any]:
    """Returns the return and the length of each episode, by how actions reach the environment. The statistics are
    frozen, and both ways have the same seeds. MuJoCo limits the controls itself, so only the cost of the actions can
    differ: where the lengths do, too, clipping has changed what the body does."""
    calls = [(source, way, (seed, source.iteration), episodes) for way in WAYS]
    played = table.side_by_side(play, calls)
    return {way: dict(zip(("returns", "lengths"), zip(*found))) for way, found in zip(WAYS, played)}


def play(source: Source, way: str, seed: tuple[int, ...], episodes: int) -> list[tuple[float, int]]:
    """Plays complete episodes of the checkpoint's policy in environments of the script's own that bound actions so."""
    script, args, state = sampling.fresh_state(source, seed, 1, 32)
    args = replace(args, bound_action=way)
    state = sampling.changed(state, workers=sampling.new_state(script, args).workers)
    return sampling.play_episodes(script, args, state, [sampling.generator(source, *seed, i) for i in range(episodes)])


def main(argv: list[str] | None = None) -> None:
    args = runs.read_options(Args, argv, __doc__, episodes=2)
    last = [sources[-1] for sources in runs.open_runs(args.runs, args.script)]
    for source in last:
        if runs.read_config(source.run)["args"].get("bound_action") != "no":
            runs.stop(f"{source.run}: its actions were bounded in training, too")
    for row in table.fill(args, "bounds", measure, [(source, dict(episodes=args.episodes)) for source in last]):
        worth = [y - x for x, y in zip(*(row[way]["returns"] for way in WAYS))]
        print(f"{row['run']}, iteration {row['iteration']}: clip - no {intervals.text(intervals.mean_of(worth))}")


if __name__ == "__main__":
    runs.run_program(main)
