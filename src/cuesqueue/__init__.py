"""cuesqueue: exactly-once Spark streaming from queue notifications. All that a user imports is here.

    import cuesqueue

    with cuesqueue.open_queue("sql+sqlite:///jobs.db?queue=files") as queue:
        queue.send([b"s3://bucket/key"])

A name is imported by its first use: `import cuesqueue` alone loads no library of Spark, Arrow, a queue or a database.
A script that has imported it ends with our own sentence, where one of our errors ends it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cuesqueue.last_line import end_with_our_line

if TYPE_CHECKING:
    from queue_source.commands.errors import Requeued, requeue
    from queue_source.commands.shards import find_shards, forget_shards, quarantine_shards, reopen_shards, shard_stories
    from queue_source.commands.status import history, status
    from queue_source.errors import (
        BadObject,
        CuesqueueError,
        MalformedNotification,
        ObjectStoreError,
        OptionError,
        QueueConfigurationError,
        QueueError,
        QueueNotFound,
        QueueUnavailable,
        SchemaChanged,
    )
    from queue_source.foreach_batch import Delivery, Output, delivery, references, reject_rows
    from queue_source.messages import Received
    from queue_source.queues import Capabilities, Depth, Payload, Queue, open_queue, queue_name, register_queue
    from queue_source.queues.adapter import log_id
    from queue_source.queues.sim import Fault, SimQueue
    from queue_source.spark.load import load
    from queue_source.spark.progress_listener import ProgressListener
    from queue_source.spark.published import Published, PublishedFile, published
    from queue_source.spark.source import CuesqueueSource
    from shard_store import PruneResult, RetentionPolicy, ShardStore, open_store, prune
    from shard_store.error_table.search import Criteria
    from shard_store.errors import (
        LostProgress,
        PipelineTakenOver,
        ShardsLost,
        ShardStoreError,
        StoreConfigurationError,
        StoreUnavailable,
    )
    from shard_store.operators.limits import StatusLimits, complaints
    from shard_store.operators.repair import ShardsChanged
    from shard_store.operators.shards import FoundShard, ShardCriteria, ShardStory
    from shard_store.operators.status import PipelineStatus

    __version__: str

__all__ = [
    "BadObject",
    "Capabilities",
    "Criteria",
    "CuesqueueError",
    "CuesqueueSource",
    "Delivery",
    "Depth",
    "Fault",
    "FoundShard",
    "LostProgress",
    "MalformedNotification",
    "ObjectStoreError",
    "OptionError",
    "Output",
    "Payload",
    "PipelineStatus",
    "PipelineTakenOver",
    "ProgressListener",
    "PruneResult",
    "Published",
    "PublishedFile",
    "Queue",
    "QueueConfigurationError",
    "QueueError",
    "QueueNotFound",
    "QueueUnavailable",
    "Received",
    "Requeued",
    "RetentionPolicy",
    "SchemaChanged",
    "ShardCriteria",
    "ShardStore",
    "ShardStoreError",
    "ShardStory",
    "ShardsChanged",
    "ShardsLost",
    "SimQueue",
    "StatusLimits",
    "StoreConfigurationError",
    "StoreUnavailable",
    "__version__",
    "complaints",
    "delivery",
    "find_shards",
    "forget_shards",
    "history",
    "load",
    "log_id",
    "open_queue",
    "open_store",
    "prune",
    "published",
    "quarantine_shards",
    "queue_name",
    "references",
    "register_queue",
    "reject_rows",
    "reopen_shards",
    "requeue",
    "shard_stories",
    "status",
]

_PLACES = {
    "queue_source.commands.errors": "Requeued requeue",
    "queue_source.commands.shards": "find_shards forget_shards quarantine_shards reopen_shards shard_stories",
    "queue_source.commands.status": "history status",
    "queue_source.errors": "BadObject CuesqueueError MalformedNotification ObjectStoreError OptionError "
    "QueueConfigurationError QueueError QueueNotFound QueueUnavailable SchemaChanged",
    "queue_source.foreach_batch": "Delivery Output delivery references reject_rows",
    "queue_source.messages": "Received",
    "queue_source.queues": "Capabilities Depth Payload Queue open_queue queue_name register_queue",
    "queue_source.queues.adapter": "log_id",
    "queue_source.queues.sim": "Fault SimQueue",
    "queue_source.spark.load": "load",
    "queue_source.spark.progress_listener": "ProgressListener",
    "queue_source.spark.published": "Published PublishedFile published",
    "queue_source.spark.source": "CuesqueueSource",
    "shard_store": "PruneResult RetentionPolicy ShardStore open_store prune",
    "shard_store.error_table.search": "Criteria",
    "shard_store.errors": "LostProgress PipelineTakenOver ShardStoreError ShardsLost StoreConfigurationError "
    "StoreUnavailable",
    "shard_store.operators.limits": "StatusLimits complaints",
    "shard_store.operators.status": "PipelineStatus",
    "shard_store.operators.repair": "ShardsChanged",
    "shard_store.operators.shards": "FoundShard ShardCriteria ShardStory",
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names.split()}
_REMOVED = {
    "reconcile": "; the command `cuesqueue reconcile` compares, very large buckets with `--inventory MANIFEST`",
}
"""Names of earlier versions: what to do instead."""

end_with_our_line()

if not TYPE_CHECKING:  # else type checkers would take any name for one of these

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            public: Any = version("cuesqueue")
        elif name in _MODULE_OF:
            public = getattr(importlib.import_module(_MODULE_OF[name]), name)
        else:
            instead = _REMOVED.get(name, "")
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{instead}")
        globals()[name] = public  # the next use does not come here
        return public


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
