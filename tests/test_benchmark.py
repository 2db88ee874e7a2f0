"""benchmark.sh and diagnostics/experiments.py: tables against the papers', launchers against runs that are broken,
interrupted, requeued or shared."""

import contextlib
import errno
import fcntl
import io
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import pytest
import tyro
from conftest import ALGOS, ROOT, assert_same, checkpoints, load, parameters, progress

NINE = "value_clip reward_scale orthogonal_init anneal_lr reward_clip obs_norm obs_clip tanh grad_clip".split()
RELEASED = {name: name in ("obs_norm", "tanh") for name in NINE}  # what the released PPO-M and TRPO kept
ENVS = ("Walker2d", "Humanoid", "Hopper")
# Implementation Matters, Tables 4 to 6 and what the released configurations add, in the order of ENVS.
PAPER = {
    "PPO": dict(
        algo="ppo",
        policy_lr=(4e-4, 1.5e-4, 3e-4),
        value_lr=(3e-4, 1e-4, 2.5e-4),
        value_clip=(True, True, False),
        **dict(grad_clip=False, value_grad_clip=False),
        **{name: True for name in NINE if name not in ("value_clip", "grad_clip")},
        **dict(reward_clip_range=10, obs_clip_range=10, gae_lambda=0.95, clip_eps=0.2),
    ),
    "PPO-M": dict(
        algo="ppo",
        policy_lr=(1e-4, 9e-5, 1.7e-4),
        value_lr=(2e-4, 4e-4, 4e-4),
        **dict(gae_lambda=0.95, value_grad_clip=False),
        **RELEASED,
    ),
    "TRPO": dict(algo="trpo_plus", max_kl=(0.04, 0.07, 0.13), value_lr=(3e-4, 3e-4, 2e-4), gae_lambda=0.95, **RELEASED),
    "TRPO+": dict(
        algo="trpo_plus",
        max_kl=(0.07, 0.1, 0.04),
        max_kl_final=None,
        value_lr=(1e-4, 5e-5, 2e-4),
        gae_lambda=(0.95, 0.85, 0.95),
        value_clip=(False, True, False),
        orthogonal_init=(True, False, True),
        anneal_lr=False,
        grad_clip=False,
        **{name: True for name in NINE if name not in ("value_clip", "orthogonal_init", "anneal_lr", "grad_clip")},
        **dict(reward_clip_range=10, obs_clip_range=10),
    ),
    "PPO-NoClip": dict(
        algo="ppo_noclip",
        policy_lr=(7.25e-5, 2e-5, 6e-5),
        value_lr=(6e-4, 5e-5, 4e-4),
        gae_lambda=(0.85, 0.85, 0.925),
        entropy_coef=(-0.01, 0.005, -0.005),
        reward_scale_by=("rewards", "returns", "rewards"),
        reward_clip_range=(30, 10, 2.5),
        obs_clip=(False, True, True),
        obs_clip_range=10,
        max_grad_norm=(0.1, 0.5, 4),
        value_grad_clip=False,
        value_clip=(False, True, False),
        orthogonal_init=(True, False, True),
        anneal_lr=(True, False, True),
        **{name: True for name in NINE if name not in ("value_clip", "orthogonal_init", "anneal_lr", "obs_clip")},
    ),
}
ALL_OF_IM = dict(num_steps=2048, num_envs=1, num_minibatches=32, gamma=0.99, total_timesteps=1_000_000)
ALL_OF_IM |= dict(value_epochs=10, policy_epochs=10, value_hidden=(64, 64), policy_hidden=(64, 64))
ALL_OF_IM |= dict(fisher_fraction=0.1, cg_steps=10, cg_damping=0.1, backtrack_steps=10, bootstrap_truncation=True)
GUIDE = {
    "reinforce": dict(num_envs=1, num_minibatches=1, policy_epochs=1, entropy_coef=0),
    "a2c": dict(num_minibatches=8, policy_epochs=1, value_epochs=1, entropy_coef=0.1),
    "trpo_plus": dict(max_kl=0.01, backtrack_ratio=0.8, value_epochs=10, cg_damping=0.1, entropy_coef=0),
    "ppo": dict(clip_eps=0.2, num_minibatches=8, policy_epochs=10, value_epochs=10, entropy_coef=0),
    "vmpo": dict(num_minibatches=8, policy_epochs=10, value_epochs=10, eps_temperature=0.01, eps_std=5e-5),
}
ALL_OF_GUIDE = dict(policy_hidden=(32,) * 4, value_hidden=(256,) * 5, tanh=False, activation_without_tanh="silu")
ALL_OF_GUIDE |= dict(bound_action="tanh", policy_lr=3e-4, value_lr=3e-4, anneal_lr=False, grad_clip=True, gamma=0.99)
ALL_OF_GUIDE |= dict(max_grad_norm=0.5, obs_clip_range=10, reward_clip_range=10, num_steps=2048, gae_lambda=0.95)
ALL_OF_GUIDE |= dict(num_envs=8, total_timesteps=8_000_000, obs_norm=True, reward_scale=True, obs_clip=True)
ALL_OF_GUIDE |= dict(value_grad_clip=True)


