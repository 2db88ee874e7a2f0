"""Measures what this room's protocols ask for: training goes on from checkpoints with few or many pairs an update, with
shorter updates, or with many pairs in minibatches as small as before.

    python figures/gains_add_up/measure.py runs/baselines/Hopper-v5__ppo__seed2* --checkpoints 150 300 --out results
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import nn

sys.path.append(str(Path(__file__).parents[1]))

import measuring
from measuring import lab


@dataclass(frozen=True)
class Args(measuring.Common):
    checkpoints: tuple[int, ...] = (150, 300)  # iterations
    pairs: int = 589_824  # state-action pairs of each continuation
    reward_pairs: int = 40_000  # approximate number of pairs of the episodes of each policy
    arms: tuple[Literal["few", "short", "many", "recipe"], ...] = ("few", "short", "many")  # ways to go on


class Arm(NamedTuple):
    batches: int  # of training in one update
    share: float = 1.0  # of the policy's step that is taken
    more_minibatches: int = 1  # how many times those of training


ARMS = dict(few=Arm(1), short=Arm(1, share=0.4), many=Arm(24), recipe=Arm(24, more_minibatches=24))
PART = 49_152  # pairs, over which the rows of iterations are averaged, because 288 of each continuation fill megabytes


def measure(
    checkpoint: lab.Checkpoint, parallel_map: Callable, seed: int, pairs: int, reward_pairs: int, arms: list[str]
) -> dict[str, Any]:
    """Returns the returns of the checkpoint's own policy, by seed of the episode, and for each arm those of its last
    policy and a row for each part of its iterations."""
    seeds = seed, checkpoint.iteration, 7
    length = np.mean([length for _, length in lab.play(checkpoint, seeds, 0, lab.GROUP)])
    episodes = max(2, round(reward_pairs / length))
    before = [x for x, _ in lab.play(checkpoint, seeds, 0, episodes)]
    calls = [(checkpoint, pairs, *ARMS[arm], seeds, episodes) for arm in arms]
    return dict(before=before) | dict(zip(arms, parallel_map(continue_training, *zip(*calls))))


def continue_training(
    checkpoint: lab.Checkpoint,
    pairs: int,
    batches: int,
    share: float,
    more: int,
    seeds: tuple[int, ...],
    episodes: int,
) -> dict[str, Any]:
    """Goes on from a checkpoint as a resumed run does, with live statistics and the unfinished episode, but at the
    learning rates that it has now. Each update is made of so many batches of training and so many times its number of
    minibatches, and the policy takes a share of its step. Then the last policy plays episodes with its last
    statistics."""
    script, args, state = lab.training_state(checkpoint)
    left = 1 - state.global_step / state.planned_steps
    args = replace(args, num_steps=batches * args.num_steps, num_minibatches=more * args.num_minibatches)
    args = replace(args, anneal_lr=False)
    args = replace(args, policy_lr=left * args.policy_lr, value_lr=left * args.value_lr)
    rows = []
    for _ in range(pairs // (args.num_envs * args.num_steps)):
        start = lab.flat_parameters(state.policy)
        steps, episodes_ended = script.rollout(args, state)
        statistics = script.update(args, state, script.estimate_advantages(args, state, steps))
        step = share * (lab.flat_parameters(state.policy) - start)
        if share < 1:
            nn.utils.vector_to_parameters(start + step, state.policy.parameters())
        returns = [x for x, _ in episodes_ended]
        row = dict(episodes=len(returns), mean_return=float(np.mean(returns)) if returns else None)
        row |= dict(step_norm=step.norm().item(), mean_kl=statistics["mean_kl"])
        rows.append(row | dict(explained_variance=statistics["explained_variance"]))
    parts = np.array_split(rows, max(1, pairs // PART))
    returns = play(script, args, state, checkpoint, seeds, episodes)
    return dict(returns=returns, iterations=[summed_up([*part]) for part in parts if len(part)])


def summed_up(iterations: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the mean of what some iterations logged. That of their returns is over episodes."""
    episodes = [x["episodes"] for x in iterations]
    total = sum(x["episodes"] * (x["mean_return"] or 0) for x in iterations)
    row = dict(episodes=sum(episodes), mean_return=total / sum(episodes) if any(episodes) else None)
    names = "step_norm", "mean_kl", "explained_variance"
    return row | {name: float(np.mean([x[name] for x in iterations])) for name in names}


def play(
    script: Any, args: Any, state: Any, checkpoint: lab.Checkpoint, seeds: tuple[int, ...], episodes: int
) -> list[float]:
    """Plays episodes with the seeds that lab.play has for those of the checkpoint's own policy."""
    args, returns = replace(args, num_envs=1, num_steps=32), []
    for part in vars(state).values():
        if hasattr(part, "push"):
            part.push = lambda *_: None
    [worker] = state.workers = script.State(args).workers
    worker.env = env = lab.OneEpisode(worker.env)
    for state.rng in [lab.generator(checkpoint.run, *seeds, i) for i in range(episodes)]:
        worker.obs, env.ended, env.total, env.length = None, False, 0.0, 0
        while not env.ended:
            script.rollout(args, state)
        returns.append(env.total)
    return returns


def main(argv: list[str] | None = None) -> None:
    args = lab.read_options(Args, argv, __doc__)
    for row in measuring.rows_of(args, "gains_add_up", measure, measuring.chosen(args)):
        gains = {arm: np.mean(row[arm]["returns"]) - np.mean(row["before"]) for arm in args.arms}
        print(row["run"], row["iteration"], ", ".join(f"{arm} {x:+.0f}" for arm, x in gains.items()))


if __name__ == "__main__":
    lab.run_program(main)
