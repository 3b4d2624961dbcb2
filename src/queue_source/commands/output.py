"""What commands print: results on standard output (tables, or JSON with `--json`), everything else on stderr."""

from __future__ import annotations

import io
import json
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO

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

ENDED_BY_SIGNAL = 128
"""And the number of the signal: 130 for SIGINT (Ctrl-C), 143 for SIGTERM, 129 for SIGHUP, as shells count."""

_LAST_STREAM = 2  # the number of standard error
_REPORTED = 20  # refusals that are reported one by one
_AS_IT_CAME = ("input", "input_base64", "body", "body_base64")
"""What is asked for to be seen, and mended: messages and bad records themselves."""


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def debugging() -> bool:
    """Tell whether `CUESQUEUE_DEBUG=1` asks for tracebacks."""
    return os.environ.get("CUESQUEUE_DEBUG", "") not in ("", "0")


def hide_secrets(text: str) -> str:
    """Hide passwords, signatures (also those in names of objects) and control characters in a text for output."""
    return visible(redact_text(text))


def tell(text: str) -> None:
    """Print one remark on standard error."""
    _say(f"{hide_secrets(text)}\n")  # a console of its own would write into a progress bar


def _say(text: str) -> None:
    """Write on standard error. One that takes nothing, as a closed pipe, changes neither the work nor its exit code."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def stderr() -> Console:
    from rich.console import Console  # here: rich takes longer to load than the rest of the program

    return Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def progress(label: str, total: int | None, visible: bool) -> Iterator[Callable[..., None]]:
    """Show a progress bar, if `visible` and on a terminal; call the yielded function with the number done so far.

    `total` is None where it is not known; the function takes a new `total`, and a `description` for its line.
    """
    if not visible or not sys.stderr.isatty():
        yield lambda done, **_: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}")
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), text, TimeElapsedColumn())
    with Progress(*columns, console=stderr(), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, **changes: bar.update(task, completed=done, **changes)


class Stopped(BaseException):
    """A signal ends the command: no `Exception`, so that nothing on its way takes it for an error of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)


def _stop(number: int) -> None:
    raise Stopped(number)


@contextmanager
def on_signals(handle: Callable[[int], None] = _stop) -> Iterator[None]:
    """Have SIGTERM, SIGHUP and Ctrl-C call a function with their number while the block lasts.

    What is ignored stays so, as SIGHUP is for `nohup`. Without a function they raise `Stopped`, so that what is open is
    closed. Only a main thread can have signals; in another one nothing is changed.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, lambda told, _: handle(told))
    try:
        yield
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)


def end_as_stopped(stopped: signal.Signals, what: str = "") -> NoReturn:
    """Say which signal has ended the command, and end with its exit code."""
    print_error(f"stopped by {stopped.name}{what}")
    raise typer.Exit(ENDED_BY_SIGNAL + stopped)


def json_text(value: Any) -> str:
    """Format a value in one line of printable characters."""
    return json.dumps(value).replace("\x7f", "\\u007f")


def print_result(result: Mapping[str, Any], as_json: bool, *, title: str) -> None:
    """Print one result: a JSON object in one line, or a table of two columns."""
    if as_json:
        sys.stdout.write(f"{json_text(_redacted(result))}\n")
        return
    redacted = _redacted(result).items()
    rows = [(name.replace("_", " "), "unknown" if value is None else str(value)) for name, value in redacted]
    _print_rows(title, (), rows)


def print_change(counts: Mapping[str, Any], what: str, *, dry_run: bool, as_json: bool) -> None:
    """Print what was changed; with `dry_run`, what would be."""
    print_result({**counts, "dry_run": dry_run}, as_json, title=f"would be {what}" if dry_run else what)


def without_unknown(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is None: a table would call what has not happened unknown."""
    return {name: value for name, value in fields.items() if value is not None}


def end_with_refused(refused: Mapping[str, str], width: int) -> None:
    """Say why ids, shortened to `width`, were refused: the first of them; if there is any, end with exit code 1."""
    for name, why in list(refused.items())[:_REPORTED]:
        tell(f"{name[:width]} was refused: {why}")
    if len(refused) > _REPORTED:
        tell(f"and {len(refused) - _REPORTED} more; --json names all")
    if refused:
        raise typer.Exit(FAILED)


