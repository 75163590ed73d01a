"""Messages in and out: push, pop, ack, renew, and transactions of them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from typing import Any, TypeVar
from uuid import UUID

import asyncpg

from lockstep.core.ids import is_canonical_uuid, is_shared_lease, shared_lease, uuid7
from lockstep.core.messages import Batch, PushResult, Run
from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import (
    Ack,
    AckOutcome,
    Awaited,
    PendingRequest,
    Popped,
    PopRequest,
    Renewal,
    Renewed,
    TransactionResult,
    refuse_failed,
    refuse_lost,
)
from lockstep.errors import GroupModeMismatch, LockstepError
from lockstep.storage.postgres import pushing, scheduling
from lockstep.storage.postgres.cache import QueueNames, Segment
from lockstep.storage.postgres.calls import Conversation, milliseconds
from lockstep.storage.postgres.failures import Dying
from lockstep.storage.postgres.forwarding import Forwarding
from lockstep.storage.postgres.placing import SUBSCRIBE, Placing

T = TypeVar("T")

_POP = (
    "select * from lockstep.pop($1::int[], $2::int[], $3::bigint[], $4::int[], $5::int[], $6::bigint[], $7::uuid[], "
    "$8::boolean[], $9::timestamptz)"
)
_SHARED_POP = _POP.replace("lockstep.pop", "lockstep.shared_pop")
_SHARED_POP_ALONE = _SHARED_POP.replace("$9::timestamptz", "$9::timestamptz, true")
_SECOND_ARGUMENTS = (
    "$10::int[], $11::int[], $12::bigint[], $13::int[], $14::int[], $15::bigint[], $16::uuid[], $17::boolean[], "
    "$18::timestamptz"
)
_ORDERED_THEN_SHARED = f"{_POP} union all select * from lockstep.shared_pop({_SECOND_ARGUMENTS})"
_SHARED_THEN_ORDERED = f"{_SHARED_POP} union all select * from lockstep.pop({_SECOND_ARGUMENTS})"
_QUEUES_BY_PRIORITY = (
    "select q.name, coalesce(g.mode, $4::text, q.group_mode) from lockstep.queue q "
    "left join lockstep.consumer_group g on g.queue_id = q.id and g.name = $3 "
    "where ($1::text is null or q.namespace = $1) and ($2::text is null or q.task = $2) "
    "order by q.priority desc, q.name"
)
_DUE_IN = "select lockstep.due_in($1::int[], $2::bigint[], $3::float8, $4::timestamptz)"
_DUE_IN_LABELS = "select lockstep.due_in_labels($1::text[], $2::text[], $3::text[], $4::float8, $5::timestamptz)"
_NOTE_FIRST_POLL = "select lockstep.note_first_poll($1, $2, $3, $4, $5, $6, $7::timestamptz)"
_USE_FIRST_POLL = "select lockstep.use_first_poll($1, $2, $3, $4::timestamptz)"
_NOTED_SECONDS = 10.0
"""A poll that is repeated is noted once in so long."""
_ACK_LEASES = "select * from lockstep.ack_leases($1::uuid[], $2::timestamptz)"
_COMPLETE = (
    "select * from lockstep.shared_complete("
    "$1::uuid[], coalesce($2::timestamptz, clock_timestamp()), null, null, null, null)"
)
_ACK_ITEMS = (
    "select * from lockstep.ack_items($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], "
    "$7::text[], $8::timestamptz[], $9::timestamptz)"
)
_RENEW = "select * from lockstep.renew($1::uuid[], $2::bigint[], $3::timestamptz)"
_PASS_NONE = "set local lockstep.passes_left = '0'"
_NO_LEASE = "00000000-0000-0000-0000-000000000000"
_HOLD_LEASES = "select * from lockstep.hold_leases($1::uuid[], $2::timestamptz)"
_LOCK = "select lockstep.lock_for_transaction($1::int[], $2::bigint[], $3::uuid[])"


@dataclass(frozen=True, slots=True)
class _Claim:
    """A place that a pop request may be served from."""

    request: int
    queue: str
    queue_id: int
    group_id: int
    partition_id: int | None
    shared: bool


class Delivery(Forwarding, Placing):
    expire_seconds_max: float

    async def push(self, batches: Sequence[Batch], *, lock_seconds: float | None = None) -> PushResult:
        queues = {batch.queue for batch in batches}
        conversation = partial(self._push_conversation, batches, lock_seconds)
        if pushing.all_known(batches, self.names) and not scheduling.may_wait(batches):
            pushed = await self._with_names(queues, lambda: self._converse(conversation()))
        else:
            # What is created on the way must go again if the push is refused.
            pushed = await self._create_names(
                queues, lambda c: self._converse(conversation(), c), lock_seconds=lock_seconds
            )
        self._remember(pushed)
        return pushed.result

    def _push_conversation(
        self, batches: Sequence[Batch], lock_seconds: float | None = None, *, overtake: bool = False
    ) -> Conversation[pushing.Pushed]:
        """With `overtake` it goes before operations that wait: where no producer's order could be broken."""
        return scheduling.push(
            batches,
            self.names,
            encryption=self.encryption,
            seconds_min=self.timing.schedule_seconds_min,
            at=self.now(),
            lock_seconds=lock_seconds,
            overtake=overtake,
        )

    async def _create_names(
        self,
        queues: set[str],
        work: Callable[[asyncpg.Connection[Any]], Awaitable[T]],
        *,
        lock_seconds: float | None = None,
    ) -> T:
        """Run `work` in a transaction; if that fails, the ids that it learned are not remembered."""
        transaction = partial(self.database.transaction, work, lock_timeout_seconds=lock_seconds)
        return await self._with_names(queues, transaction, forget=True)

    async def pop(self, requests: Sequence[PopRequest]) -> list[Popped]:
        queues: set[str] = set()
        return await self._with_names(queues, lambda: self._pop(requests, queues))

    async def _pop(self, requests: Sequence[PopRequest], queues: set[str]) -> list[Popped]:
        """Pop; `queues` is told the names of those from which."""
        queues.update(request.queue for request in requests if request.queue is not None)
        for request in requests:
            await self._check_mode(request)
        found = [await self._claims(i, request) for i, request in enumerate(requests)]
        claims = [claim for of_request in found for claim in of_request or ()]
        queues.update(claim.queue for claim in claims)
        popped = await self._pop_claims(requests, claims) if claims else [Popped(r.group) for r in requests]
        for request, answer, of_request in zip(requests, popped, found, strict=True):
            answer.no_queue = of_request is None
            if of_request == [] and request.queue is not None and self._is_shared(request.queue, request.group):
                answer.mode = "shared"  # its partition does not exist yet
        for claim in [claim for claim in claims if claim.shared]:
            popped[claim.request].mode = "shared"
        return popped

    def _is_shared(self, queue: str, group: str) -> bool:
        names = self.names.get(queue)
        return names is not None and group in names.shared

    async def _pop_claims(self, requests: Sequence[PopRequest], claims: Sequence[_Claim]) -> list[Popped]:
        """Pop; a request that found nothing but what expired goes on, in transactions that pass some of it each. When
        that has taken long enough it is asked what is fresh behind the rest."""
        popped = await self._pop_once(requests, claims)
        if not any([answer.unfinished for answer in popped]):
            return popped
        until = time.monotonic() + self.expire_seconds_max
        late = False
        while not late and (left := {i for i, answer in enumerate(popped) if answer.unfinished and not answer.runs}):
            late = time.monotonic() >= until
            again = await self._pop_once(requests, [one for one in claims if one.request in left], pass_none=late)
            popped = [again[i] if i in left else answer for i, answer in enumerate(popped)]
        return popped

    async def _pop_once(
        self, requests: Sequence[PopRequest], claims: Sequence[_Claim], *, pass_none: bool = False
    ) -> list[Popped]:
        shared = {claim.request for claim in claims if claim.shared}
        leases = [shared_lease(time.time_ns()) if i in shared else uuid7(time.time_ns()) for i in range(len(requests))]
        call = _pop_call(claims, requests, leases, self.now())
        names = {claim.queue_id: claim.queue for claim in claims}
        on = partial(self._pop_on, requests, call, names, pass_none)
        try:
            if pass_none or any([request.auto_ack for request in requests]):
                # No lease holds what an auto-ack passes, so it is read before that is committed.
                return await self.database.transaction(on)
            rows = await self.database.fetch("pop", *call)
        except Dying:
            return await self._forwarding(on, hurry=True)
        try:
            return await self._filled(requests, rows, names)
        except LockstepError:
            # What cannot be read, for want of a key, is not kept from others until the lease runs out.
            await self.ack([Ack(lease_id=str(lease), status="released") for lease in leases])
            raise

    async def _pop_on(
        self,
        requests: Sequence[PopRequest],
        call: tuple[Any, ...],
        names: dict[int, str],
        pass_none: bool,
        connection: asyncpg.Connection[Any],
    ) -> list[Popped]:
        if pass_none:
            await connection.execute(_PASS_NONE)
        rows = await self.database.on(connection, "pop", *call)
        return await self._filled(requests, rows, names, connection)

    async def _check_mode(self, request: PopRequest) -> None:
        """A request must ask for the mode that its group has, and cannot speak of groups of both modes."""
        if request.queue is not None and request.mode is not None:
            names = await self._find_queue(request.queue)
            if names is not None and await self._find_group(names, request.group) is not None:
                _refuse_mode(names, request, request.queue)
        elif request.queue is None:
            modes = {row[1] for row in await self._queues_by_priority(request)}
            if len(modes) > 1 or (request.mode is not None and modes - {request.mode}):
                raise GroupModeMismatch(f"group {request.group!r} is {' and '.join(sorted(modes))} on these queues")

    async def _queues_by_priority(self, request: PopRequest) -> list[Any]:
        """The queues of a namespace and/or task, and the mode that the group has there, or will have."""
        labels = (request.namespace, request.task, request.group, request.mode)
        return await self.database.fetch("queue_priority", _QUEUES_BY_PRIORITY, *labels)

    async def _claims(self, index: int, request: PopRequest) -> list[_Claim] | None:
        """What a request may be served from; None if its queue does not exist."""
        if request.queue is not None:
            return await self._claims_on(index, request, request.queue)
        await self._note_first_poll(request)
        queues = [row[0] for row in await self._queues_by_priority(request)]
        work = [await self._with_names([queue], partial(self._claims_on, index, request, queue)) for queue in queues]
        return [claim for claims in work for claim in claims or ()]

    async def _claims_on(self, index: int, request: PopRequest, queue: str) -> list[_Claim] | None:
        names = await self._find_queue(queue)
        if names is None:
            await self._note_first_poll(request)
            return None
        group_id = await self._find_or_create_group(names, request)
        _refuse_mode(names, request, queue)
        partition_id = None
        if request.partition is not None:
            partition_id = await self._find_partition(queue, names, request.partition)
            if partition_id is None:
                return []
        if request.group in names.unplaced:
            await self._place_for_pop(names, request.group, partition_id)
        return [_Claim(index, queue, names.id, group_id, partition_id, request.group in names.shared)]

    async def _find_or_create_group(self, names: QueueNames, request: PopRequest) -> int:
        group_id = names.groups.get(request.group)
        if group_id is None:
            subscription = request.subscription
            if is_first_poll(request):
                self.memory.noted.pop(first_poll(request), None)
                call = (names.id, request.group, self.first_polls.seconds_max, self.now())
                await self.database.fetch("use_first_poll", _USE_FIRST_POLL, *call)
            rows = await self.database.fetch(
                "subscribe",
                SUBSCRIBE,
                names.id,
                request.group,
                subscription.mode,
                subscription.from_at,
                request.mode,
                self.now(),
            )
            group_id = names.put_group(request.group, *rows[0])
            if request.group in names.unplaced and await self._place_group(group_id):
                names.unplaced.discard(request.group)
        return group_id

    async def _note_first_poll(self, request: PopRequest) -> None:
        """A group that begins with what is new, and polls before its queue exists, is to get what creates the queue."""
        if not is_first_poll(request):
            return
        set_at = self.now()
        key, now = first_poll(request), time.monotonic() if set_at is None else set_at.timestamp()
        if self.memory.noted.get(key, 0.0) > now:
            return
        if len(self.memory.noted) >= self.first_polls.polls_max:
            self.memory.noted.clear()
        limits = (self.first_polls.polls_max, self.first_polls.seconds_max)
        await self.database.fetch("note_first_poll", _NOTE_FIRST_POLL, *key, *limits, self.now())
        self.memory.noted[key] = now + _NOTED_SECONDS

    async def _filled(
        self,
        requests: Sequence[PopRequest],
        rows: list[Any],
        queues: dict[int, str],
        connection: asyncpg.Connection[Any] | None = None,
    ) -> list[Popped]:
        """The runs that were leased, with their messages, where they were asked for."""
        popped = [Popped(request.group) for request in requests]
        segments = await self._load_segments([row[7] for row in rows], connection)
        for row in rows:
            segment = segments.get(row[7])
            answer = popped[row[0]]
            if segment is None:  # removed since: the lease on it runs out by itself
                answer.unfinished = answer.unfinished or row[2] is None
                continue
            answer.runs.append(_run(queues[row[1]], row, segment))
            if row[9] is not None:
                answer.lease_id = str(row[10])
                answer.expires_at = min(answer.expires_at or row[9], row[9])
        return popped

    async def has_pending(self, requests: Sequence[PendingRequest]) -> list[bool]:
        return [seconds == 0 for seconds in await self.due_in([request.awaited() for request in requests], within=0)]

    async def due_in(self, awaited: Sequence[Awaited], *, within: float) -> list[float | None]:
        answers: list[float | None] = [None] * len(awaited)
        asked: list[tuple[int, int, int | None]] = []
        wide = [i for i, one in enumerate(awaited) if one.queue is None]
        for i, one in enumerate(awaited):
            if one.queue is None or (names := await self._find_queue(one.queue)) is None:
                continue
            partition_id = None
            if one.partition is not None:
                partition_id = await self._find_partition(one.queue, names, one.partition)
                if partition_id is None:
                    continue
            group_id = await self._find_group(names, one.group)
            if group_id is None:
                answers[i] = 0.0
            else:
                asked.append((i, group_id, partition_id))
        if asked:
            ids = ([group_id for _, group_id, _ in asked], [partition_id for _, _, partition_id in asked])
            rows = await self.database.fetch("due_in", _DUE_IN, *ids, within, self.now())
            for (i, _, _), answer in zip(asked, rows[0][0], strict=True):
                answers[i] = answer
        if wide:
            labels = [[getattr(awaited[i], name) for i in wide] for name in ("namespace", "task", "group")]
            rows = await self.database.fetch("due_in_labels", _DUE_IN_LABELS, *labels, within, self.now())
            for i, answer in zip(wide, rows[0][0], strict=True):
                answers[i] = answer
        return answers

    async def ack(self, acks: Sequence[Ack], *, lock_seconds: float | None = None) -> list[AckOutcome]:
        try:
            return await self._ack(acks, self.database.fetch, lock_seconds)
        except Dying:
            return await self._forwarding(
                lambda connection: self._ack(acks, partial(self.database.on, connection), lock_seconds),
                partition_ids=[ack.partition_id for ack in acks if ack.partition_id is not None],
                lease_ids=[lease_uuid(ack.lease_id) for ack in acks if ack.partition_id is None],
            )

    async def _ack(
        self, acks: Sequence[Ack], fetch: Callable[..., Awaitable[list[Any]]], lock_seconds: float | None
    ) -> list[AckOutcome]:
        whole = [i for i, ack in enumerate(acks) if _is_whole_lease(ack)]
        if len(whole) == len(acks):
            rows = await fetch("ack_leases", *_within(lock_seconds, *_ack_leases_call(acks, self.now())))
            return _lease_outcomes(acks, rows)
        rows = await fetch("ack_items", *_within(lock_seconds, *ack_items_call(acks, self.now())))
        return item_outcomes(acks, rows)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        rows = await self.database.fetch(
            "renew",
            _RENEW,
            [lease_uuid(renewal.lease_id) for renewal in renewals],
            [milliseconds(renewal.seconds) for renewal in renewals],
            self.now(),
        )
        renewed = {str(row[0]): Renewed(lease_id=str(row[0]), partitions=row[1], expires_at=row[2]) for row in rows}
        return [renewed.get(r.lease_id) or Renewed(lease_id=r.lease_id, partitions=0) for r in renewals]

    async def transaction(
        self, acks: Sequence[Ack], batches: Sequence[Batch], *, required_leases: Sequence[str] = ()
    ) -> TransactionResult:
        queues = {batch.queue for batch in batches}

        async def work(
            connection: asyncpg.Connection[Any],
        ) -> tuple[list[AckOutcome], pushing.Pushed, pushing.Pushed | None]:
            await self._converse(scheduling.resolve(batches, self.names, at=self.now()), connection)
            await self._lock_for(connection, acks, batches, leases=required_leases)
            if required_leases:
                held = (list(map(lease_uuid, required_leases)), self.now())
                lost = await self.database.on(connection, "hold_leases", _HOLD_LEASES, *held)
                refuse_lost([required_leases[row[0] - 1] for row in lost])
            outcomes: list[AckOutcome] = []
            if acks:
                rows = await self.database.on(connection, "ack_items", *ack_items_call(acks, self.now()))
                outcomes = item_outcomes(acks, rows)
                refuse_failed(outcomes)
            pushed = await self._converse(self._push_conversation(batches), connection)
            dead = any([outcome.dead for outcome in outcomes])
            return outcomes, pushed, await self._forward(connection, queues) if dead else None

        outcomes, pushed, forwarded = await self._create_names(queues, work)
        self._remember(pushed)
        self._remember(forwarded)
        return TransactionResult(outcomes, pushed.result)

    async def _lock_for(
        self,
        connection: asyncpg.Connection[Any],
        acks: Sequence[Ack],
        batches: Sequence[Batch],
        *,
        also: Iterable[int] = (),
        leases: Iterable[str] = (),
    ) -> None:
        """Take the locks of acks and pushes together, in order, so that transactions do not deadlock."""
        queue_ids: set[int] = set()
        partition_ids = {ack.partition_id for ack in acks if ack.partition_id is not None}.union(also)
        for batch in batches:
            names = self.names.get(batch.queue)
            if names is not None and batch.partition in names.partitions:
                queue_ids.add(names.id)
                partition_ids.add(names.partitions[batch.partition])
        by_lease = [ack.lease_id for ack in acks if ack.lease_id is not None and ack.partition_id is None]
        locks = (list(queue_ids), list(partition_ids), list(map(lease_uuid, [*by_lease, *leases])))
        await self.database.on(connection, "lock_for_transaction", _LOCK, *locks)


