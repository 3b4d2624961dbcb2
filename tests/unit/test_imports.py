"""Imports go one way: queue -> coordinator -> shards -> ... (docs/decisions.md holds why). The order is data, below.

All import statements count, also those in functions and for types only, and `import_module("...")` with a literal.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"


def inside(package: str, *layers: str) -> list[tuple[str, ...]]:
    return [tuple(f"{package}.{name}" for name in layer.split()) for layer in layers]


LAYERS: tuple[tuple[str, ...], ...] = (
    ("shard_store.errors", "shard_store.failpoints", "shard_store.model", "shard_store.redaction"),
    ("shard_store.notebooks",),
    *inside(
        "shard_store.sql",
        "schema shared_file",
        "dialects",
        "engines",
        "database",
        "install migrations",
    ),
    ("shard_store.sql",),
    *inside("shard_store.shards", "activity", "changes", "announcing", "ownership", "recording"),
    ("shard_store.shards",),
    *inside("shard_store.error_table", "records", "search", "handling"),
    ("shard_store.error_table",),
    *inside(
        "shard_store.batches",
        "readings snapshots",
        "positions",
        "publishing",
        "progress",
        "plans starting",
        "takeover",
    ),
    ("shard_store.batches",),
    *inside("shard_store.completeness", "listing", "comparing"),
    ("shard_store.completeness",),
    *inside("shard_store.operators", "shards status views", "compacting repair", "resetting"),
    ("shard_store.operators",),
    *inside("shard_store.upkeep", "timing", "cleaning", "pruning"),
    ("shard_store.upkeep",),
    ("shard_store.store",),
    ("shard_store",),
    ("queue_source.common.clouds", "queue_source.errors"),
    ("queue_source.messages", "queue_source.tags"),
    ("queue_source.common.local_paths", "queue_source.uris"),
    ("queue_source.common.globs", "queue_source.common.columns", "queue_source.common.times"),
    ("queue_source.common",),
    ("queue_source.queues",),
    ("queue_source.common.logs",),
    *inside(
        "queue_source.options",
        "types",
        "declaring",
        "connections",
        "content",
        "reader",
        "sink",
        "checks places",
    ),
    ("queue_source.options",),
    ("queue_source.announcements",),
    ("queue_source.storage",),
    ("queue_source.formats",),
    ("queue_source.schema",),
    ("queue_source.read",),
    *inside(
        "queue_source.coordinator",
        "messages session",
        "cleaning errors ready",
        "in_flight sizes",
        "acknowledging opening",
        "backfill maintenance progress receivers",
        "coordinator",
        "start",
    ),
    ("queue_source.coordinator",),
    ("queue_source.sinks",),
    *inside("queue_source.commands", "output", "parameters", "queue shards status"),
    ("queue_source.spark",),
    ("queue_source.foreach_batch",),
    ("queue_source.serve",),
    ("queue_source.commands",),
    ("cuesqueue",),
    *inside(
        "cuesqueue_prove",
        "folder",
        "effects runs samples",
        "inside results",
        "proof",
        "command",
    ),
    ("cuesqueue_prove",),
    ("cuesqueue.testing",),
    ("pyspark_cuesqueue",),
)
"""From the bottom up. A unit is a module or a package; it imports itself and units of the layers below its own.

