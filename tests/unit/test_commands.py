"""The `cuesqueue` program: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote_plus

import pytest
import typer
from py4j.protocol import Py4JNetworkError
from typer.testing import CliRunner, Result

import queue_source.queues
import shard_store
from queue_source.commands import output
from queue_source.commands.main import app, whole_program
from queue_source.commands.output import errors_as_exit_codes
from queue_source.commands.queue import SET
from queue_source.errors import QueueUnavailable
from queue_source.options.connections import StorageOptions
from queue_source.schema.columns import parse_columns
from queue_source.schema.location import SchemaLocation
from shard_store.errors import StoreConfigurationError, StoreUnavailable
from shard_store.model import ErrorRecord
from shard_store.upkeep.pruning import PruneResult
from support.store_backends import Pipeline

SECRET = "n0t-t0-be-sh0wn"


@pytest.fixture(autouse=True)
def _plain_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CUESQUEUE_STORE", "CUESQUEUE_DEBUG"):
        monkeypatch.delenv(variable, raising=False)


def cuesqueue(*arguments: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin, env=env)


@dataclass
class Recorder:
    """A queue that keeps what is sent, set by set, and fails when told to."""

    name: str = "sim://files"
    sets: list[list[bytes]] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    headers: Mapping[str, str] | None = None
    urls: list[str] = field(default_factory=list)
    fail_at: int | None = None
    closed: bool = False

    def open(self, url: str) -> Recorder:
        self.urls.append(url)
        return self

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def send(self, payloads: Sequence[bytes], *, tag: str = "", headers: Any = None) -> list[str]:
        if self.fail_at == len(self.sets):
            raise QueueUnavailable(self.name, f"no answer from https://me:{SECRET}@host/ within 30s")
        self.sets.append(list(payloads))
        self.tags.append(tag)
        self.headers = headers
        return [str(i) for i in range(len(payloads))]


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr("queue_source.commands.queue.open_queue", recorder.open)
    return recorder


def test_send_makes_one_message_an_item_with_tag_and_headers(queue: Recorder) -> None:
    done = cuesqueue("send", "sim://files", "s3://b/k", "ü", "--tag", "a.b", "--header", "x=1=2", "--header", "y=")
    assert done.exit_code == 0, done.output
    assert queue.sets == [[b"s3://b/k", "ü".encode()]]
    assert queue.tags == ["a.b"]
    assert queue.headers == {"x": "1=2", "y": ""}
    assert queue.closed
    assert "2" in done.stdout


def test_send_prints_json_and_nothing_else_when_asked(queue: Recorder) -> None:
    done = cuesqueue("send", "sim://files", "a", "--json")
    assert json.loads(done.stdout) == {"queue": "sim://files", "messages": 1}
    assert done.stderr == ""


def test_send_reads_standard_input_line_by_line_in_sets_of_a_thousand(queue: Recorder) -> None:
    lines = [f"line {i}".encode() for i in range(2 * SET + 1)]
    done = cuesqueue("send", "sim://files", "first", "-", stdin=b"\n".join(lines) + b"\r\n\n")
    assert done.exit_code == 0, done.output
    assert [len(batch) for batch in queue.sets] == [SET, SET, 2]
    assert [body for batch in queue.sets for body in batch] == [b"first", *lines]


def test_send_leaves_the_bytes_of_a_line_as_they_are(queue: Recorder) -> None:
    assert cuesqueue("send", "sim://files", "-", stdin=b" \xff\xfe ").exit_code == 0
    assert queue.sets == [[b" \xff\xfe "]]


def test_send_wraps_uris_as_s3_events_with_form_encoded_keys(queue: Recorder) -> None:
    keys = ["plain.json", "with space+plus=é%.json", "deep/er/k"]
    uris = [f"s3://bucket/{key}" for key in keys]
    done = cuesqueue("send", "sim://files", *uris, "--notification", "s3", "--per-message", "2")
    assert done.exit_code == 0, done.output
    messages = [json.loads(body) for body in queue.sets[0]]
    assert [len(message["Records"]) for message in messages] == [2, 1]
    objects = [record["s3"] for message in messages for record in message["Records"]]
    assert {o["bucket"]["name"] for o in objects} == {"bucket"}
    assert objects[1]["object"]["key"] == "with+space%2Bplus%3D%C3%A9%25.json"
    assert [unquote_plus(o["object"]["key"]) for o in objects] == keys


@pytest.mark.parametrize("uri", ["file:///a", "s3://bucket", "s3://bucket/", "s3:///key", "key"])
def test_send_refuses_to_wrap_what_is_no_object_in_s3(queue: Recorder, uri: str) -> None:
    done = cuesqueue("send", "sim://files", uri, "--notification", "s3")
    assert done.exit_code == 2
    assert "write items as s3://bucket/key" in done.stderr
    assert queue.sets == []


@pytest.mark.parametrize(
    "arguments",
    [("a", "--header", "novalue"), ("a", "--header", "=v"), ("a", "--per-message", "2"), (), ("a", "--tga", "x")],
)
def test_wrong_use_of_send_exits_with_2_and_sends_nothing(queue: Recorder, arguments: tuple[str, ...]) -> None:
    done = cuesqueue("send", "sim://files", *arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr
    assert queue.sets == []


def test_a_failure_exits_with_1_in_one_line_without_traceback_or_password(queue: Recorder) -> None:
    queue.fail_at = 0
    done = cuesqueue("send", "sim://files", "a")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr == "error: queue 'sim://files': no answer from https://me:***@host/ within 30s\n"


def test_a_failure_in_the_middle_says_how_many_messages_were_sent(queue: Recorder) -> None:
    queue.fail_at = 1
    done = cuesqueue("send", "sim://files", "-", stdin=b"x\n" * (SET + 5))
    assert done.exit_code == 1
    assert f"{SET} messages were sent before this" in done.stderr


def test_the_exception_itself_is_shown_when_debugging(queue: Recorder) -> None:
    queue.fail_at = 0
    done = cuesqueue("send", "sim://files", "a", env={"CUESQUEUE_DEBUG": "1"})
    assert isinstance(done.exception, QueueUnavailable)


@dataclass
class Pruning:
    """What `shard_store` was asked to do, and what it answers."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    timed_out: bool = False
    error: Exception | None = None


