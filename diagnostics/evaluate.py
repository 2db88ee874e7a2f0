"""How good is a checkpoint, or a setting through training? This script plays complete episodes, and can film one.

    python diagnostics/evaluate.py runs/Hopper-v5__ppo__seed1
    python diagnostics/evaluate.py runs/Hopper-v5__ppo__seed1 --deterministic --checkpoints 150 300 488
    python diagnostics/evaluate.py runs/Hopper* --deterministic --checkpoints all --episodes 10 --out results/hopper
    MUJOCO_GL=egl python diagnostics/evaluate.py runs/Hopper-v5__ppo__seed1 --video hopper.gif

Returns are undiscounted sums of raw rewards, and observations are normalized with the checkpoint's frozen statistics.
Every episode begins with a seed of its own and is played to its end, so that long ones count no less than short ones.
Intervals are by Student's t. That of a checkpoint's mean is over its episodes. That of a setting's mean is over the
means of its runs where there are two or more, since the episodes of one run say nothing about the next. The figure has
the curves of Fig. 4 of "The Definitive Guide to Policy Gradients" (GUIDE); of two runs both are drawn, and no interval.
Each setting is also given near 1M steps and at the end (Table 3).
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import gymnasium as gym
import numpy as np
import torch
from measuring import intervals, plots, runs, sampling, table
from measuring.runs import Source
from PIL import Image


@dataclass(frozen=True, kw_only=True)
class Args(runs.LabelledOptions):
    checkpoints: tuple[int, ...] | Literal["all"] = ()
    """iterations, or all; default: the newest checkpoint"""
    episodes: int = 100
    """episodes of each checkpoint"""
    deterministic: bool = False
    """act with the mean of the policy instead of a sample"""
    video: Path | None = None
    """also film one episode of the last checkpoint named into this .gif file"""


# Episodes ------------------------------------------------------------------------------------------------------------

NAMES = dict(returns="episode return", lengths="episode length (steps)")


def measure(source: Source, seed: int, episodes: int, deterministic: bool) -> dict[str, Any]:
    """Returns the return and length of each of a checkpoint's episodes, and their means."""
    parameters = sampling.flat_parameters(acting_policy(source, deterministic)).numpy()
    played = np.array(sampling.play(source, (seed, source.iteration), 0, episodes, parameters), float)
    found = [intervals.mean_of(x) | dict(median=np.median(x).item(), all=x.tolist()) for x in played.T]
    return dict(global_step=runs.checkpoint_of(source)["global_step"]) | dict(zip(NAMES, found))


def acting_policy(source: Source, deterministic: bool) -> torch.nn.Module:
    """Returns the checkpoint's policy, with a standard deviation of 0 if it is to act deterministically."""
    policy = sampling.checkpoint_state(source)[2].policy
    if deterministic and "log_std" not in dict(policy.named_parameters()):
        runs.stop(f"{source.script}: its policy has no log_std, which --deterministic sets to minus infinity")
    if deterministic:
        policy.log_std.data.fill_(-torch.inf)
    return policy