Of several units of a module the smallest counts: a module with a place of its own, and not the package around it.
Units of one layer do not know each other.
"""

STRANGERS = {
    "queue_source.storage": ("queue_source.queues", "queue_source.announcements"),
    "queue_source.formats": ("queue_source.queues", "queue_source.announcements"),
    **dict.fromkeys(
        ("shard_store.upkeep.timing", "shard_store.upkeep.cleaning", "shard_store.upkeep.pruning"),
        inside("shard_store.operators", "repair shards status views")[0],
    ),
}
"""Units that know nothing of others below them: what reads objects does not depend on how they were announced, and what
goes on by itself does not depend on what people ask for."""

ONLY_IN: dict[str, tuple[str, ...]] = {
    "pyspark": ("queue_source.spark", "cuesqueue_prove", "pyspark_cuesqueue"),
    "py4j": ("queue_source.spark",),
    "boto3": ("queue_source.queues.sqs",),
    "botocore": ("queue_source.queues.sqs",),
    "azure": ("queue_source.queues.azurequeue", "queue_source.storage"),
    "google": ("queue_source.queues.pubsub",),
    "grpc": ("queue_source.queues.pubsub",),
    "pika": ("queue_source.queues.amqp",),
    "confluent_kafka": ("queue_source.queues.kafka",),
    "sqlalchemy": (
        "shard_store.sql",
        "shard_store.shards",
        "shard_store.error_table",
        "shard_store.batches",
        "shard_store.completeness",
        "shard_store.operators",
        "shard_store.upkeep",
        "shard_store.store",
        "queue_source.queues.sql",
        "queue_source.queues.sim",
        "queue_source.sinks",
        "queue_source.commands.vacuum",
        "queue_source.foreach_batch",
        "cuesqueue_prove",
    ),
    "alembic": ("shard_store.sql",),
    "pyiceberg": ("queue_source.sinks",),
    "deltalake": ("queue_source.sinks.delta",),
    "pyarrow": (
        "queue_source.storage",
        "queue_source.formats",
        "queue_source.schema",
        "queue_source.read",
        "queue_source.sinks",
        "queue_source.commands",
        "queue_source.spark",
        "cuesqueue_prove",
    ),
    "starlette": ("queue_source.serve",),
    "uvicorn": ("queue_source.serve",),
    "jinja2": ("queue_source.serve",),
    "markupsafe": ("queue_source.serve",),
    "prometheus_client": ("queue_source.serve",),
    "typer": ("queue_source.commands", "cuesqueue_prove.command"),
    "rich": ("queue_source.commands", "cuesqueue_prove.command"),
}
"""Third-party packages that have a place of their own, and the units that are it."""

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("queue_source.common.clouds", "botocore"): "what SQS and S3 do alike with it",
    ("queue_source.common.clouds", "azure"): "what queues and containers do alike with it",
    ("queue_source.commands.setup_aws", "boto3"): "makes queues and notifications, which no adapter does",
    ("queue_source.commands.setup_aws", "botocore"): "makes queues and notifications, which no adapter does",
    ("queue_source.commands.setup_gcp", "google"): "makes topics and notifications, which no adapter does",
    ("cuesqueue_prove.results", "pyiceberg"): "reads the table that a job has written",
    ("cuesqueue_prove.results", "deltalake"): "reads the table that a job has written",
    ("queue_source.storage.s3_client", "boto3"): "reads and lists objects of S3",
    (
        "queue_source.storage.s3_client",
        "botocore",
    ): "reads and lists objects of S3, and finds what options leave open, for pyarrow too",
    ("queue_source.storage.s3_object", "botocore"): "signs and sends requests for objects of S3",
    ("queue_source.storage.buckets.gcs", "google"): "lists, deletes and moves, which pyarrow cannot do in pages",
    ("queue_source.queues.base", "sqlalchemy"): "the type of the transaction that some queues take part in",
    ("queue_source.foreach_batch", "sqlalchemy"): "the type of the user's own transaction",
}
"""(module, package) that may be imported against `ONLY_IN`, and why."""

OURS = ("shard_store", "queue_source", "cuesqueue", "cuesqueue_prove", "pyspark_cuesqueue")
PROVE_USES = ("cuesqueue", "cuesqueue_prove", "queue_source.options", "queue_source.commands.output")
"""All of ours that `cuesqueue_prove` may import: what users know, and what a command is made of."""

SHARD_STORE_USES = {"sqlalchemy", "alembic", "tenacity", "typing_extensions", "shard_store"}
"""All that `shard_store` may import beside the standard library: it may one day be a package of its own."""


class Import(NamedTuple):
    importer: str  # the importing module
    target: str  # the module imported
    line: int


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_name(path): path for path in sorted(SRC.rglob("*.py"))}


def imports_in(importer: str, source: str, is_package: bool = False) -> Iterator[Import]:
    """Every import of a module's source; `from a import b` counts as `a.b` where that is a module of ours."""
    package = importer.split(".") if is_package else importer.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                for name in names:
                    yield Import(importer, name.name, node.lineno)
            case ast.ImportFrom(module=module, names=names, level=level):
                above = package[: len(package) - level + 1] if level else []
                base = ".".join([*above, *([module] if module else [])])
                for name in names:
                    full = f"{base}.{name.name}"
                    yield Import(importer, full if full in modules() else base, node.lineno)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(target)), *_],
            ):
                yield Import(importer, target, node.lineno)


@cache
def all_imports() -> tuple[Import, ...]:
    return tuple(
        found
        for name, path in modules().items()
        for found in imports_in(name, path.read_text("utf-8"), path.name == "__init__.py")
    )


def is_in(module: str, unit: str) -> bool:
    return module == unit or module.startswith(unit + ".")


def place(module: str) -> tuple[int, str] | None:
    """(layer, unit) of a module of ours, None for one that stands in no layer."""
    units = ((i, unit) for i, layer in enumerate(LAYERS) for unit in layer if is_in(module, unit))
    return max(units, key=lambda found: len(found[1]), default=None)


def against_the_order(found: Import) -> str | None:
    """What is wrong with an import of one of our modules, or None."""
    if not any(is_in(found.target, top) for top in OURS):
        return None
    if "queue_source" in (found.importer, found.target):  # the package itself imports nothing of ours
        return None if found.target == "queue_source" else f"{found.importer}:{found.line}: imports {found.target}"
    above, below = place(found.importer), place(found.target)
    if above is None or below is None:
        return None  # test_every_module_has_a_layer speaks of it
    strange = below[1] in STRANGERS.get(above[1], ())
    if above[1] == below[1] or (above[0] > below[0] and not strange):
        return None
    return f"{found.importer}:{found.line}: {above[1]} may not import {found.target}"


