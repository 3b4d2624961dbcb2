"""What Spark's Python processes log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from queue_source.options import types
from queue_source.options.declaring import OnChange, option


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The log lines of the reader process, and of the tasks of executors."""

    TITLE: ClassVar = "Logs"
    ON_CHANGE: ClassVar = OnChange.AT_ONCE

    # fmt: off
    level: str = option(
        "logLevel", types.choice("debug", "info", "warning", "error"), "info", example="debug",
        help="Lines of this level and above are written to the standard error of Spark's Python processes: of the "
        "driver for the reader, of the executors for tasks. [All messages](logs.md), and how to send them elsewhere.",
    )
    form: str = option(
        "logFormat", types.choice("text", "json"), "text", example="json",
        help="Form of a log line: text, or a JSON object.",
    )
    # fmt: on
