"""Contract: vacuum removes split files that no transaction published, and never one that a store knows."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from queue_source.commands import vacuum as vacuuming
from queue_source.commands.main import app
from queue_source.commands.vacuum import VacuumResult, vacuum
from queue_source.errors import BadObject, ObjectStoreError, OptionError
from queue_source.options.connections import StorageOptions
from shard_store.errors import StoreConfigurationError
from shard_store.model import Split
from shard_store.sql.schema import sources
from shard_store.store import ShardStore, open_store
from shard_store.upkeep.pruning import RetentionPolicy
from support.servers.gcs import VARIABLE, GcsServer
from support.servers.ministack import client, new_name
from support.store_backends import Pipeline, StoreBackend

DAY = timedelta(days=1)
IN_A_MOMENT = timedelta(minutes=-1)
"""Also files of this very second are old enough."""
NAMES = [f"split-{number:012x}-{number:032x}.parquet" for number in range(4)]


def split(folder: Path, *, days: float = 3) -> Path:
    """A file of the sink's, written so many days ago."""
    file = folder / f"split-{uuid.uuid4().hex[:12]}-{uuid.uuid4().hex}.parquet"
    file.write_bytes(b"rows")
    changed = time.time() - days * 86400
    os.utime(file, (changed, changed))
    return file


def publish(store: ShardStore, *paths: object) -> Pipeline:
    us = Pipeline.start(store, f"p{uuid.uuid4().hex}")
    us.publish(us.planned("a"), *(Split(str(path), 1, 4) for path in paths))
    us.confirm()
    return us


def test_a_store_that_a_source_has_left_removes_nothing(store: ShardStore, tmp_path: Path) -> None:
    """By version 0.3: what the source has published since is known in another store."""
    file = split(tmp_path)
    source = publish(store, split(tmp_path)).source
    with store.database.engine.begin() as connection:
        connection.execute(sources.update().values(moved_to="sqlite:///other.db"))
    with pytest.raises(OptionError, match=f"source {source!r} was moved .* name that one"):
        vacuum(store, str(tmp_path), older_than=DAY)
    with pytest.raises(StoreConfigurationError, match=r"was moved from .* to the store sqlite:///other\.db"):
        Pipeline.start(store, "new", source)
    assert file.exists()


