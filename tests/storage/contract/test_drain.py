"""What servers that buffer pushes ask of a store: the mode, and to take what is in a spool, exactly once."""

from __future__ import annotations

from uuid import uuid4

import pytest

from lockstep.core.messages import Batch
from lockstep.core.policy import QueueOptions
from lockstep.core.records import PopRequest
from lockstep.errors import QueueFull
from lockstep.storage.base import Store

QUEUE = "orders"


def batch(*payloads: bytes, partition: str = "p", **columns: list[str | None]) -> Batch:
    return Batch.of(QUEUE, payloads, partition=partition, **columns)


async def stored(store: Store, partition: str = "p") -> list[bytes]:
    popped = await store.pop([PopRequest(queue=QUEUE, partition=partition, batch=1000)])
    return popped[0].payloads()


async def test_record_that_is_set_aside_is_passed_and_remembered(store: Store) -> None:
    spool = uuid4()
    assert (await store.drain(spool, [batch(b"1")], start=0, end=50)).set_aside_from is None
    drained = await store.drain(spool, [], start=50, end=80, set_aside=True)
    assert (drained.place, drained.set_aside_from) == (80, 50)
    assert (await store.drain(spool, [batch(b"late")], start=50, end=80)).pushed is None
    drained = await store.drain(spool, [batch(b"2")], start=80, end=99)
    assert (drained.place, drained.set_aside_from) == (99, 50)
    late = await store.drain(spool, [], start=80, end=99, set_aside=True)
    assert (late.place, late.set_aside_from) == (99, 50), "it was pushed, and is not set aside"
    assert await stored(store) == [b"1", b"2"]


async def test_part_of_a_spool_is_pushed_and_remembered(store: Store) -> None:
    spool = uuid4()
    drained = await store.drain(spool, [batch(b"1", b"2"), batch(b"3", partition="q")], start=0, end=100)
    assert drained.place == 100
    assert drained.pushed is not None
    assert [(r.partition, r.seq, r.status) for r in drained.pushed] == [
        ("p", 1, "queued"),
        ("p", 2, "queued"),
        ("q", 1, "queued"),
    ]
    drained = await store.drain(spool, [batch(b"4")], start=100, end=130)
    assert drained.place == 130
    assert (await stored(store), await stored(store, "q")) == ([b"1", b"2", b"4"], [b"3"])


async def test_part_that_was_pushed_is_not_pushed_again(store: Store) -> None:
    spool = uuid4()
    await store.drain(spool, [batch(b"1")], start=0, end=50)
    await store.drain(spool, [batch(b"2")], start=50, end=100)
    for start, end in ((0, 50), (50, 100), (0, 100), (50, 150), (0, 150)):
        drained = await store.drain(spool, [batch(b"again")], start=start, end=end)
        assert (drained.place, drained.pushed) == (100, None)
    assert await stored(store) == [b"1", b"2"]


async def test_part_behind_what_the_store_does_not_have_is_not_pushed(store: Store) -> None:
    """The store has lost what lies between: whoever drains has to see that, and not to go on."""
    spool = uuid4()
    await store.drain(spool, [batch(b"1")], start=0, end=50)
    for batches, aside in (([batch(b"late")], False), ([], False), ([], True)):
        drained = await store.drain(spool, batches, start=70, end=90, set_aside=aside)
        assert (drained.place, drained.pushed, drained.set_aside_from) == (50, None, None)
    assert (await store.drain(spool, [], start=0, end=0)).place == 50, "to ask for an empty part moves nothing"
    assert (await store.drain(spool, [], start=50, end=70)).place == 70
    await store.drain(spool, [batch(b"2")], start=70, end=90)
    assert await stored(store) == [b"1", b"2"]


async def test_spools_are_drained_apart(store: Store) -> None:
    one, other = uuid4(), uuid4()
    await store.drain(one, [batch(b"1")], start=0, end=50)
    assert (await store.drain(other, [batch(b"2")], start=0, end=50)).pushed is not None
    assert await stored(store) == [b"1", b"2"]


async def test_part_without_batches_is_passed(store: Store) -> None:
    spool = uuid4()
    assert (await store.drain(spool, [], start=0, end=0)).place == 0
    assert (await store.drain(spool, [], start=0, end=70)).place == 70
    assert (await store.drain(spool, [], start=20, end=20)).place == 70
    assert (await store.drain(spool, [batch(b"late")], start=0, end=70)).pushed is None
    assert (await store.drain(spool, [batch(b"next")], start=70, end=90)).place == 90
    assert await stored(store) == [b"next"]


async def test_part_that_is_refused_is_not_remembered(store: Store) -> None:
    await store.configure(QUEUE, QueueOptions(max_size=1))
    spool = uuid4()
    with pytest.raises(QueueFull):
        await store.drain(spool, [batch(b"1"), batch(b"2")], start=0, end=100)
    assert (await store.drain(spool, [], start=0, end=0)).place == 0
    assert (await store.drain(spool, [batch(b"1")], start=0, end=50)).place == 50
    assert await stored(store) == [b"1"]


async def test_duplicates_are_found_in_what_is_drained(store: Store) -> None:
    await store.push([batch(b"1", transaction_ids=["t1"])])
    pushed = (await store.drain(uuid4(), [batch(b"1", b"2", transaction_ids=["t1", "t2"])], start=0, end=9)).pushed
    assert pushed is not None
    assert [receipt.status for receipt in pushed] == ["duplicate", "queued"]


async def test_modes_are_off_and_stay_as_they_are_set(store: Store) -> None:
    system = await store.system()
    assert (system.push_maintenance, system.pop_maintenance) == (False, False)
    assert await store.system() == system
    changed = await store.set_maintenance_mode(push=True)
    assert (changed.id, changed.push_maintenance, changed.pop_maintenance) == (system.id, True, False)
    changed = await store.set_maintenance_mode(pop=True)
    assert (changed.push_maintenance, changed.pop_maintenance) == (True, True)
    changed = await store.set_maintenance_mode(push=False, pop=False)
    assert changed == system == await store.system()
