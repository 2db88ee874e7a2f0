"""The report of a run: verdicts of known numbers, and a page that needs nothing else."""

import base64
import html
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from types import SimpleNamespace

import measuring.intervals
import numpy as np
import pytest
import torch
from conftest import flags_of, load
from filelock import FileLock
from verdicts import BAD, CAUTION, GOOD, NONE, UNCLEAR

verdicts = load("verdicts")
UNBALANCED = {"meta", "img", "br"}


def numbers(mean, low, high, **more):
    return dict(mean=mean, interval=[low, high], **more)


@pytest.mark.parametrize(
    "gain, fall, status",
    (
        (numbers(100, 21, 179), None, NONE),  # above the untrained policy's own scatter of 20
        (numbers(100, 19, 181), None, UNCLEAR),
        (numbers(5, -9, 19), None, BAD),
        (numbers(-50, -79, -21), None, BAD),
        (dict(mean=100, interval=None), None, UNCLEAR),
        (numbers(100, 21, 179), numbers(50, 21, 79, iteration=7), CAUTION),
        (numbers(100, 21, 179), numbers(50, 19, 81, iteration=7, looks=1), NONE),
        (numbers(5, -9, 19), numbers(50, 21, 79, iteration=7), BAD),
    ),
)
def test_learning(gain, fall, status):
    found = verdicts.judge_learning(gain, 20, fall, 20, 12)
    assert found.status == status
    assert ("12 episodes whether" in found.verdict) == (status == UNCLEAR)
    assert ("better at iteration 7" in found.verdict) == (fall is not None and fall["interval"][0] > 20)
    assert ("ended below where it began" in found.verdict) == (gain["mean"] == -50)
    # 20 + 31 * (1 + 0.842 / 1.960), and the gain is 100
    assert ("fall by 64 % of that from an earlier height would have been seen in 4 of 5 cases" in found.number) == (
        "looks" in (fall or {})
    )


def test_a_return_that_never_changes():
    found = verdicts.judge_learning(numbers(0, 0, 0), 0, None, 0, 12)
    assert (found.status, "its return is the same" in found.verdict) == (BAD, True)


def test_a_fall_of_the_curve_is_seen_without_sampling():
    """From 20 to 360 in 100 iterations, and down to 170 or 330 at the end: more than a quarter of what was gained."""
    for end, status in ((170, CAUTION), (330, NONE)):
        returns = np.concatenate([[20], np.linspace(30, 360, 99), np.full(10, float(end))])
        returns += np.random.default_rng(0).normal(0, 5, len(returns))
        progress = dict(episodic_return=returns, episodes=np.full(len(returns), 20.0))
        found = load("report").find_learning_curve(SimpleNamespace(progress=progress))
        assert found.status == status and ("better at iteration 90" in found.verdict) == (status == CAUTION)


def test_a_curve_that_never_rose_has_not_fallen_from_its_height():
    """It ends below its untrained policy, and so were its best ten: they fell by 7, with an interval from -1 to 15."""
    returns = np.array([18.0, *[19.0, 1.0] * 5, *[3.0] * 10])
    progress = dict(episodic_return=returns, episodes=np.full(len(returns), 20.0))
    found = load("report").find_learning_curve(SimpleNamespace(progress=progress))
    assert found.status == BAD and found.verdict.startswith("It ended below where it began. The other")
    few = dict(episodic_return=returns[:9], episodes=progress["episodes"])
    found = load("report").find_learning_curve(SimpleNamespace(progress=few))
    assert found.status == UNCLEAR and "fewer than ten iterations in which an episode ended" in found.verdict


@pytest.mark.parametrize(
    "mine, differing, status, text",
    (
        (80, [], GOOD, "Less than -450 would have been named"),
        (80, ["algo"], GOOD, ""),
        (79, [], UNCLEAR, "as one of 11 healthy runs does"),
        (50.1, [], UNCLEAR, ""),
        (49.6, [], CAUTION, "each of 10 reference runs had after as many steps, since step 20,480. Its settings are"),
        (49.6, ["gamma"], CAUTION, "Its settings differ (gamma)"),
        (49.6, ["algo"], UNCLEAR, "another kind"),
        (-700, [], CAUTION, ""),
        (np.nan, [], GOOD, ""),  # its last number counts
    ),
)
def test_what_others_earned_in_as_many_steps(mine, differing, status, text):
    """They gained 100 times or divided by 1.25, five and five: by t with 9 degrees of freedom, one more run gains less
    than 49.9 (2.82 deviations of 0.247 below the mean logarithm) once in 100 times."""
    others = dict(untrained=[-510.0, -490.0], returns=[[-500 + x, -500 + x, 900.0] for x in [80.0, 125.0] * 5])
    found = verdicts.judge_enough([-400.0, mine - 500.0, np.nan], others, "ppo", differing)
    assert found.status == status and text in found.verdict
    assert np.isnan(mine) or found.number.endswith("after 40,960 steps; 10 reference runs, of ppo, -420 to -375")


