"""Making a plan's results visible: splits, positions and attempt in one transaction, once (invariants 2 and 4)."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Row

from shard_store.batches import readings, snapshots
from shard_store.batches.positions import (
    advance_shards,
    lock_shards,
    mark_published,
    mark_unread,
    positions_of,
    split_by_fit,
)
from shard_store.error_table import records
from shard_store.error_table.records import forget_left_out
from shard_store.errors import ShardStoreError
from shard_store.model import (
    QUARANTINING,
    WHOLE,
    AttemptKind,
    Move,
    Pending,
    PlanIdentity,
    Semantics,
    ShardKey,
    ShardState,
    Split,
    by_pipeline,
    delivery_hash,
    hash_of_batch,
    is_end,
    joined_hash,
    split_key,
)
from shard_store.shards.activity import Activity, Amounts, LastBatch, counted, histogram, settings_of
from shard_store.shards.announcing import end
from shard_store.shards.ownership import fence
from shard_store.sql.database import Transaction, chunks
from shard_store.sql.schema import attempts, errors, of_pipeline, pipelines, shards, splits
from shard_store.sql.schema import snapshots as snapshot_rows


@dataclass(frozen=True, slots=True)
class Published:
    """What a publish did. `already` is true when an earlier attempt had delivered the plan and nothing was written.

    `verdicts`, for a target with a commit of its own: what its mark says of the objects that are not in the batch.
    """

    delivery_hash: str
    already: bool
    kind: AttemptKind | None = None
    shards: int = 0
    quarantined: int = 0
    verdicts: str | None = None


@dataclass(frozen=True, slots=True)
class Unpublished:
    """A batch that the store has not published, for a target with a commit of its own: does that have it?

    `published`: for each pipeline the seq up to which the store may have published something; None: what was before is
    given up, as by `cuesqueue reset`. `goes_on`: the reader's `failOnDataLoss` is false. `left_out`: shards of its
    snapshots that are not in it.
    """

    transaction: Transaction
    delivery_hash: str
    published: Mapping[str, int] | None
    goes_on: bool
    left_out: Collection[ShardKey] = ()

    def passed_from(self, names: Collection[str]) -> int:
        """Return how many of those that are left out are other pipelines' by now than these, which are the batch's."""
        c = shards.c
        others = sa.select(c.shard_key).where(c.owner.is_not(None), c.owner.not_in(names))
        return len(list(self.transaction.select_among(others, c.shard_key, self.left_out))) if self.left_out else 0

    def published_at(self, ends: Mapping[str, int]) -> int | None:
        """Return when the store has published the newest attempts with these ends, by pipeline: microseconds, UTC."""
        c = attempts.c
        those = sa.or_(*(sa.and_(c.pipeline == pipeline, c.end_seq == end) for pipeline, end in ends.items()))
        return self.transaction.execute(sa.select(sa.func.max(c.published_at)).where(those)).scalar()

    def shown_last(self, pipeline: str) -> Mapping[str, tuple[str, int]]:
        """Return the hash and the end of the newest batch with rows that the store has published of a pipeline."""
        lead = attempts.alias("lead")
        query = (
            sa.select(attempts.c.pipeline, lead.c.delivery_hash, attempts.c.end_seq)
            .select_from(attempts.join(lead, lead.c.delivery_hash == attempts.c.lead_hash))
            .where(attempts.c.pipeline == pipeline, lead.c.rows > 0)
            .order_by(attempts.c.end_seq.desc())
        )
        return {name: (lead_hash, end) for name, lead_hash, end in self.transaction.execute(query.limit(1))}


@dataclass(frozen=True, slots=True)
class Looked:
    """What a target says of an unpublished batch: the rows and bytes that it gets, or has already.

    `shown_before`: an attempt before has shown rows there; else it is proven that none has.

    `verdicts`: those of the mark of the attempt before, where it has any.
    """

    brought: tuple[int, int]
    shown_before: bool = False
    verdicts: str | None = None


class PlannedMoves(NamedTuple):
    """What a plan moves, what of its snapshots it leaves out, and when the messages of its shards were sent.

    What is left out passed to others, or was finished before; `lost` of these ranges passed to others.
    """

    moves: Sequence[Move]
    left_out: Sequence[Move]
    sent: Mapping[ShardKey, int]
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """What a sink has made of a micro-batch.

    `files` is None where another sink took the rows, or where they are recorded with another pipeline's attempt.
    `elsewhere`: rows and bytes that become visible with the transaction, in another place than splits.
    `fenced`: no attempt before has shown any rows. `winners`: the task attempts whose rows these are, as far as known.
    `shown_before`: an attempt before has left its rows where the store does not see them.
    """

    files: Sequence[Split] | None = None
    row_schema: str | None = None
    batch_id: int | None = None
    elsewhere: tuple[int, int] = (0, 0)
    fenced: bool = False
    winners: Collection[int] = ()
    shown_before: bool = False

    @property
    def amount(self) -> tuple[int | None, int | None]:
        """Return the rows and bytes; None where they are not counted."""
        if self.files is None:
            return None, None
        rows, size = self.elsewhere
        return rows + sum(file.rows for file in self.files), size + sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A plan that was carried out: what it moves, and what the sink made of it.

    `row` is the pipeline's, locked. `lead` is the hash of the attempt that the files of the batch are recorded with,
    where that is another pipeline's.
    """

    identity: PlanIdentity
    row: Row[Any]
    planned: PlannedMoves
    output: Output = Output()
    lead: str = ""


