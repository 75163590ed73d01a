"""Messages in and out: push, pop, ack, renew and transactions. Nothing here decodes a payload."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext

import msgspec
from msgspec import Struct

from lockstep.core.ids import uuid7
from lockstep.core.messages import Batch, PushResult
from lockstep.core.names import QUEUE_MODE
from lockstep.core.operations import Order
from lockstep.core.policy import GroupMode
from lockstep.core.records import (
    Ack,
    AckOutcome,
    NextRequest,
    Popped,
    PopRequest,
    Renewal,
    Subscription,
    TransactionResult,
)
from lockstep.core.wire import delivery as wire
from lockstep.core.wire.operations import QueuedAnswer, queued_answer
from lockstep.core.wire.times import parse_time, parse_time_or_none
from lockstep.core.wire.transactions import TransactionAnswer, TransactionBody, TransactionSteps
from lockstep.errors import InvalidRequest, LeaseLost, QueueFull, TransactionRolledBack
from lockstep.server.exchange import NOTHING, Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Route

AUTOPILOT_BATCH = 200
AUTOPILOT_PARTITIONS = 10

_PACKED = (b"content-type", wire.PACKED.encode())

_push_body = msgspec.json.Decoder(wire.PushBody)
_ack_body = msgspec.json.Decoder(wire.Acknowledgment)
_ack_batch_body = msgspec.json.Decoder(wire.AckBatchBody)
_lease_ack_body = msgspec.json.Decoder(wire.LeaseAckBody)
_next_body = msgspec.json.Decoder(wire.NextBody)
_renew_body = msgspec.json.Decoder(wire.RenewBody)
_transaction_body = msgspec.json.Decoder(TransactionBody)


class PopQuery(Struct, rename="camel", frozen=True):
    batch: int | None = None
    wait: bool = False
    timeout: int = 30_000
    """Milliseconds."""
    consumer_group: str = QUEUE_MODE
    auto_ack: bool = False
    subscription_mode: str = ""
    subscription_from: str = ""
    partitions: int | None = None
    lease_seconds: float | None = None
    autopilot: bool = False
    namespace: str | None = None
    task: str | None = None
    mode: GroupMode | None = None
    """The mode of a group that this creates; an existing group must have this mode."""


class PopFromQuery(PopQuery, frozen=True):
    """For the names `.` and `..`, which cannot be part of a path."""

    queue: str | None = None
    partition: str | None = None


class PushQuery(Struct, frozen=True):
    queued: bool = False
    """Answer 202 if the push was accepted and waits to be applied; otherwise the answer waits until it is applied."""


async def push(node: Node, request: Request) -> Response:
    node.engine.check_load("push")  # it may have been decided while the body arrived
    if wire.is_packed(request.header(b"content-type")):
        return await _push_packed(node, request)
    body = request.json(_push_body)
    batches, order = wire.batches_of(body.items)
    result = await _pushed(node, request, batches, order)
    if result.operation is not None:
        return answer(queued_answer(result.operation), 202)
    return answer(wire.receipts(result, order), 201)


async def _push_packed(node: Node, request: Request) -> Response:
    """Messages as columns, which are stored without conversion."""
    body = wire.PackedPush(request.body, items_max=request.items_max)
    config = node.config
    body.check(messages_max=config.push_messages_max, unpacked_bytes_max=config.unpacked_bytes_max)
    with nullcontext() if request.intake is None else request.intake.holding(body.unpacked_bytes):
        batches = body.batches()
        result = await _pushed(node, request, batches)
    if result.operation is not None:
        return answer(queued_answer(result.operation), 202)
    return answer(wire.packed_receipts(batches, result), 201)


async def _pushed(node: Node, request: Request, batches: list[Batch], order: Order | None = None) -> PushResult:
    """Pushed and counted; or queued as an operation, for a client that understands that."""
    result = await node.engine.push(batches, queued="return", told_in=order)
    if result.operation is not None:
        if _understands_queued(request):
            return result
        result = await node.engine.push_applied(result)
    _count_pushed(node, batches)
    node.counters.messages_duplicate += result.duplicates
    return result


def _count_pushed(node: Node, batches: Sequence[Batch]) -> None:
    counters = node.counters
    for batch in batches:
        messages = len(batch.columns)
        counters.messages_pushed += messages
        counters.pushed.add(batch.queue, messages)


def _admit_push(node: Node) -> None:
    node.engine.let_in_push()


def _understands_queued(request: Request) -> bool:
    """Whether the client understands 202: older clients take every 2xx to mean stored."""
    return request.header(b"lockstep-accept") == "queued" or request.query(PushQuery).queued


async def pop(node: Node, request: Request) -> Response:
    query: PopQuery = request.query(request.route.query)
    wanted = _pop_request(query, request.parameters)
    if not query.wait:
        popped = (await node.engine.pop([wanted]))[0]
    else:
        request.verb = "wait_pop"
        seconds = _wait_seconds(node, query.timeout)
        with request.while_connected():
            popped = await node.engine.wait_pop(wanted, seconds)
    return _delivered(node, request, popped)


def _delivered(node: Node, request: Request, popped: Popped) -> Response:
    if not popped.runs:
        return NOTHING
    _count_popped(node, popped)
    response = _popped(request, popped)
    response.undelivered = lambda: node.engine.release(popped)
    return response


def _popped(request: Request, popped: Popped) -> Response:
    if wire.is_packed(request.header(b"accept")):
        return Response(200, wire.write_popped(popped), _PACKED)
    return answer(wire.pop_answer(popped))


def _count_popped(node: Node, popped: Popped) -> None:
    counters = node.counters
    for run in popped.runs:
        messages = len(run)
        counters.messages_popped += messages
        counters.popped.add(run.queue, messages)
        if run.delivery.attempt > 1:
            counters.messages_redelivered += messages


async def next(node: Node, request: Request) -> Response:
    """Complete everything that a lease holds, and lease the next messages."""
    body = request.json(_next_body)
    wanted = NextRequest(lease_id=wire.lease_of(request.parameters["leaseId"]) or "", pop=_next_pop(body))
    if not body.wait:
        continued = (await node.engine.next([wanted]))[0]
    else:
        request.verb = "wait_next"
        seconds = _wait_seconds(node, body.timeout)
        with request.while_connected():
            continued = await node.engine.wait_next(wanted, seconds)
    _count_acked(node, [continued.acked])
    if not continued.acked.success:
        raise LeaseLost()
    return _delivered(node, request, continued.popped)


def _next_pop(body: wire.NextBody) -> PopRequest:
    return PopRequest(
        queue=body.queue,
        partition=body.partition,
        namespace=body.namespace,
        task=body.task,
        group=body.consumer_group,
        batch=body.batch,
        partitions=body.partitions,
        lease_seconds=body.lease_seconds,
        subscription=_subscription(body.subscription_mode, body.subscription_from),
        mode=body.mode,
    )


def _pop_request(query: PopQuery, parameters: dict[str, str]) -> PopRequest:
    queue, partition = parameters.get("queue"), parameters.get("partition")
    if isinstance(query, PopFromQuery):
        queue, partition = query.queue, query.partition
        if partition is not None and queue is None:
            raise InvalidRequest("a pop that names a partition must name its queue")
        if queue is not None and not (query.namespace is None and query.task is None):
            raise InvalidRequest("a pop names a queue, or a namespace and/or a task, and not both")
    batch, partitions = query.batch, query.partitions
    if query.autopilot:
        batch, partitions = batch or AUTOPILOT_BATCH, partitions or AUTOPILOT_PARTITIONS
    return PopRequest(
        queue=queue,
        partition=partition,
        namespace=query.namespace if queue is None else None,
        task=query.task if queue is None else None,
        group=query.consumer_group or QUEUE_MODE,
        batch=1 if batch is None else batch,
        partitions=1 if partitions is None or partition is not None else partitions,
        lease_seconds=query.lease_seconds,
        auto_ack=query.auto_ack,
        subscription=_subscription(query.subscription_mode, query.subscription_from),
        mode=query.mode,
    )


def _subscription(mode: str, begin: str) -> Subscription:
    """Where a new group starts. An unknown value means the beginning, as the protocol requires."""
    if begin and begin != "now":
        return Subscription("from", parse_time(begin, what="subscriptionFrom"))
    return Subscription("new" if begin == "now" or mode in ("new", "new-only") else "all")


def _wait_seconds(node: Node, timeout_ms: int) -> float:
    if timeout_ms < 0:
        raise InvalidRequest("timeout must not be negative")
    # Compared as an integer, because a number with hundreds of digits overflows a float.
    return min(timeout_ms, node.config.pop_wait_seconds_max * 1000) / 1000


async def ack(node: Node, request: Request) -> Response:
    item = request.json(_ack_body)
    return await _ack(node, [item], [wire.ack_of(item)])


async def ack_batch(node: Node, request: Request) -> Response:
    body = request.json(_ack_batch_body)
    items = body.acknowledgments
    acks = [wire.ack_of(wire.resolvable(item), group=body.consumer_group) for item in items]
    return await _ack(node, items, acks, atomic=body.atomic)


async def _ack(node: Node, items: list[wire.Acknowledgment], acks: list[Ack], *, atomic: bool = False) -> Response:
    outcomes = await node.engine.ack(acks, atomic=atomic) if acks else []
    _count_acked(node, outcomes)
    return answer([wire.ack_result(item, o, i) for i, (item, o) in enumerate(zip(items, outcomes, strict=True))])


def _count_acked(node: Node, outcomes: list[AckOutcome]) -> None:
    node.counters.messages_acked += sum([outcome.messages for outcome in outcomes])


async def lease_ack(node: Node, request: Request) -> Response:
    """Acknowledge everything that a lease holds, or up to one message, in one small request."""
    lease_id = request.parameters["leaseId"]
    body = request.json_or(_lease_ack_body, wire.LeaseAckBody())
    acked = Ack(
        lease_id=wire.lease_of(lease_id),
        partition_id=None if body.partition_id is None else wire.partition_number(body.partition_id),
        seq=body.seq,
        status=wire.ack_status(body.status),
        error=body.error,
        retry_at=parse_time_or_none(body.retry_at, what="retryAt"),
    )
    outcomes = await node.engine.ack([acked])
    _count_acked(node, outcomes)
    return answer(wire.lease_ack_answer(lease_id, outcomes[0]))


async def renew(node: Node, request: Request) -> Response:
    lease_id = request.parameters["leaseId"]
    body = request.json_or(_renew_body, wire.RenewBody())
    known = wire.lease_of(lease_id) or ""
    renewed = (await node.engine.renew([Renewal(lease_id=known, seconds=body.seconds)]))[0]
    return answer(wire.renew_answer(lease_id, renewed))


async def transaction(node: Node, request: Request) -> Response:
    """Every outcome is a 200: clients repeat a 5xx, and a rolled-back transaction must not be repeated."""
    body = request.json(_transaction_body)
    if not body.operations:
        raise InvalidRequest("operations must not be empty")
    steps = TransactionSteps.of(body)
    try:
        result = await _transact(node, steps)
    except TransactionRolledBack as error:
        return answer(steps.rolled_back(error.message, error.details["outcomes"]))
    except QueueFull as error:
        return answer(steps.rolled_back(error.message, None, full=error))
    _count_pushed(node, steps.batches)
    _count_acked(node, result.acks)
    return answer(steps.applied(str(uuid7(time.time_ns())), result))


async def _transact(node: Node, steps: TransactionSteps) -> TransactionResult:
    while True:
        try:
            return await node.engine.transaction(steps.acks, steps.batches, required_leases=steps.required)
        except TransactionRolledBack as error:
            if not steps.put_under_other_leases(error.details["outcomes"]):
                raise


def _pop_route(path: str, summary: str, query: type[PopQuery] = PopQuery) -> Route:
    return Route(
        method="GET",
        path=path,
        endpoint=pop,
        verb="pop",
        summary=summary,
        right="pop",
        query=query,
        answers=wire.PopAnswer,
        empty=True,
    )


ROUTES = [
    Route(
        method="POST",
        path="/api/v1/push",
        endpoint=push,
        verb="push",
        admit=_admit_push,
        summary="Push messages",
        right="push",
        query=PushQuery,
        body=wire.PushBody,
        answers=list[wire.PushReceipt],
        status=201,
        also={202: QueuedAnswer},
    ),
    _pop_route("/api/v1/pop/queue/:queue", "Pop messages of a queue"),
    _pop_route("/api/v1/pop/queue/:queue/partition/:partition", "Pop messages of one partition"),
    _pop_route("/api/v1/pop", "Pop messages of all queues of a namespace and/or task, by priority", PopFromQuery),
    Route(
        method="POST",
        path="/api/v1/ack",
        endpoint=ack,
        verb="ack",
        summary="End the delivery of a message",
        right="pop",
        body=wire.Acknowledgment,
        answers=list[wire.AckResult],
    ),
    Route(
        method="POST",
        path="/api/v1/ack/batch",
        endpoint=ack_batch,
        verb="ack",
        summary="End the delivery of messages",
        right="pop",
        body=wire.AckBatchBody,
        answers=list[wire.AckResult],
    ),
    Route(
        method="POST",
        path="/api/v1/lease/:leaseId/ack",
        endpoint=lease_ack,
        verb="ack",
        summary="End the delivery of all that a lease holds, or of it up to one message",
        right="pop",
        body=wire.LeaseAckBody,
        body_required=False,
        answers=wire.LeaseAckAnswer,
    ),
    Route(
        method="POST",
        path="/api/v1/lease/:leaseId/next",
        endpoint=next,
        verb="next",
        summary="Complete all that a lease holds, and pop what comes next",
        right="pop",
        body=wire.NextBody,
        answers=wire.PopAnswer,
        empty=True,
    ),
    Route(
        method="POST",
        path="/api/v1/lease/:leaseId/extend",
        endpoint=renew,
        verb="renew",
        summary="Renew a lease",
        right="pop",
        body=wire.RenewBody,
        body_required=False,
        answers=wire.RenewAnswer,
    ),
    Route(
        method="POST",
        path="/api/v1/transaction",
        endpoint=transaction,
        verb="transaction",
        summary="Acks and pushes, all or nothing",
        right=("push", "pop"),
        body=TransactionBody,
        answers=TransactionAnswer,
    ),
]
