"""Steps that are tested without a server and without a database."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from lockstep.errors import InvalidOption, InvalidRequest, StepFailed
from lockstep.spark import Pipeline, reject
from lockstep.spark.testing import run_step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

orders = Pipeline("orders")


@orders.step(source="intake", sink="payment", payload_schema="id INT, total DOUBLE")
def validate(df: DataFrame) -> DataFrame:
    total = sf.col("data.total")
    paid = df.withColumn("payload", sf.to_json(sf.struct("data.id", (total * 2).alias("total"))))
    return reject(paid, total <= 0, sf.lit("no total"))


@orders.step(source="payment", sink=["small", "large"])
def route(df: DataFrame) -> DataFrame:
    return df.withColumn("queue", sf.when(sf.col("payload").cast("int") > 10, "large").otherwise("small"))


@orders.step(source="small", sink="done")
def forgetful(df: DataFrame) -> DataFrame:
    return df.select("partition", "payload")


@orders.step(source="large", sink="talked")
def talkative(df: DataFrame) -> DataFrame:
    return df.withColumn("more", sf.lit(1))


@orders.step(source="done", sink=None)
def watch(_: DataFrame) -> None:
    return None


def test_step_gets_messages_and_its_result_is_what_would_be_pushed(spark: SparkSession) -> None:
    rows = [
        {"payload": {"id": 1, "total": 5}, "partition": "b"},
        {"payload": {"id": 2, "total": 7}, "partition": "a"},
        {"payload": {"id": 3, "total": 0}, "partition": "a"},
        {"payload": {"id": "x"}, "partition": "a"},
        {"payload": {"id": 4, "total": 9}, "partition": "a"},
    ]
    found = run_step(validate, rows, pipeline=orders, spark=spark)
    assert found.payloads == [{"id": 2, "total": 14.0}, {"id": 4, "total": 18.0}, {"id": 1, "total": 10.0}]
    assert [(row["queue"], row["partition"], row["seq"]) for row in found.rows] == [
        ("payment", "a", 1),
        ("payment", "a", 4),
        ("payment", "b", 1),
    ]
    assert [why for _, why in found.rejected] == [
        "the payload does not fit the payload_schema id INT, total DOUBLE",
        "no total",
    ]
    assert found.rejected[0][0] == {"id": "x"}


def test_step_that_routes_says_where_to(spark: SparkSession) -> None:
    [step] = [one for one in orders.steps if one.name == "route"]
    found = run_step(step, [{"payload": 5}, {"payload": 50}], spark=spark)
    assert [(row["queue"], row["payload"]) for row in found.rows] == [("small", 5), ("large", 50)]


def test_what_a_run_refuses_is_refused(spark: SparkSession) -> None:
    with pytest.raises(StepFailed, match="dropped the column trace_id, seq"):
        run_step(forgetful, [{"payload": 1}], pipeline=orders, spark=spark)
    with pytest.raises(StepFailed, match="adds the column more"):
        run_step(talkative, [{"payload": 1}], pipeline=orders, spark=spark)
    with pytest.raises(InvalidRequest, match="row 1 has nothing"):
        run_step(route, [{"nothing": 1}], pipeline=orders, spark=spark)
    with pytest.raises(InvalidRequest, match="returned int"):
        run_step(lambda _: 1, [{"payload": 1}], spark=spark)
    with pytest.raises(InvalidOption, match="has 0 steps of this function"):
        run_step(lambda df: df, [], pipeline=orders, spark=spark)


def test_function_is_enough(spark: SparkSession) -> None:
    def looked_up(df: DataFrame, prices: DataFrame) -> DataFrame:
        return df.join(prices, sf.col("data.sku") == sf.col("sku")).select("partition", "seq", "price", "headers")

    rows = [{"payload": {"sku": "a"}, "headers": {"x": "y"}}]
    prices = [{"sku": "a", "price": 3}]
    found = run_step(looked_up, rows, payload_schema="sku STRING", spark=spark, prices=prices)
    assert found.rows == [{"partition": "Default", "seq": 1, "price": 3, "headers": '{"x":"y"}'}]
    assert run_step(watch, [{"payload": 1}], pipeline=orders, spark=spark).rows == []
    both = run_step(lambda left, right: left.unionByName(right), {"left": rows, "right": rows}, spark=spark)
    assert both.payloads == [{"sku": "a"}, {"sku": "a"}]


def test_bytes_and_texts_are_payloads(spark: SparkSession) -> None:
    rows = [{"payload": b"[1]"}, {"payload": b"\xff", "encoding": "raw"}, {"payload": "text"}]
    found = run_step(lambda df: df, rows, spark=spark)
    assert found.payloads == [[1], "/w==", "text"]


def test_guide_does_what_it_says(spark: SparkSession) -> None:
    assert spark is not None
    text = (Path(__file__).parents[2] / "docs/guides/testing-steps.md").read_text()
    defined, tested = re.findall(r"^```python.*?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(defined, names)
    exec(tested.replace("from orders import orders, validate", ""), names)
    names["test_validate"]()
