"""Does the surrogate know where the reward is? True reward and surrogate objective around a checkpoint's policy, along
the step that the algorithm takes from few or from many pairs, and along a random direction.

    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1
    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1 --step-pairs 2000 1_000_000 --reward-pairs 1_000_000
    python diagnostics/landscape.py runs/Hopper-v5__ppo__seed1 --checkpoints 150 --concentration 2000 20_000 100_000

"A Closer Look at Deep Policy Gradients" (CL) Fig. 5 to 7, 13 to 20. One unit along the step is the algorithm's whole
update from the checkpoint, its optimizer and learning rate included; one unit along the random direction is a Gaussian
vector rescaled to norm 2, the same in every surface of a checkpoint. The surrogate is the script's `objective` on the
batch that the step came from. The true reward is the mean return of complete episodes: enough actors for segments of
num_steps share the pairs of a point, and each goes on to the end of its episode. Points are sampled independently.
"""

import contextlib
import copy
import fcntl
import functools
import hashlib
import importlib.util
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
from itertools import groupby, islice
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
import torch
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """run folders, of one environment; each gets figures of its own"""
    checkpoints: tuple[int, ...] = ()
    """iterations; default: 0 150 300 450 or, where a run has fewer, its first, its thirds, its last with a step"""
    grid: int = 7
    """points a side, on [0, 3] in both directions"""
    step_pairs: tuple[int, ...] = (2000, 50_000)
    """state-action pairs that a step is computed from"""
    reward_pairs: int = 5000
    """state-action pairs of the true reward at a point"""
    concentration: tuple[int, ...] = ()
    """also draw true-reward surfaces, around the first of --step-pairs, with these numbers of pairs a point"""
    script: Path | None = None
    """algorithm script; default: the one in algos/ that the run names"""
    out: Path | None = None
    """folder of figures and numbers; default: figures/ inside the run's folder"""
    jobs: int = len(os.sched_getaffinity(0))
    """worker processes; numbers do not depend on it"""
    seed: int = 0
    """seed of everything sampled here"""


class Source(NamedTuple):
    """A checkpoint and the script that understands it; small, so that tasks for workers can carry it."""

    script: Path
    run: Path
    iteration: int

    @property
    def path(self) -> Path:
        return self.run / "checkpoints" / f"iter_{self.iteration:06d}.pt"


# Landscapes ----------------------------------------------------------------------------------------------------------


def take_step(source: Source, seed: tuple[int, ...], _: int, step_pairs: int, points: list) -> tuple[Tensor, list]:
    """The step [P] that the algorithm takes from fresh pairs, and the surrogate on its batch at points (a, b)."""
    script, args, state = checkpoint_state(source)
    rng = np.random.default_rng((*seed, 0))
    random, state.rng = random_direction(source, rng), rng
    experience = collect(source, (*seed, 1, step_pairs), step_pairs, lambda f, tasks: [f(*task) for task in tasks])
    batch = script.estimate_advantages(args, state, experience)
    start = script.flat_parameters(state.policy)
    script.update(args, state, batch)
    step = script.flat_parameters(state.policy) - start
    with torch.no_grad():
        places = [script.with_parameters(state.policy, start + a * step + b * random) for a, b in points]
        surrogates = [script.objective(args, policy, batch) for policy in places]
    return step, [x.item() for x in surrogates]


def random_direction(source: Source, rng: np.random.Generator) -> Tensor:
    """A Gaussian vector [P] rescaled to norm 2."""
    script, _, state = checkpoint_state(source)
    random = torch.from_numpy(rng.standard_normal(len(script.flat_parameters(state.policy)), dtype=np.float32))
    return 2 * random / random.norm()


