"""The dashboard as built from dashboard/: a page, and the files that it loads.

Every address of the dashboard serves the same page; its script shows the content for the address. File names contain a
hash of the contents, so browsers may cache them forever. The build adds compressed versions of the files.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from lockstep.errors import NoSuchRoute
from lockstep.server.exchange import Request, Response

_TYPES = {
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".woff2": b"font/woff2",
}
_PACKED = ((b"br", ".br"), (b"gzip", ".gz"))
"""Compression methods, the best one first, and their file suffixes."""
_NONCE = b"__style_nonce__"
_FOREVER = (b"cache-control", b"public, max-age=31536000, immutable")
_ALWAYS_ASK = (b"cache-control", b"no-cache")
CAREFUL = (
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Sent with every page and its files: other sites do not learn the page's address, and cannot embed it."""
# Scripts come from files only, and nothing comes from other sites. Components add a few style elements, which need the
# nonce of the page.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self' 'nonce-%b'; img-src 'self' data:; font-src 'self'; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class _File:
    plain: bytes
    packed: dict[bytes, bytes]
    media: bytes


def _folder() -> Traversable:
    return resources.files("lockstep.server") / "dashboard"


@cache
def _page() -> bytes | None:
    """None until it is built."""
    page = _folder() / "index.html"
    return page.read_bytes() if page.is_file() else None


@cache
def _files() -> dict[str, _File]:
    folder = _folder() / "assets"
    if not folder.is_dir():
        return {}
    contents = {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
    return {
        name: _File(
            plain,
            {way: contents[name + ending] for way, ending in _PACKED if name + ending in contents},
            _TYPES[_ending(name)],
        )
        for name, plain in contents.items()
        if _ending(name) in _TYPES
    }


def _ending(name: str) -> str:
    return name[name.rfind(".") :]


def page() -> Response | None:
    """The page of every address of the dashboard; None if it has not been built."""
    written = _page()
    if written is None:
        return None
    nonce = secrets.token_urlsafe(16).encode()
    return Response(
        200,
        written.replace(_NONCE, nonce),
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", _POLICY % nonce),
        _ALWAYS_ASK,
        *CAREFUL,
    )


def file(request: Request) -> Response:
    """A file that the page loads. Raises NoSuchRoute."""
    name = request.parameters["file"]
    found = _files().get(name)
    if found is None:
        raise NoSuchRoute(f"there is no file /assets/{name[:200]}")
    accepted = {part.split(b";")[0].strip() for part in request.headers.get(b"accept-encoding", b"").split(b",")}
    way = next((way for way in found.packed if way in accepted), None)
    headers = [(b"content-type", found.media), _FOREVER, (b"vary", b"accept-encoding"), *CAREFUL]
    if way is None:
        return Response(200, found.plain, *headers)
    return Response(200, found.packed[way], *headers, (b"content-encoding", way))
