"""`cuesqueue doctor`: checks whether everything that a query needs exists, and is configured correctly."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_source.commands.output import UNHEALTHY, Json, named_options, print_result, tell
from queue_source.errors import OptionError
from queue_source.options.connections import DEFAULT_STORE
from shard_store.redaction import visible

if TYPE_CHECKING:
    from queue_source.admin.doctor import Finding
    from queue_source.options import ReaderOptions

_WIDTH = 80


def doctor(
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            envvar="CUESQUEUE_STORE",
            metavar="URL",
            help="Database of the store; otherwise that of storeUrl, or sqlite:///cuesqueue.db where that file is.",
            show_default=False,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", metavar="NAME=VALUE", help="An option of the reader, as queueUrl=URL; may be repeated."
        ),
    ] = None,
    options: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Options of the reader as a JSON object, so that no secret is in a command."),
    ] = None,
    spark_master: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Start a Spark session there, and ask its executors; without it no Spark is started."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check what a query needs: Java, Python, the store, and with the reader's options its queues and objects.

    Nothing is changed or created. Each finding that is not ok says what to do. Exit codes: 0 there is no problem
    (warnings are none), 3 there is one.
    """
    reader_options = _reader_options(option or [], options)
    findings_so_far: list[Finding] = []
    for finding in _findings(store, reader_options, spark_master):
        findings_so_far.append(finding)
        if not as_json:
            _print(finding)
    problems = [finding for finding in findings_so_far if finding.state.value == "problem"]
    if as_json:
        entries = [{**asdict(finding), "state": finding.state.value} for finding in findings_so_far]
        print_result({"healthy": not problems, "findings": entries}, as_json, title="doctor")
    else:
        warnings = sum(finding.state.value == "warning" for finding in findings_so_far)
        tell(f"{len(problems)} problem(s), {warnings} warning(s)")
    if problems:
        raise typer.Exit(UNHEALTHY)


def _reader_options(pairs: list[str], file: Path | None) -> dict[str, str]:
    reader_options: dict[str, Any] = {}
    if file is not None:
        try:
            reader_options = json.loads(file.read_text("utf-8"))
        except ValueError:
            reader_options = {"": ""}
        if not isinstance(reader_options, dict) or not all(
            name and isinstance(text, str) for name, text in reader_options.items()
        ):
            raise OptionError(
                "--options", 'the file is not a JSON object of texts, such as {"queueUrl": "sqs://files"}'
            )
    return {**reader_options, **named_options(pairs)}


def _findings(store: str | None, reader_options: dict[str, str], spark_master: str | None) -> Iterator[Finding]:
    """Yield one finding after the other, so that users see progress while slow checks run."""
    from queue_source.admin import doctor

    yield from doctor.examine_machine()
    if spark_master is None:
        yield doctor.skipped("executors", "not asked", "name --spark-master URL to start a session there")
    else:
        from queue_source.spark.doctor import examine_spark

        yield from examine_spark(spark_master)
    read: ReaderOptions | None = None
    if reader_options:
        from queue_source.options import parse_reader_options

        try:
            read = parse_reader_options({**reader_options, **({} if store is None else {"storeUrl": store})})
            yield doctor.ok("options", f"{len(reader_options)} options fit together")
        except OptionError as error:
            yield doctor.problem("options", str(error), "mend the option that it names; docs/reference/options.md")
    url = store or (read.store.reveal() if read is not None else None)
    if url is None and Path(DEFAULT_STORE.removeprefix("sqlite:///")).is_file():
        url = DEFAULT_STORE
    if url is None:
        yield doctor.skipped("store", "not looked at", "name it with --store URL")
    else:
        local = spark_master is None or spark_master.startswith("local")
        yield from doctor.examine_store(url, local=local)
    if read is None:
        yield doctor.skipped("queue, objects", "not looked at", "name the reader's options: -o queueUrl=... -o ...")
        return
    yield from doctor.examine_queues(read)
    prefixes = dict.fromkeys((*read.notifications.allowed_prefixes, *read.backfill.prefixes))
    yield from doctor.examine_prefixes(list(prefixes), read.content.storage)


def _print(finding: Finding) -> None:
    text = visible(f"{finding.check}: {finding.text}")
    lines = textwrap.wrap(text, _WIDTH, initial_indent=f"{finding.state.value:<9}", subsequent_indent=" " * 9)
    if finding.fix:
        indent = " " * 9
        fix = visible(finding.fix)
        lines += textwrap.wrap(fix, _WIDTH, initial_indent=f"{indent}-> ", subsequent_indent=f"{indent}   ")
    typer.echo("\n".join(lines))
