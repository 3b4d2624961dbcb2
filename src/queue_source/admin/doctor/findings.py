"""What a check says. Secrets are hidden here, whoever wrote the sentence: libraries like to show URLs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from shard_store.redaction import redact_text


class State(str, Enum):
    OK = "ok"
    WARNING = "warning"  # it works, and will hurt one day
    PROBLEM = "problem"  # a query fails, or loses or repeats rows
    SKIPPED = "skipped"  # not looked at, and why


@dataclass(frozen=True, slots=True)
class Finding:
    """Of one check: what is so, and what to do about it where it is not ok."""

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
