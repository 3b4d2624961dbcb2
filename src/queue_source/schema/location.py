"""`schemaLocation`: a folder with inferred schemas, `_schemas/VERSION-HASH.json`, never overwritten.

The store only has to write an object whole, and there may be several writers: a file's name identifies its content (the
hash is of its columns), so writing it twice is writing it once; and the kept columns are all columns of all versions,
each in its first type or in a wider one, so no driver removes what another added.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce

import pyarrow as pa
from pyarrow import fs as pafs

from queue_source.errors import ObjectStoreError, OptionError
from queue_source.options.connections import StorageOptions
from queue_source.schema.ddl import format_columns, parse_columns
from queue_source.schema.merging import news, widened
from queue_source.storage.files import is_local, resolve
from shard_store.redaction import redact_text

_FOLDER = "_schemas"
_NAME = re.compile(r"([0-9]{1,9})-[0-9a-f]{12}\.json")
_FORM = "cuesqueue schema 1"


@dataclass(frozen=True, slots=True)
class Recorded:
    """The content of a location: the number of its newest version, and the columns of all versions."""

    version: int
    schema: pa.Schema


class SchemaLocation:
    """The versions of one location. Driver and executors all need access to it."""

    def __init__(self, uri: str, storage: StorageOptions) -> None:
        self._uri = uri
        self._folder = f"{uri}/{_FOLDER}"
        self._storage = storage

    def latest(self) -> Recorded | None:
        """Return the kept schema; None if there is none. Raises OptionError for a file without a schema."""
        filesystem, folder = resolve(self._folder, self._storage)
        with self._mapped(self._folder):
            try:
                infos = filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
            except FileNotFoundError:  # another driver made it between pyarrow's two requests
                infos = filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
        numbers = {info.base_name: int(name[1]) for info in infos if (name := _NAME.fullmatch(info.base_name))}
        if not numbers:
            return None
        names = sorted(numbers, key=lambda name: (numbers[name], name))
        versions = [self._read(filesystem, folder, name) for name in names]
        return Recorded(numbers[names[-1]], reduce(partial(widened, types=True), versions))

    def record(self, schema: pa.Schema, *, types: bool = False) -> Recorded:
        """Keep the columns that are not kept yet, in a next version; idempotent, and safe for any number of callers.

        `types`: whether to keep wider types, too.
        """
        latest = self.latest()
        if latest is not None:
            schema = widened(latest.schema, schema, types=types)
            if not news(latest.schema, schema):
                return latest
        version = 0 if latest is None else latest.version + 1
        self._write(version, schema)
        return self.latest() or Recorded(version, schema)

    def _write(self, version: int, schema: pa.Schema) -> None:
        columns = [format_columns([field]) for field in schema]
        text = json.dumps({"form": _FORM, "columns": columns}, ensure_ascii=False, indent=1)
        name = f"{version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
        filesystem, folder = resolve(self._folder, self._storage)
        with self._mapped(f"{self._folder}/{name}"):
            if not is_local(self._folder):  # an object exists only when it is complete
                with filesystem.open_output_stream(f"{folder}/{name}") as stream:
                    stream.write(text.encode())
                return
            filesystem.create_dir(folder, recursive=True)
            draft = f"{folder}/.{name}.{uuid.uuid4().hex}"
            with filesystem.open_output_stream(draft) as stream:
                stream.write(text.encode())
            filesystem.move(draft, f"{folder}/{name}")

    def _read(self, filesystem: pafs.FileSystem, folder: str, name: str) -> pa.Schema:
        with self._mapped(f"{self._folder}/{name}"), filesystem.open_input_stream(f"{folder}/{name}") as stream:
            data = stream.read()
        try:
            held = json.loads(data)
            if held["form"] != _FORM:
                raise ValueError(f"it is of the form {held['form']!r}, and this version reads {_FORM!r}")
            return parse_columns(", ".join(held["columns"]))
        except (ValueError, KeyError, TypeError) as error:
            raise OptionError(
                "schemaLocation", f"{self._folder}/{name} holds no schema ({error}); remove it, or name another folder"
            ) from error

    @contextmanager
    def _mapped(self, uri: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, NotImplementedError) as error:
            raise ObjectStoreError(
                f"schemaLocation: {uri!r} cannot be read or written: {redact_text(str(error))}"
            ) from None
