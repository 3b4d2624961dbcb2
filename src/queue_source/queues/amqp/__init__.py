"""RabbitMQ: sources, worker pools and listeners (pika). `queue.py` is the adapter; the others are its parts."""

from queue_source.queues.amqp.queue import AmqpQueue

__all__ = ["AmqpQueue"]