@pytest.fixture
def pruning(monkeypatch: pytest.MonkeyPatch) -> Pruning:
    record = Pruning()

    class Store:
        def __init__(self, url: str, *, create: bool) -> None:
            assert not create
            if record.error:
                raise record.error
            self.url = url

        def __enter__(self) -> Store:
            return self

        def __exit__(self, *_: object) -> None: ...

    def prune(store: Store, policy: Any, now: None = None, *, dry_run: bool = False) -> Any:
        record.asked.append({"url": store.url, "dry_run": dry_run, **vars(policy)})
        return PruneResult(shards=3, snapshots=2, attempts=1, timed_out=record.timed_out)

    import_module("queue_source.commands.store")  # what it imports keeps its names
    monkeypatch.setattr(shard_store, "open_store", Store, raising=False)
    monkeypatch.setattr(shard_store, "RetentionPolicy", SimpleNamespace, raising=False)
    monkeypatch.setattr(shard_store, "prune", prune, raising=False)
    return record


def test_prune_forgets_what_is_older_than_30_days_unless_told_otherwise(pruning: Pruning) -> None:
    done = cuesqueue("prune", "--store", "sqlite:///a.db")
    assert done.exit_code == 0, done.output
    kept = {"window": timedelta(days=30), "pipelines": timedelta(days=365), "data": None}
    assert pruning.asked == [{"url": "sqlite:///a.db", "dry_run": False, "max_shards": None, "source": None, **kept}]
    assert "shards" in done.stdout


def test_prune_takes_the_store_from_the_environment_and_its_policy_from_the_options(pruning: Pruning) -> None:
    arguments = ("--source", "orders", "--older-than", "5 days", "--max-shards", "9", "--dry-run", "--json")
    older = ("--pipelines-older-than", "90 days", "--data-older-than", "700 days")
    done = cuesqueue("prune", *arguments, *older, env={"CUESQUEUE_STORE": "sqlite:///env.db"})
    assert json.loads(done.stdout) == {
        "shards": 3, "snapshots": 2, "attempts": 1, "errors": 0, "read_marks": 0, "leases": 0, "pipelines": 0,
        "shard_changes": 0, "splits": 0, "certificates": 0, "cleanings": 0, "history": 0,
        "timed_out": False, "dry_run": True,
    }  # fmt: skip
    kept = {"window": timedelta(days=5), "pipelines": timedelta(days=90), "data": timedelta(days=700)}
    assert pruning.asked == [{"url": "sqlite:///env.db", "dry_run": True, "max_shards": 9, "source": "orders", **kept}]


