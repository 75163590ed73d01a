"""The ends of deliveries: ack and transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from lockstep.core import shared
from lockstep.core.endings import ENDINGS
from lockstep.core.messages import Batch
from lockstep.core.records import Ack, AckError, AckOutcome, TransactionResult, refuse_failed
from lockstep.core.rules import AckItem, Cursor, ItemOutcome, Settlement, settle
from lockstep.errors import LockstepError
from lockstep.storage.memory.push import push
from lockstep.storage.memory.shared import stored_seqs
from lockstep.storage.memory.state import Group, Partition, State

_Place = tuple[Group, Partition]


def ack(state: State, acks: Sequence[Ack], now: datetime) -> list[AckOutcome]:
    """Apply the acks; one outcome each, in order."""
    decided = _decide(state, acks, now)
    _apply(state, decided, now)
    return decided.outcomes()


def transaction(
    state: State, acks: Sequence[Ack], batches: Sequence[Batch], now: datetime, *, once: bool = False
) -> TransactionResult:
    """Acks and then pushes; if the pushes fail, the changes of the acks are undone. With `once`, a noop also fails."""
    decided = _decide(state, acks, now)
    outcomes = decided.outcomes()
    refuse_failed(outcomes, once=once)
    before = {place: place[0].cursors[place[1].id] for place in decided.settlements}
    in_flight = {place: place[0].ranges.get(place[1].id, []) for place in decided.shared}
    dead_letter_ids = _apply(state, decided, now)
    try:
        return TransactionResult(outcomes, push(state, batches, now))
    except LockstepError:
        for (group, partition), cursor in before.items():
            state.put(group, partition, cursor)
        for (group, partition), ranges in in_flight.items():
            state.put_ranges(group, partition, ranges)
        for dead_letter_id in dead_letter_ids:
            state.remove_dead_letter(dead_letter_id)
        raise


@dataclass(slots=True, frozen=True)
class _AckedPart:
    """The outcome of one ack in one of the partitions that it applies to."""

    partition: Partition
    outcome: ItemOutcome
    released: bool


@dataclass(slots=True)
class _Decided:
    """The effects of the acks of one call. Nothing is changed yet."""

    errors: dict[int, AckError]
    """By index: acks that speak for no cursor."""
    parts: list[list[_AckedPart]]
    """By index: those that do."""
    settlements: dict[_Place, Settlement] = field(default_factory=dict)
    shared: dict[_Place, shared.SharedSettlement] = field(default_factory=dict)
    """Those of shared groups."""

    def outcomes(self) -> list[AckOutcome]:
        return [_joined(index, parts, self.errors.get(index)) for index, parts in enumerate(self.parts)]


def _joined(index: int, parts: Sequence[_AckedPart], error: AckError | None) -> AckOutcome:
    error = next((part.outcome.error for part in parts if part.outcome.error is not None), error)
    return AckOutcome(
        index=index,
        success=error is None,
        error=error,
        noop=bool(parts) and all(part.outcome.noop for part in parts),
        released=any(part.released for part in parts),
        dead=any(part.outcome.dead for part in parts),
        messages=sum(part.outcome.messages for part in parts),
        queue=parts[0].partition.queue.name if parts else None,
        partition=parts[0].partition.name if parts else None,
    )


def _decide(state: State, acks: Sequence[Ack], now: datetime) -> _Decided:
    decided = _Decided({}, [[] for _ in acks])
    items: dict[_Place, list[AckItem]] = {}
    for index, one in enumerate(acks):
        found = _by_lease(state, one) if one.transaction_id is None else _by_message(state, one)
        if isinstance(found, str):
            decided.errors[index] = found
            continue
        whole = one.transaction_id is None and one.seq is None
        for place, seq in found:
            item = AckItem(index, seq, one.status, one.lease_id, one.error, one.retry_at, whole)
            items.setdefault(place, []).append(item)
    # By partition id, so that the first part of an ack is that of its first partition.
    for place in sorted(items, key=lambda place: place[1].id):
        group, partition = place
        if group.mode == "shared":
            _decide_shared(decided, place, items[place], now)
            continue
        settlement = settle(group.cursors[partition.id], items[place], group.queue.options, now)
        decided.settlements[place] = settlement
        for outcome in settlement.outcomes:
            released = settlement.released and outcome.error is None
            decided.parts[outcome.index].append(_AckedPart(partition, outcome, released))
    return decided


def _decide_shared(decided: _Decided, place: _Place, items: Sequence[AckItem], now: datetime) -> None:
    group, partition = place
    ranges = group.ranges.get(partition.id, [])
    stored = partial(stored_seqs, partition)
    settlement = shared.settle(group.cursors[partition.id], ranges, items, group.queue.options, now, stored)
    decided.shared[place] = settlement
    for outcome in settlement.outcomes:
        released = outcome.index in settlement.put_back
        decided.parts[outcome.index].append(_AckedPart(partition, outcome, released))


_Found = list[tuple[_Place, int | None]] | AckError
"""The cursors that an ack is for, with the seq for each; or the reason that there are none."""


def _by_message(state: State, one: Ack) -> _Found:
    partition = state.partitions.get(one.partition_id or 0)
    group = None if partition is None else partition.queue.groups.get(one.group)
    if partition is None or (group is None and one.lease_id is None):
        return "unresolvable"
    if group is None:
        return "lease_lost"
    return [((group, partition), partition.resolve(one.transaction_id or ""))]


def _by_lease(state: State, one: Ack) -> _Found:
    if one.partition_id is not None and one.partition_id not in state.partitions:
        return "unresolvable"
    holders = [holder for holder in state.leaseholders(one.lease_id or "") if one.partition_id in (None, holder[1].id)]
    if not holders:
        return "lease_lost"
    if one.seq is not None and len(holders) > 1:
        return "unresolvable"
    return [(holder, _seq(holder, one)) for holder in holders]


def _seq(holder: _Place, one: Ack) -> int | None:
    """The target of an ack by lease in one partition: its seq, else all of the lease, else the head."""
    group, partition = holder
    cursor = group.cursors[partition.id]
    if one.seq is not None or group.mode == "shared":
        return one.seq
    if ENDINGS[one.status].completes:
        return cursor.lease_to
    return partition.log.first_after(cursor.acked) or cursor.lease_to


def _apply(state: State, decided: _Decided, now: datetime) -> list[int]:
    """Apply the changes; returns the ids of the new dead letters."""
    dead_letter_ids = []
    deaths = [(place, settlement.deaths) for place, settlement in decided.settlements.items()]
    deaths += [(place, settlement.deaths) for place, settlement in decided.shared.items()]
    for (group, partition), found in deaths:
        for death in found:
            dead_letter_id = state.add_dead_letter(group, partition, death, now)
            if dead_letter_id is not None:
                dead_letter_ids.append(dead_letter_id)
    for (group, partition), in_flight in decided.shared.items():
        state.put_ranges(group, partition, in_flight.ranges)
    for (group, partition), settlement in decided.settlements.items():
        if _is_due_anew(group.cursors[partition.id], settlement):
            not_before = settlement.not_before or now
            state.put_released(group, partition, settlement.cursor, not_before=not_before)
        else:
            state.put(group, partition, settlement.cursor)
    return dead_letter_ids


def _is_due_anew(before: Cursor, settlement: Settlement) -> bool:
    after = settlement.cursor
    moved_free = after.lease_id is None and after.acked > before.acked
    return not settlement.stopped and (settlement.released or moved_free)
