"""figures/papers.md, the index of the papers' figures: nothing is missing, its commands are accepted, its links lead
somewhere."""

import re
import runpy
import shlex

import papers
import pytest
import tyro
from conftest import ROOT, load

PAGE = ROOT / "figures" / "papers.md"
TEXT = PAGE.read_text()
COMMANDS = sorted({" ".join(x.split()) for x in re.findall(r"`((?:\./benchmark\.sh |python diagnostics/)[^`]*)`", TEXT)})
NUMBERED = dict(IM=(4, 6), CL=(20, 1), TPG=(29, 0), BLOG=(0, 0), GUIDE=(7, 3))  # figures and tables


def test_each_numbered_figure_and_table_has_a_row():
    rows = {}
    for section in TEXT.split("\n## ")[1:]:
        rows[section.partition(":")[0]] = re.findall(r"^\| ((?:Fig\.|Table) \d+) \|", section, re.MULTILINE)
    expected = {}
    for paper, (figures, tables) in NUMBERED.items():
        expected[paper] = [f"Fig. {i + 1}" for i in range(figures)] + [f"Table {i + 1}" for i in range(tables)]
    assert rows == expected


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_index_is_accepted(command, monkeypatch, tmp_path):
    """By the parsers of the programs; nothing runs."""
    program, *words = shlex.split(command)
    if program == "python":
        args = tyro.cli(load(words[0].split("/")[-1].removesuffix(".py")).Args, args=words[1:])
        assert [x.name for x in args.runs] == ["RUN"]
        return
    words, _, passed_on = (x.split() for x in " ".join(words).partition(" -- "))
    args = load("experiments").read_arguments(words)
    for tables in ("AGENTS", "EXPERIMENTS"):
        monkeypatch.setattr(papers, tables, dict(getattr(papers, tables)))
    if args.file:
        monkeypatch.chdir(tmp_path)  # where it may write
        runpy.run_path(ROOT / args.file)
    experiment = papers.EXPERIMENTS[args.name]
    assert set(args.envs) <= set(experiment.envs)
    diagnostic, *options = shlex.split(experiment.results[0])
    assert len(tyro.cli(load(diagnostic).Args, args=[*options, *passed_on, "--", "RUN"]).runs) == 1


def test_the_links_of_the_index_lead_somewhere():
    links = set(re.findall(r"\]\(([^)#]+)\)", TEXT))
    assert {x for x in links if not (PAGE.parent / x).exists()} == set()
    pictures = {str(x.relative_to(PAGE.parent)) for x in PAGE.parent.glob("landscapes/surfaces_*.png")}
    assert len(pictures) == 7 and pictures <= links
