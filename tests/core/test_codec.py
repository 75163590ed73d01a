"""The stored form of a segment: everything comes back, and what is damaged is told, never crashed on."""

from __future__ import annotations

import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.codec import NO_KEYS, Codec, decode, encode, seal, unseal
from lockstep.core.layouts import pack
from lockstep.core.messages import COLUMN_NAMES, Columns
from lockstep.core.sealing import Keyring
from lockstep.errors import CorruptSegment
from support.builders import payloads
from support.fuzz import examples

KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
uuids = st.uuids().map(str)
transaction_ids = st.one_of(
    texts.filter(bool),
    uuids,
    uuids.map(str.upper),
    uuids.map(lambda text: text.replace("-", "")),
    uuids.map(lambda text: f"{{{text}}}"),
)


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    count = draw(st.integers(0, 12))

    def column(values: st.SearchStrategy[Any]) -> list[Any] | None:
        full = st.lists(values, min_size=count, max_size=count)
        with_gaps = st.lists(st.none() | values, min_size=count, max_size=count)
        found: list[Any] | None = draw(st.none() | full | with_gaps)
        return found

    return Columns(
        payloads=draw(st.lists(st.binary(max_size=40), min_size=count, max_size=count)),
        transaction_ids=column(transaction_ids),
        trace_ids=column(uuids),
        kinds=column(texts),
        references=column(texts),
        encodings=column(texts),
        headers=column(st.binary(max_size=30)),
        producer_subs=column(texts),
        expires_at=column(st.datetimes(timezones=st.just(UTC))),
    )


def values_of(found: Columns) -> list[list[Any]]:
    """All columns filled up: that no message has a value is told by None, or by a column of it."""
    return [column if column is not None else [None] * len(found) for column in found.all()]


def example() -> Columns:
    """Every kind of column, with and without gaps."""
    return Columns(
        payloads=[*payloads(6), b"", b"\x00\xff"],
        transaction_ids=[str(UUID(int=n << 64)) if n % 2 else f"täg-{n}" for n in range(8)],
        trace_ids=[None, *(str(UUID(int=n)) for n in range(7))],
        kinds=["käse"] * 8,
        references=[None] * 7 + ["r"],
        encodings=[None, "avro"] * 4,
        headers=[b"{}", None] * 4,
        producer_subs=["日本"] * 8,
        expires_at=[None, *(datetime(1900 + 50 * n, 1, 1, 0, 0, 0, n, tzinfo=UTC) for n in range(7))],
    )


# --- There and back ---------------------------------------------------------------------------------------------


@given(columns())
@examples(50, soak=5000)
def test_columns_come_back_from_their_layout(given: Columns) -> None:
    assert values_of(decode(encode(given))) == values_of(given)


@given(columns(), st.none() | st.binary(min_size=32, max_size=32))
@examples(50, soak=5000)
def test_columns_come_back_from_a_sealed_body(given: Columns, key: bytes | None) -> None:
    keys = None if key is None else Keyring((key,))
    codec, body = seal(encode(given), keys=keys, binding=b"place")
    assert values_of(decode(unseal(codec, body, keys=keys or NO_KEYS, binding=b"place"))) == values_of(given)


@given(st.lists(uuids, min_size=1, max_size=30))
@examples(50, soak=5000)
def test_canonical_uuids_take_sixteen_bytes_each(ids: list[str]) -> None:
    bare = Columns([b""] * len(ids))
    with_ids = Columns([b""] * len(ids), transaction_ids=list(ids))
    assert len(encode(with_ids)) - len(encode(bare)) == len(ids) * (4 + 16)
    assert decode(encode(with_ids)).transaction_ids == ids


@given(st.lists(uuids, min_size=1, max_size=5), st.sampled_from([str.upper, lambda t: t.replace("-", "")]))
@examples(50, soak=5000)
def test_other_spellings_of_uuids_come_back_as_they_were_spelled(ids: list[str], spell: Callable[[str], str]) -> None:
    spelled: list[str | None] = [*ids, *map(spell, ids)]
    assert decode(encode(Columns([b""] * len(spelled), transaction_ids=spelled))).transaction_ids == spelled


def test_column_that_no_message_uses_takes_no_room() -> None:
    bare = encode(Columns(payloads(3)))
    assert len(bare) == 12 + 3 * 4 + sum(map(len, payloads(3)))
    absent = decode(bare)
    assert [getattr(absent, name) for name in COLUMN_NAMES[1:]] == [None] * 8


def test_no_messages_at_all() -> None:
    assert decode(encode(Columns([]))).payloads == []


def test_empty_values_are_not_missing_ones() -> None:
    found = decode(encode(Columns([b"", b"x"], kinds=["", None], headers=[None, b""])))
    assert (found.payloads, found.kinds, found.headers) == ([b"", b"x"], ["", None], [None, b""])


def test_stored_form_is_the_one_that_was_released() -> None:
    """Databases out there hold it: what it is made of may be added to, but never change."""
    given = Columns(
        [b"a", b"bc"],
        transaction_ids=["00000000-0000-0000-0000-000000000001", "t"],
        kinds=[None, "k"],
    )
    layout = b"".join(
        [
            b"LSG1" + struct.pack("<ii", 2, 0b10111),
            struct.pack("<ii", 1, 2) + b"abc",
            struct.pack("<ii", 16, -1) + UUID(int=1).bytes,
            struct.pack("<ii", -1, 1) + b"t",
            struct.pack("<ii", -1, 1) + b"k",
        ]
    )
    assert encode(given) == layout
    assert values_of(decode(layout)) == values_of(given)


