"""What any script of the contract must do on its own rollouts, checked by code that is not the script's. Each function
returns a text that says what is wrong, or an empty one."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from measuring import sampling
from measuring.runs import Source

ALIKE = 0.5  # correlation of the noise of two segments; that of independent ones is below 0.05 in 10,000 pairs
FAR_OFF = 6  # standard errors
UNLIKE = 0.001  # share of the largest reward


@torch.no_grad()
def wrong_noise(state: Any, data: dict[str, Any], num_steps: int) -> str:
    """Judges the noise of the actions [B, action] of fresh segments, in units of the policy's standard deviation. It
    must be standard normal, or the actions are not those of this policy; and every segment must have its own."""
    pi = state.policy(torch.from_numpy(data["obs"]))
    noise = ((torch.from_numpy(data["actions"]) - pi.mean) / pi.stddev).double().numpy()
    mean, std, errors = noise.mean(), noise.std(), noise.size**-0.5
    if abs(mean) > FAR_OFF * errors or abs(std - 1) > FAR_OFF * errors / 2**0.5:
        return f"The actions are not the policy's: their noise has mean {mean:.2f} and standard deviation {std:.2f}."
    if len(noise) > 1.5 * num_steps and (noise[num_steps:] * noise[:-num_steps]).mean() > ALIKE:
        return "The same noise comes in every rollout: it must come from the state's generator, which goes on."
    return ""


class Recorder(gym.Wrapper):
    """Keeps the environment's own rewards."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.rewards = []

    def step(self, action: np.ndarray) -> tuple:
        result = self.env.step(action)
        self.rewards.append(float(result[1]))
        return result


def collect_group(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> dict[str, Any]:
    """Collects fresh segments as sampling.collect_group does, with the environment's `raw_rewards` [B]."""
    script, args, state = sampling.fresh_state(source, seed, num_envs, num_steps)
    for actor in state.actors:
        actor.env = Recorder(actor.env)
    data = script.rollout(args, state)
    return data | dict(raw_rewards=np.concatenate([actor.env.rewards for actor in state.actors]))


def wrong_rewards(args: Any, data: dict[str, Any]) -> str:
    """Judges whether the rewards to learn from are the environment's times one factor, as frozen statistics must make
    them, but for those that are clipped. Scaling by the rewards' own statistics adds a constant on purpose."""
    if getattr(args, "reward_scale_by", "returns") != "returns":
        return ""
    # A positive factor keeps the order, so the order of the rows, which is the script's own, does not matter.
    scaled, raw = np.sort(data["rewards"]), np.sort(data["raw_rewards"])
    limit = args.reward_clip_range if getattr(args, "reward_clip", False) else np.inf
    scaled, raw = (x[np.abs(scaled) < limit] for x in (scaled, raw))
    if not raw.any():
        return ""
    factor = scaled @ raw / (raw @ raw)
    if np.abs(scaled - factor * raw).max() <= UNLIKE * np.abs(scaled).max():
        return ""
    slope, shift = np.polyfit(raw, scaled, 1) if np.ptp(raw) else (factor, 0.0)
    text = f"they are about {slope:.3g} times the environment's, plus {shift:.3g}"
    return f"The scaled rewards are not the environment's rewards times one factor: {text}."


def not_shuffled(script: ModuleType, args: Any, state: Any, batch: dict[str, Any]) -> str:
    """Judges whether an update on minibatches depends on the random generator, as shuffling makes it."""
    if getattr(args, "num_minibatches", 1) < 2 or not isinstance(getattr(state, "rng", None), np.random.Generator):
        return ""
    after = []
    for seed in (1, 2):
        copy = replace(sampling.copied(state), rng=np.random.default_rng(seed))
        script.update(args, copy, batch)
        networks = [getattr(copy, name) for name in ("policy", "value") if hasattr(copy, name)]
        after.append(torch.cat([sampling.flat_parameters(network) for network in networks]))
    if torch.equal(*after):
        return "The minibatches are not shuffled: an update does not depend on the random generator."
    return ""
