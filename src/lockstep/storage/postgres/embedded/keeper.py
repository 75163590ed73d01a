"""The thread that forks the server, reaps it, and brings it back if it dies.

It must be a thread of its own that lives as long as the server: the kernel sends the server its death
signal when the thread that forked it ends, not when the process does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Literal

from lockstep.errors import EmbeddedError, ServerStartFailed
from lockstep.storage.postgres.embedded.postmaster import Postmaster

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
        """Let the thread begin nothing more; from any thread, without waiting."""
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
                # The first start is the caller's to judge. A later one may succeed when tried again.
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
        """Change state for all to see; say whether nobody has asked us to stop."""
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
        logger.error("server died", extra={"action": "embedded_died", "pid": postmaster.pid, "status": status})
        self._progress(f"the server died (status {status})")

    def _pause(self, attempts: int) -> bool:
        """Wait before the next attempt; say whether there is to be one."""
        attempts_max = self._restart_attempts_max
        if attempts_max is not None and attempts > attempts_max:
            logger.error("server given up", extra={"action": "embedded_given_up", "error": str(self._error)})
            self._progress(f"gave up restarting after {attempts_max} attempts: {self._error}")
            return False
        delay = min(RESTART_DELAY * 2 ** min(attempts - 1, 16), RESTART_DELAY_MAX)
        fields = {"attempt": attempts, "delay_s": delay, "error": str(self._error)}
        logger.warning("server restart", extra={"action": "embedded_restart", **fields})
        self._hurry.wait(delay)
        self._hurry.clear()
        return not self._stopping.is_set()
