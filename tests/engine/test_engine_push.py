"""What the engine lets in, and in what form it hands it on."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from lockstep.config import Config
from lockstep.core.messages import Batch, Columns, NewMessage
from lockstep.core.records import Ack, PopRequest
from lockstep.engine.engine import Engine
from lockstep.errors import InvalidName, InvalidRequest, LockstepError, TooLarge
from lockstep.storage.memory import MemoryStore

TRACE = "0197e9a0-0000-7000-8000-00000000abcd"


async def popped(engine: Engine, queue: str = "q", partition: str | None = None) -> list[Any]:
    [result] = await engine.pop([PopRequest(queue=queue, partition=partition, batch=20, partitions=5)])
    return list(result.messages())


async def test_push_is_not_repeated_because_those_who_wait_could_not_be_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests that shared a call are tried one by one if it fails: they must not be, once it is committed."""
    store = MemoryStore()

    def fail(*_arguments: object) -> None:
        raise InvalidRequest("a surprise")

    monkeypatch.setattr(store, "announce", fail)
    async with Engine(store, Config()) as engine:
        pushes = [engine.push([Batch.of("q", [b"%d" % number])]) for number in range(5)]
        assert [result[0].seq for result in await asyncio.gather(*pushes)] == [1, 2, 3, 4, 5]
        [popped] = await engine.pop([PopRequest(queue="q", batch=10)])
        assert len(popped) == 5
        assert {record.action for record in caplog.records} == {"tell_failed"}
        assert (await engine.ack([Ack(lease_id=popped.lease_id)]))[0].success


async def test_batches_come_back_as_they_went(engine: Engine) -> None:
    receipts = await engine.push([Batch.of("q", [b"1", b"2"], partition="a"), Batch.of("q", [b"3"], partition="b")])
    assert [(receipt.index, receipt.partition, receipt.seq) for receipt in receipts] == [
        (0, "a", 1),
        (1, "a", 2),
        (2, "b", 1),
    ]
    assert [message.payload for message in await popped(engine, partition="a")] == [b"1", b"2"]


async def test_single_messages_are_grouped_and_their_receipts_are_in_input_order(engine: Engine) -> None:
    messages = [
        NewMessage(queue="q", partition="a", payload=b"1", transaction_id="t1"),
        NewMessage(queue="q", partition="b", payload=b"2", kind="k"),
        NewMessage(queue="r", payload=b"3"),
        NewMessage(queue="q", partition="a", payload=b"4", transaction_id="t1"),
        NewMessage(queue="q", partition="a", payload=b"5", headers={"h": "ü"}),
        NewMessage(queue="q", partition="b", payload=b"6"),
    ]
    receipts = await engine.push(messages)
    assert len(receipts) == 6
    assert [(r.index, r.queue, r.partition, r.seq, r.status) for r in receipts] == [
        (0, "q", "a", 1, "queued"),
        (1, "q", "b", 1, "queued"),
        (2, "r", "Default", 1, "queued"),
        (3, "q", "a", 1, "duplicate"),
        (4, "q", "a", 2, "queued"),
        (5, "q", "b", 2, "queued"),
    ]
    assert receipts[3].message_id == receipts[0].message_id
    first, second = await popped(engine, partition="a")
    assert (first.transaction_id, first.headers) == ("t1", None)
    assert (second.transaction_id, second.headers) == (receipts[4].message_id, {"h": "ü"})
    assert [message.kind for message in await popped(engine, partition="b")] == ["k", None]


async def test_every_field_of_a_single_message_is_kept(engine: Engine) -> None:
    message = NewMessage(
        queue="q",
        partition="p",
        payload=b"\x00\xff",
        transaction_id="t",
        trace_id=TRACE,
        kind="kind",
        reference="ref",
        encoding="avro",
        headers={"a": "b"},
        producer_sub="sub",
        expires_at=datetime.max.replace(tzinfo=UTC),
    )
    await engine.push([message])
    [found] = await popped(engine)
    asked_only = {"expire_seconds", "deliver_at", "delay_seconds", "schedule_key"}
    for name in set(NewMessage.__struct_fields__) - asked_only:
        assert getattr(found, name) == getattr(message, name), name


