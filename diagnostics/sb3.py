"""Makes a run of agents that Stable-Baselines3 (SB3) trained with PPO, so that every diagnostic can look at them.

    python diagnostics/sb3.py ppo_hopper.zip --env-id Hopper-v5 --vecnormalize vecnormalize.pkl --out runs/my_agent
    python diagnostics/sb3.py logs/rl_model_*_steps.zip --env-id Hopper-v5 --monitor monitor.csv --out runs/my_agent
    python diagnostics/report.py runs/my_agent

The files of one call of learn() become checkpoints of one run: those that CheckpointCallback writes, with the
statistics that lie beside them (rl_model_vecnormalize_10000_steps.pkl beside rl_model_10000_steps.zip), or those of a
folder of RL Baselines3 Zoo. SB3 saves in the middle of a rollout, so a file becomes the checkpoint of the iteration
whose rollout it was in; of two in the same iteration the later one counts. Iterations are counted from where SB3 counts
its steps from. With the monitor.csv of each environment, the run also has a progress.csv, from which the report can
judge learning.

SB3 need not be installed, and nothing in the files is executed: sb3_files.py reads them. What belongs to the agent but
cannot be imported, such as another optimizer than Adam, is refused in one line.

This file is also the run's script: it has the functions that the diagnostics call, and they do what SB3 does. Actions
are clipped to their bounds; VecNormalize's statistics take the observations of all environments together; one Adam
steps both networks along the gradient of one loss, whose norm is clipped. But SB3 saves neither its random generator
nor its environments, so a diagnostic continues training with new random numbers and from new episodes. An agent whose
training has ended is given one more iteration, unless its learning rate has come down to 0.
"""

from __future__ import annotations

import copy
import csv
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
import tyro
from measuring.runs import note, run_program, stop
from sb3_files import SCHEDULES, Agent, Episode, Schedule, read_agent, read_monitor, read_vecnormalize
from torch import Tensor, nn
from torch.distributions import Independent, Normal

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Files:
    agents: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """zip files of one training, or a folder that holds them"""
    out: Path
    """folder of the run to make"""
    env_id: str = ""
    """the environment, with the wrappers of the training (my_module:MyEnv-v0); default: the one that --monitor names"""
    vecnormalize: Path | None = None
    """statistics of VecNormalize for files without their own, which are rl_model_vecnormalize_N_steps.pkl beside
    rl_model_N_steps.zip, or vecnormalize.pkl in a folder with the name of the file or of the environment"""
    monitor: tuple[Path, ...] = ()
    """monitor.csv of each of the training's environments, all of them, for the run's progress.csv"""
    learning_rate: float | None = None
    """constant learning rate; default: what the files say, or else the rate of the last update"""
    clip_range: float | None = None
    """constant clip range, where the files do not say it"""
    clip_range_vf: float | None = None
    """constant clip range of the value function, where the files do not say it"""


@dataclass(frozen=True)
class Args:
    """The settings of an agent, which its file says. They are SB3's, by its names where this project has none."""

    env_id: str = "Hopper-v5"
    seed: int = 0
    total_timesteps: int = 1_000_000  # until the learning rate is 0, or an iteration more than the training had
    schedule_steps: int = 1_000_000  # of the training, which the schedules are over
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


def rollout(args: Args, state: State) -> tuple[dict[str, np.ndarray], list[tuple[float, int]]]:
    """Steps all workers together num_steps times, since VecNormalize's statistics take their observations together.

    Returns what `rollout` of algos/ppo.py returns, worker after worker, which is also the order of SB3's buffer."""
    policy_mean, std = numpy_forward(state.policy.mean), state.policy.log_std.detach().exp().numpy()
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
        actions = policy_mean(obs) + std * state.rng.standard_normal((len(obs), len(std)), dtype=np.float32)
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


