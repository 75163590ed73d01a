"""Five steps, with and without state, into a Delta table, while everything around them ends again and again.

    intake -> clean -> window -> join -> route -> archive

`window` counts the messages of each minute, `join` brings each message together with the count of its minute. So the
table says of every message that it came once, and was counted once.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable

import lockstep
from lockstep.core.messages import Batch
from lockstep.spark.session import worker_program
from support.chaos_fleet import SOAK, Scale, Server
from support.soak import soak_only
from support.spark_cluster import EXECUTORS_HAVE, running_cluster
from support.spark_programs import PATIENCE_SECONDS, PipelineProgram, SparkProgram
from support.spark_reads import Producer
from support.spark_writes import problems, query

pytestmark = pytest.mark.xdist_group("spark-pipelines")

FILE = """
import json
from pyspark.sql import functions as F
from pyspark.sql.types import StringType
from lockstep.spark import Pipeline, reject

chain = Pipeline("chain")
limits = {"maxMessagesPerTrigger": %(batch)d}
row = "n bigint, at timestamp"

@F.udf(StringType())
def checked(payload):
    if json.loads(payload)["n"] %% 1000 == 7:
        raise ValueError("a seven")
    return payload

@chain.step(source="intake", sink="clean", payload_schema=row, options=limits)
def clean(df):
    return reject(df, "data.n %% 500 = 3", "a three").withColumn("payload", checked("payload"))

@chain.step(source="clean", sink="window", payload_schema=row, options=limits, stateful=True)
def window(df):
    timed = df.withColumn("at", F.col("data.at")).withWatermark("at", "%(delay)d seconds")
    minutes = timed.groupBy(F.window("at", "1 minute"), "partition").count()
    payload = F.to_json(F.struct(F.col("window.start").alias("minute"), "count"))
    return minutes.select("partition", payload.alias("payload"))

@chain.step(
    source={"messages": "clean", "minutes": "window"},
    sink="joined",
    payload_schema={"messages": row, "minutes": "minute timestamp, count bigint"},
    options=limits,
    stateful=True,
)
def join(messages, minutes):
    left = messages.select("partition", "trace_id", "data.n", F.col("data.at").alias("at"))
    right = minutes.select(F.col("partition").alias("of"), F.col("data.minute").alias("minute"), "data.count")
    left = left.withWatermark("at", "%(delay)d seconds")
    right = right.withWatermark("minute", "%(delay)d seconds")
    same = "partition = of and at >= minute and at < minute + interval 1 minute"
    both = left.join(right, F.expr(same))
    return both.select("partition", "trace_id", F.to_json(F.struct("n", "minute", "count")).alias("payload"))

@chain.step(source="joined", sink=["even", "odd"], options=limits)
def route(df):
    return df.withColumn("queue", F.expr("if(cast(substr(partition, 2) as int) %% 2 = 0, 'even', 'odd')"))
