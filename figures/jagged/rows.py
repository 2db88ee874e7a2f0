"""Writes what claims.py reads of landscape.py's rows: rows.jsonl, with the returns of trained policies to four digits,
and start.jsonl, with J² at iteration 0 alone, because the many short episodes there would fill megabytes.

python figures/jagged/rows.py results/jagged/landscape.jsonl
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # before this folder, which has a claims.py, too

from claims import room

HERE, OF_RUN = Path(__file__).parent, ("env_id", "algo", "run_seed", "iteration", "checkpoint")


def main(path: str, out: str | Path = HERE) -> None:
    found, jagged = dict(rows=[], start=[]), room("jagged")
    for row in map(json.loads, Path(path).read_text().splitlines()):
        about = {name: row[name] for name in OF_RUN}
        if row["iteration"] == 0:
            about |= dict(jaggedness={x: jagged.jaggedness(row, x, row["reward_pairs"]) for x in jagged.ALONG})
            found["start"].append(about)
            continue
        names = "step", "random", "episodes", "pairs"
        points = [
            {y: x[y] for y in names} | dict(returns=[float(f"{y:.4g}") for y in x["returns"]]) for x in row["points"]
        ]
        found["rows"].append(about | dict(points=points))
    for name, rows in found.items():
        (Path(out) / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
