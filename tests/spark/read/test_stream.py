"""Streams without Spark: nothing missing, nothing twice, nothing out of order, whatever the writers do."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from lockstep.errors import CheckpointMismatch, DataLost, InvalidOption, QueueNotFound, Unavailable
from lockstep.spark.read.stream import QUIET_SECONDS
from support.builders import batch
from support.databases import Databases
from support.spark_reads import Producer, Query, assert_in_order, numbers_of


@pytest.fixture
def producers(database_dsn: str) -> Iterator[Callable[[], Producer]]:
    made: list[Producer] = []

    def make() -> Producer:
        made.append(Producer(database_dsn))
        return made[-1]

    yield make
    for producer in made:
        producer.close()


@pytest.fixture
def queries(database_dsn: str) -> Iterator[Callable[..., Query]]:
    made: list[Query] = []

    def make(queue: str = "orders", **options: Any) -> Query:
        made.append(Query(database_dsn, queue=queue, **options))
        return made[-1]

    yield make
    for query in made:
        query.close()


Producers = Callable[[], Producer]
Queries = Callable[..., Query]


def test_reads_what_comes_batch_by_batch(producers: Producers, queries: Queries) -> None:
    producer, query = producers(), queries()
    producer.pushed(batch("orders", 3))
    assert numbers_of(query.step() or []) == [1, 2, 3]
    assert query.step() is None
    producer.pushed(batch("orders", 2, start=4))
    producer.pushed(batch("orders", 2, start=6))
    assert numbers_of(query.step() or []) == [4, 5, 6, 7]
    assert query.step() is None


def test_transaction_held_open_holds_up_nobody_and_is_not_missed(producers: Producers, queries: Queries) -> None:
    slow, fast, query = producers(), producers(), queries()
    fast.pushed(batch("orders", 1, partition="a"))
    slow.push(batch("orders", 1, partition="slow", start=100))
    fast.pushed(batch("orders", 2, partition="a", start=2))
    assert numbers_of(query.drain()) == [1, 2, 3]
    fast.pushed(batch("orders", 1, partition="a", start=4))
    assert numbers_of(query.drain()) == [4]
    slow.commit()
    assert numbers_of(query.drain()) == [100]
    assert query.step() is None


def test_rolled_back_transaction_is_never_seen(producers: Producers, queries: Queries) -> None:
    slow, fast, query = producers(), producers(), queries()
    fast.pushed(batch("orders", 1))
    slow.push(batch("orders", 1, partition="slow", start=100))
    assert numbers_of(query.drain()) == [1]
    slow.rollback()
    fast.pushed(batch("orders", 1, start=2))
    assert numbers_of(query.drain()) == [2]


def test_early_transaction_that_pushes_late_keeps_the_order(producers: Producers, queries: Queries) -> None:
    """Its number is lower than that of the message before its own."""
    early, late, query = producers(), producers(), queries()
    late.pushed(batch("orders", 1))
    early.connection.execute("select pg_current_xact_id()")
    late.pushed(batch("orders", 1, start=2))
    early.push(batch("orders", 1, start=3))
    late_number = query.step()
    early.commit()
    assert numbers_of(late_number or []) == [1, 2]
    assert numbers_of(query.drain()) == [3]


def test_limit_cuts_between_segments_and_keeps_the_order(producers: Producers, queries: Queries) -> None:
    early, late, query = producers(), producers(), queries(maxMessagesPerTrigger=2)
    late.pushed(batch("orders", 1, partition="other", start=1000))
    early.connection.execute("select pg_current_xact_id()")
    late.pushed(batch("orders", 2))
    early.pushed(batch("orders", 2, start=3))
    late.pushed(batch("orders", 2, start=5))
    rows = query.drain()
    assert assert_in_order(rows) == {("orders", "Default"): 6, ("orders", "other"): 1}
    assert [len(found) for found in query.batches] == [1, 2, 2, 2]


def test_segment_over_the_limit_is_read_alone(producers: Producers, queries: Queries) -> None:
    producer, query = producers(), queries(maxMessagesPerTrigger=3)
    for count in (10, 1, 1, 5):
        producer.pushed(batch("orders", count))
    query.drain()
    assert [len(found) for found in query.batches] == [10, 2, 5]


def test_bytes_limit(producers: Producers, queries: Queries) -> None:
    producer, query = producers(), queries(maxBytesPerTrigger="1k")
    for _ in range(5):
        producer.pushed(batch("orders", 20))
    query.drain()
    assert sum(map(len, query.batches)) == 100
    assert len(query.batches) > 1


def test_limits_are_ignored_where_spark_says_so(producers: Producers, queries: Queries) -> None:
    producer, query = producers(), queries(maxMessagesPerTrigger=1, minMessagesPerTrigger=1)
    for _ in range(3):
        producer.pushed(batch("orders", 1))
    assert len(query.step(limited=False) or []) == 3


def test_minimum_waits_and_not_for_ever(producers: Producers, queries: Queries) -> None:
    producer, query = producers(), queries(minMessagesPerTrigger=5, maxTriggerDelay="10m")
    producer.pushed(batch("orders", 3))
    assert query.step() == []
    assert query.step() is None
    producer.pushed(batch("orders", 2, start=4))
    assert len(query.step() or []) == 5
    producer.pushed(batch("orders", 1, start=6))
    assert query.step() is None
    query.now += 600
    assert numbers_of(query.step() or []) == [6]


def test_idle_stream_asks_the_database_rarely(producers: Producers, queries: Queries) -> None:
    producer, query = producers(), queries()
    producer.pushed(batch("orders"))
    query.drain()
    assert query.pauses == 0
    producer.pushed(batch("orders", start=2))
    query.now -= 1  # as if no time had passed since it last found nothing
    before = query.now
    assert numbers_of(query.step() or []) == [2]
    assert query.pauses == 1
    assert query.now >= before + QUIET_SECONDS


def test_stops_at_what_was_there_at_the_start(producers: Producers, queries: Queries) -> None:
    producer, query = producers(), queries(maxMessagesPerTrigger=2, minMessagesPerTrigger=2)
    for number in range(5):
        producer.pushed(batch("orders", 1, start=number))
    query.stream.stop_at_now()
    producer.pushed(batch("orders", 1, start=99))
    assert numbers_of(query.drain()) == [0, 1, 2, 3, 4]
    query.restart()
    query.stream.stop_at_now()
    assert numbers_of(query.drain()) == [99]


def test_new_partitions_and_queues_side_by_side(producers: Producers, queries: Queries) -> None:
    producer = producers()
    producer.pushed(batch("orders", 1), batch("returns", 1))
    query = queries("orders,returns", maxMessagesPerTrigger=3)
    query.drain()
    producer.pushed(*[batch("orders", 2, partition=f"new-{n}") for n in range(3)], batch("returns", 4))
    query.drain()
    assert assert_in_order(query.rows()) == {
        ("orders", "Default"): 1,
        ("returns", "Default"): 5,
        **{("orders", f"new-{n}"): 2 for n in range(3)},
    }


def test_named_partition_that_appears_later(producers: Producers, queries: Queries) -> None:
    producer = producers()
    producer.pushed(batch("orders", 1))
    query = queries(partitions="later")
    assert query.step() == []
    producer.pushed(batch("orders", 2, partition="later"), batch("orders", 2, partition="never"))
    assert assert_in_order(query.drain()) == {("orders", "later"): 2}


def test_starting_positions(producers: Producers, queries: Queries) -> None:
    producer = producers()
    producer.pushed(batch("orders", 2))
    with psycopg.connect(producer.connection.info.dsn, autocommit=True) as connection:
        connection.execute("update lockstep.segment set created_at = created_at - interval '1 hour'")
    latest = queries(startingPosition="latest")
    assert latest.step() == []
    begun = latest.start()
    producer.pushed(batch("orders", 2, start=3))
    assert numbers_of(queries(startingPosition="-30m").drain()) == [3, 4]
    assert numbers_of(queries(startingPosition="2020-01-01").drain()) == [1, 2, 3, 4]
    assert queries(startingPosition="2999-01-01").step() == []
    assert numbers_of(queries(startingPosition=json.dumps(begun)).drain()) == [3, 4]


def test_first_batch_is_replayed_from_where_it_began(producers: Producers, queries: Queries) -> None:
    """Spark keeps the end of the first batch, and asks for its beginning again."""
    producer = producers()
    producer.pushed(batch("orders", 1))
    query = queries(startingPosition="latest")
    start = query.start()
    producer.pushed(batch("orders", 2, start=2))
    query.checkpoint.append(start)
    end = query.latest()
    assert end is not None
    query.restart()
    producer.pushed(batch("orders", 1, start=4))
    query.checkpoint.clear()
    assert query.start() != start
    assert numbers_of(query.replay(query.start(), end)) == [2, 3]
    query.checkpoint.append(end)
    assert numbers_of(query.drain()) == [4]


def test_replay_gives_the_same_rows(producers: Producers, queries: Queries) -> None:
    producer, query = producers(), queries(maxMessagesPerTrigger=7)
    for number in range(20):
        producer.pushed(batch("orders", 3, partition=f"p{number % 4}"))
    start = query.start()
    query.drain()
    query.restart()
    for end, rows in zip(query.checkpoint, query.batches, strict=True):
        assert query.replay(start, end) == rows
        start = end


def test_lost_connection_of_the_driver_is_made_anew(producers: Producers, queries: Queries) -> None:
    producer, query = producers(), queries()
    producer.pushed(batch("orders", 1))
    query.drain()
    with psycopg.connect(producer.connection.info.dsn, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity where application_name = 'lockstep-spark'"
            " and datname = current_database()"
        )
    producer.pushed(batch("orders", 1, start=2))
    assert numbers_of(query.drain()) == [2]


def test_checkpoint_of_another_database_is_refused(
    producers: Producers, queries: Queries, databases: Databases
) -> None:
    producers().pushed(batch("orders", 1))
    query = queries()
    query.step()
    other_dsn = databases.clone()
    other = Producer(other_dsn)
    other.pushed(batch("orders", 1))
    other.close()
    elsewhere = Query(other_dsn, queue="orders")
    elsewhere.checkpoint = query.checkpoint
    with pytest.raises(CheckpointMismatch, match="belongs to another database"):
        elsewhere.step()
    elsewhere.close()
    databases.drop(other_dsn)


def test_checkpoint_ahead_of_the_database_is_refused(producers: Producers, queries: Queries) -> None:
    producers().pushed(batch("orders", 1))
    query = queries()
    query.step()
    query.checkpoint.append({**query.checkpoint[0], "base": "99999999:99999999:", "to": "99999999:99999999:"})
    with pytest.raises(CheckpointMismatch, match="ahead of the database"):
        query.step()


def test_queue_may_be_added_if_nothing_of_it_would_be_passed_over(producers: Producers, queries: Queries) -> None:
    producer = producers()
    producer.pushed(batch("orders", 1), batch("returns", 1))
    query = queries()
    query.step()
    wider = queries("orders,returns")
    wider.checkpoint = query.checkpoint
    with pytest.raises(CheckpointMismatch, match="a queue more than before, returns, which has messages from before"):
        wider.step()
    later = queries("orders,refunds")
    later.checkpoint = query.checkpoint
    producer.pushed(batch("refunds", 2))
    assert numbers_of(later.drain()) == [1, 2]


def test_batch_that_is_read_again_is_without_a_queue_that_was_added_since(
    producers: Producers, queries: Queries
) -> None:
    producer = producers()
    producer.pushed(batch("orders", 1))
    query = queries()
    start = query.start()
    producer.pushed(batch("orders", 1, start=2), batch("returns", 1))
    later = query.latest()
    assert later is not None
    wider = queries("orders,returns")
    assert numbers_of(wider.replay(start, later)) == [1, 2]


def _matching(dsn: str, pattern: str, **options: Any) -> Query:
    return Query(dsn, queuePattern=pattern, **options)


def test_pattern_has_the_queues_that_fit_and_those_to_come(producers: Producers, database_dsn: str) -> None:
    producer = producers()
    query = _matching(database_dsn, "shop-*-orders")
    assert query.drain() == []
    producer.pushed(batch("shop-eu-orders", 2), batch("shop-eu-orders-old", 1), batch("shop_eu-orders", 1))
    query.restart()
    assert numbers_of(query.drain()) == [1, 2]
    producer.pushed(batch("shop-us-orders", 2, start=3), batch("shop-eu-orders", 1, start=5))
    assert sorted(numbers_of(query.drain())) == [3, 4, 5]
    query.restart()
    assert query.step() is None
    assert_in_order(query.rows())
    assert {row["queue"] for row in query.rows()} == {"shop-eu-orders", "shop-us-orders"}
    query.close()


def test_pattern_reads_the_characters_of_names_as_they_are(producers: Producers, database_dsn: str) -> None:
    producers().pushed(*(batch(name, 1) for name in ("a_b%c\\d", "axbxc\\d", "a_b%cxd", "A_b%c\\d")))
    found = _matching(database_dsn, "a_b%c\\*")
    found.drain()
    assert [row["queue"] for row in found.rows()] == ["a_b%c\\d"]
    found.close()


def test_queue_of_a_pattern_that_was_deleted_is_a_loss(producers: Producers, database_dsn: str) -> None:
    producer = producers()
    producer.pushed(batch("shop-eu", 1), batch("shop-us", 1))
    careful, careless = (_matching(database_dsn, "shop-*", failOnDataLoss=value) for value in ("true", "false"))
    for query in (careful, careless):
        query.drain()
    producer.connection.execute("select lockstep.delete_queue('shop-us')")
    producer.commit()
    again = producers()
    again.pushed(batch("shop-eu", 1, start=2))
    with pytest.raises(DataLost, match="'shop-us' was deleted since"):
        careful.step()
    assert numbers_of(careless.drain()) == [2]
    careful.close()
    careless.close()


def test_pattern_of_too_many_queues_is_refused(
    producers: Producers, database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_SPARK_PATTERN_QUEUES_MAX", "2")
    producers().pushed(*(batch(f"q{number}", 1) for number in range(3)))
    query = _matching(database_dsn, "q*")
    with pytest.raises(InvalidOption, match="more than 2 queues fit the pattern 'q\\*'"):
        query.step()
    query.close()
    narrow = _matching(database_dsn, "q1*")
    assert numbers_of(narrow.drain()) == [1]
    narrow.close()


def test_writers_who_make_queues_of_a_pattern_lose_nothing(database_dsn: str) -> None:
    """Queues come up while the stream reads, in transactions that overlap."""
    query = _matching(database_dsn, "made-*", maxMessagesPerTrigger=7)

    def write(number: int) -> None:
        producer = Producer(database_dsn)
        for turn in range(15):
            producer.pushed(batch(f"made-{number}-{turn}", 2), batch(f"made-{(number + 1) % 3}-{turn}", 2))
        producer.close()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        query.step()
    query.drain()
    assert_in_order(query.rows())
    assert Counter(row["queue"] for row in query.rows()) == {
        f"made-{n}-{turn}": 4 for n in range(3) for turn in range(15)
    }
    query.close()


def test_missing_queue_is_named(queries: Queries) -> None:
    with pytest.raises(QueueNotFound, match="'nowhere'"):
        queries("nowhere").step()


def test_queue_that_was_made_again_is_a_loss(producers: Producers, queries: Queries) -> None:
    producer = producers()
    producer.pushed(batch("orders", 1))
    careful, careless = queries(), queries(failOnDataLoss="false")
    for query in (careful, careless):
        query.step()
    producer.connection.execute("select lockstep.delete_queue('orders')")
    producer.commit()
    again = producers()
    again.pushed(batch("orders", 1, start=2))
    with pytest.raises(DataLost, match="'orders' was deleted and made again"):
        careful.step()
    assert numbers_of(careless.drain()) == [2]


def test_database_that_is_gone_is_unavailable(database_dsn: str, producers: Producers) -> None:
    producers().pushed(batch("orders", 1))
    query = Query(database_dsn.replace(database_dsn.rpartition("/")[2], "gone"), queue="orders")
    with pytest.raises(Unavailable):
        query.step()


class Writers:
    """Threads that push to shared partitions; some of their transactions are rolled back, and some are held open until
    others have committed."""

    def __init__(self, dsn: str, *, seed: int, writers: int, transactions: int, queues: int) -> None:
        self._dsn = dsn
        self._queues = queues
        self._transactions = transactions
        self._committed = threading.Condition()
        self._commits = 0
        self.pushed: Counter[tuple[str, str, int]] = Counter()
        self.failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed * 1000 + number), number))
            for number in range(writers)
        ]
        for thread in self._threads:
            thread.start()

    def alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        assert not self.failures, self.failures

    def _run(self, chance: random.Random, number: int) -> None:
        producer = Producer(self._dsn)
        try:
            for transaction in range(self._transactions):
                self._push(producer, chance, number * 1_000_000 + transaction * 1000)
        except BaseException as failure:
            self.failures.append(failure)
        finally:
            producer.close()

    def _push(self, producer: Producer, chance: random.Random, start: int) -> None:
        batches = [
            batch(
                f"q{chance.randrange(self._queues)}",
                chance.randint(1, 9),
                partition=f"p{chance.randrange(6)}",
                start=start + 10 * n,
            )
            for n in range(chance.randint(1, 3))
        ]
        if chance.random() < 0.2:
            # Its number is drawn before it has a lock.
            producer.connection.execute("select pg_current_xact_id()")
        producer.push(*batches)
        if chance.random() < 0.2:
            self._hold(chance.randint(1, 6))
        if chance.random() < 0.15:
            producer.rollback()
            return
        producer.commit()
        with self._committed:
            for one in batches:
                self.pushed.update((one.queue, one.partition, json.loads(p)["n"]) for p in one.columns.payloads)
            self._commits += 1
            self._committed.notify_all()

    def _hold(self, commits: int) -> None:
        """Until others have committed; they may all wait for this one, so not for long."""
        with self._committed:
            enough = self._commits + commits
            self._committed.wait_for(lambda: self._commits >= enough, timeout=0.05)


@pytest.mark.parametrize("limits", [{}, {"maxMessagesPerTrigger": 25}, {"maxBytesPerTrigger": "600"}], ids=str)
@pytest.mark.parametrize("queues", [1, 3])
def test_nothing_missing_doubled_or_out_of_order(database_dsn: str, limits: dict[str, Any], queues: int) -> None:
    seed = random.randrange(10**6)
    names = ",".join(f"q{n}" for n in range(queues))
    starter = Producer(database_dsn)
    starter.pushed(*[batch(f"q{n}", 1, partition="first", start=-1) for n in range(queues)])
    starter.close()
    writers = Writers(database_dsn, seed=seed, writers=5, transactions=30, queues=queues)
    query, chance = Query(database_dsn, queue=names, **limits), random.Random(seed)
    while writers.alive():
        query.step(commit=chance.random() < 0.8)
        if chance.random() < 0.05:
            query.restart()
    writers.join()
    query.drain()
    query.close()
    assert_in_order(query.rows())
    found = Counter(
        (row["queue"], row["partition"], json.loads(row["payload"])["n"])
        for row in query.rows()
        if row["partition"] != "first"
    )
    assert found == writers.pushed, f"seed {seed}"
    assert len(query.batches) > 1
