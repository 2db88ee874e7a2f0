"""What is measured stays measured: a line of JSON for each cell, found again by what it was measured with."""

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
import numpy as np
import torch
from filelock import FileLock, Timeout
from tqdm import tqdm

from common import runs, sampling
from common.runs import Options, Source

# Files of cells ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other processes from writing the file meanwhile."""
    file = path.with_name(f".{path.stem}.lock")
    try:
        file.touch()  # where that fails it cannot be written; filelock would take it for in use
        lock = FileLock(file, timeout=0, fallback_to_soft=False).acquire()
    except Timeout:
        runs.stop(f"{path} is in use by another process")
    except OSError as error:
        runs.stop(f"cannot write {path}: {error.strerror}")
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
        runs.stop(f"{path} is damaged; move it away")
    return cells


class Cells:
    """The cells of a file .jsonl that is being written on, found by their checkpoint and settings."""

    def __init__(self, path: Path):
        """Cuts a torn last line, and begins a file with what an older version has kept in .json."""
        self.path, self.by_checkpoint, old = path, {}, path.with_suffix(".json")
        if not path.exists() and old.is_file():
            path.write_text("".join(json.dumps(cell) + "\n" for cell in read_cells(old)))
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
        """The cell with these settings, of several the last."""
        alike = reversed(self.by_checkpoint.get((settings["run"], settings["checkpoint"]), []))
        return next((cell for cell in alike if cell.items() >= settings.items()), None)


# Which cells ---------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=100_000)
def digest_of(path: Path, _: tuple[int, int]) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def checkpoint_digest(path: Path) -> str:
    """The beginning of the file's SHA-256, which is computed once as long as the file does not change."""
    return digest_of(path, (path.stat().st_mtime_ns, path.stat().st_size))


def identify(source: Source, seed: int) -> dict[str, Any]:
    """What a cell says of its checkpoint: its numbers are measured anew where any of it changes."""
    algo, checkpoint = runs.read_config(source.run)["algo"], checkpoint_digest(source.path)
    return dict(run=source.run.name, algo=algo, iteration=source.iteration, seed=seed, checkpoint=checkpoint)


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


def library_versions() -> dict[str, str]:
    return {x.__name__: str(x.__version__) for x in (torch, gym, np)}


def measured_by(args: Options, source: Source) -> dict[str, int | str]:
    """What measures: the versions of the diagnostic and of the sampling, and the hash of the algorithm's script, which
    may be a user's own and has no number."""
    diagnostic = Path(inspect.getfile(type(args))).name
    versions = {diagnostic: sys.modules[type(args).__module__].VERSION, "sampling.py": sampling.VERSION}
    return versions | {source.script.name: hashlib.sha256(source.script.read_bytes()).hexdigest()[:12]}


# Measuring -----------------------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """What is to be measured of a checkpoint."""

    source: Source
    cells: list[dict[str, Any]]  # the settings of each cell
    steps: int  # environment steps, or whatever is counted, that a cell takes
    # draw(sample, settings of the missing cells) samples what it can before the main process has time for it. Since it
    # runs in a thread, it must leave torch's random numbers alone.
    draw: Callable[[Callable, list[dict]], Any]
    # measure(sample, settings of the missing cells, drawn) yields the numbers of each; drawn() waits for what it drew.
    measure: Callable[[Callable, list[dict], Callable], Iterator[dict]]


def measure_missing(
    args: Options,
    path: Path,
    work: list[Work],
    unit: str = "environment steps",
    sample: sampling.Sampler | None = None,
) -> list[dict[str, Any]]:
    """The cells of the work: what the file at the path holds of them from an earlier call; the rest is measured, and
    each cell is added to the file at once. Of cells with the same settings the last counts. Beside its numbers a cell
    says what measured them; where that has changed since, one line says so."""
    with locked(path):
        cells, todo = Cells(path), []
        for x in unplanned(work):
            known = [] if args.overwrite else [cell for cell in x.cells if cells.find(cell)]
            made_by = [cells.find(cell)["measured_by"] for cell in known]
            for name, code in measured_by(args, x.source).items():
                if any(by.get(name) != code for by in made_by):
                    runs.note(f"{path}: some numbers are of another version of {name}; --overwrite measures them anew")
            if missing := [cell for cell in x.cells if cell not in known]:
                todo.append(x._replace(cells=missing))
        if todo:
            with contextlib.nullcontext(sample) if sample else sampling.sampler(args.jobs) as sample:
                measure(args, todo, cells, unit, sample)
        return [cells.find(cell) for x in work for cell in x.cells]


def unplanned(work: list[Work]) -> Iterator[Work]:
    """The work without the cells that come a second time: a checkpoint can be named twice."""
    planned = set()
    for x in work:
        keys = [json.dumps(cell, sort_keys=True) for cell in x.cells]
        yield x._replace(cells=[cell for key, cell in zip(keys, x.cells) if key not in planned])
        planned.update(keys)


def measure(args: Options, todo: list[Work], cells: Cells, unit: str, sample: sampling.Sampler) -> None:
    """Measures one piece of work after the other, while the next are being sampled."""
    total = sum(len(x.cells) * x.steps for x in todo)
    if unit == "environment steps":
        print_time_needed(todo[0].source.run, total, args.jobs)
    with sample.progress(total, unit):
        drawn = sample.ahead([partial(x.draw, sample, x.cells) for x in todo], total // len(todo))
        for x, wait in zip(todo, drawn):
            by = dict(measured_by=measured_by(args, x.source), versions=library_versions())
            for settings, numbers in zip(x.cells, x.measure(sample, x.cells, wait)):
                cells.keep(settings | numbers | by)


def print_time_needed(run: Path, steps: int, jobs: int) -> None:
    """Says how long so many environment steps take, about, if they are made as fast as training made them; sampling
    does not learn but measures."""
    speeds = [float(row["sps"]) for row in runs.read_progress(run) if row.get("sps")]
    if speeds:
        left = tqdm.format_interval(steps / (np.median(speeds) * jobs))
        print(f"about {left}, at the speed at which the run was trained, in {jobs} processes", flush=True)
