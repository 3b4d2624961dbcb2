"""The histogram of lags: percentiles that are at most a tenth wrong, bounded, and joined by adding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shard_store.shards.activity import BOUNDS, SHORTEST, histogram, percentile

MONTH = 30 * 86_400_000_000
LAGS = st.lists(st.integers(round(SHORTEST), MONTH), min_size=1, max_size=200)


@given(LAGS, st.sampled_from([0.01, 0.5, 0.99, 1.0]))
def test_a_percentile_is_at_most_a_tenth_wrong(lags: list[int], part: float) -> None:
    exact = next(lag for place, lag in enumerate(sorted(lags), 1) if place >= part * len(lags))
    found = percentile(histogram(lags), part)
    assert found is not None
    assert 0.9 * exact <= found <= 1.1 * exact


@given(LAGS, LAGS)
def test_two_histograms_are_joined_by_adding(one: list[int], two: list[int]) -> None:
    assert histogram(one) + histogram(two) == histogram([*one, *two])


@given(st.lists(st.integers(-MONTH, 100 * MONTH)))
def test_each_lag_is_in_one_bucket_however_long_or_negative_it_is(lags: list[int]) -> None:
    found = histogram(lags)
    assert found.total() == len(lags)
    assert all(0 <= place <= len(BOUNDS) for place in found)


def test_without_a_lag_there_is_no_percentile() -> None:
    assert percentile({}, 0.5) is None


def test_what_is_beyond_a_bound_is_the_last_bucket_and_clocks_that_disagree_are_the_first() -> None:
    assert percentile(histogram([-5]), 0.5) == SHORTEST
    assert percentile(histogram([100 * MONTH]), 0.5) == percentile(histogram([round(BOUNDS[-1])]), 0.5)
