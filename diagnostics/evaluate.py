"""How good is a checkpoint, or a run through training? This script plays complete episodes, and can film one.

    python diagnostics/evaluate.py runs/Hopper-v5__ppo__seed1
    python diagnostics/evaluate.py runs/Hopper-v5__ppo__seed1 --deterministic --checkpoints 150 300 488
    python diagnostics/evaluate.py runs/Hopper* --deterministic --checkpoints all --episodes 10 --out results/hopper
    MUJOCO_GL=egl python diagnostics/evaluate.py runs/Hopper-v5__ppo__seed1 --video hopper.gif

Returns are undiscounted sums of raw rewards, and observations are normalized with the checkpoint's frozen statistics.
Every episode begins with a seed of its own and is played to its end, so that long ones count no less than short ones.
Intervals are Student's t: of a checkpoint's mean over its episodes, and of the mean of runs with one label over the
runs, since the episodes of one run say nothing about the next. The figure has the curves of Fig. 4 of "The Definitive
Guide to Policy Gradients in Deep Reinforcement Learning" (GUIDE; Lehmann 2024, https://arxiv.org/abs/2401.13662).
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from unittest import mock

import gymnasium as gym
import lab
import numpy as np
import torch
import tyro
from matplotlib.figure import Figure
from PIL import Image
from torch import nn


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]  # run folders, all of one environment
    checkpoints: tuple[int, ...] | Literal["all"] = ()  # iterations; default: the newest checkpoint
    episodes: int = 100  # of each checkpoint
    deterministic: bool = False  # act with the mean of the policy instead of a sample
    video: Path | None = None  # also film one episode of the last checkpoint named into this .gif file
    labels: tuple[str, ...] = ()  # one for each run; runs with the same label are averaged; default: the folder's name
    script: Path | None = None  # the algorithm's script; default: the one in algos/ that the run names
    out: Path | None = None  # folder of figures and rows; default: figures/ inside the first run
    format: Literal["png", "pdf", "svg"] = "png"  # format of the figures
    jobs: int = lab.CORES  # worker processes; the numbers do not depend on it; 1 where an environment exists only once
    seed: int = 0  # of everything that is sampled here
    overwrite: bool = False  # measure again what an earlier call has measured


def main(argv: list[str] | None = None) -> None:
    args = lab.read_options(Args, argv, __doc__)
    if args.video and (args.video.suffix != ".gif" or args.video.is_dir() or not args.video.parent.is_dir()):
        lab.refuse(f"--video {args.video}: must be a .gif file in a folder that exists")
    work, asked = [], dict(seed=args.seed, episodes=args.episodes, deterministic=args.deterministic)
    for of_run in lab.open_runs(args, with_step=False):
        chosen = of_run if args.checkpoints == "all" else lab.choose(of_run, args.checkpoints, of_run[-1:])
        work.append([(checkpoint, asked) for checkpoint in chosen])
    if args.video:
        film(args, chosen[-1])  # before the episodes, so that what cannot be filmed is said at once
    lines = lab.lines_of(args, work, lab.fill(args, "evaluate", measure, sum(work, [])))
    say(lines)
    draw(lines, args.out / f"evaluate.{args.format}")


# What is measured at a checkpoint ------------------------------------------------------------------------------------


def measure(
    checkpoint: lab.Checkpoint, parallel_map: Callable, seed: int, episodes: int, deterministic: bool
) -> dict[str, Any]:
    """Returns the undiscounted return and the length of each of a checkpoint's episodes."""
    parameters = lab.flat_parameters(acting_policy(checkpoint, deterministic)).numpy()
    groups = [(first, min(first + lab.GROUP, episodes)) for first in range(0, episodes, lab.GROUP)]
    calls = [(checkpoint, (seed, checkpoint.iteration), *group, parameters) for group in groups]
    returns, lengths = zip(*sum(parallel_map(lab.play, *zip(*calls)), []))
    global_step = lab.load_script(checkpoint.script).load_checkpoint(checkpoint.path)["global_step"]
    return dict(global_step=global_step, returns=list(returns), lengths=list(lengths))


def acting_policy(checkpoint: lab.Checkpoint, deterministic: bool) -> nn.Module:
    """Returns the checkpoint's policy, with a standard deviation of 0 if it is to act deterministically."""
    policy = lab.frozen_state(checkpoint)[2].policy
    if deterministic:
        policy.log_std.data.fill_(-torch.inf)
    return policy


# What follows from the rows, and the figures -------------------------------------------------------------------------

NAMES = dict(returns="episode return", lengths="episode length (steps)")


