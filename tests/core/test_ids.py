"""UUIDv7, and message ids that are computed and never stored."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.ids import (
    SEGMENT_MESSAGES_MAX,
    all_canonical_uuids,
    is_canonical_uuid,
    message_id,
    parse_uuid,
    segment_uuid7,
    split_message_id,
    uuid7,
)
from lockstep.errors import InvalidRequest

ordinals = st.integers(0, SEGMENT_MESSAGES_MAX - 1)
times = st.integers(0, (1 << 48) * 1_000_000 - 1)
"""In nanoseconds, as far as 48 bits of milliseconds reach."""

NOW_NS = 1_777_629_600_123_456_789

OTHER_SPELLINGS = [
    "0190A1B2-C3D4-7E5F-8A6B-7C8D9E0F1A2B",
    "0190a1b2c3d47e5f8a6b7c8d9e0f1a2b",
    "{0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b}",
    "urn:uuid:0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b",
]
CANONICAL = "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"


# --- UUIDv7 -----------------------------------------------------------------------------------------------------


@given(times)
def test_uuid7_has_its_version_variant_and_time(unix_ns: int) -> None:
    made = uuid7(unix_ns)
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert made.int >> 80 == unix_ns // 1_000_000


@given(st.lists(times, min_size=2, max_size=20))
def test_uuid7_sorts_by_time_to_a_quarter_of_a_microsecond(moments: list[int]) -> None:
    apart = sorted({moment // 250 * 250 for moment in moments})
    made = [uuid7(moment).int >> 64 for moment in apart]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_uuid7_of_the_same_moment_are_different() -> None:
    assert len({uuid7(1) for _ in range(1000)}) == 1000


# --- Messages ---------------------------------------------------------------------------------------------------


@given(times)
def test_segment_has_room_for_the_ordinal(unix_ns: int) -> None:
    segment = segment_uuid7(unix_ns)
    assert segment.version == 7
    assert segment.int & (SEGMENT_MESSAGES_MAX - 1) == 0


@given(times, ordinals)
def test_message_id_leads_back_to_its_segment(unix_ns: int, ordinal: int) -> None:
    segment = segment_uuid7(unix_ns)
    text = message_id(segment, ordinal)
    assert split_message_id(text) == (segment, ordinal)
    assert is_canonical_uuid(text)
    assert UUID(text).version == 7


@given(ordinals, ordinals)
def test_message_ids_rise_with_the_ordinal(first: int, second: int) -> None:
    segment = segment_uuid7(NOW_NS)
    ids = message_id(segment, first), message_id(segment, second)
    assert (ids[0] < ids[1]) == (first < second)
    assert (ids[0] == ids[1]) == (first == second)


def test_first_and_last_message_of_a_segment() -> None:
    segment = segment_uuid7(NOW_NS)
    assert message_id(segment, 0) == str(segment)
    assert message_id(segment, SEGMENT_MESSAGES_MAX - 1) == str(segment)[:-4] + "ffff"


def test_ids_of_two_segments_never_meet() -> None:
    one, other = segment_uuid7(5), segment_uuid7(5)
    assert one != other
    assert not {message_id(one, n) for n in range(500)} & {message_id(other, n) for n in range(500)}


@pytest.mark.parametrize("text", OTHER_SPELLINGS)
def test_message_id_may_be_spelled_otherwise(text: str) -> None:
    assert split_message_id(text) == split_message_id(CANONICAL)


# --- Reading ----------------------------------------------------------------------------------------------------


@given(st.uuids())
def test_canonical_text_is_canonical_and_no_other(uuid: UUID) -> None:
    text = str(uuid)
    assert is_canonical_uuid(text)
    assert parse_uuid(text, what="id") == parse_uuid(uuid, what="id") == uuid
    assert not is_canonical_uuid(text[:-1])
    assert not is_canonical_uuid(text + "0")
    assert is_canonical_uuid(text.upper()) == (text == text.upper())


@pytest.mark.parametrize(
    "text",
    [
        *OTHER_SPELLINGS,
        "",
        CANONICAL + "\n",
        " " + CANONICAL[1:],
        CANONICAL.replace("-", "_"),
        CANONICAL.replace("0", "g"),
        CANONICAL.replace("1", "١"),
        CANONICAL[:8] + CANONICAL[9:] + "-",
    ],
)
def test_other_texts_are_not_canonical(text: str) -> None:
    assert not is_canonical_uuid(text)
    assert not all_canonical_uuids([CANONICAL, text])
    assert not all_canonical_uuids([text, CANONICAL])


@given(st.lists(st.one_of(st.uuids().map(str), st.text(max_size=40), st.text("0123456789abcdef-", max_size=37))))
def test_all_at_once_is_each_on_its_own(texts: list[str]) -> None:
    assert all_canonical_uuids(texts) == all(map(is_canonical_uuid, texts))


def test_texts_that_only_look_right_when_they_are_joined() -> None:
    joined = CANONICAL + str(uuid4())
    assert not all_canonical_uuids([joined[:30], joined[30:]])
    assert not all_canonical_uuids([joined])


@pytest.mark.parametrize("bad", ["", "no uuid", CANONICAL[:-1], "x" * 1000, None, 7, b"0" * 16])
def test_what_is_no_uuid_is_told_with_what_it_was_meant_to_be(bad: object) -> None:
    with pytest.raises(InvalidRequest, match="trace id is not a UUID") as refused:
        parse_uuid(bad, what="trace id")
    assert len(refused.value.message) < 120


def test_message_id_that_is_none_is_told() -> None:
    with pytest.raises(InvalidRequest, match="message id is not a UUID"):
        split_message_id("no id")