def test_threads_seal_and_unseal_at_once() -> None:
    layouts = [encode(Columns([b"%d" % number * 1000])) for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        bodies = list(pool.map(pack, layouts))
        assert list(pool.map(lambda body: unseal(Codec.PACKED, body), bodies)) == layouts


# --- Damage -------------------------------------------------------------------------------------------------------


def flipped(data: bytes, bit: int) -> bytes:
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def outcome(read: Callable[[], Columns]) -> str:
    """What becomes of damaged bytes: told, decoded all the same, or a crash."""
    try:
        read()
    except CorruptSegment:
        return "told"
    except Exception as error:
        return type(error).__name__
    return "decoded"


def test_layout_that_is_cut_short_anywhere_is_told() -> None:
    layout = encode(example())
    assert {outcome(lambda: decode(layout[:length])) for length in range(len(layout))} == {"told"}  # noqa: B023


def test_body_that_is_cut_short_anywhere_is_told() -> None:
    body = pack(encode(example()))
    found = {outcome(lambda: decode(unseal(Codec.PACKED, body[:length]))) for length in range(len(body))}  # noqa: B023
    assert found == {"told"}


def test_layout_with_something_after_its_end_is_told() -> None:
    with pytest.raises(CorruptSegment, match="wrong length"):
        decode(encode(example()) + b"\x00")


def test_layout_with_a_flipped_bit_is_told_or_decoded() -> None:
    layout = encode(example())
    found = {outcome(lambda: decode(flipped(layout, bit))) for bit in range(8 * len(layout))}  # noqa: B023
    assert found <= {"told", "decoded"}


def test_body_with_a_flipped_bit_is_told_or_means_the_same() -> None:
    """A few bits of a frame say nothing; no flipped bit makes other messages of it."""
    layout = encode(example())
    body = pack(layout)
    told = 0
    for bit in range(8 * len(body)):
        try:
            assert unseal(Codec.PACKED, flipped(body, bit)) == layout
        except CorruptSegment:
            told += 1
    assert told > 0.95 * 8 * len(body)


def test_body_that_declares_an_absurd_size_is_told() -> None:
    body = pack(encode(example()))
    # A single-segment frame with an eight-byte content size of an exbibyte.
    absurd = body[:4] + bytes([0xE0]) + struct.pack("<Q", 1 << 60) + body[13:]
    assert outcome(lambda: decode(unseal(Codec.PACKED, absurd))) == "told"


@given(st.binary(max_size=200))
@examples(100, soak=5000)
def test_noise_is_told(noise: bytes) -> None:
    assert outcome(lambda: decode(noise)) == "told"
    assert outcome(lambda: decode(unseal(Codec.PACKED, noise))) == "told"


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.binary(max_size=100))
@examples(50, soak=5000)
def test_noise_behind_a_good_beginning_does_not_crash(count: int, mask: int, noise: bytes) -> None:
    layout = struct.pack("<4sii", b"LSG1", count, mask & ~0b1011111100) + noise
    assert outcome(lambda: decode(layout)) in {"told", "decoded"}


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        pytest.param(b"", "cut short", id="empty"),
        pytest.param(b"LSG2" + bytes(8), "does not begin as one", id="magic"),
        pytest.param(b"LSG1" + struct.pack("<ii", -1, 1), "does not begin as one", id="negative-count"),
        pytest.param(b"LSG1" + struct.pack("<ii", 0, 1 << 10), "does not begin as one", id="unknown-column"),
        pytest.param(b"LSG1" + struct.pack("<ii", 2**31 - 1, 1), "cut short", id="huge-count"),
        pytest.param(b"LSG1" + struct.pack("<iii", 1, 1, -2), "negative length", id="negative-length"),
        pytest.param(b"LSG1" + struct.pack("<iii", 1, 1, 9) + b"x", "cut short", id="long-value"),
        pytest.param(b"LSG1" + struct.pack("<ii", 0, 0), "without a payload", id="no-payloads"),
        pytest.param(b"LSG1" + struct.pack("<iiii", 1, 1 | 1 << 9, 0, 3) + b"abc", "a time", id="short-time"),
        pytest.param(b"LSG1" + struct.pack("<iiiiq", 1, 1 | 1 << 9, 0, 8, 2**62), "a time", id="far-time"),
    ],
)
def test_layout_that_cannot_be_is_told_why(layout: bytes, told: str) -> None:
    with pytest.raises(CorruptSegment, match=told):
        decode(layout)


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(b"LSG1" + struct.pack("<iii", 1, 1, -1), id="payload-missing"),
        pytest.param(b"LSG1" + struct.pack("<iiii", 1, 0b11, 0, 3) + b"abc", id="short-transaction-uuid"),
        pytest.param(b"LSG1" + struct.pack("<iiii", 1, 0b1001, 0, 3) + b"abc", id="short-trace-id"),
    ],
)
def test_layout_with_values_that_cannot_be_is_told(layout: bytes) -> None:
    with pytest.raises(CorruptSegment):
        decode(layout)


def test_bytes_that_are_no_frame_are_told() -> None:
    with pytest.raises(CorruptSegment, match="does not decompress"):
        unseal(Codec.PACKED, b"no frame")
    with pytest.raises(CorruptSegment):
        decode(unseal(Codec.PACKED, zstandard.compress(b"something else")))
