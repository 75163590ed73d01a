"""Random operations: the memory store against the promises, and PostgreSQL against the memory store.

A run tries other examples each time, by its seed, and shows a failing one as it is; with HYPOTHESIS_SHRINK=1 it also
shortens it, which may take minutes. `make soak` tries many.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import Phase
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from lockstep.core.policy import QueueOptions
from lockstep.core.records import (
    Ack,
    DeadLetter,
    DeadLetterFilter,
    NextRequest,
    PartitionLag,
    PopRequest,
    Position,
    Subscription,
)
from lockstep.errors import LockstepError, QueueFull, TransactionRolledBack
from lockstep.storage.base import Store
from lockstep.storage.memory import MemoryStore
from model.correspondence import Correspondence, plain
from model.operations import Operations, attempt
from model.promises import Promises, matching
from support.builders import SMALL_SLICES, listed
from support.clock import START, SetClock
from support.fuzz import SOAK, examples

if TYPE_CHECKING:
    from lockstep.storage.postgres.store import PostgresStore

STEPS = 60 if SOAK else 30
PHASES = [Phase.generate, Phase.shrink] if os.environ.get("HYPOTHESIS_SHRINK") else [Phase.generate]
BOUNDS = {
    machine: examples(
        count,
        soak=soak,
        stateful_step_count=STEPS,
        phases=PHASES,
        print_blob=True,
        report_multiple_bugs=False,
    )
    for machine, count, soak in (("promises", 60, 5000), ("agreement", 25, 1500))
}
EVERY = DeadLetterFilter()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all examples of a machine, since a pool of connections belongs to one."""
    with asyncio.Runner() as runner:
        yield runner


# --- The memory store keeps the promises