def test_prune_says_when_more_is_left(pruning: Pruning) -> None:
    pruning.timed_out = True
    done = cuesqueue("prune", "--store", "sqlite:///a.db", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["timed_out"] is True
    assert "run the command again" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ((), "CUESQUEUE_STORE"),
        (("--store", "sqlite:///a.db", "--older-than", "5"), "5s for seconds"),
        (("--store", "sqlite:///a.db", "--max-shards", "0"), "--max-shards"),
    ],
)
def test_wrong_use_of_prune_exits_with_2_and_says_what_to_write(
    pruning: Pruning, arguments: tuple[str, ...], hint: str
) -> None:
    done = cuesqueue("prune", *arguments)
    assert done.exit_code == 2
    assert hint in done.stderr
    assert pruning.asked == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreConfigurationError(f"cannot use postgresql://me:{SECRET}@host/db"), 2),
        (StoreUnavailable(f"no answer from postgresql://me:{SECRET}@host/db"), 1),
        (PermissionError("not allowed"), 1),
    ],
)
def test_an_error_of_the_store_is_one_line_without_password(pruning: Pruning, error: Exception, code: int) -> None:
    pruning.error = error
    done = cuesqueue("prune", "--store", f"postgresql://me:{SECRET}@host/db")
    assert done.exit_code == code
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert SECRET not in done.output


def test_help_and_errors_do_not_show_the_environments_store() -> None:
    env = {"CUESQUEUE_STORE": f"postgresql://me:{SECRET}@host/db"}
    for arguments in (("prune", "--help"), ("prune", "--bogus"), ("prune", "--max-shards", "many")):
        assert SECRET not in cuesqueue(*arguments, env=env).output


def test_version_tells_what_cuesqueue_works_with() -> None:
    done = cuesqueue("version", "--json")
    assert done.exit_code == 0
    assert set(json.loads(done.stdout)) == {"cuesqueue", "pyspark", "pyarrow", "sqlalchemy", "python"}
    assert "python" in cuesqueue("version").stdout


def test_every_command_prints_json_when_asked() -> None:
    for command in ("send", "prune", "version"):
        assert "--json" in cuesqueue(command, "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (("export", "file", "--source", "s", "--copy"), "a dump of the database"),
        (("import", "file"), "a dump of the database"),
    ],
)
def test_what_is_gone_says_what_to_do_instead(arguments: tuple[str, ...], instead: str) -> None:
    done = cuesqueue(*arguments)
    assert (done.exit_code, instead in done.stderr) == (2, True), done.stderr


def test_an_unknown_command_is_wrong_use() -> None:
    assert cuesqueue("sned").exit_code == 2


def test_the_program_lists_each_command_by_the_first_sentence_of_its_own_help() -> None:
    listed = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in whole_program().commands.items():
        assert listed[name].get_short_help_str(1000) == command.get_short_help_str(1000), name


