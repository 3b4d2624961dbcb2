"""What is compared with listings, and how often (`queue_source.coordinator.backfill`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from queue_source.options import types
from queue_source.options.declaring import OnChange, option

WITH_QUEUE = timedelta(days=1), timedelta(minutes=10)
ALONE = timedelta(minutes=1), timedelta(0)
"""The defaults of interval and grace, beside a queue and without one."""


@dataclass(frozen=True, slots=True)
class BackfillOptions:
    """Listings that find what no message has announced; none while there are no `prefixes`."""

    TITLE: ClassVar = "Backfill"
    ON_CHANGE: ClassVar = OnChange.ANNOUNCED

    # fmt: off
    prefixes: tuple[str, ...] = option(
        "backfillPrefixes", types.PREFIXES, example="s3://landing/orders/",
        help="Folders or buckets that are listed, by one of all pipelines of the source: an object that the store does "
        "not know is read as if it had been announced. Without `queueUrl` listings are all that is read from. [How to "
        "backfill](../how-to/backfill.md).",
    )
    interval: timedelta = option(
        "backfillInterval", types.DURATION, example="1 week", note="`1 day`; `1m` without `queueUrl`",
        help="How often each of `backfillPrefixes` is listed, from the beginning of one listing to that of the next.",
    )
    grace: timedelta = option(
        "backfillGrace", types.WAIT, example="1h", note="`10m`; `0s` without `queueUrl`",
        help="How old an unknown object has to be: what is younger is left to its message, or to the next listing.",
    )
    include_existing: bool = option(
        "includeExistingFiles", types.BOOLEAN, example="false", note="`true`",
        help="Read objects that were there before the source was listed for the first time. It is looked at then, and "
        "never again.",
        on_change="No effect: it is looked at when the source is listed for the first time.",
    )
    # fmt: on
