"""Sums over queues: namespaces, tasks, and the whole store."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import islice

from lockstep.core.buckets import Buckets, SampleSpan
from lockstep.core.maintenance import Sample
from lockstep.core.overview import LabelInfo, LabelKind, Overview, Spread
from lockstep.core.records import QueueInfo
from lockstep.storage.memory.queues import queue_info
from lockstep.storage.memory.state import State


def labels(state: State, kind: LabelKind, *, after: str | None, limit: int, now: datetime) -> list[LabelInfo]:
    by_name: dict[str, list[QueueInfo]] = {}
    for queue in state.queues.values():
        by_name.setdefault(getattr(queue, kind), []).append(queue_info(queue, now))
    names = (name for name in sorted(by_name) if after is None or name > after)
    return [_label(name, by_name[name]) for name in islice(names, limit)]


def _label(name: str, infos: list[QueueInfo]) -> LabelInfo:
    return LabelInfo(
        name=name,
        queues=len(infos),
        partitions=sum(info.partitions for info in infos),
        messages=sum(info.messages for info in infos),
        pending=sum(info.pending for info in infos),
    )


def overview(state: State, now: datetime) -> Overview:
    infos = [queue_info(queue, now) for queue in state.queues.values()]
    messages, pending = sum(info.messages for info in infos), sum(info.pending for info in infos)
    lags = _lags(state, now)
    return Overview(
        queues=len(infos),
        partitions=len(state.partitions),
        namespaces=len({info.namespace for info in infos}),
        tasks=len({info.task for info in infos}),
        messages=messages,
        pending=pending,
        processing=sum(info.processing for info in infos),
        completed=messages - pending,
        dead_letters=len(state.dead_letters),
        cursors_with_lag=len(lags),
        lag_seconds=Spread.of([seconds for seconds, _ in lags]),
        lag_messages=Spread.of([float(count) for _, count in lags]),
    )


def sample_spans(
    state: State, samples: Iterable[Sample], *, seconds: int, namespace: str | None, task: str | None
) -> list[SampleSpan]:
    buckets = Buckets(seconds)
    for sample in samples:
        queue = state.queues.get(sample.queue)
        # Of a queue that is gone nobody knows the namespace.
        labels = (None, None) if queue is None else (queue.namespace, queue.task)
        if namespace in (None, labels[0]) and task in (None, labels[1]):
            buckets.add(sample)
    return buckets.spans()


def _lags(state: State, now: datetime) -> list[tuple[float, int]]:
    """Of each cursor with lag: the age of the first message before it, and how many there are."""
    lags = []
    for partition in state.partitions.values():
        for group, _ in state.cursors(partition):
            oldest_at = group.oldest_at(partition)
            if oldest_at is not None:
                lags.append(((now - oldest_at).total_seconds(), group.lag_of(partition)))
    return lags
