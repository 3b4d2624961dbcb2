"""The usual steps: what queues, readers, drivers and uploads do, and two words of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from queue_source.commands.reconcile import Period, compare, pages_of
from queue_source.errors import BadObject
from queue_source.options import parse_listing_options
from shard_store.errors import LostProgress, PipelineTakenOver, ShardsLost, StoreConfigurationError
from shard_store.model import shard_key, time_of
from shard_store.shards.changes import Audit
from shard_store.upkeep.pruning import RetentionPolicy
from support.explorer.casts import TABLES
from support.explorer.objects import FORMS, name_of
from support.explorer.points import Death
from support.explorer.promises import Broken
from support.explorer.query import OF_TABLES, POINTS
from support.explorer.world import LEASE, STALE

if TYPE_CHECKING:
    from support.explorer.explorer import Explorer

Steps = dict[str, tuple[float, Callable[[], object]]]
"""By name: how often a step comes, in relation to the others, and what it does."""

_ROUTING = ("messages-routed", "messages-recorded")  # failpoints of a receiver


class Usual:
    """These steps of an exploration."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer, self.world, self.lives = explorer, explorer.world, explorer.lives
        self.choose, self.takes, self.moods = explorer.choose, explorer.takes, explorer.moods
        self._log = explorer.log

    def steps(self) -> Steps:
        """All of them."""
        takes, remembers, cast = self.takes, self.world.remembers, self.world.cast
        return {
            "announce": (8, self.announce),
            "work": (14, self.work),
            "trigger": (22, self.trigger),
            "die": (3, self.die),
            "stop": (2, self.stop),
            "pass_time": (6, self.pass_time),
            "change_an_object": (5, self.change_an_object),
            "operate": (3, self.operate),
            "prune": (1, self.prune),
            "take_over": (2, self.take_over),
            "wake_a_zombie": (3, self.wake_a_zombie),
            "list_objects": (5 if self.world.lists else 0, self.list_objects),
            "write": (6 if "versions" in takes and not cast.versioned else 0, self.write),
            "route": (14 if cast.routed else 0, self.route),
            "clean": (6 if cast.cleans else 0, self.clean),
            "restore": ((4 if self.world.tables else 2) if remembers and "restores" in takes else 0, self.restore),
            "certify": (2 if "certificates" in takes else 0, self.certify),
        }

    def announce(self) -> None:
        """Notifications as they were made, in any order, now or later once more; or what is there now, as URIs."""
        sources = list(self.world.names)
        source = self.choose.choices(sources, [0.05 + self.moods[f"announce {source}"] for source in sources])[0]
        uris = self.world.names[source]
        if (waiting := [event for event in self.explorer.events if event.uri in uris]) and self.choose.random() < 0.7:
            events = self.choose.sample(waiting, self.choose.randint(1, min(2, len(waiting))))
            if self.choose.random() < 0.8:
                self.explorer.events = [event for event in self.explorer.events if event not in events]
        else:
            chosen = self.choose.sample(uris, self.choose.randint(1, min(3, len(uris))))
            facts = "versions" in self.takes and self.choose.random() < 0.5
            facts |= source in self.world.cast.versioned  # a bucket says the same each time
            events = [self.world.objects.event(uri, facts=facts) for uri in chosen]
        self.world.announce(source, events)

    def write(self) -> None:
        """An object gets another version, often one that was read just now; its notification comes at once, or late."""
        uris = sorted({uri for uris in self.world.names.values() for uri in uris})
        lately = [*self.world.lately] if self.choose.random() < (0.9 if self.lives.is_batch_left else 0.5) else []
        uri = self.choose.choice(lately or uris)
        self.overwrite(uri, [form for form in (*FORMS, "whole") if form != "damaged" or uri.endswith(".gz")])
        if self.choose.random() < 0.7:
            self.explorer.tell(self.explorer.events.pop())

    def overwrite(self, uri: str, forms: Sequence[str]) -> None:
        version = self.world.objects.write(uri, self.choose.choice(forms), self.world.now)
        self.explorer.events.append(self.world.objects.event(uri, facts=True))
        self._log(f"  {self.explorer.events[-1].name} is {version.form}")

    def while_a_batch_is_read(self, uris: Sequence[str]) -> None:
        """Here a version is often as long as the one before: nothing but its ETag tells it from that."""
        if self.world.cast.versioned:
            return  # files keep no versions
        if "versions" in self.takes and uris and not self.world.is_calm and self.choose.random() < 0.1:
            uri = self.choose.choice(uris)
            self.overwrite(uri, [self.world.objects.newest(uri).form, "whole"])

    def work(self) -> None:
        if query := self.lives.running():
            calls = [self.choose.choice((r.work, r.receive, r.open, r.heartbeat)) for r in query.readers]
            all(self.lives.guarded(query, call) for call in calls)

    def trigger(self) -> None:
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
                self.explorer.disasters.go_back()

    def route(self) -> None:
        self.lives.route(self.choose.choice(_ROUTING) if self.choose.random() < 0.2 else None)

    def clean(self) -> None:
        """What was read ten minutes ago is deleted: it is planned first. People remove folders meanwhile."""
        if query := self.lives.running():
            for pause in self.choose.choice(((0.0,), (601.0,), (0.0, 601.0), (601.0, 601.0))):
                self.world.now += pause
                if not self.world.lists and self.choose.random() < 0.2:
                    self.world.objects.remove_folder(self.world.names[str(self.world.cast.cleans)])
                all(self.lives.guarded(query, reader.clean) for reader in query.readers)
                self.world.objects.make_folders()
                self.world.promises.check_cleanings()

    def list_objects(self) -> None:
        """A listing that is due finds what nobody has announced."""
        if query := self.lives.running(start=True):
            self.world.now += self.choose.choice((0.0, 61.0))
            all(self.lives.guarded(query, reader.list_objects) for reader in query.readers)

    def die(self) -> None:
        if query := self.lives.running():
            self.lives.end(query)

    def stop(self) -> None:
        if query := self.lives.running():
            self.lives.guarded(query, query.stop)
            self.lives.queries.pop(query.kind, None)

    def pass_time(self) -> None:
        self.world.now += self.choose.choice((1.0, STALE / 3, STALE + 1, LEASE + 1))

    def restore(self) -> None:
        """More is announced by then, so that the next batch is another one than that of this number was."""
        self.explorer.disasters.restore()
        if self.choose.random() < 0.7:
            self.announce()

    def change_an_object(self) -> None:
        """It is deleted, or comes back as it was."""
        objects = self.world.objects
        uris = self.world.names[self.choose.choice(list(self.world.names))]
        if self.choose.random() < 0.3:  # all of a folder are
            change = self.choose.choice((objects.vanish, objects.appear))
            for uri in uris:
                change(uri)
            return
        uri = self.choose.choice(uris)
        (objects.vanish if objects.is_there(uri) else objects.appear)(uri)

    def operate(self) -> None:
        """By hand an object is given up, or one that was found bad is opened again."""
        source = self.choose.choice(list(self.world.names))
        uri = self.choose.choice(self.world.names[source])
        key, audit = shard_key(source, uri), Audit("me@here")
        self.world.by_hand.add((source, uri))
        if self.choose.random() >= 0.7:
            self.world.store.quarantine([key], audit)
        elif not self.world.cast.routed:  # else the receiver alone knows how to announce it
            self.world.store.put_back([key], audit, message_uri="message:")

    def prune(self) -> None:
        self.world.store.prune(RetentionPolicy(timedelta(days=7), None))

    def take_over(self) -> None:
        """Another driver starts a query that runs; the first one is a zombie, and does not know."""
        if (query := self.lives.running()) and query.kind.sink != "other":
            self.lives.zombies.append(self.lives.queries.pop(query.kind))
            self.lives.start(query.kind)

    def wake_a_zombie(self) -> None:
        if zombies := self.lives.zombies:
            zombie = zombies.pop(self.choose.randrange(len(zombies)))
            try:
                zombie.trigger()
            except (PipelineTakenOver, ShardsLost, Death):
                pass
            except LostProgress as error:
                if not self.explorer.disasters.went_back:
                    raise Broken(f"a replaced query is told of a loss: {error}") from error
            finally:
                zombie.die()

    def certify(self) -> None:
        """As `cuesqueue reconcile` does, with each object of a source as a prefix of its own."""
        world, source = self.world, self.choose.choice(list(self.world.names))
        until = int(world.now * 1e6) - 1
        for uri in world.names[source]:
            options = parse_listing_options([uri], {})
            pages = pages_of(world.open_bucket(uri), uri, versions=False)
            try:
                report = compare(world.store, source, uri, options, pages, period=Period(until=time_of(until)))
            except BadObject:  # its folder is gone
                continue
            except StoreConfigurationError as error:
                if source not in world.half_reset:
                    raise Broken(f"{source} cannot be compared: {error}") from error
                continue
            self._log(f"  {name_of(uri)} of {source}: {report.verdict}")
            if report.verdict == "complete":
                world.promises.check_certificate(source, uri, until)
