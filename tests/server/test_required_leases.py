"""Transactions that name the leases they need apart from their acks, as older clients do."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from support.http import Http


def transact(http: Http, messages: list[dict[str, Any]], leases: list[str], **ack: object) -> dict[str, Any]:
    acks = [
        {"type": "ack", "transactionId": message["transactionId"], "partitionId": message["partitionId"], **ack}
        for message in messages
    ]
    answer = http.post("/api/v1/transaction", {"operations": acks, "requiredLeases": leases})
    assert answer.status == 200, answer.body
    return dict(answer.json())


@pytest.fixture
def popped(http: Http, queue: str) -> list[dict[str, Any]]:
    """Three messages of three partitions, each under a lease of its own, with one more behind it."""
    for partition in ("a", "b", "c"):
        http.push(queue, 1, 2, partition=partition)
    return [http.pop(queue)["messages"][0] for _ in range(3)]


def leases_of(messages: list[dict[str, Any]]) -> list[str]:
    return [message["leaseId"] for message in messages]


def is_free(http: Http, queue: str, partition: str) -> bool:
    return http.get(f"/api/v1/pop/queue/{queue}/partition/{partition}").status == 200


def test_acks_without_a_lease_may_be_under_any_required_one(http: Http, popped: list[dict[str, Any]]) -> None:
    answer = transact(http, popped, leases_of(popped)[::-1])
    assert answer["success"]
    assert [step["success"] for step in answer["results"]] == [True, True, True]


def test_one_lost_lease_among_several_fails_them_all(http: Http, queue: str, popped: list[dict[str, Any]]) -> None:
    http.ack(popped[1], "retry")
    again = http.pop(queue)["messages"][0]
    assert again["transactionId"] == popped[1]["transactionId"]

    answer = transact(http, popped, leases_of(popped))
    assert not answer["success"]
    assert "lease" in answer["results"][1]["error"]
    # Nothing was applied, so all three are still held, each by the one who holds it now.
    assert transact(http, [popped[0], again, popped[2]], leases_of([popped[0], again, popped[2]]))["success"]


def test_message_under_a_lease_that_is_not_required_fails(http: Http, popped: list[dict[str, Any]]) -> None:
    answer = transact(http, popped, leases_of(popped[:2]))
    assert not answer["success"]
    assert transact(http, popped, leases_of(popped))["success"]


def test_unknown_message_fails_under_every_lease(http: Http, popped: list[dict[str, Any]]) -> None:
    unknown = {**popped[2], "transactionId": str(uuid4())}
    answer = transact(http, [popped[0], popped[1], unknown], leases_of(popped))
    assert not answer["success"]
    assert "unresolvable" in answer["results"][2]["error"]
    assert transact(http, popped, leases_of(popped))["success"]


def test_lease_of_the_ack_counts_and_not_the_required_ones(http: Http, popped: list[dict[str, Any]]) -> None:
    answer = transact(http, popped[:1], leases_of(popped), leaseId=popped[1]["leaseId"])
    assert not answer["success"]
    assert transact(http, popped[:1], [str(uuid4())], leaseId=popped[0]["leaseId"])["success"]


def test_required_lease_that_is_none_fails(http: Http, queue: str, popped: list[dict[str, Any]]) -> None:
    assert not transact(http, popped[:1], ["no lease at all"])["success"]
    assert not is_free(http, queue, popped[0]["partition"])


def test_too_many_required_leases_need_acks_that_name_theirs(http: Http, popped: list[dict[str, Any]]) -> None:
    leases = [str(uuid4()) for _ in range(101)]
    acks = [{"type": "ack", **{name: popped[0][name] for name in ("transactionId", "partitionId")}}]
    answer = http.post("/api/v1/transaction", {"operations": acks, "requiredLeases": leases})
    assert answer.status == 400
    assert "leaseId" in answer.json()["error"]
    assert transact(http, popped[:1], leases, leaseId=popped[0]["leaseId"])["success"]


def push_under(http: Http, queue: str, leases: list[str]) -> dict[str, Any]:
    operations = [{"type": "push", "items": [{"queue": queue, "payload": 1}]}]
    answer = http.post("/api/v1/transaction", {"operations": operations, "requiredLeases": leases})
    assert answer.status == 200, answer.body
    return dict(answer.json())


def test_push_alone_needs_every_required_lease(http: Http, queue: str, popped: list[dict[str, Any]]) -> None:
    out = f"{queue}-out"
    assert push_under(http, out, leases_of(popped))["success"]
    assert push_under(http, out, [lease.upper() for lease in leases_of(popped)])["success"]
    http.ack(popped[1])
    refused = push_under(http, out, leases_of(popped))
    assert not refused["success"]
    assert "lease" in refused["error"]
    assert [step["success"] for step in refused["results"]] == [False]
    assert not push_under(http, out, ["no lease at all"])["success"]
    assert push_under(http, out, [""])["success"], "an empty one is as if not given"
    assert len(http.pop(out, batch=10)["messages"]) == 3
