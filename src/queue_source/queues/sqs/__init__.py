"""Amazon SQS, standard and FIFO (boto3). `queue.py` is the adapter; the others are its parts."""

from queue_source.queues.sqs.queue import SqsQueue

__all__ = ["SqsQueue"]
