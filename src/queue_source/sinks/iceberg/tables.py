"""Iceberg catalogs and tables: how they are opened and made, and their snapshots as the mark of a batch reads them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, cast

import pyarrow.fs as pafs
import sqlalchemy as sa
import tenacity
from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog, SqlCatalogBaseTable
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import PY_IO_IMPL, FileIO, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.transforms import UnknownTransform
from pyiceberg.typedef import EMPTY_DICT, Properties
from sqlalchemy.engine import Connection

from queue_source.errors import CuesqueueError, OptionError
from queue_source.options import AzureOptions, SinkOptions, StorageOptions, TableOptions
from queue_source.sinks.iceberg.files import check_spec, partition_spec
from queue_source.sinks.iceberg.schemas import completed, united
from queue_source.storage.files import resolve
from shard_store.sql.database import Transaction
from shard_store.sql.install import schema_lock
from shard_store.store import ShardStore

_STORAGE = "cuesqueue.storage."
_AZURE = "azure."
_NEWEST_FORMAT = 2
_NAMES_CODE = "impl"  # `py-io-impl`, `write.py-location-provider.impl`


class CatalogFactory:
    """Opens the catalog of a table: in the store's database unless the options describe another one."""

    def __init__(self, options: TableOptions, storage: StorageOptions) -> None:
        self._options = options
        self.in_store = not options.properties
        self._properties = {name: value.reveal() for name, value in options.properties.items()}
        if options.warehouse is not None:
            place = options.warehouse  # other engines expect a URI in metadata
            self._properties["warehouse"] = f"file://{place}" if place.startswith("/") else place
        if self.in_store or storage != StorageOptions():  # another catalog may grant access to files by itself
            self._properties |= file_properties(storage)

    def open(self, transaction: Transaction) -> Catalog:
        """Open the catalog; the one in the store's database reads and writes in this transaction."""
        if self.in_store:
            return StoreCatalog(self._options.catalog, transaction.connection, self._properties)
        return load_catalog(self._options.catalog, **self._properties)

    def sweep(self, catalog: Catalog) -> None:
        """Delete files that a catalog of `open` has left for after its transaction; others delete by themselves."""
        if self.in_store:
            cast(StoreCatalog, catalog).sweep()

    def installed(self, transaction: Transaction) -> bool:
        return not self.in_store or sa.inspect(transaction.connection).has_table(IcebergTables.__tablename__)

    @contextmanager
    def installing(self, transaction: Transaction) -> Any:
        """Hold the lock under which one process at a time makes tables; the catalog's own tables exist inside."""
        if not self.in_store:
            yield
            return
        with schema_lock(transaction):
            SqlCatalogBaseTable.metadata.create_all(transaction.connection, checkfirst=True)
            yield


def load_table(catalog: Catalog, name: str) -> Table:
    """Load the table. Refuses properties that make PyIceberg import code: any writer of the table may set them."""
    table = catalog.load_table(name)
    if code := next((name for name in table.properties if name.endswith(_NAMES_CODE)), None):
        raise CuesqueueError(f"the table {name!r} has the property {code!r}, which names Python code; remove it there")
    return table


def check_kept(name: str, metadata: TableMetadata) -> None:
    """Raise OptionError for a table that PyIceberg cannot write to, or whose readers would fail at what it writes."""
    columns, why = index_by_id(metadata.schema()), None
    if metadata.format_version > _NEWEST_FORMAT:
        why = f"is of version {metadata.format_version} of Iceberg's format"
    for part in metadata.spec().fields:
        if isinstance(part.transform, UnknownTransform):
            why = f"has a partition field {part.name!r} of an unknown kind"
        elif part.source_id not in columns:
            why = f"has a partition field {part.name!r} of a column that was dropped"
    if why is not None:
        raise OptionError("table", f"names {name}, which {why}: PyIceberg cannot write to it; name another table")


