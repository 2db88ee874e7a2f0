"""What the diagnostics share: runs and their checkpoints, sampling in worker processes and keeping what is measured,
and how figures look. No measurement stands here: each diagnostic beside this file is one. Of an algorithm's script they
use the functions of CONTRACT and nothing else."""

import ast
import contextlib
import copy
import csv
import errno
import functools
import hashlib
import importlib.util
import inspect
import json
import multiprocessing
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
import torch
import tyro
from filelock import FileLock, Timeout
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats
from torch import Tensor, nn
from torch.func import functional_call
from tqdm import tqdm

VERSION = 2  # of the sampling; raised where what is sampled changes: 2, each run has random numbers of its own

# Runs ----------------------------------------------------------------------------------------------------------------

CONTRACT = """
    Args make_actors make_networks initial_state begin_episodes load_checkpoint restore rollout estimate_advantages
    objective update
""".split()
NOT_OF_THE_SETTING = "squash_action env_id seed runs_dir run_name overwrite checkpoint_every compile".split()


def count_cores() -> int:
    """Cores that this process may use; macOS and Windows only know how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every diagnostic that samples can be told."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """run folders, of one environment"""
    script: Path | None = None
    """algorithm script; default: the one in algos/ that the run names"""
    out: Path | None = None
    """folder of figures and numbers; default: figures/ inside the run's folder"""
    jobs: int = count_cores()
    """worker processes; numbers do not depend on it"""
    seed: int = 0
    """seed of everything sampled here"""
    overwrite: bool = False
    """measure anew what an earlier call has measured"""


@dataclass(frozen=True, kw_only=True)
class LabelledOptions(Options):
    """The same, of those that draw settings beside one another."""

    labels: tuple[str, ...] = ()
    """labels of your own, each "LABEL=ALGO FLAG ...": for the algorithm's runs with these flags, spelled as run folders
    spell them"""


class Source(NamedTuple):
    """A checkpoint and the script that understands it; small, so that tasks for workers can carry it."""

    script: Path
    run: Path
    iteration: int

    @property
    def path(self) -> Path:
        return self.run / "checkpoints" / f"iter_{self.iteration:06d}.pt"


def stop(message: str, status: int = 2) -> NoReturn:
    """Ends the program with one line on standard error; status 2: bad input, 1: measuring failed, 130: interrupted."""
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    raise SystemExit(status)


@functools.cache
def note(message: str) -> None:
    """Says something once."""
    print(f"{Path(sys.argv[0]).name}: note: {message}", file=sys.stderr)


def check_options(args: Any) -> None:
    """Refuses what tyro lets through: every size must be greater than 0, every tuple of sizes hold one or more."""
    may_be_zero, may_be_empty = ("seed", "checkpoints"), ("labels", "checkpoints", "concentration")
    for name, value in vars(args).items():
        numbers = value if isinstance(value, tuple) else (value,)
        option = f"--{name.replace('_', '-')} {' '.join(map(str, numbers))}"
        if not numbers and name not in may_be_empty:
            stop(f"{option}: give one or more")
        for x in numbers:
            if isinstance(x, int) and not isinstance(x, bool) and x < (0 if name in may_be_zero else 1):
                stop(f"{option}: must {'not be negative' if name in may_be_zero else 'be greater than 0'}")


def load_script(path: Path) -> ModuleType:
    """An algorithm's script as a module. Stops where it cannot be imported or lacks a function of the contract."""
    name = f"script_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or not path.is_file():
            stop(f"{path}: no such Python script; name the one that made the run with --script")
        script = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look for it there
        try:
            spec.loader.exec_module(script)
        except Exception as error:
            stop(f"{path}: {type(error).__name__}: {error}")
        for function in CONTRACT:
            if not hasattr(script, function):
                stop(f"{path} has no {function}, which the diagnostics need")
    return sys.modules[name]


