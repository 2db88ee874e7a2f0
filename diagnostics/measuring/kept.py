"""This module keeps what has been measured. A file has a line of JSON for each cell, and a cell is found again by the
checkpoint and the settings that it was measured with. Beside an interval, a cell has the raw values from which it was
computed (intervals.raw), unless an older version has measured it."""

import contextlib
import functools
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
import torch
from filelock import FileLock, Timeout
from tqdm import tqdm

from measuring import intervals, runs, sampling
from measuring.runs import Options, Source

# Files of cells ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other processes from writing the file at the same time."""
    file = path.with_name(f".{path.stem}.lock")
    try:
        file.touch()  # if this fails, the file cannot be written; filelock would say that it is in use
        lock = FileLock(file, timeout=0, fallback_to_soft=False).acquire()
    except Timeout:
        runs.stop(f"{path} is in use by another process")
    except OSError as error:
        runs.stop(f"cannot write {path}: {error.strerror}")
    with lock:
        yield


def read_cells(path: Path) -> list[dict[str, Any]]:
    """Reads what a diagnostic has kept. A .jsonl file has a line of JSON for each cell. A .json file, as --json writes
    it, has a list of all cells. A last line that was not written to its end is left out. Stops at a file that is
    neither."""
    try:
        text = runs.read_file(path)
        cells = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.split("\n")[:-1]]
        if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
            raise ValueError
    except ValueError:
        runs.stop(f"{path} is damaged; move it away")
    return cells


