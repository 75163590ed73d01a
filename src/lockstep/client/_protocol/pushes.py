"""Push: messages become items of a body, and receipts come back."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from lockstep.client._protocol.exchange import Answer, Request, decoded, encoded, or_none, time_text
from lockstep.core.ids import message_ids, segment_uuid7
from lockstep.core.messages import Batch, NewMessage, NewSchedule, Receipt, check_shape, schedule_of
from lockstep.core.names import check_names
from lockstep.core.operations import OperationInfo
from lockstep.core.payloads import decode_raw
from lockstep.core.policy import SECONDS_MAX
from lockstep.core.times import check_seconds
from lockstep.core.wire import messages as wire
from lockstep.core.wire.operations import QueuedAnswer
from lockstep.errors import InvalidPayload, InvalidRequest

Messages = Sequence[NewMessage] | Sequence[Batch]


class PushItem(Struct, rename="camel", omit_defaults=True, gc=False):
    queue: str
    partition: str
    payload: Raw | UnsetType = UNSET
    transaction_id: str | None = None
    trace_id: str | None = None
    kind: str | None = None
    reference: str | None = None
    encoding: str | None = None
    headers: Raw | None = None
    payload_base64: str | None = None
    expires_at: str | None = None
    expire_seconds: float | None = None
    deliver_at: str | None = None
    delay_seconds: float | None = None
    schedule_key: str | None = None


_receipts = msgspec.json.Decoder(list[wire.PushReceipt])


def push_items(messages: Messages, *, exactly_once: bool) -> list[PushItem]:
    """The messages as they are sent; exactly_once gives a transaction id to each that has none."""
    _check_kinds(messages)
    given: Sequence[NewMessage | Batch] = messages
    items = [item for index, message in enumerate(given) for item in _items(index, message)]
    check_names([item.queue for item in items], what="queue")
    check_names([item.partition for item in items], what="partition")
    if exactly_once:
        # One random number for all of them, and a counter: a UUIDv7 for each would cost more than its message.
        fresh = message_ids(segment_uuid7(time.time_ns()), 0, len(items))
        for item, transaction_id in zip(items, fresh, strict=True):
            if item.transaction_id is None:
                item.transaction_id = transaction_id
    return items


def _check_kinds(messages: Messages) -> None:
    kinds = set(map(type, messages))
    if not (kinds <= {Batch} or kinds == {NewMessage}):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InvalidRequest(f"a push takes batches, or messages, and not a mix or anything else: {names}")


def _items(index: int, message: NewMessage | Batch) -> Iterator[PushItem]:
    if isinstance(message, Batch):
        given = check_shape(message.columns)
        columns = [[None] * len(given) if column is None else column for column in given.all()]
        for payload, transaction_id, trace_id, kind, reference, encoding, headers, _, expires_at in zip(
            *columns, strict=True
        ):
            item = PushItem(
                message.queue, message.partition, UNSET, transaction_id, trace_id, kind, reference, encoding
            )
            _set_expiry(item, expires_at)
            _set_schedule(item, message.schedule)
            yield _with_payload(index, item, payload, headers)
        return
    headers = None if message.headers is None else _encoded_headers(message.headers)
    item = PushItem(
        message.queue,
        message.partition,
        UNSET,
        message.transaction_id,
        message.trace_id,
        message.kind,
        message.reference,
        message.encoding,
    )
    _set_expiry(item, message.expires_at)
    if message.expire_seconds is not None:
        check_seconds(message.expire_seconds, what="expire_seconds", high=SECONDS_MAX)
        item.expire_seconds = message.expire_seconds
    _set_schedule(item, schedule_of(message))
    yield _with_payload(index, item, message.payload, headers)


def _set_expiry(item: PushItem, expiry: datetime | timedelta | None) -> None:
    if isinstance(expiry, timedelta):
        check_seconds(expiry.total_seconds(), what="expires_at", high=SECONDS_MAX)
        item.expire_seconds = expiry.total_seconds()
    elif expiry is not None:
        item.expires_at = time_text(expiry, what="expires_at")


def _set_schedule(item: PushItem, schedule: NewSchedule | None) -> None:
    if schedule is not None:
        item.deliver_at = None if schedule.deliver_at is None else time_text(schedule.deliver_at, what="deliver_at")
        if schedule.delay_seconds is not None:
            check_seconds(schedule.delay_seconds, what="delay_seconds", high=SECONDS_MAX)
        item.delay_seconds = schedule.delay_seconds
        item.schedule_key = schedule.key


def _encoded_headers(headers: Mapping[str, str]) -> bytes:
    # JSON would make a text of every name.
    if not isinstance(headers, Mapping) or not all([isinstance(name, str) for name in headers]):
        raise InvalidRequest("headers must be a mapping of strings to strings")
    return encoded(dict(headers))


def _with_payload(index: int, item: PushItem, payload: bytes, headers: bytes | None) -> PushItem:
    if type(payload) is not bytes:
        raise InvalidRequest(f"message {index}: the payload must be bytes, not {type(payload).__name__}")
    item.headers = None if headers is None else _raw_headers(headers)
    if item.encoding is not None:
        item.payload_base64 = b64encode(payload).decode()
        return item
    try:
        # Nothing but one JSON value, so that it cannot break out of its place in the body. Nor may headers.
        item.payload = decode_raw(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidPayload(f"message {index}: the payload is not JSON, and has no encoding: {error}") from error
    return item


def _raw_headers(headers: bytes) -> Raw:
    try:
        return decode_raw(headers)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"headers must be a JSON object of strings: {error}") from error


def push(items: list[PushItem]) -> Request:
    repeatable = all(item.transaction_id is not None for item in items)
    return Request("POST", "/api/v1/push?queued=true", encoded({"items": items}), repeatable)


def receipts_of(answer: Answer) -> list[Receipt]:
    return [_receipt(item) for item in decoded(answer, _receipts)]


_queued = msgspec.json.Decoder(QueuedAnswer)


def operation_of(answer: Answer) -> str | None:
    """The id of the operation as which a push was queued; None if it was stored."""
    if answer.status != 202:
        return None
    operation_id: str = decoded(answer, _queued).operation_id
    return operation_id


def queued_receipts(items: list[PushItem], operation_id: str) -> list[Receipt]:
    """What is known of a push that waits to be applied."""
    return [
        Receipt(
            index=index,
            status="deferred",
            queue=item.queue,
            partition=item.partition,
            partition_id=0,
            seq=0,
            message_id="",
            transaction_id=item.transaction_id or "",
            trace_id=item.trace_id,
            operation_id=operation_id,
        )
        for index, item in enumerate(items)
    ]


def applied_receipts(items: list[PushItem], info: OperationInfo) -> list[Receipt] | None:
    """The receipts of a push that was queued; None while it waits. Raises what it failed with."""
    if info.outcome is None:
        return None
    return [
        msgspec.structs.replace(
            receipt, transaction_id=item.transaction_id or receipt.transaction_id, trace_id=item.trace_id
        )
        for receipt, item in zip(info.outcome.pushed(), items, strict=True)
    ]


def _receipt(item: wire.PushReceipt) -> Receipt:
    return Receipt(
        index=item.index,
        status=item.status,
        queue=item.queueName,
        partition=item.partition,
        partition_id=int(item.partition_id),
        seq=item.seq,
        message_id=item.message_id,
        transaction_id=item.transaction_id,
        trace_id=item.trace_id,
        depth=or_none(item.depth),
        remaining=or_none(item.remaining),
        **appointment(item.scheduleId, item.dueAt),
    )


def appointment(schedule_id: str | UnsetType, due_at: str | UnsetType) -> dict[str, Any]:
    if isinstance(schedule_id, UnsetType) or isinstance(due_at, UnsetType):
        return {}
    return {"schedule_id": int(schedule_id), "due_at": datetime.fromisoformat(due_at)}
