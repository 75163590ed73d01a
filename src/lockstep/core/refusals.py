"""Errors that every store words in the same way: missing objects and operations that they do not allow."""

from __future__ import annotations

from typing import Literal

from lockstep.errors import (
    Conflict,
    DeadLetterNotFound,
    GroupNotFound,
    MessageNotFound,
    OperationNotFound,
    PartitionNotFound,
    QueueFull,
    QueueNotFound,
    StreamQueryNotFound,
    TooManyGroups,
    TooManyPartitions,
)

MessageConflict = Literal["leased", "pending", "taken", "copy_leased", "done", "behind"]


def no_queue(queue: str) -> QueueNotFound:
    return QueueNotFound(f"there is no queue {queue!r}", queue=queue)


def no_partition(queue: str, partition: str) -> PartitionNotFound:
    return PartitionNotFound(f"queue {queue!r} has no partition {partition!r}", queue=queue, partition=partition)


def no_partition_id(partition_id: int) -> PartitionNotFound:
    return PartitionNotFound(f"there is no partition {partition_id}", id=partition_id)


def no_group(group: str, queue: str | None = None) -> GroupNotFound:
    """No such group on the queue, or, without a queue, on any queue."""
    if queue is None:
        return GroupNotFound(f"there is no group {group!r}", group=group)
    return GroupNotFound(f"queue {queue!r} has no group {group!r}", queue=queue, group=group)


def no_room_for_group(group: str, limit: int) -> TooManyGroups:
    text = f"the queue has {limit} groups, so group {group!r} is not created (queue_groups_max)"
    return TooManyGroups(text, group=group)


def no_room_for_partitions(*, there: int, new: int, limit: int) -> TooManyPartitions:
    text = f"the queue has {there} partitions, and {new} new ones exceed its limit of {limit} (queue_partitions_max)"
    return TooManyPartitions(text)


def no_group_on(partition_id: int, group: str) -> GroupNotFound:
    return GroupNotFound(f"partition {partition_id} has no group {group!r}", group=group)


def no_message(identity: str, partition_id: int | None = None) -> MessageNotFound:
    """No message with this id; or, in a partition, with this transaction id or message id."""
    if partition_id is None:
        return MessageNotFound(f"there is no message {identity!r}", identity=identity)
    text = f"there is no message {identity!r} in partition {partition_id}"
    return MessageNotFound(text, identity=identity, partition_id=partition_id)


def no_dead_letter(dead_letter_id: int) -> DeadLetterNotFound:
    return DeadLetterNotFound(f"there is no dead letter {dead_letter_id}", id=dead_letter_id)


def no_operation(operation_id: str) -> OperationNotFound:
    return OperationNotFound(f"there is no operation {operation_id}", id=operation_id)


def no_stream_query(query_id: int) -> StreamQueryNotFound:
    return StreamQueryNotFound(f"there is no stream query {query_id}", id=query_id)


def queue_full(queue: str, *, depth: int, max_size: int, new: int) -> QueueFull:
    text = f"queue {queue!r} holds {depth} of at most {max_size} pending messages; {new} more do not fit"
    return QueueFull(text, queue=queue, depth=depth, max_size=max_size)


_CONFLICTS: dict[MessageConflict, str] = {
    "leased": "is under a live lease",
    "pending": "is still to be delivered",
    "taken": "is being redriven by another call",
    "copy_leased": "has a copy in its dead queue that is under a live lease",
    "done": "is done for this group",
    "behind": "is not the next one of this group: others come before it",
}


def message_conflict(reason: MessageConflict, identity: str, partition_id: int) -> Conflict:
    """Why a message can be neither removed, nor retried, nor buried now."""
    return Conflict(f"message {identity!r} in partition {partition_id} {_CONFLICTS[reason]}")
