"""Starts a pipeline: its incarnation, its settings, what was left unfinished, and how its source names what comes.

What can be written in several ways has one name in a source. A queue has the name by which the source met it first,
however it is written since: so ids stay as they are (decision 0065).

The table of the outputs of its deliveries is made where it is needed, by the user's own engine, so it uses nothing that
only some databases know.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, Row

from shard_store.batches import snapshots
from shard_store.batches.progress import other_stores, what_was_wrong
from shard_store.errors import StoreConfigurationError
from shard_store.model import OTHER, Pending, PublishToken, Runtime, Semantics, Shard, ShardKey, Snapshot
from shard_store.shards.activity import Intake, Report, last_report, settings_of
from shard_store.shards.ownership import as_shard, current, owned_by
from shard_store.sql import install
from shard_store.sql.database import Again, Transaction
from shard_store.sql.schema import Name, attempts, pipelines, shards, sources
from shard_store.sql.schema import outputs as table


def create(engine: Engine) -> None:
    """Make the table where it is not there; several processes may do so at once."""
    if sa.inspect(engine).has_table(table.name):
        return
    try:
        table.create(engine)
    except sa.exc.DBAPIError:
        if not sa.inspect(engine).has_table(table.name):  # else another was faster
            raise


def is_recorded(connection: Connection, delivery_hash: str, output: str) -> bool:
    query = sa.select(sa.func.count()).where(table.c.delivery_hash == delivery_hash, table.c.output == output)
    return bool(connection.execute(query).scalar_one())


def recent(connection: Connection, output: str, owner: str, since: int) -> list[str]:
    """Return the delivery hashes that are recorded of batches with this number and later ones."""
    c = table.c
    query = sa.select(c.delivery_hash).where(c.pipeline == owner, c.output == output, c.batch_id >= since)
    return list(connection.execute(query).scalars())


def owner(pipeline: str, store_id: str) -> str:
    """Return whose outputs these are: pipelines of several stores, perhaps of one name, may write into one database."""
    most = (Name.length or 0) - len(store_id) - 1
    name = pipeline if len(pipeline) <= most else hashlib.sha256(pipeline.encode()).hexdigest()
    return f"{name}@{store_id}"


def record(connection: Connection, delivery_hash: str, output: str, owner: str, batch_id: int) -> None:
    """Record the output in the caller's transaction; raises sqlalchemy.exc.IntegrityError when it is there.

    What is recorded of other batches is not needed any more, whatever their number: a checkpoint may be new. Spark runs
    a batch when those before it are done, and the caller has looked for what the store has lost.
    """
    others = table.c.pipeline == owner, table.c.output == output, table.c.delivery_hash != delivery_hash
    connection.execute(table.delete().where(*others))
    values = {"delivery_hash": delivery_hash, "output": output, "pipeline": owner, "batch_id": batch_id}
    connection.execute(table.insert().values(**values, delivered_at=sa.func.current_timestamp()))


@dataclass(frozen=True, slots=True)
class Naming:
    """What a reader is about to name.

    Attributes:
        queues: Name as it is configured now -> identity, which is the same however the queue is written.
        alike: Makes one text of all names that look like one queue's: by it a queue is known that has no identity.
        versions: Whether the ids of objects have their versions; None where there are no objects.
    """

    queues: Mapping[str, str] = field(default_factory=dict)
    alike: Callable[[str], str] = str
    versions: bool | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """The names that the source keeps.

    Attributes:
        queues: What each queue is called in ids of messages and of errors, by the name that it is configured with.
        versionless: Ids have versions, but the source has also read objects by ids that had none.
    """

    queues: Mapping[str, str] = field(default_factory=dict)
    versionless: bool = False


def settle_names(transaction: Transaction, source: str, naming: Naming) -> Names:
    """Write down how the source names its queues and objects from now on. The caller has locked the source's row.

    Raises StoreConfigurationError where ids of objects had versions, and shall have none.
    """
    text = transaction.execute(sa.select(sources.c.naming).where(sources.c.source == source)).scalar_one()
    kept: dict[str, Any] = json.loads(text or "{}")
    if kept.get("spellings"):
        raise StoreConfigurationError(
            f"source {source!r} has read objects of Azure by names that a version before 0.3 has given them, and that "
            "no version knows any more: begin with another 'source', for which all that is announced is new"
        )
    before = kept.get("versions")
    if naming.versions is not None:
        if before and not naming.versions:
            raise StoreConfigurationError(
                f"option 'allowOverwrites': source {source!r} was read with true, and knows its objects by names that "
                "false would not find: whatever is announced again would be read again; leave it at true, or run the "
                "query so until nothing is left (trigger availableNow) and then name another 'source'"
            )
        if naming.versions and not before:
            # finished shards of before the first reader are adopted ones, whose ids have no versions
            adopted = sa.select(shards.c.shard_key).where(shards.c.source == source, shards.c.finished_at.is_not(None))
            kept["versionless"] = before is not None or transaction.execute(adopted.limit(1)).first() is not None
        kept["versions"] = naming.versions
    names: dict[str, str] = kept.get("queues", {})
    for name, identity in naming.queues.items():
        if identity not in names:
            by_text = naming.alike(name)
            others = [kept_name for other, kept_name in names.items() if other != by_text]
            chosen = names.get(by_text, name)
            kept["queues"] = names = {**names, identity: identity if chosen in others else chosen}
    if (naming_text := json.dumps(kept, ensure_ascii=False)) != (text or "{}"):
        transaction.execute(sources.update().where(sources.c.source == source).values(naming=naming_text))
    named = {name: names[identity] for name, identity in naming.queues.items()}
    return Names(named, bool(naming.versions) and kept.get("versionless", False))


def half_reset(transaction: Transaction, source: str) -> Mapping[str, Any] | None:
    """Return what `cuesqueue reset` has begun of the source, and not ended: see operators/resetting.py."""
    return _mark(
        transaction.execute(sa.select(sources.c.naming).where(sources.c.source == source)).scalar_one_or_none()
    )


def _mark(naming: str | None) -> Mapping[str, Any] | None:
    mark: Mapping[str, Any] | None = json.loads(naming or "{}").get(_RESET)
    return mark


def mark_reset(transaction: Transaction, source: str, mark: Mapping[str, Any] | None) -> None:
    """Mark the source as one that is being reset; None: that has ended. The caller has locked its row."""
    this = sources.c.source == source
    kept = json.loads(transaction.execute(sa.select(sources.c.naming).where(this)).scalar_one() or "{}")
    kept = {name: value for name, value in kept.items() if name != _RESET} | ({} if mark is None else {_RESET: mark})
    text = json.dumps(kept, ensure_ascii=False) if kept else None
    transaction.execute(sources.update().where(this).values(naming=text))


_RESET = "reset"


def refuse_half_reset(transaction: Transaction, source: str, pipeline: str | None = None) -> None:
    """Raise StoreConfigurationError where a reset of the source, or of this pipeline of it, is half done."""
    _refuse(half_reset(transaction, source), source, pipeline)


def refuse_half_reset_of(naming: str | None, source: str) -> None:
    """Raise as `refuse_half_reset` does, by the column `naming` of the source's row."""
    _refuse(_mark(naming), source, None)


