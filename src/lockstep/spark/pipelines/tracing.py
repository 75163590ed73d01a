"""OpenTelemetry spans of the batches of steps, where the setting `tracing` is on.

A batch has one span, with links to the spans in the headers of its first messages; the messages that it pushes carry
that span. Finding the links reads part of the batch again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lockstep.spark.pipelines.committing import StepBatch
from lockstep.spark.pipelines.pipeline import Step
from lockstep.tracing import LINKS_MAX, own_context, step_batch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_MAP = "map<string,string>"


@contextmanager
def batch_span(step: Step, frame: DataFrame, place: StepBatch) -> Iterator[None]:
    """A span around the work on a batch."""
    with step_batch(step.full_name, place.batch_id, _headers_of(frame)):
        yield


def _headers_of(frame: DataFrame) -> list[Mapping[str, str]]:
    if "headers" not in frame.columns:
        return []
    from pyspark.sql import functions as F  # noqa: N812

    headers = _as_map(frame).alias("headers")
    rows = frame.select(headers).where(F.col("headers.traceparent").isNotNull()).limit(LINKS_MAX).collect()
    return [headers for (headers,) in rows]


def carrying_rows(rows: DataFrame) -> DataFrame:
    """The rows with the current span in their headers, replacing the span under which they were produced."""
    own = own_context()
    if not own:
        return rows
    from pyspark.sql import functions as F  # noqa: N812

    if "headers" not in rows.columns:
        return rows.withColumn("headers", F.lit(json.dumps(own)))
    ours = F.from_json(F.lit(json.dumps(own)), _MAP)
    others = F.map_filter(_as_map(rows), lambda name, _: ~name.isin("traceparent", "tracestate"))
    merged = F.coalesce(F.map_concat(others, ours), ours)
    return rows.withColumn("headers", merged if _is_map(rows) else F.to_json(merged))


def _as_map(frame: DataFrame) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col("headers") if _is_map(frame) else F.from_json(F.col("headers").cast("string"), _MAP)


def _is_map(frame: DataFrame) -> bool:
    kind: Any = frame.schema["headers"].dataType
    return bool(kind.typeName() == "map")
