"""What needs attention, on the wire."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from lockstep.core.attention import Finding, Severity, Subject
from lockstep.core.wire.times import timestamp, timestamp_or_none


class FindingRow(Struct, rename="camel", kw_only=True):
    severity: Severity
    subject: Subject
    title: str
    text: str
    queue: str | None
    consumer_group: str | None
    count: int
    """How many messages, partitions or operations are concerned."""
    since: str | None


class AttentionAnswer(Struct, rename="camel"):
    findings: list[FindingRow]
    """Worst first."""
    total: int
    """The number of all findings; the list may be truncated."""
    timestamp: str


def attention_answer(found: list[Finding], now: datetime, *, limit: int) -> AttentionAnswer:
    return AttentionAnswer([_row(one) for one in found[:limit]], len(found), timestamp(now))


def _row(one: Finding) -> FindingRow:
    return FindingRow(
        severity=one.severity,
        subject=one.subject,
        title=one.title,
        text=one.text,
        queue=one.queue,
        consumer_group=one.group,
        count=one.count,
        since=timestamp_or_none(one.since),
    )
