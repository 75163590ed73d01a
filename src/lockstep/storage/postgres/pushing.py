"""The conversation of a push: resolve names, pack a segment per queue, call the procedure, look at what it says.

A *lane* is what the call has for one partition. Lanes are kept as columns, too: a push over a thousand partitions has
a thousand of them, each with one message. A push is tried again, within the conversation, when a name was out of
date, and without those of its messages that turned out to be duplicates; nothing was written then.
"""

from __future__ import annotations

from base64 import b64decode
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import accumulate, chain, repeat
from typing import Any, overload
from uuid import UUID

from lockstep.config import Config
from lockstep.core.codec import Codec, encode, seal
from lockstep.core.ids import SEGMENT_MESSAGES_MAX, all_canonical_uuids, is_canonical_uuid, message_id
from lockstep.core.messages import COLUMN_NAMES, Batch, Columns, Occupancy, Placement, PushResult
from lockstep.errors import EncryptionUnavailable, OperationPending, QueueFull, TooLarge, Unavailable
from lockstep.storage.postgres.cache import NameCache, QueueNames, Segment
from lockstep.storage.postgres.calls import Call, Conversation, Work

PLAIN_BYTES_MAX = 1024
"""Up to here a segment's messages go into SQL arrays: packing would not make them smaller."""

SEAL_APART_BYTES_MIN = 1024 * 1024
"""From here a body is compressed in a thread of its own, so that others need not wait. Below, changing threads costs
more than it gains: at 256 KiB a push was a fifth slower."""

_NO_SEGMENT = UUID(int=0)
_STALE_ATTEMPTS_MAX = 20

_RESOLVE = "select * from lockstep.resolve($1::text, $2::text[], $3::timestamptz)"
_PUSH = (
    "select * from lockstep.push_segments($1::text::int[], $2::text::int[], $3::text::smallint[], $4::bytea[], "
    "$5::text::int[], $6::text::bigint[], $7::text::int[], $8::text::int[], "
    "$9::text::uuid[], $10::text::int[], $11::text::int[], "
    "$12::text[], $13::text::int[], $14::text::int[], "
    "$15::text::uuid[], $16::text::int[], $17::text::int[], "
    "$18::bytea[], $19::text[], $20::uuid[], $21::text[], $22::text[], $23::text[], $24::bytea[], $25::text[], "
    "$26::boolean, $27::timestamptz, $28::timestamptz[], $29::int, $30::boolean)"
)
_PUSH_RUN = (
    "select * from lockstep.push_run($1::int, $2::bigint, $3::smallint, $4::int, $5::bytea, $6::bytea[], $7::boolean, "
    "$8::timestamptz, $9::int, $10::boolean)"
)
_MARK_EXPIRING = "update lockstep.queue set expiring = true where id = $1 and not expiring"
_OCCUPANCY = (
    "select q.name, lockstep.pending(q.id), q.max_size from lockstep.queue q "
    "where q.name = any ($1::text[]) and q.max_size > 0"
)


@dataclass(frozen=True, slots=True)
class Encryption:
    """How messages of encrypted queues are stored."""

    key: bytes | None = None
    plain_allowed: bool = False
    """Without a key they are stored as they are, instead of being refused."""

    @classmethod
    def of(cls, config: Config) -> Encryption:
        key = b64decode(config.encryption_key) if config.encryption_key else None
        return cls(key, config.encryption_allow_plain)

    def key_for(self, queue: str) -> bytes | None:
        if self.key is None and not self.plain_allowed:
            raise EncryptionUnavailable(
                f"queue {queue!r} is encrypted, but no encryption_key is configured", queue=queue
            )
        return self.key


@dataclass(slots=True)
class Pushed:
    """What a push did: its receipts, and its segments by id, for the cache once they are committed."""

    result: PushResult
    segments: list[tuple[int, Segment]]
    untold: bool = False
    """The store pushed it of its own accord, so that nobody else tells those who wait for it."""


