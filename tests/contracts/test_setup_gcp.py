"""`cuesqueue setup gcp`, over real servers: what it makes, what it leaves alone, and that it works."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tenacity
from google.iam.v1 import policy_pb2
from typer.testing import CliRunner, Result

from queue_source.announcements.parser import parse_notification
from queue_source.commands import setup_gcp
from queue_source.commands.main import app
from queue_source.commands.setup_gcp import MOST_DELIVERIES, PUBLISHER, SUBSCRIBER, parse_place
from queue_source.errors import OptionError
from queue_source.queues import open_queue
from queue_source.queues.pubsub.address import EMULATOR, parse_address
from support.servers.gcs_model import GcsModel, gcs_model
from support.servers.pubsub import PubSubServer

P = "my-project"
STORAGE = "serviceAccount:service-1@gs-project-accounts.iam.gserviceaccount.com"
PUBSUB = "serviceAccount:service-1@gcp-sa-pubsub.iam.gserviceaccount.com"
NEVER = "http://127.0.0.1:1"
_numbers = itertools.count(1)


@pytest.fixture
def gcs(pubsub_server: PubSubServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsModel]:
    """Cloud Storage, which may publish where Pub/Sub's policies allow it."""
    monkeypatch.setattr(setup_gcp, "_WAIT", tenacity.wait_none())
    with gcs_model() as gcs:
        gcs.may_publish = lambda topic, agent: (PUBLISHER, f"serviceAccount:{agent}") in bindings(pubsub_server, topic)
        monkeypatch.setenv(EMULATOR, pubsub_server.host)
        monkeypatch.setenv(setup_gcp.STORAGE_EMULATOR, gcs.url)
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", P)
        yield gcs


@pytest.fixture
def bucket(gcs: GcsModel) -> str:
    name = f"bucket-{next(_numbers)}"
    gcs.buckets.add(name)
    return name


def bindings(server: PubSubServer, resource: str) -> list[tuple[str, str]]:
    return [(one.role, member) for one in server.policy(resource).bindings for member in one.members]


def setup(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["setup", "gcp", *arguments])


def result(*arguments: str) -> dict[str, Any]:
    done = setup(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def actions(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["action"], one.get("name", one.get("bucket")).rpartition("/")[2]) for one in found["changes"]]


def refused(*arguments: str, code: int = 1) -> str:
    done = setup(*arguments)
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    if code == 1:
        assert len(done.stderr.splitlines()) == 1
    return done.stderr


# --- what it makes ---------------------------------------------------------------------------------------------------


def test_what_it_makes_announces_new_objects_of_the_prefix_to_the_options_it_prints(
    pubsub_server: PubSubServer, gcs: GcsModel, bucket: str
) -> None:
    name = f"cuesqueue-{bucket}-in"
    found = result(f"gs://{bucket}/in/")
    assert actions(found) == [
        ("create-topic", f"{name}-dead"),
        ("create-subscription", f"{name}-dead"),
        ("create-topic", name),
        ("create-subscription", name),
        ("grant-role", f"{name}-dead"),
        ("grant-role", name),
        ("grant-role", name),
        ("create-notification", bucket),
    ]
    assert found["options"] == {"queueUrl": f"pubsub://{P}/{name}", "allowedPrefixes": f"gs://{bucket}/in/"}
    for key in ("in/new.json", "elsewhere/new.json"):
        gcs.put(bucket, key, b"{}")
        for topic, body, attributes in gcs.messages(bucket, key):
            pubsub_server.publish(topic, body, attributes)
    with open_queue(found["options"]["queueUrl"], shortest_wait=0.1) as queue:
        assert queue.capabilities.retention == 14 * 86_400
        messages = queue.receive(10, 30, 0.5)
        uris = [one.uri for m in messages for one in parse_notification(m.body, m.headers).objects]
    assert uris == [f"gs://{bucket}/in/new.json"]