def numpy_forward(network: nn.Sequential) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the network as a function of few observations [n, in] -> [n, out], which in torch would take longer."""
    layers = [(x.weight.detach().numpy().T, x.bias.detach().numpy()) for x in network[::2]]
    tanh = nn.Tanh in map(type, network)

    def forward(x: np.ndarray) -> np.ndarray:
        for weight, bias in layers[:-1]:
            x = x @ weight + bias
            x = np.tanh(x) if tanh else network[1](torch.from_numpy(x)).numpy()
        return x @ layers[-1][0] + layers[-1][1]

    return forward


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
                raise ValueError(
                    f"it returns an observation of shape {np.shape(obs)}, not {env.observation_space.shape}"
                )
    except Exception as error:  # an environment of the user's own can raise anything
        raise BadInput(" ".join(f"--env-id {args.env_id}: {type(error).__name__}: {error}".split())) from error
    return env


def load_checkpoint(path: Path) -> dict[str, Any]:
    try:
        checkpoint = torch.load(path, weights_only=True)
    except Exception:  # a damaged file raises almost anything
        checkpoint = None
    if not isinstance(checkpoint, dict) or checkpoint.get("algo") != "sb3" or "step" in checkpoint["adam"]:
        stop(f"{path} is damaged, or no checkpoint that this sb3.py made; import the agent again")
    return checkpoint


def restore(state: State, checkpoint: dict[str, Any]) -> None:
    for name in ("policy", "value", "obs_stats", "reward_stats"):
        getattr(state, name).load_state_dict(checkpoint[name])
    state.rng.bit_generator.state = checkpoint["rng"]
    state.adam, state.iteration = checkpoint["adam"], checkpoint["iteration"]
    state.global_step = checkpoint["global_step"]


# Import --------------------------------------------------------------------------------------------------------------

OUR_NAMES = dict(n_envs="num_envs", n_steps="num_steps", n_epochs="epochs", ent_coef="entropy_coef")
OF_VECNORMALIZE = dict(obs_norm="norm_obs", obs_clip="norm_obs", obs_clip_range="clip_obs", norm_gamma="gamma")
OF_VECNORMALIZE |= dict(reward_scale="norm_reward", reward_clip="norm_reward", reward_clip_range="clip_reward")
OF_VECNORMALIZE |= dict(norm_eps="epsilon", norm_training="training")


def settings_of(agent: Agent, env_id: str) -> Args:
    data, rate = agent.settings, agent.settings["learning_rate"]
    # Every agent has a next iteration, even where its training has ended, unless its learning rate would then be 0.
    total = max(data["_total_timesteps"], agent.extra + (agent.iteration + 1) * agent.batch)
    if value_at(rate, np.inf) == 0:
        end = rate[2] * data["_total_timesteps"] if isinstance(rate, tuple) else 0
        total = max(0, int(np.ceil((end - agent.extra) / agent.batch)) - 1) * agent.batch
    return Args(
        **{OUR_NAMES.get(x, x): y for x, y in data.items() if OUR_NAMES.get(x, x) in Args.__dataclass_fields__},
        env_id=env_id,
        total_timesteps=total,
        schedule_steps=data["_total_timesteps"],
        rollout_pairs=agent.batch,
        policy_hidden=agent.hidden["policy"],
        value_hidden=agent.hidden["value"],
        activation=agent.activation,
        betas=agent.group["betas"],
        adam_eps=agent.group["eps"],
        weight_decay=agent.group["weight_decay"],
        **{ours: agent.statistics[theirs] for ours, theirs in OF_VECNORMALIZE.items() if agent.statistics},
    )


def make_checkpoint(agent: Agent, args: Args) -> dict[str, Any]:
    """Returns the fields of the agent's state."""
    state = State(replace(args, num_envs=1))  # of which no environment is kept
    with torch.no_grad():
        for ours, theirs in zip(in_order(state), agent.networks.values()):
            ours.copy_(theirs)
    for stats, name in ((state.obs_stats, "obs_rms"), (state.reward_stats, "ret_rms")):
        if name in agent.statistics and agent.statistics[name]["mean"].shape != stats.mean.shape:
            stop(f"{agent.path}: the statistics of VecNormalize are not those of {args.env_id}")
        vars(stats).update(agent.statistics.get(name, {}))
    checkpoint = {name: getattr(state, name).state_dict() for name in ("policy", "value", "obs_stats", "reward_stats")}
    counters = dict(iteration=agent.iteration, global_step=agent.extra + agent.iteration * agent.batch)
    return checkpoint | counters | dict(adam=agent.moments, rng=state.rng.bit_generator.state)


