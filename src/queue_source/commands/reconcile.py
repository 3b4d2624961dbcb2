"""`cuesqueue reconcile`: compares a bucket with what is published, with proof, and with the next steps."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_source.commands.filters import duration_of
from queue_source.commands.output import FAILED, DryRun, Json, Store, named_options, print_result, progress, tell
from queue_source.errors import OptionError
from queue_source.options.types import TIME

if TYPE_CHECKING:
    from queue_source.admin.reconcile import Announcer, Period, Report
    from queue_source.messages import ListedObject
    from queue_source.options import ListingOptions
    from queue_source.storage.buckets.base import Page
    from queue_source.storage.inventory import Inventory
    from shard_store.completeness.certificates import Certificate, Difference
    from shard_store.completeness.comparing import Finding
    from shard_store.store import ShardStore

_SHOWN = 10  # names of each kind that people see; --list has all
_CHANGED = (
    "changed objects are published as they were before, and are not read again by themselves, unless they were empty "
    "then (--send announces those); `cuesqueue shards forget URI`, and then --send, adds the rows of the new versions "
    "to those of the old ones, which you remove where they went"
)


class Form(str, Enum):
    OWN = "own"
    URI = "uri"


def reconcile(
    store: Store,
    prefixes: Annotated[
        list[str] | None,
        typer.Argument(metavar="PREFIX...", help="What is compared, as in s3://landing/orders/ or file:///data/in/."),
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="S", help="The source that reads it; needed if the store has several.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="An option of the reader: those that choose its objects (allowedPrefixes, allowOverwrites, "
            "pathGlobFilter, fullPathGlobFilter, readHiddenFiles, modifiedAfter, modifiedBefore), as the reader has "
            "them, and those that reach the bucket (s3.*, aws.*, azure.*); may be repeated. Secrets as env:NAME or "
            "file:PATH.",
        ),
    ] = None,
    profile: Annotated[str | None, typer.Option(metavar="P", help="Profile of the AWS configuration files.")] = None,
    endpoint_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of a service that speaks AWS's protocols.")
    ] = None,
    inventory: Annotated[
        str | None,
        typer.Option(metavar="MANIFEST", help="Take the objects from an S3 Inventory: the URI of its manifest.json."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only objects last modified from this time on (UTC).")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only objects last modified before this time (UTC, by the bucket's clock); otherwise --grace ago.",
        ),
    ] = None,
    grace: Annotated[
        str, typer.Option(metavar="D", help="How long an object may take to be announced and published.")
    ] = "10m",
    certificate: Annotated[
        int | None,
        typer.Option(
            metavar="ID",
            help="Check this certificate again: its prefix, times and options of choice are taken from it.",
        ),
    ] = None,
    send: Annotated[
        str | None,
        typer.Option(
            metavar="QUEUE_URL",
            help="Announce what is missing, or was empty when it was read, to this queue, which the reader reads.",
        ),
    ] = None,
    notification: Annotated[
        Form,
        typer.Option(metavar="own|uri", help="With --send: events as the object's store sends them, or plain URIs."),
    ] = Form.OWN,
    certify: Annotated[bool, typer.Option("--certify", help="Write a certificate for each prefix.")] = False,
    names: Annotated[
        str | None,
        typer.Option(
            "--list",
            metavar="FILE",
            help="Write every object that is not published into this file, as lines of JSON; - is standard output.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Compare what is in a bucket with what was published, and say what is missing.

    Exit code 0: complete. 1: something is missing, quarantined, skipped, given up, not yet published or changed since,
    the store has forgotten too much to say, or there was no object to compare; also where the listing failed. 2: wrong
    use.
    """
    reader_options = _options(option or (), profile, endpoint_url)
    import shard_store
    from queue_source.admin.reconcile import Period
    from queue_source.options import options_of_choice, parse_listing_options

    period = Period(_time("--since", since), _time("--until", until), duration_of("--grace", grace))
    with ExitStack() as stack:
        opened = stack.enter_context(shard_store.open_store(store, create=False))
        checked: Certificate | None = None
        if certificate is not None:
            if prefixes or since or until or source:
                raise OptionError(
                    "--certificate", "says what is compared; leave out PREFIX, --source, --since and --until"
                )
            checked = opened.certificate(certificate)
            period, source = _period_of(checked, period), checked.scope.source
            prefixes = [checked.scope.prefix]
            reader_options = {**options_of_choice(checked.scope.choice), **reader_options}
        if not prefixes:
            raise OptionError("PREFIX", "nothing is named; write what to compare, as in s3://landing/orders/")
        options = parse_listing_options(prefixes, reader_options)
        job = _Job(
            opened,
            opened.source_of(source),
            options,
            period,
            _inventory(inventory, options),
            stack.enter_context(_announcer(send, notification, dry_run)),
            stack.enter_context(_names(names)),
            checked,
            certify and not dry_run,
            not as_json,
        )
        results = [job.run(prefix) for prefix in options.prefixes]
    _print(results, as_json, dry_run, certify)
    if any(result["verdict"] != "complete" for result in results):
        raise typer.Exit(FAILED)


