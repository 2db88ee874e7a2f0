# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "gymnasium[mujoco]==1.4.0", "mujoco==4.0.0", "numpy==2.4.6", "tyro==1.0.17",
#   "tensorboard==2.21.0", "tqdm==4.70.1", "filelock==4.2.12"]
# ///
"""PPO (Schulman et al. 2017) with the nine code-level optimizations of "Implementation Matters in Deep Policy
Gradients" (Engstrom, Ilyas et al., ICLR 2020; "IM" below). Each has a flag and is marked (1) to (9) where it acts.

    make_networks         initialize pi and V with orthogonal weights (3) and tanh between the layers (8)
    train                 repeat
    rollout                   take num_steps steps with pi in each environment, which gives s, a, r and s'
    observe                       standardize each s (6), then clip it (7)
    scale_reward                  divide each r by a running standard deviation (2), then clip it (5)
    estimate_advantages       delta_t = r_t + gamma V(s'_t) - V(s_t), where V(s') = 0 after a terminal state
                              A_t = sum over l of (gamma gae_lambda)^l delta_{t+l}, to the end of the episode or of
                              the rollout (Schulman et al. 2016, eq. 16)
                              target_t = A_t + V(s_t)
    update                    pi_old = pi; lower both learning rates (4)
    fit                       value_epochs times, for each minibatch of the shuffled batch
    value_loss                    minimize the mean of (V(s) - target)^2, clipped (1), with a step of Adam
    fit                       policy_epochs times, for each minibatch of the shuffled batch
    objective                     normalize A, and let ratio = pi(a|s) / pi_old(a|s)
                                  maximize the mean of min(ratio A, clip(ratio, 1 - clip_eps, 1 + clip_eps) A) with
                                  a step of Adam (Schulman et al. 2017, eq. 7); both gradients are clipped (9)

    python algos/ppo.py                                         # Hopper-v5, 1M steps
    python algos/ppo.py --env-id Walker2d-v5 --seed 3           # another environment, another seed
    python algos/ppo.py --no-value-clip --no-reward-scale       # what are two of the details worth?

The same command again continues an interrupted run from its newest checkpoint, bit for bit. The learning rates are from
IM's Table 6 for Hopper. All nine are on by default; IM's runs on Hopper had (1) and (9) off. "The released code" is
MadryLab/implementation-matters, commit 1b8af2d (April 2020), to which the published paper links.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NoReturn

import gymnasium as gym
import mujoco
import numpy as np
import torch
import tyro
from filelock import FileLock, Timeout
from torch import Tensor, nn

# scan is a prototype feature of torch: a loop that stays a loop when it is compiled. If it were miscompiled,
# test_compiled_update_is_the_eager_one in tests/test_mathematics.py would fail.
from torch._higher_order_ops import scan
from torch.distributions import Independent, Normal, kl_divergence
from torch.func import functional_call, grad_and_value
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

# Arguments and state -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Args:
    env_id: str = "Hopper-v5"  # any with flat Box observations and actions; module:Env-v0 imports your module
    total_timesteps: int = 1_000_000  # environment steps in all; rounded down to whole iterations
    seed: int = 1  # seed of all random numbers

    # The nine optimizations, in IM's order.
    value_clip: bool = True  # (1) clip the change of the value prediction in the value loss
    value_clip_eps: float = 0.2  # (1) how far a prediction may move before its loss is clipped; in units of rewards
    reward_scale: bool = True  # (2) divide rewards by a running standard deviation
    reward_scale_by: Literal["returns", "rewards"] = "returns"  # (2) by the std of discounted reward sums or of rewards
    orthogonal_init: bool = True  # (3) orthogonal initialization with layer-wise gains; off: Xavier uniform
    anneal_lr: bool = True  # (4) let both learning rates decay linearly to 0
    reward_clip: bool = True  # (5) clip the (scaled) rewards
    reward_clip_range: float = 10.0  # rewards are clipped to [-range, range] by (5)
    obs_norm: bool = True  # (6) standardize observations by running mean and standard deviation
    obs_clip: bool = True  # (7) clip the (standardized) observations
    obs_clip_range: float = 10.0  # observations are clipped to [-range, range] by (7)
    tanh: bool = True  # (8) tanh between layers
    activation_without_tanh: Literal["relu", "silu"] = "relu"  # activation between layers where (8) is off
    grad_clip: bool = True  # (9) clip the l2 norm of the policy's gradient
    value_grad_clip: bool = True  # (9) clip the l2 norm of the value network's gradient; the released code never does
    max_grad_norm: float = 0.5  # largest gradient norm that (9) lets through

    num_envs: int = 1  # environments, stepped one after another
    num_steps: int = 2048  # steps of each environment in an iteration
    num_minibatches: int = 32  # minibatches that an epoch divides the batch into
    policy_epochs: int = 10  # passes of the policy update over the batch
    value_epochs: int = 10  # passes of the value update over the batch
    policy_lr: float = 3e-4  # Adam learning rate of the policy
    value_lr: float = 2.5e-4  # Adam learning rate of the value network
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalized advantage estimation
    clip_eps: float = 0.2  # epsilon of the probability ratio's clipping
    entropy_coef: float = 0.0  # coefficient of the entropy in the objective; may be negative
    policy_hidden: tuple[int, ...] = (64, 64)  # sizes of the policy's hidden layers
    value_hidden: tuple[int, ...] = (64, 64)  # sizes of the value network's hidden layers
    bootstrap_truncation: bool = True  # bootstrap from V at a time limit; off: treat it as a terminal state
    bound_action: Literal["no", "clip", "tanh"] = "no"  # how actions reach the environment: as drawn, clipped, squashed

    compile: bool = True  # compile the updates: 5 to 25 seconds once, then 20 times faster than --no-compile
    runs_dir: str = "runs"  # folder of all runs
    run_name: str = ""  # folder of this run inside runs_dir; default: environment, algorithm, non-default flags, seed
    checkpoint_every: int = 25  # iterations between checkpoints; after each, all environments begin a new episode
    overwrite: bool = False  # start over, deleting the checkpoints and logs of an earlier run in the run folder


@dataclass
class State:
    """Everything that training changes. A checkpoint holds all of it except the actors."""

    actors: list[Actor]
    rng: np.random.Generator
    policy: Policy
    value: nn.Sequential  # observations [B, obs] -> values [B]
    policy_adam: list[Tensor]  # moments m [P] and v [P], number of steps t
    value_adam: list[Tensor]
    obs_stats: RunningStats  # of (6)
    reward_stats: RunningStats  # of (2)
    iteration: int = 0  # iterations done
    global_step: int = 0  # environment steps done


@dataclass
class Actor:
    """An environment and its unfinished episode."""

    env: gym.Env
    obs: np.ndarray | None = None  # [obs] current observation as the networks see it; None: a new episode is due
    episode_return: float = 0.0  # sum of the raw rewards
    episode_length: int = 0
    past_rewards: float = 0.0  # R of (2): the discounted sum of the episode's rewards so far


# Loop ----------------------------------------------------------------------------------------------------------------


def train(args: Args) -> None:
    """Trains to the end, from the newest checkpoint in the run folder or else from the beginning."""
    state = initial_state(args, make_actors(args))
    with open_run(args, state) as run:
        while state.global_step < planned_steps(args):
            begin_episodes(args, state)
            experience = rollout(args, state)
            batch = estimate_advantages(args, state, experience)
            statistics = update(args, state, batch)  # also advances state.iteration and state.global_step
            record(args, run, state, statistics, experience["episodes"])


def planned_steps(args: Args) -> int:
    """Environment steps after which a run ends: total_timesteps, rounded down to a multiple of num_envs * num_steps."""
    return args.total_timesteps - args.total_timesteps % (args.num_envs * args.num_steps)


# Rollout -------------------------------------------------------------------------------------------------------------


def begin_episodes(args: Args, state: State) -> None:
    """Starts new episodes after every checkpoint, whether or not the run was interrupted there. So no simulator has to
    be saved, and a continued run is bit for bit the uninterrupted one wherever reset(seed=...) fixes the environment.
    The episodes that are cut off here are not counted."""
    if state.iteration % args.checkpoint_every == 0:
        state.actors = [Actor(actor.env) for actor in state.actors]


def rollout(args: Args, state: State) -> dict[str, Any]:
    """Takes num_steps steps with the current policy in one environment after another. An episode that is unfinished
    then continues in the next rollout.

    Returns arrays with one row per step, B = num_envs * num_steps in all: obs and next_obs [B, obs] as the networks see
    them, actions [B, action] as drawn, rewards [B] scaled and clipped, terminations [B] where V(s') counts as 0, ends
    [B] where the next row belongs to another episode or environment; and episodes, the raw return and the length of
    each that ended."""
    rows, episodes = [], []
    policy_mean = numpy_forward(state.policy.mean)
    std = state.policy.log_std.detach().exp().numpy()
    for actor in state.actors:  # On one core, stepping them side by side would gain nothing.
        noise = std * state.rng.standard_normal((args.num_steps, len(std)), dtype=np.float32)
        for t in range(args.num_steps):
            if actor.obs is None:  # A seed per episode: no generator of the environment has to be saved.
                first_obs, _ = actor.env.reset(seed=int(state.rng.integers(2**31)))
                actor.obs = observe(args, state.obs_stats, first_obs)
            # Acting needs no values and no log-probabilities: one pass over the whole batch computes them later.
            action = policy_mean(actor.obs) + noise[t]
            raw_obs, reward, terminated, truncated, _ = actor.env.step(bound_action(args, actor.env, action))
            actor.episode_return += float(reward)
            actor.episode_length += 1
            obs, actor.obs = actor.obs, observe(args, state.obs_stats, raw_obs)
            row = dict(
                obs=obs,
                actions=action,
                next_obs=actor.obs,
                rewards=scale_reward(args, state.reward_stats, actor, float(reward)),
                # A time limit is not a terminal state: we bootstrap from V of the final observation (Pardo et al.
                # 2018). The released code treats it as one, and so does --no-bootstrap-truncation.
                terminations=bool(terminated or (truncated and not args.bootstrap_truncation)),
                # Nor is the end of the rollout: we bootstrap from V of the next observation, the released code from
                # V of the last state itself.
                ends=bool(terminated or truncated or t == args.num_steps - 1),
            )
            rows.append(row)
            if terminated or truncated:
                # Every episode counts. The released code leaves out one that ends on the batch's last step.
                episodes.append((actor.episode_return, actor.episode_length))
                # R of (2) restarts with the episode, as in the released code. IM's Algorithm 1 carries it on.
                actor.obs, actor.episode_return, actor.episode_length, actor.past_rewards = None, 0.0, 0, 0.0
    return {name: np.array([row[name] for row in rows]) for name in rows[0]} | dict(episodes=episodes)


def numpy_forward(network: nn.Sequential) -> Callable[[np.ndarray], np.ndarray]:
    """The network as a function of one observation, [in] -> [out]. It is implemented a second time, in numpy, because a
    single row takes 5 us here and 50 in torch, where a whole environment step takes about 100."""
    activations = {
        nn.Tanh: np.tanh,
        nn.ReLU: lambda x: np.maximum(x, 0),
        nn.SiLU: lambda x: x * (1 + np.tanh(x / 2)) / 2,  # x sigmoid(x), in a form that cannot overflow
    }
    activation = activations[type(network[1])]
    *hidden, (out_weight, out_bias) = [(x.weight.detach().numpy(), x.bias.detach().numpy()) for x in network[::2]]

    def forward(x: np.ndarray) -> np.ndarray:
        for weight, bias in hidden:
            x = activation(weight.dot(x) + bias)
        return out_weight.dot(x) + out_bias

    return forward


def observe(args: Args, stats: RunningStats, obs: np.ndarray) -> np.ndarray:
    """Raw observation [obs] -> what the networks see, in float32. The statistics include it."""
    if args.obs_norm:  # (6)
        stats.push(obs)
        obs = (obs - stats.mean) / (stats.std + 1e-8)
    if args.obs_clip:  # (7) also without (6); in the released code the clip is part of the normalizer and goes with it
        obs = obs.clip(-args.obs_clip_range, args.obs_clip_range)
    return obs.astype(np.float32)


def bound_action(args: Args, env: gym.Env, action: np.ndarray) -> np.ndarray:
    """The action as drawn -> what the environment gets. We treat this map as part of the environment, so
    log-probabilities, ratios and KL always refer to the Gaussian before it."""
    if args.bound_action == "no":
        # As in the released code. MuJoCo limits the controls itself, but the reward's control cost is that of the whole
        # action: for Humanoid's first actions it is 8 times as large.
        return action.copy()  # because an environment may change the array that it gets
    low, high = env.action_space.low, env.action_space.high
    if args.bound_action == "clip":  # as Stable-Baselines3 and CleanRL do
        return action.clip(low, high)
    return low + (high - low) * 0.5 * (np.tanh(action) + 1)


def scale_reward(args: Args, stats: RunningStats, actor: Actor, reward: float) -> float:
    """Raw reward of the actor's step -> the reward to learn from. The statistics include it."""
    if args.reward_scale:  # (2)
        actor.past_rewards = args.gamma * actor.past_rewards + reward
        if args.reward_scale_by == "returns":
            stats.push(actor.past_rewards)
            # Subtracting the mean would add a constant to all rewards, and so favor longer or shorter episodes.
            reward = reward / (stats.std + 1e-8)
        else:
            stats.push(reward)
            # The mean is added again after the division, as in the released code.
            reward = (reward - stats.mean) / (stats.std + 1e-8) + stats.mean
    if args.reward_clip:  # (5) also without (2); in the released code the clip is part of the scaling and goes with it
        reward = min(max(reward, -args.reward_clip_range), args.reward_clip_range)
    return reward


# Advantages ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def estimate_advantages(args: Args, state: State, experience: dict[str, Any]) -> dict[str, Tensor]:
    """A rollout -> the batch that the losses and `update` take, tensors over its B steps: obs [B, obs]; actions
    [B, action]; old_means and old_stds [B, action] and old_log_probs [B] of the policy that acted; old_values [B] of
    the value network before its fit; advantages [B] by GAE (Schulman et al. 2016, eq. 16); value_targets [B]."""
    obs, next_obs, actions = (torch.from_numpy(experience[name]) for name in ("obs", "next_obs", "actions"))
    # The next values are not old_values[1:], because after the end of an episode the next row starts another one.
    old_policy, old_values, next_values = state.policy(obs), state.value(obs), state.value(next_obs)
    next_values[torch.from_numpy(experience["terminations"])] = 0.0

    # GAE is computed in Python floats, because the recursion would be slow in torch, and in float32 it would accumulate
    # rounding. The exact gradient of the discounted return would also weight step t of an episode by gamma^t; like
    # almost every implementation, we leave that out.
    deltas = experience["rewards"] + args.gamma * next_values.double().numpy() - old_values.double().numpy()
    sums, ends = deltas.tolist(), experience["ends"].tolist()
    for t in reversed(range(len(sums) - 1)):
        if not ends[t]:
            sums[t] += args.gamma * args.gae_lambda * sums[t + 1]
    advantages = torch.tensor(sums)

    batch = dict(obs=obs, actions=actions, advantages=advantages, value_targets=advantages + old_values)
    batch |= dict(old_means=old_policy.mean, old_stds=old_policy.stddev, old_values=old_values)
    return batch | dict(old_log_probs=old_policy.log_prob(actions))


# Update --------------------------------------------------------------------------------------------------------------


def update(args: Args, state: State, batch: dict[str, Tensor]) -> dict[str, float]:
    """One iteration's whole update: value_epochs passes of the value network over the batch, then policy_epochs of the
    policy. Changes the state in place and returns the iteration's statistics."""
    lr_fraction = 1 - state.global_step / planned_steps(args) if args.anneal_lr else 1.0  # (4)
    policy_lr, value_lr = args.policy_lr * lr_fraction, args.value_lr * lr_fraction
    # (9) Baselines and IM's text clip the norm of both gradients together, and the released code clips the policy's
    # alone, as --no-value-grad-clip does. Here each network has its own norm, since each takes its own steps. In PPO on
    # Hopper 99.9 % of the policy's gradients are longer than 0.5, so by default (9) gives nearly all of them the same
    # length, and Adam divides a common length out. Only 2 % of the value network's are, although its loss lacks
    # baselines' factor of 1/4, which makes the same bound four times as tight.
    policy_norm = args.max_grad_norm if args.grad_clip else math.inf
    value_norm = args.max_grad_norm if args.value_grad_clip else math.inf

    # The value network comes first, as in the released code. The advantages are fixed by now, so neither fit sees what
    # the other does.
    rows = shuffled_minibatches(args, state.rng, batch, args.value_epochs)
    value_fit = fit(args, state.value, state.value_adam, value_loss, batch, rows, value_lr, value_norm)
    rows = shuffled_minibatches(args, state.rng, batch, args.policy_epochs)
    policy_loss = lambda *x: -objective(*x)  # because Adam minimizes
    policy_fit = fit(args, state.policy, state.policy_adam, policy_loss, batch, rows, policy_lr, policy_norm)
    state.iteration += 1
    state.global_step += len(batch["obs"])

    statistics = {f"value_{name}": x for name, x in value_fit.items()}
    statistics |= {f"policy_{name}": x for name, x in policy_fit.items()}
    entropies, kls, ratios = compare_policies(args, state.policy, batch)
    statistics |= dict(
        entropy=entropies.mean(),
        mean_kl=kls.mean(),
        max_kl=kls.max(),
        max_ratio=ratios.max(),
        clip_fraction=((ratios - 1).abs() > args.clip_eps).float().mean(),
        # The errors of V before its fit are the advantages. This is optimistic, as the targets contain the predictions.
        explained_variance=1 - batch["advantages"].var() / batch["value_targets"].var(),
    )
    return {name: float(x) for name, x in statistics.items()}


def value_loss(args: Args, value: Callable, batch: dict[str, Tensor]) -> Tensor:
    """What the value step minimizes: the mean squared error to the value targets, over all steps; the released code
    leaves out terminal ones. `value` maps observations [B, obs] to values [B]: it is the network, or the network with
    other parameters."""
    values, old_values, targets = value(batch["obs"]), batch["old_values"], batch["value_targets"]
    assert values.shape == targets.shape  # values [B, 1] would broadcast to errors [B, B] without a word
    losses = (values - targets) ** 2
    if args.value_clip:  # (1) with its own eps; IM's text reuses the ratio's, although values have different units
        # 0.2 suits rewards that (2) has scaled. Without (2), PPO on Hopper-v4 ends at 479 with it and at 1,840 with 24.
        clipped_values = old_values + (values - old_values).clamp(-args.value_clip_eps, args.value_clip_eps)
        # The larger of the two, as in the released code and in baselines, because clipping must not hide an error.
        # IM's formula prints min.
        losses = torch.maximum(losses, (clipped_values - targets) ** 2)
    return losses.mean()


def objective(args: Args, policy: Callable, batch: dict[str, Tensor]) -> Tensor:
    """What the policy step maximizes: the clipped surrogate (Schulman et al. 2017, eq. 7) plus the entropy bonus.
    `policy` maps observations [B, obs] to B distributions of actions: it is the network, or the network with other
    parameters."""
    pi = policy(batch["obs"])
    log_probs = pi.log_prob(batch["actions"])
    assert log_probs.shape == batch["advantages"].shape  # a Normal that is not Independent would broadcast silently
    ratios = torch.exp(log_probs - batch["old_log_probs"])
    # Advantages are normalized over the minibatch, as in baselines and in all of IM's variants, though not in Schulman
    # et al. That centers them, and it fixes their weight relative to the entropy bonus and to max_grad_norm.
    advantages = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
    # A ratio that has moved beyond the band in the direction that pays gets no gradient; one that moved the wrong way
    # is still pulled back.
    clipped_ratios = ratios.clamp(1 - args.clip_eps, 1 + args.clip_eps)
    surrogate = torch.minimum(ratios * advantages, clipped_ratios * advantages).mean()
    if args.entropy_coef:
        return surrogate + args.entropy_coef * action_entropy(args, pi, batch).mean()
    return surrogate


def action_entropy(args: Args, pi: Independent, batch: dict[str, Tensor]) -> Tensor:
    """Entropy [B] of the policy's actions. If tanh squashes them, it is the Gaussian's plus E[ln d tanh(u) / du], up to
    a constant; without that term the bonus would keep increasing the standard deviations."""
    if args.bound_action != "tanh":
        return pi.entropy()
    # One reparametrized sample per state is enough. Its noise is that of the actions, so nothing is drawn here.
    u = pi.mean + pi.stddev * (batch["actions"] - batch["old_means"]) / batch["old_stds"]
    return pi.entropy() + (2 * (math.log(2) - u - nn.functional.softplus(-2 * u))).sum(-1)  # ln(1 - tanh(u)^2), stable


def shuffled_minibatches(args: Args, rng: np.random.Generator, batch: dict[str, Tensor], epochs: int) -> Tensor:
    """Row numbers [epochs * num_minibatches, size] of the minibatches: every epoch shuffles the batch and divides it.
    The remainder is dropped; only REINFORCE's batches and those of the diagnostics have one."""
    size = len(batch["obs"]) // args.num_minibatches
    shuffled = [rng.permutation(len(batch["obs"]))[: args.num_minibatches * size] for _ in range(epochs)]
    return torch.from_numpy(np.reshape(shuffled, (-1, size)))


def fit(
    args: Args, network: nn.Module, adam: list, loss: Callable, batch: dict, minibatches: Tensor, lr: float, norm: float
) -> dict[str, Any]:
    """Fits the network, and the moments of its Adam, in place. For the rows [size] of each minibatch it does what these
    three lines of plain torch do, but PPO's two fits take 37 ms instead of 430:

        loss(args, network, {name: x[rows] for name, x in batch.items()}).backward()
        nn.utils.clip_grad_norm_(network.parameters(), norm)
        optimizer.step(); optimizer.zero_grad()  # torch.optim.Adam(network.parameters(), lr, eps=1e-5)

    A loop can be compiled if its step is a function that changes no tensor. So the parameters are one flat vector that
    is passed from step to step, and Adam, which torch has only in place, is written out.

    Returns the mean loss, the mean norm of the gradients before clipping, the fraction of them that was clipped, lr."""
    rate = torch.tensor(lr)  # as a float it would be a constant of the compiled code, compiled again for each value

    def step(carry: tuple, rows: Tensor) -> tuple[tuple, tuple]:
        parameters, *moments = carry
        minibatch = {name: x[rows] for name, x in batch.items()}
        loss_of = lambda parameters: loss(args, with_parameters(network, parameters), minibatch)
        gradient, minibatch_loss = grad_and_value(loss_of)(parameters)
        length = gradient.norm()
        gradient = gradient * (norm / (length + 1e-6)).clamp(max=1)  # IM's (9); an infinite norm clips nothing
        return adam_step(parameters, gradient, *moments, rate), (minibatch_loss, length)

    loop = compiled_scan if args.compile else eager_scan
    carry, (losses, lengths) = loop(step, (flat_parameters(network), *adam), minibatches)
    nn.utils.vector_to_parameters(carry[0], network.parameters())
    adam[:] = carry[1:]
    clipped = (lengths > norm).float().mean()
    return dict(loss=losses.mean(), grad_norm=lengths.mean(), grads_clipped=clipped, lr=lr)


def with_parameters(network: nn.Module, parameters: Tensor) -> Callable:
    """The network as a function of observations, with its parameters taken from one flat vector [P]."""
    named = dict(network.named_parameters())
    parts = parameters.split([p.numel() for p in named.values()])
    return partial(functional_call, network, {k: x.view(p.shape) for (k, p), x in zip(named.items(), parts)})


def flat_parameters(network: nn.Module) -> Tensor:
    """The network's parameters as one vector [P]."""
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def adam_step(parameters: Tensor, gradient: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor) -> tuple[Tensor, ...]:
    """Adam (Kingma & Ba 2015, Algorithm 1) with eps = 1e-5, as in baselines. Returns the new parameters, m, v and t."""
    t = t + 1
    m = 0.9 * m + 0.1 * gradient
    v = 0.999 * v + 0.001 * gradient**2
    m_hat = m / (1 - torch.exp(t * math.log(0.9)))  # 1 - 0.9^t; the power would cost PPO's two fits 6 ms more
    v_hat = v / (1 - torch.exp(t * math.log(0.999)))
    return parameters - lr * m_hat / (v_hat.sqrt() + 1e-5), m, v, t


def eager_scan(step: Callable, carry: tuple, minibatches: Tensor) -> tuple[tuple, list[Tensor]]:
    """Takes a step per minibatch. Returns the last carry, and the outputs of all steps as tensors."""
    outputs = []
    for rows in minibatches:
        carry, output = step(carry, rows)
        outputs.append(output)
    return carry, [torch.stack(x) for x in zip(*outputs)]


# eager_scan as one compiled loop: PPO's 640 steps take 37 ms, and 70 ms as compiled steps in a Python loop. fullgraph,
# because a graph break would silently lose the speed-up; cpp_wrapper, so that C++ and not Python calls the kernels.
compiled_scan = torch.compile(lambda *x: scan(*x), fullgraph=True, dynamic=False, options={"cpp_wrapper": True})


@torch.no_grad()
def compare_policies(args: Args, policy: Policy, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """What the whole update did to the policy, in each step of the batch [B]: its entropy now, KL(old || new) in nats,
    and the probability ratio. (Elsewhere they are often means over the minibatches, while the policy still moves.)"""
    old, new = gaussian(batch["old_means"], batch["old_stds"]), policy(batch["obs"])
    ratios = torch.exp(new.log_prob(batch["actions"]) - batch["old_log_probs"])
    return action_entropy(args, new, batch), kl_divergence(old, new), ratios


# Initial state -------------------------------------------------------------------------------------------------------


def initial_state(args: Args, actors: list[Actor]) -> State:
    """The state in which iteration 0 begins."""
    [obs_size], [action_size] = actors[0].env.observation_space.shape, actors[0].env.action_space.shape
    policy, value = make_networks(args, obs_size, action_size)
    sizes = [len(flat_parameters(network)) for network in (policy, value)]
    # Adam's t is float64, because 1 - 0.999^t needs the digits.
    adams = [[torch.zeros(P), torch.zeros(P), torch.zeros((), dtype=torch.float64)] for P in sizes]
    stats = RunningStats(np.zeros(obs_size)), RunningStats(0.0)
    return State(actors, np.random.default_rng(args.seed), policy, value, *adams, *stats)


def make_networks(args: Args, obs_size: int, action_size: int) -> tuple[Policy, nn.Sequential]:
    """Policy and value network, initialized from the seed."""
    generator = torch.Generator().manual_seed(args.seed)
    # The policy's small output gain makes its first actions almost pure noise, around 0.
    policy = Policy(mlp(args, (obs_size, *args.policy_hidden, action_size), 0.01, generator))
    value = mlp(args, (obs_size, *args.value_hidden, 1), 1.0, generator)
    return policy, value.append(nn.Flatten(0))  # [B, 1] -> [B]


def mlp(args: Args, sizes: tuple[int, ...], output_gain: float, generator: torch.Generator) -> nn.Sequential:
    """Linear layers of the given sizes, with the activation between them."""
    activation = nn.Tanh if args.tanh else {"relu": nn.ReLU, "silu": nn.SiLU}[args.activation_without_tanh]  # (8)
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), activation())][:-1]
    for layer in layers[::2]:
        nn.init.zeros_(layer.bias)
        if args.orthogonal_init:  # (3)
            gain = output_gain if layer is layers[-1] else math.sqrt(2)
            nn.init.orthogonal_(layer.weight, gain, generator=generator)
        else:
            nn.init.xavier_uniform_(layer.weight, generator=generator)
    return nn.Sequential(*layers)


