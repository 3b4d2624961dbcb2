"""Infers the schema of a stream without a declared one. Runs in the driver.

A schema in `schemaLocation` is used unchanged. Only without one, samples are read: the objects that the user names,
else what the queue would deliver next, else what a listing returns, else objects that the store has already seen.
Nothing is acknowledged, and messages that a queue has to deliver to show them are returned (nack) at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from itertools import chain

import pyarrow as pa

from queue_source.announcements.contents import (
    announced_messages,
    announced_objects,
    is_allowed,
    is_wanted,
    listed_contents,
)
from queue_source.common.times import format_duration
from queue_source.errors import BadObject, ObjectStoreError, OptionError, QueueError
from queue_source.formats.base import format_of
from queue_source.formats.metadata import folder_type, path_values
from queue_source.formats.new_columns import data_of
from queue_source.messages import Received
from queue_source.options import ReaderOptions, connection_options
from queue_source.options.checks import check_suitability
from queue_source.options.content import ContentOptions, SchemaOptions
from queue_source.queues import open_queue
from queue_source.queues.base import Queue, administered
from queue_source.schema.columns import TypesDiffer, merged, parse_fields, resolved, widened, with_hints
from queue_source.schema.location import SchemaLocation, infer_each
from queue_source.storage.buckets import open_bucket
from shard_store.errors import ShardStoreError, StoreConfigurationError
from shard_store.model import Content, Semantics, ShardState, shard_key
from shard_store.operators.views import VIEWS
from shard_store.shards.announcing import is_other_version
from shard_store.store import ShardStore, open_store

_SAMPLE_PAGES = 20  # of a listing, which may have no chosen object
_LISTED_PAGES = 100  # in which to look for what is not loaded: some ten seconds
_SAMPLE_LEASE = 60.0  # seconds after which messages come back by themselves, should this process die


def inferred_schema(options: ReaderOptions) -> pa.Schema:
    """Return the columns of the stream: the same at every call, since the first one keeps them.

    Runs in whatever process Spark asks for a schema. Raises OptionError with what to set, ObjectStoreError.
    """
    format = options.content.format
    assert format is not None
    if format_of(format).fixed_columns(format) is None and options.content.schema.schema_location is None:
        raise OptionError(
            "schemaLocation",
            'a stream needs the columns of its objects: declare them with .schema("id BIGINT, ..."), or set '
            "schemaLocation to a folder, where the columns that are inferred are kept",
        )
    problems: list[str] = []

    def samples() -> Iterable[Content]:
        return samples_of(options, problems)

    def nothing(tried: str) -> OptionError:
        return OptionError(
            "schemaLocation",
            f"is empty, and there is nothing to infer the columns from{tried}: {_in_flight(options)}publish a message "
            'and load again, name objects in schemaSample, or declare the columns with .schema("id BIGINT, ...")',
        )

    return kept_columns(options.content, samples, problems, nothing)


def kept_columns(
    content: ContentOptions,
    samples: Callable[[], Iterable[Content]],
    problems: list[str],
    nothing: Callable[[str], OptionError],
    own: pa.Schema | None = None,
) -> pa.Schema:
    """Return the columns in `schemaLocation`, which are inferred from samples at the first call, with all others.

    `problems` gets what is wrong with samples; `nothing` makes the error where all of them are. Without a location the
    inferred ones are kept by the caller; a format with fixed columns needs no samples. `own`: columns of a table, which
    keep their names and types.
    """
    format = content.format
    assert format is not None
    columns = format_of(format).fixed_columns(format)
    if columns is None and content.schema.schema_location is None:
        columns = inferred_columns(content, samples(), problems, nothing)
    elif columns is None:
        assert content.schema.schema_location is not None
        location = SchemaLocation(content.schema.schema_location, content.storage)
        latest = location.latest()
        if latest is None:
            columns = inferred_columns(content, samples(), problems, nothing)
            latest = location.record(columns if own is None else widened(own, columns))
        columns = latest.schema
    try:
        hints = parse_fields(content.schema.schema_hints)
        schema = with_hints(columns, hints, adds=content.schema.adds_columns, wider=content.schema.widens_types)
    except ValueError as error:
        raise OptionError("schemaHints", str(error)) from error
    rescued = format.rescued_data_column
    more = [name for name in (*format.partition_columns, rescued) if name is not None]
    schema = pa.schema([*schema, *(pa.field(name, pa.string()) for name in more if name not in schema.names)])
    return schema if own is None else widened(own, schema, types=content.schema.widens_types)


def inferred_columns(
    content: ContentOptions,
    samples: Iterable[Content],
    problems: list[str],
    nothing: Callable[[str], OptionError],
) -> pa.Schema:
    """Infer the columns of all samples together, with hints."""
    format = content.format
    assert format is not None
    hints = parse_fields(content.schema.schema_hints)
    schemas: list[pa.Schema] = []
    folders: list[pa.Schema] = []
    max_bytes = max(1, content.schema.schema_sample_bytes // content.schema.schema_sample_files)
    textual = format_of(format).values_are_text
    if content.schema.schema_sample:  # the user's own, wherever they are
        content = replace(content, storage=replace(content.storage, local_prefixes=()))
    sampled = [*samples]
    for sample, inferred in zip(sampled, infer_each(sampled, content, format, max_bytes), strict=True):
        try:
            if not isinstance(inferred, pa.Schema):
                raise inferred
            present = {name.casefold() for name in inferred.names}
            fitting = [(path, kind) for path, kind in hints if path[0].casefold() in present]
            schemas.append(inferred if textual else with_hints(inferred, fitting))
        except (BadObject, ObjectStoreError, ValueError) as error:
            problems.append(f"{sample.shard_id[:300]}: {error}")
            continue
        # columns of paths and of our own replace those of that name in the content
        schemas[-1] = data_of(schemas[-1], format)
        texts, typed = path_values(sample.uri), content.schema.infer_column_types
        folders.append(
            pa.schema(
                (name, folder_type(texts.get(name, ""), format) if typed else pa.string())
                for name in format.partition_columns
            )
        )
    try:  # a folder's name is a text, whatever the format
        schema = pa.schema([*merged(schemas, textual=textual), *merged(folders, textual=True)])
    except TypesDiffer as error:
        raise OptionError("schemaHints", str(error)) from error
    if not schema.names:
        raise nothing(f" ({'; '.join(problems[:3])})" if problems else "")
    return resolved(with_hints(schema, hints))


def _in_flight(options: ReaderOptions) -> str:
    """Describe the messages that are hidden at present, and until when; "" where queues hide or report none."""
    if options.content.schema.schema_sample:
        return ""
    held = 0
    with suppress(QueueError):  # it is only a hint: the caller's error matters more
        for queue in _opened(options):
            if queue.capabilities.reports_depth:
                depth = queue.depth()
                held += depth.in_flight + depth.delayed
    if not held:
        return ""
    lease = format_duration(options.leases.visibility_timeout)
    return (
        f"{held} message(s) are in flight, with a reader that runs, or one that was killed: what it does not "
        f"acknowledge comes again when its lease has ended (visibilityTimeout, {lease} by these options), so load "
        "again then; or "
    )


def samples_of(
    options: ReaderOptions, problems: list[str], announced: Sequence[Content] | None = None
) -> Iterator[Content]:
    """Yield what comes next, up to `schemaSampleFiles` of them. `announced`: what the queue is known to announce."""
    limit = options.content.schema.schema_sample_files
    if named := named_samples(options.content.schema):
        yield from named
        return
    contents = announced_contents(options, limit, problems) if announced is None else announced
    contents = contents or _listed(options, limit, problems) or _seen_before(options, problems)
    yield from contents[:limit]


def announced_contents(
    options: ReaderOptions, limit: int, problems: list[str], patience: float = math.inf
) -> list[Content]:
    """Return what waiting messages announce; the messages stay in the queues.

    If there is none, the first one may be on its way: it is waited for, for `waitTime`, or the seconds of `patience`.
    """
    peeked = [m.peek(limit) if (m := administered(queue)) else [] for queue in _opened(options)]
    if contents := _contents(options, peeked, problems):
        return contents
    return _contents(options, [_wait_for(queue, limit, options, patience) for queue in _opened(options)], problems)


def not_loaded(options: ReaderOptions, announced: Sequence[Content], limit: int, problems: list[str]) -> list[Content]:
    """Return the first of what is announced, and then of what is listed, that the store does not know as loaded.

    A store that is not there is not made.
    """
    with ExitStack() as stack:
        store = None
        if Semantics(options.delivery.delivery_semantics).keeps_shards:
            with suppress(StoreConfigurationError):
                store = stack.enter_context(open_store(options.store.reveal(), create=False))
        by_id: dict[str, Content] = {}
        for page in chain([announced], _pages(options, _LISTED_PAGES, problems)):
            new = page if store is None else _without_loaded(store, options.source, page)
            by_id.update((content.shard_id, content) for content in new)
            if len(by_id) >= limit:
                break
    return list(by_id.values())[:limit]


def _without_loaded(store: ShardStore, source: str, contents: Sequence[Content]) -> list[Content]:
    """Leave out what is read already, or was given up in this version. An id may be with or without a version."""
    keys = {c.shard_id: [shard_key(source, name) for name in {c.shard_id: 0, c.uri: 0}] for c in contents}
    stored = store.look({key for both in keys.values() for key in both})

    def is_loaded(content: Content) -> bool:
        shard = next((stored[key] for key in keys[content.shard_id] if key in stored), None)
        if shard is None or shard.state is ShardState.OPEN:
            return False
        if shard.state is ShardState.QUARANTINED or shard.content.shard_id != content.shard_id:
            return not is_other_version(content, shard.content)
        return bool(shard.content.size != 0 or not content.size)  # empty when it was read, and not any more

    return [content for content in contents if not is_loaded(content)]


def named_samples(options: SchemaOptions) -> list[Content]:
    """Return the objects that the user names to infer from."""
    return [Content(uri, uri) for uri in options.schema_sample[: options.schema_sample_files]]


def _opened(options: ReaderOptions) -> Iterator[Queue]:
    for url in options.queue.urls:
        with open_queue(url.reveal(), **connection_options(url, options.queue)) as queue:
            check_suitability([queue], options)
            yield queue


def _wait_for(queue: Queue, limit: int, options: ReaderOptions, patience: float) -> list[Received]:
    """Receive messages and return them at once; a queue that counts receives counts one more."""
    deadline = time.monotonic() + min(patience, options.queue.wait_time.total_seconds())
    while (remaining := deadline - time.monotonic()) > 0:
        wait = min(remaining, queue.capabilities.max_wait)
        messages = queue.receive(min(limit, queue.capabilities.max_batch_size), _SAMPLE_LEASE, wait)
        queue.nack([message.receipt for message in messages])
        if messages:
            return messages
    return []


def _contents(
    options: ReaderOptions, messages_of_queues: Iterable[list[Received]], problems: list[str]
) -> list[Content]:
    contents: dict[str, Content] = {}
    for messages in messages_of_queues:
        if options.content.kind.is_announced:
            announced = announced_objects(messages, options.notifications, lambda uris: [None] * len(uris))
        else:
            announced = announced_messages(messages, options.notifications)
        problems += [announcement.error.detail for announcement in announced if announcement.error is not None]
        contents.update((content.shard_id, content) for announcement in announced for content in announcement.contents)
    return list(contents.values())


def _listed(options: ReaderOptions, limit: int, problems: list[str]) -> list[Content]:
    """Return the first objects of the folders that are listed."""
    samples: list[Content] = []
    for page in _pages(options, _SAMPLE_PAGES, problems):
        samples += page
        if len(samples) >= limit:
            break
    return samples


def _pages(options: ReaderOptions, most: int, problems: list[str]) -> Iterator[list[Content]]:
    """Yield what is chosen of each page of the folders that are listed, up to `most` pages of each."""
    for prefix in options.backfill.prefixes:
        try:
            with closing(open_bucket(prefix, options.content.storage)) as bucket:
                cursor = None
                for _ in range(most):
                    page = bucket.page(prefix, cursor)
                    contents = listed_contents(page.objects, options.notifications)
                    yield [content for content in contents if content is not None]
                    cursor = page.cursor
                    if cursor is None:
                        break
        except (BadObject, ObjectStoreError) as error:
            problems.append(f"{prefix}: {error}")


def _seen_before(options: ReaderOptions, problems: list[str]) -> list[Content]:
    """Return objects of the source that were read or announced before, to this pipeline or another."""
    if not options.content.kind.is_announced:
        return []  # their bodies are gone
    names = [column.name for column in VIEWS["shards"]]
    place, state = names.index("shard_id"), names.index("state")
    try:
        with open_store(options.store.reveal(), create=False) as store:
            page = next(store.pages("shards", source=options.source), [])
    except ShardStoreError as error:
        problems.append(f"the store: {error}")  # it probably does not exist yet
        return []
    seen = [str(row[place]) for row in page if row[state] in ("done", "open")]  # open: also of a start that failed
    version = "#" if options.notifications.allow_overwrites else "\0"
    contents = [Content(shard_id, shard_id.rpartition(version)[0] or shard_id) for shard_id in seen]
    # a receiver records what its routes say, whatever this reader may read
    chosen = options.notifications
    return [c for c in contents if is_allowed(c.uri, chosen) and is_wanted(c.uri, chosen)]
