"""Pops that wait for messages.

A waiting pop is tried once, and then sleeps until there may be something for it:
* A push that this process has committed wakes at once as many polls of each group as it had partitions; an ack that
  frees a partition wakes one. The others sleep on: a thousand polls do not storm the store for one message.
* A push of another process arrives as a signal of the store (`Store.listen`) and wakes polls in the same way. So do
  pushes that the store makes itself: dead messages that go to a dead queue, and messages that are redriven.
  An ack of another process wakes the polls that wait for its queue.
* Messages that become due by themselves (the end of a lease, a retry, a delay) have a timer. Checks ask the store when
  the next message is due: `due_in`, one call for all waiting polls. All polls that wait for the same queue and group
  are one question. A check is made when a poll begins to wait; when a woken poll found nothing, because the messages
  that woke it may be due later; when a timer expires; and periodically, with an interval that doubles while nothing
  comes, to find what no signal has announced.
A poll that was woken and finds nothing, because another one was faster, goes back to sleep.

Checks are cheap because they are few. What is due within some milliseconds is one call, whatever the number of keys. A
lease that is renewed does not move a timer: the timer runs out, and the check finds the later time. If a check finds
something that no pop can get, because another transaction holds it, the next check of this key comes later each time.

Polls of a shared group share what a push brings: as many are woken as there are messages, and each takes no more than
its fair share, so that a poll with a large batch does not starve the others. Where the number of messages is not
known, the polls with the smallest batches are woken first.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

from msgspec.structs import replace

from lockstep.config import Config
from lockstep.core.records import LEASES_ENDED, Arrival, Awaited, Popped, PopRequest, Subscription
from lockstep.errors import LockstepError, TooManyPolls, Unavailable
from lockstep.storage.base import Store

_CHECK_KEYS_MAX = 1000
_WAKE_ALL = 1_000_000_000
_LOOK_SECONDS_MIN = 0.02
"""Between two checks of a key because of acks of other processes."""
_LEARN_SECONDS = 0.01
"""A poll that begins to wait, or found nothing, asks when something is due only after this delay: most are woken
before.
"""
_CHECK_SECONDS_MIN = 0.005
"""Between two checks of any keys: what becomes due in between is one call."""
_TICK_SECONDS = 0.05
"""Periodic checks are made on this beat, so that they coincide."""


@dataclass(slots=True)
class WaitingCounts:
    polls: int = 0
    """Number of waiting polls."""
    woken: int = 0
    precheck_hits: int = 0
    """Checks that found something, so that a pop was tried."""
    precheck_misses: int = 0
    """Checks that found nothing: pops saved."""


@dataclass(slots=True, eq=False)
class _Poll:
    key: Awaited
    batch: int
    wake: asyncio.Future[None]
    share: int | None = None
    """How many messages it may take when it is woken; None: as many as it requested."""
    chained: bool = False
    """It was woken by a check, which does not know how much there is: if this poll finds something, it wakes the
    next."""
    checked: bool = False
    """It was woken because a check found something."""
    looked: bool = False
    """Whether it has looked before, and looks again because it was woken."""


@dataclass(slots=True, eq=False)
class _Queue:
    """The polls of one key, in order of arrival, and when the key is checked next."""

    key: Awaited
    pause: float
    """From the next check to the one after, if nothing comes."""
    check_at: float = float("inf")
    checked_at: float = float("-inf")
    shared: bool = False
    """Whether its group is shared."""
    vain: int = 0
    """Number of checks in a row that found messages which no pop could get."""
    polls: OrderedDict[_Poll, None] = field(default_factory=OrderedDict)


class PopsAtOnce(Protocol):
    """Pops that do not wait (`batching.py`)."""

    async def pop(self, requests: Sequence[PopRequest]) -> list[Popped]: ...


class Waiting:
    """All polls that wait in this process."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config
        self._within = 2 * max(config.pop_check_seconds_max, config.pop_check_seconds_min)
        """What is due later than this is found by a later check."""
        self._tick = min(_TICK_SECONDS, config.pop_check_seconds_min)
        self._queues: dict[Awaited, _Queue] = {}
        self._by_name: dict[str | None, dict[Awaited, _Queue]] = {}
        self._agenda: list[tuple[float, int, _Queue]] = []
        """When they are checked; outdated entries are dropped when they come up."""
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._checking: asyncio.Task[None] | None = None
        self._stopped = False
        self._paused = False
        self.counts = WaitingCounts()

    async def pop(self, pops: PopsAtOnce, request: PopRequest, seconds: float) -> Popped:
        """The answer to the request as soon as there are messages; empty after `seconds`."""
        if self.counts.polls >= self._config.polls_waiting_max:
            raise TooManyPolls(f"{self.counts.polls} pops wait for messages (polls_waiting_max)")
        deadline = time.monotonic() + seconds
        poll = _Poll(awaited(request), request.batch, _future())
        # It counts as waiting before it looks: messages that arrive in between wake it.
        self._add(poll)
        waited = False
        try:
            while True:
                try:
                    popped = (await pops.pop([_limited(request, poll.share)]))[0]
                except Unavailable:
                    # A poll that already waits survives a short outage, and is woken when the store is back.
                    if not waited:
                        raise
                    popped = Popped(request.group)
                queue = self._queues[poll.key]
                if popped.mode == "shared" or (popped.no_queue and request.mode == "shared"):
                    queue.shared = True
                if popped.runs:
                    queue.vain = 0
                    if poll.chained:
                        queue.polls.pop(poll, None)  # this poll is served, not the next one
                        self._wake(poll.key, 1, chained=True)
                    return popped
                self._learn(queue, poll)
                if popped.no_queue and request.subscription.mode == "new":
                    # All messages that will exist are new; otherwise the group would start behind those that wake this
                    # poll.
                    request = replace(request, subscription=Subscription())
                waited = True
                if not await self._sleep(poll, deadline - time.monotonic()):
                    return popped
        finally:
            self._remove(poll)

    def pushed(self, partitions_by_queue: Mapping[str, Collection[str]], messages_by_queue: Mapping[str, int]) -> None:
        """Messages were pushed to these partitions; returns their number."""
        if not self._queues:
            return
        for queue, partitions in partitions_by_queue.items():
            for key in list(self._by_name.get(queue, ())):
                if key.partition is None:
                    self._share(key, messages_by_queue[queue])
                    self._wake(key, len(partitions))
                elif key.partition in partitions:
                    if len(partitions) == 1:
                        self._share(key, messages_by_queue[queue])
                    self._wake(key, 1, chained=self._queues[key].shared)
        self._wake_wide()

    def _share(self, key: Awaited, messages: int) -> None:
        """Wake polls, if their group is a shared one, each for its fair share of the messages."""
        queue = self._queues[key]
        if not queue.shared:
            return
        polls = [poll for poll in queue.polls if not poll.wake.done()]
        for poll, share in zip(polls, fair_shares([poll.batch for poll in polls], messages), strict=True):
            if share:
                poll.share = share
                poll.wake.set_result(None)
                self.counts.woken += 1

    def heard(self, queue: str | None, arrival: Arrival) -> None:
        """Messages arrived in a queue, or with None in any queue, that this process has not pushed; the partitions are
        unknown. Or leases have ended there."""
        if arrival == LEASES_ENDED:
            self.look_at(queue)
            return
        for key in list(self._by_name.get(queue, ())) if queue is not None and arrival.messages else ():
            if key.partition is None:
                self._share(key, arrival.messages)
        self.stirred(queue, count=arrival.partitions)

    def look_at(self, queue: str | None) -> None:
        """Leases in a queue have ended, or will end soon."""
        now = time.monotonic()
        for found in [*self._by_name.get(queue, {}).values(), *self._by_name.get(None, {}).values()]:
            self._plan(found, max(now, found.checked_at + _LOOK_SECONDS_MIN))

    def stirred(self, queue: str | None, *, count: int = 1) -> None:
        """Something may have become due in a queue, or, for None, in any."""
        if not self._queues:
            return
        names = list(self._by_name) if queue is None else [queue]
        for name in names:
            for key in list(self._by_name.get(name, ())):
                self._wake(key, count, chained=True)
        self._wake_wide()

    def is_waited_for(self, request: PopRequest) -> bool:
        """Whether a poll waits for the same as this request."""
        return awaited(request) in self._queues

    def is_anybody(self) -> bool:
        return bool(self._queues)

    def pause(self, paused: bool) -> None:
        """Let every poll answer now, and later ones without waiting; or let them wait again."""
        self._paused = paused
        if paused:
            for key in list(self._queues):
                self._wake(key, _WAKE_ALL)

    async def stop(self) -> None:
        """Let every poll answer now, for good."""
        self._stopped = True
        self.pause(True)
        if self._timer is not None:
            self._timer.cancel()
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait((self._checking,))

    def _add(self, poll: _Poll) -> None:
        queue = self._queues.get(poll.key)
        if queue is None:
            if not self._queues:
                self._store.expect_signals()
            queue = self._queues[poll.key] = _Queue(poll.key, self._config.pop_check_seconds_min)
            self._by_name.setdefault(poll.key.queue, {})[poll.key] = queue
            self._plan(queue, self._later(queue))
        queue.polls[poll] = None
        self.counts.polls += 1

    def _remove(self, poll: _Poll) -> None:
        queue = self._queues[poll.key]
        queue.polls.pop(poll, None)
        self.counts.polls -= 1
        if not queue.polls:
            del self._queues[poll.key]
            by_key = self._by_name[poll.key.queue]
            del by_key[poll.key]
            if not by_key:
                del self._by_name[poll.key.queue]

    async def _sleep(self, poll: _Poll, seconds: float) -> bool:
        """Sleep until woken. False when the time is up or all polls are ended."""
        if seconds <= 0 or self._stopped or self._paused:
            return False
        if not poll.wake.done():
            timer = asyncio.get_running_loop().call_later(seconds, _set, poll.wake)
            began = time.monotonic()
            try:
                await poll.wake
            finally:
                timer.cancel()
            if self._stopped or self._paused or time.monotonic() - began >= seconds:
                return False
        # It moves to the end of the line, and can be woken again from now on.
        poll.wake = _future()
        self._queues[poll.key].polls.move_to_end(poll)
        return True

    def _wake(self, key: Awaited, most: int, *, chained: bool = False, checked: bool = False) -> None:
        queue = self._queues.get(key)
        if queue is None:
            return
        # Of shared groups, the smallest requests come first: then the messages serve the most polls.
        polls: Iterable[_Poll] = queue.polls
        if queue.shared:
            polls = sorted(queue.polls, key=lambda poll: poll.batch)
        for poll in polls:
            if most <= 0:
                break
            if not poll.wake.done():
                poll.chained, poll.checked = chained, checked
                poll.share = None
                poll.wake.set_result(None)
                self.counts.woken += 1
                most -= 1
        if not checked:
            queue.pause = self._config.pop_check_seconds_min
            self._plan(queue, self._later(queue))

    def _wake_wide(self) -> None:
        """The namespace of a queue is not known here, so all polls that wait for a namespace check."""
        for key in list(self._by_name.get(None, ())):
            self._wake(key, _WAKE_ALL)

    # Checks

    def _learn(self, queue: _Queue, poll: _Poll) -> None:
        """A poll has found nothing: find out when there will be something, unless that is known."""
        if poll.checked:
            queue.vain += 1
        if self._config.pop_precheck and (poll.looked or queue.checked_at == float("-inf")):
            self._plan(queue, time.monotonic() + self._rest(queue))
        poll.looked = True

    def _rest(self, queue: _Queue) -> float:
        """How long a key is not checked again."""
        return min(_LEARN_SECONDS * (1 << min(queue.vain, 16)), max(self._config.pop_check_seconds_max, _LEARN_SECONDS))

    def _later(self, queue: _Queue) -> float:
        """When to check a key although nothing is known to be due."""
        at = time.monotonic() + queue.pause
        return at - at % self._tick

    def _plan(self, queue: _Queue, at: float) -> None:
        """Check a key at a time, if it is not checked before."""
        if at >= queue.check_at:
            return
        queue.check_at = at
        heappush(self._agenda, (at, next(self._numbers), queue))
        # Most polls are woken before they are checked, and leave an entry.
        if len(self._agenda) > 2 * len(self._queues) + 64:
            self._agenda = [(one.check_at, next(self._numbers), one) for one in self._queues.values()]
            heapify(self._agenda)
        if self._checking is None:
            self._set_timer(at)

    def _set_timer(self, at: float) -> None:
        if self._stopped or at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        seconds = max(at - time.monotonic(), 0)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._begin_check)

    def _begin_check(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        due = self._take_due()
        if due:
            self._checking = asyncio.create_task(self._check_all(due))
        elif self._agenda:
            self._set_timer(self._agenda[0][0])

    def _take_due(self) -> list[_Queue]:
        """The keys to check now. Timers may fire some tenths of a millisecond early."""
        now = time.monotonic() + 0.0005
        due: list[_Queue] = []
        while self._agenda:
            at, _, queue = self._agenda[0]
            outdated = queue.check_at != at or self._queues.get(queue.key) is not queue
            if not outdated and at > now:
                break
            heappop(self._agenda)
            if not outdated:
                queue.check_at = float("inf")
                due.append(queue)
        return due

    async def _check_all(self, due: list[_Queue]) -> None:
        for queue in due:
            queue.pause = min(queue.pause * 2, max(self._config.pop_check_seconds_max, queue.pause))
            self._plan(queue, self._later(queue))
        try:
            with suppress(LockstepError):  # the polls themselves report it when they try
                await self._check(due)
        finally:
            self._checking = None
        if self._agenda:
            self._set_timer(max(self._agenda[0][0], time.monotonic() + _CHECK_SECONDS_MIN))

    async def _check(self, due: list[_Queue]) -> None:
        """Wake one poll of each key for which there is something; it wakes the next. For the others, plan the check
        that will find it."""
        if not self._config.pop_precheck:
            for queue in due:
                self._wake(queue.key, 1, chained=True, checked=True)
            return
        for start in range(0, len(due), _CHECK_KEYS_MAX):
            part = due[start : start + _CHECK_KEYS_MAX]
            began = time.monotonic()
            found = await self._store.due_in([queue.key for queue in part], within=self._within)
            for queue, seconds in zip(part, found, strict=True):
                queue.checked_at = began
                if seconds == 0:
                    self.counts.precheck_hits += 1
                    self._wake(queue.key, 1, chained=True, checked=True)
                    continue
                self.counts.precheck_misses += 1
                queue.vain = 0
                if seconds is not None:
                    self._plan(queue, began + seconds)


def awaited(request: PopRequest) -> Awaited:
    return Awaited(request.queue, request.group, request.partition, request.namespace, request.task)


def fair_shares(wanted: Sequence[int], there: int) -> list[int]:
    """Divides messages fairly among requests: no request gets more than it wants, and a request that gets less than it
    wants gets no less than any other, give or take one."""
    shares = [0] * len(wanted)
    by_size = sorted(range(len(wanted)), key=wanted.__getitem__)
    for place, index in enumerate(by_size):
        shares[index] = min(wanted[index], there // (len(by_size) - place))
        there -= shares[index]
    return shares


def _limited(request: PopRequest, share: int | None) -> PopRequest:
    return request if share is None else replace(request, batch=min(request.batch, share))


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
