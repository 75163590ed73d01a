"""The current queues of a step that reads by pattern."""

from __future__ import annotations

from typing import Any

import psycopg

from lockstep.config import Config
from lockstep.spark.database import rows_of
from lockstep.spark.pipelines.pipeline import Step
from lockstep.spark.read.positions import find_matching


def source_queues(step: Step, connection: psycopg.Connection[Any], config: Config) -> dict[str, int]:
    """The ids of its existing sources, by name."""
    if step.by_pattern:
        return find_matching(connection, step.sources[0], config.spark_pattern_queues_max)
    return dict(rows_of(connection, "queue_ids", list(step.sources)))
