"""Which data files a table has: from its manifests, of which each is read once."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table

from queue_source.sinks.iceberg.candidates import same_place

_THREADS = 8


class KnownFiles:
    """Manifests never change: what was not in one is not in it when the table is looked at again."""

    def __init__(self) -> None:
        self._without: set[str] = set()

    def among(self, table: Table, places: Collection[str]) -> set[str]:
        """Those of `places` (`same_place`) that are data files of the table now. Ask for the same or fewer later."""
        snapshot = table.current_snapshot()
        if snapshot is None or not places:
            return set()
        manifests = [
            manifest
            for manifest in snapshot.manifests(table.io)
            if manifest.content == ManifestContent.DATA and manifest.manifest_path not in self._without
        ]
        found: set[str] = set()
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="cuesqueue-manifests") as threads:
            for manifest, names in zip(
                manifests, threads.map(lambda one: _among(table.io, one, places), manifests), strict=True
            ):
                found |= names
                if not names:
                    self._without.add(manifest.manifest_path)
        return found


def _among(io: FileIO, manifest: ManifestFile, places: Collection[str]) -> set[str]:
    names = (same_place(entry.data_file.file_path) for entry in manifest.fetch_manifest_entry(io))
    return {name for name in names if name in places}
