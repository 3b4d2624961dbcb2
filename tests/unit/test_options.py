"""What users write in `.option(...)` becomes frozen groups, or an error that names the option and the next step."""

from __future__ import annotations

import dataclasses
import os
import pickle
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import queue_source.queues
from queue_source.common.times import parse_pattern
from queue_source.errors import OptionError
from queue_source.options import (
    ContentOptions,
    ReaderOptions,
    SecretUrl,
    StorageOptions,
    connection_options,
    parse_reader_options,
    parse_sink_options,
    parse_view_options,
)
from queue_source.options.connections import SPARK_HIDES, with_secrets
from queue_source.options.declaring import Option
from queue_source.options.places import ALIASES, CANNOT, LISTING, MEANINGLESS, PLACES, READER, ROUTING, Place

LEAST = {"queueUrl": "sim://files", "source": "orders", "fileFormat": "csv", "allowedPrefixes": "s3://in/"}
SECRET = "n0t-t0-be-sh0wn"
NAMED = [option for option in READER.options if option.name != "kafka.*"]
"""All but those whose names librdkafka gives."""


def read(**more: str) -> ReaderOptions:
    return parse_reader_options({**LEAST, **{name.replace("__", "."): text for name, text in more.items()}})


def refusal(options: dict[str, str], parse: Any = parse_reader_options) -> OptionError:
    with pytest.raises(OptionError) as caught:
        parse(options)
    assert caught.value.__cause__ is None
    assert repr(caught.value.option) in str(caught.value)
    return caught.value


def test_the_defaults_are_those_of_the_design() -> None:
    options = read()
    assert (options.source, options.pipeline) == ("orders", "orders")
    assert options.store == SecretUrl(f"sqlite:///{Path.cwd()}/cuesqueue.db")
    assert options.queue.urls == (SecretUrl("sim://files"),)
    assert options.queue.max_in_flight_messages == 10_000
    assert options.queue.wait_time == timedelta(seconds=20)
    assert options.leases.visibility_timeout == timedelta(minutes=5)
    assert options.leases.heartbeat == timedelta(seconds=15)
    assert options.deduplication.deduplication_window == timedelta(days=30)
    assert options.deduplication.deduplication_max_shards is None
    assert options.batches.max_files_per_trigger == 1000
    assert options.batches.max_bytes_per_trigger is None
    assert options.batches.min_partitions >= 1
    assert options.batches.max_partition_bytes == 128 << 20
    assert options.notifications.allowed_prefixes == ("s3://in/",)
    assert options.content.on_missing_object == "quarantine"
    assert options.content.storage == StorageOptions()
    assert options.delivery.delivery_semantics == "exactly-once"
    assert options.delivery.fail_on_data_loss is True


def test_the_source_is_named_after_the_queue_and_the_pipeline_after_the_source() -> None:
    options = parse_reader_options({"queueUrl": "sim://files", "fileFormat": "json", "allowedPrefixes": "s3://in/"})
    assert (options.source, options.pipeline) == ("files", "files")
    assert read(pipeline="p").pipeline == "p"


def test_a_queue_whose_name_cannot_name_a_source_asks_for_the_option() -> None:
    error = refusal(
        {"queueUrl": "sql+sqlite:///jobs.db?queue=a/b", "fileFormat": "json", "allowedPrefixes": "s3://in/"}
    )
    assert error.option == "source"
    assert "set the option source" in error.problem


def test_several_queues_need_a_source_by_name() -> None:
    error = refusal({"queueUrl": "sim://a,sim://b", "fileFormat": "json", "allowedPrefixes": "s3://in/"})
    assert error.option == "source"
    assert "2 queues" in error.problem
    assert len(read(queueUrl="sim://a,sim://b").queue.urls) == 2


COMPANIONS = {
    "uriPath": {"notificationFormat": "json"},
    "bucketPath": {"notificationFormat": "json", "keyPath": "k"},
    "keyPath": {"notificationFormat": "json", "bucketPath": "b"},
    "queueShares": {"queueUrl": "sim://a,sim://b", "source": "orders"},
    "backfillPrefixes": {"allowedPrefixes": "s3://landing/"},
    "backfillInterval": {"backfillPrefixes": "s3://in/"},
    "backfillGrace": {"backfillPrefixes": "s3://in/"},
    "onUnroutedObject": {"routes": "/etc/cuesqueue/routes.json"},
    "cleanSource": {"allowedPrefixes": "s3://landing/in/", "cleanSource.moveDestination": "s3://landing/archive/"},
    "cleanSource.moveDestination": {"allowedPrefixes": "s3://landing/in/", "cleanSource": "move"},
    "cleanSource.retentionDuration": {"cleanSource": "delete"},
    "azure.clientSecret": {"azure.clientId": "c", "azure.tenantId": "t"},
}
"""What an option does not go without."""


