"""Tables of rows: they do not depend on the processes, survive interruptions, and say whose they are."""

import contextlib
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import measuring.runs
import measuring.table
import pytest
from conftest import CALLS, ROOT, load

pytestmark = [pytest.mark.usefixtures("figures"), pytest.mark.xdist_group("diagnostics")]  # one worker, so one pool


def rows(out, name):
    return measuring.table.read_rows(out / f"{name}.jsonl")


def by_checkpoint(out, name):
    return sorted(rows(out, name), key=lambda row: (row["checkpoint"], row.get("step_pairs", 0)))


@pytest.fixture(scope="module")
def pool():
    """Two worker processes as a table starts them, once for all tests."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), measuring.table.start_process) as executor:
        yield executor


@pytest.mark.parametrize("name", [*CALLS, "updates"])
def test_jobs_do_not_change_a_bit(known, name, tmp_path, figures, pool, monkeypatch):
    class Shared(contextlib.nullcontext):
        submit = pool.submit

    monkeypatch.setattr(measuring.table, "ProcessPoolExecutor", lambda *_: Shared())
    flags = [*CALLS.get(name, "--rewards 3 --step-pairs 64 128 --reward-pairs 60").split(), "--checkpoints", "0", "1"]
    for jobs in ("1", "2"):
        figures.clear()
        program = load("steps" if name == "updates" else name)
        program.main([str(known / "ppo"), *flags, "--out", str(tmp_path / jobs), "--jobs", jobs])
        assert f"{name}.png" in figures and all(axis.lines or axis.collections for axis in figures[f"{name}.png"].axes)
    assert by_checkpoint(tmp_path / "1", name) == by_checkpoint(tmp_path / "2", name) != []
    assert not list(tmp_path.glob(f"*/.{name}_*"))  # no part is left


def test_killed_and_repeated_equals_uninterrupted(known, tmp_path, monkeypatch):
    """A row under way keeps the parts that were ready."""
    out, flags = tmp_path / "killed", "--checkpoints 0 1 --grid 4 --step-pairs 64 --reward-pairs 400".split()
    command = [sys.executable, str(ROOT / "diagnostics" / "landscape.py"), str(known / "ppo"), "--out", str(out)]
    ready = lambda: {path: path.stat().st_mtime_ns for path in out.glob(".landscape_*/*/*.pt")}
    kept = {}
    kills = ("2", signal.SIGTERM, 130, "resumes from what is kept"), ("1", signal.SIGKILL, -9, "")
    for jobs, how, status, message in kills:
        process = subprocess.Popen([*command, *flags, "--jobs", jobs], stderr=subprocess.PIPE, text=True)
        while len(ready()) <= len(kept):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(how)
        assert message in process.communicate()[1] and process.returncode == status
        kept = ready()
    computed, compute = [], measuring.table.compute_part
    monkeypatch.setattr(measuring.table, "compute_part", lambda path, *x: (computed.append(path), compute(path, *x)))
    load("landscape").main([str(known / "ppo"), "--out", str(out), "--jobs", "1", *flags])
    assert kept and computed and not kept.keys() & set(computed)
    load("landscape").main([str(known / "ppo"), "--out", str(tmp_path / "whole"), "--jobs", "1", *flags])
    assert by_checkpoint(out, "landscape") == by_checkpoint(tmp_path / "whole", "landscape")


def test_a_torn_line_is_measured_again_and_the_last_row_counts(known, tmp_path):
    flags = [str(known / "ppo"), "--out", str(tmp_path), "--jobs", "1", "--heldout-pairs", "300", "--checkpoints"]
    path = tmp_path / "value.jsonl"
    load("value").main([*flags, "0", "1", "1"])  # each once
    first, second = whole = path.read_text().splitlines(keepends=True)
    for torn in (second[:50], second[:-1]):
        path.write_text(first + torn)
        assert rows(tmp_path, "value") == [json.loads(first)]
        load("value").main([*flags, "0", "1"])
        assert path.read_text().splitlines(keepends=True) == whole
    path.write_text("".join([json.dumps(json.loads(first) | dict(gamma=7)) + "\n", *whole]))
    load("value").main([*flags, "0", "--overwrite"])
    assert path.read_text().splitlines(keepends=True)[1:] == [*whole, first]
    assert measuring.table.last_row(rows(tmp_path, "value"), dict(iteration=0)) == json.loads(first)


def test_rows_in_use_or_damaged_are_left_alone(known, tmp_path, capsys):
    path, arguments = tmp_path / "value.jsonl", [str(known / "ppo"), "--out", str(tmp_path), "--jobs", "1"]
    with measuring.table.locked(path), pytest.raises(SystemExit) as ended:
        load("value").main(arguments)
    assert ended.value.code == 2 and "in use by another process" in capsys.readouterr().err
    for damaged in ("[\n", "[1]\n"):
        path.write_text(damaged)
        with pytest.raises(SystemExit) as ended:
            load("value").main(arguments)
        assert ended.value.code == 2 and "is damaged" in capsys.readouterr().err
        assert path.read_text() == damaged and {x.suffix for x in tmp_path.iterdir()} == {".jsonl", ".lock"}


def test_rows_belong_to_checkpoints_and_not_to_names(known, tmp_path):
    """Two settings whose folders have the same name, and a run whose folder's name lies."""
    folders = {"a/seed1": "chain", "b/seed1": "chain_rate", "Hopper-v5__trpo__seed9": "chain2"}
    for name, setting in folders.items():
        shutil.copytree(known / setting, tmp_path / name)
    for name in folders:  # in calls of their own
        flags = ["--out", str(tmp_path), "--jobs", "1", "--episodes", "2", "--checkpoints", "6"]
        load("evaluate").main([str(tmp_path / name), *flags])
    first, second, last = rows(tmp_path, "evaluate")
    assert first["setting"] != second["setting"]
    source = measuring.runs.Source(ROOT / "algos" / "ppo.py", tmp_path / "b/seed1", 6)
    assert measuring.table.rows_of(tmp_path / "evaluate.jsonl", [source]) == [[second]]
    assert (last["algo"], last["env_id"], last["run_seed"]) == ("ppo", "environments:Chain-v0", 2)


