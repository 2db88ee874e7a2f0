# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "gymnasium[mujoco]==1.4.0", "mujoco==4.0.0", "numpy==2.4.6", "tyro==1.0.17",
#   "tensorboard==2.21.0", "tqdm==4.70.1"]
# ///
"""A2C, the synchronous form of A3C (Mnih et al. 2016), with the nine code-level optimizations of "Implementation
Matters in Deep Policy Gradients" (Engstrom, Ilyas et al., ICLR 2020; "IM" below), each behind a flag, marked (1) to (9)
where it acts; learning rates, environments and epochs follow "The Definitive Guide to Policy Gradients" (Lehmann 2024).

    python algos/a2c.py                                         # Hopper-v5, 1M steps
    python algos/a2c.py --env-id Walker2d-v5 --seed 3           # another environment, another seed
    python algos/a2c.py --gae-lambda 1                          # the n-step estimate of A3C

The same command again continues an interrupted run from its newest checkpoint, to the same bits.
"""

import contextlib
import copy
import csv
import fcntl
import hashlib
import json
import math
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NoReturn

import gymnasium as gym
import mujoco
import numpy as np
import torch
import tyro
from gymnasium.envs.mujoco import MujocoEnv
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.func import functional_call, grad_and_value
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Args:
    env_id: str = "Hopper-v5"
    """Gymnasium environment with flat Box observations and actions; module:Env-v0 imports a module of yours first"""
    total_timesteps: int = 1_000_000
    """environment steps in all, over all environments; rounded down to whole iterations"""
    seed: int = 1
    """seed of everything random"""

    value_clip: bool = False
    """(1) clip the change of the value prediction in the value loss"""
    value_clip_eps: float = 0.2
    """largest change of a value prediction that (1) lets count"""
    reward_scale: bool = True
    """(2) divide rewards by a running standard deviation"""
    reward_scale_by: Literal["returns", "rewards"] = "returns"
    """what (2) takes it of: discounted returns (IM Algorithm 1) or rewards, then standardized around their mean"""
    orthogonal_init: bool = True
    """(3) orthogonal initialization with layer-wise gains; off: Xavier uniform"""
    anneal_lr: bool = True
    """(4) let both learning rates decay linearly to 0"""
    reward_clip: bool = True
    """(5) clip the (scaled) rewards"""
    reward_clip_range: float = 10.0
    """rewards are clipped to [-range, range] by (5)"""
    obs_norm: bool = True
    """(6) standardize observations by running mean and standard deviation"""
    obs_clip: bool = True
    """(7) clip the (standardized) observations"""
    obs_clip_range: float = 10.0
    """observations are clipped to [-range, range] by (7)"""
    tanh: bool = True
    """(8) tanh between layers"""
    activation_without_tanh: Literal["relu", "silu"] = "relu"
    """activation between layers where (8) is off"""
    grad_clip: bool = True
    """(9) clip the l2 norm of each network's gradient"""
    max_grad_norm: float = 0.5
    """largest gradient norm that (9) lets through"""

    num_envs: int = 8
    """environments stepped side by side"""
    num_steps: int = 2048
    """steps of each environment in an iteration"""
    num_minibatches: int = 8
    """minibatches that an epoch divides the batch into"""
    policy_epochs: int = 1
    """passes of the policy update over the batch"""
    value_epochs: int = 1
    """passes of the value update over the batch"""
    policy_lr: float = 3e-4
    """Adam learning rate of the policy"""
    value_lr: float = 3e-4
    """Adam learning rate of the value network"""
    gamma: float = 0.99
    """discount factor"""
    gae_lambda: float = 0.95
    """lambda of generalized advantage estimation"""
    entropy_coef: float = 0.001
    """coefficient of the entropy in the objective; may be negative"""
    policy_hidden: tuple[int, ...] = (64, 64)
    """sizes of the policy's hidden layers"""
    value_hidden: tuple[int, ...] = (64, 64)
    """sizes of the value network's hidden layers"""
    bootstrap_truncation: bool = True
    """a time limit cuts an episode without ending its return; off: treat it as a terminal state"""
    squash_action: bool = False
    """map actions into their bounds by tanh, between policy and environment"""

    compile: bool = True
    """compile the updates (seconds once, then several times faster)"""
    runs_dir: str = "runs"
    """folder of all runs"""
    run_name: str = ""
    """folder of this run inside runs_dir; default: environment, algorithm, every other non-default flag, seed"""
    checkpoint_every: int = 25
    """iterations between checkpoints"""
    overwrite: bool = False
    """start anew, deleting the checkpoints and logs of an earlier run in the run folder"""


# Networks ------------------------------------------------------------------------------------------------------------


def mlp(sizes: tuple[int, ...], activation: type[nn.Module]) -> nn.Sequential:
    """Linear layers of the given sizes, the activation between them."""
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), activation())]
    return nn.Sequential(*layers[:-1])