class Policy(nn.Module):
    """Gaussian policy whose standard deviation does not depend on the state."""

    def __init__(self, mean: nn.Sequential):
        super().__init__()
        self.mean = mean
        self.log_std = nn.Parameter(torch.zeros(mean[-1].out_features))

    def forward(self, obs: Tensor) -> Independent:
        """Observations [B, obs] -> distribution of actions [B, action]."""
        means = self.mean(obs)
        return gaussian(means, self.log_std.exp().expand_as(means))


def gaussian(means: Tensor, stds: Tensor) -> Independent:
    """Diagonal Gaussians over actions [B, action]; not validated, because such checks cannot be compiled."""
    return Independent(Normal(means, stds, validate_args=False), 1, validate_args=False)


class RunningStats:
    """Mean and unbiased standard deviation of a stream of samples (Welford's algorithm), in float64, so that the
    millionth sample still counts. While they are `frozen`, as in diagnostics, they do not change."""

    def __init__(self, zero: np.ndarray | float):
        """`zero` has the shape of a sample. For rewards it is a float, which saves 0.3 us per step."""
        self.frozen = False
        self.count, self.mean, self.sum_sq = 0, zero, zero

    def push(self, x: np.ndarray | float) -> None:
        if self.frozen:
            return
        self.count += 1
        old_deviation = x - self.mean
        self.mean = self.mean + old_deviation / self.count
        self.sum_sq = self.sum_sq + old_deviation * (x - self.mean)

    @property
    def std(self) -> np.ndarray | float:
        """A single sample has none, so it is |mean| then; with 0 the first scaled reward of a run would be enormous."""
        return (self.sum_sq / (self.count - 1)) ** 0.5 if self.count > 1 else abs(self.mean)

    def state_dict(self) -> dict[str, Any]:  # lists, because torch.load(weights_only=True) refuses numpy arrays
        return dict(count=self.count, mean=np.asarray(self.mean).tolist(), sum_sq=np.asarray(self.sum_sq).tolist())

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.count, self.mean, self.sum_sq = saved["count"], np.array(saved["mean"])[()], np.array(saved["sum_sq"])[()]


