"""Messages that wait for their time, and recurring messages."""

from __future__ import annotations

from typing import Protocol

from lockstep.core.crons import Cron, NewCron
from lockstep.core.messages import NewSchedule
from lockstep.core.schedules import Promoted, Scheduled, ScheduleFilter, ScheduleName, SchedulePage


class Schedules(Protocol):
    """Lists, moves, cancels and promotes messages that wait for their time; keeps the recurring ones."""

    async def schedules(self, where: ScheduleFilter, *, cursor: str | None = None, limit: int = 100) -> SchedulePage:
        """A page of waiting messages: by due time, then id. Raises QueueNotFound, and InvalidRequest for an invalid
        cursor."""

    async def schedule(self, which: ScheduleName) -> Scheduled:
        """One waiting message. Raises ScheduleNotFound, also once it is promoted."""

    async def cancel_schedule(self, which: ScheduleName) -> bool:
        """Remove a waiting message. False if it does not wait: it was promoted or cancelled before, or never
        existed."""

    async def reschedule(self, which: ScheduleName, schedule: NewSchedule) -> Scheduled:
        """Give a waiting message another due time; its key stays. Raises ScheduleNotFound, also once it is promoted."""

    async def promote(self, *, limit: int) -> Promoted:
        """Push due messages, scheduled and recurring; any number of processes may do so at once.

        Waiting messages go queue by queue, the older queue first, in due order (then by id), at most `limit` of each in
        a call, each queue a transaction of its own: a message is pushed exactly once, and those of one partition get
        their seqs in due order. One whose transaction id is stored already is dropped. If a queue is full, only the
        messages that fit are pushed; the others stay due, as does everything that cannot be read here. When nothing is
        due it costs a probe of an index.
        """

    async def set_cron(self, cron: NewCron) -> Cron:
        """Create the recurring message, or replace all of it. Its next time is the first after now; it stays where the
        expression and the time zone do. The queue appears with the first message."""

    async def crons(self, *, after: str | None = None, limit: int = 100) -> list[Cron]:
        """Recurring messages by name, those after the name `after`."""

    async def cron(self, name: str) -> Cron:
        """One recurring message. Raises CronNotFound."""

    async def enable_cron(self, name: str, enabled: bool) -> Cron:
        """Pause a recurring message, or resume it with the first time after now; missed times are not made up for.
        Raises CronNotFound."""

    async def remove_cron(self, name: str) -> bool:
        """Remove a recurring message; the messages that it pushed stay. False if there is none."""
