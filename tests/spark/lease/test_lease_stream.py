"""Lease mode: a stream among the consumers of a group, which is killed, restarted, robbed and refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import tuple_row

from lockstep.config import Config
from lockstep.core.messages import Batch
from lockstep.errors import CheckpointMismatch, Conflict, InvalidOption, LeaseLost, QueueNotFound, SparkStreamNotFound
from lockstep.spark import claims
from lockstep.spark.lease.lease_stream import LeasedReader, LeaseStream
from lockstep.spark.lease.leases import StreamLeases
from lockstep.spark.options import ReadOptions
from lockstep.storage.postgres.cache import NameCache
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.push.conversation import push_now
from lockstep.storage.postgres.within import converse
from support.clock import SetClock
from support.spark_writes import committed, numbered, numbers, problems, query, staged, wait_for_waiter

IN_FLIGHT = "select from_seq, to_seq from lockstep.delivery where group_id > 0"

_SCHEMA = pa.schema([("partition", pa.string()), ("seq", pa.int64()), ("payload", pa.string())])


class Streams:
    """Processes of a driver, one after the other, on one database and one clock."""

    def __init__(self, dsn: str, clock: SetClock) -> None:
        self.dsn = dsn
        self.clock = clock
        self._made: list[LeaseStream] = []

    def options(self, **given: str) -> ReadOptions:
        told = {"dsn": self.dsn, "queue": "orders", "mode": "lease", "group": "spark", "streamName": "s", **given}
        return ReadOptions.of(told)

    def start(self, **given: str) -> LeaseStream:
        """Another process; those before it were killed."""
        query(
            self.dsn,
            "select pg_terminate_backend(a.pid, 10000) from pg_stat_activity a "
            "where a.application_name = 'lockstep-spark' and a.datname = current_database()",
        )
        stream = LeaseStream(self.options(**given), clock=self.clock)
        self._made.append(stream)
        return stream

    def close(self) -> None:
        for stream in reversed(self._made):
            stream.close()

    def push(self, count: int, *, start: int = 1, partition: str = "p0", queue: str = "orders") -> None:
        payloads = [b'{"n":%d}' % number for number in range(start, start + count)]
        with psycopg.connect(self.dsn) as connection:
            batches = [Batch.of(queue, payloads, partition=partition)]
            converse(connection, push_now(batches, NameCache(10), encryption=Encryption(), at=self.clock()))

    def read(self, stream: LeaseStream, start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, list[int]]:
        """What the tasks of a batch read: seqs by partition."""
        found: dict[str, list[int]] = {}
        for task in stream.plan(start, end):
            for batch in LeasedReader.of(self.options(), _SCHEMA, task).read(task.segments):
                for row in batch.to_pylist():
                    found.setdefault(row["partition"], []).append(row["seq"])
        return {name: sorted(seqs) for name, seqs in found.items()}

    def place(self) -> None:
        """Make the cursors that groups lack, as each pop of the engine does."""
        query(
            self.dsn, "select lockstep.place_slice(g.id, null, 1000, %s) from lockstep.consumer_group g", self.clock()
        )

    def pop(self, count: int = 100, *, group: str = "spark", ack: bool = True) -> dict[str, list[int]]:
        """What an ordinary consumer of the group gets now; seqs by partition."""
        self.place()
        with psycopg.connect(self.dsn, autocommit=True, row_factory=tuple_row) as connection:
            rows = connection.execute(
                "select p.partition_name, p.first_seq, p.last_seq, p.lease_id from lockstep.consumer_group g "
                "cross join lateral lockstep.pop(array[0], array[g.id], array[null::bigint], array[100], array[%s], "
                "array[null::bigint], array[gen_random_uuid()], array[false], %s) p where g.name = %s",
                [count, self.clock(), group],
            ).fetchall()
            if ack and rows:
                connection.execute("select lockstep.ack_leases(%s, %s)", [[row[3] for row in rows], self.clock()])
        return {row[0]: list(range(row[1], row[2] + 1)) for row in rows}

    def acked(self) -> dict[str, int]:
        rows = query(
            self.dsn,
            "select p.name, c.acked from lockstep.cursor c join lockstep.partition p on p.id = c.partition_id "
            "join lockstep.consumer_group g on g.id = c.group_id where g.name = 'spark'",
        )
        return dict(rows)

    def attempts(self) -> dict[str, int]:
        rows = query(
            self.dsn,
            "select p.name, c.attempts from lockstep.cursor c join lockstep.partition p on p.id = c.partition_id "
            "join lockstep.consumer_group g on g.id = c.group_id where g.name = 'spark'",
        )
        return dict(rows)


@pytest.fixture
def streams(database_dsn: str, clock: SetClock) -> Iterator[Streams]:
    made = Streams(database_dsn, clock)
    yield made
    made.close()
    assert not problems(database_dsn)


def _latest(stream: LeaseStream, start: Mapping[str, Any], messages_max: int | None = None) -> dict[str, Any]:
    return stream.latest(start, messages_max=messages_max).as_json()


def test_batch_has_what_is_leased_and_acks_it(streams: Streams) -> None:
    streams.push(3)
    streams.push(2, partition="p1")
    stream = streams.start()
    start = stream.initial().as_json()
    end = _latest(stream, start)
    assert streams.read(stream, start, end) == {"p0": [1, 2, 3], "p1": [1, 2]}
    assert streams.pop() == {}, "it is under a lease"
    assert streams.acked() == {"p0": 0, "p1": 0}
    stream.commit(end)
    assert streams.acked() == {"p0": 3, "p1": 2}
    assert _latest(stream, end) == end


def test_asking_for_the_next_batch_acks_the_last(streams: Streams) -> None:
    # As in a run that ends by itself, whose last batch Spark never commits at the source.
    streams.push(3)
    stream = streams.start()
    stream.stop_at_now()
    streams.push(3, start=4)
    start = stream.initial().as_json()
    end = _latest(stream, start)
    assert streams.read(stream, start, end) == {"p0": [1, 2, 3]}
    assert _latest(stream, end) == end, "what came later is left for later"
    assert streams.acked() == {"p0": 3}


def test_limit_cuts_the_batch(streams: Streams) -> None:
    streams.push(10)
    stream = streams.start()
    offset = stream.initial().as_json()
    seen = []
    for _ in range(3):
        end = _latest(stream, offset, messages_max=4)
        seen += streams.read(stream, offset, end)["p0"]
        offset = end
    assert seen == list(range(1, 11))


def test_option_limits_the_batch(streams: Streams) -> None:
    streams.push(10)
    stream = streams.start(maxMessagesPerTrigger="3")
    start = stream.initial().as_json()
    assert streams.read(stream, start, _latest(stream, start)) == {"p0": [1, 2, 3]}


def test_several_queues_are_leased_together(streams: Streams) -> None:
    streams.push(2)
    streams.push(3, queue="more", partition="m")
    stream = streams.start(queue="orders,more")
    start = stream.initial().as_json()
    end = _latest(stream, start)
    assert streams.read(stream, start, end) == {"p0": [1, 2], "m": [1, 2, 3]}
    stream.commit(end)
    assert streams.acked() == {"p0": 2, "m": 3}


def test_stream_and_consumer_share_the_group(streams: Streams) -> None:
    streams.push(2)
    streams.push(2, partition="p1")
    stream = streams.start()
    start = stream.initial().as_json()
    taken = streams.pop(2)
    end = _latest(stream, start)
    both = {**taken, **streams.read(stream, start, end)}
    assert both == {"p0": [1, 2], "p1": [1, 2]}
    assert not set(taken) & set(streams.read(stream, start, end))


def test_batch_that_is_planned_twice_is_the_same(streams: Streams) -> None:
    streams.push(3)
    stream = streams.start()
    start = stream.initial().as_json()
    end = _latest(stream, start)
    assert streams.read(stream, start, end) == streams.read(stream, start, end) == {"p0": [1, 2, 3]}
    assert streams.attempts() == {"p0": 0}


def test_removed_messages_are_left_out(streams: Streams) -> None:
    streams.push(5)
    stream = streams.start()
    start = stream.initial().as_json()
    end = _latest(stream, start)
    query(streams.dsn, "select lockstep.remove(id, 2, 3) from lockstep.partition")
    assert streams.read(stream, start, end) == {"p0": [1, 4, 5]}
    stream.commit(end)


def test_restart_before_the_batch_was_planned_takes_it_up(streams: Streams) -> None:
    streams.push(3)
    first = streams.start()
    start = first.initial().as_json()
    end = _latest(first, start)
    second = streams.start()
    assert _latest(second, start) == end
    assert streams.read(second, start, end) == {"p0": [1, 2, 3]}
    assert streams.attempts() == {"p0": 0}, "nobody has tried it yet"


def test_restart_in_mid_batch_runs_it_again_and_charges_an_attempt(streams: Streams) -> None:
    streams.push(3)
    first = streams.start()
    start = first.initial().as_json()
    end = _latest(first, start)
    streams.read(first, start, end)
    second = streams.start()
    # Spark does not keep where the first batch began, but asks for it again.
    assert second.initial().as_json() == start
    assert streams.read(second, start, end) == {"p0": [1, 2, 3]}
    assert streams.attempts() == {"p0": 1}
    second.commit(end)
    assert streams.acked() == {"p0": 3}


def test_restart_after_the_lease_ran_out(streams: Streams) -> None:
    streams.push(3)
    first = streams.start()
    start = first.initial().as_json()
    end = _latest(first, start)
    streams.read(first, start, end)
    streams.clock.advance(1000)
    second = streams.start()
    assert streams.read(second, start, end) == {"p0": [1, 2, 3]}
    second.commit(end)
    assert streams.acked() == {"p0": 3}


def test_restart_leaves_out_what_another_consumer_has_done(streams: Streams) -> None:
    streams.push(3)
    streams.push(2, partition="p1")
    first = streams.start()
    start = first.initial().as_json()
    end = _latest(first, start)
    streams.read(first, start, end)
    streams.clock.advance(1000)
    streams.pop(1)
    streams.clock.advance(1000)
    second = streams.start()
    found = streams.read(second, start, end)
    assert sorted([len(found["p0"]), len(found["p1"])]) in ([1, 3], [2, 2])
    second.commit(end)
    assert streams.acked() == {"p0": 3, "p1": 2}


def test_restart_leaves_out_what_another_consumer_holds(streams: Streams) -> None:
    streams.push(3)
    first = streams.start()
    start = first.initial().as_json()
    end = _latest(first, start)
    streams.read(first, start, end)
    streams.clock.advance(1000)
    assert streams.pop(ack=False) == {"p0": [1, 2, 3]}
    second = streams.start()
    assert streams.read(second, start, end) == {}
    second.commit(end)
    assert streams.acked() == {"p0": 0}, "it is the other's to ack"


def test_restart_after_the_batch_was_done_acks_it(streams: Streams) -> None:
    # Spark's log has the batch, and nobody has acked it; by now the lease has run out.
    streams.push(3)
    first = streams.start()
    start = first.initial().as_json()
    end = _latest(first, start)
    streams.read(first, start, end)
    streams.clock.advance(1000)
    second = streams.start()
    assert _latest(second, end) == end
    assert streams.acked() == {"p0": 3}
    assert streams.attempts() == {"p0": 0}


def test_first_process_has_lost_its_lease_to_the_second(streams: Streams) -> None:
    streams.push(3)
    first = streams.start()
    start = first.initial().as_json()
    end = _latest(first, start)
    streams.read(first, start, end)
    [[old]] = query(streams.dsn, "select lease_id from lockstep.cursor")
    second = streams.start()
    streams.read(second, start, end)
    [[new]] = query(streams.dsn, "select lease_id from lockstep.cursor")
    assert old != new


def test_batch_that_fails_again_and_again_dies_head_first(streams: Streams) -> None:
    streams.push(3)
    streams.start().initial()
    query(streams.dsn, "update lockstep.queue set retry_limit = 1")
    start = streams.start().initial().as_json()
    end = None
    for tries in range(1, 4):
        stream = streams.start()
        end = end or _latest(stream, start)
        found = streams.read(stream, start, end)
        assert found == {"p0": [1, 2, 3] if tries < 3 else [2, 3]}
    dead = query(streams.dsn, "select seq, attempts, error from lockstep.dead_letter")
    assert dead == [(1, 2, "the Spark batch that had it did not finish")]


def _bury_at_once(streams: Streams) -> None:
    query(
        streams.dsn,
        "update lockstep.queue q set retry_limit = 0, dead_queue_id = d.id from lockstep.queue d "
        "where q.name = 'orders' and d.name = 'dead'",
    )


def test_what_dies_goes_to_the_dead_queue(streams: Streams) -> None:
    streams.push(2)
    streams.push(1, queue="dead", partition="x")
    _bury_at_once(streams)
    first = streams.start()
    start = first.initial().as_json()
    end = _latest(first, start)
    streams.read(first, start, end)
    second = streams.start()
    assert streams.read(second, start, end) == {"p0": [2]}
    assert numbers(streams.dsn, "dead") == {"p0": [1], "x": [1]}


def test_pop_that_buries_what_ran_out_forwards_it(streams: Streams) -> None:
    streams.push(2)
    streams.push(1, queue="dead", partition="x")
    streams.start().initial()
    _bury_at_once(streams)
    streams.pop(ack=False)
    streams.clock.advance(1000)
    stream = streams.start()
    start = stream.initial().as_json()
    assert streams.read(stream, start, _latest(stream, start)) == {"p0": [2]}
    assert numbers(streams.dsn, "dead")["p0"] == [1]


def test_stop_lets_go_of_what_was_not_planned(streams: Streams) -> None:
    streams.push(3)
    stream = streams.start()
    _latest(stream, stream.initial().as_json())
    stream.close()
    assert streams.pop() == {"p0": [1, 2, 3]}
    assert streams.attempts() == {"p0": 0}


def test_leases_are_renewed(streams: Streams) -> None:
    streams.push(1)
    stream = streams.start()
    start = stream.initial().as_json()
    end = _latest(stream, start)
    streams.read(stream, start, end)
    with psycopg.connect(streams.dsn, autocommit=True) as connection:
        leases = StreamLeases(connection, "s", Config(), clock=streams.clock)
        streams.clock.advance(200)
        assert leases.renew() == 1
        streams.clock.advance(200)
        assert streams.pop() == {}
        stream.commit(end)
        assert leases.renew() == 0


def _shared(streams: Streams) -> None:
    query(streams.dsn, "update lockstep.queue set group_mode = 'shared'")


def _pop_shared(streams: Streams, count: int) -> list[Any]:
    streams.place()
    return query(
        streams.dsn,
        "select p.first_seq, p.last_seq from lockstep.consumer_group g cross join lateral lockstep.shared_pop("
        "array[0], array[g.id], array[null::bigint], array[100], array[%s], array[null::bigint], "
        "array['01900000-0000-8000-8000-000000000001'::uuid], array[false], %s) p where g.name = 'spark'",
        count,
        streams.clock(),
    )


def test_shared_group_shares_a_partition(streams: Streams) -> None:
    streams.push(10)
    _shared(streams)
    stream = streams.start()
    start = stream.initial().as_json()
    assert _pop_shared(streams, 4) == [(1, 4)]
    end = _latest(stream, start)
    assert streams.read(stream, start, end) == {"p0": [5, 6, 7, 8, 9, 10]}
    stream.commit(end)
    assert query(streams.dsn, IN_FLIGHT) == [(1, 4)]


def _attempts(streams: Streams, stream: LeaseStream, start: Mapping[str, Any], end: Mapping[str, Any]) -> Any:
    """By seq."""
    schema = pa.schema([("seq", pa.int64()), ("attempt", pa.int32())])
    found = [
        batch.to_pylist()
        for task in stream.plan(start, end)
        for batch in LeasedReader.of(streams.options(), schema, task).read(task.segments)
    ]
    return {row["seq"]: row["attempt"] for rows in found for row in rows}


@pytest.mark.parametrize("shared", [False, True])
def test_column_says_which_delivery_it_is(streams: Streams, shared: bool) -> None:
    streams.push(2)
    if shared:
        _shared(streams)
    stream = streams.start(columns="seq,attempt")
    start = stream.initial().as_json()
    end = _latest(stream, start)
    assert _attempts(streams, stream, start, end) == {1: 1, 2: 1}
    again = streams.start(columns="seq,attempt")
    assert again.initial().as_json() == start
    assert _attempts(streams, again, start, end) == {1: 2, 2: 2}
    streams.push(2, start=3)
    later = _latest(again, end)
    assert _attempts(streams, again, end, later) == {3: 1, 4: 1}


@pytest.mark.parametrize("seconds", [0, 1000])
def test_shared_group_after_a_restart(streams: Streams, seconds: int) -> None:
    streams.push(10)
    _shared(streams)
    first = streams.start()
    start = first.initial().as_json()
    end = _latest(first, start)
    streams.read(first, start, end)
    streams.clock.advance(seconds)
    if seconds:
        assert _pop_shared(streams, 4) == [(1, 4)]
    second = streams.start()
    assert streams.read(second, start, end) == {"p0": [5, 6, 7, 8, 9, 10] if seconds else list(range(1, 11))}
    second.commit(end)
    assert query(streams.dsn, IN_FLIGHT) == ([(1, 4)] if seconds else [])


def _write(streams: Streams, count: int, *, batch_id: int) -> Callable[[], object]:
    part = staged(streams.dsn, numbered(count), queue="sink", batch_id=batch_id, commitStream="s")
    return lambda: committed(streams.dsn, part, batch_id=batch_id, queue="sink", commitStream="s")


@pytest.fixture
def real_streams(database_dsn: str) -> Iterator[Streams]:
    """On the database's own clock, as the sink is."""

    class RealClock(SetClock):
        def __call__(self) -> Any:
            return None

    made = Streams(database_dsn, RealClock())
    yield made
    made.close()
    assert not problems(database_dsn)


