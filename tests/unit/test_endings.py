"""Errors of ours reach Spark as one line, and a script ends with the sentence that helps."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource

from queue_source.common.logs import HIDE, end_idle_without_trace, error_of, last_line, one_line_errors, whole_errors
from queue_source.errors import CuesqueueError, OptionError, QueueNotFound, SinkFailed
from queue_source.queues.urls import KINDS
from queue_source.spark.source import CuesqueueSource
from shard_store.errors import ShardStoreError, StoreUnavailable

OF_SPARK_4_3 = """[STREAM_FAILED] Query [id = 1] terminated with exception: Failed when Python streaming data source \
perform latestOffset: queue_source.errors.QueueNotFound: queue 'sqs://ordres': the queue does not exist; create it
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Current State: INITIALIZING
Thread State: RUNNABLE"""
OF_SPARK_4_0 = """Query [id = 1] terminated with exception: pyspark.errors.exceptions.base.PySparkRuntimeError: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when running Python streaming data source: data source cuesqueue \
throw exception: option 'storeUrl': is no URL; write one
Thread State: RUNNABLE"""
OF_SPARK_4_0_AS_IT_IS = OF_SPARK_4_0.replace("source cuesqueue", f"source {CuesqueueSource.name}")
OF_OTHERS = OF_SPARK_4_0.replace("source cuesqueue", "source jdbc").replace("storeUrl", "password=secret")
CHAIN = """Traceback (most recent call last):
psycopg.OperationalError: connection refused

The above exception was the direct cause of the following exception:

shard_store.errors.StoreUnavailable: database 'postgresql://db' did not serve us within 120 s: connection refused
Thread State: RUNNABLE"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (OF_SPARK_4_3, "queue 'sqs://ordres': the queue does not exist; create it (docs/how-to/sqs.md)"),
        (
            OF_SPARK_4_3.replace("sqs://ordres", "amqps://host/v?source=s"),
            "queue 'amqps://host/v?source=s': the queue does not exist; create it (docs/how-to/rabbitmq.md)",
        ),
        (OF_SPARK_4_0, "option 'storeUrl': is no URL; write one (docs/reference/options.md)"),
        (OF_SPARK_4_0_AS_IT_IS, "option 'storeUrl': is no URL; write one (docs/reference/options.md)"),
        (OF_OTHERS, None),
        (OF_OTHERS.replace("source jdbc", f"source {DataSource.name}"), None),
        (
            CHAIN,
            "database 'postgresql://db' did not serve us within 120 s: connection refused (docs/how-to/store.md)",
        ),
        (
            "queue_source.errors.OptionError: option 'x': is wrong; see docs/how-to/iceberg.md",
            "option 'x': is wrong; see docs/how-to/iceberg.md",
        ),
        ("ValueError: something of the user's own", None),
        ("AnalysisException: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: parket", None),
    ],
)
def test_the_last_line_has_the_sentence_and_a_page(text: str, line: str | None) -> None:
    assert last_line(text) == line


def test_the_pages_of_last_lines_exist() -> None:
    from queue_source.common import logs
    from support.snippets import ROOT

    of_queues = {kind.page for kind in KINDS.values()}
    pages = {*logs._PAGES.values(), *of_queues, logs._TROUBLESHOOTING}
    assert not [page for page in pages if not (ROOT / page).is_file()]


def test_a_wrong_python_is_said_with_the_variable_that_names_the_right_one() -> None:
    text = "pyspark.errors.exceptions.captured.StreamingQueryException: Python worker failed to connect back."
    line = last_line(text)
    assert line is not None
    assert "PYSPARK_PYTHON" in line
    assert sys.executable in line
    assert last_line("ModuleNotFoundError: No module named 'pyarrow'") is None  # of the script itself


def test_class_and_sentence_are_those_of_the_innermost_text() -> None:
    kind, sentence = error_of(OF_SPARK_4_3) or ("", "")
    assert sentence == "queue 'sqs://ordres': the queue does not exist; create it"
    assert kind.startswith("Queue")
    assert error_of("ValueError: not ours") is None


