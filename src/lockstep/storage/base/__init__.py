"""The contract of a store: the verbs of Lockstep over any storage.

Every store passes the same contract tests and agrees with the memory store, operation by operation. Docstrings refer to
the rules in `core/rules.py`.

Rules for every verb:
* The engine has validated the input: names, sizes and ranges. The store checks what only it can know (an unknown queue,
a full queue, a lost lease). * A call that raises has changed nothing. Outcomes of single items are returned, not
raised. * Time is the store's clock: the database's own, or a test clock. * A call is one transaction, unless its
docstring says that it works in slices; concurrent calls behave as if they ran one after the other.
"""

from __future__ import annotations

from typing import Protocol

from lockstep.storage.base.access import AccessControl
from lockstep.storage.base.consistency import Consistency
from lockstep.storage.base.dead_letters import DeadLetters
from lockstep.storage.base.delivery import Delivery
from lockstep.storage.base.groups import Groups
from lockstep.storage.base.inspection import Inspection
from lockstep.storage.base.lifecycle import Lifecycle
from lockstep.storage.base.maintenance import Maintenance
from lockstep.storage.base.messages import Messages
from lockstep.storage.base.operations import Operations
from lockstep.storage.base.queues import Queues
from lockstep.storage.base.schedules import Schedules
from lockstep.storage.base.seals import Seals
from lockstep.storage.base.spools import Spools
from lockstep.storage.base.streams import Streams
from lockstep.storage.base.traces import Traces


class Verbs(
    Delivery,
    Queues,
    Groups,
    Messages,
    DeadLetters,
    Schedules,
    Operations,
    Traces,
    Streams,
    Spools,
    Inspection,
    Maintenance,
    Consistency,
    AccessControl,
    Seals,
    Protocol,
):
    """The verbs of a store, noun by noun."""


class Store(Lifecycle, Verbs, Protocol):
    """Where queues, partitions, messages and cursors live."""
