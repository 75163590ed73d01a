"""The data directory: its layout, its current owner, its record, its socket, and what a dead server left behind.

<data_dir>/pgdata          PostgreSQL's cluster
<data_dir>/run             the directory of its socket, unless that path is too long
<data_dir>/postgres.log    PostgreSQL's log
<data_dir>/lockstep.lock   locked (flock) by the process that runs the server; the kernel unlocks it
<data_dir>/encryption.key  the key of encrypted queues
<data_dir>/lockstep.json   who that process and its server are: for messages, and to find a dead
                           owner's server again
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import stat
import string
import tempfile
import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import msgspec

from lockstep.errors import DataDirectoryInUse, ServerStartFailed
from lockstep.storage.postgres.embedded.processes import (
    KILL_PATIENCE,
    POLL_INTERVAL,
    ProcessIdentity,
    command_line,
    end_processes,
    postgres_processes,
)
from lockstep.storage.postgres.embedded.programs import Account, make_public, unusable
from lockstep.storage.postgres.key_files import KEY_FILE

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

    def hand_over(self, account: Account) -> None:
        """Give the directory, and what we keep in it, to the server's user; its key stays ours."""
        for path in (self.path, self._lock, self._record, self.log, self.log.with_suffix(".log.1")):
            _give(path, account)
        for directory, names, files in os.walk(self.path / "spool"):
            for path in (Path(directory), *(Path(directory, name) for name in (*names, *files))):
                _give(path, account)

    @property
    def is_locked(self) -> bool:
        """Say whether we hold the lock."""
        return self._lock_fd is not None

    def lock(self) -> None:
        """Become the only user of the directory, or raise an error that names the current user."""
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


def _give(path: Path, account: Account) -> None:
    """Without following a link, and no file that has another name elsewhere: the directory may have been that user's
    before."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, or a socket
            return
        raise
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1):
            os.fchown(descriptor, account.uid, account.gid)
    finally:
        os.close(descriptor)


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


PATH_BYTES_MAX = 107
# A comma separates hosts in a DSN and directories in a setting; anything unusual gets a plain path instead.
PATH_LETTERS = frozenset(string.ascii_letters + string.digits + "/._-+~@")
SHORT_PREFIX = "lockstep-"
PRIVATE_DIRECTORY = 0o040700


def make_socket_dir(data_dir: Path, account: Account, *, previous: Path) -> Path:
    """Make the directory inside the data directory, or a short one elsewhere if that path will not do.

    A short one that was used before is used again.
    """
    own = data_dir / "run"
    if not _fits(own):
        is_reusable = previous.name.startswith(SHORT_PREFIX) and _is_private(previous, account)
        return previous if is_reusable else _make_short(data_dir, account)
    if not _is_private(own, account):
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir(mode=0o700)
        account.take_over(own)
    return own


def clean_socket_dir(socket_dir: Path) -> None:
    """Remove the socket of a server that is gone; its lock file blocks the next server if its pid is in use."""
    if socket_dir.is_symlink():
        return
    for leftover in socket_dir.glob(".s.PGSQL.*"):
        leftover.unlink(missing_ok=True)


def remove_short_dir(socket_dir: Path) -> None:
    """Remove a directory that was made in a temporary one."""
    if socket_dir.name.startswith(SHORT_PREFIX):
        clean_socket_dir(socket_dir)
        (socket_dir / KEY_FILE).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            socket_dir.rmdir()


def _make_short(data_dir: Path, account: Account) -> Path:
    for base in dict.fromkeys((Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"))):
        if _fits(base / f"{SHORT_PREFIX}12345678") and account.can_enter(base):
            short = Path(tempfile.mkdtemp(prefix=SHORT_PREFIX, dir=base))
            account.take_over(short)
            return short
    raise unusable(data_dir, "its path is too long for a socket, and no temporary directory serves")


def _fits(directory: Path) -> bool:
    path = os.fspath(directory / f".s.PGSQL.{PORT}")
    return len(os.fsencode(path)) <= PATH_BYTES_MAX and PATH_LETTERS.issuperset(path)


def _is_private(directory: Path, account: Account) -> bool:
    try:
        status = directory.lstat()
    except OSError:
        return False
    # Type and permissions in one comparison: a directory of mode 0700, and not a link to one.
    return status.st_mode == PRIVATE_DIRECTORY and status.st_uid == account.uid


# Backends notice by themselves that their postmaster is gone, unless they are busy computing.
BACKEND_STEPS = ((0, 2.0), (signal.SIGQUIT, 3.0), (signal.SIGKILL, KILL_PATIENCE))
START_TIME_LINE = 2


def clear_leftovers(
    directory: DataDirectory, record: Record, *, timeout: float, progress: Callable[[str], None]
) -> None:
    """Make way for a new server: end the recorded one and its processes, then remove their lock files.

    We hold the lock on the directory, so the recorded server's owner is dead. A server that we did not
    start is never touched, but reported as the user of the directory.
    """
    _refuse_foreign_server(directory, record)
    if record.server is not None and record.server.is_alive():
        progress(f"waiting for the previous server (process {record.server.pid}) to stop")
        _end([record.server], _server_steps(timeout))
    if backends := postgres_processes(directory.cluster):
        progress(f"waiting for {len(backends)} processes of the previous server to end")
        _end(backends, BACKEND_STEPS)
    # PostgreSQL checks only the pid in these files, and would not start if that pid is in use again.
    (directory.cluster / "postmaster.pid").unlink(missing_ok=True)
    if record.socket_dir:
        clean_socket_dir(Path(record.socket_dir))


def _refuse_foreign_server(directory: DataDirectory, record: Record) -> None:
    lines = directory.postmaster_file()
    # A single-user server writes its pid with a minus sign.
    pid = abs(int(lines[0])) if lines and lines[0].lstrip("-").isdecimal() else None
    for process in postgres_processes(directory.cluster):
        if process.pid == pid and process != record.server:
            raise in_use(directory.path, process, _start_time(lines))


def _start_time(lines: list[str]) -> datetime | None:
    if len(lines) > START_TIME_LINE and lines[START_TIME_LINE].isdecimal():
        return datetime.fromtimestamp(int(lines[START_TIME_LINE]), UTC)
    return None


def _server_steps(timeout: float) -> tuple[tuple[int, float], ...]:
    return (signal.SIGINT, timeout * 0.5), (signal.SIGQUIT, timeout * 0.25), (signal.SIGKILL, timeout * 0.25)


def _end(processes: list[ProcessIdentity], steps: tuple[tuple[int, float], ...]) -> None:
    if remaining := end_processes(processes, steps):
        pids = ", ".join(str(process.pid) for process in remaining)
        raise ServerStartFailed(f"Processes of the previous server do not end: {pids}.")
