"""Pops: which groups are served from which partitions, and the leased messages."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from lockstep.core.ids import shared_lease, uuid7
from lockstep.core.messages import DeliveryFields, Run
from lockstep.core.records import Ack, Popped, PopRequest
from lockstep.errors import GroupModeMismatch, LockstepError
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.ack import ack_items_call
from lockstep.storage.postgres.cache import QueueNames, Segment
from lockstep.storage.postgres.calls import Call, milliseconds
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.failures import Dying
from lockstep.storage.postgres.first_polls import PostgresFirstPolls
from lockstep.storage.postgres.forwarding import Forwarding
from lockstep.storage.postgres.lookups import Lookups
from lockstep.storage.postgres.placing import SUBSCRIBE, Placing
from lockstep.storage.postgres.segments import SegmentReader


class PoppedRun(NamedTuple):
    """Consecutive leased messages of one partition, and where they are stored; without a partition: more is due."""

    request: int
    queue_id: int
    partition_id: int | None
    partition_name: str
    first_seq: int
    last_seq: int
    segment_id: int
    ordinal: int
    expires_at: datetime | None
    lease_id: UUID


class PoppedRow(NamedTuple):
    """A row of lockstep.popped."""

    run: PoppedRun
    delivery: DeliveryFields


_POP = sql.procedure("pop", PoppedRow)
_SHARED_POP = sql.procedure("shared_pop", PoppedRow, label="pop")
_QUEUES_BY_PRIORITY: sql.Procedure[Any] = sql.procedure("queues_by_priority", label="queue_priority")
_PASS_NONE = "set local lockstep.passes_left = '0'"


class Pops:
    """Serves pop requests: finds or creates their groups, claims partitions, and reads the leased messages."""

    def __init__(
        self,
        context: Context,
        lookups: Lookups,
        reader: SegmentReader,
        forwarding: Forwarding,
        placing: Placing,
        first_polls: PostgresFirstPolls,
    ) -> None:
        self._context = context
        self._lookups = lookups
        self._reader = reader
        self._forwarding = forwarding
        self._placing = placing
        self._first_polls = first_polls

    def pop(self, requests: Sequence[PopRequest]) -> Coroutine[Any, Any, list[Popped]]:
        queues: set[str] = set()
        return self._lookups.retrying(queues, partial(self._pop, requests, queues))

    async def _pop(self, requests: Sequence[PopRequest], queues: set[str]) -> list[Popped]:
        """Pop; the names of the queues that are popped from are added to `queues`."""
        found = await self.find(requests, queues)
        claims = [claim for of_request in found for claim in of_request or ()]
        popped = await self._pop_claims(requests, claims) if claims else [Popped(r.group) for r in requests]
        for request, answer, of_request in zip(requests, popped, found, strict=True):
            self.describe(request, answer, of_request)
        return popped

    async def find(self, requests: Sequence[PopRequest], queues: set[str]) -> list[list[Claim] | None]:
        """The claims from which each request may be served; None if its queue does not exist. The names of the queues
        are added to `queues`."""
        queues.update([request.queue for request in requests if request.queue is not None])
        for request in requests:
            await self._check_mode(request)
        found = [await self._claims(i, request) for i, request in enumerate(requests)]
        queues.update([claim.queue for claims in found for claim in claims or ()])
        return found

    def describe(self, request: PopRequest, popped: Popped, claims: list[Claim] | None) -> None:
        """Set in an answer what was found for its request."""
        popped.no_queue = claims is None
        if claims and any([claim.shared for claim in claims]):
            popped.mode = "shared"
        elif claims == [] and request.queue is not None and self._is_shared(request.queue, request.group):
            popped.mode = "shared"  # its partition does not exist yet

    def _is_shared(self, queue: str, group: str) -> bool:
        names = self._context.names.get(queue)
        return names is not None and group in names.shared

    async def _pop_claims(self, requests: Sequence[PopRequest], claims: Sequence[Claim]) -> list[Popped]:
        """Pop; a request that found only expired messages continues, in transactions that each skip some of them. After
        a time limit it looks for messages behind the rest that have not expired."""
        popped = await self._pop_once(requests, claims)
        if not any([answer.unfinished for answer in popped]):
            return popped
        until = time.monotonic() + self._context.limits.expire_seconds_max
        late = False
        while not late and (left := {i for i, answer in enumerate(popped) if answer.unfinished and not answer.runs}):
            late = time.monotonic() >= until
            again = await self._pop_once(requests, [one for one in claims if one.request in left], pass_none=late)
            popped = [again[i] if i in left else answer for i, answer in enumerate(popped)]
        return popped

    async def _pop_once(
        self, requests: Sequence[PopRequest], claims: Sequence[Claim], *, pass_none: bool = False
    ) -> list[Popped]:
        leases = new_leases(claims, len(requests))
        call = _pop_call(claims, requests, leases, self._context.now())
        names = {claim.queue_id: claim.queue for claim in claims}
        on = partial(self._pop_on, requests, call, names, pass_none)
        try:
            if pass_none or any([request.auto_ack for request in requests]):
                # No lease protects messages that an auto-ack completes, so they are read before the commit.
                return await self._context.database.transaction(on)
            rows = await self._context.database.call(call)
        except Dying:
            return await self._forwarding.run(on, hurry=True)
        try:
            return await self.filled(requests, rows, names)
        except LockstepError:
            # Messages that cannot be read, for lack of a key, must not be held until the lease expires.
            await self.release(leases)
            raise

    async def release(self, leases: Sequence[UUID]) -> None:
        """Release leases whose messages do not reach the caller."""
        acks = [Ack(lease_id=str(lease), status="released") for lease in leases]
        await self._context.database.call(ack_items_call(acks, self._context.now()))

    async def _pop_on(
        self,
        requests: Sequence[PopRequest],
        call: Call[PoppedRow],
        names: dict[int, str],
        pass_none: bool,
        connection: asyncpg.Connection[Any],
    ) -> list[Popped]:
        if pass_none:
            await connection.execute(_PASS_NONE)
        rows = await self._context.database.call(call, connection)
        return await self.filled(requests, rows, names, connection)

    async def _check_mode(self, request: PopRequest) -> None:
        """A request must name the mode of its group, and cannot cover groups of both modes."""
        if request.queue is not None and request.mode is not None:
            names = await self._lookups.queue(request.queue)
            if names is not None and await self._lookups.group(names, request.group) is not None:
                _refuse_mode(names, request, request.queue)
        elif request.queue is None:
            modes = {mode for _, mode in await self._queues_by_priority(request)}
            if len(modes) > 1 or (request.mode is not None and modes - {request.mode}):
                raise GroupModeMismatch(f"group {request.group!r} is {' and '.join(sorted(modes))} on these queues")

    async def _queues_by_priority(self, request: PopRequest) -> list[Any]:
        """The queues of a namespace and/or task, and the mode that the group has there, or will have."""
        call = _QUEUES_BY_PRIORITY(
            namespace=request.namespace, task=request.task, group=request.group, mode=request.mode
        )
        return await self._context.database.call(call)

    async def _claims(self, index: int, request: PopRequest) -> list[Claim] | None:
        """The places that a request may be served from; None if its queue does not exist."""
        if request.queue is not None:
            return await self._claims_on(index, request, request.queue)
        await self._first_polls.note(request)
        queues = [queue for queue, _ in await self._queues_by_priority(request)]
        work = [
            await self._lookups.retrying([queue], partial(self._claims_on, index, request, queue)) for queue in queues
        ]
        return [claim for claims in work for claim in claims or ()]

    async def _claims_on(self, index: int, request: PopRequest, queue: str) -> list[Claim] | None:
        names = await self._lookups.queue(queue)
        if names is None:
            await self._first_polls.note(request)
            return None
        group_id = await self._find_or_create_group(names, request)
        _refuse_mode(names, request, queue)
        partition_id = None
        if request.partition is not None:
            partition_id = await self._lookups.partition(queue, names, request.partition)
            if partition_id is None:
                return []
        if request.group in names.unplaced:
            await self._placing.for_pop(names, request.group, partition_id)
        return [Claim(index, queue, names.id, group_id, partition_id, request.group in names.shared)]

    async def _find_or_create_group(self, names: QueueNames, request: PopRequest) -> int:
        group_id = names.groups.get(request.group)
        if group_id is None:
            subscription = request.subscription
            await self._placing.check_room(names.id, request.group)
            await self._first_polls.use(names, request)
            call = SUBSCRIBE(
                queue_id=names.id,
                group=request.group,
                mode=subscription.mode,
                from_at=subscription.from_at,
                given_mode=request.mode,
                at=self._context.now(),
            )
            rows = await self._context.database.call(call)
            group_id = names.put_group(request.group, *rows[0])
            if request.group in names.unplaced and await self._placing.group(group_id):
                names.unplaced.discard(request.group)
        return group_id

    async def filled(
        self,
        requests: Sequence[PopRequest],
        rows: Sequence[PoppedRow],
        queues: dict[int, str],
        connection: asyncpg.Connection[Any] | None = None,
    ) -> list[Popped]:
        """The leased runs, with their messages if they were requested."""
        popped = [Popped(request.group) for request in requests]
        segments = await self._reader.load([row.segment_id for row, _ in rows], connection)
        for row, delivery in rows:
            segment = segments.get(row.segment_id)
            answer = popped[row.request]
            if segment is None:  # removed since: the lease on it expires by itself
                answer.unfinished = answer.unfinished or row.partition_id is None
                continue
            answer.runs.append(_run(queues[row.queue_id], row, segment, delivery))
            if row.expires_at is not None:
                answer.lease_id = str(row.lease_id)
                answer.expires_at = min(answer.expires_at or row.expires_at, row.expires_at)
        return popped


@dataclass(frozen=True, slots=True)
class Claim:
    """A place that a pop request may be served from."""

    request: int
    queue: str
    queue_id: int
    group_id: int
    partition_id: int | None
    shared: bool


class _Argument(NamedTuple):
    """A claim as the procedures take it, each parameter an array."""

    requests: int
    group_ids: int
    partition_ids: int | None
    partition_limits: int
    batches: int
    lease_ms: int | None
    lease_ids: UUID
    auto_acks: bool


def new_leases(claims: Sequence[Claim], count: int) -> list[UUID]:
    """A lease id for each request."""
    shared = {claim.request for claim in claims if claim.shared}
    return [shared_lease(time.time_ns()) if i in shared else uuid7(time.time_ns()) for i in range(count)]


def _refuse_mode(names: QueueNames, request: PopRequest, queue: str) -> None:
    mode = "shared" if request.group in names.shared else "ordered"
    if request.mode not in (None, mode):
        raise GroupModeMismatch(f"group {request.group!r} on queue {queue!r} is {mode}, not {request.mode}")


def _pop_call(
    claims: Sequence[Claim], requests: Sequence[PopRequest], leases: Sequence[UUID], at: datetime | None
) -> Call[PoppedRow]:
    """The call; a single statement even for ordered and shared groups together."""
    first = claims[0].shared
    same = [claim for claim in claims if claim.shared is first]
    if len(same) == len(claims):
        arguments = pop_arguments(claims, requests, leases, at)
        return _SHARED_POP(**arguments, alone=True) if first else _POP(**arguments)
    others = [claim for claim in claims if claim.shared is not first]
    before, after = (_SHARED_POP, _POP) if first else (_POP, _SHARED_POP)
    return sql.union(
        before(**pop_arguments(same, requests, leases, at)), after(**pop_arguments(others, requests, leases, at))
    )


def pop_arguments(
    claims: Sequence[Claim], requests: Sequence[PopRequest], leases: Sequence[UUID], at: datetime | None
) -> dict[str, Any]:
    rows = [_argument(claim, requests[claim.request], leases[claim.request]) for claim in claims]
    columns = zip(*rows, strict=True) if rows else [()] * len(_Argument._fields)
    return dict(zip(_Argument._fields, map(list, columns), strict=True), at=at)


def _argument(claim: Claim, request: PopRequest, lease_id: UUID) -> _Argument:
    return _Argument(
        requests=claim.request,
        group_ids=claim.group_id,
        partition_ids=claim.partition_id,
        # Every claimed partition yields at least one message.
        partition_limits=min(request.partitions, request.batch),
        batches=request.batch,
        lease_ms=milliseconds(request.lease_seconds),
        lease_ids=lease_id,
        auto_acks=request.auto_ack,
    )


def _run(queue: str, row: PoppedRun, segment: Segment, delivery: DeliveryFields) -> Run:
    assert row.partition_id is not None
    ordinal, count = row.ordinal, row.last_seq - row.first_seq + 1
    if segment.owners is not None:
        segment.owners.require(row.partition_id, ordinal, count)
    columns = segment.columns.slice(ordinal, ordinal + count)
    return Run(
        queue,
        row.partition_name,
        row.partition_id,
        row.first_seq,
        segment.uuid,
        ordinal,
        segment.created_at,
        columns,
        delivery,
    )
