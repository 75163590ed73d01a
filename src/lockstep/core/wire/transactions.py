"""Transactions on the wire: acks and pushes, separated for the engine and recombined for the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from lockstep.core.messages import Batch
from lockstep.core.operations import Order
from lockstep.core.records import Ack, AckOutcome, TransactionResult
from lockstep.core.wire.delivery import (
    Acknowledgment,
    PushItem,
    PushReceipt,
    ack_error,
    ack_of,
    batches_of,
    lease_of,
    receipts,
)
from lockstep.errors import InvalidRequest, QueueFull

# Each may cost another attempt at the transaction.
_REQUIRED_LEASES_MAX = 100


class PushOperation(Struct, tag="push", tag_field="type", forbid_unknown_fields=True):
    items: list[PushItem]


class AckOperation(Acknowledgment, tag="ack", tag_field="type", rename="camel", forbid_unknown_fields=True):
    """An ack as a step of a transaction."""


class TransactionBody(Struct, rename="camel", forbid_unknown_fields=True):
    operations: list[PushOperation | AckOperation]
    required_leases: list[str] = []
    """Each ack without a lease must be under one of these leases; without any ack, all of them must be live."""


class TransactionStep(Struct, rename="camel", omit_defaults=True):
    """The result of one pushed item or one ack."""

    index: int
    type: Literal["push", "ack"]
    success: bool
    transaction_id: str | None
    error: str | UnsetType | None = UNSET
    dlq: bool | UnsetType = UNSET
    noop: bool | UnsetType = UNSET
    lease_released: bool | UnsetType = UNSET
    messages: int | UnsetType = UNSET
    partition_name: str | UnsetType | None = UNSET
    status: str | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    partition_id: str | UnsetType = UNSET
    queue_name: str | UnsetType | None = UNSET
    seq: int | UnsetType = UNSET
    schedule_id: str | UnsetType = UNSET
    due_at: str | UnsetType = UNSET


class TransactionAnswer(Struct, rename="camel", omit_defaults=True):
    success: bool
    results: list[TransactionStep]
    transaction_id: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    details: dict[str, Any] | UnsetType = UNSET


@dataclass(slots=True)
class TransactionSteps:
    """The operations of a transaction, separated into acks and pushes, and recombined for the answer."""

    plan: list[tuple[Literal["push", "ack"], int]]
    """For each step of the answer: its kind, and its index among the acks or the pushed items."""
    items: list[PushItem]
    ack_items: list[Acknowledgment]
    acks: list[Ack]
    batches: list[Batch]
    order: Order | None
    untried: dict[int, list[str]]
    """For the acks without a lease, by index: the required leases not tried yet."""
    required: list[str]
    """Leases that must be live although no ack names them."""

    @classmethod
    def of(cls, body: TransactionBody) -> TransactionSteps:
        plan: list[tuple[Literal["push", "ack"], int]] = []
        items: list[PushItem] = []
        ack_items: list[Acknowledgment] = []
        for operation in body.operations:
            if isinstance(operation, PushOperation):
                plan += [("push", len(items) + i) for i in range(len(operation.items))]
                items += operation.items
            else:
                plan.append(("ack", len(ack_items)))
                ack_items.append(operation)
        acks = [ack_of(item) for item in ack_items]
        batches, order = batches_of(items)
        leases = list(dict.fromkeys([lease for text in body.required_leases if (lease := lease_of(text)) is not None]))
        untried = _untried(acks, leases)
        steps = cls(plan, items, ack_items, acks, batches, order, untried, [] if acks else leases)
        for place in untried:
            steps._put_under_next_lease(place)
        return steps

    def put_under_other_leases(self, outcomes: Sequence[AckOutcome]) -> bool:
        """Nothing was applied. Returns whether to retry with each ack that lost its lease under the next required
        lease.

        An ack without a lease must be under one of the required leases, but does not say which. The store knows, and
        refuses it under all others.
        """
        failed = [outcome.index for outcome in outcomes if not outcome.success]
        if not failed or not all(
            [outcomes[place].error == "lease_lost" and self.untried.get(place) for place in failed]
        ):
            return False
        for place in failed:
            self._put_under_next_lease(place)
        return True

    def _put_under_next_lease(self, place: int) -> None:
        self.acks[place] = msgspec.structs.replace(self.acks[place], lease_id=self.untried[place].pop(0))

    def applied(self, transaction_id: str, result: TransactionResult) -> TransactionAnswer:
        pushed = receipts(result.pushed, self.order)
        steps = [
            _pushed_step(index, pushed[place])
            if kind == "push"
            else self._ack_step(
                index, place, result.acks[place].success, ack_error(result.acks[place]), result.acks[place]
            )
            for index, (kind, place) in enumerate(self.plan)
        ]
        return TransactionAnswer(success=True, transaction_id=transaction_id, results=steps)

    def rolled_back(
        self, reason: str, outcomes: Sequence[AckOutcome] | None, *, full: QueueFull | None = None
    ) -> TransactionAnswer:
        """Nothing was applied: every step failed, and the steps at fault have their reason."""
        steps = [
            TransactionStep(
                index=index,
                type="push",
                success=False,
                transaction_id=self.items[place].transaction_id,
                queue_name=self.items[place].queue,
                error="rolled back",
            )
            if kind == "push"
            else self._ack_step(
                index, place, False, (ack_error(outcomes[place]) if outcomes else None) or "rolled back", None
            )
            for index, (kind, place) in enumerate(self.plan)
        ]
        error = reason if reason.startswith("transaction rolled back") else f"transaction rolled back: {reason}"
        answer = TransactionAnswer(success=False, error=error, results=steps)
        if full is not None:
            answer.code, answer.details = full.code, full.details
        return answer

    def _ack_step(
        self, index: int, place: int, success: bool, error: str | None, outcome: AckOutcome | None
    ) -> TransactionStep:
        return TransactionStep(
            index=index,
            type="ack",
            success=success,
            transaction_id=self.ack_items[place].transaction_id,
            error=error,
            dlq=outcome.dead if outcome else False,
            noop=outcome.noop if outcome else UNSET,
            lease_released=outcome.released if outcome else UNSET,
            messages=outcome.messages if outcome else UNSET,
            queue_name=outcome.queue if outcome else UNSET,
            partition_name=outcome.partition if outcome else UNSET,
        )


def _untried(acks: Sequence[Ack], leases: Sequence[str]) -> dict[int, list[str]]:
    nameless = [place for place, ack in enumerate(acks) if ack.lease_id is None]
    if nameless and len(leases) > _REQUIRED_LEASES_MAX:
        limit = _REQUIRED_LEASES_MAX
        raise InvalidRequest(f"with more than {limit} requiredLeases each ack needs its leaseId")
    return {place: list(leases) for place in nameless if leases}


def _pushed_step(index: int, receipt: PushReceipt) -> TransactionStep:
    return TransactionStep(
        index=index,
        type="push",
        success=True,
        transaction_id=receipt.transaction_id,
        status=receipt.status,
        message_id=receipt.message_id,
        partition_id=receipt.partition_id,
        queue_name=receipt.queueName,
        seq=receipt.seq,
        schedule_id=receipt.scheduleId,
        due_at=receipt.dueAt,
    )
