"""Whole lists, gathered page by page, because the engine returns at most a page at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import TypeVar

from lockstep.core.maintenance import Removal, Sample
from lockstep.core.overview import LabelInfo
from lockstep.core.records import PartitionInfo, PartitionLag, QueueInfo
from lockstep.errors import InvalidRequest
from lockstep.server.node import Node

T = TypeVar("T")
Page = Callable[[T | None], Awaitable[list[T]]]
"""The items after a given one, or from the first; a short page is the last."""


async def _all(page: Page[T], size: int, *, enough: int | None = None) -> list[T]:
    found: list[T] = []
    while True:
        items = await page(found[-1] if found else None)
        found += items
        if len(items) < size or (enough is not None and len(found) >= enough):
            return found


async def every_queue(
    node: Node, *, namespace: str | None = None, task: str | None = None, exact: bool = False
) -> list[QueueInfo]:
    size = node.config.page_items_max
    return await _all(
        lambda last: node.engine.queues(
            namespace=namespace, task=task, after=last.name if last else None, limit=size, exact=exact
        ),
        size,
    )


async def some_partitions(node: Node, queue: str, count: int) -> list[PartitionInfo]:
    """The first items of a queue: at least this many, if they exist."""
    size = node.config.page_items_max
    return await _all(
        lambda last: node.engine.partitions(queue, after=last.name if last else None, limit=size), size, enough=count
    )


async def each_lag(node: Node, queue: str, group: str) -> AsyncIterator[PartitionLag]:
    """A group's cursors in the partitions of a queue, page by page."""
    size = node.config.page_items_max
    after = 0
    while True:
        page = await node.engine.lag(queue, group=group, after_partition_id=after, limit=size)
        for lag in page:
            yield lag
        if len(page) < size:
            return
        after = page[-1].partition_id


async def every_namespace(node: Node, *, exact: bool = False) -> list[LabelInfo]:
    size = node.config.page_items_max
    return await _all(
        lambda last: node.engine.namespaces(after=last.name if last else None, limit=size, exact=exact), size
    )


async def every_task(node: Node, *, exact: bool = False) -> list[LabelInfo]:
    size = node.config.page_items_max
    return await _all(lambda last: node.engine.tasks(after=last.name if last else None, limit=size, exact=exact), size)


async def every_sample(node: Node, *, queue: str | None, from_at: datetime, to_at: datetime) -> list[Sample]:
    """All samples of a period. Raises InvalidRequest if there are too many."""
    size = node.config.page_items_max
    return await _some(
        lambda last: node.engine.samples(queue=queue, from_at=from_at, to_at=to_at, after=last, limit=size), node
    )


async def every_removal(node: Node, *, queue: str | None, from_at: datetime, to_at: datetime) -> list[Removal]:
    """All removals of a period. Raises InvalidRequest if there are too many."""
    size = node.config.page_items_max
    return await _some(
        lambda last: node.engine.removals(queue=queue, from_at=from_at, to_at=to_at, after=last, limit=size), node
    )


async def _some(page: Page[T], node: Node) -> list[T]:
    limit = node.config.analytics_rows_max
    seen = 0

    async def counted(last: T | None) -> list[T]:
        nonlocal seen
        items = await page(last)
        seen += len(items)
        if seen > limit:
            text = f"more than {limit} rows match (analytics_rows_max); name a queue, or a shorter time"
            raise InvalidRequest(text)
        return items

    return await _all(counted, node.config.page_items_max)
