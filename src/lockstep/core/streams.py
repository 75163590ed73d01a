"""Stream queries: state that the stream processing of a client keeps in the store, and its cycles.

A query has state per partition of its source: values by key. A cycle is one step of the query on one partition: state
changes, messages to push, and the ack of the consumed messages, all or nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any, Literal

import msgspec

from lockstep.core.endings import AckStatus
from lockstep.core.messages import PushResult
from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import Ack, AckOutcome
from lockstep.errors import StreamConfigMismatch

StateOpType = Literal["upsert", "delete"]


class NewStreamQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Requests a query by name."""

    name: str
    source_queue: str
    config_hash: str
    """Hash of everything that the state depends on. State of one configuration is meaningless to another."""
    sink_queue: str | None = None
    reset: bool = False
    """Accept the new configuration and remove the state of the old one."""


class StreamQuery(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    name: str
    source_queue: str
    sink_queue: str | None
    config_hash: str
    fresh: bool
    """The query was created by this request."""
    reset: bool
    """The query existed, and its state was removed."""


class StateRow(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    value: bytes
    """JSON."""
    updated_at: datetime


class StateFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects rows of a query's state on one partition; a field that is not given does not filter."""

    query_id: int
    partition_id: int
    keys: tuple[str, ...] = ()
    """Empty: all keys."""
    key_prefix: str | None = None
    ripe_at_or_before_ms: int | None = None
    """Only values whose number `windowEnd` is at most this."""


class StateOp(msgspec.Struct, frozen=True, kw_only=True):
    type: StateOpType
    key: str
    value: bytes | None = None
    """JSON, for an upsert."""


class StreamAck(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the delivery that a cycle processed."""

    transaction_id: str
    lease_id: str | None = None
    """Checked if given."""
    status: AckStatus = "completed"
    error: str | None = None


class StreamCycle(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a query on one partition; the messages that it pushes are passed separately."""

    query_id: int
    partition_id: int
    group: str = QUEUE_MODE
    state_ops: tuple[StateOp, ...] = ()
    """In order; the last operation for a key counts."""
    ack: StreamAck | None = None
    release_lease: bool = True
    """Whether a completed ack ends the lease; otherwise the lease is kept, even if nothing is left of it."""

    def acks(self) -> list[Ack]:
        """The ack in its general form."""
        if self.ack is None:
            return []
        return [
            Ack(
                lease_id=self.ack.lease_id,
                partition_id=self.partition_id,
                transaction_id=self.ack.transaction_id,
                group=self.group,
                status=self.ack.status,
                error=self.ack.error,
            )
        ]

    def changes(self) -> dict[str, bytes | None]:
        """The final value by key; None if deleted."""
        return {op.key: op.value if op.type == "upsert" else None for op in self.state_ops}


def registered(query: NewStreamQuery, query_id: int, *, fresh: bool) -> StreamQuery:
    """The query after its registration."""
    return StreamQuery(
        id=query_id,
        name=query.name,
        source_queue=query.source_queue,
        sink_queue=query.sink_queue,
        config_hash=query.config_hash,
        fresh=fresh,
        reset=query.reset and not fresh,
    )


def mismatch(query: NewStreamQuery, *, config_hash: str, source_queue: str) -> StreamConfigMismatch:
    """The error for a query that is registered with another configuration."""
    what, known, given = "config_hash", config_hash, query.config_hash
    if known == given:
        what, known, given = "source_queue", source_queue, query.source_queue
    text = f"{what} mismatch: stream query {query.name!r} has {known!r}, not {given!r}; reset it to change that"
    return StreamConfigMismatch(text, name=query.name, config_hash=config_hash, source_queue=source_queue)


@dataclass(slots=True)
class StreamCycleResult:
    queue: str
    partition: str
    """The partition of the cycle."""
    state_ops: int
    """Number of state changes applied."""
    pushed: PushResult
    ack: AckOutcome | None


def window_end(value: bytes) -> float | None:
    """The number `windowEnd` of a JSON object, which says when the window is ripe."""
    try:
        decoded: Any = msgspec.json.decode(value)
    except RecursionError:
        # The decoder's nesting limit depends on the caller's stack depth, which was smaller where the value was
        # checked.
        return None
    end = decoded.get("windowEnd") if isinstance(decoded, dict) else None
    if isinstance(end, bool) or not isinstance(end, int | float):
        return None
    try:
        return float(end)
    except OverflowError:
        return inf if end > 0 else -inf
