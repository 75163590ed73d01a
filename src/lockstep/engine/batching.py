"""Requests that come together become one call of the store.

A store call costs a round trip, a transaction and a commit, whether it carries one message or a thousand. So requests
of one kind are joined. There is no timer that holds a request back: a request that finds no call of its kind in flight
goes at once, and alone; while one is in flight the next ones gather, and go together when it ends. An idle server
therefore adds no wait, and the busier it is the larger its calls become.

A second call is begun beside the first in two cases: enough has gathered to make it worth while, so that the database
works on one while the other is packed; or the first takes long. A push waits for the partition, which somebody may
hold: an open transaction of a user, say. That must not hold up everybody else. So calls that take long no longer count,
and a push waits for a lock only a little. After that each request of the call is tried alone, as briefly. Those that
still need the lock wait for it as long as it takes, a few at a time, and are no call in flight any more: others go on.
How long "a little" is depends on how long calls take of late: while all of them are slow, more of them side by side
would just wait for each other's locks, and requests that go their own way would be slower still.

What is joined must not be noticed by those who asked:
* Each request gets its own answer: its receipts, its lease, its outcomes. Pops never share a lease.
* If a joined call fails, each of its requests is tried alone, so that one that is at fault fails for itself only.
  When the store cannot be reached they all fail: trying each would just take longer. A push that must not overtake
  operations that wait says which of its batches that is about: the requests without any go again together.
* Acks of the same cursor are applied together, by the contract of the store, and then one may clamp the other. So two
  requests that speak of the same partition and group, or of the same lease, never share a call.
* Requests are joined in the order in which they came. A request that does not fit ends the call that gathers.
* Pops of a shared group meet at the cursor of their partition, where one waits for the other's commit. So they are
  never in flight side by side: while one call has such a group, its next pops gather, and others pass them.
* Whoever asked may stop waiting. A request that nobody waits for is not sent; and what a pop has leased for somebody
  who has gone is released.

Switched off, every request is a call of its own; all else is the same.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from msgspec.structs import replace

from lockstep.config import Config
from lockstep.core.applying import ack_keys
from lockstep.core.messages import Batch, PushResult
from lockstep.core.operations import NewOperation
from lockstep.core.records import Ack, AckOutcome, Popped, PopRequest, Renewal, Renewed
from lockstep.engine.lane import Call, CallCounts, Crowd, Lane, Limits
from lockstep.errors import LockstepError
from lockstep.storage.base import Store

LoadKind = Literal["push", "ack", "pop"]
"""The kinds of requests whose load is managed."""

_UNLIMITED = 1_000_000_000
_SHARED_KNOWN_MAX = 10_000
_UNWANTED_SECONDS_MAX = 1.0
_DELIVERING_SECONDS = 1.0
"""So long after a pop or an ack more of them are expected."""


@dataclass(slots=True)
class _Releases:
    """Leases that nobody waits for any more, on their way back."""

    store: Store
    released: Callable[[Sequence[AckOutcome]], None]
    """Is told, so that somebody else may be woken for them."""
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def release(self, popped: Iterable[Popped]) -> None:
        leases = [one.lease_id for one in popped if one.lease_id is not None]
        if leases:
            acks = [Ack(lease_id=lease_id, status="released") for lease_id in leases]
            task = asyncio.create_task(self._release(acks))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _release(self, acks: list[Ack]) -> None:
        with suppress(LockstepError):  # if it fails the leases run out by themselves
            self.released(await self.store.ack(acks))

    async def close(self) -> None:
        """Wait for them, and not for long: leases run out by themselves."""
        while self.tasks:
            _, late = await asyncio.wait(set(self.tasks), timeout=_UNWANTED_SECONDS_MAX)
            for task in late:
                task.cancel()


class Batching:
    """The busy verbs of a store, joined."""

    def __init__(
        self,
        store: Store,
        config: Config,
        *,
        pushed: Callable[[Sequence[Batch], PushResult], None],
        released: Callable[[Sequence[AckOutcome]], None],
        crowded: Callable[[LoadKind], None],
    ) -> None:
        """`pushed` and `released` are told what a call did, so that those who wait for it are woken, once for all of
        its requests and whether somebody still waits for an answer or not; `crowded`, when too many of a kind wait."""
        self._releases = _Releases(store, released)
        self._store = store
        self._pushed = pushed
        self._released = released
        self._lock_seconds = config.call_lock_seconds
        self._lock_seconds_max = max(config.lock_timeout_seconds, config.call_lock_seconds)
        self._busy_messages_max = config.load_busy_messages_max
        self._delivering_at = float("-inf")
        """When somebody last asked for messages, or acknowledged some."""
        self._shared: set[tuple[str | None, str]] = set()
        """Groups, by queue, that were found to be shared."""
        limits = Limits.of(config)
        joined = dataclasses.replace(limits, messages_large=_UNLIMITED)
        push_calls_max, pop_calls_max, ack_calls_max = config.push_calls_max, config.pop_calls_max, config.ack_calls_max
        if not config.batching:
            push_calls_max = pop_calls_max = ack_calls_max = _UNLIMITED
        self._push: Lane[Batch, PushResult] = Lane(
            self._call_push,
            _part_of_push,
            calls_max=push_calls_max,
            limits=limits,
            size=_payload_bytes,
            crowded=partial(crowded, "push"),
            stalls=True,
            alone=self._only_pushes,
        )
        # What waits for its time is a transaction of several steps, which other pushes need not pay for.
        self._schedule: Lane[Batch, PushResult] = Lane(
            self._call_push, _part_of_push, calls_max=push_calls_max, limits=limits, size=_payload_bytes
        )
        self._pop: Lane[PopRequest, list[Popped]] = Lane(
            _plainly(store.pop),
            _part_of_list,
            calls_max=pop_calls_max,
            limits=joined,
            abandoned=self._releases.release,
            crowded=partial(crowded, "pop"),
        )
        # Whole leases have a procedure of their own, which does not take other acks.
        self._ack_leases: Lane[Ack, list[AckOutcome]] = Lane(
            self._call_ack_leases,
            _part_of_outcomes,
            calls_max=ack_calls_max,
            limits=joined,
            crowded=partial(crowded, "ack"),
            stalls=True,
        )
        self._ack: Lane[Ack, list[AckOutcome]] = Lane(
            self._call_ack,
            _part_of_outcomes,
            calls_max=ack_calls_max,
            limits=joined,
            crowded=partial(crowded, "ack"),
            stalls=True,
        )
        self._renew: Lane[Renewal, list[Renewed]] = Lane(
            _plainly(store.renew), _part_of_list, calls_max=ack_calls_max, limits=joined
        )
        # Requests that are queued become one bundle, and bundles are of one kind.
        self._queue_push: Lane[NewOperation, list[str]] = Lane(
            _plainly(store.queue_operations),
            _part_of_list,
            calls_max=push_calls_max,
            limits=limits,
            size=_operation_bytes,
        )
        self._queue_ack: Lane[NewOperation, list[str]] = Lane(
            _plainly(store.queue_operations),
            _part_of_list,
            calls_max=ack_calls_max,
            limits=limits,
            size=_operation_bytes,
        )

    async def _call_push(self, batches: list[Batch], *, brief: bool) -> PushResult:
        result = await self._store.push(batches, lock_seconds=self._patience(self._push, brief))
        self._pushed(batches, result)
        return result

    async def _call_ack(self, acks: list[Ack], *, brief: bool) -> list[AckOutcome]:
        outcomes = await self._store.ack(acks, lock_seconds=self._patience(self._ack, brief))
        self._released(outcomes)
        return outcomes

    async def _call_ack_leases(self, acks: list[Ack], *, brief: bool) -> list[AckOutcome]:
        outcomes = await self._store.ack(acks, lock_seconds=self._patience(self._ack_leases, brief))
        self._released(outcomes)
        return outcomes

    def _only_pushes(self) -> bool:
        return time.monotonic() - self._delivering_at > _DELIVERING_SECONDS

    def _patience(self, lane: Lane[Any, Any], brief: bool) -> float | None:
        """How long a call waits for a lock: a brief one leaves the others their turn."""
        return min(max(self._lock_seconds, lane.long_seconds), self._lock_seconds_max) if brief else None

    @property
    def counts(self) -> dict[str, CallCounts]:
        return {
            "push": self._push.counts,
            "schedule": self._schedule.counts,
            "pop": self._pop.counts,
            "ack_leases": self._ack_leases.counts,
            "ack": self._ack.counts,
            "renew": self._renew.counts,
            "queue_push": self._queue_push.counts,
            "queue_ack": self._queue_ack.counts,
        }

    def crowds(self) -> dict[LoadKind, Crowd]:
        """Who waits, by kind."""
        return {
            "push": self._push.crowd() | self._schedule.crowd(),
            "ack": self._ack_leases.crowd() | self._ack.crowd(),
            "pop": self._pop.crowd(),
        }

    async def push(self, batches: Sequence[Batch]) -> PushResult:
        messages = sum([len(batch.columns.payloads) for batch in batches])
        lane = self._schedule if any([batch.schedule is not None for batch in batches]) else self._push
        return await lane.ask(batches, messages=messages)

    async def pop(self, requests: Sequence[PopRequest]) -> list[Popped]:
        self._delivering_at = time.monotonic()
        apart = frozenset(
            [(r.queue, r.namespace, r.task, r.group) for r in requests if r.mode == "shared" or self._is_shared(r)]
        )
        answers = await self._pop.ask(requests, messages=sum([request.batch for request in requests]), apart=apart)
        for request, popped in zip(requests, answers, strict=True):
            if popped.mode == "shared" and not self._is_shared(request) and len(self._shared) < _SHARED_KNOWN_MAX:
                self._shared.add((request.queue, request.group))
        return answers

    def release(self, popped: Iterable[Popped]) -> None:
        self._releases.release(popped)

    def _is_shared(self, request: PopRequest) -> bool:
        return (request.queue, request.group) in self._shared

    async def ack(self, acks: Sequence[Ack]) -> list[AckOutcome]:
        self._delivering_at = time.monotonic()
        by_lease = all([ack.partition_id is None and ack.transaction_id is None for ack in acks])
        lane = self._ack_leases if by_lease else self._ack
        return await lane.ask(acks, messages=len(acks), keys=frozenset(ack_keys(acks)))

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        return await self._renew.ask(renewals, messages=len(renewals))

    def has_time(self, coming: int = 0) -> bool:
        """Whether what waits to be pushed, with so many requests that come, is less than half a crowd, or fills a call:
        enough to keep the store at work until the next turn, however long this one is."""
        return self._push.expected_messages(coming) < max(self._push.crowd_messages / 2, self._busy_messages_max)

    def queueing(self, coming: int = 0) -> int:
        """How many messages of pushes wait to be queued, with so many requests that come."""
        return self._queue_push.expected_messages(coming)

    def queueing_seconds(self, kind: LoadKind) -> float:
        """For how long the store has not taken what waits to be queued."""
        return 0.0 if kind == "pop" else (self._queue_push if kind == "push" else self._queue_ack).stalled_seconds()

    def refuse_waiting(self, kind: LoadKind, seconds: float, refusal: Callable[[], Exception]) -> None:
        """Refuse the requests of a kind that have waited this long for their call, or for being queued."""
        lanes: dict[LoadKind, tuple[Lane[Any, Any], ...]] = {
            "push": (self._push, self._schedule, self._queue_push),
            "ack": (self._ack, self._ack_leases, self._renew, self._queue_ack),
            "pop": (self._pop,),
        }
        for lane in lanes[kind]:
            lane.refuse_waiting(seconds, refusal)

    async def queue(self, operation: NewOperation) -> str:
        """Queue a request; returns the id of the operation."""
        lane = self._queue_push if operation.kind == "push" else self._queue_ack
        ids = await lane.ask([operation], messages=operation.messages())
        return ids[0]

    async def close(self) -> None:
        lanes = (self._push, self._schedule, self._pop, self._ack_leases, self._ack, self._renew)
        for lane in (*lanes, self._queue_push, self._queue_ack):
            await lane.close()
        await self._releases.close()


def _plainly(verb: Callable[[list[Any]], Awaitable[Any]]) -> Call:
    """A verb for which it makes no difference whether its items are of one request."""

    def call(items: list[Any], /, *, brief: bool) -> Awaitable[Any]:  # noqa: ARG001
        return verb(items)

    return call


def _payload_bytes(batches: Sequence[Batch]) -> int:
    return sum([sum(map(len, batch.columns.payloads)) for batch in batches])


def _operation_bytes(operations: Sequence[NewOperation]) -> int:
    return sum([operation.bytes() for operation in operations])


def _part_of_push(result: PushResult, start: int, stop: int) -> PushResult:
    return result if stop - start == len(result.batches) else result.part(start, stop)


def _part_of_list(answers: list[Any], start: int, stop: int) -> list[Any]:
    return answers[start:stop]


def _part_of_outcomes(outcomes: list[AckOutcome], start: int, stop: int) -> list[AckOutcome]:
    part = outcomes[start:stop]
    return part if start == 0 else [replace(outcome, index=outcome.index - start) for outcome in part]
