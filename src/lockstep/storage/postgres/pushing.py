"""The conversation of a push: resolve names, pack a segment per queue, call the procedure, look at what it says.

A *lane* is what the call has for one partition (push_lanes.py). Lanes are kept as columns, too: a push over a thousand
partitions has a thousand of them, each with one message. A push is tried again, within the conversation, when a name
was out of date, and without those of its messages that turned out to be duplicates; nothing was written then.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from lockstep.config import Config
from lockstep.core.codec import Codec, encode, seal
from lockstep.core.ids import SEGMENT_MESSAGES_MAX
from lockstep.core.messages import Batch, Columns, Occupancy, Placement, PushResult
from lockstep.errors import EncryptionUnavailable, TooLarge, Unavailable
from lockstep.storage.postgres.cache import NameCache, QueueNames, Segment
from lockstep.storage.postgres.calls import Call, Conversation, Work, milliseconds
from lockstep.storage.postgres.push_attempt import Attempt
from lockstep.storage.postgres.push_lanes import Lanes
from lockstep.storage.postgres.push_placements import Placements

PLAIN_BYTES_MAX = 1024
"""Up to here a segment's messages go into SQL arrays: packing would not make them smaller."""

_LOOKED_AT = 64
"""So many payloads usually tell that there are more bytes than that."""

SEAL_APART_BYTES_MIN = 1024 * 1024
"""From here a body is compressed in a thread of its own, so that others need not wait. Below, changing threads costs
more than it gains: at 256 KiB a push was a fifth slower."""

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
_PUSH_RUNS = (
    "select * from lockstep.push_runs($1::int, $2::text::bigint[], $3::text::bigint[], $4::text::int[], "
    "$5::text::int[], $6::smallint, $7::bytea, $8::boolean, $9::timestamptz, $10::int, $11::boolean)"
)
_MARK_EXPIRING = "select lockstep.mark_expiring($1, $2::timestamptz)"
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
    if len(batches) == 1:
        pushed = yield from _push_few(batches, names, encryption, at, lock_seconds, overtake)
        if pushed is not None:
            return pushed
    lanes = Lanes.of(batches)
    if sum([len(columns.payloads) for columns in lanes.columns]) > SEGMENT_MESSAGES_MAX:
        raise TooLarge(f"one call may push at most {SEGMENT_MESSAGES_MAX} messages")
    for _ in range(_STALE_ATTEMPTS_MAX):
        known = yield from _resolve(lanes, names, at)
        attempt = yield from _attempt(lanes, known, encryption)
        # Before the push, which may be a transaction of its own: a question after it that fails would make it look as
        # if it had failed, and it would be done twice.
        untold = yield from _occupancy([queue for queue in lanes.by_queue if queue not in attempt.queues])
        if not attempt.lanes:
            return Pushed(PushResult(batches, Placements(batches, lanes, attempt), occupancy=untold), [])
        row = yield from _call(attempt, at, lock_seconds, overtake)
        match row[0]:
            case "ok":
                occupancy = untold | attempt.occupancy(row)
                placements = Placements(batches, lanes, attempt, uuids=row[3], first_seqs=row[4])
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


def _push_few(
    batches: Sequence[Batch],
    names: NameCache,
    encryption: Encryption,
    at: datetime | None,
    lock_seconds: float | None,
    overtake: bool,
) -> Conversation[Pushed | None]:
    """What a lone producer usually pushes, a few small payloads to a known partition, without what only lanes need.
    None: it is not that, or something has changed; nothing was pushed then."""
    batch = batches[0]
    columns, payloads = batch.columns, batch.columns.payloads
    known = names.get(batch.queue)
    partition_id = None if known is None else known.partitions.get(batch.partition)
    if known is None or partition_id is None or known.limited or known.encryption:
        return None
    if len(payloads) > _LOOKED_AT or not columns.bare():
        return None
    size = sum(map(len, payloads))
    if size > PLAIN_BYTES_MAX:
        return None
    arguments = [known.id, partition_id, Codec.PLAIN.value, len(payloads), None, payloads, encryption.plain_allowed]
    rows = yield Call("push", _PUSH_RUN, [*arguments, at, milliseconds(lock_seconds), overtake])
    status, created_at, segment_id, uuid, first_seq = rows[0]
    if status != "ok":
        return None
    placement = Placement(partition_id, first_seq, uuid, 0)
    segment = Segment(uuid, created_at, columns, size)
    return Pushed(PushResult(batches, [placement]), [(segment_id, segment)])


