"""Evaluation: returns that are known, curves over several runs, and films."""

import subprocess
import sys

import gymnasium as gym
import imageio
import lab
import numpy as np
import pytest
import torch
from conftest import ON_BANDIT, ROOT, TINY, flags_of, last_line, load
from environments import Chain
from problems import checkpoint_of, expected_return, policy_of, rows

pytestmark = pytest.mark.usefixtures("figures")
QUICK = "--jobs 1 --episodes 2".split()


def evaluate(*arguments):
    load("evaluate").main([str(x) for x in arguments])


def return_without_noise(checkpoint):
    """What an episode of Chain returns if the policy acts with its mean."""
    policy = policy_of(checkpoint)
    policy.log_std.data.fill_(-torch.inf)
    return expected_return(Chain, policy)


def test_returns_are_those_of_the_policy_with_its_noise(known, tmp_path):
    evaluate(known / "chain", "--out", tmp_path, "--jobs", "1", "--episodes", "50")
    [row] = rows(tmp_path, "evaluate")
    exact = expected_return(Chain, policy_of(checkpoint_of(known / "chain", 6)))
    assert abs(np.mean(row["returns"]) - exact) < np.std(row["returns"]) * 4 / 50**0.5
    assert row["lengths"] == [4] * 50


def test_an_episode_without_an_end_is_refused(capsys):
    env = lab.OneEpisode(gym.make("environments:Endless-v0"))
    env.ended, env.total, env.length = False, 0.0, 99_998
    env.reset()
    env.step(np.zeros(2))
    assert "Endless-v0 has 100,000 steps and no end" in last_line(capsys, 2, env.step, np.zeros(2))


def test_an_environment_that_exists_once(runs):
    """It is closed before another is made, in groups of eight episodes and at several checkpoints."""
    settings = ON_BANDIT | dict(env_id="environments:Single-v0", run_name="a", checkpoint_every=1)
    load("ppo").main(flags_of("ppo", **settings))
    evaluate("runs/a", "--jobs", "1", "--episodes", "20", "--checkpoints", "all")
    assert [len(row["returns"]) for row in rows(runs / "runs/a/figures", "evaluate")] == [20, 20, 20]


def test_a_checkpoint_has_its_returns_and_a_setting_the_mean_of_its_runs(known, tmp_path, capsys):
    flags = "--deterministic --checkpoints all --episodes 3 --jobs 1".split()
    evaluate(known / "chain", known / "chain2", "--out", tmp_path, *flags)
    found = rows(tmp_path, "evaluate")
    assert [row["global_step"] for row in found] == [64 * i for i in range(7)] * 2
    exact = [return_without_noise(checkpoint_of(known / row["run"], row["iteration"])) for row in found]
    for row, of_row in zip(found, exact):
        assert row["returns"] == pytest.approx([of_row] * 3, abs=1e-4)
    out = capsys.readouterr().out
    assert f"chain2, iteration 6, 384 steps: return {exact[13]:.3g} [" in out
    assert "length 4 [4, 4] over 3 episodes (95 % t intervals)" in out
    evaluate(known / "chain", known / "chain2", "--out", tmp_path, *flags, "--labels", "ppo", "ppo")
    setting = lab.in_words(lab.mean_of([exact[6], exact[13]]))
    assert f"ppo, 384 steps: return {setting} over 2 runs (95 % t interval)\n" in capsys.readouterr().out


def test_runs_of_one_label_are_averaged_by_iteration_and_said_near_a_million(tmp_path, figures, capsys):
    """REINFORCE's steps differ by parts of an episode; the first run's are drawn."""
    row = lambda i, steps, x: dict(iteration=i, global_step=steps, returns=[x], lengths=[1], episodes=1, env_id="E")
    one = [row(i, 500_000 * i + 7 * i, 1.0 * i) for i in range(5)]
    other = [row(i, 500_000 * i + 3 * i, 3.0 * i) for i in range(4)]
    style = dict(label="REINFORCE", color="C0")
    load("evaluate").say([(style, one), (style, other[1:])])
    said = [line for line in capsys.readouterr().out.splitlines() if "over 2 runs" in line]
    assert [line.split(": return ")[0] for line in said] == ["REINFORCE, 1,000,014 steps", "REINFORCE, 1,500,021 steps"]
    assert said[0].split("return ")[1].startswith("4 [")
    load("evaluate").draw([(style, one), (style, other)], tmp_path / "x.png")
    thick = figures["x.png"].axes[0].lines[-2]
    assert thick.get_label() == "REINFORCE" and list(thick.get_ydata()) == [0, 2, 4, 6]
    assert list(thick.get_xdata()) == [row["global_step"] for row in one[:4]]


# Films ---------------------------------------------------------------------------------------------------------------

OWN_PARTS = """
class Policy(Policy):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("action_scale", torch.full((3,), 7.0))

make_bare_env, wrapped = make_env, []

def make_env(args):
    env = make_bare_env(args)
    return gym.wrappers.TransformAction(env, lambda action: wrapped.append(action) or action, env.action_space)
"""


def test_a_policy_with_a_buffer_is_evaluated_as_it_is_and_filmed_behind_its_wrapper(tmp_path):
    mine = tmp_path / "my_ppo.py"
    mine.write_text((ROOT / "algos" / "ppo.py").read_text() + OWN_PARTS)
    script = lab.load_script(mine)
    chain = TINY | dict(env_id="environments:Chain-v0", total_timesteps=64, run_name="chain", runs_dir=str(tmp_path))
    script.main(flags_of("ppo", **chain))
    flags = [tmp_path / "chain", "--script", mine, *QUICK, "--deterministic"]
    evaluate(*flags)
    [row] = rows(tmp_path / "chain" / "figures", "evaluate")
    checkpoint = lab.Checkpoint(mine, tmp_path / "chain", 1)
    assert row["returns"] == pytest.approx([return_without_noise(checkpoint)] * 2, abs=1e-4)
    script.wrapped.clear()
    evaluate(*flags, "--video", tmp_path / "chain.gif")
    assert len(script.wrapped) >= 4  # the episodes are in the table, so these are the film's
    film = imageio.v3.imread(tmp_path / "chain.gif")
    assert [frame[0, 0, 0] for frame in film] == [0, 120]  # 15 of 30 frames a second


def test_what_cannot_be_rendered_is_said_before_an_episode_is_played(runs, capsys, monkeypatch):
    load("ppo").main(flags_of("ppo", env_id="environments:Clock-v0", run_name="clock", **TINY))
    monkeypatch.setattr(lab, "play", lambda *_: pytest.fail("an episode was played"))
    line = last_line(capsys, 1, evaluate, "runs/clock", *QUICK, "--video", "x.gif")
    assert "--video: cannot render environments:Clock-v0 (NotImplementedError)" in line


def test_no_opengl_is_explained(known, tmp_path):
    command = [sys.executable, ROOT / "diagnostics" / "evaluate.py", known / "ppo", "--video", "x.gif", *QUICK]
    environment = {"PATH": "/usr/bin:/bin", "MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "osmesa"}
    command += ["--out", tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert result.returncode == 1 and "libegl1" in result.stderr.splitlines()[-1]
