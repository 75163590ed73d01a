"""Random pushes, executed or queued, and their application: PostgreSQL against the memory store, and both against what
is promised: everything that was accepted comes once, in the order in which it was accepted to its partition."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from lockstep.core.applying import ApplyLimits
from lockstep.core.messages import Batch, Columns, PushResult
from lockstep.core.operations import NewOperation, OperationInfo
from lockstep.core.policy import QueueOptions
from lockstep.core.records import PopRequest
from lockstep.errors import LockstepError, LockTimeout, OperationPending
from lockstep.storage.base import Store
from lockstep.storage.memory import MemoryStore, operations
from lockstep.storage.memory.push import push
from lockstep.storage.memory.state import State
from lockstep.storage.postgres.store import PostgresStore
from model.correspondence import Correspondence, plain
from model.operations import attempt
from support.clock import START, SetClock
from support.databases import Databases
from support.fuzz import examples

QUEUES = ["a", "b"]
places = st.lists(
    st.tuples(st.sampled_from(QUEUES), st.sampled_from(["p", "q", "r"]), st.integers(1, 3)), min_size=1, max_size=3
)
waits = st.sampled_from([0, 0, 0, 1, 3, 20])
LIMITS = ApplyLimits(retries_max=2, retry_seconds_min=1, retry_seconds_max=4, lock_seconds=0.001)


class OperationMachine(RuleBasedStateMachine):
    def __init__(self, runner: asyncio.Runner, postgres: PostgresStore, clock: SetClock) -> None:
        super().__init__()
        self.runner, self.postgres, self.clock = runner, postgres, clock
        clock.now = START
        self.memory: Store = MemoryStore(clock=clock)
        self.same = Correspondence()
        self._number = 0
        self._operations: list[tuple[str, str]] = []
        """Ids in memory and in PostgreSQL."""
        self._accepted: dict[tuple[str, str], list[int]] = {}
        self._popped: dict[tuple[str, str], list[int]] = {}
        self._failed: set[int] = set()
        self._content: list[list[int]] = []
        """By operation: the numbers of its messages."""
        runner.run(self._empty())

    async def _empty(self) -> None:
        for table in ("operation", "operation_lane", "operation_sum"):
            await self.postgres.database.fetch("empty", f"delete from lockstep.{table}")
        for queue in await self.postgres.queues():
            await self.postgres.delete_queue(queue.name)

    def call(self, verb: str, *arguments: Any, **keywords: Any) -> Any:
        return self.runner.run(self._call(verb, *arguments, **keywords))

    async def _call(self, verb: str, *arguments: Any, **keywords: Any) -> Any:
        here = await attempt(self.memory, verb, *arguments, **keywords)
        there = await attempt(self.postgres, verb, *arguments, **keywords)
        differences = self.same.differences(plain(here), plain(there))
        assert not differences, "\n".join([f"{verb}{arguments}{keywords}", "memory != postgres:", *differences])
        return here

    def _batches(self, asked: list[tuple[str, str, int]]) -> list[Batch]:
        batches = []
        for queue, partition, count in asked:
            payloads = [b'{"n":%d}' % number for number in range(self._number + 1, self._number + count + 1)]
            self._number += count
            batches.append(Batch(queue, partition, Columns(payloads)))
        return batches

    def _accept(self, batches: list[Batch]) -> list[int]:
        numbers = []
        for batch in batches:
            own = [int(payload[5:-1]) for payload in batch.columns.payloads]
            self._accepted.setdefault((batch.queue, batch.partition), []).extend(own)
            numbers += own
        return numbers

    @rule(asked=places, wait=waits)
    def push(self, asked: list[tuple[str, str, int]], wait: float) -> None:
        self.clock.advance(wait)
        batches = self._batches(asked)
        result = self.call("push", batches)
        if not isinstance(result, LockstepError):
            self._accept(batches)
        elif isinstance(result, OperationPending):
            waiting = {place for place in self._accepted if self._is_behind(place)}
            assert any((batch.queue, batch.partition) in waiting for batch in batches)

    def _is_behind(self, place: tuple[str, str]) -> bool:
        done = set(self._popped.get(place, ())) | self._failed
        return any(number not in done for number in self._accepted[place])

    @rule(requests=st.lists(places, min_size=1, max_size=3), wait=waits)
    def queue(self, requests: list[list[tuple[str, str, int]]], wait: float) -> None:
        self.clock.advance(wait)
        operations = [NewOperation(self._batches(asked)) for asked in requests]
        here, there = self.runner.run(self._queue(operations))
        self._operations += zip(here, there, strict=True)
        self._content += [self._accept(list(operation.batches)) for operation in operations]

    async def _queue(self, operations: list[NewOperation]) -> tuple[list[str], list[str]]:
        return await self.memory.queue_operations(operations), await self.postgres.queue_operations(operations)

    @rule(messages_max=st.sampled_from([1, 4, 1000]), wait=waits, held=st.lists(places, max_size=1))
    def apply(self, messages_max: int, wait: float, held: list[list[tuple[str, str, int]]]) -> None:
        """Apply; while somebody's transaction holds some of the partitions."""
        self.clock.advance(wait)
        limits = msgspec.structs.replace(LIMITS, messages_max=messages_max)
        self.runner.run(self._apply_held({place[:2] for asked in held for place in asked}, limits))

    async def _apply_held(self, held: set[tuple[str, str]], limits: ApplyLimits) -> None:
        connection = await self.postgres.database.connect_apart("holder")
        try:
            async with connection.transaction():
                for queue, partition in sorted(held):
                    await connection.execute(_HOLD, queue, partition)
                with _held_in_memory(held):
                    await self._apply(limits)
        finally:
            await connection.close()

    async def _apply(self, limits: ApplyLimits) -> None:
        here = await self.memory.apply_operations("push", by="test", limits=limits)
        there = await self.postgres.apply_operations("push", by="test", limits=limits)
        for name in ("operations", "messages", "failed", "postponed", "partitions_by_queue"):
            assert getattr(here, name) == getattr(there, name), name
        await self._compare_operations()

    async def _compare_operations(self) -> None:
        for index, (here_id, there_id) in enumerate(self._operations):
            here, there = await self.memory.operation(here_id), await self.postgres.operation(there_id)
            assert _told(here) == _told(there)
            if here.status == "failed":
                self._failed.update(self._content[index])

    @rule(queue=st.sampled_from(QUEUES), names=st.permutations(["p", "q", "r"]))
    def queue_in_a_chain(self, queue: str, names: list[str]) -> None:
        """Operations of which each has a partition in common with the one before; the first one is held."""
        links = [names[:1], names[:2], names[1:], names[2:]]
        self.queue([[(queue, name, 1) for name in link] for link in links], 0)
        self.apply(1000, 3, [[(queue, names[0], 1)]])

    @rule(which=st.integers(0, 5))
    def retry(self, which: int) -> None:
        if self._operations:
            here, there = self._operations[-1 - which % len(self._operations)]
            self.runner.run(self._retry(here, there))

    async def _retry(self, here_id: str, there_id: str) -> None:
        here = await attempt(self.memory, "retry_operation", here_id)
        there = await attempt(self.postgres, "retry_operation", there_id)
        assert type(here) is type(there)
        # What is applied after all comes later than what was behind it: it is out of the order that is promised.

    @rule(queue=st.sampled_from(QUEUES), max_size=st.sampled_from([0, 0, 4, 8]))
    def configure(self, queue: str, max_size: int) -> None:
        self.call("configure", queue, QueueOptions(max_size=max_size))

    @rule(queue=st.sampled_from(QUEUES))
    def pop(self, queue: str) -> None:
        [popped] = self.call("pop", [PopRequest(queue=queue, batch=6, partitions=3, auto_ack=True)])
        for message in popped.messages():
            place = (message.queue, message.partition)
            self._popped.setdefault(place, []).append(message.json()["n"])
            in_order = [number for number in self._popped[place] if number not in self._failed]
            expected = [number for number in self._accepted[place] if number not in self._failed]
            assert in_order == expected[: len(in_order)]

    @rule()
    def look(self) -> None:
        self.runner.run(self._look())

    async def _look(self) -> None:
        here, there = await self.memory.operation_counts(), await self.postgres.operation_counts()
        assert here.failed == there.failed
        for mine, theirs in zip(here.pending, there.pending, strict=True):
            assert (mine.operations, mine.messages, mine.oldest_at) == (
                theirs.operations,
                theirs.messages,
                theirs.oldest_at,
            )
        await self._compare_operations()
        await self._call("queues")
        assert await self.postgres.verify() == []

    def teardown(self) -> None:
        self.runner.run(self._finish())

    async def _finish(self) -> None:
        """All that was accepted is applied in the end, or has failed."""
        for queue in await self.memory.queues():
            await self._call("configure", queue.name, QueueOptions())
        while (await self.memory.operation_counts()).depth("push").operations:
            self.clock.advance(100)
            await self._apply(LIMITS)
        await self._look()
        await self.memory.close()


