"""Verbs of the store in pairs on PostgreSQL, the second whole between two steps of the first: see `support.races`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.races.__main__ import hasten
from support.races.race import Races, pairs, search
from support.races.verbs import VERBS
from support.servers.postgres import new_database
from support.store_backends import StoreBackend


@pytest.fixture(scope="module")
def races(postgres_url: str) -> Iterator[Races]:
    url = new_database(postgres_url)
    hasten(url)
    made = Races(StoreBackend("postgresql", url))
    yield made
    made.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("most", [12, pytest.param(60, marks=pytest.mark.thorough)])
def test_no_two_verbs_lose_double_or_hold_up_what_one_after_the_other_do_not(races: Races, most: int) -> None:
    said, tried, waited = list[str](), races.tried, races.waited
    assert search(races, 1, said.append, most=most) == [], "\n".join(said)
    assert races.tried - tried > 5 * most
    assert races.waited - waited > most // 2


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_one_verb_alone_harms_only_what_it_is_meant_to(races: Races) -> None:
    """So the model of a reader loses nothing by itself. What is pruned is unknown, what is forgotten is read again.

    Who sleeps for an hour publishes nothing of what another has taken over.
    """
    harm = {verb: harm for verb in VERBS if (harm := races.harm(verb))}
    anew = {"operator forgets", "q reads what is to be cleaned anew"}
    assert harm.keys() == {"timer prunes", "operator prunes all", "an hour passes", "days pass", *anew}
    assert all(harm[verb] == {"done is published twice"} for verb in anew)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("q announces old bad", "timer prunes"),
        ("timer prunes", "receiver records released"),
        ("q lists", "timer prunes"),
        ("p plans cleanings", "operator forgets"),
        ("operator puts back", "q announces bad twice"),
        ("q announces dead", "d wakes, commits in its table and dies"),
        ("p cleans", "q reads what is to be cleaned anew"),
        ("i starts again", "operator prunes the idle"),
        ("q lists", "operator resets d"),
    ],
)
def test_what_was_found_before_does_no_harm(races: Races, first: str, second: str) -> None:
    assert [find.as_test() for find in races.pair(first, second) if find.harm] == []


def test_the_order_of_the_pairs_is_the_seeds() -> None:
    assert pairs(1) == pairs(1) != pairs(2)
    assert {a for a, _ in pairs(1)} == set(VERBS)
    assert not [(a, b) for a, b in pairs(1, ("starts",)) if VERBS[a].lane == VERBS[b].lane]
