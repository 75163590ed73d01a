"""One run of the `postgres` server, our direct child, from its fork to its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from lockstep.errors import EmbeddedError, ServerStartFailed
from lockstep.storage.postgres.embedded.accounts import Account
from lockstep.storage.postgres.embedded.children import clean_environment, launch_command
from lockstep.storage.postgres.embedded.directory import DataDirectory
from lockstep.storage.postgres.embedded.failures import last_words, program_failure
from lockstep.storage.postgres.embedded.processes import (
    KILL_PATIENCE,
    POLL_INTERVAL,
    ProcessIdentity,
    identify,
    kill_processes,
    postgres_processes,
)

LOG_BYTES_MAX = 10 << 20
TAIL_BYTES = 64 << 10
RECOVERY_REPORT_INTERVAL = 5.0
RECOVERY_SIGNS = ("was interrupted", "automatic recovery in progress")
STATUS_LINE = 7


class Postmaster:
    """A server process. Everything but `stop` belongs to the thread that made it."""

    def __init__(self, directory: DataDirectory, process: subprocess.Popen[bytes], log_offset: int) -> None:
        self.pid = process.pid
        self._directory = directory
        self._process = process
        self._log_offset = log_offset
        # Held to reap and to signal, so that no signal goes to a pid that was reaped a moment ago.
        self._reaping = threading.Lock()

    @classmethod
    def spawn(
        cls,
        program: Sequence[str | Path],
        account: Account,
        directory: DataDirectory,
        *,
        record: Callable[[ProcessIdentity], None],
    ) -> Postmaster:
        """Fork the server; it waits until `record` has noted who it is, and so is never without a record."""
        go_read, go_write = os.pipe()
        try:
            with _open_log(directory.log) as log:
                process = subprocess.Popen(
                    # SIGINT: a fast shutdown, with which the next start needs no recovery.
                    launch_command(program, account, death_signal=signal.SIGINT, go_fd=go_read),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=clean_environment(),
                    pass_fds=(go_read,),
                    # A session of its own: a Ctrl-C in our terminal is for us to act on, not for the server.
                    start_new_session=True,
                )
                postmaster = cls(directory, process, log.tell())
            try:
                if identity := identify(process.pid):
                    record(identity)
            except BaseException:
                postmaster.stop(1.0)
                raise
            os.write(go_write, b"!")
        finally:
            os.close(go_read)
            os.close(go_write)
        return postmaster

    def wait_ready(self, timeout: float, *, progress: Callable[[str], None], stopping: threading.Event) -> None:
        """Wait until the server accepts connections, however long it recovers within the timeout."""
        begun_at = time.monotonic()
        recovery = _RecoveryReport(self, progress)
        while not self._is_ready():
            if self.has_ended():
                raise program_failure("PostgreSQL", self._directory.path, self.log_output())
            if stopping.wait(POLL_INTERVAL):
                raise EmbeddedError("The server was stopped while it started.")
            if time.monotonic() - begun_at > timeout:
                raise self._too_slow(timeout, recovering=recovery.is_seen)
            recovery.update()
        recovery.update()

    def wait(self) -> None:
        """Block until the process has ended."""
        with contextlib.suppress(ChildProcessError):
            # WNOWAIT leaves it to has_ended() to reap, under the lock.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.has_ended()

    def has_ended(self) -> bool:
        """Say whether the process is gone, and reap it if so."""
        with self._reaping:
            return self._process.poll() is not None

    def stop(self, timeout: float) -> None:
        """End the server, gently at first; from any thread."""
        for signum, patience in _stop_steps(timeout):
            with self._reaping:
                self._process.send_signal(signum)
            if self._ends_within(patience):
                break
        if (self._process.returncode or 0) < 0:
            # A postmaster that is killed cannot take its processes along.
            kill_processes(postgres_processes(self._directory.cluster))

    def log_output(self) -> str:
        """Return the end of what this run has logged."""
        with open(self._directory.log, "rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_offset, end - TAIL_BYTES))
            return log.read().decode(errors="replace")

    def exit_status(self) -> int | None:
        """Return the exit status of the ended process, negative for a signal."""
        return self._process.returncode

    def _ends_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.has_ended():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_INTERVAL)
        return True

    def _is_ready(self) -> bool:
        # PostgreSQL keeps its state there for pg_ctl; the file of a dead predecessor names another pid.
        lines = self._directory.postmaster_file()
        return len(lines) > STATUS_LINE and lines[0] == str(self.pid) and lines[STATUS_LINE].strip() == "ready"

    def _too_slow(self, timeout: float, *, recovering: bool) -> ServerStartFailed:
        advice = " It still recovers after a crash: allow it more time (start_timeout)." if recovering else ""
        return ServerStartFailed(
            f"PostgreSQL was not ready after {timeout:g} seconds.{advice} "
            f"Its last words:\n{last_words(self.log_output())}"
        )


class _RecoveryReport:
    """Tells the user that a recovery goes on, once it shows in the log and every few seconds from then."""

    def __init__(self, postmaster: Postmaster, progress: Callable[[str], None]) -> None:
        self._postmaster = postmaster
        self._progress = progress
        self._seen_at: float | None = None
        self._reported_at = 0.0

    @property
    def is_seen(self) -> bool:
        """Say whether the server recovers."""
        return self._seen_at is not None

    def update(self) -> None:
        """Look at the log, and report what is new or due again."""
        now = time.monotonic()
        if self._seen_at is None and self._shows_in_log():
            self._seen_at = self._reported_at = now
            self._progress("recovering after a crash …")
        elif self._seen_at is not None and now - self._reported_at > RECOVERY_REPORT_INTERVAL:
            self._reported_at = now
            self._progress(f"recovering after a crash … {now - self._seen_at:.0f} seconds")

    def _shows_in_log(self) -> bool:
        output = self._postmaster.log_output()
        return any(sign in output for sign in RECOVERY_SIGNS)


def _stop_steps(timeout: float) -> tuple[tuple[signal.Signals, float], ...]:
    """Return a fast shutdown, an immediate one and none at all, with the seconds that each is given."""
    return (signal.SIGINT, timeout * 0.7), (signal.SIGQUIT, timeout * 0.3), (signal.SIGKILL, KILL_PATIENCE)


def _open_log(path: Path) -> BinaryIO:
    """Open the log to append; one that has grown too large becomes the previous log first."""
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        os.replace(path, path.with_suffix(".log.1"))
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    log = os.fdopen(descriptor, "ab")
    log.seek(0, os.SEEK_END)
    return log
