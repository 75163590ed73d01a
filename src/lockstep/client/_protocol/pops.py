"""Pop: converts a request to a path and a query, and the answer to messages."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from lockstep.client._protocol.exchange import (
    HttpAnswer,
    HttpRequest,
    check_finite,
    decoded,
    encoded,
    segment,
    time_text,
)
from lockstep.client._received import Delivered
from lockstep.core.ids import parse_uuid
from lockstep.core.names import QUEUE_MODE, check_name
from lockstep.core.records import NextRequest, PopRequest
from lockstep.core.wire import delivery as wire
from lockstep.errors import InvalidName, InvalidRequest, LockstepError

_ACCEPT_PACKED = {"accept": f"{wire.PACKED}, application/json"}


class _NextBody(Struct, rename="camel", omit_defaults=True):
    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    consumer_group: str = QUEUE_MODE
    batch: int = 1
    partitions: int = 1
    lease_seconds: float | None = None
    wait: bool = False
    timeout: int = 0
    mode: str | None = None


_pop_answer = msgspec.json.Decoder(wire.PopAnswer)


def pop(request: PopRequest, wait_seconds: float, *, packed: bool = False) -> HttpRequest:
    """With `packed` the answer may contain columns."""
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
    in_path = _fits_path(request)
    if not in_path:
        query |= {name: value for name in ("queue", "partition") if (value := getattr(request, name)) is not None}
    # Messages acknowledged by a lost answer are gone: a second pop must not hide that.
    path = _pop_path(request) if in_path else "/api/v1/pop"
    target, headers = f"{path}?{urlencode(query)}", _ACCEPT_PACKED if packed else {}
    return HttpRequest("GET", target, repeatable=not request.auto_ack, headers=headers)


def _fits_path(request: PopRequest) -> bool:
    """A segment of dots means a parent directory: servers and proxies refuse such a path, however the dots are
    encoded.
    """
    return not {request.queue, request.partition} & {".", ".."}


def next(request: NextRequest, wait_seconds: float, *, packed: bool = False) -> HttpRequest:
    """A request that is sent twice finds its lease gone the second time, and skips nothing."""
    wanted = request.pop
    _check(wanted)
    if wanted.auto_ack:
        raise InvalidRequest("what comes next under a lease is not acknowledged at once (auto_ack)")
    check_finite(wanted.lease_seconds, what="lease seconds")
    body = _NextBody(
        queue=wanted.queue,
        partition=wanted.partition,
        namespace=wanted.namespace,
        task=wanted.task,
        consumer_group=wanted.group,
        batch=wanted.batch,
        partitions=wanted.partitions,
        lease_seconds=wanted.lease_seconds,
        wait=wait_seconds > 0,
        timeout=round(wait_seconds * 1000),
        mode=wanted.mode,
    )
    content = msgspec.to_builtins(body) | _subscription_query(wanted)
    lease_id = parse_uuid(request.lease_id, what="lease id")
    headers = _ACCEPT_PACKED if packed else {}
    return HttpRequest("POST", f"/api/v1/lease/{lease_id}/next", encoded(content), headers=headers)


def _check(request: PopRequest) -> None:
    """Check values that a path cannot represent, which the server therefore cannot refuse."""
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


def delivered_of(answer: HttpAnswer, group: str) -> Delivered:
    if answer.status == 204:
        return Delivered(group)
    if answer.is_packed:
        return _delivered_packed(answer)
    popped: wire.PopAnswer = decoded(answer, _pop_answer)
    expires_at = None if popped.expires_at is None else datetime.fromisoformat(popped.expires_at)
    messages = [wire.message_of(item) for item in popped.messages]
    return Delivered(group, messages, popped.lease_id or None, expires_at, popped.mode)


def _delivered_packed(answer: HttpAnswer) -> Delivered:
    try:
        popped = wire.read_popped(answer.body)
    except (InvalidRequest, ValueError, LookupError) as error:
        raise LockstepError(f"the answer of the server cannot be read: {error}") from error
    return Delivered(popped.group, list(popped.messages()), popped.lease_id, popped.expires_at, popped.mode)
