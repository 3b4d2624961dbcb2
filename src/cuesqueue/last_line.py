"""The last line of a script that an error of ours ends. Without imports of ours, as `import cuesqueue` itself."""

from __future__ import annotations

import sys
from contextlib import suppress
from types import TracebackType


def end_with_our_line() -> None:
    """Let a script that an error of ours ends print its sentence last, after Python's own text.

    Once in a process; the hook before it is called first. An interactive shell or a notebook has hooks of its own.
    """
    before = sys.excepthook
    if getattr(before, "is_of_cuesqueue", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        with suppress(Exception):  # Spark may be gone, whose exceptions ask it for their text
            from queue_source.common.logs import last_line  # here: an import of `cuesqueue` loads nothing else

            if (line := last_line(f"{kind.__module__}.{kind.__name__}: {error}")) is not None:
                sys.stderr.write(f"ERROR cuesqueue: {line}\n")

    hook.is_of_cuesqueue = True  # type: ignore[attr-defined]
    sys.excepthook = hook
