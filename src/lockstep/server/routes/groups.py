"""Consumer groups: their lag, their start and their position."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from lockstep.core import refusals
from lockstep.core.policy import SECONDS_MAX
from lockstep.core.records import Subscription
from lockstep.core.wire import groups as wire
from lockstep.core.wire.pages import Limit
from lockstep.core.wire.times import Time, parse_time, seconds_since, timestamp
from lockstep.engine.checks import check_limit
from lockstep.errors import InvalidRequest
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.listing import each_lag
from lockstep.server.node import Node
from lockstep.server.routing import Route

_subscription_body = msgspec.json.Decoder(wire.SubscriptionBody)
_pause_body = msgspec.json.Decoder(wire.PauseBody)
_seek_body = msgspec.json.Decoder(wire.SeekBody)


class GroupsQuery(Struct, frozen=True):
    queue: str | None = None
    exact: bool = False
    """Count everything now, however long it takes."""


class GroupQuery(Struct, frozen=True):
    limit: Limit = 1000
    """Maximum number of partitions of each queue in the answer."""
    after: Annotated[int, Meta(ge=0)] = 0
    """The id of a partition; partitions after it are listed."""


class LaggingQuery(Struct, rename="camel", frozen=True):
    queue: str | None = None
    consumer_group: str | None = None
    min_lag_seconds: Annotated[float, Meta(ge=0, le=SECONDS_MAX)] = 3600
    limit: Limit = 1000
    """Maximum number of partitions in the answer."""


class PreviewQuery(Struct, rename="camel", frozen=True):
    to_end: bool = False
    timestamp: Time | None = None
    limit: Limit = 1000
    """Maximum number of partitions to examine."""


class DeleteGroupQuery(Struct, rename="camel", frozen=True):
    delete_metadata: bool = True
    """Also forget where the group starts."""


async def groups(node: Node, request: Request) -> Response:
    query, now = request.query(GroupsQuery), datetime.now(UTC)
    infos = await node.engine.groups(queue=query.queue, exact=query.exact)
    return answer([wire.group_row(info, now) for info in infos])


async def group(node: Node, request: Request) -> Response:
    name, query, now = request.parameters["group"], request.query(GroupQuery), datetime.now(UTC)
    infos = await node.engine.groups(group=name)
    if not infos:
        raise refusals.no_group(name)
    check_limit(query.limit, node.config)
    found = {
        info.queue: await node.engine.lag(info.queue, group=name, after_partition_id=query.after, limit=query.limit)
        for info in infos
    }
    return answer({queue: wire.group_partitions(lags, now) for queue, lags in found.items()})


async def lagging(node: Node, request: Request) -> Response:
    """Only groups with an old enough oldest message are examined closely, until the answer is full.

    It examines as many cursors as a list may count. If the answer is not full then, the caller must query group by
    group.
    """
    query, now = request.query(LaggingQuery), datetime.now(UTC)
    check_limit(query.limit, node.config)
    rows: list[wire.LaggingRow] = []
    places_max = max(node.config.figures_exact_max, node.config.page_items_max)
    places = 0
    for info in await node.engine.groups(queue=query.queue or None, group=query.consumer_group or None):
        # For a group with unknown lag, the cursors are examined.
        if info.lag is not None and (
            info.oldest_at is None or seconds_since(info.oldest_at, now) < query.min_lag_seconds
        ):
            continue
        async for lag in each_lag(node, info.queue, info.name):
            places += 1
            if places > places_max:
                raise InvalidRequest(
                    f"more than {places_max} cursors would have to be read: ask with a smaller limit, or "
                    "group by group and page by page, with /api/v1/consumer-groups/GROUP?after=PARTITION_ID"
                )
            row = wire.lagging_row(lag, now)
            if lag.lag and row.time_lag_seconds >= query.min_lag_seconds:
                rows.append(row)
                if len(rows) == query.limit:
                    return answer(rows)
    return answer(rows)


async def spark_streams(node: Node, _: Request) -> Response:
    now = datetime.now(UTC)
    return answer([wire.spark_stream_row(info, now) for info in await node.engine.spark_streams()])


async def delete_group(node: Node, request: Request) -> Response:
    name, queue = request.parameters["group"], request.parameters.get("queue")
    forget = request.query(DeleteGroupQuery).delete_metadata
    removed = await node.engine.delete_group(name, queue=queue, forget_subscription=forget)
    return answer(wire.DeleteGroupAnswer(True, name, removed, forget, queue))


async def set_subscription(node: Node, request: Request) -> Response:
    name = request.parameters["group"]
    body = request.json(_subscription_body)
    at = parse_time(body.subscription_timestamp, what="subscriptionTimestamp")
    updated = await node.engine.set_subscription(name, Subscription("from", at))
    return answer(wire.SubscriptionAnswer(True, name, timestamp(at), updated))


async def pause(node: Node, request: Request) -> Response:
    name, queue = request.parameters["group"], request.parameters["queue"]
    paused = request.json(_pause_body).paused
    await node.engine.pause_group(queue, name, paused=paused)
    return answer(wire.PauseAnswer(True, name, queue, paused))


async def preview_seek(node: Node, request: Request) -> Response:
    name, queue, query = request.parameters["group"], request.parameters["queue"], request.query(PreviewQuery)
    check_limit(query.limit, node.config)
    position = wire.position_of(wire.SeekBody(query.to_end, query.timestamp))
    preview = await node.engine.preview_seek(
        queue, name, position, partition=request.parameters.get("partition"), limit=query.limit
    )
    return answer(wire.seek_preview_answer(queue, name, preview))


async def seek(node: Node, request: Request) -> Response:
    name, queue = request.parameters["group"], request.parameters["queue"]
    position = wire.position_of(request.json(_seek_body))
    moved = await node.engine.seek(queue, name, position, partition=request.parameters.get("partition"))
    return answer(wire.seek_answer(queue, name, position, moved))


def _seek_routes(path: str, within: str) -> list[Route]:
    """The routes of preview and seek, for all partitions of a queue or one."""
    preview = Route(
        method="GET",
        path=path,
        endpoint=preview_seek,
        summary="What such a seek would do now",
        right="browse",
        query=PreviewQuery,
        answers=wire.SeekPreviewAnswer,
    )
    move = Route(
        method="POST",
        path=path,
        endpoint=seek,
        summary=f"Move a group in {within}",
        right="manage",
        body=wire.SeekBody,
        answers=wire.SeekAnswer,
    )
    return [preview, move]


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/consumer-groups",
        endpoint=groups,
        summary="All groups, one row for each queue",
        right="browse",
        query=GroupsQuery,
        answers=list[wire.GroupRow],
    ),
    Route(
        method="GET",
        path="/api/v1/consumer-groups/lagging",
        endpoint=lagging,
        summary="Partitions that a group is behind with",
        right="browse",
        query=LaggingQuery,
        answers=list[wire.LaggingRow],
    ),
    Route(
        method="GET",
        path="/api/v1/spark-streams",
        endpoint=spark_streams,
        summary="Spark's streams and what they are behind with, one row for each queue",
        right="browse",
        answers=list[wire.SparkStreamRow],
    ),
    Route(
        method="GET",
        path="/api/v1/consumer-groups/:group",
        endpoint=group,
        summary="A group's place in partitions, by queue",
        right="browse",
        query=GroupQuery,
        answers=dict[str, wire.GroupPartitions],
    ),
    Route(
        method="DELETE",
        path="/api/v1/consumer-groups/:group",
        endpoint=delete_group,
        summary="Remove a group, so that it starts afresh",
        right="configure",
        query=DeleteGroupQuery,
        answers=wire.DeleteGroupAnswer,
    ),
    Route(
        method="DELETE",
        path="/api/v1/consumer-groups/:group/queues/:queue",
        endpoint=delete_group,
        summary="Remove a group from one queue",
        right="configure",
        query=DeleteGroupQuery,
        answers=wire.DeleteGroupAnswer,
    ),
    Route(
        method="POST",
        path="/api/v1/consumer-groups/:group/subscription",
        endpoint=set_subscription,
        summary="Say where a group begins when it starts afresh",
        right="manage",
        body=wire.SubscriptionBody,
        answers=wire.SubscriptionAnswer,
    ),
    Route(
        method="POST",
        path="/api/v1/consumer-groups/:group/queues/:queue/pause",
        endpoint=pause,
        summary="Deliver nothing more to a group on a queue, or go on",
        right="manage",
        body=wire.PauseBody,
        answers=wire.PauseAnswer,
    ),
    *_seek_routes("/api/v1/consumer-groups/:group/queues/:queue/seek", "a queue"),
    *_seek_routes("/api/v1/consumer-groups/:group/queues/:queue/partitions/:partition/seek", "one partition"),
]
