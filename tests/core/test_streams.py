"""Stream queries and overviews: what follows from the values alone."""

from __future__ import annotations

from math import inf

import pytest

from lockstep.core.overview import Spread
from lockstep.core.records import Ack
from lockstep.core.streams import NewStreamQuery, StateOp, StreamAck, StreamCycle, mismatch, window_end


@pytest.mark.parametrize(
    ("value", "end"),
    [
        (b'{"windowEnd":5}', 5.0),
        (b'{"a":{"windowEnd":1},"windowEnd":-0.5}', -0.5),
        (b'{"windowEnd":1e3}', 1000.0),
        (b'{"windowEnd":1' + b"0" * 400 + b"}", inf),
        (b'{"windowEnd":-1' + b"0" * 400 + b"}", -inf),
        (b'{"windowEnd":"5"}', None),
        (b'{"windowEnd":true}', None),
        (b'{"windowEnd":null}', None),
        (b'{"a":{"windowEnd":1}}', None),
        (b"[5]", None),
        (b"5", None),
        (b"[" * 60_000, None),
    ],
    ids=str,
)
def test_window_end_is_a_number_of_the_value_itself(value: bytes, end: float | None) -> None:
    assert window_end(value) == end


def test_last_change_of_a_key_counts() -> None:
    ops = [("upsert", "a", b"1"), ("delete", "b", None), ("delete", "a", None), ("upsert", "b", b"2")]
    state_ops = tuple(StateOp(type=type_, key=key, value=value) for type_, key, value in ops)  # type: ignore[arg-type]
    assert StreamCycle(query_id=1, partition_id=2, state_ops=state_ops).changes() == {"a": None, "b": b"2"}


def test_ack_of_a_cycle_is_by_message() -> None:
    cycle = StreamCycle(query_id=1, partition_id=2, group="g", ack=StreamAck(transaction_id="t", status="failed"))
    assert cycle.acks() == [Ack(partition_id=2, transaction_id="t", group="g", status="failed")]
    assert StreamCycle(query_id=1, partition_id=2).acks() == []


def test_mismatch_names_what_differs() -> None:
    query = NewStreamQuery(name="n", source_queue="in", config_hash="1")
    assert (
        "config_hash mismatch: stream query 'n' has '2', not '1'"
        in mismatch(query, config_hash="2", source_queue="in").message
    )
    assert "source_queue mismatch" in mismatch(query, config_hash="1", source_queue="other").message


@pytest.mark.parametrize(
    ("numbers", "spread"),
    [
        ([], (0, 0, 0, 0)),
        ([4.0], (4, 4, 4, 4)),
        ([9.0, 1.0, 2.0], (4, 2, 1, 9)),
        ([1.0, 2.0, 4.0, 5.0], (3, 3, 1, 5)),
    ],
)
def test_spread(numbers: list[float], spread: tuple[float, ...]) -> None:
    found = Spread.of(numbers)
    assert (found.average, found.median, found.minimum, found.maximum) == spread
