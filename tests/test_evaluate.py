"""Evaluation: returns that are known, curves over several runs, and films."""

import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import imageio
import measuring.intervals
import measuring.runs
import measuring.sampling
import numpy as np
import pytest
import torch
from conftest import ROOT, TINY, flags_of, load
from environments import Chain
from test_diagnostics import rows

pytestmark = pytest.mark.usefixtures("figures")
QUICK = "--jobs 1 --episodes 2".split()


def evaluate(*arguments):
    load("evaluate").main([str(x) for x in arguments])


def exact_return(policy):
    """What an episode of Chain returns if the policy acts with its mean."""
    means = policy(torch.eye(4)).mean.detach().double().numpy()
    return sum(Chain.rewards) - ((means - Chain.TARGET) ** 2).sum()


def policy_of(run, iteration):
    source = measuring.runs.Source(ROOT / "algos" / "ppo.py", run, iteration)
    return measuring.sampling.checkpoint_state(source)[2].policy


def test_returns_are_those_of_the_policy_with_its_noise_and_without(known, tmp_path):
    flags = [known / "chain", "--out", tmp_path, "--jobs", "1", "--episodes", "50"]
    evaluate(*flags, "--deterministic")
    evaluate(*flags)
    certain, noisy = rows(tmp_path, "evaluate")
    policy = policy_of(known / "chain", 6)
    assert certain["returns"]["all"] == pytest.approx([exact_return(policy)] * 50, abs=1e-5)
    exact = exact_return(policy) - policy(torch.eye(4)).variance.detach().double().sum().item()
    assert abs(noisy["returns"]["mean"] - exact) < np.std(noisy["returns"]["all"]) * 4 / 50**0.5
    assert noisy["lengths"]["all"] == [4.0] * 50
    again = measuring.intervals.t_interval(np.array(noisy["returns"]["all"]))
    assert again == pytest.approx(noisy["returns"]["interval"])


def test_a_checkpoint_has_its_returns_and_a_setting_the_mean_of_its_runs(known, tmp_path, capsys):
    flags = "--deterministic --checkpoints all --episodes 3 --jobs 1".split()
    evaluate(known / "chain", known / "chain2", "--out", tmp_path, *flags)
    found = rows(tmp_path, "evaluate")
    assert [row["global_step"] for row in found] == [64 * i for i in range(7)] * 2
    exact = [exact_return(policy_of(known / row["run"], row["iteration"])) for row in found]
    for row, of_row in zip(found, exact):
        assert row["returns"]["all"] == pytest.approx([of_row] * 3, abs=1e-4)
    out = capsys.readouterr().out
    assert f"{known / 'chain2'}, iteration 6: return {measuring.intervals.short(exact[13])} [" in out
    assert "length 4 [4, 4] over 3 episodes (95 % t intervals)" in out
    setting = measuring.intervals.text(measuring.intervals.mean_of([exact[6], exact[13]]))
    assert f"ppo, 384 steps: return {setting} over 2 runs (95 % t interval)\n" in out


def test_runs_whose_folders_have_the_same_name_are_told_apart(known, tmp_path, figures, capsys):
    for name in ("chain", "chain_rate"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "seed1").symlink_to(known / name)
    evaluate(tmp_path / "chain" / "seed1", tmp_path / "chain_rate" / "seed1", "--out", tmp_path, *QUICK)
    assert len({row["checkpoint"] for row in rows(tmp_path, "evaluate")}) == len(rows(tmp_path, "evaluate")) == 2
    said = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if ": return" in line]
    assert len(said) == len(set(said)) == 4  # two runs, two settings


def lines(steps_and_numbers):
    """What curves are made of, from the steps and numbers of each run."""
    return [
        (
            dict(label="ppo"),
            measuring.runs.Source(ROOT, Path(run), 0),
            dict(global_step=step, returns=dict(mean=x, interval=[x - 1, x + 1])),
        )
        for run, of_run in steps_and_numbers.items()
        for step, x in of_run.items()
    ]


def test_curves_are_means_over_runs_as_far_as_all_have_come():
    def points(**steps_and_numbers):
        [(_, _, found)] = load("evaluate").curves(lines(steps_and_numbers), "returns")
        return found

    found = points(a={0: 1.0, 10: 2.0, 20: 3.0}, b={0: 5.0, 20: 9.0})
    assert {step: point["mean"] for step, point in found.items()} == {0: 3.0, 10: 4.5, 20: 6.0}
    assert found[20]["interval"] == pytest.approx([6 - 12.7062 * 3, 6 + 12.7062 * 3], rel=1e-4)
    assert points(a={10: 2.0, 0: 1.0})[10]["interval"] == [1, 3]  # one run: its own
    found = points(a={0: 1.0, 1020: 2.0, 2005: 3.0}, b={0: 5.0, 1990: 9.0})  # REINFORCE's steps are not the same
    assert list(found) == [0, 1020, 1990]
    assert found[1020]["mean"] == pytest.approx((2 + 5 + 4 * 1020 / 1990) / 2)
    assert found[1990]["mean"] == pytest.approx((3 - 15 / 985 + 9) / 2)
    newest = points(a={2005: 3.0}, b={1990: 9.0})
    assert list(newest) == [2005] and newest[2005]["mean"] == 6
    assert points(a={0: 1.0}, b={1990: 9.0}) == {}


