"""Groups that lack cursors, and cursors that lack their group: both are worked off in slices
(sql/procedures/group.sql)."""

from __future__ import annotations

import logging
import time

from lockstep.core.maintenance import START, Place, Pruned
from lockstep.errors import LockstepError
from lockstep.storage.postgres.cache import QueueNames
from lockstep.storage.postgres.shared import Shared

logger = logging.getLogger("lockstep.storage")

SUBSCRIBE = "select * from lockstep.subscribe($1, $2, $3, $4::timestamptz, $5::text, $6::timestamptz)"
_PLACE = "select * from lockstep.place_slice($1, $2::bigint, $3, $4::timestamptz)"
_PLACE_FOR_POP = "select * from lockstep.place_for_pop($1, $2::bigint, $3, $4::timestamptz)"
_NEXT_UNFINISHED = "select * from lockstep.next_unfinished_group($1)"
_REMOVE_CURSORS = "select * from lockstep.remove_deleted_cursors($1, $2)"


class Placing(Shared):
    slice_partitions_max: int
    slices_seconds_max: float

    async def _place_for_pop(self, names: QueueNames, group: str, partition_id: int | None) -> None:
        """Make some of the cursors that a group lacks, of a partition first, if nothing is due for the group."""
        given = (names.groups[group], partition_id, self.slice_partitions_max, self.now())
        _, _, _, placed = (await self.database.fetch("place_for_pop", _PLACE_FOR_POP, *given))[0]
        if placed:
            names.unplaced.discard(group)

    async def _place_group(self, group_id: int) -> bool:
        """Make cursors that a group lacks, for a while; says whether it has them all."""
        until = time.monotonic() + self.slices_seconds_max
        while True:
            given = (group_id, None, self.slice_partitions_max, self.now())
            _, _, more, placed = (await self.database.fetch("place_slice", _PLACE, *given))[0]
            if placed or not more or time.monotonic() >= until:
                return bool(placed)

    async def _settle(self, *group_ids: int) -> None:
        """Go on with groups that are unfinished, for a while; what is left is for maintenance, and so are failures."""
        until = time.monotonic() + self.slices_seconds_max
        for group_id in sorted(group_ids, reverse=True):  # a group that was moved is made from what it was before
            place: Place | None = Place(after=group_id - 1)
            try:
                while place == Place(after=group_id - 1) and time.monotonic() < until:
                    place = (await self.prune_groups(after=place)).next
            except LockstepError as error:
                fields = {"action": "group_postponed", "group_id": group_id, "error": str(error)}
                logger.warning("group_postponed", extra=fields)

    async def prune_groups(self, *, after: Place | None = None) -> Pruned:
        place = after or START
        found = await self.database.fetch("next_unfinished_group", _NEXT_UNFINISHED, place.after)
        group_id, deleted = found[0] if found else (None, False)
        if group_id is None:
            return Pruned()
        if deleted:
            rows = await self.database.fetch(
                "remove_deleted_cursors", _REMOVE_CURSORS, group_id, self.slice_partitions_max
            )
            done, more = rows[0]
        else:
            given = (group_id, None, self.slice_partitions_max, self.now())
            done, _, more, _ = (await self.database.fetch("place_slice", _PLACE, *given))[0]
        return Pruned(partitions=done, next=Place(after=group_id - 1 if more else group_id))