class Policy(nn.Module):
    """Gaussian policy whose standard deviation does not depend on the state."""

    def __init__(self, obs_size: int, hidden: tuple[int, ...], action_size: int, activation: type[nn.Module]):
        super().__init__()
        self.mean = mlp((obs_size, *hidden, action_size), activation)
        self.log_std = nn.Parameter(torch.zeros(action_size))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Observations [B, obs] -> means and log standard deviations, both [B, action]."""
        means = self.mean(obs)
        return means, self.log_std.expand_as(means)


class Value(nn.Module):
    def __init__(self, obs_size: int, hidden: tuple[int, ...], activation: type[nn.Module]):
        super().__init__()
        self.value = mlp((obs_size, *hidden, 1), activation)

    def forward(self, obs: Tensor) -> Tensor:
        """Observations [B, obs] -> values [B]."""
        return self.value(obs).squeeze(-1)


def make_networks(args: Args, obs_size: int, action_size: int) -> tuple[Policy, Value]:
    """Policy and value network, initialized from the seed."""
    activation = nn.Tanh if args.tanh else {"relu": nn.ReLU, "silu": nn.SiLU}[args.activation_without_tanh]  # (8)
    policy = Policy(obs_size, args.policy_hidden, action_size, activation)
    value = Value(obs_size, args.value_hidden, activation)
    generator = torch.Generator().manual_seed(args.seed)
    for layers, output_gain in ((policy.mean, 0.01), (value.value, 1.0)):
        for layer in layers[::2]:
            nn.init.zeros_(layer.bias)
            if args.orthogonal_init:  # (3)
                gain = output_gain if layer is layers[-1] else math.sqrt(2)
                nn.init.orthogonal_(layer.weight, gain, generator=generator)
            else:
                nn.init.xavier_uniform_(layer.weight, generator=generator)
    return policy, value


def call(network: nn.Module, parameters: Tensor, obs: Tensor) -> Any:
    """The network's output for observations [B, obs] with its parameters taken from one flat vector [P]."""
    named = dict(network.named_parameters())
    parts = parameters.split([p.numel() for p in named.values()])
    return functional_call(network, {k: x.view(p.shape) for (k, p), x in zip(named.items(), parts)}, (obs,))


def log_prob(means: Tensor, log_stds: Tensor, actions: Tensor) -> Tensor:
    """Log-density [B] of actions [B, action] under diagonal Gaussians."""
    return (-0.5 * ((actions - means) / log_stds.exp()) ** 2 - log_stds - 0.5 * math.log(2 * math.pi)).sum(-1)


def kl_divergence(old_means: Tensor, old_log_stds: Tensor, means: Tensor, log_stds: Tensor) -> Tensor:
    """Exact KL(old || new) [B] of diagonal Gaussians, in nats."""
    variance_ratio = torch.exp(2 * (old_log_stds - log_stds))
    mean_term = ((old_means - means) / log_stds.exp()) ** 2
    return 0.5 * (variance_ratio + mean_term - 1 - torch.log(variance_ratio)).sum(-1)


