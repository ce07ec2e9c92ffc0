"""Statistics of a few runs, beside numbers worked out by hand."""

import numpy as np
import pytest

from rlightning.functional.statistics import bootstrap_difference, bootstrap_interval, interquartile_mean


def test_the_interquartile_mean_leaves_out_a_quarter_on_each_side():
    # Of 8 values the two lowest and the two highest go: (2 + 3 + 4 + 5) / 4.
    assert interquartile_mean([100, 0, 2, 4, 3, 5, -50, 9]) == 3.5
    # Of 5 values one goes on each side, of 3 none.
    assert interquartile_mean([1, 2, 3, 4, 100]) == 3
    assert interquartile_mean([0, 0, 6]) == 2
    np.testing.assert_array_equal(interquartile_mean(np.array([[0, 1, 3, 100], [4, 4, 4, 4]])), [2, 4])


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution_for_many_values():
    values = np.random.default_rng(1).normal(10.0, 2.0, 400).tolist()
    # The standard error is 2 / sqrt(400) = 0.1.
    low, high = bootstrap_interval(values, np.mean)
    centre, error = np.mean(values), np.std(values) / 20
    assert low == pytest.approx(centre - 1.96 * error, abs=0.02)
    assert high == pytest.approx(centre + 1.96 * error, abs=0.02)
    assert bootstrap_interval(values, np.mean) == (low, high)


def test_a_difference_is_shown_or_not():
    low, high = bootstrap_difference([10, 11, 11.5, 12, 13], [1, 2, 2.5, 3, 4])
    assert 6 < low < 9 < high < 12
    low, high = bootstrap_difference([1, 2, 2.5, 3, 4], [1.5, 2.5, 2, 3, 4])
    assert low < 0 < high


def test_fewer_than_five_values_have_no_interval():
    for values in ([3.0], [3.0, 4.0, 5.0, 6.0]):
        assert np.isnan(bootstrap_interval(values)).all()
    assert np.isnan(bootstrap_difference([3.0] * 5, [1.0, 2.0, 3.0, 4.0])).all()
    assert np.isnan(bootstrap_interval([3.0])).all()
    assert np.isnan(bootstrap_difference([3.0], [1.0, 2.0])).all()