def open_runs(folders: tuple[Path, ...], script: Path | None, needs_critic: bool = False) -> list[list[Source]]:
    """The checkpoints of each run, in order. Stops at what is not a run, and at runs of different environments."""
    runs, env_ids = [], {}
    for folder in folders:
        if not (folder / "config.json").is_file():
            stop(f"{folder}: {'no config.json, so not a run' if folder.is_dir() else 'no such run'}")
        try:
            config = json.loads((folder / "config.json").read_text())
            algo, made_by, env_id = config["algo"], config["script"][:12], config["args"]["env_id"]
            if not algo.isidentifier():  # a run from elsewhere must not name code of its own
                raise ValueError(algo)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            stop(f"{folder}: its config.json is damaged")
        path = script or Path(__file__).parent.parent / "algos" / f"{algo}.py"
        load_script(path)
        if hashlib.sha256(path.read_bytes()).hexdigest()[:12] != made_by:
            note(f"{path} is not, or no longer, the script that made {folder}")
        names = [x.stem.removeprefix("iter_") for x in folder.glob("checkpoints/iter_*.pt")]
        iterations = sorted(int(name) for name in names if name.isdecimal())
        if not iterations:
            stop(f"{folder}: no checkpoints")
        runs.append([Source(path, folder, iteration) for iteration in iterations])
        env_ids[env_id] = folder
        if needs_critic and not hasattr(checkpoint_state(runs[-1][0])[2], "value"):
            stop(f"{folder}: {algo} has no value network to measure")
    if len(env_ids) > 1:
        stop(f"runs of different environments: {' and '.join(env_ids)}; draw each by itself")
    return runs


def output_folder(out: Path | None, folders: tuple[Path, ...]) -> Path:
    if out is None and len(folders) > 1:
        stop("several runs: name the folder for their figures with --out")
    out = out or folders[0] / "figures"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        stop(f"--out {out}: {error.strerror}")
    return out


def setting(config: dict[str, Any]) -> dict[str, Any]:
    """What makes the setting of a run, of its config.json: the algorithm and the arguments."""
    before = dict(bound_action="tanh" if config["args"].get("squash_action") else "no")  # as runs until 2026 had it
    args = {name: x for name, x in config["args"].items() if name not in NOT_OF_THE_SETTING}
    return dict(algo=config["algo"]) | before | args


def flag(name: str, value: Any) -> str:
    """An argument as run folders spell it: no-value-clip, policy-lr=0.0003, policy-hidden=64x64."""
    text = "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    name = name.replace("_", "-")
    return {"True": name, "False": f"no-{name}"}.get(text, f"{name}={text}")


def default_flags(algo: str) -> set[str]:
    """The defaults of algos/<algo>.py, read without running it; none where it cannot be read."""
    try:
        source = (Path(__file__).parent.parent / "algos" / f"{algo}.py").read_text()
        [args] = [x for x in ast.parse(source).body if isinstance(x, ast.ClassDef) and x.name == "Args"]
        return {flag(x.target.id, ast.literal_eval(x.value)) for x in args.body if isinstance(x, ast.AnnAssign)}
    except (OSError, SyntaxError, ValueError):
        return set()


def differing(settings: list[dict[str, Any]]) -> list[str]:
    """Names of the arguments that are not the same in all the settings."""
    names = dict.fromkeys(name for x in settings for name in x)
    return [name for name in names if any(x.get(name) != settings[0].get(name) for x in settings)]


