"""Payloads in answers, which are not decoded, and single values of columns."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from msgspec import Raw, Struct


class Content(Struct, rename="camel", gc=False, kw_only=True):
    """The content of a message in a request, besides or instead of `payload`."""

    kind: str | None = None
    reference: str | None = None
    encoding: str | None = None
    headers: dict[str, str] | None = None
    payload_base64: str | None = None
    """The payload as opaque bytes, instead of `payload`; `encoding` names their format."""


def raw_data(payload: bytes, encoding: str | None) -> Raw:
    """A payload as it appears in an answer: JSON unchanged, anything else as a base64 string."""
    return Raw(payload) if encoding is None else Raw(b'"' + b64encode(payload) + b'"')


def value_at(column: list[Any] | None, offset: int) -> Any:
    return None if column is None else column[offset]
