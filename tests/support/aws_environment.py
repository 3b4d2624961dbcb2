"""What a process has found once of its environment and of the configuration files of AWS."""

from __future__ import annotations

from queue_source.storage import s3_client


def forget_aws() -> None:
    """Find it anew, as a new process does: before and after a test that changes either."""
    for cached in (
        s3_client._session_of,
        s3_client._has_keys,
        s3_client._region_of_the_machine,
        s3_client._client,
    ):
        cached.cache_clear()