def test_many_checkpoints_are_drawn_as_curves_and_said_near_a_million(known, tmp_path, capsys, figures):
    module = load("evaluate")
    evaluate(known / "chain", "--out", tmp_path, *QUICK, "--checkpoints", "4")
    assert [x.has_yerr for x in figures["evaluate.png"].axes[0].containers] == [True]
    evaluate(known / "chain", "--out", tmp_path, *QUICK, "--checkpoints", *"01234")
    assert len(figures["evaluate.png"].axes[0].lines[0].get_xdata()) == 5
    steps = dict.fromkeys((0, 900_000, 999_424, 1_200_000, 7_995_392), dict(mean=1.0, interval=None))
    found = [(dict(label=x, color="red"), of_runs, y) for x, of_runs, y in (("ppo", [{}, {}], steps), ("b", [{}], {}))]
    with patch.object(module, "curves", lambda *_: found):
        evaluate(known / "chain", "--out", tmp_path, *QUICK)
    said = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert "ppo, 999,424 steps" in said and "ppo, 7,995,392 steps" in said
    assert len([line for line in said if " steps" in line]) == 4


# Films ---------------------------------------------------------------------------------------------------------------

OWN_CLASSES = """
class Policy(Policy):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("action_scale", torch.full((3,), 7.0))

class Counted(gym.ActionWrapper):
    calls = 0

    def action(self, action):
        Counted.calls += 1
        return action

make_bare_env = make_env

def make_env(args):
    return Counted(make_bare_env(args))
"""


def test_a_policy_with_a_buffer_is_evaluated_as_it_is_and_filmed_behind_its_wrapper(tmp_path):
    mine = tmp_path / "my_ppo.py"
    mine.write_text((ROOT / "algos" / "ppo.py").read_text() + OWN_CLASSES)
    script = measuring.runs.load_script(mine)
    chain = TINY | dict(env_id="environments:Chain-v0", total_timesteps=64, run_name="chain", runs_dir=str(tmp_path))
    script.main(flags_of("ppo", **chain))
    flags = [tmp_path / "chain", "--script", mine, *QUICK, "--deterministic"]
    evaluate(*flags)
    [row] = rows(tmp_path / "chain" / "figures", "evaluate")
    source = measuring.runs.Source(mine, tmp_path / "chain", 1)
    policy = measuring.sampling.checkpoint_state(source)[2].policy
    assert row["returns"]["all"] == pytest.approx([exact_return(policy)] * 2, abs=1e-5)
    script.Counted.calls = 0
    evaluate(*flags, "--video", tmp_path / "chain.gif")
    assert script.Counted.calls >= 4  # the episodes are in the table, so these are the film's
    film = imageio.v3.imread(tmp_path / "chain.gif")
    assert [frame[0, 0, 0] for frame in film] == [0, 120]  # 15 of 30 frames a second
    with pytest.raises(ValueError, match="1 numbers for the"):
        measuring.sampling.play_seeds(source, (0,), 0, 1, np.zeros(1))


def test_what_cannot_be_rendered_is_said_before_an_episode_is_played(known, tmp_path, runs, capsys, monkeypatch):
    load("ppo").main(flags_of("ppo", env_id="environments:Clock-v0", run_name="clock", **TINY))
    monkeypatch.setattr(measuring.sampling, "play", lambda *_: pytest.fail("an episode was played"))
    monkeypatch.setattr(Chain, "render", lambda self: None)
    for run, status, text in (
        (
            "runs/clock",
            2,
            "cannot render environments:Clock-v0 (NotImplementedError) without the render_mode",
        ),
        (known / "chain", 1, "cannot render environments:Chain-v0 ("),
    ):
        with pytest.raises(SystemExit) as ended:
            evaluate(run, *QUICK, "--out", tmp_path, "--video", "x.gif")
        message = capsys.readouterr().err.splitlines()[-1]
        assert ended.value.code == status and f"--video: {text}" in message and "--env-id" not in message


def test_no_opengl_is_explained(known, tmp_path):
    command = [sys.executable, ROOT / "diagnostics" / "evaluate.py", known / "ppo", "--video", "x.gif", *QUICK]
    environment = {"PATH": "/usr/bin:/bin", "MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "osmesa"}
    command += ["--out", tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert result.returncode == 1 and "libegl1" in result.stderr.splitlines()[-1]
