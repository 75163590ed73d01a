"""The requests of one kind: they gather while a call is in flight, and go together when it ends (batching.py)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from lockstep.config import Config
from lockstep.errors import LockstepError, LockTimeout, OperationPending, Unavailable

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_UNWANTED_SECONDS_MAX = 1.0
_LOOK_SECONDS_MIN = 0.5
_GOES_ON_SECONDS = 1.0
"""Calls of a kind go on if one has ended well within this time."""
_CROWD_PART = 8
"""Of the time that a crowd takes, which its first has waited: one that is served at once is no crowd."""
_LONG = 3
"""A call is long that takes so many times as long as those of late."""
_LARGE_EACH = 100
"""Messages in each item of a large request, on average."""
_SECONDS_SHARE = 0.2
"""Of the last call, in the average."""
_EACH_SHARE = 0.05
"""Of the last request, in the average."""
_RATE_KEPT = 0.9
"""A rate is forgotten this slowly: a lull does not mean that there is less time."""


@dataclass(slots=True)
class CallCounts:
    """How well the requests of one kind are joined."""

    requests: int = 0
    calls: int = 0
    items: int = 0
    """Messages, acks, pops or renewals in all calls."""
    requests_max: int = 0
    """Most requests that one call carried."""
    retried_alone: int = 0
    """Requests that were tried alone because their joined call failed."""

    @property
    def round_trips_saved(self) -> int:
        return self.requests - self.calls


@dataclass(frozen=True, slots=True)
class Crowd:
    """The requests of one kind that wait for their call, and how calls of the kind went of late."""

    requests: int = 0
    bytes: int = 0
    oldest_seconds: float = 0.0
    """How long the first of them has waited."""
    fastest_seconds: float = 0.0
    """What the fastest call took; while several are in flight and none ends, at least how long that is so already."""

    def __or__(self, other: Crowd) -> Crowd:
        """Both as one kind: the slower of the two counts."""
        return Crowd(
            self.requests + other.requests,
            self.bytes + other.bytes,
            max(self.oldest_seconds, other.oldest_seconds),
            max(self.fastest_seconds, other.fastest_seconds),
        )


@dataclass(slots=True)
class _Asked(Generic[Item, Answer]):
    """A request that waits for its call."""

    items: Sequence[Item]
    messages: int
    bytes: int
    keys: frozenset[Hashable]
    apart: frozenset[Hashable]
    answer: asyncio.Future[Answer]
    at: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Of joined calls. A single request that exceeds them goes alone."""

    requests_max: int
    messages_max: int
    bytes_max: int
    messages_min: int
    """For fewer, no second call is begun beside one that is in flight."""
    patience_seconds: float
    calls_late_max: int
    """Most calls in flight while those before take long: some connections stay for everything else."""
    messages_large: int
    """A request of so many, in few items, gains nothing from company: it goes alone, and does not wait for others to
    end. One of many items does, because others may have items for the same partitions."""
    calls_large_max: int
    """Unless so many calls are in flight: the other connections stay for everything else."""
    calls_large_alone_max: int
    """The same while nobody else has use for them."""
    crowd_requests: int
    """If more wait than this, or more bytes, or what takes longer than so many seconds, somebody is told."""
    crowd_bytes: int
    crowd_seconds: float
    crowd_messages_min: int
    """Fewer messages are never too many."""

    @classmethod
    def of(cls, config: Config) -> Limits:
        return cls(
            requests_max=config.call_requests_max if config.batching else 1,
            messages_max=config.call_messages_max,
            bytes_max=config.call_bytes_max,
            messages_min=config.call_messages_min if config.batching else 0,
            patience_seconds=config.call_patience_seconds,
            calls_late_max=max(config.pool_connections_max // 2, 1),
            messages_large=config.call_messages_large,
            calls_large_max=max(config.pool_connections_max // 2, 1),
            calls_large_alone_max=config.pool_connections_max,
            crowd_requests=config.load_requests_max,
            crowd_bytes=config.load_bytes_max,
            crowd_seconds=config.load_wait_seconds_max,
            crowd_messages_min=config.load_busy_messages_max,
        )


class Call(Protocol):
    """A verb of the store, for the items of one request or of several."""

    def __call__(self, items: list[Any], /, *, brief: bool) -> Awaitable[Any]: ...


class Lane(Generic[Item, Answer]):
    """The requests of one kind. A request is a sequence of items, and has one answer."""

    def __init__(
        self,
        call: Call,
        split: Callable[[Any, int, int], Answer],
        *,
        calls_max: int,
        limits: Limits,
        size: Callable[[Sequence[Item]], int] | None = None,
        abandoned: Callable[[Answer], None] | None = None,
        crowded: Callable[[], None] | None = None,
        stalls: bool = False,
        alone: Callable[[], bool] = lambda: False,
    ) -> None:
        self._call = call
        self._split = split
        """The part of a call's answer that belongs to the items from one place to another."""
        self._size = size
        """The bytes of a request, looked at only if it has to wait."""
        self._calls_max = calls_max
        self._limits = limits
        self._abandoned = abandoned
        self._crowded = crowded
        self._stalls = stalls
        """Whether that no call ends is a load."""
        self._alone = alone
        """Whether there are no requests of other kinds, and have not been for a while."""
        self._waiting: deque[_Asked[Item, Answer]] = deque()
        self._waiting_messages = 0
        self._waiting_bytes = 0
        self._seconds_each = 0.0
        """Of one call, of late."""
        self._messages_each = 1.0
        """Of one request, of late."""
        self._fastest_seconds = 0.0
        self._fastest_before = 0.0
        self._ended_at = 0.0
        self._done_messages = 0
        self._messages_per_second = 0.0
        """The most that were done of late, with everything that takes time beside the calls."""
        self._looked_at = time.monotonic()
        self.crowd_messages: float = limits.crowd_messages_min
        """More than these take too long."""
        self._calls: dict[asyncio.Task[None], list[_Asked[Item, Answer]]] = {}
        self._busy: set[Hashable] = set()
        """What of `apart` is in flight."""
        self._alone_next: dict[int, _Asked[Item, Answer]] = {}
        """Requests, by identity, whose joined call failed, and which wait for their turn to be tried alone."""
        self._in_flight: dict[object, float] = {}
        """When each call was begun, the youngest last; also those that run in the task of the one who asked."""
        self._late: dict[int, float] = {}
        """The same of calls that wait for a lock which somebody else holds. They hold up no other calls."""
        self._late_turns = asyncio.Semaphore(limits.calls_late_max)
        self._patience: asyncio.TimerHandle | None = None
        self.counts = CallCounts()

    async def ask(
        self,
        items: Sequence[Item],
        *,
        messages: int = 1,
        keys: frozenset[Hashable] = frozenset(),
        apart: frozenset[Hashable] = frozenset(),
    ) -> Answer:
        """Two requests that have one of their `keys` in common never share a call; two that have one of `apart` in
        common are never in flight in two calls, but may share one."""
        self.counts.requests += 1
        large = self._is_large(messages, len(items))
        free = not self._waiting and self._busy.isdisjoint(apart)
        if self._abandoned is None and free and self._may_start(messages, large=large):
            return await self._ask_alone(items, messages, apart)
        # The loop's own clock stands still within a turn, and a turn in which many ask is long.
        now = time.monotonic()
        size = 0 if self._size is None else self._size(items)
        asked = _Asked(items, messages, size, keys, apart, asyncio.get_running_loop().create_future(), now)
        self._waiting.append(asked)
        self._waiting_messages += messages
        self._waiting_bytes += size
        self._messages_each += _EACH_SHARE * (messages - self._messages_each)
        self._start()
        if self._is_crowded(asked.at):
            self._tell_crowded()
        try:
            answer: Answer = await asked.answer
        except asyncio.CancelledError:
            self._give_back(asked.answer)
            raise
        return answer

    def _give_back(self, future: asyncio.Future[Answer]) -> None:
        """Who asked was cancelled after the answer came, and before it was looked at."""
        if self._abandoned is not None and future.done() and not future.cancelled() and future.exception() is None:
            self._abandoned(future.result())

    def _is_crowded(self, now: float) -> bool:
        """Whether too many wait. How long so many messages take is known from those of late only, if there were any,
        and they may have been of another kind; so the first must have waited a little, too."""
        if len(self._waiting) > self._limits.crowd_requests or self._waiting_bytes > self._limits.crowd_bytes:
            return True
        return (
            self._messages_per_second > 0
            and self._waiting_messages > self.crowd_messages
            and now - self._waiting[0].at > self._limits.crowd_seconds / _CROWD_PART
        )

    def _tell_crowded(self) -> None:
        if self._crowded is not None:
            self._crowded()

    def crowd(self) -> Crowd:
        """Who waits now, and how calls went since this was last asked."""
        now = time.monotonic()
        fastest = self._take_fastest()
        waiting = [*self._alone_next.values(), *self._waiting]
        if asyncio.get_running_loop().time() - self._ended_at < _GOES_ON_SECONDS:
            waiting = list(self._waiting)  # while others go on, one held partition is not a load
        oldest = now - min(waiting[0].at, waiting[-1].at) if waiting else 0.0
        if now - self._looked_at >= _LOOK_SECONDS_MIN:
            self._learn_rate(now - self._looked_at)
            self._looked_at = now
        return Crowd(len(self._alone_next) + len(self._waiting), self._waiting_bytes, oldest, fastest)

    def _take_fastest(self) -> float:
        """What the fastest call took since the last look. A store that stalls ends no calls: then it is what it was
        before, or how long the youngest of the calls in flight waits already. One alone may wait for what somebody
        holds, and says nothing."""
        fastest, self._fastest_seconds = self._fastest_seconds, 0.0
        if self._stalls and not fastest and len(self._in_flight) + len(self._late) > 1:
            fastest = max(self._fastest_before, self.stalled_seconds())
        self._fastest_before = fastest
        return fastest

    def stalled_seconds(self) -> float:
        """For how long no call has ended nor begun, while there are some."""
        begun = [next(reversed(calls.values())) for calls in (self._in_flight, self._late) if calls]
        if not begun:
            return 0.0
        since = max(*begun, self._ended_at)
        return asyncio.get_running_loop().time() - since

    def refuse_waiting(self, seconds: float, refusal: Callable[[], Exception]) -> None:
        """Refuse the requests that have waited this long for their call: the store has done nothing of them."""
        late = time.monotonic() - seconds
        refused = [asked for asked in self._alone_next.values() if asked.at <= late]
        while self._waiting and (self._waiting[0].answer.done() or self._waiting[0].at <= late):
            refused.append(self._take())
        for asked in refused:
            if not asked.answer.done():
                asked.answer.set_exception(refusal())

    def _learn_rate(self, seconds: float) -> None:
        """How many messages are too many: what takes longer than requests may wait, at the rate of late."""
        done, self._done_messages = self._done_messages, 0
        self._messages_per_second = max(done / seconds, self._messages_per_second * _RATE_KEPT)
        many = self._messages_per_second * self._limits.crowd_seconds
        self.crowd_messages = max(many, self._limits.crowd_messages_min)

    def expected_messages(self, coming: int) -> int:
        """Of the requests that wait, and of so many more. Those in flight are not told of: what waits is what keeps the
        store at work when a call ends, and a limit on both would slow down calls that take longer, and then still
        more."""
        return self._waiting_messages + int(coming * self._messages_each)

    async def close(self) -> None:
        """Wait for the calls in flight. One that nobody waits for any more is given up after a while."""
        while self._calls:
            _, late = await asyncio.wait(set(self._calls), timeout=_UNWANTED_SECONDS_MAX)
            for task in late:
                if all([asked.answer.done() for asked in self._calls[task]]):
                    task.cancel()

    def _is_large(self, messages: int, items: int) -> bool:
        return messages >= self._limits.messages_large and messages >= _LARGE_EACH * items

    def _may_start(self, messages: int, *, large: bool = False) -> bool:
        """Whether a call for so many messages, or for a large request, may be begun now."""
        in_flight = len(self._in_flight)
        if in_flight == 0:
            return True
        if large and in_flight < self._calls_large_max():
            return True
        if in_flight < self._calls_max and messages >= self._limits.messages_min:
            return True
        if in_flight >= self._limits.calls_late_max:
            return False
        youngest_at = next(reversed(self._in_flight.values()))
        return asyncio.get_running_loop().time() - youngest_at >= self.patience_seconds

    def _calls_large_max(self) -> int:
        return self._limits.calls_large_alone_max if self._alone() else self._limits.calls_large_max

    @property
    def long_seconds(self) -> float:
        return _LONG * self._seconds_each

    @property
    def patience_seconds(self) -> float:
        """How long a call may take before it no longer holds up the next."""
        return max(self._limits.patience_seconds, self.long_seconds)

    async def _ask_alone(self, items: Sequence[Item], messages: int, apart: frozenset[Hashable]) -> Answer:
        """The way of a lone request: no future, no task, no switch. Not for pops: a cancelled call would leave what
        it leased behind, unknown to anybody."""
        call = object()
        self._in_flight[call] = began = self._count(1, len(items))
        try:
            answer = self._split(await self._call(list(items), brief=True), 0, len(items))
            self._time(began, messages)
            return answer
        except LockTimeout:
            pass
        finally:
            del self._in_flight[call]
            self._start()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        asked = _Asked(items, messages, 0, frozenset(), apart, future, time.monotonic())
        self._busy |= apart
        task = asyncio.create_task(self._run_late(asked))
        self._calls[task] = [asked]
        task.add_done_callback(partial(self._finished, apart))
        return await future

    def _start(self) -> None:
        """Begin a call, if there is something to call for and it may be begun."""
        while self._waiting and self._may_start(self._waiting_messages):
            gathered = self._gather()
            if not gathered:
                break  # nobody waits, or all for what is in flight
            apart = frozenset[Hashable]().union(*[asked.apart for asked in gathered])
            self._busy |= apart
            task = asyncio.create_task(self._run(gathered))
            self._calls[task] = gathered
            self._in_flight[task] = asyncio.get_running_loop().time()
            task.add_done_callback(partial(self._finished, apart))
        if self._waiting and self._patience is None:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(self.patience_seconds, self._lose_patience)

    def _lose_patience(self) -> None:
        self._patience = None
        self._start()

    def _finished(self, apart: frozenset[Hashable], task: asyncio.Task[None]) -> None:
        del self._calls[task]
        self._in_flight.pop(task, None)
        self._busy -= apart
        self._start()

    def _gather(self) -> list[_Asked[Item, Answer]]:
        gathered: list[_Asked[Item, Answer]] = []
        messages = bytes = 0
        keys: set[Hashable] = set()
        left: deque[_Asked[Item, Answer]] = deque()
        while self._waiting and len(gathered) < self._limits.requests_max:
            asked = self._waiting[0]
            if asked.answer.done():  # nobody waits for it any more
                self._take()
                continue
            if not self._busy.isdisjoint(asked.apart):
                left.append(self._waiting.popleft())
                continue
            messages += asked.messages
            bytes += asked.bytes
            large = self._is_large(asked.messages, len(asked.items))
            too_much = large or messages > self._limits.messages_max or bytes > self._limits.bytes_max
            if gathered and (too_much or not keys.isdisjoint(asked.keys)):
                break
            keys |= asked.keys
            gathered.append(self._take())
            if large:
                break
        self._waiting.extendleft(reversed(left))
        return gathered

    def _take(self) -> _Asked[Item, Answer]:
        asked = self._waiting.popleft()
        self._waiting_messages -= asked.messages
        self._waiting_bytes -= asked.bytes
        return asked

    async def _run(self, gathered: list[_Asked[Item, Answer]]) -> None:
        items = [item for asked in gathered for item in asked.items]
        began = self._count(len(gathered), len(items))
        try:
            answer = await self._call(items, brief=True)
        except OperationPending as error:
            others = _fail_those_behind(gathered, error)
            if others:
                await self._run(others)
            return
        except Exception as error:
            if len(gathered) > 1 and _may_be_one_of_them(error):
                await self._run_each(gathered)
                return
            if isinstance(error, LockTimeout):
                await self._run_all_late(gathered)
                return
            for asked in gathered:
                _fail(asked.answer, error)
            return
        except asyncio.CancelledError:
            for asked in gathered:
                asked.answer.cancel()
            raise
        self._time(began, sum([asked.messages for asked in gathered]))
        start = 0
        for asked in gathered:
            stop = start + len(asked.items)
            self._deliver(asked.answer, self._split(answer, start, stop))
            start = stop

    async def _run_each(self, gathered: list[_Asked[Item, Answer]]) -> None:
        """Each for itself, several at a time. Those that need what somebody holds are put off until the others are
        done."""
        free = asyncio.Semaphore(self._limits.calls_late_max)
        self._alone_next |= {id(asked): asked for asked in gathered}
        late = await asyncio.gather(*[self._run_alone(asked, free) for asked in gathered])
        await self._run_all_late([asked for asked, is_late in zip(gathered, late, strict=True) if is_late])

    async def _run_alone(self, asked: _Asked[Item, Answer], free: asyncio.Semaphore) -> bool:
        """Try a request. True if it needs a lock that somebody holds."""
        async with free:
            del self._alone_next[id(asked)]
            if asked.answer.done():  # nobody waits for it any more
                return False
            self.counts.retried_alone += 1
            return not await self._try(asked, brief=True)

    async def _run_all_late(self, gathered: Sequence[_Asked[Item, Answer]]) -> None:
        """Wait for the locks that requests need. Meanwhile other calls go on as if this one had ended."""
        self._in_flight.pop(asyncio.current_task(), None)
        self._start()
        await asyncio.gather(*[self._run_late(asked) for asked in gathered])

    async def _run_late(self, asked: _Asked[Item, Answer]) -> None:
        self._alone_next[id(asked)] = asked
        try:
            await self._late_turns.acquire()
        finally:
            del self._alone_next[id(asked)]
        try:
            if not asked.answer.done():
                self._late[id(asked)] = asyncio.get_running_loop().time()
                await self._try(asked, brief=False)
        finally:
            self._late.pop(id(asked), None)
            self._late_turns.release()

    async def _try(self, asked: _Asked[Item, Answer], *, brief: bool) -> bool:
        """Call for one request. False, and no answer, if it is to wait briefly and needs a lock that somebody holds."""
        self._count(1, len(asked.items))
        try:
            answer = await self._call(list(asked.items), brief=brief)
        except LockTimeout as error:
            if brief:
                return False
            _fail(asked.answer, error)
        except Exception as error:
            _fail(asked.answer, error)
        else:
            self._deliver(asked.answer, self._split(answer, 0, len(asked.items)))
        return True

    def _deliver(self, future: asyncio.Future[Answer], answer: Answer) -> None:
        if not future.done():
            future.set_result(answer)
        elif self._abandoned is not None:
            self._abandoned(answer)

    def _count(self, requests: int, items: int) -> float:
        """Count a call that begins now, and say when that is."""
        counts = self.counts
        counts.calls += 1
        counts.items += items
        counts.requests_max = max(counts.requests_max, requests)
        return asyncio.get_running_loop().time()

    def _time(self, began: float, messages: int) -> None:
        """A call has ended well: how long the fastest one takes says more than how long those take that had to wait
        for somebody else."""
        self._ended_at = asyncio.get_running_loop().time()
        seconds = self._ended_at - began
        if seconds < self._fastest_seconds or self._fastest_seconds == 0.0:
            self._fastest_seconds = seconds
        # One that was held up must not make all the others seem slow. If they are, that is learnt in a few more.
        self._seconds_each += _SECONDS_SHARE * (min(seconds, self.patience_seconds) - self._seconds_each)
        self._done_messages += messages


def _fail_those_behind(gathered: list[_Asked[Any, Any]], error: OperationPending) -> list[_Asked[Any, Any]]:
    """Tell the requests of a push for whose partitions operations wait; returns the others."""
    behind = set(error.details["batches"])
    others = []
    start = 0
    for asked in gathered:
        stop = start + len(asked.items)
        if behind.isdisjoint(range(start, stop)):
            others.append(asked)
        else:
            _fail(asked.answer, OperationPending(batches=[i - start for i in sorted(behind) if start <= i < stop]))
        start = stop
    return others


def _may_be_one_of_them(error: Exception) -> bool:
    """Whether a joined call failed because of one of its requests, and not for all of them alike."""
    return isinstance(error, LockTimeout) or (isinstance(error, LockstepError) and not isinstance(error, Unavailable))


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
