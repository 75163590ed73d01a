"""Snapshots and offsets: what lies between two of them."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import CheckpointMismatch, InvalidOption
from lockstep.spark.read.offsets import EARLIEST, NOTHING, Offset, Snapshot, SnapshotPlace, between
from lockstep.spark.read.segments import Scope, list_segments


def test_snapshot_is_read_and_written_as_postgres_does() -> None:
    snapshot = Snapshot.parse("759:764:759,762")
    assert snapshot == Snapshot(759, 764, (759, 762))
    assert str(snapshot) == "759:764:759,762"
    assert str(Snapshot.parse("10:10:")) == "10:10:"


@pytest.mark.parametrize("text", ["", "1", "1:2", "a:b:", "5:3:", "0:0:", "1:2:x", None])
def test_what_is_no_snapshot_is_refused(text: Any) -> None:
    with pytest.raises(InvalidOption, match="not a snapshot"):
        Snapshot.parse(text)


def test_snapshot_sees_what_is_done() -> None:
    snapshot = Snapshot.parse("5:9:5,7")
    assert [xid for xid in range(1, 12) if snapshot.sees(xid)] == [1, 2, 3, 4, 6, 8]


@st.composite
def snapshots(draw: st.DrawFn) -> tuple[Snapshot, Snapshot]:
    """Two snapshots of one history: the second sees all that the first does."""
    first = draw(st.integers(1, 20))
    open_first = draw(st.sets(st.integers(1, first))) - {first}
    second = draw(st.integers(first, 30))
    later = set(range(first, second))
    open_second = draw(st.sets(st.sampled_from(sorted(open_first | later)))) if open_first | later else set()
    return _snapshot(first, open_first), _snapshot(second, open_second)


def _snapshot(xmax: int, in_progress: set[int]) -> Snapshot:
    return Snapshot(min(in_progress, default=xmax), xmax, tuple(sorted(in_progress)))


@given(snapshots())
def test_between_is_what_the_second_sees_and_the_first_does_not(pair: tuple[Snapshot, Snapshot]) -> None:
    base, to = pair
    finished_since, low, high, in_progress = between(base, to)
    finished, still_open = (set(json.loads(f"[{xids[1:-1]}]")) for xids in (finished_since, in_progress))
    found = {xid for xid in range(1, 40) if xid in finished or (int(low) <= xid < int(high) and xid not in still_open)}
    assert found == {xid for xid in range(1, 40) if to.sees(xid) and not base.sees(xid)}


def test_postgres_agrees_on_what_lies_between(database_dsn: str) -> None:
    base, to = Snapshot.parse("5:9:5,7"), Snapshot.parse("7:14:7,11")
    with psycopg.connect(database_dsn) as connection:
        connection.execute(
            """
            insert into lockstep.segment
                (id, queue_id, uuid, created_at, txid, codec, message_count, partition_ids, first_seqs, counts, body)
            select x, 7, gen_random_uuid(), now(), x::text::xid8, 1, 1, array[1], array[x], array[1], ''
            from generate_series(1, 19) x
            """
        )
        found = list_segments(connection, Scope({7: "q"}), base, to).ids
        seen = connection.execute(
            "select x from generate_series(1, 19) x where pg_visible_in_snapshot(x::text::xid8, %s::pg_snapshot)"
            " and not pg_visible_in_snapshot(x::text::xid8, %s::pg_snapshot) order by x",
            [str(to), str(base)],
        ).fetchall()
    assert found.tolist() == [x for (x,) in seen] == [5, 9, 10, 12, 13]


def test_offset_survives_the_checkpoint() -> None:
    offset = Offset(SnapshotPlace(NOTHING, Snapshot(3, 5, (4,)), 17), "sys/1", "abc", {"orders": 7}, since=EARLIEST)
    assert Offset.of(json.loads(json.dumps(offset.as_json()))) == offset


def test_offset_does_not_grow_with_the_partitions() -> None:
    place = SnapshotPlace(Snapshot(10**9, 10**9 + 5), Snapshot(10**9, 10**9 + 5), 10**7)
    assert len(json.dumps(Offset(place, "7708420837344897728/17103", "a" * 16, {"orders": 1}).as_json())) < 250


@pytest.mark.parametrize(
    "given_offset",
    [
        {},
        {"partition-1": 5},
        {"base": "1:1:", "to": "1:1:", "segment": "7", "system": "s", "stream": "x", "queues": {}},
        {"base": "1:1:", "to": "1:1:", "segment": -1, "system": "s", "stream": "x", "queues": {}},
        {"base": "2:2:", "to": "1:1:", "segment": 0, "system": "s", "stream": "x", "queues": {}},
        {"base": "1:1:", "to": "nonsense", "segment": 0, "system": "s", "stream": "x", "queues": {}},
        {"base": "1:1:", "to": "1:1:", "segment": 0, "system": "s", "stream": "x", "queues": 5},
    ],
)
def test_offset_of_another_source_is_refused(given_offset: dict[str, Any]) -> None:
    with pytest.raises(CheckpointMismatch, match="not one of Lockstep's"):
        Offset.of(given_offset)
