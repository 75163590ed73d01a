"""Operations: requests that wait, are applied in order, and keep later pushes behind them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from lockstep.core.applying import ApplyLimits
from lockstep.core.ids import uuid7
from lockstep.core.messages import Batch, NewSchedule
from lockstep.core.operations import NewOperation, OperationKind, Outcome, split_operation_id
from lockstep.core.records import Ack, DeadLetterFilter
from lockstep.errors import Conflict, InvalidRequest, OperationNotFound, OperationPending, QueueFull
from lockstep.storage.base import Store
from support.builders import ack, batch, configure, dead_letter_by_dlq, numbers, pop, pop_all, push_n, tagged
from support.clock import SetClock

LIMITS = ApplyLimits(retries_max=2, retry_seconds_min=1, retry_seconds_max=60)


async def queue(store: Store, *pushes: Batch | Sequence[Batch]) -> list[str]:
    """Queue each push as an operation of one bundle."""
    operations = [NewOperation([push] if isinstance(push, Batch) else push) for push in pushes]
    return await store.queue_operations(operations)


async def apply(store: Store, kind: OperationKind = "push", **limits: Any) -> int:
    """Apply one call's worth; how many operations that were."""
    chosen = ApplyLimits(**{name: getattr(LIMITS, name) for name in LIMITS.__struct_fields__} | limits)
    return (await store.apply_operations(kind, by="test", limits=chosen)).operations


async def apply_all(store: Store, kind: OperationKind = "push") -> None:
    while await apply(store, kind):
        pass


async def outcome(store: Store, operation_id: str) -> Outcome:
    found = (await store.operation(operation_id)).outcome
    assert found is not None
    return found


async def test_nothing_is_stored_before_it_is_applied(store: Store) -> None:
    await queue(store, batch("q", 2))
    assert not await pop(store, "q")
    assert await apply(store) == 1
    assert numbers(await pop_all(store, "q")) == [1, 2]
    assert await apply(store) == 0


async def test_operations_are_applied_in_the_order_in_which_they_came(store: Store) -> None:
    for start in range(1, 10, 3):
        await queue(store, batch("q", start=start), batch("q", 2, start=start + 1))
    await apply_all(store)
    assert numbers(await pop_all(store, "q")) == list(range(1, 10))


async def test_ids_of_one_bundle_differ_in_the_ordinal(store: Store) -> None:
    ids = await queue(store, batch("q"), batch("q"))
    assert [split_operation_id(one)[1] for one in ids] == [0, 1]
    assert split_operation_id(ids[0])[0] == split_operation_id(ids[1])[0]


async def test_applied_push_has_the_receipts_of_a_direct_one(store: Store) -> None:
    direct = await push_n(store, "q", 2, partition="a")
    pushed = [batch("q", 2, partition="a", start=3), batch("q", 1, partition="b")]
    [operation_id] = await queue(store, pushed)
    await apply(store)
    receipts = list((await outcome(store, operation_id)).pushed(pushed))
    assert [(r.partition, r.seq, r.status) for r in receipts] == [
        ("a", 3, "queued"),
        ("a", 4, "queued"),
        ("b", 1, "queued"),
    ]
    assert receipts[0].partition_id == direct[0].partition_id
    popped = {message.id: message.json()["n"] for message in await pop_all(store, "q")}
    assert [popped[receipt.message_id] for receipt in receipts] == [3, 4, 1]


async def test_push_is_refused_while_an_operation_waits_for_its_partition(store: Store) -> None:
    await queue(store, batch("q", partition="a"))
    with pytest.raises(OperationPending) as refused:
        await store.push([batch("q", partition="b"), batch("q", partition="a", start=2), batch("r")])
    assert refused.value.details["batches"] == [1]
    assert not await pop(store, "q")
    await push_n(store, "q", partition="b")
    await apply_all(store)
    await push_n(store, "q", partition="a", start=2)
    assert numbers(await pop_all(store, "q", partition="a")) == [1, 2]


async def test_refused_push_of_several_batches_for_one_partition_names_them_all(store: Store) -> None:
    await queue(store, batch("q", partition="a"))
    with pytest.raises(OperationPending) as refused:
        await store.push([batch("q", partition="a"), batch("q", partition="b"), batch("q", partition="a")])
    assert refused.value.details["batches"] == [0, 2]


