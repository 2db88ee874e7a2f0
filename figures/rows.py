"""Writes a diagnostic's rows with the names that the rooms' claims read. The published files are rows of versions
before 3.0, which kept means and intervals. Here these are computed from what rows keep since.

    python figures/rows.py results/gradient.jsonl figures/gradients/noise_hopper.json
"""

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parent.parent / "diagnostics"))

import experiments
import gradient as gradients
import lab
import landscape as landscapes
import steps as updates_of
import value as values

Row = dict[str, Any]
NETWORK = "value network"


def finite(x: float) -> float | None:
    return x if np.isfinite(x) else None


def cosines(of_pairs: list[Row], ceiling: float | None) -> list[Row]:
    """Returns the cosines with a "true" gradient, of each number of pairs."""
    points = []
    for x in of_pairs:
        point = gradients.mean_with_true(x) | dict(all=x["cosines"], without=x["without"] or None)
        points.append(point | dict(corrected=ceiling and point["mean"] / ceiling))
    return points


def of_gradients(of_baselines: dict[str, Row]) -> Row:
    row = dict(noise_scale={}, variance={}, convergence={}, direction={})
    for name, x in of_baselines.items():
        scale = gradients.noise_scale(x)
        numbers = {key: scale[key] for key in ("grad_sq", "trace", "ceiling", "inverse_interval")}
        numbers |= dict(pairs=finite(scale["mean"]), interval=scale["interval"] and [*map(finite, scale["interval"])])
        numbers |= {key: x[key] for key in ("products", "scatter", "estimate_pairs")}
        row["noise_scale"][name] = numbers
        row["variance"][name] = [gradients.pairwise(y) | dict(all=y) for y in x["variance"]]
        row["convergence"][name] = cosines(x["convergence"], scale["ceiling"])
    return row


def gradient(row: Row) -> Row:
    return row | of_gradients({NETWORK: row})


def baselines(row: Row) -> Row:
    found = of_gradients(row["of_baselines"])
    ceiling = found["noise_scale"]["returns - true value function"]["ceiling"]
    for name, x in row["of_baselines"].items():
        found["direction"][name] = cosines(x["direction"], ceiling)
        used = x["true_pairs_used"]
    return row | found | dict(true_pairs_used=used)


def value(row: Row) -> Row:
    found = dict(row)
    for name, x in row.items():
        if name.startswith(("train_", "heldout_")) and isinstance(x, dict):
            found[name] = x | values.mean_error(x)
    return found


def landscape(row: Row) -> list[Row]:
    """Returns a row for each point of the plane."""
    about = {name: x for name, x in row.items() if name not in ("points", "concentrations")}
    points = []
    for x in row["points"]:
        start = next(y for y in row["points"] if y["step_pairs"] == x["step_pairs"] and y["step"] == y["random"] == 0)
        point = x | lab.mean_of(x["returns"]) | dict(episodes=len(x["returns"]))
        point |= dict(step_norm=row["step_norms"][str(x["step_pairs"])])
        point |= dict(change=landscapes.paired_change(start["returns"], x["returns"]))
        points.append(about | {name: y for name, y in point.items() if name != "returns"})
    return points


def trust_region(row: Row) -> Row:
    found = dict(row)
    for where in ("train", "heldout"):
        x = row[where]
        returns = lab.mean_of(x["returns"]) if x["returns"] else dict(mean=None, interval=None)
        found[where] = dict(returns=x["returns"], episodes=len(x["returns"]), pairs=x["pairs"], parts=x["parts"])
        found[where] |= dict(mean_reward=returns["mean"], mean_reward_interval=returns["interval"])
        for name in ("max_ratio", "mean_kl", "max_kl", "policy_churn", "value_churn"):
            if name in x:
                mean = lab.mean_of(x[name])
                found[where] |= {name: mean["mean"], f"{name}_interval": mean["interval"], f"{name}_parts": x[name]}
    return found


def steps(row: Row) -> Row:
    return row | {name: gradients.pairwise(row[name]) | dict(all=row[name]) for name in ("cosine", "kl")}


def updates(row: Row) -> Row:
    changes = []
    for x in row["changes"]:
        about = dict(before=x["before"]["mean"], after=x["after"]["mean"], promised=x["promised"])
        changes.append(updates_of.change_of(x, row["episodes"]) | about)
    return row | updates_of.over_updates(row) | dict(changes=changes)


def evaluate(row: Row) -> Row:
    return row | {name: lab.mean_of(row[name]) | dict(all=row[name]) for name in ("returns", "lengths")}


WITH_NAMES: dict[str, Callable[[Row], Row | list[Row]]] = {
    x.__name__: x for x in (gradient, baselines, value, landscape)
}
WITH_NAMES |= {x.__name__: x for x in (trust_region, steps, updates, evaluate)}


@functools.cache
def agents(env_id: str, seed: int) -> dict[str, str]:
    """Returns which of CL's PPO and TRPO and IM's PPO-M the folders of benchmark.sh's runs are."""
    place, _, version = env_id.partition("-")
    words = ["updates", "--envs", place, "--env-version", version, "--first-seed", str(seed), "--seeds", str(seed)]
    runs = experiments.make_runs(experiments.read_arguments(words), experiments.EXPERIMENTS["updates"])
    return {run.folder.name: run.agent for run in runs}


def main(path: Path, out: Path) -> None:
    rows = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if agent := agents(row["env_id"], row["run_seed"]).get(row["run"]):
            row["agent"] = agent
        found = WITH_NAMES[path.stem](row)
        rows += found if isinstance(found, list) else [found]
    out.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