def is_first_poll(request: PopRequest) -> bool:
    return request.subscription.mode == "new" and request.group != QUEUE_MODE


def first_poll(request: PopRequest) -> tuple[str, str, str, str]:
    return request.queue or "", request.namespace or "", request.task or "", request.group


def _refuse_mode(names: QueueNames, request: PopRequest, queue: str) -> None:
    mode = "shared" if request.group in names.shared else "ordered"
    if request.mode not in (None, mode):
        raise GroupModeMismatch(f"group {request.group!r} on queue {queue!r} is {mode}, not {request.mode}")


def _pop_call(
    claims: Sequence[_Claim], requests: Sequence[PopRequest], leases: Sequence[UUID], at: datetime | None
) -> tuple[Any, ...]:
    """The statement and its arguments; for ordered and shared groups together it is one, too."""
    first = claims[0].shared
    same = [claim for claim in claims if claim.shared is first]
    if len(same) == len(claims):
        return _SHARED_POP_ALONE if first else _POP, *_pop_arguments(claims, requests, leases, at)
    others = [claim for claim in claims if claim.shared is not first]
    statement = _SHARED_THEN_ORDERED if first else _ORDERED_THEN_SHARED
    return statement, *_pop_arguments(same, requests, leases, at), *_pop_arguments(others, requests, leases, at)


