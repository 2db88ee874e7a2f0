# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "gymnasium[mujoco]==1.4.0", "mujoco==4.0.0", "numpy==2.4.6", "tyro==1.0.17",
#   "tensorboard==2.21.0", "tqdm==4.70.1", "filelock==4.2.12"]
# ///
"""V-MPO (Song et al. 2019) with the nine code-level optimizations of "Implementation Matters in Deep Policy Gradients"
(Engstrom, Ilyas et al., ICLR 2020; "IM" below). Each has a flag and is marked (1) to (9) where it acts. The step
follows "The Definitive Guide to Policy Gradients" (Lehmann 2024; "GUIDE" below), Algorithm 8. (1) is off by default.

    train                repeat
    rollout                  act with pi_old for num_steps steps of each environment, which gives s, a, r and s'
    estimate_advantages      delta = r + gamma V(s') - V(s), where V(s') = 0 after a terminal state
                             A = sum over l of (gamma gae_lambda)^l delta, l steps later (Schulman et al. 2016, eq. 16)
                             target = A + V(s)
    update, fit              value_epochs times, for each minibatch of the shuffled batch
    value_loss                   Adam takes V down the mean of (V(s) - target)^2
    update, fit_policy       policy_epochs times, for each minibatch of the shuffled batch
    best_half                    of the half of its pairs with the largest A: psi = softmax(A / eta)
    weighted_loss                Adam takes pi down -sum psi ln pi(a|s) (GUIDE eq. 20) + nu_mean KL_mean + nu_std KL_std
    decoupled_kl                     where KL_mean is KL(pi_old || pi) if only the mean changed, KL_std if only the std
    multiplier_loss              Adam takes eta down eta eps_temperature + eta ln mean exp(A / eta) (eq. 21), and the nu
                                 down nu_mean (eps_mean - KL_mean) + nu_std (eps_std - KL_std) (eq. 22)

    python algos/vmpo.py                                        # Hopper-v5, 1M steps
    python algos/vmpo.py --env-id Walker2d-v5 --seed 3          # another environment, another seed
    python algos/vmpo.py --eps-mean 0.1                         # let the policy's mean move further in an iteration

The same command again continues an interrupted run from its newest checkpoint, to the same bits. GUIDE's settings are
for 8M steps; ours, where they differ, are for 1M. "The released code" is MadryLab/implementation-matters, commit
1b8af2d (April 2020), to which IM links.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import json
import math
import os
import platform
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
from filelock import FileLock, Timeout
from torch import Tensor, nn

# scan is a loop that stays a loop when it is compiled. It is a prototype feature of torch, but with it the 640
# minibatch steps of a PPO iteration take 37 ms; as compiled single steps in a Python loop they take 70 ms.
from torch._higher_order_ops.scan import scan
from torch.distributions import Independent, Normal, kl_divergence
from torch.func import functional_call, grad, grad_and_value
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

# Arguments and state -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Args:
    env_id: str = "Hopper-v5"  # any with flat Box observations and actions; module:Env-v0 imports your module
    total_timesteps: int = 1_000_000  # environment steps in all; rounded down to whole iterations
    seed: int = 1  # seed of all random numbers

    # The nine optimizations, in IM's order.
    value_clip: bool = False  # (1) clip the change of the value prediction in the value loss; GUIDE has none
    value_clip_eps: float = 0.2  # (1) change of a value prediction beyond which its loss is clipped
    reward_scale: bool = True  # (2) divide rewards by a running standard deviation
    reward_scale_by: Literal["returns", "rewards"] = "returns"  # (2) by the std of discounted sums, or of the rewards
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

    num_envs: int = 8  # environments, stepped one after another
    # The KL of an iteration is not bounded: it has a price, which moves by about the learning rate in each step. That
    # takes many steps: these settings take 488 iterations of 320 steps in 1M, GUIDE's (2048, 8 minibatches) 61 of 80.
    num_steps: int = 256  # steps of each environment in an iteration
    num_minibatches: int = 32  # minibatches that an epoch divides the batch into
    policy_epochs: int = 10  # passes of the policy update over the batch
    value_epochs: int = 10  # passes of the value update over the batch
    policy_lr: float = 3e-4  # Adam learning rate of the policy and of the multipliers
    value_lr: float = 3e-4  # Adam learning rate of the value network
    eps_temperature: float = 0.01  # KL(psi || uniform) over the better half, in nats, to which eta is steered
    eps_mean: float = 0.01  # KL of an iteration's change of the mean, in nats, above which its price rises
    eps_std: float = 5e-5  # KL of an iteration's change of the std, in nats, above which its price rises
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalized advantage estimation
    entropy_coef: float = 0.0  # coefficient of the entropy in the objective; may be negative
    policy_hidden: tuple[int, ...] = (64, 64)  # sizes of the policy's hidden layers
    value_hidden: tuple[int, ...] = (64, 64)  # sizes of the value network's hidden layers
    bootstrap_truncation: bool = True  # take V for what a time limit cuts off; off: treat it as a terminal state
    bound_action: Literal["no", "clip", "tanh"] = "no"  # give the environment the action as drawn, clipped or squashed

    compile: bool = True  # compile the updates: 5 to 25 seconds once, then they are 20 times faster
    runs_dir: str = "runs"  # folder of all runs
    run_name: str = ""  # folder of this run inside runs_dir; default: environment, algorithm, non-default flags, seed
    checkpoint_every: int = 100  # iterations between checkpoints; after each, all environments begin a new episode
    overwrite: bool = False  # start anew, deleting the checkpoints and logs of an earlier run in the run folder

    def __post_init__(self) -> None:
        check_ranges(self, seed=(0, 2**64 - 1), gamma=(0, 1), gae_lambda=(0, 1), entropy_coef=(-1e38, 1e38))


@dataclass
class State:
    """Everything that training changes. A checkpoint holds all of it but the actors."""

    actors: list[Actor]
    rng: np.random.Generator
    policy: Policy
    value: Value
    multipliers: Tensor  # [3]: temperature eta, nu_mean, nu_std
    policy_adam: list[Tensor]  # of policy and multipliers: moments m [P + 3] and v [P + 3], number of steps t
    value_adam: list[Tensor]
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
            statistics = update(args, state, batch)
            record(args, run, state, statistics, experience["episodes"])


def planned_steps(args: Args) -> int:
    """Environment steps after which a run ends: total_timesteps, rounded down to a multiple of num_envs * num_steps."""
    return args.total_timesteps - args.total_timesteps % (args.num_envs * args.num_steps)


# Rollout -------------------------------------------------------------------------------------------------------------


def begin_episodes(args: Args, state: State) -> None:
    """Lets the iteration after a checkpoint begin with new episodes, even in a run that nothing interrupts. So no
    simulator has to be saved, and a continued run has the bits of an uninterrupted one in every environment that
    reset(seed=...) determines. An episode that is cut off here is not counted."""
    if state.iteration % args.checkpoint_every == 0:
        state.actors = [Actor(actor.env) for actor in state.actors]


def rollout(args: Args, state: State) -> dict[str, Any]:
    """Steps one actor after another num_steps times with the state's policy. An unfinished episode goes on in the next
    rollout.

    Returns arrays over all B = num_envs * num_steps pairs, actor after actor: obs [B, obs] and next_obs [B, obs] as the
    networks see them, actions [B, action] as drawn, rewards [B] to learn from, terminations [B] where V(s') counts as
    0, ends [B] where the next row belongs to another episode or actor; and episodes, the raw return and length
    of each that ended."""
    obs, next_obs, actions, rewards, terminations, ends, episodes = [], [], [], [], [], [], []
    policy_mean = numpy_forward(state.policy.mean)
    std = state.policy.log_std.detach().exp().numpy()
    # The actors take turns, one whole segment each: on one core, stepping them side by side would gain nothing.
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
            raw_obs, reward, terminated, truncated, _ = actor.env.step(bound_action(args, actor.env, action))
            actor.obs = observe(args, state.obs_stats, raw_obs)
            next_obs.append(actor.obs)
            rewards.append(scale_reward(args, state.reward_stats, actor, float(reward)))
            actor.episode_return += float(reward)
            actor.episode_length += 1

            # A time limit is no terminal state: what would have followed is worth V of the true final observation
            # (Pardo et al. 2018). The released code treats it as one; --no-bootstrap-truncation does the same.
            terminations.append(terminated or (truncated and not args.bootstrap_truncation))
            # The rollout's end cuts the episode in the same way. The released code resets the environment there and
            # takes V of the last state itself for V of the next.
            ends.append(terminated or truncated or t == args.num_steps - 1)
            if terminated or truncated:
                # Every finished episode counts. The released code leaves out one that ends on the batch's last step.
                episodes.append((actor.episode_return, actor.episode_length))
                first_obs, _ = actor.env.reset()
                actor.obs = observe(args, state.obs_stats, first_obs)
                # R of (2) restarts with the episode, as in the released code; IM's Algorithm 1 lets it go on.
                actor.episode_return, actor.episode_length, actor.past_rewards = 0.0, 0, 0.0

    # bool, because an environment may return 0 and 1, which would pick rows 0 and 1 where a mask is meant.
    masks = dict(terminations=np.array(terminations, dtype=bool), ends=np.array(ends, dtype=bool))
    arrays = dict(obs=obs, next_obs=next_obs, actions=actions, rewards=rewards)
    return {name: np.array(x) for name, x in arrays.items()} | masks | dict(episodes=episodes)


def numpy_forward(network: nn.Sequential) -> Callable[[np.ndarray], np.ndarray]:
    """The network as a function of one observation, [in] -> [out]. It is written a second time, in numpy, because a
    pass of a single row costs 46 to 52 us in torch and 5 here, and a whole step about 100."""
    silu = lambda x: x * (1 + np.tanh(x / 2)) / 2  # noqa: E731
    activations = {nn.Tanh: np.tanh, nn.ReLU: lambda x: np.maximum(x, 0), nn.SiLU: silu}
    activation = activations[type(network[1])]
    *hidden, (out_weight, out_bias) = [(x.weight.detach().numpy(), x.bias.detach().numpy()) for x in network[::2]]

    def forward(x: np.ndarray) -> np.ndarray:
        for weight, bias in hidden:
            x = activation(weight.dot(x) + bias)
        return out_weight.dot(x) + out_bias

    return forward


def observe(args: Args, stats: RunningStats, obs: np.ndarray) -> np.ndarray:
    """Raw observation [obs] -> what the networks see, float32. The statistics take it in first."""
    if args.obs_norm:  # (6)
        stats.push(obs)
        obs = (obs - stats.mean) / (stats.std + 1e-8)
    if args.obs_clip:  # (7) also without (6); in the released code the clip belongs to the normalizer and goes with it
        obs = obs.clip(-args.obs_clip_range, args.obs_clip_range)
    return obs.astype(np.float32)


def bound_action(args: Args, env: gym.Env, action: np.ndarray) -> np.ndarray:
    """The action as drawn -> what the environment gets. This map counts as a part of the environment, so that
    log-probabilities, ratios and KL are those of the Gaussian before it in all three cases."""
    if args.bound_action == "no":
        # As the released code does. MuJoCo limits the controls itself, but the reward's control cost is that of the
        # whole action: for Humanoid's first actions it is 8 times as large.
        return action.copy()  # because an environment may change the action that it gets
    low, high = env.action_space.low, env.action_space.high
    if args.bound_action == "clip":  # as Stable-Baselines3 and CleanRL do
        return action.clip(low, high)
    return low + (high - low) * 0.5 * (np.tanh(action) + 1)


def scale_reward(args: Args, stats: RunningStats, actor: Actor, reward: float) -> float:
    """Raw reward of the actor's step -> what is learned from. The statistics take it in first."""
    if args.reward_scale:  # (2)
        actor.past_rewards = args.gamma * actor.past_rewards + reward
        if args.reward_scale_by == "returns":
            stats.push(actor.past_rewards)
            reward = reward / (stats.std + 1e-8)  # not centered: a shift would pay for longer or shorter episodes
        else:
            stats.push(reward)
            # The mean is put back after the division, as in the released code.
            reward = (reward - stats.mean) / (stats.std + 1e-8) + stats.mean
    if args.reward_clip:  # (5) also without (2); in the released code the clip belongs to the scaling and goes with it
        reward = min(max(reward, -args.reward_clip_range), args.reward_clip_range)
    return reward


# Advantages ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def estimate_advantages(args: Args, state: State, experience: dict[str, Any]) -> dict[str, Tensor]:
    """A rollout -> the batch that the losses and `update` take, tensors over its B pairs: obs [B, obs], actions
    [B, action]; of the policy that acted old_means, old_stds [B, action] and old_log_probs [B]; old_values [B] of the
    value network before its fit; advantages [B] by GAE (Schulman et al. 2016, eq. 16), value_targets [B];
    and multipliers [3] as the iteration begins, which `objective` takes."""
    obs, actions = torch.from_numpy(experience["obs"]), torch.from_numpy(experience["actions"])
    old_policy, old_values = state.policy(obs), state.value(obs)
    # They are not simply the values of the next rows: where an episode ends, the next row belongs to another.
    next_values = state.value(torch.from_numpy(experience["next_obs"]))

    # GAE is computed in numpy and float64, because its recursion accumulates rounding and would be slow in torch. Pairs
    # are not weighted by gamma^t, which the gradient of the discounted return requires; hardly any implementation does.
    values, next_values = old_values.double().numpy(), next_values.double().numpy()
    next_values[experience["terminations"]] = 0.0
    deltas = experience["rewards"] + args.gamma * next_values - values
    sums = discounted_sums(deltas, experience["ends"], args.gamma * args.gae_lambda)
    advantages = torch.from_numpy(sums).float()

    batch = dict(obs=obs, actions=actions, advantages=advantages, value_targets=advantages + old_values)
    batch |= dict(old_means=old_policy.mean, old_stds=old_policy.stddev, old_values=old_values)
    batch |= dict(old_log_probs=old_policy.log_prob(actions), multipliers=state.multipliers.clone())
    if args.bound_action == "tanh":
        # The noise is drawn once for the whole update, because there are no random numbers inside the compiled loop.
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
    # (9) IM's prose and baselines clip the norm of both gradients together, and the released code clips the policy's
    # alone (as --no-value-grad-clip does). Here each network has its own, since each is stepped on its own.
    policy_norm = args.max_grad_norm if args.grad_clip else math.inf
    value_norm = args.max_grad_norm if args.value_grad_clip else math.inf

    # The value network comes first, as in the released code. The advantages are fixed already, so that neither fit sees
    # what the other has done.
    pairs = {name: x for name, x in batch.items() if name != "multipliers"}  # of which minibatches are rows
    statistics = fit(args, state, "value", value_loss, pairs, args.value_epochs, value_lr, value_norm)
    statistics |= fit_policy(args, state, pairs, policy_lr, policy_norm)
    state.iteration += 1
    state.global_step += len(batch["obs"])

    statistics |= dict(value_lr=value_lr, policy_lr=policy_lr, explained_variance=explained_variance(batch))
    statistics |= compare_policies(args, state.policy, batch)
    statistics |= zip(("temperature", "nu_mean", "nu_std"), state.multipliers)
    return {name: float(x) for name, x in statistics.items()}


def value_loss(args: Args, value: Callable, batch: dict[str, Tensor]) -> Tensor:
    """What the value step minimizes: the mean squared error to the value targets, over all steps; the released code
    leaves out the terminal ones. `value` maps observations [B, obs] to values [B]: it is the network, or the network
    with other parameters."""
    values, old_values, targets = value(batch["obs"]), batch["old_values"], batch["value_targets"]
    losses = (values - targets) ** 2
    if args.value_clip:  # (1) with an eps of its own: IM's prose takes the ratio's, though values have other units
        clipped_values = old_values + (values - old_values).clamp(-args.value_clip_eps, args.value_clip_eps)
        # The larger of the two, as in the released code and in baselines, because clipping must not hide an error.
        # IM's formula prints min.
        losses = torch.maximum(losses, (clipped_values - targets) ** 2)
    return losses.mean()


def fit(
    args: Args, state: State, name: str, loss: Callable, batch: dict, epochs: int, lr: float, max_norm: float
) -> dict[str, Tensor]:
    """Fits the state's network of that name, and its Adam, in place. For each minibatch of each epoch it does what
    these three lines of plain torch do, but PPO's two fits take 37 ms instead of 430:

        loss(args, network, {key: x[rows] for key, x in batch.items()}).backward()
        nn.utils.clip_grad_norm_(network.parameters(), max_norm)
        adam.step(); adam.zero_grad()  # torch.optim.Adam(network.parameters(), lr, eps=1e-5)

    Returns the mean loss, the mean norm of the gradients before clipping, and the fraction of them that was clipped."""
    network, adam, batch_size = getattr(state, name), getattr(state, f"{name}_adam"), len(batch["obs"])
    # Every epoch shuffles the batch and divides it into minibatches of row numbers. It drops the remainder, which only
    # REINFORCE's batches and those of the diagnostics have.
    size = batch_size // args.num_minibatches
    shuffled = [state.rng.permutation(batch_size)[: args.num_minibatches * size] for _ in range(epochs)]
    minibatches = torch.from_numpy(np.concatenate(shuffled).reshape(epochs * args.num_minibatches, size))
    lr = torch.tensor(lr)  # as a float it would be a constant of the compiled code, compiled anew in every iteration

    def loss_of(parameters: Tensor, minibatch: dict[str, Tensor]) -> Tensor:
        return loss(args, with_parameters(network, parameters), minibatch)

    # The step is a function of tensors alone, with the parameters as one flat vector, so that the whole loop over the
    # minibatches can be compiled. torch.optim.Adam changes tensors in place, which compiled loops cannot; so Adam is
    # written out (Kingma & Ba 2015, Algorithm 1; eps as in baselines). t is float64, because 1 - 0.999^t needs the
    # digits; 0.9^t is written as exp(t ln 0.9), because powers in the compiled loop would cost 6 ms more. The weights
    # of the averages m and v add up to m_sum and v_sum, which are 1 only in the long run.
    def step(carry: tuple, rows: Tensor) -> tuple[tuple, tuple]:
        parameters, m, v, t = carry
        minibatch = {key: x[rows] for key, x in batch.items()}
        gradient, minibatch_loss = grad_and_value(loss_of)(parameters, minibatch)
        norm = gradient.norm()
        gradient = gradient * (max_norm / (norm + 1e-6)).clamp(max=1)  # IM's (9); an infinite max_norm clips nothing
        m, v, t = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2, t + 1
        m_sum, v_sum = 1 - torch.exp(t * math.log(0.9)), 1 - torch.exp(t * math.log(0.999))
        parameters = parameters - lr * (m / m_sum) / ((v / v_sum).sqrt() + 1e-5)
        return (parameters, m, v, t), (minibatch_loss, norm)

    carry = flat_parameters(network), *adam
    if args.compile:
        carry, (losses, norms) = compiled_scan(step, carry, minibatches)
    else:
        outputs = []
        for rows in minibatches:
            carry, output = step(carry, rows)
            outputs.append(output)
        losses, norms = map(torch.stack, zip(*outputs))
    nn.utils.vector_to_parameters(carry[0], network.parameters())
    adam[:] = carry[1:]
    found = dict(loss=losses.mean(), grad_norm=norms.mean(), grads_clipped=(norms > max_norm).float().mean())
    return {f"{name}_{statistic}": x for statistic, x in found.items()}


def with_parameters(network: nn.Module, parameters: Tensor) -> Callable:
    """The network as a function of observations, with its parameters taken from one flat vector [P]."""
    named = dict(network.named_parameters())
    parts = parameters.split([p.numel() for p in named.values()])
    return partial(functional_call, network, {k: x.view(p.shape) for (k, p), x in zip(named.items(), parts)})


def flat_parameters(network: nn.Module) -> Tensor:
    """The network's parameters as one vector [P]."""
    return nn.utils.parameters_to_vector(network.parameters()).detach()


# fullgraph, because a part that silently stayed in Python would cost the whole gain; cpp_wrapper, so that C++ calls the
# kernels.
compiled_scan = torch.compile(lambda *x: scan(*x), fullgraph=True, dynamic=False, options={"cpp_wrapper": True})


# At its first call for two Gaussians, kl_divergence looks up their formula and writes it into a table, which compiled
# code cannot do. So the first call is here.
kl_divergence(*[Independent(Normal(torch.zeros(1), torch.ones(1)), 1) for _ in range(2)])


def fit_policy(args: Args, state: State, batch: dict[str, Tensor], lr: float, max_norm: float) -> dict[str, Tensor]:
    """Like `fit`, for the policy and, in the same steps, the multipliers, whose gradient is not clipped."""
    lr, policy, batch_size = torch.tensor(lr), state.policy, len(batch["obs"])
    size = batch_size // args.num_minibatches
    shuffled = [state.rng.permutation(batch_size)[: args.num_minibatches * size] for _ in range(args.policy_epochs)]
    minibatches = torch.from_numpy(np.concatenate(shuffled).reshape(args.policy_epochs * args.num_minibatches, size))

    def loss_of(parameters: Tensor, multipliers: Tensor, minibatch: dict[str, Tensor]) -> tuple[Tensor, tuple]:
        return weighted_loss(args, with_parameters(policy, parameters), multipliers, minibatch)

    # Adam acts on each number by itself, so that one Adam serves policy and multipliers, in one vector [P + 3].
    def step(carry: tuple, rows: Tensor) -> tuple[tuple, tuple]:
        vector, m, v, t = carry
        parameters, multipliers = vector[:-3], vector[-3:]
        minibatch = {key: x[rows] for key, x in batch.items()}
        gradient, (minibatch_loss, kls) = grad_and_value(loss_of, has_aux=True)(parameters, multipliers, minibatch)
        norm = gradient.norm()
        gradient = gradient * (max_norm / (norm + 1e-6)).clamp(max=1)  # IM's (9); an infinite max_norm clips nothing
        # The KLs are constants here, as the multipliers are in the policy's loss.
        slope = grad(lambda x: multiplier_loss(args, x, minibatch["advantages"], *kls))(multipliers)
        gradient = torch.cat([gradient, slope])
        m, v, t = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2, t + 1
        m_sum, v_sum = 1 - torch.exp(t * math.log(0.9)), 1 - torch.exp(t * math.log(0.999))
        vector = vector - lr * (m / m_sum) / ((v / v_sum).sqrt() + 1e-5)
        # A negative multiplier would pay for KL, and the temperature is a divisor.
        vector = torch.cat([vector[:-3], vector[-3:].clamp(min=1e-8)])
        return (vector, m, v, t), (minibatch_loss, norm)

    carry = torch.cat([flat_parameters(policy), state.multipliers]), *state.policy_adam
    if args.compile:
        carry, (losses, norms) = compiled_scan(step, carry, minibatches)
    else:
        outputs = []
        for rows in minibatches:
            carry, output = step(carry, rows)
            outputs.append(output)
        losses, norms = map(torch.stack, zip(*outputs))
    vector, *state.policy_adam = carry
    nn.utils.vector_to_parameters(vector[:-3], policy.parameters())
    state.multipliers = vector[-3:].clone()
    clipped = (norms > max_norm).float().mean()
    return dict(policy_loss=losses.mean(), policy_grad_norm=norms.mean(), policy_grads_clipped=clipped)


def weighted_loss(
    args: Args, policy: Callable, multipliers: Tensor, batch: dict[str, Tensor]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """What the policy step minimizes, given the multipliers [3] (GUIDE Algorithm 8): minus the log-likelihood of the
    better half of the pairs, weighted by psi, plus the multipliers times the two parts of the KL from the policy that
    collected the batch. Returns the loss and the two KLs. The entropy bonus is ours, and 0 by default."""
    temperature, nu_mean, nu_std = multipliers
    pi = policy(batch["obs"])
    rows = best_half(batch["advantages"])
    psi = torch.softmax(batch["advantages"][rows] / temperature, 0)
    # A sum, as in eq. 20: the weights add up to 1 already, so that Algorithm 8's further 1 / |D~| has no place.
    likelihood = (psi * pi.log_prob(batch["actions"])[rows]).sum()
    # GUIDE's code takes the KL from the current policy instead, which has no gradient.
    kl_mean, kl_std = (x.mean() for x in decoupled_kl(gaussian(batch["old_means"], batch["old_stds"]), pi))
    bonus = args.entropy_coef * action_entropy(args, pi, batch).mean()
    return -(likelihood - nu_mean * kl_mean - nu_std * kl_std + bonus), (kl_mean, kl_std)


def best_half(advantages: Tensor) -> Tensor:
    """Row numbers [B // 2] of the half of the minibatch with the largest advantages [B]. Algorithm 8 takes that of the
    batch, but has no minibatches. Advantages are not normalized, because the temperature finds their scale."""
    return advantages.topk(len(advantages) // 2, sorted=False).indices


def decoupled_kl(old: Independent, new: Independent) -> tuple[Tensor, Tensor]:
    """KL(old || new) if only the mean changed, and if only the standard deviation did, both [B], in nats (GUIDE 4.5;
    its code divides the first by sigma instead of sigma^2, and its second is 0.5 where nothing has changed)."""
    only_mean, only_std = gaussian(new.mean, old.stddev), gaussian(old.mean, new.stddev)
    return kl_divergence(old, only_mean), kl_divergence(old, only_std)


def multiplier_loss(args: Args, multipliers: Tensor, advantages: Tensor, kl_mean: Tensor, kl_std: Tensor) -> Tensor:
    """What the step of the multipliers [3] minimizes: the temperature loss of the better half (GUIDE eq. 21), and
    nu * (eps - KL) of mean and standard deviation, which raises nu while the KL is beyond eps (eq. 22)."""
    temperature, nu_mean, nu_std = multipliers
    top = advantages[best_half(advantages)]
    log_mean_exp = torch.logsumexp(top / temperature, 0) - math.log(len(top))
    kl_loss = nu_mean * (args.eps_mean - kl_mean) + nu_std * (args.eps_std - kl_std)
    return temperature * args.eps_temperature + temperature * log_mean_exp + kl_loss


def objective(args: Args, policy: Callable, batch: dict[str, Tensor]) -> Tensor:
    """What the policy step maximizes, with the multipliers that the iteration begins with. Training does not call it,
    since there the multipliers move with every step; diagnostics do. `policy` maps observations [B, obs] to B
    distributions of actions (Independent: with a plain Normal, log_prob would be [B, action] and broadcast); it is the
    network, or the network with other parameters."""
    loss, _ = weighted_loss(args, policy, batch["multipliers"], batch)
    return -loss


def action_entropy(args: Args, pi: Independent, batch: dict[str, Tensor]) -> Tensor:
    """Entropy [B] of the policy's actions. Where tanh squashes them, it is the Gaussian's plus E[ln d tanh(u) / du],
    without the constant scale of the bounds. Without that term the bonus would reward standard deviations without
    bound."""
    if args.bound_action != "tanh":
        return pi.entropy()
    u = pi.mean + pi.stddev * batch["entropy_noise"]  # one reparametrized sample for each state
    return pi.entropy() + (2 * (math.log(2) - u - nn.functional.softplus(-2 * u))).sum(-1)  # ln(1 - tanh(u)^2), stable


@torch.no_grad()
def compare_policies(args: Args, policy: Policy, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Statistics of the policy after the whole update, over all pairs of the batch: its entropy, the mean and largest
    KL(old || new) in nats, and the largest probability ratio. (Elsewhere they are often means over minibatches.)"""
    old, new = gaussian(batch["old_means"], batch["old_stds"]), policy(batch["obs"])
    kls, log_ratios = kl_divergence(old, new), new.log_prob(batch["actions"]) - batch["old_log_probs"]
    entropy = action_entropy(args, new, batch).mean()
    return dict(entropy=entropy, mean_kl=kls.mean(), max_kl=kls.max(), max_ratio=log_ratios.max().exp())


def explained_variance(batch: dict[str, Tensor]) -> Tensor:
    """Explained variance of the value network before its fit. It flatters the network, since the targets contain the
    predictions, and is nan where the targets are constant."""
    return 1 - (batch["value_targets"] - batch["old_values"]).var() / batch["value_targets"].var()


# Initial state -------------------------------------------------------------------------------------------------------


def initial_state(args: Args, actors: list[Actor]) -> State:
    """The state in which iteration 0 begins."""
    env, rng = actors[0].env, np.random.default_rng(args.seed)
    [obs_size], [action_size] = env.observation_space.shape, env.action_space.shape
    policy, value = make_networks(args, obs_size, action_size)
    multipliers = torch.ones(3)
    adams = adam_init(torch.cat([flat_parameters(policy), multipliers])), adam_init(flat_parameters(value))
    return State(actors, rng, policy, value, multipliers, *adams, RunningStats((obs_size,)), RunningStats())


def adam_init(parameters: Tensor) -> list[Tensor]:
    """State of Adam before its first step on the parameters [P]."""
    return [torch.zeros_like(parameters), torch.zeros_like(parameters), torch.zeros((), dtype=torch.float64)]


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
    """Linear layers of the given sizes, with the activation between them."""
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), activation())]
    return nn.Sequential(*layers[:-1])


def gaussian(means: Tensor, stds: Tensor) -> Independent:
    """Diagonal Gaussians over actions [B, action]. They are not validated, because such checks cannot be compiled."""
    return Independent(Normal(means, stds, validate_args=False), 1, validate_args=False)


class RunningStats:
    """Mean and unbiased standard deviation of a stream of samples (Welford's algorithm), in float64, in which a
    millionth sample still counts. While they are `frozen`, as in diagnostics, they do not change."""

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
        """With fewer than two samples it is |mean|; otherwise the first scaled reward of a run would be enormous."""
        return (self.sum_sq / (self.count - 1)) ** 0.5 if self.count > 1 else abs(self.mean)

    def state_dict(self) -> dict[str, Any]:
        saved = dict(count=self.count, mean=self.mean, sum_sq=self.sum_sq)
        return {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in saved.items()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        vars(self).update({name: x.numpy() if isinstance(x, Tensor) else x for name, x in saved.items()})


# =====================================================================================================================
# Bookkeeping of arguments, environments, checkpoints and the run folder. No algorithm stands below this line.
# =====================================================================================================================

SCRIPT = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()  # read at the start, before anyone edits the file
NOT_OF_THE_RUN = ("runs_dir", "run_name", "overwrite", "compile")  # arguments that may differ when a run continues


def stop(message: str, status: int = 2) -> NoReturn:
    """Ends the program with one line on standard error. Status 2 means bad input or a run folder that cannot be used, 1
    that training failed, 130 that Ctrl-C was pressed, and 0 that there is nothing to do."""
    print(f"{Path(__file__).name}: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(status)


def check_ranges(args: Args, **ranges: tuple[float, float]) -> None:
    """Raises ValueError, of which tyro makes a message and exit status 2, where a number is outside its range, ends
    included. A number for which no range is given must be positive, and finite in single precision."""
    for name, value in vars(args).items():
        low, high = ranges.get(name, (1e-38, 1e38))
        numbers = value if isinstance(value, tuple) else (value,)
        if not numbers or any(type(x) in (int, float) and not low <= x <= high for x in numbers):  # nan is in no range
            text = f"lie between {low} and {high}" if name in ranges else "be greater than 0 and finite"
            raise ValueError(f"--{name.replace('_', '-')} {value} must {text}")


def make_actors(args: Args) -> list[Actor]:
    """The environments, not yet reset. Stops where the networks cannot serve them."""
    mujoco.set_mju_user_warning(lambda _: None)  # otherwise HalfCheetah-v4 writes MUJOCO_LOG.TXT where it is started
    try:
        actors = [Actor(gym.make(args.env_id, disable_env_checker=True)) for _ in range(args.num_envs)]
    except (gym.error.Error, ImportError, TypeError, ValueError) as error:
        stop(f"--env-id {args.env_id}: {error}")
    env = actors[0].env
    for name, space in (("observations", env.observation_space), ("actions", env.action_space)):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            stop(f"--env-id {args.env_id}: {name} must be a flat Box, not {space}")
    if args.bound_action == "tanh" and not env.action_space.is_bounded():
        stop(
            f"--bound-action tanh: the actions of {args.env_id} have no finite bounds; --bound-action clip allows that"
        )
    return actors


def identity(args: Args) -> dict[str, Any]:
    """What a checkpoint and config.json say of their run."""
    versions = {x.__name__: str(x.__version__) for x in (torch, gym, mujoco, np)}
    versions |= dict(python=platform.python_version())
    return dict(algo=Path(__file__).stem, args=asdict(args), script=SCRIPT, versions=versions)


def run_folder(args: Args) -> Path:
    """runs_dir/run_name; by default the name is the environment, the algorithm, every non-default flag and the seed."""
    name = f"{args.env_id}__{Path(__file__).stem}"
    for field in fields(args):
        flag, value = field.name.replace("_", "-"), getattr(args, field.name)
        if value != field.default and field.name not in ("env_id", "seed", *NOT_OF_THE_RUN):
            text = "x".join(map(str, value)) if isinstance(value, tuple) else value
            name += f"__{'' if value else 'no-'}{flag}" if isinstance(value, bool) else f"__{flag}={text}"
    return Path(args.runs_dir) / (args.run_name or f"{name}__seed{args.seed}".replace("/", "-").replace(":", "-"))


def save_checkpoint(args: Args, folder: Path, state: State) -> None:
    """Writes iter_000150.pt, the state in which iteration 150 begins."""
    parts = {name: part for name, part in vars(state).items() if name != "actors"}
    saved = {name: part.state_dict() if hasattr(part, "state_dict") else part for name, part in parts.items()}
    buffer = io.BytesIO()  # on a full disk, torch.save to a file would raise RuntimeError, which says nothing
    torch.save(identity(args) | saved | dict(rng=state.rng.bit_generator.state), buffer)
    write_whole(folder / "checkpoints" / f"iter_{state.iteration:06d}.pt", buffer.getvalue())


def write_whole(path: Path, content: bytes) -> None:
    """Writes the whole file or, where the process is killed, leaves the old one."""
    path.with_suffix(".tmp").write_bytes(content)
    path.with_suffix(".tmp").replace(path)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The checkpoint's dictionary: tensors and plain values, no code (weights_only)."""
    try:
        checkpoint = torch.load(path, weights_only=True)
    except Exception:  # a damaged file raises almost anything
        checkpoint = None
    if not isinstance(checkpoint, dict) or "script" not in checkpoint or "format" in checkpoint:
        stop(f"{path} is damaged, or older than these scripts; without it, the run goes on from the checkpoint before")
    return checkpoint


def restore(state: State, checkpoint: dict[str, Any]) -> None:
    """Sets the state to that of the checkpoint."""
    for name, part in vars(state).items():
        if name == "rng":
            part.bit_generator.state = checkpoint["rng"]
        elif hasattr(part, "load_state_dict"):
            part.load_state_dict(checkpoint[name])
        elif name != "actors":
            setattr(state, name, checkpoint[name])


@contextlib.contextmanager
def open_run(args: Args, state: State) -> Iterator[SimpleNamespace]:
    """Creates or continues the run folder, locked while the context lasts, and sets the state to that of its newest
    checkpoint. Yields what `record` writes to."""
    folder = run_folder(args)
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0, fallback_to_soft=False).acquire()  # a soft lock outlives a kill
    except Timeout:
        stop(f"{folder} is in use by another process")
    except OSError as error:
        stop(f"cannot write the run folder {folder}: {error.strerror}")
    with lock:
        if args.overwrite:
            for path in [*folder.glob("checkpoints/iter_*.pt"), *folder.glob("events.out.tfevents.*")]:
                path.unlink()
        if not list(folder.glob("checkpoints/iter_*.pt")):
            save_checkpoint(args, folder, state)  # so that new and continued runs go on in the same way
        checkpoint = load_checkpoint(max(folder.glob("checkpoints/iter_*.pt")))
        if text := differences(identity(args), checkpoint):
            stop(f"{folder} holds another run: {text}; choose another --run-name, or --overwrite")
        config = json.dumps({name: checkpoint[name] for name in identity(args)}, indent=4).encode()
        if not (folder / "config.json").exists() or (folder / "config.json").read_bytes() != config:
            write_whole(folder / "config.json", config)
        restore(state, checkpoint)
        if state.global_step >= planned_steps(args):
            stop(f"{folder} is finished", 0)
        print(f"{folder}: {f'continuing from iteration {state.iteration}' if state.iteration else 'new'}", flush=True)
        cut_progress(folder / "progress.csv", state.iteration)
        done, seconds = state.global_step, 0.1 if sys.stderr.isatty() else 30  # in a file, only now and then
        bar = tqdm(total=planned_steps(args), initial=done, unit=" steps", unit_scale=True, mininterval=seconds)
        progress = open(folder / "progress.csv", "a", newline="")
        with progress, SummaryWriter(folder, purge_step=done + 1) as tensorboard, bar:
            files = dict(folder=folder, progress=progress, tensorboard=tensorboard, bar=bar)
            yield SimpleNamespace(**files, time=time.perf_counter(), steps=done, episodes=0)


def differences(new: dict[str, Any], old: dict[str, Any]) -> str:
    """The settings in which the run that is asked for differs from that of the checkpoint."""
    new, old = new["args"] | dict(algo=new["algo"]), old["args"] | dict(algo=old["algo"])
    names = [name for name in old | new if name not in NOT_OF_THE_RUN and old.get(name) != new.get(name)]
    return ", ".join(f"{name} was {old.get(name)}, is {new.get(name)}" for name in names)


def cut_progress(path: Path, iterations: int) -> None:
    """Cuts progress.csv back to the iterations before the checkpoint. A half-written row goes, too."""
    header, *lines = (path.read_text() if path.exists() else "").splitlines() or [""]
    whole = [line for line in lines if line.count(",") == header.count(",") and line.split(",")[0].isdigit()]
    rows = {int(line.split(",")[0]): line for line in whole}
    if missing := sorted(set(range(iterations)) - rows.keys()):
        print(f"{path} lacks {len(missing)} of the iterations {missing[0]} to {missing[-1]}", file=sys.stderr)
    kept = [rows[i] for i in range(iterations) if i in rows]
    write_whole(path, "".join(f"{line}\n" for line in [header, *kept] if kept).encode())


def record(args: Args, run: SimpleNamespace, state: State, statistics: dict[str, float], episodes: list) -> None:
    """Logs an iteration to progress.csv, TensorBoard and the screen, and saves a checkpoint when it is time. Stops
    before a loss or a parameter that is not finite can be saved."""
    watched = [flat_parameters(part).sum() for part in vars(state).values() if isinstance(part, nn.Module)]
    watched += [x for name, x in statistics.items() if name.endswith("_loss")]
    if not all(map(math.isfinite, watched)):
        run.bar.close()
        stop(f"iteration {state.iteration - 1}: a loss or a parameter is not finite; not saved", 1)
    mean_return, mean_length = np.mean(episodes, axis=0).tolist() if episodes else ("", "")
    steps, run.steps, run.episodes = state.global_step - run.steps, state.global_step, run.episodes + len(episodes)
    last, run.time = run.time, time.perf_counter()
    sps = round(steps / (run.time - last), 1)
    row = dict(iteration=state.iteration - 1, global_step=state.global_step, sps=sps, episodes=len(episodes))
    row |= dict(episodic_return=mean_return, episodic_length=mean_length, **statistics)
    table = csv.DictWriter(run.progress, row, lineterminator="\n")
    if run.progress.tell() == 0:
        table.writeheader()
    table.writerow(row)
    run.progress.flush()
    for name, x in row.items():
        if x != "":
            run.tensorboard.add_scalar(f"train/{name}", x, state.global_step)
    if episodes:
        run.bar.set_postfix(episodic_return=f"{mean_return:.1f}", refresh=False)
    run.bar.update(steps)
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
    batch_size = args.num_envs * args.num_steps
    if args.total_timesteps < batch_size:
        stop(f"--total-timesteps {args.total_timesteps}: less than one iteration, num_envs * num_steps = {batch_size}")
    if batch_size % args.num_minibatches or batch_size < 2 * args.num_minibatches:  # one pair has no std and no half
        text = f"num_envs * num_steps = {batch_size} must divide evenly into minibatches of 2 or more"
        stop(f"--num-minibatches {args.num_minibatches}: {text}")
    torch.set_num_threads(1)  # the networks are too small for more: many runs are many processes, one a core
    if args.compile and not can_compile():
        print("torch.compile does not work here (no C++ compiler?); going on with --no-compile", file=sys.stderr)
        args = replace(args, compile=False)
    # TensorBoard's thread raises its errors here, too, so that its own traceback only repeats them.
    threading.excepthook = lambda x: None if issubclass(x.exc_type, OSError) else threading.__excepthook__(x)
    try:
        train(args)
    except KeyboardInterrupt:
        stop("interrupted; the same command, without --overwrite, continues this run", 130)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        stop(f"{error.strerror}: with more room, the same command continues from the last checkpoint", 1)


if __name__ == "__main__":
    sys.path.append(os.getcwd())  # where --env-id my_module:MyEnv-v0 looks for my_module.py
    main()
