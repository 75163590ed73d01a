"""The span of time that a request asks about, and the samples in it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from msgspec import Struct, field

from lockstep.core.buckets import Buckets, SampleSpan
from lockstep.core.wire.analytics import INTERVAL_SECONDS, Interval, TimeRange, time_range
from lockstep.core.wire.times import Time, parse_time_or_none
from lockstep.errors import InvalidRequest
from lockstep.server.listing import every_queue, every_sample
from lockstep.server.node import Node

_SPANS = {"minute": timedelta(hours=1), "hour": timedelta(days=1), "day": timedelta(days=30)}
"""How far a request looks back that does not say it."""


class SpanQuery(Struct, frozen=True):
    from_: Time | None = field(default=None, name="from")
    """At or after; an hour, a day or 30 days ago if nothing is said, by the interval."""
    to: Time | None = None
    """Before; now if nothing is said."""
    interval: Interval = "minute"
    queue: str | None = None
    namespace: str | None = None
    task: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    from_at: datetime
    to_at: datetime

    @classmethod
    def of(cls, query: SpanQuery) -> Span:
        """Raises InvalidRequest."""
        to_at = parse_time_or_none(query.to, what="to") or datetime.now(UTC)
        from_at = parse_time_or_none(query.from_, what="from") or before(to_at, _SPANS[query.interval])
        if from_at > to_at:
            raise InvalidRequest("from must not be after to")
        return cls(from_at, to_at)

    def shown(self) -> TimeRange:
        return time_range(self.from_at, self.to_at)


def before(at: datetime, span: timedelta) -> datetime:
    try:
        return at - span
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


async def spans_of(node: Node, query: SpanQuery, span: Span, *, seconds: int) -> list[SampleSpan]:
    """The samples that a request asks about, joined over all of their queues."""
    return await node.engine.sample_spans(
        seconds=seconds,
        from_at=span.from_at,
        to_at=span.to_at,
        queue=query.queue or None,
        namespace=query.namespace,
        task=query.task,
    )


async def spans_by_queue(node: Node, query: SpanQuery, span: Span) -> dict[str, list[SampleSpan]]:
    """The samples that a request asks about, joined for each queue."""
    samples = await every_sample(node, queue=query.queue or None, from_at=span.from_at, to_at=span.to_at)
    wanted = await wanted_queues(node, query)
    found: dict[str, Buckets] = {}
    for sample in samples:
        if wanted is None or sample.queue in wanted:
            found.setdefault(sample.queue, Buckets(INTERVAL_SECONDS[query.interval])).add(sample)
    return {queue: found[queue].spans() for queue in sorted(found)}


async def wanted_queues(node: Node, query: SpanQuery) -> set[str] | None:
    """The queues of the namespace and task; None if neither was given."""
    if query.namespace is None and query.task is None:
        return None
    return {info.name for info in await every_queue(node, namespace=query.namespace, task=query.task)}
