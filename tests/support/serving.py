"""A server on a thread of the test's own process, so that its store can stand on the test's set clock."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from lockstep.config import Config
from lockstep.engine.engine import Engine
from lockstep.server.node import Node
from lockstep.server.protocol import HttpConnection
from lockstep.server.serving import application_of
from lockstep.storage.base import Store


class _Server(uvicorn.Server):
    """Says when it is ready, and lets waiting polls answer before it waits for them."""

    def __init__(self, engine: Engine, config: Config, *, asgi: bool) -> None:
        self.ready = threading.Event()
        self._engine = engine
        application = application_of(Node(engine, config))
        http = "httptools" if asgi else HttpConnection.of(config, application)
        super().__init__(uvicorn.Config(application, http=http, port=0, lifespan="off", ws="none", log_config=None))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._engine.stop_waiting()
        await super().shutdown(sockets)


@contextmanager
def serving(store: Store, config: Config | None = None) -> Iterator[str]:
    """The URL of a server on the store, which it opens and closes."""
    config = config or Config()
    with serving_engine(Engine(store, config), config) as url:
        yield url


@contextmanager
def serving_engine(engine: Engine, config: Config | None = None, *, asgi: bool = False) -> Iterator[str]:
    """The URL of a server on an engine, which it opens and closes; by ASGI, as any other server would, or as ours."""
    server = _Server(engine, config or Config(), asgi=asgi)

    async def run() -> None:
        async with engine:
            await server.serve()

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="test-server")
    thread.start()
    try:
        assert server.ready.wait(30), "the server did not start"
        yield server.url
    finally:
        server.should_exit = True
        thread.join()
