"""The repository's promises about itself."""

import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tyro
from conftest import ALGOS, ROOT, load

TOOLS = {"matplotlib", "jinja2", "scipy", "submitit", "pytest", "pytest-xdist", "ruff"}  # what a script does not need


@pytest.mark.parametrize("algo", ALGOS)
def test_script_metadata_has_the_pins_of_requirements(algo):
    text = (ROOT / "algos" / f"{algo}.py").read_text()
    metadata = re.match(r"# /// script\n((?:#.*\n)+?)# ///\n", text)[1]
    metadata = tomllib.loads(re.sub(r"^# ?", "", metadata, flags=re.MULTILINE))
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pins = [line for line in lines if line and line[0] != "#" and line.split("==")[0] not in TOOLS]
    assert metadata == {"requires-python": ">=3.11", "dependencies": pins}


def test_readme_commands_are_understood(runs, monkeypatch):
    """The scripts take every argument of the commands that stand on a line of their own, or after &&."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [shlex.split(part, comments=True) for x in blocks for y in x.splitlines() for part in y.split("&&")]
    understood = dict(algos=0, diagnostics=0, experiments=0)
    for program, *rest in filter(None, lines):
        if program == "./benchmark.sh":
            load("experiments").read_arguments(rest)
            understood["experiments"] += 1
        elif program == "python" and rest[0] != "-m":
            path, *flags = rest
            script, folder = load(Path(path).stem), Path(path).parent.name
            assert (ROOT / path).is_file()
            understood[folder] += 1
            if folder == "algos":
                monkeypatch.setattr(script, "train", lambda args: None)
                script.main([*flags, "--no-compile"])
            else:
                tyro.cli(script.Args, args=flags)
    assert all(number >= 3 for number in understood.values()), understood


def test_tables_hold_the_measured_rewards():
    readme, results = ((ROOT / path).read_text().replace("−", "-") for path in ("README.md", "figures/README.md"))

    def measured(name):
        return json.loads((ROOT / "figures" / name / "rewards.json").read_text())

    def show(numbers):
        return "{} [{}, {}]".format(*(round(x) for x in (numbers["value"], *numbers["interval"])))

    rows = [f"| {x['label']} | {show(x['mean'])} |" for x in measured("clipping")["settings"]]
    [cell] = measured("clipping")["aai"]
    rows += [f"| AAI: what the step changes | {show(cell['aai'])} |"]
    rows += [f"| ACLI: what the optimizations change | {show(cell['acli'])} |"]
    worth = {}  # the others on, the others off
    for x in measured("leave-one-out")["paired"]:
        name = x["switched"][0].replace("_", "-")
        worth.setdefault(f"`--{name}`" if len(x["switched"]) == 1 else "all nine", []).append(show(x["mean"]))
    rows += [f"{name} | {x[0]} | {x[1]} |" for name, x in worth.items() if name != "all nine"]
    rows += [f"| all nine together | {worth['all nine'][0]} | |"]
    by_algo = {}
    for x in sorted(measured("algorithms")["settings"], key=lambda x: x["env_id"], reverse=True):
        finals = sorted(map(round, x["finals"]))
        by_algo.setdefault(x["algo"], []).append(f"{round(x['mean']['value'])} | {finals[0]} to {finals[-1]}")
    rows += [f"| `{algo}.py` | {' | '.join(x)} |" for algo, x in by_algo.items()]
    assert len(rows) == 5 + 2 + 9 + 1 + 8
    assert [row for row in rows if row not in results] == []
    shown = [line for line in readme.splitlines() if line.startswith("| ") and line.endswith("] |")]
    assert len(shown) == 9
    for line, (name, x) in zip(shown, ((name, x) for name, x in worth.items() if name != "all nine")):
        assert name in line and line.endswith(f" | {x[0]} | {x[1]} |")


def test_table_of_value_errors_holds_the_measured_ones():
    results = (ROOT / "figures" / "README.md").read_text()
    cells = [x for x in json.loads((ROOT / "figures" / "values" / "value.json").read_text()) if x["iteration"] >= 100]
    for target in ("gae", "returns", "released"):
        row = ""
        for algo in ("ppo", "trpo_plus"):
            errors = [x[f"heldout_{target}"]["mean"] for x in cells if x["algo"] == algo]
            assert len(errors) == 32
            row += f" | {statistics.median(errors):.3f}, {min(errors):.3f} to {max(errors):.3f}"
        assert f"{row} |\n" in results
    for algo, label in (("ppo", "PPO"), ("trpo_plus", "TRPO+")):
        found = [x["heldout_released"] for x in cells if x["algo"] == algo]
        assert f"{statistics.median(x['exact_v'] / x['mean'] for x in found):.2f} ({label})" in results


def test_readme_shows_the_loop_as_it_stands():
    source = (ROOT / "algos" / "ppo.py").read_text()
    [loop] = [x for x in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL) if "def " in x]
    assert loop in source


def test_importing_has_no_side_effects(runs):
    code = "import runpy, sys; [runpy.run_path(path, run_name='imported') for path in sys.argv[1:]]"
    paths = [str(path) for folder in ("algos", "diagnostics") for path in (ROOT / folder).glob("*.py")]
    beside = os.environ | {"PYTHONPATH": str(ROOT / "diagnostics")}  # where a program finds the modules beside it
    call = [sys.executable, "-c", code, *paths]
    result = subprocess.run(call, env=beside, capture_output=True, text=True, check=True)
    assert result.stdout + result.stderr == "" and list(runs.iterdir()) == []
