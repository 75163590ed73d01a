"""Which spool belongs to a database, even while the database cannot be reached.

A spool belongs to one database and is named after the database's own identity. A server that starts while its database
is away knows only the address, so a file for each address records which spool was last used there. If there is no such
file, a new spool is begun, which keeps its name once the database is reachable.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from uuid import UUID, uuid4

import msgspec

from lockstep.config import without_password
from lockstep.engine.spool.state import Lock

_EMBEDDED = "embedded"


class _SpoolNames(msgspec.Struct, frozen=True):
    """The spool that belongs to an address."""

    directory: str
    store: UUID | None = None
    """None until the database has identified itself."""


def directory_of(root: Path, address: str | None, store: UUID | None) -> Path:
    """The directory, below this one, of the spool for a store at an address; `store` is None if it cannot be reached.
    Raises OSError."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = Lock(root / "addresses.lock")
    try:
        with lock.held():
            path = _path(root, address)
            before = _read(path)
            known = _known(root, before, store)
            if known != before:
                _write(path, known)
            return root / known.directory
    finally:
        lock.close()


def unclaimed(root: Path, besides: Path) -> list[tuple[Path, int]]:
    """Other spools for addresses at which no database was ever reached, with their sizes. Nothing drains them until one
    is reached. Raises OSError."""
    known = [_read(path) for path in sorted(root.glob("*.address"))]
    names = {one.directory for one in known if one is not None and one.store is None} - {besides.name}
    sizes = [(root / name, sum([log.stat().st_size for log in (root / name).glob("*.log")])) for name in sorted(names)]
    return [(directory, size) for directory, size in sizes if size]


def _known(root: Path, before: _SpoolNames | None, store: UUID | None) -> _SpoolNames:
    if store is None:
        return before or _SpoolNames(str(uuid4()))
    if before is not None and before.store in (None, store):
        return _SpoolNames(before.directory, store)
    # The same database may be known at another address.
    others = [_read(path) for path in sorted(root.glob("*.address"))]
    names = [other.directory for other in others if other is not None and other.store == store]
    return _SpoolNames(names[0] if names else str(store), store)


def _path(root: Path, address: str | None) -> Path:
    return root / f"{sha256(_shown(address or _EMBEDDED).encode()).hexdigest()[:32]}.address"


def _shown(address: str) -> str:
    """Without the password, which may change; unless the address cannot be parsed."""
    shown = without_password(address)
    return shown if "://" in shown else address


def _read(path: Path) -> _SpoolNames | None:
    """None if it is missing or cannot be read; the next process that reaches the database writes it again."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_SpoolNames)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _write(path: Path, known: _SpoolNames) -> None:
    """Written completely or not at all."""
    whole = path.with_suffix(".new")
    descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(known))
        file.flush()
        os.fsync(file.fileno())
    whole.replace(path)
