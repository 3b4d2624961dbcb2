"""The proof of `cuesqueue demo`: the published rows of each day are the rows of the input, no more and no fewer.

And the certificates, with which anyone who has the store and the bucket can check the result without the input.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import closing
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cuesqueue_demo.data import MONTHS, Layout, day_numbers
from cuesqueue_demo.report import Certificate
from queue_source.commands.reconcile import Period, compare, pages_of
from queue_source.options import parse_listing_options
from queue_source.storage.buckets import open_bucket
from shard_store import ShardStore
from shard_store.shards.changes import Audit


def read_splits(paths: Iterable[str], schema: pa.Schema) -> pa.Table:
    """Read all rows of the published files, without Spark and without the source's own readers."""
    tables = [pq.read_table(path, columns=schema.names).cast(schema) for path in paths]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def certify(layout: Layout, store: ShardStore) -> dict[str, Certificate]:
    """Certify the objects of each pipeline, as `cuesqueue reconcile PREFIX --grace 0s --certify` does."""
    certificates = {}
    for pipeline in MONTHS:
        options = parse_listing_options([layout.prefix(pipeline)], {})
        (prefix,) = options.prefixes
        with (
            closing(open_bucket(prefix, options.storage)) as bucket,
            closing(pages_of(bucket, prefix, versions=False)) as pages,
        ):
            report = compare(store, pipeline, prefix, options, pages, period=Period(grace=timedelta(0)))
        number = store.certify(report.scope, report.evidence, report.tally, Audit.of_user().actor)
        certificates[pipeline] = Certificate(number, report.tally.counts, report.sentence())
    return certificates


def days_that_differ(expected: pa.Table, published: pa.Table) -> list[int]:
    """Return the days (month * 100 + day) whose rows differ, as multisets over all columns.

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
    """Return the rows of these days."""
    day_codes = pa.array([month * 100 + day for month, day in days], pa.int64())
    return table.filter(pc.is_in(day_numbers(table), day_codes))


def _ordered(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()
