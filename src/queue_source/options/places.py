"""Where options are given: to a reader, a sink or a view, each with its options in the order of the reference page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from queue_source.options.connections import (
    AZURE_QUEUE_OPTIONS,
    GOOGLE_OPTIONS,
    KAFKA_OPTIONS,
    SQS_OPTIONS,
    STORAGE_OPTIONS,
    StorageOptions,
)
from queue_source.options.content import ContentOptions, FormatOptions, SchemaOptions
from queue_source.options.declaring import OnChange, Option, options_of
from queue_source.options.reader import (
    BatchOptions,
    CleaningOptions,
    DeduplicationOptions,
    DeliveryOptions,
    LeaseOptions,
    LogOptions,
    ReaderOptions,
    ViewOptions,
)
from queue_source.options.receiving import BackfillOptions, NotificationOptions, QueueOptions
from queue_source.options.sink import DeltaOptions, LoadOptions, SinkOptions, TableOptions, TargetQueue


@dataclass(frozen=True, slots=True)
class Place:
    """A place where options are set.

    Attributes:
        call: What a user calls before `format("cuesqueue")`.
        sections: Title -> options.
        no_path: Why `load()` takes no path here; "" where there is one.
        others: Options of another place that act here too, with what is in the sections; documented there.
    """

    call: str
    sections: Mapping[str, tuple[Option, ...]]
    no_path: str = ""
    others: tuple[Option, ...] = ()

    @property
    def options(self) -> tuple[Option, ...]:
        own = (option for options in self.sections.values() for option in options)
        return (*own, *self.others)


def _sections(*groups: type, access: tuple[Option, ...]) -> dict[str, tuple[Option, ...]]:
    return {**{group.TITLE: options_of(group) for group in groups}, StorageOptions.TITLE: access}  # type: ignore[attr-defined]


_ACCESS = (*STORAGE_OPTIONS, *AZURE_QUEUE_OPTIONS, *SQS_OPTIONS, *GOOGLE_OPTIONS, *KAFKA_OPTIONS)
"""How objects and queues are reached."""


def _named(group: type, *names: str) -> tuple[Option, ...]:
    """Return these options of a group."""
    return tuple(option for option in options_of(group) if option.name in names)


READER = Place(
    "readStream",
    _sections(
        QueueOptions,
        ReaderOptions,
        NotificationOptions,
        BackfillOptions,
        ContentOptions,
        FormatOptions,
        SchemaOptions,
        BatchOptions,
        LeaseOptions,
        DeduplicationOptions,
        DeliveryOptions,
        CleaningOptions,
        LogOptions,
        access=_ACCESS,
    ),
    no_path="a streaming read takes no path: the queue announces what is read; call load() without an argument, and "
    "set allowedPrefixes to limit what may be read; a folder that is to be listed is named in backfillPrefixes",
)
SINK = Place(
    "writeStream",
    _sections(
        SinkOptions,
        TableOptions,
        DeltaOptions,
        LoadOptions,
        TargetQueue,
        LogOptions,
        access=_ACCESS,
    ),
    others=tuple(
        option
        for option in options_of(ContentOptions, FormatOptions, SchemaOptions)
        if option.name not in ("content", "fileFormat")
    ),
)
VIEWS = Place(
    "read",
    _sections(ViewOptions, access=STORAGE_OPTIONS),
    no_path="a view takes no path: the store knows its files; call load() without an argument, and set storeUrl",
)
_CHOOSING = (
    "allowedPrefixes",
    "allowOverwrites",
    "pathGlobFilter",
    "fullPathGlobFilter",
    "readHiddenFiles",
    "modifiedAfter",
    "modifiedBefore",
)
LISTING = Place(
    "reconcile",
    {
        NotificationOptions.TITLE: tuple(
            replace(option, required="", unless=())
            for option in options_of(NotificationOptions)
            if option.name in _CHOOSING
        ),
        StorageOptions.TITLE: STORAGE_OPTIONS,
    },
)
"""Options of a reader that `cuesqueue reconcile` needs: which objects it would read, and how they are reached."""

_PARSING = ("pathRewrites", "notificationFormat", "maxObjectsPerMessage", "uriPath", "bucketPath", "keyPath")
ROUTING = Place(
    "route",
    {
        QueueOptions.TITLE: _named(QueueOptions, "receiveThreads", "queueRetryTimeout", "startingOffsets"),
        NotificationOptions.TITLE: _named(NotificationOptions, *_PARSING),
        LeaseOptions.TITLE: _named(LeaseOptions, "visibilityTimeout"),
        DeliveryOptions.TITLE: _named(DeliveryOptions, "failOnDataLoss"),
        StorageOptions.TITLE: _ACCESS,
    },
)
"""Options of a reader that `cuesqueue route` needs: how messages are received and parsed."""

PLACES = (READER, SINK, VIEWS)


def _refused(on_change: OnChange) -> tuple[str, ...]:
    return tuple(option.name for option in READER.options if option.on_change is on_change)


WHILE_UNFINISHED = (*_refused(OnChange.REFUSED_UNFINISHED), "allowOverwrites")
WHILE_PARTLY_READ = _refused(OnChange.REFUSED_IN_PART)
RECORDED = (*WHILE_UNFINISHED, *WHILE_PARTLY_READ, "allowedPrefixes", "failOnDataLoss")
"""Options of a reader that its pipeline's next start compares with its own, or that its sink goes by."""