def publish(
    transaction: Transaction,
    identities: Sequence[PlanIdentity],
    files: Sequence[Split] | None,
    *,
    row_schema: str | None = None,
    batch_id: int | None = None,
    elsewhere: tuple[int, int] = (0, 0),
    fenced: bool = True,
    winners: Collection[int] = (),
    look: Callable[[Unpublished], Looked] | None = None,
) -> Published:
    """Make the splits of a micro-batch visible and advance its shards, once for each plan, fenced by the tokens.

    `identities` are the plans of one micro-batch, one for each pipeline of its query: all advance, or none. The splits
    belong to an attempt of the pipeline whose name comes first, also when it is idle in this batch: it then comes with
    the plan that it delivered last. Each other one has an attempt when it brought input.
    `files` is None where the rows went elsewhere, uncounted; `row_schema` is their schema as Spark's JSON; `elsewhere`
    are rows and bytes that become visible in the same transaction, in another place than splits. `fenced`: no row is
    visible before, as of an attempt that fails. `winners`: the numbers of the task attempts whose rows these are.
    `look` asks a target with a commit of its own whether it has the batch from an attempt before this one, before
    anything is changed.
    The result's hash is that of the batch, its counts are over all.
    Raises PipelineTakenOver when a newer incarnation runs, ShardsLost when shards passed to others: then nothing was
    published.
    """
    rows = _fence_all(transaction, identities)  # first: a replaced driver fails even when there is nothing to do
    recorded, fresh = _find_delivery(transaction, rows, batch_id)
    if recorded.already:
        return recorded
    planned = {i: _planned(transaction, i, rows[i]) for i in fresh}
    moves = [move for i in fresh for move in planned[i].moves]
    of_batch = [move.key for i in fresh for move in (*planned[i].moves, *planned[i].left_out)] if look else []
    fenced, shown_before = fenced and files is not None, False
    if look is not None:
        asked = _unpublished(transaction, rows, recorded.delivery_hash, fresh)
        looked = look(replace(asked, left_out=[move.key for i in fresh for move in planned[i].left_out]))
        elsewhere, fenced, shown_before = looked.brought, not looked.shown_before, looked.shown_before
        if looked.verdicts is not None:
            marked = records.Verdicts.of(looked.verdicts, of_batch)
            records.compare_met(transaction, moves, marked)
            for i in fresh:
                records.judge_as(transaction, i, planned[i].moves, marked)

    beside = Output(batch_id=batch_id, fenced=fenced, winners=winners, shown_before=shown_before)
    output = replace(beside, files=files, row_schema=row_schema, elsewhere=elsewhere)
    first = next(iter(rows))
    if first in planned:
        made = [deliver(transaction, Delivery(first, rows[first], planned[first], output))]
    else:  # it has no new input: its attempt has the splits all the same
        at_its_end = replace(first, start_seq=first.end_seq, delivery_hash=recorded.delivery_hash)
        kind = AttemptKind.NIL if output.amount[0] == 0 else AttemptKind.OUTPUT
        idle = Delivery(at_its_end, rows[first], PlannedMoves((), (), {}), replace(output, winners=()))
        _record(transaction, idle, kind, 0, Counter(), ())
        made = [Published(recorded.delivery_hash, False, kind)]
    lead = made[0].delivery_hash
    made += [deliver(transaction, Delivery(i, rows[i], planned[i], beside, lead)) for i in fresh if i != first]

    for i, row in rows.items():
        if i in planned:
            readings.forget_marks(transaction, i.delivery_hash, row.plan_attempt)
        elif batch_id is not None:
            made += _deliver_unplanned(transaction, i, batch_id, lead)
    return Published(
        recorded.delivery_hash,
        already=False,
        kind=made[0].kind,
        shards=sum(m.shards for m in made),
        quarantined=sum(m.quarantined for m in made),
        verdicts=None if look is None else records.verdicts_of(transaction, fresh, moves, of_batch),
    )


