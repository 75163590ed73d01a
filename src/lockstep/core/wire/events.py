"""Events on the wire: answers of routes that a page watches."""

from __future__ import annotations

from msgspec import Raw, Struct

from lockstep.errors import InvalidRequest

WATCHED_MAX = 16
"""Paths that one stream may watch."""


class WatchedEvent(Struct):
    """What a route answers now: as often as that changes."""

    path: str
    """As it was asked for, with its query string."""
    status: int
    body: Raw
    """The answer, or the error."""


def watched_event(path: str, status: int, body: bytes) -> WatchedEvent:
    return WatchedEvent(path, status, Raw(body))


def watched_paths(watch: str) -> list[str]:
    """The paths that a stream is to watch. Raises InvalidRequest."""
    paths = list(dict.fromkeys(watch.split()))
    if not paths:
        raise InvalidRequest("watch names no path; give at least one, such as watch=/api/v1/status")
    if len(paths) > WATCHED_MAX:
        raise InvalidRequest(f"a stream watches at most {WATCHED_MAX} paths, not {len(paths)}")
    return paths
