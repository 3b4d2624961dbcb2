"""`cuesqueue.reconcile`: for buckets of many millions of objects, the comparison as a join of Spark (decision 0048).

What an object is called, and whether the reader would have read it, is decided by the reader's own code in tasks; what
became of it by the rules of `shard_store.completeness.comparing`, here as expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
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
from shard_store.completeness.comparing import UNMEASURED, UNPUBLISHED_BY_MARK, Category, Memory
from shard_store.completeness.listing import SURE
from shard_store.model import ShardState, micros, shard_key, time_of
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
_SHARDS = (
    "shard_key BINARY, state STRING, pending STRING, size LONG, etag STRING, finished_at TIMESTAMP, pipeline STRING"
)


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
    given = parse_listing_options([prefixes] if isinstance(prefixes, str) else prefixes, options or {})
    found, now = _listing(spark, listing, given)
    period = Period(_aware(since), _aware(until), grace)
    ends = period.ending(now)
    at = F.unix_micros("last_modified")
    found = found.where(at < micros(ends))
    if period.since is not None:
        found = found.where(at >= micros(period.since))
    starts = [F.col("uri").startswith(prefix) for prefix in given.prefixes]
    under = starts[0]
    for one in starts[1:]:
        under = under | one
    with open_store(SecretUrl(store).reveal(), create=False) as opened:
        name = opened.source_of(source)
        remembered = opened.memory(name)
    keyed = found.where(under).mapInArrow(_keys(given, name), _KEYED)
    shards = spark.read.format("cuesqueue").schema(_SHARDS).options(storeUrl=store, view="shards", source=name).load()
    overwrites = given.notifications.allow_overwrites
    joined = keyed.join(_renamed(shards, ""), F.col("shard_key") == F.col("known_shard_key"), "left")
    if overwrites:
        joined = joined.join(_renamed(shards, "plain_"), F.col("plain_key") == F.col("plain_known_shard_key"), "left")
    category, pipeline = _category(remembered, overwrites)
    return joined.select(*_LISTED, category.alias("category"), pipeline.alias("pipeline"))


def _renamed(shards: DataFrame, before: str) -> DataFrame:
    """So that no column of it is one of the listing's."""
    return shards.select(*(F.col(name).alias(f"{before}known_{name}") for name in shards.columns))


def _category(remembered: Memory, overwrites: bool) -> tuple[Column, Column]:
    """The rules of `completeness.compare`, by clocks that nobody has compared; and the pipeline."""
    modified = F.unix_micros("last_modified") - UNMEASURED.ahead
    unknown = F.lit(Category.MISSING.value)
    if remembered.forgotten_before:
        forgotten = modified <= remembered.forgotten_before + SURE
        unknown = F.when(forgotten, Category.BEYOND_MEMORY.value).otherwise(unknown)
    if remembered.existing_before is not None:
        second = F.when(modified % 1_000_000 == 0, 999_999).otherwise(0)  # as `listing.latest`
        before = modified + second < remembered.existing_before
        unknown = F.when(before, Category.BEFORE_BEGINNING.value).otherwise(unknown)
    pipeline = F.col("known_pipeline")
    if overwrites:
        done = (F.col("plain_known_state") == ShardState.DONE.value) & _mark("plain_").isNull()
        read = F.coalesce(done & ~_is_changed("plain_", modified, 0), F.lit(False))
        unknown = F.when(read, Category.PUBLISHED.value).otherwise(unknown)
        read = read & F.col("known_shard_key").isNull()
        pipeline = F.when(read, F.col("plain_known_pipeline")).otherwise(pipeline)
    category = (
        F.when(F.col("shard_key").isNull(), Category.LEFT_OUT.value)
        .when(F.col("known_shard_key").isNull(), unknown)
        .when(F.col("known_state") == ShardState.QUARANTINED.value, Category.QUARANTINED.value)
        .when(F.col("known_state") != ShardState.DONE.value, Category.WAITING.value)
        .when(_mark("").isNotNull(), _mark(""))
        .when(_is_changed("", modified, UNMEASURED.accuracy), Category.CHANGED.value)
        .otherwise(Category.PUBLISHED.value)
    )
    return category, pipeline


def _mark(before: str) -> Column:
    """What a shard that is done is instead of published, or null."""
    pending, found = F.col(f"{before}known_pending"), F.lit(None).cast("string")
    for mark, category in UNPUBLISHED_BY_MARK.items():
        found = F.when(pending == mark, category.value).otherwise(found)
    return found


def _is_changed(before: str, modified: Column, accuracy: int) -> Column:
    size, etag, ended = (F.col(f"{before}known_{name}") for name in ("size", "etag", "finished_at"))
    resized = F.coalesce(F.col("size") != size, F.lit(False))
    later = modified > F.unix_micros(ended) + accuracy
    return F.when(F.col("etag").isNotNull() & etag.isNotNull(), F.col("etag") != etag).otherwise(resized | later)


def _listing(spark: SparkSession, listing: DataFrame | str, options: ListingOptions) -> tuple[DataFrame, datetime]:
    """The objects with the columns of `_LISTING`, and up to when they are known."""
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
    """Runs in tasks: each number is a file of the inventory."""
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
    """Runs in tasks: the key of the shard that each object would be, by the reader's own code; null for none."""
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
            arrays = [
                (times if field.name == "last_modified" else batch.column(field.name)).cast(field.type)
                for field in schema
                if field.name in _LISTED
            ]
            arrays += [pa.array(values, pa.binary()) for values in (keys, plain)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return add


def _aware(time: datetime | None) -> datetime | None:
    return time.replace(tzinfo=timezone.utc) if time is not None and time.tzinfo is None else time
