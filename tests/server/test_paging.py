"""Lists that are longer than a page of the engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.http import Http
from support.server import running_server

COUNT = 1001  # one more than the shortest page that can be configured


@pytest.fixture(scope="module")
def full_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    """A server with many queues, one of them with many partitions."""
    directory = tmp_path_factory.mktemp("full-server")
    limits = {"page_items_max": 1000, "analytics_rows_max": 1000, "figures_exact_max": 1000}
    with running_server("memory://", directory, **limits) as server:
        http = Http(server.url)
        queues = [{"queue": f"many{i:04}.task{i:04}", "payload": i} for i in range(COUNT)]
        partitions = [{"queue": "wide", "partition": f"p{i:04}", "payload": i} for i in range(COUNT)]
        for items in (queues, partitions):
            assert http.post("/api/v1/push", {"items": items}).status == 201
        http.pop("wide", consumerGroup="g")
        yield http


def test_all_queues_are_listed(full_http: Http) -> None:
    assert len(full_http.get("/api/v1/resources/queues").json()["queues"]) == COUNT + 1
    assert full_http.get("/api/v1/status/queues", offset=COUNT).json()["pagination"]["total"] == COUNT + 1
    assert len(full_http.get("/api/v1/status").json()["queues"]) == COUNT + 1


def test_all_namespaces_and_tasks_are_listed(full_http: Http) -> None:
    assert len(full_http.get("/api/v1/resources/namespaces").json()["namespaces"]) == COUNT + 1
    assert len(full_http.get("/api/v1/resources/tasks").json()["tasks"]) == COUNT + 1


def test_all_partitions_are_listed(full_http: Http) -> None:
    first = full_http.get("/api/v1/resources/queues/wide").json()["partitions"]
    rest = full_http.get("/api/v1/resources/queues/wide", after=first[-1]["name"]).json()["partitions"]
    assert [row["name"] for row in first + rest] == [f"p{number:04}" for number in range(COUNT)]
    assert len(full_http.get("/api/v1/resources/queues/wide", limit=3).json()["partitions"]) == 3
    found = full_http.get("/api/v1/resources/partitions", queue="wide", prefix="p01", after="p0197").json()
    assert [row["name"] for row in found["partitions"]] == ["p0198", "p0199"]
    last = full_http.get("/api/v1/resources/partitions", queue="wide", offset=COUNT - 1).json()
    assert [row["name"] for row in last["partitions"]] == [f"p{COUNT - 1:04}"]
    across = full_http.get("/api/v1/resources/partitions", offset=COUNT - 1, limit=2).json()
    assert [row["queue"] for row in across["partitions"]] == [f"many{COUNT - 1:04}.task{COUNT - 1:04}", "wide"]
    assert across["pagination"]["total"] == 2 * COUNT


def test_all_places_of_a_group_are_listed(full_http: Http) -> None:
    first = full_http.get("/api/v1/consumer-groups/g").json()["wide"]["partitions"]
    after = first[-1]["partitionId"]
    rest = full_http.get("/api/v1/consumer-groups/g", after=after).json()["wide"]["partitions"]
    assert len({row["partition"] for row in first + rest}) == COUNT
    depth = full_http.get("/api/v1/resources/queues/wide/depth", group="g").json()
    assert (depth["pending"], depth["inFlight"], len(depth["partitions"])) == (COUNT, 1, len(first))
    assert len(full_http.get("/api/v1/resources/queues/wide/depth", limit=5).json()["partitions"]) == 5


def test_samples_that_are_too_many_are_refused(full_http: Http) -> None:
    assert full_http.post("/api/v1/stats/refresh").json()["queuesSampled"] == COUNT + 1
    answer = full_http.get("/api/v1/analytics/queue-ops")
    assert answer.status == 400
    assert "analytics_rows_max" in answer.json()["error"]
    assert full_http.get("/api/v1/analytics/queue-ops", queue="wide").status == 200


def test_lists_that_would_walk_through_a_large_queue_are_refused(full_http: Http) -> None:
    far = full_http.get("/api/v1/resources/partitions", queue="wide", offset=COUNT)
    assert (far.status, far.code) == (400, "invalid_request")
    full_http.pop("wide", consumerGroup="a", partitions=10, batch=10, autoAck="true")
    lagging = full_http.get("/api/v1/consumer-groups/lagging", minLagSeconds=0, limit=1000)
    assert (lagging.status, lagging.code) == (400, "invalid_request")
    assert len(full_http.get("/api/v1/consumer-groups/lagging", minLagSeconds=0, limit=5).json()) == 5