def _refuse(mark: Mapping[str, Any] | None, source: str, pipeline: str | None) -> None:
    if mark is not None and (pipeline is None or not mark["only"] or pipeline in mark["only"]):
        how = "".join(f" --pipeline {name}" for name in mark["only"]) + " --adopted" * mark["adopted"]
        raise StoreConfigurationError(
            f"a reset of source {source!r} runs, or was interrupted: a part of what it has read is forgotten; run "
            f"`cuesqueue reset {source}{how}` to its end first: it goes on where it was"
        )


def name_without_versions(transaction: Transaction, source: str) -> None:
    """Write down that the source has also objects by ids without versions. The caller has locked its row.

    Readers that run know it from their next start on.
    """
    this = sources.c.source == source
    kept = json.loads(transaction.execute(sa.select(sources.c.naming).where(this)).scalar_one() or "{}")
    if kept.get("versions") and not kept.get("versionless"):
        text = json.dumps({**kept, "versionless": True}, ensure_ascii=False)
        transaction.execute(sources.update().where(this).values(naming=text))


def lock_source(transaction: Transaction, source: str) -> None:
    """Lock the source's row, if it is there, before that of any of its pipelines, as all do that lock both.

    Raises StoreConfigurationError for a source that version 0.3 has moved to another store (`cuesqueue export`).
    """
    this = sa.select(sources.c.moved_to).where(sources.c.source == source).with_for_update()
    place = transaction.execute(this).scalar_one_or_none()
    if place is not None:
        raise StoreConfigurationError(
            f"source {source!r} was moved from {transaction.database} to the store {place} by version 0.3; name that "
            "one in 'storeUrl', and keep the checkpoint"
        )


