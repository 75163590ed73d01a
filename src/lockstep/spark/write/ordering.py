"""Orders the rows of a partition by columns (the option `orderBy`).

A task sorts the rows that it packs. If several tasks have rows of one partition, the commit compares the keys of all
rows; parts that are out of order are unpacked, sorted and repacked. That takes the driver's memory, so a batch with
each partition in a single task is cheaper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from psycopg import RawCursor

from lockstep.errors import Conflict, InvalidRequest, TooLarge
from lockstep.spark.write.staging import ORDER_KEY, Ints
from lockstep.spark.write.writer import Staged
from lockstep.storage.postgres import sql

Keys = npt.NDArray[np.int64]


def key_columns(batch: pa.RecordBatch, names: Sequence[str]) -> dict[str, pa.Array]:
    """The columns that order rows, as numbers. Raises InvalidRequest."""
    by_name = {name.lower(): batch.column(i) for i, name in enumerate(batch.schema.names)}
    return {f"{ORDER_KEY}{place}": _numbers(name, by_name[name.lower()]) for place, name in enumerate(names)}


def _numbers(name: str, array: pa.Array) -> pa.Array:
    if array.null_count:
        raise InvalidRequest(f"column {name!r}, by which the rows are ordered, has no value in some row")
    if pa.types.is_date(array.type):
        array = array.cast(pa.date32()).cast(pa.int32())
    return array.cast(pa.int64())


@dataclass(frozen=True, slots=True)
class KnownPart:
    """What the commit knows about a part."""

    attempt: UUID
    number: int
    queue: str
    partitions: Ints
    """The partition of each row."""
    keys: Keys
    stored_bytes: int


def out_of_order(
    cursor: RawCursor[Any], staged: Sequence[Staged], *, width: int, bytes_max: int
) -> dict[str, list[KnownPart]]:
    """By queue: the parts in which pushing one after the other would break the order of a partition. `width` is the
    number of ordering columns. Raises TooLarge if they are too large to be sorted here."""
    by_queue = {
        queue: list(parts) for queue, parts in groupby(_parts(cursor, staged, width), key=lambda one: one.queue)
    }
    wrong = {queue: parts for queue, parts in by_queue.items() if not _is_in_order(parts)}
    needed = sum(part.stored_bytes for parts in wrong.values() for part in parts)
    if needed > bytes_max:
        raise TooLarge(
            f"the rows of some partition lie in several tasks, and {needed} bytes would have to be sorted, more "
            f"than spark_order_bytes_max ({bytes_max}): repartition by queue and partition, so that each is in one task"
        )
    return wrong


def _parts(cursor: RawCursor[Any], staged: Sequence[Staged], width: int) -> Iterator[KnownPart]:
    """In the order in which they would be pushed, queue by queue. They stay until the transaction ends."""
    attempts = [one.place.attempt for one in staged]
    rows = cursor.execute(sql.query("spark_stage_order"), [attempts]).fetchall()
    if sum(one.parts for one in staged) != len(rows):
        raise Conflict("a task has staged parts that are not there: the stage was removed in the meantime")
    known: dict[str, int] = {}
    for attempt, number, _, queue, partitions, counts, keys, stored in sorted(rows, key=lambda row: row[3]):
        ids = [known.setdefault(name, len(known)) for name in partitions]
        found = np.frombuffer(keys, "<i8").reshape(-1, width)
        yield KnownPart(attempt, number, queue, np.repeat(np.array(ids, np.int64), counts), found, stored)


def _is_in_order(parts: Sequence[KnownPart]) -> bool:
    partitions = np.concatenate([part.partitions for part in parts])
    keys = np.concatenate([part.keys for part in parts])
    order = np.argsort(partitions, kind="stable")
    partitions, keys = partitions[order], keys[order]
    may_fall = partitions[1:] == partitions[:-1]
    for before, after in zip(keys[:-1].T, keys[1:].T, strict=True):
        if np.any(may_fall & (after < before)):
            return False
        may_fall = may_fall & (after == before)
    return True


def columns_of(keys: Keys) -> dict[str, pa.Array]:
    """Stored keys as columns of a table."""
    return {f"{ORDER_KEY}{place}": pa.array(column) for place, column in enumerate(keys.T)}
