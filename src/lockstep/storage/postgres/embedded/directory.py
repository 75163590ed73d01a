"""The data directory: what lies where in it, who owns it at the moment, and what its record says.

<data_dir>/pgdata          PostgreSQL's cluster
<data_dir>/run             the directory of its socket, unless that path is too long
<data_dir>/postgres.log    PostgreSQL's log
<data_dir>/lockstep.lock   locked (flock) by the process that runs the server; the kernel unlocks it
<data_dir>/lockstep.json   who that process and its server are: for messages, and to find a dead
                           owner's server again
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import msgspec

from lockstep.errors import DataDirectoryInUse
from lockstep.storage.postgres.embedded.installs import make_public
from lockstep.storage.postgres.embedded.processes import POLL_INTERVAL, ProcessIdentity, command_line

DATABASE = "lockstep"
ROLE = "lockstep"
PORT = 5432
OWNER_RECORD_WAIT = 1.0


class Record(msgspec.Struct, frozen=True):
    """What `lockstep.json` says. Each process in it counts only if it is alive by its full identity."""

    owner: ProcessIdentity | None = None
    server: ProcessIdentity | None = None
    since: datetime | None = None
    postgres_version: str = ""
    socket_dir: str = ""

    def has_live_owner(self) -> bool:
        """Say whether the process that wrote the record still runs and holds the directory."""
        return self.owner is not None and self.owner.is_alive()

    def has_live_server(self) -> bool:
        """Say whether the recorded server still runs."""
        return self.server is not None and self.server.is_alive()

    @property
    def dsn(self) -> str:
        """Return the address of the server, for asyncpg and psycopg alike."""
        return f"postgresql://{ROLE}@/{DATABASE}?host={quote(self.socket_dir, safe='')}&port={PORT}"


class DataDirectory:
    """The paths of one data directory, and the lock on it while we hold it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cluster = path / "pgdata"
        self.log = path / "postgres.log"
        self._record = path / "lockstep.json"
        self._lock = path / "lockstep.lock"
        self._lock_fd: int | None = None

    def make(self) -> None:
        """Create the directory: private for an ordinary user; as root, passable for the server's user."""
        if os.geteuid() == 0:
            make_public(self.path)
            # An empty directory was made for us, so its mode (0700 if by mkdtemp) is ours to choose.
            if self.path.stat().st_uid == 0 and not any(self.path.iterdir()):
                self.path.chmod(0o755)
        else:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def is_locked(self) -> bool:
        """Say whether we hold the lock."""
        return self._lock_fd is not None

    def lock(self) -> None:
        """Become the only user of the directory, or raise with the name of the one who is."""
        if self._lock_fd is not None:
            return
        # O_CLOEXEC: if PostgreSQL inherited the descriptor, the lock would outlive us with it.
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise self._in_use_by_owner() from None
        except BaseException:
            os.close(descriptor)
            raise
        self._lock_fd = descriptor
        _locked.add(self)

    def unlock(self) -> None:
        """Let others use the directory."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
        self._lock_fd = None

    def read_record(self) -> Record:
        """Return the record; an empty one if it is missing or was cut off by a crash."""
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=Record)
        except (OSError, msgspec.DecodeError):
            return Record()

    def write_record(self, record: Record) -> None:
        """Replace the record at once, so that a reader never sees half of it."""
        scratch = self._record.with_suffix(".new")
        scratch.unlink(missing_ok=True)
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(record), indent=2))
        os.replace(scratch, self._record)

    def postmaster_file(self) -> list[str]:
        """Return the lines of PostgreSQL's own lock file; none if it is missing."""
        try:
            return (self.cluster / "postmaster.pid").read_text().splitlines()
        except OSError:
            return []

    def _in_use_by_owner(self) -> DataDirectoryInUse:
        deadline = time.monotonic() + OWNER_RECORD_WAIT
        record = self.read_record()
        # Whoever has the lock writes its name next, so a dead or missing name becomes a live one soon.
        while not (has_owner := record.has_live_owner()) and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL)
            record = self.read_record()
        return in_use(self.path, record.owner if has_owner else None, record.since)

    def _forget_lock(self) -> None:
        # Closing our copy leaves the parent's lock as it is; keeping it would hold the lock after its death.
        self.unlock()


def default_data_dir() -> Path:
    """Return the directory that is used when none is named."""
    if configured := os.environ.get("LOCKSTEP_DATA_DIR"):
        return Path(configured).expanduser()
    if os.geteuid() == 0:
        return Path("/var/lib/lockstep/data")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "lockstep"


def in_use(data_dir: Path, owner: ProcessIdentity | None, since: datetime | None) -> DataDirectoryInUse:
    """Return the error that names the process which uses a directory."""
    if owner is None:
        return DataDirectoryInUse(f"The data directory {data_dir} is in use by another process.")
    command = command_line(owner.pid) or "unknown command"
    when = f" since {since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if since else ""
    return DataDirectoryInUse(
        f"The data directory {data_dir} is in use by process {owner.pid} ({command}){when}. "
        "Stop that process, connect to its server, or choose another data directory.",
        data_dir=str(data_dir),
        pid=owner.pid,
    )


_locked: weakref.WeakSet[DataDirectory] = weakref.WeakSet()


def _forget_locks_in_child() -> None:
    for directory in list(_locked):
        directory._forget_lock()


os.register_at_fork(after_in_child=_forget_locks_in_child)
