"""Dead queues: pushing what died there, and sending it back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice

from lockstep.core.dead_queue import Origin, dead_copy, origin_of, sent_back
from lockstep.core.messages import Batch, Message
from lockstep.core.names import QUEUE_MODE
from lockstep.core.policy import QueueOptions
from lockstep.errors import Conflict, InvalidOption
from lockstep.storage.memory.push import push
from lockstep.storage.memory.queues import put_right
from lockstep.storage.memory.state import DeadEntry, Partition, State


def check_dead_queue(state: State, queue: str, options: QueueOptions) -> None:
    """Whether a queue may have the dead queue that it asks for, or be one. Raises InvalidOption."""
    sources = sorted(one.name for one in state.queues.values() if one.options.dead_queue == queue)
    name = options.dead_queue
    if name is None:
        if sources and options.max_size:
            raise InvalidOption(f"queue {queue} is the dead queue of {sources[0]}: it cannot have a max_size")
        return
    if name == queue:
        raise InvalidOption("a queue cannot be its own dead queue")
    if name not in state.queues:
        raise InvalidOption(f"the dead queue {name} does not exist")
    if state.queues[name].options.dead_queue is not None:
        raise InvalidOption(f"the dead queue {name} has a dead queue of its own")
    if state.queues[name].options.max_size:
        raise InvalidOption(f"the dead queue {name} has a max_size: a message that dies must find room")
    if sources:
        raise InvalidOption(f"queue {queue} is the dead queue of {sources[0]}: it cannot have one of its own")


def check_unused(state: State, queue: str) -> None:
    """Raises Conflict if other queues need this one."""
    sources = sorted(one.name for one in state.queues.values() if one.options.dead_queue == queue)
    if sources:
        raise Conflict(f"queue {queue} is the dead queue of {sources[0]}")


def forward(state: State, now: datetime) -> None:
    """Push what died in this call to the dead queues; it cannot fail, because they have no max_size."""
    dying, state.dying = state.dying, []
    batches = [_copy(state.dead_letters[one]) for one in dying if one in state.dead_letters]
    if batches:
        push(state, batches, now, overtake=True)


def _copy(entry: DeadEntry) -> Batch:
    dead_queue = entry.partition.queue.options.dead_queue
    assert dead_queue is not None
    message = entry.partition.message(entry.seq)
    return dead_copy(message, dead_queue, group=entry.group, attempts=entry.attempts, error=entry.error)


def redrive_queue(state: State, queue: str, *, limit: int, now: datetime) -> int:
    chosen = list(islice(_copies(state, queue, now), limit))
    push(state, [sent_back(message, origin) for _, message, origin in chosen], now, overtake=True)
    for partition, message, origin in chosen:
        seq = message.seq
        state.remove_messages(partition, kept=[(1, seq - 1), (seq + 1, partition.log.last_seq)])
        _remove_dead_letters(state, origin)
    for partition in dict.fromkeys(partition for partition, _, _ in chosen):
        put_right(state, partition, "unleased", now)
    return len(chosen)


def _copies(state: State, queue: str, now: datetime) -> Iterator[tuple[Partition, Message, Origin]]:
    """Messages that may go back to a queue that exists, with where they came from, by partition id and seq."""
    for partition in state.queue(queue).partitions.values():
        for run in partition.log.runs:
            for message in run.messages():
                origin = origin_of(message)
                known = origin is not None and origin.queue in state.queues
                if origin is not None and known and _is_takeable(partition, message.seq, now):
                    yield partition, message, origin


def _is_takeable(partition: Partition, seq: int, now: datetime) -> bool:
    """Not done by queue mode, and under no live lease."""
    for group in partition.queue.groups.values():
        cursor = group.seen_at(partition, seq)
        if group.name == QUEUE_MODE and seq <= cursor.acked:
            return False
        if cursor.leased(now) and cursor.acked < seq <= (cursor.lease_to or 0):
            return False
    return True


def _remove_dead_letters(state: State, origin: Origin) -> None:
    partition = state.queues[origin.queue].partitions.get(origin.partition)
    if partition is None:
        return
    for dead_letter_id in list(partition.dead.get(origin.seq, ())):
        if state.dead_letters[dead_letter_id].group == origin.group:
            state.remove_dead_letter(dead_letter_id)
