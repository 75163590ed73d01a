"""The conversation of a push: resolve names, pack a segment per queue, call the procedure, act on its answer.

A *portion* is the messages of the call for one partition (portions.py). Portions are kept as columns: a push over a
thousand partitions has a thousand of them, each with one message. The conversation repeats the push when a cached name
was out of date, or without messages that are duplicates; nothing was written in these cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import NamedTuple
from uuid import UUID

from lockstep.core.codec import Codec, block_of, encode, seal, seal_packed
from lockstep.core.ids import SEGMENT_MESSAGES_MAX
from lockstep.core.messages import Batch, Columns, Occupancy, Placement, PushResult, counts_of
from lockstep.core.sealing import Keyring
from lockstep.errors import TooLarge, Unavailable
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.cache import NameCache, QueueNames, Segment
from lockstep.storage.postgres.calls import Conversation, Work, milliseconds
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.push.attempt import PushAttempt, PushedSegments
from lockstep.storage.postgres.push.placements import Placements
from lockstep.storage.postgres.push.portions import Portions

PLAIN_BYTES_MAX = 1024
"""Up to here a segment's messages go into SQL arrays: packing would not make them smaller."""

_LOOKED_AT = 64
"""This many payloads usually have more bytes than that."""

SEAL_APART_BYTES_MIN = 1024 * 1024
"""From here a body is compressed in a thread of its own, so that others need not wait. Below, changing threads costs
more than it gains: at 256 KiB a push was a fifth slower."""

_STALE_ATTEMPTS_MAX = 20


class Resolved(NamedTuple):
    """A queue, and the ids of the requested partitions."""

    queue_id: int
    compression: str
    encryption: bool
    limited: bool
    partition_ids: list[int] | None
    counted: int | None
    """How many partitions the queue had, up to the id `upto`, if some were created."""
    upto: int | None

    @property
    def names(self) -> QueueNames:
        return QueueNames(self.queue_id, self.compression, self.encryption, self.limited)


class _PushedRun(NamedTuple):
    status: str
    created_at: datetime
    segment_id: int
    segment_uuid: UUID
    first_seq: int


class _Occupancy(NamedTuple):
    """How full a queue with a max_size is."""

    queue: str
    depth: int
    max_size: int


class _PushedRuns(NamedTuple):
    status: str
    created_at: datetime
    segment_id: int
    segment_uuid: UUID
    first_seqs: list[int]
    behind: list[int] | None


RESOLVE = sql.procedure("resolve", Resolved)
_RUNS = ("partition_ids", "counts", "ordinals")
_ENTRIES = [f"{entry}_{column}" for entry in ("uuid", "text", "trace") for column in ("runs", "offsets")]
_AS_TEXT = ("queue_ids", "limited", "codecs", "run_counts", *_RUNS, "uuids", "traces", *_ENTRIES)
_PUSH = sql.procedure("push_segments", PushedSegments, label="push", as_text=_AS_TEXT)
_PUSH_RUN = sql.procedure("push_run", _PushedRun, label="push")
_PUSH_RUNS = sql.procedure("push_runs", _PushedRuns, label="push", as_text=(*_RUNS, "looked_from"))
_MARK_EXPIRING: sql.Procedure[None] = sql.procedure("mark_expiring")
_OCCUPANCY = sql.procedure("occupancy", _Occupancy)


@dataclass(slots=True)
class Pushed:
    """The result of a push: its receipts, and its segments by id, for the cache once they are committed."""

    result: PushResult
    segments: list[tuple[int, Segment]]
    untold: bool = False
    """The store pushed it on its own, so no caller notifies the waiting pops."""


