"""What a process has found once of its environment and of the configuration files of AWS."""

from __future__ import annotations

from queue_source.storage import aws_access, s3_client


def forget_aws() -> None:
    """Find it anew, as a new process does: before and after a test that changes either."""
    for cached in (
        aws_access.session_of,
        aws_access._has_keys,
        aws_access._region_of_the_machine,
        s3_client._client,
    ):
        cached.cache_clear()