async def test_nothing_pushed_is_nothing_stored(engine: Engine) -> None:
    assert list(await engine.push([])) == []
    assert list(await engine.push([Batch.of("q", [])])) == []
    assert await engine.queues() == []


async def test_empty_batches_between_others_do_not_shift_receipts(engine: Engine) -> None:
    receipts = await engine.push([Batch.of("e", []), Batch.of("q", [b"1"]), Batch.of("e", []), Batch.of("q", [b"2"])])
    assert [(receipt.index, receipt.queue, receipt.seq) for receipt in receipts] == [(0, "q", 1), (1, "q", 2)]


@pytest.mark.parametrize(
    "spelling", [TRACE.upper(), TRACE.replace("-", ""), f"urn:uuid:{TRACE}", f"{{{TRACE}}}", UUID(TRACE)]
)
async def test_trace_ids_are_made_canonical_and_the_batch_is_not_touched(engine: Engine, spelling: Any) -> None:
    given: list[Any] = [spelling, None, TRACE]
    batch = Batch.of("q", [b"1", b"2", b"3"], trace_ids=given)
    receipts = await engine.push([batch])
    assert [receipt.trace_id for receipt in receipts] == [TRACE, None, TRACE]
    assert [message.seq for message in await engine.trace(spelling)] == [1, 3]
    assert batch.columns.trace_ids is given
    assert given == [spelling, None, TRACE]


def columns(**given: Any) -> list[Batch]:
    return [Batch("q", "p", Columns(**{"payloads": [b"1", b"2"], **given}))]


@pytest.mark.parametrize(
    ("messages", "error", "text"),
    [
        ([Batch.of("", [b"1"])], InvalidName, "queue"),
        ([Batch.of("q", [b"1"], partition="a\nb")], InvalidName, "partition"),
        ([Batch.of(5, [b"1"])], InvalidName, "queue"),  # type: ignore[arg-type]
        ([Batch.of(None, [b"1"])], InvalidName, "queue"),  # type: ignore[arg-type]
        ([Batch.of("q", [b"1"]), Batch.of("", [b"1"])], InvalidName, "queue"),
        ([Batch("q", "p", None)], InvalidRequest, "columns"),  # type: ignore[arg-type]
        ([Batch.of("q" * 256, [])], InvalidName, "queue"),
        (["message"], InvalidRequest, "str"),
        ([Batch.of("q", [b"1"]), NewMessage(queue="q", payload=b"1")], InvalidRequest, "mix"),
        (columns(payloads=[b"1", "2"]), InvalidRequest, "message 1: the payload must be bytes, not str"),
        (columns(payloads=[b"1", None]), InvalidRequest, "NoneType"),
        (columns(payloads=(b"1",)), InvalidRequest, "payloads must be a list"),
        (columns(payloads=None), InvalidRequest, "payloads must be a list"),
        (columns(payloads=[b"1", b"x" * 101]), TooLarge, "101 bytes"),
        (columns(payloads=[b"x" * 100] * 4), TooLarge, "400 bytes"),
        (columns(payloads=[b"x"] * 21), InvalidRequest, "21 messages"),
        (columns(kinds=["a"]), InvalidRequest, "kinds has 1 values for 2 messages"),
        (
            columns(transaction_ids=["a", ""]),
            InvalidRequest,
            "message 1: the transaction id must not be empty",
        ),
        (columns(transaction_ids=[None, "a" * 256]), InvalidRequest, "transaction id"),
        (columns(transaction_ids=["a", "b\x00"]), InvalidRequest, "transaction id 1 contains a NUL"),
        (columns(transaction_ids=["é", "\ud800"]), InvalidRequest, "transaction id 1 contains"),
        (columns(transaction_ids=["a", 5]), InvalidRequest, "transaction id 1 must be a string, not int"),
        (columns(trace_ids=[None, "no-uuid"]), InvalidRequest, "trace id"),
        (columns(trace_ids=[None, 5]), InvalidRequest, "trace id"),
        (columns(kinds=[None, "1234567"]), InvalidRequest, "kind"),
        (columns(references=["123456789", None]), InvalidRequest, "reference"),
        (columns(encodings=["12345", None]), InvalidRequest, "encoding"),
        (columns(producer_subs=["\x00", None]), InvalidRequest, "producer_sub"),
        (columns(headers=[None, b'{"a":1}']), InvalidRequest, "object of strings"),
        (columns(headers=[None, b"[]"]), InvalidRequest, "object of strings"),
        (columns(headers=[b"", None]), InvalidRequest, "object of strings"),
        (columns(headers=[b'{"a":"\xff"}', None]), InvalidRequest, "object of strings"),
        (columns(headers=[b'{"a":"\\u0000"}', None]), InvalidRequest, "NUL"),
        (columns(headers=[{"a": "b"}, None]), InvalidRequest, "encoded JSON, not dict"),
        (columns(headers=[b'{"a":"' + b"x" * 40 + b'"}', None]), TooLarge, "headers"),
        ([NewMessage(queue=["q"], payload=b"1")], InvalidName, "queue"),  # type: ignore[arg-type]
        ([NewMessage(queue="q", partition=None, payload=b"1")], InvalidName, "partition"),  # type: ignore[arg-type]
        ([NewMessage(queue="q", payload="1")], InvalidRequest, "payload"),  # type: ignore[arg-type]
        ([NewMessage(queue="q", payload=b"1", headers={"a": 1})], InvalidRequest, "headers"),  # type: ignore[dict-item]
        ([NewMessage(queue="q", payload=b"1", headers={1: "a"})], InvalidRequest, "headers"),  # type: ignore[dict-item]
        ([NewMessage(queue="q", payload=b"1", headers=[])], InvalidRequest, "headers"),  # type: ignore[arg-type]
        ([NewMessage(queue="q", payload=b"1", headers={"a": "\ud800"})], InvalidRequest, "surrogate"),
        ([NewMessage(queue="q", payload=b"1")] * 21, InvalidRequest, "21 messages"),
    ],
)
async def test_bad_message_is_refused(guarded: Engine, messages: Any, error: type[LockstepError], text: str) -> None:
    with pytest.raises(error, match=text):
        await guarded.push(messages)
    with pytest.raises(error, match=text):
        await guarded.transaction([], messages)


