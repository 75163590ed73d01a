"""Stored messages: list, show, remove, push again, bury."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta, Struct, field

from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import (
    DeadLetter,
    DeadLetterFilter,
    MessageFilter,
    MessageStatus,
    MessageView,
    QueueInfo,
    page_cursor,
)
from lockstep.core.wire import messages as wire
from lockstep.core.wire.delivery import partition_number
from lockstep.core.wire.pages import Limit
from lockstep.core.wire.times import Time, parse_time_or_none
from lockstep.engine.checks import check_limit
from lockstep.errors import InvalidRequest, MessageNotFound, PartitionNotFound, QueueNotFound
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Route
from lockstep.server.timespan import before

_LIST_AGE = timedelta(hours=1)
OFFSET_MAX = 10_000

_bury_body = msgspec.json.Decoder(wire.BuryMessageBody)


class MessagesQuery(Struct, rename="camel", frozen=True):
    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    ns: str | None = None
    """The same as `namespace`."""
    task: str | None = None
    status: MessageStatus | None = None
    from_: Time | None = field(default=None, name="from")
    """Created at or after; by default an hour before `to`."""
    to: Time | None = None
    """Created before; by default now."""
    newest_first: bool = False
    """Order by newest first; by default the order is by partition and place."""
    limit: Limit = 200
    offset: Annotated[int, Meta(ge=0, le=OFFSET_MAX)] = 0
    """Messages before the offset are read, too; paging by `cursor` avoids that."""
    cursor: str | None = None
    """The cursor in the previous answer. A list that searches for rare messages may be short, or empty, and still have
    a next cursor.
    """
    id: str | None = None
    """Only the message with this id, whenever it was stored. With a queue and a partition, a transaction id is accepted
    as well.
    """
    seq: Annotated[int, Meta(ge=1, le=2**62)] | None = None
    """With a queue and a partition: messages from this seq on, whenever they were stored."""


async def messages(node: Node, request: Request) -> Response:
    query = request.query(MessagesQuery)
    if query.id:
        return await _one(node, query)
    if query.seq is not None:
        return await _from_seq(node, query, query.seq)
    to_at = parse_time_or_none(query.to, what="to")
    from_at = parse_time_or_none(query.from_, what="from") or before(to_at or datetime.now(UTC), _LIST_AGE)
    where = MessageFilter(
        queue=query.queue or None,
        partition=query.partition or None,
        namespace=_namespace(query),
        task=query.task,
        status=query.status,
        from_at=from_at,
        to_at=to_at,
    )
    return await list_messages(node, where, query)


def _namespace(query: MessagesQuery) -> str | None:
    given = [one for one in (query.namespace, query.ns) if one is not None]
    if len(set(given)) > 1:
        raise InvalidRequest("namespace and ns are the same, and have different values")
    return given[0] if given else None


class AskedPage(Protocol):
    """The part of a list of messages that a query requests."""

    @property
    def newest_first(self) -> bool: ...
    @property
    def cursor(self) -> str | None: ...
    @property
    def limit(self) -> int: ...
    @property
    def offset(self) -> int: ...


async def _one(node: Node, query: MessagesQuery) -> Response:
    """A list with the message of this id; empty if it does not exist, or is not in the queue and partition."""
    assert query.id is not None
    partition_id = None
    try:
        if query.queue and query.partition:
            partition_id = (await node.engine.partition(query.queue, query.partition)).id
        view = await node.engine.message(query.id, partition_id=partition_id)
    except (InvalidRequest, MessageNotFound, PartitionNotFound, QueueNotFound):
        views = []
    else:
        views = [view] if query.queue in (None, "", view.message.queue) else []
    return await _answer(node, views, views[0].message.queue if views else None, None)


async def _from_seq(node: Node, query: MessagesQuery, seq: int) -> Response:
    if not query.queue or not query.partition or query.newest_first:
        raise InvalidRequest("seq needs a queue and a partition, and lists by place: without newestFirst")
    partition = await node.engine.partition(query.queue, query.partition)
    place = query.cursor or page_cursor(partition.id, seq - 1)
    where = MessageFilter(queue=query.queue, partition=query.partition, status=query.status)
    return await list_messages(node, where, msgspec.structs.replace(query, cursor=place))


async def list_messages(node: Node, where: MessageFilter, page: AskedPage) -> Response:
    """A list in the format of the protocol."""
    check_limit(page.limit, node.config)
    views, cursor = await _read(node, where, page.newest_first, page.cursor or None, page.offset + page.limit)
    return await _answer(node, views[page.offset :], where.queue, cursor)


async def _answer(node: Node, views: list[MessageView], queue: str | None, cursor: str | None) -> Response:
    queues = await _queues(node, [view.message.queue for view in views])
    known = [view for view in views if view.message.queue in queues]
    groups = await node.engine.groups(queue=queue)
    mode = wire.mode([group.name for group in groups if queue is not None or group.queue in queues])
    return answer(wire.MessagesAnswer(wire.message_rows(known, queues), mode, cursor))


async def _read(
    node: Node, where: MessageFilter, newest_first: bool, cursor: str | None, count: int
) -> tuple[list[MessageView], str | None]:
    """Up to `count` messages after the cursor, fewer at the end or if matches are rare, and the next cursor."""
    views: list[MessageView] = []
    while True:
        limit = min(count - len(views), node.config.page_items_max)
        page = await node.engine.messages(where, newest_first=newest_first, cursor=cursor, limit=limit)
        views += page.items
        cursor = page.next_cursor
        # A short page has examined as much as one request may.
        if cursor is None or len(page.items) < limit or len(views) == count:
            return views, cursor


async def _queues(node: Node, names: Iterable[str]) -> dict[str, QueueInfo]:
    """The queues that still exist."""
    found = {}
    for name in dict.fromkeys(names):
        try:
            found[name] = await node.engine.queue(name)
        except QueueNotFound:
            continue
    return found


def _identity(request: Request) -> tuple[int, str]:
    return partition_number(request.parameters["partitionId"]), request.parameters["transactionId"]


async def stored_message(node: Node, request: Request) -> Response:
    partition_id, transaction_id = _identity(request)
    view = await node.engine.message(transaction_id, partition_id=partition_id)
    queue = await node.engine.queue(view.message.queue)
    return answer(wire.one_message_answer(view, queue, await _dead_letter(node, view)))


async def _dead_letter(node: Node, view: MessageView) -> DeadLetter | None:
    """The message's newest dead letter, if it is among the latest of its partition."""
    if view.status != "dead_letter":
        return None
    message = view.message
    where = DeadLetterFilter(queue=message.queue, partition=message.partition, from_at=message.created_at)
    page = await node.engine.dead_letters(where, limit=node.config.page_items_max)
    return next((letter for letter in page.items if letter.message.seq == message.seq), None)


