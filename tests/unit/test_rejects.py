"""Rows that a user's function rejects, without Spark; tests/engine/test_error_queue.py has DataFrames."""

from __future__ import annotations

from pathlib import Path

import pytest

from queue_source.foreach_batch import reject_rows
from shard_store.errors import PipelineTakenOver, StoreConfigurationError
from shard_store.store import open_store
from support.store_backends import Pipeline, rows


def test_mappings_text_and_bytes_are_recorded_once_however_often_the_batch_runs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with open_store(url) as store:
        plan = Pipeline.start(store).planned("a")
        given = [{"id": 1, "name": "ä"}, {"id": 1, "name": "ä"}, "text \ud800", b"\xff"]
        for _ in range(2):
            assert reject_rows(given, store=url, pipeline="p", batch_id=7, reason="no") == 4
        assert reject_rows(iter(()), store=store, pipeline="p") == 0
        found = rows(store, "errors")
        assert sorted(bytes(row["input"]) for row in found) == sorted(
            [b'{"id": 1, "name": "\xc3\xa4"}'] * 2 + [b"text \xed\xa0\x80", b"\xff"]
        )
        told = {(row["scope"], row["cause"], row["detail"], row["delivery_hash"]) for row in found}
        assert told == {("row", "rejected-row", "no", plan.identity.delivery_hash)}
        for other in ({"batch_id": 8}, {"cause": "another"}):
            reject_rows([b"\xff"], store=store, pipeline="p", **{"batch_id": 7, **other})  # type: ignore[arg-type]
        assert len(rows(store, "errors")) == 6, "another batch, or another cause, is another error"


def test_a_driver_that_was_replaced_rejects_no_rows_of_its_replacements_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        Pipeline.start(store, driver="replacement").planned("a")
        monkeypatch.setattr("queue_source.foreach_batch.driver_identity", lambda: "paused")
        with pytest.raises(PipelineTakenOver):
            reject_rows([b"x"], store=store, pipeline="p")
        assert rows(store, "errors") == []


def test_a_long_cause_an_unknown_pipeline_and_a_store_that_is_not_there_are_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with open_store(url), pytest.raises(StoreConfigurationError, match="no cuesqueue source named 'other'"):
        reject_rows([b"x"], store=url, pipeline="other")
    for cause in ("", "x" * 41, "no\0", "no\ud800"):
        with pytest.raises(ValueError, match="must have 1 to 40 printable characters"):
            reject_rows([b"x"], store=url, pipeline="p", cause=cause)
    with pytest.raises(StoreConfigurationError, match="no such file"):
        reject_rows([b"x"], store=f"sqlite:///{tmp_path}/absent.db", pipeline="p")
