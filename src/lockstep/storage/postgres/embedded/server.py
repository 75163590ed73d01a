"""The server: one run of `postgres` from its fork to its end, and the thread that restarts it if it dies.

It must be a thread of its own that lives as long as the server: the kernel sends the server its death
signal when the thread that forked it ends, not when the process does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from lockstep.errors import EmbeddedError, ServerStartFailed
from lockstep.storage.postgres.embedded.directory import DataDirectory
from lockstep.storage.postgres.embedded.processes import (
    KILL_PATIENCE,
    POLL_INTERVAL,
    ProcessIdentity,
    identify,
    kill_processes,
    postgres_processes,
)
from lockstep.storage.postgres.embedded.programs import (
    Account,
    clean_environment,
    last_words,
    launch_command,
    program_failure,
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
        # Held to reap and to signal, so that no signal goes to a pid that was just reaped.
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
                    # A separate session: a Ctrl-C in our terminal is for us to handle, not for the server.
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
            # A postmaster that is killed cannot end its child processes.
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
    """Reports a recovery to the user, once it shows in the log and every few seconds from then."""

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


logger = logging.getLogger("lockstep.embedded")

RESTART_ATTEMPTS_MAX = 6
RESTART_DELAY = 0.1
RESTART_DELAY_MAX = 5.0
HEALTHY_AFTER = 60.0
JOIN_MARGIN = 5.0

State = Literal["starting", "running", "failed", "stopped"]
Launch = Callable[[threading.Event], Postmaster]


class Keeper:
    """Keeps one server running, from `start` to `stop`."""

    def __init__(
        self,
        launch: Launch,
        *,
        restart: bool,
        restart_attempts_max: int | None = RESTART_ATTEMPTS_MAX,
        stop_timeout: float,
        progress: Callable[[str], None],
    ) -> None:
        self._launch = launch
        self._restart = restart
        self._restart_attempts_max = restart_attempts_max
        self._stop_timeout = stop_timeout
        self._progress = progress
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._changed = threading.Condition()
        self._state: State = "starting"
        self._error: BaseException | None = None
        self._postmaster: Postmaster | None = None
        self._thread = threading.Thread(target=self._run, name="lockstep-postgres-keeper", daemon=True)

    def start(self) -> None:
        """Start the server; return when it accepts connections, raise if it does not start."""
        self._thread.start()
        self._await_settled()
        if self._state != "running":
            raise self._error or EmbeddedError("The server was stopped while it started.")

    def is_running(self) -> bool:
        """Say whether the server runs now."""
        postmaster = self._postmaster
        return self._state == "running" and postmaster is not None and not postmaster.has_ended()

    def await_restart(self) -> bool:
        """Wait, if the server is being restarted, for the outcome; say whether it runs."""
        if not self.is_running():
            self._hurry.set()
        self._await_settled()
        return self.is_running()

    def cancel(self) -> None:
        """Tell the thread to begin nothing more; from any thread, without waiting."""
        with self._changed:
            self._stopping.set()
            self._hurry.set()

    def stop(self) -> None:
        """End the server and the thread."""
        self.cancel()
        with self._changed:
            postmaster = self._postmaster
        if postmaster is not None:
            postmaster.stop(self._stop_timeout)
        if self._thread.is_alive():
            self._thread.join(self._stop_timeout + JOIN_MARGIN)

    def _await_settled(self) -> None:
        with self._changed:
            # A server that just died is "running" until the thread has noticed; that does not count.
            self._changed.wait_for(lambda: self._state in ("failed", "stopped") or self.is_running())

    def _run(self) -> None:
        attempts = 0
        while True:
            try:
                served_seconds = self._run_once()
            except BaseException as error:
                self._error = error
                # The caller handles a failed first start. A later start may succeed when retried.
                if attempts == 0:
                    break
            else:
                attempts = 0 if served_seconds > HEALTHY_AFTER else attempts
            attempts += 1
            if not self._restart or self._stopping.is_set() or not self._pause(attempts):
                break
        self._enter("stopped" if self._stopping.is_set() else "failed")

    def _run_once(self) -> float:
        """Start the server and stay until it ends; return how many seconds it served."""
        postmaster = self._launch(self._stopping)
        ready_at = time.monotonic()
        if not self._enter("running", postmaster):
            postmaster.stop(self._stop_timeout)
        postmaster.wait()
        self._report_end(postmaster)
        return time.monotonic() - ready_at

    def _enter(self, state: State, postmaster: Postmaster | None = None) -> bool:
        """Publish a change of state; returns whether to continue."""
        with self._changed:
            self._state = state
            self._postmaster = postmaster
            self._changed.notify_all()
            return not self._stopping.is_set()

    def _report_end(self, postmaster: Postmaster) -> None:
        status = postmaster.exit_status()
        self._error = ServerStartFailed(f"PostgreSQL ended unexpectedly, with status {status}.")
        if not self._enter("starting"):
            return
        logger.error("embedded_died", extra={"action": "embedded_died", "pid": postmaster.pid, "status": status})
        self._progress(f"the server died (status {status})")

    def _pause(self, attempts: int) -> bool:
        """Wait before the next attempt; returns whether to make it."""
        attempts_max = self._restart_attempts_max
        if attempts_max is not None and attempts > attempts_max:
            logger.error("embedded_given_up", extra={"action": "embedded_given_up", "error": str(self._error)})
            self._progress(f"gave up restarting after {attempts_max} attempts: {self._error}")
            return False
        delay = min(RESTART_DELAY * 2 ** min(attempts - 1, 16), RESTART_DELAY_MAX)
        fields = {"attempt": attempts, "delay_s": delay, "error": str(self._error)}
        logger.warning("embedded_restart", extra={"action": "embedded_restart", **fields})
        self._hurry.wait(delay)
        self._hurry.clear()
        return not self._stopping.is_set()