async def test_refused_push_does_not_count_for_a_max_size(store: Store) -> None:
    await configure(store, "q", max_size=2)
    await queue(store, batch("q"))
    with pytest.raises(OperationPending):
        await store.push([batch("q")])
    await apply_all(store)
    [receipt] = await push_n(store, "q", start=2)
    assert (receipt.depth, receipt.remaining) == (2, 0)


async def test_transaction_with_a_push_is_refused_while_an_operation_waits(store: Store) -> None:
    await push_n(store, "source")
    popped = await pop(store, "source")
    await queue(store, batch("q"))
    with pytest.raises(OperationPending):
        await store.transaction([Ack(lease_id=popped.lease_id)], [batch("q")])
    outcomes = await store.ack([Ack(lease_id=popped.lease_id)])
    assert outcomes[0].success
    assert outcomes[0].messages == 1


async def test_what_no_producer_ordered_goes_before_operations(store: Store, clock: SetClock) -> None:
    await dead_letter_by_dlq(store, "q")
    await store.push([Batch("q", "Default", batch("q", start=2).columns, NewSchedule(delay_seconds=5))])
    await queue(store, batch("q", start=3))
    clock.advance(seconds=6)
    assert await store.redrive(DeadLetterFilter(queue="q")) == 1
    assert (await store.promote(limit=10)).messages == 1
    await apply_all(store)
    assert numbers(await pop_all(store, "q")) == [1, 2, 3]


async def test_duplicates_are_found_when_an_operation_is_applied(store: Store) -> None:
    [first] = await store.push([tagged("q", ["x"])])
    pushed = tagged("q", ["x", "y", "y"])
    [operation_id] = await queue(store, pushed)
    await apply(store)
    receipts = (await outcome(store, operation_id)).pushed([pushed])
    assert [r.status for r in receipts] == ["duplicate", "queued", "duplicate"]
    assert receipts[0].message_id == first.message_id
    assert receipts[2].message_id == receipts[1].message_id


async def test_scheduled_messages_of_an_operation_wait_for_their_time(store: Store, clock: SetClock) -> None:
    due_at = clock() + timedelta(seconds=60)
    pushed = Batch("q", "later", batch("q").columns, NewSchedule(deliver_at=due_at, key="k"))
    [operation_id] = await queue(store, [pushed, batch("q", start=2)])
    applied = await store.apply_operations("push", by="test", limits=LIMITS)
    assert applied.first_due_at == due_at
    assert applied.partitions_by_queue == {"q": {"Default"}}
    receipts = (await outcome(store, operation_id)).pushed([pushed, batch("q", start=2)])
    assert [(r.status, r.due_at) for r in receipts] == [("scheduled", due_at), ("queued", None)]


async def test_operation_whose_queue_is_full_is_tried_again_and_holds_up_its_partition(
    store: Store, clock: SetClock
) -> None:
    await configure(store, "full", max_size=1)
    await push_n(store, "full")
    ids = await queue(store, batch("full", start=2), batch("other"))
    later = await queue(store, batch("full", start=3))
    assert await apply(store) == 1
    assert numbers(await pop_all(store, "other")) == [1]
    waiting = await store.operation(ids[0])
    assert (waiting.status, waiting.retries, waiting.position) == ("pending", 1, 1)
    assert waiting.error is not None
    assert waiting.error.startswith(QueueFull.code)
    assert (await store.operation(later[0])).status == "pending"
    await pop_all(store, "full")
    assert await apply(store) == 0
    clock.advance(seconds=2)
    assert await apply(store) == 1
    assert numbers(await pop_all(store, "full")) == [2]
    clock.advance(seconds=4)
    await apply_all(store)
    assert numbers(await pop_all(store, "full")) == [3]


async def test_one_operation_is_tried_again_and_those_behind_it_follow_at_once_when_it_is_applied(
    store: Store, clock: SetClock
) -> None:
    await configure(store, "full", max_size=1)
    await push_n(store, "full")
    for number in range(2, 6):
        await queue(store, batch("full", start=number), batch("other", start=number))
    assert await apply(store) == 4, "what is for the other queue"
    clock.advance(seconds=2)
    again = await store.apply_operations("push", by="test", limits=LIMITS)
    assert (again.operations, again.postponed) == (0, 1)
    await configure(store, "full", max_size=0)
    clock.advance(seconds=4)
    assert [await apply(store), await apply(store)] == [1, 3]
    assert numbers(await pop_all(store, "full")) == [1, 2, 3, 4, 5]


