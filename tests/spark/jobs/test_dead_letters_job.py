"""Dead letters by what went wrong, and redriven by it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lockstep.core.policy import queue_options
from lockstep.core.records import Ack, DeadLetterFilter
from lockstep.errors import InvalidOption, NotFound
from lockstep.spark.database import Access
from lockstep.spark.jobs import dead_letters
from lockstep.spark.jobs.dead_letters import NO_ERROR, SCHEMA, DeadLetterOptions, classes, fingerprinted
from lockstep.storage.postgres.store import PostgresStore
from support.builders import pop, push_n

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def letters(spark: SparkSession, *errors: str | None) -> DataFrame:
    rows = [
        {
            "id": n,
            "queue": "q" if n % 2 else "r",
            "partition": "p",
            "seq": n,
            "group": "g",
            "attempts": n,
            "error": error,
            "failed_at": NOW + timedelta(seconds=n),
        }
        for n, error in enumerate(errors, start=1)
    ]
    return spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA))


def test_errors_that_differ_in_numbers_ids_and_quotes_have_one_fingerprint(spark: SparkSession) -> None:
    same = [
        ("timeout after 30 s on 10.0.0.1:5432", "timeout after 7.5 s on 10.0.0.22:6432"),
        ("no customer 'anna' in \"eu-1\"", "no customer 'bob' in \"us-2\""),
        ("order 0190c1d2-7a57-7c3e-9f00-1c0ffee00000 failed", "order 550e8400-e29b-41d4-a716-446655440000 failed"),
        ("can't read 'a'\n  at line 3", "can't read 'b' at line 44"),
        ("object at 0x7f12ab", "object at 0x1"),
        ("etag d41d8cd98f00b204 differs", "etag 0cc175b9c0f1b6a8 differs"),
        (None, "  "),
    ]
    different = ["can't read", "can't write", "deadbeef", "decade facade"]
    errors = [error for pair in same for error in pair] + list(different)
    found = [row["fingerprint"] for row in fingerprinted(letters(spark, *errors)).orderBy("id").collect()]
    pairs, singles = found[: 2 * len(same)], found[2 * len(same) :]
    assert pairs[::2] == pairs[1::2]
    assert len(set(pairs[::2] + singles)) == len(same) + len(different)
    patterns = [row["pattern"] for row in fingerprinted(letters(spark, *errors)).orderBy("id").collect()]
    assert patterns[0] == "timeout after <n> s on <n>"
    assert patterns[6] == "can't read <text> at line <n>"
    assert patterns[12] == NO_ERROR


def test_classes_count_and_have_examples(spark: SparkSession) -> None:
    found = classes(letters(spark, "bad 1", "bad 2", "worse", "bad 3"), examples=2).collect()
    assert [(row["pattern"], row["count"], row["attempts_max"], row["examples"]) for row in found] == [
        ("bad <n>", 3, 4, [4, 2]),
        ("worse", 1, 3, [3]),
    ]
    assert sorted(found[0]["queues"]) == ["q", "r"]
    assert found[0]["partitions"] == 2
    assert found[0]["last_at"] - found[0]["first_at"] == 3_000_000


async def died_of(store: PostgresStore, *errors: str) -> None:
    """A message for each error, which it dies of."""
    await store.configure("q", queue_options(retry_limit=0))
    for number, error in enumerate(errors, start=1):
        await push_n(store, "q", start=number)
        popped = await pop(store, "q")
        [outcome] = await store.ack([Ack(lease_id=popped.lease_id, status="dlq", error=error)])
        assert outcome.dead


async def test_class_is_redriven_and_the_others_stay(spark: SparkSession, database_dsn: str) -> None:
    store = PostgresStore(database_dsn)
    await died_of(store, "no stock of 5", "no stock of 7", "gone")
    access = Access(dsn=database_dsn)
    found = dead_letters.job(spark, DeadLetterOptions(access=access, examples=1))
    assert [(one.pattern, one.count, one.queues) for one in found] == [
        ("no stock of <n>", 2, ["q"]),
        ("gone", 1, ["q"]),
    ]
    assert found[0].examples[0].message.payload == b'{"n":2}'
    assert found[0].examples[0].error == "no stock of 7"
    told: list[tuple[int, int]] = []
    moved = dead_letters.redrive(
        spark,
        DeadLetterOptions(access=access, queue="q"),
        found[0].fingerprint,
        progress=lambda done, total: told.append((done, total)),
    )
    assert (moved, told) == (2, [(2, 2)])
    left = await store.dead_letters(DeadLetterFilter())
    assert [letter.error for letter in left.items] == ["gone"]
    assert sorted((await pop(store, "q", batch=10)).payloads()) == [b'{"n":1}', b'{"n":2}']
    with pytest.raises(NotFound, match="no dead letter has the fingerprint"):
        dead_letters.redrive(spark, DeadLetterOptions(access=access), found[0].fingerprint)
    assert dead_letters.job(spark, DeadLetterOptions(access=access, queue="elsewhere")) == []
    await store.close()


def test_bad_input_is_a_clear_error() -> None:
    with pytest.raises(InvalidOption, match="'abc' is no fingerprint"):
        dead_letters.check_fingerprint("abc")
    with pytest.raises(InvalidOption, match="examples"):
        DeadLetterOptions(examples=-1)
    with pytest.raises(InvalidOption, match="limit"):
        DeadLetterOptions(limit=0)
