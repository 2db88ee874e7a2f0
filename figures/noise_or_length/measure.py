"""Measures what this room's protocol asks for: updates from few and from many pairs, each at two lengths.

python figures/noise_or_length/measure.py runs/baselines/Hopper-v5__ppo__seed2* --checkpoints 150 300 --out results
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import kl_divergence

sys.path.append(str(Path(__file__).parents[2] / "diagnostics"))

from measuring import runs, sampling, table
from measuring.runs import Source
from measuring.sampling import GROUP


@dataclass(frozen=True, kw_only=True)
class Args(runs.Options):
    checkpoints: tuple[int, ...] = (150, 300)
    """iterations"""
    updates: int = 8
    """updates of each kind from each checkpoint"""
    reward_pairs: int = 15_000
    """approximate number of pairs of the episodes of each policy"""


MANY = 24  # segments of the large batch


def measure(source: Source, seed: int, updates: int, reward_pairs: int) -> dict[str, Any]:
    """Returns for each update the mean return of the policy before it (start) and after each kind of it (A to E), and
    how far each of these is from the one before, as a norm and as a mean KL."""
    seeds = seed, source.iteration
    length = np.mean([length for _, length in sampling.play(source, (*seeds, 3), 0, GROUP)])
    policy = sampling.checkpoint_state(source)[2].policy
    start, obs = sampling.flat_parameters(policy), sampling.collect(source, (*seeds, 6), 4 * 2048)["obs"]
    taken = table.side_by_side(take_updates, [(source, (*seeds, 4, i)) for i in range(updates)])
    arms = []
    for few, many, many_small in (map(torch.from_numpy, x) for x in taken):
        # Few pairs, the same 0.4 times as long; many pairs, the same 2.5 times as long, and many in small minibatches.
        arms.append(dict(start=start, A=few, B=start + 0.4 * (few - start)))
        arms[-1] |= dict(C=many, D=start + 2.5 * (many - start), E=many_small)
    policies = [(source, (*seeds, 5, i), x.numpy()) for i, of_update in enumerate(arms) for x in of_update.values()]
    episodes = max(2, round(reward_pairs / length))
    played = iter(sampling.play_policies(policies, 0, episodes))
    found = []
    for of_update in arms:
        returns = {name: float(np.mean([x for x, _ in next(played)])) for name in of_update}
        norms = {name: (x - start).norm().item() for name, x in of_update.items()}
        kls = {name: mean_kl(policy, start, x, torch.from_numpy(obs)) for name, x in of_update.items()}
        found.append(dict(returns=returns, norms=norms, kls=kls))
    return dict(episodes=episodes, found=found)


def take_updates(source: Source, seed: tuple[int, ...]) -> list[np.ndarray]:
    """Returns the policy parameters [P] after an update from one segment, one from MANY segments with as many
    minibatches, and one from the same segments with minibatches of the size that training uses."""
    num_steps, batches, found = runs.read_config(source.run)["args"]["num_steps"], {}, []
    for segments in (1, MANY):
        script, args, state = sampling.fresh_state(source, (*seed, segments), segments, num_steps)
        batches[segments] = script.estimate_advantages(args, state, sampling.roll_out(script, args, state))
    for segments, factor in ((1, 1), (MANY, 1), (MANY, MANY)):
        script, args, state = sampling.checkpoint_state(source)
        state.rng = sampling.generator(source, *seed, segments, factor)
        # The fit of V takes random numbers, and changes nothing else of the policy's step, so it is short. The update
        # from small minibatches has 7,680 steps of the policy, which is why it is compiled.
        args = replace(
            args, value_epochs=1, num_minibatches=factor * args.num_minibatches, compile=sampling.can_compile()
        )
        script.update(args, state, batches[segments])
        found.append(sampling.flat_parameters(state.policy).numpy())
    return found


@torch.no_grad()
def mean_kl(policy: Any, before: Tensor, after: Tensor, obs: Tensor) -> float:
    """Returns the mean KL(before || after) in nats over the states."""
    return kl_divergence(*(sampling.with_parameters(policy, x)(obs) for x in (before, after))).mean().item()


def main(argv: list[str] | None = None) -> None:
    args = runs.read_options(Args, argv, __doc__, updates=2)
    chosen = [runs.with_step(sources, args.checkpoints) for sources in runs.open_runs(args.runs, args.script)]
    sizes = dict(updates=args.updates, reward_pairs=args.reward_pairs)
    for row in table.fill(args, "noise_or_length", measure, [(source, sizes) for source in sum(chosen, [])]):
        gains = {arm: np.mean([x["returns"][arm] - x["returns"]["start"] for x in row["found"]]) for arm in "ABCDE"}
        print(row["run"], row["iteration"], ", ".join(f"{arm} {x:+.1f}" for arm, x in gains.items()))


if __name__ == "__main__":
    runs.run_program(main)
