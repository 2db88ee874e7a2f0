"""Training states from checkpoints, and what worker processes sample of them. Of an algorithm's script this uses the
functions of runs.CONTRACT and nothing else."""

import contextlib
import copy
import functools
import hashlib
import importlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.func import functional_call
from tqdm import tqdm

from common import runs
from common.runs import Source

VERSION = 2  # raised where what is sampled changes: 2, each run has random numbers of its own

ENDLESS = 100_000  # steps after which an episode is given up
AHEAD = 16_384  # steps that keep a worker busy while a checkpoint is measured
GROUP = 8  # actors of a rollout; fixed, since a row's last bits depend on the size of the batch it is in

# States of checkpoints -----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def read_checkpoint(source: Source) -> tuple[ModuleType, Any, Any]:
    """Script, arguments and training state of a checkpoint, its statistics frozen. At iteration 0, where there are none
    of observations and rewards yet, one discarded rollout makes them."""
    script = runs.load_script(source.script)
    checkpoint = script.load_checkpoint(source.path)
    try:
        args = replace(script.Args(**checkpoint["args"]), compile=False)  # an update or two do not repay it
        state = script.initial_state(args, script.make_actors(args))
        script.restore(state, checkpoint)
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        text = " ".join(str(error).split())
        runs.stop(f"{source.script} does not fit {source.run}: {type(error).__name__}: {text}")
    if state.iteration == 0:
        script.rollout(args, state)
    for part in vars(state).values():
        if hasattr(part, "frozen"):
            part.frozen = True
    return script, args, state


def checkpoint_state(source: Source) -> tuple[ModuleType, Any, Any]:
    """The same, with a copy of the state: updates change a state in place, and the next caller must not see that."""
    script, args, state = read_checkpoint(source)
    return script, args, copied(state)


def copied(state: Any) -> Any:
    """A copy of a training state but for its actors: a copied environment does not step to the same observations."""
    return replace(state, **{name: copy.deepcopy(part) for name, part in vars(state).items() if name != "actors"})


def training_state(source: Source) -> tuple[ModuleType, Any, Any]:
    """Script, arguments and state of a checkpoint as training goes on from it: statistics live, compiled as it was, new
    episodes."""
    script = runs.load_script(source.script)
    checkpoint = script.load_checkpoint(source.path)
    args = script.Args(**checkpoint["args"])
    if args.compile and hasattr(script, "can_compile") and not script.can_compile():
        args = replace(args, compile=False)  # the same step, but for the last bits
    if args.compile:
        forget_other_settings(json.dumps(runs.setting(runs.read_config(source.run))))
    state = script.initial_state(args, script.make_actors(args))
    script.restore(state, checkpoint)
    script.begin_episodes(args, state)
    return script, args, state


@functools.lru_cache(maxsize=1)
def forget_other_settings(_: str) -> None:
    """Called with another setting than before, drops what is compiled: torch refuses to compile a function for more
    than eight of them."""
    torch.compiler.reset()


def next_iteration(source: Source, *_: Any) -> tuple:
    """The iteration that training took from a checkpoint, exactly: state before, after, statistics, rollout, batch."""
    script, args, state = training_state(source)
    experience = script.rollout(args, state)
    batch = script.estimate_advantages(args, state, experience)
    after = copied(state)
    statistics = script.update(args, after, batch)
    return state, after, statistics, experience, batch


# Networks ------------------------------------------------------------------------------------------------------------


def flat_parameters(network: nn.Module) -> Tensor:
    """The network's parameters as one vector [P]."""
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def with_parameters(network: nn.Module, parameters: Tensor) -> Callable:
    """The network as a function of observations, its parameters taken from one flat vector [P]."""
    named = dict(network.named_parameters())
    parts = parameters.split([p.numel() for p in named.values()])
    return partial(functional_call, network, {k: x.view(p.shape) for (k, p), x in zip(named.items(), parts)})


