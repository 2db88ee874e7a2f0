"""What the diagnostics share: rows that do not depend on the processes, survive interruptions and say whose they are;
runs that are refused; lines and intervals."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import lab
import numpy as np
import pytest
from conftest import CALLS, ROOT, last_line, load
from matplotlib.figure import Figure
from problems import rows
from scipy import stats

pytestmark = [pytest.mark.usefixtures("figures"), pytest.mark.xdist_group("diagnostics")]


BESIDE_THE_TESTS = os.environ | dict(PYTHONPATH=str(ROOT / "tests"))  # where a program finds environments:Chain-v0


def by_checkpoint(out, name):
    return sorted(rows(out, name), key=lambda row: (row["checkpoint"], row.get("step_pairs", 0)))


@pytest.mark.parametrize("name", [*CALLS, "updates"])
def test_a_row_is_the_same_whoever_computes_its_parts(known, name, tmp_path, figures):
    """Workers would compute the parts in other processes and in any order; here they do so in the reverse order."""
    program = load("steps" if name == "updates" else name)
    flags = CALLS.get(name, "--rewards 3 --step-pairs 64 128 --reward-pairs 60").split()
    program.main([str(known / "ppo"), *flags, "--checkpoints", "1", "--out", str(tmp_path), "--jobs", "1"])
    assert all(axis.lines or axis.collections for figure in figures.values() for axis in figure.axes)
    measure = getattr(program, dict(updates="measure_updates", steps="measure_steps").get(name, "measure"))
    measured = rows(tmp_path, name)
    names = measure.__code__.co_varnames[2 : measure.__code__.co_argcount]  # all but the checkpoint and parallel_map

    def backwards(function, *arguments):
        lab.cached_state.cache_clear()
        return [function(*call) for call in list(zip(*arguments))[::-1]][::-1]

    checkpoint = lab.Checkpoint(ROOT / "algos" / "ppo.py", known / "ppo", 1)
    for row in measured:
        again = json.loads(json.dumps(measure(checkpoint, backwards, **{x: row[x] for x in names})))
        assert row.items() >= again.items()


def test_jobs_change_no_row_and_a_second_call_measures_nothing(known, tmp_path):
    command = [sys.executable, str(ROOT / "diagnostics" / "evaluate.py"), str(known / "ppo"), "--episodes", "9"]
    for checkpoints in ("01", "2"):  # two rows side by side, and the parts of one
        flags = ["--checkpoints", *checkpoints, "--jobs", "2", "--out", str(tmp_path / "2")]
        subprocess.run([*command, *flags], check=True)
    load("evaluate").main([*command[2:], "--checkpoints", *"012", "--jobs", "1", "--out", str(tmp_path / "1")])
    assert by_checkpoint(tmp_path / "1", "evaluate") == by_checkpoint(tmp_path / "2", "evaluate")
    path = tmp_path / "1" / "evaluate.jsonl"
    before = path.read_bytes(), path.stat().st_mtime_ns
    load("evaluate").main([*command[2:], "--checkpoints", *"012", "--jobs", "2", "--out", str(tmp_path / "1")])
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before and before[0].count(b"\n") == 3


@pytest.mark.parametrize(
    "jobs, how, status", [("1", signal.SIGINT, 130), ("2", signal.SIGTERM, 130), ("1", signal.SIGKILL, -9)]
)
def test_an_interruption_loses_the_rows_under_way_and_nothing_else(known, tmp_path, jobs, how, status):
    command = [sys.executable, str(ROOT / "diagnostics" / "evaluate.py"), str(known / "chain"), "--out", str(tmp_path)]
    command += ["--checkpoints", "all", "--episodes", "1000", "--jobs", jobs]
    heard = dict(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))  # also under nohup
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=BESIDE_THE_TESTS, **heard)
    path = tmp_path / "evaluate.jsonl"
    while not path.exists() or path.read_text().count("\n") < 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(how)
    said = process.communicate()[1]
    assert process.returncode == status
    assert ("evaluate.py: interrupted; the same command resumes" in said) == (status > 0)
    kept = path.read_text().splitlines()
    load("evaluate").main([*command[2:-1], "1"])
    assert path.read_text().splitlines()[: len(kept)] == kept and len(rows(tmp_path, "evaluate")) == 7


def test_a_torn_line_is_measured_again_and_the_last_row_counts(known, tmp_path, monkeypatch):
    flags = [str(known / "ppo"), "--out", str(tmp_path), "--jobs", "1", "--heldout-pairs", "300", "--checkpoints"]
    path = tmp_path / "value.jsonl"
    load("value").main([*flags, "0", "1", "1"])  # each once
    first, second = whole = path.read_text().splitlines(keepends=True)
    for torn in (second[:50], second[:-1]):
        path.write_text(first + torn)
        load("value").main([*flags, "0", "1"])
        assert path.read_text().splitlines(keepends=True) == whole
    path.write_text("".join([json.dumps(json.loads(first) | dict(gamma=7)) + "\n", *whole]))
    load("value").main([*flags, "0", "--overwrite"])
    assert path.read_text().splitlines(keepends=True)[1:] == [*whole, first]
    counted, fill = [], lab.fill
    monkeypatch.setattr(lab, "fill", lambda *call: counted.extend(fill(*call)) or counted)
    load("value").main([*flags, "0"])
    assert counted == [json.loads(first)]


def test_a_run_with_the_untrained_policy_alone_is_told_which_flag_helps(known, tmp_path, capsys):
    shutil.copytree(known / "ppo", tmp_path / "run")
    for i in (1, 2):
        (tmp_path / f"run/checkpoints/iter_{i:06d}.pt").unlink()
    load("value").main([str(tmp_path / "run"), "--jobs", "1", "--heldout-pairs", "300"])
    assert "can be measured; train with a smaller --checkpoint-every" in capsys.readouterr().err


def test_rows_belong_to_checkpoints_and_not_to_names(known, tmp_path, capsys):
    """Two settings whose folders have the same name, and a run whose folder's name lies."""
    folders = {"a/seed1": "chain", "b/seed1": "chain_rate", "Hopper-v5__trpo__seed9": "chain2", "edited": "chain"}
    for name, setting in folders.items():
        shutil.copytree(known / setting, tmp_path / name)
    config = json.loads((tmp_path / "edited/config.json").read_text()) | dict(script="another version's")
    (tmp_path / "edited/config.json").write_text(json.dumps(config))
    flags = ["--out", str(tmp_path), "--jobs", "1", "--episodes", "2", "--checkpoints", "6"]
    load("evaluate").main([*[str(tmp_path / name) for name in folders], *flags])
    first, second, last, *_ = rows(tmp_path, "evaluate")
    assert first["run"] == second["run"] and first["checkpoint"] != second["checkpoint"]
    assert (last["algo"], last["env_id"], last["run_seed"]) == ("ppo", "environments:Chain-v0", 2)
    said = [line.split(",")[0] for line in capsys.readouterr().out.splitlines() if "return" in line]
    assert said == [str(tmp_path / name) for name in folders]  # not the mean of two runs