def label_runs(settings: dict[Path, dict[str, Any]], labels: tuple[str, ...]) -> dict[Path, str]:
    """The label of each run folder's setting: a given one, or the algorithm and the flags that tell it from the
    algorithm's other settings here, as far as they are not the script's defaults."""
    found, given = {}, {}
    for algo in {x["algo"] for x in settings.values()}:
        alike, defaults = {folder: x for folder, x in settings.items() if x["algo"] == algo}, default_flags(algo)
        names = differing(list(alike.values()))
        for folder, x in alike.items():
            flags = [flag(name, x.get(name)) for name in names]
            found[folder] = " ".join([algo, *(text for text in flags if text not in defaults)])
    for text in labels:
        label, _, spelled = text.partition("=")
        algo, *flags = spelled.split() or stop(f'--labels {text}: write LABEL=ALGO or "LABEL=ALGO FLAG ..."')
        flags.append(flag("algo", algo))
        named = [folder for folder, x in settings.items() if {flag(*y) for y in x.items()}.issuperset(flags)]
        for folder in named or stop(f"--labels {text}: no run is {spelled}"):
            if folder in given:
                stop(f"--labels: {folder} is both {given[folder]} and {label}; add flags that tell them apart")
            given[folder] = label
    return found | given


def can_step(source: Source) -> bool:
    """Whether the checkpoint has a next iteration; the last of a finished run has learning rate 0."""
    _, args, state = read_checkpoint(source)
    return state.global_step < args.total_timesteps - args.total_timesteps % (args.num_envs * args.num_steps)


def choose(sources: list[Source], iterations: tuple[int, ...]) -> list[Source]:
    """The checkpoints of a run at the given iterations; where none are given, 0, 150, 300 and 450 or, in a run without
    them, its first, its thirds and its last that still has a step."""
    have = {source.iteration: source for source in sources}
    if not iterations:
        going_on = [x for x in have if x < max(have) or can_step(have[x])] or [max(have)]
        thirds = [going_on[round(k * (len(going_on) - 1) / 3)] for k in range(4)]
        iterations = (0, 150, 300, 450) if {0, 150, 300, 450} <= set(going_on) else tuple(dict.fromkeys(thirds))
    for iteration in iterations:
        if iteration not in have:
            stop(f"{sources[0].run}: no checkpoint {iteration}; there are {' '.join(map(str, have))}")
    return [have[iteration] for iteration in iterations]


def with_step(sources: list[Source], iterations: tuple[int, ...]) -> list[Source]:
    """The checkpoints of a run at the given iterations, by default all, that have a next iteration."""
    chosen = choose(sources, iterations) if iterations else [x for x in sources if x is not sources[-1] or can_step(x)]
    for source in chosen:
        if not can_step(source):
            stop(f"{source.path}: training ended there, with no step to measure")
    return chosen or stop(f"{sources[0].run}: no checkpoint that has a step")


# Sampling, and what is kept of it ------------------------------------------------------------------------------------

ENDLESS = 100_000  # steps after which an episode is given up
GROUP = 8  # actors of a rollout; fixed, since a row's last bits depend on the size of the batch it is in


@functools.lru_cache(maxsize=4)
def read_checkpoint(source: Source) -> tuple[ModuleType, Any, Any]:
    """Script, arguments and training state of a checkpoint, its statistics frozen. At iteration 0, where there are none
    of observations and rewards yet, one discarded rollout makes them."""
    script = load_script(source.script)
    checkpoint = script.load_checkpoint(source.path)
    try:
        args = replace(script.Args(**checkpoint["args"]), compile=False)  # an update or two do not repay it
        state = script.initial_state(args, script.make_actors(args))
        script.restore(state, checkpoint)
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        text = " ".join(str(error).split())
        stop(f"{source.script} does not fit {source.run}: {type(error).__name__}: {text}")
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
    script = load_script(source.script)
    checkpoint = script.load_checkpoint(source.path)
    args = script.Args(**checkpoint["args"])
    if args.compile and hasattr(script, "can_compile") and not script.can_compile():
        args = replace(args, compile=False)  # the same step, but for the last bits
    state = script.initial_state(args, script.make_actors(args))
    script.restore(state, checkpoint)
    script.begin_episodes(args, state)
    return script, args, state


def next_iteration(source: Source, *_: Any) -> tuple:
    """The iteration that training took from a checkpoint, exactly: state before, after, statistics, rollout, batch."""
    script, args, state = training_state(source)
    experience = script.rollout(args, state)
    batch = script.estimate_advantages(args, state, experience)
    after = copied(state)
    statistics = script.update(args, after, batch)
    return state, after, statistics, experience, batch


