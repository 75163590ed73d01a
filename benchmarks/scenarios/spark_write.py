"""Spark writes to a queue, exactly once, against Spark's own JDBC sink into a table with a row per message.

Both write the same DataFrame, which is cached beforehand, with as many tasks as there are cores. The JDBC sink has what
makes it fast: batches of 10,000 rows that the driver rewrites into statements of many rows, and no index but the key.
Tasks of a JDBC write that are tried again double their rows; those of ours do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Bar, Outcome, Table, progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 1_000
TABLE = "row_per_message"
MAKE_TABLE = f"""
drop table if exists {TABLE};
create table {TABLE} (
    id bigint generated always as identity primary key,
    "partition" text not null,
    payload text not null,
    created_at timestamptz not null default now()
)
"""
_BATCH_ROWS = 10_000
_BAR = 1.7


def messages(spark: SparkSession, count: int, tasks: int) -> DataFrame:
    """Messages of about 256 bytes, in memory."""
    made = spark.range(0, count, 1, tasks).selectExpr(
        f"concat('p', id % {PARTITIONS}) as partition",
        "to_json(struct(id as order_id, concat('cust_', pmod(hash(id), 1000000)) as customer, "
        "rand(1) * 1000 as amount, 'EUR' as currency, array(hex(hash(id, 1)), hex(hash(id, 2)), hex(hash(id, 3)), "
        "sha1(cast(id as string))) as items, md5(cast(id as string)) as reference, 'created' as state)) as payload",
    )
    cached = made.cache()
    cached.count()
    return cached


def spark_write(
    spark: SparkSession,
    dsn: str,
    jdbc: Mapping[str, str],
    *,
    count: int,
    rounds: int,
    tasks: int,
    execute: Callable[[str], Any],
) -> Outcome:
    """Write `count` messages with each, in turn. `execute` runs SQL on the same database."""
    rows = messages(spark, count, tasks)

    def ours() -> None:
        rows.write.format("lockstep").options(dsn=dsn, queue="spark-write").mode("append").save()

    def theirs() -> None:
        options = {**jdbc, "dbtable": TABLE, "batchsize": str(_BATCH_ROWS), "isolationLevel": "READ_COMMITTED"}
        rows.write.format("jdbc").options(**options).mode("append").save()

    execute(MAKE_TABLE)
    taken: dict[str, list[float]] = {"Spark's JDBC sink": [], "lockstep, exactly once": []}
    for number in range(rounds + 1):
        for (name, seconds), work in zip(taken.items(), (theirs, ours), strict=True):
            execute("checkpoint")
            began = time.perf_counter()
            work()
            if number:  # the first round warms up
                seconds.append(time.perf_counter() - began)
                progress(f"  {number}/{rounds}  {name:30} {count / seconds[-1]:12,.0f} /s")
        execute(MAKE_TABLE)
    rows.unpersist()
    base = taken["Spark's JDBC sink"]
    ratios = [of_theirs / of_ours for of_theirs, of_ours in zip(*taken.values(), strict=True)]
    table = [
        {
            "name": name,
            "messages_per_second": round(count / median(seconds)),
            "ratio": round(median(ratios), 2) if seconds is not base else 1.0,
        }
        for name, seconds in taken.items()
    ]
    return Outcome(
        [Table(f"Spark writes {count:,} messages of about 256 bytes", table)],
        [Bar.at_least("Spark write, x JDBC with batched rewrite", median(ratios), _BAR)],
    )
