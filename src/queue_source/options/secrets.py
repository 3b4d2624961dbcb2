"""Values that must not be shown: they print as `***`, and only `reveal()` returns them.

A value may be a reference, `env:NAME` or `file:PATH`. It travels as it is written, and each process that needs the
secret looks it up: neither Spark's plan nor the pickled data for executors holds it.

Not a subclass of `str`: a secret that is joined, formatted or written as JSON by mistake is then a type error or three
stars, and never a leak.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from queue_source.common.local_paths import check_file
from queue_source.errors import OptionError
from shard_store.redaction import HIDDEN, redact_url

SPARK_HIDES = re.compile("url|secret|password|token|access[.]?key", re.IGNORECASE)
"""Names of options whose values Spark replaces wherever it prints options: its defaults of `spark.redaction.regex` and
`spark.sql.redaction.options.regex`, as far as all supported versions agree.
"""

_REFERENCE = re.compile(r"(env|file):(.+)", re.DOTALL)
_LARGEST = 64 * 1024


def is_reference(text: str) -> bool:
    """Tell whether the text is a reference to a secret, and not the secret itself."""
    return _REFERENCE.fullmatch(text) is not None


def revealed(text: str) -> str:
    """Return the text, or what it refers to in this process. Raises ValueError, whose text shows no part of it."""
    reference = _REFERENCE.fullmatch(text)
    if reference is None:
        return text
    kind, name = reference.groups()
    if kind == "env":
        value = os.environ.get(name, "")
        where = f"the environment variable {name!r} is not set in a process of the driver or an executor"
    else:
        value, where = _of_file(Path(check_file(name))), f"the file {name!r} is empty"
    if not value:
        raise ValueError(f"{where}; write the secret there on all machines")
    return value


def _of_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) <= _LARGEST:
            return content.decode().rstrip("\r\n")
        problem = "is too large for a secret"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        problem = "is not text"
    raise ValueError(f"the file {str(path)!r} {problem}; write a file that holds the secret alone, on all machines")


class Secret:
    """A secret text. `reveal()` is the only way to it; `str`, `repr` and formats give `***`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the secret, for the library that needs it. Never put it into a message.

        Raises ValueError for a reference that leads to nothing here.
        """
        return revealed(self._value)

    def as_given(self) -> str:
        """Return what was written: the secret, or the reference to it."""
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


class Literal(Secret):
    """A text that is not shown, and is never a reference: `file:///lake` names a folder."""

    __slots__ = ()

    def reveal(self) -> str:
        return self._value


def is_url(text: str) -> bool:
    """Tell whether a text begins like a URL."""
    return re.match(r"[A-Za-z][\w+.\-]*://", text) is not None


class SecretUrl(Secret):
    """A URL that may hold a password: `str()` is the URL without it, for people; `reveal()` the one to connect with."""

    __slots__ = ()

    def __str__(self) -> str:
        return redact_url(self._value)

    def reveal(self) -> str:
        url = revealed(self._value)
        if url != self._value and not is_url(url):  # the content of a file that is no URL is in no message
            raise ValueError(f"{self._value!r} leads to something that is no URL; write one there, as in scheme://...")
        return url


def quote(value: str) -> str:
    """Return the value for an error message: quoted, shortened, without passwords."""
    text = redact_url(value)
    return repr(text if len(text) <= 100 else text[:100] + "...")


def check_shown(written: str, own: str, text: str, secret: bool) -> None:
    """Refuse a secret under a name whose value Spark prints: in errors, in `explain`, in the event log. OptionError."""
    if (secret or redact_url(text) != text) and not SPARK_HIDES.search(written) and not is_reference(text.strip()):
        better = f"write {own!r}, or " if SPARK_HIDES.search(own) else "write "
        raise OptionError(
            written, f"holds a secret, and Spark shows options of this name; {better}env:NAME or file:PATH"
        )
