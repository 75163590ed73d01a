"""Messages between the processes on one database, by LISTEN and NOTIFY.

Pushes are announced by the process that made them, after the commit and not in it: a NOTIFY inside the transaction
would make all commits of the database wait for each other. Only a push in the caller's own transaction, from SQL or by
`push_within`, notifies with its commit, unless the caller switches that off: no other process knows when it commits.
Announcements gather while one is in flight, so a busy process sends a few per second. Nothing is sent while no other
process listens: every listener holds a shared advisory lock, and announces itself when it begins. Ends of leases are
announced only while polls wait elsewhere: a second lock shows that, and its holder announces itself, too. A trigger
announces changes of queues.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from uuid import uuid4

import msgspec

from lockstep.core.records import LEASES_ENDED, Arrival
from lockstep.errors import LockstepError
from lockstep.storage.postgres.cache import Memory
from lockstep.storage.postgres.database import Database
from lockstep.storage.postgres.failures import translate
from lockstep.storage.postgres.pool import backoff_seconds
from lockstep.storage.postgres.timelines import Link, outside

logger = logging.getLogger("lockstep.storage")

Hear = Callable[[str | None, Arrival], None]

_PUSHES = "lockstep_push"
_QUEUES = "lockstep_queue"
_SYSTEM = "lockstep_system"
_LISTENER_LOCK = 7_307_655_182
"""Held, shared, by every connection that listens."""
_WAITER_LOCK = _LISTENER_LOCK + 1
"""Held, shared, by listeners with waiting polls in their process."""
_LISTENERS = (
    "select count(*) filter (where objid::bigint = $1::bigint & 4294967295), "
    "count(*) filter (where objid::bigint = $2::bigint & 4294967295) "
    "from pg_locks where locktype = 'advisory' and mode = 'ShareLock' and granted "
    "and database = (select oid from pg_database where datname = current_database()) "
    "and classid::bigint = $1::bigint >> 32"
)
_NOTIFY = f"select pg_notify('{_PUSHES}', t) from unnest($1::text[]) t"
_GATHER_SECONDS = 0.005
_LISTENERS_KNOWN_SECONDS = 1.0
_WAITING_SECONDS = 0.2
"""Interval between checks whether polls still wait here. That they begin to wait is announced at once."""
_WAITED_SECONDS = 5.0
"""Polls are announced as waiting for at least this long, because frequent locking and unlocking would cost more."""
_ALIVE_SECONDS = 30.0
_PAYLOAD_BYTES_MAX = 7_900
"""PostgreSQL takes less than 8,000."""

_decode = msgspec.json.Decoder(tuple[str, dict[str, Arrival]]).decode


class Signals:
    """This process among those on its database."""

    def __init__(self, database: Database, memory: Callable[[], Memory]) -> None:
        """`memory` is called each time, because each timeline of the database has its own."""
        self._database = database
        self._memory = memory
        self.changed: Callable[[], None] | None = None
        """Called when another process may have changed the shared state of all servers."""
        self._own = str(uuid4())
        self._hear: Hear | None = None
        self._waiting: Callable[[], bool] = _never
        self._holding = False
        """Whether one of the listeners is this process."""
        self._holding_waiter = False
        """Whether other processes know that polls wait here."""
        self._waited_at = -_WAITED_SECONDS
        self._begun = asyncio.Event()
        """Set when polls begin to wait here and other processes do not know yet, or when the connection is lost."""
        self._listening: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._untold: dict[str, Arrival] = {}
        self._others = True
        self._others_wait = True
        self._counted_at = self._others_known_at = -_LISTENERS_KNOWN_SECONDS

    async def listen(self, hear: Hear, waiting: Callable[[], bool]) -> None:
        """Start listening; if the database cannot be reached now, it is tried again in the background."""
        self._hear, self._waiting = hear, waiting
        if self._listening is None:
            ready = asyncio.Event()
            self._listening = asyncio.create_task(self._listen_forever(ready), context=outside())
            await ready.wait()

    async def close(self) -> None:
        for task in (self._listening, self._telling):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        self._listening = self._telling = None
        self._untold.clear()

    def expect(self) -> None:
        """Polls begin to wait here."""
        if not self._holding_waiter:
            self._begun.set()

    def announce(self, arrivals: Mapping[str, Arrival]) -> None:
        now = time.monotonic()
        if not self._others and now - self._others_known_at < _LISTENERS_KNOWN_SECONDS:
            return
        if not self._others_wait and not _pushes(arrivals) and now - self._counted_at < _LISTENERS_KNOWN_SECONDS:
            return
        for queue, (partitions, messages) in arrivals.items():
            before = self._untold.get(queue, LEASES_ENDED)
            self._untold[queue] = Arrival(before.partitions + partitions, before.messages + messages)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell(), context=outside())

    def tell(self, arrivals: Mapping[str, Arrival]) -> None:
        """Announce arrivals that this process does not know of either."""
        for queue, arrival in arrivals.items():
            self._tell_hearer(queue, arrival)
        self.announce(arrivals)

    async def _tell(self) -> None:
        try:
            while self._untold:
                if self._is_outdated():
                    await self._count_others()
                untold, self._untold = self._untold, {}
                told = untold if self._others_wait else _pushes(untold)
                if self._others and told:
                    await self._database.fetch("notify", _NOTIFY, list(_payloads(self._own, told)))
                await asyncio.sleep(_GATHER_SECONDS)
        except LockstepError as error:
            # Waiting polls also check from time to time.
            logger.info("announcement_failed", extra={"action": "announcement_failed", "error": str(error)})

    def _is_outdated(self) -> bool:
        """Whether pending announcements need the list of other listeners, and it was not queried recently."""
        pushed = bool(_pushes(self._untold))
        known_at = self._others_known_at if pushed else self._counted_at
        return time.monotonic() - known_at >= _LISTENERS_KNOWN_SECONDS

    async def _count_others(self) -> None:
        rows = await self._database.fetch("listeners", _LISTENERS, _LISTENER_LOCK, _WAITER_LOCK)
        listeners, waiters = rows[0]
        self._set_others(listeners > self._holding)
        self._others_wait, self._counted_at = waiters > self._holding_waiter, time.monotonic()

    def _set_others(self, others: bool) -> None:
        self._others, self._others_known_at = others, time.monotonic()

    async def _listen_forever(self, ready: asyncio.Event) -> None:
        attempt = 0
        while True:
            try:
                attempt = await self._listen_until_lost(ready)
            except Exception as error:
                attempt += 1
                logger.log(
                    logging.INFO if attempt == 1 else logging.DEBUG,
                    "listening_retried",
                    extra={"action": "listening_retried", "attempt": attempt, "error": str(translate(error))},
                )
            ready.set()
            await asyncio.sleep(backoff_seconds(min(attempt, 6) + 3))

    async def _listen_until_lost(self, ready: asyncio.Event) -> int:
        """Listen until the connection is lost, and return 0: the next attempt is a first one again."""
        connection = await self._database.connect_apart("lockstep-listen")
        try:
            lost = asyncio.Event()
            connection.add_termination_listener(lambda _: self._set_lost(lost))
            await connection.add_listener(_PUSHES, self._heard_push)
            await connection.add_listener(_QUEUES, self._heard_queue)
            await connection.add_listener(_SYSTEM, self._heard_system)
            await connection.fetch("select pg_advisory_lock_shared($1)", _LISTENER_LOCK)
            self._holding = True
            await connection.fetch(_NOTIFY, [_payload(self._own, {})])
            # Announcements made while no connection listened are lost.
            self._memory().names.clear()
            self._tell_changed()
            self._tell_hearer(None, Arrival())
            ready.set()
            await self._hold_until(lost, connection)
        finally:
            self._holding = self._holding_waiter = False
            connection.terminate()
        return 0

    def _set_lost(self, lost: asyncio.Event) -> None:
        lost.set()
        self._begun.set()

    async def _hold_until(self, lost: asyncio.Event, connection: Link) -> None:
        """Announce whether polls wait here, and check at intervals whether the connection is alive."""
        alive_at = time.monotonic()
        while not lost.is_set() and connection.epoch == self._database.epoch:
            with suppress(TimeoutError):
                async with asyncio.timeout(_WAITING_SECONDS):
                    await self._begun.wait()
            self._begun.clear()
            now = time.monotonic()
            if self._waiting():
                self._waited_at = now
            waiting = now - self._waited_at < _WAITED_SECONDS
            if waiting != self._holding_waiter:
                verb = "pg_advisory_lock_shared" if waiting else "pg_advisory_unlock_shared"
                await connection.fetch(f"select {verb}($1)", _WAITER_LOCK, timeout=_ALIVE_SECONDS)
                self._holding_waiter, alive_at = waiting, now
                if waiting:
                    # Other processes would find out within a second; until then they would not announce leases that
                    # end.
                    await connection.fetch(_NOTIFY, [_payload(self._own, {})], timeout=_ALIVE_SECONDS)
            elif now - alive_at >= _ALIVE_SECONDS:
                await connection.fetch("select 1", timeout=_ALIVE_SECONDS)
                alive_at = now

    def _heard_push(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        try:
            sender, arrivals = _decode(str(payload))
        except msgspec.DecodeError:
            self._tell_hearer(None, Arrival())  # from SQL, which reports only that something arrived
            return
        if sender != self._own:
            self._set_others(True)
            if not arrivals:
                self._others_wait, self._counted_at = True, time.monotonic()
            for queue, arrival in arrivals.items():
                self._tell_hearer(queue, arrival)

    def _heard_queue(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        self._memory().names.forget(str(payload))
        self._tell_hearer(str(payload), Arrival())

    def _heard_system(self, _connection: Any, _pid: int, _channel: str, _payload: object) -> None:
        self._tell_changed()

    def _tell_changed(self) -> None:
        if self.changed is not None:
            self.changed()

    def _tell_hearer(self, queue: str | None, arrival: Arrival) -> None:
        if self._hear is not None:
            self._hear(queue, arrival)


def _never() -> bool:
    return False


def _pushes(arrivals: Mapping[str, Arrival]) -> dict[str, Arrival]:
    """The arrivals without queues in which only leases have ended."""
    return {queue: arrival for queue, arrival in arrivals.items() if arrival.partitions}


def _payloads(sender: str, untold: Mapping[str, Arrival]) -> Iterator[str]:
    """The announcements, in as few notifications as they fit into."""
    part: dict[str, Arrival] = {}
    size = 0
    for queue, arrival in untold.items():
        cost = len(msgspec.json.encode(queue)) + 32
        if part and size + cost > _PAYLOAD_BYTES_MAX - 64:
            yield _payload(sender, part)
            part, size = {}, 0
        part[queue] = arrival
        size += cost
    if part:
        yield _payload(sender, part)


def _payload(sender: str, arrivals: Mapping[str, Arrival]) -> str:
    return msgspec.json.encode((sender, arrivals)).decode()
