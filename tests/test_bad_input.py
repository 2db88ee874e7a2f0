"""What is refused: exit status 2, one line, nothing written, nothing lost."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from conftest import ALGOS, ROOT, checkpoints, flags_of, load, start

ENVIRONMENTS = {  # Some of these texts are Python's and Gymnasium's.
    "Nope-v0": "Nope",
    "Hopper-v2": "gymnasium-robotics",
    "nowhere:Env-v0": "No module named 'nowhere'",
    ".nowhere:Env-v0": "relative import",
    "CartPole-v1": "actions must be a flat Box",
    "environments:Image-v0": "observations must be a flat Box",
    "environments:Dictionary-v0": "observations must be a flat Box",
    "environments:Unbounded-v0 --tanh --bound-action tanh": "finite bounds",  # only scripts with --tanh squash
    "environments:Huge-v0 --tanh --bound-action tanh": "finite bounds",
    "environments:Short-v0": "shape (1,) instead of (2,)",
    "environments:Column-v0": "shape (2, 1) instead of (2,)",
    "environments:ShortStep-v0": "shape (1,) instead of (2,)",
    "environments:ColumnStep-v0": "shape (2, 1) instead of (2,)",
    "environments:FileNotFoundError-v0": "FileNotFoundError: model.xml",
    "environments:AttributeError-v0": "AttributeError: no such part",
    "environments:KeyError-v0": "KeyError: 'part'",
}
SHORT = "--no-compile --total-timesteps 2048"  # so that what is not refused ends soon
REFUSED = {f"{SHORT} --env-id {name}": text for name, text in ENVIRONMENTS.items()}
REFUSED |= {
    "--total-timesteps 1023": "must fit into total_timesteps",
    "--num-minibatches 31": "must fit into total_timesteps and minibatches",
    "--num-steps 16 --num-envs 2 --num-minibatches 32": "num_envs * num_steps = 32 must fit into",
    "--num-steps 16 --num-envs 2 --num-minibatches 33": "minibatches of at least 2",
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
    "--cg-damping -0.1": "--cg-damping -0.1 must",
    f"{SHORT} --runs-dir file/runs": "Not a directory: 'file/runs",
    f"{SHORT} --policy-hidden {'64 ' * 100}": "--run-name and --runs-dir choose another run folder",  # a long name
}
POSITIVE = (
    "total_timesteps num_envs num_steps num_minibatches policy_epochs value_epochs checkpoint_every policy_lr value_lr "
    "clip_eps value_clip_eps reward_clip_range obs_clip_range max_grad_norm max_kl max_kl_final cg_steps "
    "fisher_fraction backtrack_ratio backtrack_steps eps_temperature eps_mean eps_std"
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
    names = {field.name for field in dataclasses.fields(load(algo).Args)}
    for flags, text in REFUSED.items():
        flags = flags.split()
        if names >= {flag[2:].replace("-", "_").removeprefix("no_") for flag in flags if flag.startswith("--")}:
            assert text in refused(load(algo), flags, capsys), flags
            assert snapshot(runs).keys() <= {runs / "file", runs / "runs"}, flags  # the latter for a long name


@pytest.mark.parametrize("flags", ["--no-such-flag", f"{SHORT} --env-id Hopper-v2"])
def test_as_a_process(flags, runs):
    command = [sys.executable, ROOT / "algos" / "ppo.py", *flags.split()]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1 or flags == "--no-such-flag"  # for which tyro draws a box
    assert list(runs.iterdir()) == []


def test_reinforce_needs_episodes_that_end(runs, capsys, monkeypatch):
    settings = dict(env_id="environments:Endless-v0", obs_norm=False)
    script, _, state = start("reinforce", **settings)
    monkeypatch.setattr(script, "State", lambda args: state)
    with pytest.raises(SystemExit) as ended:
        script.main(flags_of("reinforce", **settings))
    message = capsys.readouterr().err.splitlines()[-1]  # below the bar
    assert ended.value.code == 2 and "100,000 steps and no end" in message
    assert state.workers[0].episode_length == 100_000


def test_run_folder_of_another_run(runs, capsys):
    script = load("ppo")
    flags = flags_of("ppo", run_name="a")
    script.main(flags)
    before = snapshot(runs)
    assert "gamma was 0.99, is 0.9;" in refused(script, [*flags, "--gamma", "0.9"], capsys)
    assert "holds another run" in refused(load("a2c"), flags_of("a2c", run_name="a"), capsys)
    assert snapshot(runs) == before
    newest = checkpoints(runs / "runs/a")[-1]
    whole = newest.read_bytes()
    torch.save(dict(args={}), newest)  # of another layout
    other = newest.read_bytes()
    for damaged in (other, b"", whole[: len(whole) // 2], b"no checkpoint", b"\x80\x02}q\x00."):
        newest.write_bytes(damaged)
        before = snapshot(runs)
        assert "is damaged" in refused(script, flags, capsys)
        assert snapshot(runs) == before


def test_run_folder_in_use(runs, capsys):
    script, args, state = start("ppo", run_name="a")
    with script.open_run(args, state):
        before = snapshot(runs / "runs/a/checkpoints")
        message = refused(script, flags_of("ppo", run_name="a"), capsys)
        assert "lock" in message and "--run-name and --runs-dir choose another run folder" in message
        assert snapshot(runs / "runs/a/checkpoints") == before
