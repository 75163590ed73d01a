"""Which partition of a balanced queue a push with transaction ids goes to."""

from __future__ import annotations

from hashlib import md5

from lockstep.core.messages import Batch


def first_transaction_id(batch: Batch) -> str | None:
    """The first transaction id that the producer gave."""
    return next(filter(None, batch.columns.transaction_ids or ()), None)


def partition_of(transaction_id: str, partitions: int) -> int:
    """The number of the partition for a transaction id. Transaction ids are unique per partition, so a repeated push
    must reach the partition of its duplicate. lockstep.balanced_partition computes the same."""
    return int.from_bytes(md5(transaction_id.encode(), usedforsecurity=False).digest()[:4], "big") % partitions
