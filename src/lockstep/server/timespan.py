"""The time span of a request, and the samples in it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

from msgspec import Meta, Struct, field

from lockstep.core.buckets import Buckets, SampleSpan
from lockstep.core.policy import SECONDS_MAX
from lockstep.core.wire.analytics import INTERVAL_SECONDS, Interval, TimeRange, time_range
from lockstep.core.wire.times import Time, parse_time_or_none
from lockstep.errors import InvalidRequest
from lockstep.server.listing import every_queue, every_sample
from lockstep.server.node import Node

_SPANS = {"minute": timedelta(hours=1), "hour": timedelta(days=1), "day": timedelta(days=30)}
"""How far a request looks back by default."""


class PeriodQuery(Struct, frozen=True):
    from_: Time | None = field(default=None, name="from")
    """At or after; by default an hour, a day or 30 days ago, depending on the interval."""
    to: Time | None = None
    """Before; by default now."""
    last_seconds: Annotated[int, Meta(ge=1, le=SECONDS_MAX)] | None = field(default=None, name="lastSeconds")
    """Instead of `from`: this many seconds before the end."""
    interval: Interval = "minute"


class SpanQuery(PeriodQuery, frozen=True):
    queue: str | None = None
    namespace: str | None = None
    task: str | None = None


@dataclass(frozen=True, slots=True)
class AskedSpan:
    from_at: datetime
    to_at: datetime

    @classmethod
    def of(cls, query: PeriodQuery) -> AskedSpan:
        """Raises InvalidRequest."""
        to_at = parse_time_or_none(query.to, what="to") or datetime.now(UTC)
        from_at = parse_time_or_none(query.from_, what="from") or before(to_at, _length(query))
        if from_at > to_at:
            raise InvalidRequest("from must not be after to")
        return cls(from_at, to_at)

    def shown(self) -> TimeRange:
        return time_range(self.from_at, self.to_at)


def _length(query: PeriodQuery) -> timedelta:
    return _SPANS[query.interval] if query.last_seconds is None else timedelta(seconds=query.last_seconds)


def before(at: datetime, span: timedelta) -> datetime:
    try:
        return at - span
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


async def spans_of(node: Node, query: SpanQuery, span: AskedSpan, *, seconds: int) -> list[SampleSpan]:
    """The samples for a request, aggregated over all of their queues."""
    return await node.engine.sample_spans(
        seconds=seconds,
        from_at=span.from_at,
        to_at=span.to_at,
        queue=query.queue or None,
        namespace=query.namespace,
        task=query.task,
    )


async def spans_by_queue(node: Node, query: SpanQuery, span: AskedSpan) -> dict[str, list[SampleSpan]]:
    """The samples for a request, aggregated for each queue."""
    samples = await every_sample(node, queue=query.queue or None, from_at=span.from_at, to_at=span.to_at)
    wanted = await wanted_queues(node, query)
    found: dict[str, Buckets] = {}
    for sample in samples:
        if wanted is None or sample.queue in wanted:
            found.setdefault(sample.queue, Buckets(INTERVAL_SECONDS[query.interval])).add(sample)
    return {queue: found[queue].spans() for queue in sorted(found)}


async def wanted_queues(node: Node, query: SpanQuery) -> set[str] | None:
    """The queues of the namespace and task; None if neither is given."""
    if query.namespace is None and query.task is None:
        return None
    return {info.name for info in await every_queue(node, namespace=query.namespace, task=query.task)}