@pytest.mark.parametrize(
    ("main", "debug", "error", "hidden"),
    [
        ("pyspark.sql.streaming.python_streaming_source_runner", "", QueueNotFound("q", "is not there"), True),
        ("pyspark.daemon", "0", StoreUnavailable("gone"), True),
        ("pyspark.daemon", "1", StoreUnavailable("gone"), False),
        ("pyspark.daemon", "", ZeroDivisionError("a bug keeps its trace"), False),
        ("pytest.__main__", "", OptionError("x", "in the user's own process others keep theirs"), False),
    ],
)
def test_an_error_of_ours_leaves_a_process_of_spark_without_its_trace(
    main: str, debug: str, error: Exception, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=SimpleNamespace(name=main)))
    monkeypatch.setenv("CUESQUEUE_DEBUG", debug)
    monkeypatch.setenv(HIDE, "")  # restored afterwards
    monkeypatch.delenv(HIDE)

    @one_line_errors()
    def fail() -> None:
        raise error

    with pytest.raises((CuesqueueError, ShardStoreError), match=str(error)):
        fail()
    assert bool(os.environ.get(HIDE)) is hidden


@pytest.mark.parametrize(("program", "silent"), [("pyspark.daemon", True), ("pyspark.worker", False)])
def test_a_worker_without_work_whose_socket_spark_closes_ends_without_a_trace(
    program: str, silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worker(sock: object, authenticated: bool) -> int:
        if authenticated:
            raise BrokenPipeError
        return 0

    main = SimpleNamespace(__spec__=SimpleNamespace(name=program), worker=worker)
    monkeypatch.setitem(sys.modules, "__main__", main)
    end_idle_without_trace()
    assert main.worker(None, False) == 0
    with nullcontext() if silent else pytest.raises(BrokenPipeError):
        assert main.worker(None, True) == 1


@pytest.mark.parametrize("of_user", [None, "1"])
def test_an_error_while_one_of_ours_ends_the_process_hides_neither(
    of_user: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = SimpleNamespace(__spec__=SimpleNamespace(name="pyspark.daemon"))
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setenv("CUESQUEUE_DEBUG", "")
    monkeypatch.setenv(HIDE, of_user or "")
    if of_user is None:
        monkeypatch.delenv(HIDE)

    @one_line_errors()
    def fail() -> None:
        raise StoreUnavailable("gone")

    @whole_errors()
    def stop() -> None:
        raise ZeroDivisionError

    with pytest.raises(StoreUnavailable):
        fail()
    with pytest.raises(CuesqueueError, match="ZeroDivisionError"):
        stop()
    assert os.environ.get(HIDE) == of_user


def test_spark_hands_on_what_a_sink_says_while_it_is_pickled() -> None:
    """PySpark makes a PicklingError with a trace of everything else."""
    from pyspark.serializers import CloudPickleSerializer

    class Writer:
        def __getstate__(self) -> dict[str, object]:
            raise SinkFailed("option 'table': needs PyIceberg")

    serializer: Any = CloudPickleSerializer  # without types
    with pytest.raises(SinkFailed, match=r"^option 'table': needs PyIceberg$"):
        serializer().dumps(Writer())
    assert issubclass(SinkFailed, pickle.PickleError)


def test_a_script_that_imports_cuesqueue_ends_with_the_sentence() -> None:
    script = """
        import sys
        sys.excepthook = lambda *error: print("the user's own hook", file=sys.stderr)
        import cuesqueue
        import cuesqueue
        cuesqueue.OptionError
        raise {}
        """
    ours = _run(textwrap.dedent(script).format("cuesqueue.OptionError('queueUrl', 'is required')"))
    assert ours == [
        "the user's own hook",
        "ERROR cuesqueue: option 'queueUrl': is required (docs/reference/options.md)",
    ]
    assert _run(textwrap.dedent(script).format("ValueError('not ours')")) == ["the user's own hook"]


def _run(script: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr.splitlines()
