"""Gradient estimates: windows, the noise scale, directions, on problems where they are known."""

import shutil

import measuring.intervals
import measuring.plots
import measuring.runs
import measuring.sampling
import numpy as np
import pytest
import torch
from conftest import flat, load
from environments import Bandit
from matplotlib.figure import Figure
from scipy import stats
from test_diagnostics import expected_reward, pairs_by_quadrature, rows, sourced, with_values


@pytest.fixture
def chain(known):
    return sourced("gradient", known / "chain")


@pytest.fixture
def batch(chain):
    """The segments that segment_sums sees with the same seed."""
    module, source, script, *_ = chain
    _, args, state = measuring.sampling.fresh_state(source, (5,), 2, 64)
    return script.estimate_advantages(args, state, script.rollout(args, state)[0])


def sums_of(module, source, seed, num_steps, windows):
    """The sums of segments and of their windows."""
    found = module.segment_sums(source, seed, num_steps, windows, None)
    return [(module.Sums(*whole), {K: module.Sums(*x) for K, x in of_segment.items()}) for whole, of_segment in found]


def test_a_window_is_from_anywhere_in_its_segment(chain, batch):
    module, source, *_ = chain
    found = sums_of(module, source, (5,), 64, [dict.fromkeys(range(400), 2)] * 2)
    A = batch["advantages"].double().numpy().reshape(2, 64)
    for of_segment, (whole, windows) in zip(A, found):
        means = np.array([window.A[0] / window.pairs for window in windows.values()])
        neighbours = (of_segment[:-1] + of_segment[1:]) / 2
        assert {x.pairs for x in windows.values()} == {2} and whole.pairs == 64
        assert np.abs(means[:, None] - neighbours).min(1).max() < 1e-6  # as estimated on the whole segment
        places = np.abs(means[:, None] - neighbours).argmin(1)
        assert len(set(places)) > 60 and abs(places.mean() - 31) < 4.5 * 18.2 / 400**0.5  # uniform over 0 .. 62


def test_short_estimates_expect_what_long_ones_do(chain):
    """Two pairs from a random place do; a segment's first two, here the starts of episodes, do not."""
    module, source, *_ = chain
    few, many, first = [], [], []
    for i in range(60):
        for whole, windows in sums_of(module, source, (6, i), 64, [dict.fromkeys(range(8), 2)] * 8):
            many.append(whole.weighted[0] / 64)
            few.append(np.mean([x.weighted[0] / 2 for x in windows.values()], axis=0))
    for i in range(60):
        for whole, _ in sums_of(module, source, (6, i), 2, [{}] * 8):
            first.append(whole.weighted[0] / 2)
    few, many, first = (np.array(x) for x in (few, many, first))
    error = np.sqrt(few.var(0) / len(few) + many.var(0) / len(many)) + 1e-9
    scores = np.abs(few.mean(0) - many.mean(0)) / error
    assert scores.max() < 4.5
    assert (np.abs(first.mean(0) - many.mean(0)) / error).max() > 9


def test_every_estimate_has_its_number_of_pairs(chain, monkeypatch):
    module, source, *_ = chain
    pairs, found, add_up = [2, 20, 64, 100, 128, 200], [], module.add_up
    monkeypatch.setattr(module, "add_up", lambda *x: found.append(add_up(*x)) or found[-1])
    numbers = module.measure(source, 0, pairs, 64, 3, 500)
    assert len(found) == 3
    for sums, total in found:
        assert {K: x.pairs for K, x in sums.items()} == {K: K for K in pairs}
        assert total.pairs == 256  # 500 pairs of a "true" gradient are 250 of each other repeat: four segments
        inside, outside = sums[128] - sums[64], total - sums[128]
        assert inside.pairs == 64 and outside.pairs == 128
        window = (sums[100] - sums[64]).A_sq
        assert 0 < window < inside.A_sq  # of the second segment, a part
    assert numbers["true_pairs_used"] == 512
    module.measure(source, 0, [700], 64, 2, 64)
    assert [total.pairs for _, total in found[3:]] == [11 * 64] * 2  # by the longest estimate


