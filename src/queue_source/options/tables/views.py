"""What `spark.read.format("cuesqueue")` knows."""

from __future__ import annotations

from queue_source.options import kinds
from queue_source.options.kinds import choice
from queue_source.options.tables.access import STORAGE_OPTIONS, STORE_OPTION
from queue_source.options.tables.entry import Option

# "data", and the keys of `shard_store.views.VIEWS`, which loads SQLAlchemy: executors read options without it
_VIEWS = ("data", "splits", "shards", "attempts", "errors", "files_state")

VIEW_OPTIONS = (
    STORE_OPTION,
    Option(
        "view", "names", choice(*_VIEWS), "data",
        "What is read: the published rows, or a table of the store.", "shards",
    ),
    Option("pipeline", "names", kinds.NAME, None, "Only what belongs to this pipeline.", "orders", "all"),
    Option("source", "names", kinds.NAME, None, "Only what belongs to this source.", "orders", "all"),
    Option(
        "asOf", "names", kinds.TIME, None,
        "Only what was published at this time. Views `data` and `splits`.", "2026-11-20T08:30:00Z", "now",
    ),
    Option(
        "asOfAttempt", "names", kinds.DELIVERY_HASH, None,
        "Only what was published when this attempt had been. Views `data` and `splits`.", "", "the last one",
    ),
    *STORAGE_OPTIONS,
)  # fmt: skip
