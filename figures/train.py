"""Trains the runs of a protocol that have no data yet, measures them, and keeps what protocols.py says.

    python figures/train.py                                   # how many runs of each part have their line
    python figures/train.py reference --jobs 2 --hours 2.5    # begins no run after two and a half hours

As soon as a run is complete and measured, its line is appended to runs.jsonl in the protocol's folder, and the folder
of the run is deleted. So an interruption costs the runs under way at most, and not even those if --runs-dir is still
there, because the same command goes on from their checkpoints. Nothing here shows a return, since nobody looks before
the last run.
"""

import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import protocols
import tyro
from filelock import FileLock, Timeout
from protocols import PARTS, Key
from tqdm import tqdm

sys.path.append(str(Path(__file__).parent.parent / "diagnostics"))

import experiments

ROOT = Path(__file__).parent.parent
ONE_CORE = os.environ | dict(OMP_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1")
RUNNING, LOCK, STOPPING = set(), threading.Lock(), threading.Event()


@dataclass(frozen=True)
class Args:
    parts: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PART ...")] = ()
    """whose runs are trained, one part after the other; without any, all parts are listed"""
    jobs: int = 1
    """number of runs that train at the same time, one a core"""
    hours: float = float("inf")
    """begin no run later than this, and end when those under way are complete"""
    runs_dir: Path = Path("runs")
    """folder of the runs under way and of their logs"""


class Job(NamedTuple):
    part: str
    key: Key
    command: list[str]
    folder: Path
    log: Path


class Failed(Exception):
    """A command did not succeed. The run gets no line, and the next call tries it again."""


# Jobs ----------------------------------------------------------------------------------------------------------------


def jobs_of(name: str, runs_dir: Path) -> list[Job]:
    """Returns what trains each run of a part."""
    part, logs = PARTS[name], runs_dir / "logs"
    if part.trained_by:
        jobs = []
        for agent, env_id, seed in protocols.planned(name):
            folder = runs_dir / f"{env_id}__{agent}__seed{seed}"
            words = [sys.executable, str(ROOT / part.trained_by), "--env-id", env_id, "--seed", str(seed)]
            words += ["--out", str(folder)]
            jobs.append(Job(name, (agent, env_id, seed), words, folder, logs / f"{folder.name}.log"))
        return jobs
    words = [part.experiment, "--first-seed", str(part.seeds[0]), "--seeds", str(part.seeds[-1])]
    words += ["--runs-dir", str(runs_dir), "--out", str(runs_dir)]
    words += ["--envs", *part.envs] if part.envs else []
    runs = experiments.make_runs(experiments.read_arguments(words), experiments.EXPERIMENTS[part.experiment])
    jobs = [Job(name, (x.agent, x.args.env_id, x.args.seed), x.command, x.folder, x.log) for x in runs]
    assert [job.key for job in jobs] == protocols.planned(name), "the experiment's runs are not those of the plan"
    return jobs


def call(command: list[str], log: Path) -> int:
    """Runs a command to its end, with its output in the log, and returns its status."""
    with log.open("a") as file:
        print(shlex.join(command), file=file, flush=True)
        with LOCK:
            if STOPPING.is_set():
                raise Failed("interrupted")
            process = subprocess.Popen(command, stdout=file, stderr=file, env=ONE_CORE)
            RUNNING.add(process)
        status = process.wait()
        with LOCK:
            RUNNING.remove(process)
    return status


def stopped_by_a_number(log: Path) -> bool:
    """Answers whether training ended because a number was not finite. Such a run counts with what it has."""
    return "not finite" in " ".join(log.read_text(errors="replace").splitlines()[-2:])


def measure(job: Job) -> dict[str, list[dict[str, Any]]]:
    """Measures the run's checkpoints as its record says, and returns the rows by the name of their file."""
    part, out, rows = PARTS[job.part], job.folder / "measured", {}
    calls = [x.split() for x in experiments.EXPERIMENTS[part.experiment].results]
    commands = [[str(ROOT / "diagnostics" / f"{x}.py"), *options] for x, *options in calls if x != "rewards"]
    if part.script:
        path, *options = part.script.split()
        commands.append([str(ROOT / path), *options])
    for script, *options in commands:
        words = [sys.executable, script, str(job.folder), "--jobs", "1", "--out", str(out), *options]
        if status := call(words, job.log):
            raise Failed(f"{Path(script).name} ended with status {status}: {job.log}")
    for path in sorted(out.glob("*.jsonl")):
        rows[path.stem] = protocols.read_lines(path)
    return rows


def train(job: Job) -> dict[str, Any]:
    """Trains a run, measures it and returns its line."""
    status = call(job.command, job.log)
    if status and not stopped_by_a_number(job.log):
        raise Failed(f"training ended with status {status}: {job.log}")
    part, (agent, env_id, seed) = PARTS[job.part], job.key
    line = dict(agent=agent, env_id=env_id, seed=seed) | protocols.summarize(job.folder, part)
    if not line["stopped"] and (rows := measure(job)):
        line["rows"] = protocols.short(rows, part.averaged)
    return protocols.short(line)


# Main ----------------------------------------------------------------------------------------------------------------


def train_all(args: Args) -> int:
    """Trains the runs that have no line yet, and returns how many of them failed."""
    jobs = [job for name in args.parts for job in jobs_of(name, args.runs_dir)]
    missing = [job for job in jobs if job.key not in protocols.kept(job.part)]
    end, failed, seconds = time.monotonic() + 3600 * args.hours, 0, 0.1 if sys.stderr.isatty() else 60
    bar = tqdm(initial=len(jobs) - len(missing), total=len(jobs), unit="run", mininterval=seconds)

    def in_time(job: Job) -> dict[str, Any] | None:
        if time.monotonic() > end or STOPPING.is_set():
            return None
        try:
            return train(job)
        except (OSError, ValueError, LookupError) as error:  # a run that logged nothing, or a damaged file
            raise Failed(f"{type(error).__name__}: {error}: {job.log}") from error

    with ThreadPoolExecutor(args.jobs) as pool, bar:
        futures = {pool.submit(in_time, job): job for job in missing}
        try:
            for future in as_completed(futures):
                job = futures[future]
                try:
                    line = future.result()
                except Failed as error:
                    failed += 1
                    bar.write(f"train.py: {', '.join(map(str, job.key))}: {error}", file=sys.stderr)
                    continue
                if line:
                    protocols.append(protocols.path_of(job.part), line)
                    shutil.rmtree(job.folder)
                    job.log.unlink()
                    bar.update()
        except BaseException:  # an interruption, or an error of ours: what runs ends, and what waits does not begin
            with LOCK:
                STOPPING.set()
                for process in RUNNING:
                    process.terminate()
            raise
    return failed


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    if not args.parts:
        for name in PARTS:
            print(f"{name:<24} {len(protocols.kept(name)):>4} of {len(protocols.planned(name)):>4} runs")
        return
    if unknown := [name for name in args.parts if name not in PARTS]:
        experiments.lab.refuse(f"there is no part {', '.join(unknown)}; they are {', '.join(PARTS)}")
    (args.runs_dir / "logs").mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(args.runs_dir / "train.lock", timeout=0):
            failed = train_all(args)
    except Timeout:
        experiments.lab.refuse(f"another process trains in {args.runs_dir}")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    experiments.lab.run_program(main)
