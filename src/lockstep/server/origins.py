"""Which hosts a request may name, and which web pages may send one.

A browser sends any request that a page makes, even to a server on loopback. The page cannot read the answer, but the
pop or push has happened by then. Three headers reveal such a request, and no page can forge them: `Sec-Fetch-Site` and
`Origin` say where the page is from, and `Host` says which name the browser looked up. A name that an attacker owns may
lead to loopback (DNS rebinding), and the page is then of the same origin as the server.

Programs do not send the first two, so this does not concern them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import urlsplit

from lockstep.config import Config
from lockstep.errors import CrossSite, HostNotAllowed, InvalidOption, InvalidRequest
from lockstep.server.exchange import Request, Response
from lockstep.server.exposure import address_in, auth_is_on, is_loopback

Headers = tuple[tuple[bytes, bytes], ...]

_HOST = re.compile(r"(\[[0-9a-f:.%]+\]|[^\[\]@/?#\\:\s]+)(?::\d{1,5})?", re.IGNORECASE)
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", re.IGNORECASE)
_ANY = "*"
_SHOWN_MAX = 100
_OWN_SITES = (b"same-origin", b"none")
"""The page is ours, or there is none because the user typed the address."""
_PREFLIGHT: Headers = (
    (b"access-control-allow-methods", b"GET, POST, PATCH, DELETE, OPTIONS"),
    # A * would not cover Authorization.
    (b"access-control-allow-headers", b"authorization, content-type, lockstep-accept, x-request-id"),
    (b"access-control-max-age", b"600"),
)
_NO_CONTENT = Response(204)


class Origins:
    """The rules of one server."""

    def __init__(self, config: Config) -> None:
        """Raises InvalidOption."""
        self._hosts = hosts_in(config.allowed_hosts)
        self._origins = {origin.encode(): _allow(origin) for origin in origins_in(config.allowed_origins)}
        self._any_host = _ANY in self._hosts or auth_is_on(config)
        self._own_host = config.host.lower()
        self._remembered = lru_cache(maxsize=256)(self._is_host_allowed)

    def check_host(self, request: Request) -> None:
        """Raises HostNotAllowed, or InvalidRequest."""
        host = request.headers.get(b"host")
        if host is None:
            raise InvalidRequest("the header Host is missing")  # another ASGI server may let it through
        if not self._remembered(host):
            shown = host.decode("latin-1")[:_SHOWN_MAX]
            raise HostNotAllowed(f"the host {shown!r} is not among those that this server accepts (allowed_hosts)")

    def check_page(self, request: Request) -> None:
        """Raises CrossSite if a page of another site sent the request, unless that site is allowed. The headers that an
        allowed page needs to read the answer are added to the request."""
        if b"sec-fetch-site" in request.headers or b"origin" in request.headers:
            self._check_page(request)

    def _is_host_allowed(self, value: bytes) -> bool:
        """Raises InvalidRequest if this is not a host."""
        found = _HOST.fullmatch(value.decode("latin-1"))
        if found is None:
            raise InvalidRequest("the header Host is not a host with an optional port")
        host = found[1].lower().strip("[]").removesuffix(".")
        if self._any_host or is_loopback(host) or host in self._hosts:
            return True
        # A server that accepts remote connections is called by its address. No page can have the origin of a foreign
        # address, so addresses need no list.
        return not is_loopback(self._own_host) and (host == self._own_host or address_in(host) is not None)

    def _check_page(self, request: Request) -> None:
        origin = request.headers.get(b"origin")
        allowed = self._origins.get(origin) if origin is not None else None
        if allowed is not None:
            request.answer_headers = allowed
        elif not (_is_own(request, origin) or _leads_here(request)):
            raise CrossSite(
                "a web page of another site sent this request; allowed_origins lists the sites that may",
                **_shown(origin),
            )

    def preflight(self, request: Request) -> Response:
        """The answer to OPTIONS: what a page may send, if anything."""
        if not request.answer_headers:
            return _NO_CONTENT
        return Response(204, b"", *_PREFLIGHT)


def _is_own(request: Request, origin: bytes | None) -> bool:
    """Whether the requesting page came from this server."""
    site = request.headers.get(b"sec-fetch-site")
    if site is not None:
        return site in _OWN_SITES
    # Browsers send the site only to trustworthy hosts, such as those with TLS. The scheme is ignored: behind a proxy it
    # differs.
    return origin is not None and origin.partition(b"://")[2].lower() == request.headers[b"host"].lower()


def _leads_here(request: Request) -> bool:
    """Whether the user follows a link to one of our pages, which shows the page and changes nothing."""
    headers, route = request.headers, request.route
    return (
        route is not None
        and route.media == "text/html"
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
    )


def _shown(origin: bytes | None) -> dict[str, str]:
    return {} if origin is None else {"origin": origin.decode("latin-1")[:_SHOWN_MAX]}


def _allow(origin: str) -> Headers:
    return (
        (b"access-control-allow-origin", origin.encode()),
        (b"access-control-expose-headers", b"retry-after, x-request-id"),
        (b"vary", b"origin"),
    )


def hosts_in(text: str) -> frozenset[str]:
    """The host names in a list. Raises InvalidOption."""
    hosts = [one.lower().strip("[]").removesuffix(".") for one in _listed(text)]
    for host in hosts:
        if host != _ANY and address_in(host) is None and not _NAME.fullmatch(host):
            raise InvalidOption(f"allowed_hosts is a list of names or addresses without ports; {host!r} is neither")
    return frozenset(hosts)


def origins_in(text: str) -> list[str]:
    """The origins of a list, as browsers write them. Raises InvalidOption."""
    return [_origin(one) for one in _listed(text)]


def _origin(text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    bare = f"{parts.scheme}://{parts.netloc}".lower()
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or text.lower() != bare:
        raise InvalidOption(
            f"allowed_origins is a list of origins, such as https://app.example.com:8443; {text!r} is none"
        )
    usual = {"http": 80, "https": 443}[parts.scheme]
    return bare.removesuffix(f":{usual}") if port == usual else bare


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]
