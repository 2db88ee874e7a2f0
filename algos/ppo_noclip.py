# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "gymnasium[mujoco]==1.4.0", "mujoco==4.0.0", "numpy==2.4.6", "tyro==1.0.17",
#   "tensorboard==2.21.0", "tqdm==4.70.1"]
# ///
"""PPO-NoClip: PPO without the ratio clipping, with the nine code-level optimizations of "Implementation Matters in Deep
Policy Gradients" (Engstrom, Ilyas et al., ICLR 2020; "IM" below), each behind a flag, marked (1) to (9) where it acts.
Is it the clipping that makes PPO work (IM, section 5)? The defaults are PPO's but for policy_lr; IM's settings of
PPO-NoClip, environment by environment, stand in diagnostics/experiments.py (its table prints observation clips of 2.5
and 30; its numbers are of 10 and none).
"Released" is the code that the authors of IM published beside the paper.

    python algos/ppo_noclip.py                                  # Hopper-v5, 1M steps
    python algos/ppo_noclip.py --env-id Walker2d-v5 --seed 3    # another environment, another seed
    diff algos/ppo.py algos/ppo_noclip.py                       # what is missing

The same command again continues an interrupted run from its newest checkpoint, to the same bits.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import fcntl
import hashlib
import io
import json
import math
import os
import platform
import signal
import sys
import threading
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
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from torch import Tensor, nn

# scan: a loop that stays a loop when compiled. A prototype of torch's, but with it the 640 minibatch steps of PPO's
# iteration take 49 ms; as compiled single steps in a Python loop they take 105 to 129.
from torch._higher_order_ops.scan import scan
from torch.distributions import Independent, Normal, kl_divergence
from torch.func import functional_call, grad_and_value
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Args:
    env_id: str = "Hopper-v5"  # any with flat Box observations and actions; module:Env-v0 imports your module
    total_timesteps: int = 1_000_000  # environment steps in all; rounded down to whole iterations
    seed: int = 1  # seed of everything random

    # The nine optimizations, in IM's order.
    value_clip: bool = True  # (1) clip the change of the value prediction in the value loss
    value_clip_eps: float = 0.2  # largest change of a value prediction that (1) lets count
    reward_scale: bool = True  # (2) divide rewards by a running standard deviation
    reward_scale_by: Literal["returns", "rewards"] = "returns"  # (2) std of discounted returns; rewards: standardized
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
    value_grad_clip: bool = True  # (9) clip the l2 norm of the value network's gradient; released: never
    max_grad_norm: float = 0.5  # largest gradient norm that (9) lets through

    num_envs: int = 1  # environments, stepped one after another
    num_steps: int = 2048  # steps of each environment in an iteration
    num_minibatches: int = 32  # minibatches that an epoch divides the batch into
    policy_epochs: int = 10  # passes of the policy update over the batch
    value_epochs: int = 10  # passes of the value update over the batch
    # IM's for Hopper. Without the ratio's clipping it, (4) and (9) are all that limits a step.
    policy_lr: float = 6e-5  # Adam learning rate of the policy
    value_lr: float = 2.5e-4  # Adam learning rate of the value network
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalized advantage estimation
    entropy_coef: float = 0.0  # coefficient of the entropy in the objective; may be negative
    policy_hidden: tuple[int, ...] = (64, 64)  # sizes of the policy's hidden layers
    value_hidden: tuple[int, ...] = (64, 64)  # sizes of the value network's hidden layers
    bootstrap_truncation: bool = True  # a time limit cuts an episode without ending its return; off: a terminal state
    squash_action: bool = False  # map actions into their bounds by tanh, between policy and environment

    compile: bool = True  # compile the updates: 5 to 25 seconds once, then they are 25 times faster
    runs_dir: str = "runs"  # folder of all runs
    run_name: str = ""  # folder of this run inside runs_dir; default: environment, algorithm, non-default flags, seed
    checkpoint_every: int = 25  # iterations between checkpoints
    overwrite: bool = False  # start anew, deleting the checkpoints and logs of an earlier run in the run folder

    def __post_init__(self) -> None:
        check_fields(self, seed=SEED, gamma=SHARE, gae_lambda=SHARE, entropy_coef=ANY)


# Loop ----------------------------------------------------------------------------------------------------------------


def train(args: Args) -> None:
    """Trains to the end, from the newest checkpoint in the run folder or else from the beginning."""
    state = initial_state(args, make_actors(args))
    with open_run(args, state) as run:
        while state.global_step < planned_steps(args):
            experience = rollout(args, state)
            batch = estimate_advantages(args, state, experience)
            statistics = update(args, state, batch)
            record(args, run, state, statistics, experience["episodes"])


def planned_steps(args: Args) -> int:
    """Environment steps of a run: total_timesteps, rounded down to a multiple of num_envs * num_steps."""
    return args.total_timesteps - args.total_timesteps % (args.num_envs * args.num_steps)


# Rollout -------------------------------------------------------------------------------------------------------------


def rollout(args: Args, state: State) -> dict[str, Any]:
    """Steps one actor after another num_steps times with the state's policy; its episode goes on in the next rollout.

    Returns arrays over all B = num_envs * num_steps pairs, actor after actor: obs [B, obs] as the networks see them,
    actions [B, action], rewards [B] scaled and clipped, terminations [B], truncations [B] (a time limit, or the
    rollout's own cut end), final_obs [number of truncations, obs]: the observation after each truncated step; and
    episodes: raw return and length of each episode that ended."""
    obs, actions, rewards, terminations, truncations, final_obs, episodes = [], [], [], [], [], [], []
    policy_mean = numpy_forward(state.policy.mean, numpy_activation(args))
    std = state.policy.log_std.detach().exp().numpy()
    # One whole segment after another: on one core, stepping the actors side by side would gain nothing.
    for actor in state.actors:
        if actor.obs is None:
            first_obs, _ = actor.env.reset(seed=int(state.rng.integers(2**31)))
            actor.obs = observe(args, state.obs_stats, first_obs)
        noise = std * state.rng.standard_normal((args.num_steps, len(std)), dtype=np.float32)
        for t in range(args.num_steps):
            # Only the action is needed now; values and log-probabilities come from one pass over the whole batch.
            action = policy_mean(actor.obs) + noise[t]
            obs.append(actor.obs)
            actions.append(action)
            # Not clipped: the density is that of the action as it was drawn. MuJoCo limits the controls itself, but the
            # reward's control cost is that of the whole action: of Humanoid's first ones 8 times as large.
            env_action = squash(actor.env, action) if args.squash_action else action
            next_obs, reward, terminated, truncated, _ = actor.env.step(env_action)
            actor.obs = observe(args, state.obs_stats, next_obs)
            actor.episode_return += float(reward)
            actor.episode_length += 1
            rewards.append(scale_reward(args, state.reward_stats, actor, float(reward)))

            # A time limit is no terminal state: what would have followed is worth V of the true final observation
            # (Pardo et al. 2018). Released: it is one, which is --no-bootstrap-truncation here.
            terminations.append(terminated or (truncated and not args.bootstrap_truncation))
            ended = terminated or truncated
            # The rollout's end cuts the same way. Released: the environment is reset there, and V(s_T) := V(s_{T-1}).
            truncations.append((ended or t == args.num_steps - 1) and not terminations[-1])
            if truncations[-1]:
                final_obs.append(actor.obs)
            if ended:
                # All of them count; released: not one that ends on the batch's last step.
                episodes.append((actor.episode_return, actor.episode_length))
                first_obs, _ = actor.env.reset()
                actor.obs = observe(args, state.obs_stats, first_obs)
                # R of (2) restarts with the episode, as released; in IM's Algorithm 1 as printed it goes on.
                actor.episode_return, actor.episode_length, actor.discounted_return = 0.0, 0, 0.0

    arrays = dict(rewards=np.array(rewards), terminations=np.array(terminations), truncations=np.array(truncations))
    final_obs = np.array(final_obs, np.float32).reshape(-1, len(obs[0]))  # two dimensions also where there is none
    return arrays | dict(obs=np.array(obs), actions=np.array(actions), final_obs=final_obs, episodes=episodes)


def numpy_forward(network: nn.Sequential, activation: Callable) -> Callable[[np.ndarray], np.ndarray]:
    """The network as a function of one observation, [in] -> [out]. Written a second time, in numpy, because a pass of
    a single row costs 46 to 52 us in torch and 5 here, in a step of about 100."""
    *hidden, (out_weight, out_bias) = [(x.weight.detach().numpy(), x.bias.detach().numpy()) for x in network[::2]]

    def forward(x: np.ndarray) -> np.ndarray:
        for weight, bias in hidden:
            x = activation(weight.dot(x) + bias)
        return out_weight.dot(x) + out_bias

    return forward


def numpy_activation(args: Args) -> Callable[[np.ndarray], np.ndarray]:
    relu, silu = lambda x: np.maximum(x, 0), lambda x: x * (1 + np.tanh(x / 2)) / 2
    return np.tanh if args.tanh else dict(relu=relu, silu=silu)[args.activation_without_tanh]  # (8)


def observe(args: Args, stats: RunningStats, obs: np.ndarray) -> np.ndarray:
    """Raw observation [obs] -> what the networks see, float32. The statistics include it."""
    if args.obs_norm:  # (6)
        stats.push(obs)
        obs = (obs - stats.mean) / (stats.std + 1e-8)
    if args.obs_clip:  # (7) also without (6); released: a part of it
        obs = obs.clip(-args.obs_clip_range, args.obs_clip_range)
    return obs.astype(np.float32)


def scale_reward(args: Args, stats: RunningStats, actor: Actor, reward: float) -> float:
    """Raw reward of the actor's step -> what is learned from. The statistics include it."""
    if args.reward_scale:  # (2)
        actor.discounted_return = args.gamma * actor.discounted_return + reward
        if args.reward_scale_by == "returns":
            stats.push(actor.discounted_return)
            reward = reward / (stats.std + 1e-8)  # not centered: a shift would pay for longer or shorter episodes
        else:
            stats.push(reward)
            reward = (reward - stats.mean) / (stats.std + 1e-8) + stats.mean  # the mean is put back, as released
    if args.reward_clip:  # (5) also without (2); released: a part of it
        reward = min(max(reward, -args.reward_clip_range), args.reward_clip_range)
    return reward


def squash(env: gym.Env, action: np.ndarray) -> np.ndarray:
    """The policy's action -> one within the bounds. Ratios and KL are those of the Gaussian before this fixed map."""
    low, high = env.action_space.low, env.action_space.high
    return low + (high - low) * 0.5 * (np.tanh(action) + 1)


# Advantages ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def estimate_advantages(args: Args, state: State, experience: dict[str, Any]) -> dict[str, Tensor]:
    """A rollout -> the batch that the losses and `update` take, tensors over its B pairs: obs [B, obs], actions
    [B, action]; of the policy that acted old_means, old_stds [B, action] and old_log_probs [B]; old_values [B] of the
    value network before its fit; advantages [B] by GAE (Schulman et al. 2016, eq. 16), value_targets [B]."""
    obs, actions = torch.from_numpy(experience["obs"]), torch.from_numpy(experience["actions"])
    terminations, truncations = experience["terminations"], experience["truncations"]
    old_policy = state.policy(obs)
    old_values = state.value(obs)

    # The value after each step is that of the next row, but where an episode or a segment ends. Every segment's last
    # row is an end, so that the next actor's first row, which follows it, is never taken for its successor.
    values = old_values.double().numpy()  # float64: the recursion adds up rounding; numpy: in torch it would be slow
    next_values = np.append(values[1:], 0.0)
    next_values[truncations] = state.value(torch.from_numpy(experience["final_obs"])).numpy()
    next_values[terminations] = 0.0
    deltas = experience["rewards"] + args.gamma * next_values - values
    sums = discounted_sums(deltas, terminations | truncations, args.gamma * args.gae_lambda)
    advantages = torch.from_numpy(sums).float()

    batch = dict(obs=obs, actions=actions, advantages=advantages, value_targets=advantages + old_values)
    batch |= dict(old_means=old_policy.mean, old_stds=old_policy.stddev, old_values=old_values)
    batch |= dict(old_log_probs=old_policy.log_prob(actions))
    if args.squash_action:
        # One draw for the whole update: inside the compiled loop there are no random numbers.
        batch["entropy_noise"] = torch.from_numpy(state.rng.standard_normal(actions.shape, dtype=np.float32))
    return batch


def discounted_sums(x: np.ndarray, ends: np.ndarray, decay: float) -> np.ndarray:
    """Sum over l >= 0 of decay^l x[t + l] for every t, both [B]; no sum goes beyond a step where ends [B] is True."""
    total, sums = 0.0, []
    for now, end in zip(reversed(x.tolist()), reversed(ends.tolist())):  # Python floats: no array per step
        total = now if end else now + decay * total
        sums.append(total)
    return np.array(sums[::-1])


# Update --------------------------------------------------------------------------------------------------------------


def update(args: Args, state: State, batch: dict[str, Tensor]) -> dict[str, float]:
    """One iteration's whole update: value_epochs passes of the value network over the batch, then policy_epochs of the
    policy. Changes the state in place and returns the iteration's statistics."""
    lr_fraction = 1 - state.global_step / planned_steps(args) if args.anneal_lr else 1.0  # (4)
    policy_lr, value_lr = args.policy_lr * lr_fraction, args.value_lr * lr_fraction
    # (9) IM's prose and baselines clip the norm of both gradients together, released the policy's alone (which is
    # --no-value-grad-clip); here each network's own, since each is stepped on its own.
    policy_max_norm = args.max_grad_norm if args.grad_clip else math.inf
    value_max_norm = args.max_grad_norm if args.value_grad_clip else math.inf

    # Value network first, as released. The advantages are fixed already, so neither fit sees the other's result.
    rows = minibatch_rows(args, state.rng, len(batch["obs"]), args.value_epochs)
    v_losses, v_norms = fit(args, value_loss, state.value, state.value_adam, batch, rows, value_lr, value_max_norm)
    rows = minibatch_rows(args, state.rng, len(batch["obs"]), args.policy_epochs)
    p_losses, p_norms = fit(args, policy_loss, state.policy, state.policy_adam, batch, rows, policy_lr, policy_max_norm)
    state.iteration += 1
    state.global_step += len(batch["obs"])

    pi, ratios, kls = compare_policies(state.policy, batch)
    statistics = dict(
        policy_loss=p_losses.mean(),
        value_loss=v_losses.mean(),
        entropy=action_entropy(args, pi, batch).mean(),
        mean_kl=kls.mean(),
        max_kl=kls.max(),
        max_ratio=ratios.max(),
        # Of the critic before this fit.
        explained_variance=1 - (batch["value_targets"] - batch["old_values"]).var() / batch["value_targets"].var(),
        policy_lr=policy_lr,
        value_lr=value_lr,
        policy_grad_norm=p_norms.mean(),
        value_grad_norm=v_norms.mean(),
        policy_grads_clipped=(p_norms > policy_max_norm).float().mean(),
        value_grads_clipped=(v_norms > value_max_norm).float().mean(),
    )
    return {name: float(x) for name, x in statistics.items()}


def value_loss(args: Args, value: Callable, batch: dict[str, Tensor]) -> Tensor:
    """What the value step minimizes: the mean squared error to the value targets, over all steps (released: all but the
    terminal ones). `value` maps observations [B, obs] to values [B]: the network, or it with other parameters."""
    values, old_values, targets = value(batch["obs"]), batch["old_values"], batch["value_targets"]
    losses = (values - targets) ** 2
    if args.value_clip:  # (1) with an eps of its own; IM's prose takes the ratio's, though values have other units
        clipped_values = old_values + (values - old_values).clamp(-args.value_clip_eps, args.value_clip_eps)
        # The larger loss, as released and in baselines: clipping must not hide an error. IM's formula prints min.
        losses = torch.maximum(losses, (clipped_values - targets) ** 2)
    return losses.mean()


def policy_loss(args: Args, policy: Callable, batch: dict[str, Tensor]) -> Tensor:
    return -objective(args, policy, batch)


def objective(args: Args, policy: Callable, batch: dict[str, Tensor]) -> Tensor:
    """What the policy step maximizes: the unclipped surrogate (Schulman et al. 2017, eq. 6) plus the entropy bonus.
    `policy` maps observations [B, obs] to distributions of actions: the network, or it with other parameters."""
    pi = policy(batch["obs"])
    ratios = torch.exp(pi.log_prob(batch["actions"]) - batch["old_log_probs"])
    # Normalized over the minibatch: the step's size then does not depend on the rewards' scale.
    advantages = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
    surrogate = (ratios * advantages).mean()
    return surrogate + args.entropy_coef * action_entropy(args, pi, batch).mean()


def action_entropy(args: Args, pi: Independent, batch: dict[str, Tensor]) -> Tensor:
    """Entropy [B] of the policy's actions. Squashed, it is the Gaussian's plus E[ln d tanh(u) / du] (the bounds' scale
    left out): without that term the bonus would reward standard deviations without bound."""
    if not args.squash_action:
        return pi.entropy()
    u = pi.mean + pi.stddev * batch["entropy_noise"]  # one sample a state, reparametrized
    return pi.entropy() + (2 * (math.log(2) - u - nn.functional.softplus(-2 * u))).sum(-1)  # ln(1 - tanh(u)^2), stable


def minibatch_rows(args: Args, rng: np.random.Generator, batch_size: int, epochs: int) -> Tensor:
    """Row numbers [steps, minibatch]: every epoch shuffles the batch and deals it out, but for a rest."""
    size = batch_size // args.num_minibatches
    shuffles = [rng.permutation(batch_size)[: size * args.num_minibatches] for _ in range(epochs)]
    return torch.from_numpy(np.stack(shuffles).reshape(-1, size))


def fit(
    args: Args, loss: Callable, network: nn.Module, adam: dict, batch: dict, rows: Tensor, lr: float, max_norm: float
) -> tuple[Tensor, Tensor]:
    """Fits the network and its Adam state in place: one step down loss(args, network, minibatch) for each minibatch of
    the batch, their row numbers in rows [steps, minibatch], its gradient clipped to the norm max_norm. Returns the
    losses and the gradients' norms before that, both [steps]."""
    lr = torch.tensor(lr)  # a float would be a constant of the compiled code, compiled anew in every iteration

    def loss_of(parameters: Tensor, minibatch: dict[str, Tensor]) -> Tensor:
        return loss(args, with_parameters(network, parameters), minibatch)

    # A function of tensors alone, parameters as one flat vector: so the whole loop can be compiled. PPO's two fits take
    # 49 ms; with loss.backward(), nn.utils.clip_grad_norm_ and torch.optim.Adam, which give the same, they take 585.
    def step(carry: tuple, picked: Tensor) -> tuple[tuple, tuple]:
        parameters, adam = carry
        minibatch = {name: x[picked] for name, x in batch.items()}
        gradient, minibatch_loss = grad_and_value(loss_of)(parameters, minibatch)
        norm = gradient.norm()
        gradient = gradient * (max_norm / (norm + 1e-6)).clamp(max=1)  # (9)
        return adam_step(parameters, gradient, adam, lr), (minibatch_loss, norm)

    loop = compiled_loop if args.compile else minibatch_loop
    (parameters, new_adam), (losses, norms) = loop(step, (flat_parameters(network), adam), rows)
    nn.utils.vector_to_parameters(parameters, network.parameters())
    adam.update(new_adam)
    return losses, norms


def with_parameters(network: nn.Module, parameters: Tensor) -> Callable:
    """The network as a function of observations, its parameters taken from one flat vector [P]."""
    named = dict(network.named_parameters())
    parts = parameters.split([p.numel() for p in named.values()])
    return partial(functional_call, network, {k: x.view(p.shape) for (k, p), x in zip(named.items(), parts)})


def flat_parameters(network: nn.Module) -> Tensor:
    """The network's parameters as one vector [P]."""
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def adam_step(parameters: Tensor, gradient: Tensor, adam: dict[str, Tensor], lr: Tensor) -> tuple[Tensor, dict]:
    """One step of Adam down the gradient [P] (Kingma & Ba 2015, Algorithm 1), with eps 1e-5 as in baselines. Written
    out because torch's changes tensors in place, which a compiled loop cannot. The bias corrections 1 - beta^t are kept
    as what they are, the same moving averages of the constant 1: 1 - 0.999^t would lose digits in float32."""
    exp_avg, weight = 0.9 * adam["exp_avg"] + 0.1 * gradient, 0.9 * adam["weight"] + 0.1
    exp_avg_sq, weight_sq = 0.999 * adam["exp_avg_sq"] + 0.001 * gradient**2, 0.999 * adam["weight_sq"] + 0.001
    parameters = parameters - lr * (exp_avg / weight) / (torch.sqrt(exp_avg_sq / weight_sq) + 1e-5)
    return parameters, dict(exp_avg=exp_avg, exp_avg_sq=exp_avg_sq, weight=weight, weight_sq=weight_sq)


def minibatch_loop(step: Callable, carry: Any, rows: Tensor) -> tuple[Any, tuple[Tensor, ...]]:
    """carry, outputs = step(carry, row) for one row after another -> last carry, each output of all steps [steps]."""
    if torch.compiler.is_compiling():
        return scan(step, carry, rows)  # the loop below, which torch.compile would unroll into 320 steps
    outputs = []
    for row in rows:
        carry, output = step(carry, row)
        outputs.append(output)
    return carry, tuple(map(torch.stack, zip(*outputs)))


# fullgraph: a part that silently stayed in Python would cost the whole gain. cpp_wrapper: C++ calls the kernels.
compiled_loop = torch.compile(minibatch_loop, fullgraph=True, dynamic=False, options={"cpp_wrapper": True})


@torch.no_grad()
def compare_policies(policy: Policy, batch: dict[str, Tensor]) -> tuple[Independent, Tensor, Tensor]:
    """The policy against the one that collected the batch: its distributions, ratios [B], KL(old || new) [B], nats."""
    old, new = gaussian(batch["old_means"], batch["old_stds"]), policy(batch["obs"])
    return new, torch.exp(new.log_prob(batch["actions"]) - batch["old_log_probs"]), kl_divergence(old, new)


# State and networks --------------------------------------------------------------------------------------------------


@dataclass
class State:
    """Everything that training changes. A checkpoint holds all of it."""

    actors: list[Actor]
    rng: np.random.Generator
    policy: Policy
    value: Value
    policy_adam: dict[str, Tensor]  # see adam_init
    value_adam: dict[str, Tensor]
    obs_stats: RunningStats  # of (6)
    reward_stats: RunningStats  # of (2)
    iteration: int = 0  # iterations done
    global_step: int = 0  # environment steps done


@dataclass
class Actor:
    """An environment and its unfinished episode."""

    env: gym.Env
    obs: np.ndarray | None = None  # [obs] current observation as the networks see it; None: to be reset
    episode_return: float = 0.0  # sum of the raw rewards
    episode_length: int = 0
    discounted_return: float = 0.0  # R of (2)


class RunningStats:
    """Mean and unbiased standard deviation of a stream of samples (Welford's algorithm), in float64, in which a
    millionth sample still counts. While `frozen` they stay as they are: how diagnostics look without touching."""

    def __init__(self, shape: tuple[int, ...] = ()):
        self.frozen = False
        self.count = 0
        self.mean, self.sum_sq = (np.zeros(shape), np.zeros(shape)) if shape else (0.0, 0.0)  # floats are faster

    def push(self, x: Any) -> None:
        """Adds a sample, of the statistics' shape."""
        if self.frozen:
            return
        self.count += 1
        old_deviation = x - self.mean
        self.mean = self.mean + old_deviation / self.count
        self.sum_sq = self.sum_sq + old_deviation * (x - self.mean)

    @property
    def std(self) -> Any:
        """With fewer than two samples |mean|: otherwise the first reward of a run would become enormous."""
        return (self.sum_sq / (self.count - 1)) ** 0.5 if self.count > 1 else abs(self.mean)

    def state_dict(self) -> dict[str, Any]:
        saved = dict(count=self.count, mean=self.mean, sum_sq=self.sum_sq)
        return {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in saved.items()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        vars(self).update({name: x.numpy() if isinstance(x, Tensor) else x for name, x in saved.items()})


def initial_state(args: Args, actors: list[Actor]) -> State:
    """The state in which iteration 0 begins."""
    env, rng = actors[0].env, np.random.default_rng(args.seed)
    [obs_size], [action_size] = env.observation_space.shape, env.action_space.shape
    policy, value = make_networks(args, obs_size, action_size)
    adams = adam_init(flat_parameters(policy)), adam_init(flat_parameters(value))
    return State(actors, rng, policy, value, *adams, RunningStats((obs_size,)), RunningStats())


def adam_init(parameters: Tensor) -> dict[str, Tensor]:
    """State of Adam before its first step on the parameters [P]."""
    zeros, zero = torch.zeros_like(parameters), torch.zeros(())
    return dict(exp_avg=zeros, exp_avg_sq=zeros.clone(), weight=zero, weight_sq=zero.clone())


def make_networks(args: Args, obs_size: int, action_size: int) -> tuple[Policy, Value]:
    """Policy and value network, initialized from the seed."""
    activation = nn.Tanh if args.tanh else {"relu": nn.ReLU, "silu": nn.SiLU}[args.activation_without_tanh]  # (8)
    policy = Policy(obs_size, args.policy_hidden, action_size, activation)
    value = Value(obs_size, args.value_hidden, activation)
    generator = torch.Generator().manual_seed(args.seed)
    # The policy's small output gain makes its first actions almost pure noise, around 0.
    for layers, output_gain in ((policy.mean, 0.01), (value.value, 1.0)):
        for layer in layers[::2]:
            nn.init.zeros_(layer.bias)
            if args.orthogonal_init:  # (3)
                gain = output_gain if layer is layers[-1] else math.sqrt(2)
                nn.init.orthogonal_(layer.weight, gain, generator=generator)
            else:
                nn.init.xavier_uniform_(layer.weight, generator=generator)
    return policy, value


class Policy(nn.Module):
    """Gaussian policy whose standard deviation does not depend on the state."""

    def __init__(self, obs_size: int, hidden: tuple[int, ...], action_size: int, activation: type[nn.Module]):
        super().__init__()
        self.mean = mlp((obs_size, *hidden, action_size), activation)
        self.log_std = nn.Parameter(torch.zeros(action_size))

    def forward(self, obs: Tensor) -> Independent:
        """Observations [B, obs] -> distribution of actions [B, action]."""
        means = self.mean(obs)
        return gaussian(means, self.log_std.exp().expand_as(means))


class Value(nn.Module):
    def __init__(self, obs_size: int, hidden: tuple[int, ...], activation: type[nn.Module]):
        super().__init__()
        self.value = mlp((obs_size, *hidden, 1), activation)

    def forward(self, obs: Tensor) -> Tensor:
        """Observations [B, obs] -> values [B]."""
        return self.value(obs).squeeze(-1)


def mlp(sizes: tuple[int, ...], activation: type[nn.Module]) -> nn.Sequential:
    """Linear layers of the given sizes, the activation between them."""
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), activation())]
    return nn.Sequential(*layers[:-1])


