"""Routes as data, and how requests are matched.

A path is matched segment by segment in a tree; a literal segment takes precedence over a parameter. Segments are split
before they are percent-decoded, so a name may contain an encoded slash. Clients do not always encode slashes: if no
route matches, parameters that are names may span several segments.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

from lockstep.core.rights import LEVELS, Level, Right
from lockstep.errors import InvalidRequest, MethodNotAllowed, NoSuchRoute
from lockstep.server.exchange import Request, Response
from lockstep.server.node import Node
from lockstep.server.strictness import check_path

Endpoint = Callable[[Node, Request], Awaitable[Response]]

_NAMES = {":queue", ":partition", ":group", ":name", ":transactionId", ":page"}
"""Parameters that may contain slashes that were not encoded. The others are ids."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """One method of one path: its endpoint, and its description in the OpenAPI document."""

    method: str
    path: str
    """Segments that begin with a colon are parameters."""
    endpoint: Endpoint
    summary: str
    right: Right | tuple[Right, ...] | None
    """The right that a caller needs on some queue, or several alternatives; None for a public route. The verbs that it
    calls then check the rights on their queues (auth/verbs.py)."""
    verb: str = "other"
    """The verb whose histogram includes its durations."""
    query: type[Any] | None = None
    """A struct: the names, types and defaults of the query string."""
    body: Any = None
    body_required: bool = True
    answers: Any = None
    """The type of the answer; None if it has no JSON body."""
    status: int = 200
    empty: bool = False
    """Whether it may also answer 204."""
    also: Mapping[int, Any] = field(default_factory=dict)
    """Other answers that are not plain errors: their types by status."""
    personal: bool = False
    """Whether its answer depends on the caller in ways other than the queues that the caller may browse."""
    media: str = "application/json"
    admit: Callable[[Node], None] | None = None
    """Called when the head of a request has arrived; raises if the request is refused regardless of its body."""

    @property
    def rights(self) -> tuple[Right, ...]:
        if self.right is None:
            return ()
        return self.right if isinstance(self.right, tuple) else (self.right,)

    @property
    def level(self) -> Level:
        """The role that suffices for it."""
        return LEVELS[self.rights[0]] if self.rights else "public"

    @property
    def methods(self) -> tuple[str, ...]:
        """Its own method, and HEAD for a GET that changes nothing: HEAD on a pop would lease messages that the client
        never sees."""
        return ("GET", "HEAD") if self.method == "GET" and self.level != "rw" else (self.method,)


@dataclass(slots=True)
class _Branch:
    """A branch of the tree of paths."""

    methods: dict[str, Route] = field(default_factory=dict)
    literal: dict[str, _Branch] = field(default_factory=dict)
    parameter: _Branch | None = None


class Routes:
    """All routes, ready for look-ups."""

    def __init__(self, routes: Iterable[Route], *, addresses: Iterable[Route] = ()) -> None:
        """`addresses` of pages are matched like routes but not documented: they are for people."""
        self.all = list(routes)
        addresses = list(addresses)
        self._root = _Branch()
        self._plain: dict[bytes, dict[str, Route]] = {}
        """Paths without parameters in their wire form: the fast path for the busiest routes."""
        self._wide: list[tuple[re.Pattern[bytes], Route]] = []
        """Longest paths first, and among those the ones with the most literal segments: another pattern would take
        these for parameters."""
        for route in (*self.all, *addresses):
            self._add(route)
        self._wide.sort(key=lambda wide: (wide[1].path.count("/"), -wide[1].path.count(":")), reverse=True)

    def _add(self, route: Route) -> None:
        branch = self._root
        for piece in route.path.strip("/").split("/"):
            if piece.startswith(":"):
                branch.parameter = branch.parameter or _Branch()
                branch = branch.parameter
            else:
                branch = branch.literal.setdefault(piece, _Branch())
        if route.method in branch.methods:
            raise ValueError(f"two routes for {route.method} {route.path}")
        by_method = dict.fromkeys(route.methods, route)
        branch.methods |= by_method
        if ":" not in route.path:
            self._plain.setdefault(route.path.encode(), {}).update(by_method)
        if not _NAMES.isdisjoint(route.path.split("/")):
            self._wide.append((_wide_pattern(route.path), route))

    def find(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        """The route and its parameters. Raises NoSuchRoute, MethodNotAllowed, InvalidRequest."""
        plain = self._plain.get(raw_path)
        if plain is not None and method in plain:
            return plain[method], {}
        check_path(raw_path)
        pieces = raw_path.strip(b"/").split(b"/")
        branch = self._walk(self._root, pieces, 0)
        if branch is None:
            return self._find_wide(method, raw_path)
        route = branch.methods.get(method)
        if route is None:
            raise MethodNotAllowed(
                f"this route takes {', '.join(sorted(branch.methods))}", allow=sorted(branch.methods)
            )
        return route, _parameters(route, pieces)

    def _find_wide(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        path = b"/" + raw_path.strip(b"/")
        for pattern, route in self._wide:
            found = pattern.fullmatch(path) if method in route.methods else None
            if found is not None:
                return route, {name: _decoded(piece) for name, piece in found.groupdict().items()}
        raise NoSuchRoute(f"there is no route {raw_path.decode('ascii', 'replace')[:200]}")

    def _walk(self, branch: _Branch, pieces: list[bytes], index: int) -> _Branch | None:
        if index == len(pieces):
            return branch if branch.methods else None
        written = branch.literal.get(pieces[index].decode("latin-1"))
        found = None if written is None else self._walk(written, pieces, index + 1)
        if found is None and branch.parameter is not None and pieces[index]:
            found = self._walk(branch.parameter, pieces, index + 1)
        return found


def _wide_pattern(path: str) -> re.Pattern[bytes]:
    """A name ends at the first occurrence of what follows it. Only the last name is tried further (`?>`); otherwise the
    time for a path would grow with a power of its length."""
    begin, *rest = re.split(r"(:\w+)", path)
    taken = [
        f"(?P<{name[1:]}>{'.+?' if name in _NAMES else '[^/]+'}){re.escape(literal)}"
        for name, literal in zip(rest[::2], rest[1::2], strict=True)
    ]
    return re.compile("".join([re.escape(begin), *[f"(?>{one})" for one in taken[:-1]], taken[-1]]).encode())


def _parameters(route: Route, pieces: list[bytes]) -> dict[str, str]:
    names = route.path.strip("/").split("/")
    return {name[1:]: _decoded(piece) for name, piece in zip(names, pieces, strict=True) if name.startswith(":")}


def _decoded(piece: bytes) -> str:
    """A decoded path segment. Clients do not always encode what they should, so a percent sign may be literal."""
    try:
        return unquote_to_bytes(piece).decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest("the path is not UTF-8 once it is percent-decoded") from None
