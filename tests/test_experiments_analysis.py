"""The analyses of the seven planned experiments find what was put into made-up numbers."""

import itertools
import json
import runpy
import sys
from pathlib import Path

import lab
import numpy as np
import pytest
from conftest import ROOT, flags_of, load
from scipy import stats

sys.path.insert(0, str(ROOT / "figures"))

import estimates
import finals
import planned
from claims import room
from estimates import Estimate

NAMES = "noise_or_length", "gains_add_up", "critic_or_clip", "bounds", "time_limits", "released", "jagged"
a, b, c, d, e, f, g = map(room, NAMES)
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


def settings(of, **more):
    """The final rewards of agents by environment and label, as finals.py writes them."""
    numbers = "finals", "last_50", "explained_variance", "mean_kl", "entropy"
    found = [dict(env_id=f"{x}-v5", label=y, **more) | dict.fromkeys(numbers, [*z]) for (x, y), z in of.items()]
    return json.dumps(dict(settings=found))


def reduce(name):
    """What a room's rows.py makes of measured.jsonl."""
    main = runpy.run_path(ROOT / "figures" / name / "rows.py")["main"]
    (estimates.FIGURES / name).mkdir()
    main(estimates.FIGURES / "measured.jsonl", estimates.FIGURES / name)


def updates(place, gains, run):
    """A row of noise_or_length, whose gains differ between its two updates, its two checkpoints, and runs."""
    off = TEN[run["run_seed"]] + run["iteration"] - 225
    found = [{x: 500 + y * z + off for x, y in gains.items()} | dict(start=500) for z in (0.5, 1.5)]
    moved = dict.fromkeys("ABCDE", 0.4) | dict(A=1.0)
    return run | dict(env_id=place, found=[dict(returns=x, norms=moved, kls=moved) for x in found])


def test_noise_or_length_and_whether_gains_add_up(write):
    gains, more = dict(A=10.0, B=20.0, C=50.0, D=35.0, E=5.0), dict(A=30.0, B=20.0, C=150.0, D=35.0, E=5.0)
    both = ("Hopper-v5", gains), ("Walker2d-v5", more)
    write("noise_or_length/rows.jsonl", [updates(*x, run) for x in both for run in EACH])
    found = {name: {x: y.mean for x, y in a.effect(of).items()} for name, of in (a.EFFECTS | a.OTHERS).items()}
    assert found["less noise, at equal length"] == pytest.approx(dict(both=47.5, Hopper=27.5, Walker2d=67.5))
    assert found["a shorter step, at equal noise"] == pytest.approx(dict(both=32.5, Hopper=12.5, Walker2d=52.5))
    assert [found[x]["Hopper"] for x in ("interaction", "G(E) − G(C)")] == pytest.approx([-2.5, -45])
    assert a.effect("A")["Hopper"].interval() == pytest.approx(Estimate([10 + TEN]).interval())  # runs are the sample
    assert a.length_ratio()["Walker2d"].mean == pytest.approx(0.4)
    summed_up = runpy.run_path(ROOT / "figures" / "gains_add_up" / "measure.py")["summed_up"]
    rows, arms = [], dict(few=100.0, short=400.0, many=1000.0)
    for place, run in itertools.product(("Hopper-v5", "Walker2d-v5"), EACH):
        of = {x: y + TEN[run["run_seed"]] * (x != "few") for x, y in arms.items()}
        logged = dict.fromkeys(("explained_variance", "mean_kl", "step_norm"), 0.5)
        its = [logged | dict(episodes=2 - i % 2, mean_return=3.0 * (i % 2)) for i in range(288)]
        parts = {x: [summed_up([*y]) for y in np.array_split(its[: 12 if x == "many" else 288], 12)] for x in of}
        row = {x: dict(returns=[y, y + 2], iterations=parts[x]) for x, y in of.items()}
        rows.append(run | row | dict(env_id=place, setting="", checkpoint="", before=[1.0]))
    write("gains_add_up/rows.jsonl", rows)
    assert [x["both"].mean for x in b.primary().values()] == pytest.approx([900, 300])
    assert b.effect("many - short")["Hopper"].mean == 600 and b.effect("few - before")["Walker2d"].mean == 100
    assert b.saturation()["Hopper"].interval() == pytest.approx(Estimate([400 - 11 * TEN]).interval())  # paired by run
    assert b.curve("Hopper", "few") == pytest.approx([1.0] * 12)  # weighted by episodes
    assert b.curve("Hopper", "many") == pytest.approx([0.0, 3.0] * 6)


