"""Live leases on the wire."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from lockstep.core.records import LeaseInfo
from lockstep.core.wire.times import timestamp


class LeaseRow(Struct, rename="camel", kw_only=True):
    lease_id: str
    queue: str
    partition: str
    partition_id: str
    consumer_group: str
    first_seq: int
    last_seq: int
    attempt: int
    """1 for the first delivery."""
    leased_at: str
    expires_at: str


class LeasesAnswer(Struct):
    leases: list[LeaseRow]
    """Sorted by deadline."""


def leases_answer(leases: Sequence[LeaseInfo]) -> LeasesAnswer:
    return LeasesAnswer([_row(lease) for lease in leases])


def _row(lease: LeaseInfo) -> LeaseRow:
    return LeaseRow(
        lease_id=lease.lease_id,
        queue=lease.queue,
        partition=lease.partition,
        partition_id=str(lease.partition_id),
        consumer_group=lease.group,
        first_seq=lease.first_seq,
        last_seq=lease.last_seq,
        attempt=lease.attempt,
        leased_at=timestamp(lease.leased_at),
        expires_at=timestamp(lease.expires_at),
    )
