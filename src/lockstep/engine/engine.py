"""A store as a service: the verbs of the store, for input that nobody has checked yet.

Every verb checks all of its input before the store sees any of it, so bad input changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType

import msgspec

from lockstep.config import Config
from lockstep.core.ids import parse_uuid
from lockstep.core.messages import Batch, Message, NewMessage, PushResult
from lockstep.core.policy import QueueOptions
from lockstep.core.records import (
    Ack,
    AckOutcome,
    ClearScope,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPage,
    Depth,
    GroupInfo,
    LeaseInfo,
    MessageFilter,
    MessagePage,
    MessageView,
    PartitionInfo,
    PartitionLag,
    PendingRequest,
    Popped,
    PopRequest,
    Position,
    Problem,
    QueueInfo,
    Renewal,
    Renewed,
    Subscription,
    TransactionResult,
    Utilisation,
)
from lockstep.engine import checks
from lockstep.engine.incoming import check_push
from lockstep.storage.base import Store


class Engine:
    """The verbs of Lockstep over any store. What they do is said in `storage/base.py`."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config

    async def __aenter__(self) -> Engine:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def ping(self) -> None:
        await self._store.ping()

    # Queues and partitions

    async def configure(
        self,
        queue: str,
        options: QueueOptions | None = None,
        *,
        namespace: str | None = None,
        task: str | None = None,
    ) -> QueueInfo:
        """Create the queue or replace its configuration; without options, by the defaults."""
        checks.check_queue(queue)
        checks.check_labels(namespace=namespace, task=task)
        options = checks.check_queue_options(QueueOptions() if options is None else options, self._config)
        return await self._store.configure(queue, options, namespace=namespace, task=task)

    async def delete_queue(self, queue: str) -> bool:
        checks.check_queue(queue)
        return await self._store.delete_queue(queue)

    async def clear(self, queue: str, *, partition: str | None = None, scope: ClearScope = "all") -> int:
        checks.check_queue(queue)
        checks.check_names(partition=partition)
        checks.check_scope(scope)
        return await self._store.clear(queue, partition=partition, scope=scope)

    async def queues(
        self,
        *,
        namespace: str | None = None,
        task: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[QueueInfo]:
        checks.check_labels(namespace=namespace, task=task, after=after)
        checks.check_limit(limit, self._config)
        return await self._store.queues(namespace=namespace, task=task, after=after, limit=limit)

    async def queue(self, queue: str) -> QueueInfo:
        checks.check_queue(queue)
        return await self._store.queue(queue)

    async def partitions(self, queue: str, *, after: str | None = None, limit: int = 100) -> list[PartitionInfo]:
        checks.check_queue(queue)
        checks.check_labels(after=after)
        checks.check_limit(limit, self._config)
        return await self._store.partitions(queue, after=after, limit=limit)

    async def partition(self, queue: str, partition: str) -> PartitionInfo:
        checks.check_queue(queue)
        checks.check_partition(partition)
        return await self._store.partition(queue, partition)

    # Messages in and out

    async def push(self, messages: Sequence[Batch] | Sequence[NewMessage]) -> PushResult:
        """Push batches, or single messages; the receipts are in the order of the input either way."""
        batches, order = check_push(messages, self._config)
        return (await self._store.push(batches)).in_order(order)

    async def pop(self, requests: Sequence[PopRequest]) -> list[Popped]:
        return await self._store.pop([checks.check_pop(request, self._config) for request in requests])

    async def has_pending(self, requests: Sequence[PendingRequest]) -> list[bool]:
        return await self._store.has_pending([checks.check_pending(request) for request in requests])

    async def ack(self, acks: Sequence[Ack]) -> list[AckOutcome]:
        return await self._store.ack(checks.check_acks(acks, self._config))

    async def nack(self, acks: Sequence[Ack]) -> list[AckOutcome]:
        """Ack with the status `failed`."""
        failed = [msgspec.structs.replace(checks.check_kind(ack, Ack), status="failed") for ack in acks]
        return await self.ack(failed)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        return await self._store.renew(checks.check_renewals(renewals, self._config))

    async def transaction(
        self, acks: Sequence[Ack], messages: Sequence[Batch] | Sequence[NewMessage]
    ) -> TransactionResult:
        acks = checks.check_acks(acks, self._config)
        batches, order = check_push(messages, self._config)
        result = await self._store.transaction(acks, batches)
        return TransactionResult(result.acks, result.pushed.in_order(order))

    # Groups

    async def subscribe(self, queue: str, group: str, subscription: Subscription | None = None) -> GroupInfo:
        """Create the group on the queue unless it is there; by default it begins with the first message."""
        checks.check_queue(queue)
        checks.check_group(group)
        subscription = checks.check_subscription(Subscription() if subscription is None else subscription)
        return await self._store.subscribe(queue, group, subscription)

    async def set_subscription(self, group: str, subscription: Subscription, *, queue: str | None = None) -> int:
        checks.check_subscribable(group)
        checks.check_subscription(subscription)
        checks.check_names(queue=queue)
        return await self._store.set_subscription(group, subscription, queue=queue)

    async def seek(self, queue: str, group: str, position: Position, *, partition: str | None = None) -> int:
        checks.check_queue(queue)
        checks.check_group(group)
        checks.check_position(position)
        checks.check_names(partition=partition)
        return await self._store.seek(queue, group, position, partition=partition)

    async def delete_group(self, group: str, *, queue: str | None = None, forget_subscription: bool = True) -> int:
        checks.check_group(group)
        checks.check_names(queue=queue)
        checks.check_boolean(forget_subscription, what="forget_subscription")
        return await self._store.delete_group(group, queue=queue, forget_subscription=forget_subscription)

    async def groups(self, *, queue: str | None = None, group: str | None = None) -> list[GroupInfo]:
        checks.check_names(queue=queue, group=group)
        return await self._store.groups(queue=queue, group=group)

    async def lag(
        self,
        queue: str,
        *,
        group: str | None = None,
        partition: str | None = None,
        after_partition_id: int = 0,
        limit: int = 1000,
    ) -> list[PartitionLag]:
        checks.check_queue(queue)
        checks.check_names(group=group, partition=partition)
        checks.check_integer(after_partition_id, what="after_partition_id", low=0)
        checks.check_limit(limit, self._config)
        return await self._store.lag(
            queue, group=group, partition=partition, after_partition_id=after_partition_id, limit=limit
        )

    async def depth(self, queue: str, group: str) -> Depth:
        checks.check_queue(queue)
        checks.check_group(group)
        return await self._store.depth(queue, group)

    # Looking at messages

    async def messages(self, where: MessageFilter, *, cursor: str | None = None, limit: int = 100) -> MessagePage:
        checks.check_message_filter(where)
        checks.check_page_cursor(cursor)
        checks.check_limit(limit, self._config)
        return await self._store.messages(where, cursor=cursor, limit=limit)

    async def message(self, identity: str, *, partition_id: int | None = None) -> MessageView:
        if partition_id is None:
            return await self._store.message(str(parse_uuid(identity, what="message id")))
        checks.check_transaction_id(identity)
        checks.check_integer(partition_id, what="partition id", low=1)
        return await self._store.message(identity, partition_id=partition_id)

    async def trace(self, trace_id: str, *, limit: int = 1000) -> list[Message]:
        checks.check_limit(limit, self._config)
        return await self._store.trace(str(parse_uuid(trace_id, what="trace id")), limit=limit)

    # Dead letters

    async def dead_letters(self, where: DeadLetterFilter, *, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        checks.check_dead_letter_filter(where)
        checks.check_limit(limit, self._config)
        checks.check_integer(offset, what="offset", low=0)
        return await self._store.dead_letters(where, limit=limit, offset=offset)

    async def dead_letter(self, dead_letter_id: int) -> DeadLetter:
        checks.check_integer(dead_letter_id, what="dead letter id", low=1)
        return await self._store.dead_letter(dead_letter_id)

    async def redrive(self, where: DeadLetterFilter, *, limit: int = 1000) -> int:
        checks.check_dead_letter_filter(where)
        checks.check_limit(limit, self._config)
        return await self._store.redrive(where, limit=limit)

    async def purge(self, where: DeadLetterFilter) -> int:
        checks.check_dead_letter_filter(where)
        return await self._store.purge(where)

    # Operations

    async def leases(
        self, *, queue: str | None = None, expiring_within: timedelta | None = None, limit: int = 1000
    ) -> list[LeaseInfo]:
        checks.check_names(queue=queue)
        if expiring_within is not None:
            checks.check_duration(expiring_within, what="expiring_within")
        checks.check_limit(limit, self._config)
        return await self._store.leases(queue=queue, expiring_within=expiring_within, limit=limit)

    async def utilisation(self, *, queue: str | None = None) -> list[Utilisation]:
        checks.check_names(queue=queue)
        return await self._store.utilisation(queue=queue)

    async def verify(self, *, queue: str | None = None) -> list[Problem]:
        checks.check_names(queue=queue)
        return await self._store.verify(queue=queue)

    async def repair(self, *, queue: str | None = None) -> list[Problem]:
        checks.check_names(queue=queue)
        return await self._store.repair(queue=queue)
