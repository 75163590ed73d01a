"""Packed bodies: messages as columns, in a push and in the answer of a pop. docs/reference/packed.md has the format.

    magic "LSP1" | size of the head, int32 | head, JSON | block 0 | block 1 | …        little endian

A block is the layout of a segment (core/codec.py), compressed or not. The head gives the length of each block and the
partitions of its messages. A single message therefore needs no JSON on either side.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints
from uuid import UUID

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import astuple

from lockstep.core.codec import block_of, decode, decode_block, encode
from lockstep.core.layouts import (
    HEADER_BYTES,
    LAYOUT_MAGIC,
    column_lengths,
    decompress,
    frames_of,
    header,
    is_chain,
    layout_bytes,
    pack,
)
from lockstep.core.messages import (
    CHAINED_BYTES_MIN,
    Appointment,
    Batch,
    Columns,
    DeliveryFields,
    NewSchedule,
    Occupancy,
    Placement,
    PushResult,
    Run,
    join_columns,
)
from lockstep.core.operations import Order
from lockstep.core.payloads import check_json_column, check_json_run
from lockstep.core.policy import SECONDS_MAX, GroupMode
from lockstep.core.records import Popped
from lockstep.core.wire.times import Time, parse_time_or_none, timestamp, timestamp_or_none
from lockstep.errors import CorruptSegment, InvalidPayload, InvalidRequest, TooLarge, TooManyItems

PACKED = "application/x-lockstep-batch"
"""The media type."""

PACKED_MAGIC = b"LSP1"
_START = struct.Struct("<4si")
_COMPRESSED_BYTES_MIN = 1024
"""Below this size compression hardly makes a block smaller; it is also the size up to which segments are stored
uncompressed.
"""

T = TypeVar("T")
_Count = Annotated[int, Meta(ge=1)]
_Size = Annotated[int, Meta(ge=0)]


class PushBlock(Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Messages for one queue: those of the first partition, then those of the second, and so on."""

    queue: str
    partitions: list[str]
    counts: list[_Count]
    size: _Size
    """Length of the block in bytes."""
    expire_seconds: list[Annotated[float, Meta(ge=0, le=SECONDS_MAX)] | None] | None = None
    """By message; absolute times are in a column of the layout instead."""
    deliver_at: Time | None = None
    delay_seconds: float | None = None
    schedule_key: str | None = None


class _PushHead(Struct, forbid_unknown_fields=True):
    blocks: list[PushBlock]


class PackedReceipts(Struct, rename="camel", omit_defaults=True):
    """Where the messages of a push went: one batch for each partition that a block names, in order."""

    placements: list[tuple[int, int, int, int]] = []
    """By batch: partition id, first seq, index of the segment, and position in it. Messages that are duplicates,
    scheduled or buffered do not count."""
    segments: list[str] = []
    partitions: list[str] | None = None
    """By batch, if the server has chosen the partition: for balanced queues."""
    duplicates: list[tuple[int, int, int, str]] = []
    """Batch, position in it, and seq and id of the first message with the same transaction id."""
    scheduled: list[tuple[int, list[tuple[int, str, bool]]]] = []
    """For a scheduled batch, by message: schedule id, time, and whether it is a duplicate."""
    buffered: bool = False
    occupancy: dict[str, tuple[int, int]] = {}
    """For queues with a max_size: the number of pending messages, and how many more fit."""


if TYPE_CHECKING:
    _PackedRun = tuple[Any, ...]
else:
    _PackedRun = tuple[(int, str, int, int, int, int, int, *get_type_hints(DeliveryFields).values())]
"""Queue, partition, partition id, first seq, number of messages, segment, position in it; then the delivery."""


class _PopHead(Struct, rename="camel", omit_defaults=True):
    lease_id: str | None
    consumer_group: str
    expires_at: str | None
    mode: GroupMode
    queues: list[str]
    segments: list[tuple[str, str]]
    """Id and creation time."""
    runs: list[_PackedRun]
    blocks: list[_Size]
    """The size of each block in bytes."""


_push_head = msgspec.json.Decoder(_PushHead)
_pop_head = msgspec.json.Decoder(_PopHead)
_receipts = msgspec.json.Decoder(PackedReceipts)


def is_packed(content_types: str | None) -> bool:
    """Whether a Content-Type or Accept header names packed bodies."""
    return content_types is not None and PACKED in content_types


