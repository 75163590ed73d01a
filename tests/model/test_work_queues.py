"""Random operations on work queues: expiry, dead queues, balanced queues; PostgreSQL against the memory store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from lockstep.core.policy import QueueOptions
from lockstep.storage.base import Store
from model.operations import QUEUES, BatchPlan, batches, options, queues, waits
from model.test_state_machine import BOUNDS, AgreementMachine
from support.builders import SMALL_SLICES
from support.clock import SetClock

expiries = st.sampled_from([None, None, 0, 3, 30])
dead_queues = st.sampled_from([None, QUEUES[2], QUEUES[2], *QUEUES, "nowhere"])
changes = st.fixed_dictionaries(
    {},
    optional={
        "expire_seconds": st.sampled_from([0, 20, 60]),
        "on_expired": st.sampled_from(["dead", "drop"]),
        "dead_queue": dead_queues,
        "partitions": st.sampled_from([0, 2]),
        "retry_limit": st.sampled_from([0, 1]),
        "lease_seconds": st.sampled_from([10, 15]),
        "max_size": st.sampled_from([0, 8]),
    },
)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all examples, since a pool of connections belongs to one."""
    with asyncio.Runner() as runner:
        yield runner


class WorkMachine(AgreementMachine):
    async def _begin(self) -> None:
        for queue in await self.postgres.queues():  # so that none is needed by another
            await self.postgres.configure(queue.name, QueueOptions())
        await super()._begin()

    @rule(queue=queues, given=changes)
    def update(self, queue: str, given: dict[str, Any]) -> None:
        self.call("update_queue", queue, given)

    @rule(base=options, given=changes)
    def work_queue(self, base: QueueOptions, given: dict[str, Any]) -> None:
        """A queue with a dead queue that exists, whatever else."""
        self.call("configure", QUEUES[2], QueueOptions())
        self.call("configure", QUEUES[0], base)
        self.call("update_queue", QUEUES[0], {"lease_seconds": 10, **given, "dead_queue": QUEUES[2]})

    @rule(plans=batches, seconds=st.lists(expiries, min_size=1, max_size=4), wait=waits)
    def push_expiring(self, plans: list[BatchPlan], seconds: list[float | None], wait: float) -> None:
        self.clock.advance(wait)
        made = self._batches(plans)
        for batch in made:
            given = (seconds * len(batch.columns))[: len(batch.columns)]
            batch.columns.expires_at = [
                None if one is None else self.clock.now + timedelta(seconds=one) for one in given
            ]
        self._note_pushed(self.call("push", made))

    @rule(wait=waits)
    def expire(self, wait: float) -> None:
        self.clock.advance(wait)
        with self.breaking():
            here, there = (self.runner.run(_expire(store)) for store in (self.memory, self.postgres))
            assert here == there

    @rule(queue=queues, limit=st.sampled_from([1, 1000]))
    def redrive_queue(self, queue: str, limit: int) -> None:
        self.call("redrive_queue", queue, limit=limit)

    @rule(queue=queues)
    def look_into(self, queue: str) -> None:
        self.call("stats", queue)
        self.call("balance", queue)


async def _expire(store: Store) -> int:
    """A whole walk of the duty."""
    pruned = await store.prune("expiry", limit=2)
    passed = pruned.messages
    while pruned.next is not None:
        pruned = await store.prune("expiry", after=pruned.next, limit=2)
        passed += pruned.messages
    return passed


def test_postgres_store_agrees_with_memory_store_on_work_queues(runner: asyncio.Runner, database_dsn: str) -> None:
    from lockstep.storage.postgres.store import PostgresStore

    clock = SetClock()
    # A pop that may pass only a few expired messages answers with less; the memory store passes them all.
    config = msgspec.structs.replace(SMALL_SLICES, expire_messages_max=1_000)
    postgres = PostgresStore(database_dsn, config=config, clock=clock)
    runner.run(postgres.open())
    try:
        run_state_machine_as_test(lambda: WorkMachine(runner, postgres, clock), settings=BOUNDS["agreement"])
    finally:
        runner.run(postgres.close())
