"""Parts on the stage: tasks put them there, and a commit packs those anew that it cannot push as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any
from uuid import UUID

import pyarrow as pa
from psycopg import RawCursor

from lockstep.core.codec import Codec, decode, unseal
from lockstep.core.messages import Columns
from lockstep.spark.rows import Incoming
from lockstep.spark.staging import Entries, Part, QueueForm, Staging, pack
from lockstep.spark.transactions import cursor_of, row_of
from lockstep.spark.writer import Place, Staged
from lockstep.spark.writer_options import WriteOptions
from lockstep.storage.postgres.push_attempt import int_array
from lockstep.storage.postgres.pushing import Encryption

_FORM = "select q.compression, q.encryption, q.partitions from lockstep.queue q where q.name = $1"
_STAGE = (
    "with s as (insert into lockstep.segment (queue_id, uuid, created_at, codec, message_count, partition_ids, "
    "first_seqs, counts, body, payloads, transaction_ids, trace_ids, kinds, refs, encodings, headers, producer_subs) "
    "values (0, gen_random_uuid(), clock_timestamp(), $7::smallint, $8::int, '{}', '{}', '{}', $11::bytea, "
    "$12::bytea[], $13::text[], $14::text[]::uuid[], $15::text[], $16::text[], $17::text[], $18::bytea[], $19::text[]) "
    "returning id) "
    "insert into lockstep.spark_stage (attempt, part, sink, batch_id, task, queue, codec, message_count, partitions, "
    "counts, segment_id, dedup_uuids, dedup_uuid_runs, dedup_uuid_offsets, dedup_texts, dedup_text_runs, "
    "dedup_text_offsets, traces, trace_runs, trace_offsets) "
    "select $1::uuid, $2::int, $3::text, $4::bigint, $5::int, $6::text, $7::smallint, $8::int, $9::text::text[], "
    "$10::text::int[], s.id, $20::text::uuid[], $21::text::int[], $22::text::int[], $23::text::text[], "
    "$24::text::int[], $25::text::int[], $26::text::uuid[], $27::text::int[], $28::text::int[] from s"
)
_FIND = (
    "select p.sink, p.batch_id, p.task, p.queue, p.codec, p.partitions, p.counts, s.body, s.payloads, "
    "s.transaction_ids, s.trace_ids, s.kinds, s.refs, s.encodings, s.headers, s.producer_subs, "
    "p.dedup_uuid_runs, p.dedup_uuid_offsets, p.dedup_text_runs, p.dedup_text_offsets "
    "from lockstep.spark_stage p join lockstep.segment s on s.id = p.segment_id where p.attempt = $1 and p.part = $2"
)
_REMOVE = "delete from lockstep.spark_stage p where p.attempt = $1 and p.part = $2"

_PLAIN_COLUMNS = {
    "payload": "payloads",
    "transaction_id": "transaction_ids",
    "trace_id": "trace_ids",
    "kind": "kinds",
    "reference": "references",
    "encoding": "encodings",
    "headers": "headers",
    "producer_sub": "producer_subs",
}
"""The columns of a row, and of messages, in the order of the stage."""


def put(options: WriteOptions, batches: Iterable[pa.RecordBatch], place: Place) -> Staged:
    """Write the rows of a task to the stage, each part as soon as it is full."""
    config = options.access.config()
    incoming = Incoming(config, queue=options.queue, dedupe=options.delivery == "dedupe", task=place.task)
    with options.access.connect() as connection:
        cursor = cursor_of(connection)
        staging = Staging(
            queue=options.queue,
            bytes_max=options.segment_bytes,
            encryption=Encryption.of(config),
            form_of=lambda queue: _form(cursor, queue),
        )
        parts = messages = 0
        for part in _parts(staging, incoming, batches):
            cursor.execute(_STAGE, _stage_arguments(place, parts, part))
            parts += 1
            messages += len(part)
        return Staged(place, parts, messages)


def _parts(staging: Staging, incoming: Incoming, batches: Iterable[pa.RecordBatch]) -> Iterator[Part]:
    for batch in batches:
        yield from staging.add(incoming.take(batch))
    yield from staging.finish()


def _form(cursor: RawCursor[Any], queue: str) -> QueueForm:
    """How the queue stores messages; as new ones do, if the commit will create it."""
    row = cursor.execute(_FORM, [queue]).fetchone()
    return QueueForm() if row is None else QueueForm(*row)


def _stage_arguments(place: Place, number: int, part: Part) -> list[Any]:
    return [
        place.attempt,
        number,
        place.sink,
        place.batch_id,
        place.task,
        part.queue,
        part.codec,
        len(part),
        _text_array(part.partitions),
        int_array(part.counts),
        part.body,
        *[part.plain.get(name) for name in _PLAIN_COLUMNS],
        *_uuid_arguments(part.dedup_uuids),
        *_text_arguments(part.dedup_texts),
        *_uuid_arguments(part.traces),
    ]


def _uuid_arguments(entries: Entries | None) -> tuple[str | None, str | None, str | None]:
    if entries is None:
        return None, None, None
    return f"{{{','.join(entries.values)}}}", int_array(entries.runs), int_array(entries.offsets)


def _text_arguments(entries: Entries | None) -> tuple[str | None, str | None, str | None]:
    if entries is None:
        return None, None, None
    return _text_array(entries.values), int_array(entries.runs), int_array(entries.offsets)


def _text_array(texts: Iterable[str]) -> str:
    """An array as PostgreSQL spells it: psycopg looks at every element of a list, several times."""
    escaped = "\x00".join(texts).replace("\\", "\\\\").replace('"', '\\"')
    return '{"' + escaped.replace("\x00", '","') + '"}'


def pack_anew(
    cursor: RawCursor[Any], attempt: UUID, number: int, duplicates: Sequence[list[int] | None], encryption: Encryption
) -> None:
    """Pack a part anew: as its queue stores messages now, and without those that are stored already."""
    row = row_of(cursor, _FIND, [attempt, number])
    cursor.execute(_REMOVE, [attempt, number])
    sink, batch_id, task, queue, codec, partitions, counts, body = row[:8]
    columns = _columns(codec, body, row[8:16], encryption.key)
    starts = list(accumulate(counts, initial=0))
    found = {
        starts[runs[index - 1] - 1] + offsets[index - 1]
        for indexes, runs, offsets in zip(duplicates, row[16::2], row[17::2], strict=True)
        for index in indexes or ()
    }
    lanes = [name for name, count in zip(partitions, counts, strict=True) for _ in range(count)]
    kept = [position for position in range(len(columns)) if position not in found]
    if not kept:
        return
    form = replace(_form(cursor, queue), partitions=0)
    key = encryption.key_for(queue) if form.encryption else None
    part = pack(queue, _table(columns.take(kept), [lanes[position] for position in kept]), form=form, key=key)
    cursor.execute(_STAGE, _stage_arguments(Place(sink, batch_id, task, attempt), number, part))


def _columns(codec: int, body: bytes | None, plain: Sequence[Any], key: bytes | None) -> Columns:
    if codec == Codec.PLAIN:
        columns = Columns(*plain)
        if columns.trace_ids is not None:
            columns.trace_ids = [None if one is None else str(one) for one in columns.trace_ids]
        return columns
    assert body is not None
    return decode(unseal(codec, body, key=key))


def _table(columns: Columns, lanes: list[str]) -> pa.Table:
    arrays = {"partition": pa.array(lanes, pa.string())}
    for name, plural in _PLAIN_COLUMNS.items():
        values = getattr(columns, plural)
        if values is not None:
            arrays[name] = pa.array(values, pa.binary() if name in ("payload", "headers") else pa.string())
    return pa.table(arrays)
