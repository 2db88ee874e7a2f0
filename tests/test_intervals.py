"""The statistics: known answers, and intervals that cover the truth as often as they say."""

import estimates
import numpy as np
import pytest
from conftest import load
from scipy import stats

checks, gradient = load("checks"), load("gradient")


def test_a_difference_matches_scipy_and_looks_share_the_five_percent():
    x, y = np.array([2311.0, 1757, 3239, 2609, 2380, 905, 2611, 3100]), np.array([1000.0, 3000, 2000])
    for looks in (1, 2):
        errors = x.var(ddof=1) / 8, y.var(ddof=1) / 3
        freedom = sum(errors) ** 2 / (errors[0] ** 2 / 7 + errors[1] ** 2 / 2)
        half, mean = stats.t.ppf(1 - 0.025 / looks, freedom) * sum(errors) ** 0.5, x.mean() - 2000
        assert checks.difference(x, y, looks) == dict(mean=mean, interval=pytest.approx([mean - half, mean + half]))


def test_an_estimate_of_four_samples_has_satterthwaites_degrees_of_freedom():
    """Variances 7, 13/12, 52/3, 31/3 of three runs each: their sum is 143/4, and so half the interval is t(5.59) times
    the root of 143/48."""
    samples = [np.array(x) for x in ([10.0, 14, 15], [6.0, 4, 5.5], [9.0, 7, 1], [16.0, 22, 17])]
    found = estimates.Estimate(samples, [0.5, -0.5, -0.5, 0.5])
    freedom = 2 * (143 / 4) ** 2 / (49 + 169 / 144 + 2704 / 9 + 961 / 9)
    half, mean = stats.t.ppf(0.975, freedom) * (143 / 48) ** 0.5, (13 - 31 / 6 + 55 / 3 - 17 / 3) / 2
    assert (found.mean, *found.interval()) == pytest.approx((mean, mean - half, mean + half))


def test_share_of_rows_over_episodes():
    """Two episodes of 3 and 1 steps, one of which clips: 1 of 4, 0.25; their parts are 1 - 0.75 and 0 - 0.25, of 2."""
    ends = np.array([False, False, True, True])
    found = checks.share_of_rows(np.array([0, 1, 0, 0]), ends)
    assert found == dict(mean=0.25, interval=pytest.approx([0, 0.25 + 12.7062 * 0.125]))


def test_a_bootstrap_interval_is_bca_and_none_where_all_draws_are_alike():
    x = np.random.default_rng(0).exponential(size=20)
    found = estimates.bootstrap(lambda y: stats.trim_mean(y, 0.25, axis=-1), x)
    trimmed = lambda y, axis: stats.trim_mean(y, 0.25, axis=axis)
    expected = stats.bootstrap((x,), trimmed, n_resamples=10_000, rng=1).confidence_interval
    assert found["interval"] == pytest.approx(list(expected), abs=0.03)
    above = lambda x, y: (x[..., :, None] > y[..., None, :]).mean((-2, -1))
    apart = estimates.bootstrap(above, np.array([5.0, 6, 7]), np.array([1.0, 2, 3]))
    assert apart == dict(mean=1.0, interval=None)
    assert estimates.bootstrap(above, np.array([5.0]), np.array([1.0, 2]))["interval"] is None


def test_step_of_a_rejected_line_search_has_cosine_0():
    steps = np.array([[3.0, 0.0], [0.0, 0.0], [2.0, 2.0]])
    assert gradient.cosines(steps, steps)[[0, 0, 1], [1, 2, 2]] == pytest.approx([0, 0.5**0.5, 0])


def test_pairwise_mean_leaves_out_an_item_with_itself():
    numbers = gradient.pairwise([0.2, 0.6, 0.1])
    assert numbers["mean"] == pytest.approx(0.3)
    assert numbers["interval"][1] <= 0.6 + 1e-12  # an item drawn twice is not compared with itself
    assert gradient.pairwise([0.2]) == dict(mean=0.2, interval=None)


def test_intervals_over_episodes_and_over_pairs_cover():
    """Shares over 40 skewed episodes of unlike length, and mean cosines of 12 estimates around 0 and far from it, whose
    intervals are too wide rather than too narrow."""
    rng, found = np.random.default_rng(2), []
    for _ in range(600):
        lengths = rng.integers(1, 30, 40)
        ends = np.zeros(lengths.sum(), bool)
        ends[np.cumsum(lengths) - 1] = True
        x = np.repeat(rng.exponential(size=40), lengths) * rng.exponential(size=len(ends))
        low, high = checks.share_of_rows(x, ends)["interval"]
        found.append(low < 1 < high)
    assert np.mean(found) == pytest.approx(0.93, abs=0.03)
    for length in (0.0, 8.0):
        found = []
        for _ in range(300):
            vectors = rng.normal(size=(12, 30))
            vectors[:, 0] += length
            cosines = gradient.above_diagonal(gradient.cosines(vectors, vectors))
            found.append(gradient.pairwise(cosines, 200)["interval"])
        middle = np.mean(found)
        assert np.mean([low <= middle <= high for low, high in found]) > 0.9, length