def push(
    batches: Sequence[Batch],
    names: NameCache,
    *,
    encryption: Encryption,
    at: datetime | None,
    lock_seconds: float | None = None,
    overtake: bool = False,
) -> Conversation[Pushed]:
    """Push the batches; `at` is the time where it is set, `lock_seconds` how long a lock is waited for. With `overtake`
    it goes before operations that wait for its partitions, which otherwise make it fail."""
    lanes = _Lanes.of(batches)
    if sum([len(columns.payloads) for columns in lanes.columns]) > SEGMENT_MESSAGES_MAX:
        raise TooLarge(f"one call may push at most {SEGMENT_MESSAGES_MAX} messages")
    for _ in range(_STALE_ATTEMPTS_MAX):
        known = yield from _resolve(lanes, names, at)
        attempt = yield from _attempt(lanes, known, encryption)
        if not attempt.lanes:
            occupancy = yield from _occupancy(lanes.by_queue, {})
            return Pushed(PushResult(batches, _Placements(batches, lanes, attempt), occupancy=occupancy), [])
        row = yield from _call(attempt, at, lock_seconds, overtake)
        match row[0]:
            case "ok":
                occupancy = yield from _occupancy(lanes.by_queue, attempt.occupancy(row))
                placements = _Placements(batches, lanes, attempt, uuids=row[3], first_seqs=row[4])
                return Pushed(PushResult(batches, placements, occupancy=occupancy), attempt.segments(row))
            case "duplicates":
                attempt.note_duplicates(row)
            case "full":
                raise attempt.full(row)
            case "behind":
                raise lanes.pending(row[11])
            case _:
                for queue in lanes.by_queue:
                    names.forget(queue)
    raise Unavailable("the queue's names kept changing during the push")


def _call(attempt: _Attempt, at: datetime | None, lock_seconds: float | None, overtake: bool) -> Conversation[Any]:
    """Call the procedure; the row that it answers with."""
    if not attempt.is_one_run():
        return (yield Call("push", _PUSH, [*attempt.arguments(at, lock_seconds), overtake]))[0]
    status, created_at, segment_id, uuid, first_seq = (
        yield Call("push", _PUSH_RUN, [*attempt.run_arguments(at, lock_seconds), overtake])
    )[0]
    behind = attempt.source.ids
    return status, created_at, [segment_id], [uuid], [first_seq], None, None, None, None, None, None, behind


def resolve(batches: Sequence[Batch], names: NameCache, *, at: datetime | None) -> Conversation[None]:
    """Create the queues and partitions of the batches that are missing."""
    yield from _resolve(_Lanes.of(batches), names, at)


def all_known(batches: Sequence[Batch], names: NameCache) -> bool:
    """Whether the ids of all batches are remembered, so that a push creates nothing."""
    for batch in batches:
        known = names.get(batch.queue)
        if known is None or batch.partition not in known.partitions:
            return False
    return True


