"""POST /api/v1/lease/:leaseId/next."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.http import Answer, Http

NO_LEASE = "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"


def go_on(http: Http, popped: dict[str, Any], **body: Any) -> Answer:
    wanted = {"queue": popped["queue"], "consumerGroup": popped["consumerGroup"], **body}
    return http.post(f"/api/v1/lease/{popped['leaseId']}/next", wanted)


def data(answer: Answer) -> list[Any]:
    return [message["data"] for message in answer.json()["messages"]]


def test_next_answers_as_a_pop_does(http: Http, queue: str) -> None:
    http.push(queue, 1, 2, 3)
    popped = http.pop(queue)
    answer = go_on(http, popped, batch=5)
    assert (answer.status, data(answer)) == (200, [2, 3])
    found = answer.json()
    assert found["leaseId"] not in ("", popped["leaseId"])
    assert found.keys() == popped.keys()
    assert {message["leaseId"] for message in found["messages"]} == {found["leaseId"]}


def test_nothing_more_is_204_and_the_lease_is_completed(http: Http, queue: str) -> None:
    http.push(queue, 1)
    popped = http.pop(queue)
    assert go_on(http, popped).status == 204
    assert http.post(f"/api/v1/lease/{popped['leaseId']}/ack").json()["success"] is False
    assert http.get(f"/api/v1/pop/queue/{queue}").status == 204


def test_next_waits(http: Http, queue: str) -> None:
    http.push(queue, 1)
    popped = http.pop(queue)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(go_on, http, popped, wait=True, timeout=30_000)
        http.push(queue, 2)
        answer = waiting.result()
    # The servers of these tests wait for half a second at most.
    if answer.status == 204:
        answer = http.get(f"/api/v1/pop/queue/{queue}")
    assert data(answer) == [2]


def test_repeated_request_is_refused(http: Http, queue: str) -> None:
    http.push(queue, 1, 2, 3)
    popped = http.pop(queue)
    assert data(go_on(http, popped)) == [2]
    again = go_on(http, popped)
    assert (again.status, again.code) == (409, "lease_lost")
    assert http.get(f"/api/v1/pop/queue/{queue}").status == 204, "2 is leased, and 3 comes after it"


@pytest.mark.parametrize("lease", [NO_LEASE, "garbage"])
def test_lease_that_nobody_has_is_lost(memory_http: Http, queue: str, lease: str) -> None:
    memory_http.push(queue, 1)
    answer = memory_http.post(f"/api/v1/lease/{lease}/next", {"queue": queue})
    assert (answer.status, answer.code) == (409, "lease_lost")
    assert memory_http.get(f"/api/v1/pop/queue/{queue}").status == 200


def test_shared_group(http: Http, queue: str) -> None:
    http.push(queue, 1, 2, 3)
    popped = http.pop(queue, consumerGroup="w", mode="shared")
    answer = go_on(http, popped, batch=5, mode="shared")
    assert (data(answer), answer.json()["mode"]) == ([2, 3], "shared")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"queue": "q", "batch": 0},
        {"queue": "q", "timeout": -1, "wait": True},
        {"queue": "q", "namespace": "n"},
        {"queue": "q", "partition": 7},
        {"queue": "q", "autoAck": True},
        {"queue": "q", "subscriptionFrom": "soon"},
    ],
    ids=lambda body: ",".join(body) or "empty",
)
def test_bad_bodies_are_refused(memory_http: Http, body: dict[str, Any]) -> None:
    assert memory_http.post(f"/api/v1/lease/{NO_LEASE}/next", body).status == 400
