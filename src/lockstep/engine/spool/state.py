"""The state that the processes of a spool share: a page of memory that all of them map, and its lock.

The page says where the log begins and ends. It is changed only under the lock, after the data that it describes is on
disk. It may be lost, because the log itself contains all of it. Every push reads its first byte, the *gate*, without
the lock: does the spool contain anything, so that a push must go behind it? Or is something lost, so that pushes wait
until an operator accepts the loss?
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from hashlib import blake2b
from pathlib import Path
from uuid import UUID

_PAGE_BYTES = 4096
_GATE, _MODES = 0, 1
_MODES_COUNT = 2
_LOST_AT = 8
_LOST = struct.Struct("<Q")
_PLACES_AT = 64
_MAGIC = b"LSspool1"
_PLACES = struct.Struct("<8s16sQQQQQQQ")
_DIGEST_BYTES = 16

Gate = bytes | mmap.mmap


@dataclass(slots=True)
class Places:
    """Where the log stands. Places are bytes from the beginning of the spool; see `frames.py`."""

    id: UUID
    base: int = 0
    """Where the current file begins."""
    end: int = 0
    """Everything before it was acknowledged, or may have been."""
    drained: int = 0
    """Everything before it is in the store, or set aside."""
    messages_in: int = 0
    messages_out: int = 0
    messages_rejected: int = 0
    bytes_damaged: int = 0

    def pack(self) -> bytes:
        _, *numbers = astuple(self)
        packed = _PLACES.pack(_MAGIC, self.id.bytes, *numbers)
        return packed + blake2b(packed, digest_size=_DIGEST_BYTES).digest()


def _unpack(packed: bytes) -> Places | None:
    """None if the checksum does not match."""
    content, digest = packed[: _PLACES.size], packed[_PLACES.size :]
    if digest != blake2b(content, digest_size=_DIGEST_BYTES).digest():
        return None
    magic, identity, *numbers = _PLACES.unpack(content)
    places = Places(UUID(bytes=identity), *numbers)
    return places if magic == _MAGIC and places.base <= places.end and places.drained <= places.end else None


class Lock:
    """Excludes other threads and processes. The kernel releases it if its process dies."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._here = threading.Lock()

    def acquire(self) -> None:
        self._here.acquire()
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        except BaseException:
            self._here.release()
            raise

    def try_acquire(self) -> bool:
        if not self._here.acquire(blocking=False):
            return False
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._here.release()
            return False
        return True

    def release(self) -> None:
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        self._here.release()

    @contextmanager
    def held(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def close(self) -> None:
        os.close(self.descriptor)


class SpoolState:
    """The page, in this process."""

    def __init__(self, path: Path) -> None:
        self.lock = Lock(path)
        try:
            self._allocate()
            self.page = mmap.mmap(self.lock.descriptor, _PAGE_BYTES)
        except BaseException:
            self.lock.close()
            raise

    def _allocate(self) -> None:
        """Write a new page, instead of only extending the file: on a full disk that is an error. A write to a mapped
        page for which the disk has no room ends the process."""
        with self.lock.held():
            size = os.fstat(self.lock.descriptor).st_size
            while size < _PAGE_BYTES:
                size += os.pwrite(self.lock.descriptor, bytes(_PAGE_BYTES - size), size)

    def read(self) -> Places | None:
        """None if it was never written, or only in part, by a process that died."""
        return _unpack(self.page[_PLACES_AT : _PLACES_AT + _PLACES.size + _DIGEST_BYTES])

    def write(self, places: Places) -> None:
        packed = places.pack()
        self.page[_PLACES_AT : _PLACES_AT + len(packed)] = packed
        self.page[_GATE] = places.end > places.drained or self.lost > 0

    @property
    def lost(self) -> int:
        """The number of bytes that the store had and has lost, and that are no longer here."""
        return int(_LOST.unpack_from(self.page, _LOST_AT)[0])

    def set_lost(self, size: int) -> None:
        """Counts for the gate with the next `write`."""
        _LOST.pack_into(self.page, _LOST_AT, size)

    def modes(self) -> list[bool | None]:
        """Modes set on this machine during an outage; None if not set."""
        return [{1: False, 2: True}.get(self.page[_MODES + index]) for index in range(_MODES_COUNT)]

    def set_modes(self, modes: list[bool | None]) -> None:
        for index, mode in enumerate(modes):
            self.page[_MODES + index] = 0 if mode is None else 1 + mode

    def close(self) -> None:
        self.page.close()
        self.lock.close()
