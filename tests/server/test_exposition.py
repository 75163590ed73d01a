"""The metrics for Prometheus: what a scrape has, who sees it, and how many series there may be."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lockstep.core.pipelines import PipelineStep
from lockstep.core.records import SparkStreamInfo
from lockstep.server.counters import ByQueue
from lockstep.server.store_exposition import PARTS, StoreMetrics
from support.http import Http
from support.server import ServerProcess, running_server

NOW = datetime(2026, 5, 1, tzinfo=UTC)
QUEUE, GROUP = "messaging_destination_name", "messaging_consumer_group_name"

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples_of(text: str) -> Samples:
    """By name and labels, those of all processes together."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "worker"))
            found[sample.name, labels] = found.get((sample.name, labels), 0.0) + sample.value
    return found


def scrape(http: Http) -> Samples:
    answer = http.get("/metrics/prometheus")
    assert answer.status == 200
    return samples_of(answer.body.decode())


def labels(**given: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(given.items()))


def test_messages_and_bytes_by_queue(http: Http, queue: str) -> None:
    before = scrape(http)
    http.push(queue, "a", "b", "c", partition="p1")
    http.ack(http.pop(queue)["messages"][0], status="failed", retryAt=NOW.isoformat())
    again = http.pop(queue)["messages"][0]
    found = scrape(http)
    of_queue = labels(**{QUEUE: queue})
    assert found["lockstep_messages_pushed_total", of_queue] == 3
    assert found["lockstep_messages_popped_total", of_queue] == 2
    assert again["data"] == "a"

    def grew(name: str, **given: str) -> float:
        key = (name, labels(**given))
        return found[key] - before.get(key, 0.0)

    assert grew("lockstep_messages_redelivered_total") == 1
    assert grew("lockstep_request_bytes_total", messaging_operation_name="push") > len(queue) * 3
    assert grew("lockstep_answer_bytes_total", messaging_operation_name="pop") > len(queue)


def test_figures_of_queues_groups_and_parts(http: Http, queue: str, group: str) -> None:
    http.push(queue, 1, 2, 3, partition="p1")
    http.push(queue, 4, partition="p2")
    http.pop(queue, consumerGroup=group, batch=2)
    found = scrape(http)
    of_queue, of_group = labels(**{QUEUE: queue}), labels(**{QUEUE: queue, GROUP: group})
    assert found["lockstep_queue_depth_messages", of_queue] == 4
    assert found["lockstep_queue_stored_messages", of_queue] == 4
    assert found["lockstep_queue_in_flight_messages", of_queue] == 2
    assert found["lockstep_queue_partitions", of_queue] == 2
    assert found["lockstep_queue_dead_letters", of_queue] == 0
    assert found["lockstep_queue_oldest_unread_timestamp_seconds", of_queue] <= datetime.now(UTC).timestamp()
    assert found["lockstep_group_lag_messages", of_group] == 4
    assert found["lockstep_group_unread_messages", of_group] == 2
    assert found["lockstep_group_leases", of_group] == 1
    assert {part for (name, ((_, part), *_)) in [k for k in found if k[1]] if name == "lockstep_part_fetched"} == set(
        PARTS
    )
    assert all(found["lockstep_part_fetched", labels(part=part)] == 1 for part in PARTS)
    assert found["lockstep_maintenance_mode", labels(kind="push")] == 0
    assert found["lockstep_operations_failed", ()] == 0


def test_figures_of_the_database(postgres_server: ServerProcess) -> None:
    found = scrape(Http(postgres_server.url))
    assert found["lockstep_database_bytes", ()] > 1_000_000
    assert found["lockstep_database_connections", ()] >= 1
    assert found["lockstep_database_wal_bytes_total", ()] > 0
    assert found["lockstep_database_oldest_transaction_seconds", ()] >= 0
    assert found["lockstep_table_bytes", labels(table="segment")] > 0
    assert ("lockstep_scheduled_messages", ()) in found


def test_no_label_names_a_partition(http: Http, queue: str) -> None:
    http.push(queue, 1, partition="a-partition-like-no-other")
    http.pop(queue)
    assert b"a-partition-like-no-other" not in http.get("/metrics/prometheus").body


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    with running_server("memory://", tmp_path_factory.mktemp("bounded"), metrics_items_max=2) as server:
        yield Http(server.url)


