"""Payloads: encodes a program's values as bytes, and decodes them to a requested type.

Without an encoding a payload is JSON: converted from and to builtins, msgspec structs, dataclasses, attrs classes,
TypedDicts and pydantic models. With an encoding it is opaque bytes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, TypedDict, Unpack

import msgspec

from lockstep.core.messages import NewMessage
from lockstep.errors import InvalidPayload


class MessageOptions(TypedDict, total=False):
    """What a message may have besides its payload. The partition is `Default` unless given."""

    partition: str
    transaction_id: str | None
    trace_id: str | None
    kind: str | None
    reference: str | None
    encoding: str | None
    headers: Mapping[str, str] | None
    expires_at: datetime | None
    expire_seconds: float | None
    deliver_at: datetime | None
    delay_seconds: float | None
    schedule_key: str | None


def new_message(queue: str, payload: Any, **options: Unpack[MessageOptions]) -> NewMessage:
    """Create a message to push, and encode its payload. Raises InvalidPayload."""
    return NewMessage(queue=queue, payload=encode_payload(payload, options.get("encoding")), **options)


def encode_payload(payload: Any, encoding: str | None = None) -> bytes:
    if encoding is not None:
        return _opaque(payload, encoding)
    if isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidPayload("a payload of bytes needs an encoding that says what they are")
    try:
        encoded = payload.model_dump_json().encode() if _is_model(payload) else _encode(payload)
        if b"null" in encoded:
            _check_numbers(payload)
        return bytes(encoded)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidPayload(f"the payload cannot be encoded as JSON: {error}") from error


def _check_numbers(payload: Any) -> None:
    """Raises ValueError for numbers that JSON cannot represent: they would silently become null."""
    builtins = payload.model_dump(mode="json") if _is_model(payload) else msgspec.to_builtins(payload, enc_hook=_hook)
    try:
        _encode_finite(builtins)
    except ValueError:
        raise ValueError("it holds NaN or an infinity") from None


def _opaque(payload: Any, encoding: str) -> bytes:
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidPayload(f"with the encoding {encoding!r} a payload must be bytes, not {type(payload).__name__}")
    return bytes(payload)


def decode_payload(raw: bytes, encoding: str | None = None, as_type: Any = None) -> Any:
    """The payload as `as_type`; without a type, JSON as builtins and anything else as bytes. Raises InvalidPayload."""
    if encoding is not None:
        if as_type not in (None, bytes, Any):
            raise InvalidPayload(f"the payload is {encoding!r} and not JSON, so it is no {_name(as_type)}")
        return raw
    try:
        if _is_model_type(as_type):
            return as_type.model_validate_json(raw)
        return _decoder(Any if as_type is None else as_type).decode(raw)
    # A pydantic ValidationError is a ValueError, like the errors of msgspec and of the UTF-8 decoder.
    except (ValueError, RecursionError) as error:
        raise InvalidPayload(f"the payload is no {_name(as_type)}: {_reason(error)}") from error


def _reason(error: Any) -> str:
    """What does not fit, and where; without the payload, which pydantic would quote."""
    if not _is_from_pydantic(error):
        return str(error)
    found = error.errors(include_url=False, include_input=False)
    return "; ".join([f"{one['msg']} - at `{'.'.join(['$', *map(str, one['loc'])])}`" for one in found])


def check_type(as_type: Any) -> None:
    """Fail at once for a type that no payload can be decoded to."""
    if as_type is None or as_type is bytes or _is_model_type(as_type):
        return
    try:
        _decoder(as_type)
    except TypeError as error:
        raise InvalidPayload(f"payloads cannot be decoded as {_name(as_type)}: {error}") from error


def _name(as_type: Any) -> str:
    return "JSON" if as_type is None else getattr(as_type, "__name__", str(as_type))


def _hook(value: Any) -> Any:
    """Encodes what msgspec does not know: models inside other values."""
    if _is_model(value):
        return value.model_dump(mode="json")
    if isinstance(value, msgspec.Raw):
        return None  # already JSON, so there is no number to check
    raise TypeError(f"{type(value).__name__} is not supported")


_encode = msgspec.json.Encoder(enc_hook=_hook).encode
_encode_finite = json.JSONEncoder(allow_nan=False, check_circular=False).encode


@lru_cache(maxsize=1024)
def _decoder(as_type: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(as_type, dec_hook=_decode_model)


def _decode_model(as_type: Any, value: Any) -> Any:
    """Decodes nested models like a model that is the whole payload."""
    if not _is_model_type(as_type):
        return value
    try:
        return as_type.model_validate_json(_encode(value))
    except ValueError as error:
        raise ValueError(_reason(error)) from None


# A program that has a model has imported pydantic; others need not have it.
def _is_model(value: Any) -> bool:
    pydantic: Any = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.BaseModel)


def _is_from_pydantic(error: Any) -> bool:
    pydantic: Any = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(error, pydantic.ValidationError)


def _is_model_type(as_type: Any) -> bool:
    pydantic: Any = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(as_type, type) and issubclass(as_type, pydantic.BaseModel)