def find_agents(files: Files) -> list[Agent]:
    """Returns the agents, one for each iteration, in order."""
    paths = [x for path in files.agents for x in (sorted(path.glob("*.zip")) if path.is_dir() else [path])]
    given = {name: getattr(files, name) for name in SCHEDULES}
    # Adam's count of steps tells which of two files at the last step of a rollout was saved before the update.
    order = lambda x: (x.iteration, x.settings["num_timesteps"], x.group["step"])
    agents = sorted((read_agent(path, given) for path in paths), key=order)
    for name in ("n_steps", "n_envs", "_total_timesteps", "seed", "start_time"):
        if len({x.settings[name] for x in agents}) > 1:
            stop(f"these files are not of one call of learn(), since they differ in {name.lstrip('_')}")
    found = {agent.iteration: agent for agent in agents}  # of two in one iteration, the later stays
    return list(found.values()) or stop("there is no zip file")


def find_statistics(files: Files, agent: Agent, env_id: str) -> Path | None:
    """Returns the file of VecNormalize's statistics, or None where the agent's file says that it was without."""
    if not agent.normalized:
        if files.vecnormalize:
            stop(f"{agent.path} was trained without VecNormalize, but --vecnormalize names statistics")
        return None
    beside = agent.path.with_name(re.sub(r"_(\d+_steps)\.zip$", r"_vecnormalize_\1.pkl", agent.path.name))
    if beside != agent.path and beside.is_file():
        return beside
    # RL Baselines3 Zoo saves one file for all agents, in a folder with the environment's name beside them.
    names = agent.path.stem, env_id.rpartition(":")[2].replace("/", "-")
    folders = [agent.path.with_name(name) / "vecnormalize.pkl" for name in names]
    text = "was trained behind VecNormalize; name its statistics with --vecnormalize"
    return files.vecnormalize or next(filter(Path.is_file, folders), None) or stop(f"{agent.path} {text}")


def check_environment(agent: Agent, env: gym.Env, env_id: str) -> None:
    """Stops where an agent was trained in another environment, as far as its file tells. Actions are clipped to their
    bounds. Those of observations do nothing, and versions of an environment differ in them, so these get a note."""
    advice = "name the --env-id of its training, with its wrappers"
    for name, bounds in agent.spaces.items():
        space, what = getattr(env, name), name.replace("_space", "s")
        if not isinstance(space, gym.spaces.Box) or space.shape != bounds.shape[1:]:
            stop(f"{agent.path}: its {what} have shape {bounds.shape[1:]}, those of {env_id} {space.shape}; {advice}")
        saved = name == "action_space" or agent.statistics.get("norm_obs")  # other observations are of this type anyway
        if saved and space.dtype not in (np.float32, np.float64):
            stop(f"{agent.path}: SB3's buffer cuts its {what} to {space.dtype} before it learns from them")
        if not np.all(np.isclose(bounds, [space.low, space.high], rtol=1e-3) | np.isnan(bounds)):
            say = stop if name == "action_space" else note
            say(f"{agent.path}: its {what} had other bounds than those of {env_id}; {advice}")


