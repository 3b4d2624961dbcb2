"""Keys of a profile of the AWS configuration files: pyarrow has no argument for it, and knows few kinds of profiles.

botocore does: keys, roles, SSO, processes. What it hands out may end, so it is asked each time a file system is wanted,
and it makes new keys in time before the old ones end.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from queue_source.errors import ObjectStoreError
from queue_source.options.storage import StorageOptions, with_secrets


def with_keys(storage: StorageOptions, process: int) -> StorageOptions:
    """The options with the keys that they refer to, or that their profile has, now: new keys, another file system.

    Raises ObjectStoreError when there is no such profile, or it gives no keys.
    """
    storage = with_secrets(storage)
    profile = storage.profile
    if profile is None:
        return storage
    try:
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise ObjectStoreError(
            f"the AWS profile {profile!r} is read by botocore: pip install 'cuesqueue[sqs]' on driver and executors"
        ) from error
    try:
        credentials, region = _credentials(profile, process)
        frozen = credentials.get_frozen_credentials()
    except BotoCoreError as error:
        raise ObjectStoreError(f"the AWS profile {profile!r} gives no keys: {error}; check s3.profile") from error
    return replace(
        storage,
        access_key=frozen.access_key,
        secret_key=frozen.secret_key,
        session_token=frozen.token,
        region=storage.region or region,
    )


@lru_cache(maxsize=32)
def _credentials(profile: str, _process: int) -> tuple[Any, str | None]:
    from botocore import session

    own = session.Session(profile=profile)
    found = own.get_credentials()
    if found is None:
        raise ObjectStoreError(f"the AWS profile {profile!r} holds no credentials; check s3.profile")
    return found, own.get_config_variable("region")
