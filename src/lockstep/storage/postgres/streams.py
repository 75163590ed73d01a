"""Stream queries: registration, state and cycles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import asyncpg

from lockstep.core import refusals
from lockstep.core.messages import Batch
from lockstep.core.records import Ack, AckOutcome, refuse_failed
from lockstep.core.streams import (
    NewStreamQuery,
    StateFilter,
    StateRow,
    StreamCycle,
    StreamCycleResult,
    StreamQuery,
    mismatch,
    registered,
    window_end,
)
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.ack import AckedItem, item_outcomes, lease_uuid
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.forwarding import Forwarding
from lockstep.storage.postgres.push.conversation import Pushed
from lockstep.storage.postgres.push.pushes import Pushes


class _Registered(NamedTuple):
    query_id: int | None
    fresh: bool
    known_hash: str
    known_source: str


_REGISTER = sql.procedure("register_stream_query", _Registered)
_BEGIN: sql.Procedure[bool] = sql.procedure("begin_cycle")
_PLACE = "select q.name, p.name from lockstep.partition p join lockstep.queue q on q.id = p.queue_id where p.id = $1"
_CHANGE: sql.Procedure[None] = sql.procedure("change_state")
_ACK = sql.procedure("stream_ack", AckedItem)
_FIND = "select 1 from lockstep.stream_query where id = $1"


class PostgresStreams:
    """Stream queries."""

    def __init__(self, context: Context, pushes: Pushes, forwarding: Forwarding) -> None:
        self._context = context
        self._pushes = pushes
        self._forwarding = forwarding

    async def register_stream_query(self, query: NewStreamQuery) -> StreamQuery:
        call = _REGISTER(
            name=query.name,
            source_queue=query.source_queue,
            sink_queue=query.sink_queue,
            config_hash=query.config_hash,
            reset=query.reset,
            at=self._context.now(),
        )
        found = await self._context.database.value(call)
        if found.query_id is None:
            raise mismatch(query, config_hash=found.known_hash, source_queue=found.known_source)
        return registered(query, found.query_id, fresh=found.fresh)

    async def stream_state(self, where: StateFilter, *, limit: int = 1000) -> list[StateRow]:
        if not await self._context.database.fetch("stream_query_find", _FIND, where.query_id):
            raise refusals.no_stream_query(where.query_id)
        ripe = None if where.ripe_at_or_before_ms is None else float(where.ripe_at_or_before_ms)
        rows = await self._context.query(
            "stream_state_list",
            where.query_id,
            where.partition_id,
            list(where.keys),
            where.key_prefix,
            ripe,
            limit,
        )
        return [StateRow(key=key, value=value.encode(), updated_at=updated_at) for key, value, updated_at in rows]

    async def stream_cycle(self, cycle: StreamCycle, batches: Sequence[Batch]) -> StreamCycleResult:
        queues = {batch.queue for batch in batches}

        async def work(
            connection: asyncpg.Connection[Any],
        ) -> tuple[StreamCycleResult, Pushed, Pushed | None]:
            begin = _BEGIN(query_id=cycle.query_id, partition_id=cycle.partition_id)
            if not await self._context.database.value(begin, connection):
                raise refusals.no_stream_query(cycle.query_id)
            await self._pushes.resolve(connection, batches)
            await self._pushes.lock(connection, [Ack(partition_id=cycle.partition_id)], batches)
            place = await self._context.database.on(connection, "partition_place", _PLACE, cycle.partition_id)
            if not place:
                raise refusals.no_partition_id(cycle.partition_id)
            await self._change_state(connection, cycle)
            outcome = await self._stream_ack(connection, cycle)
            pushed = await self._pushes.on(connection, batches)
            dead = outcome is not None and outcome.dead
            forwarded = await self._forwarding.forward(connection, queues) if dead else None
            queue, partition = place[0]
            result = StreamCycleResult(queue, partition, len(cycle.state_ops), pushed.result, outcome)
            return result, pushed, forwarded

        result, pushed, forwarded = await self._pushes.creating(queues, work)
        self._pushes.remember(pushed)
        self._pushes.remember(forwarded)
        return result

    async def _change_state(self, connection: asyncpg.Connection[Any], cycle: StreamCycle) -> None:
        changes = cycle.changes()
        upserts = [(key, value) for key, value in changes.items() if value is not None]
        if changes:
            call = _CHANGE(
                query_id=cycle.query_id,
                partition_id=cycle.partition_id,
                keys=[key for key, _ in upserts],
                values=[value.decode() for _, value in upserts],
                window_ends=[window_end(value) for _, value in upserts],
                deleted=[key for key, value in changes.items() if value is None],
                at=self._context.now(),
            )
            await self._context.database.call(call, connection)

    async def _stream_ack(self, connection: asyncpg.Connection[Any], cycle: StreamCycle) -> AckOutcome | None:
        """End the delivery. If it has already ended, this cycle was applied before, and is refused."""
        for ack in cycle.acks():
            call = _ACK(
                lease_id=lease_uuid(ack.lease_id),
                partition_id=ack.partition_id,
                transaction_id=ack.transaction_id,
                group=ack.group,
                status=ack.status,
                error=ack.error,
                release=cycle.release_lease,
                at=self._context.now(),
            )
            [outcome] = item_outcomes([ack], await self._context.database.call(call, connection))
            refuse_failed([outcome], once=True)
            return outcome
        return None
