"""What an agent of Stable-Baselines3 is like. No paper's claim is about it."""

import numpy as np
from estimates import Estimate, measured, show
from pictures import LINES, STYLES, label_log_axis, new_figure

BATCH = 2048  # pairs of a rollout in both programs
COLUMNS = {  # title, what a row must have, and the number of a row
    "batch / noise scale": ("noise_scale", lambda x: max(0.0, BATCH * x["grad_sq"] / x["trace"])),
    "mean KL of an update (nats)": ("heldout", lambda x: x["mean_kl"]),
    "median relative error of V": ("value_error", lambda x: x["median"]),
    "critic's step, as a share\nof Adam's without eps": ("critic_step", lambda x: x),
}
trainings = measured("sb3/trainings")
known_later = [i for i, x in enumerate(trainings) if x["known_rows"] < x["rows"]]
norms = [x for place in ("hopper", "halfcheetah") for x in measured(f"sb3/{place}") if "grads_clipped" in x]


def finals(place: str, algo: str) -> list[float]:
    [x] = [x for x in measured("sb3/rewards")["settings"] if (x["env_id"], x["algo"]) == (f"{place}-v5", algo)]
    return x["finals"]


def at(place: str, algo: str, iteration: int, name: str, digits: int) -> str:
    """Writes a number of three runs at an iteration."""
    rows = [x for x in measured(f"sb3/{place.lower()}") if (x["algo"], x.get("iteration")) == (algo, iteration)]
    found = [x["heldout"]["mean_kl"] if name == "mean_kl" else x[name] for x in rows]
    assert len(found) == 3
    mean = Estimate([found])
    return show(dict(mean=mean.mean, interval=mean.interval()), digits)


def table_of_trainings() -> list[list[str]]:
    """Returns a row for each training: the import's iterations beside SB3's, and what else was compared."""
    rows = [["training", "files", "iterations", "in SB3", "rows of progress.csv, with episodes, wrong", "update"]]
    for x in trainings:
        of, of_sb3 = (" ".join(map(str, x[name])) for name in ("iterations", "of_sb3"))
        counts = f"{x['rows']}, {x['known_rows']}, {x['wrong_rows']}"
        rows.append([x["training"], x["files"], of, of_sb3, counts, f"{x['update_differs']:g}"])
    return [list(map(str, row)) for row in rows]


def sb3():
    """Draws PPO of Stable-Baselines3 (SB3) and of this project, each at its defaults, in two environments: three seeds
    as thin lines, and their mean. Only SB3 has a joint gradient norm, so only its critic's step is shortened by it."""
    figure, axes = new_figure(2, len(COLUMNS), 4.6, sharex=True, sharey="col")
    for row, place in zip(axes, ("Hopper", "HalfCheetah")):
        for axis, (title, (name, number)) in zip(row, COLUMNS.items()):
            for k, (algo, label) in enumerate(dict(ppo="ppo.py", sb3="PPO of SB3").items()):
                of_runs, style = {}, dict(color=STYLES[("PPO", "PPO of SB3")[k]][0], ls=LINES[k])
                for x in measured(f"sb3/{place.lower()}"):
                    if x["algo"] == algo and name in x:
                        of_runs.setdefault(x["run"], {})[x["iteration"]] = number(x[name])
                for of in of_runs.values():
                    axis.plot(of.keys(), of.values(), lw=0.6, **style)
                common = sorted(set.intersection(*map(set, of_runs.values()))) if of_runs else []
                means = [np.mean([x[i] for x in of_runs.values()]) for i in common]
                axis.plot(common, means, marker="op"[k], ms=4, label=label, **style)
            axis.set_title(title if place == "Hopper" else "", fontsize=9)
            axis.set_xlabel("iteration" if place != "Hopper" else "", fontsize=9)
        row[0].set_ylabel(f"{place}-v5", fontsize=9)
    axes[0, 0].set_yscale("symlog", linthresh=0.01, linscale=0.5)
    axes[0, 0].set_ylim(-0.001, 6)
    axes[0, 0].set_yticks([0, 0.01, 0.1, 1], ["0", "0.01", "0.1", "1"])
    for axis in axes[:, 1:3].ravel():
        axis.set_yscale("log")
        label_log_axis(axis)
    axes[0, 3].set_ylim(0, 1.05)
    return figure


PICTURES = dict(sb3=sb3)
