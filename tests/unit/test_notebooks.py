"""What notebooks show of what the face returns: short tables, escaped, and without secrets."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import cuesqueue
from shard_store.notebooks import NotebookTable
from shard_store.shards.activity import Report
from support.store_backends import Pipeline


@dataclass(frozen=True, slots=True)
class Inner:
    rows: int = 1200000
    rate: float = 12.345


@dataclass(frozen=True, slots=True)
class Fact(NotebookTable):
    key: bytes = b"\xab" * 20
    shard_id: str = "<b>s3://bucket/a?sig=secret</b>"
    opened_at: int = 1_764_000_000_000_000
    seen: datetime = datetime(2026, 11, 25, 20, 0, tzinfo=timezone.utc)
    inner: Inner = Inner()
    errors: dict[str, int] = field(default_factory=lambda: {"missing-object": 2})
    files: tuple[str, ...] = tuple(f"file-{number}" for number in range(30))
    nothing: str | None = None


def test_a_fact_is_a_table_of_its_fields() -> None:
    html = Fact()._repr_html_()
    for part in (
        "abababababab<",
        "&lt;b&gt;s3://bucket/a",
        "2025-11-24 16:00:00+00:00",
        "2026-11-25 20:00:00+00:00",
        "1,200,000",
        "12.3",
        "missing-object: 2",
        "file-19<br>and 10 more",
        "shard id",
    ):
        assert part in html
    assert not [part for part in ("<b>", "secret", "nothing", "file-20") if part in html]


def test_pipelines_and_stories_are_short_in_a_notebook(tmp_path: Path) -> None:
    with cuesqueue.open_store(f"sqlite:///{tmp_path}/store.db") as store:
        us = Pipeline.start(store, "orders")
        us.open("s3://bucket/a.json")
        store.retire(us.token, Report(stopped=True))
        pipelines = cuesqueue.status(store)
        (story,) = cuesqueue.shard_stories(store, cuesqueue.ShardCriteria(ids=["s3://bucket/a.json"]))
    assert pipelines == tuple(pipelines)
    table = pipelines._repr_html_()  # type: ignore[attr-defined]
    assert table.count("<tr>") == 2
    assert "<td>orders</td><td>stopped</td>" in table
    assert "heartbeat at" in pipelines[0]._repr_html_()
    assert story._repr_html_().startswith("<p>open: it waits to be planned")
    assert "s3://bucket/a.json" in story._repr_html_()
