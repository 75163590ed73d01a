"""What the sink takes, and what it says of what it does not take: always the column and the row."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lockstep.config import Config
from lockstep.errors import InvalidName, InvalidOption, InvalidPayload, InvalidRequest, LockstepError, TooLarge
from lockstep.spark.write.rows import Incoming
from lockstep.spark.write.sink_schema import check_schema
from lockstep.spark.write.write_options import WRITE_OPTIONS, WriteOptions
from support.spark_writes import rows

_CONFIG = Config(payload_bytes_max=100, headers_bytes_max=50)


def _incoming(queue: str | None = "orders", **given: bool) -> Incoming:
    return Incoming(_CONFIG, queue=queue, task=3, **given)


def test_rows_are_named_across_batches() -> None:
    incoming = _incoming()
    incoming.take(rows(payload=["1", "2", "3"]))
    with pytest.raises(InvalidRequest, match="column 'payload' is null in row 5 of task 3"):
        incoming.take(rows(payload=["4", None]))


@pytest.mark.parametrize(
    ("columns", "error", "text"),
    [
        ({"payload": ["1", None]}, InvalidRequest, "'payload' is null in row 2"),
        ({"payload": ["1", "{"]}, InvalidPayload, "'payload' is no JSON in row 2"),
        ({"payload": ["1", ""]}, InvalidPayload, "'payload' is no JSON in row 2"),
        ({"payload": ["1", '"' + "x" * 100 + '"']}, TooLarge, "'payload' has 102 bytes in row 2"),
        ({"payload": ["1", "2"], "partition": ["a", ""]}, InvalidName, "'partition' must not be empty in row 2"),
        ({"payload": ["1", "2"], "partition": ["a", "b\n"]}, InvalidName, "'partition' contains a control .* in row 2"),
        ({"payload": ["1", "2"], "partition": ["a", "b" * 256]}, InvalidName, "'partition' is 256 .* in row 2"),
        ({"payload": ["1", "2"], "trace_id": [None, "x"]}, InvalidRequest, "'trace_id' is not a UUID: 'x' in row 2"),
        ({"payload": ["1", "2"], "transaction_id": ["a", ""]}, InvalidRequest, "'transaction_id' is empty in row 2"),
        (
            {"payload": ["1", "2"], "transaction_id": ["a", "b" * 256]},
            InvalidRequest,
            "'transaction_id' has 256 .* row 2",
        ),
        ({"payload": ["1", "2"], "kind": ["a", "b\x00"]}, InvalidRequest, "'kind' contains a NUL character in row 2"),
        ({"payload": ["1", "2"], "headers": [None, "[]"]}, InvalidRequest, "'headers' is no JSON object .* in row 2"),
        ({"payload": ["1", "2"], "headers": [None, '{"a":1}']}, InvalidRequest, "'headers' is no JSON object .* row 2"),
        ({"payload": ["1", "2"], "headers": [None, '{"a":"' + "x" * 50 + '"}']}, TooLarge, "'headers' has 58 .* row 2"),
        (
            {"payload": ["1", "2"], "headers": [None, '{"a":"\\u0000"}']},
            InvalidRequest,
            "'headers' contains a NUL .* row 2",
        ),
        ({"payload": ["1", "§"], "encoding": [None, "raw"]}, InvalidPayload, "encoding in row 2 .* must be base64"),
    ],
)
def test_bad_values_are_named(columns: dict[str, list[str]], error: type[LockstepError], text: str) -> None:
    with pytest.raises(error, match=text):
        _incoming().take(rows(**columns))


def test_null_queue_is_named() -> None:
    with pytest.raises(InvalidRequest, match="'queue' is null in row 2 of task 3"):
        _incoming(queue=None).take(rows(payload=["1", "2"], queue=["a", None]))


def test_text_that_is_none_is_named() -> None:
    broken = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff"))
    with pytest.raises(InvalidRequest, match="'kind' is no text in UTF-8 in row 2"):
        _incoming().take(pa.record_batch({"payload": pa.array(["1", "2"]), "kind": broken}))


def test_null_partition_is_the_default_one() -> None:
    taken = _incoming().take(rows(payload=["1", "2"], partition=[None, "b"]))
    assert taken.column("partition").to_pylist() == ["Default", "b"]


def test_option_queue_wins_over_the_column() -> None:
    assert "queue" not in _incoming().take(rows(payload=["1"], queue=["other"])).column_names


def test_headers_may_be_a_map() -> None:
    headers = pa.array([{"a": "1"}, None], pa.map_(pa.string(), pa.string()))
    taken = _incoming().take(pa.record_batch({"payload": pa.array(["1", "2"]), "headers": headers}))
    assert taken.column("headers").to_pylist() == [b'{"a":"1"}', None]
    null = pa.array([{"a": None}], pa.map_(pa.string(), pa.string()))
    with pytest.raises(InvalidRequest, match="'headers' has a null value in row 1"):
        _incoming().take(pa.record_batch({"payload": pa.array(["1"]), "headers": null}))


def test_trace_ids_are_spelled_canonically() -> None:
    spelled = "0190AAAA-0000-7000-8000-00000000000A"
    taken = _incoming().take(rows(payload=["1"], trace_id=[spelled]))
    assert taken.column("trace_id").to_pylist() == [spelled.lower()]


def test_opaque_text_is_base64_and_opaque_bytes_are_themselves() -> None:
    taken = _incoming().take(rows(payload=["AP8=", "1"], encoding=["raw", None]))
    assert taken.column("payload").to_pylist() == [b"\x00\xff", b"1"]
    taken = _incoming().take(rows(payload=[b"\x00\xff", b"1"], encoding=["raw", None]))
    assert taken.column("payload").to_pylist() == [b"\x00\xff", b"1"]


def test_large_types_and_columns_without_a_type_are_taken() -> None:
    taken = _incoming().take(
        pa.record_batch(
            {
                "payload": pa.array([b"\x00\xff", b"1"], pa.large_binary()),
                "encoding": pa.array(["raw", None], pa.large_string()),
                "kind": pa.nulls(2),
            }
        )
    )
    assert taken.column("payload").to_pylist() == [b"\x00\xff", b"1"]
    assert taken.column_names == ["payload", "encoding"]


def test_content_ids_depend_on_the_content_alone() -> None:
    def ids(*batches: pa.RecordBatch) -> list[str]:
        incoming = _incoming(delivery="dedupe")
        return [one for batch in batches for one in incoming.take(batch).column("transaction_id").to_pylist()]

    both = ids(rows(payload=["1", "2"], kind=["a", None], transaction_id=[None, "given"]))
    assert both[1] == "given"
    assert ids(rows(payload=["2"]), rows(payload=["1"], kind=["a"]))[1] == both[0]
    assert len(set(ids(rows(payload=["1", "1", "12"], kind=["a", "b", None], partition=["x", "x", "x"])))) == 3


def test_schema_is_checked_before_anything_runs() -> None:
    def check(*fields: tuple[str, str], queue: str | None = "orders", ignore_unknown: bool = False) -> None:
        check_schema(fields, queue=queue, ignore_unknown=ignore_unknown)

    check(("Payload", "binary"), ("headers", "map<string,string>"), ("kind", "void"), ("partition", "varchar(10)"))
    check(("payload", "string"), ("seq", "bigint"), ("message_id", "string"), ("created_at", "timestamp"))
    check(("payload", "string"), ("data", "struct<a:int>"), ignore_unknown=True)
    with pytest.raises(InvalidRequest, match="needs a column 'payload'; the DataFrame has value"):
        check(("value", "string"))
    with pytest.raises(InvalidRequest, match="the DataFrame has 'payload' more than once"):
        check(("payload", "string"), ("PAYLOAD", "string"))
    with pytest.raises(InvalidRequest, match="needs the option 'queue', or a column 'queue'"):
        check(("payload", "string"), queue=None)
    with pytest.raises(InvalidRequest, match="no column 'data', 'x': drop"):
        check(("payload", "string"), ("data", "struct<a:int>"), ("x", "int"))
    with pytest.raises(InvalidRequest, match=r"'payload' is struct<a:int>, and must be string or binary: .*to_json"):
        check(("payload", "struct<a:int>"))
    with pytest.raises(InvalidRequest, match="'partition' is bigint, and must be string"):
        check(("payload", "string"), ("partition", "bigint"))


def test_options_are_parsed_once() -> None:
    parsed = WriteOptions.of(
        {"QUEUE": "orders", "segmentbytes": "1m", "delivery": "DEDUPE", "sinkId": "s", "batchId": "0"}
    )
    assert (parsed.queue, parsed.segment_bytes, parsed.delivery, parsed.batch_id) == ("orders", 1024**2, "dedupe", 0)
    assert WriteOptions.of({"path": "orders", "checkpointLocation": "/x"}).queue == "orders"
    assert set(WRITE_OPTIONS) >= {"dsn", "queue", "commitStream"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"que": "x"}, "unknown option que; known are .*queue"),
        ({"queue": "a\nb"}, "option queue is not valid"),
        ({"queue": "a", "path": "b"}, "given twice"),
        ({"orderBy": "seq,seq"}, "option orderBy is not valid: each column is named once"),
        ({"delivery": "twice"}, "option delivery is not valid: 'twice' is none of append, ids, dedupe"),
        ({"segmentBytes": "1"}, "option segmentBytes is not valid"),
        ({"ignoreUnknownColumns": "yes"}, "option ignoreUnknownColumns is not valid"),
        ({"batchId": "-1"}, "option batchId is not valid"),
    ],
)
def test_bad_options_are_named(given: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        WriteOptions.of(given)


def test_dsn_is_in_no_repr() -> None:
    assert "secret" not in repr(WriteOptions.of({"dsn": "postgresql://me:secret@host/db"}))
