"""Pages for people: the dashboard, the documentation, and the page of the routes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from lockstep.errors import NoSuchRoute
from lockstep.server import dashboard, documentation
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.openapi import document
from lockstep.server.routing import Route
from lockstep.version import VERSION

_HTML = (b"content-type", b"text/html; charset=utf-8")
# Scripts and styles come from files of this server, and nothing comes from other sites.
_POLICY = (
    b"content-security-policy",
    b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'",
)
_PAGE = (_HTML, _POLICY, *dashboard.CAREFUL)
_FILES = {
    "routes.css": b"text/css; charset=utf-8",
    "routes.js": b"text/javascript; charset=utf-8",
    "not_built.css": b"text/css; charset=utf-8",
}
"""The files that these pages load, and their types."""


async def index(_node: Node, request: Request) -> Response:
    return dashboard.page() or _not_built(request)


def _not_built(request: Request) -> Response:
    host = escape(request.header(b"host") or "localhost")
    return Response(200, _page("not_built.html").replace(b"{host}", host.encode()), *_PAGE)


async def file(_node: Node, request: Request) -> Response:
    return dashboard.file(request)


async def documents(_node: Node, request: Request) -> Response:
    """A page or file of the documentation. Links on its first page need an address that ends with a slash."""
    if request.path == b"/docs":
        return Response(308, b"", (b"location", b"/docs/"), *dashboard.CAREFUL)
    name = request.parameters.get("page", "index.html")
    return documentation.file(request, name) or Response(200, _page("no_documentation.html"), *_PAGE)


async def page_file(_node: Node, request: Request) -> Response:
    name = request.parameters["file"]
    media = _FILES.get(name)
    if media is None:
        raise NoSuchRoute(f"there is no file /pages/{name[:200]}")
    return Response(200, _page(name), (b"content-type", media), *dashboard.CAREFUL)


@cache
def _page(name: str) -> bytes:
    page = resources.files("lockstep.server") / "html" / name
    return page.read_text(encoding="utf-8").replace("{version}", VERSION).encode()


_PAGES = [
    Route(
        method="GET",
        path="/",
        endpoint=index,
        summary="The dashboard",
        right=None,
        media="text/html",
    ),
    Route(
        method="GET",
        path="/assets/:file",
        endpoint=file,
        summary="A file of the dashboard",
        right=None,
        media="*/*",
    ),
]

_ADDRESSES = (
    "/queues",
    "/queues/:queue",
    "/messages",
    "/messages/:partitionId/:transactionId",
    "/groups",
    "/groups/:group",
    "/dead-letters",
    "/schedules",
    "/traces",
    "/pipelines",
    "/load",
    "/database",
    "/system",
    "/sign-in",
)
"""The addresses of the dashboard, besides /. All of them serve the same page."""

ADDRESSES = [
    *[
        Route(method="GET", path=path, endpoint=index, summary="The dashboard", right=None, media="text/html")
        for path in _ADDRESSES
    ],
    Route(
        method="GET",
        path="/docs/:page",
        endpoint=documents,
        summary="A page of the documentation, or a file of it",
        right=None,
        media="text/html",
    ),
    Route(method="GET", path="/pages/:file", endpoint=page_file, summary="A file of a page", right=None),
]


def _list(shown: Sequence[Route]) -> str:
    """A short list of the routes, which the page's script replaces."""
    rows = [f"<li><code>{escape(one.method)} {escape(one.path)}</code> {escape(one.summary)}</li>" for one in shown]
    return f"<ul>{''.join(rows)}</ul>"


def routes(others: Sequence[Route]) -> list[Route]:
    """The pages, and the document of all routes, these among them."""

    @cache
    def described() -> Response:
        return answer(document([*others, *own]))

    @cache
    def listed() -> bytes:
        return _page("routes.html").replace(b"{routes}", _list([*others, *own]).encode())

    async def openapi(_node: Node, _: Request) -> Response:
        return described()

    async def described_routes(_node: Node, _: Request) -> Response:
        return Response(200, listed(), *_PAGE)

    own = [
        *_PAGES,
        Route(
            method="GET",
            path="/docs",
            endpoint=documents,
            summary="The documentation",
            right=None,
            media="text/html",
        ),
        Route(
            method="GET",
            path="/docs/api",
            endpoint=described_routes,
            summary="The documentation of the routes",
            right=None,
            media="text/html",
        ),
        Route(
            method="GET",
            path="/openapi.json",
            endpoint=openapi,
            summary="This document",
            right=None,
            answers=dict[str, Any],
        ),
    ]
    return own