def test_critic_or_clip(write):
    grid = {("Hopper", 3e-4): 2000, ("Walker2d", 7e-4): 3000, ("HalfCheetah", 3e-4): 500}  # by shares, not by rewards
    parts = []
    for algo, k, i, place in itertools.product(c.RATES, (1, 50), range(3), c.PLACES):
        chosen = dict(value_epochs=k, policy_lr=c.RATES[algo][i])
        final = grid.get((place, chosen["policy_lr"]), 100)
        parts += json.loads(settings({(place, ""): [final]}, algo=algo, settings=chosen))["settings"]
    write("critic_or_clip/rates.json", json.dumps(dict(settings=parts)))
    assert c.chosen_rates() == {(x, k): dict(a2c=3e-4, ppo_noclip=3e-5)[x] for x in c.RATES for k in (1, 50)}
    means = dict(Hopper=(3000, 2000, 1000), Walker2d=(3000, 2700, 1000), HalfCheetah=(3000, 3000, 2990))
    names = "ppo.py", "A2C-50", "A2C-1"
    of = {(x, name): mean + TEN for x, levels in means.items() for name, mean in zip(names, levels)}
    write("critic_or_clip/finals.json", settings(of))
    verdicts, shares = zip(*(x[1:] for x in c.compared("A2C")))
    assert verdicts[1:] == ("below PPO", "a little lower than PPO", "comparable to or better than PPO")
    assert shares[1][:4] == "50 %" and c.tests("A2C")["A2C-50 − A2C-1"]["Hopper"].mean == 1000
    assert c.closed("A2C", "Walker2d")["mean"] == pytest.approx(1700 / 2000) and len(verdicts) == 4
    levels = {"ppo.py": 3000, "NoClip-50": 2000, "NoClip-1": 0}
    of = {(x, name): mean + TEN for x in c.PLACES[:2] for name, mean in levels.items()}
    write("critic_or_clip/at_one_rate.json", settings(of))
    assert c.same_rate()["NoClip-50 − NoClip-1"]["Hopper"].mean == 2000


def test_bounds_time_limits_and_the_released_code(write):
    ways = {(x, y): z + TEN for x in d.PLACES for y, z in dict(no=1000, clip=1300, tanh=1100).items()}
    write("bounds/finals.json", settings(ways))
    played = [x | dict(env_id="Hopper-v5", no=dict(returns=[5, 7]), clip=dict(returns=[105, 107])) for x in EACH[::2]]
    played[0]["clip"] = dict(returns=[95, 107])
    write("bounds/played.jsonl", played)
    left = d.learning("Hopper")
    assert d.accounting()["Hopper"].mean == pytest.approx(99.5) and left.mean == pytest.approx(300 - 99.5)
    assert left.error == pytest.approx((2 * TEN.var(ddof=1) / 10 + 0.25) ** 0.5)  # the accounting's own is 0.5
    assert d.primary()["tanh − clip"]["Hopper"].mean == -200
    write("bounds/again.json", settings({(x, y): z + TEN for x in d.AGAIN for y, z in dict(no=0, tanh=300).items()}))
    x, y = d.again()["tanh − no, new seeds"]["Walker2d"], d.pooled()["tanh − no, both experiments"]["Walker2d"]
    assert (x.mean, y.mean) == pytest.approx((300, 200)) and (x.seeds, y.seeds) == (10, 20)

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
    assert [float(row[3].split(" [")[0]) for row in [*f.against_ours()][1:]] == [10] * 4
    assert [row[1].split(" [")[0] for row in f.effects()][1:] == ["165.0", "185.0"]


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
    reduce("jagged")
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
