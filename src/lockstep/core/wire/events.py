"""Event streams on the wire: the answers of routes that a page watches."""

from __future__ import annotations

from msgspec import Raw, Struct

from lockstep.errors import InvalidRequest

WATCHED_MAX = 16
"""Maximum number of paths that one stream may watch."""


class WatchedEvent(Struct):
    """The current answer of a route; sent whenever it changes."""

    path: str
    """As requested, with its query string."""
    status: int
    body: Raw
    """The answer, or the error."""


def watched_event(path: str, status: int, body: bytes) -> WatchedEvent:
    return WatchedEvent(path, status, Raw(body))


def watched_paths(watch: str) -> list[str]:
    """The paths that a stream watches. Raises InvalidRequest."""
    paths = list(dict.fromkeys(watch.split()))
    if not paths:
        raise InvalidRequest("watch names no path; give at least one, such as watch=/api/v1/status")
    if len(paths) > WATCHED_MAX:
        raise InvalidRequest(f"a stream watches at most {WATCHED_MAX} paths, not {len(paths)}")
    return paths
