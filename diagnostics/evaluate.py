"""How good is a checkpoint, or a setting through training? This measures the return and length of complete episodes,
and can make a video of one.

    python diagnostics/evaluate.py runs/Hopper-v5__ppo__seed1
    python diagnostics/evaluate.py runs/Hopper-v5__ppo__seed1 --deterministic --checkpoints 150 300 488
    python diagnostics/evaluate.py runs/Hopper* --deterministic --checkpoints all --episodes 10 --out results/hopper
    MUJOCO_GL=egl python diagnostics/evaluate.py runs/Hopper-v5__ppo__seed1 --video hopper.gif

Returns are undiscounted sums of raw rewards, and observations are normalized with the checkpoint's frozen statistics.
Every episode begins with a seed of its own and is played to its end, so that long ones count no less than short ones.
Intervals are by Student's t. That of a checkpoint's mean is over its episodes. That of a setting's mean is over the
means of its runs where there are two or more, since the episodes of one run say nothing about the next. Where a run has
more than a few checkpoints, the figure shows curves like Fig. 4 of "The Definitive Guide to Policy Gradients" (GUIDE),
whose points are of 10 deterministic episodes each. With two runs no interval is shaded, and both are drawn. The table,
evaluate.md, follows GUIDE's Table 3. It gives each setting where its runs have a checkpoint nearest to 1M steps and
where they end (in GUIDE, at 8M).
"""

import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from unittest import mock

import gymnasium as gym
import numpy as np
import torch
from measuring import figures, intervals, kept, runs, sampling
from measuring.runs import COUNT, AtLeast, Source
from measuring.sampling import Sampler
from torch import nn

VERSION = 1  # raised whenever the measured numbers change

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(runs.LabelledOptions):
    checkpoints: Annotated[tuple[int, ...] | Literal["all"], AtLeast(0)] = ()
    """iterations, or all; default: the newest checkpoint"""
    episodes: Annotated[int, AtLeast(1, most=COUNT)] = 100
    """episodes of each checkpoint"""
    deterministic: bool = False
    """act with the mean of the policy instead of a sample"""
    video: Path | None = None
    """also film one episode of the last checkpoint named into this .gif file"""


# Episodes ------------------------------------------------------------------------------------------------------------

NAMES = ("returns", "lengths")


def acting_parameters(source: Source, deterministic: bool) -> np.ndarray:
    """Returns the policy parameters [P], with a standard deviation of 0 if the policy is to act deterministically."""
    policy = sampling.checkpoint_state(source)[2].policy
    if deterministic and "log_std" not in dict(policy.named_parameters()):
        runs.stop(f"{source.script}: its policy has no log_std, which --deterministic sets to minus infinity")
    if deterministic:
        policy.log_std.data.fill_(-torch.inf)
    return sampling.flat_parameters(policy).numpy()  # its state_dict may have buffers as well


def draw(args: Args, source: Source, sample: Sampler, _: Any) -> np.ndarray:
    """Plays the episodes and returns the return and length of each [episodes, 2]."""
    parameters = acting_parameters(source, args.deterministic)
    return np.array(list(sampling.play(source, (args.seed, source.iteration), 0, args.episodes, 1, sample, parameters)))


def measure_episodes(_: Sampler, __: Any, drawn: Callable) -> Iterator[dict[str, Any]]:
    yield {
        name: intervals.mean_of(x) | dict(median=np.median(x).item(), all=x.tolist())
        for name, x in zip(NAMES, drawn().T)
    }


class Camera(gym.Wrapper):
    """Keeps every stride-th frame of the first episode."""

    def __init__(self, env: gym.Env, stride: int):
        super().__init__(env)
        self.stride, self.steps, self.ended, self.frames = stride, 0, False, []

    def step(self, action: np.ndarray) -> tuple:
        result = self.env.step(action)
        if not self.ended and self.steps % self.stride == 0:
            self.frames.append(self.env.render())
        self.steps, self.ended = self.steps + 1, self.ended or result[2] or result[3]
        return result