def push_now(
    batches: Sequence[Batch],
    names: NameCache,
    *,
    encryption: Encryption,
    at: datetime | None,
    lock_seconds: float | None = None,
    overtake: bool = False,
    bounded: bool = True,
) -> Conversation[Pushed]:
    """Push the batches; `at` is the time of a test clock, `lock_seconds` the maximum wait for a lock. With `overtake`
    the push overtakes operations that wait for its partitions, which otherwise make it fail. Without `bounded` it
    creates partitions even if a queue has the maximum number."""
    if len(batches) == 1:
        pushed = yield from _push_few(batches, names, encryption, at, lock_seconds, overtake)
        if pushed is not None:
            return pushed
    portions = Portions.of(batches)
    if sum(counts_of(portions.columns)) > SEGMENT_MESSAGES_MAX:
        raise TooLarge(f"one call may push at most {SEGMENT_MESSAGES_MAX} messages")
    for _ in range(_STALE_ATTEMPTS_MAX):
        known = yield from _resolve(portions, names, at, bounded=bounded)
        attempt = yield from _attempt(portions, known, encryption)
        # Before the push, which may be a transaction of its own: if a query after it failed, the push would seem to
        # have failed, and would be repeated.
        untold = yield from _occupancy([queue for queue in portions.by_queue if queue not in attempt.queues])
        if not attempt.portions:
            return Pushed(PushResult(batches, Placements(batches, portions, attempt), occupancy=untold), [])
        row = yield from _call(attempt, at, lock_seconds, overtake)
        match row.status:
            case "ok":
                occupancy = untold | attempt.occupancy(row)
                placements = Placements(batches, portions, attempt, uuids=row.segment_uuids, first_seqs=row.first_seqs)
                return Pushed(PushResult(batches, placements, occupancy=occupancy), attempt.segments(row))
            case "duplicates":
                attempt.note_duplicates(row)
            case "full":
                raise attempt.full(row)
            case "behind":
                raise portions.pending(row.behind)
            case _:
                for queue in portions.by_queue:
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
    """The usual push of a single producer: a few small payloads to a known partition, without the cost of portions.
    None if the push is not of this kind, or something has changed; nothing is pushed then."""
    batch = batches[0]
    columns = batch.columns
    known = names.get(batch.queue)
    partition_id = None if known is None else known.partitions.get(batch.partition)
    if known is None or partition_id is None or known.limited or known.encryption:
        return None
    if len(columns) > _LOOKED_AT or not columns.bare():
        return None
    size = columns.payload_bytes()
    if size > PLAIN_BYTES_MAX:
        return None
    payloads = columns.payloads
    [row] = yield _PUSH_RUN(
        queue_id=known.id,
        partition_id=partition_id,
        codec=Codec.PLAIN.value,
        count=len(payloads),
        body=None,
        payloads=payloads,
        plain_allowed=encryption.plain_allowed,
        at=at,
        lock_ms=milliseconds(lock_seconds),
        overtake=overtake,
    )
    if row.status != "ok":
        return None
    placement = Placement(partition_id, row.first_seq, row.segment_uuid, 0)
    segment = Segment(row.segment_uuid, row.created_at, columns, size)
    return Pushed(PushResult(batches, [placement]), [(row.segment_id, segment)])


def _call(
    attempt: PushAttempt, at: datetime | None, lock_seconds: float | None, overtake: bool
) -> Conversation[PushedSegments]:
    """Call the procedure; returns its row."""
    given = {"at": at, "lock_ms": milliseconds(lock_seconds), "overtake": overtake}
    if not attempt.is_bare():
        [pushed] = yield _PUSH(**attempt.arguments(), **given)
        return pushed  # type: ignore[no-any-return]
    if len(attempt.portions) == 1:
        [row] = yield _PUSH_RUN(**attempt.run_arguments(), **given)
        first_seqs, behind = [row.first_seq], attempt.source.ids
    else:
        [row] = yield _PUSH_RUNS(**attempt.runs_arguments(), **given)
        first_seqs, behind = row.first_seqs, row.behind
        if row.status == "ok":
            attempt.note_runs(first_seqs)
    return PushedSegments(row.status, row.created_at, [row.segment_id], [row.segment_uuid], first_seqs, behind=behind)


def hold_queue(queue: str, names: NameCache, *, at: datetime | None) -> Conversation[None]:
    """Create the queue if it is missing, and lock it if the caller is in a transaction."""
    yield from resolving(queue, [], names, at)


def resolving(
    queue: str, partitions: Sequence[str], names: NameCache, at: datetime | None, *, bounded: bool = True
) -> Conversation[tuple[QueueNames, Resolved]]:
    """Create a queue and its partitions if they are missing, and cache the queue."""
    known = names.get(queue)
    [found] = yield RESOLVE(
        queue=queue,
        partitions=partitions,
        at=at,
        most=names.queue_partitions_max if bounded else None,
        counted=None if known is None else known.counted,
        upto=None if known is None else known.counted_upto,
    )
    known = names.put(queue, found.names)
    if found.counted is not None:
        known.counted, known.counted_upto = found.counted, found.upto
    return known, found


def resolve_now(
    batches: Sequence[Batch], names: NameCache, *, at: datetime | None
) -> Conversation[dict[tuple[str, str], int]]:
    """Create the queues and partitions of the batches that are missing; returns the ids of the partitions."""
    portions = Portions.of(batches)
    yield from _resolve(portions, names, at)
    return {
        (queue, portions.partitions[portion]): portions.ids[portion]
        for queue, own in portions.by_queue.items()
        for portion in own
    }


def all_known(batches: Sequence[Batch], names: NameCache) -> bool:
    """Whether the ids of all batches are cached, so that a push creates nothing."""
    for batch in batches:
        known = names.get(batch.queue)
        if known is None or batch.partition not in known.partitions:
            return False
    return True


