"""Packed bodies over HTTP: pushes that are stored as they came, and answers of pops."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import asyncpg
import msgspec
import pytest

from lockstep import Batch, Engine, NewMessage, PopRequest, connect
from lockstep.client._protocol.pushes import PACKED_MESSAGES_MIN
from lockstep.config import load
from lockstep.core.codec import encode
from lockstep.core.layouts import pack
from lockstep.core.messages import Columns, NewSchedule, Receipt
from lockstep.core.policy import QueueOptions
from lockstep.core.wire import delivery as wire
from lockstep.errors import QueueFull
from lockstep.storage.postgres.store import PostgresStore
from support.databases import Databases
from support.http import Answer, Http
from support.server import ServerProcess

PACKED = {"content-type": wire.PACKED}
LARGE = [b'{"text":"%d %s"}' % (i, b"x" * 100) for i in range(40)]


def push(http: Http, *batches: Batch) -> list[Receipt]:
    answer = http.send("POST", "/api/v1/push", wire.write_push(batches), PACKED)
    assert answer.status == 201, answer.body
    return list(wire.read_receipts(answer.body, batches, None))


def pop(http: Http, queue: str, **query: object) -> Answer:
    named = "&".join(f"{name}={value}" for name, value in query.items())
    return http.send("GET", f"/api/v1/pop/queue/{queue}?{named}", headers={"accept": wire.PACKED})


def test_packed_push_is_popped_as_json_and_packed(http: Http, queue: str) -> None:
    columns = Columns(
        [b'{"a":1}', b"\xff", b"3"],
        transaction_ids=["one", None, "three"],
        kinds=["k", None, None],
        encodings=[None, "raw", None],
        headers=[b'{"a":"b"}', None, None],
        expires_at=[None, None, datetime(2100, 1, 1, tzinfo=UTC)],
    )
    receipts = push(http, Batch(queue, "p", columns), Batch.of(queue, [b"4"], partition="other"))
    assert [(one.status, one.partition, one.seq) for one in receipts] == [
        ("queued", "p", 1),
        ("queued", "p", 2),
        ("queued", "p", 3),
        ("queued", "other", 1),
    ]
    as_json = http.pop(queue, consumerGroup="json", batch=10, partitions=10)["messages"]
    answer = pop(http, queue, consumerGroup="packed", batch=10, partitions=10)
    assert (answer.status, answer.headers["content-type"]) == (200, wire.PACKED)
    found = list(wire.read_popped(answer.body).messages())
    assert [(one.id, one.partition, one.seq) for one in found] == [
        (one["id"], one["partition"], one["seq"]) for one in as_json
    ]
    mine = [one for one in found if one.partition == "p"]
    assert [one.payload for one in mine] == columns.payloads
    assert [one.transaction_id for one in mine] == ["one", mine[1].id, "three"]
    assert (mine[0].headers, mine[0].kind, mine[1].encoding) == ({"a": "b"}, "k", "raw")
    assert mine[2].expires_at == datetime(2100, 1, 1, tzinfo=UTC)
    assert [one.id for one in found] == [
        one.message_id for one in sorted(receipts, key=lambda r: r.partition != found[0].partition)
    ]


def test_json_push_is_popped_packed(http: Http, queue: str) -> None:
    http.push(queue, {"a": 1}, 2, transactionId="same")
    [message] = wire.read_popped(pop(http, queue, batch=10).body).messages()
    assert (message.json(), message.transaction_id) == ({"a": 1}, "same")
    assert pop(http, queue).status == 204


def test_duplicates_and_schedules_are_in_the_receipts(http: Http, queue: str) -> None:
    first = push(http, Batch(queue, "p", Columns([b"1", b"2"], transaction_ids=["a", "b"])))
    again = push(
        http,
        Batch(queue, "p", Columns([b"1", b"3", b"2"], transaction_ids=["a", "c", "b"])),
        Batch(queue, "p", Columns([b"9"]), schedule=NewSchedule(delay_seconds=600, key="later")),
    )
    assert [one.status for one in again] == ["duplicate", "queued", "duplicate", "scheduled"]
    assert [one.message_id for one in (again[0], again[2])] == [one.message_id for one in first]
    assert again[3].schedule_id is not None
    [row] = http.get("/api/v1/schedules", queue=queue).json()["schedules"]
    assert row["id"] == str(again[3].schedule_id)


def test_full_queue_and_how_full_it_is(http: Http, queue: str) -> None:
    http.post("/api/v1/configure", {"queue": queue, "options": {"maxSize": 3}})
    [receipt, _] = push(http, Batch.of(queue, [b"1", b"2"]))
    assert (receipt.depth, receipt.remaining) == (2, 1)
    answer = http.send("POST", "/api/v1/push", wire.write_push([Batch.of(queue, [b"3", b"4"])]), PACKED)
    assert (answer.status, answer.code) == (QueueFull.status, QueueFull.code)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_request"),
        (b"{}", "invalid_request"),
        (wire.write_push([Batch.of("q", [b"{"])]), "invalid_payload"),
        (wire.write_push([Batch.of("", [b"1"])]), "invalid_name"),
        (wire.write_push([Batch.of("q", [b"1"], partition="a\0b")]), "invalid_name"),
        (wire.write_push([Batch.of("q", [b"1"], headers=[b"[1]"])]), "invalid_request"),
        (wire.write_push([Batch.of("q", [b'"%s"' % (b"x" * 70_000_000)])]), "too_large"),
    ],
)
def test_bad_bodies_change_nothing(http: Http, queue: str, body: bytes, code: str) -> None:
    good = wire.write_push([Batch.of(queue, [b"1"])])
    assert http.send("POST", "/api/v1/push", good, PACKED).status == 201
    before = http.get(f"/api/v1/resources/queues/{queue}").json()["totals"]["total"]
    answer = http.send("POST", "/api/v1/push", body, PACKED)
    assert (answer.status // 100, answer.code) == (4, code)
    assert http.get(f"/api/v1/resources/queues/{queue}").json()["totals"]["total"] == before


def test_bytes_of_a_block_are_stored_as_they_came(postgres_server: ServerProcess, queue: str) -> None:
    http = Http(postgres_server.url)
    columns = Columns(LARGE, kinds=["k"] * 40)
    push(http, Batch(queue, "a", columns.slice(0, 10)), Batch(queue, "b", columns.slice(10, 40)))
    assert asyncio.run(_bodies(postgres_server.dsn, queue)) == [pack(encode(columns))]
    answer = pop(http, queue, batch=100, partitions=10)
    found = sorted(wire.read_popped(answer.body).messages(), key=lambda one: (one.partition, one.seq))
    assert [one.payload for one in found] == LARGE


def test_whole_segments_are_popped_as_they_are_stored(postgres_server: ServerProcess, queue: str) -> None:
    http = Http(postgres_server.url)
    columns = Columns([*LARGE, *LARGE])
    stored = pack(encode(columns))
    for _ in range(2):
        push(http, Batch(queue, "p", columns))
    answer = pop(http, queue, batch=160)
    assert answer.body.endswith(stored + stored)
    found = list(wire.read_popped(answer.body).messages())
    assert [(one.seq, one.payload) for one in found] == list(enumerate(2 * columns.payloads, 1))
    part = pop(http, queue, batch=100, consumerGroup="parts")
    assert [one.payload for one in wire.read_popped(part.body).messages()] == (2 * columns.payloads)[:100]
    as_json = http.pop(queue, batch=160, consumerGroup="json")["messages"]
    assert [one["id"] for one in as_json] == [one.id for one in found]


@pytest.mark.parametrize("encryption", [False, True])
async def test_blocks_of_several_pushes_make_one_segment(
    databases: Databases, encryption: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = databases.emptied()
    key = b64encode(bytes(range(32))).decode()
    config = load({"encryption_key": key} if encryption else {}, environ={})
    pushes = [Batch.of("q", [b'{"%d":"%s"}' % (n, b"x" * 100)] * 100, partition=f"p{n}") for n in range(3)]
    read = [wire.PackedPush(wire.write_push([one]), items_max=100).batches()[0] for one in pushes]
    async with Engine(PostgresStore(dsn, config=config), config) as engine:
        await engine.configure("q", QueueOptions(encryption=encryption))

        def never(_: bytes) -> bytes:
            raise AssertionError("compressed again")

        with monkeypatch.context() as patched:
            patched.setattr("lockstep.core.codec.pack", never)
            await engine.push(read)
        popped = (await engine.pop([PopRequest(queue="q", batch=300, partitions=3)]))[0]
        assert popped.payloads() == [payload for one in pushes for payload in one.columns.payloads]
    # Another process, with nothing in memory.
    async with Engine(PostgresStore(dsn, config=config), config) as engine:
        popped = (await engine.pop([PopRequest(queue="q", batch=300, partitions=3, group="other")]))[0]
        assert popped.payloads() == [payload for one in pushes for payload in one.columns.payloads]
        assert wire.read_popped(wire.write_popped(popped)).payloads() == popped.payloads()
    assert len(await _bodies(dsn, "q")) == 1


def test_client_speaks_both(memory_server: ServerProcess, queue: str) -> None:
    """The other tests of clients speak packed bodies, which is the default."""
    for packed in (True, False):
        with connect(memory_server.url, client_packed=packed) as client:
            messages = [
                NewMessage(queue=queue, payload=b'{"n":1}', partition="a", kind="k", headers={"h": "v"}),
                NewMessage(queue=queue, payload=b"\xff", partition="b", encoding="raw", expire_seconds=600),
                NewMessage(queue=queue, payload=b"3", partition="a", delay_seconds=0),
                *[NewMessage(queue=queue, payload=b"4", partition=f"p{i}") for i in range(PACKED_MESSAGES_MIN)],
            ]
            receipts = client.push_many(messages)
            assert [(one.partition, one.status, one.index) for one in receipts[:3]] == [
                ("a", "queued", 0),
                ("b", "queued", 1),
                ("a", "queued", 2),
            ]
            delivery = client.pop(queue, batch=100, partitions=100)
            assert {message.record.payload for message in delivery} == {b"3", b"4", b'{"n":1}', b"\xff"}
            assert {message.id for message in delivery} == {one.message_id for one in receipts}
            delivery.ack()


async def _bodies(dsn: str, queue: str) -> list[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "select s.body from lockstep.segment s join lockstep.queue q on q.id = s.queue_id where q.name = $1", queue
        )
    finally:
        await connection.close()
    return [row["body"] for row in rows]


def test_names_of_dots_are_popped(http: Http) -> None:
    http.post("/api/v1/push", {"items": [{"queue": "..", "partition": ".", "payload": 1}]})
    found = msgspec.json.decode(http.get("/api/v1/pop", queue="..", partition=".", autoAck="true").body)
    assert [one["data"] for one in found["messages"]] == [1]
    assert http.get("/api/v1/pop", partition=".").code == "invalid_request"
    assert http.get("/api/v1/pop", queue="..", namespace="n").code == "invalid_request"
