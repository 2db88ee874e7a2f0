"""The papers' experiments, by name: trains what is missing, then makes its tables and figures.

    ./benchmark.sh                                          lists the experiments
    ./benchmark.sh clipping --envs Hopper --seeds 3         runs one to the end; again: only what is missing
    ./benchmark.sh leave-one-out --envs my_module:MyEnv-v0  which of the nine matter in an environment of your own?
    ./benchmark.sh gradients -- --pairs 1000 10_000         what follows -- goes to the experiment's first diagnostic
    ./benchmark.sh clipping --launcher slurm --jobs 50 --slurm partition=cpu account=me

A run's folder is named by a hash of its settings, so experiments share runs. An experiment of your own is one more
record, in a file:

    from experiments import AGENTS, EXPERIMENTS, IM, PPO, PPO_STEP, Experiment
    AGENTS["no-gae"] = "ppo", IM, PPO_STEP, PPO, {"all": "--gae-lambda 1"}
    EXPERIMENTS["gae"] = Experiment("mine", "what is GAE worth?", ["PPO", "no-gae"], seeds=5, envs=["Hopper"])
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
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

import submitit
import tyro
from filelock import FileLock, Timeout
from submitit.helpers import DelayedSubmission
from tqdm import tqdm

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Args:
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ""
    """the experiment; without it, a list of all"""
    seeds: int | None = None
    """seeds 1 to this (default: the experiment's)"""
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
    """Python file that adds experiments of your own to EXPERIMENTS"""
    sizes: Literal["default", "paper", "small"] = "default"
    """sample sizes of the diagnostics: their defaults, the papers', or just enough to see them work"""
    jobs: int | None = None
    """runs at once (default: one a core; with slurm: as many as the cluster starts)"""
    launcher: Literal["local", "slurm", "print", "none"] = "local"
    """local: on this machine; slurm: as a job array, and the results as a job that waits for it; print: print the
    commands, for any other launcher; none: train nothing, make the results of what is finished"""
    runs_per_task: int | None = None
    """with slurm: runs of one array task, one after the other (default: as many as take about half an hour)"""
    slurm: tuple[str, ...] = ()
    """with slurm: options of sbatch, KEY=VALUE, such as partition=cpu account=me time=120 (minutes, default 60)"""
    out: Path | None = None
    """folder of tables, figures and logs (default: results/NAME, what differs from its defaults, version; but for
    --seeds: more of them extend the table)"""
    runs_dir: Path | None = None
    """folder of the runs, which experiments share (default: runs; of smoke: inside --out)"""


def stop(message: str, status: int = 2) -> NoReturn:
    print(f"benchmark.sh: {message}", file=sys.stderr)
    raise SystemExit(status)


# Settings: environment -> flags, even where they are the defaults of the script --------------------------------------

# Implementation Matters (IM), Tables 4 to 6, and what the released configurations add: value clip, initialization,
# annealing. Of gradients the released code clips the policy's alone, and in TRPO+ nothing: so do these, since that gave
# the papers' numbers.
IM = {
    "all": """--num-envs 1 --num-steps 2048 --num-minibatches 32 --value-epochs 10 --gamma 0.99 --entropy-coef 0
              --policy-hidden 64 64 --value-hidden 64 64""",
}
PPO_STEP = {"all": "--policy-epochs 10 --clip-eps 0.2"}
TRPO_STEP = {"all": "--fisher-fraction 0.1 --cg-steps 10 --cg-damping 0.1 --backtrack-steps 10 --backtrack-ratio 0.5"}
PPO = {
    "all": """--gae-lambda 0.95 --reward-scale --reward-scale-by returns --orthogonal-init --anneal-lr --tanh
              --reward-clip --reward-clip-range 10 --obs-norm --obs-clip --obs-clip-range 10
              --no-grad-clip --no-value-grad-clip""",
    "Walker2d": "--policy-lr 4e-4    --value-lr 3e-4    --value-clip",
    "Humanoid": "--policy-lr 1.5e-4  --value-lr 1e-4    --value-clip",
    "Hopper":   "--policy-lr 3e-4    --value-lr 2.5e-4  --no-value-clip",
}  # fmt: skip
PPO_M = {
    "all": "--gae-lambda 0.95",
    "Walker2d": "--policy-lr 1e-4    --value-lr 2e-4",
    "Humanoid": "--policy-lr 9e-5    --value-lr 4e-4",
    "Hopper":   "--policy-lr 1.7e-4  --value-lr 4e-4",
}  # fmt: skip
# Observations are clipped as in the released configurations; the table prints 30 for Walker2d and 2.5 for Hopper.
PPO_NOCLIP = {
    "all": "--policy-epochs 10 --reward-scale --reward-clip --obs-norm --tanh --grad-clip --no-value-grad-clip",
    "Walker2d": """--policy-lr 7.25e-5  --value-lr 6e-4  --gae-lambda 0.85   --entropy-coef -0.01   --max-grad-norm 0.1
                   --reward-scale-by rewards  --reward-clip-range 30   --no-obs-clip --obs-clip-range 10
                   --no-value-clip --orthogonal-init --anneal-lr""",
    "Humanoid": """--policy-lr 2e-5     --value-lr 5e-5  --gae-lambda 0.85   --entropy-coef 0.005   --max-grad-norm 0.5
                   --reward-scale-by returns  --reward-clip-range 10   --obs-clip --obs-clip-range 10
                   --value-clip --no-orthogonal-init --no-anneal-lr""",
    "Hopper":   """--policy-lr 6e-5     --value-lr 4e-4  --gae-lambda 0.925  --entropy-coef -0.005  --max-grad-norm 4
                   --reward-scale-by rewards  --reward-clip-range 2.5  --obs-clip --obs-clip-range 10
                   --no-value-clip --orthogonal-init --anneal-lr""",
}  # fmt: skip
TRPO = {
    "all": "--gae-lambda 0.95",
    "Walker2d": "--max-kl 0.04  --value-lr 3e-4",
    "Humanoid": "--max-kl 0.07  --value-lr 3e-4",
    "Hopper":   "--max-kl 0.13  --value-lr 2e-4",
}  # fmt: skip
# The table's largest gradient norms, which clipped nothing: Walker2d 1, Humanoid 0.5, Hopper 1.
TRPO_PLUS = {
    "all": """--reward-scale --reward-scale-by returns --reward-clip --reward-clip-range 10 --no-anneal-lr --tanh
              --obs-norm --obs-clip --obs-clip-range 10 --no-grad-clip""",
    "Walker2d": "--max-kl 0.07  --value-lr 1e-4  --gae-lambda 0.95  --no-value-clip  --orthogonal-init",
    "Humanoid": "--max-kl 0.1   --value-lr 5e-5  --gae-lambda 0.85  --value-clip     --no-orthogonal-init",
    "Hopper":   "--max-kl 0.04  --value-lr 2e-4  --gae-lambda 0.95  --no-value-clip  --orthogonal-init",
}  # fmt: skip
# Of the paper's schedule, which the released code configured and did not run.
KL_SCHEDULE = {
    "Walker2d": "--max-kl-final 0.04",
    "Humanoid": "--max-kl-final 0.05",
    "Hopper":   "--max-kl-final 0.07",
}  # fmt: skip
# PPO-M and TRPO have none of the nine by definition; as released, and in the paper's numbers, they kept two.
AS_RELEASED = {
    "all": """--no-value-clip --no-reward-scale --no-orthogonal-init --no-anneal-lr --no-reward-clip
              --obs-norm --no-obs-clip --tanh --no-grad-clip""",
}
# A Closer Look (CL), Table 1: its PPO has rates of its own, its TRPO is IM's.
CL_PPO = {
    "Walker2d": "--policy-lr 4e-4    --value-lr 3e-4",
    "Humanoid": "--policy-lr 2.5e-4  --value-lr 1e-4",
    "Hopper":   "--policy-lr 4.5e-4  --value-lr 2e-4",
}  # fmt: skip

# The Definitive Guide (GUIDE), Table 2 and Appendix A. It names neither a value clip nor an initialization: off; nor a
# share of the states for TRPO's Fisher matrix: IM's. 61 iterations are 999,424 steps: a checkpoint at 1M (its Table 3).
GUIDE = {
    "all": """--num-envs 8 --num-steps 2048 --num-minibatches 8 --gamma 0.99 --no-anneal-lr --no-orthogonal-init
              --policy-hidden 32 32 32 32 --no-tanh --activation-without-tanh silu --bound-action tanh --entropy-coef 0
              --obs-norm --obs-clip --obs-clip-range 10 --reward-scale --reward-scale-by returns
              --reward-clip --reward-clip-range 10 --grad-clip --max-grad-norm 0.5 --checkpoint-every 61""",
}
GUIDE_VALUE = {"all": "--value-hidden 256 256 256 256 256 --value-lr 3e-4 --gae-lambda 0.95 --no-value-clip"}
GUIDE_REINFORCE = {
    "all": "--num-envs 1 --num-minibatches 1 --policy-lr 3e-4 --policy-epochs 1 --baseline none --checkpoint-every 488",
}
GUIDE_A2C = {"all": "--policy-lr 3e-4 --policy-epochs 1 --value-epochs 1 --value-grad-clip --entropy-coef 0.1"}
GUIDE_TRPO = {
    "all": """--value-epochs 10 --max-kl 0.01 --fisher-fraction 0.1 --cg-steps 10 --cg-damping 0.1
              --backtrack-steps 10 --backtrack-ratio 0.8""",
}
GUIDE_PPO = {"all": "--policy-lr 3e-4 --policy-epochs 10 --value-epochs 10 --value-grad-clip --clip-eps 0.2"}
GUIDE_VMPO = {
    "all": """--policy-lr 3e-4 --policy-epochs 10 --value-epochs 10 --value-grad-clip
              --eps-temperature 0.01 --eps-mean 0.01 --eps-std 5e-5""",
}

# Agents: script, then settings, of which a later one replaces an earlier one -----------------------------------------

AGENTS = {
    "PPO": ("ppo", IM, PPO_STEP, PPO),
    "PPO-M": ("ppo", IM, PPO_STEP, PPO_M, AS_RELEASED, {"all": "--no-value-grad-clip"}),
    "PPO-M-defined": ("ppo_m", IM, PPO_STEP, PPO_M),
    "PPO-NoClip": ("ppo_noclip", IM, PPO_NOCLIP),
    "TRPO": ("trpo_plus", IM, TRPO_STEP, TRPO, AS_RELEASED),
    "TRPO-defined": ("trpo", IM, TRPO_STEP, TRPO),
    "TRPO+": ("trpo_plus", IM, TRPO_STEP, TRPO_PLUS),
    "TRPO+schedule": ("trpo_plus", IM, TRPO_STEP, TRPO_PLUS, KL_SCHEDULE),
    "CL-PPO": ("ppo", IM, PPO_STEP, PPO, CL_PPO),
    "REINFORCE": ("reinforce", GUIDE, GUIDE_REINFORCE),
    "REINFORCE-5-epochs": ("reinforce", GUIDE, GUIDE_REINFORCE, {"all": "--policy-epochs 5"}),
    "A2C": ("a2c", GUIDE, GUIDE_VALUE, GUIDE_A2C),
    "A2C-5-epochs": ("a2c", GUIDE, GUIDE_VALUE, GUIDE_A2C, {"all": "--policy-epochs 5 --value-epochs 5"}),
    "A2C-entropy-0.01": ("a2c", GUIDE, GUIDE_VALUE, GUIDE_A2C, {"all": "--entropy-coef 0.01"}),
    "A2C-entropy-0": ("a2c", GUIDE, GUIDE_VALUE, GUIDE_A2C, {"all": "--entropy-coef 0"}),
    "GUIDE-TRPO": ("trpo_plus", GUIDE, GUIDE_VALUE, GUIDE_TRPO),
    "GUIDE-PPO": ("ppo", GUIDE, GUIDE_VALUE, GUIDE_PPO),
    "V-MPO": ("vmpo", GUIDE, GUIDE_VALUE, GUIDE_VMPO),
}

# IM says "a grid of learning rates"; here of the policy's, the value network keeps PPO's.
ABLATION = {}
for switches in product(("--", "--no-"), repeat=4):
    flags = [no + name for no, name in zip(switches, ("anneal-lr", "orthogonal-init", "reward-scale", "value-clip"))]
    for rate in ("1e-4", "2.5e-4", "5e-4", "1e-3"):
        changes = {"all": " ".join([*flags, "--policy-lr", rate])}
        ABLATION[f"PPO{''.join(flags)}-{rate}"] = ("ppo", IM, PPO_STEP, PPO, changes)

NINE = "value-clip reward-scale orthogonal-init anneal-lr reward-clip obs-norm obs-clip tanh grad-clip".split()
NINTH_TOO = {"grad-clip": ["grad-clip", "value-grad-clip"]}  # an argument for each network: switched together


def nine(on: set[str]) -> tuple:
    """PPO with these of the nine and no other."""
    flags = [("--" if name in on else "--no-") + x for name in NINE for x in NINTH_TOO.get(name, [name])]
    return "ppo", IM, PPO_STEP, PPO, {"all": " ".join(flags)}


LEAVE_ONE_OUT = {"all": nine(set(NINE)), "none": nine(set())}
for name in NINE:
    LEAVE_ONE_OUT |= {f"without-{name}": nine(set(NINE) - {name}), f"only-{name}": nine({name})}
AGENTS |= ABLATION | LEAVE_ONE_OUT

# Experiments ---------------------------------------------------------------------------------------------------------

IM_ENVS = ["Walker2d", "Hopper", "Humanoid"]
GUIDE_ENVS = ["HalfCheetah", "Ant", "Humanoid", "Hopper"]


class Experiment(NamedTuple):
    source: str
    question: str
    agents: list[str]
    results: list[str] = ["rewards"]  # diagnostics and their options
    seeds: int = 3
    steps: int = 1_000_000
    envs: list[str] = IM_ENVS
    version: str = "v5"


FOUR, M = ["PPO", "PPO-M", "TRPO", "TRPO+"], 1_000_000
AAI = "rewards --aai PPO PPO-M TRPO TRPO+"
FACTORS = "rewards --best-of policy_lr --histograms value_clip reward_scale orthogonal_init anneal_lr"
CLOUDS = "landscape --concentration 2000 20_000 100_000"
EVALUATED = ["rewards --kl", "evaluate --deterministic --checkpoints all --episodes 10"]
FIVE = ["REINFORCE", "A2C", "GUIDE-TRPO", "GUIDE-PPO", "V-MPO"]
ENTROPY = ["A2C", "A2C-entropy-0.01", "A2C-entropy-0"]
EPOCHS = ["A2C", "A2C-5-epochs", "REINFORCE", "REINFORCE-5-epochs"]
DEFINED = ["PPO-M", "PPO-M-defined", "TRPO", "TRPO-defined"]
SCHEDULED = ["TRPO+", "TRPO+schedule"]
X = Experiment

# fmt: off
EXPERIMENTS = {
    "step-or-optimizations": X("IM Table 2", "PPO or TRPO, or their optimizations?", FOUR, [AAI], seeds=10),
    "clipping": X("IM Table 3", "the same, and PPO without clipping", [*FOUR, "PPO-NoClip"], [AAI], seeds=10),
    "ablation": X("IM Fig. 1", "four optimizations x four learning rates", [*ABLATION], [FACTORS], seeds=5,
                  envs=["Humanoid", "Walker2d"]),
    "leave-one-out": X("ours", "what is each of the nine worth?", [*LEAVE_ONE_OUT], ["rewards --paired"], seeds=5,
                       envs=["Hopper"]),
    "definition": X("IM Table 1", "PPO-M, TRPO: as released, as defined", DEFINED, seeds=10),
    "kl-schedule": X("IM sec. 5", "TRPO+ with constant delta, with schedule", SCHEDULED, seeds=10),
    "trust-region": X("IM Fig. 2-4, TPG", "how far do steps go?", ["PPO", "PPO-M", "PPO-NoClip", "TRPO"],
                      ["trust_region"]),
    "gradients": X("CL Fig. 1, 2, 4, 8", "do gradient estimates mean anything?", ["CL-PPO", "TRPO"],
                   ["gradient --baselines", "steps", "rewards"]),
    "values": X("CL Fig. 3", "are values predicted?", ["CL-PPO", "TRPO"], ["value", "rewards"]),
    "landscapes": X("CL Fig. 5-7", "does the surrogate know the reward?", ["CL-PPO", "TRPO", "PPO-M"],
                    [CLOUDS, "rewards"], seeds=1),
    "algorithms": X("GUIDE Fig. 4, 5", "five algorithms", FIVE, EVALUATED, 3, 8 * M, GUIDE_ENVS, "v4"),
    "entropy": X("GUIDE Fig. 6", "entropy coefficients of A2C", ENTROPY, EVALUATED, 3, 8 * M, ["HalfCheetah"], "v4"),
    "epochs": X("GUIDE Fig. 7", "A2C and REINFORCE: 1, 5 epochs", EPOCHS, EVALUATED, 3, M, ["HalfCheetah"], "v4"),
}
# fmt: on

# Options of the diagnostics: the papers' sample sizes, and sizes just large enough to see that all of it works.
PAPER_SIZES = {
    "gradient": "--pairs 100 1000 10_000 100_000 1_000_000 --true-pairs 9_000_000 --value-pairs 5_000_000",
    "landscape": "--step-pairs 2000 1_000_000 --reward-pairs 1_000_000 --concentration 2000 20_000 100_000",
}
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
    runs = {}
    for seed in range(1, (args.seeds or experiment.seeds) + 1):
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
                runs.setdefault((algo, run.flags), run)
    return list(runs.values())


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
    import gymnasium  # takes half a second, which a list of the experiments need not wait for

    sys.path.append(os.getcwd())
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        stop(f"--envs {env}: {' '.join(str(error).split())}")


def make_plans(runs: list[Run]) -> list[Plan]:
    """Asks the scripts what the runs are called and how long they are, the folders how far they have come."""
    import torch  # takes seconds; see above
    from common import flag

    plans = []
    for run in runs:
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
        setting = " ".join([run.algo, *(flag(k, x) for k, x in vars(args).items() if k not in others)])
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

    command: list[str]
    log: Path
    folder: Path | None = None


class Task:
    """What submitit runs, here or on a cluster: pieces of work, one after the other; one that fails stops no other."""

    def __call__(self, *works: Work) -> None:
        failed = 0
        for work in works:
            with open(work.log, "a") as log:

                def say(text: str, log: Any = log) -> None:
                    print(time.strftime("--- %Y-%m-%d %H:%M:%S"), text, file=log, flush=True)

                say(shlex.join(work.command))
                while True:
                    if work.folder and in_use(work.folder):
                        say(ELSEWHERE)
                        while in_use(work.folder):
                            time.sleep(1)
                    status = subprocess.run(work.command, stdout=log, stderr=log, env=os.environ | ONE_CORE).returncode
                    if not (status and "is in use by another process" in last_line(work.log)):  # another was faster
                        break
                if "SLURM_JOB_ID" in os.environ and status in (-signal.SIGTERM, -signal.SIGUSR2, 130):
                    time.sleep(120)  # the scheduler's signal, meant for all of this job, which goes on later
                say(f"ended with status {status}")
                failed += status != 0
        if failed:
            raise RuntimeError(f"{failed} of {len(works)} failed")

    def checkpoint(self, *works: Work) -> DelayedSubmission:
        """What is queued again when the time limit comes or another job takes the place: the same, since what is
        finished ends at once and a run goes on from its newest checkpoint."""
        return DelayedSubmission(self, *works)


def keep_code(out: Path) -> Path:
    """Copies the scripts, so that an edit in the meantime does not mix versions. The folder of the copies."""
    for name in ("algos", "diagnostics"):
        if ROOT != (out / "code").resolve():
            shutil.copytree(ROOT / name, out / "code" / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__*"))
    return (out / "code").resolve()


def log_of(out: Path, plan: Plan) -> Path:
    return (out / "logs" / f"{plan.folder.name}.log").resolve()


def work_of(out: Path, code: Path, plan: Plan) -> Work:
    return Work(plan.command(code), log_of(out, plan), plan.folder)


def launch_local(out: Path, jobs: int, missing: list[Plan]) -> None:
    """Keeps so many of the missing going, and says how far they are."""
    executor = submitit.LocalExecutor(out / "submitit")
    executor.update_parameters(timeout_min=1_000_000, stderr_to_stdout=True)
    code, waiting, running, ended = keep_code(out), list(missing), {}, []
    begun, shown = time.monotonic(), -30.0
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                plan = waiting.pop(0)
                running[plan] = executor.submit(Task(), work_of(out, code, plan))
            time.sleep(0.2)
            for plan in [plan for plan, job in running.items() if job.done()]:
                ended.append((plan, running.pop(plan).exception() is None))
            now = time.monotonic()
            if now - shown >= (1 if sys.stderr.isatty() else 30) or not running:
                shown = now
                show(out, missing, list(running), ended, now - begun)
    finally:
        for job in running.values():
            job.cancel()
        if running and sys.stderr.isatty():
            print(file=sys.stderr)
        while not all(job.done() for job in running.values()):
            time.sleep(0.1)


def show(out: Path, missing: list[Plan], running: list[Plan], ended: list[tuple[Plan, bool]], seconds: float) -> None:
    """Counts and the time left: in place on a terminal, else a line now and then."""
    failed = sum(not good for _, good in ended)
    trained = sum(plan.steps - plan.reached for plan, good in ended if good)
    under_way = sum(max(0, steps_of(plan.folder) - plan.reached) for plan in running)
    over = {plan for plan, _ in ended}
    left = sum(plan.steps - plan.reached for plan in missing if plan not in over) - under_way
    speed = (trained + under_way) / seconds
    text = f"{len(ended) - failed} of {len(missing)} done, {len(running)} running, {failed} failed"
    if elsewhere := sum(ELSEWHERE in last_line(log_of(out, plan)) for plan in running):
        text += f", {elsewhere} of the running elsewhere"
    text += f", {tqdm.format_interval(left / speed) if speed else '?'} left"
    terminal = sys.stderr.isatty()
    print("\r\033[K" * terminal + text, end="" if terminal and running else "\n", file=sys.stderr, flush=True)


def last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return lines[-1] if lines else ""


def steps_of(folder: Path) -> int:
    """Environment steps in the last row of progress.csv; 0 where there is none yet."""
    step = (last_line(folder / "progress.csv").split(",") + [""])[1]
    return int(step) if step.isdecimal() else 0


def launch_slurm(args: Args, argv: list[str], out: Path, missing: list[Plan]) -> None:
    """The missing as a job array, the results as a job that waits for it."""
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
        tasks = [ordered[i : i + size] for i in range(0, len(ordered), size)]
        with submission():
            executor = slurm_executor(args, out, f"{args.name}", 1)
            executor.update_parameters(array_parallelism=args.jobs or len(tasks))
            with executor.batch():
                jobs = [executor.submit(Task(), *(work_of(out, code, plan) for plan in task)) for task in tasks]
        array = jobs[0].job_id.partition("_")[0]
        (out / "slurm.job").write_text(array)
        print(f"job {array}: {len(missing)} runs in {len(tasks)} tasks")
    where = [f"--partition={x.partition('=')[2]}" for x in args.slurm if x.startswith("partition=")]
    cores = min(8, max(map(int, slurm_says("sinfo", "-h", "-o", "%c", *where).replace("+", "").split()), default=1))
    end = argv.index("--") if "--" in argv else len(argv)
    same = [*argv[:end], "--launcher", "none", "--jobs", str(cores), *argv[end:]]
    command = [sys.executable, str(code / "diagnostics" / "experiments.py"), *same]
    with submission():
        executor = slurm_executor(args, out, f"{args.name}-results", cores)
        if array:
            executor.update_parameters(dependency=f"afterany:{array}")
        log = (out / "logs" / "results.log").resolve()
        job = executor.submit(Task(), Work(command, log))
    print(f"job {job.job_id}: the results{', when they have ended' if array else ''}; what it says: {log}")


def slurm_executor(args: Args, out: Path, name: str, cores: int) -> submitit.SlurmExecutor:
    """Jobs that are queued again after preemption and, up to a hundred times, at the time limit."""
    executor = submitit.SlurmExecutor(out / "submitit", max_num_timeout=100)
    executor.update_parameters(job_name=name, time=60, signal_delay_s=30, stderr_to_stdout=True, cpus_per_task=cores)
    given = {}
    for option in args.slurm:
        key, equals, value = option.partition("=")
        if not (key and equals):
            stop(f"--slurm {option}: write KEY=VALUE")
        if key == "time" and not value.isdecimal():
            stop(f"--slurm {option}: give the minutes, from which the time to go on later is reckoned")
        given[key.replace("-", "_")] = int(value) if value.isdecimal() else value
    known = {key: x for key, x in given.items() if key in executor._valid_parameters()}
    executor.update_parameters(**known)
    others = {key.replace("_", "-"): x for key, x in given.items() if key not in known}
    executor.update_parameters(additional_parameters=dict(requeue=True) | others)
    return executor


def slurm_says(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout


@contextlib.contextmanager
def submission() -> Any:
    try:
        yield
    except (submitit.core.utils.FailedJobError, subprocess.CalledProcessError, ValueError) as error:
        stop(f"Slurm refused: {' '.join(str(error).split())}")


# Results -------------------------------------------------------------------------------------------------------------


def make_results(args: Args, experiment: Experiment, plans: list[Plan], out: Path, passed_on: list[str]) -> int:
    """Calls the experiment's diagnostics; 0 if all had what they need."""
    status = 0
    for i, call in enumerate(experiment.results):
        diagnostic, *options = shlex.split(call)
        sizes = dict(paper=PAPER_SIZES, small=SMALL_SIZES).get(args.sizes, {})
        options += shlex.split(sizes.get(diagnostic, "")) + (passed_on if i == 0 else [])
        if diagnostic == "rewards":
            begun = [plan for plan in plans if (plan.folder / "config.json").is_file()]  # it names the unfinished
            labels = [] if "--best-of" in options else labels_of(begun)
            status |= diagnose(diagnostic, options, labels, out, begun)
            continue
        for env_id in dict.fromkeys(plan.run.env_id for plan in plans):
            here = [plan for plan in plans if plan.run.env_id == env_id and plan.finished]
            jobs = 1 if args.sizes == "small" else args.jobs  # workers would take longer to start than to work
            options += ["--jobs", str(jobs)] if jobs else []
            status |= diagnose(diagnostic, options, labels_of(here), out / env_id.replace(":", "."), here)
    return status


def labels_of(plans: list[Plan]) -> list[str]:
    labels = list(dict.fromkeys(f"{plan.run.agent}={plan.setting}" for plan in plans))
    return ["--labels", *labels] if labels else []


def diagnose(name: str, options: list[str], labels: list[str], out: Path, plans: list[Plan]) -> int:
    if not plans:
        return 1
    command = [sys.executable, str(ROOT / "diagnostics" / f"{name}.py"), *options, *labels, "--out", str(out), "--"]
    command += [str(plan.folder) for plan in plans]
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
        runs = x.seeds * len(x.agents) * len(x.envs)
        rows.append((name, x.source, str(runs), f"{runs * x.steps // 1_000_000}M", x.question))
    runs = {run.flags for name in EXPERIMENTS for run in make_runs(Args(sizes="small"), cut_down(name))}
    rows.append(("smoke", "ours", str(len(runs)), f"{len(runs) * 1024 // 1000}k", "do all of these work? cut down"))
    for name, source, runs, steps, question in rows:
        print(f"{name:<22} {source:<18} {runs:>5} {steps:>6} {question}")
    print("\nSteps: of the environments, all runs together. Sizes are the defaults; --help lists the options.")


def default_out(args: Args, experiment: Experiment) -> Path:
    """results/NAME, what differs from the experiment's defaults, version: a trial must not overwrite the real table."""
    seeds = [f"seeds={args.seeds}"] if args.seeds and args.seeds != experiment.seeds else []
    envs = [env.replace(":", ".") for env in args.envs]
    steps = [f"steps={args.steps}"] if args.steps else []
    sizes = [f"sizes={args.sizes}"] if args.sizes != "default" and args.name != "smoke" else []
    changed = ["_".join(parse_flags(args.set)[x]).lstrip("-").replace("/", ".") for x in parse_flags(args.set)]
    version = args.env_version or experiment.version
    return Path("results") / "-".join([args.name, *envs, *seeds, *steps, *sizes, *changed, version])


def read_arguments(argv: list[str]) -> tuple[Args, list[str]]:
    """The arguments, and what follows "--"."""
    end = argv.index("--") if "--" in argv else len(argv)
    words = argv[:end]
    for i, word in reversed(list(enumerate(words[:-1]))):
        if word == "--set":  # its value begins with dashes
            words[i : i + 2] = [f"--set={words[i + 1]}"]
    args = tyro.cli(Args, args=words, prog="benchmark.sh", description=__doc__)
    for name in ("seeds", "steps", "jobs", "runs_per_task"):
        if (number := getattr(args, name)) is not None and number < 1:
            stop(f"--{name.replace('_', '-')} {number}: must be greater than 0")
    return args, argv[end + 1 :]


def read_file(path: Path) -> None:
    sys.modules["experiments"] = sys.modules[__name__]  # so that the file's EXPERIMENTS are these
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
    out = args.out or default_out(args, experiments[names[-1]])
    if args.name == "smoke":
        args = replace(args, sizes="small", runs_dir=args.runs_dir or out / "runs")
    for experiment in experiments.values():
        check_envs(args, experiment)
    runs = {name: make_runs(args, experiment) for name, experiment in experiments.items()}
    unique = list({(run.algo, run.flags): run for x in runs.values() for run in x}.values())
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
        launch_slurm(args, sys.argv[1:], out, missing)
        return
    if args.launcher == "local" and missing:
        from common import count_cores  # takes seconds; see above

        launch_local(out, args.jobs or count_cores(), missing)
        plans = make_plans(unique)
    status, plan_of = 0, {(plan.run.algo, plan.run.flags): plan for plan in plans}
    for name, experiment in experiments.items():
        of_experiment = [plan_of[run.algo, run.flags]._replace(run=run) for run in runs[name]]
        folder = out / name if args.name == "smoke" else out
        status |= make_results(args, experiment, of_experiment, folder, passed_on)
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
        stop("interrupted; the same command goes on from the newest checkpoints", 130)
