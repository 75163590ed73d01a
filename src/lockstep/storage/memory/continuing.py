"""Continued leases: an ack of everything that they hold, and a pop that begins with their partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from lockstep.core.records import Ack, AckOutcome, Continued, NextRequest, Popped
from lockstep.core.rules import give_way, is_kept, share
from lockstep.storage.memory.ack import ack
from lockstep.storage.memory.pop import OrderedClaims, groups_of, pop_of
from lockstep.storage.memory.state import Group, Partition, State


@dataclass(frozen=True, slots=True)
class _HeldPartition:
    """A partition of an ordered group that a lease holds."""

    group: Group
    partition: Partition
    leased_at: datetime


@dataclass(slots=True)
class _Continuing:
    """A request whose lease was live, and its messages so far."""

    groups: Sequence[Group]
    held: Sequence[_HeldPartition]
    claims: OrderedClaims


def next_leases(state: State, requests: Sequence[NextRequest], hold: timedelta, now: datetime) -> list[Continued]:
    """Complete the leases, then lease for each request: first the continued partitions of all, then other due ones."""
    groups = [groups_of(state, request.pop, now) for request in requests]
    held = [_held(state, request.lease_id) for request in requests]
    acked = _ack(state, requests, now)
    going_on = {
        index: _Continuing(groups[index], held[index], OrderedClaims(state, request.pop, now))
        for index, request in enumerate(requests)
        if acked[index].success
    }
    for index, one in going_on.items():
        _keep(state, requests[index], one, hold, now)
    popped = [Popped(request.pop.group) for request in requests]
    for index, one in going_on.items():
        popped[index] = pop_of(state, requests[index].pop, one.groups, now, one.claims)
    for index in range(len(requests)):
        acked[index] = _with_released(acked[index], requests[index], held[index], popped[index])
    return [Continued(*pair) for pair in zip(acked, popped, strict=True)]


def _held(state: State, lease_id: str) -> list[_HeldPartition]:
    return [
        _HeldPartition(group, partition, cursor.leased_at)
        for group, partition in state.leaseholders(lease_id)
        if (cursor := group.cursors[partition.id]).leased_at is not None and cursor.lease_id == lease_id
    ]


def _ack(state: State, requests: Iterable[NextRequest], now: datetime) -> list[AckOutcome]:
    """The outcomes of the leases; a lease that was named before counts as acknowledged after that."""
    outcomes = []
    seen: set[str] = set()
    for index, request in enumerate(requests):
        [outcome] = ack(state, [Ack(lease_id=request.lease_id)], now)
        if request.lease_id in seen:
            outcome = AckOutcome(index=index, success=False, error="lease_lost")
        seen.add(request.lease_id)
        outcomes.append(msgspec.structs.replace(outcome, index=index))
    return outcomes


def _keep(state: State, request: NextRequest, one: _Continuing, hold: timedelta, now: datetime) -> None:
    """Lease again the partitions of the lease that are kept and have something; give way with the others."""
    kept = []
    for held in one.held:
        cursor = held.group.cursors[held.partition.id]
        if not is_kept(held.leased_at, hold, now):
            if request.give_way:
                state.put(held.group, held.partition, give_way(cursor, now))
        elif _may_keep(request, one, held) and cursor.due(now):
            kept.append(held)
    kept = kept[: min(request.pop.partitions, request.pop.batch)]
    for place, held in enumerate(kept):
        most = share(one.claims.messages_left, len(kept) - place)
        one.claims.claim(held.group, held.partition, most=most, since=held.leased_at)


def _may_keep(request: NextRequest, one: _Continuing, held: _HeldPartition) -> bool:
    """Several queues are served by priority, and the partitions of a balanced queue by how full they are."""
    return (
        request.pop.queue is not None
        and held.group in one.groups
        and held.group.paused_at is None
        and not held.group.queue.options.partitions
        and request.pop.partition in (None, held.partition.name)
    )


def _with_released(
    outcome: AckOutcome, request: NextRequest, held: Iterable[_HeldPartition], popped: Popped
) -> AckOutcome:
    """Set in the outcome whether the lease leaves messages to others."""
    cursors = [one.group.cursors[one.partition.id] for one in held if one.partition.id not in popped.partition_ids]
    more = any(cursor.due_at is not None and cursor.lease_id != request.lease_id for cursor in cursors)
    return msgspec.structs.replace(outcome, released=more)
