"""Recent rates of queues, from the stored samples: for the charts in lists.

Samples are taken once a minute, so a result can be shared for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from lockstep.core.buckets import SampleSpan
from lockstep.engine.engine import Engine

SPAN = timedelta(minutes=40)
BUCKET_SECONDS = 120
_GOOD_SECONDS = 20.0
_QUEUES_MAX = 2_000
_AT_ONCE = 4


class RecentSamples:
    """The samples of single queues, cached for some seconds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, tuple[float, list[SampleSpan]]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def of(self, queues: Iterable[str]) -> dict[str, Sequence[SampleSpan]]:
        names = list(queues)
        return dict(zip(names, await asyncio.gather(*map(self._of, names)), strict=True))

    async def _of(self, queue: str) -> list[SampleSpan]:
        known = self._known.get(queue)
        if known is not None and time.monotonic() - known[0] < _GOOD_SECONDS:
            return known[1]
        async with self._turns:
            now = datetime.now(UTC)
            spans = await self._engine.sample_spans(seconds=BUCKET_SECONDS, from_at=now - SPAN, to_at=now, queue=queue)
        if len(self._known) >= _QUEUES_MAX:
            self._known.clear()
        self._known[queue] = (time.monotonic(), spans)
        return spans
