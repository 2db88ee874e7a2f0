"""This module reads runs on disk: what a folder says about its settings and checkpoints. It also has the options of
every diagnostic. It does not import torch, because that takes seconds."""

import ast
import atexit
import contextlib
import csv
import errno
import functools
import hashlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

import tyro
from filelock import FileLock, Timeout

ALGOS = Path(__file__).parent.parent.parent / "algos"
# What diagnostics use of an algorithm's script. algos/README.md says what each takes and returns.
CONTRACT = "Args State load_checkpoint restore rollout estimate_advantages policy_loss update".split()
NEEDED = "(required)"  # tyro says "(default: )", because it would take an empty list
NOT_OF_THE_RUN = "runs_dir run_name compile checkpoint_every".split()  # two copies of a run may differ in these
NOT_OF_THE_SETTING = ["env_id", "seed", *NOT_OF_THE_RUN]

# Programs ------------------------------------------------------------------------------------------------------------


def stop(message: str, status: int = 2) -> NoReturn:
    """Ends the program with one line on standard error. The status is 2 for bad input, 1 where measuring failed, and
    130 where it was interrupted."""
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    raise SystemExit(status)


@functools.cache
def note(message: str) -> None:
    """Prints a note on standard error, but the same one only once."""
    print(f"{Path(sys.argv[0]).name}: note: {message}", file=sys.stderr)


def run_program(main: Callable[[], None]) -> None:
    """Runs a diagnostic as a program."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
    sys.path.append(os.getcwd())  # so that my_module:MyEnv-v0 and a user's own script find their modules
    here = Path(__file__).parent.parent
    if str(here) in sys.path and not any(path.stem in sys.modules for path in here.glob("*.py")):
        # A user's modules may have the names of diagnostics (value, steps). Only report.py cannot yield to them, since
        # its workers import the diagnostics again.
        sys.path.remove(str(here))
        sys.path.append(str(here))
    try:
        main()
    except KeyboardInterrupt:
        with contextlib.suppress(SystemExit):
            stop("interrupted; the same command resumes from what is kept", 130)
        # A normal exit would wait for the threads that are measuring a row. This one has to tidy up by itself: it
        # writes what was printed, and removes temporary files and semaphores.
        sys.stdout.flush()
        atexit._run_exitfuncs()
        os._exit(130)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        stop(f"{error.strerror}: with more room, the same command resumes from what is kept", 1)


def count_cores() -> int:
    """Returns the number of cores that this process may use. macOS and Windows only tell how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Options -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of every diagnostic that samples."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...", help_behavior_hint=NEEDED)]
    """run folders, all of one environment"""
    script: Path | None = None
    """algorithm script; default: the one in algos/ that the run names (algos/README.md says what it must define)"""
    out: Path | None = None
    """folder for figures and numbers; default: figures/ inside the run's folder"""
    format: Literal["png", "pdf", "svg"] = "png"
    """format of the figures"""
    jobs: int = count_cores()
    """number of worker processes; the results do not depend on it"""
    seed: int = 0
    """seed of everything that is sampled here"""
    overwrite: bool = False
    """measure again what an earlier call has measured"""


@dataclass(frozen=True, kw_only=True)
class LabelledOptions(Options):
    """The options of diagnostics that draw settings side by side."""

    labels: tuple[str, ...] = ()
    """labels of your own, one for each run in order; runs with the same label are one setting"""


def read_options(kind: type, argv: list[str] | None, text: str, **least: int) -> Any:
    """Reads the command line. --help shows the text. Stops at integers below the least of their option, which is 1
    unless the diagnostic names another, and at those that are far beyond use."""
    args = tyro.cli(kind, args=argv, description=text)
    for name, value in vars(args).items():
        low, high = (dict(seed=0, checkpoints=0) | least).get(name, 1), 2**64 if name == "seed" else 10**9
        for x in value if isinstance(value, tuple) else (value,):
            if type(x) is int and not low <= x <= high:
                stop(f"--{name.replace('_', '-')} {x}: must lie between {low} and {high:,}")
    return args


