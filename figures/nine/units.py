"""Writes units.json: what reward scaling divides the rewards by at the end of each run.

python figures/nine/units.py runs/FOLDER ...    # of PPO-scaled-clip, seeds 41 to 50
"""

import json
import sys
from pathlib import Path

import torch

OUT = Path(__file__).with_name("units.json")


def units_of(folder: Path) -> dict:
    """Returns the standard deviation of the discounted sums of rewards in a run's last checkpoint."""
    last = torch.load(max(folder.glob("checkpoints/iter_*.pt")), weights_only=True)
    stats, args = last["reward_stats"], json.loads((folder / "config.json").read_text())["args"]
    std = (stats["sum_sq"] / (stats["count"] - 1)) ** 0.5
    return dict(env_id=args["env_id"], seed=args["seed"], iteration=last["iteration"], std=std)


def main(*folders: str, out: Path = OUT) -> None:
    rows = [json.dumps(units_of(Path(x))) for x in folders]
    out.write_text("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
