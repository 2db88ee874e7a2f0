"""The repository's promises about itself."""

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from datetime import datetime

import numpy as np
import pytest
import torch
import tyro
from conftest import ALGOS, MICRO, ROOT, checkpoints, flags_of, load

README = (ROOT / "README.md").read_text()
PAGES = ["README.md", "CONTRIBUTING.md", "figures/papers.md", *(f"algos/{x.name}" for x in ROOT.glob("algos/*.md"))]
RECIPES = (ROOT / "algos" / "recipes.md").read_text()


def test_the_citation_is_of_the_newest_version():
    version, date = re.search(r"^## ([\d.]+) \((.*)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE).groups()
    date = datetime.strptime(date, "%d %B %Y").date()
    assert f"\nversion: {version}\ndate-released: {date}\n" in (ROOT / "CITATION.cff").read_text()


def heading_ids(page):
    """The ids by which a repository's page links to the headings of a file."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", x.lower()).replace(" ", "-") for x in titles}


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_to_is_there(page):
    """Files and headings of this repository, and lines of scripts."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    links = [x for x in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in x]
    assert links
    for link in links:
        path, _, place = link.partition("#")
        path = ((ROOT / page).parent / path if path else ROOT / page).resolve()
        assert path.exists(), link
        if place and path.suffix != ".py":
            path = path / "README.md" if path.is_dir() else path
            assert place in heading_ids(path), link


def test_commands_of_the_readme_and_the_recipes_are_understood(monkeypatch):
    """The scripts take every argument of the commands that have a line of their own, or after &&."""
    blocks = re.findall(r"```bash\n(.*?)```", README + RECIPES, re.DOTALL)
    lines = [shlex.split(part, comments=True) for x in blocks for y in x.splitlines() for part in y.split("&&")]
    understood = []
    for program, *words in filter(None, lines):
        if program == "./benchmark.sh":
            load("experiments").read_arguments(words)
            understood.append(program)
        elif program == "python" and words[0].endswith("/conformance"):
            monkeypatch.syspath_prepend(ROOT / "figures" / "conformance")
            importlib.import_module("comparison").read_arguments(words[1:])
        elif program == "python" and words[0] != "-m":
            path, flags = ROOT / words[0], words[1:]
            path = path / f"{path.name}.py" if path.is_dir() else path  # a folder's __main__.py calls this
            assert path.is_file()
            if path.stem not in MICRO:  # which have no arguments, and loading them would train
                script = load(path.stem)
                args = tyro.cli(script.Files if path.stem == "sb3" else script.Args, args=flags)
                getattr(script, "check_arguments", lambda args: None)(args)
                understood.append(path.relative_to(ROOT).parts[0])
    assert all(understood.count(x) >= 3 for x in ("algos", "diagnostics", "./benchmark.sh")), understood


def test_readme_shows_the_loop_as_it_is():
    """But for its docstring and its comment, which are wider than a page's column."""
    [loop] = [x for x in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "def train" in x]
    [source] = [x for x in ast.parse((ROOT / "algos" / "ppo.py").read_text()).body if getattr(x, "name", "") == "train"]
    source.body.pop(0)
    assert ast.unparse(ast.parse(loop)) == ast.unparse(source)


def test_readme_has_the_lengths_of_the_scripts():
    rows = re.findall(r"^\| `algos/(\w+)\.py` \|.* (\d+) \|$", README, re.MULTILINE)
    lengths = {algo: len((ROOT / "algos" / f"{algo}.py").read_text().splitlines()) for algo in ALGOS}
    assert {algo: int(length) for algo, length in rows} == lengths


def test_the_recipes_policy_acts_as_the_checkpoint_does(runs):
    """The lines of recipes.md, run on a checkpoint of a short run, give the script's own mean action."""
    script = load("ppo")
    script.main(flags_of("ppo", run_name="a"))
    path = runs / "runs/a/checkpoints/iter_000003.pt"
    checkpoint = script.load_checkpoint(path)
    args = script.Args(**checkpoint["args"])
    state = script.State(args)
    script.restore(state, checkpoint)
    state.obs_stats.push = lambda obs: None  # the statistics stay those of the checkpoint
    [lines] = [x for x in re.findall(r"```python\n(.*?)```", RECIPES, re.DOTALL) if "def act" in x]
    exec(re.sub(r'"runs/.*?\.pt"', f'"{path}"', lines), names := {})
    for obs in np.random.default_rng(0).normal(0, 3, (5, 11)):
        seen = torch.from_numpy(script.normalize_obs(args, state.obs_stats, obs))
        np.testing.assert_allclose(names["act"](obs), state.policy.mean(seen).detach(), rtol=1e-4, atol=1e-6)


# Imports the scripts, which neither print nor write, and runs one with the arguments that follow "run". What macOS or
# Windows lack is taken away before.
ELSEWHERE = """if True:
    import contextlib, io, os, runpy, signal, sys
    sys.modules["fcntl"] = None
    del os.sched_getaffinity
    for name in ("SIGHUP", "SIGPIPE", "SIGUSR1", "SIGUSR2"):
        delattr(signal, name)
    imported, sys.argv = sys.argv[1 : sys.argv.index("run")], sys.argv[sys.argv.index("run") + 1 :]
    before = os.listdir()
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(output):
        for path in imported:
            runpy.run_path(path, run_name="imported")
    assert output.getvalue() == "" and os.listdir() == before, output.getvalue()
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="takes away what only Linux has")
def test_the_scripts_need_neither_linux_nor_a_compiler_and_importing_does_nothing(runs):
    (runs / "a folder").mkdir()
    (runs / "a folder" / "my script.py").write_text((ROOT / "algos" / "ppo.py").read_text())
    beside = {"PYTHONPATH": str(ROOT / "diagnostics")}  # where a program finds the modules beside it
    no_compiler = {"CXX": "/nonexistent", "TORCHINDUCTOR_CACHE_DIR": str(runs / "a folder" / "cache")}
    paths = [f"{ROOT}/algos/{algo}.py" for algo in ALGOS] + [*map(str, (ROOT / "diagnostics").glob("*.py"))]
    call = [sys.executable, "-W", "ignore:only soft file lock", "-c", ELSEWHERE, *paths, "run", "a folder/my script.py"]
    call += flags_of("ppo", compile=True, total_timesteps=256)
    result = subprocess.run(call, env=os.environ | beside | no_compiler, capture_output=True, text=True)
    assert result.returncode == 0 and "continuing with --no-compile" in result.stderr, result.stderr
    [run] = (runs / "runs").iterdir()
    assert run.name.startswith("Hopper-v5__my script__") and len(checkpoints(run)) == 2
