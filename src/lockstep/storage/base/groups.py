"""Consumer groups: where they begin, where they are, and moving them."""

from __future__ import annotations

from typing import Protocol

from lockstep.core.policy import GroupMode
from lockstep.core.records import Depth, GroupInfo, PartitionLag, Position, SeekPreview, SparkStreamInfo, Subscription


class Groups(Protocol):
    """Creates, moves, deletes and describes consumer groups."""

    async def subscribe(
        self, queue: str, group: str, subscription: Subscription, *, mode: GroupMode | None = None
    ) -> GroupInfo:
        """Create the group on the queue as its first pop would, or leave it as it is. Raises QueueNotFound,
        GroupModeMismatch.

        The group begins at the same moment in all partitions. `new` includes every push that began after that, and none
        that was committed before; a push in between may or may not be included. The cost does not depend on the number
        of partitions: the store may prepare each of them later (prune_groups).
        """

    async def set_subscription(self, group: str, subscription: Subscription, *, queue: str | None = None) -> int:
        """Store where the group begins when it is next created, on one queue, or on all queues on which it exists or
        has a stored subscription. Returns the number of queues. Raises QueueNotFound, GroupNotFound."""

    async def seek(self, queue: str, group: str, position: Position, *, partition: str | None = None) -> int:
        """Move the group's cursors on a queue or one partition; returns the number of cursors.

        start: before the first stored message. end: after the last. time: after the last message created at or
        before it. seq: before that seq, and not before the first stored message nor after the last. current: where
        it is. It drops leases, resets attempts and resumes stopped partitions. In a shared group, messages in flight
        are discarded; with current, they are delivered again at once. Raises QueueNotFound, GroupNotFound,
        PartitionNotFound.

        All partitions move at the same moment: a pop that begins after that gets nothing from the old position, and
        earlier leases are lost. An ack or a transaction in progress may still succeed; it counts as before the move.
        Only `current` works in slices; if it fails halfway, repeat it.
        """

    async def preview_seek(
        self, queue: str, group: str, position: Position, *, partition: str | None = None, limit: int = 1000
    ) -> SeekPreview:
        """The effect that such a seek would have now; changes nothing. Examines only the first partitions of the queue.
        Raises QueueNotFound, GroupNotFound, PartitionNotFound."""

    async def pause_group(self, queue: str, group: str, *, paused: bool = True) -> None:
        """Pause or resume delivery to the group on the queue. Leases stay, and can be acknowledged and renewed; a pop
        in progress may still lease. A seek leaves the group paused; a group that is deleted and created again is not
        paused. Raises QueueNotFound, GroupNotFound.
        """

    async def delete_group(self, group: str, *, queue: str | None = None, forget_subscription: bool = True) -> int:
        """Remove the group's cursors, on one queue or all, so that its next pop creates it again; with
        forget_subscription, also its subscription. Returns the number of cursors it had. Raises QueueNotFound,
        GroupNotFound.

        The group disappears at once. prune_groups removes its remaining data.
        """

    async def groups(
        self, *, queue: str | None = None, group: str | None = None, exact: bool = False
    ) -> list[GroupInfo]:
        """Groups by queue name, then group name. Raises QueueNotFound."""

    async def lag(
        self,
        queue: str,
        *,
        group: str | None = None,
        partition: str | None = None,
        after_partition_id: int = 0,
        limit: int = 1000,
    ) -> list[PartitionLag]:
        """Cursors with their exact lag, by partition id, then group name. In a shared group, the lag counts new
        messages and those in flight, `acked` is the seq up to which all are done, `due_at` the next time at which a pop
        may find something, and `attempts` those of the first message in flight. Raises QueueNotFound, GroupNotFound,
        PartitionNotFound."""

    async def depth(self, queue: str, group: str, *, exact: bool = False) -> Depth:
        """Sums of the lag; see `queues`. For queue mode before its first pop: all stored messages. Raises
        QueueNotFound, GroupNotFound."""

    async def spark_streams(self, *, queue: str | None = None) -> list[SparkStreamInfo]:
        """Spark streams that published their position, by queue, then name, with their lag. The memory store has none.
        Raises QueueNotFound."""

    async def forget_spark_stream(self, stream_id: str) -> int:
        """Forget the position of a Spark stream, so that it no longer holds messages back from retention; returns on
        how many queues. Raises SparkStreamNotFound."""

    async def accept_spark_stream(self, stream_id: str) -> int:
        """Let a Spark stream whose checkpoint is ahead of the database, after a failover or a restore, continue from
        the position that it last published here. Returns on how many queues. Raises SparkStreamNotFound."""
