"""How to reach S3: botocore completes the options from the environment and the configuration files."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

from queue_source.common.aws import new_session
from queue_source.errors import ObjectStoreError
from queue_source.options.connections import StorageOptions, with_secrets

_SERVICE = "s3"
_DEFAULT_REGION = "us-east-1"
_NO_KEYS_SECONDS = 60  # a missing key is looked up again after as long: a machine's role may come late


@contextmanager
def profile_errors(profile: str | None) -> Iterator[None]:
    """Map botocore's errors about a profile, or about the configuration files, to ObjectStoreError."""
    from botocore.exceptions import BotoCoreError

    try:
        yield
    except BotoCoreError as error:
        if profile is None:
            raise ObjectStoreError(
                f"the configuration of AWS cannot be used: {error}; mend it, or its variable"
            ) from error
        raise ObjectStoreError(f"the AWS profile {profile!r} gives no keys: {error}; check s3.profile") from error


@lru_cache(maxsize=8)
def session_of(profile: str | None, _process: int) -> Any:
    """Return botocore's session with this profile, else with that of the environment; one for a process.

    Its keys are made anew in time before they end. Raises ObjectStoreError where there is no such profile, or it gives
    no keys.
    """
    made = new_session(profile)
    with profile_errors(profile):
        if profile is not None and made.get_credentials() is None:
            raise ObjectStoreError(f"the AWS profile {profile!r} holds no credentials; check s3.profile")
        made.get_scoped_config()
    return made


def has_keys(profile: str | None) -> bool:
    """Tell whether this process has keys; without any, requests are not signed, which public buckets accept."""
    return _has_keys(profile, os.getpid(), int(time.monotonic() // _NO_KEYS_SECONDS))


@lru_cache(maxsize=8)
def _has_keys(profile: str | None, process: int, _minute: int) -> bool:
    with profile_errors(profile):
        return session_of(profile, process).get_credentials() is not None


def region_of(storage: StorageOptions) -> str:
    """Return the region: the option's, else botocore's, else that of the variable of all other SDKs of AWS.

    Without one, a machine of AWS is asked where it is: its S3 may be the only one that it reaches.
    """
    session = session_of(storage.profile, os.getpid())
    region = storage.region or session.get_config_variable("region") or os.environ.get("AWS_REGION")
    if not region and endpoint_of(storage) is None:
        region = _region_of_the_machine(storage.profile, os.getpid())
    return region or _DEFAULT_REGION


@lru_cache(maxsize=8)
def _region_of_the_machine(profile: str | None, process: int) -> str | None:
    """Ask the machine for its region.

    Takes a second or two without an answer, unless AWS_EC2_METADATA_DISABLED is set.
    """
    from botocore.utils import IMDSRegionProvider

    region: str | None = IMDSRegionProvider(session_of(profile, process)).provide()
    return region


def endpoint_of(storage: StorageOptions) -> str | None:
    """Return the endpoint of the option, else that of botocore; None: that of AWS."""
    import botocore.configprovider as config

    session = session_of(storage.profile, os.getpid())
    if storage.endpoint is not None or session.get_config_variable("ignore_configured_endpoint_urls"):
        return storage.endpoint
    endpoint: str | None = config.ConfiguredEndpointProvider(
        full_config=session.full_config, scoped_config=session.get_scoped_config(), client_name=_SERVICE
    ).provide()
    return endpoint


def for_pyarrow(storage: StorageOptions) -> tuple[StorageOptions, str | None]:
    """Return the options with the endpoint, region and keys that boto3 would use now, and the file of its certificates.

    Keys are left to pyarrow's own chain where no profile is named: it knows the other places, and renews what ends.
    Raises ObjectStoreError.
    """
    storage = with_secrets(storage)
    try:
        import botocore.configprovider  # noqa: F401
    except ImportError as error:
        if storage.profile is None:
            return _by_variables(storage)
        raise ObjectStoreError(
            f"the AWS profile {storage.profile!r} is read by botocore: pip install 'cuesqueue[sqs]' on driver and "
            "executors"
        ) from error
    session = session_of(storage.profile, os.getpid())
    with profile_errors(storage.profile):
        storage = replace(storage, endpoint=endpoint_of(storage), region=region_of(storage))
        if session.profile is not None and storage.access_key is None and storage.role_arn is None:
            storage = _with_keys(storage, session.get_credentials())
        return storage, session.get_config_variable("ca_bundle")


def _with_keys(storage: StorageOptions, credentials: Any) -> StorageOptions:
    if credentials is None:
        return storage
    keys = credentials.get_frozen_credentials()
    return replace(storage, access_key=keys.access_key, secret_key=keys.secret_key, session_token=keys.token)


def _by_variables(storage: StorageOptions) -> tuple[StorageOptions, str | None]:
    """Complete the options that pyarrow lacks, as far as that needs no configuration file."""
    variables = os.environ
    endpoint = storage.endpoint
    if endpoint is None and variables.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() != "true":
        endpoint = variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL")
    return replace(storage, endpoint=endpoint), variables.get("AWS_CA_BUNDLE")
