"""Pages for people: what this server is, and the documentation of its routes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.openapi import document
from lockstep.server.routing import Route
from lockstep.version import VERSION

_HTML = (b"content-type", b"text/html; charset=utf-8")
# Everything is on the page itself; a browser should not fetch or run anything else for it.
_POLICY = (
    b"content-security-policy",
    b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:",
)


async def index(_node: Node, _: Request) -> Response:
    return Response(200, _page("index.html"), _HTML, _POLICY)


@cache
def _page(name: str) -> bytes:
    page = resources.files("lockstep.server") / "html" / name
    return page.read_text(encoding="utf-8").replace("{version}", VERSION).encode()


_PAGES = [
    Route(
        method="GET",
        path="/",
        endpoint=index,
        summary="What this server is, and where to go from here",
        level="public",
        media="text/html",
    ),
]


def _list(shown: Sequence[Route]) -> str:
    """The routes in short, for where no script runs; else it takes their place."""
    rows = [f"<li><code>{escape(one.method)} {escape(one.path)}</code> {escape(one.summary)}</li>" for one in shown]
    return f"<ul>{''.join(rows)}</ul>"


def routes(others: Sequence[Route]) -> list[Route]:
    """The pages, and the document of all routes, these among them."""

    @cache
    def described() -> Response:
        return answer(document([*others, *own]))

    @cache
    def listed() -> bytes:
        return _page("docs.html").replace(b"{routes}", _list([*others, *own]).encode())

    async def openapi(_node: Node, _: Request) -> Response:
        return described()

    async def docs(_node: Node, _: Request) -> Response:
        return Response(200, listed(), _HTML, _POLICY)

    own = [
        *_PAGES,
        Route(
            method="GET",
            path="/docs",
            endpoint=docs,
            summary="The documentation of the routes",
            level="public",
            media="text/html",
        ),
        Route(
            method="GET",
            path="/openapi.json",
            endpoint=openapi,
            summary="This document",
            level="public",
            answers=dict[str, Any],
        ),
    ]
    return own