@torch.no_grad()
def compare_policies(policy: Callable, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The policy against the one that collected the batch: ratios and KL(old || new) in nats, both [B]."""
    old, new = Independent(Normal(batch["old_means"], batch["old_stds"]), 1), policy(batch["obs"])
    return torch.exp(new.log_prob(batch["actions"]) - batch["old_log_probs"]), kl_divergence(old, new)


# Rollouts ------------------------------------------------------------------------------------------------------------


@functools.cache
def run_key(run: Path) -> int:
    """A number for the run: its algorithm and all arguments that make it."""
    config = runs.read_config(run)
    args = {name: x for name, x in config["args"].items() if name not in runs.NOT_OF_THE_RUN}
    text = json.dumps(dict(algo=config["algo"]) | args, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def generator(source: Source, *seed: int) -> np.random.Generator:
    """Random numbers for what is sampled of a run. Each run has its own, or runs that are averaged as if they were
    independent would share their luck. Within a run, the same seed gives the same numbers at every checkpoint."""
    return np.random.default_rng(np.random.SeedSequence(run_key(source.run), spawn_key=seed))


def fresh_state(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> tuple:
    """Script, arguments and the checkpoint's state with actors that will begin new episodes and a generator of its
    own."""
    script, args, state = checkpoint_state(source)
    args = replace(args, num_envs=num_envs, num_steps=num_steps)
    return script, args, replace(state, actors=script.make_actors(args), rng=generator(source, *seed))


def groups(pairs: int, num_steps: int) -> list[tuple[int, int]]:
    """Actors and steps of each group that together give the pairs: as many whole segments as there are in them, and the
    first pairs of one more."""
    segments, rest = divmod(pairs, num_steps)
    whole = [(min(GROUP, segments - first), num_steps) for first in range(0, segments, GROUP)]
    return whole + ([(1, rest)] if rest else [])


def segment_rows(experience: dict[str, Any], num_steps: int) -> list[slice]:
    """Rows of each actor's segment in a rollout, num_steps each (REINFORCE's go on to the end of the episode)."""
    ends, rows, start = np.flatnonzero(experience["ends"]) + 1, [], 0
    while start < len(experience["obs"]):
        rows.append(slice(start, start + num_steps))
        start = ends[ends >= start + num_steps][0]
    return rows


def collect_group(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> dict[str, Any]:
    """Fresh segments of a checkpoint's policy, statistics frozen."""
    script, args, state = fresh_state(source, seed, num_envs, num_steps)
    return script.rollout(args, state)


def collect(
    source: Source, seed: tuple[int, ...], pairs: int, sample: "Sampler", group: Callable = collect_group
) -> dict[str, Any]:
    """As many pairs from fresh segments, as one rollout, or as whatever the groups are made into by workers."""
    sizes = groups(pairs, runs.read_config(source.run)["args"]["num_steps"])
    tasks = [Task(n * m, partial(group, source, (*seed, i), n, m)) for i, (n, m) in enumerate(sizes)]
    whole, rows = {}, 0
    for part in sample(tasks):
        for name, x in part.items():
            if isinstance(x, list):
                whole.setdefault(name, []).extend(x)
                continue
            if name not in whole:  # all at once, since millions of pairs are in memory twice while they are joined
                whole[name] = np.empty((pairs, *x.shape[1:]), x.dtype)
            if len(whole[name]) < rows + len(x):  # REINFORCE's segments go on to the end of an episode
                whole[name].resize((2 * (rows + len(x)), *x.shape[1:]), refcheck=False)
            whole[name][rows : rows + len(x)] = x
        rows += len(part["obs"])
    return {name: x[:rows] if isinstance(x, np.ndarray) else x for name, x in whole.items()}


# Episodes ------------------------------------------------------------------------------------------------------------


class OneEpisode(gym.Wrapper):
    """One episode at a time: what a rollout goes on to do after its end is not stepped. Raw return and length of it."""

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
    """Kept by each worker: to make an environment costs as much as an untrained policy's episode."""
    script, args, state = fresh_state(source, (0,), 1, 32)
    return script, args, state, flat_parameters(state.policy)


def play_seeds(
    source: Source, seed: tuple[int, ...], first: int, episodes: int, parameters: np.ndarray | None = None
) -> list[tuple[float, int]]:
    """Raw undiscounted return and length of one complete episode of the policy, with the parameters [P] or its own, for
    each of the seeds (*seed, first), (*seed, first + 1), ... From its seed come an episode's reset and the noise of its
    actions, step by step, whatever the policy: common random numbers, so that two policies can be compared seed by
    seed."""
    script, args, state, own = player(source)
    nn.utils.vector_to_parameters(own if parameters is None else torch.as_tensor(parameters), state.policy.parameters())
    actor, found = copy.copy(state.actors[0]), []
    actor.env = OneEpisode(actor.env)
    state = replace(state, actors=[actor])
    for i in range(first, first + episodes):
        state.rng, actor.obs = generator(source, *seed, i), None
        actor.env.begin()
        while not actor.env.ended:
            script.rollout(args, state)
            if actor.env.length >= ENDLESS:
                runs.stop(
                    f"{args.env_id}: an episode has not ended after {ENDLESS:,} steps; register it with a time limit"
                )
        found.append((actor.env.total, actor.env.length))
    return found


