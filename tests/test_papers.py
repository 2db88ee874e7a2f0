"""figures/papers.md, the index of the papers' figures: nothing is missing, its commands are accepted. And the scripts
that made published numbers make them again, or small ones."""

import json
import re
import runpy
import shlex
from unittest.mock import patch

import numpy as np
import papers
import pytest
import tyro
from conftest import ROOT, flags_of, load
from matplotlib.figure import Figure
from scipy import stats

TEXT = (ROOT / "figures" / "papers.md").read_text()
NAMED = re.findall(r"`((?:\./benchmark\.sh |python diagnostics/)[^`]*)`", TEXT)
COMMANDS = sorted({" ".join(x.split()) for x in NAMED})


def test_each_numbered_figure_and_table_has_a_row():
    numbered = dict(IM=(4, 6), CL=(20, 1), TPG=(29, 0), BLOG=(0, 0), GUIDE=(7, 3))  # figures and tables
    for section in TEXT.split("\n## ")[1:]:
        figures, tables = numbered.pop(section.partition(":")[0])
        expected = [f"Fig. {i + 1}" for i in range(figures)] + [f"Table {i + 1}" for i in range(tables)]
        assert re.findall(r"^\| ((?:Fig\.|Table) \d+) \|", section, re.MULTILINE) == expected
    assert not numbered


@pytest.mark.parametrize("command", COMMANDS)
@patch.dict(papers.AGENTS)
@patch.dict(papers.EXPERIMENTS)
def test_a_command_of_the_index_is_accepted(command, monkeypatch, tmp_path):
    """By the parsers of the programs; nothing runs."""
    program, *words = shlex.split(command)
    if program == "python":
        args = tyro.cli(load(words[0].split("/")[-1].removesuffix(".py")).Args, args=words[1:])
        assert [x.name for x in args.runs] == ["RUN"]
        return
    end = words.index("--") if "--" in words else len(words)
    args, passed_on = load("experiments").read_arguments(words[:end]), words[end + 1 :]
    if args.file:
        monkeypatch.chdir(tmp_path)  # where it may write
        runpy.run_path(ROOT / args.file)
    experiment = papers.EXPERIMENTS[args.name]
    assert set(args.envs) <= set(experiment.envs)
    diagnostic, *options = shlex.split(experiment.results[0])
    assert len(tyro.cli(load(diagnostic).Args, args=[*options, *passed_on, "--", "RUN"]).runs) == 1


# What is published can be made ---------------------------------------------------------------------------------------


def script_of(path):
    """The names of a script beside the results."""
    return runpy.run_path(ROOT / "figures" / path)


def published(path):
    return json.loads((ROOT / "figures" / path).read_text())


def test_the_small_pictures_are_of_the_rooms_numbers():
    four, numbers = script_of("four.py"), []
    for name in ("gradient", "value", "landscape", "trust_region"):
        four[name](figure := Figure())
        numbers.append([y for axis in figure.axes for line in axis.lines for y in line.get_ydata()])
        assert (ROOT / "figures" / "four" / f"{name}.png").stat().st_size < 150_000
    landscape, steps = four["landscapes"].landscapes("Walker2d", 300)[0], published("steps/walker2d.json")
    change = landscape["TRPO", 2000][3.0, 0.0]["change"]["mean"]
    assert np.isclose(numbers[2], change).any() and steps[7]["train"]["max_ratio"] in numbers[3]
    assert published("critic/walker2d.json")[7]["heldout_released"]["mean"] in numbers[1]
    [cosine] = [x for x in published("gradients/walker2d.json") if x["algo"] == "trpo_plus" and x["iteration"] == 300]
    assert cosine["variance"]["value network"][1]["mean"] in numbers[0]


def test_a_landscape_is_made_of_rows(tmp_path):
    """A row for each point, with its change from the checkpoint."""
    script, path = script_of("rows.py"), tmp_path / "landscape.jsonl"
    path.write_text((ROOT / "figures/jagged/concentration.jsonl").read_text())
    script["main"](path, tmp_path / "out.json")
    start, *points = json.loads((tmp_path / "out.json").read_text())
    assert (start["step"], start["random"], start["change"]["mean"]) == (0, 0, 0) and len(points) == 6
    changes = [x["mean"] - start["mean"] for x in points]
    assert [x["change"]["mean"] for x in points] == pytest.approx(changes) and all(changes)


