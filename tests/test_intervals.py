"""The statistics: known answers, and intervals that cover the truth as often as they say."""

import numpy as np
import pytest
from measuring import intervals
from scipy import stats


def test_a_mean_and_a_difference_match_scipy():
    x, y = np.array([2311.0, 1757, 3239, 2609, 2380, 905, 2611, 3100]), np.array([1000.0, 3000, 2000])
    known = stats.ttest_1samp(x, 0).confidence_interval()
    assert intervals.mean_of(x) == dict(mean=x.mean(), interval=pytest.approx([*known]))
    assert intervals.mean_of(x[:1]) == dict(mean=2311, interval=None)
    for looks in (1, 2):
        welch = stats.ttest_ind(x, y, equal_var=False).confidence_interval(1 - 0.05 / looks)
        found = intervals.difference(x, y, looks)
        assert found == dict(mean=pytest.approx(x.mean() - 2000), interval=pytest.approx([*welch]))
    assert intervals.difference(np.ones(3), np.zeros(3)) == dict(mean=1, interval=[1, 1])
    assert intervals.difference(np.ones(3), np.zeros(1))["interval"] is None


def test_contrast_of_four_has_satterthwaites_degrees_of_freedom():
    """Variances 7, 13/12, 52/3, 31/3 of three runs each: their sum is 143/4, and so half the interval is t(5.59) times
    the root of 143/48."""
    samples = [np.array(x) for x in ([10.0, 14, 15], [6.0, 4, 5.5], [9.0, 7, 1], [16.0, 22, 17])]
    found = intervals.contrast(samples, [0.5, -0.5, -0.5, 0.5])
    freedom = 2 * (143 / 4) ** 2 / (49 + 169 / 144 + 2704 / 9 + 961 / 9)
    half, mean = stats.t.ppf(0.975, freedom) * (143 / 48) ** 0.5, (13 - 31 / 6 + 55 / 3 - 17 / 3) / 2
    assert found == dict(mean=pytest.approx(mean), interval=pytest.approx([mean - half, mean + half]))


def test_paired_change_by_hand():
    before, after = np.array([0.0, 10.0, 20.0, 30.0]), np.array([1.0, 13.0, 21.0, 33.0])  # differences 1 3 1 3
    error, t = (4 / 3) ** 0.5 / 2, 3.1824463  # Student's, 3 degrees of freedom
    found = intervals.paired_change(before, after)
    assert (found["mean"], *found["interval"]) == pytest.approx((2, 2 - t * error, 2 + t * error))
    unpaired = 2.446912 * ((before.var(ddof=1) + after.var(ddof=1)) / 4) ** 0.5
    assert found["pairing"] == pytest.approx(t * error / unpaired)
    assert intervals.paired_change(np.ones(3), np.ones(3))["pairing"] is None


def test_ratio_of_sums_over_episodes():
    """Two episodes of 3 and 1 steps, one of which clips: 1 of 4, 0.25; their parts are 1 - 0.75 and 0 - 0.25, of 2."""
    ends = np.array([False, False, True, True])
    found = intervals.ratio_of_sums(np.array([0, 1, 0, 0]), 1, ends)
    assert found["mean"] == 0.25 and found["episodes"] == 2
    assert found["interval"] == pytest.approx([0, 0.25 + 12.7062 * 0.125])


def test_a_bootstrap_interval_is_bca_and_none_where_all_draws_are_alike():
    x = np.random.default_rng(0).exponential(size=20)
    found = intervals.bootstrap(lambda y: stats.trim_mean(y, 0.25, axis=-1), x)
    trimmed = lambda y, axis: stats.trim_mean(y, 0.25, axis=axis)
    expected = stats.bootstrap((x,), trimmed, n_resamples=10_000, rng=1).confidence_interval
    assert found["interval"] == pytest.approx(list(expected), abs=0.03)
    above = lambda x, y: (x[..., :, None] > y[..., None, :]).mean((-2, -1))
    apart = intervals.bootstrap(above, np.array([5.0, 6, 7]), np.array([1.0, 2, 3]))
    assert apart == dict(mean=1.0, interval=None)
    assert intervals.bootstrap(above, np.array([5.0]), np.array([1.0, 2]))["interval"] is None


def test_step_of_a_rejected_line_search_has_cosine_0():
    steps = np.array([[3.0, 0.0], [0.0, 0.0], [2.0, 2.0]])
    assert intervals.cosines(steps, steps)[[0, 0, 1], [1, 2, 2]] == pytest.approx([0, 0.5**0.5, 0])


def test_pairwise_mean_leaves_out_an_item_with_itself():
    matrix = np.array([[1.0, 0.2, 0.6], [0.2, 1.0, 0.1], [0.6, 0.1, 1.0]])
    numbers = intervals.pairwise(matrix)
    assert numbers["mean"] == pytest.approx(0.3) and numbers["all"] == [0.2, 0.6, 0.1]
    assert numbers["interval"][1] <= 0.6 + 1e-12  # an item drawn twice is not compared with itself


def test_intervals_over_episodes_and_over_pairs_cover():
    """Ratios of sums over 40 skewed episodes of unlike length, and mean cosines of 12 estimates around 0 and far from
    it, whose intervals are too wide rather than too narrow."""
    rng, held = np.random.default_rng(2), {}
    for in_logarithms in (False, True):
        found = []
        for _ in range(600):
            lengths = rng.integers(1, 30, 40)
            ends = np.zeros(lengths.sum(), bool)
            ends[np.cumsum(lengths) - 1] = True
            x = np.repeat(rng.exponential(size=40), lengths) * rng.exponential(size=len(ends))
            low, high = intervals.ratio_of_sums(x, 1, ends, in_logarithms)["interval"]
            found.append(low < 1 < high)
        held[in_logarithms] = np.mean(found)
    assert held == {False: pytest.approx(0.93, abs=0.03), True: pytest.approx(0.94, abs=0.03)}
    for length in (0.0, 8.0):
        found = []
        for _ in range(300):
            vectors = rng.normal(size=(12, 30))
            vectors[:, 0] += length
            found.append(intervals.pairwise(intervals.cosines(vectors, vectors), 200)["interval"])
        middle = np.mean(found)
        assert np.mean([low <= middle <= high for low, high in found]) > 0.9, length


def test_texts():
    assert [intervals.short(x) for x in (1234.5, 100, 99.94, 0.001234)] == ["1,234", "100", "99.9", "0.00123"]
    assert intervals.text(None) == "-" and intervals.text(dict(mean=2.0, interval=None)) == "2"
    assert intervals.text(dict(mean=2364.0, interval=[1737.7, 2990.3])) == "2,364 [1,738, 2,990]"
