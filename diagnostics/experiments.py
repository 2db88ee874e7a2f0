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
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import tyro
from measuring import runs
from measuring.runs import stop
from papers import AGENTS, EXPERIMENTS, GUIDE_ENVS, IM_ENVS, PAPER_SIZES, Experiment
from tqdm import tqdm

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
    """environments, such as Hopper Walker2d (default: the experiment's); one that the papers' tables do not have, such
    as my_module:MyEnv-v0, gets Hopper's settings"""
    steps: int | None = None
    """environment steps per run (default: the experiment's)"""
    set: str = ""
    """flags for every run, such as "--gamma 0.995"; they replace those of the tables"""
    file: Path | None = None
    """Python file that adds experiments of your own to those of papers.py"""
    sizes: Literal["default", "paper", "small"] = "default"
    """sample sizes of the diagnostics: their defaults, the papers', or just enough to see them work"""
    jobs: int | None = None
    """number of concurrent runs (default: one per core; with slurm: as many as the cluster starts)"""
    launcher: Literal["local", "slurm", "print", "none"] = "local"
    """local: train on this machine; slurm: submit a job array, and the results as a job that waits for it; print: print
    the commands, for any other launcher; none: train nothing, make the results of the finished runs"""
    slurm: tuple[str, ...] = ()
    """with slurm: options of sbatch, each KEY=VALUE, such as partition=cpu account=me time=2:00:00 (default: an hour,
    after which a run is queued again and resumes from its newest checkpoint)"""
    out: Path | None = None
    """folder of tables, figures and logs (default: results/NAME, what differs from its defaults, version)"""
    runs_dir: Path | None = None
    """folder of the runs, which experiments share (default: runs; for smoke: inside --out)"""


# The sizes of `smoke`: just enough to see that everything works. The last name that a call begins with counts.
SMALL_SIZES = {
    "gradient": "--pairs 64 512 --repeats 2 --true-pairs 512 --value-pairs 512",
    "steps": "--repeats 2",
    "steps --rewards": "--step-pairs 64 --reward-pairs 64",
    "value": "--heldout-pairs 512",
    "trust_region": "--heldout-pairs 512",
    "landscape": "--grid 2 --step-pairs 64 --reward-pairs 64",
    "evaluate": "--episodes 2",
}
SMALL_RUNS = "--num-envs 1 --num-steps 512 --num-minibatches 4 --checkpoint-every 1 --no-compile"


def cut_down(name: str) -> Experiment:
    """Returns the cut-down experiment for `smoke`, with only a few agents of the long ones."""
    agents = EXPERIMENTS[name].agents
    if name == "ablation":
        agents = [agents[i] for i in (0, 3, -4, -1)]  # each optimization on and off, two learning rates
    elif name == "leave-one-out":
        agents = agents[:6]
    elif name in ("gradients", "values", "landscapes"):
        agents = agents[:1]
    return EXPERIMENTS[name]._replace(agents=agents, seeds=1, steps=1024, envs=["Hopper"], version="v5")


def check_tables() -> None:
    """Stops at a misspelt environment or agent, and at a flag that only some environments of a table set."""
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
    """Returns the words of each flag, by its name without no-: "--no-tanh --gamma 0.9" gives {tanh: [--no-tanh],
    gamma: [--gamma, 0.9]}."""
    try:
        words = shlex.split(text)
    except ValueError as error:  # a quotation mark or a backslash without its end
        stop(f"{text}: {error}")
    flags = {}
    for word in words:
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
    """Holds what the algorithm's script and the run folder say about a run."""

    run: Run
    name: str  # the script's own name for the folder; it has every flag and can be too long for a file system
    folder: Path  # named by a hash of the settings instead
    finished: bool
    setting: str  # the setting, as --labels of the diagnostics spells it

    @property
    def command(self) -> str:
        script = str(ROOT / "algos" / f"{self.run.algo}.py")
        return shlex.join([sys.executable, script, *self.run.flags, "--run-name", self.folder.name])


