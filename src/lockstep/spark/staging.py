"""Rows on their way to the stage: gathered by queue, grouped by partition, and packed into parts.

A part becomes one segment. It is laid out from the buffers of the Arrow arrays, column by column, so that a row costs
nothing but its bytes. The rows of a partition keep the order in which they came.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.core.codec import Buffer, Codec, assemble, seal
from lockstep.core.ids import SEGMENT_MESSAGES_MAX
from lockstep.core.names import DEFAULT_PARTITION
from lockstep.storage.postgres.pushing import Encryption

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

GATHERED_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes that a task holds for all queues together before it packs the largest."""

_UUID_LENGTH = 36
_TEXT_COLUMNS = ("kind", "reference", "encoding", "headers", "producer_sub")


@dataclass(frozen=True, slots=True)
class QueueForm:
    """How a queue stores its messages."""

    compression: str = "zstd"
    encryption: bool = False
    partitions: int = 0
    """Of a balanced queue: how many numbered partitions it has."""


@dataclass(slots=True)
class Entries:
    """Messages that have a value of some kind, by run and offset in it, as the procedure takes them."""

    values: list[str]
    runs: list[int]
    offsets: list[int]


@dataclass(slots=True)
class Part:
    """Messages of one queue, ready to be staged."""

    queue: str
    codec: int
    partitions: list[str]
    counts: list[int]
    body: bytes | None = None
    plain: dict[str, list[Any]] = field(default_factory=dict)
    """By column, where the queue wants its messages readable in SQL."""
    dedup_uuids: Entries | None = None
    dedup_texts: Entries | None = None
    traces: Entries | None = None

    def __len__(self) -> int:
        return sum(self.counts)


