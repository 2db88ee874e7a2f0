"""What several diagnostics need and none of them is about. To use a diagnostic elsewhere, copy it and this file.

A diagnostic's measure(checkpoint, parallel_map, ...) returns a row, a dictionary of what was measured. What follows
from it is not kept in it, so only the sections "What is measured" of both files can change a row."""

import copy
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache, lru_cache, partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
import torch
import tyro
from matplotlib.figure import Figure
from scipy import stats
from torch import Tensor, nn
from tqdm import tqdm

# Programs ------------------------------------------------------------------------------------------------------------

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
Line = tuple[dict[str, Any], list[dict[str, Any]]]  # the style in which a run is drawn, and its rows


def refuse(message: str, status: int = 2) -> NoReturn:
    """Ends the program with one line: with status 2 for what the user can correct, and 130 for an interruption."""
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    raise SystemExit(status)


@cache  # The same note is printed once.
def note(message: str) -> None:
    print(f"{Path(sys.argv[0]).name}: note: {message}", file=sys.stderr)


def read_options(Args: type, argv: list[str] | None, description: str, **least: int) -> Any:
    """Reads the command line. Every integer must be at least 1, or what `least` says of its option."""
    args = tyro.cli(Args, args=argv, description=description)
    for name, value in vars(args).items():
        low = (dict(seed=0, checkpoints=0) | least).get(name, 1)
        for number in value if isinstance(value, tuple) else (value,):
            if type(number) is int and not low <= number <= 10**9:
                refuse(f"--{name.replace('_', '-')} {number}: must lie between {low} and {10**9:,}")
    if len(getattr(args, "labels", ())) not in (0, len(args.runs)):
        refuse(f"--labels: {len(args.labels)} for {len(args.runs)} runs; give one for each run, in order")
    return replace(args, out=args.out or (args.runs or refuse("name one run folder or more"))[0] / "figures")


def run_program(main: Callable[[], None]) -> None:
    """Runs main, and turns what a user can do something about into one line."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends a program as Ctrl-C does.
    sys.path.append(os.getcwd())  # my_module:MyEnv-v0 and the modules of a user's own script are looked for here.
    torch.set_num_threads(1)
    try:
        main()
    except KeyboardInterrupt:
        refuse(f"interrupted; {'without --overwrite ' * ('--overwrite' in sys.argv)}the same command resumes", 130)
    except Exception as error:  # of which the system's, damaged JSON and a script's own BadInput are for the user
        if not isinstance(error, (OSError, json.JSONDecodeError)) and type(error).__name__ != "BadInput":
            raise
        text = f", in a damaged file: {error.doc[:60]}" if isinstance(error, json.JSONDecodeError) else ""
        refuse(" ".join(f"{error}{text}".split()))


# Runs and checkpoints ------------------------------------------------------------------------------------------------


class Checkpoint(NamedTuple):  # the name of one, and the script that understands it
    script: Path
    run: Path
    iteration: int

    @property
    def path(self) -> Path:
        return self.run / "checkpoints" / f"iter_{self.iteration:06d}.pt"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


@cache
def read_config(run: Path) -> dict[str, Any]:
    """Returns a run's config.json: the algorithm (algo), all arguments (args), and the SHA-256 of the script."""
    config = json.loads((run / "config.json").read_text())
    if not {"algo", "args", "script"} <= {*config} or not config["algo"].replace("-", "_").isidentifier():
        refuse(f"{run}/config.json is not that of a run; python diagnostics/sb3 imports those of Stable-Baselines3")
    home = config["args"]["env_id"].rpartition(":")[0]  # the module of a user's environment, my_module:MyEnv-v0
    if home and Path(home.replace(".", "/")).resolve().is_relative_to(run.resolve()):
        refuse(f"{run}: the module {home} of its environment came with it; if you trust it, move it elsewhere")
    return config


def batch_shape(run: Path) -> tuple[int, int]:
    """Returns how many environments a training batch has, and how many steps of each."""
    return read_config(run)["args"]["num_envs"], read_config(run)["args"]["num_steps"]