def test_noise_scale_and_convergence_match_the_exact_gradient_and_covariance(known, tmp_path, capsys):
    with_values(known / "bandit", tmp_path / "run", [40.0, 10.0])
    module, source, _, _, state = sourced("gradient", tmp_path / "run")
    K, repeats = 128, 100
    flags = f"--checkpoints 0 --pairs {K} 1280 --repeats {repeats} --true-pairs 64 --baselines --value-pairs 40000"
    module.main([str(tmp_path / "run"), "--out", str(tmp_path), *flags.split(), "--jobs", "1"])
    [cell] = rows(tmp_path, "gradient")
    assert cell["pairs"] == [64, K, 1280] and cell["true_pairs_used"] == (repeats - 1) * 1280
    places, rewards, scores, weights = pairs_by_quadrature(Bandit, state)
    true = expected_reward(Bandit, state)(flat(state.policy)).detach().double().numpy()
    values = state.value(torch.eye(2)).detach().double().numpy()
    for baseline, V in zip(module.BASELINES, (values, true, np.zeros(2), true)):
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
        T = cell["true_pairs_used"]
        assert found["ceiling"] == pytest.approx((T / (T + found["pairs"])) ** 0.5)
        drawn = np.random.default_rng(0).multivariate_normal(g, covariance / K, 4000, check_valid="ignore")
        exact = measuring.intervals.cosines(drawn, g[None]).mean()
        for name in ("convergence", "direction"):
            point = cell[name][baseline][1]
            low, high = point["interval"]
            # Means of 128 pairs are not quite normal, as the exact one takes them to be.
            assert abs(point["corrected"] - exact) < high - low + 0.02 < 0.17, (baseline, name)
        for pairs, point in zip(cell["pairs"], cell["variance"][baseline]):  # a law of many dimensions
            assert point["mean"] == pytest.approx(pairs / (pairs + B), abs=0.15)  # over seeds, up to 0.11
    assert "a batch of 64 is 1/4 of the noise scale (2" in capsys.readouterr().out
    for baseline in module.BASELINES:
        assert_recomputed(cell, baseline)


def symmetric(values, n, first):
    """A matrix [n, n] from the values on and above its diagonal (first 0), or above it (first 1)."""
    matrix = np.zeros((n, n))
    matrix[np.triu_indices(n, first)] = values
    return np.triu(matrix) + np.triu(matrix, 1).T


def assert_recomputed(cell, baseline):
    """The intervals of a cell follow from the raw values that it keeps."""
    scale = cell["noise_scale"][baseline]
    n, pairs = scale["estimates"], scale["estimate_pairs"]
    products, scatter = (symmetric(scale[name], n, 0) for name in ("products", "scatter"))

    def inverse(drawn):
        unlike = drawn[:, None] != drawn[None]
        squares, of_scatter = (x[np.ix_(drawn, drawn)] for x in (products, scatter))
        return squares[unlike].mean() / (pairs * (of_scatter.diagonal().mean() - of_scatter[unlike].mean()))

    assert inverse(np.arange(n)) == pytest.approx(scale["grad_sq"] / scale["trace"], rel=1e-4)
    draws = [drawn for drawn in np.random.default_rng(0).integers(n, size=(500, n)) if np.ptp(drawn)]
    ends = np.percentile([inverse(drawn) for drawn in draws], [2.5, 97.5])
    assert ends == pytest.approx(scale["inverse_interval"], rel=1e-4), baseline
    for between in cell["variance"][baseline]:
        found = measuring.intervals.pairwise(symmetric(between["all"], n, 1))
        assert [found["mean"], *found["interval"]] == pytest.approx([between["mean"], *between["interval"]])
    for name in ("convergence", "direction"):
        for point in cell[name].get(baseline, ()):
            half = stats.t.ppf(0.975, n - 1) * (n - 1) ** 0.5 * np.std(point["without"])
            assert np.mean(point["all"]) == pytest.approx(point["mean"])
            assert [point["mean"] - half, point["mean"] + half] == pytest.approx(point["interval"])


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


