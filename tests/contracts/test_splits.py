"""The sink with `path`: a place that is not there is said before tasks begin, and else by the task that fails."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from queue_source.errors import ObjectStoreError, OptionError
from queue_source.options import parse_sink_options
from queue_source.sinks import splits
from queue_source.sinks.base import Sink, open_sink
from queue_source.sinks.splits import write_split
from support.servers.ministack import REGION, client, new_name

ROWS = [pa.record_batch({"id": [1]})]


def sink(path: str, **options: str) -> Sink:
    return open_sink(parse_sink_options({"path": path, "storeUrl": "sqlite:////store.db", "pipeline": "p", **options}))


def in_s3(path: str, url: str) -> Sink:
    keys = {"s3.accessKeyId": "test", "s3.secretAccessKey": "test", "s3.region": REGION}
    return sink(path, **{"s3.endpointUrl": url, **keys})


def test_a_bucket_that_is_missing_is_said_when_a_first_batch_is_planned(ministack_url: str) -> None:
    bucket = new_name("bucket")
    place = in_s3(f"s3://{bucket}/orders", ministack_url)
    with pytest.raises(OptionError, match=rf"option 'path': 's3://{bucket}/orders'.*s3://{bucket}/ does not exist"):
        place.check_place()
    client(ministack_url, "s3").create_bucket(Bucket=bucket)
    place.check_place()


def test_a_store_that_refuses_to_say_is_left_to_the_tasks() -> None:
    """Who may only write there has no right to ask."""
    in_s3("s3://bucket/orders", "http://127.0.0.1:1").check_place()


def test_a_folder_below_a_file_is_said_and_one_that_is_to_be_made_is_not(tmp_path: Path) -> None:
    sink(f"{tmp_path}/is/made/by/the/first/task").check_place()
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r"/file is a file; name a folder"):
        sink(f"file://{tmp_path}/file/out").check_place()
    with pytest.raises(OptionError, match=r"/file is a file; name a folder"):
        sink(f"{tmp_path}/file/out", load="json", schema="id BIGINT").check_place()
    assert not (tmp_path / "is").exists()


def test_a_task_that_cannot_write_says_what_it_was_writing(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    batches = iter([*ROWS])
    with pytest.raises(ObjectStoreError, match=rf"{tmp_path}/out.*cannot be written: .*nothing of this batch"):
        write_split(batches, ROWS[0].schema, f"{tmp_path}/out", "long" * 100, "zstd")


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_the_file_of_a_task_that_fails_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others who read the folder see it (docs/reference/sinks.md): one without a footer would end their query."""
    monkeypatch.setattr(splits, "GROUP_BYTES", 1)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from ROWS
        raise RuntimeError("the source of the rows has failed")

    with pytest.raises(RuntimeError, match="has failed"):
        write_split(batches(), ROWS[0].schema, f"{tmp_path}/out", "split", "zstd")
    gc.collect()
    (left,) = (tmp_path / "out").iterdir()
    assert pq.read_table(left).to_pylist() == [{"id": 1}]


def test_a_file_is_flushed_to_disk_as_a_whole_with_its_name_before_a_commit_can_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[tuple[int, int]] = set()

    def fsync(descriptor: int) -> None:
        state = os.fstat(descriptor)
        flushed.add((state.st_ino, state.st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    (split,) = write_split(ROWS, ROWS[0].schema, f"{tmp_path}/out", "split", "zstd")
    file = Path(split.path)
    assert {(place.stat().st_ino, place.stat().st_size) for place in (file, file.parent)} <= flushed
