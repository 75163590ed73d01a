"""Parts: rows gathered by queue, grouped by partition, packed as a push packs them."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa

from lockstep.core.codec import decode, unseal
from lockstep.core.messages import Columns
from lockstep.spark.write.staging import QueueForm, StagedPart, Staging, pack
from support.spark_writes import rows


def _table(**columns: list[Any]) -> pa.Table:
    taken = rows(**columns)
    payloads = taken.column("payload").cast(pa.binary())
    return pa.Table.from_batches([taken.set_column(taken.schema.get_field_index("payload"), "payload", payloads)])


def _unpacked(part: StagedPart) -> Columns:
    assert part.body is not None
    return decode(unseal(part.codec, part.body))


def _staging(queue: str | None = "orders", *, bytes_max: int = 10**6, form: QueueForm | None = None) -> Staging:
    return Staging(queue=queue, bytes_max=bytes_max, form_of=lambda _: form or QueueForm())


def test_rows_of_a_partition_stay_in_order() -> None:
    part = pack("orders", _table(payload=list("123456"), partition=list("babcab")), form=QueueForm())
    assert part.partitions == ["b", "a", "c"]
    assert part.counts == [3, 2, 1]
    assert _unpacked(part).payloads == [b"1", b"3", b"6", b"2", b"5", b"4"]


def test_every_column_is_packed_as_a_push_packs_it() -> None:
    ids = [str(uuid4()), None, "text", str(uuid4()).upper()]
    traces = [None, str(uuid4()), None, str(uuid4())]
    table = _table(
        payload=["1", "22", "333", "4444"],
        transaction_id=ids,
        trace_id=traces,
        kind=["a", None, None, "ä"],
        reference=[None] * 4,
        headers=[None, '{"a":"b"}', None, None],
        producer_sub=["me", None, None, None],
    )
    found = _unpacked(pack("orders", table, form=QueueForm()))
    assert found == Columns(
        [b"1", b"22", b"333", b"4444"],
        ids,
        traces,
        ["a", None, None, "ä"],
        None,
        None,
        [None, b'{"a":"b"}', None, None],
        ["me", None, None, None],
    )


def test_ids_are_named_by_run_and_offset() -> None:
    first, second = str(uuid4()), str(uuid4())
    table = _table(
        payload=list("12345"),
        partition=list("abaab"),
        transaction_id=[None, first, "text", second, None],
        trace_id=[second, None, None, None, first],
    )
    part = pack("orders", table, form=QueueForm())
    assert part.dedup_uuids is not None
    assert part.dedup_texts is not None
    assert part.traces is not None
    assert sorted(zip(part.dedup_uuids.runs, part.dedup_uuids.offsets, part.dedup_uuids.values, strict=True)) == [
        (1, 2, second),
        (2, 0, first),
    ]
    assert (part.dedup_texts.runs, part.dedup_texts.offsets, part.dedup_texts.values) == ([1], [1], ["text"])
    assert (part.traces.runs, part.traces.offsets, part.traces.values) == ([1, 2], [0, 1], [second, first])


def test_what_looks_like_a_uuid_and_is_none_is_text() -> None:
    almost = ["0190aaaa_0000-7000-8000-00000000000a", "0190aaaa-0000-7000-8000-00000000000g", "ä" * 18]
    part = pack("orders", _table(payload=list("123"), transaction_id=almost), form=QueueForm())
    assert part.dedup_uuids is None
    assert part.dedup_texts is not None
    assert part.dedup_texts.values == almost
    assert _unpacked(part).transaction_ids == almost


def test_repeated_transaction_id_is_kept_once_per_partition() -> None:
    table = _table(payload=list("1234"), partition=list("abaa"), transaction_id=["x", "x", "x", None])
    part = pack("orders", table, form=QueueForm())
    assert part.counts == [2, 1]
    assert _unpacked(part).payloads == [b"1", b"4", b"2"]


def test_readable_queue_gets_plain_columns() -> None:
    table = _table(payload=list("12"), partition=list("ba"), kind=["k", None])
    part = pack("orders", table, form=QueueForm(compression="none"))
    assert (part.codec, part.body) == (0, None)
    assert part.plain == {"payload": [b"1", b"2"], "kind": ["k", None]}


def test_part_of_an_encrypted_queue_is_packed_even_where_others_are_not() -> None:
    part = pack("orders", _table(payload=["1"]), form=QueueForm("none", encryption=True))
    assert part.codec == 1
    assert _unpacked(part).payloads == [b"1"]


def test_rows_without_partition_go_to_one_of_a_balanced_queue() -> None:
    table = _table(payload=list("123"), partition=["Default", "0", "Default"])
    part = pack("orders", table, form=QueueForm(partitions=1))
    assert (part.partitions, part.counts) == (["0"], [3])
    part = pack("orders", _table(payload=list("123")), form=QueueForm(partitions=4))
    assert part.partitions[0] in "0123"


def test_parts_are_cut_by_bytes_and_by_messages() -> None:
    staging = _staging(bytes_max=1000)
    payload = '"' + "x" * 298 + '"'
    parts = [*staging.add(_table(payload=[payload] * 10)), *staging.finish()]
    assert [len(part) for part in parts] == [3, 3, 3, 1]
    staging = _staging()
    parts = [*staging.add(_table(payload=["1"] * 70_000)), *staging.finish()]
    assert [len(part) for part in parts] == [65_536, 4_464]


def test_message_larger_than_a_part_is_one() -> None:
    staging = _staging(bytes_max=100)
    parts = [*staging.add(_table(payload=["1", '"' + "x" * 500 + '"', "2"])), *staging.finish()]
    assert [len(part) for part in parts] == [1, 1, 1]


def test_each_queue_has_its_parts() -> None:
    staging = _staging(None)
    table = _table(payload=list("1234"), queue=["a", "b", "a", "b"], partition=["x"] * 4)
    assert not list(staging.add(table))
    parts = {part.queue: _unpacked(part).payloads for part in staging.finish()}
    assert parts == {"a": [b"1", b"3"], "b": [b"2", b"4"]}


def test_batches_with_different_columns_join() -> None:
    staging = _staging()
    trace = str(UUID(int=1))
    assert not list(staging.add(_table(payload=["1"])))
    assert not list(staging.add(_table(payload=["2"], trace_id=[trace])))
    [part] = staging.finish()
    assert _unpacked(part).trace_ids == [None, trace]


def test_no_rows_are_no_part() -> None:
    staging = _staging()
    assert not [*staging.add(_table(payload=[])), *staging.finish()]
