"""The page on logs: what it says of ten sources reads samples of them, as rows and by `load`, as it shows."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import typer.main
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import cuesqueue
from docs.test_pages import anchor
from queue_source.commands.main import app
from queue_source.commands.parameters import named_options
from queue_source.options import parse_reader_options
from queue_source.options.content import FormatOptions
from queue_source.schema.columns import parse_columns
from support.engine.world import World
from support.reading import Found, read_with_problems
from support.snippets import ROOT

PAGE = (ROOT / "docs" / "how-to" / "logs.md").read_text("utf-8")
_, *SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
SAMPLES = ROOT / "tests" / "data" / "logs"
PACKED = {"CloudTrail", "AWS Config", "ALB access logs", "VPC flow logs", "CloudFront", "AWS WAF"}
"""Their makers compress them with gzip."""


@dataclass(frozen=True)
class Source:
    """A section of the page: its command, as the command reads its arguments, and the rows that it shows."""

    name: str
    text: str
    arguments: dict[str, Any]
    options: dict[str, str]
    result: str

    @classmethod
    def of(cls, section: str) -> Source:
        (command,) = re.findall(r"^```bash\ncuesqueue load (.*?)```", section, re.MULTILINE | re.DOTALL)
        (result,) = re.findall(r"^```text\n(.*?)```", section, re.MULTILINE | re.DOTALL)
        load = typer.main.get_command(app).load("load")  # type: ignore[attr-defined]
        arguments = dict(load.make_context("load", shlex.split(command.replace("\\\n", " "))).params)
        return cls(section.partition("\n")[0], section, arguments, named_options(arguments["option"]), result)

    @property
    def format(self) -> str:
        return str(self.arguments["format"].value)

    def reading(self, **more: str) -> FormatOptions:
        """Return what its options, and more of them, say of the format."""
        place = {"backfillPrefixes": "s3://logs/", "source": "logs", "timeZone": "UTC"}
        options = parse_reader_options({**place, "fileFormat": self.format, **self.options, **more}).content.format
        assert options is not None
        return options

    def land(self, folder: Path) -> list[str]:
        """Write its samples as their maker does; returns their URIs."""
        paths = []
        for sample in sorted((SAMPLES / anchor(self.name)).iterdir()):
            path = folder / unquote(sample.name)
            path.parent.mkdir(exist_ok=True)
            data = sample.read_bytes()
            if data and self.name in PACKED:
                path, data = path.with_name(f"{path.name}.gz"), gzip.compress(data)
            path.write_bytes(data)
            paths.append(path.as_uri())
        return paths


SOURCES = [Source.of(section) for section in SECTIONS]
(AZURE,) = (source for source in SOURCES if source.name == "Azure resource logs")


def by_name(source: Source) -> str:
    return source.name


@pytest.fixture(autouse=True)
def utc(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("engine") is None:
        yield
        return
    spark: SparkSession = request.getfixturevalue("spark")
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


def shown(frame: DataFrame, columns: list[str]) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed):
        frame.select(columns).orderBy(columns).show(truncate=False)
    return printed.getvalue().strip()


def check(spark: SparkSession, world: World, source: Source) -> DataFrame:
    """Compare what is published with what the page shows."""
    frame = spark.read.format("cuesqueue").option("store", world.store_url).load()
    columns = [name.strip() for name in source.result.splitlines()[1].strip("|").split("|")]
    assert shown(frame, columns) == source.result.strip()
    assert world.view("errors") == []
    return frame


def announce(world: World, uris: list[str]) -> dict[str, str]:
    world.publish(uris)
    return {"queueUrl": world.queue_url, "allowedPrefixes": f"file://{world.root}/in/", "waitTime": "1s"}


def listed(world: World, uris: list[str]) -> dict[str, str]:
    """Have objects that nobody has written to for three hours be found by a listing."""
    long_ago = time.time() - 3 * 3600
    for uri in uris:
        os.utime(unquote(uri.removeprefix("file://")), (long_ago, long_ago))
    prefix = f"file://{world.root}/in/"
    return {"allowedPrefixes": prefix, "backfillPrefixes": prefix}


def by_rows(spark: SparkSession, world: World, source: Source, options: dict[str, str]) -> None:
    """Run it as a stream of rows, with the options of the command."""
    stream = spark.readStream.format("cuesqueue").options(**{"fileFormat": source.format, **source.options, **options})
    rows = stream.option("store", world.store_url).schema(source.arguments["schema"]).load()
    pipeline = source.options.get("source", world.queue)
    writer = rows.writeStream.format("cuesqueue").options(**world.sink(pipeline=pipeline)).trigger(availableNow=True)
    writer.option("checkpointLocation", str(world.root / "checkpoint")).start().awaitTermination()


def by_load(spark: SparkSession, world: World, source: Source, options: dict[str, str]) -> None:
    """Run it as the command does."""
    more: dict[str, Any] = {**source.options, **options, "checkpointLocation": str(world.root / "checkpoint")}
    query = cuesqueue.load(
        more.pop("queueUrl", None),
        str(world.root / source.arguments["path"]),
        format=source.format,
        prefixes=more.pop("allowedPrefixes"),
        schema=source.arguments["schema"],
        store=world.store_url,
        spark=spark,
        **more,
    )
    query.awaitTermination()


@pytest.mark.engine
@pytest.mark.parametrize("way", [by_rows, by_load])
@pytest.mark.parametrize("source", SOURCES, ids=by_name)
def test_a_source_is_read_as_the_page_shows(spark: SparkSession, world: World, source: Source, way: Any) -> None:
    uris = source.land(world.root / "in")
    if source.arguments["queue"]:
        way(spark, world, source, announce(world, uris))
    else:
        source.land(world.root / "in" / "h=10")  # it was written just now, and is left for later
        way(spark, world, source, listed(world, uris))
    frame = check(spark, world, source)
    for expression in re.findall(r"`(to_timestamp.*?)`", source.text):
        assert str(frame.selectExpr(f"min({expression})").collect()[0][0]) == "2026-11-03 09:00:38"


@pytest.mark.engine
def test_what_is_appended_to_a_blob_that_was_read_is_not_read_and_reconcile_names_the_blob(
    spark: SparkSession, world: World
) -> None:
    (blob,) = AZURE.land(world.root / "in")
    by_load(spark, world, AZURE, listed(world, [blob]))
    path = Path(blob.removeprefix("file://"))
    path.write_bytes(path.read_bytes() * 2)
    by_load(spark, world, AZURE, listed(world, [blob]))
    check(spark, world, AZURE)
    arguments = ["--store", world.store_url, "--source", AZURE.options["source"], "--grace", "0s", "--json"]
    done = CliRunner().invoke(app, ["reconcile", f"file://{world.root}/in/", *arguments])
    (report,) = json.loads(done.stdout)["prefixes"]
    assert (report["changed"], report["published"]) == (1, 0)


def samples(folder: str) -> bytes:
    (sample,) = (SAMPLES / folder).iterdir()
    return sample.read_bytes()


def read(source: Source, data: bytes, **options: str) -> Found:
    return read_with_problems(data, parse_columns(source.arguments["schema"]), source.reading(**options))


@pytest.mark.parametrize("source", [source for source in SOURCES if source.format == "csv"], ids=by_name)
def test_a_field_that_a_maker_appends_is_kept_and_seen(source: Source) -> None:
    data, sep = samples(anchor(source.name)), source.options["sep"].replace("\\t", "\t").encode()
    as_it_is = read(source, data)
    longer = read(source, data.replace(b"\n", sep + b"new\n"))
    assert [{**row, "more": None} for row in longer.rows] == as_it_is.rows
    assert ['"new"' in row["more"] for row in longer.rows] == [True, True]
    has_header = source.options.get("header") == "true"  # then the field has a name, and its lines are as long
    fields = len(as_it_is.rows[0]) - 1
    reasons = [] if has_header else [f"{fields + 1} fields, not {fields}"] * 2
    assert longer.reasons.splitlines() == reasons
    assert as_it_is.problems.count == 0


def test_a_quote_and_a_space_in_a_user_agent_of_s3_are_reported_and_a_quote_alone_is_read() -> None:
    (source,) = (source for source in SOURCES if source.name == "S3 server access logs")
    for agent, count in ((b'aws-cli"x', 0), (b'aws-cli" x', 1)):
        found = read(source, samples(anchor(source.name)).replace(b"aws-cli/2.31.0 md/Botocore#1.41", agent))
        assert [bool(row["more"]) for row in found.rows] == [count > 0, False]
        assert found.problems.count == count
    assert found.reasons == "29 fields, not 28"


def test_documents_of_azure_are_read_with_the_option_that_the_page_names() -> None:
    assert "`recordsPath` = `records`" in AZURE.text
    documents = read(AZURE, samples("azure-resource-logs-documents"), recordsPath="records")
    assert documents.rows == read(AZURE, samples("azure-resource-logs")).rows
    assert documents.problems.count == 0


def test_what_cloudwatch_sends_to_firehose_is_read_with_the_option_that_the_page_names() -> None:
    (source,) = (source for source in SOURCES if source.name == "Amazon Data Firehose")
    assert "`recordsPath` = `logEvents`" in source.text
    document = b'{"messageType":"DATA_MESSAGE","logGroup":"shop","logEvents":[{"id":1,"timestamp":2,"message":"paid"}]}'
    packed = b"".join(gzip.compress(document) for _ in range(2))
    assert [row["id"] for row in read(source, gzip.compress(packed), recordsPath="logEvents").rows] == [1, 1]
