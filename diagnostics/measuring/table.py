"""This module fills tables. A diagnostic has a function measure(source, seed, ...) that measures a checkpoint and
returns a dictionary of numbers. A table calls it for the rows that its file lacks, and appends each as a line of JSON.

Whatever measure has to sample, it passes to side_by_side as parts. Worker processes compute them at the same time, and
each part is kept in a file until its row is complete, so that an interruption loses only the parts under way. While
one row is finished, the parts of the next rows are computed. Everything else that measure does is done in the main
process, for one row at a time."""

import contextlib
import hashlib
import inspect
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
from filelock import FileLock, Timeout
from tqdm import tqdm

from measuring import runs
from measuring.runs import Options, Source

# Files of rows -------------------------------------------------------------------------------------------------------


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


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a .jsonl file. A last line that was not written to its end is left out."""
    try:
        rows = [json.loads(line) for line in runs.read_file(path).split("\n")[:-1]]
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError
    except ValueError:
        runs.stop(f"{path} is damaged; move it away")
    return rows


def rows_of(path: Path, sources: list[Source]) -> list[list[dict[str, Any]]]:
    """Returns for each checkpoint the rows of a file that were measured at it as it is now. A row does not belong to a
    folder, since folders of different runs may have the same name; it belongs to the bytes of a checkpoint."""
    of_checkpoint = {}
    for row in read_rows(path) if path.exists() else ():
        of_checkpoint.setdefault(row.get("checkpoint"), []).append(row)
    return [of_checkpoint.get(file_digest(source.path), []) for source in sources]


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def about_checkpoint(source: Source) -> dict[str, Any]:
    """Returns what a row says about its run and checkpoint."""
    config = runs.read_config(source.run)
    about = dict(run=source.run.resolve().name, algo=config["algo"], setting=runs.spell(config))
    about |= dict(env_id=config["args"]["env_id"], run_seed=config["args"]["seed"], iteration=source.iteration)
    return about | dict(checkpoint=file_digest(source.path))


def made_by(measure: Callable, source: Source) -> dict[str, dict[str, str]]:
    """Returns the digests of the code, and the versions of the libraries, that a row is made by."""
    files = Path(inspect.getfile(measure)), Path(__file__).with_name("sampling.py"), source.script
    code = {path.name: file_digest(path) for path in files}
    return dict(measured_by=code, versions={x.__name__: str(x.__version__) for x in (torch, gym, mujoco, np)})


def last_row(rows: list[dict[str, Any]], key: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the last row that has all of the key."""
    return next((row for row in reversed(rows) if row.items() >= key.items()), None)


# Parts of a row ------------------------------------------------------------------------------------------------------

# What belongs to the row that a thread measures: the processes, the folder of its parts, and a count of its stages.
ROW = threading.local()
# A part is read with weights_only, since a run from elsewhere may bring a folder with figures. Arrays are harmless.
ARRAYS = [np._core.multiarray._reconstruct, np.ndarray, np.dtype, *(type(np.dtype(x)) for x in "?liqfd")]
torch.serialization.add_safe_globals(ARRAYS)


def side_by_side(function: Callable, calls: list[tuple]) -> list[Any]:
    """Returns function(*call) for each of the calls. They are computed by the worker processes where a table asks for
    them, so they must be made of plain values and arrays. A function that is not called by a table calls them here."""
    if not hasattr(ROW, "processes"):
        return [function(*call) for call in calls]
    folder, processes = ROW.parts / str(next(ROW.stage)), ROW.processes
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i}.pt" for i in range(len(calls))]
    missing = [(path, function, call) for path, call in zip(paths, calls) if not path.exists()]
    processes.expect(len(missing), first=folder.name == "0")
    if processes.pool is None:
        for part in missing:
            compute_part(*part)
            processes.bar.update()
    else:
        futures = [processes.pool.submit(compute_part, *part) for part in missing]
        processes.turn.release()  # while this row waits, others go on
        try:
            for future in as_completed(futures):
                future.result()
                processes.bar.update()
        finally:
            processes.turn.acquire()
    return [torch.load(path, weights_only=True) for path in paths]


