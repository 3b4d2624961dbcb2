"""Objects that are made to hurt who reads them: bombs, depth, width, length, and bytes that are no text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hostile:
    """One object, and what is to become of it.

    Attributes:
        data: The object as it is stored; small.
        cause: What the error table says: `corrupt-object`, `corrupt-record`, ...; "" where nothing is wrong with it.
        options: Options of the reader, beside `fileFormat`; `schema` is the declared columns as DDL.
    """

    name: str
    file_format: str
    data: bytes
    cause: str
    options: dict[str, str]
