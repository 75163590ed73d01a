"""Stream queries on the wire."""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType

from lockstep.core.names import QUEUE_MODE
from lockstep.core.operations import Order
from lockstep.core.records import AckOutcome
from lockstep.core.streams import (
    NewStreamQuery,
    StateFilter,
    StateOp,
    StateOpType,
    StateRow,
    StreamAck,
    StreamCycle,
    StreamCycleResult,
    StreamQuery,
)
from lockstep.core.wire.delivery import (
    PushItem,
    PushReceipt,
    ack_error,
    ack_status,
    lease_of,
    receipts,
)
from lockstep.core.wire.numbers import number_of
from lockstep.core.wire.times import timestamp


class QueryBody(Struct, forbid_unknown_fields=True):
    name: str
    source_queue: str
    config_hash: str
    sink_queue: str | None = None
    reset: bool = False


class QueryAnswer(Struct):
    success: bool
    query_id: str
    name: str
    config_hash: str
    fresh: bool
    reset: bool


class QueryRefused(Struct):
    success: bool
    error: str
    code: str


class StateBody(Struct, forbid_unknown_fields=True):
    query_id: str | int
    partition_id: str | int
    keys: list[str] = []
    key_prefix: str | None = None
    ripe_at_or_before: int | None = None
    """Milliseconds."""


class StateRowAnswer(Struct):
    key: str
    value: Raw
    updated_at: str


class StateAnswer(Struct):
    success: bool
    rows: list[StateRowAnswer]


class StateOpItem(Struct, forbid_unknown_fields=True):
    type: StateOpType
    key: str
    value: Raw | UnsetType = UNSET


class CycleAck(Struct, rename="camel", forbid_unknown_fields=True):
    transaction_id: str
    lease_id: str | None = None
    status: str = "completed"
    count: int | None = None
    """The client's number of messages. Ignored: the cursor moves to the message that is named."""
    error: str | None = None


class CycleBody(Struct, forbid_unknown_fields=True):
    query_id: str | int
    partition_id: str | int
    consumer_group: str | None = None
    state_ops: list[StateOpItem] = []
    push_items: list[PushItem] = []
    ack: CycleAck | None = None
    release_lease: bool = True


class CycleAckResult(Struct):
    success: bool
    count: int
    lease_released: bool
    dlq: bool
    error: str | None = None


class CycleAnswer(Struct, omit_defaults=True):
    success: bool
    query_id: str
    partition_id: str
    queueName: str | UnsetType = UNSET  # noqa: N815
    state_ops_applied: int | UnsetType = UNSET
    push_results: list[PushReceipt] | UnsetType = UNSET
    ack_result: CycleAckResult | UnsetType | None = UNSET
    error: str | UnsetType = UNSET
    code: str | UnsetType = UNSET


def new_query(body: QueryBody) -> NewStreamQuery:
    return NewStreamQuery(
        name=body.name,
        source_queue=body.source_queue,
        config_hash=body.config_hash,
        sink_queue=body.sink_queue,
        reset=body.reset,
    )


def query_answer(query: StreamQuery) -> QueryAnswer:
    return QueryAnswer(True, str(query.id), query.name, query.config_hash, query.fresh, query.reset)


def state_filter(body: StateBody) -> StateFilter:
    return StateFilter(
        query_id=number_of(body.query_id, what="query_id"),
        partition_id=number_of(body.partition_id, what="partition_id"),
        keys=tuple(body.keys),
        key_prefix=body.key_prefix,
        ripe_at_or_before_ms=body.ripe_at_or_before,
    )


def state_answer(rows: list[StateRow]) -> StateAnswer:
    return StateAnswer(True, [StateRowAnswer(row.key, Raw(row.value), timestamp(row.updated_at)) for row in rows])


def cycle_of(body: CycleBody) -> StreamCycle:
    return StreamCycle(
        query_id=number_of(body.query_id, what="query_id"),
        partition_id=number_of(body.partition_id, what="partition_id"),
        group=body.consumer_group or QUEUE_MODE,
        state_ops=tuple([_state_op(op) for op in body.state_ops]),
        ack=None if body.ack is None else _stream_ack(body.ack),
        release_lease=body.release_lease,
    )


def _state_op(op: StateOpItem) -> StateOp:
    return StateOp(type=op.type, key=op.key, value=None if op.value is UNSET else bytes(op.value))


def _stream_ack(ack: CycleAck) -> StreamAck:
    return StreamAck(
        transaction_id=ack.transaction_id,
        lease_id=lease_of(ack.lease_id),
        status=ack_status(ack.status),
        error=ack.error,
    )


def cycle_answer(body: CycleBody, result: StreamCycleResult, order: Order | None) -> CycleAnswer:
    return CycleAnswer(
        success=True,
        query_id=str(body.query_id),
        partition_id=str(body.partition_id),
        queueName=result.queue,
        state_ops_applied=result.state_ops,
        push_results=receipts(result.pushed, order),
        ack_result=None if result.ack is None else cycle_ack_result(result.ack),
    )


def cycle_ack_result(outcome: AckOutcome) -> CycleAckResult:
    return CycleAckResult(outcome.success, outcome.messages, outcome.released, outcome.dead, ack_error(outcome))


def cycle_refused(body: CycleBody, reason: str, *, code: str, outcome: AckOutcome | None) -> CycleAnswer:
    """The answer if nothing was applied. Clients repeat any answer other than 200, and this must not be repeated."""
    return CycleAnswer(
        success=False,
        query_id=str(body.query_id),
        partition_id=str(body.partition_id),
        ack_result=UNSET if outcome is None else cycle_ack_result(outcome),
        error=reason,
        code=code,
    )
