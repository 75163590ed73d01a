"""Pushes at a fixed rate, whatever the server makes of it, in a process of its own; prints what came of them as JSON.

    python -m benchmarks.spike URL REQUESTS_PER_SECOND SECONDS MESSAGES PARTITIONS CONNECTIONS TIMEOUT_SECONDS

Requests are due at fixed times, each on a connection that is free. One that finds none waits for it, and its latency
counts from when it was due: a server that answers slowly cannot slow down the questions. A rate of 0 asks as fast as
the connections allow. Whatever becomes of a request is an answer: a status, `timeout`, `lost` with its connection, or
`refused` because there was none to be had.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import uvloop

from benchmarks.harness import percentile
from benchmarks.http_client import Connection, request
from benchmarks.messages import Messages

QUEUE = "bench.spike"
_BODIES = 200
_RECONNECT_SECONDS = 0.05


GRACE_SECONDS = 5.0
"""For what should have ended by then."""


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
        lines = [_Line(self.url) for _ in range(self.connections)]
        for line in lines:
            await line.open()
        began, cpu = time.perf_counter(), time.process_time()
        workers = [
            asyncio.create_task(self._work(due, bodies, number, line, began + self.seconds))
            for number, line in enumerate(lines)
        ]
        if self.rate:
            await self._tick(due, began)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.timeout_seconds + GRACE_SECONDS):
                    await due.join()
            unanswered = round(self.rate * self.seconds) - sum(self.answers.values())
            if unanswered:
                self.answers["unanswered"] = unanswered
            for worker in workers:
                worker.cancel()
        for ended in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        told = self._told(time.perf_counter() - began, time.process_time() - cpu)
        for line in lines:
            line.close()
        return told

    async def _tick(self, due: asyncio.Queue[float], began: float) -> None:
        asked, wanted = 0, round(self.rate * self.seconds)
        while asked < wanted:
            while asked < min((time.perf_counter() - began) * self.rate, wanted):
                due.put_nowait(began + asked / self.rate)
                asked += 1
            await asyncio.sleep(0.001)

    async def _work(
        self, due: asyncio.Queue[float], bodies: list[bytes], number: int, line: _Line, until: float
    ) -> None:
        index = number
        while self.rate or time.perf_counter() < until:
            at = await due.get() if self.rate else time.perf_counter()
            sent = time.perf_counter()
            answer = await line.ask(bodies[index % len(bodies)], at + self.timeout_seconds - sent)
            self.answers[answer] += 1
            if answer.isdigit():
                self.latencies.append(time.perf_counter() - at)
                self.asked.append(time.perf_counter() - sent)
            if self.rate:
                due.task_done()
            index += self.connections

    def _told(self, seconds: float, cpu_seconds: float) -> dict[str, object]:
        return {
            "answers": dict(self.answers),
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "p50_ms": 1000 * percentile(self.latencies, 50) if self.latencies else None,
            "p99_ms": 1000 * percentile(self.latencies, 99) if self.latencies else None,
            "asked_p99_ms": 1000 * percentile(self.asked, 99) if self.asked else None,
        }


class _Line:
    """A connection that is made again when it is lost. A server that takes none is no reason to give up."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None

    async def open(self) -> None:
        with suppress(OSError):
            async with asyncio.timeout(GRACE_SECONDS):
                self._connection = await Connection.to(self._url)

    async def ask(self, body: bytes, seconds: float) -> str:
        """The status, or what happened in its place."""
        answer = "refused"
        try:
            async with asyncio.timeout(seconds):
                if self._connection is None:
                    self._connection = await Connection.to(self._url)
                answer = "lost"
                status, _ = await self._connection.ask(body)
                if self._connection.is_last:
                    self.close()
                return str(status)
        except TimeoutError:
            answer = "timeout"
        except (OSError, RuntimeError):  # uvloop raises the latter for a connection that was closed meanwhile
            # Of a server that refuses, the next one would ask again at once.
            await asyncio.sleep(_RECONNECT_SECONDS)
        self.close()
        return answer

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


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
    gc.disable()  # it ends soon, and must not be late itself
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(spike.run())), flush=True)


if __name__ == "__main__":
    main()