class StoreCatalog(SqlCatalog):
    """PyIceberg's SQL catalog inside a transaction that its caller commits."""

    def __init__(self, name: str, connection: Connection, properties: Properties) -> None:
        MetastoreCatalog.__init__(self, name, **properties)  # not SqlCatalog's: it makes an engine of its own
        self.engine = connection  # type: ignore[assignment] # sessions on a connection leave its transaction open
        columns = sa.inspect(connection).get_columns(IcebergTables.__tablename__)
        self._schema_version = "v1" if any(c["name"] == "iceberg_type" for c in columns) else "v0"
        self._superseded: list[tuple[FileIO, TableMetadata, TableMetadata]] = []

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        """Open our own FileIO; PyIceberg would import the one that the table's own properties name."""
        own = {name: value for name, value in properties.items() if not name.endswith(_NAMES_CODE)}
        return super()._load_file_io(own, location)

    def _delete_old_metadata(  # type: ignore[override] # static there, and called on the catalog
        self, io: FileIO, base: TableMetadata, metadata: TableMetadata
    ) -> None:
        """Remember old metadata files for `sweep`.

        PyIceberg would delete them now, and the commit may still be rolled back.
        """
        self._superseded.append((io, base, metadata))

    def sweep(self) -> None:
        """Delete metadata files that the table's properties no longer keep.

        Call it after the transaction is committed.
        """
        for io, base, metadata in self._superseded:
            SqlCatalog._delete_old_metadata(io, base, metadata)
        self._superseded.clear()

    def close(self) -> None:
        """Do nothing: the connection belongs to its transaction."""


class StorageFileIO(PyArrowFileIO):
    """PyIceberg's files on our file systems: the same endpoints, keys and roles as everywhere else here."""

    def __init__(self, properties: Properties) -> None:
        super().__init__(properties)
        local = self.fs_by_scheme  # PyIceberg's local file system creates folders
        storage = storage_of(properties)

        def file_system(scheme: str, place: str | None) -> pafs.FileSystem:
            return local(scheme, place) if scheme == "file" else resolve(f"{scheme}://{place}/any", storage)[0]

        self.fs_by_scheme = file_system


def file_properties(storage: StorageOptions) -> dict[str, str]:
    """Return the storage options as properties of a catalog, whose values are text; `storage_of` reads them."""
    values = {field.name: getattr(storage, field.name) for field in fields(storage)}
    azure = {f"{_AZURE}{field.name}": getattr(storage.azure, field.name) for field in fields(storage.azure)}
    azure[f"{_AZURE}domains"] = ",".join(storage.azure.domains)
    named = {f"{_STORAGE}{name}": str(value) for name, value in (values | azure | {"azure": None}).items() if value}
    return {PY_IO_IMPL: f"{StorageFileIO.__module__}.{StorageFileIO.__qualname__}", **named}


def storage_of(properties: Properties) -> StorageOptions:
    values = {name[len(_STORAGE) :]: value for name, value in properties.items() if name.startswith(_STORAGE)}
    azure = {name[len(_AZURE) :]: values.pop(name) for name in list(values) if name.startswith(_AZURE)}
    azure["domains"] = tuple(filter(None, azure.get("domains", "").split(",")))
    return StorageOptions(**{**values, "anonymous": bool(values.get("anonymous")), "azure": AzureOptions(**azure)})


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
        check_kept(self._table.name, table.metadata)
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
    whole = completed(metadata.schema().fields, mapped or ())
    return None if mapped is not None and list(mapped) == whole else NameMapping(whole)


def tried_again(patience: float) -> tenacity.Retrying:
    """Retry a commit: other writers of the table may be first; then all is rolled back and repeated after theirs."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((CommitFailedException, TableAlreadyExistsError)),
        wait=tenacity.wait_random_exponential(multiplier=0.02, max=2.0),
        stop=tenacity.stop_after_delay(patience),
        reraise=True,
    )
