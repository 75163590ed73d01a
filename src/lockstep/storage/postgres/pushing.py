"""The conversation of a push: resolve names, pack a segment per queue, call the procedure, look at what it says.

Lanes are what the call has for one partition. A push is tried again, within the conversation, when a name was out
of date, and without those of its messages that turned out to be duplicates; nothing was written then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate, chain
from typing import Any
from uuid import UUID

from lockstep.core.codec import Codec, encode, seal
from lockstep.core.ids import SEGMENT_MESSAGES_MAX, all_canonical_uuids, is_canonical_uuid, message_id
from lockstep.core.records import COLUMN_NAMES, Batch, Columns, Occupancy, Placement, PushResult
from lockstep.errors import QueueFull, TooLarge, Unavailable
from lockstep.storage.postgres.cache import NameCache, QueueNames, Segment
from lockstep.storage.postgres.calls import Call, Conversation

_NO_SEGMENT = UUID(int=0)

PLAIN_BYTES_MAX = 1024
"""Up to here a segment's messages go into SQL arrays: packing would not make them smaller."""

_STALE_ATTEMPTS_MAX = 20

_RESOLVE = "select * from lockstep.resolve($1::text, $2::text[], $3::timestamptz)"
_PUSH = (
    "select * from lockstep.push_segments($1::int[], $2::int[], $3::smallint[], $4::bytea[], $5::int[], "
    "$6::text::bigint[], $7::text::int[], $8::text::int[], "
    "$9::text::uuid[], $10::text::int[], $11::text::int[], "
    "$12::text[], $13::text::int[], $14::text::int[], "
    "$15::text::uuid[], $16::text::int[], $17::text::int[], "
    "$18::bytea[], $19::text[], $20::uuid[], $21::text[], $22::text[], $23::text[], $24::bytea[], $25::text[], "
    "$26::timestamptz)"
)

_OCCUPANCY = (
    "select q.name, lockstep.pending(q.id), q.max_size from lockstep.queue q "
    "where q.name = any ($1::text[]) and q.max_size > 0"
)


@dataclass(slots=True)
class Lane:
    """The messages of the call for one partition, in order."""

    queue: str
    partition: str
    columns: Columns
    batches: list[int]
    partition_id: int = 0
    first_seq: int = 0
    segment: int = 0
    """Which of the call's segments its messages are in."""
    ordinal: int = 0
    duplicates: dict[int, tuple[int, str]] | None = None
    """By position: the first message with that transaction id, which is stored already."""
    repeats: dict[int, int] | None = None
    """By position: the earlier position in this lane that has the same transaction id."""
    kept: list[int] | None = None
    """The positions that are pushed; None is all of them."""

    def pushed(self) -> Columns:
        return self.columns if self.kept is None else self.columns.take(self.kept)

    def drop(self) -> None:
        dropped = (self.duplicates or {}).keys() | (self.repeats or {}).keys()
        self.kept = [i for i in range(len(self.columns)) if i not in dropped]


@dataclass(slots=True)
class Pushed:
    """What a push did: its receipts, and its segments by id, for the cache once they are committed."""

    result: PushResult
    segments: list[tuple[int, Segment]]


def push(batches: Sequence[Batch], names: NameCache, *, key: bytes | None, at: datetime | None) -> Conversation[Pushed]:
    """Push the batches. `key` encrypts what goes to encrypted queues; `at` is the time where it is set."""
    lanes = _lanes(batches)
    for lane in lanes:
        if lane.columns.transaction_ids is not None:
            _find_repeats(lane)
    if sum(len(lane.columns) for lane in lanes) > SEGMENT_MESSAGES_MAX:
        raise TooLarge(f"one call may push at most {SEGMENT_MESSAGES_MAX} messages")
    queues = _by_queue(lanes)
    for _ in range(_STALE_ATTEMPTS_MAX):
        known = yield from _resolve(queues, names, at)
        attempt = _Attempt.of(queues, known, key)
        if not attempt.lanes:
            return Pushed(_result(batches, lanes, [], (yield from _occupancy(queues, {}))), [])
        row = (yield Call("push", _PUSH, attempt.arguments(at)))[0]
        match row[0]:
            case "ok":
                occupancy = yield from _occupancy(queues, attempt.occupancy(row))
                return attempt.applied(batches, lanes, row, occupancy)
            case "duplicates":
                attempt.note_duplicates(row)
            case "full":
                raise attempt.full(row)
            case _:
                for queue in queues:
                    names.forget(queue)
    raise Unavailable("the queue's names kept changing during the push")


