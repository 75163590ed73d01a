"""Which of the servers that take changes is the primary: the one on the highest timeline that this process has seen.

An old primary that is started again after a failover takes changes, too, and does not know that it was replaced. But
every promotion adds one to PostgreSQL's timeline, so a process that has been on a later one refuses it. Timelines are
recorded by address (DSN): a restored copy beside the original is the same database at another address, and not a
replaced primary. They are forgotten when the process ends, so that a backup of an earlier timeline can be restored.

Each driver records here what it has found before it uses a connection.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from lockstep.storage.postgres.failures import Replaced

_seen: dict[str, dict[str, int]] = {}
"""By address and database: the highest timeline."""
_risen = 0
_lock = threading.Lock()
"""Event loops and Spark's drivers run in threads of their own."""


def note(address: str, database: str, number: int) -> None:
    """A server at the address claims to be the primary, on this timeline. Raises Replaced if there is a newer one."""
    global _risen
    with _lock:
        of_address = _seen.setdefault(address, {})
        highest = of_address.get(database, 0)
        if number > highest:
            of_address[database] = number
            _risen += highest > 0
    if number < highest:
        raise Replaced(number=number, seen=highest)


def known(address: str) -> Mapping[str, int]:
    """The highest timelines seen at the address so far, by database."""
    with _lock:
        return dict(_seen.get(address, ()))


def risen() -> int:
    """A number that changes when any database moves to a later timeline: cheap enough to look at for every call."""
    return _risen
