"""A store made of rooms: an object per noun of the contract, behind one door.

A store builds its rooms and passes them to `ComposedStore`, which has every verb: callers write `store.push` and need
not know the rooms. Each verb is forwarded to the room of the protocol that declares it, and is declared nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import isfunction
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, ParamSpec, TypeVar, get_type_hints

from lockstep.storage.base.access import AccessControl
from lockstep.storage.base.consistency import Consistency
from lockstep.storage.base.dead_letters import DeadLetters
from lockstep.storage.base.delivery import Delivery
from lockstep.storage.base.groups import Groups
from lockstep.storage.base.inspection import Inspection
from lockstep.storage.base.maintenance import Maintenance
from lockstep.storage.base.messages import Messages
from lockstep.storage.base.operations import Operations
from lockstep.storage.base.queues import Queues
from lockstep.storage.base.schedules import Schedules
from lockstep.storage.base.seals import Seals
from lockstep.storage.base.spools import Spools
from lockstep.storage.base.streams import Streams
from lockstep.storage.base.traces import Traces

if TYPE_CHECKING:
    from lockstep.storage.base import Verbs  # what a caller may write
else:
    Verbs = object  # what runs: the properties below

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Rooms:
    """An object for each protocol of the contract."""

    delivery: Delivery
    queues: Queues
    groups: Groups
    messages: Messages
    dead_letters: DeadLetters
    schedules: Schedules
    operations: Operations
    traces: Traces
    streams: Streams
    spools: Spools
    inspection: Inspection
    maintenance: Maintenance
    consistency: Consistency
    access: AccessControl
    seals: Seals


_ROOMS: dict[str, str] = {
    verb: room
    for room, protocol in get_type_hints(Rooms).items()
    for verb, declared in vars(protocol).items()
    if isfunction(declared) and not verb.startswith("_")
}
"""For each verb the room whose protocol declares it."""


class ComposedStore(Verbs):
    """Every verb of the contract, each answered by the room that has it."""

    def __init__(self, rooms: Rooms) -> None:
        self.verbs = SimpleNamespace(
            **{verb: self.entered(getattr(getattr(rooms, room), verb)) for verb, room in _ROOMS.items()}
        )
        """The methods that answer the verbs."""

    def entered(self, method: Callable[P, R]) -> Callable[P, R]:
        """The verb as callers see it; a store can wrap each call here."""
        return method


for _verb in _ROOMS:
    setattr(ComposedStore, _verb, property(attrgetter(f"verbs.{_verb}")))
