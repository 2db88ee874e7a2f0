"""Writes noise.json: the paired differences of rewards.json with what an argument does to the noise of gradients.

    python figures/nine/noise.py results/noise/rewards.json results/noise/gradient.jsonl

The first file is that of `rewards.py --paired`, and the second that of gradient.py for some of its runs.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "diagnostics"))

import gradient

OUT = Path(__file__).with_name("noise.json")
Cosines = dict[str, dict[int, np.ndarray]]  # a mean and two ends of an interval [3], by run and iteration


def cosine_of(row: dict[str, Any]) -> np.ndarray:
    """Returns the cosine K / (K + B) that two estimates from a training batch of K pairs have at a row's noise scale B,
    and the ends of its interval [3]. B itself has a pole where few pairs do not tell it from infinity."""
    scale, pairs = gradient.noise_scale(row), row["batch_size"]
    mean = scale["grad_sq"] / scale["trace"] if scale["trace"] else 0  # where gradients vanish
    signal = pairs * np.array([mean, *scale["inverse_interval"]])
    return signal / (1 + signal)


def difference(on: np.ndarray, off: np.ndarray) -> dict[str, Any]:
    """Returns the mean of on - off [seeds, 3], with an interval that is for these very runs."""
    x = on[:, 0] - off[:, 0]
    # Runs are independent, so their errors add in squares. The low end is reached with on at its low end and off at its
    # high one. Where both measured the same, they are equal bit for bit, and the difference is known to be 0.
    unlike = (on != off).any(1, keepdims=True)
    below = np.linalg.norm(unlike * np.column_stack([on[:, 0] - on[:, 1], off[:, 2] - off[:, 0]])) / len(x)
    above = np.linalg.norm(unlike * np.column_stack([on[:, 2] - on[:, 0], off[:, 0] - off[:, 1]])) / len(x)
    return dict(mean=x.mean().item(), interval=[(x.mean() - below).item(), (x.mean() + above).item()])


def runs_of(results: dict[str, Any], pair: dict[str, Any], switched: bool) -> dict[int, str]:
    """Returns the runs of one side of a pair, by seed."""
    sought = {name: switched for name in pair["switched"]}
    sought |= {name: name in pair["others_on"] for name in pair["others"]}
    for x in results["settings"]:
        here = (x["env_id"], x["algo"]) == (pair["env_id"], pair["algo"])
        if here and all(x["settings"][name] is value for name, value in sought.items()):
            return dict(zip(x["seeds"], (Path(folder).name for folder in x["folders"])))
    raise ValueError(f"no setting has {sought}")


def with_noise(results: dict[str, Any], cosines: Cosines) -> dict[str, Any]:
    """Returns the results, with the differences of the cosines at each iteration that all measured runs of a pair
    have."""
    paired = []
    for pair in results["paired"]:
        with_it, without = (runs_of(results, pair, x) for x in (True, False))
        seeds = [x for x in pair["seeds"] if with_it[x] in cosines and without[x] in cosines]
        runs = [cosines[side[seed]] for seed in seeds for side in (with_it, without)]
        noise = []
        for iteration in sorted(set.intersection(*map(set, runs))) if runs else ():
            on, off = (np.array([cosines[side[x]][iteration] for x in seeds]) for side in (with_it, without))
            of_both = dict(iteration=iteration, seeds=seeds, on=on.tolist(), off=off.tolist())
            of_both |= dict(differences=(on - off)[:, 0].tolist(), mean=difference(on, off))
            noise.append(of_both)
        paired.append(pair | dict(noise=noise))
    return results | dict(paired=paired)


def main(rewards: str, rows: str, out: Path = OUT) -> None:
    cosines = {}
    for row in map(json.loads, Path(rows).read_text().splitlines()):
        cosines.setdefault(row["run"], {})[row["iteration"]] = cosine_of(row)
    out.write_text(json.dumps(with_noise(json.loads(Path(rewards).read_text()), cosines)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