def _resolve(
    portions: Portions, names: NameCache, at: datetime | None, *, bounded: bool = True
) -> Conversation[dict[str, QueueNames]]:
    """The ids of all portions, from the cache or from the database, which creates missing queues and partitions."""
    resolved: dict[str, QueueNames] = {}
    # Creating a partition locks its queue, so then all queues are locked, in order: the push may lock any of them.
    creates = len(portions.by_queue) > 1 and not _all_known(portions, names)
    for queue in sorted(portions.by_queue):
        members = portions.by_queue[queue]
        wanted = [portions.partitions[portion] for portion in members]
        known = names.get(queue)
        ids = {} if known is None else known.partitions
        missing = [name for name in wanted if name not in ids]
        expires = any([portions.columns[portion].expires_at is not None for portion in members])
        if missing or creates or expires:  # others may forget names while this waits
            ids = {name: ids[name] for name in wanted if name in ids}
        if expires and (known is None or not known.expiring):
            # Once for each queue: from now on its pops look for expired messages. Done before anything of the queue is
            # locked.
            yield _MARK_EXPIRING(queue=queue, at=at)
        if missing or creates:
            before = known
            known, row = yield from resolving(queue, missing, names, at, bounded=bounded)
            if before is not None and row.queue_id != before.id:
                # The queue is not the cached one, so its cached partitions are out of date.
                known, row = yield from resolving(queue, wanted, names, at, bounded=bounded)
                missing, ids = wanted, {}
            found = dict(zip(missing, row.partition_ids or (), strict=True))
            ids |= found
            names.put_partitions(queue, found, of=known)
        assert known is not None
        if expires:
            known.note_expiring()
        for portion, name in zip(members, wanted, strict=True):
            portions.ids[portion] = ids[name]
        resolved[queue] = known
    return resolved


def _all_known(portions: Portions, names: NameCache) -> bool:
    for queue, members in portions.by_queue.items():
        known = names.get(queue)
        if known is None or any([portions.partitions[portion] not in known.partitions for portion in members]):
            return False
    return True


def _occupancy(queues: list[str]) -> Conversation[dict[str, Occupancy]]:
    """The depth of queues for which the push returned none, because it had only duplicates for them."""
    if not queues:
        return {}
    rows = yield _OCCUPANCY(queues=queues)
    return {row.queue: Occupancy(row.depth, max(row.max_size - row.depth, 0)) for row in rows}


def _attempt(portions: Portions, known: dict[str, QueueNames], encryption: Encryption) -> Conversation[PushAttempt]:
    """Pack the messages to push: a segment per queue."""
    attempt = PushAttempt(portions, plain_allowed=encryption.plain_allowed)
    for queue, members in portions.by_queue.items():
        wanted = members
        parts = (
            [portions.pushed(portion) for portion in members]
            if portions.dropped
            else [portions.columns[i] for i in members]
        )
        if portions.dropped:
            wanted = [portion for portion, part in zip(members, parts, strict=True) if len(part)]
            parts = [part for part in parts if len(part)]
        if wanted:
            content = attempt.add_segment(queue, known[queue], wanted, parts)
            keys = encryption.keys_for(queue) if known[queue].encryption else None
            yield from _pack(attempt, known[queue], content, keys)
    return attempt


def _pack(attempt: PushAttempt, names: QueueNames, content: Columns, keys: Keyring | None) -> Conversation[None]:
    if content.part is not None:
        content_bytes = content.part.payload_bytes
    else:
        content_bytes = sum(map(len, content.payloads[:_LOOKED_AT]))
        if content_bytes <= PLAIN_BYTES_MAX or names.compression == "none":
            content_bytes += sum(map(len, content.payloads[_LOOKED_AT:]))
    body: bytes | None = None
    codec = Codec.PLAIN
    uuid, binding = (None, b"") if keys is None else attempt.place_of_last()
    if keys is not None or (names.compression != "none" and content_bytes > PLAIN_BYTES_MAX):
        stored = content if content.expires_at is None else replace(content, expires_at=None)
        block = block_of(stored)
        if block is not None:
            content_bytes, sealing = block.layout_bytes, partial(seal_packed, block.body, keys=keys, binding=binding)
        else:
            layout = encode(stored)
            content_bytes, sealing = len(layout), partial(seal, layout, keys=keys, binding=binding)
        codec, body = (yield Work(sealing)) if content_bytes >= SEAL_APART_BYTES_MIN else sealing()
    attempt.codecs.append(codec.value)
    attempt.bodies.append(body)
    attempt.uuids.append(uuid)
    attempt.contents.append((content, content_bytes))
