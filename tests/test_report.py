"""The report of a run: the checks of a run on known numbers, and its page. Those of a script are in test_checks."""

import dataclasses
import json
import math
import re
import shutil
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ALGOS, ROOT, checkpoints, flags_of, load

CHECKS = {x.find.__name__: x.find for x in load("run_checks").CHECKS}
ARGS = dict(num_envs=1, num_steps=10)


def judge(name, columns=None, saved=None, args=None, n=40, **parts):
    """Returns the verdict of a check on a run of n iterations of ten steps, of which it is planned to take forty."""
    progress = dict(global_step=10.0 * np.arange(1, n + 1), episodes=np.full(n, 5.0)) | (columns or {})
    run = SimpleNamespace(args=ARGS | (args or {}), progress=progress, saved=saved or {0: {}, n: {}}, batch_size=10)
    run.config, run.planned = dict(algo="ppo", args=run.args), 400
    run.logged = lambda x: progress.get(x, np.full(n, np.nan))
    vars(run).update(parts)
    return CHECKS[name](run)


def test_it_learned():
    noise = np.random.default_rng(0).normal(0, 5, 40)
    rising = np.linspace(20, 360, 40)
    cases = dict(rising=(rising, "no verdict"), flat=(0 * rising, "bad"), falling=(-rising, "bad"))
    cases |= dict(fallen=(np.where(np.arange(40) < 30, rising, 130), "caution"), few=(rising, "cannot tell"))
    for name, (returns, status) in cases.items():
        returns = np.where(np.arange(40) < 35, np.nan, returns) if name == "few" else returns
        found = judge("learned", dict(episodic_return=returns + noise * (name != "flat")))
        assert found.status == status, name
    # It never rose, and its best ten were no better than its first two: that is no fall from a height.
    returns = np.array([18.0, *[19.0, 1.0] * 5, *[3.0] * 10])
    found = judge("learned", dict(episodic_return=returns, episodes=np.full(21, 20.0)), n=21)
    assert found.status == "bad" and "below where it began" in found.text


def test_resumptions_and_natural_steps():
    saved = lambda *at: {0: dict(inexact_resumes=[]), 40: dict(inexact_resumes=[*at])}
    assert judge("resumed", saved=saved()).status == "good" and judge("resumed") is None
    found = judge("resumed", saved=saved(3, 7))
    assert found.status == "caution" and "in iteration 3, 7" in found.text
    filled = lambda **columns: {name: np.full(40, x) for name, x in columns.items()}
    of = lambda residual, step: judge("solved", filled(cg_residual=residual, line_search_step=step))
    assert of(0.1, 1.0).status == "good" and judge("solved") is None
    assert "hardly solves" in of(0.9, 1.0).text and "refuses" in of(0.1, 0.0).text


def test_a_first_cause_is_named_and_what_is_meant_is_no_alarm():
    checks, bad = load("checks"), load("checks").Verdict("bad", "wrong", "3 of 5")
    known = []
    for name, verdict, after in (("first", bad, ""), ("second", bad, "first"), ("third", bad, "second")):
        find = lambda _, verdict=verdict: verdict
        find.__name__, find.__doc__ = name, "A rule."
        checks.into(known)(name, after=after)(find)
    statuses = lambda **options: [x["status"] for x in checks.judge(known, None, **options)]
    assert statuses() == ["bad", "cannot tell", "bad"] and statuses(meant=["first"]) == ["meant", "bad", "cannot tell"]
    assert statuses(before=[dict(check="second", status="bad")])[2] == "cannot tell"
    assert "what first says may be the cause" in checks.judge(known, None)[1]["text"]


@pytest.mark.parametrize("algo", ALGOS)
def test_a_default_run_has_no_flags_in_its_title(algo):
    config = dict(algo=algo, args=json.loads(json.dumps(dataclasses.asdict(load(algo).Args()))))
    assert load("run_checks").given(config, ROOT / "algos" / f"{algo}.py") == {}


