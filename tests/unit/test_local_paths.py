"""Relative paths in options: one folder for all processes of a query, or a refusal that says what to write."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from queue_source.common.local_paths import absolute_path, absolute_url
from queue_source.errors import BadObject, OptionError
from queue_source.options import parse_reader_options, parse_sink_options, parse_view_options
from queue_source.sinks.splits import write_split

READER = {
    "queueUrl": "sqs://files",
    "source": "files",
    "fileFormat": "json",
    "allowedPrefixes": "s3://landing/",
    "storeUrl": "postgresql://h/db",
}
SINK = {"pipeline": "files", "storeUrl": "postgresql://h/db"}
TABLE = {**SINK, "table": "db.events"}

RELATIVE: list[tuple[Callable[[Mapping[str, str]], object], dict[str, str], str, str]] = [
    (parse_reader_options, READER, "storeUrl", "sqlite:///cuesqueue.db"),
    (parse_reader_options, READER, "storeUrl", "sqlite:///file:cuesqueue.db?uri=true"),
    (parse_reader_options, READER, "queueUrl", "sqs://other, sql+sqlite:///jobs.db?queue=files"),
    (parse_reader_options, READER, "queueUrl", "sim://files?pool=p&dir=queues"),
    (parse_reader_options, READER, "errorQueueUrl", "sql+sqlite:///jobs.db?queue=errors"),
    (parse_reader_options, READER, "schemaLocation", "schemas"),
    (parse_reader_options, READER, "aws.secretAccessKey", "file:secret"),
    (parse_reader_options, READER, "gcp.credentialsFile", "key.json"),
    (parse_sink_options, SINK, "path", "published"),
    (parse_sink_options, SINK, "path", "./published/"),
    (parse_sink_options, SINK, "queueUrl", "sql+sqlite:///jobs.db?queue=out"),
    (parse_sink_options, SINK, "queueUrl", "sim://files?dir=queues"),
    (parse_sink_options, TABLE, "path", "warehouse"),
    (parse_sink_options, TABLE, "warehouse", "warehouse"),
    (parse_sink_options, TABLE, "catalog.uri", "sqlite:///catalog.db"),
    (parse_sink_options, {**TABLE, "catalog.uri": "sqlite:////catalog.db"}, "catalog.warehouse", "warehouse"),
    (parse_view_options, {}, "storeUrl", "sqlite:///cuesqueue.db"),
]


@pytest.mark.parametrize(("parse", "others", "name", "text"), RELATIVE)
def test_in_a_folder_of_a_spark_session_a_relative_path_is_refused_by_name(
    parse: Callable[[Mapping[str, str]], object],
    others: dict[str, str],
    name: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", "5d7ea307-9447-4b07-919b-7e20f1c9261c")
    with pytest.raises(OptionError, match=rf"option '{name}': .* is relative, and with Spark Connect it would count"):
        parse({**others, name: text})


def test_the_default_store_is_refused_there_with_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", "5d7ea307-9447-4b07-919b-7e20f1c9261c")
    with pytest.raises(OptionError) as refused:
        parse_view_options({})
    assert str(refused.value) == (
        "option 'storeUrl': 'sqlite:///cuesqueue.db' is relative, and with Spark Connect it would count from a "
        "temporary folder of the Spark session; write absolute paths or URIs in all options, as in "
        "sqlite:////data/cuesqueue.db"
    )


def test_absolute_paths_and_uris_are_taken_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", "5d7ea307-9447-4b07-919b-7e20f1c9261c")
    for path in ("/data/out", "file:///data/out", "s3://lake/out"):
        assert parse_sink_options({**SINK, "path": path}).path == path
    for url in ("sqlite:////data/a.db", "sqlite:///file:/data/a.db?uri=true", "postgresql://u@h/relative"):
        assert parse_view_options({"storeUrl": url}).store.reveal() == url
    for url in ("sql+sqlite:////data/jobs.db?queue=out", "sim://files?dir=/queues", "sim://files?dir=%2Fqueues"):
        sink = parse_sink_options({**SINK, "queueUrl": url})
        assert sink.queue is not None
        assert sink.queue.url.reveal() == url


def test_spark_says_default_where_processes_start_in_the_drivers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", "default")
    monkeypatch.chdir(tmp_path)
    assert parse_sink_options({**SINK, "path": "out"}).path == f"{tmp_path}/out"


def test_a_relative_path_in_a_container_of_yarn_is_refused_and_elsewhere_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = tmp_path / "container_17_0001_01_000001"
    container.mkdir()
    monkeypatch.setenv("CONTAINER_ID", container.name)
    monkeypatch.chdir(container)
    with pytest.raises(OptionError, match=r"option 'path': 'out' is relative, and the driver runs in a container"):
        parse_sink_options({**SINK, "path": "out"})
    monkeypatch.chdir(tmp_path)
    assert parse_sink_options({**SINK, "path": "out"}).path == f"{tmp_path}/out"


def test_a_folder_that_was_deleted_is_no_place_to_count_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(OptionError, match=r"option 'path': 'out' is relative, and the working folder .* deleted"):
        parse_sink_options({**SINK, "path": "out"})


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("out", "{here}/out"),
        (" ./a//b/ ", "{here}/a/b"),
        ("/data//out/", "/data/out"),
        ("/", "/"),
        ("file:/data/out/", "/data/out"),
        ("FILE:/data/out", "/data/out"),
        ("file:///data/out/", "file:///data/out"),
        ("FILE:///data/out/", "file:///data/out"),
        ("s3://lake/out/", "s3://lake/out"),
        ("../out", "{here}/../out"),
        ("a:b", "{here}/a:b"),
    ],
)
def test_a_folder_has_one_absolute_form(text: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_path(text) == path.format(here=tmp_path)


@pytest.mark.parametrize("text", ["dbfs:/lake/out", "s3:/lake/out", "hdfs:/out"])
def test_a_scheme_with_one_slash_is_no_folder_of_this_machine(text: str) -> None:
    """It was one: `./dbfs:/lake/out`."""
    with pytest.raises(OptionError, match=rf"option 'path': '{text}' has one slash after its scheme; write \w+://"):
        parse_sink_options({**SINK, "path": text})


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("sqlite:///a b.db?timeout=5", "sqlite:///{here}/a b.db?timeout=5"),
        ("sqlite+pysqlite:///x/../a.db", "sqlite+pysqlite:///{here}/a.db"),
        ("sqlite:///file:a.db?uri=true", "sqlite:///file:{here}/a.db?uri=true"),
        ("sql+sqlite:///a.db?queue=q#1", "sql+sqlite:///{here}/a.db?queue=q#1"),
        ("sim://s?dir=a+b&tags=x.*", "sim://s?dir={here}/a%20b&tags=x.*"),
        ("sim://s?pool=p&dir=a", "sim://s?pool=p&dir={here}/a"),
        ("sqlite:////data//x/./../a.db", "sqlite:////data/a.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("sqlite://", "sqlite://"),
        ("postgresql://u@h/sqlite:///a.db", "postgresql://u@h/sqlite:///a.db"),
        ("sqs://dir=a", "sqs://dir=a"),
    ],
)
def test_a_url_has_the_whole_path_of_its_file(
    url: str, whole: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_url(url) == whole.format(here=tmp_path)
    assert absolute_url(url, lambda: Path("/jvm")) == whole.format(here="/jvm")


def test_the_queue_of_errors_is_not_the_one_that_is_read_by_another_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    urls = {"queueUrl": "sql+sqlite:///jobs.db?queue=files"}
    with pytest.raises(OptionError, match=r"errorQueueUrl.* is the queue that is read"):
        parse_reader_options({**READER, **urls, "errorQueueUrl": f"sql+sqlite:///{tmp_path}/./jobs.db?queue=files"})


def test_a_readers_queue_keeps_its_name_which_messages_are_known_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = "sql+sqlite:///jobs.db?queue=files"
    (kept,) = parse_reader_options({**READER, "queueUrl": url}).queue.urls
    assert kept.reveal() == url


def test_no_data_file_is_written_under_a_relative_path_so_none_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = pa.record_batch({"id": [1]})
    with pytest.raises(BadObject, match="neither an absolute path nor a URI"):
        write_split([rows], rows.schema, "published", "split", "zstd")
    assert list(tmp_path.iterdir()) == []


def test_options_are_parsed_without_sqlalchemy_also_with_relative_paths() -> None:
    code = (
        "import sys; from queue_source.options import parse_view_options; parse_view_options({}); "
        "assert 'sqlalchemy' not in sys.modules"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(root / "src")})
