"""Ping, verify and repair."""

from __future__ import annotations

import pytest

from lockstep.core.records import DeadLetterFilter, Position
from lockstep.errors import QueueNotFound
from lockstep.storage.base import Store
from support.builders import ack, batch, configure, dead_letter_by_dlq, pop, push_tagged, seqs
from support.clock import SetClock


async def much_happened(store: Store, clock: SetClock) -> None:
    """Every kind of state at once: drained, leased, expired, stopped, waiting, cleared, redriven."""
    await configure(store, "q", retry_limit=0, on_exhausted="stop", max_size=1000)
    names = ["drained", "leased", "stopped", "ready", "expired", "cleared", "half"]
    await store.push([batch("q", 4, partition=name) for name in names])
    await push_tagged(store, "q", "a", "b", "a")
    await pop(store, "q", partition="drained", batch=4, auto_ack=True)
    await pop(store, "q", partition="leased", batch=2)
    await pop(store, "q", partition="expired", batch=2, lease_seconds=1)
    await pop(store, "q", partition="half", batch=2)
    popped = await pop(store, "q", partition="stopped")
    await ack(store, lease_id=popped.lease_id, status="failed")
    await store.clear("q", partition="cleared")
    await store.clear("q", partition="half", scope="unleased")
    await dead_letter_by_dlq(store, "r", 3)
    await store.redrive(DeadLetterFilter(), limit=1)
    await pop(store, "r", group="g", batch=1, auto_ack=True)
    await store.seek("r", "g", Position("start"))
    clock.advance(1)


async def test_store_answers(store: Store) -> None:
    await store.ping()


async def test_verify_finds_nothing_off(store: Store, clock: SetClock) -> None:
    await much_happened(store, clock)
    assert await store.verify() == []
    assert await store.verify(queue="q") == []


async def test_repair_of_a_sound_store_changes_nothing(store: Store, clock: SetClock) -> None:
    await much_happened(store, clock)
    before = await store.queues(), await store.lag("q"), await store.lag("r"), await store.leases()
    assert await store.repair() == []
    assert await store.repair(queue="r") == []
    assert (await store.queues(), await store.lag("q"), await store.lag("r"), await store.leases()) == before
    assert seqs(await pop(store, "q", partition="ready", batch=9)) == [1, 2, 3, 4]


async def test_verify_and_repair_of_unknown_queue(store: Store) -> None:
    with pytest.raises(QueueNotFound):
        await store.verify(queue="nowhere")
    with pytest.raises(QueueNotFound):
        await store.repair(queue="nowhere")
