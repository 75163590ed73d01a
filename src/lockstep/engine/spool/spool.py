"""A spool: every process of a server appends to it, and the process that drains reads it.

Appends are made under one lock, so all records have one order, whichever process wrote them. A process that dies during
an append leaves bytes after the known end. The next holder of the lock keeps the complete records among them and cuts
off the rest, which was never reported as safe. Under the same lock the spool is found empty and its gate opened, so no
record can slip in between."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID, uuid4, uuid5

from lockstep.engine.spool.files import SpoolFiles
from lockstep.engine.spool.frames import HEADER_BYTES, Frame, RecordContent, frame_at, framed, frames_in, length_at
from lockstep.engine.spool.state import Gate, Lock, Places, SpoolState
from lockstep.errors import SpoolFull, SpoolUnusable

logger = logging.getLogger("lockstep.engine.spool")

_SYNC: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)  # not everywhere

FILE_BYTES = 16 * 1024 * 1024
"""Once a file has this size, the next one is begun."""


@dataclass(frozen=True, slots=True)
class SpoolCounts:
    """The state of a spool, for all processes that share it."""

    bytes: int
    bytes_max: int
    files: int
    messages: int
    messages_buffered: int
    """Since the spool began, like the following ones."""
    messages_drained: int
    messages_rejected: int
    bytes_damaged: int
    bytes_lost: int
    """Bytes of records that the store had and has lost, and that are no longer here."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the log: records one after the other, or damaged bytes."""

    start: int
    end: int
    frames: list[Frame]
    damaged: Path | None = None
    """The file that keeps damaged bytes."""


