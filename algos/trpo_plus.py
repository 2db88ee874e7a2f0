"""TRPO+, the natural gradient of Schulman et al. 2015,
with the nine code-level optimizations of "Implementation Matters in Deep Policy Gradients" (Engstrom, Ilyas et al.
2020; "IM" below). Each has a flag and is marked (1) to (9) where it acts; (4) and (9) act on the value network alone.

An iteration takes num_steps steps (`rollout`), estimates A by GAE and targets A + V(s) (`estimate_advantages`), and
trains V on (V(s) - target)^2 with Adam. Then pi takes a step along F^-1 g, where g is the gradient of ratio A and F the
Fisher matrix, as far as the KL allows (`update`, `natural_gradient_step`).

    python algos/trpo_plus.py                                # Hopper-v5, 1M steps
    python algos/trpo_plus.py --max-kl-final 0.07            # with the schedule that the released code configures

Rerun the same command to resume an interrupted run, to the same bits. "The released code" is
MadryLab/implementation-matters, commit 1b8af2d, to which IM links. Functions stand in the order of their first call.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import gymnasium as gym
import mujoco
import numpy as np
import torch
import tyro
from filelock import FileLock
from torch import Tensor, nn
from torch._higher_order_ops import scan  # a prototype of torch's: compiled, its loop stays a loop and is not unrolled
from torch.distributions import Distribution, Independent, Normal, kl_divergence
from torch.func import functional_call, grad, grad_and_value, jvp
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm


@dataclass(frozen=True)
class Args:
    env_id: str = "Hopper-v5"  # any with flat Box observations and actions; module:Env-v0 imports your module
    total_timesteps: int = 1_000_000  # environment steps in all; rounded down to whole iterations
    seed: int = 1  # seed of all random numbers

    # The nine optimizations, in IM's order.
    value_clip: bool = False  # (1) clip the change of the value prediction in the value loss
    value_clip_eps: float = 0.2  # (1) how far a prediction may move before its loss is clipped; in units of rewards
    reward_scale: bool = True  # (2) divide rewards by the running standard deviation of discounted reward sums
    orthogonal_init: bool = True  # (3) orthogonal initialization with layer-wise gains; off: Xavier uniform
    anneal_lr: bool = False  # (4) let the learning rate of the value network decay linearly to 0
    reward_clip: bool = True  # (5) clip the (scaled) rewards
    reward_clip_range: float = 10.0  # (5) to [-range, range]
    obs_norm: bool = True  # (6) standardize observations by running mean and standard deviation
    obs_clip: bool = True  # (7) clip the (standardized) observations
    obs_clip_range: float = 10.0  # (7) to [-range, range]
    tanh: bool = True  # (8) tanh between layers
    activation_without_tanh: Literal["relu", "silu"] = "relu"  # activation between layers where (8) is off
    grad_clip: bool = True  # (9) clip the l2 norm of the value network's gradient; the released code never does
    max_grad_norm: float = 1.0  # (9) maximum gradient norm

    num_envs: int = 1  # environments, stepped one after another
    num_steps: int = 2048  # steps per environment per iteration
    num_minibatches: int = 32  # minibatches per epoch of value updates
    value_epochs: int = 10  # epochs of value updates per batch
    value_lr: float = 2e-4  # Adam learning rate of the value network
    max_kl: float = 0.04  # delta: largest mean KL(old || new) of a step, in nats; sb3-contrib's is ours / action size
    max_kl_final: float | None = None  # delta towards which it moves linearly; default: max_kl throughout
    fisher_fraction: float = 0.1  # fraction of the batch's states that Fisher-vector products average over
    cg_steps: int = 10  # steps of conjugate gradient
    cg_damping: float = 0.1  # added to the Fisher matrix's diagonal
    backtrack_steps: int = 10  # step sizes that the line search tries, the full one first
    backtrack_ratio: float = 0.5  # each step size that it tries is this fraction of the one before
    gamma: float = 0.99  # discount factor; the larger, the further ahead rewards count: about 1 / (1 - gamma) steps
    gae_lambda: float = 0.95  # the larger, the more advantages trust sampled rewards (noise) and the less V (bias)
    entropy_coef: float = 0.0  # coefficient of the entropy bonus; may be negative
    adv_norm: bool = True  # normalize advantages over the batch: subtract their mean, divide by their std
    policy_hidden: tuple[int, ...] = (64, 64)  # sizes of the policy's hidden layers
    value_hidden: tuple[int, ...] = (64, 64)  # sizes of the value network's hidden layers
    bootstrap_truncation: bool = True  # bootstrap from V at a time limit; off: treat it as a terminal state
    bound_action: Literal["no", "clip", "tanh"] = "no"  # how actions reach the environment: as drawn, clipped, squashed

    compile: bool = True  # compile the updates: slower at each start, and then much faster; off to print in a loss
    runs_dir: str = "runs"  # folder of all runs
    run_name: str = ""  # folder of this run inside runs_dir; default: environment, algorithm, non-default flags, seed
    checkpoint_every: int = 25  # iterations between checkpoints, from which runs resume and which the diagnostics load


def train(args: Args) -> None:
    """Trains to the end, from the newest checkpoint in the run folder or else from the beginning."""
    state = State(args)
    with open_run(args, state) as run:
        while state.global_step < state.planned_steps:
            steps, episodes = rollout(args, state)
            batch = estimate_advantages(args, state, steps)
            statistics = update(args, state, batch)  # also advances state.iteration and state.global_step
            record(args, run, state, steps, episodes, statistics)


class State:
    """Everything that training changes. A checkpoint holds all of it except the environments, and also what you add: a
    number, a tensor, a list of them (not a numpy array), or an object with state_dict and load_state_dict."""

    def __init__(self, args: Args):
        self.workers = [Worker(make_env(args)) for _ in range(args.num_envs)]
        env = self.workers[0].env
        obs_size, action_size = env.observation_space.shape[0], env.action_space.shape[0]
        self.rng = np.random.default_rng(args.seed)
        generator = torch.Generator().manual_seed(args.seed)
        # The policy's small output gain makes its first actions almost pure noise, around 0.
        self.policy = Policy(mlp(args, (obs_size, *args.policy_hidden, action_size), 0.01, generator))
        self.value = mlp(args, (obs_size, *args.value_hidden, 1), 1.0, generator).append(nn.Flatten(0))  # [B, 1] -> [B]
        # Adam's m, v and step count t, for `fit`. 1 - 0.999^t needs float64, to which a scalar t promotes nothing else.
        size = sum(p.numel() for p in self.value.parameters())
        self.value_adam = [torch.zeros(size), torch.zeros(size), torch.zeros(()).double()]
        self.obs_stats, self.reward_stats = RunningStats(np.zeros(obs_size)), RunningStats(0.0)
        self.iteration, self.global_step = 0, 0  # iterations and environment steps done
        self.inexact_resumes = []  # the iterations in which `restore` could not repeat an unfinished episode
        self.planned_steps = args.total_timesteps - args.total_timesteps % (args.num_envs * args.num_steps)


@dataclass
class Worker:
    """An environment and its unfinished episode, which `restore` plays again, so that no simulator has to be saved."""

    env: gym.Env
    obs: np.ndarray | None = None  # [obs] as the networks see it; None: a new episode is due
    raw_obs: np.ndarray | None = None  # [obs] as the environment returned it
    seed: int = 0  # with which the episode was reset
    actions: list[np.ndarray] = field(default_factory=list)  # each [action], as drawn
    episode_return: float = 0.0  # sum of the raw rewards
    discounted_sum: float = 0.0  # of the raw rewards so far, for (2)


class Policy(nn.Module):
    """Observations [B, obs] -> Gaussians over actions [B, action], whose std does not depend on the state."""

    def __init__(self, mean: nn.Sequential):
        super().__init__()
        self.mean = mean
        self.log_std = nn.Parameter(torch.zeros(mean[-1].out_features))

    def forward(self, obs: Tensor) -> Independent:
        means = self.mean(obs)
        return Independent(Normal(means, self.log_std.exp().expand_as(means)), 1)


def mlp(args: Args, sizes: tuple[int, ...], output_gain: float, generator: torch.Generator) -> nn.Sequential:
    """Linear layers of the given sizes, with the activation between them."""
    activation = nn.Tanh if args.tanh else {"relu": nn.ReLU, "silu": nn.SiLU}[args.activation_without_tanh]  # (8)
    layers = [layer for pair in zip(sizes, sizes[1:]) for layer in (nn.Linear(*pair), activation())][:-1]
    for layer in layers[::2]:
        nn.init.zeros_(layer.bias)
        if args.orthogonal_init:  # (3)
            gain = output_gain if layer is layers[-1] else math.sqrt(2)
            nn.init.orthogonal_(layer.weight, gain, generator=generator)
        else:
            nn.init.xavier_uniform_(layer.weight, generator=generator)
    return nn.Sequential(*layers)


def rollout(args: Args, state: State) -> tuple[dict[str, np.ndarray], list[tuple[float, int]]]:
    """Takes num_steps steps with the current policy in one environment after another. Returns arrays with a row per
    step: obs and next_obs [B, obs] as the networks see them, actions [B, action] as drawn, rewards, terminations (V(s')
    is 0) and ends (of an episode or the rollout) [B]; and the raw return and length of each episode that ended."""
    rows, episodes = [], []
    policy_mean = numpy_forward(state.policy.mean)
    std = state.policy.log_std.detach().exp().numpy()
    for k, worker in enumerate(state.workers):
        noise = std * state.rng.standard_normal((args.num_steps, len(std)), dtype=np.float32)
        for t in range(args.num_steps):
            if worker.obs is None:
                seed = int(state.rng.integers(2**31))  # Seeding every episode spares us saving the environment's RNG.
                obs = normalize_obs(args, state.obs_stats, worker.env.reset(seed=seed)[0])
                worker = state.workers[k] = Worker(worker.env, obs, seed=seed)  # The old episode is forgotten.
            # Acting needs no values and no log-probabilities: one pass over the whole batch computes them later.
            obs, action = worker.obs, policy_mean(worker.obs) + noise[t]
            worker.raw_obs, raw_reward, terminated, truncated, _ = worker.env.step(action.copy())  # may change it
            worker.actions.append(action)
            worker.episode_return += float(raw_reward)
            worker.obs = next_obs = normalize_obs(args, state.obs_stats, worker.raw_obs)
            reward = scale_reward(args, state.reward_stats, worker, float(raw_reward))
            # A time limit is not a terminal state: we bootstrap from V of the final observation (Pardo et al. 2018),
            # as at the end of the rollout. The released code takes 0 at a time limit.
            termination = bool(terminated or (truncated and not args.bootstrap_truncation))
            end = bool(terminated or truncated or t == args.num_steps - 1)
            rows.append((obs, action, reward, next_obs, termination, end))
            if terminated or truncated:
                episodes.append((worker.episode_return, len(worker.actions)))
                worker.obs = None
    names = ("obs", "actions", "rewards", "next_obs", "terminations", "ends")
    return {name: np.array(x) for name, x in zip(names, zip(*rows))}, episodes


def normalize_obs(args: Args, stats: RunningStats, obs: np.ndarray) -> np.ndarray:
    """Raw observation [obs] -> what the networks see, in float32. Updates the statistics first."""
    if args.obs_norm:  # (6)
        assert obs.shape == stats.mean.shape  # Another shape would be broadcast without a word.
        stats.push(obs)
        obs = (obs - stats.mean) / (stats.std + 1e-8)
    if args.obs_clip:  # (7)
        obs = obs.clip(-args.obs_clip_range, args.obs_clip_range)
    return obs.astype(np.float32)


def scale_reward(args: Args, stats: RunningStats, worker: Worker, reward: float) -> float:
    """Raw reward of the worker's step -> the reward to learn from. Updates the statistics first."""
    if args.reward_scale:  # (2) The sum restarts with every episode. IM's Algorithm 1 carries it on.
        worker.discounted_sum = args.gamma * worker.discounted_sum + reward
        stats.push(worker.discounted_sum)
        # Subtracting the mean, too, would add a constant to all rewards, and so favor longer or shorter episodes.
        reward = reward / (stats.std + 1e-8)
    if args.reward_clip:  # (5)
        reward = min(max(reward, -args.reward_clip_range), args.reward_clip_range)
    return reward


class RunningStats:
    """Mean and sample standard deviation (n - 1) of a stream (Welford's algorithm), in float64 against rounding."""

    def __init__(self, zero: np.ndarray | float):
        self.count, self.mean, self.sum_sq, self.std = 0, zero, zero, zero

    def push(self, x: np.ndarray | float) -> None:
        self.count += 1
        old_deviation = x - self.mean
        self.mean = self.mean + old_deviation / self.count
        self.sum_sq = self.sum_sq + old_deviation * (x - self.mean)
        # A single sample has no deviation; with 0 instead of |mean| the first scaled reward of a run would be enormous.
        self.std = (self.sum_sq / (self.count - 1)) ** 0.5 if self.count > 1 else abs(self.mean)

    def state_dict(self) -> dict[str, Any]:  # lists, because torch.load(weights_only=True) refuses arrays
        return {name: np.array(x).tolist() for name, x in vars(self).items()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        vars(self).update({name: np.array(x)[()] for name, x in saved.items()})  # [()] makes scalars of 0-d arrays


@torch.no_grad()
def estimate_advantages(args: Args, state: State, steps: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """The steps of a rollout -> the batch of B steps that the losses take. `old_...` is before the update."""
    obs, actions, next_obs = (torch.from_numpy(steps[name]) for name in ("obs", "actions", "next_obs"))
    # The next values are not old_values[1:], because after the end of an episode the next row starts another one.
    old_pi, old_values, next_values = state.policy(obs), state.value(obs), state.value(next_obs)
    next_values[torch.from_numpy(steps["terminations"])] = 0.0
    # GAE (Schulman et al. 2016, eq. 16), in Python floats, because in float32 the recursion adds up errors.
    # Like almost every implementation, we leave out the weight gamma^t that the exact gradient gives to step t.
    deltas = steps["rewards"] + args.gamma * next_values.double().numpy() - old_values.double().numpy()
    advantages, ends = deltas.tolist(), steps["ends"].tolist()  # So far, each is only the first term of its sum.
    for t in reversed(range(len(advantages) - 1)):
        if not ends[t]:
            advantages[t] += args.gamma * args.gae_lambda * advantages[t + 1]
    advantages = torch.tensor(advantages)
    batch = dict(obs=obs, actions=actions, advantages=advantages, value_targets=advantages + old_values)
    batch |= dict(old_means=old_pi.mean, old_stds=old_pi.stddev, old_values=old_values)
    return batch | dict(old_log_probs=old_pi.log_prob(actions))


@torch.no_grad()  # The losses are differentiated all the same, because the functions of torch.func ignore this.
def update(args: Args, state: State, batch: dict[str, Tensor]) -> dict[str, float]:
    """Fits the value network, then the policy. The advantages are fixed by now, so neither sees what the other does."""
    progress = state.global_step / state.planned_steps
    # (4) The first iteration has the whole learning rate, and the last of N iterations has an Nth of it.
    value_lr = args.value_lr * (1 - progress if args.anneal_lr else 1.0)
    value_norm = args.max_grad_norm if args.grad_clip else math.inf  # (9)
    # IM's schedule: delta ends one increment short of its last value. In the released code it never takes effect.
    max_kl = args.max_kl + progress * ((args.max_kl_final or args.max_kl) - args.max_kl)
    indices = shuffle(args, state.rng, batch, args.value_epochs)
    value_fit = fit(args, state.value, state.value_adam, value_loss, batch, indices, value_lr, value_norm)
    policy_step = natural_gradient_step(args, state.rng, state.policy, batch, max_kl)
    state.iteration += 1
    state.global_step += len(batch["obs"])
    statistics = {f"value_{name}": x for name, x in value_fit.items()}
    statistics |= policy_step | measure_update(args, state.policy, batch)
    return {name: float(x) for name, x in statistics.items()}


def natural_gradient_step(args: Args, rng: np.random.Generator, policy: Policy, batch: dict, max_kl: float) -> dict:
    """Steps the policy, in place, along x = (F + damping)^-1 g, at most as far as a mean KL of max_kl, where g is the
    gradient of the surrogate and F the Fisher matrix (Schulman et al. 2015, appendix C). cg_residual is the norm of
    the residual of conjugate gradient, relative to that of g."""
    old = nn.utils.parameters_to_vector(policy.parameters()).detach()
    surrogate = lambda parameters: -policy_loss(args, pi_with(policy, parameters, batch), batch)
    mean_kl = lambda parameters: mean_kl_from_old(pi_with(policy, parameters, batch), batch)
    gradient = grad(surrogate)(old)

    # A part of the states is enough for F, whose products are most of the cost.
    size = math.ceil(args.fisher_fraction * len(batch["obs"]))
    rows = torch.from_numpy(rng.permutation(len(batch["obs"]))[:size])
    subset = {name: batch[name][rows] for name in ("obs", "old_means", "old_stds")}
    product = compiled_fisher_vector_product if args.compile else fisher_vector_product
    damped_product = lambda vector: product(policy, old, vector, subset) + args.cg_damping * vector
    x, residual = conjugate_gradient(damped_product, gradient, args.cg_steps)
    # This is x^T (F + damping) x, by the recursion's residual. In float32, g - (F + damping) x drifts away from that.
    curvature = x @ (gradient - residual)
    # To second order this step has a mean KL of max_kl times F's share of the curvature: the damping makes it shorter.
    full_step = math.sqrt(2 * max_kl / curvature.clamp(min=1e-30)) * x  # Where the gradient is 0, so is the step.
    fractions = [args.backtrack_ratio**k for k in range(args.backtrack_steps)]
    parameters, fraction = line_search(surrogate, mean_kl, max_kl, old, full_step, gradient @ full_step, fractions)
    for p, part in zip(policy.parameters(), parameters.split([p.numel() for p in policy.parameters()])):
        p.copy_(part.view_as(p))  # in place, as in `fit`
    cg_residual = residual.norm() / gradient.norm().clamp(min=1e-30)
    statistics = dict(policy_loss=-surrogate(parameters), policy_grad_norm=gradient.norm())
    return statistics | dict(line_search_step=fraction, cg_residual=cg_residual)


def conjugate_gradient(product: Callable, b: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Solves product(x) = b [P] approximately, beginning with x = 0. Returns x [P] and the residual b - product(x)."""
    x, residual, direction = torch.zeros_like(b), b, b
    for _ in range(steps):
        curved = product(direction)
        squared = residual @ residual
        alpha = squared / (direction @ curved).clamp(min=1e-30)  # a residual of 0 leaves x where it is
        x = x + alpha * direction
        residual = residual - alpha * curved
        direction = residual + (residual @ residual) / squared.clamp(min=1e-30) * direction
    return x, residual


def fisher_vector_product(policy: Policy, parameters: Tensor, vector: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Fisher matrix at the parameters [P] times a vector [P]: the Hessian of the mean KL(old || new) over the batch's
    states, which is the Fisher matrix where old = new. The matrix is never formed, because the derivative of the
    gradient along the vector is enough."""
    gradient = grad(lambda parameters: mean_kl_from_old(pi_with(policy, parameters, batch), batch))
    return jvp(gradient, (parameters,), (vector,))[1]


def pi_with(policy: Policy, parameters: Tensor, batch: dict[str, Tensor]) -> Independent:
    """The policy's distributions for the batch's states, with its parameters taken from one flat vector [P]."""
    parts = parameters.split([p.numel() for p in policy.parameters()])
    named = {name: x.view_as(p) for (name, p), x in zip(policy.named_parameters(), parts)}
    return functional_call(policy, named, batch["obs"])


def mean_kl_from_old(pi: Independent, batch: dict[str, Tensor]) -> Tensor:
    """Mean over the states of KL(old || new), as in the released code. The papers print KL(new || old) in places."""
    return kl_divergence(Independent(Normal(batch["old_means"], batch["old_stds"]), 1), pi).mean()


def line_search(
    surrogate: Callable, mean_kl: Callable, max_kl: float, start: Tensor, step: Tensor, slope: Tensor, fractions: list
) -> tuple[Tensor, float]:
    """Takes the first of the fractions of the step [P] that keeps the mean KL within max_kl and improves the surrogate
    by more than a tenth of the linear prediction, as in the released code; `slope` is the surrogate's derivative along
    the whole step. Returns the parameters [P] and that fraction, or those at the start and 0 if there is none."""
    before = surrogate(start)
    for fraction in fractions:
        parameters = start + fraction * step
        if surrogate(parameters) - before > 0.1 * fraction * slope and mean_kl(parameters) <= max_kl:
            return parameters, fraction
    return start, 0.0


def value_loss(args: Args, values: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Mean squared error of the values [B] to the value targets, clipped (1)."""
    assert values.shape == batch["value_targets"].shape  # [B, 1] would silently broadcast to errors [B, B]
    losses = (values - batch["value_targets"]) ** 2
    if args.value_clip:  # (1) has an eps of its own, because values have the units of rewards and ratios have none.
        changes = (values - batch["old_values"]).clamp(-args.value_clip_eps, args.value_clip_eps)
        # We take the larger of the two, as released, because clipping must not hide an error. IM's formula prints min.
        losses = torch.maximum(losses, (batch["old_values"] + changes - batch["value_targets"]) ** 2)
    return losses.mean()


def policy_loss(args: Args, pi: Independent, batch: dict[str, Tensor]) -> Tensor:
    """Minus the surrogate (Schulman et al. 2015, eq. 14), minus the entropy bonus."""
    advantages = batch["advantages"]
    if args.adv_norm:  # as in baselines, though not in the paper; IM does not count it among the nine
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratios = torch.exp(pi.log_prob(batch["actions"]) - batch["old_log_probs"])
    surrogate = (ratios * advantages).mean()
    return -(surrogate + args.entropy_coef * action_entropy(args, pi, batch).mean())


def action_entropy(args: Args, pi: Independent, batch: dict[str, Tensor]) -> Tensor:
    """Entropy [B] of the policy's actions in nats. If tanh squashes them, it is the Gaussian's plus
    E[ln d tanh(u) / du] up to a constant; without that term the bonus would keep increasing the standard deviations."""
    if args.bound_action != "tanh":
        return pi.entropy()
    # One reparametrized sample per state is enough. It reuses the noise of the actions, so nothing is drawn here.
    u = pi.mean + pi.stddev * (batch["actions"] - batch["old_means"]) / batch["old_stds"]
    return pi.entropy() + (2 * (math.log(2) - u - nn.functional.softplus(-2 * u))).sum(-1)  # ln(1 - tanh(u)^2), stable


def shuffle(args: Args, rng: np.random.Generator, batch: dict[str, Tensor], epochs: int) -> Tensor:
    """Row numbers of minibatches [epochs * num_minibatches, size]. A remainder of the batch is dropped."""
    size = len(batch["obs"]) // args.num_minibatches
    shuffled = [rng.permutation(len(batch["obs"]))[: args.num_minibatches * size] for _ in range(epochs)]
    return torch.from_numpy(np.reshape(shuffled, (-1, size)))


def fit(
    args: Args, network: nn.Module, adam: list, loss: Callable, batch: dict, indices: Tensor, lr: float, max_norm: float
) -> dict[str, Any]:
    """Steps the network and its Adam, in place, once for each row of `indices` [S, size]. In plain torch, a step is:

        loss(args, network(batch["obs"][rows]), {name: x[rows] for name, x in batch.items()}).backward()
        nn.utils.clip_grad_norm_(network.parameters(), max_norm)
        optimizer.step(); optimizer.zero_grad()  # torch.optim.Adam(network.parameters(), lr, eps=1e-5)

    Compiled, it is much faster, but steps must not change tensors in place. Hence the flat vector and our own Adam."""
    lr_tensor = torch.tensor(lr)  # Each new float would be compiled anew. Make what else you schedule a tensor, too.

    def loss_of(flat: Tensor, minibatch: dict[str, Tensor]) -> Tensor:
        parts = flat.split([p.numel() for p in network.parameters()])
        parameters = {name: x.view_as(p) for (name, p), x in zip(network.named_parameters(), parts)}
        return loss(args, functional_call(network, parameters, minibatch["obs"]), minibatch)

    def step(carry: tuple[Tensor, ...], rows: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor]]:
        flat, m, v, t = carry
        gradient, minibatch_loss = grad_and_value(loss_of)(flat, {name: x[rows] for name, x in batch.items()})
        grad_norm = gradient.norm()
        gradient = gradient * (max_norm / (grad_norm + 1e-6)).clamp(max=1)  # (9)
        t = t + 1  # Adam (Kingma & Ba 2015, Algorithm 1), with the released code's eps of 1e-5
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        m_hat = m / (1 - torch.exp(t * math.log(0.9)))  # 1 - 0.9^t
        v_hat = v / (1 - torch.exp(t * math.log(0.999)))
        return (flat - lr_tensor * m_hat / (v_hat.sqrt() + 1e-5), m, v, t), (minibatch_loss, grad_norm)

    carry = (nn.utils.parameters_to_vector(network.parameters()).detach(), *adam)
    if args.compile:  # To print in a loss, or to set a breakpoint there, run with --no-compile.
        carry, (losses, grad_norms) = compiled_scan(step, carry, indices)
    else:
        outputs = []
        for rows in indices:
            carry, output = step(carry, rows)
            outputs.append(output)
        losses, grad_norms = map(torch.stack, zip(*outputs))
    for p, x in zip(network.parameters(), carry[0].split([p.numel() for p in network.parameters()])):
        p.copy_(x.view_as(p))  # vector_to_parameters would make views of one storage, which cannot be compiled again.
    adam[:] = carry[1:]
    grads_clipped = (grad_norms > max_norm).float().mean()
    return dict(loss=losses.mean(), grad_norm=grad_norms.mean(), grads_clipped=grads_clipped, lr=lr)


# Speed, statistics and bookkeeping: everything below can be skipped ---------------------------------------------------

# The loop of --no-compile, compiled. With fullgraph, no graph break can silently lose the speed-up.
compiled_scan = torch.compile(scan, fullgraph=True, dynamic=False, options={"cpp_wrapper": True})

compiled_fisher_vector_product = torch.compile(
    fisher_vector_product, fullgraph=True, dynamic=False, options={"cpp_wrapper": True}
)

# At its first call for two Gaussians, kl_divergence looks up their formula and writes it into a table, which compiled
# code cannot do. So the first call is here.
kl_divergence(*[Independent(Normal(torch.zeros(1), torch.ones(1)), 1) for _ in range(2)])


def measure_update(args: Args, policy: Policy, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the whole update did to the policy, over the whole batch, in nats and as shares of the batch."""
    old_pi, pi = Independent(Normal(batch["old_means"], batch["old_stds"]), 1), policy(batch["obs"])
    kls, ratios = kl_divergence(old_pi, pi), torch.exp(pi.log_prob(batch["actions"]) - batch["old_log_probs"])
    statistics = dict(entropy=action_entropy(args, pi, batch).mean(), mean_kl=kls.mean(), max_kl=kls.max())
    return statistics | dict(
        max_ratio=ratios.max(),
        effective_sample_size=ratios.mean() ** 2 / (ratios**2).mean(),  # as a share of the batch (Kish 1965)
        # This is measured before V's fit, and it is optimistic, because the targets contain V's predictions.
        explained_variance=1 - (batch["value_targets"] - batch["old_values"]).var() / batch["value_targets"].var(),
    )


def numpy_forward(network: nn.Sequential) -> Callable[[np.ndarray], np.ndarray]:
    """The network as a function of one observation, [in] -> [out], in numpy, because torch is slow on a single one."""
    silu = lambda x: x * (1 + np.tanh(x / 2)) / 2  # x sigmoid(x), in a form that cannot overflow
    activation = {nn.Tanh: np.tanh, nn.ReLU: lambda x: np.maximum(x, 0), nn.SiLU: silu}[type(network[1])]
    *hidden, (out_weight, out_bias) = [(x.weight.detach().numpy(), x.bias.detach().numpy()) for x in network[::2]]

    def forward(x: np.ndarray) -> np.ndarray:
        for weight, bias in hidden:
            x = activation(weight.dot(x) + bias)
        return out_weight.dot(x) + out_bias

    return forward


def make_env(args: Args) -> gym.Env:
    """The environment. Actions reach it as drawn, clipped (as in Stable-Baselines3 and CleanRL), or squashed by tanh.
    Log-probabilities, ratios and KL always belong to the Gaussian before that."""
    mujoco.set_mju_user_warning(lambda _: None)  # Some models would write MUJOCO_LOG.TXT to the working folder.
    gym.logger.min_level = gym.logger.ERROR  # Gymnasium would warn of an unknown id before it raises an error.
    hint = ""
    try:
        env = gym.make(args.env_id, disable_env_checker=True)
        obs_space, space = env.observation_space, env.action_space
        for name, x in dict(observations=obs_space, actions=space).items():
            if not isinstance(x, gym.spaces.Box) or len(x.shape) != 1 or x.shape[0] == 0:
                raise ValueError(f"{name} must be a flat Box, not {x}")
        low, high = np.array([space.low, space.high], np.float64)
        if args.bound_action == "tanh" and not np.abs([low, high]).max() < 1e30:  # A huge bound stands for none.
            raise ValueError("--bound-action tanh needs actions with finite bounds; --bound-action clip does not")
        squash = lambda x: low + (high - low) * 0.5 * (np.tanh(x) + 1) if args.bound_action == "tanh" else x
        if args.bound_action != "no":
            env = gym.wrappers.TransformAction(env, lambda x: squash(x).clip(low, high).astype(space.dtype), space)
        # A trial shows here what would otherwise stop `rollout`. A new policy draws an action of 4 sooner or later.
        first_obs, _ = env.reset(seed=0)
        action = np.full(space.shape, 4, np.float32)
        if args.bound_action == "no" and not space.contains(action):
            hint = "; --bound-action clip or tanh keeps actions in their space"
        next_obs, reward, _, _, _ = env.step(action)
        hint = ""
        for obs in (first_obs, next_obs):
            if not isinstance(obs, np.ndarray) or obs.shape != obs_space.shape:
                raise ValueError(f"an observation must be an array of shape {obs_space.shape}, not {obs}")
        if np.ndim(reward) > 0 or reward is None:
            raise ValueError(f"a reward must be a number, not {reward}")
    except Exception as error:  # A user's own environment can raise anything.
        if isinstance(error, gym.error.NameNotFound) and ":" not in args.env_id:
            hint = f"; if it is one of yours, --env-id my_module:{args.env_id} imports my_module first"
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if frame.filename == __file__ else f" ({Path(frame.filename).name}, line {frame.lineno})"
        raise BadInput(f"--env-id {args.env_id}: {type(error).__name__}: {error}{place}{hint}") from error
    return env


ALGO = Path(__file__).stem
MAY_DIFFER = ("runs_dir", "run_name", "compile", "checkpoint_every")  # between two calls that are the same run


class BadInput(Exception):
    """An error that the user can correct. `main` prints it as one line."""


def check_arguments(args: Args) -> None:
    """Refuses arguments that are out of range or do not fit together."""
    ranges = dict(seed=(0, 2**64 - 1), gamma=(0, 1), gae_lambda=(0, 1), entropy_coef=(-1e38, 1e38))
    ranges |= dict(fisher_fraction=(1e-38, 1), backtrack_ratio=(1e-38, 1))
    for name, value in vars(args).items():
        low, high = ranges.get(name, (1e-38, 1e38))
        numbers = value if isinstance(value, tuple) else (value,)
        if not numbers or any(type(x) in (int, float) and not low <= x <= high for x in numbers):  # nan is in no range
            text = f"lie between {low} and {high}" if low <= 0 else f"be greater than 0 and at most {high}"
            raise BadInput(f"--{name.replace('_', '-')} {value} must {text}")
    size, parts = args.num_envs * args.num_steps, args.num_minibatches
    if size > args.total_timesteps or size % parts or size < 2 * parts:
        text = f"at most total_timesteps = {args.total_timesteps} and a multiple of num_minibatches = {parts}"
        raise BadInput(f"num_envs * num_steps = {size} must be {text}, with at least 2 steps for each of them")


def run_folder(args: Args) -> Path:
    """runs_dir/run_name; by default the name is the environment, the algorithm, every non-default flag and the seed."""
    name = f"{args.env_id}__{ALGO}"
    for f in fields(args):
        flag, value = f.name.replace("_", "-"), getattr(args, f.name)
        if value != f.default and f.name not in ("env_id", "seed", *MAY_DIFFER):
            text = "x".join(map(str, value)) if isinstance(value, tuple) else value
            name += f"__{'' if value else 'no-'}{flag}" if isinstance(value, bool) else f"__{flag}={text}"
    return Path(args.runs_dir) / (args.run_name or f"{name}__seed{args.seed}".replace("/", "-").replace(":", "-"))


@contextlib.contextmanager
def open_run(args: Args, state: State) -> Iterator[SimpleNamespace]:
    """Creates or resumes the run folder, locked while the context lasts. Yields what `record` writes to."""
    folder = run_folder(args)
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock", timeout=0, fallback_to_soft=False):  # A soft lock would survive a kill.
        if saved := {int(x.stem[5:]): x for x in folder.glob("checkpoints/iter_*.pt") if x.stem[5:].isdecimal()}:
            checkpoint = load_checkpoint(saved[max(saved)])
            now = asdict(args) | dict(algo=ALGO)
            for name, was in (dict(algo=checkpoint["algo"]) | asdict(Args()) | checkpoint["args"]).items():
                if now.get(name) != was and name not in MAY_DIFFER:
                    raise BadInput(f"{folder} holds another run: {name} was {was}, is {now.get(name)}; try --run-name")
            restore(state, checkpoint)
        if state.iteration == 0:
            write_config(args, folder)
            save_checkpoint(args, folder, state)
        if state.global_step >= state.planned_steps:
            print(f"{folder} is finished")
            sys.exit()
        progress = folder / "progress.csv"  # The rows after the checkpoint will be written again.
        progress.touch()
        header, *rows = progress.read_bytes().splitlines(keepends=True) or [b""]
        try:
            rows = [row for row in rows if row.endswith(b"\n") and int(row.split(b",")[0]) < state.iteration]
        except ValueError as error:
            raise BadInput(f"another program changed {progress}; move it away to resume the run") from error
        header = header if rows else b""
        os.truncate(progress, sum(map(len, [header, *rows])))
        print(f"{folder}: iteration {state.iteration}", flush=True)
        interval = 0.1 if sys.stderr.isatty() else 30  # seconds between updates of the bar
        bar = tqdm(total=state.planned_steps, initial=state.global_step, unit=" steps", mininterval=interval)
        with bar, SummaryWriter(folder, purge_step=state.global_step + 1) as writer, contextlib.ExitStack() as at_end:
            for worker in state.workers:  # Some environments save their videos only when they are closed.
                at_end.callback(worker.env.close)
            yield SimpleNamespace(folder=folder, header=header, tensorboard=writer, bar=bar, time=time.perf_counter())


def write_config(args: Args, folder: Path) -> None:
    versions = {x.__name__: x.__version__ for x in (torch, gym, mujoco, np)} | dict(python=platform.python_version())
    script = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    cpuinfo = Path("/proc/cpuinfo").read_text() if sys.platform == "linux" else ""
    processor = cpuinfo.partition("model name\t: ")[2].partition("\n")[0] or platform.processor() or platform.machine()
    config = dict(algo=ALGO, args=asdict(args), script=script, versions=versions, processor=processor)
    (folder / "config.json").write_text(json.dumps(config, indent=4))


def save_checkpoint(args: Args, folder: Path, state: State) -> None:
    """Writes iter_000150.pt, the state in which iteration 150 begins. A killed process leaves no half-written file."""
    plain = lambda x: torch.tensor(np.array(x)) if np.ndim(x) else x  # torch.load(weights_only=True) refuses arrays
    saved = {name: part.state_dict() if hasattr(part, "state_dict") else part for name, part in vars(state).items()}
    saved["workers"] = [{k: plain(x) for k, x in vars(worker).items() if k != "env"} for worker in state.workers]
    saved |= dict(algo=ALGO, args=asdict(args), rng=state.rng.bit_generator.state)
    path = folder / "checkpoints" / f"iter_{state.iteration:06d}.pt"
    torch.save(saved, path.with_suffix(".tmp"))
    load_checkpoint(path.with_suffix(".tmp"))  # What cannot be loaded is an error now, and not when the run resumes.
    path.with_suffix(".tmp").replace(path)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The checkpoint's dictionary: tensors and plain values, no code (weights_only)."""
    try:
        checkpoint = torch.load(path, weights_only=True)
        assert {"algo", "args", "rng"} <= checkpoint.keys(), "it is no checkpoint"
        return checkpoint
    except Exception as error:  # A damaged file raises almost anything.
        why = str(error).rpartition("WeightsUnpickler error: ")[2].partition(". ")[0] or type(error).__name__
        text = f"{path} is damaged, or State has what cannot be saved ({why})"
        raise BadInput(f"{text}; delete a damaged checkpoint to resume from the one before it") from error


def restore(state: State, checkpoint: dict[str, Any]) -> None:
    """Sets the state to that of the checkpoint, and plays the unfinished episodes again."""
    state.rng.bit_generator.state = checkpoint["rng"]
    for name, part in vars(state).items():
        if hasattr(part, "load_state_dict"):
            part.load_state_dict(checkpoint[name])
        elif name in checkpoint and name not in ("rng", "workers", "planned_steps"):  # The last follows from args.
            setattr(state, name, checkpoint[name])
    for worker, saved in zip(state.workers, checkpoint.get("workers", [])):  # An imported agent has no workers.
        saved = {name: np.asarray(x) if np.ndim(x) else x for name, x in saved.items()}
        if saved["obs"] is not None:
            (raw_obs, _), episode_return = worker.env.reset(seed=saved["seed"]), 0.0
            for action in saved["actions"]:
                raw_obs, raw_reward, *ended, _ = worker.env.step(action.copy())
                episode_return += float(raw_reward)
                if any(ended):  # The saved episode went on.
                    break
            if np.array_equal(raw_obs, saved["raw_obs"]) and episode_return == saved["episode_return"]:
                vars(worker).update(saved, actions=list(saved["actions"]))
            else:
                state.inexact_resumes = [*state.inexact_resumes, state.iteration]
                print("reset(seed=...) does not repeat an unfinished episode; a new one begins", file=sys.stderr)


def record(args: Args, run: SimpleNamespace, state: State, steps: dict, episodes: list, statistics: dict) -> None:
    """Logs an iteration, and saves a checkpoint when it is time. Fails before it saves what is not finite."""
    networks = {name: part for name, part in vars(state).items() if isinstance(part, nn.Module)}
    watched = steps | {name: x for name, x in statistics.items() if name.endswith("_loss")}
    watched |= {name: nn.utils.parameters_to_vector(x.parameters()).detach().numpy() for name, x in networks.items()}
    for name, x in watched.items():
        if len(bad := np.argwhere(~np.isfinite(np.atleast_1d(x)))):  # The first one says what went wrong, and where.
            raise FloatingPointError(f"iteration {state.iteration - 1}: {name}[{bad[0][0]}] is not finite; not saved")
    started, run.time = run.time, time.perf_counter()
    mean_return, mean_length = np.mean(episodes, axis=0).tolist() if episodes else ("", "")
    row = dict(iteration=state.iteration - 1, global_step=state.global_step)
    row |= dict(sps=round(len(steps["rewards"]) / (run.time - started), 1), episodes=len(episodes))
    row |= dict(episodic_return=mean_return, episodic_length=mean_length, **statistics)
    if run.header.strip() not in (b"", ",".join(row).encode()):
        raise BadInput(f"{run.folder / 'progress.csv'} has other columns than this run; move it away to resume the run")
    with open(run.folder / "progress.csv", "a") as file:
        if file.tell() == 0:
            print(*row, sep=",", file=file)
        print(*row.values(), sep=",", file=file)
    for name, x in list(row.items())[2:]:  # without iteration and global_step
        if x != "":
            group = "charts" if name not in statistics or name.endswith("_lr") else "losses"  # as in CleanRL
            run.tensorboard.add_scalar(f"{group}/{name}", x, state.global_step)
    if episodes:
        run.bar.set_postfix(episodic_return=f"{mean_return:.1f}", refresh=False)
    run.bar.update(len(steps["rewards"]))
    if state.global_step >= state.planned_steps or state.iteration % args.checkpoint_every == 0:
        run.tensorboard.flush()
        save_checkpoint(args, run.folder, state)


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    torch.set_num_threads(1)  # The networks are too small for more; many runs are many processes, one per core.
    Distribution.set_default_validate_args(False)  # Such checks cannot be compiled.
    try:
        check_arguments(args)
        if args.compile:
            try:
                torch.compile(torch.neg, options={"cpp_wrapper": True})(torch.zeros(2))
            except Exception:
                print("torch.compile fails (no C++ compiler?); continuing with --no-compile", file=sys.stderr)
                args = replace(args, compile=False)
        train(args)
    except (BadInput, OSError, FloatingPointError, KeyboardInterrupt) as error:
        message = " ".join(str(error).split()) or "interrupted; rerun the same command to resume"
        hint = "; --run-name and --runs-dir choose another run folder" if isinstance(error, OSError) else ""
        print(f"{ALGO}.py: {message.rstrip('.')}{hint}", file=sys.stderr)
        sys.exit({FloatingPointError: 1, KeyboardInterrupt: 130}.get(type(error), 2))


if __name__ == "__main__":
    sys.path.append(os.getcwd())  # where --env-id my_module:MyEnv-v0 looks for my_module.py
    main()