def test_queues_over_the_limit_are_summed_as_other(bounded: Http) -> None:
    for number, name in enumerate(("first", "second", "third", "other", "fifth"), start=1):
        bounded.push(name, *range(number))
        bounded.pop(name, consumerGroup="g")
    found = scrape(bounded)
    pushed = {key[1]: value for key, value in found.items() if key[0] == "lockstep_messages_pushed_total"}
    depth = {key[1]: value for key, value in found.items() if key[0] == "lockstep_queue_depth_messages"}
    expected = {labels(**{QUEUE: "first"}): 1, labels(**{QUEUE: "second"}): 2, labels(**{QUEUE: "other"}): 3 + 4 + 5}
    assert pushed == expected
    assert depth == expected
    lags = {key[1]: value for key, value in found.items() if key[0] == "lockstep_group_lag_messages"}
    assert len(lags) == 3
    assert lags[labels(**{QUEUE: "other", GROUP: "other"})] == 3 + 4 + 5
    oldest = "lockstep_queue_oldest_unread_timestamp_seconds"
    assert found[oldest, labels(**{QUEUE: "second"})] <= found[oldest, labels(**{QUEUE: "other"})]


def test_queue_that_is_called_other_has_no_series_of_its_own() -> None:
    sums = ByQueue(2)
    for queue in ("other", "a", "b", "c", "a"):
        sums.add(queue, 1)
    assert sums.sums == {"other": 3, "a": 2}


def test_without_a_key_nobody_sees_queues(tmp_path: Path) -> None:
    settings = {"auth": "required", "auth_jwt_secret": "s" * 32}
    with running_server("memory://", tmp_path, **settings) as server:
        http = Http(server.url)
        writer = {"authorization": f"Bearer {_token('admin')}"}
        pushed = http.send("POST", "/api/v1/push", b'{"items": [{"queue": "secret", "payload": 1}]}', writer)
        assert pushed.status == 201
        public = http.get("/metrics/prometheus").body.decode()
        found = samples_of(public)
        assert "secret" not in public
        assert found["lockstep_messages_pushed_total", labels(**{QUEUE: "other"})] == 1
        assert not [
            name for name, _ in found if name.startswith(("lockstep_queue_", "lockstep_database", "lockstep_duty"))
        ]
        seen = http.send("GET", "/metrics/prometheus", None, {"authorization": f"Bearer {_token('read-only')}"})
        assert samples_of(seen.body.decode())["lockstep_queue_depth_messages", labels(**{QUEUE: "secret"})] == 1
        assert http.send("GET", "/metrics/prometheus", None, {"authorization": "Bearer nonsense"}).status == 401


def _token(role: str) -> str:
    import jwt

    return jwt.encode({"sub": role, "role": role, "exp": 4_000_000_000}, "s" * 32, algorithm="HS256")


def test_part_that_was_not_fetched_has_no_samples() -> None:
    text = generate_latest(StoreMetrics({"queues": None, "duties": []}, 5)).decode()
    found = samples_of(text)
    assert found == {
        ("lockstep_part_fetched", labels(part="queues")): 0,
        ("lockstep_part_fetched", labels(part="duties")): 1,
    }


def test_figures_of_steps_and_streams() -> None:
    step = PipelineStep(
        pipeline="orders",
        step="route",
        sources=["q"],
        sinks=["out"],
        state="running",
        started_at=NOW,
        seen_at=NOW,
        batch=3,
        committed_at=NOW,
        batch_pushed=1,
        batch_rejected=0,
        pushed=40,
        rejected=2,
        rows_per_second=None,
        error=None,
        dead_letters=2,
        lag=7,
        oldest_at=None,
        position=None,
        checkpoint=None,
        restarts=1,
        duplicates=3,
    )
    stream = SparkStreamInfo(
        id="s1", name="nightly", queue="q", lag=5, oldest_at=None, created_at=NOW, updated_at=NOW, held_until=NOW
    )
    found = samples_of(generate_latest(StoreMetrics({"steps": [step], "streams": [stream]}, 5)).decode())
    of_step = labels(pipeline="orders", step="route")
    for name, value in (
        ("running", 1),
        ("failed", 0),
        ("pushed_total", 40),
        ("duplicates_total", 3),
        ("restarts", 1),
        ("lag", 7),
    ):
        assert found[f"lockstep_pipeline_step_{name}", of_step] == value
    assert found["lockstep_spark_stream_lag", labels(id="s1", queue="q", stream="nightly")] == 5
    assert not [name for name, _ in found if name == "lockstep_pipeline_step_rows_per_second"]