def gaussian(means: Tensor, stds: Tensor) -> Independent:
    """Diagonal Gaussians over actions [B, action]. Unvalidated: checks of the values cannot be compiled."""
    return Independent(Normal(means, stds, validate_args=False), 1, validate_args=False)


# =====================================================================================================================
# Bookkeeping, the same in every script: arguments, environments, checkpoints, run folder. No algorithm below.
# =====================================================================================================================

FORMAT = 2  # of the checkpoints
SCRIPT = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
NOT_OF_THE_RUN = ("runs_dir", "run_name", "overwrite", "checkpoint_every")  # may differ when a run continues
COLUMNS = """
    iteration global_step sps episodes episodic_return episodic_length policy_loss value_loss entropy mean_kl max_kl
    max_ratio clip_fraction explained_variance policy_lr value_lr policy_grad_norm value_grad_norm policy_grads_clipped
    value_grads_clipped
""".split()  # of progress.csv, in every script; what else an algorithm measures stands behind them

POSITIVE = "must be greater than 0", lambda x: x > 0
SHARE = "must lie in [0, 1]", lambda x: 0 <= x <= 1
SEED = "must lie in [0, 2^64)", lambda x: 0 <= x < 2**64
ANY = "must be a number", lambda x: True


def check_fields(args: Args, **rules: tuple[str, Callable]) -> None:
    """Refuses what tyro lets through, by a ValueError that tyro prints: finite numbers that keep their rule."""
    for name, value in vars(args).items():
        text, holds = rules.get(name, POSITIVE)
        numbers = value if isinstance(value, tuple) else (value,)
        if isinstance(value, bool | str | None):
            continue
        if not numbers or not all(holds(x) and abs(x) <= torch.finfo(torch.float32).max for x in numbers):
            raise ValueError(f"--{name.replace('_', '-')} {value}: {text}, and finite in single precision")