def _occupancy(queues: Iterable[str], told: dict[str, Occupancy | None]) -> Conversation[dict[str, Occupancy]]:
    """How full the queues are; those of which the push did not tell, because it had only duplicates, are asked."""
    known = {queue: occupancy for queue, occupancy in told.items() if occupancy is not None}
    untold = [queue for queue in queues if queue not in told]
    if untold:
        for name, depth, max_size in (yield Call("occupancy", _OCCUPANCY, (untold,))):
            known[name] = Occupancy(depth, max(max_size - depth, 0))
    return known


def _lanes(batches: Sequence[Batch]) -> list[Lane]:
    lanes: dict[tuple[str, str], Lane] = {}
    for index, batch in enumerate(batches):
        key = (batch.queue, batch.partition)
        lane = lanes.get(key)
        if lane is None:
            lanes[key] = Lane(batch.queue, batch.partition, batch.columns, [index])
        else:
            lane.columns = join_columns([lane.columns, batch.columns])
            lane.batches.append(index)
    return list(lanes.values())


def _by_queue(lanes: list[Lane]) -> dict[str, list[Lane]]:
    queues: dict[str, list[Lane]] = {}
    for lane in lanes:
        queues.setdefault(lane.queue, []).append(lane)
    return queues


def join_columns(parts: Sequence[Columns]) -> Columns:
    """The messages of all parts, in order; a column that any of them has is filled up with None."""
    if len(parts) == 1:
        return parts[0]
    joined = Columns(list(chain.from_iterable([part.payloads for part in parts])))
    if all([part.bare() for part in parts]):
        return joined
    for name in COLUMN_NAMES[1:]:
        columns = [getattr(part, name) for part in parts]
        if any(column is not None for column in columns):
            filled = (c if c is not None else [None] * len(p) for c, p in zip(columns, parts, strict=True))
            setattr(joined, name, list(chain.from_iterable(filled)))
    return joined


def _find_repeats(lane: Lane) -> None:
    ids = lane.columns.transaction_ids
    assert ids is not None
    if len(set(ids)) == len(ids):
        return
    first: dict[str, int] = {}
    repeats: dict[int, int] = {}
    for position, transaction_id in enumerate(ids):
        if transaction_id is not None and first.setdefault(transaction_id, position) != position:
            repeats[position] = first[transaction_id]
    if repeats:
        lane.repeats = repeats
        lane.drop()


def all_known(batches: Sequence[Batch], names: NameCache) -> bool:
    """Whether the ids of all batches are remembered, so that a push creates nothing."""
    for batch in batches:
        known = names.get(batch.queue)
        if known is None or batch.partition not in known.partitions:
            return False
    return True


def _resolve(
    queues: dict[str, list[Lane]], names: NameCache, at: datetime | None
) -> Conversation[dict[str, QueueNames]]:
    """The ids of all lanes, from memory or from the database, which creates what is missing."""
    known: dict[str, QueueNames] = {}
    for queue, lanes in queues.items():
        found = names.get(queue)
        missing = (
            [lane.partition for lane in lanes if lane.partition not in found.partitions]
            if found is not None
            else [lane.partition for lane in lanes]
        )
        if missing or found is None:
            row = (yield Call("resolve", _RESOLVE, (queue, missing, at)))[0]
            found = names.put(queue, QueueNames(row[0], row[1], row[2], row[3]))
            names.put_partitions(queue, dict(zip(missing, row[4], strict=True)))
            if not all(lane.partition in found.partitions for lane in lanes):
                # The queue is not the one that was known: what was known of its partitions is gone with it.
                return (yield from _resolve(queues, names, at))
        ids = found.partitions
        for lane in lanes:
            lane.partition_id = ids[lane.partition]
        known[queue] = found
    return known


