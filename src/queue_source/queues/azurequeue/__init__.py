"""Azure Storage Queue (azure-storage-queue). `queue.py` is the adapter; the others are its parts."""

from queue_source.queues.azurequeue.queue import AzureQueue

__all__ = ["AzureQueue"]
