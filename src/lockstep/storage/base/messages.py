"""Stored messages for operators."""

from __future__ import annotations

from typing import Protocol

from lockstep.core.messages import Message, Receipt
from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import MessageFilter, MessagePage, MessageView


class Messages(Protocol):
    """Lists stored messages, and removes, retries or buries single messages.

    A single message is named by its partition id and a transaction id, or its own id; a verb that changes it raises
    MessageNotFound if there is none.
    """

    async def messages(
        self, where: MessageFilter, *, newest_first: bool = False, cursor: str | None = None, limit: int = 100
    ) -> MessagePage:
        """A page of stored messages: by partition id and seq; with `newest_first`, the message stored last comes first,
        and in each partition seqs fall. Without a queue it goes over the partitions of all queues.

        A page examines at most `page_looked_into_max` messages (setting), whatever is stored: a filtered list may have
        short or empty pages and still continue. Raises QueueNotFound, PartitionNotFound, InvalidRequest for a cursor
        that is not valid, or belongs to the other order."""

    async def message(self, identity: str, *, partition_id: int | None = None) -> MessageView:
        """One message by its id; or, with a partition id, by its transaction id or its id. Raises MessageNotFound."""

    async def trace(self, trace_id: str, *, limit: int = 1000) -> list[Message]:
        """All messages of a trace over all queues, by created_at, then id."""

    async def remove_message(self, partition_id: int, transaction_id: str) -> None:
        """Remove a message for all groups, with its dedup entry, trace entries, trace events and dead letters.

        Its seq is not reused, as after a clear; a group whose head it was continues with the next message and a new
        attempt count. Raises Conflict if it is under a live lease of any group.
        """

    async def retry_message(self, partition_id: int, transaction_id: str) -> Receipt:
        """Push a message to the end of its partition again, as a redrive does, once, and remove its dead letters, with
        their copies in a dead queue.

        It must be a dead letter of some group, or completed by every group: raises Conflict if it has yet to be
        delivered, or if a copy is under a live lease. Raises QueueFull.
        """

    async def bury_message(
        self, partition_id: int, transaction_id: str, *, group: str = QUEUE_MODE, error: str | None = None
    ) -> int:
        """Make a message a dead letter of a group (`rules.bury`) and return the dead letter's id; the cursor moves past
        the message. A stopped partition continues.

        It must be the group's next message, because the cursor would also pass all earlier messages; in a shared group,
        the next new message, or any message in flight. Raises Conflict if it is not, or is done, or the partition (of a
        shared group: the message) is under a live lease of the group; GroupNotFound.
        """
