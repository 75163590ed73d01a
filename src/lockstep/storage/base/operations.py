"""Requests that wait to be applied (`core/operations.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from lockstep.core.applying import Applied, ApplyLimits
from lockstep.core.operations import (
    NewOperation,
    OperationCounts,
    OperationInfo,
    OperationKind,
    OperationPage,
    OperationStatus,
    Outcome,
)


class Operations(Protocol):
    """Queues requests, applies them later and in order, and keeps their outcomes."""

    async def queue_operations(self, operations: Sequence[NewOperation]) -> list[str]:
        """Queue requests, all pushes or all acks, to be applied later, in order; returns their ids, in order.

        Queues and partitions of pushes are created as by the push itself. A push that is certain to fail for lack of a
        key raises EncryptionUnavailable.
        """

    async def apply_operations(self, kind: OperationKind, *, by: str, limits: ApplyLimits) -> Applied:
        """Apply waiting operations, oldest first, as far as the limits allow; `by` names the processor, for operators.

        Any number of processes may do this at once. Each operation is applied once, and marked in the transaction that
        applies it, so the claimed operations of a killed process are not applied. A push is applied after all older
        pushes to the same partitions; acks, after all older acks. An operation that fails does not affect others, and
        is kept with its error. If its queue is full, or another transaction holds its partition, it is retried later,
        together with the operations behind it in its partitions; if the queue stays full, the operation fails when its
        retries are used up.
        """

    async def operations(
        self,
        *,
        status: OperationStatus | None = None,
        queue: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> OperationPage:
        """A page of operations, oldest first; with a queue, only those that push to it. A page may be short, even
        empty, and still have a next page. Raises InvalidRequest for an invalid cursor."""

    async def operation(self, operation_id: str) -> OperationInfo:
        """One operation. Raises OperationNotFound, even for a finished operation that has been pruned;
        InvalidRequest."""

    async def operation_outcomes(self, bundles: Sequence[UUID]) -> dict[UUID, list[Outcome | None]]:
        """The known outcomes of operations, by bundle; a bundle without any may be missing."""

    async def operation_counts(self) -> OperationCounts:
        """The numbers of waiting and failed operations. The cost does not depend on these numbers."""

    async def retry_operation(self, operation_id: str) -> OperationInfo:
        """Queue a failed operation again, at its old position. Raises OperationNotFound, Conflict."""

    async def prune_operations(self, seconds: float, *, failed_seconds: float, limit: int) -> int:
        """Remove bundles that ended at least the given number of seconds ago, at most `limit`; returns how many. A
        bundle with a failed operation is kept for `failed_seconds`, if that is longer."""
