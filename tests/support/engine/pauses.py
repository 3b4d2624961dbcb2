"""Processes that stand still at a named place of the code, each known by a file `at-...` in a folder."""

from __future__ import annotations

from pathlib import Path


def armed(place: str, folder: Path, *, once: bool) -> str:
    """The failpoint at which every process stands still, or (`once`) only the first to come."""
    return f"{place}=pause:{folder}/at-{'once' if once else '{pid}'}"


def paused(folder: Path) -> list[int]:
    """The processes that stand still, by their ids."""
    return [int(text) for file in _files(folder) if (text := file.read_text("utf-8"))]


def go_on(folder: Path) -> None:
    """Let those that stand still go on. Their files remain: where only the first was to pause, nobody pauses later."""
    for file in _files(folder):
        file.write_bytes(b"")


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.glob("at-*") if "." not in file.name]  # the others are half written
