"""Payloads without an encoding are JSON. A push over HTTP decodes them anyway; the other ways of pushing are checked
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise, zip_longest

import msgspec

from lockstep.core.messages import Batch, NewMessage, check_shape
from lockstep.errors import InvalidPayload

_raw = msgspec.json.Decoder(msgspec.Raw)
_raws = msgspec.json.Decoder(list[msgspec.Raw])


def check_utf8(json: bytes) -> None:
    """Raise UnicodeDecodeError unless the bytes are UTF-8. The decoder does not check strings that it leaves raw."""
    if not json.isascii():
        json.decode()


def decode_raw(json: bytes) -> msgspec.Raw:
    """The payload as raw JSON, after a check. Raises DecodeError, UnicodeDecodeError or RecursionError."""
    raw = _raw.decode(json)
    check_utf8(json)
    return raw


def check_json_column(payloads: Sequence[bytes]) -> None:
    """Raise DecodeError, UnicodeDecodeError or RecursionError unless each payload is one JSON value. Checks all
    payloads joined, at a fraction of the cost of separate checks."""
    together = b"[%s]" % b",".join(payloads)
    check_utf8(together)
    # Values of the same lengths at the same positions: no payload reaches into the next.
    if list(map(len, _raws.decode(together))) != list(map(len, payloads)):
        for payload in payloads:
            decode_raw(payload)


def check_json_run(payloads: bytes, lengths: Sequence[int]) -> None:
    """The same for payloads that lie one behind the other. None of them is copied."""
    check_utf8(payloads)
    try:
        found = list(map(len, _raw.decode_lines(payloads)))
    except msgspec.DecodeError:
        found = []  # two numbers side by side are none
    if found != list(lengths):
        check_json_column([payloads[a:b] for a, b in pairwise(accumulate(lengths, initial=0))])


def check_json(messages: Sequence[NewMessage] | Sequence[Batch]) -> None:
    """Raise InvalidPayload for a payload that has no encoding and is not JSON: it could not be read over HTTP, nor
    could the messages around it. Values that are not messages are refused elsewhere."""
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