def test_cosines_follow_the_law_of_the_noise_scale():
    """Of estimates with one another K / (K + B), with the real gradient its root; also where B is not K's size."""
    module, rng, B, repeats = load("gradient"), np.random.default_rng(0), 20_000, 40
    g = rng.normal(size=3000) / 3000**0.5
    pairs = [2000, 20_000, 200_000]
    estimates = [g + rng.normal(size=(repeats, 1, 3000)) * (B / K / 3000) ** 0.5 for K in pairs]
    found = module.compare(estimates, estimates[-1], np.broadcast_to(g, (repeats, 1, 3000)), pairs[-1])
    assert found["noise_scale"][module.NETWORK]["pairs"] == pytest.approx(B, rel=0.05)
    for K, between, real in zip(pairs, *(found[name][module.NETWORK] for name in ("variance", "convergence"))):
        assert between["mean"] == pytest.approx(K / (K + B), abs=0.01)
        assert real["mean"] == pytest.approx((K / (K + B)) ** 0.5, abs=0.01)


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


def cell_with(iteration, inverse, interval, cosine=0.25):
    """A cell whose 1 / B is known, and its interval."""
    scale = dict(grad_sq=inverse, trace=1.0, inverse_interval=interval)
    cosines = {name: {load("gradient").NETWORK: [dict(mean=cosine)]} for name in ("variance", "convergence")}
    return dict(
        iteration=iteration, noise_scale={load("gradient").NETWORK: scale}, batch_size=2048, pairs=[2048], **cosines
    )


def test_noise_scale_in_words():
    describe = load("gradient").describe
    one = [cell_with(300, 1 / 92160, [1 / 180_000, 1 / 60_000])]
    measured = '(measured 0.25, and with the "true" gradient 0.25)'
    share, law = "a batch of 2,048 is 1/45 of the noise scale", "two estimates have a cosine of 0.022"
    assert describe(one) == f"{share} (92,000 [60,000, 180,000] pairs): {law} {measured}"
    # Two runs with the same numbers are two all the same, and known better by the root of two.
    assert describe([*one, *one]) == f"{share} (92,000 [67,000, 140,000] pairs, mean of 2 runs): {law} {measured}"
    two = [
        cell_with(0, 1 / 500, [1 / 500 - 3e-4, 1 / 500 + 3e-4]),
        cell_with(0, 1 / 1000, [1 / 1000 - 4e-4, 1 / 1000 + 4e-4]),
    ]
    assert "is 3.1 times the noise scale (670 [570, 800] pairs, mean of 2 runs)" in describe(two)  # 1.5e-3 +- 2.5e-4
    unknown = describe([cell_with(300, 1 / 92160, [-1e-6, 1 / 40_960])])
    assert (
        "the noise scale exceeds 41,000 pairs, and the sample is too small" in unknown
        and "a cosine of less than 0.048" in unknown
    )
    few = cell_with(300, 1 / 5000, None)
    del few["noise_scale"][load("gradient").NETWORK]["inverse_interval"]  # two estimates have none
    assert "is 1/2 of the noise scale (5,000 pairs): two estimates have a cosine of 0.29" in describe([few])
    none = load("gradient").noise_scale(np.zeros((10, 3)), 64)  # where no action ever changes the reward
    assert (none["pairs"], none["interval"], none["inverse_interval"]) == (None, [None, None], [0.0, 0.0])
    vanishing = cell_with(0, 0.0, [0.0, 0.0])
    vanishing["noise_scale"][load("gradient").NETWORK] = none
    assert describe([vanishing]) == f"no gradient was found in so few pairs {measured}"
    few["noise_scale"][load("gradient").NETWORK]["grad_sq"] = -1e-6
    assert describe([few]) == f"there are too few estimates to tell the noise scale {measured}"


