"""The process of a job under proof: `python -m cuesqueue_prove.inside JOB ARGUMENT...` runs its script unchanged.

Replaced before it are methods of PySpark: the options of a reader and of a sink lead to a queue, a store, objects and
files in the run's folder, small batches are read until nothing is left, and what is started is noted.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
import uuid
from inspect import isfunction, signature
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.datasource import DataSourceRegistration
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from cuesqueue import OptionError, open_queue, queue_name
from cuesqueue_prove.effects import Effects, replace
from cuesqueue_prove.folder import SETTINGS, Journal, Places, Settings
from cuesqueue_prove.runs import end_with_parent, write_python
from cuesqueue_prove.samples import Form, makers
from queue_source.options import ReaderOptions, parse_reader_options, parse_sink_options
from queue_source.options.places import READER, given_texts

_LEFT_OUT = re.compile(
    r"(aws|s3|sqs|gcp|azure|azurequeue|cleansource)(\.|$)|backfill|includeexisting|routes$|uripath|"
    r"bucketpath|keypath|pathrewrites|fullpathglob|startingoffsets|queueshares|errorqueue|onunrouted|notificationformat",
    re.IGNORECASE,
)
"""Options that only a real queue or bucket needs, or another form of message."""
_TIMES = {"waitTime": "1s", "visibilityTimeout": "1m", "commitTimeout": "20s", "receiveThreads": "1"}
_SPARK = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
}
_OF_START = ("format", "outputMode", "partitionBy", "queryName")
_NO_JDBC = "cuesqueue prove cannot lead a write by JDBC to another database; write by SQLAlchemy"
_METHODS = [(name, method) for name, method in vars(DataFrameWriter).items() if isfunction(method)]
_PATH_WRITERS = [name for name, method in _METHODS if "path" in signature(method).parameters]
"""`save`, and one for each format."""
_SEEN = ("", *_PATH_WRITERS, "delta", "iceberg", "avro", "cuesqueue", "foreach", "console", "memory", "noop")
"""Sinks that write to a path, to a table of a catalog in the folder, or nowhere."""
_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"


class Job:
    """Replaces methods of PySpark in this process."""

    def __init__(self, settings: Settings, journal: Journal) -> None:
        self._settings = settings
        self._journal = journal
        self._places = Places(settings.root)
        self._effects = Effects(settings, journal, self._places)
        self._open_queue = open_queue  # as it is before it is watched
        self._own_sinks: set[str] = set()  # data sources that the job has written in Python
        self._pipelines: dict[str, str] = {}  # columns of a reader, with their numbers -> its pipeline

    def watch(self) -> None:
        self._effects.watch()
        self._watch_sessions()
        self._watch_readers()
        self._watch_writers()
        self._watch_batch_writers()
        self._watch_statements()

    def _watch_sessions(self) -> None:
        original = SparkSession.Builder.getOrCreate
        own = {**_SPARK, "spark.local.dir": str(self._settings.root / "spark")}
        own["spark.pyspark.python"] = write_python(
            self._settings.root, os.environ.get("PYSPARK_PYTHON", sys.executable)
        )
        own["spark.sql.warehouse.dir"] = str(self._settings.root / "spark-warehouse")

        def get_or_create(builder: Any) -> SparkSession:
            for name, value in own.items():
                builder.config(name, value)
            os.environ["PYSPARK_PYTHON"] = own["spark.pyspark.python"]  # the job may have set it
            session = original(builder)
            lead_catalogs(session.conf, self._places, self._settings.allowed)
            return session

        def register(registration: Any, source: Any) -> None:
            self._own_sinks.add(source.name().lower())
            original_register(registration, source)

        original_register = DataSourceRegistration.register
        replace(SparkSession.Builder, getOrCreate=get_or_create)
        replace(DataSourceRegistration, register=register)

    # readers

    def _watch_readers(self) -> None:
        kept = {name: getattr(DataStreamReader, name) for name in ("schema", "load")} | _remember(DataStreamReader)

        def schema(reader: Any, schema: Any) -> Any:
            _remembered(reader)["schema"] = schema
            return kept["schema"](reader, schema)

        def load(reader: Any, path: Any = None, format: Any = None, schema: Any = None, **more: Any) -> Any:
            if format is not None:
                reader.format(format)
            if schema is not None:
                reader.schema(schema)
            reader.options(**more)
            own = _remembered(reader)
            if own["format"] != "cuesqueue":
                return kept["load"](reader, path)
            changed = self.reader_options(own["options"])
            reader._jreader = reader._spark._jsparkSession.readStream()  # the only way to take an option back
            kept["format"](reader, own["format"])
            if "schema" in own:
                kept["schema"](reader, own["schema"])
            for name, value in changed.items():
                kept["option"](reader, name, value)
            rows = kept["load"](reader)
            self._pipelines |= dict.fromkeys(_leaves(rows), changed["pipeline"])
            return rows

        replace(DataStreamReader, schema=schema, load=load)
        self._watch_views()

    def _watch_views(self) -> None:
        kept = {"load": DataFrameReader.load} | _remember(DataFrameReader)

        def load(reader: Any, path: Any = None, format: Any = None, schema: Any = None, **more: Any) -> Any:
            if format is not None:
                reader.format(format)
            own = _remembered(reader)
            if own["format"] == "cuesqueue":
                reader.options(**more)
                more, names = {}, {name.lower(): name for name in own["options"]}
                if (name := names.get("storeurl", names.get("store"))) is not None:
                    kept["option"](reader, name, self._places.database(own["options"][name]))
            return kept["load"](reader, path, schema=schema, **more)

        replace(DataFrameReader, load=load)

    def reader_options(self, written: dict[str, str]) -> dict[str, str]:
        """Return the options of the reader with everything in the run's folder, and make its data."""
        own = {name: text for name, text in written.items() if not name.lower().startswith("kafka.")}
        texts = {name: text for name, text in given_texts(READER, own).items() if not _LEFT_OUT.match(name)}
        parsed = parse_reader_options(texts)
        if not parsed.queue.urls:
            raise OptionError("queueUrl", "is needed by cuesqueue prove: it announces the made objects by a queue")
        urls = [url.reveal() for url in parsed.queue.urls]
        queues = [self._places.queue(queue_name(url)) for url in urls]
        texts |= _TIMES | {
            "queueUrl": ",".join(queues),
            "storeUrl": self._places.database(parsed.store.reveal()),
            "source": parsed.source,
            "pipeline": parsed.pipeline,
            "maxFilesPerTrigger": str(min(parsed.batches.max_files_per_trigger, self._settings.batch)),
        }
        if parsed.content.kind.is_announced:
            texts["allowedPrefixes"] = f"{self._places.objects.as_uri()}/"
        if "schemaLocation" in texts:
            texts["schemaLocation"] = self._places.path(texts["schemaLocation"])
        self._journal.note(
            "reader",
            pipeline=parsed.pipeline,
            source=parsed.source,
            store=texts["storeUrl"],
            queues=queues,
            semantics=parsed.delivery.delivery_semantics,
        )
        for url, queue in zip(urls, queues, strict=True):
            self._make(queue_name(url), queue, parsed)
        return texts

    def _make(self, name: str, queue_url: str, parsed: ReaderOptions) -> None:
        """Make the objects of a queue, and announce them; in the first process of the run alone."""
        made = self._settings.root / "prove" / f"made-{re.sub(r'[^A-Za-z0-9._-]', '-', name)}.json"
        if made.exists():
            return
        samples = [Path(file) for file in self._settings.samples]
        written = parsed.content.format
        suffix = next((part for part in samples[0].suffixes if part not in (".gz", ".zst", ".bz2")), ".json")
        kind = suffix.removeprefix(".") if written is None else written.file_format
        form = Form(kind) if written is None else Form(kind, written.sep, written.header)
        own = makers(samples, form, self._settings.key or None)
        keys: dict[str, str] = {}
        sent: list[bytes | str] = []
        folder = self._places.objects / name.replace("/", "-")
        folder.mkdir(parents=True, exist_ok=True)
        uris = []
        for number in range(self._settings.objects):
            made_object = own[number % len(own)].make(number)
            if not parsed.content.kind.is_announced:
                lines = made_object.body.splitlines() if kind in ("json", "text") else [made_object.body]
                sent += [line for line in lines if line.strip()]
                keys |= dict.fromkeys(made_object.keys, f"message {number + 1}")
                continue
            file = folder / made_object.name
            file.write_bytes(made_object.body)
            uris.append(file.as_uri())
            sent += [file.as_uri()] * (2 if number % 3 == 0 else 1)  # a queue announces some twice
            keys |= dict.fromkeys(made_object.keys, file.as_uri())
        with self._open_queue(queue_url) as queue:
            queue.send(sent, tag=self._settings.tag)
        made.write_text(json.dumps({"queue": queue_url, "uris": uris, "keys": keys, "key": own[0].key}), "utf-8")

    # sinks

    def _watch_writers(self) -> None:
        kept = {name: getattr(DataStreamWriter, name) for name in ("trigger", "foreachBatch")}
        kept |= _remember(DataStreamWriter)

        def foreach_batch(writer: Any, function: Any) -> Any:
            own = _remembered(writer)
            own["function"] = getattr(function, "__qualname__", type(function).__qualname__)
            return kept["foreachBatch"](writer, self._effects.watched_function(function, own))

        original_foreach = DataStreamWriter.foreach

        def foreach(writer: Any, function: Any) -> Any:
            _remembered(writer)["format"] = "foreach"
            return original_foreach(writer, function)

        def starting(method: str, first: str) -> Any:
            original = getattr(DataStreamWriter, method)

            def start(writer: Any, *arguments: Any, **more: Any) -> Any:
                own, more = _remembered(writer), {**dict(zip((first, *_OF_START), arguments, strict=False)), **more}
                target, of_start = more.pop(first, None), {name: more.pop(name, None) for name in _OF_START}
                if (source := of_start.pop("format")) is not None:
                    writer.format(source)
                writer.options(**{name: value for name, value in more.items() if value is not None})
                self._refuse_unseen(own["format"])
                self._set_checkpoint(writer, own["options"], of_start["queryName"] or own["name"])
                path, changed = self.writer_options(own["format"], own["options"], None if first != "path" else target)
                for name, value in changed.items():
                    kept["option"](writer, name, value)
                kept["trigger"](writer, availableNow=True)
                self._note_query(writer, own, {**own["options"], **changed}, path or target)
                return original(writer, path if first == "path" else target, **of_start)

            return start

        original_name = DataStreamWriter.queryName

        def query_name(writer: Any, name: str) -> Any:
            _remembered(writer)["name"] = name
            return original_name(writer, name)

        start, to_table = starting("start", "path"), starting("toTable", "tableName")
        replace(DataStreamWriter, start=start, toTable=to_table, foreachBatch=foreach_batch)
        replace(DataStreamWriter, foreach=foreach, queryName=query_name)
        replace(DataStreamWriter, trigger=lambda writer, **_: writer)

    def _set_checkpoint(self, writer: Any, written: dict[str, str], name: str) -> None:
        """Give the query the checkpoint that it has by a setting of the session, so that it is led elsewhere, too."""
        session_wide = writer._spark.conf.get(_CHECKPOINTS, None)
        if session_wide and not any(option.lower() == "checkpointlocation" for option in written):
            writer.option("checkpointLocation", f"{session_wide.rstrip('/')}/{name or uuid.uuid4()}")

    def _refuse_unseen(self, kind: str) -> None:
        """Refuse a connector of Spark whose writes go elsewhere, and are not seen."""
        if kind.lower() not in (*_SEEN, *self._own_sinks, *self._settings.allowed):
            raise PermissionError(
                f"cuesqueue prove does not see where the sink {kind!r} writes; where that is a test system, say so "
                f"with --allow {kind}"
            )

    def writer_options(self, kind: str, written: dict[str, str], path: str | None) -> tuple[str | None, dict[str, str]]:
        """Return the path, and the options that are set anew: what the sink keeps is in the run's folder."""
        names = {name.lower(): name for name in written}
        changed = {
            names[name]: self._places.path(written[names[name]])
            for name in ("checkpointlocation", "path", "delta", "warehouse", "schemalocation")
            if name in names
        }
        if kind == "cuesqueue":
            if catalog := next((name for name in written if name.lower().startswith("catalog.")), None):
                raise OptionError(
                    catalog, "is of a catalog elsewhere, which cuesqueue prove cannot replace; leave it out"
                )
            if "queueurl" in names:
                raise OptionError("queueUrl", "of a sink is not compared by cuesqueue prove yet")
            parsed = parse_sink_options({**written, **({} if path is None else {"path": path})})
            store = names.get("storeurl", names.get("store", "storeUrl"))
            changed[store] = self._places.database(parsed.store.reveal())
        return None if path is None else self._places.path(path), changed

    def _note_query(self, writer: Any, own: dict[str, Any], options: dict[str, str], target: str | None) -> None:
        named = {name.lower(): text for name, text in options.items()}
        checkpoint = named.get("checkpointlocation", "")
        read = sorted({self._pipelines[leaf] for leaf in _leaves(writer._df) if leaf in self._pipelines})
        target = target or named.get("path") or named.get("table") or named.get("delta")
        signature = f"{own['format']}|{target}|{own['function']}|{','.join(read)}"
        own["query"] = checkpoint or own["function"] or target
        self._journal.note(
            "started",
            query=own["query"],
            checkpoint=checkpoint and str(_local(checkpoint).resolve()),
            format=own["format"] or ("foreachBatch" if own["function"] else "parquet"),
            function=own["function"],
            target=target,
            table=named.get("table", ""),
            delta=named.get("delta", ""),
            pipeline=named.get("pipeline", ""),
            store=named.get("storeurl", named.get("store", "")),
            signature=signature,
            where=self._effects.place_in_job(),
        )

    def _watch_batch_writers(self) -> None:
        def watched(name: str) -> Any:
            original = getattr(DataFrameWriter, name)

            def write(writer: Any, *arguments: Any, **named: Any) -> Any:
                if name == "jdbc":
                    raise PermissionError(_NO_JDBC)
                if name in _PATH_WRITERS and arguments and isinstance(arguments[0], str):
                    arguments = (self._places.path(arguments[0]), *arguments[1:])
                if name in _PATH_WRITERS and isinstance(named.get("path"), str):
                    named["path"] = self._places.path(named["path"])
                if name in ("saveAsTable", "insertInto") and arguments:
                    arguments = (self._places.table(arguments[0]), *arguments[1:])
                done = original(writer, *arguments, **named)
                self._effects.wrote(f"df.write.{name}")
                return done

            return write

        original_format = DataFrameWriter.format

        def format(writer: Any, source: str) -> Any:
            if source.lower() == "jdbc":
                raise PermissionError(_NO_JDBC)
            self._refuse_unseen(source)
            return original_format(writer, source)

        original_option = DataFrameWriter.option

        def option(writer: Any, key: str, value: Any) -> Any:
            return original_option(writer, key, self._places.path(value) if key.lower() == "path" else value)

        def options(writer: Any, **options: Any) -> Any:
            for name, value in options.items():
                option(writer, name, value)
            return writer

        replace(DataFrameWriter, format=format, option=option, options=options)
        for name in (*_PATH_WRITERS, "saveAsTable", "insertInto", "jdbc"):
            replace(DataFrameWriter, **{name: watched(name)})

    def _watch_statements(self) -> None:
        """Lead the paths of SQL that writes, and of writers of the second version, elsewhere."""
        original_sql, original_write_to = SparkSession.sql, DataFrame.writeTo

        def sql(session: Any, sqlQuery: str, *arguments: Any, **named: Any) -> Any:
            text = self._places.statement(sqlQuery)
            done = original_sql(session, text, *arguments, **named)
            if self._places.is_writing(sqlQuery):
                self._effects.wrote("spark.sql")
            return done

        def write_to(rows: Any, table: str) -> Any:
            writer = original_write_to(rows, self._places.table(table))
            for name in ("create", "replace", "createOrReplace", "append", "overwrite", "overwritePartitions"):
                setattr(writer, name, self._noting(getattr(writer, name), f"df.writeTo.{name}"))
            return writer

        replace(SparkSession, sql=sql)
        replace(DataFrame, writeTo=write_to)

    def _noting(self, method: Any, by: str) -> Any:
        def call(*arguments: Any) -> None:
            method(*arguments)
            self._effects.wrote(by)

        return call