def _unpublished(
    transaction: Transaction, rows: Mapping[PlanIdentity, Row[Any]], digest: str, fresh: Sequence[PlanIdentity]
) -> Unpublished:
    ends, goes_on = _published_ends(transaction, rows.values())
    if ends is None:
        return Unpublished(transaction, digest, None, goes_on)
    # without any attempt it began anew, or goes by the first backup: this batch has to be the first one at its seqs
    none = {i.token.pipeline: i.end_seq - 1 if i in fresh else row.last_seq for i, row in rows.items()}
    return Unpublished(transaction, digest, none | ends, goes_on)


def _published_ends(transaction: Transaction, rows: Collection[Row[Any]]) -> tuple[dict[str, int] | None, bool]:
    """Return up to where pipelines have published, as far as the store knows, and whether they go on after a loss.

    None: what was before counts no more. So it is after `cuesqueue reset`, which leaves out a seq, as a loss may do.
    """
    c = attempts.c
    newest = sa.select(c.pipeline, sa.func.max(c.end_seq)).group_by(c.pipeline)
    newest = newest.where(c.pipeline.in_([row.pipeline for row in rows]))
    ends: dict[str, int] = {row[0]: row[1] for row in transaction.execute(newest)}
    goes_on = any(settings_of(row).get(FAIL_ON_DATA_LOSS) == "false" for row in rows)
    given_up = {row.pipeline: row.confirmed_seq for row in rows if row.confirmed_seq > ends.get(row.pipeline, 0)}
    if goes_on or not given_up:
        return ends, goes_on
    # one that is idle since then has no attempt of its own, and those of the others count
    return (None if len(given_up) == len(rows) else ends | given_up), goes_on


FAIL_ON_DATA_LOSS = "failOnDataLoss"
"""The reader's option, as its pipeline's row has it."""


def find_delivery(transaction: Transaction, identities: Sequence[PlanIdentity], batch_id: int) -> Published:
    """Return what `publish` would find: the hash of the batch's attempt, and whether it is there. Locks nothing."""
    names = [identity.token.pipeline for identity in identities]
    query = sa.select(pipelines.c.pipeline, pipelines.c.confirmed_seq).where(pipelines.c.pipeline.in_(names))
    by_name: dict[str, Any] = {row.pipeline: row for row in transaction.execute(query)}
    return _find_delivery(transaction, {i: by_name[i.token.pipeline] for i in by_pipeline(identities)}, batch_id)[0]


def has_published(transaction: Transaction, identities: Sequence[PlanIdentity], digest: str) -> bool:
    """Return whether this is the hash of one of the query's last batches, all of which have attempts.

    Also where what was before counts no more.
    """
    c = attempts.c
    names = [identity.token.pipeline for identity in identities]
    rows = transaction.execute(sa.select(pipelines).where(pipelines.c.pipeline.in_(names))).all()
    if _published_ends(transaction, rows)[0] is None:
        return True
    first = by_pipeline(identities)[0].token.pipeline
    newest = sa.select(c.lead_hash).where(c.pipeline == first).order_by(c.end_seq.desc()).limit(_RECENT)
    leads = list(transaction.execute(newest).scalars())
    of_batches = sa.select(c.lead_hash, c.delivery_hash).order_by(c.pipeline)
    batches: dict[str, list[str]] = {}
    for row in transaction.execute(of_batches.where(sa.or_(c.lead_hash.in_(leads), c.delivery_hash == digest))):
        batches.setdefault(row.lead_hash, []).append(row.delivery_hash)
    return any(digest == lead or digest in (joined_hash(of), *of) for lead, of in batches.items())


_RECENT = 100


def is_published(transaction: Transaction, identity: PlanIdentity) -> bool:
    """Return whether this very plan has its attempt; one that another kind of sink took has it once it is confirmed."""
    query = sa.select(attempts.c.delivery_hash).where(attempts.c.delivery_hash == identity.delivery_hash)
    return transaction.execute(query).first() is not None


