"""Gradient estimates: windows, the noise scale, directions, on problems where they are known."""

import shutil

import numpy as np
import pytest
import torch
from conftest import flat, load, output
from environments import Bandit, Chain
from matplotlib.figure import Figure
from measuring import intervals, plots, runs, sampling
from problems import expected_rewards, policy_of, rows, source_of, symmetric
from scipy import stats
from torch.func import grad, jacrev

pytestmark = pytest.mark.usefixtures("figures")


def pairs_by_quadrature(policy):
    """All that a pair of Bandit can be, on a grid with weights [n]: places [n], rewards [n], grad ln pi [n, P]."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    noise = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    weights = np.outer(weights, weights).ravel() / weights.sum() ** 2
    places, rewards, scores = [], [], []
    for place, bonus in enumerate(Bandit.rewards):
        obs = torch.eye(2)[place : place + 1]
        pi = output(policy, flat(policy), obs)
        actions = pi.mean + pi.stddev * torch.from_numpy(noise).float()
        score = jacrev(lambda x, o=obs, a=actions: output(policy, x, o).log_prob(a))(flat(policy))
        rewards.append(bonus - ((actions.double().numpy() - Bandit.TARGET) ** 2).sum(1))
        scores.append(score.double().numpy())
        places += [place] * len(noise)
    return np.array(places), np.concatenate(rewards), np.concatenate(scores), np.tile(weights, 2) / 2


@pytest.mark.parametrize("env", [Bandit, Chain])
def test_the_estimate_has_the_exact_direction_and_length(known, env):
    """It is the gradient of the expected reward, divided by the standard deviation of the advantages."""
    source, module, found = source_of(known / env.__name__.lower()), load("gradient"), []
    policy = policy_of(source)
    exact = grad(lambda x: expected_rewards(env, policy, x).mean())(flat(policy)).double().numpy()
    for repeat in range(25):
        segments = [module.segment_sums(source, (9, repeat, i), 64, [{}] * 8, None) for i in range(4)]
        _, total = module.add_up(sum(segments, []), [])
        found.append(module.gradient(total)[0])
    lengths = np.array(found) @ exact / (exact @ exact)
    across = np.array(found) - lengths[:, None] * exact
    assert (np.abs(across.mean(0)) < 4.5 * across.std(0, ddof=1) / 5 + 1e-6).all()
    assert lengths.mean() > 20 * lengths.std() / 5
    if env is Bandit:  # in Chain, GAE's advantages also have the noise of later rewards
        places, rewards, _, weights = pairs_by_quadrature(policy)
        values = sampling.checkpoint_state(source)[2].value(torch.eye(2)).detach().double().numpy()
        A = rewards - values[places]
        deviation = np.sqrt(weights @ (A - weights @ A) ** 2)
        assert abs(lengths.mean() - 1 / deviation) < 4.5 * lengths.std(ddof=1) / 5


def test_a_window_is_from_anywhere_in_its_segment(known):
    module, source = load("gradient"), source_of(known / "chain")
    found = module.segment_sums(source, (5,), 64, [dict.fromkeys(range(400), 2)] * 2, None)
    script, args, state = sampling.fresh_state(source, (5,), 2, 64)  # the same segments
    batch = script.estimate_advantages(args, state, script.rollout(args, state)[0])
    for A, (whole, windows) in zip(batch["advantages"].double().numpy().reshape(2, 64), found):
        windows = [module.Sums(*x) for x in windows.values()]
        assert {x.pairs for x in windows} == {2} and module.Sums(*whole).pairs == 64
        neighbours, means = (A[:-1] + A[1:]) / 2, np.array([x.A[0] / 2 for x in windows])
        apart = np.abs(means[:, None] - neighbours)
        places = apart.argmin(1)
        assert apart.min(1).max() < 1e-6  # the advantages are those of the whole segment
        assert len(set(places)) > 60 and abs(places.mean() - 31) < 4.5 * 18.2 / 400**0.5  # uniform over 0 .. 62


def test_every_estimate_has_its_pairs_and_is_compared_with_others(known, monkeypatch):
    module, source = load("gradient"), source_of(known / "chain")
    pairs, found, add_up = [2, 20, 64, 100, 128, 200], [], module.add_up
    monkeypatch.setattr(module, "add_up", lambda *x: found.append(add_up(*x)) or found[-1])
    numbers = module.measure(source, 0, pairs, 64, 3, 500)
    assert [{K: x.pairs for K, x in sums.items()} for sums, _ in found] == [{K: K for K in pairs}] * 3
    # 500 pairs of a "true" gradient are 250 of each other repeat: four segments.
    assert [total.pairs for _, total in found] == [256] * 3 and numbers["true_pairs_used"] == 512
    totals = [total for _, total in found]
    for k, cosine in enumerate(numbers["convergence"][module.NETWORK][-1]["all"]):
        one, other = totals[:k] + totals[k + 1 :]  # an estimate is no part of what it is compared with
        pair = module.gradient(found[k][0][200]), module.gradient(one + other)
        assert cosine == pytest.approx(intervals.cosines(*pair).item())
    module.measure(source, 0, [700], 64, 2, 64)
    assert [total.pairs for _, total in found[3:]] == [11 * 64] * 2  # by the longest estimate


def test_noise_scale_and_cosines_match_the_exact_gradient_and_covariance(known, tmp_path, capsys):
    shutil.copytree(known / "bandit", tmp_path / "run")
    source, values = source_of(tmp_path / "run"), torch.tensor([40.0, 10.0])  # which make a bad baseline
    checkpoint = torch.load(source.path, weights_only=True)
    for name, x in checkpoint["value"].items():
        x.zero_()
        if name == "0.weight":
            x.fill_diagonal_(1)
        elif name == "2.weight":
            x[0, :2] = values / np.tanh(1)
    torch.save(checkpoint, source.path)
    module, policy, K, repeats = load("gradient"), policy_of(source), 128, 100
    flags = f"--checkpoints 0 --pairs {K} 1280 --repeats {repeats} --true-pairs 64 --baselines --value-pairs 20000"
    module.main([str(tmp_path / "run"), "--out", str(tmp_path), *flags.split(), "--jobs", "1"])
    [cell] = rows(tmp_path, "gradient")
    T = (repeats - 1) * 1280
    assert cell["pairs"] == [64, K, 1280] and cell["true_pairs_used"] == T
    places, rewards, scores, weights = pairs_by_quadrature(policy)
    true = expected_rewards(Bandit, policy).detach().double().numpy()
    for baseline, V in zip(module.BASELINES, (values.double().numpy(), true, np.zeros(2), true)):
        A = rewards - V[places]
        A = (A - weights @ A) / np.sqrt(weights @ (A - weights @ A) ** 2)
        g = (weights * A) @ scores
        deviations = A[:, None] * scores - g
        covariance = (weights[:, None] * deviations).T @ deviations
        B = np.trace(covariance) / (g @ g)
        found = cell["noise_scale"][baseline]
        low, high = found["interval"]
        assert low < found["pairs"] < high
        assert found["pairs"] == pytest.approx(B, abs=high - low), baseline
        # Over seeds, the two vary by 10 % and by 3 %; a trace per segment instead of per pair would be 64-fold.
        assert found["trace"] == pytest.approx(np.trace(covariance), rel=0.35), baseline
        assert found["grad_sq"] == pytest.approx(g @ g, rel=0.15), baseline
        assert found["ceiling"] == pytest.approx((T / (T + found["pairs"])) ** 0.5)
        drawn = np.random.default_rng(0).multivariate_normal(g, covariance / K, 4000, check_valid="ignore")
        exact = intervals.cosines(drawn, g[None]).mean()
        for name in ("convergence", "direction"):
            point = cell[name][baseline][1]
            low, high = point["interval"]
            # Means of 128 pairs are not quite normal, as the exact one takes them to be.
            assert abs(point["corrected"] - exact) < high - low + 0.02 < 0.17, (baseline, name)
        for pairs, point in zip(cell["pairs"], cell["variance"][baseline]):  # a law of many dimensions
            assert point["mean"] == pytest.approx(pairs / (pairs + B), abs=0.15)  # over seeds, up to 0.11
        assert_recomputed(cell, baseline)
    scale = cell["noise_scale"][module.NETWORK]["pairs"]
    assert f"a batch of 64 is 1/{scale / 64:.0f} of the noise scale (2" in capsys.readouterr().out


def assert_recomputed(cell, baseline):
    """The numbers of a cell follow from the raw values that it keeps."""
    scale = cell["noise_scale"][baseline]
    n, pairs = scale["estimates"], scale["estimate_pairs"]
    products, scatter = (symmetric(scale[name], n, 0) for name in ("products", "scatter"))
    unlike = ~np.eye(n, dtype=bool)
    trace = pairs * (scatter.diagonal().mean() - scatter[unlike].mean())
    assert [products[unlike].mean(), trace] == pytest.approx([scale["grad_sq"], scale["trace"]], rel=1e-4)
    for point in cell["variance"][baseline]:
        assert intervals.pairwise(symmetric(point["all"], n, 1))["interval"] == pytest.approx(point["interval"])
    for point in cell["convergence"][baseline] + cell["direction"][baseline]:
        half = stats.t.ppf(0.975, n - 1) * (n - 1) ** 0.5 * np.std(point["without"])
        mean = np.mean(point["all"])
        assert [mean, mean - half, mean + half] == pytest.approx([point["mean"], *point["interval"]])


def test_noise_scale_has_no_bias():
    """Over many draws both parts are what they should be, also where noise exceeds the signal."""
    module, rng = load("gradient"), np.random.default_rng(0)
    g, stds, pairs = np.array([1.0, 2.0, 0.0]), np.array([50.0, 20.0, 30.0]), 100
    drawn = g + rng.normal(size=(2000, 5, 3)) * stds / pairs**0.5
    found = [module.noise_scale(x, pairs, 4) for x in drawn]
    for name, exact in (("grad_sq", 5.0), ("trace", 3800.0)):
        numbers = np.array([x[name] for x in found])
        assert abs(numbers.mean() - exact) < 4 * numbers.std() / len(numbers) ** 0.5
    assert all((x["pairs"] is None) == (x["grad_sq"] <= 0) for x in found)
    assert any(x["pairs"] is None for x in found)


@pytest.mark.parametrize("P, noise", [(40, 5e-4), (200, 0.2), (20, 2), (200, 20)])
def test_interval_of_the_noise_scale_holds_it(P, noise):
    """Whether an estimate has hardly any noise, is more signal than noise, as much, or twenty times as much noise."""
    module, rng = load("gradient"), np.random.default_rng(1)
    pairs, held = 1000, 0
    for _ in range(200):
        gradients = (1 + rng.normal(size=(10, P)) * noise**0.5) / P**0.5  # |g|^2 = 1, tr(S) = 1000 noise
        low, high = module.noise_scale(gradients, pairs, 200)["interval"]
        held += (low is not None and low < pairs * noise) and (high is None or pairs * noise < high)
        if noise < 0.1:  # then the interval is narrow, too
            assert 0.3 * pairs * noise < low < high < 4 * pairs * noise
    assert 174 <= held <= 199


@pytest.mark.parametrize("noise", [0.3, 30])
def test_intervals_with_the_true_gradient_allow_for_what_the_repeats_share(noise):
    """How often the 95 % interval of 10 repeats' mean cosine with the others holds its mean over all draws."""
    module, rng = load("gradient"), np.random.default_rng(0)
    g, draws = np.eye(100)[0], []
    for _ in range(400):
        repeats = g + rng.normal(size=(10, 100)) * (noise / 100) ** 0.5
        true = (repeats.sum(0) - repeats) / 9
        found = module.with_true(repeats, true, repeats, None)
        draws.append((found["mean"], *found["interval"]))
    mean, low, high = np.array(draws).T
    assert np.mean((low < mean.mean()) & (mean.mean() < high)) > 0.93  # as if they were independent: 0.89, 0.77
    assert module.jackknife(repeats[:2], repeats[:2]) is None


