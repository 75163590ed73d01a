"""Shared groups in an operator's hands: what is seen of what is in flight, and what clears, moves or removes it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lockstep.core.endings import AckStatus
from lockstep.core.maintenance import PruneKind
from lockstep.core.records import Ack, DeadLetterFilter, Popped, Position
from lockstep.errors import Conflict, QueueFull
from lockstep.storage.base import Store
from support.builders import ack, attempts_of, batch, configure, lag_of, listed, pop, pop_all, push_n, seqs
from support.clock import SetClock

GROUP = "workers"


async def lease(store: Store, count: int = 1, **request: Any) -> Popped:
    return await pop(store, "q", group=GROUP, mode="shared", batch=count, **request)


def ack_in(popped: Popped, number: int, status: AckStatus = "completed", **fields: Any) -> Ack:
    message = list(popped.messages())[number]
    return Ack(lease_id=popped.lease_id, partition_id=message.partition_id, seq=message.seq, status=status, **fields)


async def in_all_states(store: Store, clock: SetClock) -> Popped:
    """Of 8 messages: 1 and 5 are leased, 2 is done, 3 waits, 4 is done, and 6 to 8 are new. Returns the lease."""
    await push_n(store, "q", 8)
    popped = await lease(store, 5, lease_seconds=100)
    retry_at = clock.now + timedelta(seconds=10)
    await store.ack([ack_in(popped, 1), ack_in(popped, 2, "failed", retry_at=retry_at), ack_in(popped, 3)])
    return popped


# --- Looking


async def test_lag_says_what_is_new_in_flight_and_to_be_retried(store: Store, clock: SetClock) -> None:
    await in_all_states(store, clock)
    lag = await lag_of(store, "q", group=GROUP)
    assert (lag.acked, lag.last_seq, lag.lag, lag.in_flight, lag.retrying) == (0, 8, 6, 2, 1)
    assert (lag.leased, lag.due_at, lag.oldest_at, lag.stopped) == (True, clock.now, clock.now, False)
    await lease(store, 3)
    lag = await lag_of(store, "q", group=GROUP)
    assert (lag.in_flight, lag.due_at) == (5, clock.now + timedelta(seconds=10))


async def test_pending_counts_what_is_not_completed(store: Store, clock: SetClock) -> None:
    await in_all_states(store, clock)
    depth = await store.depth("q", GROUP)
    assert (depth.pending, depth.partitions_pending, depth.leased) == (6, 1, 2)
    [group] = await store.groups(queue="q")
    assert (group.lag, group.partitions_with_lag, group.leases, group.mode) == (6, 1, 1, "shared")
    queue = await store.queue("q")
    assert (queue.pending, queue.processing, queue.messages) == (6, 2, 8)
    partition = await store.partition("q", "Default")
    assert (partition.pending, partition.processing) == (6, 2)
    overview = await store.overview()
    assert (overview.pending, overview.processing, overview.lag_messages.maximum) == (6, 2, 6)


async def test_messages_have_their_own_status(store: Store, clock: SetClock) -> None:
    await in_all_states(store, clock)
    views = await listed(store, "q")
    assert [view.status for view in views] == [
        "processing",
        "completed",
        "pending",
        "completed",
        "processing",
        *["pending"] * 3,
    ]
    assert [view.groups[0].consumed for view in views] == [False, True, False, True, *[False] * 4]


async def test_each_range_of_a_lease_is_listed(store: Store, clock: SetClock) -> None:
    popped = await in_all_states(store, clock)
    leases = await store.leases()
    assert [(one.lease_id, one.first_seq, one.last_seq, one.attempt) for one in leases] == [
        (popped.lease_id, 1, 1, 1),
        (popped.lease_id, 5, 5, 1),
    ]
    assert len(await store.leases(expiring_within=timedelta(seconds=99))) == 0
    assert len(await store.leases(expiring_within=timedelta(seconds=100))) == 2


async def test_utilisation_counts_a_partition_once(store: Store, clock: SetClock) -> None:
    async def counted() -> tuple[int, int, int, int]:
        [found] = await store.utilisation(queue="q")
        return (
            found.partitions_leased,
            found.partitions_ready,
            found.partitions_waiting,
            found.partitions_stopped,
        )

    await configure(store, "q", retry_limit=1, on_exhausted="stop")
    await push_n(store, "q", 2)
    popped = await lease(store, 1, lease_seconds=1000)
    assert await counted() == (0, 1, 0, 0)
    rest = await lease(store, 1)
    assert await counted() == (1, 0, 0, 0)
    retry_at = clock.now + timedelta(seconds=5)
    await store.ack([ack_in(rest, 0, "retry", retry_at=retry_at), Ack(lease_id=popped.lease_id)])
    assert await counted() == (0, 0, 1, 0)
    clock.advance(5)
    again = await lease(store, 1)
    await store.ack([ack_in(again, 0, "failed")])
    assert await counted() == (0, 0, 0, 1)


async def test_samples_count_what_is_done(store: Store, clock: SetClock) -> None:
    popped = await in_all_states(store, clock)
    clock.advance(60)
    await store.sample()
    await store.ack([ack_in(popped, 0), ack_in(popped, 4, "dlq")])
    clock.advance(60)
    await store.sample()
    first, second = await store.samples(queue="q")
    assert (first.pushed, first.completed, first.pending, first.lag_seconds) == (8, 2, 6, 60)
    assert (second.pushed, second.completed, second.dead, second.pending) == (0, 1, 1, 4)


# --- Limits


async def test_max_size_counts_what_is_in_flight(store: Store) -> None:
    await configure(store, "q", max_size=4)
    await push_n(store, "q", 4)
    popped = await lease(store, 4)
    with pytest.raises(QueueFull):
        await push_n(store, "q", 1)
    await store.ack([ack_in(popped, 2)])
    await push_n(store, "q", 1)
    with pytest.raises(QueueFull) as caught:
        await push_n(store, "q", 1)
    assert caught.value.details["depth"] == 4
    await ack(store, lease_id=popped.lease_id)
    [receipt] = await push_n(store, "q", 1)
    assert receipt.depth == 2


async def test_max_size_that_is_set_later_counts_right(store: Store, clock: SetClock) -> None:
    await in_all_states(store, clock)
    await configure(store, "q", max_size=7)
    [receipt] = await push_n(store, "q", 1)
    assert (receipt.depth, receipt.remaining) == (7, 0)


# --- Moving


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (Position("start"), [1, 2, 3, 4, 5, 6, 7, 8]),
        (Position("end"), []),
        (Position("seq", seq=4), [4, 5, 6, 7, 8]),
        (Position("current"), [1, 3, 5, 6, 7, 8]),
    ],
    ids=lambda value: value.kind if isinstance(value, Position) else "",
)
async def test_seek_drops_leases_and_begins_elsewhere(
    store: Store, clock: SetClock, position: Position, expected: list[int]
) -> None:
    popped = await in_all_states(store, clock)
    assert await store.seek("q", GROUP, position) == 1
    assert (await ack(store, lease_id=popped.lease_id)).error == "lease_lost"
    again = await lease(store, 9)
    assert seqs(again) == expected
    assert set(attempts_of(again)) <= {1}


async def test_stopped_message_goes_on_after_a_seek(store: Store) -> None:
    await configure(store, "q", retry_limit=0, on_exhausted="stop")
    await push_n(store, "q", 1)
    popped = await lease(store, 1)
    await store.ack([ack_in(popped, 0, "failed")])
    assert (await lag_of(store, "q", group=GROUP)).stopped
    await store.seek("q", GROUP, Position("current"))
    assert seqs(await lease(store, 1)) == [1]


async def test_deleted_group_leaves_nothing(store: Store, clock: SetClock) -> None:
    popped = await in_all_states(store, clock)
    assert await store.delete_group(GROUP) == 1
    assert await store.leases() == []
    assert (await ack(store, lease_id=popped.lease_id)).error == "lease_lost"
    assert len(await lease(store, 9)) == 8


async def test_deleted_queue_leaves_nothing(store: Store, clock: SetClock) -> None:
    popped = await in_all_states(store, clock)
    await store.delete_queue("q")
    assert (await ack(store, lease_id=popped.lease_id)).error == "lease_lost"
    await push_n(store, "q", 1)
    assert seqs(await lease(store, 9)) == [1]


# --- Removing


async def test_clear_of_all_drops_leases(store: Store, clock: SetClock) -> None:
    popped = await in_all_states(store, clock)
    assert await store.clear("q") == 8
    assert (await ack(store, lease_id=popped.lease_id)).error == "lease_lost"
    lag = await lag_of(store, "q", group=GROUP)
    assert (lag.acked, lag.lag, lag.due_at) == (8, 0, None)


async def test_clear_of_unleased_leaves_what_is_under_a_live_lease(store: Store, clock: SetClock) -> None:
    popped = await in_all_states(store, clock)
    assert await store.clear("q", scope="unleased") == 6
    assert [view.message.seq for view in await listed(store, "q")] == [1, 5]
    lag = await lag_of(store, "q", group=GROUP)
    assert (lag.acked, lag.lag, lag.in_flight, lag.retrying) == (0, 2, 2, 0)
    assert (await ack(store, lease_id=popped.lease_id)).messages == 2
    assert (await lag_of(store, "q", group=GROUP)).acked == 8


async def test_expired_lease_does_not_keep_messages_from_a_clear(store: Store, clock: SetClock) -> None:
    await in_all_states(store, clock)
    clock.advance(100)
    assert await store.clear("q", scope="unleased") == 8
    assert not await lease(store, 9)


@pytest.mark.parametrize(
    ("kind", "options", "removed"),
    [
        ("retention", {"retention_enabled": True, "retention_seconds": 50}, 8),
        ("completed_retention", {"retention_enabled": True, "completed_retention_seconds": 50}, 0),
        ("eviction", {"max_wait_seconds": 50}, 8),
    ],
)
async def test_prune_takes_nothing_from_a_live_lease(
    store: Store, clock: SetClock, kind: PruneKind, options: dict[str, Any], removed: int
) -> None:
    await in_all_states(store, clock)
    await configure(store, "q", max_size=100, **options)
    clock.advance(60)
    assert (await store.prune(kind, limit=100)).messages == 0
    clock.advance(40)
    assert (await store.prune(kind, limit=100)).messages == removed
    assert (await lag_of(store, "q", group=GROUP)).lag == (0 if removed else 6)


async def test_completed_retention_goes_up_to_what_is_done(store: Store, clock: SetClock) -> None:
    await configure(store, "q", retention_enabled=True, completed_retention_seconds=50)
    for start in (1, 3, 5):
        await push_n(store, "q", 2, start=start)
    popped = await lease(store, 6)
    await store.ack([ack_in(popped, number) for number in (0, 1, 2, 4, 5)])
    clock.advance(60)
    assert (await store.prune("completed_retention", limit=100)).messages == 2
    await store.ack([ack_in(popped, 3)])
    assert (await store.prune("completed_retention", limit=100)).messages == 4


async def test_range_at_the_start_of_a_cleared_partition_is_forgotten(store: Store, clock: SetClock) -> None:
    await configure(store, "q", max_size=100)
    await store.push([batch("q", 5, partition="a"), batch("q", 3, partition="b")])
    await lease(store, 6, partitions=2, lease_seconds=1)
    await pop(store, "q", partition="b", batch=2)
    clock.advance(1)
    assert await store.clear("q", scope="unleased") == 6
    places = {one.partition: one for one in await store.lag("q", group=GROUP)}
    assert (places["a"].acked, places["a"].lag, places["b"].lag) == (5, 0, 2)
    popped = await lease(store, 9, partitions=2, auto_ack=True)
    assert (seqs(popped), attempts_of(popped)) == ([1, 2], [2, 1])


async def test_partly_removed_range_is_delivered_without_what_is_gone(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 2)
    clock.advance(10)
    await push_n(store, "q", 2, start=3)
    popped = await lease(store, 4, lease_seconds=60)
    await ack(store, lease_id=popped.lease_id, status="retry")
    await configure(store, "q", retention_enabled=True, retention_seconds=5)
    assert (await store.prune("retention", limit=100)).messages == 2
    assert seqs(await lease(store, 9)) == [3, 4]


async def test_emptied_partition_goes_with_what_was_in_flight(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 2, partition="p")
    popped = await lease(store, 2, partition="p", lease_seconds=1)
    await store.sample()
    clock.advance(1)
    await store.clear("q", partition="p")
    await store.prune_partitions(10, limit=10)
    clock.advance(10)
    assert (await store.prune_partitions(10, limit=10)).partitions == 1
    assert (await ack(store, lease_id=popped.lease_id)).error == "lease_lost"
    await push_n(store, "q", 1, partition="p")
    assert seqs(await lease(store, 9, partition="p")) == [1]


# --- Single messages


async def test_leased_message_cannot_be_removed(store: Store, clock: SetClock) -> None:
    popped = await in_all_states(store, clock)
    messages = list(popped.messages())
    with pytest.raises(Conflict):
        await store.remove_message(messages[0].partition_id, messages[0].transaction_id)
    for number in (1, 2):
        await store.remove_message(messages[number].partition_id, messages[number].transaction_id)
    lag = await lag_of(store, "q", group=GROUP)
    assert (lag.lag, lag.in_flight, lag.retrying) == (5, 2, 0)


async def test_only_what_is_done_can_be_pushed_again(store: Store, clock: SetClock) -> None:
    popped = await in_all_states(store, clock)
    messages = list(popped.messages())
    for number in (0, 2):
        with pytest.raises(Conflict):
            await store.retry_message(messages[number].partition_id, messages[number].transaction_id)
    receipt = await store.retry_message(messages[1].partition_id, messages[1].transaction_id)
    assert receipt.seq == 9


async def test_any_message_in_flight_can_be_buried(store: Store, clock: SetClock) -> None:
    popped = await in_all_states(store, clock)
    messages = list(popped.messages())
    new = [view.message for view in await listed(store, "q")][5:]

    async def bury(number: int, among: list[Any]) -> int:
        one = among[number]
        return await store.bury_message(one.partition_id, one.transaction_id, group=GROUP, error="no")

    for number, among in ((0, messages), (1, messages), (1, new)):
        with pytest.raises(Conflict):
            await bury(number, among)
    await bury(2, messages)
    await bury(0, new)
    clock.advance(100)
    await bury(4, messages)
    page = await store.dead_letters(DeadLetterFilter())
    assert sorted((one.message.seq, one.attempts) for one in page.items) == [(3, 1), (5, 1), (6, 0)]
    assert seqs(await pop_all(store, "q", group=GROUP)) == [1, 7, 8]


async def test_million_completed_messages_would_leave_no_rows(store: Store) -> None:
    """What is in flight is all that there is to list: after thousands of deliveries of every ending, nothing."""
    await configure(store, "q", retry_delay_ms=0)
    await store.push([batch("q", 500, partition=name) for name in ("a", "b")])
    while popped := await lease(store, 100, partitions=2):
        await store.ack([ack_in(popped, number) for number in range(0, len(popped), 3)])
        await ack(store, lease_id=popped.lease_id)
    assert await store.leases() == []
    places = await store.lag("q", group=GROUP)
    assert [(one.acked, one.lag, one.due_at) for one in places if one.last_seq] == [(500, 0, None)] * 2