_RECORDED = (
    sa.select(attempts.c.delivery_hash, attempts.c.batch_id, attempts.c.lead_hash)
    .where(attempts.c.delivery_hash.in_(sa.bindparam("digests", expanding=True)))
    .order_by(attempts.c.published_at.desc(), attempts.c.end_seq)
)


def _find_delivery(
    transaction: Transaction, rows: Mapping[PlanIdentity, Row[Any]], batch_id: int | None
) -> tuple[Published, list[PlanIdentity]]:
    """Find out whether the micro-batch is published, and which of its plans bring input that is not delivered.

    Its hash is made of the hashes of those that do. Where the first pipeline brings none, it is the hash of that one's
    attempt, which has the rows, and is made of what the pipeline stands at, too. Of a batch that is published each
    attempt names the one with the rows (`lead_hash`); the newest one counts, since an idle pipeline may have had
    another batch of the same number.
    """
    first, c = next(iter(rows)), attempts.c
    recorded = transaction.execute(_RECORDED, [{"digests": [identity.delivery_hash for identity in rows]}]).all()
    leads = {row.delivery_hash: row.lead_hash for row in recorded}
    unseen = {i: row for i, row in rows.items() if i.delivery_hash not in leads}
    fresh = [i for i, row in unseen.items() if i.end_seq > max(i.start_seq, row.confirmed_seq)]
    if first in fresh:
        return Published(hash_of_batch(fresh), already=False), fresh
    lead = next((row.lead_hash for row in recorded if batch_id in (None, row.batch_id)), None)
    if not fresh and lead is not None:
        together = [i for i in rows if leads.get(i.delivery_hash) == lead]
        return Published(hash_of_batch(together) if lead == first.delivery_hash else lead, already=True), fresh
    # its plan is the one before, already delivered under another batch id, or after a restart the empty one with which
    # a pipeline starts: so the hash is made of what both have in common, the offset at which it ran, and its id; and of
    # the plans of other pipelines that bring input
    beside = "".join(f" {plan.delivery_hash}" for plan in fresh)
    key = f"{first.source}\0{first.token.pipeline}\0state {first.end_seq} {batch_id}{beside}"
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    delivered = sa.select(c.delivery_hash).where(c.delivery_hash == digest)
    return Published(digest, already=transaction.execute(delivered).first() is not None), fresh


def hold(transaction: Transaction, identities: Sequence[PlanIdentity], batch_id: int) -> None:
    """Make sure that the micro-batch can be published, and stays so as long as the caller's transaction.

    For rows that are committed elsewhere before the publish: a driver that was replaced, or whose shards passed to
    others, must not commit them. Raises as `publish` does.
    """
    rows = _fence_all(transaction, identities)
    for identity in _find_delivery(transaction, rows, batch_id)[1]:
        planned = _planned(transaction, identity, rows[identity])
        if Semantics(rows[identity].semantics).final_at_delivery:
            lock_shards(transaction, identity, planned.moves)


def created_at(transaction: Transaction, pipeline: str) -> int:
    """Return when the pipeline started first: that distinguishes it from one of the same name in another store."""
    query = sa.select(pipelines.c.created_at).where(pipelines.c.pipeline == pipeline)
    return int(transaction.execute(query).scalar_one())


def _fence_all(transaction: Transaction, identities: Sequence[PlanIdentity]) -> dict[PlanIdentity, Row[Any]]:
    """Lock the pipelines' rows: in one order, so that no two queries wait for each other."""
    return {identity: fence(transaction, identity.token) for identity in by_pipeline(identities)}


def _planned(transaction: Transaction, identity: PlanIdentity, row: Row[Any]) -> PlannedMoves:
    """Return what is to be delivered of a plan that is not delivered yet; it must be the one on record."""
    if (row.plan_hash, row.plan_incarnation) != (identity.delivery_hash, identity.token.incarnation):
        raise ShardStoreError(
            f"pipeline {identity.token.pipeline!r}: the batch to publish is not the one that was planned last; "
            "use one 'pipeline' name for one query only"
        )
    return planned_moves(transaction, row)


