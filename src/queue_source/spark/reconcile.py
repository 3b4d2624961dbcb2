"""`cuesqueue.reconcile`: for buckets of many millions of objects, the comparison as a join of Spark (decision 0048).

What an object is called, and whether the reader would have read it, is decided by the reader's own code in tasks; what
became of it by `completeness.comparing.judge`, in tasks too (decision 0079).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import reduce
from operator import or_

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType, TimestampType

from queue_source.admin.reconcile import Period
from queue_source.announcements.listed import listed_contents
from queue_source.errors import OptionError
from queue_source.messages import ListedObject
from queue_source.options import ListingOptions, SecretUrl, parse_listing_options
from queue_source.spark.compat import arrow_schema
from queue_source.storage import inventory
from queue_source.uris import plain_prefix
from shard_store.completeness.comparing import Category, Finding, ListedShard, Memory, StoredShard, judge
from shard_store.model import micros, shard_key, time_of
from shard_store.shards.sources import todays_id
from shard_store.store import open_store

_LISTED: dict[str, DataType] = {
    "uri": StringType(),
    "size": LongType(),
    "etag": StringType(),
    "last_modified": TimestampType(),
    "version": StringType(),
}
_LISTING = StructType([StructField(name, kind) for name, kind in _LISTED.items()])
_KEYED = StructType([*_LISTING, StructField("shard_key", BinaryType()), StructField("plain_key", BinaryType())])
_JUDGED = StructType([*_LISTING, StructField("category", StringType()), StructField("pipeline", StringType())])
_SHARDS = (
    "shard_key BINARY, state STRING, pending STRING, size LONG, etag STRING, finished_at TIMESTAMP, pipeline STRING"
)
# the fields of StoredShard, in their order
_KNOWN = "struct(shard_key, state, size, etag, unix_micros(finished_at) AS finished_at, pipeline AS owner, pending)"


def reconcile(
    spark: SparkSession,
    listing: DataFrame | str,
    store: str,
    prefixes: str | Sequence[str],
    *,
    source: str | None = None,
    options: Mapping[str, str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    grace: timedelta = timedelta(minutes=10),
) -> DataFrame:
    """What became of each object of a listing, as in `cuesqueue reconcile`, for buckets of many millions.

    Tasks read the shards and join them. Use the result soon: how far back the store remembers is looked up by this
    call.

    Args:
        spark: The session.
        listing: The objects: a DataFrame with the columns `uri`, `size`, `etag`, `last_modified` and, of a bucket with
            versions, `version` (the latest of each object); or the URI of an S3 Inventory's manifest.
        store: As in the option `storeUrl` (also `env:NAME` and `file:PATH`, on all machines).
        prefixes: What is compared and in the result.
        source: The source; needed if the store has several.
        options: Options of the reader: those that choose its objects (`allowedPrefixes`, `allowOverwrites`,
            `pathGlobFilter`, `fullPathGlobFilter`, `readHiddenFiles`), as the reader has them, and those that reach an
            inventory (`s3.*`, `aws.*`).
        since: Only objects last modified from this time on.
        until: Only objects last modified before this time; by default `grace` ago, or before the inventory was made.
            A time without a zone is UTC.
        grace: How long an object may take to be announced and published.

    Returns:
        The listing's columns, with `category` (`published`, `waiting`, `quarantined`, `skipped`, `given_up`, `missing`,
        `changed`, `beyond_memory`, `before_beginning`, `left_out`) and the `pipeline` that has the object or has
        published it.

    Raises:
        OptionError: An option, a prefix or a time is wrong, or the inventory lacks a column.
        BadObject: The checksum of a manifest is wrong; of a file, the task fails with it.
        StoreConfigurationError: There is no such store or source.

    Process:
        The driver.
    """
    choice = parse_listing_options([prefixes] if isinstance(prefixes, str) else prefixes, options or {})
    objects, now = _listing(spark, listing, choice)
    period = Period(_aware(since), _aware(until), grace)
    ends = period.ending(now)
    at = F.unix_micros("last_modified")
    objects = objects.where(at < micros(ends))
    if period.since is not None:
        objects = objects.where(at >= micros(period.since))
    starts = [F.col("uri").startswith(prefix) for prefix in choice.prefixes]
    under = starts[0]
    for start in starts[1:]:
        under = under | start
    with open_store(SecretUrl(store).reveal(), create=False) as opened:
        name = opened.source_of(source)
        remembered, spellings = opened.memory(name), opened.spellings(name)
    keyed = objects.where(under).mapInArrow(_keys(choice, name), _KEYED)
    shards = (
        spark.read.format("cuesqueue")
        .schema(f"{_SHARDS}, shard_id STRING" if spellings else _SHARDS)
        .options(storeUrl=store, view="shards", source=name)
        .load()
    )
    stored = shards.selectExpr("shard_key", f"{_KNOWN} AS known")
    if spellings:
        done_first = F.min_by("known", F.col("known.state")).alias("known")
        stored = stored.union(_by_todays_names(shards, name, spellings)).groupBy("shard_key").agg(done_first)
    joined = keyed.join(stored, "shard_key", "left")
    if choice.notifications.allow_overwrites:
        joined = joined.join(stored.toDF("plain_key", "plain"), "plain_key", "left")
    else:
        joined = joined.selectExpr("*", "nullif(known, known) AS plain")
    return joined.selectExpr("*", "unix_micros(last_modified) AS modified").mapInArrow(_judge(remembered), _JUDGED)


def _listing(spark: SparkSession, listing: DataFrame | str, options: ListingOptions) -> tuple[DataFrame, datetime]:
    """Return the objects with the columns of `_LISTING`, and the time up to which they are known."""
    if isinstance(listing, str):
        opened = inventory.open_inventory(plain_prefix(listing), options.storage)
        count = len(opened.files)
        files = spark.range(0, count, 1, max(1, count))
        return files.mapInArrow(_read_files(opened, options), _LISTING), opened.created
    if missing := [name for name in _LISTED if name not in listing.columns and name != "version"]:
        raise OptionError("listing", f"has no column {', '.join(missing)}; it needs uri, size, etag and last_modified")
    version = F.col("version") if "version" in listing.columns else F.lit(None)
    columns = [(version if name == "version" else F.col(name)).cast(kind) for name, kind in _LISTED.items()]
    named = [column.alias(name) for name, column in zip(_LISTED, columns, strict=True)]
    return listing.select(*named), datetime.now(timezone.utc)


Batches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _read_files(opened: inventory.Inventory, options: ListingOptions) -> Batches:
    """Build the function that reads files of the inventory by their numbers. Runs in tasks."""
    schema = arrow_schema(_LISTING)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for objects in inventory.read_file(opened, opened.files[number], options.storage):
                    columns = zip(*((o.uri, o.size, o.etag, o.modified, o.version) for o in objects), strict=True)
                    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=False)]
                    if objects:
                        yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return read


def _keys(options: ListingOptions, source: str) -> Batches:
    """Build the function that adds the key of each object's shard, by the reader's own code; null for none.

    And that of its URI alone, under which it was read before the reader had `allowOverwrites`. Runs in tasks.
    """
    schema = arrow_schema(_KEYED)
    chosen = options.notifications

    def add(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not batch.num_rows:
                continue
            times = batch.column("last_modified").cast(pa.timestamp("us", "UTC"))
            rows = batch.select(["uri", "size", "etag", "version"]).to_pylist()
            modified = times.cast(pa.int64()).to_pylist()
            objects = [ListedObject(**row, modified=time_of(at)) for row, at in zip(rows, modified, strict=True)]
            contents = listed_contents(objects, chosen)
            keys = [None if c is None else shard_key(source, c.shard_id) for c in contents]
            plain = [None if c is None or c.shard_id == c.uri else shard_key(source, c.uri) for c in contents]
            arrays = _listed(batch, schema)
            arrays += [pa.array(values, pa.binary()) for values in (keys, plain)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return add


def _by_todays_names(shards: DataFrame, source: str, spellings: Mapping[str, Sequence[str]]) -> DataFrame:
    """Return the shards that have another name than their objects have today, with the keys of today's."""
    others = [other for spelled in spellings.values() for other in spelled]
    renamed = shards.where(reduce(or_, (F.col("shard_id").startswith(other) for other in others)))

    def rekeyed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ids = batch.column("shard_id").to_pylist()
            keys = pa.array([shard_key(source, todays_id(shard_id, spellings)) for shard_id in ids], pa.binary())
            yield pa.RecordBatch.from_arrays([keys, *batch.columns[1:]], batch.schema.names)

    return renamed.mapInArrow(rekeyed, shards.schema).selectExpr("shard_key", f"{_KNOWN} AS known")


