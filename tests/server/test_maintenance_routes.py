"""Maintenance mode over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.http import Http

PUSHES, POPS = "/api/v1/system/maintenance", "/api/v1/system/maintenance/pop"


@pytest.fixture
def http(http: Http) -> Iterator[Http]:
    """Other tests share the server."""
    yield http
    for path in (PUSHES, POPS):
        assert http.post(path, {"enabled": False}).status == 200
    drained(http)


def drained(http: Http) -> None:
    deadline = time.monotonic() + 30
    while http.get(PUSHES).json()["bufferedMessages"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def popped(http: Http, queue: str) -> list[Any]:
    answer = http.get(f"/api/v1/pop/queue/{queue}", batch=100, autoAck="true")
    return [message["data"] for message in answer.json()["messages"]] if answer.status == 200 else []


def test_mode_is_off_at_first(http: Http) -> None:
    for path in (PUSHES, POPS):
        mode = http.get(path).json()
        stats = mode.pop("bufferStats")
        assert mode == {
            "maintenanceMode": False,
            "popMaintenanceMode": False,
            "bufferedMessages": 0,
            "bufferHealthy": True,
            "breaker": "closed",
        }
        assert (stats["bytes"], stats["draining"], stats["waitingFor"]) == (0, False, None)


def test_pushes_are_buffered_and_drained_in_order_when_it_is_turned_off(http: Http, queue: str) -> None:
    http.push(queue, 1)
    answer = http.post(PUSHES, {"enabled": True})
    assert (answer.status, answer.json()["maintenanceMode"]) == (200, True)
    answer = http.post("/api/v1/push", {"items": [{"queue": queue, "payload": 2, "transactionId": "t"}]})
    assert answer.status == 201
    assert answer.json() == [
        {
            "index": 0,
            "transaction_id": "t",
            "status": "buffered",
            "message_id": "",
            "partition_id": "0",
            "trace_id": None,
            "queueName": queue,
            "partition": "Default",
            "seq": 0,
        }
    ]
    http.push(queue, 3, 4)
    assert http.get(PUSHES).json()["bufferedMessages"] == 3
    assert popped(http, queue) == [1]
    assert http.post(PUSHES, {"enabled": False}).json()["maintenanceMode"] is False
    assert [receipt["status"] for receipt in http.push(queue, 5)] in (["queued"], ["buffered"])
    drained(http)
    assert popped(http, queue) == [2, 3, 4, 5]


def test_pops_find_nothing_at_once_while_they_are_off(http: Http, queue: str) -> None:
    http.push(queue, 1)
    assert http.post(POPS, {"enabled": True}).json()["popMaintenanceMode"] is True
    assert http.get(f"/api/v1/pop/queue/{queue}").status == 204
    assert http.get(f"/api/v1/pop/queue/{queue}", wait="true", timeout=60_000).status == 204
    assert http.get("/api/v1/pop", namespace=queue).status == 204
    assert http.post(POPS, {"enabled": False}).json()["popMaintenanceMode"] is False
    assert popped(http, queue) == [1]


@pytest.mark.parametrize("path", [PUSHES, POPS])
@pytest.mark.parametrize("body", [None, {}, {"enabled": None}, {"enabled": 1}, {"enabled": "true"}, [True]])
def test_anything_but_a_boolean_is_refused(http: Http, path: str, body: Any) -> None:
    assert http.post(path, body).status == 400
    mode = http.get(path).json()
    assert (mode["maintenanceMode"], mode["popMaintenanceMode"]) == (False, False)


def test_transaction_with_a_push_has_to_wait(http: Http, queue: str) -> None:
    http.push(queue, 1)
    message = http.pop(queue)["messages"][0]
    http.post(PUSHES, {"enabled": True})
    named = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
    operations = [{"type": "ack", **named}, {"type": "push", "items": [{"queue": queue, "payload": 2}]}]
    answer = http.post("/api/v1/transaction", {"operations": operations})
    assert (answer.status, answer.json()["code"]) == (503, "buffering")
    assert answer.headers["retry-after"]
    assert http.post("/api/v1/transaction", {"operations": operations[:1]}).json()["success"] is True


def test_metrics_tell_what_is_buffered(http: Http, queue: str) -> None:
    http.post(PUSHES, {"enabled": True})
    http.push(queue, 1, 2)
    buffer = http.get("/metrics").json()["buffer"]
    assert (buffer["messages"], buffer["breakerOpen"]) == (2, False)
    assert buffer["bytes"] > 0
    lines = http.get("/metrics/prometheus").body.decode().splitlines()
    values = {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines if not line.startswith("#")}
    assert values["lockstep_buffer_messages"] == "2.0"
    assert values["lockstep_breaker_open"] == "0.0"
    http.post(PUSHES, {"enabled": False})
    drained(http)
    assert http.get("/metrics").json()["buffer"]["messages"] == 0
