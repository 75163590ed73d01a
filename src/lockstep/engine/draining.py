"""Drains the spool into the store: in order, many records per transaction, each record exactly once.

The transaction that pushes records also stores how far the spool is drained. So a process may die, or lose the answer,
at any moment: its successor asks the store where to continue.

New pushes are appended to the spool, and under load there is always another one. So the last part is drained while
appending is blocked: then the spool is empty, its gate opens, and the blocked callers push as usual.

A record that the database refuses must not hold up the others for ever. It is retried for a while, because a full
queue may empty and a missing key may be configured, and then set aside in a file.

A store that was restored, or that lost its primary, may be behind the spool. The server pushes records again if its
files still have them. Otherwise draining stops until an operator accepts the loss.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from lockstep.config import Config
from lockstep.core.messages import Batch
from lockstep.core.outage import Drained
from lockstep.core.sealing import Keyring
from lockstep.engine.arrivals import Arrivals
from lockstep.engine.balancing import Balancing
from lockstep.engine.spool.contents import batches_of
from lockstep.engine.spool.frames import Frame
from lockstep.errors import (
    CorruptSegment,
    EncryptionUnavailable,
    InvalidRequest,
    LockstepError,
    Overloaded,
    SpoolAhead,
    TooLarge,
    Unavailable,
)
from lockstep.storage.base import Store

if TYPE_CHECKING:
    from lockstep.engine.spool.spool import Spool, Stretch

logger = logging.getLogger("lockstep.engine.spool")

T = TypeVar("T")

_LAST_BYTES = 256 * 1024
"""At most this much is drained while appending is blocked."""
_LAST_SECONDS_MAX = 2.0
_OTHER_SECONDS = 0.25
_BACKOFF_SECONDS_MIN = 0.05
_BACKOFF_SECONDS_MAX = 2.0


class _Later(Exception):
    """The next record cannot be pushed now."""


@dataclass(slots=True)
class _Done:
    """The result of a step."""

    place: int
    messages: int = 0
    rejected: int = 0
    damaged: int = 0


async def in_thread(work: Callable[..., T], *args: Any, **named: Any) -> T:
    """Run in a thread, to the end even if the caller is cancelled, because it may hold a lock."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *args, **named))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


