"""The embedded server as its users see it: one object that starts, watches and stops it."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import msgspec

from lockstep.errors import EmbeddedError
from lockstep.storage.postgres.embedded.cluster import (
    SUPERUSER,
    check_settings,
    has_old_logins,
    initialise,
    is_initialised,
    remove_unfinished,
    require_version,
    server_program,
    upgrade,
    write_logins,
)
from lockstep.storage.postgres.embedded.directory import (
    ROLE,
    DataDirectory,
    Record,
    clear_leftovers,
    default_data_dir,
    make_socket_dir,
    remove_short_dir,
)
from lockstep.storage.postgres.embedded.processes import ProcessIdentity, identify_self
from lockstep.storage.postgres.embedded.programs import (
    Account,
    Install,
    bundled_install,
    directory_errors,
    reachable_install,
    require_reachable,
    server_account,
)
from lockstep.storage.postgres.embedded.server import RESTART_ATTEMPTS_MAX, Keeper, Postmaster
from lockstep.storage.postgres.key_files import KEY_FILE, make_key

logger = logging.getLogger("lockstep.embedded")


class _Plan(msgspec.Struct, frozen=True):
    """What every launch of the server needs, decided once per start."""

    install: Install
    account: Account
    socket_dir: Path


class EmbeddedPostgres:
    """A PostgreSQL server of our own, on a data directory that no other process uses meanwhile.

    It runs as a child of this process and never outlives it. `on_progress` is called with a line of text
    for people, from whichever thread is at work. With `restart`, a server that dies is restarted; it is given up after
    N deaths without a minute of health between them, or, for None, never.
    """

    def __init__(
        self,
        data_dir: Path | str | None = None,
        *,
        start_timeout: float = 60.0,
        stop_timeout: float = 30.0,
        settings: Mapping[str, str] | None = None,
        on_progress: Callable[[str], None] | None = None,
        restart: bool = True,
        restart_attempts_max: int | None = RESTART_ATTEMPTS_MAX,
    ) -> None:
        self.data_dir = _absolute(data_dir)
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._settings = check_settings(settings or {})
        self._on_progress = on_progress
        self._restart = restart
        self._restart_attempts_max = restart_attempts_max
        self._directory = DataDirectory(self.data_dir)
        self._record = Record()
        self._keeper: Keeper | None = None
        self._plan: _Plan | None = None
        self._owner_pid = os.getpid()
        # Held while the server is started or stopped, so that both happen one after the other.
        self._changing = threading.RLock()

    @property
    def dsn(self) -> str:
        """Return the server's address; it stays the same until the server is stopped."""
        if self._keeper is None:
            raise EmbeddedError("The embedded PostgreSQL is not started.")
        return self._record.dsn

    @property
    def superuser_dsn(self) -> str:
        """Return the same address for the superuser: to administer the cluster, not for applications."""
        return self.dsn.replace(f"//{ROLE}@", f"//{SUPERUSER}@", 1)

    def start(self) -> str:
        """Start the server, unless it runs, and return its address once it accepts connections."""
        with self._changing:
            self._forget_parents_server()
            if self._keeper is not None and self._keeper.await_restart():
                return self.dsn
            try:
                with directory_errors(self.data_dir):
                    self._plan = self._open()
                self._keep()
            except BaseException:
                self._close()
                raise
            atexit.register(self.stop)
            return self.dsn

    def stop(self) -> None:
        """Stop the server, if it runs, and release the data directory."""
        # A forked copy of this process has the object, and its exit handlers, but not the server.
        if os.getpid() != self._owner_pid:
            return
        if (keeper := self._keeper) is not None:
            keeper.cancel()
        with self._changing:
            self._close()

    @property
    def account(self) -> Account:
        """Return the user who runs the server."""
        if self._plan is None:
            raise EmbeddedError("The embedded PostgreSQL is not started.")
        return self._plan.account

    def drop_root(self) -> None:
        """Switch this process from root to the user who runs the server; from the thread that started the server."""
        with self._changing, directory_errors(self.data_dir):
            account = self.account
            self._directory.hand_over(account)
            assert self._plan is not None
            self._plan = msgspec.structs.replace(self._plan, account=account.become())

    def is_running(self) -> bool:
        """Say whether the server runs now."""
        keeper = self._keeper
        return keeper is not None and keeper.is_running()

    async def astart(self) -> str:
        """Do what `start` does without blocking the event loop."""
        try:
            return await asyncio.to_thread(self.start)
        except asyncio.CancelledError:
            # The thread keeps running when its caller is cancelled, and nothing else would stop the server that it
            # started.
            await asyncio.shield(asyncio.to_thread(self.stop))
            raise

    async def astop(self) -> None:
        """Do what `stop` does without blocking the event loop."""
        await asyncio.to_thread(self.stop)

    def __enter__(self) -> EmbeddedPostgres:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> EmbeddedPostgres:
        await self.astart()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.astop()

    def _open(self) -> _Plan:
        """Take the directory and prepare everything for a launch."""
        if not sys.platform.startswith("linux"):
            raise EmbeddedError("The embedded PostgreSQL needs Linux. Connect to a server of your own instead.")
        self._owner_pid = os.getpid()
        self._directory.make()
        self._directory.lock()
        # The previous server stays in the record until it is known to be gone.
        self._record = self._directory.read_record()
        self._write_record(owner=identify_self(), since=datetime.now(UTC))
        account = server_account(self._directory.cluster)
        require_reachable(self.data_dir, account)
        install = reachable_install(bundled_install(), account)
        self._prepare_cluster(install, account)
        previous = Path(self._record.socket_dir)
        socket_dir = make_socket_dir(self.data_dir, account, previous=previous)
        self._prepare_key(socket_dir)
        self._write_record(socket_dir=str(socket_dir), postgres_version=install.version)
        return _Plan(install, account, socket_dir)

    def _prepare_cluster(self, install: Install, account: Account) -> None:
        cluster = self._directory.cluster
        remove_unfinished(self.data_dir)
        if not is_initialised(cluster):
            self._report("initialising …")
            initialise(cluster, install, account, timeout=self._start_timeout)
        require_version(cluster, install)

    def _prepare_key(self, socket_dir: Path) -> None:
        """Encrypted queues work without a setting: a key is stored beside the data, and found through the socket."""
        made = make_key(self.data_dir)
        if made is not None:
            self._report(
                f"made a key for encrypted queues: {made}. Back it up apart from the data: without it their messages "
                "are lost"
            )
        if socket_dir.parent != self.data_dir:
            link = socket_dir / KEY_FILE
            link.unlink(missing_ok=True)
            link.symlink_to(self.data_dir / KEY_FILE)

    def _keep(self) -> None:
        """Start the server in the care of a new keeper."""
        self._keeper = Keeper(
            self._launch,
            restart=self._restart,
            restart_attempts_max=self._restart_attempts_max,
            stop_timeout=self._stop_timeout,
            progress=self._report,
        )
        self._keeper.start()

    def _launch(self, stopping: threading.Event) -> Postmaster:
        """Bring up one server, in the keeper's thread, for the first time or again."""
        plan = self._plan
        assert plan is not None
        with directory_errors(self.data_dir):
            clear_leftovers(self._directory, self._record, timeout=self._start_timeout, progress=self._report)
            if stopping.is_set():
                raise EmbeddedError("The server was stopped before it started.")
            self._prepare_logins(plan)
            self._report("starting …")
            program = server_program(plan.install, self._directory.cluster, plan.socket_dir, self._settings)
            postmaster = Postmaster.spawn(program, plan.account, self._directory, record=self._record_server)
            try:
                postmaster.wait_ready(self._start_timeout, progress=self._report, stopping=stopping)
            except BaseException:
                postmaster.stop(self._stop_timeout)
                raise
        self._report("ready")
        return postmaster

    def _prepare_logins(self, plan: _Plan) -> None:
        cluster = self._directory.cluster
        if has_old_logins(cluster):
            self._report("taking the rights of a superuser from the role lockstep …")
            upgrade(cluster, plan.install, plan.account, timeout=self._start_timeout)
        write_logins(cluster, plan.account, timeout=self._start_timeout)

    def _record_server(self, server: ProcessIdentity) -> None:
        self._write_record(server=server)

    def _write_record(self, **changes: object) -> None:
        self._record = msgspec.structs.replace(self._record, **changes)
        self._directory.write_record(self._record)

    def _close(self) -> None:
        """Undo `_open` and `_keep`, as far as they got."""
        atexit.unregister(self.stop)
        if self._keeper is not None:
            self._keeper.stop()
            self._keeper = None
        if self._directory.is_locked:
            self._sign_off()
            self._directory.unlock()

    def _sign_off(self) -> None:
        """Take our names off the record, and remove what only our server needed."""
        # A server that would not end stays in the record, so that the next owner can deal with it.
        server = self._record.server if self._record.has_live_server() else None
        if server is None:
            remove_short_dir(Path(self._record.socket_dir))
        try:
            self._write_record(owner=None, since=None, server=server)
        except OSError as error:
            # The record of a dead owner is ignored, so this one does no harm.
            fields = {"action": "embedded_record_failed", "error": str(error)}
            logger.warning("embedded_record_failed", extra=fields)

    def _forget_parents_server(self) -> None:
        # After a fork the keeper's thread exists only in the parent, which goes on keeping the server.
        if os.getpid() != self._owner_pid:
            self._keeper = None

    def _report(self, text: str) -> None:
        """Report progress to the user and the log; a failing callback must not harm the server."""
        fields = {"action": "embedded_progress", "data_dir": str(self.data_dir), "text": text}
        logger.info("embedded_progress", extra=fields)
        if self._on_progress is None:
            return
        try:
            self._on_progress(text)
        except Exception:
            logger.exception("embedded_callback_failed", extra={"action": "embedded_callback_failed"})


def running_dsn(data_dir: Path | str | None = None) -> str | None:
    """Return the address of the server that a live process runs on this directory, or None."""
    record = DataDirectory(_absolute(data_dir)).read_record()
    return record.dsn if record.has_live_owner() and record.has_live_server() else None


def has_database(data_dir: Path | str) -> bool:
    """Say whether a database was ever begun in this directory, running or not."""
    try:
        return DataDirectory(_absolute(data_dir)).cluster.exists()
    except OSError:
        return True  # whoever starts it gets the error


def _absolute(data_dir: Path | str | None) -> Path:
    return (default_data_dir() if data_dir is None else Path(data_dir)).expanduser().resolve()
