"""Does the value network predict values? Its relative error after the fit, against what it was fitted to and against
returns, on its own batch and on fresh trajectories, over training.

    python diagnostics/value.py runs/Hopper-v5__ppo__seed1
    python diagnostics/value.py runs/Hopper-v5__ppo__seed* --out figures --heldout-pairs 100_000

"A Closer Look at Deep Policy Gradients" (CL) Fig. 3, 11, 12. From every checkpoint that has a step, training takes the
next iteration as it took it then: its own batch, its own fit. Held out are segments from resets, by the policy and with
the frozen statistics of the checkpoint. The error is |V - target| / |target| after the fit; the target is GAE's, A + V
of the network before the fit, or the discounted return of the scaled rewards, which goes on with the value network
where an episode is cut off. Terminal steps are left out. Targets near 0 would blow the mean up: those below a hundredth
of the mean |target| are left out of the mean (the numbers give their share), but not of the median.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from common import (
    Options,
    Source,
    check_options,
    checkpoint_state,
    collect,
    draw_line,
    identify,
    measure_missing,
    new_figure,
    next_iteration,
    open_runs,
    output_folder,
    run_program,
    run_styles,
    save_figure,
    with_step,
)
from torch import Tensor

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(Options):
    labels: tuple[str, ...] = ()
    """labels of your own, each "LABEL=ALGO FLAG ...": for the algorithm's runs with these flags, spelled as run folders
    spell them"""
    checkpoints: tuple[int, ...] = ()
    """iterations; default: every checkpoint that has a step"""
    heldout_pairs: int = 20_480
    """fresh state-action pairs at each checkpoint"""


# Errors --------------------------------------------------------------------------------------------------------------


def relative_errors(values: Tensor, targets: Tensor, data: dict[str, Any]) -> dict[str, Any]:
    """Mean of |V - target| / |target| over all but terminal steps and targets near 0, its 95 % bootstrap interval over
    episodes, the median over all but terminal steps, and the share that was near 0."""
    size = targets.abs().double().numpy()
    errors = (values - targets).abs().double().numpy() / size.clip(1e-30)
    kept = ~data["terminations"] & (size >= 0.01 * size[~data["terminations"]].mean())
    starts = np.append(0, np.flatnonzero(data["terminations"] | data["truncations"])[:-1] + 1)
    sums = np.add.reduceat(np.stack([errors * kept, kept], axis=1), starts)  # of each episode, or what there is of it
    drawn = sums[np.random.default_rng(0).integers(len(sums), size=(500, len(sums)))].sum(1)
    ends = np.percentile(drawn[:, 0] / drawn[:, 1].clip(1), [2.5, 97.5]).tolist() if len(starts) > 1 else None
    numbers = dict(mean=errors[kept].mean(), median=np.median(errors[~data["terminations"]]))
    numbers |= dict(near_zero=1 - kept.sum() / (~data["terminations"]).sum())
    numbers = {name: x.item() for name, x in numbers.items()}
    return numbers | dict(interval=ends, pairs=len(errors), episodes=len(starts))


def measure_values(args: Args, source: Source, sample: Callable, _: Any) -> Iterator[dict[str, Any]]:
    """Errors of the value network of the next iteration, on that iteration's batch and on fresh segments."""
    script, settings, state = checkpoint_state(source)
    here = [(source, None, settings.num_envs, settings.num_steps)]
    [(old, new, _, experience, _)] = sample(next_iteration, here, here=True)
    heldout = collect(source, (args.seed, source.iteration, 0), args.heldout_pairs, sample)
    numbers = {}
    for where, before, data in (("train", old, experience), ("heldout", state, heldout)):
        for target, lambdas in (("gae", {}), ("returns", dict(gae_lambda=1.0))):
            batch = script.estimate_advantages(replace(settings, **lambdas), before, data)
            with torch.no_grad():
                values = new.value(batch["obs"])
            numbers[f"{where}_{target}"] = relative_errors(values, batch["value_targets"], data)
    yield numbers


# Figures -------------------------------------------------------------------------------------------------------------


def draw_errors(styles: list[dict[str, Any]], runs: list[list[dict[str, Any]]], path: Path) -> None:
    """Rows: the batch that was fitted, held-out trajectories; columns: mean and median against GAE targets and against
    returns; a line for each run (CL Fig. 11, 12)."""
    figure, axes = new_figure(2, 4, (9.6, 4.4), sharex=True, sharey=True)
    for row, where in zip(axes, ("train", "heldout")):
        for cells, style in zip(runs, styles):
            x = [cell["iteration"] for cell in cells]
            for mean, median, target in ((row[0], row[1], "gae"), (row[2], row[3], "returns")):
                points = [cell[f"{where}_{target}"] for cell in cells]
                draw_line(mean, x, points, style)
                median.plot(x, [point["median"] for point in points], **style)
    axes[0, 0].set_yscale("log")
    for axis, text in zip(axes[0], ("mean, GAE targets", "median, GAE targets", "mean, returns", "median, returns")):
        axis.set_title(text, fontsize=10)
    for axis in axes[1]:
        axis.set_xlabel("iteration")
    axes[0, 0].set_ylabel("relative error,\ntraining batch")
    axes[1, 0].set_ylabel("relative error,\nheld-out segments")
    save_figure(figure, path)


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    check_options(args)
    runs = [with_step(sources, args.checkpoints) for sources in open_runs(args.runs, args.script, needs_critic=True)]
    styles = run_styles(args.runs, args.labels)
    path = output_folder(args.out, args.runs) / "value.json"
    work = []
    for source in sum(runs, []):
        settings = checkpoint_state(source)[1]
        cost = settings.num_envs * settings.num_steps + args.heldout_pairs
        identity = identify(source, args.seed) | dict(heldout_pairs=args.heldout_pairs)
        work.append((partial(measure_values, args), source, [identity], cost))
    cells = iter(measure_missing(args, path, work))
    draw_errors(styles, [[next(cells) for _ in sources] for sources in runs], path)


if __name__ == "__main__":
    run_program(main)
