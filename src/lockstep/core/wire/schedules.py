"""Scheduled and recurring messages on the wire."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping

from msgspec import Raw, Struct, field

from lockstep.core.crons import CatchUp, Cron, NewCron
from lockstep.core.messages import NewSchedule
from lockstep.core.names import DEFAULT_PARTITION
from lockstep.core.schedules import Scheduled, SchedulePage
from lockstep.core.wire.delivery.payloads import Content, raw_data
from lockstep.core.wire.times import Time, parse_time_or_none, timestamp, timestamp_or_none
from lockstep.errors import InvalidRequest

_NULL = Raw(b"null")


class WaitingContent(Struct, rename="camel", kw_only=True):
    """The content of a message to be pushed later."""

    data: Raw
    kind: str | None
    reference: str | None
    encoding: str | None
    """If not null, the data is a base64 string."""
    headers: Mapping[str, str] | None


class ScheduleRow(WaitingContent, rename="camel", kw_only=True):
    id: str
    queue: str
    partition: str
    key: str | None
    due_at: str
    created_at: str
    transaction_id: str | None
    trace_id: str | None
    producer_sub: str | None


class SchedulesAnswer(Struct, rename="camel"):
    schedules: list[ScheduleRow]
    next_cursor: str | None


class CancelAnswer(Struct):
    success: bool
    """Whether the message was still scheduled; if not, it was promoted or cancelled before."""


class RescheduleBody(Struct, rename="camel"):
    """Exactly one of the two."""

    deliver_at: Time | None = None
    delay_seconds: float | None = None


class CronBody(Content, rename="camel", kw_only=True):
    name: str
    queue: str
    expression: str
    payload: Raw = field(default_factory=lambda: _NULL)
    partition: str = DEFAULT_PARTITION
    timezone: str = "UTC"
    catch_up: CatchUp = "skip"
    enabled: bool = True


class CronRow(WaitingContent, rename="camel", kw_only=True):
    name: str
    queue: str
    partition: str
    expression: str
    timezone: str
    catch_up: CatchUp
    enabled: bool
    next_at: str | None
    last_at: str | None
    created_at: str


class CronsAnswer(Struct):
    crons: list[CronRow]


class RemoveCronAnswer(Struct):
    success: bool
    """Whether the recurring message existed."""


def schedule_row(waiting: Scheduled) -> ScheduleRow:
    return ScheduleRow(
        id=str(waiting.id),
        queue=waiting.queue,
        partition=waiting.partition,
        key=waiting.key,
        due_at=timestamp(waiting.due_at),
        created_at=timestamp(waiting.created_at),
        transaction_id=waiting.transaction_id,
        trace_id=waiting.trace_id,
        data=raw_data(waiting.payload, waiting.encoding),
        kind=waiting.kind,
        reference=waiting.reference,
        encoding=waiting.encoding,
        headers=waiting.headers,
        producer_sub=waiting.producer_sub,
    )


def schedules_answer(page: SchedulePage) -> SchedulesAnswer:
    return SchedulesAnswer([schedule_row(waiting) for waiting in page.items], page.next_cursor)


def new_time(body: RescheduleBody) -> NewSchedule:
    deliver_at = parse_time_or_none(body.deliver_at, what="deliverAt")
    return NewSchedule(deliver_at=deliver_at, delay_seconds=body.delay_seconds)


def cron_of(body: CronBody) -> NewCron:
    return NewCron(
        name=body.name,
        queue=body.queue,
        expression=body.expression,
        payload=_payload(body),
        partition=body.partition,
        timezone=body.timezone,
        catch_up=body.catch_up,
        enabled=body.enabled,
        kind=body.kind,
        reference=body.reference,
        encoding=body.encoding,
        headers=body.headers,
    )


def _payload(body: CronBody) -> bytes:
    if (body.encoding is None) != (body.payload_base64 is None):
        raise InvalidRequest("payloadBase64 needs an encoding that says what the bytes are, and an encoding needs it")
    if body.payload_base64 is None:
        return bytes(body.payload)
    try:
        return b64decode(body.payload_base64, validate=True)
    except ValueError:
        raise InvalidRequest("payloadBase64 is not base64") from None


def cron_row(cron: Cron) -> CronRow:
    return CronRow(
        name=cron.name,
        queue=cron.queue,
        partition=cron.partition,
        expression=cron.expression,
        timezone=cron.timezone,
        catch_up=cron.catch_up,
        enabled=cron.enabled,
        next_at=timestamp_or_none(cron.next_at),
        last_at=timestamp_or_none(cron.last_at),
        created_at=timestamp(cron.created_at),
        data=raw_data(cron.payload, cron.encoding),
        kind=cron.kind,
        reference=cron.reference,
        encoding=cron.encoding,
        headers=cron.headers,
    )