def test_sink_acks_in_its_own_transaction(real_streams: Streams) -> None:
    streams = real_streams
    streams.push(3)
    stream = streams.start()
    start = stream.initial().as_json()
    end = _latest(stream, start)
    streams.read(stream, start, end)
    commit = _write(streams, 3, batch_id=0)
    commit()
    assert streams.acked() == {"p0": 3}
    commit()
    # A restart that does not know of the commit: there is nothing to read, and nothing is written again.
    again = streams.start()
    assert streams.read(again, start, end) == {}
    assert numbers(streams.dsn, "sink") == {"p0": [1, 2, 3]}


def test_stale_lease_fails_the_sinks_commit(real_streams: Streams) -> None:
    streams = real_streams
    streams.push(3)
    streams.push(3, partition="p1")
    stream = streams.start()
    start = stream.initial().as_json()
    end = _latest(stream, start)
    streams.read(stream, start, end)
    commit = _write(streams, 6, batch_id=0)
    query(streams.dsn, "update lockstep.cursor set due_at = now() - interval '1 s' where partition_id = 1")
    streams.pop()
    with pytest.raises(LeaseLost, match="stream 's' has lost its lease on orders/p0"):
        commit()
    assert numbers(streams.dsn, "sink") == {}
    assert streams.acked() == {"p0": 3, "p1": 0}
    again = streams.start()
    assert streams.read(again, start, end) == {"p1": [1, 2, 3]}, "only what is still ours"
    _write(streams, 3, batch_id=0)()
    assert streams.acked() == {"p0": 3, "p1": 3}
    assert numbers(streams.dsn, "sink") == {"p0": [1, 2, 3]}


