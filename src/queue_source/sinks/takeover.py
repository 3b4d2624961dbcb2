"""Where a pipeline's batches go is noted in the store, and looked into by who takes its shards over (decision 0098)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from queue_source.options import SinkOptions, StorageOptions, parse_sink_options
from queue_source.options.types import Secret, is_reference
from shard_store.redaction import redact_text, redact_url

if TYPE_CHECKING:  # executors write without SQL
    from sqlalchemy.engine import Engine

    from shard_store.batches.takeover import Committed, Left, Look
    from shard_store.model import PlanIdentity
    from shard_store.store import ShardStore

DELTA, ICEBERG, OUTPUTS = "delta", "iceberg", "outputs"
_PLAIN = ("type", "uri", "warehouse", "ref", "prefix", "region", "scope")
"""Properties of catalogs that are no secrets, but for a password in a URI."""


def note(store: ShardStore, options: SinkOptions, plans: Sequence[PlanIdentity], columns: Iterable[str] = ()) -> None:
    """Note where the batches of a query go; in the store's own catalog they go with the store's transaction.

    `columns`: those of a Delta table, whose log may forget them.
    """
    if options.delta is not None:
        noted = noted_columns(store, options).union(name.casefold() for name in columns)
        target: dict[str, Any] = {"kind": DELTA, "delta": options.delta.uri, "columns": sorted(noted)}
    elif options.table is not None and options.table.properties:
        properties = {name: _noted(name, value) for name, value in options.table.properties.items()}
        target = {"kind": ICEBERG, "table": options.table.name, "catalog": options.table.catalog}
        target |= {f"catalog.{name}": value for name, value in properties.items() if value is not None}
        if options.table.warehouse is not None:
            target["warehouse"] = options.table.warehouse
    else:
        return
    text = json.dumps(target, sort_keys=True)
    if store.targets(options.pipelines) != {text}:
        store.note_target([plan.token for plan in plans], text)


def noted_columns(store: ShardStore, options: SinkOptions) -> frozenset[str]:
    """Return the names, in small letters, of the columns that the pipeline's Delta table has ever had here."""
    assert options.delta is not None
    targets = [json.loads(text) for text in store.targets(options.pipelines) if text is not None]
    own = [target.get("columns", ()) for target in targets if target.get("delta") == options.delta.uri]
    return frozenset(name for names in own for name in names)


def note_output(store: ShardStore, plans: Sequence[PlanIdentity], digest: str, name: str, engine: Engine) -> None:
    """Note that an output of this batch may be in another database, before it is."""
    pipelines, hashes = [plan.token.pipeline for plan in plans], [plan.delivery_hash for plan in plans]
    before: dict[str, Any] = next((json.loads(text) for text in store.targets(pipelines) if text is not None), {})
    outputs = before["outputs"] if before.get("plans") == hashes else {}
    outputs[name] = None if engine.url.password else engine.url.render_as_string()
    target = {"kind": OUTPUTS, "plans": hashes, "hash": digest, "outputs": outputs}
    text = json.dumps(target, sort_keys=True)
    if store.targets(pipelines) != {text}:
        store.note_target([plan.token for plan in plans], text)


def looking(store_id: str, storage: StorageOptions) -> Look:
    """Return what looks into targets, with the credentials of a reader."""

    def look(stopped: Left) -> Committed | str | None:
        try:
            return _look(store_id, storage, stopped)
        except Exception as error:  # noqa: BLE001 # of any library: the reader waits, and tells why
            return redact_text(str(error)) or type(error).__name__

    return look


def _look(store_id: str, storage: StorageOptions, stopped: Left) -> Committed | str | None:
    from queue_source.sinks.base import Batch
    from queue_source.sinks.marks import Target, look_for

    noted = dict(stopped.target)
    kind, batch = noted.pop("kind"), Batch((stopped.plan,))
    noted.pop("columns", None)
    if kind == OUTPUTS:
        return _output(stopped.plan, noted)
    target: Target
    options = parse_sink_options({"storeUrl": "sqlite:////", "pipeline": stopped.plan.token.pipeline, **noted})
    if kind == DELTA:
        from queue_source.sinks.delta.commits import DeltaTarget
        from queue_source.sinks.delta.tables import TableMaker

        target = DeltaTarget(TableMaker(options, storage=storage), store_id, batch, ())
    else:
        from queue_source.sinks.iceberg.commits import IcebergTarget
        from queue_source.sinks.iceberg.tables import CatalogFactory

        assert options.table is not None
        factory = CatalogFactory(options.table, storage)
        target = IcebergTarget(factory, options.table.name, store_id, (), set(), batch.digest[:12])
    return look_for(target, store_id, stopped)


def _output(plan: PlanIdentity, noted: Mapping[str, Any]) -> str | None:
    """Outputs are a part of a batch, of which only the user's own function writes the rest."""
    if plan.delivery_hash not in noted["plans"]:
        return None
    for name, place in noted["outputs"].items():
        if place is None or _has_output(place, noted["hash"], name):
            is_there = "may be in another database" if place is None else "is in another database"
            return f"output {name!r} of its last batch {is_there}; start its query once more, which writes the rest"
    return None


def _has_output(place: str, digest: str, name: str) -> bool:
    from sqlalchemy import create_engine, inspect

    from shard_store.batches.starting import is_recorded
    from shard_store.sql.schema import outputs

    engine = create_engine(place)
    try:
        with engine.connect() as connection:
            return inspect(connection).has_table(outputs.name) and is_recorded(connection, digest, name)
    finally:
        engine.dispose()


def _noted(name: str, value: Secret) -> str | None:
    """Return a property as the store may have it: references lead each machine to its own secret."""
    text = value.as_given()
    if is_reference(text):
        return text
    return (redact_url(text) if "://" in text else text) if name in _PLAIN else None