@dataclass(slots=True)
class _Attempt:
    """One call of the procedure: its segments and the lanes in them, in order."""

    names: list[QueueNames] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)
    codecs: list[int] = field(default_factory=list)
    bodies: list[bytes | None] = field(default_factory=list)
    contents: list[Columns] = field(default_factory=list)
    content_bytes: list[int] = field(default_factory=list)
    run_counts: list[int] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    ordinals: list[int] = field(default_factory=list)
    dedup: _Entries = field(default_factory=lambda: _Entries())
    dedup_texts: _Entries = field(default_factory=lambda: _Entries())
    traces: _Entries = field(default_factory=lambda: _Entries())

    @classmethod
    def of(cls, queues: dict[str, list[Lane]], known: dict[str, QueueNames], key: bytes | None) -> _Attempt:
        attempt = cls()
        for queue, lanes in queues.items():
            wanted = [(lane, columns) for lane in lanes if len(columns := lane.pushed())]
            if wanted:
                attempt._add_segment(queue, known[queue], wanted, key)
        return attempt

    def _add_segment(
        self, queue: str, names: QueueNames, wanted: list[tuple[Lane, Columns]], key: bytes | None
    ) -> None:
        first_run = len(self.lanes) + 1
        counts = [len(columns.payloads) for _, columns in wanted]
        ordinals = list(accumulate(counts, initial=0))
        self.lanes.extend(lane for lane, _ in wanted)
        for (lane, _), ordinal in zip(wanted, ordinals, strict=False):
            lane.segment, lane.ordinal = len(self.queues), ordinal
        content = join_columns([columns for _, columns in wanted])
        self._add_entries(wanted, first_run, content)
        self.queues.append(queue)
        self.names.append(names)
        self.run_counts.append(len(wanted))
        self.counts += counts
        self.ordinals += ordinals[:-1]
        self.contents.append(content)
        self._add_body(names, content, key)

    def _add_body(self, names: QueueNames, content: Columns, key: bytes | None) -> None:
        encrypted = names.encryption and key is not None
        payload_bytes = sum(map(len, content.payloads))
        if not encrypted and (names.compression == "none" or payload_bytes <= PLAIN_BYTES_MAX):
            self.codecs.append(Codec.PLAIN.value)
            self.bodies.append(None)
            self.content_bytes.append(payload_bytes)
            return
        layout = encode(content)
        self.codecs.append((Codec.PACKED | Codec.ENCRYPTED if encrypted else Codec.PACKED).value)
        self.bodies.append(seal(layout, key=key if encrypted else None))
        self.content_bytes.append(len(layout))

    def _add_entries(self, wanted: list[tuple[Lane, Columns]], first_run: int, content: Columns) -> None:
        """Which messages go to the dedup tables and the trace index."""
        if content.transaction_ids is None and content.trace_ids is None:
            return
        for run, (_, columns) in enumerate(wanted, first_run):
            if columns.transaction_ids is not None:
                self._add_transaction_ids(run, columns.transaction_ids)
            if columns.trace_ids is not None:
                self.traces.add(run, [(i, t) for i, t in enumerate(columns.trace_ids) if t is not None])

    def _add_transaction_ids(self, run: int, ids: list[str | None]) -> None:
        if None not in ids and all_canonical_uuids(ids):  # type: ignore[arg-type]
            self.dedup.add_all(run, ids)  # type: ignore[arg-type]
            return
        given = [(i, t) for i, t in enumerate(ids) if t is not None]
        self.dedup.add(run, [(i, t) for i, t in given if is_canonical_uuid(t)])
        self.dedup_texts.add(run, [(i, t) for i, t in given if not is_canonical_uuid(t)])

    def arguments(self, at: datetime | None) -> list[Any]:
        plain = [content for content, codec in zip(self.contents, self.codecs, strict=True) if codec == Codec.PLAIN]
        columns: Sequence[list[Any] | None] = join_columns(plain).all() if plain else [None] * len(COLUMN_NAMES)
        return [
            [names.id for names in self.names],
            [names.id for names in self.names if names.limited] or None,
            self.codecs,
            self.bodies,
            self.run_counts,
            int_array([lane.partition_id for lane in self.lanes]),
            int_array(self.counts),
            int_array(self.ordinals),
            *self.dedup.uuid_arguments(),
            *self.dedup_texts.text_arguments(),
            *self.traces.uuid_arguments(),
            *columns,
            at,
        ]

    def note_duplicates(self, row: Any) -> None:
        """The procedure found transaction ids that are stored already: leave those messages out."""
        uuids, texts, seqs, ids = row[5] or [], row[6] or [], row[7], row[8]
        entries = [self.dedup.at(i) for i in uuids] + [self.dedup_texts.at(i) for i in texts]
        found: dict[int, list[tuple[int, int, str]]] = {}
        for (run, offset), seq, identity in zip(entries, seqs, ids, strict=True):
            found.setdefault(run, []).append((offset, seq, str(identity)))
        for run, duplicates in found.items():
            lane = self.lanes[run - 1]
            positions = lane.kept
            lane.duplicates = lane.duplicates or {}
            for offset, seq, identity in duplicates:
                lane.duplicates[offset if positions is None else positions[offset]] = (seq, identity)
            lane.drop()

    def full(self, row: Any) -> QueueFull:
        new = [0] * len(self.queues)
        for lane, count in zip(self.lanes, self.counts, strict=True):
            new[lane.segment] += count
        for queue, count, depth, max_size in zip(self.queues, new, row[9], row[10], strict=True):
            if max_size is not None and depth + count > max_size:
                return QueueFull(
                    f"queue {queue!r} holds {depth} of at most {max_size} pending messages; {count} more do not fit",
                    queue=queue,
                    depth=depth,
                    max_size=max_size,
                )
        return QueueFull()

    def occupancy(self, row: Any) -> dict[str, Occupancy | None]:
        """How full each queue of the call is now; None for a queue without a max_size."""
        if row[9] is None:
            return dict.fromkeys(self.queues)
        return {
            queue: None if max_size is None else Occupancy(depth, max_size - depth)
            for queue, depth, max_size in zip(self.queues, row[9], row[10], strict=True)
        }

    def applied(self, batches: Sequence[Batch], lanes: list[Lane], row: Any, occupancy: dict[str, Occupancy]) -> Pushed:
        created_at, segment_ids, uuids, first_seqs = row[1], row[2], row[3], row[4]
        for lane, first_seq in zip(self.lanes, first_seqs, strict=True):
            lane.first_seq = first_seq
        segments = [
            (segment_id, Segment(uuid, created_at, content, size))
            for segment_id, uuid, content, size in zip(
                segment_ids, uuids, self.contents, self.content_bytes, strict=True
            )
        ]
        return Pushed(_result(batches, lanes, uuids, occupancy), segments)


