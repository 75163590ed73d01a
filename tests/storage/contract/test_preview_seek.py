"""What a seek would do is what it does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import Position, SeekPreview
from lockstep.errors import GroupNotFound, PartitionNotFound, QueueNotFound
from lockstep.storage.base import Store
from support.builders import configure, lag_of, pop, push_n
from support.clock import START, SetClock

POSITIONS = [
    Position("start"),
    Position("end"),
    Position("current"),
    Position("seq", seq=2),
    Position("time", at=START),
    Position("time", at=START + timedelta(seconds=10)),
]


@pytest.mark.parametrize("position", POSITIONS, ids=lambda position: f"{position.kind}-{position.at or position.seq}")
async def test_preview_tells_what_the_seek_then_does(store: Store, clock: SetClock, position: Position) -> None:
    await configure(store, "q")
    for _ in range(3):
        await push_n(store, "q", 2)
        clock.advance(10)
    await pop(store, "q", batch=3, auto_ack=True)
    before = await lag_of(store, "q")

    preview = await store.preview_seek("q", QUEUE_MODE, position)
    assert await lag_of(store, "q") == before, "a preview moved the group"
    await store.seek("q", QUEUE_MODE, position)

    assert (await lag_of(store, "q")).lag == before.lag + preview.read_again - preview.skipped
    assert not (preview.read_again and preview.skipped)
    assert (preview.partitions, preview.leases, preview.complete) == (1, 0, True)


async def test_preview_counts_leases_that_would_be_lost(store: Store) -> None:
    await push_n(store, "q", 2, partition="a")
    await push_n(store, "q", 2, partition="b")
    await pop(store, "q", batch=1)
    preview = await store.preview_seek("q", QUEUE_MODE, Position("end"))
    assert preview == SeekPreview(partitions=2, read_again=0, skipped=4, leases=1, complete=True)


async def test_preview_of_one_partition_or_of_the_first_ones(store: Store) -> None:
    for partition in ("a", "b", "c"):
        await push_n(store, "q", 2, partition=partition)
    await pop(store, "q", group="g")
    one = await store.preview_seek("q", "g", Position("end"), partition="b")
    assert (one.partitions, one.skipped, one.complete) == (1, 2, True)
    two = await store.preview_seek("q", "g", Position("end"), limit=2)
    assert (two.partitions, two.skipped, two.complete) == (2, 4, False)


async def test_preview_of_what_does_not_exist_is_refused(store: Store) -> None:
    with pytest.raises(QueueNotFound):
        await store.preview_seek("q", "g", Position("end"))
    await push_n(store, "q", 1)
    with pytest.raises(GroupNotFound):
        await store.preview_seek("q", "g", Position("end"))
    await pop(store, "q", group="g")
    with pytest.raises(PartitionNotFound):
        await store.preview_seek("q", "g", Position("end"), partition="p")
