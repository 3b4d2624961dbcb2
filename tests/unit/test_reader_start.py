"""The start of a reader in Spark's process: what it opened is closed when it cannot go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from queue_source.errors import QueueConfigurationError
from queue_source.spark import reader
from support.driver_loop import reader_options


def test_a_queue_that_cannot_be_opened_leaves_none_of_those_before_it_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    class Opened:
        def __init__(self, url: str) -> None:
            self.name = url

        def close(self) -> None:
            closed.append(self.name)

    def open_queue(url: str, **options: object) -> Opened:
        if url == "sim://second":
            raise QueueConfigurationError("second", "cannot be opened")
        return Opened(url)

    monkeypatch.setattr("queue_source.queues.open_queue", open_queue)
    with pytest.raises(QueueConfigurationError):
        reader._start(reader_options("sim://first,sim://second", f"sqlite:///{tmp_path}/store.db", source="s"))
    assert closed == ["sim://first"]
