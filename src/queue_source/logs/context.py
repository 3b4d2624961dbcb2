"""The origin of a log line: pipeline, seq, plan and task of the work, and the log id of its request.

Threads share the origin, since they copy the context of the thread that starts them: later changes of the micro-batch
show in the lines of all of them.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from dataclasses import dataclass

from queue_source.queues.adapter import current_log_id

PREFIX = "cuesqueue_"
"""Of the attributes of a log record that hold a field of its line."""


@dataclass(slots=True)
class Origin:
    """The origin of a process's work. Only the reader process changes `seq` and `plan`, batch by batch.

    `seq` is the newest snapshot, and `plan` the running micro-batch, as `START-END` of seqs; in an executor both are
    those of the task, and `task` is its number.
    """

    pipeline: str
    seq: int | None = None
    plan: str | None = None
    task: str | None = None


_origin: ContextVar[Origin | None] = ContextVar("cuesqueue_origin", default=None)


def work_on(origin: Origin | None) -> None:
    """Set the origin of all further lines of this context, and of threads that copy it; None: unknown."""
    _origin.set(origin)


class AddOrigin(logging.Filter):
    """Gives each record its origin as attributes `cuesqueue_NAME`; fields of the line itself stay."""

    def filter(self, record: logging.LogRecord) -> bool:
        origin = _origin.get()
        fields: dict[str, object] = {"log_id": current_log_id()}
        if origin is not None:
            fields |= {"pipeline": origin.pipeline, "seq": origin.seq, "plan": origin.plan, "task": origin.task}
        for name, value in fields.items():
            if value is not None and not hasattr(record, PREFIX + name):
                setattr(record, PREFIX + name, value)
        return True


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of its line, the origin first."""
    fields = {name.removeprefix(PREFIX): value for name, value in vars(record).items() if name.startswith(PREFIX)}
    first = {name: fields[name] for name in ("pipeline", "seq", "plan", "task", "log_id") if name in fields}
    return first | fields
