"""A reader of an earlier schema, with the code that it was: `python old_reader.py ARCHIVE URL`.

The code is imported from the archive, and must be nobody else's. Each line of standard input is the name of an object
that it opens, plans, publishes and confirms, in the processes' own words of that time; then it says what was published.
`start` opens the store anew and begins the pipeline again, as after an upgrade of its cluster. `bad` records an error.
`plan` and names: plans a batch of these, and says its hash; `start again`: begins again, and plans it once more.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def run(archive: str, url: str) -> None:
    sys.path.insert(0, archive)
    from shard_store import RetentionPolicy, model  # of the package: its modules have moved since
    from shard_store.sql.schema import REVISION
    from shard_store.store import open_store

    assert model.__file__.startswith(archive), model.__file__
    store: Any = open_store(url)
    started = store.start("s", "old", driver="d")
    token, seq = started.token, started.last_seq
    say(["ready", REVISION])
    for line in sys.stdin:
        word = line.strip()
        if word == "start":
            store.close()
            store = open_store(url)
            started = store.start("s", "old", driver="d")
            token, seq = started.token, started.last_seq
            say([token.incarnation, seq])
            continue
        if word == "bad":
            store.record_errors("s", "old", [model.ErrorRecord("message", "malformed-message", "why", "m1")])
            say("recorded")
            continue
        if word == "start again":
            token = store.start("s", "old", driver="d").token
            say(store.plan(token, seq - 1, seq).identity.delivery_hash)
            continue
        if word.startswith("plan "):
            names = word.split()[1:]
            found = store.open_shards(token, "s", [model.Content(n, n, 10, None, "queue", f"m{n}") for n in names])
            ranges = [model.Range(s.key, s.content, s.position, model.end_at(10)) for s in found.values()]
            store.advance(token, snapshot=(seq + 1, ranges))
            say(store.plan(token, seq, seq + 1).identity.delivery_hash)
            seq += 1
            continue
        content = model.Content(word, word, 10, None, "queue", f"message of {word}")
        found = store.open_shards(token, "s", [content])
        ranges = [model.Range(shard.key, shard.content, shard.position, model.end_at(10)) for shard in found.values()]
        confirmed = store.advance(token, confirm=seq or None, keys=list(found), snapshot=(seq + 1, ranges))
        assert confirmed.lost == ()
        plan = store.plan(token, seq, seq + 1)
        seq += 1
        published = store.publish([plan.identity], [model.Split(f"/{word}", 3, 30)], batch_id=seq)
        assert not published.already
        store.heartbeat(token, 60.0)
        store.prune(RetentionPolicy())
        say([published.kind.value, store.look(list(found))[next(iter(found))].state.value])


def say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2])
