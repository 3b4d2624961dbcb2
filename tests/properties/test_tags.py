"""Tag filters mean what their definition says; integration/test_rabbitmq.py asks a real RabbitMQ the same."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from queue_source.tags import matches

WORDS = st.sampled_from(["a", "b", "ab", "A", "", "*", "#"])
TAGS = st.lists(WORDS, max_size=6).map(".".join)
FILTERS = st.lists(st.sampled_from(["a", "b", "ab", "", "*", "#"]), min_size=1, max_size=6).map(".".join)


def by_definition(pattern: list[str], words: list[str]) -> bool:
    """Tries every number of words for each `#`."""
    if not pattern:
        return not words
    first, *rest = pattern
    if first == "#":
        return any(by_definition(rest, words[taken:]) for taken in range(len(words) + 1))
    return bool(words) and first in ("*", words[0]) and by_definition(rest, words[1:])


@settings(max_examples=1500)
@given(FILTERS.filter(bool), TAGS)
def test_the_matcher_agrees_with_the_definition(tag_filter: str, tag: str) -> None:
    expected = by_definition(tag_filter.split("."), tag.split(".") if tag else [])
    assert matches(tag_filter, tag) is expected


@given(TAGS)
def test_a_lone_hash_takes_everything(tag: str) -> None:
    assert matches("#", tag)


def test_a_filter_of_many_hashes_is_not_slow() -> None:
    assert not matches(".".join(["#", "a"] * 60), ".".join(["a"] * 59 + ["b"]))
