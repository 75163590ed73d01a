"""Operations over HTTP: what a busy server answers, and how to follow what it has queued."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lockstep.config import Config
from lockstep.engine.engine import Engine
from lockstep.engine.load import Decision
from lockstep.storage.memory import MemoryStore
from support.http import Http
from support.serving import serving_engine

CONFIG = Config(operation_interval_seconds=0.05, operation_retries_max=0)


@pytest.fixture
def engine() -> Engine:
    """One that queues every push, as if its load were high."""
    engine = Engine(MemoryStore(), CONFIG)
    engine._load.push = Decision.QUEUE
    return engine


@pytest.fixture
def busy(engine: Engine) -> Iterator[Http]:
    with serving_engine(engine, CONFIG) as url:
        yield Http(url)


def items(queue: str, *payloads: object, **fields: Any) -> dict[str, Any]:
    return {"items": [{"queue": queue, "payload": payload, **fields} for payload in payloads]}


def accepted(http: Http, content: object) -> dict[str, Any]:
    answer = http.post("/api/v1/push?queued=true", content)
    assert answer.status == 202, answer.body
    return dict(answer.json())


def test_client_that_knows_nothing_of_operations_gets_the_usual_answer(busy: Http) -> None:
    answer = busy.post("/api/v1/push", items("q", 1, 2, transactionId="x"))
    assert answer.status == 201
    assert [(r["status"], r["seq"], r["transaction_id"]) for r in answer.json()] == [
        ("queued", 1, "x"),
        ("duplicate", 1, "x"),
    ]
    assert busy.pop("q")["messages"][0]["data"] == 1


@pytest.mark.parametrize("headers", [{"Lockstep-Accept": "queued"}, None])
def test_client_that_says_so_is_told_that_its_push_is_queued(busy: Http, headers: dict[str, str] | None) -> None:
    path = "/api/v1/push" if headers else "/api/v1/push?queued=true"
    answer = busy.send("POST", path, b'{"items":[{"queue":"q","payload":1}]}', headers)
    assert answer.status == 202
    told = answer.json()
    assert told.keys() == {"status", "operationId", "queuePosition", "estimatedWait", "reason"}
    assert (told["status"], told["reason"], told["queuePosition"]) == ("deferred", "system_busy", 1)


def test_operation_tells_what_became_of_its_items_in_their_order(busy: Http) -> None:
    content = {"items": [{"queue": "q", "payload": n, "partition": p} for n, p in enumerate("abab")]}
    operation_id = accepted(busy, content)["operationId"]
    done = busy.get(f"/api/v1/operations/{operation_id}", timeout=30_000).json()
    assert (done["status"], done["kind"], done["priority"], done["error"]) == ("done", "push", 5, None)
    assert [(r["index"], r["partition"], r["seq"], r["status"]) for r in done["receipts"]] == [
        (0, "a", 1, "queued"),
        (1, "b", 1, "queued"),
        (2, "a", 2, "queued"),
        (3, "b", 2, "queued"),
    ]
    by_id = {m["id"]: m["data"] for m in busy.pop("q", batch=10, partitions=10)["messages"]}
    assert [by_id[receipt["message_id"]] for receipt in done["receipts"]] == [0, 1, 2, 3]


def test_refused_push_is_a_429_that_says_when_to_come_again(busy: Http, engine: Engine) -> None:
    engine._load.push = Decision.REJECT
    # It is not even read.
    answer = busy.send("POST", "/api/v1/push", b"no JSON at all")
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "overloaded", "1")
    assert busy.post("/api/v1/transaction", {"operations": [{"type": "push", **items("q", 1)}]}).status == 429
    engine._load.pop = Decision.REJECT
    assert busy.get("/api/v1/pop/queue/q").status == 429
    assert busy.get("/api/v1/pop/queue/q", wait="true").status == 429


def test_failed_operation_keeps_its_error_and_can_be_tried_again(busy: Http) -> None:
    busy.post("/api/v1/configure", {"queue": "q", "options": {"maxSize": 1}})
    assert busy.post("/api/v1/push", items("q", 1)).status == 201
    refused = busy.post("/api/v1/push", items("q", 2))
    assert (refused.status, refused.code) == (429, "QUEUE_FULL")
    [failed] = busy.get("/api/v1/operations", status="failed").json()["operations"]
    assert (failed["code"], failed["receipts"]) == ("QUEUE_FULL", None)
    path = f"/api/v1/operations/{failed['operationId']}"
    busy.pop("q", autoAck="true")
    assert busy.post(f"{path}/retry").json()["status"] == "pending"
    assert busy.get(path, timeout=30_000).json()["status"] == "done"
    assert busy.post(f"{path}/retry").code == "conflict"
    assert busy.pop("q")["messages"][0]["data"] == 2


def test_operations_are_listed_page_by_page(busy: Http) -> None:
    ids = [accepted(busy, items("q", n))["operationId"] for n in range(3)]
    busy.get(f"/api/v1/operations/{ids[-1]}", timeout=30_000)
    first = busy.get("/api/v1/operations", limit=2).json()
    rest = busy.get("/api/v1/operations", limit=2, cursor=first["nextCursor"], status="done").json()
    assert [one["operationId"] for one in first["operations"] + rest["operations"]] == ids
    assert rest["nextCursor"] is None


def test_queued_acks_answer_as_usual(busy: Http, engine: Engine) -> None:
    busy.post("/api/v1/push", items("q", 1))
    popped = busy.pop("q")
    engine._load.ack = Decision.QUEUE
    assert busy.ack(popped["messages"][0])["success"]
    [done] = [one for one in busy.get("/api/v1/operations").json()["operations"] if one["kind"] == "ack"]
    assert done["acks"][0]["success"]
    assert done["priority"] == 3


def test_stats_and_metrics_tell_how_busy_it_is(busy: Http) -> None:
    operation_id = accepted(busy, items("q", 1))["operationId"]
    busy.get(f"/api/v1/operations/{operation_id}", timeout=30_000)
    stats = busy.get("/api/v1/operations/stats").json()
    assert [row["kind"] for row in stats["pending"]] == ["ack", "push"]
    assert [row["kind"] for row in stats["load"]] == ["push", "ack", "pop"]
    assert (stats["applied"], stats["failed"], stats["load"][0]["queued"]) == (1, 0, 1)
    text = busy.get("/metrics/prometheus").body.decode()
    assert "lockstep_requests_queued_total{" in text
    assert 'answer="execute",kind="push"' in text
    assert busy.get("/metrics").json()["operations"] == {"applied": 1, "failed": 0}


def test_unknown_and_malformed_operations(http: Http) -> None:
    assert http.get("/api/v1/operations/0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b").code == "operation_not_found"
    assert http.get("/api/v1/operations/nonsense").status == 400
    assert http.get("/api/v1/operations", status="lost").status == 400
    assert http.get("/api/v1/operations", cursor="nonsense").status == 400
    assert http.get("/api/v1/operations", limit=0).status == 400
    assert http.get("/api/v1/operations/stats").json()["loadManaged"] is True
