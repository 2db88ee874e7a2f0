"""Measures what this room's protocol asks for: updates from few and from many pairs, each at two lengths.

python figures/noise_or_length/measure.py runs/baselines/Hopper-v5__ppo__seed2* --checkpoints 150 300 --out results
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import kl_divergence

sys.path.append(str(Path(__file__).parents[1]))

import measuring
from measuring import lab


@dataclass(frozen=True)
class Args(measuring.Common):
    checkpoints: tuple[int, ...] = (150, 300)  # iterations
    updates: int = 8  # of each kind from each checkpoint
    reward_pairs: int = 15_000  # approximate number of pairs of the episodes of each policy


MANY = 24  # segments of the large batch


def measure(
    checkpoint: lab.Checkpoint, parallel_map: Callable, seed: int, updates: int, reward_pairs: int
) -> dict[str, Any]:
    """Returns for each update the mean return of the policy before it (start) and after each kind of it (A to E), and
    how far each of these is from the one before, as a norm and as a mean KL."""
    seeds = seed, checkpoint.iteration
    length = np.mean([length for _, length in lab.play(checkpoint, (*seeds, 3), 0, lab.GROUP)])
    policy = lab.frozen_state(checkpoint)[2].policy
    start, obs = lab.flat_parameters(policy), lab.fresh_segments(checkpoint, parallel_map, (*seeds, 6), 4 * 2048)["obs"]
    calls = [(checkpoint, (*seeds, 4, i)) for i in range(updates)]
    taken = parallel_map(take_updates, *zip(*calls))
    arms = []
    for few, many, many_small in (map(torch.from_numpy, x) for x in taken):
        # Few pairs, the same 0.4 times as long; many pairs, the same 2.5 times as long, and many in small minibatches.
        arms.append(dict(start=start, A=few, B=start + 0.4 * (few - start)))
        arms[-1] |= dict(C=many, D=start + 2.5 * (many - start), E=many_small)
    episodes, calls = max(2, round(reward_pairs / length)), []
    for i, of_update in enumerate(arms):
        calls += [(checkpoint, (*seeds, 5, i), 0, episodes, x.numpy()) for x in of_update.values()]
    played = iter(parallel_map(lab.play, *zip(*calls)))
    found = []
    for of_update in arms:
        returns = {name: float(np.mean([x for x, _ in next(played)])) for name in of_update}
        norms = {name: (x - start).norm().item() for name, x in of_update.items()}
        kls = {name: mean_kl(policy, start, x, torch.from_numpy(obs)) for name, x in of_update.items()}
        found.append(dict(returns=returns, norms=norms, kls=kls))
    return dict(episodes=episodes, found=found)


def take_updates(checkpoint: lab.Checkpoint, seed: tuple[int, ...]) -> list[np.ndarray]:
    """Returns the policy parameters [P] after an update from one segment, one from MANY segments with as many
    minibatches, and one from the same segments with minibatches of the size that training uses."""
    num_steps, batches, found = lab.read_config(checkpoint.run)["args"]["num_steps"], {}, []
    for segments in (1, MANY):
        script, args, state, steps = lab.fresh_rollout(checkpoint, (*seed, segments), segments, num_steps)
        batches[segments] = script.estimate_advantages(args, state, steps)
    for segments, factor in ((1, 1), (MANY, 1), (MANY, MANY)):
        script, args, state = lab.frozen_state(checkpoint)
        state.rng = lab.generator(checkpoint.run, *seed, segments, factor)
        # The fit of V takes random numbers, and changes nothing else of the policy's step, so it is short. The update
        # from small minibatches has 7,680 steps of the policy, which is why it is compiled.
        args = replace(args, value_epochs=1, num_minibatches=factor * args.num_minibatches, compile=True)
        script.update(args, state, batches[segments])
        found.append(lab.flat_parameters(state.policy).numpy())
    return found


@torch.no_grad()
def mean_kl(policy: Any, before: Tensor, after: Tensor, obs: Tensor) -> float:
    """Returns the mean KL(before || after) in nats over the states."""
    return kl_divergence(*(lab.with_parameters(policy, x)(obs) for x in (before, after))).mean().item()


def main(argv: list[str] | None = None) -> None:
    args = lab.read_options(Args, argv, __doc__, updates=2)
    for row in measuring.rows_of(args, "noise_or_length", measure, measuring.chosen(args)):
        gains = {arm: np.mean([x["returns"][arm] - x["returns"]["start"] for x in row["found"]]) for arm in "ABCDE"}
        print(row["run"], row["iteration"], ", ".join(f"{arm} {x:+.1f}" for arm, x in gains.items()))


if __name__ == "__main__":
    lab.run_program(main)
