"""What is meant to differ from Spark."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from support.oracle.cases import Case
from support.oracle.rows import Found, general


@dataclass(frozen=True)
class Differs:
    """A difference between Spark's reading of an object and ours: of the object, of its rows, or of a cell."""

    case: Case
    theirs: Found
    ours: Found
    what: str
    row: int = -1
    field: pa.Field | None = None
    their: str = ""
    our: str = ""

    @property
    def kind(self) -> str:
        """The same for what has the same cause, as far as that can be told."""
        start = f"{self.case.file_format}: "
        if self.what == "object":
            return f"{start}Spark {self.theirs.failure or 'reads'}, here {self.ours.failure or 'read'}"
        if self.what == "rows":
            return f"{start}{'more' if len(self.ours.rows) > len(self.theirs.rows) else 'fewer'} rows here"
        assert self.field is not None
        kind = "corrupt" if self.field.name not in self.case.data.names else general(self.field.type)
        if "null" in (self.their, self.our):
            return f"{start}{kind}, null {'in Spark' if self.their == 'null' else 'here'}"
        return f"{start}{kind}, another value"

    @property
    def shown(self) -> str:
        return f"{self.field.name if self.field is not None else ''}: Spark {self.their}, here {self.our}"


def excuse(differs: Differs) -> str | None:
    """The row of the table that says why it differs; None where none does."""
    return None
