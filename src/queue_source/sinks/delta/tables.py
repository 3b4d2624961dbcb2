"""Delta tables: how they are reached, opened and made, and their log as the mark of a batch reads it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import tenacity

from queue_source.errors import OptionError
from queue_source.options import SinkOptions
from queue_source.options.connections import StorageOptions, with_secrets
from queue_source.sinks.delta.files import Target, check_partitioning
from queue_source.sinks.delta.schemas import added_fields, check_columns, check_features
from queue_source.sinks.splits import make_durable
from queue_source.storage import s3_client
from queue_source.storage.files import GCS_EMULATOR, azure_place, blob_service, check_place, resolve
from queue_source.storage.open_files import AZURE_SCHEMES, is_local
from shard_store.redaction import redact_text

_S3_SCHEMES = ("s3", "s3a")  # of those that pyarrow reads, delta-rs does not know s3n


def delta_uri(uri: str) -> str:
    """Return the table's place as delta-rs takes it. Raises OptionError for one that it would misread."""
    if "%" in uri or "?" in uri or "#" in uri:
        raise OptionError("delta", f"names {uri!r}: deltalake misreads a '%', '?' or '#' in a path; use another folder")
    scheme = uri.partition("://")[0].lower()
    if not is_local(uri) and scheme not in (*_S3_SCHEMES, "gs", *AZURE_SCHEMES):
        raise OptionError("delta", f"names {uri!r}, and its scheme is not one of file, s3, s3a, gs, abfs, abfss, az")
    return uri[len("file://") :] if is_local(uri) and not uri.startswith("/") else uri