def test_the_program_loads_neither_spark_nor_databases_for_its_help() -> None:
    code = (
        "import sys; sys.argv = ['cuesqueue', '--help']\n"
        "from queue_source.commands.main import run\n"
        "try: run()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'pyspark', 'sqlalchemy', 'pyarrow', 'pandas', 'pydantic', 'boto3', 'alembic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    root = Path(queue_source.queues.__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.returncode == 0, done.stderr
    assert "send" in done.stdout


def test_a_table_leaves_out_no_part_of_a_name_however_narrow_the_terminal_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    name = "file:///" + "x" * 100
    output.print_table("errors", ("id", "object", "detail"), [["0123456789ab", name, "y" * 100]])
    output.print_result({"object": name}, False, title="one")
    told = capsys.readouterr().out
    assert (told.count("x"), told.count("y"), told.count("\u2026")) == (200, 100, 0)


@pytest.mark.parametrize("arguments", [("--help",), ("status",), ("errors", "list"), ("status", "--json")])
def test_a_reader_who_has_seen_enough_ends_a_command_without_a_word(arguments: tuple[str, ...], tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    with shard_store.open_store(store) as opened:
        opened.record_errors("s", "p", [ErrorRecord("message", "malformed-message", "why", "m")])
        Pipeline.start(opened, "p")
    program = [sys.executable, "-m", "cuesqueue", *arguments]
    reading, writing = os.pipe()
    os.close(reading)  # as `head` has done when it has its lines
    try:
        done = subprocess.run(
            program, stdout=writing, stderr=subprocess.PIPE, env={**os.environ, "CUESQUEUE_STORE": store}, check=False
        )
    finally:
        os.close(writing)
    assert done.stderr == b""
    assert done.returncode in (1, 141)


def test_load_ends_when_the_schema_that_is_kept_has_not_got_what_has_ended_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where executors keep columns in a folder of their own machine: the next start would end the same way."""
    location = SchemaLocation(str(tmp_path / "schemas"), StorageOptions())
    starts = 0

    class Ending:
        """A query of Spark."""

        def awaitTermination(self, timeout: float) -> bool:
            nonlocal starts
            starts += 1
            if starts < 3:
                location.record(parse_columns(f"id INT, price{starts} DOUBLE"))
            raise RuntimeError("Job aborted: queue_source.errors.SchemaChanged: objects have columns\n  at Spark")

    monkeypatch.setattr("queue_source.spark.load.quiet_session", lambda master: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr("queue_source.spark.load.LoadQuery.start", lambda *_, **__: Ending())
    arguments = ["load", "--prefix", f"file://{tmp_path}/", "--format", "json", "--path", str(tmp_path / "out")]
    options = ["--option", "source=files", "--option", f"schemaLocation={tmp_path}/schemas"]
    ended = cuesqueue(*arguments, *options, "--store", f"sqlite:///{tmp_path}/store.db")
    assert (ended.exit_code, starts) == (1, 3)
    assert ended.stderr.splitlines() == [
        "2 columns added: id INT, price1 DOUBLE; going on",
        "1 column added: price2 DOUBLE; going on",
        "error: objects have columns",
    ]


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("no answer")])
def test_load_says_that_java_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def gone(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("queue_source.spark.load.quiet_session", lambda master: SimpleNamespace(stop=gone))
    monkeypatch.setattr("queue_source.spark.load.LoadQuery.start", gone)
    arguments = ["load", "--prefix", f"file://{tmp_path}/", "--format", "json", "--path", str(tmp_path / "out")]
    options = ["--option", "source=files", "--schema", "id INT"]
    ended = cuesqueue(*arguments, *options, "--store", f"sqlite:///{tmp_path}/store.db")
    assert (ended.exit_code, "Spark's Java process has ended" in ended.stderr) == (1, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_a_command_with_a_sentence_and_its_code(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    closed: list[str] = []
    before = signal.signal(number, signal.SIG_DFL)  # tests that are run by `nohup` or in the background ignore some

    def work() -> None:
        try:
            signal.raise_signal(number)
        finally:
            closed.append("what was open")

    try:
        with pytest.raises(typer.Exit) as ended, errors_as_exit_codes():
            work()
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert ended.value.exit_code == 128 + number
    assert capsys.readouterr().err == f"error: stopped by {number.name}\n"
    assert closed


def test_memory_that_runs_out_is_one_line_and_the_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, errors_as_exit_codes():
        bytearray(2**62)
    assert (ended.value.exit_code, capsys.readouterr().err) == (1, "error: memory ran out\n")


def test_a_signal_that_is_ignored_stays_so_and_a_thread_of_its_own_needs_none() -> None:
    """As `nohup` has it for SIGHUP, and a shell for Ctrl-C of what it starts in the background."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with errors_as_exit_codes():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    with ThreadPoolExecutor(1) as pool, errors_as_exit_codes():
        assert pool.submit(_within).result() == "ran"


def _within() -> str:
    with errors_as_exit_codes():
        return "ran"
