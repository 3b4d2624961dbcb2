"""What all commands share: results on standard output (tables, or JSON with `--json`), everything else on stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_source.errors import CuesqueueError, OptionError, QueueConfigurationError
from shard_store.redaction import redact_text, visible

if TYPE_CHECKING:
    from rich.console import Console

FAILED = 1
WRONG_USE = 2
UNHEALTHY = 3
"""What was looked at is not as it should be: of `status` and `doctor`, for probes."""

READER_GONE = 141
"""Standard output was closed by who read it, as `| head` does: the code of programs that SIGPIPE ends."""

_AS_IT_CAME = ("input", "input_base64", "body", "body_base64")
"""What is asked for to be seen, and mended: messages and bad records themselves."""


def _default_store() -> str:
    """Return the reader's own default store, if it exists.

    Commands never create a store because a name was forgotten.
    """
    from queue_source.options.connections import DEFAULT_STORE  # here: `--help` does without all options

    file = DEFAULT_STORE.removeprefix("sqlite:///")
    if Path(file).is_file():
        return DEFAULT_STORE
    raise OptionError(
        "--store", f"there is no {file} in this folder; name the store with --store URL or CUESQUEUE_STORE=URL"
    )


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]
Store = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="CUESQUEUE_STORE",
        metavar="URL",
        help="Database of the store, as an SQLAlchemy URL; the default is sqlite:///cuesqueue.db where that file is.",
        default_factory=_default_store,
        show_default=False,
    ),
]


def named_options(pairs: Iterable[str], flag: str = "--option") -> dict[str, str]:
    """Return what is given as NAME=VALUE, each with the flag. Raises OptionError."""
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise OptionError(flag, "needs a name and a value; write it as NAME=VALUE")
        options[name] = value
    return options


def debugging() -> bool:
    """Tell whether `CUESQUEUE_DEBUG=1` asks for tracebacks."""
    return os.environ.get("CUESQUEUE_DEBUG", "") not in ("", "0")


def hide_secrets(text: str) -> str:
    """Hide passwords, signatures (also those in names of objects) and control characters in a text for output."""
    return visible(redact_text(text))


def tell(text: str) -> None:
    """Print one remark on standard error."""
    stderr().print(hide_secrets(text), markup=False)


def stderr() -> Console:
    from rich.console import Console  # here: rich takes longer to load than the rest of the program

    return Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def progress(label: str, total: int | None, visible: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar, if `visible` and on a terminal; call the yielded function with the number done so far.

    `total` is None where it is not known.
    """
    if not visible or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr(), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.update(task, completed=count)


def print_result(result: Mapping[str, Any], as_json: bool, *, title: str) -> None:
    """Print one result: a JSON object in one line, or a table of two columns."""
    if as_json:
        sys.stdout.write(json.dumps(_redacted(result)).replace("\x7f", "\\u007f") + "\n")
        return
    redacted = _redacted(result).items()
    rows = [(name.replace("_", " "), "unknown" if value is None else str(value)) for name, value in redacted]
    _print_rows(title, (), rows)


def _redacted(value: Any) -> Any:
    """Hide secrets in each value: a redacted line of JSON would be invalid."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {redact_text(name): inner if name in _AS_IT_CAME else _redacted(inner) for name, inner in value.items()}
    return [_redacted(inner) for inner in value] if isinstance(value, list | tuple) else value


WIDTH = 80
"""Columns of texts that are wrapped."""


def line_width() -> int | None:
    """Return the columns of the terminal; None where the output goes elsewhere, and no line is to be cut."""
    if not (sys.stdout.isatty() or os.environ.get("COLUMNS")):
        return None
    return shutil.get_terminal_size((WIDTH, 24)).columns


def cut(text: str, width: int | None, *, keep_end: bool = False) -> str:
    """Shorten a text to the columns that are left for it; `keep_end` for names, which differ at their ends."""
    if width is None or len(text) <= width:
        return text
    columns = max(width - 3, 1)
    return f"...{text[-columns:]}" if keep_end else f"{text[:columns]}..."


def print_options(options: Mapping[str, str], title: str) -> None:
    """Print options for people, each in one piece on a line of its own, so that it can be copied."""
    typer.echo(title)
    for name, value in options.items():
        typer.echo(hide_secrets(f"  {name}  {value}"))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows for people, without a header when `columns` is empty; `--json` prints with `print_result`."""
    _print_rows(title, columns, ([redact_text(cell) for cell in row] for row in rows))


def _print_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    cells = [[Text(visible(cell)) for cell in row] for row in rows]
    headers = columns or [""] * len(cells[0] if cells else ())
    folded = [Column(header, overflow="fold") for header in headers]  # a shortened id identifies nothing
    table = Table(*folded, title=Text(hide_secrets(title)), title_justify="left", show_header=bool(columns))
    for row in cells:
        table.add_row(*row)
    Console().print(table)


def print_error(text: str) -> None:
    """Print one line on standard error, passwords hidden."""
    from rich.text import Text

    stderr().print(Text.assemble(("error: ", "bold red"), visible(" ".join(redact_text(text).split()))))


def has_reader() -> bool:
    """Tell whether standard output is still read; where it is not, drop what is left of it silently."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, sys.stdout.fileno())
        os.close(silence)
        return False
    return True


@contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """Turn errors into one line and an exit code: 2 for wrong input, 1 for all other failures.

    With `CUESQUEUE_DEBUG=1` the exception is raised as it is.
    """
    try:
        yield
    except BrokenPipeError:
        if not has_reader():
            raise typer.Exit(READER_GONE) from None
        raise
    except Exception as error:
        from shard_store import errors  # here: the package loads SQLAlchemy, which `--help` does not need

        if debugging() or not isinstance(error, (CuesqueueError, errors.ShardStoreError, OSError)):
            raise
        print_error(str(error))
        wrong_use = isinstance(error, (OptionError, QueueConfigurationError, errors.StoreConfigurationError))
        raise typer.Exit(WRONG_USE if wrong_use else FAILED) from None
