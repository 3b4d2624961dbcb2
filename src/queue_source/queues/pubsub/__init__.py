"""Google Cloud Pub/Sub (google-cloud-pubsub). `queue.py` is the adapter; the others are its parts."""

import os

# Before gRPC is loaded: after its first call it handles forks, and a program that is started then, such as Spark, may
# die of that before it begins (https://github.com/grpc/grpc/issues/43055). A program that forks on purpose sets it to
# true.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

from queue_source.queues.pubsub.queue import PubSubQueue

__all__ = ["PubSubQueue"]
