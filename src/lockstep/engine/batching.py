"""Requests that come together become one call of the store.

A store call costs a round trip, a transaction and a commit, whether it carries one message or a thousand. So requests
of one kind are joined. No timer holds a request back: a request that finds no call of its kind in flight goes at once,
and alone. While a call is in flight, further requests gather; they go together when it ends. An idle server therefore
adds no delay, and the busier it is, the larger its calls become.

A second call begins beside the first in two cases. Either enough has gathered to make it worthwhile: the database works
on one call while the other is packed. Or the first call takes long. A push waits for its partitions, and another
transaction, perhaps a user's, may hold one of them. That must not delay other requests. So calls that take long stop
counting as in flight, and a push waits for a lock only briefly. After that each request of the call is tried alone, as
briefly. Those that still need the lock wait for it as long as it takes, a few at a time, and do not count as in flight,
so other calls go on. How long "briefly" is depends on how long calls have taken recently: while all of them are slow,
more calls side by side would only wait for each other's locks, and requests tried alone would be slower still.

The callers must not notice that their requests were joined:
* Each request gets its own answer: its receipts, its lease, its outcomes. Pops never share a lease.
* If a joined call fails, each of its requests is tried alone, so that a faulty one fails only for itself. If the store
  cannot be reached, all of them fail: trying each would only take longer. A push that must not overtake waiting
  operations says which of its batches that concerns; the requests without such batches go again together.
* A request that continues a lease is carried out even if its caller is gone: its ack has been promised to nobody else.
  What it has leased is released then.
* Acks of the same cursor in one call are applied together, by the contract of the store, and then one may clamp the
  other. So two requests that name the same partition and group, or the same lease, never share a call.
* Requests are joined in the order in which they came. A request that does not fit ends the call that is gathering.
* Pops of a shared group meet at the cursor of their partition, where one waits for the other's commit. So they are
  never in flight side by side: while a call has such a group, its next pops gather, and other pops pass them.
* A caller may stop waiting. A request without a caller is not sent; and leases without a caller are released.

With the setting `batching` off, every request is a call of its own; everything else is the same.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from lockstep.config import Config
from lockstep.core.applying import ack_keys
from lockstep.core.messages import Batch, PushResult, counts_of
from lockstep.core.operations import NewOperation
from lockstep.core.records import Ack, AckOutcome, Continued, NextRequest, Popped, PopRequest, Renewal, Renewed
from lockstep.engine.arrivals import Arrivals
from lockstep.engine.joiner import Joiner
from lockstep.engine.load import Load, LoadKind
from lockstep.engine.pace import CallCounts, CallLimits, Crowd
from lockstep.handover import Handover
from lockstep.storage.base import Store

_UNLIMITED = 1_000_000_000
_SHARED_KNOWN_MAX = 10_000
_DELIVERING_SECONDS = 1.0
"""After a pop or an ack, more of them are expected for this long."""


class Batching:
    """The busy verbs of a store, joined."""

    def __init__(self, store: Store, config: Config, arrivals: Arrivals) -> None:
        self.load = Load(config, self)
        self._store = store
        self._arrivals = arrivals
        self._handover: Handover[list[Popped]] = Handover(self._release)
        self._next_handover: Handover[list[Continued]] = Handover(self._release_next)
        self._next_hold_seconds = config.next_hold_seconds
        self._busy_messages_max = config.load_busy_messages_max
        self._delivering_at = float("-inf")
        """The time of the last pop or ack."""
        self._shared: set[tuple[str | None, str]] = set()
        """Groups, by queue, that were found to be shared."""
        limits = CallLimits.of(config)
        joined = dataclasses.replace(limits, messages_large=_UNLIMITED)
        push_calls_max, pop_calls_max, ack_calls_max = config.push_calls_max, config.pop_calls_max, config.ack_calls_max
        next_calls_max = config.next_calls_max
        if not config.batching:
            push_calls_max = pop_calls_max = next_calls_max = ack_calls_max = _UNLIMITED
        pushes: dict[str, Any] = {"calls_max": push_calls_max, "limits": limits}
        acks: dict[str, Any] = {"calls_max": ack_calls_max, "limits": joined, "locks": True, "stalls": True}
        self._push: Joiner[Batch, PushResult] = Joiner(
            "push",
            self._call_push,
            _part_of_push,
            **pushes,
            locks=True,
            stalls=True,
            size=_payload_bytes,
            load=self.load,
            alone=self._only_pushes,
        )
        # Scheduled messages need a transaction of several steps, which other pushes need not pay for.
        self._schedule: Joiner[Batch, PushResult] = Joiner(
            "push", self._call_push, _part_of_push, **pushes, locks=True, size=_payload_bytes
        )
        self._pop: Joiner[PopRequest, list[Popped]] = Joiner(
            "pop",
            store.pop,
            _part_of_list,
            calls_max=pop_calls_max,
            limits=joined,
            load=self.load,
            handover=self._handover,
        )
        # The ack in it takes effect whether or not its caller still waits for the popped messages.
        self._next: Joiner[NextRequest, list[Continued]] = Joiner(
            "pop",
            self._call_next,
            _part_of_continued,
            calls_max=next_calls_max,
            limits=joined,
            locks=True,
            load=self.load,
            handover=self._next_handover,
            finishes=True,
        )
        # Whole leases have a separate procedure, which accepts no other acks.
        self._ack_leases: Joiner[Ack, list[AckOutcome]] = Joiner(
            "ack", self._call_ack, _part_of_outcomes, **acks, load=self.load
        )
        self._ack: Joiner[Ack, list[AckOutcome]] = Joiner(
            "ack", self._call_ack, _part_of_outcomes, **acks, load=self.load
        )
        self._renew: Joiner[Renewal, list[Renewed]] = Joiner(
            "ack", store.renew, _part_of_list, calls_max=ack_calls_max, limits=joined
        )
        # Queued requests form one bundle, and a bundle has one kind.
        self._queue_push: Joiner[NewOperation, list[str]] = Joiner(
            "push", store.queue_operations, _part_of_list, **pushes, size=_operation_bytes
        )
        self._queue_ack: Joiner[NewOperation, list[str]] = Joiner(
            "ack", store.queue_operations, _part_of_list, calls_max=ack_calls_max, limits=limits, size=_operation_bytes
        )

    async def _call_push(self, batches: list[Batch], *, lock_seconds: float | None) -> PushResult:
        result = await self._store.push(batches, lock_seconds=lock_seconds)
        self._arrivals.pushed(batches, result)  # once for all requests, and whether or not their callers still wait
        return result

    async def _call_ack(self, acks: list[Ack], *, lock_seconds: float | None) -> list[AckOutcome]:
        outcomes = await self._store.ack(acks, lock_seconds=lock_seconds)
        self._arrivals.released(outcomes)
        return outcomes

    async def _call_next(self, requests: list[NextRequest], *, lock_seconds: float | None) -> list[Continued]:
        continued = await self._store.next(requests, hold_seconds=self._next_hold_seconds, lock_seconds=lock_seconds)
        self._arrivals.released([one.acked for one in continued])
        return continued

    def _only_pushes(self) -> bool:
        return time.monotonic() - self._delivering_at > _DELIVERING_SECONDS

    async def push(self, batches: Sequence[Batch]) -> PushResult:
        messages = sum(counts_of([batch.columns for batch in batches]))
        joiner = self._schedule if any([batch.schedule is not None for batch in batches]) else self._push
        return await joiner.ask(batches, messages=messages)

    async def pop(self, requests: Sequence[PopRequest]) -> list[Popped]:
        self._delivering_at = time.monotonic()
        # Never in this task: if the caller were cancelled in the middle of the call, it would be unknown what it has
        # leased.
        messages = sum([request.batch for request in requests])
        answers = await self._pop.join(requests, messages=messages, apart=self._shared_of(requests))
        self._learn(requests, answers)
        return answers

    async def next(self, requests: Sequence[NextRequest]) -> list[Continued]:
        self._delivering_at = time.monotonic()
        pops = [request.pop for request in requests]
        answers = await self._next.join(
            requests,
            messages=sum([pop.batch for pop in pops]),
            keys=frozenset([request.lease_id for request in requests]),
            apart=self._shared_of(pops),
        )
        self._learn(pops, [one.popped for one in answers])
        return answers

    def _shared_of(self, requests: Sequence[PopRequest]) -> frozenset[Hashable]:
        return frozenset(
            [(r.queue, r.namespace, r.task, r.group) for r in requests if r.mode == "shared" or self._is_shared(r)]
        )

    def _learn(self, requests: Sequence[PopRequest], answers: Sequence[Popped]) -> None:
        for request, popped in zip(requests, answers, strict=True):
            if popped.mode == "shared" and not self._is_shared(request) and len(self._shared) < _SHARED_KNOWN_MAX:
                self._shared.add((request.queue, request.group))

    def _is_shared(self, request: PopRequest) -> bool:
        return (request.queue, request.group) in self._shared

    def release(self, popped: list[Popped]) -> None:
        """Release the leases of answers whose callers are gone, in the background."""
        self._handover.give_back(popped)

    async def _release(self, popped: Iterable[Popped]) -> None:
        acks = [Ack(lease_id=one.lease_id, status="released") for one in popped if one.lease_id is not None]
        if acks:
            self._arrivals.released(await self._store.ack(acks))

    async def _release_next(self, continued: Iterable[Continued]) -> None:
        await self._release([one.popped for one in continued])

    async def ack(self, acks: Sequence[Ack]) -> list[AckOutcome]:
        self._delivering_at = time.monotonic()
        joiner = self._ack_leases if all([ack.ends_lease for ack in acks]) else self._ack
        return await joiner.ask(acks, messages=len(acks), keys=frozenset(ack_keys(acks)))

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        return await self._renew.ask(renewals, messages=len(renewals))

    async def queue(self, operation: NewOperation) -> str:
        """Queue a request; returns the id of the operation."""
        joiner = self._queue_push if operation.kind == "push" else self._queue_ack
        ids = await joiner.ask([operation], messages=operation.messages())
        return ids[0]

    async def close(self) -> None:
        for joiner in self._joiners().values():
            await joiner.close()
        await self._handover.close()
        await self._next_handover.close()

    def _joiners(self) -> dict[str, Joiner[Any, Any]]:
        return {
            "push": self._push,
            "schedule": self._schedule,
            "pop": self._pop,
            "next": self._next,
            "ack_leases": self._ack_leases,
            "ack": self._ack,
            "renew": self._renew,
            "queue_push": self._queue_push,
            "queue_ack": self._queue_ack,
        }

    # What the load is made of

    @property
    def counts(self) -> dict[str, CallCounts]:
        return {name: joiner.counts for name, joiner in self._joiners().items()}

    def crowds(self) -> dict[LoadKind, Crowd]:
        """The waiting requests, by kind; and how calls went since the last call of this method."""
        return {
            "push": self._push.crowd() | self._schedule.crowd(),
            "ack": self._ack_leases.crowd() | self._ack.crowd(),
            "pop": self._pop.crowd() | self._next.crowd(),
        }

    def has_time(self, coming: int = 0) -> bool:
        """Whether the waiting pushes, plus this many more, are less than half a crowd or fill a call: enough to keep
        the store busy until the next turn, however long this one takes."""
        return self._push.expected_messages(coming) < max(self._push.crowd_messages / 2, self._busy_messages_max)

    def queueing(self, coming: int = 0) -> int:
        """The number of messages in pushes that wait to be queued, if this many more requests follow."""
        return self._queue_push.expected_messages(coming)

    def queueing_seconds(self, kind: LoadKind) -> float:
        """How long the store has accepted none of the requests that wait to be queued."""
        return 0.0 if kind == "pop" else (self._queue_push if kind == "push" else self._queue_ack).stalled_seconds()

    def refuse_waiting(self, kind: LoadKind, seconds: float, refusal: Callable[[], Exception]) -> None:
        """Refuse the requests of a kind that have waited this long for their call, or to be queued."""
        joiners: dict[LoadKind, tuple[Joiner[Any, Any], ...]] = {
            "push": (self._push, self._schedule, self._queue_push),
            "ack": (self._ack, self._ack_leases, self._renew, self._queue_ack),
            "pop": (self._pop, self._next),
        }
        for joiner in joiners[kind]:
            joiner.refuse_waiting(seconds, refusal)


def _payload_bytes(batches: Sequence[Batch]) -> int:
    return sum([batch.columns.payload_bytes() for batch in batches])


def _operation_bytes(operations: Sequence[NewOperation]) -> int:
    return sum([operation.bytes() for operation in operations])


def _part_of_push(result: PushResult, start: int, stop: int) -> PushResult:
    return result if stop - start == len(result.batches) else result.part(start, stop)


def _part_of_list(answers: list[Any], start: int, stop: int) -> list[Any]:
    return answers[start:stop]


def _part_of_continued(answers: list[Continued], start: int, stop: int) -> list[Continued]:
    part = answers[start:stop]
    return part if start == 0 else [Continued(_counted_from(start, one.acked), one.popped) for one in part]


def _part_of_outcomes(outcomes: list[AckOutcome], start: int, stop: int) -> list[AckOutcome]:
    part = outcomes[start:stop]
    return part if start == 0 else [_counted_from(start, outcome) for outcome in part]


def _counted_from(start: int, outcome: AckOutcome) -> AckOutcome:
    return replace(outcome, index=outcome.index - start)
