"""Push: order, receipts, and that everything comes back as it was given."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from lockstep.core.ids import SEGMENT_MESSAGES_MAX
from lockstep.core.messages import Batch, Columns
from lockstep.errors import TooLarge
from lockstep.storage.base import Store
from support.builders import batch, binary_payload, configure, numbers, payloads, pop, pop_all, push_n, seqs
from support.clock import SetClock

TRACE_A = "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
TRACE_B = "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2c"


async def test_push_numbers_densely_from_one(store: Store) -> None:
    assert [receipt.seq for receipt in await push_n(store, "q", 3)] == [1, 2, 3]
    assert [receipt.seq for receipt in await push_n(store, "q", 2)] == [4, 5]


async def test_push_numbers_each_partition_on_its_own(store: Store) -> None:
    receipts = await store.push([batch("q", 2, partition="a"), batch("q", 3, partition="b"), batch("r", 1)])
    assert [(r.queue, r.partition, r.seq) for r in receipts] == [
        ("q", "a", 1),
        ("q", "a", 2),
        ("q", "b", 1),
        ("q", "b", 2),
        ("q", "b", 3),
        ("r", "Default", 1),
    ]


async def test_messages_come_back_in_push_order(store: Store) -> None:
    for start in (1, 4, 7):
        await push_n(store, "q", 3, start=start)
    assert numbers(await pop(store, "q", batch=100)) == list(range(1, 10))


async def test_message_is_visible_as_soon_as_its_push_answered(store: Store) -> None:
    assert not await pop(store, "q")
    await push_n(store, "q")
    assert numbers(await pop(store, "q")) == [1]


async def test_empty_push_stores_nothing(store: Store) -> None:
    assert list(await store.push([])) == []
    assert await store.queues() == []


async def test_receipts_are_in_input_order(store: Store) -> None:
    receipts = await store.push(
        [
            batch("b", 2, partition="z"),
            batch("a", 1, partition="y"),
            batch("b", 1, partition="x"),
            batch("a", 2, partition="y", start=2),
        ]
    )
    assert [receipt.index for receipt in receipts] == list(range(6))
    assert [(r.queue, r.partition) for r in receipts] == [
        ("b", "z"),
        ("b", "z"),
        ("a", "y"),
        ("b", "x"),
        ("a", "y"),
        ("a", "y"),
    ]
    assert all(receipt.status == "queued" for receipt in receipts)


async def test_receipt_names_the_message_that_pop_returns(store: Store) -> None:
    receipts = await store.push(
        [
            batch("q", 3, partition="a"),
            batch("q", 2, partition="b"),
            batch("q", 2, partition="a", start=4),
        ]
    )
    pushed = {(r.partition_id, r.seq): (r.message_id, r.transaction_id) for r in receipts}
    popped = {
        (m.partition_id, m.seq): (m.id, m.transaction_id)
        for m in (await pop(store, "q", batch=100, partitions=2)).messages()
    }
    assert popped == pushed


async def test_message_without_transaction_id_has_its_own_id_as_one(store: Store) -> None:
    [receipt] = await push_n(store, "q")
    assert receipt.transaction_id == receipt.message_id


async def test_message_ids_are_uuid7_and_rise_within_partition(store: Store) -> None:
    ids = [receipt.message_id for _ in range(20) for receipt in await push_n(store, "q", 5)]
    assert len(set(ids)) == 100
    assert ids == sorted(ids)
    assert {(UUID(text).version, str(UUID(text)) == text) for text in ids} == {(7, True)}


async def test_message_carries_time_of_its_push(store: Store, clock: SetClock) -> None:
    first = clock.now
    await push_n(store, "q")
    second = clock.advance(0.000_001)
    await push_n(store, "q")
    assert [m.created_at for m in (await pop(store, "q", batch=2)).messages()] == [first, second]


async def test_several_batches_for_one_partition_follow_each_other(store: Store) -> None:
    receipts = await store.push(
        [
            batch("q", 2, partition="a", start=1),
            batch("q", 1, partition="b", start=100),
            batch("q", 2, partition="a", start=3),
            batch("q", 1, partition="b", start=101),
            batch("q", 1, partition="a", start=5),
        ]
    )
    assert [(r.partition, r.seq) for r in receipts] == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("a", 3),
        ("a", 4),
        ("b", 2),
        ("a", 5),
    ]
    assert numbers(await pop(store, "q", partition="a", batch=100)) == [1, 2, 3, 4, 5]
    assert numbers(await pop(store, "q", partition="b", batch=100)) == [100, 101]


async def test_push_to_many_partitions_at_once(store: Store) -> None:
    await store.push([batch("q", 2, partition=f"p{number}", start=2 * number) for number in range(500)])
    found = await pop_all(store, "q")
    by_partition: dict[str, list[int]] = {}
    for message in found:
        by_partition.setdefault(message.partition, []).append(message.json()["n"])
    assert by_partition == {f"p{number}": [2 * number, 2 * number + 1] for number in range(500)}


async def test_push_larger_than_a_segment_is_refused(store: Store) -> None:
    with pytest.raises(TooLarge):
        await store.push([Batch.of("q", [b"1"] * SEGMENT_MESSAGES_MAX), Batch.of("q", [b"2"], partition="p")])
    assert await store.queues() == []


async def test_push_as_large_as_a_segment(store: Store) -> None:
    count = SEGMENT_MESSAGES_MAX - 2
    receipts = list(await store.push([Batch.of("q", [b"1"] * count), Batch.of("q", [b"2"] * 2)]))
    assert [receipt.seq for receipt in receipts] == list(range(1, count + 3))
    ids = [receipt.message_id for receipt in receipts]
    assert len(set(ids)) == count + 2
    assert ids == sorted(ids)

    popped = await pop(store, "q", batch=count + 10)
    assert [message.id for message in popped.messages()] == ids
    assert seqs(popped) == list(range(1, count + 3))
    assert popped.payloads()[-3:] == [b"1", b"2", b"2"]


@pytest.mark.parametrize("compression", ["zstd", "none"])
@pytest.mark.parametrize(
    "given",
    [
        pytest.param([b""], id="empty"),
        pytest.param([b"", b"{}", b""], id="empty-between"),
        pytest.param([b"\x00", b"\xff\xfe", binary_payload(1000)], id="binary"),
        pytest.param([b"null", b" 1 ", '{"ä": "日本"}'.encode()], id="json-as-it-is"),
        pytest.param([binary_payload(1_500_000), b"small"], id="large"),
    ],
)
async def test_payload_comes_back_byte_for_byte(store: Store, compression: str, given: list[bytes]) -> None:
    await configure(store, "q", compression=compression)
    await store.push([Batch.of("q", given)])
    assert (await pop(store, "q", batch=10)).payloads() == given


METADATA: dict[str, list[Any]] = {
    "transaction_ids": ["order-1", None, "Bestellung Nr. 3 – übergeben"],
    "trace_ids": [None, TRACE_A, TRACE_B],
    "kinds": ["order.created", "заказ", None],
    "references": [None, "https://example.org/?a=b&c=ü", "x" * 255],
    "encodings": ["avro", None, "protobuf"],
    "headers": [b'{"tenant":"m\xc3\xbcller","empty":""}', None, b"{}"],
    "producer_subs": ["anna", None, "日本"],
}


async def assert_comes_back(store: Store, columns: Columns) -> None:
    popped = list((await pop(store, "q", batch=len(columns))).messages())
    own_ids = [message.id for message in popped]
    given = columns.transaction_ids or [None] * len(columns)
    assert [m.transaction_id for m in popped] == [t or own for t, own in zip(given, own_ids, strict=True)]
    absent = [None] * len(columns)
    headers = [None if text is None else msgspec.json.decode(text) for text in columns.headers or absent]
    assert [m.payload for m in popped] == columns.payloads
    assert [m.trace_id for m in popped] == (columns.trace_ids or absent)
    assert [m.kind for m in popped] == (columns.kinds or absent)
    assert [m.reference for m in popped] == (columns.references or absent)
    assert [m.encoding for m in popped] == (columns.encodings or absent)
    assert [m.headers for m in popped] == headers
    assert [m.producer_sub for m in popped] == (columns.producer_subs or absent)


@pytest.mark.parametrize("compression", ["zstd", "none"])
async def test_metadata_comes_back_as_given(store: Store, compression: str) -> None:
    await configure(store, "q", compression=compression)
    columns = Columns(payloads(3), **METADATA)
    await store.push([Batch("q", "Default", columns)])
    await assert_comes_back(store, columns)


@pytest.mark.parametrize("name", sorted(METADATA))
async def test_each_kind_of_metadata_comes_back_alone(store: Store, name: str) -> None:
    columns = Columns(payloads(3), **{name: METADATA[name]})
    await store.push([Batch("q", "Default", columns)])
    await assert_comes_back(store, columns)


async def test_metadata_stays_with_its_message_among_plain_ones(store: Store) -> None:
    await store.push(
        [
            batch("q", 2, partition="a"),
            batch("q", 2, partition="b", kinds=["x", None], references=[None, "y"]),
            batch("q", 1, partition="a", start=3, kinds=["z"]),
        ]
    )
    popped = await pop(store, "q", batch=100, partitions=2)
    found = {(m.partition, m.seq): (m.kind, m.reference) for m in popped.messages()}
    assert found == {
        ("a", 1): (None, None),
        ("a", 2): (None, None),
        ("a", 3): ("z", None),
        ("b", 1): ("x", None),
        ("b", 2): (None, "y"),
    }


async def test_receipt_carries_trace_id(store: Store) -> None:
    receipts = await push_n(store, "q", 2, trace_ids=[TRACE_A, None])
    assert [receipt.trace_id for receipt in receipts] == [TRACE_A, None]


async def test_names_may_be_long_and_in_any_script(store: Store) -> None:
    queue, partition = "очередь " * 30, "区画🙂" * 60
    await push_n(store, queue, partition=partition)
    [message] = (await pop(store, queue, partition=partition)).messages()
    assert (message.queue, message.partition) == (queue, partition)


async def test_push_wakes_a_drained_partition(store: Store) -> None:
    await push_n(store, "q", 2)
    assert numbers(await pop_all(store, "q")) == [1, 2]
    assert not await pop(store, "q")
    await push_n(store, "q", 1, start=3)
    assert numbers(await pop_all(store, "q")) == [3]
