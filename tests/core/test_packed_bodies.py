"""Messages as columns over HTTP: what is written is read again, and nothing else is."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.codec import block_of, encode
from lockstep.core.layouts import pack
from lockstep.core.messages import (
    Batch,
    Columns,
    DeliveryFields,
    NewSchedule,
    Occupancy,
    Placement,
    PushResult,
    Run,
    join_columns,
)
from lockstep.core.records import Popped
from lockstep.core.wire import delivery as wire
from lockstep.errors import InvalidPayload, InvalidRequest, LockstepError, TooLarge, TooManyItems
from support.fuzz import examples

UUID_TEXT = "01970000-0000-7000-8000-000000000001"
AT = datetime(2026, 5, 1, 10, tzinfo=UTC)
LARGE = [b'{"text":"%s"}' % (b"x" * 100)] * 40


def read(body: bytes) -> list[Batch]:
    return wire.PackedPush(body, items_max=1000).batches()


def packed(blocks: list[dict[str, Any]], *bodies: bytes) -> bytes:
    head = msgspec.json.encode({"blocks": blocks})
    return b"LSP1" + struct.pack("<i", len(head)) + head + b"".join(bodies)


def block(layout: bytes, **fields: Any) -> dict[str, Any]:
    return {"queue": "q", "partitions": ["p"], "counts": [1], "size": len(layout), **fields}


EVERYTHING = Columns(
    [b"1", b"\xff", b"null"],
    transaction_ids=[UUID_TEXT, "mine", None],
    trace_ids=[None, UUID_TEXT, None],
    kinds=["k", None, "ü"],
    references=[None, "r", None],
    encodings=[None, "raw", None],
    headers=[b'{"a":"b"}', None, None],
    expires_at=[AT, None, timedelta(seconds=5)],
)


def test_push_is_read_as_it_was_written() -> None:
    batches = [
        Batch("q", "a", EVERYTHING),
        Batch.of("q", LARGE, partition="b"),
        Batch.of("other", [b"7"], partition="a"),
        Batch("q", "a", Columns([b"8"]), NewSchedule(delay_seconds=1.5, key="k")),
        Batch("q", "a", Columns([b"9"]), NewSchedule(deliver_at=AT)),
    ]
    found = read(wire.write_push(batches))
    assert [(b.queue, b.partition, b.schedule) for b in found] == [(b.queue, b.partition, b.schedule) for b in batches]
    assert join_columns([b.columns for b in found]) == join_columns([b.columns for b in batches])
    assert [len(b.columns) for b in found] == [3, 40, 1, 1, 1]


_values = st.none() | st.text(min_size=1, max_size=8)


@examples(50, soak=5000)
@given(st.lists(st.tuples(st.integers(), _values, st.none() | st.uuids()), min_size=1, max_size=20))
def test_random_messages_come_back(rows: list[tuple[int, str | None, UUID | None]]) -> None:
    columns = Columns(
        [str(number).encode() for number, _, _ in rows],
        kinds=[kind for _, kind, _ in rows],
        trace_ids=[None if trace is None else str(trace) for _, _, trace in rows],
    )
    assert [batch.columns for batch in read(wire.write_push([Batch("q", "p", columns)]))] == [columns]


def test_block_is_stored_as_it_came_only_if_it_says_all_and_nothing_else() -> None:
    columns = Columns(LARGE, kinds=["k"] * 40)
    [first, second] = read(
        wire.write_push([Batch("q", "a", columns.slice(0, 10)), Batch("q", "b", columns.slice(10, 40))])
    )
    both = join_columns([first.columns, second.columns])
    whole = block_of(both)
    assert whole is not None
    assert (whole.body, whole.count) == (pack(encode(columns)), 40)
    assert block_of(first.columns) is None
    assert block_of(join_columns([second.columns, first.columns])) is None
    assert block_of(both.slice(1, 40)) is None
    signed = join_columns([first.columns, second.columns])
    signed.producer_subs = ["me"] * 40
    assert block_of(signed) is None


def test_block_with_times_is_not_stored_as_it_came() -> None:
    [batch] = read(wire.write_push([Batch("q", "p", Columns(LARGE, expires_at=[AT] * 40))]))
    assert batch.columns.part is None


def test_receipts_are_read_as_they_were_written() -> None:
    batches = [Batch.of("q", [b"1", b"2", b"3"], partition="a"), Batch.of("q", [b"4"])]
    placements = [
        Placement(7, 5, UUID(UUID_TEXT), 0, {1: (2, "earlier")}),
        Placement(8, 1, UUID(UUID_TEXT), 2),
    ]
    moved = [batches[0], Batch("q", "3", batches[1].columns)]
    result = PushResult(moved, placements, occupancy={"q": Occupancy(9, 1)})
    body = msgspec.json.encode(wire.packed_receipts(batches, result))
    assert list(wire.read_receipts(body, batches, None)) == list(result)
    order = [(1, 0), (0, 2), (0, 0), (0, 1)]
    assert list(wire.read_receipts(body, batches, order)) == list(result.in_order(order))


def test_popped_is_read_as_it_was_written() -> None:
    runs = [
        Run("q", "a", 7, 5, UUID(UUID_TEXT), 3, AT, Columns([b"1", b"2"], kinds=["k", None]), DeliveryFields(2)),
        Run("other", "b", 8, 1, UUID(int=9), 0, AT, Columns(LARGE), DeliveryFields(1)),
        Run("q", "c", 9, 1, UUID(UUID_TEXT), 5, AT, Columns([b"\xff"], encodings=["raw"]), DeliveryFields(1)),
    ]
    popped = Popped("g", runs, UUID_TEXT, AT, "shared")
    found = wire.read_popped(wire.write_popped(popped))
    assert list(found.messages()) == list(popped.messages())
    assert (found.group, found.lease_id, found.expires_at, found.mode) == ("g", UUID_TEXT, AT, "shared")


def vector(name: str) -> bytes:
    """A body on the page that describes the format."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "packed.md").read_text()
    return bytes.fromhex(page.partition(f"```hex {name}\n")[2].partition("```")[0].replace("\n", ""))


