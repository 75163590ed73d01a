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
        """Keep requests, all pushes or all acks, to be applied later, in order; returns their ids, in order.

        Queues and partitions of pushes appear as they would with the push. A push that would certainly fail for lack of
        a key raises EncryptionUnavailable.
        """

    async def apply_operations(self, kind: OperationKind, *, by: str, limits: ApplyLimits) -> Applied:
        """Apply waiting operations, oldest first, as far as the limits allow; `by` names the processor, for people.

        Any number of processes may do so at once. Each operation is applied once, and marked in the transaction that
        applies it: a process that is killed has applied none of those it has claimed. A push is applied after all older
        ones to the same partitions; acks, after all older acks. An operation that fails does not affect others, and is
        kept with its error. One whose queue is full, or whose partition is held by others, is left to be tried again
        after a while, and so are those after it in its partitions; a full queue fails it when the retries are used up.
        """

    async def operations(
        self,
        *,
        status: OperationStatus | None = None,
        queue: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> OperationPage:
        """A page of operations, oldest first; with a queue those that push to it. It may be short, even empty, and
        still have a next one. Raises InvalidRequest for a cursor that is not valid."""

    async def operation(self, operation_id: str) -> OperationInfo:
        """One operation. Raises OperationNotFound, also once it is done and has been pruned; InvalidRequest."""

    async def operation_outcomes(self, bundles: Sequence[UUID]) -> dict[UUID, list[Outcome | None]]:
        """The known outcomes of operations, by bundle; a bundle without any may be missing."""

    async def operation_counts(self) -> OperationCounts:
        """How much waits, and how much has failed. The cost does not depend on these amounts."""

    async def retry_operation(self, operation_id: str) -> OperationInfo:
        """Let an operation that failed wait again, in its old place. Raises OperationNotFound, Conflict."""

    async def prune_operations(self, seconds: float, *, failed_seconds: float, limit: int) -> int:
        """Remove bundles that ended the given number of seconds ago, at most `limit`; returns how many. One in which an
        operation failed is kept for `failed_seconds`, if that is longer."""
