"""Verifying a few partitions at a time reaches every partition of every queue."""

from __future__ import annotations

import pytest

from lockstep.core.maintenance import Place, Verified
from lockstep.storage.base import Store
from support.builders import batch, pop, push_n


async def slices(store: Store, partitions: int) -> list[Verified]:
    found: list[Verified] = []
    place: Place | None = None
    while True:
        found.append(await store.verify_slice(after=place, partitions=partitions))
        place = found[-1].next
        if place is None:
            return found
        assert len(found) < 1000, "the walk has no end"


async def test_empty_store_is_one_empty_slice(store: Store) -> None:
    assert await store.verify_slice(partitions=5) == Verified([], 0)


@pytest.mark.parametrize("partitions", [1, 2, 3, 100])
async def test_slices_cover_every_partition_once(store: Store, partitions: int) -> None:
    for queue, count in (("c", 1), ("a", 3), ("b", 4)):
        await store.push([batch(queue, 2, partition=f"p{number}") for number in range(count)])
    await pop(store, "a", partitions=2, batch=3)
    found = await slices(store, partitions)
    assert sum(one.partitions for one in found) == 8
    assert max(one.partitions for one in found) <= partitions
    assert [problem for one in found for problem in one.problems] == []


async def test_walk_goes_on_after_a_queue_that_was_deleted(store: Store) -> None:
    for queue in ("a", "b"):
        await push_n(store, queue)
    first = await store.verify_slice(partitions=1)
    await store.delete_queue("a")
    assert first.next is not None
    rest = await store.verify_slice(after=first.next, partitions=5)
    assert (rest.partitions, rest.next) == (1, None)