def cell_with(iteration, inverse, interval):
    """A cell whose 1 / B is known, and its interval."""
    network = load("gradient").NETWORK
    scale = dict(grad_sq=inverse, trace=1.0) | (dict(inverse_interval=interval) if interval else {})
    cosines = {name: {network: [dict(mean=0.25)]} for name in ("variance", "convergence")}
    return dict(iteration=iteration, noise_scale={network: scale}, batch_size=2048, pairs=[2048]) | cosines


@pytest.mark.parametrize(
    "cells, told",
    [
        (
            [(1 / 92160, [1 / 180_000, 1 / 60_000])],
            "a batch of 2,048 is 1/45 of the noise scale (92,000 [60,000, 180,000] pairs): "
            'two estimates have a cosine of 0.022 (measured 0.25, and with the "true" gradient 0.25)',
        ),
        # Two runs with the same numbers are two all the same, and known better by the root of two.
        ([(1 / 92160, [1 / 180_000, 1 / 60_000])] * 2, "(92,000 [67,000, 140,000] pairs, mean of 2 runs)"),
        (  # 1.5e-3 +- 2.5e-4
            [(1 / 500, [1 / 500 - 3e-4, 1 / 500 + 3e-4]), (1 / 1000, [1 / 1000 - 4e-4, 1 / 1000 + 4e-4])],
            "is 3.1 times the noise scale (670 [570, 800] pairs, mean of 2 runs)",
        ),
        ([(1 / 92160, [-1e-6, 1 / 40_960])], "the noise scale exceeds 41,000 pairs, and the sample is too small"),
        ([(1 / 92160, [-1e-6, 1 / 40_960])], "a cosine of less than 0.048"),
        ([(1 / 5000, None)], "is 1/2 of the noise scale (5,000 pairs): two estimates have a cosine of 0.29"),
        ([(-1e-6, None)], "there are too few estimates to tell the noise scale"),
        ([(0.0, [0.0, 0.0])], "no gradient was found in so few pairs"),
    ],
)
def test_noise_scale_in_words(cells, told):
    assert told in load("gradient").describe([cell_with(300, *x) for x in cells])


