"""What the analyses of planned experiments share: returns, tests, margins and final rewards. What sums up contrasts is
pinned by test_results.py, rules by test_intervals.py, and what is still to come by test_protocols.py."""

import json
import runpy

import finals
import numpy as np
import planned
import pytest
from conftest import ROOT
from estimates import Estimate
from scipy import stats

TEN = np.array([-9.0, -7, -5, -3, -1, 1, 3, 5, 7, 9])  # how ten runs differ


def test_returns_of_a_continued_training_are_averaged_over_episodes():
    summed_up = runpy.run_path(ROOT / "figures" / "gains_add_up" / "measure.py")["summed_up"]
    logged = dict(explained_variance=0.5, mean_kl=0.1, step_norm=3.0)
    found = summed_up([logged | dict(episodes=n, mean_return=x) for n, x in ((3, 10.0), (0, None), (1, 30.0))])
    assert found == logged | dict(episodes=4, mean_return=15.0, mean_kl=pytest.approx(0.1))
    assert summed_up([logged | dict(episodes=0, mean_return=None)])["mean_return"] is None


def test_tests_and_margins_are_those_of_the_protocols():
    x, y = TEN + 4, 3 * TEN[:5] - 20
    both = planned.with_both(dict(Hopper=dict(enumerate(x)), Walker2d=dict(enumerate(y))))["both"]
    other = stats.ttest_ind(x / 2, -y / 2, equal_var=False)  # x / 2 + y / 2, as Welch has it
    assert (*both.interval(), both.p()) == pytest.approx((*other.confidence_interval(), other.pvalue))
    of = {x: dict(Hopper=Estimate([TEN + y])) for x, y in dict(one=5.0, two=-20.0, three=0.1, four=4.6).items()}
    alone = "above 0 alone, not after Holm; negligible"
    verdicts = [x[1].partition("; ")[2] for x in planned.judged(of, 9)[1:]]
    assert verdicts == [alone, "**below 0**", "cannot tell; negligible", alone]
    x = Estimate([TEN])  # 0 with half an interval of 3.51 at 90 %, and of 2.65 at 80 %
    assert [planned.within(x, margin) for margin in (3.4, 3.6)] == [False, True]
    assert planned.share_above([2501] * 8 + [2500] * 32) == "8 of 40: 20 % [9, 36]"
    with pytest.raises(AssertionError, match="different checkpoints"):
        planned.by_run([dict(env_id="Hopper-v5", algo="ppo", run_seed=i, iteration=i) for i in (1, 2)], len)


def test_final_rewards_are_read_as_the_protocols_say(tmp_path, capsys):
    """A run that is not complete stops the program, unless it is named as one that training ended."""
    config = dict(env_id="Hopper-v5", total_timesteps=120, num_envs=1, num_steps=10)
    for seed, rows in ((1, 12), (2, 12), (3, 7)):
        (folder := tmp_path / f"seed{seed}").mkdir()
        about = dict(algo="ppo", script="0" * 64, args=config | dict(seed=seed))
        (folder / "config.json").write_text(json.dumps(about))
        lines = [f"{i},{10 * i + 10},{'' if i == 9 else 100 * i + seed},{i / 10},0.5,{i}" for i in range(rows)]
        header = "iteration,global_step,episodic_return,explained_variance,mean_kl,entropy"
        (folder / "progress.csv").write_text("\n".join([header, *lines, ""]))
    call = lambda *flags: finals.main([*(str(tmp_path / f"seed{i}") for i in (3, 1, 2)), "--out", str(out), *flags])
    out = tmp_path / "finals.json"
    for flags, says in (((), "70 of 120 steps"), (("--stopped", *(f"{tmp_path}/seed{i}" for i in (1, 3))), "complete")):
        with pytest.raises(SystemExit) as error:
            call(*flags)
        assert error.value.code == 2 and says in capsys.readouterr().err and not out.exists()
    call("--stopped", f"{tmp_path}/seed3", "--labels", "X=ppo")
    [x] = json.loads(out.read_text())["settings"]
    assert (x["label"], x["seeds"], x["stopped"], x["finals"]) == ("X", [1, 2, 3], [3], [841, 842, 403])
    assert (x["last_50"][2], x["entropy"]) == (303, [11, 11, 6])
    assert x["explained_variance"] == pytest.approx([0.85, 0.85, 0.45])