async def test_limits_are_inclusive(engine: Engine) -> None:
    await engine.push([Batch.of("q", [b"x" * 100] * 3)])
    await engine.push([Batch.of("q", [b"1"] * 20, transaction_ids=["t" * 254 + chr(65 + i) for i in range(20)])])
    await engine.push(columns(kinds=["123456", ""], references=["12345678", ""], encodings=["1234", ""]))
    largest = msgspec.json.encode({"a": "x" * 32})
    assert len(largest) == 40
    await engine.push(columns(headers=[largest, None]))


async def test_headers_that_spell_a_backslash_are_no_nul(engine: Engine) -> None:
    await engine.push([NewMessage(queue="q", payload=b"1", headers={"a": "\\u0000"})])
    [message] = await popped(engine)
    assert message.headers == {"a": "\\u0000"}


async def test_one_bad_message_keeps_out_all_of_them(engine: Engine) -> None:
    with pytest.raises(InvalidRequest):
        await engine.push([Batch.of("q", [b"1"]), Batch.of("q", [b"2"], trace_ids=["bad"])])
    assert await engine.queues() == []


async def test_transaction_takes_single_messages(engine: Engine) -> None:
    await engine.push([Batch.of("q", [b"1"])])
    [leased] = await engine.pop([PopRequest(queue="q")])
    messages = [NewMessage(queue=name, payload=b"2") for name in ("a", "b", "a")]
    result = await engine.transaction([Ack(lease_id=leased.lease_id)], messages)
    assert [outcome.success for outcome in result.acks] == [True]
    assert [(receipt.queue, receipt.seq) for receipt in result.pushed] == [("a", 1), ("b", 1), ("a", 2)]
