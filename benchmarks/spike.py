"""Pushes at a fixed rate, whatever the server makes of it, in a process of its own; prints what came of them as JSON.

    python -m benchmarks.spike URL REQUESTS_PER_SECOND SECONDS MESSAGES PARTITIONS CONNECTIONS TIMEOUT_SECONDS

Requests are due at fixed times, each on a connection that is free. One that finds none waits for it, and its latency
counts from when it was due: a server that answers slowly cannot slow down the questions. A rate of 0 asks as fast as
the connections allow.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import uvloop

from benchmarks.harness import percentile
from benchmarks.http_client import Connection, request
from benchmarks.messages import Messages

QUEUE = "bench.spike"
_BODIES = 200


@dataclass(slots=True)
class Spike:
    url: str
    rate: float
    seconds: float
    messages: int
    partitions: int
    connections: int
    timeout_seconds: float
    answers: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    """Of those that were answered, from when they were due."""
    asked: list[float] = field(default_factory=list)
    """The same, from when they were sent: what the generator itself is late is not in it."""

    async def run(self) -> dict[str, object]:
        bodies = _bodies(self.messages, self.partitions)
        due: asyncio.Queue[float] = asyncio.Queue()
        opened = [await Connection.to(self.url) for _ in range(self.connections)]
        began = time.perf_counter()
        workers = [
            asyncio.create_task(self._work(due, bodies, number, connection, began + self.seconds))
            for number, connection in enumerate(opened)
        ]
        if self.rate:
            await self._tick(due, began)
            await asyncio.wait_for(due.join(), self.seconds + self.timeout_seconds + 30)
            for worker in workers:
                worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        return self._told(time.perf_counter() - began)

    async def _tick(self, due: asyncio.Queue[float], began: float) -> None:
        asked = 0
        while (now := time.perf_counter() - began) < self.seconds:
            while asked < now * self.rate:
                due.put_nowait(began + asked / self.rate)
                asked += 1
            await asyncio.sleep(0.001)

    async def _work(
        self, due: asyncio.Queue[float], bodies: list[bytes], number: int, connection: Connection, until: float
    ) -> None:
        index = number
        while self.rate or time.perf_counter() < until:
            at = await due.get() if self.rate else time.perf_counter()
            try:
                sent = time.perf_counter()
                async with asyncio.timeout(at + self.timeout_seconds - sent):
                    status, _ = await connection.ask(bodies[index % len(bodies)])
                self.answers[str(status)] += 1
                self.latencies.append(time.perf_counter() - at)
                self.asked.append(time.perf_counter() - sent)
            except TimeoutError:
                self.answers["timeout"] += 1
                connection.close()
                connection = await Connection.to(self.url)
            except ConnectionError:
                self.answers["lost"] += 1
                connection = await Connection.to(self.url)
            finally:
                if self.rate:
                    due.task_done()
            index += self.connections

    def _told(self, seconds: float) -> dict[str, object]:
        return {
            "answers": dict(self.answers),
            "seconds": seconds,
            "p50_ms": 1000 * percentile(self.latencies, 50) if self.latencies else None,
            "p99_ms": 1000 * percentile(self.latencies, 99) if self.latencies else None,
            "asked_p99_ms": 1000 * percentile(self.asked, 99) if self.asked else None,
        }


def _bodies(messages: int, partitions: int) -> list[bytes]:
    """Made beforehand, because the generator has to be many times faster than the server."""
    made, source = [], Messages(5_000)
    for number in range(_BODIES):
        items = [
            b'{"queue":"%s","partition":"p%d","payload":%s}'
            % (QUEUE.encode(), (number * messages + index) % partitions, payload)
            for index, payload in enumerate(source.batch(messages))
        ]
        made.append(request("POST", "/api/v1/push?queued=true", b'{"items":[' + b",".join(items) + b"]}"))
    return made


def main() -> None:
    url, rate, seconds, messages, partitions, connections, timeout = sys.argv[1:]
    spike = Spike(url, float(rate), float(seconds), int(messages), int(partitions), int(connections), float(timeout))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(spike.run())), flush=True)


if __name__ == "__main__":
    main()
