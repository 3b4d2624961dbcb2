"""Errors that end a query: one line in Spark's text of them, and the last line that the driver's script prints.

Spark hands on the traces of its Python processes, and adds its own and the query's state: the sentence that helps
stood between them. Our errors leave such a process without a trace (`one_line_errors`), and a script that imports
`cuesqueue` ends with the sentence and the page that says more (`cuesqueue/last_line.py`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from queue_source.errors import CuesqueueError
from shard_store.errors import ShardStoreError

HIDE = "SPARK_HIDE_TRACEBACK"
"""The variable by which a Python process of Spark leaves traces out of the text that it sends to the JVM."""

_OURS = re.compile(
    r"(?:(?:queue_source|shard_store)\.errors\.(?P<kind>\w+)|data source \S+ throw exception): (?P<sentence>.+)"
)
_WRONG_PYTHON = re.compile(
    r"Failed to find the data source: cuesqueue|Python worker failed to connect back|PYTHON_VERSION_MISMATCH"
    r"|No module named '(?:pyspark_cuesqueue|queue_source|shard_store|pyarrow)'"
    r"|Cannot run program \"[^\"]*python|PACKAGE_NOT_INSTALLED\] PyArrow"
)
_TROUBLESHOOTING = "docs/troubleshooting.md"
_PAGES = {
    "OptionError": "docs/reference/options.md",
    "StoreConfigurationError": "docs/how-to/shared-store.md",
    "StoreUnavailable": "docs/how-to/shared-store.md",
    "ObjectStoreError": "docs/how-to/storage.md",
    "ObjectRefused": "docs/how-to/storage.md",
    "SchemaChanged": "docs/how-to/schema.md",
}
_PAGES_OF_QUEUES = {
    "sqs": "docs/how-to/sqs.md",
    "pubsub": "docs/how-to/pubsub.md",
    "amqp": "docs/how-to/rabbitmq.md",
    "kafka": "docs/how-to/kafka.md",
    "azurequeue": "docs/how-to/azure.md",
    "sql": "docs/how-to/sql-queue.md",
}


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Let an error of ours leave this process of Spark without its trace; also a decorator of what Spark calls.

    What is not ours keeps its trace, as everything does with `CUESQUEUE_DEBUG=1`. The process ends with the error: no
    other one loses its trace by that.
    """
    try:
        yield
    except (CuesqueueError, ShardStoreError):
        if _is_process_of_spark() and os.environ.get("CUESQUEUE_DEBUG", "") in ("", "0"):
            os.environ[HIDE] = "1"
        raise


def _is_process_of_spark() -> bool:
    """Tell whether Spark has started this process: in the user's own the variable would act on others."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and str(spec.name).startswith("pyspark.")


def sentence_of(text: str) -> str | None:
    """Return our own sentence out of Spark's text of an exception; None where it has none."""
    matches = list(_OURS.finditer(text))
    return matches[-1]["sentence"].strip() if matches else None


def last_line(text: str) -> str | None:
    """Return what a user needs of an exception's class and text: cause, next step, page; None if it is not about us."""
    if matches := list(_OURS.finditer(text)):
        sentence = matches[-1]["sentence"].strip()
        page = _page(matches[-1]["kind"], sentence)
        return sentence if "docs/" in sentence else f"{sentence} ({page})"
    if text.startswith(("pyspark.", "py4j.")) and _WRONG_PYTHON.search(text):
        return (
            "the Python of Spark's workers cannot import cuesqueue, or is another one: set PYSPARK_PYTHON before Spark "
            f"starts, here to {sys.executable}, and run `cuesqueue doctor` ({_TROUBLESHOOTING})"
        )
    return None


def _page(kind: str | None, sentence: str) -> str:
    if sentence.startswith("queue '"):
        scheme = sentence.removeprefix("queue '").partition(":")[0].partition("+")[0]
        return _PAGES_OF_QUEUES.get("sqs" if scheme == "https" else scheme, _TROUBLESHOOTING)
    # Spark 4.0 leaves the kind out, and SinkFailed stands for any
    begins = {"option": "OptionError", "database": "StoreUnavailable"}
    kind = begins.get(sentence.partition(" ")[0], kind or "")
    return _PAGES.get(kind, _TROUBLESHOOTING)
