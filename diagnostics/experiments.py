"""The papers' experiments, by name: trains what is missing, then makes its tables and figures.

    ./benchmark.sh                                          lists the experiments
    ./benchmark.sh clipping --envs Hopper --seeds 3         runs one to the end; again: only what is missing
    ./benchmark.sh leave-one-out --envs my_module:MyEnv-v0  which of the nine matter in an environment of your own?
    ./benchmark.sh gradients -- --pairs 1000 10_000         what follows -- goes to the experiment's first diagnostic
    ./benchmark.sh clipping --launcher slurm --jobs 50 --slurm partition=cpu account=me

The experiments, and their settings, are the tables in papers.py, which also says how to add one of your own. A run's
folder is named by a hash of its settings, so experiments share runs.
"""

import contextlib
import difflib
import hashlib
import importlib
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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

import tyro
from common import runs
from filelock import FileLock, Timeout
from papers import AGENTS, EXPERIMENTS, GUIDE_ENVS, IM_ENVS, PAPER_SIZES, Experiment
from tqdm import tqdm

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Args:
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ""
    """the experiment; without it, a list of all"""
    seeds: int | None = None
    """the last of the seeds (default: the experiment's)"""
    first_seed: int = 1
    """the first of them"""
    env_version: Literal["v4", "v5"] | None = None
    """of the environments (default: the experiment's)"""
    envs: tuple[str, ...] = ()
    """environments, such as Hopper Walker2d (default: the experiment's); one without settings in the papers' tables,
    such as my_module:MyEnv-v0, gets Hopper's"""
    steps: int | None = None
    """environment steps of a run (default: the experiment's)"""
    set: str = ""
    """flags for every run, such as "--gamma 0.995", in the place of the tables' or besides"""
    file: Path | None = None
    """Python file that adds experiments of your own to those of papers.py"""
    sizes: Literal["default", "paper", "small"] = "default"
    """sample sizes of the diagnostics: their defaults, the papers', or just enough to see them work"""
    jobs: int | None = None
    """runs at once (default: one a core; with slurm: as many as the cluster starts)"""
    launcher: Literal["local", "slurm", "print", "none"] = "local"
    """local: on this machine; slurm: as a job array, and the results as another that waits for it; print: print the
    commands, for any other launcher; none: train nothing, make the results of what is finished"""
    part: int | None = None
    """with none: make only this part of the results, a diagnostic in an environment, as a task of the array does"""
    runs_per_task: int | None = None
    """with slurm: runs of one array task, one after the other (default: as many as take about half an hour)"""
    slurm: tuple[str, ...] = ()
    """with slurm: options of sbatch, KEY=VALUE, such as partition=cpu account=me time=120 (minutes, default 60)"""
    out: Path | None = None
    """folder of tables, figures and logs (default: results/NAME, what differs from its defaults, version)"""
    runs_dir: Path | None = None
    """folder of the runs, which experiments share (default: runs; of smoke: inside --out)"""


def stop(message: str, status: int = 2) -> NoReturn:
    print(f"benchmark.sh: {message}", file=sys.stderr)
    raise SystemExit(status)


# What smoke runs: just enough to see that all of it works.
SMALL_SIZES = {
    "gradient": "--pairs 64 512 --repeats 2 --true-pairs 512 --value-pairs 512",
    "steps": "--repeats 2",
    "value": "--heldout-pairs 512",
    "trust_region": "--heldout-pairs 512",
    "landscape": "--grid 2 --step-pairs 64 --reward-pairs 64 --concentration 32",
    "evaluate": "--episodes 2",
}
SMALL_RUNS = "--num-envs 1 --num-steps 512 --num-minibatches 4 --checkpoint-every 1 --no-compile"


def cut_down(name: str) -> Experiment:
    """The experiment as smoke runs it: small, and of the long ones a few agents."""
    agents = EXPERIMENTS[name].agents
    if name == "ablation":
        agents = [agents[i] for i in (0, 3, -4, -1)]  # each optimization on and off, two learning rates
    elif name == "leave-one-out":
        agents = agents[:6]
    elif name in ("gradients", "values", "landscapes"):
        agents = agents[:1]
    return EXPERIMENTS[name]._replace(agents=agents, seeds=1, steps=1024, envs=["Hopper"], version="v5")


