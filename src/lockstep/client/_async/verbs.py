"""The engine's verbs other than push, pop and ack: queues, groups, messages and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from lockstep.client._async.schedules import AsyncSchedules
from lockstep.client._requests import Begin, SeekTarget, dead_letter_filter, position_of, selected, subscription_of
from lockstep.core.maintenance import Sample
from lockstep.core.messages import Message, Receipt
from lockstep.core.names import QUEUE_MODE
from lockstep.core.overview import LabelInfo
from lockstep.core.policy import GroupMode, QueueOptions, queue_options
from lockstep.core.records import (
    ClearScope,
    DeadLetter,
    DeadLetterPage,
    Depth,
    GroupInfo,
    MessageFilter,
    MessagePage,
    MessageStatus,
    MessageView,
    PartitionInfo,
    PartitionLag,
    PartitionStats,
    PendingRequest,
    QueueInfo,
    SeekPreview,
    SparkStreamInfo,
)
from lockstep.errors import InvalidRequest


class AsyncVerbs(AsyncSchedules):
    """`storage/base/` documents the verbs."""

    # Queues and partitions

    async def configure(
        self,
        queue: str,
        options: QueueOptions | None = None,
        *,
        namespace: str | None = None,
        task: str | None = None,
        **changes: Any,
    ) -> QueueInfo:
        """Create the queue, or replace its whole configuration: by the given options, or the defaults, with the changes
        applied. Encryption that is on stays on: stop_encryption switches it off."""
        if options is not None and not isinstance(options, QueueOptions):
            raise InvalidRequest(f"options must be QueueOptions, not {type(options).__name__}")
        base = {} if options is None else msgspec.structs.asdict(options)
        chosen = queue_options(**{**base, **changes})
        result: QueueInfo = await self._call("configure", queue=queue, options=chosen, namespace=namespace, task=task)
        return result

    async def update_queue(
        self, queue: str, *, namespace: str | None = None, task: str | None = None, **changes: Any
    ) -> QueueInfo:
        """Change the given options; the others stay, even if another caller changes some at the same time."""
        result: QueueInfo = await self._call(
            "update_queue", queue=queue, changes=changes, namespace=namespace, task=task
        )
        return result

    async def stop_encryption(self, queue: str) -> QueueInfo:
        """Store messages of the queue unencrypted from now on. Stored messages stay encrypted."""
        result: QueueInfo = await self._call("stop_encryption", queue=queue)
        return result

    async def delete_queue(self, queue: str) -> bool:
        """Delete the queue and everything in it. False if there is none."""
        return bool(await self._call("delete_queue", queue=queue))

    async def clear(self, queue: str, *, partition: str | None = None, scope: ClearScope = "all") -> int:
        """Remove stored messages of a queue or one partition; returns their number."""
        return int(await self._call("clear", queue=queue, partition=partition, scope=scope))

    async def queues(
        self,
        *,
        namespace: str | None = None,
        task: str | None = None,
        after: str | None = None,
        from_name: str | None = None,
        limit: int = 100,
        exact: bool = False,
    ) -> list[QueueInfo]:
        """Queues by name, after the name `after`, and from `from_name` on, inclusively."""
        result: list[QueueInfo] = await self._call(
            "queues", namespace=namespace, task=task, after=after, from_name=from_name, limit=limit, exact=exact
        )
        return result

    async def queue(self, queue: str, *, exact: bool = False) -> QueueInfo:
        """One queue, with its options. Raises QueueNotFound."""
        result: QueueInfo = await self._call("queue", queue=queue, exact=exact)
        return result

    async def namespaces(self, *, after: str | None = None, limit: int = 1000, exact: bool = False) -> list[LabelInfo]:
        """Namespaces by name, with sums over their queues."""
        result: list[LabelInfo] = await self._call("namespaces", after=after, limit=limit, exact=exact)
        return result

    async def tasks(self, *, after: str | None = None, limit: int = 1000, exact: bool = False) -> list[LabelInfo]:
        """Tasks by name, with sums over their queues."""
        result: list[LabelInfo] = await self._call("tasks", after=after, limit=limit, exact=exact)
        return result

    async def partitions(
        self, queue: str, *, after: str | None = None, prefix: str | None = None, limit: int = 100
    ) -> list[PartitionInfo]:
        """A queue's partitions by name, after the name `after`, that begin with `prefix`."""
        result: list[PartitionInfo] = await self._call(
            "partitions", queue=queue, after=after, prefix=prefix, limit=limit
        )
        return result

    async def partition(self, queue: str, partition: str) -> PartitionInfo:
        """One partition. Raises QueueNotFound, PartitionNotFound."""
        result: PartitionInfo = await self._call("partition", queue=queue, partition=partition)
        return result

    async def stats(self, queue: str, *, after: str | None = None, limit: int = 100) -> list[PartitionStats]:
        """The contents of a queue's partitions, by name: number of messages, leased and scheduled ones, and their
        age.
        """
        result: list[PartitionStats] = await self._call("stats", queue=queue, after=after, limit=limit)
        return result

    async def has_pending(self, requests: Sequence[PendingRequest]) -> list[bool]:
        """Whether a pop now may find something."""
        result: list[bool] = await self._call("has_pending", requests=list(requests))
        return result

    # Groups

    async def subscribe(
        self, queue: str, group: str, subscription: Begin = "all", *, mode: GroupMode | None = None
    ) -> GroupInfo:
        """Create the group on the queue, if it does not exist; ordered or shared, by default according to the queue."""
        result: GroupInfo = await self._call(
            "subscribe", queue=queue, group=group, subscription=subscription_of(subscription), mode=mode
        )
        return result

    async def set_subscription(self, group: str, subscription: Begin, *, queue: str | None = None) -> int:
        """Store where the group starts when it next starts afresh; returns the number of queues."""
        return int(
            await self._call("set_subscription", group=group, subscription=subscription_of(subscription), queue=queue)
        )

    async def seek(self, queue: str, group: str, position: SeekTarget, *, partition: str | None = None) -> int:
        """Move the group's cursors on a queue or one partition; returns their number."""
        return int(
            await self._call("seek", queue=queue, group=group, position=position_of(position), partition=partition)
        )

    async def preview_seek(
        self, queue: str, group: str, position: SeekTarget, *, partition: str | None = None, limit: int = 1000
    ) -> SeekPreview:
        """What such a seek would do now, in the first partitions of the queue."""
        position, names = position_of(position), {"partition": partition, "limit": limit}
        result: SeekPreview = await self._call("preview_seek", queue=queue, group=group, position=position, **names)
        return result

    async def pause_group(self, queue: str, group: str, *, paused: bool = True) -> None:
        """Stop or resume delivery to the group on the queue. Leases stay as they are."""
        await self._call("pause_group", queue=queue, group=group, paused=paused)

    async def delete_group(self, group: str, *, queue: str | None = None, forget_subscription: bool = True) -> int:
        """Remove the group's cursors, on one queue or all, so that its next pop starts afresh."""
        return int(await self._call("delete_group", group=group, queue=queue, forget_subscription=forget_subscription))

    async def samples(
        self,
        *,
        queue: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        after: Sample | None = None,
        limit: int = 1000,
    ) -> list[Sample]:
        """The state of queues over time, from the samples that a duty takes: by time, then queue."""
        where = {"queue": queue, "from_at": from_at, "to_at": to_at, "after": after, "limit": limit}
        result: list[Sample] = await self._call("samples", **where)
        return result

    async def groups(
        self, *, queue: str | None = None, group: str | None = None, exact: bool = False
    ) -> list[GroupInfo]:
        """Groups by queue name, then group name."""
        result: list[GroupInfo] = await self._call("groups", queue=queue, group=group, exact=exact)
        return result

    async def lag(
        self,
        queue: str,
        *,
        group: str | None = None,
        partition: str | None = None,
        after_partition_id: int = 0,
        limit: int = 1000,
    ) -> list[PartitionLag]:
        """Cursors with their exact lag, by partition id, then group name."""
        result: list[PartitionLag] = await self._call(
            "lag", queue=queue, group=group, partition=partition, after_partition_id=after_partition_id, limit=limit
        )
        return result

    async def spark_streams(self, *, queue: str | None = None) -> list[SparkStreamInfo]:
        """The Spark streams that have published a position, by queue, then name, with their lag."""
        result: list[SparkStreamInfo] = await self._call("spark_streams", queue=queue)
        return result

    async def forget_spark_stream(self, stream_id: str) -> int:
        """Forget the position of a Spark stream, so that it holds back nothing from retention."""
        return int(await self._call("forget_spark_stream", stream_id=stream_id))

    async def accept_spark_stream(self, stream_id: str) -> int:
        """Let a Spark stream continue whose checkpoint is ahead of the database, after a failover or a restore."""
        return int(await self._call("accept_spark_stream", stream_id=stream_id))

    async def depth(self, queue: str, group: str, *, exact: bool = False) -> Depth:
        """What the group has not done in the queue."""
        result: Depth = await self._call("depth", queue=queue, group=group, exact=exact)
        return result

    # Looking at messages

    async def messages(
        self,
        queue: str,
        *,
        partition: str | None = None,
        status: MessageStatus | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        newest_first: bool = False,
        cursor: str | None = None,
        limit: int = 100,
    ) -> MessagePage:
        """A page of a queue's stored messages: by partition id and seq, or the last stored first."""
        where = MessageFilter(queue=queue, partition=partition, status=status, from_at=from_at, to_at=to_at)
        result: MessagePage = await self._call(
            "messages", where=where, newest_first=newest_first, cursor=cursor, limit=limit
        )
        return result

    async def message(self, identity: str, *, partition_id: int | None = None) -> MessageView:
        """One message by its id; or, with a partition id, by its transaction id or its id."""
        result: MessageView = await self._call("message", identity=identity, partition_id=partition_id)
        return result

    async def trace(self, trace_id: str, *, limit: int = 1000) -> list[Message]:
        """All messages of a trace over all queues, by time."""
        result: list[Message] = await self._call("trace", trace_id=trace_id, limit=limit)
        return result

    async def remove_message(self, partition_id: int, transaction_id: str) -> None:
        """Remove a message for all groups. Raises Conflict while it is under a live lease."""
        await self._call("remove_message", partition_id=partition_id, transaction_id=transaction_id)

    async def retry_message(self, partition_id: int, transaction_id: str) -> Receipt:
        """Push a message that is dead or completed again, to the end of its partition."""
        result: Receipt = await self._call("retry_message", partition_id=partition_id, transaction_id=transaction_id)
        return result

    async def bury_message(
        self, partition_id: int, transaction_id: str, *, group: str = QUEUE_MODE, error: str | None = None
    ) -> int:
        """Make the group's next message a dead letter, and return its id."""
        return int(
            await self._call(
                "bury_message", partition_id=partition_id, transaction_id=transaction_id, group=group, error=error
            )
        )

    # Dead letters

    async def dead_letters(
        self,
        *,
        queue: str | None = None,
        partition: str | None = None,
        group: str | None = None,
        ids: Sequence[int] | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> DeadLetterPage:
        """Dead letters that match, newest first."""
        where = dead_letter_filter(queue, partition, group, ids, from_at, to_at)
        result: DeadLetterPage = await self._call("dead_letters", where=where, limit=limit, offset=offset)
        return result

    async def dead_letter(self, dead_letter_id: int) -> DeadLetter:
        """One dead letter, with its message. Raises DeadLetterNotFound."""
        result: DeadLetter = await self._call("dead_letter", dead_letter_id=dead_letter_id)
        return result

    async def redrive(
        self,
        *,
        queue: str | None = None,
        partition: str | None = None,
        group: str | None = None,
        ids: Sequence[int] | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        all: bool = False,
        limit: int = 1000,
    ) -> int:
        """Push the messages of matching dead letters again, oldest first; returns their number. Dead letters whose
        copies were completed in a dead queue are left out, unless `ids` names them. Without any filter, `all=True` is
        required."""
        where = selected(dead_letter_filter(queue, partition, group, ids, from_at, to_at), all)
        return int(await self._call("redrive", where=where, limit=limit))

    async def redrive_queue(self, queue: str, *, limit: int = 1000) -> int:
        """Send messages of a dead queue back to where they came from; returns their number."""
        return int(await self._call("redrive_queue", queue=queue, limit=limit))

    async def purge(
        self,
        *,
        queue: str | None = None,
        partition: str | None = None,
        group: str | None = None,
        ids: Sequence[int] | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        all: bool = False,
    ) -> int:
        """Remove matching dead letters; returns their number. Without any filter, `all=True` is required."""
        where = selected(dead_letter_filter(queue, partition, group, ids, from_at, to_at), all)
        return int(await self._call("purge", where=where))