def make_runs(args: Args, experiment: Experiment) -> list[Run]:
    """Returns the runs of an experiment. Seed 1 of every agent comes first, because the first run of a setting compiles
    for all others."""
    made = {}
    for seed in range(args.first_seed, (args.seeds or experiment.seeds) + 1):
        for env in dict.fromkeys(args.envs or experiment.envs):
            for agent in experiment.agents:
                algo, *tables = AGENTS[agent]
                rows = [row for table in tables for row in (table.get("all"), settings_for(env, table)) if row]
                flags = {}
                for row in [*rows, SMALL_RUNS * (args.sizes == "small"), args.set]:
                    flags |= parse_flags(row)  # a later setting of a flag replaces an earlier one
                env_id = id_of(env, args.env_version or experiment.version)
                first = f"--env-id {env_id} --seed {seed} --total-timesteps {args.steps or experiment.steps}".split()
                last = [] if args.runs_dir is None else ["--runs-dir", str(args.runs_dir)]
                run = Run(agent, env_id, algo, (*first, *sum(flags.values(), []), *last))
                made.setdefault((algo, run.flags), run)
    return list(made.values())


def name_of(env: str) -> str:
    """Returns the name by which the tables know an environment: Hopper-v4 is Hopper."""
    return re.sub(r"-v\d+$", "", env)


def id_of(env: str, version: str) -> str:
    return env if name_of(env) != env else f"{env}-{version}"


def settings_for(env: str, table: dict[str, str]) -> str | None:
    return table.get(name_of(env), table.get("Hopper"))


def check_envs(args: Args, experiment: Experiment) -> None:
    """Stops at an environment that does not exist, and says which one gets Hopper's settings for lack of its own."""
    import gymnasium  # takes half a second

    tables = [table for agent in experiment.agents for table in AGENTS[agent][1:]]
    for env in args.envs or experiment.envs:
        module, _, name = id_of(env, args.env_version or experiment.version).rpartition(":")
        try:
            importlib.import_module(module or "gymnasium")
            gymnasium.spec(name)
        except (gymnasium.error.Error, ImportError) as error:
            stop(f"--envs {env}: {' '.join(str(error).split())}")
        if not all(name_of(env) in table or table.keys() == {"all"} for table in tables):
            print(f"benchmark.sh: note: no settings for {env} in the papers' tables; it gets Hopper's", file=sys.stderr)


def make_plans(args: Args, experiments: dict[str, Experiment]) -> tuple[dict[str, list[Plan]], list[Plan]]:
    """Returns the runs of each experiment, and those of all, each once."""
    plans = {name: [make_plan(run) for run in make_runs(args, x)] for name, x in experiments.items()}
    return plans, list({plan.folder: plan for x in plans.values() for plan in x}.values())


