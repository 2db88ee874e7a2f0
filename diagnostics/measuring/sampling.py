"""This module makes training states from checkpoints and samples from them. From an algorithm's script it needs
what algos/README.md lists and nothing else."""

import copy
import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.func import functional_call

from measuring import runs
from measuring.runs import Source
from measuring.table import side_by_side

ENDLESS = 100_000  # steps after which an episode is given up
GROUP = 8  # workers of a rollout; fixed, because a row's last bits depend on the size of its batch

# States of checkpoints -----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def read_checkpoint(source: Source) -> tuple[ModuleType, Any, Any]:
    """Returns the script, the arguments and the training state of a checkpoint, with its statistics frozen. At
    iteration 0 there are no statistics of observations and rewards yet, so one discarded rollout makes them."""
    script = runs.load_script(source.script)
    checkpoint = runs.checkpoint_of(source)
    checkpoint.pop("workers", None)  # whose unfinished episodes would be played again, and then not be used
    try:
        args = replace(script.Args(**checkpoint["args"]), compile=False)  # one or two updates do not repay it
        state = new_state(script, args)
        script.restore(state, checkpoint)
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        text = " ".join(str(error).split())
        runs.stop(f"{source.script} does not fit {source.run}: {type(error).__name__}: {text}")
    if state.iteration == 0:
        roll_out(script, args, state)
    for name, part in vars(state).items():
        if hasattr(part, "push"):
            part.push = do_nothing
        elif hasattr(part, "mean") and hasattr(part, "std") and not isinstance(part, nn.Module | Tensor | np.ndarray):
            runs.stop(f"{source.script}: {name} has no method `push`, so measuring would change these statistics")
    return script, args, state


def do_nothing(*_: Any) -> None:
    """Is what a frozen running statistic does with a sample."""


def new_state(script: ModuleType, args: Any) -> Any:
    """Returns the state in which iteration 0 begins."""
    with runs.bad_input(script):
        return script.State(args)


def checkpoint_state(source: Source) -> tuple[ModuleType, Any, Any]:
    """Returns the same with a copy of the state, because updates change a state in place and the next caller must not
    see that."""
    script, args, state = read_checkpoint(source)
    return script, args, copied(state)


def copied(state: Any) -> Any:
    """Copies a training state except for its workers, because a copied environment does not step to the same
    observations."""
    return changed(state, **{name: copy.deepcopy(part) for name, part in vars(state).items() if name != "workers"})


def changed(state: Any, **parts: Any) -> Any:
    """Returns a training state that has these parts, and shares all others with the given one."""
    state = copy.copy(state)
    vars(state).update(parts)
    return state


def training_state(source: Source) -> tuple[ModuleType, Any, Any]:
    """Returns the script, the arguments and the state of a checkpoint as training continues from it: with live
    statistics, compiled as it was, and with its unfinished episodes, or new ones where it has none."""
    script = runs.load_script(source.script)
    checkpoint = runs.checkpoint_of(source)
    args = script.Args(**checkpoint["args"])
    if args.compile and not can_compile():
        args = replace(args, compile=False)  # the step is the same except for its last bits
    if args.compile:
        forget_other_settings(json.dumps(runs.setting(runs.read_config(source.run))))
    if runs.read_config(source.run)["algo"] == "sb3":
        text = "iterations repeated here are statistically equivalent, not identical"
        runs.note(f"SB3 saves neither random numbers nor environments, so {text}")
    state = new_state(script, args)
    script.restore(state, checkpoint)
    return script, args, state


@functools.cache
def can_compile() -> bool:
    """Tells whether torch finds a C++ compiler, as the scripts' main does."""
    try:
        torch.compile(torch.neg, options={"cpp_wrapper": True})(torch.zeros(2))
        return True
    except Exception:
        return False


@functools.lru_cache(maxsize=1)
def forget_other_settings(_: str) -> None:
    """Drops what is compiled when it is called with another setting than before. torch refuses to compile a function
    for more than eight settings."""
    torch.compiler.reset()


def next_iteration(source: Source) -> tuple:
    """Repeats the iteration that training took from a checkpoint, exactly. Returns the state before and after it, the
    statistics, the rollout and the batch."""
    script, args, state = training_state(source)
    experience = roll_out(script, args, state)
    batch = script.estimate_advantages(args, state, experience)
    after = copied(state)
    statistics = script.update(args, after, batch)
    return state, after, statistics, experience, batch


# Networks ------------------------------------------------------------------------------------------------------------


