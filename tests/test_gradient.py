"""Gradient estimates: windows, the noise scale, directions, on problems where they are known."""

import shutil

import lab
import numpy as np
import pytest
import torch
from conftest import flat, load, output
from environments import Bandit, Chain
from matplotlib.figure import Figure
from problems import checkpoint_of, expected_rewards, policy_of, rows
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
    checkpoint, module, found = checkpoint_of(known / env.__name__.lower()), load("gradient"), []
    policy = policy_of(checkpoint)
    exact = grad(lambda x: expected_rewards(env, policy, x).mean())(flat(policy)).double().numpy()
    for repeat in range(25):
        segments = [module.segment_sums(checkpoint, (9, repeat, i), 64, [{}] * 8) for i in range(4)]
        _, total = module.add_up(sum(segments, []), [])
        found.append(module.gradient(total))
    lengths = np.array(found) @ exact / (exact @ exact)
    across = np.array(found) - lengths[:, None] * exact
    assert (np.abs(across.mean(0)) < 4.5 * across.std(0, ddof=1) / 5 + 1e-6).all()
    assert lengths.mean() > 20 * lengths.std() / 5
    if env is Bandit:  # in Chain, GAE's advantages also have the noise of later rewards
        places, rewards, _, weights = pairs_by_quadrature(policy)
        values = lab.frozen_state(checkpoint)[2].value(torch.eye(2)).detach().double().numpy()
        A = rewards - values[places]
        deviation = np.sqrt(weights @ (A - weights @ A) ** 2)
        assert abs(lengths.mean() - 1 / deviation) < 4.5 * lengths.std(ddof=1) / 5


def test_a_window_is_from_anywhere_in_its_segment(known):
    module, checkpoint = load("gradient"), checkpoint_of(known / "chain")
    found = module.segment_sums(checkpoint, (5,), 64, [dict.fromkeys(range(400), 2)] * 2)
    script, args, state, steps = lab.fresh_rollout(checkpoint, (5,), 2, 64)  # the same segments
    batch = script.estimate_advantages(args, state, steps)
    for A, (whole, windows) in zip(batch["advantages"].double().numpy().reshape(2, 64), found):
        assert {x[0] for x in windows.values()} == {2} and whole[0] == 64
        neighbours, means = (A[:-1] + A[1:]) / 2, np.array([x[1] / 2 for x in windows.values()])
        apart = np.abs(means[:, None] - neighbours)
        places = apart.argmin(1)
        assert apart.min(1).max() < 1e-6  # the advantages are those of the whole segment
        assert len(set(places)) > 60 and abs(places.mean() - 31) < 4.5 * 18.2 / 400**0.5  # uniform over 0 .. 62


def test_what_reinforce_adds_to_end_an_episode_is_in_no_segment():
    ends = np.isin(np.arange(11), [1, 5, 10])  # of two workers' segments of 4 steps, which go on for 2 and for 1
    assert load("gradient").segment_rows(dict(obs=ends, ends=ends), 4) == [slice(0, 4), slice(6, 10)]


def test_every_estimate_has_its_pairs_and_windows_and_is_compared_with_others(known, monkeypatch):
    module, checkpoint = load("gradient"), checkpoint_of(known / "chain")
    found, places, add_up, weighted_sums = [], [], module.add_up, module.weighted_sums
    monkeypatch.setattr(module, "add_up", lambda *x: found.append(add_up(*x)) or found[-1])
    # Each group of segments draws the places of its windows with a generator of its own, the last argument.
    draw = lambda *x: places.append(str(x[-1].bit_generator.state)) or weighted_sums(*x)
    monkeypatch.setattr(module, "weighted_sums", draw)
    pairs = [2, 20, 64, 100, 128, 200]
    numbers = module.measure(checkpoint, map, 0, pairs, 3, 500)
    assert [{K: x[0] for K, x in sums.items()} for sums, _ in found] == [{K: K for K in pairs}] * 3
    # 500 pairs of a "true" gradient are 250 of each other repeat: four segments.
    assert [total[0] for _, total in found] == [256] * 3 and numbers["true_pairs_used"] == 512
    totals = [total for _, total in found]
    for k, cosine in enumerate(numbers["convergence"][-1]["cosines"]):
        one, other = totals[:k] + totals[k + 1 :]  # an estimate is no part of what it is compared with
        pair = module.gradient(found[k][0][200])[None], module.gradient(one + other)[None]
        assert cosine == pytest.approx(module.cosines(*pair).item())
    places.clear()
    module.measure(checkpoint, map, 0, [700], 2, 64)
    assert [total[0] for _, total in found[3:]] == [11 * 64] * 2  # by the longest estimate
    assert len(places) == len(set(places)) == 4  # two groups in each of two repeats


