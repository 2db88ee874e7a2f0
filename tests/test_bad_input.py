"""What is refused: exit status 2, one line, nothing written, nothing lost."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from conftest import ALGOS, ROOT, checkpoints, flags_of, load, start

REFUSED = {
    "--env-id Nope-v0": "Nope",
    "--env-id Hopper-v2": "gymnasium-robotics",
    "--env-id nowhere:Env-v0": "No module named 'nowhere'",
    "--env-id .nowhere:Env-v0": "relative import",
    "--env-id CartPole-v1": "actions must be a flat Box",
    "--env-id environments:Image-v0": "observations must be a flat Box",
    "--env-id environments:Dictionary-v0": "observations must be a flat Box",
    "--env-id environments:Unbounded-v0 --bound-action tanh": "no finite bounds",
    "--total-timesteps 1023": "less than one iteration",
    "--num-minibatches 31 --value-lr 1": "evenly",  # REINFORCE's batch has no fixed size
    "--num-steps 16 --num-envs 2 --num-minibatches 32 --value-lr 1": "minibatches of 2 or more",
    "--num-steps 16 --num-envs 2 --num-minibatches 33": "num_envs * num_steps = 32",
    "--seed -1": "must lie between 0 and 18446744073709551615",
    f"--seed {2**64}": "must lie between 0 and 18446744073709551615",
    "--policy-hidden 64 0": "must be greater than 0",
    "--policy-hidden": "must be greater than 0",
    "--value-hidden -1": "must be greater than 0",
    "--gamma 1.01": "must lie between 0 and 1",
    "--gae-lambda -0.1": "must lie between 0 and 1",
    "--entropy-coef nan": "must lie between -1e+38 and 1e+38",
    "--max-grad-norm inf": "greater than 0 and finite",
    "--clip-eps 1e39": "greater than 0 and finite",
    "--fisher-fraction 1.1": "must lie between 1e-06 and 1",
    "--backtrack-ratio 0": "must lie between 1e-06 and 1",
    "--cg-damping -0.1": "must lie between 0 and 1e+38",
    "--runs-dir file/runs": "cannot write the run folder",
}
POSITIVE = (
    "total_timesteps num_envs num_steps num_minibatches policy_epochs value_epochs checkpoint_every policy_lr value_lr "
    "clip_eps value_clip_eps reward_clip_range obs_clip_range max_grad_norm max_kl max_kl_final cg_steps "
    "backtrack_steps eps_temperature eps_mean eps_std"
).split()
REFUSED |= {f"--{name.replace('_', '-')} {x}": "greater than 0" for name in POSITIVE for x in (0, -1)}


def snapshot(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refused(script, flags, capsys):
    """The message of a call that must end with status 2 and one line."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        script.main(flags)
    message = capsys.readouterr().err
    assert ended.value.code == 2
    assert message.startswith(f"{script.__name__}.py: ") and message.count("\n") == 1
    return message


@pytest.mark.parametrize("algo", ALGOS)
def test_arguments(algo, runs, capsys):
    (runs / "file").touch()
    before, names = snapshot(runs), {field.name for field in dataclasses.fields(load(algo).Args)}
    for flags, text in REFUSED.items():
        if names >= {flag[2:].replace("-", "_") for flag in flags.split() if flag.startswith("--")}:
            message = refused(load(algo), flags.split(), capsys)
            assert text in message, flags
            assert snapshot(runs) == before, flags


def test_as_a_process(runs):
    command = [sys.executable, ROOT / "algos" / "ppo.py", "--no-such-flag"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert list(runs.iterdir()) == []


def test_run_folder_of_another_run(runs, capsys):
    script = load("ppo")
    flags = flags_of("ppo", run_name="a")
    script.main(flags)
    before = snapshot(runs)
    assert "gamma was 0.99, is 0.9;" in refused(script, [*flags, "--gamma", "0.9"], capsys)
    assert snapshot(runs) == before
    newest = checkpoints(runs / "runs/a")[-1]
    whole = newest.read_bytes()
    torch.save(torch.load(newest, weights_only=True) | dict(script="0"), newest)  # as these scripts once wrote it
    old = newest.read_bytes()
    for damaged in (old, b"", whole[: len(whole) // 2], b"no checkpoint", b"\x80\x02}q\x00."):
        newest.write_bytes(damaged)
        before = snapshot(runs)
        assert "is damaged, or older than these scripts" in refused(script, flags, capsys)
        assert snapshot(runs) == before


def test_run_folder_in_use(runs, capsys):
    script, args, state = start("ppo", run_name="a")
    with script.open_run(args, state):
        before = snapshot(runs / "runs/a/checkpoints")
        assert "in use" in refused(script, [*flags_of("ppo", run_name="a"), "--overwrite"], capsys)
        assert snapshot(runs / "runs/a/checkpoints") == before
