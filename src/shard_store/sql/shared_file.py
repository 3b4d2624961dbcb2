"""A file that processes of one machine use together, such as a SQLite database. Loads nothing: executors use it.

SQLite's locks and its write-ahead log need one kernel: on a network drive two machines would each see a database of
their own, and a path that another machine happens to have leads to another file. So what counts is the machine (this
boot of this kernel), the file itself and its folder, in which SQLite keeps two more: not what the folder is called, so
containers and workers of one machine may share it.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@lru_cache(maxsize=1)
def _this_machine() -> str:
    """Return what is the same in all processes of this machine since it was started, in its containers too on Linux."""
    return _BOOT.read_text("ascii").strip() if _BOOT.exists() else platform.node()


@dataclass(frozen=True, slots=True)
class SharedFile:
    """The file as the process saw it that decides: `path` is absolute, `host` is for people.

    `place` is the folder (device and inode) and the name in it, where links lead.
    """

    path: str
    host: str
    machine: str
    device: int
    inode: int
    place: tuple[int, int, str]

    @classmethod
    def of(cls, file: Path) -> SharedFile:
        status = file.stat()
        return cls(str(file.absolute()), platform.node(), _this_machine(), status.st_dev, status.st_ino, _place(file))

    def problem(self) -> str:
        """Return why this process cannot use that file, and what to use instead; "" if it can."""
        if not (difference := self._difference()):
            return ""
        return (
            f"{self.path!r} is a SQLite file of the driver on {self.host!r}, and this task runs on "
            f"{platform.node()!r}, {difference}. SQLite is for executors on the driver's machine; use PostgreSQL or "
            "MariaDB/MySQL, as in postgresql+psycopg://user:password@host/database"
        )

    def _difference(self) -> str:
        if self.machine != _this_machine():
            return "which is another machine"
        try:
            status = Path(self.path).stat()
        except OSError as error:
            return f"where it cannot be reached ({error.strerror})"
        if (status.st_dev, status.st_ino) != (self.device, self.inode):
            return "where that path is another file"
        if _place(Path(self.path)) != self.place:  # SQLite would take another write-ahead log for the file's own
            return "where the file is a hard link, or mounted without its folder, and so without its write-ahead log"
        return ""


def _place(file: Path) -> tuple[int, int, str]:
    real = file.resolve()
    folder = real.parent.stat()
    return folder.st_dev, folder.st_ino, real.name
