"""Whole runs: flags, determinism, checkpoints, interruption, learning."""

import dataclasses
import errno
import functools
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from conftest import (
    ALGOS,
    ROOT,
    assert_same,
    checkpoints,
    contents,
    flags_of,
    iterate,
    load,
    parameters,
    progress,
    start,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def command(algo, flags):
    return [sys.executable, str(ROOT / "algos" / f"{algo}.py"), *flags]


# Flag: settings in which it acts; what toggling it leaves alone; what, before all else, it must change.
FLAGS = {
    "value_clip": (dict(value_clip_eps=0.001), "networks experience policy_1", "value_1"),
    "reward_scale": (dict(), "networks obs actions", "rewards"),
    "orthogonal_init": (dict(), "", "networks"),
    "anneal_lr": (dict(), "networks experience policy_1 value_1", "value_2 policy_2"),
    "reward_clip": (dict(reward_clip_range=0.1), "networks obs actions", "rewards"),
    "obs_norm": (dict(), "networks", "obs"),
    "obs_clip": (dict(obs_clip_range=0.5), "networks", "obs"),
    "tanh": (dict(), "networks", "actions"),
    "grad_clip": (dict(max_grad_norm=0.01), "networks experience value_1", "policy_1"),
    "value_grad_clip": (dict(max_grad_norm=0.01), "networks experience policy_1", "value_1"),
}
CASES = [
    (algo, flag) for algo in ALGOS for flag in FLAGS if flag in {f.name for f in dataclasses.fields(load(algo).Args)}
]


@functools.cache
def trace(algo, **settings):
    """What three short iterations of training compute, by name."""
    script, args, state = start(algo, total_timesteps=3 * 64, num_steps=64, **settings)
    seen = {}
    for i in range(4):
        for name in ("policy", "value"):
            if hasattr(state, name):
                seen[f"{name}_{i}"] = script.flat_parameters(vars(state)[name])
        if i == 3:
            break
        experience, *_ = iterate(script, args, state)
        if i == 0:
            seen["networks"] = torch.cat(list(seen.values()))
            arrays = {k: experience[k] for k in ("obs", "actions", "rewards")}
            seen |= arrays | {"experience": np.concatenate([x.ravel() for x in arrays.values()])}
    return {name: torch.as_tensor(x) for name, x in seen.items()}


@pytest.mark.parametrize(("algo", "flag"), CASES)
def test_each_flag_acts_where_it_should_and_nowhere_else(algo, flag):
    settings, untouched, touched = FLAGS["value_grad_clip" if (algo, flag) == ("trpo_plus", "grad_clip") else flag]
    on, off = (trace(algo, **settings, **{flag: value}) for value in (True, False))
    same = {name for name in on if on[name].shape == off[name].shape and torch.equal(on[name], off[name])}
    assert same >= set(untouched.split()) & set(on)
    first = next(name for name in touched.split() if name in on)
    assert not same & {first, "policy_3", "value_3"}


REPLAYED = [(algo, "Hopper-v5", 2) for algo in ALGOS] + [("ppo", "environments:BriefAnt-v0", 3)]


@pytest.mark.parametrize(("algo", "env_id", "num_envs"), REPLAYED)
def test_contract_replays_training_and_a_checkpoint_is_everything(algo, env_id, num_envs, runs):
    """Restored where iteration 1 begins, three iterations later a state is all that the uninterrupted run's was."""
    script = load(algo)
    flags = flags_of(algo, env_id=env_id, num_envs=num_envs, total_timesteps=5 * 256 * num_envs)
    script.main([*flags, "--run-name", "a", "--checkpoint-every", "1"])
    saved = checkpoints(runs / "runs" / "a")
    assert [path.name for path in saved] == [f"iter_{i:06d}.pt" for i in range(len(saved))]

    checkpoint = script.load_checkpoint(saved[1])
    args = script.Args(**checkpoint["args"])
    state = script.initial_state(args, script.make_actors(args))
    script.restore(state, checkpoint)
    for row in progress(runs / "runs" / "a")[1:4]:
        *_, statistics = iterate(script, args, state)
        assert row["iteration"] == str(state.iteration - 1) and row["global_step"] == str(state.global_step)
        assert {k: str(v) for k, v in statistics.items()} == {k: row[k] for k in statistics}
    expected = contents(saved[4])
    script.save_checkpoint(args, runs / "runs" / "a", state)  # over the one that training wrote
    assert_same(contents(saved[4]), expected)


@pytest.mark.parametrize("algo", ALGOS)
def test_the_seed_decides_the_bits(algo):
    first, again, other = (trace.__wrapped__(algo, seed=seed) for seed in (1, 1, 2))  # anew, not remembered
    assert_same(first, again)
    assert not any(torch.equal(first[name], other[name]) for name in ("networks", "actions", "policy_3"))
    a, b, c = (start(algo, seed=seed)[2].rng.random() for seed in (1, 1, 2))
    assert a == b != c


KILLED = [
    ("ppo", "Hopper-v5", 1, [signal.SIGKILL, signal.SIGINT]),
    ("ppo", "Ant-v5", 3, [signal.SIGINT]),
    ("reinforce", "Hopper-v5", 2, [signal.SIGKILL]),
]


@pytest.mark.parametrize(("algo", "env_id", "num_envs", "signs"), KILLED)
def test_killed_run_continues_to_the_same_bits(algo, env_id, num_envs, signs, runs):
    flags = flags_of(algo, env_id=env_id, num_envs=num_envs, total_timesteps=16 * 256 * num_envs)
    load(algo).main([*flags, "--run-name", "whole"])
    folder, whole = runs / "runs" / "killed", runs / "runs" / "whole"
    flags += ["--run-name", "killed"]
    for enough, sign in zip((2, 4), signs):
        again = command(algo, [*flags, "--checkpoint-every", "3"])
        process = subprocess.Popen(again, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        while len(checkpoints(folder)) < enough:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(sign)
        assert process.wait() == {signal.SIGKILL: -9, signal.SIGINT: 130}[sign]
        with open(folder / "progress.csv", "a") as file:
            file.write("19,5120,")  # a row that was being written
    time.sleep(1)  # TensorBoard orders files by the second they were begun in; a new process needs longer to begin one
    load(algo).main(flags)
    assert_same(contents(checkpoints(folder)[-1]), contents(checkpoints(whole)[-1]))
    assert progress(folder) == progress(whole)
    assert len(progress(whole)) >= 14
    logged = EventAccumulator(str(folder)).Reload().Scalars("train/mean_kl")  # as TensorBoard shows it
    assert [x.step for x in logged] == [int(row["global_step"]) for row in progress(whole)]
    assert [x.value for x in logged] == pytest.approx([float(row["mean_kl"]) for row in progress(whole)])


@pytest.mark.xdist_group("compiled")  # the worker that compiles these updates anyway
def test_compiled_run_continues_to_the_same_bits_in_another_process(runs):
    small = dict(compile=True, policy_hidden="4", value_hidden="4", num_steps=64, total_timesteps=256)
    again = command("ppo", flags_of("ppo", run_name="a", checkpoint_every=1, **small))
    subprocess.run(again, check=True)
    *_, third, last = checkpoints(runs / "runs" / "a")
    whole = contents(last)
    third.unlink()
    last.unlink()
    subprocess.run(again, check=True)
    assert_same(contents(last), whole)


def test_edited_script_and_other_versions_continue_and_say_so(runs, capsys):
    script, flags = load("ppo"), flags_of("ppo", run_name="a", checkpoint_every=1)
    script.main(flags)
    folder = runs / "runs" / "a"
    for change, text in (
        (dict(script="0" * 64), "script was 00000000, is "),
        (dict(versions={"torch": "1.0"}), "torch was 1.0, is "),
        (dict(), "compile was True, is False"),
    ):
        checkpoints(folder)[-1].unlink()  # so that there is an iteration to go
        newest = checkpoints(folder)[-1]
        checkpoint = torch.load(newest, weights_only=True)
        checkpoint["args"]["compile"] = not change
        torch.save(checkpoint | change, newest)
        capsys.readouterr()
        script.main(flags)
        lines = [line for line in capsys.readouterr().err.splitlines() if "not the bits of" in line]
        assert len(lines) == 1 and text in lines[0]
        assert len(progress(folder)) == 3


def test_a_file_system_without_locks_is_a_warning(runs, capsys, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(load("ppo").fcntl, "flock", flock)
    load("ppo").main(flags_of("ppo", run_name="a"))
    assert "No locks available" in capsys.readouterr().err
    assert len(progress(runs / "runs" / "a")) == 3


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """Flags of a run of 20 iterations, and its folder."""
    flags = flags_of("ppo", total_timesteps=20 * 256, policy_hidden="8", value_hidden="8", checkpoint_every=1)
    folder = tmp_path_factory.mktemp("runs")
    load("ppo").main([*flags, "--runs-dir", str(folder), "--run-name", "whole"])
    return flags, folder / "whole"


@pytest.mark.parametrize("room", [100, 6_000, 20_000])  # not for config.json; the first checkpoint; the logs
def test_a_full_disk_gets_one_line_and_loses_nothing(room, long_run, runs, capsys):
    flags, whole = long_run
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, unlimited[1]))  # what then fails, fails as on a full disk
    try:
        with pytest.raises(SystemExit) as ended:
            load("ppo").main(flags)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    message = capsys.readouterr().err
    assert ended.value.code == 1 and "Traceback" not in message
    assert message.splitlines()[-1].endswith("the same command continues from the last checkpoint")
    load("ppo").main(flags)
    [folder] = (runs / "runs").iterdir()
    assert_same(contents(checkpoints(folder)[-1]), contents(checkpoints(whole)[-1]))
    assert progress(folder) == progress(whole) and len(progress(whole)) == 20


def test_finished_run_is_left_alone_and_overwrite_starts_anew(runs, capsys):
    flags, script = flags_of("ppo", total_timesteps=512), load("ppo")
    script.main(flags)
    [folder] = (runs / "runs").iterdir()
    assert folder.name == (
        "Hopper-v5__ppo__total-timesteps=512__num-steps=256__num-minibatches=4__policy-epochs=2__value-epochs=2__seed1"
    )
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as ended:
        script.main(flags)
    assert ended.value.code == 0 and "is finished" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before
    script.main([*flags, "--overwrite"])
    after = {path for path in folder.rglob("*") if path.is_file()}
    assert len(after) == len(before) and all(path.stat().st_mtime_ns > before.get(path, 0) for path in after)
    assert len(progress(folder)) == 2


def test_long_names_end_in_a_hash(runs):
    script = load("ppo")
    names = [script.default_run_name(script.Args(policy_hidden=(64,) * 40, entropy_coef=x, seed=7)) for x in (0.0, 0.1)]
    assert names[0] != names[1]
    assert all(len(n) < 150 and n.startswith("Hopper-v5__ppo__") and n.endswith("__seed7") for n in names)


@pytest.mark.parametrize("name", ["Clock", "Counter", "Timed"])
def test_environment_with_a_state_of_its_own_continues_with_new_episodes_and_a_warning(name, runs, capsys):
    script, flags = load("ppo"), flags_of("ppo", env_id=f"environments:{name}-v0")
    script.main([*flags, "--checkpoint-every", "1"])
    [folder] = (runs / "runs").iterdir()
    checkpoints(folder)[-1].unlink()
    script.main(flags)
    assert "new episodes, not the same bits" in capsys.readouterr().err
    assert len(progress(folder)) == 3


def test_nonfinite_state_stops_the_run_before_it_is_saved(runs, capsys):
    with pytest.raises(SystemExit) as ended:
        load("ppo").main(flags_of("ppo", env_id="environments:Nan-v0", checkpoint_every=1, total_timesteps=2560))
    assert ended.value.code == 1 and "iteration 2:" in capsys.readouterr().err
    [folder] = (runs / "runs").iterdir()
    assert checkpoints(folder)[-1].name == "iter_000002.pt"
    assert all(x.isfinite().all() for x in parameters(checkpoints(folder)[-1]).values())


def test_without_a_compiler_it_runs_eagerly_and_says_so(runs):
    environment = {**os.environ, "CXX": "/nonexistent", "TORCHINDUCTOR_CACHE_DIR": str(runs / "cache")}
    flags = flags_of("ppo", compile=True, total_timesteps=256)
    result = subprocess.run(command("ppo", flags), env=environment, capture_output=True, text=True, check=True)
    assert "going on with --no-compile" in result.stderr


# Eager: compiled is the same (test_mathematics.py). PPO-M, PPO-NoClip and TRPO follow from test_algorithms.py: each is,
# to the bit, one of these with other flags.
LEARNING = {
    "ppo": "--total-timesteps 25000 --num-steps 512 --policy-epochs 5 --value-epochs 5 --policy-lr 1e-3",
    "trpo_plus": "--total-timesteps 20000 --num-steps 1024 --value-epochs 5 --value-lr 1e-3",
    "a2c": "--total-timesteps 30000 --num-envs 2 --num-steps 128 --policy-lr 4e-3 --value-lr 4e-3",
    "reinforce": "--total-timesteps 100000 --num-steps 512 --policy-lr 1e-3",
    "vmpo": "--total-timesteps 25000 --num-envs 1 --num-steps 512 --policy-epochs 5 --value-epochs 5 --policy-lr 3e-3",
}


@pytest.mark.parametrize("algo", LEARNING)
def test_learns_inverted_pendulum(algo, runs):
    flags = "--env-id InvertedPendulum-v5 --num-minibatches 4 --no-compile"
    load(algo).main(f"{flags} {LEARNING[algo]}".split())
    [folder] = (runs / "runs").iterdir()
    returns = [float(row["episodic_return"]) for row in progress(folder) if row["episodic_return"]]
    assert np.mean(returns[-5:]) >= 900  # the best is 1000; that no episode ended in an iteration means a good one
