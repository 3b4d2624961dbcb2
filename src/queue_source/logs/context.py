"""Where a log line belongs: pipeline, seq, plan and task of whatever runs, and the log id of the request it is of.

The origin is a value that threads share: they copy the context of whoever starts them, and what is noted later of the
micro-batch shows in the lines of all of them.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from dataclasses import dataclass

from queue_source.queues.log_ids import current_log_id

PREFIX = "cuesqueue_"
"""Of the attributes of a log record that hold a field of its line."""


@dataclass(slots=True)
class Origin:
    """What a process works on. Only the reader process changes `seq` and `plan`, batch by batch.

    `seq` is the newest snapshot, and `plan` the micro-batch that runs, as `START-END` of seqs; in an executor both are
    those of the task, and `task` is its number.
    """

    pipeline: str
    seq: int | None = None
    plan: str | None = None
    task: str | None = None


_origin: ContextVar[Origin | None] = ContextVar("cuesqueue_origin", default=None)


def work_on(origin: Origin | None) -> None:
    """From here on, lines of this context, and of threads that copy it, are of this origin; None: of none known."""
    _origin.set(origin)


class AddOrigin(logging.Filter):
    """Gives each record its origin as attributes `cuesqueue_NAME`; what a line says of itself stays."""

    def filter(self, record: logging.LogRecord) -> bool:
        origin = _origin.get()
        known: dict[str, object] = {"log_id": current_log_id()}
        if origin is not None:
            known |= {"pipeline": origin.pipeline, "seq": origin.seq, "plan": origin.plan, "task": origin.task}
        for name, value in known.items():
            if value is not None and not hasattr(record, PREFIX + name):
                setattr(record, PREFIX + name, value)
        return True


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """The fields of its line, the origin first."""
    found = {name.removeprefix(PREFIX): value for name, value in vars(record).items() if name.startswith(PREFIX)}
    first = {name: found[name] for name in ("pipeline", "seq", "plan", "task", "log_id") if name in found}
    return first | found
