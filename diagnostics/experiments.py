"""Runs the papers' experiments by name: trains the runs that are missing, then makes the tables and figures.

    ./benchmark.sh                                          lists the experiments
    ./benchmark.sh clipping --envs Hopper --seeds 3         runs one to the end; again: only what is missing
    ./benchmark.sh leave-one-out --envs my_module:MyEnv-v0  which of the nine matter in an environment of your own?
    ./benchmark.sh gradients -- --pairs 1000 10_000         what follows -- goes to the experiment's first diagnostic
    ./benchmark.sh clipping --launcher slurm --jobs 50 --slurm partition=cpu account=me

The experiments and their settings are the tables in papers.py, which also says how to add one of your own. A run's
folder is named by a hash of its settings, so experiments share the runs that they have in common. Where two calls want
the same run at the same time, one of them trains it and the other waits.
"""

import contextlib
import hashlib
import importlib
import itertools
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import gymnasium
import lab
import rewards
import tyro
from filelock import FileLock, Timeout
from papers import AGENTS, EXPERIMENTS, Experiment
from tqdm import tqdm

ALGOS = Path(__file__).resolve().parent.parent / "algos"
SHARE = "BENCHMARK_SHARE"  # I/N, of a task of a job array: it trains every Nth run from the Ith on, and no more
ONE_CORE = os.environ | dict(OMP_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1")

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Args:
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ""
    """name of the experiment; without it, all of them are listed"""
    seeds: int | None = None
    """last seed (default: the experiment's)"""
    first_seed: int = 1
    """first seed"""
    env_version: Literal["v4", "v5"] | None = None
    """version of the environments (default: the experiment's)"""
    envs: tuple[str, ...] = ()
    """environments, such as Hopper Walker2d (default: the experiment's); one that is in no table gets Hopper's flags"""
    steps: int | None = None
    """environment steps per run (default: the experiment's)"""
    set: str = ""
    """flags for every run, such as "--gamma 0.995"; they replace those of the tables"""
    file: Path | None = None
    """Python file that adds experiments of your own to those of papers.py"""
    jobs: int | None = None
    """number of concurrent runs (default: one per core; with slurm: as many as the cluster starts)"""
    launcher: Literal["local", "slurm", "print", "none"] = "local"
    """local: train on this machine; slurm: submit a job array, and the results as a job that waits for it; print: print
    the commands, for any other launcher; none: train nothing, make the results of the finished runs"""
    slurm: tuple[str, ...] = ()
    """with slurm: options of sbatch, such as partition=cpu account=me time=2:00:00 (default: an hour, after which a
    task is queued again and its run resumes from the newest checkpoint)"""
    out: Path | None = None
    """folder of tables, figures and logs (default: results/NAME)"""
    runs_dir: Path = Path("runs")
    """folder of the runs, which experiments share"""


def read_arguments(words: list[str]) -> Args:
    for i, word in reversed(list(enumerate(words[:-1]))):
        if word == "--set":  # its value begins with dashes
            words = [*words[:i], f"--set={words[i + 1]}", *words[i + 2 :]]
    args = tyro.cli(Args, args=words, prog="benchmark.sh", description=__doc__)
    for name in ("seeds", "first_seed", "steps", "jobs"):
        if (number := getattr(args, name)) is not None and number < 1:
            lab.refuse(f"--{name.replace('_', '-')} {number}: must be greater than 0")
    if given := re.search(r"--(env.id|seed|total.timesteps|runs.dir|run.name)\b", args.set):
        lab.refuse(f"--set: {given[0]} cannot be the same for every run; --help lists the options of an experiment")
    return replace(args, out=args.out or Path("results") / args.name)


# Runs ----------------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    agent: str
    script: Path
    args: Any  # the script's, which have the folder in them
    folder: Path
    log: Path
    finished: bool

    @property
    def algo(self) -> str:
        return self.script.stem

    @property
    def command(self) -> list[str]:
        """The command that trains it, without the settings that are the script's defaults."""
        words = [sys.executable, str(self.script)]
        for name, x in vars(self.args).items():
            word = f"--{rewards.flag(name, x)}"
            if x != getattr(type(self.args), name) or name in ("env_id", "seed", "total_timesteps"):
                words += [word.partition("=")[0], *map(str, x)] if isinstance(x, tuple) else [word]
        return words


def make_runs(args: Args, experiment: Experiment) -> list[Run]:
    """Returns the runs of an experiment. Seed 1 of every agent comes first, because the first run of a setting compiles
    for all others."""
    seeds = range(args.first_seed, (args.seeds or experiment.seeds) + 1)
    choices = [*itertools.product(seeds, dict.fromkeys(args.envs or experiment.envs), experiment.agents)]
    first, step = map(int, os.environ.get(SHARE, "1/1").split("/"))
    made = [make_run(args, experiment, *choice) for choice in choices[first - 1 :: step]]
    agents = {}
    for run in made:
        if (other := agents.setdefault(run.folder, run.agent)) != run.agent:
            lab.refuse(f"{other} and {run.agent} are the same on {run.args.env_id}; change --set or the tables")
    return made or lab.refuse(f"--first-seed {args.first_seed}: greater than the last, {seeds.stop - 1}")


def make_run(args: Args, experiment: Experiment, seed: int, env: str, agent: str) -> Run:
    """Asks the script for the run's arguments, and the run's folder for its progress. Stops at an environment that does
    not exist and at arguments that the script refuses."""
    script_name, *tables = AGENTS.get(agent) or lab.refuse(f"{args.name} names an unknown agent: {agent}")
    path = (ALGOS / script_name).with_suffix(".py")  # an absolute path stays what it is
    algo = path.stem
    name = re.sub(r"-v\d+$", "", env)  # by which the tables know it: Hopper-v4 is Hopper
    env_id = env if name != env else f"{env}-{args.env_version or experiment.version}"
    if not all(name in table or table.keys() == {"all"} for table in tables):
        lab.note(f"no settings for {env} in the papers' tables; it gets Hopper's")
    rows = [row for table in tables for row in (table.get("all", ""), table.get(name, table.get("Hopper", "")))]
    script, (module, _, registered) = lab.load_script(path), env_id.rpartition(":")
    of_run = dict(env_id=env_id, seed=seed, total_timesteps=args.steps or experiment.steps, runs_dir=str(args.runs_dir))
    try:
        importlib.import_module(module or "gymnasium")
        gymnasium.spec(registered)
        words = shlex.split(" ".join([*rows, args.set]))  # where a flag comes twice, the last one counts
        settings = replace(tyro.cli(script.Args, args=words, prog=f"benchmark.sh: {algo}.py"), **of_run)
        script.check_arguments(settings)
    except (gymnasium.error.Error, ImportError, ValueError, script.BadInput) as error:
        lab.refuse(f"{agent} on {env}: {' '.join(str(error).split())}")
    # The hash is of the settings, so two experiments that spell the same settings differently share the run. Defaults
    # are left out, so that a flag which the script gets later renames no run that does not use it.
    changed = {k: x for k, x in vars(settings).items() if k not in script.MAY_DIFFER and x != getattr(script.Args, k)}
    if path.parent != ALGOS:  # One of your own may have the name of one of ours.
        changed["script"] = str(path)
    text = json.dumps(changed, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    run_name = f"{env_id}__{algo}__{digest}__seed{seed}".replace("/", "-").replace(":", "-")
    folder, log, reached = args.runs_dir / run_name, args.out / "logs" / f"{run_name}.log", 0
    with contextlib.suppress(ValueError, script.BadInput):  # no checkpoint yet, or a damaged one, as training will say
        numbered = [x for x in folder.glob("checkpoints/iter_*.pt") if x.stem[5:].isdecimal()]
        newest = max(numbered, key=lambda x: int(x.stem[5:]))
        saved = script.load_checkpoint(newest)
        reached, was = saved["global_step"], saved["args"]
        # The name says what is no default. A default may have changed since, which training itself would refuse, too.
        if other := [k for k, x in vars(settings).items() if k not in script.MAY_DIFFER and was.get(k, x) != x]:
            now = f"{other[0]} was {was[other[0]]}, is {getattr(settings, other[0])}"
            lab.refuse(f"{folder} was trained with another default: {now}; move it away, or name another --runs-dir")
    finished = reached >= rewards.planned_steps(dict(args=vars(settings)))
    return Run(agent, path, replace(settings, run_name=run_name), folder, log, finished)


def outside_algos(found: list[Run]) -> list[Path]:
    """Returns the scripts of the user's own that stand elsewhere, where the diagnostics have to be told of them."""
    return [*dict.fromkeys(run.script for run in found if run.script.parent != ALGOS)]


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


# Launchers -----------------------------------------------------------------------------------------------------------


def launch_local(jobs: int, missing: list[Run]) -> None:
    """Trains the missing runs, `jobs` at a time. A run that another process trains has to wait; what that leaves undone
    is trained here. An interruption ends the running ones."""
    waiting, running, bar = list(missing), {}, tqdm(desc="trained", total=len(missing), unit="run")
    try:
        while waiting or running:
            for run in [*waiting]:
                if len(running) < jobs and not in_use(run.folder):
                    waiting.remove(run)
                    with run.log.open("a", buffering=1) as log:
                        print(time.strftime("--- %Y-%m-%d %H:%M:%S"), shlex.join(run.command), file=log)
                        running[subprocess.Popen(run.command, stdout=log, stderr=log, env=ONE_CORE)] = run
            time.sleep(0.2)
            for process in [x for x in running if x.poll() is not None]:
                run = running.pop(process)
                if process.returncode and in_use(run.folder):  # another process began just before this one
                    waiting.append(run)
                    continue
                bar.update()
                if process.returncode:
                    with run.log.open("a") as log:
                        print("--- ended with status", process.returncode, file=log)
    finally:
        bar.close()
        for process in running:
            process.terminate()
            process.wait()


# Shortly before the time limit, Slurm sends USR1. The task then has itself queued again, a hundred times at most.
JOB = r"""#!/bin/bash
again() {
    ((SLURM_RESTART_COUNT < 100)) && scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    wait # for Slurm, which now ends this job
}
trap again USR1
%s &
wait $!
"""


def launch_slurm(args: Args, found: list[Run], words: list[str], passed_on: list[str]) -> None:
    """Submits the same command twice: as a job array, of which each task trains a share of the runs on its machine, and
    as a job that makes the results. That one waits for the end of all runs and not for their success (afterany, not
    afterok), so that a failed run costs its own row and not the table."""
    if not shutil.which("sbatch"):
        lab.refuse("no Slurm on this machine: there is no sbatch")
    call, tasks, after = [sys.executable, __file__, *words], min(len(found), 1000), []  # 1000: Slurm's default limit
    if places := sorted({i % tasks + 1 for i, run in enumerate(found) if not run.finished}):
        train = shlex.join([*call, "--launcher", "local", "--jobs", "1"])
        array = ",".join(map(str, places)) + (f"%{args.jobs}" if args.jobs else "")
        options = f"--job-name={args.name}", f"--array={array}", "--mem=2G"
        job = submit(args, f"{SHARE}=$SLURM_ARRAY_TASK_ID/{tasks} {train}", *options)
        print(f"job {job}: {sum(not run.finished for run in found)} runs")
        after = [f"--dependency=afterany:{job}"]
    partition = [f"--{x}" for x in args.slurm if x.startswith("partition=")]
    nodes = subprocess.run(["sinfo", "--noheader", "--format=%c", *partition], capture_output=True, text=True).stdout
    cores = min([8, *map(int, re.findall(r"\d+", nodes))])  # a job that asks for more than a node has would never begin
    command = shlex.join([*call, "--launcher", "none", "--jobs", str(cores), "--", *passed_on])
    options = f"--job-name={args.name}-results", "--array=1", f"--cpus-per-task={cores}", f"--mem={4 + cores}G"
    print(f"job {submit(args, command, *options, *after)}: the results{', when all have ended' if after else ''}")


def submit(args: Args, command: str, *options: str) -> str:
    """Submits a command as a job and returns the job's number. The user's options come last and replace ours."""
    log = f"{args.out}/logs/".replace("%", "%%") + "%x-%a.log"
    usual = "--parsable --requeue --time=60 --signal=B:USR1@30 --open-mode=append".split()
    words = ["sbatch", *usual, f"--output={log}", *options, *(f"--{x}" for x in args.slurm)]
    done = subprocess.run(words, input=JOB % command, capture_output=True, text=True)
    if done.returncode:
        lab.refuse(f"Slurm refused: {' '.join(done.stderr.split())}")
    return done.stdout.strip().partition(";")[0]  # the name of the cluster may follow


# Results -------------------------------------------------------------------------------------------------------------


def make_results(args: Args, experiment: Experiment, found: list[Run], passed_on: list[str]) -> int:
    """Calls the experiment's diagnostics: rewards on all runs, of which it names the unfinished, and the others on the
    finished runs of each environment. Returns 0 if all succeed, else 1."""
    status, begun = 0, [run for run in found if (run.folder / "config.json").is_file()]
    for i, call in enumerate(experiment.results):
        diagnostic, *options = [*shlex.split(call), *(passed_on if i == 0 else [])]
        options += ["--jobs", str(args.jobs)] if args.jobs and diagnostic != "rewards" else []
        for env_id in [""] if diagnostic == "rewards" else dict.fromkeys(run.args.env_id for run in found):
            here = [run for run in begun if run.finished and run.args.env_id == env_id] if env_id else begun
            command = [sys.executable, str(Path(__file__).with_name(f"{diagnostic}.py")), *options]
            command += ["--out", str(args.out / env_id.replace(":", "."))]
            if env_id and (own := outside_algos(here)):
                command += ["--script", str(own[0])]
            command += ["--labels", *(run.agent for run in here), "--", *(str(run.folder) for run in here)]
            if not here or call_diagnostic(command):
                status = 1
    return status


def call_diagnostic(command: list[str]) -> int:
    """Runs a diagnostic to its end and returns its status. An interruption ends it and its workers."""
    process = subprocess.Popen(command, env=ONE_CORE)
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise


def report(found: list[Run]) -> None:
    """Prints how many runs are unfinished, and how the log of each of them ends."""
    missing = [run for run in found if not run.finished]
    lab.note(f"{len(missing)} of {len(found)} runs are not finished; the same command tries them again")
    for run in missing:
        if run.log.is_file() and (lines := run.log.read_text(errors="replace").splitlines()):
            end = " ".join(lines[-2:])  # what it said, and its status
            print(f"  {run.agent} on {run.args.env_id}, seed {run.args.seed}: {end} ({run.log})", file=sys.stderr)


# Main ----------------------------------------------------------------------------------------------------------------


def list_experiments() -> None:
    print(f"{'experiment':<22} {'source':<18} {'runs':>5} {'steps':>6} question")
    for name, x in EXPERIMENTS.items():
        count = x.seeds * len(x.agents) * len(x.envs)
        print(f"{name:<22} {x.source:<18} {count:>5} {count * x.steps // 1_000_000:>5}M {x.question}")
    print("\nSteps: of the environments, all runs together. Numbers are the defaults; --help lists the options.")


def main() -> None:
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    words, passed_on = sys.argv[1:end], sys.argv[end + 1 :]
    args = read_arguments(words)
    if args.file:
        try:
            runpy.run_path(str(args.file))
        except (Exception, SystemExit) as error:
            lab.refuse(f"--file {args.file}: {type(error).__name__}: {error}")
    if not args.name:
        list_experiments()
        return
    experiment = EXPERIMENTS.get(args.name) or lab.refuse(f"unknown experiment {args.name}; ./benchmark.sh lists them")
    if passed_on:  # refused before any run is trained, if it is
        diagnostic, *options = shlex.split(experiment.results[0])
        options, script = [*options, *passed_on, "--", "RUN"], importlib.import_module(diagnostic)
        parsed = tyro.cli(script.Args, args=options, prog=f"benchmark.sh: {diagnostic}.py")
        if parsed.runs != (Path("RUN"),) or parsed.labels or parsed.out != script.Args.out:
            lab.refuse(f"-- {shlex.join(passed_on)}: the experiment gives {diagnostic}.py its runs, labels and --out")
    found = make_runs(args, experiment)
    own, others = outside_algos(found), [x for x in experiment.results if not x.startswith("rewards")]
    if own and others and len({run.script for run in found}) > 1:
        lab.refuse(f"{own[0]}: the diagnostics of several scripts find them in algos/ alone; copy it there")
    if args.launcher == "print":
        print(*(shlex.join(run.command) for run in found), sep="\n")
        return
    (args.out / "logs").mkdir(parents=True, exist_ok=True)
    missing = [run for run in found if not run.finished]
    print(f"{args.name}: {len(found)} runs, {len(found) - len(missing)} of them finished", file=sys.stderr)
    if args.launcher == "slurm":
        launch_slurm(args, found, words, passed_on)
        return
    if args.launcher == "local" and missing:
        launch_local(args.jobs or lab.CORES, missing)
        found = make_runs(args, experiment)
    status = 0 if SHARE in os.environ else make_results(args, experiment, found, passed_on)
    if not all(run.finished for run in found):
        report(found)
        status = 1
    raise SystemExit(status)


if __name__ == "__main__":
    sys.argv[0] = "benchmark.sh"  # which is what messages should name
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that | head is no error
    lab.run_program(main)
