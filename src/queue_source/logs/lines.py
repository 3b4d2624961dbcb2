"""The two forms of a log line. Both are one line, and show no password: `redact_text` is applied to all text."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone

from queue_source.logs.context import fields_of
from shard_store.redaction import redact_text

_NAMES = {"message": "message_id"}  # in JSON, where `message` is the text
_IN_TEXT = ("pipeline", "seq", "plan", "task", "log_id")


class TextLines(logging.Formatter):
    """`2026-11-22T18:15:00.123Z WARNING cuesqueue [pipeline=orders seq=41 plan=40-41] the message`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = fields_of(record)
        place = " ".join(f"{name}={fields[name]}" for name in _IN_TEXT if name in fields)
        said = " ".join(filter(None, (f"[{place}]" if place else "", record.getMessage(), _trace(record))))
        return f"{_time(record)} {record.levelname} {record.name} {_one_line(redact_text(said))}"


class JsonLines(logging.Formatter):
    """One JSON object: `time`, `level`, `logger`, `thread`, the fields of the line, `message` and its `template`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            **{_NAMES.get(name, name): value for name, value in fields_of(record).items()},
            "message": record.getMessage(),
            "template": str(record.msg),
        }
        if trace := _trace(record):
            line["trace"] = trace
        # in each value: a redacted line of JSON would be invalid
        return json.dumps({name: _redacted(value) for name, value in line.items()})


FORMS: dict[str, type[logging.Formatter]] = {"text": TextLines, "json": JsonLines}


def _redacted(value: object) -> object:
    return value if isinstance(value, bool | int | float) or value is None else redact_text(str(value))


def _time(record: logging.LogRecord) -> str:
    when = datetime.fromtimestamp(record.created, timezone.utc)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def _one_line(text: str) -> str:
    """Escape what is not printable: senders of messages choose names that are in such lines."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