@pytest.mark.parametrize("option", NAMED, ids=lambda option: option.name)
@pytest.mark.parametrize("change", [str, str.lower, str.upper])
def test_every_option_of_the_reader_acts_in_any_case(option: Option, change: Any) -> None:
    text = option.example or SECRET
    pairs = {"aws": "s3", "s3": "aws", "sqs": "sqs"}
    given = {**LEAST, **of_its_format(option), change(option.name): text}
    prefix, _, name = option.name.partition(".")
    if option.type.name == "secret" and prefix in pairs:  # a key needs its other half
        other = {"accessKeyId": "secretAccessKey", "secretAccessKey": "accessKeyId"}[name]
        given[f"{pairs[prefix]}.{other}"] = "other"
    if option.name in LEAST and change(option.name) != option.name:
        del given[option.name]
    given |= COMPANIONS.get(option.name, {})
    if option.name == "content":
        del given["fileFormat"]
    options = parse_reader_options(given)
    expected = option.type.parse(text)
    forms = [expected]
    if option.type.name == "secret":  # libraries want the text; the group does not show it
        forms.append(expected.reveal())
    leaves = list(_leaves(options))
    assert any(form in leaves for form in forms), f"{option.name} ended nowhere"
    if option.default is not None and option.name != "content":
        assert expected != option.type.parse(option.default), "the example has to differ from the default"


def of_its_format(option: Option) -> dict[str, str]:
    """A file format on which the option acts."""
    return {"fileFormat": option.formats[0]} if option.formats and "csv" not in option.formats else {}


def _leaves(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name))
    elif isinstance(value, dict):
        for part in value.values():
            yield from _leaves(part)
    else:
        yield value


BAD: dict[str, list[str]] = {
    "rewrites": ["s3://a/", "[]", '{"s3://a/": 1}', '{"": "s3://b/"}', '{"s3://a/": "dbfs:/b/"}', '{"a/": "s3://b"}'],
    "queue URLs": ["", "orders"],
    "queue URL": ["", "orders", "sqs://a,sqs://b"],
    "database URL": ["", "cuesqueue.db"],
    "name": ["", "a/b", "a,b", "x" * 201, "a\tb"],
    "choice": ["", "bogus"],
    "number": ["", "0", "-1", "1.5", "many", "9" * 30],
    "size": ["", "0", "-5m", "5 miles"],
    "duration": ["", "90", "-5m", "5 parsecs"],
    "boolean": ["", "yes", "1"],
    "character": ["ab", "\n", "\0", "§"],
    "time zone": ["", "Mars/Olympus", "Europe", "+25:00", "+18:01", "+02:60", "GMT+", "UTC+19", "../etc/passwd"],
    "character set": ["", "klingon", "hex", "rot13", "undefined"],
    "names": [",", "a,,b", "a,a"],
    "columns": ["", "id", "id BIGINTT", "id BIGINT, id INT", "a ARRAY<INT"],
    "domains": [",", "https://a.b/", "localhost"],
    "URIs": ["", "s3://a/,", "landing/1.json"],
    "prefixes": ["", "s3://a/,", ",", "landing/", "s3:/a/", "file://elsewhere/", "/a/../b/", "s3://b/../c/"],
    "path": ["", " "],
    "folder": ["", "landing/", "s3:/a/", "file://elsewhere/", "s3://b/../c/"],
    "tag filter": ["", "a,", "x" * 300],
    "glob": ["", "[a", "{a,b", "a\\"],
    "path glob": ["", "*.csv", "s3://b/[a"],
    "timestamp": ["", "yesterday", "2026-13-01", "2026-11-20T25:00:00", "2026-11-20T08:30:00 Mars/Olympus"],
    "shares": ["", "fair", "percentage:50,60", "percentage:100,0", "percentage:", "percentage:a,b"],
    "text": [""],
    "line end": [""],
    "keys": ["", " ", "a..b", ".", "Records."],
    "date pattern": ["", "dd.MM.", "yyyy-MMM-dd", "yyyy-MM-dd'T", "yyyy yyyy", "hh:mm a"],
    "secret": [""],
}