# =====================================================================================================================
# Bookkeeping of arguments, environments, checkpoints and the run folder. Everything below this line can be skipped.
# =====================================================================================================================

ALGO = Path(__file__).stem
NOT_OF_THE_RUN = ("runs_dir", "run_name", "overwrite", "compile")  # arguments that may differ when a run continues


def stop(message: str, status: int = 2) -> NoReturn:
    """Ends the program with one line on standard error. Status 2 means bad input or a run folder that cannot be used, 1
    that training failed, 130 that Ctrl-C was pressed, and 0 that there is nothing to do."""
    print(f"{ALGO}.py: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(status)


def check_arguments(args: Args) -> None:
    """Stops at arguments with which nothing could be learned. A number that has no range here must be positive, and
    finite in float32."""
    ranges = dict(seed=(0, 2**64 - 1), gamma=(0, 1), gae_lambda=(0, 1), entropy_coef=(-1e38, 1e38))
    for name, value in vars(args).items():
        low, high = ranges.get(name, (1e-38, 1e38))
        numbers = value if isinstance(value, tuple) else (value,)
        if not numbers or any(type(x) in (int, float) and not low <= x <= high for x in numbers):  # nan is in no range
            text = f"lie between {low} and {high}" if name in ranges else "be greater than 0 and finite"
            stop(f"--{name.replace('_', '-')} {value} must {text}")
    batch_size = args.num_envs * args.num_steps
    if args.total_timesteps < batch_size:
        stop(f"--total-timesteps {args.total_timesteps}: less than one iteration, num_envs * num_steps = {batch_size}")
    if batch_size % args.num_minibatches or batch_size < 2 * args.num_minibatches:  # a single step has no std
        text = f"num_envs * num_steps = {batch_size} must divide evenly into minibatches of 2 or more"
        stop(f"--num-minibatches {args.num_minibatches}: {text}")


def make_actors(args: Args) -> list[Actor]:
    """The environments, not yet reset. Stops if the networks cannot serve them."""
    mujoco.set_mju_user_warning(lambda _: None)  # otherwise HalfCheetah-v4 writes MUJOCO_LOG.TXT to the working folder
    try:
        actors = [Actor(gym.make(args.env_id, disable_env_checker=True)) for _ in range(args.num_envs)]
    except (gym.error.Error, ImportError, TypeError, ValueError) as error:
        stop(f"--env-id {args.env_id}: {error}")
    env = actors[0].env
    for name, space in dict(observations=env.observation_space, actions=env.action_space).items():
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1 or space.shape[0] == 0:
            stop(f"--env-id {args.env_id}: {name} must be a flat Box, not {space}")
    if args.bound_action == "tanh" and not env.action_space.is_bounded():
        stop(f"--bound-action tanh: the actions of {args.env_id} have no finite bounds; --bound-action clip needs none")
    return actors


def run_folder(args: Args) -> Path:
    """runs_dir/run_name; by default the name is the environment, the algorithm, every non-default flag and the seed."""
    name = f"{args.env_id}__{ALGO}"
    for field in fields(args):
        flag, value = field.name.replace("_", "-"), getattr(args, field.name)
        if value != field.default and field.name not in ("env_id", "seed", *NOT_OF_THE_RUN):
            text = "x".join(map(str, value)) if isinstance(value, tuple) else value
            name += f"__{'' if value else 'no-'}{flag}" if isinstance(value, bool) else f"__{flag}={text}"
    return Path(args.runs_dir) / (args.run_name or f"{name}__seed{args.seed}".replace("/", "-").replace(":", "-"))


def save_checkpoint(args: Args, folder: Path, state: State) -> None:
    """Writes iter_000150.pt, the state in which iteration 150 begins. A process that is killed leaves no half of it."""
    parts = {name: part for name, part in vars(state).items() if name != "actors"}
    saved = {name: part.state_dict() if hasattr(part, "state_dict") else part for name, part in parts.items()}
    saved |= dict(algo=ALGO, args=asdict(args), rng=state.rng.bit_generator.state)
    path = folder / "checkpoints" / f"iter_{state.iteration:06d}.pt"
    torch.save(saved, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The checkpoint's dictionary: tensors and plain values, no code (weights_only)."""
    try:
        checkpoint = torch.load(path, weights_only=True)
    except PermissionError as error:
        stop(f"cannot read {path}: {error.strerror}")
    except Exception:  # a damaged file raises almost anything
        checkpoint = {}
    if "args" not in checkpoint or "script" in checkpoint:
        text = "is damaged, or older than these scripts; without it, the run continues from the checkpoint before"
        stop(f"{path} {text}")
    return checkpoint


def restore(state: State, checkpoint: dict[str, Any]) -> None:
    """Sets the state to that of the checkpoint."""
    for name, part in vars(state).items():
        if name == "rng":
            part.bit_generator.state = checkpoint[name]
        elif hasattr(part, "load_state_dict"):
            part.load_state_dict(checkpoint[name])
        elif name != "actors":
            setattr(state, name, checkpoint[name])


@contextlib.contextmanager
def open_run(args: Args, state: State) -> Iterator[SimpleNamespace]:
    """Creates or continues the run folder, locked while the context lasts. Yields what `record` writes to."""
    folder = run_folder(args)
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0, fallback_to_soft=False).acquire()  # a soft lock survives a kill
    except Timeout:
        stop(f"{folder} is in use by another process")
    except OSError as error:
        stop(f"cannot write the run folder {folder}: {error.strerror}")
    with lock:
        resume(args, folder, state)
        cut_progress(folder / "progress.csv", state.iteration)
        done, seconds = state.global_step, 0.1 if sys.stderr.isatty() else 30  # in a file, only now and then
        with (
            open(folder / "progress.csv", "a") as progress,
            SummaryWriter(folder, purge_step=done + 1) as tensorboard,
            tqdm(total=planned_steps(args), initial=done, unit=" steps", unit_scale=True, mininterval=seconds) as bar,
        ):
            files = dict(folder=folder, progress=progress, tensorboard=tensorboard, bar=bar)
            yield SimpleNamespace(**files, time=time.perf_counter(), episodes=0)


def resume(args: Args, folder: Path, state: State) -> None:
    """Sets the state to that of the newest checkpoint in the folder, or writes the first one of a new run."""
    if args.overwrite:
        for pattern in ("checkpoints/iter_*.pt", "events.out.tfevents.*"):
            for path in sorted(folder.glob(pattern), reverse=True):  # a kill leaves an earlier state of the old run
                path.unlink()
    saved = sorted(folder.glob("checkpoints/iter_*.pt"))
    if not saved:
        versions = {x.__name__: x.__version__ for x in (torch, gym, mujoco, np)} | dict(python=sys.version.split()[0])
        script = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
        config = dict(algo=ALGO, args=asdict(args), script=script, versions=versions)
        (folder / "config.json").write_text(json.dumps(config, indent=4))
        save_checkpoint(args, folder, state)
        print(f"{folder}: new", flush=True)
        return
    checkpoint = load_checkpoint(saved[-1])
    old, new = checkpoint["args"] | dict(algo=checkpoint["algo"]), asdict(args) | dict(algo=ALGO)
    names = [name for name in old | new if name not in NOT_OF_THE_RUN and old.get(name) != new.get(name)]
    if names:
        text = ", ".join(f"{name} was {old.get(name)}, is {new.get(name)}" for name in names)
        stop(f"{folder} holds another run: {text}; choose another --run-name, or --overwrite")
    restore(state, checkpoint)
    if state.global_step >= planned_steps(args):
        stop(f"{folder} is finished", 0)
    print(f"{folder}: continuing from iteration {state.iteration}", flush=True)


def cut_progress(path: Path, iterations: int) -> None:
    """Cuts progress.csv back to the iterations before the checkpoint. A row that was being written goes, too."""
    header, *lines = (path.read_text() if path.exists() else "").splitlines(keepends=True) or [""]
    rows = {line.split(",")[0]: line for line in lines if line.endswith("\n")}
    kept = {i: rows[str(i)] for i in range(iterations) if str(i) in rows}
    path.with_suffix(".tmp").write_text("".join([header, *kept.values()] if kept else []))
    path.with_suffix(".tmp").replace(path)
    if missing := sorted(set(range(iterations)) - kept.keys()):
        print(f"{path} lacks {len(missing)} of the iterations {missing[0]} to {missing[-1]}", file=sys.stderr)


def record(args: Args, run: SimpleNamespace, state: State, statistics: dict[str, float], episodes: list) -> None:
    """Logs an iteration to progress.csv, TensorBoard and the screen, and saves a checkpoint when it is time. Stops
    before a loss or a parameter that is not finite can be saved."""
    watched = [flat_parameters(part).sum() for part in vars(state).values() if isinstance(part, nn.Module)]
    watched += [x for name, x in statistics.items() if name.endswith("_loss")]
    if not all(map(math.isfinite, watched)):
        run.bar.close()
        stop(f"iteration {state.iteration - 1}: a loss or a parameter is not finite; not saved", 1)
    steps, started, run.time = state.global_step - run.bar.n, run.time, time.perf_counter()
    mean_return, mean_length = np.mean(episodes, axis=0).tolist() if episodes else ("", "")
    row = dict(iteration=state.iteration - 1, global_step=state.global_step, sps=round(steps / (run.time - started), 1))
    row |= dict(episodes=len(episodes), episodic_return=mean_return, episodic_length=mean_length, **statistics)
    if run.progress.tell() == 0:
        print(*row, sep=",", file=run.progress)
    print(*row.values(), sep=",", file=run.progress, flush=True)
    for name, x in list(row.items())[2:]:  # without iteration and global_step
        if x != "":
            group = "charts" if name not in statistics or name.endswith("_lr") else "losses"  # as in CleanRL
            run.tensorboard.add_scalar(f"{group}/{name}", x, state.global_step)
    if episodes:
        run.bar.set_postfix(episodic_return=f"{mean_return:.1f}", refresh=False)
    run.bar.update(steps)
    run.episodes += len(episodes)
    if state.global_step >= planned_steps(args) or state.iteration % args.checkpoint_every == 0:
        if run.episodes == 0 and state.iteration % args.checkpoint_every == 0:
            text = "no episode has ended since the last checkpoint, and now new ones begin; raise --checkpoint-every"
            run.bar.write(f"iteration {state.iteration}: {text}", file=sys.stderr)
        run.episodes = 0
        run.tensorboard.flush()
        save_checkpoint(args, run.folder, state)


def can_compile() -> bool:
    try:
        torch.compile(torch.neg, fullgraph=True, options={"cpp_wrapper": True})(torch.zeros(2))
        return True
    except Exception:
        return False


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    check_arguments(args)
    torch.set_num_threads(1)  # the networks are too small for more; many runs are many processes, one per core
    if args.compile and not can_compile():
        print("torch.compile does not work here (no C++ compiler?); continuing with --no-compile", file=sys.stderr)
        args = replace(args, compile=False)
    try:
        train(args)
    except KeyboardInterrupt:
        stop("interrupted; the same command, without --overwrite, continues this run", 130)


if __name__ == "__main__":
    sys.path.append(os.getcwd())  # where --env-id my_module:MyEnv-v0 looks for my_module.py
    main()
