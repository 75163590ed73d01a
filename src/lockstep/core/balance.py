"""Where a push to a balanced queue goes whose messages have transaction ids."""

from __future__ import annotations

from hashlib import md5

from lockstep.core.messages import Batch


def first_transaction_id(batch: Batch) -> str | None:
    """The first transaction id that the producer gave."""
    return next(filter(None, batch.columns.transaction_ids or ()), None)


def partition_of(transaction_id: str, partitions: int) -> int:
    """The number of the partition for a transaction id. A repeated push must meet its duplicate, and the ids are
    unique per partition only. lockstep.balanced_partition computes the same."""
    return int.from_bytes(md5(transaction_id.encode(), usedforsecurity=False).digest()[:4], "big") % partitions