def stop(message: str, status: int = 2) -> NoReturn:
    """Ends the program with one line on standard error; status 2: bad input, 1: training failed."""
    print(f"{Path(__file__).name}: {message}", file=sys.stderr)
    raise SystemExit(status)


def make_actors(args: Args) -> list[Actor]:
    """The environments, not yet reset; stops at an unknown id and at spaces that the networks cannot serve."""
    mujoco.set_mju_user_warning(lambda _: None)  # they would fill stderr, and MUJOCO_LOG.TXT in the working directory
    try:
        actors = [Actor(gym.make(args.env_id, disable_env_checker=True)) for _ in range(args.num_envs)]
    except (gym.error.Error, ImportError, TypeError, ValueError) as error:
        stop(f"--env-id {args.env_id}: {' '.join(str(error).split())}")
    env = actors[0].env
    for name, space in (("observations", env.observation_space), ("actions", env.action_space)):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            stop(f"--env-id {args.env_id}: {name} must be a flat Box, not {space}")
    if args.squash_action and not env.action_space.is_bounded():
        stop(f"--squash-action: the actions of {args.env_id} have no finite bounds")
    return actors


def pack(part: Any) -> Any:
    """A part of the training state -> tensors and plain values, all that torch.load(weights_only=True) takes."""
    if isinstance(part, np.random.Generator):
        return part.bit_generator.state
    if isinstance(part, list):
        return [pack_actor(actor) for actor in part]
    return part.state_dict() if hasattr(part, "state_dict") else part