def _pop_arguments(
    claims: Sequence[_Claim], requests: Sequence[PopRequest], leases: Sequence[UUID], at: datetime | None
) -> tuple[Any, ...]:
    asked = [requests[claim.request] for claim in claims]
    return (
        [claim.request for claim in claims],
        [claim.group_id for claim in claims],
        [claim.partition_id for claim in claims],
        # Every partition that is claimed gives at least one message.
        [min(request.partitions, request.batch) for request in asked],
        [request.batch for request in asked],
        [milliseconds(request.lease_seconds) for request in asked],
        [leases[claim.request] for claim in claims],
        [request.auto_ack for request in asked],
        at,
    )


def _run(queue: str, row: Any, segment: Segment) -> Run:
    _, _, partition_id, partition, attempt, first_seq, last_seq, _, ordinal = row[:9]
    columns = segment.columns.slice(ordinal, ordinal + last_seq - first_seq + 1)
    return Run(queue, partition, partition_id, first_seq, segment.uuid, ordinal, segment.created_at, columns, attempt)


def lease_uuid(lease_id: str | None) -> str | None:
    """What is no lease id at all is a lease that is gone, too."""
    return lease_id if lease_id is None or is_canonical_uuid(lease_id) else _NO_LEASE


def _is_whole_lease(ack: Ack) -> bool:
    return (
        ack.status == "completed"
        and ack.lease_id is not None
        and ack.partition_id is None
        and ack.seq is None
        and ack.transaction_id is None
    )


