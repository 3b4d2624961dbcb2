"""The result of a check. Secrets are hidden here, because the messages of libraries often show URLs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from shard_store.redaction import redact_text


class State(str, Enum):
    OK = "ok"
    WARNING = "warning"  # it works now, and will cause trouble later
    PROBLEM = "problem"  # a query fails, or loses or repeats rows
    SKIPPED = "skipped"  # not checked, with the reason


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: the facts, and the next step where they are not ok."""

    check: str
    state: State
    text: str
    fix: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, State.OK, redact_text(text))


def warning(check: str, text: str, fix: str) -> Finding:
    return Finding(check, State.WARNING, redact_text(text), redact_text(fix))


def problem(check: str, text: str, fix: str) -> Finding:
    return Finding(check, State.PROBLEM, redact_text(text), redact_text(fix))


def skipped(check: str, text: str, fix: str = "") -> Finding:
    return Finding(check, State.SKIPPED, redact_text(text), redact_text(fix))