def test_rows_say_what_measured_them(known, tmp_path):
    """A change of what stands above "What follows" of a diagnostic is said; a change of a figure is none."""
    for file in ("diagnostics/lab.py", "diagnostics/value.py", "algos/ppo.py"):
        shutil.copy(ROOT / file, tmp_path)
    command = [sys.executable, "value.py", str(known / "chain"), "--script", "ppo.py", "--jobs", "1", "--out", "."]
    command += ["--checkpoints", "0", "--heldout-pairs", "300"]

    def measure(*extra):
        """Returns what the last row says of its code, and what a note says has changed since."""
        options = dict(cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=True, env=BESIDE_THE_TESTS)
        done = subprocess.run([*command, *extra], **options)
        return rows(tmp_path, "value")[-1]["measured_by"], re.findall(r"other versions \((.*)\)", done.stderr)

    def edit(file, old, new):
        text = (tmp_path / file).read_text()
        assert text.count(old) == 1
        (tmp_path / file).write_text(text.replace(old, new))

    first, notes = measure()
    assert first.keys() == {"value.py", "lab.py", "ppo.py", "torch", "gymnasium", "numpy"} and notes == []
    assert first["ppo.py"] == hashlib.sha256((tmp_path / "ppo.py").read_bytes()).hexdigest()[:12]
    edit("value.py", 'label="error as large as the target"', 'label="1"')
    edit("value.py", '"""Does the value network predict values?', '"""Values?')
    edit("lab.py", "stats.t.ppf(0.975", "stats.t.ppf(0.95")
    assert measure() == (first, [])
    edit("value.py", "0.01 * size[inner].mean()", "0.02 * size[inner].mean()")
    edit("lab.py", ":.9g", ":.8g")
    edit("ppo.py", "ALGO = ", "ALGO =  ")
    assert measure() == (first, ["ppo.py, value.py, lab.py"])  # kept, and said
    edited, notes = measure("--overwrite")
    assert all(edited[x] != first[x] for x in ("value.py", "lab.py", "ppo.py")) and notes == []


