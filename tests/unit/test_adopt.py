"""`cuesqueue adopt`: what a checkpoint of Spark's file source says was read. A real one: `engine/test_adopt.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from queue_source.commands.adopt import AdoptResult, adopt, adopt_list
from queue_source.commands.main import app
from queue_source.errors import OptionError
from shard_store.store import ShardStore, open_store
from support.store_backends import Pipeline, rows


def log(folder: Path, name: str, *lines: object, version: str = "v1") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join([version, *(json.dumps(line) for line in lines)]))
    (folder / f".{name}.crc").write_bytes(b"checksum")


def entry(path: str, batch: int) -> dict[str, Any]:
    return {"path": path, "timestamp": 1_700_000_000_000, "batchId": batch}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Three batches: the first two are compacted, and the older files are still there."""
    folder = tmp_path / "checkpoint"
    first = [entry("file:///in/a.json", 0), entry("file:///in/b%20c%2525+%C3%A9.json", 0)]
    second = [entry("s3a://bucket/in/d%20e.json", 1)]
    log(folder / "sources/0", "0", *first)
    log(folder / "sources/0", "1.compact", *first, *second)
    log(folder / "sources/0", "2", entry("file:///in/f.json", 2))
    for batch in range(3):
        log(folder / "offsets", str(batch), {"batchWatermarkMs": 0}, {"logOffset": batch})
        log(folder / "commits", str(batch), {"nextBatchWatermarkMs": 0})
    return folder


EXPECTED = {"file:///in/a.json", "file:///in/b c%25+é.json", "s3://bucket/in/d e.json", "file:///in/f.json"}


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def test_all_that_was_read_is_finished_and_nothing_changes_when_it_is_run_again(
    store: ShardStore, checkpoint: Path
) -> None:
    assert adopt(store, "s", str(checkpoint)) == AdoptResult(files=4, new=4)
    assert {row["shard_id"] for row in rows(store, "shards")} == EXPECTED
    assert {row["state"] for row in rows(store, "shards")} == {"done"}
    assert adopt(store, "s", str(checkpoint)) == AdoptResult(files=4, new=0)
    assert adopt(None, "s", str(checkpoint)) == AdoptResult(files=4)
    us = Pipeline.start(store)
    assert {shard.state.value for shard in us.open(*EXPECTED).values()} == {"done"}


def test_what_the_store_knows_stays_as_it_is(store: ShardStore, checkpoint: Path) -> None:
    Pipeline.start(store).open("file:///in/a.json")
    assert adopt(store, "s", str(checkpoint)).new == 3
    assert {row["shard_id"] for row in rows(store, "shards") if row["state"] == "open"} == {"file:///in/a.json"}


def test_a_batch_that_has_not_ended_is_refused(store: ShardStore, checkpoint: Path) -> None:
    log(checkpoint / "sources/0", "3", entry("file:///in/g.json", 3))
    log(checkpoint / "offsets", "3", {}, {"logOffset": 3})
    with pytest.raises(OptionError, match="micro-batch 3 has begun and not ended"):
        adopt(store, "s", str(checkpoint))
    assert rows(store, "shards") == []


def test_what_was_found_and_belongs_to_no_batch_is_not_taken_over(store: ShardStore, checkpoint: Path) -> None:
    """Spark writes the log of the source before it writes the offset."""
    log(checkpoint / "sources/0", "3", entry("file:///in/g.json", 3))
    assert adopt(store, "s", str(checkpoint)).files == 4


def test_one_of_several_sources_is_chosen_by_its_number(store: ShardStore, checkpoint: Path) -> None:
    log(checkpoint / "sources/1", "0", entry("file:///other/h.json", 0))
    log(checkpoint / "offsets", "2", {}, {"logOffset": 2}, {"logOffset": 0})
    assert adopt(store, "s", str(checkpoint), stream=1) == AdoptResult(files=1, new=1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda folder: (folder / "offsets").rename(folder / "moved"), "it has no offsets"),
        (lambda folder: (folder / "commits").rename(folder / "moved"), "has begun and not ended"),
        (lambda folder: (folder / "sources").rename(folder / "moved"), "there is no log in sources/0"),
        (lambda folder: log(folder / "offsets", "2", {}, {"topic": {"0": 5}}), "is no folder of files"),
        (lambda folder: log(folder / "offsets", "2", {}), "is no folder of files"),
        (lambda folder: log(folder / "sources/0", "2", {"other": 1}), "is no entry of a log"),
        (lambda folder: log(folder / "sources/0", "2", ["a"]), "is no entry of a log"),
        (lambda folder: log(folder / "sources/0", "2", entry("no uri", 2)), "is no entry of a log"),
        (lambda folder: log(folder / "sources/0", "2", version="hello"), "does not begin with the version"),
    ],
)
def test_what_is_no_checkpoint_of_a_folder_is_refused(
    store: ShardStore, checkpoint: Path, change: Any, says: str
) -> None:
    change(checkpoint)
    with pytest.raises(OptionError, match=says):
        adopt(store, "s", str(checkpoint))


def test_the_command_creates_the_store_and_says_what_it_did(tmp_path: Path, checkpoint: Path) -> None:
    arguments = ["adopt", str(checkpoint), "--store", f"sqlite:///{tmp_path}/new.db", "--source", "s", "--json"]
    counted = CliRunner().invoke(app, [*arguments, "--dry-run"])
    assert json.loads(counted.stdout) == {"files": 4, "dry_run": True}
    assert not (tmp_path / "new.db").exists()
    done = CliRunner().invoke(app, arguments)
    assert json.loads(done.stdout) == {"files": 4, "new": 4, "dry_run": False}


def test_a_list_of_paths_is_taken_over(store: ShardStore) -> None:
    lines = ["s3a://bucket/a b%20.json\n", "\n", "/in/c.json\r\n", "s3://bucket/a b%20.json"]
    assert adopt_list(store, "s", lines) == AdoptResult(files=3, new=2)
    assert {row["shard_id"] for row in rows(store, "shards")} == {"s3://bucket/a b%20.json", "file:///in/c.json"}
    with pytest.raises(OptionError, match=r"line 2: .*a URI or an absolute path a line"):
        adopt_list(store, "s", ["/in/d.json\n", "e.json\n"])


def test_the_command_takes_a_list_or_a_checkpoint(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "paths.txt").write_text("/in/a.json\n/in/b.json\n")
    place = ["--source", "s", "--store", f"sqlite:///{tmp_path}/new.db"]
    done = CliRunner().invoke(app, ["adopt", "--list", str(tmp_path / "paths.txt"), *place, "--json"])
    assert json.loads(done.stdout) == {"files": 2, "new": 2, "dry_run": False}
    for both in ([], ["--list", str(tmp_path / "paths.txt"), str(checkpoint)]):
        assert "give one of them" in CliRunner().invoke(app, ["adopt", *both, *place]).output