def pack_actor(actor: Actor) -> dict[str, Any]:
    """An actor and the exact state of its simulator; of an environment that may have other state, and before the first
    reset, obs is None, so that a new episode begins."""
    env, saved = actor.env.unwrapped, vars(actor) | dict(env=None)
    if actor.obs is None or not has_only_physics(actor.env):
        return saved | dict(obs=None)
    physics = torch.empty(mujoco.mj_stateSize(env.model, mujoco.mjtState.mjSTATE_INTEGRATION), dtype=torch.float64)
    mujoco.mj_getState(env.model, env.data, physics.numpy(), mujoco.mjtState.mjSTATE_INTEGRATION)
    # Ant's and Humanoid's rewards read positions that the last step left behind and that are not part of that state.
    xpos, xipos = torch.tensor(env.data.xpos), torch.tensor(env.data.xipos)
    saved["env"] = dict(physics=physics, xpos=xpos, xipos=xipos, rng=pack(env.np_random))
    return saved | dict(obs=torch.from_numpy(actor.obs))


def has_only_physics(env: gym.Env) -> bool:
    """Whether the simulator's state is all there is to restore: in Gymnasium's MuJoCo environments. A class or wrapper
    of one's own may also count steps or move a goal, and that would silently be lost."""
    while isinstance(env, TimeLimit | OrderEnforcing):
        env = env.env
    return type(env).__module__.startswith("gymnasium.envs.mujoco.")


