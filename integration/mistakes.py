"""Fifteen usual mistakes, each made by a program in a process of its own, and what its user reads of each.

    python3 tools/environment.py -- python -m integration.mistakes [--code SRC] [NAME...]

prints a table. `--code`: the folder `src` of another version. `--plain`: the programs do not import cuesqueue. The
servers are ministack (SQS, S3) and PostgreSQL.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from queue_source.queues import open_queue  # noqa: E402 - found by the path
from support.engine import class_archive  # noqa: E402
from support.engine.harness import environment  # noqa: E402
from support.servers.ministack import ministack_server  # noqa: E402
from support.servers.postgres import postgres_server  # noqa: E402
from support.servers.programs import free_port  # noqa: E402

READY = "[ready]"
"""What a program prints when Spark has started: times count from there."""

LONGEST = 90.0
"""Seconds after which a program is ended."""

_PROGRAM = """
{imported}from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").getOrCreate()
print({ready!r}, flush=True)


def start(reading, writing, schema):
    stream = spark.readStream.format("cuesqueue").options(**reading)
    rows = (stream.schema(schema) if schema else stream).load()
    return rows.writeStream.format("cuesqueue").options(**writing).start()


query = start({reading!r}, {writing!r}, {schema!r})
{ending}
"""
_HIDING = """
import importlib.machinery as machinery

_find = machinery.PathFinder.find_spec


def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {hidden!r} else _find(name, path, target)


machinery.PathFinder.find_spec = find_spec
"""


@dataclass(frozen=True)
class Mistake:
    """One mistake: what is changed in a program that would run, and the words of the sentence that helps."""

    says: str
    reading: Mapping[str, str | None] = field(default_factory=dict)
    writing: Mapping[str, str | None] = field(default_factory=dict)
    schema: str = "id BIGINT"
    ending: str = "query.awaitTermination()"
    variables: Mapping[str, str] = field(default_factory=dict)
    hidden: Sequence[str] = ()
    announced: str = ""
    longest: float = LONGEST


@dataclass(frozen=True)
class Output:
    """What the program's user has read."""

    lines: list[tuple[float, str]]  # seconds since Spark had started, and the line
    says: str
    ended: float | None

    @property
    def seconds(self) -> float | None:
        """Until the sentence that helps was there."""
        return next((when for when, line in self.lines if re.search(self.says, line)), None)

    @property
    def from_the_end(self) -> int | None:
        """Of its last occurrence; 1 is the last line."""
        places = [place for place, (_, line) in enumerate(reversed(self.lines), 1) if re.search(self.says, line)]
        return places[0] if places else None

    @property
    def times(self) -> int:
        return sum(bool(re.search(self.says, line)) for _, line in self.lines)

    @property
    def silence(self) -> float:
        """The longest time without a line until the sentence was there, or the end."""
        until = self.seconds if self.seconds is not None else LONGEST
        moments = [0.0, *(when for when, _ in self.lines if 0 <= when <= until), until]
        return max(after - before for before, after in pairwise(moments))


