"""A pipeline that runs while its database, and it itself, end again and again: every message is accounted for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
import pytest

import lockstep
from lockstep.core.messages import Batch
from support.chaos_fleet import SOAK, Scale, Server
from support.spark_programs import PATIENCE_SECONDS, PipelineProgram
from support.spark_reads import Producer
from support.spark_writes import numbers, problems, query
from support.until import wait_until

pytestmark = pytest.mark.xdist_group("spark-pipelines")

FILE = """
import json
from pyspark.sql import functions as F
from pyspark.sql.types import StringType
from lockstep.spark import Pipeline, reject

orders = Pipeline("orders")

@F.udf(StringType())
def checked(payload):
    if json.loads(payload)["n"] %% 1000 == 7:
        raise ValueError("a seven")
    return payload

@orders.step(source="intake", sink="middle", options={"maxMessagesPerTrigger": %(batch)d})
def first(df):
    return reject(df, "seq %% 500 = 3", "a three").withColumn("payload", checked("payload"))

@orders.step(source="middle", sink="done", options={"maxMessagesPerTrigger": %(batch)d})
def second(df):
    return df
"""

PARTITIONS = 8
MESSAGES, MESSAGES_IN_SOAK = 8_000, 1_000_000
_COUNT = """
select coalesce(sum(r.last_seq - r.first_seq + 1), 0)
from lockstep.run r join lockstep.partition p on p.id = r.partition_id join lockstep.queue q on q.id = p.queue_id
where q.name = %s
"""
_STEPS = "select step, pushed, rejected from lockstep.pipeline_step order by step"


@pytest.fixture
def program(server: Server, folder: Path, scale: Scale) -> Iterator[PipelineProgram]:
    text = FILE % {"batch": 20_000 if scale is SOAK else 1_000}
    made = PipelineProgram(text, server.dsn, folder)
    yield made
    made.close()


def test_every_message_is_accounted_for(server: Server, program: PipelineProgram, scale: Scale) -> None:
    count = MESSAGES_IN_SOAK if scale is SOAK else MESSAGES
    _push(server.dsn, count)
    good = [n for n in range(count) if not _is_bad(n, count)]
    disturbances = [server.kill_everything, program.end_and_start, program.kill_and_start]
    program.start()
    done = 0
    for disturb in _in_turn(disturbances, again=scale is SOAK):
        # Until there is some progress: what is disturbed is at work.
        wait_until(lambda before=done: _arrived(program) > min(before, len(good) - 1), seconds=PATIENCE_SECONDS)
        done = _arrived(program)
        if done == len(good):
            break
        time.sleep(random.uniform(0, scale.delay_seconds_max))
        disturb()
    wait_until(lambda: _arrived(program) >= len(good), seconds=PATIENCE_SECONDS)
    program.end()
    expected = {f"p{lane}": [n for n in _lane(lane, count) if not _is_bad(n, count)] for lane in range(PARTITIONS)}
    assert numbers(server.dsn, "done") == expected
    bad = count - len(good)
    assert query(server.dsn, "select count(*) from lockstep.dead_letter") == [(bad,)]
    assert query(server.dsn, _STEPS) == [("first", count - bad, bad), ("second", count - bad, 0)]
    assert problems(server.dsn) == []


def _in_turn(disturbances: Sequence[Callable[[], None]], *, again: bool) -> Iterator[Callable[[], None]]:
    """Each once, and then, if asked for, any of them for ever."""
    yield from random.sample(disturbances, len(disturbances))
    while again:
        yield random.choice(disturbances)


def _lane(lane: int, count: int) -> range:
    return range(lane * count // PARTITIONS, (lane + 1) * count // PARTITIONS)


def _is_bad(n: int, count: int) -> bool:
    seq = n % (count // PARTITIONS) + 1
    return n % 1000 == 7 or seq % 500 == 3


def _push(dsn: str, count: int) -> None:
    """In pieces that are smaller than a batch: a batch takes whole segments."""
    with lockstep.connect(dsn) as client:
        client.configure("intake")
    producer = Producer(dsn)
    lanes = [_lane(lane, count) for lane in range(PARTITIONS)]
    for first in range(0, len(lanes[0]), 50):
        parts = [lane[first : first + 50] for lane in lanes]
        producer.pushed(
            *(
                Batch.of("intake", [b'{"n":%d}' % n for n in part], partition=f"p{lane}")
                for lane, part in enumerate(parts)
            )
        )
    producer.close()


def _arrived(program: PipelineProgram) -> int:
    program.check_alive()
    try:
        [(count,)] = query(program.dsn, _COUNT, "done")
    except psycopg.OperationalError:  # it is restarting
        return 0
    return int(count)
