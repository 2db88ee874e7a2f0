"""The checks of a script: each planted bug is named by its check, on a script that has not trained, and no healthy
script is accused. figures/report/plant.py trains the same bugs and counts."""

import sys

import pytest
from conftest import ALGOS, ROOT, load

sys.path.append(str(ROOT / "figures" / "report"))
import mutants
import plant


def judge(*about, **settings):
    return {x["check"]: x["status"] for x in plant.judge_untrained(*about, **settings)}


@pytest.mark.parametrize("bug", plant.read_bugs(), ids=lambda x: x.name)
def test_each_bug_is_named_and_no_healthy_edit_accused(bug, tmp_path):
    """An edit that people mean may differ, and then by the checks that are given for it."""
    script = plant.plant(bug, tmp_path)  # it stops where an edit fits no or two places
    if bug.kind == plant.EDITS:
        found = judge(bug.script, script, tmp_path / "run")
        assert {x for x in found if found[x] != "good"} <= {*bug.checks} and "bad" not in found.values(), found
    elif not bug.trained:
        found = judge(bug.script, script, tmp_path / "run", bug.checks)
        assert {"bad", "differs"} & set(found.values()), found


@pytest.mark.parametrize("switched", (False, True))
@pytest.mark.parametrize("algo", ALGOS)
def test_no_healthy_script_is_accused(algo, switched, tmp_path):
    """It is judged with its defaults, and with all of its on/off flags switched."""
    flags = {name: not x for name, x in vars(load(algo).Args()).items() if isinstance(x, bool) and switched}
    found = judge(algo, ROOT / "algos" / f"{algo}.py", tmp_path / "run", **flags | dict(compile=False))
    assert set(found.values()) == {"good"} and len(found) >= 15 - switched


@pytest.mark.parametrize("algo", ("ppo", "trpo"))
def test_advantages_that_are_not_normalized_as_the_argument_says_are_named(algo, tmp_path):
    source = (ROOT / "algos" / f"{algo}.py").read_text()
    line = "advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)"
    assert source.count(line) == 1
    for name, other in dict(raw="advantages = advantages", times=line.replace(") / (", ") * (")).items():
        (script := tmp_path / f"{name}.py").write_text(source.replace(line, other))
        assert judge(algo, script, tmp_path / name, ["surrogate"])["surrogate"] in ("differs", "bad"), name


def test_mutants_stop_are_set_aside_or_are_judged(tmp_path):
    """The program that counts them tells apart what stops, what is the same to the bit, and what is named."""
    drawn = list(mutants.draw("ppo_m", 9, 1))
    assert drawn == list(mutants.draw("ppo_m", 9, 1)) and len({x.source for x in drawn}) == 9
    for mutant in drawn:
        compile(mutant.source, "mutant", "exec")
    source = (ROOT / "algos" / "ppo_m.py").read_text()
    edits = dict(named=("torch.minimum(ratios", "torch.maximum(ratios"), stops=("rows, episodes = [], []", "rows = []"))
    edits["same bits"] = ("num_envs: int = 1 ", "num_envs: int = 2 ")  # which is given, so its default does not matter
    original = mutants.outcome(mutants.Mutant("ppo_m", "", 0, "", [], source), None, tmp_path / "itself")
    assert original["alarms"] == []
    for expected, (old, new) in edits.items():
        assert source.count(old) == 1
        mutant = mutants.Mutant("ppo_m", "policy_loss", 0, "", ["policy_loss"], source.replace(old, new))
        assert mutants.outcome(mutant, original["bits"], tmp_path / expected)["outcome"] == expected
