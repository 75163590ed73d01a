"""Shorthands for what a test pushes, pops and acknowledges."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from lockstep.config import Config
from lockstep.core.messages import Batch, Columns, Message, Receipt
from lockstep.core.names import DEFAULT_PARTITION, QUEUE_MODE
from lockstep.core.policy import queue_options
from lockstep.core.records import (
    Ack,
    AckOutcome,
    AckStatus,
    Continued,
    MessageFilter,
    MessageView,
    NextRequest,
    PartitionLag,
    Popped,
    PopRequest,
    QueueInfo,
)
from lockstep.storage.base import Store

SMALL_SLICES = Config(
    slice_messages_max=3,
    slice_partitions_max=2,
    expire_messages_max=3,
    expire_seconds_max=60,
    slices_seconds_max=60,
    page_looked_into_max=50,
)
"""So that what a store does in slices takes several of them in every test."""


def payload(number: int) -> bytes:
    return b'{"n":%d}' % number


def payloads(count: int, *, start: int = 1) -> list[bytes]:
    return [payload(number) for number in range(start, start + count)]


def binary_payload(size: int) -> bytes:
    """Bytes of every value, which are neither JSON nor text."""
    return (bytes(range(256)) * (size // 256 + 1))[:size]


def batch(queue: str, count: int = 1, *, partition: str = DEFAULT_PARTITION, start: int = 1, **columns: Any) -> Batch:
    """`count` numbered messages, counted from `start`; other columns by name."""
    return Batch(queue, partition, Columns(payloads(count, start=start), **columns))


def tagged(queue: str, transaction_ids: Sequence[str | None], *, partition: str = DEFAULT_PARTITION) -> Batch:
    """A message for each transaction id."""
    return batch(queue, len(transaction_ids), partition=partition, transaction_ids=list(transaction_ids))


async def push_n(
    store: Store,
    queue: str,
    count: int = 1,
    *,
    partition: str = DEFAULT_PARTITION,
    start: int = 1,
    **columns: Any,
) -> list[Receipt]:
    """Push `count` numbered messages in one call."""
    return list(await store.push([batch(queue, count, partition=partition, start=start, **columns)]))


async def push_tagged(
    store: Store, queue: str, *transaction_ids: str | None, partition: str = DEFAULT_PARTITION
) -> list[Receipt]:
    return list(await store.push([tagged(queue, transaction_ids, partition=partition)]))


async def pop(store: Store, queue: str | None = None, **request: Any) -> Popped:
    """One pop request."""
    [popped] = await store.pop([PopRequest(queue=queue, **request)])
    return popped


async def next_of(
    store: Store,
    popped: Popped,
    queue: str | None = None,
    *,
    hold_seconds: float = 60,
    give_way: bool = False,
    **request: Any,
) -> Continued:
    """Continue the lease of a pop."""
    wanted = PopRequest(queue=queue, **{"group": popped.group, **request})
    one = NextRequest(lease_id=popped.lease_id or "", pop=wanted, give_way=give_way)
    [continued] = await store.next([one], hold_seconds=hold_seconds)
    return continued


async def pop_all(store: Store, queue: str, *, group: str = QUEUE_MODE, **request: Any) -> list[Message]:
    """Pop and acknowledge until nothing is due."""
    found: list[Message] = []
    while popped := await pop(store, queue, group=group, batch=1000, partitions=100, auto_ack=True, **request):
        found += popped.messages()
    return found


async def finish_groups(store: Store) -> None:
    """Run the work of the duty until every group has all its cursors, and nothing is left of deleted groups. Cursors of
    deleted groups are removed once the transactions that were open then, in any database of the server, have ended."""
    async with asyncio.timeout(30):
        place = (await store.prune_groups()).next
        while place is not None:
            place = (await store.prune_groups(after=place)).next or (await store.prune_groups()).next


async def ack(store: Store, **fields: Any) -> AckOutcome:
    """One ack."""
    [outcome] = await store.ack([Ack(**fields)])
    return outcome


def ack_of(
    message: Message,
    status: AckStatus = "completed",
    *,
    lease_id: str | None = None,
    group: str = QUEUE_MODE,
    error: str | None = None,
) -> Ack:
    """The ack by message that an HTTP client would send."""
    return Ack(
        lease_id=lease_id,
        partition_id=message.partition_id,
        transaction_id=message.transaction_id,
        group=group,
        status=status,
        error=error,
    )


async def configure(store: Store, queue: str, **options: Any) -> QueueInfo:
    """Configure with checked options."""
    return await store.configure(queue, queue_options(**options))


def numbers(popped: Popped | Iterable[Message]) -> list[int]:
    """The numbers in the payloads of `batch`."""
    messages = popped.messages() if isinstance(popped, Popped) else popped
    return [message.json()["n"] for message in messages]


def seqs(popped: Popped | Iterable[Message]) -> list[int]:
    messages = popped.messages() if isinstance(popped, Popped) else popped
    return [message.seq for message in messages]


def partitions_of(popped: Popped) -> list[str]:
    """The names of the claimed partitions, in order."""
    return list(dict.fromkeys(run.partition for run in popped.runs))


def attempts_of(popped: Popped) -> list[int]:
    return [message.attempt for message in popped.messages()]


async def lag_of(
    store: Store, queue: str, *, group: str = QUEUE_MODE, partition: str = DEFAULT_PARTITION
) -> PartitionLag:
    """The group's place in one partition."""
    [lag] = await store.lag(queue, group=group, partition=partition)
    return lag


async def pages(store: Store, where: MessageFilter, *, limit: int) -> list[list[MessageView]]:
    """Every page of a listing, to its end."""
    found: list[list[MessageView]] = []
    cursor = None
    while True:
        page = await store.messages(where, cursor=cursor, limit=limit)
        assert len(page.items) <= limit
        found.append(page.items)
        cursor = page.next_cursor
        if cursor is None:
            return found
        assert len(found) < 10_000, "the listing has no end"


async def listed(store: Store, queue: str, *, limit: int = 100, **where: Any) -> list[MessageView]:
    """All messages that a listing finds."""
    return [view for page in await pages(store, MessageFilter(queue=queue, **where), limit=limit) for view in page]


async def dead_letter_by_dlq(
    store: Store,
    queue: str,
    count: int = 1,
    *,
    partition: str = DEFAULT_PARTITION,
    start: int = 1,
    **columns: Any,
) -> list[Message]:
    """Push messages and turn each into a dead letter of queue mode; returns them as popped."""
    await push_n(store, queue, count, partition=partition, start=start, **columns)
    popped = await pop(store, queue, partition=partition, batch=count)
    messages = list(popped.messages())
    outcomes = await store.ack([ack_of(m, "dlq", lease_id=popped.lease_id, error="bad") for m in messages])
    assert all(outcome.dead for outcome in outcomes)
    return messages
