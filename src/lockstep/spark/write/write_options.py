"""The options of a write, parsed and validated once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from lockstep.core.names import check_name
from lockstep.errors import InvalidOption
from lockstep.spark.database import Access
from lockstep.spark.options import (
    Given,
    access,
    parse_boolean,
    parse_count,
    parse_list,
    parse_size,
    parse_word,
    payload_spec,
)
from lockstep.spark.payloads.formats import PayloadSpec

WRITE_OPTIONS = {
    "dsn": "PostgreSQL to write to",
    "dsnEnv": "environment variable that holds the DSN, on the driver and on every executor",
    "encryptionKeyEnv": "environment variable that holds the key of encrypted queues",
    "queue": "queue for all rows; without it, a column `queue` says it row by row",
    "path": 'the same as `queue`, for `save("orders")` and `start("orders")`',
    "delivery": "`append`: every row is a message; `ids`: a row whose `transaction_id` its partition has seen is left "
    "out; `dedupe`: the same, and a row without an id gets one derived from its content",
    "orderBy": "columns, of numbers or times, by which the rows of each partition are brought into order",
    "sinkId": "name of the sink, which identifies a repeated batch where Spark names no query",
    "batchId": "with `sinkId`, number of the batch of a batch write; later ones are higher",
    "commitStream": "name of the stream that is read: its acks and its position are committed with the write",
    "ignoreUnknownColumns": "leave out columns that a message does not have, instead of refusing them",
    "payloadFormat": "`json`, or `avro` or `protobuf` to encode a struct in the column `payload`",
    "payloadSchema": "schema of the payload: JSON for Avro, a descriptor set in base64 for Protobuf",
    "payloadMessage": "full name of the Protobuf message",
    "schemaRegistry": "address of a Confluent-compatible registry",
    "schemaSubject": "subject of the registry, by whose newest schema payloads are encoded and framed",
    "schemaRegistryAuthEnv": "environment variable with user:password, or a token",
    "segmentBytes": "about how many bytes of payloads are stored together (`8m`)",
}
"""Every option of a write, with its meaning."""

Delivery = Literal["append", "ids", "dedupe"]

_OF_SPARK = ("checkpointLocation", "queryName")
"""Options of Spark itself, which it passes on to the sink of a stream."""

_KIB, _MIB = 1024, 1024**2
_SEGMENT_BYTES = 8 * _MIB
_SEGMENT_BYTES_MIN, _SEGMENT_BYTES_MAX = 64 * _KIB, 64 * _MIB


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write."""

    access: Access = field(default_factory=Access)
    queue: str | None = None
    delivery: Delivery = "append"
    order_by: tuple[str, ...] = ()
    sink_id: str | None = None
    batch_id: int | None = None
    commit_stream: str | None = None
    ignore_unknown: bool = False
    segment_bytes: int = _SEGMENT_BYTES
    payloads: PayloadSpec = field(default_factory=PayloadSpec)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """Parse Spark's options; their names are case-insensitive. Raises InvalidOption, which names the option."""
        given = Given(options, {*WRITE_OPTIONS, *_OF_SPARK})
        return cls(
            access=access(given.get),
            queue=_queue(given),
            delivery=given.get("delivery", parse_word(*get_args(Delivery)), "append"),
            order_by=given.get("orderBy", _columns, ()),
            sink_id=given.get("sinkId", _name),
            batch_id=given.get("batchId", _batch_id),
            commit_stream=given.get("commitStream", _name),
            ignore_unknown=given.get("ignoreUnknownColumns", parse_boolean, False),
            payloads=_payloads(given),
            segment_bytes=given.get("segmentBytes", _segment_bytes, _SEGMENT_BYTES),
        )


def _payloads(given: Given) -> PayloadSpec:
    spec = payload_spec(given)
    if spec.format == "json" and spec.schema is not None:
        raise InvalidOption("the option payloadSchema of a write is for payloadFormat avro and protobuf")
    return spec


def _queue(given: Given) -> str | None:
    queue: str | None = given.get("queue", _name)
    path: str | None = given.get("path", _name)
    if queue is not None and path is not None:
        raise InvalidOption("the queue is given twice: by the option queue, and as a path")
    return queue or path


def _name(text: str) -> str:
    return check_name(text, what="it")


def _columns(text: str) -> tuple[str, ...]:
    names = parse_list(text)
    if not all(names) or len({name.lower() for name in names}) < len(names):
        raise ValueError("each column is named once")
    return tuple(names)


def _batch_id(text: str) -> int:
    return 0 if text == "0" else parse_count(text)


def _segment_bytes(text: str) -> int:
    size = parse_size(text)
    if not _SEGMENT_BYTES_MIN <= size <= _SEGMENT_BYTES_MAX:
        raise ValueError(f"it must be between {_SEGMENT_BYTES_MIN} and {_SEGMENT_BYTES_MAX} bytes, not {size}")
    return size