def _within(lock_seconds: float | None, statement: str, *args: Any) -> tuple[Any, ...]:
    """The call of a procedure with leases, in a statement that waits only so long for each lock."""
    if lock_seconds is None:
        return statement, *args
    return _hurried(statement, len(args) + 1), *args, str(max(round(lock_seconds * 1000), 1))


@cache
def _hurried(statement: str, place: int) -> str:
    """A trip less than a transaction takes. The procedure comes after the setting, because its argument needs that."""
    setting = f"(select set_config('lock_timeout', ${place}, true) as lock_ms) s"
    call = statement.removeprefix("select * from ").replace(
        "$1::uuid[]", "case when s.lock_ms <> '' then $1::uuid[] end", 1
    )
    return f"select a.* from {setting} cross join lateral {call} a"


def _ack_leases_call(acks: Sequence[Ack], at: Any) -> tuple[Any, ...]:
    """What completes leases of any kind; it is spared looking among those of ordered groups if none is one."""
    statement = _COMPLETE if all([is_shared_lease(ack.lease_id) for ack in acks]) else _ACK_LEASES
    return statement, [lease_uuid(ack.lease_id) for ack in acks], at


def _lease_outcomes(acks: Sequence[Ack], rows: list[Any]) -> list[AckOutcome]:
    by_lease: dict[str, list[Any]] = {}
    for row in rows:
        by_lease.setdefault(str(row[0]), []).append(row)
    seen: set[str | None] = set()
    outcomes = []
    for index, ack in enumerate(acks):
        found = by_lease.get(ack.lease_id or "")
        if found is None:
            outcomes.append(AckOutcome(index=index, success=False, error="lease_lost"))
            continue
        again = ack.lease_id in seen
        seen.add(ack.lease_id)
        live = [row for row in found if not row[5]]
        outcomes.append(
            AckOutcome(
                index=index,
                success=len(live) == len(found),
                error=None if len(live) == len(found) else "lease_lost",
                noop=again,
                released=any([not row[6] for row in live]),
                messages=0 if again else sum(row[4] for row in live),
                queue=found[0][3],
                partition=found[0][2],
            )
        )
    return outcomes