def as_row(gradients, pairs):
    """What a row keeps of independent estimates [n, P]."""
    around, above = gradients - gradients.mean(0), np.triu_indices(len(gradients))
    row = dict(products=(gradients @ gradients.T)[above].tolist(), scatter=(around @ around.T)[above].tolist())
    return row | dict(estimate_pairs=pairs, true_pairs_used=pairs * (len(gradients) - 1))


def test_noise_scale_and_cosines_match_the_exact_gradient_and_covariance(known, tmp_path, capsys):
    shutil.copytree(known / "bandit", tmp_path / "run")
    checkpoint, values = checkpoint_of(tmp_path / "run"), torch.tensor([40.0, 10.0])  # which make a bad baseline
    saved = torch.load(checkpoint.path, weights_only=True)
    for name, x in saved["value"].items():
        x.zero_()
        if name == "0.weight":
            x.fill_diagonal_(1)
        elif name == "2.weight":
            x[0, :2] = values / np.tanh(1)
    torch.save(saved, checkpoint.path)
    module, gradients = load("baselines"), load("gradient")
    policy, K, repeats = policy_of(checkpoint), 128, 100
    flags = f"--checkpoints 0 --pairs {K} 1280 --repeats {repeats} --true-pairs 64 --jobs 1".split()
    module.main([str(tmp_path / "run"), "--out", str(tmp_path), *flags, "--value-pairs", "20000"])
    gradients.main([str(tmp_path / "run"), "--out", str(tmp_path), *flags])
    [row] = rows(tmp_path, "baselines")
    [alone] = rows(tmp_path, "gradient")
    T = (repeats - 1) * 1280
    places, rewards, scores, weights = pairs_by_quadrature(policy)
    true = expected_rewards(Bandit, policy).detach().double().numpy()
    exact_values = {module.NETWORK: values.double().numpy(), module.TRUE: true, module.NONE: np.zeros(2)}
    for baseline, V in (exact_values | {module.UNBIASED: true}).items():
        cell = row["of_baselines"][baseline]
        A = rewards - V[places]
        A = (A - weights @ A) / np.sqrt(weights @ (A - weights @ A) ** 2)
        g = (weights * A) @ scores
        deviations = A[:, None] * scores - g
        covariance = (weights[:, None] * deviations).T @ deviations
        B = np.trace(covariance) / (g @ g)
        found = gradients.noise_scale(cell)
        low, high = found["interval"]
        assert cell["true_pairs_used"] == T and low < found["mean"] < high
        assert found["mean"] == pytest.approx(B, abs=high - low), baseline
        # Over seeds, the two vary by 10 % and by 3 %; a trace per segment instead of per pair would be 64-fold.
        assert found["trace"] == pytest.approx(np.trace(covariance), rel=0.35), baseline
        assert found["grad_sq"] == pytest.approx(g @ g, rel=0.15), baseline
        assert found["ceiling"] == pytest.approx((T / (T + found["mean"])) ** 0.5)
        narrow, wide = (np.diff(gradients.noise_scale(cell, level)["inverse_interval"]) for level in (0.9, 0.95))
        assert 0.7 < narrow / wide < 0.95  # the level counts: of a normal number 0.84
        drawn = np.random.default_rng(0).multivariate_normal(g, covariance / K, 4000, check_valid="ignore")
        exact = gradients.cosines(drawn, g[None]).mean()
        ceilings = dict(convergence=cell, direction=row["of_baselines"][module.UNBIASED])
        for name, of in ceilings.items():
            point = gradients.mean_with_true(cell[name][1])
            low, high = point["interval"]
            # Means of 128 pairs are not quite normal, as the exact one takes them to be.
            corrected = point["mean"] / gradients.noise_scale(of)["ceiling"]
            assert abs(corrected - exact) < high - low + 0.02 < 0.17, (baseline, name)
        for pairs, above in zip(row["pairs"], cell["variance"]):  # a law of many dimensions
            assert np.mean(above) == pytest.approx(pairs / (pairs + B), abs=0.15)  # over seeds, up to 0.11
    network = row["of_baselines"][module.NETWORK]
    assert {x: alone[x] for x in network if x != "direction"} == {x: network[x] for x in network if x != "direction"}
    scale = gradients.noise_scale(alone)["mean"]
    assert f"the noise scale is {scale:,.0f} [" in capsys.readouterr().out


