"""Arrivals: the object that notifies everything that waits for messages.

Three things may wait: pops in this process (`waiting.py`), the promotion of scheduled messages, and other processes,
which the store notifies. Everything that commits something calls this object afterwards: joined calls, operations that
were applied, the spool as it drains, the promotion itself.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import ParamSpec

from lockstep.config import Config
from lockstep.core.messages import Batch, PushResult
from lockstep.core.records import LEASES_ENDED, AckOutcome, Arrival, Popped, PopRequest
from lockstep.engine.maintenance.promotion import Promotion
from lockstep.engine.waiting import Waiting
from lockstep.storage.base import Store

logger = logging.getLogger("lockstep.engine")

P = ParamSpec("P")


def _never_raises(notify: Callable[P, None]) -> Callable[P, None]:
    """A committed change stays committed: a caller that got the error of a notification would repeat its request. A
    waiter that is not notified finds out by itself, a little later."""

    @wraps(notify)
    def notify_safely(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            notify(*args, **kwargs)
        except Exception as error:
            logger.error("tell_failed", extra={"action": "tell_failed", "error": str(error)}, exc_info=error)

    return notify_safely


class Arrivals:
    """Notifies waiting pops, here and in other processes, and the promotion."""

    def __init__(self, store: Store, config: Config) -> None:
        self.waiting = Waiting(store, config)
        self.promotion = Promotion(store, config, self)
        self._store = store
        self._check_seconds_max = config.pop_check_seconds_max
        self._listening = False

    async def listen(self) -> None:
        """Receive the pushes of other processes, and what the store itself does."""
        if not self._listening:
            self._listening = True
            await self._store.listen(self._heard, waiting=self.waiting.is_anybody)

    def _heard(self, queue: str | None, arrival: Arrival) -> None:
        if arrival.messages and not arrival.partitions:
            self.promotion.stir()
        else:
            self.waiting.heard(queue, arrival)

    @_never_raises
    def pushed(self, batches: Sequence[Batch], pushed: PushResult) -> None:
        """A push was committed: messages for the waiting pops, and schedules for the promotion."""
        if any([batch.schedule is not None for batch in batches]):
            self.scheduled(pushed.first_due_at())
            placed = zip(batches, pushed.placements, strict=True)
            batches = [batch for batch, placement in placed if placement.appointments is None]
        partitions: dict[str, set[str]] = {}
        messages: dict[str, int] = {}
        for batch in batches:
            partitions.setdefault(batch.queue, set()).add(batch.partition)
            messages[batch.queue] = messages.get(batch.queue, 0) + len(batch.columns)
        self._pushed_to(partitions, messages)

    @_never_raises
    def pushed_to(self, partitions_by_queue: Mapping[str, set[str]], messages_by_queue: Mapping[str, int]) -> None:
        """These partitions have new messages; the numbers are by queue."""
        self._pushed_to(partitions_by_queue, messages_by_queue)

    def _pushed_to(self, partitions_by_queue: Mapping[str, set[str]], messages_by_queue: Mapping[str, int]) -> None:
        self.waiting.pushed(partitions_by_queue, messages_by_queue)
        pushed = partitions_by_queue.items()
        self._store.announce({queue: Arrival(len(found), messages_by_queue[queue]) for queue, found in pushed})

    @_never_raises
    def scheduled(self, due_at: datetime | None) -> None:
        """Messages wait for this time. This process promotes them: the store may have no server."""
        self.promotion.start()
        self.promotion.note(due_at)

    @_never_raises
    def released(self, outcomes: Sequence[AckOutcome]) -> None:
        """Acks have freed partitions, which may have more for the next consumer."""
        released = Counter([outcome.queue for outcome in outcomes if outcome.released and outcome.queue is not None])
        for queue, partitions in released.items():
            self.waiting.stirred(queue, count=partitions)
        if released:
            self._store.announce(dict.fromkeys(released, LEASES_ENDED))

    @_never_raises
    def leased(self, requests: Sequence[PopRequest], answers: Sequence[Popped]) -> None:
        """Pops have leased messages. Leases that end before the waiting pops check again are announced."""
        for request, popped in zip(requests, answers, strict=True):
            if request.lease_seconds is not None and request.lease_seconds < self._check_seconds_max:
                for queue in {run.queue for run in popped.runs if popped.lease_id is not None}:
                    self.waiting.look_at(queue)
                    self._store.announce({queue: LEASES_ENDED})

    @_never_raises
    def stirred(self, queue: str | None) -> None:
        """Messages of a queue, or of any, became due without a push."""
        self.waiting.stirred(queue)
        if queue is not None:
            self._store.announce({queue: Arrival()})