def delta_storage_options(uri: str, storage: StorageOptions) -> dict[str, str]:
    """Return the `storage_options` of `deltalake.DeltaTable`. Raises OptionError, ObjectStoreError."""
    scheme = uri.partition("://")[0].lower()
    if is_local(uri):
        return {}
    if scheme in _S3_SCHEMES:
        return _of_s3(storage)
    if scheme not in AZURE_SCHEMES:
        anonymous = storage.anonymous or bool(os.environ.get(GCS_EMULATOR))
        return {"google_skip_signature": "true"} if anonymous else {}  # else Google's own chain, as for pyarrow
    azure = with_secrets(storage).azure
    account, domain, _ = azure_place(uri, scheme, uri.partition("://")[2].partition("/")[0], azure)
    endpoint = blob_service(account, domain, azure) if azure.endpoint is not None else None
    values = {
        "azure_storage_account_name": account,
        "azure_storage_account_key": azure.account_key,
        "azure_storage_sas_token": azure.sas_token,
        "azure_storage_tenant_id": azure.tenant_id,
        "azure_storage_client_id": azure.client_id,
        "azure_storage_client_secret": azure.client_secret,
        "azure_storage_endpoint": endpoint,
        "azure_allow_http": "true" if endpoint is not None and endpoint.startswith("http://") else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _of_s3(storage: StorageOptions) -> dict[str, str]:
    completed, _ = s3_client.for_pyarrow(storage)
    access_key, secret_key, token = completed.access_key, completed.secret_key, completed.session_token
    anonymous = completed.anonymous
    if s3_client.is_installed():
        keys = s3_client.keys_of(storage)
        anonymous = anonymous or keys is None
        access_key, secret_key, token = keys or (None, None, None)
    elif completed.role_arn is not None:
        raise OptionError(
            "s3.roleArn", "is assumed by boto3 for a Delta table: pip install 'cuesqueue[aws]' on all machines"
        )
    endpoint = completed.endpoint
    if endpoint is not None and "://" not in endpoint:
        endpoint = f"https://{endpoint}"
    values = {
        "aws_access_key_id": access_key,
        "aws_secret_access_key": secret_key,
        "aws_session_token": token,
        "aws_region": completed.region,
        "aws_endpoint_url": endpoint,
        "aws_allow_http": "true" if endpoint is not None and endpoint.startswith("http://") else None,
        "aws_skip_signature": "true" if anonymous else None,
        "conditional_put": "etag",  # a version that another writer has committed is never overwritten
    }
    return {name: value for name, value in values.items() if value is not None}


try:
    from deltalake import CommitProperties, DeltaTable, Field, Schema
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
except ModuleNotFoundError as error:
    raise OptionError("delta", f"needs deltalake ({error}): pip install 'cuesqueue[delta]' on all machines") from error

_SOON = {"max_retries": "2", "retry_timeout": "5s", "timeout": "5s"}
"""How long delta-rs waits for a bucket before anything is started; else it does for minutes."""

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
        filled = []
        for field in self.handle.schema().fields:
            arrow = pa.field(field.to_arrow())
            with suppress(OptionError):  # of VARIANT, or of a type that is newer than this sink
                check_columns([arrow])
                if Field.from_arrow(arrow) == field:
                    filled.append(field)
        return pa.schema(_without_not_null(Schema(filled)).to_arrow(as_large_types=large))

    def lacking(self, columns: pa.Schema) -> list[pa.Field]:
        """Return the columns that the table lacks, or lacks a part of. Raises OptionError for what it cannot get."""
        return added_fields(self.uri, self.schema, _nullable(columns))

    def changed_since(self, target: Target) -> str | None:
        """Tell what has changed so that files for `target` do not fit any more; None where they do."""
        if self.table_id != target.table_id:
            return "was made anew"
        if self.partition_by != target.partition_by:
            return "was partitioned in another way"
        now = {field.name: field for field in self.schema}
        before = {field.name: field for field in target.schema}
        for name, field in before.items():  # structs may have got fields
            is_other = name not in now or (field.nullable and not now[name].nullable)
            with suppress(OptionError):
                if not is_other and not added_fields("", [now[name]], [field]):
                    continue
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


def _nullable(columns: pa.Schema) -> pa.Schema:
    """Return the columns as deltalake writes them, all of which may be null. Raises OptionError."""
    check_columns(columns)
    return pa.schema(_without_not_null(Schema.from_arrow(columns)).to_arrow())


def _without_not_null(schema: Schema) -> Schema:
    def nullable(part: dict[str, Any]) -> dict[str, Any]:
        return part | dict.fromkeys(part.keys() & {"nullable", "containsNull", "valueContainsNull"}, True)

    return Schema.from_json(json.dumps(json.loads(schema.to_json(), object_hook=nullable)))


class TableMaker:
    """Opens the table of a sink's options; makes it, or adds the columns that rows need.

    `opened`: the table as it was a moment ago. The first try of `ready` goes by it: where it has changed since, adding
    columns is refused, and so is the commit of files that do not fit any more.
    """

    def __init__(
        self, options: SinkOptions, opened: OpenTable | None = None, storage: StorageOptions | None = None
    ) -> None:
        """Reach the table by the options of the sink, or by other ones of `storage`."""
        assert options.delta is not None
        self._options, self._delta = options, options.delta
        self._uri, self._opened, self.storage = options.delta.uri, opened, storage or options.storage
        self._place = delta_uri(self._uri)

    def check_target(self) -> None:
        """Raise OptionError, within seconds, where the table can neither be opened nor made."""
        check_place("delta", self._uri, self.storage)
        try:
            if self.open(_SOON) is None:
                self.check_empty()
        except OSError as error:
            said = " ".join(re.sub(r"\x1b\[[0-9;]*m|\u21b3", "", str(error)).split())
            problem = (
                f"names {self._uri}, whose store does not serve us: {redact_text(said)}; mend its options, or wait"
            )
            raise OptionError("delta", problem) from None

    def open(self, limits: Mapping[str, str] = MappingProxyType({})) -> OpenTable | None:
        """Return the table as it is now; None where there is none. Raises OptionError."""
        access = self._access()
        try:
            handle = DeltaTable(self._place, storage_options=access and {**access, **limits})
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise OptionError(
                "delta", f"names {self._uri}, which cannot be opened: {redact_text(str(error))}"
            ) from error
        return OpenTable(self._uri, handle)

    def ready(self, schema: pa.Schema, patience: float) -> OpenTable:
        """Return the table with all columns of the rows. Raises OptionError."""
        columns = _nullable(schema)
        for attempt in tried_again(patience):
            with attempt:
                table = self._ready(columns)
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
        return table

    def _ready(self, columns: pa.Schema) -> OpenTable:
        table, self._opened = self._opened or self.open(), None
        is_new = table is None
        if table is None:
            self._create(columns)
            table = self._open_again()
        before = table.handle.version()
        if added := table.lacking(columns):  # also where another query has made it meanwhile
            fields = Schema.from_arrow(pa.schema(added)).fields
            table.handle.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=_ONCE))
            table = self._open_again()
        elif not is_new:
            return table
        table.sync_log(-1 if is_new else before)
        return table

    def _open_again(self) -> OpenTable:
        if (table := self.open()) is None:
            raise OptionError("delta", f"names {self._uri}, which has gone while the batch was planned")
        return table

    def _create(self, columns: pa.Schema) -> None:
        added_fields(self._uri, [], columns)  # names that no table can have
        check_partitioning(self._uri, columns, self._delta.partition_by, new=True)
        if not self.check_empty():
            return
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

    def check_empty(self) -> bool:
        """Raise OptionError where files of others are in the way of a table; return whether there is none meanwhile."""
        # files of others would be none of its own, and its `vacuum` deletes such
        filesystem, place = resolve(f"{self._uri}/any", self.storage)
        folder = pafs.FileSelector(place.rpartition("/")[0], allow_not_found=True)
        try:
            entries = filesystem.get_file_info(folder)
        except FileNotFoundError:  # another query has made it between the two calls of pyarrow
            entries = filesystem.get_file_info(folder)
        names = [entry.base_name for entry in entries]
        if other := next((name for name in sorted(names) if not name.startswith(("_", "."))), None):
            if self.open() is not None:
                return False  # another query has made the table meanwhile, and has written to it
            raise OptionError(
                "delta",
                f"names {self._uri}, which is no Delta table and holds {other!r}; name a table, or an empty folder",
            )
        return True

    def _access(self) -> dict[str, str] | None:
        return delta_storage_options(self._uri, self.storage) or None


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
