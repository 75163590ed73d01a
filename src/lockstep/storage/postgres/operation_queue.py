"""Operations: requests that wait in bundles, and their application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from lockstep.core import refusals
from lockstep.core.applying import Answer, Applied, ApplyLimits, Attempt, Bundle, applying
from lockstep.core.codec import Codec, seal, unseal
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
from lockstep.errors import Conflict, LockstepError
from lockstep.storage.postgres import pushing, scheduling
from lockstep.storage.postgres.delivery import Delivery, ack_items_call, item_outcomes
from lockstep.storage.postgres.failures import StaleName, is_retryable, translate
from lockstep.storage.postgres.push_attempt import int_array

_QUEUE = (
    "select lockstep.queue_operations($1, $2::smallint, $3, $4, $5, $6::text::bigint[], $7::smallint, $8::bytea, "
    "$9::text[], $10::bytea, $11::timestamptz)"
)
_CLAIM = "select * from lockstep.claim_operations($1, $2, $3, $4, $5::timestamptz)"
_FINISH = (
    "select lockstep.finish_operations($1::bigint[], $2::bytea[], $3::int[], $4::int[], $5::text[], $6::float8[], "
    "$7::bigint[], $8::int[], $9::int[], $10, $11::timestamptz)"
)
_HOLD = "select serial, codec, requests, results, request_count from lockstep.operation where uuid = $1 for update"
_RETRY = "select lockstep.retry_operation($1, $2::bytea, $3::bigint[], $4::timestamptz)"
_PRUNE = "select lockstep.prune_operations($1, $2, $3, $4::timestamptz)"
_ORDINAL_MAX = 2**16
_PACK_BYTES_MIN = 512
"""From here a body is compressed."""
_PLAIN, _PACKED, _SEALED = Codec.PLAIN.value, Codec.PACKED.value, (Codec.PACKED | Codec.ENCRYPTED).value


class _AttemptFailed(Exception):
    """An attempt to apply operations failed, and not because the database is away. Never leaves the store."""

    def __init__(self, error: LockstepError) -> None:
        super().__init__(str(error))
        self.error = error


class OperationQueue(Delivery):
    async def queue_operations(self, operations: Sequence[NewOperation]) -> list[str]:
        batches = [batch for operation in operations for batch in operation.batches]
        queues = {batch.queue for batch in batches}

        async def attempt() -> UUID:
            # Asked anew each time: what turned out to be gone is not known any more.
            if pushing.all_known(batches, self.names):
                call = self._queue_call(operations, batches, self._known(batches))
                rows = await self.database.fetch("queue_operations", *call)
                return rows[0][0]  # type: ignore[no-any-return]
            return await self.database.transaction(partial(self._resolve_and_queue, operations, batches))

        return operation_ids(await self._with_names(queues, attempt, forget=True), len(operations))

    async def _resolve_and_queue(
        self, operations: Sequence[NewOperation], batches: Sequence[Batch], connection: asyncpg.Connection[Any]
    ) -> UUID:
        ids = await self._converse(scheduling.resolve(batches, self.names, at=self.now()), connection)
        call = self._queue_call(operations, batches, ids)
        rows = await self.database.on(connection, "queue_operations", *call)
        return rows[0][0]  # type: ignore[no-any-return]

    def _known(self, batches: Sequence[Batch]) -> dict[tuple[str, str], int]:
        """The ids of partitions that are all known."""
        found = {}
        for queue, partition in {(batch.queue, batch.partition) for batch in batches}:
            names = self.names.get(queue)
            assert names is not None
            found[queue, partition] = names.partitions[partition]
        return found

    def _queue_call(
        self, operations: Sequence[NewOperation], batches: Sequence[Batch], ids: Mapping[tuple[str, str], int]
    ) -> tuple[Any, ...]:
        kind = operations[0].kind
        codec, body = self._packed(pack_operations(operations), self._key_for(batches))
        messages = sum([operation.messages() for operation in operations])
        lanes = int_array(_lanes(operations, ids))
        queues = sorted({batch.queue for batch in batches})
        counts = (len(operations), messages, len(body))
        return _QUEUE, kind, PRIORITIES[kind], *counts, lanes, codec, body, queues, pack_aims(operations), self.now()

    def _key_for(self, batches: Sequence[Batch]) -> bytes | None:
        """The key, if any of the queues is encrypted. Raises EncryptionUnavailable."""
        key = None
        for queue in {batch.queue for batch in batches}:
            names = self.names.get(queue)
            if names is None:
                raise StaleName("a name was forgotten in this moment")
            if names.encryption:
                key = self.encryption.key_for(queue)
        return key

    @staticmethod
    def _packed(layout: bytes, key: bytes | None) -> tuple[int, bytes]:
        if key is None and len(layout) < _PACK_BYTES_MIN:
            return _PLAIN, layout
        return _PACKED if key is None else _SEALED, seal(layout, key=key)

    def _unpacked(self, codec: int, body: bytes) -> list[NewOperation]:
        """Raises CorruptSegment, EncryptionUnavailable."""
        return unpack_operations(body if codec == _PLAIN else unseal(codec, body, key=self.encryption.key))

    # Application

    async def apply_operations(self, kind: OperationKind, *, by: str, limits: ApplyLimits) -> Applied:
        try:
            applied, pushed = await self.database.transaction(partial(self._apply, kind, by, limits, False))
        except _AttemptFailed:
            applied, pushed = await self.database.transaction(partial(self._apply, kind, by, limits, True))
        for one in pushed:
            self._remember(one)
        return applied

    async def _apply(
        self, kind: OperationKind, by: str, limits: ApplyLimits, careful: bool, connection: asyncpg.Connection[Any]
    ) -> tuple[Applied, list[pushing.Pushed]]:
        """Claim, apply and mark. Every step waits for its turn in a process that is busy, so there are few: only if
        `careful` can an attempt fail without all the others."""
        claim = (kind, limits.messages_max, limits.bytes_max, int(limits.timeout_seconds * 1000), self.now())
        rows = await self.database.on(connection, "claim_operations", _CLAIM, *claim)
        if not rows:
            return Applied(), []
        bundles = [self._bundle(row) for row in rows]
        before = [list(bundle.outcomes) for bundle in bundles]
        pushed = await self._attempts_on(connection, bundles, limits, careful)
        await self._finish(connection, rows, bundles, by, limits)
        applied = Applied(more=True)
        for bundle, outcomes in zip(bundles, before, strict=True):
            applied.add(bundle, outcomes)
        return applied, pushed

    def _bundle(self, row: Any) -> Bundle:
        _, uuid, count, codec, requests, results, retries, lanes = row
        bundle = Bundle(uuid, [], unpack_outcomes(results, count), retries, frozenset(lanes))
        try:
            bundle.operations = self._unpacked(codec, requests)
        except LockstepError as error:
            bundle.operations, bundle.problem = [NewOperation()] * count, error
        return bundle

    async def _attempts_on(
        self, connection: asyncpg.Connection[Any], bundles: Sequence[Bundle], limits: ApplyLimits, careful: bool
    ) -> list[pushing.Pushed]:
        attempted = self._attempt_carefully if careful else self._attempt
        pushed: list[pushing.Pushed] = []
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
        pushed: list[pushing.Pushed],
    ) -> Answer:
        """One call. Raises _AttemptFailed if it fails for its own sake."""
        batches = [batch for operation in attempt for batch in operation.batches]
        try:
            if not batches:
                return await self._ack_on(connection, attempt, pushed)
            return await self._push_on(connection, batches, limits, pushed)
        except Exception as error:
            # What it has created goes with it.
            for queue in {batch.queue for batch in batches}:
                self.names.forget(queue)
            raise _AttemptFailed(_explained(error)) from error

    async def _attempt_carefully(
        self,
        connection: asyncpg.Connection[Any],
        attempt: Attempt,
        limits: ApplyLimits,
        pushed: list[pushing.Pushed],
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
        pushed: list[pushing.Pushed],
    ) -> PushResult:
        conversation = self._push_conversation(batches, limits.lock_seconds, overtake=True)
        one = await self._converse(conversation, connection)
        pushed.append(one)
        return one.result

    async def _ack_on(
        self, connection: asyncpg.Connection[Any], attempt: Attempt, pushed: list[pushing.Pushed]
    ) -> list[AckOutcome]:
        acks = [ack for operation in attempt for ack in operation.acks]
        await self._lock_for(connection, acks, [])
        rows = await self.database.on(connection, "ack_items", *ack_items_call(acks, self.now()))
        outcomes = item_outcomes(acks, rows)
        if any([outcome.dead for outcome in outcomes]):
            forwarded = await self._forward(connection, set())
            pushed += [] if forwarded is None else [forwarded]
        return outcomes

    async def _finish(
        self,
        connection: asyncpg.Connection[Any],
        rows: Sequence[Any],
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
        await self.database.on(
            connection,
            "finish_operations",
            _FINISH,
            [row[0] for row in rows],
            [pack_outcomes(bundle.outcomes) for bundle in bundles],
            [bundle.failed for bundle in bundles],
            [bundle.retries for bundle in bundles],
            [bundle.error for bundle in bundles],
            [limits.wait_seconds(bundle.retries) if bundle.left else None for bundle in bundles],
            lanes,
            firsts,
            lasts,
            by,
            self.now(),
        )

    async def _lanes_left(self, connection: asyncpg.Connection[Any], bundle: Bundle) -> list[int]:
        """The lanes of what is left of a bundle: all, if it cannot be read."""
        if bundle.problem is not None:
            return sorted(bundle.lanes)
        batches = [batch for operation in bundle.left for batch in operation.batches]
        return _lanes(
            bundle.left, await self._converse(scheduling.resolve(batches, self.names, at=self.now()), connection)
        )

    # Looking

    async def operations(
        self,
        *,
        status: OperationStatus | None = None,
        queue: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> OperationPage:
        after = parse_operation_cursor(cursor)
        serials, ends = await self._bundles(status, queue, after[0] + (after[1] >= _ORDINAL_MAX), limit + 1)
        rows = await self._query("operation_load", serials)
        found = [
            (operation_cursor(row[0], ordinal), info)
            for row in rows
            for ordinal, info in enumerate(_infos(row))
            if (row[0], ordinal) > after and info.is_among(status, queue)
        ]
        items = [info for _, info in found[:limit]]
        if len(found) > limit:
            return OperationPage(items=items, next_cursor=found[limit - 1][0])
        return OperationPage(items=items, next_cursor=None if ends else operation_cursor(serials[-1], _ORDINAL_MAX))

    async def _bundles(
        self, status: OperationStatus | None, queue: str | None, serial: int, operations: int
    ) -> tuple[list[int], bool]:
        """The bundles from one on that have so many operations together, or a few less; and whether these are all. What
        is in them is not looked at, because it may be much."""
        if status == "pending":
            kinds = list(KINDS), [PRIORITIES[kind] for kind in KINDS]
            rows = await self._query("operation_pending", serial, queue, operations, *kinds)
        elif status == "failed":
            rows = await self._query("operation_failed", serial, queue, operations)
        else:
            rows = await self._query("operation_any", serial, queue, operations, status == "done")
        counted = accumulate([row[1] for row in rows])
        wanted = next((index for index, count in enumerate(counted, 1) if count >= operations), len(rows))
        return [row[0] for row in rows[:wanted]], wanted == len(rows) and len(rows) < operations

    async def operation(self, operation_id: str) -> OperationInfo:
        uuid, ordinal = split_operation_id(operation_id)
        rows = await self._query("operation_find", uuid)
        if not rows or ordinal >= rows[0][4]:
            raise refusals.no_operation(operation_id)
        return _infos(rows[0][:-1], before=rows[0][-1])[ordinal]

    async def operation_outcomes(self, bundles: Sequence[UUID]) -> dict[UUID, list[Outcome | None]]:
        rows = await self._query("operation_outcomes", list(bundles))
        return {row[0]: unpack_outcomes(row[1], row[2]) for row in rows}

    async def operation_counts(self) -> OperationCounts:
        rows = {row[0]: row[1:] for row in await self._query("operation_counts")}
        return OperationCounts(
            pending=[_depth(kind, rows.get(kind)) for kind in KINDS],
            failed=rows["failed"][0] if "failed" in rows else 0,
        )

    async def retry_operation(self, operation_id: str) -> OperationInfo:
        uuid, ordinal = split_operation_id(operation_id)

        async def work(connection: asyncpg.Connection[Any]) -> None:
            rows = await self.database.on(connection, "operation_hold", _HOLD, uuid)
            if not rows or ordinal >= rows[0][4]:
                raise refusals.no_operation(operation_id)
            serial, codec, requests, results, count = rows[0]
            outcomes = unpack_outcomes(results, count)
            outcome = outcomes[ordinal]
            if outcome is None or outcome.failure is None:
                raise Conflict(f"operation {operation_id} has not failed")
            outcomes[ordinal] = None
            operation = self._unpacked(codec, requests)[ordinal]
            ids = await self._converse(scheduling.resolve(operation.batches, self.names, at=self.now()), connection)
            given = (serial, pack_outcomes(outcomes), _lanes([operation], ids), self.now())
            await self.database.on(connection, "retry_operation", _RETRY, *given)

        await self._with_names([], lambda: self.database.transaction(work))
        return await self.operation(operation_id)

    async def prune_operations(self, seconds: float, *, failed_seconds: float, limit: int) -> int:
        given = (float(seconds), float(failed_seconds), limit, self.now())
        removed: int = (await self.database.fetch("prune_operations", _PRUNE, *given))[0][0]
        return removed


def _lanes(operations: Sequence[NewOperation], ids: Mapping[tuple[str, str], int]) -> list[int]:
    """The partitions that the operations are for, by their ids."""
    lanes = {ids[place] for operation in operations for place in operation.places()}
    if any(operation.acks for operation in operations):
        lanes.add(ACK_LANE)
    return sorted(lanes)


def _explained(error: Exception) -> LockstepError:
    """Why an attempt failed. Raises what is not for the attempt alone: a conflict, and a database that is away."""
    if is_retryable(error) or isinstance(error, StaleName):
        raise error
    explained = translate(error)
    if isinstance(explained, LockstepError):
        return explained
    return LockstepError(f"{type(error).__name__}: {error}")


def _depth(kind: OperationKind, row: Any) -> OperationDepth:
    if row is None:
        return OperationDepth(kind=kind)
    return OperationDepth(kind=kind, operations=row[0], messages=row[1], bytes=row[2], oldest_at=row[3])


def _infos(row: Any, *, before: int | None = None) -> list[OperationInfo]:
    """The operations of a bundle; `before` is how many of its kind come before it."""
    _, uuid, kind, priority, count, pending, results, retries, error, worker, created_at, due_at, completed_at, aims = (
        row
    )
    infos = []
    told = unpack_aims(aims, count)
    outcomes = unpack_outcomes(results, count)
    for ordinal, (operation_id, outcome) in enumerate(zip(operation_ids(uuid, count), outcomes, strict=True)):
        waits = outcome is None and pending
        failure = None if outcome is None else outcome.failure
        infos.append(
            OperationInfo(
                id=operation_id,
                kind=kind,
                status="pending" if outcome is None else outcome.status,
                priority=priority,
                created_at=created_at,
                **msgspec.structs.asdict(told[ordinal]),
                position=before + outcomes[:ordinal].count(None) + 1 if waits and before is not None else None,
                due_at=due_at if waits else None,
                retries=retries,
                completed_at=None if waits else completed_at,
                worker=worker,
                error=error if outcome is None else None if failure is None else failure.message,
                error_code=None if failure is None else failure.code,
                outcome=outcome,
            )
        )
    return infos
