"""What PPO of Stable-Baselines3 (SB3) does, as a script of algos/ has it. This is the script of the runs that
`python diagnostics/sb3` makes of agents: the diagnostics call its functions, which do what SB3 does.

Actions are clipped to their bounds; VecNormalize's statistics take the observations of all environments together; one
Adam steps both networks along the gradient of one loss, whose norm is clipped. But SB3 saves neither its random
generator nor its environments, so training continues with new random numbers and from new episodes: an iteration that a
diagnostic repeats is statistically equivalent, and not identical.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

# Arguments -----------------------------------------------------------------------------------------------------------

Schedule = float | tuple[float, float, float]  # a constant; or the first value, the last, and when it is reached


@dataclass(frozen=True)
class Args:
    """The settings of an agent, which its file says. They are SB3's, by its names where this project has none."""

    env_id: str = "Hopper-v5"
    seed: int = 0
    total_timesteps: int = 1_000_000  # until the learning rate is 0, or an iteration more than the training had
    schedule_steps: int = 1_000_000  # of the training, which the schedules are over
    planned_steps: int = 1_001_472  # that the training makes, since SB3 makes rollouts until there are so many
    num_envs: int = 1
    num_steps: int = 2048
    rollout_pairs: int = 2048  # both multiplied, in training; diagnostics change the two for their own rollouts
    batch_size: int = 64  # pairs of a minibatch; the last one of an epoch may have fewer
    epochs: int = 10
    learning_rate: Schedule = 3e-4
    clip_range: Schedule = 0.2
    clip_range_vf: Schedule | None = None
    gamma: float = 0.99
    gae_lambda: float = 0.95
    entropy_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    target_kl: float | None = None
    normalize_advantage: bool = True
    policy_hidden: tuple[int, ...] = (64, 64)
    value_hidden: tuple[int, ...] = (64, 64)
    activation: str = "Tanh"
    betas: tuple[float, float] = (0.9, 0.999)
    adam_eps: float = 1e-5
    weight_decay: float = 0.0
    obs_norm: bool = False
    obs_clip: bool = False
    obs_clip_range: float = 10.0
    reward_scale: bool = False
    reward_clip: bool = False
    reward_clip_range: float = 10.0
    norm_gamma: float = 0.99  # of the returns by whose standard deviation rewards are divided
    norm_eps: float = 1e-8
    norm_training: bool = True  # whether the statistics take in what training sees
    compile: bool = False  # its updates are ordinary torch


class State:
    """Everything that training changes. A checkpoint holds all of it but the workers."""

    def __init__(self, args: Args):
        self.workers = [Worker(make_env(args)) for _ in range(args.num_envs)]
        env = self.workers[0].env
        shape = env.observation_space.shape
        self.rng = np.random.default_rng(args.seed)
        self.policy, self.value = make_networks(args, shape[0], env.action_space.shape[0])
        self.adam = {}  # what Adam knows of each tensor, in SB3's order; an Adam could not be copied without networks
        self.obs_stats, self.reward_stats = (RunningStats(x, args.norm_eps, args.norm_training) for x in (shape, ()))
        self.iteration, self.global_step = 0, 0


@dataclass
class Worker:
    """An environment and its unfinished episode, which no file has."""

    env: gym.Env
    obs: np.ndarray | None = None  # [obs] as the networks see it; None: to be reset
    episode_return: float = 0.0  # of the raw rewards
    episode_length: int = 0
    past_rewards: float = 0.0  # VecNormalize's discounted sum of the episode's rewards so far