"""

PARTITIONS = 8
MESSAGES, MESSAGES_IN_SOAK = 4_000, int(os.environ.get("SOAK_CHAIN_MESSAGES", "1000000"))
"""The number in soak can be set: on a busy machine a million may take hours."""
BATCHES_MIN, BATCH_MAX = 10, 20_000
PAYLOAD = "n BIGINT, minute TIMESTAMP, count BIGINT"
PUSHED_TOGETHER = 50
PAUSE_SECONDS_IN_SOAK = 60
"""Longest wait before a disturbance: a pipeline takes half a minute to be at work again."""
CHAIN_PATIENCE_SECONDS = 4 * PATIENCE_SECONDS
"""Four steps with state and batches of 20,000 may all be at work before the first of them writes."""
POLL_SECONDS = 0.2
START = datetime(2026, 5, 1, tzinfo=UTC)
STEP = timedelta(milliseconds=500)
"""Between two messages of a partition."""
END = START + timedelta(days=1)
"""The time of the message that lets the last minutes end. It stays in the state: its own minute does not end."""
_COUNT = """
select coalesce(sum(r.last_seq - r.first_seq + 1), 0)
from lockstep.run r join lockstep.partition p on p.id = r.partition_id join lockstep.queue q on q.id = p.queue_id
where q.name = any(%s)
"""
_ARCHIVED = """
select coalesce(sum(f.messages), 0)
from lockstep.archive_file f join lockstep.archive_batch b on b.id = f.batch_id
where b.committed_at is not null and f.removed_at is null
"""


class Chain:
    """The pipeline and its archive, and what they are to do."""

    def __init__(self, server: Server, folder: Path, scale: Scale, master: str, variables: dict[str, str]) -> None:
        self.dsn = server.dsn
        self.count = MESSAGES_IN_SOAK if scale is SOAK else MESSAGES
        size = min(self.count // BATCHES_MIN, BATCH_MAX) if scale is SOAK else 1_000
        # What a batch has written of one partition may be read after all that it has written of another one.
        delay = 2 * STEP.total_seconds() * size / PARTITIONS
        self.table = folder / "table"
        on = ["--master", master]
        settings = {} if master.startswith("local") else EXECUTORS_HAVE
        conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        text = FILE % {"batch": size, "delay": delay}
        self.pipeline = PipelineProgram(text, self.dsn, folder, *on, *conf, environment=variables)
        archive = ["job", "archive", "even", "odd", "--to", self.table, "--follow", "--interval", 2, "--dsn", self.dsn]
        archive += ["--format", "delta", "--payload-schema", PAYLOAD, "--master", "local[1]"]
        self.archive = SparkProgram(archive, folder / "archive.log", variables)

    def push(self) -> None:
        """In pieces that are smaller than a batch: a batch takes whole segments."""
        with lockstep.connect(self.dsn) as client:
            for queue in ("intake", "even", "odd"):
                client.configure(queue)
        producer = Producer(self.dsn)
        for first in range(0, self.count // PARTITIONS, PUSHED_TOGETHER):
            producer.pushed(*(self._part(lane, first) for lane in range(PARTITIONS)))
        producer.close()

    def _part(self, lane: int, first: int) -> Batch:
        places = range(first, min(first + PUSHED_TOGETHER, self.count // PARTITIONS))
        payloads = [_payload(lane + place * PARTITIONS, START + place * STEP) for place in places]
        return Batch.of("intake", payloads, partition=f"p{lane}")

    def _push_end(self) -> None:
        """What lets the last minutes end."""
        producer = Producer(self.dsn)
        producer.pushed(Batch.of("intake", [_payload(-1, END)], partition="p0"))
        producer.close()

    @cached_property
    def good(self) -> list[int]:
        return [n for n in range(self.count) if not _is_bad(n)]

    def expected(self) -> list[tuple[int, str, str, datetime, int]]:
        """Of each message its number, queue, partition, minute, and how many messages its partition has in that."""
        found = [(n, n % PARTITIONS, _minute(START + n // PARTITIONS * STEP)) for n in self.good]
        counts = Counter((lane, minute) for _, lane, minute in found)
        queues = ("even", "odd")
        return [(n, queues[lane % 2], f"p{lane}", minute, counts[lane, minute]) for n, lane, minute in found]

    def goes_on(self, before: int) -> int:
        """How far it is, once that is further than before, or all is done."""
        until = time.monotonic() + CHAIN_PATIENCE_SECONDS
        while (found := self.reached()) <= before and not self.is_done():
            assert time.monotonic() < until, f"{self.pipeline.said()[-4000:]}\n{self.archive.said()[-4000:]}"
            time.sleep(POLL_SECONDS)
        return found

    def is_done(self) -> bool:
        return self._number(_ARCHIVED) >= len(self.good)

    def archived(self) -> list[tuple[int, str, str, datetime, int]]:
        rows = DeltaTable(str(self.table)).to_pyarrow_table(columns=["queue", "partition", "data"]).to_pylist()
        return sorted(
            (one["data"]["n"], one["queue"], one["partition"], one["data"]["minute"], one["data"]["count"])
            for one in rows
        )

    def start(self) -> None:
        self.pipeline.start()
        self.archive.start()

    def arrived(self, *queues: str) -> int:
        return self._number(_COUNT, list(queues))

    def reached(self) -> int:
        """How far all of it is."""
        if self.arrived("clean") >= len(self.good) and self.arrived("intake") == self.count:
            # Not before: messages that come after it would be too late.
            self._push_end()
        return self.arrived("clean", "window", "joined", "even", "odd") + self._number(_ARCHIVED)

    def _number(self, statement: str, *arguments: object) -> int:
        self.pipeline.check_alive()
        self.archive.check_alive()
        try:
            [(count,)] = query(self.dsn, statement, *arguments)
        except psycopg.OperationalError:  # it is restarting
            return 0
        return int(count)

    def end(self) -> None:
        self.pipeline.end()
        self.archive.end()

    def close(self) -> None:
        self.pipeline.close()
        self.archive.close()


def _is_bad(n: int) -> bool:
    return n % 1000 == 7 or n % 500 == 3


def _payload(n: int, at: datetime) -> bytes:
    return b'{"n":%d,"at":"%s"}' % (n, at.isoformat().encode())


def _minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)


def _kill_an_executor() -> None:
    """The worker that it belongs to starts another one."""
    found = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal() and _is_our_executor(one)]
    if found:
        os.kill(random.choice(found), signal.SIGKILL)


def _is_our_executor(process: Path) -> bool:
    try:
        words = (process / "cmdline").read_bytes()
        ours = f"PYTEST_OF={os.getpid()}\0".encode() in (process / "environ").read_bytes()
    except OSError:
        return False
    return ours and b"CoarseGrainedExecutorBackend" in words


@pytest.fixture(params=["local[2]", pytest.param("cluster", marks=soak_only)])
def chain(request: pytest.FixtureRequest, server: Server, folder: Path, scale: Scale) -> Iterator[Chain]:
    variables = {"PYSPARK_PYTHON": worker_program(folder), "PYTEST_OF": str(os.getpid()), "SPARK_LOCAL_IP": "127.0.0.1"}
    is_cluster = request.param == "cluster"
    with running_cluster(folder, variables) if is_cluster else nullcontext(request.param) as master:
        made = Chain(server, folder, scale, master, variables)
        yield made
        made.close()


def test_every_message_of_a_chain_is_accounted_for(
    server: Server, chain: Chain, scale: Scale, request: pytest.FixtureRequest
) -> None:
    began = time.monotonic()
    chain.push()
    disturbances = [
        server.kill_everything,
        chain.pipeline.end_and_start,
        chain.pipeline.kill_and_start,
        chain.archive.kill_and_start,
    ]
    if request.node.callspec.params["chain"] == "cluster":
        disturbances.append(_kill_an_executor)
    chain.start()
    count, disturbed, reached = len(chain.good), 0, 0
    for disturb in _in_turn(disturbances, again=scale is SOAK):
        # Until there is some progress: what is disturbed is at work.
        reached = chain.goes_on(reached)
        if chain.is_done():
            break
        time.sleep(random.uniform(0, PAUSE_SECONDS_IN_SOAK if scale is SOAK else scale.delay_seconds_max))
        disturb()
        disturbed += 1
    while not chain.is_done():
        reached = chain.goes_on(reached)
    chain.end()
    seconds = time.monotonic() - began
    print(f"{chain.count} messages, {disturbed} disturbances, {seconds:.0f} s")
    assert chain.archived() == chain.expected()
    bad = chain.count - count
    assert query(server.dsn, "select count(*) from lockstep.dead_letter") == [(bad,)]
    steps = {
        name: counts for name, *counts in query(server.dsn, "select step, pushed, rejected from lockstep.pipeline_step")
    }
    minutes = len({(partition, minute) for _, _, partition, minute, _ in chain.expected()})
    assert steps == {"clean": [count + 1, bad], "window": [minutes, 0], "join": [count, 0], "route": [count, 0]}
    assert problems(server.dsn) == []


def _in_turn(disturbances: Sequence[Callable[[], None]], *, again: bool) -> Iterator[Callable[[], None]]:
    """Each once, and then, if asked for, any of them for ever."""
    yield from random.sample(disturbances, len(disturbances))
    while again:
        yield random.choice(disturbances)
