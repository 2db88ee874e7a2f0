"""Draws the four small pictures of the README, one for each diagnostic of the papers, from the numbers of the rooms:
PPO, PPO-M and TRPO on Walker2d-v5, and of the gradient and the landscape one seed.

    python figures/four.py    # figures/four/*.png
"""

from claims import room
from estimates import FIGURES
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pictures import LINES, STYLES
from PIL import Image

gradients, critic, landscapes, steps = map(room, ("gradients", "critic", "landscapes", "steps"))
AGENTS = "PPO", "PPO-M", "TRPO"


def gradient(figure: Figure) -> None:
    axis = figure.subplots()
    gradients.draw_cosines(axis, 300, "variance")
    axis.set(xlabel="pairs of an estimate", title="cosine of two gradients")


def value(figure: Figure) -> None:
    axis = figure.subplots()
    critic.draw_errors(axis, "Walker2d", "heldout_released")
    axis.set(xlabel="iteration", title="relative error of V", ylim=(0.03, 3))


def landscape(figure: Figure) -> None:
    axes = figure.subplots(2, sharex=True)
    for axis, quantity, text in zip(axes, ("surrogate", "mean"), ("surrogate", "return")):
        draw_along(axis, quantity)
        axis.set_ylabel(text)
    axes[0].set_title("change along the step")
    axes[1].set_xlabel("multiples of the step")


def draw_along(axis: Axes, quantity: str) -> None:
    """Draws by how much a quantity changes along the steps from few pairs."""
    [of_seed, *_] = landscapes.landscapes("Walker2d", 300)
    for k, name in enumerate(AGENTS):
        points = of_seed[name, landscapes.FEW]
        heights = [points[x, 0.0][quantity] - points[0.0, 0.0][quantity] for x in (0.0, 1.0, 2.0, 3.0)]
        style = dict(color=STYLES[name][0], marker=STYLES[name][1], ls=LINES[k], ms=3.5, lw=1.2)
        axis.plot(range(4), heights, label=name, **style)
    axis.axhline(0, color="0.6", lw=0.8)


def trust_region(figure: Figure) -> None:
    axis = figure.subplots()
    steps.draw_over_training(axis, "Walker2d", "train", "max_ratio")
    axis.set(xlabel="iteration", title="largest ratio of a step")


def main() -> None:
    for draw in (gradient, value, landscape, trust_region):
        figure = Figure(figsize=(2.6, 2.5), layout="constrained")  # a quarter of a page's width
        draw(figure)
        for axis in figure.axes:
            axis.spines[["top", "right"]].set_visible(False)
            axis.title.set_fontsize(10)
            axis.tick_params(labelsize=8)
        lines = dict(zip(*reversed(figure.axes[0].get_legend_handles_labels())))
        look = dict(ncols=3, frameon=False, fontsize=8, handlelength=1.5, columnspacing=0.8, handletextpad=0.4)
        figure.legend(lines.values(), lines, loc="outside upper center", **look)
        path = FIGURES / "four" / f"{draw.__name__}.png"
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, dpi=200)
        Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)


if __name__ == "__main__":
    main()