def test_every_part_goes_on():
    """Statistics that come with an agent of SB3 may be of another moment, and are accused of nothing."""
    weights, seen = lambda i: dict(w=torch.full((2,), float(i))), lambda i: dict(count=9 * i + 9, mean=0.0)
    saved = {i: dict(rng=i, policy=weights(i), obs_stats=seen(i)) for i in (0, 5, 10, 15)}
    assert judge("goes_on", saved=saved).status == "good"
    of_sb3 = lambda saved: judge("goes_on", saved=saved, config=dict(algo="sb3"))
    assert of_sb3(saved).status == "good"
    saved_by_zoo = {i: x | dict(obs_stats=seen(15)) for i, x in saved.items()}
    assert of_sb3(saved_by_zoo).status == "cannot tell" and "obs_stats" in of_sb3(saved_by_zoo).text
    assert of_sb3(saved_by_zoo | {15: saved[15] | dict(policy=weights(5))}).status == "bad"
    for broken, told in (
        (dict(rng=5), "random generator's state of iteration 15"),
        (dict(policy=saved[5]["policy"]), "w of the policy network stood still from iteration 5 to 15"),
        (dict(obs_stats=saved[10]["obs_stats"]), "obs_stats had seen 99 samples by iteration 10 and 99 by 15"),
        (dict(obs_stats=dict(count=7, mean=0.0)), "obs_stats had seen 99 samples by iteration 10 and 7 by 15"),
    ):
        found = judge("goes_on", saved=saved | {15: saved[15] | broken})
        assert found.status == "bad" and told in found.text


def test_steps_are_short():
    kls, returns = np.full(40, 0.01), np.arange(40.0)
    columns = dict(mean_kl=kls, episodic_return=returns)
    assert judge("lengths", columns).status == "good"
    assert judge("lengths", dict(mean_kl=np.where(np.arange(40) < 3, 0.2, kls))).status == "bad"
    assert judge("lengths", dict(mean_kl=np.where(np.arange(40) < 3, math.inf, kls))).status == "bad"
    assert judge("lengths", dict(mean_kl=np.full(40, np.nan))).status == "cannot tell"
    kls[33] = 9.9
    assert judge("lengths", columns).status == "good"  # and the return rose
    found = judge("lengths", columns | dict(episodic_return=-returns))
    assert found.status == "bad" and "Iteration 33 went" in found.text
    bound = dict(max_kl=0.04, max_kl_final=0.08)  # which moves by a fortieth in each iteration
    assert judge("lengths", dict(mean_kl=0.04 + 0.001 * np.arange(40)), args=bound).status == "good"
    assert judge("lengths", dict(mean_kl=0.0401 + 0.001 * np.arange(40)), args=bound).status == "bad"


def test_exploration_asks_how_it_began():
    """The last of the ranges are none, since one is too wide, one infinite, and one empty."""
    for first, last, high, status, text in (
        (1.0, 0.2, 1.0, "good", ""),
        (1.0, 0.04, 1.0, "bad", "By iteration 20 it has stopped exploring in 2 of 2"),
        (1.0, 1.6, 1.0, "caution", "grown"),
        (1.0, 1.0, 300.0, "caution", "small part of the range from the start"),  # and no coefficient would change it
        (1.0, 1.0, 3e38, "good", ""),
        (1.0, 0.04, np.inf, "bad", "stopped"),
        (1.0, 1.0, -1.0, "good", ""),
    ):
        log_stds = {0: math.log(first), 20: math.log(last), 40: math.log(last)}
        saved = {i: dict(policy=dict(log_std=torch.full((2,), x))) for i, x in log_stds.items()}
        space = SimpleNamespace(low=np.full(2, min(-high, -1), np.float32), high=np.full(2, high, np.float32))
        found = judge("explores", saved=saved, script=SimpleNamespace(space=space))
        assert found.status == status and text in found.text, (first, last, high)


def test_the_end():
    assert judge("ended").status == "good" and judge("ended", n=39).status == "caution"


def train(folder, **settings):
    settings = dict(env_id="InvertedPendulum-v5", total_timesteps=1024, runs_dir=str(folder)) | settings
    load("ppo").main([*flags_of("ppo", **settings), "--checkpoint-every", "1"])


def report_on(run):
    """What is found of each check."""
    load("report").main([str(run)])
    return {x["check"]: x for x in json.loads((run / "figures" / "verdicts.json").read_text())}


def page_of(path):
    """Returns the text of a page, which loads nothing and closes what it opens."""
    tags = Counter(re.findall(r"</?[a-z]\w*", text := path.read_text())) - Counter({"<meta": 99, "<br": 99})
    assert all(tags[f"</{x[1:]}"] == n for x, n in tags.items() if x[1] != "/") and not re.search(r" (src|href)=", text)
    return text


