"""Values that must not be shown: they print as `***`, and give themselves up only to `reveal()`.

Not a subclass of `str`: a secret that is joined, formatted or written as JSON by mistake is then a type error or
three stars, and never a leak.
"""

from __future__ import annotations

import re

HIDDEN = "***"

# A "?" that no `name=` follows belongs to a password that was not percent-encoded, and is hidden with it.
_QUERY = re.compile(r"\?(?=[\w.\-]+=)")
_SECRET_PARAMETER = re.compile(
    r"((?:^|[?&;\s])[\w.\-]*(?:password|passwd|pwd|secret|token|credential|signature|accesskey|apikey|sig)[\w.\-]*=)[^&;\s]*",
    re.IGNORECASE,
)
_URL_IN_TEXT = re.compile(r"[A-Za-z][\w+.\-]*://\S+")


class Secret:
    """A secret text. `reveal()` is the only way to it; `str`, `repr` and formats give `***`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The text itself, for the library that needs it. Never put it into a message."""
        return self._value

    def __str__(self) -> str:
        return HIDDEN

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._value))

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return type(self), (self._value,)


class SecretUrl(Secret):
    """A URL that may hold a password: `str()` is the URL without it, for people; `reveal()` the one to connect with."""

    __slots__ = ()

    def __str__(self) -> str:
        return redact_url(self._value)


def redact_url(url: str) -> str:
    """The URL with its password and secret query parameters as `***`.

    Purely textual, and greedy where the URL is malformed, because malformed URLs are what error messages show.
    (SQLAlchemy's own rendering shows the rest of a password after an `@` that was not percent-encoded.)
    """
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    parts = _QUERY.split(rest, maxsplit=1)
    user_info, at, host = parts[0].rpartition("@")
    user, colon, _ = user_info.partition(":")
    authority = f"{user}:{HIDDEN}@{host}" if at and colon else parts[0]
    query = _SECRET_PARAMETER.sub(rf"\1{HIDDEN}", "?" + parts[1]) if len(parts) > 1 else ""
    return scheme + separator + _SECRET_PARAMETER.sub(rf"\1{HIDDEN}", authority) + query


def redact_text(text: str) -> str:
    """The text with every URL in it redacted: for messages of other libraries that we pass on."""
    return _URL_IN_TEXT.sub(lambda match: redact_url(match.group()), text)


def shown(value: str) -> str:
    """The value as an error message may show it: quoted, shortened, without passwords."""
    text = redact_url(value)
    return repr(text if len(text) <= 100 else text[:100] + "...")
