"""When a message may be delivered: delay, window, and messages that waited too long."""

from __future__ import annotations

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


async def test_delayed_message_is_hidden_until_it_is_old_enough(store: Store, clock: SetClock) -> None:
    await configure(store, "q", delay_seconds=10)
    await push_n(store, "q")
    assert not await pop(store, "q")
    clock.advance(9.999_999)
    assert not await pop(store, "q")
    clock.advance(0.000_001)
    assert seqs(await pop(store, "q")) == [1]


async def test_delay_counts_for_each_message(store: Store, clock: SetClock) -> None:
    await configure(store, "q", delay_seconds=10)
    await push_n(store, "q", 2)
    clock.advance(5)
    await push_n(store, "q", 2)
    clock.advance(5)
    popped = await pop(store, "q", batch=10)
    assert seqs(popped) == [1, 2]
    await ack(store, lease_id=popped.lease_id)
    assert not await pop(store, "q", batch=10)
    clock.advance(5)
    assert seqs(await pop(store, "q", batch=10)) == [3, 4]


async def test_message_may_ripen_while_its_partition_is_leased(store: Store, clock: SetClock) -> None:
    await configure(store, "q", delay_seconds=10, lease_seconds=60)
    await push_n(store, "q")
    clock.advance(5)
    await push_n(store, "q")
    clock.advance(5)
    popped = await pop(store, "q", batch=10)
    clock.advance(20)
    assert not await pop(store, "q", batch=10)
    await ack(store, lease_id=popped.lease_id)
    assert seqs(await pop(store, "q", batch=10)) == [2]


async def test_delay_holds_for_auto_ack(store: Store, clock: SetClock) -> None:
    await configure(store, "q", delay_seconds=10)
    await push_n(store, "q")
    clock.advance(6)
    await push_n(store, "q")
    clock.advance(4)
    assert seqs(await pop_all(store, "q")) == [1]
    clock.advance(6)
    assert seqs(await pop_all(store, "q")) == [2]


async def test_delay_holds_for_group_that_comes_late(store: Store, clock: SetClock) -> None:
    await configure(store, "q", delay_seconds=10)
    await push_n(store, "q")
    clock.advance(5)
    assert not await pop(store, "q", group="late")
    clock.advance(5)
    assert seqs(await pop(store, "q", group="late")) == [1]


async def test_longer_delay_rules_the_next_pop(store: Store, clock: SetClock) -> None:
    await push_n(store, "q")
    await configure(store, "q", delay_seconds=10)
    assert not await pop(store, "q")
    clock.advance(10)
    assert seqs(await pop(store, "q")) == [1]


async def test_lag_tells_when_delayed_partition_is_due(store: Store, clock: SetClock) -> None:
    await configure(store, "q", delay_seconds=10)
    await pop(store, "q")
    await push_n(store, "q")
    lag = await lag_of(store, "q")
    assert (lag.lag, lag.due_at) == (1, clock.ahead(10))


async def test_window_hides_partition_until_its_newest_message_is_old_enough(store: Store, clock: SetClock) -> None:
    await configure(store, "q", window_seconds=5)
    await push_n(store, "q", 2)
    assert not await pop(store, "q", batch=10)
    clock.advance(4.999_999)
    assert not await pop(store, "q", batch=10)
    clock.advance(0.000_001)
    assert seqs(await pop(store, "q", batch=10)) == [1, 2]


async def test_push_opens_the_window_again(store: Store, clock: SetClock) -> None:
    await configure(store, "q", window_seconds=5)
    for start in (1, 2, 3):
        await push_n(store, "q", start=start)
        clock.advance(4)
        assert not await pop(store, "q", batch=10)
    clock.advance(1)
    assert numbers(await pop(store, "q", batch=10)) == [1, 2, 3]


async def test_push_opens_the_window_of_every_group(store: Store, clock: SetClock) -> None:
    await configure(store, "q", window_seconds=5)
    await pop(store, "q", group="g")
    await push_n(store, "q")
    clock.advance(4)
    await push_n(store, "q")
    clock.advance(4)
    assert not await pop(store, "q", group="g", batch=10)
    assert not await pop(store, "q", group="late", batch=10)
    clock.advance(1)
    assert seqs(await pop(store, "q", group="g", batch=10)) == [1, 2]
    assert seqs(await pop(store, "q", group="late", batch=10)) == [1, 2]


