"""All options of `df.writeStream.format("cuesqueue")` and of the batch views, as frozen groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from queue_source.common.columns import PartitionField
from queue_source.options import types
from queue_source.options.connections import StorageOptions, store_url
from queue_source.options.content import FILE_FORMATS, INFERRED_FORMATS, NOT_READ, ContentOptions, LogOptions
from queue_source.options.declaring import OnChange, Rule, excludes, only_with, option
from queue_source.options.types import Secret, SecretUrl

OF_ICEBERG = only_with(
    "table", problem="acts only on an Iceberg table; name it with the option table, or leave this out"
)
LOADED = only_with(
    "load",
    problem="acts in a sink only with load, by which it reads objects itself; set load to their format, or leave this "
    "out here: rows are read as the reader's options say",
    even_default=True,
)
_OF_PAST = only_with("view=data|splits", problem="acts only on the views data and splits, not on {view}; leave it out")
# "data", and the keys of `shard_store.operators.views.VIEWS`, which loads SQLAlchemy: executors read options without it
_VIEWS = ("data", "splits", "shards", "attempts", "errors", "cleanings", "files_state", "completeness")


def _one_place(*others: str) -> tuple[Rule, ...]:
    return excludes(*others, problem="cannot be given beside '{other}': rows go to one place; leave one of them out")


@dataclass(frozen=True, slots=True)
class TableOptions:
    """An Iceberg table: in the catalog in the store's database, or in another one, which `properties` describe."""

    TITLE: ClassVar = "Iceberg table"
    ON_CHANGE: ClassVar = OnChange.DELIVERED

    # fmt: off
    name: str = option("table", types.TABLE, example="db.events",
        help="Iceberg table that the rows are appended to; created if it does not exist.")
    warehouse: str | None = option(
        "warehouse", types.PATH, example="s3://lake/warehouse", note="the catalog's", rules=OF_ICEBERG,
        help="Folder of a table that is yet to be created; also the argument of `start()`.")
    partition_by: tuple[PartitionField, ...] = option(
        "partitionBy", types.PARTITIONING, "", example="day(ts), bucket(16, id), country",
        rules=only_with("table", "delta", problem="acts only on a table; name it with the option table or delta, or "
        "leave this out"),
        help="Partitioning of a table that is yet to be created; an existing table must have it. A Delta table takes "
        "columns alone.")
    register: str | None = option("register", types.NON_EMPTY, example="uri", note="none: the rows are written",
        rules=OF_ICEBERG + excludes("load", problem="leaves the objects where they are, and load copies their rows; "
        "keep one of them"),
        help="Column with URIs of Parquet objects, which become data files [where they "
        "are](../how-to/iceberg.md#register-parquet-objects-where-they-are).")
    on_unregistrable: str = option("onUnregistrable", types.choice("error", "fail"), "error", example="fail",
        rules=only_with("register", problem="acts only with register; set register to the column with the objects' "
        "URIs, or leave this out"),
        help="An object that cannot become a data file is quarantined, or fails the query.")
    catalog: str = option("catalog", types.NAME, "cuesqueue", help="Name of the catalog.", example="lake")
    properties: Mapping[str, Secret] = option("catalog.*", types.SECRET, note="the catalog in the store's database",
        help="Properties of a catalog elsewhere, as PyIceberg knows them: `catalog.type`, `catalog.uri`, "
        "`catalog.credential` ...")
    # fmt: on


