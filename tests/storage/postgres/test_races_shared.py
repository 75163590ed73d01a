"""Consumers of a shared group that meet in one partition: each other, producers, and operators."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lockstep.core.endings import AckStatus
from lockstep.core.policy import QueueOptions
from lockstep.core.records import Ack, Popped, Position, Renewal, Subscription
from support.builders import ack, finish_groups, lag_of, pop, push_n, seqs
from support.clock import SetClock
from support.sessions import Actor, Stage

pytestmark = pytest.mark.set_clock

GROUP = "workers"


async def lease(actor: Actor, count: int, **request: Any) -> Popped:
    return await pop(actor.store, "q", group=GROUP, mode="shared", batch=count, **request)


def ack_in(popped: Popped, number: int, status: AckStatus = "completed") -> Ack:
    message = list(popped.messages())[number]
    return Ack(lease_id=popped.lease_id, partition_id=message.partition_id, seq=message.seq, status=status)


async def prepared(stage: Stage, count: int) -> tuple[Actor, Actor]:
    first, second = await stage.actors(2)
    await push_n(first.store, "q", count)
    for actor in (first, second):
        await actor.store.subscribe("q", GROUP, Subscription(), mode="shared")
        await actor.store.pop([])
    return first, second


async def rows(actor: Actor) -> int:
    count: int = await actor.sql("select count(*) from lockstep.delivery where group_id > 0")
    return count


async def test_pop_waits_for_the_pop_that_holds_the_partition(stage: Stage) -> None:
    first, second = await prepared(stage, 5)
    await first.begin()
    assert seqs(await lease(first, 2)) == [1, 2]
    waiting = await stage.blocked(lease(second, 9), second, by=first)
    await first.commit()
    assert seqs(await waiting) == [3, 4, 5]


async def test_pop_takes_what_another_gives_back(stage: Stage) -> None:
    first, second = await prepared(stage, 2)
    await first.begin()
    await lease(first, 2)
    waiting = await stage.blocked(lease(second, 9), second, by=first)
    await first.rollback()
    assert seqs(await waiting) == [1, 2]


async def test_pop_passes_over_a_partition_that_is_held_if_another_has_something(stage: Stage) -> None:
    first, second = await prepared(stage, 2)
    await push_n(first.store, "q", 2, partition="other")
    await first.begin()
    await lease(first, 1, partition="Default")
    assert [run.partition for run in (await lease(second, 1)).runs] == ["other"]
    await first.commit()


async def test_expired_range_is_leased_by_one(stage: Stage, clock: SetClock) -> None:
    first, second = await prepared(stage, 3)
    await lease(first, 3, lease_seconds=10)
    clock.advance(10)
    await first.begin()
    assert seqs(await lease(first, 2)) == [1, 2]
    waiting = await stage.blocked(lease(second, 9), second, by=first)
    await first.commit()
    assert seqs(await waiting) == [3]


async def test_lease_is_completed_wholly_while_one_of_it_is_acknowledged(stage: Stage) -> None:
    first, second = await prepared(stage, 5)
    popped = await lease(first, 5)
    await first.begin()
    await first.store.ack([ack_in(popped, 2, "retry")])
    waiting = await stage.blocked(ack(second.store, lease_id=popped.lease_id), second, by=first)
    await first.commit()
    outcome = await waiting
    assert (outcome.success, outcome.messages) == (True, 4)
    assert await rows(first) == 1


async def test_message_is_not_acknowledged_after_its_lease_was(stage: Stage) -> None:
    first, second = await prepared(stage, 3)
    popped = await lease(first, 3)
    await first.begin()
    await ack(first.store, lease_id=popped.lease_id)
    waiting = await stage.blocked(second.store.ack([ack_in(popped, 1, "failed")]), second, by=first)
    await first.commit()
    assert [outcome.error for outcome in await waiting] == ["lease_lost"]
    assert await rows(first) == 0


async def test_message_that_two_acknowledge_ends_once(stage: Stage) -> None:
    first, second = await prepared(stage, 3)
    popped = await lease(first, 3)
    await first.begin()
    await first.store.ack([ack_in(popped, 1, "dlq")])
    waiting = await stage.blocked(second.store.ack([ack_in(popped, 1), ack_in(popped, 0)]), second, by=first)
    await first.commit()
    assert [(outcome.success, outcome.noop) for outcome in await waiting] == [(True, True), (True, False)]


async def test_renewal_reaches_all_that_is_left_of_a_lease(stage: Stage, clock: SetClock) -> None:
    first, second = await prepared(stage, 5)
    popped = await lease(first, 5, lease_seconds=10)
    await first.begin()
    await first.store.ack([ack_in(popped, 2)])
    renewal = Renewal(lease_id=popped.lease_id or "", seconds=100)
    waiting = await stage.blocked(second.store.renew([renewal]), second, by=first)
    await first.commit()
    assert (await waiting)[0].partitions == 1
    deadlines = {one.expires_at for one in await first.store.leases()}
    assert deadlines == {clock.now + timedelta(seconds=100)}


async def test_push_that_is_in_flight_while_a_pop_drains_is_found(stage: Stage, clock: SetClock) -> None:
    first, second = await prepared(stage, 2)
    await first.begin()
    await push_n(first.store, "q", 1, start=3)
    assert seqs(await lease(second, 9)) == [1, 2]
    await first.commit()
    clock.advance(0.01)
    assert seqs(await lease(second, 9)) == [3]


async def test_seek_beside_an_ack_forgets_the_rest(stage: Stage) -> None:
    first, second = await prepared(stage, 3)
    popped = await lease(first, 3)
    await first.begin()
    await first.store.ack([ack_in(popped, 1)])
    await second.store.seek("q", GROUP, Position("start"))
    await first.commit()
    await finish_groups(second.store)
    assert await rows(first) == 0
    assert seqs(await lease(first, 9)) == [1, 2, 3]


async def test_group_is_deleted_with_what_a_pop_has_just_taken(stage: Stage) -> None:
    first, second = await prepared(stage, 3)
    await first.begin()
    await lease(first, 3)
    await second.store.delete_group(GROUP)
    await first.commit()
    await finish_groups(second.store)
    assert await rows(first) == 0


async def test_max_size_that_is_set_meanwhile_counts_a_completed_lease(stage: Stage) -> None:
    first, second = await prepared(stage, 3)
    popped = await lease(first, 2)
    await first.begin()
    await ack(first.store, lease_id=popped.lease_id)
    waiting = await stage.blocked(second.store.configure("q", QueueOptions(max_size=2)), second, by=first)
    await first.commit()
    await waiting
    [receipt] = await push_n(first.store, "q", 1)
    assert (receipt.depth, receipt.remaining) == (2, 0)
    assert (await lag_of(first.store, "q", group=GROUP)).lag == 2


async def test_clear_waits_for_a_pop_and_keeps_what_it_leased(stage: Stage) -> None:
    first, second = await prepared(stage, 3)
    await first.begin()
    popped = await lease(first, 2)
    waiting = await stage.blocked(second.store.clear("q", scope="unleased"), second, by=first)
    await first.commit()
    assert await waiting == 1
    assert (await ack(first.store, lease_id=popped.lease_id)).messages == 2


async def expire(actor: Actor) -> int:
    return (await actor.store.prune("expiry", limit=100)).messages


async def test_expiry_waits_for_who_completes_in_time(stage: Stage, clock: SetClock) -> None:
    """A completes while its lease is live, and holds on; the lease and the messages expire, and the duty waits; A
    commits: nothing expired."""
    first, second = await prepared(stage, 2)
    await first.store.update_queue("q", {"expire_seconds": 60, "lease_seconds": 60})
    popped = await lease(first, 2)
    await first.begin()
    assert (await ack(first.store, lease_id=popped.lease_id)).messages == 2
    clock.advance(60)
    waiting = await stage.blocked(expire(second), second, by=first)
    await first.commit()
    assert await waiting == 0
    assert await second.sql("select count(*) from lockstep.dead_letter") == 0


async def test_expiry_passes_what_was_not_completed_after_all(stage: Stage, clock: SetClock) -> None:
    first, second = await prepared(stage, 2)
    await first.store.update_queue("q", {"expire_seconds": 60, "lease_seconds": 60})
    popped = await lease(first, 2)
    await first.begin()
    await ack(first.store, lease_id=popped.lease_id)
    clock.advance(60)
    waiting = await stage.blocked(expire(second), second, by=first)
    await first.rollback()
    assert await waiting == 2
    assert await rows(second) == 0


async def test_pop_that_waits_for_expiry_does_not_get_what_expired(stage: Stage, clock: SetClock) -> None:
    first, second = await prepared(stage, 2)
    await first.store.update_queue("q", {"expire_seconds": 60, "lease_seconds": 60})
    popped = await lease(first, 2)
    await first.store.ack([Ack(lease_id=popped.lease_id, status="retry")])
    clock.advance(60)
    await push_n(first.store, "q", 1)
    await first.begin()
    assert await expire(first) == 2
    waiting = await stage.blocked(lease(second, 9), second, by=first)
    await first.commit()
    assert seqs(await waiting) == [3]
