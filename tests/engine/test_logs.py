"""What a query logs under a real Spark: from the reader and from tasks, and where a user's own handler is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.streaming.listener import StreamingQueryListener

from queue_source.spark.process import pyspark_version
from support.engine.harness import environment
from support.snippets import ROOT, blocks

pytestmark = pytest.mark.engine

SCRIPT = ROOT / "tests" / "support" / "engine" / "log_lines.py"
PAGE = ROOT / "docs" / "reference" / "logs.md"


def test_lines_of_reader_and_tasks_reach_the_driver_and_a_listener_gets_the_numbers(tmp_path: Path) -> None:
    """One program with two queries: the first logs as the options say, the second as a module of the user's does."""
    (module,) = [block for block in blocks(PAGE) if block.file == "logged.py"]
    own = tmp_path / "cuesqueue.log"
    assert '"cuesqueue.log"' in module.text
    (tmp_path / "logged.py").write_text(module.text.replace('"cuesqueue.log"', repr(str(own))), "utf-8")
    path = environment()["PYTHONPATH"]
    surroundings = {**os.environ, **environment(), "PYTHONPATH": f"{path}{os.pathsep}{tmp_path}"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)], env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "hunter2" not in done.stderr

    # Spark may write its progress bar before a line of ours
    lines = [json.loads(line) for line in re.findall(r'\{"time": .*\}$', done.stderr, re.MULTILINE)]
    assert {line["pipeline"] for line in lines} == {"files"}
    bad = [line for line in lines if line.get("cause") == "malformed-message"]
    assert len(bad) == 1, "of the first query alone"
    assert bad[0]["thread"] == "cuesqueue-open"
    tasks = [line for line in lines if line["message"].startswith("the task has")]
    assert {line["plan"] for line in tasks} == {"0-1"}
    assert all("." in line["task"] and line["seq"] == 1 for line in tasks)

    # the session of the test has no Unix sockets, of which Spark before 4.1 does not know
    advised = [line for line in lines if "spark.python.unix.domain.socket.enabled" in line["message"]]
    assert len(advised) == (pyspark_version >= (4, 1))

    elsewhere = own.read_text("utf-8")
    assert elsewhere.count("cause=malformed-message") == 1
    assert "the task has" not in elsewhere, "the module says INFO"

    numbers = [one for one in json.loads(done.stdout) if one["pipeline"] == "files"]
    assert sum(one["numInputRows"] for one in numbers) in (10, 20), "the second query may have gone before its event"
    assert {"numFilesOutstanding", "numBytesOutstanding"} <= set(numbers[0])


def test_spark_has_the_listener_that_ours_is() -> None:
    import cuesqueue

    assert issubclass(cuesqueue.ProgressListener, StreamingQueryListener)
