"""Limits of the code, made so small that a few objects reach them: pages, statements, what a mark holds."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from shard_store.sql import database

PAGES = "ROWS_PER_STATEMENT"
LIMITS = (
    ("shard_store.error_table.records", "_NAMED", 0),
    ("shard_store.operators.shards", "_LISTED", 2),
    ("shard_store.operators.views", "PAGE", 2),
    ("shard_store.shards.ownership", "_RECENT", 2),
    ("shard_store.batches.publishing", "_RECENT", 2),
    ("shard_store.completeness.comparing", "KEPT", 2),
    ("shard_store.error_table.search", "PAGE", 2),
    ("shard_store.error_table.handling", "PAGE", 2),
    ("queue_source.coordinator.receivers", "_AT_A_TIME", 2),
    ("queue_source.coordinator.opening", "_ABANDONED", 1),
    ("queue_source.coordinator.cleaning", "_PLANNED", 1),
    ("queue_source.commands.reconcile", "_HALF", 1),
    ("queue_source.commands.vacuum", "_PAGE", 2),
    ("queue_source.commands.compact", "_MOST_FILES", 3),
    ("queue_source.storage.buckets.local", "PAGE", 2),
)
"""Module, name, and how small it is made. A name that the code has no more is an error."""


@contextmanager
def small_limits(seed: int, kinds: Collection[str]) -> Iterator[None]:
    """Make them small in two of three explorations."""
    with ExitStack() as stack:
        if "limits" in kinds and (choose := random.Random(f"{seed} limits")).random() < 0.67:
            for place, name, small in LIMITS:
                stack.enter_context(mock.patch.object(importlib.import_module(place), name, small))
            rows = choose.choice((2, 3))
            for module_name, module in list(sys.modules.items()):
                if module_name.startswith(("shard_store", "queue_source")) and PAGES in vars(module):
                    stack.enter_context(mock.patch.object(module, PAGES, rows))
            stack.enter_context(mock.patch.object(database.chunks, "__defaults__", (rows,)))
        yield
