"""What is said of each option, and the titles of their groups."""

from __future__ import annotations

from dataclasses import dataclass

from queue_source.options.kinds import Kind


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `default` is text as a user would write it; None: there is none, or `default_note` says what.

    `formats`: the file formats that it acts on; with another it is refused, since it would do nothing.
    """

    name: str
    group: str
    kind: Kind
    default: str | None
    help: str
    example: str
    default_note: str = ""
    required: bool = False
    formats: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """The name of its field in the group: snake_case, without the prefix."""
        return snake_case(self.name.rpartition(".")[2].replace("NTZ", "Ntz"))


def snake_case(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


GROUP_TITLES = {
    "names": "Names and store",
    "notifications": "Notifications",
    "content": "Content",
    "format": "File formats",
    "schema": "Inferred schemas",
    "batches": "Micro-batches",
    "queue": "Receiving",
    "leases": "Leases",
    "deduplication": "Deduplication",
    "delivery": "Delivery and errors",
    "files": "Files",
    "iceberg": "Iceberg table",
    "sending": "Sending",
    "storage": "Storage and credentials",
}
