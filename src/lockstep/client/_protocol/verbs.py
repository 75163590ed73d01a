"""Every other verb of the engine, by name: what it answers, and whether it may be sent twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw, Struct

from lockstep.client._protocol.exchange import Answer, Request, check_finite, decoded, encoded
from lockstep.core.buckets import SampleSpan
from lockstep.core.crons import Cron
from lockstep.core.maintenance import DutyInfo, Removal, Sample
from lockstep.core.messages import Message, Receipt
from lockstep.core.operations import OperationInfo, OperationPage, OperationStats
from lockstep.core.outage import MaintenanceMode
from lockstep.core.overview import LabelInfo, Overview
from lockstep.core.records import (
    AckOutcome,
    DeadLetter,
    DeadLetterPage,
    Depth,
    GroupInfo,
    LeaseInfo,
    MessagePage,
    MessageView,
    PartitionInfo,
    PartitionLag,
    PartitionStats,
    Problem,
    QueueInfo,
    SparkStreamInfo,
    Utilisation,
)
from lockstep.core.schedules import Scheduled, SchedulePage
from lockstep.core.statistics import DatabaseStats
from lockstep.core.traces import NamedTracePage, TraceEvent, TraceNamePage


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the engine, as it is called over HTTP."""

    result: Any
    """The type of its answer."""
    repeatable: bool = True
    """Whether a second application does nothing more and answers the same."""


VERBS: Mapping[str, Verb] = {
    "ping": Verb(None),
    "configure": Verb(QueueInfo),
    "update_queue": Verb(QueueInfo),
    "delete_queue": Verb(bool, repeatable=False),
    "clear": Verb(int, repeatable=False),
    "queues": Verb(list[QueueInfo]),
    "queue": Verb(QueueInfo),
    "partitions": Verb(list[PartitionInfo]),
    "partition": Verb(PartitionInfo),
    "stats": Verb(list[PartitionStats]),
    "namespaces": Verb(list[LabelInfo]),
    "tasks": Verb(list[LabelInfo]),
    "has_pending": Verb(list[bool]),
    "ack": Verb(list[AckOutcome]),
    "subscribe": Verb(GroupInfo),
    "set_subscription": Verb(int),
    "seek": Verb(int),
    "delete_group": Verb(int, repeatable=False),
    "groups": Verb(list[GroupInfo]),
    "lag": Verb(list[PartitionLag]),
    "spark_streams": Verb(list[SparkStreamInfo]),
    "forget_spark_stream": Verb(int, repeatable=False),
    "accept_spark_stream": Verb(int),
    "depth": Verb(Depth),
    "messages": Verb(MessagePage),
    "message": Verb(MessageView),
    "trace": Verb(list[Message]),
    "remove_message": Verb(None, repeatable=False),
    "retry_message": Verb(Receipt, repeatable=False),
    "bury_message": Verb(int, repeatable=False),
    "schedules": Verb(SchedulePage),
    "schedule": Verb(Scheduled),
    "cancel_schedule": Verb(bool, repeatable=False),
    "reschedule": Verb(Scheduled),
    "set_cron": Verb(Cron),
    "crons": Verb(list[Cron]),
    "cron": Verb(Cron),
    "enable_cron": Verb(Cron),
    "remove_cron": Verb(bool, repeatable=False),
    "dead_letters": Verb(DeadLetterPage),
    "dead_letter": Verb(DeadLetter),
    "redrive": Verb(int, repeatable=False),
    "redrive_queue": Verb(int, repeatable=False),
    "purge": Verb(int, repeatable=False),
    "leases": Verb(list[LeaseInfo]),
    "utilisation": Verb(list[Utilisation]),
    "operations": Verb(OperationPage),
    "operation": Verb(OperationInfo),
    "operation_stats": Verb(OperationStats),
    "retry_operation": Verb(OperationInfo, repeatable=False),
    "maintenance_mode": Verb(MaintenanceMode),
    "set_maintenance_mode": Verb(MaintenanceMode),
    "retry_rejected": Verb(int, repeatable=False),
    "accept_buffer_loss": Verb(int, repeatable=False),
    "overview": Verb(Overview),
    "database_stats": Verb(DatabaseStats),
    "verify": Verb(list[Problem]),
    "repair": Verb(list[Problem], repeatable=False),
    "duties": Verb(list[DutyInfo]),
    "samples": Verb(list[Sample]),
    "sample_spans": Verb(list[SampleSpan]),
    "removals": Verb(list[Removal]),
    "record_trace": Verb(int, repeatable=False),
    "traces_of_message": Verb(list[TraceEvent]),
    "traces_by_name": Verb(NamedTracePage),
    "trace_names": Verb(TraceNamePage),
}


class _Result(Struct):
    result: Raw = Raw(b"null")


_result = msgspec.json.Decoder(_Result)
_results = {name: msgspec.json.Decoder(verb.result) for name, verb in VERBS.items()}


def health() -> Request:
    """Whether a server is there. One that buffers pushes while its database is away is, though it is not ready."""
    return Request("GET", "/health")


def call(verb: str, arguments: Mapping[str, Any]) -> Request:
    if verb == "ping":
        return Request("GET", "/ready")
    given = {name: value for name, value in arguments.items() if value is not None}
    for name, value in given.items():
        check_finite(value, what=name)
    return Request("POST", f"/api/v1/engine/{verb}", encoded(given), VERBS[verb].repeatable)


def result_of(answer: Answer, verb: str) -> Any:
    if verb == "ping":
        return None
    raw = decoded(answer, _result).result
    return decoded(Answer(answer.status, bytes(raw)), _results[verb])