@pytest.mark.parametrize(
    ("option", "text"),
    [
        pytest.param(option, text, id=f"{option.name}={text[:20]!r}")
        for option in NAMED
        for text in BAD[option.type.name]
        if option.name not in ("nullValue", "emptyValue", "nanValue", "positiveInf", "negativeInf")  # any text is good
    ],
)
def test_every_bad_value_is_refused_with_the_option_and_the_next_step(option: Option, text: str) -> None:
    error = refusal({**LEAST, **of_its_format(option), option.name: text})
    assert error.option == option.name
    assert any(step in error.problem for step in ("write", "leave")), error.problem
    assert error.problem[-1] not in ".!"


@pytest.mark.parametrize(
    ("option", "text", "instead"),
    [
        ("fileFormat", "xml", "Spark's own reader"),
    ],
)
def test_a_value_that_is_known_elsewhere_is_refused_with_what_to_do_instead(
    option: str, text: str, instead: str
) -> None:
    assert f"is not supported; {instead}" in refusal({**LEAST, option: text}).problem


@pytest.mark.parametrize(
    ("written", "meant"),
    [("quueUrl", "queueUrl"), ("maxfilespertriger", "maxFilesPerTrigger"), ("aws.acessKeyId", "aws.accessKeyId")],
)
def test_an_unknown_name_gets_the_nearest_known_one(written: str, meant: str) -> None:
    error = refusal({**LEAST, written: SECRET})
    assert f"did you mean {meant!r}?" in str(error)
    assert SECRET not in str(error)


def test_a_name_like_no_other_is_sent_to_the_reference() -> None:
    assert "docs/reference/options.md" in str(refusal({**LEAST, "xyzzy": "1"}))


def test_an_option_of_another_place_is_sent_there() -> None:
    assert "belongs to writeStream, not to readStream" in str(refusal({**LEAST, "compression": "zstd"}))
    assert "belongs to readStream, not to read" in str(refusal({"fileFormat": "csv"}, parse_view_options))


@pytest.mark.parametrize("missing", ["queueUrl", "fileFormat", "allowedPrefixes"])
def test_a_missing_option_is_named_with_an_example(missing: str) -> None:
    error = refusal({name: text for name, text in LEAST.items() if name != missing})
    assert error.option == missing
    assert f".option({missing!r}, " in error.problem


def test_messages_need_no_allowed_prefixes_and_allow_none() -> None:
    assert parse_reader_options({"queueUrl": "sim://a", "content": "message"}).notifications.allowed_prefixes == ()


def test_cloudfiles_names_are_taken_where_the_meaning_is_equal() -> None:
    options = parse_reader_options(
        {
            "cloudfiles.queueurl": "sim://files",
            "source": "orders",
            "cloudFiles.format": "json",
            "cloudFiles.allowedPrefixes": "s3://in/",
            "cloudFiles.maxFilesPerTrigger": "7",
            "cloudFiles.fetchParallelism": "5",
            "cloudFiles.awsAccessKey": "key",
            "cloudFiles.awsSecretKey": SECRET,
        }
    )
    assert options.content.format is not None
    assert options.content.format.file_format == "json"
    assert options.batches.max_files_per_trigger == 7
    assert options.queue.receive_threads == 5
    assert options.content.storage.secret_key == SECRET


def test_every_alias_stands_for_an_option_of_the_table() -> None:
    assert set(ALIASES.values()) <= {option.name for option in READER.options}


@pytest.mark.parametrize("name", MEANINGLESS)
def test_what_has_no_effect_is_accepted_with_a_warning(name: str) -> None:
    with pytest.warns(UserWarning, match=f"(?i){name}.*no meaning"):
        assert parse_reader_options({**LEAST, name.lower(): "true"}) == read()


