"""What is refused: exit status 2, one line, nothing written, nothing lost. And what is not finite: nothing saved."""

import dataclasses
import json
import shutil
from unittest.mock import patch

import lab
import pytest
import torch
from conftest import ALGOS, checkpoints, flags_of, last_line, load, start

ENVIRONMENTS = {  # Some of these texts are Python's and Gymnasium's.
    "Nope-v0": "if it is one of yours, --env-id my_module:Nope-v0 imports my_module first",
    "Hopper-v2": "gymnasium-robotics",
    "nowhere:Env-v0": "No module named 'nowhere'",
    "CartPole-v1": "actions must be a flat Box",
    "environments:Image-v0": "observations must be a flat Box",
    "environments:Dictionary-v0": "observations must be a flat Box",
    "environments:Unbounded-v0 --tanh --bound-action tanh": "finite bounds",  # only scripts with --tanh squash
    "environments:Short-v0": "must be an array of shape (2,), not [0.]",
    "environments:TwoRewards-v0": "a reward must be a number, not [1. 1.]",
    "environments:NoReward-v0": "a reward must be a number, not None",
    "environments:ListObs-v0": "must be an array of shape (1,), not [1.0]",
    "environments:Strict-v0": "; --bound-action clip or tanh keeps actions in their space",
    "environments:Failing-v0": "No such file or directory: 'model.xml' (environments.py, line ",
}
SHORT = "--no-compile --total-timesteps 2048"  # so that what is not refused ends soon
REFUSED = {f"{SHORT} --env-id {name}": text for name, text in ENVIRONMENTS.items()}
REFUSED |= {
    "--num-envs 1 --num-steps 1024 --total-timesteps 1023": "= 1024 must be at most total_timesteps = 1023",
    "--num-envs 1 --num-steps 2048 --num-minibatches 33": "and a multiple of num_minibatches = 33",
    "--num-steps 16 --num-envs 2 --num-minibatches 32": "num_minibatches = 32, with at least 2 steps for each",
    "--seed -1": "must lie between 0 and 18446744073709551615",
    "--value-hidden 64 0": "must be greater than 0",
    "--entropy-coef nan": "must lie between -1e+38 and 1e+38",
    "--max-grad-norm inf": "greater than 0 and at most 1e+38",
    "--cg-damping -0.1": "--cg-damping -0.1 must",
    "--backtrack-ratio 2": "greater than 0 and at most 1",
    f"{SHORT} --runs-dir file/runs": "Not a directory: 'file/runs",
    f"{SHORT} --policy-hidden {'64 ' * 100}": "--run-name and --runs-dir choose another run folder",  # a long name
}
POSITIVE = (
    "total_timesteps num_envs num_steps num_minibatches policy_epochs value_epochs checkpoint_every policy_lr value_lr "
    "clip_eps value_clip_eps reward_clip_range obs_clip_range max_grad_norm max_kl max_kl_final cg_steps "
    "fisher_fraction backtrack_ratio backtrack_steps eps_temperature eps_mean eps_std min_multiplier"
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


@pytest.mark.parametrize("algo", ALGOS)
def test_a_shape_that_changes_later_is_an_error_and_not_broadcast(algo):
    script, args, state = start(algo, env_id="environments:Shrinking-v0", num_steps=64)
    with pytest.raises((AssertionError, ValueError)):
        script.rollout(args, state)


def test_reinforce_needs_episodes_that_end(runs, capsys, monkeypatch):
    settings = dict(env_id="environments:Endless-v0", obs_norm=False)
    script, _, state = start("reinforce", **settings)
    monkeypatch.setattr(script, "State", lambda args: state)
    assert "100,000 steps and no end" in last_line(capsys, 2, script.main, flags_of("reinforce", **settings))
    assert state.workers[0].episode_length == 100_000


@pytest.mark.parametrize(("env_id", "found"), [("NanReward-v0", "rewards[87]"), ("NanObs-v0", "obs[88]")])
def test_what_is_not_finite_is_named_and_not_saved(env_id, found, runs, capsys):
    """The environment's 600th step is row 87 of iteration 2. The observation that it gives is that of row 88."""
    flags = flags_of("ppo", env_id=f"environments:{env_id}", checkpoint_every=1, total_timesteps=2560)
    line = last_line(capsys, 1, load("ppo").main, flags)
    assert line == f"ppo.py: iteration 2: {found} is not finite; not saved"
    [folder] = (runs / "runs").iterdir()
    assert checkpoints(folder)[-1].name == "iter_000002.pt"


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


# Diagnostics ---------------------------------------------------------------------------------------------------------

ONE = "--jobs 1 --out ."
# Program, flags (the fixture `odd` makes what they name) and a part of the sentence. What all diagnostics refuse alike
# is tried with value.py.
SENTENCES = [
    ("value", "", "name one run folder or more"),
    ("value", "none", "No such file or directory"),
    ("value", "foreign", "foreign/config.json is not that of a run"),
    ("value", "half", 'in a damaged file: {"algo": "ppo"'),
    ("value", "ppo --out rows", "in a damaged file: damaged"),
    ("value", "bare", "no checkpoints"),
    ("value", f"torn --checkpoints 1 {ONE}", "iter_000001.pt is damaged"),
    ("value", f"nowhere {ONE}", "--env-id Nowhere-v0: NameNotFound"),
    ("value", "ppo --checkpoints 7", "cannot measure 7; there are checkpoints 0 1 2"),
    ("value", "ppo --script none.py", "No such file or directory"),
    ("value", "ppo --out file/x", "file"),
    ("value", "ppo --jobs 0", "--jobs 0: must lie between 1 and 1,000,000,000"),
    ("value", "link raw ppo --out .", "the same run, twice"),
    ("value", "ppo chain --out .", "different environments"),
    ("value", "reinforce --out .", "no value network"),
    ("gradient", "ppo --pairs 1", "--pairs 1: must lie between 2 and"),
    ("baselines", "reinforce --out .", "no value network"),
    ("baselines", "ppo --value-pairs 9", "--value-pairs 9: must lie between 20 and"),
    ("steps", "ppo --rewards 1", "--rewards 1: must be 2 or more"),
    ("steps", "ppo --step-pairs 64", "--step-pairs: needs --rewards"),
    ("steps", "short --rewards 2 --step-pairs 4", "--step-pairs 4: less than two for each of the 4 minibatches"),
    ("landscape", "ppo --grid 1", "--grid 1: must lie between 2 and"),
    ("landscape", "ppo --checkpoints 0 --step-pairs 7", "--step-pairs 7: less than two for each of the 4 minibatches"),
    ("landscape", "ppo --step-pairs", "--step-pairs: give one number of pairs or more"),
    ("trust_region", f"ppo --heldout-pairs {10**20}", "must lie between 1 and 1,000,000,000"),
    ("evaluate", "ppo --video file/x.gif", "--video file/x.gif: must be a .gif file in a folder that exists"),
    ("report", "ppo copy --out out", "the same run, twice"),
    ("report", "cut", "progress.csv is damaged"),
    ("report", "ppo --meant value_lss", "no check has this name; there are order shapes"),
    ("rewards", "ppo raw --out . --labels PPO", "--labels: 1 for 2 runs; give one for each run, in order"),
]


@pytest.fixture
def odd(known, tmp_path, monkeypatch):
    """A working directory with runs and scripts that something is wrong with."""
    monkeypatch.chdir(tmp_path)
    for name in ("ppo", "raw", "chain", "reinforce"):
        shutil.copytree(known / name, name)
    for name in ("bare", "torn", "nowhere", "copy", "cut", "short"):
        shutil.copytree("ppo", name)
    for path in checkpoints(tmp_path / "bare"):
        path.rename(path.with_name("iter_best.pt"))
    checkpoints(tmp_path / "torn")[1].write_bytes(b"torn")
    (tmp_path / "cut" / "progress.csv").write_text("iteration,global_step\n3,2\n")
    config = json.loads((tmp_path / "ppo" / "config.json").read_text())
    nowhere = dict(args=config["args"] | dict(env_id="Nowhere-v0"))
    for path in checkpoints(tmp_path / "nowhere"):
        torch.save(torch.load(path, weights_only=True) | nowhere, path)
    configs = dict(nowhere=json.dumps(config | nowhere), foreign=json.dumps(config | dict(algo="../broken")))
    configs |= dict(half=json.dumps(config)[:100])
    configs |= dict(short=json.dumps(config | dict(args=config["args"] | dict(num_steps=4))))
    for folder, text in configs.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "config.json").write_text(text)
    (tmp_path / "file").touch()
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "value.jsonl").write_text("damaged\n")
    (tmp_path / "link").symlink_to("ppo")
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # Python's own caches are no files of a script
    return tmp_path


def test_sentences(odd, capsys):
    visible = lambda: [path for path in odd.rglob("*") if path.is_file() and path.name[0] != "."]
    times = lambda: {path: path.lstat().st_mtime_ns for path in visible()}
    before = times()
    for name, flags, sentence in SENTENCES:
        with patch("sys.argv", [f"{name}.py"]):
            line = last_line(capsys, 2, lab.run_program, lambda name=name, flags=flags: load(name).main(flags.split()))
        assert sentence in line and line.startswith(f"{name}.py: "), (name, flags)
    assert times() == before
