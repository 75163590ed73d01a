"""Joins requests of one kind: they gather while a call is in flight, and go together when it ends (batching.py)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lockstep.engine.pace import CallCounts, CallLimits, Crowd, Pace
from lockstep.errors import LockstepError, LockTimeout, OperationPending, Unavailable
from lockstep.handover import Handover

if TYPE_CHECKING:
    from lockstep.engine.load import Load, LoadKind

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_CLOSE_SECONDS = 1.0
_GOES_ON_SECONDS = 1.0
"""Calls of a kind make progress if one of them has succeeded within this time."""
_CROWD_PART = 8
"""The oldest request of a crowd has waited for at least this fraction of the time that a crowd takes."""
_LARGE_EACH = 100
"""Average number of messages per item of a large request."""


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
    is_left: bool = False
    """Whether its caller is gone; the answer is done then, or still wanted by those who give it back."""


class Joiner(Generic[Item, Answer]):
    """Joins requests of one kind. A request is a sequence of items, and gets one answer."""

    def __init__(
        self,
        kind: LoadKind,
        call: Callable[..., Awaitable[Any]],
        part: Callable[[Any, int, int], Answer],
        *,
        calls_max: int,
        limits: CallLimits,
        locks: bool = False,
        stalls: bool = False,
        size: Callable[[Sequence[Item]], int] | None = None,
        load: Load | None = None,
        handover: Handover[Answer] | None = None,
        finishes: bool = False,
        alone: Callable[[], bool] = lambda: False,
    ) -> None:
        """`call` takes the items of one or more requests; and `lock_seconds`, where it may wait for `locks`."""
        self._kind = kind
        self._call = call
        self._part = part
        """The part of a call's answer for the items between two positions."""
        self._calls_max = calls_max
        self._limits = limits
        self._locks = locks
        self._stalls = stalls
        """Whether calls that do not end count as load."""
        self._size = size
        """The bytes of a request, computed only if it has to wait."""
        self._load = load
        """Notified of a crowd."""
        self._handover = handover
        self._finishes = finishes
        """Whether a request is carried out even if its caller is gone."""
        self._alone = alone
        """Whether there have been no requests of other kinds for a while."""
        self._pace = Pace(limits)
        self._waiting: deque[_Asked[Item, Answer]] = deque()
        self._waiting_messages = 0
        self._waiting_bytes = 0
        self._calls: dict[asyncio.Task[None], list[_Asked[Item, Answer]]] = {}
        self._busy: set[Hashable] = set()
        """The keys of `apart` that are in flight."""
        self._alone_next: dict[int, _Asked[Item, Answer]] = {}
        """Requests, by identity, whose joined call failed and that wait to be tried alone."""
        self._in_flight: dict[object, float] = {}
        """When each call began, the youngest last; also those that run in their caller's task."""
        self._late: dict[int, float] = {}
        """When each call began that waits for the lock of another session. These hold up no other calls."""
        self._late_turns = asyncio.Semaphore(limits.calls_late_max)
        self._patience: asyncio.TimerHandle | None = None
        self.counts = CallCounts()

    async def ask(self, items: Sequence[Item], *, messages: int, keys: frozenset[Hashable] = frozenset()) -> Answer:
        """Call at once, in this task, if no call is in flight: no future, no task, no switch. Otherwise `join`."""
        if self._waiting or not self._may_start(messages, large=self._is_large(messages, len(items))):
            return await self.join(items, messages=messages, keys=keys)
        self.counts.requests += 1
        call = object()
        self._in_flight[call] = began = self._count(1, len(items))
        try:
            answer = self._part(await self._call(list(items), **self._lock_time(brief=True)), 0, len(items))
            self._pace.note_ended(began, messages)
            return answer
        except LockTimeout:
            pass
        finally:
            del self._in_flight[call]
            self._start()
        asked = self._asked(items, messages)
        self._begin(self._run_late(asked), [asked])
        return await asked.answer

    async def join(
        self,
        items: Sequence[Item],
        *,
        messages: int,
        keys: frozenset[Hashable] = frozenset(),
        apart: frozenset[Hashable] = frozenset(),
    ) -> Answer:
        """Call in a separate task, together with other requests. The caller may be cancelled.

        Two requests with one of their `keys` in common never share a call; two with one of `apart` in common are never
        in flight in two calls, but may share one."""
        self.counts.requests += 1
        asked = self._asked(items, messages, keys, apart)
        self._waiting.append(asked)
        self._waiting_messages += messages
        self._waiting_bytes += asked.bytes
        self._pace.note_waiting(messages)
        self._start()
        if self._load is not None and self._is_crowded(asked.at):
            self._load.note_crowd(self._kind)
        if self._handover is None:
            return await asked.answer
        try:
            return await (self._handover.take_begun if self._finishes else self._handover.take)(asked.answer)
        except asyncio.CancelledError:
            asked.is_left = True
            raise

    def _asked(
        self,
        items: Sequence[Item],
        messages: int,
        keys: frozenset[Hashable] = frozenset(),
        apart: frozenset[Hashable] = frozenset(),
    ) -> _Asked[Item, Answer]:
        size = 0 if self._size is None else self._size(items)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        # Not the event loop's clock, which stands still within a turn: a turn with many requests is long.
        return _Asked(items, messages, size, keys, apart, answer, time.monotonic())

    def _is_crowded(self, now: float) -> bool:
        """Whether too many requests wait. Their expected duration is an estimate from recent messages, which may have
        been different, so the oldest request must also have waited a little."""
        if len(self._waiting) > self._limits.crowd_requests or self._waiting_bytes > self._limits.crowd_bytes:
            return True
        return (
            self._pace.messages_per_second > 0
            and self._waiting_messages > self._pace.crowd_messages
            and now - self._waiting[0].at > self._limits.crowd_seconds / _CROWD_PART
        )

    @property
    def crowd_messages(self) -> float:
        return self._pace.crowd_messages

    def crowd(self) -> Crowd:
        """The requests that wait now, and how calls went since the last look."""
        now = time.monotonic()
        several = self._stalls and len(self._in_flight) + len(self._late) > 1
        # A single call may wait for another session's lock, which says nothing about load.
        fastest = self._pace.take_fastest(self.stalled_seconds() if several else None)
        waiting = [*self._alone_next.values(), *self._waiting]
        if asyncio.get_running_loop().time() - self._pace.ended_at < _GOES_ON_SECONDS:
            waiting = list(self._waiting)  # while others make progress, one locked partition does not count as load
        oldest = now - min(waiting[0].at, waiting[-1].at) if waiting else 0.0
        self._pace.look(now)
        return Crowd(len(self._alone_next) + len(self._waiting), self._waiting_bytes, oldest, fastest)

    def stalled_seconds(self) -> float:
        """How long no call has ended or begun although some are in flight."""
        begun = [next(reversed(calls.values())) for calls in (self._in_flight, self._late) if calls]
        if not begun:
            return 0.0
        since = max(*begun, self._pace.ended_at)
        return asyncio.get_running_loop().time() - since

    def refuse_waiting(self, seconds: float, refusal: Callable[[], Exception]) -> None:
        """Refuse the requests that have waited this long for their call: the store has not seen them."""
        late = time.monotonic() - seconds
        refused = [asked for asked in self._alone_next.values() if asked.at <= late]
        while self._waiting and (self._waiting[0].answer.done() or self._waiting[0].at <= late):
            refused.append(self._take())
        for asked in refused:
            _fail(asked.answer, refusal)

    def expected_messages(self, coming: int) -> int:
        """Waiting messages, and those of `coming` more requests. Messages in flight do not count: the waiting ones keep
        the store busy when a call ends. A limit on both would slow down calls that take longer, and then even more so.
        """
        return self._waiting_messages + int(coming * self._pace.messages_each)

    async def close(self) -> None:
        """Wait for the calls in flight. After a while, calls without a caller are cancelled."""
        while self._calls:
            _, late = await asyncio.wait(set(self._calls), timeout=_CLOSE_SECONDS)
            for task in late:
                if all([asked.is_left or asked.answer.done() for asked in self._calls[task]]):
                    task.cancel()

    def _lock_time(self, *, brief: bool) -> dict[str, float | None]:
        """How long a call waits for a lock: a short wait lets the others have their turn."""
        return {"lock_seconds": self._pace.lock_seconds if brief else None} if self._locks else {}

    def _is_large(self, messages: int, items: int) -> bool:
        return messages >= self._limits.messages_large and messages >= _LARGE_EACH * items

    def _may_start(self, messages: int, *, large: bool = False) -> bool:
        """Whether a call with this many messages, or with a large request, may begin now."""
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
        return asyncio.get_running_loop().time() - youngest_at >= self._pace.patience_seconds

    def _calls_large_max(self) -> int:
        return self._limits.calls_large_alone_max if self._alone() else self._limits.calls_large_max

    def _start(self) -> None:
        """Begin calls while there are requests and further calls may begin."""
        while self._waiting and self._may_start(self._waiting_messages):
            gathered = self._gather()
            if not gathered:
                break  # all callers are gone, or wait for calls in flight
            task = self._begin(self._run(gathered), gathered)
            self._in_flight[task] = asyncio.get_running_loop().time()
        if self._waiting and self._patience is None:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(self._pace.patience_seconds, self._lose_patience)

    def _begin(self, call: Any, gathered: list[_Asked[Item, Answer]]) -> asyncio.Task[None]:
        apart = frozenset[Hashable]().union(*[asked.apart for asked in gathered])
        self._busy |= apart
        task: asyncio.Task[None] = asyncio.create_task(call)
        self._calls[task] = gathered
        task.add_done_callback(partial(self._finished, apart))
        return task

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
            if asked.answer.done():  # its caller is gone
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
            answer = await self._call(items, **self._lock_time(brief=True))
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
        self._pace.note_ended(began, sum([asked.messages for asked in gathered]))
        start = 0
        for asked in gathered:
            stop = start + len(asked.items)
            self._deliver(asked.answer, self._part(answer, start, stop))
            start = stop

    async def _run_each(self, gathered: list[_Asked[Item, Answer]]) -> None:
        """Try each request alone, several at a time. Those that need the lock of another session come last."""
        free = asyncio.Semaphore(self._limits.calls_late_max)
        self._alone_next |= {id(asked): asked for asked in gathered}
        late = await asyncio.gather(*[self._run_alone(asked, free) for asked in gathered])
        await self._run_all_late([asked for asked, is_late in zip(gathered, late, strict=True) if is_late])

    async def _run_alone(self, asked: _Asked[Item, Answer], free: asyncio.Semaphore) -> bool:
        """Try a request. True if it needs the lock of another session."""
        async with free:
            del self._alone_next[id(asked)]
            if asked.answer.done():  # its caller is gone
                return False
            self.counts.retried_alone += 1
            return not await self._try(asked, brief=True)

    async def _run_all_late(self, gathered: Sequence[_Asked[Item, Answer]]) -> None:
        """Wait for the locks that requests need. In the meantime, other calls continue as if this one had ended."""
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
        """Call for one request. False, without an answer, if a brief call needs the lock of another session."""
        self._count(1, len(asked.items))
        try:
            answer = await self._call(list(asked.items), **self._lock_time(brief=brief))
        except LockTimeout as error:
            if brief:
                return False
            _fail(asked.answer, error)
        except Exception as error:
            _fail(asked.answer, error)
        else:
            self._deliver(asked.answer, self._part(answer, 0, len(asked.items)))
        return True

    def _deliver(self, future: asyncio.Future[Answer], answer: Answer) -> None:
        if self._handover is not None:
            self._handover.settle(future, answer)
        elif not future.done():
            future.set_result(answer)

    def _count(self, requests: int, items: int) -> float:
        """Count a call that begins now; returns the time."""
        counts = self.counts
        counts.calls += 1
        counts.items += items
        counts.requests_max = max(counts.requests_max, requests)
        return asyncio.get_running_loop().time()


def _fail_those_behind(gathered: list[_Asked[Any, Any]], error: OperationPending) -> list[_Asked[Any, Any]]:
    """Fail the requests with partitions for which operations wait; returns the others."""
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
    """Whether a single request may have made the joined call fail."""
    return isinstance(error, LockTimeout) or (isinstance(error, LockstepError) and not isinstance(error, Unavailable))


def _fail(future: asyncio.Future[Any], error: Exception | Callable[[], Exception]) -> None:
    if not future.done():
        future.set_exception(error if isinstance(error, Exception) else error())
