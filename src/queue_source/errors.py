"""Errors of the queue source.

    CuesqueueError
    |-- OptionError            an option is unknown, missing or has a bad value: raised before the query starts
    |-- QueueError             a queue failed; carries the queue's name
    |   |-- QueueConfigurationError   we may not use it, or not in this way: fails at once
    |   |   `-- QueueNotFound         it does not exist, where its kind tells that apart
    |   `-- QueueUnavailable          passing trouble: retried with back-off, then the query fails
    |-- MalformedNotification  the body is not a notification of any known form: quarantined
    |-- BadObject              an object cannot be read as what it should be: quarantined, skipped or fatal by option
    |-- SinkFailed             a sink cannot begin a batch: any of these, in the one form that Spark hands on unchanged
    |-- SchemaChanged          objects have columns that the stream's schema lacks: the query fails, by option
    `-- ObjectStoreError       throttled, network: the task fails, and Spark retries it
        |-- ObjectReplaced     another version is there since it was opened: read from its beginning
        `-- ObjectRefused      access denied, archived, no key: tried again, then perhaps the object's own fault

Errors of the store are `shard_store.errors`. Secrets are never part of a message.
"""

from __future__ import annotations

import pickle
from functools import partial


class CuesqueueError(Exception):
    """Base of all errors but those of the store."""


class OptionError(CuesqueueError, ValueError):
    """An option is wrong; `option` is its name, the message says what to do next."""

    def __init__(self, option: str, problem: str) -> None:
        self.option = option
        self.problem = problem
        super().__init__(f"option {option!r}: {problem}")

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, str]]:
        return type(self), (self.option, self.problem)


class QueueError(CuesqueueError):
    """A queue failed; `queue` is its name as in `queueUrl`, without secrets."""

    def __init__(self, queue: str, problem: str) -> None:
        self.queue = queue
        self.problem = problem
        super().__init__(f"queue {queue!r}: {problem}")

    def __reduce__(self) -> tuple[type[QueueError], tuple[str, str]]:
        return type(self), (self.queue, self.problem)


class QueueConfigurationError(QueueError):
    """The queue is missing, forbidden or wrongly named: waiting does not help."""


class QueueNotFound(QueueConfigurationError):
    """The queue, or what it belongs to, does not exist."""


class QueueUnavailable(QueueError):
    """The queue did not answer as it should; the next try may succeed."""


class MalformedNotification(CuesqueueError):
    """A message body is in none of the known notification forms; it goes to the error table and is never dropped."""


class BadObject(CuesqueueError):
    """An object cannot be read: `cause` is a fixed word, listed in `docs/how-to/errors.md`.

    `offset` is the byte up to which everything was good.
    """

    def __init__(self, cause: str, detail: str, offset: int = 0) -> None:
        self.cause, self.detail, self.offset = cause, detail, offset
        super().__init__(f"{cause}: {detail}")

    def __reduce__(self) -> tuple[type[BadObject], tuple[str, str, int]]:
        return type(self), (self.cause, self.detail, self.offset)


class SinkFailed(CuesqueueError, pickle.PickleError):
    """A sink cannot begin a batch; the message is that of the error itself, its cause.

    It is raised while Spark pickles the writer, where every other exception becomes a PicklingError with a trace.
    """


class SchemaChanged(CuesqueueError):
    """New columns were found, and `schemaEvolutionMode` says that the query ends; nothing of the batch is published."""


class ObjectStoreError(CuesqueueError):
    """The object store refused or failed (not "missing"): the task fails and is tried again."""


class ObjectReplaced(ObjectStoreError):
    """The object is another version than the opened one: nothing that was read of it may be used."""


class ObjectRefused(ObjectStoreError):
    """The store refuses an object explicitly, or answers what cannot be read: another try will hardly help.

    `own`: for a reason of this object alone (archived, no permission for its key of encryption). Otherwise the whole
    bucket may be refused to us, as with wrong credentials. `cause`: that of the bad object that it may become.
    """

    def __init__(self, problem: str, *, own: bool, cause: str = "forbidden-object") -> None:
        self.own, self.cause = own, cause
        super().__init__(problem)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(ObjectRefused, own=self.own, cause=self.cause), (str(self),)