def _call(attempt: Attempt, at: datetime | None, lock_seconds: float | None, overtake: bool) -> Conversation[Any]:
    """Call the procedure; the row that it answers with."""
    if not attempt.is_bare():
        return (yield Call("push", _PUSH, [*attempt.arguments(at, lock_seconds), overtake]))[0]
    if len(attempt.lanes) == 1:
        arguments = attempt.run_arguments(at, lock_seconds)
        rows = yield Call("push", _PUSH_RUN, [*arguments, overtake])
        status, created_at, segment_id, uuid, first_seq = rows[0]
        first_seqs, behind = [first_seq], attempt.source.ids
    else:
        arguments = attempt.runs_arguments(at, lock_seconds)
        rows = yield Call("push", _PUSH_RUNS, [*arguments, overtake])
        status, created_at, segment_id, uuid, first_seqs, behind = rows[0]
        if status == "ok":
            attempt.note_runs(first_seqs)
    return status, created_at, [segment_id], [uuid], first_seqs, None, None, None, None, None, None, behind


def hold_queue(queue: str, names: NameCache, *, at: datetime | None) -> Conversation[None]:
    """Create the queue if it is missing, and lock it where the caller is in a transaction."""
    row = (yield Call("resolve", _RESOLVE, (queue, [], at)))[0]
    names.put(queue, QueueNames(row[0], row[1], row[2], row[3]))


def resolve(
    batches: Sequence[Batch], names: NameCache, *, at: datetime | None
) -> Conversation[dict[tuple[str, str], int]]:
    """Create the queues and partitions of the batches that are missing; returns the ids of the partitions."""
    lanes = Lanes.of(batches)
    yield from _resolve(lanes, names, at)
    return {(queue, lanes.partitions[lane]): lanes.ids[lane] for queue, own in lanes.by_queue.items() for lane in own}


def all_known(batches: Sequence[Batch], names: NameCache) -> bool:
    """Whether the ids of all batches are remembered, so that a push creates nothing."""
    for batch in batches:
        known = names.get(batch.queue)
        if known is None or batch.partition not in known.partitions:
            return False
    return True


def _resolve(lanes: Lanes, names: NameCache, at: datetime | None) -> Conversation[dict[str, QueueNames]]:
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
        expires = any([lanes.columns[lane].expires_at is not None for lane in members])
        if expires and (known is None or not known.expiring):
            # Once for each queue: its pops look for what expired from now on. Before anything of it is locked.
            yield Call("mark_expiring", _MARK_EXPIRING, (queue, at))
        if missing or creates:
            row = (yield Call("resolve", _RESOLVE, (queue, missing, at)))[0]
            if known is not None and row[0] != known.id:
                # The queue is not the one that was known: what was known of its partitions is gone with it.
                row, missing, ids = (yield Call("resolve", _RESOLVE, (queue, wanted, at)))[0], wanted, {}
            found = dict(zip(missing, row[4] or (), strict=True))
            ids = {**ids, **found}
            known = names.put(queue, QueueNames(row[0], row[1], row[2], row[3]))
            names.put_partitions(queue, found, of=known)
        assert known is not None
        known.expiring = known.expiring or expires
        for lane, name in zip(members, wanted, strict=True):
            lanes.ids[lane] = ids[name]
        resolved[queue] = known
    return resolved


def _all_known(lanes: Lanes, names: NameCache) -> bool:
    for queue, members in lanes.by_queue.items():
        known = names.get(queue)
        if known is None or any([lanes.partitions[lane] not in known.partitions for lane in members]):
            return False
    return True


def _occupancy(queues: list[str]) -> Conversation[dict[str, Occupancy]]:
    """How full queues are of which the push does not tell, because it has only duplicates for them."""
    if not queues:
        return {}
    rows = yield Call("occupancy", _OCCUPANCY, (queues,))
    return {name: Occupancy(depth, max(max_size - depth, 0)) for name, depth, max_size in rows}


def _attempt(lanes: Lanes, known: dict[str, QueueNames], encryption: Encryption) -> Conversation[Attempt]:
    """Pack what is to be pushed: a segment per queue."""
    attempt = Attempt(lanes, plain_allowed=encryption.plain_allowed)
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


def _pack(attempt: Attempt, names: QueueNames, content: Columns, key: bytes | None) -> Conversation[None]:
    content_bytes = sum(map(len, content.payloads[:_LOOKED_AT]))
    body: bytes | None = None
    codec = Codec.PLAIN
    if content_bytes <= PLAIN_BYTES_MAX or names.compression == "none":
        content_bytes += sum(map(len, content.payloads[_LOOKED_AT:]))
    if key is not None or (names.compression != "none" and content_bytes > PLAIN_BYTES_MAX):
        codec = Codec.PACKED if key is None else Codec.PACKED | Codec.ENCRYPTED
        layout = encode(content if content.expires_at is None else replace(content, expires_at=None))
        content_bytes = len(layout)
        sealing = partial(seal, layout, key=key)
        body = (yield Work(sealing)) if content_bytes >= SEAL_APART_BYTES_MIN else sealing()
    attempt.codecs.append(codec.value)
    attempt.bodies.append(body)
    attempt.contents.append((content, content_bytes))