def test_where_no_action_changes_the_reward_there_is_no_noise_scale():
    none = load("gradient").noise_scale(np.zeros((10, 3)), 64)
    assert (none["pairs"], none["interval"], none["inverse_interval"]) == (None, [None, None], [0.0, 0.0])


def test_picture_of_the_noise_scale(figures, tmp_path):
    """Thin lines are the runs; the thick one is the mean of 1 / B, until that has nothing but a lower bound."""
    known = [cell_with(0, 1e-3, [8e-4, 1.2e-3]), cell_with(100, 1e-5, [-3e-5, 3e-5])]
    other = [cell_with(0, 3e-3, [2.8e-3, 3.2e-3]), cell_with(100, 2e-5, [1e-5, 3e-5])]
    style = dict(color="red", linestyle="-", label="ppo", marker="o")
    load("gradient").draw_noise_scale([(style, [known, other])], tmp_path / "x")
    first, second, thick, above, batch, _ = figures["x"].axes[0].lines
    for line, expected in ((first, [1000, np.nan]), (second, [1e3 / 3, 5e4]), (thick, [500, np.nan])):
        np.testing.assert_allclose(line.get_ydata(), expected)
    assert list(above.get_xdata()) == [100] and list(batch.get_ydata()) == [2048, 2048]


