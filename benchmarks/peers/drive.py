"""The program that drives one queue through its Python client: pushes messages, or consumes them, and says how fast.

    python -m benchmarks.peers.drive redis setup ADDRESS
    python -m benchmarks.peers.drive redis push ADDRESS '{"seconds": 3, "callers": 10, "batch": 100}'
    python -m benchmarks.peers.drive redis consume ADDRESS

It runs in the environment that has the client, so it imports nothing but that and the standard library. A consumer
prints `ready`, reads how many messages to expect from standard input, and ends when it has acknowledged that many or
when its deadline has passed. Each action ends with one line of JSON. Its times are of the
clock that all processes of the machine share. BENCH_MESSAGES names the file of the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

CONSUME_SECONDS_MAX = 30.0

Take = Callable[[Sequence[Any]], None]
"""Is called with messages that have been acknowledged: their JSON, or what a library has decoded it to."""


class Driver(Protocol):
    """A queue, through the client library that its users use."""

    async def setup(self) -> None:
        """Make the queue. Called once, before anything else opens it."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def push(self, caller: int, bodies: list[bytes], /) -> None:
        """Return when the messages are stored as durably as this queue stores them."""

    async def consume(self, take: Take) -> None:
        """Consume until cancelled, as fast as the library can, and acknowledge."""


class Messages:
    """Those of the file that every driver reads, stamped with the time of their push."""

    def __init__(self) -> None:
        self._texts = Path(os.environ["BENCH_MESSAGES"]).read_text().splitlines()

    def stamped(self, number: int) -> bytes:
        """One that is pushed now."""
        return f'{{"at":{time.time_ns()},{self._texts[number % len(self._texts)][1:]}'.encode()

    def batches(self, size: int) -> Iterator[list[bytes]]:
        """Made beforehand, and used in turn."""
        bodies = [self.stamped(number) for number in range(max(size, len(self._texts)))]
        return itertools.cycle([bodies[start : start + size] for start in range(0, len(bodies) - size + 1, size)])


def pushed_at_ns(message: Any) -> int:
    return int((json.loads(message) if isinstance(message, (bytes, bytearray, str)) else message)["at"])


async def push(driver: Driver, *, seconds: float, callers: int, batch: int, messages_max: int) -> dict[str, Any]:
    """Let callers push batches, each its next as soon as the last one is stored."""
    batches = Messages().batches(batch)
    latencies: list[float] = []
    left = messages_max
    began = time.perf_counter()

    async def calls(caller: int) -> None:
        nonlocal left
        while time.perf_counter() - began < seconds and left >= batch:
            left -= batch
            asked = time.perf_counter()
            await driver.push(caller, next(batches))
            latencies.append(time.perf_counter() - asked)

    await asyncio.gather(*map(calls, range(callers)))
    elapsed = time.perf_counter() - began
    return {
        "messages": len(latencies) * batch,
        "began": began,
        "seconds": elapsed,
        "p50_ms": ms(latencies, 50),
        "p99_ms": ms(latencies, 99),
    }


async def push_at_rate(driver: Driver, *, seconds: float, rate: float) -> dict[str, Any]:
    """Push single messages at a fixed rate, whether or not the earlier ones are stored."""
    messages = Messages()
    pending: set[asyncio.Future[None]] = set()
    began = time.perf_counter()
    count = int(seconds * rate)
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        pending.add(asyncio.ensure_future(driver.push(number % 10, [messages.stamped(number)])))
        if len(pending) > 1000:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*pending)
    return {"messages": count, "seconds": time.perf_counter() - began}


async def consume(driver: Driver, *, timed: bool) -> dict[str, Any]:
    """Count messages until as many have come as standard input says."""
    count = 0
    expected: int | None = None
    last = 0.0
    latencies: list[float] = []
    done = asyncio.Event()

    def take(messages: Sequence[Any]) -> None:
        nonlocal count, last
        last = time.perf_counter()
        count += len(messages)
        if timed:
            now = time.time_ns()
            latencies.extend((now - pushed_at_ns(each)) / 1e9 for each in messages)
        if expected is not None and count >= expected:
            done.set()

    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    if not timed:  # a backlog waits: the clock starts with the consumer
        await loop.run_in_executor(None, sys.stdin.readline)
    began = time.perf_counter()
    consuming = asyncio.ensure_future(driver.consume(take))
    expected = int(await loop.run_in_executor(None, sys.stdin.readline))
    if count >= expected:
        done.set()
    waiting = asyncio.ensure_future(done.wait())
    await asyncio.wait({waiting, consuming}, timeout=CONSUME_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)
    failure = consuming.exception() if consuming.done() and not consuming.cancelled() else None
    if failure is not None:
        raise failure
    for task in (consuming, waiting):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, asyncio.TimeoutError):
            await asyncio.wait_for(task, 5)
    result = {"messages": count, "seconds": last - began if count else 0.0, "last": last}
    if timed:
        result |= {"p50_ms": ms(latencies, 50), "p99_ms": ms(latencies, 99)}
    return result


def ms(seconds: list[float], percent: float) -> float:
    ordered = sorted(seconds) or [0.0]
    return round(1000 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))], 2)


async def run(name: str, action: str, address: str, arguments: dict[str, Any]) -> dict[str, Any]:
    driver: Driver = importlib.import_module(f"benchmarks.peers.drivers.{name}").Driver(
        address, **arguments.pop("driver", {})
    )
    if action == "setup":
        await driver.setup()
        return {}
    await driver.open()
    before = cpu_seconds()  # without what imports cost
    try:
        result = await act(driver, action, arguments)
        return {**result, "cpu_seconds": cpu_seconds() - before}
    finally:
        await driver.close()


async def act(driver: Driver, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if action == "push":
        return await push(driver, **arguments)
    if action == "push-at-rate":
        return await push_at_rate(driver, **arguments)
    return await consume(driver, **arguments)


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    name, action, address, *rest = sys.argv[1:]
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(run(name, action, address, json.loads(rest[0]) if rest else {}))
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
