"""What all diagnostics share: fresh segments, frozen checkpoints, and a script's contract."""

import ast
import re
import shutil
import subprocess
import sys

import imageio
import numpy as np
import pytest
from conftest import CALLS, ROOT, TINY, flags_of, load
from measuring import sampling
from measuring.runs import CONTRACT, note
from problems import rows, source_of

pytestmark = [pytest.mark.usefixtures("figures"), pytest.mark.xdist_group("diagnostics")]  # one worker, so one pool


def test_groups_are_whole_segments_and_a_shorter_one(known):
    for K in (100, 256):  # from a reset to a cut that is no terminal state
        group = sampling.collect_group(source_of(known / "ppo", 2), (3,), 1, K)
        assert len(group["obs"]) == K and group["ends"][-1] and not group["terminations"][-1]
        assert np.abs(group["actions"][0]).max() > 0 and group["episodes"][0][1] == np.flatnonzero(group["ends"])[0] + 1
    assert sampling.groups(1100, 256) == [(4, 256), (1, 76)]
    assert sampling.groups(10 * 256, 256) == [(8, 256), (2, 256)]


def plain(x):
    """Tensors and arrays as lists, and what has a state dictionary as that, at any depth, so that == compares them."""
    if hasattr(x, "state_dict"):
        x = x.state_dict()
    if isinstance(x, dict):
        return {name: plain(y) for name, y in x.items()}
    return [plain(y) for y in x] if isinstance(x, list | tuple) else x.tolist() if hasattr(x, "tolist") else x


@pytest.mark.parametrize("algo", ("ppo", "reinforce"))
@pytest.mark.parametrize("name, measure", [("steps", "take_update"), ("landscape", "take_step")])
def test_updates_leave_the_checkpoint_as_it_was(known, name, measure, algo):
    module = load(name)
    source = source_of(known / algo, 1, algo)
    _, _, state = sampling.read_checkpoint(source)
    arguments = dict(take_update=(1, 256), take_step=(256, [(0, 0), (1, 2)]))[measure]

    def parts():
        found = {name: plain(part) for name, part in vars(state).items() if name not in ("workers", "rng")}
        return found | dict(rng=plain(state.rng.bit_generator.state))

    before = parts()
    first, again = (getattr(module, measure)(source, (3,), *arguments) for _ in range(2))
    assert plain(first) == plain(again) and parts() == before


def test_statistics_are_frozen(known):
    def moments(state):
        return plain([[x.count, x.mean, x.std] for x in (state.obs_stats, state.reward_stats)])

    source = source_of(known / "few_ppo", 2)
    script, args, state = sampling.checkpoint_state(source)
    found = moments(state)
    sampling.roll_out(script, args, state)
    assert moments(state) == found and min(found[0][2]) > 0 and found[1][2] > 0  # a copy, and frozen
    script, args, state = sampling.training_state(source)
    assert moments(state) == found
    sampling.roll_out(script, args, state)
    assert moments(state)[0][0] >= found[0][0] + 2 * 64


def test_an_episode_that_never_ends_is_refused(runs, capsys, monkeypatch):
    for name, most, sentence in (
        ("Endless", 500, "an episode has not ended after 500 steps"),
        ("Clock", 4, "its time limit is 5 steps, and episodes of up to 4 can be played"),
    ):
        load("ppo").main(flags_of("ppo", env_id=f"environments:{name}-v0", run_name=name, **TINY))
        monkeypatch.setattr(sampling, "ENDLESS", most)
        with pytest.raises(SystemExit) as ended:
            load("evaluate").main([f"runs/{name}", "--episodes", "2", "--jobs", "1"])
        assert ended.value.code == 2 and sentence in capsys.readouterr().err.splitlines()[-1]


def test_the_contract_is_all_that_diagnostics_use_of_a_script(capsys):
    files = [ROOT / "diagnostics" / f"{name}.py" for name in (*CALLS, "report")]
    used = set()
    for path in [*files, *(ROOT / "diagnostics" / "measuring").glob("*.py")]:
        used |= set(re.findall(r"(?<![.\w])script\.([A-Za-z_]+)", path.read_text()))
    needed = set(CONTRACT)
    assert needed <= used <= needed | {"name", "read_bytes", "value_loss"}
    described = (ROOT / "algos" / "README.md").read_text()
    assert all(f"- `{name}" in described for name in needed) and "value_loss(args, values, batch)" in described
    for path in files:
        fields = [x for x in ast.walk(ast.parse(path.read_text())) if isinstance(x, ast.ClassDef) and "Args" in x.name]
        texts = [x.value.value for x in fields[0].body if isinstance(x, ast.Expr)]
        assert texts and "\n" not in "".join(texts)  # --help would keep the break
        with pytest.raises(SystemExit) as ended:
            load(path.stem).main(["--help"])
        assert ended.value.code == 0
        assert "--seed" in capsys.readouterr().out


def test_a_script_and_what_it_imports_measure_in_an_empty_folder(known, tmp_path):
    """The user's modules may be called as diagnostics are."""
    shutil.copytree(ROOT / "diagnostics" / "measuring", tmp_path / "tools" / "measuring")
    for name in ("value", "steps"):
        shutil.copy(ROOT / "diagnostics" / f"{name}.py", tmp_path / "tools")
    (tmp_path / "steps.py").write_text("MINE = True\n")
    mine = tmp_path / "my_ppo.py"
    mine.write_text((ROOT / "algos" / "ppo.py").read_text() + "\nimport steps\n\nsteps.MINE\n")
    flags = ["--script", mine.name, "--jobs", "1", "--heldout-pairs", "300", "--out", "here"]
    subprocess.run([sys.executable, "tools/value.py", str(known / "ppo"), *flags], cwd=tmp_path, check=True)
    assert len(rows(tmp_path / "here", "value")) == 3
    assert imageio.v3.imread(tmp_path / "here" / "value.png").std() > 10  # no blank page


def test_several_runs_and_a_script_of_ones_own(known, tmp_path, capsys):
    mine = tmp_path / "my_ppo.py"
    mine.write_text((ROOT / "algos" / "ppo.py").read_text() + "\n")
    for name in ("value", "trust_region"):
        flags = ["--script", str(mine), "--jobs", "1", "--out", str(tmp_path), "--heldout-pairs", "300"]
        note.cache_clear()
        load(name).main([str(known / "chain"), *flags, "--checkpoints", "0", "1", "1"])
        assert len(rows(tmp_path, name)) == 2  # each once
        notes = capsys.readouterr().err
        assert "is not, or no longer, the script" in notes
    load("trust_region").main([str(known / x) for x in ("ppo", "reinforce")] + flags[2:])
    assert len(rows(tmp_path, "trust_region")) == 2 + 3 + 3


@pytest.mark.parametrize("name", [x for x in CALLS if x != "value"])
def test_reinforce_is_measured(known, name, tmp_path):
    flags = CALLS[name].replace("--baselines --value-pairs 500", "").split()
    load(name).main([str(known / "reinforce"), "--out", str(tmp_path), "--jobs", "1", *flags])
    assert rows(tmp_path, name)


@pytest.mark.parametrize("name, flags", [("value", []), ("gradient", ["--baselines"])])
def test_reinforce_has_no_value_network_to_measure(known, name, flags, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        load(name).main([str(known / "reinforce"), "--out", str(tmp_path), *flags])
    assert ended.value.code == 2 and "no value network" in capsys.readouterr().err
