"""What is refused is told in the same words, and with the same details, by every store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lockstep.core.records import Ack, MessageFilter, Position, Subscription
from lockstep.core.streams import StreamCycle
from lockstep.core.traces import NewTraceEvent
from lockstep.errors import Conflict, GroupNotFound, NotFound, QueueFull, TransactionRolledBack
from lockstep.storage.base import Store
from support.builders import ack, configure, pop, push_tagged
from support.clock import SetClock

START = Position("start")
NO_ID = "01890000-0000-7000-8000-000000000000"

_QUEUE = ("there is no queue 'nope'", {"queue": "nope"})
_PARTITION = ("queue 'q' has no partition 'nope'", {"queue": "q", "partition": "nope"})
_GROUP = ("there is no group 'nope'", {"group": "nope"})
_GROUP_OF = ("queue 'q' has no group 'nope'", {"queue": "q", "group": "nope"})
_MESSAGE = ("there is no message 'nope' in partition 9", {"identity": "nope", "partition_id": 9})

Call = Callable[[Store], Awaitable[Any]]

CALLS: dict[str, tuple[Call, tuple[str, dict[str, Any]]]] = {
    "queue": (lambda store: store.queue("nope"), _QUEUE),
    "partitions": (lambda store: store.partitions("nope"), _QUEUE),
    "update_queue": (lambda store: store.update_queue("nope", {"priority": 1}), _QUEUE),
    "clear": (lambda store: store.clear("nope"), _QUEUE),
    "partition": (lambda store: store.partition("q", "nope"), _PARTITION),
    "clear of a partition": (lambda store: store.clear("q", partition="nope"), _PARTITION),
    "messages": (lambda store: store.messages(MessageFilter(queue="q", partition="nope")), _PARTITION),
    "seek": (lambda store: store.seek("q", "nope", START), _GROUP_OF),
    "lag": (lambda store: store.lag("q", group="nope"), _GROUP_OF),
    "depth": (lambda store: store.depth("q", "nope"), _GROUP_OF),
    "pause_group": (lambda store: store.pause_group("q", "nope"), _GROUP_OF),
    "delete_group": (lambda store: store.delete_group("nope"), _GROUP),
    "delete_group of a queue": (lambda store: store.delete_group("nope", queue="q"), _GROUP_OF),
    "set_subscription": (lambda store: store.set_subscription("nope", Subscription()), _GROUP),
    "message by id": (
        lambda store: store.message(NO_ID),
        (f"there is no message '{NO_ID}'", {"identity": NO_ID}),
    ),
    "message": (lambda store: store.message("nope", partition_id=9), _MESSAGE),
    "remove_message": (lambda store: store.remove_message(9, "nope"), _MESSAGE),
    "retry_message": (lambda store: store.retry_message(9, "nope"), _MESSAGE),
    "bury_message": (lambda store: store.bury_message(9, "nope"), _MESSAGE),
    "record_trace": (
        lambda store: store.record_trace(NewTraceEvent(partition_id=9, transaction_id="nope", data=b"{}")),
        _MESSAGE,
    ),
    "dead_letter": (lambda store: store.dead_letter(9), ("there is no dead letter 9", {"id": 9})),
    "stream_cycle": (
        lambda store: store.stream_cycle(StreamCycle(query_id=9, partition_id=1), []),
        ("there is no stream query 9", {"id": 9}),
    ),
    "operation": (lambda store: store.operation(NO_ID), (f"there is no operation {NO_ID}", {"id": NO_ID})),
    "retry_operation": (lambda store: store.retry_operation(NO_ID), (f"there is no operation {NO_ID}", {"id": NO_ID})),
}


@pytest.mark.parametrize("name", CALLS)
async def test_what_is_missing_is_named(store: Store, name: str) -> None:
    await configure(store, "q")
    call, (message, details) = CALLS[name]

    with pytest.raises(NotFound) as caught:
        await call(store)

    assert (caught.value.message, caught.value.details) == (message, details)


async def test_group_that_a_partition_does_not_have_is_named(store: Store) -> None:
    [receipt] = await push_tagged(store, "q", "a")
    with pytest.raises(GroupNotFound, match=f"partition {receipt.partition_id} has no group 'nope'"):
        await store.bury_message(receipt.partition_id, "a", group="nope")


async def test_message_that_cannot_be_touched_now_is_named(store: Store) -> None:
    partition_id = (await push_tagged(store, "q", "a", "b"))[0].partition_id
    with pytest.raises(Conflict, match=f"message 'a' in partition {partition_id} is still to be delivered"):
        await store.retry_message(partition_id, "a")
    await pop(store, "q", batch=1, auto_ack=True, group="g")
    with pytest.raises(Conflict, match=f"message 'a' in partition {partition_id} is done for this group"):
        await store.bury_message(partition_id, "a", group="g")
    await pop(store, "q", batch=1)
    with pytest.raises(Conflict, match=f"message 'a' in partition {partition_id} is under a live lease"):
        await store.remove_message(partition_id, "a")


async def test_full_queue_is_told(store: Store) -> None:
    await configure(store, "q", max_size=3)
    await push_tagged(store, "q", "a", "b")
    with pytest.raises(QueueFull) as caught:
        await push_tagged(store, "q", "c", "d")
    assert caught.value.message == "queue 'q' holds 2 of at most 3 pending messages; 2 more do not fit"
    assert caught.value.details == {"queue": "q", "depth": 2, "max_size": 3}


async def test_transaction_names_the_ack_that_failed(store: Store) -> None:
    await push_tagged(store, "q", "a")
    popped = await pop(store, "q")
    acks = [Ack(lease_id=popped.lease_id), Ack(lease_id=NO_ID)]
    with pytest.raises(TransactionRolledBack, match="transaction rolled back: ack 1 failed with lease_lost"):
        await store.transaction(acks, [])


async def test_ack_under_an_expired_lease_names_its_place(store: Store, clock: SetClock) -> None:
    await push_tagged(store, "q", "a", partition="p")
    popped = await pop(store, "q", lease_seconds=10)
    clock.advance(10)
    outcome = await ack(store, lease_id=popped.lease_id)
    assert (outcome.error, outcome.queue, outcome.partition) == ("lease_lost", "q", "p")
