"""Which update broke it: the picture of a replay, three of the ten panels that replay.py draws."""

import numpy as np
from claims import new_figure
from estimates import measured
from matplotlib.figure import Figure
from measuring import figures

VERSION = "v5"


def draw_replay() -> Figure:
    """Draws the returns before and after each update, what each update changed, and the explained variance."""
    figure, axes = new_figure(3, 1, 5.2, sharex=True, height_ratios=(1, 1, 0.7))
    cells = measured("replay/replay")
    at = np.array([x["iteration"] for x in cells])
    before, after = (np.array([x[side]["returns"] for x in cells]) for side in ("before", "after"))
    change, error = (after - before).mean(1), (after - before).std(1, ddof=1) / before.shape[1] ** 0.5
    blue, red = figures.COLOURS["ppo"], figures.COLOURS["ppo_m"]
    [column] = [axes[:, 0]]
    column[0].plot(at, before.mean(1), "o-", color=blue, ms=4, label="before the update")
    column[0].plot(at, after.mean(1), "s--", color=red, ms=4, label="after it")
    column[0].set_ylabel("return of\n24 episodes", fontsize=9)
    column[0].legend(frameon=False, fontsize=9)
    column[1].bar(at, change, color=np.where(change < 0, red, blue), width=0.7)
    column[1].vlines(at, change - 2 * error, change + 2 * error, color="black", lw=1)
    column[1].axhline(0, color="black", lw=0.8)
    column[1].set_ylabel("what the update changed\n(± 2 standard errors)", fontsize=9)
    column[2].plot(at, [x["explained_variance"][0] for x in cells], "o-", color="black", ms=4)
    column[2].set_ylabel("explained\nvariance", fontsize=9)
    column[2].set_xlabel("iteration of TRPO+ on Hopper-v5, seed 2", fontsize=9)
    return figure


PICTURES = {"replay": draw_replay}
