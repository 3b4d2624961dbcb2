"""The simulator: a pool of a source, with views as two processes have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.queues.backend import Backend, Clock


@contextmanager
def simulator(_: pytest.FixtureRequest, folder: Path) -> Iterator[Backend]:
    link = folder / "link"
    link.symlink_to(folder, target_is_directory=True)
    spellings: list[tuple[str, dict[str, Any]]] = [
        (f"sim://contract?tags=%23&pool=workers&dir={link}", {}),
        (f"sim://contract?dir={folder}/&pool=workers", {}),
    ]
    another = f"sim://contract?dir={folder}&pool=others"
    yield Backend(f"sim://contract?dir={folder}&pool=workers&tags=%23", Clock(), spellings=spellings, another=another)


BACKENDS = {"simulator": simulator}
