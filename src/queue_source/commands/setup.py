"""`cuesqueue setup`: what is made once: cloud resources (`setup_aws.py` knows which), a faster PySpark, a dashboard."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from queue_source.commands.output import Json, print_options, print_result, tell
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
        str | None, typer.Option(metavar="DIR", help="Spark's folder; otherwise that of the PySpark installed here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile PySpark once, so that the Python processes of each query start in half the time.

    Bytecode for this Python is added to python/lib/pyspark.zip, which takes some seconds and 7 MB. Run it where driver
    and executors have PySpark, as when an image is built. A second run changes nothing.
    """
    from queue_source.admin.compile_pyspark import archive_of, compile_pyspark

    try:
        archive = archive_of(spark_home)
        added = compile_pyspark(archive)
    except ModuleNotFoundError:
        raise OptionError("--spark-home", "names no folder, and PySpark is not installed here; name one") from None
    except OSError as error:
        raise OptionError(
            "--spark-home", f"{error.filename}: {error.strerror}; name the folder of a Spark that you may change"
        ) from None
    print_result({"archive": str(archive), "modules compiled": added}, as_json, title="done")


@app.command()
def monitoring(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files go; it is made if it is missing.")],
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
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="What is announced, as s3://bucket/prefix.")],
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the queue; otherwise made of bucket and prefix.")
    ] = None,
    profile: Annotated[str | None, typer.Option(metavar="P", help="Profile of the AWS configuration files.")] = None,
    endpoint_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of a service that speaks AWS's protocols.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done as JSON, and do nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make an SQS queue with its dead-letter queue, and let the bucket announce new objects of the prefix to it.

    What is there already stays as it is, other notifications of the bucket above all; a second run changes nothing.
    The result ends with the options for the reader.
    """
    try:
        from queue_source.admin.setup_aws import Setup, default_name, parse_prefix
    except ModuleNotFoundError as error:
        raise OptionError(
            "aws", f"needs {error.name!r}, which is not installed: pip install 'cuesqueue[sqs]'"
        ) from None

    bucket, inner = parse_prefix(prefix)
    with closing(Setup(bucket, inner, queue or default_name(bucket, inner), profile, endpoint_url)) as setup:
        changes = setup.changes()
        if not dry_run:
            setup.apply(changes)
        options = setup.reader_options()
    if dry_run or as_json:
        print_result({"changes": changes, "dry_run": dry_run, "options": options}, True, title="")
        return
    done = {f"{place}. {change['action']}": _about(change) for place, change in enumerate(changes, 1)}
    print_result(done or {"nothing to change": "everything was there"}, False, title="done")
    print_options(options, "options of the reader:")
    if changes:
        tell("objects that were there before are not announced: publish them once")


@app.command()
def azure(
    prefix: Annotated[
        str,
        typer.Argument(
            metavar="PREFIX", help="What is announced, as abfss://container@account.dfs.core.windows.net/prefix."
        ),
    ],
    queue: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of queue and subscription; otherwise made of container and prefix."),
    ] = None,
    queue_account: Annotated[
        str | None, typer.Option(metavar="ACCOUNT", help="Storage account of the queue; otherwise that of the objects.")
    ] = None,
    suffix: Annotated[str, typer.Option(metavar="TEXT", help="Announce only names that end so, as .json.")] = "",
    dead_letters: Annotated[
        str, typer.Option(metavar="CONTAINER", help="Where Event Grid leaves what it could not deliver.")
    ] = "cuesqueue-dead-letters",
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Metadata of the queue and the container, label of the subscription."),
    ] = None,
    auth_mode: Annotated[
        str, typer.Option(metavar="MODE", help="How az makes queue and container: login, or key, the account's.")
    ] = "login",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done, with the commands, as JSON; do nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a storage queue, and let Event Grid announce new objects of the prefix to it, by Azure's command line, az.

    What is there already stays as it is; a second run changes nothing. Without az, --dry-run prints all commands. The
    result ends with the options for the reader.
    """
    from queue_source.admin.setup_azure import Setup, default_name, parse_place

    if wrong := next((text for text in tag or () if not text.partition("=")[1]), None):
        raise OptionError("--tag", f"{wrong!r} has no value; write NAME=VALUE")
    account, container, inner = parse_place(prefix)
    name = queue or default_name(container, inner)
    setup = Setup(account, container, inner, name, queue_account or account, suffix, dead_letters, tag or (), auth_mode)
    changes = setup.changes()
    if not dry_run:
        setup.apply(changes)
    options = setup.reader_options()
    listed = [{part: value for part, value in change.items() if part != "arguments"} for change in changes]
    if dry_run or as_json:
        print_result({"changes": listed, "dry_run": dry_run, "options": options}, True, title="")
        return
    done = {f"{place}. {change['action']}": change["name"] for place, change in enumerate(changes, 1)}
    print_result(done or {"nothing to change": "everything was there"}, False, title="done")
    print_options(options, "options of the reader:")
    if changes:
        tell("objects that were there before are not announced: list them once (backfillPrefixes)")


def _about(change: dict[str, object]) -> str:
    if "queue" in change:
        return f"{change['queue']}: {json.dumps(change['attributes'])}"
    return f"{change['bucket']}: {json.dumps(change['configuration'])}"
