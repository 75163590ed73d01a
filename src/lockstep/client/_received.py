"""Popped messages as programs use them: the fields of a message, and its payload in the requested type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lockstep.client._payloads import decode_payload
from lockstep.core.messages import Message, Receipt
from lockstep.core.policy import GroupMode
from lockstep.core.records import AckOutcome

_NOT_DECODED = object()


@dataclass(slots=True)
class Delivered:
    """The messages that one pop delivered, as a transport returns them. Empty if there were none."""

    group: str
    messages: list[Message] = field(default_factory=list)
    lease_id: str | None = None
    """None if nothing was popped, or if the pop acknowledged at once."""
    expires_at: datetime | None = None
    mode: GroupMode = "ordered"


@dataclass(slots=True)
class Committed:
    """The result of a transaction."""

    acks: list[AckOutcome]
    receipts: list[Receipt]


class ReceivedMessage:
    """A popped message."""

    __slots__ = ("_as_type", "_payload", "record")

    def __init__(self, record: Message, as_type: Any) -> None:
        self.record = record
        """The message as stored."""
        self._as_type = as_type
        self._payload: Any = _NOT_DECODED

    def __repr__(self) -> str:
        return f"<message {self.id} of {self.queue}/{self.partition}, seq {self.seq}, attempt {self.attempt}>"

    @property
    def payload(self) -> Any:
        """The payload, decoded on first use. Raises InvalidPayload if it does not have the requested type."""
        if self._payload is _NOT_DECODED:
            self._payload = decode_payload(self.record.payload, self.record.encoding, self._as_type)
        return self._payload

    def check(self) -> None:
        """Raise InvalidPayload if a type was requested and the payload does not have it."""
        if self._as_type is not None:
            self.payload  # noqa: B018

    @property
    def raw(self) -> bytes:
        """The payload as stored."""
        return self.record.payload

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def queue(self) -> str:
        return self.record.queue

    @property
    def partition(self) -> str:
        return self.record.partition

    @property
    def partition_id(self) -> int:
        return self.record.partition_id

    @property
    def seq(self) -> int:
        return self.record.seq

    @property
    def created_at(self) -> datetime:
        return self.record.created_at

    @property
    def transaction_id(self) -> str:
        return self.record.transaction_id

    @property
    def trace_id(self) -> str | None:
        return self.record.trace_id

    @property
    def kind(self) -> str | None:
        return self.record.kind

    @property
    def reference(self) -> str | None:
        return self.record.reference

    @property
    def encoding(self) -> str | None:
        return self.record.encoding

    @property
    def headers(self) -> Mapping[str, str]:
        return self.record.headers or {}

    @property
    def producer_sub(self) -> str | None:
        return self.record.producer_sub

    @property
    def expires_at(self) -> datetime | None:
        """When the message expires, if its producer said so."""
        return self.record.expires_at

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1."""
        return self.record.attempt
