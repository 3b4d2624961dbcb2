"""The tables and their indexes: the only place with column names. Times are BIGINT microseconds since 1970 UTC."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect

from shard_store.model import Content, Reference

REVISION = "0017"
"""The Alembic revision that these tables are: the newest one in `migrations/versions` (a test compares)."""

READERS_FROM = "0015"
"""Code of this revision and of all later ones can use these tables (decision 0053). A migration that only adds what
such code does not need leaves it as it is; one that takes something away sets it to its own revision. Code before 0015
would read the rows of files that others have replaced once more."""

metadata = sa.MetaData()
_OPTIONS: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")  # each reads only its own
    for option, value in {"charset": "utf8mb4", "collate": "utf8mb4_bin", "engine": "InnoDB"}.items()
}

Name = sa.String(200)  # pipelines and sources


class Digest(sa.LargeBinary):
    """Bytes as the drivers give and take them, without SQLAlchemy's copy of each."""

    def bind_processor(self, dialect: Dialect) -> None:
        return None

    def result_processor(self, dialect: Dialect, coltype: object) -> None:
        return None


Hash = Digest(32).with_variant(mysql.BINARY(32), "mysql", "mariadb")
Hex = sa.String(64)
LongText = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
LongBlob = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
Serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # SQLite counts up only INTEGER keys


class AsHex(sa.types.TypeDecorator[str]):
    """Reads bytes as hexadecimal text, for people."""

    impl = sa.LargeBinary
    cache_ok = True

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:
        return None if value is None else bytes(value).hex()


class AnyText(sa.types.TypeDecorator[str]):
    """Text of any Unicode in databases that refuse some of it (NUL, lone surrogates)."""

    impl = LongText
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[str | None], str | None]:
        """Convert texts; not by `process_bind_param`, which makes three calls for each text of a thousand shards."""
        return lambda value: (
            value
            if value is None or (value.isascii() and value[:1] != '"' and "\0" not in value)  # nearly always
            else pack(value)
        )

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[str | None], str | None]:
        """Convert back; not by `process_result_value`, which is called by another function for each text."""
        return lambda value: value if value is None or value[:1] != '"' else unpack(value)


class AsReference(sa.types.TypeDecorator[Reference]):
    """A `Reference` as a JSON array, in ASCII, which every database keeps."""

    impl = LongText
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[Reference | None], str | None]:
        return lambda value: None if value is None else json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> Reference | None:
        return None if value is None else Reference(*json.loads(value))


class AsContent(sa.types.TypeDecorator[Content]):
    """An announcement as a JSON array. In the place of its payload, which it never has, is what was announced of it."""

    impl = LongText
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[Content | None], str | None]:
        # version 0.4.0 reads it, too, and knows no field behind `sent_at`
        return lambda value: (
            None if value is None else json.dumps((*value[:8], value.announced, *value[9:13]), separators=(",", ":"))
        )

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[str | None], Content | None]:
        def announced(value: str | None) -> Content | None:
            if value is None:
                return None
            fields = json.loads(value)
            content = Content(*fields)._replace(payload=None, announced=fields[8] and tuple(fields[8]))
            return content if content.reference is None else content._replace(reference=Reference(*content.reference))

        return announced


_REFUSED = re.compile('^"|[\0\ud800-\udfff]')


def pack(text: str) -> str:
    """Return `text` as every database and JSON keep it: what some refuse is written in escapes after a double quote.

    A text that starts with a double quote is packed too, so that reading back is never ambiguous. Python's escapes and
    not JSON's, which would join two lone surrogates to another character.
    """
    return text if not _REFUSED.search(text) else '"' + text.encode("unicode_escape").decode("ascii")


def unpack(text: str) -> str:
    return text if text[:1] != '"' else text[1:].encode("ascii").decode("unicode_escape")


def _table(name: str, *columns: sa.Column[Any]) -> sa.Table:
    # SQLite would give the highest id again when its row is gone, as no other database does; and who has read the id
    # before would take another row for its own
    is_serial = any(column.type is Serial for column in columns)
    return sa.Table(name, metadata, *columns, **_OPTIONS, sqlite_autoincrement=is_serial)


def _index(name: str, *columns: sa.Column[Any], where: sa.ColumnElement[bool]) -> None:
    """Make an index of a part of a table; MySQL has none, and indexes the whole table."""
    sa.Index(name, *columns, sqlite_where=where, postgresql_where=where)