def test_globs_that_are_not_strict_are_refused_with_the_glob_to_write() -> None:
    error = refusal({**LEAST, "cloudFiles.useStrictGlobber": "FALSE"})
    assert "cannot be FALSE: globs are strict" in str(error)
    assert "/a/**/c/** for /a/*/c/, in fullPathGlobFilter" in str(error)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("schemaLocation", "/schemas"),
        ("schemaHints", "id BIGINT"),
        ("schemaSample", "s3://b/1"),
        ("schemaEvolutionMode", "failOnNewColumns"),
        ("rescuedDataColumn", "_rest"),
    ],
)
def test_what_is_about_columns_of_records_is_refused_where_a_record_is_one_column(option: str, text: str) -> None:
    least = {**LEAST, "fileFormat": "json", "singleVariantColumn": "v"}
    assert parse_reader_options(least).content.format.single_variant_column == "v"  # type: ignore[union-attr]
    error = refusal({**least, option: text})
    assert error.option == option
    assert "a record is one column, v; leave one of them out" in str(error)


def test_one_variant_column_is_refused_for_csv_with_the_function_that_makes_it() -> None:
    error = refusal({**LEAST, "fileFormat": "csv", "singleVariantColumn": "v"})
    assert "acts only on fileFormat json, but fileFormat is csv; leave it out; to have VARIANT" in str(error)


@pytest.mark.parametrize("place", [*PLACES, LISTING, ROUTING], ids=lambda place: place.call)
def test_what_an_option_needs_beside_it_names_options_and_values_that_there_are(place: Place) -> None:
    everywhere = {option.name: option for other in PLACES for option in other.options}
    for option in place.options:
        conditions = [*option.unless, *option.when, *(c for rule in option.rules for c in rule.conditions)]
        for name, sign, wanted in (part.partition("=") for c in conditions for part in c.split("&")):
            named = everywhere[name.removesuffix("!")]
            for value in wanted.split("|") if sign else ():
                assert value == "store" or named.type.parse(value) == value
        for name in re.findall(r"\{(\w+)\}", "".join(rule.problem for rule in option.rules)):
            assert name == "other" or name in everywhere


def test_one_option_under_two_names_is_refused_unless_both_agree() -> None:
    assert "is given twice" in str(refusal({**LEAST, "cloudFiles.format": "json"}))
    assert read(cloudFiles__format="csv") == read()


def test_a_path_of_a_stream_or_view_is_refused_with_what_to_set_instead() -> None:
    assert "allowedPrefixes" in str(refusal({**LEAST, "path": "s3://bucket"}))
    assert "set store" in str(refusal({"path": "s3://bucket"}, parse_view_options))


@pytest.mark.parametrize("option", ["header", "sep", "quote", "escape", "nullValue", "timeZone"])
def test_an_option_of_another_file_format_is_refused(option: str) -> None:
    example = next(o.example for o in READER.options if o.name == option)
    assert "acts only on fileFormat" in str(refusal({**LEAST, "fileFormat": "parquet", option: example}))


@pytest.mark.parametrize(
    ("given", "raise_this", "or_lower"),
    [
        ({"commitTimeout": "21m"}, "visibilityTimeout", "commitTimeout"),
        ({"visibilityTimeout": "31 days"}, "deduplicationWindow", "visibilityTimeout"),
    ],
)
def test_times_that_contradict_each_other_are_refused_with_all_of_them(
    given: dict[str, str], raise_this: str, or_lower: str
) -> None:
    problem = refusal({**LEAST, **given}).problem
    for name in ("commitTimeout", "visibilityTimeout", "deduplicationWindow", *given.values()):
        assert name.replace("21m", "315s") in problem  # the heartbeat is a quarter of commitTimeout
    assert f"raise {raise_this} or lower {or_lower}" in problem


def test_a_short_visibility_timeout_needs_no_other_option() -> None:
    options = read(visibilityTimeout="15s")
    assert options.leases.visibility_timeout == timedelta(seconds=15)
    assert options.queue.wait_time == timedelta(seconds=7.5), "no receive waits longer than its messages are invisible"
    assert read().queue.wait_time == timedelta(seconds=20)


def test_a_wait_under_its_name_in_auto_loader_is_not_shortened() -> None:
    assert read(cloudFiles__waitTime="10s", visibilityTimeout="15s").queue.wait_time == timedelta(seconds=10)
    assert "lower waitTime" in refusal({**LEAST, "cloudFiles.waitTime": "5m"}).problem


