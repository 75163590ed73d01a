"""Refuses HTTP that a proxy in front of the server may read differently.

An attacker who makes two programs see different requests in the same bytes, or different paths in the same URL,
bypasses the checks of the first. Ambiguous requests are therefore refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from lockstep.errors import InvalidRequest, UnsupportedEncoding

_VERSIONS = ("1.1", "1.0")
ONCE = frozenset({b"host", b"content-length", b"transfer-encoding", b"content-type", b"authorization", b"origin"})
"""Headers that a request may contain only once."""
_SUSPECT = re.compile(rb"//|%2[ef]|\.", re.IGNORECASE)
_DOTS = re.compile(rb"(?:^|/)\.{1,2}(?:/|$)")


def framing_fault(version: str, url: bytes, headers: Mapping[bytes, bytes], doubled: bytes | None) -> str | None:
    """Why the end or the host of a request is ambiguous; None if neither is."""
    if version not in _VERSIONS:
        return f"this is HTTP/{version}; the server speaks HTTP/1.1"
    if doubled is not None:
        return f"the header {doubled.decode('latin-1')} is given twice"
    if b"host" not in headers:
        return "the header Host is missing"
    if url[:1] != b"/" and url != b"*":
        return "the target is not a path; the server is no proxy"
    encoding = headers.get(b"transfer-encoding")
    if encoding is None:
        return None
    if encoding.strip().lower() != b"chunked" or version == "1.0":
        return "the only Transfer-Encoding is chunked, in HTTP/1.1"
    if b"content-length" in headers:
        return "Content-Length and Transfer-Encoding exclude each other"
    return None


def check_encoding(headers: Mapping[bytes, bytes]) -> None:
    """Raises UnsupportedEncoding for a compressed body, because a few bytes could expand to many."""
    if b"content-encoding" in headers:
        raise UnsupportedEncoding


def check_path(path: bytes) -> None:
    """Raises InvalidRequest for a path that a browser or a proxy may shorten: one with an empty segment, or with
    segments of one or two dots, however these are encoded. Encoded slashes belong to names, so several of them may be
    adjacent."""
    if not _SUSPECT.search(path):
        return
    if b"//" in path:
        raise InvalidRequest("the path has two slashes together; a slash in a name that follows another is %2F")
    if _DOTS.search(unquote_to_bytes(path)):
        raise InvalidRequest("the path has a piece that is only . or ..; such a name can be used in bodies only")
