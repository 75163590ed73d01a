"""Work queues over HTTP: partial update, statistics, expiry, dead queues, shared groups."""

from __future__ import annotations

from typing import Any

import pytest

from support.http import Http


def _configure(http: Http, queue: str, **options: Any) -> None:
    assert http.post("/api/v1/configure", {"queue": queue, "options": options}).status == 200


def _push(http: Http, queue: str, *payloads: Any, **fields: Any) -> list[dict[str, Any]]:
    answer = http.post("/api/v1/push", {"items": [{"queue": queue, "payload": one, **fields} for one in payloads]})
    assert answer.status == 201, answer.body
    return list(answer.json())


def _pop(http: Http, queue: str, **query: Any) -> dict[str, Any]:
    answer = http.get(f"/api/v1/pop/queue/{queue}", **query)
    return dict(answer.json()) if answer.status == 200 else {}


def test_update_changes_what_is_given(http: Http, queue: str) -> None:
    _configure(http, queue, leaseTime=17, maxSize=9)
    answer = http.patch(f"/api/v1/queues/{queue}", {"options": {"leaseTime": 18, "retryDelay": 1000}, "task": "mail"})
    assert answer.status == 200, answer.body
    updated = answer.json()
    assert (updated["options"]["leaseTime"], updated["options"]["maxSize"]) == (18, 9)
    assert (updated["options"]["retryDelay"], updated["task"]) == (1000, "mail")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"leaseTime": 0}, "invalid_option"),
        ({"mystery": 1}, "invalid_option"),
        ({"expireSeconds": 5}, "invalid_option"),
        ({"deadQueue": "nowhere-at-all"}, "invalid_option"),
    ],
)
def test_update_refuses_what_is_wrong(http: Http, queue: str, options: dict[str, Any], code: str) -> None:
    _configure(http, queue)
    answer = http.patch(f"/api/v1/queues/{queue}", {"options": options})
    assert (answer.status, answer.code) == (400, code)


def test_update_of_no_queue(http: Http, queue: str) -> None:
    answer = http.patch(f"/api/v1/queues/{queue}", {"options": {}})
    assert (answer.status, answer.code) == (404, "queue_not_found")


def test_queues_from_a_name_on(http: Http, queue: str) -> None:
    for suffix in ("-a", "-b", "-c"):
        _configure(http, queue + suffix)
    answer = http.get("/api/v1/queues", **{"from": queue + "-b", "limit": 2})
    assert [row["name"] for row in answer.json()["queues"]] == [queue + "-b", queue + "-c"]


def test_stats_of_partitions(http: Http, queue: str) -> None:
    _push(http, queue, 1, 2, partition="a")
    _push(http, queue, 3, partition="b", delaySeconds=600)
    _pop(http, queue, partitions=1, batch=1)
    answer = http.get(f"/api/v1/queues/{queue}/stats")
    a, b = answer.json()["partitions"]
    assert (a["partition"], a["total"], a["leased"], a["scheduled"]) == ("a", 2, 1, 0)
    assert a["averageAgeSeconds"] >= 0
    assert a["oldestAt"] is not None
    assert (b["partition"], b["total"], b["scheduled"], b["averageAgeSeconds"]) == ("b", 0, 1, None)
    assert http.get(f"/api/v1/queues/{queue}-none/stats").status == 404


def test_expiry_of_a_message(http: Http, queue: str) -> None:
    # A group that is there before the message: without one, the duty would just drop it.
    _configure(http, queue)
    assert http.get(f"/api/v1/pop/queue/{queue}").status == 204
    _push(http, queue, 1, expiresAt="2020-01-01T00:00:00Z")
    _push(http, queue, 2, expireSeconds=600)
    [message] = _pop(http, queue, batch=10)["messages"]
    assert message["data"] == 2
    assert message["expiresAt"].endswith("Z")
    letters = http.get("/api/v1/dlq", queue=queue).json()
    assert "expired" in str(letters)
    wrong = {"queue": queue, "payload": 1, "expireSeconds": 5, "expiresAt": "2030-01-01T00:00:00Z"}
    assert http.post("/api/v1/push", {"items": [wrong]}).status == 400