async def test_what_waits_behind_a_sleeping_operation_is_woken_link_by_link_and_at_once(
    store: Store, clock: SetClock
) -> None:
    await configure(store, "full", max_size=1)
    await push_n(store, "full")
    await queue(store, batch("full", start=2))
    assert await apply(store) == 0
    await queue(store, [batch("full", start=3), batch("other", start=1)])
    await queue(store, batch("other", start=2))
    clock.advance(seconds=1)
    assert await apply(store) == 0, "the first is not due, and the others sleep behind it"
    await configure(store, "full", max_size=0)
    clock.advance(seconds=1)
    assert [await apply(store) for _ in range(4)] == [1, 1, 1, 0]
    assert numbers(await pop_all(store, "full")) == [1, 2, 3]
    assert numbers(await pop_all(store, "other")) == [1, 2]


async def test_call_ends_at_a_bundle_that_is_too_large_for_it_and_the_next_one_passes_it(
    store: Store, clock: SetClock
) -> None:
    await configure(store, "full", max_size=1)
    await push_n(store, "full")
    await queue(store, batch("full", start=2))
    assert await apply(store) == 0
    clock.advance(seconds=1)
    await queue(store, batch("other"))
    await queue(store, batch("full", 3, start=3))
    await queue(store, batch("other", start=2))
    assert [await apply(store, messages_max=2) for _ in range(3)] == [1, 1, 0]
    assert numbers(await pop_all(store, "other")) == [1, 2]


async def test_operation_fails_when_its_retries_are_used_up_and_blocks_nobody(store: Store, clock: SetClock) -> None:
    await configure(store, "full", max_size=2)
    await push_n(store, "full")
    [too_much] = await queue(store, batch("full", 2, start=2))
    [fits] = await queue(store, batch("full", 1, start=9))
    for _ in range(4):
        await apply_all(store)
        clock.advance(seconds=100)
    failed = await store.operation(too_much)
    assert (failed.status, failed.error_code) == ("failed", QueueFull.code)
    assert (await store.operation(fits)).status == "done"
    assert numbers(await pop_all(store, "full")) == [1, 9]
    assert (await store.operation_counts()).failed == 1
    with pytest.raises(QueueFull):
        (await outcome(store, too_much)).pushed()


async def test_failed_operation_can_be_tried_again(store: Store, clock: SetClock) -> None:
    await configure(store, "full", max_size=1)
    await push_n(store, "full")
    [failing, other] = await queue(store, batch("full", start=2), batch("other"))
    for _ in range(4):
        await apply_all(store)
        clock.advance(seconds=100)
    with pytest.raises(Conflict):
        await store.retry_operation(other)
    await pop_all(store, "full")
    assert (await store.retry_operation(failing)).status == "pending"
    with pytest.raises(OperationPending):
        await push_n(store, "full", start=3)
    assert await apply(store) == 1
    assert numbers(await pop_all(store, "full")) == [2]
    assert (await store.operation_counts()).failed == 0


async def test_limits_of_a_call_are_kept_but_for_a_single_bundle(store: Store) -> None:
    for start in range(1, 10, 3):
        await queue(store, batch("q", 3, start=start))
    assert await apply(store, messages_max=2) == 1
    assert await apply(store, messages_max=6) == 2
    assert numbers(await pop_all(store, "q")) == list(range(1, 10))


async def test_acks_are_applied_in_order_with_their_outcomes(store: Store) -> None:
    await push_n(store, "q", 4)
    popped = await pop(store, "q", batch=4)
    partition_id = popped.partition_ids[0]
    up_to_two = Ack(lease_id=popped.lease_id, partition_id=partition_id, seq=2)
    rest = Ack(lease_id=popped.lease_id)
    ids = await store.queue_operations([NewOperation(acks=[up_to_two]), NewOperation(acks=[rest])])
    assert await apply(store, "push") == 0
    assert await apply(store, "ack") == 2
    first, second = [(await outcome(store, one)).outcomes() for one in ids]
    assert (first[0].success, first[0].messages, first[0].released) == (True, 2, False)
    assert (second[0].success, second[0].messages, second[0].released) == (True, 2, True)
    assert not await pop(store, "q")


