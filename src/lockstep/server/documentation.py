"""The site of docs/ as built by tools/docs: pages, and the files that they load.

Its manifest lists every file with a hash of its contents. Only listed files are served.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from lockstep.server.dashboard import CAREFUL
from lockstep.server.exchange import Request, Response

_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".json": b"application/json",
    ".svg": b"image/svg+xml",
    ".png": b"image/png",
}
_FOREVER = (b"cache-control", b"public, max-age=31536000, immutable")
_ALWAYS_ASK = (b"cache-control", b"no-cache")
_HASHED = re.compile(r"\.[0-9a-f]{8}\.min\.(js|css)$")
"""The theme's own files have a hash of their contents in their names."""
# Scripts and styles come from files only, and nothing comes from other sites. The search runs in a worker.
_POLICY = (
    b"content-security-policy",
    b"default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self' data:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
)


def _folder() -> Traversable:
    return resources.files("lockstep.server") / "documentation"


@cache
def _hashes() -> dict[str, str]:
    """The hashes of the files, by name; empty until the site is built."""
    manifest = _folder() / "manifest.json"
    return json.loads(manifest.read_text(encoding="utf-8")) if manifest.is_file() else {}


def is_built() -> bool:
    return bool(_hashes())


def file(request: Request, name: str) -> Response | None:
    """A file of the site; the site's error page for an unknown address; None if the site has not been built."""
    if not is_built():
        return None
    if name not in _hashes() or _ending(name) not in _TYPES:
        return _wrong_address()
    tag = b'W/"%b"' % _hashes()[name].encode()
    headers = (
        (b"content-type", _TYPES[_ending(name)]),
        (b"etag", tag),
        _FOREVER if _HASHED.search(name) else _ALWAYS_ASK,
        (b"vary", b"accept-encoding"),
        _POLICY,
        *CAREFUL,
    )
    if tag in _listed(request, b"if-none-match"):
        return Response(304, b"", *headers)
    # Read each time: the files are small and cached by the system, while each process would keep its own copy.
    packed = _folder() / f"{name}.gz"
    if b"gzip" in _listed(request, b"accept-encoding") and packed.is_file():
        return Response(200, packed.read_bytes(), *headers, (b"content-encoding", b"gzip"))
    return Response(200, (_folder() / name).read_bytes(), *headers)


def _wrong_address() -> Response:
    page = (_folder() / "404.html").read_bytes()
    return Response(404, page, (b"content-type", _TYPES[".html"]), _ALWAYS_ASK, _POLICY, *CAREFUL)


def _ending(name: str) -> str:
    return name[name.rfind(".") :]


def _listed(request: Request, header: bytes) -> set[bytes]:
    """The values of a header, without their weights."""
    return {part.split(b";")[0].strip() for part in request.headers.get(header, b"").split(b",")}
