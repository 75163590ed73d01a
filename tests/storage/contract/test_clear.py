"""Clear: messages go, numbers go on."""

from __future__ import annotations

import pytest

from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import DeadLetterFilter, Position, Subscription
from lockstep.errors import PartitionNotFound, QueueNotFound
from lockstep.storage.base import Store
from support.builders import (
    ack,
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


async def stored_seqs(store: Store, queue: str = "q") -> list[int]:
    return [view.message.seq for view in await listed(store, queue)]


async def with_hole(store: Store) -> None:
    """Seqs 3 and 4 under a lease of `g`; 1, 2 and 5 cleared; 6 and 7 pushed later. `h` has read nothing."""
    await push_n(store, "q", 5)
    await store.subscribe("q", "h", Subscription("all"))
    await pop(store, "q", group="g", batch=2, auto_ack=True)
    await pop(store, "q", group="g", batch=2)
    assert await store.clear("q", scope="unleased") == 3
    await push_n(store, "q", 2, start=6)


# --- all


async def test_clear_removes_everything_and_numbers_go_on(store: Store) -> None:
    await push_n(store, "q", 3)
    assert await store.clear("q") == 3
    assert await stored_seqs(store) == []
    cleared = await store.partition("q", "Default")
    assert (cleared.first_seq, cleared.last_seq, cleared.messages) == (4, 3, 0)
    assert (cleared.oldest_at, cleared.newest_at) == (None, None)
    [receipt] = await push_n(store, "q")
    assert receipt.seq == 4
    assert seqs(await pop(store, "q", batch=10)) == [4]


async def test_clear_puts_every_cursor_at_the_end(store: Store) -> None:
    await push_n(store, "q", 4)
    await pop(store, "q", group="g", batch=1, auto_ack=True)
    await pop(store, "q", group="h", batch=2)
    await store.clear("q")
    assert [(lag.group, lag.acked, lag.lag, lag.due_at) for lag in await store.lag("q")] == [
        ("g", 4, 0, None),
        ("h", 4, 0, None),
    ]
    assert not await pop(store, "q", group="g")
    assert not await pop(store, "q", group="late")


async def test_clear_drops_leases(store: Store) -> None:
    await push_n(store, "q", 2)
    popped = await pop(store, "q", batch=2)
    await store.clear("q")
    assert await store.leases() == []
    assert (await ack(store, lease_id=popped.lease_id)).error == "lease_lost"
    await push_n(store, "q", 1)
    assert seqs(await pop(store, "q", batch=5)) == [3]


async def test_clear_frees_a_stopped_partition(store: Store) -> None:
    await configure(store, "q", retry_limit=0, on_exhausted="stop")
    await push_n(store, "q")
    popped = await pop(store, "q")
    await ack(store, lease_id=popped.lease_id, status="failed")
    await store.clear("q")
    await push_n(store, "q")
    assert seqs(await pop(store, "q")) == [2]


async def test_clear_forgets_transaction_ids(store: Store) -> None:
    await push_tagged(store, "q", "a", "0190a1b2-c3d4-7e5f-8a6b-000000000001")
    await store.clear("q")
    receipts = await push_tagged(store, "q", "a", "0190a1b2-c3d4-7e5f-8a6b-000000000001")
    assert [(r.status, r.seq) for r in receipts] == [("queued", 3), ("queued", 4)]


async def test_clear_takes_dead_letters_with_it(store: Store) -> None:
    await dead_letter_by_dlq(store, "q", 2)
    await dead_letter_by_dlq(store, "other", 1)
    await store.clear("q")
    [letter] = (await store.dead_letters(DeadLetterFilter())).items
    assert letter.message.queue == "other"


async def test_clear_of_one_partition(store: Store) -> None:
    await store.push([batch("q", 2, partition="a"), batch("q", 3, partition="b")])
    assert await store.clear("q", partition="a") == 2
    assert [(m.partition, m.seq) for m in await pop_all(store, "q")] == [("b", 1), ("b", 2), ("b", 3)]


async def test_clear_leaves_other_queues_alone(store: Store) -> None:
    await store.push([batch("q", 2), batch("r", 2)])
    await store.clear("q")
    assert seqs(await pop_all(store, "r")) == [1, 2]


async def test_clear_of_an_empty_queue(store: Store) -> None:
    await configure(store, "q")
    assert await store.clear("q") == 0
    await push_n(store, "q", 2)
    await store.clear("q")
    assert await store.clear("q") == 0


@pytest.mark.parametrize("scope", ["all", "unleased"])
async def test_clear_of_what_is_not_there(store: Store, scope: str) -> None:
    with pytest.raises(QueueNotFound):
        await store.clear("q", scope=scope)  # type: ignore[arg-type]
    await configure(store, "q")
    with pytest.raises(PartitionNotFound):
        await store.clear("q", partition="p", scope=scope)  # type: ignore[arg-type]


async def test_clear_counts_completed_messages_too(store: Store) -> None:
    await push_n(store, "q", 3)
    await pop(store, "q", batch=2, auto_ack=True)
    assert await store.clear("q") == 3


# --- unleased


async def test_clear_unleased_keeps_what_is_under_a_live_lease(store: Store) -> None:
    await push_n(store, "q", 6)
    await pop(store, "q", batch=2, auto_ack=True)
    popped = await pop(store, "q", batch=2)
    assert await store.clear("q", scope="unleased") == 4
    assert await stored_seqs(store) == [3, 4]
    lag = await lag_of(store, "q")
    assert (lag.acked, lag.lag, lag.leased) == (2, 2, True)

    outcome = await ack(store, lease_id=popped.lease_id)
    assert (outcome.success, outcome.released) == (True, True)
    lag = await lag_of(store, "q")
    assert (lag.lag, lag.due_at) == (0, None)
    [receipt] = await push_n(store, "q")
    assert receipt.seq == 7
    assert seqs(await pop(store, "q", batch=5)) == [7]


async def test_clear_unleased_without_leases_removes_everything(store: Store) -> None:
    await push_n(store, "q", 3)
    await pop(store, "q", batch=1, auto_ack=True)
    assert await store.clear("q", scope="unleased") == 3
    lag = await lag_of(store, "q")
    assert (lag.lag, lag.due_at) == (0, None)
    [receipt] = await push_n(store, "q")
    assert receipt.seq == 4


async def test_clear_unleased_takes_expired_leases_for_none(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 2)
    await pop(store, "q", batch=2, lease_seconds=10)
    clock.advance(10)
    assert await store.clear("q", scope="unleased") == 2
    assert not await pop(store, "q")


async def test_clear_unleased_of_the_head_frees_a_stopped_partition(store: Store) -> None:
    await configure(store, "q", retry_limit=0, on_exhausted="stop")
    await push_n(store, "q", 2)
    popped = await pop(store, "q", batch=2)
    await ack(store, lease_id=popped.lease_id, status="failed")
    await store.clear("q", scope="unleased")
    lag = await lag_of(store, "q")
    assert (lag.lag, lag.stopped, lag.attempts) == (0, False, 0)
    await push_n(store, "q")
    assert seqs(await pop(store, "q")) == [3]


async def test_clear_unleased_keeps_leases_of_every_group(store: Store) -> None:
    await push_n(store, "q", 6)
    await pop(store, "q", group="g", batch=2, auto_ack=True)
    await pop(store, "q", group="g", batch=1)
    await pop(store, "q", group="h", batch=1)
    assert await store.clear("q", scope="unleased") == 4
    assert await stored_seqs(store) == [1, 3]
    assert [(lag.group, lag.lag) for lag in await store.lag("q")] == [("g", 1), ("h", 2)]


async def test_partially_acked_lease_keeps_only_its_rest(store: Store) -> None:
    await push_n(store, "q", 4)
    popped = await pop(store, "q", batch=3)
    await ack(store, lease_id=popped.lease_id, seq=1)
    assert await store.clear("q", scope="unleased") == 2
    assert await stored_seqs(store) == [2, 3]


async def test_kept_lease_that_fails_is_delivered_again(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 4)
    await pop(store, "q", batch=2, lease_seconds=10)
    await store.clear("q", scope="unleased")
    clock.advance(10)
    assert seqs(await pop(store, "q", batch=9)) == [1, 2]


async def test_clear_unleased_keeps_transaction_ids_of_what_it_keeps(store: Store) -> None:
    await push_tagged(store, "q", "a", "b", "c")
    await pop(store, "q", batch=1)
    await store.clear("q", scope="unleased")
    receipts = await push_tagged(store, "q", "a", "b")
    assert [(r.status, r.seq) for r in receipts] == [("duplicate", 1), ("queued", 4)]


async def test_clear_unleased_of_one_partition(store: Store) -> None:
    await store.push([batch("q", 2, partition="a"), batch("q", 2, partition="b")])
    await pop(store, "q", partition="a", batch=1)
    assert await store.clear("q", partition="a", scope="unleased") == 1
    assert (await store.partition("q", "b")).messages == 2


# --- Holes


async def test_reader_skips_what_was_removed(store: Store) -> None:
    await with_hole(store)
    assert await stored_seqs(store) == [3, 4, 6, 7]
    assert (await lag_of(store, "q", group="h")).lag == 4
    first = await pop(store, "q", group="h", batch=3)
    assert seqs(first) == [3, 4, 6]
    await ack(store, lease_id=first.lease_id)
    assert seqs(await pop(store, "q", group="h", batch=3)) == [7]


async def test_partition_with_a_hole_counts_what_is_there(store: Store) -> None:
    await with_hole(store)
    held = await store.partition("q", "Default")
    assert (held.first_seq, held.last_seq, held.messages, held.pending) == (3, 7, 4, 4)
    assert (await store.queue("q")).messages == 4


async def test_lag_before_a_hole_is_exact(store: Store) -> None:
    await with_hole(store)
    lag = await lag_of(store, "q", group="g")
    assert (lag.acked, lag.lag) == (2, 4)
    [lease] = await store.leases()
    await ack(store, lease_id=lease.lease_id, seq=4)
    assert (await lag_of(store, "q", group="g")).lag == 2
    assert seqs(await pop(store, "q", group="g", batch=9)) == [6, 7]


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (Position("start"), [3, 4, 6, 7]),
        (Position("seq", seq=1), [3, 4, 6, 7]),
        (Position("seq", seq=4), [4, 6, 7]),
        (Position("seq", seq=5), [6, 7]),
        (Position("seq", seq=7), [7]),
        (Position("end"), []),
    ],
    ids=["start", "seq-1", "seq-4", "seq-5", "seq-7", "end"],
)
async def test_seek_around_a_hole(store: Store, position: Position, expected: list[int]) -> None:
    await with_hole(store)
    await store.seek("q", "h", position)
    assert (await store.depth("q", "h")).pending == len(expected)
    assert seqs(await pop(store, "q", group="h", batch=9)) == expected


async def test_group_that_comes_after_a_hole_reads_what_is_there(store: Store) -> None:
    await with_hole(store)
    assert seqs(await pop_all(store, "q", group="late")) == [3, 4, 6, 7]


async def test_max_size_counts_what_is_there(store: Store) -> None:
    await with_hole(store)
    await configure(store, "q", max_size=5)
    [receipt] = await push_n(store, "q")
    assert (receipt.seq, receipt.depth, receipt.remaining) == (8, 5, 0)


async def test_queue_mode_that_was_never_popped_counts_what_is_there(store: Store) -> None:
    await with_hole(store)
    assert (await store.depth("q", QUEUE_MODE)).pending == 4


async def test_drained_cursor_passes_what_was_removed_behind_a_lease(store: Store) -> None:
    """Its lease spares the first messages and not the others; when those are done it is drained before the last seq."""
    await push_n(store, "q", 5)
    held = await pop(store, "q", batch=2)
    assert await store.clear("q", scope="unleased") == 3
    assert (await ack(store, lease_id=held.lease_id)).success
    assert await store.clear("q", scope="unleased") == 2
    assert (await lag_of(store, "q")).acked == 5
    await push_n(store, "q", start=6)
    assert numbers(await pop_all(store, "q")) == [6]