def out_of_place(found: Import) -> str | None:
    """What is wrong with an import of a third-party package, or None."""
    package = found.target.split(".")[0]
    allowed = ONLY_IN.get(package)
    if allowed is None or any(is_in(found.importer, unit) for unit in allowed):
        return None
    if (found.importer, package) in EXCEPTIONS:
        return None
    return f"{found.importer}:{found.line}: imports {package}, which only {' and '.join(allowed)} may"


def test_every_module_has_a_layer() -> None:
    homeless = [name for name in modules() if name != "queue_source" and place(name) is None]
    assert not homeless, f"add to LAYERS in {Path(__file__).name}: {homeless}"


def test_imports_follow_the_layers() -> None:
    assert not [wrong for found in all_imports() if (wrong := against_the_order(found))]


def test_libraries_are_imported_only_where_they_belong() -> None:
    assert not [wrong for found in all_imports() if (wrong := out_of_place(found))]


def test_prove_knows_what_users_know() -> None:
    mine = [found for found in all_imports() if is_in(found.importer, "cuesqueue_prove")]
    ours = [found for found in mine if any(is_in(found.target, top) for top in OURS)]
    assert not [found for found in ours if not any(is_in(found.target, unit) for unit in PROVE_USES)]


def test_the_shard_store_stands_on_its_own() -> None:
    foreign = [
        f"{found.importer}:{found.line}: {found.target}"
        for found in all_imports()
        if is_in(found.importer, "shard_store")
        and (top := found.target.split(".")[0]) not in SHARD_STORE_USES
        and top not in sys.stdlib_module_names
    ]
    assert not foreign


@pytest.mark.parametrize(
    ("importer", "source", "wrong"),
    [
        ("shard_store.store", "import queue_source.errors", True),
        ("shard_store.sql.database", "from shard_store.batches import plans", True),
        ("shard_store.shards.changes", "from shard_store.shards import ownership", True),
        ("shard_store.upkeep.pruning", "from shard_store.operators import repair", True),
        ("shard_store.upkeep.pruning", "from shard_store.error_table.records import FINAL", False),
        ("shard_store.store", "from . import model", False),
        ("queue_source.queues.sqs", "from queue_source import errors", False),
        ("queue_source.queues.sqs", "def f():\n    from queue_source.coordinator import x", True),
        ("queue_source.queues.sqs", "from ..formats import compression", True),
        ("queue_source.queues.sqs", "import importlib\nimportlib.import_module('queue_source.spark.source')", True),
        ("queue_source.storage.files", "from queue_source.queues.base import Queue", True),
        ("queue_source.coordinator", "from queue_source.queues.base import Queue", False),
    ],
)
def test_the_order_is_checked_wherever_the_import_stands(importer: str, source: str, wrong: bool) -> None:
    assert any(against_the_order(found) for found in imports_in(importer, source)) is wrong


@pytest.mark.parametrize(
    ("importer", "source", "wrong"),
    [
        ("queue_source.queues.sqs", "import boto3", False),
        ("queue_source.queues.base", "import boto3.session", True),
        ("queue_source.coordinator", "if TYPE_CHECKING:\n    from pyspark.sql import DataFrame", True),
        ("queue_source.spark.source", "from pyspark.sql.datasource import DataSource", False),
    ],
)
def test_an_sdk_outside_its_adapter_is_found(importer: str, source: str, wrong: bool) -> None:
    assert any(out_of_place(found) for found in imports_in(importer, source)) is wrong


def test_what_a_task_needs_to_read_and_to_write_files_loads_no_sql() -> None:
    """Loading it takes a cold worker half a second, and every process of Spark that a query begins with is cold."""
    program = """
import subprocess
import sys
from pyspark.sql.types import StructType
from queue_source.options import parse_reader_options, parse_sink_options
from queue_source.sinks.base import open_sink
from queue_source.spark.reader import CuesqueueStreamReader
from queue_source.spark.writer import CuesqueueStreamWriter
store = {"store": "sqlite:////tmp/store.db", "pipeline": "p"}
CuesqueueStreamReader(
    parse_reader_options(
        {"queueUrl": "sqs://q", "fileFormat": "json", "allowedPrefixes": "s3://b/", "source": "s", **store}
    ),
    StructType(),
)
options = parse_sink_options({"path": "/tmp/table", **store})
CuesqueueStreamWriter(options, StructType())
open_sink(options)
open_sink(parse_sink_options({"delta": "/tmp/table", **store}))
print(sorted({"sqlalchemy", "alembic", "pyiceberg", "deltalake", "pandas"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_what_spark_looks_up_is_imported_without_pyarrow() -> None:
    """Which the Python of Spark's workers may lack: a look-up that fails prints a trace of 300 lines."""
    program = "import sys; sys.modules['pyarrow'] = None; import pyspark_cuesqueue"
    subprocess.run([sys.executable, "-c", program], check=True)
