"""What happens next, by a seed; and when everything has ended, whether every promise was kept."""

from __future__ import annotations

import logging
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from unittest import mock

from queue_source.announcements.dialects import DIALECTS
from queue_source.commands.reconcile import Period, compare, pages_of
from queue_source.options import parse_listing_options
from shard_store.errors import LostProgress, PipelineTakenOver, ShardsLost
from shard_store.model import ShardState, shard_key, time_of
from shard_store.shards.changes import Audit
from shard_store.upkeep.pruning import RetentionPolicy
from support.explorer.casts import TABLES, casts_of, kinds_taken
from support.explorer.disasters import Disasters
from support.explorer.lives import Lives, Noticed
from support.explorer.meetings import Meetings
from support.explorer.objects import FILES, FORMS, Event, name_of
from support.explorer.promises import Broken
from support.explorer.query import OF_TABLES, POINTS
from support.explorer.reader import Death
from support.explorer.world import LEASE, STALE, World

__all__ = ["Explorer", "explore"]

_STEPS = 60
_ROUNDS = 60  # of the fair end: then something is stuck
_ROUTING = ("messages-routed", "messages-recorded")  # failpoints of a receiver


class Explorer:
    """One exploration: a world, some queries, and a number of steps in an order that only the seed decides.

    `takes`: the kinds of steps (`casts.KINDS`) that may come beside the usual ones. `moods`: how much more or less
    often than usual each step comes, so that explorations differ.
    """

    def __init__(
        self, seed: int, folder: Path, *, takes: Collection[str], log: Callable[[str], None] = lambda line: None
    ) -> None:
        self.choose = random.Random(seed)
        self.takes = takes
        casts = casts_of(takes)
        cast = casts[seed % len(casts)]
        sources = sorted({source for kind in cast.kinds for _, source in kind.pipelines})
        endings = (".json", ".json", ".json", ".json.gz") if "versions" in takes else (".json",)
        number = self.choose.randint(3, 7)
        names = {
            source: [f"o{n}{endings[n % len(endings)]}" for n in range(number if cast.routed else self._some())]
            for source in sources
        }
        forms = ("whole", "whole", "large") if "versions" in takes else ("whole",)
        self.world = World(folder, cast, names, lambda: self.choose.choice(forms))
        self.world.between_tasks = self._while_a_batch_is_read
        self.lives = Lives(self.world, self.choose, reorders="orders" in takes)
        self.disasters = Disasters(self.lives)
        self.events: list[Event] = []  # that nobody was told of yet
        self.by_hand: set[tuple[str, str]] = set()  # given up or opened again by an operator
        often = "restores" in takes and self.world.tables
        self.world.remembers = self.choose.random() < (0.8 if often else 0.4)  # store and tables may go back, once
        self.world.spares = random.Random(f"sizes {seed}").random() < 0.5  # what a URI alone announces is not looked up
        self.copies_checkpoints = self.choose.random() < 0.35 and len(cast.kinds) > 1
        self.moods = defaultdict[str, float](lambda: self.choose.choice((0.0, 0.5, 1.0, 1.0, 3.0)))
        self.moods |= {step: self.choose.choice((1.0, 3.0)) for step in ("_announce", "_work", "_trigger", "_route")}
        self._log = self.world.log = log
        self.meetings = Meetings(self, seed)

    def _some(self) -> int:
        return self.choose.randint(3, 7)

    def run(self) -> str:
        """Returns how it ended: "whole", or "noticed" where a loss was said."""
        try:
            for _ in range(_STEPS):
                self._step()
                self._check_targets()
                self.world.remember_state()
            self._end_fairly()
        except Noticed as noticed:
            self._log(f"noticed: {noticed}")
            return "noticed"
        finally:
            self.lives.end_all()
            self.world.close()
        return "whole"

    def _check_targets(self) -> None:
        """What another pipeline has read again since the store went back: who wrote it first says so when it runs."""
        try:
            self.world.promises.check_targets()
        except Broken:
            if self.lives.may_notice:
                self._go_on()
            raise

    # --- steps --------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """What happens between a death and the next start is where most is to be found out: `aftermath`."""
        takes, remembers, cast = self.takes, self.world.remembers, self.world.cast
        aftermath = 4 if self.lives.is_batch_left else 1
        steps: dict[Callable[[], None], int] = {
            self._announce: 8,
            self._work: 14,
            self._trigger: 22,
            self._die: 3,
            self._stop: 2,
            self._pass_time: 6,
            self._change_an_object: 5,
            self._operate: 3,
            self._prune: 1,
            self._take_over: 2,
            self._wake_a_zombie: 3,
            self.disasters.lose_a_checkpoint: 1,
            self.disasters.go_back: 1 if remembers else 0,
            self.disasters.take_a_foreign_checkpoint: 4 if self.copies_checkpoints else 0,
            self._write: 6 * aftermath if "versions" in takes else 0,
            self._route: 14 if cast.routed else 0,
            self._clean: 6 if cast.cleans else 0,
            self.disasters.lose_the_checkpoint_of_a_batch: 2 * aftermath if "lost-checkpoints" in takes else 0,
            self._restore: (4 if self.world.tables else 2) * aftermath if remembers and "restores" in takes else 0,
            self._certify: 2 if "certificates" in takes else 0,
        }
        step = self.choose.choices(list(steps), [weight * self.moods[s.__name__] for s, weight in steps.items()])[0]
        self._log(step.__name__)
        with self.meetings.step():
            step()

    def _announce(self) -> None:
        """Notifications as they were made, in any order, now or later once more; or what is there now, as URIs."""
        sources = list(self.world.names)
        source = self.choose.choices(sources, [0.05 + self.moods[f"announce {source}"] for source in sources])[0]
        uris = self.world.names[source]
        if (waiting := [event for event in self.events if event.uri in uris]) and self.choose.random() < 0.7:
            events = self.choose.sample(waiting, self.choose.randint(1, min(2, len(waiting))))
            if self.choose.random() < 0.8:
                self.events = [event for event in self.events if event not in events]
        else:
            chosen = self.choose.sample(uris, self.choose.randint(1, min(3, len(uris))))
            facts = "versions" in self.takes and self.choose.random() < 0.5
            events = [self.world.objects.event(uri, facts=facts) for uri in chosen]
        self.world.announce(source, events)

    def _write(self) -> None:
        """An object gets another version, often one that was read just now; its notification comes at once, or late."""
        uris = sorted({uri for uris in self.world.names.values() for uri in uris})
        lately = [*self.world.lately] if self.choose.random() < (0.9 if self.lives.is_batch_left else 0.5) else []
        uri = self.choose.choice(lately or uris)
        self._overwrite(uri, [form for form in (*FORMS, "whole") if form != "damaged" or uri.endswith(".gz")])
        if self.choose.random() < 0.7:
            self._tell(self.events.pop())

    def _overwrite(self, uri: str, forms: Sequence[str]) -> None:
        version = self.world.objects.write(uri, self.choose.choice(forms), self.world.now)
        self.events.append(self.world.objects.event(uri, facts=True))
        self._log(f"  {self.events[-1].name} is {version.form}")

    def _while_a_batch_is_read(self, uris: Sequence[str]) -> None:
        """Here a version is often as long as the one before: nothing but its ETag tells it from that."""
        if "versions" in self.takes and uris and not self.world.is_calm and self.choose.random() < 0.1:
            uri = self.choose.choice(uris)
            self._overwrite(uri, [self.world.objects.newest(uri).form, "whole"])

    def _work(self) -> None:
        if query := self.lives.running():
            calls = [self.choose.choice((r.work, r.receive, r.open, r.heartbeat)) for r in query.readers]
            all(self.lives.guarded(query, call) for call in calls)

    def _trigger(self) -> None:
        if query := self.lives.running(start=True):
            if self.choose.random() < 0.7:
                all(self.lives.guarded(query, reader.work) for reader in query.readers)
            if not query.readers:
                return
            points = (*POINTS, "published", "published", *(OF_TABLES * 4 if query.kind.sink in TABLES else ()))
            query.die_at = self.choose.choice(points) if self.choose.random() < 0.35 else None
            without_data = self.choose.random() < 0.15 and query.kind.sink != "other"
            self.lives.guarded(query, lambda: query.trigger(without_data=without_data))
            if self.world.remembers and self.choose.random() < 0.1:
                self.disasters.go_back()

    def _route(self) -> None:
        self.lives.route(self.choose.choice(_ROUTING) if self.choose.random() < 0.2 else None)

    def _clean(self) -> None:
        """What was read ten minutes ago is deleted."""
        if query := self.lives.running():
            self.world.now += self.choose.choice((0.0, 601.0))
            all(self.lives.guarded(query, reader.clean) for reader in query.readers)

    def _die(self) -> None:
        if query := self.lives.running():
            self.lives.end(query)

    def _stop(self) -> None:
        if query := self.lives.running():
            self.lives.guarded(query, query.stop)
            self.lives.queries.pop(query.kind, None)

    def _pass_time(self) -> None:
        self.world.now += self.choose.choice((1.0, STALE / 3, STALE + 1, LEASE + 1))

    def _restore(self) -> None:
        """More is announced by then, so that the next batch is another one than that of this number was."""
        self.disasters.restore()
        if self.choose.random() < 0.7:
            self._announce()

    def _change_an_object(self) -> None:
        """It is deleted, or comes back as it was."""
        objects = self.world.objects
        uri = self.choose.choice(self.world.names[self.choose.choice(list(self.world.names))])
        (objects.vanish if objects.is_there(uri) else objects.appear)(uri)

    def _operate(self) -> None:
        """By hand an object is given up, or one that was found bad is opened again."""
        source = self.choose.choice(list(self.world.names))
        uri = self.choose.choice(self.world.names[source])
        key, audit = shard_key(source, uri), Audit("me@here")
        self.by_hand.add((source, uri))
        if self.choose.random() >= 0.7:
            self.world.store.quarantine([key], audit)
        elif not self.world.cast.routed:  # else the receiver alone knows how to announce it
            self.world.store.put_back([key], audit, message_uri="message:")

    def _prune(self) -> None:
        self.world.store.prune(RetentionPolicy(timedelta(days=7), None))

    def _take_over(self) -> None:
        """Another driver starts a query that runs; the first one is a zombie, and does not know."""
        if (query := self.lives.running()) and query.kind.sink != "other":
            self.lives.zombies.append(self.lives.queries.pop(query.kind))
            query.checkpoint = query.checkpoint.copy()
            self.lives.start(query.kind)

    def _wake_a_zombie(self) -> None:
        if zombies := self.lives.zombies:
            zombie = zombies.pop(self.choose.randrange(len(zombies)))
            try:
                zombie.trigger()
            except (PipelineTakenOver, ShardsLost, Death):
                pass
            except LostProgress as error:
                if not self.disasters.went_back:
                    raise Broken(f"a replaced query is told of a loss: {error}") from error
            finally:
                zombie.die()

    def _certify(self) -> None:
        """As `cuesqueue reconcile` does, with each object of a source as a prefix of its own."""
        world, source = self.world, self.choose.choice(list(self.world.names))
        until = int(world.now * 1e6) - 1
        for uri in world.names[source]:
            options = parse_listing_options([uri], {})
            pages = pages_of(world.open_bucket(uri), uri, versions=False)
            report = compare(world.store, source, uri, options, pages, period=Period(until=time_of(until)))
            self._log(f"  {name_of(uri)} of {source}: {report.verdict}")
            if report.verdict == "complete":
                world.promises.check_certificate(source, uri, until)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end_fairly(self) -> None:
        """Every query runs, every object is there, nothing fails; then everything that was announced is somewhere."""
        world = self.world
        world.is_calm = True
        self.lives.end_all()
        for uri in sorted(world.objects.versions):
            world.objects.appear(uri)
        for event in self.events:
            self._tell(event)
        self._log("end")
        self._go_on()
        world.promises.check_all()
        if "certificates" in self.takes:
            self._certify()
        if "repairs" in self.takes and not self.disasters.went_back:
            self._repair()

    def _repair(self) -> None:
        """What is known to be unread is written anew, and announced."""
        world = self.world
        unread = [of for of in world.promises.unread() if of not in self.by_hand]
        for uri in sorted({uri for _, uri in unread}):
            world.objects.write(uri, "longer", world.now)
            self._tell(world.objects.event(uri, facts=True))
        self._log("written anew")
        self._go_on()
        world.promises.check_all()
        world.promises.check_is_read_anew(unread)

    def _tell(self, event: Event) -> None:
        for source in [s for s, uris in self.world.names.items() if event.uri in uris][:1]:
            self.world.announce(source, [event])

    def _go_on(self) -> None:
        """Until all is through."""
        lives = self.lives
        for _ in range(_ROUNDS):
            self.world.now += LEASE + STALE
            if self.world.cast.routed:
                lives.route(None)
            for kind in lives.kinds:
                if kind not in lives.queries:
                    lives.start(kind)
                query = lives.queries[kind]
                query.die_at = None
                for _ in range(2):
                    calls: list[Callable[[], object]]
                    calls = [call for reader in query.readers for call in (reader.heartbeat, reader.work)]
                    calls += [query.trigger, *(reader.acknowledge for reader in query.readers)]
                    all(lives.guarded(query, call) for call in calls)  # until one fails, and the query has ended
            if self._is_through():
                return
        raise Broken(f"something is stuck: {self.world.shard_states()}, {self.world.waiting_messages()} messages")

    def _is_through(self) -> bool:
        open_ones = {of for of, state in self.world.shard_states().items() if state == ShardState.OPEN.value}
        if self.world.waiting_messages() or open_ones - self.world.lost_messages:
            return False
        return all(query.checkpoint.unfinished is None for query in self.lives.queries.values())


def explore(seed: int, *, takes: Collection[str] | None = None, log: Callable[[str], None] = lambda line: None) -> str:
    """Run one exploration in a folder of its own; raises Broken with the seed in its text.

    It takes the kinds of steps that the environment names, unless they are given.
    """
    kinds = kinds_taken() if takes is None else takes
    logger = logging.getLogger("cuesqueue")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(DIALECTS, {"files": FILES}):
            explorer = Explorer(seed, Path(folder), takes=kinds, log=log)
            with explorer.meetings.armed() if "meetings" in kinds else nullcontext():
                return explorer.run()
    except Exception as error:
        error.args = (f"seed {seed}: {error}",)
        raise
    finally:
        logger.setLevel(level)