def test_a_run_that_brings_its_environments_code_is_refused(known, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(known / "ppo", "runs/X")
    text = (tmp_path / "runs/X/config.json").read_text()
    (tmp_path / "runs/X/evil.py").write_text("raise AssertionError\n")
    (tmp_path / "runs/X/config.json").write_text(text.replace("InvertedPendulum-v5", "runs.X.evil:Env-v0"))
    line = last_line(capsys, 2, load("evaluate").main, ["runs/X", "--jobs", "1"])
    assert "runs.X.evil of its environment came with it" in line


def test_the_papers_checkpoints_or_four_others():
    run = [lab.Checkpoint(ROOT, ROOT, i) for i in range(0, 480, 30)]
    chosen = lambda checkpoints, *given: [x.iteration for x in lab.choose(checkpoints, *given)]
    assert chosen(run, ()) == [0, 150, 300, 450] and chosen(run[:-1], ()) == [0, 150, 270, 420]
    assert chosen(run[:2], ()) == [0, 30] and chosen(run, (30, 30)) == [30] and chosen(run, (), run[-1:]) == [450]


def test_a_mean_matches_scipy():
    x = np.array([2311.0, 1757, 3239, 2609, 2380, 905, 2611, 3100])
    interval = stats.ttest_1samp(x, 0).confidence_interval()
    assert lab.mean_of(x) == dict(mean=x.mean(), interval=pytest.approx([*interval]))
    assert lab.mean_of(x[:1]) == dict(mean=2311, interval=None)
    assert lab.in_words(dict(mean=2.0, interval=None)) == "2"
    assert lab.in_words(dict(mean=2364.0, interval=[1737.7, 2990.3]), "{:,.0f}") == "2,364 [1,738, 2,990]"


def drawn(*returns):
    """Returns what is drawn of runs with one label, whose numbers at 0, 1, ... are given."""
    axis = Figure().subplots()
    style = dict(label="PPO", color="C0")
    lines = [(style, [dict(at=i, y=x) for i, x in enumerate(of_run)]) for of_run in returns]
    lab.draw_runs(axis, lines, "at", lambda row: dict(mean=row["y"], interval=[row["y"] - 1, row["y"] + 1]))
    bars = [segment for collection in axis.collections for segment in collection.get_segments()]
    return [line.get_ydata() for line in axis.lines if len(line.get_ydata())], [bar[:, 1].tolist() for bar in bars]


def test_runs_with_one_label_are_averaged_where_all_have_a_point():
    lines, bars = drawn([1.0, 4.0])
    assert [list(x) for x in lines] == [[1, 4]] and bars == [[0, 2], [3, 5]]  # of one run: its own
    lines, bars = drawn([1.0, 4.0], [3.0])
    assert [list(x) for x in lines] == [[1, 4], [3], [2]] and bars == []  # two runs' interval would hide all else
    lines, [bar] = drawn([1.0], [3.0], [8.0])
    half = 4.302653 * 13**0.5 / 3**0.5  # Student's t of three
    assert list(lines[-1]) == [4] and bar == pytest.approx([4 - half, 4 + half])
    lines, _ = drawn(*[[1000.0]] * 4, [100.0])
    assert list(lines[-1]) == [820]  # a mean counts runs and not different values
