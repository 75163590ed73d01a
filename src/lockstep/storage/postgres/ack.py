"""The calls that end deliveries, and the interpretation of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from lockstep.core.ids import is_canonical_uuid, is_shared_lease
from lockstep.core.records import Ack, AckError, AckOutcome
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.calls import Call


class AckedLease(NamedTuple):
    """What completing a lease did in one of its partitions."""

    lease_id: UUID
    partition_id: int
    partition_name: str
    queue_name: str
    messages: int
    expired: bool
    shared: bool


class AckedItem(NamedTuple):
    """The effect of an ack on one of its cursors; items are numbered from 1."""

    item: int
    error: AckError | None
    noop: bool
    released: bool
    dead: bool
    messages: int
    queue_name: str | None
    partition_name: str | None


_ACK_LEASES = sql.procedure("ack_leases", AckedLease)
_COMPLETE = sql.procedure("shared_complete", AckedLease, label="ack_leases")
_ACK_ITEMS = sql.procedure("ack_items", AckedItem)
_NO_LEASE = "00000000-0000-0000-0000-000000000000"


def lease_uuid(lease_id: str | None) -> str | None:
    """An invalid lease id also counts as a lost lease."""
    return lease_id if lease_id is None or is_canonical_uuid(lease_id) else _NO_LEASE


def ack_leases_call(acks: Sequence[Ack], at: datetime | None, lock_seconds: float | None) -> Call[AckedLease]:
    """Completes leases of any kind; skips the part for ordered groups if no lease belongs to one."""
    procedure = _COMPLETE if all([is_shared_lease(ack.lease_id) for ack in acks]) else _ACK_LEASES
    return procedure.within(lock_seconds, lease_ids=[lease_uuid(ack.lease_id) for ack in acks], at=at)


def lease_outcomes(acks: Sequence[Ack], rows: list[AckedLease]) -> list[AckOutcome]:
    by_lease: dict[str, list[AckedLease]] = {}
    for row in rows:
        by_lease.setdefault(str(row.lease_id), []).append(row)
    seen: set[str | None] = set()
    outcomes = []
    for index, ack in enumerate(acks):
        found = by_lease.get(ack.lease_id or "")
        if found is None:
            outcomes.append(AckOutcome(index=index, success=False, error="lease_lost"))
            continue
        again = ack.lease_id in seen
        seen.add(ack.lease_id)
        live = [row for row in found if not row.expired]
        outcomes.append(
            AckOutcome(
                index=index,
                success=len(live) == len(found),
                error=None if len(live) == len(found) else "lease_lost",
                noop=again,
                released=any([not row.shared for row in live]),
                messages=0 if again else sum([row.messages for row in live]),
                queue=found[0].queue_name,
                partition=found[0].partition_name,
            )
        )
    return outcomes


def ack_items_call(acks: Sequence[Ack], at: datetime | None, lock_seconds: float | None = None) -> Call[AckedItem]:
    return _ACK_ITEMS.within(
        lock_seconds,
        lease_ids=[lease_uuid(ack.lease_id) for ack in acks],
        partition_ids=[ack.partition_id for ack in acks],
        seqs=[ack.seq for ack in acks],
        transaction_ids=[ack.transaction_id for ack in acks],
        groups=[ack.group for ack in acks],
        statuses=[ack.status for ack in acks],
        errors=[ack.error for ack in acks],
        retry_ats=[ack.retry_at for ack in acks],
        at=at,
    )


def item_outcomes(acks: Sequence[Ack], rows: list[AckedItem]) -> list[AckOutcome]:
    by_item: dict[int, list[AckedItem]] = {}
    for row in rows:
        by_item.setdefault(row.item - 1, []).append(row)
    return [_item_outcome(index, by_item[index]) for index in range(len(acks))]


def _item_outcome(index: int, rows: list[AckedItem]) -> AckOutcome:
    """One outcome for all cursors of an ack: the first error counts."""
    error = next((row.error for row in rows if row.error is not None), None)
    return AckOutcome(
        index=index,
        success=error is None,
        error=error,
        noop=all(row.noop for row in rows),
        released=any(row.released for row in rows),
        dead=any(row.dead for row in rows),
        messages=sum(row.messages for row in rows),
        queue=rows[0].queue_name,
        partition=rows[0].partition_name,
    )
