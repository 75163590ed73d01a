"""A transaction id is stored once per partition; the second push names the first message."""

from __future__ import annotations

import pytest

from lockstep.core.messages import Batch
from lockstep.storage.base import Store
from support.builders import numbers, pop, pop_all, push_n, push_tagged, seqs, tagged
from support.clock import SetClock

UUIDS = [
    "0190a1b2-c3d4-7e5f-8a6b-000000000001",
    "0190a1b2-c3d4-7e5f-8a6b-000000000002",
    "0190a1b2-c3d4-7e5f-8a6b-000000000003",
]
TEXTS = ["order-1", "order-2", "order-3"]
MIXED = [UUIDS[0], TEXTS[1], UUIDS[2]]

ids_of_each_kind = pytest.mark.parametrize("ids", [TEXTS, UUIDS, MIXED], ids=["text", "uuid", "mixed"])


@ids_of_each_kind
async def test_duplicate_within_batch(store: Store, ids: list[str]) -> None:
    a, b, _ = ids
    receipts = await push_tagged(store, "q", a, b, a, b, a)
    assert [receipt.status for receipt in receipts] == ["queued", "queued", *["duplicate"] * 3]
    assert [receipt.seq for receipt in receipts] == [1, 2, 1, 2, 1]
    assert [receipt.message_id for receipt in receipts[2:]] == [receipts[i].message_id for i in (0, 1, 0)]
    assert numbers(await pop(store, "q", batch=10)) == [1, 2]


@ids_of_each_kind
async def test_duplicate_of_earlier_push(store: Store, ids: list[str]) -> None:
    first = await push_tagged(store, "q", *ids)
    second = await push_tagged(store, "q", *reversed(ids))
    assert [receipt.status for receipt in second] == ["duplicate"] * 3
    assert [(r.seq, r.message_id) for r in reversed(second)] == [(r.seq, r.message_id) for r in first]
    assert [receipt.transaction_id for receipt in second] == list(reversed(ids))
    assert len(await pop(store, "q", batch=10)) == 3


@ids_of_each_kind
async def test_duplicates_among_new_messages_leave_no_gap(store: Store, ids: list[str]) -> None:
    a, b, c = ids
    await push_tagged(store, "q", b)
    receipts = await push_tagged(store, "q", a, b, None, a, c, None, b)
    assert [(r.status, r.seq) for r in receipts] == [
        ("queued", 2),
        ("duplicate", 1),
        ("queued", 3),
        ("duplicate", 2),
        ("queued", 4),
        ("queued", 5),
        ("duplicate", 1),
    ]
    popped = await pop(store, "q", batch=10)
    assert seqs(popped) == [1, 2, 3, 4, 5]
    assert numbers(popped) == [1, 1, 3, 5, 6]
    new = {r.seq: r.message_id for r in receipts if r.status == "queued"}
    assert {m.seq: m.id for m in popped.messages() if m.seq > 1} == new


async def test_push_result_counts_duplicates(store: Store) -> None:
    assert (await store.push([tagged("q", ["a", "b", "a"]), tagged("q", ["b", "c"])])).duplicates == 2


async def test_duplicate_across_batches_of_one_call(store: Store) -> None:
    receipts = list(
        await store.push([tagged("q", ["a", "b"]), tagged("q", ["x"], partition="p"), tagged("q", ["b", "c"])])
    )
    assert [(r.partition, r.status, r.seq) for r in receipts] == [
        ("Default", "queued", 1),
        ("Default", "queued", 2),
        ("p", "queued", 1),
        ("Default", "duplicate", 2),
        ("Default", "queued", 3),
    ]
    assert receipts[3].message_id == receipts[1].message_id


@ids_of_each_kind
async def test_transaction_id_counts_per_partition(store: Store, ids: list[str]) -> None:
    receipts = await store.push(
        [tagged("q", ids, partition="a"), tagged("q", ids, partition="b"), tagged("r", ids, partition="a")]
    )
    assert {receipt.status for receipt in receipts} == {"queued"}
    assert len(await pop_all(store, "q")) == 6
    assert len(await pop_all(store, "r")) == 3


async def test_push_of_duplicates_alone_stores_nothing(store: Store) -> None:
    await push_tagged(store, "q", "a")
    await pop_all(store, "q")
    await push_tagged(store, "q", "a", "a")
    assert (await store.partition("q", "Default")).last_seq == 1
    assert not await pop(store, "q")


async def test_duplicates_alone_in_one_queue_and_new_messages_in_another(store: Store) -> None:
    [first] = await push_tagged(store, "b", "t")
    receipts = await store.push(
        [tagged("a", ["t"]), tagged("b", ["t"]), tagged("c", ["t", "t"]), tagged("b", ["t"], partition="p")]
    )
    assert [(r.queue, r.partition, r.status, r.seq) for r in receipts] == [
        ("a", "Default", "queued", 1),
        ("b", "Default", "duplicate", 1),
        ("c", "Default", "queued", 1),
        ("c", "Default", "duplicate", 1),
        ("b", "p", "queued", 1),
    ]
    assert receipts[1].message_id == first.message_id
    receipts = await store.push([tagged("b", ["t"]), tagged("d", ["t"])])
    assert [r.status for r in receipts] == ["duplicate", "queued"]
    assert [m.id for m in await pop_all(store, "d")] == [receipts[1].message_id]