def test_unbiased_advantages_are_returns_minus_values(known):
    """With the run's own network as the "true" value function, in episodes of several steps."""
    module = load("baselines")
    script, args, state, steps = lab.fresh_rollout(checkpoint_of(known / "chain"), (3,), 2, 64)
    own = lab.flat_parameters(state.value).numpy(), 1.0, 0.0
    found = module.other_advantages(script, args, state, steps, own)
    values = state.value(torch.from_numpy(steps["obs"])).detach()
    torch.testing.assert_close(found[module.UNBIASED], found[module.NONE] - values, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[module.TRUE], script.estimate_advantages(args, state, steps)["advantages"])
    assert (found[module.UNBIASED] - found[module.TRUE]).abs().max() > 0.01


def test_noise_scale_has_no_bias():
    """Over many draws both parts are what they should be, also where noise exceeds the signal."""
    module, rng = load("gradient"), np.random.default_rng(0)
    g, stds, pairs = np.array([1.0, 2.0, 0.0]), np.array([50.0, 20.0, 30.0]), 100
    drawn = g + rng.normal(size=(2000, 5, 3)) * stds / pairs**0.5
    found = [module.noise_scale(as_row(x, pairs), resamples=4) for x in drawn]
    for name, exact in (("grad_sq", 5.0), ("trace", 3800.0)):
        numbers = np.array([x[name] for x in found])
        assert abs(numbers.mean() - exact) < 4 * numbers.std() / len(numbers) ** 0.5
    assert all((x["mean"] == np.inf) == (x["grad_sq"] <= 0) for x in found)
    assert any(x["mean"] == np.inf for x in found)


@pytest.mark.parametrize("P, noise", [(40, 5e-4), (200, 0.2), (20, 2), (200, 20)])
def test_interval_of_the_noise_scale_holds_it(P, noise):
    """Whether an estimate has hardly any noise, is more signal than noise, as much, or twenty times as much noise."""
    module, rng = load("gradient"), np.random.default_rng(1)
    pairs, held = 1000, 0
    for _ in range(200):
        gradients = (1 + rng.normal(size=(10, P)) * noise**0.5) / P**0.5  # |g|^2 = 1, tr(S) = 1000 noise
        low, high = module.noise_scale(as_row(gradients, pairs), resamples=200)["interval"]
        held += low < pairs * noise < high
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
        found = module.mean_with_true(module.with_true(repeats, true, repeats))
        draws.append((found["mean"], *found["interval"]))
    mean, low, high = np.array(draws).T
    assert np.mean((low < mean.mean()) & (mean.mean() < high)) > 0.93  # as if they were independent: 0.89, 0.77
    assert module.with_true(repeats[:2], true[:2], repeats[:2])["without"] == []


def test_an_interval_ends_where_cosines_do():
    axis, row = Figure().subplots(), dict(pairs=[64], batch_size=64)
    estimate = lambda _: dict(mean=0.95, interval=[0.9, 1.2])
    load("gradient").draw_against_pairs(axis, [(dict(label="ppo", color="red"), row, [None])], estimate)
    [bar] = [segment[:, 1] for x in axis.collections for segment in x.get_segments()]
    assert list(bar) == [0.9, 1]