def test_repeatable_estimates_can_point_elsewhere():
    """Those of a biased baseline agree with one another and with their own mean, not with the unbiased gradient."""
    module, rng = load("gradient"), np.random.default_rng(0)
    means = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [1.0, 0.0, 0.0]])  # [b, P]
    drawn = means + 0.01 * rng.normal(size=(6, 4, 3))
    found = module.compare([drawn], drawn, np.broadcast_to(means, (6, 4, 3)), 1000)
    for baseline, exact in zip(module.BASELINES, (0.5**0.5, 0, 0.5**0.5, 1)):
        [between], [own], [unbiased] = (found[x][baseline] for x in ("variance", "convergence", "direction"))
        assert between["mean"] > 0.999 and own["mean"] > 0.999
        assert unbiased["mean"] == pytest.approx(exact, abs=0.02)
        assert unbiased["corrected"] == unbiased["mean"] / found["noise_scale"][module.UNBIASED]["ceiling"]


def test_every_run_has_random_numbers_of_its_own(known, tmp_path, capsys):
    """Untrained, runs that differ in the learning rate alone are one network, sampled independently."""
    module = load("gradient")
    runs.note.cache_clear()
    folders = [str(known / name) for name in ("chain", "chain_rate", "chain2")]
    flags = "--checkpoints 0 --pairs 128 --repeats 3 --true-pairs 64 --jobs 1".split()
    module.main([*folders, "--out", str(tmp_path / "all"), *flags, "--labels", *["PPO"] * 3])
    assert "PPO is one line for runs that differ in policy_lr" in capsys.readouterr().err
    points = [cell["variance"][module.NETWORK] for cell in rows(tmp_path / "all", "gradient")]
    assert points[0] != points[1] != points[2] != points[0]
    module.main([folders[1], "--out", str(tmp_path / "one"), *flags])
    assert [x["variance"][module.NETWORK] for x in rows(tmp_path / "one", "gradient")] == [points[1]]