# Folders -------------------------------------------------------------------------------------------------------------


class Source(NamedTuple):
    """Names a checkpoint and the script that understands it. It is small, so that tasks for workers can carry it."""

    script: Path
    run: Path
    iteration: int

    @property
    def path(self) -> Path:
        return self.run / "checkpoints" / f"iter_{self.iteration:06d}.pt"


def read_file(path: Path) -> str:
    """Returns the file's text. Stops where it cannot be read, which does not mean that it is damaged."""
    try:
        return path.read_text()
    except OSError as error:
        stop(f"cannot read {path}: {error.strerror}")


def read_config(folder: Path) -> dict[str, Any]:
    """Reads a run's config.json: algo, args, versions and the SHA-256 of the script. Stops at what is not a run."""
    path = folder / "config.json"
    if not path.is_file():
        stop(f"{folder}: {'no config.json, so not a run' if folder.is_dir() else 'no such run'}")
    try:
        config = json.loads(read_file(path))
        args = config["args"]
        if not config["algo"].isidentifier():  # so that a run from elsewhere cannot name code of its own
            raise ValueError(config["algo"])
        if any(args[name] is None for name in ("env_id", "seed", "total_timesteps", "num_envs", "num_steps")):
            raise ValueError(args)
        config["script"][:12]
        module = args["env_id"].rpartition(":")[0].partition(".")[0]
        found = importlib.util.find_spec(module) if module else None  # which imports nothing
    except (ValueError, KeyError, TypeError, AttributeError):
        stop(f"{folder}: its config.json is damaged")
    # Users' environments are called my_module:MyEnv-v0, so a run may name a module. A run from elsewhere may not bring
    # one, nor begin one of Python's. (Python would also import runs.X.evil, from folders that nobody made a package.)
    homes = Path(found.origin).resolve().parents if found and found.has_location else ()
    if found and (not homes or module in sys.stdlib_module_names or folder.resolve() in homes):
        stop(f"{folder}: the module {module} of its environment may have come with it; if you trust it, install it")
    return config


def read_progress(folder: Path) -> list[dict[str, str]]:
    """Returns the complete rows of a run's progress.csv, or none if there is no file yet. Stops where it is damaged."""
    path = folder / "progress.csv"
    try:
        rows = list(csv.DictReader(read_file(path).splitlines())) if path.is_file() else []
        rows = [row for row in rows if None not in row.values()]  # a half-written row has None in it
        numbers = [{name: float(text or "nan") for name, text in row.items()} for row in rows]
        if not all(0 <= row["iteration"] < row["global_step"] for row in numbers):  # an iteration takes a step or more
            raise ValueError(path)
    except (ValueError, TypeError, KeyError):
        stop(f"{path} is damaged")
    return rows


def batch_size(config: dict[str, Any]) -> int:
    """Returns the state-action pairs of an iteration. (REINFORCE takes some more, to the ends of its episodes.)"""
    return config["args"]["num_envs"] * config["args"]["num_steps"]


def planned_steps(config: dict[str, Any]) -> int:
    """Returns the number of environment steps that the run makes if nothing stops it. sb3.py gives a finished agent one
    more iteration, which is not a part of its training."""
    args = config["args"]
    return args.get("schedule_steps", args["total_timesteps"]) // batch_size(config) * batch_size(config)


def load_script(path: Path) -> ModuleType:
    """Imports an algorithm's script as a module. Stops where that fails or a function of the contract is missing."""
    name = f"script_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or not path.is_file():
            stop(f"{path}: no such Python script; name the one that made the run with --script")
        script = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look it up there
        try:
            spec.loader.exec_module(script)
        except (Exception, SystemExit) as error:
            stop(f"{path}: {type(error).__name__}: {error}")
        for function in CONTRACT:
            if not hasattr(script, function):
                stop(f"{path} has no {function}, which the diagnostics need")
        from torch.distributions import Distribution

        Distribution.set_default_validate_args(False)  # as the scripts' main does: such checks cannot be compiled
    return sys.modules[name]