def sort_episodes(agent: Agent, monitors: list[list[Episode]]) -> dict[int, list[tuple[float, int]]]:
    """Returns (return, length) of the episodes of the agent's training, by the iteration in which they ended.

    A monitor goes on through several calls of learn(), and through evaluations in the same environment. But the file of
    an agent says when its learn() began, and which episodes were the last. Stops where that does not tell."""
    data, begun, start = agent.settings, agent.settings["_num_timesteps_at_start"], agent.settings["start_time"] / 1e9
    if len(monitors) != data["n_envs"]:
        stop(
            f"--monitor names {len(monitors)} files, but each of {data['n_envs']} environments has a Monitor of its own"
        )
    if start < 1e6:  # before 1.6.1 it was in seconds
        stop(f"{agent.path}: SB3 {agent.version} did not save when learn() began, so --monitor could be of another one")
    last = {x.mark: x.end for episodes in monitors for x in episodes if x.mark in agent.last_episodes}
    if agent.last_episodes and agent.last_episodes[-1] not in last:
        stop(f"--monitor: the last episode that {agent.path} has seen is in none of these files")
    found = {}
    for episodes in monitors:
        seen = [x for x in episodes if x.end <= max(last.values(), default=0)]
        if not seen:
            continue
        own = [x for x in seen if start <= x.end]
        # The first may have begun in the learn() before. A file without earlier episodes was begun with this learn().
        first, before = own[0].length if own else np.inf, sum(x.length for x in seen[: len(seen) - len(own)])
        step = before - begun / data["n_envs"] if before and begun else 0
        told = -first < step <= 0 if before or not begun else first <= begun / data["n_envs"]
        if not told:
            stop(
                f"--monitor has episodes of {before:,} steps until the agent's step {begun:,}, so some are not its own"
            )
        if before and begun and not agent.extra:  # it has seen the earlier iterations too
            own, step = seen, -begun / data["n_envs"]
        for x in own:
            step += x.length
            found.setdefault(int(begun // agent.batch + (step - 1) // data["n_steps"]), []).append((x.total, x.length))
    return found


def write_progress(path: Path, agent: Agent, ended: dict[int, list[tuple[float, int]]] | None) -> None:
    """Writes a row for each iteration. The progress.csv of SB3 would not do: its returns are means of 100 episodes."""
    columns = "iteration global_step sps episodes episodic_return episodic_length entropy mean_kl explained_variance"
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, columns.split())
        table.writeheader()
        for i in range(agent.iteration):
            row = dict(iteration=i, global_step=agent.extra + (i + 1) * agent.batch)
            if ended and i >= min(ended):
                row["episodes"] = len(ended.get(i, []))
            if ended and i in ended:
                row["episodic_return"], row["episodic_length"] = np.mean(ended[i], axis=0).tolist()
            table.writerow(row)


def main(argv: list[str] | None = None) -> None:
    files = tyro.cli(Files, args=argv, description=__doc__)
    monitors = [read_monitor(path) for path in files.monitor]
    monitored = next((name for name, _ in monitors if name), "")
    env_id = files.env_id or monitored or stop("the files do not say which environment this is: name it with --env-id")
    if monitored and monitored != env_id.rpartition(":")[2]:
        note(f"--monitor says that the environment was {monitored}, but --env-id says {env_id}")
    agents = find_agents(files)
    try:
        env = make_env(Args(env_id=env_id))
    except BadInput as error:
        stop(str(error))
    script = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    checkpoints, made = {}, []
    for agent in agents:
        path = find_statistics(files, agent, env_id)
        agent.statistics = read_vecnormalize(path) if path else {}
        check_environment(agent, env, env_id)
        by = f"normalized by {path}" if path else "not normalized"
        made.append(f"iteration {agent.iteration}: {agent.path}, {by}")
        args = settings_of(agent, env_id)
        config = dict(algo="sb3", args=asdict(args), script=script, versions=dict(stable_baselines3=agent.version))
        checkpoints[agent.iteration] = config | make_checkpoint(agent, args)
    ended = sort_episodes(agents[-1], [episodes for _, episodes in monitors]) if monitors else None
    if files.out.exists():
        stop(f"--out {files.out} exists already; name another folder")
    try:
        (files.out / "checkpoints").mkdir(parents=True)
    except OSError as error:
        stop(f"--out {files.out}: {error.strerror}")
    for iteration, checkpoint in checkpoints.items():
        torch.save(checkpoint, files.out / "checkpoints" / f"iter_{iteration:06d}.pt")
    write_progress(files.out / "progress.csv", agents[-1], ended)
    (files.out / "config.json").write_text(json.dumps(config, indent=1))  # the newest agent's; last: now it is a run
    trained = f"PPO of SB3 {agent.version} on {env_id}, with iterations of {agent.batch:,} steps"
    print(f"{files.out}: {trained}", *made, sep="\n")


if __name__ == "__main__":
    run_program(main)
