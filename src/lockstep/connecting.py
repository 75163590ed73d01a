"""Clients by address: the basis of `connect` and `connect_async`. A client uses a server over HTTP, or an engine in
this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from ssl import SSLContext, SSLError, create_default_context
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from lockstep.client._retry import Bases, RetryPolicy
from lockstep.config import OF_CLIENTS, Config, load
from lockstep.core.operations import QueuedAs
from lockstep.core.statistics import QueryHook
from lockstep.errors import InvalidOption, InvalidRequest
from lockstep.version import VERSION

if TYPE_CHECKING:
    from lockstep.client import AsyncClient, Client
    from lockstep.engine.engine import Engine

Address = str | Sequence[str] | None


def connect(
    url: Address = None,
    *,
    timeout_seconds: float | None = None,
    retry_attempts_max: int | None = None,
    max_retry_delay: float | None = None,
    exactly_once: bool | None = None,
    queued: QueuedAs | None = None,
    retry_on_429: bool | None = None,
    honor_retry_after: bool | None = None,
    token: str | None = None,
    ca_file: str | Path | None = None,
    config_file: Path | None = None,
    on_query: QueryHook | None = None,
    **overrides: object,
) -> Client:
    """A client for threads.

    `http://…` is a server. Several servers on one store are given as a list or separated by commas; the client uses
    one that answers. `postgresql://…`, `memory://` and None (an embedded PostgreSQL) mean what they mean for
    `open_engine`.

    The arguments from `timeout_seconds` to `honor_retry_after` are the settings `client_…` of the same name, except
    that `max_retry_delay` is `client_retry_delay_seconds_max`; the overrides are any settings by name. With
    `exactly_once` each message gets a transaction id, so a push over HTTP is repeated when its answer is lost; without
    it such a push fails. A push that a busy server queues waits until it is applied; with `queued="return"` it returns
    at once with the id of the operation. `token`, an API key or a JWT, tells a server who is calling; the default is
    the setting `token` (`LOCKSTEP_TOKEN`, `LOCKSTEP_TOKEN_FILE`). `ca_file` names the authorities to trust for
    `https://`. `on_query` is that of `open_engine`; it is refused with a server. `tracing=True` makes OpenTelemetry
    spans and needs the extra `otel`.
    """
    retries = (timeout_seconds, retry_attempts_max, max_retry_delay, exactly_once)
    given = (*retries, queued, retry_on_429, honor_retry_after, token, ca_file)
    config, bases, opening = _understood(url, overrides, given, config_file, on_query)
    from lockstep.client._sync.client import Client  # what an address does not need is not loaded

    if opening is not None:
        from lockstep.client._sync.transport_engine import EngineTransport

        return Client(
            EngineTransport(opening, wait_seconds_max=config.pop_wait_seconds_max, queued=config.client_queued),
            tracing=config.tracing,
        )
    from lockstep.client._sync.connection import Connection
    from lockstep.client._sync.transport_http import HttpTransport

    kind = Connection
    if config.tracing:
        from lockstep.client._sync.tracing import TracedConnection

        kind = TracedConnection
    connection = kind(
        headers=_headers(config.token), connections_max=config.client_connections_max, tls=_tls(config.ca_file)
    )
    transport = HttpTransport(connection, _servers(bases, config), **_manners(bases, config))
    return Client(transport, tracing=config.tracing)


def connect_async(
    url: Address = None,
    *,
    timeout_seconds: float | None = None,
    retry_attempts_max: int | None = None,
    max_retry_delay: float | None = None,
    exactly_once: bool | None = None,
    queued: QueuedAs | None = None,
    retry_on_429: bool | None = None,
    honor_retry_after: bool | None = None,
    token: str | None = None,
    ca_file: str | Path | None = None,
    config_file: Path | None = None,
    on_query: QueryHook | None = None,
    **overrides: object,
) -> AsyncClient:
    """A client for asyncio, with the arguments of `connect`. It belongs to the event loop in which it is first used."""
    retries = (timeout_seconds, retry_attempts_max, max_retry_delay, exactly_once)
    given = (*retries, queued, retry_on_429, honor_retry_after, token, ca_file)
    config, bases, opening = _understood(url, overrides, given, config_file, on_query)
    from lockstep.client._async.client import AsyncClient  # what an address does not need is not loaded

    if opening is not None:
        from lockstep.client._async.transport_engine import AsyncEngineTransport

        return AsyncClient(
            AsyncEngineTransport(opening, wait_seconds_max=config.pop_wait_seconds_max, queued=config.client_queued),
            tracing=config.tracing,
        )
    from lockstep.client._async.connection import AsyncConnection
    from lockstep.client._async.transport_http import AsyncHttpTransport

    kind = AsyncConnection
    if config.tracing:
        from lockstep.client._async.tracing import AsyncTracedConnection

        kind = AsyncTracedConnection
    connection = kind(
        headers=_headers(config.token), connections_max=config.client_connections_max, tls=_tls(config.ca_file)
    )
    transport = AsyncHttpTransport(connection, _servers(bases, config), **_manners(bases, config))
    return AsyncClient(transport, tracing=config.tracing)


_SHORT = (
    "client_timeout_seconds",
    "client_retry_attempts_max",
    "client_retry_delay_seconds_max",
    "client_exactly_once",
    "client_queued",
    "client_retry_on_429",
    "client_honor_retry_after",
    "token",
    "ca_file",
)
"""The settings that the arguments of `connect` give, in their order."""

_OF_SERVERS = ("token", "token_file", "ca_file")
"""Settings that apply only to a server."""


def _understood(
    url: Address,
    overrides: Mapping[str, object],
    given: Sequence[object],
    config_file: Path | None,
    on_query: QueryHook | None,
) -> tuple[Config, list[str], AbstractAsyncContextManager[Engine] | None]:
    """The settings in force, the base URLs of servers, and an engine to open if the address is not that of a server."""
    # An argument that was not given does not override the setting of the same name.
    named = {name: value for name, value in zip(_SHORT, given, strict=True) if value is not None}
    settings = {**overrides, **named}
    bases = _bases(url)
    config = load(settings, file=config_file, unused=OF_CLIENTS if bases is None else ())
    _check_use(bases, settings, on_query)
    if bases is None:
        from lockstep.opening import open_engine

        return config, [], open_engine(_one(url), config_file=config_file, on_query=on_query, **settings)
    return config, bases, None


def _check_use(bases: list[str] | None, settings: Mapping[str, object], on_query: QueryHook | None) -> None:
    """Refuse settings without effect: the engine's settings with a server, and those of clients of a server without
    one.
    """
    if bases is None:
        for name in _OF_SERVERS:
            if settings.get(name) is not None:
                raise InvalidRequest(f"{name} is for a server: http:// or https://")
        return
    useless = [
        name
        for name, value in settings.items()
        if value is not None and not name.startswith("client_") and name not in (*_OF_SERVERS, "tracing")
    ]
    if useless:
        raise InvalidOption(
            f"{', '.join(useless)}: the server has these settings; a client of it takes those that begin with client_"
        )
    if on_query is not None:
        raise InvalidRequest(
            "on_query sees the queries of this process, but a server makes them; its log shows the slow ones "
            "(slow_query_seconds), and its metrics count all"
        )


def _bases(url: Address) -> list[str] | None:
    """The base URLs of servers; None if the address is not that of a server."""
    urls = _split(url)
    if not any(_is_http(one) for one in urls):
        return None
    return [_base(one) for one in urls]


def _split(url: Address) -> list[str]:
    if url is None:
        return []
    if not isinstance(url, str):
        if isinstance(url, bytes) or not isinstance(url, Sequence) or not all([isinstance(one, str) for one in url]):
            raise InvalidRequest("an address is text, or a list of texts")
        return [one.strip() for one in url]
    # Only addresses of servers are separated by commas: elsewhere a comma is part of the address.
    return [one.strip() for one in url.split(",") if one.strip()] if _is_http(url.strip()) else [url]


def _one(url: Address) -> str | None:
    urls = _split(url)
    if len(urls) > 1:
        raise InvalidRequest("several addresses must all be servers: http:// or https://")
    if url is not None and not urls:
        raise InvalidRequest("there is no address in the list")
    if not urls:
        return None
    from lockstep.opening import check_address

    try:
        check_address(urls[0])
    except InvalidRequest:
        # Without the address itself, which may contain a password.
        raise InvalidRequest("an address begins with http://, https://, postgresql:// or memory://") from None
    return urls[0]


def _is_http(url: str) -> bool:
    return url.partition("://")[0].lower() in ("http", "https") and "://" in url


def _base(url: str) -> str:
    """A base URL without its trailing slash. The errors do not repeat it, because it may contain a password."""
    parts = _parts(url)
    if not _is_http(url) or parts is None:
        raise InvalidRequest("the address of a server is http://host:port or https://host:port")
    if "@" in parts.netloc:
        raise InvalidRequest("the address of a server has no user and password; there is token for that")
    if parts.query or parts.fragment:
        raise InvalidRequest("the address of a server has no query and no fragment")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _parts(url: str) -> SplitResult | None:
    """None if the URL has no valid host or port."""
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and not any(char.isspace() for char in parts.netloc) and parts.port != 0
    except ValueError:
        return None
    return parts if named else None


def _headers(token: str | None) -> dict[str, str]:
    headers = {"content-type": "application/json", "user-agent": f"lockstep/{VERSION}"}
    if token is None:
        return headers
    if not token.isascii() or not token.isprintable():
        raise InvalidRequest("a token is text that fits into a header")  # without the token itself
    return {**headers, "authorization": f"Bearer {token}"}


def _tls(ca_file: str | None) -> SSLContext | None:
    """None means the authorities that the system trusts."""
    if ca_file is None:
        return None
    try:
        return create_default_context(cafile=Path(ca_file).expanduser())
    except (OSError, SSLError) as error:
        raise InvalidOption(f"the file of ca_file, {ca_file!r}, cannot be read: {error}") from error


def _servers(bases: list[str], config: Config) -> Bases:
    return Bases(bases, cooldown_seconds=config.client_failover_cooldown_seconds)


def _manners(bases: list[str], config: Config) -> dict[str, Any]:
    return {
        # Each server is tried at least once.
        "retry": RetryPolicy(
            max(config.client_retry_attempts_max, len(bases)),
            config.client_retry_delay_seconds_max,
            config.client_retry_on_429,
            config.client_honor_retry_after,
        ),
        "timeout_seconds": config.client_timeout_seconds,
        "exactly_once": config.client_exactly_once,
        "queued": config.client_queued,
        "queued_seconds_max": config.client_queued_seconds_max,
        "packed": config.client_packed,
    }
