"""Push inside the caller's own transaction: the transactional outbox without an outbox.

The messages are stored if and only if the caller commits, in order with all other pushes to their partitions:
until then those wait for the caller, so a transaction that pushes should not stay open for long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockstep.config import Config, load
from lockstep.core.messages import Batch, NewMessage, PushResult
from lockstep.core.payloads import check_json
from lockstep.engine.incoming import Order, check_push
from lockstep.storage.postgres import pushing, scheduling, within
from lockstep.storage.postgres.cache import NameCache

if TYPE_CHECKING:
    import psycopg

    from lockstep.storage.postgres.calls import Conversation


def push_within(
    connection: psycopg.Connection[Any],
    messages: Sequence[Batch] | Sequence[NewMessage],
    *,
    config: Config | None = None,
) -> PushResult:
    """Push in the transaction of a psycopg connection, which must be READ COMMITTED, PostgreSQL's default.

    The database must have been opened by Lockstep once, which creates its tables. Raises what `Engine.push` raises;
    after an error the transaction can only be rolled back. Errors of the connection itself are psycopg's own.
    """
    conversation, order = _prepare(messages, config)
    return within.converse(connection, conversation).result.in_order(order)


async def push_within_async(
    connection: psycopg.AsyncConnection[Any],
    messages: Sequence[Batch] | Sequence[NewMessage],
    *,
    config: Config | None = None,
) -> PushResult:
    """The same for an async connection."""
    conversation, order = _prepare(messages, config)
    return (await within.converse_async(connection, conversation)).result.in_order(order)


def _prepare(
    messages: Sequence[Batch] | Sequence[NewMessage], config: Config | None
) -> tuple[Conversation[pushing.Pushed], Order | None]:
    config = config or load()
    batches, order = check_push(messages, config)
    check_json(messages)
    # What this transaction creates may be rolled back, so the names are remembered for this call only.
    names = NameCache(config.partition_cache_entries_max)
    encryption = pushing.Encryption.of(config)
    seconds_min = config.schedule_min_seconds
    return scheduling.push(batches, names, encryption=encryption, seconds_min=seconds_min, at=None), order
