"""Retention and eviction: what goes, what stays, and what goes with it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from lockstep.core.maintenance import Place, Pruned, PruneKind
from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import DeadLetterFilter, Position, Subscription
from lockstep.errors import MessageNotFound
from lockstep.storage.base import Store
from support.builders import (
    ack,
    ack_of,
    batch,
    configure,
    dead_letter_by_dlq,
    lag_of,
    listed,
    numbers,
    pop,
    pop_all,
    push_n,
    push_tagged,
    seqs,
)
from support.clock import SetClock

AGE = 100
RETENTION = {"retention_enabled": True, "retention_seconds": AGE}
COMPLETED = {"retention_enabled": True, "completed_retention_seconds": AGE}
POLICIES: dict[PruneKind, dict[str, Any]] = {
    "retention": RETENTION,
    "completed_retention": COMPLETED,
    "eviction": {"max_wait_seconds": AGE},
}
KINDS = list(POLICIES)


async def prune_all(store: Store, kind: PruneKind, *, limit: int = 1000) -> int:
    """A walk to its end; returns how many messages went."""
    removed = 0
    place: Place | None = None
    for _ in range(1000):
        pruned = await store.prune(kind, after=place, limit=limit)
        removed += pruned.messages
        place = pruned.next
        if place is None:
            return removed
    raise AssertionError("the walk has no end")


async def stored(store: Store, queue: str = "q", **where: Any) -> list[int]:
    return [view.message.seq for view in await listed(store, queue, **where)]


async def consume(store: Store, count: int, *, group: str = QUEUE_MODE, queue: str = "q") -> None:
    popped = await pop(store, queue, group=group, batch=count, auto_ack=True)
    assert len(popped) == count


# --- Who asks for it --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_goes_without_a_policy(store: Store, clock: SetClock, kind: PruneKind) -> None:
    await configure(store, "q")
    await push_n(store, "q", 3)
    await consume(store, 2)
    clock.advance(10**6)
    assert await store.prune(kind, limit=10) == Pruned()
    assert await stored(store) == [1, 2, 3]


@pytest.mark.parametrize("seconds", [{"retention_seconds": AGE}, {"completed_retention_seconds": AGE}])
@pytest.mark.parametrize("kind", ["retention", "completed_retention"])
async def test_nothing_goes_while_retention_is_off(
    store: Store, clock: SetClock, kind: PruneKind, seconds: dict[str, int]
) -> None:
    await configure(store, "q", retention_enabled=False, **seconds)
    await push_n(store, "q", 3)
    await consume(store, 3)
    clock.advance(10**6)
    assert await prune_all(store, kind) == 0
    assert await stored(store) == [1, 2, 3]


@pytest.mark.parametrize("kind", ["retention", "eviction"])
async def test_only_what_is_older_goes(store: Store, clock: SetClock, kind: PruneKind) -> None:
    await configure(store, "q", **POLICIES[kind])
    await push_n(store, "q", 3)
    clock.advance(1)
    await push_n(store, "q", 2, start=4)
    clock.advance(AGE - 1)
    assert await prune_all(store, kind) == 0, "at the age itself a message stays"
    clock.advance(0.5)
    assert await prune_all(store, kind) == 3
    assert await stored(store) == [4, 5]


async def test_other_queues_are_left_alone(store: Store, clock: SetClock) -> None:
    await configure(store, "b", **RETENTION)
    await configure(store, "d", **RETENTION)
    for queue in "abcde":
        await push_n(store, queue, 2)
    clock.advance(AGE + 1)
    assert await prune_all(store, "retention") == 4
    assert [await stored(store, queue) for queue in "abcde"] == [[1, 2], [], [1, 2], [], [1, 2]]


# --- Completed messages -----------------------------------------------------------------------------------


async def test_completed_retention_keeps_what_any_group_has_before_it(store: Store, clock: SetClock) -> None:
    """Three groups at different places: only what all of them have done goes."""
    await configure(store, "q", **COMPLETED)
    for number in range(1, 7):
        await push_n(store, "q", start=number)
    for group, count in (("fast", 6), ("middle", 4), ("slow", 2)):
        await consume(store, count, group=group)
    clock.advance(AGE + 1)
    assert await prune_all(store, "completed_retention") == 2
    assert await stored(store) == [3, 4, 5, 6]
    assert numbers(await pop_all(store, "q", group="slow")) == [3, 4, 5, 6]
    assert numbers(await pop_all(store, "q", group="middle")) == [5, 6]
    assert await prune_all(store, "completed_retention") == 4
    assert await stored(store) == []


async def test_completed_retention_removes_nothing_while_nobody_reads(store: Store, clock: SetClock) -> None:
    await configure(store, "q", **COMPLETED)
    await push_n(store, "q", 3)
    clock.advance(AGE + 1)
    assert await prune_all(store, "completed_retention") == 0
    assert numbers(await pop_all(store, "q")) == [1, 2, 3]


async def test_completed_retention_waits_until_a_run_is_done(store: Store, clock: SetClock) -> None:
    """What was pushed together goes together."""
    await configure(store, "q", **COMPLETED)
    await push_n(store, "q", 4)
    await consume(store, 3)
    clock.advance(AGE + 1)
    assert await prune_all(store, "completed_retention") == 0
    await consume(store, 1)
    assert await prune_all(store, "completed_retention") == 4


async def test_completed_retention_looks_at_each_partition(store: Store, clock: SetClock) -> None:
    """One segment, two partitions: that of the lagging partition stays, and so do its messages."""
    await configure(store, "q", **COMPLETED)
    await store.push([batch("q", 2, partition="done"), batch("q", 2, partition="behind", start=3)])
    await pop(store, "q", partition="done", batch=2, auto_ack=True)
    clock.advance(AGE + 1)
    assert await prune_all(store, "completed_retention") == 2
    assert await stored(store, partition="done") == []
    assert numbers(await pop_all(store, "q")) == [3, 4]
    assert await prune_all(store, "completed_retention") == 2


# --- Any message ------------------------------------------------------------------------------------------


async def test_retention_removes_what_nobody_has_read(store: Store, clock: SetClock) -> None:
    await configure(store, "q", **RETENTION)
    await push_n(store, "q", 3)
    await consume(store, 1, group="g")
    clock.advance(AGE / 2)
    await push_n(store, "q", 2, start=4)
    clock.advance(AGE / 2 + 1)
    assert await prune_all(store, "retention") == 3
    assert (await lag_of(store, "q", group="g")).lag == 2
    assert numbers(await pop_all(store, "q", group="g")) == [4, 5]
    assert numbers(await pop_all(store, "q", group="later")) == [4, 5]


async def test_retention_of_everything_leaves_a_drained_partition_that_goes_on(store: Store, clock: SetClock) -> None:
    await configure(store, "q", **RETENTION)
    await push_n(store, "q", 3)
    await store.subscribe("q", "g", Subscription())
    clock.advance(AGE + 1)
    assert await prune_all(store, "retention") == 3
    lag = await lag_of(store, "q", group="g")
    assert (lag.lag, lag.due_at, lag.acked) == (0, None, 3)
    assert not await pop(store, "q", group="g")
    receipts = await push_n(store, "q", 2, start=4)
    assert [receipt.seq for receipt in receipts] == [4, 5]
    assert numbers(await pop(store, "q", group="g", batch=9)) == [4, 5]


async def test_stopped_partition_goes_on_when_what_stopped_it_is_removed(store: Store, clock: SetClock) -> None:
    await configure(store, "q", retry_limit=0, on_exhausted="stop", **RETENTION)
    await push_n(store, "q")
    popped = await pop(store, "q")
    await ack(store, lease_id=popped.lease_id, status="failed")
    assert (await lag_of(store, "q")).stopped
    clock.advance(AGE + 1)
    await push_n(store, "q", start=2)
    assert await prune_all(store, "retention") == 1
    assert not (await lag_of(store, "q")).stopped
    assert numbers(await pop(store, "q")) == [2]


async def test_failed_attempts_do_not_pass_to_the_next_message(store: Store, clock: SetClock) -> None:
    await configure(store, "q", **RETENTION)
    await push_n(store, "q")
    popped = await pop(store, "q")
    await ack(store, lease_id=popped.lease_id, status="failed")
    clock.advance(AGE + 1)
    await push_n(store, "q", start=2)
    assert await prune_all(store, "retention") == 1
    assert (await lag_of(store, "q")).attempts == 0


async def test_seek_after_retention_knows_where_the_partition_begins(store: Store, clock: SetClock) -> None:
    await configure(store, "q", **RETENTION)
    await push_n(store, "q", 3)
    clock.advance(AGE)
    await push_n(store, "q", 3, start=4)
    await consume(store, 6)
    clock.advance(1)
    assert await prune_all(store, "retention") == 3
    assert await store.seek("q", QUEUE_MODE, Position("start")) == 1
    assert seqs(await pop_all(store, "q")) == [4, 5, 6]
    await store.seek("q", QUEUE_MODE, Position("seq", seq=2))
    assert seqs(await pop_all(store, "q")) == [4, 5, 6]
    info = await store.partition("q", "Default")
    assert (info.first_seq, info.last_seq, info.messages) == (4, 6, 3)


# --- Leases -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["retention", "eviction"])
async def test_live_lease_protects_its_messages_and_what_follows(
    store: Store, clock: SetClock, kind: PruneKind
) -> None:
    await configure(store, "q", lease_seconds=1000, **POLICIES[kind])
    for number in range(1, 5):
        await push_n(store, "q", start=number)
    clock.advance(AGE - 1)
    popped = await pop(store, "q", batch=2)
    clock.advance(2)
    assert await prune_all(store, kind) == 0
    assert (await ack(store, lease_id=popped.lease_id)).success
    assert await stored(store) == [1, 2, 3, 4]
    assert await prune_all(store, kind) == (4 if kind == "retention" else 2)


async def test_lease_of_one_group_protects_against_the_lag_of_another(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=1000, **RETENTION)
    for number in range(1, 4):
        await push_n(store, "q", start=number)
    await consume(store, 1, group="holder")
    held = await pop(store, "q", group="holder", batch=1)
    await pop(store, "q", group="other", partition="Default", batch=1, auto_ack=True)
    clock.advance(AGE + 1)
    assert await prune_all(store, "retention") == 1
    assert await stored(store) == [2, 3]
    outcome = await ack(store, lease_id=held.lease_id)
    assert (outcome.success, outcome.messages) == (True, 1)
    assert await prune_all(store, "retention") == 2


async def test_lease_in_one_partition_does_not_hold_up_another(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=1000, **RETENTION)
    await store.push([batch("q", 2, partition="held"), batch("q", 2, partition="free", start=3)])
    await pop(store, "q", partition="held")
    clock.advance(AGE + 1)
    assert await prune_all(store, "retention") == 2
    assert [len(await stored(store, partition=name)) for name in ("held", "free")] == [2, 0]


async def test_expired_lease_protects_nothing(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=10, **RETENTION)
    await push_n(store, "q", 2)
    popped = await pop(store, "q", batch=2)
    clock.advance(AGE + 1)
    assert await prune_all(store, "retention") == 2
    outcome = await ack(store, lease_id=popped.lease_id)
    assert (outcome.success, outcome.error) == (False, "lease_lost")
    assert (await lag_of(store, "q")).attempts == 0


# --- Eviction ---------------------------------------------------------------------------------------------


async def test_eviction_takes_what_waits_and_not_what_is_done(store: Store, clock: SetClock) -> None:
    await configure(store, "q", max_wait_seconds=AGE)
    await push_n(store, "q", 5)
    await consume(store, 2)
    clock.advance(AGE + 1)
    await push_n(store, "q", 1, start=6)
    assert await prune_all(store, "eviction") == 3
    assert await stored(store) == [1, 2, 6]
    assert (await lag_of(store, "q")).lag == 1
    assert numbers(await pop_all(store, "q")) == [6]


async def test_eviction_is_by_the_group_that_is_furthest_behind(store: Store, clock: SetClock) -> None:
    await configure(store, "q", max_wait_seconds=AGE)
    await push_n(store, "q", 6)
    await consume(store, 5, group="ahead")
    await consume(store, 2, group="behind")
    clock.advance(AGE + 1)
    assert await prune_all(store, "eviction") == 4
    assert [(await lag_of(store, "q", group=group)).lag for group in ("ahead", "behind")] == [0, 0]
    assert await prune_all(store, "eviction") == 0


async def test_eviction_without_a_group_takes_all_that_is_too_old(store: Store, clock: SetClock) -> None:
    await configure(store, "q", max_wait_seconds=AGE, max_size=3)
    await push_n(store, "q", 3)
    clock.advance(AGE + 1)
    assert await prune_all(store, "eviction") == 3
    await push_n(store, "q", 3, start=4)
    assert numbers(await pop_all(store, "q")) == [4, 5, 6]


async def test_evictions_with_completed_messages_between_them_leave_no_trail(store: Store, clock: SetClock) -> None:
    """Holes in the middle, each beside the last: seqs, lag and pops step over them; retention takes the rest."""
    await configure(store, "q", max_wait_seconds=AGE, **COMPLETED)
    for round_ in range(3):
        await push_n(store, "q", 2, start=4 * round_ + 1)
        await consume(store, 1)
        await push_n(store, "q", 2, start=4 * round_ + 3)
        clock.advance(AGE + 1)
        assert await prune_all(store, "eviction") == 3
    assert await stored(store) == [1, 5, 9]
    await store.seek("q", QUEUE_MODE, Position("start"))
    assert (await lag_of(store, "q")).lag == 3
    await store.seek("q", QUEUE_MODE, Position("end"))
    assert await prune_all(store, "completed_retention") == 3
    assert (await store.partition("q", "Default")).first_seq == 13
    assert [receipt.seq for receipt in await push_n(store, "q")] == [13]


# --- Batches ----------------------------------------------------------------------------------------------


async def test_batches_are_bounded_and_oldest_first(store: Store, clock: SetClock) -> None:
    await configure(store, "q", **RETENTION)
    for number in range(1, 7):
        await push_n(store, "q", 2, start=2 * number - 1)
        clock.advance(1)
    clock.advance(AGE)
    sizes = []
    place: Place | None = None
    while True:
        pruned = await store.prune("retention", after=place, limit=3)
        if pruned.next is None:
            break
        sizes.append(pruned.messages)
        left = await stored(store)
        assert left == list(range(13 - len(left), 13)), "what is left is the newest"
        place = pruned.next
    assert sizes == [4, 4, 4]


async def test_walk_passes_what_may_not_go(store: Store, clock: SetClock) -> None:
    """Many old messages that a lagging group holds back do not hide those that may go."""
    await configure(store, "q", **COMPLETED)
    for number in range(1, 6):
        await push_n(store, "q", partition="lagging", start=number)
    for number in range(6, 9):
        await push_n(store, "q", partition="done", start=number)
    await pop(store, "q", partition="done", batch=9, auto_ack=True)
    clock.advance(AGE + 1)
    assert await prune_all(store, "completed_retention", limit=1) == 3
    assert numbers(await pop_all(store, "q")) == [1, 2, 3, 4, 5]


async def test_walk_over_a_queue_that_is_deleted_goes_on(store: Store, clock: SetClock) -> None:
    for queue in ("a", "b"):
        await configure(store, queue, **RETENTION)
        for number in range(3):
            await push_n(store, queue, start=number)
    clock.advance(AGE + 1)
    first = await store.prune("retention", limit=1)
    assert first.messages == 1
    await store.delete_queue("a")
    removed = 0
    place = first.next
    while place is not None:
        pruned = await store.prune("retention", after=place, limit=1)
        removed, place = removed + pruned.messages, pruned.next
    assert removed == 3
    assert await stored(store, "b") == []


# --- What goes with the messages --------------------------------------------------------------------------


async def test_transaction_ids_of_removed_messages_may_be_used_again(store: Store, clock: SetClock) -> None:
    await configure(store, "q", **RETENTION)
    uuid = str(uuid4())
    await push_tagged(store, "q", "text", uuid, None)
    clock.advance(AGE / 2)
    await push_tagged(store, "q", "kept")
    clock.advance(AGE / 2 + 1)
    assert await prune_all(store, "retention") == 3
    again = await push_tagged(store, "q", "text", uuid, "kept")
    assert [receipt.status for receipt in again] == ["queued", "queued", "duplicate"]


async def test_transaction_ids_in_a_packed_segment_go_as_well(store: Store, clock: SetClock) -> None:
    """A large push is compressed, and its ids are not to be seen in SQL."""
    await configure(store, "q", **RETENTION)
    identities = [str(uuid4()) if number % 2 else f"id-{number}" for number in range(300)]
    traces = [str(uuid4()) for _ in range(300)]
    await push_n(store, "q", 300, transaction_ids=list(identities), trace_ids=traces)
    clock.advance(AGE + 1)
    assert await prune_all(store, "retention") == 300
    assert await store.trace(traces[17]) == []
    again = await push_tagged(store, "q", *identities)
    assert {receipt.status for receipt in again} == {"queued"}


async def test_ids_of_partitions_that_stay_are_kept(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=1000, **RETENTION)
    trace = str(uuid4())
    await store.push(
        [
            batch("q", 1, partition="held", transaction_ids=["x"], trace_ids=[trace]),
            batch("q", 1, partition="free", transaction_ids=["x"], trace_ids=[trace]),
        ]
    )
    await pop(store, "q", partition="held")
    clock.advance(AGE + 1)
    assert await prune_all(store, "retention") == 1
    assert [message.partition for message in await store.trace(trace)] == ["held"]
    assert (await push_tagged(store, "q", "x", partition="held"))[0].status == "duplicate"
    assert (await push_tagged(store, "q", "x", partition="free"))[0].status == "queued"


async def test_dead_letters_and_messages_are_gone(store: Store, clock: SetClock) -> None:
    await configure(store, "q", **COMPLETED)
    messages = await dead_letter_by_dlq(store, "q", 2)
    clock.advance(AGE + 1)
    await dead_letter_by_dlq(store, "q", 1, start=3)
    assert await prune_all(store, "completed_retention") == 2
    page = await store.dead_letters(DeadLetterFilter(queue="q"))
    assert (page.total, numbers([letter.message for letter in page.items])) == (1, [3])
    with pytest.raises(MessageNotFound):
        await store.message(messages[0].id)
    [outcome] = await store.ack([ack_of(messages[0])])
    assert outcome.error == "unresolvable"


@pytest.mark.parametrize("kind", KINDS)
async def test_max_size_counts_what_is_left(store: Store, clock: SetClock, kind: PruneKind) -> None:
    await configure(store, "q", max_size=10, **POLICIES[kind])
    for number in range(1, 6):
        await push_n(store, "q", start=number)
    await consume(store, 4, group="a")
    await consume(store, 2, group="b")
    clock.advance(AGE + 1)
    removed = await prune_all(store, kind)
    assert removed == {"retention": 5, "completed_retention": 2, "eviction": 3}[kind]
    assert await store.verify() == []
    pending = 3 if kind == "completed_retention" else 0
    [receipt] = await push_n(store, "q", start=6)
    assert receipt.depth == pending + 1


# --- The history ------------------------------------------------------------------------------------------


async def test_history_tells_what_went_by_minute(store: Store, clock: SetClock) -> None:
    await configure(store, "q", **RETENTION)
    await configure(store, "r", max_wait_seconds=AGE)
    for number in range(1, 4):
        await push_n(store, "q", start=number)
        await push_n(store, "r", start=number)
    clock.advance(120)
    minute = clock.now
    await prune_all(store, "retention", limit=1)
    await prune_all(store, "eviction", limit=1)
    clock.advance(60)
    await prune_all(store, "retention")
    found = await store.removals()
    assert [(row.at, row.queue, row.kind, row.messages, row.partitions) for row in found] == [
        (minute, "q", "retention", 3, 0),
        (minute, "r", "eviction", 3, 0),
    ]
    assert await store.removals(queue="r") == found[1:]
    assert await store.removals(after=found[0], limit=1) == found[1:]
    assert await store.removals(to_at=minute) == []
    assert await store.removals(from_at=minute, limit=1) == found[:1]
    await store.delete_queue("q")
    assert await store.removals(queue="q") == found[:1]