_HOLD = (
    "select from lockstep.partition p join lockstep.queue q on q.id = p.queue_id where q.name = $1 and p.name = $2 "
    "for no key update of p"
)


@contextmanager
def _held_in_memory(held: set[tuple[str, str]]) -> Iterator[None]:
    """The memory store has no locks: a push of an operation to one of these places fails as if it had."""

    def push_unless_held(state: State, batches: Sequence[Batch], *arguments: Any, **keywords: Any) -> PushResult:
        for batch in batches:
            queue = state.queues.get(batch.queue)
            if queue is not None and batch.partition in queue.partitions and (batch.queue, batch.partition) in held:
                raise LockTimeout("held")
        return push(state, batches, *arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "push", push_unless_held)
        yield


def _told(info: OperationInfo) -> Any:
    """All but ids, which differ, and when it is tried next: PostgreSQL puts off what waits behind another."""
    outcome = info.outcome
    placed = None
    if outcome is not None and outcome.placed is not None:
        placed = [(one.queue, one.partition, one.first_seq) for one in outcome.placed]
    when = (info.created_at, info.completed_at)
    return info.status, info.position, info.retries, *when, info.error_code, placed


@pytest.fixture
def postgres(databases: Databases, clock: SetClock) -> Iterator[tuple[asyncio.Runner, PostgresStore]]:
    store = PostgresStore(databases.emptied(), clock=clock)
    with asyncio.Runner() as runner:
        runner.run(store.open())
        yield runner, store
        runner.run(store.close())


def test_executed_and_queued_pushes_keep_their_order(
    postgres: tuple[asyncio.Runner, PostgresStore], clock: SetClock
) -> None:
    runner, store = postgres
    run_state_machine_as_test(
        lambda: OperationMachine(runner, store, clock),
        settings=examples(30, soak=1500, stateful_step_count=40, phases=[Phase.generate]),
    )