async def remove_message(node: Node, request: Request) -> Response:
    partition_id, transaction_id = _identity(request)
    await node.engine.remove_message(partition_id, transaction_id)
    return answer(wire.MessageAnswer(True, str(partition_id), transaction_id, "the message was removed"))


async def retry_message(node: Node, request: Request) -> Response:
    partition_id, transaction_id = _identity(request)
    receipt = await node.engine.retry_message(partition_id, transaction_id)
    return answer(
        wire.RetryMessageAnswer(
            True,
            str(partition_id),
            transaction_id,
            "the message was pushed again",
            message_id=receipt.message_id,
            seq=receipt.seq,
        )
    )


async def bury_message(node: Node, request: Request) -> Response:
    partition_id, transaction_id = _identity(request)
    body = request.json_or(_bury_body, wire.BuryMessageBody())
    letter = await node.engine.bury_message(
        partition_id, transaction_id, group=body.consumer_group or QUEUE_MODE, error=body.error
    )
    text = "the message was made a dead letter"
    return answer(wire.BuryMessageAnswer(True, str(partition_id), transaction_id, text, dead_letter_id=str(letter)))


_PATH = "/api/v1/messages/:partitionId/:transactionId"

ROUTES = [
    Route(
        method="GET",
        path="/api/v1/messages",
        endpoint=messages,
        summary="Stored messages, by partition and place",
        right="browse",
        query=MessagesQuery,
        answers=wire.MessagesAnswer,
    ),
    Route(
        method="GET",
        path=_PATH,
        endpoint=stored_message,
        summary="One message, with all that is known of it",
        right="browse",
        answers=wire.OneMessageAnswer,
    ),
    Route(
        method="DELETE",
        path=_PATH,
        endpoint=remove_message,
        summary="Remove a message for everybody",
        right="manage",
        answers=wire.MessageAnswer,
    ),
    Route(
        method="POST",
        path=f"{_PATH}/retry",
        endpoint=retry_message,
        summary="Push a message that is done, or dead, again",
        right="push",
        answers=wire.RetryMessageAnswer,
    ),
    Route(
        method="POST",
        path=f"{_PATH}/dlq",
        endpoint=bury_message,
        summary="Give a group's next message up: it becomes a dead letter",
        right="pop",
        body=wire.BuryMessageBody,
        body_required=False,
        answers=wire.BuryMessageAnswer,
    ),
]
