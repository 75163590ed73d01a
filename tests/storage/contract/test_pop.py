"""Pop: what is delivered, to whom, in which order, and under which lease."""

from __future__ import annotations

import pytest

from lockstep.core.policy import queue_options
from lockstep.core.records import MessageFilter, PopRequest
from lockstep.storage.base import Store
from support.builders import (
    ack,
    attempts_of,
    batch,
    configure,
    lag_of,
    numbers,
    partitions_of,
    pop,
    pop_all,
    push_n,
    seqs,
)
from support.clock import SetClock


async def push_partitions(store: Store, *names: str, count: int = 1, queue: str = "q") -> None:
    await store.push([batch(queue, count, partition=name) for name in names])


async def test_pop_leases_until_deadline(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=60)
    await push_n(store, "q", 2)
    popped = await pop(store, "q", batch=2)
    assert popped.lease_id
    assert popped.group == "__QUEUE_MODE__"
    assert popped.expires_at == clock.ahead(60)
    assert attempts_of(popped) == [1, 1]


@pytest.mark.parametrize("seconds", [5, 0.25, 1000])
async def test_pop_may_choose_its_lease_time(store: Store, clock: SetClock, seconds: float) -> None:
    await push_n(store, "q")
    assert (await pop(store, "q", lease_seconds=seconds)).expires_at == clock.ahead(seconds)
    clock.advance(seconds)
    assert seqs(await pop(store, "q")) == [1]


async def test_empty_pop_has_no_lease(store: Store) -> None:
    await configure(store, "q")
    popped = await pop(store, "q")
    assert (popped.runs, popped.lease_id, popped.expires_at) == ([], None, None)


async def test_pop_of_unknown_queue_creates_nothing_and_says_so(store: Store) -> None:
    popped = await pop(store, "q", group="g")
    assert (popped.runs, popped.no_queue) == ([], True)
    assert await store.queues() == []


async def test_pop_of_unknown_partition_creates_the_group_alone(store: Store) -> None:
    await push_n(store, "q", partition="a")
    popped = await pop(store, "q", partition="b", group="g")
    assert (popped.runs, popped.no_queue) == ([], False)
    assert [partition.name for partition in await store.partitions("q")] == ["a"]
    assert [group.name for group in await store.groups(queue="q")] == ["g"]


async def test_pop_of_unknown_namespace_finds_nothing(store: Store) -> None:
    await push_n(store, "shop.orders")
    assert not await pop(store, namespace="bank")
    assert not await pop(store, namespace="shop", task="bills")


async def test_pop_takes_no_more_than_batch(store: Store) -> None:
    await push_n(store, "q", 5)
    popped = await pop(store, "q", batch=2)
    assert seqs(popped) == [1, 2]
    await ack(store, lease_id=popped.lease_id)
    assert seqs(await pop(store, "q", batch=100)) == [3, 4, 5]


async def test_pop_reads_on_over_several_pushes(store: Store) -> None:
    for start in range(1, 30, 3):
        await push_n(store, "q", 3, start=start)
    for expected in ([1, 2], [3, 4, 5, 6, 7], list(range(8, 31))):
        popped = await pop(store, "q", batch=len(expected))
        assert numbers(popped) == seqs(popped) == expected
        await ack(store, lease_id=popped.lease_id)


async def test_leased_partition_is_hidden_from_its_group(store: Store) -> None:
    await push_n(store, "q", 3)
    await pop(store, "q", batch=1)
    assert not await pop(store, "q", batch=1)
    assert not await pop(store, "q", partition="Default", batch=1)
    await push_n(store, "q", 1)
    assert not await pop(store, "q", batch=1)


async def test_leased_partition_does_not_hide_another(store: Store) -> None:
    await push_partitions(store, "a", "b", count=2)
    first, second, third = [await pop(store, "q") for _ in range(3)]
    assert (partitions_of(first), partitions_of(second)) == (["a"], ["b"])
    assert first.lease_id != second.lease_id
    assert not third


async def test_groups_do_not_see_each_others_leases(store: Store) -> None:
    await push_n(store, "q", 2)
    for group in ("a", "b", "__QUEUE_MODE__"):
        assert seqs(await pop(store, "q", group=group, batch=5)) == [1, 2]


