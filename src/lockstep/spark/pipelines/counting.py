"""Counts the rows of a batch while they are read, and only once, however often the function uses its frame."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockstep.spark.read.schema import DATA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOLD_SECONDS = 2.0
"""Spark reports its counts a moment after it has run."""
_POLL_SECONDS = 0.01
_MISFITS = "misfits"


class RowCount:
    """Counts the rows of a frame the first time that they are read."""

    def __init__(self, queues: Sequence[str], *, misfits: bool = False) -> None:
        """`misfits`: also those whose payload does not fit its schema."""
        from pyspark.sql import Observation

        self._queues = queues
        self._counts_misfits = misfits
        self._observation: Any = Observation()
        self.misfits = 0
        """How many there are, as soon as it has been asked for the rows."""

    def of(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        counts = [F.count_if(F.col("queue") == queue).alias(str(place)) for place, queue in enumerate(self._queues)]
        if self._counts_misfits:
            counts.append(F.count_if(F.col(DATA).isNull()).alias(_MISFITS))
        return frame.observe(self._observation, *counts)

    def get(self) -> dict[str, int]:
        """By queue; empty if the frame has not been read."""
        told = self._observation._jo.future()
        until = time.monotonic() + _TOLD_SECONDS
        while not told.isCompleted():
            if time.monotonic() > until:
                return {}
            time.sleep(_POLL_SECONDS)
        found = self._observation.get
        if self._counts_misfits:
            self.misfits = int(found[_MISFITS])
        return {queue: int(found[str(place)]) for place, queue in enumerate(self._queues)}
