"""Values that must not be shown: they print as `***`, and give themselves up only to `reveal()`.

Not a subclass of `str`: a secret that is joined, formatted or written as JSON by mistake is then a type error or
three stars, and never a leak.
"""

from __future__ import annotations

from shard_store.redaction import HIDDEN, redact_url


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


def shown(value: str) -> str:
    """The value as an error message may show it: quoted, shortened, without passwords."""
    text = redact_url(value)
    return repr(text if len(text) <= 100 else text[:100] + "...")