@dataclass(slots=True)
class _Dropped:
    """What of a lane is not pushed, because its transaction id was used before."""

    repeats: dict[int, int]
    """By position: the earlier position in the lane that has the same transaction id."""
    kept: list[int]
    """The positions that are pushed."""
    stored: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By position: seq and id of the message with that transaction id that is stored already."""

    def drop(self, found: Iterable[tuple[int, int, str]]) -> None:
        """Drop messages that turned out to be stored already, by their place among those that were kept."""
        for offset, seq, identity in found:
            self.stored[self.kept[offset]] = (seq, identity)
        self.kept = [position for position in self.kept if position not in self.stored]


@dataclass(slots=True)
class _Lanes:
    """What a call has for each partition, in the order in which the partitions first appear."""

    partitions: list[str]
    columns: list[Columns]
    members: list[list[int]] | None
    """By lane: the batches in it. None: lane i is batch i."""
    by_queue: dict[str, list[int]]
    ids: list[int]
    """The partitions' ids, once they are resolved."""
    dropped: dict[int, _Dropped] = field(default_factory=dict)

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> _Lanes:
        members: dict[tuple[str, str], list[int]] | None = None
        firsts: Sequence[Batch] = batches
        if len({(batch.queue, batch.partition) for batch in batches}) < len(batches):
            members = {}
            for index, batch in enumerate(batches):
                members.setdefault((batch.queue, batch.partition), []).append(index)
            firsts = [batches[indexes[0]] for indexes in members.values()]
        by_queue: dict[str, list[int]] = {}
        for lane, batch in enumerate(firsts):
            by_queue.setdefault(batch.queue, []).append(lane)
        lanes = cls(
            partitions=[batch.partition for batch in firsts],
            columns=_columns(batches, members),
            members=None if members is None else list(members.values()),
            by_queue=by_queue,
            ids=[0] * len(firsts),
        )
        lanes._find_repeats()
        return lanes

    def _find_repeats(self) -> None:
        for lane, columns in enumerate(self.columns):
            ids = columns.transaction_ids
            if ids is None or len(set(ids)) == len(ids):
                continue
            first: dict[str, int] = {}
            repeats = {
                position: first[transaction_id]
                for position, transaction_id in enumerate(ids)
                if transaction_id is not None and first.setdefault(transaction_id, position) != position
            }
            if repeats:
                self.dropped[lane] = _Dropped(repeats, [i for i in range(len(ids)) if i not in repeats])

    def pending(self, partition_ids: Iterable[int]) -> OperationPending:
        """The refusal of a push, with the indexes of the batches for whose partitions operations wait."""
        behind = set(partition_ids)
        found = [lane for lane, partition_id in enumerate(self.ids) if partition_id in behind]
        batches = found if self.members is None else [index for lane in found for index in self.members[lane]]
        return OperationPending(batches=sorted(batches))

    def pushed(self, lane: int) -> Columns:
        """What of the lane is pushed."""
        dropped = self.dropped.get(lane)
        return self.columns[lane] if dropped is None else self.columns[lane].take(dropped.kept)


def _columns(batches: Sequence[Batch], members: dict[Any, list[int]] | None) -> list[Columns]:
    if members is None:
        return [batch.columns for batch in batches]
    return [join_columns([batches[index].columns for index in indexes]) for indexes in members.values()]


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


def _resolve(lanes: _Lanes, names: NameCache, at: datetime | None) -> Conversation[dict[str, QueueNames]]:
    """The ids of all lanes, from memory or from the database, which creates what is missing."""
    resolved: dict[str, QueueNames] = {}
    # What is created locks its queue, so then all queues are locked, in order: the push may lock any of them.
    creates = len(lanes.by_queue) > 1 and not _all_known(lanes, names)
    for queue in sorted(lanes.by_queue):
        members = lanes.by_queue[queue]
        wanted = [lanes.partitions[lane] for lane in members]
        known = names.get(queue)
        ids = {} if known is None else known.partitions
        missing = [name for name in wanted if name not in ids]
        if missing or creates:
            row = (yield Call("resolve", _RESOLVE, (queue, missing, at)))[0]
            if known is not None and row[0] != known.id:
                # The queue is not the one that was known: what was known of its partitions is gone with it.
                row, missing, ids = (yield Call("resolve", _RESOLVE, (queue, wanted, at)))[0], wanted, {}
            found = dict(zip(missing, row[4] or (), strict=True))
            ids = {**ids, **found}
            known = names.put(queue, QueueNames(row[0], row[1], row[2], row[3]))
            names.put_partitions(queue, found)
        assert known is not None
        if not known.expiring and any([lanes.columns[lane].expires_at is not None for lane in members]):
            # Once for each queue: its pops look for what expired from now on. Before any partition is locked.
            yield Call("mark_expiring", _MARK_EXPIRING, (known.id,))
            known.expiring = True
        for lane, name in zip(members, wanted, strict=True):
            lanes.ids[lane] = ids[name]
        resolved[queue] = known
    return resolved


def _all_known(lanes: _Lanes, names: NameCache) -> bool:
    for queue, members in lanes.by_queue.items():
        known = names.get(queue)
        if known is None or any([lanes.partitions[lane] not in known.partitions for lane in members]):
            return False
    return True


