"""The primary is lost under load, and a standby takes its place; or a backup is restored, as it is or recovered to a
point in time. Clients of the library, a server with its buffer, workers of the SDK and a Spark stream live through it.

With a synchronous standby nothing is lost. With an asynchronous one, or a backup, what it never had is lost, and
nothing else: no message is in a wrong partition or has a wrong payload, none is skipped. A stream and a buffer that are
ahead stop, and the command that they name lets them go on.

Each disaster comes once in every run of the tests, one of them with a real Spark; in `make soak` all of them come with
a real Spark, and failovers again and again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.chaos_fleet import Fleet, Scale
from support.failover_crowd import Crowd, Place, place_of
from support.failover_streams import java_is_there
from support.replication import Node, Pair, RecoveryTarget
from support.soak import soak_only


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


@contextmanager
def at_work(
    pair: Pair, fleet: Fleet, folder: Path, *, spark: bool = False, transaction_ids: bool = False
) -> Iterator[Crowd]:
    if spark and not java_is_there():
        pytest.skip("Spark needs Java 17 or newer, and there is none")
    with ExitStack() as stack:
        crowd = Crowd(pair, fleet, folder, spark=spark, transaction_ids=transaction_ids)
        stack.callback(crowd.close)
        crowd.launch()
        yield crowd


# --- A synchronous standby


def test_synchronous_standby_takes_over_and_nothing_is_lost(
    pair: Pair, fleet: Fleet, folder: Path, scale: Scale
) -> None:
    lose_nothing(pair, fleet, folder, scale, spark=False)


@soak_only
def test_spark_lives_through_a_failover_to_a_synchronous_standby(
    pair: Pair, fleet: Fleet, folder: Path, scale: Scale
) -> None:
    lose_nothing(pair, fleet, folder, scale, spark=True)


def lose_nothing(pair: Pair, fleet: Fleet, folder: Path, scale: Scale, *, spark: bool) -> None:
    pair.wait_for_standby()
    pair.be_synchronous()
    with at_work(pair, fleet, folder, spark=spark, transaction_ids=True) as crowd:
        until = time.monotonic() + scale.seconds
        while True:
            pair.fail_over(meanwhile=crowd.wait_for_buffering)
            crowd.went_on()
            if time.monotonic() >= until:
                break
            pair.add_standby()
            pair.be_synchronous()
        stored, rows = crowd.finish()
        assert sorted(row["message_id"] for row in rows) == sorted(stored), "each message once"
        assert misread(stored, rows) == {}


# --- What lacks the last transactions


def test_asynchronous_standby_takes_over_and_only_what_it_never_had_is_lost(
    pair: Pair, fleet: Fleet, folder: Path, scale: Scale
) -> None:
    fail_over(pair, fleet, folder, scale, spark=False)


@pytest.mark.xdist_group("spark")
def test_spark_lives_through_a_failover_to_an_asynchronous_standby(
    pair: Pair, fleet: Fleet, folder: Path, scale: Scale
) -> None:
    fail_over(pair, fleet, folder, scale, spark=True)


def fail_over(pair: Pair, fleet: Fleet, folder: Path, scale: Scale, *, spark: bool) -> None:
    with at_work(pair, fleet, folder, spark=spark) as crowd:
        until = time.monotonic() + scale.seconds
        while True:
            lose_some(crowd, pair.cut, lambda: pair.fail_over(meanwhile=crowd.wait_for_buffering))
            if time.monotonic() >= until:
                break
            pair.add_standby()
        check(crowd)


def test_backup_is_restored_and_only_what_came_after_it_is_lost(pair: Pair, fleet: Fleet, folder: Path) -> None:
    restore(pair, fleet, folder, spark=False)


@soak_only
def test_spark_lives_through_a_restore(pair: Pair, fleet: Fleet, folder: Path) -> None:
    restore(pair, fleet, folder, spark=True)


def restore(pair: Pair, fleet: Fleet, folder: Path, *, spark: bool) -> None:
    with at_work(pair, fleet, folder, spark=spark) as crowd:
        backups: list[Node] = []
        lose_some(
            crowd,
            lambda: backups.append(pair.back_up()),
            lambda: pair.restore(backups[0], meanwhile=crowd.wait_for_buffering),
        )
        check(crowd)


RECOVERIES = [
    pytest.param("time", False),
    pytest.param("lsn", False, marks=soak_only),
    pytest.param("xid", False, marks=soak_only),
    pytest.param("name", True, marks=soak_only),
]


@pytest.mark.parametrize(("kind", "spark"), RECOVERIES)
def test_recovery_to_a_point_in_time_loses_only_what_came_after_it(
    pair: Pair, fleet: Fleet, folder: Path, kind: RecoveryTarget, *, spark: bool
) -> None:
    pair.archive()
    with at_work(pair, fleet, folder, spark=spark) as crowd:
        backup = pair.back_up()
        crowd.went_on()
        targets: list[str] = []
        lose_some(
            crowd,
            lambda: targets.append(pair.point(kind)),
            lambda: pair.recover(backup, kind, targets[0], meanwhile=crowd.wait_for_buffering),
        )
        assert pair.timeline() == 2
        check(crowd)


def lose_some(crowd: Crowd, fix: Callable[[], object], disaster: Callable[[], object]) -> None:
    """What comes between the two calls is lost. All who are ahead stop, and are told to go on."""
    since = time.monotonic()
    fix()
    crowd.buffer_and_drain()
    crowd.went_on()
    crowd.stream.wait_for_batch()
    disaster()
    crowd.fleet.doubtful.append((since, crowd.pair.lost_at))
    crowd.accept_lost_buffer()
    crowd.accept_stream()
    crowd.went_on()


def check(crowd: Crowd) -> None:
    stored, rows = crowd.finish()
    assert misread(stored, rows) == {}
    assert crowd.fleet.doubtful
    sound = [
        row
        for batch in crowd.stream.batches
        if all(batch.ended < since or batch.began > until for since, until in crowd.fleet.doubtful)
        for row in batch.rows
    ]
    assert [row for row in sound if row["message_id"] not in stored] == [], "lost outside the doubtful times"


def misread(stored: dict[str, Place], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the stream skipped, or read with another place or payload than it has."""
    read = {row["message_id"]: place_of(row) for row in rows}
    return {one: (place, read.get(one)) for one, place in stored.items() if read.get(one) != place}
