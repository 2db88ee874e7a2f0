"""The analyses of planned experiments find what was put into made-up numbers. What sums up contrasts alone is pinned by
test_results.py, and rules by test_intervals.py."""

import itertools
import json
import runpy
from pathlib import Path

import estimates
import finals
import lab
import numpy as np
import planned
import pytest
from claims import room
from conftest import ROOT, flags_of, load
from estimates import Estimate
from scipy import stats

d, e, f, g = map(room, ("bounds", "time_limits", "released", "jagged"))
TEN = np.array([-9.0, -7, -5, -3, -1, 1, 3, 5, 7, 9])  # how ten runs differ
ALGOS = "ppo", "trpo_plus"
EACH = [dict(algo="ppo", run_seed=i, iteration=x) for i, x in itertools.product(range(10), (150, 300))]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A function that writes rows, or records of settings, where the rooms look for them."""
    monkeypatch.setattr(estimates, "FIGURES", tmp_path)
    estimates.measured.cache_clear()

    def write(path, rows):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("".join(json.dumps(x) + "\n" for x in rows) if "jsonl" in path else rows)

    yield write
    estimates.measured.cache_clear()


def settings(of):
    """The final rewards of agents by environment and label, as finals.py writes them."""
    numbers = "finals", "last_50", "explained_variance", "mean_kl", "entropy"
    found = [dict(env_id=f"{x}-v5", label=y) | dict.fromkeys(numbers, [*z]) for (x, y), z in of.items()]
    return json.dumps(dict(settings=found))


def test_returns_of_a_continued_training_are_averaged_over_episodes():
    summed_up = runpy.run_path(ROOT / "figures" / "gains_add_up" / "measure.py")["summed_up"]
    logged = dict(explained_variance=0.5, mean_kl=0.1, step_norm=3.0)
    found = summed_up([logged | dict(episodes=n, mean_return=x) for n, x in ((3, 10.0), (0, None), (1, 30.0))])
    assert found == logged | dict(episodes=4, mean_return=15.0, mean_kl=pytest.approx(0.1))
    assert summed_up([logged | dict(episodes=0, mean_return=None)])["mean_return"] is None


def test_bounds_time_limits_and_the_released_code(write):
    ways = {(x, y): z + TEN for x in d.PLACES for y, z in dict(no=1000, clip=1300, tanh=1100).items()}
    write("bounds/finals.json", settings(ways))
    played = [x | dict(env_id="Hopper-v5", no=dict(returns=[5, 7]), clip=dict(returns=[105, 107])) for x in EACH[::2]]
    played[0]["clip"] = dict(returns=[95, 107])
    write("bounds/played.jsonl", played)
    left = d.learning("Hopper")
    assert d.accounting()["Hopper"].mean == pytest.approx(99.5) and left.mean == pytest.approx(300 - 99.5)
    assert left.error == pytest.approx((2 * TEN.var(ddof=1) / 10 + 0.25) ** 0.5)  # the accounting's own is 0.5

    on, off = 1701 + 100 * TEN, 1650 + 50 * TEN
    write("time_limits/finals.json", settings({(x, y): z for x in e.PLACES for y, z in dict(on=on, off=off).items()}))
    above, p = e.probability()
    assert above == np.mean(on[:, None] > off) and p == pytest.approx(stats.ranksums(on, off).pvalue, abs=0.05)
    assert e.primary()["on − off"]["HalfCheetah"].p() == pytest.approx(stats.ttest_ind(on, off, equal_var=False).pvalue)
    assert e.explained_variance("Walker2d").mean == pytest.approx(51)

    for path, x in (("released/released", 10), ("reward/humanoid", 0)):
        of = {"PPO": 750, "PPO-M": 650, "TRPO": 400, "TRPO+": 670}
        write(f"{path}.json", settings({("Humanoid", n): y + x + TEN for n, y in of.items()}))
    x, paper = f.against_paper("TRPO"), np.random.default_rng(0).normal(0, 1, 10**5)
    paper = 586 + (paper - paper.mean()) / paper.std(ddof=1) * 10 / 1.96 * len(paper) ** 0.5  # its error is the paper's
    known = Estimate([410 + TEN, paper], (1, -1))
    assert (x.freedom, *x.interval()) == pytest.approx((known.freedom, *known.interval()), rel=0.01)


def landscape(rng, run, tau, curve=0.0, noise=700.0):
    """A row of landscape.py: a line with a curve, points that scatter around it, and the noise of episodes."""
    x, found = np.linspace(0, 3, 13), []
    for along in g.ALONG:
        true = 1000 + 50 * x + curve * x**2 + rng.normal(0, tau, 13)
        for at, mean in list(zip(x, true))[len(found) > 0 :]:  # both directions begin at the same point
            found.append(dict(step=0.0, random=0.0) | {along: at, "returns": rng.normal(mean, noise, 50).tolist()})
    return run | dict(env_id="Hopper-v5", points=[y | dict(episodes=50, pairs=40_000) for y in found])


def test_jagged(write):
    rng, shares = np.random.default_rng(0), {g.jaggedness: 1, g.scatter: 0.75}
    rows = {tau: [landscape(rng, x, tau) for x in EACH * 20] for tau in (0, 300)}
    for (tau, of), along, (number, share) in itertools.product(rows.items(), g.ALONG, shares.items()):
        x = Estimate([[number(row, along) for row in of]])
        assert abs(x.mean - share * tau**2) < 3 * x.error < 13_000
    rows = rows[300]
    assert g.apparent(rows[0], "step", 2000) == g.ruggedness(g.returns(rows[0], "step", 40_000)[:, :2])[0]
    smooth = landscape(rng, EACH[0], tau=0, curve=400.0, noise=0.0)
    assert g.jaggedness(smooth, "step", spacing=2) == pytest.approx(16 * g.jaggedness(smooth, "step")) != 0
    of = [x | dict(algo=y, setting="", checkpoint="", reward_pairs=40_000) for x in rows[:20] for y in ALGOS]
    of += [x | dict(iteration=0) for x in of[:20]]
    write("measured.jsonl", of + [x | dict(env_id="Walker2d-v5") for x in of])
    (estimates.FIGURES / "jagged").mkdir()
    reduce = runpy.run_path(ROOT / "figures" / "jagged" / "rows.py")["main"]
    reduce(estimates.FIGURES / "measured.jsonl", estimates.FIGURES / "jagged")
    tests, cases = g.tests(), [*g.table_of_cases()]
    assert len(tests["along the step"]["Hopper"].samples[0]) == 20 and len([*g.table_of_parts()]) == 5
    exact = np.mean([g.jaggedness(x, "step") for x in rows[:2]])
    assert tests["along the step"]["Hopper"].samples[0][0] == pytest.approx(exact, rel=0.001)  # four digits are kept
    assert [x[4] for x in cases] == ["verdict", *["jagged"] * 4]
    noise = 700**2 / 2 / (300**2 + 700**2 / 2)
    assert g.by_noise("Hopper", "step", 2000)["mean"] == pytest.approx(noise, abs=0.1)
    again = {tau: g.resampled("Hopper", "step", tau, 300).mean() for tau in (0, 500)}
    assert abs(again[0]) < 0.02 * 700**2 and again[500] == pytest.approx(500**2, rel=0.1)
    far, near, one = (Estimate([x + TEN]) for x in (100**2, 50**2, 1))  # of one, the interval contains 0
    found = [g.verdict(*x) for x in ((far, far, True), (far, one, True), (near, far, False), (far, far, False))]
    assert found == ["jagged", "curved", "smooth within 100", "cannot tell"]


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


def test_what_clipping_is_worth_is_measured_with_the_same_episodes(runs):
    flags = dict(env_id="HalfCheetah-v5", num_steps=64, total_timesteps=128, runs_dir=".", run_name="run")
    load("ppo").main(flags_of("ppo", **flags))
    measure = runpy.run_path(ROOT / "figures" / "bounds" / "measure.py")
    measure["main"](["run", "--episodes", "2", "--out", ".", "--jobs", "1"])
    [row] = map(json.loads, (runs / "bounds.jsonl").read_text().splitlines())
    checkpoint = lab.Checkpoint(ROOT / "algos" / "ppo.py", Path("run"), 2)
    assert row["no"]["returns"] == [x for x, _ in lab.play(checkpoint, (0, 2), 0, 2)]
    assert row["no"]["lengths"] == row["clip"]["lengths"] == [1000, 1000]  # the body moves alike
    worth = np.subtract(row["clip"]["returns"], row["no"]["returns"])
    # With a standard deviation of 1, six actions cost 0.1 (1 - E[clip(a)^2]) each a step more, which is 290 in all.
    assert worth == pytest.approx(290, rel=0.05)
