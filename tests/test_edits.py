"""What people do to a copy of a script: each test makes the edit that it names."""

import re
import subprocess
import sys
from dataclasses import replace

import lab
import pytest
import torch
from conftest import ROOT, assert_same, checkpoints, contents, flags_of, iterate, last_line, load, progress, settings_of
from torch._dynamo.utils import counters


@pytest.fixture
def edited(tmp_path):
    """A function that makes a copy of a script, replaces texts which it must contain, and returns it as a module."""

    def edit(*edits, algo="ppo"):
        source = (ROOT / "algos" / f"{algo}.py").read_text()
        for old, new in edits:
            assert source.count(old) == 1, old
            source = source.replace(old, new)
        (path := tmp_path / f"my_{algo}.py").write_text(source)
        return lab.load_script(path)

    return edit


def begun(script, algo, **settings):
    """The script's arguments and initial state, of a few steps and of networks that compile fast."""
    small = dict(num_steps=64, total_timesteps=640, policy_hidden=(4,))
    small |= {} if algo == "reinforce" else dict(value_hidden=(4,))
    args = script.Args(**settings_of(algo, **(small | settings)))
    return args, script.State(args)


# Where the update has its learning rates, it has everything that a schedule needs.
RATES = "    # (9) Each network has its own norm"
SCHEDULE = "    args = replace(args, clip_eps=torch.tensor(args.clip_eps * lr_fraction))\n"


@pytest.mark.xdist_group("compiled")
def test_a_schedule_as_contributing_shows_it_is_compiled_once_for_each_network(edited, monkeypatch, compiler):
    assert SCHEDULE.strip() in (ROOT / "CONTRIBUTING.md").read_text()
    script = edited((RATES, SCHEDULE + RATES))
    args, state = begun(script, "ppo", compile=True)
    torch.compiler.reset()
    counters.clear()
    seen, measure = [], script.measure_update
    look = lambda args, *x: seen.append(float(args.clip_eps)) or measure(args, *x)
    monkeypatch.setattr(script, "measure_update", look)
    for _ in range(3):
        iterate(script, args, state)
    assert seen == pytest.approx([0.2, 0.18, 0.16])
    assert counters["stats"]["unique_graphs"] == 2
    # As a float, which is a constant of the compiled code, it is compiled again, and that works, too.
    iterate(script, replace(args, entropy_coef=0.01), state)
    assert counters["stats"]["unique_graphs"] == 3


@pytest.mark.xdist_group("compiled")
def test_reinforce_is_compiled_once_for_batches_of_all_sizes(edited, compiler):
    script = edited(algo="reinforce")
    args, state = begun(script, "reinforce", compile=True, num_minibatches=1, policy_epochs=1)
    torch.compiler.reset()
    counters.clear()
    sizes = {len(iterate(script, args, state)[1]["obs"]) for _ in range(3)}
    assert len(sizes) == 3 and counters["stats"]["unique_graphs"] == 1


COUNTERS = "        self.iteration, self.global_step = 0, 0"


def test_what_a_checkpoint_cannot_hold_is_an_error_at_the_start(edited, runs):
    """In a process of its own, because other modules of this one may have allowed numpy's arrays."""
    script = edited((COUNTERS, f"        self.ema = np.zeros(3)\n{COUNTERS}"))
    command = [sys.executable, script.__file__, *flags_of("ppo", run_name="a")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2 and "numpy" in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert checkpoints(runs / "runs/a") == []


def test_what_states_docstring_allows_is_saved_and_restored(edited, runs):
    added = "        self.number, self.tensor, self.list = 0, torch.zeros(2), []\n"
    changed = "    state.number += 1\n    state.tensor += 1\n    state.list = [*state.list, state.number]\n"
    step = "    state.iteration += 1\n"
    script = edited((COUNTERS, added + COUNTERS), (step, step + changed))
    flags = flags_of("ppo", run_name="a", checkpoint_every=1)
    script.main(flags)
    last = checkpoints(runs / "runs/a")[-1]
    last.unlink()
    script.main(flags)  # resumes from the checkpoint before
    saved = contents(last)
    assert saved["number"] == 3 and saved["tensor"].tolist() == [3.0, 3.0]
    assert [saved[f"list.{i}"] for i in range(3)] == [1, 2, 3]


RECIPES = (ROOT / "algos" / "recipes.md").read_text()


def test_a_tenth_optimization_as_the_recipe_shows_it(edited, runs):
    """The run is named, logged and resumed to the same bits, and a diagnostic calls the copy's functions."""
    [diff] = re.findall(r"```diff\n(.*?)```", RECIPES, re.DOTALL)
    hunks = [x.splitlines(keepends=True) for x in re.split(r"^@@.*\n", diff, flags=re.MULTILINE)[1:]]
    assert [x[0] for hunk in hunks for x in hunk if x[0] != " "] == ["+"] * 8
    side = lambda hunk, signs: "".join(x[1:] for x in hunk if x[0] in signs)
    script = edited(*((side(hunk, " -"), side(hunk, " +")) for hunk in hunks))
    flags = flags_of("ppo", anneal_lr=False, policy_lr=0.001, checkpoint_every=1, runs_dir="whole")
    flags += "--kl-lr --target-kl 0.5".split()
    script.main(flags)
    [whole] = (runs / "whole").iterdir()
    assert "Hopper-v5__my_ppo__" in whole.name and "__no-anneal-lr__kl-lr__target-kl=0.5__" in whole.name
    rows = progress(whole)
    assert [float(x["policy_lr"]) for x in rows] == pytest.approx([0.001, 0.0015, 0.00225])  # the KL is far below
    for path in (checkpoints(whole)[-1], checkpoints(whole)[-2]):
        path.unlink()  # as if it had been killed after the first iteration
    before = contents(checkpoints(whole)[-1])
    script.main(flags)
    assert before["kl_factor"] == 1.5 and progress(whole) == rows
    load("trust_region").main([str(whole), "--script", script.__file__, "--heldout-pairs", "64", "--checkpoints", "1"])
    assert list(whole.glob("figures/trust_region.jsonl"))


def test_starting_from_a_trained_policy_as_the_recipe_shows_it(runs, capsys):
    [lines] = [x for x in re.findall(r"```python\n(.*?)```", RECIPES, re.DOTALL) if "runs/tuned" in x]
    script = load("ppo")
    script.main(flags_of("ppo", run_name="a"))
    old = runs / "runs/a/checkpoints/iter_000003.pt"
    lines = lines.replace("anneal_lr=False", "anneal_lr=False, total_timesteps=512")  # of 800
    exec(re.sub(r'"runs/Hopper.*?\.pt"', f'"{old}"', lines), {})
    flags = flags_of("ppo", run_name="tuned", anneal_lr=False, policy_lr=1e-4, total_timesteps=512)
    assert "run: gamma was 0.99, is 0.9" in last_line(capsys, 2, script.main, [*flags, "--gamma", "0.9"])
    script.main(flags)
    trained, begun_with, ended = contents(old), *(contents(checkpoints(runs / "runs/tuned")[i]) for i in (0, -1))
    parts = [x for x in trained if x.split(".")[0] in ("policy", "value", "policy_adam", "obs_stats", "reward_stats")]
    assert_same({x: trained[x] for x in parts}, {x: begun_with[x] for x in parts})
    assert (begun_with["iteration"], ended["iteration"], ended["global_step"]) == (0, 2, 512)
    assert [float(x["policy_lr"]) for x in progress(runs / "runs/tuned")] == pytest.approx([1e-4] * 2)
