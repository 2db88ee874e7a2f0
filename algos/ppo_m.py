# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "gymnasium[mujoco]==1.4.0", "mujoco==4.0.0", "numpy==2.4.6", "tyro==1.0.17",
#   "tensorboard==2.21.0", "tqdm==4.70.1", "filelock==4.2.12"]
# ///
"""PPO-M: the core of PPO (Schulman et al. 2017) with none of the nine code-level optimizations, as "Implementation
Matters in Deep Policy Gradients" (Engstrom, Ilyas et al., ICLR 2020; "IM" below) defines it in its Table 1. This is the
file to read first and to copy from.

    train                repeat
    rollout                  act with pi_old for num_steps steps of each environment, which gives s, a, r and s'
    estimate_advantages      delta = r + gamma V(s') - V(s), where V(s') = 0 after a terminal state
                             A = sum over l of (gamma gae_lambda)^l delta, l steps later (Schulman et al. 2016, eq. 16)
                             target = A + V(s)
    update, fit              value_epochs times, for each minibatch of the shuffled batch
    value_loss                   Adam takes V down the mean of (V(s) - target)^2
    update, fit              policy_epochs times, for each minibatch of the shuffled batch
    objective                    ratio = pi(a|s) / pi_old(a|s), and A is normalized
                                 Adam takes pi up the mean of min(ratio A, clip(ratio, 1 - clip_eps, 1 + clip_eps) A)
                                 (Schulman et al. 2017, eq. 7)

    python algos/ppo_m.py                                       # Hopper-v5, 1M steps
    python algos/ppo_m.py --env-id Walker2d-v5 --seed 3         # another environment, another seed
    diff algos/ppo_m.py algos/ppo.py                            # the nine code-level optimizations, each where it acts

The same command again continues an interrupted run from its newest checkpoint, to the same bits. The learning rates are
those of IM's Table 6 for Hopper. Advantages are normalized: that is not in Schulman et al., but in baselines and in all
of IM's variants, so that IM does not count it. "The released code" is MadryLab/implementation-matters, commit 1b8af2d
(April 2020), to which the published paper links.
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
from torch.func import functional_call, grad_and_value
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

# Arguments and state -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Args:
    env_id: str = "Hopper-v5"  # any with flat Box observations and actions; module:Env-v0 imports your module
    total_timesteps: int = 1_000_000  # environment steps in all; rounded down to whole iterations
    seed: int = 1  # seed of all random numbers

    num_envs: int = 1  # environments, stepped one after another
    num_steps: int = 2048  # steps of each environment in an iteration
    num_minibatches: int = 32  # minibatches that an epoch divides the batch into
    policy_epochs: int = 10  # passes of the policy update over the batch
    value_epochs: int = 10  # passes of the value update over the batch
    policy_lr: float = 1.7e-4  # Adam learning rate of the policy
    value_lr: float = 4e-4  # Adam learning rate of the value network
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalized advantage estimation
    clip_eps: float = 0.2  # epsilon of the probability ratio's clipping
    entropy_coef: float = 0.0  # coefficient of the entropy in the objective; may be negative
    policy_hidden: tuple[int, ...] = (64, 64)  # sizes of the policy's hidden layers
    value_hidden: tuple[int, ...] = (64, 64)  # sizes of the value network's hidden layers
    bootstrap_truncation: bool = True  # take V for what a time limit cuts off; off: treat it as a terminal state
    bound_action: Literal["no", "clip", "tanh"] = "no"  # give the environment the action as drawn, clipped or squashed

    compile: bool = True  # compile the updates: 5 to 25 seconds once, then they are 20 times faster
    runs_dir: str = "runs"  # folder of all runs
    run_name: str = ""  # folder of this run inside runs_dir; default: environment, algorithm, non-default flags, seed
    checkpoint_every: int = 25  # iterations between checkpoints; after each, all environments begin a new episode
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
    policy_adam: list[Tensor]  # moments m [P] and v [P], number of steps t
    value_adam: list[Tensor]
    iteration: int = 0  # iterations done
    global_step: int = 0  # environment steps done


@dataclass
class Actor:
    """An environment and its unfinished episode."""

    env: gym.Env
    obs: np.ndarray | None = None  # [obs] current observation as the networks see it; None: to be reset
    episode_return: float = 0.0  # sum of the raw rewards
    episode_length: int = 0


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
            actor.obs = first_obs.astype(np.float32)
        noise = std * state.rng.standard_normal((args.num_steps, len(std)), dtype=np.float32)
        for t in range(args.num_steps):
            # Only the action is needed now; values and log-probabilities come from one pass over the whole batch.
            action = policy_mean(actor.obs) + noise[t]
            obs.append(actor.obs)
            actions.append(action)
            raw_obs, reward, terminated, truncated, _ = actor.env.step(bound_action(args, actor.env, action))
            actor.obs = raw_obs.astype(np.float32)
            next_obs.append(actor.obs)
            rewards.append(float(reward))
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
                actor.obs = first_obs.astype(np.float32)
                actor.episode_return, actor.episode_length = 0.0, 0

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


# Advantages ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def estimate_advantages(args: Args, state: State, experience: dict[str, Any]) -> dict[str, Tensor]:
    """A rollout -> the batch that the losses and `update` take, tensors over its B pairs: obs [B, obs], actions
    [B, action]; of the policy that acted old_means, old_stds [B, action] and old_log_probs [B]; old_values [B] of the
    value network before its fit; advantages [B] by GAE (Schulman et al. 2016, eq. 16), value_targets [B]."""
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
    batch |= dict(old_log_probs=old_policy.log_prob(actions))
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
    policy_lr, value_lr = args.policy_lr, args.value_lr
    policy_norm = value_norm = math.inf  # no gradient is clipped

    # The value network comes first, as in the released code. The advantages are fixed already, so that neither fit sees
    # what the other has done.
    statistics = fit(args, state, "value", value_loss, batch, args.value_epochs, value_lr, value_norm)
    policy_loss = lambda *x: -objective(*x)  # noqa: E731, because Adam minimizes
    statistics |= fit(args, state, "policy", policy_loss, batch, args.policy_epochs, policy_lr, policy_norm)
    state.iteration += 1
    state.global_step += len(batch["obs"])

    statistics |= dict(value_lr=value_lr, policy_lr=policy_lr, explained_variance=explained_variance(batch))
    statistics |= compare_policies(args, state.policy, batch)
    with torch.no_grad():  # This, too, is of the policy after the whole update.
        log_ratios = state.policy(batch["obs"]).log_prob(batch["actions"]) - batch["old_log_probs"]
    statistics |= dict(clip_fraction=((log_ratios.exp() - 1).abs() > args.clip_eps).float().mean())
    return {name: float(x) for name, x in statistics.items()}


def value_loss(args: Args, value: Callable, batch: dict[str, Tensor]) -> Tensor:
    """What the value step minimizes: the mean squared error to the value targets, over all steps; the released code
    leaves out the terminal ones. `value` maps observations [B, obs] to values [B]: it is the network, or the network
    with other parameters."""
    return ((value(batch["obs"]) - batch["value_targets"]) ** 2).mean()


def objective(args: Args, policy: Callable, batch: dict[str, Tensor]) -> Tensor:
    """What the policy step maximizes: the clipped surrogate (Schulman et al. 2017, eq. 7) plus the entropy bonus.
    `policy` maps observations [B, obs] to B distributions of actions (Independent: with a plain Normal, log_prob would
    be [B, action] and broadcast); it is the network, or the network with other parameters."""
    pi = policy(batch["obs"])
    ratios = torch.exp(pi.log_prob(batch["actions"]) - batch["old_log_probs"])
    # Advantages are normalized over the minibatch, as in baselines and in all of IM's variants, though not in Schulman
    # et al. That centers them, and it fixes their weight relative to the entropy bonus.
    advantages = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
    # A ratio that has moved beyond the band in the direction that pays gets no gradient; one that moved the wrong way
    # is still pulled back.
    clipped_ratios = ratios.clamp(1 - args.clip_eps, 1 + args.clip_eps)
    surrogate = torch.minimum(ratios * advantages, clipped_ratios * advantages).mean()
    return surrogate + args.entropy_coef * action_entropy(args, pi, batch).mean()


def action_entropy(args: Args, pi: Independent, batch: dict[str, Tensor]) -> Tensor:
    """Entropy [B] of the policy's actions. Where tanh squashes them, it is the Gaussian's plus E[ln d tanh(u) / du],
    without the constant scale of the bounds. Without that term the bonus would reward standard deviations without
    bound."""
    if args.bound_action != "tanh":
        return pi.entropy()
    u = pi.mean + pi.stddev * batch["entropy_noise"]  # one reparametrized sample for each state
    return pi.entropy() + (2 * (math.log(2) - u - nn.functional.softplus(-2 * u))).sum(-1)  # ln(1 - tanh(u)^2), stable


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
    adams = adam_init(flat_parameters(policy)), adam_init(flat_parameters(value))
    return State(actors, rng, policy, value, *adams)


def adam_init(parameters: Tensor) -> list[Tensor]:
    """State of Adam before its first step on the parameters [P]."""
    return [torch.zeros_like(parameters), torch.zeros_like(parameters), torch.zeros((), dtype=torch.float64)]


def make_networks(args: Args, obs_size: int, action_size: int) -> tuple[Policy, Value]:
    """Policy and value network, initialized from the seed."""
    policy = Policy(obs_size, args.policy_hidden, action_size, nn.ReLU)
    value = Value(obs_size, args.value_hidden, nn.ReLU)
    generator = torch.Generator().manual_seed(args.seed)
    for layers in (policy.mean, value.value):
        for layer in layers[::2]:
            nn.init.zeros_(layer.bias)
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
