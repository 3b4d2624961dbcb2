"""Catalogs: the one in the store's database, which is part of its transactions, and any other of PyIceberg."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import fields
from typing import Any, cast

import pyarrow.fs as pafs
import sqlalchemy as sa
from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog, SqlCatalogBaseTable
from pyiceberg.io import PY_IO_IMPL, FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import EMPTY_DICT, Properties
from sqlalchemy.engine import Connection

from queue_source.errors import CuesqueueError
from queue_source.options import AzureOptions, StorageOptions, TableOptions
from queue_source.storage.files import resolve
from shard_store.sql.install import schema_lock
from shard_store.sql.transaction import Transaction

_STORAGE = "cuesqueue.storage."
_AZURE = "azure."
_NAMES_CODE = "impl"  # `py-io-impl`, `write.py-location-provider.impl`


class CatalogFactory:
    """Opens the catalog of a table: in the store's database unless the options describe another one."""

    def __init__(self, options: TableOptions, storage: StorageOptions) -> None:
        self._options = options
        self.in_store = not options.properties
        self._properties = {name: value.reveal() for name, value in options.properties.items()}
        if options.warehouse is not None:
            self._properties["warehouse"] = _as_uri(options.warehouse)
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


def _as_uri(folder: str) -> str:
    """Return a local folder as the URI that other engines expect in metadata."""
    return f"file://{folder}" if folder.startswith("/") else folder
