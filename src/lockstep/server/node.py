"""What the routes of one server process share."""

from __future__ import annotations

import copy
import itertools
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from lockstep.config import Config
from lockstep.engine.engine import Engine
from lockstep.engine.maintenance import Duties
from lockstep.server.auth.authentication import Authentication
from lockstep.server.auth.callers import Caller
from lockstep.server.auth.guard import Guard, GuardContext
from lockstep.server.counters import Counters
from lockstep.server.failures import FailureLog
from lockstep.server.recent import RecentSamples
from lockstep.server.sampling import Sampling
from lockstep.server.siblings import Siblings

if TYPE_CHECKING:
    from lockstep.server.live import Live


@dataclass(slots=True)
class Node:
    """A server process, with its engine."""

    engine: Engine
    config: Config
    name: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    """For people: shown in /health, in logs and with the duties that it runs. Has no other effect."""
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    counters: Counters = field(init=False)
    maintenance: Duties = field(init=False)
    failures: FailureLog = field(init=False)
    recent: RecentSamples = field(init=False)
    sampling: Sampling = field(init=False)
    stopping: bool = False
    siblings: Siblings | None = None
    """The other processes on the same port, if there are several."""
    live: Live = field(init=False)
    """The event streams, which the application opens over its routes."""
    guards: GuardContext = field(init=False)
    """The rules about who may do what."""
    _request_prefix: str = field(default_factory=lambda: os.urandom(6).hex())
    _requests: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.counters = Counters(self.config.metrics_items_max)
        self.guards = GuardContext(self.engine, Authentication(self.engine, self.config))
        self.maintenance = self.engine.maintenance()
        self.recent = RecentSamples(self.engine)
        self.sampling = Sampling(self)
        self.failures = FailureLog(self.config.log_summary_seconds)

    def next_request_id(self) -> str:
        """An id for a request without one. Counted, because random ids cost a system call each."""
        return f"{self._request_prefix}-{next(self._requests):x}"

    def seen_by(self, caller: Caller) -> Node:
        """This node for one caller: its engine checks the caller's rights before it does anything."""
        if caller.node is None or caller.node.guards is not self.guards:
            seen = copy.copy(self)
            seen.engine = cast(Engine, Guard(self.guards, caller))
            caller.node = seen
        return caller.node

    async def start(self) -> None:
        """Start the background work: listening to other servers, buffering pushes, applying queued operations, and the
        duties."""
        await self.engine.listen()
        await self.engine.start_buffering()
        self.engine.start_operations()
        self.maintenance.start()
        self.sampling.start()
        if self.siblings is not None:
            await self.siblings.start()

    async def stop(self) -> None:
        if self.siblings is not None:
            await self.siblings.stop()
        await self.sampling.stop()
        await self.maintenance.stop()
        await self.guards.close()