async def test_expired_lease_is_delivered_again_and_counted(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=30)
    await push_n(store, "q", 2)
    first = await pop(store, "q", batch=2)
    clock.advance(29.999_999)
    assert not await pop(store, "q", batch=2)
    clock.advance(0.000_001)
    second = await pop(store, "q", batch=2)
    assert seqs(second) == seqs(first)
    assert attempts_of(second) == [2, 2]
    assert second.lease_id != first.lease_id


async def test_redelivery_takes_in_what_came_meanwhile(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=30)
    await push_n(store, "q", 2)
    await pop(store, "q", batch=2)
    await push_n(store, "q", 2)
    clock.advance(30)
    assert seqs(await pop(store, "q", batch=10)) == [1, 2, 3, 4]


async def test_pop_of_one_partition_takes_only_that_one(store: Store) -> None:
    await push_partitions(store, "a", "b", "c", count=2)
    popped = await pop(store, "q", partition="b", batch=10, partitions=10)
    assert partitions_of(popped) == ["b"]
    assert seqs(popped) == [1, 2]


async def test_pop_claims_up_to_k_partitions_under_one_lease(store: Store) -> None:
    await push_partitions(store, "a", "b", "c", "d", count=2)
    popped = await pop(store, "q", batch=100, partitions=3)
    assert partitions_of(popped) == ["a", "b", "c"]
    assert seqs(popped) == [1, 2] * 3
    assert {lease.lease_id for lease in await store.leases()} == {popped.lease_id}
    assert partitions_of(await pop(store, "q", batch=100, partitions=3)) == ["d"]


async def test_batch_is_a_cap_over_all_partitions(store: Store) -> None:
    await push_partitions(store, "a", "b", "c", count=4)
    popped = await pop(store, "q", batch=6, partitions=3)
    assert [(m.partition, m.seq) for m in popped.messages()] == [
        ("a", 1),
        ("a", 2),
        ("a", 3),
        ("a", 4),
        ("b", 1),
        ("b", 2),
    ]
    # The partition that the batch had no room for is not leased.
    assert [lease.partition for lease in await store.leases()] == ["a", "b"]
    assert partitions_of(await pop(store, "q", batch=6, partitions=3)) == ["c"]


async def test_batch_filled_by_first_partition_leaves_the_next_alone(store: Store) -> None:
    await push_partitions(store, "a", "b", count=3)
    assert partitions_of(await pop(store, "q", batch=3, partitions=2)) == ["a"]
    assert partitions_of(await pop(store, "q", batch=3, partitions=2)) == ["b"]


async def test_partition_that_waits_longest_comes_first(store: Store, clock: SetClock) -> None:
    for name in ("c", "a", "b"):
        await push_partitions(store, name)
        clock.advance(1)
    assert [partitions_of(await pop(store, "q")) for _ in range(3)] == [["c"], ["a"], ["b"]]


async def test_partitions_due_at_the_same_time_come_by_id(store: Store) -> None:
    await push_partitions(store, "z")
    await push_partitions(store, "m")
    await push_partitions(store, "a")
    assert partitions_of(await pop(store, "q", batch=10, partitions=3)) == ["z", "m", "a"]


@pytest.mark.parametrize("auto_ack", [True, False])
async def test_served_partition_goes_to_the_tail(store: Store, clock: SetClock, auto_ack: bool) -> None:
    await configure(store, "q")
    await pop(store, "q")
    await push_partitions(store, "a", "b", "c", count=3)
    served: list[str] = []
    for _ in range(9):
        clock.advance(1)
        popped = await pop(store, "q", auto_ack=auto_ack)
        served += partitions_of(popped)
        if popped.lease_id:
            await ack(store, lease_id=popped.lease_id)
    assert served == ["a", "b", "c"] * 3


async def test_push_to_waiting_partition_does_not_change_its_turn(store: Store, clock: SetClock) -> None:
    await push_partitions(store, "a")
    clock.advance(1)
    await push_partitions(store, "b")
    clock.advance(1)
    await push_partitions(store, "a")
    assert partitions_of(await pop(store, "q")) == ["a"]


async def test_auto_ack_moves_on_without_a_lease(store: Store) -> None:
    await push_n(store, "q", 5)
    popped = await pop(store, "q", batch=2, auto_ack=True)
    assert (popped.lease_id, popped.expires_at) == (None, None)
    assert seqs(popped) == [1, 2]
    assert attempts_of(popped) == [1, 1]
    assert await store.leases() == []
    assert (await lag_of(store, "q")).acked == 2
    assert seqs(await pop(store, "q", batch=10, auto_ack=True)) == [3, 4, 5]
    assert not await pop(store, "q", batch=10, auto_ack=True)


