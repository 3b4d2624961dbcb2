"""Tells which data files a table has, from its manifests, each of which is read once."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table

from queue_source.sinks.iceberg.registering.candidates import same_place

_THREADS = 8


class KnownFiles:
    """The places known from manifests. Manifests never change: an absent place stays absent."""

    def __init__(self) -> None:
        self._without: set[str] = set()

    def among(self, table: Table, places: Collection[str]) -> set[str]:
        """Return those of `places` (`same_place`) that are data files of the table now.

        Later calls may ask for the same places or fewer.
        """
        snapshot = table.current_snapshot()
        if snapshot is None or not places:
            return set()
        manifests = [
            manifest
            for manifest in snapshot.manifests(table.io)
            if manifest.content == ManifestContent.DATA and manifest.manifest_path not in self._without
        ]
        known_places: set[str] = set()
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="cuesqueue-manifests") as threads:
            for manifest, names in zip(
                manifests, threads.map(lambda manifest: _among(table.io, manifest, places), manifests), strict=True
            ):
                known_places |= names
                if not names:
                    self._without.add(manifest.manifest_path)
        return known_places


def _among(io: FileIO, manifest: ManifestFile, places: Collection[str]) -> set[str]:
    names = (same_place(entry.data_file.file_path) for entry in manifest.fetch_manifest_entry(io))
    return {name for name in names if name in places}
