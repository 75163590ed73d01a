"""Transactions: acks and pushed items in one body, and the separation of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from lockstep.client._protocol.acks import ERRORS_BY_TEXT, ack_error, ack_item
from lockstep.client._protocol.exchange import HttpAnswer, HttpRequest, decoded, encoded, or_none
from lockstep.client._protocol.failures import CLASSES
from lockstep.client._protocol.pushes import OutgoingItem, appointment
from lockstep.client._received import Committed
from lockstep.core.messages import Receipt
from lockstep.core.records import Ack, AckOutcome
from lockstep.core.wire.transactions import TransactionAnswer, TransactionStep
from lockstep.errors import TransactionRolledBack

_transaction = msgspec.json.Decoder(TransactionAnswer)


def transaction(acks: Sequence[Ack], items: list[OutgoingItem]) -> HttpRequest:
    operations: list[Any] = [msgspec.structs.replace(ack_item(ack), type="ack") for ack in acks]
    if items:
        operations.append({"type": "push", "items": items})
    repeatable = all(item.transaction_id is not None for item in items)
    return HttpRequest("POST", "/api/v1/transaction", encoded({"operations": operations}), repeatable)


def committed_of(answer: HttpAnswer, acks: Sequence[Ack], items: list[OutgoingItem]) -> Committed:
    """The result of the transaction. Raises TransactionRolledBack, or the error that rolled it back."""
    result: TransactionAnswer = decoded(answer, _transaction)
    steps = result.results
    outcomes = [
        AckOutcome(
            index=index,
            success=step.success,
            error=ack_error(or_none(step.error)) if or_none(step.error) in ERRORS_BY_TEXT else None,
            noop=step.noop is True,
            released=step.lease_released is True,
            dead=step.dlq is True,
            messages=or_none(step.messages) or 0,
            queue=or_none(step.queue_name),
            partition=or_none(step.partition_name),
        )
        for index, step in enumerate(steps[: len(acks)])
    ]
    if not result.success:
        error = CLASSES.get(or_none(result.code) or "", TransactionRolledBack)
        raise error(or_none(result.error), **(or_none(result.details) or {"outcomes": outcomes}))
    pushed = zip(steps[len(acks) :], items, strict=True)
    return Committed(outcomes, [_step_receipt(index, *pair) for index, pair in enumerate(pushed)])


_STEP_STATUSES: Mapping[str, Literal["duplicate", "scheduled"]] = {"duplicate": "duplicate", "scheduled": "scheduled"}


def _step_receipt(index: int, step: TransactionStep, item: OutgoingItem) -> Receipt:
    return Receipt(
        index=index,
        status=_STEP_STATUSES.get(str(step.status), "queued"),
        queue=item.queue,
        partition=item.partition,
        partition_id=int(step.partition_id or 0),
        seq=int(step.seq or 0),
        message_id=str(or_none(step.message_id)),
        transaction_id=str(step.transaction_id),
        trace_id=item.trace_id,
        **appointment(step.schedule_id, step.due_at),
    )
