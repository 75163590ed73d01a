"""The audit log: administrative acts, in the log of the server and in a table."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec

from lockstep.core.access import AUDIT_DETAIL_LENGTH_MAX, AUDIT_QUEUES_MAX, NewAuditEntry, Outcome
from lockstep.engine.engine import Engine
from lockstep.errors import LockstepError
from lockstep.server.auth.callers import Caller

logger = logging.getLogger("lockstep.audit")

_DENIED_SECONDS = 10.0
"""Repeated denials of the same act to the same caller are recorded no more often than this."""
_DENIED_MAX = 10_000
_SILENT = ("payload", "data", "digest", "token")
"""Arguments that are not recorded, or of which only the presence is recorded."""


class Audit:
    """Writes the audit log."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._denied: dict[tuple[str, str, tuple[str, ...]], float] = {}
        self._writing: set[asyncio.Task[None]] = set()

    async def record(
        self, caller: Caller, act: str, queues: Iterable[str], outcome: Outcome, detail: str | None
    ) -> None:
        """Record an act that has ended. It must not fail because its entry cannot be written; the log reports that
        instead.
        """
        entry = NewAuditEntry(
            who=caller.name,
            act=act,
            queues=tuple(map(_storable, sorted(queues)[:AUDIT_QUEUES_MAX])),
            outcome=outcome,
            detail=None if detail is None else _storable(detail)[:AUDIT_DETAIL_LENGTH_MAX],
        )
        if outcome == "denied" and not self._is_news(entry):
            return
        fields = {name: value for name, value in msgspec.structs.asdict(entry).items() if value}
        logger.info("audit", extra={"action": "audit", **fields})
        try:
            await self._engine.record_audit(entry)
        except LockstepError as error:
            fields = {"action": "audit_not_stored", "act": act, "who": entry.who, "error": error.message}
            logger.error("audit_not_stored", extra=fields)

    def note_denied(self, caller: Caller, act: str) -> None:
        """Record, in the background, an act that was refused before it reached the engine."""
        task = asyncio.create_task(self.record(caller, act, (), "denied", None), name="write audit log")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def close(self) -> None:
        if self._writing:
            with suppress(asyncio.CancelledError):
                await asyncio.wait(self._writing)

    def _is_news(self, entry: NewAuditEntry) -> bool:
        """A caller that keeps trying should not fill the table."""
        which = (entry.who, entry.act, entry.queues)
        now = time.monotonic()
        last = self._denied.get(which)
        if last is not None and now - last < _DENIED_SECONDS:
            return False
        if len(self._denied) >= _DENIED_MAX:
            self._denied.clear()
        self._denied[which] = now
        return True


def _storable(text: str) -> str:
    """Invalid names are recorded, too, and may contain characters that PostgreSQL cannot store."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")[:AUDIT_DETAIL_LENGTH_MAX]


def detail_of(arguments: dict[str, Any]) -> str:
    """Arguments as JSON, without payloads."""
    shown = {name: _shown(value) for name, value in arguments.items() if value is not None and name not in _SILENT}
    return msgspec.json.encode(shown).decode()[:AUDIT_DETAIL_LENGTH_MAX]


def _shown(value: Any) -> Any:
    """Structs without fields that have their default value, and without payloads."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.fields(value)
        given = {field.name: getattr(value, field.name) for field in fields}
        return {
            field.name: _shown(given[field.name])
            for field in fields
            if field.name not in _SILENT and given[field.name] != field.default
        }
    return value