@dataclass(frozen=True, slots=True)
class _Job:
    store: ShardStore
    source: str
    options: ListingOptions
    period: Period
    inventory: Inventory | None
    announcer: Announcer | None
    write_name: Callable[[ListedObject, Finding], None]
    checked: Certificate | None
    certify: bool
    shows_progress: bool

    def run(self, prefix: str) -> dict[str, Any]:
        """Compare one prefix; return the result."""
        from queue_source.admin import reconcile as reconciling
        from queue_source.admin.audit import audit
        from shard_store.completeness.certificates import since

        sent = 0 if self.announcer is None else self.announcer.sent
        evidence = reconciling.LISTED if self.inventory is None else self.inventory.manifest
        try:
            with self._pages(prefix) as pages, progress("objects compared", None, self.shows_progress) as advance:
                report = reconciling.reconcile(
                    self.store,
                    self.source,
                    prefix,
                    self.options,
                    pages,
                    period=self.period,
                    evidence=evidence,
                    announcer=self.announcer,
                    unpublished=self.write_name,
                    advance=advance,
                )
        except BaseException:
            if self.announcer is not None and self.announcer.sent:
                tell(f"{self.announcer.sent} missing objects were announced before this; it does no harm to repeat it")
            raise
        earlier = self.checked or self.store.newest_certificate(report.scope)
        written = None
        if self.certify and report.is_certificate:
            written = self.store.certify(report.scope, evidence, report.tally, audit("").actor)
        result = _result(report, written)
        if self.announcer is not None:
            result["announced"] = self.announcer.sent - sent
            result["cannot_be_announced"] = len(self.announcer.unsendable)
        if earlier is not None:
            result["compared_with"] = _difference(earlier, since(earlier, report.tally))
        return result

    @contextmanager
    def _pages(self, prefix: str) -> Iterator[Iterator[Page]]:
        from queue_source.admin.reconcile import pages_of

        if self.inventory is not None:
            from queue_source.storage import inventory

            bucket = f"s3://{self.inventory.bucket}/"
            if not prefix.startswith(bucket):
                raise OptionError(
                    "--inventory", f"is of {bucket}, and {prefix!r} is not in it; name prefixes of that bucket"
                )
            with closing(inventory.pages(self.inventory, self.options.storage)) as pages:
                yield (
                    replace(page, objects=[listed for listed in page.objects if listed.uri.startswith(prefix)])
                    for page in pages
                )
            return
        from queue_source.storage.buckets import open_bucket

        with (
            closing(open_bucket(prefix, self.options.storage)) as listed,
            closing(pages_of(listed, prefix, versions=self.options.notifications.allow_overwrites)) as pages,
        ):
            yield pages


def _options(pairs: Iterable[str], profile: str | None, endpoint_url: str | None) -> dict[str, str]:
    options = {"aws.profile": profile, "aws.endpointUrl": endpoint_url}
    return {name: text for name, text in options.items() if text is not None} | named_options(pairs)


