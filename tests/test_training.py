"""Whole runs: flags, determinism, checkpoints, interruption, learning."""

import dataclasses
import errno
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from conftest import ALGOS, ROOT, assert_same, checkpoints, flags_of, iterate, load, parameters, progress, start


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
    "grad_clip": (dict(max_grad_norm=0.01), "networks experience", "policy_1"),
    "value_grad_clip": (dict(max_grad_norm=0.01), "networks experience policy_1", "value_1"),
}
CASES = [
    (algo, flag) for algo in ALGOS for flag in FLAGS if flag in {f.name for f in dataclasses.fields(load(algo).Args)}
]


def trace(algo, **settings):
    """What three iterations of training compute, by name."""
    script, args, state = start(algo, **settings)
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


@pytest.mark.parametrize("algo", ALGOS)
def test_contract_replays_training_and_seeds_decide_the_bits(algo, runs):
    script, flags = load(algo), flags_of(algo, checkpoint_every=1)
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        script.main([*flags, "--seed", seed, "--run-name", name])
    first, again, other = (checkpoints(runs / "runs" / name) for name in "abc")
    assert [path.name for path in first] == [f"iter_{i:06d}.pt" for i in range(len(first))]
    assert len(first) >= 3
    assert_same(parameters(first[-1]), parameters(again[-1]))
    assert progress(runs / "runs" / "a") == progress(runs / "runs" / "b")
    assert not torch.equal(parameters(first[-1])["policy.log_std"], parameters(other[-1])["policy.log_std"])

    checkpoint = torch.load(first[1], weights_only=True)
    args = script.Args(**checkpoint["args"])
    state = script.initial_state(args, script.make_actors(args))
    script.restore(state, checkpoint)
    *_, statistics = iterate(script, args, state)
    script.save_checkpoint(args, runs / "runs" / "a", state)  # over the one that training wrote
    assert_same(parameters(first[2]), parameters(again[2]))
    row = progress(runs / "runs" / "a")[1]
    assert row["iteration"] == "1" and row["global_step"] == str(state.global_step)
    assert {k: str(v) for k, v in statistics.items()} == {k: row[k] for k in statistics}


RESUMED = [("ppo", env, n) for env in ("Hopper-v5", "Ant-v5") for n in (1, 3)]
RESUMED += [(algo, "Hopper-v5", 2) for algo in ALGOS if algo != "ppo"]


@pytest.mark.parametrize(("algo", "env_id", "num_envs"), RESUMED)
def test_killed_run_continues_to_the_same_bits(algo, env_id, num_envs, runs):
    flags = flags_of(algo, env_id=env_id, num_envs=num_envs, total_timesteps=20 * 256 * num_envs)
    subprocess.run(command(algo, [*flags, "--run-name", "whole"]), check=True)
    folder, whole = runs / "runs" / "killed", runs / "runs" / "whole"
    for enough, sign in ((2, signal.SIGKILL), (4, signal.SIGINT)):
        again = command(algo, [*flags, "--run-name", "killed", "--checkpoint-every", "3"])
        process = subprocess.Popen(again, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        while len(checkpoints(folder)) < enough:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(sign)
        assert process.wait() == {signal.SIGKILL: -9, signal.SIGINT: 130}[sign]
        with open(folder / "progress.csv", "a") as file:
            file.write("19,5120,")  # a row that was being written
    subprocess.run(command(algo, [*flags, "--run-name", "killed"]), check=True)
    assert_same(parameters(checkpoints(folder)[-1]), parameters(checkpoints(whole)[-1]))
    assert progress(folder) == progress(whole)
    assert len(progress(whole)) >= 17


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


@pytest.mark.parametrize("room", [100, 6_000, 20_000])  # not for config.json; the first checkpoint; the logs
def test_a_full_disk_gets_one_line_and_loses_nothing(room, runs):
    def limit_files():  # to a size: what then fails, fails as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    flags = flags_of("ppo", total_timesteps=20 * 256, policy_hidden="8", value_hidden="8", checkpoint_every=1)
    full = subprocess.run(command("ppo", flags), preexec_fn=limit_files, capture_output=True, text=True)
    assert full.returncode == 1 and "Traceback" not in full.stderr
    assert full.stderr.splitlines()[-1].endswith("the same command continues from the last checkpoint")
    subprocess.run(command("ppo", flags), check=True)
    subprocess.run(command("ppo", [*flags, "--run-name", "whole"]), check=True)
    folders = sorted((runs / "runs").iterdir())
    assert_same(*(parameters(checkpoints(folder)[-1]) for folder in folders))
    assert progress(folders[0]) == progress(folders[1]) and len(progress(folders[0])) == 20


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


def test_environment_that_is_not_mujocos_continues_with_a_warning(runs, capsys):
    script, flags = load("ppo"), flags_of("ppo", env_id="environments:Clock-v0", squash_action=True)
    script.main([*flags, "--checkpoint-every", "1"])
    [folder] = (runs / "runs").iterdir()
    checkpoints(folder)[-1].unlink()
    script.main(flags)
    assert "not an exact continuation" in capsys.readouterr().err
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


LEARNING = {  # the defaults where they learn within 60,000 steps for good, else more and smaller steps
    "ppo": "--total-timesteps 60000",
    "ppo_m": "--total-timesteps 60000",
    "ppo_noclip": "--total-timesteps 60000 --policy-lr 3e-4",
    "trpo": "--total-timesteps 60000 --max-kl 0.04",
    "trpo_plus": "--total-timesteps 60000",
    "a2c": "--total-timesteps 100000 --num-envs 2 --num-steps 128 --policy-lr 3e-3 --value-lr 3e-3",
    "reinforce": "--total-timesteps 100000 --num-steps 512 --policy-lr 1e-2 --num-minibatches 4",
    "vmpo": "--total-timesteps 100000 --num-envs 1 --policy-lr 1e-3",
}


@pytest.mark.parametrize("algo", ALGOS)
def test_learns_inverted_pendulum(algo, runs):
    torch.compiler.reset()
    load(algo).main(f"--env-id InvertedPendulum-v5 {LEARNING[algo]}".split())
    [folder] = (runs / "runs").iterdir()
    returns = [float(row["episodic_return"]) for row in progress(folder)[-10:] if row["episodic_return"]]
    assert np.mean(returns) >= 900
