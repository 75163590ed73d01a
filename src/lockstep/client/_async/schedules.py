"""The verbs for scheduled and recurring messages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from lockstep.client._async.access import AsyncAccess
from lockstep.client._payloads import encode_payload
from lockstep.core.crons import CatchUp, Cron, NewCron
from lockstep.core.messages import NewSchedule
from lockstep.core.names import DEFAULT_PARTITION
from lockstep.core.schedules import Scheduled, ScheduleFilter, ScheduleName, SchedulePage


class AsyncSchedules(AsyncAccess):
    """A scheduled message is identified by its id, or by its queue and the key that it was pushed with."""

    async def schedules(
        self,
        *,
        queue: str | None = None,
        partition: str | None = None,
        key_prefix: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> SchedulePage:
        """A page of scheduled messages, by due time; `from_at` and `to_at` are due times."""
        where = ScheduleFilter(queue=queue, partition=partition, key_prefix=key_prefix, from_at=from_at, to_at=to_at)
        result: SchedulePage = await self._call("schedules", where=where, cursor=cursor, limit=limit)
        return result

    async def schedule(
        self, schedule_id: int | None = None, *, queue: str | None = None, key: str | None = None
    ) -> Scheduled:
        """One scheduled message. Raises ScheduleNotFound, also once it is delivered."""
        result: Scheduled = await self._call("schedule", which=ScheduleName(id=schedule_id, queue=queue, key=key))
        return result

    async def cancel_schedule(
        self, schedule_id: int | None = None, *, queue: str | None = None, key: str | None = None
    ) -> bool:
        """Cancel a scheduled message. False if it is not, or no longer, scheduled."""
        return bool(await self._call("cancel_schedule", which=ScheduleName(id=schedule_id, queue=queue, key=key)))

    async def reschedule(
        self,
        schedule_id: int | None = None,
        *,
        queue: str | None = None,
        key: str | None = None,
        deliver_at: datetime | None = None,
        delay_seconds: float | None = None,
    ) -> Scheduled:
        """Change the time of a scheduled message. Raises ScheduleNotFound, also once it is delivered."""
        result: Scheduled = await self._call(
            "reschedule",
            which=ScheduleName(id=schedule_id, queue=queue, key=key),
            schedule=NewSchedule(deliver_at=deliver_at, delay_seconds=delay_seconds),
        )
        return result

    async def set_cron(
        self,
        name: str,
        queue: str,
        expression: str,
        payload: Any = None,
        *,
        partition: str = DEFAULT_PARTITION,
        timezone: str = "UTC",
        catch_up: CatchUp = "skip",
        enabled: bool = True,
        kind: str | None = None,
        reference: str | None = None,
        encoding: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Cron:
        """Create a recurring message, or replace all of it."""
        cron = NewCron(
            name=name,
            queue=queue,
            expression=expression,
            payload=encode_payload(payload, encoding),
            partition=partition,
            timezone=timezone,
            catch_up=catch_up,
            enabled=enabled,
            kind=kind,
            reference=reference,
            encoding=encoding,
            headers=None if headers is None else dict(headers),
        )
        result: Cron = await self._call("set_cron", cron=cron)
        return result

    async def crons(self, *, after: str | None = None, limit: int = 100) -> list[Cron]:
        """Recurring messages by name, after the name `after`."""
        result: list[Cron] = await self._call("crons", after=after, limit=limit)
        return result

    async def cron(self, name: str) -> Cron:
        """One recurring message. Raises CronNotFound."""
        result: Cron = await self._call("cron", name=name)
        return result

    async def enable_cron(self, name: str, enabled: bool = True) -> Cron:
        """Resume a recurring message, from its next time, or pause it."""
        result: Cron = await self._call("enable_cron", name=name, enabled=enabled)
        return result

    async def remove_cron(self, name: str) -> bool:
        """Remove a recurring message; messages that it has pushed stay. False if it does not exist."""
        return bool(await self._call("remove_cron", name=name))
