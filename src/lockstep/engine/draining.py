"""The way of what was buffered into the store: in order, many records in a transaction, each exactly once.

The store remembers, in the transaction that pushes them, up to where the records of a spool are in it. So a process may
die, or lose the answer, at any moment: whoever goes on asks the store where.

New pushes go behind what is in the spool, and under load there is always a new one. So the last part is drained while
nobody can append: then the spool is empty, its gate is opened, and those who waited push as usual.

What the database refuses for what it is must not hold up the rest for ever. It is tried for a while, because a full
queue gets empty and a missing key may be configured, and then set aside in a file.

A store that was restored, or whose primary was lost, may be behind the spool. What the files still have is pushed
again. If they lack a part, draining stops until somebody accepts that it is lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from lockstep.config import Config
from lockstep.core.messages import Batch, PushResult
from lockstep.core.outage import Drained
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
"""So much is drained while nobody can append."""
_LAST_SECONDS_MAX = 2.0
_OTHER_SECONDS = 0.25
_BACKOFF_SECONDS_MIN = 0.05
_BACKOFF_SECONDS_MAX = 2.0

Place = Callable[[Sequence[Batch]], Awaitable[Sequence[Batch]]]
Tell = Callable[[Sequence[Batch], PushResult], None]


class _Later(Exception):
    """The record that is next cannot be pushed now."""


@dataclass(slots=True)
class _Done:
    """How far a step came."""

    place: int
    messages: int = 0
    rejected: int = 0
    damaged: int = 0


async def in_thread(work: Callable[..., T], *args: Any, **named: Any) -> T:
    """In a thread, and to its end also when whoever waits for it is cancelled: it may hold a lock."""
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
        *,
        place: Place,
        tell: Tell,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spool = spool
        self._store = store
        self._config = config
        self._key = config.encryption_key_bytes
        self._place = place
        self._tell = tell
        self._clock = clock
        self._alone_until = 0
        """Records before this place are pushed one at a time, because one of them is refused."""
        self._refused: tuple[int, float] | None = None
        """The place of the record that is refused, and since when."""
        self._attempts = 0
        self._settled = False
        """No record is in doubt that was to be set aside."""
        self.elsewhere = False
        """The spool was drained into another store before: that this one lacks something means nothing."""
        self._told_lost = 0
        self.active = False
        self.stopping = False
        self.refusal: str | None = None
        """What the database says to the record that is next."""

    async def run(self) -> float | None:
        """Drain until there is nothing left, or it does not go on: then in how many seconds to try again. Raises
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
        """See how far the store is. If another process drains, that process sees it. Raises Unavailable."""
        if not self._spool.begin_draining():
            return
        try:
            with suppress(_Later):
                await self._agree()
        finally:
            self._spool.end_draining()

    async def _agree(self) -> int:
        """From where on to drain, as the store knows it, and this machine then, too."""
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
        """How far the store is. A part that is empty moves nothing."""
        return await self._store.drain(self._spool.id, [], start=0, end=0)

    async def _go_back(self, place: int, local: int) -> None:
        """Push again what the store has lost; stop if a part of that is not here any more."""
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
        """Why nothing is drained, if something is lost."""
        lost = self._spool.counts().bytes_lost
        if not lost:
            return None
        return SpoolAhead(
            f"the database has lost {lost} bytes that this machine had buffered and pushed, and they are not here any "
            "more; pushes are buffered until somebody runs lockstep maintenance accept",
            bytes_lost=lost,
        )

    async def accept_loss(self) -> int:
        """Go on behind what is lost; returns how many bytes. 0 if nothing is, or if more was lost meanwhile."""
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
        """See what became of a record that was to be set aside, and may not have been."""
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
            raise _Later  # the store has lost something in between: see how far it is
        return done

    async def _pass_damage(self, stretch: Stretch) -> _Done:
        damaged = stretch.end - stretch.start
        extra = {"action": "spool_damaged", "bytes": damaged, "file": str(stretch.damaged)}
        logger.error("spool_damaged", extra=extra)
        drained = await self._store.drain(self._spool.id, [], start=stretch.start, end=stretch.end)
        return _Done(drained.place, damaged=damaged)

    async def _push(self, stretch: Stretch) -> _Done:
        """Push as many of the records as make one call; one alone where they were refused together."""
        frames = stretch.frames[:1] if stretch.start < self._alone_until else stretch.frames
        try:
            taken, batches = await in_thread(self._decoded, frames)
            batches = list(await self._place(batches))
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
            self._tell(batches, drained.pushed)
        if not self._settled:
            await self._settle(drained)
        return _Done(drained.place, messages=sum([f.messages for f in taken if f.end <= drained.place]))

    def _decoded(self, frames: Sequence[Frame]) -> tuple[list[Frame], list[Batch]]:
        """The first of the records and their batches: one, and more while they are not too much for one call."""
        taken: list[Frame] = []
        batches: list[Batch] = []
        messages = size = 0
        for frame in frames:
            decoded = batches_of(frame.body, key=self._key)
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
        """Pass a record, and keep it in a file. If the answer to that is lost, nobody knows whether it was passed: then
        it is still to be pushed, and the store says at the next opportunity which of the two it was."""
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
        """Push what was set aside; returns how many messages. What is refused again stays, and its error is raised
        after all the others were tried.

        Each record is a spool of its own for the store: it is pushed once, also if this dies before its file is gone,
        and is told to push it again."""
        messages, refusal = 0, None
        for path, identity, frame in await in_thread(lambda: list(self._spool.rejected())):
            try:
                batches = list(await self._place(await in_thread(batches_of, frame.body, key=self._key)))
                drained = await self._store.drain(identity, batches, start=0, end=1)
            except (LockstepError, OSError) as error:
                if isinstance(error, Unavailable):
                    raise
                refusal = refusal or error
                continue
            if drained.pushed is not None:
                self._tell(batches, drained.pushed)
            await in_thread(path.unlink, missing_ok=True)
            messages += frame.messages
        if refusal is not None:
            raise refusal
        return messages


def _may_change(error: Exception) -> bool:
    """Whether the same record may be taken later."""
    if isinstance(error, EncryptionUnavailable):
        return True
    return not isinstance(error, InvalidRequest | TooLarge | CorruptSegment)