def film(args: Args, source: Source) -> None:
    """Plays an episode and films it into the video file, at about 15 frames a second. The environment is the script's
    own, with its wrappers, made with a render mode."""
    from PIL import Image  # only a video needs it

    # A script's State takes no render mode, so gym.make is given one behind its back.
    with mock.patch.object(gym, "make", partial(gym.make, render_mode="rgb_array")):
        script, settings, state = sampling.fresh_state(source, (args.seed, source.iteration), 1, 32)
    parameters = torch.from_numpy(acting_parameters(source, args.deterministic))
    nn.utils.vector_to_parameters(parameters, state.policy.parameters())
    [worker] = state.workers
    renderer = getattr(worker.env.unwrapped, "mujoco_renderer", None)
    if renderer and renderer.model.ncam:
        renderer.camera_id = 0  # MuJoCo's models have a camera that follows the body; without it, it leaves the picture
    try:
        fps = worker.env.metadata.get("render_fps", 30)
        stride = max(1, round(fps / 15))
        worker.env = camera = Camera(worker.env, stride)
        while not camera.ended:
            sampling.roll_out(script, settings, state)
        if camera.frames[0] is None:
            raise RuntimeError("its render() returns nothing; State must make it with gym.make")
    except Exception as error:
        sys.unraisablehook = lambda _: None  # a renderer that failed to start also fails to close
        advice = "without a screen, install libegl1 and libgl1-mesa-dri (their names in Debian) and set MUJOCO_GL=egl"
        runs.stop(f"cannot render {settings.env_id} ({str(error) or type(error).__name__}); {advice}", 1)
    # 240 pixels and 64 colours, so that an episode of 1,000 steps stays below a megabyte.
    frames = [Image.fromarray(x).reduce(max(1, x.shape[1] // 240)).quantize(64) for x in camera.frames]
    timing = dict(duration=1000 * stride / fps, loop=0)
    frames[0].save(args.video, save_all=True, append_images=frames[1:], optimize=True, **timing)
    print(args.video)


# Figures -------------------------------------------------------------------------------------------------------------

FEW = 4  # checkpoints of a run; for up to this many, every episode is drawn


def curves(
    styles: list[dict[str, Any]], sources: list[Source], cells: list[dict[str, Any]], name: str
) -> dict[str, dict[str, Any]]:
    """Returns for each label its style, its runs' numbers by environment steps, and the points of the setting. The
    points of a single run are its numbers. Those of several runs are the mean over runs and its interval, at the first
    run's checkpoints as far as all runs have come. The steps of REINFORCE's runs differ by parts of an episode, so
    between its checkpoints a run is interpolated."""
    found = {}
    for style, source, cell in zip(styles, sources, cells):
        curve = found.setdefault(style["label"], dict(style=style, runs={}))
        curve["runs"].setdefault(source.run, {})[cell["global_step"]] = cell[name]
    for curve in found.values():
        of_runs = [dict(sorted(run.items())) for run in curve["runs"].values()]
        first, last = max(map(min, of_runs)), min(map(max, of_runs))
        steps = [step for step in of_runs[0] if first <= step <= last]
        # With the newest checkpoints alone, each run has one, and they are at almost the same step.
        steps = sorted({first, *steps, max(first, last)}) if first < 1.01 * last or first == last else []
        points = of_runs[0]
        if len(of_runs) > 1:
            lines = [(list(run), [x["mean"] for x in run.values()]) for run in of_runs]
            points = {step: intervals.mean_of([np.interp(step, *line) for line in lines]) for step in steps}
        curve["points"] = points
    return found


def draw_training(styles: list[dict[str, Any]], sources: list[Source], cells: list[dict[str, Any]], path: Path) -> None:
    """Draws mean return and length against environment steps. Each setting has a line, and its runs have thin ones
    (GUIDE Fig. 4)."""
    figure, axes = figures.new_figure(1, 2, (8.4, 2.8))
    for axis, name, text in zip(axes[0], NAMES, ("episode return", "episode length (steps)")):
        for curve in curves(styles, sources, cells, name).values():
            steps, style = sorted(curve["points"]), curve["style"]
            hidden = dict(interval=None) if len(curve["runs"]) == 2 else {}  # it would fill the panel and add nothing
            figures.draw_line(axis, steps, [curve["points"][step] | hidden for step in steps], style)
            for run in curve["runs"].values() if len(curve["runs"]) > 1 else ():
                thin = style | dict(marker="", linewidth=0.5, alpha=0.6, label=None)
                axis.plot(sorted(run), [run[step]["mean"] for step in sorted(run)], **thin)
        axis.set_xlabel("environment steps")
        axis.set_ylabel(text)
        heights = [y for line in axis.lines for y in line.get_ydata()]
        room = 0.25 * np.ptp(heights)  # an interval from two runs can be ten times as wide as all the curves are high
        (bottom, top), low, high = axis.get_ylim(), min(heights) - room, max(heights) + room
        axis.set_ylim(min(0, max(bottom, low)), min(top, high) if high > low else top)
        axis.ticklabel_format(axis="x", scilimits=(0, 5))
    figures.save_figure(figure, path)


def draw_episodes(styles: list[dict[str, Any]], cells: list[dict[str, Any]], path: Path) -> None:
    """Draws a row for each checkpoint, with every episode's return and length, the means and their intervals."""
    texts = [f"{cell['run'].split('__')[-1]}, iteration {cell['iteration']}" for cell in cells]
    texts = [f"{style['label']}, {text}" for style, text in zip(styles, texts)]
    texts = [textwrap.fill(text, 40, break_on_hyphens=False) for text in texts]
    heights = [0.35 + 0.15 * text.count("\n") for text in texts]
    y = np.cumsum(heights) - np.array(heights) / 2
    figure, axes = figures.new_figure(1, 2, (8.4, 0.8 + sum(heights)), sharey=True)
    for axis, name in zip(axes[0], NAMES):
        for middle, style, cell in zip(y, styles, cells):
            numbers, ends = cell[name], cell[name]["interval"]
            spread = np.linspace(middle - 0.1, middle + 0.1, len(numbers["all"]))
            axis.plot(numbers["all"], spread, ".", color=style["color"], alpha=0.4, markersize=3)
            bar = ends and [[numbers["mean"] - ends[0]], [ends[1] - numbers["mean"]]]
            black = style | dict(color="black", zorder=3, capsize=4, label=None)
            axis.errorbar(numbers["mean"], middle, xerr=bar, **black)
        axis.set_xlim(left=min(0, axis.get_xlim()[0]))
    axes[0, 0].set_ylim(sum(heights), 0)
    axes[0, 0].set_yticks(y, texts, fontsize=7)
    axes[0, 0].set_xlabel("episode return")
    axes[0, 1].set_xlabel("episode length (steps)")
    figures.save_figure(figure, path)


# Table ---------------------------------------------------------------------------------------------------------------

EARLY = 1_000_000  # environment steps


def write_table(found: dict[str, dict[str, Any]], episodes: int, path: Path) -> None:
    """Writes and prints the return of each setting near 1M steps and at the end (GUIDE Table 3)."""
    rows = ["| setting | environment steps | return [95 % t] | over |", "| --- | --- | --- | --- |"]
    for label, curve in found.items():
        count, steps = len(curve["runs"]), list(curve["points"])
        if not steps:
            print(f"{label}: its {count} runs have no environment steps in common, so the table leaves it out")
        over = f"{count} runs" if count > 1 else f"{episodes} episodes of one run"
        for step in dict.fromkeys([min(steps, key=lambda x: abs(x - EARLY)), max(steps)]) if steps else ():
            returns = intervals.text(curve["points"][step])
            rows.append(f"| {label} | {step:,} | {returns} | {over} |")
            print(f"{label}, {step:,} steps: return {returns} over {over} (95 % t interval)")
    path.write_text("\n".join(rows) + "\n")


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = runs.read_options(Args, argv, __doc__)
    if args.video and args.video.suffix != ".gif":
        runs.stop(f"--video {args.video}: must end in .gif")
    if args.video:
        try:
            args.video.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            runs.stop(f"--video {args.video}: {error.strerror}")
        if args.video.is_dir():
            runs.stop(f"--video {args.video}: is a folder")
    opened, looks = runs.open_runs(args.runs, args.script), figures.run_styles(args.runs, args.labels)
    if args.checkpoints in ("all", ()):
        chosen = [sources if args.checkpoints else sources[-1:] for sources in opened]
    else:
        chosen = [runs.choose(sources, args.checkpoints) for sources in opened]
    sources = sum(chosen, [])
    styles = [style for style, of_run in zip(looks, chosen) for _ in of_run]
    path = runs.output_folder(args.out, args.runs) / "evaluate.jsonl"
    work = [episode_work(args, source) for source in sources]
    cells = kept.measure_missing(args, path, work, sampling.episodes_unit(sources[0]))
    for cell in cells:
        texts = [intervals.text(cell[name]) for name in NAMES]
        over = f"over {args.episodes} episodes" + " (95 % t intervals)" * (args.episodes > 1)
        print("{}, iteration {}: return {}, length {} {}".format(cell["run"], cell["iteration"], *texts, over))
    write_table(curves(styles, sources, cells, "returns"), args.episodes, path.with_suffix(".md"))
    if max(map(len, chosen)) > FEW:
        draw_training(styles, sources, cells, path)
    else:
        draw_episodes(styles, cells, path)
    if args.video:
        film(args, sources[-1])


def episode_work(args: Args, source: Source) -> kept.Work:
    """Describes the episodes of a checkpoint to measure_missing."""
    step = runs.checkpoint_of(source)["global_step"]
    cell = dict(global_step=step, episodes=args.episodes, deterministic=args.deterministic)
    cells = [kept.identify(source, args.seed) | cell]
    return kept.Work(source, cells, args.episodes, partial(draw, args, source), measure_episodes)


if __name__ == "__main__":
    runs.run_program(main)