class PromiseMachine(Operations):
    def __init__(self, runner: asyncio.Runner) -> None:
        super().__init__()
        self.runner = runner
        self.store: Store = MemoryStore(clock=self.clock)
        self.promises = Promises()
        runner.run(self.store.open())

    def run(self, verb: str, *arguments: Any, **keywords: Any) -> Any:
        return self.runner.run(attempt(self.store, verb, *arguments, **keywords))

    def call(self, verb: str, *arguments: Any, **keywords: Any) -> Any:
        self.promises.now = self.clock.now
        with self.breaking():
            return getattr(self, f"_call_{verb}")(*arguments, **keywords)

    @invariant()
    def holds(self) -> None:
        self.promises.now = self.clock.now
        letters = self._letters()
        self._dead_letter_ids = sorted(letter.id for letter in letters)
        with self.breaking():
            self.promises.check(self._lags(), self.run("leases"), letters)
            assert self.run("verify") == []

    def teardown(self) -> None:
        """Nothing is lost: when nothing hides it any more, every group gets all that it has not done."""
        if self.broken:
            return
        for queue in self.run("queues"):
            self.call("configure", queue.name, QueueOptions())
            self.call("subscribe", queue.name, "late", Subscription("all"))
            for group in sorted(self.promises.queues[queue.name].groups):
                self.call("seek", queue.name, group, Position("current"))
        self.clock.advance(3600)
        for name, queue in self.promises.queues.items():
            for group in sorted(queue.groups):
                assert self._drain(name, group) == self.promises.undone(name, group)
        self.runner.run(self.store.close())

    def _drain(self, queue: str, group: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        while True:
            request = PopRequest(queue=queue, group=group, batch=5, partitions=2, auto_ack=True)
            [popped] = self.run("pop", [request])
            if not popped:
                return found
            for message in popped.messages():
                found.setdefault(message.partition, []).append(message.seq)

    def _lags(self) -> dict[str, list[PartitionLag]]:
        return {queue.name: self.run("lag", queue.name) for queue in self.run("queues")}

    def _letters(self) -> list[DeadLetter]:
        return list(self.run("dead_letters", EVERY, limit=1000).items)

    # Each verb: perform it, and tell the promises what came of it.

    def _call_configure(self, queue: str, options: QueueOptions, **names: str) -> None:
        self.run("configure", queue, options, **names)
        self.promises.configured(queue, options, names.get("namespace"), names.get("task"))

    def _call_delete_queue(self, queue: str) -> None:
        self.promises.deleted(queue, self.run("delete_queue", queue))

    def _call_clear(self, queue: str, *, partition: str | None, scope: str) -> None:
        removed = self.run("clear", queue, partition=partition, scope=scope)
        if not isinstance(removed, LockstepError):
            self.promises.cleared(queue, partition, scope, removed)

    def _call_push(self, batches: list[Any]) -> Any:
        result = self.run("push", batches)
        if isinstance(result, QueueFull):
            self.promises.refused_as_full(batches, result.details)
        else:
            self.promises.pushed(batches, list(result))
        return result

    def _call_pop(self, requests: list[PopRequest]) -> list[Any]:
        # One by one, so that the cursors can be looked at after each.
        found = []
        for request in requests:
            [popped] = self.run("pop", [request])
            self.promises.popped(request, popped, self._lags())
            found.append(popped)
        return found

    def _call_next(self, requests: list[NextRequest], *, hold_seconds: float) -> Any:
        [request] = requests
        self.promises.asked(request.pop)
        result = self.run("next", requests, hold_seconds=hold_seconds)
        [continued] = result
        self.promises.acked([Ack(lease_id=request.lease_id)], [continued.acked])
        if continued.acked.success:
            self.promises.popped(request.pop, continued.popped, self._lags(), after=request)
        else:
            assert (continued.popped.runs, continued.popped.lease_id) == ([], None)
        return result

    def _call_ack(self, acks: list[Any]) -> None:
        self.promises.acked(acks, self.run("ack", acks))

    def _call_transaction(self, acks: list[Any], batches: list[Any]) -> Any:
        result = self.run("transaction", acks, batches)
        if isinstance(result, TransactionRolledBack):
            assert not all(outcome.success for outcome in result.details["outcomes"])
        elif isinstance(result, QueueFull):
            assert self.promises.queues[result.details["queue"]].options.max_size
        else:
            assert all(outcome.success for outcome in result.acks)
            self.promises.acked(acks, result.acks)
            self.promises.pushed(batches, list(result.pushed))
        return result

    def _call_renew(self, renewals: list[Any]) -> None:
        self.promises.renewed(renewals, self.run("renew", renewals))

    def _call_seek(self, queue: str, group: str, position: Position, *, partition: str | None = None) -> None:
        answer = self.run("seek", queue, group, position, partition=partition)
        known = self.promises.queues.get(queue)
        exists = known is not None and group in known.groups and (partition is None or partition in known.partitions)
        assert isinstance(answer, LockstepError) != exists
        if exists:
            self.promises.sought(queue, group, position, partition, answer)

    def _call_delete_group(self, group: str, *, queue: str | None, forget_subscription: bool) -> None:
        answer = self.run("delete_group", group, queue=queue, forget_subscription=forget_subscription)
        if not isinstance(answer, LockstepError):
            self.promises.group_deleted(group, queue, forget_subscription, answer)

    def _call_subscribe(self, queue: str, group: str, subscription: Subscription) -> None:
        if not isinstance(self.run("subscribe", queue, group, subscription), LockstepError):
            self.promises.subscribed(queue, group, subscription)

    def _call_set_subscription(self, group: str, subscription: Subscription, *, queue: str | None) -> None:
        answer = self.run("set_subscription", group, subscription, queue=queue)
        if not isinstance(answer, LockstepError):
            self.promises.subscription_set(group, subscription, queue, answer)

    def _call_redrive(self, where: DeadLetterFilter, *, limit: int) -> None:
        before = matching(self._letters(), where)
        answer = self.run("redrive", where, limit=limit)
        if isinstance(answer, QueueFull):
            assert self.promises.queues[answer.details["queue"]].options.max_size
            return
        oldest = sorted(before, key=lambda letter: letter.id)[:limit]
        assert [letter.id for letter in self._gone(before)] == [letter.id for letter in oldest]
        self.promises.redriven(oldest, answer)

    def _call_purge(self, where: DeadLetterFilter) -> None:
        before = matching(self._letters(), where)
        self.promises.purged(before, self.run("purge", where))

    def _gone(self, before: list[DeadLetter]) -> list[DeadLetter]:
        there = {letter.id for letter in self._letters()}
        return sorted((letter for letter in before if letter.id not in there), key=lambda letter: letter.id)

    def _call_has_pending(self, requests: list[Any]) -> None:
        for request, answer in zip(requests, self.run("has_pending", requests), strict=True):
            self.promises.pending(request, answer)


def test_memory_store_keeps_the_promises(runner: asyncio.Runner) -> None:
    run_state_machine_as_test(lambda: PromiseMachine(runner), settings=BOUNDS["promises"])


# --- PostgreSQL agrees with the memory store


class AgreementMachine(Operations):
    shared = frozenset({"h"})

    def __init__(self, runner: asyncio.Runner, postgres: PostgresStore, clock: SetClock) -> None:
        super().__init__()
        self.runner = runner
        self.clock = clock
        self.clock.now = START
        self.memory: Store = MemoryStore(clock=clock)
        self.postgres = postgres
        self.same = Correspondence()
        runner.run(self._begin())

    async def _begin(self) -> None:
        """Every example begins with the same: nothing. Ids go on rising, as ids do."""
        for queue in await self.postgres.queues():
            await self.postgres.delete_queue(queue.name)
        # First polls are of queues that do not exist, and so outlive those that did.
        await self.postgres.database.fetch("empty", "delete from lockstep.first_poll")
        self.postgres.context.memory.noted.clear()
        await self.memory.open()

    def call(self, verb: str, *arguments: Any, **keywords: Any) -> Any:
        with self.breaking():
            return self.runner.run(self._call(verb, *arguments, **keywords))

    async def _call(self, verb: str, *arguments: Any, **keywords: Any) -> Any:
        here = await attempt(self.memory, verb, *arguments, **keywords)
        translated = [self.same.translate(argument) for argument in arguments]
        there = await attempt(self.postgres, verb, *translated, **keywords)
        self._compare(f"{verb}{arguments}{keywords}", here, there)
        return here

    def _compare(self, what: str, here: Any, there: Any) -> None:
        differences = self.same.differences(plain(here), plain(there))
        assert not differences, "\n".join([what, "memory != postgres:", *differences])

    async def _look(self) -> None:
        """All that can be seen of the stores."""
        names = [queue.name for queue in await self.memory.queues()]
        await self._call("queues")
        for name in names:
            await self._call("partitions", name)
            await self._call("lag", name)
            await self._call("groups", queue=name)
            self._compare(
                f"messages {name}",
                await listed(self.memory, name),
                await listed(self.postgres, name, limit=3),
            )
            for group in await self.memory.groups(queue=name):
                await self._call("depth", name, group.name)
        await self._call("leases")
        await self._call("utilisation")
        for trace in ("0190a1b2-c3d4-7e5f-8a6b-00000000000a", "0190a1b2-c3d4-7e5f-8a6b-00000000000b"):
            await self._call("trace", trace)
        for pushed in self._pushed[-3:]:
            await self._look_at(pushed.message.transaction_id, pushed.message.partition_id)
        letters = await self._call("dead_letters", EVERY, limit=1000)
        self._dead_letter_ids = sorted(letter.id for letter in letters.items)
        assert await self.postgres.verify() == []
        assert await self.memory.verify() == []

    async def _look_at(self, identity: str, partition_id: int) -> None:
        here = await attempt(self.memory, "message", identity, partition_id=partition_id)
        there = await attempt(
            self.postgres,
            "message",
            self.same.other("message", identity),
            partition_id=self.same.other("partition", partition_id),
        )
        self._compare(f"message {identity}", here, there)

    @rule()
    def look(self) -> None:
        with self.breaking():
            self.runner.run(self._look())

    def teardown(self) -> None:
        if not self.broken:
            self.runner.run(self._look())
        self.runner.run(self.memory.close())


def test_postgres_store_agrees_with_memory_store(runner: asyncio.Runner, database_dsn: str) -> None:
    from lockstep.storage.postgres.store import PostgresStore

    clock = SetClock()
    # A pop that passes more than that leaves the rest for the next one, which the memory store does not.
    config = msgspec.structs.replace(SMALL_SLICES, expire_messages_max=1_000)
    postgres = PostgresStore(database_dsn, config=config, clock=clock)
    runner.run(postgres.open())
    try:
        run_state_machine_as_test(lambda: AgreementMachine(runner, postgres, clock), settings=BOUNDS["agreement"])
    finally:
        runner.run(postgres.close())
