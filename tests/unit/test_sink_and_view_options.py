"""The options of the cuesqueue sink and of the batch views."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from queue_source.errors import OptionError
from queue_source.options import connection_options, parse_sink_options, parse_view_options


def refusal(options: dict[str, str], parse: Any) -> OptionError:
    with pytest.raises(OptionError) as caught:
        parse(options)
    assert repr(caught.value.option) in str(caught.value)
    return caught.value


def test_a_sink_needs_a_pipeline_and_a_path() -> None:
    options = parse_sink_options({"PIPELINE": "orders", "path": "s3://lake/orders/"})
    assert (options.pipelines, options.path, options.compression) == (("orders",), "s3://lake/orders", "zstd")
    assert "reader's option pipeline" in str(refusal({"path": "s3://lake"}, parse_sink_options))
    assert "start()" in str(refusal({"pipeline": "orders"}, parse_sink_options))


def test_a_relative_path_of_a_sink_counts_from_the_drivers_folder() -> None:
    options = parse_sink_options({"pipeline": "orders", "path": "out/"})
    assert options.path == str(Path.cwd() / "out")


def test_a_sink_takes_what_spark_adds_for_itself() -> None:
    given = {"pipeline": "orders", "path": "s3://lake"}
    assert parse_sink_options({**given, "checkpointlocation": "x", "queryname": "q"}) == parse_sink_options(given)


def test_a_sink_names_all_pipelines_of_its_query() -> None:
    options = parse_sink_options({"pipeline": "orders, payments", "path": "s3://lake"})
    assert options.pipelines == ("orders", "payments")


@pytest.mark.parametrize(
    ("option", "text"), [("compression", "gzip"), ("path", ""), ("pipeline", "a,,b"), ("pipeline", "a,b,a")]
)
def test_a_bad_value_of_a_sink_is_refused(option: str, text: str) -> None:
    error = refusal({"pipeline": "orders", "path": "s3://lake", option: text}, parse_sink_options)
    assert error.option == option


def test_registering_is_an_option_of_a_table() -> None:
    given = {"pipeline": "orders", "table": "db.events", "register": "uri"}
    table = parse_sink_options({**given, "onunregistrable": "FAIL"}).table
    assert table is not None
    assert (table.register, table.on_unregistrable) == ("uri", "fail")
    plain = parse_sink_options({"pipeline": "orders", "table": "db.events"}).table
    assert plain is not None
    assert (plain.register, plain.on_unregistrable) == (None, "error")
    assert (
        refusal({"pipeline": "orders", "path": "s3://lake", "register": "uri"}, parse_sink_options).option == "register"
    )
    alone = {"pipeline": "orders", "table": "db.events", "onUnregistrable": "fail"}
    assert "set register" in str(refusal(alone, parse_sink_options))
    elsewhere = {"pipeline": "orders", "path": "s3://lake", "onUnregistrable": "fail"}
    assert refusal(elsewhere, parse_sink_options).option == "onUnregistrable"
    assert refusal({**given, "onUnregistrable": "copy"}, parse_sink_options).option == "onUnregistrable"


def test_a_sink_that_loads_takes_the_zone_of_its_objects_and_one_that_writes_does_not() -> None:
    given = {"pipeline": "orders", "table": "db.events", "timeZone": "Europe/Berlin"}
    load = parse_sink_options({**given, "load": "json"}).load
    assert load is not None
    assert load.content.format is not None
    assert load.content.format.timezone == "Europe/Berlin"
    assert "only with load" in str(refusal(given, parse_sink_options))


def test_a_view_shows_the_data_of_all_pipelines_unless_told_otherwise() -> None:
    options = parse_view_options({})
    assert (options.view, options.pipeline, options.source) == ("data", None, None)
    options = parse_view_options({"view": "Shards", "source": "orders", "store": "sqlite:////a.db"})
    assert (options.view, options.source, options.store.reveal()) == ("shards", "orders", "sqlite:////a.db")


def test_an_unknown_view_is_refused_with_the_nearest() -> None:
    assert "did you mean 'shards'?" in str(refusal({"view": "shard"}, parse_view_options))


def test_a_view_may_be_of_the_past() -> None:
    noon = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
    for text in ("2026-11-20T12:00:00Z", "2026-11-20 12:00:00", "2026-11-20T13:00:00+01:00"):
        assert parse_view_options({"asOf": text}).as_of == noon
    assert parse_view_options({"asof": "2026-11-20"}).as_of == datetime(2026, 11, 20, tzinfo=timezone.utc)
    assert parse_view_options({"asOfAttempt": "AB" * 32, "view": "splits"}).as_of_attempt == "ab" * 32


@pytest.mark.parametrize(
    "options",
    [
        {"asOf": "yesterday"},
        {"asOfAttempt": "ab"},
        {"asOf": "2026-11-20", "view": "shards"},
        {"asOfAttempt": "ab" * 32, "view": "attempts"},
        {"asOfAttempt": "ab" * 32, "asOf": "2026-11-20"},
    ],
)
def test_a_past_that_there_is_not_is_refused(options: dict[str, str]) -> None:
    assert refusal(options, parse_view_options).option.startswith("asOf")


@pytest.mark.parametrize("parse", [parse_sink_options, parse_view_options])
def test_sink_and_views_reach_s3_with_the_readers_options(parse: Any) -> None:
    given = {"aws.region": "eu-central-1", "s3.endpointUrl": "http://minio:9000"}
    if parse is parse_sink_options:
        given |= {"pipeline": "orders", "path": "s3://lake"}
    options = parse(given)
    assert (options.storage.region, options.storage.endpoint) == ("eu-central-1", "http://minio:9000")
    assert "set both" in str(refusal({**given, "s3.accessKeyId": "k"}, parse))


def test_a_table_takes_the_path_for_its_warehouse_and_needs_neither() -> None:
    given = {"pipeline": "orders", "table": "db.events"}
    options = parse_sink_options(given)
    assert options.table is not None
    assert (options.path, options.table.name, options.table.catalog) == ("", "db.events", "cuesqueue")
    assert options.table.warehouse is None
    for name in ("path", "warehouse"):
        table = parse_sink_options({**given, name: "lake/"}).table
        assert table is not None
        assert table.warehouse == str(Path.cwd() / "lake")
    error = refusal({**given, "path": "s3://a", "warehouse": "s3://b"}, parse_sink_options)
    assert "keep one of them" in str(error)


def test_partitioning_is_read_in_icebergs_words_and_sparks() -> None:
    text = "day(ts), Hours(ts),bucket( 16,id ), truncate(4, a.b) , country, identity(x y)"
    table = parse_sink_options({"pipeline": "orders", "table": "db.events", "partitionBy": text}).table
    assert table is not None
    written = ["day(ts)", "hour(ts)", "bucket(16, id)", "truncate(4, a.b)", "country", "x y"]
    assert [str(field) for field in table.partition_by] == written


def test_a_delta_table_is_a_folder_partitioned_by_columns() -> None:
    given = {"pipeline": "orders", "delta": "lake/orders/"}
    options = parse_sink_options({**given, "partitionBy": "country, identity(day)"})
    assert options.delta is not None
    assert (options.path, options.table, options.queue) == ("", None, None)
    assert (options.delta.uri, options.delta.partition_by) == (str(Path.cwd() / "lake/orders"), ("country", "day"))
    assert "CAST(ts AS DATE)" in str(refusal({**given, "partitionBy": "day(ts)"}, parse_sink_options))


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"path": "s3://lake"}, "path"),
        ({"table": "db.events"}, "delta"),
        ({"queueUrl": "sqs://orders"}, "queueUrl"),
        ({"register": "uri"}, "register"),
        ({"warehouse": "s3://lake"}, "warehouse"),
        ({"catalog.type": "rest"}, "catalog.type"),
    ],
)
def test_a_delta_table_is_the_only_target_and_has_no_options_of_iceberg(more: dict[str, str], named: str) -> None:
    error = refusal({"pipeline": "orders", "delta": "s3://lake/orders", **more}, parse_sink_options)
    assert error.option == named


def test_partitioning_acts_only_on_a_table() -> None:
    error = refusal({"pipeline": "orders", "path": "s3://lake", "partitionBy": "a"}, parse_sink_options)
    assert (error.option, "option table or delta" in str(error)) == ("partitionBy", True)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("table", "events"),
        ("table", "db..events"),
        ("partitionBy", "bucket(id)"),
        ("partitionBy", "day(3, ts)"),
        ("partitionBy", "bucket(0, id)"),
        ("partitionBy", "week(ts)"),
        ("partitionBy", "a,,b"),
        ("partitionBy", "a, a"),
        ("partitionBy", "day(ts"),
    ],
)
def test_a_bad_value_of_a_table_is_refused(option: str, text: str) -> None:
    error = refusal({"pipeline": "orders", "table": "db.events", option: text}, parse_sink_options)
    assert error.option == option


@pytest.mark.parametrize("option", ["catalog.py-catalog-impl", "catalog.PY-IO-IMPL", "catalog.s3.retry-strategy-impl"])
def test_no_property_of_a_catalog_names_code(option: str) -> None:
    error = refusal({"pipeline": "orders", "table": "db.t", option: "os.system"}, parse_sink_options)
    assert (error.option, "names Python code" in error.problem) == (option, True)


@pytest.mark.parametrize("option", ["warehouse", "partitionBy", "catalog.uri"])
def test_an_option_of_a_table_without_one_is_refused(option: str) -> None:
    error = refusal({"pipeline": "orders", "path": "s3://lake", option: "x"}, parse_sink_options)
    assert error.option == option


def test_properties_of_a_catalog_are_kept_as_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIAL", "id:hush")
    shared = {"pipeline": "orders", "table": "db.events", "catalog.URI": "https://c", "catalog.token": "hush"}
    options = parse_sink_options(
        {**shared, "catalog.credential": "env:CREDENTIAL", "catalog.warehouse": "file:///lake"}
    )
    assert options.table is not None
    assert {name: value.reveal() for name, value in options.table.properties.items()} == {
        "uri": "https://c",
        "token": "hush",
        "credential": "id:hush",
        "warehouse": "file:///lake",
    }
    for name, text in (("catalog.credential", "id:hush"), ("catalog.URI", "postgresql://u:hush@h/db")):
        error = refusal({**shared, name: text}, parse_sink_options)
        assert ("env:NAME" in error.problem, "hush" in str(error)) == (True, False)
    assert "hush" not in f"{options!r} {options}"


def test_a_sink_writes_to_a_path_or_to_a_queue_and_never_to_both() -> None:
    url = "sql+postgresql://user:secret@host/db?queue=out"
    options = parse_sink_options({"pipeline": "orders", "queueUrl": url})
    assert (options.path, options.queue is not None and options.queue.url.reveal()) == ("", url)
    assert "secret" not in repr(options)
    assert parse_sink_options({"pipeline": "orders", "path": "s3://lake"}).queue is None
    error = refusal({"pipeline": "orders", "path": "s3://lake", "queueUrl": url}, parse_sink_options)
    assert "beside 'path'" in error.problem
    error = refusal({"pipeline": "orders", "queueUrl": "sqs://a,sqs://b"}, parse_sink_options)
    assert (error.option, "write the URL of one" in error.problem) == ("queueUrl", True)


def test_the_queue_of_a_sink_is_reached_with_the_options_of_a_readers_queue() -> None:
    given = {"pipeline": "orders", "queueUrl": "sqs://out", "aws.region": "eu-central-1", "sqs.endpointUrl": "http://e"}
    options = parse_sink_options(given)
    assert options.queue is not None
    found = connection_options(options.queue.url, options.queue)
    assert found == {"region": "eu-central-1", "endpoint_url": "http://e"}
    assert "set both" in str(refusal({**given, "sqs.accessKeyId": "k"}, parse_sink_options))