class Staging:
    """Gathers the rows of a task until there are enough of a queue for a part."""

    def __init__(
        self, *, queue: str | None, bytes_max: int, encryption: Encryption, form_of: Callable[[str], QueueForm]
    ) -> None:
        self._queue = queue
        self._bytes_max = bytes_max
        self._encryption = encryption
        self._form_of = form_of
        self._gathered: dict[str, _Gathered] = {}

    def add(self, table: pa.Table) -> Iterator[Part]:
        """Take checked rows; gives the parts that they complete."""
        for queue, rows in self._by_queue(table):
            gathered = self._gathered.setdefault(queue, _Gathered())
            while rows.num_rows:
                fitting = gathered.fitting(rows, self._bytes_max)
                if fitting:
                    gathered.add(rows.slice(0, fitting))
                    rows = rows.slice(fitting)
                else:
                    yield self._pack(queue)
                    gathered = self._gathered.setdefault(queue, _Gathered())
        while sum(gathered.bytes for gathered in self._gathered.values()) > GATHERED_BYTES_MAX:
            yield self._pack(max(self._gathered, key=lambda queue: self._gathered[queue].bytes))

    def finish(self) -> Iterator[Part]:
        """The parts of what is left."""
        for queue in list(self._gathered):
            yield self._pack(queue)

    def _by_queue(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if self._queue is not None:
            if table.num_rows:
                yield self._queue, table
            return
        queues = table.column("queue")
        rest = table.drop_columns(["queue"])
        for queue in queues.unique().to_pylist():
            yield queue, rest.filter(pc.equal(queues, queue))

    def _pack(self, queue: str) -> Part:
        gathered = self._gathered.pop(queue)
        form = self._form_of(queue)
        key = self._encryption.key_for(queue) if form.encryption else None
        return pack(queue, pa.concat_tables(gathered.tables, promote_options="default"), form=form, key=key)


@dataclass(slots=True)
class _Gathered:
    tables: list[pa.Table] = field(default_factory=list)
    bytes: int = 0
    messages: int = 0

    def fitting(self, rows: pa.Table, bytes_max: int) -> int:
        """How many of the rows, from the first, still fit; one that is too large alone fits alone."""
        room = min(SEGMENT_MESSAGES_MAX - self.messages, rows.num_rows)
        sizes = np.cumsum(pc.binary_length(rows.column("payload").slice(0, room)).to_numpy(), dtype=np.int64)
        fitting = int(np.searchsorted(sizes, bytes_max - self.bytes, side="right"))
        return fitting or (0 if self.messages else min(room, 1))

    def add(self, rows: pa.Table) -> None:
        self.tables.append(rows)
        self.bytes += rows.nbytes
        self.messages += rows.num_rows


def pack(queue: str, table: pa.Table, *, form: QueueForm, key: bytes | None) -> Part:
    """The rows as a part: grouped by partition, without those that repeat a transaction id."""
    lanes = _Lanes.of(table, form)
    if "transaction_id" in table.column_names:
        kept = _without_repeats(lanes.indexes, table.column("transaction_id"))
        if kept is not None:
            lanes, table = replace(lanes, indexes=lanes.indexes[kept]), table.take(pa.array(kept))
    if len(lanes.names) > 1 and np.any(np.diff(lanes.indexes) < 0):
        order = np.argsort(lanes.indexes, kind="stable")
        lanes, table = replace(lanes, indexes=lanes.indexes[order]), table.take(pa.array(order))
    return _part(queue, lanes, table.combine_chunks(), form, key)


def _part(queue: str, lanes: _Lanes, table: pa.Table, form: QueueForm, key: bytes | None) -> Part:
    arrays = {name: _one_chunk(table.column(name)) for name in table.column_names if name != "partition"}
    arrays = {name: array for name, array in arrays.items() if array.null_count < len(array)}
    part = Part(queue, Codec.PLAIN.value, lanes.names, lanes.counts())
    ids = arrays.get("transaction_id")
    is_uuid = None if ids is None else _canonical(ids)
    if ids is not None and is_uuid is not None:
        part.dedup_uuids = lanes.entries(ids, is_uuid)
        part.dedup_texts = lanes.entries(ids, ~is_uuid & _is_there(ids))
    if "trace_id" in arrays:
        part.traces = lanes.entries(arrays["trace_id"], _is_there(arrays["trace_id"]))
    if key is None and form.compression == "none":
        part.plain = {name: array.to_pylist() for name, array in arrays.items()}
    else:
        part.codec = (Codec.PACKED if key is None else Codec.PACKED | Codec.ENCRYPTED).value
        part.body = seal(_layout(arrays, is_uuid), key=key)
    return part


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Which partition each row is for."""

    names: list[str]
    indexes: Ints

    @classmethod
    def of(cls, table: pa.Table, form: QueueForm) -> _Lanes:
        default = str(random.randrange(form.partitions)) if form.partitions else DEFAULT_PARTITION
        if "partition" not in table.column_names:
            return cls([default], np.zeros(table.num_rows, np.int64))
        encoded = table.column("partition").combine_chunks().dictionary_encode()
        names = encoded.dictionary.to_pylist()
        indexes = encoded.indices.to_numpy().astype(np.int64)
        if form.partitions and DEFAULT_PARTITION in names:
            # A balanced queue gives rows without a partition one of its own, which may be there by name, too.
            renamed = [default if name == DEFAULT_PARTITION else name for name in names]
            names = list(dict.fromkeys(renamed))
            indexes = np.array([names.index(name) for name in renamed], np.int64)[indexes]
        return cls(names, indexes)

    def counts(self) -> list[int]:
        return [int(count) for count in np.bincount(self.indexes, minlength=len(self.names))]

    def entries(self, array: pa.Array, chosen: npt.NDArray[np.bool_]) -> Entries | None:
        """The chosen rows, which are grouped, with their values."""
        if not chosen.any():
            return None
        counts = np.bincount(self.indexes, minlength=len(self.names))
        starts = np.cumsum(counts) - counts
        offsets = np.arange(len(self.indexes)) - starts[self.indexes]
        values = array.filter(pa.array(chosen)).to_pylist()
        return Entries(values, (self.indexes[chosen] + 1).tolist(), offsets[chosen].tolist())


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _is_there(array: pa.Array) -> npt.NDArray[np.bool_]:
    there: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return there


def _without_repeats(indexes: Ints, ids: pa.ChunkedArray) -> Ints | None:
    """The rows without those whose transaction id came before in their partition; None if there are none such."""
    seen: set[tuple[int, str]] = set()
    kept = []
    for row, (lane, one) in enumerate(zip(indexes.tolist(), ids.to_pylist(), strict=True)):
        if one is None or (lane, one) not in seen:
            kept.append(row)
            seen.add((lane, one))
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
    """Lengths, -1 for no value, and all values, which lie in the array one after the other."""
    array = array.cast(pa.binary())
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(offsets).astype("<i4")
    if array.null_count:
        there = _is_there(array)
        if lengths[~there].any():  # what is behind a null is no value
            return _column(pa.array(array.to_pylist(), pa.binary()))
        lengths[~there] = -1
    values = array.buffers()[2]
    return [lengths.tobytes(), memoryview(values)[offsets[0] : offsets[-1]] if values is not None else b""]


def _uuid_column(texts: pa.Array, chosen: npt.NDArray[np.bool_]) -> list[Buffer]:
    """UUIDs in canonical spelling as 16 bytes each; -1 where none is chosen."""
    lengths = np.where(chosen, np.int32(16), np.int32(-1)).astype("<i4")
    nibbles = _nibbles(texts.filter(pa.array(chosen)))
    return [lengths.tobytes(), (nibbles[:, 0::2] << 4 | nibbles[:, 1::2]).tobytes()]


def _canonical(texts: pa.Array) -> npt.NDArray[np.bool_]:
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
    """The characters of texts that have 36 each."""
    texts = pa.concat_arrays([texts])  # so that it begins at the beginning of its buffers
    values = texts.buffers()[2]
    start = int(np.frombuffer(texts.buffers()[1], np.int32)[texts.offset]) if len(texts) else 0
    size = len(texts) * _UUID_LENGTH
    taken = np.frombuffer(values, np.uint8)[start : start + size] if size else np.zeros(0, np.uint8)
    return taken.reshape(-1, _UUID_LENGTH)


def _nibbles(texts: pa.Array) -> Bytes:
    """The hexadecimal digits of texts that have 36 characters each, as numbers; 255 for what is no digit."""
    digits: Bytes = _hex_digits()[_characters(texts)[:, _DIGITS]]
    return digits


@lru_cache(maxsize=1)
def _hex_digits() -> Bytes:
    table = np.full(256, _NO_NIBBLE, np.uint8)
    for number, digit in enumerate(b"0123456789abcdef"):
        table[digit] = number
    return table
