"""The HTTP protocol without I/O: builds requests, and reads answers into records and errors.

The hot verbs have routes of their own; every other verb of the engine is `POST /api/v1/engine/<verb>` with its
arguments, and `VERBS` says what it answers.
"""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote, urlencode

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from lockstep.client._received import Committed, Delivered
from lockstep.client._retry import Failure
from lockstep.core.buckets import SampleSpan
from lockstep.core.crons import Cron
from lockstep.core.ids import message_ids, segment_uuid7
from lockstep.core.maintenance import DutyInfo, Removal, Sample
from lockstep.core.messages import Batch, Message, NewMessage, NewSchedule, Receipt, schedule_of
from lockstep.core.names import QUEUE_MODE
from lockstep.core.operations import OperationInfo, OperationPage, OperationStats
from lockstep.core.outage import MaintenanceMode
from lockstep.core.overview import LabelInfo, Overview
from lockstep.core.records import (
    ACK_ERROR_TEXTS,
    Ack,
    AckError,
    AckOutcome,
    DeadLetter,
    DeadLetterPage,
    Depth,
    GroupInfo,
    LeaseInfo,
    MessagePage,
    MessageView,
    PartitionInfo,
    PartitionLag,
    PartitionStats,
    PopRequest,
    Problem,
    QueueInfo,
    Renewal,
    Renewed,
    SparkStreamInfo,
    Utilisation,
)
from lockstep.core.schedules import Scheduled, SchedulePage
from lockstep.core.statistics import DatabaseStats
from lockstep.core.traces import NamedTracePage, TraceEvent, TraceNamePage
from lockstep.core.wire import messages as wire
from lockstep.core.wire.operations import QueuedAnswer
from lockstep.core.wire.times import timestamp
from lockstep.core.wire.transactions import TransactionAnswer, TransactionStep
from lockstep.errors import InvalidPayload, InvalidRequest, LockstepError, TransactionRolledBack, Unavailable

Messages = Sequence[NewMessage] | Sequence[Batch]


@dataclass(frozen=True, slots=True)
class Request:
    """What to send to a server."""

    method: Literal["GET", "POST"]
    target: str
    """Path and query, ready for the wire."""
    body: bytes | None = None
    repeatable: bool = True
    """Whether it may be applied twice without harm."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    body: bytes
    retry_after: str | None = None


class ConnectionFailed(Exception):
    """No answer came."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent
        """Whether the server may have got the request."""


# --- Errors -------------------------------------------------------------------------------------------------


class _ErrorBody(Struct):
    error: str = ""
    code: str = ""
    details: dict[str, Any] = {}


def _classes(error: type[LockstepError]) -> Iterator[type[LockstepError]]:
    yield error
    for child in error.__subclasses__():
        yield from _classes(child)


_CLASSES = {error.code: error for error in reversed(list(_classes(LockstepError)))}
_error_body = msgspec.json.Decoder(_ErrorBody)


def failure_of(answer: Answer) -> Failure | None:
    """The failure that an answer tells of; None if it is none."""
    if 200 <= answer.status < 300:
        return None
    try:
        body = _error_body.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = _ErrorBody()
    if body.code:
        error = _CLASSES.get(body.code, LockstepError)(body.error or None, **_free(body.details))
        if type(error) is LockstepError:
            error.details |= {"code": body.code, "status": answer.status}
    else:
        error = _without_code(answer, body.error)
    return Failure(
        error,
        # Our server says why it failed, and a call that failed has changed nothing, unless it says that it cannot know
        # either. Whatever stands between us and it says nothing.
        maybe_applied=(answer.status >= 500 and not body.code) or bool(body.details.get("maybe_applied")),
        unreachable=answer.status in (502, 503, 504),
        retry_after_seconds=_seconds(answer.retry_after),
    )


def _free(details: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in details.items() if name != "message"}


def _without_code(answer: Answer, text: str) -> LockstepError:
    if answer.status in (502, 503, 504):
        return Unavailable(text or f"the server is unavailable (HTTP {answer.status})", status=answer.status)
    return LockstepError(text or f"the server answered HTTP {answer.status}", status=answer.status)


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After in seconds. A date, which is allowed there, is no use without the server's clock."""
    return float(retry_after) if retry_after is not None and retry_after.isascii() and retry_after.isdigit() else None


