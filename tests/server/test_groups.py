"""Consumer groups over HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from support.http import Http


def _rows(http: Http, queue: str) -> list[dict[str, Any]]:
    return [row for row in http.get("/api/v1/consumer-groups").json() if row["queueName"] == queue]


def test_groups_are_listed_with_their_lag(http: Http, queue: str, group: str) -> None:
    http.push(queue, 1, 2, partition="a")
    http.push(queue, 3, partition="b")
    http.pop(queue, consumerGroup=group)
    [row] = _rows(http, queue)
    assert (row["name"], row["topics"]) == (group, [queue])
    assert (row["members"], row["partitionsWithLag"], row["totalLag"]) == (1, 2, 3)
    assert (row["state"], row["subscriptionMode"], row["subscriptionTimestamp"]) == ("Stable", "all", None)
    assert row["subscriptionCreatedAt"].endswith("Z")
    assert row["maxTimeLag"] >= 0


def test_first_and_last_time_of_all_are_refused(http: Http, queue: str, group: str) -> None:
    """PostgreSQL would keep them as infinities, which are no times when they are read again."""
    http.push(queue, 1)
    http.pop(queue, consumerGroup=group)
    for at in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"):
        pop = http.get(f"/api/v1/pop/queue/{queue}", consumerGroup=f"{group}-2", subscriptionFrom=at)
        moved = http.post(f"/api/v1/consumer-groups/{group}/subscription", {"subscriptionTimestamp": at})
        late = http.post("/api/v1/push", {"items": [{"queue": queue, "deliverAt": at}]})
        assert (pop.code, moved.code, late.code) == ("invalid_request",) * 3
    assert [row["name"] for row in _rows(http, queue)] == [group]


def test_a_group_shows_its_partitions_by_queue(http: Http, queue: str, group: str) -> None:
    http.push(queue, 1, 2)
    http.pop(queue, consumerGroup=group, autoAck="true")
    http.pop(queue, consumerGroup=group)
    answer = http.get(f"/api/v1/consumer-groups/{group}").json()
    [partition] = answer[queue]["partitions"]
    assert (partition["partition"], partition["totalConsumed"], partition["offsetLag"]) == ("Default", 1, 1)
    assert (partition["leaseActive"], partition["workerId"]) == (True, None)
    assert partition["lastConsumedAt"].endswith("Z")


def test_utilisation_says_how_busy_a_group_is(http: Http, queue: str, group: str) -> None:
    for partition in "abc":
        http.push(queue, 1, partition=partition)
    http.pop(queue, consumerGroup=group)
    [use] = http.get("/api/v1/analytics/utilisation", queue=queue).json()["utilisation"]
    assert (use["queue"], use["consumerGroup"]) == (queue, group)
    assert (use["partitionsLeased"], use["partitionsReady"], use["partitionsStopped"]) == (1, 2, 0)
    assert use in http.get("/api/v1/analytics/utilisation").json()["utilisation"]
    assert http.get("/api/v1/analytics/utilisation", queue="no-such-queue").status == 404


def test_an_unknown_group_is_not_found(http: Http, group: str) -> None:
    answer = http.get(f"/api/v1/consumer-groups/{group}")
    assert (answer.status, answer.code) == (404, "group_not_found")
    assert http.delete(f"/api/v1/consumer-groups/{group}").code == "group_not_found"


def test_lagging_names_partitions_over_the_limit(http: Http, queue: str, group: str) -> None:
    http.push(queue, 1)
    http.pop(queue, consumerGroup=group)
    found = http.get("/api/v1/consumer-groups/lagging", minLagSeconds=0).json()
    [row] = [row for row in found if row["queue_name"] == queue]
    assert (row["consumer_group"], row["partition_name"], row["offset_lag"]) == (group, "Default", 1)
    assert row["partition_id"].isdigit()
    assert row["oldest_unconsumed_at"].endswith("Z")
    later = http.get("/api/v1/consumer-groups/lagging").json()
    assert [row for row in later if row["queue_name"] == queue] == []


def test_a_deleted_group_starts_afresh(http: Http, queue: str, group: str) -> None:
    http.push(queue, 1)
    http.pop(queue, consumerGroup=group, autoAck="true")
    answer = http.delete(f"/api/v1/consumer-groups/{group}", deleteMetadata="true").json()
    assert answer == {"success": True, "consumerGroup": group, "deletedPartitions": 1, "metadataDeleted": True}
    assert http.pop(queue, consumerGroup=group)["messages"][0]["data"] == 1


def test_a_group_is_deleted_on_one_queue(http: Http, queue: str, group: str) -> None:
    for name in (queue, f"{queue}-other"):
        http.push(name, 1)
        http.pop(name, consumerGroup=group)
    answer = http.delete(f"/api/v1/consumer-groups/{group}/queues/{queue}").json()
    assert (answer["queueName"], answer["deletedPartitions"]) == (queue, 1)
    assert list(http.get(f"/api/v1/consumer-groups/{group}").json()) == [f"{queue}-other"]


def test_a_subscription_is_where_a_group_begins_afresh(http: Http, queue: str, group: str) -> None:
    http.push(queue, 1)
    http.pop(queue, consumerGroup=group)
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    answer = http.post(f"/api/v1/consumer-groups/{group}/subscription", {"subscriptionTimestamp": tomorrow}).json()
    assert (answer["success"], answer["rowsUpdated"]) == (True, 1)
    assert answer["newTimestamp"][:19] == tomorrow[:19]
    http.delete(f"/api/v1/consumer-groups/{group}", deleteMetadata="false")
    assert http.get(f"/api/v1/pop/queue/{queue}", consumerGroup=group).status == 204


def test_a_subscription_needs_a_time(http: Http, group: str) -> None:
    path = f"/api/v1/consumer-groups/{group}/subscription"
    assert http.post(path, {}).json()["error"] == "subscriptionTimestamp is required"
    assert http.post(path, {"subscriptionTimestamp": "soon"}).status == 400


def test_seek_to_the_end_and_back(http: Http, queue: str, group: str) -> None:
    http.push(queue, 1, 2)
    http.pop(queue, consumerGroup=group)
    path = f"/api/v1/consumer-groups/{group}/queues/{queue}/seek"
    answer = http.post(path, {"toEnd": True}).json()
    assert (answer["seekToEnd"], answer["targetTimestamp"], answer["partitionsUpdated"]) == (True, None, 1)
    assert http.get(f"/api/v1/pop/queue/{queue}", consumerGroup=group).status == 204
    answer = http.post(path, {"timestamp": "2020-01-01T00:00:00Z"}).json()
    assert answer["targetTimestamp"] == "2020-01-01T00:00:00.000000Z"
    assert http.pop(queue, consumerGroup=group)["messages"][0]["data"] == 1


def test_seek_of_one_partition_leaves_the_others(http: Http, queue: str, group: str) -> None:
    http.push(queue, 1, partition="a")
    http.push(queue, 2, partition="b")
    http.pop(queue, consumerGroup=group, batch=1)
    path = f"/api/v1/consumer-groups/{group}/queues/{queue}/partitions/a/seek"
    assert http.post(path, {"toEnd": True}).json()["partitionsUpdated"] == 1
    assert [row["totalLag"] for row in _rows(http, queue)] == [1]


def test_preview_of_a_seek_moves_nothing(http: Http, queue: str, group: str) -> None:
    http.push(queue, 1, 2, 3)
    http.pop(queue, consumerGroup=group)
    path = f"/api/v1/consumer-groups/{group}/queues/{queue}/seek"
    answer = http.get(path, toEnd="true").json()
    assert (answer["skipped"], answer["readAgain"], answer["leases"], answer["complete"]) == (3, 0, 1, True)
    assert [row["totalLag"] for row in _rows(http, queue)] == [3]
    assert http.get(path).status == 400


def test_seek_needs_a_place(http: Http, queue: str, group: str) -> None:
    path = f"/api/v1/consumer-groups/{group}/queues/{queue}/seek"
    assert http.post(path, {}).status == 400
    assert http.post(path, {"timestamp": "yesterday"}).status == 400
    assert http.post(path, {"toEnd": True}).code == "queue_not_found"


def test_ack_of_a_group_that_is_not_there_says_so(http: Http, queue: str, group: str) -> None:
    http.push(queue, 1)
    [message] = http.pop(queue)["messages"]
    refused = http.ack(message, consumerGroup=group)
    assert (refused["success"], "group" in refused["error"]) == (False, True)
    assert http.ack(message)["success"]


def test_paused_group_gets_nothing_until_it_is_resumed(http: Http, queue: str, group: str) -> None:
    http.push(queue, 1)
    path = f"/api/v1/consumer-groups/{group}/queues/{queue}/pause"
    assert http.post(path, {"paused": True}).code == "group_not_found"
    http.get(f"/api/v1/pop/queue/{queue}/partition/none", consumerGroup=group)
    answer = http.post(path, {"paused": True})
    assert answer.json() == {"success": True, "consumerGroup": group, "queueName": queue, "paused": True}
    assert _rows(http, queue)[0]["pausedAt"].endswith("Z")
    assert http.get(f"/api/v1/pop/queue/{queue}", consumerGroup=group).status == 204
    assert http.post(path, {"paused": False}).json()["paused"] is False
    assert _rows(http, queue)[0]["pausedAt"] is None
    assert len(http.pop(queue, consumerGroup=group)["messages"]) == 1


def test_pop_that_waits_gets_what_is_there_once_its_group_is_resumed(http: Http, queue: str, group: str) -> None:
    http.get(f"/api/v1/pop/queue/{queue}", consumerGroup=group)
    http.push(queue, 1)
    http.get(f"/api/v1/pop/queue/{queue}/partition/none", consumerGroup=group)
    path = f"/api/v1/consumer-groups/{group}/queues/{queue}/pause"
    http.post(path, {"paused": True})
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(
            http.get, f"/api/v1/pop/queue/{queue}", consumerGroup=group, wait="true", timeout=60_000
        )
        while not sum(row["pollsWaiting"] for row in http.get("/api/v1/analytics/worker-metrics").json()["workers"]):
            assert not waiting.done()
        http.post(path, {"paused": False})
        assert len(waiting.result().json()["messages"]) == 1
