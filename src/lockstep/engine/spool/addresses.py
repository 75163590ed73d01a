"""Which spool is for a database, also while the database cannot say which one it is.

A spool is for one database, and has the name that the database gives itself. A server that starts while its database is
away knows nothing but the address; so for each address there is a file that says whose spool was used there last. Where
there is none a new spool is begun, and keeps its name when the database comes.
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


class _Known(msgspec.Struct, frozen=True):
    """What an address stands for."""

    directory: str
    store: UUID | None = None
    """None until the database has said which one it is."""


def directory_of(root: Path, address: str | None, store: UUID | None) -> Path:
    """The directory, below this one, of the spool for a store at an address; `store` is None if it cannot be asked.
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
    """Other spools for addresses at which no database was ever reached, with their bytes: unless one is, nobody drains
    them. Raises OSError."""
    known = [_read(path) for path in sorted(root.glob("*.address"))]
    names = {one.directory for one in known if one is not None and one.store is None} - {besides.name}
    sizes = [(root / name, sum([log.stat().st_size for log in (root / name).glob("*.log")])) for name in sorted(names)]
    return [(directory, size) for directory, size in sizes if size]


def _known(root: Path, before: _Known | None, store: UUID | None) -> _Known:
    if store is None:
        return before or _Known(str(uuid4()))
    if before is not None and before.store in (None, store):
        return _Known(before.directory, store)
    # The same database may be known at another address.
    others = [_read(path) for path in sorted(root.glob("*.address"))]
    names = [other.directory for other in others if other is not None and other.store == store]
    return _Known(names[0] if names else str(store), store)


def _path(root: Path, address: str | None) -> Path:
    return root / f"{sha256(_shown(address or _EMBEDDED).encode()).hexdigest()[:32]}.address"


def _shown(address: str) -> str:
    """Without the password, which may change; unless the address cannot be taken apart."""
    shown = without_password(address)
    return shown if "://" in shown else address


def _read(path: Path) -> _Known | None:
    """None if there is none, or nobody can read it any more: the next one who can ask the database writes it anew."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Known)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _write(path: Path, known: _Known) -> None:
    """Whole or not at all."""
    whole = path.with_suffix(".new")
    descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(known))
        file.flush()
        os.fsync(file.fileno())
    whole.replace(path)
