"""Random cases of stateful steps. Each is a function that works on streams as on all of the messages at once.

Messages come out of order within a bound that the watermark allows for, so that none is late, however they fall into
batches. A last message from far in the future closes all windows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lockstep.core.messages import Batch, Columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from lockstep.spark import Pipeline

SCHEMA = "id bigint, at timestamp, v bigint, tag string"
LAST = "last"
"""The partition of the last message; what comes of it is not compared."""

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_STEP_SECONDS = 30
_DISORDER_SECONDS = 300
_DELAY = "301 seconds"


@dataclass(frozen=True)
class Case:
    """A stateful step with random messages; all of it follows from the seed."""

    seed: int
    messages: int

    @cached_property
    def _random(self) -> random.Random:
        return random.Random(self.seed)

    @property
    def kind(self) -> str:
        return list(KINDS)[self.seed % len(KINDS)]

    @property
    def name(self) -> str:
        return f"case{self.seed}"

    @property
    def sources(self) -> tuple[str, ...]:
        sides = ("left", "right") if self.kind in ("inner_join", "outer_join") else ("only",)
        return tuple(f"{self.name}_{side}" for side in sides)

    @property
    def sink(self) -> str:
        return f"{self.name}_results"

    @property
    def output_mode(self) -> str:
        return {"totals": "update", "table": "complete"}.get(self.kind, "append")

    @property
    def of_keys(self) -> bool:
        """Whether the last result of each partition counts."""
        return self.output_mode != "append"

    def function(self) -> Callable[..., DataFrame]:
        return KINDS[self.kind](random.Random(self.seed + 1))

    def add_to(self, pipeline: Pipeline) -> None:
        chance = random.Random(self.seed + 2)
        names = {queue.rpartition("_")[2]: queue for queue in self.sources}
        pipeline.step(
            source=names if len(names) > 1 else self.sources[0],
            sink=self.sink,
            name=self.name,
            payload_schema=SCHEMA,
            stateful=True,
            output_mode=self.output_mode,  # type: ignore[arg-type]
            state_partitions=chance.randint(1, 3),
            options={"maxMessagesPerTrigger": max(self.messages // chance.randint(4, 12), 2)},
        )(self.function())

    def pushes(self) -> Iterator[Batch]:
        """What is pushed, in this order. Some messages are bad."""
        chance = random.Random(self.seed + 3)
        n = 0
        while n < self.messages:
            source = chance.choice(self.sources)
            count = chance.randint(1, 6)
            yield Batch(source, f"k{chance.randint(1, 4)}", Columns([_payload(chance, n + i) for i in range(count)]))
            n += count
        for source in self.sources:
            late = {"id": -1, "at": (_BEGIN + timedelta(days=60)).isoformat(), "v": 0, "tag": LAST}
            yield Batch(source, LAST, Columns([json.dumps(late).encode()]))

    def bad(self) -> int:
        """How many messages do not fit the schema."""
        return sum(b"not a number" in payload for push in self.pushes() for payload in push.columns.payloads)


def _payload(chance: random.Random, n: int) -> bytes:
    at = _BEGIN + timedelta(seconds=n * _STEP_SECONDS - chance.randint(0, _DISORDER_SECONDS))
    message: Mapping[str, Any] = {"id": n, "at": at.isoformat(), "v": chance.randint(-9, 9), "tag": f"t{n // 4}"}
    if chance.random() < 0.05:
        message = {**message, "v": "not a number"}
    return json.dumps(message).encode()


def _timed(df: DataFrame) -> DataFrame:
    return df.select("partition", "data.*").withWatermark("at", _DELAY)


def _result(df: DataFrame, *columns: str | Column) -> DataFrame:
    from pyspark.sql import functions as sf

    return df.select("partition", sf.to_json(sf.struct(*columns)).alias("payload"))


def _aggregates() -> list[Column]:
    from pyspark.sql import functions as sf

    return [sf.count("*").alias("n"), sf.sum("v").alias("sum"), sf.max("id").alias("max")]


def _tumbling(chance: random.Random) -> Callable[[DataFrame], DataFrame]:
    width = chance.choice(["5 minutes", "17 minutes", "1 hour"])

    def step(df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as sf

        grouped = _timed(df).groupBy(sf.window("at", width), "partition").agg(*_aggregates())
        return _result(grouped, "window", "n", "sum", "max")

    return step


def _sliding(chance: random.Random) -> Callable[[DataFrame], DataFrame]:
    width, slide = chance.choice([("10 minutes", "5 minutes"), ("1 hour", "20 minutes")])

    def step(df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as sf

        grouped = _timed(df).groupBy(sf.window("at", width, slide), "partition").agg(*_aggregates())
        return _result(grouped, "window", "n", "sum", "max")

    return step


def _session(chance: random.Random) -> Callable[[DataFrame], DataFrame]:
    gap = chance.choice(["2 minutes", "5 minutes"])

    def step(df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as sf

        grouped = _timed(df).groupBy(sf.session_window("at", gap).alias("window"), "partition").agg(*_aggregates())
        return _result(grouped, "window", "n", "sum", "max")

    return step


def _distinct(_: random.Random) -> Callable[[DataFrame], DataFrame]:
    def step(df: DataFrame) -> DataFrame:
        return _result(df.select("partition", "data.*").dropDuplicates(["partition", "tag"]), "tag")

    return step


def _distinct_within(_: random.Random) -> Callable[[DataFrame], DataFrame]:
    def step(df: DataFrame) -> DataFrame:
        if not df.isStreaming:  # Spark knows it for streams only
            return _result(df.select("partition", "data.*").dropDuplicates(["partition", "tag"]), "tag")
        return _result(_timed(df).dropDuplicatesWithinWatermark(["partition", "tag"]), "tag")

    return step


def _distinct_hours(_: random.Random) -> Callable[[DataFrame], DataFrame]:
    """Two operators with state, one after the other."""

    def step(df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as sf

        once = _timed(df).dropDuplicates(["partition", "id", "at"])
        return _result(
            once.groupBy(sf.window("at", "30 minutes"), "partition").agg(*_aggregates()), "window", "n", "sum"
        )

    return step


def _joined(kind: str) -> Callable[[random.Random], Callable[..., DataFrame]]:
    def made(chance: random.Random) -> Callable[..., DataFrame]:
        minutes = chance.choice([2, 10, 30])

        def step(left: DataFrame, right: DataFrame) -> DataFrame:
            from pyspark.sql import functions as sf

            ours = _timed(left)
            theirs = _timed(right).selectExpr(
                "partition as their_partition", "at as their_at", "id as their_id", "v as w"
            )
            soon = f"their_at between at - interval {minutes} minutes and at + interval {minutes} minutes"
            matched = ours.join(theirs, sf.expr(f"partition = their_partition and {soon}"), kind)
            return _result(matched, "id", "v", "their_id", "w")

        return step

    return made


def _totals(_: random.Random) -> Callable[[DataFrame], DataFrame]:
    def step(df: DataFrame) -> DataFrame:
        return _result(df.select("partition", "data.*").groupBy("partition").agg(*_aggregates()), "n", "sum", "max")

    return step


def _thirds(_: random.Random) -> Callable[[DataFrame], DataFrame]:
    """State of its own: every third message of a partition is told."""

    def step(df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as sf

        if not df.isStreaming:
            counted = df.groupBy("partition").count()
            return _result(
                counted.select("partition", sf.expr("explode(sequence(0, count, 3))").alias("n")).where("n > 0"), "n"
            )
        told = df.groupBy("partition").transformWithState(
            statefulProcessor=_thirds_processor(),
            outputStructType="partition string, n bigint",
            outputMode="Append",
            timeMode="None",
        )
        return _result(told, "n")

    return step


def _thirds_processor() -> Any:
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Thirds(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "n bigint")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: ARG002, N802, N803
            n = self.count.get()[0] if self.count.exists() else 0
            for _ in rows:
                n += 1
                if n % 3 == 0:
                    yield Row(partition=key[0], n=n)
            self.count.update((n,))

        def close(self) -> None:
            pass

    return Thirds()


KINDS: Mapping[str, Callable[[random.Random], Callable[..., Any]]] = {
    "tumbling": _tumbling,
    "distinct": _distinct,
    "inner_join": _joined("inner"),
    "totals": _totals,
    "sliding": _sliding,
    "distinct_within": _distinct_within,
    "outer_join": _joined("left_outer"),
    "table": _totals,
    "session": _session,
    "distinct_hours": _distinct_hours,
    "thirds": _thirds,
}
"""What a case does, by the remainder of its seed."""


def results(rows: Sequence[tuple[str, Any]], *, of_keys: bool) -> list[str]:
    """Results as text, in an order of their own; of results by key, the last one."""
    compared = [(partition, json.dumps(payload, sort_keys=True)) for partition, payload in rows if partition != LAST]
    if of_keys:
        compared = list(dict(compared).items())
    return sorted(f"{partition} {payload}" for partition, payload in compared)
