"""The options of a write, parsed and validated once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from lockstep.core.names import check_name
from lockstep.errors import InvalidOption
from lockstep.spark.database import Access
from lockstep.spark.options import Given, access, parse_boolean, parse_count, parse_size, parse_word

WRITE_OPTIONS = {
    "dsn": "PostgreSQL to write to",
    "dsnEnv": "environment variable that holds the DSN, on the driver and on every executor",
    "encryptionKeyEnv": "environment variable that holds the key of encrypted queues",
    "queue": "queue for all rows; without it, a column `queue` says it row by row",
    "path": 'the same as `queue`, for `save("orders")` and `start("orders")`',
    "delivery": "`append`, or `dedupe` to give every row without a transaction id one that is made of its content",
    "sinkId": "name of the sink, by which a batch that comes again is known where Spark names no query",
    "batchId": "with `sinkId`, number of the batch of a batch write; later ones are higher",
    "commitStream": "name of the stream that is read: its acks and its position are committed with what is written",
    "ignoreUnknownColumns": "leave out columns that a message does not have, instead of refusing them",
    "segmentBytes": "about how many bytes of payloads are stored together (`8m`)",
}
"""Every option of a write, and what it means."""

_OF_SPARK = ("checkpointLocation", "queryName")
"""Options of Spark itself, which it passes on to the sink of a stream."""

_KIB, _MIB = 1024, 1024**2
_SEGMENT_BYTES = 8 * _MIB
_SEGMENT_BYTES_MIN, _SEGMENT_BYTES_MAX = 64 * _KIB, 64 * _MIB


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write was asked for."""

    access: Access = field(default_factory=Access)
    queue: str | None = None
    delivery: Literal["append", "dedupe"] = "append"
    sink_id: str | None = None
    batch_id: int | None = None
    commit_stream: str | None = None
    ignore_unknown: bool = False
    segment_bytes: int = _SEGMENT_BYTES

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """The options as Spark gives them; their names are in any case. Raises InvalidOption, which names it."""
        given = Given(options, {*WRITE_OPTIONS, *_OF_SPARK})
        return cls(
            access=access(given.get),
            queue=_queue(given),
            delivery=given.get("delivery", parse_word("append", "dedupe"), "append"),
            sink_id=given.get("sinkId", _name),
            batch_id=given.get("batchId", _batch_id),
            commit_stream=given.get("commitStream", _name),
            ignore_unknown=given.get("ignoreUnknownColumns", parse_boolean, False),
            segment_bytes=given.get("segmentBytes", _segment_bytes, _SEGMENT_BYTES),
        )


def _queue(given: Given) -> str | None:
    queue: str | None = given.get("queue", _name)
    path: str | None = given.get("path", _name)
    if queue is not None and path is not None:
        raise InvalidOption("the queue is given twice: by the option queue, and as a path")
    return queue or path


def _name(text: str) -> str:
    return check_name(text, what="it")


def _batch_id(text: str) -> int:
    return 0 if text == "0" else parse_count(text)


def _segment_bytes(text: str) -> int:
    size = parse_size(text)
    if not _SEGMENT_BYTES_MIN <= size <= _SEGMENT_BYTES_MAX:
        raise ValueError(f"it must be between {_SEGMENT_BYTES_MIN} and {_SEGMENT_BYTES_MAX} bytes, not {size}")
    return size