def test_a_receive_may_not_wait_longer_than_its_messages_stay_invisible() -> None:
    assert "lower waitTime" in refusal({**LEAST, "waitTime": "5m"}).problem
    assert read(waitTime="0s").queue.wait_time == timedelta(0)


def test_s3_options_override_aws_options_and_keys_come_in_pairs() -> None:
    options = read(aws__region="eu-central-1", s3__region="us-east-1", aws__accessKeyId="k", s3__secretAccessKey="s")
    assert options.content.storage.region == "us-east-1"
    assert options.content.storage.access_key == "k"
    assert "set both" in str(refusal({**LEAST, "aws.accessKeyId": "k"}))
    assert "set both" in str(refusal({**LEAST, "s3.secretAccessKey": "k"}))


def test_a_queue_is_reached_by_the_options_of_its_kind_and_the_nearest_prefix_wins() -> None:
    given = {
        "aws.region": "eu-central-1",
        "aws.endpointUrl": "http://localhost:9000",
        "sqs.endpointUrl": "http://localhost:4566",
        "aws.accessKeyId": "key",
        "aws.secretAccessKey": SECRET,
        "sqs.roleArn": "arn:aws:iam::123456789012:role/queues",
        "s3.region": "us-east-1",
    }
    options = parse_reader_options({**LEAST, **given}).queue
    expected = {
        "region": "eu-central-1",
        "endpoint_url": "http://localhost:4566",
        "access_key_id": "key",
        "secret_access_key": SECRET,
        "role_arn": "arn:aws:iam::123456789012:role/queues",
    }
    for url in ("sqs://files", "https://sqs.eu-central-1.amazonaws.com/123456789012/files"):
        assert connection_options(SecretUrl(url), options) == expected
    for url in ("sim://files", "sql+sqlite:///jobs.db?queue=files", "shop://x", "nonsense://x"):
        assert connection_options(SecretUrl(url), options) == {}
    assert SECRET not in repr(options)
    assert "set both" in str(refusal({**LEAST, "queueUrl": "sqs://files", "sqs.accessKeyId": "k"}))


def test_pubsub_is_reached_by_the_options_of_google() -> None:
    given = {"gcp.project": "p", "gcp.credentialsFile": "/keys/reader.json", "gcp.endpoint": "http://localhost:8085"}
    options = parse_reader_options({**LEAST, **given}).queue
    expected = {"project": "p", "credentials_file": "/keys/reader.json", "endpoint": "http://localhost:8085"}
    assert connection_options(SecretUrl("pubsub:///files"), options) == expected
    assert connection_options(SecretUrl("sqs://files"), options) == {}
    assert parse_reader_options({**LEAST, "cloudFiles.projectId": "p"}).queue.connections["pubsub"] == {"project": "p"}


def test_kafka_is_reached_by_the_settings_of_librdkafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    url = SecretUrl("kafka://h:9092/files?group=g")
    given = {
        "kafka.security.protocol": "SASL_SSL",
        "KAFKA.SASL.Username": "reader",
        "kafka.sasl.password": "env:KAFKA_PASSWORD",
        "startingOffsets": "latest",
        "failOnDataLoss": "false",
    }
    options = parse_reader_options({**LEAST, **given}).queue
    settings = {"security.protocol": "SASL_SSL", "sasl.username": "reader", "sasl.password": SECRET}
    expected = {"settings": settings, "starting_offsets": "latest", "fail_on_data_loss": False}
    assert connection_options(url, options) == expected
    assert connection_options(SecretUrl("sqs://files"), options) == {}
    assert SECRET not in repr(options)
    assert b"KAFKA_PASSWORD" in pickle.dumps(options)
    assert SECRET.encode() not in pickle.dumps(options)
    assert connection_options(url, parse_reader_options(LEAST).queue) == {}
    sink = parse_sink_options({"pipeline": "p", "queueUrl": "kafka://h/out", "kafka.sasl.password": SECRET})
    assert sink.queue is not None
    assert connection_options(url, sink.queue) == {"settings": {"sasl.password": SECRET}}
    assert SECRET not in repr(sink)


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("kafka.group.id", "g", r"\?group=GROUP"),
        ("kafka.auto.offset.reset", "latest", "startingOffsets"),
        ("kafka.enable.auto.commit", "true", "offsets are committed when"),
        ("kafka.bootstrap.servers", "h:9092", "queue's URL"),
        ("kafka.plugin.library.paths", "/tmp/x.so", "names code"),
        ("kafka.sasl.kerberos.kinit.cmd", "rm -rf /", "names a command"),
        ("kafka.sasl.password", "env:NOT_THERE", "'NOT_THERE' is not set"),
        ("kafka.ssl.key.pem", SECRET, "Spark shows options of this name; write env:NAME"),
    ],
)
def test_settings_of_kafka_that_are_ours_or_in_sight_are_refused(option: str, value: str, problem: str) -> None:
    error = refusal({**LEAST, option: value})
    assert error.option == option
    assert re.search(problem, error.problem), error.problem
    assert SECRET not in str(error)


