"""What is kept of a protocol's runs, and the analyses of those whose runs are still to come, on made-up numbers."""

import json
from itertools import product

import claims
import estimates
import numpy as np
import papers
import protocols
import pytest
import rewards
import train
from conftest import CALLS, load
from scipy import stats

pytestmark = pytest.mark.usefixtures("figures")
FLAGS = "--num-steps 256 --num-minibatches 2 --no-compile"


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A part of two runs of a thousand steps, with a diagnostic, whose lines go to a folder of their own."""
    monkeypatch.setitem(papers.AGENTS, "tiny", ("a2c", {"all": f"{FLAGS} --num-envs 1 --checkpoint-every 4"}))
    record = papers.Experiment("", "", ["tiny"], ["rewards", "evaluate --episodes 2"], 2, 1024, ["Hopper", "Swimmer"])
    monkeypatch.setitem(papers.EXPERIMENTS, "tiny", record)
    monkeypatch.setitem(protocols.PARTS, "tiny", protocols.Part("tiny", "tiny", range(3, 4), points=2))
    monkeypatch.setattr(protocols, "FIGURES", tmp_path)
    (tmp_path / "tiny").mkdir()
    return tmp_path


def call(folder):
    with pytest.raises(SystemExit) as ended:
        train.main(["tiny", "--runs-dir", str(folder / "runs")])
    return ended.value.code


def test_a_run_is_kept_as_a_line_and_not_trained_again(tiny, monkeypatch):
    """One of two runs has its line already. That of the other was not written to its end."""
    lines = [dict(agent="tiny", env_id=f"{x}-v5", seed=3, final=float(i)) for i, x in enumerate(("Hopper", "Swimmer"))]
    (tiny / "tiny/runs.jsonl").write_text(json.dumps(lines[0]) + "\n" + json.dumps(lines[1])[:20])
    with pytest.raises(ValueError, match="1 of 2 runs are missing, so that nobody looks"):
        protocols.whole("tiny")
    expected, summarize = [], protocols.summarize

    def look(folder, part):
        """Computes the final return as rewards.py does, before the folder is deleted."""
        expected.append(rewards.read_run(folder)["final"])
        return summarize(folder, part)

    monkeypatch.setattr(protocols, "summarize", look)
    assert call(tiny) == 0
    assert [x for x in (tiny / "runs").rglob("*") if x.suffix in (".pt", ".log")] == []
    first, line = protocols.whole("tiny")
    assert first == lines[0] and line["agent"] == "tiny" and not line["stopped"] and line["steps"] == 1024
    assert [line["final"]] == pytest.approx(expected, rel=1e-5) and len(line["episodic_return"]) == 2
    assert [x["iteration"] for x in line["rows"]["evaluate"]][-1] == 4
    assert call(tiny) == 0 and len(expected) == 1  # nothing is trained again


def test_first_seeds_are_shown_early_once_all_runs_of_them_are_there(tiny, monkeypatch):
    monkeypatch.setitem(protocols.PARTS, "tiny", protocols.PARTS["tiny"]._replace(seeds=range(3, 5), early=1))
    lines = [dict(agent="tiny", env_id=f"{x}-v5", seed=y) for x, y in product(("Hopper", "Swimmer"), (4, 3))]
    (tiny / "tiny/runs.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines[:3]))
    with pytest.raises(ValueError, match="1 of 2 runs are missing"):
        protocols.whole("tiny", early=True)
    protocols.append(tiny / "tiny/runs.jsonl", lines[3])
    assert protocols.whole("tiny", early=True) == [lines[1], lines[3]]


def test_a_failed_run_has_no_line_and_one_that_a_number_stopped_has(tiny, monkeypatch, capfd):
    texts = iter(["no space left", "ppo.py: iteration 7: a loss is not finite"])

    def fail(command, log):
        log.write_text(f"begun\n{next(texts)}\n")
        return 1

    monkeypatch.setattr(train, "call", fail)
    monkeypatch.setattr(train.shutil, "rmtree", lambda folder: None)
    monkeypatch.setattr(protocols, "summarize", lambda folder, part: dict(stopped=True, final=1.23456789))
    assert call(tiny) == 1 and "Hopper-v5, 3: training ended with status 1" in capfd.readouterr().err
    [line] = protocols.kept("tiny").values()
    assert line == dict(agent="tiny", env_id="Swimmer-v5", seed=3, stopped=True, final=1.23457)


def test_what_is_kept_of_trainings_log(tmp_path):
    """An iteration in which no episode ended counts in no mean, and steps beyond the plan belong to the last part."""
    config = dict(algo="x", script="0" * 64, versions={}, args=dict(total_timesteps=1030, num_envs=2, num_steps=50))
    (tmp_path / "config.json").write_text(json.dumps(config))
    returns = ["", 1, 2, "", "", 3, 4, 5, 6, 7]
    rows = [f"{100 * i + 100 + 30 * (i == 9)},{x}" for i, x in enumerate(returns)]
    part = protocols.Part("", "", range(1), logged=("episodic_return",), points=5)
    for count, stopped, curve, final in ((10, False, [1, 2, 3, 4.5, 6.5], 5), (7, True, [1, 2, 3, 4, None], 2.5)):
        (tmp_path / "progress.csv").write_text("\n".join(["global_step,episodic_return", *rows[:count], ""]))
        line = protocols.summarize(tmp_path, part)
        assert (line["stopped"], line["episodic_return"], line["final"]) == (stopped, curve, final)
        assert line["first"] == (3 if count == 10 else 2.5)


# Analyses ------------------------------------------------------------------------------------------------------------


def made_up(name, number):
    """Returns a line for each planned run, with what `number` says of its agent, its environment and its seed."""
    lines = []
    for agent, env_id, seed in protocols.planned(name):
        line = dict(agent=agent, env_id=env_id, seed=seed, stopped=False)
        lines.append(line | number(agent, env_id.partition("-")[0], seed))
    return lines


def fresh(name, monkeypatch, **lines):
    """Returns a room whose parts have these lines."""
    of_room = claims.room.__wrapped__(name)  # not the one that other tests share
    monkeypatch.setattr(of_room, "whole", lambda part, early=False: lines[part.replace("-", "_")])
    monkeypatch.setattr(of_room, "missing", lambda *_: [], raising=False)
    return of_room


def test_the_reference_finds_what_was_put_in(monkeypatch):
    rng, levels = np.random.default_rng(0), dict(trpo=300.0, a2c=1000.0, sb3_ppo=2100.0)

    def number(agent, place, seed):
        final = levels.get(agent.removesuffix(".py"), 2000.0) + rng.normal(0, 50)
        first = final + 500 if (agent, place) == ("a2c.py", "Humanoid") else 290 + rng.normal(0, 50)
        curve = [None, *np.linspace(first, final, 98), None]
        return dict(final=final, first=first, episodic_return=curve, processor="x")

    x = fresh("reference", monkeypatch, reference=made_up("reference", number), sb3_ppo=made_up("sb3-ppo", number))
    assert x.learns("ppo.py", "Ant") == "learns" and x.learns("a2c.py", "Humanoid") == "fails"
    assert x.not_learning()["a2c.py"] == ["fails on Humanoid"]
    assert all("is not known to learn" in y for y in x.not_learning()["trpo.py"]) and len(x.not_learning()) == 2
    header, *rows = map(list, x.finals_table())
    cells = {(row[0], place): cell for row in rows for place, cell in zip(header[1:], row[1:])}
    assert "**" in cells["`trpo.py`", "Ant-v5"] and "✗" in cells["`a2c.py`", "Humanoid-v5"]
    assert "**" not in cells["`ppo.py`", "Ant-v5"]
    assert cells["PPO of SB3", "Ant-v5"] == "" != cells["PPO of SB3", "Hopper-v5"]
    assert [*x.sb3_table()][-1][1:] == ["as good as"] * 3  # by 100, which 5 seeds tell from 0 here
    finals = x.numbers("final")["Hopper"]
    welch = stats.ttest_ind(finals["ppo.py"], finals["sb3_ppo"], equal_var=False)
    assert x.from_sb3()["ppo.py − PPO of SB3"]["Hopper"].p() == pytest.approx(welch.pvalue)
    mean, low, high = x.curve("Hopper", "ppo.py")
    assert low[50] < mean[50] < high[50] and mean[0] == mean[1] and abs(mean[-1] - 2000) < 60
    [_, ppo, *_] = x.table_of_first_seeds()
    assert ppo[1] == f"{finals['ppo.py'].mean():,.0f}<br>({'; '.join(f'{y:,.0f}' for y in finals['ppo.py'])})"
    assert [len(x.dots(early).axes[0].lines) for early in (False, True)] == [27, 18]  # by the means' intervals
    monkeypatch.setattr(x, "minutes_per_million", lambda place, agent: 3.0)
    for over, end in (("steps", 1), ("minutes", 3)):
        axis = x.curves(over).axes[0]
        assert len(axis.lines) == 9 and axis.lines[0].get_xdata()[-1] == pytest.approx(0.995 * end)


def test_how_wide_a_value_clip_must_be(monkeypatch):
    """Returns rise by 500 with each factor of e, and V has a standard deviation of 40 on Hopper and 80 on Walker2d."""
    rng, unit = np.random.default_rng(0), dict(Hopper=40.0, Walker2d=80.0)
    rise = lambda eps: 1000 + 500 * np.log(eps / 0.2)

    def number(agent, place, seed):
        eps = agent.rpartition("-")[2]
        final = rise(float(eps)) if eps != "unscaled" else 3000
        rows = [dict(iteration=i, values=unit[place] + x, targets=1.0) for i, x in ((100, -3), (200, 3))]
        return dict(algo="ppo", final=final + rng.normal(0, 20), rows=dict(spread=rows))

    x = fresh("value_clip", monkeypatch, value_clip=made_up("value-clip", number))
    old = {"PPO-unscaled-clip": 1000, "PPO-unscaled-wide-clip": 3000, "PPO-unscaled": 3000}
    old = {name: level + rng.normal(0, 20, 10) for name, level in old.items()}
    monkeypatch.setattr(claims.room("nine").runs, "of", lambda place: old)
    for place in unit:
        assert len(x.finals(place)["off"]) == 20 and x.spread(place).mean == pytest.approx(unit[place])
        low, high = x.half_way(place)["interval"]
        exact = 0.2 * np.exp(1000 / 500)  # half of 2,000, between 0.6 and 2
        assert low < exact < high < 1.2 * low and x.least_not_seen_to_harm(place) == "wide"
        assert x.in_spreads(place)["mean"] == pytest.approx(exact / unit[place], rel=0.05)
    assert x.agree() and len(x.primary()) == 6 and not x.no_harm_that_matters("Hopper", "7")
    assert x.PICTURES["dose"]().axes[0].lines[0].get_xdata()[0] == pytest.approx(0.2 / 40)
    rows = list(x.table_of_widths())
    assert {len(row) for row in rows} == {7}
    assert [row[0] for row in rows[1:]] == ["0.2", "0.6", "2", "7", "wide", "off", "half-way"]
    means, widths = np.array([[0.0, 4, 1, 8], [0, 1, 2, 3]]), np.array([0.0, 1, 2, 3])
    assert x.crossing(means, widths, np.array([2.0, 9])) == pytest.approx([0.5, 3])  # the first one, or none


def test_ten_seeds_judge_the_claims(monkeypatch):
    rng = np.random.default_rng(0)
    cosines = lambda mean: mean + rng.normal(0, 0.01, 3)
    update = {("TRPO", 2048): -50, ("TRPO", 50_000): 300, ("CL-PPO", 2048): 0, ("CL-PPO", 50_000): 60}

    def number(agent, place, seed):
        bound, kl = dict(Hopper=0.13, Walker2d=0.04)[place], np.full(20, 0.1 if place == "Hopper" else 0.03)
        kl = kl * (1 - 0.5 * np.abs(np.arange(20) - 9.5) / 9.5 if agent == "CL-PPO" else np.linspace(0.5, 0.9, 20))
        kl = kl * np.exp(rng.normal(0, 0.02)) * (2 if (agent, place) == ("PPO-M", "Walker2d") else 1)
        ratio = np.full(20, dict([("CL-PPO", 2.0), ("PPO-M", 3.0)]).get(agent, 5.0)) + rng.normal(0, 0.1)
        log = dict(mean_kl=[*kl], max_kl=[bound * (300 + rng.normal(0, 9))] * 20, max_ratio=[*ratio])
        log["episodic_return"] = [None, *range(seed, seed + 19)]
        gradient, value, trust, steps = [], [], [], []
        for at in (0, 150, 300, 450):
            signal = (2 if at else 4) + rng.normal(0, 0.1)  # of two estimates (signal, 1) and (signal, -1)
            of = dict(products=[signal**2 + 1, signal**2 - 1, signal**2 + 1], scatter=[1, -1, 1], estimate_pairs=2048)
            of |= dict(pairs=[2048, 10_240], variance=[cosines(0.03), [0.9]], true_pairs_used=90_000)
            gradient.append(dict(iteration=at, convergence=[dict(cosines=cosines(0.3))]) | of)
            trust.append(dict(iteration=at, heldout=dict(mean_kl=bound * (0.9 + rng.normal(0, 0.02, 9)))))
        for at in (150, 300, 450):
            errors = dict(heldout_gae=0.05, heldout_released=0.4, train_released=0.3)
            errors = {x: dict(error_sums=[7 * y + rng.normal(0, 0.07)], counts=[7]) for x, y in errors.items()}
            errors["heldout_released"]["by_distance"] = [dict(steps=None, mean=0.1), dict(steps=[1, 1], mean=9.0)]
            value.append(dict(iteration=at) | errors)
        for at, pairs in product((150, 300), (2048, 50_000)):
            mean = update.get((agent, pairs), 5) + rng.normal(0, 20)
            changes = [dict(difference=dict(mean=x)) for x in (mean - 1, mean + 1)]
            steps.append(dict(iteration=at, step_pairs=pairs, changes=changes))
        rows = dict(gradient=gradient, value=value, trust_region=trust, updates=steps)
        return dict(algo="ppo", final=1.0 + seed, rows=rows) | log

    x = fresh("ten_seeds", monkeypatch, ten_seeds=made_up("ten-seeds", number))
    monkeypatch.setattr(claims, "room", lambda name: x)
    cells = claims.in_room("ten_seeds")  # where Holm corrects them
    refuted = {("CL: V's error is small on training pairs", place) for place in x.PLACES}
    small = "IM: PPO and PPO-M keep the KL small", "BLOG: PPO-M does not keep the KL small"
    refuted |= {*zip(small, x.PLACES)}
    for name, place in product(x.CLAIMS, x.PLACES):
        expected = claims.NOT if (name, place) in refuted else claims.HOLDS
        cell = cells[name][place]
        assert (cell.verdict, cell.holm, cell.seeds) == (expected, True, 10), (name, place)
    assert cells["BLOG: the optimizations keep the ratio nearer"]["Hopper"].p == 2 / 2**10  # the same in all seeds
    assert x.off_by_half_where_nothing_is_cut()["Hopper"].mean == pytest.approx(0.1) and len([*x.final_returns()]) == 3
    verdicts = {x.update(*y): x.verdict_on_updates(*y, "Hopper") for y in x.CLAIMED}
    expected = {"TRPO, 2,048 pairs": claims.HOLDS, "TRPO, 50,000 pairs": claims.HOLDS, "PPO, 50,000 pairs": claims.NOT}
    assert expected.items() <= verdicts.items() and verdicts["PPO, 2,048 pairs"] == claims.UNCLEAR
    assert x.more_pairs()["TRPO, 50,000 − 2,048 pairs"]["Hopper"].mean == pytest.approx(350, abs=20)
    [line, *others] = x.PICTURES["curves"]().axes[1].lines  # of PPO-M on Walker2d
    assert len(others) == 9 and line.get_xydata()[19].tolist() == [475, 401 + 18]


def test_whether_batches_add_up_with_small_minibatches(monkeypatch):
    off = {seed: 10.0 * (seed - 405.5) for seed in range(401, 411)}

    def number(agent, place, seed):
        rows = []
        for at in (150, 300):
            gain = (at - 225) + off[seed]
            arm = lambda level: dict(returns=[level - 1, level + 1], iterations=[dict(mean_return=level)] * 12)
            rows.append(dict(iteration=at, before=[500.0], few=arm(700.0), recipe=arm(900.0 + gain)))
        return dict(algo="ppo", rows=dict(gains_add_up=rows))

    x = fresh("gains_add_up", monkeypatch, batches=made_up("batches", number))
    [[_, of]] = x.with_minibatches_of_64().items()
    assert [y.mean for y in of.values()] == pytest.approx([200] * 3) and of["Hopper"].seeds == 10
    assert of["Hopper"].interval() == pytest.approx(estimates.Estimate([[200 + y for y in off.values()]]).interval())
    assert x.gained_by_new_runs()["R(recipe) − R(0)"]["both"].mean == pytest.approx(400)
    old, both = x.effect("many - few")["both"], x.of_the_minibatches()
    assert both.mean == pytest.approx(200 - old.mean)
    assert both.error == pytest.approx(np.hypot(of["both"].error, old.error))
    assert x.second_not_corrected()["recipe − few"]["Hopper"].mean == pytest.approx(200)
    lines = x.curves(protocols.rows_of(made_up("batches", number), "gains_add_up"), ("few", "recipe")).axes[0].lines
    assert lines[3].get_ydata() == pytest.approx([900] * 12)  # each arm has three: a curve, an interval, a mean


def test_guides_five_algorithms(monkeypatch):
    levels = {"GUIDE-PPO": 5000.0, "REINFORCE": 500.0}

    def number(agent, place, seed):
        level = levels.get(agent, 4000.0) + seed
        rows = [dict(global_step=m * 999_424, returns=[level * m / 8 - 1, level * m / 8 + 1]) for m in range(9)]
        return dict(algo="ppo", rows=dict(evaluate=rows), mean_kl=[9.0] * 12 + [0.01 * 2.0 ** (seed - 2)] * 88)

    parts = {x.replace("-", "_"): made_up(x, number) for x in ("algorithms", "algorithms-halfcheetah")}
    x = fresh("guide", monkeypatch, **parts)
    at_8m, at_1m = (x.from_the_table()[f"PPO − printed, {m}M steps"] for m in (8, 1))
    assert (at_8m["Hopper"].mean, at_8m["Hopper"].seeds) == (5002 - 2616, 3)
    assert at_1m["Ant"].mean == pytest.approx(5002 / 8 - 1258)
    old = claims.room("algorithms").returns()["PPO"][8]
    assert at_8m["HalfCheetah"].mean == pytest.approx(np.mean([*old, 5003]) - 6414)
    assert x.from_ppo()["PPO − A2C, 8M steps"]["Humanoid"].mean == 1000
    rows = {row[0]: row[1:] for row in x.table_of_the_end()}
    assert rows["REINFORCE"][1] == "502 (501 to 503)" and rows["PPO"][5] == "0.010"  # KL after 1M, geometric mean
    assert len(x.drawn_returns().axes) == len(x.drawn_kls().axes) == 4


def test_surfaces(monkeypatch):
    """The surrogate ranks the points as the reward does for PPO, and the other way round for TRPO."""
    rng, ticks = np.random.default_rng(0), (0.0, 0.5, 1.0, 3.0)

    def number(agent, place, seed):
        sign, points, of_sizes = 1 if agent == "CL-PPO" else -1, [], []
        for a, b in product(ticks, ticks):
            at, reward = dict(step=a, random=b), a - 2 * b
            for pairs in (2000, 50_000):
                points.append(at | dict(step_pairs=pairs, surrogate=sign * reward, returns=reward + rng.normal(0, 0.1)))
            for pairs, noise in ((2000, 30.0), (20_000, 0.1), (100_000, 0.01)):
                of_sizes.append(at | dict(concentration=pairs, mean=reward + rng.normal(0, noise)))
        rows = [dict(iteration=at, surfaces=True, points=points) for at in (0, 150, 300, 450)]
        rows += [dict(iteration=at, surfaces=False, concentrations=of_sizes) for at in (150, 300)]
        return dict(algo="ppo", rows=dict(landscape=rows))

    parts = {y.replace("-", "_"): made_up(y, number) for y in ("surfaces", "surfaces-humanoid")}
    x = fresh("surfaces", monkeypatch, **parts)
    assert x.agreement("Hopper", "CL-PPO", 0, 50_000) > 0.95 and x.agreement("Hopper", "TRPO", 450, 2000) < -0.95
    many, few = (x.concentration("Walker2d", "TRPO", 300, pairs) for pairs in (20_000, 2000))
    assert many > 0.95 and few < 0.6
    of = x.surface("Humanoid", "TRPO", 300, 2000)
    assert of["surrogate"][1, 3] == -(ticks[1] - 2 * ticks[3])  # the step along the rows
    assert (len(list(x.table_of_agreement())), len(list(x.table_of_concentration()))) == (13, 9)
    assert len(x.PICTURES["humanoid"]().axes) == 2 * 8  # with a bar of colours each


@pytest.mark.xdist_group("diagnostics")
def test_the_analyses_read_what_the_diagnostics_write(known, tmp_path, monkeypatch):
    """A run's rows as they are kept, of small calls, instead of made-up ones."""
    calls = dict(CALLS, updates="--rewards 3 --step-pairs 64 256 --reward-pairs 60")
    for name in ("gradient", "value", "trust_region", "landscape", "updates"):
        flags = [str(known / "ppo"), *calls[name].split(), "--checkpoints", "1", "--out", str(tmp_path), "--jobs", "1"]
        load("steps" if name == "updates" else name).main(flags)
    rows = {x.stem: protocols.read_lines(x) for x in tmp_path.glob("*.jsonl")}
    pairs = rows["gradient"][0]["batch_size"]
    rows["gradient"] += [rows["gradient"][0] | dict(iteration=0)]
    kept = lambda part: protocols.short(rows, protocols.PARTS[part].averaged)
    line = dict(algo="ppo", mean_kl=[0.1] * 20, max_kl=[1.0] * 20, max_ratio=[2.0] * 20, rows=kept("ten-seeds"))
    x = fresh("ten_seeds", monkeypatch, ten_seeds=made_up("ten-seeds", lambda *_: line))
    x.LATER, x.BATCH, x.FEW, x.MANY = (1,), pairs, 64, 256
    seed, row = x.seeds("Hopper")[0], rows["trust_region"][0]
    assert all(np.isfinite(claim.number(seed)).all() for claim in x.CLAIMS.values())
    assert x.held_out(seed) == pytest.approx(np.mean(row["heldout"]["mean_kl"]) / 0.13, rel=1e-5)
    assert seed.rows("trust_region")[0]["heldout"]["returns"] == pytest.approx(np.mean(row["heldout"]["returns"]))
    assert np.isfinite(x.change("Hopper", x.TRPO, 64)).all() and np.isfinite(x.clean_error(seed))
    line = dict(algo="ppo", rows=dict(landscape=[kept("surfaces")["landscape"][0] | dict(iteration=300)]))
    parts = {y.replace("-", "_"): made_up(y, lambda *_: line) for y in ("surfaces", "surfaces-humanoid")}
    x = fresh("surfaces", monkeypatch, **parts)
    monkeypatch.setattr(x, "row_of", lambda place, *about, surfaces: line["rows"]["landscape"][0])
    of = x.surface("Humanoid", "TRPO", 300, 64)
    [point] = [y for y in rows["landscape"][0]["points"] if (y["step_pairs"], y["step"], y["random"]) == (64, 1, 0)]
    assert of["returns"].shape == (2, 2) and of["returns"][1, 0] == pytest.approx(np.mean(point["returns"]))
    assert x.concentrated("Humanoid", "TRPO", 300, 100)["mean"].shape == (2, 2)