def _occupancy(queues: Iterable[str], told: dict[str, Occupancy | None]) -> Conversation[dict[str, Occupancy]]:
    """How full the queues are. Those of which the push did not tell, because it had only duplicates, are asked."""
    known = {queue: occupancy for queue, occupancy in told.items() if occupancy is not None}
    untold = [queue for queue in queues if queue not in told]
    if untold:
        for name, depth, max_size in (yield Call("occupancy", _OCCUPANCY, (untold,))):
            known[name] = Occupancy(depth, max(max_size - depth, 0))
    return known


def _attempt(lanes: _Lanes, known: dict[str, QueueNames], encryption: Encryption) -> Conversation[_Attempt]:
    """Pack what is to be pushed: a segment per queue."""
    attempt = _Attempt(lanes, plain_allowed=encryption.plain_allowed)
    for queue, members in lanes.by_queue.items():
        wanted = members
        parts = [lanes.pushed(lane) for lane in members] if lanes.dropped else [lanes.columns[i] for i in members]
        if lanes.dropped:
            wanted = [lane for lane, part in zip(members, parts, strict=True) if len(part)]
            parts = [part for part in parts if len(part)]
        if wanted:
            content = attempt.add_segment(queue, known[queue], wanted, parts)
            key = encryption.key_for(queue) if known[queue].encryption else None
            yield from _pack(attempt, known[queue], content, key)
    return attempt


def _pack(attempt: _Attempt, names: QueueNames, content: Columns, key: bytes | None) -> Conversation[None]:
    content_bytes = sum(map(len, content.payloads))
    body: bytes | None = None
    codec = Codec.PLAIN
    if key is not None or (names.compression != "none" and content_bytes > PLAIN_BYTES_MAX):
        codec = Codec.PACKED if key is None else Codec.PACKED | Codec.ENCRYPTED
        layout = encode(content if content.expires_at is None else replace(content, expires_at=None))
        content_bytes = len(layout)
        sealing = partial(seal, layout, key=key)
        body = (yield Work(sealing)) if content_bytes >= SEAL_APART_BYTES_MIN else sealing()
    attempt.codecs.append(codec.value)
    attempt.bodies.append(body)
    attempt.contents.append((content, content_bytes))


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
    """An array as PostgreSQL spells it: asyncpg looks at every element of a list before it encodes it."""
    return f"{{{','.join(map(str, numbers))}}}"