async def test_auto_ack_counts_no_attempt(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=10, retry_limit=5)
    await push_n(store, "q", 2)
    await pop(store, "q", batch=1)
    clock.advance(10)
    assert attempts_of(await pop(store, "q", batch=1, auto_ack=True)) == [2]
    assert (await lag_of(store, "q")).attempts == 0
    assert attempts_of(await pop(store, "q", batch=1)) == [1]


async def test_auto_ack_over_several_partitions(store: Store) -> None:
    await push_partitions(store, "a", "b", count=2)
    assert len(await pop(store, "q", batch=3, partitions=2, auto_ack=True)) == 3
    assert [(lag.partition, lag.acked, lag.lag) for lag in await store.lag("q")] == [("a", 2, 0), ("b", 1, 1)]


async def test_requests_of_one_call_are_served_in_turn(store: Store) -> None:
    await push_partitions(store, "a", "b", count=2)
    first, second, third, other = await store.pop(
        [
            PopRequest(queue="q", batch=5),
            PopRequest(queue="q", batch=5),
            PopRequest(queue="q", batch=5),
            PopRequest(queue="q", batch=5, group="g", partitions=2),
        ]
    )
    assert (partitions_of(first), partitions_of(second), partitions_of(third)) == (["a"], ["b"], [])
    assert partitions_of(other) == ["a", "b"]
    assert other.group == "g"
    assert len({first.lease_id, second.lease_id, other.lease_id}) == 3


async def test_requests_of_one_call_go_on_where_the_one_before_has_enough(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=60)
    for name, count in [("a", 3), ("b", 1), ("c", 4), ("d", 2), ("e", 2), ("f", 2)]:
        await push_partitions(store, name, count=count)
    answers = await store.pop(
        [
            PopRequest(queue="q", partitions=2, batch=9),
            PopRequest(queue="q", partitions=9, batch=5),
            PopRequest(queue="q", partitions=1, batch=1, lease_seconds=5),
            PopRequest(queue="q", partitions=9, batch=9),
            PopRequest(queue="q", partitions=9, batch=9),
        ]
    )
    assert [[(run.partition, len(run)) for run in popped.runs] for popped in answers] == [
        [("a", 3), ("b", 1)],
        [("c", 4), ("d", 1)],
        [("e", 1)],
        [("f", 2)],
        [],
    ]
    assert [popped.expires_at for popped in answers] == [*[clock.ahead(60)] * 2, clock.ahead(5), clock.ahead(60), None]
    for popped in answers[:-1]:
        assert (await ack(store, lease_id=popped.lease_id)).success
    assert [seqs(popped) for popped in await store.pop([PopRequest(queue="q", batch=9)] * 3)] == [[2], [2], []]


async def test_requests_of_one_call_meet_expired_leases_and_removed_messages(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=10)
    await push_partitions(store, "a", "b", "c", "d", count=3)
    await pop(store, "q", partition="b")
    first = (await store.messages(MessageFilter(queue="q", partition="c"))).items[0].message
    await store.remove_message(first.partition_id, first.id)
    clock.advance(10)
    answers = await store.pop([PopRequest(queue="q", batch=2)] * 5)
    found = [(partitions_of(popped), seqs(popped), attempts_of(popped)) for popped in answers]
    assert sorted(found) == [
        ([], [], []),
        (["a"], [1, 2], [1, 1]),
        (["b"], [1, 2], [2, 2]),
        (["c"], [2, 3], [1, 1]),
        (["d"], [1, 2], [1, 1]),
    ]


async def test_request_sees_what_an_earlier_one_of_the_call_did(store: Store) -> None:
    await push_n(store, "q", 3)
    answers = await store.pop([PopRequest(queue="q", batch=2, auto_ack=True)] * 3)
    assert [seqs(popped) for popped in answers] == [[1, 2], [3], []]


async def test_requests_for_several_queues_and_unknown_ones(store: Store) -> None:
    await store.push([batch("a", 1), batch("b", 2)])
    answers = await store.pop([PopRequest(queue=name, batch=9) for name in ("b", "nowhere", "a")])
    assert [seqs(popped) for popped in answers] == [[1, 2], [], [1]]