def check_tables() -> None:
    """Stops at a misspelt environment, agent or flag that only some environments of a table have."""
    known = {"all", *IM_ENVS, *GUIDE_ENVS}
    for agent, (_, *tables) in AGENTS.items():
        for table in tables:
            if unknown := table.keys() - known:
                stop(f"the settings of {agent} name an unknown environment: {', '.join(unknown)}")
            names = {env: set(parse_flags(row)) for env, row in table.items() if env != "all"}
            for env, of_env in names.items():
                if unlike := of_env ^ next(iter(names.values())):
                    stop(f"the settings of {agent}: {env} and {next(iter(names))} do not both set {', '.join(unlike)}")
    for name, experiment in EXPERIMENTS.items():
        if unknown := [agent for agent in experiment.agents if agent not in AGENTS]:
            stop(f"{name} names an unknown agent: {', '.join(unknown)}")


def parse_flags(text: str) -> dict[str, list[str]]:
    """The words of each flag, by its name without no-: --no-tanh --gamma 0.9 is {tanh: [--no-tanh], gamma: [...]}."""
    flags = {}
    for word in shlex.split(text):
        if word.startswith("--"):
            flags[name := word.removeprefix("--").removeprefix("no-")] = []
        elif not flags:
            stop(f"{text}: does not begin with a flag")
        flags[name].append(word)
    return flags


# Runs ----------------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parent.parent


class Run(NamedTuple):
    agent: str
    env_id: str
    algo: str
    flags: tuple[str, ...]


class Plan(NamedTuple):
    """What its script knows of a run."""

    run: Run
    name: str  # that the script would give its folder: every flag, often too long for a file system
    folder: Path  # named by a hash of the settings
    steps: int  # that it will have made in the end
    reached: int  # by its newest checkpoint
    setting: str  # as diagnostics spell it

    @property
    def finished(self) -> bool:
        return self.reached >= self.steps

    def command(self, code: Path) -> list[str]:
        script = str(code / "algos" / f"{self.run.algo}.py")
        return [sys.executable, script, *self.run.flags, "--run-name", self.folder.name]


def make_runs(args: Args, experiment: Experiment) -> list[Run]:
    """The runs of an experiment. First seed 1 of all, since a setting's first run compiles for those that follow."""
    made = {}
    for seed in range(args.first_seed, (args.seeds or experiment.seeds) + 1):
        for env in dict.fromkeys(args.envs or experiment.envs):
            for agent in experiment.agents:
                algo, *tables = AGENTS[agent]
                rows = [row for table in tables for row in (table.get("all"), settings_for(env, table)) if row]
                small = [SMALL_RUNS] if args.sizes == "small" else []
                flags = {}
                for row in [*rows, *small, args.set]:
                    flags |= parse_flags(row)  # a later setting of a flag replaces an earlier one
                words = sum(flags.values(), [])
                env_id = id_of(env, args.env_version or experiment.version)
                first = f"--env-id {env_id} --seed {seed} --total-timesteps {args.steps or experiment.steps}".split()
                last = [] if args.runs_dir is None else ["--runs-dir", str(args.runs_dir)]
                run = Run(agent, env_id, algo, (*first, *words, *last))
                made.setdefault((algo, run.flags), run)
    return list(made.values())


def name_of(env: str) -> str:
    """An environment as the tables call it, without the version that may have been given with it."""
    return re.sub(r"-v\d+$", "", env)


def id_of(env: str, version: str) -> str:
    return env if name_of(env) != env else f"{env}-{version}"


def settings_for(env: str, table: dict[str, str]) -> str | None:
    return table.get(name_of(env), table.get("Hopper"))


def check_envs(args: Args, experiment: Experiment) -> None:
    """Stops at an environment that does not exist, and says whose settings one without its own gets."""
    tables = [table for agent in experiment.agents for table in AGENTS[agent][1:]]
    for env in args.envs or experiment.envs:
        if name_of(env) not in {*IM_ENVS, *GUIDE_ENVS}:
            check_exists(env, id_of(env, args.env_version or experiment.version))
        if not all(name_of(env) in table or table.keys() == {"all"} for table in tables):
            print(f"benchmark.sh: note: no settings for {env} in the papers' tables; it gets Hopper's", file=sys.stderr)