def open_runs(args: Any, with_step: bool = True) -> list[list[Checkpoint]]:
    """Returns the checkpoints of each run, in order: those from which training took a step, or all of them."""
    opened, seen, here = [], {}, Path(__file__).resolve().parent
    for run in args.runs:
        config, size = read_config(run), int(np.prod(batch_shape(run)))
        script = here / "sb3/sb3_ppo.py" if config["algo"] == "sb3" else here.parent / f"algos/{config['algo']}.py"
        script = args.script or (script if script.exists() else refuse(f"{script} is not there; name it with --script"))
        if digest(script.read_bytes()) != config["script"][:12]:
            note(f"{script} is not, or no longer, the script that made {run}")
        checkpoints = sorted(Checkpoint(script, run, int(x.stem[5:])) for x in run.glob("checkpoints/iter_[0-9]*.pt"))
        last = checkpoints[-1].path if checkpoints else refuse(f"{run}: no checkpoints")
        # A copy would count as another run. Agents of Stable-Baselines3 may lack the seed that tells them apart.
        key = run_key(run), digest(last.read_bytes()) if config["algo"] == "sb3" else config["script"]
        if (other := seen.setdefault(key, run)) is not run:
            refuse(f"{other} and {run} are the same run, twice")
        done = load_script(script).load_checkpoint(last)["global_step"]
        if with_step and done >= config["args"]["total_timesteps"] // size * size:
            checkpoints.pop()
        if [x.iteration for x in checkpoints] == [0]:
            note(f"{run}: only the untrained policy can be measured; train with a smaller --checkpoint-every for more")
        opened.append(checkpoints or refuse(f"{run}: no checkpoint from which training took a step"))
    environments = dict.fromkeys(read_config(run)["args"]["env_id"] for run in args.runs)
    return opened if len(environments) == 1 else refuse(f"runs of different environments: {' and '.join(environments)}")


def choose(checkpoints: list[Checkpoint], iterations: tuple[int, ...], default: Any = None) -> list[Checkpoint]:
    """Returns a run's checkpoints at these iterations; where none are given, the default, or else those of the papers,
    0, 150, 300 and 450, or in a run that lacks any of them the first, the last and two between."""
    have = {x.iteration: x for x in checkpoints}
    if not iterations and default is None:
        thirds = [checkpoints[round(k * (len(checkpoints) - 1) / 3)].iteration for k in range(4)]
        iterations = (0, 150, 300, 450) if have.keys() >= {0, 150, 300, 450} else tuple(thirds)
    if lacking := [i for i in iterations if i not in have]:
        refuse(f"{checkpoints[0].run}: cannot measure {lacking[0]}; there are checkpoints {' '.join(map(str, have))}")
    return [have[i] for i in dict.fromkeys(iterations)] or default


# Rows ----------------------------------------------------------------------------------------------------------------


def fill(args: Any, name: str, measure: Callable, work: list[tuple[Checkpoint, dict]]) -> list[dict[str, Any]]:
    """Returns a row for each checkpoint and what is asked of it, in order. In OUT/NAME.jsonl they are found by the
    checkpoint's bytes and by what was asked, the last of several. Those that it lacks are measured and appended."""
    path = args.out / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    text, _, torn = (path.read_text() if path.exists() else "").rpartition("\n")
    if torn:  # by an interruption
        path.write_text(text + "\n" if text else "")
    kept = [json.loads(line) for line in text.splitlines()]
    keys = [dict(checkpoint=digest(x.path.read_bytes())) | asked for x, asked in work]
    find = lambda key: next((row for row in reversed(kept) if row.items() >= key.items()), None)
    missing, by = {}, [measured_by(measure, x) for x, _ in work]
    for i, row in enumerate(map(find, keys)):
        if row is None or args.overwrite:
            missing[i] = work[i]
        elif others := [x for x in by[i] if row["measured_by"].get(x) != by[i][x]]:
            note(f"{path}: some rows are from other versions ({', '.join(others)}); --overwrite measures them again")
    with tqdm(total=len(missing), unit=" rows", delay=1) as bar:
        for i, numbers in measured(measure, missing, args.jobs):
            (_, run, iteration), config = work[i][0], read_config(work[i][0].run)
            about = dict(run=run.resolve().name, algo=config["algo"], iteration=iteration)
            about |= dict(env_id=config["args"]["env_id"], run_seed=config["args"]["seed"])
            line = json.dumps(about | keys[i] | numbers | dict(measured_by=by[i]))
            with open(path, "a") as file:
                print(line, file=file)
            kept.append(json.loads(line))
            bar.update()
    return [find(key) for key in keys]


