"""The options of a read, parsed and validated once. The sink has its own options."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from lockstep.core.ids import parse_uuid
from lockstep.core.names import check_name
from lockstep.errors import InvalidOption, InvalidRequest
from lockstep.spark.database import Access
from lockstep.spark.payloads.formats import FORMATS, PayloadSpec
from lockstep.spark.payloads.registry import RegistryAddress
from lockstep.spark.read.offsets import SnapshotPlace
from lockstep.spark.read.schema import COLUMNS, DATA, ON_REQUEST, ColumnTypes, HeadersType, PayloadType

READ_OPTIONS = {
    "dsn": "PostgreSQL to read from",
    "dsnEnv": "environment variable that holds the DSN, on the driver and on every executor",
    "encryptionKeyEnv": "environment variable that holds the key of encrypted queues",
    "queue": "queue, or several: separated by commas, or as a JSON list",
    "queuePattern": "queues whose names fit, in which `*` stands for any text, with those to come",
    "path": 'the same as `queue`, for `load("orders")`',
    "partitions": "only these partitions, separated by commas or as a JSON list",
    "traceId": "only messages of this trace",
    "columns": "only these columns, in this order",
    "payloadType": "`string`, or `binary` for the payload's bytes",
    "headersType": "`string`, or `map` for headers as map<string,string>",
    "payloadFormat": "`json`, `avro` or `protobuf`",
    "payloadSchema": "schema of the payload, which is parsed into a column `data`: DDL for JSON, JSON for Avro, a "
    "descriptor set in base64 for Protobuf",
    "payloadMessage": "full name of the Protobuf message",
    "schemaRegistry": "address of a Confluent-compatible registry, whose schemas payloads name",
    "schemaSubject": "subject of the registry, whose newest schema gives the column `data`",
    "schemaRegistryAuthEnv": "environment variable with user:password, or a token, on the driver and on every executor",
    "payloadMode": "a payload that does not fit the schema: `failfast` is an error, `permissive` a null in `data`",
    "startingSeqs": 'only these partitions, each from a seq on: JSON such as `{"a": 5}`',
    "endingSeqs": "only these partitions, each before a seq; for a batch read",
    "startingPosition": "`earliest`, `latest`, an ISO time, `-10m`, or an offset as JSON",
    "endingPosition": "the same, for a batch read",
    "maxMessagesPerTrigger": "most messages of a batch, in whole segments",
    "maxBytesPerTrigger": "most stored bytes of a batch, in whole segments",
    "minMessagesPerTrigger": "wait until there are at least N messages",
    "maxTriggerDelay": "and no longer than this (`30s`, `15m`)",
    "parallelism": "most tasks of a batch",
    "mode": "`snapshot`, or `lease` to share a consumer group",
    "group": "the consumer group of mode `lease`",
    "failOnDataLoss": "whether messages that were removed before they were read are an error",
    "onFailover": "what a stream does if its checkpoint is ahead of the database: `fail`, or `continue`",
    "streamName": "under which the position of the stream is shown",
}
"""Every option of a read, with its meaning."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_SIZE = re.compile(r"(\d+)\s*([kmg]?)b?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_PROVIDER = "provider"
"""An option that Spark adds for a table created in its catalog."""
_SECONDS_MAX = 100 * 366 * 86_400
_NUMBER_MAX = 2**62


Seqs = tuple[tuple[str | None, str, int], ...]
"""The queue (if there are several), partition and seq."""


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Where a read starts or ends."""

    kind: Literal["earliest", "latest", "time", "ago", "offset"]
    at: datetime | None = None
    ago: timedelta | None = None
    place: SnapshotPlace | None = None
    system: str | None = None
    """For an offset: the database that it belongs to, if it says so."""

    def time(self, now: datetime) -> datetime:
        """The time that it stands for, if any."""
        if self.ago is not None:
            return now - self.ago
        assert self.at is not None
        return self.at


EVERYTHING = ReadPosition("earliest")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read."""

    queues: tuple[str, ...]
    """None if a pattern names them."""
    pattern: str | None = None
    access: Access = field(default_factory=Access)
    partitions: tuple[str, ...] | None = None
    trace_id: str | None = None
    columns: tuple[str, ...] | None = None
    payload_type: PayloadType = "string"
    headers_type: HeadersType = "string"
    payloads: PayloadSpec = field(default_factory=PayloadSpec)
    payload_mode: Literal["failfast", "permissive"] = "failfast"
    starting_seqs: Seqs | None = None
    ending_seqs: Seqs | None = None
    starting: ReadPosition | None = None
    ending: ReadPosition | None = None
    messages_max: int | None = None
    bytes_max: int | None = None
    messages_min: int | None = None
    delay_max: timedelta = timedelta(minutes=15)
    parallelism: int | None = None
    mode: Literal["snapshot", "lease"] = "snapshot"
    group: str | None = None
    fail_on_data_loss: bool = True
    on_failover: Literal["fail", "continue"] = "fail"
    stream_name: str | None = None

    @property
    def types(self) -> ColumnTypes:
        return ColumnTypes(self.payload_type, self.headers_type)

    @classmethod
    def of(cls, options: Mapping[str, str], *, also: Iterable[str] = ()) -> ReadOptions:
        """Parse Spark's options; their names are case-insensitive. `also` has names that other code handles.

        Raises InvalidOption, which names the option.
        """
        return _read_options(Given(options, {*READ_OPTIONS, *also}))


