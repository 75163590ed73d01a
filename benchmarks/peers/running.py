"""The servers that are measured, started on loopback with a directory of their own, and ended with it.

Each offers an address, what it has written so far, its CPU time and its memory.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import children, cpu_seconds, parent
from benchmarks.scenarios.http import server_process
from benchmarks.servers import Server, connection

START_SECONDS_MAX = 60


class Missing(Exception):
    """A server cannot be had on this machine. The text says why, and what installs it."""


@dataclass(frozen=True, slots=True)
class Running:
    address: str
    roots: list[int]
    """Its processes are these and all that descend from them."""
    written: Callable[[], Awaitable[int]]
    """Bytes so far: of PostgreSQL its WAL, of the others what their processes wrote to files."""

    def cpu(self) -> float:
        return cpu_seconds(self._pids())

    def memory_mib(self) -> float:
        """Shared pages are counted in parts, so that the sum is right."""
        return sum(map(_pss_kib, self._pids())) / 1024

    def _pids(self) -> list[int]:
        return [pid for root in self.roots for pid in children(root)]


def _pss_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended, or it is another user's
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


@asynccontextmanager
async def running(kind: str, server: Server) -> AsyncIterator[Running]:
    """A server of that kind, with nothing in it."""
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(_KINDS[kind](server))


# --- On PostgreSQL --------------------------------------------------------------------------------------------


@asynccontextmanager
async def _postgres(server: Server) -> AsyncIterator[Running]:
    async with server.database() as dsn:
        await server.checkpoint()
        yield Running(dsn, [await _postmaster(dsn)], server.wal_bytes)


@asynccontextmanager
async def _lockstep(server: Server) -> AsyncIterator[Running]:
    async with _postgres(server) as database, server_process(database.address) as (url, pid):
        yield Running(url, [*database.roots, pid], database.written)


async def _postmaster(dsn: str) -> int:
    async with connection(dsn) as opened:
        return parent(await opened.fetchval("select pg_backend_pid()"))


# --- Others ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _redis(_server: Server) -> AsyncIterator[Running]:
    port = _free_port()
    with _directory() as directory:
        settings = [
            f"--port {port}",
            "--bind 127.0.0.1",
            f"--dir {directory}",
            "--appendonly yes",
            "--appendfsync always",
        ]
        command = ["redis-server", *" ".join([*settings, "--save", ""]).split(" ")]
        async with _process(command, "redis-server", port) as pid:
            yield Running(f"redis://127.0.0.1:{port}/0", [pid], _file_bytes(pid))


@asynccontextmanager
async def _nats(_server: Server) -> AsyncIterator[Running]:
    port = _free_port()
    with _directory() as directory:
        command = ["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory)]
        async with _process(command, "nats-server", port) as pid:
            yield Running(f"nats://127.0.0.1:{port}", [pid], _file_bytes(pid))


@asynccontextmanager
async def _rabbitmq(_server: Server) -> AsyncIterator[Running]:
    port, peers_port, names_port = _free_port(), _free_port(), _free_port()
    program = _rabbitmq_program()
    with _directory() as directory:
        environ = {
            **os.environ,
            "HOME": str(directory),
            "RABBITMQ_NODENAME": f"bench{os.getpid()}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(peers_port),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(directory / "none"),
            "ERL_EPMD_PORT": str(names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        # It would start a daemon for the names of nodes that outlives it, unless there is one.
        names = ["epmd", "-port", str(names_port), "-address", "127.0.0.1"]
        async with (
            _process(names, "erlang-base", names_port),
            _process([program], "rabbitmq-server", port, environ) as pid,
        ):
            yield Running(f"amqp://guest:guest@127.0.0.1:{port}/", [pid], _file_bytes(pid))


def _rabbitmq_program() -> str:
    """That of the server itself: the one on the PATH changes to a user of its own."""
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    if not found:
        raise Missing("rabbitmq-server is not installed")
    return str(found[-1])


@asynccontextmanager
async def _process(
    command: list[str], package: str, port: int, environ: dict[str, str] | None = None
) -> AsyncIterator[int]:
    """Start it in a process group of its own, wait until it listens, and end the whole group afterwards."""
    if shutil.which(command[0]) is None:
        raise Missing(f"{package} is not installed")
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environ,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    descended: set[int] = set()
    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            while not await _listens(port):
                if process.returncode is not None:
                    raise Missing(f"{package} ended at once with exit code {process.returncode}")
                await asyncio.sleep(0.1)
        descended = set(children(process.pid))
        yield process.pid
    finally:
        descended |= set(children(process.pid))
        await _end(process, descended)


async def _end(process: asyncio.subprocess.Process, descended: set[int]) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(20):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
    for pid in descended - {process.pid}:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _directory:  # noqa: N801 - a context, used like a function
    """A directory that is gone afterwards, whatever a server still writes there."""

    def __enter__(self) -> Path:
        self._path = Path(tempfile.mkdtemp(prefix="lockstep-bench-"))
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


def _file_bytes(root: int) -> Callable[[], Awaitable[int]]:
    async def read() -> int:
        return sum(map(_write_bytes, children(root)))

    return read


def _write_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


_KINDS = {"postgres": _postgres, "lockstep": _lockstep, "redis": _redis, "nats": _nats, "rabbitmq": _rabbitmq}