def restore(state: State, checkpoint: dict[str, Any]) -> None:
    """Puts a state where the checkpoint was."""
    for name, part in vars(state).items():
        if isinstance(part, np.random.Generator):
            part.bit_generator.state = checkpoint[name]
        elif isinstance(part, list):
            for actor, saved in zip(part, checkpoint[name]):
                restore_actor(actor, saved)
        elif hasattr(part, "load_state_dict"):
            part.load_state_dict(checkpoint[name])
        else:
            setattr(state, name, checkpoint[name])


def restore_actor(actor: Actor, saved: dict[str, Any]) -> None:
    if saved["obs"] is None:
        return
    env, packed = actor.env.unwrapped, saved["env"]
    actor.env.reset()
    env.np_random.bit_generator.state = packed["rng"]
    mujoco.mj_setState(env.model, env.data, packed["physics"].numpy(), mujoco.mjtState.mjSTATE_INTEGRATION)
    env.data.xpos[:], env.data.xipos[:] = packed["xpos"].numpy(), packed["xipos"].numpy()
    actor.env.set_wrapper_attr("_elapsed_steps", saved["episode_length"])  # of the time limit
    vars(actor).update(saved | dict(env=actor.env, obs=saved["obs"].numpy()))


def identity(args: Args) -> dict[str, Any]:
    """What a checkpoint says of its run: a run continues to the same bits where none of it differs."""
    versions = {x.__name__: str(x.__version__) for x in (torch, gym, mujoco, np)}
    versions |= dict(python=platform.python_version())
    return dict(format=FORMAT, algo=Path(__file__).stem, args=asdict(args), script=SCRIPT, versions=versions)


