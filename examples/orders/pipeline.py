"""Orders through three steps on Spark: checked, charged, and told to the warehouse or to the customer.

lockstep pipeline run examples/orders/pipeline.py --dsn postgresql://… --once
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lockstep.spark import Pipeline, reject

ORDER = "number bigint, item string, total double"

orders = Pipeline("example-orders")


@orders.step(source="example.orders", sink="example.checked", payload_schema=ORDER)
def check(df: DataFrame) -> DataFrame:
    """What cannot be an order becomes a dead letter; so does a payload that is no JSON of this form."""
    return reject(df, "data.total is null or data.total <= 0", "an order must cost something")


@orders.step(source="example.checked", sink="example.charged", payload_schema=ORDER)
def charge(df: DataFrame) -> DataFrame:
    """With value added tax. What is not touched, such as the trace and the place in the order, is carried along."""
    gross = F.round(F.col("data.total") * 1.19, 2)
    return df.withColumn("payload", F.to_json(F.struct("data.number", "data.item", gross.alias("gross"))))


@orders.step(source="example.charged", sink=["example.warehouse", "example.mails"])
def tell(df: DataFrame) -> DataFrame:
    """Each order to two queues. Messages of a customer stay in order in both."""
    targets = F.array(F.lit("example.warehouse"), F.lit("example.mails"))
    return df.drop("queue").withColumn("queue", F.explode(targets))


if __name__ == "__main__":
    orders.main()