def test_subscriptions_never_expire_and_dead_letters_are_kept(
    pubsub_server: PubSubServer, gcs: GcsModel, bucket: str
) -> None:
    result(f"gs://{bucket}", "--queue", f"{bucket}-files", "--tag", "team=data", "--tag", "cost=1=2")
    made, dead = (pubsub_server.subscription(P, f"{bucket}-files{end}") for end in ("", "-dead"))
    topic = f"projects/{P}/topics/{bucket}-files"
    for subscription in (made, dead):
        assert subscription.HasField("expiration_policy")
        assert not subscription.expiration_policy.HasField("ttl")
        assert subscription.ack_deadline_seconds == 60
        assert subscription.message_retention_duration.seconds == 14 * 86_400
        assert dict(subscription.labels) == {"team": "data", "cost": "1=2"}
    assert (made.topic, dead.topic) == (topic, f"{topic}-dead")
    assert made.enable_exactly_once_delivery
    policy = made.dead_letter_policy
    assert (policy.dead_letter_topic, policy.max_delivery_attempts) == (f"{topic}-dead", MOST_DELIVERIES)
    assert dict(pubsub_server.topic(P, f"{bucket}-files").labels) == {"team": "data", "cost": "1=2"}
    (configuration,) = gcs.notifications[bucket]
    assert "object_name_prefix" not in configuration


def test_pub_sub_may_move_dead_letters_and_cloud_storage_may_publish_and_nobody_else(
    pubsub_server: PubSubServer, bucket: str
) -> None:
    result(f"gs://{bucket}/in/", "--queue", bucket)
    assert bindings(pubsub_server, f"projects/{P}/topics/{bucket}") == [(PUBLISHER, STORAGE)]
    assert bindings(pubsub_server, f"projects/{P}/topics/{bucket}-dead") == [(PUBLISHER, PUBSUB)]
    assert bindings(pubsub_server, f"projects/{P}/subscriptions/{bucket}") == [(SUBSCRIBER, PUBSUB)]
    assert bindings(pubsub_server, f"projects/{P}/subscriptions/{bucket}-dead") == []


def test_a_bucket_may_be_in_another_project_than_its_topic(
    pubsub_server: PubSubServer, gcs: GcsModel, bucket: str
) -> None:
    gcs.owners[bucket] = "2"
    found = result(f"gs://{bucket}/in/", "--queue", bucket, "--project", P)
    assert found["options"]["queueUrl"] == f"pubsub://{P}/{bucket}"
    assert bindings(pubsub_server, f"projects/{P}/topics/{bucket}") == [(PUBLISHER, STORAGE.replace("-1@", "-2@"))]
    assert bindings(pubsub_server, f"projects/{P}/topics/{bucket}-dead") == [(PUBLISHER, PUBSUB)]


