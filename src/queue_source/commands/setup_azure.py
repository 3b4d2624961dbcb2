"""Sets up what Azure needs to announce a prefix through a storage queue: the commands of `az` for the missing parts.

Azure's libraries for it are many and change often, and its users have its command line: so this runs `az`, or prints
what it would run (decision 0084). Existing things stay as they are. So a second run changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from queue_source.errors import CuesqueueError, OptionError
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
        if not self.has_az or not self._is_subscribed(ours):
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

    def _is_subscribed(self, ours: Sequence[str]) -> bool:
        """Return whether the subscription is there. Raises CuesqueueError for one of this name that is for others.

        Names of queues have fewer characters than prefixes.
        """
        query = "--query", "filter.[subjectBeginsWith, subjectEndsWith]", "--output", "json"
        filters = _az(["eventgrid", "event-subscription", "show", *ours, *query], absent=_ABSENT)
        if filters is None:
            return False
        begins, ends = (text or "" for text in json.loads(filters or "null") or ("", ""))
        if (begins, ends) != (self._subject, self.suffix):
            raise CuesqueueError(
                f"the event subscription {self.queue!r} is there, for objects whose subject begins with {begins!r} and "
                f"ends with {ends!r}; name another queue with --queue"
            )
        return True

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