def compute_part(path: Path, function: Callable, call: tuple) -> None:
    torch.save(function(*call), path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


class Processes:
    """The worker processes, and the bar that counts parts. One row at a time has its turn in the main process."""

    def __init__(self, jobs: int, rows: int):
        context = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(jobs, context, start_process) if jobs > 1 else None
        self.turn, self.rows, self.begun, self.parts = threading.Lock(), rows, 0, 0
        seconds = 0.1 if sys.stderr.isatty() else 30  # a file gets a line now and then
        self.bar = tqdm(total=rows, unit=" parts", mininterval=seconds, delay=seconds)

    def expect(self, parts: int, first: bool) -> None:
        """Corrects the bar's total. Rows that have not begun are expected to have as many parts as the others."""
        self.begun, self.parts = self.begun + first, self.parts + parts
        self.bar.total = round(self.parts * self.rows / max(1, self.begun))


def start_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()  # no process outlives it


# Tables --------------------------------------------------------------------------------------------------------------


def fill(
    args: Options, name: str, measure: Callable, work: list[tuple[Source, dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Returns a row for each checkpoint and the settings that measure is called with, in order. A row is found in the
    file OUT/NAME.jsonl by its checkpoint, the seed and these settings. If there are several, the last one counts."""
    path = runs.output_folder(args.out, args.runs) / f"{name}.jsonl"
    with locked(path):
        if path.exists() and not path.read_bytes().endswith(b"\n"):  # so that a row is never appended to a torn line
            path.write_bytes(b"".join(x for x in path.read_bytes().splitlines(True) if x.endswith(b"\n")))
        rows = read_rows(path) if path.exists() else []
        keys = [dict(checkpoint=file_digest(x.path), seed=args.seed) | settings for x, settings in work]
        known = [None if args.overwrite else last_row(rows, key) for key in keys]
        for row, (source, _) in zip(known, work):
            for other in unlike(row, made_by(measure, source)) if row else ():
                runs.note(f"{path}: some rows come from another version of {other}; --overwrite measures them again")
        missing = {json.dumps(key): x for key, x, row in zip(keys, work, known) if row is None}  # each only once

        def add_row(processes: Processes, source: Source, settings: dict[str, Any]) -> None:
            with processes.turn:  # also to read its settings, since Python's parser fails when two threads use it
                row, by = about_checkpoint(source) | dict(seed=args.seed) | settings, made_by(measure, source)
                key = hashlib.sha256(json.dumps([row, by]).encode()).hexdigest()[:12]
                ROW.processes, ROW.parts, ROW.stage = processes, path.with_name(f".{name}_{key}"), itertools.count()
                torch.set_num_threads(1)  # each thread has a number of its own
                try:
                    rows.append(row | measure(source, args.seed, **settings) | by)
                finally:
                    del ROW.processes
                with open(path, "a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                shutil.rmtree(ROW.parts, ignore_errors=True)

        if missing:
            measure_rows(args.jobs, add_row, list(missing.values()))
    return [last_row(rows, key) for key in keys]


def unlike(row: dict[str, Any], by: dict[str, dict[str, str]]) -> list[str]:
    """Returns the names of the code and the libraries that were others when the row was measured."""
    now, then = ({k: v for part in ("measured_by", "versions") for k, v in x.get(part, {}).items()} for x in (by, row))
    return [name for name, version in now.items() if then.get(name) != version]


def measure_rows(jobs: int, add_row: Callable, missing: list[tuple]) -> None:
    """Adds the missing rows. With several jobs, some rows are always begun before their turn, so that no process waits.
    Leaves no process behind."""
    processes = Processes(jobs, len(missing))
    if jobs == 1:
        with processes.bar:
            for x in missing:
                add_row(processes, *x)
        return
    threads = ThreadPoolExecutor(1 + jobs)
    with processes.bar, processes.pool:
        try:
            for future in as_completed([threads.submit(add_row, processes, *x) for x in missing]):
                future.result()
        except BaseException as error:
            threading.excepthook = lambda _: None  # otherwise the executor's thread complains about cancelled tasks
            threads.shutdown(wait=False, cancel_futures=True)
            processes.pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            if isinstance(error, BrokenProcessPool):
                runs.stop("a worker died (out of memory?); the same command resumes from what is kept", 1)
            raise
