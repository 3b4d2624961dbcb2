"""A REST catalog of Iceberg tables: the part of the protocol that a writer needs, over PyIceberg's SQL catalog."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, Table

_CODES: dict[type[Exception], int] = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


class Refused(Exception):
    """A commit does not take place; `code` is the status of the answer."""

    def __init__(self, code: int) -> None:
        super().__init__(f"refused with {code}")
        self.code = code


class RestCatalogServer:
    """One catalog at `url`. `lose_answers`: so many commits take place, and are answered with an error.

    `refusals`: codes with which the next commits are refused, one after the other.
    """

    def __init__(self, catalog: SqlCatalog) -> None:
        self.catalog = catalog
        self.lose_answers = 0
        self.refusals: list[int] = []
        self._one = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="iceberg-rest")
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        parts = path.partition("?")[0].strip("/").split("/")[1:]  # without v1
        match (method, parts):
            case ("GET", ["config"]):
                return {"defaults": {}, "overrides": {}}
            case ("POST", ["namespaces"]):
                namespace = json.loads(body)["namespace"]
                self.catalog.create_namespace(tuple(namespace))
                return {"namespace": namespace, "properties": {}}
            case ("POST", ["namespaces", namespace, "tables"]):
                return self._loaded(self._create((*namespace.split("\x1f"),), body))
            case ("GET", ["namespaces", namespace, "tables", name]):
                return self._loaded(self.catalog.load_table((*namespace.split("\x1f"), name)))
            case ("POST", ["namespaces", namespace, "tables", name]):
                if self.refusals:
                    raise Refused(self.refusals.pop(0))
                request = CommitTableRequest.model_validate_json(body)
                table = self.catalog.load_table((*namespace.split("\x1f"), name))
                done = self.catalog.commit_table(table, request.requirements, request.updates)
                if self.lose_answers:
                    self.lose_answers -= 1
                    raise TimeoutError("the commit took place, and nobody is told")
                return json.loads(done.model_dump_json(by_alias=True))  # type: ignore[no-any-return]
        raise LookupError(f"{method} {path} is not spoken here")

    def _create(self, namespace: tuple[str, ...], body: bytes) -> Table:
        request = CreateTableRequest.model_validate({"location": None, **json.loads(body)})
        return self.catalog.create_table(
            (*namespace, request.name),
            request.table_schema,
            location=request.location,
            partition_spec=request.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            properties=request.properties,
        )

    @staticmethod
    def _loaded(table: Table) -> dict[str, Any]:
        return {"metadata-location": table.metadata_location, "metadata": json.loads(table.metadata.model_dump_json())}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._serve("GET")

            def do_POST(self) -> None:
                self._serve("POST")

            def _serve(self, method: str) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                try:
                    with server._one:
                        code, said = 200, server.answer(method, self.path, body)
                except Exception as error:  # noqa: BLE001 -- whatever it is, the client is told
                    code = error.code if isinstance(error, Refused) else _CODES.get(type(error), 500)
                    told = {"message": str(error), "type": type(error).__name__, "code": code}
                    said = {"error": told}
                data = json.dumps(said).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


@contextmanager
def rest_catalog_server(uri: str, warehouse: str) -> Iterator[RestCatalogServer]:
    """A server whose catalog is kept in the SQLAlchemy database `uri`."""
    catalog = SqlCatalog("behind-rest", uri=uri, warehouse=warehouse)
    server = RestCatalogServer(catalog)
    try:
        yield server
    finally:
        server.close()
        catalog.close()