# --- Push -----------------------------------------------------------------------------------------------------------


def write_push(batches: Sequence[Batch]) -> bytes:
    """The body of a push."""
    blocks, bodies = [], []
    for members in _blocks(batches):
        columns = join_columns([batch.columns for batch in members])
        layout = encode(columns)
        bodies.append(pack(layout) if len(layout) >= _COMPRESSED_BYTES_MIN else layout)
        schedule = members[0].schedule or NewSchedule()
        blocks.append(
            PushBlock(
                queue=members[0].queue,
                partitions=[batch.partition for batch in members],
                counts=[len(batch.columns) for batch in members],
                size=len(bodies[-1]),
                expire_seconds=_spans(columns.expires_at),
                deliver_at=timestamp_or_none(schedule.deliver_at),
                delay_seconds=schedule.delay_seconds,
                schedule_key=schedule.key,
            )
        )
    return _body(_PushHead(blocks), bodies)


def _blocks(batches: Sequence[Batch]) -> Iterator[list[Batch]]:
    """Groups consecutive batches of the same queue and time."""
    members: list[Batch] = []
    for batch in batches:
        if members and (batch.queue, batch.schedule) != (members[0].queue, members[0].schedule):
            yield members
            members = []
        members.append(batch)
    if members:
        yield members


def _spans(expiries: list[datetime | timedelta | None] | None) -> list[float | None] | None:
    if expiries is None or not any([isinstance(expiry, timedelta) for expiry in expiries]):
        return None
    return [expiry.total_seconds() if isinstance(expiry, timedelta) else None for expiry in expiries]


class PackedPush:
    """The body of a push, parsed up to its head."""

    def __init__(self, body: bytes, *, items_max: int) -> None:
        """Raises InvalidRequest, or TooManyItems for a head with more values than `items_max`."""
        head, start = _head(body, _push_head, items_max)
        self._blocks = head.blocks
        sizes = [block.size for block in self._blocks]
        if start + sum(sizes) != len(body):
            raise InvalidRequest(f"the blocks have {len(body) - start} bytes, and the head counts {sum(sizes)}")
        ends = list(accumulate(sizes, initial=start))
        self._bodies = [body[a:b] for a, b in pairwise(ends)]
        if any(map(is_chain, self._bodies)):
            raise InvalidRequest("a block must be a layout or a single zstd frame, not a chain")
        for index, block in enumerate(self._blocks):
            _check_block(index, block)

    @property
    def messages(self) -> int:
        return sum([sum(block.counts) for block in self._blocks])

    @property
    def unpacked_bytes(self) -> int:
        """The total uncompressed size of all blocks. Raises InvalidRequest."""
        with _ReadingBlock():
            return sum([len(body) if _is_plain(body) else layout_bytes(body) for body in self._bodies])

    def check(self, *, messages_max: int, unpacked_bytes_max: int) -> None:
        """Raises InvalidRequest, TooLarge."""
        if self.messages > messages_max:
            raise InvalidRequest(f"the push has {self.messages} messages; at most {messages_max} are allowed")
        if self.unpacked_bytes > unpacked_bytes_max:
            raise TooLarge(
                f"the blocks have {self.unpacked_bytes} bytes once they are unpacked; at most {unpacked_bytes_max} are "
                "allowed (unpacked_bytes_max)"
            )

    def batches(self) -> list[Batch]:
        """One batch for each partition that a block names. Raises InvalidRequest, InvalidPayload."""
        return [batch for index in range(len(self._blocks)) for batch in self._batches_of(index)]

    def _batches_of(self, index: int) -> Iterator[Batch]:
        block, columns = self._blocks[index], self._columns(index)
        deliver_at = parse_time_or_none(block.deliver_at, what="deliverAt")
        schedule = NewSchedule(deliver_at=deliver_at, delay_seconds=block.delay_seconds, key=block.schedule_key)
        for partition, part in zip(block.partitions, columns.split(block.counts), strict=True):
            yield Batch(block.queue, partition, part, None if schedule == _AT_ONCE else schedule)

    def _columns(self, index: int) -> Columns:
        block, body = self._blocks[index], self._bodies[index]
        with _ReadingBlock(index):
            layout = body if _is_plain(body) else decompress(body)
            # Checked before anything is allocated: a few bytes may declare millions of empty messages.
            count, _ = header(layout)
        if count != sum(block.counts):
            raise InvalidRequest(f"block {index} has {count} messages, and its counts say {sum(block.counts)}")
        with _ReadingBlock(index):
            columns = (
                decode(layout) if _is_plain(body) else decode_block(body, layout, kept=len(layout) < CHAINED_BYTES_MIN)
            )
        if columns.producer_subs is not None:
            raise InvalidRequest(f"block {index} names producers, which only the server does")
        if block.expire_seconds is not None:
            columns.expires_at = _expiries(index, block.expire_seconds, columns)
        _check_payloads(index, columns, layout)
        return columns