@functools.cache
def run_key(source: Source) -> int:
    """A number for the run: its algorithm and all arguments that make it."""
    checkpoint = load_script(source.script).load_checkpoint(source.path)
    unlike = ("runs_dir", "run_name", "overwrite", "compile")  # what may differ between two copies of a run
    args = {name: x for name, x in checkpoint["args"].items() if name not in unlike}
    text = json.dumps(dict(algo=checkpoint["algo"]) | args, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def generator(source: Source, *seed: int) -> np.random.Generator:
    """Random numbers for what is sampled of a run. Each run has its own, or runs that are averaged as if they were
    independent would share their luck. Within a run, the same seed gives the same numbers at every checkpoint."""
    return np.random.default_rng(np.random.SeedSequence(run_key(source), spawn_key=seed))


def fresh_state(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> tuple:
    """Script, arguments and the checkpoint's state with actors that will begin new episodes and a generator of its
    own."""
    script, args, state = checkpoint_state(source)
    args = replace(args, num_envs=num_envs, num_steps=num_steps)
    return script, args, replace(state, actors=script.make_actors(args), rng=generator(source, *seed))


def flat_parameters(network: nn.Module) -> Tensor:
    """The network's parameters as one vector [P]."""
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def with_parameters(network: nn.Module, parameters: Tensor) -> Callable:
    """The network as a function of observations, its parameters taken from one flat vector [P]."""
    named = dict(network.named_parameters())
    parts = parameters.split([p.numel() for p in named.values()])
    return partial(functional_call, network, {k: x.view(p.shape) for (k, p), x in zip(named.items(), parts)})


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


def collect(source: Source, seed: tuple[int, ...], pairs: int, sample: Callable) -> dict[str, Any]:
    """As many pairs from fresh segments, as one rollout."""
    sizes = groups(pairs, checkpoint_state(source)[1].num_steps)
    parts = list(sample(collect_group, [(source, (*seed, i), *size) for i, size in enumerate(sizes)]))
    whole = {}
    for name in list(parts[0]):
        x = [part.pop(name) for part in parts]
        whole[name] = sum(x, []) if isinstance(x[0], list) else np.concatenate(x)
    return whole


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
    return fresh_state(source, (0,), 1, 32)


def play_seeds(
    source: Source, seed: tuple[int, ...], episodes: int, _: int, first: int, parameters: np.ndarray
) -> list[tuple[float, int]]:
    """Raw undiscounted return and length of one complete episode of the policy with the parameters [P] for each of the
    seeds (*seed, first), (*seed, first + 1), ... From its seed come an episode's reset and the noise of its actions,
    step by step, whatever the policy: common random numbers, so that two policies can be compared seed by seed."""
    script, args, state = player(source)
    nn.utils.vector_to_parameters(torch.as_tensor(parameters), state.policy.parameters())
    actor, found = copy.copy(state.actors[0]), []
    actor.env = OneEpisode(actor.env)
    state = replace(state, actors=[actor])
    for i in range(first, first + episodes):
        state.rng, actor.obs = generator(source, *seed, i), None
        actor.env.begin()
        while not actor.env.ended:
            script.rollout(args, state)
            if actor.env.length >= ENDLESS:
                stop(f"{args.env_id}: an episode has not ended after {ENDLESS:,} steps; register it with a time limit")
        found.append((actor.env.total, actor.env.length))
    return found


def start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()  # no worker outlives it


@contextlib.contextmanager
def sampler(jobs: int, total: int, unit: str) -> Iterator[Callable]:
    """Yields sample(function, tasks): an iterator of the function's results for tasks (source, seed, actors, steps,
    ...), in their order. Tasks and results hold numpy arrays, since each tensor that goes from one process to another
    takes a file descriptor. They are computed in `jobs` processes, which begin at once, or here, one by one as they are
    asked for. Meanwhile a bar shows how many steps (or whatever the unit) are done."""
    print(f"{total:,} {unit} to sample", flush=True)
    torch.set_num_threads(1)
    bar = tqdm(total=total, unit=f" {unit}", unit_scale=True, disable=None)
    start = last_line = time.perf_counter()
    done = 0

    def advance(steps: int) -> None:
        nonlocal done, last_line
        done, now = done + steps, time.perf_counter()
        bar.update(steps)
        if bar.disable and now - last_line > 30:  # no terminal: now and then a line instead of the bar
            left = tqdm.format_interval((now - start) / done * max(0, total - done))
            print(f"{done:,} of {total:,} {unit}, {left} left", flush=True)
            last_line = now

    def in_order(tasks: list[tuple], results: Iterator[Any]) -> Iterator[Any]:
        for task, result in zip(tasks, results):
            advance(task[2] * task[3])
            yield result

    def sample(function: Callable, tasks: list[tuple], here: bool = False) -> Iterator[Any]:
        return in_order(tasks, (map if here or jobs == 1 else executor.map)(function, *zip(*tasks)))

    with bar, ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), start_worker) as executor:
        try:
            yield sample
        except BaseException as error:
            threading.excepthook = lambda _: None  # the executor's thread reports what was cancelled under its hands
            executor.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            if isinstance(error, BrokenProcessPool):
                stop("a worker died, of memory perhaps; the same command goes on from what is measured", 1)
            raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other processes from writing the file meanwhile."""
    file = path.with_name(f".{path.stem}.lock")
    try:
        file.touch()  # where that fails it cannot be written; filelock would take it for in use
        lock = FileLock(file, timeout=0, fallback_to_soft=False).acquire()
    except Timeout:
        stop(f"{path} is in use by another process")
    except OSError as error:
        stop(f"cannot write {path}: {error.strerror}")
    with lock:
        yield


def read_cells(path: Path) -> list[dict[str, Any]]:
    """What a diagnostic has kept: a line of JSON for each cell, in a file .jsonl, or a list of all, in a file .json, as
    in figures/ and as older versions wrote it. A last line that was being written is not there. Stops at what is
    neither."""
    try:
        text = path.read_text()
        cells = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.split("\n")[:-1]]
        if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
            raise ValueError
    except (OSError, ValueError):
        stop(f"{path} is damaged; move it away")
    return cells


def open_cells(path: Path) -> list[dict[str, Any]]:
    """The cells of a file .jsonl that is to be written on: without a torn last line, and begun with what an older
    version has kept in .json."""
    old = path.with_suffix(".json")
    if not path.exists() and old.is_file():
        path.write_text("".join(json.dumps(cell) + "\n" for cell in read_cells(old)))
    if not path.exists():
        return []
    cells, written = read_cells(path), path.read_bytes()
    whole, newline, torn = written.rpartition(b"\n")
    if torn:
        path.write_bytes(whole + newline)
    return cells


def measure_missing(args: Options, path: Path, work: list[tuple], unit: str = "environment steps") -> list[dict]:
    """The cells of the work, a list of (measure, source, list of a cell's settings, environment steps of each): what
    the file at the path holds of them from an earlier call; for the rest measure(source, sample, missing settings)
    yields the numbers of one after another, and each cell is added to the file at once. Of cells with the same settings
    the last counts. Beside its numbers a cell says what measured them; where that has changed since, one line says
    so."""
    cells = {}  # by checkpoint, so that one is found among many

    def keep(cell: dict[str, Any]) -> None:
        cells.setdefault((cell.get("run"), cell.get("checkpoint")), []).append(cell)

    def find(settings: dict[str, Any]) -> dict[str, Any] | None:
        alike = reversed(cells.get((settings["run"], settings["checkpoint"]), []))
        return next((cell for cell in alike if cell.items() >= settings.items()), None)

    with locked(path):
        for cell in open_cells(path):
            keep(cell)
        wanted = [settings for _, _, of_source, _ in work for settings in of_source]
        todo, planned = [], []
        for measure, source, settings, cost in work:
            missing = [x for x in settings if (args.overwrite or not find(x)) and x not in planned]
            todo.append((measure, source, missing, cost))
            planned += missing
            kept = [find(x)["measured_by"] for x in settings if x not in missing and find(x)]
            for name in {name for x in kept for name, code in measured_by(args, source).items() if x.get(name) != code}:
                note(f"{path}: some numbers are of another version of {name}; --overwrite measures them anew")
        if total := sum(len(missing) * cost for _, _, missing, cost in todo):
            if unit == "environment steps":
                print_time_needed(work[0][1].run, total, args.jobs)
            with sampler(args.jobs, total, unit) as sample:
                for measure, source, missing, _ in todo:
                    for settings, numbers in zip(missing, measure(source, sample, missing)):
                        by = dict(measured_by=measured_by(args, source), versions=library_versions())
                        keep(settings | numbers | by)
                        with open(path, "a") as file:
                            file.write(json.dumps(settings | numbers | by) + "\n")
    return [find(settings) for settings in wanted]


def print_time_needed(run: Path, steps: int, jobs: int) -> None:
    """Says how long so many environment steps take at most: training makes fewer a second, since it also learns."""
    with contextlib.suppress(OSError, KeyError, ValueError):
        with open(run / "progress.csv", newline="") as file:
            speed = np.median([float(row["sps"]) for row in csv.DictReader(file) if row["sps"]])  # the last: cut short
        left = tqdm.format_interval(steps / (speed * jobs))
        print(f"{left} at most, at the speed at which the run was trained, in {jobs} processes", flush=True)


def current_cells(cells: list[dict[str, Any]], run: Path) -> list[dict[str, Any]]:
    """Of the cells of a diagnostic's file those of the run's checkpoints as they are now."""
    cells = [x for x in cells if x["run"] == run.name]
    paths = {x["iteration"]: run / "checkpoints" / f"iter_{x['iteration']:06d}.pt" for x in cells}
    digests = {iteration: checkpoint_digest(path) for iteration, path in paths.items() if path.is_file()}
    return [x for x in cells if digests.get(x["iteration"]) == x["checkpoint"]]


def largest_cells(cells: list[dict[str, Any]], size: str) -> dict[int, dict[str, Any]]:
    """By iteration, the cell from the largest sample, the number that is named size."""
    found = {x["iteration"]: x for x in sorted((x for x in cells if size in x), key=lambda x: x[size])}
    return dict(sorted(found.items()))


def checkpoint_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def identify(source: Source, seed: int) -> dict[str, Any]:
    """What a cell says of its checkpoint: its numbers are measured anew where any of it changes."""
    algo = json.loads((source.run / "config.json").read_text())["algo"]
    checkpoint = checkpoint_digest(source.path)
    return dict(run=source.run.name, algo=algo, iteration=source.iteration, seed=seed, checkpoint=checkpoint)


def library_versions() -> dict[str, str]:
    return {x.__name__: str(x.__version__) for x in (torch, gym, np)}


def measured_by(args: Options, source: Source) -> dict[str, int | str]:
    """What measures: the versions of the diagnostic and of the sampling, and the hash of the algorithm's script, which
    may be a user's own and has no number."""
    diagnostic = Path(inspect.getfile(type(args))).name
    versions = {diagnostic: sys.modules[type(args).__module__].VERSION, Path(__file__).name: VERSION}
    return versions | {source.script.name: hashlib.sha256(source.script.read_bytes()).hexdigest()[:12]}


def t_interval(x: np.ndarray) -> list[float] | None:
    """95 % interval of the mean of x [n] by Student's t: of few episodes the bootstrap's are too narrow."""
    if len(x) < 2:
        return None
    half = stats.t.ppf(0.975, len(x) - 1) * np.std(x, ddof=1) / len(x) ** 0.5
    return [np.mean(x).item() - half.item(), np.mean(x).item() + half.item()]


def cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Cosine similarity [n, m] of every row of x [n, P] with every row of y [m, P]; 0 where one of them is 0 (the step
    of a rejected line search)."""
    x, y = (z / np.linalg.norm(z, axis=1, keepdims=True).clip(1e-30) for z in (x, y))
    return x @ y.T


def pairwise(matrix: np.ndarray, resamples: int = 500) -> dict[str, Any]:
    """Mean of the matrix [n, n] over pairs of different items, its 95 % bootstrap interval over the n items (an item
    that was drawn twice is not compared with itself; two items have none), and the values above the diagonal. Around
    cosines of 0 these intervals are about one and a half times as wide as need be."""
    n, means = len(matrix), []
    for drawn in np.random.default_rng(0).integers(n, size=(resamples, n)):
        different = drawn[:, None] != drawn[None]
        if different.any():
            means.append(matrix[np.ix_(drawn, drawn)][different].mean())
    above = matrix[np.triu_indices(n, 1)]
    ends = np.percentile(means, [2.5, 97.5]).tolist() if n > 2 else None
    return dict(mean=above.mean().item(), interval=ends, all=above.tolist())


def run_program(main: Callable[[], None]) -> None:
    """Runs a diagnostic as a program."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    sys.path.append(os.getcwd())  # where an environment my_module:MyEnv-v0 and a script of one's own look for modules
    try:
        main()
    except KeyboardInterrupt:
        stop("interrupted; the same command goes on from what is measured", 130)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        stop(f"{error.strerror}: where there is room, the same command goes on from what is measured", 1)


# Figures -------------------------------------------------------------------------------------------------------------

COLOURS = {
    **dict(ppo="#0072b2", ppo_m="#d55e00", ppo_noclip="#56b4e9", trpo="#009e73", trpo_plus="#e69f00"),
    **dict(reinforce="#999999", a2c="#cc79a7", vmpo="#000000"),
}
MARKERS = dict(zip(COLOURS, "os^Dv*Px"))  # colours are not enough in greyscale
LINES, FILLS = ["-", "--", ":", "-."], ["full", "none", "left", "right"]  # where all lines are of one algorithm


def new_figure(rows: int, columns: int, size: tuple[float, float], **style: Any) -> tuple[Figure, np.ndarray]:
    """Figure of the size in inches, and its axes [rows, columns]."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **style)


def look(algo: str) -> dict[str, Any]:
    """How an algorithm's lines are drawn."""
    style = dict(color=COLOURS.get(algo, "#8c564b"), marker=MARKERS.get(algo, "."), label=algo)
    return style | dict(markersize=3.5, linewidth=1.2)


def line_styles(algo_of: dict[str, str]) -> dict[str, dict[str, Any]]:
    """How each label is drawn: as the algorithm that it spells (PPO-M is ppo_m), else as its own if that is not taken,
    else in the next colour that is not; dashed when all are."""
    spelled = {label: label.lower().replace("+", "_plus").replace("-", "_") for label in algo_of}
    looks, found = [(name, line) for line in ("-", "--", ":", "-.") for name in COLOURS], {}
    for label in sorted(algo_of, key=lambda x: spelled[x] not in COLOURS):
        wanted = [(spelled[label], "-"), (algo_of[label], "-"), *looks]
        found[label] = next((x for x in wanted if x in looks and x not in found.values()), looks[0])
    return {label: look(found[label][0]) | dict(linestyle=found[label][1], label=label) for label in algo_of}


def run_styles(folders: tuple[Path, ...], labels: tuple[str, ...]) -> list[dict[str, Any]]:
    """How the lines of each run are drawn: alike where the setting is the same."""
    settings = {folder: setting(json.loads((folder / "config.json").read_text())) for folder in folders}
    label_of = label_runs(settings, labels)
    for label in dict.fromkeys(label_of.values()):
        if names := differing([x for folder, x in settings.items() if label_of[folder] == label]):
            note(f"{label} is one line for runs that differ in {', '.join(names)}")
    styles = line_styles({label_of[folder]: x["algo"] for folder, x in settings.items()})
    return [styles[label_of[folder]] for folder in folders]


def draw_line(axis: Axes, x: list, points: list[dict[str, Any]], style: dict[str, Any]) -> None:
    """Means against x, their intervals shaded."""
    axis.plot(x, [point["mean"] for point in points], **style)
    low, high = zip(*[point["interval"] or (np.nan, np.nan) for point in points])
    axis.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)


