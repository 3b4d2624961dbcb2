"""Opening queues by URL: adapters on demand, names for people, and no secret in any text."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from queue_source.errors import QueueConfigurationError
from queue_source.queues import open_queue, queue_name, redact
from queue_source.queues.sql import SqlQueue


def test_a_sql_url_opens_a_queue_and_connects_to_nothing_yet(tmp_path: Path) -> None:
    with open_queue(f"sql+sqlite:///{tmp_path}/jobs.db?queue=files") as queue:
        assert isinstance(queue, SqlQueue)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("sqss://name", "did you mean 'sqs'?"),
        ("pub-sub://p/s", "did you mean 'pubsub'?"),
        ("sqlite:///jobs.db", "did you mean 'sql+sqlite://...?queue=NAME'?"),
        ("postgresql+psycopg://u:hunter2@h/db", "did you mean 'sql+postgresql+psycopg://...?queue=NAME'?"),
        ("postgres://u:hunter2@h/db", "did you mean 'sql+postgresql://...?queue=NAME'?"),
        ("kafka://h/topic", "package.module:factory"),
        ("jobs.db", "not a queue URL"),
        ("", "not a queue URL"),
    ],
)
def test_an_unknown_kind_says_what_was_perhaps_meant(url: str, hint: str) -> None:
    with pytest.raises(QueueConfigurationError) as told:
        open_queue(url)
    assert hint in str(told.value)
    assert "hunter2" not in str(told.value)


def test_an_adapter_that_is_not_there_says_which_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "queue_source.queues.amqp", None)  # as if the file were missing
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name.endswith(".sql") or None)
    with pytest.raises(QueueConfigurationError, match=r"no adapter for amqp://.*it has sql\+SQLALCHEMY-URL"):
        open_queue("amqp://user:hunter2@host/vhost?source=s&pool=p")


def test_a_missing_sdk_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> types.ModuleType:
        raise ModuleNotFoundError("No module named 'boto3'", name="boto3")

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(QueueConfigurationError, match=r"pip install 'cuesqueue\[sqs\]'"):
        open_queue("https://sqs.eu-central-1.amazonaws.com/123456789012/files")


def test_a_factory_of_ones_own_is_called_with_the_url_and_the_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[object] = []

    def make(url: str, **options: Any) -> SqlQueue:
        seen.append((url, options))
        return SqlQueue(f"sql+sqlite:///{tmp_path}/own.db?queue=q")

    module = types.ModuleType("my_queues")
    module.make, module.broken, module.number = make, lambda url: object(), 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_queues", module)
    assert open_queue("my_queues:make?depth=3", region="x").name.endswith("queue=q")
    assert seen == [("my_queues:make?depth=3", {"region": "x"})]
    for url, problem in [("broken", "not a Queue"), ("number", "cannot be called"), ("missing", "cannot be loaded")]:
        with pytest.raises(QueueConfigurationError, match=problem):
            open_queue(f"my_queues:{url}")


def test_a_queue_of_ones_own_that_lacks_a_verb_is_refused_by_the_name_of_the_verb(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verbs = ("name", "receive", "extend", "acknowledge", "nack", "reject", "republish", "depth", "close")
    module = types.ModuleType("old_queues")
    module.make = lambda url: types.SimpleNamespace(**dict.fromkeys((*verbs, "publish")))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "old_queues", module)
    with pytest.raises(QueueConfigurationError, match=r"not a Queue: it has no send$"):
        open_queue("old_queues:make")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sql+sqlite:///jobs.db?queue=files", "files"),
        ("sql+postgresql://u:p%2F@h/db?sslmode=require&queue=a%20b", "a b"),
        ("sqs://orders", "orders"),
        ("https://sqs.eu-central-1.amazonaws.com/123456789012/orders.fifo", "orders.fifo"),
        ("pubsub://project/subscription", "subscription"),
        ("amqp://u:p/x@h:5672/vhost?source=s&pool=p", "p"),
        ("amqp://h/vhost?source=s&listener=true", "s"),
        ("sim://tests?dir=/tmp/x", "tests"),
        ("package.module:factory?name=n", "n"),
        ("package.module:factory", "package.module.factory"),
    ],
)
def test_the_short_name_of_a_queue(url: str, name: str) -> None:
    assert queue_name(url) == name


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sql+postgresql://u:hunter2@h:5432/db?queue=q", "sql+postgresql://u:***@h:5432/db?queue=q"),
        ("sql+postgresql://u:hunter2/hun?ter2@h/db?queue=q", "sql+postgresql://u:***@h/db?queue=q"),
        ("amqp://u:hunter2@hunter2@h/v", "amqp://u:***@h/v"),
        ("amqp://u:hunter2@hun/ter2@h/v", "amqp://u:***@h/v"),
        ("amqp://:hunter2@h/v", "amqp://:***@h/v"),
        ("sql+mysql://h/db?queue=q&password=hunter2&x=1", "sql+mysql://h/db?queue=q&password=***&x=1"),
        ("sqs://n?aws.secretAccessKey=hunter2", "sqs://n?aws.secretAccessKey=***"),
        ("amqp://a:hunter2@h/v,amqp://b:hunter2@h/w", "amqp://a:***@h/v,amqp://b:***@h/w"),
        ("http://127.0.0.1:4566/0/a,amqp://b:hunter2@h/w", "http://127.0.0.1:4566/0/a,amqp://b:***@h/w"),
        ("sql+sqlite:////data/a@b.db?queue=a@b", "sql+sqlite:////data/a@b.db?queue=a@b"),
        ("https://sqs.eu-central-1.amazonaws.com/1/q", "https://sqs.eu-central-1.amazonaws.com/1/q"),
    ],
)
def test_no_secret_is_shown(url: str, shown: str) -> None:
    assert redact(url) == shown
    assert "hunter2" not in redact(url)
