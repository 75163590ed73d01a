"""The verbs for operating Lockstep and for tracing messages: leases, checks, duties, samples, traces."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from lockstep.client._async.transport import AsyncTransport
from lockstep.client._payloads import encode_payload
from lockstep.core.buckets import SampleSpan
from lockstep.core.maintenance import DutyInfo, Removal, Sample
from lockstep.core.operations import OperationInfo, OperationPage, OperationStats, OperationStatus
from lockstep.core.outage import MaintenanceMode
from lockstep.core.overview import Overview
from lockstep.core.pipelines import JobRun, PipelineStep
from lockstep.core.records import EncryptionSlice, LeaseInfo, Problem, Utilisation
from lockstep.core.statistics import DatabaseActivity, DatabaseStats, ServerSpan
from lockstep.core.traces import NamedTracePage, NewTraceEvent, TraceEvent, TraceNamePage


class AsyncOperations:
    """`storage/base/` documents the verbs."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def _call(self, verb: str, **arguments: Any) -> Any:
        return await self._transport.call(verb, **arguments)

    async def ping(self) -> None:
        """Return if messages can be stored; raise Unavailable if not."""
        await self._call("ping")

    async def leases(
        self, *, queue: str | None = None, expiring_within: timedelta | None = None, limit: int = 1000
    ) -> list[LeaseInfo]:
        """Live leases by deadline."""
        result: list[LeaseInfo] = await self._call("leases", queue=queue, expiring_within=expiring_within, limit=limit)
        return result

    async def utilisation(self, *, queue: str | None = None, exact: bool = False) -> list[Utilisation]:
        """How busy each group of each queue is."""
        result: list[Utilisation] = await self._call("utilisation", queue=queue, exact=exact)
        return result

    async def overview(self, *, exact: bool = False) -> Overview:
        """The whole store in one record."""
        result: Overview = await self._call("overview", exact=exact)
        return result

    async def verify(self, *, queue: str | None = None) -> list[Problem]:
        """Check every invariant of the stored data; returns the violations."""
        result: list[Problem] = await self._call("verify", queue=queue)
        return result

    async def repair(self, *, queue: str | None = None) -> list[Problem]:
        """Verify, and recompute derived data; returns the violations, and which of them were repaired."""
        result: list[Problem] = await self._call("repair", queue=queue)
        return result

    async def rotate_encryption(
        self, *, cursor: str | None = None, limit: int = 100, count_only: bool = False
    ) -> EncryptionSlice:
        """Re-encrypt the next stored segments and scheduled messages that are not encrypted with the active key; with
        `count_only`, only count them."""
        result: EncryptionSlice = await self._call(
            "rotate_encryption", cursor=cursor, limit=limit, count_only=count_only
        )
        return result

    async def database_stats(self) -> DatabaseStats:
        """PostgreSQL's statistics about the database."""
        result: DatabaseStats = await self._call("database_stats")
        return result

    async def database_activity(self) -> DatabaseActivity:
        """How much the database writes, and what keeps it from cleaning up."""
        result: DatabaseActivity = await self._call("database_activity")
        return result

    async def job_runs(self, *, limit: int = 100) -> list[JobRun]:
        """Output of Spark jobs to archives and statistics, newest first."""
        result: list[JobRun] = await self._call("job_runs", limit=limit)
        return result

    async def pipeline_steps(self, *, pipeline: str | None = None) -> list[PipelineStep]:
        """The steps of Spark pipelines that have run, of one pipeline or of all."""
        result: list[PipelineStep] = await self._call("pipeline_steps", pipeline=pipeline)
        return result

    # Requests that a busy server has queued

    async def operation(self, operation_id: str, *, wait_seconds: float = 0.0) -> OperationInfo:
        """One operation; with `wait_seconds`, waits up to that time for it to be applied."""
        result: OperationInfo = await self._call("operation", operation_id=operation_id, wait_seconds=wait_seconds)
        return result

    async def operations(
        self,
        *,
        status: OperationStatus | None = None,
        queue: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> OperationPage:
        """A page of operations, oldest first; with a queue, only pushes to it."""
        result: OperationPage = await self._call("operations", status=status, queue=queue, cursor=cursor, limit=limit)
        return result

    async def operation_stats(self) -> OperationStats:
        """The waiting operations, and the load of the server that answers."""
        result: OperationStats = await self._call("operation_stats")
        return result

    async def retry_operation(self, operation_id: str) -> OperationInfo:
        """Queue a failed operation again, in its old position."""
        result: OperationInfo = await self._call("retry_operation", operation_id=operation_id)
        return result

    # Maintenance

    async def maintenance_mode(self) -> MaintenanceMode:
        """Whether pushes are buffered, and pops find nothing; and what the answering server has buffered."""
        result: MaintenanceMode = await self._call("maintenance_mode")
        return result

    async def set_maintenance_mode(self, *, push: bool | None = None, pop: bool | None = None) -> MaintenanceMode:
        """Make all servers buffer pushes or drain their buffers, and make pops find nothing or messages again. None
        changes nothing."""
        result: MaintenanceMode = await self._call("set_maintenance_mode", push=push, pop=pop)
        return result

    async def retry_rejected(self) -> int:
        """Retry what the database refused when a server drained it; returns the number of messages."""
        return int(await self._call("retry_rejected"))

    async def accept_buffer_loss(self) -> int:
        """Let the server push what it has buffered although the database has lost earlier pushes; returns the number of
        bytes lost."""
        return int(await self._call("accept_buffer_loss"))

    async def duties(self) -> list[DutyInfo]:
        """The background duties of servers: when each ran last, and its result."""
        result: list[DutyInfo] = await self._call("duties")
        return result

    async def samples(
        self,
        *,
        queue: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        after: Sample | None = None,
        limit: int = 1000,
    ) -> list[Sample]:
        """Samples of queues over time, after the sample `after`."""
        result: list[Sample] = await self._call(
            "samples", queue=queue, from_at=from_at, to_at=to_at, after=after, limit=limit
        )
        return result

    async def sample_spans(
        self,
        *,
        seconds: int,
        from_at: datetime,
        to_at: datetime,
        queue: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
    ) -> list[SampleSpan]:
        """Samples aggregated into spans of the given number of seconds."""
        result: list[SampleSpan] = await self._call(
            "sample_spans",
            seconds=seconds,
            from_at=from_at,
            to_at=to_at,
            queue=queue,
            namespace=namespace,
            task=task,
        )
        return result

    async def server_spans(self, *, seconds: int, from_at: datetime, to_at: datetime) -> list[ServerSpan]:
        """What the server processes did, summed up over spans of the given seconds."""
        result: list[ServerSpan] = await self._call("server_spans", seconds=seconds, from_at=from_at, to_at=to_at)
        return result

    async def removals(
        self,
        *,
        queue: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        after: Removal | None = None,
        limit: int = 1000,
    ) -> list[Removal]:
        """Removals by the duties over time, after the removal `after`."""
        result: list[Removal] = await self._call(
            "removals", queue=queue, from_at=from_at, to_at=to_at, after=after, limit=limit
        )
        return result

    # Trace events

    async def record_trace(
        self,
        partition_id: int,
        transaction_id: str,
        data: Any,
        *,
        event_type: str = "info",
        group: str | None = None,
        worker: str | None = None,
        names: Sequence[str] = (),
    ) -> int:
        """Record an event of a message, which is kept as long as the message; returns the id of the event."""
        event = NewTraceEvent(
            partition_id=partition_id,
            transaction_id=transaction_id,
            data=encode_payload(data),
            event_type=event_type,
            group=group,
            worker=worker,
            names=tuple(names),
        )
        return int(await self._call("record_trace", event=event))

    async def traces_of_message(self, partition_id: int, transaction_id: str, *, limit: int = 1000) -> list[TraceEvent]:
        """The trace events of one message."""
        result: list[TraceEvent] = await self._call(
            "traces_of_message", partition_id=partition_id, transaction_id=transaction_id, limit=limit
        )
        return result

    async def traces_by_name(self, name: str, *, limit: int = 100, offset: int = 0) -> NamedTracePage:
        """Trace events with a name, over all queues, each with its message."""
        result: NamedTracePage = await self._call("traces_by_name", name=name, limit=limit, offset=offset)
        return result

    async def trace_names(
        self, *, queues: Sequence[str] | None = None, limit: int = 100, offset: int = 0
    ) -> TraceNamePage:
        """The names of trace events."""
        result: TraceNamePage = await self._call("trace_names", queues=queues, limit=limit, offset=offset)
        return result