def _remembered(owner: Any) -> dict[str, Any]:
    """Return what a reader or writer was given."""
    own: dict[str, Any] = owner.__dict__.setdefault(
        "_proved", {"format": "", "options": {}, "function": "", "name": ""}
    )
    return own


def _remember(kind: type) -> dict[str, Any]:
    """Let readers or writers remember their format and options; return the methods as they were."""
    kept = {name: getattr(kind, name) for name in ("format", "option")}

    def format(owner: Any, source: str) -> Any:
        _remembered(owner)["format"] = source.lower()
        return kept["format"](owner, source)

    def option(owner: Any, key: str, value: Any) -> Any:
        _remembered(owner)["options"][key] = str(value).lower() if isinstance(value, bool) else str(value)
        return kept["option"](owner, key, value)

    def options(owner: Any, **options: Any) -> Any:
        for name, value in options.items():
            option(owner, name, value)
        return owner

    replace(kind, format=format, option=option, options=options)
    return kept


def _leaves(rows: Any) -> list[str]:
    """Return what a query reads: the columns of each source, by the numbers that Spark gives them in one process."""
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()
    return [leaves.apply(place).output().mkString(",") for place in range(leaves.size())]


def lead_catalogs(settings: Any, places: Places, allowed: tuple[str, ...]) -> None:
    """Lead the files of the session's catalogs elsewhere; refuse those that another machine has."""
    parts: dict[str, dict[str, str]] = {}
    for key, value in settings.getAll.items():
        if key.startswith("spark.sql.catalog."):
            name, _, setting = key.removeprefix("spark.sql.catalog.").partition(".")
            parts.setdefault(name, {})[setting] = value
    for name, own in parts.items():
        kind, uri = own.get("type", "hadoop"), own.get("uri", own.get("url", ""))
        is_elsewhere = kind != "hadoop" or uri or "catalog-impl" in own
        if is_elsewhere and (urlsplit(uri).hostname or name) not in allowed:
            raise PermissionError(
                f"spark.sql.catalog.{name} is a catalog elsewhere, which cuesqueue prove cannot replace; where it is "
                f"a test system, say so with --allow {urlsplit(uri).hostname or name}"
            )
        if "warehouse" in own:
            settings.set(f"spark.sql.catalog.{name}.warehouse", places.path(own["warehouse"]))


def _local(path: str) -> Path:
    return Path(path.removeprefix("file://") if path.startswith("file://") else path.removeprefix("file:"))


def main() -> None:
    """Run the job's script as Python itself would."""
    settings = Settings.read(os.environ[SETTINGS])
    journal = Journal(settings.root)
    journal.start = sum(1 for _ in journal.entries("began")) + 1
    journal.note("began")
    end_with_parent()
    Job(settings, journal).watch()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(settings.job).parent)
    runpy.run_path(settings.job, run_name="__main__")


if __name__ == "__main__":
    main()
