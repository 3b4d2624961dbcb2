"""The `cuesqueue` program: the commands are one file a group; what they need is imported when they run."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from queue_source.commands.doctor import doctor
from queue_source.commands.errors import group as errors_group
from queue_source.commands.files import files
from queue_source.commands.load import load
from queue_source.commands.output import READER_GONE, Json, errors_as_exit_codes, has_reader, print_result
from queue_source.commands.queue import group as queue_group
from queue_source.commands.reconcile import reconcile
from queue_source.commands.route import route
from queue_source.commands.send import send
from queue_source.commands.serve import serve
from queue_source.commands.setup import app as setup
from queue_source.commands.shards import group as shards_group
from queue_source.commands.status import status
from queue_source.commands.store import adopt, migrate, prune, reset, vacuum

_REMOVED = dict.fromkeys(
    ("export", "import"),
    "is gone; a dump of the database by its own means keeps and moves a store: docs/how-to/backup.md says how",
)
"""Commands of earlier versions, and what to do instead."""


class _Program(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in _REMOVED:
            ctx.fail(f"cuesqueue {args[0]} {_REMOVED[args[0]]}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with errors_as_exit_codes():
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Program,
    name="cuesqueue",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # it prints local variables, and they hold secrets
    rich_markup_mode=None,  # plain help: it loads in half the time
    help="Exactly-once Spark streaming from message queues: send messages, and manage queues, errors and the store.\n\n"
    "Exit codes: 0 done, 1 failed, 2 wrong use, 3 found something unhealthy (status, doctor). CUESQUEUE_STORE names "
    "the store in place of --store; CUESQUEUE_DEBUG=1 shows tracebacks.",
)


def _add(name: str) -> None:
    """Add a command that is a package of its own: a wheel and a checkout have it, a copy of the others has not."""
    if find_spec(f"cuesqueue_{name}"):
        app.command()(getattr(import_module(f"cuesqueue_{name}.command"), name))


_add("demo")
app.command()(send)
app.command("publish", hidden=True)(send)  # the earlier name
app.command()(load)
_add("prove")
app.command()(route)
app.command()(status)
app.command()(serve)
app.command()(files)
app.add_typer(queue_group)
app.add_typer(errors_group)
app.add_typer(shards_group)
app.command()(prune)
app.command()(vacuum)
app.command()(reconcile)
app.command()(migrate)
app.command()(adopt)
app.command()(reset)
app.command()(doctor)
app.add_typer(setup, name="setup")


def _installed_version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"cuesqueue {_installed_version('cuesqueue')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version, and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    del show_version  # its callback has printed it


@app.command()
def version(as_json: Json = False) -> None:
    """Print the version of cuesqueue, and of what it works with."""
    import platform

    packages = ("cuesqueue", "pyspark", "pyarrow", "sqlalchemy")
    versions = {package: _installed_version(package) for package in packages}
    print_result({**versions, "python": platform.python_version()}, as_json, title="versions")


def run() -> None:
    """Run the `cuesqueue` program: its entry point."""
    try:
        app()
    finally:
        if not has_reader():
            sys.exit(READER_GONE)


if __name__ == "__main__":
    run()
