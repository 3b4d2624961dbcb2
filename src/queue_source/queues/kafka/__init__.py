"""Apache Kafka (confluent-kafka). `queue.py` is the adapter; the others are its parts."""

from queue_source.queues.kafka.queue import KafkaQueue

__all__ = ["KafkaQueue"]
