"""The study of planted bugs: each bug still fits the script that it spoils, and the counts are right."""

import pytest
import sabotage
from measuring.runs import load_script


@pytest.mark.parametrize("case", [x for x in sabotage.BUGS if x.edits], ids=lambda x: x.name)
def test_every_bug_fits_its_script(case, tmp_path):
    assert load_script(sabotage.write_script(case, tmp_path)).Args()  # it stops where an edit fits no or two places


def test_counts_are_those_of_the_findings():
    def run(name, seed, status, healthy=False, tuning=False, new=False):
        found = [dict(section="Steps", status=status, number="3", verdict="too far"), dict(status="good")]
        kind = dict(healthy=healthy, tuning=tuning, new=new)
        return dict(name=name, seed=seed, pattern="Steps: too", quick=found) | kind

    results = [
        run("a", 1, "bad", tuning=True),
        run("a", 2, "good", tuning=True),
        run("b", 1, "caution"),
        run("b", 2, "no"),
    ]
    results[2]["pattern"] = "else"
    results += [run("c", 2, "bad", healthy=True), run("c", 1, "good", healthy=True)]
    results += [run("d", 2, "good", new=True)]
    found = {group: list(sabotage.count(results, group, "quick").values()) for group in sabotage.GROUPS}
    assert list(found.values()) == [
        [(1, 1), (1, 1)],
        [(0, 1), (0, 1)],
        [(1, 2), (0, 2)],
        [(0, 1), (0, 1)],
        [(0, 2), (0, 1)],
        [(1, 2), (1, 1)],
    ]
    assert sabotage.exact(8, 10) == "8 of 10 [44 %, 97 %]"  # Clopper and Pearson (1934)
