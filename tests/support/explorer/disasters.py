"""What happens to stores, tables and checkpoints by people's hands: they are lost, put back, or another's are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shard_store.model import ShardState
from support.explorer.casts import TABLES
from support.explorer.lives import Lives, Noticed
from support.explorer.promises import Object
from support.explorer.query import OF_TABLES, POINTS
from support.explorer.world import Checkpoint, Moment, Offsets

if TYPE_CHECKING:
    from support.explorer.explorer import Explorer
    from support.explorer.usual import Steps


class Disasters:
    """The steps that only people take."""

    def __init__(self, lives: Lives) -> None:
        self.lives, self.world, self.choose = lives, lives.world, lives.choose
        self.went_back = False
        self.waits = False  # until another step puts something back
        self.begins = False  # the store may go back behind the first batch

    def beginning(self) -> Moment | None:
        """A moment before any batch; only where all sinks make themselves known, sometimes."""
        firsts = [*self.world.beginnings]
        own = all(kind.sink != "other" for kind in self.world.cast.kinds)
        is_chosen = self.begins and firsts and own and self.choose.random() < 0.4
        return self.choose.choice(firsts) if is_chosen else None

    def steps(self, explorer: Explorer) -> Steps:
        """All of them."""
        remembers, takes = self.world.remembers, explorer.takes
        return {
            "lose_a_checkpoint": (1, self.lose_a_checkpoint),
            "go_back": (1 if remembers else 0, self.go_back),
            "take_a_foreign_checkpoint": (4 if explorer.copies_checkpoints else 0, self.take_a_foreign_checkpoint),
            "lose_the_checkpoint_of_a_batch": (
                2 if "lost-checkpoints" in takes else 0,
                self.lose_the_checkpoint_of_a_batch,
            ),
        }

    def lose_a_checkpoint(self) -> None:
        """Only of a query that is through: what another sink has taken, or an output, is known by the checkpoint."""
        lives, kind = self.lives, self.choose.choice(self.lives.kinds)
        query = lives.queries.get(kind)
        if query is not None and query.checkpoint.unfinished is None:
            if lives.guarded(query, query.trigger) and query.readers and query.checkpoint.unfinished is None:
                lives.guarded(query, lambda: query.trigger())  # an empty one proves that the one before is done
            if query.readers and not any(reader.has_work for reader in query.readers):
                lives.end(query)
                self.world.checkpoints[kind] = Checkpoint()
                if kind.sink not in ("ours", *TABLES):
                    self.world.forget_earlier_states()  # without both, nothing tells what was taken

    def lose_the_checkpoint_of_a_batch(self) -> None:
        """The driver dies in a batch of one of our sinks, and its checkpoint is lost: the next one plans it again.

        Of a query of several pipelines the next batch may hold more than this one: then it has to say that.
        """
        lives, kind = self.lives, self.choose.choice(self.lives.kinds)
        query = lives.queries.get(kind)
        if kind.sink not in ("ours", *TABLES) or not (query or self.world.checkpoints[kind].unfinished):
            return
        if query is not None:
            query.die_at = self.choose.choice(OF_TABLES if kind.sink in TABLES else POINTS[2:])
            if all(lives.guarded(query, reader.work) for reader in query.readers):
                lives.guarded(query, query.trigger)
            lives.end(query)
        self.world.checkpoints[kind] = Checkpoint()
        lives.may_notice |= len(kind.names) > 1

    def go_back(self) -> None:
        """The store alone, under what runs, or while all is stopped."""
        world, lives = self.world, self.lives
        if self.went_back or self.waits or len(world.states) < 2:
            return
        steps = self.choose.randint(1, 5)
        stopped = self.choose.random() < 0.5  # as the page on backups says; else a standby is promoted
        world.log(f"  by {steps}" + ", with all queries stopped" * stopped)
        for query in [*lives.queries.values()]:
            if stopped:
                lives.end(query)
            else:  # what is confirmed is acknowledged a moment later; before or after, the store cannot tell
                all(lives.guarded(query, reader.acknowledge) for reader in query.readers)
                world.done_before = {of for of, state in world.shard_states().items() if state != ShardState.OPEN.value}
        if stopped:
            lives.end_router()
        world.go_back(self.beginning() or world.moment(steps))  # chosen last: what was done above moves the moments on
        for reader in [reader for query in lives.queries.values() for reader in query.readers]:
            reader.lose_connections()
        self.went_back = lives.may_notice = True

    def restore(self) -> None:
        """Store, tables and checkpoints, each or not, while all is stopped: to one moment.

        What nobody can notice is excused. With store and checkpoints together: what was acknowledged since then. With
        tables alone: the rows of what the store has by then. Only a listing finds the first, and nothing the second.
        """
        world, lives = self.world, self.lives
        if self.went_back or len(world.states) < 2:
            return
        if world.tables and not world.moments_before_tables() and self.choose.random() < 0.7:
            return  # there is one time for it, and marks of tables are what it is for
        lives.end_all()
        earlier = world.moments_before_tables()
        steps = self.choose.randint(1, 5)
        parts = [part for part in ("store", "tables", "checkpoints") if self.choose.random() < 0.6]
        moment = world.moment(steps)
        if earlier and self.choose.random() < 0.6:
            parts = ["store", "checkpoints"]  # nothing but the marks of the table says so
            moment = self.choose.choice(earlier)
        world.log(f"  {', '.join(parts)}")
        if "store" in parts:
            world.go_back(moment)
        before = set(world.published())
        if "tables" in parts:
            for kind, state in moment.tables.items():
                world.tables[kind].restore(state)
                if kind.sink != "delta" and state is not None:  # an older copy, marks and all: the pages say so
                    world.in_tables[kind] = set(moment.in_tables.get(kind, ()))
        if "checkpoints" in parts:
            self.put_checkpoints_back(moment, lost="store" in parts)
        if "store" not in parts:
            self.excuse_finished(before - set(world.published()))
        self.went_back = lives.may_notice = bool(parts)

    def put_checkpoints_back(self, moment: Moment, *, lost: bool) -> None:
        """With the store what was acknowledged since is `lost`: nobody can notice it.

        Nor that a pipeline reads once more what was the first batch of another one into a table: the other one says
        so when it has a batch again.

        Without it a batch without input that Spark repeats is known by what the store has planned last, and this may
        be further than what the batch ran at.
        """
        world = self.world
        for kind, checkpoint in moment.checkpoints.items():
            if not lost and (number := checkpoint.unfinished) is not None:
                first = min(kind.names)
                if world.planned_until(first) > checkpoint.batches[number][1][first]["seq"]:
                    world.promises.come_again |= {*checkpoint.state_of(number, kind.names)}
        world.checkpoints |= {kind: checkpoint.copy() for kind, checkpoint in moment.checkpoints.items()}
        world.taken = dict(moment.taken)  # a sink of another kind knows of no mark: it goes back, too
        world.promises.note_that_batches_come_anew()
        if lost:
            for kind, table in world.tables.items():
                has_none = not (moment.checkpoints[kind].batches or any(map(world.planned_until, kind.names)))
                if has_none and kind.sink != "iceberg-inside":  # that is put back with the store
                    world.unheard_of[kind] = {row for row in table.rows() if not row.startswith("state of ")}
            world.lost_messages |= set(world.acknowledged[moment.acknowledged :])

    def excuse_finished(self, gone: set[str]) -> None:
        self.world.excused |= self.finished_with(gone)

    def finished_with(self, rows: set[str]) -> set[Object]:
        """The objects that are not open, and have any of these rows in one of their versions."""
        world = self.world
        return {
            (source, uri)
            for (source, uri), state in world.shard_states().items()
            if state != ShardState.OPEN.value
            and any(f"{source}|{row}" in rows for version in world.objects.versions[uri] for row in version.rows)
        }

    def take_a_foreign_checkpoint(self) -> None:
        """A query is started with the checkpoint of another one, by mistake; and with its own afterwards."""
        world, lives = self.world, self.lives
        mine, other = self.choose.sample(lives.kinds, 2)
        if not world.checkpoints[other].batches or len(mine.names) != len(other.names):
            return
        if (query := lives.queries.get(mine)) is not None:
            query.die_at = self.choose.choice(POINTS[:4])  # a batch of its own is not finished
            if all(lives.guarded(query, reader.work) for reader in query.readers):
                lives.guarded(query, query.trigger)
            lives.end(query)
        lives.may_notice = True
        stranger = world.checkpoints[other].copy()
        stranger.name = Checkpoint().name
        renamed = dict(zip(other.names, mine.names, strict=True))

        def as_mine(offsets: Offsets) -> Offsets:
            return {renamed[name]: offset for name, offset in offsets.items()}

        stranger.batches = {n: (as_mine(a), as_mine(b)) for n, (a, b) in stranger.batches.items()}
        own, world.checkpoints[mine] = world.checkpoints[mine], stranger
        try:
            lives.start(mine)
            if query := lives.queries.get(mine):
                lives.guarded(query, query.trigger)
        except Noticed:
            pass  # said, and nothing is changed by it
        finally:
            if query := lives.queries.get(mine):
                lives.end(query)
            world.checkpoints[mine] = own
