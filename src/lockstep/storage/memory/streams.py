"""Stream queries: registration, state and cycles."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import islice

import msgspec

from lockstep.core import refusals
from lockstep.core.messages import Batch
from lockstep.core.records import AckOutcome
from lockstep.core.rules import Cursor, keep_lease, release
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
from lockstep.storage.memory.ack import transaction
from lockstep.storage.memory.dead_queue import DeadQueues
from lockstep.storage.memory.state import Partition, State, StoredQuery


class MemoryStreams:
    """Stream queries."""

    def __init__(self, state: State, dead_queues: DeadQueues) -> None:
        self._state = state
        self._dead_queues = dead_queues

    async def register_stream_query(self, query: NewStreamQuery) -> StreamQuery:
        state = self._state
        known = state.stream_queries.get(query.name)
        if known is None:
            known = state.stream_queries[query.name] = StoredQuery(next(state.stream_query_ids), query)
            return registered(query, known.id, fresh=True)
        asked = known.asked
        if not query.reset and (asked.config_hash, asked.source_queue) != (query.config_hash, query.source_queue):
            raise mismatch(query, config_hash=asked.config_hash, source_queue=asked.source_queue)
        known.asked = query
        if query.reset:
            known.rows.clear()
        return registered(query, known.id, fresh=False)

    async def stream_state(self, where: StateFilter, *, limit: int = 1000) -> list[StateRow]:
        state = self._state
        rows = _query(state, where.query_id).rows.get(where.partition_id, {})
        return list(islice((rows[key] for key in sorted(rows) if _matches(rows[key], where)), limit))

    async def stream_cycle(self, cycle: StreamCycle, batches: Sequence[Batch]) -> StreamCycleResult:
        """The parts that can fail run first, and undo their changes."""
        state = self._state
        with self._dead_queues.forwarding() as now:
            query = _query(state, cycle.query_id)
            partition = state.partitions.get(cycle.partition_id)
            if partition is None:
                raise refusals.no_partition_id(cycle.partition_id)
            group = partition.queue.groups.get(cycle.group)
            held = None if group is None else group.cursors[partition.id]
            result = transaction(state, cycle.acks(), batches, now, once=True)
            outcome = result.acks[0] if result.acks else None
            if outcome is not None and held is not None:
                outcome = _settle_lease(state, partition, cycle, held, outcome, now)
            rows = query.rows.setdefault(partition.id, {})
            for key, value in cycle.changes().items():
                if value is None:
                    rows.pop(key, None)
                else:
                    rows[key] = StateRow(key=key, value=value, updated_at=now)
            return StreamCycleResult(partition.queue.name, partition.name, len(cycle.state_ops), result.pushed, outcome)


def _matches(row: StateRow, where: StateFilter) -> bool:
    if where.keys and row.key not in where.keys:
        return False
    if where.key_prefix is not None and not row.key.startswith(where.key_prefix):
        return False
    if where.ripe_at_or_before_ms is None:
        return True
    end = window_end(row.value)
    return end is not None and end <= float(where.ripe_at_or_before_ms)


def _settle_lease(
    state: State, partition: Partition, cycle: StreamCycle, held: Cursor, outcome: AckOutcome, now: datetime
) -> AckOutcome:
    """A completed ack ends the lease, or keeps it, as the cycle says, however much of it is done."""
    assert cycle.ack is not None
    if cycle.ack.status != "completed" or not held.leased(now):
        return outcome
    group = partition.queue.group(cycle.group)
    settled = group.cursors[partition.id]
    if not cycle.release_lease:
        state.put(group, partition, keep_lease(held, settled))
    elif settled.lease_id is not None:
        state.put_released(group, partition, release(settled), not_before=now)
    return msgspec.structs.replace(outcome, released=cycle.release_lease)


def _query(state: State, query_id: int) -> StoredQuery:
    for query in state.stream_queries.values():
        if query.id == query_id:
            return query
    raise refusals.no_stream_query(query_id)
