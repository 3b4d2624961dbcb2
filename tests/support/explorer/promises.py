"""What is promised, whatever happens in whatever order. Each of these is checked at the moment that breaks it.

1. What is in a target is what one announced version of an object held, whole, each row once: never a part of it, rows
   of two versions, or a version of which nobody was told. What the first reading found empty, or bad before anything of
   it was read, is the only thing that another version may take the place of.
2. A message is acknowledged when all its objects are published, or given up with their causes; one of a receiver when
   they are recorded for all sources.
3. An object is deleted when every source that was told of it has published it, or has given it up.
4. A batch has one delivery hash at all attempts, which no other batch has.
5. A second output of a batch has what the first one has.
6. A certificate is complete only when the target has the newest version of each object.
7. What is known to be unread is read when it is written anew, and announced.
8. When all is announced, and nothing fails any more, every object that was announced is published, or given up; and
   what was given up unread is bad as it was announced last.
9. Where a store, a table or a checkpoint went back in time, or is another's, all of this holds, or it is said: an error
   ends the query, and the exploration ("noticed"): at the latest before the next batch is taken by a table of which
   rows are gone. What nobody can notice is in `World`: `lost_messages`, which only a listing finds, and `excused`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from shard_store.completeness.comparing import MEASURED
from shard_store.model import ShardState
from support.explorer.objects import Version, etag_of, name_of

if TYPE_CHECKING:
    from support.explorer.casts import Kind
    from support.explorer.world import World

_CLOSED = (ShardState.DONE.value, ShardState.QUARANTINED.value)

Object = tuple[str, str]
"""A source and a URI."""


class Broken(AssertionError):
    """A promise was broken."""


class Promises:
    """The promises of a world.

    `hashes`: what each batch of a delivery was known by; `before_loss`: those of a time that the store has lost;
    `reset`: checkpoints whose sources were reset; `come_again`: rows of states that may be there twice, since the
    checkpoint is behind the store.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._hashes: dict[tuple[str, int], str] = {}
        self._before_loss: set[tuple[str, int]] = set()
        self._reset: set[str] = set()
        self.come_again: set[str] = set()

    @property
    def _anew(self) -> set[Object]:
        return self._world.anew | self._world.coming

    def note_that_batches_come_anew(self, checkpoints: Collection[str] | None = None) -> None:
        """Those of these checkpoints, or of all."""
        self._before_loss |= {batch for batch in self._hashes if checkpoints is None or batch[0] in checkpoints}
        self._reset |= set(checkpoints or ())

    # --- 1 ------------------------------------------------------------------------------------------------------------

    def check_targets(self) -> None:
        """At any moment no row is there twice, and no object in two versions. That it is whole, is seen at its end."""
        world = self._world
        passed = {(source, name_of(uri)) for source, uri in world.passed_objects()}
        anew = {(source, name_of(uri)) for source, uri in self._anew}
        audited = Counter(row for _, row in world.audited())
        may_come_again = {row for row in audited if _parts(row)[:2] in passed}
        states = tuple(f"state of {checkpoint}, " for checkpoint in self._reset)  # as the rows of its objects do
        for name, rows in (("target", world.published()), ("audit", audited)):
            most = {row: 2 if row in self.come_again else 1 for row in rows}
            doubled = [row for row, n in rows.items() if n > most[row] and not row.startswith(states)]
            doubled = [row for row in doubled if name == "target" or row not in may_come_again]
            if doubled := [row for row in doubled if _parts(row)[:2] not in anew]:
                raise Broken(f"{name}: more than once: {doubled}")
        for (source, name), numbers in _versions(world.published()).items():
            if len(numbers) > 1 and (source, name) not in anew and source not in world.cast.versioned:
                raise Broken(f"target: {source} has rows of the versions {sorted(numbers)} of {name}")

    def _held(self, rows: Mapping[str, int], source: str, uri: str) -> Version | None:
        """The version that the target has, whole; None where it has no row, or not all, or of no announced one.

        Rows that are there twice since the store went back are not lost. `check_targets` finds them.
        """
        may_be_twice = self._world.went_back or (source, uri) in self._anew
        for version in self._world.objects.may_be_read(source, uri):
            counts = {rows[f"{source}|{row}"] for row in version.rows}
            if counts == {1} or (counts and 0 not in counts and may_be_twice):
                return version
        return None

    def _is_published(self, rows: Mapping[str, int], states: Mapping[Object, str], of: Object) -> bool:
        """Whether the target has an announced version, or no row since the store says that an empty one was read.

        But for rows of before the object was forgotten, or its source was reset.
        """
        if self._held(rows, *of):
            return True
        was_empty = any(not version.rows for version in self._world.objects.may_be_read(*of))
        left = self._rows_of(rows, of) if of not in self._anew else []
        return was_empty and not left and states.get(of) == ShardState.DONE.value

    def _rows_of(self, rows: Mapping[str, int], of: Object) -> list[str]:
        return [row for row, n in rows.items() if n and _parts(row)[:2] == (of[0], name_of(of[1]))]

    # --- 2, 3, 8 ------------------------------------------------------------------------------------------------------

    def _unpublished(self, of_these: Iterable[Object]) -> list[str]:
        """Which of these are neither published nor given up. What a prune has forgotten is what it was before."""
        world = self._world
        rows, states, unknown = world.published(), world.shard_states(), world.given_up_unknown()
        remembered = {**world.pruned_as, **states}
        found = []
        for source, uri in of_these:
            of, state = (source, uri), states.get((source, uri))
            given_up = of in unknown or uri in world.forgotten or of in world.excused
            given_up |= remembered.get(of) == ShardState.QUARANTINED.value
            given_up |= of in world.lost_messages and state != ShardState.DONE.value
            if not given_up and not self._is_published(rows, remembered, of):
                found.append(f"{name_of(uri)} of {source} ({state}, in the target: {self._rows_of(rows, of)})")
        return found

    def check_may_be_acknowledged(
        self, source: str, uris: Sequence[str], others: Callable[[], set[str]], versions: Mapping[str, str]
    ) -> None:
        """What was opened again since then has another message (of these `others`) that waits for it, or a person.

        So has what was given up, and forgotten by a prune before the message was acknowledged.
        `versions`: of some URIs the ids of the versions that the message announced, each a shard of its own.
        """
        uris = [uri for uri in uris if uri not in versions or not self._is_through(source, uri, versions[uri])]
        excused, announced = self._world.opened_again()
        forgotten = self._anew - excused
        excused, announced = excused | forgotten, announced | forgotten
        if not self._world.went_back and any((source, uri) in announced for uri in uris):
            excused -= announced - {(source, uri) for uri in others()}
        excused |= self._world.done_before
        if unpublished := self._unpublished((source, uri) for uri in uris if (source, uri) not in excused):
            raise Broken(f"a message is acknowledged, and this is not published: {unpublished}")

    def _is_through(self, source: str, uri: str, shard_id: str) -> bool:
        """Whether this version of an object is published, or given up; the others of it may be what they are.

        What a command announces has no version in its text: then any of them is.
        """
        world = self._world
        states = world.states_of(source, uri)
        if not shard_id:
            return any(self._is_through(source, uri, each) for each in states)
        if states.get(shard_id) != ShardState.DONE.value:
            return states.get(shard_id) == ShardState.QUARANTINED.value
        rows = world.published()
        its = [v for v in world.objects.versions[uri] if shard_id in (f"{uri}#v{v.number}", f"{uri}#{etag_of(v)}")]
        return {f"{source}|{row}" for version in its for row in version.rows} <= {*(+rows), *world.pruned}

    def _waits(self, source: str, uri: str) -> bool:
        """Whether the version that was there last is a shard of the source, and not through."""
        newest = self._world.objects.newest(uri)
        ids = {f"{uri}#v{newest.number}", f"{uri}#{etag_of(newest)}"} & self._world.states_of(source, uri).keys()
        return not all(self._is_through(source, uri, shard_id) for shard_id in ids)

    def check_is_recorded(self, uris: Sequence[str], recorded: Collection[Object]) -> None:
        """But for what was `recorded`, has ended, and is forgotten since: it may be pruned before the acknowledgement.

        It was published, or an operator's prune has said so: it was given up as well, or empty.
        """
        world = self._world
        states, rows = world.shard_states(), world.published()
        unknown = [(s, uri) for s in world.names for uri in uris if (s, uri) not in states]
        pruned = {of for of in unknown if of in self._anew | world.excused or self._rows_of(rows, of)}
        if missing := [name_of(of[1]) for of in unknown if of not in recorded or of not in pruned]:
            raise Broken(f"a message of a receiver is acknowledged, and this is not recorded: {missing}")

    def check_may_be_deleted(self, uri: str) -> None:
        states = self._world.shard_states()
        told = [source for source, other in self._world.objects.announced if other == uri]
        # what waits in a queue is known to nobody; a receiver records it for all at once, but one may have adopted it
        adopted = any(other == uri for _, other in self._world.excused)
        if not self._world.cast.routed or adopted:
            told = [source for source in told if (source, uri) in states]
        told = [source for source in told if source not in self._world.cast.versioned or self._waits(source, uri)]
        if unpublished := self._unpublished((source, uri) for source in told):
            raise Broken(f"an object is deleted that another source still needs: {unpublished}")

    def check_cleanings(self) -> None:
        """What is gone is cleaned, and keeps nothing else from it."""
        if failed := self._world.failed_cleanings():
            raise Broken(f"these cannot be cleaned, and their folder was removed: {failed}")

    # --- 4 ------------------------------------------------------------------------------------------------------------

    def check_hash(self, digest: str, batch: tuple[str, int]) -> None:
        """If the store went back and the checkpoint is lost as well, a new checkpoint begins at the same offsets.

        With the same objects the same hash is right; that no output misses rows then is checked at the end. Where the
        checkpoint was put back, the batch of that number is another one from then on.
        """
        if batch in self._before_loss:
            self._before_loss.discard(batch)
            self._hashes[batch] = digest
        if (before := self._hashes.setdefault(batch, digest)) != digest:
            raise Broken(f"batch {batch} had the delivery hash {before}, and has {digest} now")
        same = [other for other, its in self._hashes.items() if its == digest and other != batch]
        if others := [other for other in same if other not in self._before_loss]:
            raise Broken(f"batch {batch} has the delivery hash of {others}: {digest}")

    # --- 6, 7 ---------------------------------------------------------------------------------------------------------

    def check_certificate(self, source: str, uri: str, until: int) -> None:
        """Of a complete one, of what was written before `until` (microseconds).

        Where the store knows no ETag, a version of the same size is told by its time, which is exact to a minute.
        """
        world = self._world
        rows, finished = world.published(), world.finished_without_etag()
        newest, of = world.objects.newest(uri), (source, uri)
        if newest.time // 1000 <= finished.get(of, 0) + MEASURED or of in world.excused or uri in world.forgotten:
            return
        there = self._rows_of(rows, of)
        expected = {f"{source}|{row}" for row in newest.rows}
        may_be_beside = of in self._anew or source in world.cast.versioned
        if may_be_beside and expected <= set(there):  # beside rows of before
            return
        if newest.time // 1000 < until and set(there) != expected:
            said = f"a certificate of {name_of(uri)} is complete; its version {newest.number} is {newest.form}"
            raise Broken(f"{said}, and in the target is {there}")

    def unread(self) -> list[Object]:
        """What is known to be unread: it was empty, or bad before anything of it was read."""
        world = self._world
        rows, states, bad = world.published(), world.shard_states(), world.known_unread()
        return [
            of
            for of, state in states.items()
            if (of in bad or state == ShardState.DONE.value)
            and not (self._rows_of(rows, of) or of in world.excused or of[1] in world.forgotten)
        ]

    def check_is_read_anew(self, unread: Iterable[Object]) -> None:
        rows, states = self._world.published(), self._world.shard_states()
        for of in unread:
            held, newest = self._held(rows, *of), self._world.objects.newest(of[1])
            if held != newest:
                said = f"{name_of(of[1])} of {of[0]} was unread, and its version {newest.number} is announced"
                raise Broken(f"{said}; it is {states.get(of)}, and in the target is {self._rows_of(rows, of)}")

    # --- 9 ------------------------------------------------------------------------------------------------------------

    def check_table_is_whole(self, kind: Kind, rows: Iterable[str]) -> None:
        """A batch with these rows was just published: the table has all that it has published before."""
        world = self._world
        before = world.in_tables.setdefault(kind, set())
        if gone := before - set(world.tables[kind].rows()):
            how = world.spelled.get(kind, "restored")
            raise Broken(f"a {kind.sink} table that was put back ({how}) takes a batch: rows are gone: {sorted(gone)}")
        before |= {row for row in rows if not row.startswith("state of ")}

    # --- the end ------------------------------------------------------------------------------------------------------

    def check_all(self) -> None:
        """When everything has ended.

        A second output may have more than was delivered: what another pipeline has acquired after it was committed,
        and more than once, if it comes back from there. Or less, where the store went back to before that output of
        a batch, and has lost what was bad in it.
        """
        self.check_targets()
        world = self._world
        if unpublished := self._unpublished(world.objects.announced):
            raise Broken(f"at the end this is not published: {unpublished}")
        self._check_that_nothing_is_there_in_part()
        self._check_that_bad_ones_are_bad()
        world.check_data_files()
        delivered = set(world.delivered())
        for name, others in (("audit", [*world.audited(), *world.unaudited]), ("by hash", world.written_by_hash())):
            if missing := delivered - set(others):
                raise Broken(f"{name}: {sorted(missing)} are missing, and were delivered")

    def _check_that_bad_ones_are_bad(self) -> None:
        """What is known to be unread is bad in the version that was announced last, or was not there."""
        world = self._world
        for of in sorted(world.known_unread() - world.by_hand - self._anew - world.excused):
            newest = world.objects.newest(of[1])
            was_there = world.objects.last_gone.get(of[1], -1) < newest.number
            is_told = newest.number in world.objects.announced.get(of, ())
            if was_there and is_told and newest.form != "damaged" and of[1] not in world.forgotten:
                said = f"{name_of(of[1])} of {of[0]} is listed as bad, and its version {newest.number} is whole"
                raise Broken(f"{said}, is there all the time, and was announced")

    def _check_that_nothing_is_there_in_part(self) -> None:
        """Of what is closed. What was given up may be there in part, if that was found out while it was read.

        Of a pipeline's first batch that may be lost, where the store went back: then it says that the batch is given
        up, but not what was bad in it. Nor does that excuse what nobody announced.
        """
        world = self._world
        rows, states, unknown = world.published(), world.shard_states(), world.given_up_unknown()
        for (source, name), numbers in _versions(rows).items():
            uri = next(uri for uri in world.names[source] if name_of(uri) == name)
            given_up = states.get((source, uri)) != ShardState.DONE.value or uri in world.forgotten
            given_up |= (source, uri) in self._anew | world.excused
            announced = {version.number for version in world.objects.may_be_read(source, uri)}
            given_up |= (source, uri) in unknown and numbers.keys() <= announced
            if self._held(rows, source, uri) is None and not given_up:
                raise Broken(f"target: a part of {name}, or what nobody announced: {dict(numbers)}")


def _parts(row: str) -> tuple[str, str, int]:
    """Source, object and version of a row."""
    source, _, rest = row.partition("|")
    name, _, end = rest.rpartition("@")
    return source, name, int(end.partition("#")[0]) if name else -1


def _versions(rows: Mapping[str, int]) -> dict[tuple[str, str], dict[int, int]]:
    """How many rows there are of each version of each object of a source."""
    found: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for row in rows:
        source, name, number = _parts(row)
        if name:
            found[source, name][number] += 1
    return {of: dict(numbers) for of, numbers in found.items()}
