"""Ordered message queues on PostgreSQL."""

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
    PendingRequest,
    Popped,
    PopRequest,
    Position,
    Renewal,
    Subscription,
)
from lockstep.core.schedules import Scheduled, ScheduleFilter, ScheduleName
from lockstep.engine.engine import Engine
from lockstep.engine.within import push_within, push_within_async
from lockstep.errors import LockstepError
from lockstep.opening import open_engine
from lockstep.version import VERSION

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
    "Message",
    "MessageFilter",
    "NewCron",
    "NewMessage",
    "NewSchedule",
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
    "open_engine",
    "push_within",
    "push_within_async",
    "queue_options",
]
