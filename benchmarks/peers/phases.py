"""What is measured of a queue: pushes, a backlog that is consumed, both at once, and how long a message takes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.messages import Messages
from benchmarks.peers.catalog import NODE, OURS, Peer
from benchmarks.peers.running import Missing, Running, running
from benchmarks.servers import Server

CALLERS = 10
BATCH = 100
MESSAGES_MAX = 300_000
"""Of one push phase, so that a fast queue does not fill the disk."""
MESSAGES = 2_000
"""Different ones."""
RATE = 100
"""Messages per second, pushed singly, of the latency phase."""
PHASE_SECONDS_MAX = 120
ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build/peers"


@dataclass(frozen=True, slots=True)
class Programs:
    """What runs the drivers."""

    python: Path = BUILD / "python/bin/python"
    node: Path | None = None

    def command(self, peer: Peer) -> list[str]:
        if peer.runtime == NODE:
            if self.node is None or not (BUILD / "node/node_modules").is_dir():
                raise Missing("its Node packages are not installed")
            return [str(self.node), str(BUILD / "node/drive.js"), peer.driver]
        if peer.runtime == OURS:
            return [sys.executable, "-m", "benchmarks.peers.drive", peer.driver]
        if not self.python.exists():
            raise Missing("its Python packages are not installed")
        return [str(self.python), "-m", "benchmarks.peers.drive", peer.driver]


class Peers:
    """Runs the phases of one peer after the other, each on a queue that is new."""

    def __init__(self, server: Server, programs: Programs, seconds: float) -> None:
        self._server = server
        self._programs = programs
        self._seconds = seconds
        self._messages = BUILD / "messages.jsonl"
        BUILD.mkdir(parents=True, exist_ok=True)
        self._messages.write_text("\n".join(Messages(MESSAGES).texts) + "\n")

    async def measure(self, peer: Peer) -> dict[str, float]:
        found = {"push_1": await self._push_single(peer)}
        found |= await self._push_and_drain(peer)
        if peer.consumes:
            found |= await self._both(peer)
            found |= await self._latency(peer)
        return found

    @asynccontextmanager
    async def _fresh(self, peer: Peer) -> AsyncIterator[Running]:
        async with running(peer.server, self._server) as server:
            await self._ask(peer, "setup", server, {})
            yield server

    async def _push_single(self, peer: Peer) -> float:
        async with self._fresh(peer) as server:
            return _rate(await self._push(peer, server, batch=1))

    async def _push_and_drain(self, peer: Peer) -> dict[str, float]:
        async with self._fresh(peer) as server:
            written, cpu = await server.written(), server.cpu()
            pushed = await self._push(peer, server, batch=BATCH)
            found = {"push_100": _rate(pushed), "push_100_p99_ms": pushed["p99_ms"]}
            spent = pushed["cpu_seconds"]
            if peer.consumes:
                async with self._consumer(peer, server, timed=False) as consumer:
                    await consumer.tell("go")
                    consumed = await consumer.finish(pushed["messages"])
                found["consume"] = _rate(consumed)
                spent += consumed["cpu_seconds"]
            found["bytes_per_message"] = (await server.written() - written) / pushed["messages"]
            found["server_us_per_message"] = 1e6 * (server.cpu() - cpu) / pushed["messages"]
            found["client_us_per_message"] = 1e6 * spent / pushed["messages"]
            found["server_mib"] = server.memory_mib()
            return found

    async def _both(self, peer: Peer) -> dict[str, float]:
        async with self._fresh(peer) as server, self._consumer(peer, server, timed=False) as consumer:
            await consumer.tell("go")
            pushed = await self._push(peer, server, batch=BATCH)
            consumed = await consumer.finish(pushed["messages"])
            return {"both": consumed["messages"] / (consumed["last"] - pushed["began"])}

    async def _latency(self, peer: Peer) -> dict[str, float]:
        async with self._fresh(peer) as server, self._consumer(peer, server, timed=True) as consumer:
            await asyncio.sleep(1)  # until it waits for messages
            pushed = await self._ask(peer, "push-at-rate", server, {"seconds": self._seconds, "rate": RATE})
            consumed = await consumer.finish(pushed["messages"])
            if consumed["messages"] < pushed["messages"]:
                raise RuntimeError(f"{consumed['messages']} of {pushed['messages']} messages came")
            return {"end_to_end_p50_ms": consumed["p50_ms"], "end_to_end_p99_ms": consumed["p99_ms"]}

    async def _push(self, peer: Peer, server: Running, *, batch: int) -> dict[str, Any]:
        arguments = {"seconds": self._seconds, "callers": CALLERS, "batch": batch, "messages_max": MESSAGES_MAX}
        pushed = await self._ask(peer, "push", server, arguments)
        if not pushed["messages"]:
            raise RuntimeError("nothing was pushed")
        return pushed

    async def _ask(self, peer: Peer, action: str, server: Running, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run the driver for one action; its last line is the answer."""
        program = await self._start(peer, action, server, arguments)
        return await program.answer()

    @asynccontextmanager
    async def _consumer(self, peer: Peer, server: Running, *, timed: bool) -> AsyncIterator[Program]:
        program = await self._start(peer, "consume", server, {"timed": timed})
        try:
            await program.line("ready")
            yield program
        finally:
            await program.end()

    async def _start(self, peer: Peer, action: str, server: Running, arguments: dict[str, Any]) -> Program:
        command = self._programs.command(peer)
        if peer.options:
            arguments = {**arguments, "driver": peer.options}
        environ = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
        environ["BENCH_MESSAGES"] = str(self._messages)
        process = await asyncio.create_subprocess_exec(
            *command,
            action,
            server.address,
            json.dumps(arguments),
            env=environ,
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        return Program(peer.name, action, process)


class Program:
    """A driver that runs."""

    def __init__(self, peer: str, action: str, process: asyncio.subprocess.Process) -> None:
        self._what = f"{peer}, {action}"
        self._process = process
        assert process.stderr is not None
        self._errors = asyncio.ensure_future(process.stderr.read())

    async def tell(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n".encode())
        await self._process.stdin.drain()

    async def line(self, expected: str) -> None:
        assert self._process.stdout is not None
        async with asyncio.timeout(PHASE_SECONDS_MAX):
            while line := (await self._process.stdout.readline()).decode().strip():
                if line == expected:
                    return
        raise RuntimeError(f"{self._what}: {await self._failure()}")

    async def finish(self, messages: int) -> dict[str, Any]:
        await self.tell(str(messages))
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(PHASE_SECONDS_MAX):
                lines = (await self._process.stdout.read()).decode().splitlines()
                code = await self._process.wait()
        except TimeoutError:
            raise RuntimeError(f"{self._what}: no answer within {PHASE_SECONDS_MAX} s") from None
        finally:
            await self.end()
        answers = [line for line in lines if line.startswith("{")]
        if code != 0 or not answers:
            raise RuntimeError(f"{self._what}: {await self._failure()}")
        answer: dict[str, Any] = json.loads(answers[-1])
        return answer

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _failure(self) -> str:
        lines = (await self._errors).decode().strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"


def _rate(answer: dict[str, Any]) -> float:
    return float(answer["messages"] / answer["seconds"]) if answer["seconds"] else 0.0
