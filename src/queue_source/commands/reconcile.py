"""`cuesqueue reconcile`: compares a bucket with what is published, with proof, and with the next steps."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from queue_source.commands.comparison import LISTED, Announcer, Period, Report, iso, pages_of
from queue_source.commands.comparison import reconcile as compare
from queue_source.commands.output import FAILED, Json, print_result, progress, tell, without_unknown
from queue_source.commands.parameters import DryRun, Store, argument, duration_of, flag, named_options, option
from queue_source.errors import OptionError
from queue_source.messages import ListedObject
from queue_source.options import ListingOptions, options_of_choice, parse_listing_options
from queue_source.options.types import TIME
from queue_source.queues import open_queue
from queue_source.storage import inventory as inventories
from queue_source.storage.buckets import Page, open_bucket
from queue_source.storage.inventory import Inventory
from queue_source.uris import plain_prefix
from shard_store import open_store
from shard_store.completeness.certificates import Certificate
from shard_store.completeness.certificates import since as changes_since
from shard_store.completeness.comparing import Finding
from shard_store.model import time_of
from shard_store.shards.changes import Audit

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
        list[str] | None, argument("PREFIX...", "What is compared, as in s3://landing/orders/ or file:///data/in/.")
    ] = None,
    source: Annotated[str | None, option("S", "The source that reads it; needed if the store has several.")] = None,
    option: Annotated[
        list[str] | None,
        option(
            "NAME=VALUE",
            "An option of the reader: those that choose its objects (allowedPrefixes, allowOverwrites, "
            "pathGlobFilter, fullPathGlobFilter, readHiddenFiles, modifiedAfter, modifiedBefore), as the reader has "
            "them, and those that reach the bucket (s3.*, aws.*, azure.*); may be repeated. Secrets as env:NAME or "
            "file:PATH.",
        ),
    ] = None,
    profile: Annotated[str | None, option("P", "Profile of the AWS configuration files.")] = None,
    endpoint_url: Annotated[str | None, option("URL", "Address of a service that speaks AWS's protocols.")] = None,
    inventory: Annotated[
        str | None, option("MANIFEST", "Take the objects from an S3 Inventory: the URI of its manifest.json.")
    ] = None,
    since: Annotated[str | None, option("TIME", "Only objects last modified from this time on (UTC).")] = None,
    until: Annotated[
        str | None,
        option(
            "TIME", "Only objects last modified before this time (UTC, by the bucket's clock); otherwise --grace ago."
        ),
    ] = None,
    grace: Annotated[str, option("D", "How long an object may take to be announced and published.")] = "10m",
    certificate: Annotated[
        int | None,
        option("ID", "Check this certificate again: its prefix, times and options of choice are taken from it."),
    ] = None,
    send: Annotated[
        str | None,
        option(
            "QUEUE_URL",
            "Announce what is missing, or was empty when it was read, to this queue, which the reader reads.",
        ),
    ] = None,
    notification: Annotated[
        Form, option("own|uri", "With --send: events as the object's store sends them, or plain URIs.")
    ] = Form.OWN,
    certify: Annotated[bool, flag("--certify", "Write a certificate for each prefix.")] = False,
    names: Annotated[
        str | None,
        option(
            "FILE",
            "Write every object that is not published into this file, as lines of JSON; - is standard output.",
            "--list",
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
    configured = {"aws.profile": profile, "aws.endpointUrl": endpoint_url}
    reader_options = {name: text for name, text in configured.items() if text is not None} | named_options(option)
    period = Period(_time("--since", since), _time("--until", until), duration_of("--grace", grace))
    with ExitStack() as stack:
        opened = stack.enter_context(open_store(store, create=False))
        checked: Certificate | None = None
        if certificate is not None:
            if prefixes or since or until or source:
                raise OptionError(
                    "--certificate", "says what is compared; leave out PREFIX, --source, --since and --until"
                )
            checked = opened.certificate(certificate)
            scope = checked.scope
            begins = None if scope.modified_since is None else time_of(scope.modified_since)
            period = replace(period, since=begins, until=time_of(scope.modified_before))
            source, prefixes = scope.source, [scope.prefix]
            reader_options = {**options_of_choice(scope.choice), **reader_options}
        if not prefixes:
            raise OptionError("PREFIX", "nothing is named; write what to compare, as in s3://landing/orders/")
        options = parse_listing_options(prefixes, reader_options)
        source_read = opened.source_of(source)
        manifest = _inventory(inventory, options)
        evidence = LISTED if manifest is None else manifest.manifest
        announcer: Announcer | None = None
        if send is not None:
            queue = None if dry_run else stack.enter_context(open_queue(send))
            announcer = Announcer(queue, plain=notification is Form.URI)
        write_name = stack.enter_context(_names(names))
        results = []
        for prefix in options.prefixes:
            sent = 0 if announcer is None else announcer.sent
            try:
                with _pages(prefix, manifest, options) as pages, progress("objects compared", None, not as_json) as bar:
                    report = compare(
                        opened,
                        source_read,
                        prefix,
                        options,
                        pages,
                        period=period,
                        evidence=evidence,
                        announcer=announcer,
                        unpublished=write_name,
                        advance=bar,
                    )
            except BaseException:
                if announcer is not None and announcer.sent:
                    tell(f"{announcer.sent} missing objects were announced before this; it does no harm to repeat it")
                raise
            earlier = checked or opened.newest_certificate(report.scope)
            written = None
            if certify and not dry_run and report.is_certificate:
                written = opened.certify(report.scope, evidence, report.tally, Audit.of_user().actor)
            result = _result(report, written)
            if announcer is not None:
                result["announced"] = announcer.sent - sent
                result["cannot_be_announced"] = len(announcer.unsendable)
            if earlier is not None:
                difference = changes_since(earlier, report.tally)
                result["compared_with"] = {
                    "certificate": earlier.id,
                    "written_at": iso(earlier.written_at),
                    "same": difference.same,
                    "counts": {name: list(pair) for name, pair in difference.counts.items()},
                    "appeared": difference.appeared,
                    "gone": difference.gone,
                    "all_names_kept": difference.whole,
                }
            results.append(result)
    complete = all(result["verdict"] == "complete" for result in results)
    if as_json:
        print_result({"complete": complete, "prefixes": results, "dry_run": dry_run}, as_json, title="reconcile")
    else:
        for result in results:
            _print(result)
            if dry_run and certify:
                tell("no certificate was written (--dry-run)")
    if not complete:
        raise typer.Exit(FAILED)


def _time(option: str, text: str | None) -> datetime | None:
    try:
        return None if text is None else cast("datetime", TIME.parse(text))
    except ValueError as error:
        raise OptionError(option, str(error)) from None


@contextmanager
def _pages(prefix: str, manifest: Inventory | None, options: ListingOptions) -> Iterator[Iterator[Page]]:
    if manifest is None:
        with (
            closing(open_bucket(prefix, options.storage)) as bucket,
            closing(pages_of(bucket, prefix, versions=options.notifications.allow_overwrites)) as pages,
        ):
            yield pages
        return
    place = f"s3://{manifest.bucket}/"
    if not prefix.startswith(place):
        raise OptionError("--inventory", f"is of {place}, and {prefix!r} is not in it; name prefixes of that bucket")
    with closing(inventories.pages(manifest, options.storage)) as pages:
        yield (replace(page, objects=[o for o in page.objects if o.uri.startswith(prefix)]) for page in pages)


def _inventory(manifest: str | None, options: ListingOptions) -> Inventory | None:
    if manifest is None:
        return None
    try:
        uri = plain_prefix(manifest)
    except ValueError as error:
        raise OptionError("--inventory", str(error)) from None
    opened = inventories.open_inventory(uri, options.storage)
    if options.notifications.allow_overwrites and not opened.has_versions:
        tell(
            "the inventory has no versions: with allowOverwrites, objects of a bucket that keeps versions are not "
            "recognised, and would all be missing; add VersionId to the inventory, or compare with a listing"
        )
    return opened


@contextmanager
def _names(file: str | None) -> Iterator[Callable[[ListedObject, Finding], None]]:
    if file is None:
        yield lambda listed, finding: None
        return
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
    scope = report.scope
    return {
        "verdict": report.verdict,
        "says": report.sentence(),
        "source": scope.source,
        "prefix": scope.prefix,
        "modified_since": None if scope.modified_since is None else iso(scope.modified_since),
        "modified_before": iso(scope.modified_before),
        "objects": report.tally.objects,
        **report.tally.counts,
        "outside_of_the_period": report.outside,
        "not_listed": report.skipped,
        "evidence": report.evidence,
        "digest": report.tally.digest,
        "certificate": written,
        "unpublished": {kind: uris for kind, uris in report.tally.unpublished.items() if uris},
    }


def _print(result: dict[str, Any]) -> None:
    hidden = ("says", "unpublished", "compared_with", "digest")
    rows = without_unknown({name: value for name, value in result.items() if name not in hidden})
    print_result(rows, False, title=result["prefix"])
    tell(result["says"])
    for kind, uris in result["unpublished"].items():
        _tell_names("", kind, uris, result[kind], "--list FILE writes all")
    if result["changed"]:
        tell(_CHANGED)
    if (comparison := result.get("compared_with")) is None:
        return
    name = f"certificate {comparison['certificate']} of {comparison['written_at']}"
    if comparison["same"]:
        tell(f"the same objects and numbers as in {name}")
        return
    counts = ", ".join(
        f"{kind.replace('_', ' ')} {was:,} -> {now:,}" for kind, (was, now) in comparison["counts"].items()
    )
    tell(f"changed since {name}: {counts or 'the same numbers, and other objects or versions'}")
    for words, part in (("now ", "appeared"), ("no longer ", "gone")):
        for kind, uris in comparison[part].items():
            _tell_names(words, kind, uris, len(uris), "--json has them")
    if not comparison["all_names_kept"]:
        tell("a certificate keeps the first 1,000 names of each kind, so not every change has a name here")


def _tell_names(words: str, kind: str, uris: Sequence[str], count: int, hint: str) -> None:
    """Name the first objects of a kind, and say how many more there are."""
    what = f"{words}{kind.replace('_', ' ')}"
    for uri in uris[:_SHOWN]:
        tell(f"{what}: {uri}")
    if count > _SHOWN:
        tell(f"and {count - _SHOWN:,} more {'that are ' if words else ''}{what}; {hint}")