def flat_parameters(network: nn.Module) -> Tensor:
    """Returns the network's parameters as one vector [P]."""
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def with_parameters(network: nn.Module, parameters: Tensor) -> Callable:
    """Returns the network as a function of observations that takes its parameters from one flat vector [P]."""
    named = dict(network.named_parameters())
    parts = parameters.split([p.numel() for p in named.values()])
    return partial(functional_call, network, {k: x.view(p.shape) for (k, p), x in zip(named.items(), parts)})


@torch.no_grad()
def compare_policies(policy: Callable, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Returns ratios and KL(old || new) in nats, both [B], of the policy against the one that collected the batch."""
    old, new = Independent(Normal(batch["old_means"], batch["old_stds"]), 1), policy(batch["obs"])
    return torch.exp(new.log_prob(batch["actions"]) - batch["old_log_probs"]), kl_divergence(old, new)


def objective(script: ModuleType, args: Any, policy: Callable, batch: dict[str, Tensor]) -> Tensor:
    """Returns what the policy step maximizes, which is minus the script's policy_loss."""
    return -script.policy_loss(args, policy(batch["obs"]), batch)


# Rollouts ------------------------------------------------------------------------------------------------------------


def roll_out(script: ModuleType, args: Any, state: Any) -> dict[str, Any]:
    """Returns the arrays of the script's rollout and, as `episodes`, its list of them."""
    with runs.bad_input(script):
        steps, episodes = script.rollout(args, state)
    return steps | dict(episodes=episodes)


@functools.cache
def run_key(run: Path) -> int:
    """Returns a number for the run, made from its algorithm and from all the arguments that define it."""
    config = runs.read_config(run)
    args = {name: x for name, x in config["args"].items() if name not in runs.NOT_OF_THE_RUN}
    text = json.dumps(dict(algo=config["algo"]) | args, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def generator(source: Source, *seed: int) -> np.random.Generator:
    """Returns the random numbers for what is sampled from a run. Each run has its own; otherwise runs that are averaged
    as if they were independent would share their luck. Within a run, the same seed gives the same numbers at every
    checkpoint."""
    return np.random.default_rng(np.random.SeedSequence(run_key(source.run), spawn_key=seed))


def fresh_state(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> tuple:
    """Returns the script, the arguments, and the checkpoint's state with workers that will begin new episodes and a
    generator of its own."""
    script, args, state = checkpoint_state(source)
    args = replace(args, num_envs=num_envs, num_steps=num_steps)
    return script, args, changed(state, workers=new_state(script, args).workers, rng=generator(source, *seed))


def groups(pairs: int, num_steps: int) -> list[tuple[int, int]]:
    """Returns the workers and steps of each group. Together the groups give the pairs: as many whole segments as fit
    into them, and the first pairs of one more."""
    segments, rest = divmod(pairs, num_steps)
    whole = [(min(GROUP, segments - first), num_steps) for first in range(0, segments, GROUP)]
    return whole + ([(1, rest)] if rest else [])


def segment_rows(experience: dict[str, Any], num_steps: int) -> list[slice]:
    """Returns the rows of each worker's segment in a rollout, num_steps each. What REINFORCE adds to reach the end of
    the episode is left out."""
    ends, rows, start = np.flatnonzero(experience["ends"]) + 1, [], 0
    while start < len(experience["obs"]):
        rows.append(slice(start, start + num_steps))
        start = ends[ends >= start + num_steps][0]
    return rows


def collect_group(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> dict[str, Any]:
    """Collects fresh segments of a checkpoint's policy with frozen statistics."""
    return roll_out(*fresh_state(source, seed, num_envs, num_steps))


def collect(source: Source, seed: tuple[int, ...], pairs: int, group: Callable = collect_group) -> dict[str, Any]:
    """Collects `pairs` pairs from fresh segments, as one rollout or as whatever is made of each group."""
    sizes = groups(pairs, runs.read_config(source.run)["args"]["num_steps"])
    parts = side_by_side(group, [(source, (*seed, i), n, m) for i, (n, m) in enumerate(sizes)])
    whole = {name: [part[name] for part in parts] for name in parts[0]}
    return {name: sum(x, []) if isinstance(x[0], list) else np.concatenate(x) for name, x in whole.items()}


# Returns -------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def values_that_follow(value: Callable, data: dict[str, Any]) -> np.ndarray:
    """Returns V [B] of the observation after each of a rollout's steps, which is 0 after a termination."""
    if "next_obs" not in data:
        runs.stop("the script's rollout returns no next_obs, the observations whose V is needed")
    following = value(torch.from_numpy(data["next_obs"])).double().numpy()
    return np.where(data["terminations"], 0.0, following)


def discounted_returns(gamma: float, value: Callable, data: dict[str, Any]) -> np.ndarray:
    """Returns the discounted sums [B] of a rollout's rewards. Where an episode is cut off, by a time limit or the end
    of the rollout, they continue with V of the observation that followed. They are computed here because the script's
    own estimate_advantages, which is under test, cannot be its own yardstick."""
    rows = zip(data["rewards"].tolist(), data["ends"].tolist(), values_that_follow(value, data).tolist())
    returns, total = [], 0.0
    for reward, end, after in reversed(list(rows)):
        total = reward + gamma * (after if end else total)
        returns.append(total)
    return np.array(returns[::-1])


# Episodes ------------------------------------------------------------------------------------------------------------


class OneEpisode(gym.Wrapper):
    """Plays one episode at a time, and keeps its raw return and length. What a rollout does after the episode's end
    does not step the environment."""

    def begin(self) -> None:
        self.ended, self.total, self.length = False, 0.0, 0

    def reset(self, **options: Any) -> tuple:
        return (self.obs, {}) if self.ended else self.env.reset(**options)

    def step(self, action: np.ndarray) -> tuple:
        if self.ended:
            return self.obs, 0.0, True, False, {}
        self.obs, reward, terminated, truncated, info = self.env.step(action)
        self.total, self.length, self.ended = self.total + float(reward), self.length + 1, terminated or truncated
        return self.obs, reward, terminated, truncated, info


@functools.lru_cache(maxsize=1)
def player(source: Source) -> tuple:
    """Returns what episodes are played with. Each worker keeps it, because making an environment costs as much as an
    episode of an untrained policy."""
    script, args, state = fresh_state(source, (0,), 1, 32)
    spec = state.workers[0].env.spec
    if spec and (spec.max_episode_steps or 0) > ENDLESS:
        limit = f"{spec.max_episode_steps:,} steps"
        runs.stop(f"{args.env_id}: its time limit is {limit}, and episodes of up to {ENDLESS:,} can be played")
    return script, args, state, flat_parameters(state.policy)


def play_seeds(
    source: Source, seed: tuple[int, ...], first: int, episodes: int, parameters: np.ndarray | None = None
) -> list[tuple[float, int]]:
    """Plays one complete episode of the policy, with the parameters [P] or its own, for each of the seeds
    (*seed, first), (*seed, first + 1), ... Returns the raw undiscounted return and the length of each. An episode's
    seed determines its reset and the noise of its actions, step by step, whatever the policy is. With these common
    random numbers, two policies can be compared seed by seed."""
    script, args, state, own = player(source)
    if parameters is not None and len(parameters) != len(own):  # vector_to_parameters does not check that
        raise ValueError(f"{len(parameters)} numbers for the {len(own)} parameters of the policy")
    nn.utils.vector_to_parameters(own if parameters is None else torch.as_tensor(parameters), state.policy.parameters())
    return play_episodes(script, args, state, [generator(source, *seed, i) for i in range(first, first + episodes)])


def play_episodes(script: ModuleType, args: Any, state: Any, rngs: list[np.random.Generator]) -> list[tuple]:
    """Plays a complete episode of a state's policy with each of the generators, in the state's first environment."""
    worker, found = copy.copy(state.workers[0]), []
    worker.env = env = OneEpisode(worker.env)
    state = changed(state, workers=[worker])
    for state.rng in rngs:
        state.workers[0].obs = None
        env.begin()
        while not env.ended:
            roll_out(script, args, state)
            if env.length >= ENDLESS:
                limit = "register it with a time limit"
                runs.stop(f"{args.env_id}: an episode has not ended after {ENDLESS:,} steps; {limit}")
        found.append((env.total, env.length))
    return found


def play(
    source: Source, seed: tuple[int, ...], first: int, last: int, parameters: np.ndarray | None = None
) -> list[tuple[float, int]]:
    """Returns the return and the length of the episodes first, ..., last - 1 (see play_seeds)."""
    return play_policies([(source, seed, parameters)], first, last)[0]


def play_policies(
    policies: list[tuple[Source, tuple[int, ...], np.ndarray | None]], first: int, last: int
) -> list[list[tuple[float, int]]]:
    """Returns the same for several policies, each given as its checkpoint, the seed of its episodes, and its parameters
    where these are not the checkpoint's."""
    parts = [(i, min(GROUP, last - i)) for i in range(first, last, GROUP)]
    calls = [(source, seed, *part, parameters) for source, seed, parameters in policies for part in parts]
    groups = iter(side_by_side(play_seeds, calls))
    return [[episode for _ in parts for episode in next(groups)] for _ in policies]
