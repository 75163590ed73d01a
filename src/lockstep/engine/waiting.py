"""Pops that wait for messages.

A waiting pop is tried once, and then lies still until something may be there for it:
* A push that this process has committed wakes, at once, as many polls of each group as it had partitions; an ack that
  frees a partition wakes one. Nobody else is disturbed: a thousand polls do not storm the store for one message.
* A push of another process is heard over the store's signals (`Store.listen`), and wakes in the same way; and so is
  what the store pushes itself: what dies goes to a dead queue, and what is redriven comes back.
  An ack of another process makes those look who wait for its queue.
* What becomes due by itself (a lease that ends, a retry, a delay), and what no signal told of, is found by checks: one
  `has_pending` for all that is waited for, with a wait between checks that doubles while nothing comes. However many
  polls wait for the same queue and group, they are one question.
A poll that was woken and finds nothing, because another was faster, lies still again.

Polls of a shared group share what a push brings: as many are woken as there are messages, and each takes no more than
its fair share, so that one with a large batch does not leave the others with nothing. Where it is not known how much
there is, those who want least are woken first.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from lockstep.config import Config
from lockstep.core.records import LEASES_ENDED, Arrival, PendingRequest, Popped, PopRequest, Subscription
from lockstep.errors import LockstepError, Unavailable
from lockstep.storage.base import Store

_CHECK_KEYS_MAX = 1000
_WAKE_ALL = 1_000_000_000
_LOOK_SECONDS_MIN = 0.02
"""Between two looks for what acks of other processes have freed."""


class Key(NamedTuple):
    """What a poll waits for. Without a queue: any queue of a namespace or task."""

    queue: str | None
    group: str
    partition: str | None


@dataclass(slots=True)
class WaitingCounts:
    polls: int = 0
    """Polls that wait now."""
    woken: int = 0
    precheck_hits: int = 0
    """Checks that found something, so that a pop was tried."""
    precheck_misses: int = 0
    """Checks that found nothing: pops saved."""


@dataclass(slots=True, eq=False)
class _Poll:
    key: Key
    wake: asyncio.Future[None]
    shared_batch: int | None = None
    """Of a poll of a shared group: how many messages it wants."""
    share: int | None = None
    """How many of them it may take when it is woken; None is as many as it wants."""
    chained: bool = False
    """It was woken by a check, which does not know how much there is: if it finds something, the next is woken."""


@dataclass(slots=True)
class _Queue:
    """The polls of one key, in the order in which they came, and when it is checked next."""

    key: Key
    check_at: float
    pause: float
    polls: OrderedDict[_Poll, None] = field(default_factory=OrderedDict)


class Waiting:
    """All polls that wait in this process."""

    def __init__(
        self, store: Store, pop: Callable[[list[PopRequest]], Awaitable[list[Popped]]], config: Config
    ) -> None:
        self._store = store
        self._pop = pop
        self._config = config
        self._queues: dict[Key, _Queue] = {}
        self._by_name: dict[str | None, dict[Key, _Queue]] = {}
        self._checking: asyncio.Task[None] | None = None
        self._freed: set[Key] = set()
        """What is waited for where acks of other processes may have freed something."""
        self._looking: asyncio.Task[None] | None = None
        self._stopped = False
        self._paused = False
        self.shared = 0
        """Polls of shared groups that wait now."""
        self.counts = WaitingCounts()

    async def pop(self, request: PopRequest, seconds: float) -> Popped:
        """What there is for the request as soon as there is something; empty after `seconds`."""
        deadline = time.monotonic() + seconds
        poll = _Poll(Key(request.queue, request.group, request.partition), _future())
        # It counts as waiting before it looks: what comes in between wakes it.
        self._add(poll)
        waited = False
        try:
            while True:
                try:
                    popped = (await self._pop([_limited(request, poll.share)]))[0]
                except Unavailable:
                    # One that waits already outlasts a short outage, and is woken when the store is back.
                    if not waited:
                        raise
                    popped = Popped(request.group)
                if popped.mode == "shared" and poll.shared_batch is None:
                    poll.shared_batch = request.batch
                    self.shared += 1
                if popped.runs:
                    if poll.chained:
                        self._queues[poll.key].polls.pop(poll, None)  # it is served, and not the next one
                        self._wake(poll.key, 1, chained=True)
                    return popped
                if popped.no_queue and request.subscription.mode == "new":
                    # All that will be there is new; the group would begin behind what wakes this poll.
                    request = replace(request, subscription=Subscription())
                waited = True
                if not await self._sleep(poll, deadline - time.monotonic()):
                    return popped
        finally:
            self._remove(poll)

    def pushed(self, partitions_by_queue: Mapping[str, Collection[str]], messages_by_queue: Mapping[str, int]) -> None:
        """Something was pushed to these partitions; so many messages."""
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
                    self._wake(key, 1, chained=self.shared > 0)
        self._wake_wide()

    def _share(self, key: Key, messages: int) -> None:
        """Wake polls of a shared group, each for its fair share of the messages."""
        polls = [poll for poll in self._queues[key].polls if poll.shared_batch is not None and not poll.wake.done()]
        for poll, share in zip(polls, fair_shares([poll.shared_batch or 0 for poll in polls], messages), strict=True):
            if share:
                poll.share = share
                poll.wake.set_result(None)
                self.counts.woken += 1

    def heard(self, queue: str | None, arrival: Arrival) -> None:
        """Something came to a queue, or, for None, to any, that nobody here has pushed; to which partitions is not
        known. Or leases have ended there."""
        if arrival == LEASES_ENDED:
            self._look_at(queue)
            return
        for key in list(self._by_name.get(queue, ())) if queue is not None and arrival.messages else ():
            if key.partition is None:
                self._share(key, arrival.messages)
        self.stirred(queue, count=arrival.partitions)

    def _look_at(self, queue: str | None) -> None:
        self._freed.update(self._by_name.get(queue, ()), self._by_name.get(None, ()))
        if self._freed and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look())

    def stirred(self, queue: str | None, *, count: int = 1) -> None:
        """Something may have become due in a queue, or, for None, in any."""
        if not self._queues:
            return
        names = list(self._by_name) if queue is None else [queue]
        for name in names:
            for key in list(self._by_name.get(name, ())):
                self._wake(key, count, chained=True)
        self._wake_wide()

    def is_anybody(self) -> bool:
        return bool(self._queues)

    async def _look(self) -> None:
        while self._freed:
            keys, self._freed = self._freed & self._queues.keys(), set()
            with suppress(LockstepError):  # the checks come to it, too
                await self._check(list(keys))
            await asyncio.sleep(_LOOK_SECONDS_MIN)

    def pause(self, paused: bool) -> None:
        """Let every poll answer now, and every later one without a wait; or no longer."""
        self._paused = paused
        if paused:
            for key in list(self._queues):
                self._wake(key, _WAKE_ALL)

    async def stop(self) -> None:
        """Let every poll answer now, for good."""
        self._stopped = True
        self.pause(True)
        for task in (self._checking, self._looking):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))

    def _add(self, poll: _Poll) -> None:
        queue = self._queues.get(poll.key)
        if queue is None:
            pause = self._config.pop_check_seconds_min
            queue = self._queues[poll.key] = _Queue(poll.key, time.monotonic() + pause, pause)
            self._by_name.setdefault(poll.key.queue, {})[poll.key] = queue
        queue.polls[poll] = None
        self.counts.polls += 1
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check_forever())

    def _remove(self, poll: _Poll) -> None:
        queue = self._queues[poll.key]
        queue.polls.pop(poll, None)
        self.shared -= poll.shared_batch is not None
        self.counts.polls -= 1
        if not queue.polls:
            del self._queues[poll.key]
            by_key = self._by_name[poll.key.queue]
            del by_key[poll.key]
            if not by_key:
                del self._by_name[poll.key.queue]

    async def _sleep(self, poll: _Poll, seconds: float) -> bool:
        """Lie still until woken. False when the time is up, or everybody is sent home."""
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
        # It goes to the end of the line, and can be woken again from now on.
        poll.wake = _future()
        self._queues[poll.key].polls.move_to_end(poll)
        return True

    def _wake(self, key: Key, count: int, *, chained: bool = False) -> None:
        queue = self._queues.get(key)
        if queue is None:
            return
        # Of shared groups those come first who want least: then what there is lasts for the most of them.
        polls = sorted(queue.polls, key=lambda poll: poll.shared_batch or 0) if self.shared else queue.polls
        for poll in polls:
            if count <= 0:
                break
            if not poll.wake.done():
                poll.chained = chained
                poll.share = None
                poll.wake.set_result(None)
                self.counts.woken += 1
                count -= 1
        queue.pause = self._config.pop_check_seconds_min
        queue.check_at = time.monotonic() + queue.pause

    def _wake_wide(self) -> None:
        """Which namespace a queue belongs to is not known here, so all who wait for one look."""
        for key in list(self._by_name.get(None, ())):
            self._wake(key, _WAKE_ALL)

    async def _check_forever(self) -> None:
        while self._queues:
            # A steady tick: what is due is looked at together, however many keys there are.
            await asyncio.sleep(self._config.pop_check_seconds_min)
            now = time.monotonic()
            due = [queue for queue in self._queues.values() if queue.check_at <= now]
            for queue in due:
                queue.pause = min(queue.pause * 2, self._config.pop_check_seconds_max)
                queue.check_at = now + queue.pause
            with suppress(LockstepError):  # the polls themselves will say so when they try
                await self._check([queue.key for queue in due])

    async def _check(self, keys: list[Key]) -> None:
        """Wake one poll of each key for which there is something; it wakes the next."""
        if not self._config.pop_precheck:
            for key in keys:
                self._wake_gently(key)
            return
        for key in [key for key in keys if key.queue is None]:
            self._wake_gently(key)
        asked = [key for key in keys if key.queue is not None]
        for start in range(0, len(asked), _CHECK_KEYS_MAX):
            part = asked[start : start + _CHECK_KEYS_MAX]
            requests = [
                PendingRequest(queue=key.queue, group=key.group, partition=key.partition)
                for key in part
                if key.queue is not None
            ]
            for key, pending in zip(part, await self._store.has_pending(requests), strict=True):
                if pending:
                    self.counts.precheck_hits += 1
                    self._wake_gently(key)
                else:
                    self.counts.precheck_misses += 1

    def _wake_gently(self, key: Key) -> None:
        """Wake one poll, without making the checks of its key more frequent."""
        queue = self._queues.get(key)
        if queue is not None:
            check_at, pause = queue.check_at, queue.pause
            self._wake(key, 1, chained=True)
            queue.check_at, queue.pause = check_at, pause


def fair_shares(wanted: Sequence[int], there: int) -> list[int]:
    """How so many messages are shared by those who want some: nobody gets more than they want, and who gets less than
    they want gets no less than anybody else, give or take one."""
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
