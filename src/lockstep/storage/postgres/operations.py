"""Operations: requests that wait in bundles, and their application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from lockstep.core import refusals
from lockstep.core.applying import Answer, Applied, ApplyLimits, Attempt, Bundle, applying
from lockstep.core.codec import Codec, seal
from lockstep.core.messages import Batch, PushResult
from lockstep.core.operations import (
    ACK_LANE,
    KINDS,
    PRIORITIES,
    NewOperation,
    OperationCounts,
    OperationDepth,
    OperationInfo,
    OperationKind,
    OperationPage,
    OperationStatus,
    Outcome,
    operation_cursor,
    operation_ids,
    pack_aims,
    pack_operations,
    pack_outcomes,
    parse_operation_cursor,
    split_operation_id,
    unpack_aims,
    unpack_operations,
    unpack_outcomes,
)
from lockstep.core.records import AckOutcome
from lockstep.core.sealing import Keyring, operation_binding
from lockstep.errors import Conflict, LockstepError
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.ack import ack_items_call, item_outcomes
from lockstep.storage.postgres.calls import Call
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.failures import StaleName, is_retryable, translate
from lockstep.storage.postgres.forwarding import Forwarding
from lockstep.storage.postgres.lookups import Lookups
from lockstep.storage.postgres.push.attempt import int_array
from lockstep.storage.postgres.push.conversation import Pushed, all_known
from lockstep.storage.postgres.push.pushes import Pushes


class _Claimed(NamedTuple):
    """A bundle to apply."""

    serial: int
    uuid: UUID
    request_count: int
    codec: int
    requests: bytes
    results: bytes | None
    retries: int
    partition_ids: list[int]


_QUEUE: sql.Procedure[UUID] = sql.procedure("queue_operations", as_text=["partition_ids"])
_CLAIM = sql.procedure("claim_operations", _Claimed)
_FINISH: sql.Procedure[None] = sql.procedure("finish_operations")
_HOLD = (
    "select serial, kind, codec, requests, results, request_count from lockstep.operation where uuid = $1 for update"
)
_RETRY: sql.Procedure[None] = sql.procedure("retry_operation")
_PRUNE: sql.Procedure[int] = sql.procedure("prune_operations")
_ORDINAL_MAX = 2**16
LOOKED_INTO_MAX = 10_000
"""Maximum number of bundles that are read for a page of one queue's operations, or for the place of an operation."""
_PACK_BYTES_MIN = 512
"""From here a body is compressed."""
_PLAIN = Codec.PLAIN.value