@contextlib.contextmanager
def bad_input(script: ModuleType) -> Iterator[None]:
    """Stops with one line where a script raises its BadInput."""
    try:
        yield
    except getattr(script, "BadInput", ()) as error:
        stop(" ".join(str(error).split()))


def script_of(algo: str) -> Path:
    """Returns the script of an algorithm: one in algos/ or, for agents from elsewhere, one beside the diagnostics."""
    beside = Path(__file__).parent.parent / f"{algo}.py"
    return beside if algo == "sb3" else ALGOS / f"{algo}.py"


def has_critic(source: Source) -> bool:
    return hasattr(load_script(source.script), "value_loss")


def open_runs(folders: tuple[Path, ...], script: Path | None, needs_critic: bool = False) -> list[list[Source]]:
    """Returns the checkpoints of each run, in order. Stops at what is no run, at a run that comes twice, and at runs of
    different environments."""
    opened, seen = [], {}
    for folder in folders or stop("name one run folder or more"):
        config = read_config(folder)
        path = script or script_of(config["algo"])
        try:
            load_script(path).Args(**config["args"])
        except TypeError as error:
            stop(f"{path} does not fit {folder}: {error}")
        if hashlib.sha256(path.read_bytes()).hexdigest()[:12] != config["script"][:12]:
            note(f"{path} is not, or no longer, the script that made {folder}")
        names = [x.stem.removeprefix("iter_") for x in folder.glob("checkpoints/iter_*.pt")]
        iterations = sorted(int(name) for name in names if name.isdecimal())
        if not iterations:
            stop(f"{folder}: no checkpoints")
        opened.append([Source(path, folder, iteration) for iteration in iterations])
        # A copy of a run would count as a second one, and make intervals too narrow.
        key = json.dumps(setting(config) | {name: config["args"][name] for name in ("env_id", "seed")}, sort_keys=True)
        if config["algo"] == "sb3":  # which may not have saved the seed
            key += hashlib.sha256(opened[-1][-1].path.read_bytes()).hexdigest()
        if (other := seen.setdefault(key, folder)) is not folder:
            stop(f"{other} and {folder} are the same run, twice")
        if needs_critic and not has_critic(opened[-1][0]):
            stop(f"{folder}: {config['algo']} has no value network to measure")
    env_ids = dict.fromkeys(read_config(folder)["args"]["env_id"] for folder in folders)
    if len(env_ids) > 1:
        stop(f"runs of different environments: {' and '.join(env_ids)}; draw each by itself")
    return opened


def in_use(folder: Path) -> bool:
    """Tells whether a process trains the run now. It holds a lock on the file that it leaves behind; where that cannot
    be locked from here, nobody is said to."""
    if not (folder / ".lock").exists():
        return False
    try:
        with FileLock(folder / ".lock", timeout=0, fallback_to_soft=False):
            return False
    except Timeout:
        return True
    except OSError:
        return False


def output_folder(out: Path | None, folders: tuple[Path, ...]) -> Path:
    """Returns --out, or figures/ inside the only run, and makes the folder. Stops where nothing can be written."""
    if out is None and len(folders) > 1:
        stop("several runs: name the folder for their figures with --out")
    out = out or folders[0] / "figures"
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        stop(f"cannot write to {out}: {error.strerror}; name another folder with --out")
    return out


def figure_path(args: Options, name: str) -> Path:
    return output_folder(args.out, args.runs) / f"{name}.{args.format}"


# Checkpoints ---------------------------------------------------------------------------------------------------------


def checkpoint_of(source: Source) -> dict[str, Any]:
    """Loads a checkpoint. Stops where it names another environment than config.json, which read_config has checked."""
    script = load_script(source.script)
    with bad_input(script):
        checkpoint = script.load_checkpoint(source.path)
    if checkpoint["args"]["env_id"] != read_config(source.run)["args"]["env_id"]:
        stop(f"{source.path}: it names another environment than config.json")
    return checkpoint