def episodes_unit(source: Source) -> str:
    """What is counted where episodes are played."""
    module, _, name = runs.read_config(source.run)["args"]["env_id"].rpartition(":")
    if module:
        importlib.import_module(module)
    limit = gym.spec(name).max_episode_steps
    return f"episodes of up to {limit:,} steps" if limit else "episodes"


def play(
    source: Source, seed: tuple[int, ...], first: int, last: int, steps: int, sample: "Sampler", *parameters: np.ndarray
) -> Iterator[tuple[float, int]]:
    """Return and length of the episodes first, ..., last - 1, of about so many steps each: workers begin them at
    once."""
    parts = [(i, min(GROUP, last - i)) for i in range(first, last, GROUP)]
    played = sample([Task(n * steps, partial(play_seeds, source, seed, i, n, *parameters)) for i, n in parts])
    return (episode for group in played for episode in group)


# Workers -------------------------------------------------------------------------------------------------------------


def start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()  # no worker outlives it


class Task(NamedTuple):
    """What a worker does. What goes to it and comes back holds numpy arrays: each tensor between two processes takes a
    file descriptor."""

    steps: int  # environment steps, or whatever else is counted
    call: Callable


def run_task(task: Task) -> Any:
    return task.call()


class Sampler:
    """What measuring samples with. `sample(tasks)` is an iterator of their results, in their order, computed in so many
    processes, which begin at once; with one, here, one by one as they are asked for."""

    def __init__(self, jobs: int, processes: ProcessPoolExecutor, threads: ThreadPoolExecutor):
        self.jobs, self.processes, self.threads, self.lock = jobs, processes, threads, threading.Lock()

    def __call__(self, tasks: list[Task]) -> Iterator[Any]:
        results = (map if self.jobs == 1 else self.processes.map)(run_task, tasks)
        return self.counted(tasks, results)

    def counted(self, tasks: list[Task], results: Iterator[Any]) -> Iterator[Any]:
        for task, result in zip(tasks, results):
            self.advance(task.steps)
            yield result

    def ahead(self, calls: list[Callable], steps: int) -> Iterator[Callable]:
        """For each call, which samples so many steps, a function that waits for its result. While one result is used,
        the next are being sampled: as many as keep every process busy and no more, since each takes memory."""
        if self.jobs == 1:
            yield from calls
            return
        rest, many = iter(calls), min(self.jobs, 1 + self.jobs * AHEAD // steps)
        begun = deque(self.threads.submit(call) for call in islice(rest, 1 + many))
        while begun:
            yield begun.popleft().result
            begun.extend(self.threads.submit(call) for call in islice(rest, 1))

    @contextlib.contextmanager
    def progress(self, total: int, unit: str) -> Iterator[None]:
        """Shows meanwhile how many steps, or whatever the unit is, are done."""
        print(f"{total:,} {unit} to sample", flush=True)
        self.total, self.unit, self.done = total, unit, 0
        self.start = self.last_line = time.perf_counter()
        with tqdm(total=total, unit=f" {unit}", unit_scale=True, disable=None) as self.bar:
            yield

    def advance(self, steps: int) -> None:
        with self.lock:  # threads that sample ahead count, too
            self.done, now = self.done + steps, time.perf_counter()
            self.bar.update(steps)
            if self.bar.disable and now - self.last_line > 30:  # no terminal: now and then a line instead of the bar
                left = tqdm.format_interval((now - self.start) / self.done * max(0, self.total - self.done))
                print(f"{self.done:,} of {self.total:,} {self.unit}, {left} left", flush=True)
                self.last_line = now


@contextlib.contextmanager
def sampler(jobs: int) -> Iterator[Sampler]:
    """A Sampler, which leaves no process behind."""
    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, start_worker) as processes, ThreadPoolExecutor(jobs + 1) as threads:
        try:
            yield Sampler(jobs, processes, threads)
        except BaseException as error:
            threading.excepthook = lambda _: None  # the executor's thread reports what was cancelled under its hands
            threads.shutdown(wait=False, cancel_futures=True)
            processes.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            if isinstance(error, BrokenProcessPool):
                runs.stop("a worker died, of memory perhaps; the same command goes on from what is measured", 1)
            raise
