"""Stored messages over HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote
from uuid import UUID

from support.http import Http


def _path(message: dict[str, Any]) -> str:
    return f"/api/v1/messages/{message['partitionId']}/{quote(message['transactionId'], safe='')}"


def test_messages_are_listed_with_their_status(http: Http, queue: str) -> None:
    http.push(queue, 1, 2, 3)
    http.pop(queue, autoAck="true")
    http.pop(queue)
    answer = http.get("/api/v1/messages", queue=queue).json()
    rows = answer["messages"]
    assert [row["status"] for row in rows] == ["completed", "processing", "pending"]
    assert [row["queueStatus"] for row in rows] == ["completed", "processing", "pending"]
    assert rows[0]["queuePath"] == f"{queue}/Default"
    assert (rows[0]["namespace"], rows[0]["task"], rows[0]["queuePriority"]) == (queue, "", 0)
    assert rows[0]["busStatus"] == {"consumedBy": 0, "totalGroups": 0}
    assert rows[0]["leaseExpiresAt"] is None
    assert rows[1]["leaseExpiresAt"].endswith("Z")
    assert answer["mode"] == {"hasQueueMode": True, "busGroupsCount": 0, "type": "queue"}
    assert answer["cursor"] is None


def test_message_is_found_by_its_id_whenever_it_was_stored(http: Http, queue: str) -> None:
    receipt = http.push(queue, 1, partition="p", transactionId="mine")[0]
    found = http.get("/api/v1/messages", id=receipt["message_id"], to="2020-01-01T00:00:00Z").json()["messages"]
    assert [row["transactionId"] for row in found] == ["mine"]
    found = http.get("/api/v1/messages", id="mine", queue=queue, partition="p").json()["messages"]
    assert [row["id"] for row in found] == [receipt["message_id"]]
    for unknown in ({"id": "mine"}, {"id": receipt["message_id"], "queue": "another"}, {"id": str(UUID(int=0))}):
        assert http.get("/api/v1/messages", **unknown).json()["messages"] == []


def test_the_mode_tells_who_reads(http: Http, queue: str, group: str) -> None:
    http.push(queue, 1)
    assert http.get("/api/v1/messages", queue=queue).json()["mode"]["type"] == "none"
    http.pop(queue, consumerGroup=group)
    assert http.get("/api/v1/messages", queue=queue).json()["mode"]["type"] == "bus"
    http.pop(queue)
    answer = http.get("/api/v1/messages", queue=queue).json()
    assert answer["mode"] == {"hasQueueMode": True, "busGroupsCount": 1, "type": "hybrid"}
    assert answer["messages"][0]["busStatus"] == {"consumedBy": 0, "totalGroups": 1}


def test_messages_are_filtered(http: Http, queue: str) -> None:
    http.push(f"{queue}.mail", 1, partition="a")
    http.push(f"{queue}.mail", 2, partition="b")
    http.push(f"{queue}.bill", 3)
    http.get(f"/api/v1/pop/queue/{queue}.mail/partition/a", autoAck="true")

    def found(**query: object) -> list[int]:
        rows = http.get("/api/v1/messages", **query).json()["messages"]
        return [http.get(_path(row)).json()["payload"] for row in rows]

    assert sorted(found(ns=queue)) == [1, 2, 3]
    assert found(ns=queue, task="bill") == [3]
    assert found(queue=f"{queue}.mail", partition="b") == [2]
    assert found(queue=f"{queue}.mail", status="completed") == [1]
    assert found(queue=f"{queue}.mail", to="2020-01-01T00:00:00Z") == []


def test_namespace_has_two_names(http: Http, queue: str) -> None:
    http.push(f"{queue}.mail", 1)
    lists = [http.get("/api/v1/messages", **{name: queue}) for name in ("ns", "namespace")]
    assert [[row["queue"] for row in one.json()["messages"]] for one in lists] == [[f"{queue}.mail"]] * 2
    assert http.get("/api/v1/messages", ns=queue, namespace="other").code == "invalid_request"


def test_status_that_does_not_exist_is_refused_with_those_that_do(http: Http) -> None:
    answer = http.get("/api/v1/messages", status="peding")
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "it is one of completed, dead_letter, pending, processing" in answer.json()["error"]


def test_messages_are_paged_by_offset_and_by_cursor(http: Http, queue: str) -> None:
    http.push(queue, *range(5))
    page = http.get("/api/v1/messages", queue=queue, limit=2, offset=1).json()
    assert [row["seq"] for row in page["messages"]] == [2, 3]
    rest = http.get("/api/v1/messages", queue=queue, limit=2, cursor=page["cursor"]).json()
    assert [row["seq"] for row in rest["messages"]] == [4, 5]
    assert http.get("/api/v1/messages", queue=queue, offset=5).json()["messages"] == []
    of_queue = http.get(f"/api/v1/status/queues/{queue}/messages", limit=1).json()
    assert [row["seq"] for row in of_queue["messages"]] == [1]


def test_bad_lists_are_refused(http: Http, queue: str) -> None:
    assert http.get("/api/v1/messages", queue=queue).code == "queue_not_found"
    assert http.get("/api/v1/messages", partition="a").status == 400
    for query in ({"limit": 0}, {"limit": 5000}, {"offset": -1}, {"offset": 10**6}, {"status": "odd"}, {"cursor": "x"}):
        assert http.get("/api/v1/messages", **query).status == 400, query


def test_one_message_shows_all_that_is_known(http: Http, queue: str, group: str) -> None:
    http.push(queue, {"n": 1}, transactionId="order/1", kind="order", headers={"a": "b"})
    http.pop(queue, consumerGroup=group)
    [row] = http.get("/api/v1/messages", queue=queue).json()["messages"]
    message = http.get(_path(row)).json()
    assert (message["transactionId"], message["payload"]) == ("order/1", {"n": 1})
    assert (message["kind"], message["headers"], message["isEncrypted"]) == ("order", {"a": "b"}, False)
    assert message["queueConfig"] == {"leaseTime": 300, "retryLimit": 3, "retryDelay": 1000, "ttl": 3600, "priority": 0}
    [consumer] = message["consumerGroups"]
    assert (consumer["name"], consumer["consumed"]) == (group, False)
    assert consumer["leaseExpiresAt"].endswith("Z")


def test_a_dead_message_tells_why(http: Http, queue: str) -> None:
    http.push(queue, 1)
    [message] = http.pop(queue)["messages"]
    http.ack(message, "dlq", error="broken")
    answer = http.get(_path(message)).json()
    assert (answer["status"], answer["errorMessage"], answer["retryCount"]) == ("dead_letter", "broken", 1)


def test_newest_message_comes_first(http: Http, queue: str) -> None:
    http.push(queue, 1, 2, partition="a")
    http.push(queue, 3, partition="b")
    for path, where in (("/api/v1/messages", {"queue": queue}), (f"/api/v1/status/queues/{queue}/messages", {})):
        first = http.get(path, newestFirst="true", limit=2, **where).json()
        rest = http.get(path, newest_first=1, cursor=first["cursor"], **where).json()
        assert [(one["partition"], one["seq"]) for one in first["messages"]] == [("b", 1), ("a", 2)]
        assert [(one["partition"], one["seq"]) for one in rest["messages"]] == [("a", 1)]
        assert rest["cursor"] is None


def test_an_unknown_message_is_not_found(http: Http, queue: str) -> None:
    [receipt] = http.push(queue, 1)
    path = f"/api/v1/messages/{receipt['partition_id']}/none"
    assert http.get(path).code == "message_not_found"
    assert http.delete(path).code == "message_not_found"
    assert http.post(f"{path}/retry").code == "message_not_found"
    assert http.post(f"{path}/dlq").code == "message_not_found"
    assert http.get("/api/v1/messages/x/none").status == 400


def test_a_removed_message_is_not_delivered(http: Http, queue: str) -> None:
    http.push(queue, 1, 2)
    [first, _] = http.get("/api/v1/messages", queue=queue).json()["messages"]
    answer = http.delete(_path(first)).json()
    assert (answer["success"], answer["partitionId"]) == (True, first["partitionId"])
    assert answer["transactionId"] == first["transactionId"]
    assert http.pop(queue)["messages"][0]["data"] == 2


def test_a_leased_message_is_not_removed(http: Http, queue: str) -> None:
    http.push(queue, 1)
    [message] = http.pop(queue)["messages"]
    answer = http.delete(_path(message))
    assert (answer.status, answer.code) == (409, "conflict")


def test_a_completed_message_is_pushed_again(http: Http, queue: str) -> None:
    http.push(queue, 1)
    [message] = http.pop(queue, autoAck="true")["messages"]
    answer = http.post(f"{_path(message)}/retry").json()
    assert (answer["success"], answer["seq"]) == (True, 2)
    [again] = http.pop(queue)["messages"]
    assert (again["data"], again["id"]) == (1, answer["messageId"])


def test_the_next_message_is_given_up(http: Http, queue: str, group: str) -> None:
    http.push(queue, 1, 2)
    http.ack(http.pop(queue, consumerGroup=group)["messages"][0], "retry")
    [head, second] = http.get("/api/v1/messages", queue=queue).json()["messages"]
    assert http.post(f"{_path(second)}/dlq", {"consumerGroup": group}).status == 409
    answer = http.post(f"{_path(head)}/dlq", {"consumerGroup": group, "error": "poison"}).json()
    letter = http.get(f"/api/v1/dlq/{answer['deadLetterId']}").json()
    assert (letter["data"], letter["errorMessage"], letter["consumerGroup"]) == (1, "poison", group)
    assert http.pop(queue, consumerGroup=group)["messages"][0]["data"] == 2


def test_messages_are_listed_from_a_seq_on(http: Http, queue: str) -> None:
    http.push(queue, *range(5), partition="p")
    http.push(queue, 9, partition="other")
    page = http.get("/api/v1/messages", queue=queue, partition="p", seq=3, limit=2).json()
    assert [row["seq"] for row in page["messages"]] == [3, 4]
    rest = http.get("/api/v1/messages", queue=queue, partition="p", seq=3, limit=9, cursor=page["cursor"]).json()
    assert [row["seq"] for row in rest["messages"]] == [5]
    assert http.get("/api/v1/messages", queue=queue, seq=3).code == "invalid_request"
    assert http.get("/api/v1/messages", queue=queue, partition="none", seq=3).code == "partition_not_found"