class PostgresOperations:
    """Requests that wait to be applied."""

    def __init__(self, context: Context, lookups: Lookups, pushes: Pushes, forwarding: Forwarding) -> None:
        self._context = context
        self._lookups = lookups
        self._pushes = pushes
        self._forwarding = forwarding

    async def queue_operations(self, operations: Sequence[NewOperation]) -> list[str]:
        batches = [batch for operation in operations for batch in operation.batches]
        queues = {batch.queue for batch in batches}

        async def attempt() -> UUID:
            # Looked up each time: deleted queues are no longer known.
            if all_known(batches, self._context.names):
                return await self._context.database.value(self._queue_call(operations, batches, self._known(batches)))
            return await self._context.database.transaction(partial(self._resolve_and_queue, operations, batches))

        return operation_ids(await self._lookups.retrying(queues, attempt, forget=True), len(operations))

    async def _resolve_and_queue(
        self, operations: Sequence[NewOperation], batches: Sequence[Batch], connection: asyncpg.Connection[Any]
    ) -> UUID:
        ids = await self._pushes.resolve(connection, batches)
        return await self._context.database.value(self._queue_call(operations, batches, ids), connection)

    def _known(self, batches: Sequence[Batch]) -> dict[tuple[str, str], int]:
        """The ids of partitions that are all known."""
        found = {}
        for queue, partition in {(batch.queue, batch.partition) for batch in batches}:
            names = self._context.names.get(queue)
            assert names is not None
            found[queue, partition] = names.partitions[partition]
        return found

    def _queue_call(
        self, operations: Sequence[NewOperation], batches: Sequence[Batch], ids: Mapping[tuple[str, str], int]
    ) -> Call[UUID]:
        kind = operations[0].kind
        binding = operation_binding(kind, len(operations))
        codec, body = self._packed(pack_operations(operations), self._keys_for(batches), binding)
        return _QUEUE(
            kind=kind,
            priority=PRIORITIES[kind],
            requests=len(operations),
            messages=sum([operation.messages() for operation in operations]),
            bytes=len(body),
            partition_ids=int_array(_lanes(operations, ids)),
            codec=codec,
            body=body,
            queues=sorted({batch.queue for batch in batches}),
            aims=pack_aims(operations),
            at=self._context.now(),
        )

    def _keys_for(self, batches: Sequence[Batch]) -> Keyring | None:
        """The keys, if any of the queues is encrypted. Raises EncryptionUnavailable."""
        keys = None
        for queue in {batch.queue for batch in batches}:
            names = self._context.names.get(queue)
            if names is None:
                raise StaleName("a name was forgotten in the meantime")
            if names.encryption:
                keys = self._context.encryption.keys_for(queue)
        return keys

    @staticmethod
    def _packed(layout: bytes, keys: Keyring | None, binding: bytes) -> tuple[int, bytes]:
        if keys is None and len(layout) < _PACK_BYTES_MIN:
            return _PLAIN, layout
        codec, body = seal(layout, keys=keys, binding=binding)
        return codec.value, body

    def _unpacked(self, kind: OperationKind, requests: int, codec: int, body: bytes) -> list[NewOperation]:
        """Raises CorruptSegment, EncryptionUnavailable."""
        binding = operation_binding(kind, requests)
        return unpack_operations(body if codec == _PLAIN else self._context.encryption.open(codec, body, binding))

    async def apply_operations(self, kind: OperationKind, *, by: str, limits: ApplyLimits) -> Applied:
        try:
            applied, pushed = await self._context.database.transaction(partial(self._apply, kind, by, limits, False))
        except _AttemptFailed:
            applied, pushed = await self._context.database.transaction(partial(self._apply, kind, by, limits, True))
        for one in pushed:
            self._pushes.remember(one)
        return applied

    async def _apply(
        self, kind: OperationKind, by: str, limits: ApplyLimits, careful: bool, connection: asyncpg.Connection[Any]
    ) -> tuple[Applied, list[Pushed]]:
        """Claim, apply and mark. It uses few steps, because each waits for its turn in a busy process; only with
        `careful` can one attempt fail without the others."""
        claim = _CLAIM(
            kind=kind,
            messages_max=limits.messages_max,
            bytes_max=limits.bytes_max,
            timeout_ms=int(limits.timeout_seconds * 1000),
            at=self._context.now(),
        )
        rows = await self._context.database.call(claim, connection)
        if not rows:
            return Applied(), []
        bundles = [self._bundle(kind, row) for row in rows]
        before = [list(bundle.outcomes) for bundle in bundles]
        pushed = await self._attempts_on(connection, bundles, limits, careful)
        await self._finish(connection, rows, bundles, by, limits)
        applied = Applied(more=True)
        for bundle, outcomes in zip(bundles, before, strict=True):
            applied.add(bundle, outcomes)
        return applied, pushed

    def _bundle(self, kind: OperationKind, row: _Claimed) -> Bundle:
        outcomes = unpack_outcomes(row.results, row.request_count)
        bundle = Bundle(row.uuid, [], outcomes, row.retries, frozenset(row.partition_ids))
        try:
            bundle.operations = self._unpacked(kind, row.request_count, row.codec, row.requests)
        except LockstepError as error:
            bundle.operations, bundle.problem = [NewOperation()] * row.request_count, error
        return bundle

    async def _attempts_on(
        self, connection: asyncpg.Connection[Any], bundles: Sequence[Bundle], limits: ApplyLimits, careful: bool
    ) -> list[Pushed]:
        attempted = self._attempt_carefully if careful else self._attempt
        pushed: list[Pushed] = []
        conversation = applying(bundles, limits)
        try:
            attempt = next(conversation)
            while True:
                attempt = conversation.send(await attempted(connection, attempt, limits, pushed))
        except StopIteration:
            return pushed

    async def _attempt(
        self,
        connection: asyncpg.Connection[Any],
        attempt: Attempt,
        limits: ApplyLimits,
        pushed: list[Pushed],
    ) -> Answer:
        """One call. Raises _AttemptFailed if it fails for its own sake."""
        batches = [batch for operation in attempt for batch in operation.batches]
        try:
            if not batches:
                return await self._ack_on(connection, attempt, pushed)
            return await self._push_on(connection, batches, limits, pushed)
        except Exception as error:
            # The queues and partitions that it created are rolled back with it.
            for queue in {batch.queue for batch in batches}:
                self._context.names.forget(queue)
            raise _AttemptFailed(_explained(error)) from error

    async def _attempt_carefully(
        self,
        connection: asyncpg.Connection[Any],
        attempt: Attempt,
        limits: ApplyLimits,
        pushed: list[Pushed],
    ) -> Answer:
        """One call, which leaves nothing behind if it fails."""
        try:
            async with connection.transaction():
                return await self._attempt(connection, attempt, limits, pushed)
        except _AttemptFailed as failed:
            return failed.error

    async def _push_on(
        self,
        connection: asyncpg.Connection[Any],
        batches: Sequence[Batch],
        limits: ApplyLimits,
        pushed: list[Pushed],
    ) -> PushResult:
        one = await self._pushes.on(connection, batches, lock_seconds=limits.lock_seconds, overtake=True)
        pushed.append(one)
        return one.result

    async def _ack_on(
        self, connection: asyncpg.Connection[Any], attempt: Attempt, pushed: list[Pushed]
    ) -> list[AckOutcome]:
        acks = [ack for operation in attempt for ack in operation.acks]
        await self._pushes.lock(connection, acks, [])
        outcomes = item_outcomes(
            acks, await self._context.database.call(ack_items_call(acks, self._context.now()), connection)
        )
        if any([outcome.dead for outcome in outcomes]):
            forwarded = await self._forwarding.forward(connection, set())
            pushed += [] if forwarded is None else [forwarded]
        return outcomes

    async def _finish(
        self,
        connection: asyncpg.Connection[Any],
        rows: Sequence[_Claimed],
        bundles: Sequence[Bundle],
        by: str,
        limits: ApplyLimits,
    ) -> None:
        lanes: list[int] = []
        firsts, lasts = [], []
        for bundle in bundles:
            firsts.append(len(lanes) + 1)
            if bundle.left:
                lanes += await self._lanes_left(connection, bundle)
            lasts.append(len(lanes))
        call = _FINISH(
            serials=[row.serial for row in rows],
            results=[pack_outcomes(bundle.outcomes) for bundle in bundles],
            failed=[bundle.failed for bundle in bundles],
            retries=[bundle.retries for bundle in bundles],
            errors=[bundle.error for bundle in bundles],
            wait_seconds=[limits.wait_seconds(bundle.retries) if bundle.left else None for bundle in bundles],
            lanes=lanes,
            first_lanes=firsts,
            last_lanes=lasts,
            worker=by,
            at=self._context.now(),
        )
        await self._context.database.call(call, connection)

    async def _lanes_left(self, connection: asyncpg.Connection[Any], bundle: Bundle) -> list[int]:
        """The lanes of the remaining operations of a bundle; all its lanes if it cannot be read."""
        if bundle.problem is not None:
            return sorted(bundle.lanes)
        batches = [batch for operation in bundle.left for batch in operation.batches]
        return _lanes(bundle.left, await self._pushes.resolve(connection, batches))

    async def operations(
        self,
        *,
        status: OperationStatus | None = None,
        queue: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> OperationPage:
        after = parse_operation_cursor(cursor)
        serials, next_serial = await self._bundles(status, queue, after[0] + (after[1] >= _ORDINAL_MAX), limit + 1)
        rows = await self._context.query("operation_load", serials)
        found = [
            (operation_cursor(row["serial"], ordinal), info)
            for row in rows
            for ordinal, info in enumerate(_infos(row))
            if (row["serial"], ordinal) > after and info.is_among(status, queue)
        ]
        items = [info for _, info in found[:limit]]
        if len(found) > limit:
            return OperationPage(items=items, next_cursor=found[limit - 1][0])
        return OperationPage(
            items=items, next_cursor=None if next_serial is None else operation_cursor(next_serial - 1, _ORDINAL_MAX)
        )

    async def _bundles(
        self, status: OperationStatus | None, queue: str | None, serial: int, operations: int
    ) -> tuple[list[int], int | None]:
        """Bundles, starting with the given one, that together have about this many operations, or a few less, and the
        start of the next page, if any. Their contents are not read, because they may be large."""
        looked_into = operations if queue is None else self._context.limits.page_looked_into_max
        # Acks do not name their queue.
        kinds: list[OperationKind] = list(KINDS) if queue is None else ["push"]
        asked = [kinds, [PRIORITIES[kind] for kind in kinds]] if status == "pending" else []
        found = await self._context.query(
            f"operation_{status or 'any'}", serial, queue, operations, looked_into, *asked
        )
        rows = [(serial, count) for serial, count in found if count is not None]
        counted = accumulate([count for _, count in rows])
        wanted = next((index for index, count in enumerate(counted, 1) if count >= operations), len(rows))
        serials = [serial for serial, _ in rows[:wanted]]
        if wanted < len(rows) or len(found) == operations:
            return serials, serials[-1] + 1
        return serials, next((serial for serial, count in found if count is None), None)

    async def operation(self, operation_id: str) -> OperationInfo:
        uuid, ordinal = split_operation_id(operation_id)
        rows = await self._context.query("operation_find", uuid, self._context.limits.page_looked_into_max)
        if not rows or ordinal >= rows[0]["request_count"]:
            raise refusals.no_operation(operation_id)
        return _infos(rows[0], before=rows[0]["before"])[ordinal]

    async def operation_outcomes(self, bundles: Sequence[UUID]) -> dict[UUID, list[Outcome | None]]:
        rows = await self._context.query("operation_outcomes", list(bundles))
        return {uuid: unpack_outcomes(results, count) for uuid, results, count in rows}

    async def operation_counts(self) -> OperationCounts:
        rows = await self._context.query("operation_counts", list(KINDS), [PRIORITIES[kind] for kind in KINDS])
        return OperationCounts(
            pending=[
                OperationDepth(kind=kind, operations=operations, messages=messages, bytes=size, oldest_at=oldest_at)
                for kind, operations, messages, size, _, oldest_at in rows
            ],
            failed=sum(row["failed"] for row in rows),
        )

    async def retry_operation(self, operation_id: str) -> OperationInfo:
        uuid, ordinal = split_operation_id(operation_id)

        async def work(connection: asyncpg.Connection[Any]) -> None:
            rows = await self._context.database.on(connection, "operation_hold", _HOLD, uuid)
            if not rows or ordinal >= rows[0]["request_count"]:
                raise refusals.no_operation(operation_id)
            serial, kind, codec, requests, results, count = rows[0]
            outcomes = unpack_outcomes(results, count)
            outcome = outcomes[ordinal]
            if outcome is None or outcome.failure is None:
                raise Conflict(f"operation {operation_id} has not failed")
            outcomes[ordinal] = None
            operation = self._unpacked(kind, count, codec, requests)[ordinal]
            ids = await self._pushes.resolve(connection, operation.batches)
            lanes = _lanes([operation], ids)
            retry = _RETRY(serial=serial, results=pack_outcomes(outcomes), lanes=lanes, at=self._context.now())
            await self._context.database.call(retry, connection)

        await self._lookups.retrying([], lambda: self._context.database.transaction(work))
        return await self.operation(operation_id)

    async def prune_operations(self, seconds: float, *, failed_seconds: float, limit: int) -> int:
        call = _PRUNE(seconds=float(seconds), failed_seconds=float(failed_seconds), limit=limit, at=self._context.now())
        return await self._context.database.value(call)


class _AttemptFailed(Exception):
    """An attempt to apply operations failed, but not because the database is unavailable. Never leaves the store."""

    def __init__(self, error: LockstepError) -> None:
        super().__init__(str(error))
        self.error = error


def _lanes(operations: Sequence[NewOperation], ids: Mapping[tuple[str, str], int]) -> list[int]:
    """The partitions that the operations are for, by their ids."""
    lanes = {ids[place] for operation in operations for place in operation.places()}
    if any(operation.acks for operation in operations):
        lanes.add(ACK_LANE)
    return sorted(lanes)


def _explained(error: Exception) -> LockstepError:
    """Why an attempt failed. Raises errors that concern more than the attempt: conflicts and outages."""
    if is_retryable(error) or isinstance(error, StaleName):
        raise error
    explained = translate(error)
    if isinstance(explained, LockstepError):
        return explained
    return LockstepError(f"{type(error).__name__}: {error}")


def _infos(row: Any, *, before: int | None = None) -> list[OperationInfo]:
    """The operations of a bundle; `before` is how many of its kind come before it."""
    infos = []
    count = row["request_count"]
    told = unpack_aims(row["aims"], count)
    outcomes = unpack_outcomes(row["results"], count)
    for ordinal, (operation_id, outcome) in enumerate(zip(operation_ids(row["uuid"], count), outcomes, strict=True)):
        waits = outcome is None and row["pending"]
        failure = None if outcome is None else outcome.failure
        infos.append(
            OperationInfo(
                id=operation_id,
                kind=row["kind"],
                status="pending" if outcome is None else outcome.status,
                priority=row["priority"],
                created_at=row["created_at"],
                **msgspec.structs.asdict(told[ordinal]),
                position=before + outcomes[:ordinal].count(None) + 1 if waits and before is not None else None,
                due_at=row["due_at"] if waits else None,
                retries=row["retries"],
                completed_at=None if waits else row["completed_at"],
                worker=row["worker"],
                error=row["error"] if outcome is None else None if failure is None else failure.message,
                error_code=None if failure is None else failure.code,
                outcome=outcome,
            )
        )
    return infos