def test_reference_runs_that_say_little_praise_nobody():
    def judge(returns):
        return verdicts.judge_enough([500.0], dict(untrained=[0.0], returns=returns), "ppo", [])

    assert judge([[100.0], [101.0]]).status == GOOD
    assert judge([[100.0], [150.0]]).status == UNCLEAR  # Student's t of two runs has a 1 % point of 31.8
    assert judge([[527.0], [527.0]]).status == CAUTION  # nothing scatters, as in a solved environment
    assert judge([[526.0], [526.0]]).status == UNCLEAR  # a trifle, of 4.9 %
    assert judge([[100.0]]).status == UNCLEAR  # no interval
    assert judge([[100.0], [101.0], [-1.0]]).status == UNCLEAR  # one has not learned yet
    assert judge([[np.nan], [100.0]]).status == UNCLEAR


def evaluated(mean, half, length=500.0):
    return dict(numbers(mean, mean - half, mean + half), std=100.0, episodes=1001, length=length, iteration=50)


@pytest.mark.parametrize(
    "found, logged, lengths, bad",
    (
        (evaluated(1041, 50), [105_412, 99_000, 110_000], 500, True),  # rewards x 100
        (evaluated(9.3, 1), [900, 1000, 1100], 500, True),  # the wrong statistics of observations
        (evaluated(1041, 50), [450, 470, 460], 500, True),
        (evaluated(1041, 50), [450, 472, 460], 500, False),  # 519 lie between, just less than half of 1041
        (evaluated(1041, 50), [300, 1900, 700], 500, False),  # within what was logged
        (evaluated(1041, 50), [100, 110, 120], 50, False),  # only short episodes end in a short rollout
        (evaluated(1041, 50), [10, 11, 12], 50, True),
        (evaluated(40, 5), [-50, -40, -30], 500, False),  # within the episodes' own scatter of 100
        (evaluated(-900, 50), [-400, -300, -350], 500, False),
        (evaluated(-900, 50), [-300, -200, -250], 500, True),
        (evaluated(1041, 50), [9, 9], 500, False),  # two iterations say too little
        (evaluated(1041, 50) | dict(interval=None), [9, 9, 9], 500, False),
    ),
)
def test_returns_that_training_did_not_log(found, logged, lengths, bad):
    told = verdicts.judge_agreement([found], [np.array(logged, float)], [np.full(len(logged), float(lengths))])
    assert [x.status for x in told] == [BAD] * bad
    assert not bad or "iteration 50" in told[0].verdict and "--from 49 --to 50" in told[0].verdict


def test_a_network_that_does_not_move_is_named_with_its_iteration():
    def judge(parameters, rate):
        return verdicts.judge_motion("value network", dict(zip((0, 25, 50, 75), parameters)), np.full(75, rate))

    assert judge("abcd", 3e-4) == judge("abcd", np.nan) == judge("abcb", 3e-4) == judge("", np.nan) == []
    [found] = judge("abbb", 3e-4)
    assert found.status == BAD and "has not moved since iteration 25:" in found.verdict
    assert found.number.endswith("checkpoints 25 and 75") and "--from 25 --to 26" in found.verdict
    assert "did not move from iteration 0 to 25:" in judge("aabc", np.nan)[0].verdict
    assert judge("abbb", 0.0) == []  # as a schedule that has come to its end
    every = dict(enumerate("abbbbcddddddddddd"))  # a line search may refuse a step or four, but not ten
    [found] = verdicts.judge_motion("policy", every, np.full(16, np.nan))
    assert "has not moved since iteration 6:" in found.verdict
    assert verdicts.judge_motion("policy", {i: every[i] for i in range(15)}, np.full(16, np.nan)) == []


def test_statistics_that_begin_again_and_a_scale_that_jumps_are_named():
    falling, scales = {0: 0, 25: 51_854, 50: 18_452, 60: 39_000}, {0: 0.0, 25: 50.0, 50: 60.0, 60: 61.0}
    assert verdicts.judge_continuity(dict(X={0: 0, 25: 5, 50: 5, 60: 9}), scales) == []
    [found] = verdicts.judge_continuity(dict(X=falling), scales)
    assert found.status == BAD and found.number == "they had seen 51,854 samples, then 18,452"
    assert found.verdict.startswith("X were reset between iterations 25 and 50")
    [found] = verdicts.judge_continuity({}, scales | {50: 3000.0, 60: 3100.0})
    assert found.status == CAUTION and "jumped between iterations 25 and 50" in found.verdict
    [found] = verdicts.judge_continuity({}, scales | {60: 5.0})
    assert "jumped between iterations 50 and 60" in found.verdict
    assert verdicts.judge_continuity({}, {0: 0.01, 25: 50.0, 100: 60.0, 500: 61.0}) == []  # early, so no jump
    assert verdicts.judge_continuity({}, {}) == []
    assert verdicts.judge_continuity(dict(X={0: 0, 25: 0, 50: 0}), {}) == []  # statistics that are not in use
    [found] = verdicts.judge_continuity(dict(X={0: 0, 25: 2048, 50: 2048, 60: 2048}), {})
    assert found.status == CAUTION and "nothing since iteration 25" in found.verdict and "2,048" in found.number