def ack_items_call(acks: Sequence[Ack], at: Any) -> tuple[Any, ...]:
    return (
        _ACK_ITEMS,
        [lease_uuid(ack.lease_id) for ack in acks],
        [ack.partition_id for ack in acks],
        [ack.seq for ack in acks],
        [ack.transaction_id for ack in acks],
        [ack.group for ack in acks],
        [ack.status for ack in acks],
        [ack.error for ack in acks],
        [ack.retry_at for ack in acks],
        at,
    )


def item_outcomes(acks: Sequence[Ack], rows: list[Any]) -> list[AckOutcome]:
    by_item: dict[int, list[Any]] = {}
    for row in rows:
        by_item.setdefault(row[0] - 1, []).append(row)
    return [_item_outcome(index, by_item[index]) for index in range(len(acks))]


def _item_outcome(index: int, rows: list[Any]) -> AckOutcome:
    """One outcome for all cursors that an ack stands for: the first error counts."""
    error = next((row[1] for row in rows if row[1] is not None), None)
    return AckOutcome(
        index=index,
        success=error is None,
        error=error,
        noop=all(row[2] for row in rows),
        released=any(row[3] for row in rows),
        dead=any(row[4] for row in rows),
        messages=sum(row[5] for row in rows),
        queue=rows[0][6],
        partition=rows[0][7],
    )
