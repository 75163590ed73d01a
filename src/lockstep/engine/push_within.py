"""Push inside the caller's own transaction: the transactional outbox without an outbox.

The messages are stored if and only if the caller commits, in order with all other pushes to their partitions:
until then those wait for the caller, so a transaction that pushes should not stay open for long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lockstep.config import OF_CLIENTS, Config, load
from lockstep.core.balance import first_transaction_id
from lockstep.core.messages import Batch, NewMessage, PushResult
from lockstep.core.names import DEFAULT_PARTITION
from lockstep.core.operations import Order
from lockstep.core.payloads import check_json
from lockstep.engine.incoming import check_push
from lockstep.storage.postgres import within
from lockstep.storage.postgres.cache import NameCache
from lockstep.storage.postgres.calls import Call
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.push import scheduled
from lockstep.storage.postgres.push.conversation import Pushed

if TYPE_CHECKING:
    import psycopg

    from lockstep.storage.postgres.calls import Conversation

_PLACE = (
    "select lockstep.balanced_partition(t.queue, t.transaction_id) "
    "from unnest($1::text[], $2::text[]) with ordinality t (queue, transaction_id, o) order by t.o"
)
_NOTIFY_PUSHED = (
    "select lockstep.notify_pushed(t.queue, t.scheduled) from unnest($1::text[], $2::bool[]) t (queue, scheduled)"
)


def push_within(
    connection: psycopg.Connection[Any],
    messages: Sequence[Batch] | Sequence[NewMessage],
    *,
    config: Config | None = None,
    notify: bool = True,
) -> PushResult:
    """Push in the transaction of a psycopg connection, which must be READ COMMITTED, PostgreSQL's default.

    The commit notifies the waiting pops in every process. PostgreSQL serializes the commits of transactions that
    notify; if that costs too much, pass `notify=False`, and call `notify_pushed` after the commit. Without either, a
    waiting pop finds the messages within a second.

    The database must have been opened by Lockstep once, which creates its tables. Raises what `Engine.push` raises;
    after an error the transaction can only be rolled back. Errors of the connection itself are psycopg's own.
    """
    conversation, order = _prepare(messages, config, notify=notify)
    return within.converse(connection, conversation).result.in_order(order)


async def push_within_async(
    connection: psycopg.AsyncConnection[Any],
    messages: Sequence[Batch] | Sequence[NewMessage],
    *,
    config: Config | None = None,
    notify: bool = True,
) -> PushResult:
    """The same for an async connection."""
    conversation, order = _prepare(messages, config, notify=notify)
    return (await within.converse_async(connection, conversation)).result.in_order(order)


def notify_pushed(connection: psycopg.Connection[Any], pushed: PushResult) -> None:
    """Notify waiting pops of messages that `push_within` pushed with `notify=False`, after the commit. It runs in a
    transaction of its own, which writes nothing and so costs little."""
    with connection.transaction():
        within.converse(connection, _tell(pushed))


async def notify_pushed_async(connection: psycopg.AsyncConnection[Any], pushed: PushResult) -> None:
    """The same for an async connection."""
    async with connection.transaction():
        await within.converse_async(connection, _tell(pushed))


def _prepare(
    messages: Sequence[Batch] | Sequence[NewMessage], config: Config | None, *, notify: bool
) -> tuple[Conversation[Pushed], Order | None]:
    config = config or load(unused=OF_CLIENTS)
    batches, order = check_push(messages, config)
    check_json(messages)
    # What this transaction creates may be rolled back, so the names are remembered for this call only.
    names = NameCache.of(config)
    encryption = Encryption.of(config)
    seconds_min = config.schedule_min_seconds

    def conversation() -> Conversation[Pushed]:
        placed = yield from _place(batches)
        pushed = yield from scheduled.push(placed, names, encryption=encryption, seconds_min=seconds_min, at=None)
        if notify:
            yield from _tell(pushed.result)
        return pushed

    return conversation(), order


def _place(batches: Sequence[Batch]) -> Conversation[Sequence[Batch]]:
    """The batches, with a partition for each that names none and is for a balanced queue."""
    unplaced = [batch for batch in batches if batch.partition == DEFAULT_PARTITION]
    if not unplaced:
        return batches
    arguments = [batch.queue for batch in unplaced], [first_transaction_id(batch) for batch in unplaced]
    rows = iter((yield Call("balanced_partition", _PLACE, arguments)))
    return [batch if batch.partition != DEFAULT_PARTITION else _placed(batch, next(rows)[0]) for batch in batches]


def _placed(batch: Batch, partition: str | None) -> Batch:
    return batch if partition is None else replace(batch, partition=partition)


def _tell(pushed: PushResult) -> Conversation[None]:
    """Notify by queue, so that PostgreSQL drops repeated notifications of a transaction."""
    told = {(batch.queue, batch.schedule is not None) for batch in pushed.batches}
    if told:
        queues, waiting = zip(*sorted(told), strict=True)
        yield Call("notify_pushed", _NOTIFY_PUSHED, (list(queues), list(waiting)))