def planned_moves(transaction: Transaction, row: Row[Any]) -> PlannedMoves:
    """Read what the plan on record in the pipeline's row moves."""
    moves, sent = snapshots.read_planned(transaction, row.pipeline, row.plan_after, row.plan_end)
    left_out: list[Move] = []
    if marks := set(json.loads(row.plan_left_out)):
        left_out = [move for move in moves if snapshots.mark(move) in marks]
        moves = [move for move in moves if snapshots.mark(move) not in marks]
    return PlannedMoves(moves, left_out, sent, row.plan_lost or 0)


def deliver(transaction: Transaction, delivery: Delivery) -> Published:
    """Advance the shards, quarantine those with an object error, record splits and attempt."""
    identity, row, planned, output = delivery.identity, delivery.row, delivery.planned, delivery.output
    semantics, moves = Semantics(row.semantics), planned.moves
    advanced, announced, changed = {move.key for move in moves}, set[ShardKey](), 0
    if semantics.final_at_delivery:
        announced = advance_shards(transaction, identity, moves)
        if planned.left_out:
            forget_left_out(transaction, identity.delivery_hash, planned.left_out, moves)
    causes, bad, skipped = _errors_of(transaction, identity.delivery_hash)
    quarantined = {key for key in advanced if key in bad}
    filtered = set[ShardKey]()
    if identity.loaded is not None:
        filtered = {move.key for move in moves if (move.key, move.start) not in identity.loaded} - bad
    unread = filtered | skipped
    read = [move for move in moves if move.key not in bad and move.key not in unread]
    ended = [move.key for move in read if is_end(move.end)]
    if semantics.final_at_snapshot:
        mark_published(transaction, read)
    if semantics.keeps_shards and unread:
        mark_unread(transaction, Pending.LEFT_OUT, filtered)
        mark_unread(transaction, Pending.SKIPPED, (advanced & skipped) - bad)
    if semantics.keeps_shards and quarantined:
        readings.doubt(
            transaction,
            identity,
            attempt=max(row.plan_attempt, 2 if output.shown_before else 1),
            incarnation=row.plan_incarnation,
            winners=output.winners,
            fenced=output.fenced,
        )
    if semantics.keeps_shards and (quarantined or announced):
        opened, changed = end(transaction, identity, quarantined, announced)
        quarantined -= opened
        quarantine = shards.update().values(
            state=ShardState.QUARANTINED.value,
            pending=None,
            finished_at=transaction.now(),
            end_seq=identity.end_seq,
        )
        transaction.change_among(quarantine, shards.c.shard_key, quarantined)
    kind, rows = AttemptKind.OUTPUT, output.amount[0]
    if rows == 0 or (rows is None and advanced <= bad | unread):
        kind = AttemptKind.ERROR if causes else AttemptKind.NIL
    _record(transaction, delivery, kind, len(advanced), causes, ended, changed)
    return Published(identity.delivery_hash, False, kind, len(advanced), len(quarantined))


def _deliver_unplanned(transaction: Transaction, identity: PlanIdentity, batch_id: int, lead: str) -> list[Published]:
    """Finish the snapshots of the micro-batch for which Spark asked for no plan, if there are any.

    It asks for none where it has found out that no row of the stream can reach the sink: `limit(0)`, a filter that is
    never true, an inner join with an empty table. That our sink is at work proves that the batch was run. Not after a
    restart that repeats the batch: then it may be one without input, on a store that has lost the plan before it.
    """
    row = fence(transaction, identity.token)  # again: the attempt before has changed what it counts
    after, until = max(row.plan_end or 0, row.confirmed_seq), identity.unplanned_seq
    if until <= after:
        return []
    ranges = snapshots.flatten(snapshots.read(transaction, row.pipeline, after, until))
    digest = delivery_hash(row.source, row.pipeline, ranges, (after, until))
    moves, sent = snapshots.read_planned(transaction, row.pipeline, after, until)
    unplanned, others = replace(identity, start_seq=after, end_seq=until, delivery_hash=digest), list[Move]()
    if Semantics(row.semantics).final_at_delivery:
        moves, others = split_by_fit(moves, positions_of(transaction, identity.token, {m.key for m in moves}))
    planned = PlannedMoves(moves, others, sent, len(others))
    return [deliver(transaction, Delivery(unplanned, row, planned, Output((), batch_id=batch_id), lead))]


_KINDS = errors.c.scope, errors.c.cause
_CAUSES = sa.select(*_KINDS, sa.func.count()).where(errors.c.delivery_hash == sa.bindparam("digest")).group_by(*_KINDS)


