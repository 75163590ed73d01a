"""Leases that are continued: what is completed, what is leased next, and who has to wait."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.core.records import AckOutcome, DeadLetterFilter, NextRequest, Popped, PopRequest, Position
from lockstep.errors import GroupModeMismatch
from lockstep.storage.base import Store
from support.builders import (
    ack,
    attempts_of,
    batch,
    configure,
    lag_of,
    next_of,
    partitions_of,
    pop,
    push_n,
    seqs,
)
from support.clock import SetClock

NO_LEASE = "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"


async def push_to(store: Store, count: int, *partitions: str) -> None:
    await store.push([batch("q", count, partition=name) for name in partitions])


def place(popped: Popped) -> list[tuple[str, int]]:
    return [(message.partition, message.seq) for message in popped.messages()]


async def assert_lost(store: Store, popped: Popped, **request: Any) -> None:
    continued = await next_of(store, popped, "q", **request)
    assert (continued.acked.success, continued.acked.error) == (False, "lease_lost")
    assert (continued.popped.runs, continued.popped.lease_id) == ([], None)


# --- What is done, and what comes next


async def test_next_completes_the_lease_and_goes_on(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 5)
    popped = await pop(store, "q", batch=2)
    clock.advance(1)
    continued = await next_of(store, popped, "q", batch=2)
    assert continued.acked == AckOutcome(index=0, success=True, messages=2, queue="q", partition="Default")
    assert seqs(continued.popped) == [3, 4]
    assert continued.popped.lease_id not in (None, popped.lease_id)
    lag = await lag_of(store, "q")
    assert (lag.acked, lag.lag, lag.leased, lag.consumed_at) == (2, 3, True, clock.now)


async def test_whole_partition_is_consumed_in_order(store: Store) -> None:
    await push_n(store, "q", 10)
    popped, found = await pop(store, "q", batch=3), []
    while popped:
        found += seqs(popped)
        popped = (await next_of(store, popped, "q", batch=3)).popped
    assert found == list(range(1, 11))
    assert (await lag_of(store, "q")).lag == 0
    assert await store.leases() == []


async def test_drained_partition_is_given_back_and_woken_by_a_push(store: Store) -> None:
    await push_n(store, "q", 2)
    continued = await next_of(store, await pop(store, "q", batch=2), "q", batch=2)
    assert (continued.acked.released, continued.popped.runs) == (False, [])
    await push_n(store, "q", 1)
    assert seqs(await pop(store, "q", batch=2)) == [3]


async def test_lease_has_the_full_time_again(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=60)
    await push_n(store, "q", 3)
    popped = await pop(store, "q")
    clock.advance(40)
    assert (await next_of(store, popped, "q", hold_seconds=100)).popped.expires_at == clock.ahead(60)
    continued = await next_of(store, await pop_again(store, clock), "q", lease_seconds=5)
    assert continued.popped.expires_at == clock.ahead(5)


async def pop_again(store: Store, clock: SetClock) -> Popped:
    clock.advance(60)
    return await pop(store, "q")


async def test_lease_tells_since_when_its_consumer_has_the_partition(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 3)
    popped, began = await pop(store, "q"), clock.now
    clock.advance(5)
    await next_of(store, popped, "q")
    [lease] = await store.leases()
    assert (lease.leased_at, lease.first_seq, lease.attempt) == (began, 2, 1)


async def test_part_that_was_acknowledged_before_is_not_counted_again(store: Store) -> None:
    await push_n(store, "q", 6)
    popped = await pop(store, "q", batch=3)
    await ack(store, lease_id=popped.lease_id, seq=2)
    continued = await next_of(store, popped, "q", batch=3)
    assert (continued.acked.messages, seqs(continued.popped)) == (1, [4, 5, 6])


# --- Several partitions


async def test_batch_is_shared_by_the_partitions(store: Store) -> None:
    await push_to(store, 1, "a", "b", "c")
    popped = await pop(store, "q", batch=3, partitions=3)
    await push_to(store, 9, "a", "b", "c")
    continued = await next_of(store, popped, "q", batch=7, partitions=3)
    assert place(continued.popped) == [("a", n) for n in (2, 3, 4)] + [("b", 2), ("b", 3), ("c", 2), ("c", 3)]


async def test_what_one_partition_leaves_goes_to_the_next(store: Store) -> None:
    await push_to(store, 1, "a", "b", "c")
    popped = await pop(store, "q", batch=3, partitions=3)
    await store.push([batch("q", 1, partition="a"), batch("q", 9, partition="c")])
    continued = await next_of(store, popped, "q", batch=6, partitions=3)
    assert place(continued.popped) == [("a", 2), *[("c", n) for n in range(2, 7)]]


async def test_each_of_many_partitions_gets_at_least_one_message(store: Store) -> None:
    await push_to(store, 1, "a", "b", "c")
    popped = await pop(store, "q", batch=3, partitions=3)
    await push_to(store, 9, "a", "b", "c")
    continued = await next_of(store, popped, "q", batch=2, partitions=3)
    assert place(continued.popped) == [("a", 2), ("b", 2)]
    assert continued.acked.released
    assert place(await pop(store, "q")) == [("c", 2)]


async def test_fewer_partitions_may_be_asked_for(store: Store) -> None:
    await push_to(store, 2, "a", "b", "c")
    popped = await pop(store, "q", batch=6, partitions=3)
    await push_to(store, 2, "a", "b", "c")
    continued = await next_of(store, popped, "q", batch=6, partitions=2)
    assert partitions_of(continued.popped) == ["a", "b"]


async def test_drained_partitions_are_replaced_by_others(store: Store, clock: SetClock) -> None:
    await push_to(store, 2, "a", "b")
    popped = await pop(store, "q", batch=4, partitions=2)
    await push_to(store, 2, "b")
    clock.advance(1)
    await push_to(store, 2, "c", "d")
    continued = await next_of(store, popped, "q", batch=4, partitions=2)
    assert place(continued.popped) == [("b", 3), ("b", 4), ("c", 1), ("c", 2)]
    assert not continued.acked.released


async def test_all_that_is_leased_next_is_under_one_lease(store: Store) -> None:
    await push_to(store, 2, "a")
    popped = await pop(store, "q", batch=1)
    await push_to(store, 2, "b")
    continued = (await next_of(store, popped, "q", batch=4, partitions=2)).popped
    assert partitions_of(continued) == ["a", "b"]
    assert (await ack(store, lease_id=continued.lease_id)).messages == 3
    assert await store.leases() == []


async def test_requests_of_a_call_keep_what_is_theirs(store: Store) -> None:
    await push_to(store, 2, "a", "b")
    first, second = await pop(store, "q"), await pop(store, "q")
    wanted = PopRequest(queue="q", batch=5, partitions=5)
    requests = [NextRequest(lease_id=one.lease_id or "", pop=wanted) for one in (first, second)]
    continued = await store.next(requests, hold_seconds=60)
    assert [place(one.popped) for one in continued] == [[("a", 2)], [("b", 2)]]
    assert [one.acked.index for one in continued] == [0, 1]
    assert continued[0].popped.lease_id != continued[1].popped.lease_id


async def test_named_partition_is_the_only_one(store: Store) -> None:
    await push_to(store, 3, "a", "b")
    popped = await pop(store, "q", partition="b")
    continued = await next_of(store, popped, "q", partition="b", batch=9)
    assert place(continued.popped) == [("b", 2), ("b", 3)]
    empty = await next_of(store, continued.popped, "q", partition="b", batch=9)
    assert (empty.acked.success, empty.popped.runs) == (True, [])


async def test_partition_of_the_lease_that_is_not_asked_for_is_given_back(store: Store) -> None:
    await push_to(store, 3, "a", "b")
    popped = await pop(store, "q", partition="a")
    continued = await next_of(store, popped, "q", partition="b")
    assert (place(continued.popped), continued.acked.released) == ([("b", 1)], True)
    assert place(await pop(store, "q")) == [("a", 2)]


async def test_next_may_go_to_another_queue_and_group(store: Store) -> None:
    await push_n(store, "q", 2)
    await push_n(store, "r", 2)
    continued = await next_of(store, await pop(store, "q"), "r", group="g")
    assert [run.queue for run in continued.popped.runs] == ["r"]
    assert (await lag_of(store, "q")).acked == 1


async def test_queue_that_does_not_exist(store: Store) -> None:
    await push_n(store, "q", 2)
    continued = await next_of(store, await pop(store, "q"), "nowhere")
    assert (continued.acked.success, continued.popped.no_queue) == (True, True)


async def test_queues_of_a_namespace_come_by_priority(store: Store) -> None:
    await configure(store, "shop.a", priority=0)
    await configure(store, "shop.b", priority=5)
    await push_n(store, "shop.a", 3)
    popped = await pop(store, namespace="shop")
    await push_n(store, "shop.b", 1)
    continued = await next_of(store, popped, namespace="shop")
    assert [run.queue for run in continued.popped.runs] == ["shop.b"]


async def test_fullest_partition_of_a_balanced_queue_comes_first(store: Store) -> None:
    await configure(store, "q", partitions=2)
    await store.push([batch("q", 2, partition="0"), batch("q", 9, partition="1")])
    popped = await pop(store, "q", partition="0")
    assert partitions_of((await next_of(store, popped, "q")).popped) == ["1"]


# --- Fairness


async def test_partition_is_kept_before_what_was_due_earlier(store: Store, clock: SetClock) -> None:
    await push_to(store, 5, "a")
    popped = await pop(store, "q")
    await push_to(store, 5, "b")
    clock.advance(9.999)
    assert partitions_of((await next_of(store, popped, "q", hold_seconds=10)).popped) == ["a"]


async def test_partition_takes_its_turn_after_it_was_held(store: Store, clock: SetClock) -> None:
    await push_to(store, 5, "a")
    popped = await pop(store, "q")
    await push_to(store, 5, "b")
    clock.advance(5)
    popped = (await next_of(store, popped, "q", hold_seconds=10)).popped
    clock.advance(5)
    continued = await next_of(store, popped, "q", hold_seconds=10)
    assert (partitions_of(continued.popped), continued.acked.released) == (["b"], True)


async def test_held_partition_comes_again_if_nothing_else_is_due(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 5)
    popped = await pop(store, "q")
    clock.advance(10)
    continued = await next_of(store, popped, "q", hold_seconds=10)
    assert (seqs(continued.popped), continued.acked.released) == ([2], False)
    [lease] = await store.leases()
    assert lease.leased_at == clock.now


async def test_held_partition_is_left_to_those_who_wait(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 5)
    popped = await pop(store, "q")
    clock.advance(10)
    continued = await next_of(store, popped, "q", hold_seconds=10, give_way=True)
    assert (continued.popped.runs, continued.acked.released) == ([], True)
    clock.advance(0.001)
    assert seqs(await pop(store, "q")) == [2]


async def test_giving_way_leaves_what_was_not_held_for_long(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 5)
    popped = await pop(store, "q")
    clock.advance(9)
    assert seqs((await next_of(store, popped, "q", hold_seconds=10, give_way=True)).popped) == [2]


async def test_no_partition_starves(store: Store, clock: SetClock) -> None:
    """Two consumers that never pause, on more partitions than they can hold, each with more than they can do."""
    names = [f"p{number}" for number in range(9)]
    await push_to(store, 200, *names)
    held = [await pop(store, "q", batch=4, partitions=2) for _ in range(2)]
    served: dict[str, list[int]] = {name: [] for name in names}
    for turn in range(60):
        clock.advance(1)
        for number in range(2):
            held[number] = (await next_of(store, held[number], "q", batch=4, partitions=2, hold_seconds=3)).popped
            for name in partitions_of(held[number]):
                served[name].append(turn)
    for turns in served.values():
        gaps = [after - before for before, after in zip([0, *turns], [*turns, 60], strict=True)]
        assert max(gaps) <= 15, "nine partitions, three turns each, by two consumers"


async def test_clock_that_was_set_back_does_not_prolong_the_hold(store: Store, clock: SetClock) -> None:
    await push_to(store, 5, "a")
    popped = await pop(store, "q")
    clock.set_back(3600)
    await push_to(store, 5, "b")
    clock.advance(1)
    assert partitions_of((await next_of(store, popped, "q", hold_seconds=10)).popped) == ["b"]


async def test_paused_group_completes_and_leases_nothing(store: Store) -> None:
    await push_n(store, "q", 3)
    popped = await pop(store, "q", group="g")
    await store.pause_group("q", "g")
    continued = await next_of(store, popped, "q")
    assert (continued.acked.success, continued.popped.runs) == (True, [])
    await store.pause_group("q", "g", paused=False)
    assert seqs(await pop(store, "q", group="g")) == [2]


# --- Fencing


async def test_lease_that_nobody_has_is_lost(store: Store) -> None:
    await push_n(store, "q", 2)
    await assert_lost(store, Popped("__QUEUE_MODE__", lease_id=NO_LEASE))
    await assert_lost(store, Popped("__QUEUE_MODE__", lease_id="garbage"))
    assert seqs(await pop(store, "q")) == [1]


async def test_repeated_request_is_refused_and_skips_nothing(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 4)
    popped = await pop(store, "q", lease_seconds=10)
    lost_answer = await next_of(store, popped, "q", lease_seconds=10)
    await assert_lost(store, popped)
    clock.advance(10)
    again = await pop(store, "q")
    assert (seqs(again), attempts_of(again)) == (seqs(lost_answer.popped), [2])


async def test_lease_that_a_call_names_twice_counts_once(store: Store) -> None:
    await push_n(store, "q", 4)
    popped = await pop(store, "q")
    request = NextRequest(lease_id=popped.lease_id or "", pop=PopRequest(queue="q"))
    first, second = await store.next([request, request], hold_seconds=60)
    assert (seqs(first.popped), second.acked.error, second.popped.runs) == ([2], "lease_lost", [])


async def test_expired_lease_is_lost(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 3)
    popped = await pop(store, "q", lease_seconds=10)
    clock.advance(10)
    await assert_lost(store, popped)
    assert (await lag_of(store, "q")).acked == 0
    again = await pop(store, "q")
    assert (seqs(again), attempts_of(again)) == ([1], [2])


async def test_lease_that_was_taken_over_changes_nothing(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 3)
    popped = await pop(store, "q", lease_seconds=10)
    clock.advance(10)
    other = await pop(store, "q", batch=2)
    await assert_lost(store, popped)
    assert (await ack(store, lease_id=other.lease_id)).messages == 2


async def test_lease_of_which_one_partition_expired_leases_nothing(store: Store, clock: SetClock) -> None:
    """As an ack: what is live is completed, and the whole is refused."""
    await configure(store, "q", lease_seconds=20)
    await push_to(store, 2, "a", "b")
    popped = await pop(store, "q", batch=4, partitions=2, lease_seconds=10)
    await push_to(store, 2, "a", "b")
    await store.seek("q", popped.group, Position("seq", seq=2), partition="a")
    clock.advance(10)
    await assert_lost(store, popped, batch=4, partitions=2)
    assert await store.leases() == []


async def test_seek_ends_what_would_be_continued(store: Store) -> None:
    await push_n(store, "q", 5)
    popped = await pop(store, "q")
    await store.seek("q", popped.group, Position("seq", seq=4))
    await assert_lost(store, popped)
    assert seqs(await pop(store, "q")) == [4]


async def test_cleared_queue_has_nothing_to_continue(store: Store) -> None:
    await push_n(store, "q", 5)
    popped = await pop(store, "q")
    await store.clear("q", partition=None, scope="all")
    await assert_lost(store, popped)


async def test_deleted_group_has_nothing_to_continue(store: Store) -> None:
    await push_n(store, "q", 5)
    popped = await pop(store, "q", group="g")
    await store.delete_group("g", queue="q")
    await assert_lost(store, popped)


async def test_failed_message_ends_the_lease(store: Store) -> None:
    await push_n(store, "q", 5)
    popped = await pop(store, "q", batch=2)
    await ack(store, lease_id=popped.lease_id, status="failed")
    await assert_lost(store, popped)


# --- The rules of single messages


async def test_new_head_has_not_failed_yet(store: Store) -> None:
    await configure(store, "q", retry_delay_ms=0)
    await push_n(store, "q", 3)
    await ack(store, lease_id=(await pop(store, "q")).lease_id, status="failed")
    popped = await pop(store, "q")
    assert attempts_of(popped) == [2]
    continued = (await next_of(store, popped, "q")).popped
    assert (seqs(continued), attempts_of(continued)) == ([2], [1])


async def test_continued_lease_that_expires_charges_an_attempt(store: Store, clock: SetClock) -> None:
    await configure(store, "q", retry_limit=0)
    await push_n(store, "q", 3)
    await next_of(store, await pop(store, "q"), "q", lease_seconds=10)
    clock.advance(10)
    assert seqs(await pop(store, "q")) == [3]
    [letter] = (await store.dead_letters(DeadLetterFilter())).items
    assert (letter.message.seq, letter.attempts, letter.error) == (2, 1, "lease expired")


async def test_delayed_message_is_not_continued_with(store: Store, clock: SetClock) -> None:
    await configure(store, "q", delay_seconds=10)
    await push_n(store, "q", 1)
    clock.advance(5)
    await push_n(store, "q", 1)
    clock.advance(5)
    popped = await pop(store, "q", batch=5)
    assert seqs(popped) == [1]
    continued = await next_of(store, popped, "q", batch=5)
    assert (continued.acked.success, continued.popped.runs) == (True, [])
    clock.advance(5)
    assert seqs(await pop(store, "q", batch=5)) == [2]


async def test_visible_part_of_a_delayed_partition_is_continued_with(store: Store, clock: SetClock) -> None:
    await configure(store, "q", delay_seconds=10)
    await push_n(store, "q", 3)
    clock.advance(5)
    await push_n(store, "q", 3)
    clock.advance(5)
    popped = await pop(store, "q", batch=2)
    assert seqs((await next_of(store, popped, "q", batch=5)).popped) == [3]


async def test_open_window_hides_the_rest(store: Store, clock: SetClock) -> None:
    await configure(store, "q", window_seconds=10)
    await push_n(store, "q", 2)
    clock.advance(10)
    popped = await pop(store, "q")
    await push_n(store, "q", 1)
    assert (await next_of(store, popped, "q", batch=5)).popped.runs == []
    clock.advance(10)
    assert seqs(await pop(store, "q", batch=5)) == [2, 3]


async def test_what_waited_too_long_is_passed(store: Store, clock: SetClock) -> None:
    await configure(store, "q", max_wait_seconds=10)
    await push_n(store, "q", 3)
    popped = await pop(store, "q", lease_seconds=100)
    clock.advance(11)
    await push_n(store, "q", 1)
    assert seqs((await next_of(store, popped, "q", batch=5)).popped) == [4]


async def test_expired_message_is_a_dead_letter(store: Store, clock: SetClock) -> None:
    await configure(store, "q", expire_seconds=10, lease_seconds=10)
    await push_n(store, "q", 2)
    popped = await pop(store, "q", lease_seconds=100)
    clock.advance(10)
    await push_n(store, "q", 1)
    assert seqs((await next_of(store, popped, "q", batch=5)).popped) == [3]
    [letter] = (await store.dead_letters(DeadLetterFilter())).items
    assert (letter.message.seq, letter.error) == (2, "expired")


async def test_what_dies_on_the_way_goes_to_the_dead_queue(store: Store, clock: SetClock) -> None:
    await configure(store, "dead")
    await configure(store, "q", expire_seconds=10, lease_seconds=10, dead_queue="dead")
    await push_n(store, "q", 2)
    popped = await pop(store, "q", lease_seconds=100)
    clock.advance(10)
    await push_n(store, "q", 1)
    assert seqs((await next_of(store, popped, "q", batch=5)).popped) == [3]
    assert len(await pop(store, "dead", batch=5)) == 1


async def test_removed_messages_are_skipped(store: Store) -> None:
    receipts = await push_n(store, "q", 4)
    popped = await pop(store, "q")
    await store.remove_message(receipts[1].partition_id, receipts[1].message_id)
    assert seqs((await next_of(store, popped, "q", batch=2)).popped) == [3, 4]


async def test_completed_messages_make_room(store: Store) -> None:
    await configure(store, "q", max_size=3)
    await push_n(store, "q", 3)
    popped = await pop(store, "q", batch=2)
    await next_of(store, popped, "q")
    [receipt] = await push_n(store, "q", 1)
    assert (receipt.depth, receipt.remaining) == (2, 1)


async def test_completed_messages_count_as_consumed(store: Store) -> None:
    await push_n(store, "q", 3)
    await next_of(store, await pop(store, "q", group="g", batch=2), "q")
    lag = await lag_of(store, "q", group="g")
    assert (lag.acked, lag.lag) == (2, 1)


# --- Shared groups


async def shared_pop(store: Store, count: int, **request: Any) -> Popped:
    return await pop(store, "q", group="workers", mode="shared", batch=count, **request)


async def test_shared_lease_is_completed_and_new_messages_are_leased(store: Store) -> None:
    await push_n(store, "q", 5)
    popped = await shared_pop(store, 2)
    continued = await next_of(store, popped, "q", mode="shared", batch=2)
    assert (continued.acked.success, continued.acked.messages) == (True, 2)
    assert (seqs(continued.popped), continued.popped.mode) == ([3, 4], "shared")
    assert (await lag_of(store, "q", group="workers")).lag == 3


async def test_shared_redelivery_comes_first(store: Store) -> None:
    await push_n(store, "q", 5)
    first, second = await shared_pop(store, 2), await shared_pop(store, 1)
    await ack(store, lease_id=first.lease_id, status="released")
    continued = await next_of(store, second, "q", batch=3)
    assert seqs(continued.popped) == [1, 2, 4]


async def test_shared_lease_that_is_gone_leases_nothing(store: Store, clock: SetClock) -> None:
    await push_n(store, "q", 5)
    popped = await shared_pop(store, 2, lease_seconds=10)
    continued = await next_of(store, popped, "q", batch=2)
    await assert_lost(store, popped)
    clock.advance(1000)
    await assert_lost(store, continued.popped)
    assert attempts_of(await shared_pop(store, 2)) == [2, 2]


async def test_request_in_the_wrong_mode_is_refused_and_completes_nothing(store: Store) -> None:
    await push_n(store, "q", 5)
    popped = await shared_pop(store, 2)
    with pytest.raises(GroupModeMismatch):
        await next_of(store, popped, "q", mode="ordered")
    assert (await ack(store, lease_id=popped.lease_id)).messages == 2


async def test_ordered_and_shared_leases_of_a_call(store: Store) -> None:
    await push_n(store, "q", 5)
    ordered, shared = await pop(store, "q", batch=2), await shared_pop(store, 2)
    requests = [
        NextRequest(lease_id=one.lease_id or "", pop=PopRequest(queue="q", group=one.group, batch=2))
        for one in (ordered, shared)
    ]
    continued = await store.next(requests, hold_seconds=60)
    assert [seqs(one.popped) for one in continued] == [[3, 4], [3, 4]]
    assert [one.acked.messages for one in continued] == [2, 2]