def measured_by(measure: Callable, checkpoint: Checkpoint) -> dict[str, str]:
    """Returns digests of the code, and the versions of the libraries, by which a row is measured."""
    own, code = Path(measure.__globals__["__file__"]), {checkpoint.script.name: checkpoint.script.read_text()}
    modules = [Path(getattr(x, "__file__", None) or own) for x in measure.__globals__.values()]
    for file in [own, Path(__file__), *[x for x in modules if x.parent == own.parent]]:
        section = file.read_text().partition("\n# What is measured")[2].partition("\n# What follows")[0]
        code[file.name] = section or file.read_text()
    return {x: digest(y.encode()) for x, y in code.items()} | {x.__name__: x.__version__ for x in (torch, gym, np)}


def measured(measure: Callable, missing: dict[int, tuple[Checkpoint, dict]], jobs: int) -> Iterator[tuple[int, dict]]:
    """Yields the numbers of each missing row. Worker processes measure several rows at a time. Where there are fewer
    rows than processes, these share the parts of one row after another, for which measure calls parallel_map."""
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), start_worker) if jobs > 1 and missing else None
    try:
        if pool and len(missing) >= jobs:
            futures = {pool.submit(measure, x, map, **asked): i for i, (x, asked) in missing.items()}
            for future in as_completed(futures):
                yield futures[future], future.result()
        else:
            for i, (checkpoint, asked) in missing.items():
                yield i, measure(checkpoint, pool.map if pool else map, **asked)
    except BaseException:  # an interruption, after which the workers would finish their rows
        for worker in active_children():
            worker.terminate()
        raise


def start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent decides what an interruption means.
    torch.set_num_threads(1)


# Intervals and figures -----------------------------------------------------------------------------------------------


def mean_of(x: Any) -> dict[str, Any]:
    """Returns the mean of x [n] and its 95 % interval by Student's t, mean -+ t s / sqrt(n); a single number has none.
    With few episodes or runs, a bootstrap's interval would be too narrow."""
    mean, n = float(np.mean(x)), len(x)
    half = (stats.t.ppf(0.975, n - 1) * np.std(x, ddof=1) / n**0.5).item() if n > 1 else None
    return dict(mean=mean, interval=[mean - half, mean + half] if n > 1 else None)


def in_words(estimate: dict[str, Any], form: str = "{:,.3g}") -> str:
    """Writes an estimate as its mean and, where there is one, its interval."""
    ends = estimate["interval"] or ()
    return form.format(estimate["mean"]) + (f" [{', '.join(map(form.format, ends))}]" if ends else "")


def lines_of(args: Any, work: list[list[Any]], rows: list[dict[str, Any]]) -> list[Line]:
    """Returns each run's style and its rows. Runs of one label look alike: one of --labels, or the folder's name."""
    names, rest = [run.resolve().name for run in args.runs], iter(rows)
    labels = args.labels or (names if len({*names}) == len(names) else [*map(str, args.runs)])
    places = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    styles = [dict(color=f"C{places[x] % 10}", marker="osD^vP*X"[places[x] % 8], markersize=4, label=x) for x in labels]
    return [(style, [next(rest) for _ in of_run]) for style, of_run in zip(styles, work)]


def gather(lines: list[Line], *names: str) -> list[Line]:
    """Gathers the rows of runs with the same label that have the same numbers under these names."""
    groups = {}
    for style, rows in lines:
        for row in rows:
            groups.setdefault((style["label"], *[row[x] for x in names]), (style, []))[1].append(row)
    return list(groups.values())


def draw_runs(axis: Any, lines: list[Line], x: str, point: Callable, apart: float = 0) -> None:
    """Draws a curve for each run: what `point` makes of a row, a mean with its interval, over the row's x. Several runs
    with one label are thin curves; a thick one is their mean, where all have a point, with its t interval for three or
    more. (Two runs' interval would hide all else.) Labels are drawn `apart`, or intervals would cover one another."""
    styles = {style["label"]: style for style, _ in lines}
    for k, (label, style) in enumerate(styles.items()):
        curves = [{row[x]: point(row) for row in rows} for other, rows in lines if other["label"] == label]
        curve = curves[0]
        if len(curves) > 1:
            for thin in curves:
                axis.plot([*thin], [y["mean"] for y in thin.values()], color=style["color"], linewidth=0.6)
            curve = {at: mean_of([x[at]["mean"] for x in curves]) for at in curve if all(at in x for x in curves)}
            style = style | dict(linewidth=2.5)
            axis.plot([], [], color="0.4", linewidth=2.5, label="mean of the runs (thin); interval over 3 or more")
        places = np.array([*curve]) + apart * (k - (len(styles) - 1) / 2)
        axis.plot(places, [y["mean"] for y in curve.values()], **style)
        for at, y in zip(places, curve.values()):
            if y["interval"] and len(curves) != 2:
                axis.vlines(at, *y["interval"], color=style["color"], linewidth=1, zorder=style.get("zorder", 2))


