"""What becomes of queries: counts by name, the log of slow ones, the hook of the user."""

from __future__ import annotations

import logging

import pytest

from lockstep import NewMessage, connect, connect_async, open_engine
from lockstep.errors import InvalidRequest
from lockstep.storage.postgres.query_log import QueryLog

Seen = list[tuple[str, BaseException | None]]


def test_queries_are_counted_by_name() -> None:
    log = QueryLog(1.0, None)
    log.note("push", 0.25, None)
    log.note("push", 2.0, ValueError("no"))
    log.note("pop", 0.5, None)
    push = log.counts["push"]
    assert (push.calls, push.seconds, push.failures, push.slow) == (2, 2.25, 1, 1)
    assert (log.counts["pop"].calls, log.counts["pop"].slow) == (1, 0)


def test_slow_query_is_logged_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    log = QueryLog(1.0, None)
    log.note("push", 0.999, None)
    log.note("pop", 1.0, ValueError("broken"))
    [record] = caplog.records
    assert (record.getMessage(), record.levelno) == ("query_slow", logging.WARNING)
    fields = vars(record)
    assert (fields["query"], fields["seconds"], fields["error"]) == ("pop", 1.0, "broken")


def test_no_query_is_slow_without_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    log = QueryLog(0.0, None)
    log.note("push", 1e9, None)
    assert not caplog.records
    assert log.counts["push"].slow == 0


def test_hook_that_fails_is_logged_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def hook(*_: object) -> None:
        raise ValueError("no")

    QueryLog(1.0, hook).note("push", 0.1, None)
    [record] = caplog.records
    assert record.getMessage() == "query_hook_failed"


async def test_hook_of_an_engine_sees_every_query(database_dsn: str) -> None:
    seen: Seen = []
    async with open_engine(database_dsn, on_query=lambda name, _, error: seen.append((name, error))) as engine:
        await engine.push([NewMessage(queue="q", payload=b"1")])
        counts = engine.counts.store.queries
    assert ("ping", None) in seen or len(seen) > 1
    assert all(error is None for _, error in seen)
    assert sum(one.calls for one in counts.values()) == len(seen)


async def test_hook_of_a_client_sees_every_query(database_dsn: str) -> None:
    seen: Seen = []

    def note(name: str, _: float, error: BaseException | None) -> None:
        seen.append((name, error))

    async with connect_async(database_dsn, on_query=note) as client:
        await client.push("q", 1)
    assert any("push" in name for name, _ in seen)


def test_hook_of_a_client_for_threads_sees_every_query(database_dsn: str) -> None:
    seen: Seen = []
    with connect(database_dsn, on_query=lambda name, _, error: seen.append((name, error))) as client:
        client.push("q", 1)
    assert any("push" in name for name, _ in seen)


def test_hook_is_refused_where_a_server_makes_the_queries() -> None:
    for connecting in (connect, connect_async):
        with pytest.raises(InvalidRequest, match="slow_query_seconds"):
            connecting("http://localhost:1", on_query=lambda *_: None)


def test_store_in_memory_has_no_queries() -> None:
    seen: Seen = []
    with connect("memory://", on_query=lambda name, _, error: seen.append((name, error))) as client:
        client.push("q", 1)
    assert seen == []
