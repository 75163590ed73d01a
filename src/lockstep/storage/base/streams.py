"""Stream queries: their configuration, their state, and their cycles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lockstep.core.messages import Batch
from lockstep.core.streams import NewStreamQuery, StateFilter, StateRow, StreamCycle, StreamCycleResult, StreamQuery


class Streams(Protocol):
    """Registers stream queries, and applies their cycles."""

    async def register_stream_query(self, query: NewStreamQuery) -> StreamQuery:
        """Find a stream query by its name, or create it. Its queues need not exist.

        One that is known with another config hash or source queue raises StreamConfigMismatch, and is left as it is;
        with `reset` it takes the new configuration and its state is removed. A new sink queue is always taken.
        """

    async def stream_state(self, where: StateFilter, *, limit: int = 1000) -> list[StateRow]:
        """The state of a query on one partition, by key. Raises StreamQueryNotFound."""

    async def stream_cycle(self, cycle: StreamCycle, batches: Sequence[Batch]) -> StreamCycleResult:
        """One step of a query on one partition: changes of its state, an ack, and pushes, all or nothing. Cycles of the
        same query and partition come one after the other.

        A completed ack ends the live lease of the group on the partition even if it is not all of it; without
        release_lease it keeps it even if it is (`rules.keep_lease`): then the lease has nothing left, and still nobody
        else pops the partition. An ack without success raises TransactionRolledBack with details `outcomes`, and so
        does a noop: a cycle that is sent twice must not be applied twice. Raises QueueFull, StreamQueryNotFound,
        PartitionNotFound. The state goes with its partition.
        """
