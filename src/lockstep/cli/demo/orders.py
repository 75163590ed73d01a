"""The pipeline of the demo: orders are validated, charged and shipped, from queue to queue.

Each step shares the consumer group `shop` on its queue, so that what it has done shows as any consumer's work does.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from lockstep.spark import Pipeline, reject

INTAKE, PAYMENT, SHIPPING, SHIPPED = "order-intake", "payment", "shipping", "shipped"
ORDER = "number bigint, customer string, total double, card string"

orders = Pipeline("orders")


@orders.step(source=INTAKE, sink=PAYMENT, payload_schema=ORDER, group="shop")
def validate(df: DataFrame) -> DataFrame:
    """An order must be readable, which the schema sees to, and cost something."""
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


if __name__ == "__main__":
    orders.main()