def test_the_account_of_an_older_project_has_no_number_which_the_bucket_tells(
    pubsub_server: PubSubServer, gcs: GcsModel, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = "my-project@gs-project-accounts.iam.gserviceaccount.com"
    monkeypatch.setattr(gcs, "agent", lambda project: old if project in (P, "1") else "other@example.com")
    result(f"gs://{bucket}/in/", "--queue", bucket)
    assert bindings(pubsub_server, f"projects/{P}/topics/{bucket}") == [(PUBLISHER, f"serviceAccount:{old}")]
    assert bindings(pubsub_server, f"projects/{P}/topics/{bucket}-dead") == [(PUBLISHER, PUBSUB)]
    gcs.owners[bucket] = "2"
    assert "--project" in refused(f"gs://{bucket}/in/", "--queue", bucket)


def test_options_and_roles_of_the_reader_are_printed_each_in_one_piece(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    printed = setup(f"gs://{bucket}/in/", "--queue", bucket).stdout
    subscription = f"projects/{P}/subscriptions/{bucket}"
    assert f"  queueUrl  pubsub://{P}/{bucket}\n" in printed
    assert f"  {SUBSCRIBER}  {subscription}\n" in printed
    assert f"  roles/pubsub.viewer  {subscription}\n" in printed
    assert f"  roles/storage.objectViewer  gs://{bucket}\n" in printed
    roles = result(f"gs://{bucket}/in/", "--queue", bucket)["roles"]
    assert list(roles) == [SUBSCRIBER, "roles/pubsub.viewer", "roles/storage.objectViewer"]


# --- once more -------------------------------------------------------------------------------------------------------


def test_a_second_run_changes_nothing_and_says_so(pubsub_server: PubSubServer, gcs: GcsModel, bucket: str) -> None:
    first = result(f"gs://{bucket}/in/")
    assert first["changes"]
    calls = {method: len(sizes) for method, sizes in pubsub_server.calls().items()}
    second = result(f"gs://{bucket}/in/")
    assert second["changes"] == []
    assert second["options"] == first["options"]
    assert "nothing to change" in setup(f"gs://{bucket}/in/").stdout
    more = {method for method, sizes in pubsub_server.calls().items() if len(sizes) > calls.get(method, 0)}
    assert more == {"GetTopic", "GetSubscription", "GetIamPolicy"}
    assert len(gcs.notifications[bucket]) == 1


def test_a_dry_run_prints_what_would_be_done_and_does_nothing(
    pubsub_server: PubSubServer, gcs: GcsModel, bucket: str
) -> None:
    before = pubsub_server.calls()
    lines = setup(f"gs://{bucket}/in/", "--dry-run").stdout.splitlines()
    assert lines[0] == "would be done:"
    assert lines[1] == f"  1. create-topic: projects/{P}/topics/cuesqueue-{bucket}-in-dead"
    found = result(f"gs://{bucket}/in/", "--dry-run")
    assert found["dry_run"] is True
    for method in ("CreateTopic", "CreateSubscription", "SetIamPolicy"):
        assert pubsub_server.calls().get(method) == before.get(method)
    assert not gcs.notifications[bucket]
    assert not [request for request in gcs.requests if request.startswith("POST")]
    done = result(f"gs://{bucket}/in/")
    assert (done["changes"], done["options"]) == (found["changes"], found["options"])


@pytest.mark.parametrize("step", range(8))
def test_a_run_that_stops_anywhere_is_completed_by_the_next_one(
    pubsub_server: PubSubServer, gcs: GcsModel, bucket: str, step: int
) -> None:
    place = setup_gcp.parse_place(f"gs://{bucket}/in/")
    made = setup_gcp.Setup(*place)
    changes = made.changes()
    made.apply(changes[:step])
    assert made.changes() == changes[step:]
    made.apply(changes[step:])
    assert made.changes() == []
    made.close()


def test_other_notifications_and_other_bindings_stay(pubsub_server: PubSubServer, gcs: GcsModel, bucket: str) -> None:
    topic = pubsub_server.create_topic(P, bucket)
    kept = policy_pb2.Policy(version=3)
    kept.bindings.add(role=PUBLISHER, members=["user:a@example.com"])
    kept.bindings.add(role=PUBLISHER, members=[STORAGE]).condition.expression = "request.time < timestamp('2020')"
    pubsub_server.set_policy(topic, kept)
    other = {"topic": "//pubsub.googleapis.com/projects/p/topics/t", "payload_format": "NONE", "id": "7"}
    deleted = {"topic": f"//pubsub.googleapis.com/{topic}", "event_types": ["OBJECT_DELETE"], "id": "8"}
    gcs.notifications[bucket] += [other, deleted]
    found = result(f"gs://{bucket}/in/", "--queue", bucket)
    assert ("create-topic", bucket) not in actions(found)
    policy = pubsub_server.policy(topic)
    assert list(policy.bindings)[:2] == list(kept.bindings)
    assert (policy.bindings[2].role, list(policy.bindings[2].members)) == (PUBLISHER, [STORAGE])
    assert gcs.notifications[bucket][:2] == [other, deleted]
    assert len(gcs.notifications[bucket]) == 3
    assert result(f"gs://{bucket}/in/", "--queue", bucket)["changes"] == []


def test_a_notification_of_all_events_of_the_prefix_is_enough(gcs: GcsModel, bucket: str) -> None:
    topic = f"//pubsub.googleapis.com/projects/{P}/topics/{bucket}"
    gcs.notifications[bucket] += [{"topic": topic, "payload_format": "NONE", "object_name_prefix": "in/", "id": "1"}]
    assert "create-notification" not in dict(actions(result(f"gs://{bucket}/in/", "--queue", bucket)))


def test_a_subscription_without_dead_letters_gets_them_and_keeps_the_rest(
    pubsub_server: PubSubServer, gcs: GcsModel, bucket: str
) -> None:
    topic = pubsub_server.create_topic(P, bucket)
    pubsub_server.create_subscription(P, bucket, topic, ack_deadline_seconds=77)
    found = result(f"gs://{bucket}/in/", "--queue", bucket)
    assert ("set-dead-letters", bucket) in actions(found)
    subscription = pubsub_server.subscription(P, bucket)
    assert subscription.dead_letter_policy.dead_letter_topic == f"{topic}-dead"
    assert subscription.ack_deadline_seconds == 77
    assert result(f"gs://{bucket}/in/", "--queue", bucket)["changes"] == []


def test_a_dead_letter_topic_of_ones_own_is_left_alone(pubsub_server: PubSubServer, gcs: GcsModel, bucket: str) -> None:
    own = pubsub_server.create_topic(P, f"{bucket}-own")
    topic = pubsub_server.create_topic(P, bucket)
    pubsub_server.create_subscription(P, bucket, topic, dead_letter_policy={"dead_letter_topic": own})
    found = result(f"gs://{bucket}/in/", "--queue", bucket)
    assert actions(found) == [("grant-role", bucket), ("create-notification", bucket)]


def test_a_policy_that_changes_meanwhile_is_read_again(pubsub_server: PubSubServer, gcs: GcsModel, bucket: str) -> None:
    pubsub_server.fail("SetIamPolicy", "ABORTED", 2)
    result(f"gs://{bucket}/in/", "--queue", bucket)
    assert bindings(pubsub_server, f"projects/{P}/topics/{bucket}-dead") == [(PUBLISHER, PUBSUB)]


def test_a_role_that_is_not_known_at_once_is_waited_for(
    pubsub_server: PubSubServer, gcs: GcsModel, bucket: str
) -> None:
    answers = iter([False, False, True])
    gcs.may_publish = lambda topic, agent: next(answers)
    result(f"gs://{bucket}/in/", "--queue", bucket)
    assert len(gcs.notifications[bucket]) == 1
    gcs.may_publish = lambda topic, agent: False
    gcs.notifications[bucket].clear()
    assert "permission to publish" in refused(f"gs://{bucket}/in/", "--queue", bucket)


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_topic_that_is_there_for_another_prefix_is_no_success(gcs: GcsModel, bucket: str) -> None:
    """Else one queue would announce both, and the reader of each would get what the other's is."""
    result(f"gs://{bucket}/a/b/")
    text = refused(f"gs://{bucket}/a-b/")
    assert f"gs://{bucket}/a/b/" in text
    assert "--queue" in text
    assert len(result(f"gs://{bucket}/a-b/", "--queue", f"{bucket}-other")["changes"]) == 8


@pytest.mark.parametrize(
    ("config", "words"),
    [({"push_config": {"push_endpoint": "https://example.com"}}, "nobody can pull"), ({"detached": True}, "detached")],
)
def test_a_subscription_that_cannot_be_pulled_is_no_success(
    pubsub_server: PubSubServer, gcs: GcsModel, bucket: str, config: dict[str, Any], words: str
) -> None:
    pubsub_server.create_subscription(P, bucket, pubsub_server.create_topic(P, bucket), **config)
    text = refused(f"gs://{bucket}/in/", "--queue", bucket)
    assert words in text
    assert "--queue" in text


def test_a_subscription_of_another_topic_is_no_success(pubsub_server: PubSubServer, gcs: GcsModel, bucket: str) -> None:
    pubsub_server.create_subscription(P, bucket, pubsub_server.create_topic(P, f"{bucket}-elsewhere"))
    assert f"{bucket}-elsewhere" in refused(f"gs://{bucket}/in/", "--queue", bucket)


def test_what_is_not_there_or_not_allowed_has_an_error_with_the_next_step(
    pubsub_server: PubSubServer, gcs: GcsModel, bucket: str
) -> None:
    text = refused("gs://nobody-has-this-bucket/in/")
    assert "NotFound" in text
    assert "PREFIX" in text
    assert "--project" in refused(f"gs://{bucket}/in/", "--project", "unknown")
    pubsub_server.fail("CreateTopic", "PERMISSION_DENIED")
    text = refused(f"gs://{bucket}/in/", "--queue", bucket)
    assert f"projects/{P}/topics/{bucket}-dead" in text
    assert "docs/how-to/pubsub.md" in text
    gcs.denied.add(bucket)
    assert "docs/how-to/pubsub.md" in refused(f"gs://{bucket}/in/", "--queue", bucket)


def test_servers_that_are_not_there_have_an_error_in_one_line(
    gcs: GcsModel, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_gcp, "_RETRY", setup_gcp._RETRY.with_timeout(0.5))
    monkeypatch.setenv(EMULATOR, "127.0.0.1:1")
    assert EMULATOR in refused(f"gs://{bucket}/in/")
    monkeypatch.setenv(setup_gcp.STORAGE_EMULATOR, NEVER)
    assert setup_gcp.STORAGE_EMULATOR in refused(f"gs://{bucket}/in/")


@pytest.mark.parametrize("answer", [(200, []), (200, None), (502, [1]), (500, {"error": "x"})])
def test_an_answer_that_is_not_one_of_cloud_storage_has_an_error_in_one_line(
    gcs: GcsModel, bucket: str, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, object]
) -> None:
    from support.servers.gcs_model import _Handler

    monkeypatch.setattr(_Handler, "_request", lambda self, method, sent=b"": self._answer(*answer))
    assert setup_gcp.STORAGE_EMULATOR in refused(f"gs://{bucket}/in/")


def test_a_project_is_needed_and_a_key_file_has_to_be_one(
    gcs: GcsModel, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    assert "--project" in refused(f"gs://{bucket}/in/", code=2)
    key = tmp_path / "key.json"
    for content in (None, "no JSON", '{"type": "authorized_user", "refresh_token": "hidden-hidden"}'):
        if content is not None:
            key.write_text(content)
        text = refused(f"gs://{bucket}/in/", "--credentials-file", str(key), code=2)
        assert "--credentials-file" in text
        assert "hidden-hidden" not in text


def test_without_credentials_the_error_names_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (EMULATOR, setup_gcp.STORAGE_EMULATOR):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nothing.json"))
    text = refused("gs://bucket/in/")
    assert "gcloud auth application-default login" in text
    assert "--credentials-file" in text


@pytest.mark.parametrize("text", ["bucket/in", "gs://", "gs://UPPER/in", "s3://bucket/in", "gs:///in"])
def test_what_is_no_place_in_cloud_storage_is_wrong_use(text: str) -> None:
    refused(text, code=2)
    with pytest.raises(OptionError, match="gs://bucket/prefix"):
        parse_place(text)


@pytest.mark.parametrize("name", ["x", "goog-files", "1files", "a/b", "a" * 251])
def test_a_name_that_pub_sub_does_not_take_is_wrong_use(gcs: GcsModel, name: str) -> None:
    assert "--queue" in refused("gs://bucket/in/", "--queue", name, code=2)


@pytest.mark.parametrize("prefix", ["", "orders/", "a" * 300, "A//B__c", "\u00fc"])
def test_a_name_that_is_made_is_one_that_pub_sub_takes(gcs: GcsModel, prefix: str) -> None:
    made = setup_gcp.Setup("a.b_c", prefix)
    assert parse_address(f"pubsub://{P}/{made.queue}-dead", None)[0] == P


def test_a_tag_without_a_value_is_refused() -> None:
    assert "NAME=VALUE" in refused("gs://bucket/in/", "--tag", "team", code=2)
