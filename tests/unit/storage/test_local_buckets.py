"""Local files as a bucket: links, folders that vanish, large folders, and moves that die or go between file systems."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest import mock

import pytest

from queue_source.errors import BadObject, ObjectRefused, ObjectStoreError
from queue_source.options.connections import StorageOptions
from queue_source.storage import open_files as local_files
from queue_source.storage.buckets import Known, Outcome, local
from queue_source.storage.buckets.local import LocalBucket

LATER = datetime.now(timezone.utc) + timedelta(days=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    return made


@pytest.fixture
def bucket(folder: Path) -> Iterator[LocalBucket]:
    made = LocalBucket(StorageOptions(local_prefixes=(f"file://{folder}/",)))
    yield made
    made.close()


def names(bucket: LocalBucket, folder: Path, cursor: str | None = None) -> list[str]:
    return [Path(one.uri).name for one in bucket.page(f"file://{folder}/", cursor).objects]


def known(path: Path) -> Known:
    return Known(f"file://{path}", path.stat().st_size, None, LATER)


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def cause(outcome: Outcome) -> str:
    assert isinstance(outcome, BadObject)
    return outcome.cause


def test_only_regular_files_within_the_allowed_places_are_listed(bucket: LocalBucket, folder: Path) -> None:
    (folder / "a").write_text("x")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo")
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("x")
    (folder / "link-outside").symlink_to(outside / "secret")
    (folder / "link-inside").symlink_to(folder / "a")
    (folder / "link-nowhere").symlink_to(folder / "none")
    (folder / "link-to-itself").symlink_to(folder / "link-to-itself")
    (folder / "link-to-folder").symlink_to(outside)
    (folder / "link-in-a-circle").symlink_to(folder)
    assert names(bucket, folder) == ["a", "link-inside"]


def test_the_prefix_itself_may_lead_over_a_link(folder: Path) -> None:
    (folder / "a").write_text("x")
    link = folder.parent / "link"
    link.symlink_to(folder)
    bucket = LocalBucket(StorageOptions(local_prefixes=(f"file://{link}/",)))
    (one,) = bucket.page(f"file://{link}/").objects
    assert one.uri == f"file://{link}/a"


def test_a_folder_larger_than_what_is_kept_of_names_is_listed_whole(
    bucket: LocalBucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_NAMES", 4)
    expected = [f"{place:03d}" for place in range(25)]
    for name in expected:
        (folder / name).write_text("x")
    (folder / "012.d").mkdir()
    (folder / "012.d" / "x").write_text("x")
    expected.insert(13, "x")
    assert names(bucket, folder) == expected
    for place, name in enumerate(expected):
        cursor = str(folder / ("012.d/x" if name == "x" else name))
        assert names(bucket, folder, cursor) == expected[place + 1 :]


def test_a_folder_that_vanishes_while_it_is_walked_harms_no_other(
    bucket: LocalBucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "PAGE", 1)
    for name in ("a/1", "b/1", "c/1"):
        (folder / name).parent.mkdir()
        (folder / name).write_text("x")
    page = bucket.page(f"file://{folder}/")
    (folder / "b" / "1").unlink()
    (folder / "b").rmdir()
    rest = bucket.page(f"file://{folder}/", page.cursor)
    assert [one.uri for one in rest.objects] == [f"file://{folder}/c/1"]


@pytest.mark.parametrize("refused", ["scandir", "lstat"], ids=["its names", "its files"])
def test_a_folder_that_may_not_be_read_is_left_out_counted_and_logged_once(
    bucket: LocalBucket,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refused: str,
) -> None:
    monkeypatch.setattr(local, "PAGE", 2)
    for name in ("a", "b/1", "b/2", "b/c/3", "d", "e", "f/4"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    found, cursor, skipped = [], None, 0
    with _refusing(refused, folder / "b"), caplog.at_level(logging.WARNING, "cuesqueue"):
        while True:
            page = bucket.page(f"file://{folder}/", cursor)
            found += [one.uri.rpartition("/")[2] for one in page.objects]
            skipped += page.skipped
            if (cursor := page.cursor) is None:
                break
    assert (found, skipped) == (["a", "d", "e", "4"], 1)
    (record,) = caplog.records
    assert f"{folder}/b/" in record.getMessage()
    assert "Permission denied" in record.getMessage()


@pytest.mark.parametrize("refused", ["scandir", "lstat"], ids=["its names", "its files"])
@pytest.mark.parametrize("slash", ["/", ""])
def test_a_prefix_that_may_not_be_read_is_an_error(bucket: LocalBucket, folder: Path, refused: str, slash: str) -> None:
    (folder / "a").write_text("x")
    with _refusing(refused, folder), pytest.raises(ObjectRefused, match="Permission denied"):
        bucket.page(f"file://{folder}{slash}")


def test_what_the_disk_says_of_a_folder_is_an_error(bucket: LocalBucket, folder: Path) -> None:
    (folder / "a").mkdir()
    with _refusing("scandir", folder / "a", errno.EIO), pytest.raises(ObjectStoreError, match="Input/output"):
        bucket.page(f"file://{folder}/")


def test_folders_are_listed_as_deep_as_they_go(folder: Path) -> None:
    """Deeper than Python calls functions, and at the end deeper than paths go."""
    bucket = LocalBucket(StorageOptions())
    (folder / "z").write_text("x")
    deep = os.open(folder, os.O_RDONLY)
    try:
        for depth in range(2500):
            os.mkdir("a", dir_fd=deep)
            deeper = os.open("a", os.O_RDONLY, dir_fd=deep)
            os.close(deep)
            deep = deeper
            if depth == 1200:
                os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=deep))
        page = bucket.page(f"file://{folder}/")
        assert [Path(one.uri).name for one in page.objects] == ["file", "z"]
        assert (page.skipped, page.cursor) == (1, None)
    finally:
        os.close(deep)
        subprocess.run(["rm", "-rf", folder / "a"], check=True)  # deeper than pytest can clean up


def test_a_name_that_is_no_text_is_left_out_and_the_listing_goes_on(
    bucket: LocalBucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "PAGE", 1)
    for name in (b"a", b"b\xff", b"c\xfe/d", "\u00e4".encode()):
        path = Path(os.fsdecode(os.fsencode(folder) + b"/" + name))
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    found, cursor, skipped = [], None, 0
    while True:
        page = LocalBucket(StorageOptions()).page(f"file://{folder}/", cursor)  # in another process
        found += [one.uri.encode().rpartition(b"/")[2].decode() for one in page.objects]
        skipped += page.skipped
        if (cursor := page.cursor) is None:
            break
    assert (found, skipped) == (["a", "\u00e4"], 2)


def test_a_file_with_a_time_that_no_calendar_has_is_listed(bucket: LocalBucket, folder: Path) -> None:
    (folder / "a").write_text("x")
    with mock.patch.object(local_files, "datetime", wraps=datetime) as clock:
        clock.fromtimestamp.side_effect = ValueError("year 100000 is out of range")
        (one,) = bucket.page(f"file://{folder}/").objects
    assert one.modified.year == 9999


@pytest.mark.parametrize("act", ["delete", "move"])
def test_nothing_outside_the_allowed_places_is_touched_through_a_link_to_a_folder(
    bucket: LocalBucket, folder: Path, act: str
) -> None:
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "a").write_text("x")
    (folder / "link").symlink_to(outside)
    through = known(folder / "link" / "a")
    (outcome,) = bucket.delete([through]) if act == "delete" else bucket.move([(through, f"file://{folder}/b")])
    assert cause(outcome) == "forbidden-object"
    assert (outside / "a").exists()


def test_of_a_link_only_the_link_goes(bucket: LocalBucket, folder: Path) -> None:
    (folder / "a").write_text("content")
    (folder / "link").symlink_to("a")
    (folder / "link2").symlink_to("a")
    target = folder.parent / "out" / "link"
    assert bucket.delete([known(folder / "link")]) == [None]
    assert bucket.move([(known(folder / "link2"), f"file://{target}")]) == [None]
    assert listed(folder) == ["a"]
    assert (target.is_symlink(), target.read_text()) == (False, "content")


def test_a_folder_in_the_place_of_a_file_is_another_object(bucket: LocalBucket, folder: Path) -> None:
    (folder / "a").mkdir()
    assert cause(bucket.delete([Known(f"file://{folder}/a", None, None, LATER)])[0]) == "object-changed"


def test_a_file_in_the_place_of_a_folder_of_the_target_is_said(bucket: LocalBucket, folder: Path) -> None:
    (folder / "a").write_text("x")
    (folder.parent / "out").write_text("a file")
    (outcome,) = bucket.move([(known(folder / "a"), f"file://{folder.parent}/out/a")])
    assert cause(outcome) == "target-exists"
    assert (folder / "a").exists()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV])
def test_what_cannot_have_a_second_name_is_moved_all_the_same(bucket: LocalBucket, folder: Path, number: int) -> None:
    (folder / "a").write_text("content")
    os.utime(folder / "a", (1, 1_600_000_000))
    target = folder.parent / "out" / "deep" / "a"
    with mock.patch("os.link", side_effect=_links_fail(number)):
        assert bucket.move([(known(folder / "a"), f"file://{target}")]) == [None]
    assert not (folder / "a").exists()
    assert (target.read_text(), target.stat().st_mtime) == ("content", 1_600_000_000)
    assert listed(target.parent) == ["a"]


@pytest.mark.parametrize("dies_at", ["write", "fsync", "link", "unlink"])
def test_a_copy_that_dies_anywhere_is_ended_by_the_next_and_leaves_nothing(
    bucket: LocalBucket, folder: Path, dies_at: str
) -> None:
    (folder / "a").write_text("content")
    target = folder.parent / "out" / "a"
    one = (known(folder / "a"), f"file://{target}")
    with mock.patch("os.link", side_effect=_links_fail(errno.EXDEV)):
        with mock.patch(f"os.{dies_at}", side_effect=_Death), pytest.raises(_Death):
            bucket.move([one])
        assert (folder / "a").read_text() == "content"
        assert bucket.move([one]) == [None]
    assert listed(folder) == []
    assert listed(target.parent) == ["a"]
    assert target.read_text() == "content"


@pytest.mark.parametrize("linked", [True, False], ids=["one file system", "two file systems"])
def test_another_file_of_the_same_size_and_time_is_no_copy(bucket: LocalBucket, folder: Path, linked: bool) -> None:
    target = folder.parent / "out" / "x"
    for name in ("a", "b"):
        (folder / name).write_text(f"content of {name}")
        os.utime(folder / name, (1_700_000_000, 1_700_000_000))
    a, b = known(folder / "a"), known(folder / "b")
    with mock.patch("os.link", side_effect=os.link if linked else _links_fail(errno.EXDEV)):
        assert bucket.move([(a, f"file://{target}")]) == [None]
        (outcome,) = bucket.move([(b, f"file://{target}")])
    assert cause(outcome) == "target-exists"
    assert ((folder / "b").read_text(), target.read_text()) == ("content of b", "content of a")


def test_a_file_that_changes_while_it_is_compared_with_its_copy_stays(bucket: LocalBucket, folder: Path) -> None:
    target = folder.parent / "a"
    for path in (folder / "a", target):
        path.write_text("content")
    before = known(folder / "a")._replace(known_at=datetime.now(timezone.utc) + timedelta(hours=1))
    real = os.open

    def open_target(path: str, flags: int, *args: int, **more: int) -> int:
        if path == "a":
            os.utime(folder / "a", (1, before.known_at.timestamp() + 3600))
        return real(path, flags, *args, **more)

    with mock.patch("os.open", open_target):
        (outcome,) = bucket.move([(before, f"file://{target}")])
    assert cause(outcome) == "object-changed"
    assert (folder / "a").exists()


@pytest.mark.parametrize("names", [1, 2])
def test_a_file_that_is_moved_to_its_own_name_by_another_path_stays(
    bucket: LocalBucket, folder: Path, names: int
) -> None:
    (folder / "a").write_text("content")
    if names == 2:
        (folder / "b").hardlink_to(folder / "a")
    (folder / "link").symlink_to(folder)
    (outcome,) = bucket.move([(known(folder / "a"), f"file://{folder}/link/a")])
    assert cause(outcome) == "target-exists"
    assert (folder / "a").read_text() == "content"


def test_a_file_that_changes_while_it_is_copied_stays(bucket: LocalBucket, folder: Path) -> None:
    (folder / "a").write_text("content")
    target = folder.parent / "out" / "a"
    before = known(folder / "a")
    real = os.fsync

    def fsync(descriptor: int) -> None:
        (folder / "a").write_text("other content")
        real(descriptor)

    with mock.patch("os.link", side_effect=OSError(errno.EXDEV, "other file system")), mock.patch("os.fsync", fsync):
        (outcome,) = bucket.move([(before, f"file://{target}")])
    assert cause(outcome) == "object-changed"
    assert (folder / "a").read_text() == "other content"
    assert listed(target.parent) == []


def test_what_the_disk_says_is_an_outcome_that_may_be_tried_again(bucket: LocalBucket, folder: Path) -> None:
    (folder / "a").write_text("content")
    with mock.patch("os.unlink", side_effect=OSError(errno.EIO, "Input/output error")):
        (outcome,) = bucket.delete([known(folder / "a")])
    assert isinstance(outcome, ObjectStoreError)
    assert not isinstance(outcome, ObjectRefused)


class _Death(BaseException):
    """Nobody handles it, as nobody handles the end of a process."""


def _links_fail(number: int) -> Callable[..., None]:
    """Links between other folders fail, as between file systems; with EPERM all do, as where there are none."""
    real = os.link

    def link(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int, follow_symlinks: bool) -> None:
        if number == errno.EPERM or src_dir_fd != dst_dir_fd:
            raise OSError(number, os.strerror(number))
        real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks)

    return link


@contextmanager
def _refusing(name: str, folder: Path, number: int = errno.EACCES) -> Iterator[None]:
    """As for a user without permissions; root, as which tests may run, has all. `name`: `scandir` refuses to tell the
    names in the folder, `lstat` what they are."""
    real = getattr(os, name)

    def refuse(path: bytes | str) -> object:
        place = os.fsdecode(path)
        if place.rstrip("/") == str(folder) if name == "scandir" else place.startswith(f"{folder}/"):
            raise OSError(number, os.strerror(number))
        return real(path)

    with mock.patch(f"os.{name}", refuse):
        yield
