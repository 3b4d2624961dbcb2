"""What the queue of AWS and its object store do alike: a session of botocore, and the credentials of a role.

botocore is loaded by the calls: it is not installed where nothing of AWS is read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

ROLE_METHOD = "cuesqueue-role"
"""The name under which botocore knows such credentials."""


def new_session(profile: str | None) -> Any:
    """Make a session of botocore, whose credentials may be replaced."""
    from botocore import session

    made = session.Session(profile=profile)
    made.register_component("data_loader", _descriptions())
    return made


@cache
def _descriptions() -> Any:
    """Read botocore's descriptions of services, once for all clients of the process."""
    from botocore import session

    return session.Session().get_component("data_loader")


def role_credentials(client: Callable[..., Any], own: Any, role_arn: str | None, external_id: str | None) -> Any:
    """Return the credentials of a role, which botocore asks for when they are needed, and again before they end.

    Args:
        client: Makes a client of a service, of which the role is asked: `client("sts", ...)`.
        own: The credentials with which it is asked for.
    """
    from botocore import credentials

    arguments = {"RoleSessionName": "cuesqueue"} | ({} if external_id is None else {"ExternalId": external_id})
    fetcher = credentials.AssumeRoleCredentialFetcher(client, own, role_arn, extra_args=arguments)
    return credentials.DeferredRefreshableCredentials(fetcher.fetch_credentials, ROLE_METHOD)
