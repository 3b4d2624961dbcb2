"""What operators do: each command as they call it, also killed between two of its transactions, and called once more.

While a command works, other things may happen: those of `MEANWHILE`. What a command says has to be so, and what it
lets come once more, or takes away, is noted in the world: nothing else is.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import sqlalchemy as sa
from typer.testing import CliRunner

import shard_store
from queue_source.commands import adopt, compact, errors, reconcile, shards, status, vacuum
from queue_source.commands.main import app
from queue_source.queues import open_queue
from shard_store.model import ShardState
from shard_store.sql.database import Transaction
from shard_store.sql.schema import shards as table_of_shards
from shard_store.upkeep import pruning
from support.explorer.objects import name_of
from support.explorer.points import OF_CODE, OUTSIDE, POINTS, SENT, TRANSACTION, Death
from support.explorer.promises import Broken, Object
from support.explorer.world import ROUTES, STALE

if TYPE_CHECKING:
    from support.explorer.explorer import Explorer
    from support.explorer.usual import Steps

COMMANDS: Counter[str] = Counter()
"""How often each command was called in this process, with what became of it."""

MEANWHILE = ("announce", "work", "trigger", "trigger", "reset", "prune_data", "quarantine", "die", "stop", "pass_time")
_DEADLY = (TRANSACTION, TRANSACTION, SENT, *(point for point in OF_CODE if point.startswith("files-")))
_RESET = "reset of source"
_REASON = ("--reason", "to see what becomes of it")


class Said(NamedTuple):
    """How a command ended, and what it printed. `alone`: nothing happened meanwhile, and it was not killed."""

    code: int
    result: dict[str, Any]
    text: str
    alone: bool


class Operators:
    """Their steps of an exploration."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer, self.world, self.lives = explorer, explorer.world, explorer.lives
        self.choose, self.log = explorer.choose, explorer.log
        self._busy = False
        self._gone: set[Object] = set()
        self._resets: list[set[str]] = []  # their sources

    # --- commands -----------------------------------------------------------------------------------------------------

    def call(self, *words: str, codes: Collection[int] = (0,)) -> Said | None:
        """Call a command, which may end with one of `codes`.

        None where it was killed, and nobody has called it again; or where it was refused, since a reset runs.
        """
        name = " ".join(word for word in words[:2] if not word.startswith("-") and "/" not in word)
        fate, after = self.choose.random(), self.choose.choice((0, 0, 1, 2))
        try:
            if self._busy or fate < 0.5:
                said = self._invoke(name, words)
            elif fate < 0.75:
                with POINTS.dying(self.choose.choice(_DEADLY), after):
                    said = self._invoke(name, words)
            else:
                point = self.choose.choice((*OUTSIDE, *["files-joined"] * 6) if name == "compact" else OUTSIDE)
                with POINTS.meanwhile(point, 0 if point == "files-joined" else after, self._something):
                    said = self._invoke(name, words)._replace(alone=False)
        except Death as death:  # also one that the step has for it: what it has done is known below
            COMMANDS[f"{name}: killed"] += 1
            self.log(f"  {name} is killed at {death}")
            if self.choose.random() < 0.3:
                return None
            said = self._invoke_to_its_end(name, words)._replace(alone=False)
        if said.code and self.world.half_reset and _RESET in said.text:
            return said if words[0] == "reset" else None
        if said.code not in codes:
            raise Broken(f"the command {name} ends with {said.code}: {said.text}")
        return said

    def _something(self) -> None:
        self._busy = True
        try:
            first = [self.choose.choice(("reset", "prune_data"))] if self.choose.random() < 0.5 else []
            then = MEANWHILE[:4] if first else MEANWHILE
            for name in [*first, *(self.choose.choice(then) for _ in range(self.choose.randint(1, 8)))]:
                self.log(f"  meanwhile {name}")
                self.explorer.every[name][1]()
        finally:
            self._busy = False

    def _invoke(self, name: str, words: Collection[str]) -> Said:
        COMMANDS[name] += 1
        with self._as_in_this_world():
            done = CliRunner().invoke(app, [*words, "--store", self.world.store_url, "--json"])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        text = " ".join(done.stderr.split())[-300:]
        self.log(
            f"  {' '.join(word.rpartition('/')[2] for word in words)}: {done.exit_code} {done.stdout[:200]!r} {text}"
        )
        COMMANDS[f"{name}: {done.exit_code}"] += 1
        result = json.loads(done.stdout) if done.stdout.strip().startswith("{") else {}
        return Said(done.exit_code, result, text, True)

    def _invoke_to_its_end(self, name: str, words: Collection[str]) -> Said:
        """Without a second death, which would end the step before it has noted what the command has done."""
        with POINTS.calm():
            return self._invoke(name, words)

    @contextmanager
    def _as_in_this_world(self) -> Iterator[None]:
        """Its clock, its buckets, its queues."""
        world = self.world

        def opened_queue(url: str) -> Any:
            name = re.match(r"sim://([\w-]+)", url)
            return open_queue(url) if name is None else world.open_queue(name[1])

        def opened_store(url: str, **how: Any) -> Any:
            del url, how
            return world.open_store()

        with ExitStack() as stack:
            for module in (adopt, compact, errors, reconcile, shards, status, vacuum, shard_store):
                stack.enter_context(mock.patch.object(module, "open_store", opened_store))
            for module in (errors, reconcile):
                stack.enter_context(mock.patch.object(module, "open_queue", opened_queue))
            stack.enter_context(
                mock.patch.object(reconcile, "open_bucket", lambda prefix, storage: world.open_bucket(prefix))
            )
            unhurried = {**(pruning.prune.__kwdefaults__ or {}), "sleep": lambda seconds: None}
            stack.enter_context(mock.patch.object(pruning.prune, "__kwdefaults__", unhurried))
            yield

    def _source(self) -> str:
        return self.choose.choice(list(self.world.names))

    def _some(self, source: str) -> list[str]:
        uris = self.world.names[source]
        return self.choose.sample(uris, self.choose.randint(1, min(3, len(uris))))

    def _tell_again(self, source: str, uris: Collection[str]) -> None:
        """Who has uploaded these announces them once more, as they are now. No process dies before the step's end."""
        facts = source in self.world.cast.versioned
        if events := [self.world.objects.event(uri, facts=facts) for uri in sorted(uris)]:
            with POINTS.calm():
                self.world.announce(source, events)

    # --- errors -------------------------------------------------------------------------------------------------------

    def requeue(self) -> None:
        """What was repaired, or not, is read again. A second time: also what was requeued before."""
        again = ("--state", "requeued", "--state", "reopened") if self.choose.random() < 0.2 else ("--all",)
        chosen = ("--source", self._source()) if again == ("--all",) and self.choose.random() < 0.3 else again
        before, self.world.requeues = self.world.requeues, True
        said = self.call("errors", "requeue", *chosen, codes=(0, 1))
        self.world.requeues = before or said is None

    def requeue_to_the_end(self) -> None:
        """Whose command was killed calls it again: what it has opened may wait for a message that was not sent."""
        self._invoke_to_its_end("errors requeue", ("errors", "requeue", "--all"))

    def drop(self) -> None:
        """Errors are deleted; their objects stay quarantined."""
        self.call("errors", "drop", *self.choose.choice([("--all",), ("--cause", "missing-object")]))

    # --- shards -------------------------------------------------------------------------------------------------------

    def quarantine(self) -> None:
        source = self._source()
        states = self.world.shard_states()
        uris = [uri for uri in self._some(source) if (source, uri) in states]
        chosen = (*uris, "--source", source) if uris else ("--state", "open", "--source", source)
        self.world.by_hand |= {of for of in states if of[0] == source and (of[1] in uris or not uris)}
        self.call("shards", "quarantine", *chosen, *_REASON, codes=(0, 1))

    def reopen(self) -> None:
        source = self._source()
        self.world.by_hand |= {of for of in self.world.shard_states() if of[0] == source}
        self.call("shards", "reopen", "--state", "quarantined", "--source", source, codes=(0, 1))

    def forget(self) -> None:
        """What is forgotten is announced once more, and published once more."""
        source = self._source()
        before = self.world.shard_states()
        uris = [uri for uri in self._some(source) if before.get((source, uri)) != ShardState.OPEN.value]
        uris = [uri for uri in uris if (source, uri) in before]
        if not uris:
            return
        self.world.anew |= {(source, uri) for uri in uris}
        self.call("shards", "forget", *uris, "--source", source, "--yes", *_REASON, codes=(0, 1))
        self._tell_again(source, [uri for uri in uris if (source, uri) not in self.world.shard_states()])
        self.world.forget_earlier_states()

    # --- sources ------------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Sources begin anew, with those that their queries read as well; all that was told is told again."""
        world, lives = self.world, self.lives
        sources = {self._source()}
        for kind in world.cast.kinds * 2:
            if sources & {source for _, source in kind.pipelines}:
                sources |= {source for _, source in kind.pipelines}
        kinds = [kind for kind in world.cast.kinds if sources & {source for _, source in kind.pipelines}]
        for kind in kinds if self.choose.random() < 0.85 else ():
            if query := lives.queries.get(kind):
                lives.guarded(query, query.stop)
                lives.queries.pop(kind, None)
        if self.choose.random() < 0.5:
            world.now += 2 * STALE
        known = {of for of in world.shard_states() if of[0] in sources}
        stays = {source for kind in kinds if kind.sink != "ours" for _, source in kind.pipelines}
        anew = {of for of in known if of[0] in stays}
        before, earlier = set(world.anew), len(self._resets)
        world.anew |= anew
        outer, world.half_reset = world.half_reset, sorted(sources.union(world.half_reset))
        words = ("reset", *sorted(sources), "--yes", "--lose-rows", *_REASON)
        said = self.call(*words, codes=(0, 1, 2))
        if said is None:  # its pipelines are refused until it has come to its end
            lives.end_all()
            world.now += 2 * STALE
            said = self._invoke_to_its_end("reset", words)
        world.half_reset = outer
        others = self._resets[earlier:]  # which may have ended what this one began
        gone = known if any(map(sources.intersection, others)) else known - world.shard_states().keys()
        if said.code and not gone:
            world.anew -= anew - before
        for source in sorted(sources):
            self._tell_again(source, {uri for of, uri in gone if of == source})
        if gone or not said.code:
            self._resets.append(sources)
            world.promises.note_that_batches_come_anew([world.checkpoints[kind].name for kind in kinds])
            for kind in kinds:
                world.in_tables.pop(kind, None)
            world.forget_earlier_states()

    def adopt(self) -> None:
        """Another reader has read some objects: those that are not known count as read."""
        world, source = self.world, self._source()
        if source in world.cast.versioned:
            return
        names = world.folder / "adopted.txt"
        names.write_text("".join(f"{uri}\n" for uri in self._some(source)), "utf-8")
        self.call("adopt", "--source", source, "--list", str(names))
        world.forget_earlier_states()

    def reconcile(self) -> None:
        """A bucket is compared; what is missing is announced, and a certificate is written, or not."""
        world, source = self.world, self._source()
        folder = world.folder / world.place(source)
        words = ["reconcile", f"{folder.as_uri()}/", "--source", source, "--grace", "0s"]
        if source in world.cast.versioned:
            words += ["--option", "allowOverwrites=true"]
        # a local file is announced without its ETag, which is the version in the ids of such a source here
        if sends := self.choose.random() < 0.5 and source not in world.cast.versioned:
            words += ["--send", world.queue_url(ROUTES if world.cast.routed else source)]
        if self.choose.random() < 0.5:
            words.append("--certify")
        until = int(world.now * 1e6)
        said = self.call(*words, codes=(0, 1, 2))
        if said is not None and said.alone and said.code < 2:
            prefixes = said.result["prefixes"]
            if said.result["complete"] != (said.code == 0):
                raise Broken(f"reconcile ends with {said.code}: complete is {said.result['complete']}")
            if prefixes[0]["verdict"] == "complete":
                for uri in world.names[source]:
                    if world.objects.is_there(uri):
                        world.promises.check_certificate(source, uri, until - 1)
            if sends and prefixes[0]["announced"]:
                COMMANDS["reconcile: has announced"] += 1

    # --- upkeep -------------------------------------------------------------------------------------------------------

    def compact(self) -> None:
        """Data files are joined: the view has the same rows."""
        before = self.world.shown()
        said = self.call("compact", codes=(0, 1))
        if said is not None and said.alone and (said.code or before != self.world.shown()):
            changed = sorted((before - self.world.shown()) | (self.world.shown() - before))
            raise Broken(f"compact has changed the rows: {changed}, exit code {said.code}, {said.text}")
        if said is not None and said.result.get("files"):
            COMMANDS["compact: has joined"] += 1

    def vacuum(self) -> None:
        """Files that are not published are removed; no batch is under way between two steps."""
        said = self.call("vacuum", "--path", str(self.world.data), "--older-than", "0s", codes=(0, 1, 2))
        if said is not None and said.result.get("removed"):
            COMMANDS["vacuum: has removed"] += 1
        self.world.check_data_files()

    def prune_shards(self) -> None:
        """All but the newest finished shards are forgotten: what is announced late is new then."""
        world, before = self.world, self.world.every_shard()
        ended = {shard for shard, state in before.items() if state != ShardState.OPEN.value}
        before_it, world.coming = world.coming, world.coming | _objects(ended)  # once more, while the command works
        gone_of_ended = self._excusing(_objects(ended), lambda: _objects(ended - world.every_shard().keys()))
        with gone_of_ended, self._noting() as forgotten:
            said = self.call("prune", "--max-shards", self.choose.choice("12"), "--older-than", "1d")
        after = world.every_shard()
        gone = before.keys() - after.keys()
        # and announced since
        gone |= {shard for shard in ended & after.keys() if after[shard] == ShardState.OPEN.value}
        unfinished = [name_of(uri) for _, uri, _ in gone - ended]
        if unfinished and said is not None and said.alone:
            raise Broken(f"prune has removed open shards: {unfinished}")
        world.coming = before_it
        if gone or forgotten:
            world.forget_earlier_states()

    @contextmanager
    def _noting(self) -> Iterator[set[Object]]:
        """What a prune forgets may come once more from then on: also what was opened, and ended, while it worked."""
        world, remove = self.world, pruning._remove
        forgotten: set[Object] = set()

        def noted(transaction: Transaction, *what: Any) -> tuple[int, int]:
            before = _known_to(transaction)
            removed = remove(transaction, *what)
            gone = {(source, uri): state for _, source, uri, state in sorted(before - _known_to(transaction))}
            transaction.on_commit.extend([lambda: forgotten.update(gone), lambda: world.anew.update(gone)])
            transaction.on_commit.append(lambda: world.pruned_as.update(gone))
            return removed

        with mock.patch.object(pruning, "_remove", noted):
            yield forgotten

    def prune_data(self) -> None:
        """Data files leave the view; their objects stay known."""
        world, before = self.world, set(self.world.shown())
        gone = self.explorer.disasters.finished_with
        with self._excusing(gone(before), lambda: gone(before - set(world.shown()))):
            self.call("prune", "--data-older-than", "0s")
        if removed := before - set(world.shown()):
            world.pruned |= removed
            world.forget_earlier_states()

    @contextmanager
    def _excusing(self, some: set[Object], gone: Callable[[], set[Object]]) -> Iterator[None]:
        """While a command works these may be gone; afterwards those are excused that are, or that another one took."""
        added = some - self.world.excused
        self.world.excused |= added
        try:
            yield
        finally:
            self._gone |= gone()
            self.world.excused -= added - self._gone

    def migrate(self) -> None:
        said = self.call("migrate")
        if said is not None and said.result["changed"]:
            raise Broken("migrate has changed a store of this version")

    def status(self) -> None:
        """Where nothing waits as it says, nothing of a pipeline is open."""
        said = self.call("status", codes=(0, 3))
        if said is None or not said.alone:
            return
        if said.result["healthy"] != (said.code == 0):
            raise Broken(f"status ends with {said.code}: healthy is {said.result['healthy']}")
        if not any(each["files_outstanding"] for each in said.result["pipelines"]) and not said.result.get("waiting"):
            owned = self.world.owned_open_shards()
            if owned:
                raise Broken(f"status says that nothing waits: {owned} are open")


