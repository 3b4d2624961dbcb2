"""Local files: what is no regular file is never waited for, and no link leads out of what may be read."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queue_source.errors import BadObject
from queue_source.options import StorageOptions, parse_reader_options
from queue_source.storage import open_files
from queue_source.storage.files import open_object, stat_objects


def read(path: Path, prefixes: str = "s3://") -> bytes:
    options = {"queueUrl": "sim://q", "fileFormat": "csv", "allowedPrefixes": prefixes}
    with open_object(f"file://{path}", parse_reader_options(options).content.storage) as file:
        return file.read()


def make_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # its path may be longer than one of a socket
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "a FIFO"),
        (make_socket, "a socket"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
        (lambda path: path.symlink_to("/dev/tty"), "a device"),
    ],
)
def test_only_regular_files_are_read_and_nothing_else_is_waited_for(
    tmp_path: Path, make: Callable[[Path], Any], kind: str
) -> None:
    make(tmp_path / "object")
    with pytest.raises(BadObject, match=kind) as bad:
        read(tmp_path / "object")
    assert bad.value.cause == "corrupt-object"
    assert stat_objects([f"file://{tmp_path}/object"]) == [None]


def test_a_fifo_that_takes_the_place_of_a_file_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "object"
    path.write_bytes(b"good")
    check = open_files._check_regular

    def exchange(uri: str, found: os.stat_result) -> None:
        check(uri, found)
        path.unlink(missing_ok=True)
        os.mkfifo(path)

    monkeypatch.setattr(open_files, "_check_regular", exchange)
    with pytest.raises(BadObject, match="a FIFO"):
        read(path)


def test_what_is_checked_is_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to a secret takes the place of the file between the check and the reading."""
    (tmp_path / "in").mkdir()
    path, secret = tmp_path / "in" / "object", tmp_path / "secret"
    path.write_bytes(b"good")
    secret.write_bytes(b"secret")
    check = open_files._check_place

    def exchange(*arguments: Any) -> None:
        check(*arguments)
        path.unlink()
        path.symlink_to(secret)

    monkeypatch.setattr(open_files, "_check_place", exchange)
    assert read(path, f"{tmp_path}/in/") == b"good"


def test_a_link_is_followed_only_to_what_may_be_read_by_its_own_name(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "in-evil").write_bytes(b"secret")
    (folder / "good").write_bytes(b"good")
    (folder / "out").symlink_to(tmp_path / "secret")
    (folder / "near").symlink_to(tmp_path / "in-evil")
    (folder / "up").symlink_to(tmp_path)
    (folder / "inside").symlink_to(folder / "good")
    for name in ("out", "near", "up/secret", "up/in-evil"):
        with pytest.raises(BadObject, match="allowedPrefixes") as bad:
            read(folder / name, f"{folder}/")
        assert bad.value.cause == "forbidden-object"
    for name in ("good", "inside", "up/in/good"):
        assert read(folder / name, f"{folder}/") == b"good"
    assert read(folder / "out", f"{folder}/,{tmp_path}/secret") == b"secret"
    assert read(folder / "out") == b"secret", "only where the options name local folders may a message name a file"


def test_a_folder_that_is_itself_behind_a_link_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "part-1").write_bytes(b"good")
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    assert read(tmp_path / "data" / "part-1", f"{tmp_path}/data/") == b"good"
    assert read(tmp_path / "data" / "part-1", f"{tmp_path}/data/part-") == b"good"
    with pytest.raises(BadObject, match="allowedPrefixes"):
        read(tmp_path / "data" / "part-1", f"{tmp_path}/data/other-")


def test_files_of_the_users_own_options_are_not_asked_for_their_place(tmp_path: Path) -> None:
    (tmp_path / "sample").write_bytes(b"good")
    with open_object(f"{tmp_path}/sample", StorageOptions()) as file:
        assert file.read() == b"good"
