"""Single messages in an operator's hands: remove, retry, bury."""

from __future__ import annotations

import pytest

from lockstep.core.messages import REDRIVEN_FROM, Receipt
from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import DeadLetterFilter, Subscription
from lockstep.core.traces import NewTraceEvent
from lockstep.errors import Conflict, GroupNotFound, MessageNotFound, QueueFull
from lockstep.storage.base import Store
from support.builders import (
    ack,
    ack_of,
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

TRACE = "0190a1b2-c3d4-7e5f-8a6b-00000000000a"


async def remove(store: Store, *receipts: Receipt) -> None:
    for receipt in receipts:
        await store.remove_message(receipt.partition_id, receipt.transaction_id)


async def dead_count(store: Store) -> int:
    return (await store.dead_letters(DeadLetterFilter())).total


# --- Remove


@pytest.mark.parametrize("removed", [[1], [3], [5], [1, 2], [2, 3], [3, 2], [4, 5], [2, 4], [5, 4, 3, 2, 1], [3, 1, 2]])
async def test_removed_messages_are_delivered_to_nobody(store: Store, removed: list[int]) -> None:
    receipts = await push_n(store, "q", 5)
    await store.subscribe("q", "early", Subscription())
    await remove(store, *(receipts[seq - 1] for seq in removed))
    left = [seq for seq in range(1, 6) if seq not in removed]
    assert [view.message.seq for view in await listed(store, "q")] == left
    assert (await lag_of(store, "q", group="early")).lag == len(left)
    for group in ("early", "late"):
        assert seqs(await pop_all(store, "q", group=group)) == left
    assert [receipt.seq for receipt in await push_n(store, "q")] == [6]
    assert seqs(await pop_all(store, "q", group="early")) == [6]


async def test_removed_message_leaves_nothing_behind(store: Store) -> None:
    [receipt] = await push_n(store, "q", 1, transaction_ids=["t"], trace_ids=[TRACE])
    await store.record_trace(NewTraceEvent(partition_id=receipt.partition_id, transaction_id="t", data=b"1"))
    popped = await pop(store, "q")
    await ack(store, lease_id=popped.lease_id, status="dlq")
    await remove(store, receipt)
    assert await dead_count(store) == 0
    assert await store.trace(TRACE) == []
    assert await store.traces_of_message(receipt.partition_id, "t") == []
    with pytest.raises(MessageNotFound):
        await store.message(receipt.message_id)
    [again] = await push_tagged(store, "q", "t")
    assert (again.status, again.seq) == ("queued", 2)


async def test_message_is_removed_by_its_own_id_too(store: Store) -> None:
    [receipt] = await push_tagged(store, "q", "t")
    await store.remove_message(receipt.partition_id, receipt.message_id)
    assert await listed(store, "q") == []


async def test_message_under_a_live_lease_is_not_removed(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=10)
    first, second, third = await push_n(store, "q", 3)
    popped = await pop(store, "q", batch=2)
    for receipt in (first, second):
        with pytest.raises(Conflict, match="live lease"):
            await remove(store, receipt)
    await remove(store, third)
    assert (await ack(store, lease_id=popped.lease_id, seq=1)).success
    await remove(store, first)
    clock.advance(10)
    await remove(store, second)
    assert not await pop(store, "q")
    assert (await lag_of(store, "q")).lag == 0


async def test_removal_of_a_leased_tail_after_the_lease_ended(store: Store) -> None:
    receipts = await push_n(store, "q", 3)
    popped = await pop(store, "q", batch=2)
    await ack(store, lease_id=popped.lease_id, status="retry")
    await remove(store, receipts[1])
    assert seqs(await pop(store, "q", batch=5)) == [1, 3]


async def test_removed_head_takes_its_attempts_and_its_stop_with_it(store: Store) -> None:
    await configure(store, "q", retry_limit=0, on_exhausted="stop")
    head, _ = await push_n(store, "q", 2)
    popped = await pop(store, "q")
    await ack(store, lease_id=popped.lease_id, status="failed")
    assert (await lag_of(store, "q")).stopped
    await remove(store, head)
    place = await lag_of(store, "q")
    assert (place.stopped, place.attempts, place.acked) == (False, 0, 1)
    assert seqs(await pop(store, "q")) == [2]


async def test_removal_behind_a_failed_head_leaves_its_wait_alone(store: Store, clock: SetClock) -> None:
    await configure(store, "q", retry_delay_ms=5000)
    _, behind = await push_n(store, "q", 2)
    popped = await pop(store, "q")
    await ack(store, lease_id=popped.lease_id, status="failed")
    await remove(store, behind)
    place = await lag_of(store, "q")
    assert (place.attempts, place.due_at) == (1, clock.ahead(5))


async def test_message_that_is_not_there_is_not_removed(store: Store) -> None:
    [receipt] = await push_n(store, "q")
    await remove(store, receipt)
    for partition_id, identity in [
        (receipt.partition_id, receipt.message_id),
        (receipt.partition_id, "no such"),
        (receipt.partition_id + 1000, receipt.message_id),
    ]:
        with pytest.raises(MessageNotFound):
            await store.remove_message(partition_id, identity)


async def test_removal_makes_room_in_a_full_queue(store: Store) -> None:
    await configure(store, "q", max_size=3)
    receipts = await push_n(store, "q", 3)
    await remove(store, receipts[1])
    [more] = await push_n(store, "q")
    assert (more.depth, more.remaining) == (3, 0)
    await pop(store, "q", batch=1, auto_ack=True)
    await remove(store, receipts[0], receipts[2])
    [more] = await push_n(store, "q")
    assert (more.depth, more.remaining) == (2, 1)
    assert seqs(await pop_all(store, "q")) == [4, 5]


# --- Retry


async def test_dead_letter_is_pushed_again(store: Store) -> None:
    [dead] = await dead_letter_by_dlq(store, "q", 1, start=7, transaction_ids=["t"], kinds=["k"])
    receipt = await store.retry_message(dead.partition_id, "t")
    assert (receipt.status, receipt.queue, receipt.partition, receipt.seq) == ("queued", "q", "Default", 2)
    assert await dead_count(store) == 0
    [again] = (await pop(store, "q")).messages()
    assert (again.id, again.kind, numbers([again])) == (receipt.message_id, "k", [7])
    assert again.headers == {REDRIVEN_FROM: dead.id}


async def test_dead_letters_of_several_groups_are_one_push(store: Store) -> None:
    [receipt] = await push_n(store, "q")
    for group in ("g", "h"):
        popped = await pop(store, "q", group=group)
        await ack(store, lease_id=popped.lease_id, status="dlq")
    await store.retry_message(receipt.partition_id, receipt.message_id)
    assert await dead_count(store) == 0
    assert seqs(await pop(store, "q", group="g", batch=10)) == [2]


async def test_completed_message_is_pushed_again(store: Store) -> None:
    receipts = await push_n(store, "q", 2)
    await pop_all(store, "q")
    again = await store.retry_message(receipts[0].partition_id, receipts[0].message_id)
    assert again.seq == 3
    assert numbers(await pop(store, "q", batch=10)) == [1]


async def test_message_that_is_still_to_be_delivered_is_not_retried(store: Store) -> None:
    [receipt] = await push_n(store, "q")
    with pytest.raises(Conflict, match="still to be delivered"):
        await store.retry_message(receipt.partition_id, receipt.message_id)
    await store.subscribe("q", "slow", Subscription())
    await pop_all(store, "q", group="fast")
    popped = await pop(store, "q", group="slow")
    with pytest.raises(Conflict):
        await store.retry_message(receipt.partition_id, receipt.message_id)
    await ack(store, lease_id=popped.lease_id)
    assert (await store.retry_message(receipt.partition_id, receipt.message_id)).seq == 2


async def test_message_that_is_not_there_is_not_retried(store: Store) -> None:
    [receipt] = await push_n(store, "q")
    await pop_all(store, "q")
    await store.clear("q")
    for partition_id, identity in [
        (receipt.partition_id, receipt.message_id),
        (receipt.partition_id, "no such"),
        (receipt.partition_id + 1000, receipt.message_id),
    ]:
        with pytest.raises(MessageNotFound):
            await store.retry_message(partition_id, identity)


async def test_retry_into_a_full_queue_changes_nothing(store: Store) -> None:
    await configure(store, "q", max_size=2)
    [dead] = await dead_letter_by_dlq(store, "q", 1)
    await push_n(store, "q", 2)
    with pytest.raises(QueueFull):
        await store.retry_message(dead.partition_id, dead.id)
    assert await dead_count(store) == 1
    await pop(store, "q", batch=1, auto_ack=True)
    assert (await store.retry_message(dead.partition_id, dead.id)).depth == 2


# --- Bury


async def test_head_is_buried_and_passed(store: Store, clock: SetClock) -> None:
    head, _ = await push_n(store, "q", 2)
    await pop(store, "q", group="other")
    await store.subscribe("q", "g", Subscription())
    clock.advance(1)
    identity = (head.partition_id, head.message_id)
    dead_letter_id = await store.bury_message(*identity, group="g", error="not ours")
    letter = await store.dead_letter(dead_letter_id)
    assert (letter.message.seq, letter.group, letter.attempts, letter.error) == (1, "g", 0, "not ours")
    assert letter.failed_at == clock.now
    place = await lag_of(store, "q", group="g")
    assert (place.acked, place.lag, place.consumed_at) == (1, 1, clock.now)
    assert (await lag_of(store, "q", group="other")).acked == 0
    assert seqs(await pop(store, "q", group="g", batch=5)) == [2]


async def test_burying_the_last_message_drains_the_partition(store: Store) -> None:
    [head] = await push_n(store, "q")
    await store.subscribe("q", QUEUE_MODE, Subscription())
    await store.bury_message(head.partition_id, head.message_id)
    assert (await lag_of(store, "q")).due_at is None
    await push_n(store, "q")
    assert seqs(await pop(store, "q")) == [2]


async def test_burying_frees_a_stopped_partition_and_tells_the_attempts(store: Store) -> None:
    await configure(store, "q", retry_limit=1, retry_delay_ms=0, on_exhausted="stop")
    head, _ = await push_n(store, "q", 2)
    for _ in range(2):
        popped = await pop(store, "q")
        await ack(store, lease_id=popped.lease_id, status="failed")
    letter = await store.dead_letter(await store.bury_message(head.partition_id, head.message_id))
    assert letter.attempts == 2
    assert seqs(await pop(store, "q")) == [2]


async def test_expired_lease_counts_as_an_attempt_of_the_buried(store: Store, clock: SetClock) -> None:
    head, _ = await push_n(store, "q", 2)
    popped = await pop(store, "q", batch=2, lease_seconds=10)
    clock.advance(10)
    letter = await store.dead_letter(await store.bury_message(head.partition_id, head.message_id))
    assert letter.attempts == 1
    assert (await ack(store, lease_id=popped.lease_id)).error == "lease_lost"
    assert seqs(await pop(store, "q", batch=2)) == [2]


async def test_only_the_head_is_buried(store: Store) -> None:
    first, second, third = await push_n(store, "q", 3)
    await pop(store, "q", auto_ack=True)
    for receipt, text in [(first, "done"), (third, "not the next")]:
        with pytest.raises(Conflict, match=text):
            await store.bury_message(receipt.partition_id, receipt.message_id)
    await remove(store, second)
    await store.bury_message(third.partition_id, third.message_id)
    assert await dead_count(store) == 1


async def test_what_a_group_holds_is_not_buried(store: Store) -> None:
    [head] = await push_n(store, "q")
    popped = await pop(store, "q")
    with pytest.raises(Conflict, match="live lease"):
        await store.bury_message(head.partition_id, head.message_id)
    [message] = popped.messages()
    assert (await store.ack([ack_of(message, lease_id=popped.lease_id)]))[0].success


async def test_nothing_to_bury(store: Store) -> None:
    [head] = await push_n(store, "q")
    with pytest.raises(GroupNotFound):
        await store.bury_message(head.partition_id, head.message_id, group="nobody")
    for partition_id, identity in [(head.partition_id, "no such"), (head.partition_id + 1000, head.message_id)]:
        with pytest.raises(MessageNotFound):
            await store.bury_message(partition_id, identity)
    assert await dead_count(store) == 0


async def test_burying_counts_in_a_limited_queue(store: Store) -> None:
    await configure(store, "q", max_size=2)
    head, _ = await push_n(store, "q", 2)
    await store.subscribe("q", QUEUE_MODE, Subscription())
    await store.bury_message(head.partition_id, head.message_id)
    [more] = await push_n(store, "q")
    assert (more.depth, more.remaining) == (2, 0)