def test_runs_of_the_same_name_are_told_apart(runs, capsys):
    for name, flag in (("on", True), ("off", False)):
        train(runs / name, run_name="seed1", value_clip=flag)
    load("report").main(["on/seed1", "off/seed1", "--out", "out"])
    told, page = capsys.readouterr().out, page_of(runs / "out" / "report.html")
    for folder in ("on/seed1", "off/seed1"):
        assert folder in told and folder in page
    found = json.loads((runs / "out" / "verdicts.json").read_text())
    assert {x["run"] for x in found} == {str(runs / "on" / "seed1"), str(runs / "off" / "seed1")}
    assert all(x["rule"] and (x["text"] or x["status"] == "good") for x in found)


@pytest.mark.parametrize(
    "settings, expected",
    [
        (dict(env_id="environments:Wide-v0"), dict(explores="caution")),  # its noise is a small part of the range
        (dict(env_id="environments:Int8-v0", bound_action="tanh"), dict(actions="good")),
        (dict(env_id="environments:Endless-v0"), dict(learned="cannot tell")),
        (dict(env_id="environments:Unrewarded-v0"), dict(running_statistics="good")),
        (dict(num_steps=32, num_minibatches=2, total_timesteps=320), {}),  # rollouts of few pairs
    ],
)
def test_what_is_odd_is_not_accused(settings, expected, runs):
    train(runs, run_name="run", **settings)
    found = {check: x["status"] for check, x in report_on(runs / "run").items()}
    assert found | expected == found
    assert {x for x in found if found[x] in ("bad", "caution")} == {x for x in expected if expected[x] == "caution"}


def test_normalizers_that_hide_what_matters_are_named():
    """Of three numbers of an observation, the second varies by rounding alone, which is no outlier's fault."""
    obs = np.random.default_rng(0).normal(3, 1, (200, 3))
    obs[:, 1] = 5 + 1e-13 * obs[:, 0]
    known = SimpleNamespace(mean=obs.mean(0), std=obs.std(0))
    data = dict(obs=(obs - known.mean) / (known.std + 1e-8), rewards=np.zeros(200), ends=np.arange(200) % 20 == 19)
    options = dict(obs_clip=True, obs_clip_range=10, obs_norm=True)
    script = SimpleNamespace(first=(data, dict(obs=obs)), steps=200, new=(0, 0, 0, dict(obs=obs)))
    script.statistics, script.option, script.wide = lambda _: known, options.get, SimpleNamespace(**options)
    found = lambda: judge("normalizers", script=script)
    assert found().status == "good"
    data["obs"][50::40, 0] = 10  # one number of three, in each fortieth step
    assert found().status != "bad" and "0.73 %" in found().number
    data["obs"][:, 2] = 10
    assert found().status == "bad" and "--obs-clip-range" in found().text
    assert "clip_obs of VecNormalize" in judge("normalizers", script=script, config=dict(algo="sb3")).text
    known.std[0] = 1e6
    assert found().status == "bad" and "outlier" in found().text


def test_a_script_is_checked_before_it_has_trained_and_when_it_has_ended(known, runs):
    shutil.copytree(known / "ppo", "run")
    shutil.copytree(runs / "run", runs / "ended")
    for path in checkpoints(runs / "ended")[:-1] + checkpoints(runs / "run")[1:]:
        path.unlink()
    (runs / "run" / "progress.csv").unlink()
    for name, some in (("run", 0), ("ended", 5)):
        found = report_on(runs / name).values()
        of_script = [x["status"] for x in found if x["half"] == load("report").SCRIPT]
        assert set(of_script) == {"good"} and len(of_script) >= 15 and len(found) >= len(of_script) + some


def test_the_folder_can_be_copied(known, runs):
    """Beside it stand lab.py and rewards.py."""
    shutil.copytree(ROOT / "diagnostics" / "report", "report")
    for name in ("lab", "rewards"):
        shutil.copy(ROOT / "diagnostics" / f"{name}.py", runs)
    shutil.copy(ROOT / "algos" / "ppo.py", "my_ppo.py")
    flags = [str(known / "ppo"), "--script", "my_ppo.py", "--out", "here"]
    result = subprocess.run([sys.executable, "report", *flags], capture_output=True, text=True)
    assert result.returncode == 0 and "[good]" in result.stdout and "[bad]" not in result.stdout, result.stderr
    assert (runs / "here" / "report.html").exists()