class Camera(sampling.OneEpisode):
    """Films the episode, at each stride-th of its steps."""

    def step(self, action: np.ndarray) -> tuple:
        if not self.ended and self.length % self.stride == 0:
            frame = Image.fromarray(self.env.render())
            # 240 pixels and 64 colours, so that an episode of 1,000 steps stays below a megabyte.
            self.frames.append(frame.reduce(max(1, frame.width // 240)).quantize(64))
        return super().step(action)


def film(args: Args, source: Source) -> None:
    """Films an episode at about 15 frames a second. The environment is the script's own, made with a render mode."""
    script, settings, state = sampling.fresh_state(source, (args.seed, source.iteration), 1, 32)
    state.policy, [worker] = acting_policy(source, args.deterministic), state.workers
    try:
        # A script's State takes no render mode, so gym.make is given one behind its back.
        with mock.patch.object(gym, "make", partial(gym.make, render_mode="rgb_array")):
            [worker] = state.workers = script.State(settings).workers
        renderer = getattr(worker.env.unwrapped, "mujoco_renderer", None)
        if renderer and renderer.model.ncam:
            renderer.camera_id = 0  # MuJoCo's models have a camera that follows the body; otherwise it leaves the film
        worker.env = camera = Camera(worker.env)
        fps = camera.metadata.get("render_fps", 30)
        camera.frames, camera.stride = [], max(1, round(fps / 15))
        camera.begin()
        while not camera.ended and len(camera.frames) < 2000:  # some episodes never end
            sampling.roll_out(script, settings, state)
    except Exception as error:
        sys.unraisablehook = lambda _: None  # a renderer that failed to start also fails to close
        why = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
        able = "rgb_array" in worker.env.metadata.get("render_modes", ())
        advice = "without a screen, install libegl1 and libgl1-mesa-dri (Debian's names) and set MUJOCO_GL=egl"
        why += f"); {advice}" if able else ") without the render_mode rgb_array"
        runs.stop(f"--video: cannot render {settings.env_id} ({why}", 1 if able else 2)
    timing = dict(duration=1000 * camera.stride / fps, loop=0)
    camera.frames[0].save(args.video, save_all=True, append_images=camera.frames[1:], optimize=True, **timing)
    print(args.video)


# Figures -------------------------------------------------------------------------------------------------------------

Line = tuple[dict[str, Any], Source, dict[str, Any]]  # a checkpoint's style, the checkpoint and its row


def curves(lines: list[Line], name: str) -> list[tuple]:
    """Returns for each setting its style, its runs' numbers by environment steps, and its points. The points of a
    single run are its numbers. Those of several runs are the mean over runs and its interval, at the first run's
    checkpoints as far as all runs have come. The steps of REINFORCE's runs differ by parts of an episode, so between
    its checkpoints a run is interpolated."""
    found = {}
    for style, source, row in lines:
        of_runs = found.setdefault(style["label"], (style, {}))[1]
        of_runs.setdefault(source.run, {})[row["global_step"]] = row[name]
    for label, (style, of_runs) in found.items():
        of_runs = [dict(sorted(run.items())) for run in of_runs.values()]
        points, first, last = of_runs[0], max(map(min, of_runs)), min(map(max, of_runs))
        if len(of_runs) > 1:
            steps = [step for step in points if first <= step <= last]
            # With the newest checkpoints alone, each run has one, and they are at almost the same step.
            steps = sorted({first, *steps, max(first, last)}) if first < 1.01 * last or first == last else []
            known = [(list(run), [x["mean"] for x in run.values()]) for run in of_runs]
            points = {step: intervals.mean_of([np.interp(step, *x) for x in known]) for step in steps}
        found[label] = style, of_runs, points
    return list(found.values())


def draw_training(lines: list[Line], path: Path) -> None:
    """Draws a line for each setting against environment steps, and thin ones for its runs (GUIDE Fig. 4)."""
    figure, axes = plots.new_figure(1, 2, (8.4, 2.8))
    for axis, (name, text) in zip(axes[0], NAMES.items()):
        for style, of_runs, points in curves(lines, name):
            hidden = dict(interval=None) if len(of_runs) == 2 else {}  # it would fill the panel and add nothing
            draw = plots.draw_line if len(points) > 1 else plots.draw_points
            draw(axis, list(points), [point | hidden for point in points.values()], style)
            for run in of_runs if len(of_runs) > 1 else ():
                thin = style | dict(marker="", linewidth=0.5, alpha=0.6, label=None)
                axis.plot(list(run), [x["mean"] for x in run.values()], **thin)
        axis.set(xlabel="environment steps", ylabel=text, ylim=(min(0, axis.get_ylim()[0]), None))
        axis.ticklabel_format(axis="x", scilimits=(0, 5))
    plots.save_figure(figure, path)


def main(argv: list[str] | None = None) -> None:
    args = runs.read_options(Args, argv, __doc__)
    if args.video and (args.video.suffix != ".gif" or args.video.is_dir() or not args.video.parent.is_dir()):
        runs.stop(f"--video {args.video}: must be a .gif file in a folder that exists")
    opened, styles = runs.open_runs(args.runs, args.script), plots.run_styles(args.runs, args.labels)
    path, some = runs.figure_path(args, "evaluate"), {(): slice(-1, None), "all": slice(None)}.get(args.checkpoints)
    chosen = [x[some] if some else runs.choose(x, args.checkpoints) for x in opened]
    if args.video:
        film(args, chosen[-1][-1])  # before the episodes, so that what cannot be filmed is said at once
    settings = dict(episodes=args.episodes, deterministic=args.deterministic)
    named = [(style, source) for style, sources in zip(styles, chosen) for source in sources]
    rows = table.fill(args, "evaluate", measure, [(source, settings) for _, source in named])
    lines = [(*name, row) for name, row in zip(named, rows)]
    for _, source, row in lines:
        texts = f"return {intervals.text(row['returns'])}, length {intervals.text(row['lengths'])}"
        over = f"over {args.episodes} episodes" + " (95 % t intervals)" * (args.episodes > 1)
        print(f"{source.run}, iteration {source.iteration}: {texts} {over}")
    for style, of_runs, points in curves(lines, "returns"):
        over = f"{len(of_runs)} runs" if len(of_runs) > 1 else f"{args.episodes} episodes of one run"
        for step in sorted({min(points, key=lambda x: abs(x - 10**6)), max(points)}) if points else ():
            text = f"return {intervals.text(points[step])} over {over} (95 % t interval)"
            print(f"{style['label']}, {step:,} steps: {text}")
    draw_training(lines, path)


if __name__ == "__main__":
    runs.run_program(main)