def _judge(remembered: Memory) -> Batches:
    """Build the function that adds what became of each object, and its pipeline. Runs in tasks.

    The clocks are not compared.
    """
    schema = arrow_schema(_JUDGED)

    def add(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in ("shard_key", "size", "etag", "modified"))
            shards = (_stored(batch.column(name)) for name in ("known", "plain"))
            findings = [
                Finding(Category.LEFT_OUT) if key is None else judge(ListedShard("", *listed), row, plain, remembered)
                for key, *listed, row, plain in zip(*columns, *shards, strict=True)
            ]
            names = [f.category.value for f in findings], [f.pipeline for f in findings]
            arrays = [*_listed(batch, schema), *(pa.array(texts, pa.string()) for texts in names)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return add


def _stored(stored: pa.StructArray) -> Iterator[StoredShard | None]:
    columns = (column.to_pylist() for column in stored.flatten())
    return (row if row.shard_key is not None else None for row in map(StoredShard._make, zip(*columns, strict=True)))


def _listed(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array]:
    """Return the columns of the listing; Spark hands timestamps in the session's time zone."""
    return [batch.column(name).cast(schema.field(name).type) for name in _LISTED]


def _aware(time: datetime | None) -> datetime | None:
    return time.replace(tzinfo=timezone.utc) if time is not None and time.tzinfo is None else time