class Cells:
    """The cells of a .jsonl file to which more are being added. They are found by their checkpoint and settings."""

    def __init__(self, path: Path):
        """Cuts off a torn last line."""
        self.path, self.by_checkpoint = path, {}
        for cell in read_cells(path) if path.exists() else ():
            self.remember(cell)
        written = path.read_bytes() if path.exists() else b""
        whole, newline, torn = written.rpartition(b"\n")
        if torn:
            path.write_bytes(whole + newline)

    def remember(self, cell: dict[str, Any]) -> None:
        self.by_checkpoint.setdefault((cell.get("run"), cell.get("checkpoint")), []).append(cell)

    def keep(self, cell: dict[str, Any]) -> None:
        self.remember(cell)
        with open(self.path, "a") as file:
            file.write(json.dumps(cell) + "\n")

    def find(self, settings: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the cell with these settings, the last one if there are several, or None."""
        alike = reversed(self.by_checkpoint.get((settings["run"], settings["checkpoint"]), []))
        return next((cell for cell in alike if cell.items() >= settings.items()), None)


# Which cells ---------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=100_000)
def digest_of(path: Path, _: tuple[int, int]) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def checkpoint_digest(path: Path) -> str:
    """Returns the beginning of the file's SHA-256. It is computed only once as long as the file does not change."""
    return digest_of(path, (path.stat().st_mtime_ns, path.stat().st_size))


def identify(source: Source, seed: int) -> dict[str, Any]:
    """Returns what a cell says about its checkpoint. If any of it changes, the cell's numbers are measured again."""
    algo, checkpoint = runs.read_config(source.run)["algo"], checkpoint_digest(source.path)
    return dict(run=source.run.name, algo=algo, iteration=source.iteration, seed=seed, checkpoint=checkpoint)


def current_cells(cells: list[dict[str, Any]], run: Path) -> list[dict[str, Any]]:
    """Returns those cells of a diagnostic's file that belong to the run's checkpoints as they are now."""
    cells = [x for x in cells if x["run"] == run.name]
    paths = {x["iteration"]: run / "checkpoints" / f"iter_{x['iteration']:06d}.pt" for x in cells}
    digests = {iteration: checkpoint_digest(path) for iteration, path in paths.items() if path.is_file()}
    return [x for x in cells if digests.get(x["iteration"]) == x["checkpoint"]]


def largest_cells(cells: list[dict[str, Any]], size: str) -> dict[int, dict[str, Any]]:
    """Returns for each iteration the cell with the largest sample. `size` is the name of the number to compare."""
    found = {x["iteration"]: x for x in sorted((x for x in cells if size in x), key=lambda x: x[size])}
    return dict(sorted(found.items()))


def library_versions() -> dict[str, str]:
    return {x.__name__: str(x.__version__) for x in (torch, gym, mujoco, np)}


def measured_by(args: Options, source: Source) -> dict[str, int | str]:
    """Returns what produces the numbers: the versions of the diagnostic, of the sampling and of the intervals, and the
    hash of the algorithm's script. The script may be a user's own, so it has no version number."""
    diagnostic = Path(inspect.getfile(type(args))).name
    versions = {diagnostic: sys.modules[type(args).__module__].VERSION}
    versions |= {"sampling.py": sampling.VERSION, "intervals.py": intervals.VERSION}
    return versions | {source.script.name: hashlib.sha256(source.script.read_bytes()).hexdigest()[:12]}


# Measuring -----------------------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """Says what is to be measured at a checkpoint."""

    source: Source
    cells: list[dict[str, Any]]  # the settings of each cell
    steps: int  # environment steps, or whatever else is counted, that each cell takes
    # draw(sample, settings of the missing cells) samples what it can before the main process has time for it. It runs
    # in a thread, so it must not touch torch's random numbers.
    draw: Callable[[Callable, list[dict]], Any]
    # measure(sample, settings of the missing cells, drawn) yields the numbers of each; drawn() waits for draw's result.
    measure: Callable[[Callable, list[dict], Callable], Iterator[dict]]


def measure_missing(
    args: Options,
    path: Path,
    work: list[Work],
    unit: str = "environment steps",
    sample: sampling.Sampler | None = None,
) -> list[dict[str, Any]]:
    """Returns the cells of the work. Those that an earlier call kept in the file are taken from there. The rest are
    measured, and each is added to the file at once. If several cells have the same settings, the last one counts. A
    cell also says what measured its numbers, with which libraries, and of which setting the run is. Where code or
    libraries have changed since, a note says so in one line."""
    if args.json:
        runs.check_json_path("--json", args.json)
    others = read_cells(args.json) if args.json and args.json.exists() else []  # stops if it is damaged
    with locked(path):
        cells, todo = Cells(path), []
        for x in unplanned(work):
            known = [] if args.overwrite else [cell for cell in x.cells if cells.find(cell)]
            for name in unlike(args, x.source, [cells.find(cell) for cell in known]):
                runs.note(f"{path}: some results come from another version of {name}; --overwrite recomputes them")
            if missing := [cell for cell in x.cells if cell not in known]:
                todo.append(x._replace(cells=missing))
        if todo:
            with contextlib.nullcontext(sample) if sample else sampling.sampler(args.jobs) as sample:
                measure_in_turn(args, todo, cells, unit, sample)
        found = [cells.find(cell) for x in work for cell in x.cells]
    if args.json:
        publish(args, work, found, others)
    return found


LONG = 100  # values; a published file leaves longer lists out, such as the returns from which a mean was computed


def publish(args: Options, work: list[Work], cells: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    """Writes the cells of the work into --json. Each says of which agent (the label of its run's setting), environment
    and seed its run is, as config.json has it. The others, which the file has already, stay except for those of the
    same runs with the same settings."""
    configs = {x.source.run: runs.read_config(x.source.run) for x in work}
    settings = {run: runs.setting(config) for run, config in configs.items()}
    labels, found = runs.label_runs(settings, getattr(args, "labels", ())), {}
    for (run, asked), cell in zip(((x.source.run, asked) for x in work for asked in x.cells), cells):
        of_run = dict(agent=labels[run], env_id=configs[run]["args"]["env_id"], run_seed=configs[run]["args"]["seed"])
        key = tuple(sorted((name, str(x)) for name, x in asked.items() if name != "checkpoint"))
        found[key] = of_run | without_long_lists(cell)
    diagnostic = Path(inspect.getfile(type(args))).name

    def is_replaced(x: dict[str, Any]) -> bool:
        # Another diagnostic may have asked for as many pairs of the same checkpoint.
        of_another = diagnostic not in x.get("measured_by", [diagnostic])
        return not of_another and any(all(str(x.get(name)) == y for name, y in key) for key in found)

    old = [x for x in others if not is_replaced(x)]
    runs.replace_text(args.json, "[\n" + ",\n".join(map(json.dumps, [*old, *found.values()])) + "\n]\n")


def without_long_lists(x: Any) -> Any:
    """Returns the value without the lists of more than LONG values in it."""
    if isinstance(x, dict):
        short = {name: y for name, y in x.items() if not (isinstance(y, list) and len(y) > LONG)}
        return {name: without_long_lists(y) for name, y in short.items()}
    return [without_long_lists(y) for y in x] if isinstance(x, list) else x


def unlike(args: Options, source: Source, cells: list[dict[str, Any]]) -> list[str]:
    """Returns the names of the code and the libraries that were others when the cells were measured. What a cell does
    not say is version 1 of our code, and for a library it is not known."""
    code, libraries = measured_by(args, source), library_versions()
    then = [(dict.fromkeys(code, 1) | x.get("measured_by", {}), libraries | x.get("versions", {})) for x in cells]
    found = [name for name in code if any(by[name] != code[name] for by, _ in then)]
    return found + [name for name in libraries if any(x[name] != libraries[name] for _, x in then)]


def unplanned(work: list[Work]) -> Iterator[Work]:
    """Yields the work without cells that come a second time, because a checkpoint can be named twice."""
    planned = set()
    for x in work:
        keys = [json.dumps(cell, sort_keys=True) for cell in x.cells]
        yield x._replace(cells=[cell for key, cell in zip(keys, x.cells) if key not in planned])
        planned.update(keys)


def measure_in_turn(args: Options, todo: list[Work], cells: Cells, unit: str, sample: sampling.Sampler) -> None:
    """Measures one piece of work after the other, while the next ones are being sampled."""
    total = sum(len(x.cells) * x.steps for x in todo)
    if unit == "environment steps":
        print_time_needed(todo[0].source.run, total, args.jobs)
    with sample.progress(total, unit):
        drawn = sample.ahead([partial(x.draw, sample, x.cells) for x in todo], total // len(todo))
        for x, wait in zip(todo, drawn):
            by = dict(measured_by=measured_by(args, x.source), versions=library_versions())
            by["setting"] = runs.spell(runs.read_config(x.source.run))
            for settings, numbers in zip(x.cells, x.measure(sample, x.cells, wait)):
                cells.keep(settings | numbers | by)


def print_time_needed(run: Path, steps: int, jobs: int) -> None:
    """Prints about how long it takes to sample these environment steps, judged by the speed of training."""
    speeds = [float(row["sps"]) for row in runs.read_progress(run) if row.get("sps")]
    if speeds:
        left = tqdm.format_interval(steps / (np.median(speeds) * jobs))
        text = "repeated iterations, compiling and what is computed from the samples come on top"
        print(f"sampling takes about {left} in {jobs} processes that are as fast as training was; {text}", flush=True)
