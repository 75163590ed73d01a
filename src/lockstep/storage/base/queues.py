"""Queues and their partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from lockstep.core.policy import QueueOptions
from lockstep.core.records import ClearScope, PartitionInfo, PartitionStats, QueueInfo


class Queues(Protocol):
    """Configures, clears, deletes and describes queues."""

    async def configure(
        self, queue: str, options: QueueOptions, *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        """Create the queue, with a partition `Default`, or replace its whole configuration.

        If None, namespace and task of a new queue are the first two dot-separated parts of its name; those of an
        existing queue stay. New options apply to the next push, pop or ack; times that due_at already holds (a lease's
        deadline, a retry time) stay.

        A dead queue must exist, not be the queue itself, and have neither a dead queue nor a max_size of its own; and a
        queue that is a dead queue can get neither: otherwise raises InvalidOption. With `partitions`, the partitions
        `0`, `1`, … are created.

        Encryption that is on stays on, whatever the options say: only stop_encryption switches it off.
        """

    async def update_queue(
        self, queue: str, changes: Mapping[str, Any], *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        """Change some options of a queue, by name; the others stay, even if other callers change options at the same
        time. Raises QueueNotFound, InvalidOption if the resulting options are not valid together, or would switch
        encryption off."""

    async def stop_encryption(self, queue: str) -> QueueInfo:
        """Store the queue's messages unencrypted from now on; stored messages stay encrypted, and readable with their
        key. A server that has the queue in its cache may continue to encrypt for a while. Raises QueueNotFound."""

    async def delete_queue(self, queue: str) -> bool:
        """Delete the queue and everything in it. False if there is none. Raises Conflict while it is the dead
        queue of another.

        It disappears at once: its messages are not popped, its leases are lost, and pushes to its name go to a new
        queue. Its contents are then removed in slices; if the call is interrupted, or cannot continue, prune_queues
        removes the rest.
        """

    async def clear(self, queue: str, *, partition: str | None = None, scope: ClearScope = "all") -> int:
        """Remove stored messages of a queue or one partition; returns how many.

        `all`: every message; leases are dropped and every cursor is at the end. `unleased`: every message that is
        under no live lease of any group; the leases stay and can be acknowledged. Dedup entries, trace entries and dead
        letters of removed messages are removed, too. Seqs continue and are never reused. `scheduled`: only scheduled
        messages, which the other scopes leave alone. Raises QueueNotFound, PartitionNotFound.

        It works in slices. With `all` the cursors are at the end first, some partitions at a time; then messages go,
        oldest first. Other callers see the slices that are done, and a repeated call continues after a failure.
        Messages pushed while it runs are either removed or delivered.
        """

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
        """Queues by name, those after the name `after`, and from `from_name` on, which itself is among them.

        The cost of this and of every other list of figures does not follow the number of partitions: the figures of
        large queues are those of the last walk over them, made by `sample`, and `figures_at` says when that began.
        With `exact` they are recounted, which costs some microseconds for each partition and cursor.
        """

    async def queue(self, queue: str, *, exact: bool = False) -> QueueInfo:
        """One queue. Raises QueueNotFound."""

    async def partitions(
        self, queue: str, *, after: str | None = None, prefix: str | None = None, limit: int = 100
    ) -> list[PartitionInfo]:
        """A queue's partitions by name: those after the name `after` that begin with `prefix`. Raises
        QueueNotFound."""

    async def partition(self, queue: str, partition: str) -> PartitionInfo:
        """One partition. Raises QueueNotFound, PartitionNotFound."""

    async def stats(self, queue: str, *, after: str | None = None, limit: int = 100) -> list[PartitionStats]:
        """The exact current figures of a queue's partitions, by name, those after the name `after`. The cost depends on
        the number of stored runs that are not completed, and of waiting messages; no message is read. Raises
        QueueNotFound."""

    async def balanced(self, queue: str) -> int:
        """How many numbered partitions a balanced queue has; 0 for a queue that is not balanced or does not exist. The
        store keeps the answer in memory until the queue changes."""

    async def balance(self, queue: str) -> list[int]:
        """How much is pending in each numbered partition of a balanced queue, for the group that is furthest behind;
        empty for a queue that is not balanced, which costs nothing, or does not exist."""
