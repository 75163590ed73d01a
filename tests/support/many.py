"""A queue with very many partitions, written as pushes and pops would have left it, in seconds."""

from __future__ import annotations

import psycopg

from support.costs import FLUSH
from support.databases import run_apart
from support.sessions import Stage

GROUPS = 5

# Two messages per partition. Of the groups two have done nothing, one all, one half, and one holds leases.
_FILL = """
with made as (
    insert into lockstep.partition (queue_id, name, created_at)
    select q.id, 'p' || n, clock_timestamp()
    from lockstep.queue q, generate_series(1, %(partitions)s) n where q.name = 'q'
    returning id, queue_id
), segments as (
    insert into lockstep.segment (
        queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, payloads
    )
    select m.queue_id, lockstep.segment_uuid(), clock_timestamp(), 0, 2 * count(*), array_agg(m.id order by m.id),
           array_agg(1::bigint order by m.id), array_agg(2 order by m.id),
           array_agg('{}'::bytea) || array_agg('{}'::bytea)
    from made m group by m.queue_id, m.id / 1000
    returning id, partition_ids
), cursors as (
    insert into lockstep.cursor (partition_id, group_id, acked, due_at, lease_id, lease_to, leased_at)
    select m.id, g.id, case g.name when 'g1' then 2 when 'g2' then 1 else 0 end,
           case g.name when 'g1' then null when 'g3' then clock_timestamp() + interval '1 day'
                       else clock_timestamp() end,
           case g.name when 'g3' then gen_random_uuid() end, case g.name when 'g3' then 2 end,
           case g.name when 'g3' then clock_timestamp() end
    from made m join lockstep.consumer_group g on g.queue_id = m.queue_id
)
insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
select t.id, 1, 2, s.id, 2 * (t.o - 1)
from segments s cross join lateral unnest(s.partition_ids) with ordinality t (id, o)
"""


def fill(dsn: str, partitions: int) -> None:
    async def begin() -> None:
        async with Stage(dsn) as stage:
            store = (await stage.actor()).store
            await store.database.fetch("queue", "select lockstep.create_queue('q', null, null, clock_timestamp())")

    run_apart(begin)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into lockstep.consumer_group (queue_id, name, created_at, begun_at, mode) "
            "select q.id, 'g' || n, clock_timestamp(), clock_timestamp(), 'ordered' "
            "from lockstep.queue q, generate_series(0, %s) n where q.name = 'q'",
            (GROUPS - 1,),
        )
        connection.execute(_FILL, {"partitions": partitions})
        connection.execute("vacuum analyze")
        connection.execute(FLUSH)  # or it would count as soon as this session has ended
