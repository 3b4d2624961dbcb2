"""What is done with objects that were read (`queue_source.coordinator.cleaning`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from queue_source.options import types
from queue_source.options.declaring import OnChange, option

RETENTION = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class CleaningOptions:
    """Deleting or moving objects some time after they were read; nothing where `clean_source` is off.

    Attributes:
        destination: A prefix that ends with a slash, or None where nothing is moved.
    """

    TITLE: ClassVar = "After reading"
    ON_CHANGE: ClassVar = OnChange.AT_ONCE

    # fmt: off
    clean_source: str = option(
        "cleanSource", types.CLEAN_SOURCE, "off", example="move",
        help="What becomes of an object once all of its rows have been published for `cleanSource.retentionDuration`: "
        "nothing, or it is deleted, or moved. Only within `allowedPrefixes`, and only while it is the object that was "
        "read. [How to clean a source](../how-to/clean-source.md).",
    )
    destination: str | None = option(
        "cleanSource.moveDestination", types.FOLDER, example="s3://landing/archive/",
        help="Folder that objects are moved to, with their whole path below it: in the same bucket, and outside of "
        "`allowedPrefixes`.",
        on_change="What is not yet moved goes to the new folder.",
    )
    retention: timedelta = option(
        "cleanSource.retentionDuration", types.DURATION, example="7 days", note="`30 days`",
        help="How long an object stays where it was read from; at most `deduplicationWindow`, and never less than ten "
        "minutes.",
        on_change="Takes effect for what becomes due from then on.",
    )
    # fmt: on
