"""`cuesqueue setup`: what is made once: cloud resources (`setup_aws.py`, `setup_gcp.py`), a faster PySpark, files.

For Azure this runs its command line, `az`, or prints what it would run: Azure's libraries for it are
many and change often. Existing things stay as they are. So a second run changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

from queue_source.commands.output import Json, hide_secrets, print_result, tell
from queue_source.commands.parameters import DryRun, argument, flag, option
from queue_source.errors import CuesqueueError, OptionError
from queue_source.spark.bytecode import archive_of, compile_archive
from queue_source.uris import plain_prefix
from shard_store.redaction import redact_text

DEAD_LETTERS = "cuesqueue-dead-letters"
_LONGEST_NAME = 63
_PLACE = re.compile(r"abfss://(?P<container>[^/@]+)@(?P<account>[a-z0-9]+)\.[^/]+/(?P<prefix>.*)", re.DOTALL)
_SECONDS = 300
_ABSENT = re.compile("not ?found|could not be found|n[o']t exist", re.IGNORECASE)
_ID = '"$(az storage account show --name {} --query id --output tsv)"'

Change = dict[str, Any]
"""One thing to do: `action`, what it is about, and the `command` that does it."""


def parse_place(text: str) -> tuple[str, str, str]:
    """Return account, container and prefix of `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX`."""
    try:
        place = _PLACE.fullmatch(plain_prefix(text))
    except ValueError:
        place = None
    if place is None:
        raise OptionError(
            "PREFIX",
            f"{text!r} is not a place in Azure; write abfss://container@account.dfs.core.windows.net/prefix",
        )
    return place["account"], place["container"], place["prefix"]


def default_name(container: str, prefix: str) -> str:
    """Build a queue's name that shows its purpose, and is the same at each run."""
    name = re.sub(r"[^a-z0-9]+", "-", f"cuesqueue-{container}-{prefix}".lower()).strip("-")
    if len(name) > _LONGEST_NAME:
        digest = hashlib.sha256(f"{container}/{prefix}".encode()).hexdigest()
        name = f"{name[: _LONGEST_NAME - 9].rstrip('-')}-{digest[:8]}"
    return name


@dataclass
class Setup:
    """The queue, its subscription of Event Grid, and the container of what cannot be delivered.

    `tags`: texts `NAME=VALUE`: metadata of the queue and the container, labels of the subscription.
    """

    account: str
    container: str
    prefix: str
    queue: str
    queue_account: str
    suffix: str = ""
    dead_letters: str = DEAD_LETTERS
    tags: Sequence[str] = ()
    auth_mode: str = "login"
    _known: dict[str, str] = field(default_factory=dict)

    @cached_property
    def has_az(self) -> bool:
        """Whether Azure's command line is installed."""
        return shutil.which("az") is not None

    def apply(self, changes: Sequence[Change]) -> None:
        """Make the missing parts. Raises CuesqueueError where `az` is absent or fails."""
        if not self.has_az:
            raise CuesqueueError(
                "the command az is not installed; install Azure's command line, or run elsewhere what --dry-run prints"
            )
        for change in changes:
            _az(change["arguments"])

    def reader_options(self) -> dict[str, str]:
        """Return the options for `spark.readStream.format("cuesqueue")`."""
        place = f"abfss://{self.container}@{self.account}.dfs.core.windows.net/{self.prefix}"
        return {"queueUrl": f"azurequeue://{self.queue_account}/{self.queue}", "allowedPrefixes": place}

    def changes(self) -> Iterator[Change]:
        """Yield the missing parts, in the order in which they have to be made; all of them where `az` is absent."""
        state = "provider", "show", "--namespace", "Microsoft.EventGrid", "--query", "registrationState"
        if not self.has_az or _az([*state, "--output", "tsv"]) != "Registered":
            yield _change(
                "register-event-grid", "Microsoft.EventGrid", "provider", "register", "--namespace",
                "Microsoft.EventGrid", "--wait",
            )  # fmt: skip
        for kind, name, account in (
            ("queue", self.queue, self.queue_account),
            ("container", self.dead_letters, self.account),
        ):
            access = "--name", name, "--account-name", account, "--auth-mode", self.auth_mode
            query = "storage", kind, "exists", *access, "--query", "exists", "--output", "tsv"
            if not self.has_az or _az(query) != "true":
                metadata = ("--metadata", *self.tags) if self.tags else ()
                yield _change(f"create-{kind}", name, "storage", kind, "create", *access, *metadata)
        ours = "--name", self.queue, "--source-resource-id", self._id(self.account)
        filters_of = "--query", "filter.[subjectBeginsWith, subjectEndsWith]", "--output", "json"
        show = ["eventgrid", "event-subscription", "show", *ours, *filters_of]
        filters = _az(show, absent=_ABSENT) if self.has_az else None
        if filters is not None:
            begins, ends = (text or "" for text in json.loads(filters or "null") or ("", ""))
            if (begins, ends) != (self._subject, self.suffix):  # names of queues have fewer characters than prefixes
                raise CuesqueueError(
                    f"the event subscription {self.queue!r} is there, for objects whose subject begins with "
                    f"{begins!r} and ends with {ends!r}; name another queue with --queue"
                )
        else:
            queue = f"{self._id(self.queue_account)}/queueServices/default/queues/{self.queue}"
            dead_letters = f"{self._id(self.account)}/blobServices/default/containers/{self.dead_letters}"
            yield _change(
                "create-event-subscription",
                self.queue,
                *("eventgrid", "event-subscription", "create", *ours),
                *("--endpoint-type", "storagequeue", "--endpoint", queue),
                "--storage-queue-msg-ttl=-1",  # without it, a week
                *("--included-event-types", "Microsoft.Storage.BlobCreated"),
                *("--subject-begins-with", self._subject),
                *(("--subject-ends-with", self.suffix) if self.suffix else ()),
                *("--subject-case-sensitive", "true"),
                *("--deadletter-endpoint", dead_letters),
                *(("--labels", *self.tags) if self.tags else ()),
            )

    @property
    def _subject(self) -> str:
        return f"/blobServices/default/containers/{self.container}/blobs/{self.prefix}"

    def _id(self, account: str) -> str:
        """Return the id of an account's resource, or the shell's way to it where `az` is absent."""
        if not self.has_az:
            return _ID.format(account)
        if account not in self._known:
            self._known[account] = str(
                _az(["storage", "account", "show", "--name", account, "--query", "id", "--output", "tsv"])
            )
        return self._known[account]


