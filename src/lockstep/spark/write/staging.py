"""Rows on their way to the stage: gathered by queue, grouped by partition, and packed into parts.

A part becomes one segment. It is built from the buffers of the Arrow arrays, column by column, so that a row costs
nothing beyond its bytes. The rows of a partition keep their order of arrival, or are ordered by their keys.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.core import layouts
from lockstep.core.codec import Buffer, Codec, assemble
from lockstep.core.ids import SEGMENT_MESSAGES_MAX
from lockstep.core.names import DEFAULT_PARTITION

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

GATHERED_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size that a task holds for all queues together before it packs the largest."""

ORDER_KEY = "order key "
"""Prefix of the columns that order rows."""

_UUID_LENGTH = 36
_TEXT_COLUMNS = ("kind", "reference", "encoding", "headers", "producer_sub")


@dataclass(frozen=True, slots=True)
class QueueForm:
    """How a queue stores its messages."""

    compression: str = "zstd"
    encryption: bool = False
    partitions: int = 0
    """For a balanced queue: the number of numbered partitions."""
    id: int = 0
    """0 while the queue does not exist."""


@dataclass(slots=True)
class PartEntries:
    """Messages that have a value of some kind, by run and offset in it, in the form of the procedure's arguments."""

    values: list[str]
    runs: list[int]
    offsets: list[int]


@dataclass(frozen=True, slots=True)
class SealedPlace:
    """The binding of an encrypted part: its future segment."""

    segment_uuid: UUID
    queue_id: int
    partition_ids: list[int]


@dataclass(slots=True)
class StagedPart:
    """Messages of one queue, ready to be staged."""

    queue: str
    codec: int
    partitions: list[str]
    counts: list[int]
    body: bytes | None = None
    plain: dict[str, list[Any]] = field(default_factory=dict)
    """By column, if the queue keeps its messages readable in SQL."""
    dedup_uuids: PartEntries | None = None
    dedup_texts: PartEntries | None = None
    traces: PartEntries | None = None
    place: SealedPlace | None = None
    """The place that it was encrypted for."""
    order_keys: bytes | None = None
    """The ordering keys, row by row."""
    repeats: int = 0
    """Rows that were left out because they repeat a transaction id."""

    def __len__(self) -> int:
        return sum(self.counts)