@dataclass(frozen=True, slots=True)
class DeltaOptions:
    """A Delta Lake table; `partition_by` are the columns of the option `partitionBy`."""

    TITLE: ClassVar = "Delta table"
    ON_CHANGE: ClassVar = OnChange.DELIVERED

    partition_by: tuple[str, ...]
    # fmt: off
    uri: str = option("delta", types.PATH, example="s3://lake/orders", rules=_one_place("table"),
        help="Folder of the [Delta Lake table](../how-to/delta.md) that the rows are appended to; created if it does "
        "not exist.")
    # fmt: on


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Objects that the sink's tasks read themselves: no row of theirs goes through Spark.

    Attributes:
        content: How they are read, as a reader's options say it.
        columns: DDL; None where the columns are inferred, or the table's.
        cutting: Option -> text, of those by which a reader cuts objects into parts (`places.WHILE_PARTLY_READ`).
    """

    TITLE: ClassVar = "Loading objects"
    ON_CHANGE: ClassVar = OnChange.READ

    content: ContentOptions
    cutting: Mapping[str, str]
    # fmt: off
    format: str | None = option(
        "load", types.choice(*FILE_FORMATS, refused=NOT_READ), example="json", note="none: the rows are written",
        rules=excludes("queueUrl", problem="writes tables and files, and queueUrl sends messages; leave one of them "
        "out"),
        help="Format of the objects that the rows name, which the sink's tasks [read and write without "
        "rows](../how-to/load.md). The reader's options of [content](#content), [formats](#file-formats) and "
        "[inferred schemas](#inferred-schemas) act here too.")
    columns: str | None = option(
        "schema", types.COLUMNS, example="id BIGINT, name STRING", note="the inferred ones, or the table's",
        required="is needed to load objects into a folder: declare the columns, as in 'id BIGINT, name STRING', or set "
        "schemaLocation to a folder, where the columns that are inferred are kept",
        when=(f"load={'|'.join(INFERRED_FORMATS)}",), unless=("table", "delta", "schemaLocation"), rules=LOADED,
        help="Columns of the objects.")
    max_attempts: int = option("maxAttempts", types.number(1, 1000), "3", example="5", rules=LOADED,
        help="As the reader's.")
    # fmt: on


@dataclass(frozen=True, slots=True)
class TargetQueue:
    """The queue that a sink sends to; `connections` as in `QueueOptions`."""

    TITLE: ClassVar = "Sending"
    ON_CHANGE: ClassVar = OnChange.DELIVERED

    connections: Mapping[str, Mapping[str, Any]]
    # fmt: off
    url: SecretUrl = option(
        "queueUrl", types.QUEUE_URL, example="sqs://orders", rules=_one_place("table", "delta", "path"),
        help="Queue that receives the rows as messages.")
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All options of one sink. Rows go to one of `path`, `table`, `delta` and `queue`; the others are "" or None.

    Attributes:
        pipelines: A query that joins or unions sources has several; its rows are recorded under the first.
        path: A URI or an absolute local path, without a slash at its end.
        load: None where the rows are what is written.
    """

    TITLE: ClassVar = "Pipeline, store and files"
    ON_CHANGE: ClassVar = OnChange.DELIVERED

    storage: StorageOptions
    table: TableOptions | None
    delta: DeltaOptions | None
    queue: TargetQueue | None
    load: LoadOptions | None
    logs: LogOptions
    # fmt: off
    pipelines: tuple[str, ...] = option("pipeline", types.PIPELINES, example="orders",
        required="name the pipeline whose progress is published with the rows, as in the reader's option pipeline",
        help="The reader's `pipeline`, whose progress is published with the rows; of a query over several sources, "
        "all of them.",
        on_change="As the reader's `pipeline`.")
    store: SecretUrl = store_url()
    path: str = option(
        "path", types.PATH, example="s3://lake/orders", note="required, or `table`, `delta` or `queueUrl`",
        required="name the folder of the data files, here or in start(), or an Iceberg table in option 'table', or the "
        "folder of a Delta table in option 'delta', or the queue that receives the rows in option 'queueUrl'",
        unless=("table", "delta", "queueUrl"), rules=_one_place("delta"),
        help="Folder of the data files; also the argument of `start()`. [A relative "
        "path](../how-to/clusters.md#relative-paths) counts from the folder in which Spark was started.")
    compression: str = option(
        "compression", types.choice("zstd", "snappy", refused={"gzip": "", "lz4": "", "none": ""}), "zstd",
        example="snappy",
        help="Compression of the Parquet files.")
    # fmt: on


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """All options of a batch view. `pipeline` and `source` are filters, None for all; of the last two one is given."""

    TITLE: ClassVar = "View and store"

    storage: StorageOptions
    store: SecretUrl = store_url()
    # fmt: off
    view: str = option("view", types.choice(*_VIEWS), "data", example="shards",
        help="What is read: the published rows, or a table of the store.")
    pipeline: str | None = option(
        "pipeline", types.NAME, help="Only what belongs to this pipeline.", example="orders", note="all")
    source: str | None = option(
        "source", types.NAME, help="Only what belongs to this source.", example="orders", note="all")
    as_of: datetime | None = option("asOf", types.TIME, example="2026-11-20T08:30:00Z", note="now", rules=_OF_PAST,
        help="Only what was published at this time (`data`, `splits`).")
    as_of_attempt: str | None = option("asOfAttempt", types.DELIVERY_HASH, note="the last one",
        rules=excludes("asOf", problem="and asOf both say which past is meant; keep one of them") + _OF_PAST,
        help="Only what was published by this attempt and those before it (`data`, `splits`).")
    # fmt: on
