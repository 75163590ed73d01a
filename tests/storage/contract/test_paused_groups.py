"""A paused group gets nothing until it is resumed; what it has leased stays its own."""

from __future__ import annotations

import pytest

from lockstep.core.policy import GroupMode
from lockstep.core.records import Ack, Awaited, PendingRequest, Position, Renewal
from lockstep.storage.base import Store
from support.builders import batch, configure, pop, push_n, seqs
from support.clock import START, SetClock

MODES: tuple[GroupMode, ...] = ("ordered", "shared")
both_modes = pytest.mark.parametrize("mode", MODES)


async def _grouped(store: Store, mode: GroupMode) -> None:
    await push_n(store, "q", 3)
    assert len(await pop(store, "q", group="g", batch=1, mode=mode, auto_ack=True)) == 1


@both_modes
@pytest.mark.parametrize("partition", [None, "Default"])
async def test_paused_group_gets_nothing_until_it_is_resumed(
    store: Store, mode: GroupMode, partition: str | None
) -> None:
    await _grouped(store, mode)
    await store.pause_group("q", "g")
    assert not await pop(store, "q", group="g", partition=partition, batch=9)
    assert seqs(await pop(store, "q", group="other", partition=partition, batch=9)) == [1, 2, 3]
    await store.pause_group("q", "g", paused=False)
    assert seqs(await pop(store, "q", group="g", partition=partition, batch=9)) == [2, 3]


@both_modes
async def test_lease_of_a_paused_group_can_be_renewed_and_acknowledged(store: Store, mode: GroupMode) -> None:
    await _grouped(store, mode)
    leased = await pop(store, "q", group="g", batch=1)
    await store.pause_group("q", "g")
    assert leased.lease_id is not None
    [renewed] = await store.renew([Renewal(lease_id=leased.lease_id)])
    assert renewed.partitions == 1
    [outcome] = await store.ack([Ack(lease_id=leased.lease_id)])
    assert outcome.error is None
    assert not await pop(store, "q", group="g", batch=9)


@both_modes
async def test_waiting_pops_are_not_told_that_something_is_due(store: Store, mode: GroupMode) -> None:
    await _grouped(store, mode)
    asked = [Awaited(queue="q", group="g"), Awaited(queue="q", partition="Default", group="g")]
    await store.pause_group("q", "g")
    assert await store.due_in(asked, within=60) == [None, None]
    assert await store.has_pending([PendingRequest(queue="q", group="g")]) == [False]
    await store.pause_group("q", "g", paused=False)
    assert await store.due_in(asked, within=60) == [0, 0]
    assert await store.has_pending([PendingRequest(queue="q", group="g")]) == [True]


@both_modes
async def test_pop_of_a_namespace_passes_over_a_queue_whose_group_is_paused(store: Store, mode: GroupMode) -> None:
    for name in ("n.a", "n.b"):
        await configure(store, name)
        await store.push([batch(name, 1)])
        assert not await pop(store, name, group="g", partition="none", mode=mode)
    await store.pause_group("n.a", "g")
    assert {message.queue for message in (await pop(store, namespace="n", group="g", batch=9)).messages()} == {"n.b"}


async def test_since_when_a_group_is_paused_is_shown(store: Store, clock: SetClock) -> None:
    await _grouped(store, "ordered")
    await store.pause_group("q", "g")
    clock.advance(5)
    await store.pause_group("q", "g")
    [info] = await store.groups(queue="q", group="g")
    assert info.paused_at == START
    await store.pause_group("q", "g", paused=False)
    [info] = await store.groups(queue="q", group="g")
    assert info.paused_at is None


async def test_seek_leaves_a_group_paused_and_a_deleted_one_comes_back_as_new(store: Store) -> None:
    await _grouped(store, "ordered")
    await store.pause_group("q", "g")
    await store.seek("q", "g", Position("start"))
    assert not await pop(store, "q", group="g", batch=9)
    await store.delete_group("g", queue="q")
    assert seqs(await pop(store, "q", group="g", batch=9)) == [1, 2, 3]
