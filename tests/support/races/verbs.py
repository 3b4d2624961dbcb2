"""What drivers, readers, timers and operators call, each as it is called in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

from shard_store.completeness.comparing import ListedShard, Scope, Tally
from shard_store.error_table import search
from shard_store.error_table.search import Criteria
from shard_store.errors import PipelineTakenOver, StoreConfigurationError
from shard_store.model import STORE, Content, Split, shard_key
from shard_store.shards.recording import Receipts
from shard_store.upkeep.pruning import RetentionPolicy
from support.races.prepared import AUDIT, DAY, World, alone, said
from support.races.reader import SOURCE, Reader
from support.store_backends import STALE

WEEK = timedelta(days=7)


class Verb(NamedTuple):
    """`lane`: the thread of a reader that does it, with which nothing else of that thread races."""

    lane: str
    run: Callable[[World], object]


VERBS: dict[str, Verb] = {}


def _add(name: str, lane: str, run: Callable[[World], object]) -> None:
    VERBS[name] = Verb(lane, run)


def _of(reader: str, lane: str, name: str, run: Callable[[Reader], object]) -> None:
    _add(f"{reader} {name}", f"{reader} {lane}", lambda world: run(world.first[reader]))


def _in_turn(*calls: Callable[[Reader], object]) -> Callable[[Reader], object]:
    def run(reader: Reader) -> None:
        for call in calls:
            call(reader)

    return run


def _announces(*contents: Content) -> Callable[[Reader], object]:
    return lambda reader: reader.receive(*contents)


_ANNOUNCED: dict[str, tuple[Content, ...]] = {
    "announces new": (said("new", 1, "n1"),),
    "announces new again": (said("new", 1, "n2"),),
    "announces old bad": (said("old bad", 1, "n3"),),
    "announces old empty": (said("old empty", 2, "n4"),),
    "announces old done": (said("old done", 1, "n5"),),
    "announces bad": (said("bad", 2, "n6"),),
    "announces empty, changed": (said("empty", 2, "n7"), said("changed", 3, "n8")),
    "announces open, planned": (said("open", 2, "n9"), said("planned", 2, "n10")),
    "announces planned empty": (said("planned empty", 3, "n11"), said("planned bad", 2, "n12")),
    "announces URIs alone": (alone("bad", "n13"), alone("open", "n14"), alone("empty", "n15")),
    "announces bad twice": (said("bad", 2, "n16"), alone("bad", "n17")),
    "announces dead": (said("dead", 2, "n18"), said("dead planned", 1, "m7", count=2)),
    "receives released": (said("old released", 1, "m4", count=2), said("released", 1, "m20", count=2)),
    "announces a's": (said("a planned", 2, "n22"), said("a open", 2, "n23"), said("a next", 2, "n24")),
    "announces recorded": (said("recorded", 2, "n19"), said("listed", 2, "n20")),
}
_BY_OWNER = {"announces new again", "announces old bad", "announces open, planned", "announces planned empty"}
_BY_OWNER |= {"announces URIs alone", "announces dead", "receives released"}
for _name, _contents in _ANNOUNCED.items():
    for _reader in ("p", "q") if _name in _BY_OWNER else ("q",):
        _of(_reader, "opener", _name, _announces(*_contents))

for _reader in ("p", "q"):
    _of(_reader, "heart", "beats", lambda r: r.store.heartbeat(r.token, STALE))
    _of(_reader, "timer", "looks again", lambda r: r.get_again())
    _of(_reader, "timer", "looks at what is renewed", lambda r: r.get_renewed())
    _of(_reader, "timer", "takes what has no message", lambda r: r.take_unannounced())
    _of(_reader, "driver", "stops", lambda r: r.stop())
_of("p", "driver", "plans again", lambda r: r.make())
_of("p", "driver", "publishes by its tasks", lambda r: r.bring_by_tasks())
_of("p", "task", "begins to read once more", lambda r: r.begin_again())
_of("p", "task", "reads once more, and finds it bad", lambda r: r.find_bad("planned"))
_of("p", "task", "meets what has no size", lambda r: r.meet())
_of("p", "driver", "publishes", lambda r: r.bring())
_of("p", "driver", "publishes, confirms, takes", _in_turn(Reader.bring, Reader.conclude, Reader.take))
_of("q", "driver", "plans", lambda r: r.make())
_of("q", "driver", "plans, publishes, confirms", lambda r: r.batch())
_of("q", "opener", "gives up", lambda r: r.give_up("q open"))
_of("a", "driver", "publishes", lambda r: r.bring())
_of("a", "driver", "takes the next", _in_turn(Reader.bring, Reader.conclude, Reader.take, Reader.make, Reader.bring))
_of("a", "driver", "stops", lambda r: r.stop())
_of("d", "driver", "wakes and publishes", lambda r: r.bring())
_of("d", "driver", "wakes, plans and publishes", _in_turn(Reader.make, Reader.bring))
_of("d", "driver", "wakes, commits in its table and dies", Reader.bring_elsewhere)
_of("d", "heart", "wakes and beats", lambda r: r.store.heartbeat(r.token, STALE))


def _starts(name: str) -> Callable[[World], object]:
    def start(world: World) -> None:
        world.readers[name] = world.readers[name].again()

    return start


def _starts_and_dies(world: World) -> None:
    """End the batch that was planned, and die between the two commits of the next one. Then the driver before wakes."""
    world.readers["d"] = d = world.readers["d"].again()
    _in_turn(Reader.make, Reader.bring, Reader.conclude, Reader.take, Reader.make, Reader.bring_elsewhere)(d)
    with suppress(PipelineTakenOver):
        world.first["d"].bring_elsewhere()


def _starts_and_takes(world: World) -> None:
    """What was begun is given up, and the rest is taken and published."""
    world.readers["a"] = a = world.readers["a"].again()
    _in_turn(Reader.make, Reader.bring, Reader.conclude, Reader.batch)(a)


_add("a starts again and takes the next", "a start", _starts_and_takes)
for _reader in ("p", "q", "d", "i"):
    _add(f"{_reader} starts again", f"{_reader} start", _starts(_reader))
_add("d starts again, commits in its table and dies", "d start", _starts_and_dies)
_add("q lists", "q listing", lambda w: w.list_page(w.first["q"], ("new", "old bad", "bad", "empty"), "x", 2))
_add("p lists", "p listing", lambda w: w.list_page(w.first["p"], ("new", "old empty", "dead"), None, 2))


def _hour(world: World) -> None:
    """An hour passes, in which p sleeps; q lives on, and takes what is stale."""
    for _ in range(3):
        world.clock.advance(1200.0)
        world.beat("q")
        q = world.first["q"]
        _in_turn(Reader.get_again, Reader.get_renewed, Reader.take_unannounced, Reader.batch, Reader.conclude)(q)
    world.clean()


def _days(world: World) -> None:
    """The same, until what was read is forgotten, too."""
    _hour(world)
    world.backend.run_for(10 * DAY)
    world.beat("q")
    world.operator.prune(RetentionPolicy(source="another"))  # the clock is trusted
    world.operator.prune(RetentionPolicy(WEEK, None, SOURCE))


def _taken_over_in_an_hour(world: World) -> None:
    """An hour passes; then p is started once more, elsewhere, and goes on."""
    world.clock.advance(3600.0)
    world.beat("q")
    world.readers["p"] = p = world.readers["p"].again()
    _in_turn(Reader.make, Reader.bring, Reader.conclude, Reader.batch)(p)


_add("an hour passes", "q driver", _hour)
_add("days pass", "q driver", _days)
_add("in an hour p starts again and goes on", "p start", _taken_over_in_an_hour)


def _certify(world: World) -> object:
    """Compare what is in the bucket, and certify it."""
    began = world.operator.database_time()
    tally = Tally()
    names = ("old done", "done", "done too", "bad", "open")
    for name in names:
        (finding,) = world.operator.compare(SOURCE, [ListedShard(name, 10, "v1", 0)])
        tally.add(name, 10, "v1", finding.category)
    try:
        number = world.operator.certify(Scope(SOURCE, "file:///", None, 1, "{}"), "listing", tally, "me", began)
    except StoreConfigurationError as error:
        return type(error).__name__
    return world.operator.certificate(number).verdict


_add("operator certifies", "certify", _certify)


def _record(*contents: Content) -> Callable[[World], object]:
    of = [content._replace(queue=STORE) for content in contents]

    def run(world: World) -> object:
        done = world.operator.record("r", {SOURCE: of}, Receipts(1))
        for content in contents:
            world.queue.messages.setdefault(content.message_id, content)
            world.queue.acknowledged.add(content.message_id)
        return done[:4]

    return run


_add("receiver records new", "receiver", _record(said("new", 1, "r1"), said("recorded", 2, "r2")))
_add("receiver records old", "receiver", _record(said("old bad", 1, "r3"), said("old empty", 2, "r4")))
_add("receiver records released", "receiver", _record(said("old released", 1, "m4", count=2), said("bad", 2, "r5")))
_add("receiver records open", "receiver", _record(said("open", 2, "r6"), said("dead", 1, "m5", count=2)))


def _keys(*names: str) -> list[Any]:
    return sorted(shard_key(SOURCE, name) for name in names)


def _requeue(world: World) -> object:
    found = [e for page in search.pages(world.operator.database, Criteria(states=["recorded"])) for e in page]
    of_objects = [error for error in found if error.scope == "object"]
    world.operator.reopen(of_objects, dry_run=True)
    done = world.operator.reopen(of_objects, audit=AUDIT)
    for reopened in done.shards.values():
        again = alone(reopened.uri, f"requeued {reopened.uri}")
        world.queue.messages[again.message_id] = again
    world.operator.mark_requeued([e.key for e in of_objects if e.key not in done.refused])
    return sorted(e.subject for e in of_objects if e.key in done.refused)


def _drop(world: World) -> object:
    found = [e for page in search.pages(world.operator.database, Criteria()) for e in page]
    return world.operator.drop_errors([error.key for error in found])


def _send_errors(world: World) -> None:
    p = world.first["p"]
    sent = p.store.undelivered_errors(p.token, SOURCE)
    p.store.mark_delivered(p.token, [error.key for error in sent], "errors")


def _compact(world: World) -> object:
    files = list(world.operator.small_files("p", 1000))
    joined = "+".join(sorted(part for f in files for part in f.path.split("/")[1].split("+") if part))
    size = sum(file.size for file in files)
    return world.operator.replace_files("p", files, Split(f"/{joined}/joined", sum(f.rows for f in files), size))


def _compare(world: World) -> object:
    names = ("old done", "bad", "done", "open", "planned", "changed", "empty", "dead planned")
    listed = [ListedShard(name, 10, "v1", 0) for name in names]
    return [finding.category.value for finding in world.operator.compare(SOURCE, listed)]


def _requarantine(world: World) -> object:
    return world.operator.quarantine(_keys("open", "planned", "dead planned", "q planned", "released", "a open"), AUDIT)


def _put_back(world: World) -> object:
    keys = _keys("bad", "old bad", "given up", "asked", "dead", "released", "done", "corrupt")
    return world.operator.put_back(keys, AUDIT, message_uri="message:")


def _reset(world: World) -> None:
    world.operator.reset([SOURCE], AUDIT, message_uri="message:", only=["d"], lose_rows=True)
    world.announce_later("dead part")


def _clean_anew(world: World) -> None:
    """Within an hour an object is forgotten, comes in a new version, is read, and is to be cleaned once more."""
    q = world.first["q"]
    world.operator.forget(_keys("done"), AUDIT)
    q.receive(said("done", 2, "n21"))
    q.batch()
    q.take("done")
    _in_turn(Reader.make, Reader.bring, Reader.conclude)(q)
    world.clock.advance(1200.0)
    world.beat("p", "q")
    world.plan_cleanings()


def _forget(world: World) -> object:
    done = world.operator.forget(_keys("done", "bad", "old empty"), AUDIT)
    world.announce_later("done", "bad", "old empty")
    return done


_WHOLE = RetentionPolicy(max_shards=0, data=WEEK)
_LONG = timedelta(days=8, hours=12)
_IDLE = RetentionPolicy(_LONG, None, SOURCE, pipelines=_LONG)
_add("operator prunes the idle", "prune idle", lambda w: w.operator.prune(_IDLE).total * 0)
_add("timer prunes", "prune", lambda w: w.operator.prune(RetentionPolicy(WEEK, None, SOURCE)).total * 0)
_add("operator prunes all", "prune all", lambda w: w.operator.prune(_WHOLE).total * 0)
_add("operator puts back", "operator", _put_back)
_add("operator quarantines", "operator", _requarantine)
_add("operator forgets", "operator", _forget)
_add("operator requeues errors", "operator", _requeue)
_add("operator drops errors", "operator", _drop)
_add("operator adopts", "operator", lambda w: w.operator.adopt(SOURCE, ["new", "bad", "adopted"], "another"))
_add("operator resets d", "operator", _reset)
_add("operator compacts", "compact", _compact)
_add("operator forgets replaced", "vacuum", lambda w: w.operator.forget_replaced(int(w.clock() * 1_000_000)))
_add("operator compares", "compare", _compare)
_add("reader lists data", "data", lambda w: sorted(w.operator.paths(w.operator.published_files(source=SOURCE))))
_add("p sends errors", "p errors", _send_errors)
_add("p plans cleanings", "p cleaning", World.plan_cleanings)
_add("p cleans", "p cleaning", World.clean)
_add("q reads what is to be cleaned anew", "q driver", _clean_anew)
# its options leave it out, so that no message of its own queue announces it
_add("q declines recorded", "q opener", lambda w: w.first["q"].store.decline(w.first["q"].token, _keys("recorded")))
_add("p wins an interval", "p timer", lambda w: w.stores["p"].win_interval("prune s", 60.0))