async def test_queued_ack_that_comes_too_late_says_so(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=10)
    await push_n(store, "q")
    popped = await pop(store, "q")
    [operation_id] = await store.queue_operations([NewOperation(acks=[Ack(lease_id=popped.lease_id)])])
    clock.advance(seconds=11)
    again = await pop(store, "q")
    await apply_all(store, "ack")
    assert [one.error for one in (await outcome(store, operation_id)).outcomes()] == ["lease_lost"]
    assert (await ack(store, lease_id=again.lease_id)).success


async def test_queued_failures_make_dead_letters_in_the_dead_queue(store: Store) -> None:
    await configure(store, "dead")
    await configure(store, "q", dead_queue="dead")
    await push_n(store, "q")
    popped = await pop(store, "q")
    await store.queue_operations([NewOperation(acks=[Ack(lease_id=popped.lease_id, status="dlq", error="bad")])])
    await apply_all(store, "ack")
    assert numbers(await pop_all(store, "dead")) == [1]


async def test_counts_tell_what_waits_of_each_kind(store: Store, clock: SetClock) -> None:
    assert [(depth.kind, depth.operations) for depth in (await store.operation_counts()).pending] == [
        ("ack", 0),
        ("push", 0),
    ]
    began_at = clock()
    await queue(store, batch("q", 3), batch("r"))
    clock.advance(seconds=5)
    await queue(store, batch("q"))
    await store.queue_operations([NewOperation(acks=[Ack(lease_id=str(uuid7(1)))])])
    counts = await store.operation_counts()
    push_depth = counts.depth("push")
    assert (push_depth.operations, push_depth.messages, push_depth.oldest_at) == (3, 5, began_at)
    assert push_depth.bytes > 0
    assert counts.depth("ack").operations == 1


async def test_counts_follow_operations_through_failure_retry_and_pruning(store: Store, clock: SetClock) -> None:
    async def counted() -> tuple[int, int, int]:
        counts = await store.operation_counts()
        return counts.depth("push").operations, counts.depth("push").messages, counts.failed

    await configure(store, "full", max_size=1)
    await push_n(store, "full")
    [failing, _] = await queue(store, batch("full", 2, start=2), batch("q", 3))
    assert await counted() == (2, 5, 0)
    await apply_all(store)
    assert await counted() == (2, 5, 0), "a bundle waits as a whole"
    for _ in range(3):
        clock.advance(seconds=100)
        await apply_all(store)
    assert await counted() == (0, 0, 1)
    await store.retry_operation(failing)
    assert await counted() == (2, 5, 0)
    await pop_all(store, "full")
    await configure(store, "full", max_size=100)
    await apply_all(store)
    assert await counted() == (0, 0, 0)
    [failing] = await queue(store, batch("full", 200))
    for _ in range(4):
        await apply_all(store)
        clock.advance(seconds=100)
    assert await counted() == (0, 0, 1)
    assert await store.prune_operations(0, failed_seconds=0, limit=10) == 2
    assert await counted() == (0, 0, 0)
    assert (await store.operation_counts()).depth("push").bytes == 0


async def test_pages_of_operations_by_status(store: Store) -> None:
    done = await queue(store, batch("q"), batch("q"))
    await apply_all(store)
    waiting = [one for _ in range(3) for one in await queue(store, batch("q"), batch("q"))]
    assert await listed(store, limit=3) == done + waiting
    assert await listed(store, status="pending", limit=2) == waiting
    assert await listed(store, status="done", limit=1) == done
    assert await listed(store, status="failed", limit=10) == []
    with pytest.raises(InvalidRequest):
        await store.operations(cursor="nonsense")


async def test_operations_tell_what_they_are_for(store: Store) -> None:
    several = [batch("a", partition="x"), batch("b", 2, partition="y")]
    later = batch("late", 3)
    later.schedule = NewSchedule(delay_seconds=60)
    await store.queue_operations([NewOperation([batch("a", 2, partition="x")]), NewOperation(several)])
    await store.queue_operations([NewOperation([later])])
    await store.queue_operations([NewOperation(acks=[Ack(partition_id=1, seq=1), Ack(partition_id=1, seq=2)])])

    async def told() -> list[tuple[Any, ...]]:
        infos = (await store.operations()).items
        return [(one.queues, one.partition, one.partitions, one.messages) for one in infos]

    expected = [
        (["a"], "x", 1, 2),
        (["a", "b"], None, 2, 3),
        (["late"], "Default", 1, 3),
        ([], None, 0, 2),
    ]
    assert await told() == expected
    await apply_all(store)
    assert await told() == expected


