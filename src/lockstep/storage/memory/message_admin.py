"""Single messages in an operator's hands: remove, retry, bury."""

from __future__ import annotations

from datetime import datetime

from lockstep.core import refusals
from lockstep.core.messages import Receipt, redriven
from lockstep.core.rules import Death, bury, message_status
from lockstep.core.shared import give_up
from lockstep.storage.memory.dead_queue import copy_leased, remove_copy
from lockstep.storage.memory.push import push
from lockstep.storage.memory.queues import put_right
from lockstep.storage.memory.state import Partition, State


def remove_message(state: State, partition_id: int, transaction_id: str, now: datetime) -> None:
    partition, seq = _find(state, partition_id, transaction_id)
    for group, _ in state.cursors(partition):
        cursor = group.seen_at(partition, seq)
        if cursor.leased(now) and cursor.acked < seq <= (cursor.lease_to or 0):
            raise refusals.message_conflict("leased", transaction_id, partition_id)
    state.remove_messages(partition, kept=[(1, seq - 1), (seq + 1, partition.log.last_seq)])
    put_right(state, partition, "unleased", now)


def retry_message(state: State, partition_id: int, transaction_id: str, now: datetime) -> Receipt:
    partition, seq = _find(state, partition_id, transaction_id)
    cursors = [group.seen_at(partition, seq) for group, _ in state.cursors(partition)]
    if message_status(seq, cursors, dead=seq in partition.dead, now=now) not in ("completed", "dead_letter"):
        raise refusals.message_conflict("pending", transaction_id, partition_id)
    entries = [state.dead_letters[one] for one in partition.dead.get(seq, ())]
    if any(copy_leased(entry, now) for entry in entries):
        raise refusals.message_conflict("copy_leased", transaction_id, partition_id)
    pushed = push(state, [redriven(partition.message(seq))], now, overtake=True)
    for entry in entries:
        remove_copy(state, entry, now)
        state.remove_dead_letter(entry.id)
    return pushed[0]


def bury_message(
    state: State, partition_id: int, transaction_id: str, *, group: str, error: str | None, now: datetime
) -> int:
    partition, seq = _find(state, partition_id, transaction_id)
    found = partition.queue.groups.get(group)
    if found is None:
        raise refusals.no_group_on(partition_id, group)
    cursor = found.seen_at(partition, seq)
    if seq <= cursor.acked:
        raise refusals.message_conflict("done", transaction_id, partition_id)
    if cursor.leased(now):
        raise refusals.message_conflict("leased", transaction_id, partition_id)
    if seq <= found.cursors[partition.id].acked:
        kept, attempts = give_up(found.ranges[partition.id], seq)
        state.put_ranges(found, partition, kept)
        death = Death(seq, attempts, error, recorded=True)
    else:
        cursor = found.cursors[partition.id]
        if seq != partition.log.first_after(cursor.acked):
            raise refusals.message_conflict("behind", transaction_id, partition_id)
        buried, death = bury(cursor, seq, error, now)
        state.put_released(found, partition, buried, not_before=now)
    dead_letter_id = state.add_dead_letter(found, partition, death, now)
    assert dead_letter_id is not None
    return dead_letter_id


def _find(state: State, partition_id: int, transaction_id: str) -> tuple[Partition, int]:
    partition = state.partitions.get(partition_id)
    seq = None if partition is None else partition.resolve(transaction_id)
    if partition is None or seq is None:
        raise refusals.no_message(transaction_id, partition_id)
    return partition, seq
