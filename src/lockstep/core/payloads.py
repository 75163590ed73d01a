"""Payloads without an encoding are JSON. A push by HTTP is decoded anyway; these are the checks for the others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from lockstep.core.messages import Batch, NewMessage, check_shape
from lockstep.errors import InvalidPayload

_raw = msgspec.json.Decoder(msgspec.Raw)
_raws = msgspec.json.Decoder(list[msgspec.Raw])


def check_utf8(json: bytes) -> None:
    """Raise UnicodeDecodeError for bytes that are not UTF-8. The decoder accepts them within strings that it leaves
    raw."""
    if not json.isascii():
        json.decode()


def decode_raw(json: bytes) -> msgspec.Raw:
    """The JSON as it is, once it is known to be some: raises DecodeError, UnicodeDecodeError or RecursionError."""
    raw = _raw.decode(json)
    check_utf8(json)
    return raw


def check_json_column(payloads: Sequence[bytes]) -> None:
    """Raise DecodeError, UnicodeDecodeError or RecursionError unless each of the payloads is one JSON value. All are
    looked at together, which costs a fraction of one look each."""
    together = b"[%s]" % b",".join(payloads)
    check_utf8(together)
    # Values of the same lengths at the same places: no payload reaches into another one.
    if list(map(len, _raws.decode(together))) != list(map(len, payloads)):
        for payload in payloads:
            decode_raw(payload)


def check_json(messages: Sequence[NewMessage] | Sequence[Batch]) -> None:
    """Raise InvalidPayload for a payload that has no encoding and is not JSON: nobody could read it over HTTP, nor the
    messages that come with it. A value that is not a message is refused where it is taken."""
    given: Sequence[NewMessage | Batch] = messages
    for index, message in enumerate(given):
        try:
            for payload in _json_payloads(message):
                decode_raw(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidPayload(f"message {index}: the payload is not JSON, and has no encoding: {error}") from error


def _json_payloads(message: NewMessage | Batch) -> list[bytes]:
    if isinstance(message, NewMessage):
        payloads, encodings = [message.payload], [message.encoding]
    elif isinstance(message, Batch):
        columns = check_shape(message.columns)
        payloads, encodings = columns.payloads, columns.encodings or []
    else:
        return []
    return [
        payload for payload, encoding in zip_longest(payloads, encodings) if encoding is None and type(payload) is bytes
    ]
