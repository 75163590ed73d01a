"""Pop: a request becomes a path and a query, and what was leased comes back."""

from __future__ import annotations

from base64 import b64decode
from datetime import datetime
from urllib.parse import urlencode

import msgspec
from msgspec import UNSET, UnsetType

from lockstep.client._protocol.exchange import Answer, Request, decoded, or_none, segment, time_text
from lockstep.client._received import Delivered
from lockstep.core.messages import Message
from lockstep.core.names import QUEUE_MODE, check_name
from lockstep.core.records import PopRequest
from lockstep.core.wire import messages as wire
from lockstep.errors import InvalidName, InvalidRequest

_pop_answer = msgspec.json.Decoder(wire.PopAnswer)
_headers = msgspec.json.Decoder(dict[str, str])
_text = msgspec.json.Decoder(str)


def pop(request: PopRequest, wait_seconds: float) -> Request:
    _check(request)
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
    # What was acknowledged with a lost answer is gone: a second pop must not hide that.
    return Request("GET", f"{_pop_path(request)}?{urlencode(query)}", repeatable=not request.auto_ack)


def _check(request: PopRequest) -> None:
    """What a path cannot say, so that the server could not refuse it."""
    for what, name in (("queue", request.queue), ("partition", request.partition)):
        if name is not None:
            check_name(name, what=what)
    check_name(request.group, what="group")
    for what, label in (("namespace", request.namespace), ("task", request.task)):
        if label is not None and not isinstance(label, str):
            raise InvalidName(f"{what} must be a string, not {type(label).__name__}")
    if not isinstance(request.auto_ack, bool):
        raise InvalidRequest(f"auto_ack must be true or false, not {type(request.auto_ack).__name__}")
    if request.queue is not None and (request.namespace is not None or request.task is not None):
        raise InvalidRequest("a pop names a queue, or a namespace and/or a task, and not both")
    if request.partition is not None and request.queue is None:
        raise InvalidRequest("a pop that names a partition must name its queue")


def _subscription_query(request: PopRequest) -> dict[str, str]:
    subscription = request.subscription
    if subscription.mode == "from":
        return {"subscriptionFrom": time_text(subscription.from_at, what="from_at")}
    return {"subscriptionMode": "new"} if subscription.mode == "new" else {}


def _pop_path(request: PopRequest) -> str:
    if request.queue is None:
        return "/api/v1/pop"
    path = f"/api/v1/pop/queue/{segment(request.queue)}"
    return path if request.partition is None else f"{path}/partition/{segment(request.partition)}"


def delivered_of(answer: Answer, group: str) -> Delivered:
    if answer.status == 204:
        return Delivered(group)
    popped: wire.PopAnswer = decoded(answer, _pop_answer)
    expires_at = None if popped.expires_at is None else datetime.fromisoformat(popped.expires_at)
    messages = [_message(item) for item in popped.messages]
    return Delivered(group, messages, popped.lease_id or None, expires_at, popped.mode)


def _message(item: wire.PoppedMessage) -> Message:
    encoding = or_none(item.encoding)
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
        kind=or_none(item.kind),
        reference=or_none(item.reference),
        encoding=encoding,
        headers=None if item.headers is UNSET else _headers.decode(item.headers),
        producer_sub=item.producer_sub,
        expires_at=None if isinstance(item.expires_at, UnsetType) else datetime.fromisoformat(item.expires_at),
        attempt=item.attempt,
    )
