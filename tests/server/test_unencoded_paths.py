"""Names with slashes in paths: encoded, and as clients send them that do not encode."""

from __future__ import annotations

from urllib.parse import quote

import pytest

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


@pytest.mark.parametrize("path", [f"{POP}/", f"{POP}//", "/api/v1/pop/queues/a", "/api/v1/resources/queues/a/b"])
def test_other_paths_stay_unknown(memory_http: Http, path: str) -> None:
    answer = memory_http.get(path)
    assert (answer.status, answer.code) == (404, "no_such_route")
