"""Data pipelines on Spark: the data source `lockstep`, and what is built on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.spark.pipelines import side_inputs as inputs
    from lockstep.spark.pipelines.pipeline import Pipeline
    from lockstep.spark.pipelines.rejects import reject

__all__ = ["Pipeline", "inputs", "reject"]


def __getattr__(name: str) -> Any:
    # On first use: Spark's own processes import this package only for the data source.
    if name == "Pipeline":
        from lockstep.spark.pipelines.pipeline import Pipeline

        return Pipeline
    if name == "reject":
        from lockstep.spark.pipelines.rejects import reject

        return reject
    if name == "inputs":
        from lockstep.spark.pipelines import side_inputs

        return side_inputs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
