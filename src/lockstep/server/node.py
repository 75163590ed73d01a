"""One server process: what its routes share."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from lockstep.config import Config
from lockstep.engine.engine import Engine
from lockstep.engine.maintenance import Maintenance
from lockstep.server.counters import Counters
from lockstep.server.failures import FailureLog
from lockstep.server.siblings import Siblings


@dataclass(slots=True)
class Node:
    """A server process, with its engine."""

    engine: Engine
    config: Config
    name: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    """For people: in /health, in logs, and beside the duties that it does. Nothing depends on it."""
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    counters: Counters = field(default_factory=Counters)
    maintenance: Maintenance = field(init=False)
    failures: FailureLog = field(init=False)
    stopping: bool = False
    siblings: Siblings | None = None
    """The others behind the same port, if it has several processes."""
    _request_prefix: str = field(default_factory=lambda: os.urandom(6).hex())
    _requests: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.maintenance = self.engine.maintenance()
        self.failures = FailureLog(self.config.log_summary_seconds)

    def next_request_id(self) -> str:
        """For a request that brought none. Counted, because random ones cost a system call each."""
        return f"{self._request_prefix}-{next(self._requests):x}"

    async def start(self) -> None:
        """Begin what goes on beside the requests: hearing other servers, buffering pushes, applying what
        was queued, and the duties."""
        await self.engine.listen()
        await self.engine.start_buffering()
        self.engine.start_operations()
        self.maintenance.start()
        if self.siblings is not None:
            await self.siblings.start()

    async def stop(self) -> None:
        if self.siblings is not None:
            await self.siblings.stop()
        await self.maintenance.stop()