# Rollout -------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def rollout(args: Args, state: State) -> tuple[dict[str, np.ndarray], list[tuple[float, int]]]:
    """Steps all workers together num_steps times, since VecNormalize's statistics take their observations together.
    Returns what `rollout` of algos/ppo.py returns, worker after worker, which is also the order of SB3's buffer."""
    std = state.policy.log_std.exp().numpy()
    spaces = state.workers[0].env.observation_space, state.workers[0].env.action_space
    low, high, dtype = spaces[1].low, spaces[1].high, spaces[0].dtype
    if any(worker.obs is None for worker in state.workers):
        seeds = [int(state.rng.integers(2**31)) for _ in state.workers]
        raw = np.array([worker.env.reset(seed=seed)[0] for worker, seed in zip(state.workers, seeds)], dtype)
        for worker, obs in zip(state.workers, observe(args, state.obs_stats, raw)):
            worker.obs, worker.past_rewards = obs, 0.0

    rows, episodes = [[] for _ in state.workers], []
    for t in range(args.num_steps):
        obs = np.array([worker.obs for worker in state.workers])
        noise = state.rng.standard_normal((len(obs), len(std)), dtype=np.float32)
        actions = state.policy.mean(torch.from_numpy(obs)).numpy() + std * noise
        raw, finals, rewards = [], {}, np.empty(len(obs), np.float32)
        terminated, truncated = np.zeros(len(obs), bool), np.zeros(len(obs), bool)
        for i, worker in enumerate(state.workers):
            # The clipping counts as a part of the environment: probabilities are those of the action as drawn.
            next_obs, reward, terminated[i], truncated[i], _ = worker.env.step(actions[i].clip(low, high))
            rewards[i], worker.episode_return = reward, worker.episode_return + float(reward)
            worker.episode_length += 1
            if terminated[i] or truncated[i]:
                episodes.append((worker.episode_return, worker.episode_length))
                worker.episode_return, worker.episode_length = 0.0, 0
                finals[i] = np.asarray(next_obs, dtype)
                next_obs, _ = worker.env.reset()
            raw.append(next_obs)

        # An episode's last observation is normalized by the statistics, but they take in the next one's first instead.
        seen = observe(args, state.obs_stats, np.array(raw, dtype))
        learned = scale_rewards(args, state, rewards, terminated | truncated)
        for i, worker in enumerate(state.workers):
            worker.obs = seen[i]
            next_obs = normalize(args, state.obs_stats, finals[i]) if i in finals else seen[i]
            end = i in finals or t == args.num_steps - 1
            rows[i].append((obs[i], next_obs, actions[i], learned[i], terminated[i], end))

    names = "obs", "next_obs", "actions", "rewards", "terminations", "ends"
    columns = zip(*[row for of_worker in rows for row in of_worker])
    return {name: np.array(x) for name, x in zip(names, columns)}, episodes


def observe(args: Args, stats: RunningStats, raw: np.ndarray) -> np.ndarray:
    """Returns what the networks see of raw observations [n, obs]. The statistics take these in first."""
    if args.obs_norm:
        stats.push(raw)
    return normalize(args, stats, raw)


def normalize(args: Args, stats: RunningStats, raw: np.ndarray) -> np.ndarray:
    if args.obs_norm:
        raw = ((raw - stats.mean) / stats.std).clip(-args.obs_clip_range, args.obs_clip_range)
    return raw.astype(np.float32)


