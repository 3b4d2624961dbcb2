"""A task's first write to the store, beside the reading of its first rows. Executor worker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa


def after(begin: Callable[[], object], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, none of them before `begin` is done, which runs on a thread. Raises what it raises."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            begin()
        except BaseException as error:  # noqa: BLE001 - raised by the task
            failed.append(error)

    thread = threading.Thread(target=run, name="cuesqueue-begin", daemon=True)
    thread.start()

    def begun() -> None:
        thread.join()
        if failed:
            raise failed.pop()

    try:
        for batch in batches:
            begun()
            yield batch
    finally:
        begun()
