"""Figures of a large queue that was not counted yet are null on the wire, and so are the sums that they belong to."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import replace

from lockstep.core.overview import Overview, Spread
from lockstep.core.policy import QueueOptions
from lockstep.core.records import Depth, GroupInfo, QueueInfo, Subscription
from lockstep.core.wire import groups, resources, status

NOW = datetime(2026, 5, 1, tzinfo=UTC)
KNOWN = QueueInfo(
    id=1,
    name="known",
    namespace="",
    task="",
    options=QueueOptions(),
    created_at=NOW,
    partitions=1,
    messages=5,
    pending=3,
    processing=2,
    dead_letters=1,
    oldest_at=NOW,
)
UNKNOWN = replace(
    KNOWN, partitions=None, messages=None, pending=None, processing=None, dead_letters=None, oldest_at=None
)
GROUP = GroupInfo(
    name="g",
    queue="unknown",
    created_at=NOW,
    subscription=Subscription(),
    partitions=None,
    partitions_with_lag=None,
    lag=None,
    leases=None,
    oldest_at=None,
    in_flight=None,
    unread=None,
)


def test_queue() -> None:
    row = resources.queue_row(UNKNOWN, NOW)
    assert (row.partitions, row.messages.total, row.messages.pending, row.lag_seconds) == (None, None, None, None)
    assert status.status_queue(UNKNOWN, NOW).messages.completed is None
    assert resources.queue_row(KNOWN, NOW).lag_seconds == 0.0


def test_sums_over_queues() -> None:
    counts = resources.full_counts([KNOWN, UNKNOWN])
    assert (counts.total, counts.pending, counts.processing, counts.completed) == (None, None, None, None)
    known = resources.full_counts([KNOWN, KNOWN])
    assert (known.total, known.pending, known.completed, known.dead_letter) == (10, 6, 4, 2)
    assert status.dead_letter_sums([KNOWN, UNKNOWN]) == status.DeadLetterSums(None, None)
    assert status.dead_letter_sums([KNOWN]) == status.DeadLetterSums(1, 1)


def test_group() -> None:
    row = groups.group_row(GROUP, NOW)
    assert (row.total_lag, row.members, row.max_time_lag, row.state) == (None, None, None, None)
    assert groups.group_row(replace(GROUP, lag=7), NOW).state == "Stable", "one that began since the last count"


def test_depth() -> None:
    depth = Depth(queue="unknown", group="g", pending=None, partitions_pending=None, leased=None, unread=None)
    shown = resources.depth_answer(depth, [], NOW)
    assert (shown.pending, shown.effective_pending, shown.lag_seconds) == (None, None, None)


def test_overview() -> None:
    overview = Overview(
        queues=2,
        partitions=None,
        namespaces=1,
        tasks=1,
        messages=None,
        pending=None,
        processing=None,
        completed=None,
        dead_letters=None,
        cursors_with_lag=None,
        lag_seconds=None,
        lag_messages=None,
    )
    shown = resources.overview_answer(overview, resources.Throughput(0.0, 0.0), NOW)
    assert (shown.queues, shown.messages.total, shown.lag.time, shown.lag.offset) == (2, None, None, None)
    known = replace(overview, lag_seconds=Spread(average=1.0), lag_messages=Spread())
    found = resources.overview_answer(known, resources.Throughput(0.0, 0.0), NOW).lag.time
    assert found is not None
    assert found.avg == 1.0
