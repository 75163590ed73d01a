"""Segments as Arrow arrays: the same messages as the engine's own decoder gives, whatever form they are stored in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.codec import NO_KEYS, Codec, decode, encode, seal
from lockstep.core.ids import message_id, segment_uuid7
from lockstep.core.layouts import chained, is_chain, pack
from lockstep.core.messages import Batch, Columns, join_columns
from lockstep.core.records import MessageFilter
from lockstep.core.sealing import Keyring
from lockstep.errors import CorruptSegment, EncryptionUnavailable, SealBroken
from lockstep.spark.read.columns import Rows, StoredSegment, texts_of
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, binary_payload, configure, pages
from support.spark_reads import read_batch

KEY = bytes(range(32))
_CREATED_US = 1_767_225_600_123_456


def segment(
    columns: Columns,
    *,
    runs: list[tuple[int, int, int, int]] | None = None,
    codec: Codec = Codec.PACKED,
    queue: str = "orders",
    id_: int = 1,
) -> StoredSegment:
    """A segment with runs of (partition id, first seq, count, ordinal); all of it one run where none are given."""
    described = [(1, 1, len(columns), 0)] if runs is None else runs
    partition_ids, first_seqs, counts, ordinals = zip(*described, strict=True) if described else ((), (), (), ())
    body, binding = None, b"place"
    if codec != Codec.PLAIN:
        codec, body = seal(encode(columns), keys=Keyring((KEY,)) if codec & Codec.ENCRYPTED else None, binding=binding)
    return StoredSegment(
        id=id_,
        queue=queue,
        uuid=segment_uuid7(_CREATED_US * 1000).bytes,
        created_us=_CREATED_US,
        codec=int(codec),
        message_count=len(columns),
        body=body,
        plain=_plain(columns),
        partition_ids=partition_ids,
        first_seqs=first_seqs,
        counts=counts,
        ordinals=ordinals,
        binding=binding,
    )


def _plain(columns: Columns) -> list[Any]:
    return [
        columns.payloads,
        columns.transaction_ids,
        columns.trace_ids,
        columns.kinds,
        columns.references,
        columns.encodings,
        columns.headers,
        columns.producer_subs,
    ]


def rows_of(*segments: StoredSegment, keys: Keyring = Keyring((KEY,))) -> Rows:  # noqa: B008
    return Rows(segments, {1: "one", 2: "two", 3: "three"}, keys=keys)


_TEXTS = st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
_UUID_TEXTS = st.uuids().map(str)
_FIELDS = {
    "transaction_ids": st.none() | _UUID_TEXTS | st.text("abc", min_size=1, max_size=5),
    "trace_ids": st.none() | _UUID_TEXTS,
    "kinds": _TEXTS,
    "references": _TEXTS,
    "producer_subs": _TEXTS,
    "headers": st.none() | st.just(b'{"a":"b"}'),
}


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    count = draw(st.integers(1, 6))
    made = Columns(draw(st.lists(st.binary(max_size=20), min_size=count, max_size=count)))
    for name, values in _FIELDS.items():
        if draw(st.booleans()):
            setattr(made, name, draw(st.lists(values, min_size=count, max_size=count)))
    return made


@given(st.lists(st.tuples(columns(), st.sampled_from([Codec.PLAIN, Codec.PACKED, Codec(3)])), min_size=1, max_size=4))
def test_every_form_gives_what_was_stored(stored: list[tuple[Columns, Codec]]) -> None:
    segments = [segment(one, codec=codec) for one, codec in stored]
    rows = rows_of(*segments)
    found = {name: rows.column(name).to_pylist() for name in ("payload", "kind", "reference", "producer_sub")}
    assert found["payload"] == [payload for one, _ in stored for payload in one.payloads]
    assert found["kind"] == [v for one, _ in stored for v in one.kinds or [None] * len(one)]
    assert found["reference"] == [v for one, _ in stored for v in one.references or [None] * len(one)]
    assert found["producer_sub"] == [v for one, _ in stored for v in one.producer_subs or [None] * len(one)]
    headers = [v for one, _ in stored for v in one.headers or [None] * len(one)]
    assert rows.column("headers").to_pylist() == [None if h is None else h.decode() for h in headers]
    assert rows.column("trace_id").to_pylist() == [v for one, _ in stored for v in one.trace_ids or [None] * len(one)]
    ids = [
        message_id(UUID(bytes=made.uuid), ordinal)
        for made, (one, _) in zip(segments, stored, strict=True)
        for ordinal in range(len(one))
    ]
    assert rows.column("message_id").to_pylist() == ids
    given_ids = [v for one, _ in stored for v in one.transaction_ids or [None] * len(one)]
    expected = [own if known is None else known for known, own in zip(given_ids, ids, strict=True)]
    assert rows.column("transaction_id").to_pylist() == expected
    for name in ("payload", "trace_id", "transaction_id", "message_id"):
        rows.column(name).validate(full=True)


def test_chain_of_blocks_is_read_as_one_segment() -> None:
    parts = [
        Columns([b'{"n":1}', b'{"n":2}'], kinds=["a", None], transaction_ids=["x", None]),
        Columns([b'{"n":3}'], kinds=["c"], transaction_ids=["y"]),
    ]
    whole = segment(join_columns(parts))
    chain = replace(whole, body=chained([pack(encode(part)) for part in parts]))
    assert is_chain(chain.body)
    for name in ("payload", "kind", "transaction_id", "message_id", "seq"):
        assert rows_of(chain).column(name).to_pylist() == rows_of(whole).column(name).to_pylist()


def test_values_of_one_segment_are_not_copied() -> None:
    stored = segment(Columns([b"x" * 1000] * 100))
    assert rows_of(stored).column("payload").buffers()[2].size == 100_000


def test_columns_of_runs() -> None:
    first = segment(Columns([b"a"] * 5), runs=[(1, 10, 2, 0), (2, 1, 3, 2)])
    second = segment(Columns([b"b"]), runs=[(1, 12, 1, 0)], queue="returns")
    rows = rows_of(first, second)
    assert rows.column("queue").to_pylist() == ["orders"] * 5 + ["returns"]
    assert rows.column("partition").to_pylist() == ["one", "one", "two", "two", "two", "one"]
    assert rows.column("seq").to_pylist() == [10, 11, 1, 2, 3, 12]
    assert rows.column("created_at").cast(pa.int64()).to_pylist() == [_CREATED_US] * 6


@pytest.mark.parametrize("codec", [Codec.PLAIN, Codec.PACKED])
def test_removed_messages_are_left_out(codec: Codec) -> None:
    stored = Columns([b"%d" % n for n in range(8)], kinds=[str(n) for n in range(8)])
    whole = segment(Columns([b"whole"]), codec=codec)
    rows = rows_of(whole, segment(stored, runs=[(1, 3, 2, 2), (2, 7, 1, 7)], codec=codec), whole)
    assert rows.column("payload").to_pylist() == [b"whole", b"2", b"3", b"7", b"whole"]
    assert rows.column("kind").to_pylist() == [None, "2", "3", "7", None]
    assert rows.column("seq").to_pylist() == [1, 3, 4, 7, 1]
    assert [identity[-4:] for identity in rows.column("message_id").to_pylist()] == [
        "0000",
        "0002",
        "0003",
        "0007",
        "0000",
    ]


def test_nothing_left_is_no_rows() -> None:
    rows = rows_of(segment(Columns([b"gone"]), runs=[]))
    names = ("queue", "partition", "seq", "message_id", "transaction_id", "created_at", "payload", "kind")
    assert (rows.count, [rows.column(name).to_pylist() for name in names]) == (0, [[]] * len(names))


def test_highest_ordinals() -> None:
    rows = rows_of(segment(Columns([b""] * 65_536)))
    assert rows.column("message_id")[65_535].as_py().endswith("ffff")


def test_payloads_as_text() -> None:
    payloads = pa.array([b'{"a":"\xc3\xbc"}', b"\xff\x00", b"plain"])
    encodings = pa.array([None, "application/octet-stream", None])
    assert texts_of(payloads, encodings).to_pylist() == ['{"a":"ü"}', "/wA=", "plain"]
    # What claims to be JSON and is no text is shown as the SQL view shows it.
    assert texts_of(pa.array([b"\xff"]), pa.nulls(1, pa.string())).to_pylist() == ["/w=="]


def test_payloads_keep_their_places_whatever_surrounds_them() -> None:
    many = Columns([b""] * 2_000 + [b"x"], references=[None] * 2_000 + ["last"])
    forms = [Columns([b"first"]), many, Columns([b"y" * 70_000, b"z"], kinds=["a", None]), many, Columns([b"end"])]
    rows = rows_of(*[segment(one) for one in forms])
    assert rows.column("payload").to_pylist() == [payload for one in forms for payload in one.payloads]
    assert rows.column("reference").drop_null().to_pylist() == ["last", "last"]
    assert rows.column("kind").drop_null().to_pylist() == ["a"]


@pytest.mark.parametrize("payload", [b'{"a":"plain"}', '{"a":"ü€😀"}'.encode(), b'{"a":"\xc3', b"\xff"])
def test_texts_of_one_payload_among_plain_ones(payload: bytes) -> None:
    stored = [segment(Columns([b'"a"'])), segment(Columns([b"", payload])), segment(Columns([b"\xa4", b'"z"']))]
    for members in (stored, stored[:2]):
        rows = rows_of(*members)
        expected = texts_of(rows.column("payload"), pa.nulls(rows.count, pa.string()))
        assert rows.texts().equals(expected)
        rows.texts().validate(full=True)


def test_opaque_payload_that_is_ascii_is_base64() -> None:
    rows = rows_of(segment(Columns([b"plain", b"opaque"], encodings=[None, "raw"])))
    assert rows.texts().to_pylist() == ["plain", "b3BhcXVl"]


@pytest.mark.parametrize("cut", [1, 20, -1])
def test_body_that_is_cut_short_is_an_error(cut: int) -> None:
    stored = segment(Columns([b'{"n":%d}' % n for n in range(500)]))
    assert stored.body is not None
    stored.body = stored.body[:cut]
    with pytest.raises(CorruptSegment):
        rows_of(stored).column("payload")


def test_changed_body_is_an_error() -> None:
    stored = segment(Columns([b'{"n":%d}' % n for n in range(500)]))
    assert stored.body is not None
    # The last bytes are the checksum.
    stored.body = stored.body[:-1] + bytes([stored.body[-1] ^ 1])
    with pytest.raises(CorruptSegment, match="does not decompress"):
        rows_of(stored).column("payload")


def test_encrypted_needs_its_key() -> None:
    stored = segment(Columns([b"secret"]), codec=Codec(3))
    assert rows_of(stored).column("payload").to_pylist() == [b"secret"]
    for keys in (NO_KEYS, Keyring((bytes(32),))):
        with pytest.raises(EncryptionUnavailable, match=r"queue 'orders'.* the option encryptionKeyEnv"):
            rows_of(stored, keys=keys).column("payload")
    stored.binding = b"elsewhere"
    with pytest.raises(SealBroken):
        rows_of(stored).column("payload")


def corrupt_layouts() -> Iterator[tuple[str, bytes]]:
    layout = encode(Columns([b"abc", b"d"], kinds=["x", None]))
    yield "cut", layout[:-1]
    yield "long", layout + b"x"
    yield "header", layout[:6]
    yield "magic", b"XXXX" + layout[4:]
    yield "length", layout[:12] + (-5).to_bytes(4, "little", signed=True) + layout[16:]
    yield "far", layout[:12] + (10**6).to_bytes(4, "little") + layout[16:]


@pytest.mark.parametrize(
    "layout", [layout for _, layout in corrupt_layouts()], ids=[name for name, _ in corrupt_layouts()]
)
def test_corrupt_body_is_an_error(layout: bytes) -> None:
    with pytest.raises(CorruptSegment):
        decode(layout)
    stored = segment(Columns([b"abc", b"d"]))
    stored.body = pack(layout)
    with pytest.raises(CorruptSegment):
        rows_of(stored).column("kind")


@pytest.mark.parametrize("payload", [b"a", b"a" * 100], ids=["short", "long"])
@pytest.mark.parametrize("count", [1, 3])
def test_count_that_is_not_the_segments_is_an_error(payload: bytes, count: int) -> None:
    stored = segment(Columns([payload, payload]))
    stored.message_count = count
    stored.counts = [count]
    with pytest.raises(CorruptSegment, match=f"segment 1 has 2 messages, and should have {count}"):
        rows_of(stored).column("payload")


@pytest_asyncio.fixture
async def full(database_dsn: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with messages in every form, some removed."""
    from base64 import b64encode

    from lockstep.config import load

    key = b64encode(KEY).decode()
    monkeypatch.setenv("LOCKSTEP_ENCRYPTION_KEY", key)
    store = PostgresStore(database_dsn, config=load({"encryption_key": key}))
    await store.open()
    await configure(store, "secret", encryption=True)
    await configure(store, "plain", compression="none")
    for queue in ("secret", "plain", "packed"):
        await store.push([batch(queue, 300, partition=f"p{n}", start=1000 * n) for n in range(5)])
        await store.push([_rich(queue, partition="rich")])
        await store.push([batch(queue, 2)])
        await store.clear(queue, partition="p3")
    [message, *_] = (await store.messages(MessageFilter(queue="packed", partition="p1"))).items[7:]
    await store.remove_message(message.message.partition_id, message.message.transaction_id)
    await store.close()
    return database_dsn


