"""What the processes on one database tell each other, by LISTEN and NOTIFY.

Pushes are announced by the process that made them, after the commit and not in it: a NOTIFY inside the transaction
would make all commits of the database wait for each other. Announcements gather while one is on its way, so a busy
process sends a few per second. Nothing is sent while nobody else listens, which is known from the shared advisory
lock that every listener holds; one that begins to listen says so. Changes of queues are announced by a trigger.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import uuid4

import msgspec

from lockstep.errors import LockstepError
from lockstep.storage.postgres.cache import NameCache, SegmentCache
from lockstep.storage.postgres.failures import translate
from lockstep.storage.postgres.pool import Database, backoff_seconds

logger = logging.getLogger("lockstep.storage")

Hear = Callable[[str | None, int], None]

_PUSHES = "lockstep_push"
_QUEUES = "lockstep_queue"
_SYSTEM = "lockstep_system"
_LISTENER_LOCK = 7_307_655_182
"""Held, shared, by every connection that listens."""
_LISTENERS = (
    "select count(*) from pg_locks where locktype = 'advisory' and mode = 'ShareLock' and granted "
    "and database = (select oid from pg_database where datname = current_database()) "
    "and classid::bigint = $1::bigint >> 32 and objid::bigint = $1::bigint & 4294967295"
)
_NOTIFY = f"select pg_notify('{_PUSHES}', t) from unnest($1::text[]) t"
_GATHER_SECONDS = 0.005
_LISTENERS_KNOWN_SECONDS = 1.0
_ALIVE_SECONDS = 30.0
_PAYLOAD_BYTES_MAX = 7_900
"""PostgreSQL takes less than 8,000."""

_decode = msgspec.json.Decoder(tuple[str, dict[str, int]]).decode


class Signals:
    """This process among those on its database."""

    def __init__(self, database: Database, names: NameCache, segments: SegmentCache) -> None:
        self._database = database
        self._names = names
        self._segments = segments
        self.changed: Callable[[], None] | None = None
        """Is told when another process may have changed what all servers know together."""
        self._own = str(uuid4())
        self._hear: Hear | None = None
        self._holding = False
        """Whether one of the listeners is this process."""
        self._listening: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._untold: Counter[str] = Counter()
        self._others = True
        self._others_known_at = -_LISTENERS_KNOWN_SECONDS

    async def listen(self, hear: Hear) -> None:
        """Start listening; if the database cannot be reached now, it is tried again in the background."""
        self._hear = hear
        if self._listening is None:
            ready = asyncio.Event()
            self._listening = asyncio.create_task(self._listen_forever(ready))
            await ready.wait()

    async def close(self) -> None:
        for task in (self._listening, self._telling):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        self._listening = self._telling = None
        self._untold.clear()

    def announce(self, partitions_by_queue: Mapping[str, int]) -> None:
        if not self._others and time.monotonic() - self._others_known_at < _LISTENERS_KNOWN_SECONDS:
            return
        self._untold.update(partitions_by_queue)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        try:
            while self._untold:
                if time.monotonic() - self._others_known_at >= _LISTENERS_KNOWN_SECONDS:
                    await self._count_others()
                untold, self._untold = self._untold, Counter()
                if self._others:
                    await self._database.fetch("notify", _NOTIFY, list(_payloads(self._own, untold)))
                await asyncio.sleep(_GATHER_SECONDS)
        except LockstepError as error:
            # Those who wait look from time to time, too.
            logger.info("announcement_failed", extra={"action": "announcement_failed", "error": str(error)})

    async def _count_others(self) -> None:
        rows = await self._database.fetch("listeners", _LISTENERS, _LISTENER_LOCK)
        self._set_others(rows[0][0] > self._holding)

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
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(_PUSHES, self._heard_push)
            await connection.add_listener(_QUEUES, self._heard_queue)
            await connection.add_listener(_SYSTEM, self._heard_system)
            await connection.fetch("select pg_advisory_lock_shared($1)", _LISTENER_LOCK)
            self._holding = True
            await connection.fetch(_NOTIFY, [_payload(self._own, {})])
            # What was announced while nobody listened here is not known. And the server may be another one, which took
            # over without what was last committed, and gives the same ids to something else.
            self._names.clear()
            self._segments.clear()
            self._tell_changed()
            self._tell_hearer(None, 1)
            ready.set()
            while not lost.is_set():
                try:
                    async with asyncio.timeout(_ALIVE_SECONDS):
                        await lost.wait()
                except TimeoutError:
                    await connection.fetch("select 1", timeout=_ALIVE_SECONDS)
        finally:
            self._holding = False
            connection.terminate()
        return 0

    def _heard_push(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        try:
            sender, partitions_by_queue = _decode(str(payload))
        except msgspec.DecodeError:
            self._tell_hearer(None, 1)  # from SQL, which says just that there is something
            return
        if sender != self._own:
            self._set_others(True)
            for queue, partitions in partitions_by_queue.items():
                self._tell_hearer(queue, partitions)

    def _heard_queue(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        self._names.forget(str(payload))
        self._tell_hearer(str(payload), 1)

    def _heard_system(self, _connection: Any, _pid: int, _channel: str, _payload: object) -> None:
        self._tell_changed()

    def _tell_changed(self) -> None:
        if self.changed is not None:
            self.changed()

    def _tell_hearer(self, queue: str | None, partitions: int) -> None:
        if self._hear is not None:
            self._hear(queue, partitions)


def _payloads(sender: str, untold: Mapping[str, int]) -> Iterator[str]:
    """The announcements, in as few notifications as they fit into."""
    part: dict[str, int] = {}
    size = 0
    for queue, partitions in untold.items():
        cost = len(msgspec.json.encode(queue)) + 16
        if part and size + cost > _PAYLOAD_BYTES_MAX - 64:
            yield _payload(sender, part)
            part, size = {}, 0
        part[queue] = partitions
        size += cost
    if part:
        yield _payload(sender, part)


def _payload(sender: str, partitions_by_queue: Mapping[str, int]) -> str:
    return msgspec.json.encode((sender, partitions_by_queue)).decode()
