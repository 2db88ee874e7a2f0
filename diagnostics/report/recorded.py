"""This module samples what the checks of a script judge: fresh segments and updates of a checkpoint that the script
makes, beside what the environments themselves say of the same steps."""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any
from unittest import mock

import gymnasium as gym
import lab
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence

# In each segment these steps end an episode: by a time limit, in a terminal state, and by both. Otherwise a checkpoint
# of long episodes would not show what the script does there.
FORCED = {5: (False, True), 11: (True, False), 17: (True, True)}


class Recorder(gym.Wrapper):
    """Keeps what the environment itself says, below all that the script does to actions."""

    rows = None  # until `play`, nothing is kept

    def reset(self, **options: Any) -> tuple:
        result = self.env.reset(**options)
        self.obs, self.total, self.length = np.array(result[0], float), 0.0, 0
        if self.rows is not None:
            self.starts.append(self.obs)
        return result

    def step(self, action: np.ndarray) -> tuple:
        given, before = np.array(action, float), self.obs  # the environment may change the action
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.obs, self.total, self.length = np.array(obs, float), self.total + float(reward), self.length + 1
        if self.rows is not None:
            forced = FORCED.get(len(self.rows), (False, False))
            terminated, truncated = bool(terminated or forced[0]), bool(truncated or forced[1])
            self.episodes += [(self.total, self.length)] * (terminated or truncated)
            row = dict(obs=before, given=given, next_obs=self.obs, reward=float(reward), last=False)
            self.rows.append(row | dict(terminated=terminated, truncated=truncated))
        return obs, reward, terminated, truncated, info


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Makes gym.make return environments that are recorded, but not those of which one of them is made."""
    make = gym.make

    def outermost(*names: Any, **options: Any) -> Recorder:
        with mock.patch.object(gym, "make", make):
            return Recorder(make(*names, **options))

    with mock.patch.object(gym, "make", outermost):
        yield


def recorder_of(env: gym.Env) -> Recorder:
    if not isinstance(env, Recorder) and not hasattr(env, "env"):
        lab.refuse("the report records what the script makes by gym.make of the module gymnasium; make environments so")
    return env if isinstance(env, Recorder) else recorder_of(env.env)


def has_step(checkpoint: lab.Checkpoint) -> bool:
    """Tells whether training goes on from a checkpoint. From the last one of a finished run it does not."""
    args, size = lab.read_config(checkpoint.run)["args"], math.prod(lab.batch_shape(checkpoint.run))
    done = lab.load_script(checkpoint.script).load_checkpoint(checkpoint.path)["global_step"]
    return done < args["total_timesteps"] // size * size


def copied(state: Any) -> Any:
    """Copies a state except for its workers, because a copied environment does not step to the same observations."""
    return copy.deepcopy(state, {id(state.workers): state.workers})


def changed(state: Any, **parts: Any) -> Any:
    """Returns a training state that has these parts, and shares all others with the given one."""
    state = copy.copy(state)
    vars(state).update(parts)
    return state


@torch.no_grad()
def kls(policy: Callable, batch: dict[str, Tensor]) -> Tensor:
    """Returns KL(old || new) [B] in nats of the policy against the one that collected the batch."""
    return kl_divergence(Independent(Normal(batch["old_means"], batch["old_stds"]), 1), policy(batch["obs"]))


def play(module: Any, args: Any, state: Any) -> tuple[dict, dict]:
    """Returns a rollout, copied since a script may use its arrays again, and what the environments say of its rows."""
    envs = [recorder_of(worker.env) for worker in state.workers]
    for env in envs:
        env.rows, env.starts, env.episodes = [], [], []
    steps, episodes = module.rollout(args, state)
    data = {name: np.array(x) for name, x in steps.items()} | dict(episodes=episodes)
    for env in envs:
        env.rows[-1]["last"] = True
    rows = [row for env in envs for row in env.rows]
    true = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return data, true | {name: [x for env in envs for x in getattr(env, name)] for name in ("starts", "episodes")}


class Script:
    """A checkpoint's script with frozen statistics. `first` is a rollout, and `again` one from an equal state, each
    with what the environments say of it. For the second rollout, `data`, of which they say `true`, the policy has
    changed, and the clips of observations and rewards are so narrow that they act. `batch` is made of it, `state` and
    `args` belong to it, and `wide` has the run's own clips. `rollouts` are both, each with its arguments."""

    def __init__(self, checkpoint: lab.Checkpoint, seed: int):
        self.checkpoint, self.seed, self.module = checkpoint, seed, lab.load_script(checkpoint.script)
        self.steps = max(64, min(lab.batch_shape(checkpoint.run)[1], 1024))
        (args, self.before), equal = (self.fresh(6, max(4, 1024 // self.steps)) for _ in range(2))
        self.first = play(self.module, args, self.before)
        self.args = self.wide = lab.frozen_state(checkpoint)[1]  # schedules count in batches of training's size
        batch = self.module.estimate_advantages(self.args, self.before, self.first[0])
        policy = moved(self.before.policy, lambda x: kls(x, batch).mean() > 1)
        if hasattr(policy, "log_std"):
            policy.log_std.data += 0.3
        self.state = changed(self.before, policy=policy, iteration=self.before.iteration + 1)
        half = float(np.median(np.abs(self.first[0]["rewards"]))) or 1.0
        narrow = dict(obs_clip_range=1.0, reward_clip_range=half)
        self.args, args = (self.with_options(x, **narrow) for x in (self.wide, args))
        self.data, self.true = play(self.module, args, self.state)
        self.rollouts = (*self.first, self.wide), (self.data, self.true, self.args)
        self.again = play(self.module, *equal)
        self.batch = self.module.estimate_advantages(self.args, self.state, self.data)
        self.critic = getattr(self.state, "value", None)
        # A yardstick must not share a bug: errors of values [B, 1] to targets [B] would be [B, B] here, too.
        self.values = lambda obs: self.critic(obs).flatten()
        self.space = recorder_of(self.state.workers[0].env).action_space

    def fresh(self, seed: int, num_envs: int) -> tuple:
        """Returns the arguments and the checkpoint's state with workers that will begin new episodes."""
        script, args, state = lab.frozen_state(self.checkpoint)
        args = replace(args, num_envs=num_envs, num_steps=self.steps)
        rng = lab.generator(self.checkpoint.run, self.seed, self.checkpoint.iteration, seed)
        with recorded():
            return args, changed(state, workers=script.State(args).workers, rng=rng)

    def option(self, name: str, otherwise: Any = False) -> Any:
        return getattr(self.args, name, otherwise)

    def with_options(self, args: Any = None, **options: Any) -> Any:
        """Returns the arguments with these options, as far as the script has them."""
        args = args or self.args
        return replace(args, **{name: x for name, x in options.items() if hasattr(args, name)})

    def statistics(self, ndim: int, state: Any = None) -> Any:
        """Returns the running statistics of observations (1) or rewards (0), if the script keeps and uses any."""
        used = self.option("obs_norm" if ndim else "reward_scale", True)
        parts = vars(state or self.state).values() if used else ()
        return next((x for x in parts if hasattr(x, "push") and np.ndim(x.mean) == ndim), None)

    @torch.no_grad()
    def following(self, data: dict[str, Any]) -> np.ndarray:
        """Returns V [B] of the observation after each of a rollout's steps, which is 0 after a termination."""
        return np.where(data["terminations"], 0.0, self.values(torch.from_numpy(data["next_obs"])).double().numpy())

    @cached_property
    def new(self) -> tuple:
        """A new run with one minibatch and four epochs, and with hardly any conjugate gradient, which costs most: its
        arguments, its state after a rollout, and this rollout."""
        args = self.with_options(self.wide, policy_epochs=4, value_epochs=4, num_minibatches=1, cg_steps=1)
        with recorded():
            state = self.module.State(args)
        return args, state, *play(self.module, replace(args, num_steps=self.steps), state)

    def updated(self, args: Any = None, start: Any = None, **parts: Tensor) -> tuple:
        """Returns the state after an update, by default of two epochs from `state`, and what it logs. Parts of the
        batch may be others."""
        args = args or self.with_options(policy_epochs=2, value_epochs=2)
        state = changed(copied(start or self.state), rng=np.random.default_rng(1))
        return state, self.module.update(args, state, self.batch | parts)

    an_update = cached_property(lambda self: self.updated())


def moved(network: nn.Module, far_enough: Callable) -> nn.Module:
    """Returns a copy of the network whose parameters have walked at random until it is far enough, or for 20 steps."""
    network, draw = copy.deepcopy(network), torch.Generator().manual_seed(0)
    for length in np.geomspace(0.01, 1, 20):
        for p in network.parameters():
            p.data += length * torch.randn(p.shape, generator=draw)
        if far_enough(network):
            break
    return network