@functools.cache
def can_step(source: Source) -> bool:
    """Tells whether the checkpoint has a next iteration. A finished run's last one has none: its learning rate is 0."""
    done, config = checkpoint_of(source)["global_step"], read_config(source.run)
    return done < config["args"]["total_timesteps"] // batch_size(config) * batch_size(config)


def choose(sources: list[Source], iterations: tuple[int, ...]) -> list[Source]:
    """Returns the checkpoints of a run at the given iterations. Where none are given, these are 0, 150, 300 and 450. A
    run that lacks any of them gives its first, those after one and two thirds, and its last with a step."""
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
    """Returns the checkpoints of a run at the given iterations, or by default all that have a next iteration. Stops at
    a given one that has none."""
    chosen = choose(sources, iterations) if iterations else [x for x in sources if x is not sources[-1] or can_step(x)]
    for source in chosen:
        if not can_step(source):
            stop(f"{source.path}: training ended there, with no step to measure")
    return chosen or stop(f"{sources[0].run}: no checkpoint that has a step")


# Settings ------------------------------------------------------------------------------------------------------------


def setting(config: dict[str, Any]) -> dict[str, Any]:
    """Returns what makes the setting of a run, taken from its config.json: the algorithm and the arguments."""
    return dict(algo=config["algo"]) | {k: x for k, x in config["args"].items() if k not in NOT_OF_THE_SETTING}


def flag(name: str, value: Any) -> str:
    """Writes an argument as run folders spell it: no-value-clip, policy-lr=0.0003, policy-hidden=64x64."""
    text = "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    name = name.replace("_", "-")
    return {"True": name, "False": f"no-{name}"}.get(text, f"{name}={text}")


def spell(config: dict[str, Any]) -> str:
    """Writes a run's setting, which is the algorithm and the flags that are not the script's defaults."""
    flags, defaults = (flag(*x) for x in list(setting(config).items())[1:]), default_flags(config["algo"])
    return " ".join([config["algo"], *(text for text in flags if text not in defaults)])


def default_flags(algo: str) -> set[str]:
    """Reads the defaults of algos/<algo>.py without running it. Where it cannot be read, there are none."""
    try:
        source = script_of(algo).read_text()
        [args] = [x for x in ast.parse(source).body if isinstance(x, ast.ClassDef) and x.name == "Args"]
        return {flag(x.target.id, ast.literal_eval(x.value)) for x in args.body if isinstance(x, ast.AnnAssign)}
    except (OSError, SyntaxError, ValueError):
        return set()


def differing(settings: list[dict[str, Any]]) -> list[str]:
    """Returns the names of the arguments that are not the same in all the settings."""
    names = dict.fromkeys(name for x in settings for name in x)
    return [name for name in names if any(x.get(name) != settings[0].get(name) for x in settings)]


def label_runs(settings: dict[Path, dict[str, Any]], labels: tuple[str, ...]) -> dict[Path, str]:
    """Returns the label of each run folder. This is its own of the given ones, or else the algorithm and the flags that
    tell its setting from the algorithm's other settings here. Flags that are the script's defaults are left out."""
    if labels and len(labels) != len(settings):
        stop(f"--labels: {len(labels)} for {len(settings)} runs; give one for each run, in order")
    if labels:
        return dict(zip(settings, labels))
    found = {}
    for algo in dict.fromkeys(x["algo"] for x in settings.values()):
        alike, defaults = {folder: x for folder, x in settings.items() if x["algo"] == algo}, default_flags(algo)
        names = differing(list(alike.values()))
        for folder, x in alike.items():
            flags = [flag(name, x.get(name)) for name in names]
            found[folder] = " ".join([algo, *(text for text in flags if text not in defaults)])
    return found