@pytest.mark.parametrize("taken", [(0, 0, 0), (0, 320, 320), (0, 640, 320)])
def test_an_adam_that_forgets_is_named(taken):
    [found] = verdicts.judge_optimizer("policy", dict(enumerate(taken)), 320)
    assert found.status == BAD and "Adam of the policy forgot" in found.verdict


def test_an_adam_that_takes_too_few_steps_is_named():
    steps = {0: 0.0, 15: 4800.0, 30: 9600.0}
    assert [verdicts.judge_optimizer("policy", x, y) for x in (steps, {}) for y in (320, 0)] == [[]] * 4
    [found] = verdicts.judge_optimizer("policy", steps | {30: 9599.0}, 320)
    assert found.status == CAUTION and "fewer steps than the 320 an iteration" in found.verdict


def test_a_learning_rate_of_0_is_named():
    judge = lambda *rates: verdicts.judge_rates("policy", np.array(rates))
    assert judge(3.0, 2.0, 1.0) == judge(2.0, 1.0, 0.0) == judge(np.nan, np.nan) == judge(1.0, 0.0, 0.0, 1.0) == []
    [found] = judge(2.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    assert found.status == BAD and "0 since iteration 3" in found.verdict and found.number == "3 of 6 iterations"


def test_a_critic_that_gets_worse_or_never_becomes_good_is_seen_in_the_log():
    good, bad, rising = np.full(40, 0.9), np.full(20, 0.1), np.linspace(0.01, 0.02, 60)
    judge = lambda x, losses=rising, planned=60: verdicts.judge_logged_critic(np.array(x), losses, planned)  # noqa: E731
    [found] = judge([*good, *bad])
    assert found.status == CAUTION and "worse since about iteration 40" in found.verdict
    assert found.number == "logged explained variance 0.9 before, 0.1 at the end"
    assert judge([*good, *bad], np.full(60, np.nan))
    assert judge([*good, *bad], -rising) == []  # returns have become alike, and V is no worse
    assert judge([*good[:20], *bad, *good[20:]]) == []  # it recovered
    assert judge([*good, *good[:10], *bad[:10]]) == []  # ten iterations
    assert judge([*(good / 2), *bad]) == []
    assert judge([np.nan] * 60) == judge([]) == judge([-1.0] * 9, rising[:9]) == []
    [found] = judge([-0.1] * 60)
    assert found.status == CAUTION and "since iteration 30" in found.number
    assert judge([-0.1] * 60, planned=200) == [] and judge([*[-0.1] * 50, *[0.1] * 10]) == []
    assert judge([-0.1] * 60, np.array([0.5] * 10 + [0.04] * 50)) == []  # InvertedPendulum, once it is solved
    assert judge([-0.1] * 60, np.array([0.5] * 10 + [0.06] * 50))
    [found] = judge([*good, *bad, *[np.nan] * 7], np.append(rising, [np.nan] * 7))
    assert "iteration 40" in found.verdict


@pytest.mark.parametrize(
    "ends, status, cosine",
    (
        ([500, 2000], GOOD, "at least 0.5"),  # 2000 / (2000 + 2000)
        ([500, 2001], UNCLEAR, ""),
        ([6000, None], NONE, "at most 0.25"),  # so it is wherever agents learn
        ([198_000, 300_000], NONE, "at most 0.01"),
        ([200_001, 300_000], BAD, "at most 0.0099"),
        ([None, None], UNCLEAR, ""),
        (None, UNCLEAR, ""),
    ),
)
def test_batch(ends, status, cosine):
    found = verdicts.judge_batch(2000, dict(pairs=9999, interval=ends, estimates=20), 300)
    assert found.status == status and cosine in found.verdict


def judge_lengths(kls, bounds, heldout, returns=None):
    return verdicts.judge_lengths(kls, bounds, heldout, np.full(len(kls), np.nan) if returns is None else returns)


def test_lengths():
    kls, bounds = np.full(100, 0.01), np.full(100, 0.04)
    within = numbers(0.05, 0.03, 0.07, iteration=3, parts=1001)
    beyond = numbers(0.05, 0.041, 0.059, iteration=4, parts=1001)
    assert judge_lengths(kls, bounds, []).status == GOOD
    assert judge_lengths(kls, bounds, [within]).status == GOOD
    assert judge_lengths(kls, bounds, [beyond]).status == CAUTION
    assert judge_lengths(kls, bounds, [within, beyond]).status == GOOD  # 1.144 times as wide, of two looks
    beyond["interval"] = [0.0422, 0.0578]
    found = judge_lengths(kls, bounds, [within, beyond])
    assert found.status == CAUTION and "1 of 2" in found.verdict
    unbounded = dict(mean=np.nan, interval=[np.nan, np.nan], iteration=4, parts=1001)
    assert judge_lengths(kls, bounds, [within, unbounded]).status == CAUTION
    kls[:5] = 0.041
    assert judge_lengths(kls, bounds, []).status == GOOD
    kls[5] = 0.041
    found = judge_lengths(kls, bounds, [])
    assert found.status == BAD and "6 % of 100" in found.number


def test_a_kl_that_is_not_finite_is_too_long_and_a_missing_one_is_not_counted(tmp_path):
    columns = "iteration,global_step,sps,episodes,episodic_return,episodic_length,entropy,mean_kl"
    rows = [f"{i},{10 * i + 10},1,1,1,1,1,{kl}" for i, kl in enumerate(["0.01", "nan", "inf", "", *["0.01"] * 36])]
    (tmp_path / "progress.csv").write_text("\n".join([columns, *rows[:20], *rows[24:]]) + "\n")
    progress = load("report").read_columns(tmp_path)
    found = judge_lengths(progress["mean_kl"], np.full(40, 0.13), [])
    assert found.status == BAD and "in 5.7 % of 35 iterations (exact), not finite in 2 of them" in found.number
    assert "the first of them in iteration 1:" in found.verdict
    found = judge_lengths(progress["mean_kl"][2:], np.full(38, 0.13), [])
    assert found.status == BAD and "One step went much too far, that of iteration 0" in found.verdict
    found = judge_lengths(progress["mean_kl"][3:4], np.full(1, 0.13), [])
    assert found.status == UNCLEAR and "no iteration's mean KL was logged" in found.number
    config = dict(algo="ppo", args=dict(num_steps=10, num_envs=1, total_timesteps=400))
    run = SimpleNamespace(config=config, progress=progress, saved={}, has_critic=False)
    assert "4 of 40 iterations" in load("report").find_completeness(run)[1].number
    assert verdicts.judge_speed(progress["sps"], True)[:2] == (
        GOOD,
        "1 steps a second, 80 % of the iterations from 1 to 1",
    )


def step(mean, half, iteration=0):
    change = numbers(mean, mean - half, mean + half)
    return dict(iteration=iteration, change=change, updates=1001)


def test_gains():
    """At two checkpoints the intervals are 97.5 % ones: 1.144 times as wide, from a thousand updates."""
    assert verdicts.judge_gains([step(10, 9.9)]).status == GOOD
    assert verdicts.judge_gains([step(10, 9.9), step(0, 5)]).status == UNCLEAR
    assert verdicts.judge_gains([step(10, 8.7), step(0, 5)]).status == GOOD
    assert verdicts.judge_gains([step(10, 1), step(0, 5), step(0, 5)]).status == UNCLEAR
    found = verdicts.judge_gains([step(10, 8), step(-10, 8, iteration=300), step(0, 5)])
    assert found.status == CAUTION and "iteration 300" in found.number
    text = "Updates raise the reward on average at 1 of 3 checkpoints and lower it at 1; 1 is undecided."
    assert found.verdict == text
    assert verdicts.judge_gains([step(-10, 8), step(0, 5)]).status == BAD


@pytest.mark.parametrize(
    "explained, status",
    (
        (numbers(0.9, 0.51, 0.99), GOOD),
        (numbers(0.9, 0.49, 0.99), UNCLEAR),
        (numbers(0.3, 0.1, 0.5), NONE),  # a healthy agent early in training
        (numbers(0.02, -0.03, 0.08), NONE),  # at most 8 %; a wider interval must not look worse than a narrow one
        (numbers(0.02, -0.03, 0.05), CAUTION),
        (numbers(0.01, 0.01, 0.02), CAUTION),
        (numbers(0.3, -0.1, 0.51), UNCLEAR),
        (numbers(-0.3, -0.6, 0.0), BAD),
        (dict(mean=0.9, interval=None), UNCLEAR),
    ),
)
def test_critic(explained, status):
    found = verdicts.judge_critic(explained | dict(episodes=12), 300)
    assert found.status == status and ("12 episodes" in found.verdict) == (status == UNCLEAR)
    assert ("at most 8 %" in found.verdict) == (explained["interval"] == [-0.03, 0.08])


@pytest.mark.parametrize(
    "first, last, bounds, status",
    (
        ([1.0, 1.0], [0.3, 0.2], [1.0, 1.0], GOOD),
        ([1.0, 1.0], [0.3, 0.04], [1.0, 1.0], CAUTION),
        ([1.0, 1.0], [0.03, 0.04], [1.0, 1.0], BAD),
        ([1.0, 1.0], [0.03, 0.04], [0.5, 0.5], GOOD),  # 0.06 and 0.08 of half the range
        ([1.0, 1.0], [0.3, 0.2], [1.0, 10.0], CAUTION),  # 0.3 and 0.02
        ([1.0, 1.0], [0.3, 1.6], [1.0, 1.0], CAUTION),
        ([1.0, 0.02], [0.3, 0.029], None, GOOD),  # 0.3 and 1.45 of the first
        ([1.0, 0.02], [0.3, 0.0009], None, CAUTION),
    ),
)
def test_exploration(first, last, bounds, status):
    assert verdicts.judge_exploration({0: first, 25: [9.0, 9.0], 50: last}, bounds).status == status


def test_exploration_says_since_when():
    def judge(*stds):
        return verdicts.judge_exploration(dict(zip((0, 25, 50, 75), stds)), [1.0, 1.0]).verdict

    assert "stopped exploring since iteration 50:" in judge([1.0, 1.0], [0.01, 1.0], [0.01, 0.01], [0.02, 0.02])
    assert "in 1 of its actions since iteration 25:" in judge([1.0, 0.01], [0.01, 1.0], [0.01, 0.01], [0.01, 0.1])
    assert "noise has grown since iteration 50:" in judge([1.0, 1.0], [1.0, 1.0], [1.6, 1.0], [1.6, 1.0])
    assert "have never changed" in judge([1.0, 0.5], [1.0, 0.5], [1.0, 0.5])


def test_a_generator_whose_state_comes_again_is_named():
    assert verdicts.judge_generators({0: "a", 25: "b", 50: "c"}) == []
    assert verdicts.judge_generators({0: "a", 25: "a", 50: "a"}) == []  # the script has another one
    [found] = verdicts.judge_generators({0: "a", 25: "b", 50: "c", 75: "b"})
    assert found.status == BAD and "reset by iteration 75" in found.verdict and "of checkpoint 25" in found.number


def test_kl_bounds_are_those_of_the_steps_that_training_takes():
    """Of 10,000 steps it takes four iterations; delta moves by a quarter of its way in each."""
    settings = dict(max_kl=0.04, max_kl_final=0.08, total_timesteps=10_000, num_envs=1, num_steps=2048)
    run = SimpleNamespace(config=dict(args=settings), progress=dict(mean_kl=np.zeros(4)), batch_size=2048, last=3)
    bounds = load("report").kl_bounds(run)
    assert bounds.tolist() == pytest.approx([0.04, 0.05, 0.06, 0.07])
    assert "above 0.04 to 0.07 nats in 25 % of 4" in judge_lengths(bounds * [1, 1, 1.1, 1], bounds, []).number


def test_one_step_that_goes_much_too_far_is_named():
    kls = np.full(200, 0.01)
    kls[33] = 9.9
    found = judge_lengths(kls, np.full(200, 0.13), [])
    assert found.status == verdicts.BAD and "above 0.13 nats in 0.5 % of 200" in found.number
    assert "that of iteration 33, with a mean KL of 9.9 nats" in found.verdict
    assert "`replay.py RUN --from 28 --to 39`" in found.verdict
    returns = np.where(np.arange(200) <= 33, 1000.0, 999.0)  # iteration 33 collects its returns before its step
    assert judge_lengths(kls, np.full(200, 0.13), [], returns).status == BAD
    found = judge_lengths(kls, np.full(200, 0.13), [], -returns)
    assert found.status == GOOD and "iteration 33 was 9.9, after which the return was no lower" in found.number
    kls[33] = 1.2
    assert judge_lengths(kls, np.full(200, 0.13), []).status == GOOD


def test_the_step_from_the_newest_checkpoint_of_an_unfinished_run_has_a_bound():
    """Two iterations are done, and checkpoint 2 is there: its step, the third, is measured held out."""
    settings = dict(max_kl=0.04, max_kl_final=0.08, total_timesteps=10_000, num_envs=1, num_steps=2048)
    run = SimpleNamespace(config=dict(args=settings), progress=dict(mean_kl=np.zeros(2)), batch_size=2048, last=2)
    bounds = load("report").kl_bounds(run)
    assert bounds.tolist() == pytest.approx([0.04, 0.05, 0.06])
    for mean, status in ((0.05, GOOD), (0.09, CAUTION)):
        held_out = dict(mean=mean, interval=[mean - 0.01, mean + 0.01], iteration=2, parts=5)
        assert judge_lengths(np.zeros(2), bounds, [held_out]).status == status


def test_normalizers():
    def judge(*shares):
        shares = {
            name: dict(pairs=999, episodes=50, looks=1) | x for name, x in zip(("observations", "rewards"), shares)
        }
        return verdicts.judge_normalizers(shares, [0.5, 2.0])

    rare, many, unclear = numbers(0.002, 0.0, 0.009), numbers(0.05, 0.011, 0.09), numbers(0.01, 0.005, 0.015)
    assert judge(rare, rare).status == GOOD
    assert judge(rare | dict(looks=4), rare).status == UNCLEAR  # 1.29 times as wide, of the most of four
    assert judge(rare, many)[::2] == (BAD, "Clipping changes many rewards: try a larger --reward-clip-range.")
    assert judge(unclear, rare).status == UNCLEAR
    assert judge(rare, dict(mean=0.002, interval=None)).status == UNCLEAR
    assert judge(numbers(0.0, 0.0, 0.0)).verdict == "No clipping was seen."
    assert judge().status == NONE and "0.5 to 2" in judge().number


def test_a_run_without_actions_has_nothing_to_explore():
    run = SimpleNamespace(progress=dict(entropy=np.array([np.nan, 0.5, 0.25, np.nan])), stds={0: [], 1: []}, bounds=[])
    [found] = load("report").find_exploration(run)
    assert found == (NONE, "entropy 0.5 at the start, 0.25 nats now", "It has no actions.")


def test_speed_and_completeness():
    even = np.array([1.0, 600.0, 1000.0, 1000.0, 1000.0])  # the first compiles
    assert verdicts.judge_speed(even, True).status == GOOD
    assert verdicts.judge_speed(even, False).status == CAUTION
    assert verdicts.judge_speed(np.array([1.0, *[1000.0] * 8, 400, 400]), True).status == CAUTION
    assert verdicts.judge_completeness(100, 100).status == NONE
    assert verdicts.judge_completeness(99, 100).status == CAUTION
    assert verdicts.judge_completeness(90, 100, 25).status == NONE  # the next file would be at 115
    assert verdicts.judge_completeness(75, 100, 25).status == CAUTION


def test_difference_is_welchs_corrected_for_the_looks():
    x, y = np.array([1.0, 2, 3, 4]), np.array([10.0, 30, 20])
    found = measuring.intervals.difference(x, y)
    # Variances 5/12 and 100/3 of the means, 2.0506 degrees of freedom
    assert found["mean"] == pytest.approx(-17.5)
    assert found["interval"] == pytest.approx([-41.93, 6.93], abs=0.05)
    wider = measuring.intervals.difference(x, y, looks=2)["interval"]
    assert wider[0] < found["interval"][0] and wider[1] > found["interval"][1]
    assert measuring.intervals.difference(np.ones(3), np.zeros(3)) == numbers(1, 1, 1)
    assert measuring.intervals.difference(np.ones(3), np.zeros(1))["interval"] is None


def test_ratio_of_sums_over_episodes():
    """Two episodes of 3 and 1 steps, one of which clips: 1 of 4, 0.25; their parts are 1 - 0.75 and 0 - 0.25, of 2."""
    ends = np.array([False, False, True, True])
    found = measuring.intervals.ratio_of_sums(np.array([0, 1, 0, 0]), 1, ends)
    assert found["mean"] == 0.25 and found["episodes"] == 2
    assert found["interval"] == pytest.approx([0, 0.25 + 12.7062 * 0.125])


def train(algo, folder, **settings):
    settings = dict(env_id="InvertedPendulum-v5", total_timesteps=1024, runs_dir=str(folder)) | settings
    load(algo).main([*flags_of(algo, **settings), "--checkpoint-every", "1"])


class Page(HTMLParser):
    """Every tag is closed, and what they load."""

    def __init__(self, text):
        super().__init__()
        self.opened, self.loaded, self.tags = [], [], []
        self.feed(text)
        assert self.opened == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loaded += [
            x for name, x in attributes if name in ("src", "href", "srcset", "data", "action", "background")
        ]
        if tag not in UNBALANCED:
            self.opened.append(tag)

    def handle_endtag(self, tag):
        assert self.opened.pop() == tag


def check_page(path):
    """The page's text, once it is known to parse, to load nothing, and to be small."""
    text = path.read_text()
    page = Page(text)
    assert len(text) < 2e6 and not {"script", "link", "iframe", "object"} & set(page.tags)
    assert not re.search(r"url\(|@import", text.split("<body>")[0])
    pictures = [x for x in page.loaded if not x.startswith("#")]
    for picture in pictures:
        kind, data = picture.split(",")
        assert kind == "data:image/svg+xml;base64"
        svg = ElementTree.fromstring(base64.b64decode(data))
        links = [x for element in svg.iter() for name, x in element.attrib.items() if name.endswith("href")]
        assert all(link.startswith("#") for link in links)
    return text, pictures


def test_page_of_a_run(runs, capsys):
    train("ppo", runs, run_name="run")
    sizes = "--episodes 4 --gradient-pairs 512 --reward-pairs 40 --heldout-pairs 256 --checkpoints 1 --jobs 1".split()
    load("report").main([str(runs / "run"), *sizes])
    text, pictures = check_page(runs / "run" / "figures" / "report.html")
    assert len(pictures) == 7 and "Not measured" not in text
    printed = capsys.readouterr().out
    for part in (
        "--total-timesteps=1024",
        "1,024 of 1,024 steps",
        "6 of 6, report",
        "explained variance",
        "256 held-out",
    ):
        assert part in printed
    before = {path: path.read_bytes() for path in (runs / "run" / "figures").glob("*.jsonl")}
    assert {path.stem for path in before} == set(load("report").SIZES)
    page = (runs / "run" / "figures" / "report.html").read_bytes()
    load("report").main([str(runs / "run"), *sizes, "--json", "numbers.json"])
    assert {path: path.read_bytes() for path in before} == before  # kept, not measured again
    published = {next(iter(cell["measured_by"])) for cell in json.loads((runs / "numbers.json").read_text())}
    assert published == {f"{name}.py" for name in "evaluate gradient trust_region steps value report".split()}
    load("report").main([str(runs / "run"), "--quick"])
    assert (runs / "run" / "figures" / "report.html").read_bytes() == page


def test_quick_page_of_runs_side_by_side(runs, capsys):
    train("ppo", runs)
    train("reinforce", runs)
    folders = sorted(map(str, runs.glob("Inverted*")))
    load("report").main([*folders, "--quick", "--out", "out"])
    text, pictures = check_page(runs / "out" / "report.html")
    assert {path.name for path in (runs / "out").iterdir()} == {"report.html", "verdicts.json"}  # nothing was sampled
    assert "reinforce has no value network" in text and "Not measured" in text and len(pictures) == 4
    told = json.loads((runs / "out" / "verdicts.json").read_text())["findings"]
    assert {x["run"] for x in told} == {path.name for path in runs.glob("Inverted*")}
    assert {x["section"] for x in told} == {x.title for x in load("report").SECTIONS}
    assert all(html.escape(x["verdict"]) in text for x in told)
    printed = capsys.readouterr().out
    assert printed.index("ppo, seed 1") < printed.index("reinforce, seed 1") and "environment steps to" not in printed


def test_a_run_is_compared_with_reference_runs_and_with_runs_like_it(runs, monkeypatch, capsys):
    """Points are far apart, so the log is made to say that each iteration took 5,120 steps."""
    for seed in (1, 2, 3, 4):
        train("ppo", runs, run_name=f"run{seed}", seed=seed, total_timesteps=1024)
        path = runs / f"run{seed}" / "progress.csv"
        header, *rows = [line.split(",") for line in path.read_text().splitlines()]
        for i, row in enumerate(rows):
            rise = 15 if seed == 1 else 20
            earned = dict(global_step=5120 * (i + 1), episodes=i + 1, episodic_return=rise * i + seed)
            row[:] = [str(earned.get(name, x)) for name, x in zip(header, row)]
        path.write_text("\n".join(map(",".join, [header, *rows])) + "\n")
    reference = load("reference")
    untrained, curve = reference.read_curve(runs / "run1")
    assert untrained == 1 and curve == pytest.approx([(1 * 1 + 2 * 16 + 3 * 31 + 4 * 46) / 10])
    report = [str(runs / "run1"), "--quick"]
    monkeypatch.setattr(load("report").reference, "FILE", runs / "none.json")
    load("report").main(report)
    assert "no reference runs for this environment" in " ".join(capsys.readouterr().out.split())
    load("report").main([*report, "--like", str(runs / "run2"), str(runs / "run3")])
    told = " ".join(capsys.readouterr().out.split())
    assert "It learned less than each of 2 reference runs" in told and "2 reference runs, of ppo, 42 to 43" in told
    assert "Cannot tell from 1 untrained episodes" in told
    load("report").main([str(runs / "run4"), "--quick", "--like", str(runs / "run2"), str(runs / "run3")])
    told = " ".join(capsys.readouterr().out.split())
    assert "[good] It learned as much as the reference runs." in told and "untrained episodes" not in told
    reference.main([str(runs / "run2"), str(runs / "run3"), "--out", "curves.json"])
    kept = json.loads((runs / "curves.json").read_text())["InvertedPendulum-v5"]
    assert kept["seeds"] == [2, 3] and kept["returns"] == [[42.0], [43.0]] and kept["untrained"] == [2.0, 3.0]
    args = {name: x for name, x in kept["kind"].items() if name != "algo"}
    assert reference.other_settings(kept, dict(algo="ppo", args=args | dict(gamma=0.9, seed=9))) == ["gamma"]
    longer = args | dict(total_timesteps=2048)  # its learning rates decay more slowly
    assert reference.other_settings(kept, dict(algo="ppo", args=longer)) == ["total_timesteps"]
    assert reference.other_settings(kept, dict(algo="trpo", args=args)) == ["algo"]
    assert "algo" not in reference.other_settings(kept, dict(algo="sb3", args={}))

    # What cannot be compared is refused, before anything is written.
    for name, change in (("elsewhere", dict(env_id="Pendulum-v1")), ("unlike", dict(gamma=0.9))):
        shutil.copytree(runs / "run2", runs / name)
        config = json.loads((runs / name / "config.json").read_text())
        (runs / name / "config.json").write_text(json.dumps(config | dict(args=config["args"] | change)))
    train("ppo", runs, run_name="short", seed=5, total_timesteps=1024)
    short = runs / "short" / "progress.csv"
    short.write_text("\n".join(short.read_text().splitlines()[:3]) + "\n")
    shutil.copytree(runs / "run2", runs / "copy")
    before = (runs / "curves.json").read_text()
    run1, run2 = runs / "run1", runs / "run2"
    refused = [
        ("report", [run1, "--quick", "--like", runs / "elsewhere"], "is a run on Pendulum-v1, not on"),
        ("report", [run1, "--quick", "--like", run2, run1], "are the same run"),
        ("report", [run1, "--quick", "--like", run2, runs / "copy"], "are the same run"),
        ("report", [run1, "--quick", "--json", "numbers.json"], "--json: has no meaning with --quick"),
        ("report", [run1, "--watch", "--checkpoints", "0"], "--checkpoints: has no meaning with --watch"),
        ("reference", [run2, runs / "unlike", "--out", "curves.json"], "has other settings than"),
        ("reference", [run2, run2, "--out", "curves.json"], "the same seed"),
        ("reference", [run2, short.parent, "--out", "curves.json"], "has not ended"),
        ("reference", [run2, "--out", "nowhere/curves.json"], "must be a .json file in a folder that exists"),
    ]
    for name, argv, text in refused:
        with pytest.raises(SystemExit) as stopped:
            load(name).main([str(x) for x in argv])
        assert stopped.value.code == 2 and text in capsys.readouterr().err
    assert (runs / "curves.json").read_text() == before


def test_watching_tells_what_changes_and_ends_with_the_run(runs, monkeypatch, capsys):
    """A run of four iterations, of which one is done at first; the others come while the report waits."""
    train("ppo", runs, run_name="run")
    progress, checkpoints = runs / "run" / "progress.csv", runs / "run" / "checkpoints"
    lines, paths = progress.read_text().splitlines(keepends=True), sorted(checkpoints.glob("*.pt"))
    saved = [path.read_bytes() for path in paths]
    for path in paths[2:]:
        path.unlink()
    progress.write_text("".join(lines[:2]))
    left = [2, 3, 4]

    def train_on(_):
        i = left[0]
        if progress.read_text().count("\n") == i:
            progress.write_text("".join(lines[: i + 1]))  # and the checkpoint later, as training does
        else:
            paths[left.pop(0)].write_bytes(saved[i])

    monkeypatch.setattr(load("report").time, "sleep", train_on)
    with FileLock(runs / "run" / ".lock"):  # as the training has it
        load("report").main([str(runs / "run"), "--watch"])
    told = capsys.readouterr().out.splitlines()
    assert not left and told[-1].endswith("run/figures/report.html")
    of_run = [line for line in told if "What was run" in line]
    assert [line.partition(",")[0] for line in of_run] == ["iteration 1", "iteration 4"] and len(told) < 25
    assert "[caution] It has not ended" in of_run[0] and "[no verdict] It has run to its end." in of_run[1]
    paths[-1].unlink()
    load("report").main([str(runs / "run"), "--watch"])  # the training was killed, so nothing will come
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{runs / 'run'}: nobody trains it any more")


def test_damage_to_checkpoints_and_log_is_told_without_sampling(runs, capsys):
    """The value network stands still from iteration 1 on, both statistics begin again at 2, and the generator at 4."""
    train("ppo", runs, run_name="run", total_timesteps=1024)
    report = [str(runs / "run"), "--quick"]
    load("report").main(report)
    assert "not moved" not in (healthy := capsys.readouterr().out) and "reset" not in healthy
    first, *rest = [runs / "run" / "checkpoints" / f"iter_{i:06d}.pt" for i in (1, 2, 3, 4)]
    value = torch.load(first, weights_only=True)["value"]
    for path in rest:
        checkpoint = torch.load(path, weights_only=True) | dict(value=value)
        for name in ("obs_stats", "reward_stats"):
            checkpoint[name]["count"] -= 300
        if path == rest[-1]:
            checkpoint["rng"] = torch.load(rest[0], weights_only=True)["rng"]
        torch.save(checkpoint, path)
    load("report").main(report)
    told = " ".join(capsys.readouterr().out.split())
    assert "[bad] The value network has not moved since iteration 1:" in told
    for name in ("observations", "rewards"):
        assert f"[bad] The statistics of {name} were reset between iterations 1 and 2:" in told
    assert "[bad] The policy" not in told
    assert "[bad] The random generator was reset by iteration 4" in told and "generator was reset" not in healthy


def test_a_log_that_evaluation_denies_is_told(runs, capsys):
    train("ppo", runs, run_name="run")
    load("evaluate").main([str(runs / "run"), "--checkpoints", "1", "--episodes", "4", "--jobs", "1"])
    path = runs / "run" / "progress.csv"
    for factor, told in ((1, False), (100, True)):
        header, *rows = [line.split(",") for line in path.read_text().splitlines()]
        column = header.index("episodic_return")
        for row in rows:
            row[column] = str(factor * float(row[column]))
        path.write_text("\n".join(map(",".join, [header, *rows])) + "\n")
        capsys.readouterr()
        load("report").main([str(runs / "run"), "--quick"])
        text = " ".join(capsys.readouterr().out.split())
        assert ("[bad] The policy of iteration 1 does not earn what training logged there." in text) == told


def test_bad_input_is_one_line(runs, capsys):
    train("ppo", runs, run_name="run")
    (runs / "bare").mkdir()

    def refused(*flags):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            load("report").main([*flags, "--quick"])
        message = capsys.readouterr().err
        assert ended.value.code == 2 and message.count("\n") == 1
        return message

    assert "no config.json" in refused("bare")
    assert "the same run, twice" in refused("run", "run")
    assert "--episodes 0" in refused("run", "--episodes", "0")
    (runs / "run" / "figures").mkdir()
    (runs / "run" / "figures" / "value.jsonl").write_text("?\n")
    assert "value.jsonl is damaged" in refused("run")
    (runs / "run" / "figures" / "value.jsonl").unlink()
    (runs / "run" / "figures" / "value.jsonl").symlink_to("/proc/self/mem")
    assert "value.jsonl: Input/output error" in refused("run")
    (runs / "run" / "figures" / "value.jsonl").unlink()
    for damaged in ("999999999999,2048", "-5,2048", "3,2"):
        (runs / "run" / "progress.csv").write_text(f"iteration,global_step\n{damaged}\n")
        assert "progress.csv is damaged" in refused("run")
    (runs / "run" / "progress.csv").unlink()
    (runs / "run" / "progress.csv").symlink_to("/proc/self/mem")
    assert "progress.csv: Input/output error" in refused("run")
    (runs / "run" / "progress.csv").unlink()
    (runs / "run" / "progress.csv").write_text("iteration,global_step\n0,1")
    assert "nothing to report" in refused("run")
    (runs / "run" / "progress.csv").unlink()
    assert "nothing to report" in refused("run")