@pytest.mark.parametrize("status", [None, "pending", "done", "failed"])
async def test_operations_of_a_queue(store: Store, status: Any) -> None:
    await configure(store, "full", max_size=1)
    await store.push([batch("full")])
    mine, _ = await queue(store, batch("mine"), batch("other"))
    [both] = await store.queue_operations([NewOperation([batch("mine"), batch("other")])])
    await queue(store, batch("other"))
    if status == "done":
        await apply_all(store)
    expected = [mine, both] if status != "failed" else []
    assert await listed(store, limit=1, status=status, queue="mine") == expected
    assert await listed(store, limit=10, status=status, queue="nobody") == []


async def test_pages_do_not_depend_on_how_operations_are_bundled(store: Store) -> None:
    """A page looks into as many bundles as it needs, whatever is before it."""
    ids = [one for size in (1, 7, 1, 1, 12) for one in await queue(store, *[batch("q")] * size)]
    for limit in (1, 2, 5, 100):
        assert await listed(store, limit=limit) == ids
        assert await listed(store, limit=limit, status="pending") == ids
    await apply_all(store)
    assert await listed(store, limit=3, status="done", queue="q") == ids


async def listed(store: Store, *, limit: int, status: Any = None, queue: str | None = None) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = await store.operations(status=status, queue=queue, cursor=cursor, limit=limit)
        assert len(page.items) <= limit
        found += [info.id for info in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return found


async def test_position_counts_what_is_before(store: Store) -> None:
    ids = [one for _ in range(2) for one in await queue(store, batch("q"), batch("r"))]
    assert [(await store.operation(one)).position for one in ids] == [1, 2, 3, 4]
    await apply_all(store)
    assert (await store.operation(ids[0])).position is None


async def test_unknown_operation(store: Store) -> None:
    [known] = await queue(store, batch("q"))
    for unknown in (str(uuid7(1)), known[:-1] + "7"):
        with pytest.raises(OperationNotFound):
            await store.operation(unknown)
        with pytest.raises(OperationNotFound):
            await store.retry_operation(unknown)
    with pytest.raises(InvalidRequest):
        await store.operation("nonsense")


async def test_outcomes_of_bundles(store: Store) -> None:
    [first] = await queue(store, batch("q"))
    bundle, _ = split_operation_id(first)
    await apply_all(store)
    [found] = (await store.operation_outcomes([bundle]))[bundle]
    assert found is not None
    assert found.status == "done"


async def test_what_has_ended_is_pruned_after_a_while(store: Store, clock: SetClock) -> None:
    await configure(store, "full", max_size=1)
    await push_n(store, "full")
    done = await queue(store, batch("q"))
    await apply_all(store)
    failed = await queue(store, batch("full"))
    for _ in range(4):
        await apply_all(store)
        clock.advance(seconds=100)
    waiting = await queue(store, batch("q", start=2))
    clock.advance(seconds=3600)
    assert await store.prune_operations(3600, failed_seconds=10_000, limit=10) == 1
    assert await listed(store, limit=10) == failed + waiting
    clock.advance(seconds=10_000)
    assert await store.prune_operations(3600, failed_seconds=10_000, limit=10) == 1
    assert await listed(store, limit=10) == waiting
    with pytest.raises(OperationNotFound):
        await store.operation(done[0])


async def test_operation_after_its_queue_was_deleted_makes_it_again(store: Store) -> None:
    [operation_id] = await queue(store, batch("q"))
    assert await store.delete_queue("q")
    await push_n(store, "q", start=2)
    await apply_all(store)
    assert (await store.operation(operation_id)).status == "done"
    assert sorted(numbers(await pop_all(store, "q"))) == [1, 2]


async def test_partition_for_which_an_operation_waits_is_not_idle(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", partition="a")
    await store.clear("q")
    await queue(store, batch("q", partition="a", start=2))
    for _ in range(2):
        await store.prune_partitions(60, limit=10)
        clock.advance(seconds=100)
    assert [one.name for one in await store.partitions("q")] == ["a"]
    with pytest.raises(OperationPending):
        await push_n(store, "q", partition="a")
