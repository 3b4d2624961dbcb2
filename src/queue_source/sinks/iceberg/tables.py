"""Makes and changes tables, before their files are written, in a transaction of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tenacity
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.name_mapping import NameMapping

from queue_source.errors import OptionError
from queue_source.options import SinkOptions
from queue_source.sinks.iceberg.catalogs import CatalogFactory, load_table
from queue_source.sinks.iceberg.name_mapping import completed
from queue_source.sinks.iceberg.partitions import check_spec, partition_spec
from queue_source.sinks.iceberg.schemas import united
from shard_store.sql.transaction import Transaction
from shard_store.store import ShardStore

_NEW_TABLE = {
    # each micro-batch adds a manifest and a metadata file: neither may grow without limit
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
}
_KEEPS_FILES = {"gc.enabled": "false"}
"""Of a new table whose files are a user's own objects: engines that would delete them ask this first."""


@dataclass(frozen=True, slots=True)
class Target:
    """What tasks need to know of the table: its metadata without history, and how to reach its files."""

    metadata: str
    io_properties: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, table: Table) -> Target:
        history: dict[str, Any] = {
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "current_snapshot_id": None,
            "statistics": [],
            "partition_statistics": [],
        }
        return cls(table.metadata.model_copy(update=history).model_dump_json(), dict(table.io.properties))

    def read(self) -> tuple[TableMetadata, FileIO]:
        metadata = TableMetadataUtil.parse_raw(self.metadata)
        return metadata, load_file_io(dict(self.io_properties), metadata.location)


class TableMaker:
    """Makes the table of a sink's options, and adds the columns that rows need.

    `by_name`: some of its files have no field ids, so readers need a name mapping that has each column.
    """

    def __init__(self, options: SinkOptions, *, by_name: bool = False) -> None:
        assert options.table is not None
        self._options, self._table, self._by_name = options, options.table, by_name
        self._factory = CatalogFactory(options.table, options.storage)

    def mapped(self, store: ShardStore) -> Table | None:
        """Return the table, if it exists, with the name mapping that its readers need."""
        return None if store.database.read(self.find_inside) is None else self.ready(store, None)

    def ready(self, store: ShardStore, columns: Schema | None) -> Table:
        """Return the table with all of the columns, at least as wide. Raises OptionError."""

        def find_ready(transaction: Transaction) -> Table | None:
            table = self.find_inside(transaction)
            return None if table is None or self._evolve(table, columns, commit=False) else table

        def make(transaction: Transaction) -> Table:
            with self._factory.installing(transaction):
                catalog = self._factory.open(transaction)
                try:
                    table = load_table(catalog, self._table.name)
                except NoSuchTableError:
                    if columns is None:
                        raise
                    table = self._create(catalog, columns)
                self._evolve(table, columns, commit=True)
                return table

        database = store.database
        table = database.read(find_ready) or tried_again(database.patience)(lambda: database.write(make))
        check_spec(self._table.name, table.schema(), table.spec(), self._table.partition_by)
        return table

    def check_place(self) -> None:
        """Raise OptionError when no option says where a new table is."""
        if self._factory.in_store and self._table.warehouse is None:
            raise OptionError(
                "warehouse", f"is required to make the table {self._table.name}: name the folder for its files"
            )

    def find_inside(self, transaction: Transaction) -> Table | None:
        if not self._factory.installed(transaction):
            return None
        try:
            return load_table(self._factory.open(transaction), self._table.name)
        except NoSuchTableError:
            return None

    def _create(self, catalog: Catalog, columns: Schema) -> Table:
        name = self._table.name
        self.check_place()
        united(name, Schema(), columns)  # names that differ in case alone
        parts = name.split(".")
        for depth in range(1, len(parts)):  # the outermost namespace first
            catalog.create_namespace_if_not_exists(".".join(parts[:depth]))
        properties = {**_NEW_TABLE, TableProperties.PARQUET_COMPRESSION: self._options.compression}
        if self._by_name:
            properties |= _KEEPS_FILES
        spec = partition_spec(columns, self._table.partition_by)
        return catalog.create_table(name, columns, partition_spec=spec, properties=properties)

    def _evolve(self, table: Table, columns: Schema | None, *, commit: bool) -> bool:
        """Tell whether the rows need other columns than the table has; with `commit` add these."""
        transaction = table.transaction()
        if columns is not None:
            with transaction.update_schema() as update:
                update.union_by_name(united(self._table.name, table.schema(), columns))
        changed = transaction.table_metadata.schema() != table.schema()
        if self._by_name and (mapping := missing_mapping(transaction.table_metadata)) is not None:
            transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping.model_dump_json()})
            changed = True
        if changed and commit:
            transaction.commit_transaction()
        return changed


def missing_mapping(metadata: TableMetadata) -> NameMapping | None:
    """Return the name mapping that the table should have; None where it has it."""
    mapped = metadata.name_mapping()
    whole = completed(metadata.schema().fields, mapped)
    return None if mapped is not None and list(mapped) == whole else NameMapping(whole)


def tried_again(patience: float) -> tenacity.Retrying:
    """Retry a commit: other writers of the table may be first; then all is rolled back and repeated after theirs."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((CommitFailedException, TableAlreadyExistsError)),
        wait=tenacity.wait_random_exponential(multiplier=0.02, max=2.0),
        stop=tenacity.stop_after_delay(patience),
        reraise=True,
    )
