"""Numeric ids. They travel as strings of digits, because not every client keeps all 64 bits of a number."""

from __future__ import annotations

from lockstep.errors import InvalidRequest

_DIGITS_MAX = 18


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def number_of(text: str | int, *, what: str) -> int:
    """The number in the text. Raises InvalidRequest."""
    if isinstance(text, int):
        return text
    if not is_number(text):
        raise InvalidRequest(f"{what} must be a string of digits, not {text[:64]!r}")
    return int(text)
