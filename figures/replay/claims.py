"""Which update broke it: what replay.py found."""

import functools
import importlib.util

import numpy as np
from estimates import FIGURES, measured, show
from measuring import intervals
from scipy import stats


@functools.cache
def found(name: str) -> tuple:
    """Returns the rows by iteration, what each update changed, and what replay.py says of them."""
    spec = importlib.util.spec_from_file_location("replay_script", FIGURES.parent / "diagnostics" / "replay.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    rows = measured(f"replay/{name}")
    changes, moves = script.find_changes(rows)
    return {x["iteration"]: x for x in rows}, changes, script.verdicts(rows, changes, moves)


def promised() -> tuple[float, float]:
    """Returns the rank correlation of what the surrogate promised and what the reward did, and its p-value."""
    rows, changes, _ = found("replay")
    return stats.spearmanr([x["promised"] for x in rows.values()], [x["mean"] for x in changes])


def curve(first: int) -> float:
    """Returns the mean over five iterations of PPO's curve."""
    episodes = [found("ppo")[0][i]["training_episodes"] for i in range(first, first + 5)]
    return np.mean([np.mean([y for y, _ in x]) for x in episodes])


def by_episodes() -> str:
    """Writes what changed between the same two fives of PPO's policies, by episodes with the same seeds."""
    rows = found("ppo")[0]
    first, then = (np.mean([rows[i]["before"]["returns"] for i in range(x, x + 5)], axis=0) for x in (365, 370))
    return show(intervals.mean_of(then - first))


def together() -> str:
    *_, last = found("ppo")[2]
    return last.split("reward ")[1].replace(" ->", " to").replace("-", "−")


PICTURES = {}