def test_an_azure_queue_is_reached_by_the_options_of_azure_and_its_own_go_before() -> None:
    url = "azurequeue://account/files"
    given = {"azure.accountName": "lake", "azure.accessKey": SECRET, "azure.endpointUrl": "http://localhost:10000"}
    own = {"azureQueue.endpointUrl": "http://localhost:10001", "azureQueue.messageEncoding": "base64"}
    options = parse_reader_options({**LEAST, "queueUrl": url, **given, **own}).queue
    assert connection_options(SecretUrl(url), options) == {
        "account_name": "lake",
        "access_key": SECRET,
        "endpoint_url": "http://localhost:10001",
        "message_encoding": "base64",
    }
    assert SECRET not in repr(options)
    assert options.connections["sqs"] == {}


def test_a_credential_of_the_azure_queue_replaces_that_of_objects_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "azurequeue://account/files"
    monkeypatch.setenv("CONNECTION", f"AccountName=account;AccountKey={SECRET}")
    objects = {**LEAST, "queueUrl": url, "azure.accessKey": "of objects"}
    for name, text, keyword in (
        ("azureQueue.sasToken", SECRET, "sas_token"),
        ("azureQueue.clientId", "id", "client_id"),
        ("azureQueue.connectionString", "env:CONNECTION", "connection_string_secret"),
        ("cloudFiles.connectionString", "env:CONNECTION", "connection_string_secret"),
    ):
        found = connection_options(SecretUrl(url), parse_reader_options({**objects, name: text}).queue)
        assert found.keys() == {keyword}, name
    assert "exclude each other" in str(
        refusal({**objects, "azureQueue.sasToken": SECRET, "azureQueue.accessKey": SECRET})
    )
    assert "set all three" in str(refusal({**LEAST, "queueUrl": url, "azureQueue.clientSecret": SECRET}))
    shown = refusal({**objects, "azureQueue.connectionString": f"AccountKey={SECRET}"})
    assert "env:NAME" in str(shown)
    assert SECRET not in str(shown)
    assert "azurequeue://ACCOUNT/NAME" in str(refusal({**LEAST, "cloudFiles.queueName": "files"}))


def test_object_storage_assumes_a_role_of_its_own_or_that_of_all_but_never_beside_keys() -> None:
    storage = read(aws__roleArn="arn:one", s3__roleArn="arn:two", aws__roleExternalId="id").content.storage
    assert (storage.role_arn, storage.external_id) == ("arn:two", "id")
    keys = {"aws.accessKeyId": "k", "aws.secretAccessKey": "s"}
    assert "sqs.roleArn" in refusal({**LEAST, **keys, "aws.roleArn": "arn:one"}).problem
    assert parse_reader_options({**LEAST, **keys, "sqs.roleArn": "arn:one"}).content.storage.role_arn is None


def test_secrets_are_not_shown_by_options_copies_or_errors() -> None:
    given = {
        "queueUrl": f"sql+postgresql://user:{SECRET}@host/db?queue=files",
        "storeUrl": f"postgresql://user:{SECRET}@host/db",
        "aws.accessKeyId": SECRET,
        "aws.secretAccessKey": SECRET,
    }
    options = parse_reader_options({**LEAST, **given})
    copy = pickle.loads(pickle.dumps(options))
    assert copy == options
    assert copy.store.reveal() == given["storeUrl"]
    for text in (repr(options), str(options), repr(copy), f"{copy.store}", str(copy.queue.urls[0])):
        assert SECRET not in text
    for option in READER.options:  # the wrong box: a URL with a password as every option's value
        try:
            parse_reader_options({**LEAST, option.name: given["storeUrl"]})
        except OptionError as error:
            assert SECRET not in f"{error!r} {error} {error.problem}"  # noqa: PT017 - some boxes take any text


