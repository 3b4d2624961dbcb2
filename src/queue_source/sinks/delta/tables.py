"""Opens, makes and changes a Delta table with delta-rs. Runs where batches are planned and committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import tenacity

from queue_source.errors import OptionError
from queue_source.options import SinkOptions
from queue_source.sinks.delta.access import delta_storage_options, delta_uri
from queue_source.sinks.delta.features import check_features
from queue_source.sinks.delta.files import Target
from queue_source.sinks.delta.partitions import check_partitioning
from queue_source.sinks.delta.schemas import added_fields, check_columns
from queue_source.sinks.splits import make_durable
from queue_source.storage.files import is_local, resolve
from shard_store.redaction import redact_text

try:
    from deltalake import CommitProperties, DeltaTable, Field, Schema
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
except ModuleNotFoundError as error:
    raise OptionError("delta", f"needs deltalake ({error}): pip install 'cuesqueue[delta]' on all machines") from error

_ONCE = 0
"""Tries of delta-rs by itself: ours begin with a look at the table as it is then."""


class OpenTable:
    """A Delta table at one version, which this sink can write to."""

    def __init__(self, uri: str, handle: DeltaTable) -> None:
        """Raises OptionError for a table that asks of its writers what this sink cannot do."""
        self.uri, self.handle = uri, handle
        metadata, protocol = handle.metadata(), handle.protocol()
        self.table_id = str(metadata.id)
        self.configuration: dict[str, str] = dict(metadata.configuration)
        self.partition_by: tuple[str, ...] = tuple(metadata.partition_columns)
        self.schema = pa.schema(handle.schema().to_arrow())
        check_features(uri, protocol.min_writer_version, protocol.writer_features, self.configuration, self.schema)
        check_partitioning(uri, self.schema, self.partition_by, new=False)

    def target(self) -> Target:
        about_statistics = {name: v for name, v in self.configuration.items() if name.startswith("delta.dataSkipping")}
        columns = self.columns(large=True)
        return Target(self.uri, self.table_id, self.schema, columns, self.partition_by, about_statistics)

    def columns(self, *, large: bool) -> pa.Schema:
        """Return the columns that can be filled here, all of which may be null. A `large` batch may hold over 2 GiB."""
        filled = [field for field in self.handle.schema().fields if _is_filled(field)]
        return pa.schema(_without_not_null(Schema(filled)).to_arrow(as_large_types=large))

    def changed_since(self, target: Target) -> str | None:
        """Tell what has changed so that files for `target` do not fit any more; None where they do."""
        if self.table_id != target.table_id:
            return "was made anew"
        if self.partition_by != target.partition_by:
            return "was partitioned in another way"
        now = {field.name: field for field in self.schema}
        before = {field.name: field for field in target.schema}
        for name, field in before.items():
            if name not in now or not _takes(now[name], field):
                return f"got another column {name!r}"
        if strict := next((name for name, field in now.items() if name not in before and not field.nullable), None):
            return f"got a column that must not be null, {strict!r}"
        return None

    def sync_log(self, after: int) -> None:
        """Flush the commits after a version to disk, where the table is local: delta-rs does not."""
        if is_local(self.uri):
            log = Path(delta_uri(self.uri)) / "_delta_log"
            for version in range(after + 1, self.handle.version() + 1):
                file = log / f"{version:020}.json"
                if file.exists():  # else another writer's cleaning was quicker
                    make_durable(file)


def _is_filled(field: Field) -> bool:
    """Tell whether Arrow has the type: not of VARIANT, or of one that is newer than this sink."""
    arrow = pa.field(field.to_arrow())
    try:
        check_columns([arrow])
    except OptionError:
        return False
    return bool(Field.from_arrow(arrow) == field)


def _without_not_null(schema: Schema) -> Schema:
    def nullable(part: dict[str, Any]) -> dict[str, Any]:
        return part | dict.fromkeys(part.keys() & {"nullable", "containsNull", "valueContainsNull"}, True)

    return Schema.from_json(json.dumps(json.loads(schema.to_json(), object_hook=nullable)))


def _takes(now: pa.Field, before: pa.Field) -> bool:
    """Tell whether values written for a field are still values of it: its structs may have got fields."""
    if before.nullable and not now.nullable:
        return False
    try:
        return not added_fields("", [now], [before])
    except OptionError:
        return False


class TableMaker:
    """Opens the table of a sink's options; makes it, or adds the columns that rows need.

    `opened`: the table as it was a moment ago. The first try of `ready` goes by it: where it has changed since, adding
    columns is refused, and so is the commit of files that do not fit any more.
    """

    def __init__(self, options: SinkOptions, opened: OpenTable | None = None) -> None:
        assert options.delta is not None
        self._options, self._delta = options, options.delta
        self._uri, self._opened = options.delta.uri, opened
        self._place = delta_uri(self._uri)

    def open(self) -> OpenTable | None:
        """Return the table as it is now; None where there is none. Raises OptionError."""
        try:
            handle = DeltaTable(self._place, storage_options=self._access())
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise OptionError(
                "delta", f"names {self._uri}, which cannot be opened: {redact_text(str(error))}"
            ) from error
        return OpenTable(self._uri, handle)

    def ready(self, schema: pa.Schema, patience: float) -> OpenTable:
        """Return the table with all columns of the rows. Raises OptionError."""
        check_columns(schema)
        columns = pa.schema(_without_not_null(Schema.from_arrow(schema)).to_arrow())
        for attempt in tried_again(patience):
            with attempt:
                table = self._ready(columns)
        self._check_asked(table, columns)
        return table

    def _ready(self, columns: pa.Schema) -> OpenTable:
        table, self._opened = self._opened or self.open(), None
        if table is None:
            self._create(columns)
        elif added := added_fields(self._uri, table.schema, columns):
            handle, before = table.handle, table.handle.version()
            fields = Schema.from_arrow(pa.schema(added)).fields
            handle.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=_ONCE))
        else:
            return table
        changed = self.open()
        if changed is None:
            raise OptionError("delta", f"names {self._uri}, which has gone while the batch was planned")
        changed.sync_log(-1 if table is None else before)
        return changed

    def _create(self, columns: pa.Schema) -> None:
        added_fields(self._uri, [], columns)  # names that no table can have
        check_partitioning(self._uri, columns, self._delta.partition_by, new=True)
        self._check_empty()
        try:
            DeltaTable.create(
                self._place,
                Schema.from_arrow(columns),
                mode="error",
                partition_by=list(self._delta.partition_by),
                storage_options=self._access(),
                commit_properties=CommitProperties(max_commit_retries=_ONCE),  # or two would both make it, one over one
            )
        except DeltaError:
            if self.open() is None:
                raise

    def _check_empty(self) -> None:
        """Refuse to make a table over files of others: they would be none of its own, and its `vacuum` deletes such."""
        filesystem, place = resolve(f"{self._uri}/any", self._options.storage)
        folder = pafs.FileSelector(place.rpartition("/")[0], allow_not_found=True)
        names = [entry.base_name for entry in filesystem.get_file_info(folder)]
        if other := next((name for name in sorted(names) if not name.startswith(("_", "."))), None):
            raise OptionError(
                "delta",
                f"names {self._uri}, which is no Delta table and holds {other!r}; name a table, or an empty folder",
            )

    def _check_asked(self, table: OpenTable, columns: pa.Schema) -> None:
        asked = self._delta.partition_by
        if asked and asked != table.partition_by:
            raise OptionError(
                "partitionBy",
                f"asks for {', '.join(asked)}, but {self._uri} is partitioned by "
                f"{', '.join(table.partition_by) or 'nothing'}; leave the option out, or name another table",
            )
        if set(columns.names) <= set(table.partition_by):
            raise OptionError(
                "delta", f"the rows have no column but those by which {self._uri} is partitioned; add one of its others"
            )

    def _access(self) -> dict[str, str] | None:
        return delta_storage_options(self._uri, self._options.storage) or None


def is_conflict(error: BaseException) -> bool:
    """Tell whether another writer was first, so that all is looked at and tried again."""
    return isinstance(error, CommitFailedError) and "Unsupported table features" not in str(error)


def tried_again(patience: float) -> tenacity.Retrying:
    """Retry a commit: other writers of the table may be first; then all is rolled back and repeated after theirs."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_conflict),
        wait=tenacity.wait_random_exponential(multiplier=0.02, max=2.0),
        stop=tenacity.stop_after_delay(patience),
        reraise=True,
    )
