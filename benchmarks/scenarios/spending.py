"""Where the time of a push goes: one caller, one push after the other, each part timed as it runs.

The bare insert is the floor: one row with the same packed body in a table with nothing but an id. What the
database call takes more than that is the price of numbering, runs, manifest and checks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import count
from typing import Any
from unittest.mock import patch

from benchmarks.harness import CALLERS, Outcome, Table
from benchmarks.messages import Messages, transaction_ids
from benchmarks.scenarios.push import create_partitions, spread
from benchmarks.scenarios.setting import PREPARED_CALLS, QUEUE, Setting
from benchmarks.servers import connection, opened_engine
from lockstep import Batch, Engine
from lockstep.core import codec, layouts
from lockstep.core.messages import Columns
from lockstep.engine import engine as engine_module
from lockstep.storage.postgres.push import conversation

_CREATE_BARE = (
    "create table bare (id bigserial primary key, body bytea); alter table bare alter body set storage external"
)
_INSERT_BARE = "insert into bare (body) values ($1)"
_WARM_UP = 8
_PARTS = ("check", "encode", "compress", "database")


class Stopwatch:
    """Seconds by part."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def on_query(self, _name: str, seconds: float, _error: BaseException | None) -> None:
        self.seconds["database"] += seconds

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[part] += time.perf_counter() - began

        return run

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Time the real functions, in the places from which a push calls them."""
        with (
            patch.object(engine_module, "check_push", self.timed("check", engine_module.check_push)),
            patch.object(conversation, "encode", self.timed("encode", conversation.encode)),
            patch.object(conversation, "seal", self.timed("compress", conversation.seal)),
        ):
            yield


async def spending(setting: Setting) -> Outcome:
    stopwatch = Stopwatch()
    messages = setting.messages
    async with (
        setting.server.database() as dsn,
        opened_engine(dsn, pool_connections_max=CALLERS, on_query=stopwatch.on_query) as engine,
        connection(dsn) as bare,
    ):
        await create_partitions(engine, messages)
        await bare.execute("analyze")
        await bare.execute(_CREATE_BARE)
        insert = (await bare.prepare(_INSERT_BARE)).fetch
        with stopwatch.watching():
            rows = [
                await _split(name, calls, engine, insert, stopwatch, setting.seconds)
                for name, calls in _cases(messages).items()
            ]
    return Outcome([Table("Where a push spends its time, one caller, µs per push", rows)])


def _cases(messages: Messages) -> dict[str, list[list[Batch]]]:
    """Pushes by what they are like."""

    def one(size: int) -> list[Batch]:
        return [Batch.of(QUEUE, messages.batch(size), partition="p1")]

    def deduplicated() -> list[Batch]:
        ids: list[str | None] = list(transaction_ids(1000))
        return [Batch.of(QUEUE, messages.batch(1000), partition="p1", transaction_ids=ids)]

    numbers = count()

    def to_new_partitions() -> list[Batch]:
        return [Batch.of(QUEUE, [p], partition=f"new{next(numbers)}") for p in messages.batch(1000)]

    makers: dict[str, Callable[[], list[Batch]]] = {
        "batch 1000, 1 partition": lambda: one(1000),
        "batch 1000, 1000 partitions": lambda: spread(messages.batch(1000), 1000, QUEUE),
        "batch 1000, 1000 new partitions": to_new_partitions,
        "batch 1000, 1 partition, transaction ids": deduplicated,
        "batch 100, 1 partition": lambda: one(100),
        "batch 10, 1 partition": lambda: one(10),
        "batch 1, 1 partition": lambda: one(1),
    }
    return {name: [make() for _ in range(PREPARED_CALLS)] for name, make in makers.items()}


async def _split(
    name: str,
    calls: list[list[Batch]],
    engine: Engine,
    insert: Callable[..., Any],
    stopwatch: Stopwatch,
    seconds: float,
) -> dict[str, Any]:
    """Push the calls, each once at most, for about that long; a bare insert of the same body follows each."""
    for call in calls[:_WARM_UP]:
        await engine.push(call)
        await insert(_body(call))
    stopwatch.seconds.clear()
    total = floor = 0.0
    done = 0
    deadline = time.perf_counter() + seconds
    for call in calls[_WARM_UP:]:
        body = _body(call)
        began = time.perf_counter()
        await engine.push(call)
        pushed = time.perf_counter()
        await insert(body)
        ended = time.perf_counter()
        total += pushed - began
        floor += ended - pushed
        done += 1
        if done >= _WARM_UP and ended > deadline:
            break
    parts = {part: stopwatch.seconds[part] for part in _PARTS}
    parts["rest"] = total - sum(parts.values())
    spent = {"total": total, **parts, "bare insert": floor}
    return {"name": name, "pushes": done, **{k: round(1e6 * v / done, 1) for k, v in spent.items()}}


def _body(call: list[Batch]) -> bytes:
    return layouts.pack(codec.encode(Columns([p for batch in call for p in batch.columns.payloads])))
