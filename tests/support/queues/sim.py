"""The simulator: a pool of a source, with views as two processes have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.queues.backend import Backend, Clock


@contextmanager
def simulator(_: pytest.FixtureRequest, folder: Path) -> Iterator[Backend]:
    yield Backend(f"sim://contract?dir={folder}&pool=workers&tags=%23", Clock())


BACKENDS = {"simulator": simulator}
