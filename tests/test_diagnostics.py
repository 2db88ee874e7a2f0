"""What all diagnostics share: fresh segments, frozen checkpoints, and a script's contract."""

import re
import shutil
import subprocess
import sys

import imageio
import lab
import numpy as np
import pytest
from conftest import CALLS, ROOT, load
from problems import checkpoint_of, rows

pytestmark = [pytest.mark.usefixtures("figures"), pytest.mark.xdist_group("diagnostics")]  # one worker, so one pool


def test_fresh_pairs_are_whole_segments_and_the_start_of_one_more(known):
    checkpoint, shapes = checkpoint_of(known / "ppo", 2), []
    for pairs in (100, 256):  # from a reset to a cut that is no terminal state
        steps = lab.fresh_segments(checkpoint, map, (3,), pairs)
        assert len(steps["obs"]) == pairs and steps["ends"][-1] and not steps["terminations"][-1]
    keep = lambda checkpoint, seed, *shape: shapes.append((seed, *shape)) or dict(x=np.zeros(1))
    for pairs in (1100, 2560):
        lab.fresh_segments(checkpoint, map, (5,), pairs, keep)
    assert shapes == [((5, 0), 4, 256), ((5, 1), 1, 76), ((5, 0), 8, 256), ((5, 1), 2, 256)]


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
    module, checkpoint = load(name), checkpoint_of(known / algo, 1, algo)
    _, _, state = lab.cached_state(checkpoint)
    arguments = dict(take_update=((3,), 1, 256), take_step=(map, (3,), 256, [(0, 0), (1, 2)]))[measure]

    def parts():
        found = {name: plain(part) for name, part in vars(state).items() if name not in ("workers", "rng")}
        return found | dict(rng=plain(state.rng.bit_generator.state))

    before = parts()
    first, again = (getattr(module, measure)(checkpoint, *arguments) for _ in range(2))
    assert plain(first) == plain(again) and parts() == before


def test_statistics_are_frozen(known):
    def moments(state):
        return plain([[x.count, x.mean, x.std] for x in (state.obs_stats, state.reward_stats)])

    checkpoint = checkpoint_of(known / "few_ppo", 2)
    script, args, state = lab.frozen_state(checkpoint)
    found = moments(state)
    script.rollout(args, state)
    assert moments(state) == found and min(found[0][2]) > 0 and found[1][2] > 0  # a copy, and frozen
    assert min(moments(lab.frozen_state(checkpoint_of(known / "few_ppo"))[2])[0][2]) > 0  # those of a rollout, at 0
    script, args, state = lab.training_state(checkpoint)
    assert moments(state) == found
    script.rollout(args, state)
    assert moments(state)[0][0] >= found[0][0] + 2 * 64


CONTRACT = "Args State load_checkpoint restore rollout estimate_advantages policy_loss update".split()


def test_the_contract_is_all_that_diagnostics_use_of_a_script():
    files, used = [ROOT / "diagnostics" / f"{name}.py" for name in CALLS], set()
    for path in [*files, ROOT / "diagnostics" / "lab.py", *(ROOT / "diagnostics" / "report").glob("*.py")]:
        used |= set(re.findall(r"(?<![.\w])(?:script|module)\.([A-Za-z_]+)", path.read_text()))
    assert {*CONTRACT} <= used <= {*CONTRACT, "name", "exists", "read_bytes", "read_text", "value_loss"}
    described = (ROOT / "algos" / "README.md").read_text()
    assert all(f"- `{name}" in described for name in CONTRACT) and "value_loss(args, values, batch)" in described


BESIDE = dict(baselines=["gradient"], steps=["gradient"])  # what a diagnostic needs besides lab.py


@pytest.mark.parametrize("name", CALLS)
def test_two_files_measure_in_an_empty_folder_with_a_script_of_ones_own(known, name, tmp_path):
    """Which is noted, since it did not train the run."""
    for file in (name, "lab", *BESIDE.get(name, [])):
        shutil.copy(ROOT / "diagnostics" / f"{file}.py", tmp_path)
    (tmp_path / "my_ppo.py").write_text((ROOT / "algos" / "ppo.py").read_text() + "\n")
    flags = [*CALLS[name].split(), "--checkpoints", "1", "--script", "my_ppo.py", "--jobs", "1", "--out", "here"]
    command = [sys.executable, f"{name}.py", str(known / "ppo"), *flags]
    said = subprocess.run(command, cwd=tmp_path, check=True, stderr=subprocess.PIPE, text=True).stderr
    assert "my_ppo.py is not, or no longer, the script that made" in said
    [row] = rows(tmp_path / "here", name)
    assert row["measured_by"].keys() >= {f"{x}.py" for x in ("my_ppo", "lab", name, *BESIDE.get(name, []))}
    assert imageio.v3.imread(tmp_path / "here" / f"{name}.png").std() > 10  # no blank page


@pytest.mark.parametrize("name", [x for x in CALLS if x not in ("value", "baselines")])
def test_reinforce_is_measured(known, name, tmp_path):
    load(name).main([str(known / "reinforce"), "--out", str(tmp_path), "--jobs", "1", *CALLS[name].split()])
    assert rows(tmp_path, name)
