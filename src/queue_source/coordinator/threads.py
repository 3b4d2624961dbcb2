"""The reader process's background threads: started together, stopped together, and never failing in silence."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable


class Threads:
    """The threads of one reader. The first failure stops all of them and is raised by `check` (invariant 8).

    `held`: none runs before `begin`.
    """

    def __init__(self, *, held: bool = False) -> None:
        self._held = held
        self.stopping = threading.Event()
        self._wakes: list[Callable[[], None]] = []
        self._failure: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def on_stop(self, *wakes: Callable[[], None]) -> None:
        """Call `wakes` when the threads are to end: they wake all that wait, the threads included."""
        self._wakes += wakes

    def start(self, name: str, work: Callable[..., None], *arguments: object) -> None:
        """Run `work` on a thread of its own, in a copy of our context: its log lines have the same origin."""

        def guarded() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001 - kept, and raised by Spark's next call
                self._failure = self._failure or error
                self._stop()

        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(guarded,), name=f"cuesqueue-{name}", daemon=True)
        self._threads.append(thread)
        if not self._held:
            thread.start()

    def begin(self) -> None:
        """Start the threads that were held until now."""
        self._held = False
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise the failure that has ended the threads, if there was one."""
        if self._failure is not None:
            raise self._failure

    def stop(self, patience: float) -> None:
        """Ask all threads to end, and wait up to `patience` seconds for each."""
        self._stop()
        for thread in self._threads:
            if thread.ident is not None:  # it was started
                thread.join(patience)

    def _stop(self) -> None:
        self.stopping.set()
        for wake in self._wakes:
            wake()
