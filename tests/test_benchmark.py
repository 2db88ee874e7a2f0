"""benchmark.sh and diagnostics/experiments.py: tables against the papers', launchers against runs that are broken,
interrupted, requeued or shared."""

import fcntl
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from dataclasses import fields
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import papers
import pytest
import tyro
from conftest import ALGOS, ROOT, checkpoints, last_line, load, progress

experiments = load("experiments")
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # benchmark.sh takes the active Python
KNOWN = {field.name for algo in ALGOS for field in fields(load(algo).Args)}


def benchmark(*words):
    return subprocess.run([ROOT / "benchmark.sh", *words], capture_output=True, text=True)


def call(*words):
    """Calls experiments.py here: a process of its own would take a second to begin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["experiments.py", *words])
        experiments.lab.run_program(experiments.main)


def runs_of(*words):
    args = experiments.read_arguments(list(words))
    return experiments.make_runs(args, experiments.EXPERIMENTS[args.name])


def names_of(*words):
    return [run.folder.name for run in runs_of(*words)]


# Tables --------------------------------------------------------------------------------------------------------------

# Implementation Matters, Tables 4 to 6 and what the released configurations add, in the order of ENVS.
ENVS = ("Walker2d", "Humanoid", "Hopper")
NINE = "value_clip reward_scale orthogonal_init anneal_lr reward_clip obs_norm obs_clip tanh grad_clip".split()
ON = dict.fromkeys(NINE, True) | dict(reward_clip_range=10, obs_clip_range=10, value_grad_clip=False)
RELEASED = {name: name in ("obs_norm", "tanh") for name in NINE} | dict(gae_lambda=0.95, value_grad_clip=False)
PPO = ON | dict(policy_lr=(4e-4, 1.5e-4, 3e-4), value_lr=(3e-4, 1e-4, 2.5e-4), value_clip=(True, True, False))
PPO |= dict(algo="ppo", grad_clip=False, gae_lambda=0.95, clip_eps=0.2)
PPO_M = RELEASED | dict(algo="ppo", policy_lr=(1e-4, 9e-5, 1.7e-4), value_lr=(2e-4, 4e-4, 4e-4))
TRPO = RELEASED | dict(algo="trpo_plus", max_kl=(0.04, 0.07, 0.13), value_lr=(3e-4, 3e-4, 2e-4))
TRPO_PLUS = ON | dict(algo="trpo_plus", max_kl=(0.07, 0.1, 0.04), max_kl_final=None, value_lr=(1e-4, 5e-5, 2e-4))
TRPO_PLUS |= dict(gae_lambda=(0.95, 0.85, 0.95), value_clip=(False, True, False), orthogonal_init=(True, False, True))
TRPO_PLUS |= dict(anneal_lr=False, grad_clip=False)
NOCLIP = ON | dict(algo="ppo_noclip", policy_lr=(7.25e-5, 2e-5, 6e-5), value_lr=(6e-4, 5e-5, 4e-4))
NOCLIP |= dict(gae_lambda=(0.85, 0.85, 0.925), entropy_coef=(-0.01, 0.005, -0.005), max_grad_norm=(0.1, 0.5, 4))
NOCLIP |= dict(reward_scale_by=("rewards", "returns", "rewards"), reward_clip_range=(30, 10, 2.5))
NOCLIP |= dict(obs_clip=(False, True, True), value_clip=(False, True, False), orthogonal_init=(True, False, True))
NOCLIP |= dict(anneal_lr=(True, False, True))
ALL_OF_IM = dict(num_steps=2048, num_envs=1, num_minibatches=32, gamma=0.99, total_timesteps=1_000_000)
ALL_OF_IM |= dict(value_epochs=10, policy_epochs=10, value_hidden=(64, 64), policy_hidden=(64, 64), entropy_coef=0)
ALL_OF_IM |= dict(fisher_fraction=0.1, cg_steps=10, cg_damping=0.1, backtrack_steps=10, bootstrap_truncation=True)
# The Definitive Guide, Table 2 and Appendix A
GUIDE = dict(policy_hidden=(32,) * 4, value_hidden=(256,) * 5, tanh=False, activation_without_tanh="silu", num_envs=8)
GUIDE |= dict(bound_action="tanh", policy_lr=3e-4, value_lr=3e-4, anneal_lr=False, grad_clip=True, value_grad_clip=True)
GUIDE |= dict(max_grad_norm=0.5, obs_norm=True, obs_clip=True, obs_clip_range=10, reward_clip_range=10, gamma=0.99)
GUIDE |= dict(total_timesteps=8_000_000, num_steps=2048, reward_scale=True, num_minibatches=8, gae_lambda=0.95)
GUIDE |= dict(policy_epochs=10, value_epochs=10, entropy_coef=0, clip_eps=0.2, max_kl=0.01, backtrack_ratio=0.8)
GUIDE |= dict(cg_damping=0.1, eps_temperature=0.01, eps_std=5e-5)
A2C = GUIDE | dict(policy_epochs=1, value_epochs=1, entropy_coef=0.1)
REINFORCE = GUIDE | dict(policy_epochs=1, num_envs=1, num_minibatches=1)


def holds(run, known):
    """The arguments have the known values, where the script has the argument; of a tuple, the one of the place."""
    assert known.keys() - {"algo"} <= KNOWN  # else a misspelt name would hold of every script
    place = ENVS.index(run.args.env_id[:-3]) if run.args.env_id[:-3] in ENVS else 0
    for name, x in known.items():
        x = x[place] if isinstance(x, tuple) and "hidden" not in name else x
        assert getattr(run if name == "algo" else run.args, name, x) == x, (run.agent, name)


def test_settings_of_implementation_matters():
    tables = {"PPO": PPO, "PPO-M": PPO_M, "TRPO": TRPO, "TRPO+": TRPO_PLUS, "PPO-NoClip": NOCLIP}
    found = runs_of("clipping", "--seeds", "1", "--env-version", "v4", "--envs", *ENVS)
    assert [(run.args.env_id, run.agent) for run in found] == [*product([f"{env}-v4" for env in ENVS], tables)]
    for run in found:
        holds(run, ALL_OF_IM | tables[run.agent])
    for run in runs_of("definition", "--seeds", "1"):
        known = {name: x for name, x in tables[run.agent.removesuffix("-defined")].items() if name != "algo"}
        holds(run, ALL_OF_IM | known)
    rates = {x.args.env_id: (x.args.policy_lr, x.args.value_lr) for x in runs_of("values") if x.agent == "CL-PPO"}
    assert rates == {"Walker2d-v5": (4e-4, 3e-4), "Humanoid-v5": (2.5e-4, 1e-4), "Hopper-v5": (4.5e-4, 2e-4)}
    schedules = {(x.args.env_id, x.args.max_kl, x.args.max_kl_final) for x in runs_of("kl-schedule")}
    ends = {("Walker2d-v5", 0.07, 0.04), ("Humanoid-v5", 0.1, 0.05), ("Hopper-v5", 0.04, 0.07)}
    assert schedules == ends | {(env, first, None) for env, first, _ in ends}


def test_settings_of_the_guide():
    found = runs_of("algorithms", "--seeds", "1")
    assert {run.args.env_id for run in found} == {f"{x}-v4" for x in ("HalfCheetah", "Ant", "Humanoid", "Hopper")}
    for run in found:
        holds(run, dict(a2c=A2C, reinforce=REINFORCE).get(run.algo, GUIDE))
        batch = run.args.num_envs * run.args.num_steps
        assert batch * run.args.checkpoint_every == 999_424  # GUIDE's Table 3 has rewards at 1M steps
    coefficients = [(x.args.env_id, x.args.entropy_coef) for x in runs_of("entropy", "--seeds", "1")]
    assert coefficients == [("HalfCheetah-v4", x) for x in (0.1, 0.01, 0)]
    epochs = {(x.algo, x.args.policy_epochs, getattr(x.args, "value_epochs", None)) for x in runs_of("epochs")}
    assert epochs == {("a2c", n, n) for n in (1, 2, 5)} | {("reinforce", n, None) for n in (1, 2, 5)}


def test_settings_of_ablation_and_leave_one_out():
    found = [x.args for x in runs_of("ablation", "--seeds", "1")]
    switched = {(*(getattr(args, name) for name in NINE), args.policy_lr) for args in found}
    off_and_on, rates = [(False, True)] * 4, (1e-4, 2.5e-4, 5e-4, 1e-3)
    assert switched == {*product(*off_and_on, [True], [True], [True], [True], [False], rates)}
    found = [x.args for x in runs_of("leave-one-out", "--seeds", "1")]
    switched = {frozenset(name for name in NINE if getattr(args, name)) for args in found}
    assert switched == {frozenset(x) for name in NINE for x in ([], NINE, [name], {*NINE} - {name})}
    assert {(x.policy_lr, x.value_lr, x.value_grad_clip == x.grad_clip) for x in found} == {(3e-4, 2.5e-4, True)}
    assert vars(load("ppo").Args()) in [vars(args) | dict(run_name="") for args in found]  # ppo.py as it is


def test_diagnostics_understand_what_they_are_called_with():
    """Of every experiment, long before there is a run to measure."""
    for call in {call for experiment in papers.EXPERIMENTS.values() for call in experiment.results}:
        diagnostic, *options = shlex.split(call)
        args = tyro.cli(load(diagnostic).Args, args=[*options, "--labels", "PPO", "--out", "x", "--", "run"])
        assert args.runs == (Path("run"),) and args.labels == ("PPO",)


# Runs ----------------------------------------------------------------------------------------------------------------

NAMES = """
Hopper-v4__a2c__6bda997dc017 Hopper-v4__ppo__25e7c9b10939 Hopper-v4__reinforce__f467e55e4c41
Hopper-v4__trpo_plus__ee0da0c404dd Hopper-v4__vmpo__01b1f5193b2a Hopper-v5__ppo__4e0d2832cae5
Hopper-v5__ppo__d22894991c93 Hopper-v5__ppo_m__44136fa355b3 Hopper-v5__ppo_noclip__ced164ea1ddb
Hopper-v5__trpo__44136fa355b3 Hopper-v5__trpo_plus__c36108a553e6 Hopper-v5__trpo_plus__d68ad6d15bf4
"""


def test_names_of_runs_stay():
    """Else the runs that users have would be trained again. Experiments share the runs that they have in common."""
    one = "--envs", "Hopper", "--seeds", "1"
    clipping, definition = {*names_of("clipping", *one)}, {*names_of("definition", *one)}
    names = clipping | definition | {*names_of("algorithms", *one)}
    assert names == {f"{name}__seed1" for name in NAMES.split()}
    assert {*names_of("step-or-optimizations", *one)} < clipping and len(definition & clipping) == 2
    assert {*names_of("clipping", *one, "--set", "--no-compile")} == clipping  # the machine does not name the run


def test_list_and_runs_agree(runs):
    (runs / "linked.sh").symlink_to(ROOT / "benchmark.sh")  # it works from another folder
    listing = subprocess.run(runs / "linked.sh", capture_output=True, text=True)
    rows = re.findall(r"^(\S+) .*? (\d+) +(\d+)M ", listing.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == list(papers.EXPERIMENTS) and listing.stderr == ""
    assert ("ablation", "640", "640") in rows and ("algorithms", "60", "480") in rows
    for name, count, _ in rows:  # each run has a name of its own, or two processes would fight for one
        assert len({*names_of(name, "--seeds", "1")}) * papers.EXPERIMENTS[name].seeds == int(count), name


def test_options_reach_the_commands(tmp_path, capsys):
    odd = f"{tmp_path}/a 'b' $(touch {tmp_path}/injected)"
    few = "values", "--envs", "Hopper", "Walker2d", "Hopper", "--first-seed", "2", "--seeds", "3", "--steps", "4096"
    options = *few, "--set", "--gamma 0.9 --no-obs-norm --policy-hidden 8 8", "--runs-dir", odd
    found = runs_of(*options)
    call(*options, "--launcher", "print")
    for line, run in zip(capsys.readouterr().out.splitlines(), found, strict=True):
        python, path, *flags = shlex.split(line)
        assert (python, path) == (sys.executable, str(ROOT / "algos" / f"{run.algo}.py"))
        assert vars(tyro.cli(load(run.algo).Args, args=flags)) == vars(run.args)
    changed = {(x.total_timesteps, x.gamma, x.obs_norm, x.policy_hidden, x.runs_dir) for x in [y.args for y in found]}
    assert changed == {(4096, 0.9, False, (8, 8), odd)}
    assert [(x.args.seed, x.args.env_id) for x in found[::2]] == [*product((2, 3), ("Hopper-v5", "Walker2d-v5"))]
    runs_of("entropy", "--envs", "Ant", "Walker2d", "--seeds", "1")  # whose settings are those of all environments
    assert capsys.readouterr().err == ""
    one, hopper = (runs_of("values", "--seeds", "1", "--envs", x)[0] for x in ("environments:Bandit-v0", "Hopper"))
    assert "no settings for environments:Bandit-v0 in the papers' tables; it gets Hopper's" in capsys.readouterr().err
    assert vars(one.args) == vars(hopper.args) | dict(env_id=one.args.env_id, run_name=one.args.run_name)
    assert one.folder != hopper.folder


def test_a_finished_run_of_another_default_is_refused(runs, monkeypatch, capsys):
    words, saved = ("leave-one-out", "--seeds", "1"), dict(global_step=10**6, args=dict(gamma=0.99))
    first = runs_of(*words)[0]
    (first.folder / "checkpoints").mkdir(parents=True)
    (first.folder / "checkpoints" / "iter_000488.pt").touch()
    monkeypatch.setattr(experiments.lab.load_script(first.script), "load_checkpoint", lambda path: saved)
    assert [run.finished for run in runs_of(*words)][:2] == [True, False]
    saved["args"]["gamma"] = 0.9
    with pytest.raises(SystemExit):
        runs_of(*words)
    assert "another default: gamma was 0.9, is 0.99" in capsys.readouterr().err


def test_results_are_of_finished_runs_of_one_environment_but_for_the_rewards(runs, monkeypatch):
    experiment = papers.Experiment("", "", ["PPO", "TRPO"], ["rewards", "evaluate"], 1, 4096, ["Hopper", "Swimmer"])
    args, calls = experiments.read_arguments(["clipping"]), []
    found = experiments.make_runs(args, experiment)
    found = [run._replace(finished=done) for run, done in zip(found, (False, True, True, False))]
    for run in found[:3]:  # the last one has not begun
        run.folder.mkdir(parents=True)
        (run.folder / "config.json").touch()
    monkeypatch.setattr(experiments, "call_diagnostic", lambda command: calls.append(command) or 0)
    assert experiments.make_results(args, experiment, found, ["--paired"]) == 0
    measured = [(Path(x[1]).stem, "--paired" in x, x[x.index("--") + 1 :]) for x in calls]
    of = [[str(run.folder) for run in group] for group in (found[:3], found[1:2], found[2:3])]
    assert measured == [("rewards", True, of[0]), ("evaluate", False, of[1]), ("evaluate", False, of[2])]


def test_tasks_of_a_slurm_array_share_more_runs_than_an_array_may_have(monkeypatch):
    jobs, args = [], SimpleNamespace(name="x", out=Path("out"), jobs=50, slurm=())
    monkeypatch.setattr(experiments, "submit", lambda _, command, *options: jobs.append([command, *options]) or "7")
    monkeypatch.setattr(experiments.shutil, "which", lambda name: name)
    monkeypatch.setattr(experiments.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="2\n"))
    found = [SimpleNamespace(finished=i not in (3, 1003, 1200)) for i in range(1500)]
    experiments.launch_slurm(args, found, ["x"], [])
    train, results = jobs
    assert "--array=4,201%50" in train and f"{experiments.SHARE}=$SLURM_ARRAY_TASK_ID/1000 " in train[0]
    assert {"--dependency=afterany:7", "--cpus-per-task=2"} <= {*results}


def test_an_experiment_of_ones_own(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(papers.EXPERIMENTS, "mine", None)  # which takes away in the end what the file adds
    record = 'EXPERIMENTS["mine"] = Experiment("me", "and A2C?", ["PPO", "A3C"], ["value"], envs=["Hopper"])'
    (tmp_path / "mine.py").write_text(f"from papers import *\n{record}\n")
    line = last_line(capsys, 2, call, "mine", "--file", str(tmp_path / "mine.py"))
    assert "mine names an unknown agent: A3C" in line
    (tmp_path / "ppo.py").write_text((ROOT / "algos/ppo.py").read_text())  # its runs are not those of algos/ppo.py
    monkeypatch.setitem(papers.AGENTS, "A3C", (f"{tmp_path}/ppo.py", *papers.AGENTS["PPO"][1:]))
    assert len({*names_of("mine", "--seeds", "1")}) == 2
    assert f"{tmp_path}/ppo.py: the diagnostics of several" in last_line(capsys, 2, call, "mine")


REFUSED = {
    "nonsense": "unknown experiment nonsense; ./benchmark.sh",
    "clipping --set '--gamma 0.9 --seed 3'": "--set: --seed cannot be the same for every run",
    "clipping --set '--gamma 2'": "PPO on Walker2d: --gamma 2.0 must lie between",
    'clipping --set "--gamma \'0.9"': "PPO on Walker2d: No closing quotation",
    "reward-scaling --set --no-value-clip": "PPO-scaled-clip and PPO-scaled are the same on Hopper-v4",
    "clipping --envs Hoper": "PPO on Hoper: Environment `Hoper` doesn't exist",
    "clipping --jobs 0": "--jobs 0: must be greater than 0",
    "clipping --first-seed 11": "--first-seed 11: greater than the last, 10",
    "values --launcher print -- runs/mine": "-- runs/mine: the experiment gives value.py its runs, labels and --out",
    "clipping --file nowhere.py": "--file nowhere.py: FileNotFoundError",
    "clipping --out /proc/no": "/proc/no",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused(runs, capsys, words):
    with pytest.raises(SystemExit) as refused:
        call(*shlex.split(words))
    [line] = [x for x in capsys.readouterr().err.splitlines() if ": note: " not in x]
    assert refused.value.code == 2 and REFUSED[words] in line and list(runs.iterdir()) == []


# Launchers -----------------------------------------------------------------------------------------------------------


def damage(folder):
    """Makes the run fail until the checkpoint, which is returned, is deleted."""
    (folder / "checkpoints").mkdir(parents=True)
    (checkpoint := folder / "checkpoints/iter_000000.pt").write_text("damaged")
    return checkpoint


def wait_until(holds, seconds):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_run_that_another_process_trains_waits_and_holds_nothing_up(runs, monkeypatch, capsys):
    """Even if that process began after it was asked for. Here runs are lines of Python that take the lock."""
    code = "import filelock as f, sys; x = sys.argv[1]; f.FileLock(x + '/.lock', 0).acquire(); open(x + '/done', 'x')"
    monkeypatch.setattr(experiments.Run, "command", property(lambda run: [sys.executable, "-c", code, str(run.folder)]))
    first, second = (experiments.Run("", "", None, runs / x, runs / f"{x}.log", False) for x in ("first", "second"))
    first.folder.mkdir()
    second.folder.mkdir()
    answers, in_use = [False], experiments.in_use
    monkeypatch.setattr(experiments, "in_use", lambda folder: answers.pop() if answers else in_use(folder))
    with open(first.folder / ".lock", "a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        thread = threading.Thread(target=experiments.launch_local, args=(1, [first, second]))
        thread.start()
        wait_until((second.folder / "done").exists, 60)
        assert thread.is_alive() and "Timeout" in first.log.read_text()
    thread.join(60)
    assert (first.folder / "done").exists() and "2/2" in capsys.readouterr().err


def agents(out):
    return [cell["label"] for cell in json.loads((out / "rewards.json").read_text())["settings"]]


def test_local_run_trains_what_is_missing_and_then_nothing(runs):
    command = "kl-schedule --envs InvertedPendulum-v5 --seeds 1 --steps 256 --jobs 2 --set".split()
    command += ["--num-steps 256 --num-minibatches 2 --no-compile --value-epochs 1"]
    constant, schedule = (run.folder for run in runs_of(*command))
    checkpoint, out = damage(schedule), runs / "results/kl-schedule"
    result = benchmark(*command)
    assert result.returncode == 1 and "1 of 2 runs are not finished" in result.stderr
    assert "TRPO+ on" not in result.stderr
    assert "TRPO+schedule on InvertedPendulum-v5, seed 1: trpo_plus.py: runs/" in result.stderr
    assert "is damaged, or State has" in result.stderr
    assert f"--- ended with status 2 (results/kl-schedule/logs/{schedule.name}.log)" in result.stderr
    assert agents(out) == ["TRPO+"] and len(progress(constant)) == 1

    checkpoint.unlink()
    before = {path: path.stat().st_mtime_ns for path in constant.rglob("*")}
    result = benchmark(*command)
    assert result.returncode == 0 and "1/1" in result.stderr, result.stderr
    assert {path: path.stat().st_mtime_ns for path in constant.rglob("*")} == before
    assert agents(out) == ["TRPO+", "TRPO+schedule"]


def test_interrupted_local_run_stops_its_children_and_says_how_to_resume(runs):
    command = "epochs --envs InvertedPendulum-v5 --seeds 1 --steps 8000000 --jobs 2 --set --no-compile".split()
    process = subprocess.Popen([ROOT / "benchmark.sh", *command], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: process.poll() is not None or len(list(runs.glob("runs/*/checkpoints/*.pt"))) > 1, 120)
    process.terminate()
    assert "the same command resumes" in process.communicate(timeout=60)[1]
    assert process.returncode == 130
    for path in runs.glob("runs/*/.lock"):
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the script is gone


def slurm(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout


def test_slurm_array_with_a_failing_and_a_requeued_run(runs, request):
    try:
        subprocess.run(["sinfo"], capture_output=True, check=True, timeout=10)  # without a cluster it tries for minutes
    except (OSError, subprocess.SubprocessError):
        (pytest.fail if "REQUIRE_SLURM" in os.environ else pytest.skip)("no Slurm answers; tests/slurm.sh starts one")
    command = "kl-schedule --envs Hopper Walker2d --seeds 1 --steps 81920 --out results --set".split()
    command += ["--checkpoint-every 2 --no-compile --value-epochs 1"]
    broken, finished, requeued, last = (run.folder for run in runs_of(*command))
    damage(broken)
    result = benchmark(*command, *"--launcher slurm --jobs 3 --slurm mem=1G time=30".split())
    assert result.returncode == 0, result.stderr
    array, table = re.fullmatch(r"job (\d+): 4 runs\njob (\d+): the results, when .*\n", result.stdout).groups()
    request.addfinalizer(lambda: slurm("scancel", array, table))
    shown = slurm("scontrol", "show", "job", "-o", array)
    assert "ArrayTaskThrottle=3 " in shown and "TimeLimit=00:30:00 " in shown
    wait_until(lambda: len(checkpoints(requeued)) > 2, 300)
    slurm("scancel", "--batch", "--signal=USR1", f"{array}_3")  # as shortly before the time limit
    wait_until(lambda: slurm("squeue", "-h", "-j", f"{array},{table}") == "", 600)

    tasks = [slurm("scontrol", "show", "job", "-o", f"{array}_{i}") for i in range(1, 5)]
    assert [re.search(r"JobState=(\w+)", x)[1] for x in tasks] == ["FAILED", "COMPLETED", "COMPLETED", "COMPLETED"]
    assert "Restarts=1" in tasks[2] and [len(progress(x)) for x in (finished, requeued, last)] == [40] * 3
    assert "JobState=FAILED" in slurm("scontrol", "show", "job", "-o", table)  # the failure is not lost
    messages = Path("results/logs/kl-schedule-results-1.log").read_text()
    assert "1 of 4 runs are not finished" in messages and f"{broken.name}.log" in messages
    assert len(agents(runs / "results")) == 3
