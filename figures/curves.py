"""Draws the learning curves of runs and prints their final rewards as a Markdown table.

    python figures/curves.py runs/Hopper-v5__ppo__seed* --out figures/ppo.png

The reward of an iteration is the mean undiscounted return of the episodes that ended in it; a run's final reward is
the mean over its last five iterations. Intervals are 95 % bootstrap intervals of the mean over seeds. Curves are
averaged over 11 iterations and over the seeds; where there is one algorithm, thin lines show its seeds.
"""

import csv
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import matplotlib
import numpy as np
import tyro

matplotlib.use("agg")
import matplotlib.pyplot as plt

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"]


@dataclass
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """run folders"""
    out: Path = Path("curves.png")
    """picture to write"""


def read(folder: Path) -> tuple[str, str, np.ndarray, np.ndarray]:
    """Environment, algorithm, steps and rewards of a finished run."""
    config = json.loads((folder / "config.json").read_text())
    with open(folder / "progress.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    args, batch = config["args"], config["args"]["num_envs"] * config["args"]["num_steps"]
    if not rows or int(rows[-1]["global_step"]) < args["total_timesteps"] // batch * batch:
        raise SystemExit(f"{folder} is not finished")
    rows = [row for row in rows if row["episodic_return"]]
    steps, rewards = (np.array([float(row[k]) for row in rows]) for k in ("global_step", "episodic_return"))
    return args["env_id"], config["algo"], steps, rewards


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    curves = defaultdict(list)
    for folder in args.runs:
        env_id, algo, *curve = read(folder)
        curves[env_id, algo].append(curve)
    env_ids, algos = (list(dict.fromkeys(column)) for column in zip(*curves))
    figure, axes = plt.subplots(1, len(env_ids), figsize=(5 * len(env_ids), 3.4), squeeze=False, layout="constrained")
    print("| environment | algorithm | seeds | final reward | 95 % interval | range |\n|---|---|---|---|---|---|")
    for (env_id, algo), seeds in curves.items():
        axis, colour = axes[0, env_ids.index(env_id)], COLOURS[algos.index(algo) % len(COLOURS)]
        grid = np.linspace(max(x[0] for x, _ in seeds), min(x[-1] for x, _ in seeds), 200)
        smooth = [np.interp(grid, x, np.convolve(np.pad(y, 5, "edge"), np.ones(11) / 11, "valid")) for x, y in seeds]
        if len(algos) == 1:
            axis.plot(grid / 1e6, np.transpose(smooth), color=colour, alpha=0.35, linewidth=0.8)
        axis.plot(grid / 1e6, np.mean(smooth, 0), color=colour, label=algo, linewidth=1.6)
        final = np.array([y[-5:].mean() for _, y in seeds])
        resampled = np.random.default_rng(0).choice(final, (1000, len(final))).mean(1)
        low, high = np.percentile(resampled, [2.5, 97.5])
        ends = f"{low:.0f} to {high:.0f} | {final.min():.0f} to {final.max():.0f}"
        print(f"| {env_id} | {algo} | {len(final)} | {final.mean():.0f} | {ends} |")
    for axis, env_id in zip(axes[0], env_ids):
        axis.set(title=env_id, xlabel="environment steps (millions)", ylabel="episode return")
        axis.spines[["top", "right"]].set_visible(False)
    if len(algos) > 1:
        figure.legend(*axes[0, 0].get_legend_handles_labels(), frameon=False, loc="outside right center")
    figure.savefig(args.out, dpi=150)


if __name__ == "__main__":
    main()
