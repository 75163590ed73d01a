"""Rows to write: the rows of a DataFrame, checked column by column as Arrow arrays.

Single rows are examined only to report the one that is wrong. Rows are identified by their number within their task,
from 1.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, NoReturn
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.config import Config
from lockstep.core.ids import all_canonical_uuids, parse_uuid
from lockstep.core.names import DEFAULT_PARTITION, NAME_LENGTH_MAX, TRANSACTION_ID_LENGTH_MAX, check_name, check_names
from lockstep.errors import InvalidPayload, InvalidRequest, TooLarge
from lockstep.spark.payloads.formats import Encode, Misfit, PayloadSpec
from lockstep.spark.write.ordering import key_columns
from lockstep.spark.write.sink_schema import COLUMNS
from lockstep.spark.write.write_options import Delivery, WriteOptions

_BYTES = ("payload", "headers")
_check_json = msgspec.json.Decoder(msgspec.Raw).decode
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


class Incoming:
    """The rows of one task, batch by batch."""

    def __init__(
        self,
        config: Config,
        *,
        queue: str | None,
        delivery: Delivery = "ids",
        order_by: Sequence[str] = (),
        task: int = 0,
        payloads: PayloadSpec | None = None,
    ) -> None:
        self._config = config
        self._queue = queue
        self._delivery = delivery
        self._order_by = order_by
        self._task = task
        self._encoding = None if payloads is None or payloads.format == "json" else payloads.format
        self._encode = None if payloads is None or self._encoding is None else payloads.encoder()
        self.rows = 0

    @classmethod
    def of(cls, options: WriteOptions, config: Config, *, task: int) -> Incoming:
        """Create it from the options of a write."""
        return cls(
            config,
            queue=options.queue,
            delivery=options.delivery,
            order_by=options.order_by,
            task=task,
            payloads=options.payloads,
        )

    def take(self, batch: pa.RecordBatch) -> pa.Table:
        """The columns to write, checked and converted to one type each: text, or bytes for payload and headers."""
        given = {name.lower(): batch.column(i) for i, name in enumerate(batch.schema.names)}
        if self._encode is not None:
            self._encode_payloads(given, self._encode)
        columns = {name: self._typed(name, given[name]) for name in COLUMNS if name in given}
        if self._queue is not None:
            columns.pop("queue", None)
        if self._delivery == "append":
            columns.pop("transaction_id", None)
        for name in ("transaction_id", "trace_id", "kind", "reference", "encoding", "headers", "producer_sub"):
            if name in columns and columns[name].null_count == len(columns[name]):
                del columns[name]
        if "encoding" in columns and _is_text(given["payload"].type):
            columns["payload"] = self._opaque(columns["payload"], columns["encoding"])
        self._check(columns)
        if self._delivery == "dedupe":
            columns["transaction_id"] = _content_ids(columns)
        if self._order_by:
            columns |= key_columns(batch, self._order_by)
        self.rows += batch.num_rows
        return pa.table(columns)

    def _encode_payloads(self, given: dict[str, pa.Array], encode: Encode) -> None:
        """Encode structs as bytes with an encoding that names their format."""
        encoded: list[bytes | None] = []
        for row, value in enumerate(given["payload"].to_pylist(maps_as_pydicts="strict")):
            try:
                encoded.append(None if value is None else encode(value))
            except Misfit as error:
                raise InvalidPayload(
                    f"column 'payload' does not fit payloadSchema in {self._row(row)}: {error}"
                ) from error
        given["payload"] = pa.array(encoded, pa.binary())
        named = pa.repeat(self._encoding, len(encoded)).cast(pa.string())
        given["encoding"] = pc.coalesce(given["encoding"].cast(pa.string()), named) if "encoding" in given else named

    def _typed(self, name: str, array: pa.Array) -> pa.Array:
        if name == "headers" and pa.types.is_map(array.type):
            return self._encoded_headers(array)
        if name in _BYTES:
            return array.cast(pa.binary())
        text = array.cast(pa.string())
        try:
            text.validate(full=True)
        except pa.ArrowInvalid:
            self._refuse_first(name, text.cast(pa.binary()).to_pylist(), _is_no_text, "is no text in UTF-8")
        return text

    def _opaque(self, payloads: pa.Array, encodings: pa.Array) -> pa.Array:
        """Payloads from texts in the form of a read: those with an encoding are base64."""
        decoded = payloads.to_pylist()
        for row in pc.indices_nonzero(encodings.is_valid()).to_pylist():
            try:
                decoded[row] = None if decoded[row] is None else b64decode(decoded[row], validate=True)
            except ValueError as error:
                raise InvalidPayload(
                    f"column 'payload' has an encoding in {self._row(row)}, and as a string must be base64: {error}"
                ) from error
        return pa.array(decoded, pa.binary())

    def _check(self, columns: dict[str, pa.Array]) -> None:
        config = self._config
        self._check_payloads(columns)
        if "queue" in columns:
            self._refuse_null("queue", columns["queue"], "")
            self._check_names("queue", columns["queue"])
        if "partition" in columns:
            columns["partition"] = columns["partition"].fill_null(DEFAULT_PARTITION)
            self._check_names("partition", columns["partition"])
        for name, length_max in (
            ("transaction_id", TRANSACTION_ID_LENGTH_MAX),
            ("kind", config.kind_length_max),
            ("reference", config.reference_length_max),
            ("encoding", config.encoding_length_max),
            ("producer_sub", NAME_LENGTH_MAX),
        ):
            if name in columns:
                self._check_texts(name, columns[name], length_max)
        if "trace_id" in columns:
            columns["trace_id"] = self._canonical("trace_id", columns["trace_id"])
        if "headers" in columns:
            self._check_headers(columns["headers"])

    def _check_payloads(self, columns: dict[str, pa.Array]) -> None:
        payloads = columns["payload"]
        self._refuse_null("payload", payloads, "; a JSON null is the text null")
        lengths = pc.binary_length(payloads)
        limit = self._config.payload_bytes_max
        if len(payloads) and pc.max(lengths).as_py() > limit:
            row = pc.index(pc.greater(lengths, limit), True).as_py()
            found = lengths[row].as_py()
            raise TooLarge(f"column 'payload' has {found} bytes in {self._row(row)}; at most {limit} are allowed")
        # Payloads with an encoding are opaque; all others are JSON.
        values: Sequence[bytes] = payloads.to_pylist()
        if "encoding" in columns:
            json_rows = pc.indices_nonzero(columns["encoding"].is_null()).to_pylist()
            self._check_json([values[row] for row in json_rows], json_rows)
        else:
            self._check_json(values, range(len(values)))

    def _check_json(self, values: Sequence[bytes], rows: Sequence[int]) -> None:
        checked = map(_check_json, values)
        done = 0
        try:
            for done, _ in enumerate(checked, 1):  # noqa: B007
                pass
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidPayload(
                f"column 'payload' is no JSON in {self._row(rows[done])}: {error}; a payload of another kind needs an "
                "'encoding' that names it"
            ) from error

    def _check_names(self, name: str, array: pa.Array) -> None:
        unique = array.unique().to_pylist()
        try:
            check_names(unique, what=name)
        except InvalidRequest:
            for one in unique:
                self._check_name(name, one, array)

    def _check_name(self, name: str, text: str, array: pa.Array) -> None:
        try:
            check_name(text, what=f"column {name!r}")
        except InvalidRequest as error:
            raise type(error)(f"{error.message} in {self._row(pc.index(array, text).as_py())}") from error

    def _check_texts(self, name: str, array: pa.Array, length_max: int) -> None:
        lengths = pc.utf8_length(array)
        longest = pc.max(lengths).as_py()
        if longest > length_max:
            row = pc.index(pc.greater(lengths, length_max), True).as_py()
            text = f"has {lengths[row].as_py()} characters in {self._row(row)}; at most {length_max} are allowed"
            raise InvalidRequest(f"column {name!r} {text}")
        if pc.any(pc.match_substring(array, "\x00")).as_py():
            row = pc.index(pc.match_substring(array, "\x00"), True).as_py()
            raise InvalidRequest(f"column {name!r} contains a NUL character in {self._row(row)}")
        if name == "transaction_id" and pc.min(lengths).as_py() == 0:
            raise InvalidRequest(f"column {name!r} is empty in {self._row(pc.index(lengths, 0).as_py())}")

    def _canonical(self, name: str, array: pa.Array) -> pa.Array:
        """UUIDs in canonical spelling."""
        texts = array.to_pylist()
        if all_canonical_uuids([text for text in texts if text is not None]):
            return array
        spelled = []
        for row, text in enumerate(texts):
            try:
                spelled.append(None if text is None else str(parse_uuid(text, what=f"column {name!r}")))
            except InvalidRequest as error:
                raise InvalidRequest(f"{error.message} in {self._row(row)}") from error
        return pa.array(spelled, pa.string())

    def _encoded_headers(self, array: pa.Array) -> pa.Array:
        encoded: list[bytes | None] = []
        for row, pairs in enumerate(array.to_pylist()):
            if pairs is not None and any(value is None for _, value in pairs):
                raise InvalidRequest(f"column 'headers' has a null value in {self._row(row)}")
            encoded.append(None if pairs is None else msgspec.json.encode(dict(pairs)))
        return pa.array(encoded, pa.binary())

    def _check_headers(self, array: pa.Array) -> None:
        limit = self._config.headers_bytes_max
        for encoded in array.unique().drop_null().to_pylist():
            if len(encoded) > limit:
                row = self._row(pc.index(array, encoded).as_py())
                raise TooLarge(f"column 'headers' has {len(encoded)} bytes in {row}; at most {limit} are allowed")
            wrong = _wrong_headers(encoded)
            if wrong is not None:
                raise InvalidRequest(f"column 'headers' {wrong} in {self._row(pc.index(array, encoded).as_py())}")

    def _refuse_null(self, name: str, array: pa.Array, hint: str) -> None:
        if array.null_count:
            row = pc.index(array.is_null(), True).as_py()
            raise InvalidRequest(f"column {name!r} is null in {self._row(row)}{hint}")

    def _refuse_first(self, name: str, values: Sequence[Any], wrong: Callable[[Any], bool], what: str) -> NoReturn:
        row = next(row for row, value in enumerate(values) if value is not None and wrong(value))
        raise InvalidRequest(f"column {name!r} {what} in {self._row(row)}")

    def _row(self, row: int) -> str:
        return f"row {self.rows + row + 1} of task {self._task}"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_no_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return True
    return False


def _wrong_headers(encoded: bytes) -> str | None:
    try:
        decoded = _decode_headers(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"is no JSON object of strings ({error})"
    # JSON can contain a NUL, which PostgreSQL's jsonb cannot store.
    if any("\x00" in name + value for name, value in decoded.items()):
        return "contains a NUL character"
    return None


def _content_ids(columns: dict[str, pa.Array]) -> pa.Array:
    """Transaction ids: the given ones, otherwise ids derived from the whole content of the row."""
    count = len(columns["payload"])
    given = columns["transaction_id"].to_pylist() if "transaction_id" in columns else [None] * count
    said = [columns[name].to_pylist() for name in COLUMNS if name in columns and name != "transaction_id"]
    ids = (one or _content_id(row) for one, row in zip(given, zip(*said, strict=True), strict=True))
    return pa.array(ids, pa.string())


def _content_id(row: Sequence[str | bytes | None]) -> str:
    digest = blake2b(digest_size=16)
    for value in _encoded(row):
        digest.update(b"-" if value is None else b"%d:" % len(value) + value)
    return str(UUID(bytes=digest.digest(), version=5))


def _encoded(row: Sequence[str | bytes | None]) -> Iterator[bytes | None]:
    for value in row:
        yield value.encode() if isinstance(value, str) else value
