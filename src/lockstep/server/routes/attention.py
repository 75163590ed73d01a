"""What needs attention: one answer for opening the dashboard during an incident."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec import Struct

from lockstep.core.attention import Seen, findings
from lockstep.core.policy import SECONDS_MAX
from lockstep.core.records import QueueInfo
from lockstep.core.wire.attention import AttentionAnswer, attention_answer
from lockstep.core.wire.pages import Limit
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.listing import every_queue
from lockstep.server.node import Node
from lockstep.server.routing import Route

_RECENT = timedelta(hours=1)
_DEAD_QUEUES_MAX = 50
"""Number of queues whose dead letters are examined more closely: those with the most."""


class AttentionQuery(Struct, frozen=True):
    limit: Limit = 100


async def attention(node: Node, request: Request) -> Response:
    limit, now = request.query(AttentionQuery).limit, datetime.now(UTC)
    return answer(attention_answer(findings(await _seen(node, now)), now, limit=limit))


async def _seen(node: Node, now: datetime) -> Seen:
    engine = node.engine
    queues = await every_queue(node)
    return Seen(
        now=now,
        queues=queues,
        groups=await engine.groups(),
        utilisation=await engine.utilisation(),
        duties=await engine.duties(),
        dead_recently=await _dead_recently(node, queues, now),
        operations_failed=(await engine.operation_stats()).failed,
        load={
            kind: state.answer.value for kind, state in engine.counts.load.items() if state.answer.value != "execute"
        },
        mode=await engine.maintenance_mode(),
        database=await engine.database_stats(),
    )


async def _dead_recently(node: Node, queues: list[QueueInfo], now: datetime) -> dict[str, int]:
    most = sorted([info for info in queues if info.dead_letters], key=lambda info: -(info.dead_letters or 0))
    found: dict[str, int] = {}
    for info in most[:_DEAD_QUEUES_MAX]:
        spans = await node.engine.sample_spans(seconds=SECONDS_MAX, from_at=now - _RECENT, to_at=now, queue=info.name)
        found[info.name] = sum([span.dead for span in spans])
    return found


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/attention",
        endpoint=attention,
        summary="What needs attention, in plain words, the worst first",
        right="browse",
        query=AttentionQuery,
        answers=AttentionAnswer,
    ),
]