_AT_ONCE = NewSchedule()


def _check_block(index: int, block: PushBlock) -> None:
    if len(block.partitions) != len(block.counts) or not block.counts:
        raise InvalidRequest(f"block {index} needs as many counts as partitions, and at least one")


def _expiries(index: int, spans: Sequence[float | None], columns: Columns) -> list[datetime | timedelta | None]:
    if len(spans) != len(columns):
        raise InvalidRequest(f"block {index} has {len(columns)} messages, and expireSeconds {len(spans)} values")
    times = columns.expires_at or [None] * len(columns)
    if any([span is not None and time is not None for span, time in zip(spans, times, strict=True)]):
        raise InvalidRequest(f"block {index}: a message has a time at which it expires or expireSeconds, and not both")
    return [time if span is None else timedelta(seconds=span) for span, time in zip(spans, times, strict=True)]


def _check_payloads(index: int, columns: Columns, layout: bytes) -> None:
    try:
        if columns.encodings is None:
            lengths, start, end = column_lengths(layout, HEADER_BYTES, len(columns))
            check_json_run(layout[start:end], lengths)
        else:
            pairs = zip(columns.payloads, columns.encodings, strict=True)
            check_json_column([payload for payload, encoding in pairs if encoding is None])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidPayload(f"block {index}: a payload is not JSON, and has no encoding: {error}") from error


def packed_receipts(batches: Sequence[Batch], result: PushResult) -> PackedReceipts:
    """The answer to a push of these batches."""
    numbers: dict[UUID, int] = {}
    answer = PackedReceipts(buffered=result.buffered)
    for index, placement in enumerate(result.placements):
        number = numbers.setdefault(placement.segment, len(numbers))
        answer.placements.append((placement.partition_id, placement.first_seq, number, placement.ordinal))
        if placement.duplicates:
            answer.duplicates += [(index, p, *d) for p, d in placement.duplicates.items()]
        if placement.appointments is not None:
            waiting = [(one.schedule_id, timestamp(one.due_at), one.duplicate) for one in placement.appointments]
            answer.scheduled.append((index, waiting))
    answer.segments = [str(segment) for segment in numbers]
    partitions = [batch.partition for batch in result.batches]
    if partitions != [batch.partition for batch in batches]:
        answer.partitions = partitions
    answer.occupancy = {queue: (one.depth, one.remaining) for queue, one in result.occupancy.items()}
    return answer


def read_receipts(body: bytes, batches: Sequence[Batch], order: Order | None) -> PushResult:
    """The receipts of a push of these batches, in a given order. Raises DecodeError, ValueError."""
    answer = _receipts.decode(body)
    if answer.partitions is not None:
        chosen = zip(batches, answer.partitions, strict=True)
        batches = [Batch(batch.queue, partition, batch.columns, batch.schedule) for batch, partition in chosen]
    segments = [UUID(segment) for segment in answer.segments]
    duplicates: dict[int, dict[int, tuple[int, str]]] = {}
    for index, position, seq, identity in answer.duplicates:
        duplicates.setdefault(index, {})[position] = (seq, identity)
    waiting = {index: [_appointment(*one) for one in members] for index, members in answer.scheduled}
    placements = [
        Placement(
            partition_id,
            first_seq,
            segments[number],
            ordinal,
            duplicates.get(index),
            waiting.get(index),
            answer.buffered,
        )
        for index, (partition_id, first_seq, number, ordinal) in enumerate(answer.placements)
    ]
    occupancy = {queue: Occupancy(*one) for queue, one in answer.occupancy.items()}
    return PushResult(batches, placements, occupancy=occupancy, order=order)


