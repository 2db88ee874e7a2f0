"""Measures how many minutes of one core a million steps of each script and task take, with one process at a time.

    python figures/reference/speed.py --out figures/reference/speed.json    # on a machine that does nothing else

Each run takes some 60,000 steps with a seed that no protocol has. The speed is the median of its iterations without the
first two, which compile and warm up. The file also has how many cores other processes used meanwhile, which should be
near 0.
"""

import csv
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro
from tqdm import tqdm

sys.path.append(str(Path(__file__).parents[1]))

import protocols
from papers import AGENTS

ROOT = Path(__file__).parents[2]
ONE_CORE = os.environ | dict(OMP_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1")


@dataclass(frozen=True)
class Args:
    out: Path
    """file to write; what it has already is not measured again"""
    steps: int = 61_440
    """environment steps of each run"""


def command_of(agent: str, env_id: str, folder: Path, steps: int) -> list[str]:
    words = ["--env-id", env_id, "--seed", "999", "--total-timesteps", str(steps)]
    if agent == "sb3_ppo":
        return [str(ROOT / "figures/reference/sb3_ppo.py"), *words, "--out", str(folder)]
    [algo] = AGENTS[agent]  # these agents are scripts at their defaults
    return [str(ROOT / f"algos/{algo}.py"), *words, "--runs-dir", str(folder.parent), "--run-name", folder.name]


def used() -> tuple[float, float, float]:
    """Returns the time, the processor time of everything since the machine began, and that of our children, in
    seconds."""
    user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = os.sysconf("SC_CLK_TCK")
    return time.monotonic(), (user + nice + system + sum(rest[:3])) / ticks, children.ru_utime + children.ru_stime


def minutes(agent: str, env_id: str, steps: int) -> dict[str, float]:
    """Returns the minutes of a million steps, and how many cores were used by others."""
    with tempfile.TemporaryDirectory() as made:
        folder, before = Path(made) / "run", used()
        command = [sys.executable, *command_of(agent, env_id, folder, steps)]
        subprocess.run(command, env=ONE_CORE, check=True, capture_output=True)
        seconds, by_all, own = (y - x for x, y in zip(before, used()))
        rows = list(csv.DictReader((folder / "progress.csv").read_text().splitlines()))
    speed = statistics.median(float(row["sps"]) for row in rows[2:])
    return dict(minutes=1e6 / speed / 60, others=(by_all - own) / seconds)


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    found = json.loads(args.out.read_text()) if args.out.exists() else {}
    cells = [(agent, env_id) for part in ("reference", "sb3-ppo") for agent, env_id, _ in protocols.planned(part)]
    for agent, env_id in tqdm([*dict.fromkeys(cells)], unit="run"):
        if env_id not in found.setdefault(agent, {}):
            found[agent][env_id] = minutes(agent, env_id, args.steps)
            args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
