"""columns.py RUN ...: which values the columns of progress.csv have. For each environment it prints the range of the
middle 90 % of all iterations of all its runs, as JSON."""

import csv
import json
import sys
from pathlib import Path

import numpy as np

found = {}
for folder in map(Path, sys.argv[1:]):
    env_id = json.loads((folder / "config.json").read_text())["args"]["env_id"]
    with open(folder / "progress.csv", newline="") as file:
        for row in csv.DictReader(file):
            for name, text in row.items():
                if text and name not in ("iteration", "global_step", "sps"):
                    found.setdefault(env_id, {}).setdefault(name, []).append(float(text))
ranges = {
    env: {name: np.percentile(x, [5, 95]).round(6).tolist() for name, x in of.items()} for env, of in found.items()
}
print(json.dumps(ranges, indent=1))
