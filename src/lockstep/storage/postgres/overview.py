"""Sums over queues: namespaces, tasks, and the whole store. Read-only."""

from __future__ import annotations

from lockstep.core.overview import LabelInfo, LabelKind, Overview, Spread
from lockstep.storage.postgres.shared import Shared


class Overviews(Shared):
    async def namespaces(self, *, after: str | None = None, limit: int = 1000, exact: bool = False) -> list[LabelInfo]:
        return await self._labels("namespace", after, limit, exact)

    async def tasks(self, *, after: str | None = None, limit: int = 1000, exact: bool = False) -> list[LabelInfo]:
        return await self._labels("task", after, limit, exact)

    async def _labels(self, kind: LabelKind, after: str | None, limit: int, exact: bool) -> list[LabelInfo]:
        fields = LabelInfo.__struct_fields__
        rows = await self._query("queue_labels", kind, after, limit, self.now(), exact, self.figures_units_max)
        return [LabelInfo(**dict(zip(fields, row, strict=True))) for row in rows]

    async def overview(self, *, exact: bool = False) -> Overview:
        row = (await self._query("overview", self.now(), exact, self.figures_units_max))[0]
        counts = dict(zip(Overview.__struct_fields__[:10], row[:10], strict=True))
        return Overview(**counts, lag_seconds=_spread(row[10:14]), lag_messages=_spread(row[14:18]), figures_at=row[18])


def _spread(numbers: tuple[float | None, ...]) -> Spread:
    return Spread(**{name: number or 0.0 for name, number in zip(Spread.__struct_fields__, numbers, strict=True)})
