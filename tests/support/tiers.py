"""Which tests `make test` runs; the others are `thorough`, and belong to `make test-all`; CI leaves out `long` ones.

A contributor waits for `make test` after each change: unit tests, properties, readers, contracts on SQLite, those of
locking, publishing and pruning on PostgreSQL too, queues that need no server but SQS, and the tests with a real Spark
that are named here. What finds the same as another test, on another store or kind of queue, is thorough, and so is what
runs the commands of a page. A test that has more cases than that wait is worth has the mark itself, at some of them.

Who opens a pull request waits for `.ci/run`. What it leaves out is `long`: contracts that `make integration` tries on
the servers that users have, and tests of minutes beside quicker ones of the same subject; `make integration` runs these
too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

FOLDERS = {"browser", "prove", "sweeps"}
"""Folders of which all tests are thorough, but for those of `ALWAYS`."""

ALWAYS = {"test_explorer.py", "test_races.py", "test_reading_oracle.py"}
"""Searches with a fixed seed, up to a minute of each."""

ELSEWHERE = re.compile(
    r"\b(?:postgresql|pg_dump|pubsub|kafka|azurequeue|azurite|azure|seaweedfs|gcs|two-views|other-database|registering)\b"
)
"""Parameters of the contracts that are thorough."""

ALSO_ON_POSTGRESQL = {
    "test_store_ownership.py",
    "test_store_progress.py",
    "test_store_prune.py",
    "test_store_publishing.py",
}
"""Contracts of which `make test` runs every store: what databases do differently is how they lock."""

OF_DOCS = {
    "test_contributing.py",
    "test_decisions.py",
    "test_demo.py",
    "test_explanation.py",
    "test_from_auto_loader_page.py",
    "test_install_page.py",
    "test_logs_page.py",
    "test_notifications_page.py",
    "test_pages.py",
    "test_questions.py",
    "test_reference.py",
    "test_security.py",
    "test_source_words.py",
}
"""Tests of `tests/docs` that are not thorough: they read the pages, and run little of what these show."""

WITH_SPARK = {
    "test_archives.py": {"test_members_of_archives_are_published_and_a_damaged_archive_harms_only_itself"},
    "test_available_now.py": {
        "test_a_message_that_comes_again_publishes_nothing_again",
        "test_available_now_leaves_nothing_unacknowledged[cuesqueue]",
        "test_once_takes_all_that_is_there_in_one_batch_and_other_triggers_keep_the_limits[files]",
    },
    "test_backfill.py": {"test_a_folder_is_read_once_and_what_is_new_in_it_by_the_next_run"},
    "test_bad_input.py": {
        "test_bad_objects_and_messages_go_to_the_errors_and_all_else_is_published",
        "test_bad_records_are_told_and_final_and_large_objects_are_read_in_pieces",
        "test_wrong_options_are_refused_when_the_query_starts",
    },
    "test_large_objects.py": {"test_a_large_object_goes_on_where_its_last_batch_ended"},
    "test_load.py": {"test_one_call_loads_what_is_announced_and_a_bad_object_harms_only_itself"},
    "test_load_new_columns.py": {
        "test_a_column_that_comes_on_the_second_day_is_loaded_without_a_word_about_schemas[delta-json]"
    },
    "test_lost_progress.py": {"test_a_lost_store_under_a_live_checkpoint_is_refused_with_the_way_out"},
    "test_messages.py": {"test_messages_become_rows_as_they_came"},
    "test_met.py": {"test_each_object_costs_one_request"},
    "test_one_mark.py": {
        "test_a_batch_whose_driver_was_killed_between_the_two_commits_is_in_the_table_once[delta-checkpoint lost]"
    },
    "test_reading_oracle.py": {
        "test_what_is_drawn_is_read_as_spark_reads_it",
        "test_what_is_inferred_is_what_spark_infers",
        "test_what_is_meant_to_differ_differs_as_its_example_shows",
    },
    "test_references.py": {"test_each_announced_object_is_one_row_of_the_cuesqueue_sink"},
    "test_schemas.py": {"test_new_columns_and_wider_types_end_the_query_and_a_restart_goes_on_with_them"},
    "test_spark_calls.py": {
        "test_a_batch_is_offset_then_commit_of_the_one_before_then_plan_then_writer_then_tasks_then_commit",
        "test_a_failed_batch_comes_again_with_the_same_offsets_and_no_latest_offset_before_it",
        "test_latest_offset_is_told_what_is_done_or_nothing_at_all",
    },
    "test_sqs.py": {"test_objects_announced_by_s3_by_sns_and_by_eventbridge_are_published_once"},
    "test_stateful.py": {"test_rows_of_a_batch_without_new_data_are_published_once"},
    "test_values.py": {"test_all_types_come_back_as_spark_reads_them"},
    "test_views.py": {"test_views_tell_what_was_published", "test_what_is_read_without_spark_is_what_the_view_shows"},
}
"""Tests of `tests/engine` that are not thorough; with parameters where only these are not."""


LONG = {
    "contracts": {"test_one_mark.py", "test_store_put_back.py"},
    "docs": {
        "test_backfill_page.py",
        "test_delta_page.py",
        "test_demo.py",
        "test_errors_page.py",
        "test_iceberg_page.py",
        "test_pages.py",
        "test_published_page.py",
        "test_routes_page.py",
        "test_runbooks.py",
    },
    "engine": {
        *WITH_SPARK,
        "test_adopt.py",
        "test_announced_again.py",
        "test_changed_options.py",
        "test_crashes.py",
        "test_hostile.py",
        "test_kafka.py",
        "test_logs.py",
        "test_logs_of_clouds.py",
        "test_outputs.py",
        "test_own_queues.py",
        "test_parts_killed.py",
        "test_queue_sink.py",
        "test_records_in_documents.py",
        "test_relative_paths.py",
        "test_routes.py",
        "test_semantics.py",
        "test_takeover.py",
        "test_two_readings.py",
    },
    "sweeps": {"test_explorer.py", "test_hostile_text.py", "test_races.py", "test_reading_oracle.py"},
}
"""Files, by their folder, of which the thorough tests are long. Of some with a Spark `make test` has quicker tests."""


def is_long(item: pytest.Item) -> bool:
    file, (_, _, parameters) = item.path, item.name.partition("[")
    if file.parent.name == "contracts" and ELSEWHERE.search(parameters):
        return file.name not in ALSO_ON_POSTGRESQL
    return file.name in LONG.get(file.parent.name, ())


def is_thorough(item: pytest.Item) -> bool:
    file = item.path
    name, _, parameters = item.name.partition("[")
    if file.parent.name == "engine" or item.get_closest_marker("engine") is not None:
        return not {name, item.name} & WITH_SPARK.get(file.name, set())
    if file.parent.name == "contracts" and file.name not in ALSO_ON_POSTGRESQL:
        return ELSEWHERE.search(parameters) is not None or any(
            word in file.name for word in ("kafka", "azure", "pubsub")
        )
    if file.parent.name == "docs":
        return file.name not in OF_DOCS
    return file.parent.name in FOLDERS and file.name not in ALWAYS


def mark(items: Iterable[pytest.Item]) -> None:
    for item in items:
        if is_thorough(item):
            item.add_marker(pytest.mark.thorough)
        if item.get_closest_marker("thorough") is not None and is_long(item):
            item.add_marker(pytest.mark.long)
