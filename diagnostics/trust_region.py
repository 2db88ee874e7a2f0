"""How far does a step go? This measures probability ratios and KL divergences between the policies before and after the
steps that training took, and draws them beside its rewards.

    python diagnostics/trust_region.py runs/Hopper-v5__ppo__seed1
    python diagnostics/trust_region.py runs/Hopper-v5__*__seed[12] --out figures

It follows Fig. 2 to 4 of "Implementation Matters in Deep Policy Gradients" (IM) and Fig. 9, 28 and 29 of "Are Deep
Policy Gradient Algorithms Truly Policy Gradient Algorithms?" (TPG). From every checkpoint that has a step, training's
next iteration is repeated as it was, with the same batch and the same step. The step is measured on that batch and on
held-out segments, which begin with resets and are collected by the checkpoint's policy with its frozen statistics. A
maximum grows with the sample, so the held-out largest ratio and largest KL are taken in parts of the training batch's
size and averaged. (A smaller remainder is left out; fewer pairs than one batch make one part.) The held-out reward is
that of complete episodes, of about as many pairs again, each played to its end from a seed of its own. Those that end
inside a segment would not do, since they are the shorter ones. Where a setting has several runs, its line is their mean
and the thin lines are the runs. For a single run the bars are 95 % intervals of Student's t, over episodes for the
reward and over the parts for what is held out. Dotted lines show 1 + eps where ratios are clipped, and the KL that TRPO
allows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from common import figures, intervals, kept, runs, sampling
from common.runs import AtLeast, Source
from common.sampling import GROUP, Sampler
from torch import Tensor

VERSION = 1  # raised whenever the measured numbers change

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(runs.LabelledOptions):
    checkpoints: Annotated[tuple[int, ...], AtLeast(0)] = ()
    """iterations; default: every checkpoint that has a step"""
    heldout_pairs: int = 20_480
    """fresh state-action pairs at each checkpoint, and about as many again for the reward"""


# Steps ---------------------------------------------------------------------------------------------------------------


def draw(args: Args, source: Source, sample: Sampler, _: Any) -> dict[str, Any]:
    """Collects fresh segments of the checkpoint's policy, with complete episodes instead of those that ended there."""
    seed = args.seed, source.iteration
    heldout = sampling.collect(source, (*seed, 0), args.heldout_pairs, sample)
    return heldout | dict(episodes=play_pairs(source, (*seed, 1), args.heldout_pairs, sample))


def play_pairs(source: Source, seed: tuple[int, ...], pairs: int, sample: Sampler) -> list[tuple[float, int]]:
    """Plays as many complete episodes of a checkpoint's policy as have about so many pairs, and returns the return and
    length of each. The first GROUP are always played, and their length decides how many there are."""
    episodes = list(sampling.play(source, seed, 0, GROUP, 1, sample))
    length = np.mean([length for _, length in episodes])
    return episodes + list(sampling.play(source, seed, GROUP, round(pairs / length), round(length), sample))


def measure_step(source: Source, _: Sampler, __: Any, drawn: Callable) -> Iterator[dict[str, Any]]:
    """Yields how far training's step from a checkpoint went, on its own batch and on fresh segments, and its limits."""
    script, settings, state = sampling.checkpoint_state(source)
    before, after, _, experience, batch = sampling.next_iteration(source)
    heldout = drawn()
    data = dict(train=(experience, batch), heldout=(heldout, script.estimate_advantages(settings, state, heldout)))
    numbers = {}
    for where, (rollout, pairs) in data.items():
        numbers[where] = mean_reward(rollout["episodes"]) | step_size(after.policy, pairs, len(batch["obs"]))
    if hasattr(settings, "clip_eps"):
        numbers["max_ratio_allowed"] = 1 + settings.clip_eps
    if hasattr(settings, "max_kl"):
        last = getattr(settings, "max_kl_final", None) or settings.max_kl
        done = before.global_step / runs.planned_steps(runs.read_config(source.run))
        numbers["mean_kl_allowed"] = settings.max_kl + done * (last - settings.max_kl)
    yield numbers


def mean_reward(episodes: list[tuple[float, int]]) -> dict[str, Any]:
    """Returns the mean return of episodes, each given as return and length. It is None where there are no episodes."""
    returns = np.array([episode_return for episode_return, _ in episodes])
    mean = returns.mean().item() if episodes else None
    return dict(mean_reward=mean, mean_reward_interval=intervals.t_interval(returns), episodes=len(episodes))


