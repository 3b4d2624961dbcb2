"""`cuesqueue setup`: what is made once: cloud resources (`setup_aws.py` knows which), a faster PySpark, a dashboard.

Spark starts its Python processes with `python/lib/pyspark.zip` first on the path. It holds sources only, so each new
process (the reader process of each query, each new worker) compiles PySpark again, for most of a second.
"""

from __future__ import annotations

import errno
import json
import py_compile
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from queue_source.commands import setup_azure
from queue_source.commands.output import Json, hide_secrets, print_result, tell
from queue_source.commands.parameters import argument, flag, option
from queue_source.errors import OptionError

MONITORING = Path(__file__).resolve().parents[1] / "serve" / "monitoring"
app = typer.Typer(
    no_args_is_help=True, help="Make what is needed once: queues of a cloud, a faster PySpark, files for Grafana."
)


@app.callback()
def _group() -> None:
    """Make what is needed once: queues of a cloud that announce objects, a PySpark that starts faster, a dashboard."""


@app.command()
def pyspark(
    spark_home: Annotated[
        str | None, option("DIR", "Spark's folder; otherwise that of the PySpark installed here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile PySpark once, so that the Python processes of each query start in half the time.

    Bytecode for this Python is added to python/lib/pyspark.zip, which takes some seconds and 7 MB. Run it where driver
    and executors have PySpark, as when an image is built. A second run changes nothing.
    """
    if spark_home:
        archive = Path(spark_home) / "python" / "lib" / "pyspark.zip"
    else:
        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise OptionError("--spark-home", "names no folder, and PySpark is not installed here; name one")
        archive = Path(spec.origin).parent / "python" / "lib" / "pyspark.zip"
    try:
        added = _compile(archive)
    except OSError as error:
        raise OptionError(
            "--spark-home", f"{error.filename}: {error.strerror}; name the folder of a Spark that you may change"
        ) from None
    print_result({"archive": str(archive), "modules compiled": added}, as_json, title="done")


def _compile(archive: Path) -> int:
    """Add the bytecode of this Python for each module without one; return how many were added.

    Other versions of Python continue with the sources. The archive is replaced as a whole: processes that read the old
    one are not disturbed. Raises OSError where it cannot be read or written.
    """
    if not archive.is_file():
        raise FileNotFoundError(errno.ENOENT, "there is no such file", str(archive))
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".cuesqueue-") as folder:
        draft = Path(folder) / archive.name
        shutil.copy(archive, draft)
        with zipfile.ZipFile(draft, "a", zipfile.ZIP_DEFLATED) as opened:
            present = set(opened.namelist())
            missing = sorted(name for name in present if name.endswith(".py") and f"{name}c" not in present)
            for name in missing:
                source = opened.extract(name, folder)
                # by the source's hash, unchecked: the archive's times are not those of the files
                mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # about PySpark's own sources
                    py_compile.compile(source, f"{source}c", name, doraise=True, invalidation_mode=mode)
                opened.write(f"{source}c", f"{name}c")
        if missing:
            draft.replace(archive)
    return len(missing)


@app.command()
def monitoring(
    folder: Annotated[Path, argument("FOLDER", "Where the files go; it is made if it is missing.")],
    as_json: Json = False,
) -> None:
    """Write the dashboard for Grafana and the alert rules for Prometheus into a folder.

    They fit the metrics that this version of `cuesqueue serve` exports. Files of these names are written over.
    """
    written = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(MONITORING.iterdir()):
            written[file.name] = str(shutil.copyfile(file, folder / file.name))
    except OSError as error:
        raise OptionError("FOLDER", f"{error.filename}: {error.strerror}; name one that you may write to") from None
    print_result(written, as_json, title="done")


@app.command()
def aws(
    prefix: Annotated[str, argument("PREFIX", "What is announced, as s3://bucket/prefix.")],
    queue: Annotated[str | None, option("NAME", "Name of the queue; otherwise made of bucket and prefix.")] = None,
    profile: Annotated[str | None, option("P", "Profile of the AWS configuration files.")] = None,
    endpoint_url: Annotated[str | None, option("URL", "Address of a service that speaks AWS's protocols.")] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Print what would be done as JSON, and do nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Make an SQS queue with its dead-letter queue, and let the bucket announce new objects of the prefix to it.

    What is there already stays as it is, other notifications of the bucket above all; a second run changes nothing.
    The result ends with the options for the reader.
    """
    try:
        from queue_source.commands import setup_aws
    except ModuleNotFoundError as error:
        raise OptionError(
            "aws", f"needs {error.name!r}, which is not installed: pip install 'cuesqueue[sqs]'"
        ) from None

    bucket, inner = setup_aws.parse_prefix(prefix)
    name = queue or setup_aws.default_name(bucket, inner)
    with closing(setup_aws.Setup(bucket, inner, name, profile, endpoint_url)) as setup:
        changes = setup.changes()
        if not dry_run:
            setup.apply(changes)
        options = setup.reader_options()
    if dry_run or as_json:
        print_result({"changes": changes, "dry_run": dry_run, "options": options}, True, title="")
        return

    def about(change: Mapping[str, Any]) -> str:
        if "queue" in change:
            return f"{change['queue']}: {json.dumps(change['attributes'])}"
        return f"{change['bucket']}: {json.dumps(change['configuration'])}"

    _print_done(changes, list(map(about, changes)), options)
    if changes:
        tell("objects that were there before are not announced: publish them once")


@app.command()
def azure(
    prefix: Annotated[
        str, argument("PREFIX", "What is announced, as abfss://container@account.dfs.core.windows.net/prefix.")
    ],
    queue: Annotated[
        str | None, option("NAME", "Name of queue and subscription; otherwise made of container and prefix.")
    ] = None,
    queue_account: Annotated[
        str | None, option("ACCOUNT", "Storage account of the queue; otherwise that of the objects.")
    ] = None,
    suffix: Annotated[str, option("TEXT", "Announce only names that end so, as .json.")] = "",
    dead_letters: Annotated[
        str, option("CONTAINER", "Where Event Grid leaves what it could not deliver.")
    ] = "cuesqueue-dead-letters",
    tag: Annotated[
        list[str] | None, option("NAME=VALUE", "Metadata of the queue and the container, label of the subscription.")
    ] = None,
    auth_mode: Annotated[
        str, option("MODE", "How az makes queue and container: login, or key, the account's.")
    ] = "login",
    dry_run: Annotated[
        bool, flag("--dry-run", "Print what would be done, with the commands, as JSON; do nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a storage queue, and let Event Grid announce new objects of the prefix to it, by Azure's command line, az.

    What is there already stays as it is; a second run changes nothing. Without az, --dry-run prints all commands. The
    result ends with the options for the reader.
    """
    if wrong := next((text for text in tag or () if not text.partition("=")[1]), None):
        raise OptionError("--tag", f"{wrong!r} has no value; write NAME=VALUE")
    account, container, inner = setup_azure.parse_place(prefix)
    name = queue or setup_azure.default_name(container, inner)
    places = account, container, inner, name, queue_account or account
    setup = setup_azure.Setup(*places, suffix, dead_letters, tag or (), auth_mode)
    changes = list(setup.changes())
    if not dry_run:
        setup.apply(changes)
    options = setup.reader_options()
    if dry_run or as_json:
        listed = [{part: value for part, value in change.items() if part != "arguments"} for change in changes]
        print_result({"changes": listed, "dry_run": dry_run, "options": options}, True, title="")
        return
    _print_done(changes, [change["name"] for change in changes], options)
    if changes:
        tell("objects that were there before are not announced: list them once (backfillPrefixes)")


def _print_done(changes: Sequence[Mapping[str, Any]], texts: Sequence[str], options: Mapping[str, str]) -> None:
    done = {f"{n}. {change['action']}": text for n, (change, text) in enumerate(zip(changes, texts, strict=True), 1)}
    print_result(done or {"nothing to change": "everything was there"}, False, title="done")
    typer.echo("options of the reader:")
    for name, value in options.items():  # each in one piece on a line of its own, so that it can be copied
        typer.echo(hide_secrets(f"  {name}  {value}"))
