"""Defects of this project's history, each as a small replacement in the source that puts it back, with its story.

They move with the code: where a text is no longer found, `check` says so, and the replacement is written anew for the
code as it is. One that cannot be put back any more, since its mechanism is gone, is removed with it.
"""

from __future__ import annotations

from typing import NamedTuple


class Defect(NamedTuple):
    """`old`, which stands exactly once in `file` (below `src`), becomes `new`; and so do the `others`, of any file."""

    name: str
    story: str
    file: str
    old: str
    new: str
    others: tuple[tuple[str, str, str], ...] = ()

    @property
    def changes(self) -> tuple[tuple[str, str, str], ...]:
        """File, old text and new one."""
        return ((self.file, self.old, self.new), *self.others)


DEFECTS = (
    # --- the store: opening, ownership, plans, publishing ---
    Defect(
        "owner-without-staleness",
        "A pipeline took shards whose owner was alive: both published them.",
        "shard_store/shards/ownership.py",
        "free = sa.and_(*its, sa.not_(kept))",
        "free = sa.and_(*its)",
    ),
    Defect(
        "fence-without-incarnation",
        "A driver that was paused and replaced published its batch when it woke up.",
        "shard_store/shards/ownership.py",
        "if row is None or row.incarnation != token.incarnation:",
        "if row is None:",
    ),
    Defect(
        "start-without-take-over",
        "A restarted pipeline waited for its own shards until they were stale.",
        "shard_store/batches/starting.py",
        "transaction.execute(ours.values(incarnation=token.incarnation))",
        "ours.values(incarnation=token.incarnation)",
    ),
    Defect(
        "position-not-compared",
        "A shard that another attempt had moved on was moved once more, and its rows were published twice.",
        "shard_store/batches/positions.py",
        """shards.c.shard_key == row_set.c["key"], shards.c.position == row_set.c["start"], ours""",
        """shards.c.shard_key == row_set.c["key"], ours""",
    ),
    Defect(
        "hash-of-what-is-left",
        "The hash was of what was left of a plan: where a shard had passed to another pipeline, the batch came twice.",
        "shard_store/batches/plans.py",
        "digest = row.plan_hash if repeated else delivery_hash(row.source, token.pipeline, planned, (after, seqs[1]))",
        "digest = delivery_hash(row.source, token.pipeline, included, (after, seqs[1]))",
    ),
    Defect(
        "last-met-version-counts",
        "Two actions of a batch read an object of unknown size in two versions: the later one was recorded.",
        "shard_store/batches/readings.py",
        "            c.size.is_(None),\n",
        "",
    ),
    Defect(
        "met-version-forgotten-by-a-restart",
        "A batch that was planned again after a kill met its objects of unknown size anew, in other versions.",
        "shard_store/shards/announcing.py",
        "version = place if repeated and content.size is None else content",
        "version = content",
    ),
    Defect(
        "hash-with-sparks-offset",
        "V4: the hash had Spark's start offset in it, so a checkpoint that was lost after a kill doubled a batch.",
        "shard_store/batches/plans.py",
        "made, marks = _make(transaction, row, token, (start_seq, end_seq), after, before)",
        "before = before if row.plan_start == start_seq else None\n"
        "        made, marks = _make(transaction, row, token, (start_seq, end_seq), after, before)\n"
        "        if start_seq != after:\n"
        "            other = made.identity.delivery_hash[::-1]\n"
        "            made = replace(made, identity=replace(made.identity, delivery_hash=other))",
    ),
    Defect(
        "left-out-comes-back",
        "What was lost to another pipeline at the first attempt was read at the second, by both.",
        "shard_store/batches/plans.py",
        "again = [r for r in planned if snapshots.mark(r) not in left_out_before] if left_out_before else planned",
        "again = planned",
    ),
    Defect(
        "lost-publication-believed",
        "A batch of ours that a restored store had lost counted as taken by another sink.",
        "shard_store/batches/progress.py",
        "if forgotten is not None and fail_on_data_loss:",
        "if forgotten is not None and fail_on_data_loss and not row.sink:",
    ),
    Defect(
        "parts-reopened",
        "An object that several tasks had read, one of which could not, was opened again: rows came twice.",
        "shard_store/shards/announcing.py",
        """.where(errors.c.scope == "object")
    )
    by_shard""",
        """
    )
    by_shard""",
    ),
    Defect(
        "pruned-while-needed",
        "Pruning forgot what cleaning had not come to yet, and the objects stayed for ever.",
        "shard_store/upkeep/pruning.py",
        "cutoff = min(cutoff, planned + 1)",
        "pass",
    ),
    Defect(
        "recorded-pruned",
        "Objects that a receiver had recorded were pruned, unread, when their reader was away for the window.",
        "shard_store/upkeep/pruning.py",
        "unowned = sa.and_(unowned, shards.c.queue.not_in(WITHOUT_MESSAGE))",
        "unowned = sa.and_(unowned, shards.c.queue != '')",
    ),
    Defect(
        "existing-of-one-prefix",
        "A second prefix of a source left out what was missing of the first.",
        "shard_store/completeness/listing.py",
        "sa.select(listings.c.listing_key).where(listings.c.source == source).limit(1)).first():",
        "sa.select(listings.c.listing_key).where(sa.false()).limit(1)).first():",
    ),
    Defect(
        "password-of-a-list",
        "Of several URLs in one option only the first one's password was hidden.",
        "shard_store/redaction.py",
        """return ",".join(_redact_one(part) for part in _NEXT_URL.split(url))""",
        """return _redact_one(url)""",
    ),
    # --- what was silently wrong in 0.3 ---
    Defect(
        "attempts-read-the-newest",
        "V1: an attempt after a kill read a newer version of an object than the attempt whose rows were in the table.",
        "shard_store/batches/plans.py",
        "        included, others = split_by_fit([r for r in again if r.key not in anew], positions)",
        "        in_newest, news = announcing.in_newest_version, {key: place.later for key, place in places.items()}\n"
        "        again = [r._replace(content=in_newest(r.content, news.get(r.key))) for r in again]\n"
        "        included, others = split_by_fit([r for r in again if r.key not in anew], positions)",
    ),
    Defect(
        "table-ahead-of-the-store",
        "V2: a table that had what the store had lost was taken as one that fits, and rows came twice.",
        "queue_source/sinks/marks.py",
        "return all(end <= published.get(pipeline, end) for pipeline, end in commit.ends.items())",
        "return True",
    ),
    Defect(
        "undone-commits-count",
        "V3: a batch whose commit a restore of the table had undone counted as written.",
        "queue_source/sinks/marks.py",
        "return Verdict.GONE, None",
        "return Verdict.SHOWN, None",
    ),
    Defect(
        "pipelines-in-the-order-of-the-option",
        "V5: `pipeline=one,two` restarted as `two,one` wrote a batch twice.",
        "shard_store/model.py",
        "return tuple(sorted(identities, key=lambda identity: identity.token.pipeline))",
        "return tuple(identities)",
    ),
    Defect(
        "no-version-for-pieces",
        "V8: the pieces of an object without an ETag, which a route brought, were of two versions.",
        "queue_source/announcements/contents.py",
        "etag = etag or stated.etag",
        "etag = etag or None",
    ),
    Defect(
        "cleaned-under-another-source",
        "V9: `cleanSource` deleted objects that another source had not read yet.",
        "shard_store/upkeep/cleaning.py",
        "needed, bad = _needed(transaction, source, rows)",
        "needed, bad = dict[str, str](), set[str]()",
    ),
    Defect(
        "empty-then-full",
        "V11: an object that was written empty first, and met then, was never read.",
        "shard_store/shards/announcing.py",
        "had_none = row.size == 0 and row.pending != Pending.BEGUN.value",
        "had_none = row.size == -1 and row.pending != Pending.BEGUN.value",
    ),
    Defect(
        "archives-as-text",
        "V12: csv, json and text made rows of the bytes of an archive.",
        "queue_source/formats/text/records.py",
        "        self.archive = archive_of(first)\n",
        "        self.archive = None\n",
    ),
    # --- the reader process ---
    Defect(
        "acknowledged-by-the-first-shard",
        "A message that announced two objects was acknowledged when the first of them was done.",
        "queue_source/coordinator/messages.py",
        "message.pending.discard(shard)",
        "message.pending.clear()",
    ),
    Defect(
        "lease-from-the-answer",
        "A lease was counted from the answer of a slow queue, and ended before it was extended.",
        "queue_source/coordinator/acknowledging.py",
        "self._tell_lost(self._in_flight.end_extending(keys, asked + lease, lost))",
        "self._tell_lost(self._in_flight.end_extending(keys, clock() + lease, lost))",
    ),
    Defect(
        "restored-store-acknowledges",
        "A reader acknowledged messages on the word of a store that had gone back in time.",
        "queue_source/coordinator/acknowledging.py",
        "if not self._session.store.is_trusted:\n            return",
        "pass",
    ),
    # --- what comes in ---
    Defect(
        "plus-in-keys",
        "Keys of S3 events with a space were not decoded: the objects counted as missing.",
        "queue_source/announcements/dialects.py",
        "decode_key=lambda key: unquoted(key, plus=True),",
        "decode_key=lambda key: unquoted(key, plus=False),",
    ),
    Defect(
        "begun-files-of-data-lake",
        "An event of a file that was only begun announced it: the reader found it empty.",
        "queue_source/announcements/dialects.py",
        """begun=lambda item: item.get("api") in ("CreateFile", "SftpCreate", "SftpWrite"),""",
        """begun=lambda item: False,""",
    ),
    Defect(
        "hash-takes-one-word",
        "`#` in a tag filter matched no message whose tag ended there.",
        "queue_source/tags.py",
        """return all(part == "#" for part in pattern[at:])""",
        """return at == len(pattern)""",
    ),
    Defect(
        "prefix-climbs",
        "`..` in an announced name led out of the allowed prefixes.",
        "queue_source/announcements/contents.py",
        "    if climbs(uri):\n        raise MalformedNotification(",
        "    if climbs(uri) and uri.endswith('..'):\n        raise MalformedNotification(",
    ),
    # --- reading ---
    Defect(
        "rows-before-the-verdict",
        "Rows of an object went out before its end was known to be good.",
        "queue_source/read/objects.py",
        "for batch in all_or_nothing(batches, schema) if held or tables.may_fail_late else batches:",
        "for batch in batches:",
    ),
    Defect(
        "another-object-of-the-same-size",
        "An object that was replaced by one of the same size was read as the one that was announced.",
        "queue_source/read/objects.py",
        "if expected_etag is not None and not version.is_version(expected_etag):",
        "if expected_etag is not None and expected.size is None and not version.is_version(expected_etag):",
    ),
    Defect(
        "record-at-a-cut",
        "A record that began exactly at the boundary of two tasks was read by both.",
        "queue_source/formats/text/blocks.py",
        'offset, tail = _skip_record(stream, separator, offset - before, b"", before, until)',
        'offset, tail = offset, b""',
    ),
    Defect(
        "odd-numbers-of-json",
        "`Inf` in a line of json was read as a number, which Spark refuses.",
        "queue_source/formats/text/json.py",
        "if any(pc.all(pc.is_finite(array)).as_py() is False for array in numbers)",
        "if any(array is None for array in numbers)",
    ),
    Defect(
        "death-blames-a-neighbour",
        "Of two objects that were read when a worker died the healthy one was given up, too.",
        "queue_source/read/isolation.py",
        "if len(part) == 1 and killed >= max_attempts:",
        "if killed >= 1:",
    ),
    # --- writing ---
    Defect(
        "file-not-durable",
        "A published file was empty after a power cut.",
        "queue_source/sinks/splits.py",
        "if local is not None:\n                make_durable(local)",
        "if local is not None and not footer.num_rows:\n                make_durable(local)",
    ),
    Defect(
        "error-queue-not-idempotent",
        "An error that was sent twice could not be recognised by who read the error queue.",
        "queue_source/coordinator/errors.py",
        'return Outgoing(body, f"error.{error.scope}", headers, deduplication_id=error_id)',
        'return Outgoing(body, f"error.{error.scope}", headers)',
    ),
    Defect(
        "commit-of-two-plans",
        "Commit messages of a plan and of the one before were published together.",
        "queue_source/spark/writer.py",
        "if len(batches) != 1:",
        "if not batches:",
    ),
    Defect(
        "r1-decimal-overflow",
        "A number that does not fit DECIMAL(38,18) was read as another one from csv and json.",
        "queue_source/formats/types.py",
        "kind.precision + kind.scale > LARGEST_DECIMAL",
        "kind.precision > LARGEST_DECIMAL",
    ),
    Defect(
        "r1-decimal-overflow-of-files",
        "A number of a Parquet, ORC or Avro file that does not fit DECIMAL(38,18) was read as another one.",
        "queue_source/formats/types.py",
        "if _may_leave_room(array.type, target) and not cast.cast(array.type).equals(array):",
        "if len(cast) < len(array):",
    ),
    Defect(
        "r1-decimal-overflow-of-texts",
        "A number that does not fit its DECIMAL was read as another one from csv with a nullValue.",
        "queue_source/formats/text/values.py",
        "if largest is not None and not largest < _ROOM",
        "if largest is not None and largest < 0 * _ROOM",
    ),
    Defect(
        "a-first-batch-that-is-there-twice",
        "A first batch that a table has, of which another pipeline has read a part again, was in a log line alone.",
        "shard_store/batches/progress.py",
        "if lost and not (taken or forgotten) and fail_on_data_loss:",
        "if lost and taken and fail_on_data_loss:",
    ),
    Defect(
        "local-times-of-the-old-calendar",
        "Local times before 1582 were days off in Parquet whose instants Spark had written by the old calendar.",
        "queue_source/formats/parquet.py",
        "if kind.tz is None and not is_int96:",
        "if kind.tz is None and is_int96:",
    ),
    Defect(
        "a-last-field-that-is-not-there",
        "The last field of csv, which is not there, was '' behind a quoted one where no line end follows.",
        "queue_source/formats/text/csv.py",
        "if nulls_differ and text.endswith(options.sep.encode()):",
        "if nulls_differ and text.endswith(options.sep.encode() * 9):",
    ),
    Defect(
        "r3-after-2037",
        "A time without a zone after 2037 was an hour off in summer.",
        "queue_source/formats/types.py",
        "    return latest is not None and latest > last",
        "    return latest is not None and latest < _YEAR_1",
    ),
    Defect(
        "r3-skipped-hour",
        "A time that a change of the clock skips was another moment in a whole column than by itself.",
        "queue_source/formats/types.py",
        'ambiguous="earliest", nonexistent="raise")',
        'ambiguous="earliest", nonexistent="latest")',
    ),
    # --- found at 0.4.0 by generators; the names are those of the list of known defects ---
    Defect(
        "r8-keys-of-noobaa",
        "`+` and `%` in the keys of NooBaa were taken for a space and an escape: another object was read.",
        "queue_source/announcements/dialects.py",
        "sender_of=_sender_of_s3,",
        'sender_of=lambda record: str(record.get("eventSource")),',
    ),
    Defect(
        "r8-config-taken-for-cloudtrail",
        "A notification of AWS Config was a malformed one of CloudTrail.",
        "queue_source/announcements/dialects.py",
        'recognises=lambda document: "messageType" in document and "notificationCreationTime" in document,',
        "recognises=lambda document: False,",
    ),
    Defect(
        "t8-dead-clients-keep-their-locks",
        "The locks of a machine that died in a transaction stayed for two hours.",
        "shard_store/sql/engines.py",
        "if settings_of_session := _settings(url, dialect):",
        "if settings_of_session := {}:  # type: ignore[var-annotated]",
    ),
    Defect(
        "t8-work-of-others-is-ended",
        "The user's own work in a delivery lost its transaction after a minute.",
        "shard_store/sql/database.py",
        "                self.allow_idle(connection)\n",
        "",
    ),
    Defect(
        "r2-packed-size-of-what-is-unpacked",
        "Of an object that Cloud Storage unpacks as many bytes were read as it has packed: the other rows were lost.",
        "queue_source/storage/open_files.py",
        'if self.is_pinned and facts.get("Content-Encoding", "identity") != "identity":',
        'if self.is_pinned and facts.get("Content-Encoding", "identity") == "never":',
    ),
    Defect(
        "r2-an-odd-answer-fails-the-query",
        "An object of which every answer was cut off failed its query for ever, with all of its neighbours.",
        "queue_source/storage/s3_object.py",
        'return ObjectRefused(f"{uri!r} cannot be read: {problem}", own=False, cause="corrupt-object")',
        'return ObjectStoreError(f"{uri!r} cannot be read: {problem}")  # type: ignore[name-defined, return-value]',
    ),
    Defect(
        "t7-listed-objects-announced",
        "Requeueing an object that a listing had found opened a queue named listing, when the page was released.",
        "queue_source/commands/errors.py",
        "(_NOWHERE if shard.known and shard.queue in WITHOUT_MESSAGE else shard.queue)",
        "shard.queue",
    ),
    Defect(
        "t7-released-before-its-queue-is-open",
        "A queue that could not be opened left a page of objects released and not announced.",
        "queue_source/commands/errors.py",
        "would = self.store.reopen(objects, dry_run=True)",
        "would = self.store.reopen(objects, dry_run=self.dry_run)",
    ),
    Defect(
        "t7-open-without-a-message",
        "Objects that were open without owner and message stayed so, whatever command an operator ran.",
        "shard_store/operators/repair.py",
        "elif _is_left(row, of_owners) and not _needs_message(row, message_uri):",
        "elif False:",
    ),
    Defect(
        "t3-ids-given-twice",
        "On SQLite a new data file got the id of one that was gone: a reader of before saw its rows.",
        "shard_store/sql/schema.py",
        "sqlite_autoincrement=is_serial)",
        "sqlite_autoincrement=False)",
    ),
    Defect(
        "t3-another-file-of-the-same-id",
        "Compacting put the rows of files that were gone in the place of new ones, which had their ids.",
        "shard_store/sql/schema.py",
        "sqlite_autoincrement=is_serial)",
        "sqlite_autoincrement=False)",
        (
            (
                "shard_store/operators/compacting.py",
                "        yield from (CurrentFile(*row) for row in page)\n",
                "        ids = database.read(lambda t: dict(t.execute(sa.select(c.path, c.id)).all()))\n"
                "        for row in page:\n"
                "            _IDS[row[0]] = ids.get(row[0])\n"
                "            yield CurrentFile(*row)\n\n\n"
                "_IDS = {}\n",
            ),
            (
                "shard_store/operators/compacting.py",
                "transaction.select_among(current, c.name_key, names)",
                "transaction.select_among(current, c.id, [_IDS[file.path] for file in files])",
            ),
        ),
    ),
    Defect(
        "t2-verdicts-cut",
        "Of more than 1,001 bad objects of a batch those beyond counted as published in a table with a commit of its "
        "own, when the store's transaction ran twice.",
        "shard_store/error_table/records.py",
        "for key, scope, cause in transaction.execute(query)}",
        "for key, scope, cause in transaction.execute(query.limit(_NAMED + 1))}",
    ),
    Defect(
        "t6-acknowledged-unread",
        "A message whose announcement had opened its object again, while errors of the batch before were on their way, "
        "was acknowledged with what that batch had finished, and the object stayed unread.",
        "queue_source/coordinator/progress.py",
        "self._ownership.finish(confirmed.finished, look)",
        "self._in_flight.finish(confirmed.finished)",
    ),
    Defect(
        "t6-look-before-it-acts",
        "What one thread had read as finished ended the wait of a message that had opened it again meanwhile.",
        "queue_source/coordinator/opening.py",
        "self.resolve(shards.values(), look)\n        if missing",
        "self.resolve(shards.values(), self._in_flight.look())\n        if missing",
    ),
    Defect(
        "r4-header-with-spaces",
        "Of a csv header with spaces behind its commas, all columns but the first were null.",
        "queue_source/formats/text/csv.py",
        "return list(map(respell, present)) if absent else present",
        "return present",
    ),
    Defect(
        "r5-zero-padded-folder",
        "A folder day=09 had another inferred type than day=10: another table, or a refused start.",
        "queue_source/formats/metadata.py",
        '_WHOLE = re.compile(r"[+-]?[0-9]+")',
        '_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)")',
    ),
    Defect(
        "r6-bad-behind-its-first-rows",
        "An object that turned out bad behind its first rows failed the query for ever.",
        "queue_source/read/objects.py",
        "if held or tables.may_fail_late else batches:",
        "if tables.may_fail_late else batches:",
    ),
    Defect(
        "t5-deleted-while-needed",
        "`cleanSource` deleted an object that another source still had open, by an id with a generation or a version "
        "that the announcement to the first one lacked.",
        "shard_store/upkeep/cleaning.py",
        "needed, bad = of_others | needed, bad | bad_there",
        "needed, bad = needed | {}, bad | set()",
    ),
    Defect(
        "t4-first-batch-taken",
        "A store that went back behind the first batch of a pipeline, while its query ran, took the batch for one of "
        "another sink: its rows were gone, and a certificate called them published.",
        "shard_store/batches/progress.py",
        "return is_sink_known(row, OTHER) or not transaction.memory.may_have_changed(token)",
        "return True",
    ),
    Defect(
        "t4-last-word-to-an-older-store",
        "A reader that ended told a store that had gone back that its first batch had ended well; so the next start "
        "took it for one of another sink.",
        "shard_store/shards/ownership.py",
        "        return\n    row = _current(transaction, token, row)\n",
        "        return\n    if row is None:\n        return\n",
    ),
    Defect(
        "r7-versions-of-a-tar",
        "Of a tar made with -r or -u the rows of all versions of a member were read.",
        "queue_source/read/objects.py",
        "rows, left_out = 0, None",
        "rows, left_out = 0, frozenset[int]()",
    ),
    Defect(
        "r7-versions-of-a-zip",
        "Of a zip with one name twice the rows of both were read.",
        "queue_source/formats/text/archives.py",
        "if last[_place(entry.filename)] is not entry:",
        "if last[_place(entry.filename)] is None:",
    ),
    Defect(
        "r9-negative-zero-of-json",
        "The whole number -0 of json was -0.0 in DOUBLE, and is 0.0 to Spark.",
        "queue_source/formats/text/json.py",
        "if any(map(_has_negative_zero, numbers)) and",
        "if not numbers and",
    ),
    Defect(
        "t10-a-look-that-came-late",
        "An object that a URI alone had announced to two pipelines, and that was empty when the first one looked, was "
        "given up although it was whole: the older look came into the store after the newer one, and was believed.",
        "shard_store/shards/announcing.py",
        "    size, etag = content.announced\n",
        "    size, etag = content.size, content.etag\n",
    ),
    Defect(
        "t11-read-while-reset",
        "A pipeline started while `cuesqueue reset` had forgotten a part of what its source had read: the rest was "
        "taken for read, and forgotten under its feet.",
        "shard_store/batches/starting.py",
        "    refuse_half_reset(transaction, source, pipeline)\n",
        "",
    ),
    Defect(
        "names-of-a-sample-that-differ-in-case",
        "Of two names in one object, which differed in case alone, the values of the second had no column.",
        "queue_source/schema/columns.py",
        "if textual or pt.is_null(before.type):",
        "if pt.is_null(before.type):",
    ),
    Defect(
        "part-within-the-line-end",
        "A part that began within the first bytes of an object, with a longer lineSep, made the object object-changed.",
        "queue_source/formats/text/blocks.py",
        "return min(separator.length, start)",
        "return separator.length",
    ),
    Defect(
        "float-of-a-bad-neighbour",
        "A FLOAT beside a bad value was another number than without it: its text was rounded twice.",
        "queue_source/formats/text/values.py",
        "    if pt.is_float32(kind):",
        "    if pt.is_float16(kind):",
    ),
    # --- targets ---
    Defect(
        "t1a-restore-to-timestamp",
        "A RESTORE that names a time, and no version, was not followed: lost rows counted as published.",
        "queue_source/sinks/delta/log.py",
        "            return self.puts_back\n        return any(",
        '            return self.puts_back and str(self.parameters.get("version")).isdigit()\n        return any(',
    ),
    Defect(
        "t1b-restore-by-time-of-files",
        "deltalake's restore to a time, which goes by the files of the log, was followed by the times in the commits.",
        "queue_source/sinks/delta/log.py",
        "        differing = set(commit.changed)",
        '        if (until := str(commit.parameters.get("datetime"))).isdigit():\n'
        "            before = self.back_from(commit.version - 1)\n"
        '            return next((c.version for c in before if c.info.get("timestamp", 0) <= int(until)), None)\n'
        "        differing = set(commit.changed)",
    ),
    Defect(
        "t1c-twenty-commits-later",
        "A table that was put back more than 20 commits of others ago was taken for one that has the batch.",
        "queue_source/sinks/marks.py",
        "    for commit in target.lineage():\n        is_doubtful |= commit.undoes",
        "    for others, commit in enumerate(target.lineage()):\n        if others == 20:\n            return\n"
        "        is_doubtful |= commit.undoes",
    ),
    Defect(
        "t1d-rollback-then-expire",
        "A rollback of an Iceberg table was not noticed once the snapshot of the batch had expired.",
        "queue_source/sinks/iceberg/commits.py",
        "        ours, older = self._numbers.get(delivery_hash), False\n"
        "        for snapshot in self._history.ancestors():",
        "        ours, older = None, False\n        for snapshot in self._history.ancestors(expired=False):",
    ),
    Defect(
        "t1e-put-back-by-more-than-the-batch",
        "A table that was put back by two batches, of which the query died in the second, got that one alone again.",
        "queue_source/sinks/marks.py",
        "                _check_in_step(target, before, batch)\n",
        "                pass\n",
    ),
    Defect(
        "t9-takeover-without-a-look",
        "What a pipeline left between the commits of table and store came twice when another took over.",
        "queue_source/coordinator/opening.py",
        "if not (stale := self._settled({shard.key: shard for shard in others if shard.stale})):",
        "if not (stale := {shard.key: shard for shard in others if shard.stale}):",
    ),
    Defect(
        "another-version-under-an-id",
        "With allowOverwrites an object that was requeued or reopened was read in the version that was there by then, "
        "whose rows came twice: under that version's own id, too.",
        "shard_store/shards/announcing.py",
        "    has_version = shards.c.uri.is_not(None)\n",
        "    has_version = sa.false()\n",
    ),
    Defect(
        "older-event-behind-a-uri",
        "An older event that was delivered behind a URI alone brought its version back: the object, which was whole, "
        "was quarantined.",
        "shard_store/shards/announcing.py",
        "    if content.sequence is not None:\n        return content\n",
        "    if earlier:\n        return content\n",
    ),
    Defect(
        "given-up-while-one-is-idle",
        "After a reset a table that was put back went unnoticed as long as one of the query's pipelines was idle.",
        "shard_store/batches/publishing.py",
        "return (None if len(given_up) == len(rows) else ends | given_up), goes_on",
        "return None, goes_on",
    ),
    Defect(
        "an-old-snapshot-reads-what-came-since",
        "A snapshot of before another pipeline had ended an object read the object that was announced since, in the "
        "version of before, and called it changed.",
        "shard_store/batches/plans.py",
        "        anew = _opened_anew(transaction, token, parts, places)\n",
        "        anew = set()\n",
    ),
    Defect(
        "a-uri-hides-a-newer-event",
        "A URI that was delivered again beside a newer event hid the event, and the object was called changed.",
        "shard_store/shards/announcing.py",
        "(_may_be_new(announced[key], row) or _is_of_now(announced[key], row.later))",
        "_may_be_new(announced[key], row)",
    ),
    Defect(
        "an-event-beside-a-uri",
        "Of a URI alone and an older event, which came late, the event's version was to be read, which was gone: the "
        "object, which was whole, was quarantined.",
        "shard_store/shards/announcing.py",
        "newest[key] = _joined(event, uri) if are_both else _after(content, earlier)",
        "newest[key] = _after(content, earlier)",
    ),
    Defect(
        "pruned-as-announced-again",
        "An object that a prune forgot at the moment at which it was announced again was not read.",
        "shard_store/shards/announcing.py",
        "    if seen.keys() != rows.keys():\n",
        "    if not seen:\n",
    ),
    Defect(
        "released-and-pruned-as-announced",
        "An object that its reader had released long ago was pruned at the moment at which it was announced again.",
        "shard_store/shards/ownership.py",
        "    if len(list(locked)) < len(keys):\n",
        "    if not keys:\n",
    ),
    Defect(
        "pruned-as-listed",
        "A listing passed over an unread object that a prune forgot while its page was compared.",
        "shard_store/completeness/listing.py",
        "    if len(stored) < len(keys):\n",
        "    if not keys:\n",
    ),
    Defect(
        "announced-as-listed",
        "An unread object that was announced while a listing was compared was read in the version of the listing.",
        "shard_store/completeness/listing.py",
        "shard.state is ShardState.OPEN and not shard.reopened for shard in taken_up.values()",
        "shard.state is ShardState.OPEN and not shard.reopened for shard in stored.values() if not keys",
    ),
    Defect(
        "opened-as-recorded",
        "What a query opened while a receiver recorded it kept its first version, where inserts are not counted.",
        "shard_store/shards/recording.py",
        "for key in stored.keys() - before if _is_recorded(stored[key], contents[key])}",
        "for key in stored.keys() - before}",
    ),
    Defect(
        "requeued-as-announced-again",
        "A repaired object that was requeued as its event came again was read in the version of before.",
        "shard_store/shards/announcing.py",
        "return locked._replace(content=content, stale=",
        "return locked._replace(stale=",
    ),
    Defect(
        "planned-without-its-order",
        "A missing object of which two events had come was not read when the second came once more.",
        "shard_store/shards/announcing.py",
        "before = content._replace(sequence=place.sequence)",
        "before = content._replace(sequence=None)",
    ),
    Defect(
        "put-back-as-announced-again",
        "The message of an object that was put back at the moment at which it was announced was acknowledged.",
        "shard_store/shards/announcing.py",
        "(shard := _as_locked(seen[key], row))",
        "(shard := seen[key])",
    ),
    Defect(
        "forgotten-as-its-cleaning-is-planned",
        "An object that was forgotten, to be read again, while its cleaning was planned was deleted before that.",
        "shard_store/upkeep/cleaning.py",
        'rows = [row for row in rows if still.get(row["shard_key"]) == row["read_at"]]',
        'rows = [row for row in rows if row["read_at"]]',
    ),
    Defect(
        "unreadable-without-columns-is-loaded",
        "An object of which no record could be read counted as loaded, without a row, where no column was inferred.",
        "queue_source/formats/text/json.py",
        "return not table.columns or is_all_null(table)",
        "return is_all_null(table)",
    ),
    Defect(
        "a-checkpoint-behind-the-store",
        "Behind a checkpoint that was put back by several batches, a batch without new input passed for one of before, "
        "and its rows were not published.",
        "queue_source/coordinator/coordinator.py",
        "(first and (is_new or done < progress.confirmed))",
        "(first and is_new)",
    ),
    Defect(
        "a-requeued-version-without-its-facts",
        "A requeued version that was read behind a reset was read as the next one, whose rows came twice.",
        "queue_source/announcements/contents.py",
        "        if options.allow_overwrites and OBJECT_VERSION in message.headers:\n",
        "        if options.allow_overwrites is None:\n",
    ),
    Defect(
        "prune-that-leaves-a-transaction-open",
        "At one moment of a prune another thread of its process read the store as it had been before (SQLite).",
        "shard_store/upkeep/pruning.py",
        "t.execute(names).scalars().all()",
        "t.execute(names).scalars()",
    ),
    Defect(
        "read-as-it-is-there-without-end",
        "An empty object, announced by a URI alone and by an event of an older version, was read again in each batch.",
        "shard_store/shards/announcing.py",
        "        read = later and _any_version_if_unordered(as_announced(later), place)\n",
        "        read = later and as_announced(later)\n",
    ),
    Defect(
        "int96-without-a-zone",
        "INT96, which Spark writes for timestamps, was inferred as TIMESTAMP_NTZ.",
        "queue_source/formats/parquet.py",
        "        return _as_spark_names_it(reader, reader.schema_arrow)\n",
        "        return reader.schema_arrow\n",
    ),
    Defect(
        "f4-first-part-without-a-value",
        "A first part without a value was a bad object, where the whole has the text of a bad record behind it.",
        "queue_source/formats/text/json.py",
        "if not all(map(is_all_null, read_block(other, beginning))):",
        "if not any(True for _ in read_block(other, beginning)):",
    ),
    Defect(
        "f5-empty-fields-not-rescued",
        "Whether a field without a column that holds [] or {} was rescued depended on the records beside it.",
        "queue_source/formats/text/json.py",
        "exactly=rescues, empties=rescues)",
        "exactly=rescues)",
    ),
    Defect(
        "f6-utf16-under-a-packed-name",
        "Plain text in UTF-16 under a name that ends in .gz was a bad object.",
        "queue_source/formats/text/records.py",
        "codec_of(name or uri, first, _named(options.encoding, first))",
        "codec_of(name or uri, first)",
    ),
    Defect(
        "bounds-of-some-row-groups",
        "Iceberg: the bounds of a file were those of the row groups that had some: filters left out rows.",
        "queue_source/sinks/iceberg/files.py",
        "            for path in _unbounded(footer):",
        "            for path in ():",
    ),
    Defect(
        "taken-after-it-woke",
        "What a stopped pipeline brought to its table as it woke, between the look there and the taking, came twice.",
        "shard_store/shards/ownership.py",
        "sa.or_(alive, c.target.is_not(None))",
        "alive",
    ),
    Defect(
        "late-end-of-a-cleaning",
        "The late end of a cleaning was said of the object that was read anew, and planned anew, since.",
        "shard_store/upkeep/cleaning.py",
        "    ended = [cleaning for cleaning in ended if (cleaning.key, cleaning.read_at) in current]\n",
        "",
    ),
    Defect(
        "another-case-in-silence",
        "A column whose name differs in case alone from one that is read was dropped in silence.",
        "queue_source/formats/new_columns.py",
        "    if options.rescued_data_column is None and whole != _distinct(whole):",
        "    if options is None:",
    ),
)