def scale_rewards(args: Args, state: State, rewards: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Returns what is learned from the raw rewards [n] of one step of all workers, in float32 as SB3 has them."""
    if not args.reward_scale:
        return rewards
    sums = np.array([worker.past_rewards for worker in state.workers]) * args.norm_gamma + rewards
    state.reward_stats.push(sums)
    for worker, total, end in zip(state.workers, sums, ended):
        worker.past_rewards = 0.0 if end else total
    scaled = (rewards / state.reward_stats.std).clip(-args.reward_clip_range, args.reward_clip_range)
    return scaled.astype(np.float32)


# Advantages ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def estimate_advantages(args: Args, state: State, experience: dict[str, Any]) -> dict[str, Tensor]:
    """Returns the batch of a rollout, as in algos/ppo.py. It also has the clip ranges of the coming update, once for
    every pair, so that each minibatch has them."""
    obs, actions = torch.from_numpy(experience["obs"]), torch.from_numpy(experience["actions"])
    old_policy, old_values = state.policy(obs), state.value(obs)
    next_values = state.value(torch.from_numpy(experience["next_obs"])).double().numpy()
    # SB3 adds gamma V of the last observation to the reward at a time limit, which comes to the same.
    next_values[experience["terminations"]] = 0.0
    deltas = experience["rewards"] + args.gamma * next_values - old_values.double().numpy()
    sums = []
    for delta, end in zip(reversed(deltas.tolist()), reversed(experience["ends"].tolist())):
        sums.append(delta if end else delta + args.gamma * args.gae_lambda * sums[-1])
    advantages = torch.tensor(sums[::-1])

    batch = dict(obs=obs, actions=actions, advantages=advantages, value_targets=advantages + old_values)
    batch |= dict(old_means=old_policy.mean, old_stds=old_policy.stddev, old_values=old_values)
    batch |= dict(old_log_probs=old_policy.log_prob(actions))
    for name in ("clip_range", "clip_range_vf"):
        if getattr(args, name) is not None:
            batch[name] = torch.full_like(old_values, value_now(args, state, getattr(args, name)))
    return batch


def value_now(args: Args, state: State, schedule: Schedule) -> float:
    """Returns the schedule's value for the coming update. SB3 looks at it when the update's own rollout is done."""
    return value_at(schedule, (state.global_step + args.rollout_pairs) / args.schedule_steps)


def value_at(schedule: Schedule, done: float) -> float:
    first, last, fraction = (schedule, schedule, 1.0) if isinstance(schedule, float) else schedule
    return last if done > fraction else first + done * (last - first) / fraction


# Update --------------------------------------------------------------------------------------------------------------


def policy_loss(args: Args, pi: Independent, batch: dict[str, Tensor]) -> Tensor:
    """Returns minus PPO's clipped surrogate, minus the entropy bonus: the policy's part of the loss."""
    advantages, eps = batch["advantages"], batch["clip_range"]
    if args.normalize_advantage and len(advantages) > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = torch.exp(pi.log_prob(batch["actions"]) - batch["old_log_probs"])
    surrogate = torch.min(advantages * ratio, advantages * ratio.clamp(1 - eps, 1 + eps)).mean()
    return -(surrogate + args.entropy_coef * pi.entropy().mean())


def value_loss(args: Args, values: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Returns the mean squared error. With clip_range_vf it is that of a value clipped to be near the old one; unlike
    in algos/ppo.py, it is not the larger of both errors."""
    if args.clip_range_vf is not None:
        eps, old_values = batch["clip_range_vf"], batch["old_values"]
        values = old_values + (values - old_values).clamp(-eps, eps)
    return nn.functional.mse_loss(batch["value_targets"], values)


def update(args: Args, state: State, batch: dict[str, Tensor]) -> dict[str, float]:
    """Does what SB3's train() does: epochs over the batch, until the KL of a minibatch exceeds 1.5 target_kl. Changes
    the state in place and returns the iteration's statistics."""
    lr, parameters = value_now(args, state, args.learning_rate), in_order(state)
    adam = torch.optim.Adam(parameters, lr, args.betas, args.adam_eps, args.weight_decay)
    adam.load_state_dict(adam.state_dict() | dict(state=copy.deepcopy(state.adam)))
    pairs, steps = len(batch["obs"]), 0
    # landscape.py's batches are divided into as many minibatches as SB3's own.
    size = max(min(2, args.batch_size), round(args.batch_size * pairs / args.rollout_pairs))
    for rows in (x for _ in range(args.epochs) for x in torch.from_numpy(state.rng.permutation(pairs)).split(size)):
        minibatch = {name: x[rows] for name, x in batch.items()}
        pi, values = state.policy(minibatch["obs"]), state.value(minibatch["obs"])
        if args.target_kl is not None:
            log_ratio = (pi.log_prob(minibatch["actions"]) - minibatch["old_log_probs"]).detach()
            if (log_ratio.exp() - 1 - log_ratio).mean() > 1.5 * args.target_kl:
                break
        adam.zero_grad()
        loss = args.vf_coef * value_loss(args, values, minibatch) + policy_loss(args, pi, minibatch)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)
        adam.step()
        steps += 1
    state.adam = adam.state_dict()["state"]
    state.iteration += 1
    state.global_step += pairs
    return dict(minibatches=steps, policy_lr=lr)


def in_order(state: State) -> list[nn.Parameter]:
    """Returns the parameters of both networks in the order in which SB3's optimizer has them."""
    policy, value = state.policy, state.value
    hidden = [*policy.mean[:-1].parameters(), *value[:-2].parameters()]
    return [policy.log_std, *hidden, *policy.mean[-1].parameters(), *value[-2].parameters()]


