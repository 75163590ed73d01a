"""When a failed step or archive is restarted: a database, a machine or a full queue may recover soon.

Work that a batch did not commit is done again, and a committed batch is recognized: a restart costs nothing but time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lockstep.errors import JobFailed, LeaseLost, LockstepError, Overloaded, QueueFull, Unavailable
from lockstep.spark.failures import is_crash, is_of_machines

PAUSE_SECONDS = 0.5
"""Pause before the first restart; it doubles each time."""


def may_pass(error: BaseException) -> bool:
    """Whether a retry may succeed in a moment."""
    if isinstance(error, Unavailable | Overloaded | QueueFull | LeaseLost):
        return True
    if isinstance(error, JobFailed):
        return error.__cause__ is not None and may_pass(error.__cause__)
    return not isinstance(error, LockstepError) and is_of_machines(error) and not is_crash(error)


@dataclass
class Restarts:
    """The restarts of one step or archive."""

    seconds_max: float
    """How long it is restarted without any success in between."""
    pause_seconds_max: float
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = field(default=lambda: random.uniform(0.8, 1.2))
    count: int = 0
    _in_a_row: int = 0
    _since: float | None = None

    def pause(self, error: LockstepError) -> float | None:
        """How long to wait before the next start; None: do not restart."""
        now = self.clock()
        self._since = now if self._since is None else self._since
        if not may_pass(error) or now - self._since >= self.seconds_max:
            return None
        seconds: float = min(PAUSE_SECONDS * 2**self._in_a_row, self.pause_seconds_max) * self.jitter()
        self._in_a_row += 1
        self.count += 1
        return seconds

    def has_worked(self) -> None:
        """A batch succeeded: the next failure counts as a new one."""
        self._in_a_row = 0
        self._since = None