def test_push_on_the_page() -> None:
    first = Columns([b'{"n":1}', b'{"n":2}'], transaction_ids=[UUID_TEXT, "mine"])
    batches = [Batch("orders", "a", first), Batch.of("orders", [b"3"], partition="b")]
    assert wire.write_push(batches) == vector("push")
    assert [(one.queue, one.partition, one.columns.payloads) for one in read(vector("push"))] == [
        (one.queue, one.partition, one.columns.payloads) for one in batches
    ]


def test_answer_on_the_page() -> None:
    popped = wire.read_popped(vector("answer"))
    assert wire.write_popped(popped) == vector("answer")
    assert [(one.seq, one.payload, one.encoding, one.attempt) for one in popped.messages()] == [
        (5, b'{"n":1}', None, 1),
        (6, b"\xff", "raw", 1),
    ]


ONE = encode(Columns([b"1"]))
MANY = encode(Columns(LARGE))
COMPRESSED = pack(MANY)
SIGNED = encode(Columns([b"1"], producer_subs=["me"]))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "does not begin"),
        (b"LSP1", "does not begin"),
        (b"LSP2" + bytes(8), "does not begin"),
        (b"LSP1" + struct.pack("<i", 100) + b"{}", "100"),
        (b"LSP1" + struct.pack("<i", -1) + b"{}", "-1"),
        (b"LSP1" + struct.pack("<i", 2) + b"{]", "head does not fit"),
        (packed([{"queue": "q"}]), "head does not fit"),
        (packed([block(ONE, partitions=[1])], ONE), "head does not fit"),
        (packed([block(ONE, counts=[0])], ONE), "head does not fit"),
        (packed([block(ONE, counts=[-1])], ONE), "head does not fit"),
        (packed([block(ONE, surprise=1)], ONE), "head does not fit"),
        (packed([block(ONE)], ONE, b"more"), "count"),
        (packed([block(ONE, size=10**9)], ONE), "count"),
        (packed([block(ONE, partitions=[], counts=[])], ONE), "at least one"),
        (packed([block(ONE, partitions=["a", "b"])], ONE), "as many counts"),
        (packed([block(ONE, counts=[2])], ONE), "has 1 messages"),
        (packed([block(ONE, expireSeconds=[1, 2])], ONE), "expireSeconds"),
        (packed([block(b"")], b""), "cannot be read"),
        (packed([block(b"nonsense")], b"nonsense"), "cannot be read"),
        (packed([block(ONE[:-1])], ONE[:-1]), "cut short"),
        (packed([block(ONE + b"x")], ONE + b"x"), "wrong length"),
        (packed([block(COMPRESSED[:-4], counts=[40])], COMPRESSED[:-4]), "does not decompress"),
        (packed([block(COMPRESSED + b"x", counts=[40])], COMPRESSED + b"x"), "does not decompress"),
        (packed([block(COMPRESSED * 2, counts=[40])], COMPRESSED * 2), "does not decompress"),
        (packed([block(SIGNED)], SIGNED), "producers"),
    ],
)  # fmt: skip
def test_body_that_is_none_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        read(body)


