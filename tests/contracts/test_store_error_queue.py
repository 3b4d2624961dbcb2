"""Contract: an error queue in the store's own database gets each error in the transaction that marks it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queue_source.coordinator.errors import ErrorQueue
from queue_source.queues.sql import SqlQueue
from shard_store.error_table import handling
from shard_store.model import ErrorRecord
from support.sessions import make_session
from support.store_backends import Pipeline, StoreBackend, rows


def test_errors_are_sent_and_marked_together_or_not_at_all(
    backend: StoreBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = backend.open()
    us = Pipeline.start(store)
    store.record_errors("s", "p", [ErrorRecord("message", "c", "", f"m{i}", input=b"\xff") for i in range(450)])
    url = f"sql+{backend.url}{'&' if '?' in backend.url else '?'}queue=errors"
    with SqlQueue(url) as queue:
        queue.purge()  # the servers' databases are emptied of the store's tables only
        errors = ErrorQueue(make_session(store, token=us.token, source="s"), queue)
        with monkeypatch.context() as patched:
            patched.setattr(handling, "mark_delivered", died)
            with pytest.raises(RuntimeError, match="died"):
                errors.forward()
        assert queue.peek(1) == []
        errors.forward()
        errors.forward()
        sent = [json.loads(message.body)["error_id"] for message in queue.peek(1000)]
    told = {row["error_id"]: (row["state"], row["delivered_to"]) for row in rows(store, "errors")}
    assert sorted(sent) == sorted(told)
    assert set(told.values()) == {("delivered", queue.name)}


def died(*_: object) -> None:
    raise RuntimeError("died")


def test_a_queue_in_another_database_does_not_join(backend: StoreBackend, tmp_path: Path) -> None:
    store = backend.open()
    with SqlQueue(f"sql+sqlite:///{tmp_path}/another.db?queue=errors") as queue:
        assert not queue.joins(store.database)
    assert not (tmp_path / "another.db").exists()
    secret = backend.url.replace("postgres@", "postgres:secret@")
    with SqlQueue(f"sql+{secret}{'&' if '?' in secret else '?'}queue=errors") as queue:
        assert queue.joins(store.database), "passwords do not count"
