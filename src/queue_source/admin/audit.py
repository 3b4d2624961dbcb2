"""Who runs a command that changes shards, for the record of changes in the store."""

from __future__ import annotations

import getpass
import socket

from shard_store.shards.changes import Audit


def audit(reason: str) -> Audit:
    """Build the record of a change: the user of this process and its host, as far as they have names."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have none
        user = "unknown"
    return Audit(f"{user}@{socket.gethostname()}", reason)
