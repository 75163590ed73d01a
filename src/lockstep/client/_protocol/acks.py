"""Ack and renew: by lease or by message, one or many, and their outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from lockstep.client._protocol.exchange import HttpAnswer, HttpRequest, check_finite, decoded, encoded, time_text
from lockstep.client._protocol.verbs import call
from lockstep.core.ids import parse_uuid
from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import ACK_ERROR_TEXTS, Ack, AckError, AckOutcome, Renewal, Renewed
from lockstep.core.wire import delivery as wire
from lockstep.errors import InvalidRequest


class _AckItem(Struct, rename="camel", omit_defaults=True, gc=False):
    type: Literal["ack"] | UnsetType = UNSET
    transaction_id: str | None = None
    partition_id: str | None = None
    seq: int | None = None
    lease_id: str | None = None
    consumer_group: str | None = None
    status: str = "completed"
    error: str | None = None
    retry_at: str | None = None


_ack_results = msgspec.json.Decoder(list[wire.AckResult])
_lease_ack = msgspec.json.Decoder(wire.LeaseAckAnswer)
_extended = msgspec.json.Decoder(wire.RenewAnswer)
ERRORS_BY_TEXT: dict[str, AckError] = {text: error for error, text in ACK_ERROR_TEXTS.items()}


def check_kinds(given: object, kind: type, *, what: str) -> None:
    """Check that acks of all kinds in a call have valid fields."""
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise InvalidRequest(f"{what} must come as a list, not {type(given).__name__}")
    for one in given:
        if not isinstance(one, kind):
            raise InvalidRequest(f"expected {kind.__name__}, not {type(one).__name__}")


def ack_by_lease(ack: Ack) -> HttpRequest:
    """An ack of everything that a lease holds, or of it up to one message."""
    body = _AckItem(
        status=ack.status,
        error=_error(ack),
        seq=ack.seq,
        partition_id=_partition(ack.partition_id),
        retry_at=_retry_at(ack),
    )
    return HttpRequest("POST", f"/api/v1/lease/{_lease(ack.lease_id)}/ack", encoded(body))


def lease_outcome_of(answer: HttpAnswer) -> AckOutcome:
    result: wire.LeaseAckAnswer = decoded(answer, _lease_ack)
    return AckOutcome(
        index=0,
        success=result.success,
        error=ack_error(result.error),
        noop=result.noop,
        released=result.lease_released,
        dead=result.dlq,
        messages=result.messages,
    )


def fit_batch(acks: Sequence[Ack]) -> bool:
    """Whether each ack names its message: by a transaction id, or by a seq under a lease."""
    return all([ack.partition_id is not None and (ack.transaction_id is None) != (ack.seq is None) for ack in acks])


def ack_batch(acks: Sequence[Ack]) -> HttpRequest:
    return HttpRequest("POST", "/api/v1/ack/batch", encoded({"acknowledgments": [ack_item(ack) for ack in acks]}))


def ack_item(ack: Ack) -> _AckItem:
    return _AckItem(
        transaction_id=ack.transaction_id,
        partition_id=_partition(ack.partition_id),
        seq=ack.seq,
        lease_id=ack.lease_id,
        consumer_group=None if ack.group == QUEUE_MODE else ack.group,
        status=ack.status,
        error=_error(ack),
        retry_at=_retry_at(ack),
    )


def ack_any(acks: Sequence[Ack], *, atomic: bool = False) -> HttpRequest:
    """Acks of every kind, as the engine accepts them: an ack by lease alone cannot be among those that name a
    message.
    """
    written = [msgspec.structs.replace(ack, error=_error(ack)) for ack in acks]
    request = call("ack", {"acks": written, "atomic": atomic})
    # A repeated call would report acks that were applied as rolled back.
    return replace(request, repeatable=False) if atomic else request


def _error(ack: Ack) -> str | None:
    """A text for people. Characters that UTF-8 cannot encode must not make the ack fail."""
    return ack.error.encode("utf-8", "replace").decode() if isinstance(ack.error, str) else ack.error


def _partition(partition_id: object) -> str | None:
    """A partition as text, whatever the caller passed; the server treats an invalid one as nonexistent."""
    if partition_id is None:
        return None
    if isinstance(partition_id, bool) or not isinstance(partition_id, int):
        raise InvalidRequest(f"partition id must be a whole number, not {type(partition_id).__name__}")
    if not 0 < partition_id < 2**63:
        raise InvalidRequest(f"partition id must be between 1 and {2**63 - 1}, not {partition_id}")
    return str(partition_id)


def _lease(lease_id: object) -> str:
    """A lease in a path, which cannot contain an empty one."""
    return str(parse_uuid(lease_id, what="lease id"))


def _retry_at(ack: Ack) -> str | None:
    return None if ack.retry_at is None else time_text(ack.retry_at, what="retry_at")


def outcomes_of(answer: HttpAnswer) -> list[AckOutcome]:
    return [
        AckOutcome(
            index=index,
            success=result.success,
            error=ack_error(result.error),
            noop=result.noop is True,
            released=result.lease_released,
            dead=result.dlq,
            queue=result.queue_name,
            partition=result.partition_name,
        )
        for index, result in enumerate(decoded(answer, _ack_results))
    ]


def ack_error(text: str | None) -> AckError | None:
    return None if text is None else ERRORS_BY_TEXT.get(text, "unresolvable")


def renew(renewal: Renewal) -> HttpRequest:
    check_finite(renewal.seconds, what="lease seconds")
    body = None if renewal.seconds is None else encoded({"seconds": renewal.seconds})
    return HttpRequest("POST", f"/api/v1/lease/{_lease(renewal.lease_id)}/extend", body)


def renewed_of(answer: HttpAnswer) -> Renewed:
    result: wire.RenewAnswer = decoded(answer, _extended)
    expires_at = None if result.expires_at is None else datetime.fromisoformat(result.expires_at)
    return Renewed(lease_id=result.lease_id, partitions=result.renewed, expires_at=expires_at)
