"""What `cuesqueue load` cannot do is said before Spark is started, in one sentence, whatever the queue holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from queue_source.commands.main import app
from queue_source.queues import open_queue
from queue_source.queues.base import administered
from support.servers.ministack import REGION, client, new_name

QUEUE = "sql+sqlite:///jobs.db?queue=files"
AWAY = "http://127.0.0.1:9"
S3 = ["s3.accessKeyId=test", "s3.secretAccessKey=test", f"s3.region={REGION}"]
SQS = ["aws.accessKeyId=test", "aws.secretAccessKey=test", f"aws.region={REGION}"]
GONE = "does not exist; create it, or mend "
FILE = "/file is a file; name a folder"
READ_ONLY = "/proc takes no files (No such file or directory); name another folder"
WRONG: dict[str, tuple[list[str], list[str], str]] = {
    "a bucket for a Delta table": (["--delta", "s3://{bucket}/x"], ["s3.endpointUrl={s3}", *S3], f"'delta': {GONE}"),
    "a bucket for files": (["--path", "s3://{bucket}/x"], ["s3.endpointUrl={s3}", *S3], f"'path': {GONE}"),
    "a bucket for a warehouse": (
        ["--table", "db.m"],
        ["warehouse=s3://{bucket}/x", "s3.endpointUrl={s3}", *S3],
        f"'warehouse': {GONE}",
    ),
    "a bucket that is away": (
        ["--delta", "s3://b/x"],
        [f"s3.endpointUrl={AWAY}", *S3],
        "'delta': whose store does not serve us",
    ),
    "a store that Delta does not know": (["--delta", "hdfs://a/b"], [], "'delta': its scheme is not one of file, s3"),
    "a folder of others": (["--delta", "in"], [], "'delta': which is no Delta table and holds '1.json'"),
    "a Delta table below a file": (["--delta", "file/x"], [], f"'delta': {FILE}"),
    "no warehouse": (["--table", "db.m"], [], "'warehouse': is required to make the table db.m"),
    "a warehouse below a file": (["--table", "db.m"], ["warehouse=file/x"], f"'warehouse': {FILE}"),
    "a kind of catalog": (["--table", "db.m"], ["catalog.type=glob"], "'table': is not a valid CatalogType"),
    "a catalog that is away": (
        ["--table", "db.m"],
        ["catalog.type=rest", f"catalog.uri={AWAY}"],
        "'table': cannot be looked up in its catalog: ConnectionError",
    ),
    "a folder below a file": (["--path", "file/x"], [], f"'path': {FILE}"),
    "a folder that takes no files": (["--path", "/proc/x"], [], f"'path': {READ_ONLY}"),
    "a checkpoint below a file": (["--path", "./out"], ["checkpointLocation=file/x"], f"'checkpointLocation': {FILE}"),
    "a checkpoint that takes no files": (
        ["--path", "./out"],
        ["checkpointLocation=file:/proc/x"],
        f"'checkpointLocation': {READ_ONLY}",
    ),
    "a checkpoint without a bucket": (
        ["--path", "./out"],
        ["checkpointLocation=s3a://{bucket}/x", "s3.endpointUrl={s3}", *S3],
        f"'schemaLocation': {GONE}",
    ),
    "a place for columns": (["--path", "./out"], ["schemaLocation=/proc/x"], f"'schemaLocation': {READ_ONLY}"),
    "an option": (["--path", "./out"], ["frobnicate=1"], "'frobnicate': is unknown to load"),
    "an extra": (["--delta", "gone"], [], "'delta': pip install 'cuesqueue[delta]'"),
    "an extra of a format": (["--path", "./out", "--format", "avro"], [], 'pip install "cuesqueue[avro]"'),
    "a queue": (["sqs://{bucket}", "--path", "./out"], ["sqs.endpointUrl={s3}", *SQS], "queue 'sqs://: does not exist"),
    "a queue's database": (["sql+sqlite:///no/jobs.db?queue=files", "--path", "./out"], [], "queue 'sql+sqlite:///no"),
    "a store that is away": (
        ["--path", "./out", "--store", "postgresql+psycopg://127.0.0.1:9/x"],
        [],
        "did not serve us within 3 s",
    ),
    "a store below a file": (["--path", "./out", "--store", "sqlite:///file/s.db"], [], "unable to open database file"),
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder, an empty queue, and no Spark."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUESQUEUE_STORE", raising=False)
    Path("file").touch()
    Path("in").mkdir()
    Path("in/1.json").write_text('{"id": 1}')
    with open_queue(QUEUE) as queue:
        manager = administered(queue)
        assert manager is not None
        manager.create()

    class Builder:
        def __getattr__(self, name: str) -> Any:
            raise OSError("Spark was started")

    monkeypatch.setattr(SparkSession, "builder", Builder())


def load(*arguments: str) -> Any:
    queue = [] if "://" in arguments[0] else [QUEUE]
    return CliRunner().invoke(app, ["load", *queue, "--prefix", "file:///in/", "--format", "json", *arguments])


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_before_spark_is_started(
    what: str, world: None, ministack_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, options, words = WRONG[what]
    if "an extra" in what:
        for missing in ("deltalake", "fastavro"):
            monkeypatch.setitem(sys.modules, missing, None)
        for name in [name for name in sys.modules if name.startswith("queue_source.sinks.delta")]:
            monkeypatch.delitem(sys.modules, name)
    given = [*arguments, *(part for option in options for part in ("--option", option))]
    done = load(*(part.format(bucket=new_name("gone"), s3=ministack_url) for part in given))
    assert done.exit_code in (1, 2), done.output
    assert done.stdout == ""
    assert all(part in done.stderr for part in words.split(": ")), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--path", "./out"],
        ["--delta", "new"],
        ["--table", "db.m", "--option", "warehouse=lake"],
        ["amqp://127.0.0.1:9/?source=a&pool=b", "--path", "out"],
    ],
    ids=["files", "Delta", "Iceberg", "a queue that is away"],
)
def test_what_may_be_right_is_left_to_the_query_and_makes_no_target(arguments: list[str], world: None) -> None:
    """The query waits for a queue that does not answer."""
    done = load(*arguments)
    assert (done.exit_code, done.stderr) == (1, "error: Spark was started\n")
    assert not any(Path(name).exists() for name in ("out", "new", "lake", "cuesqueue-checkpoints", "cuesqueue-schemas"))


def test_a_bucket_that_is_there_is_no_obstacle(world: None, ministack_url: str) -> None:
    bucket = new_name("bucket")
    client(ministack_url, "s3").create_bucket(Bucket=bucket)
    options = [part for option in (f"s3.endpointUrl={ministack_url}", *S3) for part in ("--option", option)]
    for target in ("--delta", "--path"):
        assert load(target, f"s3://{bucket}/x", *options).stderr == "error: Spark was started\n"
