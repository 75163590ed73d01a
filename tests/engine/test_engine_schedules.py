"""What may be asked of schedules: bad input is refused before the store sees it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lockstep.core.crons import NewCron
from lockstep.core.messages import Batch, Columns, NewMessage, NewSchedule
from lockstep.core.schedules import ScheduleFilter, ScheduleName
from lockstep.engine.engine import Engine
from lockstep.errors import InvalidName, InvalidRequest, TooLarge
from support.clock import SetClock

NAIVE = datetime(2026, 5, 1, 10)  # noqa: DTZ001
AWARE = datetime(2026, 5, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    "fields",
    [
        {"deliver_at": NAIVE},
        {"deliver_at": "soon"},
        {"deliver_at": datetime.max.replace(tzinfo=UTC) - timedelta(0), "delay_seconds": 1},
        {"deliver_at": ["unhashable"]},
        {"delay_seconds": -1},
        {"delay_seconds": float("nan")},
        {"delay_seconds": float("inf")},
        {"delay_seconds": True},
        {"delay_seconds": "1"},
        {"delay_seconds": 10**12},
        {"schedule_key": "k"},
        {"delay_seconds": 1, "schedule_key": ""},
        {"delay_seconds": 1, "schedule_key": "x" * 256},
        {"delay_seconds": 1, "schedule_key": 7},
    ],
)
async def test_bad_schedule_is_refused(guarded: Engine, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        await guarded.push([NewMessage(queue="q", payload=b"1", **fields)])


@pytest.mark.parametrize(
    "schedule",
    [
        NewSchedule(),
        NewSchedule(delay_seconds=1, deliver_at=AWARE),
        "tomorrow",
        NewSchedule(delay_seconds=1, key="k"),
    ],
)
async def test_bad_schedule_of_a_batch_is_refused(guarded: Engine, schedule: Any) -> None:
    with pytest.raises(InvalidRequest):
        await guarded.push([Batch("q", "p", Columns([b"1", b"2"]), schedule)])


async def test_limits_hold_for_what_is_scheduled(guarded: Engine) -> None:
    with pytest.raises(TooLarge):
        await guarded.push([Batch("q", "p", Columns([b"x" * 101]), NewSchedule(delay_seconds=9))])


@pytest.mark.parametrize(
    "which",
    [
        ScheduleName(),
        ScheduleName(id=0),
        ScheduleName(id=True),
        ScheduleName(id=1, key="k"),
        ScheduleName(key="k"),
        ScheduleName(queue="q"),
        ScheduleName(queue="", key="k"),
        ScheduleName(queue="q", key="\x00"),
        7,
    ],
)
async def test_bad_name_of_a_schedule_is_refused(guarded: Engine, which: Any) -> None:
    for call in (guarded.schedule(which), guarded.cancel_schedule(which)):
        with pytest.raises(InvalidRequest):
            await call
    with pytest.raises(InvalidRequest):
        await guarded.reschedule(which, NewSchedule(delay_seconds=1))


async def test_bad_new_time_is_refused(guarded: Engine) -> None:
    for schedule in (NewSchedule(), NewSchedule(delay_seconds=1, key="other"), NewSchedule(deliver_at=NAIVE)):
        with pytest.raises(InvalidRequest):
            await guarded.reschedule(ScheduleName(id=1), schedule)


@pytest.mark.parametrize(
    ("where", "page"),
    [
        (ScheduleFilter(queue=""), {}),
        (ScheduleFilter(partition="p"), {}),
        (ScheduleFilter(key_prefix=""), {}),
        (ScheduleFilter(from_at=NAIVE), {}),
        (ScheduleFilter(), {"limit": 0}),
        (ScheduleFilter(), {"cursor": "1.x"}),
        (ScheduleFilter(), {"cursor": "99999999999999999999999999.1"}),
        (ScheduleFilter(), {"cursor": 7}),
        ("all", {}),
    ],
)
async def test_bad_listing_is_refused(guarded: Engine, where: Any, page: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        await guarded.schedules(where, **page)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "x" * 201},
        {"queue": ""},
        {"partition": "\n"},
        {"expression": "never"},
        {"expression": 5},
        {"timezone": "Mars/Olympus"},
        {"timezone": None},
        {"catch_up": "some"},
        {"enabled": 1},
        {"payload": "text"},
        {"kind": "x" * 7},
        {"headers": {"a": 1}},
        {"headers": 7},
        {"headers": {"a": "\ud800"}},
    ],
)
async def test_bad_cron_is_refused(guarded: Engine, fields: dict[str, Any]) -> None:
    good: dict[str, Any] = {"name": "c", "queue": "q", "expression": "* * * * *", "payload": b"1"}
    with pytest.raises(InvalidRequest):
        await guarded.set_cron(NewCron(**(good | fields)))


async def test_bad_cron_name_is_refused(guarded: Engine) -> None:
    for call in (guarded.cron(""), guarded.remove_cron("x" * 300), guarded.enable_cron("", True)):
        with pytest.raises(InvalidName):
            await call
    with pytest.raises(InvalidRequest):
        await guarded.enable_cron("c", "yes")  # type: ignore[arg-type]


async def test_receipts_are_in_the_order_of_the_messages(engine: Engine, clock: SetClock) -> None:
    messages = [
        NewMessage(queue="q", payload=b"1", delay_seconds=10),
        NewMessage(queue="q", payload=b"2"),
        NewMessage(queue="q", payload=b"3", deliver_at=clock.ahead(10)),
        NewMessage(queue="q", payload=b"4", delay_seconds=10),
        NewMessage(queue="q", payload=b"5", delay_seconds=0),
    ]
    receipts = list(await engine.push(messages))
    assert [receipt.status for receipt in receipts] == ["scheduled", "queued", "scheduled", "scheduled", "queued"]
    assert [receipt.index for receipt in receipts] == [0, 1, 2, 3, 4]
    page = await engine.schedules(ScheduleFilter(queue="q"))
    ids = {waiting.payload: waiting.id for waiting in page.items}
    assert [ids[payload] for payload in (b"1", b"3", b"4")] == [receipts[i].schedule_id for i in (0, 2, 3)]
