"""Do update steps repeat? This measures the cosine between the whole steps that an algorithm takes from one checkpoint
on independent batches, and how far apart the policies are to which they lead.

    python diagnostics/steps.py runs/Hopper-v5__ppo__seed1
    python diagnostics/steps.py runs/Hopper-v5__{ppo,trpo}__seed[12] --checkpoints all --out figures

It follows Fig. 13 of "Are Deep Policy Gradient Algorithms Truly Policy Gradient Algorithms?" (TPG). From the same
checkpoint the algorithm takes 100 whole updates, with the checkpoint's optimizer state and learning rate. Each is made
on a batch of its own of the size that training uses: segments from resets, with frozen statistics. A step is the change
of the policy's parameters. Where a line search was rejected, the step is 0, and its cosine with any other counts as 0.
The KL between two of the policies is averaged over the states of one more batch and over both directions (our choice).
Intervals are 95 % bootstrap intervals over the steps.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from measuring import figures, intervals, kept, runs, sampling
from measuring.runs import COUNT, AtLeast, Source
from measuring.sampling import Sampler, Task

VERSION = 1  # raised whenever the measured numbers change

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(runs.LabelledOptions):
    checkpoints: Annotated[tuple[int, ...] | Literal["all"], AtLeast(0)] = ()
    """iterations, or all that have a step; default: 0 150 300 450, or else the first, the last and two between them"""
    repeats: Annotated[int, AtLeast(2, "or there is nothing to compare", COUNT)] = 100
    """steps from each checkpoint"""


# Update steps --------------------------------------------------------------------------------------------------------


def training_step(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> np.ndarray:
    """Returns the policy parameters [P] after one whole update on a fresh batch of the size that training uses."""
    script, args, state = sampling.fresh_state(source, seed, num_envs, num_steps)
    script.update(args, state, script.estimate_advantages(args, state, script.rollout(args, state)))
    return sampling.flat_parameters(state.policy).numpy()


def draw(args: Args, source: Source, sample: Sampler, _: Any) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns the observations of a fresh batch, and the policy's parameters after each step from the checkpoint."""
    settings = runs.read_config(source.run)["args"]
    size, seed = (settings["num_envs"], settings["num_steps"]), (args.seed, source.iteration)
    tasks = [Task(size[0] * size[1], partial(sampling.collect_group, source, (*seed, 1), *size))]
    for i in range(args.repeats):
        tasks.append(Task(size[0] * size[1], partial(training_step, source, (*seed, 2, i), *size)))
    experience, *after = sample(tasks)
    return experience["obs"], after


def measure_steps(source: Source, _: Sampler, __: Any, drawn: Callable) -> Iterator[dict[str, Any]]:
    """Yields pairwise cosines of the steps from a checkpoint, and pairwise KL of the policies to which they lead."""
    (obs, after), policy = drawn(), sampling.checkpoint_state(source)[2].policy
    steps = (np.stack(after) - sampling.flat_parameters(policy).numpy()).astype(np.float64)
    pairs = dict(cosine=intervals.cosines(steps, steps), kl=kls(policy, after, obs))
    numbers = {name: intervals.pairwise(x) for name, x in pairs.items()}
    for of_pairs in numbers.values():
        of_pairs["all"] = intervals.raw(of_pairs["all"])
    yield numbers | dict(norms=np.linalg.norm(steps, axis=1).tolist())


@torch.no_grad()
def kls(policy: torch.nn.Module, parameters: list[np.ndarray], obs: np.ndarray) -> np.ndarray:
    """Returns the mean KL [n, n] on the states between the policies with these parameters, which are n vectors [P].
    Both directions are averaged."""
    at = [sampling.with_parameters(policy, torch.as_tensor(x))(torch.from_numpy(obs)) for x in parameters]
    means, stds = (np.stack([getattr(x, name).double().numpy() for x in at]) for name in ("mean", "stddev"))
    means -= means.mean(0)  # the KL stays the same, but the differences below lose fewer digits
    # KL(i || j) is a sum of products of a term of i and a term of j, so one matrix product replaces n^2 comparisons.
    of_i = np.stack([stds**2 + means**2, means, np.ones_like(means)], -1).reshape(len(at), -1)
    of_j = np.stack([1 / stds**2, -2 * means / stds**2, means**2 / stds**2], -1).reshape(len(at), -1)
    logs = np.log(stds).sum((1, 2))
    found = (of_i @ of_j.T - means[0].size) / 2 + logs - logs[:, None]
    return (found + found.T) / (2 * len(obs))


# Figure --------------------------------------------------------------------------------------------------------------


def draw_steps(settings: list[figures.Setting], path: Path) -> None:
    """Draws the pairwise cosine and KL of update steps over training (TPG Fig. 13)."""
    figure, axes = figures.new_figure(1, 2, (6.5, 2.8))
    for style, of_runs in settings:
        for axis, name in zip(axes[0], ("cosine", "kl")):
            lines = [([cell["iteration"] for cell in cells], [cell[name] for cell in cells]) for cells in of_runs]
            figures.draw_setting(axis, lines, style)
    axes[0, 0].set(xlabel="iteration", ylabel="cosine between update steps")
    axes[0, 1].set(xlabel="iteration", ylabel="KL between policies (nats)", yscale="log")
    figures.save_figure(figure, path)


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = runs.read_options(Args, argv, __doc__)
    chosen = []
    for sources in runs.open_runs(args.runs, args.script):
        some = () if args.checkpoints == "all" else runs.choose(sources, args.checkpoints)
        chosen.append(runs.with_step(sources, tuple(source.iteration for source in some)))
    styles = figures.run_styles(args.runs, args.labels)
    path = runs.output_folder(args.out, args.runs) / "steps.jsonl"
    cells = iter(kept.measure_missing(args, path, [steps_work(args, source) for source in sum(chosen, [])]))
    settings = figures.by_setting(styles, [[next(cells) for _ in sources] for sources in chosen])
    for style, of_runs in settings:
        for cell in sum(of_runs, []):
            cosine, kl = (intervals.text(cell[name]) for name in ("cosine", "kl"))
            of = f"{style['label']}, {cell['run'].split('__')[-1]}, {figures.title([cell])}"
            print(f"{of}: cosine between steps {cosine}, KL between their policies {kl} nats")
    draw_steps(settings, path)


def steps_work(args: Args, source: Source) -> kept.Work:
    """Describes the steps from a checkpoint to measure_missing."""
    cost = (1 + args.repeats) * runs.batch_size(runs.read_config(source.run))
    cell = kept.identify(source, args.seed) | dict(step_repeats=args.repeats)
    return kept.Work(source, [cell], cost, partial(draw, args, source), partial(measure_steps, source))


if __name__ == "__main__":
    runs.run_program(main)