class Spool:
    """One directory. Methods block on the disk, so call them in threads; one thread may append while another drains."""

    def __init__(
        self,
        directory: Path,
        *,
        bytes_max: int,
        file_bytes: int = FILE_BYTES,
        sync: Callable[[int], None] = _SYNC,
    ) -> None:
        self.directory = directory
        self.bytes_max = bytes_max
        self._file_bytes = file_bytes
        self._sync = sync
        self._files = SpoolFiles(directory)
        self._written: tuple[Path, int] | None = None
        """The current file, and its descriptor."""
        self._held = False
        self._draining = False
        with ExitStack() as opened:
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._drain_lock = Lock(directory / "drain.lock")
                opened.callback(self._drain_lock.close)
                self._state = SpoolState(directory / "state")
                opened.callback(self._state.close)
                with self._state.lock.held():
                    self._write(self._recovered())
                self._files.sync()
            except OSError as error:
                raise SpoolUnusable(f"the spool in {directory} cannot be used: {error}") from error
            opened.pop_all()

    def close(self) -> None:
        self.end_draining()
        if self._written is not None:
            os.close(self._written[1])
        self._state.close()
        self._drain_lock.close()

    @property
    def id(self) -> UUID:
        return self._known().id

    @property
    def gate(self) -> Gate:
        """Its first item is not 0 while the spool contains anything, whichever process wrote it."""
        return self._state.page

    def modes(self) -> list[bool | None]:
        return self._state.modes()

    def set_modes(self, modes: list[bool | None]) -> None:
        self._state.set_modes(modes)

    def counts(self) -> SpoolCounts:
        places = self._known()
        return SpoolCounts(
            bytes=places.end - places.drained,
            bytes_max=self.bytes_max,
            files=len(self._files.all("log")),
            messages=places.messages_in - places.messages_out,
            messages_buffered=places.messages_in,
            messages_drained=places.messages_out - places.messages_rejected,
            messages_rejected=places.messages_rejected,
            bytes_damaged=places.bytes_damaged,
            bytes_lost=self._state.lost,
        )

    # Appending

    def append(self, contents: Sequence[RecordContent], *, only_behind: bool) -> int | None:
        """Write as many records, from the first on, as there is room for, and return once they are safe on disk. With
        `only_behind`, write only if the spool is not empty; otherwise write nothing and return None. Raises SpoolFull
        if there is no room for the first, and SpoolUnusable if the disk fails; then nothing is written.
        """
        with self._locked():
            places = self._current()
            if only_behind and places.end == places.drained and not self._state.lost:
                return None
            try:
                return self._append(self._with_whole_tail(places), contents)
            except OSError as error:
                raise SpoolUnusable(f"the spool in {self.directory} cannot be written: {error}") from error

    def _append(self, places: Places, contents: Sequence[RecordContent]) -> int:
        frames: list[bytes] = []
        end = places.end
        for content in contents:
            frame = framed(places.id, end, content)
            if end + len(frame) - places.drained > self.bytes_max:
                break
            frames.append(frame)
            end += len(frame)
        if not frames:
            held = places.end - places.drained
            raise SpoolFull(f"the spool holds {held} of at most {self.bytes_max} bytes (spool_bytes_max)")
        if places.end - places.base >= self._file_bytes:
            places = replace(places, base=places.end)
        self._write_file(places, b"".join(frames))
        messages = sum([content.messages for content in contents[: len(frames)]])
        self._write(replace(places, end=end, messages_in=places.messages_in + messages))
        return len(frames)

    def _write_file(self, places: Places, data: bytes) -> None:
        descriptor = self._descriptor(self._files.path(places.id, places.base))
        offset, written = places.end - places.base, 0
        try:
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], offset + written)
            self._sync(descriptor)
        except BaseException:
            # The record is not reported as safe. If it is on disk all the same, it is found after the known end.
            with suppress(OSError):
                os.ftruncate(descriptor, offset)
            raise

    def _descriptor(self, path: Path) -> int:
        if self._written is not None and self._written[0] == path and path.exists():
            return self._written[1]
        if self._written is not None:
            os.close(self._written[1])
            self._written = None
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._written = (path, descriptor)
        if is_new:
            self._files.sync()
        return descriptor

    # Draining

    def begin_draining(self) -> bool:
        """Whether this process may drain. No other process may until this one stops draining or dies."""
        self._draining = self._draining or self._drain_lock.try_acquire()
        return self._draining

    def end_draining(self) -> None:
        self.release()
        if self._draining:
            self._draining = False
            self._drain_lock.release()

    def hold(self) -> None:
        """Block appends until `release`; draining continues."""
        self._state.lock.acquire()
        self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            self._state.lock.release()

    def place(self) -> int:
        """The place up to which it is drained, to the knowledge of this machine."""
        return self._known().drained

    def left(self, start: int) -> int:
        """The number of bytes after a place."""
        return self._known().end - start

    def read(self, start: int, *, bytes_max: int) -> Stretch:
        """The content at a place: at least one record, and about this many bytes of records; or damaged bytes, which
        are moved to a file of their own."""
        places = self._known()
        _, bases = self._files.logs()
        base = max([base for base in bases if base <= start], default=None)
        file_end = min([base for base in bases if base > start], default=places.end)
        if base is None:
            return self._damaged(places, start, file_end, b"")
        path, offset = self._files.path(places.id, base), start - base
        data = self._files.read(path, offset, min(max(bytes_max, HEADER_BYTES), file_end - start))
        if length_at(data) > len(data):
            data = self._files.read(path, offset, min(length_at(data), file_end - start))
        frames = _consecutive(places.id, data, start)
        if frames:
            return Stretch(start, frames[-1].end, frames)
        data = self._files.read(path, offset, file_end - start)
        following = next(frames_in(places.id, data, start), None)
        return self._damaged(places, start, file_end if following is None else following.start, data)

    def _damaged(self, places: Places, start: int, end: int, data: bytes) -> Stretch:
        path = self._files.path(places.id, start, "damaged")
        self._files.keep(path, data[: end - start])
        return Stretch(start, end, [], path)

    def advance(self, to: int, *, messages: int = 0, rejected: int = 0, damaged: int = 0) -> bool:
        """Everything before a place, with this many messages, is in the store or set aside. Remove files that are no
        longer needed; returns whether the spool is empty now."""
        with self._locked(drains=True):
            places = self._current()
            # If the store is ahead of the files, the places that it has seen must not be used again.
            base, end = (places.base, places.end) if to <= places.end else (to, to)
            places = replace(
                places,
                base=base,
                end=end,
                drained=max(to, places.drained),
                messages_out=min(places.messages_out + messages, places.messages_in),
                messages_rejected=places.messages_rejected + rejected,
                bytes_damaged=places.bytes_damaged + damaged,
            )
            if places.drained == places.end:
                places = replace(places, base=places.end, messages_out=places.messages_in)
            self._state.set_lost(0)
            self._write(places)
            self._remove_drained(places)
            return places.drained == places.end

    def go_back(self, place: int) -> int:
        """The store is at an earlier place than this machine: it has lost its latest records. Those that the files
        still have are in the spool again. Returns the number of bytes that the files no longer have; while it is not 0,
        the gate is shut."""
        with self._locked(drains=True):
            places = self._current()
            _, bases = self._files.logs()
            again = min(max(place, min(bases, default=places.base)), places.drained)
            # Records that were set aside are drained again with the rest, so their files are removed.
            for identity, start in self._files.all("rejected"):
                if identity == places.id and again <= start < places.drained:
                    self._files.path(identity, start, "rejected").unlink(missing_ok=True)
            before = replace(places, drained=again)
            messages = self._messages(before) - self._messages(places)
            lost = max(again - place, 0)
            self._state.set_lost(lost)
            self._write(replace(before, messages_out=max(places.messages_out - messages, 0)))
            return lost

    def _remove_drained(self, places: Places) -> None:
        _, bases = self._files.logs()
        for base, following in zip(bases, [*bases[1:], places.base], strict=False):
            if base < following <= places.drained:
                self._files.path(places.id, base).unlink(missing_ok=True)

    # Records that the database refuses

    def refuse(self, frame: Frame) -> None:
        """Keep a record in order to set it aside. It counts as set aside once the store has skipped it: see
        `settle`.
        """
        identity = self.id
        path = self._files.path(identity, frame.start, "refused")
        self._files.keep(path, framed(identity, frame.start, RecordContent(frame.messages, frame.body)))

    def settle(self, place: int, set_aside_from: int | None) -> bool:
        """Settle the refused records, now that the store is at this place and reports which record it set aside last.
        That record is kept for operators; any other was pushed after all. Returns whether none is left in doubt."""
        doubtful = self._files.all("refused")
        for identity, start in doubtful:
            path = self._files.path(identity, start, "refused")
            if start == set_aside_from and start < place:
                path.replace(self._files.path(identity, start, "rejected"))
            elif start < place:
                path.unlink(missing_ok=True)
        if doubtful:
            self._files.sync()
        return not any(start >= place for _, start in doubtful)

    def rejected(self) -> Iterator[tuple[Path, UUID, Frame]]:
        """The records that were set aside, oldest first, each with an id of its own."""
        for identity, place in self._files.all("rejected"):
            path = self._files.path(identity, place, "rejected")
            frame = frame_at(identity, path.read_bytes(), 0, place)
            if frame is not None:
                yield path, uuid5(identity, str(place)), frame

    # The state and its recovery

    @contextmanager
    def _locked(self, *, drains: bool = False) -> Iterator[None]:
        """The lock, unless the draining thread calls, which already holds it."""
        if drains and self._held:
            yield
            return
        with self._state.lock.held():
            yield

    def _known(self) -> Places:
        """The content of the page, without the lock."""
        places = self._state.read()
        if places is None and not self._held:
            # It is being written, or its writer has died.
            with self._state.lock.held():
                places = self._current()
        return places or self._current()

    def _current(self) -> Places:
        """The content of the page, under the lock."""
        return self._state.read() or self._write(self._recovered())

    def _write(self, places: Places) -> Places:
        self._state.write(places)
        return places

    def _recovered(self) -> Places:
        """The state according to the page and the files together."""
        places = self._state.read()
        identity, bases = self._files.logs()
        if identity is None:
            # Without the page, the places of an old spool are unknown, and must not be used for other records.
            return places or Places(uuid4())
        if places is not None and places.id == identity and bases[-1] <= places.base:
            return self._with_whole_tail(places)
        drained = places.drained if places is not None and places.id == identity else 0
        found = Places(identity, base=bases[-1], end=bases[-1], drained=max(drained, bases[0]))
        found = self._with_whole_tail(found, certain=False)
        messages = self._messages(found)
        extra = {"action": "spool_recovered", "directory": str(self.directory), "messages": messages}
        logger.warning("spool_recovered", extra=extra)
        return replace(found, messages_in=messages)

    def _with_whole_tail(self, places: Places, *, certain: bool = True) -> Places:
        """The places, after reading past the known end: complete records are kept, and the rest is cut off. If the end
        is not `certain`, the rest may have been acknowledged, so it is kept in a file of its own."""
        path = self._files.path(places.id, places.base)
        known = places.end - places.base
        size = path.stat().st_size if path.exists() else 0
        if size == known:
            return places
        if size < known:
            extra = {"action": "spool_file_short", "file": path.name, "bytes": known - size}
            logger.error("spool_file_short", extra=extra)
            return replace(places, base=places.end)
        tail = self._files.read(path, known, size - known)
        frames = list(frames_in(places.id, tail, places.end))
        end = frames[-1].end if frames else places.end
        torn = tail[end - places.end :]
        if torn and not certain:
            self._files.keep(self._files.path(places.id, end, "damaged"), torn)
        self._files.cut(path, end - places.base)
        extra = {"action": "spool_tail_recovered", "file": path.name, "records": len(frames), "bytes_cut": len(torn)}
        logger.warning("spool_tail_recovered", extra=extra)
        messages = sum([frame.messages for frame in frames])
        return replace(places, end=end, messages_in=places.messages_in + messages)

    def _messages(self, places: Places) -> int:
        """The number of messages in the files that are not known to be drained."""
        messages = 0
        for base in self._files.logs()[1]:
            data = self._files.path(places.id, base).read_bytes()
            frames = frames_in(places.id, data, base)
            messages += sum([frame.messages for frame in frames if frame.start >= places.drained])
        return messages


def _consecutive(identity: UUID, data: bytes, start: int) -> list[Frame]:
    """The records at the beginning of the data, one after the other."""
    frames: list[Frame] = []
    offset = 0
    while (frame := frame_at(identity, data, offset, start + offset)) is not None:
        frames.append(frame)
        offset = frame.end - start
    return frames
