"""Writes what claims.py reads of measure.py's rows, with the iterations of each continuation in parts of 49,152 pairs,
because all 588 of each checkpoint would fill megabytes.

python figures/gains_add_up/rows.py results/gains_add_up/gains_add_up.jsonl
"""

import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
OF_RUN = "env_id", "algo", "setting", "run_seed", "iteration", "checkpoint", "before"
LOGGED = "step_norm", "mean_kl", "explained_variance"


def summed_up(iterations: list[dict]) -> dict:
    """Returns the mean of what some iterations logged. That of their returns is over episodes."""
    episodes = [x["episodes"] for x in iterations]
    total = sum(x["episodes"] * (x["mean_return"] or 0) for x in iterations)
    row = dict(episodes=sum(episodes), mean_return=total / sum(episodes))
    return row | {name: float(np.mean([x[name] for x in iterations])) for name in LOGGED}


def main(path: str, out: str | Path = HERE) -> None:
    rows = []
    for row in map(json.loads, Path(path).read_text().splitlines()):
        parts = len(row["many"]["iterations"])
        arms = {
            x: y | dict(iterations=[summed_up([*z]) for z in np.array_split(y["iterations"], parts)])
            for x, y in row.items()
            if x in ("few", "short", "many")
        }
        rows.append({name: row[name] for name in OF_RUN} | arms)
    (Path(out) / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
