"""The matcher of tags, by example; tests/properties/test_tags.py compares it with the definition."""

from __future__ import annotations

import pytest

from queue_source.tags import check_filter, check_tag, matches, matches_any, parse_filters
from support.tag_table import TABLE


@pytest.mark.parametrize(("tag_filter", "tag", "expected"), TABLE)
def test_filters_match_as_in_rabbitmq(tag_filter: str, tag: str, expected: bool) -> None:
    assert matches(tag_filter, tag) is expected


def test_of_several_filters_one_is_enough() -> None:
    assert matches_any(["a.*", "b"], "b")
    assert not matches_any(["a.*", "b"], "c")
    assert not matches_any([], "a")


@pytest.mark.parametrize("text", ["", "a,,b", "a,"])
def test_the_empty_filter_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="write '#' for all"):
        parse_filters(text)


def test_filters_are_parted_by_commas_and_each_counts_once() -> None:
    assert parse_filters("a.*, b.#,a.*") == ("a.*", "b.#")


def test_what_amqp_cannot_carry_is_refused() -> None:
    assert check_tag("\u00fc" * 127)
    for check in (check_tag, check_filter):
        with pytest.raises(ValueError, match="longer than 255 bytes"):
            check("\u00fc" * 128)
    with pytest.raises(ValueError, match="surrogates"):
        check_tag("\ud800")