@pytest.fixture
def known_scales(monkeypatch):
    """Lets noise_scale read 1 / B and its interval from the row."""

    def of_row(row):
        B, high, low = (1 / x if x > 0 else np.inf for x in (row["inverse"], *(row["inverse_interval"] or [0, 0])))
        interval = row["inverse_interval"] and [low, high]
        return dict(mean=B, interval=interval, inverse=row["inverse"], inverse_interval=row["inverse_interval"])

    monkeypatch.setattr(load("gradient"), "noise_scale", of_row)


def cell_with(iteration, inverse, interval):
    """A row whose 1 / B is known, and its interval."""
    row = dict(iteration=iteration, batch_size=2048, pairs=[2048], variance=[[0.25]], env_id="E")
    return row | dict(inverse=inverse, inverse_interval=interval, convergence=[dict(cosines=[0.25, 0.25])])


WORDS = {
    "the noise scale is 92,160 [60,000, 180,000] pairs": (1 / 92160, [1 / 180e3, 1 / 60e3]),
    'have a cosine of 0.25 with each other and of 0.25 with the "true" gradient': (1 / 667, None),
    "the noise scale is inf [40,960, inf] pairs": (-1e-6, [-1e-6, 1 / 40_960]),
}


def test_noise_scale_in_words(known_scales):
    for told, scale in WORDS.items():
        assert told in load("gradient").describe(cell_with(300, *scale))


def test_where_no_action_changes_the_reward_there_is_no_noise_scale():
    none = load("gradient").noise_scale(as_row(np.zeros((10, 3)), 64))
    assert (none["mean"], none["interval"], none["inverse_interval"]) == (np.inf, [np.inf, np.inf], [0.0, 0.0])


def test_picture_of_the_noise_scale(figures, tmp_path, known_scales):
    """Thin lines are the runs, and the thick one is their mean. A bar that goes below 0 reaches the bottom."""
    one = [cell_with(0, 1e-3, [8e-4, 1.2e-3]), cell_with(100, 1e-5, [-3e-5, 3e-5])]
    other = [cell_with(0, 3e-3, [2.8e-3, 3.2e-3]), cell_with(100, -5e-6, [-1e-5, 3e-5])]
    style = dict(color="red", label="ppo", marker="o")
    load("gradient").draw_noise_scale([(style, one), (style, other)], tmp_path / "x")
    drawn = [2048 * np.array(x) for x in ([1e-3, 1e-5], [3e-3, -5e-6], [2e-3, 2.5e-6])]
    lines = [x.get_ydata() for x in figures["x"].axes[0].lines]
    assert all(any(len(y) == 2 and np.allclose(x, y) for y in lines) for x in drawn)
    load("gradient").draw_noise_scale([(style, one)], tmp_path / "x")
    axis = figures["x"].axes[0]
    bars = [segment[:, 1] for x in axis.collections for segment in x.get_segments()]
    assert np.allclose(bars, 2048 * np.array([[8e-4, 1.2e-3], [-3e-5, 3e-5]])) and axis.get_ylim()[0] > 0


def test_every_run_has_random_numbers_of_its_own(known, tmp_path):
    """Untrained, runs that differ in the learning rate alone are one network, sampled independently."""
    module = load("gradient")
    folders = [str(known / name) for name in ("chain", "chain_rate", "chain2")]
    flags = "--checkpoints 0 --pairs 128 --repeats 3 --true-pairs 64 --jobs 1".split()
    module.main([*folders, "--out", str(tmp_path / "all"), *flags, "--labels", *["PPO"] * 3])
    points = [row["variance"] for row in rows(tmp_path / "all", "gradient")]
    assert points[0] != points[1] != points[2] != points[0]
    module.main([folders[1], "--out", str(tmp_path / "one"), *flags])
    assert [x["variance"] for x in rows(tmp_path / "one", "gradient")] == [points[1]]
