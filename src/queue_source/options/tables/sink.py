"""What `df.writeStream.format("cuesqueue")` knows."""

from __future__ import annotations

from queue_source.options import kinds
from queue_source.options.kinds import choice
from queue_source.options.tables.access import QUEUE_ACCESS_OPTIONS, STORAGE_OPTIONS, STORE_OPTION
from queue_source.options.tables.entry import Option

SINK_OPTIONS = (
    STORE_OPTION,
    Option(
        "pipeline", "names", kinds.PIPELINES, None,
        "The pipeline whose progress is published with the rows: the reader's `pipeline`. For a query that joins or "
        "unions several sources, all of them; the rows are recorded under the first.", "orders", required=True,
    ),
    Option(
        "path", "files", kinds.GIVEN_TEXT, None,
        "Folder of the data files; also the argument of `start()`. A relative path counts from the driver's folder.",
        "s3://lake/orders", "required, or `table`, or `queueUrl`",
    ),
    Option(
        "compression", "files", choice("zstd", "snappy", refused=("gzip", "lz4", "none")), "zstd",
        "Compression of the Parquet files.", "snappy",
    ),
    Option(
        "table", "iceberg", kinds.TABLE, None,
        "Apache Iceberg table that the rows are appended to; made from their schema if it is not there.", "db.events",
        "none",
    ),
    Option(
        "warehouse", "iceberg", kinds.GIVEN_TEXT, None,
        "Folder of a table that is yet to be made; also the argument of `start()`.", "s3://lake/warehouse",
        "the catalog's",
    ),
    Option(
        "partitionBy", "iceberg", kinds.PARTITIONING, "",
        "Partitioning of a table that is yet to be made; an existing table must have it.",
        "day(ts), bucket(16, id), country",
    ),
    Option("catalog", "iceberg", kinds.NAME, "cuesqueue", "Name of the catalog.", "lake"),
    Option(
        "catalog.*", "iceberg", kinds.SECRET, None,
        "Properties of a catalog elsewhere, as PyIceberg knows them: `catalog.type`, `catalog.uri`, "
        "`catalog.credential` ...", "", "the catalog in the store's database",
    ),
    Option(
        "queueUrl", "sending", kinds.QUEUE_URL, None,
        "Queue that receives the rows as messages, instead of files.", "sqs://orders", "none",
    ),
    *STORAGE_OPTIONS,
    *QUEUE_ACCESS_OPTIONS,
)  # fmt: skip
