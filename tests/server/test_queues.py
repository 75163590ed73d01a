"""Configure, delete and clear over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lockstep.config import Config
from lockstep.storage.memory import MemoryStore
from support.http import Http
from support.serving import serving


def _configure(http: Http, queue: str, **options: Any) -> dict[str, Any]:
    answer = http.post("/api/v1/configure", {"queue": queue, "options": options})
    assert answer.status == 200, answer.body
    return dict(answer.json())


def _in_force(http: Http, queue: str) -> dict[str, Any]:
    return dict(http.get(f"/api/v1/status/queues/{queue}").json()["queue"]["config"])


def test_configure_answers_ids_and_every_option(http: Http, queue: str) -> None:
    answer = _configure(http, queue, leaseTime=17, retentionEnabled=True, priority=-3)
    assert answer["configured"] is True
    assert answer["queue"] == queue
    assert answer["queueId"].isdigit()
    assert answer["partitionId"].isdigit()
    assert (answer["namespace"], answer["task"]) == (queue, "")
    options = answer["options"]
    assert (options["leaseTime"], options["retentionEnabled"], options["priority"]) == (17, True, -3)
    assert (options["retryLimit"], options["ttl"], options["encryptionEnabled"]) == (3, 3600, False)


def test_configure_takes_namespace_and_task(http: Http, queue: str) -> None:
    answer = http.post("/api/v1/configure", {"queue": queue, "namespace": "shop", "task": "mail"}).json()
    assert (answer["namespace"], answer["task"]) == ("shop", "mail")


def test_configure_replaces_the_whole_configuration(http: Http, queue: str) -> None:
    _configure(http, queue, leaseTime=17, maxSize=9)
    _configure(http, queue, maxSize=10)
    config = _in_force(http, queue)
    assert (config["leaseTime"], config["maxSize"]) == (300, 10)


def test_configure_takes_whole_floats(http: Http, queue: str) -> None:
    answer = _configure(http, queue, leaseTime=5.0, retryBackoff=2)
    assert answer["options"]["leaseTime"] == 5
    assert isinstance(answer["options"]["leaseTime"], int)
    assert _in_force(http, queue)["retryBackoff"] == 2.0


@pytest.mark.parametrize(
    ("options", "stored"),
    [
        ({}, 0),
        ({"retryDelay": 1000}, 0),
        ({"retryDelay": 250}, 250),
        ({"retryDelay": 1000, "enforceRetryDelay": True}, 1000),
        ({"enforceRetryDelay": True}, 1000),
    ],
)
def test_the_default_retry_delay_counts_only_when_it_is_meant(
    http: Http, queue: str, options: dict[str, Any], stored: int
) -> None:
    answer = _configure(http, queue, **options)
    assert answer["options"]["retryDelay"] == options.get("retryDelay", 1000)
    assert _in_force(http, queue)["retryDelay"] == stored


@pytest.mark.parametrize(
    "options",
    [
        {"leaseTime": "300"},
        {"leaseTime": 0},
        {"leaseTime": 1.5},
        {"leaseTime": None},
        {"retentionEnabled": 1},
        {"onExhausted": "explode"},
        {"retryBackoff": 0.5},
        {"maxSize": -1},
        {"priority": 2**40},
        {"ttl": 10**30},
    ],
)
def test_a_bad_option_is_refused_by_its_name(http: Http, queue: str, options: dict[str, Any]) -> None:
    answer = http.post("/api/v1/configure", {"queue": queue, "options": options})
    assert (answer.status, answer.code) == (400, "invalid_option")
    assert next(iter(options)) in answer.json()["error"]
    assert http.get(f"/api/v1/resources/queues/{queue}").status == 404


def test_configure_without_a_queue_is_refused(http: Http) -> None:
    answer = http.post("/api/v1/configure", {"options": {}})
    assert (answer.status, answer.json()["error"]) == (400, "queue is required")


def test_encryption_without_a_key_is_refused(http: Http, queue: str) -> None:
    answer = http.post("/api/v1/configure", {"queue": queue, "options": {"encryptionEnabled": True}})
    assert (answer.status, answer.code) == (500, "encryption_unavailable")


@pytest.mark.parametrize("name", ["encryption", "encryptionEnabled", "encryption_enabled"])
def test_encryption_stays_on_over_http(name: str) -> None:
    with serving(MemoryStore(), Config(encryption_allow_plain=True)) as url:
        http = Http(url)
        assert _configure(http, "q", **{name: True})["options"]["encryptionEnabled"] is True
        assert _configure(http, "q", priority=3)["options"]["encryptionEnabled"] is True
        for answer in (
            http.post("/api/v1/configure", {"queue": "q", "options": {name: False}}),
            http.send("PATCH", "/api/v1/queues/q", json.dumps({"options": {name: False}}).encode()),
        ):
            assert (answer.status, answer.code) == (400, "invalid_option")
        assert _in_force(http, "q")["encryptionEnabled"] is True
        assert http.post("/api/v1/engine/stop_encryption", {"queue": "q"}).status == 200
        assert _in_force(http, "q")["encryptionEnabled"] is False
        assert _configure(http, "new", **{name: False})["options"]["encryptionEnabled"] is False


def test_delete_queue_tells_whether_it_was_there(http: Http, queue: str) -> None:
    http.push(queue, 1)
    path = f"/api/v1/resources/queues/{queue}"
    assert http.delete(path).json() == {"deleted": True, "queue": queue, "existed": True}
    assert http.delete(path).json() == {"deleted": True, "queue": queue, "existed": False}
    assert http.get(path).status == 404


def test_clear_removes_one_partition_or_all(http: Http, queue: str) -> None:
    http.push(queue, 1, 2, partition="a")
    http.push(queue, 3, partition="b")
    answer = http.delete(f"/api/v1/queues/{queue}/clear", partition="a").json()
    assert answer == {"cleared": True, "queue": queue, "partition": "a", "scope": "all", "removed": 2}
    assert http.delete(f"/api/v1/queues/{queue}/clear").json()["removed"] == 1


def test_clear_can_leave_what_is_leased(http: Http, queue: str) -> None:
    http.push(queue, 1, 2)
    message = http.pop(queue)["messages"][0]
    assert http.delete(f"/api/v1/queues/{queue}/clear", scope="unleased").json()["removed"] == 1
    assert http.ack(message)["success"] is True


def test_clear_refuses_what_it_does_not_know(http: Http, queue: str) -> None:
    assert http.delete(f"/api/v1/queues/{queue}/clear").code == "queue_not_found"
    http.push(queue, 1)
    assert http.delete(f"/api/v1/queues/{queue}/clear", partition="none").code == "partition_not_found"
    assert http.delete(f"/api/v1/queues/{queue}/clear", scope="some").status == 400
