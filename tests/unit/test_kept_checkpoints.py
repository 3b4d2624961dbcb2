"""Offsets are read for ever: checkpoints that Spark wrote for earlier versions, with the stores that belong to them.

Whoever changes the form of an offset keeps a checkpoint of the new form too (`support/engine/keep_checkpoint.py`):
`FORMS` names those that exist. With a real Spark: `engine/test_kept_checkpoints.py`.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from queue_source.options import parse_reader_options
from queue_source.queues import open_queue
from queue_source.spark.process import arrow_schema
from queue_source.spark.reader import CuesqueueStreamReader
from queue_source.spark.source import CuesqueueSource
from support.driver_loop import until
from support.kept_checkpoints import ARCHIVES, migrated

FORMS = {"schema-0013": {"pipeline", "seq", "store"}}
"""The names in an offset."""


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.stem)
def test_todays_reader_goes_on_with_a_kept_checkpoint_and_writes_the_form_of_the_newest(
    archive: Path, tmp_path: Path
) -> None:
    """A new form fails here: add a checkpoint of it, and let this test read all."""
    kept = migrated(archive, tmp_path)
    offsets = kept.offsets()
    for offset in offsets.values():
        assert set(offset) == FORMS[archive.stem]
    last = max(offsets)
    source = CuesqueueSource(kept.source())
    schema = source.schema()
    reader = CuesqueueStreamReader(parse_reader_options(kept.source()), schema)
    try:
        assert set(reader.initialOffset()) == FORMS[ARCHIVES[-1].stem]
        with open_queue(kept.queue_url) as queue:
            queue.publish(["new"])
        found = [offsets[last]]

        def ask() -> None:
            time.sleep(0.05)  # as a trigger
            found.append(reader.latestOffset(offsets[last]))

        until(lambda: found[-1] != offsets[last], ask)
        assert found[-1]["seq"] == offsets[last]["seq"] + 1
        batches = [batch for task in reader.partitions(offsets[last], found[-1]) for batch in reader.read(task)]
        place = arrow_schema(schema).get_field_index("value")
        assert [bytes(value.as_py()) for batch in batches for value in batch.column(place)] == [b"new"]
    finally:
        reader.stop()


def test_there_is_a_checkpoint_of_each_form() -> None:
    assert {archive.stem for archive in ARCHIVES} == FORMS.keys()
