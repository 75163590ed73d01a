"""Sums over queues: for a namespace, a task, or the whole store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from lockstep.core.records import QueueInfo

LabelKind = Literal["namespace", "task"]


def total(figures: Iterable[int | None]) -> int | None:
    """The sum of the figures; None if any of them is unknown."""
    summed = 0
    for figure in figures:
        if figure is None:
            return None
        summed += figure
    return summed


def rest(figure: int | None, part: int | None) -> int | None:
    """A figure minus a part of it; None if either is unknown."""
    return None if figure is None or part is None else figure - part


class LabelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """All queues of one namespace or task."""

    name: str
    queues: int
    partitions: int | None
    messages: int | None
    pending: int | None
    figures_at: datetime | None = None
    """When the oldest of these figures was counted; None: all are current. A sum is None while one of its queues is
    large and not yet counted."""


def label_info(name: str, infos: Sequence[QueueInfo]) -> LabelInfo:
    """The sums over the queues of a namespace or task."""
    return LabelInfo(
        name=name,
        queues=len(infos),
        partitions=total([info.partitions for info in infos]),
        messages=total([info.messages for info in infos]),
        pending=total([info.pending for info in infos]),
        figures_at=oldest(infos),
    )


def oldest(infos: Iterable[QueueInfo]) -> datetime | None:
    """When the oldest of the figures was counted; None: all are current."""
    return min((info.figures_at for info in infos if info.figures_at is not None), default=None)


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of a number; all 0 without values."""

    average: float = 0.0
    median: float = 0.0
    minimum: float = 0.0
    maximum: float = 0.0

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Spread:
        if not numbers:
            return cls()
        ordered = sorted(numbers)
        middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        return cls(average=sum(ordered) / len(ordered), median=middle, minimum=ordered[0], maximum=ordered[-1])


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The whole store in one record."""

    queues: int
    partitions: int | None
    namespaces: int
    tasks: int
    messages: int | None
    """Stored messages."""
    pending: int | None
    """The pending messages, summed over all queues."""
    processing: int | None
    """Messages under a live lease, over all groups."""
    completed: int | None
    """Stored messages that are not pending any more, dead letters included."""
    dead_letters: int | None
    cursors_with_lag: int | None
    lag_seconds: Spread | None
    """Over the cursors with lag: the age of the first message not yet done."""
    lag_messages: Spread | None
    """Over the cursors with lag: the number of messages not yet done."""
    figures_at: datetime | None = None
    """When the oldest of these figures was counted; None: all are current. A median that includes older figures is an
    estimate: the median over parts of queues. While a queue is large and not yet counted, everything but the numbers of
    queues, namespaces and tasks is None."""
