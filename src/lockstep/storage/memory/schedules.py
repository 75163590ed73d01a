"""Scheduled and recurring messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from lockstep.core import crons as rules
from lockstep.core.crons import Cron, NewCron
from lockstep.core.messages import Batch, NewSchedule
from lockstep.core.schedules import (
    Promoted,
    Scheduled,
    ScheduleFilter,
    ScheduleName,
    SchedulePage,
    columns_of,
    due_at,
    parse_schedule_cursor,
    schedule_cursor,
)
from lockstep.errors import CronNotFound, LockstepError, QueueFull, ScheduleNotFound, TooManyPartitions
from lockstep.storage.memory.push import push
from lockstep.storage.memory.state import State


class MemorySchedules:
    """Scheduled and recurring messages."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def schedules(self, where: ScheduleFilter, *, cursor: str | None = None, limit: int = 100) -> SchedulePage:
        state = self._state
        if where.queue is not None:
            state.queue(where.queue)
        after = parse_schedule_cursor(cursor)
        found = sorted(
            [
                one
                for one in state.waitlist.by_id.values()
                if _matches(one, where) and (after is None or (one.due_at, one.id) > after)
            ],
            key=lambda one: (one.due_at, one.id),
        )
        page = found[:limit]
        ends = len(found) <= limit
        return SchedulePage(items=page, next_cursor=None if ends else schedule_cursor(page[-1].due_at, page[-1].id))

    async def schedule(self, which: ScheduleName) -> Scheduled:
        state = self._state
        waiting = state.waitlist.find(which)
        if waiting is None:
            raise ScheduleNotFound(f"no message waits as schedule {which}")
        return waiting

    async def cancel_schedule(self, which: ScheduleName) -> bool:
        state = self._state
        waiting = state.waitlist.find(which)
        if waiting is not None:
            state.waitlist.remove(waiting)
        return waiting is not None

    async def reschedule(self, which: ScheduleName, schedule: NewSchedule) -> Scheduled:
        waiting = await self.schedule(which)
        return self._state.waitlist.move(waiting, due_at(schedule, self._state.now()))

    async def promote(self, *, limit: int) -> Promoted:
        state, now = self._state, self._state.now()
        promoted = Promoted()
        for cron in _crons_due(state, now)[:limit]:
            _run_cron(state, cron, promoted, limit=limit, now=now)
        by_queue: dict[str, list[Scheduled]] = {}
        due_now, next_at = state.waitlist.due(now)
        for waiting in due_now:
            by_queue.setdefault(waiting.queue, []).append(waiting)
        for queue, due in sorted(by_queue.items(), key=lambda item: state.queues[item[0]].id):
            _promote_queue(state, queue, due[:limit], promoted, now)
            promoted.more |= len(due) > limit and queue not in promoted.postponed
        crons_at = [
            one.next_at for one in state.waitlist.crons.values() if one.next_at is not None and one.next_at > now
        ]
        promoted.next_at = min([*crons_at, *([] if next_at is None else [next_at])], default=None)
        promoted.wait_seconds = None if promoted.next_at is None else (promoted.next_at - now).total_seconds()
        return promoted

    async def set_cron(self, cron: NewCron) -> Cron:
        state, now = self._state, self._state.now()
        known = state.waitlist.crons.get(cron.name)
        next_at = rules.next_time(cron, now) if cron.enabled else None
        if known is not None and cron.enabled and known.enabled:
            same = (known.expression, known.timezone) == (cron.expression, cron.timezone)
            next_at = known.next_at if same else next_at
        state.waitlist.crons[cron.name] = Cron(
            **msgspec.structs.asdict(cron),
            created_at=now if known is None else known.created_at,
            next_at=next_at,
            last_at=None if known is None else known.last_at,
        )
        return state.waitlist.crons[cron.name]

    async def crons(self, *, after: str | None = None, limit: int = 100) -> list[Cron]:
        state = self._state
        return [state.waitlist.crons[name] for name in sorted(state.waitlist.crons) if after is None or name > after][
            :limit
        ]

    async def cron(self, name: str) -> Cron:
        state = self._state
        if name not in state.waitlist.crons:
            raise CronNotFound(f"there is no recurring message {name!r}", name=name)
        return state.waitlist.crons[name]

    async def enable_cron(self, name: str, enabled: bool) -> Cron:
        state, now = self._state, self._state.now()
        known = await self.cron(name)
        if known.enabled != enabled:
            next_at = rules.next_time(known, now) if enabled else None
            known = msgspec.structs.replace(known, enabled=enabled, next_at=next_at)
            state.waitlist.crons[name] = known
        return known

    async def remove_cron(self, name: str) -> bool:
        state = self._state
        return state.waitlist.crons.pop(name, None) is not None


def _promote_queue(state: State, queue: str, due: list[Scheduled], promoted: Promoted, now: datetime) -> None:
    try:
        push(state, _batches(queue, due), now, overtake=True)
    except QueueFull as error:
        room = error.details["max_size"] - error.details["depth"]
        if room <= 0:
            promoted.postponed[queue] = f"{type(error).__name__}: {error}"
            return
        due = due[:room]
        push(state, _batches(queue, due), now, overtake=True)
    except TooManyPartitions as error:
        promoted.postponed[queue] = f"{type(error).__name__}: {error}"
        return
    for waiting in due:
        state.waitlist.remove(waiting)
        promoted.add(queue, waiting.partition, 1)


def _batches(queue: str, due: Sequence[Scheduled]) -> list[Batch]:
    """A batch for each message: the push puts those of a partition together."""
    return [Batch(queue, waiting.partition, columns_of(waiting)) for waiting in due]


def _matches(waiting: Scheduled, where: ScheduleFilter) -> bool:
    return (
        where.queue in (None, waiting.queue)
        and where.partition in (None, waiting.partition)
        and (where.key_prefix is None or (waiting.key is not None and waiting.key.startswith(where.key_prefix)))
        and (where.from_at is None or waiting.due_at >= where.from_at)
        and (where.to_at is None or waiting.due_at < where.to_at)
    )


def _crons_due(state: State, now: datetime) -> list[Cron]:
    due = [cron for cron in state.waitlist.crons.values() if cron.next_at is not None and cron.next_at <= now]
    return sorted(due, key=lambda cron: (cron.next_at, cron.name))


def _run_cron(state: State, cron: Cron, promoted: Promoted, *, limit: int, now: datetime) -> None:
    late = state.timing.cron_late_seconds_max
    try:
        due = rules.due(cron, cron.next_at or now, now, late_seconds_max=late, limit=limit)
        if due.times:
            pushed = push(state, [rules.batch_of(cron, due.times)], now, overtake=True)
            promoted.add(cron.queue, cron.partition, len(due.times) - pushed.duplicates)
    except LockstepError as error:
        promoted.postponed[f"cron {cron.name}"] = f"{type(error).__name__}: {error}"
        return
    last_at = due.times[-1] if due.times else cron.last_at
    state.waitlist.crons[cron.name] = msgspec.structs.replace(cron, next_at=due.next_at, last_at=last_at)
    promoted.more |= due.next_at is not None and due.next_at <= now