@dataclass(slots=True)
class _Attempt:
    """One call of the procedure: its segments, one per queue, and the runs in them, in order."""

    source: _Lanes
    plain_allowed: bool
    """Messages of an encrypted queue may be stored as they are."""
    queues: list[str] = field(default_factory=list)
    names: list[QueueNames] = field(default_factory=list)
    codecs: list[int] = field(default_factory=list)
    bodies: list[bytes | None] = field(default_factory=list)
    contents: list[tuple[Columns, int]] = field(default_factory=list)
    """By segment: its messages, and their bytes."""
    run_counts: list[int] = field(default_factory=list)
    lanes: list[int] = field(default_factory=list)
    """By run: its lane."""
    counts: list[int] = field(default_factory=list)
    ordinals: list[int] = field(default_factory=list)
    dedup: _Entries = field(default_factory=_Entries)
    dedup_texts: _Entries = field(default_factory=_Entries)
    traces: _Entries = field(default_factory=_Entries)

    def add_segment(self, queue: str, names: QueueNames, lanes: list[int], parts: list[Columns]) -> Columns:
        """Add the lanes of a queue; returns all their messages together."""
        first_run = len(self.lanes) + 1
        counts = [len(part.payloads) for part in parts]
        self.queues.append(queue)
        self.names.append(names)
        self.run_counts.append(len(lanes))
        self.lanes += lanes
        self.counts += counts
        self.ordinals += list(accumulate(counts, initial=0))[:-1]
        content = join_columns(parts)
        if content.transaction_ids is not None or content.trace_ids is not None:
            self._add_entries(first_run, parts)
        return content

    def _add_entries(self, first_run: int, parts: list[Columns]) -> None:
        """Which messages go to the dedup tables and the trace index."""
        for run, part in enumerate(parts, first_run):
            if part.transaction_ids is not None:
                self._add_transaction_ids(run, part.transaction_ids)
            if part.trace_ids is not None:
                self.traces.add(run, [(i, t) for i, t in enumerate(part.trace_ids) if t is not None])

    def _add_transaction_ids(self, run: int, ids: list[str | None]) -> None:
        if None not in ids and all_canonical_uuids(ids):  # type: ignore[arg-type]
            self.dedup.add_all(run, ids)  # type: ignore[arg-type]
            return
        given = [(i, t) for i, t in enumerate(ids) if t is not None]
        self.dedup.add(run, [(i, t) for i, t in given if is_canonical_uuid(t)])
        self.dedup_texts.add(run, [(i, t) for i, t in given if not is_canonical_uuid(t)])

    def is_one_run(self) -> bool:
        """Whether this is the common case, for which there is a procedure that does less: one partition, and nothing
        to deduplicate, to trace or to count."""
        return (
            len(self.lanes) == 1
            and not self.names[0].limited
            and not (self.dedup.values or self.dedup_texts.values or self.traces.values)
            and (self.codecs[0] != Codec.PLAIN.value or self.contents[0][0].bare())
            and self.contents[0][0].expires_at is None
        )

    def run_arguments(self, at: datetime | None, lock_seconds: float | None) -> list[Any]:
        """The arguments of push_run, in its order."""
        content, body = self.contents[0][0], self.bodies[0]
        return [
            self.names[0].id,
            self.source.ids[self.lanes[0]],
            self.codecs[0],
            len(content.payloads),
            body,
            content.payloads if body is None else None,
            self.plain_allowed,
            at,
            _milliseconds(lock_seconds),
        ]

    def arguments(self, at: datetime | None, lock_seconds: float | None) -> list[Any]:
        """The arguments of push_segments, in its order."""
        limited = [names.id for names in self.names if names.limited]
        plain = [content for (content, _), codec in zip(self.contents, self.codecs, strict=True) if not codec]
        columns: Sequence[list[Any] | None] = join_columns(plain).all() if plain else [None] * len(COLUMN_NAMES)
        # When messages expire stands beside the body of a segment, whatever its codec.
        expiring = any([content.expires_at is not None for content, _ in self.contents])
        ids = self.source.ids
        return [
            int_array([names.id for names in self.names]),
            int_array(limited) if limited else None,
            int_array(self.codecs),
            self.bodies,
            int_array(self.run_counts),
            int_array([ids[lane] for lane in self.lanes]),
            int_array(self.counts),
            int_array(self.ordinals),
            *self.dedup.uuid_arguments(),
            *self.dedup_texts.text_arguments(),
            *self.traces.uuid_arguments(),
            *columns[: len(COLUMN_NAMES) - 1],
            self.plain_allowed,
            at,
            join_columns([content for content, _ in self.contents]).expires_at if expiring else None,
            _milliseconds(lock_seconds),
        ]

    def note_duplicates(self, row: Any) -> None:
        """The procedure found transaction ids that are stored already: leave those messages out."""
        entries = [self.dedup.at(i) for i in row[5] or ()] + [self.dedup_texts.at(i) for i in row[6] or ()]
        found: dict[int, list[tuple[int, int, str]]] = {}
        for (run, offset), seq, identity in zip(entries, row[7], row[8], strict=True):
            found.setdefault(self.lanes[run - 1], []).append((offset, seq, str(identity)))
        for lane, duplicates in found.items():
            everything = range(len(self.source.columns[lane]))
            self.source.dropped.setdefault(lane, _Dropped({}, list(everything))).drop(duplicates)

    def full(self, row: Any) -> QueueFull:
        runs = iter(self.counts)
        new = [sum(next(runs) for _ in range(count)) for count in self.run_counts]
        for queue, count, depth, max_size in zip(self.queues, new, row[9], row[10], strict=True):
            if max_size is not None and depth + count > max_size:
                text = f"queue {queue!r} holds {depth} of at most {max_size} pending messages; {count} more do not fit"
                return QueueFull(text, queue=queue, depth=depth, max_size=max_size)
        raise AssertionError("the procedure says that a queue is full")

    def occupancy(self, row: Any) -> dict[str, Occupancy | None]:
        """How full each queue of the call is now; None for a queue without a max_size."""
        if row[9] is None:
            return dict.fromkeys(self.queues)
        return {
            queue: None if max_size is None else Occupancy(depth, max_size - depth)
            for queue, depth, max_size in zip(self.queues, row[9], row[10], strict=True)
        }

    def segments(self, row: Any) -> list[tuple[int, Segment]]:
        return [
            (segment_id, Segment(uuid, row[1], content, size))
            for segment_id, uuid, (content, size) in zip(row[2], row[3], self.contents, strict=True)
        ]


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