async def test_first_payload_wins(store: Store) -> None:
    await push_n(store, "q", 1, start=10, transaction_ids=["a"])
    await push_n(store, "q", 1, start=20, transaction_ids=["a"])
    assert numbers(await pop_all(store, "q")) == [10]


async def test_duplicate_is_known_after_message_was_consumed(store: Store, clock: SetClock) -> None:
    [first] = await push_tagged(store, "q", "a")
    await pop_all(store, "q")
    clock.advance(3600)
    [second] = await push_tagged(store, "q", "a")
    assert (second.status, second.message_id) == ("duplicate", first.message_id)


@pytest.mark.parametrize(
    "other",
    [
        UUIDS[0].upper(),
        UUIDS[0].replace("-", ""),
        "{" + UUIDS[0] + "}",
        "urn:uuid:" + UUIDS[0],
        UUIDS[0] + " ",
    ],
    ids=["upper-case", "without-hyphens", "in-braces", "urn", "with-a-blank"],
)
async def test_other_spelling_of_a_uuid_is_another_transaction_id(store: Store, other: str) -> None:
    receipts = await push_tagged(store, "q", UUIDS[0], other, other, UUIDS[0])
    assert [(r.status, r.seq) for r in receipts] == [
        ("queued", 1),
        ("queued", 2),
        ("duplicate", 2),
        ("duplicate", 1),
    ]
    popped = await pop(store, "q", batch=10)
    assert [message.transaction_id for message in popped.messages()] == [UUIDS[0], other]


@pytest.mark.parametrize("text", ["ß", "日本語", "a'b\"c\\d", "%s {}", "x" * 255, "e\u0301"], ids=ascii)
async def test_transaction_id_is_any_text(store: Store, text: str) -> None:
    receipts = await push_tagged(store, "q", text, text)
    assert [receipt.status for receipt in receipts] == ["queued", "duplicate"]
    assert [m.transaction_id for m in (await pop(store, "q", batch=2)).messages()] == [text]


async def test_texts_that_only_look_the_same_differ(store: Store) -> None:
    texts = ["e\u0301", "\u00e9", "E\u0301", "a", "A", "a "]
    receipts = await push_tagged(store, "q", *texts)
    assert [receipt.status for receipt in receipts] == ["queued"] * len(texts)


async def test_many_duplicates_at_once(store: Store) -> None:
    ids = [f"order-{number}" for number in range(2000)]
    await push_tagged(store, "q", *ids[::2])
    receipts = await push_tagged(store, "q", *ids)
    assert [r.status for r in receipts] == ["duplicate", "queued"] * 1000
    assert [r.seq for r in receipts[::2]] == list(range(1, 1001))
    assert [r.seq for r in receipts[1::2]] == list(range(1001, 2001))


async def test_queue_of_which_all_is_duplicate_beside_one_with_new_messages(store: Store) -> None:
    [first] = await store.push([Batch.of("b", [b"1"], transaction_ids=["x"])])
    receipts = list(
        await store.push([Batch.of("a", [b"2"]), Batch.of("b", [b"3"], transaction_ids=["x"]), Batch.of("a", [b"4"])])
    )
    assert [(r.queue, r.status, r.seq) for r in receipts] == [
        ("a", "queued", 1),
        ("b", "duplicate", 1),
        ("a", "queued", 2),
    ]
    assert receipts[1].message_id == first.message_id


async def test_some_duplicates_among_many_new_messages(store: Store) -> None:
    uuids = [f"0190a1b2-c3d4-7e5f-8a6b-{number:012x}" for number in range(60)]
    given = [uuids[number] if number % 3 else f"order-{number}" for number in range(60)]
    first = await push_tagged(store, "q", *given[:40])
    assert [(one.status, one.seq) for one in first] == [("queued", seq) for seq in range(1, 41)]
    second = await push_tagged(store, "q", *reversed(given[20:]))
    found = [(one.status, one.seq) for one in second]
    assert found == [*[("queued", seq) for seq in range(41, 61)], *[("duplicate", seq) for seq in range(40, 20, -1)]]
    assert [one.message_id for one in reversed(second[20:])] == [one.message_id for one in first[20:]]
    third = await push_tagged(store, "q", *given)
    assert {one.status for one in third} == {"duplicate"}
    popped = await pop(store, "q", batch=100)
    assert seqs(popped) == list(range(1, 61))
    assert [one.transaction_id for one in popped.messages()] == [*given[:40], *reversed(given[40:])]


async def test_one_transaction_id_in_two_partitions_among_many(store: Store) -> None:
    ids = [f"order-{number}" for number in range(30)]
    batches = [tagged("q", ids, partition="a"), tagged("q", ids, partition="b")]
    assert {one.status for one in await store.push(batches)} == {"queued"}
    assert {one.status for one in await store.push(batches)} == {"duplicate"}
    assert len(await pop_all(store, "q")) == 60
