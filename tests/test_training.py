"""Whole runs: flags, determinism, checkpoints, interruption, learning."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from conftest import ALGOS, ROOT, assert_same, checkpoints, iterate, load, parameters, progress, start

QUICK = "--no-compile --num-steps 256 --num-minibatches 4 --policy-epochs 2 --value-epochs 2"


def command(algo, flags):
    return [sys.executable, str(ROOT / "algos" / f"{algo}.py"), *flags.split()]


# Flag, settings in which it acts, and what toggling it leaves alone up to the first update.
FLAGS = {
    "value_clip": (dict(value_clip_eps=0.001), "networks experience policy_1"),
    "reward_scale": (dict(), "networks obs actions policy_0"),
    "orthogonal_init": (dict(), ""),
    "anneal_lr": (dict(), "networks experience policy_1 value_1"),
    "reward_clip": (dict(reward_clip_range=0.1), "networks obs actions"),
    "obs_norm": (dict(), "networks"),
    "obs_clip": (dict(obs_clip_range=0.5), "networks"),
    "tanh": (dict(), "networks"),
    "grad_clip": (dict(max_grad_norm=0.01), "networks experience"),
}


def trace(algo, **settings):
    """What a run of two iterations computes, by name."""
    script, args, state = start(algo, **settings)
    flat = script.flat_parameters
    seen = {"networks": torch.cat([flat(state.policy), flat(state.value)])}
    for i in (1, 2):
        experience, _, state, _ = iterate(script, args, state)
        if i == 1:
            arrays = {k: experience[k] for k in ("obs", "actions", "rewards")}
            seen |= arrays | {"experience": np.concatenate([x.ravel() for x in arrays.values()])}
        seen |= {f"policy_{i}": flat(state.policy), f"value_{i}": flat(state.value)}
    return {name: torch.as_tensor(x) for name, x in seen.items()}


@pytest.mark.parametrize("flag", FLAGS)
def test_each_flag_acts_where_it_should_and_nowhere_else(flag):
    settings, untouched = FLAGS[flag]
    on, off = (trace("ppo", **settings, **{flag: value}) for value in (True, False))
    assert not torch.equal(on["policy_2"], off["policy_2"])
    assert not torch.equal(on["value_2"], off["value_2"])
    same = {name for name in on if torch.equal(on[name], off[name])}
    assert same >= set(untouched.split()) & set(on)
    acts = {"value_clip": "value_1", "reward_scale": "rewards", "orthogonal_init": "networks", "anneal_lr": "policy_2"}
    acts |= {"reward_clip": "rewards", "obs_norm": "obs", "obs_clip": "obs", "tanh": "actions", "grad_clip": "value_1"}
    assert acts[flag] not in same


@pytest.mark.parametrize("algo", ALGOS)
def test_contract_replays_training_and_seeds_decide_the_bits(algo, runs):
    flags = f"{QUICK} --total-timesteps 768 --num-envs 1 --checkpoint-every 1".split()
    script = load(algo)
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        script.main([*flags, "--seed", seed, "--run-name", name])
    first, again, other = (checkpoints(runs / "runs" / name) for name in "abc")
    assert [path.name for path in first] == [f"iter_{i:06d}.pt" for i in range(4)]
    assert_same(parameters(first[-1]), parameters(again[-1]))
    assert progress(runs / "runs" / "a") == progress(runs / "runs" / "b")
    assert not torch.equal(parameters(first[-1])["policy.log_std"], parameters(other[-1])["policy.log_std"])

    checkpoint = torch.load(first[1], weights_only=True)
    args = script.Args(**checkpoint["args"])
    state = script.initial_state(args, script.make_actors(args))
    script.restore(state, checkpoint)
    _, _, state, statistics = iterate(script, args, state)
    assert (state.iteration, state.global_step) == (2, 512)
    script.save_checkpoint(args, runs / "runs" / "a", state)  # over the one that training wrote
    assert_same(parameters(first[2]), parameters(again[2]))
    row = progress(runs / "runs" / "a")[1]
    assert {k: str(v) for k, v in statistics.items()} == {k: row[k] for k in statistics}


RESUMED = [("ppo", env, n) for env in ("Hopper-v5", "Ant-v5") for n in (1, 3)]


@pytest.mark.parametrize(("algo", "env_id", "num_envs"), RESUMED)
def test_killed_run_continues_to_the_same_bits(algo, env_id, num_envs, runs):
    flags = f"{QUICK} --env-id {env_id} --num-envs {num_envs} --total-timesteps {20 * 256 * num_envs}"
    subprocess.run(command(algo, f"{flags} --run-name whole"), check=True)
    folder, whole = runs / "runs" / "killed", runs / "runs" / "whole"
    for enough, sign in ((2, signal.SIGKILL), (5, signal.SIGTERM)):
        process = subprocess.Popen(command(algo, f"{flags} --run-name killed --checkpoint-every 3"))
        while len(checkpoints(folder)) < enough:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(sign)
        assert process.wait() == {signal.SIGKILL: -9, signal.SIGTERM: 130}[sign]
        with open(folder / "progress.csv", "a") as file:
            file.write("19,5120,")  # a row that was being written
    subprocess.run(command(algo, f"{flags} --run-name killed"), check=True)
    assert_same(parameters(checkpoints(folder)[-1]), parameters(checkpoints(whole)[-1]))
    assert progress(folder) == progress(whole)
    assert len(progress(whole)) == 20


def test_finished_run_is_left_alone_and_overwrite_starts_anew(runs, capsys):
    flags, script = f"{QUICK} --total-timesteps 512".split(), load("ppo")
    script.main(flags)
    [folder] = (runs / "runs").iterdir()
    assert folder.name == (
        "Hopper-v5__ppo__total-timesteps=512__num-steps=256__num-minibatches=4__policy-epochs=2__value-epochs=2"
        "__no-compile__seed1"
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
    script, flags = load("ppo"), f"{QUICK} --env-id environments:Clock-v0 --squash-action --total-timesteps 768".split()
    script.main([*flags, "--checkpoint-every", "1"])
    [folder] = (runs / "runs").iterdir()
    checkpoints(folder)[-1].unlink()
    script.main(flags)
    assert "not an exact continuation" in capsys.readouterr().err
    assert len(progress(folder)) == 3


def test_nonfinite_state_stops_the_run_before_it_is_saved(runs, capsys):
    flags = f"{QUICK} --env-id environments:Nan-v0 --total-timesteps 2560 --checkpoint-every 1"
    with pytest.raises(SystemExit) as ended:
        load("ppo").main(flags.split())
    assert ended.value.code == 1 and "iteration 2:" in capsys.readouterr().err
    [folder] = (runs / "runs").iterdir()
    assert checkpoints(folder)[-1].name == "iter_000002.pt"
    assert all(x.isfinite().all() for x in parameters(checkpoints(folder)[-1]).values())


def test_without_a_compiler_it_runs_eagerly_and_says_so(runs):
    environment = {**os.environ, "CXX": "/nonexistent", "TORCHINDUCTOR_CACHE_DIR": str(runs / "cache")}
    flags = QUICK.replace("--no-compile", "") + " --total-timesteps 256"
    result = subprocess.run(command("ppo", flags), env=environment, capture_output=True, text=True, check=True)
    assert "going on with --no-compile" in result.stderr


LEARNING = {"ppo": "--total-timesteps 60000"}


@pytest.mark.parametrize("algo", LEARNING)
def test_learns_inverted_pendulum(algo, runs):
    torch.compiler.reset()
    load(algo).main(f"--env-id InvertedPendulum-v5 {LEARNING[algo]}".split())
    [folder] = (runs / "runs").iterdir()
    returns = [float(row["episodic_return"]) for row in progress(folder)[-5:] if row["episodic_return"]]
    assert np.mean(returns) >= 900