def test_what_executors_unpickle_loads_only_pyarrow(tmp_path: Path) -> None:
    content = tmp_path / "content.pickle"
    content.write_bytes(pickle.dumps(read(header="true").content))
    code = (
        "import pathlib, pickle, sys; before = set(sys.modules);"
        f"options = pickle.loads(pathlib.Path({str(content)!r}).read_bytes());"
        "assert options.format.header is True;"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "ours = {'queue_source', 'shard_store'};"
        "allowed = ours | {'pyarrow', 'numpy', 'cython_runtime'} | set(sys.stdlib_module_names);"
        "print(*sorted(n for n in new - allowed if not n.startswith('_')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_environment(), check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(queue_source.queues.__file__).resolve().parents[2])}


def test_options_cannot_be_changed_once_parsed() -> None:
    options = read()
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.source = "other"  # type: ignore[misc]
    assert isinstance(options.content, ContentOptions)


@pytest.mark.parametrize(
    "options",
    [
        {"uriPath": "uri"},
        {"notificationFormat": "json"},
        {"notificationFormat": "json", "keyPath": "k"},
        {"notificationFormat": "json", "keyPath": "k", "bucketPath": "b", "uriPath": "u"},
    ],
)
def test_the_paths_of_json_notifications_are_given_whole_or_not_at_all(options: dict[str, str]) -> None:
    assert refusal({**LEAST, **options}).option in ("uriPath", "notificationFormat")


def test_shares_in_percent_name_each_queue() -> None:
    error = refusal({**LEAST, "queueShares": "percentage:50,50"})
    assert error.option == "queueShares"
    assert "2 numbers for 1 queue" in error.problem


def test_messages_need_no_file_format_and_take_none() -> None:
    url = {"queueUrl": "sim://files"}
    assert parse_reader_options({**url, "content": "message"}).content.format is None
    assert parse_reader_options({**url, "content": "message", "fileFormat": "json"}).content.format is not None
    assert refusal({**url, "content": "message", "fileFormat": "binaryFile"}).option == "fileFormat"
    options = {**url, "content": "message", "fileFormat": "json", "partitionColumns": "day"}
    assert refusal(options).option == "partitionColumns"


def test_what_spark_can_and_this_source_cannot_is_refused_with_the_next_step() -> None:
    for name, instead in CANNOT.items():
        assert refusal({**LEAST, name: "true"}).problem == f"has no equivalent here: {instead}"
        assert refusal({**LEAST, f"cloudFiles.{name}": "true"}).option == f"cloudFiles.{name}"


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("sep", {"sep": '"'}),
        ("sep", {"sep": "\\"}),
        ("sep", {"comment": ","}),
        ("sep", {"sep": "|", "quote": "|"}),
        ("lineSep", {"lineSep": ";", "multiLine": "true"}),
        ("lineSep", {"lineSep": ";", "wholeText": "true", "fileFormat": "text"}),
        ("lineSep", {"lineSep": ";", "recordsPath": "Records", "fileFormat": "json"}),
        ("recordsPath", {"recordsPath": "Records", "multiLine": "true", "fileFormat": "json"}),
        ("recordsPath", {"recordsPath": "Records", "fileFormat": "csv"}),
    ],
)
def test_options_of_a_format_that_contradict_each_other_are_refused(option: str, given: dict[str, str]) -> None:
    assert refusal({**LEAST, **given}).option == option


@pytest.mark.parametrize(
    ("written", "zone"),
    [
        ("Europe/Berlin", "Europe/Berlin"),
        ("+02:00", "+02:00"),
        ("-5:30", "-05:30"),
        ("+0530", "+05:30"),
        ("+2", "+02:00"),
        ("GMT+2", "+02:00"),
        ("UTC-03:30", "-03:30"),
        ("+18:00", "+18:00"),
        ("UTC", "UTC"),
        ("GMT", "UTC"),
        ("Z", "UTC"),
        ("+00:00", "UTC"),
    ],
)
def test_a_time_zone_is_written_as_spark_has_it(written: str, zone: str) -> None:
    format = read(timeZone=written).content.format
    assert format is not None
    assert format.timezone == zone


