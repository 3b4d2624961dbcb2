"""All options of `spark.read.format("cuesqueue")`, as a frozen group."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from queue_source.options import types
from queue_source.options.declaring import option
from queue_source.options.reader import store_url
from queue_source.options.secrets import SecretUrl
from queue_source.options.storage import StorageOptions

# "data", and the keys of `shard_store.operators.views.VIEWS`, which loads SQLAlchemy: executors read options without it
_VIEWS = ("data", "splits", "shards", "attempts", "errors", "cleanings", "files_state", "completeness")


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """All options of a batch view. `pipeline` and `source` are filters, None for all; of the last two one is given."""

    TITLE: ClassVar = "View and store"

    storage: StorageOptions
    store: SecretUrl = store_url()
    # fmt: off
    view: str = option(
        "view", types.choice(*_VIEWS), "data", example="shards",
        help="What is read: the published rows, or a table of the store.",
    )
    pipeline: str | None = option(
        "pipeline", types.NAME, help="Only what belongs to this pipeline.", example="orders", note="all"
    )
    source: str | None = option(
        "source", types.NAME, help="Only what belongs to this source.", example="orders", note="all"
    )
    as_of: datetime | None = option(
        "asOf", types.TIME, example="2026-11-20T08:30:00Z", note="now",
        help="Only what was published at this time. Views `data` and `splits`.",
    )
    as_of_attempt: str | None = option(
        "asOfAttempt", types.DELIVERY_HASH, note="the last one",
        help="Only what was published by this attempt and those before it. Views `data` and `splits`.",
    )
    # fmt: on
