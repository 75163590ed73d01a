"""Messages in and out: push, pop, ack, renew and transactions. Nothing here decodes a payload."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import msgspec
from msgspec import Struct

from lockstep.core.ids import uuid7
from lockstep.core.names import QUEUE_MODE
from lockstep.core.policy import GroupMode
from lockstep.core.records import Ack, AckOutcome, Popped, PopRequest, Renewal, Subscription, TransactionResult
from lockstep.core.wire import messages as wire
from lockstep.core.wire.operations import QueuedAnswer, queued_answer
from lockstep.core.wire.times import parse_time, parse_time_or_none
from lockstep.core.wire.transactions import TransactionAnswer, TransactionBody, TransactionSteps
from lockstep.errors import InvalidRequest, QueueFull, TransactionRolledBack
from lockstep.server.exchange import NOTHING, Disconnected, Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Route

AUTOPILOT_BATCH = 200
AUTOPILOT_PARTITIONS = 10

_push_body = msgspec.json.Decoder(wire.PushBody)
_ack_body = msgspec.json.Decoder(wire.AckItem)
_ack_batch_body = msgspec.json.Decoder(wire.AckBatchBody)
_lease_ack_body = msgspec.json.Decoder(wire.LeaseAckBody)
_extend_body = msgspec.json.Decoder(wire.ExtendBody)
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
    """How the group is served, if this makes it; an existing one must be of this mode."""


class PushQuery(Struct, frozen=True):
    queued: bool = False
    """Answer 202 if the push was accepted and waits to be applied; else such a push is answered once it is."""


async def push(node: Node, request: Request) -> Response:
    node.engine.check_load("push")  # it may have been decided while the body came
    body = request.json(_push_body)
    batches, order = wire.batches_of(body.items)
    result = await node.engine.push(batches, queued="return", told_in=order)
    if result.operation is not None:
        if _understands_queued(request):
            return answer(queued_answer(result.operation), 202)
        result = await node.engine.push_applied(result)
    node.counters.messages_pushed += len(body.items)
    node.counters.messages_duplicate += result.duplicates
    return answer(wire.receipts(result, order), 201)


def _admit_push(node: Node) -> None:
    node.engine.let_in_push()


def _understands_queued(request: Request) -> bool:
    """Whether the client says so: those of old take every 2xx for stored."""
    return request.header(b"lockstep-accept") == "queued" or request.query(PushQuery).queued


async def pop(node: Node, request: Request) -> Response:
    query = request.query(PopQuery)
    wanted = _pop_request(query, request.parameters)
    if not query.wait:
        popped = (await node.engine.pop([wanted]))[0]
    else:
        popped = await _wait_pop(node, request, wanted, query.timeout)
    if not popped.runs:
        return NOTHING
    node.counters.messages_popped += len(popped)
    response = answer(wire.pop_answer(popped))
    response.undelivered = partial(node.engine.release, popped)
    return response


def _pop_request(query: PopQuery, parameters: dict[str, str]) -> PopRequest:
    queue, partition = parameters.get("queue"), parameters.get("partition")
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
        subscription=_subscription(query),
        mode=query.mode,
    )


def _subscription(query: PopQuery) -> Subscription:
    """Where a new group begins. What nobody knows means from the beginning, as the protocol wants it."""
    begin = query.subscription_from
    if begin and begin != "now":
        return Subscription("from", parse_time(begin, what="subscriptionFrom"))
    return Subscription("new" if begin == "now" or query.subscription_mode in ("new", "new-only") else "all")


async def _wait_pop(node: Node, request: Request, wanted: PopRequest, timeout_ms: int) -> Popped:
    """A waiting pop, given up as soon as its client goes away; what was leased for it then is released."""
    if timeout_ms < 0:
        raise InvalidRequest("timeout must not be negative")
    # Compared as a whole number: one with hundreds of digits is no float.
    seconds = min(timeout_ms, node.config.pop_wait_seconds_max * 1000) / 1000
    waiting = asyncio.ensure_future(node.engine.wait_pop(wanted, seconds))
    gone = asyncio.create_task(request.disconnected())
    gone.add_done_callback(lambda _: waiting.cancel())
    try:
        return await waiting
    except asyncio.CancelledError:
        if not gone.done():
            raise
        node.counters.polls_abandoned += 1
        raise Disconnected from None
    finally:
        gone.cancel()


async def ack(node: Node, request: Request) -> Response:
    item = request.json(_ack_body)
    return await _ack(node, [item], [wire.ack_of(item)])


async def ack_batch(node: Node, request: Request) -> Response:
    body = request.json(_ack_batch_body)
    items = body.acknowledgments
    acks = [wire.ack_of(wire.resolvable(item), group=body.consumer_group) for item in items]
    return await _ack(node, items, acks, atomic=body.atomic)


async def _ack(node: Node, items: list[wire.AckItem], acks: list[Ack], *, atomic: bool = False) -> Response:
    outcomes = await node.engine.ack(acks, atomic=atomic) if acks else []
    _count_acked(node, outcomes)
    return answer([wire.ack_result(item, o, i) for i, (item, o) in enumerate(zip(items, outcomes, strict=True))])


def _count_acked(node: Node, outcomes: list[AckOutcome]) -> None:
    node.counters.messages_acked += sum([outcome.messages for outcome in outcomes])


async def lease_ack(node: Node, request: Request) -> Response:
    """All that a lease holds, or up to one message of it, in one small request."""
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


async def extend(node: Node, request: Request) -> Response:
    lease_id = request.parameters["leaseId"]
    body = request.json_or(_extend_body, wire.ExtendBody())
    known = wire.lease_of(lease_id) or ""
    renewed = (await node.engine.renew([Renewal(lease_id=known, seconds=body.seconds)]))[0]
    return answer(wire.extend_answer(lease_id, renewed))


async def transaction(node: Node, request: Request) -> Response:
    """Whatever becomes of it is a 200: clients repeat a 5xx, and a rolled back transaction must not be repeated."""
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
    node.counters.messages_pushed += len(result.pushed)
    _count_acked(node, result.acks)
    return answer(steps.applied(str(uuid7(time.time_ns())), result))


async def _transact(node: Node, steps: TransactionSteps) -> TransactionResult:
    while True:
        try:
            return await node.engine.transaction(steps.acks, steps.batches, required_leases=steps.required)
        except TransactionRolledBack as error:
            if not steps.put_under_other_leases(error.details["outcomes"]):
                raise


ROUTES = [
    Route(
        method="POST",
        path="/api/v1/push",
        endpoint=push,
        admit=_admit_push,
        summary="Push messages",
        level="rw",
        query=PushQuery,
        body=wire.PushBody,
        answers=list[wire.PushReceipt],
        status=201,
        also={202: QueuedAnswer},
    ),
    Route(
        method="GET",
        path="/api/v1/pop/queue/:queue",
        endpoint=pop,
        summary="Pop messages of a queue",
        level="rw",
        query=PopQuery,
        answers=wire.PopAnswer,
        empty=True,
    ),
    Route(
        method="GET",
        path="/api/v1/pop/queue/:queue/partition/:partition",
        endpoint=pop,
        summary="Pop messages of one partition",
        level="rw",
        query=PopQuery,
        answers=wire.PopAnswer,
        empty=True,
    ),
    Route(
        method="GET",
        path="/api/v1/pop",
        endpoint=pop,
        summary="Pop messages of all queues of a namespace and/or task, by priority",
        level="rw",
        query=PopQuery,
        answers=wire.PopAnswer,
        empty=True,
    ),
    Route(
        method="POST",
        path="/api/v1/ack",
        endpoint=ack,
        summary="End the delivery of a message",
        level="rw",
        body=wire.AckItem,
        answers=list[wire.AckResult],
    ),
    Route(
        method="POST",
        path="/api/v1/ack/batch",
        endpoint=ack_batch,
        summary="End the delivery of messages",
        level="rw",
        body=wire.AckBatchBody,
        answers=list[wire.AckResult],
    ),
    Route(
        method="POST",
        path="/api/v1/lease/:leaseId/ack",
        endpoint=lease_ack,
        summary="End the delivery of all that a lease holds, or of it up to one message",
        level="rw",
        body=wire.LeaseAckBody,
        body_required=False,
        answers=wire.LeaseAckAnswer,
    ),
    Route(
        method="POST",
        path="/api/v1/lease/:leaseId/extend",
        endpoint=extend,
        summary="Renew a lease",
        level="rw",
        body=wire.ExtendBody,
        body_required=False,
        answers=wire.ExtendAnswer,
    ),
    Route(
        method="POST",
        path="/api/v1/transaction",
        endpoint=transaction,
        summary="Acks and pushes, all or nothing",
        level="rw",
        body=TransactionBody,
        answers=TransactionAnswer,
    ),
]