def entropy(means: Tensor, log_stds: Tensor, noise: Tensor | None) -> Tensor:
    """Entropy [B] of the Gaussian or, given standard normal noise [B, action], of its tanh: the Gaussian's plus
    E[ln d tanh(u) / du], estimated at the sample u that the noise gives (the bounds' constant scale left out)."""
    gaussian = (log_stds + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
    if noise is None:
        return gaussian
    u = means + log_stds.exp() * noise
    return gaussian + (2 * (math.log(2) - u - nn.functional.softplus(-2 * u))).sum(-1)  # ln(1 - tanh(u)^2), stable


# Rollout -------------------------------------------------------------------------------------------------------------


class RunningStats:
    """Mean and unbiased standard deviation of a stream of samples (Welford's algorithm), in float64."""

    def __init__(self, shape: tuple[int, ...] = ()):
        self.count = 0
        self.mean, self.sum_sq = (np.zeros(shape), np.zeros(shape)) if shape else (0.0, 0.0)  # floats are faster

    def push(self, x: Any) -> Any:
        """Adds a sample, a float, or N samples, an array [N, ...] -> their deviations from the new mean."""
        N = 1 if isinstance(x, float) else len(x)
        self.count += N
        old_deviation = x - self.mean
        self.mean = self.mean + (old_deviation if N == 1 else old_deviation.sum(0, keepdims=True)) / self.count
        deviation = x - self.mean
        product = old_deviation * deviation
        self.sum_sq = self.sum_sq + (product if N == 1 else product.sum(0, keepdims=True))
        return deviation

    @property
    def std(self) -> Any:
        """With fewer than two samples |mean|: otherwise the first reward of a run would become enormous."""
        return (self.sum_sq / (self.count - 1)) ** 0.5 if self.count > 1 else abs(self.mean)

    def state_dict(self) -> dict[str, Any]:
        return {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in vars(self).items()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        vars(self).update({name: x.numpy() if isinstance(x, Tensor) else x for name, x in saved.items()})


@dataclass
class Actor:
    """An environment and its unfinished episode."""

    env: gym.Env
    obs: np.ndarray | None = None  # [obs] current observation as the networks see it; None: to be reset
    episode_return: float = 0.0  # sum of the raw rewards
    episode_length: int = 0


def observe(args: Args, stats: RunningStats, obs: np.ndarray, live: bool) -> np.ndarray:
    """Raw observations [N, obs] -> what the networks see, float32. `live` adds them to the statistics first."""
    if args.obs_norm:  # (6)
        deviations = stats.push(obs) if live else obs - stats.mean
        obs = deviations / (stats.std + 1e-8)
    if args.obs_clip:  # (7)
        obs = obs.clip(-args.obs_clip_range, args.obs_clip_range)
    return obs.astype(np.float32)


def numpy_forward(network: nn.Sequential) -> Callable[[np.ndarray], np.ndarray]:
    """The network as a function of numpy arrays [N, in] -> [N, out]; a call takes a tenth of the time in torch."""
    relu, silu = lambda x: np.maximum(x, 0), lambda x: x * (1 + np.tanh(x / 2)) / 2
    activation = {nn.Tanh: np.tanh, nn.ReLU: relu, nn.SiLU: silu}[type(network[1])]
    *hidden, output = [(x.weight.detach().numpy().T, x.bias.detach().numpy()[None]) for x in network[::2]]

    def forward(x: np.ndarray) -> np.ndarray:
        for weight, bias in hidden:
            x = activation(x.dot(weight) + bias)
        weight, bias = output
        return x.dot(weight) + bias

    return forward


def rollout(args: Args, state: SimpleNamespace, live: bool = True) -> dict[str, Any]:
    """Steps every actor of `state.envs` num_steps times with the state's policy. `live` (training) adds what is seen
    to the running statistics; otherwise (diagnostics) they stay as they are.

    Returns arrays over all B = num_envs * num_steps pairs, actor after actor: obs [B, obs] as the networks see them,
    actions [B, action], rewards [B] scaled and clipped, terminations [B], truncations [B] (a time limit, or the
    rollout's own cut end), final_obs [number of truncations, obs]: the observation after each truncated step; and
    episodes: raw return and length of each episode that ended."""
    actors, T, N, returns = state.envs, args.num_steps, args.num_envs, state.discounted_returns
    for n, actor in enumerate(actors):
        if actor.obs is None:
            first_obs, _ = actor.env.reset(seed=int(state.rng.integers(2**31)))
            actor.obs, returns[n] = observe(args, state.obs_stats, first_obs[None], live)[0], 0.0
    space = actors[0].env.action_space
    policy_means = numpy_forward(state.policy.mean)
    stds = state.policy.log_std.detach().exp().numpy()
    noise = stds * state.rng.standard_normal((T, N, *space.shape), dtype=np.float32)

    current_obs = np.stack([actor.obs for actor in actors])
    next_obs, (_, obs_size) = np.empty(current_obs.shape), current_obs.shape
    obs, actions = np.empty((N, T, obs_size), np.float32), np.empty((N, T, *space.shape), np.float32)
    rewards, terminations, truncations = np.empty((N, T)), np.zeros((N, T), bool), np.zeros((N, T), bool)
    final_obs, episodes = [[] for _ in actors], []
    for t in range(T):
        obs[:, t] = current_obs
        actions[:, t] = env_actions = policy_means(current_obs) + noise[t]
        if args.squash_action:
            env_actions = space.low + (space.high - space.low) * 0.5 * (np.tanh(env_actions) + 1)
        ended = []
        for n, actor in enumerate(actors):
            next_obs[n], reward, terminated, truncated, _ = actor.env.step(env_actions[n])
            reward = float(reward)
            actor.episode_return += reward
            actor.episode_length += 1
            if args.reward_scale:  # (2)
                returns[n] = args.gamma * returns[n] + reward
                by_returns, stats = args.reward_scale_by == "returns", state.reward_stats
                if live:
                    stats.push(returns[n] if by_returns else reward)
                center = 0.0 if by_returns else stats.mean
                reward = (reward - center) / (stats.std + 1e-8) + center
            if args.reward_clip:  # (5)
                reward = min(max(reward, -args.reward_clip_range), args.reward_clip_range)
            rewards[n, t] = reward
            if terminated or truncated:
                ended.append(n)
                terminations[n, t] = terminated or not args.bootstrap_truncation
                truncations[n, t] = not terminations[n, t]
                episodes.append((actor.episode_return, actor.episode_length))
                actor.episode_return, actor.episode_length, returns[n] = 0.0, 0, 0.0
        current_obs = observe(args, state.obs_stats, next_obs, live)
        for n in ended:
            if truncations[n, t]:
                final_obs[n].append(current_obs[n].copy())
            first_obs, _ = actors[n].env.reset()
            current_obs[n] = observe(args, state.obs_stats, first_obs[None], live)[0]

    for n, actor in enumerate(actors):
        actor.obs = current_obs[n]
        if not (terminations[n, -1] or truncations[n, -1]):  # the cut end
            truncations[n, -1] = True
            final_obs[n].append(actor.obs)
    arrays = dict(obs=obs, actions=actions, rewards=rewards, terminations=terminations, truncations=truncations)
    flat = {name: x.reshape(N * T, *x.shape[2:]) for name, x in arrays.items()}
    return flat | dict(final_obs=np.array(sum(final_obs, []), np.float32).reshape(-1, obs_size), episodes=episodes)


# Advantages ----------------------------------------------------------------------------------------------------------


def discounted_sums(x: np.ndarray, ends: np.ndarray, decay: float) -> np.ndarray:
    """Sum over l >= 0 of decay^l x[t + l] for every t, both [B]; no sum goes beyond a step where ends [B] is True."""
    total, sums = 0.0, []
    for now, end in zip(reversed(x.tolist()), reversed(ends.tolist())):
        total = now if end else now + decay * total
        sums.append(total)
    return np.array(sums[::-1])


@torch.no_grad()
def advantages(args: Args, state: SimpleNamespace, experience: dict[str, Any]) -> dict[str, Tensor]:
    """A rollout -> the batch that `objective` and `update` take, tensors over its B pairs: obs [B, obs]; actions,
    means, log_stds [B, action] and log_probs [B] of the policy that acted; values, advantages (GAE), targets [B]."""
    obs, actions = torch.from_numpy(experience["obs"]), torch.from_numpy(experience["actions"])
    terminations, truncations = experience["terminations"], experience["truncations"]
    means, log_stds = state.policy(obs)
    values = state.value(obs)
    next_values = np.append(values[1:].double().numpy(), 0.0)
    next_values[truncations] = state.value(torch.from_numpy(experience["final_obs"])).numpy()
    next_values[terminations] = 0.0
    deltas = experience["rewards"] + args.gamma * next_values - values.double().numpy()
    sums = discounted_sums(deltas, terminations | truncations, args.gamma * args.gae_lambda)
    advantages = torch.from_numpy(sums).float()  # Schulman et al. 2016, eq. 16
    batch = dict(obs=obs, actions=actions, means=means, log_stds=log_stds.clone(), values=values)
    batch |= dict(log_probs=log_prob(means, log_stds, actions), advantages=advantages, targets=advantages + values)
    if args.squash_action:
        batch["noise"] = torch.from_numpy(state.rng.standard_normal(actions.shape, dtype=np.float32))
    return batch


# Objective -----------------------------------------------------------------------------------------------------------


def objective(args: Args, policy: Policy, parameters: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """What the policy step maximizes: the score-function surrogate, whose gradient is the policy gradient's estimate,
    with advantages normalized over the (mini)batch, plus the entropy bonus (Mnih et al. 2016, section 4). `parameters`
    [P] is the flat vector of the policy's parameters."""
    means, log_stds = call(policy, parameters, batch["obs"])
    advantages = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
    surrogate = (log_prob(means, log_stds, batch["actions"]) * advantages).mean()
    return surrogate + args.entropy_coef * entropy(means, log_stds, batch.get("noise")).mean()


# Update --------------------------------------------------------------------------------------------------------------


def adam_init(parameters: Tensor) -> dict[str, Tensor]:
    """State of Adam before its first step on the parameters [P]."""
    zeros, zero = torch.zeros_like(parameters), torch.zeros(())
    return dict(exp_avg=zeros, exp_avg_sq=zeros.clone(), weight=zero, weight_sq=zero.clone())


def adam_step(parameters: Tensor, gradient: Tensor, adam: dict[str, Tensor], lr: Tensor) -> tuple[Tensor, dict]:
    """One step of Adam down the gradient [P] (Kingma & Ba 2015, Algorithm 1), with eps 1e-5 as in baselines. The bias
    corrections 1 - beta^t are kept as what they are, the same moving averages of the constant 1."""
    exp_avg, weight = 0.9 * adam["exp_avg"] + 0.1 * gradient, 0.9 * adam["weight"] + 0.1
    exp_avg_sq, weight_sq = 0.999 * adam["exp_avg_sq"] + 0.001 * gradient**2, 0.999 * adam["weight_sq"] + 0.001
    parameters = parameters - lr * (exp_avg / weight) / (torch.sqrt(exp_avg_sq / weight_sq) + 1e-5)
    return parameters, dict(exp_avg=exp_avg, exp_avg_sq=exp_avg_sq, weight=weight, weight_sq=weight_sq)


def minibatch_rows(rng: np.random.Generator, batch_size: int, num_minibatches: int, epochs: int) -> Tensor:
    """Row numbers [epochs * num_minibatches, minibatch]: every epoch shuffles the batch and deals it out,
    but for a rest smaller than num_minibatches."""
    size = batch_size // num_minibatches
    shuffles = [rng.permutation(batch_size)[: size * num_minibatches] for _ in range(epochs)]
    return torch.from_numpy(np.stack(shuffles).reshape(-1, size))


def minibatch_steps(step: Callable, carry: Any, batch: dict[str, Tensor], rows: Tensor) -> tuple[Any, Tensor]:
    """carry, loss = step(carry, minibatch) for one minibatch of the batch after another, their row numbers in rows
    [steps, minibatch] -> last carry, losses [steps]."""

    def step_on(carry: Any, picked: Tensor) -> tuple[Any, Tensor]:
        return step(carry, {name: x[picked] for name, x in batch.items()})

    if torch.compiler.is_compiling():
        return scan(step_on, carry, rows)  # the loop below, compiled as a loop: no Python between the steps
    losses = []
    for picked in rows:
        carry, loss = step_on(carry, picked)
        losses.append(loss)
    return carry, torch.stack(losses)


compiled_minibatch_steps = torch.compile(minibatch_steps, fullgraph=True, dynamic=False, options={"cpp_wrapper": True})


def flat_parameters(network: nn.Module) -> Tensor:
    """The network's parameters as one vector [P]."""
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def with_parameters(network: nn.Module, parameters: Tensor) -> nn.Module:
    """A copy of the network with the parameters of a flat vector [P]."""
    network = copy.deepcopy(network)
    nn.utils.vector_to_parameters(parameters, network.parameters())
    return network


def update(args: Args, state: SimpleNamespace, batch: dict[str, Tensor]) -> tuple[SimpleNamespace, dict[str, float]]:
    """One iteration's whole update, value network first -> the state in which the next iteration begins, statistics.
    The given state's networks and optimizers stay as they are; its random generator moves on."""
    lr_fraction = 1 - state.global_step / planned_steps(args) if args.anneal_lr else 1.0  # (4)
    policy_lr, value_lr = torch.tensor(args.policy_lr * lr_fraction), torch.tensor(args.value_lr * lr_fraction)

    def value_loss(parameters: Tensor, minibatch: dict[str, Tensor]) -> Tensor:
        values, targets = call(state.value, parameters, minibatch["obs"]), minibatch["targets"]
        losses = (values - targets) ** 2
        if args.value_clip:  # (1) the larger loss, as released and in baselines; IM's formula prints min
            change = (values - minibatch["values"]).clamp(-args.value_clip_eps, args.value_clip_eps)
            losses = torch.maximum(losses, (minibatch["values"] + change - targets) ** 2)
        return losses.mean()

    def policy_loss(parameters: Tensor, minibatch: dict[str, Tensor]) -> Tensor:
        return -objective(args, state.policy, parameters, minibatch)

    def fit(network: nn.Module, adam: dict[str, Tensor], loss: Callable, lr: Tensor, epochs: int) -> tuple:
        def step(carry: tuple, minibatch: dict[str, Tensor]) -> tuple[tuple, Tensor]:
            parameters, adam = carry
            gradient, loss_before = grad_and_value(loss)(parameters, minibatch)
            if args.grad_clip:  # (9)
                gradient = gradient * (args.max_grad_norm / (gradient.norm() + 1e-6)).clamp(max=1)
            return adam_step(parameters, gradient, adam, lr), loss_before

        rows = minibatch_rows(state.rng, len(batch["obs"]), args.num_minibatches, epochs)
        run_steps = compiled_minibatch_steps if args.compile else minibatch_steps
        (parameters, adam), losses = run_steps(step, (flat_parameters(network), adam), batch, rows)
        return with_parameters(network, parameters), adam, losses.mean()

    value, value_adam, v_loss = fit(state.value, state.value_optimizer, value_loss, value_lr, args.value_epochs)
    policy, policy_adam, p_loss = fit(state.policy, state.policy_optimizer, policy_loss, policy_lr, args.policy_epochs)
    ratios, kls, entropies = policy_change(policy, batch)
    statistics = dict(
        policy_loss=p_loss,
        value_loss=v_loss,
        entropy=entropies.mean(),
        mean_kl=kls.mean(),
        max_kl=kls.max(),
        max_ratio=ratios.max(),
        explained_variance=1 - (batch["targets"] - batch["values"]).var() / batch["targets"].var(),
        policy_lr=policy_lr,
        value_lr=value_lr,
    )
    learned = dict(policy=policy, value=value, policy_optimizer=policy_adam, value_optimizer=value_adam)
    counters = dict(iteration=state.iteration + 1, global_step=state.global_step + len(batch["obs"]))
    return SimpleNamespace(**{**vars(state), **learned, **counters}), {k: float(x) for k, x in statistics.items()}


@torch.no_grad()
def policy_change(policy: Policy, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The policy against the one that collected the batch: ratios, KL(old || new) and new entropies, all [B]."""
    means, log_stds = policy(batch["obs"])
    ratios = torch.exp(log_prob(means, log_stds, batch["actions"]) - batch["log_probs"])
    kls = kl_divergence(batch["means"], batch["log_stds"], means, log_stds)
    return ratios, kls, entropy(means, log_stds, batch.get("noise"))


# Loop ----------------------------------------------------------------------------------------------------------------


def planned_steps(args: Args) -> int:
    """Environment steps of a run: total_timesteps, rounded down to a multiple of num_envs * num_steps."""
    return args.total_timesteps - args.total_timesteps % (args.num_envs * args.num_steps)


def initial_state(args: Args, actors: list[Actor]) -> SimpleNamespace:
    """Everything that training changes, as iteration 0 finds it. A checkpoint holds all of it."""
    obs_size, action_size = space_sizes(actors)
    policy, value = make_networks(args, obs_size, action_size)
    networks = dict(policy=policy, value=value)
    optimizers = {f"{name}_optimizer": adam_init(flat_parameters(network)) for name, network in networks.items()}
    stats = dict(obs_stats=RunningStats((1, obs_size)), reward_stats=RunningStats())
    environments = dict(envs=actors, discounted_returns=[0.0] * args.num_envs)  # the latter: R of reward scaling
    rng = np.random.default_rng(args.seed)
    return SimpleNamespace(iteration=0, global_step=0, rng=rng, **networks, **optimizers, **stats, **environments)


def train(args: Args) -> None:
    """Trains to the end, from the newest checkpoint in the run folder or else from the beginning."""
    state = initial_state(args, make_actors(args))
    with open_run(args, state) as run:
        while state.global_step < planned_steps(args):
            experience = rollout(args, state)
            batch = advantages(args, state, experience)
            state, statistics = update(args, state, batch)
            record(args, run, state, statistics, experience["episodes"])


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    check_arguments(args)
    torch.set_num_threads(1)
    try:
        if args.compile and not can_compile():
            print("torch.compile does not work here (no C++ compiler?); going on with --no-compile", file=sys.stderr)
            args = replace(args, compile=False)
        train(args)
    except BaseException:
        if not SIGNALS:
            raise
        stop("interrupted; the same command, without --overwrite, continues this run", 130)


# =====================================================================================================================
# Bookkeeping, the same in every script: arguments, environments, checkpoints, run folder. No algorithm below.
# =====================================================================================================================

FORMAT = 1  # of the checkpoints
SCRIPT = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
NOT_OF_THE_RUN = ("runs_dir", "run_name", "overwrite", "checkpoint_every")  # may differ when a run continues
SIGNALS = []  # to end this process: numbers of the signals that came in
TAGS = """
    charts/iteration charts/global_step charts/sps charts/episodes charts/episodic_return charts/episodic_length
    losses/policy_loss losses/value_loss losses/entropy trust_region/mean_kl trust_region/max_kl trust_region/max_ratio
    trust_region/clip_fraction losses/explained_variance charts/policy_lr charts/value_lr
""".split()


def stop(message: str, status: int = 2) -> NoReturn:
    """Ends the program with one line on standard error; status 2: bad input, 1: training failed, 130: interrupted."""
    print(f"{Path(__file__).name}: {message}", file=sys.stderr)
    raise SystemExit(status)


def interrupt(number: int, _: Any) -> NoReturn:
    """Handles Ctrl-C and SIGTERM. Now and then a library swallows or renames the exception (weak references' callbacks
    in torch.compile do): SIGNALS still says that it came."""
    SIGNALS.append(number)
    raise KeyboardInterrupt


def check_arguments(args: Args) -> None:
    """Refuses what tyro lets through: numbers must be finite and, where no other rule stands here, greater than 0."""
    not_negative = "must not be negative", lambda x: x >= 0
    share, positive_share = ("must lie in [0, 1]", lambda x: 0 <= x <= 1), ("must lie in (0, 1]", lambda x: 0 < x <= 1)
    sizes = "must be one or more sizes greater than 0", lambda x: x and min(x) > 0
    seeds = "must lie in [0, 2^64)", lambda x: 0 <= x < 2**64
    rules = dict(seed=seeds, cg_damping=not_negative, gamma=share, gae_lambda=share)
    rules |= dict(fisher_fraction=positive_share, backtrack_ratio=positive_share)
    rules |= dict(policy_hidden=sizes, value_hidden=sizes, entropy_coef=("", lambda x: True))
    for name, value in asdict(args).items():
        option, is_number = f"--{name.replace('_', '-')} {value}", not isinstance(value, bool | str | None)
        if isinstance(value, float) and not abs(value) <= torch.finfo(torch.float32).max:
            stop(f"{option}: must be finite in single precision")
        text, holds = rules.get(name, ("must be greater than 0", lambda x: x > 0))
        if is_number and not holds(value):
            stop(f"{option}: {text}")
    batch_size = args.num_envs * args.num_steps
    if args.total_timesteps < batch_size:
        stop(f"--total-timesteps {args.total_timesteps}: less than one iteration, num_envs * num_steps = {batch_size}")
    size, rest = divmod(batch_size, args.num_minibatches)
    smallest = 2 if hasattr(args, "value_lr") else 1  # standard deviations need two pairs, REINFORCE has none
    if rest or size < smallest:
        text = f"num_envs * num_steps = {batch_size} must divide evenly into minibatches of {smallest} or more"
        stop(f"--num-minibatches {args.num_minibatches}: {text}")


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


def space_sizes(actors: list[Actor]) -> tuple[int, int]:
    env = actors[0].env
    return env.observation_space.shape[0], env.action_space.shape[0]


def can_compile() -> bool:
    try:
        torch.compile(torch.neg, fullgraph=True, options={"cpp_wrapper": True})(torch.zeros(2))
        return True
    except Exception:
        if SIGNALS:
            raise
        return False


def pack(x: Any) -> Any:
    """A part of the training state -> tensors and plain values, all that torch.load(weights_only=True) takes."""
    if hasattr(x, "state_dict"):
        return x.state_dict()
    if isinstance(x, np.random.Generator):
        return x.bit_generator.state
    if isinstance(x, list) and isinstance(x[0], Actor):
        return [vars(a) | dict(obs=None if a.obs is None else torch.from_numpy(a.obs), env=pack_env(a)) for a in x]
    return x


def pack_env(actor: Actor) -> dict[str, Any] | None:
    """Exact state of a MuJoCo environment in mid-episode; None for any other environment and before the first reset."""
    env = actor.env.unwrapped
    if not isinstance(env, MujocoEnv) or actor.obs is None:
        return None
    physics = torch.empty(mujoco.mj_stateSize(env.model, mujoco.mjtState.mjSTATE_INTEGRATION), dtype=torch.float64)
    mujoco.mj_getState(env.model, env.data, physics.numpy(), mujoco.mjtState.mjSTATE_INTEGRATION)
    # Ant's and Humanoid's rewards read positions that the last step left behind and that are not part of that state.
    xpos, xipos = torch.tensor(env.data.xpos), torch.tensor(env.data.xipos)
    return dict(physics=physics, xpos=xpos, xipos=xipos, rng=pack(env.np_random))


def unpack_actor(actor: Actor, saved: dict[str, Any]) -> None:
    """Puts the actor where `pack` found it; one whose environment was not packed will begin a new episode."""
    packed, env, wrapper = saved["env"], actor.env.unwrapped, actor.env
    if packed is None:
        return
    actor.env.reset()
    env.np_random.bit_generator.state = packed["rng"]
    mujoco.mj_setState(env.model, env.data, packed["physics"].numpy(), mujoco.mjtState.mjSTATE_INTEGRATION)
    env.data.xpos[:], env.data.xipos[:] = packed["xpos"].numpy(), packed["xipos"].numpy()
    while wrapper is not env:
        if isinstance(wrapper, gym.wrappers.TimeLimit):
            wrapper._elapsed_steps = saved["episode_length"]
        wrapper = wrapper.env
    vars(actor).update(saved | dict(env=actor.env, obs=saved["obs"].numpy()))


def restore(state: SimpleNamespace, checkpoint: dict[str, Any]) -> None:
    """Puts an initial state where the checkpoint was."""
    for name, part in vars(state).items():
        if hasattr(part, "load_state_dict"):
            part.load_state_dict(checkpoint[name])
        elif isinstance(part, np.random.Generator):
            part.bit_generator.state = checkpoint[name]
        elif name == "envs":
            for actor, saved in zip(part, checkpoint[name]):
                unpack_actor(actor, saved)
        else:
            setattr(state, name, checkpoint[name])


def identity(args: Args) -> dict[str, Any]:
    """What a checkpoint says of its run: a run continues to the same bits where none of it differs."""
    libraries = {x.__name__: str(x.__version__) for x in (torch, gym, mujoco, np)}
    versions = dict(python=platform.python_version(), **libraries)
    return dict(format=FORMAT, algo=Path(__file__).stem, args=asdict(args), script=SCRIPT, versions=versions)


def save_checkpoint(args: Args, folder: Path, state: SimpleNamespace) -> None:
    """Writes iter_000150.pt, the state in which iteration 150 begins, whole or not at all."""
    path = folder / "checkpoints" / f"iter_{state.iteration:06d}.pt"
    torch.save(identity(args) | {name: pack(x) for name, x in vars(state).items()}, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The checkpoint's dictionary; stops where the file does not hold one."""
    try:
        checkpoint = torch.load(path, weights_only=True)
    except Exception:  # a damaged file raises almost anything
        checkpoint = None
    if not isinstance(checkpoint, dict) or "format" not in checkpoint:
        stop(f"{path} is damaged or not a checkpoint; without it, the run continues from the one before")
    if checkpoint["format"] != FORMAT:
        stop(f"{path} has format {checkpoint['format']}, this script reads {FORMAT}; choose another --run-name")
    return checkpoint


def default_run_name(args: Args) -> str:
    flags = []
    for field in fields(args):
        name, value = field.name.replace("_", "-"), getattr(args, field.name)
        if value != field.default and field.name not in ("env_id", "seed", *NOT_OF_THE_RUN):
            text = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
            flags.append({"True": name, "False": f"no-{name}"}.get(text, f"{name}={text}"))
    start, end = [args.env_id, Path(__file__).stem], [f"seed{args.seed}"]
    name = "__".join(start + flags + end)
    if len(name) > 150:
        name = "__".join([*start, hashlib.sha256("__".join(flags).encode()).hexdigest()[:12], *end])
    return name.replace("/", "-").replace(":", "-")


def check_identity(args: Args, folder: Path, checkpoint: dict[str, Any]) -> None:
    """Stops where the run in the folder is another one, or finished, or cannot continue to the same bits."""

    def differences(old: dict[str, Any], new: dict[str, Any]) -> str:
        names = [name for name in {**old, **new} if name not in NOT_OF_THE_RUN and old.get(name) != new.get(name)]
        return ", ".join(f"{name} was {old.get(name)}, is {new.get(name)}" for name in names)

    old, new = checkpoint, identity(args)
    if other := differences({"algo": old["algo"], **old["args"]}, {"algo": new["algo"], **new["args"]}):
        stop(f"{folder} holds another run: {other}; choose another --run-name, or --overwrite")
    changed = differences(old["versions"] | {"script": old["script"][:8]}, new["versions"] | {"script": SCRIPT[:8]})
    if old["global_step"] >= planned_steps(args):
        stop(f"{folder} is finished" + (f"; changed since: {changed}" if changed else ""), 0)
    if changed:
        stop(f"{folder} cannot continue to the same bits: {changed}; change that back, or --overwrite")


@contextlib.contextmanager
def open_run(args: Args, state: SimpleNamespace) -> Iterator[SimpleNamespace]:
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
        except OSError as error:
            stop(f"{folder} is in use by another process ({error.strerror})")
        checkpoints = sorted(folder.glob("checkpoints/iter_*.pt"))
        if checkpoints and not args.overwrite:
            checkpoint = load_checkpoint(checkpoints[-1])
            check_identity(args, folder, checkpoint)
            restore(state, checkpoint)
            print(f"{folder}: continuing from iteration {state.iteration}", flush=True)
            if state.iteration > 0 and any(actor.obs is None for actor in state.envs):
                print("not a MuJoCo environment: new episodes begin, not an exact continuation", file=sys.stderr)
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
        start, now = state.global_step, time.perf_counter()
        bar = tqdm(total=planned_steps(args), initial=start, unit=" steps", unit_scale=True, disable=None)
        with SummaryWriter(folder, purge_step=start + 1) as tensorboard, bar:
            files = dict(folder=folder, progress=progress, tensorboard=tensorboard, bar=bar)
            yield SimpleNamespace(**files, last_record=(start, now), last_line=now)


def record(args: Args, run: SimpleNamespace, state: SimpleNamespace, statistics: dict[str, float], episodes: list):
    """Logs an iteration to progress.csv, TensorBoard and the screen, and saves a checkpoint when it is time. Stops at a
    non-finite state, before it can be saved."""
    if SIGNALS:
        raise KeyboardInterrupt
    watched = [x for name, x in statistics.items() if name.endswith("loss")]
    watched += [x for part in vars(state).values() if hasattr(part, "state_dict") for x in part.state_dict().values()]
    if not all(torch.as_tensor(x).isfinite().all() for x in watched):
        stop(f"iteration {state.iteration - 1}: a loss, parameter, observation or reward is not finite; not saved", 1)

    (last_step, last_time), now = run.last_record, time.perf_counter()
    sps, run.last_record = (state.global_step - last_step) / (now - last_time), (state.global_step, now)
    row = dict(iteration=state.iteration - 1, global_step=state.global_step, sps=round(sps, 1), episodes=len(episodes))
    if episodes:
        row["episodic_return"], row["episodic_length"] = np.mean(episodes, axis=0).tolist()
    row |= statistics
    tags = {tag.split("/")[1]: tag for tag in TAGS}
    tags |= {name: f"trust_region/{name}" for name in statistics if name not in tags}
    table = csv.DictWriter(run.progress, tags)
    if state.iteration == 1:
        table.writeheader()
    table.writerow(row)
    run.progress.flush()
    for name, x in row.items():
        run.tensorboard.add_scalar(tags[name], x, state.global_step)

    episodic_return = f"{row['episodic_return']:.1f}" if episodes else "-"
    run.bar.set_postfix(episodic_return=episodic_return, refresh=False)
    run.bar.update(state.global_step - last_step)
    last = state.global_step >= planned_steps(args)
    if run.bar.disable and (last or now - run.last_line > 30):  # no terminal: now and then a line instead of the bar
        left = tqdm.format_interval(max(0, planned_steps(args) - state.global_step) / sps)
        print(f"{state.global_step:,} steps, {sps:,.0f}/s, return {episodic_return}, {left} left", flush=True)
        run.last_line = now
    if last or state.iteration % args.checkpoint_every == 0:
        run.tensorboard.flush()
        save_checkpoint(args, run.folder, state)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # as a shell's background jobs ignore Ctrl-C
            signal.signal(number, interrupt)
    sys.path.append(os.getcwd())  # where --env-id my_module:MyEnv-v0 looks for my_module.py
    main()
