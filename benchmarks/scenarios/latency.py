"""How long a pop takes among few and among very many partitions.

Each has a database of its own, so that few partitions really are small tables and indexes; the pops alternate
between the two. Partitions, runs and cursors are written straight into the tables: a million pushes would take
longer than all the rest.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.harness import Bar, Outcome, Table, percentile, progress
from benchmarks.messages import Messages
from benchmarks.scenarios.setting import QUEUE, Setting
from benchmarks.servers import connection, opened_engine
from lockstep import Ack, Batch, Engine, PopRequest

FEW = 1_000
EACH = 10
"""Messages that a partition holds, all of them in one segment that every partition shares."""
CLAIMED = 10
"""Partitions that a pop claims."""
GROUPS = ("in-order-1", "in-order-2", "scattered")
"""The cursors of the last one became due in an order that has nothing to do with where they are stored."""
_POPS_PER_GROUP = FEW // CLAIMED

_INSERT_PARTITIONS = """
insert into lockstep.partition (queue_id, name, created_at)
select $1, 'p' || i, now() from generate_series(2, $2::int) i
"""
_INSERT_RUNS = """
insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
select p.id, r.first_seq, r.last_seq, r.segment_id, r.ordinal
from lockstep.run r, lockstep.partition p
where r.partition_id = $1 and p.queue_id = $2 and p.id <> $1
order by p.id
"""
_INSERT_CURSORS = """
insert into lockstep.cursor (partition_id, group_id, due_at)
select p.id, g.id, case g.name when 'scattered' then now() - random() * interval '1 h' else clock_timestamp() end
from lockstep.partition p, lockstep.consumer_group g
where p.queue_id = $2 and g.queue_id = $2 and p.id <> $1
order by p.id, g.id
"""


async def fill(dsn: str, engine: Engine, messages: Messages, partitions: int) -> None:
    """A queue of so many partitions with something to pop in each of them, for every group."""
    pushed = await engine.push([Batch.of(QUEUE, messages.batch(EACH), partition="p1")])
    first = pushed[0].partition_id
    for group in GROUPS:
        await engine.subscribe(QUEUE, group)
    queue_id = (await engine.queue(QUEUE)).id
    async with connection(dsn) as direct:
        await direct.execute(_INSERT_PARTITIONS, queue_id, partitions)
        # Without knowing how many there are by now, the planner joins them one by one.
        await direct.execute("analyze lockstep.partition")
        await direct.execute(_INSERT_RUNS, first, queue_id)
        await direct.execute(_INSERT_CURSORS, first, queue_id)
        await direct.execute("vacuum analyze")


@dataclass(slots=True)
class _Timed:
    """Pops by one caller, timed."""

    name: str
    engine: Engine
    seconds: list[float] = field(default_factory=list)

    async def pop_and_ack(self, group: str) -> None:
        request = PopRequest(queue=QUEUE, group=group, partitions=CLAIMED, batch=CLAIMED * EACH)
        began = time.perf_counter()
        [popped] = await self.engine.pop([request])
        self.seconds.append(time.perf_counter() - began)
        if len(popped) != CLAIMED * EACH:
            raise RuntimeError(f"{self.name}: a pop delivered {len(popped)} messages")
        await self.engine.ack([Ack(lease_id=popped.lease_id)])

    def row(self) -> dict[str, Any]:
        milliseconds = [1000 * each for each in self.seconds]
        return {
            "name": self.name,
            "pops": len(milliseconds),
            "p50_ms": round(median(milliseconds), 3),
            "p99_ms": round(percentile(milliseconds, 99), 3),
        }


async def pop_latency(setting: Setting) -> Outcome:
    many = setting.partitions_many
    async with (
        setting.server.database() as small,
        setting.server.database() as large,
        opened_engine(small) as among_few,
        opened_engine(large) as among_many,
    ):
        progress(f"  making {FEW:,} and {many:,} partitions …")
        await fill(small, among_few, setting.messages, FEW)
        await fill(large, among_many, setting.messages, many)
        await setting.server.checkpoint()
        progress("  popping …")
        timed = await _alternate(among_few, among_many, many)
    rows = [each.row() for each in timed]
    ratio = median(timed[1].seconds) / median(timed[0].seconds)
    bar = Bar.at_most(f"pop p50 among {many:,} partitions: times that among {FEW:,}", ratio, 1.5)
    return Outcome([Table(f"Latency of a pop of {CLAIMED} partitions, one caller", rows)], [bar])


async def _alternate(among_few: Engine, among_many: Engine, many: int) -> list[_Timed]:
    """Exactly as many pops as the small queue has partitions for."""
    timed = []
    for groups, order in ((GROUPS[:2], "due as stored"), (GROUPS[2:], "due scattered")):
        pair = [
            _Timed(f"among {count:,} partitions, {order}", engine)
            for count, engine in ((FEW, among_few), (many, among_many))
        ]
        for group in groups:
            for _ in range(_POPS_PER_GROUP):
                for each in pair:
                    await each.pop_and_ack(group)
        timed += pair
    return timed
