"""When groups with the subscription `new` first polled for queues that did not exist."""

from __future__ import annotations

import time

from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import PopRequest
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.cache import QueueNames
from lockstep.storage.postgres.context import Context

_NOTE_FIRST_POLL: sql.Procedure[None] = sql.procedure("note_first_poll")
_USE_FIRST_POLL: sql.Procedure[None] = sql.procedure("use_first_poll")
_NOTED_SECONDS = 10.0
"""How often a repeated poll is noted."""


class PostgresFirstPolls:
    def __init__(self, context: Context) -> None:
        self._context = context

    async def use(self, names: QueueNames, request: PopRequest) -> None:
        """Let a group that is about to be created begin where it first polled."""
        if _is_first_poll(request):
            self._context.memory.noted.pop(_key(request), None)
            seconds = self._context.first_polls.seconds_max
            call = _USE_FIRST_POLL(queue_id=names.id, group=request.group, seconds=seconds, at=self._context.now())
            await self._context.database.call(call)

    async def note(self, request: PopRequest) -> None:
        """Remember the poll. A group that begins with new messages, and polls before its queue exists, must get the
        messages that create the queue."""
        if not _is_first_poll(request):
            return
        set_at = self._context.now()
        key, now = _key(request), time.monotonic() if set_at is None else set_at.timestamp()
        if self._context.memory.noted.get(key, 0.0) > now:
            return
        if len(self._context.memory.noted) >= self._context.first_polls.polls_max:
            self._context.memory.noted.clear()
        queue, namespace, task, group = key
        call = _NOTE_FIRST_POLL(
            queue=queue,
            namespace=namespace,
            task=task,
            group=group,
            most=self._context.first_polls.polls_max,
            seconds=self._context.first_polls.seconds_max,
            at=self._context.now(),
        )
        await self._context.database.call(call)
        self._context.memory.noted[key] = now + _NOTED_SECONDS


def _is_first_poll(request: PopRequest) -> bool:
    return request.subscription.mode == "new" and request.group != QUEUE_MODE


def _key(request: PopRequest) -> tuple[str, str, str, str]:
    return request.queue or "", request.namespace or "", request.task or "", request.group
