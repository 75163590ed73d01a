"""A server in this process that is asked without sockets, with two queues that have some of everything."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from lockstep.config import Config, load
from lockstep.core.access import NewApiKey
from lockstep.core.crons import NewCron
from lockstep.core.messages import Batch, NewMessage
from lockstep.core.operations import NewOperation
from lockstep.core.records import Ack, DeadLetterFilter, PopRequest
from lockstep.core.schedules import ScheduleFilter
from lockstep.core.streams import NewStreamQuery
from lockstep.core.traces import NewTraceEvent
from lockstep.engine.engine import Engine
from lockstep.server.app import Application
from lockstep.server.exchange import Response
from lockstep.server.node import Node
from lockstep.storage.base import Store
from lockstep.storage.memory import MemoryStore

TRACE_ID = str(uuid4())
OWN, FOREIGN = "own.q", "foreign.q"
HOST = {b"host": b"localhost"}


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    response: Response

    def json(self) -> Any:
        return json.loads(self.body)


class Asker:
    """Sends requests to an application."""

    def __init__(self, engine: Engine, config: Config) -> None:
        self.engine = engine
        self.node = Node(engine, config)
        self.application = Application(self.node)

    async def key(self, *rules: str, role: str | None = None, name: str = "somebody", **fields: Any) -> str:
        made = await self.engine.create_key(NewApiKey(name=name, role=role, rules=rules, **fields))
        return made.token

    async def __call__(self, method: str, target: str, content: object = None, *, token: str | None = None) -> Answer:
        path, _, query = target.partition("?")
        headers = dict(HOST) if token is None else {**HOST, b"authorization": f"Bearer {token}".encode()}
        request = self.application.request(method, path.encode(), query.encode(), headers)
        response = self.application.refuse(request)
        if response is None:
            request.body = b"" if content is None else json.dumps(content).encode()
            response = await self.application.respond(request)
        assert response is not None
        return Answer(response.status, response.body, response)


@asynccontextmanager
async def asking(store: Store | None = None, **settings: Any) -> AsyncIterator[Asker]:
    config = load({"auth": "required", **settings}, environ={})
    async with Engine(store or MemoryStore(), config) as engine:
        asker = Asker(engine, config)
        try:
            yield asker
        finally:
            await asker.node.guards.close()


@dataclass(frozen=True)
class Things:
    """What there is of a queue."""

    queue: str
    partition_id: int
    transaction_id: str
    lease_id: str
    dead_letter_id: int
    schedule_id: int
    query_id: int
    operation_id: str
    failed_operation_id: str

    @property
    def cron(self) -> str:
        return f"cron-{self.queue}"

    @property
    def stream(self) -> str:
        return f"stream-{self.queue}"


async def fill(engine: Engine, queue: str) -> Things:
    """Some of everything on a queue."""
    await engine.configure(queue)
    ids = [f"{queue}-{number}" for number in range(4)]
    batch = Batch.of(queue, [b'"secret"'] * 4, transaction_ids=ids, trace_ids=[TRACE_ID] * 4)
    first = (await engine.push([batch]))[0]
    await engine.push([NewMessage(queue=queue, payload=b"1", delay_seconds=3600, schedule_key="key")])
    [schedule] = (await engine.schedules(ScheduleFilter())).items[-1:]
    await engine.pop([PopRequest(queue=queue, group="dead")])
    ack = Ack(partition_id=first.partition_id, transaction_id=ids[0], group="dead", status="dlq")
    await engine.ack([ack])
    [popped] = await engine.pop([PopRequest(queue=queue, group="g", batch=2)])
    assert popped.lease_id is not None
    await engine.set_cron(NewCron(name=f"cron-{queue}", queue=queue, expression="0 0 1 1 *", payload=b"1"))
    event = NewTraceEvent(
        partition_id=first.partition_id, transaction_id=ids[0], data=b"1", names=("name", f"of-{queue}")
    )
    await engine.record_trace(event)
    query = await engine.register_stream_query(
        NewStreamQuery(name=f"stream-{queue}", source_queue=queue, config_hash="hash")
    )
    operations = [NewOperation([Batch.of(queue, [b"1"], partition="waits")]) for _ in range(2)]
    queued = await engine._store.queue_operations(operations)
    await engine.sample()
    return Things(
        queue=queue,
        partition_id=first.partition_id,
        transaction_id=ids[1],
        lease_id=popped.lease_id,
        dead_letter_id=(await engine.dead_letters(DeadLetterFilter(queue=queue))).items[0].id,
        schedule_id=schedule.id,
        query_id=query.id,
        operation_id=queued[0],
        failed_operation_id=queued[1],
    )
