"""When groups with the subscription `new` first polled for queues that did not exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import FirstPollLimits, PopRequest, Subscription
from lockstep.storage.memory.state import Queue, State, StoredSubscription

_Key = tuple[str, str | None, str | None, str | None]
"""Group, queue, namespace, task."""


@dataclass(slots=True)
class MemoryFirstPolls:
    limits: FirstPollLimits = field(default_factory=FirstPollLimits)
    _polls: dict[_Key, tuple[datetime, datetime]] = field(default_factory=dict)
    """Since when, and when it was last seen."""

    def note(self, request: PopRequest, now: datetime) -> None:
        """Remember a poll, unless an earlier one is remembered, or there are too many."""
        if not is_of_interest(request):
            return
        key = (request.group, request.queue, request.namespace, request.task)
        known = self._polls.get(key)
        if known is None and len(self._polls) >= self.limits.polls_max:
            self._polls = {one: times for one, times in self._polls.items() if not self._is_old(times, now)}
            if len(self._polls) >= self.limits.polls_max:
                return
        self._polls[key] = (now if known is None or self._is_old(known, now) else known[0], now)

    def use(self, queue: Queue, group: str, now: datetime) -> None:
        """Store the subscription of a group that is about to be created with `new`."""
        found = [
            times[0]
            for (name, *place), times in self._polls.items()
            if name == group and not self._is_old(times, now) and _is_about(queue, place, times[0])
        ]
        self._polls.pop((group, queue.name, None, None), None)
        if found:
            queue.subscriptions.setdefault(group, StoredSubscription(Subscription("new"), min(found)))

    def forget(self, group: str, queue: str | None) -> None:
        """Forget when a group first polled: for one queue, and for namespaces and tasks, or, for None, for all."""
        for key in [key for key in self._polls if key[0] == group and (queue is None or key[1] in (None, queue))]:
            del self._polls[key]

    def _is_old(self, times: tuple[datetime, datetime], now: datetime) -> bool:
        return times[1] < now - timedelta(seconds=self.limits.seconds_max)


def is_of_interest(request: PopRequest) -> bool:
    return request.subscription.mode == "new" and request.group != QUEUE_MODE


def note_all(state: State, polls: MemoryFirstPolls, requests: Sequence[PopRequest], now: datetime) -> None:
    """Remember the polls that may miss the first messages of a future queue; use the remembered poll of a group that is
    about to be created."""
    for request in requests:
        if not is_of_interest(request):
            continue
        if request.queue is None or request.queue not in state.queues:
            polls.note(request, now)
        for queue in list(state.queues.values()):
            if request.group not in queue.groups and _is_asked(queue, request):
                polls.use(queue, request.group, now)


def _is_asked(queue: Queue, request: PopRequest) -> bool:
    if request.queue is not None:
        return request.queue == queue.name
    return request.namespace in (None, queue.namespace) and request.task in (None, queue.task)


def _is_about(queue: Queue, place: list[str | None], since_at: datetime) -> bool:
    name, namespace, task = place
    if name is not None:
        return name == queue.name
    return namespace in (None, queue.namespace) and task in (None, queue.task) and since_at <= queue.created_at
