"""Exactly once inside `foreachBatch`: a user's own transaction, rows that it rejects, and objects by reference.

    def write(df, batch_id):
        rows = [row.asDict() for row in df.collect()]
        with delivery("postgresql+psycopg://.../db", "orders", batch_id) as batch:
            if not batch.already:
                batch.connection.execute(upsert, rows)

Runs where Spark calls the function: in the user's script, or for Spark Connect in a worker of the server. The
DataFrame's partitions are planned by then, so the pipeline's current plan is the one that it holds.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection, Engine

from queue_source.common.globs import is_hidden
from queue_source.common.local_paths import absolute_url
from queue_source.errors import BadObject, OptionError
from queue_source.options.content import ContentKind
from queue_source.sinks.takeover import note_output
from queue_source.spark.process import driver_folder, driver_identity, presence_folder
from queue_source.spark.writer import noted_plans
from shard_store.batches import starting
from shard_store.batches.publishing import FAIL_ON_DATA_LOSS, Looked
from shard_store.batches.starting import check_name
from shard_store.errors import LostProgress
from shard_store.failpoints import reach
from shard_store.model import DELIVERY, ErrorRecord, PlanIdentity, by_pipeline
from shard_store.redaction import redact_text
from shard_store.store import QUERY_PATIENCE, ShardStore, open_store

logger = logging.getLogger("cuesqueue")

UNREADABLE = "unreadable-object"
_BY_REFERENCE = ContentKind.REFERENCE.value
_LONGEST_CAUSE = 40
_LONGEST_REASON = 1_000


def check_cause(cause: str) -> None:
    """Raise ValueError for a word that a person could not search for."""
    if not 0 < len(cause) <= _LONGEST_CAUSE or not cause.isprintable():
        raise ValueError(
            f"cause {cause!r:.100} must have 1 to {_LONGEST_CAUSE} printable characters; the reason may have any"
        )


@contextmanager
def delivery(store: str | ShardStore, pipeline: str | Sequence[str], batch_id: int) -> Iterator[Delivery]:
    """Deliver one micro-batch; its progress is published when the block ends without an exception.

    Args:
        store: The reader's `storeUrl`, or an open store. A relative path counts from the same folder as the reader's.
        pipeline: The reader's `pipeline`; of a query over several sources, all their pipelines.
        batch_id: The number that Spark hands to the function of `foreachBatch`.

    Yields:
        The delivery: the connection for your rows, and whether this micro-batch is published already.

    Raises:
        OptionError: `pipeline` names none, or one twice; or it is not known from which folder a relative path in
            `store` counts.
        StoreConfigurationError: There is no such store, or it knows no such pipeline.
        PipelineTakenOver: Another driver runs the pipeline by now.
        ShardsLost: Shards passed to another pipeline; nothing is committed.

    Process:
        Driver (with Spark Connect, a worker of the server), inside the function of `foreachBatch`.
    """
    names = (pipeline,) if isinstance(pipeline, str) else tuple(pipeline)
    if not names or len(set(names)) < len(names):
        raise OptionError("pipeline", f"{names!r} is not a list of different pipelines; name those of the query")
    with ExitStack() as stack:
        if isinstance(store, str):
            store = stack.enter_context(store_of_reader(store))
        driver = driver_identity() or None
        noted = noted_plans(presence_folder())
        made = Delivery(store, tuple(store.take_plan(name, driver, DELIVERY, noted) for name in names), batch_id)
        try:
            yield made
            made._publish()
        finally:
            if made._connection is not None:
                made._connection.close()  # rolls back what is not committed


def store_of_reader(url: str) -> ShardStore:
    """Open the store of a reader with this `storeUrl`: a relative path counts from the same folder.

    Raises OptionError where that folder is unknown, StoreConfigurationError where there is no such store.
    """
    try:
        whole = absolute_url(url, driver_folder)
    except ValueError as error:
        raise OptionError("store", str(error)) from None
    return open_store(whole, create=False, patience=QUERY_PATIENCE)


class Delivery:
    """What the block of `delivery` works with.

    `hash` is the batch's delivery hash: the same at every attempt, and never that of another batch. `already`: the
    batch is published, and rows that are written again are rolled back.
    """

    def __init__(self, store: ShardStore, plans: tuple[PlanIdentity, ...], batch_id: int) -> None:
        delivered = store.delivered(plans, batch_id)
        self.hash = delivered.delivery_hash
        self.already = delivered.already
        self._store = store
        self._plans = by_pipeline(plans)
        self._batch_id = batch_id
        self._connection: Connection | None = None
        self._shown_before = False

    def quarantine(self, uri: str, reason: str, *, cause: str = UNREADABLE) -> None:
        """Give up an object of the batch, which is read by reference: it is quarantined when the batch is published.

        For an object that your own reader cannot read. Write none of its rows. A repeated attempt comes without it. It
        is written at once, or with what else `connection` writes.

        Args:
            uri: The object, as in the column `uri`, or as `references` returns it.
            reason: Why, for a person: the error of the reader. Its first 1,000 characters are kept.
            cause: One word of at most 40 characters by which the error can be found.

        Raises:
            OptionError: The batch has no such object, or its rows are not of a reader with `content` = `reference`.
            ValueError: `cause` is empty or too long, or has a character that cannot be printed.
            PipelineTakenOver: Another driver runs the pipeline by now.
        """
        check_cause(cause)
        if self.already:
            return
        count = 0
        for identity in self._plans:
            plan, settings = self._store.plan_to_load(identity)
            if settings.get("content", _BY_REFERENCE) != _BY_REFERENCE:
                raise OptionError(
                    "quarantine",
                    f"gives up an object that is read by reference, and the rows of pipeline "
                    f"{identity.token.pipeline!r} are content {settings['content']}; use reject_rows for its rows",
                )
            ranges = [held for held in plan.whole or plan.ranges if uri in names_of(held.content.uri)]
            records = [
                ErrorRecord(
                    scope="object",
                    cause=cause,
                    detail=redact_text(reason[:_LONGEST_REASON]),
                    subject=held.content.shard_id,
                    plan_hash=identity.delivery_hash,
                    position=held.start,
                    queue=held.content.queue,
                    message_id=held.content.message_id,
                )
                for held in ranges
            ]
            count += len(records)
            if self._connection is None:
                self._store.reject(identity, records)
            else:
                self._store.reject_inside(self._connection, identity, records)
        if not count:
            raise OptionError("uri", f"{redact_text(uri)!r} is no object of this micro-batch; name one of column 'uri'")

    @property
    def connection(self) -> Connection:
        """A connection to the store's database, in the transaction that publishes the progress: commit nothing.

        The transaction begins here. With SQLite nothing else can write meanwhile, not even Spark's tasks: collect
        first.
        """
        if self._connection is None:
            self._connection = self._store.database.begin()
        return self._connection

    @contextmanager
    def output(self, name: str, engine: Engine | None = None) -> Iterator[Output]:
        """One of several outputs of the batch, in a transaction of its own that the block commits.

        `engine` is the database of its rows, by default the store's. There `name` is recorded in the table
        `cuesqueue_deliveries` together with the rows: what a killed attempt delivered is not delivered again.
        """
        if self._connection is not None:
            raise OptionError("output", f"{name!r} comes after `connection` was used; write the outputs before it")
        check_name("output", name)
        file = self._store.database.file()
        other = engine.url.database if engine is not None and engine.dialect.name == "sqlite" else None
        if file is not None and other is not None and file.resolve() == Path(other).resolve():
            raise OptionError("engine", "is for the store's own SQLite file; leave it out, and the store's is used")
        own = self._store.database.engine if engine is None else engine
        starting.create(own)
        if engine is not None and not self.already:
            note_output(self._store, self._plans, self.hash, name, engine)
        owner = starting.owner(self._plans[0].token.pipeline, self._store.store_id())  # before the transactions begin
        with own.connect() as connection, connection.begin() as transaction:
            if engine is None:
                self._store.database.allow_idle(connection)
            already = starting.is_recorded(connection, self.hash, name) or (self.already and engine is None)
            if engine is not None:  # a backup of the store's own has both, or none
                self._shown_before |= already
                if not already:
                    self._check_in_step(starting.recent(connection, name, owner, self._batch_id - 1), name)
            yield Output(connection, already)
            if already:
                transaction.rollback()
                return
            with ExitStack() as held:  # the batch can be published until this output is committed
                if engine is None:
                    self._store.hold_inside(connection, self._plans, self._batch_id)
                else:
                    held.enter_context(self._store.held(self._plans, self._batch_id))
                starting.record(connection, self.hash, name, owner, self._batch_id)
                transaction.commit()
        reach("output-delivered", name)

    def _check_in_step(self, recent: Sequence[str], name: str) -> None:
        """Raise LostProgress where the store has lost one of an output's batches, unless it is to go on."""
        lost = next((digest for digest in recent if not self._store.has_published(self._plans, digest)), None)
        if lost is None:
            return
        problem = (
            f"output {name!r} has the batch with the delivery hash {lost}, and the store has not published it: the "
            "store was restored from a backup, or has forgotten the pipeline in a year; restore the newer store, or "
            "delete what that batch has brought, with its row in cuesqueue_deliveries"
        )
        pipeline = self._plans[0].token.pipeline
        if not any(self._store.plan_to_load(plan)[1].get(FAIL_ON_DATA_LOSS) == "false" for plan in self._plans):
            further = "or set 'failOnDataLoss' to false to have this batch written now"
            raise LostProgress(f"pipeline {pipeline!r}: {problem}; {further}")
        logger.warning("pipeline %s: %s; writing the batch, as failOnDataLoss says", pipeline, problem)
        self._shown_before = True

    def _publish(self) -> None:
        if self.already and self._connection is None:
            return
        about = ",".join(plan.token.pipeline for plan in self._plans)
        reach("before-publish", about)
        how: dict[str, Any] = {"batch_id": self._batch_id}
        if self._shown_before:
            how["look"] = lambda _: Looked((0, 0), shown_before=True)
        if self._connection is None:
            self._store.publish(self._plans, None, **how)
        elif self._store.publish_inside(self._connection, self._plans, None, **how).already:
            self._connection.rollback()
        else:
            self._connection.commit()
        reach("published", about)


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a micro-batch: `connection` is inside its transaction; `already`: its rows are there."""

    connection: Connection
    already: bool


_PATTERN = re.compile(r"[\\*?\[\]{}]")
_BUCKET = re.compile("[A-Za-z][A-Za-z0-9+.-]*://[^/]*/")


def references(batch: Any) -> list[str]:
    r"""The paths of a micro-batch's objects for Spark's own readers: each once, in the order of the rows.

    What Spark would take for a pattern (`*`, `?`, `[`, `{`, `\`) has a backslash before it. Two versions of an object
    are one path.

    Args:
        batch: Spark's DataFrame, or one made of it, with the column `uri`, which is collected on the driver.

    Returns:
        The paths; Spark's readers refuse an empty list.

    Raises:
        OptionError: The rows have no column `uri`.
        BadObject: Spark's readers would leave the object out or read another one: its name is hidden (`_name`,
            `.name`), or its key has an empty segment (`//`). Give it up by hand, or read the URI in another way.

    Process:
        Driver (with Spark Connect, a worker of the server), inside the function of `foreachBatch`.
    """
    if "uri" not in batch.columns:
        columns = ", ".join(batch.columns)
        raise OptionError("batch", f"has no column 'uri', only {columns}; read the stream with content reference")
    paths = []
    for uri in dict.fromkeys(uri for (uri,) in batch.select("uri").collect()):
        place = _BUCKET.match(uri)
        key = uri[place.end() :] if place else uri
        problem = ""
        if is_hidden(uri, [uri[: uri.rindex("/") + 1]]):
            problem = "has a hidden name, and Spark's readers leave such objects out"
        elif "//" in key or key.startswith("/") or key.endswith("/"):  # Hadoop drops empty segments
            problem = "has an empty segment in its key, and Spark's readers look for another object then"
        if problem:
            raise BadObject(
                "unsupported-key",
                f"{uri!r} {problem}; read it in another way, by the column 'uri', or give it up with `cuesqueue shards "
                "quarantine`",
            )
        paths.append(_escaped(uri))
    return paths


def names_of(uri: str) -> tuple[str, str]:
    """Return the names that a user may have for an object: its URI, and its path for Spark's readers."""
    return uri, _escaped(uri)


def _escaped(uri: str) -> str:
    return _PATTERN.sub(r"\\\g<0>", uri)


_METADATA = "_metadata"


class _Row(NamedTuple):
    input: bytes
    reason: str
    shard_id: str = ""
    message_id: str = ""
    queue: str = ""


def reject_rows(
    rows: Any,
    *,
    store: str | ShardStore,
    pipeline: str,
    reason: str = "",
    reason_column: str | None = None,
    cause: str = "rejected-row",
    batch_id: int | None = None,
    connection: Connection | None = None,
) -> int:
    """Record rows of the current micro-batch as errors (scope `row`), before it is delivered.

    They become final, and go to the error queue, when the micro-batch is published; a repeated one writes them once
    (known by the plan, `batch_id`, their content and number). Objects and messages are named if the rows have
    `_metadata`.

    Args:
        rows: A DataFrame (collected on the driver), or an iterable of mappings, text or bytes.
        store: The reader's `storeUrl`, or an open store. A relative path counts from the same folder as the reader's.
        pipeline: The reader's `pipeline`.
        reason: Why the rows are rejected.
        reason_column: A column that says why; where it is null, `reason` does.
        cause: One word of at most 40 characters by which the errors can be found.
        batch_id: As of `delivery`; needed by stateful queries, which have micro-batches without new input.
        connection: A transaction in the store's database that the errors become part of; else they are written at once.

    Returns:
        How many rows there are.

    Raises:
        ValueError: `cause` is empty or too long, or has a character that cannot be printed.
        PipelineTakenOver: Another driver runs the pipeline by now.

    Process:
        Driver, inside the function of `foreachBatch`.
    """
    check_cause(cause)
    if hasattr(rows, "selectExpr"):
        rejected = list(_of_frame(rows, reason, reason_column))
    else:
        texts = (
            row if isinstance(row, str | bytes) else json.dumps(row, ensure_ascii=False, default=str) for row in rows
        )
        rejected = [
            _Row(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"), reason) for text in texts
        ]
    if not rejected:
        return 0
    driver = driver_identity() or None
    with ExitStack() as stack:
        if not isinstance(store, ShardStore):
            store = stack.enter_context(store_of_reader(store))
        if connection is None:
            identity = store.current_plan(pipeline, driver)
            store.reject(identity, list(_records(identity, cause, batch_id, rejected)))
        else:
            identity = store.current_plan_inside(connection, pipeline, driver)
            store.reject_inside(connection, identity, list(_records(identity, cause, batch_id, rejected)))
    return len(rejected)


def _records(
    identity: PlanIdentity, cause: str, batch_id: int | None, rejected: Iterable[_Row]
) -> Iterator[ErrorRecord]:
    seen: Counter[tuple[str, bytes]] = Counter()
    for row in rejected:
        occurrence = f"{batch_id} {cause} {seen[row.shard_id, row.input]}"
        seen[row.shard_id, row.input] += 1
        yield ErrorRecord(
            scope="row",
            cause=cause,
            detail=row.reason,
            subject=row.shard_id,
            plan_hash=identity.delivery_hash,
            queue=row.queue,
            message_id=row.message_id,
            input=row.input,
            occurrence=occurrence,
        )


def _of_frame(frame: Any, reason: str, reason_column: str | None) -> Iterator[_Row]:
    """Read the rows of a DataFrame as JSON, which Spark writes, since it knows its types."""
    kept = [_quoted(name) for name in frame.columns if name not in (_METADATA, reason_column)]
    whole = f"to_json(struct({', '.join(kept)}), map('ignoreNullFields', 'false'))" if kept else "'{}'"
    why = f"CAST({_quoted(reason_column)} AS STRING)" if reason_column else "CAST(NULL AS STRING)"
    metadata_fields = frame.schema[_METADATA].dataType.names if _METADATA in frame.columns else ()
    origin = [
        f"{_METADATA}.{name}" if name in metadata_fields else "''" for name in ("shard_id", "message_id", "queue")
    ]
    for text, why_not, *ids in frame.selectExpr(whole, why, *origin).toLocalIterator():
        yield _Row(text.encode("utf-8", "surrogatepass"), why_not or reason, *(name or "" for name in ids))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
