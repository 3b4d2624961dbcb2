"""Checks of the receivers of a store, and of who reads what they have recorded (decision 0086)."""

from __future__ import annotations

from collections.abc import Iterator

from queue_source.admin.doctor.findings import Finding, ok, warning
from queue_source.admin.wording import number, time_text
from shard_store.operators.status import RUNNING, status
from shard_store.shards.recording import Receiver, all_receivers, waiting
from shard_store.sql.database import Database

SILENT = 60.0
"""Seconds after which a receiver that has not asked its queue counts as dead: it says so every ten."""

_FORGOTTEN = 86_400.0  # seconds after which it was ended for good, as far as no reader depends on it


def examine_receivers(database: Database, source: str | None = None) -> Iterator[Finding]:
    """Check each receiver, and each source for which something waits. `source`: of a reader with queueUrl=store."""
    receivers = database.read(all_receivers)
    if source is not None and not receivers:
        text = "none was started with this store yet, so that a reader with queueUrl=store gets nothing"
        yield warning("receiver", text, "start one: cuesqueue route QUEUE_URL --routes FILE; docs/how-to/routes.md")
    for receiver in receivers:
        yield _receiver(receiver, needed=source is not None)
    recorded = database.read(waiting)
    pipelines = database.read(status) if recorded else ()
    reading = {pipeline.source for pipeline in pipelines if pipeline.state == RUNNING}
    for waits in recorded:
        text = f"{number(waits.objects)} object(s) wait for source {waits.source!r}, the oldest for "
        text += time_text(waits.oldest_age)
        if waits.source in reading or waits.source == source:
            yield ok("recorded objects", text)
        else:
            fix = f"start a reader with queueUrl=store and source={waits.source}, or take its route out of the file"
            yield warning("recorded objects", f"{text}, and no pipeline of it runs", fix)


def _receiver(receiver: Receiver, *, needed: bool) -> Finding:
    text = f"{receiver.receiver} on {receiver.host} asked {receiver.queue} {time_text(receiver.silence)} ago"
    if receiver.silence <= SILENT or (receiver.silence > _FORGOTTEN and not needed):
        return ok("receiver", text)
    fix = "start `cuesqueue route` again with its queue and its file, unless another one has taken its place"
    return warning("receiver", f"{text}: it does not run", fix)
