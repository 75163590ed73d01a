"""Dead letters over HTTP."""

from __future__ import annotations

from typing import Any

from support.http import Http


def _bury(http: Http, queue: str, payload: object, *, partition: str = "Default") -> dict[str, Any]:
    http.push(queue, payload, partition=partition)
    [message] = http.get(f"/api/v1/pop/queue/{queue}/partition/{partition}").json()["messages"]
    assert http.ack(message, "dlq", error="broken")["dlq"] is True
    return dict(message)


def test_dead_letters_are_listed_newest_first(http: Http, queue: str) -> None:
    first = _bury(http, queue, {"n": 1})
    _bury(http, queue, {"n": 2})
    answer = http.get("/api/v1/dlq", queue=queue).json()
    assert answer["total"] == 2
    assert answer["pagination"] == {"limit": 100, "offset": 0}
    assert [row["data"] for row in answer["messages"]] == [{"n": 2}, {"n": 1}]
    row = answer["messages"][1]
    assert (row["transactionId"], row["partitionId"]) == (first["transactionId"], first["partitionId"])
    assert (row["queue"], row["partition"], row["consumerGroup"]) == (queue, "Default", "__QUEUE_MODE__")
    assert (row["errorMessage"], row["retryCount"], row["producerSub"]) == ("broken", 1, None)
    assert row["createdAt"].endswith("Z")
    assert row["failedAt"].endswith("Z")


def test_the_default_partition_is_no_filter(http: Http, queue: str) -> None:
    _bury(http, queue, 1, partition="a")
    _bury(http, queue, 2, partition="b")
    assert http.get("/api/v1/dlq", queue=queue, partition="Default").json()["total"] == 2
    assert http.get("/api/v1/dlq", queue=queue, partition="a").json()["total"] == 1


def test_dead_letters_are_paged_and_filtered(http: Http, queue: str) -> None:
    for number in range(3):
        _bury(http, queue, number)
    page = http.get("/api/v1/dlq", queue=queue, limit=1, offset=1).json()
    assert ([row["data"] for row in page["messages"]], page["total"]) == ([1], 3)
    assert http.get("/api/v1/dlq", queue=queue, to="2020-01-01").json()["total"] == 0
    assert http.get("/api/v1/dlq", queue=queue, **{"from": "2020-01-01T00:00:00Z"}).json()["total"] == 3
    assert http.get("/api/v1/dlq", queue=queue, consumerGroup="nobody").json()["total"] == 0


def test_bad_filters_are_refused(http: Http) -> None:
    for query in ({"limit": 0}, {"limit": 10**9}, {"offset": -1}, {"from": "soon"}, {"limit": "x"}):
        assert http.get("/api/v1/dlq", **query).status == 400, query


def test_one_dead_letter(http: Http, queue: str) -> None:
    _bury(http, queue, {"n": 1})
    [row] = http.get("/api/v1/dlq", queue=queue).json()["messages"]
    assert http.get(f"/api/v1/dlq/{row['id']}").json() == row
    assert http.get("/api/v1/dlq/999999999").code == "dead_letter_not_found"
    assert http.get("/api/v1/dlq/abc").status == 400


def test_redrive_pushes_again(http: Http, queue: str) -> None:
    _bury(http, queue, {"n": 1})
    _bury(http, queue, {"n": 2})
    newest = http.get("/api/v1/dlq", queue=queue).json()["messages"][0]
    assert http.post("/api/v1/dlq/redrive", {"ids": [newest["id"]]}).json() == {"success": True, "redriven": 1}
    assert http.pop(queue)["messages"][0]["data"] == {"n": 2}
    assert http.post("/api/v1/dlq/redrive", {"queue": queue}).json()["redriven"] == 1
    assert http.get("/api/v1/dlq", queue=queue).json()["total"] == 0


def test_redrive_takes_the_oldest_up_to_the_limit(http: Http, queue: str) -> None:
    for number in range(3):
        _bury(http, queue, number)
    assert http.post("/api/v1/dlq/redrive", {"queue": queue, "limit": 2}).json()["redriven"] == 2
    [left] = http.get("/api/v1/dlq", queue=queue).json()["messages"]
    assert left["data"] == 2


def test_purge_removes_only_what_is_named(http: Http, queue: str) -> None:
    _bury(http, queue, 1, partition="a")
    _bury(http, queue, 2)
    assert http.post("/api/v1/dlq/purge", {"queue": queue, "partition": "Default"}).json()["purged"] == 1
    [left] = http.get("/api/v1/dlq", queue=queue).json()["messages"]
    assert left["partition"] == "a"


def test_an_empty_selection_means_nothing(http: Http, queue: str) -> None:
    _bury(http, queue, 1)
    for verb in ("redrive", "purge"):
        answer = http.post(f"/api/v1/dlq/{verb}", {})
        assert (answer.status, answer.code) == (400, "invalid_request")
    assert http.get("/api/v1/dlq", queue=queue).json()["total"] == 1


def test_redrive_by_filter_leaves_what_was_completed_in_the_dead_queue(http: Http, queue: str) -> None:
    dead = f"{queue}-dead"
    for name, options in ((dead, {}), (queue, {"deadQueue": dead})):
        assert http.post("/api/v1/configure", {"queue": name, "options": options}).status < 300
    _bury(http, queue, 1)
    [copy] = http.pop(dead, autoAck="true")["messages"]
    assert copy["data"] == 1
    assert http.post("/api/v1/dlq/redrive", {"queue": queue}).json()["redriven"] == 0
    [row] = http.get("/api/v1/dlq", queue=queue).json()["messages"]
    assert http.post("/api/v1/dlq/redrive", {"ids": [row["id"]]}).json()["redriven"] == 1