def _objects(shards: Collection[tuple[str, str, str]]) -> set[Object]:
    return {(source, uri) for source, uri, _ in shards}


def _known_to(transaction: Transaction) -> set[tuple[str, str, str, str]]:
    """The key of each shard, its source, its URI and its state."""
    c = table_of_shards.c
    every = sa.select(c.shard_key, c.source, sa.func.coalesce(c.uri, c.shard_id), c.state)
    return {(key, source, uri, state) for key, source, uri, state in transaction.execute(every)}


def steps_of(explorer: Explorer) -> Steps:
    """All commands."""
    if "operators" not in explorer.takes:
        return {}
    o = Operators(explorer)
    paths = any(kind.sink == "ours" for kind in explorer.world.cast.kinds)
    return {
        "requeue": (5, o.requeue),
        "drop": (1, o.drop),
        "quarantine": (2, o.quarantine),
        "reopen": (2, o.reopen),
        "forget": (1, o.forget),
        "reset": (1, o.reset),
        "adopt": (1, o.adopt),
        "reconcile": (3, o.reconcile),
        "compact": (4 if paths else 0, o.compact),
        "vacuum": (2 if paths else 0, o.vacuum),
        "prune_shards": (1, o.prune_shards),
        "prune_data": (1 if paths else 0, o.prune_data),
        "migrate": (0.5, o.migrate),
        "status": (2, o.status),
    }
