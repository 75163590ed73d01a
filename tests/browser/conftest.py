"""A real browser for tests, and pages from elsewhere for it to open."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, Page, expect

from support.browser import CHROMIUM, MISSING, Watch, running_browser
from support.databases import Databases
from support.http import Http
from support.pages import Dashboard, addresses
from support.server import ServerProcess, running_server
from support.shop import Shop, running_shop

expect.set_options(timeout=30_000)  # a loaded machine draws slowly


# Not for the session: as long as it is open, no test can run an event loop of its own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(MISSING)
    with running_browser() as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """With cookies and a cache of its own. Anything that is not on this machine is out of reach."""
    context = browser.new_context()
    context.set_default_timeout(60_000)
    yield context.new_page()
    context.close()


@dataclass(frozen=True)
class Elsewhere:
    """A web server of somebody else, on this machine."""

    port: int

    def url(self, host: str) -> str:
        return f"http://{host}:{self.port}/"


class _EmptyPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>Elsewhere</title><body></body>")

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _EmptyPage) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Elsewhere(server.server_address[1])
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, elsewhere: Elsewhere) -> Iterator[ServerProcess]:
    allowed = elsewhere.url("friend.example").rstrip("/")
    with running_server("memory://", tmp_path_factory.mktemp("server"), allowed_origins=allowed) as running:
        yield running


@pytest.fixture
def http(server: ServerProcess) -> Http:
    return Http(server.url)


# The dashboard of a server with a seeded shop


@pytest.fixture(scope="module")
def shop_server(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Shop]]:
    dsn = databases.clone()
    with running_shop(dsn, tmp_path_factory.mktemp("shop"), events_interval_seconds=0.1) as shop:
        yield shop
    databases.drop(dsn)


@pytest.fixture(scope="module")
def pages(shop_server: tuple[ServerProcess, Shop]) -> dict[str, str]:
    return addresses(shop_server[1])


@pytest.fixture
def dashboard(
    browser: Browser, shop_server: tuple[ServerProcess, Shop], request: pytest.FixtureRequest
) -> Iterator[Dashboard]:
    """At the end of the test, no page has said an error or asked another server for anything."""
    server, shop = shop_server
    options = getattr(request, "param", {"viewport": {"width": 1280, "height": 900}})
    context = browser.new_context(**options)
    watch = Watch(server.url)
    page = context.new_page()
    watch.follow(page)
    yield Dashboard(page, server, shop, watch)
    context.close()
    assert watch.errors == []
    assert watch.foreign == []