def test_updates_are_made_of_rows(tmp_path):
    """The published ones from rows with the standard deviations that their intervals have."""
    script, old = script_of("rows.py"), published("steps/updates_hopper.json")[5]
    agents = script["agents"]("Hopper-v5", 2)
    assert sorted(agents.values()) == ["CL-PPO", "PPO-M", "TRPO"]
    row = {name: old[name] for name in ("episodes", "step_pairs", "updates")}
    row |= dict(env_id="Hopper-v5", run_seed=2, changes=[])
    row["run"] = next(run for run, agent in agents.items() if agent == old["agent"])
    for x in old["changes"]:
        half = np.ptp(x["interval"]) / 2 / stats.t.ppf(0.975, old["episodes"] - 1)
        difference = dict(mean=x["mean"], std=half * old["episodes"] ** 0.5)
        of_update = dict(before=dict(mean=x["before"]), after=dict(mean=x["after"]), difference=difference)
        row["changes"].append(of_update | dict(promised=x["promised"]))
    (tmp_path / "updates.jsonl").write_text(json.dumps(row) + "\n")
    script["main"](tmp_path / "updates.jsonl", tmp_path / "out.json")
    [new] = json.loads((tmp_path / "out.json").read_text())
    assert new["agent"] == old["agent"] and new["noise"] == pytest.approx(old["noise"])
    for name in ("change", "spread", "harmful"):
        assert new[name]["mean"] == pytest.approx(old[name]["mean"])
        assert new[name]["interval"] == pytest.approx(old[name]["interval"], rel=1e-6)
    assert [x["interval"] for x in new["changes"]] == [pytest.approx(x["interval"]) for x in old["changes"]]


def test_the_noise_of_the_nine_is_joined_with_their_rewards():
    """The published intervals from the published cosines. If a cosine is the square of what is on, so are they."""
    script, old = script_of("nine/noise.py"), published("nine/noise.json")
    for pair in old["paired"]:
        for x in pair["noise"]:
            new = script["difference"](np.array(x["on"]), np.array(x["off"]))
            assert new["mean"] == pytest.approx(x["mean"]["mean"])
            assert new["interval"] == pytest.approx(x["mean"]["interval"])
    names, cosines = old["paired"][-1]["switched"], {}
    for i, setting in enumerate(old["settings"]):
        setting["folders"] = [f"runs/{i}-{seed}" for seed in setting["seeds"]]
        on = sum(setting["settings"][name] for name in names)
        cosines |= {f"{i}-{seed}": {150: np.full(3, on**2)} for seed in setting["seeds"]}
    for pair in script["with_noise"](old, cosines)["paired"]:
        off, switched = len(pair["others_on"]), len(pair["switched"])
        assert [x["mean"]["mean"] for x in pair["noise"]] == [(off + switched) ** 2 - off**2]


def test_units_and_columns_are_made_of_runs(runs, tmp_path):
    load("ppo").main(flags_of("ppo", run_name="a"))
    folder, out = runs / "runs" / "a", tmp_path / "out.json"
    script_of("nine/units.py")["main"](folder, out=out)
    [row] = json.loads(out.read_text())
    last = load("ppo").load_checkpoint(max(folder.glob("checkpoints/iter_*.pt")))
    assert row["std"] == pytest.approx(last["reward_stats"]["std"]) and row["iteration"] == last["iteration"]
    script_of("algorithms/columns.py")["main"](folder, out=out)
    [columns] = json.loads(out.read_text()).values()
    lines = (folder / "progress.csv").read_text().splitlines()
    kls = [float(line.split(",")[lines[0].split(",").index("mean_kl")]) for line in lines[1:]]
    assert columns["mean_kl"] == pytest.approx(np.percentile(kls, [5, 95]), abs=1e-6)
    assert set(columns) >= set(published("algorithms/columns.json")["Hopper-v5"])
