"""The page on backups: its commands run, in their order, on a store that has something in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from shard_store import open_store
from support.coordinator_world import World
from support.snippets import ROOT, blocks
from support.store_backends import Pipeline, rows

PAGE = ROOT / "docs" / "how-to" / "backup.md"


def test_the_commands_of_the_page_run_in_their_order(tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    for number in range(2):
        (landing / f"{number}.json").write_text("{}\n", "utf-8")
        os.utime(landing / f"{number}.json", (1_700_000_000,) * 2)
    (tmp_path / "published.txt").write_text((landing / "0.json").as_uri(), "utf-8")
    with open_store(f"sqlite:///{tmp_path}/cuesqueue.db") as store:
        Pipeline.start(store, "orders", "orders").deliver((landing / "0.json").as_uri())
    shutil.copy(tmp_path / "cuesqueue.db", tmp_path / "restored.db")
    surroundings = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "CUESQUEUE_STORE": f"sqlite:///{tmp_path}/cuesqueue.db",
        "NEW_STORE": f"sqlite:///{tmp_path}/new.db",
        "QUEUE": World(tmp_path).queue_url,
    }
    program = f'cuesqueue() {{ "{sys.executable}" -m queue_source.commands.main "$@"; }}\n'
    lines = [line for block in blocks(PAGE) if block.language == "bash" for line in block.text.splitlines()]
    assert len(lines) == 6
    for line in lines:
        line = line.replace("s3://landing/orders/", landing.as_uri() + "/")
        done = subprocess.run(
            ["bash", "-c", program + line], cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False
        )
        # of the two objects one was never announced: that is what the command is for, and its exit code
        assert done.returncode == (1 if "reconcile" in line else 0), f"{line}\n{done.stdout}{done.stderr}"
    with open_store(f"sqlite:///{tmp_path}/new.db") as store:
        assert {row["shard_id"] for row in rows(store, "shards")} == {(landing / "0.json").as_uri()}