def save_checkpoint(args: Args, folder: Path, state: State) -> None:
    """Writes iter_000150.pt, the state in which iteration 150 begins, whole or not at all."""
    path, buffer = folder / "checkpoints" / f"iter_{state.iteration:06d}.pt", io.BytesIO()
    torch.save(identity(args) | {name: pack(part) for name, part in vars(state).items()}, buffer)
    path.with_suffix(".tmp").write_bytes(buffer.getvalue())
    path.with_suffix(".tmp").replace(path)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The checkpoint's dictionary; stops where the file does not hold one."""
    try:
        checkpoint = torch.load(path, weights_only=True)  # a checkpoint from elsewhere must not bring code with it
    except Exception:  # a damaged file raises almost anything
        checkpoint = None
    if not isinstance(checkpoint, dict) or checkpoint.get("format") != FORMAT:
        stop(f"{path} is damaged or no checkpoint of format {FORMAT}; without it, the run continues from an older one")
    return checkpoint


def default_run_name(args: Args) -> str:
    """Environment, algorithm, every non-default flag, seed; where that grows too long, a hash of the flags."""
    flags, start, end = "", f"{args.env_id}__{Path(__file__).stem}", f"__seed{args.seed}"
    for field in fields(args):
        name, value = field.name.replace("_", "-"), getattr(args, field.name)
        # compile depends on the machine: it is recorded, but no part of the name.
        if value != field.default and field.name not in ("env_id", "seed", "compile", *NOT_OF_THE_RUN):
            text = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
            flags += {"True": f"__{name}", "False": f"__no-{name}"}.get(text, f"__{name}={text}")
    if len(start + flags + end) > 150:
        flags = f"__{hashlib.sha256(flags.encode()).hexdigest()[:12]}"
    return (start + flags + end).replace("/", "-").replace(":", "-")