def benchmark(*arguments, program=ROOT / "benchmark.sh", **options):
    options = dict(capture_output=True, text=True) | options
    return subprocess.run([program, *arguments], **options)


def lines_of(*arguments):
    """What experiments.py prints, called here: a process of its own would take a second to begin."""
    experiments, output = load("experiments"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr(sys, "argv", ["experiments.py", *arguments])
        experiments.main()
    return output.getvalue().splitlines()


def refusal(capsys, *arguments):
    """The one line with which experiments.py refuses the arguments."""
    with pytest.raises(SystemExit) as refused:
        lines_of(*arguments)
    [line] = capsys.readouterr().err.splitlines()
    assert refused.value.code == 2 and line.startswith(("benchmark.sh: ", "experiments.py: ", "a2c.py: "))
    return line


def runs_of(*arguments):
    """Algorithm and arguments of each run, as the scripts read the printed commands."""
    found = []
    for line in lines_of(*arguments, "--launcher", "print"):
        python, path, *flags = shlex.split(line)
        assert python == sys.executable and Path(path).is_file()
        script = load(Path(path).stem)
        args = tyro.cli(script.Args, args=flags)
        found.append((Path(path).stem, args))
    return found


def names_of(*arguments):
    """Names of the runs' folders, hashes of their settings."""
    names = [args.run_name for _, args in runs_of(*arguments)]
    assert len(set(names)) == len(names)  # or two processes would fight for one run
    return set(names)


KNOWN = {field.name for algo in ALGOS for field in fields(load(algo).Args)}


def holds(args, known, place=None):
    """The arguments have the known values, where the script has the argument; of a tuple, the one in the place."""
    assert known.keys() <= KNOWN  # else a misspelt name would hold of every script
    for name, value in known.items():
        value = value[place] if place is not None and isinstance(value, tuple) else value
        assert getattr(args, name, value) == value, name


def test_list_and_commands_agree(tmp_path):
    (tmp_path / "linked.sh").symlink_to(ROOT / "benchmark.sh")
    listing = benchmark(program=tmp_path / "linked.sh", cwd=tmp_path)  # from another folder, too
    assert listing.returncode == 0 and listing.stderr == ""
    rows = re.findall(r"^(\S+) .*? (\d+) +(\d+)M ", listing.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == list(load("experiments").EXPERIMENTS) and "\nsmoke " in listing.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "linked.sh"]
    sizes = {name: (int(runs), f"{steps}M") for name, runs, steps in rows}
    assert sizes["step-or-optimizations"] == (4 * 3 * 10, "120M")
    assert sizes["ablation"] == (16 * 4 * 5 * 2, "640M") and sizes["leave-one-out"] == (20 * 5, "100M")
    assert sizes["sample-regime"] == (3 * 3 * 3, "27M")
    assert sizes["algorithms"] == (5 * 4 * 3, "480M") and sizes["entropy"] == (3 * 3, "72M")
    assert sizes["epochs"] == (6 * 3, "18M")
    for name, runs, steps in rows:
        printed = lines_of(name, "--launcher", "print")
        total = [int(x) for line in printed for x in re.findall(r"--total-timesteps (\d+)", line)]
        assert len(total) == len(printed) == int(runs), name
        assert len({line.rpartition(" --run-name ")[2] for line in printed}) == int(runs)  # each in a folder of its own
        assert sum(total) == 1_000_000 * int(steps), name


def test_settings_of_implementation_matters():
    runs = runs_of("clipping", "--seeds", "1", "--env-version", "v4", "--envs", *ENVS)
    cases = list(product(enumerate(ENVS), PAPER.values()))
    assert len(runs) == len(cases) == 15
    for (algo, args), ((place, env), known) in zip(runs, cases):
        assert (args.env_id, algo) == (f"{env}-v4", known["algo"])
        holds(args, ALL_OF_IM)
        holds(args, {"entropy_coef": 0} | {k: x for k, x in known.items() if k != "algo"}, place)
    for algo, args in runs_of("definition", "--seeds", "1", "--envs", *ENVS):
        known = PAPER["PPO-M" if algo.startswith("ppo") else "TRPO"]
        holds(args, {k: x for k, x in known.items() if k != "algo"}, ENVS.index(args.env_id[:-3]))
    for name in ("gradients", "values", "landscapes"):
        runs = [args for algo, args in runs_of(name) if algo == "ppo" and args.reward_scale]
        rates = {args.env_id: (args.policy_lr, args.value_lr) for args in runs}
        assert rates == {"Walker2d-v5": (4e-4, 3e-4), "Humanoid-v5": (2.5e-4, 1e-4), "Hopper-v5": (4.5e-4, 2e-4)}
    schedules = {(args.env_id, args.max_kl, args.max_kl_final) for _, args in runs_of("kl-schedule")}
    ends = {("Walker2d-v5", 0.07, 0.04), ("Humanoid-v5", 0.1, 0.05), ("Hopper-v5", 0.04, 0.07)}
    assert schedules == ends | {(env, first, None) for env, first, _ in ends}


def test_settings_of_the_guide():
    runs = runs_of("algorithms", "--seeds", "1")
    assert {args.env_id for _, args in runs} == {f"{env}-v4" for env in ("HalfCheetah", "Ant", "Humanoid", "Hopper")}
    for algo, args in runs:
        holds(args, ALL_OF_GUIDE | GUIDE[algo])
        batch = args.num_envs * args.num_steps * args.checkpoint_every  # GUIDE's Table 3 has rewards at 1M steps
        assert batch == 999_424, algo
    coefficients = [(args.env_id, args.entropy_coef) for _, args in runs_of("entropy", "--seeds", "1")]
    assert coefficients == [("HalfCheetah-v4", x) for x in (0.1, 0.01, 0)]
    epochs = [(algo, args.policy_epochs, getattr(args, "value_epochs", None)) for algo, args in runs_of("epochs")]
    assert set(epochs) == {("a2c", n, n) for n in (1, 2, 5)} | {("reinforce", n, None) for n in (1, 2, 5)}


def test_settings_of_ablation_and_leave_one_out():
    runs = runs_of("ablation", "--seeds", "1", "--envs", "Humanoid")
    found = {(*(getattr(args, name) for name in NINE[:4]), args.policy_lr) for _, args in runs}
    assert found == set(product(*[(False, True)] * 4, (1e-4, 2.5e-4, 5e-4, 1e-3))) and len(runs) == 64
    assert {tuple(getattr(args, name) for name in NINE[4:]) for _, args in runs} == {(True, True, True, True, False)}
    assert not any(args.value_grad_clip for _, args in runs)
    runs = runs_of("leave-one-out", "--seeds", "1")
    found = {frozenset(name for name in NINE if getattr(args, name)) for _, args in runs}
    expected = {frozenset(), frozenset(NINE)} | {frozenset([x]) for x in NINE} | {frozenset(NINE) - {x} for x in NINE}
    assert found == expected and len(runs) == 20
    for _, args in runs:
        assert (args.policy_lr, args.value_lr) == (3e-4, 2.5e-4) and args.value_grad_clip == args.grad_clip
    defaults = load("ppo").Args()
    assert any(replace(args, run_name="") == defaults for _, args in runs)  # ppo.py as it is


def test_experiments_share_runs():
    few = "--envs", "Hopper", "--seeds", "2"
    clipping = names_of("clipping", *few)
    assert names_of("step-or-optimizations", *few) < clipping
    assert names_of("trust-region", *few) < clipping
    assert len(names_of("kl-schedule", *few) & clipping) == len(names_of("definition", *few) & clipping) / 2 == 2
    assert names_of("gradients", *few) == names_of("values", *few) < names_of("landscapes", *few)
    assert names_of("clipping", *few, "--set", "--no-compile") == clipping  # the machine does not name the run
    same = "--envs", "HalfCheetah", "--seeds", "1"
    assert len(names_of("algorithms", *same) & names_of("entropy", *same)) == 1


def test_options_reach_the_commands(tmp_path, capsys):
    odd = f"{tmp_path}/a 'b' $(touch {tmp_path}/injected)"
    for line in lines_of("landscapes", "--runs-dir", odd, "--launcher", "print"):
        assert shlex.split(line)[-4:-1] == ["--runs-dir", odd, "--run-name"]
    runs = runs_of("--seeds=3", "values", "--envs", "Hopper", "Walker2d", "Hopper", "--steps", "4096")
    assert len(runs) == 12 and {args.total_timesteps for _, args in runs} == {4096}
    assert [args.env_id for _, args in runs[:3:2]] == ["Hopper-v5", "Walker2d-v5"]
    changed = runs_of("values", "--set", "--gamma 0.9 --no-obs-norm", "--seeds", "1")
    assert {(args.gamma, args.obs_norm) for _, args in changed} == {(0.9, False)}
    assert capsys.readouterr().err == ""

    own = runs_of("values", "--envs", "environments:Bandit-v0", "--seeds", "1")
    assert "gets Hopper's" in capsys.readouterr().err
    runs_of("values", "--envs", "Ant", "--seeds", "1")
    assert "no settings for Ant in the papers' tables" in capsys.readouterr().err
    runs_of("entropy", "--envs", "Ant", "Walker2d", "--seeds", "1")  # whose settings are those of all environments
    assert capsys.readouterr().err == ""
    hoppers = runs_of("values", "--envs", "Hopper", "--seeds", "1")
    own, hoppers = ([replace(args, env_id="", run_name="") for _, args in x] for x in (own, hoppers))
    assert own == hoppers


def test_an_experiment_of_ones_own(tmp_path):
    path, papers = tmp_path / "mine.py", load("papers")
    record = 'EXPERIMENTS["mine"] = Experiment("me", "what is GAE worth?", ["PPO", "no-gae"], envs=["Hopper"])'
    agent = 'AGENTS["no-gae"] = "ppo", IM, PPO_STEP, PPO, {"all": "--gae-lambda 1"}'
    path.write_text(f"from papers import *\n{agent}\n{record}\n")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("EXPERIMENTS", "AGENTS"):
            patch.setattr(papers, name, known := dict(getattr(papers, name)))
            patch.setattr(load("experiments"), name, known)
        found = [args.gae_lambda for _, args in runs_of("mine", "--file", str(path), "--seeds", "1")]
        assert found == [0.95, 1]
        assert any(line.startswith("mine ") for line in lines_of("--file", str(path)))


def test_default_folders_tell_trials_apart():
    experiments = load("experiments")

    def folder(*arguments):
        args, passed_on = experiments.read_arguments(["clipping", *arguments])
        return str(experiments.default_out(args, experiments.EXPERIMENTS["clipping"], passed_on))

    assert folder() == folder("--seeds", "10", "--jobs", "3") == "results/clipping-v5"
    assert folder("--seeds", "2") == "results/clipping-seeds=2-v5"
    trials = [["--steps", "4096"], ["--envs", "Hopper"], ["--set", "--gamma 0.9"], ["--set", "--no-tanh"]]
    trials += [["--env-version", "v4"], ["--sizes", "paper"]]
    trials += [["--runs-dir", "other"], ["--file", "mine.py"], ["--first-seed", "2"], ["--", "--paired"]]
    assert len({folder(), *(folder(*trial) for trial in trials)}) == 11


REFUSED = {
    "nonsense": "unknown experiment nonsense; ./benchmark.sh",
    "cliping": "unknown experiment cliping; perhaps clipping; ./benchmark.sh",
    "clipping --set '--run-name x'": "--set: --run-name cannot be the same for every run",
    "clipping --set '--gamma 0.9 --seed 3'": "--set: --seed cannot be the same for every run",
    "clipping --envs Hoper": "--envs Hoper: Environment `Hoper` doesn't exist",
    "clipping --envs nowhere:My-v0": "--envs nowhere:My-v0: No module named 'nowhere'",
    "clipping --jobs 0": "--jobs 0: must be greater than 0",
    "clipping --seeds -1": "--seeds -1: must be",
    "clipping --steps -5": "--steps -5: must be",
    "clipping --set gamma": "gamma: does not begin with a flag",
    'clipping --set "--gamma \'0.9"': "--gamma '0.9: No closing quotation",
    "clipping --slurm partition": "--slurm partition: write KEY=VALUE",
    "values --launcher print -- --heldout-pairs 0": "--heldout-pairs 0: must be",
    "values --launcher print -- runs/mine": "-- runs/mine: options only; value.py gets the experiment's runs",
    "clipping --file nowhere.py": "--file nowhere.py: FileNotFoundError",
    "clipping --out /proc/no": "--out /proc/no: ",
    "epochs --steps 2048": "a2c.py: num_envs * num_steps = 16384 must fit into",  # though not of reinforce.py
    "--seeds 3": "name an experiment",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_is_refused(runs, capsys, arguments):
    assert REFUSED[arguments] in refusal(capsys, *shlex.split(arguments))
    assert list(runs.iterdir()) == []


TABLES = {
    "the settings of PPO name an unknown environment: Hoper": {"all": "--gamma 1", "Hoper": "--gamma 0.9"},
    "Hopper and Walker2d do not both set tanh": {"Walker2d": "--gamma 1", "Hopper": "--gamma 0.9 --no-tanh"},
}


@pytest.mark.parametrize("text", TABLES)
def test_mistakes_in_the_tables(monkeypatch, capsys, text):
    monkeypatch.setitem(load("experiments").AGENTS, "PPO", ("ppo", TABLES[text]))
    assert text in refusal(capsys, "clipping")


def test_diagnostics_understand_what_they_are_called_with():
    """Of every experiment, with every table of sizes: long before there is a run to measure."""
    module = load("experiments")
    calls = {call for experiment in module.EXPERIMENTS.values() for call in experiment.results}
    for call, sizes in product(calls, ("default", "paper", "small")):
        diagnostic, options = module.split_call(module.Args(sizes=sizes), call, [])
        args = tyro.cli(load(diagnostic).Args, args=[*options, "--labels", "A=ppo", "--out", "x", "--", "run"])
        assert args.runs == (Path("run"),) and args.labels == ("A=ppo",)


@pytest.fixture
def here(runs, monkeypatch):
    """An empty working directory; this Python; no compiler, so that runs begin at once."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CXX", "/nonexistent")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(runs / "cache"))
    return runs


def damage(folder):
    """A run that will fail, and how it is mended."""
    (folder / "checkpoints").mkdir(parents=True)
    checkpoint = folder / "checkpoints" / "iter_000000.pt"
    checkpoint.write_bytes(b"damaged")
    return checkpoint.unlink


def state_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def wait_until(holds, seconds):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def plan_of(folder, code):
    """A run whose command is a line of Python, which finds the run's folder in the working directory."""
    module = load("experiments")
    run = module.Run("PPO", "Hopper-v5", "ppo", ("-c", code))
    plan = module.Plan(run, folder.name, folder, finished=False, setting="ppo")
    folder.mkdir()
    return plan


@pytest.fixture
def local(here, monkeypatch):
    """The launcher of this machine, with short programs instead of trainings: `local(CODE, ...)` -> folders, logs."""
    module = load("experiments")
    monkeypatch.setattr(
        module.Plan, "command", property(lambda plan: shlex.join([sys.executable, *plan.run.flags, str(plan.folder)]))
    )
    (here / "logs").mkdir()

    def launch(*codes, jobs=1):
        plans = [plan_of(here / f"run{i}", code) for i, code in enumerate(codes)]
        thread = threading.Thread(target=module.launch_local, args=(here, jobs, plans))
        return plans, thread

    return launch


TRAINS = """if True:
    import sys
    from filelock import FileLock, Timeout
    try:
        with FileLock(sys.argv[1] + "/.lock", timeout=0):
            open(sys.argv[1] + "/done", "w")
    except Timeout:
        sys.exit(2)
"""


def test_a_run_that_another_process_trains_waits_and_does_not_count_as_failed(here, local, capsys):
    plans, thread = local(TRAINS, TRAINS, jobs=2)
    with open(plans[0].folder / ".lock", "a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        thread.start()
        wait_until(lambda: (plans[1].folder / "done").exists(), 60)
        time.sleep(1)
        assert thread.is_alive() and not (plans[0].folder / "done").exists()
    thread.join(60)
    assert (plans[0].folder / "done").exists()
    assert "2/2" in capsys.readouterr().err


def test_what_failed_is_counted_and_says_why(here, local, capsys):
    plans, thread = local("pass", "import sys; print('no such thing'); sys.exit(3)")
    thread.start()
    thread.join(60)
    load("experiments").report([plans[0]._replace(finished=True), plans[1]], here)
    said = capsys.readouterr().err
    assert "2/2" in said and "1 of 2 runs are not finished" in said and "PPO on Hopper-v5: 1 of 2" in said
    assert f"run1: no such thing ({here / 'logs' / 'run1.log'})" in said and "run0" not in said


def test_full_disk_is_an_error_of_the_launcher(here, local):
    plans, thread = local("pass")
    (here / "logs" / "run0.log").symlink_to("/dev/full")
    with pytest.raises(OSError) as full:
        thread.run()
    assert full.value.errno == errno.ENOSPC


def test_local_run_trains_what_is_missing_and_then_nothing(here):
    command = "kl-schedule --envs InvertedPendulum-v5 --seeds 1 --steps 2048 --jobs 2 --out results --set".split()
    command += ["--no-compile --value-epochs 1"]
    constant, schedule = (here / "runs" / args.run_name for _, args in runs_of(*command))
    mend = damage(schedule)
    result = benchmark(*command)
    assert result.returncode == 1 and "TRPO+schedule on InvertedPendulum-v5: 1 of 1" in result.stderr
    assert "iter_000000.pt is damaged" in result.stderr and f"{constant.name}.log" not in result.stderr
    assert labels(here / "results") == ["TRPO+"] and len(progress(constant)) == 1

    mend()
    before = state_of(constant)
    result = benchmark(*command)
    assert result.returncode == 0 and "1/1" in result.stderr, result.stderr
    assert state_of(constant) == before and labels(here / "results") == ["TRPO+", "TRPO+schedule"]

    before = state_of(here / "runs")
    result = benchmark(*command, "--launcher", "none")
    assert result.returncode == 0 and "2 runs, 2 of them finished" in result.stderr
    assert state_of(here / "runs") == before


def labels(out):
    return [cell["label"] for cell in json.loads((out / "rewards.json").read_text())["settings"]]


def test_interrupted_local_run_stops_its_children_and_says_how_to_resume(here):
    command = "epochs --envs InvertedPendulum-v5 --seeds 1 --steps 8000000 --jobs 2 --set --no-compile".split()
    process = subprocess.Popen([ROOT / "benchmark.sh", *command], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: process.poll() is not None or len(list(here.glob("runs/*/checkpoints/*.pt"))) > 1, 120)
    process.terminate()
    assert "the same command resumes" in process.communicate(timeout=60)[1]
    assert process.returncode == 130
    for path in here.glob("runs/*/.lock"):
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the script is gone


@pytest.fixture
def cluster():
    try:
        subprocess.run(["sinfo"], capture_output=True, check=True, timeout=10)  # without a cluster it tries for minutes
    except (OSError, subprocess.SubprocessError):
        (pytest.fail if "REQUIRE_SLURM" in os.environ else pytest.skip)("no Slurm answers; tests/slurm.sh starts one")


def slurm(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout


def test_slurm_array_with_a_failing_a_requeued_and_a_shared_run(cluster, here, request):
    settings = "--checkpoint-every 2 --no-compile --value-epochs 1"
    command = "kl-schedule --envs Hopper Walker2d --seeds 1 --steps 81920 --set".split() + [settings]
    names = [args.run_name for _, args in runs_of(*command)]
    broken, _, requeued, shared = (here / "runs" / name for name in names)
    damage(broken)
    submit = *command, *"--out results --launcher slurm --jobs 3 --slurm job-name=mine mem=1G".split()
    result = benchmark(*submit)
    assert result.returncode == 0, result.stderr
    array, table = re.fullmatch(r"job (\d+): 4 runs\njob (\d+): the results,.*\n", result.stdout).groups()
    request.addfinalizer(lambda: slurm("scancel", array, table))
    assert "ArrayTaskThrottle=3 JobName=mine " in slurm("scontrol", "show", "job", "-o", array)
    again = benchmark(*submit)
    assert again.returncode == 2 and f"job {array} still trains" in again.stderr
    other = benchmark(*command, *"--envs Walker2d --out other --launcher slurm --slurm mem=1G".split())  # shares runs
    assert other.returncode == 0, other.stderr
    jobs = ",".join([array, table, *re.findall(r"job (\d+)", other.stdout)])
    request.addfinalizer(lambda: slurm("scancel", *jobs.split(",")))

    wait_until(lambda: len(checkpoints(requeued)) > 2, 300)
    slurm("scancel", "--batch", "--signal=USR1", f"{array}_3")  # as shortly before the time limit
    wait_until(lambda: slurm("squeue", "-h", "-j", jobs) == "", 600)

    whole = [*shlex.split(lines_of(*command, "--launcher", "print")[2]), "--runs-dir", "whole"]
    subprocess.run(whole, check=True)
    assert_same(*(parameters(checkpoints(here / x / requeued.name)[-1]) for x in ("runs", "whole")))
    assert progress(requeued) == progress(here / "whole" / requeued.name) and len(progress(shared)) == 40
    tasks = [slurm("scontrol", "show", "job", "-o", f"{array}_{i}") for i in range(1, 5)]
    assert [re.search(r"JobState=(\w+)", x)[1] for x in tasks] == ["FAILED", "COMPLETED", "COMPLETED", "COMPLETED"]
    assert "Restarts=1" in tasks[2]
    assert "JobState=FAILED" in slurm("scontrol", "show", "job", "-o", table)  # the failure is not lost
    messages = (here / "results" / "logs" / "results.log").read_text()
    assert "1 of 4 runs are not finished" in messages and f"{broken.name}.log" in messages
    assert len(labels(here / "results")) == 3 and len(labels(here / "other")) == 2