def moved_sources(transaction: Transaction) -> list[str]:
    """Return the sources that version 0.3 has moved to another store: what they have published since is known there."""
    return list(transaction.execute(sa.select(sources.c.source).where(sources.c.moved_to.is_not(None))).scalars())


@dataclass(frozen=True, slots=True)
class Started:
    """What a pipeline finds when it starts: where it stood, and what the incarnation before left unfinished.

    `unfinished` are its own open shards, those inside `unconfirmed` snapshots included; `plan_unfinished`: the plan on
    record is not delivered, so its sink may still be to come. `recent`, where no shards are kept: what was delivered a
    short while ago, perhaps without its messages being acknowledged. `with_errors`: the hashes of plans that are final
    now, and have left errors; `changed`: as in `Confirmed`. `counters` and `intake`: those that the incarnation before
    reported last. `given_up`: those of `unfinished` that an operator wants quarantined. `names`: how the source names
    what comes. `settings`: those of the start before.
    """

    token: PublishToken
    confirmed_seq: int
    last_seq: int
    unconfirmed: tuple[Snapshot, ...]
    unfinished: tuple[Shard, ...]
    plan_unfinished: bool
    recent: frozenset[ShardKey] = frozenset()
    with_errors: tuple[str, ...] = ()
    changed: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    intake: Intake = field(default_factory=Intake)
    store_id: str = ""
    other_stores: Mapping[str, int] = field(default_factory=dict)
    given_up: frozenset[ShardKey] = frozenset()
    names: Names = field(default_factory=Names)
    settings: Mapping[str, str] = field(default_factory=dict)


def check_name(option: str, name: str) -> None:
    """Refuse a name that not every database can tell from every other (MySQL ignores spaces at the end)."""
    if not name or name != name.strip() or not name.isprintable() or len(name) > (Name.length or 0):
        raise StoreConfigurationError(
            f"option {option!r}: {name[:100]!r} cannot be a name in the store; write 1 to {Name.length} printable "
            "characters without spaces around them"
        )