def _appointment(schedule_id: int, due_at: str, duplicate: bool) -> Appointment:
    return Appointment(schedule_id, datetime.fromisoformat(due_at), duplicate)


# --- Pop ------------------------------------------------------------------------------------------------------------


def write_popped(popped: Popped) -> bytes:
    """The body of the answer to a pop that found messages."""
    queues: dict[str, int] = {}
    segments: dict[UUID, tuple[int, str]] = {}
    runs = []
    for run in popped.runs:
        queue = queues.setdefault(run.queue, len(queues))
        if run.segment not in segments:
            segments[run.segment] = (len(segments), timestamp(run.created_at))
        segment, _ = segments[run.segment]
        place = (run.partition_id, run.first_seq, len(run), segment, run.ordinal)
        runs.append((queue, run.partition, *place, *astuple(run.delivery)))
    blocks = _blocks_of([run.columns for run in popped.runs])
    head = _PopHead(
        lease_id=popped.lease_id,
        consumer_group=popped.group,
        expires_at=timestamp_or_none(popped.expires_at),
        mode=popped.mode,
        queues=list(queues),
        segments=[(str(uuid), stored_at) for uuid, (_, stored_at) in segments.items()],
        runs=runs,
        blocks=list(map(len, blocks)),
    )
    return _body(head, blocks)


def _blocks_of(parts: Sequence[Columns]) -> list[bytes]:
    """Blocks with these messages: as they are stored, where whole segments were popped."""
    columns = join_columns(parts)
    block = block_of(columns)
    return [encode(columns)] if block is None else frames_of(block.body)


def read_popped(body: bytes) -> Popped:
    """The messages in the answer to a pop. Raises InvalidRequest if it is not such an answer."""
    head, start = _head(body, _pop_head, None)
    if start + sum(head.blocks) != len(body):
        raise InvalidRequest(f"the blocks have {len(body) - start} bytes, and the head counts {sum(head.blocks)}")
    with _ReadingBlock():
        columns = join_columns([_decoded(body[a:b]) for a, b in pairwise(accumulate(head.blocks, initial=start))])
    segments = [(UUID(uuid), datetime.fromisoformat(stored_at)) for uuid, stored_at in head.segments]
    popped = Popped(head.consumer_group, lease_id=head.lease_id, mode=head.mode)
    popped.expires_at = None if head.expires_at is None else datetime.fromisoformat(head.expires_at)
    position = 0
    for queue, partition, partition_id, first_seq, count, segment, ordinal, *delivery in head.runs:
        uuid, created_at = segments[segment]
        part = columns.slice(position, position + count)
        place = (head.queues[queue], partition, partition_id, first_seq)
        popped.runs.append(Run(*place, uuid, ordinal, created_at, part, DeliveryFields(*delivery)))
        position += count
    return popped


def _decoded(block: bytes) -> Columns:
    return decode(block if _is_plain(block) else decompress(block))


# --- Both -----------------------------------------------------------------------------------------------------------


def _body(head: Any, blocks: Sequence[bytes]) -> bytes:
    encoded = msgspec.json.encode(head)
    return b"".join([_START.pack(PACKED_MAGIC, len(encoded)), encoded, *blocks])


def _head(body: bytes, decoder: msgspec.json.Decoder[T], items_max: int | None) -> tuple[T, int]:
    """The head, and the offset of the first block."""
    if len(body) < _START.size or not body.startswith(PACKED_MAGIC):
        raise InvalidRequest("the body does not begin as a packed one")
    _, size = _START.unpack_from(body)
    start = _START.size + size
    if not 0 <= size <= len(body) - _START.size:
        raise InvalidRequest(f"the head has {len(body) - _START.size} bytes at most, not {size}")
    encoded = body[_START.size : start]
    if items_max is not None and encoded.count(b",") > items_max:
        raise TooManyItems(f"the head has more than {items_max} values (body_items_max)")
    try:
        return decoder.decode(encoded), start
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the head does not fit: {error}") from None


def _is_plain(block: bytes) -> bool:
    return block.startswith(LAYOUT_MAGIC)


class _ReadingBlock:
    """Reports an error in a block as an error of the request."""

    def __init__(self, index: int | None = None) -> None:
        self._block = "a block" if index is None else f"block {index}"

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, CorruptSegment):
            raise InvalidRequest(f"{self._block} cannot be read: {error.message}") from None