def test_a_mean_counts_runs_and_not_different_values():
    axis = Figure().subplots()
    same = [([64], [dict(mean=x, interval=None)]) for x in (1000, 1000, 1000, 1000, 100)]
    plots.draw_setting(axis, same, dict(color="red", linestyle="-"))
    assert axis.lines[-1].get_ydata() == [820]


def test_a_label_over_batches_of_different_sizes_is_refused_before_anything_is_measured(known, tmp_path, capsys):
    shutil.copytree(known / "chain", tmp_path / "long")
    config = tmp_path / "long" / "config.json"
    config.write_text(config.read_text().replace('"num_steps": 64', '"num_steps": 128'))
    flags = f"--out {tmp_path} --checkpoints 0 --pairs 128 --repeats 3 --true-pairs 64 --jobs 1 --labels A A".split()
    with pytest.raises(SystemExit) as ended:
        load("gradient").main([str(known / "chain"), str(tmp_path / "long"), *flags])
    assert ended.value.code == 2 and "runs of A have batches of different sizes" in capsys.readouterr().err
    assert not (tmp_path / "gradient.jsonl").exists()


def test_a_mean_is_over_the_iterations_that_all_runs_have(capsys):
    a, b = ([dict(iteration=i, run=name) for i in at] for name, at in (("a", (0, 10, 20)), ("b", (0, 20, 30))))
    style = dict(label="PPO")
    [(_, of_runs)] = plots.by_setting([style, style], [a, b])
    assert [[cell["iteration"] for cell in cells] for cells in of_runs] == [[0, 20], [0, 20]]
    assert "not all runs of PPO have iteration 10, 30" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        plots.by_setting([style, style], [a, [dict(iteration=5, run="c")]])
    assert "no checkpoint in common" in capsys.readouterr().err
