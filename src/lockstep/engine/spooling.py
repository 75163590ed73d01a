"""Pushes while the store is away, or in maintenance mode: they go to a spool, and from there into the store.

Every push checks the *gate* first. It is shut for all processes of the machine while the spool is not empty, so that
nothing overtakes the buffered pushes. It is also shut for a single process that cannot reach the store, is in
maintenance mode, or does not know the mode yet.
The state that counts is the one read under the lock of the spool; see `spool/spool.py` and `draining.py`.

Records that come together are written and made safe together: while one write is in flight the next ones gather.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.config import Config
from lockstep.core.messages import Batch, Placement, PushResult
from lockstep.core.outage import BreakerState, BufferStats, MaintenanceMode, System
from lockstep.core.sealing import Keyring
from lockstep.engine.arrivals import Arrivals
from lockstep.engine.balancing import Balancing
from lockstep.engine.draining import Draining, in_thread
from lockstep.engine.spool.contents import contents_of
from lockstep.errors import Buffering, LockstepError, SpoolFull, SpoolUnusable, Unavailable
from lockstep.storage.base import Store

if TYPE_CHECKING:
    from lockstep.engine.spool.spool import Spool
    from lockstep.engine.spool.state import Gate

logger = logging.getLogger("lockstep.engine.spool")

_OPEN: Gate = b"\0"
_SHUT: Gate = b"\1"
_TOGETHER_MAX = 512
_LOOK_SECONDS = 1.0
_LEARN_SECONDS = 5.0
_RETRY_SECONDS = 0.25
_NEVER = -inf


@dataclass(slots=True)
class _Entry:
    """A push on its way into the spool."""

    batches: Sequence[Batch]
    unless_open: bool
    """Write it only if the gate is still shut under the lock of the spool."""
    written: asyncio.Future[bool]


class Spooling:
    """The spool of a server, as its engine uses it. Until it is started, nothing is buffered."""

    def __init__(self, store: Store, config: Config, balancing: Balancing, arrivals: Arrivals) -> None:
        self.gate: Gate = _OPEN
        self.pops_paused = False
        self._store = store
        self._config = config
        self._balancing = balancing
        self._arrivals = arrivals
        self._keys = Keyring(config.encryption_keys)
        self._root: Path | None = None
        self._directory: Path | None = None
        self._unusable: str | None = None
        """Why the spool could not be opened; None if it could."""
        self._system: System | None = None
        """None until the store has said it."""
        self._learned_at = _NEVER
        self._is_there = True
        self._spool: Spool | None = None
        self._draining: Draining | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._entries: list[_Entry] = []
        self._writing: asyncio.Task[None] | None = None
        self._stirred = asyncio.Event()
        self._stopping = False
        self._tending: asyncio.Task[None] | None = None

    async def start(self, directory: Path | None) -> None:
        """Buffer from now on, in a directory for this store below the given one, or else in a temporary directory.
        While the directory cannot be used, pushes fail as they would without a spool, and the log says so. The store
        may be away."""
        if self._tending is not None:
            return
        self._store.watch(there=self._told_there, changed=self._told_changed)
        self._system = await self._system_if_there()
        self._root = directory
        await self._open()
        self._tending = asyncio.create_task(self._tend(), name="lockstep-spool")
        self._adjust()

    async def _open(self) -> None:
        """Open the spool. If its directory cannot be used, say so once, and let `_look` try again."""
        try:
            spool = await in_thread(self._opened, self._root)
        except SpoolUnusable as error:
            if error.message != self._unusable:
                logger.error("spool_unusable", extra={"action": "spool_unusable", "error": error.message})
            self._unusable = error.message
            return
        self._spool = spool
        self._draining = Draining(spool, self._store, self._config, self._balancing, self._arrivals)
        if self._unusable is not None:
            self._unusable = None
            logger.warning("spool_usable", extra={"action": "spool_usable", "directory": str(spool.directory)})
        if self._system is not None and self._is_there:
            await self._draining.begin()

    async def _system_if_there(self) -> System | None:
        try:
            return await self._store.system()
        except Unavailable:
            if self._is_there:
                raise
            return None

    def _opened(self, directory: Path | None) -> Spool:
        # Imported here, because it needs locks on files, which not every machine has that runs a client.
        from lockstep.engine.spool.spool import Spool

        if directory is None and self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="lockstep-spool-")
        self._directory = directory or Path(self._scratch.name)  # type: ignore[union-attr]
        opened = Spool(self._spool_directory(self._system), bytes_max=self._config.spool_bytes_max)
        self._tell_unclaimed(opened.directory)
        return opened

    def _tell_unclaimed(self, own: Path) -> None:
        """A wrong or abandoned address may have left pushes behind."""
        from lockstep.engine.spool.addresses import unclaimed

        assert self._directory is not None
        with suppress(OSError):  # another server may be using it
            for directory, size in unclaimed(self._directory, own):
                extra = {"action": "spool_unclaimed", "directory": str(directory), "bytes": size}
                logger.warning("spool_unclaimed", extra=extra)

    def _spool_directory(self, system: System | None) -> Path:
        """The directory for this store; recorded as such, if the store could be reached."""
        from lockstep.engine.spool.addresses import directory_of

        assert self._directory is not None
        try:
            return directory_of(self._directory, self._config.dsn, None if system is None else system.id)
        except OSError as error:
            raise SpoolUnusable(f"the spool in {self._directory} cannot be used: {error}") from error

    async def stop(self) -> None:
        """Finish the current write and drain; the rest stays for the next process. Safe to call twice."""
        self._stopping = True
        self._stirred.set()
        if self._draining is not None:
            self._draining.stopping = True
        if self._tending is not None:
            _, late = await asyncio.wait((self._tending,), timeout=self._config.duty_stop_seconds_max)
            for task in late:
                task.cancel()
                await asyncio.wait((task,))
        if self._writing is not None:
            await asyncio.wait((self._writing,))
        self.gate = _OPEN
        if self._spool is not None:
            spool, self._spool = self._spool, None
            left = spool.counts()
            if left.messages and self._scratch is None:
                extra = {"action": "spool_left", "messages": left.messages, "directory": str(spool.directory)}
                logger.warning("spool_left", extra=extra)
            spool.close()
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    # Pushes

    async def push(self, batches: Sequence[Batch]) -> PushResult | None:
        """Buffer a push that found the gate shut. None if the gate has opened: then push as usual."""
        if self._spool is None and not self._pushes_paused:
            return None
        return await self._buffered(batches, unless_open=True)

    async def rescue(self, batches: Sequence[Batch], error: Unavailable, *, repeated: bool) -> PushResult | None:
        """Buffer a push that failed, if the store cannot be reached and the push either is certainly not in it or would
        be found to be a duplicate. Raises the error if not. None: perhaps only this connection was lost, and the push
        is worth one more attempt."""
        if not self._may_buffer(batches, error):
            raise error
        if self._is_there and error.details.get("maybe_applied") and not repeated:
            return None
        buffered = await self._buffered(batches, unless_open=False)
        assert buffered is not None
        return buffered

    def _may_buffer(self, batches: Sequence[Batch], error: Unavailable) -> bool:
        if self._spool is None or not error.details.get("unreachable"):
            return False
        return not error.details.get("maybe_applied") or all([_is_repeatable(batch) for batch in batches])

    def refuse_while_shut(self) -> None:
        """For pushes that are part of a transaction: they cannot be buffered, and must not overtake."""
        if self.gate[0] and (self._spool is not None or self._pushes_paused):
            if self._draining is not None and (ahead := self._draining.ahead()) is not None:
                raise ahead
            raise Buffering(f"{self._why_shut()}; a transaction with a push, or a stream cycle, has to wait")

    def _why_shut(self) -> str:
        if self._pushes_paused:
            return "pushes are buffered, because maintenance mode is on"
        if self._is_there and self._system is not None:
            return "pushes are buffered until earlier buffered pushes are in the database"
        return "pushes are buffered until the database is back"

    async def _buffered(self, batches: Sequence[Batch], *, unless_open: bool) -> PushResult | None:
        written = await self._write(_Entry(batches, unless_open, _future()))
        if not written:
            return None
        return PushResult(batches, [Placement.of_buffered()] * len(batches))

    async def _write(self, entry: _Entry) -> bool:
        if self._spool is None:
            raise SpoolUnusable("pushes have to be buffered, but the spool of this server cannot be used")
        self._entries.append(entry)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all(self._spool))
        return await entry.written

    async def _write_all(self, spool: Spool) -> None:
        while self._entries:
            entries, self._entries = self._entries[:_TOGETHER_MAX], self._entries[_TOGETHER_MAX:]
            only_behind = self.gate is not _SHUT and all([entry.unless_open for entry in entries])
            try:
                count = await in_thread(self._append, spool, entries, only_behind)
            except Exception as error:
                for entry in entries:
                    _settle(entry.written, error)
                continue
            for index, entry in enumerate(entries):
                full = SpoolFull("the spool has no room for this push (spool_bytes_max)")
                _settle(entry.written, False if count is None else True if index < count else full)
            self._stirred.set()

    def _append(self, spool: Spool, entries: Sequence[_Entry], only_behind: bool) -> int | None:
        now = datetime.now(UTC)
        contents = [contents_of(entry.batches, keys=self._keys, now=now) for entry in entries]
        return spool.append(contents, only_behind=only_behind)

    # Modes

    async def mode(self) -> MaintenanceMode:
        """The modes that this process follows; before `start`, those of the servers on the store."""
        system = self._system if self._tending is not None else await self._store.system()
        push, pop = self._modes(system)
        return MaintenanceMode(push=push, pop=pop, breaker=self.breaker, buffer=self.buffer_stats())

    @property
    def breaker(self) -> BreakerState:
        return "closed" if self._is_there else "open"

    async def set_mode(self, *, push: bool | None, pop: bool | None) -> MaintenanceMode:
        """For all servers on the store; during an outage only for those of this machine, until the store is back."""
        try:
            system = await self._store.set_maintenance_mode(push=push, pop=pop)
        except Unavailable:
            if self._spool is None:
                raise
            decided = [
                given if given is not None else old for given, old in zip((push, pop), self._spool.modes(), strict=True)
            ]
            self._spool.set_modes(decided)
        else:
            if self._spool is not None:
                self._spool.set_modes([None, None])
            if self._tending is not None:
                self._system = system
        self._adjust()
        self._stirred.set()
        return await self.mode()

    async def retry_rejected(self) -> int:
        """Push the records that were set aside; returns the number of messages. Raises the store's error for a record
        that it refuses again."""
        if self._draining is None:
            return 0
        if self._pushes_paused:
            raise Buffering(
                "pushes are buffered, because maintenance mode is on; the records that were set aside have to wait, too"
            )
        return await self._draining.retry_rejected()

    async def accept_loss(self) -> int:
        """Let draining continue after the part that the store has lost and this machine no longer has; returns its
        bytes."""
        if self._draining is None:
            return 0
        lost = await self._draining.accept_loss()
        self._stirred.set()
        return lost

    def _modes(self, system: System | None) -> tuple[bool, bool]:
        """Modes set here during an outage count until the store knows them."""
        push, pop = (None, None) if self._spool is None else self._spool.modes()
        return (
            (system is not None and system.push_maintenance) if push is None else push,
            (system is not None and system.pop_maintenance) if pop is None else pop,
        )

    @property
    def _pushes_paused(self) -> bool:
        return self._modes(self._system)[0]

    def _adjust(self) -> None:
        """Open or shut the gates by the modes and the availability of the store."""
        if self._tending is None or self._stopping:
            return
        pushes_paused, pops_paused = self._modes(self._system)
        open_gate = _OPEN if self._spool is None else self._spool.gate
        shut = pushes_paused or (self._spool is not None and (not self._is_there or self._system is None))
        self.gate = _SHUT if shut else open_gate
        if pops_paused != self.pops_paused:
            self.pops_paused = pops_paused
            self._arrivals.waiting.pause(pops_paused)

    def buffer_stats(self) -> BufferStats | None:
        if self._spool is None or self._draining is None:
            return None
        counts = self._spool.counts()
        ahead = self._draining.ahead()
        return BufferStats(
            directory=str(self._spool.directory),
            bytes=counts.bytes,
            bytes_max=counts.bytes_max,
            files=counts.files,
            messages=counts.messages,
            messages_buffered=counts.messages_buffered,
            messages_drained=counts.messages_drained,
            messages_rejected=counts.messages_rejected,
            bytes_damaged=counts.bytes_damaged,
            draining=self._draining.active,
            bytes_lost=counts.bytes_lost,
            waiting_for=self._draining.refusal if ahead is None else ahead.message,
        )

    def _told_there(self, there: bool) -> None:
        self._is_there = there
        self._learned_at = _NEVER
        self._adjust()
        self._stirred.set()

    def _told_changed(self) -> None:
        self._learned_at = _NEVER
        self._stirred.set()

    # Background work

    async def _tend(self) -> None:
        """Follow changes of the modes and drain the spool while this process runs."""
        while not self._stopping:
            self._stirred.clear()
            seconds = await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stirred.wait()

    async def _look(self) -> float:
        """One pass; returns the seconds until the next one. Never raises, so an outage does not end the loop."""
        try:
            has_learned = await self._learn()
            if self._spool is None:
                await self._open()
            self._adjust()
            if has_learned and self._draining is not None and not self._buffers():
                await self._draining.look_back()
            if self._draining is None or not self._is_there or self._pushes_paused or not self._buffers():
                return _LOOK_SECONDS
            return await self._draining.run() or _LOOK_SECONDS
        except Unavailable:
            return _RETRY_SECONDS
        except Exception as error:
            text = error.message if isinstance(error, LockstepError) else str(error)
            logger.error("spool_failed", extra={"action": "spool_failed", "error": text}, exc_info=error)
            return _LOOK_SECONDS

    def _buffers(self) -> bool:
        return self._spool is not None and self._spool.gate[0] != 0

    async def _learn(self) -> bool:
        """Fetch the modes of all servers, and publish modes that were set here during an outage. Returns whether the
        store was asked."""
        if not self._is_there:
            return False
        push, pop = (None, None) if self._spool is None else self._spool.modes()
        if push is not None or pop is not None:
            system = await self._store.set_maintenance_mode(push=push, pop=pop)
            assert self._spool is not None
            self._spool.set_modes([None, None])
        elif asyncio.get_running_loop().time() - self._learned_at >= _LEARN_SECONDS:
            system = await self._store.system()
            self._learned_at = asyncio.get_running_loop().time()
        else:
            return False
        if self._system is None and self._spool is not None:
            await self._meet(system, self._spool)
        self._system = system
        return True

    async def _meet(self, system: System, spool: Spool) -> None:
        """The store is reachable and has identified itself. Pushes buffered for its address belong to it in any
        case."""
        directory = await in_thread(self._spool_directory, system)
        if directory != spool.directory:
            extra = {"action": "spool_of_other_store", "directory": str(spool.directory), "store": str(system.id)}
            logger.warning("spool_of_other_store", extra=extra)
            if self._draining is not None:
                self._draining.elsewhere = True


def _is_repeatable(batch: Batch) -> bool:
    """Whether every message has a transaction id, so that a second push of it stores nothing."""
    ids = batch.columns.transaction_ids
    return ids is not None and None not in ids


def _future() -> asyncio.Future[bool]:
    return asyncio.get_running_loop().create_future()


def _settle(written: asyncio.Future[bool], outcome: bool | Exception) -> None:
    if written.done():
        return  # the caller no longer waits for it
    if isinstance(outcome, Exception):
        written.set_exception(outcome)
    else:
        written.set_result(outcome)