def test_dead_queue_and_back(http: Http, queue: str) -> None:
    _configure(http, queue + "-dead")
    _configure(http, queue, deadQueue=queue + "-dead")
    _push(http, queue, {"n": 1})
    popped = _pop(http, queue)
    http.post(f"/api/v1/lease/{popped['leaseId']}/ack", {"status": "dlq", "error": "bad"})
    answered = _pop(http, queue + "-dead")
    [copy] = answered["messages"]
    assert copy["headers"]["lockstep-dead-from-queue"] == queue
    assert copy["headers"]["lockstep-dead-from-error"] == "bad"
    http.post(f"/api/v1/lease/{answered['leaseId']}/ack", {"status": "retry"})
    answer = http.post(f"/api/v1/queues/{queue}-dead/redrive")
    assert answer.json() == {"queue": queue + "-dead", "redriven": 1}
    assert _pop(http, queue)["messages"][0]["data"] == {"n": 1}
    assert http.delete(f"/api/v1/resources/queues/{queue}-dead").code == "conflict"


def test_balanced_push(http: Http, queue: str) -> None:
    _configure(http, queue, partitions=2)
    assert {_push(http, queue, 1)[0]["partition"] for _ in range(10)} == {"0", "1"}


def test_shared_group_over_the_wire(http: Http, queue: str, group: str) -> None:
    _push(http, queue, 1, 2, 3, 4)
    first = _pop(http, queue, consumerGroup=group, mode="shared", batch=2)
    second = _pop(http, queue, consumerGroup=group, batch=2)
    assert (first["mode"], second["mode"]) == ("shared", "shared")
    assert [m["data"] for m in first["messages"] + second["messages"]] == [1, 2, 3, 4]
    one, two = first["messages"]
    items = [
        {"leaseId": first["leaseId"], "partitionId": one["partitionId"], "seq": two["seq"]},
        {
            "leaseId": first["leaseId"],
            "partitionId": one["partitionId"],
            "seq": one["seq"],
            "status": "retry",
            "retryAt": "2020-01-01T00:00:00Z",
        },
    ]
    results = http.post("/api/v1/ack/batch", {"acknowledgments": items, "consumerGroup": group}).json()
    assert [result["success"] for result in results] == [True, True]
    assert [m["data"] for m in _pop(http, queue, consumerGroup=group, batch=5)["messages"]] == [1]
    mismatch = http.get(f"/api/v1/pop/queue/{queue}", consumerGroup=group, mode="ordered")
    assert (mismatch.status, mismatch.code) == (409, "group_mode_mismatch")


def test_atomic_acks_all_or_none(http: Http, queue: str, group: str) -> None:
    _push(http, queue, 1, 2)
    popped = _pop(http, queue, consumerGroup=group, mode="shared", batch=2)
    one, two = popped["messages"]
    good = {"leaseId": popped["leaseId"], "partitionId": one["partitionId"], "seq": one["seq"]}
    bad = {"leaseId": "00000000-0000-7000-8000-000000000000", "partitionId": two["partitionId"], "seq": two["seq"]}
    body = {"acknowledgments": [good, bad], "consumerGroup": group, "atomic": True}
    answer = http.post("/api/v1/ack/batch", body)
    assert (answer.status, answer.code) == (409, "transaction_rolled_back")
    body["acknowledgments"] = [good]
    assert http.post("/api/v1/ack/batch", body).json()[0]["success"] is True


@pytest.mark.parametrize(
    "bad",
    [
        {"partitionId": "7f3c"},
        {"partitionId": "9" * 30},
        {"partitionId": -1},
        {"partitionId": 2**70},
        {"transactionId": ""},
        {"transactionId": "t" * 256},
        {"transactionId": "a\u0000b"},
        {"transactionId": None, "seq": 0},
        {"transactionId": None, "seq": 2**70},
    ],
)
def test_one_bad_id_fails_for_itself_or_with_all(http: Http, queue: str, group: str, bad: dict[str, Any]) -> None:
    _push(http, queue, 1, 2)
    popped = _pop(http, queue, consumerGroup=group, mode="shared", batch=2)
    good, other = [
        {"leaseId": popped["leaseId"], "partitionId": m["partitionId"], "transactionId": m["transactionId"]}
        for m in popped["messages"]
    ]
    body = {"acknowledgments": [good, {**other, **bad}], "consumerGroup": group, "atomic": True}
    answer = http.post("/api/v1/ack/batch", body)
    assert (answer.status, answer.code) == (409, "transaction_rolled_back")
    results = http.post("/api/v1/ack/batch", {**body, "atomic": False}).json()
    assert [result["success"] for result in results] == [True, False]
    assert http.post("/api/v1/ack", {**other, **bad}).status == 400


def test_clear_of_scheduled_messages(http: Http, queue: str) -> None:
    _push(http, queue, 1)
    _push(http, queue, 2, delaySeconds=600)
    assert http.delete(f"/api/v1/queues/{queue}/clear", scope="scheduled").json()["removed"] == 1
    assert [m["data"] for m in _pop(http, queue, batch=5)["messages"]] == [1]
