"""What an agent of Stable-Baselines3 is like: pictures alone, since no paper's claim is about it."""

from collections.abc import Callable
from typing import Any

import numpy as np
from claims import new_figure
from estimates import measured
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from measuring import figures

VERSION = "v5"
BATCH = 2048  # pairs of a rollout in both programs
COLUMNS = {  # title, and the number of a cell
    "batch / noise scale": lambda x: max(0.0, BATCH * x["noise_scale"]["grad_sq"] / x["noise_scale"]["trace"]),
    "mean KL of an update (nats)": lambda x: x["heldout"]["mean_kl"],
    "median relative error of V": lambda x: x["value_error"]["median"],
    "critic's step, as a share\nof Adam's without eps": lambda x: x["critic_step"],
}


def draw_sb3() -> Figure:
    """Draws PPO of Stable-Baselines3 (SB3) and of this project, each at its defaults, in two environments: three seeds
    as thin lines, and their mean. Only SB3 has a joint gradient norm, so only its critic's step is shortened by it."""
    figure, axes = new_figure(2, len(COLUMNS), 4.8, sharex=True, sharey="col")
    looks = {"PPO of SB3": figures.look("trpo_plus"), "ppo.py": figures.look("ppo")}
    for row, env in zip(axes, ("hopper", "halfcheetah")):
        cells = measured(f"sb3/{env}")
        for (name, style), algo in zip(looks.items(), ("sb3", "ppo")):
            for axis, number in zip(row, COLUMNS.values()):
                draw_seeds(axis, [x for x in cells if x["algo"] == algo], number, style | dict(label=name))
        row[0].set_ylabel(cells[0]["run"].split("__")[0])
    axes[0, 0].set_yscale("symlog", linthresh=0.01, linscale=0.5)
    axes[0, 0].set_ylim(-0.001, 6)
    axes[0, 0].set_yticks([0, 0.01, 0.1, 1], ["0", "0.01", "0.1", "1"])
    for axis in axes[:, 1:3].ravel():
        axis.set_yscale("log")
        figures.label_log_axis(axis)
    axes[0, 3].set_ylim(0, 1.05)
    for axis, title in zip(axes[0], COLUMNS):
        axis.set_title(title, fontsize=9)
    for axis in axes[1]:
        axis.set_xlabel("iteration")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False, fontsize=9
    )
    return figure


def draw_seeds(axis: Axes, cells: list[dict[str, Any]], number: Callable, style: dict[str, Any]) -> None:
    """Draws a number of each run as a thin line, and the mean of the runs with markers."""
    of_runs = {}
    for cell in cells:
        try:
            of_runs.setdefault(cell["run"], {})[cell["iteration"]] = number(cell)
        except KeyError:  # it was not measured at this checkpoint
            pass
    for of_run in of_runs.values():
        axis.plot(list(of_run), list(of_run.values()), **style | dict(marker="", linewidth=0.6, label=None))
    common = sorted(set.intersection(*map(set, of_runs.values()))) if of_runs else []
    axis.plot(common, [np.mean([x[at] for x in of_runs.values()]) for at in common], **style)


PICTURES = {"sb3": draw_sb3}