def _time(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time: datetime = TIME.parse(text)
    except ValueError as error:
        raise OptionError(option, str(error)) from None
    return time


def _period_of(certificate: Certificate, period: Period) -> Period:
    from shard_store.model import time_of

    scope = certificate.scope
    since = None if scope.modified_since is None else time_of(scope.modified_since)
    return replace(period, since=since, until=time_of(scope.modified_before))


def _inventory(manifest: str | None, options: ListingOptions) -> Inventory | None:
    if manifest is None:
        return None
    from queue_source.storage.inventory import open_inventory
    from queue_source.uris import plain_prefix

    try:
        uri = plain_prefix(manifest)
    except ValueError as error:
        raise OptionError("--inventory", str(error)) from None
    opened = open_inventory(uri, options.storage)
    if options.notifications.allow_overwrites and not opened.has_versions:
        tell(
            "the inventory has no versions: with allowOverwrites, objects of a bucket that keeps versions are not "
            "recognised, and would all be missing; add VersionId to the inventory, or compare with a listing"
        )
    return opened


@contextmanager
def _announcer(queue_url: str | None, form: Form, dry_run: bool) -> Iterator[Announcer | None]:
    if queue_url is None:
        yield None
        return
    from queue_source.admin.reconcile import Announcer
    from queue_source.queues import open_queue

    plain = form is Form.URI
    if dry_run:
        yield Announcer(None, plain=plain)
        return
    with open_queue(queue_url) as queue:
        yield Announcer(queue, plain=plain)


@contextmanager
def _names(file: str | None) -> Iterator[Callable[[ListedObject, Finding], None]]:
    if file is None:
        yield lambda listed, finding: None
        return
    from queue_source.admin.reconcile import iso

    with ExitStack() as stack:
        text = sys.stdout if file == "-" else stack.enter_context(Path(file).open("w", encoding="utf-8"))

        def write(listed: ListedObject, finding: Finding) -> None:
            entry = {
                "uri": listed.uri,
                "category": finding.category.value,
                "size": listed.size,
                "etag": listed.etag,
                "last_modified": iso(listed.modified),
                "pipeline": finding.pipeline,
            }
            text.write(json.dumps(entry) + "\n")

        yield write


def _result(report: Report, written: int | None) -> dict[str, Any]:
    from queue_source.admin.reconcile import iso
    from shard_store.model import time_of

    scope = report.scope
    return {
        "verdict": report.verdict,
        "says": report.sentence(),
        "source": scope.source,
        "prefix": scope.prefix,
        "modified_since": None if scope.modified_since is None else iso(time_of(scope.modified_since)),
        "modified_before": iso(time_of(scope.modified_before)),
        "objects": report.tally.objects,
        **report.tally.counts,
        "outside_of_the_period": report.outside,
        "not_listed": report.skipped,
        "evidence": report.evidence,
        "digest": report.tally.digest,
        "certificate": written,
        "unpublished": {kind: uris for kind, uris in report.tally.unpublished.items() if uris},
    }


def _difference(earlier: Certificate, difference: Difference) -> dict[str, Any]:
    from queue_source.admin.reconcile import iso
    from shard_store.model import time_of

    return {
        "certificate": earlier.id,
        "written_at": iso(time_of(earlier.written_at)),
        "same": difference.same,
        "counts": {name: list(pair) for name, pair in difference.counts.items()},
        "appeared": difference.appeared,
        "gone": difference.gone,
        "all_names_kept": difference.whole,
    }


def _print(results: list[dict[str, Any]], as_json: bool, dry_run: bool, certify: bool) -> None:
    if as_json:
        complete = all(result["verdict"] == "complete" for result in results)
        print_result({"complete": complete, "prefixes": results, "dry_run": dry_run}, as_json, title="reconcile")
        return
    for result in results:
        hidden = ("says", "unpublished", "compared_with", "digest")
        rows = {name: value for name, value in result.items() if name not in hidden and value is not None}
        print_result(rows, as_json, title=result["prefix"])
        tell(result["says"])
        for kind, uris in result["unpublished"].items():
            for uri in uris[:_SHOWN]:
                tell(f"{kind.replace('_', ' ')}: {uri}")
            if (count := result[kind]) > _SHOWN:
                tell(f"and {count - _SHOWN:,} more {kind.replace('_', ' ')}; --list FILE writes all")
        if result["changed"]:
            tell(_CHANGED)
        for line in _compared(result.get("compared_with")):
            tell(line)
        if dry_run and certify:
            tell("no certificate was written (--dry-run)")


def _compared(comparison: Mapping[str, Any] | None) -> Iterator[str]:
    if comparison is None:
        return
    name = f"certificate {comparison['certificate']} of {comparison['written_at']}"
    if comparison["same"]:
        yield f"the same objects and numbers as in {name}"
        return
    counts = ", ".join(
        f"{kind.replace('_', ' ')} {was:,} -> {now:,}" for kind, (was, now) in comparison["counts"].items()
    )
    yield f"changed since {name}: {counts or 'the same numbers, and other objects or versions'}"
    for word, kinds in (("now", comparison["appeared"]), ("no longer", comparison["gone"])):
        for kind, uris in kinds.items():
            for uri in uris[:_SHOWN]:
                yield f"{word} {kind.replace('_', ' ')}: {uri}"
            if len(uris) > _SHOWN:
                yield f"and {len(uris) - _SHOWN:,} more that are {word} {kind.replace('_', ' ')}; --json has them"
    if not comparison["all_names_kept"]:
        yield "a certificate keeps the first 1,000 names of each kind, so not every change has a name here"
