"""Finds the queues that ids belong to; ids that this process has handed out or looked up before are cached.

A partition stays in its queue, and a lease in its partitions, so cached answers stay true. Ids are never reused, not
even after a failover (decision 0041).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lockstep.core.access import OwnedKind
from lockstep.core.ids import parse_uuid
from lockstep.core.records import Popped
from lockstep.engine.engine import Engine
from lockstep.errors import InvalidRequest

_PARTITIONS_MAX = 200_000
_LEASES_MAX = 50_000


class Owners:
    """The queues of partitions and of leases."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._partitions: dict[int, str] = {}
        self._leases: dict[str, tuple[str, ...]] = {}

    def learn(self, popped: Popped) -> None:
        """Remember ids that were handed out."""
        for run in popped.runs:
            self._partitions[run.partition_id] = run.queue
        if popped.lease_id is not None:
            self._leases[popped.lease_id] = tuple({run.queue for run in popped.runs})
        _bound(self._partitions, _PARTITIONS_MAX)
        _bound(self._leases, _LEASES_MAX)

    async def of_partitions(self, ids: Iterable[int]) -> dict[int, str]:
        """The queues of partitions; unknown ids are left out."""
        wanted = set(ids)
        missing = [one for one in wanted if one not in self._partitions]
        if missing:
            found = await self._engine.queues_of("partition", [str(one) for one in missing])
            self._partitions.update({int(one): queues[0] for one, queues in found.items()})
        known = {one: self._partitions[one] for one in wanted if one in self._partitions}
        _bound(self._partitions, _PARTITIONS_MAX)
        return known

    async def of_leases(self, ids: Iterable[str]) -> set[str]:
        """The queues of leases, as far as they are live."""
        wanted = {spelled for one in ids if (spelled := _canonical(one)) is not None}
        found = {queue for one in wanted for queue in self._leases.get(one, ())}
        missing = [one for one in wanted if one not in self._leases]
        if missing:
            for queues in (await self._engine.queues_of("lease", missing)).values():
                found.update(queues)
        return found

    async def of(self, kind: OwnedKind, ids: Sequence[str]) -> set[str]:
        return {queue for queues in (await self._engine.queues_of(kind, ids)).values() for queue in queues}


def _canonical(lease_id: str) -> str | None:
    """Our spelling of a lease id; a store reads any spelling of a UUID."""
    try:
        return str(parse_uuid(lease_id, what="lease id"))
    except InvalidRequest:
        return None


def _bound(remembered: dict[Any, Any], most: int) -> None:
    """Forget the older half when there are too many."""
    if len(remembered) > most:
        for key in list(remembered)[: most // 2]:
            del remembered[key]