def say(lines: list[lab.Line]) -> None:
    """Prints a line for each run and checkpoint, and one for runs with one label, near 1M steps and at the end (GUIDE
    Table 3), at iterations that all of them have. Runs are at the end where the shortest of them is."""
    for style, rows in lines:
        for row in rows:
            numbers = [f"{name[:-1]} {lab.in_words(lab.mean_of(row[name]))}" for name in NAMES]
            where = f"{style['label']}, iteration {row['iteration']}, {row['global_step']:,} steps"
            print(f"{where}: {', '.join(numbers)} over {row['episodes']} episodes (95 % t intervals)")
    for label in dict.fromkeys(style["label"] for style, _ in lines):
        of_runs = [{row["iteration"]: row for row in rows} for style, rows in lines if style["label"] == label]
        shared = [i for i in of_runs[0] if all(i in of_run for of_run in of_runs)]
        if len(of_runs) > 1 and shared:
            near = min(shared, key=lambda i: abs(of_runs[0][i]["global_step"] - 10**6))
            for i in sorted({near, max(shared)}):
                means = [np.mean(of_run[i]["returns"]) for of_run in of_runs]
                numbers = f"return {lab.in_words(lab.mean_of(means))} over {len(means)} runs"
                print(f"{label}, {of_runs[0][i]['global_step']:,} steps: {numbers} (95 % t interval)")


def draw(lines: list[lab.Line], path: Path) -> None:
    """Draws mean return and length against environment steps, with intervals over episodes (GUIDE Fig. 4). Runs with
    one label are averaged by iteration: the steps of REINFORCE's differ by parts of an episode, and are the first's."""
    figure = Figure((8.4, 3), layout="constrained")
    axes, steps = figure.subplots(1, 2), {}
    for style, rows in lines:
        for row in rows:
            row["steps"] = steps.setdefault((style["label"], row["iteration"]), row["global_step"])
    last = max(row["steps"] for _, rows in lines for row in rows) or 1
    for axis, (name, text) in zip(axes, NAMES.items()):
        lab.draw_runs(axis, lines, "steps", lambda row, name=name: lab.mean_of(row[name]), apart=0.009 * last)
        axis.set(xlabel="environment steps", ylabel=text, ylim=(min(0, axis.get_ylim()[0]), None))
        axis.set_xlim(-0.05 * last, 1.05 * last)  # from the untrained policy on, even if only the last one is measured
        axis.ticklabel_format(axis="x", scilimits=(0, 5))
    axes[0].plot([], [], "|", color="0.4", markersize=10, label="95 % interval over episodes")
    lab.save_figure(figure, lines, path)


# What is filmed ------------------------------------------------------------------------------------------------------


class Camera(gym.Wrapper):
    """Films an episode, at each stride-th of its steps."""

    def step(self, action: np.ndarray) -> tuple:
        if self.taken % self.stride == 0:
            frame = Image.fromarray(self.env.render())
            # 160 pixels and 14 colours, so that eight seconds stay below 400 KB, and colours that reach far, since the
            # commonest would all go to the floor.
            frame = frame.reduce(max(1, frame.width // 160))
            self.frames.append(frame.quantize(14, Image.Quantize.MAXCOVERAGE))
        self.taken += 1
        return self.env.step(action)


def film(args: Args, checkpoint: lab.Checkpoint) -> None:
    """Films an episode at about 15 frames a second. The environment is the script's own, made with a render mode."""
    script, settings, state = lab.frozen_state(checkpoint)
    settings = replace(settings, num_envs=1, num_steps=32)
    state.rng = lab.generator(checkpoint.run, args.seed, checkpoint.iteration)
    state.policy = acting_policy(checkpoint, args.deterministic)
    try:
        # A script's State takes no render mode, so gym.make is given one behind its back.
        with mock.patch.object(gym, "make", partial(gym.make, render_mode="rgb_array")):
            [worker] = state.workers = script.State(settings).workers
        renderer = getattr(worker.env.unwrapped, "mujoco_renderer", None)
        if renderer and renderer.model.ncam:
            renderer.camera_id = 0  # MuJoCo's models have a camera that follows the body; otherwise it leaves the film.
        camera = Camera(worker.env)
        worker.env = episode = lab.OneEpisode(camera)
        fps = camera.metadata.get("render_fps", 30)
        camera.frames, camera.taken, camera.stride = [], 0, max(1, round(fps / 15))
        episode.ended, episode.total, episode.length = False, 0.0, 0
        while not episode.ended and len(camera.frames) < 2000:  # Some episodes never end.
            script.rollout(settings, state)
    except Exception as error:
        sys.unraisablehook = lambda _: None  # A renderer that failed to start also fails to close.
        why = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
        advice = "without a screen, install libegl1 and libgl1-mesa-dri (Debian's names) and set MUJOCO_GL=egl"
        lab.refuse(f"--video: cannot render {settings.env_id} ({why}); {advice}", 1)
    timing = dict(duration=1000 * camera.stride / fps, loop=0)
    camera.frames[0].save(args.video, save_all=True, append_images=camera.frames[1:], optimize=True, **timing)
    print(args.video)


if __name__ == "__main__":
    lab.run_program(main)
