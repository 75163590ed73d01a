"""Every operation of the OpenAPI document, with input that the document allows and input that it does not.

No answer may be a server error, and every answer must be one that the document describes. Random names find nothing,
so among the input are names of what is really there.
"""

from __future__ import annotations

import itertools
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import Phase, given, seed
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lockstep.server.openapi import document
from lockstep.server.routes import ROUTES
from support.databases import Databases
from support.fuzz import examples
from support.http import Http
from support.server import running_server

# Each run has other input: that of the seed which it prints. `make soak` tries far more of it.
EXAMPLES = {GenerationMode.POSITIVE: 4, GenerationMode.NEGATIVE: 3}
SOAK_TIMES = 35
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

# A pop that wants to wait for an hour is answered at once.
SETTINGS = {
    "pop_wait_seconds_max": 0.01,
    "statement_timeout_seconds": 10,
    "shutdown_timeout_seconds": 5,
    "encryption_key": b64encode(b"k" * 32).decode(),
}

_schema = schemathesis.openapi.from_dict(document(ROUTES.all))
_operations = {result.ok().label: result.ok() for result in _schema.get_all_operations()}

Known = dict[str, list[Any]]


class Target:
    """A server that has something in it, and what that is called, by the name of the field that takes it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = Http(url)
        self._numbers = itertools.count()

    def known(self) -> Known:
        """Each time of another queue, because what is fuzzed deletes and moves what it finds."""
        http, queue = self._http, f"fuzz{next(self._numbers)}.mail"
        for mode in ("maintenance", "maintenance/pop"):
            http.post(f"/api/v1/system/{mode}", {"enabled": False})
        http.push(queue, {"windowEnd": 1}, "two", None, partition="a")
        http.push(queue, [1], transactionId="known", kind="k", headers={"a": "b"}, traceId=_TRACE)
        http.push(queue, "buried", partition="b")
        buried = http.get(f"/api/v1/pop/queue/{queue}/partition/b").json()["messages"][0]
        http.ack(buried, "dlq", error="broken")
        http.post("/api/v1/traces", {**_named(buried), "data": {"a": 1}, "traceNames": "trace-name"})
        messages = http.pop(queue, consumerGroup="workers", batch=3, partitions=3)["messages"]
        query = http.post("/streams/v1/queries", {"name": queue, "source_queue": queue, "config_hash": "h"}).json()
        letters = http.get("/api/v1/dlq", queue=queue).json()["messages"]
        names: Known = {
            "queue": [queue],
            "source_queue": [queue],
            "partition": ["a", "Default"],
            "group": ["workers", "__QUEUE_MODE__"],
            "name": [queue, "trace-name"],
            "namespace": [queue.partition(".")[0]],
            "task": ["mail"],
            "partitionId": [message["partitionId"] for message in (*messages, buried)],
            "transactionId": [message["transactionId"] for message in (*messages, buried)],
            "leaseId": [messages[0]["leaseId"]],
            "identity": [messages[0]["id"]],
            "query_id": [query["query_id"]],
            "id": [letters[0]["id"]],
            "trace_id": [_TRACE],
            "status": ["completed", "failed", "retry", "released", "dlq"],
            "from": ["2020-01-01T00:00:00Z"],
            "to": ["2100-01-01T00:00:00Z"],
            "limit": [1, 1000],
            "batch": [1, 100],
            "timeout": [0, 10**15],
        }
        names |= {"consumerGroup": names["group"], "consumer_group": names["group"], "ns": names["namespace"]}
        names |= {"transaction_id": names["transactionId"], "lease_id": names["leaseId"]}
        names["partition_id"] = [int(partition_id) for partition_id in names["partitionId"]]
        return names


def _named(message: dict[str, Any]) -> dict[str, Any]:
    return {name: message[name] for name in ("partitionId", "transactionId")}


_TRACE = "0190a7c4-0000-7000-8000-000000000001"


@contextmanager
def _target(dsn: str, directory: Path) -> Iterator[Target]:
    with running_server(dsn, directory, **SETTINGS) as server:
        yield Target(server.url)
        assert server.process.poll() is None, "the server did not survive"


@pytest.fixture(scope="session")
def fuzzed_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with _target("memory://", tmp_path_factory.mktemp("fuzzed-memory")) as target:
        yield target


@pytest.fixture(scope="session")
def fuzzed_postgres(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[Target]:
    dsn = databases.clone()
    with _target(dsn, tmp_path_factory.mktemp("fuzzed-postgres")) as target:
        yield target
    databases.drop(dsn)


def test_every_route_is_in_the_document() -> None:
    assert len(_operations) == len(ROUTES.all) > 90


def _takes_input(operation: Any) -> bool:
    return bool(operation.definition.raw["parameters"]) or "requestBody" in operation.definition.raw


# What does not fit the document is refused before a store sees it, so one store is enough for that.
_attacks = [
    pytest.param(store, label, mode, id=f"{store}-{label}-{mode.value}")
    for store, mode in [
        ("memory", GenerationMode.POSITIVE),
        ("postgres", GenerationMode.POSITIVE),
        ("postgres", GenerationMode.NEGATIVE),
    ]
    for label, operation in _operations.items()
    if mode is GenerationMode.POSITIVE or _takes_input(operation)
]


@pytest.mark.parametrize(("store", "label", "mode"), _attacks)
def test_no_input_makes_a_server_error(
    store: str, label: str, mode: GenerationMode, request: pytest.FixtureRequest
) -> None:
    target: Target = request.getfixturevalue(f"fuzzed_{store}")
    known = target.known()

    @seed(request.config.getoption("randomly_seed"))
    @examples(EXAMPLES[mode], soak=EXAMPLES[mode] * SOAK_TIMES, phases=[Phase.generate])
    @given(case=_operations[label].as_strategy(generation_mode=mode), chosen=st.randoms(use_true_random=False))
    def attack(case: Any, chosen: Any) -> None:
        if mode is GenerationMode.POSITIVE:
            _put_known(case, lambda name, value: chosen.choice([*known[name], value]) if name in known else value)
        case.call_and_validate(base_url=target.url, checks=CHECKS)

    attack()


def _put_known(case: Any, choose: Callable[[str, Any], Any]) -> None:
    """Put names of what is there in place of some of the random ones."""
    for values in (case.path_parameters, case.query, case.body):
        _replace(values, choose)


def _replace(values: Any, choose: Callable[[str, Any], Any]) -> None:
    if isinstance(values, dict):
        for name, value in values.items():
            if isinstance(value, dict | list):
                _replace(value, choose)
            else:
                values[name] = choose(name, value)
    elif isinstance(values, list):
        for value in values:
            _replace(value, choose)
