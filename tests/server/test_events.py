"""Event streams: answers of routes, sent again whenever they change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlencode

import pytest

from support.http import TIMEOUT_SECONDS, Http
from support.server import running_server


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    directory = tmp_path_factory.mktemp("live-server")
    settings = {"events_interval_seconds": 0.05, "events_streams_max": 3, "shutdown_timeout_seconds": 5}
    with running_server("memory://", directory, **settings) as server:
        yield Http(server.url)
        assert server.stop() == 0, "open streams held the server up"


@contextmanager
def watching(http: Http, *paths: str, last_id: str | None = None) -> Iterator[HTTPResponse]:
    connection = HTTPConnection(http.host, http.port, timeout=TIMEOUT_SECONDS)
    headers = {} if last_id is None else {"last-event-id": last_id}
    connection.request("GET", f"/api/v1/events?{urlencode({'watch': ' '.join(paths)})}", headers=headers)
    try:
        yield connection.getresponse()
    finally:
        connection.close()


def event(stream: HTTPResponse) -> dict[str, Any]:
    """The next one."""
    found: dict[str, Any] = {}
    while "data" not in found:
        line = stream.readline().decode().rstrip("\n")
        name, _, value = line.partition(": ")
        found |= {name: value} if name else {}
    return {"id": found["id"], **json.loads(found["data"])}


def queue_path(queue: str) -> str:
    return f"/api/v1/resources/partitions?queue={queue}"


def test_answer_comes_at_once_and_again_when_it_changes(live: Http, queue: str) -> None:
    live.push(queue, 1, partition="a")
    with watching(live, queue_path(queue)) as stream:
        assert stream.getheader("content-type") == "text/event-stream"
        first = event(stream)
        assert (first["path"], first["status"]) == (queue_path(queue), 200)
        assert [row["name"] for row in first["body"]["partitions"]] == ["a"]
        live.push(queue, 2, partition="b")
        assert [row["name"] for row in event(stream)["body"]["partitions"]] == ["a", "b"]


def test_stream_goes_on_after_a_break_without_repeating(live: Http, queue: str) -> None:
    live.push(queue, 1, partition="a")
    with watching(live, queue_path(queue)) as first:
        seen = event(first)
        with watching(live, queue_path(queue), last_id=seen["id"]) as second:
            live.push(queue, 2, partition="b")
            assert len(event(second)["body"]["partitions"]) == 2


def test_id_of_another_process_counts_for_nothing(live: Http, queue: str) -> None:
    live.push(queue, 1)
    with watching(live, queue_path(queue), last_id="ffffffff-999") as stream:
        assert event(stream)["status"] == 200


def test_error_of_a_watched_route_is_an_event(live: Http, queue: str) -> None:
    path = f"/api/v1/status/queues/{queue}"
    with watching(live, path) as stream:
        assert event(stream)["body"]["code"] == "queue_not_found"
        live.push(queue, 1)
        assert event(stream)["status"] == 200


@pytest.mark.parametrize(
    ("watch", "code"),
    [
        ("", "invalid_request"),
        ("/api/v1/nothing", "no_such_route"),
        ("/api/v1/pop/queue/q", "invalid_request"),
        ("/docs", "invalid_request"),
        ("status", "invalid_request"),
        ("/api/v1/status?nonsense=1", "unknown_name"),
        (" ".join([f"/api/v1/status?queue={number}" for number in range(17)]), "invalid_request"),
    ],
)
def test_what_cannot_be_watched_is_refused(live: Http, watch: str, code: str) -> None:
    answer = live.get("/api/v1/events", watch=watch)
    assert answer.status in (400, 404)
    assert answer.code == code


def test_streams_have_a_limit(live: Http) -> None:
    path = "/api/v1/analytics/system-metrics"
    with watching(live, path) as one, watching(live, path) as two, watching(live, path) as three:
        for stream in (one, two, three):
            event(stream)
        refused = live.get("/api/v1/events", watch=path)
        assert (refused.status, refused.code) == (429, "overloaded")
