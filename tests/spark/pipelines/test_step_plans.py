"""What the plan of a DataFrame says of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812

from lockstep.spark import reject
from lockstep.spark.pipelines.plans import MARK, leaves_in_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark-pipelines")

IN_PLACE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "as it is": lambda df: df,
    "filter and columns": lambda df: df.where("seq > 1").withColumn("payload", F.upper("payload")).drop("data"),
    "several rows of one": lambda df: df.withColumn("n", F.explode(F.sequence(F.lit(0), F.lit(2)))),
    "another partition": lambda df: df.withColumn("partition", F.lit("one")),
    "marked rows": lambda df: reject(df, "seq = 2", "no twos"),
}
MOVED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "sorted": lambda df: df.orderBy("payload"),
    "repartitioned": lambda df: df.repartition(3),
    "fewer tasks": lambda df: df.coalesce(1),
    "twice": lambda df: df.union(df),
    "joined": lambda df: df.join(df.sparkSession.range(3).withColumnRenamed("id", "seq"), "seq"),
    "another seq": lambda df: df.withColumn("seq", F.lit(100) - F.col("seq")),
    "by a function of batches": lambda df: df.mapInArrow(lambda some: some, df.schema),
}


@pytest.mark.parametrize(("name", "expected"), [*((one, True) for one in IN_PLACE), *((one, False) for one in MOVED)])
def test_rows_that_stay_where_they_were_read(spark: SparkSession, name: str, expected: bool) -> None:
    batch = spark.sql("select 'a' as partition, id as seq, 'x' as payload from range(5)")
    read = spark.createDataFrame(batch.rdd, batch.schema).alias(MARK)
    assert leaves_in_place((IN_PLACE | MOVED)[name](read), "seq") is expected
