"""Names with slashes in paths: encoded, and as clients send them that do not encode."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from lockstep.errors import NoSuchRoute
from lockstep.server.routes import ROUTES
from support.http import Http

POP = "/api/v1/pop/queue"


@pytest.mark.parametrize("encoded", [True, False])
def test_slashes_in_names_of_a_pop(memory_http: Http, queue: str, encoded: bool) -> None:
    name, partition = f"{queue}/eu", "a/b"
    memory_http.push(name, 1, partition=partition)
    memory_http.push(name, 2, partition="c")
    path, place = (quote(name, safe=""), quote(partition, safe="")) if encoded else (name, partition)
    one = memory_http.get(f"{POP}/{path}/partition/{place}")
    assert [message["data"] for message in one.json()["messages"]] == [1]
    assert [message["data"] for message in memory_http.pop(path)["messages"]] == [2]


def test_partition_named_like_the_path_itself(memory_http: Http, queue: str) -> None:
    memory_http.push(queue, 1, partition="x/partition/y")
    answer = memory_http.get(f"{POP}/{queue}/partition/x/partition/y")
    assert answer.json()["partition"] == "x/partition/y"


def test_percent_sign_that_encodes_nothing(memory_http: Http, queue: str) -> None:
    memory_http.push(queue, 1, partition="100%")
    assert memory_http.get(f"{POP}/{queue}/partition/100%").status == 200


@pytest.mark.parametrize(
    ("method", "path", "route", "names"),
    [
        ("GET", "resources/queues/a/b", "resources/queues/:queue", ["a/b"]),
        ("DELETE", "resources/queues/a/b", "resources/queues/:queue", ["a/b"]),
        ("GET", "resources/queues/a/b/depth", "resources/queues/:queue/depth", ["a/b"]),
        ("GET", "resources/queues/a/depth/depth", "resources/queues/:queue/depth", ["a/depth"]),
        ("GET", "status/queues/a/b/messages", "status/queues/:queue/messages", ["a/b"]),
        ("DELETE", "queues/a/b/clear", "queues/:queue/clear", ["a/b"]),
        ("GET", "consumer-groups/a/b", "consumer-groups/:group", ["a/b"]),
        ("POST", "consumer-groups/a/b/subscription", "consumer-groups/:group/subscription", ["a/b"]),
        ("DELETE", "consumer-groups/a/b/queues/c/d", "consumer-groups/:group/queues/:queue", ["a/b", "c/d"]),
        ("POST", "consumer-groups/a/b/queues/c/d/seek", "consumer-groups/:group/queues/:queue/seek", ["a/b", "c/d"]),
        (
            "POST",
            "consumer-groups/a/b/queues/c/d/partitions/e/f/seek",
            "consumer-groups/:group/queues/:queue/partitions/:partition/seek",
            ["a/b", "c/d", "e/f"],
        ),
        ("GET", "traces/by-name/a/b", "traces/by-name/:name", ["a/b"]),
        ("GET", "traces/7/a/b", "traces/:partitionId/:transactionId", ["7", "a/b"]),
        ("GET", "messages/7/a/b", "messages/:partitionId/:transactionId", ["7", "a/b"]),
        ("POST", "messages/7/a/b/retry", "messages/:partitionId/:transactionId/retry", ["7", "a/b"]),
    ],
)
def test_slashes_in_names_find_their_route(method: str, path: str, route: str, names: list[str]) -> None:
    found, parameters = ROUTES.find(method, f"/api/v1/{path}".encode())
    assert (found.path, list(parameters.values())) == (f"/api/v1/{route}", names)


def test_endless_path_is_soon_known_to_lead_nowhere() -> None:
    """With a pattern that is tried at every place again this would not end."""
    path = b"/api/v1/consumer-groups/" + b"a/queues/" * 5000 + b"a/partitions/" * 5000
    with pytest.raises(NoSuchRoute):
        ROUTES.find("POST", path)


@pytest.mark.parametrize("path", ["/api/v1/nämlich", "/api/v1/pop/queue", "/é/é"])
def test_path_that_is_not_ascii_is_shown_with_replacements(path: str) -> None:
    """An ASGI server may pass such a path on; ours refuses it before it looks for a route."""
    with pytest.raises(NoSuchRoute) as raised:
        ROUTES.find("GET", path.encode())
    assert str(raised.value) == "there is no route " + path.encode().decode("ascii", "replace")


@pytest.mark.parametrize("path", [f"{POP}/", "/api/v1/pop/queues/a", "/api/v1/dlq/1/2", "/api/v1/lease/a/b/extend"])
def test_other_paths_stay_unknown(memory_http: Http, path: str) -> None:
    answer = memory_http.get(path)
    assert (answer.status, answer.code) == (404, "no_such_route")
