"""Parts on the stage: tasks put them there, and a commit repacks parts that cannot be pushed as they are."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
from psycopg import RawCursor

from lockstep.config import Config
from lockstep.core.codec import SEALED, Codec, decode
from lockstep.core.ids import segment_uuid7
from lockstep.core.messages import COLUMNS_OF_FIELDS, Columns
from lockstep.core.sealing import segment_binding
from lockstep.spark.database import cursor_of, rows_of
from lockstep.spark.write.ordering import KnownPart, columns_of, out_of_order
from lockstep.spark.write.rows import Incoming
from lockstep.spark.write.staging import PartEntries, QueueForm, SealedPlace, StagedPart, Staging, pack, packed
from lockstep.spark.write.write_options import WriteOptions
from lockstep.spark.write.writer import Staged, TaskAttempt
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.push.attempt import int_array

_PLAIN_COLUMNS = {field: column for field, column in COLUMNS_OF_FIELDS.items() if field != "expires_at"}
"""The columns of a row, and of messages, in the order of the stage."""


def put(options: WriteOptions, batches: Iterable[pa.RecordBatch], place: TaskAttempt) -> Staged:
    """Write the rows of a task to the stage, each part as soon as it is full."""
    config = options.access.config()
    incoming = Incoming.of(options, config, task=place.task)
    with options.access.connect() as connection:
        cursor = cursor_of(connection)
        staging = Staging(
            queue=options.queue,
            bytes_max=options.segment_bytes,
            form_of=lambda queue: _form(cursor, queue),
            is_ordered=bool(options.order_by),
        )
        return _put_all(cursor, place, _parts(staging, incoming, batches), Encryption.of(config))


def _put_all(cursor: RawCursor[Any], place: TaskAttempt, parts: Iterable[StagedPart], encryption: Encryption) -> Staged:
    count = messages = repeats = 0
    for part in parts:
        _seal(cursor, part, encryption)
        _put(cursor, place, count, part)
        count += 1
        messages += len(part)
        repeats += part.repeats
    return Staged(place, count, messages, repeats)


def _parts(staging: Staging, incoming: Incoming, batches: Iterable[pa.RecordBatch]) -> Iterator[StagedPart]:
    for batch in batches:
        yield from staging.add(incoming.take(batch))
    yield from staging.finish()


def _form(cursor: RawCursor[Any], queue: str) -> QueueForm:
    """How the queue stores messages; the form of new queues if the commit will create it."""
    row = cursor.execute(sql.query("queue_form"), [queue]).fetchone()
    return QueueForm() if row is None else QueueForm(*row)


def _seal(cursor: RawCursor[Any], part: StagedPart, encryption: Encryption) -> None:
    """Encrypt a part of an encrypted queue for its future segment. A partition that the commit will create has no id
    yet: then the commit encrypts the part again."""
    form = _form(cursor, part.queue)
    keys = encryption.keys_for(part.queue) if form.encryption else None
    if keys is None or part.body is None:
        return
    [row] = rows_of(cursor.connection, "partition_ids_of", form.id, _text_array(part.partitions))
    part.place = SealedPlace(segment_uuid7(time.time_ns()), form.id, row[0])
    part.body, part.codec = keys.seal(part.body, _binding(part.place, part.counts), codec=SEALED), SEALED.value


def _binding(place: SealedPlace, counts: Sequence[int]) -> bytes:
    return segment_binding(place.segment_uuid, place.queue_id, place.partition_ids, counts)


def _binding_of(row: Sequence[Any]) -> bytes:
    """The binding of a part on the stage."""
    return b"" if row[20] is None else _binding(SealedPlace(*row[20:23]), row[6])


def _put(cursor: RawCursor[Any], place: TaskAttempt, number: int, part: StagedPart) -> None:
    sealed = part.place
    arguments = [
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
        *((None, None, None) if sealed is None else _sealed_arguments(sealed)),
        part.order_keys,
    ]
    cursor.execute(sql.query("spark_stage_put"), arguments)


def _sealed_arguments(place: SealedPlace) -> tuple[UUID, int, str]:
    return place.segment_uuid, place.queue_id, int_array(place.partition_ids)


def _uuid_arguments(entries: PartEntries | None) -> tuple[str | None, str | None, str | None]:
    if entries is None:
        return None, None, None
    return f"{{{','.join(entries.values)}}}", int_array(entries.runs), int_array(entries.offsets)


def _text_arguments(entries: PartEntries | None) -> tuple[str | None, str | None, str | None]:
    if entries is None:
        return None, None, None
    return _text_array(entries.values), int_array(entries.runs), int_array(entries.offsets)


def _text_array(texts: Iterable[str]) -> str:
    """An array in PostgreSQL's text form: psycopg examines every element of a list several times."""
    escaped = "\x00".join(texts).replace("\\", "\\\\").replace('"', '\\"')
    return '{"' + escaped.replace("\x00", '","') + '"}'


