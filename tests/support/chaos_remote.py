"""The verbs that the clients of the kill -9 tests use, over HTTP and several servers.

A request without an answer, for whatever reason, raises Unavailable; the next request goes to the next server. Nothing
is retried here.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import aiohttp
import msgspec
from msgspec import Raw

from lockstep import Ack, AckOutcome, Batch, Message, PopRequest, open_engine
from lockstep.core.messages import Receipt
from lockstep.core.wire.delivery import PoppedMessage, PushReceipt
from lockstep.errors import TransactionRolledBack, Unavailable
from support.chaos_load import Plan

TIMEOUT_SECONDS = 20
WAIT_MS = 300


class PopAnswer(msgspec.Struct, rename="camel"):
    lease_id: str
    messages: list[PoppedMessage]


class AckAnswer(msgspec.Struct):
    success: bool
    dlq: bool


@dataclass
class RemotePopped:
    """The result of a pop, with the interface of `Popped`."""

    group: str
    lease_id: str | None = None
    found: list[Message] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.found)

    def messages(self) -> Iterator[Message]:
        return iter(self.found)


class RemoteEngine:
    """Push, pop, ack and transaction of servers on one database."""

    def __init__(self, session: aiohttp.ClientSession, urls: Sequence[str]) -> None:
        self._session = session
        self._urls = itertools.cycle(urls)
        self._url = next(self._urls)

    async def push(self, batches: Sequence[Batch]) -> list[Receipt]:
        body = await self._send("POST", "/api/v1/push", {"items": _items(batches)}, expected=201)
        return [_receipt(one) for one in msgspec.json.decode(body, type=list[PushReceipt])]

    async def pop(self, requests: Sequence[PopRequest]) -> list[RemotePopped]:
        return [await self._pop(request) for request in requests]

    async def ack(self, acks: Sequence[Ack]) -> list[AckOutcome]:
        body = {"acknowledgments": [_ack(ack) for ack in acks], "consumerGroup": acks[0].group}
        answers = msgspec.json.decode(await self._send("POST", "/api/v1/ack/batch", body), type=list[AckAnswer])
        return [AckOutcome(index=i, success=one.success, dead=one.dlq) for i, one in enumerate(answers)]

    async def transaction(self, acks: Sequence[Ack], batches: Sequence[Batch]) -> RemoteTransaction:
        operations: list[dict[str, Any]] = [{"type": "ack", **_ack(ack)} for ack in acks]
        operations.append({"type": "push", "items": _items(batches)})
        answer = msgspec.json.decode(await self._send("POST", "/api/v1/transaction", {"operations": operations}))
        if not answer["success"]:
            raise TransactionRolledBack(answer["error"])
        steps = answer["results"]
        outcomes = [AckOutcome(index=i, success=True, dead=step["dlq"]) for i, step in enumerate(steps[: len(acks)])]
        names = [(batch.queue, batch.partition) for batch in batches for _ in range(len(batch.columns))]
        pushed = [
            _pushed(index, step, *name)
            for index, (step, name) in enumerate(zip(steps[len(acks) :], names, strict=True))
        ]
        return RemoteTransaction(outcomes, pushed)

    async def _pop(self, request: PopRequest) -> RemotePopped:
        query = {
            "consumerGroup": request.group,
            "batch": request.batch,
            "partitions": request.partitions,
            "leaseSeconds": request.lease_seconds,
            "wait": "true",
            "timeout": WAIT_MS,
            **({} if request.namespace is None else {"namespace": request.namespace}),
        }
        path = "/api/v1/pop" if request.queue is None else f"/api/v1/pop/queue/{request.queue}"
        body = await self._send("GET", path, query=query)
        if not body:
            return RemotePopped(request.group)
        answer = msgspec.json.decode(body, type=PopAnswer)
        return RemotePopped(request.group, answer.lease_id, [_message(one) for one in answer.messages])

    async def _send(
        self,
        method: str,
        path: str,
        content: object = None,
        *,
        query: dict[str, Any] | None = None,
        expected: int = 200,
    ) -> bytes:
        body = None if content is None else msgspec.json.encode(content)
        params = {name: str(value) for name, value in (query or {}).items()}
        try:
            async with self._session.request(method, self._url + path, data=body, params=params) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            self._url = next(self._urls)
            raise Unavailable(f"no answer: {error!r}") from error
        if response.status == 503:
            self._url = next(self._urls)
            raise Unavailable(answer.decode())
        assert response.status in (expected, 204), answer
        return answer


@dataclass
class RemoteTransaction:
    acks: list[AckOutcome]
    pushed: list[Receipt]


def _items(batches: Sequence[Batch]) -> list[dict[str, Any]]:
    return [item for batch in batches for item in _batch_items(batch)]


def _batch_items(batch: Batch) -> Iterator[dict[str, Any]]:
    transaction_ids = batch.columns.transaction_ids or [None] * len(batch.columns)
    for payload, transaction_id in zip(batch.columns.payloads, transaction_ids, strict=True):
        yield {
            "queue": batch.queue,
            "partition": batch.partition,
            "payload": Raw(payload),
            "transactionId": transaction_id,
        }


def _ack(ack: Ack) -> dict[str, Any]:
    return {"leaseId": ack.lease_id, "partitionId": ack.partition_id, "seq": ack.seq, "status": ack.status}


def _receipt(one: PushReceipt) -> Receipt:
    return Receipt(
        index=one.index,
        status=one.status,
        queue=one.queueName,
        partition=one.partition,
        partition_id=int(one.partition_id),
        seq=one.seq,
        message_id=one.message_id,
        transaction_id=one.transaction_id,
    )


def _pushed(index: int, step: dict[str, Any], queue: str, partition: str) -> Receipt:
    return Receipt(
        index=index,
        status=step["status"],
        queue=queue,
        partition=partition,
        partition_id=int(step["partitionId"]),
        seq=step["seq"],
        message_id=step["messageId"],
        transaction_id=step["transactionId"],
    )


def _message(one: PoppedMessage) -> Message:
    return Message(
        id=one.id,
        queue=one.queue,
        partition=one.partition,
        partition_id=int(one.partition_id),
        seq=one.seq,
        created_at=datetime.fromisoformat(one.created_at),
        payload=bytes(one.data),
        transaction_id=one.transaction_id,
        attempt=one.attempt,
    )


@asynccontextmanager
async def opened(plan: Plan) -> AsyncIterator[Any]:
    """The engine of a client: over servers if its plan names some, else on the database."""
    if not plan.urls:
        async with open_engine(plan.dsn) as engine:
            yield engine
        return
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield RemoteEngine(session, plan.urls)
