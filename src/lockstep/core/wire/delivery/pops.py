"""Pop: the leased messages."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from datetime import datetime
from itertools import count, repeat

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import asdict

from lockstep.core.ids import message_ids
from lockstep.core.messages import Columns, DeliveryFields, Message, Run
from lockstep.core.names import QUEUE_MODE
from lockstep.core.policy import GroupMode
from lockstep.core.records import Popped
from lockstep.core.wire.delivery.payloads import raw_data, value_at
from lockstep.core.wire.times import timestamp, timestamp_or_none

_headers = msgspec.json.Decoder(dict[str, str])
_text = msgspec.json.Decoder(str)


class PoppedMessage(DeliveryFields, frozen=True, rename="camel", gc=False, omit_defaults=True):
    id: str
    transaction_id: str
    trace_id: str | None
    data: Raw
    """The payload; a base64 string if `encoding` is set."""
    producer_sub: str | None
    created_at: str
    partition_id: str
    partition: str
    lease_id: str
    consumer_group: str
    queue: str
    seq: int
    kind: str | UnsetType = UNSET
    reference: str | UnsetType = UNSET
    encoding: str | UnsetType = UNSET
    headers: Raw | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET


class PopAnswer(Struct, rename="camel"):
    success: bool
    queue: str
    partition: str
    """The first claimed partition; each message names its own."""
    partition_id: str
    lease_id: str
    consumer_group: str
    partitions_claimed: int
    expires_at: str | None
    messages: list[PoppedMessage]
    mode: GroupMode = "ordered"
    """In a shared group each message is acknowledged on its own."""


class NextBody(Struct, rename="camel", forbid_unknown_fields=True):
    """What to lease next; the fields are those of a pop's query and path."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    consumer_group: str = QUEUE_MODE
    batch: int = 1
    partitions: int = 1
    lease_seconds: float | None = None
    wait: bool = False
    timeout: int = 30_000
    """Milliseconds."""
    subscription_mode: str = ""
    subscription_from: str = ""
    mode: GroupMode | None = None


def pop_answer(popped: Popped) -> PopAnswer:
    """The answer to a pop that found messages."""
    first = popped.runs[0]
    lease_id = popped.lease_id or ""
    messages: list[PoppedMessage] = []
    for run in popped.runs:
        messages += _messages(run, lease_id, popped.group)
    return PopAnswer(
        success=True,
        queue=first.queue,
        partition=first.partition,
        partition_id=str(first.partition_id),
        lease_id=lease_id,
        consumer_group=popped.group,
        partitions_claimed=len({run.partition_id for run in popped.runs}),
        expires_at=timestamp_or_none(popped.expires_at),
        messages=messages,
        mode=popped.mode,
    )


def _messages(run: Run, lease_id: str, group: str) -> list[PoppedMessage]:
    columns = run.columns
    ids = message_ids(run.segment, run.ordinal, len(columns))
    transaction_ids: Sequence[str | None] = columns.transaction_ids or ids
    created_at, partition_id, partition = timestamp(run.created_at), str(run.partition_id), run.partition
    delivery = asdict(run.delivery)
    if all([column is None for column in columns.described()[1:]]):  # nothing but payloads and transaction ids
        named = [given or identity for identity, given in zip(ids, transaction_ids, strict=True)]
        same = map(repeat, (None, created_at, partition_id, partition, lease_id, group, run.queue))
        values = (ids, named, repeat(None), map(Raw, columns.payloads), *same, count(run.first_seq))
        return [*map(PoppedMessage, *map(repeat, delivery.values()), *values)]
    return [
        PoppedMessage(
            **delivery,
            id=identity,
            transaction_id=transaction_ids[offset] or identity,
            trace_id=value_at(columns.trace_ids, offset),
            data=_data(columns, offset),
            producer_sub=value_at(columns.producer_subs, offset),
            created_at=created_at,
            partition_id=partition_id,
            partition=partition,
            lease_id=lease_id,
            consumer_group=group,
            queue=run.queue,
            seq=run.first_seq + offset,
            kind=_given(columns.kinds, offset),
            reference=_given(columns.references, offset),
            encoding=_given(columns.encodings, offset),
            headers=UNSET if value_at(columns.headers, offset) is None else Raw(value_at(columns.headers, offset)),
            expires_at=timestamp_or_none(value_at(columns.expires_at, offset)) or UNSET,
        )
        for offset, identity in enumerate(ids)
    ]


def _given(column: list[str | None] | None, offset: int) -> str | UnsetType:
    value: str | None = value_at(column, offset)
    return UNSET if value is None else value


def _data(columns: Columns, offset: int) -> Raw:
    payload = columns.payloads[offset]
    return raw_data(payload, value_at(columns.encodings, offset))


def _given_or_none(value: str | UnsetType) -> str | None:
    return None if isinstance(value, UnsetType) else value


def message_of(item: PoppedMessage) -> Message:
    """A message in the client's form."""
    encoding = _given_or_none(item.encoding)
    return Message(
        id=item.id,
        queue=item.queue,
        partition=item.partition,
        partition_id=int(item.partition_id),
        seq=item.seq,
        created_at=datetime.fromisoformat(item.created_at),
        payload=bytes(item.data) if encoding is None else b64decode(_text.decode(item.data)),
        transaction_id=item.transaction_id,
        trace_id=item.trace_id,
        kind=_given_or_none(item.kind),
        reference=_given_or_none(item.reference),
        encoding=encoding,
        headers=None if item.headers is UNSET else _headers.decode(item.headers),
        producer_sub=item.producer_sub,
        expires_at=None if isinstance(item.expires_at, UnsetType) else datetime.fromisoformat(item.expires_at),
        **{name: getattr(item, name) for name in DeliveryFields.__struct_fields__},
    )