def put_in_order(
    cursor: RawCursor[Any], options: WriteOptions, staged: Sequence[Staged], config: Config, encryption: Encryption
) -> Sequence[Staged]:
    """What is staged, in a form that keeps the order of every partition when pushed: parts that would not are
    repacked.
    """
    width, bytes_max = len(options.order_by), config.spark_order_bytes_max
    wrong = out_of_order(cursor, staged, width=width, bytes_max=bytes_max)
    if not wrong:
        return staged
    first = staged[0].place
    place = TaskAttempt(first.sink, first.batch_id, first.task, uuid4())
    made = _put_all(cursor, place, _sorted_parts(cursor, wrong, options.segment_bytes, encryption), encryption)
    gone = [part for parts in wrong.values() for part in parts]
    for part in gone:
        cursor.execute(sql.query("spark_stage_remove"), [[part.attempt], part.number])
    return [*(_without(one, gone) for one in staged), made]


def _sorted_parts(
    cursor: RawCursor[Any], wrong: Mapping[str, Sequence[KnownPart]], bytes_max: int, encryption: Encryption
) -> Iterator[StagedPart]:
    for queue, parts in wrong.items():
        form = replace(_form(cursor, queue), partitions=0)
        tables = []
        for part in parts:
            [row] = rows_of(cursor.connection, "spark_stage_find", part.attempt, part.number)
            columns = _columns(row[4], row[7], row[8:16], encryption, _binding_of(row))
            table = _table(columns, _names(row[5], row[6]))
            for name, column in columns_of(part.keys).items():
                table = table.append_column(name, column)
            tables.append(table)
        yield from packed(queue, pa.concat_tables(tables, promote_options="default"), form=form, bytes_max=bytes_max)


def _without(one: Staged, gone: Sequence[KnownPart]) -> Staged:
    counts = [len(part.partitions) for part in gone if part.attempt == one.place.attempt]
    return replace(one, parts=one.parts - len(counts), messages=one.messages - sum(counts))


def pack_anew(
    cursor: RawCursor[Any], attempt: UUID, number: int, duplicates: Sequence[list[int] | None], encryption: Encryption
) -> int:
    """Repack a part: in the current format of its queue, and without messages that are already stored. Returns how many
    of those there are."""
    [row] = rows_of(cursor.connection, "spark_stage_find", attempt, number)
    cursor.execute(sql.query("spark_stage_remove"), [[attempt], number])
    sink, batch_id, task, queue, codec, partitions, counts, body = row[:8]
    columns = _columns(codec, body, row[8:16], encryption, _binding_of(row))
    starts = list(accumulate(counts, initial=0))
    found = {
        starts[runs[index - 1] - 1] + offsets[index - 1]
        for indexes, runs, offsets in zip(duplicates, row[16:20:2], row[17:20:2], strict=True)
        for index in indexes or ()
    }
    names = _names(partitions, counts)
    kept = [position for position in range(len(columns)) if position not in found]
    if not kept:
        return len(found)
    form = replace(_form(cursor, queue), partitions=0)
    part = pack(queue, _table(columns.take(kept), [names[position] for position in kept]), form=form)
    _seal(cursor, part, encryption)
    _put(cursor, TaskAttempt(sink, batch_id, task, attempt), number, part)
    return len(found) + part.repeats


def _names(partitions: Sequence[str], counts: Sequence[int]) -> list[str]:
    """The partition of each message of a part."""
    return [name for name, count in zip(partitions, counts, strict=True) for _ in range(count)]


def _columns(codec: int, body: bytes | None, plain: Sequence[Any], encryption: Encryption, binding: bytes) -> Columns:
    if codec == Codec.PLAIN:
        columns = Columns(*plain)
        if columns.trace_ids is not None:
            columns.trace_ids = [None if one is None else str(one) for one in columns.trace_ids]
        return columns
    assert body is not None
    return decode(encryption.open(codec, body, binding))


def _table(columns: Columns, names: list[str]) -> pa.Table:
    arrays = {"partition": pa.array(names, pa.string())}
    for name, plural in _PLAIN_COLUMNS.items():
        values = getattr(columns, plural)
        if values is not None:
            arrays[name] = pa.array(values, pa.binary() if name in ("payload", "headers") else pa.string())
    return pa.table(arrays)