def connection_failure(error: ConnectionFailed) -> Failure:
    unavailable = Unavailable(f"the server cannot be reached: {error}", maybe_applied=error.sent)
    return Failure(unavailable, maybe_applied=error.sent, unreachable=True)


def _decoded(answer: Answer, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LockstepError(f"the answer of the server cannot be read: {error}") from error


# --- Push ---------------------------------------------------------------------------------------------------


class _PushItem(Struct, rename="camel", omit_defaults=True, gc=False):
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
_json = msgspec.json.Decoder(Raw)


def push_items(messages: Messages, *, exactly_once: bool) -> list[_PushItem]:
    """The messages as they are sent; exactly_once gives a transaction id to each that has none."""
    given: Sequence[NewMessage | Batch] = messages
    items = [item for index, message in enumerate(given) for item in _items(index, message)]
    if exactly_once:
        # One random number for all of them, and a counter: a UUIDv7 for each would cost more than its message.
        fresh = message_ids(segment_uuid7(time.time_ns()), 0, len(items))
        for item, transaction_id in zip(items, fresh, strict=True):
            if item.transaction_id is None:
                item.transaction_id = transaction_id
    return items


def _items(index: int, message: NewMessage | Batch) -> Iterator[_PushItem]:
    if isinstance(message, Batch):
        columns = [[None] * len(message.columns) if column is None else column for column in message.columns.all()]
        for payload, transaction_id, trace_id, kind, reference, encoding, headers, _, expires_at in zip(
            *columns, strict=True
        ):
            item = _PushItem(
                message.queue, message.partition, UNSET, transaction_id, trace_id, kind, reference, encoding
            )
            _set_expiry(item, expires_at)
            _set_schedule(item, message.schedule)
            yield _with_payload(index, item, payload, headers)
        return
    headers = None if message.headers is None else msgspec.json.encode(message.headers)
    item = _PushItem(
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
    item.expire_seconds = message.expire_seconds
    _set_schedule(item, schedule_of(message))
    yield _with_payload(index, item, message.payload, headers)


def _set_expiry(item: _PushItem, expiry: datetime | timedelta | None) -> None:
    if isinstance(expiry, timedelta):
        item.expire_seconds = expiry.total_seconds()
    elif expiry is not None:
        item.expires_at = _timestamp(expiry, what="expires_at")


def _set_schedule(item: _PushItem, schedule: NewSchedule | None) -> None:
    if schedule is not None:
        item.deliver_at = None if schedule.deliver_at is None else _timestamp(schedule.deliver_at, what="deliver_at")
        item.delay_seconds = schedule.delay_seconds
        item.schedule_key = schedule.key


def _timestamp(at: datetime, *, what: str) -> str:
    if at.tzinfo is None:
        raise InvalidRequest(f"{what} must have a time zone: {at.isoformat()}")
    return timestamp(at)


def _with_payload(index: int, item: _PushItem, payload: bytes, headers: bytes | None) -> _PushItem:
    item.headers = None if headers is None else Raw(headers)
    if item.encoding is not None:
        item.payload_base64 = b64encode(payload).decode()
        return item
    try:
        # Nothing but one JSON value, so that it cannot break out of its place in the body.
        item.payload = _json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidPayload(f"message {index}: the payload is not JSON, and has no encoding: {error}") from error
    return item


def push(items: list[_PushItem]) -> Request:
    repeatable = all(item.transaction_id is not None for item in items)
    return Request("POST", "/api/v1/push?queued=true", msgspec.json.encode({"items": items}), repeatable)


def receipts_of(answer: Answer) -> list[Receipt]:
    return [_receipt(item) for item in _decoded(answer, _receipts)]


_queued = msgspec.json.Decoder(QueuedAnswer)


def operation_of(answer: Answer) -> str | None:
    """The id of the operation as which a push was queued; None if it was stored."""
    if answer.status != 202:
        return None
    operation_id: str = _decoded(answer, _queued).operation_id
    return operation_id


def queued_receipts(items: list[_PushItem], operation_id: str) -> list[Receipt]:
    """What is known of a push that waits to be applied."""
    return [
        Receipt(
            index=index,
            status="queued",
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


def applied_receipts(items: list[_PushItem], info: OperationInfo) -> list[Receipt] | None:
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
        depth=_or_none(item.depth),
        remaining=_or_none(item.remaining),
        **_appointment(item.scheduleId, item.dueAt),
    )


def _appointment(schedule_id: str | UnsetType, due_at: str | UnsetType) -> dict[str, Any]:
    if isinstance(schedule_id, UnsetType) or isinstance(due_at, UnsetType):
        return {}
    return {"schedule_id": int(schedule_id), "due_at": datetime.fromisoformat(due_at)}


def _or_none(value: Any) -> Any:
    return None if value is UNSET else value


# --- Pop ----------------------------------------------------------------------------------------------------

_pop_answer = msgspec.json.Decoder(wire.PopAnswer)
_headers = msgspec.json.Decoder(dict[str, str])
_text = msgspec.json.Decoder(str)


def pop(request: PopRequest, wait_seconds: float) -> Request:
    query: dict[str, str] = {"batch": str(request.batch), "partitions": str(request.partitions)}
    if wait_seconds > 0:
        query |= {"wait": "true", "timeout": str(round(wait_seconds * 1000))}
    if request.group != QUEUE_MODE:
        query["consumerGroup"] = request.group
    if request.auto_ack:
        query["autoAck"] = "true"
    if request.lease_seconds is not None:
        query["leaseSeconds"] = str(request.lease_seconds)
    for name in ("namespace", "task"):
        if getattr(request, name) is not None:
            query[name] = getattr(request, name)
    if request.mode is not None:
        query["mode"] = request.mode
    query |= _subscription_query(request)
    return Request("GET", f"{_pop_path(request)}?{urlencode(query)}")


def _subscription_query(request: PopRequest) -> dict[str, str]:
    subscription = request.subscription
    if subscription.mode == "from" and subscription.from_at is not None:
        return {"subscriptionFrom": timestamp(subscription.from_at)}
    return {"subscriptionMode": "new"} if subscription.mode == "new" else {}


def _pop_path(request: PopRequest) -> str:
    if request.queue is None:
        return "/api/v1/pop"
    path = f"/api/v1/pop/queue/{_segment(request.queue)}"
    return path if request.partition is None else f"{path}/partition/{_segment(request.partition)}"


def _segment(name: str) -> str:
    """A name as one segment of a path; dots alone would be taken for a way up."""
    quoted = quote(name, safe="")
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


def delivered_of(answer: Answer, group: str) -> Delivered:
    if answer.status == 204:
        return Delivered(group)
    popped: wire.PopAnswer = _decoded(answer, _pop_answer)
    expires_at = None if popped.expires_at is None else datetime.fromisoformat(popped.expires_at)
    messages = [_message(item) for item in popped.messages]
    return Delivered(group, messages, popped.lease_id or None, expires_at, popped.mode)


def _message(item: wire.PoppedMessage) -> Message:
    encoding = _or_none(item.encoding)
    return Message(
        id=item.id,
        queue=item.queue,
        partition=item.partition,
        partition_id=int(item.partition_id),
        seq=item.seq,
        created_at=datetime.fromisoformat(item.created_at),
        payload=bytes(item.data) if encoding is None else b64decode(_text.decode(item.data)),
        transaction_id=item.transaction_id,
        trace_id=item.trace_id,
        kind=_or_none(item.kind),
        reference=_or_none(item.reference),
        encoding=encoding,
        headers=None if item.headers is UNSET else _headers.decode(item.headers),
        producer_sub=item.producer_sub,
        expires_at=None if isinstance(item.expires_at, UnsetType) else datetime.fromisoformat(item.expires_at),
        attempt=item.attempt,
    )


# --- Ack and renew ------------------------------------------------------------------------------------------


class _AckItem(Struct, rename="camel", omit_defaults=True, gc=False):
    type: Literal["ack"] | UnsetType = UNSET
    transaction_id: str | None = None
    partition_id: str | None = None
    seq: int | None = None
    lease_id: str | None = None
    consumer_group: str | None = None
    status: str = "completed"
    error: str | None = None
    retry_at: str | None = None


_ack_results = msgspec.json.Decoder(list[wire.AckResult])
_lease_ack = msgspec.json.Decoder(wire.LeaseAckAnswer)
_extended = msgspec.json.Decoder(wire.ExtendAnswer)
_ERRORS: dict[str, AckError] = {text: error for error, text in ACK_ERROR_TEXTS.items()}


def ack_by_lease(ack: Ack) -> Request:
    """An ack of all that a lease holds, or of it up to one message."""
    body = _AckItem(
        status=ack.status,
        error=ack.error,
        seq=ack.seq,
        partition_id=None if ack.partition_id is None else str(ack.partition_id),
        retry_at=_retry_at(ack),
    )
    return Request("POST", f"/api/v1/lease/{_segment(ack.lease_id or '')}/ack", msgspec.json.encode(body))


def lease_outcome_of(answer: Answer) -> AckOutcome:
    result: wire.LeaseAckAnswer = _decoded(answer, _lease_ack)
    return AckOutcome(
        index=0,
        success=result.success,
        error=_ack_error(result.error),
        noop=result.noop,
        released=result.lease_released,
        dead=result.dlq,
        messages=result.messages,
    )


def ack_batch(acks: Sequence[Ack]) -> Request:
    return Request(
        "POST", "/api/v1/ack/batch", msgspec.json.encode({"acknowledgments": [_ack_item(ack) for ack in acks]})
    )


def _ack_item(ack: Ack) -> _AckItem:
    return _AckItem(
        transaction_id=ack.transaction_id,
        partition_id=None if ack.partition_id is None else str(ack.partition_id),
        seq=ack.seq,
        lease_id=ack.lease_id,
        consumer_group=None if ack.group == QUEUE_MODE else ack.group,
        status=ack.status,
        error=ack.error,
        retry_at=_retry_at(ack),
    )


def _retry_at(ack: Ack) -> str | None:
    return None if ack.retry_at is None else _timestamp(ack.retry_at, what="retry_at")


def outcomes_of(answer: Answer) -> list[AckOutcome]:
    return [
        AckOutcome(
            index=index,
            success=result.success,
            error=_ack_error(result.error),
            noop=result.noop is True,
            released=result.lease_released,
            dead=result.dlq,
            queue=result.queue_name,
            partition=result.partition_name,
        )
        for index, result in enumerate(_decoded(answer, _ack_results))
    ]


def _ack_error(text: str | None) -> AckError | None:
    return None if text is None else _ERRORS.get(text, "unresolvable")


def extend(renewal: Renewal) -> Request:
    body = None if renewal.seconds is None else msgspec.json.encode({"seconds": renewal.seconds})
    return Request("POST", f"/api/v1/lease/{_segment(renewal.lease_id)}/extend", body)


def renewed_of(answer: Answer) -> Renewed:
    result: wire.ExtendAnswer = _decoded(answer, _extended)
    expires_at = None if result.expires_at is None else datetime.fromisoformat(result.expires_at)
    return Renewed(lease_id=result.lease_id, partitions=result.renewed, expires_at=expires_at)


# --- Transactions -------------------------------------------------------------------------------------------

_transaction = msgspec.json.Decoder(TransactionAnswer)


def transaction(acks: Sequence[Ack], items: list[_PushItem]) -> Request:
    operations: list[Any] = [msgspec.structs.replace(_ack_item(ack), type="ack") for ack in acks]
    if items:
        operations.append({"type": "push", "items": items})
    repeatable = all(item.transaction_id is not None for item in items)
    return Request("POST", "/api/v1/transaction", msgspec.json.encode({"operations": operations}), repeatable)


def committed_of(answer: Answer, acks: Sequence[Ack], items: list[_PushItem]) -> Committed:
    """What the transaction did. Raises TransactionRolledBack, or what rolled it back."""
    result: TransactionAnswer = _decoded(answer, _transaction)
    steps = result.results
    outcomes = [
        AckOutcome(
            index=index,
            success=step.success,
            error=_ack_error(_or_none(step.error)) if _or_none(step.error) in _ERRORS else None,
            dead=step.dlq is True,
        )
        for index, step in enumerate(steps[: len(acks)])
    ]
    if not result.success:
        error = _CLASSES.get(_or_none(result.code) or "", TransactionRolledBack)
        raise error(_or_none(result.error), outcomes=outcomes)
    pushed = zip(steps[len(acks) :], items, strict=True)
    return Committed(outcomes, [_step_receipt(index, *pair) for index, pair in enumerate(pushed)])


_STEP_STATUSES: Mapping[str, Literal["duplicate", "scheduled"]] = {"duplicate": "duplicate", "scheduled": "scheduled"}


def _step_receipt(index: int, step: TransactionStep, item: _PushItem) -> Receipt:
    return Receipt(
        index=index,
        status=_STEP_STATUSES.get(str(step.status), "queued"),
        queue=item.queue,
        partition=item.partition,
        partition_id=int(step.partition_id or 0),
        seq=int(step.seq or 0),
        message_id=str(_or_none(step.message_id)),
        transaction_id=str(step.transaction_id),
        trace_id=item.trace_id,
        **_appointment(step.schedule_id, step.due_at),
    )


# --- Every other verb ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the engine, as it is called over HTTP."""

    result: Any
    """The type of its answer."""
    repeatable: bool = True
    """Whether a second application does nothing more and answers the same."""


VERBS: Mapping[str, Verb] = {
    "ping": Verb(None),
    "configure": Verb(QueueInfo),
    "update_queue": Verb(QueueInfo),
    "delete_queue": Verb(bool, repeatable=False),
    "clear": Verb(int, repeatable=False),
    "queues": Verb(list[QueueInfo]),
    "queue": Verb(QueueInfo),
    "partitions": Verb(list[PartitionInfo]),
    "partition": Verb(PartitionInfo),
    "stats": Verb(list[PartitionStats]),
    "namespaces": Verb(list[LabelInfo]),
    "tasks": Verb(list[LabelInfo]),
    "has_pending": Verb(list[bool]),
    "subscribe": Verb(GroupInfo),
    "set_subscription": Verb(int),
    "seek": Verb(int),
    "delete_group": Verb(int, repeatable=False),
    "groups": Verb(list[GroupInfo]),
    "lag": Verb(list[PartitionLag]),
    "spark_streams": Verb(list[SparkStreamInfo]),
    "forget_spark_stream": Verb(int, repeatable=False),
    "depth": Verb(Depth),
    "messages": Verb(MessagePage),
    "message": Verb(MessageView),
    "trace": Verb(list[Message]),
    "remove_message": Verb(None, repeatable=False),
    "retry_message": Verb(Receipt, repeatable=False),
    "bury_message": Verb(int, repeatable=False),
    "schedules": Verb(SchedulePage),
    "schedule": Verb(Scheduled),
    "cancel_schedule": Verb(bool, repeatable=False),
    "reschedule": Verb(Scheduled),
    "set_cron": Verb(Cron),
    "crons": Verb(list[Cron]),
    "cron": Verb(Cron),
    "enable_cron": Verb(Cron),
    "remove_cron": Verb(bool, repeatable=False),
    "dead_letters": Verb(DeadLetterPage),
    "dead_letter": Verb(DeadLetter),
    "redrive": Verb(int, repeatable=False),
    "redrive_queue": Verb(int, repeatable=False),
    "purge": Verb(int, repeatable=False),
    "leases": Verb(list[LeaseInfo]),
    "utilisation": Verb(list[Utilisation]),
    "operations": Verb(OperationPage),
    "operation": Verb(OperationInfo),
    "operation_stats": Verb(OperationStats),
    "retry_operation": Verb(OperationInfo, repeatable=False),
    "maintenance_mode": Verb(MaintenanceMode),
    "set_maintenance_mode": Verb(MaintenanceMode),
    "retry_rejected": Verb(int, repeatable=False),
    "overview": Verb(Overview),
    "database_stats": Verb(DatabaseStats),
    "verify": Verb(list[Problem]),
    "repair": Verb(list[Problem], repeatable=False),
    "duties": Verb(list[DutyInfo]),
    "samples": Verb(list[Sample]),
    "sample_spans": Verb(list[SampleSpan]),
    "removals": Verb(list[Removal]),
    "record_trace": Verb(int, repeatable=False),
    "traces_of_message": Verb(list[TraceEvent]),
    "traces_by_name": Verb(NamedTracePage),
    "trace_names": Verb(TraceNamePage),
}


class _Result(Struct):
    result: Raw = Raw(b"null")


_result = msgspec.json.Decoder(_Result)
_results = {name: msgspec.json.Decoder(verb.result) for name, verb in VERBS.items()}


def call(verb: str, arguments: Mapping[str, Any]) -> Request:
    if verb == "ping":
        return Request("GET", "/ready")
    given = {name: value for name, value in arguments.items() if value is not None}
    return Request("POST", f"/api/v1/engine/{verb}", msgspec.json.encode(given), VERBS[verb].repeatable)


def result_of(answer: Answer, verb: str) -> Any:
    if verb == "ping":
        return None
    raw = _decoded(answer, _result).result
    return _decoded(Answer(answer.status, bytes(raw)), _results[verb])
