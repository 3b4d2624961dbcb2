"""The `cuesqueue` program: a command, or a group of commands, is a file, which is imported when it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from queue_source.commands.output import (
    READER_GONE,
    Json,
    errors_as_exit_codes,
    has_reader,
    open_closed_streams,
    print_result,
)

_COMMANDS = {
    "demo": (
        "cuesqueue_demo.command:demo",
        "Publish a year of flights exactly once: three queues, duplicates, lost notifications, bad objects, a kill -9.",
    ),
    "send": ("queue:send", "Send messages to a queue."),
    "load": ("load:load", "Load the objects that a queue announces into files or a table, each once."),
    "prove": (
        "cuesqueue_prove.command:prove",
        "Kill a job at every step of a micro-batch, and compare what its sink holds.",
    ),
    "route": ("route:route", "Receive messages of one queue for many sources, until SIGTERM or Ctrl-C."),
    "status": (
        "status:status_command",
        "Show which pipelines are alive, how far behind they are, how fast, and what went wrong.",
    ),
    "serve": (
        "store:serve",
        "Serve a page, metrics and a health check of all pipelines of a store, until Ctrl-C.",
    ),
    "files": (
        "store:files",
        "List the Parquet files that the sink with path has published, a path a line, in their order.",
    ),
    "prune": (
        "store:prune",
        "Remove finished shards that are older than the deduplication window, and all else that nothing needs.",
    ),
    "compact": (
        "compact:compact_command",
        "Join small files of the sink with path into large ones: views show the same rows at each moment.",
    ),
    "vacuum": (
        "vacuum:vacuum_command",
        "Remove what was never published: files in the sink's folder, and messages staged in the store's database.",
    ),
    "reconcile": (
        "reconcile:reconcile",
        "Compare what is in a bucket with what was published, and say what is missing.",
    ),
    "migrate": (
        "store:migrate",
        "Bring the store's tables to this version's schema; in an empty database, create them.",
    ),
    "adopt": (
        "adopt:adopt_command",
        "Take over the list of files that another reader, such as Spark's file source, has read: none is read again.",
    ),
    "reset": (
        "store:reset",
        "Have a stopped source begin anew: objects that are announced once more are read and published ONCE MORE.",
    ),
    "doctor": (
        "doctor:doctor",
        "Check what a query needs: Java, Python, the store, and with the reader's options its queues and objects.",
    ),
    "version": ("main:version", "Print the version of cuesqueue, and of what it works with."),
    "queue": ("queue:group", "Show queues and their messages; create, empty and delete queues."),
    "errors": ("errors:group", "Find what could not be processed, and have it processed once it is repaired."),
    "shards": ("shards:group", "See what became of an object, and get a stream past one."),
    "setup": ("setup:app", "Make what is needed once: queues of a cloud, a faster PySpark, files for Grafana."),
}
"""By name: the function or group, in its module of this package or another one, and the first sentence of its help."""

_WITH_SPARK = ("demo", "prove")
"""Commands whose processes start Spark; `load` looks for Java itself, and not for a dry run."""

_REMOVED = dict.fromkeys(
    ("export", "import"),
    "is gone; a dump of the database by its own means keeps and moves a store: docs/how-to/backup.md says how",
)
"""Commands of earlier versions, and what to do instead."""


def _behind_java(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def checked(*arguments: Any, **options: Any) -> None:
        from queue_source.spark.java import require_java  # late: no other command needs it

        require_java()
        command(*arguments, **options)

    return checked


class Program(TyperGroup):
    """Lists its commands by their first sentences, and imports the one that runs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (place, sentence) in _COMMANDS.items():
            package = place.partition(".")[0]
            # a command may be a package of its own, which a copy of the other packages alone has not
            if package == place or find_spec(package):
                self.commands[name] = TyperCommand(name, help=sentence)
        self.commands["publish"] = TyperCommand("publish", hidden=True)  # the earlier name of send

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in _REMOVED:
            ctx.fail(f"cuesqueue {args[0]} {_REMOVED[args[0]]}")
        name, _, arguments = super().resolve_command(ctx, args)
        return name, self.load(str(name)), arguments

    def load(self, name: str) -> Any:
        """Import a command, or a group of them."""
        module, _, attribute = _COMMANDS["send" if name == "publish" else name][0].partition(":")
        command = getattr(import_module(module if "." in module else f"{__package__}.{module}"), attribute)
        if name in _WITH_SPARK:
            command = _behind_java(command)
        outer = typer.Typer(rich_markup_mode=None)
        if isinstance(command, typer.Typer):
            outer.add_typer(command, name=name)
        else:
            outer.command(name)(command)
        return typer.main.get_group(outer).commands[name]

    def invoke(self, ctx: Any) -> Any:
        with errors_as_exit_codes():
            return super().invoke(ctx)


app = typer.Typer(
    cls=Program,
    name="cuesqueue",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # it prints local variables, and they hold secrets
    rich_markup_mode=None,  # plain help: it loads in half the time
    help="Exactly-once Spark streaming from message queues: send messages, and manage queues, errors and the store.\n\n"
    "Exit codes: 0 done, 1 failed, 2 wrong use, 3 found something unhealthy (status, doctor, load --max-errors), "
    "130 and 143 stopped before the end, by Ctrl-C and SIGTERM. "
    "CUESQUEUE_STORE names the store in place of --store; CUESQUEUE_DEBUG=1 shows tracebacks.",
)


def _installed(name: str) -> str:
    try:
        return version_of(name)
    except PackageNotFoundError:
        return "not installed"


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"cuesqueue {_installed('cuesqueue')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version, and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    del show_version  # its callback has printed it


def version(as_json: Json = False) -> None:
    """Print the version of cuesqueue, and of what it works with."""
    import platform

    versions = {package: _installed(package) for package in ("cuesqueue", "pyspark", "pyarrow", "sqlalchemy")}
    print_result({**versions, "python": platform.python_version()}, as_json, title="versions")


def whole_program() -> Any:
    """Return the program with all its commands imported: for pages and checks that look at them."""
    program: Any = typer.main.get_command(app)
    program.commands = {name: program.load(name) for name, listed in program.commands.items() if not listed.hidden}
    return program


def run() -> None:
    """Run the `cuesqueue` program: its entry point."""
    open_closed_streams()
    try:
        app()
    finally:
        if not has_reader():
            sys.exit(READER_GONE)


if __name__ == "__main__":
    run()