async def test_requests_of_both_kinds_are_served_in_turn(store: Store) -> None:
    for name in "abc":
        await push_n(store, "shop.orders", partition=name)
    answers = await store.pop(
        [
            PopRequest(queue="shop.orders"),
            PopRequest(namespace="shop"),
            PopRequest(queue="shop.orders"),
        ]
    )
    assert [partitions_of(popped) for popped in answers] == [["a"], ["b"], ["c"]]


async def test_pop_of_nothing(store: Store) -> None:
    assert await store.pop([]) == []


# --- All queues of a namespace or task


async def prepared_shop(store: Store) -> None:
    for name, priority in [("shop.low", 0), ("shop.top-b", 5), ("shop.top-a", 5), ("bank.low", 9)]:
        await configure(store, name, priority=priority)
        await push_n(store, name, 2)


def queues_of(messages: object) -> list[str]:
    return list(dict.fromkeys(run.queue for run in messages.runs))  # type: ignore[attr-defined]


async def test_namespace_pop_goes_by_priority_then_name(store: Store) -> None:
    await prepared_shop(store)
    popped = await pop(store, namespace="shop", batch=100, partitions=10)
    assert queues_of(popped) == ["shop.top-a", "shop.top-b", "shop.low"]
    assert seqs(popped) == [1, 2] * 3
    assert [lease.lease_id for lease in await store.leases()] == [popped.lease_id] * 3


async def test_namespace_pop_stops_at_partitions(store: Store) -> None:
    await prepared_shop(store)
    assert queues_of(await pop(store, namespace="shop", batch=100, partitions=2)) == [
        "shop.top-a",
        "shop.top-b",
    ]
    assert queues_of(await pop(store, namespace="shop", batch=100, partitions=2)) == ["shop.low"]


async def test_namespace_pop_stops_at_batch(store: Store) -> None:
    await prepared_shop(store)
    popped = await pop(store, namespace="shop", batch=3, partitions=10)
    assert [(m.queue, m.seq) for m in popped.messages()] == [
        ("shop.top-a", 1),
        ("shop.top-a", 2),
        ("shop.top-b", 1),
    ]


async def test_task_pop_goes_over_namespaces(store: Store) -> None:
    await prepared_shop(store)
    assert queues_of(await pop(store, task="low", batch=100, partitions=10)) == ["bank.low", "shop.low"]


async def test_pop_of_namespace_and_task(store: Store) -> None:
    await prepared_shop(store)
    assert queues_of(await pop(store, namespace="shop", task="low", batch=100, partitions=10)) == ["shop.low"]


async def test_namespace_pop_follows_configured_namespace(store: Store) -> None:
    await store.configure("a", queue_options(), namespace="moved", task="x")
    await push_n(store, "a")
    assert queues_of(await pop(store, namespace="moved", task="x")) == ["a"]
    assert not await pop(store, namespace="a")


async def test_namespace_pop_skips_queue_without_work(store: Store) -> None:
    await prepared_shop(store)
    await pop_all(store, "shop.top-a")
    assert queues_of(await pop(store, namespace="shop", batch=1)) == ["shop.top-b"]


async def test_namespace_pop_creates_the_group_on_all_its_queues(store: Store) -> None:
    await prepared_shop(store)
    await pop(store, namespace="shop", batch=3, partitions=10, group="g")
    assert [group.queue for group in await store.groups(group="g")] == ["shop.low", "shop.top-a", "shop.top-b"]


async def test_namespace_pop_acks_at_once(store: Store) -> None:
    await prepared_shop(store)
    popped = await pop(store, namespace="shop", batch=5, partitions=10, auto_ack=True, group="g")
    assert len(popped) == 5
    assert popped.lease_id is None
    assert await store.leases() == []
    assert (await store.depth("shop.low", "g")).pending == 1


async def test_lease_over_queues_lasts_as_long_as_each_says(store: Store, clock: SetClock) -> None:
    await configure(store, "shop.a", lease_seconds=10)
    await configure(store, "shop.b", lease_seconds=20)
    await store.push([batch("shop.a", 1), batch("shop.b", 1)])
    popped = await pop(store, namespace="shop", batch=10, partitions=2)
    assert [(lease.queue, lease.expires_at) for lease in await store.leases()] == [
        ("shop.a", clock.ahead(10)),
        ("shop.b", clock.ahead(20)),
    ]
    assert popped.expires_at == clock.ahead(10)