# Networks and statistics ---------------------------------------------------------------------------------------------


class Policy(nn.Module):
    """A Gaussian whose standard deviations do not depend on the state."""

    def __init__(self, mean: nn.Sequential, action_size: int):
        super().__init__()
        self.log_std, self.mean = nn.Parameter(torch.zeros(action_size)), mean

    def forward(self, obs: Tensor) -> Independent:
        means = self.mean(obs)
        stds = self.log_std.exp().expand_as(means)
        return Independent(Normal(means, stds), 1)


class RunningStats:
    """Mean and variance as VecNormalize has them: in batches of all environments, from a count of 1e-4 on."""

    def __init__(self, shape: tuple[int, ...], eps: float, training: bool):
        self.training, self.eps = training, eps
        self.count, self.mean, self.var = 1e-4, np.zeros(shape), np.ones(shape)

    def push(self, x: np.ndarray) -> None:
        """Takes in x [n, ...], unless VecNormalize was told not to."""
        if not self.training:
            return
        delta, count = x.mean(0) - self.mean, self.count + len(x)
        squares = self.var * self.count + x.var(0) * len(x) + delta**2 * self.count * len(x) / count
        self.mean, self.var, self.count = self.mean + delta * len(x) / count, squares / count, count

    @property
    def std(self) -> np.ndarray:
        return np.sqrt(self.var + self.eps)

    def state_dict(self) -> dict[str, Any]:
        return dict(count=self.count, mean=torch.tensor(self.mean), var=torch.tensor(self.var))

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.count, self.mean, self.var = saved["count"], saved["mean"].numpy(), saved["var"].numpy()


def make_networks(args: Args, obs_size: int, action_size: int) -> tuple[Policy, nn.Sequential]:
    def mlp(hidden: tuple[int, ...], out: int, *more: nn.Module) -> nn.Sequential:
        layers, activation = [], getattr(nn, args.activation)
        for size_in, size_out in zip([obs_size, *hidden], hidden):
            layers += [nn.Linear(size_in, size_out), activation()]
        return nn.Sequential(*layers, nn.Linear([obs_size, *hidden][-1], out), *more)

    torch.manual_seed(args.seed)
    return Policy(mlp(args.policy_hidden, action_size), action_size), mlp(args.value_hidden, 1, nn.Flatten(0))


class BadInput(Exception): ...


def make_env(args: Args) -> gym.Env:
    mujoco.set_mju_user_warning(lambda _: None)  # otherwise HalfCheetah writes MUJOCO_LOG.TXT where it is started
    try:
        env = gym.make(args.env_id, disable_env_checker=True)
        for obs in (env.reset(seed=0)[0], env.step(np.zeros(env.action_space.shape, env.action_space.dtype))[0]):
            if np.shape(obs) != env.observation_space.shape:  # it would be broadcast silently
                raise ValueError(f"its observations have shape {np.shape(obs)}, not {env.observation_space.shape}")
    except Exception as error:  # an environment of the user's own can raise anything
        raise BadInput(" ".join(f"--env-id {args.env_id}: {type(error).__name__}: {error}".split())) from error
    return env


def load_checkpoint(path: Path) -> dict[str, Any]:
    try:
        checkpoint = torch.load(path, weights_only=True)
    except Exception:  # a damaged file raises almost anything
        checkpoint = None
    if not isinstance(checkpoint, dict) or checkpoint.get("algo") != "sb3" or "step" in checkpoint["adam"]:
        raise BadInput(f"{path} is damaged, or no checkpoint that sb3_ppo.py can read; import the agent again")
    return checkpoint


def restore(state: State, checkpoint: dict[str, Any]) -> None:
    for name in ("policy", "value", "obs_stats", "reward_stats"):
        getattr(state, name).load_state_dict(checkpoint[name])
    state.rng.bit_generator.state = checkpoint["rng"]
    state.adam, state.iteration = checkpoint["adam"], checkpoint["iteration"]
    state.global_step = checkpoint["global_step"]
