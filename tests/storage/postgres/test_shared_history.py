"""A linear history: what concurrent consumers of one partition saw must be what one after the other could have seen.

Some actors lease, complete and retry at once, and every call is recorded with its answer. Then an order of the calls is
searched, in which none comes before one that had ended before it began, and in which a simple model, a state per
message, gives the same answers. What the model leaves open is which of the available messages a pop takes first,
because it passes over what another holds in that moment; but it must not find nothing while there is something.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from lockstep.core.endings import AckStatus
from lockstep.core.policy import QueueOptions
from lockstep.core.records import Ack, Popped, PopRequest, Subscription
from lockstep.storage.base import Store
from lockstep.storage.postgres.store import PostgresStore
from support.builders import push_n
from support.clock import SetClock
from support.databases import Databases

GROUP = "workers"
MESSAGES, ACTORS, CALLS, ROUNDS = 6, 3, 3, 25
LEASE_SECONDS, RETRY_LIMIT = 10, 1


@dataclass(frozen=True)
class State:
    """Of each message: new, leased by somebody, waiting, or done; and how often its delivery failed."""

    leases: tuple[str | None, ...] = (None,) * MESSAGES
    attempts: tuple[int, ...] = (0,) * MESSAGES
    new: int = 0
    """How many were handed out: the next new one."""
    done: frozenset[int] = frozenset()

    def available(self) -> set[int]:
        again = {at for at in range(self.new) if self.leases[at] is None and at not in self.done}
        return again | set(range(self.new, MESSAGES))

    def leased(self, lease_id: str) -> list[int]:
        return [at for at in range(MESSAGES) if self.leases[at] == lease_id]

    def lease(self, at: int, lease_id: str | None) -> State:
        leases = (*self.leases[:at], lease_id, *self.leases[at + 1 :])
        return replace(self, leases=leases, new=max(self.new, at + 1))

    def end(self, at: int, status: AckStatus) -> State:
        freed = self.lease(at, None)
        if status in ("completed", "dlq"):
            return replace(freed, done=freed.done | {at})
        if status == "released":
            return freed
        attempts = (*self.attempts[:at], self.attempts[at] + 1, *self.attempts[at + 1 :])
        failed = replace(freed, attempts=attempts)
        return failed if attempts[at] <= RETRY_LIMIT else replace(failed, done=failed.done | {at})


@dataclass(frozen=True)
class Lease:
    batch: int
    lease_id: str | None
    deliveries: tuple[tuple[int, int], ...]
    """Which messages, and for the how-manieth time."""

    def apply(self, state: State) -> State | None:
        if not self.deliveries:
            return None if state.available() else state
        new = state.new
        for at, attempt in self.deliveries:
            if at not in state.available() or attempt != state.attempts[at] + 1:
                return None
            if at >= new:  # what is new is taken in order
                if at != new:
                    return None
                new += 1
            state = state.lease(at, self.lease_id)
        return state if len(self.deliveries) <= self.batch else None


@dataclass(frozen=True)
class End:
    lease_id: str
    at: int | None
    """None is all that the lease holds."""
    status: AckStatus
    error: str | None
    noop: bool

    def apply(self, state: State) -> State | None:
        held = state.leased(self.lease_id)
        if not held:
            return state if self.error == "lease_lost" else None
        if self.at is not None and self.at not in held:
            return self._of_another(state)
        if self.error is not None or self.noop:
            return None
        for at in held if self.at is None else [self.at]:
            state = state.end(at, self.status)
        return state

    def _of_another(self, state: State) -> State | None:
        """A message that is not, or no longer, of a lease that holds others."""
        if self.at not in state.done:
            return state if self.error == "lease_lost" else None
        expected = (None, True) if self.status == "completed" else ("committed", False)
        return state if (self.error, self.noop) == expected else None


@dataclass(frozen=True)
class Call:
    began: int
    ended: int
    what: Lease | End


def linear(calls: list[Call], state: State, seen: set[tuple[frozenset[Call], State]]) -> Iterator[State]:
    """The states in which the calls may end, in any order that they may have been in."""
    if not calls:
        yield state
        return
    key = (frozenset(calls), state)
    if key in seen:
        return
    seen.add(key)
    first_end = min(call.ended for call in calls)
    for call in calls:
        if call.began <= first_end:
            after = call.what.apply(state)
            if after is not None:
                yield from linear([other for other in calls if other is not call], after, seen)


@dataclass
class Recorder:
    store: Store
    queue: str
    chance: random.Random
    leases: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    _clock: count[int] = field(default_factory=count)

    async def act(self) -> None:
        for _ in range(CALLS):
            step = self.chance.choice([self._lease, self._lease, self._end_lease, self._end_message])
            await self._record(step)

    async def _record(self, step: Callable[[], Awaitable[Lease | End | None]]) -> None:
        began = next(self._clock)
        what = await step()
        if what is not None:
            self.calls.append(Call(began, next(self._clock), what))

    async def _lease(self) -> Lease:
        batch = self.chance.randint(1, 4)
        request = PopRequest(queue=self.queue, group=GROUP, batch=batch, lease_seconds=LEASE_SECONDS)
        [popped] = await self.store.pop([request])
        if popped.lease_id is not None:
            self.leases.append(popped.lease_id)
        return Lease(batch, popped.lease_id, _deliveries(popped))

    async def _end_lease(self) -> End | None:
        return await self._end(None)

    async def _end_message(self) -> End | None:
        return await self._end(self.chance.randrange(MESSAGES))

    async def _end(self, at: int | None) -> End | None:
        if not self.leases:
            return None
        lease_id = self.chance.choice(self.leases[-4:])
        status: AckStatus = self.chance.choice(["completed", "completed", "released", "retry", "failed", "dlq"])
        [outcome] = await self.store.ack([Ack(lease_id=lease_id, seq=None if at is None else at + 1, status=status)])
        return End(lease_id, at, status, outcome.error, outcome.noop)


def _deliveries(popped: Popped) -> tuple[tuple[int, int], ...]:
    return tuple((message.seq - 1, message.attempt) for message in popped.messages())


def expired(state: State) -> State:
    """Every lease ran out: the next pop charges it, so it is as if each of its messages had failed now."""
    for at in range(MESSAGES):
        if state.leases[at] is not None:
            state = state.end(at, "failed")
    return state


@pytest.mark.parametrize("seed", range(4))
async def test_concurrent_calls_have_a_linear_history(databases: Databases, clock: SetClock, seed: int) -> None:
    store = PostgresStore(databases.emptied(), clock=clock)
    await store.open()
    chance = random.Random(seed)
    try:
        for number in range(ROUNDS):
            await _round(store, clock, f"q{number}", chance)
        assert await store.verify() == []
    finally:
        await store.close()


async def _round(store: Store, clock: SetClock, queue: str, chance: random.Random) -> None:
    await store.configure(queue, QueueOptions(retry_limit=RETRY_LIMIT, retry_delay_ms=0))
    await push_n(store, queue, MESSAGES)
    await store.subscribe(queue, GROUP, Subscription(), mode="shared")
    states = {State()}
    for _ in range(2):
        recorder = Recorder(store, queue, chance)
        await asyncio.gather(*[recorder.act() for _ in range(ACTORS)])
        states = {end for state in states for end in linear(recorder.calls, state, set())}
        assert states, f"no order of these calls explains them: {sorted(recorder.calls, key=lambda call: call.began)}"
        clock.advance(LEASE_SECONDS)
        states = {expired(state) for state in states}


def test_checker_refuses_a_message_that_two_hold() -> None:
    calls = [Call(0, 2, Lease(1, "a", ((0, 1),))), Call(1, 3, Lease(1, "b", ((0, 1),)))]
    assert not list(linear(calls, State(), set()))


def test_checker_refuses_a_pop_that_finds_nothing_while_there_is_something() -> None:
    calls = [Call(0, 2, Lease(1, "a", ((0, 1),))), Call(1, 3, Lease(1, None, ()))]
    assert not list(linear(calls, State(), set()))


def test_checker_refuses_an_answer_out_of_time() -> None:
    lost = End("a", None, "completed", "lease_lost", noop=False)
    calls = [Call(0, 1, Lease(1, "a", ((0, 1),))), Call(2, 3, lost)]
    assert not list(linear(calls, State(), set()))
    assert list(linear([Call(0, 3, calls[0].what), Call(2, 4, lost)], State(), set()))
