"""The primary is lost under load, and a standby takes its place; or a backup is restored. Producers, consumers, servers
and a Spark stream live through it.

With a synchronous standby nothing is lost. With an asynchronous one, or a backup, what it never had is lost, and
nothing else: no message is in a wrong partition or has a wrong payload, none is skipped. One test of the library and
one of servers run every time; the others run in `make soak`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import CheckpointAhead, Unavailable
from lockstep.spark.offsets import Offset
from support.chaos_fleet import PATIENCE_SECONDS, Fleet, Scale
from support.chaos_load import AUDIT, QUEUES, RELAY
from support.chaos_servers import http_servers
from support.embedded_tools import query, wait_until
from support.replication import Pair
from support.soak import soak_only
from support.spark_reads import Query

MessageId = str


@pytest.fixture
def pair(folder: Path) -> Iterator[Pair]:
    pair = Pair(folder)
    yield pair
    pair.close()


@pytest.fixture
def fleet(folder: Path, pair: Pair, scale: Scale) -> Iterator[Fleet]:
    (folder / "logs").mkdir()
    fleet = Fleet(pair, folder / "logs", scale)
    yield fleet
    fleet.close()


class Stream:
    """A Spark stream, driven as Spark does it by a thread: each batch until it is done, on one checkpoint."""

    def __init__(self, dsn: str) -> None:
        self.query = Query(dsn, queue=",".join(QUEUES))
        self.batches: list[tuple[float, float, list[dict[str, Any]]]] = []
        """When each was planned, when it was read, and its rows."""
        self.ahead = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(0.02) and not self.ahead.is_set():
            began = time.monotonic()
            try:
                rows = self.query.step()
            except Unavailable:
                self.query.restart()
                continue
            except CheckpointAhead:
                self.ahead.set()
                continue
            if rows:
                self.batches.append((began, time.monotonic(), rows))

    def wait_for_batch(self) -> None:
        """Until it has read something that was planned after this call."""
        now = time.monotonic()
        wait_until(lambda: self.batches and self.batches[-1][0] > now, timeout=PATIENCE_SECONDS)

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def finish(self) -> list[dict[str, Any]]:
        """Read what is left; all rows that it has ever given."""
        self.stop()
        self.query.restart()
        now = time.monotonic()
        self.batches.append((now, now, self.query.drain()))
        self.query.close()
        return [row for _, _, rows in self.batches for row in rows]


def launch(fleet: Fleet, *, transaction_ids: bool) -> None:
    fleet.prepare()
    if transaction_ids:
        fleet.add_producer("uuid", transaction_ids="uuid")
    fleet.add_producer("plain-1")
    fleet.add_producer("plain-2")
    for group in (AUDIT, RELAY):
        fleet.add_consumer(group, group=group)
    fleet.wait_for_progress()


def stored_ids(pair: Pair) -> dict[MessageId, tuple[str, str, int]]:
    """Where each message is, as a fresh read of the new primary says."""
    reading = Query(pair.dsn, queue=",".join(QUEUES))
    rows = reading.drain()
    reading.close()
    return {row["message_id"]: (row["queue"], row["partition"], row["seq"]) for row in rows}


@soak_only
def test_synchronous_standby_takes_over_and_nothing_is_lost(pair: Pair, fleet: Fleet, scale: Scale) -> None:
    pair.be_synchronous()
    launch(fleet, transaction_ids=True)
    stream = Stream(pair.dsn)
    stream.wait_for_batch()
    rounds(scale, pair.fail_over, fleet, lambda: (pair.add_standby(), pair.be_synchronous()))
    assert fleet.finish() == []
    rows = stream.finish()
    assert not stream.ahead.is_set()
    assert sorted(row["message_id"] for row in rows) == sorted(stored_ids(pair)), "each message once"


def rounds(scale: Scale, disaster: Callable[[], object], fleet: Fleet, repair: Callable[[], object]) -> None:
    """One disaster, or as many as there is time for."""
    until = time.monotonic() + scale.seconds
    while True:
        disaster()
        fleet.wait_for_progress()
        if time.monotonic() >= until:
            return
        repair()
        fleet.wait_for_progress()


def test_asynchronous_replica_takes_over_and_only_what_it_never_had_is_lost(
    pair: Pair, fleet: Fleet, scale: Scale
) -> None:
    launch(fleet, transaction_ids=False)
    stream = Stream(pair.dsn)
    stream.wait_for_batch()

    def disaster() -> None:
        since = time.monotonic()
        pair.cut()
        fleet.wait_for_progress()
        if not fleet.doubtful:  # after the first disaster it has stopped
            stream.wait_for_batch()
        pair.fail_over()
        fleet.doubtful.append((since, time.monotonic()))

    rounds(scale, disaster, fleet, pair.add_standby)
    go_on(stream, pair, fleet)


@soak_only
def test_backup_is_restored_and_only_what_came_after_it_is_lost(pair: Pair, fleet: Fleet) -> None:
    launch(fleet, transaction_ids=False)
    stream = Stream(pair.dsn)
    stream.wait_for_batch()
    since = time.monotonic()
    backup = pair.back_up()
    fleet.wait_for_progress()
    stream.wait_for_batch()
    pair.restore(backup)
    fleet.doubtful.append((since, time.monotonic()))
    fleet.wait_for_progress()
    go_on(stream, pair, fleet)


def go_on(stream: Stream, pair: Pair, fleet: Fleet) -> None:
    """The fleet comes to its end with nothing wrong; the stream stopped, is allowed to go on, and skips nothing."""
    stream.ahead.wait(30)
    stream.stop()
    assert fleet.finish() == []
    assert stream.ahead.is_set()
    query(pair.dsn, f"select lockstep.accept_position('{Offset.of(stream.query.start()).stream}')")
    rows = stream.finish()
    stored = stored_ids(pair)
    read = {row["message_id"]: (row["queue"], row["partition"], row["seq"]) for row in rows}
    assert {one: place for one, place in stored.items() if read.get(one) != place} == {}, "skipped or misplaced"
    since, until = fleet.doubtful[0][0], fleet.doubtful[-1][1]
    sound = [row for began, ended, batch in stream.batches if ended < since or began > until for row in batch]
    assert [row for row in sound if row["message_id"] not in stored] == [], "lost outside the doubtful times"


def test_servers_live_through_a_failover_to_a_synchronous_standby(pair: Pair, fleet: Fleet, folder: Path) -> None:
    pair.be_synchronous()
    fleet.prepare()
    with http_servers(pair.dsn, folder) as fronts:
        fleet.urls = tuple(front.url for front in fronts)
        launch(fleet, transaction_ids=True)
        pair.fail_over()
        fleet.wait_for_progress()
        assert fleet.finish() == []
        assert [front.process.process.poll() for front in fronts] == [None, None]
        fleet.close()


@soak_only
def test_servers_live_through_a_failover_to_an_asynchronous_replica(pair: Pair, fleet: Fleet, folder: Path) -> None:
    fleet.prepare()
    with http_servers(pair.dsn, folder) as fronts:
        fleet.urls = tuple(front.url for front in fronts)
        launch(fleet, transaction_ids=False)
        since = time.monotonic()
        pair.cut()
        fleet.wait_for_progress()
        pair.fail_over()
        fleet.doubtful.append((since, time.monotonic()))
        fleet.wait_for_progress()
        assert fleet.finish() == []
        fleet.close()
