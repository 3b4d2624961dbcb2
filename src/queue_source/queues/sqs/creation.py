"""A new queue: what its URL says, and what suits a pipeline."""

from __future__ import annotations

import re
from typing import Any

from queue_source.errors import QueueConfigurationError
from queue_source.queues.sqs.client import Address, service_errors

RETENTION = "1209600"  # 14 days, the longest there is: a pipeline may stand still for a while


def create(client: Any, address: Address) -> str:
    """Make the queue and return its URL; one that is there with the same attributes is that queue.

    SQS makes queues in the caller's own account, whatever account a URL names: raises where that is another one.
    """
    attributes = {"MessageRetentionPeriod": RETENTION, **({"FifoQueue": "true"} if address.fifo else {})}
    with service_errors(address.shown):
        made = str(client.create_queue(QueueName=address.queue, Attributes=attributes)["QueueUrl"])
    wanted, own = _account(address.url), _account(made)
    if wanted and own and wanted != own:
        raise QueueConfigurationError(
            address.shown,
            f"the credentials are those of account {own}, so that there is {made} now; delete it if it is not needed, "
            f"and use credentials of account {wanted}",
        )
    return made


def _account(url: str | None) -> str | None:
    """None where the URL names none, as with some emulators."""
    found = re.search(r"/(\d{12})/[^/]+$", url or "")
    return found and found[1]