pipelines = _table(
    "cuesqueue_pipelines",
    sa.Column("pipeline", Name, primary_key=True),
    sa.Column("source", Name, nullable=False),
    sa.Column("incarnation", sa.BigInteger, nullable=False),
    sa.Column("driver", sa.String(64), nullable=False),  # which one the incarnation runs in (plans.current_plan)
    sa.Column("last_seq", sa.BigInteger, nullable=False),
    sa.Column("confirmed_seq", sa.BigInteger, nullable=False),
    sa.Column("semantics", sa.String(16), nullable=False),
    sa.Column("begun_seq", sa.BigInteger, nullable=False),  # up to here snapshots were in a plan
    sa.Column("heartbeat_at", sa.BigInteger, nullable=False),
    sa.Column("stale_at", sa.BigInteger, nullable=False),  # from then on others may take the shards
    # the plan of the micro-batch that runs now, and what it leaves out (JSON, see plans.py)
    sa.Column("plan_hash", Hex),
    sa.Column("plan_incarnation", sa.BigInteger),
    sa.Column("plan_start", sa.BigInteger),
    sa.Column("plan_after", sa.BigInteger),  # what is up to here was final when the plan was made
    sa.Column("plan_end", sa.BigInteger),
    sa.Column("plan_left_out", LongText),
    sa.Column("plan_lost", sa.BigInteger),
    sa.Column("plan_attempt", sa.BigInteger),  # how often that plan was made: 1, until it failed
    sa.Column("row_schema", LongText),  # of what the sink published last, as Spark's JSON
    sa.Column("error_queue", AnyText),  # where its errors are sent, or NULL: the error table is their place
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("remembered", sa.BigInteger),  # microseconds: how long a start asks for what was delivered
    sa.Column("published_at", sa.BigInteger),  # of its newest attempt, which is never pruned
    sa.Column("host", sa.String(255)),  # of the reader process, as are the versions
    sa.Column("spark_version", sa.String(40)),
    sa.Column("cuesqueue_version", sa.String(40)),
    sa.Column("report", LongText),  # what its reader said with the last heartbeat (JSON, see activity.py)
    sa.Column("activity", LongText),  # what it has published, in all and lately (JSON, see activity.py)
    sa.Column("sink", sa.String(12)),  # what delivered its plans last: see batches/progress.py
    sa.Column("sink_incarnation", sa.BigInteger),  # the newest one for which that is known
    sa.Column("changes", sa.BigInteger),  # how often a reader has changed this row: see sql/engines.py
    sa.Column("stores", LongText),  # whose offsets are read beside this store's own (JSON, see progress.py)
    sa.Column("settings", LongText),  # an incarnation, and the options that its unfinished work depends on (JSON)
    sa.Column("data_files", sa.BigInteger),  # of the sink with `path`, which views show now; NULL: none yet
    sa.Column("data_bytes", sa.BigInteger),  # of all of them
    sa.Column("target", LongText),  # with a commit of its own, where its batches go (JSON, see batches/takeover.py)
)
of_pipeline = pipelines.update().where(pipelines.c.pipeline == sa.bindparam("of"))
"""Changes the columns that it is given beside `of`. Made once, as other statements of each batch: building one costs
more than running it."""

shards = _table(
    "cuesqueue_shards",
    sa.Column("shard_key", Hash, primary_key=True),
    sa.Column("source", Name, nullable=False),
    sa.Column("shard_id", AnyText, nullable=False),
    sa.Column("uri", AnyText),  # NULL: the id itself
    sa.Column("size", sa.BigInteger),
    sa.Column("etag", AnyText),
    sa.Column("queue", AnyText, nullable=False),
    sa.Column("message_id", AnyText, nullable=False),
    sa.Column("receive_count", sa.Integer, nullable=False),
    sa.Column("message_group", AnyText),  # NULL: not in an ordered group
    sa.Column("position", sa.String(21), nullable=False),
    sa.Column("state", sa.String(12), nullable=False),
    sa.Column("owner", Name),  # with incarnation: the publish token; NULL: released
    sa.Column("incarnation", sa.BigInteger),
    sa.Column("end_seq", sa.BigInteger),  # of the owner's attempt that finished it
    sa.Column("opened_at", sa.BigInteger, nullable=False),
    sa.Column("finished_at", sa.BigInteger),  # NULL while open
    sa.Column("sequence", sa.String(64)),  # orders the versions of the object, where its notification says it
    sa.Column("pending", sa.String(12)),  # see `model.Pending`
    sa.Column("reference", AsReference),  # what else its announcement said; NULL where objects are read
    sa.Column("sent_at", sa.BigInteger),  # its message, by the queue's clock; NULL: unknown
    sa.Column("later", AsContent),  # what was announced of it last, beside what is read: see shards/announcing.py
)
_index(  # MySQL has no partial indexes: there `finished_at` keeps the finished ones out of the way
    "cuesqueue_shards_unfinished",
    shards.c.owner,
    shards.c.finished_at,
    shards.c.opened_at,
    where=shards.c.finished_at.is_(None),
)
_index(
    "cuesqueue_shards_finished",
    shards.c.source,
    shards.c.finished_at,
    where=shards.c.finished_at.is_not(None),
)
_index(  # what is released, or recorded for a source by a receiver
    "cuesqueue_shards_unowned",
    shards.c.source,
    shards.c.opened_at,
    where=sa.and_(shards.c.owner.is_(None), shards.c.finished_at.is_(None)),
)

