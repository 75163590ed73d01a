"""Orders from a queue: cleaned into a table, counted by customer, and the large ones pushed on to another queue.

The database is that of the environment variable LOCKSTEP_DSN, on the driver and on every executor.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.active()

dp.create_sink("large_orders", "lockstep", {"queue": "large-orders"})


@dp.table
def orders() -> DataFrame:
    """Every order, once."""
    messages = (
        spark.readStream.format("lockstep")
        .option("queue", "orders")
        .option("payloadSchema", "number bigint, total double")
        .option("streamName", "declarative orders")
        .load()
    )
    return messages.selectExpr(
        "partition as customer", "seq", "data.number as number", "data.total as total", "trace_id", "created_at"
    )


@dp.materialized_view
def totals() -> DataFrame:
    """What each customer has spent."""
    return (
        spark.read.table("orders")
        .groupBy("customer")
        .agg(sf.count("*").alias("orders"), sf.sum("total").alias("total"))
    )


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    """Orders of 100 and more, for whoever looks after them."""
    rows = spark.readStream.table("orders").where("total >= 100")
    return rows.selectExpr("customer as partition", "to_json(struct(number, total)) as payload", "trace_id")
