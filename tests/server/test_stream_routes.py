"""Stream queries over HTTP."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from support.http import Http


def _register(http: Http, queue: str, **fields: object) -> dict[str, Any]:
    body = {"name": f"query-{queue}", "source_queue": queue, "config_hash": "h1", **fields}
    return dict(http.post("/streams/v1/queries", body).json())


def _cycle(http: Http, query: dict[str, Any], message: dict[str, Any], **fields: object) -> dict[str, Any]:
    body = {
        "query_id": query["query_id"],
        "partition_id": message["partitionId"],
        "consumer_group": message["consumerGroup"],
        "ack": {"transactionId": message["transactionId"], "leaseId": message["leaseId"], "status": "completed"},
        **fields,
    }
    answer = http.post("/streams/v1/cycle", body)
    assert answer.status == 200, answer.body
    return dict(answer.json())


def _state(http: Http, query: dict[str, Any], message: dict[str, Any], **fields: object) -> list[dict[str, Any]]:
    body = {"query_id": query["query_id"], "partition_id": message["partitionId"], "keys": [], **fields}
    answer = http.post("/streams/v1/state/get", body)
    assert answer.status == 200, answer.body
    return list(answer.json()["rows"])


@pytest.fixture
def message(http: Http, queue: str) -> dict[str, Any]:
    http.push(queue, 1, 2)
    return dict(http.pop(queue, consumerGroup="stream", batch=2)["messages"][0])


def test_a_query_is_found_by_its_name(http: Http, queue: str) -> None:
    first = _register(http, queue)
    assert (first["success"], first["fresh"], first["reset"], first["config_hash"]) == (True, True, False, "h1")
    again = _register(http, queue)
    assert (again["query_id"], again["fresh"]) == (first["query_id"], False)


def test_another_configuration_conflicts_unless_it_resets(http: Http, queue: str, message: dict[str, Any]) -> None:
    query = _register(http, queue)
    _cycle(http, query, message, state_ops=[{"type": "upsert", "key": "a", "value": 1}])
    body = {"name": query["name"], "source_queue": queue, "config_hash": "h2"}
    answer = http.post("/streams/v1/queries", body)
    assert (answer.status, answer.json()["success"]) == (409, False)
    assert "config_hash mismatch" in answer.json()["error"]
    reset = http.post("/streams/v1/queries", {**body, "reset": True}).json()
    assert (reset["success"], reset["reset"]) == (True, True)
    assert _state(http, reset, message) == []


def test_a_cycle_changes_state_pushes_and_acks(http: Http, queue: str, message: dict[str, Any]) -> None:
    query = _register(http, queue)
    sink = f"{queue}-sink"
    answer = _cycle(
        http,
        query,
        message,
        state_ops=[
            {"type": "upsert", "key": "b", "value": {"windowEnd": 10}},
            {"type": "upsert", "key": "a", "value": 1},
        ],
        push_items=[{"queue": sink, "payload": "out"}],
    )
    assert (answer["success"], answer["queueName"], answer["state_ops_applied"]) == (True, queue, 2)
    assert answer["push_results"][0]["status"] == "queued"
    assert answer["ack_result"] == {
        "success": True, "count": 1, "lease_released": True, "dlq": False, "error": None,
    }  # fmt: skip
    rows = _state(http, query, message)
    assert [(row["key"], row["value"]) for row in rows] == [("a", 1), ("b", {"windowEnd": 10})]
    assert rows[0]["updated_at"].endswith("Z")
    assert [row["key"] for row in _state(http, query, message, keys=["b", "c"])] == ["b"]
    assert [row["key"] for row in _state(http, query, message, key_prefix="a")] == ["a"]
    assert [row["key"] for row in _state(http, query, message, ripe_at_or_before=10)] == ["b"]
    assert _state(http, query, message, ripe_at_or_before=9) == []
    assert http.pop(sink)["messages"][0]["data"] == "out"


def test_a_cycle_can_keep_its_lease(http: Http, queue: str, message: dict[str, Any]) -> None:
    query = _register(http, queue)
    assert _cycle(http, query, message, release_lease=False)["ack_result"]["lease_released"] is False
    assert http.get(f"/api/v1/pop/queue/{queue}", consumerGroup="stream").status == 204


def test_a_cycle_under_a_lost_lease_changes_nothing(http: Http, queue: str, message: dict[str, Any]) -> None:
    query = _register(http, queue)
    stale = {**message, "leaseId": str(uuid4())}
    answer = _cycle(http, query, stale, state_ops=[{"type": "upsert", "key": "a", "value": 1}])
    assert answer["success"] is False
    assert "lease" in answer["ack_result"]["error"]
    assert answer["code"] == "transaction_rolled_back"
    assert _state(http, query, message) == []


def test_unknown_queries_and_bad_cycles_are_refused(http: Http, queue: str, message: dict[str, Any]) -> None:
    query = _register(http, queue)
    body = {"query_id": "999999999", "partition_id": message["partitionId"]}
    assert http.post("/streams/v1/state/get", {**body, "keys": []}).code == "stream_query_not_found"
    assert http.post("/streams/v1/cycle", body).code == "stream_query_not_found"
    body["query_id"] = query["query_id"]
    assert http.post("/streams/v1/cycle", {**body, "state_ops": [{"type": "upsert", "key": "a"}]}).status == 400
    assert http.post("/streams/v1/cycle", {**body, "state_ops": [{"type": "merge", "key": "a"}]}).status == 400
    assert http.post("/streams/v1/cycle", {**body, "partition_id": "999999999"}).code == "partition_not_found"
    assert http.post("/streams/v1/queries", {"name": "x", "source_queue": queue}).status == 400
