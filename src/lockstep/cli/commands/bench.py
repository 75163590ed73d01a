"""`lockstep bench`: a short benchmark of a server or a store.

The load comes from threads of one process, which share one core for Python code: the result is the throughput of one
such client, not the maximum of the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from uuid import uuid4

import click
import msgspec

from lockstep.cli.arguments import Seconds
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import ProgressBar
from lockstep.client import Client, Delivery
from lockstep.core.messages import Batch

_WAIT_SECONDS = 0.5
_COLUMNS = ("verb", "messages", "calls", "seconds", "messages_per_second", "p50_ms", "p99_ms")


class Measured(msgspec.Struct, frozen=True):
    """Measurements of one verb."""

    verb: str
    messages: int
    calls: int
    seconds: float
    messages_per_second: int
    p50_ms: float
    """Per call."""
    p99_ms: float


class BenchLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The user's choices."""

    messages: int
    batch: int
    connections: int
    partitions: int
    payload_bytes: int
    seconds: float


@click.command()
@on_session()
@click.option(
    "--messages", "-n", type=click.IntRange(min=1), default=20_000, show_default=True, help="Fewest messages."
)
@click.option("--batch", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Messages of a call.")
@click.option("--connections", "-c", type=click.IntRange(1, 200), default=4, show_default=True, help="Calls at a time.")
@click.option("--partitions", type=click.IntRange(1, 1000), default=10, show_default=True, help="Over which they go.")
@click.option("--payload-bytes", type=click.IntRange(2, 1024**2), default=256, show_default=True, help="Of each.")
@click.option(
    "--seconds", type=Seconds(0.1, 86_400), default=10.0, show_default=True, help="Each verb ends after this."
)
def bench(session: Session, **load: int | float) -> None:
    """Measure push, pop and ack.

    Pushes messages to a temporary queue, pops and acknowledges them, and removes the queue. Prints messages per second,
    and the 50th and 99th percentile of the duration of calls.
    """
    asked = msgspec.convert(load, BenchLoad)
    connections = {"client_connections_max": asked.connections, "pool_connections_max": asked.connections}
    with session.client(begins=True, **connections) as client, _queue(client) as queue:
        pushed = _run("push", asked, asked.messages, _pushes(client, queue, asked))
        popped = _run("pop and ack", asked, pushed.messages, _pops(client, queue, asked))
        session.output.rows([pushed, popped], _COLUMNS)


@contextmanager
def _queue(client: Client) -> Iterator[str]:
    """A queue that exists within the context."""
    name = f"lockstep-bench-{uuid4().hex[:12]}"
    client.configure(name)
    try:
        yield name
    finally:
        client.delete_queue(name)


Call = Callable[[], int]
"""One call; returns the number of messages."""


def _pushes(client: Client, queue: str, load: BenchLoad) -> Call:
    payloads = [b'"' + b"x" * (load.payload_bytes - 2) + b'"'] * load.batch
    numbers = count()

    def call() -> int:
        partition = str(next(numbers) % load.partitions)
        return len(client.push_many([Batch.of(queue, payloads, partition=partition)]))

    return call


def _pops(client: Client, queue: str, load: BenchLoad) -> Call:
    """Each thread continues from its previous pop, as consumers do."""
    held = threading.local()

    def call() -> int:
        before: Delivery | None = getattr(held, "delivery", None)
        if not before:
            before = client.pop(queue, batch=load.batch, wait=True, timeout_seconds=_WAIT_SECONDS)
        held.delivery = before.next() if before else None
        return len(before)

    return call


def _run(verb: str, load: BenchLoad, messages: int, call: Call) -> Measured:
    """Repeat the call on all connections until the number of messages is reached, or the time is up."""
    with ProgressBar(verb, messages) as shown:
        work = BenchWork(call, messages, load.seconds, shown.advance)
        with ThreadPoolExecutor(load.connections) as threads:
            try:
                for thread in [threads.submit(work.loop) for _ in range(load.connections)]:
                    thread.result()
            finally:
                work.stop()
    return work.measured(verb)


class BenchWork:
    """The remaining work, and the duration of the calls."""

    def __init__(self, call: Call, messages: int, seconds: float, progress: Callable[[int], None]) -> None:
        self._call = call
        self._messages = messages
        self._began = self._moved_at = time.perf_counter()
        self._until = self._began + seconds
        self._progress = progress
        self._lock = threading.Lock()
        self._moved = 0
        self._durations: list[float] = []

    def stop(self) -> None:
        self._until = 0.0

    def loop(self) -> None:
        while self._moved < self._messages and time.perf_counter() < self._until:
            began = time.perf_counter()
            moved = self._call()
            ended = time.perf_counter()
            with self._lock:
                self._moved += moved
                if moved:
                    self._moved_at = max(self._moved_at, ended)
                    self._durations.append(ended - began)
                    self._progress(moved)

    def measured(self, verb: str) -> Measured:
        # Up to the last message: pops that found nothing after that have only waited.
        seconds = self._moved_at - self._began
        ordered = sorted(self._durations) or [0.0]
        return Measured(
            verb=verb,
            messages=self._moved,
            calls=len(self._durations),
            seconds=round(seconds, 3),
            messages_per_second=round(self._moved / seconds) if seconds else 0,
            p50_ms=round(_quantile(ordered, 0.5) * 1000, 2),
            p99_ms=round(_quantile(ordered, 0.99) * 1000, 2),
        )


def _quantile(ordered: list[float], part: float) -> float:
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]