class Draining:
    """Drains one spool into a store."""

    def __init__(
        self,
        spool: Spool,
        store: Store,
        config: Config,
        balancing: Balancing,
        arrivals: Arrivals,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spool = spool
        self._store = store
        self._config = config
        self._keys = Keyring(config.encryption_keys)
        self._balancing = balancing
        self._arrivals = arrivals
        self._clock = clock
        self._alone_until = 0
        """Records before this place are pushed one at a time, because one of them is refused."""
        self._refused: tuple[int, float] | None = None
        """The place of the refused record, and when it was first refused."""
        self._attempts = 0
        self._settled = False
        """Whether it is known for every record if it was set aside."""
        self.elsewhere = False
        """The spool was drained into another store before, so this store need not have what was drained."""
        self._told_lost = 0
        self.active = False
        self.stopping = False
        self.refusal: str | None = None
        """The database's error for the next record."""

    async def run(self) -> float | None:
        """Drain until nothing is left or a record is refused; returns the seconds until the next attempt. Raises
        Unavailable."""
        if not self._spool.begin_draining():
            return _OTHER_SECONDS
        self.active = True
        try:
            await self._drain()
        except _Later:
            self._attempts += 1
            return min(_BACKOFF_SECONDS_MIN * 2.0 ** min(self._attempts, 16), _BACKOFF_SECONDS_MAX)
        finally:
            self.active = False
            self._spool.end_draining()
        return None

    async def begin(self) -> None:
        """Compare the spool with the store. If another process drains, that process does it. Raises Unavailable."""
        if not self._spool.begin_draining():
            return
        try:
            with suppress(_Later):
                await self._agree()
        finally:
            self._spool.end_draining()

    async def look_back(self) -> None:
        """Check whether the store has lost anything that was drained, while nothing is left to drain. Raises
        Unavailable."""
        # The store records it first: a store that lost nothing has everything that this machine counts as drained.
        local = self._spool.place()
        if local and (await self._stored()).place < local:
            await self.begin()

    async def _agree(self) -> int:
        """The place from which to drain, according to the store; this machine adopts it."""
        local = self._spool.place()
        drained = await self._stored()
        if self.elsewhere and drained.place < local:
            drained = await self._store.drain(self._spool.id, [], start=drained.place, end=local)
        self.elsewhere = False
        await self._settle(drained)
        if drained.place < local:
            await self._go_back(drained.place, local)
        else:
            self._told_lost = 0
            await in_thread(self._spool.advance, drained.place)
        return drained.place

    async def _stored(self) -> Drained:
        """The place up to which the store has drained the spool. An empty part changes nothing."""
        return await self._store.drain(self._spool.id, [], start=0, end=0)

    async def _go_back(self, place: int, local: int) -> None:
        """Push again what the store has lost; stop if this machine no longer has all of it."""
        lost = await in_thread(self._spool.go_back, place)
        extra = {"action": "spool_again", "directory": str(self._spool.directory), "bytes": local - place - lost}
        if lost == 0:
            logger.warning("spool_again", extra=extra)
            return
        if lost != self._told_lost:
            self._told_lost = lost
            logger.error("spool_ahead", extra={**extra, "action": "spool_ahead", "bytes": lost})
        raise _Later

    def ahead(self) -> SpoolAhead | None:
        """Why draining has stopped, if something is lost."""
        lost = self._spool.counts().bytes_lost
        if not lost:
            return None
        return SpoolAhead(
            f"the database has lost {lost} bytes that this machine had buffered and pushed, and they are not here any "
            "more; pushes are buffered until an operator runs lockstep maintenance accept",
            bytes_lost=lost,
        )

    async def accept_loss(self) -> int:
        """Continue after a loss; returns the lost bytes: 0 if there is no loss, or if more has been lost in the
        meantime."""
        lost, local = self._spool.counts().bytes_lost, self._spool.place()
        place = (await self._stored()).place
        if not lost or place + lost != local:
            return 0
        drained = await self._store.drain(self._spool.id, [], start=place, end=local)
        if drained.place != local:
            return 0
        extra = {"action": "spool_loss_accepted", "directory": str(self._spool.directory), "bytes": lost}
        logger.warning("spool_loss_accepted", extra=extra)
        return lost

    async def _settle(self, drained: Drained) -> None:
        """Find out whether a record that was to be set aside really was."""
        self._settled = await in_thread(self._spool.settle, drained.place, drained.set_aside_from)

    async def _drain(self) -> None:
        place = await self._agree()
        began, messages = self._clock(), 0
        while not self.stopping and (left := self._spool.left(place)) > 0:
            done = await (self._last_step(place) if left <= _LAST_BYTES else self._step(place))
            place = done.place
            messages += done.messages
        if messages:
            seconds = round(self._clock() - began, 3)
            extra = {"action": "spool_drained", "messages": messages, "seconds": seconds}
            logger.info("spool_drained", extra=extra)

    async def _last_step(self, place: int) -> _Done:
        await in_thread(self._spool.hold)
        try:
            async with asyncio.timeout(_LAST_SECONDS_MAX):
                return await self._step(place)
        except TimeoutError:
            raise _Later from None
        finally:
            self._spool.release()

    async def _step(self, place: int) -> _Done:
        stretch = await in_thread(self._spool.read, place, bytes_max=self._config.call_bytes_max)
        done = await (self._pass_damage(stretch) if stretch.damaged is not None else self._push(stretch))
        if done.place > place:
            await in_thread(
                self._spool.advance,
                done.place,
                messages=done.messages,
                rejected=done.rejected,
                damaged=done.damaged,
            )
            self._attempts = 0
        elif done.place < place:
            raise _Later  # the store has lost something in the meantime: compare again
        return done

    async def _pass_damage(self, stretch: Stretch) -> _Done:
        damaged = stretch.end - stretch.start
        extra = {"action": "spool_damaged", "bytes": damaged, "file": str(stretch.damaged)}
        logger.error("spool_damaged", extra=extra)
        drained = await self._store.drain(self._spool.id, [], start=stretch.start, end=stretch.end)
        return _Done(drained.place, damaged=damaged)

    async def _push(self, stretch: Stretch) -> _Done:
        """Push as many records as fit into one call; only one where they were refused together."""
        frames = stretch.frames[:1] if stretch.start < self._alone_until else stretch.frames
        try:
            taken, batches = await in_thread(self._decoded, frames)
            batches = list(await self._balancing.place(batches))
            end = taken[-1].end
            drained = await self._store.drain(self._spool.id, batches, start=stretch.start, end=end)
        except (Unavailable, Overloaded) as error:
            self.refusal = error.message
            if isinstance(error, Unavailable):
                raise
            raise _Later from error
        except Exception as error:
            if len(frames) > 1:
                self._alone_until = frames[-1].end
                return _Done(stretch.start)
            return await self._refuse(frames[0], error)
        self.refusal = self._refused = None
        if drained.pushed is not None:
            self._arrivals.pushed(batches, drained.pushed)
        if not self._settled:
            await self._settle(drained)
        return _Done(drained.place, messages=sum([f.messages for f in taken if f.end <= drained.place]))

    def _decoded(self, frames: Sequence[Frame]) -> tuple[list[Frame], list[Batch]]:
        """The first records and their batches: at least one, and as many as fit into one call."""
        taken: list[Frame] = []
        batches: list[Batch] = []
        messages = size = 0
        for frame in frames:
            decoded = batches_of(frame.body, keys=self._keys)
            messages += frame.messages
            size += sum([sum(map(len, batch.columns.payloads)) for batch in decoded])
            too_much = messages > self._config.call_messages_max or size > self._config.call_bytes_max
            if taken and too_much:
                break
            taken.append(frame)
            batches += decoded
        return taken, batches

    async def _refuse(self, frame: Frame, error: Exception) -> _Done:
        """Try a refused record again later; or, after a while, set it aside and go on."""
        now = self._clock()
        if self._refused is None or self._refused[0] != frame.start:
            self._refused = (frame.start, now)
            extra = {"action": "spool_refused", "messages": frame.messages, "error": str(error)}
            logger.warning("spool_refused", extra=extra)
        self.refusal = str(error)
        if _may_change(error) and now - self._refused[1] < self._config.spool_refusal_seconds_max:
            raise _Later from error
        return await self._set_aside(frame, error)

    async def _set_aside(self, frame: Frame, error: Exception) -> _Done:
        """Skip a record and keep it in a file. If the store's answer is lost, it is unknown whether the record was
        skipped. It then stays in the spool, and the store settles the question at the next opportunity."""
        self._settled = False
        await in_thread(self._spool.refuse, frame)
        drained = await self._store.drain(self._spool.id, [], start=frame.start, end=frame.end, set_aside=True)
        await self._settle(drained)
        self.refusal = self._refused = None
        if drained.set_aside_from != frame.start:
            return _Done(drained.place, messages=frame.messages)
        extra = {
            "action": "spool_rejected",
            "messages": frame.messages,
            "directory": str(self._spool.directory),
            "error": str(error),
        }
        logger.error("spool_rejected", extra=extra)
        return _Done(drained.place, messages=frame.messages, rejected=frame.messages)

    async def retry_rejected(self) -> int:
        """Push the records that were set aside; returns the number of messages. A record that is refused again stays,
        and its error is raised after all the others were tried.

        For the store, each record is a spool of its own, so it is pushed once even if this process dies before it
        removes the file and the call is repeated."""
        messages, refusal = 0, None
        for path, identity, frame in await in_thread(lambda: list(self._spool.rejected())):
            try:
                batches = list(await self._balancing.place(await in_thread(batches_of, frame.body, keys=self._keys)))
                drained = await self._store.drain(identity, batches, start=0, end=1)
            except (LockstepError, OSError) as error:
                if isinstance(error, Unavailable):
                    raise
                refusal = refusal or error
                continue
            if drained.pushed is not None:
                self._arrivals.pushed(batches, drained.pushed)
            await in_thread(path.unlink, missing_ok=True)
            messages += frame.messages
        if refusal is not None:
            raise refusal
        return messages


def _may_change(error: Exception) -> bool:
    """Whether the store may accept the same record later."""
    if isinstance(error, EncryptionUnavailable):
        return True
    return not isinstance(error, InvalidRequest | TooLarge | CorruptSegment)
