"""Continued leases: one call ends a lease and leases the next messages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from lockstep.core.messages import DeliveryFields
from lockstep.core.records import Ack, AckOutcome, Continued, NextRequest, Popped
from lockstep.errors import LockstepError
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.ack import ack_items_call, lease_uuid
from lockstep.storage.postgres.calls import Call, milliseconds
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.failures import Dying
from lockstep.storage.postgres.forwarding import Forwarding
from lockstep.storage.postgres.lookups import Lookups
from lockstep.storage.postgres.pop import Claim, PoppedRow, PoppedRun, Pops, new_leases, pop_arguments


class EndedPart(NamedTuple):
    """The outcome for a partition of a lease."""

    queue_name: str
    messages: int | None
    """How many the ended lease completed in this partition; None: it had none there."""
    expired: bool
    more: bool
    """Whether it has something for whoever pops next, or will have it at a time."""


class NextRow(NamedTuple):
    """A row of lockstep.continued: the outcome for a partition of a lease, or a newly leased run, or both."""

    ended: EndedPart
    run: PoppedRun
    delivery: DeliveryFields

    @property
    def has_run(self) -> bool:
        return self.run.first_seq is not None

    @property
    def is_leased(self) -> bool:
        """Whether it has a run, or reports that more is due."""
        return self.has_run or self.ended.messages is None


_NEXT = sql.procedure("next", NextRow)


class Continuing:
    """Serves requests that continue a lease."""

    def __init__(self, context: Context, lookups: Lookups, pops: Pops, forwarding: Forwarding) -> None:
        self._context = context
        self._lookups = lookups
        self._pops = pops
        self._forwarding = forwarding

    async def next(
        self, requests: Sequence[NextRequest], *, hold_seconds: float, lock_seconds: float | None
    ) -> list[Continued]:
        places: dict[str, int] = {}
        for place, request in enumerate(requests):
            places.setdefault(request.lease_id, place)
        first = [requests[place] for place in places.values()]
        queues: set[str] = set()
        calling = partial(self._next, first, queues, hold_seconds, lock_seconds)
        answers = dict(zip(places.values(), await self._lookups.retrying(queues, calling), strict=True))
        return [_at(place, answers.get(place), request) for place, request in enumerate(requests)]

    async def _next(
        self, requests: Sequence[NextRequest], queues: set[str], hold_seconds: float, lock_seconds: float | None
    ) -> list[Continued]:
        pops = [request.pop for request in requests]
        found = await self._pops.find(pops, queues)
        claims = [claim for of_request in found for claim in of_request or ()]
        leases = new_leases(claims, len(requests))
        arguments = pop_arguments(claims, pops, leases, self._context.now())
        del arguments["auto_acks"]
        call = _NEXT.within(
            lock_seconds,
            held_ids=[lease_uuid(request.lease_id) for request in requests],
            kept_claims=_kept_claims(requests, claims),
            give_ways=[request.give_way for request in requests],
            hold_ms=milliseconds(hold_seconds),
            shared=[claim.shared for claim in claims],
            **arguments,
        )
        names = {claim.queue_id: claim.queue for claim in claims}
        try:
            rows = await self._context.database.call(call)
        except Dying:
            on = partial(self._next_on, requests, call, names)
            lease_ids = [lease_uuid(request.lease_id) for request in requests]
            answers = await self._forwarding.run(on, lease_ids=lease_ids, hurry=True)
        else:
            answers = await self._answers(requests, rows, names, leases)
        return [await self._finished(*one) for one in zip(requests, answers, found, strict=True)]

    async def _next_on(
        self,
        requests: Sequence[NextRequest],
        call: Call[NextRow],
        names: dict[int, str],
        connection: asyncpg.Connection[Any],
    ) -> list[Continued]:
        rows = await self._context.database.call(call, connection)
        return await self._filled(requests, rows, names, connection)

    async def _answers(
        self, requests: Sequence[NextRequest], rows: list[NextRow], names: dict[int, str], leases: Sequence[UUID]
    ) -> list[Continued]:
        try:
            answers = await self._filled(requests, rows, names)
        except LockstepError:
            # The acks are committed: an error would tell all callers that share the call that nothing was completed.
            # The next pop fails on the messages that cannot be read.
            await self._pops.release(leases)
            return _answered(requests, rows, [Popped(request.pop.group) for request in requests])
        await self._give_back(answers, rows, leases)
        return answers

    async def _give_back(self, answers: list[Continued], rows: list[NextRow], leases: Sequence[UUID]) -> None:
        """End leases that deliver nothing: because part of the old lease was lost while it was being continued, or
        because all the next messages were removed in the meantime."""
        acks = [
            Ack(lease_id=str(row.run.lease_id), partition_id=row.run.partition_id)
            for row in rows
            if row.run.expires_at is not None and not row.has_run
        ]
        for answer, lease in zip(answers, leases, strict=True):
            if answer.popped.runs and not answer.acked.success:
                acks.append(Ack(lease_id=str(lease), status="released"))
                answer.popped = Popped(answer.popped.group)
        if acks:
            await self._context.database.call(ack_items_call(acks, self._context.now()))

    async def _filled(
        self,
        requests: Sequence[NextRequest],
        rows: list[NextRow],
        names: dict[int, str],
        connection: asyncpg.Connection[Any] | None = None,
    ) -> list[Continued]:
        leased = [PoppedRow(row.run, row.delivery) for row in rows if row.is_leased]
        popped = await self._pops.filled([request.pop for request in requests], leased, names, connection)
        return _answered(requests, rows, popped)

    async def _finished(self, request: NextRequest, answer: Continued, claims: list[Claim] | None) -> Continued:
        """The answer with the messages found for its request. If it found only expired messages, it continues to
        pop."""
        if answer.acked.success and answer.popped.unfinished and not answer.popped.runs:
            with suppress(LockstepError):  # the lease is ended, whatever comes next
                [answer.popped] = await self._pops.pop([request.pop])
        elif answer.acked.success:
            self._pops.describe(request.pop, answer.popped, claims)
        return answer


def _kept_claims(requests: Sequence[NextRequest], claims: Sequence[Claim]) -> list[int | None]:
    """For each request the number of the claim, from 1, whose partitions it keeps. With several queues, the queue with
    the highest priority comes first, whatever was leased before."""
    kept: list[int | None] = [None] * len(requests)
    for number, claim in enumerate(claims, start=1):
        if requests[claim.request].pop.queue is not None and not claim.shared:
            kept[claim.request] = number
    return kept


def _answered(requests: Sequence[NextRequest], rows: Sequence[NextRow], popped: Sequence[Popped]) -> list[Continued]:
    ended: list[dict[int | None, NextRow]] = [{} for _ in requests]
    for row in rows:
        if row.ended.messages is not None:
            ended[row.run.request].setdefault(row.run.partition_id, row)
    return [Continued(_outcome(i, list(ended[i].values()), one), one) for i, one in enumerate(popped)]


def _outcome(index: int, ended: Sequence[NextRow], popped: Popped) -> AckOutcome:
    lost = not ended or any([row.ended.expired for row in ended])
    leased = () if lost else popped.partition_ids
    given_back = any([row.ended.more and row.run.partition_id not in leased for row in ended])
    return AckOutcome(
        index=index,
        success=not lost,
        error="lease_lost" if lost else None,
        released=given_back,
        messages=sum([row.ended.messages or 0 for row in ended]),
        queue=ended[0].ended.queue_name if ended else None,
        partition=ended[0].run.partition_name if ended else None,
    )


def _at(place: int, answer: Continued | None, request: NextRequest) -> Continued:
    """The answer at its place; a lease that an earlier request named is gone."""
    if answer is None:
        lost = AckOutcome(index=place, success=False, error="lease_lost")
        return Continued(lost, Popped(request.pop.group))
    if answer.acked.index != place:
        answer.acked = msgspec.structs.replace(answer.acked, index=place)
    return answer