def check_identity(args: Args, folder: Path, checkpoint: dict[str, Any]) -> None:
    """Stops where the folder holds another run, or a finished one; says what else has changed since the checkpoint."""

    def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
        names = [name for name in old | new if name not in NOT_OF_THE_RUN and old.get(name) != new.get(name)]
        return [f"{name} was {old.get(name)}, is {new.get(name)}" for name in names]

    def code(x: dict[str, Any]) -> dict[str, Any]:
        return x["versions"] | dict(script=x["script"][:8], compile=x["args"].pop("compile"))

    old, new = checkpoint, identity(args)
    changed = differences(code(old), code(new))
    if other := differences(old["args"] | dict(algo=old["algo"]), new["args"] | dict(algo=new["algo"])):
        stop(f"{folder} holds another run: {', '.join(other)}; choose another --run-name, or --overwrite")
    if checkpoint["global_step"] >= planned_steps(args):
        stop("; changed since: ".join([f"{folder} is finished", *changed]), 0)
    if changed:
        print(f"{', '.join(changed)}: from here on not the bits of an uninterrupted run", file=sys.stderr)


@contextlib.contextmanager
def open_run(args: Args, state: State) -> Iterator[SimpleNamespace]:
    """Creates or continues the run folder, locked while the context lasts; where it has a checkpoint, puts the initial
    state there. Yields what `record` writes to."""
    folder = Path(args.runs_dir) / (args.run_name or default_run_name(args))
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        progress = open(folder / "progress.csv", "a+", newline="")
    except OSError as error:
        stop(f"cannot write the run folder {folder}: {error.strerror}")
    with progress:
        try:
            fcntl.flock(progress, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stop(f"{folder} is in use by another process")
        except OSError as error:  # a network's file system without locks
            print(f"{folder}: {error.strerror}; take care to start this run only once", file=sys.stderr)
        checkpoints = sorted(folder.glob("checkpoints/iter_*.pt"))
        if checkpoints and not args.overwrite:
            checkpoint = load_checkpoint(checkpoints[-1])
            check_identity(args, folder, checkpoint)
            try:
                restore(state, checkpoint)
            except (KeyError, RuntimeError, ValueError) as error:  # networks or State were edited
                text = " ".join(str(error).split())
                stop(f"{folder} does not fit this script ({text}); choose another --run-name, or --overwrite")
            print(f"{folder}: continuing from iteration {state.iteration}", flush=True)
            if state.iteration > 0 and any(actor.obs is None for actor in state.actors):
                print("not one of Gymnasium's MuJoCo environments: new episodes, not the same bits", file=sys.stderr)
        else:
            for path in [*checkpoints, *folder.glob("events.out.tfevents.*")]:
                path.unlink()
            (folder / "config.json").write_text(json.dumps(identity(args), indent=4) + "\n")
            save_checkpoint(args, folder, state)
            print(f"{folder}: {planned_steps(args):,} steps", flush=True)
        progress.seek(0)
        for _ in range(state.iteration + 1 if state.iteration else 0):  # the header and a row an iteration
            progress.readline()
        progress.truncate(progress.tell())
        done, seconds = state.global_step, 0.1 if sys.stderr.isatty() else 30  # in a file, a bar now and then
        bar = tqdm(total=planned_steps(args), initial=done, unit=" steps", unit_scale=True, mininterval=seconds)
        with SummaryWriter(folder, purge_step=done + 1) as tensorboard, bar:
            files = dict(folder=folder, progress=progress, tensorboard=tensorboard, bar=bar)
            yield SimpleNamespace(**files, last=(done, time.perf_counter()))


def record(args: Args, run: SimpleNamespace, state: State, statistics: dict[str, float], episodes: list) -> None:
    """Logs an iteration to progress.csv, TensorBoard and the screen, and saves a checkpoint when it is time. Stops at a
    non-finite state, before it can be saved."""
    parts = [pack(part) for name, part in vars(state).items() if name != "actors"]
    watched = [x for part in parts for x in (part.values() if isinstance(part, dict) else [part])]
    watched += [x for name, x in statistics.items() if name.endswith("loss")]
    if not all(torch.as_tensor(x).isfinite().all() for x in watched if isinstance(x, Tensor | float)):
        stop(f"iteration {state.iteration - 1}: a loss, parameter, observation or reward is not finite; not saved", 1)

    (last_step, last_time), run.last = run.last, (state.global_step, time.perf_counter())
    sps = (state.global_step - last_step) / (run.last[1] - last_time)
    row = dict(iteration=state.iteration - 1, global_step=state.global_step, sps=round(sps, 1), episodes=len(episodes))
    if episodes:
        row["episodic_return"], row["episodic_length"] = np.mean(episodes, axis=0).tolist()
        run.bar.set_postfix(episodic_return=f"{row['episodic_return']:.1f}", refresh=False)
    row |= statistics
    table = csv.DictWriter(run.progress, [*COLUMNS, *(name for name in row if name not in COLUMNS)])
    if state.iteration == 1:
        table.writeheader()
    table.writerow(row)
    run.progress.flush()
    for name, x in row.items():
        run.tensorboard.add_scalar(f"train/{name}", x, state.global_step)
    run.bar.update(state.global_step - last_step)
    if state.global_step >= planned_steps(args) or state.iteration % args.checkpoint_every == 0:
        run.tensorboard.flush()
        save_checkpoint(args, run.folder, state)


def can_compile() -> bool:
    try:
        torch.compile(torch.neg, fullgraph=True, options={"cpp_wrapper": True})(torch.zeros(2))
        return True
    except Exception:
        return False


def interrupt(*_: Any) -> NoReturn:
    """Handles Ctrl-C. Ends at once: a checkpoint is whole or not there, and libraries swallow KeyboardInterrupt."""
    print("\ninterrupted; the same command, without --overwrite, continues this run", file=sys.stderr, flush=True)
    os._exit(130)


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    batch_size = args.num_envs * args.num_steps
    if args.total_timesteps < batch_size:
        stop(f"--total-timesteps {args.total_timesteps}: less than one iteration, num_envs * num_steps = {batch_size}")
    if batch_size % args.num_minibatches or batch_size < 2 * args.num_minibatches:  # standard deviations need two
        text = f"num_envs * num_steps = {batch_size} must divide evenly into minibatches of 2 or more"
        stop(f"--num-minibatches {args.num_minibatches}: {text}")
    torch.set_num_threads(1)  # the networks are too small for more: many runs are many processes, one a core
    if args.compile and not can_compile():
        print("torch.compile does not work here (no C++ compiler?); going on with --no-compile", file=sys.stderr)
        args = replace(args, compile=False)
    # TensorBoard's thread passes its errors on to the next call here; without their traceback, they are one line.
    threading.excepthook = lambda x: None if issubclass(x.exc_type, OSError) else threading.__excepthook__(x)
    try:
        train(args)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        stop(f"{error.strerror}: where there is room, the same command continues from the last checkpoint", 1)


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as a shell's background jobs ignore Ctrl-C
        signal.signal(signal.SIGINT, interrupt)
    sys.path.append(os.getcwd())  # where --env-id my_module:MyEnv-v0 looks for my_module.py
    main()
