"""What is kept of a protocol's runs, and the analyses of those whose runs are still to come, on made-up numbers."""

import json
import sys

import numpy as np
import papers
import pytest
from conftest import ROOT
from scipy import stats

sys.path.insert(0, str(ROOT / "figures"))

import claims
import protocols
import rewards
import train

FLAGS = "--num-steps 256 --num-minibatches 2 --no-compile"


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A part of two runs of a thousand steps, with a diagnostic, whose lines go to a folder of their own."""
    monkeypatch.setitem(papers.AGENTS, "tiny", ("a2c", {"all": f"{FLAGS} --num-envs 1 --checkpoint-every 4"}))
    record = papers.Experiment("", "", ["tiny"], ["rewards", "evaluate --episodes 2"], 2, 1024, ["Hopper", "Swimmer"])
    monkeypatch.setitem(papers.EXPERIMENTS, "tiny", record)
    monkeypatch.setitem(protocols.PARTS, "tiny", protocols.Part("tiny", "tiny", range(3, 4), points=2))
    monkeypatch.setattr(protocols, "FIGURES", tmp_path)
    (tmp_path / "tiny").mkdir()
    return tmp_path


def call(folder):
    with pytest.raises(SystemExit) as ended:
        train.main(["tiny", "--runs-dir", str(folder / "runs")])
    return ended.value.code


def test_a_run_is_kept_as_a_line_and_not_trained_again(tiny, monkeypatch):
    """One of two runs has its line already. That of the other was not written to its end."""
    lines = [dict(agent="tiny", env_id=f"{x}-v5", seed=3, final=float(i)) for i, x in enumerate(("Hopper", "Swimmer"))]
    (tiny / "tiny/runs.jsonl").write_text(json.dumps(lines[0]) + "\n" + json.dumps(lines[1])[:20])
    with pytest.raises(ValueError, match="1 of 2 runs are missing, so that nobody looks"):
        protocols.whole("tiny")
    expected, summarize = [], protocols.summarize

    def look(folder, part):
        """Computes the final return as rewards.py does, before the folder is deleted."""
        expected.append(rewards.read_run(folder)["final"])
        return summarize(folder, part)

    monkeypatch.setattr(protocols, "summarize", look)
    assert call(tiny) == 0
    assert [x for x in (tiny / "runs").rglob("*") if x.suffix in (".pt", ".log")] == []
    first, line = protocols.whole("tiny")
    assert first == lines[0] and line["agent"] == "tiny" and not line["stopped"] and line["steps"] == 1024
    assert [line["final"]] == pytest.approx(expected, rel=1e-5) and len(line["episodic_return"]) == 2
    assert [x["iteration"] for x in line["rows"]["evaluate"]][-1] == 4
    assert call(tiny) == 0 and len(expected) == 1  # nothing is trained again


def test_a_failed_run_has_no_line_and_one_that_a_number_stopped_has(tiny, monkeypatch, capfd):
    texts = iter(["no space left", "ppo.py: iteration 7: a loss is not finite"])

    def fail(command, log):
        log.write_text(f"begun\n{next(texts)}\n")
        return 1

    monkeypatch.setattr(train, "call", fail)
    monkeypatch.setattr(train.shutil, "rmtree", lambda folder: None)
    monkeypatch.setattr(protocols, "summarize", lambda folder, part: dict(stopped=True, final=1.23456789))
    assert call(tiny) == 1 and "Hopper-v5, 3: training ended with status 1" in capfd.readouterr().err
    [line] = protocols.kept("tiny").values()
    assert line == dict(agent="tiny", env_id="Swimmer-v5", seed=3, stopped=True, final=1.23457)


def test_what_is_kept_of_trainings_log(tmp_path):
    """An iteration in which no episode ended counts in no mean, and steps beyond the plan belong to the last part."""
    config = dict(algo="x", script="0" * 64, versions={}, args=dict(total_timesteps=1030, num_envs=2, num_steps=50))
    (tmp_path / "config.json").write_text(json.dumps(config))
    returns = ["", 1, 2, "", "", 3, 4, 5, 6, 7]
    rows = [f"{100 * i + 100 + 30 * (i == 9)},{x}" for i, x in enumerate(returns)]
    part = protocols.Part("", "", range(1), logged=("episodic_return",), points=5)
    for count, stopped, curve, final in ((10, False, [1, 2, 3, 4.5, 6.5], 5), (7, True, [1, 2, 3, 4, None], 2.5)):
        (tmp_path / "progress.csv").write_text("\n".join(["global_step,episodic_return", *rows[:count], ""]))
        line = protocols.summarize(tmp_path, part)
        assert (line["stopped"], line["episodic_return"], line["final"]) == (stopped, curve, final)
        assert line["first"] == (3 if count == 10 else 2.5)


# Analyses ------------------------------------------------------------------------------------------------------------


def made_up(name, number):
    """Returns a line for each planned run, with what `number` says of its agent, its environment and its seed."""
    lines = []
    for agent, env_id, seed in protocols.planned(name):
        line = dict(agent=agent, env_id=env_id, seed=seed, stopped=False)
        lines.append(line | number(agent, env_id.partition("-")[0], seed))
    return lines


def fresh(name, monkeypatch, **lines):
    """Returns a room whose parts have these lines."""
    of_room = claims.room.__wrapped__(name)  # not the one that other tests share
    monkeypatch.setattr(of_room, "whole", lambda part: lines[part.replace("-", "_")])
    return of_room


def test_the_reference_finds_what_was_put_in(monkeypatch):
    rng, levels = np.random.default_rng(0), dict(trpo=300.0, a2c=1000.0, sb3_ppo=2100.0)

    def number(agent, place, seed):
        final = levels.get(agent.removesuffix(".py"), 2000.0) + rng.normal(0, 50)
        first = final + 500 if (agent, place) == ("a2c.py", "Humanoid") else 290 + rng.normal(0, 50)
        curve = [None, *np.linspace(first, final, 98), None]
        return dict(final=final, first=first, episodic_return=curve, processor="x")

    x = fresh("reference", monkeypatch, reference=made_up("reference", number), sb3_ppo=made_up("sb3-ppo", number))
    assert x.learns("ppo.py", "Ant") == "learns" and x.learns("a2c.py", "Humanoid") == "fails"
    assert x.not_learning()["a2c.py"] == ["fails on Humanoid"]
    assert all("is not known to learn" in y for y in x.not_learning()["trpo.py"]) and len(x.not_learning()) == 2
    header, *rows = map(list, x.finals_table())
    cells = {(row[0], place): cell for row in rows for place, cell in zip(header[1:], row[1:])}
    assert "**" in cells["`trpo.py`", "Ant-v5"] and "✗" in cells["`a2c.py`", "Humanoid-v5"]
    assert (
        "**" not in cells["`ppo.py`", "Ant-v5"]
        and cells["PPO of SB3", "Ant-v5"] == "" != cells["PPO of SB3", "Hopper-v5"]
    )
    assert [*x.sb3_table()][-1][1:] == ["as good as"] * 3  # by 100, which 5 and 10 seeds tell from 0 here
    finals = x.numbers("final")["Hopper"]
    welch = stats.ttest_ind(finals["ppo.py"], finals["sb3_ppo"], equal_var=False)
    assert x.from_sb3()["ppo.py − PPO of SB3"]["Hopper"].p() == pytest.approx(welch.pvalue)
    mean, low, high = x.curve("Hopper", "ppo.py")
    assert low[50] < mean[50] < high[50] and mean[0] == mean[1] and abs(mean[-1] - 2000) < 60
    monkeypatch.setattr(x, "minutes_per_million", lambda place, agent: 3.0)
    for picture, end in (("curves", 1), ("minutes", 3)):
        axis = x.PICTURES[picture]().axes[0]
        assert len(axis.lines) == 9 and axis.lines[0].get_xdata()[-1] == pytest.approx(0.995 * end)
