"""Do update steps repeat? Cosine of the whole steps that an algorithm takes from one checkpoint on independent batches,
and how far apart the policies are that they lead to.

    python diagnostics/steps.py runs/Hopper-v5__ppo__seed1
    python diagnostics/steps.py runs/Hopper-v5__{ppo,trpo}__seed[12] --checkpoints all --out figures

"Are Deep Policy Gradient Algorithms Truly Policy Gradient Algorithms?" (TPG) Fig. 13. From the same checkpoint the
algorithm takes 100 whole updates, its optimizer's state and learning rate included, each on a batch of its own of the
size that training uses: segments from resets, with frozen statistics. A step is the change of the policy's parameters;
where a line search was rejected it is 0, and its cosine with any other counts as 0. The KL between two of the policies
is the mean over the states of one more batch, of both directions (our choice). Intervals are 95 % bootstrap intervals
over the steps.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from common import (
    LabelledOptions,
    Setting,
    Source,
    by_setting,
    check_options,
    checkpoint_state,
    choose,
    collect_group,
    cosines,
    draw_setting,
    flat_parameters,
    fresh_state,
    identify,
    measure_missing,
    new_figure,
    open_runs,
    output_folder,
    pairwise,
    run_program,
    run_styles,
    save_figure,
    stop,
    with_parameters,
    with_step,
)
from torch.distributions import kl_divergence

VERSION = 1  # raised where the numbers that it measures change

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(LabelledOptions):
    checkpoints: tuple[int, ...] | Literal["all"] = ()
    """iterations, or all that have a step; default: 0 150 300 450 or, where a run has fewer, its first, its thirds, its
    last with a step"""
    repeats: int = 100
    """steps from each checkpoint"""


# Update steps --------------------------------------------------------------------------------------------------------


def training_step(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> np.ndarray:
    """Policy parameters [P] after one whole update on a fresh batch of the size that training uses."""
    script, args, state = fresh_state(source, seed, num_envs, num_steps)
    script.update(args, state, script.estimate_advantages(args, state, script.rollout(args, state)))
    return flat_parameters(state.policy).numpy()


def measure_steps(args: Args, source: Source, sample: Callable, _: Any) -> Iterator[dict[str, Any]]:
    """Pairwise cosines of the steps from a checkpoint, and pairwise KL of the policies that they lead to."""
    _, settings, state = checkpoint_state(source)
    size = settings.num_envs, settings.num_steps
    [experience] = sample(collect_group, [(source, (args.seed, source.iteration, 1), *size)])
    after = list(
        sample(training_step, [(source, (args.seed, source.iteration, 2, i), *size) for i in range(args.repeats)])
    )
    steps = (np.stack(after) - flat_parameters(state.policy).numpy()).astype(np.float64)
    numbers = dict(cosine=pairwise(cosines(steps, steps)), kl=pairwise(kls(state.policy, after, experience["obs"])))
    for pairs in numbers.values():
        del pairs["all"]  # 4,950 of each
    yield numbers | dict(norms=np.linalg.norm(steps, axis=1).tolist())


@torch.no_grad()
def kls(policy: torch.nn.Module, parameters: list[np.ndarray], obs: np.ndarray) -> np.ndarray:
    """Mean KL [n, n] between the policies with these parameters, n of [P], on the states, both directions averaged."""
    policies = [with_parameters(policy, torch.as_tensor(x))(torch.from_numpy(obs)) for x in parameters]
    found = np.array([[kl_divergence(one, other).mean().item() for other in policies] for one in policies])
    return (found + found.T) / 2


# Figure --------------------------------------------------------------------------------------------------------------


def draw_steps(settings: list[Setting], path: Path) -> None:
    """Pairwise cosine and KL of update steps over training (TPG Fig. 13)."""
    figure, axes = new_figure(1, 2, (6.5, 2.8))
    for style, runs in settings:
        for axis, name in zip(axes[0], ("cosine", "kl")):
            lines = [([cell["iteration"] for cell in cells], [cell[name] for cell in cells]) for cells in runs]
            draw_setting(axis, lines, style)
    axes[0, 0].set(xlabel="iteration", ylabel="cosine between update steps")
    axes[0, 1].set(xlabel="iteration", ylabel="KL between policies (nats)", yscale="log")
    save_figure(figure, path)


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    check_options(args)
    if args.repeats < 2:
        stop("--repeats: two or more, or there is nothing to compare")
    runs = []
    for sources in open_runs(args.runs, args.script):
        chosen = [] if args.checkpoints == "all" else choose(sources, args.checkpoints)
        runs.append(with_step(sources, tuple(source.iteration for source in chosen)))
    styles = run_styles(args.runs, args.labels)
    path = output_folder(args.out, args.runs) / "steps.jsonl"
    cells = iter(measure_missing(args, path, [steps_work(args, source) for source in sum(runs, [])]))
    measured = by_setting(styles, [[next(cells) for _ in sources] for sources in runs])
    for style, cells_of_runs in measured:
        for cell in sum(cells_of_runs, []):
            means = "cosine between steps {:.3f}, KL between their policies {:.2g} nats".format(
                cell["cosine"]["mean"], cell["kl"]["mean"]
            )
            print(f"{style['label']}, {cell['run'].split('__')[-1]}, iteration {cell['iteration']}: {means}")
    draw_steps(measured, path)


def steps_work(args: Args, source: Source) -> tuple:
    """The steps from a checkpoint, as measure_missing takes them."""
    settings = checkpoint_state(source)[1]
    cost = (1 + args.repeats) * settings.num_envs * settings.num_steps
    cell = identify(source, args.seed) | dict(step_repeats=args.repeats)
    return partial(measure_steps, args), source, [cell], cost


if __name__ == "__main__":
    run_program(main)