def step_size(policy: Callable, batch: dict[str, Tensor], part: int) -> dict[str, Any]:
    """Returns the largest ratio and the mean and largest KL of the policy against the one that collected the batch.
    Each is taken in parts of so many pairs and averaged over the parts."""
    ratios, kls = sampling.compare_policies(policy, batch)
    parts = max(1, len(kls) // part)
    measured = dict(max_ratio=(ratios, Tensor.max), mean_kl=(kls, Tensor.mean), max_kl=(kls, Tensor.max))
    numbers = dict(pairs=len(kls), parts=parts)
    for name, (x, statistic) in measured.items():
        of_parts = np.array([float(statistic(y)) for y in x[: parts * part].split(part)])
        numbers |= {name: of_parts.mean().item(), f"{name}_interval": intervals.t_interval(of_parts)}
    return numbers


# Figures -------------------------------------------------------------------------------------------------------------

PANELS = dict(mean_reward="mean episode return", max_ratio="largest ratio")
PANELS |= dict(mean_kl="mean KL (nats)", max_kl="largest KL (nats)")


def draw_trust_regions(settings: list[figures.Setting], path: Path) -> None:
    """Draws a row for the training batch and one for held-out segments. The columns are reward, largest ratio, mean KL
    and largest KL over training. Each setting has a line, and its runs have thin ones (IM Fig. 3, 4; KLs as in TPG
    Fig. 28, 29)."""
    cells_of_runs = [cells for _, of_setting in settings for cells in of_setting]
    figure, axes = figures.new_figure(2, 4, (9.6, 4.4), sharex=True, sharey="col")
    for row, where in zip(axes, ("train", "heldout")):
        for style, of_setting in settings:
            for axis, name in zip(row, PANELS):
                figures.draw_setting(axis, [curve(cells, where, name) for cells in of_setting], style)
                colour = "black" if name == "max_ratio" else style["color"]  # several scripts share 1 + eps
                for cells in of_setting:
                    allowed = [(x["iteration"], x[f"{name}_allowed"]) for x in cells if f"{name}_allowed" in x]
                    axis.plot(*np.reshape(allowed, (-1, 2)).T, color=colour, linestyle=":", linewidth=1)
        episodes = sorted(cell[where]["episodes"] for cells in cells_of_runs for cell in cells)
        text = {"train": "training batch", "heldout": "held-out segments"}[where]
        text += f", reward of {episodes[0]} to {episodes[-1]} episodes a point"
        row[0].set_title(text, loc="left", fontsize=10)
        for axis, text in zip(row, PANELS.values()):
            axis.set_ylabel(text)
        for axis in row[1:]:
            axis.set_yscale("log")
            figures.label_log_axis(axis)
    found = [cell[where]["mean_reward"] for cells in cells_of_runs for cell in cells for where in ("train", "heldout")]
    means = [x for x in found if x is not None]
    margin = 0.2 * max(np.ptp(means), 1e-3)
    axes[0, 0].set_ylim(min(means) - margin, max(means) + margin)  # intervals of two episodes would flatten the rest
    for axis, name in zip(axes[0, 1:], list(PANELS)[1:]):
        means = [cell[where][name] for cells in cells_of_runs for cell in cells for where in ("train", "heldout")]
        if lowest := min((x for x in means if x > 0), default=0):
            axis.set_ylim(bottom=lowest / 1.5)  # on this scale, an interval that begins near 0 would flatten the rest
    for axis in axes[1]:
        axis.set_xlabel("iteration")
    figures.save_figure(figure, path)


def curve(cells: list[dict[str, Any]], where: str, name: str) -> tuple[list[int], list[dict[str, Any]]]:
    """Returns the iterations and points of a run where there is a number. (A batch may have no finished episode.)"""
    cells = [cell for cell in cells if cell[where][name] is not None]
    points = [dict(mean=cell[where][name], interval=cell[where][f"{name}_interval"]) for cell in cells]
    return [cell["iteration"] for cell in cells], points


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    runs.check_options(args)
    chosen = [runs.with_step(sources, args.checkpoints) for sources in runs.open_runs(args.runs, args.script)]
    styles = figures.run_styles(args.runs, args.labels)
    path = runs.output_folder(args.out, args.runs) / "trust_region.jsonl"
    cells = iter(kept.measure_missing(args, path, [step_work(args, source) for source in sum(chosen, [])]))
    settings = figures.by_setting(styles, [[next(cells) for _ in sources] for sources in chosen])
    draw_trust_regions(settings, path)


def step_work(args: Args, source: Source) -> kept.Work:
    """Describes the step from a checkpoint to measure_missing."""
    cell = kept.identify(source, args.seed) | dict(heldout_pairs=args.heldout_pairs)
    measure = partial(measure_step, source)
    return kept.Work(source, [cell], 2 * args.heldout_pairs, partial(draw, args, source), measure)


if __name__ == "__main__":
    runs.run_program(main)
