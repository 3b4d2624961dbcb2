"""Google Cloud Pub/Sub (google-cloud-pubsub). `queue.py` is the adapter; the others are its parts."""

from queue_source.queues.pubsub.queue import PubSubQueue

__all__ = ["PubSubQueue"]