def _change(action: str, name: str, *arguments: str) -> Change:
    # as it is typed into a shell; what the shell is to look up stays as it is
    words = [word if word.startswith('"$(') else shlex.quote(word) for word in arguments]
    return {"action": action, "name": name, "command": " ".join(["az", *words]), "arguments": list(arguments)}


def _az(arguments: Sequence[str], absent: re.Pattern[str] | None = None) -> str | None:
    """Run a command of `az`, and return its output; None where its error is that a thing is `absent`."""
    try:
        done = subprocess.run(["az", *arguments], capture_output=True, text=True, check=False, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise CuesqueueError(
            f"az {' '.join(arguments[:3])}: not done after {_SECONDS} s; run it again: it continues where it stopped"
        ) from None
    if done.returncode == 0:
        return done.stdout.strip()
    text = redact_text(done.stderr.strip())
    if absent is not None and absent.search(text):
        return None
    last = text.splitlines()[-1] if text else f"exit code {done.returncode}"
    raise CuesqueueError(
        f"az {' '.join(arguments[:3])}: {last}; run it again once that is solved (az login, permissions: "
        "docs/how-to/azure.md); it continues where it stopped"
    )


MONITORING = Path(__file__).resolve().parents[1] / "serve" / "monitoring"
app = typer.Typer(
    no_args_is_help=True, help="Make what is needed once: queues of a cloud, a faster PySpark, files for Grafana."
)


@app.callback()
def _group() -> None:
    """Make what is needed once: queues of a cloud that announce objects, a PySpark that starts faster, a dashboard."""


@app.command()
def pyspark(
    spark_home: Annotated[str | None, option("DIR", "Spark's folder; else that of the PySpark installed here.")] = None,
    as_json: Json = False,
) -> None:
    """Compile PySpark once, so that the Python processes of each query start in half the time.

    Bytecode for this Python is added to python/lib/pyspark.zip, 7 MB. Run it where driver and executors have PySpark.
    """
    archive = archive_of(spark_home or None)
    if archive is None:
        raise OptionError("--spark-home", "names no folder, and PySpark is not installed here; name one")
    try:
        compiled = compile_archive(archive)
    except OSError as error:
        raise OptionError(
            "--spark-home", f"{error.filename}: {error.strerror}; name the folder of a Spark that you may change"
        ) from None
    print_result({"archive": str(archive), "modules compiled": compiled}, as_json, title="done")


@app.command()
def monitoring(
    folder: Annotated[Path, argument("FOLDER", "Where the files go; made if missing.")],
    as_json: Json = False,
) -> None:
    """Write the dashboard for Grafana and the alert rules for Prometheus into a folder.

    They fit this version of `cuesqueue serve`. Files of these names are written over.
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
    queue: Annotated[str | None, option("NAME", "Name of the queue; else made of bucket and prefix.")] = None,
    profile: Annotated[str | None, option("P", "Profile of the AWS configuration files.")] = None,
    endpoint_url: Annotated[str | None, option("URL", "Address of a service that speaks AWS's protocols.")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make an SQS queue with its dead-letter queue, to which the bucket announces new objects of the prefix.

    What exists is not changed, other notifications of the bucket neither. The result ends with options for the reader.
    """
    try:
        from queue_source.commands import setup_aws
    except ModuleNotFoundError as error:
        raise CuesqueueError(f"setup aws needs {error.name}: pip install 'cuesqueue[aws]'") from None

    bucket, inner = setup_aws.parse_prefix(prefix)
    name = queue or setup_aws.default_name(bucket, inner)
    with closing(setup_aws.Setup(bucket, inner, name, profile, endpoint_url)) as setup:
        _set_up(setup, dry_run, as_json, "send them once (cuesqueue send --notification s3)")


@app.command()
def azure(
    prefix: Annotated[
        str, argument("PREFIX", "What is announced, as abfss://container@account.dfs.core.windows.net/prefix.")
    ],
    queue: Annotated[
        str | None, option("NAME", "Name of queue and subscription; else made of container and prefix.")
    ] = None,
    queue_account: Annotated[
        str | None, option("ACCOUNT", "Storage account of the queue; else that of the objects.")
    ] = None,
    suffix: Annotated[str, option("TEXT", "Announce only names that end so, as .json.")] = "",
    dead_letters: Annotated[
        str, option("CONTAINER", "Where Event Grid leaves what it could not deliver.")
    ] = "cuesqueue-dead-letters",
    tag: Annotated[
        list[str] | None, option("NAME=VALUE", "Metadata of queue and container, label of the subscription.")
    ] = None,
    auth_mode: Annotated[
        str, option("MODE", "How az makes queue and container: login, or key, the account's.")
    ] = "login",
    dry_run: Annotated[bool, flag("--dry-run", "Print what would be done, with the commands; do nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Make a storage queue, to which Event Grid announces new objects of the prefix, by Azure's command line, az.

    What exists is not changed. Without az, --dry-run prints all commands. The result ends with options for the reader.
    """
    _check_tags(tag)
    account, container, inner = parse_place(prefix)
    name = queue or default_name(container, inner)
    places = account, container, inner, name, queue_account or account
    setup = Setup(*places, suffix, dead_letters, tag or (), auth_mode)
    _set_up(setup, dry_run, as_json, "list them once (backfillPrefixes)")


@app.command()
def gcp(
    prefix: Annotated[str, argument("PREFIX", "What is announced, as gs://bucket/prefix.")],
    queue: Annotated[
        str, option("NAME", "Name of topic and subscription; else made of bucket and prefix.", show_default=False)
    ] = "",
    project: Annotated[str, option("P", "Their project; else that of the credentials.", show_default=False)] = "",
    credentials_file: Annotated[str | None, option("FILE", "Key of a service account; else Google's default.")] = None,
    tag: Annotated[list[str] | None, option("NAME=VALUE", "Label of topics and subscriptions.")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make a Pub/Sub subscription with dead letters, to which the bucket announces new objects of the prefix.

    What exists is not changed. The result ends with the reader's options and roles.
    """
    try:
        from queue_source.commands import setup_gcp
    except ModuleNotFoundError as error:
        raise CuesqueueError(f"setup gcp needs {error.name}: pip install 'cuesqueue[pubsub]'") from None

    _check_tags(tag)
    labels = dict(text.split("=", 1) for text in tag or ())
    place = setup_gcp.parse_place(prefix)
    with closing(setup_gcp.Setup(*place, queue, project, credentials_file, labels)) as setup:
        _set_up(setup, dry_run, as_json, "list them once (backfillPrefixes)", setup.reader_roles())


def _check_tags(tags: Sequence[str] | None) -> None:
    if wrong := next((text for text in tags or () if not text.partition("=")[1]), None):
        raise OptionError("--tag", f"{wrong!r} has no value; write NAME=VALUE")


def _set_up(setup: Any, dry_run: bool, as_json: bool, hint: str, roles: Mapping[str, str] | None = None) -> None:
    """Make the missing parts, and print them. `hint`: how objects are announced that were there before.

    `roles`: those that the reader needs, and where.
    """
    changes: list[Change] = list(setup.changes())
    if not dry_run:
        setup.apply(changes)
    options = setup.reader_options()
    if as_json:
        listed = [{part: value for part, value in change.items() if part != "arguments"} for change in changes]
        result = {"changes": listed, "dry_run": dry_run, "options": options, **({"roles": roles} if roles else {})}
        print_result(result, True, title="")
        return
    # each in one piece on a line of its own, so that it can be copied
    lines = ["would be done:" if dry_run else "done:"]
    for number, change in enumerate(changes, 1):
        about = change.get("name") or change.get("queue") or change["bucket"]
        what = change.get("attributes") or change.get("configuration")
        text = change["command"] if dry_run and "command" in change else about
        lines.append(f"  {number}. {change['action']}: {text}{f': {json.dumps(what)}' if what else ''}")
    lines += [] if changes else ["  nothing to change: everything was there"]
    lines += ["options of the reader:", *(f"  {name}  {value}" for name, value in options.items())]
    lines += ["roles of the reader:", *(f"  {role}  {place}" for role, place in roles.items())] if roles else []
    for line in lines:
        typer.echo(hide_secrets(line))
    if changes:
        tell(f"objects that were there before are not announced: {hint}")