def test_picture_of_the_noise_scale(monkeypatch, tmp_path):
    module, figures = load("gradient"), []
    monkeypatch.setattr(measuring.plots, "save_figure", lambda figure, path: figures.append(figure))
    known = [cell_with(0, 1e-3, [8e-4, 1.2e-3]), cell_with(100, 1e-5, [-3e-5, 3e-5])]
    other = [cell_with(0, 3e-3, [2.8e-3, 3.2e-3]), cell_with(100, 2e-5, [1e-5, 3e-5])]
    style = dict(color="red", linestyle="-", label="ppo", marker="o")
    module.draw_noise_scale([(style, [known, other])], tmp_path / "x")
    [axis] = figures[0].axes
    first, second, thick, above, batch, _ = axis.lines
    np.testing.assert_allclose(first.get_ydata(), [1000, np.nan])
    np.testing.assert_allclose(second.get_ydata(), [1e3 / 3, 5e4])
    np.testing.assert_allclose(thick.get_ydata(), [500, np.nan])  # the mean of 1 / B; then nothing but a lower bound
    assert list(above.get_xdata()) == [100] and list(batch.get_ydata()) == [2048, 2048]
    assert batch.get_label() == "pairs of a training batch: 2,048"
    (low, high), (bound, top) = (bar[:, 1] for bar in axis.collections[0].get_segments())
    assert 1 / np.array([low, high]) == pytest.approx(2e-3 + np.array([1, -1]) * 2e-4 * 0.5**0.5)
    assert bound == pytest.approx(1 / (1.5e-5 + 5e-6 * 5**0.5)) and top > axis.get_ylim()[1] > bound
    assert axis.get_yscale() == "log" and axis.get_ylabel() == "noise scale (state-action pairs)"


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


def test_every_run_has_random_numbers_of_its_own_and_counts_once(known, tmp_path, capsys):
    """Untrained, runs that differ in the learning rate alone are one network, sampled independently; and a mean is over
    runs, not over different values."""
    module = load("gradient")
    measuring.runs.note.cache_clear()
    folders = [str(known / name) for name in ("chain", "chain_rate", "chain2")]
    flags = "--checkpoints 0 --pairs 128 --repeats 3 --true-pairs 64 --jobs 1".split()
    module.main([*folders, "--out", str(tmp_path / "all"), *flags, "--labels", *["PPO"] * 3])
    assert "PPO is one line for runs that differ in policy_lr" in capsys.readouterr().err
    points = [cell["variance"][module.NETWORK] for cell in rows(tmp_path / "all", "gradient")]
    assert points[0] != points[1] != points[2] != points[0]
    module.main([folders[1], "--out", str(tmp_path / "one"), *flags])
    assert [x["variance"][module.NETWORK] for x in rows(tmp_path / "one", "gradient")] == [points[1]]
    for cell in rows(tmp_path / "all", "gradient"):
        assert_recomputed(cell, module.NETWORK)
    axis = Figure().subplots()
    same = [([64], [dict(mean=x, interval=None)]) for x in (1000, 1000, 1000, 1000, 100)]
    measuring.plots.draw_setting(axis, same, dict(color="red", linestyle="-"))
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
    [(_, runs)] = measuring.plots.by_setting([style, style], [a, b])
    assert [[cell["iteration"] for cell in cells] for cells in runs] == [[0, 20], [0, 20]]
    assert "not all runs of PPO have iteration 10, 30" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        measuring.plots.by_setting([style, style], [a, [dict(iteration=5, run="c")]])
    assert "no checkpoint in common" in capsys.readouterr().err