def check_exists(env: str, env_id: str) -> None:
    import gymnasium  # takes half a second

    sys.path.append(os.getcwd())
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        stop(f"--envs {env}: {' '.join(str(error).split())}")


def make_plans(wanted: list[Run]) -> list[Plan]:
    """Asks the scripts what the runs are called and how long they are, the folders how far they have come."""
    import torch  # takes seconds, which a list of the experiments need not wait for

    plans = []
    for run in wanted:
        script = load_script(run.algo)
        args = tyro.cli(script.Args, args=run.flags, prog=f"benchmark.sh: {run.algo}.py")
        if not script.planned_steps(args):
            stop(f"--steps {args.total_timesteps}: less than one iteration of {run.algo}.py")
        # Experiments share the runs that they have in common, so the name is that of the settings, whatever the flags.
        text = json.dumps({k: v for k, v in vars(args).items() if k not in script.NOT_OF_THE_RUN}, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        short = f"{args.env_id}__{run.algo}__{digest}__seed{args.seed}".replace("/", "-").replace(":", "-")
        name, folder = script.run_folder(args).name, Path(args.runs_dir) / short
        reached = 0
        for newest in sorted(folder.glob("checkpoints/iter_*.pt"))[-1:]:
            with contextlib.suppress(Exception):  # damaged: the run will say so
                reached = torch.load(newest, weights_only=True)["global_step"]
        others = {"env_id", "seed", "checkpoint_every", *script.NOT_OF_THE_RUN}
        setting = " ".join([run.algo, *(runs.flag(k, x) for k, x in vars(args).items() if k not in others)])
        plans.append(Plan(run, name, folder, script.planned_steps(args), reached, setting))
    return plans


def load_script(algo: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "algos"))
    try:
        return importlib.import_module(algo)
    finally:
        sys.path.pop(0)


def in_use(folder: Path) -> bool:
    """Whether another process trains the run now."""
    try:
        with FileLock(folder / ".lock", timeout=0, fallback_to_soft=False):
            return False
    except Timeout:
        return True
    except OSError:  # no such folder yet
        return False


# Launchers -----------------------------------------------------------------------------------------------------------

