"""TLS of the server: its certificate, which is reloaded when its files change, and the handshake of connections.

A connection counts from its acceptance, so clients that never finish their handshake are limited like all others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from lockstep.config import Config
from lockstep.errors import InvalidOption
from lockstep.server.protocol import HttpConnection

logger = logging.getLogger("lockstep.server")

_LOOK_SECONDS = 5.0
_ACCEPTS = 64
"""Maximum number of connections accepted in a row before other work gets its turn."""
_ACCEPT_PAUSE_SECONDS = 1.0
_Stamp = tuple[tuple[int, int, int], ...]


class Certificate:
    """A certificate chain and its key, as the handshakes use them."""

    def __init__(self, cert_file: str, key_file: str) -> None:
        """Raises InvalidOption."""
        self._files = (os.path.expanduser(cert_file), os.path.expanduser(key_file))
        self._stamp: _Stamp | None = None
        self.context = _context()
        try:
            self._load()
        except (OSError, ssl.SSLError) as error:
            raise InvalidOption(f"tls_cert_file and tls_key_file cannot be used: {_reason(error)}") from None

    @classmethod
    def of(cls, config: Config) -> Certificate | None:
        """None if the server uses plain HTTP. Raises InvalidOption."""
        if config.tls_cert_file is None and config.tls_key_file is None:
            return None
        if config.tls_cert_file is None or config.tls_key_file is None:
            raise InvalidOption("tls_cert_file and tls_key_file need each other")
        return cls(config.tls_cert_file, config.tls_key_file)

    def _load(self) -> None:
        """Raises OSError; SSLError is one."""
        stamp = self._look()
        # Loaded into another context first: if the files do not match, handshakes keep using the current certificate.
        _context().load_cert_chain(*self._files, password=_no_password)
        self.context.load_cert_chain(*self._files, password=_no_password)
        self._stamp = stamp

    def _look(self) -> _Stamp:
        found = [os.stat(file) for file in self._files]
        return tuple([(one.st_mtime_ns, one.st_size, one.st_ino) for one in found])

    def renew(self) -> bool:
        """Read the files again if they have changed. Returns whether new ones are in use."""
        try:
            if self._look() == self._stamp:
                return False
            self._load()
        except (OSError, ssl.SSLError) as error:
            # Perhaps only one of them has been replaced so far; they are read again at the next check.
            fields = {"action": "certificate_unusable", "error": _reason(error)}
            logger.error("certificate_unusable", extra=fields)
            return False
        logger.info("certificate_renewed", extra={"action": "certificate_renewed", "file": self._files[0]})
        return True

    async def watch(self) -> None:
        """Renew it whenever its files change, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.renew()


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context


def _no_password() -> str:
    """Called for an encrypted key, for which OpenSSL would otherwise prompt on the terminal."""
    return ""


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "they are not PEM").lower().replace("_", " ")
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


class TlsConnection(HttpConnection):
    """A connection that becomes an HTTP connection after its handshake."""

    shaking: socket.socket | None = None
    """Set while the handshake is in progress."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.shaking = None
        super().connection_made(transport)

    def cut(self) -> None:
        if self.shaking is None:
            super().cut()
        else:
            with suppress(OSError):
                self.shaking.shutdown(socket.SHUT_RDWR)  # this makes the handshake fail

    def part(self) -> None:
        if self.shaking is None:
            super().part()
        else:
            self.cut()

    def shutdown(self) -> None:
        if self.shaking is None:
            super().shutdown()
        else:
            self.cut()


class TlsListener:
    """Accepts connections, and performs the handshakes."""

    def __init__(
        self, listener: socket.socket, connect: Callable[[], TlsConnection], certificate: Certificate, seconds: float
    ) -> None:
        """`seconds` is how long a handshake may take."""
        self._listener = listener
        self._connect = connect
        self._certificate = certificate
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._pause = None
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def stop(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        if self._pause is not None:
            self._pause.cancel()

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptors are left
                logger.error("accept_failed", extra={"action": "accept_failed", "error": str(error)})
                self.stop()
                self._pause = self._loop.call_later(_ACCEPT_PAUSE_SECONDS, self.start)
                return
            task = self._loop.create_task(self._shake(accepted, address[0]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _shake(self, accepted: socket.socket, host: str) -> None:
        accepted.setblocking(False)
        connection = self._connect()
        connection.shaking = accepted
        connection.enter(host)
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._certificate.context, ssl_handshake_timeout=self._seconds
            )
        except OSError as error:  # SSLError and TimeoutError are some
            fields = {"action": "handshake_failed", "address": host, "error": str(error)}
            logger.info("handshake_failed", extra=fields)
            accepted.close()
        finally:
            if connection.shaking is not None:
                connection.leave()
