"""A store as a whole: opening and closing it, and signals between the processes on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from lockstep.core.records import Arrival


class Lifecycle(Protocol):
    """Opens and closes a store, and carries signals between the processes on it."""

    async def open(self) -> None:
        """Prepare for use: connect, migrate. Raises Unavailable or SchemaTooNew."""

    async def close(self) -> None:
        """Release all resources. Safe to call twice."""

    async def ping(self) -> None:
        """Return if the store answers; raise Unavailable if it does not."""

    async def ready(self) -> None:
        """Return if the store answers and has the schema of this process. Raises Unavailable, or SchemaTooNew if a
        newer version has migrated it in the meantime."""

    async def listen(self, hear: Callable[[str | None, Arrival], None], *, waiting: Callable[[], bool]) -> None:
        """From now on call `hear` with a queue and its arrivals: for pushes of other processes, and for pushes of any
        process that no producer made (to dead queues, and by redrives). Calls it with None when something may have
        been missed. This is a hint, not a promise: waiting callers must also check from time to time.

        An arrival of 0 partitions and 0 messages means that leases have ended; only processes in which `waiting` has
        returned True receive this. An arrival of 0 partitions and some messages means that messages were scheduled by a
        process that does not promote them.

        Queue changes by other processes are received in the same way, and apply to the next call of this process.
        """

    def expect_signals(self) -> None:
        """Polls begin to wait in this process: notify the other processes soon. Returns at once."""

    def announce(self, arrivals: Mapping[str, Arrival]) -> None:
        """Notify listeners in other processes of arrivals, by queue; with no partitions if leases have ended there.
        Returns at once; announcements are sent in groups."""

    def watch(self, *, there: Callable[[bool], None], changed: Callable[[], None]) -> None:
        """From now on call `there` with False when the store becomes unavailable (at once if it already is), and with
        True when it is back. While this process listens, call `changed` when another process may have changed the
        result of `system`."""