def test_rows_say_what_measured_them(known, tmp_path, capsys, monkeypatch):
    mine, source = tmp_path / "my_ppo.py", (ROOT / "algos" / "ppo.py").read_text()
    flags = [str(known / "chain"), "--checkpoints", "0", "--script", str(mine), "--jobs", "1", "--out", str(tmp_path)]

    def measure(*extra):
        """What the row says of its code, and what a note says has changed since."""
        measuring.runs.note.cache_clear()
        load("value").main([*flags, "--heldout-pairs", "300", *extra])
        *_, row = rows(tmp_path, "value")
        return row["measured_by"], re.findall(r"another version of (\S+);", capsys.readouterr().err)

    mine.write_text(source)
    first, notes = measure()
    digest = hashlib.sha256((ROOT / "diagnostics" / "value.py").read_bytes()).hexdigest()[:12]
    assert first.keys() == {"value.py", "sampling.py", "my_ppo.py"} and first["value.py"] == digest
    assert notes == [] and measure() == (first, [])
    mine.write_text(source + "\nx = 1\n")
    assert measure() == (first, ["my_ppo.py"])  # kept, and said
    edited, notes = measure("--overwrite")
    assert edited["my_ppo.py"] != first["my_ppo.py"] and notes == []
    monkeypatch.setattr(measuring.table.mujoco, "__version__", "0")
    assert measure() == (edited, ["mujoco"])


def test_a_process_that_dies_is_one_line(capsys):
    def add_row(processes):
        measuring.table.ROW.processes = processes
        with processes.turn:
            processes.pool.submit(os._exit, 3).result()

    with pytest.raises(SystemExit) as ended:
        measuring.table.measure_rows(2, add_row, [()])
    assert ended.value.code == 1 and "a worker died (out of memory?); the same command" in capsys.readouterr().err
