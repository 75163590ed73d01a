"""The pipeline of the demo: duplicate orders are dropped; the others are validated, charged and shipped, from queue to
queue. In addition, revenue is summed up in windows, and parcels are joined with charges.

Each stateless step shares the consumer group `shop` on its queue, so that its progress is visible like that of any
consumer. Stateful steps read on their own.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from lockstep.spark import Pipeline, reject

INTAKE, ORDERS, PAYMENT, SHIPPING, SHIPPED = "order-intake", "order", "payment", "shipping", "shipped"
REVENUE, DELIVERY = "revenue", "delivery"
ORDER = "number bigint, customer string, total double, card string"
NUMBER = "number bigint"

orders = Pipeline("orders")


@orders.step(source=INTAKE, sink=ORDERS, stateful=True)
def once(df: DataFrame) -> DataFrame:
    """Some customers press the button twice: a second order with the same number is dropped."""
    numbered = df.withColumn("number", sf.get_json_object("payload", "$.number"))
    return numbered.withWatermark("created_at", "1 hour").dropDuplicatesWithinWatermark(["number"]).drop("number")


@orders.step(source=ORDERS, sink=PAYMENT, payload_schema=ORDER, group="shop")
def validate(df: DataFrame) -> DataFrame:
    """An order must be readable, which the schema ensures, and must not be free."""
    return reject(df, "not coalesce(data.total > 0, false)", "an order must cost something")


@orders.step(source=PAYMENT, sink=SHIPPING, payload_schema=ORDER, group="shop")
def charge(df: DataFrame) -> DataFrame:
    """Some cards are declined."""
    marked = reject(df, "data.card = 'declined'", sf.concat(sf.lit("card declined for "), sf.col("data.customer")))
    charged = sf.struct("data.number", "data.customer", "data.total", sf.lit(True).alias("charged"))
    return marked.withColumn("payload", sf.to_json(charged)).withColumn("kind", sf.lit("charged"))


@orders.step(source=SHIPPING, sink=SHIPPED, group="shop")
def ship(df: DataFrame) -> DataFrame:
    """Every order becomes a parcel."""
    parcel = sf.struct(
        sf.get_json_object("payload", "$.number").cast("bigint").alias("number"),
        sf.concat_ws("-", "partition", "seq").alias("parcel"),
    )
    return df.withColumn("payload", sf.to_json(parcel)).withColumn("kind", sf.lit("parcel"))


@orders.step(source=SHIPPING, sink=REVENUE, payload_schema="total double", stateful=True, output_mode="update")
def revenue(df: DataFrame) -> DataFrame:
    """The charges of every 10 seconds. A window is pushed again whenever it changes; its last message counts."""
    timed = df.withWatermark("created_at", "1 hour").groupBy(sf.window("created_at", "10 seconds"))
    summed = timed.agg(sf.count("*").alias("orders"), sf.round(sf.sum("data.total"), 2).alias("total"))
    at = sf.date_format("window.start", "HH:mm:ss").alias("partition")
    return summed.select(at, sf.to_json(sf.struct("orders", "total")).alias("payload"))


@orders.step(source={"charged": SHIPPING, "parcels": SHIPPED}, sink=DELIVERY, payload_schema=NUMBER, stateful=True)
def deliver(charged: DataFrame, parcels: DataFrame) -> DataFrame:
    """The time of each order from its charge to its parcel."""
    left = charged.select("partition", "trace_id", "data.number", sf.col("created_at").alias("charged_at"))
    right = parcels.select(sf.col("data.number").alias("parcel"), sf.col("created_at").alias("shipped_at"))
    left, right = left.withWatermark("charged_at", "1 hour"), right.withWatermark("shipped_at", "1 hour")
    soon = "number = parcel and shipped_at between charged_at and charged_at + interval 1 hour"
    both = left.join(right, sf.expr(soon))
    seconds = sf.expr("timestampdiff(millisecond, charged_at, shipped_at) / 1000").alias("seconds")
    return both.select("partition", "trace_id", sf.to_json(sf.struct("number", seconds)).alias("payload"))


if __name__ == "__main__":
    orders.main()