class _Placements(Sequence[Placement]):
    """Where the messages of each batch went, worked out for a batch when somebody asks."""

    def __init__(
        self,
        batches: Sequence[Batch],
        lanes: _Lanes,
        attempt: _Attempt,
        *,
        uuids: Sequence[UUID] = (),
        first_seqs: Sequence[int] = (),
    ) -> None:
        self._batches = batches
        self._lanes = lanes
        self._attempt = attempt
        self._uuids = uuids
        self._first_seqs = first_seqs

    def __len__(self) -> int:
        return len(self._batches)

    @overload
    def __getitem__(self, index: int) -> Placement: ...
    @overload
    def __getitem__(self, index: slice) -> list[Placement]: ...
    def __getitem__(self, index: int | slice) -> Placement | list[Placement]:
        if isinstance(index, slice):
            return self._slice(index)
        lane, start = self._places[range(len(self))[index]]
        first_seq, uuid, ordinal = self._runs.get(lane, (0, _NO_SEGMENT, 0))
        dropped = self._lanes.dropped.get(lane)
        duplicates = None
        before = start
        if dropped is not None:
            before = bisect_left(dropped.kept, start)
            stop = start + len(self._batches[index].columns.payloads)
            duplicates = self._duplicates(dropped, range(start, stop), first_seq, uuid, ordinal)
        return Placement(self._lanes.ids[lane], first_seq + before, uuid, ordinal + before, duplicates)

    def _slice(self, which: slice) -> list[Placement]:
        if self._lanes.dropped or not self._first_seqs:
            return [self[i] for i in range(*which.indices(len(self)))]
        ids, runs = self._lanes.ids, self._runs
        found = [(ids[lane], before, *runs[lane]) for lane, before in self._places[which]]
        return [Placement(i, first_seq + before, uuid, n + before) for i, before, first_seq, uuid, n in found]

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        """By batch: its lane, and how many messages of the lane come before it."""
        if self._lanes.members is None:
            return [(lane, 0) for lane in range(len(self._batches))]
        places = [(0, 0)] * len(self._batches)
        for lane, members in enumerate(self._lanes.members):
            start = 0
            for index in members:
                places[index] = (lane, start)
                start += len(self._batches[index].columns.payloads)
        return places

    @cached_property
    def _runs(self) -> dict[int, tuple[int, UUID, int]]:
        """By lane: the first seq of its run, and the place of the run in its segment."""
        attempt = self._attempt
        uuids = chain.from_iterable(map(repeat, self._uuids, attempt.run_counts))
        places = zip(self._first_seqs, uuids, attempt.ordinals, strict=True)
        return dict(zip(attempt.lanes, places, strict=True))

    @staticmethod
    def _duplicates(
        dropped: _Dropped, positions: range, first_seq: int, uuid: UUID, ordinal: int
    ) -> dict[int, tuple[int, str]]:
        """By position in the batch: the message that has the same transaction id."""
        found: dict[int, tuple[int, str]] = {}
        for position in positions:
            original = dropped.repeats.get(position, position)
            if original in dropped.stored:
                found[position - positions.start] = dropped.stored[original]
            elif original != position:
                offset = bisect_left(dropped.kept, original)
                found[position - positions.start] = (first_seq + offset, message_id(uuid, ordinal + offset))
        return found
