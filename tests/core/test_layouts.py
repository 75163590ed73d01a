"""Layouts and the bodies that hold them: chains of frames are read as one."""

from __future__ import annotations

import struct
from datetime import UTC, datetime

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.codec import block_of, decode, decode_block, encode
from lockstep.core.layouts import (
    chained,
    decompress,
    frames_of,
    is_chain,
    join_layouts,
    layout_bytes,
    pack,
    payloads_of,
)
from lockstep.core.messages import Columns, join_columns
from lockstep.core.wire import delivery as wire
from lockstep.errors import CorruptSegment, InvalidRequest
from support.fuzz import examples

AT = datetime(2026, 5, 1, 10, tzinfo=UTC)
FIRST = Columns([b"1", b"", b"33"], kinds=["a", None, "c"], expires_at=[AT, None, None])
SECOND = Columns([b"4" * 50], kinds=[None], expires_at=[None])
PARTS = [FIRST, SECOND, FIRST]


def large(text: bytes, count: int = 100, **others: list[str | None]) -> Columns:
    """Columns that came as a block of their own."""
    layout = encode(Columns([b'{"text":"%s %d %s"}' % (text, i, b"x" * 100) for i in range(count)], **others))
    return decode_block(pack(layout), layout)


def test_chain_is_read_as_one_layout() -> None:
    layouts = [encode(part) for part in PARTS]
    body = chained(list(map(pack, layouts)))
    assert decompress(body) == join_layouts(layouts)
    assert decode(decompress(body)) == join_columns(PARTS)
    assert layout_bytes(body) == len(decompress(body))
    assert frames_of(body) == list(map(pack, layouts))


def test_chain_is_a_zstd_stream() -> None:
    body = chained([pack(encode(FIRST)), pack(encode(SECOND))])
    with zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True) as reader:
        assert reader.read() == encode(FIRST) + encode(SECOND)


def test_chain_of_chains_has_all_their_frames() -> None:
    one, two = pack(encode(FIRST)), pack(encode(SECOND))
    assert chained([chained([one, two]), one]) == chained([one, two, one])
    assert chained([one]) == one
    assert not is_chain(one)


@given(st.lists(st.lists(st.binary(max_size=20), max_size=5), min_size=1, max_size=5))
@examples(50, soak=2_000)
def test_random_payloads_come_back(parts: list[list[bytes]]) -> None:
    body = chained([pack(encode(Columns(payloads))) for payloads in parts])
    assert payloads_of(decompress(body)) == [payload for payloads in parts for payload in payloads]


def test_layouts_with_other_columns_are_no_chain() -> None:
    body = chained([pack(encode(FIRST)), pack(encode(Columns([b"1"])))])
    with pytest.raises(CorruptSegment, match="different columns"):
        decompress(body)


@pytest.mark.parametrize("change", range(8))
def test_broken_chain_is_refused(change: int) -> None:
    one, two = pack(encode(FIRST)), pack(encode(SECOND))
    sizes = [len(one), len(encode(FIRST)), len(two), len(encode(SECOND))]

    def start(numbers: list[int], size: int | None = None) -> bytes:
        head = struct.pack("<4sI", b"\x50\x2a\x4d\x18", 4 * len(numbers) if size is None else size)
        return head + struct.pack(f"<{len(numbers)}i", *numbers)

    good = start(sizes) + one + two
    assert decompress(good) == join_layouts([encode(FIRST), encode(SECOND)])
    broken = [
        good[:6],
        good[:20],
        good[:-1],
        good + b"x",
        start([]) + one,
        start([-1, *sizes[1:]]) + one + two,
        start([sizes[0], 10**6, *sizes[2:]]) + one + two,
        start(sizes, 12) + one + two,
    ][change]
    with pytest.raises(CorruptSegment):
        decompress(broken)


def test_blocks_of_several_pushes_are_stored_together_as_they_came() -> None:
    parts = [large(b"a"), large(b"b"), large(b"c")]
    block = block_of(join_columns(parts))
    assert block is not None
    assert frames_of(block.body) == [part.part.block.body for part in parts if part.part]
    assert (block.count, block.payload_bytes) == (300, sum([part.payload_bytes() for part in parts]))
    assert block.payloads() == [payload for part in parts for payload in part.payloads]
    assert decode(decompress(block.body)).payloads == block.payloads()
    assert block.layout_bytes == len(decompress(block.body))


def test_blocks_that_differ_or_are_small_or_cut_are_not_chained() -> None:
    whole, other = large(b"a"), large(b"b")
    assert block_of(join_columns([whole, large(b"c", kinds=["k"] * 100)])) is None
    assert block_of(join_columns([whole, large(b"c", 10)])) is None
    assert block_of(join_columns([whole, Columns([b"1"])])) is None
    first, second = other.split([40, 60])
    assert block_of(join_columns([whole, first])) is None
    assert block_of(join_columns([second, whole])) is None
    assert block_of(join_columns([whole, second, first])) is None
    joined = join_columns([whole, first, second])
    assert block_of(joined) is not None
    assert joined.payloads == [*whole.payloads, *other.payloads]


def test_payloads_of_a_block_are_unpacked_when_they_are_needed() -> None:
    columns = large(b"a")
    assert len(columns) == 100
    assert columns.payload_bytes() == sum(map(len, columns.payloads))
    assert columns == Columns(columns.payloads)
    assert columns.slice(10, 20).payloads == columns.payloads[10:20]
    with pytest.raises(AttributeError):
        columns.payload  # type: ignore[attr-defined]  # noqa: B018


def test_block_that_is_a_chain_is_refused_from_outside() -> None:
    columns = join_columns([large(b"a"), large(b"b")])
    block = block_of(columns)
    assert block is not None
    one = {"queue": "q", "partitions": ["p"], "counts": [200], "size": len(block.body)}
    head = msgspec.json.encode({"blocks": [one]})
    body = b"LSP1" + struct.pack("<i", len(head)) + head + block.body
    with pytest.raises(InvalidRequest, match="chain"):
        wire.PackedPush(body, items_max=100)