class Given:
    """Options by name, with values converted to a type."""

    def __init__(self, options: Mapping[str, str], known: set[str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        if _PROVIDER in self._values:
            raise InvalidOption(
                "a table of Spark's catalog cannot be on lockstep: Spark does not give its options to a source in "
                "Python when it is read. Use create temporary view … using lockstep options (…)"
            )
        unknown = sorted(self._values.keys() - {name.lower() for name in known})
        if unknown:
            raise InvalidOption(
                f"unknown option{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}; "
                f"known are {', '.join(sorted(known))}",
                unknown=unknown,
            )

    def get(self, name: str, parse: Callable[[str], Any], default: Any = None) -> Any:
        value = self._values.get(name.lower())
        if value is None:
            return default
        try:
            return parse(value.strip())
        except (InvalidRequest, ValueError, OverflowError) as error:
            raise InvalidOption(f"the option {name} is not valid: {error}") from error


def _read_options(given: Given) -> ReadOptions:
    read = ReadOptions(
        queues=_queues(given),
        pattern=given.get("queuePattern", lambda text: check_name(text, what="it")),
        access=access(given.get),
        partitions=given.get("partitions", _names("a partition")),
        trace_id=given.get("traceId", lambda text: str(parse_uuid(text, what="it"))),
        columns=given.get("columns", _columns),
        payload_type=given.get("payloadType", parse_word("string", "binary"), "string"),
        headers_type=given.get("headersType", parse_word("string", "map"), "string"),
        payloads=payload_spec(given),
        payload_mode=given.get("payloadMode", parse_word("failfast", "permissive"), "failfast"),
        starting_seqs=given.get("startingSeqs", _seqs),
        ending_seqs=given.get("endingSeqs", _seqs),
        starting=given.get("startingPosition", parse_position),
        ending=given.get("endingPosition", parse_position),
        messages_max=given.get("maxMessagesPerTrigger", parse_count),
        bytes_max=given.get("maxBytesPerTrigger", parse_size),
        messages_min=given.get("minMessagesPerTrigger", parse_count),
        delay_max=given.get("maxTriggerDelay", parse_duration, timedelta(minutes=15)),
        parallelism=given.get("parallelism", parse_count),
        mode=given.get("mode", parse_word("snapshot", "lease"), "snapshot"),
        group=given.get("group", lambda text: check_name(text, what="it")),
        fail_on_data_loss=given.get("failOnDataLoss", parse_boolean, True),
        on_failover=given.get("onFailover", parse_word("fail", "continue"), "fail"),
        stream_name=given.get("streamName", lambda text: check_name(text, what="it")),
    )
    _check_together(read)
    return read


def access(get: Callable[..., Any]) -> Access:
    """How to reach the database, according to the options."""
    return Access(
        dsn=get("dsn", _text), dsn_env=get("dsnEnv", _text), encryption_key_env=get("encryptionKeyEnv", _text)
    )


def payload_spec(given: Given) -> PayloadSpec:
    """The payload options. Raises InvalidOption, SparkUnavailable."""
    url, auth = given.get("schemaRegistry", _text), given.get("schemaRegistryAuthEnv", _text)
    if url is None and auth is not None:
        raise InvalidOption("the option schemaRegistryAuthEnv needs the option schemaRegistry")
    registry = None if url is None else RegistryAddress(url, auth)
    if registry is not None:
        registry.check()
    spec = PayloadSpec(
        format=given.get("payloadFormat", parse_word(*FORMATS), "json"),
        schema=given.get("payloadSchema", _text),
        message=given.get("payloadMessage", _text),
        registry=registry,
        subject=given.get("schemaSubject", _text),
    )
    spec.check()
    return spec


def _check_together(read: ReadOptions) -> None:
    if read.mode == "lease" and read.pattern is not None:
        raise InvalidOption("the option queuePattern is for mode snapshot: a group is of a queue")
    if read.mode == "lease" and read.group is None:
        raise InvalidOption("mode lease needs the option group")
    if read.mode == "snapshot" and read.group is not None:
        raise InvalidOption("the option group is for mode lease; mode snapshot has no consumer group")
    if read.columns is not None and DATA in read.columns and not read.payloads.has_data:
        raise InvalidOption("the option columns names data, which needs the option payloadSchema")
    if read.starting_seqs is not None or read.ending_seqs is not None:
        _check_seqs(read)
    if read.messages_min is not None and (read.messages_max or read.messages_min) < read.messages_min:
        raise InvalidOption("minMessagesPerTrigger is more than maxMessagesPerTrigger")


def _check_seqs(read: ReadOptions) -> None:
    if read.mode == "lease" or read.partitions is not None:
        raise InvalidOption("startingSeqs and endingSeqs name partitions themselves: not with partitions or mode lease")
    if read.pattern is not None:
        raise InvalidOption("startingSeqs and endingSeqs are of queues that are named: not with queuePattern")
    for name, seqs in (("startingSeqs", read.starting_seqs), ("endingSeqs", read.ending_seqs)):
        queues = {queue for queue, _, _ in seqs or () if queue is not None}
        if seqs is not None and len(read.queues) > 1 and any(queue is None for queue, _, _ in seqs):
            raise InvalidOption(f"with several queues {name} is by queue: " + '{"queue": {"partition": 1}}')
        if queues - set(read.queues):
            raise InvalidOption(f"{name} names {', '.join(sorted(queues - set(read.queues)))}, which is not read")


def _queues(given: Given) -> tuple[str, ...]:
    queue, path = given.get("queue", _names("a queue")), given.get("path", _names("a queue"))
    if queue is not None and path is not None:
        raise InvalidOption("the queue is given twice: by the option queue, and as a path")
    if given.get("queuePattern", str) is not None:
        if queue or path:
            raise InvalidOption("the options queue and queuePattern exclude each other: give one of them")
        return ()
    queues: tuple[str, ...] | None = queue or path
    if not queues:
        raise InvalidOption("the option queue is missing: name the queue to read")
    return queues


def _names(what: str) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(check_name(name, what=what) for name in parse_list(text)))

    return parse


def parse_list(text: str) -> list[str]:
    """Names separated by commas, or a JSON list for names that have commas."""
    if not text.startswith("["):
        return [name.strip() for name in text.split(",")]
    names = json.loads(text)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError("a JSON list of strings is expected")
    return list(names)


def _columns(text: str) -> tuple[str, ...]:
    # Column names are case-insensitive, as everywhere in Spark.
    columns = tuple(dict.fromkeys(name.lower() for name in parse_list(text)))
    unknown = [name for name in columns if name not in (*COLUMNS, *ON_REQUEST, DATA)]
    if unknown:
        known = ", ".join([*COLUMNS, *ON_REQUEST, DATA])
        raise ValueError(f"there is no column {', '.join(map(repr, unknown))}; a message has {known}")
    return columns


def _seqs(text: str) -> Seqs:
    """Seqs by partition, or by queue and partition."""
    found: list[tuple[str | None, str, int]] = []
    given = json.loads(text)
    if not isinstance(given, dict) or not given:
        raise ValueError('JSON such as {"partition": 1} is expected')
    for name, value in given.items():
        if isinstance(value, dict):
            found += [(name, check_name(one, what="a partition"), _seq(seq)) for one, seq in value.items()]
        else:
            found.append((None, check_name(name, what="a partition"), _seq(value)))
    return tuple(found)


def _seq(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _NUMBER_MAX:
        raise ValueError(f"a seq is a number, not {value!r}")
    return value


def parse_word(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in values:
            raise ValueError(f"{text!r} is none of {', '.join(values)}")
        return text.lower()

    return parse


def _text(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


def parse_count(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() else 0
    if not 0 < number < _NUMBER_MAX:
        raise ValueError(f"a positive number is expected, not {text!r}")
    return number


def parse_size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    size = int(found[1]) * _FACTORS[found[2].lower()] if found else 0
    if not 0 < size < _NUMBER_MAX:
        raise ValueError(f"a number of bytes is expected, such as 1000000 or 64m, not {text!r}")
    return size


def parse_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def parse_duration(text: str) -> timedelta:
    """A duration such as 30s, 15m or 1h30m."""
    parts = _DURATION.findall(text)
    if not parts or "".join(_DURATION.split(text)[::3]).strip():
        raise ValueError(f"a span such as 30s, 10m or 1h30m is expected, not {text!r}")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds > _SECONDS_MAX:
        raise ValueError(f"{text!r} is too long")
    return timedelta(seconds=seconds)


def parse_position(text: str) -> ReadPosition:
    if text.lower() == "earliest":
        return ReadPosition("earliest")
    if text.lower() == "latest":
        return ReadPosition("latest")
    if text.startswith("-"):
        return ReadPosition("ago", ago=parse_duration(text[1:]))
    if text.startswith("{"):
        return _position_of_json(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:100]!r} is neither earliest, latest, a time, a span such as -10m, nor JSON") from None
    return ReadPosition("time", at=at if at.tzinfo is not None else at.replace(tzinfo=UTC))


def _position_of_json(text: str) -> ReadPosition:
    given = json.loads(text)
    system = given.get("system")
    return ReadPosition("offset", place=SnapshotPlace.of(given), system=None if system is None else str(system))