def make_plan(run: Run) -> Plan:
    """Asks the script for the run's name and length, and the run folder for its progress. Stops at flags that the
    script refuses."""
    import torch  # takes seconds, which a list of the experiments need not wait for

    script = runs.load_script(runs.script_of(run.algo))
    args = tyro.cli(script.Args, args=run.flags, prog=f"benchmark.sh: {run.algo}.py")
    try:
        script.check_arguments(args)
    except script.BadInput as error:
        stop(f"{run.algo}.py: {error}")
    # The hash is of the settings, so two experiments that spell the same settings differently share the run.
    text = json.dumps({k: v for k, v in vars(args).items() if k not in script.MAY_DIFFER}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    short = f"{args.env_id}__{run.algo}__{digest}__seed{args.seed}".replace("/", "-").replace(":", "-")
    folder, reached = Path(args.runs_dir) / short, 0
    for newest in sorted(folder.glob("checkpoints/iter_*.pt"))[-1:]:
        with contextlib.suppress(Exception):  # the script itself will say that its checkpoint is damaged
            reached = torch.load(newest, weights_only=True)["global_step"]
    others, planned = {"env_id", "seed", *script.MAY_DIFFER}, runs.planned_steps(dict(args=vars(args)))
    setting = " ".join([run.algo, *(runs.flag(k, x) for k, x in vars(args).items() if k not in others)])
    return Plan(run, script.run_folder(args).name, folder, reached >= planned, setting)


# Launchers -----------------------------------------------------------------------------------------------------------

ONE_CORE = dict(OMP_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1")


def log_of(out: Path, plan: Plan) -> Path:
    return out / "logs" / f"{plan.folder.name}.log"


def launch_local(out: Path, jobs: int, missing: list[Plan]) -> None:
    """Trains the missing runs, `jobs` at a time. An interruption ends the running ones."""
    running, over = set(), threading.Event()

    def train(plan: Plan) -> None:
        while not over.is_set():
            if runs.in_use(plan.folder):  # another process trains it; what that leaves undone is trained here
                time.sleep(1)
                continue
            with open(log_of(out, plan), "a", buffering=1) as log:
                print(time.strftime("--- %Y-%m-%d %H:%M:%S"), plan.command, file=log)
                process = subprocess.Popen(shlex.split(plan.command), stdout=log, stderr=log, env=os.environ | ONE_CORE)
                running.add(process)
                if over.is_set():  # the interruption came too early to end this process
                    process.terminate()
                status = process.wait()
                running.remove(process)
                if status == 0 or not runs.in_use(plan.folder):  # else another process began just before this one
                    print("--- ended with status", status, file=log)
                    return

    with ThreadPoolExecutor(jobs) as threads:
        try:
            tasks = [threads.submit(train, plan) for plan in missing]
            for task in tqdm(as_completed(tasks), "trained", len(tasks), unit="run"):
                task.result()  # raises what the task raised, such as that the disk is full
        finally:
            over.set()
            for process in list(running):
                process.terminate()


# Slurm ---------------------------------------------------------------------------------------------------------------

# Each task of the array runs the command on its line below; where there are more lines than tasks, it takes several.
# Shortly before the time limit, Slurm sends USR1. The task then has itself queued again, a hundred times at most, and
# its run resumes from the newest checkpoint. A run that fails gets a second try as soon as no other process trains it,
# since it fails where another trains it already.
JOB = r"""#!/bin/bash
%(options)s
#SBATCH --requeue
again() {
    ((SLURM_RESTART_COUNT < 100)) && scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    wait # for Slurm, which now ends this job
}
train() {
    local log=$1 lock=$2/.lock
    shift 2
    { "$@" || { flock "$lock" true; "$@"; }; } >>"$log" 2>&1 && return
    echo "--- ended with status $?" >>"$log"
    false
}
trap again USR1
export -f train
export %(one_core)s
sed -n "$SLURM_ARRAY_TASK_ID~${SLURM_ARRAY_TASK_COUNT}p" <<'COMMANDS' | xargs -d '\n' -n 1 bash -c &
%(commands)s
COMMANDS
wait $!
"""


def launch_slurm(args: Args, out: Path, missing: list[Plan]) -> None:
    """Submits the missing runs as a job array and the results as a dependent job. That one waits for the end of all
    runs and not for their success (afterany, not afterok), so that a failed run costs its own row and not the table."""
    with contextlib.suppress(OSError):
        earlier = (out / "slurm.job").read_text()
        if ask("squeue", "--noheader", "--jobs", earlier):
            stop(f"job {earlier} still trains; wait for it or scancel it")
    after = {}
    if missing:
        commands = [f"train {shlex.join([str(log_of(out, x)), str(x.folder)])} {x.command}" for x in missing]
        tasks = f"1-{min(len(missing), 1000)}{f'%{args.jobs}' if args.jobs else ''}"  # 1000: Slurm's default limit
        job = submit(args, out, args.name, commands, {"array": tasks, "cpus-per-task": 1, "mem": "2G"})
        (out / "slurm.job").write_text(job)
        after = {"dependency": f"afterany:{job}"}
        print(f"job {job}: {len(missing)} runs")
    where = [f"--{x}" for x in args.slurm if x.startswith("partition=")]
    found = re.findall(r"\d+", ask("sinfo", "--noheader", "--format=%c", *where))
    cores = min(8, max(map(int, found), default=1))  # a job that asks for more than a node has would never begin
    memory = 16 if args.sizes == "paper" else 4 + cores  # a worker takes about 1 GB
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    words = [sys.executable, __file__, *sys.argv[1:end], "--launcher", "none", "--jobs", str(cores), *sys.argv[end:]]
    log = out / "logs" / "results.log"
    command = f"{shlex.join(words)} >>{shlex.quote(str(log))} 2>&1"
    options = {"array": 1, "cpus-per-task": cores, "mem": f"{memory}G"} | after
    job = submit(args, out, f"{args.name}-results", [command], options)
    print(f"job {job}: the results{', when all have ended' if after else ''}; what it says: {log}")


def submit(args: Args, out: Path, name: str, commands: list[str], options: dict[str, str | int]) -> str:
    """Submits the commands as a job array and returns the job's number. The user's options replace ours."""
    output = f"{out}/logs/".replace("%", "%%") + "%x-%a.log"
    options |= {"job-name": name, "time": 60, "signal": "B:USR1@30", "output": output, "open-mode": "append"}
    options |= {key.replace("_", "-"): x for key, x in (option.split("=", 1) for option in args.slurm)}
    lines = [f"#SBATCH --{key}={shlex.quote(str(x))}" for key, x in options.items()]
    cores = " ".join(f"{key}={x}" for key, x in ONE_CORE.items())
    script = JOB % dict(options="\n".join(lines), one_core=cores, commands="\n".join(commands))
    done = subprocess.run(["sbatch", "--parsable"], input=script, capture_output=True, text=True)
    if done.returncode:
        stop(f"Slurm refused: {' '.join(done.stderr.split())}")
    return done.stdout.strip().partition(";")[0]  # the name of the cluster may follow


def ask(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout


# Results -------------------------------------------------------------------------------------------------------------


def split_call(args: Args, call: str, passed_on: list[str]) -> tuple[str, list[str]]:
    """Returns the name of a diagnostic and its options: the experiment's, those of --sizes, and the user's."""
    diagnostic, *options = shlex.split(call)
    sizes = dict(paper=PAPER_SIZES, small=SMALL_SIZES).get(args.sizes, {})
    fitting = [x for name, x in sizes.items() if call.startswith(name)][-1:]
    return diagnostic, [*options, *shlex.split(" ".join(fitting)), *passed_on]


def check_passed_on(args: Args, experiment: Experiment, passed_on: list[str]) -> None:
    """Lets the first diagnostic read what follows "--", so that it is refused before any run is trained."""
    diagnostic, options = split_call(args, experiment.results[0], passed_on)
    script, command = importlib.import_module(diagnostic), [*options, "--", "RUN"]
    read = tyro.cli(script.Args, args=command, prog=f"benchmark.sh: {diagnostic}.py")
    runs.check_options(read)
    if read.runs != (Path("RUN"),):
        stop(f"-- {shlex.join(passed_on)}: options only; {diagnostic}.py gets the experiment's runs")


def make_results(args: Args, experiment: Experiment, plans: list[Plan], passed_on: list[str], out: Path) -> int:
    """Calls the experiment's diagnostics: rewards on all runs, the others on the runs of each environment. Returns 0 if
    all succeed, else 1."""
    status, env_ids = 0, dict.fromkeys(plan.run.env_id for plan in plans)
    for i, call in enumerate(experiment.results):
        diagnostic, options = split_call(args, call, passed_on if i == 0 else [])
        if diagnostic == "rewards":
            here = [plan for plan in plans if (plan.folder / "config.json").is_file()]
            status |= measure(diagnostic, options, here, out)
            continue
        jobs = 1 if args.sizes == "small" else args.jobs  # so little work ends before a worker has started
        options += ["--jobs", str(jobs)] if jobs else []
        for env_id in env_ids:
            here = [plan for plan in plans if plan.run.env_id == env_id and plan.finished]
            status |= measure(diagnostic, options, here, out / env_id.replace(":", "."))
    return status


def measure(diagnostic: str, options: list[str], here: list[Plan], out: Path) -> int:
    """Calls a diagnostic on the runs. Returns 0 if it succeeds, 1 if it fails or there are no runs."""
    if not here:
        return 1
    if "--best-of" not in options:
        options = [*options, "--labels", *dict.fromkeys(f"{x.run.agent}={x.setting}" for x in here)]
    folders = [str(plan.folder) for plan in here]
    if diagnostic == "rewards":  # which may get thousands of runs, too many for a command line
        out.mkdir(parents=True, exist_ok=True)
        (out / "runs.txt").write_text("\n".join(folders) + "\n")
        options, folders = [*options, "--folders", str(out / "runs.txt")], []
    command = [sys.executable, str(ROOT / "diagnostics" / f"{diagnostic}.py"), *options, "--out", str(out)]
    return int(subprocess.run([*command, "--", *folders], env=os.environ | ONE_CORE).returncode != 0)


def report(plans: list[Plan], out: Path) -> None:
    """Prints how many runs are unfinished and the last line of each failed log."""
    missing = [plan for plan in plans if not plan.finished]
    text = f"{len(missing)} of {len(plans)} runs are not finished; the same command tries them again:"
    print(f"benchmark.sh: {text}", file=sys.stderr)
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
    rows.append(("smoke", "ours", "", "", "do all of these work? with 1,024 steps and few agents"))
    for name, source, count, steps, question in rows:
        print(f"{name:<22} {source:<18} {count:>5} {steps:>6} {question}")
    print("\nSteps: of the environments, all runs together. Sizes are the defaults; --help lists the options.")


def default_out(args: Args, experiment: Experiment, passed_on: list[str]) -> Path:
    """Returns results/NAME and what differs from the experiment's defaults. So a trial does not overwrite the table."""
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
    """Returns the arguments and the words that follow "--"."""
    end = argv.index("--") if "--" in argv else len(argv)
    words = argv[:end]
    for i, word in reversed(list(enumerate(words[:-1]))):
        if word == "--set":  # its value begins with dashes
            words[i : i + 2] = [f"--set={words[i + 1]}"]
    args = tyro.cli(Args, args=words, prog="benchmark.sh", description=__doc__)
    for name in ("seeds", "first_seed", "steps", "jobs"):
        if (number := getattr(args, name)) is not None and number < 1:
            stop(f"--{name.replace('_', '-')} {number}: must be greater than 0")
    if args.seeds and args.first_seed > args.seeds:
        stop(f"--first-seed {args.first_seed}: greater than the last, {args.seeds}")
    for option in args.slurm:
        if not re.match("[a-z]+[-_a-z]*=.", option):
            stop(f"--slurm {option}: write KEY=VALUE")
    return args, argv[end + 1 :]


OF_ONE_RUN = "run-name runs-dir seed env-id total-timesteps".split()  # flags that --set must not give to all


def main() -> None:
    args, passed_on = read_arguments(sys.argv[1:])
    if args.file:
        try:
            runpy.run_path(str(args.file))
        except (Exception, SystemExit) as error:
            stop(f"--file {args.file}: {type(error).__name__}: {error}")
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
    smoke = args.name == "smoke"
    experiments = {name: cut_down(name) for name in EXPERIMENTS} if smoke else {args.name: EXPERIMENTS[args.name]}
    out = args.out or default_out(args, [*experiments.values()][-1], passed_on)
    if smoke:
        args = replace(args, sizes="small", runs_dir=args.runs_dir or out / "runs")
    for experiment in experiments.values():
        check_envs(args, experiment)
        if passed_on:
            check_passed_on(args, experiment, passed_on)
    plans, unique = make_plans(args, experiments)  # stops at a bad flag before anything is written
    if args.launcher == "print":
        print(*(plan.command for plan in unique), sep="\n")
        return
    if args.launcher == "slurm" and not shutil.which("sbatch"):
        stop("no Slurm on this machine: there is no sbatch")
    try:
        (out / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        stop(f"--out {out}: {error.strerror}")

    missing = [plan for plan in unique if not plan.finished]
    print(f"{args.name}: {len(unique)} runs, {len(unique) - len(missing)} of them finished", file=sys.stderr)
    if args.launcher == "slurm":
        launch_slurm(args, out, missing)
        return
    if args.launcher == "local" and missing:
        launch_local(out, args.jobs or runs.count_cores(), missing)
        plans, unique = make_plans(args, experiments)
    status = 0
    for name, experiment in experiments.items():
        status |= make_results(args, experiment, plans[name], passed_on, out / name if smoke else out)
    if not all(plan.finished for plan in unique):
        report(unique, out)
        status = 1
    raise SystemExit(status)


if __name__ == "__main__":
    sys.argv[0] = "benchmark.sh"  # which is what messages should name
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that | head is no error
    runs.run_program(main)