ONE_CORE = dict(OMP_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1")
ELSEWHERE = "running elsewhere; waiting for it"
HALF_AN_HOUR = 1800 * 4000  # environment steps; a core makes 5,500 a second on Hopper, 2,500 on Humanoid


class Work(NamedTuple):
    """A command, where its output goes, and the run folder that it trains, if any."""

    command: tuple[str, ...]
    log: Path
    folder: Path | None = None


def say(log: Path, text: str) -> None:
    with open(log, "a") as file:
        print(time.strftime("--- %Y-%m-%d %H:%M:%S"), text, file=file)


def begin(work: Work) -> subprocess.Popen:
    say(work.log, shlex.join(work.command))
    with open(work.log, "a") as log:
        return subprocess.Popen(work.command, stdout=log, stderr=log, env=os.environ | ONE_CORE)


def carry_out(works: list[Work], jobs: int) -> Iterator[tuple[list[Work], list[Work], dict[Work, int]]]:
    """Does the works, so many at once, first those that no other process does already. Several times a second, yields
    what is running, what runs elsewhere, and the exit status of what has ended. Leaves nothing running."""
    waiting, running, ended = list(works), {}, {}
    try:
        while waiting or running:
            elsewhere = []
            while len(running) < jobs and len(elsewhere) < len(waiting):
                work = waiting.pop(0)
                if work.folder and in_use(work.folder):
                    if ELSEWHERE not in last_line(work.log):
                        say(work.log, ELSEWHERE)
                    waiting.append(work)
                    elsewhere.append(work)
                else:
                    running[work] = begin(work)
            for work in [work for work, process in running.items() if process.poll() is not None]:
                status = running.pop(work).returncode
                if status and "is in use by another process" in last_line(work.log):  # which was faster
                    waiting.append(work)
                else:
                    say(work.log, f"ended with status {status}")
                    ended[work] = status
            yield list(running), elsewhere, ended
            time.sleep(0.2)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def keep_code(out: Path) -> Path:
    """Copies the scripts, so that an edit in the meantime does not mix versions. The folder of the copies."""
    code, ignored = out / "code", shutil.ignore_patterns("__pycache__")
    try:
        for name in ("algos", "diagnostics") if ROOT != code.resolve() else ():
            shutil.copytree(ROOT / name, code / name, dirs_exist_ok=True, ignore=ignored)
    except (OSError, shutil.Error) as error:
        stop(f"cannot copy the scripts to {code}: {getattr(error, 'strerror', None) or error}", 1)
    return code.resolve()


def log_of(out: Path, plan: Plan) -> Path:
    return (out / "logs" / f"{plan.folder.name}.log").resolve()


def work_of(out: Path, code: Path, plan: Plan) -> Work:
    return Work(tuple(plan.command(code)), log_of(out, plan), plan.folder)


def launch_local(out: Path, jobs: int, missing: list[Plan]) -> None:
    """Keeps so many of the missing going, and says how far they are."""
    code, terminal = keep_code(out), sys.stderr.isatty()
    plan_of = {work_of(out, code, plan): plan for plan in missing}
    begun, shown = time.monotonic(), -30.0
    with contextlib.closing(carry_out(list(plan_of), jobs)) as states:  # or an interruption would leave runs behind
        for running, elsewhere, ended in states:
            over = len(ended) == len(plan_of)
            if time.monotonic() - shown >= (1 if terminal else 30) or over:
                shown = time.monotonic()
                text = "\r\033[K" * terminal + progress_text(plan_of, running, elsewhere, ended, shown - begun)
                print(text, end="" if terminal and not over else "\n", file=sys.stderr, flush=True)


def progress_text(
    plan_of: dict[Work, Plan], running: list[Work], elsewhere: list[Work], ended: dict[Work, int], seconds: float
) -> str:
    """Counts and the time left."""
    failed = sum(map(bool, ended.values()))
    trained = sum(plan_of[x].steps - plan_of[x].reached for x, status in ended.items() if not status)
    under_way = sum(max(0, steps_of(plan_of[x].folder) - plan_of[x].reached) for x in running)
    left = sum(plan.steps - plan.reached for work, plan in plan_of.items() if work not in ended) - under_way
    speed = (trained + under_way) / seconds
    text = f"{len(ended) - failed} of {len(plan_of)} done, {len(running)} running, "
    text += f"{len(elsewhere)} running elsewhere, " * bool(elsewhere)
    return text + f"{failed} failed, {tqdm.format_interval(left / speed) if speed else '?'} left"


def last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return lines[-1] if lines else ""


def steps_of(folder: Path) -> int:
    """Environment steps in the last row of progress.csv; 0 where there is none yet."""
    step = (last_line(folder / "progress.csv").split(",") + [""])[1]
    return int(step) if step.isdecimal() else 0


# Slurm ---------------------------------------------------------------------------------------------------------------


class Task:
    """What a task of a job array does: pieces of work, one after the other; one that fails stops no other."""

    def __call__(self, *works: Work) -> None:
        known = 0
        for *_, ended in carry_out(list(works), 1):
            statuses, known = list(ended.values())[known:], len(ended)
            if {-signal.SIGTERM, -signal.SIGUSR2, 130}.intersection(statuses):
                time.sleep(120)  # the scheduler's signal, meant for all of this job, which goes on later
        if failed := sum(map(bool, ended.values())):
            raise RuntimeError(f"{failed} of {len(works)} failed")

    def checkpoint(self, *works: Work) -> Any:
        """What is queued again when the time limit comes or another job takes the place: the same, since what is
        finished ends at once and a run goes on from its newest checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *works)


def launch_slurm(args: Args, argv: list[str], out: Path, missing: list[Plan], parts: int) -> None:
    """The missing as a job array, the parts of the results as one that waits for it."""
    with contextlib.suppress(OSError):
        earlier = (out / "slurm.job").read_text().strip()
        if slurm_says("squeue", "-h", "-j", earlier):
            stop(f"job {earlier} still trains; wait for it or scancel it")
    code, array = keep_code(out), None
    if missing:
        # Together in a task: runs of one setting, so that it compiles once for all.
        ordered = sorted(missing, key=lambda plan: (plan.run.env_id, plan.run.agent))
        size = args.runs_per_task or max(1, round(HALF_AN_HOUR / max(plan.steps for plan in missing)))
        limit = re.search(r"MaxArraySize *= *(\d+)", slurm_says("scontrol", "show", "config"))
        size = max(size, -(-len(missing) // (int(limit[1]) - 1 if limit else 1000)))
        tasks = [[work_of(out, code, x) for x in ordered[i : i + size]] for i in range(0, len(ordered), size)]
        array = submit(
            args, out, args.name, tasks, cpus_per_task=1, mem="2G", array_parallelism=args.jobs or len(tasks)
        )
        (out / "slurm.job").write_text(array)
        print(f"job {array}: {len(missing)} runs in {len(tasks)} tasks")
    where = [f"--partition={x.partition('=')[2]}" for x in args.slurm if x.startswith("partition=")]
    cores = min(8, max(map(int, slurm_says("sinfo", "-h", "-o", "%c", *where).replace("+", "").split()), default=1))
    end = argv.index("--") if "--" in argv else len(argv)
    first = [sys.executable, str(code / "diagnostics" / "experiments.py"), *argv[:end], "--launcher", "none"]
    logs, tasks = (out / "logs").resolve(), []
    for part in range(parts):
        command = *first, "--jobs", str(cores), "--part", str(part), *argv[end:]
        tasks.append([Work(command, logs / f"results-{part}.log")])
    memory = 4 + cores if args.sizes != "paper" else 16  # GB; a worker takes about one
    after = dict(dependency=f"afterany:{array}") if array else {}
    job = submit(args, out, f"{args.name}-results", tasks, cpus_per_task=cores, mem=f"{memory}G", **after)
    print(f"job {job}: the results{', when they have ended' if array else ''}; what it says: {logs}/results-*.log")


def submit(args: Args, out: Path, name: str, tasks: list[list[Work]], **parameters: Any) -> str:
    """A job array, whose tasks are queued again after preemption and, up to a hundred times, at the time limit; its
    number."""
    given = {}
    for option in args.slurm:
        key, equals, value = option.partition("=")
        if not (key and equals):
            stop(f"--slurm {option}: write KEY=VALUE")
        if key == "time" and not value.isdecimal():
            stop(f"--slurm {option}: give the minutes, from which the time to go on later is reckoned")
        given[key.replace("-", "_")] = int(value) if value.isdecimal() else value
    import submitit  # which only Slurm needs

    executor = submitit.SlurmExecutor(out / "submitit", max_num_timeout=100)
    known = {key: x for key, x in given.items() if key in executor._valid_parameters()}
    others = {key.replace("_", "-"): x for key, x in given.items() if key not in known}
    executor.update_parameters(job_name=name, time=60, signal_delay_s=30, stderr_to_stdout=True, **parameters)
    executor.update_parameters(**known, additional_parameters=dict(requeue=True) | others)
    try:
        with executor.batch():
            jobs = [executor.submit(Task(), *works) for works in tasks]
    except (submitit.core.utils.FailedJobError, subprocess.CalledProcessError, ValueError) as error:
        stop(f"Slurm refused: {' '.join(str(error).split())}")
    return jobs[0].job_id.partition("_")[0]


def slurm_says(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout


# Results -------------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A diagnostic that makes results of an experiment, in one environment or, with rewards, in all."""

    experiment: str
    call: str  # the diagnostic and its options
    env_id: str | None
    passed_on: list[str]  # more options


def parts_of(name: str, experiment: Experiment, made: list[Run], passed_on: list[str]) -> list[Part]:
    parts, env_ids = [], list(dict.fromkeys(run.env_id for run in made))
    for i, call in enumerate(experiment.results):
        for env_id in [None] if call.split()[0] == "rewards" else env_ids:
            parts.append(Part(name, call, env_id, passed_on if i == 0 else []))
    return parts


def make_part(args: Args, part: Part, plans: list[Plan], out: Path) -> int:
    """Calls the diagnostic on the runs of its experiment; 0 if it has what it needs."""
    diagnostic, *options = shlex.split(part.call)
    sizes = dict(paper=PAPER_SIZES, small=SMALL_SIZES).get(args.sizes, {})
    options += shlex.split(sizes.get(diagnostic, "")) + part.passed_on
    if diagnostic == "rewards":
        here, jobs = [plan for plan in plans if (plan.folder / "config.json").is_file()], None
    else:
        here = [plan for plan in plans if plan.run.env_id == part.env_id and plan.finished]
        jobs = 1 if args.sizes == "small" else args.jobs  # workers would take longer to start than to work
        out = out / part.env_id.replace(":", ".")
    if not here:
        return 1
    labels = [] if "--best-of" in options else list(dict.fromkeys(f"{x.run.agent}={x.setting}" for x in here))
    options += ["--labels", *labels] if labels else []
    options += ["--jobs", str(jobs)] if jobs else []
    folders = [str(plan.folder) for plan in here]
    if diagnostic == "rewards":  # which takes thousands, too many for a command line
        out.mkdir(parents=True, exist_ok=True)
        (out / "runs.txt").write_text("\n".join(folders) + "\n")
        options, folders = [*options, "--folders", str(out / "runs.txt")], []
    command = [
        sys.executable,
        str(ROOT / "diagnostics" / f"{diagnostic}.py"),
        *options,
        "--out",
        str(out),
        "--",
        *folders,
    ]
    return int(subprocess.run(command, env=os.environ | ONE_CORE).returncode != 0)


def report(plans: list[Plan], out: Path) -> None:
    """What is not finished, in counts, and how the logs of what failed end."""
    missing = [plan for plan in plans if not plan.finished]
    print(f"benchmark.sh: {len(missing)} of {len(plans)} runs are not finished; again tries them:", file=sys.stderr)
    groups = [(plan.run.env_id, plan.run.agent) for plan in plans]
    for group in dict.fromkeys((plan.run.env_id, plan.run.agent) for plan in missing):
        count = sum((plan.run.env_id, plan.run.agent) == group for plan in missing)
        print(f"  {group[1]} on {group[0]}: {count} of {groups.count(group)}", file=sys.stderr)
    for plan in missing:
        log = log_of(out, plan)
        lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
        if lines and "ended with status" in lines[-1]:
            said = [line for line in lines if not line.startswith("--- ")]
            print(f"  {plan.name}: {said[-1] if said else lines[-1]} ({log})", file=sys.stderr)


# Main ----------------------------------------------------------------------------------------------------------------


def list_experiments() -> None:
    rows = [("experiment", "source", "runs", "steps", "question")]
    for name, x in EXPERIMENTS.items():
        count = x.seeds * len(x.agents) * len(x.envs)
        rows.append((name, x.source, str(count), f"{count * x.steps // 1_000_000}M", x.question))
    small = {run.flags for name in EXPERIMENTS for run in make_runs(Args(sizes="small"), cut_down(name))}
    rows.append(("smoke", "ours", str(len(small)), f"{len(small) * 1024 // 1000}k", "do all of these work? cut down"))
    for name, source, count, steps, question in rows:
        print(f"{name:<22} {source:<18} {count:>5} {steps:>6} {question}")
    print("\nSteps: of the environments, all runs together. Sizes are the defaults; --help lists the options.")


def default_out(args: Args, experiment: Experiment, passed_on: list[str]) -> Path:
    """results/NAME, what differs from the experiment's defaults, version: a trial must not overwrite the real table."""
    changed = [env.replace(":", ".") for env in args.envs]
    changed += [f"from={args.first_seed}"] if args.first_seed > 1 else []
    changed += [f"seeds={args.seeds}"] if args.seeds and args.seeds != experiment.seeds else []
    changed += [f"steps={args.steps}"] if args.steps else []
    changed += [f"sizes={args.sizes}"] if args.sizes != "default" and args.name != "smoke" else []
    changed += ["_".join(words).lstrip("-") for words in parse_flags(args.set).values()]
    changed += [f"runs={args.runs_dir.name}"] if args.runs_dir and args.name != "smoke" else []
    changed += [args.file.stem] if args.file else []
    changed += ["_".join(passed_on).replace("--", "")] if passed_on else []
    name = "-".join([args.name, *changed, args.env_version or experiment.version])
    return Path("results") / re.sub(r"[^\w.=+-]", ".", name)


def read_arguments(argv: list[str]) -> tuple[Args, list[str]]:
    """The arguments, and what follows "--"."""
    end = argv.index("--") if "--" in argv else len(argv)
    words = argv[:end]
    for i, word in reversed(list(enumerate(words[:-1]))):
        if word == "--set":  # its value begins with dashes
            words[i : i + 2] = [f"--set={words[i + 1]}"]
    args = tyro.cli(Args, args=words, prog="benchmark.sh", description=__doc__)
    for name in ("seeds", "first_seed", "steps", "jobs", "runs_per_task"):
        if (number := getattr(args, name)) is not None and number < 1:
            stop(f"--{name.replace('_', '-')} {number}: must be greater than 0")
    if args.seeds and args.first_seed > args.seeds:
        stop(f"--first-seed {args.first_seed}: greater than the last, {args.seeds}")
    return args, argv[end + 1 :]


def read_file(path: Path) -> None:
    try:
        runpy.run_path(str(path))
    except (Exception, SystemExit) as error:
        stop(f"--file {path}: {type(error).__name__}: {error}")


OF_ONE_RUN = "run-name runs-dir seed env-id total-timesteps overwrite".split()  # which --set cannot give to every run


def main() -> None:
    args, passed_on = read_arguments(sys.argv[1:])
    if args.file:
        read_file(args.file)
    check_tables()
    if not args.name:
        if len(sys.argv) > 1 and not args.file:
            stop("name an experiment; ./benchmark.sh lists them")
        list_experiments()
        return
    if args.name not in [*EXPERIMENTS, "smoke"]:
        nearest = difflib.get_close_matches(args.name, [*EXPERIMENTS, "smoke"], 1)
        stop(f"unknown experiment {args.name}; {f'perhaps {nearest[0]}; ' if nearest else ''}./benchmark.sh lists them")
    if unfit := parse_flags(args.set).keys() & set(OF_ONE_RUN):
        stop(f"--set: --{min(unfit)} cannot be the same for every run; --help lists the options of an experiment")
    names = list(EXPERIMENTS) if args.name == "smoke" else [args.name]
    experiments = {name: cut_down(name) if args.name == "smoke" else EXPERIMENTS[name] for name in names}
    out = args.out or default_out(args, experiments[names[-1]], passed_on)
    if args.name == "smoke":
        args = replace(args, sizes="small", runs_dir=args.runs_dir or out / "runs")
    for experiment in experiments.values():
        check_envs(args, experiment)
    made = {name: make_runs(args, experiment) for name, experiment in experiments.items()}
    parts = [part for name, x in experiments.items() for part in parts_of(name, x, made[name], passed_on)]
    unique = list({(run.algo, run.flags): run for x in made.values() for run in x}.values())
    if args.launcher == "print":
        print(*(shlex.join(plan.command(ROOT)) for plan in make_plans(unique)), sep="\n")
        return
    if args.launcher == "slurm" and not shutil.which("sbatch"):
        stop("no Slurm on this machine: there is no sbatch")
    plans = make_plans(unique)  # which refuses flags, before anything is written
    try:
        (out / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        stop(f"--out {out}: {error.strerror}")

    missing = [plan for plan in plans if not plan.finished]
    print(f"{args.name}: {len(plans)} runs, {len(plans) - len(missing)} of them finished", file=sys.stderr)
    if args.launcher == "slurm":
        launch_slurm(args, sys.argv[1:], out, missing, len(parts))
        return
    if args.launcher == "local" and missing:
        launch_local(out, args.jobs or runs.count_cores(), missing)
        plans = make_plans(unique)
    if args.part is not None and args.part not in range(len(parts)):
        stop(f"--part {args.part}: there are {len(parts)}, from 0 on")
    status, plan_of = 0, {(plan.run.algo, plan.run.flags): plan for plan in plans}
    for part in parts if args.part is None else [parts[args.part]]:
        of_experiment = [plan_of[run.algo, run.flags]._replace(run=run) for run in made[part.experiment]]
        status |= make_part(args, part, of_experiment, out / part.experiment if args.name == "smoke" else out)
    if not all(plan.finished for plan in plans):
        report(plans, out)
        status = 1
    raise SystemExit(status)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a script it would be ignored
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # | head
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        print(file=sys.stderr, end="\n" * sys.stderr.isatty())  # below the line of progress
        stop("interrupted; the same command goes on from the newest checkpoints", 130)
