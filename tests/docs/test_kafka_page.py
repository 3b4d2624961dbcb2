"""What the page of Kafka shows runs, on a broker of the tests; MinIO's command line is not part of the tests."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest

from docs.test_pages import Reader
from queue_source.options import parse_reader_options
from queue_source.queues.urls import KAFKA_REFUSED as REFUSED
from support.servers.kafka import Kafka
from support.snippets import ROOT, blocks

FILE = ROOT / "docs" / "how-to" / "kafka.md"
PAGE = blocks(FILE)


def test_the_commands_of_the_page_work(tmp_path: Path, kafka_broker: Kafka) -> None:
    (commands,) = [block.text for block in PAGE if block.language == "bash"]
    there = commands.replace("localhost:9092/landing", f"{kafka_broker.hosts}/landing-{time.monotonic_ns()}")
    printed = Reader(tmp_path).run(there)
    assert "s3://landing/in/a.json" in printed
    assert "ready" in printed


def test_the_options_of_the_page_are_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "hush")
    query = next(block.text for block in PAGE if block.language == "python" and "readStream" in block.text)
    calls = [node for node in ast.walk(ast.parse(query)) if isinstance(node, ast.Call)]
    given = {
        call.args[0].value: call.args[1].value
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "option"
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[1], ast.Constant)
    }
    options = parse_reader_options({str(name): str(value) for name, value in given.items()})
    assert options.source == "landing"
    assert set(options.queue.connections["kafka"]["settings"]) == {
        "security.protocol",
        "sasl.mechanism",
        "sasl.username",
        "sasl.password",
    }


def test_the_settings_that_the_page_calls_the_readers_own_are_refused() -> None:
    named = {"bootstrap.servers", "group.id", "auto.offset.reset", "enable.auto.commit"}
    text = FILE.read_text("utf-8")
    assert named <= REFUSED.keys()
    assert all(f"`kafka.{name}`" in text for name in named)