Setting = tuple[dict[str, Any], list[list[dict[str, Any]]]]  # how it is drawn, and the cells of each of its runs


def by_setting(styles: list[dict[str, Any]], runs: list[list[dict[str, Any]]]) -> list[Setting]:
    """Each run's style and cells -> each setting's, with the cells of the iterations that all its runs have, so that
    means are over the same runs everywhere."""
    found = {}
    for style, cells in zip(styles, runs):
        found.setdefault(style["label"], (style, []))[1].append({cell["iteration"]: cell for cell in cells})
    settings = []
    for style, of_runs in found.values():
        shared = [iteration for iteration in of_runs[0] if all(iteration in cells for cells in of_runs)]
        if not shared:
            stop(f"the runs of {style['label']} have no checkpoint in common; name some with --checkpoints")
        if unlike := sorted(set().union(*of_runs) - set(shared)):
            note(f"not all runs of {style['label']} have iteration {', '.join(map(str, unlike))}: left out")
        settings.append((style, [[cells[iteration] for iteration in shared] for cells in of_runs]))
    return settings


def draw_setting(axis: Axes, lines: list[tuple[list[int], list[dict]]], style: dict[str, Any]) -> None:
    """Means over the runs, given as x and points, where all of them have a point, and each run as a thin line; of a
    single run its intervals."""
    means = {}
    for x, points in lines:
        of_run = [point["mean"] for point in points]
        for at, mean in zip(x, of_run):
            means.setdefault(at, []).append(mean)
        if len(lines) > 1:
            axis.plot(x, of_run, color=style["color"], linestyle=style["linestyle"], linewidth=0.5, alpha=0.6)
        elif bars := [(at, *point["interval"]) for at, point in zip(x, points) if point["interval"]]:
            axis.vlines(*zip(*bars), color=style["color"], linewidth=1)
    shared = sorted(at for at in means if len(means[at]) == len(lines))
    axis.plot(shared, [np.mean(means[at]) for at in shared], **style)