class Laboratory:
    """The servers and the folder in which mistakes are made."""

    def __init__(self, folder: Path, aws: str, postgres: str, code: Path, *, imported: bool) -> None:
        self._folder, self._aws, self._postgres, self._code = folder, aws, postgres, code
        self._imported = "import cuesqueue\n" if imported else ""

    def mistakes(self) -> dict[str, Mistake]:
        aws = {"AWS_ENDPOINT_URL": self._aws, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        region = {**aws, "AWS_DEFAULT_REGION": "us-east-1"}
        nothing = {"HOME": str(self._folder), "AWS_ENDPOINT_URL": self._aws}
        closed = f"postgresql+psycopg://cues:secret@127.0.0.1:{free_port()}/cues"
        unknown = f"{self._postgres.rpartition('/')[0]}/cues"
        two = """
import time
while not query.recentProgress:
    time.sleep(0.1)
print({ready!r}, flush=True)
second = start({reading!r}, dict({writing!r}, checkpointLocation={second!r}), "id BIGINT")
try:
    spark.streams.awaitAnyTermination()
finally:
    second.stop()  # or Spark would print its end, as the script ends
"""
        return {
            "queue": Mistake("queue 'sqs://ordres'.*not exist", {"queueUrl": "sqs://ordres"}, variables=region),
            "region": Mistake("(?i)region", {"queueUrl": "sqs://orders"}, variables={**aws, "HOME": str(self._folder)}),
            "credentials": Mistake(
                "(?i)credentials",
                {"queueUrl": "sqs://orders"},
                variables={**nothing, "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"},
            ),
            "prefix": Mistake(
                "starts with none of the allowed prefixes",
                {"allowedPrefixes": "s3://landing/orders/"},
                ending="query.awaitTermination(15)\nquery.stop()",
                announced="file:///data/in/a.json",
            ),
            "option": Mistake("did you mean.*maxFilesPerTrigger", {"maxFilePerTrigger": "10"}),
            "unit": Mistake("option 'visibilityTimeout'", {"visibilityTimeout": "90"}),
            "schema": Mistake("a stream needs the columns of its objects", schema=""),
            "path": Mistake(
                "no-such-bucket.*(does not exist|NoSuchBucket|is missing)",
                writing={"path": "s3://no-such-bucket/orders"},
                variables=region,
                announced="{data}",
            ),
            "store unreachable": Mistake(
                "127.0.0.1.*(refused|not be reached|did not answer)",
                {"storeUrl": closed},
                {"storeUrl": closed},
                longest=20,
            ),
            "database missing": Mistake('database "cues" does not exist', {"storeUrl": unknown}, {"storeUrl": unknown}),
            "extra aws": Mistake(
                r"pip install 'cuesqueue\[aws\]'", {"queueUrl": "sqs://orders"}, variables=region, hidden=("boto3",)
            ),
            "extra postgres": Mistake(
                r"pip install 'cuesqueue\[postgres\]'", {"storeUrl": closed}, {"storeUrl": closed}, hidden=("psycopg",)
            ),
            "extra iceberg": Mistake(
                r"pip install 'cuesqueue\[iceberg\]'",
                writing={"table": "db.orders", "path": None},
                hidden=("pyiceberg",),
                announced="{data}",
            ),
            "two queries": Mistake(
                "taken over by a newer query|another query of this driver runs the same pipeline",
                ending=two,
                announced="{data}",
            ),
            "python": Mistake("PYSPARK_PYTHON", variables={"PYSPARK_PYTHON": str(self._other_python())}),
        }

    def make(self, name: str) -> Output:
        """Run the program with this mistake."""
        mistake = self.mistakes()[name]
        folder = self._folder / name.replace(" ", "-")
        (folder / "in").mkdir(parents=True)
        data = folder / "in" / "a.json"
        data.write_text('{"id": 1}\n')
        queue = f"sql+sqlite:///{folder}/jobs.db?queue=orders"
        with open_queue(queue) as opened:
            if mistake.announced:
                opened.send([mistake.announced.format(data=data.as_uri()).encode()])
        common = {"storeUrl": f"sqlite:///{folder}/store.db", "pipeline": "orders"}
        source = {"queueUrl": queue, "fileFormat": "json", "allowedPrefixes": f"{(folder / 'in').as_uri()}/"}
        target = {"path": str(folder / "out"), "checkpointLocation": str(folder / "checkpoint")}
        program = {
            "ready": READY,
            "reading": _changed({**common, **source}, mistake.reading),
            "writing": _changed({**common, **target}, mistake.writing),
            "schema": mistake.schema,
            "second": f"{folder}/checkpoint-2",
        }
        script = folder / "program.py"
        ending = mistake.ending.format(**program)
        script.write_text(_PROGRAM.format(imported=self._imported, ending=ending, **program))
        return run(script, self._variables(mistake, folder), mistake.says, mistake.longest)

    def _variables(self, mistake: Mistake, folder: Path) -> dict[str, str]:
        """Return the environment of the program: of this one only what it would have without tests."""
        path = [str(self._code)]
        if mistake.hidden:
            path.insert(0, str(folder / "hiding"))
            (folder / "hiding").mkdir()
            (folder / "hiding" / "sitecustomize.py").write_text(_HIDING.format(hidden=set(mistake.hidden)))
        unwanted = ("PYSPARK_DRIVER_PYTHON", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "CUESQUEUE_STORE")
        variables = {name: value for name, value in {**os.environ, **environment()}.items() if name not in unwanted}
        return {**variables, "PYTHONPATH": os.pathsep.join(path), **mistake.variables}

    def _other_python(self) -> Path:
        """A Python in which nothing is installed."""
        folder = self._folder / "other-python"
        if not folder.exists():
            venv.create(folder, with_pip=False)
        return folder / "bin" / "python"


def _changed(options: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in {**options, **changes}.items() if value is not None}


def run(script: Path, variables: Mapping[str, str], says: str, longest: float) -> Output:
    """Run a program and note when each line of its output came."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=script.parent,
        env=dict(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        errors="replace",
    )
    raw: list[tuple[float, str]] = []

    def read() -> None:
        assert process.stdout is not None
        with process.stdout:
            raw.extend((time.monotonic() - began, line.rstrip("\n")) for line in process.stdout)

    reading = threading.Thread(target=read)
    reading.start()
    ended: float | None = None
    with suppress(subprocess.TimeoutExpired):
        process.wait(longest)
        ended = time.monotonic() - began
    reading.join(5)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    reading.join(5)
    script.with_suffix(".log").write_text("".join(f"{when:7.2f} {line}\n" for when, line in raw))
    ready = max((when for when, line in raw if line == READY), default=0.0)
    lines = [(when - ready, line) for when, line in raw if line != READY]
    return Output(lines, says, None if ended is None else ended - ready)


@contextmanager
def laboratory(folder: Path, code: Path = ROOT / "src", *, imported: bool = True) -> Iterator[Laboratory]:
    """Start the servers."""
    class_archive.use()
    with ministack_server() as aws, postgres_server() as postgres:
        yield Laboratory(folder, aws, postgres, code, imported=imported)


def row(name: str, output: Output) -> str:
    """Return the line of the table."""
    seconds = "never" if output.seconds is None else f"{output.seconds:.1f}"
    ended = "-" if output.ended is None else f"{output.ended:.1f}"
    return (
        f"| {name} | {seconds} | {output.from_the_end or '-'} | {output.times} | {len(output.lines)} "
        f"| {output.silence:.1f} "
        f"| {ended} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--code", type=Path, default=ROOT / "src")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="cuesqueue-mistakes-"))
    print("| mistake | seconds until the sentence | its line from the end | times | lines | longest silence | ended |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    with laboratory(folder, given.code.resolve(), imported=not given.plain) as room:
        for name in given.names or room.mistakes():
            print(row(name, room.make(name)), flush=True)


if __name__ == "__main__":
    main()
