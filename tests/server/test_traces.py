"""Trace events over HTTP."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from support.http import Http


def _message(http: Http, queue: str) -> dict[str, Any]:
    [receipt] = http.push(queue, {"n": 1})
    return {"transactionId": receipt["transaction_id"], "partitionId": receipt["partition_id"]}


def test_a_trace_is_found_by_its_message(http: Http, queue: str) -> None:
    message = _message(http, queue)
    told = {**message, "data": {"step": 1}, "consumerGroup": "g", "eventType": "start", "traceNames": ["a", "b"]}
    answer = http.post("/api/v1/traces", told)
    assert answer.status == 201
    assert answer.json()["success"] is True
    found = http.get(f"/api/v1/traces/{message['partitionId']}/{message['transactionId']}").json()
    [trace] = found["traces"]
    assert trace["id"] == answer.json()["traceId"]
    assert (trace["event_type"], trace["data"], trace["consumer_group"]) == ("start", {"step": 1}, "g")
    assert sorted(trace["trace_names"]) == ["a", "b"]
    assert trace["created_at"].endswith("Z")


@pytest.mark.parametrize("several", [False, True])
def test_a_trace_is_found_by_its_name(http: Http, queue: str, several: bool) -> None:
    name = f"trace-{uuid4()}"
    message = _message(http, queue)
    http.post("/api/v1/traces", {**message, "data": 1, "traceNames": [name] if several else name})
    http.post("/api/v1/traces", {**message, "data": 2, "traceNames": name})
    answer = http.get(f"/api/v1/traces/by-name/{name}", limit=1).json()
    assert (answer["total"], answer["pagination"]) == (2, {"limit": 1, "offset": 0})
    [trace] = answer["traces"]
    assert (trace["data"], trace["event_type"], trace["message_payload"]) == (2, "info", {"n": 1})
    assert (trace["queue_name"], trace["partition_name"]) == (queue, "Default")
    assert (trace["transaction_id"], trace["partition_id"]) == (message["transactionId"], message["partitionId"])


def test_the_names_of_traces_are_counted(http: Http, queue: str) -> None:
    name = f"trace-{uuid4()}"
    message = _message(http, queue)
    for number in range(3):
        http.post("/api/v1/traces", {**message, "data": number, "traceNames": name})
    answer = http.get("/api/v1/traces/names", limit=1000).json()
    [row] = [row for row in answer["trace_names"] if row["trace_name"] == name]
    assert (row["trace_count"], row["message_count"]) == (3, 1)
    assert row["last_seen"].endswith("Z")
    assert answer["total"] >= 1


def test_a_trace_needs_a_message_and_data(http: Http, queue: str) -> None:
    message = _message(http, queue)
    assert http.post("/api/v1/traces", message).json()["error"] == "data is required"
    assert http.post("/api/v1/traces", {**message, "transactionId": "none", "data": 1}).code == "message_not_found"
    assert http.post("/api/v1/traces", {**message, "partitionId": "x", "data": 1}).status == 400
    assert http.post("/api/v1/traces", {**message, "data": 1, "traceNames": [""]}).status == 400


def test_null_is_data(http: Http, queue: str) -> None:
    message = _message(http, queue)
    assert http.post("/api/v1/traces", {**message, "data": None}).status == 201


def test_messages_of_a_trace_are_listed(http: Http, queue: str) -> None:
    trace_id = str(uuid4())
    http.push(queue, {"n": 1}, traceId=trace_id, kind="created", headers={"a": "b"})
    http.push(f"{queue}.next", {"n": 2}, traceId=trace_id, partition="p")
    answer = http.get(f"/api/v1/traces/{trace_id}").json()
    assert answer["traceId"] == trace_id
    first, second = answer["messages"]
    assert (first["queue"], first["data"], first["kind"], first["headers"]) == (queue, {"n": 1}, "created", {"a": "b"})
    assert (second["queue"], second["partition"], second["seq"]) == (f"{queue}.next", "p", 1)
    assert [one["data"] for one in http.get(f"/api/v1/traces/{trace_id}", limit=1).json()["messages"]] == [{"n": 1}]


def test_trace_that_nobody_knows_is_empty_and_bad_ids_are_refused(http: Http) -> None:
    assert http.get(f"/api/v1/traces/{uuid4()}").json()["messages"] == []
    assert http.get("/api/v1/traces/no-uuid").status == 400