async def test_window_is_per_partition(store: Store, clock: SetClock) -> None:
    await configure(store, "q", window_seconds=5)
    await push_n(store, "q", partition="quiet")
    clock.advance(3)
    await push_n(store, "q", partition="busy")
    clock.advance(2)
    assert partitions_of(await pop(store, "q", batch=10, partitions=10)) == ["quiet"]


async def test_closed_window_gives_its_rest_at_once(store: Store, clock: SetClock) -> None:
    await configure(store, "q", window_seconds=5)
    await push_n(store, "q", 4)
    clock.advance(5)
    popped = await pop(store, "q", batch=2)
    await ack(store, lease_id=popped.lease_id)
    assert seqs(await pop(store, "q", batch=10)) == [3, 4]


async def test_push_under_lease_opens_the_window_after_release(store: Store, clock: SetClock) -> None:
    await configure(store, "q", window_seconds=5, lease_seconds=60)
    await push_n(store, "q", 2)
    clock.advance(5)
    popped = await pop(store, "q", batch=1)
    await push_n(store, "q", 1)
    [lease] = await store.leases()
    assert lease.expires_at == popped.expires_at == clock.ahead(60)
    clock.advance(2)
    await ack(store, lease_id=popped.lease_id)
    assert not await pop(store, "q", batch=10)
    clock.advance(3)
    assert seqs(await pop(store, "q", batch=10)) == [2, 3]


async def test_duplicate_does_not_open_the_window(store: Store, clock: SetClock) -> None:
    await configure(store, "q", window_seconds=5)
    await push_n(store, "q", transaction_ids=["a"])
    clock.advance(4)
    await push_n(store, "q", transaction_ids=["a"])
    clock.advance(1)
    assert seqs(await pop(store, "q", batch=10)) == [1]


async def test_window_and_delay_both_hold(store: Store, clock: SetClock) -> None:
    await configure(store, "q", window_seconds=5, delay_seconds=8)
    await push_n(store, "q")
    clock.advance(5)
    assert not await pop(store, "q")
    clock.advance(3)
    assert seqs(await pop(store, "q")) == [1]


async def test_message_that_waited_too_long_is_passed(store: Store, clock: SetClock) -> None:
    await configure(store, "q", max_wait_seconds=10)
    await push_n(store, "q", 2)
    clock.advance(6)
    await push_n(store, "q", 1)
    clock.advance(4.000_001)
    popped = await pop(store, "q", batch=10)
    assert seqs(popped) == [3]
    assert attempts_of(popped) == [1]
    lag = await lag_of(store, "q")
    assert (lag.acked, lag.lag) == (2, 1)


async def test_message_that_waited_exactly_the_limit_is_delivered(store: Store, clock: SetClock) -> None:
    await configure(store, "q", max_wait_seconds=10)
    await push_n(store, "q", 2)
    clock.advance(10)
    assert seqs(await pop(store, "q", batch=10)) == [1, 2]


async def test_partition_where_all_waited_too_long_is_drained(store: Store, clock: SetClock) -> None:
    await configure(store, "q", max_wait_seconds=10)
    await store.push([batch("q", 3, partition="stale")])
    clock.advance(11)
    await store.push([batch("q", 1, partition="fresh")])
    popped = await pop(store, "q", batch=10)
    assert partitions_of(popped) == ["fresh"]
    lag = await lag_of(store, "q", partition="stale")
    assert (lag.acked, lag.lag, lag.due_at) == (3, 0, None)
    await push_n(store, "q", 1, partition="stale")
    assert seqs(await pop(store, "q", batch=10)) == [4]


async def test_message_under_live_lease_is_not_passed(store: Store, clock: SetClock) -> None:
    await configure(store, "q", max_wait_seconds=10, lease_seconds=60)
    await push_n(store, "q", 2)
    popped = await pop(store, "q", batch=2)
    clock.advance(30)
    assert not await pop(store, "q", batch=2)
    outcome = await ack(store, lease_id=popped.lease_id)
    assert (outcome.success, outcome.messages) == (True, 2)


async def test_each_group_passes_for_itself(store: Store, clock: SetClock) -> None:
    await configure(store, "q", max_wait_seconds=10)
    await push_n(store, "q", 2)
    await pop(store, "q", group="early", batch=1, auto_ack=True)
    clock.advance(11)
    await push_n(store, "q", 1)
    assert seqs(await pop(store, "q", group="early", batch=9)) == [3]
    assert seqs(await pop(store, "q", group="late", batch=9)) == [3]