class Staging:
    """Gathers the rows of a task until a queue has enough for a part."""

    def __init__(
        self, *, queue: str | None, bytes_max: int, form_of: Callable[[str], QueueForm], is_ordered: bool = False
    ) -> None:
        """`is_ordered`: rows have keys. Then as many rows as allowed are gathered and sorted together."""
        self._queue = queue
        self._bytes_max = bytes_max
        self._gathered_bytes_max = GATHERED_BYTES_MAX if is_ordered else bytes_max
        self._form_of = form_of
        self._gathered: dict[str, _Gathered] = {}

    def add(self, table: pa.Table) -> Iterator[StagedPart]:
        """Take checked rows; yields the parts that they complete."""
        for queue, rows in self._by_queue(table):
            gathered = self._gathered.setdefault(queue, _Gathered())
            while rows.num_rows:
                fitting = gathered.fitting(rows, self._gathered_bytes_max)
                if fitting:
                    gathered.add(rows.slice(0, fitting))
                    rows = rows.slice(fitting)
                else:
                    yield from self._packed(queue)
                    gathered = self._gathered.setdefault(queue, _Gathered())
        while sum(gathered.bytes for gathered in self._gathered.values()) > GATHERED_BYTES_MAX:
            yield from self._packed(max(self._gathered, key=lambda queue: self._gathered[queue].bytes))

    def finish(self) -> Iterator[StagedPart]:
        """The parts of the remaining rows."""
        for queue in list(self._gathered):
            yield from self._packed(queue)

    def _by_queue(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if self._queue is not None:
            if table.num_rows:
                yield self._queue, table
            return
        queues = table.column("queue")
        rest = table.drop_columns(["queue"])
        for queue in queues.unique().to_pylist():
            yield queue, rest.filter(pc.equal(queues, queue))

    def _packed(self, queue: str) -> Iterator[StagedPart]:
        gathered = self._gathered.pop(queue)
        table = pa.concat_tables(gathered.tables, promote_options="default")
        yield from packed(queue, table, form=self._form_of(queue), bytes_max=self._bytes_max)


@dataclass(slots=True)
class _Gathered:
    tables: list[pa.Table] = field(default_factory=list)
    bytes: int = 0
    messages: int = 0

    def fitting(self, rows: pa.Table, bytes_max: int) -> int:
        """How many of the first rows still fit; a single row that is too large fits alone."""
        room = min(SEGMENT_MESSAGES_MAX - self.messages, rows.num_rows)
        sizes = np.cumsum(pc.binary_length(rows.column("payload").slice(0, room)).to_numpy(), dtype=np.int64)
        fitting = int(np.searchsorted(sizes, bytes_max - self.bytes, side="right"))
        return fitting or (0 if self.messages else min(room, 1))

    def add(self, rows: pa.Table) -> None:
        self.tables.append(rows)
        self.bytes += rows.nbytes
        self.messages += rows.num_rows


def packed(queue: str, table: pa.Table, *, form: QueueForm, bytes_max: int) -> Iterator[StagedPart]:
    """The rows as a part. Rows with keys are sorted first, and may be too many for one part."""
    if not _key_names(table):
        yield pack(queue, table, form=form)
        return
    partitions = _RowPartitions.of(table, form)
    table = table.take(pa.array(partitions.ordered_by(table)))
    while table.num_rows:
        fitting = _Gathered().fitting(table, bytes_max)
        yield pack(queue, table.slice(0, fitting), form=form)
        table = table.slice(fitting)


def pack(queue: str, table: pa.Table, *, form: QueueForm) -> StagedPart:
    """The rows as an unencrypted part: grouped by partition, without rows that repeat a transaction id."""
    partitions = _RowPartitions.of(table, form)
    count = table.num_rows
    if "transaction_id" in table.column_names:
        kept = _without_repeats(partitions.indexes, table.column("transaction_id"))
        if kept is not None:
            partitions, table = replace(partitions, indexes=partitions.indexes[kept]), table.take(pa.array(kept))
    repeats = count - table.num_rows
    if len(partitions.names) > 1 and np.any(np.diff(partitions.indexes) < 0):
        order = np.argsort(partitions.indexes, kind="stable")
        partitions, table = replace(partitions, indexes=partitions.indexes[order]), table.take(pa.array(order))
    part = _part(queue, partitions, table.combine_chunks(), form)
    part.repeats = repeats
    return part


def _key_names(table: pa.Table) -> list[str]:
    return [name for name in table.column_names if name.startswith(ORDER_KEY)]


def _part(queue: str, partitions: _RowPartitions, table: pa.Table, form: QueueForm) -> StagedPart:
    keys = _key_names(table)
    arrays = {name: _one_chunk(table.column(name)) for name in table.column_names if name not in ("partition", *keys)}
    arrays = {name: array for name, array in arrays.items() if array.null_count < len(array)}
    part = StagedPart(queue, Codec.PLAIN.value, partitions.names, partitions.counts())
    if keys:
        part.order_keys = np.column_stack([table.column(name).to_numpy() for name in keys]).astype("<i8").tobytes()
    ids = arrays.get("transaction_id")
    is_uuid = None if ids is None else canonical_uuids(ids)
    if ids is not None and is_uuid is not None:
        part.dedup_uuids = partitions.entries(ids, is_uuid)
        part.dedup_texts = partitions.entries(ids, ~is_uuid & _is_there(ids))
    if "trace_id" in arrays:
        part.traces = partitions.entries(arrays["trace_id"], _is_there(arrays["trace_id"]))
    if not form.encryption and form.compression == "none":
        part.plain = {name: array.to_pylist() for name, array in arrays.items()}
    else:
        part.codec = Codec.PACKED.value
        part.body = layouts.pack(_layout(arrays, is_uuid))
    return part


@dataclass(frozen=True, slots=True)
class _RowPartitions:
    """The partition of each row."""

    names: list[str]
    indexes: Ints

    @classmethod
    def of(cls, table: pa.Table, form: QueueForm) -> _RowPartitions:
        default = str(random.randrange(form.partitions)) if form.partitions else DEFAULT_PARTITION
        if "partition" not in table.column_names:
            return cls([default], np.zeros(table.num_rows, np.int64))
        encoded = table.column("partition").combine_chunks().dictionary_encode()
        names = encoded.dictionary.to_pylist()
        indexes = encoded.indices.to_numpy().astype(np.int64)
        if form.partitions and DEFAULT_PARTITION in names:
            # A balanced queue assigns a partition to rows without one; that partition may also occur by name.
            renamed = [default if name == DEFAULT_PARTITION else name for name in names]
            names = list(dict.fromkeys(renamed))
            indexes = np.array([names.index(name) for name in renamed], np.int64)[indexes]
        return cls(names, indexes)

    def ordered_by(self, table: pa.Table) -> Ints:
        """The rows by partition, and within it by their keys; the sort is stable."""
        keys = [table.column(name).to_numpy() for name in _key_names(table)]
        order: Ints = np.lexsort((*reversed(keys), self.indexes))
        return order

    def counts(self) -> list[int]:
        return [int(count) for count in np.bincount(self.indexes, minlength=len(self.names))]

    def entries(self, array: pa.Array, chosen: npt.NDArray[np.bool_]) -> PartEntries | None:
        """The selected, grouped rows with their values."""
        if not chosen.any():
            return None
        counts = np.bincount(self.indexes, minlength=len(self.names))
        starts = np.cumsum(counts) - counts
        offsets = np.arange(len(self.indexes)) - starts[self.indexes]
        values = array.filter(pa.array(chosen)).to_pylist()
        return PartEntries(values, (self.indexes[chosen] + 1).tolist(), offsets[chosen].tolist())


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _is_there(array: pa.Array) -> npt.NDArray[np.bool_]:
    there: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return there


def _without_repeats(indexes: Ints, ids: pa.ChunkedArray) -> Ints | None:
    """The rows without those whose transaction id occurred before in their partition; None if there are none."""
    seen: set[tuple[int, str]] = set()
    kept = []
    for row, (partition, one) in enumerate(zip(indexes.tolist(), ids.to_pylist(), strict=True)):
        if one is None or (partition, one) not in seen:
            kept.append(row)
            seen.add((partition, one))
    return None if len(kept) == len(indexes) else np.array(kept, np.int64)


def _layout(arrays: dict[str, pa.Array], is_uuid: npt.NDArray[np.bool_] | None) -> bytes:
    """The packed layout (core/codec.py): columns in the order of the mask's bits."""
    ids, traces = arrays.get("transaction_id"), arrays.get("trace_id")
    stored: list[list[Buffer] | None] = [_column(arrays["payload"]), None, None, None]
    if ids is not None and is_uuid is not None:
        is_text = ~is_uuid & _is_there(ids)
        stored[1] = _uuid_column(ids, is_uuid) if is_uuid.any() else None
        stored[2] = _column(pc.if_else(pa.array(is_text), ids, None)) if is_text.any() else None
    if traces is not None:
        stored[3] = _uuid_column(traces, _is_there(traces))
    stored += [_column(arrays[name]) if name in arrays else None for name in _TEXT_COLUMNS]
    return assemble(len(arrays["payload"]), stored)


def _column(array: pa.Array) -> list[Buffer]:
    """Lengths, -1 for no value, and all values, which are consecutive in the array."""
    array = array.cast(pa.binary())
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(offsets).astype("<i4")
    if array.null_count:
        there = _is_there(array)
        if lengths[~there].any():  # the bytes behind a null are not a value
            return _column(pa.array(array.to_pylist(), pa.binary()))
        lengths[~there] = -1
    values = array.buffers()[2]
    return [lengths.tobytes(), memoryview(values)[offsets[0] : offsets[-1]] if values is not None else b""]


def _uuid_column(texts: pa.Array, chosen: npt.NDArray[np.bool_]) -> list[Buffer]:
    """UUIDs in canonical spelling as 16 bytes each; -1 for rows without one."""
    lengths = np.where(chosen, np.int32(16), np.int32(-1)).astype("<i4")
    return [lengths.tobytes(), uuid_bytes(texts.filter(pa.array(chosen))).tobytes()]


def uuid_bytes(texts: pa.Array) -> Bytes:
    """UUIDs in canonical spelling, 16 bytes a row."""
    nibbles = _nibbles(texts)
    packed_bytes: Bytes = (nibbles[:, 0::2] << 4 | nibbles[:, 1::2]).astype(np.uint8)
    return packed_bytes


def canonical_uuids(texts: pa.Array) -> npt.NDArray[np.bool_]:
    """Which of the texts are UUIDs in canonical spelling."""
    likely = pc.fill_null(pc.equal(pc.binary_length(texts), _UUID_LENGTH), False)
    canonical: npt.NDArray[np.bool_] = likely.to_numpy(zero_copy_only=False).copy()
    if canonical.any():
        candidates = texts.filter(likely)
        dashes = (_characters(candidates)[:, _DASHES] == ord("-")).all(axis=1)
        canonical[canonical] = dashes & (_nibbles(candidates) != _NO_NIBBLE).all(axis=1)
    return canonical


_DASHES = [8, 13, 18, 23]
_DIGITS = [place for place in range(_UUID_LENGTH) if place not in _DASHES]
_NO_NIBBLE = 255


def _characters(texts: pa.Array) -> Bytes:
    """The characters of texts of 36 characters each."""
    texts = pa.concat_arrays([texts])  # so that it starts at the beginning of its buffers
    values = texts.buffers()[2]
    start = int(np.frombuffer(texts.buffers()[1], np.int32)[texts.offset]) if len(texts) else 0
    size = len(texts) * _UUID_LENGTH
    taken = np.frombuffer(values, np.uint8)[start : start + size] if size else np.zeros(0, np.uint8)
    return taken.reshape(-1, _UUID_LENGTH)


def _nibbles(texts: pa.Array) -> Bytes:
    """The hexadecimal digits of texts of 36 characters each, as numbers; 255 for other characters."""
    digits: Bytes = _hex_digits()[_characters(texts)[:, _DIGITS]]
    return digits


@lru_cache(maxsize=1)
def _hex_digits() -> Bytes:
    table = np.full(256, _NO_NIBBLE, np.uint8)
    for number, digit in enumerate(b"0123456789abcdef"):
        table[digit] = number
    return table
