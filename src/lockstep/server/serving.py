"""The processes of a server: one, or several on the same port, with the embedded PostgreSQL if there is no other.

The first process owns the database and the listening socket. With several workers it only supervises them: it replaces
a worker that dies, and passes on a stop; if it dies itself, its workers stop. A worker is an engine with its
maintenance, and the ASGI application on uvicorn.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import multiprocessing
import signal
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import uvicorn

from lockstep.config import Config
from lockstep.errors import InvalidOption, LockstepError
from lockstep.opening import check_address, running_database, serving_engine_on, with_key
from lockstep.server.app import Application
from lockstep.server.exposure import check_exposure
from lockstep.server.figures import encoded_figures
from lockstep.server.intake import raise_file_limit
from lockstep.server.node import Node
from lockstep.server.origins import Origins
from lockstep.server.privileges import drop_root
from lockstep.server.protocol import HttpConnection
from lockstep.server.siblings import Siblings
from lockstep.server.tls import Certificate, TlsConnection, TlsListener

logger = logging.getLogger("lockstep.server")

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_RESTART_SECONDS = 1.0
_GC_THRESHOLDS = (20_000, 20, 50)
_BACKLOG = 2048

Announce = Callable[[str, str], None]
"""Called once the server takes requests, with its URL and the address of its store."""


async def serve(config: Config, *, announce: Announce) -> None:
    """Serve until SIGINT or SIGTERM; then finish the requests in flight and return."""
    _check_workers(config)
    # These raise if a setting is invalid, before anything is started.
    Origins(config)
    Certificate.of(config)
    with _listening_socket(config) as listener:
        url = _url(config, listener.getsockname()[1])
        async with running_database(config) as (address, embedded):
            config = with_key(config, address)
            raise_file_limit(config.connections_max)  # which root may raise further
            drop_root(embedded)
            if config.workers == 1:
                await _work(config, address, listener, ready=lambda: announce(url, address))
                return
            with TemporaryDirectory(prefix="lockstep-", ignore_cleanup_errors=True) as meeting:
                place = (config, address, listener, meeting)
                await _watch_over_workers(*place, ready=lambda: announce(url, address))


def _check_workers(config: Config) -> None:
    if config.workers > 1 and config.dsn is not None and check_address(config.dsn) == "memory":
        raise InvalidOption(f"a store in memory belongs to one process: workers must be 1, not {config.workers}")


def _listening_socket(config: Config) -> socket.socket:
    """Bound before the database starts, because a port in use is the quickest error to find."""
    try:
        family = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((config.host, config.port))
            check_exposure(config, listener.getsockname()[0])
            listener.listen(_BACKLOG)
        except (OSError, InvalidOption):
            listener.close()
            raise
    except OSError as error:
        text = f"the server cannot listen on {config.host} port {config.port}: {error.strerror or error}"
        raise InvalidOption(text) from error
    return listener


def _url(config: Config, port: int) -> str:
    shown = {"0.0.0.0": "localhost", "::": "localhost", "127.0.0.1": "localhost"}.get(config.host, config.host)
    scheme = "http" if config.tls_cert_file is None else "https"
    return f"{scheme}://[{shown}]:{port}" if ":" in shown else f"{scheme}://{shown}:{port}"


# --- One worker ---------------------------------------------------------------------------------------------


async def _work(
    config: Config, address: str, listener: socket.socket, meeting: str | None = None, *, ready: Callable[[], None]
) -> None:
    """One process; with `meeting`, the directory in which the workers of the port find each other, one of several."""
    raise_file_limit(config.connections_max)
    with _exporting(config):
        await _serve_on(config, address, listener, meeting, ready)


async def _serve_on(
    config: Config, address: str, listener: socket.socket, meeting: str | None, ready: Callable[[], None]
) -> None:
    async with serving_engine_on(address, config) as engine:
        node = Node(engine, config)
        if meeting is not None:
            node.siblings = Siblings(Path(meeting), partial(encoded_figures, node))
        await node.start()
        try:
            await _Server(node, ready).serve(sockets=[listener])
        finally:
            await node.stop()


def application_of(node: Node) -> Application:
    """The application, with a span around each request if the settings say so."""
    if not node.config.tracing:
        return Application(node)
    from lockstep.server.tracing import TracedApplication

    return TracedApplication(node)


def _exporting(config: Config) -> AbstractContextManager[None]:
    if not config.tracing:
        return nullcontext()
    from lockstep.tracing import exporting

    return exporting("lockstep-server")


class _Server(uvicorn.Server):
    """uvicorn with a notification when it is ready, and with waiting polls answered before it waits for them."""

    def __init__(self, node: Node, ready: Callable[[], None]) -> None:
        config = node.config
        application = application_of(node)
        self._certificate = Certificate.of(config)
        self._renewing: asyncio.Task[None] | None = None
        self._tls_listeners: list[TlsListener] = []
        super().__init__(
            uvicorn.Config(
                application,
                loop="uvloop",
                http=(HttpConnection if self._certificate is None else TlsConnection).of(config, application),
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=max(int(config.keep_alive_seconds), 1),
                timeout_graceful_shutdown=max(int(config.shutdown_timeout_seconds), 1),
                backlog=_BACKLOG,
            )
        )
        self._node = node
        self._ready = ready

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        # Otherwise uvicorn raises it again at its end, and the store is not closed and PostgreSQL not stopped.
        self._captured_signals.clear()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._certificate is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            self._listen(self._certificate, sockets or [])
        # Objects that exist now stay, and requests leave little that only the garbage collector can free. With Python's
        # defaults it scans everything repeatedly, which costs 5 to 10 per cent of a small request.
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        parent = multiprocessing.parent_process()
        if parent is not None:
            asyncio.get_running_loop().add_reader(parent.sentinel, self._stop_without, parent)
        self._ready()

    def _listen(self, certificate: Certificate, sockets: list[socket.socket]) -> None:
        """With TLS we listen instead of uvicorn, which would see connections only after their handshake."""
        self._renewing = asyncio.create_task(certificate.watch())
        kind: Any = self.config.http_protocol_class
        connect = partial(kind, self.config, self.server_state, {})
        seconds = self._node.config.request_timeout_seconds
        self._tls_listeners = [TlsListener(one, connect, certificate, seconds) for one in sockets]
        for listener in self._tls_listeners:
            listener.start()

    def _stop_without(self, parent: BaseProcess) -> None:
        """Stop if the parent process, which replaces and stops workers, is gone; otherwise the port would stay in
        use.
        """
        asyncio.get_running_loop().remove_reader(parent.sentinel)
        logger.error("parent_died", extra={"action": "parent_died", "pid": parent.pid})
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._node.stopping = True
        if self._renewing is not None:
            self._renewing.cancel()
        for listener in self._tls_listeners:
            listener.stop()
        for connection in list(self.server_state.connections):
            connection.shutdown()  # before polls are answered, so that each answer closes its connection
        await self._node.engine.stop_waiting()
        await super().shutdown(sockets)


# --- Several workers ----------------------------------------------------------------------------------------


async def _watch_over_workers(
    config: Config, address: str, listener: socket.socket, meeting: str, *, ready: Callable[[], None]
) -> None:
    workers = [_Worker(config, address, listener, meeting) for _ in range(config.workers)]
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        await asyncio.gather(*[worker.start() for worker in workers])
        ready()
        watching = [asyncio.create_task(worker.watch()) for worker in workers]
        await stop.wait()
        listener.close()  # as the workers do: new clients are refused instead of waiting for an accept that never comes
        for task in watching:
            task.cancel()
        await asyncio.wait(watching)
    finally:
        await asyncio.gather(*[worker.stop() for worker in workers])
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)


class _Worker:
    """A worker process, replaced when it dies."""

    def __init__(self, config: Config, address: str, listener: socket.socket, meeting: str) -> None:
        self._config = config
        self._arguments = (config, address, listener, meeting)
        self._process: BaseProcess | None = None

    async def start(self) -> None:
        """Returns when the process takes requests. Raises LockstepError if it ends before that."""
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_worker_process, args=(*self._arguments, sender), name="lockstep-worker")
        process.start()
        self._process = process
        sender.close()
        try:
            said = await asyncio.to_thread(receiver.recv)
        except EOFError:
            said = "a worker process ended before it was ready; its log says why"
        finally:
            receiver.close()
        if said is not None:
            raise LockstepError(said)

    async def watch(self) -> None:
        while True:
            assert self._process is not None
            await asyncio.to_thread(self._process.join)
            logger.error(
                "worker_died", extra={"action": "worker_died", "pid": self._process.pid, "code": self._process.exitcode}
            )
            with suppress(LockstepError):
                await self.start()
            await asyncio.sleep(_RESTART_SECONDS)

    async def stop(self) -> None:
        process = self._process
        if process is None or process.pid is None:
            return
        if process.is_alive():
            process.terminate()
        await asyncio.to_thread(process.join, self._config.shutdown_timeout_seconds + 5)
        if process.is_alive():
            process.kill()
            await asyncio.to_thread(process.join)


def _worker_process(config: Config, address: str, listener: socket.socket, meeting: str, parent: Any) -> None:
    """The main function of a worker process."""
    from lockstep.server.logs import log_to_stderr

    log_to_stderr(config)

    def ready() -> None:
        parent.send(None)
        parent.close()

    try:
        run(_work(config, address, listener, meeting, ready=ready))
    except LockstepError as error:
        with suppress(OSError):
            parent.send(error.message)
        raise SystemExit(1) from error


def run(work: Any) -> None:
    """Run on uvloop, which halves what a request costs."""
    import uvloop

    _keep_memory()
    uvloop.run(work)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 64 * 1024 * 1024
_MAPPED_BYTES_MIN = 16 * 1024 * 1024


def _keep_memory() -> None:
    """Let glibc keep freed memory. Otherwise the memory of every large body is returned to the system and fetched
    again, page by page, which costs more than unpacking the body (decision 0076). Other C libraries are left alone."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