def test_what_no_transaction_published_is_removed_and_all_else_stays(store: ShardStore, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    published, orphans, young = (
        [split(folder) for _ in range(3)],
        [split(folder) for _ in range(2)],
        split(folder, days=0.5),
    )
    publish(store, *published)
    others = [folder / name for name in ("split-of-mine.parquet", "_SUCCESS", f"{orphans[0].name}.crc", "sub")]
    for other in others[:3]:
        other.write_bytes(b"")
        os.utime(other, (0, 0))
    others[3].mkdir()
    nested = split(others[3])
    expected = VacuumResult(files=6, published=3, too_young=1, removed=2, bytes=8)
    assert vacuum(store, str(folder), older_than=DAY, dry_run=True) == expected
    assert all(file.exists() for file in orphans)
    assert vacuum(store, str(folder), older_than=DAY) == expected
    assert set(folder.iterdir()) == {*published, young, *others}
    assert nested.exists()
    assert vacuum(store, str(folder), older_than=DAY).removed == 0


def test_a_published_file_stays_however_old_it_is_and_however_its_folder_is_named(
    backend: StoreBackend, tmp_path: Path
) -> None:
    store = backend.open()
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    kept, orphan = split(tmp_path / "out", days=400), split(tmp_path / "out", days=400)
    publish(store, (tmp_path / "link" / kept.name).as_uri())
    backend.clock.advance(400 * 86400)
    store.prune(RetentionPolicy(timedelta(days=30)))
    for name in (f"{tmp_path}/out/", f"file://{tmp_path}/link", f"{tmp_path}/./out"):
        vacuum(store, name, older_than=DAY)
        assert (kept.exists(), orphan.exists()) == (True, False)


def test_a_folder_of_another_store_is_refused(store: ShardStore, tmp_path: Path) -> None:
    files = [split(tmp_path) for _ in range(2)]
    publish(store, "/elsewhere/split-1.parquet")
    with pytest.raises(OptionError, match="none of the 2 split files"):
        vacuum(store, str(tmp_path), older_than=DAY)
    assert all(file.exists() for file in files)


def test_a_folder_with_nothing_in_it_is_fine_and_one_that_is_not_there_is_not(
    store: ShardStore, tmp_path: Path
) -> None:
    assert vacuum(store, str(tmp_path), older_than=DAY) == VacuumResult()
    with pytest.raises(BadObject, match="nowhere"):
        vacuum(store, f"{tmp_path}/nowhere", older_than=DAY)


def test_files_are_compared_page_by_page(store: ShardStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuuming, "_PAGE", 7)
    files = [split(tmp_path) for _ in range(25)]
    publish(store, *files[::5])
    pages: list[int] = []
    assert vacuum(store, str(tmp_path), older_than=DAY, progress=pages.append).removed == 20
    assert pages == [7, 14, 21, 25]
    assert sorted(tmp_path.glob("split-*")) == sorted(files[::5])


# --- object stores, and the command: one kind of database will do ---


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[ShardStore]:
    with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield store


def test_files_in_s3_are_removed(sqlite_store: ShardStore, ministack_url: str) -> None:
    bucket = new_name("bucket")
    s3 = client(ministack_url, "s3")
    s3.create_bucket(Bucket=bucket)
    for name in (*NAMES, "other.parquet"):
        s3.put_object(Bucket=bucket, Key=f"out/{name}", Body=b"rows")
    publish(sqlite_store, f"s3a://{bucket}/out/{NAMES[0]}")
    storage = StorageOptions(ministack_url, "us-east-1", "test", "test")
    assert vacuum(sqlite_store, f"s3://{bucket}/out", older_than=DAY, storage=storage).too_young == 3
    result = vacuum(sqlite_store, f"s3://{bucket}/out", older_than=IN_A_MOMENT, storage=storage)
    assert result == VacuumResult(files=4, published=1, removed=3, bytes=12)
    left = {found["Key"] for found in s3.list_objects_v2(Bucket=bucket)["Contents"]}
    assert left - {"out/"} == {"out/other.parquet", f"out/{NAMES[0]}"}  # pyarrow keeps the folder, as an empty object
    with pytest.raises((BadObject, ObjectStoreError)):
        vacuum(sqlite_store, f"s3://{bucket}-not/out", older_than=DAY, storage=storage)
    s3.close()


def test_files_in_google_cloud_storage_are_removed(
    sqlite_store: ShardStore, gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, gcs_server.url)
    gcs_server.create_bucket("vacuum")
    for name in NAMES:
        gcs_server.put("vacuum", f"out/{name}", b"rows")
    publish(sqlite_store, f"gs://vacuum/out/{NAMES[0]}")
    result = vacuum(sqlite_store, "gs://vacuum/out", older_than=IN_A_MOMENT, storage=StorageOptions(anonymous=True))
    assert result == VacuumResult(files=4, published=1, removed=3, bytes=12)


def test_the_command_counts_and_removes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    folder = tmp_path / "out"
    folder.mkdir()
    with open_store(url) as store:
        publish(store, split(folder))
    orphan, young = split(folder), split(folder, days=1)
    for arguments, left in ((["--dry-run"], True), ([], False)):
        done = CliRunner().invoke(app, ["vacuum", "--store", url, "--path", str(folder), "--json", *arguments])
        assert done.exit_code == 0, done.output
        counts = {"files": 3, "published": 1, "announced": 0, "too_young": 1, "removed": 1, "bytes": 4}
        assert json.loads(done.stdout) == {**counts, "staged_messages": 0, "staged_removed": 0, "dry_run": left}
        assert (orphan.exists(), young.exists()) == (left, True)
    for wrong in (["--older-than", "soon"], ["--path", str(tmp_path / "nowhere")]):
        done = CliRunner().invoke(app, ["vacuum", "--store", url, "--path", str(folder), *wrong])
        assert (done.exit_code, done.stdout) == (2 if "soon" in wrong else 1, "")
