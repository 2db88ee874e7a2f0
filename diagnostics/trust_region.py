"""How far does a step go? Probability ratios and KL divergences between the policy before and after the steps that
training took, beside its rewards.

    python diagnostics/trust_region.py runs/Hopper-v5__ppo__seed1
    python diagnostics/trust_region.py runs/Hopper-v5__*__seed[12] --out figures

"Implementation Matters in Deep Policy Gradients" (IM) Fig. 2 to 4; "Are Deep Policy Gradient Algorithms Truly Policy
Gradient Algorithms?" (TPG) Fig. 9, 28, 29. From every checkpoint that has a step, training takes the next iteration as
it took it then: the same batch, the same step. It is measured on that batch and on held-out segments: from resets, by
the policy and with the frozen statistics of the checkpoint. The reward held out is that of complete episodes, played
from as many pairs again, since those that end inside a segment are the shorter ones. Dotted: 1 + eps of a clipped
ratio, and the KL that TRPO allows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    flat_parameters,
    groups,
    identify,
    measure_missing,
    new_figure,
    next_iteration,
    open_runs,
    output_folder,
    play,
    run_program,
    run_styles,
    save_figure,
    with_step,
)
from matplotlib.ticker import LogLocator, NullFormatter
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(Options):
    labels: tuple[str, ...] = ()
    """labels of your own, each "LABEL=ALGO FLAG ...": for the algorithm's runs with these flags, spelled as run folders
    spell them"""
    checkpoints: tuple[int, ...] = ()
    """iterations; default: every checkpoint that has a step"""
    heldout_pairs: int = 20_480
    """fresh state-action pairs at each checkpoint, and as many again for the reward"""


# Steps ---------------------------------------------------------------------------------------------------------------


def measure_step(args: Args, source: Source, sample: Callable, _: Any) -> Iterator[dict[str, Any]]:
    """The step that training took from a checkpoint, on its own batch and on fresh segments, and what it is held to."""
    script, settings, state = checkpoint_state(source)
    here = [(source, None, settings.num_envs, settings.num_steps)]
    [(before, after, _, experience, batch)] = sample(next_iteration, here, here=True)
    heldout = collect(source, (args.seed, source.iteration, 0), args.heldout_pairs, sample)
    sizes, parameters = groups(args.heldout_pairs, settings.num_steps), flat_parameters(state.policy)
    tasks = [(source, (args.seed, source.iteration, 1, i), *size, parameters) for i, size in enumerate(sizes)]
    heldout["episodes"] = sum(sample(play, tasks), [])
    data = dict(train=(experience, batch), heldout=(heldout, script.estimate_advantages(settings, state, heldout)))
    numbers = {}
    for where, (rollout, pairs) in data.items():
        ratios, kls = compare_policies(after.policy, pairs)
        rewards = [episode_return for episode_return, _ in rollout["episodes"]]
        numbers[where] = dict(mean_reward=float(np.mean(rewards)) if rewards else None, episodes=len(rewards))
        numbers[where] |= dict(max_ratio=float(ratios.max()), mean_kl=float(kls.mean()), max_kl=float(kls.max()))
        numbers[where] |= dict(pairs=len(ratios))
    if hasattr(settings, "clip_eps"):
        numbers["max_ratio_allowed"] = 1 + settings.clip_eps
    if hasattr(settings, "max_kl"):
        last = getattr(settings, "max_kl_final", None) or settings.max_kl
        batch_size = settings.num_envs * settings.num_steps
        done = before.global_step / (settings.total_timesteps // batch_size * batch_size)
        numbers["mean_kl_allowed"] = settings.max_kl + done * (last - settings.max_kl)
    yield numbers


@torch.no_grad()
def compare_policies(policy: Callable, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The policy against the one that collected the batch: ratios and KL(old || new) in nats, both [B]."""
    old, new = Independent(Normal(batch["old_means"], batch["old_stds"]), 1), policy(batch["obs"])
    return torch.exp(new.log_prob(batch["actions"]) - batch["old_log_probs"]), kl_divergence(old, new)


# Figures -------------------------------------------------------------------------------------------------------------

PANELS = dict(mean_reward="mean episode return", max_ratio="largest ratio", mean_kl="mean KL (nats)")


def draw_trust_regions(styles: list[dict[str, Any]], runs: list[list[dict[str, Any]]], path: Path) -> None:
    """Rows: the training batch, held-out segments; columns: reward, largest ratio, mean KL, largest against mean KL; a
    line for each run (IM Fig. 3, 4)."""
    figure, axes = new_figure(2, 4, (9.6, 4.4), sharex="col", sharey="col")
    for row, where in zip(axes, ("train", "heldout")):
        for cells, style in zip(runs, styles):
            x = [cell["iteration"] for cell in cells]
            for axis, name in zip(row, PANELS):
                axis.plot(x, [np.nan if (y := cell[where][name]) is None else y for cell in cells], **style)
                if allowed := [cell[f"{name}_allowed"] for cell in cells if f"{name}_allowed" in cell]:
                    colour = "black" if name == "max_ratio" else style["color"]  # 1 + eps is that of several scripts
                    axis.plot(x, allowed, color=colour, linestyle=":")
            kls = [[cell[where][name] for cell in cells] for name in ("mean_kl", "max_kl")]
            row[3].plot(*kls, **style | dict(linestyle="none"))
        for axis, text in zip(row, [*PANELS.values(), "largest KL (nats)"]):
            axis.set_ylabel(text)
        row[0].set_title({"train": "training batch", "heldout": "held-out segments"}[where], loc="left")
        for axis in row[1:]:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
        row[3].set_xscale("log")
    for axis, text in zip(axes[1], [*["iteration"] * 3, "mean KL (nats)"]):
        axis.set_xlabel(text)
    save_figure(figure, path)


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    check_options(args)
    runs = [with_step(sources, args.checkpoints) for sources in open_runs(args.runs, args.script)]
    styles = run_styles(args.runs, args.labels)
    path = output_folder(args.out, args.runs) / "trust_region.json"
    work = []
    for source in sum(runs, []):
        settings = checkpoint_state(source)[1]
        cost = settings.num_envs * settings.num_steps + 2 * args.heldout_pairs
        identity = identify(source, args.seed) | dict(heldout_pairs=args.heldout_pairs)
        work.append((partial(measure_step, args), source, [identity], cost))
    cells = iter(measure_missing(args, path, work))
    draw_trust_regions(styles, [[next(cells) for _ in sources] for sources in runs], path)


if __name__ == "__main__":
    run_program(main)
