"""All options of `df.writeStream.format("cuesqueue")`, as frozen groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from queue_source.options import types
from queue_source.options.columns import PartitionField
from queue_source.options.connections import StorageOptions
from queue_source.options.content import FILE_FORMATS, NOT_READ, ContentOptions
from queue_source.options.declaring import OnChange, option
from queue_source.options.reader import LogOptions, store_url
from queue_source.options.secrets import Secret, SecretUrl


@dataclass(frozen=True, slots=True)
class TableOptions:
    """An Iceberg table: in the catalog in the store's database, or in another one, which `properties` describe."""

    TITLE: ClassVar = "Iceberg table"
    ON_CHANGE: ClassVar = OnChange.DELIVERED

    # fmt: off
    name: str = option(
        "table", types.TABLE, example="db.events",
        help="Apache Iceberg table that the rows are appended to; created from their schema if it does not exist.",
    )
    warehouse: str | None = option(
        "warehouse", types.PATH, example="s3://lake/warehouse", note="the catalog's",
        help="Folder of a table that is yet to be created; also the argument of `start()`.",
    )
    partition_by: tuple[PartitionField, ...] = option(
        "partitionBy", types.PARTITIONING, "", example="day(ts), bucket(16, id), country",
        help="Partitioning of a table that is yet to be created; an existing table must have it. A Delta table takes "
        "columns alone, without transforms.",
    )
    register: str | None = option(
        "register", types.NON_EMPTY, example="uri", note="none: the rows are written",
        help="Column with the URIs of Parquet objects, which become [data files of the table where they are]"
        "(../how-to/iceberg-register.md). The rows are those of a reader with `content` = `reference`.",
    )
    on_unregistrable: str = option(
        "onUnregistrable", types.choice("error", "fail"), "error", example="fail",
        help="What happens to an object that cannot become a data file: `error` quarantines it with its cause, `fail` "
        "fails the query.",
    )
    catalog: str = option("catalog", types.NAME, "cuesqueue", help="Name of the catalog.", example="lake")
    properties: Mapping[str, Secret] = option(
        "catalog.*", types.SECRET, note="the catalog in the store's database",
        help="Properties of a catalog elsewhere, as PyIceberg knows them: `catalog.type`, `catalog.uri`, "
        "`catalog.credential` ...",
    )
    # fmt: on


@dataclass(frozen=True, slots=True)
class DeltaOptions:
    """A Delta Lake table; `partition_by` are the columns of the option `partitionBy`."""

    TITLE: ClassVar = "Delta table"
    ON_CHANGE: ClassVar = OnChange.DELIVERED

    partition_by: tuple[str, ...]
    # fmt: off
    uri: str = option(
        "delta", types.PATH, example="s3://lake/orders",
        help="Folder of the [Delta Lake table](../how-to/delta.md) that the rows are appended to; created from their "
        "schema if it does not exist. Needs the extra `delta`.",
    )
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
        help="Format of the objects that the rows name, which the sink's tasks [read and write without "
        "rows](../how-to/load.md), into `path` or a table. The rows are those of a reader with `content` = "
        "`reference`. The reader's options of [content](#content), [formats](#file-formats) and [inferred "
        "schemas](#inferred-schemas) act here too, and `maxAttempts`.",
    )
    columns: str | None = option(
        "schema", types.COLUMNS, example="id BIGINT, name STRING", note="the inferred ones, or the table's",
        help="Columns of the objects, as Spark's DDL. Without it they are inferred (`schemaLocation`), or those of the "
        "table.",
    )
    max_attempts: int = option(
        "maxAttempts", types.number(1, 1000), "3", example="5",
        help="As the reader's: how many tasks an object may kill, each while reading it alone, before it is "
        "quarantined; and how often an object is tried that its store refuses.",
    )
    # fmt: on


@dataclass(frozen=True, slots=True)
class TargetQueue:
    """The queue that a sink sends to; `connections` as in `QueueOptions`."""

    TITLE: ClassVar = "Sending"
    ON_CHANGE: ClassVar = OnChange.DELIVERED

    connections: Mapping[str, Mapping[str, Any]]
    # fmt: off
    url: SecretUrl = option(
        "queueUrl", types.QUEUE_URL, example="sqs://orders",
        help="Queue that receives the rows as messages, instead of files.",
    )
    # fmt: on


@dataclass(frozen=True, slots=True)
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
    pipelines: tuple[str, ...] = option(
        "pipeline", types.PIPELINES, example="orders",
        required="name the pipeline whose progress is published with the rows, as in the reader's option pipeline",
        help="The pipeline whose progress is published with the rows: the reader's `pipeline`. Of a query over "
        "several sources, all of them; rows are recorded under the first.",
        on_change="As the reader's `pipeline`.",
    )
    store: SecretUrl = store_url()
    path: str = option(
        "path", types.PATH, example="s3://lake/orders", note="required, or `table`, `delta` or `queueUrl`",
        help="Folder of the data files; also the argument of `start()`. A relative path counts from the "
        "folder in which Spark was started, and [is refused with Spark Connect](../how-to/clusters.md#relative-paths).",
    )
    compression: str = option(
        "compression", types.choice("zstd", "snappy", refused={"gzip": "", "lz4": "", "none": ""}), "zstd",
        example="snappy",
        help="Compression of the Parquet files.",
    )
    # fmt: on
