"""The memory store: its rooms over one `State`.

No verb awaits anything, so each is atomic among the tasks of its event loop; what a verb decides it decides
before it changes anything, so one that raises has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from lockstep.core.names import GROUPS_MAX
from lockstep.core.records import LOOKED_INTO_MAX, Arrival, FirstPollLimits
from lockstep.core.schedules import Timing
from lockstep.storage.composition import ComposedStore, Rooms
from lockstep.storage.memory.access import MemoryAccess
from lockstep.storage.memory.books import Books
from lockstep.storage.memory.consistency import MemoryConsistency
from lockstep.storage.memory.dead_letters import MemoryDeadLetters
from lockstep.storage.memory.dead_queue import DeadQueues
from lockstep.storage.memory.delivery import MemoryDelivery
from lockstep.storage.memory.first_polls import MemoryFirstPolls
from lockstep.storage.memory.groups import MemoryGroups
from lockstep.storage.memory.inspection import MemoryInspection
from lockstep.storage.memory.maintenance import MemoryMaintenance
from lockstep.storage.memory.messages import MemoryMessages
from lockstep.storage.memory.operations import Bundles, MemoryOperations
from lockstep.storage.memory.queues import MemoryQueues
from lockstep.storage.memory.schedules import MemorySchedules
from lockstep.storage.memory.seals import MemorySeals
from lockstep.storage.memory.spools import MemorySpools
from lockstep.storage.memory.state import State
from lockstep.storage.memory.streams import MemoryStreams
from lockstep.storage.memory.traces import MemoryTraces


class MemoryStore(ComposedStore):
    """A store that lives and dies with its process."""

    def __init__(
        self,
        *,
        clock: Callable[[], datetime] | None = None,
        timing: Timing | None = None,
        first_polls: FirstPollLimits | None = None,
        queue_groups_max: int = GROUPS_MAX,
        queue_partitions_max: int | None = None,
        page_looked_into_max: int = LOOKED_INTO_MAX,
    ) -> None:
        state = State(clock, timing)
        state.queue_groups_max = queue_groups_max
        state.queue_partitions_max = queue_partitions_max
        polls = MemoryFirstPolls(first_polls or FirstPollLimits())
        books, bundles = Books(), Bundles()
        self._dead_queues = dead_queues = DeadQueues(state)
        self._spools = MemorySpools(state)
        super().__init__(
            Rooms(
                delivery=MemoryDelivery(state, dead_queues, polls),
                queues=MemoryQueues(state),
                groups=MemoryGroups(state, polls),
                messages=MemoryMessages(state, dead_queues, page_looked_into_max),
                dead_letters=MemoryDeadLetters(state, dead_queues),
                schedules=MemorySchedules(state),
                operations=MemoryOperations(state, dead_queues, bundles),
                traces=MemoryTraces(state),
                streams=MemoryStreams(state, dead_queues),
                spools=self._spools,
                inspection=MemoryInspection(state, books),
                maintenance=MemoryMaintenance(state, books, dead_queues, bundles),
                consistency=MemoryConsistency(state),
                access=MemoryAccess(state),
                seals=MemorySeals(),
            )
        )

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do: a store that is opened again still has its messages."""

    async def ping(self) -> None:
        """Always there."""

    async def ready(self) -> None:
        """Always."""

    async def listen(self, hear: Callable[[str | None, Arrival], None], *, waiting: Callable[[], bool]) -> None:  # noqa: ARG002
        """No other process can reach this store, so the only signals are those of its own pushes."""
        self._dead_queues.hear = hear

    def expect_signals(self) -> None:
        """No other process listens."""

    def announce(self, arrivals: Mapping[str, Arrival]) -> None:
        """No other process listens."""

    def watch(self, *, there: Callable[[bool], None], changed: Callable[[], None]) -> None:
        """It is always available, and no other process can change it."""
