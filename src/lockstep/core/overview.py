"""Sums over queues: of a namespace, of a task, and of the whole store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

LabelKind = Literal["namespace", "task"]


class LabelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """All queues with one namespace, or with one task."""

    name: str
    queues: int
    partitions: int
    messages: int
    pending: int
    figures_at: datetime | None = None
    """When the oldest of these figures was counted; None: all just now."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How a number is distributed; all 0 when there is none."""

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
    partitions: int
    namespaces: int
    tasks: int
    messages: int
    """Stored messages."""
    pending: int
    """The sum over the queues of what is pending there."""
    processing: int
    """Messages under a live lease, over all groups."""
    completed: int
    """Stored messages that are not pending any more; those that became dead letters are among them."""
    dead_letters: int
    cursors_with_lag: int
    lag_seconds: Spread
    """Over the cursors with lag: how old the first message before them is."""
    lag_messages: Spread
    """Over the cursors with lag: how many messages are before them."""
    figures_at: datetime | None = None
    """When the oldest of these figures was counted; None: all just now. A median of older figures is an estimate: the
    median of those of parts of a queue."""
