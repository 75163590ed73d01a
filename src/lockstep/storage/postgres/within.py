"""Conversations on the caller's own psycopg connection, inside the caller's transaction."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from lockstep.errors import InvalidRequest, Unavailable
from lockstep.storage.postgres.calls import Work
from lockstep.storage.postgres.failures import StaleName, caused_by, translate

if TYPE_CHECKING:
    import psycopg

    from lockstep.storage.postgres.calls import Conversation

T = TypeVar("T")


def converse(connection: psycopg.Connection[Any], conversation: Conversation[T]) -> T:
    """Drive a conversation on a sync connection."""
    from psycopg import Connection, RawCursor
    from psycopg.rows import tuple_row

    _check_connection(connection, Connection)
    with RawCursor(connection, row_factory=tuple_row) as cursor:
        try:
            step = next(conversation)
            while True:
                if isinstance(step, Work):
                    step = conversation.send(step.run())
                    continue
                cursor.execute(step.sql, list(step.args))
                step = conversation.send(step.rows(cursor.fetchall()))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except Exception as error:
            raise caused_by(_explained(error), error)  # noqa: B904


async def converse_async(connection: psycopg.AsyncConnection[Any], conversation: Conversation[T]) -> T:
    """Drive a conversation on an async connection."""
    from psycopg import AsyncConnection, AsyncRawCursor
    from psycopg.rows import tuple_row

    _check_connection(connection, AsyncConnection)
    async with AsyncRawCursor(connection, row_factory=tuple_row) as cursor:
        try:
            step = next(conversation)
            while True:
                if isinstance(step, Work):
                    step = conversation.send(await asyncio.to_thread(step.run))
                    continue
                await cursor.execute(step.sql, list(step.args))
                step = conversation.send(step.rows(await cursor.fetchall()))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except Exception as error:
            raise caused_by(_explained(error), error)  # noqa: B904


def _check_connection(connection: object, kind: type[object]) -> None:
    if not isinstance(connection, kind):
        given = type(connection)
        raise InvalidRequest(f"expected psycopg's {kind.__name__}, not {given.__module__}.{given.__qualname__}")


def _explained(error: Exception) -> BaseException:
    """Translates our own refusals; errors of the caller's connection stay the driver's errors."""
    if not str(getattr(error, "sqlstate", None)).startswith("LS"):
        return error
    explained = translate(error)
    if isinstance(explained, StaleName):
        return Unavailable("the queue was deleted in this moment; roll back and try again")
    return explained
