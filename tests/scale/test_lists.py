"""Lists over very many partitions: their cost does not follow the number of partitions. `make soak` has 1,000,000."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lockstep.storage.postgres.store import PostgresStore
from support.costs import cost
from support.databases import Databases, run_apart
from support.many import fill
from support.sessions import Stage

SOAK = bool(os.environ.get("LOCKSTEP_SOAK"))
SMALL = 3_000
LARGE = 1_000_000 if SOAK else 30_000
SLICE = 1_000
LEVELS_MAX = 60
"""Blocks that larger indexes may cost, with a level more."""

Call = Callable[[PostgresStore], Awaitable[Any]]
LISTS: dict[str, Call] = {
    "queues": lambda store: store.queues(),
    "queue": lambda store: store.queue("q"),
    "groups": lambda store: store.groups(),
    "overview": lambda store: store.overview(),
    "namespaces": lambda store: store.namespaces(),
    "tasks": lambda store: store.tasks(),
    "utilisation": lambda store: store.utilisation(),
    "depth": lambda store: store.depth("q", "g2"),
    "partitions": lambda store: store.partitions("q", after="p2", limit=20),
    "partitions-by-prefix": lambda store: store.partitions("q", prefix="p29", limit=20),
    "lag": lambda store: store.lag("q", group="g2", after_partition_id=2_000, limit=20),
    "leases": lambda store: store.leases(limit=20),
}


async def walked(dsn: str) -> dict[str, Any]:
    """What the lists cost and say after a walk in slices, and what the longest slice read."""
    found: dict[str, Any] = {}
    async with Stage(dsn) as stage:
        actor = await stage.actor()
        store = actor.store
        store.context.limits.figures_units_max = 2_000
        store.context.limits.samples_partitions_max = SLICE
        slices = []
        while True:
            taken: list[int] = []

            async def one_slice(taken: list[int] = taken) -> None:
                taken.append(await store.sample(seconds_max=0))

            slices.append((await cost(stage, actor, one_slice)).blocks)
            if taken[0]:
                break
        found["slices"] = slices
        for name, call in LISTS.items():
            await call(store)
            found[name] = (await cost(stage, actor, lambda call=call: call(store))).blocks  # type: ignore[misc]
        found["figures"] = [await store.queue("q"), await store.groups()]
    return found


@pytest.fixture(scope="module")
def sized(databases: Databases) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for size in (SMALL, LARGE):
        dsn = databases.clone()
        fill(dsn, size)

        async def main(size: int = size, dsn: str = dsn) -> None:
            found[size] = await walked(dsn)

        run_apart(main)
        databases.drop(dsn)
    return found


@pytest.mark.parametrize("name", LISTS)
def test_list_costs_the_same_over_many_partitions(sized: dict[int, dict[str, Any]], name: str) -> None:
    assert sized[LARGE][name] <= 1.5 * sized[SMALL][name] + LEVELS_MAX
    assert sized[LARGE][name] <= 3_000


def test_walk_goes_in_slices_that_cost_the_same(sized: dict[int, dict[str, Any]]) -> None:
    assert len(sized[LARGE]["slices"]) == LARGE // SLICE + 1
    assert max(sized[LARGE]["slices"]) <= 1.5 * max(sized[SMALL]["slices"])


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_figures_of_the_walk_are_right(sized: dict[int, dict[str, Any]], size: int) -> None:
    queue, groups = sized[size]["figures"]
    assert (queue.partitions, queue.messages, queue.pending, queue.processing) == (size, 2 * size, 2 * size, 2 * size)
    assert queue.figures_at is not None
    assert {one.name: (one.lag, one.in_flight, one.unread, one.partitions_with_lag) for one in groups} == {
        "g0": (2 * size, 0, 2 * size, size),
        "g1": (0, 0, 0, 0),
        "g2": (size, 0, size, size),
        "g3": (2 * size, 2 * size, 0, size),
        "g4": (2 * size, 0, 2 * size, size),
    }