def start(
    transaction: Transaction,
    source: str,
    pipeline: str,
    *,
    driver: str = "",
    stale_after: float = 120.0,
    semantics: Semantics = Semantics.EXACTLY_ONCE,
    remembered: float = 0.0,
    runtime: Runtime | None = None,
    naming: Naming | None = None,
    settings: Mapping[str, str] | None = None,
    check: Callable[[Started], None] = lambda started: None,
) -> Started:
    """Begin a new incarnation of the pipeline, which fences the one before. Idempotent but for the number.

    It takes over what the one before had open. The newest attempt is compared with the snapshots: those up to its end
    are delivered, and are confirmed; those after it are not.
    `stale_after`: the seconds after its last heartbeat from which others may take the pipeline's shards.
    `remembered`: with at-least-once, for how many seconds what was delivered is reported as `recent`.
    `runtime` is for operators. `naming`: what is about to be named; `settings`: what the next start finds in
    `Started.settings`. `check` refuses to go on with what was left, by raising: then nothing has changed.
    """
    check_name("source", source)
    check_name("pipeline", pipeline)
    row = _locked(transaction, source, pipeline, semantics)
    names = Names() if naming is None else settle_names(transaction, source, naming)
    token = PublishToken(pipeline, row.incarnation + 1)
    newest = sa.select(sa.func.max(attempts.c.end_seq)).where(
        attempts.c.pipeline == pipeline, attempts.c.end_seq > row.confirmed_seq
    )
    published = transaction.execute(newest).scalar()
    confirmed = row.confirmed_seq if published is None else published
    if row.semantics != semantics.value:  # what was begun under one promise is not ended under another
        mine = sa.select(sa.func.count()).where(shards.c.owner == pipeline, shards.c.finished_at.is_(None))
        begun, count = row.last_seq - confirmed, transaction.execute(mine).scalar_one()
        if begun or count:
            raise StoreConfigurationError(
                f"option 'deliverySemantics': pipeline {pipeline!r} was run with {row.semantics}, and of that {begun} "
                f"snapshot(s) and {count} shard(s) are not finished; run it with {row.semantics} until nothing is left "
                f"(trigger availableNow), and then with {semantics.value}; or give the new query another 'pipeline'"
            )
    now, changes = transaction.now(), (row.changes or 0) + 1
    last, is_first = Report.parse(row.report, row.incarnation), row.sink is None and not confirmed
    reported = last_report(row.report)
    # no backup from the middle of its first batch: a sink of ours would have made itself known before the reader ended
    has_ended = last is not None and last.stopped and last.same_store
    is_others = is_first and row.plan_incarnation == row.incarnation and has_ended
    transaction.on_commit.append(lambda: transaction.memory.begin(token, driver, changes))
    this = pipelines.update().where(pipelines.c.pipeline == pipeline)
    transaction.execute(
        this.values(
            incarnation=token.incarnation,
            driver=driver,
            changes=changes,
            confirmed_seq=confirmed,
            sink=OTHER if is_others else row.sink,
            semantics=semantics.value,
            remembered=int(remembered * 1_000_000),
            settings=json.dumps([token.incarnation, dict(settings or {})], ensure_ascii=False),
            heartbeat_at=now,
            stale_at=now + int(stale_after * 1_000_000),
            **(runtime or Runtime()).columns(),
        )
    )
    ours = shards.update().where(shards.c.owner == pipeline, shards.c.finished_at.is_(None))
    transaction.execute(ours.values(incarnation=token.incarnation))
    unfinished = current(transaction).where(owned_by(token)).order_by(shards.c.opened_at, shards.c.shard_key)
    given_up = sa.select(shards.c.shard_key).where(owned_by(token), shards.c.pending == Pending.QUARANTINE.value)
    with_errors, changed = what_was_wrong(transaction, pipeline, row.confirmed_seq, confirmed)
    recent = frozenset[ShardKey]()
    if not semantics.keeps_shards:
        first = transaction.execute(first_since(pipeline, now - int(remembered * 1_000_000))).scalar()
        if first is not None:
            recent = frozenset(move.key for move in snapshots.read_moves(transaction, pipeline, first, confirmed))
    started = Started(
        token=token,
        confirmed_seq=confirmed,
        last_seq=row.last_seq,
        unconfirmed=tuple(snapshots.read(transaction, pipeline, confirmed, row.last_seq)),
        unfinished=tuple(as_shard(r) for r in transaction.execute(unfinished)),
        plan_unfinished=row.plan_hash is not None and row.plan_end > confirmed,
        recent=recent,
        with_errors=with_errors,
        changed=changed,
        counters=reported.counters,
        intake=reported.intake,
        store_id=install.store_id(transaction),
        other_stores=other_stores(row.stores),
        given_up=frozenset(map(ShardKey, transaction.execute(given_up).scalars())),
        names=names,
        settings=settings_of(row),
    )
    check(started)
    return started


def _locked(transaction: Transaction, source: str, pipeline: str, semantics: Semantics) -> Row[Any]:
    """Lock the pipeline's row, which is made when it starts for the first time."""
    now = transaction.now()
    transaction.execute(transaction.dialect.insert_if_absent(sources).values(source=source, forgotten_before=0))
    lock_source(transaction, source)
    refuse_half_reset(transaction, source, pipeline)
    transaction.execute(
        transaction.dialect.insert_if_absent(pipelines).values(
            pipeline=pipeline,
            source=source,
            incarnation=0,
            driver="",
            last_seq=0,
            confirmed_seq=0,
            semantics=semantics.value,
            begun_seq=0,
            heartbeat_at=0,
            stale_at=0,
            created_at=now,
        )
    )
    this = sa.select(pipelines).where(pipelines.c.pipeline == pipeline).with_for_update()
    if (row := transaction.execute(this).one_or_none()) is None:  # it was there, idle for long, and is pruned by now
        raise Again(f"database {transaction.database!r}: pipeline {pipeline!r} was pruned, again and again")
    if row.source != source:
        raise StoreConfigurationError(
            f"option 'pipeline': {pipeline!r} already reads source {row.source!r} in this store, not {source!r}; "
            "choose another 'pipeline', or name the same 'source'"
        )
    return row


def first_since(pipeline: str, since: sa.ColumnElement[int] | int) -> sa.Select[Any]:
    """Return the offset at which the first plan that was delivered after `since` (microseconds) begins."""
    return sa.select(sa.func.min(attempts.c.start_seq)).where(
        attempts.c.pipeline == pipeline, attempts.c.published_at > since
    )
