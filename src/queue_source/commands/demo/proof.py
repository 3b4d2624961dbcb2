"""The proof of `cuesqueue demo`: the published rows of each day are the rows of the input, no more and no fewer."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from queue_source.commands.demo.data import day_numbers


def read_splits(paths: Iterable[str], schema: pa.Schema) -> pa.Table:
    """All rows of the published files, read without Spark and without the source's own readers."""
    tables = [pq.read_table(path, columns=schema.names).cast(schema) for path in paths]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def days_that_differ(expected: pa.Table, published: pa.Table) -> list[int]:
    """The days (month * 100 + day) whose rows are not the same, as multisets over all columns; empty: none.

    Both tables are put into one order by all their columns, so equal tables mean equal rows, each as often.
    """
    expected, published = _ordered(expected), _ordered(published)
    if expected.equals(published):
        return []
    ours, theirs = day_numbers(expected), day_numbers(published)
    days = sorted({*ours.unique().to_pylist(), *theirs.unique().to_pylist()})
    return [
        day for day in days if not expected.filter(pc.equal(ours, day)).equals(published.filter(pc.equal(theirs, day)))
    ]


def only_days(table: pa.Table, days: Collection[tuple[int, int]]) -> pa.Table:
    """The rows of these days."""
    wanted = pa.array([month * 100 + day for month, day in days], pa.int64())
    return table.filter(pc.is_in(day_numbers(table), wanted))


def _ordered(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()
