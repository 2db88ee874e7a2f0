"""Writes columns.json: for each environment, the range of the middle 90 % of all iterations of all runs, of each column
of progress.csv.

python figures/algorithms/columns.py now/*
"""

import csv
import json
import sys
from pathlib import Path

import numpy as np

OUT = Path(__file__).with_name("columns.json")


def main(*folders: str, out: Path = OUT) -> None:
    found = {}
    for folder in map(Path, folders):
        env_id = json.loads((folder / "config.json").read_text())["args"]["env_id"]
        with open(folder / "progress.csv", newline="") as file:
            for row in csv.DictReader(file):
                for name, text in row.items():
                    if text and name not in ("iteration", "global_step", "sps"):
                        found.setdefault(env_id, {}).setdefault(name, []).append(float(text))
    ranges = {}
    for env_id, columns in found.items():
        ranges[env_id] = {name: np.percentile(x, [5, 95]).round(6).tolist() for name, x in columns.items()}
    out.write_text(json.dumps(ranges, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