def title(cells: list[dict[str, Any]]) -> str:
    return "iteration " + " / ".join(dict.fromkeys(str(cell["iteration"]) for cell in cells))


def save_figure(figure: Figure, path: Path) -> None:
    """One legend for all lines, above the panels, for which the figure grows; then the figure as PNG and PDF."""
    for axis in figure.axes:
        if axis.name != "3d":
            axis.spines[["top", "right"]].set_visible(False)
    lines = {label: line for axis in figure.axes[::-1] for line, label in zip(*axis.get_legend_handles_labels())}
    if lines:
        width, height = figure.get_size_inches()
        texts = [textwrap.fill(label, int((width - 0.6) / 0.065), break_on_hyphens=False) for label in lines]  # inches
        longest = max(len(part) for text in texts for part in text.split("\n"))
        columns = max(1, min(len(texts), int(width / (0.6 + 0.065 * longest))))
        figure.set_figheight(height + 0.17 * sum(text.count("\n") + 1 for text in texts) / columns)
        figure.legend(lines.values(), texts, loc="outside upper center", ncols=columns, frameon=False, fontsize=8)
    name = path.name.removesuffix(".jsonl").removesuffix(".json")  # a run's name has dots of its own: policy-lr=0.0003
    for suffix in (".pdf", ".png"):
        figure.savefig(path.with_name(name + suffix), dpi=150)
    print(path.with_name(f"{name}.png"))