@dataclass(slots=True)
class _Entries:
    """Messages named by run and offset, with a value each, as the procedure takes them."""

    values: list[str] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def add(self, run: int, found: list[tuple[int, str]]) -> None:
        self.offsets += [offset for offset, _ in found]
        self.values += [value for _, value in found]
        self.runs += [run] * len(found)

    def add_all(self, run: int, values: list[str]) -> None:
        self.offsets += range(len(values))
        self.values += values
        self.runs += [run] * len(values)

    def at(self, index: int) -> tuple[int, int]:
        """Run and offset of the entry that SQL calls `index`, which counts from 1."""
        return self.runs[index - 1], self.offsets[index - 1]

    def uuid_arguments(self) -> tuple[str | None, str | None, str | None]:
        if not self.values:
            return None, None, None
        return f"{{{','.join(self.values)}}}", int_array(self.runs), int_array(self.offsets)

    def text_arguments(self) -> tuple[list[str] | None, str | None, str | None]:
        return (self.values, int_array(self.runs), int_array(self.offsets)) if self.values else (None, None, None)


def int_array(numbers: Iterable[int]) -> str:
    """An array as PostgreSQL spells it. Drivers encode arrays element by element, at five times the price."""
    return f"{{{','.join(map(str, numbers))}}}"


def _result(
    batches: Sequence[Batch],
    lanes: list[Lane],
    uuids: Sequence[Any],
    occupancy: dict[str, Occupancy],
) -> PushResult:
    placements: list[Any] = [None] * len(batches)
    for lane in lanes:
        uuid = uuids[lane.segment] if uuids else _NO_SEGMENT
        if lane.kept is not None:
            _place_with_duplicates(batches, lane, uuid, placements)
            continue
        offset = 0
        for index in lane.batches:
            placements[index] = Placement(lane.partition_id, lane.first_seq + offset, uuid, lane.ordinal + offset)
            offset += len(batches[index].columns.payloads)
    return PushResult(batches, placements, occupancy=occupancy)


def _place_with_duplicates(batches: Sequence[Batch], lane: Lane, uuid: Any, placements: list[Any]) -> None:
    earlier, repeats = lane.duplicates or {}, lane.repeats or {}
    stored = {
        position: (lane.first_seq + i, message_id(uuid, lane.ordinal + i))
        for i, position in enumerate(lane.kept or ())
        if repeats
    }
    start = new_before = 0
    for index in lane.batches:
        stop = start + len(batches[index].columns.payloads)
        duplicates = {}
        for position in range(start, stop):
            if position in earlier:
                duplicates[position - start] = earlier[position]
            elif position in repeats:
                first = repeats[position]
                duplicates[position - start] = earlier.get(first) or stored[first]
        placements[index] = Placement(
            lane.partition_id,
            lane.first_seq + new_before,
            uuid,
            lane.ordinal + new_before,
            duplicates or None,
        )
        new_before += stop - start - len(duplicates)
        start = stop


def resolve(batches: Sequence[Batch], names: NameCache, *, at: datetime | None) -> Conversation[None]:
    """Create the queues and partitions of the batches, before a transaction that pushes to them begins."""
    yield from _resolve(_by_queue(_lanes(batches)), names, at)
