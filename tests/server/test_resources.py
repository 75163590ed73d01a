"""Queues, partitions, namespaces, tasks, depth and the overview over HTTP."""

from __future__ import annotations

from typing import Any

from support.http import Http


def _row(rows: list[dict[str, Any]], key: str, value: str) -> dict[str, Any]:
    [row] = [row for row in rows if row[key] == value]
    return row


def test_queues_are_listed_with_their_counts(http: Http, queue: str) -> None:
    http.push(f"{queue}.mail", 1, 2, partition="a")
    http.pop(f"{queue}.mail", consumerGroup="g")
    rows = http.get("/api/v1/resources/queues").json()["queues"]
    row = _row(rows, "name", f"{queue}.mail")
    assert (row["namespace"], row["task"], row["partitions"]) == (queue, "mail", 1)
    assert row["messages"] == {"total": 2, "pending": 2, "processing": 1}
    assert row["id"].isdigit()
    assert row["createdAt"].endswith("Z")
    assert [row["name"] for row in http.get("/api/v1/resources/queues", namespace=queue).json()["queues"]] == [
        f"{queue}.mail"
    ]


def test_one_queue_shows_its_partitions(http: Http, queue: str) -> None:
    http.push(queue, 1, 2, partition="a")
    http.push(queue, 3, partition="b")
    http.pop(queue, autoAck="true", batch=2)
    answer = http.get(f"/api/v1/resources/queues/{queue}").json()
    assert answer["totals"] == {
        "total": 3, "pending": 1, "processing": 0, "completed": 2, "failed": 0, "deadLetter": 0,
    }  # fmt: skip
    first = _row(answer["partitions"], "name", "a")
    assert first["stats"]["completed"] == 2
    assert first["oldestMessage"].endswith("Z")
    assert answer["options"]["leaseTime"] == 300
    assert http.get(f"/api/v1/resources/queues/{queue}-none").code == "queue_not_found"


def test_partitions_are_paged_over_queues(http: Http, queue: str) -> None:
    for name in ("a", "b", "c"):
        http.push(queue, 1, partition=name)
    answer = http.get("/api/v1/resources/partitions", queue=queue, limit=1, offset=1).json()
    assert [row["name"] for row in answer["partitions"]] == ["b"]
    assert answer["pagination"] == {"limit": 1, "offset": 1, "total": 3}
    http.push(f"{queue}-next", 1, partition="d")
    everything = http.get("/api/v1/resources/partitions", limit=1000).json()["partitions"]
    ours = [(row["queue"], row["name"]) for row in everything if row["queue"].startswith(queue)]
    assert ours == [(queue, "a"), (queue, "b"), (queue, "c"), (f"{queue}-next", "d")]


def test_depth_counts_what_a_group_has_before_it(http: Http, queue: str, group: str) -> None:
    http.push(queue, 1, 2, partition="a")
    http.push(queue, 3, partition="b")
    plain = http.get(f"/api/v1/resources/queues/{queue}/depth").json()
    assert (plain["group"], plain["pending"], plain["partitionsPending"]) == ("__QUEUE_MODE__", 3, 2)
    assert {row["partition"]: row["pending"] for row in plain["partitions"]} == {"a": 2, "b": 1}
    http.pop(queue, consumerGroup=group, batch=1)
    of_group = http.get(f"/api/v1/resources/queues/{queue}/depth", group=group).json()
    assert (of_group["pending"], of_group["effectivePending"]) == (3, 2)
    assert http.get(f"/api/v1/resources/queues/{queue}/depth", group=f"{group}-none").code == "group_not_found"


def test_namespaces_and_tasks_are_summed(http: Http, queue: str) -> None:
    http.push(f"{queue}.mail", 1, 2)
    http.push(f"{queue}.bill", 3)
    namespace = _row(http.get("/api/v1/resources/namespaces").json()["namespaces"], "namespace", queue)
    assert namespace["messages"] == {"total": 3, "pending": 3}
    assert (namespace["queues"], namespace["partitions"], namespace["figuresAt"]) == (2, 2, None)
    task = _row(http.get("/api/v1/resources/tasks").json()["tasks"], "task", "mail")
    assert task["queues"] >= 1


def test_the_overview_has_all_sums(http: Http, queue: str) -> None:
    before = http.get("/api/v1/resources/overview").json()
    http.push(queue, 1, 2)
    http.pop(queue)
    after = http.get("/api/v1/resources/overview").json()
    assert after["queues"] == before["queues"] + 1
    assert after["messages"]["total"] == before["messages"]["total"] + 2
    assert after["messages"]["processing"] == before["messages"]["processing"] + 1
    assert set(after["messages"]) == {"total", "pending", "processing", "completed", "failed", "deadLetter"}
    assert set(after["lag"]["time"]) == set(after["lag"]["offset"]) == {"avg", "median", "min", "max"}
    assert after["lag"]["offset"]["max"] >= 2
    assert set(after["throughput"]) == {"ingestedPerSecond", "processedPerSecond"}
    assert after["timestamp"].endswith("Z")


def test_a_name_may_have_any_character(http: Http, queue: str) -> None:
    name = f"{queue}/ä %41"
    http.push(name, 1)
    from urllib.parse import quote

    assert http.get(f"/api/v1/resources/queues/{quote(name, safe='')}").json()["name"] == name
