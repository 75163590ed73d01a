"""Compares what two stores answer, when all that may differ is which ids they chose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lockstep.core.messages import Message, PushResult, Receipt
from lockstep.core.records import (
    Ack,
    AckOutcome,
    Continued,
    DeadLetter,
    DeadLetterFilter,
    NextRequest,
    PartitionInfo,
    Popped,
    QueueInfo,
    Renewal,
    TransactionResult,
)
from lockstep.core.schedules import Promoted, Scheduled, ScheduleName
from lockstep.errors import LockstepError, QueueFull, TransactionRolledBack

MESSAGE_HEADERS = ("lockstep-redriven-from", "lockstep-dead-from-message-id")
# Stores choose by the order of these ids, so the order must correspond too.
ORDERED = {"partition", "dead_letter", "queue", "schedule"}


class Id(msgspec.Struct, frozen=True):
    """An id that a store chose."""

    kind: str
    value: Any


class AtLeast(msgspec.Struct, frozen=True):
    """What the other store may say too often, and never too seldom."""

    value: bool


_FIELDS = {"partition_id": "partition", "lease_id": "lease", "message_id": "message", "schedule_id": "schedule"}
_OWN: list[tuple[type, str]] = [
    (QueueInfo, "queue"),
    (PartitionInfo, "partition"),
    (Message, "message"),
    (DeadLetter, "dead_letter"),
    (Scheduled, "schedule"),
]


def plain(value: Any) -> Any:
    """The value as lists, dicts and scalars, with every id that the store chose wrapped."""
    if isinstance(value, QueueFull | TransactionRolledBack):
        return {"raised": type(value).__name__, "details": plain(value.details)}
    if isinstance(value, LockstepError):
        return {"raised": type(value).__name__}
    if isinstance(value, Popped):
        # How messages are cut into runs is the store's affair.
        return {
            "group": value.group,
            "lease_id": None if value.lease_id is None else Id("lease", value.lease_id),
            "expires_at": value.expires_at,
            "messages": plain(list(value.messages())),
        }
    if isinstance(value, Continued):
        # That something is left to others may turn out wrong when it is looked at, and is passed.
        acked = plain(value.acked)
        return {"acked": {**acked, "released": AtLeast(acked["released"])}, "popped": plain(value.popped)}
    if isinstance(value, Promoted):
        # Whether more is due it may say too often.
        return {
            "messages": value.messages,
            "partitions": {queue: sorted(names) for queue, names in value.partitions_by_queue.items()},
            "postponed": sorted(value.postponed),
            "next_at": value.next_at,
        }
    if isinstance(value, TransactionResult):
        return {"acks": plain(value.acks), "pushed": plain(value.pushed)}
    if isinstance(value, PushResult | list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: Id("message", item) if key in MESSAGE_HEADERS else plain(item) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        return _plain_struct(value)
    return value


def _plain_struct(value: msgspec.Struct) -> dict[str, Any]:
    found = {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    for name, kind in _FIELDS.items():
        if found.get(name) is not None:
            found[name] = Id(kind, found[name])
    for record, kind in _OWN:
        if isinstance(value, record):
            found["id"] = Id(kind, found["id"])
    if isinstance(value, AckOutcome) and value.error == "lease_lost":
        # Of what a lost lease was, a store may or may not know still.
        found["queue"] = found["partition"] = None
    own_id = getattr(value, "message_id", None) if isinstance(value, Receipt) else getattr(value, "id", None)
    if isinstance(value, Receipt | Message) and value.transaction_id == own_id:
        found["transaction_id"] = Id("message", own_id)
    return found


class Correspondence:
    """Which id of the one store is which id of the other, by their first appearance in equal places."""

    def __init__(self) -> None:
        self._there: dict[Id, Id] = {}
        self._back: dict[Id, Id] = {}

    def differences(self, here: Any, there: Any, path: str = "") -> list[str]:
        """Where two plain values differ; ids seen for the first time are taken to correspond."""
        if isinstance(here, Id) and isinstance(there, Id):
            return [] if self._match(here, there) else [f"{path}: {here} is not {there}"]
        if isinstance(here, AtLeast) and isinstance(there, AtLeast):
            return [] if there.value or not here.value else [f"{path}: missing"]
        if isinstance(here, dict) and isinstance(there, dict) and here.keys() == there.keys():
            return [d for key in here for d in self.differences(here[key], there[key], f"{path}.{key}")]
        if isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
            pairs = enumerate(zip(here, there, strict=True))
            return [d for index, (a, b) in pairs for d in self.differences(a, b, f"{path}[{index}]")]
        return [] if here == there else [f"{path}: {here!r} != {there!r}"]

    def _match(self, here: Id, there: Id) -> bool:
        if here in self._there or there in self._back:
            return self._there.get(here) == there and self._back.get(there) == here
        if here.kind != there.kind:
            return False
        if here.kind in ORDERED:
            for a, b in self._there.items():
                if a.kind == here.kind and (a.value < here.value) != (b.value < there.value):
                    return False
        self._there[here], self._back[there] = there, here
        return True

    def translate(self, value: Any) -> Any:
        """An argument for the one store as the other must be given it."""
        if isinstance(value, Ack):
            return msgspec.structs.replace(
                value,
                lease_id=self.other("lease", value.lease_id),
                partition_id=self.other("partition", value.partition_id),
                transaction_id=self.other("message", value.transaction_id),
            )
        if isinstance(value, Renewal | NextRequest):
            return msgspec.structs.replace(value, lease_id=self.other("lease", value.lease_id))
        if isinstance(value, DeadLetterFilter) and value.ids is not None:
            ids = tuple(self.other("dead_letter", identity) for identity in value.ids)
            return msgspec.structs.replace(value, ids=ids)
        if isinstance(value, ScheduleName) and value.id is not None:
            return ScheduleName(id=self.other("schedule", value.id))
        if isinstance(value, list):
            return [self.translate(item) for item in value]
        return value

    def other(self, kind: str, value: Any) -> Any:
        """The other store's id; the value itself if it is none that a store chose."""
        return self._there.get(Id(kind, value), Id(kind, value)).value