snapshots = _table(
    "cuesqueue_snapshots",
    sa.Column("pipeline", Name, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("chunk", sa.Integer, primary_key=True),  # up to 1,000 ranges or some megabytes a row
    sa.Column("incarnation", sa.BigInteger, nullable=False),
    sa.Column("moves", LongText, nullable=False),  # JSON, as is `contents`: see snapshots.py
    sa.Column("contents", AnyText, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("sent", LongText),  # when the messages were sent that announced the moves (JSON); NULL: unknown
)

attempts = _table(
    "cuesqueue_attempts",
    sa.Column("delivery_hash", Hex, primary_key=True),
    sa.Column("lead_hash", Hex, nullable=False),  # of the attempt that the splits of the same micro-batch belong to
    sa.Column("source", Name, nullable=False),
    sa.Column("pipeline", Name, nullable=False),
    sa.Column("incarnation", sa.BigInteger, nullable=False),
    sa.Column("start_seq", sa.BigInteger, nullable=False),
    sa.Column("end_seq", sa.BigInteger, nullable=False),
    sa.Column("batch_id", sa.BigInteger),  # Spark's, where a sink reported it
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("shards", sa.BigInteger, nullable=False),
    sa.Column("lost", sa.BigInteger, nullable=False),
    sa.Column("errors", sa.BigInteger, nullable=False),
    sa.Column("splits", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.BigInteger),  # NULL: another sink took them, uncounted, or the leading attempt counts them
    sa.Column("bytes", sa.BigInteger),
    sa.Column("published_at", sa.BigInteger, nullable=False),
    sa.Column("snapshot_at", sa.BigInteger),  # when its last snapshot was written, which is not kept
    sa.Column("changed", sa.BigInteger),  # of its shards, announced meanwhile in a version that is not read
)
sa.Index("cuesqueue_attempts_end", attempts.c.pipeline, attempts.c.end_seq)
sa.Index("cuesqueue_attempts_published", attempts.c.published_at)

splits = _table(
    "cuesqueue_splits",
    sa.Column("id", Serial, primary_key=True, autoincrement=True),
    sa.Column("delivery_hash", Hex, nullable=False),  # "" where it was joined from files of several attempts
    sa.Column("source", Name, nullable=False),
    sa.Column("pipeline", Name, nullable=False),
    sa.Column("path", AnyText, nullable=False),
    sa.Column("name_key", Hash, nullable=False),  # of the path's last part, which no other split has: see vacuum
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("published_at", sa.BigInteger, nullable=False),  # of a joined file: the last of its rows
    # of a joined file (see operators/compacting.py), else NULL: when it took the place of how many others, and of
    # which publish the first of its rows are
    sa.Column("compacted_at", sa.BigInteger),
    sa.Column("joined", sa.BigInteger),
    sa.Column("first_id", sa.BigInteger),
    sa.Column("first_at", sa.BigInteger),
    sa.Column("replaced_by", sa.BigInteger),  # the id of the file that has its rows now; NULL: it has them itself
    sa.Column("replaced_at", sa.BigInteger),
)
sa.Index("cuesqueue_splits_hash", splits.c.delivery_hash)
sa.Index("cuesqueue_splits_name", splits.c.name_key)
sa.Index("cuesqueue_splits_pipeline", splits.c.pipeline)
sa.Index("cuesqueue_splits_published", splits.c.published_at)
_index("cuesqueue_splits_compacted", splits.c.compacted_at, where=splits.c.compacted_at.is_not(None))
_index("cuesqueue_splits_replaced", splits.c.replaced_by, where=splits.c.replaced_by.is_not(None))

errors = _table(
    "cuesqueue_errors",
    sa.Column("error_key", Hash, primary_key=True),  # of (scope, plan, subject, position): writing twice is one
    sa.Column("source", Name, nullable=False),
    sa.Column("pipeline", Name, nullable=False),
    sa.Column("scope", sa.String(10), nullable=False),
    sa.Column("cause", sa.String(40), nullable=False),
    sa.Column("detail", AnyText, nullable=False),
    sa.Column("subject", AnyText, nullable=False),
    sa.Column("shard_key", Hash),
    sa.Column("delivery_hash", Hex, nullable=False),  # "" where no plan is concerned
    sa.Column("position", sa.String(21), nullable=False),
    sa.Column("queue", AnyText, nullable=False),
    sa.Column("message_id", AnyText, nullable=False),
    sa.Column("message", AnyText),  # of a bad message: its tag, headers and group as JSON
    sa.Column("input", LongBlob),
    sa.Column("input_size", sa.BigInteger),  # of the whole input, of which `input` may be the beginning
    sa.Column("occurred_at", sa.BigInteger, nullable=False),
    sa.Column("delivered_at", sa.BigInteger),  # to the error queue `delivered_to`
    sa.Column("delivered_to", AnyText),
    sa.Column("requeued_at", sa.BigInteger),  # by a person: its input is on its way again
    sa.Column("reopened_at", sa.BigInteger),  # its shard is read again, without a message of ours
)
sa.Index("cuesqueue_errors_shard", errors.c.shard_key)
sa.Index("cuesqueue_errors_hash", errors.c.delivery_hash, errors.c.scope)
sa.Index("cuesqueue_errors_occurred", errors.c.occurred_at)
_index(
    "cuesqueue_errors_unsent",  # by pipeline: those that have no error queue leave all of theirs so
    errors.c.pipeline,
    errors.c.delivered_at,
    errors.c.requeued_at,
    errors.c.occurred_at,
    where=sa.and_(errors.c.delivered_at.is_(None), errors.c.requeued_at.is_(None)),
)

read_marks = _table(
    "cuesqueue_read_marks",  # reads of a plan that failed before, under way or never ended; and traces: see readings.py
    sa.Column("delivery_hash", Hex, primary_key=True),
    sa.Column("task", sa.Integer, primary_key=True, autoincrement=False),  # -1: it is read alone
    sa.Column("first_place", sa.BigInteger, primary_key=True, autoincrement=False),  # in the plan
    sa.Column("end_place", sa.BigInteger, primary_key=True, autoincrement=False),  # the first that is not in it
    sa.Column("unended", sa.Integer, nullable=False),
    sa.Column("began_at", sa.BigInteger, nullable=False),
)
sa.Index("cuesqueue_read_marks_began", read_marks.c.began_at)

shard_changes = _table(
    "cuesqueue_shard_changes",  # made outside of the normal way of a shard, by people or new announcements
    sa.Column("id", Serial, primary_key=True, autoincrement=True),
    sa.Column("shard_key", Hash, nullable=False),
    sa.Column("source", Name, nullable=False),
    sa.Column("shard_id", AnyText, nullable=False),
    sa.Column("action", sa.String(20), nullable=False),
    sa.Column("actor", AnyText, nullable=False),  # user@host, or the publish token of a pipeline
    sa.Column("reason", AnyText, nullable=False),
    sa.Column("message_id", AnyText),  # of the announcement that was the cause
    sa.Column("before", AnyText, nullable=False),  # JSON, as is `after`
    sa.Column("after", AnyText),  # NULL: the shard is forgotten
    sa.Column("changed_at", sa.BigInteger, nullable=False),
)
sa.Index("cuesqueue_shard_changes_shard", shard_changes.c.shard_key)
sa.Index("cuesqueue_shard_changes_changed", shard_changes.c.changed_at)

leases = _table(
    "cuesqueue_leases",
    sa.Column("name", Name, primary_key=True),
    sa.Column("holder", sa.String(64), nullable=False),
    sa.Column("until", sa.BigInteger, nullable=False),
)

sources = _table(
    "cuesqueue_sources",  # the memory of a whole source, for comparing it with a listing
    sa.Column("source", Name, primary_key=True),
    # by the database's clock: finished shards that ended up to then may be forgotten; 0: none is
    sa.Column("forgotten_before", sa.BigInteger, nullable=False),
    sa.Column("existing_before", sa.BigInteger),  # what was modified before is no business of listings; NULL: all is
    sa.Column("cleaned_until", sa.BigInteger),  # finished shards that ended up to then are in `cleanings`; NULL: no
    sa.Column("moves", sa.BigInteger),  # this and the next three: of version 0.3, where a source could be moved
    sa.Column("moved_to", AnyText),  # the store that it is in by now, without secrets; NULL: it is here
    sa.Column("moved_to_id", sa.String(32)),
    sa.Column("import_id", sa.String(100)),
    sa.Column("naming", LongText),  # how its shards are named (JSON, see batches/starting.py); NULL: not recorded yet
)

receivers = _table(
    "cuesqueue_receivers",  # those that record objects for the sources of their routes: see shards/recording.py
    sa.Column("receiver", Name, primary_key=True),
    sa.Column("queue", AnyText, nullable=False),  # without secrets
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("started_at", sa.BigInteger, nullable=False),
    sa.Column("worked_at", sa.BigInteger, nullable=False),  # when its queue was asked last
    sa.Column("received_at", sa.BigInteger),  # when a message came last; NULL: none did
    sa.Column("messages", sa.BigInteger, nullable=False),  # in all, as are the next ones
    sa.Column("recorded", sa.BigInteger, nullable=False),
    sa.Column("duplicates", sa.BigInteger, nullable=False),
    sa.Column("ignored", sa.BigInteger, nullable=False),
    sa.Column("unrouted", sa.BigInteger, nullable=False),
    sa.Column("malformed", sa.BigInteger, nullable=False),
    sa.Column("changed", sa.BigInteger, nullable=False, server_default="0"),
)

listings = _table(
    "cuesqueue_listings",  # the last comparison of a source with each of its prefixes, or the one under way
    sa.Column("listing_key", Hash, primary_key=True),  # of (source, prefix)
    sa.Column("source", Name, nullable=False),
    sa.Column("prefix", AnyText, nullable=False),
    sa.Column("owner", Name, nullable=False),  # with incarnation: whose turn it is
    sa.Column("incarnation", sa.BigInteger, nullable=False),
    sa.Column("began_at", sa.BigInteger, nullable=False),
    sa.Column("touched_at", sa.BigInteger, nullable=False),  # by its last page
    sa.Column("ended_at", sa.BigInteger),  # NULL: under way
    sa.Column("cursor", AnyText),  # goes on after this name; NULL: from the beginning
    sa.Column("objects", sa.BigInteger, nullable=False),  # listed so far
    sa.Column("opened", sa.BigInteger, nullable=False),  # of these, unknown before
    sa.Column("beyond_memory", sa.BigInteger, nullable=False),
    sa.Column("existing", sa.BigInteger, nullable=False),  # of these, left out as older than `existing_before`
    sa.Column("failures", sa.BigInteger, nullable=False),  # of the page after `cursor`, one after the other
)

certificates = _table(
    "cuesqueue_certificates",  # "of the N objects under PREFIX last modified before T, p are published, ..."
    sa.Column("id", Serial, primary_key=True, autoincrement=True),
    sa.Column("source", Name, nullable=False),
    sa.Column("prefix", AnyText, nullable=False),
    sa.Column("modified_since", sa.BigInteger),  # NULL: from the beginning
    sa.Column("modified_before", sa.BigInteger, nullable=False),
    sa.Column("choice", AnyText, nullable=False),  # the reader's options that choose objects and their ids, as JSON
    sa.Column("evidence", AnyText, nullable=False),  # "listing", or the URI of an inventory's manifest
    sa.Column("objects", sa.BigInteger, nullable=False),
    sa.Column("published", sa.BigInteger, nullable=False),
    sa.Column("waiting", sa.BigInteger, nullable=False),
    sa.Column("quarantined", sa.BigInteger, nullable=False),
    sa.Column("missing", sa.BigInteger, nullable=False),
    sa.Column("changed", sa.BigInteger, nullable=False),  # published, and overwritten since
    sa.Column("beyond_memory", sa.BigInteger, nullable=False),
    sa.Column("before_beginning", sa.BigInteger, nullable=False),  # there before the first start, and not wanted
    sa.Column("left_out", sa.BigInteger, nullable=False),  # hidden names and filters: not among the objects
    sa.Column("digest", Hex, nullable=False),  # of all objects and what became of each, in any order
    sa.Column("unpublished", LongText, nullable=False),  # JSON: the first of each kind that is not published, by kind
    sa.Column("actor", AnyText, nullable=False),
    sa.Column("written_at", sa.BigInteger, nullable=False),
    sa.Column("skipped", sa.BigInteger),  # NULL, as the next one: of a version before 0.3
    sa.Column("given_up", sa.BigInteger),
)
sa.Index("cuesqueue_certificates_source", certificates.c.source, certificates.c.written_at)
sa.Index("cuesqueue_certificates_written", certificates.c.written_at)

CLEANED = "cleaned"
"""Outcome of a cleaning: the object is deleted, or moved."""

cleanings = _table(
    "cuesqueue_cleanings",  # objects that are deleted or moved after they were read: written before, and after
    sa.Column("shard_key", Hash, primary_key=True),
    sa.Column("source", Name, nullable=False),
    sa.Column("uri", AnyText, nullable=False),
    sa.Column("size", sa.BigInteger),
    sa.Column("etag", AnyText),
    sa.Column("version", AnyText),  # version or ETag that is part of its identity (allowOverwrites)
    sa.Column("opened_at", sa.BigInteger, nullable=False),  # of its shard
    sa.Column("read_at", sa.BigInteger, nullable=False),  # when its shard was done
    sa.Column("action", sa.String(10), nullable=False),
    sa.Column("target", AnyText),  # where it is moved to
    sa.Column("planned_at", sa.BigInteger, nullable=False),
    sa.Column("due_at", sa.BigInteger, nullable=False),  # when it is tried, or tried again
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("ended_at", sa.BigInteger),  # NULL: still to be done
    sa.Column("outcome", sa.String(20)),  # how it ended: see cleaning.py
    sa.Column("cause", sa.String(40)),  # of the last failure
    sa.Column("detail", AnyText),
)
_index(
    "cuesqueue_cleanings_due",
    cleanings.c.source,
    cleanings.c.ended_at,
    cleanings.c.due_at,
    where=cleanings.c.ended_at.is_(None),
)
sa.Index("cuesqueue_cleanings_ended", cleanings.c.ended_at)

registered = _table(
    "cuesqueue_registered",  # objects that are data files of tables where they are: no source cleans them
    sa.Column("uri_key", Hash, primary_key=True),
    sa.Column("registered_at", sa.BigInteger, nullable=False),
)

history = _table(
    "cuesqueue_history",  # what each pipeline published in each hour, written when the hour is over: see activity.py
    sa.Column("pipeline", Name, primary_key=True),
    sa.Column("hour", sa.BigInteger, primary_key=True, autoincrement=False),  # its beginning
    sa.Column("source", Name, nullable=False),
    sa.Column("batches", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.BigInteger),  # NULL: another sink took them, uncounted
    sa.Column("bytes", sa.BigInteger),
    sa.Column("objects", sa.BigInteger, nullable=False),
    sa.Column("messages", sa.BigInteger, nullable=False),  # received, also again
    sa.Column("errors", sa.BigInteger, nullable=False),
    sa.Column("causes", LongText, nullable=False),  # of the errors: JSON, numbers by cause
    sa.Column("lag_p50", sa.BigInteger),  # microseconds from the message to the publication; NULL: unknown
    sa.Column("lag_p99", sa.BigInteger),
    sa.Column("lags", LongText, nullable=False),  # the histogram that they are from (JSON, see shards/activity.py)
)
sa.Index("cuesqueue_history_hour", history.c.hour)

identity = _table(
    "cuesqueue_store",
    sa.Column("one", sa.SmallInteger, primary_key=True, autoincrement=False),  # always 1: there is one row
    sa.Column("store_id", sa.String(32), nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
)

# Both under names that two users of one database do not share, and not part of `metadata`. `applied` is Alembic's own
# table: the revision that the tables are. `version` was that in the first versions, and is READERS_FROM now: so all
# code finds there whether it can use the store
version = sa.Table(
    "cuesqueue_alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True)
)
applied = sa.Table("cuesqueue_schema", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True))

# Made where a user's `foreachBatch` writes an output, in any database (starting.py): so of types that all know, and
# not part of `metadata` either
outputs = sa.Table(
    "cuesqueue_deliveries",
    sa.MetaData(),
    sa.Column("delivery_hash", Hex, primary_key=True),
    sa.Column("output", Name, primary_key=True),
    sa.Column("pipeline", Name, nullable=False),  # and its store: see starting.owner
    sa.Column("batch_id", sa.BigInteger, nullable=False),
    sa.Column("delivered_at", sa.DateTime, nullable=False),
    **_OPTIONS,
)
