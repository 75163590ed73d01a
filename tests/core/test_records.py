"""Records that are columns inside: slices, receipts and messages made when somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.ids import message_id, segment_uuid7
from lockstep.core.messages import (
    COLUMN_NAMES,
    Batch,
    Columns,
    DeliveryFields,
    Occupancy,
    Placement,
    PushResult,
    Receipt,
    Run,
)
from lockstep.core.records import ACK_ERROR_TEXTS, Popped
from support.builders import payloads

NOW = datetime(2026, 5, 1, 10, 0, tzinfo=UTC)
SEGMENT = segment_uuid7(1_777_629_600_123_456_789)
TRACE = "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"

FULL: dict[str, list[Any]] = {
    "transaction_ids": ["t1", None, "t3"],
    "trace_ids": [None, TRACE, None],
    "kinds": ["k1", "k2", None],
    "references": [None, None, "r3"],
    "encodings": ["avro", None, None],
    "headers": [b'{"a":"b"}', None, b"{}"],
    "producer_subs": ["anna", None, "ben"],
}


# --- Columns ----------------------------------------------------------------------------------------------------


def test_names_are_the_columns_in_their_order() -> None:
    columns = Columns(payloads(3), **FULL)
    assert columns.all() == tuple(getattr(columns, name) for name in COLUMN_NAMES)


@pytest.mark.parametrize("name", sorted(FULL))
def test_columns_with_anything_but_payloads_are_not_bare(name: str) -> None:
    assert Columns(payloads(3)).bare()
    assert not Columns(payloads(3), **{name: FULL[name]}).bare()


def test_slice_of_columns_slices_each_that_is_there() -> None:
    part = Columns(payloads(3), **(FULL | {"kinds": None})).slice(1, 3)
    assert part.payloads == payloads(2, start=2)
    assert part.kinds is None
    assert {name: getattr(part, name) for name in FULL if name != "kinds"} == {
        name: column[1:] for name, column in FULL.items() if name != "kinds"
    }


def test_slice_of_all_costs_nothing() -> None:
    columns = Columns(payloads(3), **FULL)
    assert columns.slice(0, 3) is columns
    assert columns.slice(0, 10) is columns
    assert columns.slice(0, 2) is not columns


@given(st.lists(st.integers(0, 2), max_size=6))
def test_take_gives_the_positions_in_their_order(positions: list[int]) -> None:
    taken = Columns(payloads(3), **FULL).take(positions)
    assert len(taken) == len(positions)
    for name, column in {"payloads": payloads(3), **FULL}.items():
        assert getattr(taken, name) == [column[position] for position in positions]


def test_batch_of_payloads_and_columns_by_name() -> None:
    made = Batch.of("q", (b"%d" % n for n in range(2)), kinds=["a", "b"])
    assert (made.queue, made.partition, made.columns) == ("q", "Default", Columns([b"0", b"1"], kinds=["a", "b"]))


# --- Runs and what was popped -----------------------------------------------------------------------------------


def run(first_seq: int = 5, *, ordinal: int = 10, partition_id: int = 7, **columns: Any) -> Run:
    given = Columns(payloads(3), **columns)
    return Run("q", "p", partition_id, first_seq, SEGMENT, ordinal, NOW, given, DeliveryFields(2))


def test_run_makes_messages() -> None:
    made = list(run(**FULL).messages())
    assert [message.seq for message in made] == [5, 6, 7]
    assert [message.id for message in made] == [message_id(SEGMENT, ordinal) for ordinal in (10, 11, 12)]
    assert [message.transaction_id for message in made] == ["t1", made[1].id, "t3"]
    assert [message.trace_id for message in made] == [None, TRACE, None]
    assert [message.headers for message in made] == [{"a": "b"}, None, {}]
    assert [(m.kind, m.reference, m.encoding, m.producer_sub) for m in made] == [
        ("k1", None, "avro", "anna"),
        ("k2", None, None, None),
        (None, "r3", None, "ben"),
    ]
    assert {(m.queue, m.partition, m.partition_id, m.created_at, m.attempt) for m in made} == {("q", "p", 7, NOW, 2)}
    assert [message.json() for message in made] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_run_knows_its_end() -> None:
    assert (len(run()), run().last_seq) == (3, 7)


def test_popped_counts_and_names_over_its_runs() -> None:
    popped = Popped("g", [run(1, partition_id=9), run(1, partition_id=4), run(4, partition_id=9)], "lease", NOW)
    assert (len(popped), bool(popped)) == (9, True)
    assert popped.partition_ids == [9, 4]
    assert popped.payloads() == payloads(3) * 3
    assert [message.seq for message in popped.messages()] == [1, 2, 3, 1, 2, 3, 4, 5, 6]


def test_nothing_popped_is_false() -> None:
    assert not Popped("g")


# --- Receipts ---------------------------------------------------------------------------------------------------


def pushed(
    counts: Sequence[int],
    duplicates: Sequence[dict[int, tuple[int, str]] | None] | None = None,
    **options: Any,
) -> PushResult:
    """Batches of so many messages, one partition each, all in one segment."""
    given = duplicates or [None] * len(counts)
    batches = [Batch("q", f"p{index}", Columns(payloads(count))) for index, count in enumerate(counts)]
    placements, ordinal = [], 0
    for index, (count, earlier) in enumerate(zip(counts, given, strict=True)):
        placements.append(Placement(index, 100 * (index + 1), SEGMENT, ordinal, earlier))
        ordinal += count - len(earlier or ())
    return PushResult(batches, placements, **options)


def test_receipts_in_input_order() -> None:
    receipts = list(pushed([2, 0, 1]))
    assert [(r.index, r.partition, r.seq, r.status) for r in receipts] == [
        (0, "p0", 100, "queued"),
        (1, "p0", 101, "queued"),
        (2, "p2", 300, "queued"),
    ]
    assert [r.message_id for r in receipts] == [message_id(SEGMENT, ordinal) for ordinal in range(3)]
    assert [r.transaction_id for r in receipts] == [r.message_id for r in receipts]


def test_duplicates_name_the_first_and_leave_no_gap() -> None:
    first = message_id(segment_uuid7(1_777_629_600_000_000_000), 3)
    result = pushed([4, 2], [{0: (7, first), 2: (9, first)}, None])
    assert [(r.status, r.seq) for r in result] == [
        ("duplicate", 7),
        ("queued", 100),
        ("duplicate", 9),
        ("queued", 101),
        ("queued", 200),
        ("queued", 201),
    ]
    assert [r.message_id for r in result] == [
        first,
        message_id(SEGMENT, 0),
        first,
        message_id(SEGMENT, 1),
        message_id(SEGMENT, 2),
        message_id(SEGMENT, 3),
    ]
    assert (len(result), result.duplicates) == (6, 2)


def test_receipt_has_the_transaction_id_that_was_given() -> None:
    columns = Columns(payloads(2), transaction_ids=["mine", None], trace_ids=[None, TRACE])
    result = PushResult([Batch("q", "p", columns)], [Placement(1, 1, SEGMENT, 0)])
    assert [(r.transaction_id, r.trace_id) for r in result] == [("mine", None), (message_id(SEGMENT, 1), TRACE)]


def test_receipts_of_a_limited_queue_tell_how_full_it_is() -> None:
    result = pushed([1], occupancy={"q": Occupancy(8, 2), "other": Occupancy(0, 0)})
    assert [(r.depth, r.remaining) for r in result] == [(8, 2)]
    assert [(r.depth, r.remaining) for r in pushed([1])] == [(None, None)]


@st.composite
def results(draw: st.DrawFn) -> PushResult:
    counts = draw(st.lists(st.integers(0, 5), max_size=5))
    duplicates: list[dict[int, tuple[int, str]] | None] = [
        {position: (position + 1, message_id(SEGMENT, 999)) for position in draw(st.sets(st.integers(0, count - 1)))}
        if count
        else None
        for count in counts
    ]
    places = [(batch, position) for batch, count in enumerate(counts) for position in range(count)]
    order = draw(st.none() | st.permutations(places))
    return pushed(counts, duplicates, order=order)


@given(results(), st.data())
def test_receipt_by_index_is_the_one_of_the_iteration(result: PushResult, data: st.DataObject) -> None:
    receipts = list(result)
    assert len(receipts) == len(result)
    assert [receipt.index for receipt in receipts] == list(range(len(result)))
    for index in data.draw(st.permutations(range(len(result)))):
        assert result[index] == receipts[index]
        assert result[index - len(result)] == receipts[index]


@given(results(), st.slices(8))
def test_slices_are_those_of_a_list(result: PushResult, wanted: slice) -> None:
    assert result[wanted] == list(result)[wanted]


@given(results())
def test_new_messages_are_numbered_without_gaps_and_duplicates_counted(result: PushResult) -> None:
    by_partition: dict[str, list[Receipt]] = {}
    for receipt in sorted(result, key=lambda receipt: receipt.seq):
        if receipt.status == "queued":
            by_partition.setdefault(receipt.partition, []).append(receipt)
    for receipts in by_partition.values():
        first = receipts[0].seq
        assert [receipt.seq for receipt in receipts] == list(range(first, first + len(receipts)))
    queued = [receipt.message_id for receipts in by_partition.values() for receipt in receipts]
    assert len(set(queued)) == len(queued)
    assert result.duplicates == len(result) - len(queued)


@pytest.mark.parametrize("index", [3, -4, 100])
def test_index_that_is_out_of_range(index: int) -> None:
    with pytest.raises(IndexError):
        pushed([2, 1])[index]


def test_receipts_in_the_order_of_the_caller() -> None:
    given = [(1, 0), (0, 1), (1, 1), (0, 0)]
    result = pushed([2, 2], order=given)
    assert [(r.index, r.partition, r.seq) for r in result] == [
        (0, "p1", 200),
        (1, "p0", 101),
        (2, "p1", 201),
        (3, "p0", 100),
    ]
    assert result[1].seq == 101


def test_no_receipts() -> None:
    result = PushResult([], [])
    assert (len(result), list(result), result[:], result.duplicates) == (0, [], [], 0)


def test_every_ack_error_has_a_text() -> None:
    assert set(ACK_ERROR_TEXTS) == {"unresolvable", "committed", "lease_lost", "clamped"}
    assert all(ACK_ERROR_TEXTS.values())