def test_sink_that_names_a_stream_of_another_database(database_dsn: str) -> None:
    part = staged(database_dsn, numbered(1), commitStream="none")
    with pytest.raises(SparkStreamNotFound, match="commitStream names 'none', of which this database knows nothing"):
        committed(database_dsn, part, commitStream="none")


def test_second_query_is_refused_while_the_first_runs(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_PATIENCE", "set local lock_timeout = '1ms'")
    streams.push(1)
    first = streams.start()
    start = first.initial().as_json()
    second = LeaseStream(streams.options(), clock=streams.clock)
    with pytest.raises(Conflict, match="the option streamName is 's', which another query that runs now has, too"):
        second.initial()
    second.close()
    assert streams.read(first, start, _latest(first, start)) == {"p0": [1]}
    first.close()
    assert second.initial().ordinal == 0, "what the first has begun is taken up"
    second.close()


def test_two_queries_cannot_have_one_stream(streams: Streams) -> None:
    streams.push(1)
    streams.push(1, partition="p1")
    stream = streams.start()
    start = stream.initial().as_json()
    streams.place()
    with psycopg.connect(streams.dsn) as other, ThreadPoolExecutor(1) as pool:
        other.execute(
            "select lockstep.spark_lease('s', 0, g.id, 1, 1, null, gen_random_uuid(), %s) "
            "from lockstep.consumer_group g",
            [streams.clock()],
        )
        waiting = pool.submit(stream.latest, start, messages_max=None)
        wait_for_waiter(streams.dsn, "spark_lease")
        other.commit()
        with pytest.raises(Conflict, match="the stream 's' is read by another query, too"):
            waiting.result(timeout=60)
    assert len(streams.pop()) == 1, "the second has leased nothing"


def test_checkpoint_of_another_database_or_stream(streams: Streams) -> None:
    streams.push(1)
    stream = streams.start()
    start = stream.initial().as_json()
    with pytest.raises(CheckpointMismatch, match="belongs to another database"):
        stream.latest({**start, "system": "1/1"}, messages_max=None)
    with pytest.raises(CheckpointMismatch, match="is of stream 'other', and not of 's'"):
        stream.latest({**start, "stream": "other"}, messages_max=None)
    with pytest.raises(CheckpointMismatch, match="not one of Lockstep's lease mode"):
        stream.latest({"base": "1:1:"}, messages_max=None)


def test_queue_that_is_not_there(streams: Streams) -> None:
    with pytest.raises(QueueNotFound, match="there is no queue 'orders'"):
        streams.start().initial()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"partitions": "a"}, "option partitions is for mode snapshot"),
        ({"traceId": "01900000-0000-7000-8000-000000000001"}, "option traceId is for mode snapshot"),
        ({"minMessagesPerTrigger": "5"}, "option minMessagesPerTrigger is for mode snapshot"),
        ({"maxBytesPerTrigger": "5m"}, "option maxBytesPerTrigger is for mode snapshot"),
    ],
)
def test_options_that_a_group_cannot_have(streams: Streams, given: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        LeaseStream(streams.options(**given))


def test_stream_needs_a_name(streams: Streams) -> None:
    told = {"dsn": streams.dsn, "queue": "orders", "mode": "lease", "group": "spark"}
    with pytest.raises(InvalidOption, match="mode lease needs the option streamName"):
        LeaseStream(ReadOptions.of(told))


@pytest.mark.parametrize(("position", "found"), [("earliest", [1, 2, 3]), ("latest", [3]), ("1999-01-01", [1, 2, 3])])
def test_new_group_begins_where_it_is_told(streams: Streams, position: str, found: list[int]) -> None:
    streams.push(2)
    streams.clock.advance(1)
    stream = streams.start(startingPosition=position)
    start = stream.initial().as_json()
    streams.clock.advance(1)
    streams.push(1, start=3)
    assert streams.read(stream, start, _latest(stream, start)) == {"p0": found}
