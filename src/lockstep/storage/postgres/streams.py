"""Stream queries: registering them, looking into their state, and their cycles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from lockstep.storage.postgres import pushing, scheduling
from lockstep.storage.postgres.delivery import Delivery, item_outcomes, lease_uuid

_REGISTER = "select * from lockstep.register_stream_query($1, $2, $3::text, $4, $5, $6::timestamptz)"
_BEGIN = "select lockstep.begin_cycle($1, $2)"
_PLACE = "select q.name, p.name from lockstep.partition p join lockstep.queue q on q.id = p.queue_id where p.id = $1"
_CHANGE = (
    "select lockstep.change_state($1, $2, $3::text[], $4::text[], $5::double precision[], $6::text[], $7::timestamptz)"
)
_ACK = "select * from lockstep.stream_ack($1::uuid, $2, $3, $4, $5, $6::text, $7, $8::timestamptz)"
_FIND = "select 1 from lockstep.stream_query where id = $1"


class Streams(Delivery):
    async def register_stream_query(self, query: NewStreamQuery) -> StreamQuery:
        rows = await self.database.fetch(
            "register_stream_query",
            _REGISTER,
            query.name,
            query.source_queue,
            query.sink_queue,
            query.config_hash,
            query.reset,
            self.now(),
        )
        query_id, fresh, known_hash, known_source = rows[0]
        if query_id is None:
            raise mismatch(query, config_hash=known_hash, source_queue=known_source)
        return registered(query, query_id, fresh=fresh)

    async def stream_state(self, where: StateFilter, *, limit: int = 1000) -> list[StateRow]:
        if not await self.database.fetch("stream_query_find", _FIND, where.query_id):
            raise refusals.no_stream_query(where.query_id)
        ripe = None if where.ripe_at_or_before_ms is None else float(where.ripe_at_or_before_ms)
        rows = await self._query(
            "stream_state_list",
            where.query_id,
            where.partition_id,
            list(where.keys),
            where.key_prefix,
            ripe,
            limit,
        )
        return [StateRow(key=row[0], value=row[1].encode(), updated_at=row[2]) for row in rows]

    async def stream_cycle(self, cycle: StreamCycle, batches: Sequence[Batch]) -> StreamCycleResult:
        queues = {batch.queue for batch in batches}

        async def work(
            connection: asyncpg.Connection[Any],
        ) -> tuple[StreamCycleResult, pushing.Pushed, pushing.Pushed | None]:
            begun = await self.database.on(connection, "begin_cycle", _BEGIN, cycle.query_id, cycle.partition_id)
            if not begun[0][0]:
                raise refusals.no_stream_query(cycle.query_id)
            await self._converse(scheduling.resolve(batches, self.names, at=self.now()), connection)
            await self._lock_for(connection, [Ack(partition_id=cycle.partition_id)], batches)
            place = await self.database.on(connection, "partition_place", _PLACE, cycle.partition_id)
            if not place:
                raise refusals.no_partition_id(cycle.partition_id)
            await self._change_state(connection, cycle)
            outcome = await self._stream_ack(connection, cycle)
            pushed = await self._converse(self._push_conversation(batches), connection)
            dead = outcome is not None and outcome.dead
            forwarded = await self._forward(connection, queues) if dead else None
            queue, partition = place[0]
            result = StreamCycleResult(queue, partition, len(cycle.state_ops), pushed.result, outcome)
            return result, pushed, forwarded

        result, pushed, forwarded = await self._create_names(queues, work)
        self._remember(pushed)
        self._remember(forwarded)
        return result

    async def _change_state(self, connection: asyncpg.Connection[Any], cycle: StreamCycle) -> None:
        changes = cycle.changes()
        upserts = [(key, value) for key, value in changes.items() if value is not None]
        if changes:
            await self.database.on(
                connection,
                "change_state",
                _CHANGE,
                cycle.query_id,
                cycle.partition_id,
                [key for key, _ in upserts],
                [value.decode() for _, value in upserts],
                [window_end(value) for _, value in upserts],
                [key for key, value in changes.items() if value is None],
                self.now(),
            )

    async def _stream_ack(self, connection: asyncpg.Connection[Any], cycle: StreamCycle) -> AckOutcome | None:
        """End the delivery. One that was ended before means that this cycle was applied before: it is refused."""
        for ack in cycle.acks():
            message = (ack.partition_id, ack.transaction_id, ack.group, ack.status, ack.error)
            rows = await self.database.on(
                connection, "stream_ack", _ACK, lease_uuid(ack.lease_id), *message, cycle.release_lease, self.now()
            )
            [outcome] = item_outcomes([ack], rows)
            refuse_failed([outcome], once=True)
            return outcome
        return None