def _rich(queue: str, *, partition: str) -> Batch:
    given_columns = Columns(
        [b'{"n":1}', binary_payload(1500), b'"text"'],
        transaction_ids=["tx-1", str(uuid4()), None],
        trace_ids=[str(uuid4()), None, None],
        kinds=["created", None, "déjà"],
        references=[None, "ref", None],
        encodings=[None, "raw", None],
        headers=[b'{"h":"1"}', None, None],
        producer_subs=["me", None, None],
    )
    return Batch(queue, partition, given_columns)


async def test_read_is_what_the_store_tells(full: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.config import load

    store = PostgresStore(full, config=load())
    await store.open()
    for queue in ("secret", "plain", "packed"):
        found = [view.message for page in await pages(store, MessageFilter(queue=queue), limit=1000) for view in page]
        rows = {row["message_id"]: row for row in read_batch(full, queue=queue, payloadType="binary")}
        assert len(rows) == len(found) > 1200
        for message in found:
            headers = None if message.headers is None else json.dumps(message.headers, separators=(",", ":"))
            row = rows[message.id]
            assert (row.pop("headers") or "").replace(" ", "") == (headers or "")
            assert row == {
                "queue": queue,
                "partition": message.partition,
                "seq": message.seq,
                "message_id": message.id,
                "transaction_id": message.transaction_id,
                "trace_id": message.trace_id,
                "created_at": message.created_at,
                "payload": message.payload,
                "kind": message.kind,
                "reference": message.reference,
                "encoding": message.encoding,
                "producer_sub": message.producer_sub,
            }
    await store.close()
    monkeypatch.delenv("LOCKSTEP_ENCRYPTION_KEY")
    with pytest.raises(EncryptionUnavailable):
        read_batch(full, queue="secret")