def save_figure(figure: Figure, lines: list[Line], path: Path) -> None:
    """Saves a figure with one legend for all panels, headed by the environment. It grows by what the legend takes."""
    handles = {label: line for axis in figure.axes[::-1] for line, label in zip(*axis.get_legend_handles_labels())}
    look = dict(ncols=int(figure.get_figwidth() / 3.5) or 1, title=lines[0][1][0]["env_id"] if lines else None)
    legend = figure.legend(handles.values(), handles, loc="outside upper center", frameon=False, fontsize=9, **look)
    width, height = legend.get_window_extent().size / figure.dpi + 0.1  # inches
    figure.set_size_inches(max(width, figure.get_figwidth()), figure.get_figheight() + height)
    figure.savefig(path, dpi=150)
    print(path)


# What is measured with: states of training, fresh data ---------------------------------------------------------------

GROUP = 8  # environments of a rollout; fixed, because a row's last bits depend on the size of its batch


@cache
def load_script(path: Path) -> Any:
    """Imports an algorithm's script."""
    sys.path.append(str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(f"script_{digest(str(path.resolve()).encode())}", path)
    script = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # Its dataclasses look it up there.
    spec.loader.exec_module(script)
    torch.distributions.Distribution.set_default_validate_args(False)  # as its main does: checks cannot be compiled
    return script


def training_state(checkpoint: Checkpoint) -> tuple[Any, Any, Any]:
    """Returns the script, arguments and state with which training goes on from a checkpoint, in its own episodes."""
    script, config = load_script(checkpoint.script), read_config(checkpoint.run)
    saved = script.load_checkpoint(checkpoint.path)
    args = script.Args(**saved["args"] | dict(env_id=config["args"]["env_id"]))  # the one that read_config looked at
    torch._dynamo.config.recompile_limit = 1000  # of 8; each run's settings are compiled anew
    if not any(shutil.which(x) for x in (os.environ.get("CXX", "g++"), "clang++", "cl")):
        args = replace(args, compile=False)  # Without a C++ compiler. Only the last bits of the step depend on it.
    state = script.State(args)
    script.restore(state, saved)
    return script, args, state


@lru_cache(maxsize=1)
def cached_state(checkpoint: Checkpoint) -> tuple[Any, Any, Any]:
    script, args, state = training_state(checkpoint)
    if state.iteration == 0:  # There are no statistics yet, so one rollout makes them, and is dropped.
        script.rollout(args, state)
    for part in vars(state).values():
        if hasattr(part, "push"):
            part.push = lambda *_: None
    for worker in state.workers:
        worker.env.close()  # Some environments exist only once, as a robot does, and those that follow are others.
    return script, replace(args, compile=False), state  # Compiling takes longer than one or two updates.


def frozen_state(checkpoint: Checkpoint) -> tuple[Any, Any, Any]:
    """Returns the same with frozen statistics, not compiled. (Copied environments would step elsewhere.)"""
    script, args, state = cached_state(checkpoint)
    return script, args, copy.deepcopy(state, {id(state.workers): state.workers})


def fresh_rollout(checkpoint: Checkpoint, seed: tuple[int, ...], num_envs: int, num_steps: int) -> tuple:
    """Returns the script, the arguments, the frozen state, and a rollout of it that begins with resets."""
    script, args, state = frozen_state(checkpoint)
    args = replace(args, num_envs=num_envs, num_steps=num_steps)
    state.workers, state.rng = script.State(args).workers, generator(checkpoint.run, *seed)
    return script, args, state, script.rollout(args, state)[0]


def only_steps(*call: Any) -> dict[str, np.ndarray]:
    return fresh_rollout(*call)[-1]


def fresh_segments(checkpoint: Checkpoint, parallel_map: Callable, seed: tuple, pairs: int, keep=only_steps) -> dict:
    """Collects pairs in segments of num_steps steps, each from a reset; the last is cut. `keep` says what is kept."""
    _, num_steps = batch_shape(checkpoint.run)
    segments, rest = divmod(pairs, num_steps)
    shapes = [(min(GROUP, segments - first), num_steps) for first in range(0, segments, GROUP)]
    if rest:
        shapes.append((1, rest))
    calls = [(checkpoint, (*seed, i), *shape) for i, shape in enumerate(shapes)]
    groups = list(parallel_map(keep, *zip(*calls)))
    return {name: np.concatenate([group[name] for group in groups]) for name in groups[0]}


@cache
def run_key(run: Path) -> int:
    """Returns a number that says what a run is: its algorithm and all arguments on which its numbers depend."""
    config, left_out = read_config(run), ("runs_dir", "run_name", "compile", "checkpoint_every")
    about = dict(algo=config["algo"]) | {name: x for name, x in config["args"].items() if name not in left_out}
    return int.from_bytes(hashlib.sha256(json.dumps(about, sort_keys=True).encode()).digest()[:8])


def generator(run: Path, *seed: int) -> np.random.Generator:
    """Returns random numbers of the run's own, since runs that are averaged must not share their luck."""
    return np.random.default_rng(np.random.SeedSequence(run_key(run), spawn_key=seed))


def next_iteration(checkpoint: Checkpoint) -> tuple[Any, Any, dict[str, np.ndarray], list, dict[str, Tensor]]:
    """Repeats the iteration that training made from a checkpoint. Returns the states before and after it, its steps,
    the (return, length) of its finished episodes, and its batch."""
    script, args, state = training_state(checkpoint)
    steps, episodes = script.rollout(args, state)
    batch = script.estimate_advantages(args, state, steps)
    after = copy.deepcopy(state, {id(state.workers): state.workers})
    script.update(args, after, batch)
    return state, after, steps, episodes, batch


class OneEpisode(gym.Wrapper):
    """Counts an episode's raw return and its length. What a rollout does after its end steps nothing."""

    def reset(self, **options: Any) -> tuple:
        return (self.obs, {}) if self.ended else self.env.reset(**options)

    def step(self, action: np.ndarray) -> tuple:
        if self.ended:
            return self.obs, 0.0, True, False, {}
        self.obs, reward, terminated, truncated, info = self.env.step(action)
        self.total, self.length, self.ended = self.total + float(reward), self.length + 1, terminated or truncated
        if self.length == 100_000 and not self.ended:
            refuse(f"an episode of {self.spec.id} has 100,000 steps and no end; give it a time limit")
        return self.obs, reward, terminated, truncated, info


def play(checkpoint: Checkpoint, seed: tuple[int, ...], first: int, last: int, parameters: Any = None) -> list[tuple]:
    """Plays complete episodes of the policy, or with these parameters [P], from the seeds (*seed, first) to (*seed,
    last - 1). A seed fixes reset and noise, whatever the policy is. Returns each episode's raw return and length."""
    script, args, state = frozen_state(checkpoint)
    if parameters is not None:
        nn.utils.vector_to_parameters(torch.from_numpy(parameters), state.policy.parameters())
    args, episodes = replace(args, num_envs=1, num_steps=32), []
    [worker] = state.workers = script.State(args).workers
    worker.env = env = OneEpisode(worker.env)
    for state.rng in [generator(checkpoint.run, *seed, i) for i in range(first, last)]:
        worker.obs, env.ended, env.total, env.length = None, False, 0.0, 0
        while not env.ended:
            script.rollout(args, state)
        episodes.append((env.total, env.length))
    env.close()
    return episodes


def rounded(x: Any) -> list[float]:
    """Returns numbers as a row keeps them."""
    return [float(f"{number:.9g}") for number in np.ravel(x).tolist()]


def flat_parameters(network: nn.Module) -> Tensor:
    """Returns the network's parameters as one vector [P]."""
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def with_parameters(network: nn.Module, parameters: Tensor) -> Callable:
    """Returns the network as a function of observations that takes its parameters from one vector [P]."""
    named = dict(network.named_parameters())
    parts = zip(named.items(), parameters.split([p.numel() for p in named.values()]))
    return partial(torch.func.functional_call, network, {name: x.view(p.shape) for (name, p), x in parts})
