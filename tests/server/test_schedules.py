"""Schedules and recurring messages over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.http import Http


def schedule(http: Http, queue: str, payload: object, **fields: Any) -> dict[str, Any]:
    answer = http.post("/api/v1/push", {"items": [{"queue": queue, "payload": payload, **fields}]})
    assert answer.status == 201, answer.body
    [receipt] = answer.json()
    return dict(receipt)


def test_scheduled_message_comes_by_itself(http: Http, queue: str) -> None:
    receipt = schedule(http, queue, {"n": 1}, delaySeconds=0.3, partition="p")
    assert (receipt["status"], receipt["queueName"], receipt["partition"]) == ("scheduled", queue, "p")
    assert receipt["dueAt"].endswith("Z")
    while not (answer := http.get(f"/api/v1/pop/queue/{queue}", wait="true", timeout=500)).body:
        pass
    [message] = answer.json()["messages"]
    assert message["data"] == {"n": 1}
    assert http.get(f"/api/v1/schedules/{receipt['scheduleId']}").code == "schedule_not_found"
    assert http.delete(f"/api/v1/schedules/{receipt['scheduleId']}").json() == {"success": False}


def test_schedules_are_listed_paged_and_shown(http: Http, queue: str) -> None:
    at = datetime.now(UTC) + timedelta(days=1)
    for number in (2, 1, 3):
        due = (at + timedelta(seconds=number)).isoformat()
        schedule(http, queue, number, deliverAt=due, scheduleKey=f"key-{number}", headers={"a": "b"})
    first = http.get("/api/v1/schedules", queue=queue, limit=2).json()
    assert [row["data"] for row in first["schedules"]] == [1, 2]
    rest = http.get("/api/v1/schedules", queue=queue, limit=2, cursor=first["nextCursor"]).json()
    assert ([row["data"] for row in rest["schedules"]], rest["nextCursor"]) == ([3], None)
    row = first["schedules"][0]
    assert http.get(f"/api/v1/schedules/{row['id']}").json() == row
    assert (row["key"], row["headers"], row["queue"], row["partition"]) == ("key-1", {"a": "b"}, queue, "Default")
    assert http.get("/api/v1/schedules", queue=queue, key="key-1").json()["schedules"] == [row]
    assert http.get("/api/v1/schedules", queue=queue, key="nothing").json()["schedules"] == []
    assert len(http.get("/api/v1/schedules", queue=queue, keyPrefix="key-").json()["schedules"]) == 3
    early = http.get("/api/v1/schedules", queue=queue, to=at.isoformat()).json()
    assert early["schedules"] == []


def test_schedule_is_moved_and_cancelled_by_id_and_by_key(http: Http, queue: str) -> None:
    by_id = schedule(http, queue, 1, delaySeconds=3600)
    schedule(http, queue, 2, delaySeconds=3600, scheduleKey="k/1")
    moved = http.patch(f"/api/v1/schedules/{by_id['scheduleId']}", {"deliverAt": "2099-01-01T00:00:00Z"}).json()
    assert moved["dueAt"] == "2099-01-01T00:00:00.000000Z"
    moved = http.patch(f"/api/v1/schedules?queue={queue}&key=k/1", {"delaySeconds": 7200})
    assert moved.json()["key"] == "k/1"
    assert http.delete(f"/api/v1/schedules/{by_id['scheduleId']}").json() == {"success": True}
    assert http.delete("/api/v1/schedules", queue=queue, key="k/1").json() == {"success": True}
    assert http.get("/api/v1/schedules", queue=queue).json()["schedules"] == []
    assert http.patch("/api/v1/schedules/999999999", {"delaySeconds": 1}).code == "schedule_not_found"


def test_duplicate_names_what_waits(http: Http, queue: str) -> None:
    first = schedule(http, queue, 1, delaySeconds=3600, transactionId="t")
    again = schedule(http, queue, 1, delaySeconds=60, transactionId="t")
    assert again == first | {"status": "duplicate"}


def test_transaction_schedules(http: Http, queue: str) -> None:
    items = [{"queue": queue, "payload": 1, "delaySeconds": 3600}, {"queue": queue, "payload": 2}]
    answer = http.post("/api/v1/transaction", {"operations": [{"type": "push", "items": items}]}).json()
    assert [step["status"] for step in answer["results"]] == ["scheduled", "queued"]
    assert "scheduleId" in answer["results"][0]
    assert "scheduleId" not in answer["results"][1]


@pytest.mark.parametrize(
    "item",
    [
        {"deliverAt": "soon"},
        {"deliverAt": 7},
        {"delaySeconds": -1},
        {"delaySeconds": "1"},
        {"delaySeconds": 1, "deliverAt": "2099-01-01"},
        {"scheduleKey": "k"},
        {"scheduleKey": "", "delaySeconds": 1},
    ],
)
def test_bad_schedules_are_refused(memory_http: Http, queue: str, item: dict[str, Any]) -> None:
    answer = memory_http.post("/api/v1/push", {"items": [{"queue": queue, "payload": 1, **item}]})
    assert (answer.status, answer.code in ("invalid_request", "invalid_name")) == (400, True)


def test_bad_requests_are_refused(memory_http: Http) -> None:
    http = memory_http
    assert http.get("/api/v1/schedules", key="k").status == 400
    assert http.get("/api/v1/schedules", cursor="x").status == 400
    assert http.get("/api/v1/schedules/abc").status == 400
    assert http.delete("/api/v1/schedules").status == 400
    assert http.patch("/api/v1/schedules/1", {}).status == 400
    assert http.get("/api/v1/schedules", queue="no-such-queue").code == "queue_not_found"


def test_crons(http: Http, queue: str) -> None:
    name = f"cron/{queue}"
    body = {"name": name, "queue": queue, "expression": "0 3 * * *", "payload": {"n": 1}, "timezone": "Europe/Berlin"}
    made = http.post("/api/v1/crons", body).json()
    assert (made["name"], made["data"], made["catchUp"], made["enabled"]) == (name, {"n": 1}, "skip", True)
    assert made["nextAt"] > datetime.now(UTC).isoformat()[:10]
    assert made in http.get("/api/v1/crons", limit=1000).json()["crons"]
    assert http.get(f"/api/v1/crons/{name}").json() == made
    paused = http.post("/api/v1/crons", body | {"enabled": False}).json()
    assert (paused["enabled"], paused["nextAt"]) == (False, None)
    assert http.delete(f"/api/v1/crons/{name}").json() == {"success": True}
    assert http.delete(f"/api/v1/crons/{name}").json() == {"success": False}
    assert http.get(f"/api/v1/crons/{name}").code == "cron_not_found"


def test_opaque_cron(http: Http, queue: str) -> None:
    body = {"name": queue, "queue": queue, "expression": "0 3 * * *", "payloadBase64": "AAE=", "encoding": "raw"}
    assert http.post("/api/v1/crons", body).json()["data"] == "AAE="
    assert http.delete(f"/api/v1/crons/{queue}").json() == {"success": True}


@pytest.mark.parametrize(
    "change",
    [
        {"expression": "often"},
        {"timezone": "Mars"},
        {"catchUp": "some"},
        {"name": ""},
        {"encoding": "raw"},
        {"payloadBase64": "AAE="},
        {"payloadBase64": "?", "encoding": "raw"},
    ],
)
def test_bad_crons_are_refused(memory_http: Http, queue: str, change: dict[str, Any]) -> None:
    body = {"name": queue, "queue": queue, "expression": "0 3 * * *", "payload": 1}
    assert memory_http.post("/api/v1/crons", body | change).status == 400
