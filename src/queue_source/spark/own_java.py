"""The Java process of the session that `cuesqueue load` makes for itself: started early, and made for short runs.

It starts while the command imports, opens the store and looks at the target and the queue; what is refused then ends
it. Where the user has said nothing else,

- Java has its first compiler alone, and collects garbage in one thread. No row of a load goes through Java: what the
  second compiler makes faster is worth less than what it takes, also with a hundred micro-batches;
- Spark's Python processes import PySpark from its folder. Spark puts its archive and a jar in front of that, whose
  directories Python reads again and again (before 3.12 for each package and each `importlib.invalidate_caches()`).

PySpark itself would start Java late, in the call that makes the session.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import cache_from_source
from pathlib import Path

from queue_source.spark.bytecode import archive_of
from queue_source.spark.java import examine_java

SETTINGS = {"spark.python.unix.domain.socket.enabled": "true"}
"""Of each session of our own: what docs/explanation/performance.md recommends."""
QUIET_SETTINGS = {
    **SETTINGS,
    "spark.app.name": "cuesqueue load",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
}
"""Of the session of a command, which says itself what became of its query."""

_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
_FOR_SHORT_RUNS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_WORDS_OF_JAVA = ("JavaOptions", "java-options", "properties-file")
"""What a setting of the user's has in it that gives Java options, which might contradict ours."""
_VARIABLES_OF_JAVA = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_NOT_OURS = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "SPARK_API_MODE", "SPARK_CONNECT_MODE_ENABLED")
"""Variables with which PySpark starts no Java process of its own."""
_AT_ONCE = 1 << 16  # bytes of a log
_MOST_UNSAID = 1_000  # pieces of it
_POLL = 0.02  # seconds between two looks whether Java is ready

_PYTHON = """\
#!/bin/sh
# Python, without what Spark puts in front of the user's own PYTHONPATH: the same PySpark is in a folder
while :; do
    case $PYTHONPATH in
    {home}/python/lib/*:* | {home}/jars/*:*) PYTHONPATH=${{PYTHONPATH#*:}} ;;
    {home}/python/lib/* | {home}/jars/*) PYTHONPATH= ;;
    *) break ;;
    esac
done
exec {python} "$@"
"""


@dataclass(slots=True)
class OwnJava:
    """A Java process to which PySpark has not been connected yet."""

    process: subprocess.Popen[bytes]
    folder: Path
    is_connected: bool = False
    _unsaid: list[bytes] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        threading.Thread(target=self._relay, name="cuesqueue-java-log", daemon=True).start()

    def _relay(self) -> None:
        """Pass on what Java logs, once it is connected. The log of a process that a refusal ends is left out."""
        assert self.process.stderr is not None
        while text := os.read(self.process.stderr.fileno(), _AT_ONCE):
            with self._lock:
                if self.is_connected:
                    _say(text)
                elif len(self._unsaid) < _MOST_UNSAID:
                    self._unsaid.append(text)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended that a session uses."""
        return self.is_connected and self.process.poll() is not None

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Have a session that is made in this block use the process. If it has ended, PySpark starts another one.

        That one says why, as it always has.
        """
        said = _connection(self.folder)
        while not said.exists() and self.process.poll() is None:
            time.sleep(_POLL)
        if not said.exists():
            yield
            return
        text = said.read_bytes()  # Java has renamed it: it is whole
        said.unlink()  # with its secret: a command that is killed leaves the folder
        port, length = struct.unpack_from(">ii", text)
        with self._lock:
            self.is_connected = True
            _say(b"".join(self._unsaid))
        os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
        os.environ["PYSPARK_GATEWAY_SECRET"] = text[8 : 8 + length].decode()
        try:
            yield
        finally:
            del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]

    def end(self) -> None:
        """End the process, which has a session that is stopped, or none."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()  # Java ends by itself when it has read that
        if not self.is_connected:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def own_java(master: str) -> Iterator[OwnJava | None]:
    """Start Java for the session of a command, and end it with the block.

    None where PySpark has to do that itself: it has a process already, or is no PySpark that we know to start.
    """
    java = _started(master)
    try:
        yield java
    finally:
        if java is not None:
            java.end()


def _started(master: str) -> OwnJava | None:
    archive = archive_of(os.environ.get("SPARK_HOME"))
    home = None if archive is None else archive.parents[2]
    if home is None or os.name == "nt" or not (home / "bin" / "spark-submit").is_file() or not (home / "jars").is_dir():
        return None
    if any(os.environ.get(name) for name in _NOT_OURS) or _has_gateway():
        return None
    if examine_java(os.environ, version("pyspark"))[1]:
        return None  # said in its place: after what is wrong with the options
    folder = Path(tempfile.mkdtemp(prefix="cuesqueue-"))
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_CONNECT_MODE": "0",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(_connection(folder)),
    }
    if master.startswith("local") and environment.get("PYSPARK_PYTHON", sys.executable) == sys.executable:
        environment["PYSPARK_PYTHON"] = _python(folder, home)
    own = {"spark.master": master, **_java_options(home), **QUIET_SETTINGS}
    pairs = [part for name, value in own.items() for part in ("--conf", f"{name}={value}")]
    command = [str(home / "bin" / "spark-submit"), *pairs]
    command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # whose end tells Java that we have ended
            stderr=subprocess.PIPE,
            env=environment,
            preexec_fn=_ignore_interrupts,
        )
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return OwnJava(process, folder)


def _say(text: bytes) -> None:
    with suppress(OSError):  # the other end is closed
        os.write(2, text)


def _connection(folder: Path) -> Path:
    """Return the file in which Java says how it is reached."""
    return folder / "connection"


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to us: Java has to be there while a query is stopped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _has_gateway() -> bool:
    """Tell whether this process has a Java process already. Imports nothing of PySpark: that takes its time."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return getattr(context, "_gateway", None) is not None


def _java_options(home: Path) -> dict[str, str]:
    """Return our options of Java, as Spark's setting for defaults; none where the user has any."""
    texts = [os.environ.get("PYSPARK_SUBMIT_ARGS", "")]
    with suppress(OSError):
        texts.append((Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf").read_text())
    if any(word in text for text in texts for word in _WORDS_OF_JAVA) or any(map(os.environ.get, _VARIABLES_OF_JAVA)):
        return {}
    return {_JAVA_OPTIONS: _FOR_SHORT_RUNS}


def _python(folder: Path, home: Path) -> str:
    """Return the Python of Spark's workers: ours, by a script that leaves PySpark's archive out of its path.

    Ours itself where PySpark is not installed as a folder which every Python of this kind finds, where it would have to
    be compiled by each process, and where files of the folder may not be run.
    """
    package = home / "__init__.py"
    places = [*sys.path[1:], *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    is_found = str(home.parent) in places and home.name == "pyspark" and package.is_file()
    if not is_found or not Path(cache_from_source(str(package))).exists():
        return sys.executable
    script = folder / "python"
    quoted = {"home": shlex.quote(str(home)), "python": shlex.quote(sys.executable)}
    script.write_text(_PYTHON.format(**quoted))
    script.chmod(0o700)
    return str(script) if os.access(script, os.X_OK) else sys.executable
