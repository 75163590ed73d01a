"""HTTP servers of the kill -9 tests, on one database. Each keeps its port across restarts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from support.server import ServerProcess, running_server


class HttpServer:
    """A server that may be killed and restarted."""

    def __init__(self, dsn: str, folder: Path, **settings: object) -> None:
        folder.mkdir()
        self._dsn = dsn
        self._folder = folder
        self._settings = settings
        self._port = 0
        self.start()

    def start(self) -> None:
        self._running: AbstractContextManager[ServerProcess] = running_server(
            self._dsn, self._folder, port=self._port, **self._settings
        )
        self.process = self._running.__enter__()
        self.url = self.process.url
        port = urlsplit(self.url).port
        assert port is not None
        self._port = port

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        self._running.__exit__(None, None, None)


@contextmanager
def http_servers(dsn: str, folder: Path, **settings: object) -> Iterator[list[HttpServer]]:
    """Two of them, one with several workers. They are on one machine, and share what they buffer."""
    servers: list[HttpServer] = []
    spool_dir = folder / "spool"
    try:
        servers.append(HttpServer(dsn, folder / "server-1", spool_dir=spool_dir, **settings))
        servers.append(HttpServer(dsn, folder / "server-2", spool_dir=spool_dir, workers=2, **settings))
        yield servers
    finally:
        for server in servers:
            server.close()
