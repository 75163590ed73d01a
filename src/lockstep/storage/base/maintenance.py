"""The verbs that the maintenance duties use: pruning, samples, and claims of duties."""

from __future__ import annotations

from typing import Any, Protocol

from lockstep.core.maintenance import DutyClaim, DutyInfo, Moved, Place, Pruned, PruneKind
from lockstep.core.statistics import ServerSample


class Maintenance(Protocol):
    """Prunes messages that policies no longer keep, takes samples, and assigns duties.

    Walks over all queues work in batches. Each batch is a separate call, which begins at the `next` of the previous
    batch, or at the start without one.
    """

    async def prune(self, kind: PruneKind, *, after: Place | None = None, limit: int) -> Pruned:
        """Remove messages that a queue's policy no longer keeps (`core/maintenance.py`), oldest first, with their dedup
        entries, trace entries, trace events and dead letters; record it in the history.

        A batch is of one queue and ends with the segment that makes it `limit` messages or more; it may also end
        early. Cursors skip messages that are removed ahead of them, as after a clear; a partition that was stopped by a
        removed message continues. Messages that could not be locked in time, and those after them in their partition,
        stay until the next walk. The kind `expiry` removes nothing: cursors that are not under a live lease skip
        expired messages. Shared groups also skip expired messages in flight without a live lease, whether they are due
        or wait for a retry.
        """

    async def prune_partitions(self, idle_seconds: float, *, after: Place | None = None, limit: int) -> Pruned:
        """Remove partitions that have been empty for `idle_seconds`; record it in the history.

        Empty means that every message was removed. A partition that never had messages stays, and so do `Default`,
        partitions under a live lease, and those for which a stream query keeps state. The time counts from the first
        walk that finds the partition empty. The next push creates it again, from seq 1.
        """

    async def prune_queues(self, *, after: Place | None = None) -> Pruned:
        """Remove another part of the remains of deleted queues, which no other verb sees. A queue that another
        transaction still holds is skipped."""

    async def prune_groups(self, *, after: Place | None = None) -> Pruned:
        """Create some of the cursors that new and moved groups still lack, or remove some that deleted groups have
        left. Callers see no difference: a missing cursor stands for the position where its group began, and the cursors
        of a deleted group have no effect. Rows that another transaction holds are skipped."""

    async def follow_clock(self, *, after: Place | None = None) -> Moved:
        """Check the clock. If it was set back by more than CLOCK_STEP_MAX since the last check, move the due times of
        the old clock back: those of operations, and of cursors and ranges in flight in another part of the partitions.

        Whatever was due stays due, and retries are due earlier by the same step. A lease ends earlier by the step, but
        not before the queue's lease time from now. Delays and windows still count from the times of messages, and
        schedules keep theirs. Rows that another transaction holds are left for the next walk.
        """

    async def prune_history(self, seconds: float, *, limit: int) -> int:
        """Remove samples and removals that are older, at most `limit` of each; returns how many."""

    async def record_server(self, sample: ServerSample) -> None:
        """Store what a server process did; its samples are removed with those of queues."""

    async def claim_duty(self, name: str, *, interval_seconds: float, hold_seconds: float, by: str) -> DutyClaim:
        """Begin a duty, if it is due and unclaimed. The claim ends with finish_duty, or by itself after
        `hold_seconds`. A duty is due `interval_seconds` after it last began; a duty that never ran is due now."""

    async def finish_duty(
        self,
        name: str,
        *,
        by: str,
        effect: dict[str, Any] | None = None,
        error: str | None = None,
        more: bool = False,
    ) -> bool:
        """End a claim, and store the result; with `more` the duty is due again at once. False if the claim is no longer
        the caller's; nothing is changed then."""

    async def duties(self) -> list[DutyInfo]:
        """Duties that were ever claimed, by name."""

    async def sample(self, *, seconds_max: float | None = None) -> int:
        """Take a sample of every queue, and its figures for lists; returns the number of queues. A queue gets at most
        one sample per instant.

        Each queue is walked in slices, each in a short transaction. After `seconds_max` the walks over large queues
        pause, each with at least one slice done; the next call continues them.
        """
