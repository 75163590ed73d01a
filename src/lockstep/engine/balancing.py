"""Balanced queues: which numbered partition takes a batch that names none.

The store reports from time to time how much is pending in each partition; in between, messages pushed here are added.
Of two partitions chosen at random, the one with less pending takes the batch. That spreads almost as well as choosing
the emptiest of all, costs nothing, and servers with the same figures do not all choose the same partition. A batch is
not split, so that the messages of one push stay in order.

A batch with transaction ids goes to the partition that the first id determines: a repeated push has to meet its
duplicate there.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lockstep.config import Config
from lockstep.core.balance import first_transaction_id, partition_of
from lockstep.core.messages import Batch
from lockstep.core.names import DEFAULT_PARTITION
from lockstep.storage.base import Store


@dataclass(slots=True)
class _KnownPending:
    pending: list[int]
    """By partition number, to the knowledge of this process."""
    until: float


class Balancing:
    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._interval_seconds = config.balance_interval_seconds
        self._known: dict[str, _KnownPending] = {}

    async def place(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        """The batches, with a partition for each that names none and is for a balanced queue."""
        if DEFAULT_PARTITION not in [batch.partition for batch in batches]:
            return batches
        return [batch if batch.partition != DEFAULT_PARTITION else await self._place(batch) for batch in batches]

    async def _place(self, batch: Batch) -> Batch:
        pending = await self._pending(batch.queue)
        if not pending:
            return batch
        number = _choose(batch, pending)
        pending[number] += len(batch.columns)
        return replace(batch, partition=str(number))

    async def _pending(self, queue: str) -> list[int]:
        """How much is pending in each partition of a balanced queue; empty for other queues. The store has the number
        of partitions in memory, so a new number takes effect as soon as the store knows it."""
        partitions = await self._store.balanced(queue)
        known = self._known.get(queue)
        if known is not None and len(known.pending) == partitions and known.until > time.monotonic():
            return known.pending
        pending = await self._store.balance(queue) if partitions else []
        if pending:
            self._known[queue] = _KnownPending(pending, time.monotonic() + self._interval_seconds)
        else:
            self._known.pop(queue, None)
        return pending


def _choose(batch: Batch, pending: Sequence[int]) -> int:
    transaction_id = first_transaction_id(batch)
    if transaction_id is not None:
        return partition_of(transaction_id, len(pending))
    candidates = random.sample(range(len(pending)), min(2, len(pending)))
    return min(candidates, key=pending.__getitem__)
