"""Figures about the store: read-only."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

from lockstep.core.buckets import SampleSpan
from lockstep.core.maintenance import Removal, Sample
from lockstep.core.overview import LabelInfo, Overview
from lockstep.core.pipelines import JobRun, PipelineStep
from lockstep.core.records import LeaseInfo, Utilisation
from lockstep.core.statistics import DatabaseActivity, DatabaseStats, ServerSpan, StoreCounts


class Inspection(Protocol):
    """Sums, leases, and history; it changes nothing."""

    async def leases(
        self, *, queue: str | None = None, expiring_within: timedelta | None = None, limit: int = 1000
    ) -> list[LeaseInfo]:
        """Live leases by deadline. Raises QueueNotFound."""

    async def utilisation(self, *, queue: str | None = None, exact: bool = False) -> list[Utilisation]:
        """How busy each group of each queue is, by queue, then group. Raises QueueNotFound."""

    async def namespaces(self, *, after: str | None = None, limit: int = 1000, exact: bool = False) -> list[LabelInfo]:
        """The namespaces of all queues after the name `after`, by name. See `queues` for the cost of the sums."""

    async def tasks(self, *, after: str | None = None, limit: int = 1000, exact: bool = False) -> list[LabelInfo]:
        """The tasks of all queues, likewise."""

    async def overview(self, *, exact: bool = False) -> Overview:
        """Sums over the whole store, and the lag of its cursors."""

    async def samples(
        self,
        *,
        queue: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        after: Sample | None = None,
        limit: int = 1000,
    ) -> list[Sample]:
        """Samples taken at or after `from_at` and before `to_at`, by time, then queue; those after the sample `after`.
        They outlive their queue."""

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
        """The samples taken at or after `from_at` and before `to_at`, joined into spans of `seconds`, by time.
        A namespace or task is that of queues that still exist."""

    async def server_spans(self, *, seconds: int, from_at: datetime, to_at: datetime) -> list[ServerSpan]:
        """What the server processes did at or after `from_at` and before `to_at`, in spans of `seconds`, by time."""

    async def removals(
        self,
        *,
        queue: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        after: Removal | None = None,
        limit: int = 1000,
    ) -> list[Removal]:
        """What was removed in the minutes at or after `from_at` and before `to_at`, by minute, queue, then kind; those
        after the removal `after`. They outlive their queue."""

    def counts(self) -> StoreCounts:
        """The store's connections and caches in this process."""

    async def database_stats(self) -> DatabaseStats:
        """The database's own statistics."""

    async def database_activity(self) -> DatabaseActivity:
        """The database's current activity: how much is written, and what prevents cleanup."""

    async def pipeline_steps(self, *, pipeline: str | None = None) -> list[PipelineStep]:
        """The steps of Spark pipelines that have run, of one pipeline or of all, by pipeline and start."""

    async def job_runs(self, *, limit: int = 100) -> list[JobRun]:
        """The output of Spark jobs to archives and statistics, newest first."""
