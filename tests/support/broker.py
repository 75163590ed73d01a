"""A server as a simple asyncio client sees it: one request at a time, as many as a test needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

import aiohttp

Json = dict[str, Any]

TIMEOUT_SECONDS = 60
LONG_MS = 60_000
"""The wait of a poll that must be ended by something else."""


class Broker:
    """Requests to one server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Broker:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(self.url, timeout=timeout, connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def send(self, method: str, path: str, *, body: Any = None, **query: object) -> tuple[int, Any]:
        """The status, and the JSON of the answer if there is any."""
        assert self._session is not None
        params = {name: str(value) for name, value in query.items()}
        async with self._session.request(method, path, json=body, params=params) as response:
            return response.status, (await response.json() if response.status != 204 else None)

    async def configure(self, queue: str, **options: object) -> None:
        status, answer = await self.send("POST", "/api/v1/configure", body={"queue": queue, "options": options})
        assert status == 200, answer

    async def push(self, items: list[Json]) -> list[Json]:
        status, receipts = await self.send("POST", "/api/v1/push", body={"items": items})
        assert status == 201, receipts
        return list(receipts)

    async def push_to(self, queue: str, *payloads: object, partition: str = "Default") -> list[Json]:
        return await self.push([{"queue": queue, "partition": partition, "payload": payload} for payload in payloads])

    async def pop(self, queue: str, **query: object) -> Json | None:
        """None when there is nothing."""
        status, answer = await self.send("GET", f"/api/v1/pop/queue/{queue}", **query)
        assert status in (200, 204), answer
        return answer if status == 200 else None

    def poll(self, queue: str, **query: object) -> asyncio.Task[Json | None]:
        """A pop that waits until another call ends its wait."""
        return asyncio.create_task(self.pop(queue, wait="true", timeout=LONG_MS, **query))

    async def ack(self, messages: list[Json], status: str = "completed") -> list[Json]:
        named = ("transactionId", "partitionId", "leaseId")
        acks = [{**{name: message[name] for name in named}, "status": status} for message in messages]
        body = {"acknowledgments": acks, "consumerGroup": messages[0]["consumerGroup"]}
        code, results = await self.send("POST", "/api/v1/ack/batch", body=body)
        assert code == 200, results
        return list(results)

    async def worker(self) -> Json:
        """The counts of the answering process."""
        _, answer = await self.send("GET", "/api/v1/analytics/worker-metrics")
        return dict(answer["workers"][0])

    async def wait_for(self, holds: Callable[[Json], bool]) -> None:
        """Return when the condition holds for the counts of the answering process."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not holds(await self.worker()):  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.005)

    async def wait_for_polls(self, count: int) -> None:
        """Return when this many polls wait in the answering process."""
        await self.wait_for(lambda worker: worker["pollsWaiting"] == count)


def data(popped: Json | None) -> list[Any]:
    """The payloads of what was popped."""
    return [] if popped is None else [message["data"] for message in popped["messages"]]
