"""Names in requests, on every route: both spellings are known, and any other name is refused with the nearest one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect as types

from lockstep.core.wire.queues import Options
from lockstep.core.wire.spelling import QUEEN_NAMES, camel, snake, spellings
from lockstep.server.routes import ROUTES
from lockstep.server.routing import Route
from support.http import Answer, Http

_EMPTY = (b"", b"{}", b"null", b"  {} ")


def _id(route: Route) -> str:
    return f"{route.method} {route.path}"


def _path(route: Route, queue: str) -> str:
    """With names that lead to nothing, so that nothing is changed by asking."""
    ids = {":id": "1", ":partitionId": "1"}
    return "/".join([ids.get(piece, queue) if piece.startswith(":") else piece for piece in route.path.split("/")])


def _send(http: Http, route: Route, queue: str, *, query: str = "", body: Any = None) -> Answer:
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    return http.send(route.method, _path(route, queue) + (f"?{query}" if query else ""), content)


def _is_unknown(answer: Answer) -> bool:
    return answer.status == 400 and answer.code in ("unknown_name", "invalid_option")


every_route = pytest.mark.parametrize("route", ROUTES.all, ids=_id)


def _ignores_query(route: Route) -> bool:
    """Load balancers add parameters to their probes."""
    return route.level == "public" and route.query is None


@every_route
def test_unknown_query_name_is_refused(memory_http: Http, queue: str, route: Route) -> None:
    if _ignores_query(route):
        without = _send(memory_http, route, queue)
        assert _send(memory_http, route, queue, query="noSuchThing=1").status == without.status
        return
    answer = _send(memory_http, route, queue, query="noSuchThing=1")
    assert (answer.status, answer.code) == (400, "unknown_name")
    assert "noSuchThing" in answer.json()["error"]


with_query = pytest.mark.parametrize("route", [one for one in ROUTES.all if one.query], ids=_id)
with_body = pytest.mark.parametrize("route", [one for one in ROUTES.all if one.body], ids=_id)


@with_query
def test_query_names_are_known_in_both_spellings(memory_http: Http, queue: str, route: Route) -> None:
    assert route.query is not None
    for name in {field.encode_name for field in msgspec.structs.fields(route.query)}:
        for spelling in {name, snake(name), camel(name)}:
            # The value is wrong wherever it can be, so that nothing is done; the name is not.
            answer = _send(memory_http, route, queue, query=f"{spelling}=%00")
            assert not _is_unknown(answer), (spelling, answer.body)


@with_query
def test_misspelled_query_name_is_refused_with_the_right_one(memory_http: Http, queue: str, route: Route) -> None:
    assert route.query is not None
    for name in {field.encode_name for field in msgspec.structs.fields(route.query)}:
        answer = _send(memory_http, route, queue, query=f"{name}z=1")
        assert (answer.status, answer.code) == (400, "unknown_name"), name
        assert f"did you mean '{name}'?" in answer.json()["error"], answer.body


Way = tuple["Step", ...]
Step = int | tuple[str, dict[str, Any]]
"""To an item of a list; or to a field of a struct, which may need a tag."""


def _structs(info: types.Type, way: Way = ()) -> Iterator[tuple[Way, type[Any]]]:
    """Every struct in a body, with the way to it."""
    if isinstance(info, types.Metadata):
        yield from _structs(info.type, way)
    elif isinstance(info, types.UnionType):
        for one in info.types:
            yield from _structs(one, way)
    elif isinstance(info, types.ListType | types.VarTupleType):
        yield from _structs(info.item_type, (*way, 0))
    elif isinstance(info, types.StructType):
        yield way, info.cls
        for field in info.fields:
            yield from _structs(field.type, (*way, (field.encode_name, _tag(info.cls))))


def _tag(kind: type[Any]) -> dict[str, Any]:
    config = kind.__struct_config__
    return {} if config.tag is None else {config.tag_field: config.tag}


def _body(way: Way, kind: type[Any], name: str, value: object) -> Any:
    content: Any = {**_tag(kind), name: value}
    for step in reversed(way):
        content = [content] if isinstance(step, int) else {**step[1], step[0]: content}
    return content


@with_body
def test_misspelled_body_field_is_refused_with_the_right_one(memory_http: Http, queue: str, route: Route) -> None:
    for way, kind in _structs(types.type_info(route.body)):
        for name in {field.encode_name for field in msgspec.structs.fields(kind)}:
            answer = _send(memory_http, route, queue, body=_body(way, kind, f"{name}z", 1))
            assert _is_unknown(answer), (way, name, answer.body)
            assert f"did you mean '{name}'?" in answer.json()["error"], answer.body


@with_body
def test_body_fields_are_known_in_both_spellings(memory_http: Http, queue: str, route: Route) -> None:
    for way, kind in _structs(types.type_info(route.body)):
        for name in {field.encode_name for field in msgspec.structs.fields(kind)}:
            for spelling in {name, snake(name), camel(name)}:
                # No field takes a list of lists, so nothing is done; but it is not for its name that it is refused.
                answer = _send(memory_http, route, queue, body=_body(way, kind, spelling, [[[]]]))
                assert not _is_unknown(answer), (way, spelling, answer.body)


@pytest.mark.parametrize("route", [one for one in ROUTES.all if one.body is None], ids=_id)
def test_body_of_a_route_that_takes_none_is_refused(memory_http: Http, queue: str, route: Route) -> None:
    answer = _send(memory_http, route, queue, body={"noSuchThing": 1})
    assert (answer.status, answer.code) == (400, "unknown_name")
    answer = _send(memory_http, route, queue, body=b"not json")
    assert (answer.status, answer.code) == (400, "invalid_request")


def test_empty_body_says_nothing(memory_http: Http) -> None:
    for body in _EMPTY:
        assert memory_http.send("POST", "/api/v1/stats/refresh", body).status == 200


def test_name_in_the_wrong_part_of_the_request_is_told_its_place(memory_http: Http, queue: str) -> None:
    answer = memory_http.send("DELETE", f"/api/v1/queues/{queue}/clear", b'{"scope": "unleased"}')
    assert answer.status == 400
    assert answer.json()["error"].endswith("it belongs into the query string")
    answer = memory_http.send("POST", "/api/v1/dlq/purge?consumerGroup=g", b'{"queue": "q"}')
    assert answer.status == 400
    assert answer.json()["error"].endswith("it belongs into the body")


# --- What the spellings do ----------------------------------------------------------------------------------


def test_both_spellings_do_the_same(http: Http, queue: str) -> None:
    for number, spelling in enumerate(({"max_size": 3}, {"maxSize": 4}), 3):
        answer = http.post("/api/v1/configure", {"queue": queue, "options": spelling})
        assert answer.json()["options"]["maxSize"] == number
        assert http.patch(f"/api/v1/queues/{queue}", {"options": {"retry_limit": number}}).status == 200
        assert http.get(f"/api/v1/status/queues/{queue}").json()["queue"]["config"]["retryLimit"] == number
    http.push(queue, {"a_b": [1.0, 12345678901234567890]}, transaction_id="t-1", trace_id=_TRACE)
    popped = http.pop(queue, consumer_group="g", auto_ack=True)
    message = popped["messages"][0]
    assert (popped["leaseId"], popped["consumerGroup"]) == ("", "g")
    assert (message["transactionId"], message["traceId"]) == ("t-1", _TRACE)


_TRACE = "0190a7c4-0000-7000-8000-000000000001"


def test_payload_stays_as_it_is_whatever_the_fields_are_spelled_like(http: Http, queue: str) -> None:
    payload = b'{"transaction_id":1.0,"big":12345678901234567890123,"same":1,"same":2}'
    body = b'{"items":[{"queue":"%b","transaction_id":"t","payload":%b}]}' % (queue.encode(), payload)
    assert http.send("POST", "/api/v1/push", body).status == 201
    assert payload in http.get(f"/api/v1/pop/queue/{queue}").body


def test_ack_takes_both_spellings(http: Http, queue: str) -> None:
    http.push(queue, 1)
    message = http.pop(queue)["messages"][0]
    named = {"transaction_id": message["transactionId"], "partition_id": message["partitionId"]}
    operations = [{"type": "ack", "lease_id": message["leaseId"], **named}]
    answer = http.post("/api/v1/transaction", {"operations": operations, "required_leases": [message["leaseId"]]})
    assert answer.json()["success"]
    assert http.post("/api/v1/ack", named).json()[0]["noop"]


def test_one_name_with_two_values_is_refused(memory_http: Http, queue: str) -> None:
    options = {"max_size": 3, "maxSize": 4}
    answer = memory_http.post("/api/v1/configure", {"queue": queue, "options": options})
    assert answer.status == 400
    assert "twice" in answer.json()["error"]
    answer = memory_http.get(f"/api/v1/pop/queue/{queue}?consumer_group=a&consumerGroup=b")
    assert (answer.status, answer.code) == (400, "unknown_name")
    answer = memory_http.get("/api/v1/queues?limit=1&limit=2")
    assert (answer.status, answer.code) == (400, "unknown_name")
    item = {"queue": queue, "traceId": _TRACE, "trace_id": _TRACE.replace("1", "2")}
    answer = memory_http.post("/api/v1/push", {"items": [item]})
    assert answer.status == 400
    assert answer.json()["error"].endswith("in items[0]")


def test_one_name_twice_with_the_same_value_says_it_once(memory_http: Http, queue: str) -> None:
    options = {"max_size": 3, "maxSize": 3.0}
    answer = memory_http.post("/api/v1/configure", {"queue": queue, "options": options})
    assert answer.json()["options"]["maxSize"] == 3
    assert memory_http.get("/api/v1/queues?limit=1&limit=1").status == 200


@pytest.mark.parametrize("patch", [False, True])
def test_options_are_refused_with_the_nearest(memory_http: Http, queue: str, patch: bool) -> None:
    memory_http.post("/api/v1/configure", {"queue": queue})
    for given, meant in {"maxsize_": "maxSize", "leaseTim": "leaseTime", "retry_limits": "retryLimit"}.items():
        if patch:
            answer = memory_http.patch(f"/api/v1/queues/{queue}", {"options": {given: 1}})
        else:
            answer = memory_http.post("/api/v1/configure", {"queue": queue, "options": {given: 1}})
        assert (answer.status, answer.code) == (400, "invalid_option")
        assert f"'{meant}'" in answer.json()["error"]


@pytest.mark.parametrize("own", [camel, str], ids=["camel", "snake"])
def test_options_may_have_our_own_names(memory_http: Http, queue: str, own: Callable[[str], str]) -> None:
    ours = {"lease_seconds": 7, "retry_delay_ms": 1000, "ttl_seconds": 60, "delay_seconds": 2, "max_wait_seconds": 5}
    options = {own(name): value for name, value in ours.items()}
    memory_http.post("/api/v1/configure", {"queue": queue, "options": options})
    shown = memory_http.get(f"/api/v1/resources/queues/{queue}").json()["options"]
    asked = {"leaseTime": 7, "retryDelay": 1000, "ttl": 60, "delayedProcessing": 2, "maxWaitTimeSeconds": 5}
    assert {name: shown[name] for name in asked} == asked
    changed = memory_http.patch(f"/api/v1/queues/{queue}", {"options": {own("window_seconds"): 3}}).json()["options"]
    assert (changed["windowBuffer"], changed["leaseTime"]) == (3, 7)
    twice = {"leaseTime": 8, own("lease_seconds"): 9}
    assert memory_http.post("/api/v1/configure", {"queue": queue, "options": twice}).code == "invalid_option"


def test_every_option_has_both_spellings() -> None:
    for field in msgspec.structs.fields(Options):
        assert spellings(Options)[field.name] == spellings(Options)[field.encode_name] == field.encode_name


def test_names_of_queen_that_have_no_use_are_accepted(memory_http: Http, queue: str) -> None:
    assert set(QUEEN_NAMES) == {"PopQuery", "PushItem"}
    assert memory_http.get(f"/api/v1/pop/queue/{queue}", conflation="true", frames="true").status == 204
    receipt = memory_http.push(queue, 1, producerSub="somebody")[0]
    assert receipt["status"] == "queued"
    assert memory_http.pop(queue)["messages"][0]["producerSub"] is None


def test_document_names_what_is_taken(memory_http: Http) -> None:
    document = memory_http.get("/openapi.json").json()
    assert "snake_case" in document["info"]["description"]
    for name in ("PushItem", "Acknowledgment", "TransactionBody", "ConfigureBody", "Options"):
        assert document["components"]["schemas"][name]["additionalProperties"] is False
