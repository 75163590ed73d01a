"""The engine's verbs over HTTP: `POST /api/v1/engine/<verb>`, for our SDK and command line.

Besides the methods in engine and client, a row of this table is all that such a verb needs: the server derives its
route from it, the client its call, and tools/reference its line in the reference. Push, pop, ack, renew and transaction
have routes of their own, which cost less; acks of any kind are offered here as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.core.access import ApiKey, AuditEntry, CreatedKey
from lockstep.core.buckets import SampleSpan
from lockstep.core.crons import Cron
from lockstep.core.maintenance import DutyInfo, Removal, Sample
from lockstep.core.messages import Message, Receipt
from lockstep.core.operations import OperationInfo, OperationPage, OperationStats
from lockstep.core.outage import MaintenanceMode
from lockstep.core.overview import LabelInfo, Overview
from lockstep.core.pipelines import JobRun, PipelineStep
from lockstep.core.records import (
    AckOutcome,
    DeadLetter,
    DeadLetterPage,
    Depth,
    EncryptionSlice,
    GroupInfo,
    LeaseInfo,
    MessagePage,
    MessageView,
    PartitionInfo,
    PartitionLag,
    PartitionStats,
    Problem,
    QueueInfo,
    SeekPreview,
    SparkStreamInfo,
    Utilisation,
)
from lockstep.core.rights import LEVELS, Level, Right
from lockstep.core.schedules import Scheduled, SchedulePage
from lockstep.core.statistics import DatabaseActivity, DatabaseStats, ServerSpan
from lockstep.core.streams import StateRow, StreamQuery
from lockstep.core.traces import NamedTracePage, TraceEvent, TraceNamePage


@dataclass(frozen=True, slots=True)
class Verb:
    """An engine verb over HTTP. Its arguments are those of the engine's method, by name."""

    right: Right
    """The right that the caller needs, on the queues that the call concerns; server/auth/verbs.py determines them."""
    result: Any
    """The type of its answer."""
    repeatable: bool = True
    """Whether a repeated call changes nothing and gets the same answer, so that a client may send it again."""

    @property
    def level(self) -> Level:
        return LEVELS[self.right]


VERBS: Mapping[str, Verb] = {
    "configure": Verb("manage", QueueInfo),
    "update_queue": Verb("manage", QueueInfo),
    "stop_encryption": Verb("admin", QueueInfo),
    "delete_queue": Verb("configure", bool, repeatable=False),
    "clear": Verb("configure", int, repeatable=False),
    "queues": Verb("browse", list[QueueInfo]),
    "queue": Verb("browse", QueueInfo),
    "partitions": Verb("browse", list[PartitionInfo]),
    "partition": Verb("browse", PartitionInfo),
    "stats": Verb("browse", list[PartitionStats]),
    "has_pending": Verb("browse", list[bool]),
    "ack": Verb("pop", list[AckOutcome]),
    "subscribe": Verb("pop", GroupInfo),
    "set_subscription": Verb("manage", int),
    "seek": Verb("manage", int),
    "preview_seek": Verb("browse", SeekPreview),
    "pause_group": Verb("manage", None),
    "delete_group": Verb("configure", int, repeatable=False),
    "groups": Verb("browse", list[GroupInfo]),
    "lag": Verb("browse", list[PartitionLag]),
    "spark_streams": Verb("browse", list[SparkStreamInfo]),
    "forget_spark_stream": Verb("admin", int, repeatable=False),
    "accept_spark_stream": Verb("admin", int),
    "depth": Verb("browse", Depth),
    "messages": Verb("browse", MessagePage),
    "message": Verb("browse", MessageView),
    "trace": Verb("browse", list[Message]),
    "namespaces": Verb("browse", list[LabelInfo]),
    "tasks": Verb("browse", list[LabelInfo]),
    "overview": Verb("browse", Overview),
    "remove_message": Verb("manage", None, repeatable=False),
    "retry_message": Verb("push", Receipt, repeatable=False),
    "bury_message": Verb("pop", int, repeatable=False),
    "record_trace": Verb("pop", int, repeatable=False),
    "traces_of_message": Verb("browse", list[TraceEvent]),
    "traces_by_name": Verb("browse", NamedTracePage),
    "trace_names": Verb("browse", TraceNamePage),
    "register_stream_query": Verb("pop", StreamQuery),
    "stream_state": Verb("browse", list[StateRow]),
    "schedules": Verb("browse", SchedulePage),
    "schedule": Verb("browse", Scheduled),
    "cancel_schedule": Verb("push", bool, repeatable=False),
    "reschedule": Verb("push", Scheduled),
    "set_cron": Verb("push", Cron),
    "crons": Verb("browse", list[Cron]),
    "cron": Verb("browse", Cron),
    "enable_cron": Verb("push", Cron),
    "remove_cron": Verb("push", bool, repeatable=False),
    "dead_letters": Verb("browse", DeadLetterPage),
    "dead_letter": Verb("browse", DeadLetter),
    "redrive": Verb("push", int, repeatable=False),
    "redrive_queue": Verb("push", int, repeatable=False),
    "purge": Verb("configure", int, repeatable=False),
    "operations": Verb("browse", OperationPage),
    "operation": Verb("browse", OperationInfo),
    "operation_stats": Verb("browse", OperationStats),
    "retry_operation": Verb("push", OperationInfo, repeatable=False),
    "maintenance_mode": Verb("admin", MaintenanceMode),
    "set_maintenance_mode": Verb("admin", MaintenanceMode),
    "retry_rejected": Verb("admin", int, repeatable=False),
    "accept_buffer_loss": Verb("admin", int, repeatable=False),
    "leases": Verb("browse", list[LeaseInfo]),
    "utilisation": Verb("browse", list[Utilisation]),
    "verify": Verb("admin", list[Problem]),
    "repair": Verb("admin", list[Problem], repeatable=False),
    "rotate_encryption": Verb("admin", EncryptionSlice),
    "duties": Verb("browse", list[DutyInfo]),
    "samples": Verb("browse", list[Sample]),
    "sample_spans": Verb("browse", list[SampleSpan]),
    "server_spans": Verb("browse", list[ServerSpan]),
    "removals": Verb("browse", list[Removal]),
    "database_stats": Verb("browse", DatabaseStats),
    "database_activity": Verb("browse", DatabaseActivity),
    "pipeline_steps": Verb("browse", list[PipelineStep]),
    "job_runs": Verb("browse", list[JobRun]),
    "create_key": Verb("admin", CreatedKey, repeatable=False),
    "keys": Verb("admin", list[ApiKey]),
    "revoke_key": Verb("admin", bool, repeatable=False),
    "audit": Verb("admin", list[AuditEntry]),
}


def verb_path(verb: str) -> str:
    return f"/api/v1/engine/{verb}"
