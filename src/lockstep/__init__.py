"""Ordered message queues on PostgreSQL."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lockstep.logs import LogFormatter, install_last_resort
from lockstep.version import VERSION

if TYPE_CHECKING:
    from lockstep.client import AsyncClient, Client, new_message
    from lockstep.config import Config
    from lockstep.connecting import connect, connect_async
    from lockstep.core.crons import Cron, NewCron
    from lockstep.core.messages import Batch, Columns, Message, NewMessage, NewSchedule, PushResult, Receipt
    from lockstep.core.names import DEFAULT_PARTITION, QUEUE_MODE
    from lockstep.core.policy import QueueOptions, queue_options
    from lockstep.core.records import (
        Ack,
        AckOutcome,
        DeadLetterFilter,
        MessageFilter,
        NextRequest,
        PendingRequest,
        Popped,
        PopRequest,
        Position,
        Renewal,
        Subscription,
    )
    from lockstep.core.schedules import Scheduled, ScheduleFilter, ScheduleName
    from lockstep.engine.engine import Engine
    from lockstep.engine.push_within import notify_pushed, notify_pushed_async, push_within, push_within_async
    from lockstep.errors import LockstepError
    from lockstep.opening import open_engine

__version__ = VERSION

__all__ = [
    "DEFAULT_PARTITION",
    "QUEUE_MODE",
    "Ack",
    "AckOutcome",
    "AsyncClient",
    "Batch",
    "Client",
    "Columns",
    "Config",
    "Cron",
    "DeadLetterFilter",
    "Engine",
    "LockstepError",
    "LogFormatter",
    "Message",
    "MessageFilter",
    "NewCron",
    "NewMessage",
    "NewSchedule",
    "NextRequest",
    "PendingRequest",
    "PopRequest",
    "Popped",
    "Position",
    "PushResult",
    "QueueOptions",
    "Receipt",
    "Renewal",
    "ScheduleFilter",
    "ScheduleName",
    "Scheduled",
    "Subscription",
    "__version__",
    "connect",
    "connect_async",
    "new_message",
    "notify_pushed",
    "notify_pushed_async",
    "open_engine",
    "push_within",
    "push_within_async",
    "queue_options",
]

# On first use: Spark starts many short-lived processes that import only parts of this package.
_HOMES = {
    "lockstep.client": (
        "AsyncClient",
        "Client",
        "new_message",
    ),
    "lockstep.config": ("Config",),
    "lockstep.connecting": (
        "connect",
        "connect_async",
    ),
    "lockstep.core.crons": (
        "Cron",
        "NewCron",
    ),
    "lockstep.core.messages": (
        "Batch",
        "Columns",
        "Message",
        "NewMessage",
        "NewSchedule",
        "PushResult",
        "Receipt",
    ),
    "lockstep.core.names": (
        "DEFAULT_PARTITION",
        "QUEUE_MODE",
    ),
    "lockstep.core.policy": (
        "QueueOptions",
        "queue_options",
    ),
    "lockstep.core.records": (
        "Ack",
        "AckOutcome",
        "DeadLetterFilter",
        "MessageFilter",
        "NextRequest",
        "PendingRequest",
        "Popped",
        "PopRequest",
        "Position",
        "Renewal",
        "Subscription",
    ),
    "lockstep.core.schedules": (
        "Scheduled",
        "ScheduleFilter",
        "ScheduleName",
    ),
    "lockstep.engine.engine": ("Engine",),
    "lockstep.engine.push_within": (
        "notify_pushed",
        "notify_pushed_async",
        "push_within",
        "push_within_async",
    ),
    "lockstep.errors": ("LockstepError",),
    "lockstep.opening": ("open_engine",),
}
install_last_resort()

_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
