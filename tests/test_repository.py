"""The repository's promises about itself."""

import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
import tyro
from conftest import ALGOS, MICRO, ROOT, load
from torch import nn

TOOLS = "matplotlib jinja2 scipy pytest pytest-xdist stable-baselines3 ruff".split()  # not for the scripts


@pytest.mark.parametrize("algo", ALGOS)
def test_script_metadata_has_the_pins_of_requirements(algo):
    text = (ROOT / "algos" / f"{algo}.py").read_text()
    metadata = re.match(r"# /// script\n((?:#.*\n)+?)# ///\n", text)[1]
    metadata = tomllib.loads(re.sub(r"^# ?", "", metadata, flags=re.MULTILINE))
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pins = [line for line in lines if line and line[0] != "#" and line.split("==")[0] not in TOOLS]
    assert metadata == {"requires-python": ">=3.11", "dependencies": pins}


def test_readme_commands_are_understood(runs, monkeypatch):
    """The scripts take every argument of the commands that have a line of their own, or after &&."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [shlex.split(part, comments=True) for x in blocks for y in x.splitlines() for part in y.split("&&")]
    understood = dict(algos=0, diagnostics=0, experiments=0)
    for program, *rest in filter(None, lines):
        if program == "./benchmark.sh":
            load("experiments").read_arguments(rest)
            understood["experiments"] += 1
        elif program == "python" and rest[0] != "-m":
            path, *flags = rest
            if path == "diagnostics/conformance":
                monkeypatch.syspath_prepend(ROOT / path)
                importlib.import_module("comparison").read_arguments(flags)
                continue
            assert (ROOT / path).is_file()
            if Path(path).stem in MICRO:  # they have no arguments, and loading them would train
                continue
            script, folder = load(Path(path).stem), Path(path).parent.name
            understood[folder] += 1
            if folder == "algos":
                monkeypatch.setattr(script, "train", lambda args: None)
                script.main([*flags, "--no-compile"])
            else:
                tyro.cli(script.Files if path.endswith("sb3.py") else script.Args, args=flags)
    assert all(number >= 3 for number in understood.values()), understood


def test_readme_shows_the_loop_as_it_is():
    source = (ROOT / "algos" / "ppo.py").read_text()
    [loop] = [
        x for x in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL) if "def train" in x
    ]
    assert loop in source


def test_readme_has_the_lengths_of_the_scripts():
    rows = re.findall(r"^\| `(algos/\w+\.py)` \|.* (\d+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert {path for path, _ in rows} == {f"algos/{algo}.py" for algo in ALGOS}
    assert {path: len((ROOT / path).read_text().splitlines()) for path, _ in rows} == {x: int(y) for x, y in rows}


def test_readmes_policy_acts_as_the_checkpoint_does(runs):
    """The README's lines, run on a checkpoint of a short run, give the script's own mean action."""
    script, flags = load("ppo"), "--total-timesteps 512 --num-steps 256 --num-minibatches 4 --no-compile --run-name a"
    script.main(flags.split())
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    [lines] = [x for x in blocks if "torch.load" in x]
    path = Path("runs/a/checkpoints/iter_000002.pt")
    names = dict(torch=torch, nn=nn, np=np)
    exec(re.sub(r'"runs/.*?\.pt"', f'"{path}"', lines), names)
    checkpoint = script.load_checkpoint(path)
    args = script.Args(**checkpoint["args"])
    state = script.State(args)
    script.restore(state, checkpoint)
    state.obs_stats.push = lambda obs: None  # the statistics stay those of the checkpoint
    for obs in np.random.default_rng(0).normal(0, 3, (5, 11)):
        seen = torch.from_numpy(script.normalize_obs(args, state.obs_stats, obs))
        np.testing.assert_allclose(names["act"](obs), state.policy.mean(seen).detach(), rtol=1e-4, atol=1e-6)


def test_importing_needs_nothing_of_linux(runs):
    """What macOS or Windows lack is taken away. (What the scripts in algos/ then do: test_training.py.)"""
    code = """if True:
        import os, runpy, signal, sys
        sys.modules["fcntl"] = None
        del os.sched_getaffinity
        for name in ("SIGHUP", "SIGPIPE", "SIGUSR1", "SIGUSR2"):
            delattr(signal, name)
        for path in sys.argv[1:]:
            runpy.run_path(path, run_name="imported")
    """
    paths = [str(ROOT / "algos" / f"{algo}.py") for algo in ALGOS] + [*map(str, (ROOT / "diagnostics").glob("*.py"))]
    beside = os.environ | {"PYTHONPATH": str(ROOT / "diagnostics")}
    subprocess.run([sys.executable, "-c", code, *paths], env=beside, check=True)


def test_importing_has_no_side_effects(runs):
    code = "import runpy, sys; [runpy.run_path(path, run_name='imported') for path in sys.argv[1:]]"
    paths = [str(ROOT / "algos" / f"{algo}.py") for algo in ALGOS] + [*map(str, (ROOT / "diagnostics").glob("*.py"))]
    beside = os.environ | {"PYTHONPATH": str(ROOT / "diagnostics")}  # where a program finds the modules beside it
    call = [sys.executable, "-c", code, *paths]
    result = subprocess.run(call, env=beside, capture_output=True, text=True, check=True)
    assert result.stdout + result.stderr == "" and list(runs.iterdir()) == []