def measure_landscapes(
    args: Args, source: Source, sample: Callable, missing: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Surrogate and true reward at points (a, b) of a checkpoint's surfaces: parameters + a step + b random."""
    script, settings, state = checkpoint_state(source)
    seed, start = (args.seed, source.iteration), script.flat_parameters(state.policy)
    random, steps = random_direction(source, np.random.default_rng((*seed, 0))), {}
    points = list(dict.fromkeys((cell["step"], cell["random"]) for cell in missing))
    for cell in missing:  # all steps first, so that workers are never without work
        if (step_pairs := cell["step_pairs"]) not in steps:
            steps[step_pairs] = sample(take_step, [(source, seed, 1, step_pairs, points)])

    for (step_pairs, reward_pairs), group in groupby(missing, lambda cell: (cell["step_pairs"], cell["reward_pairs"])):
        cells = list(group)
        steps[step_pairs] = list(steps[step_pairs])
        [(step, surrogates)] = steps[step_pairs]
        segments = max(1, round(reward_pairs / settings.num_steps))
        sizes = [min(GROUP, segments - first) for first in range(0, segments, GROUP)]
        tasks = []
        for cell in cells:
            a, b = cell["step"], cell["random"]
            point_seed = (*seed, 2, step_pairs, reward_pairs, round(1000 * a), round(1000 * b))
            place, steps_each = start + a * step + b * random, -(-reward_pairs // segments)
            tasks += [(source, (*point_seed, i), n, steps_each, place) for i, n in enumerate(sizes)]
        results = sample(play, tasks)
        for cell in cells:
            returns, lengths = np.transpose([episode for _ in sizes for episode in next(results)])
            numbers = dict(mean=returns.mean().item(), std=returns.std().item(), interval=interval(returns))
            numbers |= dict(episodes=len(returns), pairs=int(lengths.sum()))
            surrogate = surrogates[points.index((cell["step"], cell["random"]))]
            yield numbers | dict(surrogate=surrogate, step_norm=step.norm().item())


# Figures -------------------------------------------------------------------------------------------------------------


def draw_surface(axis: Axes, cells: list[dict[str, Any]], name: str, label: str) -> None:
    side = round(len(cells) ** 0.5)
    x, y, z = (np.reshape([cell[key] for cell in cells], (side, side)) for key in ("step", "random", name))
    axis.plot_surface(x, y, z, cmap="viridis", linewidth=0.2, edgecolor="black")
    axis.set_xlabel("step", fontsize=7, labelpad=-8)
    axis.set_ylabel("random", fontsize=7, labelpad=-8)
    axis.set_title(label, fontsize=8)
    axis.tick_params(labelsize=6, pad=-3)
    axis.tick_params(axis="z", pad=0)


def draw_surfaces(rows: list[list[list[dict[str, Any]]]], path: Path) -> None:
    """Rows: checkpoints; columns: surrogate and true reward for each number of pairs that the step came from (CL Fig.
    13 to 18)."""
    shape = len(rows), 2 * len(rows[0])
    size = 2.3 * shape[1], 2.2 * shape[0]
    figure, axes = new_figure(*shape, size, subplot_kw=dict(projection="3d"))
    for row, surfaces in zip(axes, rows):
        for k, cells in enumerate(surfaces):
            of_step = f"step from {cells[0]['step_pairs']:,} pairs"
            draw_surface(row[2 * k], cells, "surrogate", f"{title(cells[:1])}, surrogate\n{of_step}")
            draw_surface(row[2 * k + 1], cells, "mean", f"{title(cells[:1])}, true reward\n{of_step}")
    save_figure(figure, path)


def draw_cuts(rows: list[list[list[dict[str, Any]]]], path: Path) -> None:
    """Rows: checkpoints; columns: true reward and surrogate along the step, the same along the random direction."""
    figure, axes = new_figure(len(rows), 4, (8.4, 0.5 + 1.7 * len(rows)), sharex=True)
    styles = [look(algo) for algo in COLOURS]
    for row, surfaces in zip(axes, rows):
        for cells, style in zip(surfaces, styles):
            style = style | dict(label=f"step from {cells[0]['step_pairs']:,} pairs")
            for axes_of_cut, along, across in ((row[:2], "step", "random"), (row[2:], "random", "step")):
                cut = [cell for cell in cells if cell[across] == 0]
                draw_line(axes_of_cut[0], [cell[along] for cell in cut], cut, style)
                axes_of_cut[1].plot([cell[along] for cell in cut], [cell["surrogate"] for cell in cut], **style)
        row[0].set_ylabel(f"{title(surfaces[0][:1])}\ntrue reward")
        for axis, text in zip(row[1:], ("surrogate", "true reward", "surrogate")):
            axis.set_ylabel(text)
    for axis, text in zip(axes[-1], ["steps"] * 2 + ["random direction"] * 2):
        axis.set_xlabel(text)
    save_figure(figure, path)


def draw_concentration(rows: list[list[list[dict[str, Any]]]], path: Path) -> None:
    """Rows: checkpoints; columns: true reward from more and more pairs a point (CL Fig. 5, 19, 20)."""
    shape = len(rows), len(rows[0])
    size = 2.6 * shape[1], 2.3 * shape[0]
    figure, axes = new_figure(*shape, size, subplot_kw=dict(projection="3d"))
    for row, surfaces in zip(axes, rows):
        for axis, cells in zip(row, surfaces):
            episodes = np.mean([cell["episodes"] for cell in cells])
            label = f"{cells[0]['reward_pairs']:,} pairs a point (about {episodes:.0f} episodes)"
            draw_surface(axis, cells, "mean", f"{title(cells[:1])}\n{label}")
    save_figure(figure, path)


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    check_options(args)
    if args.grid < 2:
        stop(f"--grid {args.grid}: two or more points a side")
    runs = [choose(sources, args.checkpoints) for sources in open_runs(args.runs, args.script)]
    for source in sum(runs, []):
        with_step([source], (source.iteration,))
        minibatches = checkpoint_state(source)[1].num_minibatches
        if min(args.step_pairs) < 2 * minibatches:
            stop(f"--step-pairs {min(args.step_pairs)}: less than two for each of the {minibatches} minibatches")
    path = output_folder(args.out, args.runs) / "landscape.json"

    ticks = np.linspace(0, 3, args.grid).tolist()
    kinds = [(step_pairs, args.reward_pairs) for step_pairs in args.step_pairs]
    kinds += [(args.step_pairs[0], reward_pairs) for reward_pairs in args.concentration]
    work = []
    for source in sum(runs, []):
        points = []
        for step_pairs, reward_pairs in kinds:
            settings = identify(source, args.seed) | dict(step_pairs=step_pairs, reward_pairs=reward_pairs)
            points += [settings | dict(step=a, random=b) for a in ticks for b in ticks]
        cost = sum(args.step_pairs) // len(points) + sum(x for _, x in kinds) // len(kinds)
        work.append((partial(measure_landscapes, args), source, points, cost))
    cells = iter(measure_missing(path, args.jobs, work))
    for folder, sources in zip(args.runs, runs):
        name = "landscape" if len(runs) == 1 else f"landscape_{folder.name}"
        rows = [[[next(cells) for _ in range(args.grid**2)] for _ in kinds] for _ in sources]
        surfaces = [row[: len(args.step_pairs)] for row in rows]
        draw_surfaces(surfaces, path.with_name(name))
        draw_cuts(surfaces, path.with_name(f"{name}_cuts"))
        if args.concentration:
            draw_concentration([row[len(args.step_pairs) :] for row in rows], path.with_name(f"{name}_concentration"))


# =====================================================================================================================
# Shared by the diagnostics: runs and their scripts, sampling, workers, results, figures. No measurement below.
# =====================================================================================================================

GROUP = 8  # actors of a rollout; fixed, since a row's last bits depend on the size of the batch it is in
CONTRACT = "make_networks initial_state rollout estimate_advantages objective update".split()
HELPERS = """
    Args make_actors load_checkpoint restore planned_steps can_compile flat_parameters with_parameters
    compare_policies
""".split()
COLOURS = {
    **dict(ppo="#0072b2", ppo_m="#d55e00", ppo_noclip="#56b4e9", trpo="#009e73", trpo_plus="#e69f00"),
    **dict(reinforce="#999999", a2c="#cc79a7", vmpo="#000000"),
}
MARKERS = dict(zip(COLOURS, "os^Dv*Px"))  # colours are not enough in greyscale


def stop(message: str, status: int = 2) -> NoReturn:
    """Ends the program with one line on standard error; status 2: bad input, 1: training failed."""
    print(f"{Path(__file__).name}: {message}", file=sys.stderr)
    raise SystemExit(status)


@functools.cache
def note(message: str) -> None:
    """Says something once."""
    print(f"{Path(__file__).name}: note: {message}", file=sys.stderr)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


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
        for function in CONTRACT + HELPERS:
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
        except (ValueError, KeyError, TypeError):
            stop(f"{folder}: its config.json is damaged")
        path = script or Path(__file__).parent.parent / "algos" / f"{algo}.py"
        load_script(path)
        if digest(path) != made_by:
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


def can_step(source: Source) -> bool:
    """Whether the checkpoint has a next iteration; the last of a finished run has learning rate 0."""
    script, args, state = checkpoint_state(source)
    return state.global_step < script.planned_steps(args)


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


def fresh_state(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> tuple:
    """Script, arguments and the checkpoint's state with actors that will begin new episodes and a generator of its
    own."""
    script, args, state = checkpoint_state(source)
    args = replace(args, num_envs=num_envs, num_steps=num_steps)
    return script, args, replace(state, actors=script.make_actors(args), rng=np.random.default_rng(seed))


def groups(pairs: int, num_steps: int) -> list[tuple[int, int]]:
    """Actors and steps of each group that together give the pairs: as many whole segments as there are in them, and the
    first pairs of one more."""
    segments, rest = divmod(pairs, num_steps)
    whole = [(min(GROUP, segments - first), num_steps) for first in range(0, segments, GROUP)]
    return whole + ([(1, rest)] if rest else [])


def collect_group(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> dict[str, Any]:
    """Fresh segments of a checkpoint's policy, statistics frozen."""
    script, args, state = fresh_state(source, seed, num_envs, num_steps)
    return script.rollout(args, state)


def play(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int, parameters: Tensor) -> list[tuple]:
    """Return and length of complete episodes of the policy with the parameters [P], undiscounted and of raw rewards:
    each actor takes num_steps and goes on to the end of its episode, so that long episodes count no less than short."""
    script, args, state = fresh_state(source, seed, num_envs, num_steps)
    nn.utils.vector_to_parameters(parameters, state.policy.parameters())
    for actor in state.actors:  # a rollout's episodes do not say whose they were
        actor.env = gym.wrappers.RecordEpisodeStatistics(actor.env, buffer_length=num_steps + 32)
    script.rollout(args, state)
    counts = {id(actor): len(actor.env.return_queue) + (actor.episode_length > 0) for actor in state.actors}
    actors = state.actors
    while unfinished := [x for x in actors if len(x.env.return_queue) < counts[id(x)]]:
        state.actors = unfinished
        script.rollout(replace(args, num_envs=len(unfinished), num_steps=32), state)
    queues = [zip(x.env.return_queue, x.env.length_queue) for x in actors]
    return [(float(a), int(b)) for x, queue in zip(actors, queues) for a, b in islice(queue, counts[id(x)])]


def collect(source: Source, seed: tuple[int, ...], pairs: int, sample: Callable) -> dict[str, Any]:
    """As many pairs from fresh segments, as one rollout."""
    sizes = groups(pairs, checkpoint_state(source)[1].num_steps)
    parts = list(sample(collect_group, [(source, (*seed, i), *size) for i, size in enumerate(sizes)]))
    whole = {}
    for name in list(parts[0]):
        x = [part.pop(name) for part in parts]
        whole[name] = sum(x, []) if isinstance(x[0], list) else np.concatenate(x)
    return whole


def start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()  # no worker outlives it


@contextlib.contextmanager
def sampler(jobs: int, total: int, unit: str) -> Iterator[Callable]:
    """Yields sample(function, tasks): an iterator of the function's results for tasks (source, seed, actors, steps,
    ...), in their order. They are computed in `jobs` processes, which begin at once, or here, one by one as they are
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
            executor.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            if isinstance(error, BrokenProcessPool):
                stop("a worker died, of memory perhaps; the same command goes on from what is measured", 1)
            raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other processes from writing the file meanwhile."""
    lock = path.with_suffix(".lock")
    with open(lock, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            stop(f"{path} is in use by another process ({error.strerror})")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def measure_missing(path: Path, jobs: int, work: list[tuple], unit: str = "environment steps") -> list[dict[str, Any]]:
    """The cells of the work, a list of (measure, source, list of a cell's settings, environment steps of each): what
    the file at the path holds of them from an earlier call; for the rest measure(source, sample, missing settings)
    yields the numbers of one after another, and each cell is added to the file at once."""

    def find(settings: dict[str, Any]) -> dict[str, Any] | None:
        return next((cell for cell in cells if cell.items() >= settings.items()), None)

    with locked(path):
        try:
            cells = json.loads(path.read_text()) if path.exists() else []
        except (OSError, ValueError):
            cells = None
        if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
            stop(f"{path} is damaged; move it away")
        todo, planned = [], []
        for measure, source, settings, cost in work:
            missing = [x for x in settings if not find(x) and x not in planned]
            todo.append((measure, source, missing, cost))
            planned += missing
        if total := sum(len(missing) * cost for _, _, missing, cost in todo):
            with sampler(jobs, total, unit) as sample:
                for measure, source, missing, _ in todo:
                    for settings, numbers in zip(missing, measure(source, sample, missing)):
                        cells.append(settings | numbers)
                        path.with_suffix(".tmp").write_text("[\n" + ",\n".join(map(json.dumps, cells)) + "\n]\n")
                        path.with_suffix(".tmp").replace(path)
    return [find(x) for _, _, settings, _ in work for x in settings]


def identify(source: Source, seed: int) -> dict[str, Any]:
    """What a cell says of its checkpoint: its numbers are measured anew where any of it changes."""
    algo = json.loads((source.run / "config.json").read_text())["algo"]
    hashes = dict(script=digest(source.script), checkpoint=digest(source.path))
    return dict(run=source.run.name, algo=algo, iteration=source.iteration, seed=seed) | hashes


def interval(x: np.ndarray, resamples: int = 500) -> list[float] | None:
    """95 % bootstrap interval of the mean of x [n]; of one item there is none."""
    if len(x) < 2:
        return None
    means = np.random.default_rng(0).choice(x, (resamples, len(x))).mean(1)
    return np.percentile(means, [2.5, 97.5]).tolist()


def new_figure(rows: int, columns: int, size: tuple[float, float], **style: Any) -> tuple[Figure, np.ndarray]:
    """Figure of the size in inches, and its axes [rows, columns]."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **style)


def look(algo: str) -> dict[str, Any]:
    """How an algorithm's lines are drawn."""
    style = dict(color=COLOURS.get(algo, "#8c564b"), marker=MARKERS.get(algo, "."), label=algo)
    return style | dict(markersize=3.5, linewidth=1.2)


def draw_line(axis: Axes, x: list, points: list[dict[str, Any]], style: dict[str, Any]) -> None:
    """Means against x, their intervals shaded."""
    axis.plot(x, [point["mean"] for point in points], **style)
    low, high = zip(*[point["interval"] or (np.nan, np.nan) for point in points])
    axis.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)


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
    for suffix in (".png", ".pdf"):
        figure.savefig(path.with_suffix(suffix), dpi=150)
    print(path.with_suffix(".png"))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    sys.path.append(os.getcwd())  # where an environment my_module:MyEnv-v0 and a script of one's own look for modules
    try:
        main()
    except KeyboardInterrupt:
        stop("interrupted; the same command goes on from what is measured", 130)
