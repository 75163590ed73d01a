"""Push: converts messages to items of a body, and the answer to receipts."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import accumulate, islice
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from lockstep.client._protocol.exchange import HttpAnswer, HttpRequest, decoded, encoded, or_none, time_text
from lockstep.core.gathering import canonical_trace_ids, check_schedule, gather
from lockstep.core.ids import message_ids, segment_uuid7
from lockstep.core.messages import (
    Batch,
    Columns,
    NewMessage,
    NewSchedule,
    PushResult,
    QueuedPush,
    Receipt,
    check_shape,
    schedule_of,
)
from lockstep.core.names import check_names
from lockstep.core.operations import OperationInfo, Order
from lockstep.core.payloads import check_json, decode_raw
from lockstep.core.policy import SECONDS_MAX
from lockstep.core.times import check_seconds, check_time
from lockstep.core.wire import delivery as wire
from lockstep.core.wire.operations import QueuedAnswer
from lockstep.errors import InvalidPayload, InvalidRequest, LockstepError

Messages = Sequence[NewMessage] | Sequence[Batch]


class OutgoingItem(Struct, rename="camel", omit_defaults=True, gc=False):
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


def push_items(messages: Messages, *, exactly_once: bool) -> list[OutgoingItem]:
    """The messages in the form in which they are sent; exactly_once gives each message without a transaction id a new
    one.
    """
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


def _items(index: int, message: NewMessage | Batch) -> Iterator[OutgoingItem]:
    if isinstance(message, Batch):
        given = check_shape(message.columns)
        columns = [[None] * len(given) if column is None else column for column in given.all()]
        for payload, transaction_id, trace_id, kind, reference, encoding, headers, _, expires_at in zip(
            *columns, strict=True
        ):
            item = OutgoingItem(
                message.queue, message.partition, UNSET, transaction_id, trace_id, kind, reference, encoding
            )
            _set_expiry(item, expires_at)
            _set_schedule(item, message.schedule)
            yield _with_payload(index, item, payload, headers)
        return
    headers = None if message.headers is None else _encoded_headers(message.headers)
    item = OutgoingItem(
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


def _set_expiry(item: OutgoingItem, expiry: datetime | timedelta | None) -> None:
    if isinstance(expiry, timedelta):
        check_seconds(expiry.total_seconds(), what="expires_at", high=SECONDS_MAX)
        item.expire_seconds = expiry.total_seconds()
    elif expiry is not None:
        item.expires_at = time_text(expiry, what="expires_at")


def _set_schedule(item: OutgoingItem, schedule: NewSchedule | None) -> None:
    if schedule is not None:
        item.deliver_at = None if schedule.deliver_at is None else time_text(schedule.deliver_at, what="deliver_at")
        if schedule.delay_seconds is not None:
            check_seconds(schedule.delay_seconds, what="delay_seconds", high=SECONDS_MAX)
        item.delay_seconds = schedule.delay_seconds
        item.schedule_key = schedule.key


def _encoded_headers(headers: Mapping[str, str]) -> bytes:
    # JSON would convert every name to a string.
    if not isinstance(headers, Mapping) or not all([isinstance(name, str) for name in headers]):
        raise InvalidRequest("headers must be a mapping of strings to strings")
    return encoded(dict(headers))


def _with_payload(index: int, item: OutgoingItem, payload: bytes, headers: bytes | None) -> OutgoingItem:
    if type(payload) is not bytes:
        raise _not_bytes(index, payload)
    item.headers = None if headers is None else _raw_headers(headers)
    if item.encoding is not None:
        item.payload_base64 = b64encode(payload).decode()
        return item
    try:
        # A single JSON value, so that it cannot break out of its place in the body. The same holds for headers.
        item.payload = decode_raw(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidPayload(f"message {index}: the payload is not JSON, and has no encoding: {error}") from error
    return item


def _raw_headers(headers: bytes) -> Raw:
    try:
        return decode_raw(headers)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"headers must be a JSON object of strings: {error}") from error


class OutgoingPush(Protocol):
    """A push over HTTP: how it is sent, and what its answers mean."""

    def request(self) -> HttpRequest: ...

    def receipts(self, answer: HttpAnswer) -> Sequence[Receipt]:
        """The receipts of a push that was stored."""
        ...

    def queued(self, operation_id: str) -> list[Receipt]:
        """The receipts of a push that waits to be applied."""
        ...

    def applied(self, info: OperationInfo) -> list[Receipt] | None:
        """The receipts of a push that was queued; None while it waits. Raises the error of a failed push."""
        ...


PACKED_MESSAGES_MIN = 64
"""Below this a server reads JSON faster than a packed body (decision 0071)."""


def outgoing_push(messages: Messages, *, exactly_once: bool, packed: bool) -> OutgoingPush:
    """The push of messages; exactly_once gives each message without a transaction id a new one. With `packed`, a push
    that is large enough to benefit is packed."""
    if packed and _are_many(messages):
        return _PackedPush(messages, exactly_once=exactly_once)
    return _JsonPush(push_items(messages, exactly_once=exactly_once))


def _are_many(messages: Messages) -> bool:
    _check_kinds(messages)
    counts = [len(check_shape(one.columns)) if isinstance(one, Batch) else 1 for one in messages]
    return sum(counts) >= PACKED_MESSAGES_MIN


class _JsonPush:
    """Every message is an item of a list."""

    def __init__(self, items: list[OutgoingItem]) -> None:
        self._items = items

    def request(self) -> HttpRequest:
        repeatable = all(item.transaction_id is not None for item in self._items)
        return HttpRequest("POST", _TARGET, encoded({"items": self._items}), repeatable)

    def receipts(self, answer: HttpAnswer) -> list[Receipt]:
        return [_receipt(item) for item in decoded(answer, _receipts)]

    def queued(self, operation_id: str) -> list[Receipt]:
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
            for index, item in enumerate(self._items)
        ]

    def applied(self, info: OperationInfo) -> list[Receipt] | None:
        if info.outcome is None:
            return None
        return [
            msgspec.structs.replace(
                receipt, transaction_id=item.transaction_id or receipt.transaction_id, trace_id=item.trace_id
            )
            for receipt, item in zip(info.outcome.pushed(), self._items, strict=True)
        ]


class _PackedPush:
    """Messages travel as columns (core/wire/delivery/packed.py)."""

    def __init__(self, messages: Messages, *, exactly_once: bool) -> None:
        _check_payloads(messages)
        self._order: Order | None = None
        if isinstance(messages[0], NewMessage):
            self._batches, self._order = gather(messages)  # type: ignore[arg-type]
        else:
            self._batches = _own(messages)  # type: ignore[arg-type]
        for batch in self._batches:
            _check_columns(batch.columns)
        check_names([batch.queue for batch in self._batches], what="queue")
        check_names([batch.partition for batch in self._batches], what="partition")
        if exactly_once:
            _give_transaction_ids(self._batches)

    def request(self) -> HttpRequest:
        repeatable = all([_have_transaction_ids(batch.columns) for batch in self._batches])
        try:
            body = wire.write_push(self._batches)
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidRequest(f"the messages cannot be packed: {error}") from error
        return HttpRequest("POST", _TARGET, body, repeatable, _PACKED)

    def receipts(self, answer: HttpAnswer) -> PushResult:
        try:
            return wire.read_receipts(answer.body, self._batches, self._order)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, LookupError, TypeError) as error:
            raise LockstepError(f"the answer of the server cannot be read: {error}") from error

    def queued(self, operation_id: str) -> list[Receipt]:
        waiting = QueuedPush(operation_id=operation_id, position=0, estimated_wait_seconds=0.0, reason="system_busy")
        return list(PushResult(self._batches, [], order=self._order, operation=waiting))

    def applied(self, info: OperationInfo) -> list[Receipt] | None:
        if info.outcome is None:
            return None
        found = info.outcome.pushed()
        starts = list(accumulate([len(batch.columns) for batch in self._batches], initial=0))
        receipts = []
        for index, (batch, position) in enumerate(self._order or self._places()):
            columns, receipt = self._batches[batch].columns, found[starts[batch] + position]
            transaction_id = wire.value_at(columns.transaction_ids, position) or receipt.transaction_id
            trace_id = wire.value_at(columns.trace_ids, position)
            receipts.append(
                msgspec.structs.replace(receipt, index=index, transaction_id=transaction_id, trace_id=trace_id)
            )
        return receipts

    def _places(self) -> Iterator[tuple[int, int]]:
        for index, batch in enumerate(self._batches):
            for position in range(len(batch.columns)):
                yield index, position


def _check_payloads(messages: Messages) -> None:
    given: Sequence[NewMessage | Batch] = messages
    for index, message in enumerate(given):
        payloads = check_shape(message.columns).payloads if isinstance(message, Batch) else [message.payload]
        for payload in payloads:
            if type(payload) is not bytes:
                raise _not_bytes(index, payload)
    check_json(messages)


def _not_bytes(index: int, payload: object) -> InvalidRequest:
    return InvalidRequest(f"message {index}: the payload must be bytes, not {type(payload).__name__}")


def _own(batches: Sequence[Batch]) -> list[Batch]:
    """The non-empty batches, with columns that may be modified to add transaction ids."""
    for batch in batches:
        if batch.schedule is not None:
            check_schedule(batch.schedule, messages=len(batch.columns))
    return [replace(batch, columns=replace(batch.columns)) for batch in batches if len(batch.columns)]


def _check_columns(columns: Columns) -> None:
    """Check values that the packed form cannot represent, which the server therefore cannot refuse. Only the server
    names producers.
    """
    columns.producer_subs = None
    for expiry in columns.expires_at or ():
        _check_expiry(expiry)
    if columns.trace_ids is not None:
        columns.trace_ids = canonical_trace_ids(columns.trace_ids)


def _check_expiry(expiry: object) -> None:
    if isinstance(expiry, timedelta):
        check_seconds(expiry.total_seconds(), what="expires_at", high=SECONDS_MAX)
    elif expiry is not None:
        check_time(expiry, what="expires_at")


def _have_transaction_ids(columns: Columns) -> bool:
    return columns.transaction_ids is not None and None not in columns.transaction_ids


def _give_transaction_ids(batches: Sequence[Batch]) -> None:
    # One random number for all of them, and a counter: a UUIDv7 for each would cost more than its message.
    fresh = iter(message_ids(segment_uuid7(time.time_ns()), 0, sum([len(batch.columns) for batch in batches])))
    for batch in batches:
        own = list(islice(fresh, len(batch.columns)))
        given = batch.columns.transaction_ids
        ids = own if given is None else [other if one is None else one for one, other in zip(given, own, strict=True)]
        batch.columns.transaction_ids = list(ids)


_TARGET = "/api/v1/push?queued=true"
_PACKED = {"content-type": wire.PACKED}
_queued = msgspec.json.Decoder(QueuedAnswer)


def operation_of(answer: HttpAnswer) -> str | None:
    """The id of the operation that a push was queued as; None if it was stored."""
    if answer.status != 202:
        return None
    operation_id: str = decoded(answer, _queued).operation_id
    return operation_id


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