def _redacted(value: Any) -> Any:
    """Hide secrets in each value: a redacted line of JSON would be invalid."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {redact_text(name): inner if name in _AS_IT_CAME else _redacted(inner) for name, inner in value.items()}
    if isinstance(value, datetime):
        return plain_time(value)
    return [_redacted(inner) for inner in value] if isinstance(value, list | tuple) else value


def plain_time(time: datetime | None) -> str | None:
    """Format a time of the store, to the millisecond."""
    return None if time is None else time.isoformat(timespec="milliseconds")


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
    console = Console()
    with console.capture() as printed:  # a console that prints by itself ends a program whose reader is gone with 1
        console.print(table)
    sys.stdout.write(printed.get())


def print_error(text: str) -> None:
    """Print one line on standard error, passwords hidden."""
    from rich.text import Text

    console = stderr()
    with suppress(OSError):  # see _say; what the console writes by itself is empty, which a full disk refuses, too
        with console.capture() as said:  # see _print_rows
            console.print(Text.assemble(("error: ", "bold red"), visible(" ".join(redact_text(text).split()))))
        _say(said.get())


def open_closed_streams() -> None:
    """Let a standard stream that is closed (`>&-`) go nowhere.

    Otherwise the next file that is opened, such as a store's, would get its number, and what is printed.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= _LAST_STREAM:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(_LAST_STREAM, "w")


def has_reader() -> bool:
    """Tell whether standard output is still read; where it is not, drop what is left of it silently."""
    try:
        sys.stdout.flush()
        if not _is_broken(sys.stdout):  # with PYTHONUNBUFFERED=1 nothing is left to be written
            return True
    except BrokenPipeError:
        pass
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, sys.stdout.fileno())
    os.close(silence)
    return False


def _is_broken(stream: TextIO) -> bool:
    """Tell whether who read a pipe is gone, where the system tells that and the stream is a file of it."""
    try:
        asked = select.poll()
        asked.register(stream.fileno(), 0)
    except (AttributeError, io.UnsupportedOperation):  # Windows; a stream in memory
        return False
    return any(said & select.POLLERR for _, said in asked.poll(0))


@contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """Turn errors and signals into one line and an exit code: 2 for wrong input, 1 for all other failures.

    With `CUESQUEUE_DEBUG=1` the exception is raised as it is.
    """
    try:
        with on_signals():
            yield
    except (Stopped, KeyboardInterrupt) as stopped:
        end_as_stopped(stopped.signal if isinstance(stopped, Stopped) else signal.SIGINT)
    except BrokenPipeError:
        if not has_reader():
            raise typer.Exit(READER_GONE) from None
        raise
    except Exception as error:
        from shard_store import errors  # here: the package loads SQLAlchemy, which `--help` does not need

        if debugging() or not isinstance(error, (CuesqueueError, errors.ShardStoreError, OSError, MemoryError)):
            raise
        print_error("memory ran out" if isinstance(error, MemoryError) else str(error))
        wrong_use = isinstance(error, (OptionError, QueueConfigurationError, errors.StoreConfigurationError))
        raise typer.Exit(WRONG_USE if wrong_use else FAILED) from None


def time_text(seconds: float | None) -> str:
    """Format seconds, with a unit that suits them."""
    if seconds is None:
        return "unknown"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    for unit, length in (("s", 1), ("min", 60), ("h", 3600)):
        if seconds < 120 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def number(count: float | None) -> str:
    """Format a count, with commas between thousands."""
    if count is None:
        return "unknown"
    return f"{count:.1f}" if 0 < count < 10 and count != int(count) else f"{round(count):,}"


def counted(count: float | None, name: str, names: str = "") -> str:
    """Format a count with the name of what is counted, in the singular for one."""
    return f"{number(count)} {name if count == 1 else names or name + 's'}"


def size_text(size: float | None) -> str:
    """Format bytes, with a unit that suits them."""
    if size is None:
        return "unknown bytes"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