def test_block_that_was_changed_on_its_way_is_refused() -> None:
    """By the checksum in its frame."""
    for position in range(20, len(COMPRESSED), 7):
        changed = bytearray(COMPRESSED)
        changed[position] ^= 1
        with pytest.raises(LockstepError):
            read(packed([block(COMPRESSED, counts=[40])], bytes(changed)))


def test_message_with_a_time_and_a_span_is_refused() -> None:
    layout = encode(Columns([b"1"], expires_at=[AT]))
    with pytest.raises(InvalidRequest, match="not both"):
        read(packed([block(layout, expireSeconds=[5])], layout))


@pytest.mark.parametrize(
    "payloads",
    [
        [b"{"],
        [b"1,2"],
        [b"[1", b"2]"],
        [b"1,2", b'"a'],
        [b'"\xff"'],
        [b""],
        [b"1 2"],
        [b"[" * 100_000],
        [b"1", b"", b"2"],
        [b"{}{}", b""],
        [b"nul", b"l"],
        [b'"a', b'"'],
        [b"-", b"1"],
        [b"1", b" "],
    ],
)
def test_payload_that_is_no_json_is_refused(payloads: list[bytes]) -> None:
    layout = encode(Columns(payloads))
    with pytest.raises(InvalidPayload):
        read(packed([block(layout, counts=[len(payloads)])], layout))


def test_payload_with_white_space_around_it_is_json() -> None:
    [batch] = read(wire.write_push([Batch.of("q", [b" 1 ", b'\n{"a": [1,\t2]}'])]))
    assert batch.columns.payloads == [b" 1 ", b'\n{"a": [1,\t2]}']


def test_numbers_side_by_side_are_json() -> None:
    payloads = [b"1", b"-2", b"3e1", b"null", b"true", b'"a"', b"0", b"5"]
    [batch] = read(wire.write_push([Batch.of("q", payloads)]))
    assert batch.columns.payloads == payloads


def test_size_is_checked_before_anything_is_unpacked() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(50_000_000))
    push = wire.PackedPush(packed([block(bomb)], bomb), items_max=1000)
    assert len(bomb) < 10_000
    with pytest.raises(TooLarge, match="50000000 bytes once they are unpacked"):
        push.check(messages_max=10, unpacked_bytes_max=1_000_000)
    undeclared = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(50_000_000))
    with pytest.raises(InvalidRequest, match="declares no size"):
        wire.PackedPush(packed([block(undeclared)], undeclared), items_max=1000).check(
            messages_max=10, unpacked_bytes_max=1_000_000
        )


def test_messages_are_counted_before_anything_is_made_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout of 2 kB may declare millions of empty messages."""
    layout = pack(b"LSG1" + struct.pack("<ii", 5_000_000, 1) + bytes(4 * 5_000_000))
    for decoder in ("decode", "decode_block"):
        monkeypatch.setattr(f"lockstep.core.wire.delivery.packed.{decoder}", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(InvalidRequest, match="has 5000000 messages"):
        read(packed([block(layout)], layout))


def test_message_with_two_transaction_ids_is_refused() -> None:
    both = [_int32s([16]) + UUID(UUID_TEXT).bytes, _int32s([4]) + b"mine"]
    layout = b"LSG1" + struct.pack("<ii", 1, 0b111) + _int32s([1]) + b"1" + b"".join(both)
    with pytest.raises(InvalidRequest, match="two transaction ids"):
        read(packed([block(layout)], layout))


def _int32s(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def test_columns_that_are_made_of_others_are_no_part_of_their_block() -> None:
    """They may say something else."""
    [batch] = read(wire.write_push([Batch("q", "p", Columns(LARGE, kinds=["k"] * 40))]))
    assert block_of(batch.columns) is not None
    assert block_of(replace(batch.columns, kinds=["other"] * 40)) is None


def test_counts_are_checked_before_anything_is_unpacked() -> None:
    push = wire.PackedPush(packed([block(ONE, counts=[11])], ONE), items_max=1000)
    with pytest.raises(InvalidRequest, match="11 messages"):
        push.check(messages_max=10, unpacked_bytes_max=1_000)


def test_head_with_too_many_values_is_refused_before_it_is_decoded() -> None:
    body = packed([block(ONE, partitions=["p"] * 2000, counts=[1] * 2000)], ONE)
    with pytest.raises(TooManyItems):
        wire.PackedPush(body, items_max=1000)