def _errors_of(transaction: Transaction, digest: str) -> tuple[Counter[str], set[bytes], set[bytes]]:
    """Return how many errors the plan left, by cause, and the keys of what is quarantined, and of what was skipped."""
    causes = Counter[str]()
    scopes: set[str] = set()
    for scope, cause, count in transaction.execute(_CAUSES, [{"digest": digest}]):
        scopes.add(scope)
        causes[cause] += count
    bad, skipped = set[bytes](), set[bytes]()
    if not scopes.isdisjoint(WHOLE):
        of_objects = sa.select(errors.c.shard_key, errors.c.scope).where(
            errors.c.delivery_hash == digest, errors.c.scope.in_(WHOLE)
        )
        for key, scope in transaction.execute(of_objects):
            (bad if scope in QUARANTINING else skipped).add(key)
    return causes, bad, skipped


_SNAPSHOT_AT = (
    sa.select(snapshot_rows.c.created_at)
    .where(
        snapshot_rows.c.pipeline == sa.bindparam("of"),
        snapshot_rows.c.seq == sa.bindparam("seq"),
        snapshot_rows.c.chunk == 0,
    )
    .scalar_subquery()
)


def _record(
    transaction: Transaction,
    delivery: Delivery,
    kind: AttemptKind,
    shard_count: int,
    causes: Counter[str],
    ended: Collection[ShardKey],
    changed: int = 0,
) -> None:
    """Write splits and attempt, and in the pipeline's row what operators see of them. `ended`: published whole."""
    identity, output, (rows, size) = delivery.identity, delivery.output, delivery.output.amount
    pipeline = identity.token.pipeline
    # one time for all files, asked for while the pipeline's row is locked: see `views.await_publishes`. And not as a
    # part of the insert: there MySQL would lock the snapshot, and the next one, which may be another pipeline's
    at_end = {"of": pipeline, "seq": identity.end_seq}
    now, snapshot_at = transaction.execute(sa.select(transaction.now(), _SNAPSHOT_AT), [at_end]).one()
    common = {
        "delivery_hash": identity.delivery_hash,
        "source": identity.source,
        "pipeline": pipeline,
        "published_at": now,
    }
    files = output.files or ()
    for chunk in chunks(files):
        row_set = transaction.row_set(**{name: splits.c[name] for name in ("path", "name_key", "rows", "bytes")})
        values = [(f.path, split_key(f.path), f.rows, f.size) for f in chunk]
        row_set.execute(transaction.connection, row_set.insert(splits.insert(), common), values)
    attempt = common | {
        "lead_hash": delivery.lead or identity.delivery_hash,
        "incarnation": identity.token.incarnation,
        "start_seq": identity.start_seq,
        "end_seq": identity.end_seq,
        "batch_id": output.batch_id,
        "kind": kind.value,
        "shards": shard_count,
        "lost": delivery.planned.lost,
        "errors": causes.total(),
        "splits": len(files),
        "rows": rows,
        "bytes": size,
        "snapshot_at": snapshot_at,
        "changed": changed,
    }
    transaction.execute(attempts.insert(), [attempt])
    # the numbers for operators are exact whenever a process dies: they go with the row that is written
    # anyway, and cost no statement
    last = Activity.parse(delivery.row.activity).last
    direct = 0 if last is None else last.direct
    if output.winners and Semantics(delivery.row.semantics).keeps_shards and direct != identity.token.incarnation:
        direct = identity.token.incarnation if readings.is_direct(transaction, identity, output.winners) else direct
    sent = delivery.planned.sent
    lags = histogram([now - sent[key] for key in ended if key in sent])
    amounts = Amounts(1, rows, size, len(ended), changed=changed, errors=causes, lags=lags)
    batch = LastBatch(
        seq=identity.end_seq,
        batch_id=output.batch_id,
        kind=kind.value,
        published_at=now,
        rows=rows,
        bytes=size,
        objects=len(ended),
        errors=causes.total(),
        direct=direct,
    )
    seen = counted(transaction, delivery.row, now, amounts, batch)
    schema = {} if output.row_schema is None else {"row_schema": output.row_schema}
    row, size_of_files = delivery.row, sum(file.size for file in files)
    counts = {"data_files": (row.data_files or 0) + len(files), "data_bytes": (row.data_bytes or 0) + size_of_files}
    changes: dict[str, Any] = seen | schema | (counts if files else {})
    transaction.execute(of_pipeline, [{"of": pipeline, "published_at": now, **changes}])
