"""`format("cuesqueue")`: the one entry by which Spark reaches source, sink and views.

Spark builds it in the reader process, the planning process, and for look-ups. It is imported without pyarrow: where
the Python of Spark's workers has none, Spark would print a trace of 300 lines before the error that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from queue_source.common.logs import one_line_errors, our_errors
from queue_source.errors import OptionError
from queue_source.options import (
    check_declared,
    parse_reader_options,
    parse_sink_options,
    parse_view_options,
)
from queue_source.queues import register_queues


class CuesqueueSource(DataSource):
    """Found by Spark through `pyspark_cuesqueue`; built in many processes, so it only parses options when asked.

    A subclass with another `name()`, given to `spark.dataSource.register`, brings queues of your own along.

    Attributes:
        queues: Scheme of a URL -> what makes such queues, as for `register_queue`. Spark pickles it with the class.
    """

    queues: ClassVar[Mapping[str, Callable[..., object]]] = {}

    @classmethod
    def name(cls) -> str:
        return "cuesqueue"

    @one_line_errors()
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        register_queues(self.queues)
        self._inferred = False
        self._has_given_columns = False
        names = {name.lower() for name in options}
        if _OF_A_TABLE in names:
            raise OptionError("OPTIONS", f"of a table reach no reader: {_TABLE}")
        # Spark does not say whether the options are a reader's, and a sink may have a queueUrl too
        says_content = bool(names & {"fileformat", "cloudfiles.format", "content"})
        is_sink = "path" in names or "checkpointlocation" in names or ("pipeline" in names and not says_content)
        if (says_content or names & _READS) and not is_sink:
            parse_reader_options(options)  # refuse wrong options as early as Spark asks: before anything is received

    @one_line_errors()
    def schema(self) -> StructType:
        """Return the schema where the user gave none: views and messages have theirs, others are inferred and kept."""
        self._has_given_columns = True
        if _READS & {name.lower() for name in self.options}:
            from queue_source.read.fixed_rows import default_columns
            from queue_source.spark.process import spark_schema

            options = parse_reader_options(self.options)
            if (columns := default_columns(options.content)) is not None:
                return spark_schema(columns)
            from queue_source.schema.sampling import inferred_schema

            self._inferred = True  # pickled after this call, and so known to the readers
            return spark_schema(inferred_schema(options))
        from queue_source.spark.views import view_schema

        return view_schema(parse_view_options(self.options))

    @our_errors()  # without `one_line_errors`: Spark's process fails by its own `reader.stop()`, and the trace has ours
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        register_queues(self.queues)  # again: Spark unpickles this object in other processes, and calls no __init__
        if not self.options:
            raise OptionError("queueUrl", f"is not given, nor is any other option: {_TABLE}")
        options = parse_reader_options(self.options)
        if not self._inferred:
            check_declared(options.content.schema)
        from queue_source.spark.reader import CuesqueueStreamReader

        return CuesqueueStreamReader(options, schema)

    @one_line_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from queue_source.spark.writer import CuesqueueStreamWriter

        if overwrite:
            raise OptionError(
                "outputMode",
                "= complete gives all results with each batch, and what this sink has published never changes; replace "
                "them in foreachBatch with cuesqueue.delivery, or write append with a watermark",
            )
        register_queues(self.queues)
        return CuesqueueStreamWriter(parse_sink_options(self.options), schema, self.queues)

    @one_line_errors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse a batch: it has no plan to be published with, and could be repeated."""
        raise OptionError(
            "format",
            "cuesqueue is written by streams alone (writeStream, or a sink of Declarative Pipelines), not by write, "
            "INSERT or CREATE TABLE AS SELECT; see docs/how-to/sql.md",
        )

    @one_line_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        from queue_source.spark.views import CuesqueueViewReader

        if not (self.options or self._has_given_columns):  # a table, whose own options may have named another store
            raise OptionError("storeUrl", f"is not given, nor is any other option: {_TABLE}")
        return CuesqueueViewReader(parse_view_options(self.options), schema)


_OF_A_TABLE = "provider"
"""What Spark adds to the options of `CREATE TABLE` when it asks for columns (seen with 4.3)."""
_TABLE = (
    "Spark gives the OPTIONS of a table to nothing that reads it. Create the table with its columns and without "
    "OPTIONS, and write them where it is read, as in SELECT * FROM STREAM orders WITH (queueUrl = 'sqs://orders', "
    "...); see docs/how-to/sql.md"
)
_READS = {"queueurl", "cloudfiles.queueurl", "backfillprefixes"}
"""Names of options that say what a stream reads from, in small letters."""