@pytest.mark.parametrize(
    "pattern", ["dd.MM.", "yyyy-MMM-dd", "yyyy-MM-dd'T", "yyyy yyyy", "yyyy-MM-dd hh:mm a", "yyyy[-MM"]
)
@pytest.mark.parametrize("option", ["dateFormat", "timestampFormat", "timestampNTZFormat"])
def test_a_pattern_that_cannot_be_read_is_refused_before_the_query_starts(option: str, pattern: str) -> None:
    error = refusal({**LEAST, option: pattern})
    assert error.option == option
    assert "write" in error.problem


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("yyyy 'o''clock'", "2026 o'clock"), ("yyyy''MM", "2026'11"), ("yyyy''''MM", "2026'11"), ("'a'yyyy'b'", "a2026b")],
)
def test_two_quotes_are_one_within_quotes_and_outside(pattern: str, text: str) -> None:
    assert re.fullmatch(parse_pattern(pattern).expression, text)


@pytest.mark.parametrize(
    ("name", "value", "better"),
    [
        ("store", f"postgresql://user:{SECRET}@host/db", "storeUrl"),
        ("azure.accountKey", SECRET, "azure.accessKey"),
    ],
)
def test_a_secret_under_a_name_that_spark_prints_is_refused_with_the_one_that_it_hides(
    name: str, value: str, better: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refusal({**LEAST, name: value})
    assert (error.option, f"write {better!r}" in error.problem, SECRET in str(error)) == (name, True, False)
    parse_reader_options({**LEAST, better: value})
    monkeypatch.setenv("HERE", value)
    parse_reader_options({**LEAST, name: "env:HERE"})
    parse_reader_options({**LEAST, "store": "postgresql://user@host/db"})


def test_spark_hides_every_option_that_takes_a_secret() -> None:
    for place in PLACES:
        for option in place.options:
            if option.type.name in ("secret", "database URL", "queue URL", "queue URLs") and option.name not in (
                "catalog.*",
                "kafka.*",
            ):
                assert SPARK_HIDES.search(option.name), option.name


def test_credentials_may_be_references_and_are_looked_up_where_objects_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KEY_ID", "the key")
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    given = {"aws.accessKeyId": "env:KEY_ID", "aws.secretAccessKey": f"file:{tmp_path}/secret"}
    options = parse_reader_options({**LEAST, "queueUrl": "sqs://files", **given, "azure.sasToken": "env:KEY_ID"})
    assert SECRET.encode() not in pickle.dumps(options)
    found = with_secrets(options.content.storage)
    assert (found.access_key, found.secret_key, found.azure.sas_token) == ("the key", SECRET, "the key")
    assert connection_options(SecretUrl("sqs://files"), options.queue)["secret_access_key"] == SECRET
    monkeypatch.delenv("KEY_ID")
    with pytest.raises(OptionError, match=r"'KEY_ID' is not set.*driver or an executor"):
        with_secrets(options.content.storage)
    assert refusal({**LEAST, "azure.sasToken": "env:KEY_ID"}).option == "azure.sasToken"


def test_urls_of_queues_and_stores_may_be_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUE", f"sql+postgresql://u:{SECRET}@h/db?queue=orders")
    monkeypatch.setenv("STORE", f"postgresql://u:{SECRET}@h/db")
    given = {name: text for name, text in LEAST.items() if name != "source"}
    options = parse_reader_options(
        {**given, "queueUrl": "env:QUEUE", "storeUrl": "env:STORE", "errorQueueUrl": "sim://e"}
    )
    assert (options.source, options.queue.urls[0].reveal()[-6:]) == ("orders", "orders")
    assert SECRET.encode() not in pickle.dumps(options)
    assert len(read(queueUrl="env:QUEUE, sim://other").queue.urls) == 2
    monkeypatch.setenv("QUEUE", f"no url {SECRET}")
    error = refusal({**given, "queueUrl": "env:QUEUE"})
    assert (error.option, "no URL" in error.problem, SECRET in str(error)) == ("queueUrl", True, False)


@pytest.mark.parametrize("file_format", ["parquet", "orc", "avro"])
def test_bytes_of_samples_are_refused_for_formats_whose_files_have_their_schema(file_format: str) -> None:
    assert "json and csv" in refusal({**LEAST, "fileFormat": file_format, "schemaSampleBytes": "1m"}).problem
