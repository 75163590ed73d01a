"""The worker processes behind one port, which exchange their figures.

The process that accepts a request for figures queries the others, over their sockets in a shared directory. A process
that does not answer soon is left out, because it is being replaced or hangs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger("lockstep.server")

_ANSWER_SECONDS_MAX = 1.0


class Siblings:
    """This process among the processes on its port."""

    def __init__(self, directory: Path, tell: Callable[[], bytes]) -> None:
        self._directory = directory
        self._own = directory / str(os.getpid())
        self._tell = tell
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._answer, path=self._own)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        _remove(self._own)
        with suppress(OSError):
            self._directory.rmdir()  # the last process removes it

    async def ask(self) -> list[bytes]:
        """The answers of the others, by process."""
        others = [path for path in sorted(self._directory.iterdir()) if path != self._own]
        answers = await asyncio.gather(*map(self._ask_one, others))
        return [answer for answer in answers if answer]

    async def _ask_one(self, path: Path) -> bytes:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS_MAX):
                reader, writer = await asyncio.open_unix_connection(path)
                try:
                    return await reader.read()
                finally:
                    writer.close()
        except ConnectionRefusedError:
            _remove(path)  # left by a process that was killed
        except (OSError, TimeoutError) as error:
            fields = {"action": "sibling_silent", "pid": path.name, "error": str(error) or type(error).__name__}
            logger.info("sibling_silent", extra=fields)
        return b""

    async def _answer(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            writer.write(self._tell())
            await writer.drain()
        writer.close()


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.unlink()
