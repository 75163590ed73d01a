"""What is logged of requests that fail: each of those that nobody expects, and an outage as a whole."""

from __future__ import annotations

import asyncio
import logging

import pytest

from lockstep.errors import CorruptSegment, LockstepError, SpoolFull, Unavailable
from lockstep.server.exchange import Request
from lockstep.server.failures import FailureLog
from support.until import until

REQUEST = Request("GET", b"/health", b"", {}, "r")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


async def fail(log: FailureLog, error: LockstepError, times: int = 1) -> None:
    for _ in range(times):
        log.note(error, REQUEST)
    await asyncio.sleep(0)


async def test_outage_is_a_line_at_its_beginning_and_one_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog(0.01)
    await fail(log, Unavailable("away", unreachable=True), 1000)
    assert lines(caplog) == ["request_failed"]
    await until(lambda: "requests_recovered" in lines(caplog))
    assert lines(caplog) == ["request_failed", "requests_failing", "requests_recovered"]
    assert [record.failed for record in caplog.records[1:]] == [999, 1000]  # type: ignore[attr-defined]
    await fail(log, Unavailable("away", unreachable=True))
    assert lines(caplog)[3:] == ["request_failed"], "another one begins anew"
    await until(lambda: not log._spells)
    assert lines(caplog)[3:] == ["request_failed"], "one that failed alone has its line"


async def test_long_outage_has_summaries(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog(0.01)
    for number in range(1, 4):
        await fail(log, Unavailable("away", unreachable=True), 2)
        await until(lambda number=number: lines(caplog).count("requests_failing") == number)  # type: ignore[misc]
    await until(lambda: "requests_recovered" in lines(caplog))
    assert lines(caplog) == ["request_failed", *["requests_failing"] * 3, "requests_recovered"]


async def test_what_fails_for_another_reason_has_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog(60)
    for error in (Unavailable("away"), SpoolFull("full"), Unavailable("away"), SpoolFull("full")):
        await fail(log, error)
    assert [record.code for record in caplog.records] == ["unavailable", "spool_full"]  # type: ignore[attr-defined]


async def test_other_failures_have_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog(60)
    await fail(log, CorruptSegment("broken"), 3)
    assert lines(caplog) == ["request_failed"] * 3
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert {(record.method, record.path) for record in caplog.records} == {("GET", "/health")}  # type: ignore[attr-defined]
