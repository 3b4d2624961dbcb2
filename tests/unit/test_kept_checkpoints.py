"""Offsets are read for ever: checkpoints that Spark wrote for earlier versions, with the stores that belong to them.

Whoever changes the form of an offset keeps a checkpoint of the new form too (`support/engine/keep_checkpoint.py`), and
removes none: `FORMS` names those that exist. With a real Spark: `engine/test_kept_checkpoints.py`.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from queue_source.options import parse_reader_options
from queue_source.queues import open_queue
from queue_source.spark.compat import arrow_schema
from queue_source.spark.reader import CuesqueueStreamReader
from queue_source.spark.source import CuesqueueSource
from support.driver_loop import until
from support.kept_checkpoints import ARCHIVES, unpack

FORMS = {
    "schema-0001": {"pipeline", "seq"},
    "schema-0009": {"pipeline", "seq"},
    "schema-0012": {"pipeline", "seq", "store"},
}
"""The names in an offset: since 0.1.0, and since the store is one of them."""


def test_there_is_a_checkpoint_of_each_form() -> None:
    assert {archive.stem for archive in ARCHIVES} >= FORMS.keys()


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.stem)
def test_a_kept_checkpoint_is_of_a_form_that_is_known(archive: Path, tmp_path: Path) -> None:
    for offset in unpack(archive, tmp_path).offsets().values():
        assert set(offset) == FORMS[archive.stem]


def test_the_newest_kept_checkpoint_is_of_the_form_that_is_written_today(tmp_path: Path) -> None:
    """A new form fails here: add a checkpoint of it, and let the test below read all."""
    kept = unpack(ARCHIVES[-1], tmp_path)
    reader = CuesqueueStreamReader(parse_reader_options(kept.source()), CuesqueueSource(kept.source()).schema())
    try:
        assert set(reader.initialOffset()) == FORMS[ARCHIVES[-1].stem]
    finally:
        reader.stop()


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.stem)
def test_todays_reader_goes_on_with_a_kept_checkpoint(archive: Path, tmp_path: Path) -> None:
    kept = unpack(archive, tmp_path)
    offsets = kept.offsets()
    last = max(offsets)
    assert last not in kept.done(), "it was killed in its last batch"
    source = CuesqueueSource(kept.source())
    schema = source.schema()
    reader = CuesqueueStreamReader(parse_reader_options(kept.source()), schema)
    try:

        def read(start: dict[str, object], end: dict[str, object]) -> list[str]:
            tasks = reader.partitions(start, end)
            batches = [batch for task in tasks for batch in reader.read(task)]
            place = arrow_schema(schema).get_field_index("value")
            return sorted(bytes(value.as_py()).decode() for batch in batches for value in batch.column(place))

        assert read(offsets[last - 1], offsets[last]) == kept.in_flight
        with open_queue(kept.queue_url) as queue:
            queue.publish(["new"])
        found = [offsets[last]]

        def ask() -> None:
            time.sleep(0.05)  # as a trigger
            found.append(reader.latestOffset(offsets[last]))

        until(lambda: found[-1] != offsets[last], ask)
        assert found[-1]["seq"] == offsets[last]["seq"] + 1
        assert read(offsets[last], found[-1]) == ["new"]
    finally:
        reader.stop()
