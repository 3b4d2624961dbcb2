"""The shared code of the buckets of object stores: each object of many separately, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from queue_source.errors import BadObject, ObjectStoreError
from queue_source.storage.buckets.base import Outcome

THREADS = 10
"""Requests side by side: as many connections as the clients keep."""

_T = TypeVar("_T")


def one_by_one(threads: ThreadPoolExecutor, act: Callable[[_T], Outcome], things: Iterable[_T]) -> list[Outcome]:
    """Return the outcome of each, in order."""
    return list(threads.map(lambda thing: outcome_of(lambda: act(thing)), things))


def outcome_of(act: Callable[[], Outcome]) -> Outcome:
    """Map the error of one object to its outcome; a missing object needs nothing more."""
    try:
        return act()
    except FileNotFoundError:
        return None
    except (BadObject, ObjectStoreError) as error:
        return error


def exchanged(uri: str) -> BadObject:
    """Return the error for a condition of a request that did not hold."""
    return BadObject("object-changed", f"{uri!r} was exchanged in the moment before it was deleted")


def occupied(uri: str, target: str) -> BadObject:
    """Return the error for a target that is something else."""
    return BadObject("target-exists", f"{target!r} is there already, and is not {uri!r}")
